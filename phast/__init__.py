"""PHAST: port-Hamiltonian models of physical systems, learned from positions alone."""

import importlib

_EXPORTS = {
    "errors": ("InputError",),
    "data.manifold": ("Manifold",),
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
    "components.mass": ("CholeskyMass", "ConstantMass", "JointedMass", "LinkedMass", "LowRankMass", "NeuralMass"),
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
    "dynamics.hamiltonian": ("ConsumerResource", "PortHamiltonian"),
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
    "dynamics.systems": ("SYSTEMS", "System", "black_box", "system"),
    "data.trajectories": ("Trajectories", "as_trajectories"),
    "dynamics.simulation": ("simulate",),
    "paper.protocol": ("benchmark_split",),
    "data.recording": ("Recording",),
    "data.reading": ("read",),
    "estimation.observers": ("ConvolutionalObserver", "FiniteDifference", "IdentityCanonicalizer", "MassCanonicalizer"),
    "estimation.forecaster": ("Core", "Phast", "PhastBlock", "autoregressive"),
    "paper.models": ("FULL_STATE", "MODELS"),
    "fitting.networks": ("known", "partial", "unknown"),
    "components.parameter": ("Bounded", "Positive", "Real", "parameter_count"),
    "fitting.checkpoint": ("describe", "load", "save"),
    "estimation.moving_horizon": ("ModelAware",),
    "fitting.gradient": ("FullStateLoss", "HorizonLoss", "NextStepLoss", "PhysicsLoss", "Settings", "fit"),
    "fitting.second_order": ("passive_transition",),
    "fitting.uncertainty": ("Spread",),
    "paper.metrics": ("evaluate", "evaluate_full_state"),
    "api": ("adapt", "damping", "enable_float64", "estimate", "filter_states", "forecast", "learn", "spread"),
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
