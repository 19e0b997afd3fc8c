"""The main job end to end on the paper's primary benchmark: simulate, learn from positions, forecast, compare, draw."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phast.api import damping, forecast
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import system
from phast.estimation.forecaster import AbstractIdentifiable
from phast.fitting.checkpoint import save
from phast.paper.curves import CONTEXT, HORIZON
from phast.paper.experiments import UNWATCHED, Experiment, Watch
from phast.paper.experiments import run as run_experiment
from phast.paper.metrics import energy_trace
from phast.paper.protocol import Split, benchmark_split
from phast.paper.results_page import Run, write_report
from phast.report import plots

_ANGLES = np.array([0.0, 0.25, 0.5, 0.75, 1.0]) * np.pi


def run(
    folder: Path,
    *,
    model_name: str,
    preset_name: str,
    watch: Watch = UNWATCHED,
) -> dict[str, Any]:
    """Fit Windy Pendulum; model, figures and page go into ``folder``, the record and d(θ) at a few angles come back."""
    windy = system("pendulum-windy")
    data = benchmark_split(windy)
    (outcome,) = run_experiment(Experiment(windy.name, model_name, preset_name), data=data, watch=watch)
    model = outcome.model
    save(model, folder / "model.phast", system=windy.name, model=model_name, record=outcome.record)
    example = _typical(model, data)
    for name, figure in _figures(model, windy.port_hamiltonian, data, example).items():
        plots.save_figure(figure, folder / f"{name}.png")
    write_report([Run(outcome.record, model)], folder / "report.html", test_data=lambda _: data.test)
    learned = damping(model, _ANGLES)[:, 0]
    return {
        "record": outcome.record,
        "damping": list(zip(_ANGLES, _true_damping(windy, _ANGLES), learned, strict=True)),
    }


def _typical(model: AbstractIdentifiable, data: Split) -> int:
    """The test trajectory with the median forecast error: neither the best to show nor the worst."""
    future = forecast(model, data.test.q[:, :CONTEXT], HORIZON)
    wrapped = data.test.manifold.squared_error(
        jnp.asarray(future), jnp.asarray(data.test.q[:, CONTEXT : CONTEXT + HORIZON], dtype=future.dtype)
    )
    return int(np.argsort(np.asarray(wrapped).mean(axis=(1, 2)))[len(data.test) // 2])


def _true_damping(windy, angles: np.ndarray) -> np.ndarray:
    law = windy.port_hamiltonian.damping
    return np.array([float(law.operator(jnp.array([a]), jnp.zeros(1)).diagonal_part()[0]) for a in angles])


def _figures(model: AbstractIdentifiable, truth: PortHamiltonian, data: Split, example: int):
    dt, manifold = data.test.dt, data.test.manifold
    q = data.test.q[example, : CONTEXT + HORIZON]
    future = forecast(model, q[:CONTEXT], HORIZON)
    path = np.concatenate([q[CONTEXT - 1 : CONTEXT], future])
    velocity = np.asarray(manifold.difference(jnp.asarray(path[1:]), jnp.asarray(path[:-1]))) / dt
    after = slice(CONTEXT, CONTEXT + HORIZON)
    angles = np.linspace(-np.pi, np.pi, 401)
    traces = [
        np.asarray(energy_trace(truth, manifold, jnp.asarray(p, dtype=float), dt)[0]) for p in (q[CONTEXT - 1 :], path)
    ]
    return {
        "rollout": plots.rollout(q, {"PHAST": future}, dt=dt, names=manifold.names, context=CONTEXT),
        "phase": plots.phase_portrait(
            (q[after, 0], data.test.v[example, after, 0]), {"PHAST": (future[:, 0], velocity[:, 0])}, name="theta"
        ),
        "damping": plots.damping_field(
            angles,
            np.asarray(jax.vmap(lambda a: truth.damping.operator(a[None], jnp.zeros(1)).diagonal_part()[0])(angles)),
            {"PHAST": damping(model, angles)[:, 0]},
            name="theta",
        ),
        "energy": plots.energy(dt * np.arange(HORIZON), traces[0], {"PHAST": traces[1]}),
    }
