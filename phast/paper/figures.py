"""The paper's two gallery figures, drawn from fitted models: rollouts with phase portraits, damping with energy.

Each takes the folder of results and the experiments whose first seed is shown. Velocities are the observer's for models
that have one and finite differences for the others; momenta and energies are those of the simulator, p = M(q) q'.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from phast.components.parameter import in_working_precision
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import System
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster, AbstractIdentifiable, Phast, autoregressive, roll_out
from phast.estimation.observers import FiniteDifference
from phast.fitting.checkpoint import load
from phast.paper.curves import CONTEXT, HORIZON
from phast.paper.experiments import Experiment
from phast.paper.metrics import damping_diagonal, energy_trace
from phast.paper.protocol import benchmark_split
from phast.report.plots import TRUTH, panels

_STYLES = {
    "phast-known": {"color": "#0072b2"},
    "phast-partial": {"color": "#009e73"},
    "phast-unknown": {"color": "#56b4e9", "linestyle": "--"},
    "s5": {"color": "#d55e00", "linewidth": 0.9},
    "linoss": {"color": "#e69f00", "linewidth": 0.9},
    "vpt": {"color": "#cc79a7", "linewidth": 0.9},
}


class Drawn(NamedTuple):
    """One test trajectory of a system, and the path, context included, that every model forecasts."""

    simulator: System
    test: Trajectories
    example: int
    models: dict[str, AbstractForecaster]
    paths: dict[str, Float[np.ndarray, "T n"]]

    @property
    def truth(self) -> Float[np.ndarray, "T n"]:
        return self.test.q[self.example, : CONTEXT + HORIZON]

    @property
    def t(self) -> Float[np.ndarray, " T"]:
        return self.test.dt * np.arange(CONTEXT + HORIZON)

    @property
    def physics(self) -> PortHamiltonian:
        return self.simulator.port_hamiltonian


def rollouts_and_phases(results: Path, experiments: Sequence[Experiment]) -> Figure:
    """Top: every angle over time, forecast after the grey context. Below: that angle against its momentum."""
    shown_angles = [
        (shown, i) for shown in _gather(results, experiments) for i in np.flatnonzero(shown.test.manifold.circles)
    ]
    figure, axes = panels(2, len(shown_angles), figsize=(4.0 * len(shown_angles), 6.5))
    for (shown, i), (above, below) in zip(shown_angles, axes.T, strict=True):
        name = shown.test.manifold.names[i]
        above.axvspan(0.0, shown.t[CONTEXT - 1], color="0.9")
        above.plot(shown.t, shown.truth[:, i], **TRUTH)
        p = shown.test.p[shown.example, CONTEXT : CONTEXT + HORIZON, i]
        below.plot(_wrapped(shown.truth[CONTEXT:, i]), p, ".", color="black", markersize=3)
        for model, path in shown.paths.items():
            above.plot(shown.t[CONTEXT:], path[CONTEXT:, i], label=model, **_STYLES.get(model, {}))
            momenta = _momenta(shown, model, path)[CONTEXT:, i]
            colour = _STYLES.get(model, {}).get("color")
            below.plot(_wrapped(path[CONTEXT:, i]), momenta, ".", markersize=2, color=colour)
        _leave_room(above, shown.truth[:, i])
        _leave_room(below, p)
        above.set(title=f"{shown.simulator.title}: {name}", xlabel="time", ylabel=name)
        below.set(xlabel=name, ylabel=f"momentum of {name}")
    _legend(figure, axes[0, 0])
    return figure


def damping_and_energy(results: Path, experiments: Sequence[Experiment]) -> Figure:
    """Top: the diagonal of D along the last angle, learned and true. Below: energy along the forecast."""
    gathered = _gather(results, experiments)
    figure, axes = panels(2, len(gathered), figsize=(4.6 * len(gathered), 6.5))
    for shown, (above, below) in zip(gathered, axes.T, strict=True):
        _draw_damping(above, shown)
        start = CONTEXT - 1
        true = _energy(shown, shown.truth)[start:]
        below.plot(shown.t[start + 1 :], true, **TRUTH)
        for model, path in shown.paths.items():
            below.plot(shown.t[start + 1 :], _energy(shown, path)[start:], label=model, **_STYLES.get(model, {}))
        _leave_room(below, true)
        below.set(xlabel="time", ylabel="energy")
        above.set(title=shown.simulator.title)
    _legend(figure, axes[1, 0])
    return figure


def _draw_damping(ax, shown: Drawn) -> None:
    """Each degree of freedom has its own line style; the curves run along the angle that the damping depends on."""
    along = int(np.flatnonzero(shown.test.manifold.circles)[-1])
    angles = np.linspace(-np.pi, np.pi, 201)
    n = shown.test.manifold.size
    # For a law of each angle's own, every angle runs along at once; others stay at rest.
    line = np.where(shown.test.manifold.circles, angles[:, None], 0.0)
    fields = {"truth": shown.physics} | {
        name: model.learned_system() for name, model in shown.models.items() if isinstance(model, AbstractIdentifiable)
    }
    top = 0.0
    for name, physics in fields.items():
        values = np.asarray(jax.vmap(lambda q, physics=physics: damping_diagonal(physics, q))(jnp.asarray(line)))
        style = TRUTH if name == "truth" else {"label": name, **_STYLES.get(name, {})}
        top = max(top, values.max()) if name in ("truth", "phast-known", "phast-partial") else top
        for i in range(n):
            dashes = {"linestyle": "-" if i == n - 1 else ":"}
            ax.plot(angles, values[:, i], **(style | dashes | ({} if i == n - 1 else {"label": None})))
    ax.set_ylim(0.0, 1.3 * top)
    ax.set(xlabel=shown.test.manifold.names[along], ylabel="damping")


def _gather(results: Path, experiments: Sequence[Experiment]) -> list[Drawn]:
    gathered = []
    for name in dict.fromkeys(experiment.system for experiment in experiments):
        mine = [experiment for experiment in experiments if experiment.system == name]
        files = {each.model: each.record_path(results, 0).with_suffix(".phast") for each in mine}
        models = {model: in_working_precision(load(path)) for model, path in files.items() if path.exists()}
        if not models:
            raise InputError(f"no fitted model of {name} in {results}/: leave out --records-only to make them")
        simulator = mine[0].simulator()
        test = benchmark_split(simulator).test
        contexts = jnp.asarray(test.q[:, :CONTEXT])
        futures = {
            model: np.asarray(roll_out(autoregressive, each, contexts, HORIZON)) for model, each in models.items()
        }
        example = _typical(test, futures.get("phast-partial", next(iter(futures.values()))))
        paths = {model: np.concatenate([test.q[example, :CONTEXT], x[example]]) for model, x in futures.items()}
        gathered.append(Drawn(simulator, test, example, models, paths))
    return gathered


def _typical(test: Trajectories, futures: Float[np.ndarray, "N H n"]) -> int:
    """The trajectory whose forecast error is the median: neither the best to show nor the worst."""
    after = jnp.asarray(test.q[:, CONTEXT : CONTEXT + HORIZON])
    errors = np.asarray(test.manifold.squared_error(jnp.asarray(futures), after)).mean(axis=(1, 2))
    return int(np.argsort(errors)[len(errors) // 2])


def _momenta(shown: Drawn, model: str, path: Float[np.ndarray, "T n"]) -> Float[np.ndarray, "T n"]:
    forecaster = shown.models[model]
    observer = forecaster.observer if isinstance(forecaster, Phast) else FiniteDifference(shown.test.manifold)
    q = jnp.asarray(path)
    return np.asarray(jax.vmap(shown.physics.momentum)(q, observer.velocities(q, shown.test.dt)))


def _energy(shown: Drawn, path: Float[np.ndarray, "T n"]) -> Float[np.ndarray, " T-1"]:
    return np.asarray(energy_trace(shown.physics, shown.test.manifold, jnp.asarray(path), shown.test.dt)[0])


def _wrapped(angle: np.ndarray) -> np.ndarray:
    return (angle + np.pi) % (2 * np.pi) - np.pi


def _leave_room(ax, truth: np.ndarray) -> None:
    """The truth sets the scale: a forecast that runs away leaves the panel."""
    margin = 0.5 * float(np.ptp(truth)) + 1e-9
    ax.set_ylim(truth.min() - margin, truth.max() + margin)


def _legend(figure: Figure, ax) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize="small")
