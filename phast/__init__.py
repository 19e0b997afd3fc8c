"""PHAST: port-Hamiltonian models of physical systems, learned from positions alone.

Data flows down this list, and a module imports only from modules above it::

    errors, files, manifold     what can go wrong; whole files; lines and circles
    components, hamiltonian     V, M, D and the system that they make
    integrators                 time steps that keep its structure
    systems, columns,
    datasets, recording         simulators; tables; trajectories; the door for measured data
    observers, forecaster,
    horizon                     positions -> state -> future
    baselines, models,
    checkpoint                  what others would use; named compositions; files
    training                    fitting to first order
    derivatives, identify,
    findings, adaptation,
    laplace, balance, sharp,
    laws                        fitting to second order, and how sure it is; what to look for, in words
    flow                        forecasts by a plain vector field
    metrics, runs, suite,
    studies                     judging, records, many of them, what decides
    api, tables, foresight,
    plots, measured, catalogue  what a user calls; tables; forecasts of files; figures; real recordings; all tables
    curves, gallery, page,
    report, dossier, peers      what is drawn; the paper's figures; pages of records and of a model; other tools
    demo, bench, console,
    own, research, cli          the main job; measurements; the command line

Names are imported when they are first used, so ``import phast`` is cheap.
"""

import importlib

MODULES = (
    "errors",
    "files",
    "manifold",
    "components.parameter",
    "components.network",
    "components.lowrank",
    "components.spline",
    "components.potential",
    "components.mass",
    "components.damping",
    "hamiltonian",
    "integrators",
    "systems",
    "columns",
    "datasets",
    "recording",
    "observers",
    "forecaster",
    "horizon",
    "baselines.sequence",
    "baselines.recurrent",
    "baselines.attention",
    "baselines.dhnn",
    "models",
    "checkpoint",
    "training",
    "derivatives",
    "identify",
    "findings",
    "adaptation",
    "laplace",
    "balance",
    "sharp",
    "laws",
    "flow",
    "baselines.regression",
    "baselines.neural",
    "metrics",
    "runs",
    "suite",
    "studies",
    "api",
    "tables",
    "foresight",
    "plots",
    "measured",
    "catalogue",
    "curves",
    "gallery",
    "page",
    "report",
    "dossier",
    "peers",
    "demo",
    "bench",
    "console",
    "own",
    "research",
    "cli",
)

_EXPORTS = {
    "errors": ("InputError",),
    "manifold": ("Manifold",),
    "components.parameter": ("Bounded", "Positive", "Real"),
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
    "hamiltonian": ("ConsumerResource", "PortHamiltonian"),
    "integrators": (
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
    "systems": ("SYSTEMS", "System", "black_box", "system"),
    "datasets": ("Trajectories", "as_trajectories", "benchmark_split", "simulate"),
    "recording": ("Recording", "read"),
    "observers": ("ConvolutionalObserver", "FiniteDifference", "IdentityCanonicalizer", "MassCanonicalizer"),
    "forecaster": ("Core", "Phast", "PhastBlock", "autoregressive"),
    "models": ("FULL_STATE", "MODELS", "known", "parameter_count", "partial", "unknown"),
    "checkpoint": ("describe", "load", "save"),
    "horizon": ("ModelAware",),
    "training": ("FullStateLoss", "HorizonLoss", "NextStepLoss", "PhysicsLoss", "Settings", "fit"),
    "sharp": ("passive_transition",),
    "laplace": ("Spread",),
    "metrics": ("evaluate", "evaluate_full_state"),
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
