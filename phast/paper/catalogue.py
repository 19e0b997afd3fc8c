"""Every table of the paper as one entry, and our own beside them.

An entry says which runs it needs, nothing else: the numbers are in ``results/``, the published ones in
``published.toml``.
"""

from phast.errors import InputError
from phast.paper.casimir_table import CasimirTable, control_row
from phast.paper.experiments import Experiment
from phast.paper.gauge_table import GaugeTable, gauge_row
from phast.paper.law_search import LawSearch
from phast.paper.learned_control import LearnedControl
from phast.paper.recordings import Recordings
from phast.paper.tables import (
    BASELINES,
    MECHANICAL,
    OTHERS,
    REGIMES,
    AbstractTable,
    Costs,
    ModelTable,
    Row,
    Summary,
    Tools,
)

_WINDY = "pendulum-windy"
_ROLLOUT = ("rollout_theta_wrap_mse_h100", "rollout_mixed_mse_h100", "rollout_mse_h100")
_MEDIANS = tuple(f"{metric}_median" for metric in _ROLLOUT)
_RECOVERY = ("damping_r2", "damping_mae")
_ENERGY = ("rollout_energy_budget_resid_h100", "rollout_passivity_violations_h100")


def _forecasts(name: str, title: str, *systems: str, metrics: tuple[str, ...] = _ROLLOUT) -> ModelTable:
    """Three regimes and seven baselines by the paper's recipe, and the three regimes by ours."""
    paper = [Row(Experiment(s, m)) for s in systems for m in (*REGIMES, *BASELINES)]
    sharp = [Row(Experiment(s, m, "sharp"), f"{m} (sharp)") for s in systems for m in REGIMES]
    ordered = sorted([*paper, *sharp], key=lambda row: systems.index(row.experiment.system))
    return ModelTable(name, title, tuple(ordered), metrics)


def _next_steps(name: str, title: str, system: str) -> ModelTable:
    return _forecasts(name, title, system, metrics=("mse", "next_step_after_burn_in"))


def _varied(
    name: str,
    title: str,
    rows: dict[str, Experiment],
    metrics: tuple[str, ...] = (*_ROLLOUT, *_RECOVERY, *_ENERGY),
    seeds: int = 3,
) -> ModelTable:
    return ModelTable(name, title, tuple(Row(experiment, label) for label, experiment in rows.items()), metrics, seeds)


def _partial(preset: str = "paper", **variation) -> Experiment:
    return Experiment(_WINDY, "phast-partial", preset, variation=tuple(variation.items()))


def _caps(preset: str, *bounds: float | None) -> dict[str, Experiment]:
    """PARTIAL under bounds on Σβ. The paper's own, 0.5, is what the builder calibrates to: it needs no variation."""
    return {
        "unbounded" if bound is None else f"bound {bound}": _partial(preset)
        if bound == 0.5
        else _partial(preset, bound=bound)
        for bound in bounds
    }


_PAPER = (
    ModelTable(
        "overview",
        "Overview, panel (D): three windy systems, the true M(q) where the mass varies",
        tuple(
            Row(Experiment(system, model), f"{system} {model}")
            for system in (_WINDY, "double-pendulum-windy", "cartpole-windy-rail")
            for model in (*REGIMES, "s5", "linoss", "vpt")
        ),
        (*_ROLLOUT, "damping_r2"),
        seeds=1,
    ),
    _forecasts("cartpole", "Cart-Pole (q-only): rollouts of 100 steps", "cartpole-windy"),
    Summary("suite-summary", "Suite summary: thirteen q-only benchmarks"),
    ModelTable(
        "windy-identifiability",
        "Windy Pendulum (q-only): identifiability and energy consistency",
        tuple(Row(Experiment(_WINDY, model)) for model in (*REGIMES, *BASELINES)),
        ("rollout_theta_wrap_mse_h100", *_RECOVERY, "rollout_energy_budget_resid_h100"),
    ),
    _varied("partial-cap", "PARTIAL: bounding the total damping strength", _caps("paper", None, 0.5), seeds=5),
    _varied(
        "unknown-cap",
        "UNKNOWN: bounding the total damping strength",
        {
            "unbounded": Experiment(_WINDY, "phast-unknown"),
            "bound 0.5": Experiment(_WINDY, "phast-unknown", variation=(("bound", 0.5),)),
            "bound 1.0": Experiment(_WINDY, "phast-unknown", variation=(("bound", 1.0),)),
        },
        seeds=5,
    ),
    _varied("cap-sensitivity", "PARTIAL: sensitivity to the cap, 20 epochs", _caps("paper-20", None, 0.25, 0.5, 1.0)),
    _forecasts(
        "pendulums", "Pendulums (q-only): rollouts of 100 steps", "pendulum-conservative", "pendulum-damped", _WINDY
    ),
    _forecasts(
        "double-pendulums",
        "Double pendulums (q-only): rollouts of 100 steps",
        "double-pendulum-conservative",
        "double-pendulum-damped",
    ),
    _forecasts(
        "oscillators", "Oscillators (q-only): rollouts of 100 steps", "oscillator-conservative", "oscillator-damped"
    ),
    _next_steps("rlc", "RLC circuit (q-only): next-step error", "rlc"),
    _next_steps("lennard-jones", "Lennard-Jones cluster (q-only): next-step error", "lennard-jones-3"),
    _next_steps("heat", "Heat exchange (q-only): next-step error", "heat-exchange"),
    _next_steps("n-body", "N-body gravity (q-only): next-step error", "n-body-3"),
    _next_steps("predator-prey", "Predator and prey (q-only): next-step error", "predator-prey"),
    _varied(
        "full-state",
        "Full-state Windy Pendulum (q and p observed): PHAST against DHNN",
        {model: Experiment(_WINDY, model, "full-state") for model in ("phast-partial", "phast-unknown", "dhnn")},
        ("theta_wrap_mse", "rollout_theta_wrap_mse_h100", *_RECOVERY),
        seeds=5,
    ),
    *(
        _varied(
            name,
            f"Nonseparable mass ({title}, KNOWN): a constant mass against M(q), both with implicit midpoint",
            {
                "constant M": Experiment(system, "phast-known", variation=(("midpoint", True),)),
                "M(q)": Experiment(system, "phast-known", variation=(("true_mass", True),)),
            },
        )
        for name, title, system in (
            ("cartpole-mass", "Windy Cart-Pole", "cartpole-windy"),
            ("double-pendulum-mass", "Damped Double Pendulum", "double-pendulum-damped"),
        )
    ),
    _varied(
        "substeps",
        "Substeps of the core at coarse sampling (PARTIAL)",
        {
            f"{system}, L = {count}": Experiment(system, "phast-partial", variation=(("substeps", count),), dt=dt)
            for system, dt in (("cartpole-windy", 0.05), ("double-pendulum-damped", 0.04))
            for count in (1, 4)
        },
        _ROLLOUT,
        seeds=5,
    ),
    _varied(
        "timestep-policy",
        "Learned timestep × base damping (PARTIAL, 20 epochs)",
        {
            "fixed dt, fixed d0": _partial("paper-20"),
            "learned dt, fixed d0": _partial("paper-20", learned_timestep=True),
            "fixed dt, learned d0": _partial("paper-20", learned_base=True),
            "learned dt, learned d0": _partial("paper-20", learned_timestep=True, learned_base=True),
        },
    ),
    _varied(
        "baseline-capacity",
        "Baselines of twice the width (d = 128) on Windy Pendulum",
        {model: Experiment(_WINDY, model, variation=(("width", 128),)) for model in ("gru", "s5", "transformer")},
        _ROLLOUT,
    ),
)

_GAUGE = GaugeTable(
    "gauge-freedom",
    "Gauge freedom of the conservative double pendulum: M and V from the Euler–Lagrange residual",
    (
        gauge_row("known V, Cholesky", "cholesky", "known"),
        gauge_row("known V, NeuralMass", "neural", "known"),
        gauge_row("neural V, known M", "known", "neural"),
        gauge_row("neural V, Cholesky", "cholesky", "neural"),
        gauge_row("neural V, NeuralMass", "neural", "neural"),
        gauge_row("structured V, Cholesky", "cholesky", "structured"),
        gauge_row("structured V, NeuralMass", "neural", "structured"),
        gauge_row("sparse V, NeuralMass", "neural", "sparse"),
    ),
)

_WHY_GAUGE = GaugeTable(
    "gauge-anchors",
    "The same in 800 steps, begun at the truth, or with a coefficient of V or an entry of M given",
    (
        gauge_row("known V, Cholesky, 800 steps", "cholesky", "known", preset="gauge-800"),
        gauge_row("neural V, known M, 800 steps", "known", "neural", preset="gauge-800"),
        *(
            gauge_row(
                f"structured V begun at the truth, {title}, {steps}", mass, "structured-from-truth", preset=preset
            )
            for steps, preset in (("800 steps", "gauge-800"), ("31,250 steps", "gauge"))
            for title, mass in (("Cholesky", "cholesky"), ("NeuralMass", "neural"))
        ),
        gauge_row("structured V with g2 given, Cholesky", "cholesky", "structured-g2-given"),
        gauge_row("structured V with g2 given, NeuralMass", "neural", "structured-g2-given"),
        gauge_row("neural V, Cholesky with M_22 given", "cholesky", "neural", anchored=True),
        gauge_row("neural V, NeuralMass with M_22 given", "neural", "neural", anchored=True),
        gauge_row("sparse V, NeuralMass with M_22 given", "neural", "sparse", anchored=True),
    ),
)


def _free_of_models(noise: float) -> tuple[Row, ...]:
    return (
        control_row("oracle", "oracle", noise),
        control_row("finite differences", "finite-difference", noise),
        control_row("MAP smoother", "map-smoother", noise),
    )


def _ours(noise: float) -> tuple[Row, ...]:
    return (
        control_row("moving horizon (ours), V's form known", "moving-horizon", noise),
        control_row("moving horizon (ours), V unknown", "moving-horizon", noise, form="unknown"),
    )


def _by_position(noise: float) -> tuple[Row, ...]:
    """The oracle, and all that see positions alone; FD+TCN is trained on the range of noise up to 0.01."""
    return (
        *_free_of_models(noise),
        control_row("FD+TCN", "fd-tcn", noise, low=0.0, high=0.01),
        control_row("PHAST-trained observer", "phast-observer", noise),
        *_ours(noise),
    )


_MODERATE, _HIGH = 0.01, 0.05
_CONTROL = (
    CasimirTable(
        "casimir",
        "Energy–Casimir control of the true pendulum, positions observed: means over 100 trials",
        (*_by_position(0.0), *_by_position(_MODERATE)),
    ),
    CasimirTable(
        "casimir-full-state",
        "Energy–Casimir control with ∂Ĥ/∂p of a learned model, q and p observed",
        tuple(
            control_row(name, estimator, noise)
            for noise in (0.0, _MODERATE)
            for name, estimator in (("oracle", "oracle"), ("∂Ĥ/∂p of a learned model", "phast-output"))
        ),
    ),
    CasimirTable(
        "casimir-near-stable",
        "Energy–Casimir control near its target, σ = 0.01: means over 20 trials",
        _by_position(_MODERATE),
        regime="near-stable",
        metrics=("final_error", "effort", "velocity_error"),
    ),
    CasimirTable(
        "casimir-noise-match",
        "The noise that FD+TCN is trained with, σ = 0.01 in the loop, near the target",
        (
            control_row("FD+TCN trained at σ = 0 (mismatch)", "fd-tcn", _MODERATE, low=0.0, high=0.0),
            control_row("FD+TCN trained at σ = 0.01 (matched)", "fd-tcn", _MODERATE, low=0.01, high=0.01),
            control_row("FD+TCN trained on σ ~ U[0, 0.01]", "fd-tcn", _MODERATE, low=0.0, high=0.01),
        ),
        regime="near-stable",
        metrics=("final_error", "effort", "velocity_error"),
    ),
    CasimirTable(
        "casimir-stress",
        "Energy–Casimir control at high noise, σ = 0.05: means over 100 trials",
        (
            *_free_of_models(_HIGH),
            control_row(
                "FD+TCN told σ, trained on σ ~ U[0, 0.05]", "fd-tcn", _HIGH, low=0.0, high=0.05, conditioned=True
            ),
            *_ours(_HIGH),
        ),
    ),
)

SUCCESS = CasimirTable(
    "casimir-success",
    "Success and effort by initial regime, σ = 0.05",
    (
        control_row("FD+TCN trained at σ = 0", "fd-tcn", _HIGH, low=0.0, high=0.0),
        control_row("FD+TCN trained at σ = 0.05", "fd-tcn", _HIGH, low=0.05, high=0.05),
        control_row("FD+TCN trained on σ ~ U[0, 0.05]", "fd-tcn", _HIGH, low=0.0, high=0.05),
        control_row("the same, told σ", "fd-tcn", _HIGH, low=0.0, high=0.05, conditioned=True),
        control_row("moving horizon (ours)", "moving-horizon", _HIGH),
        control_row("oracle", "oracle", _HIGH),
    ),
)

_WHY_CONTROL = (
    CasimirTable(
        "casimir-target",
        "A target that is no natural equilibrium, q* = 1 rad",
        (
            control_row("oracle, the true V known", "oracle", _MODERATE, target=1.0),
            control_row("moving horizon (ours), V learned, its form known", "moving-horizon", _MODERATE, target=1.0),
            control_row("oracle, without V", "oracle", _MODERATE, target=1.0, holding=False),
        ),
    ),
    CasimirTable(
        "casimir-why",
        "What a final error may mean; other windows, training noise and stiffness",
        (
            *_free_of_models(_MODERATE),
            *(
                control_row(f"MAP smoother, {window} samples", "map-smoother", noise, window=window)
                for noise in (_MODERATE, _HIGH)
                for window in (10, 40)
            ),
            control_row("oracle, k_c = 50", "oracle", _MODERATE, stiffness=50.0),
            control_row("FD+TCN, 50 epochs", "fd-tcn", _MODERATE, low=0.0, high=0.01),
            control_row("FD+TCN, 200 epochs", "fd-tcn", _MODERATE, low=0.0, high=0.01, epochs=200),
            control_row("FD+TCN trained at σ = 0", "fd-tcn", 0.0, low=0.0, high=0.0),
            control_row("FD+TCN trained on σ ~ U[0, 0.05]", "fd-tcn", _HIGH, low=0.0, high=0.05),
        ),
        metrics=("success", "final_error", "worst_error", "measured_error", "effort", "velocity_error"),
    ),
)

_AS_IS, _SHORTER = ("paper", {}), ("paper-20", {})

_OURS = (
    Summary(
        "headline",
        "Five of the thirteen benchmarks, all with friction",
        ("pendulum-damped", _WINDY, "cartpole-windy", "double-pendulum-damped", "rlc"),
    ),
    Costs("suite-cost", "What the suite costs: thirteen benchmarks, ten models, five seeds, the paper's recipe"),
    ModelTable(
        "baseline-angles",
        "Baselines that see an angle as (sin, cos) instead of one wrapped number, on Windy Pendulum",
        tuple(Row(Experiment(_WINDY, model, variation=(("features", "sincos"),)), model) for model in BASELINES),
        _ROLLOUT,
        seeds=1,
    ),
    ModelTable(
        "why-better",
        "Why our KNOWN forecasts better than the published one: what the paper leaves open, one choice at a time",
        tuple(
            Row(Experiment(system, "phast-known", variation=tuple(variation.items())))
            for system in (_WINDY, "pendulum-conservative")
            for variation in (
                {},
                {"learned_timestep": True},
                {"random_head": True},
                {"unwrapped": True},
            )
        ),
        ("rollout_theta_wrap_mse_h100", "rollout_takeover_theta_wrap_mse_h100", "damping_r2", "timestep_ratio"),
        seeds=3,
    ),
    ModelTable(
        "why-worse",
        "Why our VPT and LinOSS are worse than published on some: the gain of the attention, the discretisation",
        tuple(
            Row(Experiment(system, model, variation=tuple(variation.items())))
            for system in ("heat-exchange", "predator-prey")
            for model, variation in (
                ("vpt", {}),
                ("vpt", {"gain": 0.01}),
                ("vpt", {"gain": 0.0}),
                ("linoss", {}),
                ("linoss", {"implicit": False}),
            )
        ),
        ("mse", "next_step_after_burn_in"),
        seeds=1,
    ),
    ModelTable(
        "why-baselines",
        "Why some baselines differ from the published ones: angles that run on, a step added to q, fewer epochs",
        tuple(
            Row(Experiment(system, model, preset, variation=tuple(variation.items())), name)
            for systems, model, changes in (
                (("pendulum-damped", _WINDY), "gru", (_AS_IS, ("paper", {"features": "unwrapped"}))),
                (
                    ("cartpole-windy", "double-pendulum-damped", "double-pendulum-conservative"),
                    "s5",
                    (_AS_IS, ("paper", {"residual": True})),
                ),
                (("rlc", "heat-exchange", "n-body-3"), "linoss", (_AS_IS, ("paper", {"residual": True}))),
                (("rlc", "heat-exchange"), "gru", (_AS_IS, _SHORTER)),
                (("heat-exchange", "predator-prey"), "lstm", (_AS_IS, _SHORTER)),
                (("rlc", "predator-prey"), "s5", (_AS_IS, _SHORTER)),
                (("predator-prey",), "linoss", (_AS_IS, _SHORTER)),
            )
            for system in systems
            for preset, variation in changes
            for name in ([f"{model}, 20 epochs"] if preset == "paper-20" else [None])
        ),
        (*_ROLLOUT[:2], "mse"),
        seeds=1,
    ),
    ModelTable(
        "windy-sharp",
        "Windy Pendulum (q-only) by the sharp preset, beside the same published numbers",
        tuple(Row(Experiment(_WINDY, model, "sharp")) for model in REGIMES),
        ("rollout_theta_wrap_mse_h100", "rollout_theta_wrap_mse_h100_median", *_RECOVERY),
    ),
    ModelTable(
        "windy-noise",
        "Windy Pendulum by the sharp preset with noise on training data and contexts",
        tuple(Row(Experiment(_WINDY, "phast-partial", "sharp", noise)) for noise in (0.01, 0.05)),
        ("rollout_theta_wrap_mse_h100", "rollout_theta_wrap_mse_h100_median", *_RECOVERY),
        seeds=3,
    ),
    ModelTable(
        "sharp-mechanical",
        "The other mechanical benchmarks by the sharp preset: rollouts of 100 steps",
        tuple(Row(Experiment(s, m, "sharp")) for s in MECHANICAL if s != _WINDY for m in REGIMES),
        tuple(metric for pair in zip(_ROLLOUT, _MEDIANS, strict=True) for metric in pair),
        seeds=5,
    ),
    ModelTable(
        "sharp-others",
        "The five non-mechanical benchmarks by the sharp preset: the published error is that of all next steps",
        tuple(Row(Experiment(s, m, "sharp")) for s in OTHERS for m in REGIMES),
        ("mse", "next_step_after_burn_in", "next_step_after_burn_in_median", "rollout_mse_h100"),
        seeds=5,
    ),
)

_MEASURED = Recordings("measured", "Measured recordings: forecasts of what was not learned from (rad, K, thousands)")

_LEARNED_CONTROL = LearnedControl(
    "learned-control",
    "Predictive control on models learned from 60 s of positions, noise 0.002: the true rigs held upright and swung up",
)
_LAWS = LawSearch("law-search", "Laws found from positions alone, nothing named: 16 runs of 200 samples")

_PEERS = Tools(
    "peers", "Other tools and ours on the same arrays (`phast paper bench peers`): 100 steps from 10 positions"
)

_STUDIES = (_MEASURED, _LEARNED_CONTROL, _LAWS)

TABLES: dict[str, AbstractTable] = {
    entry.name: entry
    for entry in (
        *_PAPER,
        _GAUGE,
        *_CONTROL,
        *_OURS,
        _WHY_GAUGE,
        *_WHY_CONTROL,
        _MEASURED,
        _LEARNED_CONTROL,
        _LAWS,
        _PEERS,
    )
}


def table_named(name: str) -> AbstractTable:
    """The table called ``name``."""
    if name not in TABLES:
        raise InputError(f"unknown table '{name}': choose one of {', '.join(TABLES)}")
    return TABLES[name]
