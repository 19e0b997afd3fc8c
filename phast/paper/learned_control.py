"""The study of control on learned models: rigs learned from positions, held upright, and swung up from hanging.

A rig is learned from one minute of positions with noise, its pole or its links hanging. Predictive control on that
model then gets the true system: a hundred starts about the upright target, a hundred from about hanging. All trials of
a kind are one program. The same controller with the true physics for its model says what is lost by learning.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.api.fitted import Fitted
from phast.control.loop import AbstractController, Trace, close_loop
from phast.control.plant import Plant
from phast.estimation.moving_horizon import ModelAware
from phast.paper.experiments import Record, write_record
from phast.paper.rigs import NOISE, RIGS, Rig, errors, learned
from phast.paper.tables import AbstractStudy, Sheet
from phast.report.provenance import commit, versions
from phast.report.text import figure

PRESET = "learned-control"
TRIALS, STEPS, HORIZON = 100, 400, 60
SETTLED = 0.05  # rad or m: the largest distance from the target over the last second
_HANGING = 0.1  # rad or m: how far from rest a swing-up begins
MODELS = ("learned", "true")
TASKS = ("upright", "hanging")


def carried_out(rig: str, model: str, fitted: Fitted, trials: int, on_stage: Callable[[str], None]) -> Record:
    """Control a rig by its learned model, or by one with the true physics and the same filter; a record."""
    chosen, used, begun = RIGS[rig], fitted.model, time.perf_counter()
    if model == "true":
        used = eqx.tree_at(lambda each: each.core.system, used, chosen.truth)
    metrics = {}
    for task in TASKS:
        on_stage(f"{chosen.title}, {model} model: {trials} starts, {task}")
        metrics |= {f"{key}_{task}": value for key, value in rig_trials(chosen, used, task, trials).items()}
    return {
        "rig": rig,
        "model": model,
        "preset": PRESET,
        "noise": NOISE,
        "trials": trials,
        "steps": STEPS,
        "horizon": HORIZON,
        "coefficients": fitted.identify().summary()["coefficients"] if model == "learned" else [],
        "errors": errors(chosen, used, seed=1),
        "metrics": metrics,
        "seconds": {"control": time.perf_counter() - begun},
        "versions": versions(),
        "commit": commit(),
    }


# --- trials ----------------------------------------------------------------------------------------------------------


def trial_starts(
    rig: Rig, task: str, count: int, seed: int
) -> tuple[Float[np.ndarray, "N n"], Float[np.ndarray, "N n"]]:
    """Positions and momenta: near the target and moving, or near hanging and at rest."""
    rng, n = np.random.default_rng(seed), rig.manifold.size
    if task == "hanging":
        return rng.uniform(-_HANGING, _HANGING, (count, n)), np.zeros((count, n))
    q = np.asarray(rig.target) + rng.uniform(-1.0, 1.0, (count, n)) * np.asarray(rig.near)
    v = rng.uniform(-rig.speed, rig.speed, (count, n))
    return q, np.asarray(jax.vmap(rig.truth.momentum)(jnp.asarray(q), jnp.asarray(v)))


def rig_trials(
    rig: Rig, model: ModelAware, task: str, count: int, *, steps: int = STEPS, seed: int = 1
) -> dict[str, Any]:
    """What becomes of ``count`` starts."""
    q, p = trial_starts(rig, task, count, seed)
    keys = jax.random.split(jax.random.key(seed), count)
    return outcome(rig, _loops(rig.plant, rig.control(model, HORIZON), jnp.asarray(q), jnp.asarray(p), keys, steps))


@eqx.filter_jit
def _loops(
    plant: Plant, controller: AbstractController, q: Float[Array, "N n"], p: Float[Array, "N n"], keys, steps: int
) -> Trace:
    return jax.vmap(lambda q, p, key: close_loop(plant, controller, q, p, steps, noise=NOISE, key=key))(q, p, keys)


def outcome(rig: Rig, trace: Trace) -> dict[str, Any]:
    """The share that settled, how soon, the effort, and how often an input was at its limit or asked for beyond."""
    dt = rig.plant.dt
    off = np.abs(np.asarray(rig.manifold.difference(trace.q, jnp.asarray(rig.target))))
    inside = (off <= SETTLED).all(axis=-1)  # False also where it is not a number
    settled = inside[:, -round(1.0 / dt) :].all(axis=1)
    reached = dt * (inside.shape[1] - np.argmin(np.cumprod(inside[:, ::-1], axis=1), axis=1))[settled]
    applied = np.abs(np.asarray(trace.applied))
    return {
        "settled": float(settled.mean()),
        "seconds_to_settle": float(np.median(reached)) if settled.any() else None,
        "worst_at_end": float(off[settled, -round(1.0 / dt) :].max()) if settled.any() else None,
        "furthest": np.abs(np.asarray(trace.q))[settled].max(axis=(0, 1)).tolist() if settled.any() else None,
        "effort": float(np.median(np.asarray(trace.effort)) * dt),
        "at_limit": float((applied >= np.asarray(rig.limits)).any(axis=-1).mean()),
        "saturated": float(np.asarray(trace.saturated).mean()),
    }


# --- the table -------------------------------------------------------------------------------------------------------


class LearnedControl(AbstractStudy):
    """Rigs, each by its learned model and by the true physics."""

    name: str
    title: str
    trials: int = TRIALS
    seeds: int = 1

    def experiments(self):
        return []

    def carry_out(self, results, on_stage):
        for name, rig in RIGS.items():
            missing = [model for model in MODELS if not self._path(results, name, model).exists()]
            if not missing:
                continue
            fitted = learned(rig, seed=0, progress=lambda told, rig=rig: on_stage(f"{rig.title}: {told.stage}"))
            for model in missing:
                record = carried_out(name, model, fitted, self.trials, on_stage)
                write_record(self._path(results, name, model), record)
        return []

    def records(self, results, seeds=None):
        paths = (self._path(results, name, model) for name in RIGS for model in MODELS)
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]

    def sheet(self, records):
        heading = ["rig", "model", "M off", "∇V off", "D off"]
        for task in ("held upright", "swung up"):
            heading += [task, "settled after, s", "∫u² dt", "at a limit", "beyond one"]
        return Sheet(self.title, heading, [_line(record) for record in records], list(records))

    def quick(self):
        return LearnedControl(f"{self.name}-quick", f"{self.title} (quick look)", trials=4)

    def _path(self, results: Path, name: str, model: str) -> Path:
        preset = PRESET if self.trials == TRIALS else f"{PRESET}-quick"
        return results / preset / f"{name}-{model}.json"


def _line(record: Record) -> list[str]:
    cells = [RIGS[record["rig"]].title, record["model"]]
    cells += [f"{record['errors'][field]:.2%}" if record["model"] == "learned" else "" for field in _FIELDS]
    for task in TASKS:
        found = {key.removesuffix(f"_{task}"): value for key, value in record["metrics"].items() if key.endswith(task)}
        after = found["seconds_to_settle"]
        cells += [
            f"{round(found['settled'] * record['trials'])} of {record['trials']}",
            "" if after is None else f"{after:.2f}",
            figure(found["effort"]),
            f"{found['at_limit']:.1%}",
            f"{found['saturated']:.1%}",
        ]
    return cells


_FIELDS = ("mass", "force", "damping")
