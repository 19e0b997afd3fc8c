"""Does the search find the law? Every system of this project, from positions alone, without and with noise.

A law is *exact* where it has as many terms in V and D as the simulator, and its accelerations at states that were not
learned from, also twice as far out, are those of the simulator: to 1e-6 without noise, to a few per cent with it. A
term that is not there would show beyond the data. The search is told nothing of this.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phast.api.fitting import fit
from phast.components.parameter import parameter_count
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import System, system
from phast.errors import FitError
from phast.fitting.matching import acceleration
from phast.paper.experiments import write_record
from phast.paper.tables import AbstractStudy, Sheet
from phast.report.provenance import commit, versions
from phast.report.text import figure

PRESET = "laws"
NOISES = (0.0, 0.01)
RUNS, SAMPLES, SEED = 16, 200, 11
TERMS = {  # in V and D of each simulator; predators and prey are no mechanical system
    "pendulum-conservative": 1,
    "pendulum-damped": 2,
    "pendulum-windy": 3,
    "cartpole-windy": 5,
    "oscillator-conservative": 2,
    "oscillator-damped": 4,
    "double-pendulum-conservative": 2,
    "double-pendulum-damped": 4,
    "rlc": 2,
    "lennard-jones-3": 12,
    "heat-exchange": 5,
    "n-body-3": 9,
    "predator-prey": 0,
    "cartpole-windy-rail": 4,
    "double-pendulum-windy": 6,
    "spring-mass": 2,
    "pendulum-unknown-mass": 2,
    "robot-arm": 6,
}
_CLEAN, _NOISY = 1e-6, 0.05  # errors of accelerations, over their size, up to which a law is exact
_FARTHER = 2.0


class LawSearch(AbstractStudy):
    """Systems and noises, each with the law that was found."""

    name: str
    title: str
    seeds: int = 1
    systems: tuple[str, ...] = tuple(TERMS)

    def experiments(self):
        return []

    def records(self, results, seeds=None):
        paths = (_path(results, name, noise) for noise in NOISES for name in self.systems)
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]

    def sheet(self, records):
        heading = [
            "system",
            "noise",
            "exact",
            "terms",
            "of",
            "error of accelerations",
            "the same twice as far out",
            "CPU, s",
        ]
        return Sheet(self.title, heading, [*map(_line, records), *_totals(records)], list(records))

    def quick(self):
        return LawSearch(f"{self.name}-quick", f"{self.title} (quick look)", systems=("rlc", "pendulum-damped"))

    def carry_out(self, results: Path, on_stage: Callable[[str], None]) -> list[str]:
        """Find the laws that have no record yet; what failed comes back."""
        failures = []
        for noise in NOISES:
            for name in self.systems:
                if _path(results, name, noise).exists():
                    continue
                on_stage(f"{name}, noise {noise:g}")
                record = study(system(name), noise)
                write_record(_path(results, name, noise), record)
                failures += [f"{name}, noise {noise:g}: {record['failure']}"] if record.get("failure") else []
        return failures


def study(chosen: System, noise: float) -> dict[str, Any]:
    """The law that is found of a system, beside the true one."""
    truth = simulate(chosen, RUNS, length=SAMPLES, seed=SEED)
    data = Trajectories(truth.q, truth.dt, truth.manifold)
    data = data.with_noise(noise, seed=SEED + 1) if noise else data
    record = {"system": chosen.name, "noise": noise, "runs": RUNS, "samples": SAMPLES, "wanted": TERMS[chosen.name]}
    begun = time.process_time()
    try:
        fitted = fit(data)
    except FitError as error:
        return record | {"failure": str(error), "exact": False, "versions": versions(), "commit": commit()}
    found, told = fitted.model.learned_system(), fitted.identify()
    with jax.enable_x64(True):
        near, far = (_error(chosen, found, scale) for scale in (1.0, _FARTHER))
        count = parameter_count(found.potential) + parameter_count(found.damping)
    limit = _NOISY if noise else _CLEAN
    return record | {
        "exact": bool(count == TERMS[chosen.name] and max(near, far) < limit),
        "terms": count,
        "error": near,
        "error_farther": far,
        "equation": told.equation(),
        "coefficients": told.summary()["coefficients"],
        "cpu_seconds": time.process_time() - begun,
        "versions": versions(),
        "commit": commit(),
    }


def _error(chosen: System, found: Any, scale: float) -> float:
    """The error of accelerations over their size, at states of other runs; momenta ``scale`` times as large, and
    coordinates that are no angles as far out."""
    truth = chosen.dynamics
    if not isinstance(truth, PortHamiltonian) or not isinstance(found, PortHamiltonian):
        return float("nan")
    other = simulate(chosen, RUNS, length=20, seed=SEED + 2)
    q, v = (np.concatenate(x) for x in (other.q, other.v))
    q = jnp.asarray(np.where(chosen.manifold.circles, q, scale * q))
    v = jnp.asarray(scale * v)
    wanted, got = (jax.jit(jax.vmap(lambda x, w, s=s: acceleration(s, x, w)))(q, v) for s in (truth, found))
    return float(np.sqrt(np.mean((got - wanted) ** 2) / np.mean(np.asarray(wanted) ** 2)))


def _path(results: Path, name: str, noise: float) -> Path:
    return results / PRESET / f"{name},noise={noise:g}.json"


def _line(record: dict[str, Any]) -> list[str]:
    told = ["terms", "wanted", "error", "error_farther"]
    numbers = [figure(record[key]) if record.get(key) is not None else "" for key in told]
    seconds = f"{record['cpu_seconds']:.0f}" if "cpu_seconds" in record else record.get("failure", "")
    return [record["system"], f"{record['noise']:g}", "yes" if record["exact"] else "no", *numbers, seconds]


def _totals(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    groups = {noise: [r for r in records if r["noise"] == noise] for noise in NOISES}
    told = [(noise, sum(r["exact"] for r in group), len(group)) for noise, group in groups.items() if group]
    return [["exact laws", f"{noise:g}", f"{count} of {of}", *[""] * 5] for noise, count, of in told]
