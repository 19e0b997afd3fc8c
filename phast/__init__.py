"""PHAST: port-Hamiltonian models of physical systems, learned from positions alone."""

import importlib

_EXPORTS = {
    "errors": (
        "FitError",
        "InputError",
        "Reason",
    ),
    "data.manifold": ("Manifold",),
    "data.units": ("Units",),
    "data.recording": ("Recording",),
    "data.reading": ("read", "read_columns"),
    "data.trajectories": ("Trajectories", "save_trajectories"),
    "components.parameter": (
        "Bounded",
        "Positive",
        "Real",
        "parameter_count",
    ),
    "components.potential": (
        "ChainCosine",
        "Cosine",
        "Gravity",
        "Hybrid",
        "LennardJones",
        "Logarithmic",
        "MLPPotential",
        "PeriodicMLPPotential",
        "Quadratic",
        "QuadraticForm",
        "Scaled",
        "Some",
        "Sum",
    ),
    "components.mass": (
        "CholeskyMass",
        "ConstantMass",
        "JointedMass",
        "LinkedMass",
        "LowRankMass",
        "NeuralMass",
    ),
    "components.damping": (
        "ConstantDamping",
        "Friction",
        "FrictionField",
        "HouseholderDamping",
        "PSDDamping",
        "ProportionalDamping",
        "SplineDamping",
        "SumDamping",
        "WindyDamping",
    ),
    "components.spline": ("Grid",),
    "dynamics.hamiltonian": (
        "ConsumerResource",
        "PortHamiltonian",
    ),
    "dynamics.integrators": (
        "CayleyNeumann",
        "DiscreteGradient",
        "ExactDamping",
        "ExplicitDamping",
        "ImplicitDamping",
        "ImplicitMidpoint",
        "RungeKutta",
        "Timestep",
        "Transition",
        "fourth_order",
        "leapfrog",
    ),
    "dynamics.systems": (
        "SYSTEMS",
        "System",
        "black_box",
        "system",
    ),
    "dynamics.simulation": ("simulate",),
    "estimation.observers": (
        "ConvolutionalObserver",
        "FiniteDifference",
        "IdentityCanonicalizer",
        "MassCanonicalizer",
    ),
    "estimation.forecaster": (
        "Core",
        "Phast",
        "PhastBlock",
    ),
    "estimation.moving_horizon": ("ModelAware",),
    "fitting.structure": ("Structure",),
    "fitting.free_fields": ("consumer_resource",),
    "fitting.second_order": (
        "SecondOrder",
        "passive_transition",
    ),
    "fitting.gradient": ("Gradient",),
    "fitting.losses": (
        "FullStateLoss",
        "HorizonLoss",
        "NextStepLoss",
        "PhysicsLoss",
    ),
    "fitting.training": ("Settings",),
    "fitting.networks": (
        "known",
        "partial",
        "unknown",
    ),
    "fitting.progress": ("Progress",),
    "report.plots": ("save_figure",),
    "api.fitting": ("fit",),
    "api.fitted": (
        "Fitted",
        "load",
    ),
    "api.forecast": ("Forecast",),
    "api.identification": ("Identification",),
    "api.states": ("States",),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'phast' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"phast.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
