"""Real recordings, each split in time or by runs: what PHAST makes of them, beside simpler forecasts.

A study says which files it reads, what it trains on, what it looks for and how far it looks ahead. Forecasts begin all
along the test part, from contexts in it; nothing else of it is used. The recordings are not distributed: ``--data``
names their folder.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from phast.analysis.forecasts import Asked, Foresight, foresee
from phast.api.fitting import fit
from phast.api.forecast import Forecast
from phast.components.damping import Friction
from phast.components.mass import JointedMass
from phast.components.potential import ChainCosine
from phast.data.reading import read
from phast.data.recording import Recording
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.second_order import SecondOrder
from phast.fitting.structure import Structure
from phast.paper.experiments import write_record
from phast.paper.tables import AbstractTable, Sheet
from phast.report.provenance import commit, versions
from phast.report.text import figure

Split = tuple[Recording, Recording]
Rival = Callable[[Recording, Recording, ModelAware, Foresight], float]
PRESET = "measured"


class Study(NamedTuple):
    """A recording, how it is split, what is looked for, and how far ahead."""

    title: str
    split: Callable[[Path], Split]
    words: dict[str, Any]
    context: str
    horizon: str
    rivals: tuple[tuple[str, Rival], ...] = ()
    facts: Callable[[ModelAware], dict[str, float]] = lambda model: {}


def carry_out(name: str, folder: Path, results: Path, on_stage: Callable[[str], None]) -> tuple[dict, Forecast]:
    """Learn, forecast, compare; the record and the model go into ``results``."""
    study = STUDIES[name]
    train, test = study.split(folder)
    begun = time.perf_counter()
    method = SecondOrder(context=study.context)
    fitted = fit(train, Structure(**study.words), method=method, progress=lambda told: on_stage(told.stage))
    seconds = time.perf_counter() - begun
    forecast = fitted.forecast(study.horizon, test, start="everywhere")
    told, model = fitted.identify(), fitted.model
    rivals = {f"rms_{rival}": judge(train, test, model, forecast.seen) for rival, judge in study.rivals}
    record = {
        "study": name,
        "preset": PRESET,
        "asked": study.words | {"context": study.context, "horizon": study.horizon},
        "samples": {"train": _samples(train), "test": _samples(test)},
        "noise": list(model.noise),
        "residual_rms": model.evidence.rms,
        "coefficients": told.summary()["coefficients"],
        "metrics": forecast.summary() | rivals,
        "facts": study.facts(model),
        "seconds": {"train": seconds},
        "versions": versions(),
        "commit": commit(),
    }
    write_record(results / PRESET / f"{name}.json", record)
    fitted.save(results / PRESET / f"{name}.phast")
    return record, forecast


def _samples(recording: Recording) -> int:
    return sum(len(piece.t) for piece in recording.pieces)


def _file(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise InputError(f"no folder '{folder}' of recordings: name it with --data")
    return folder / name


class Recordings(AbstractTable):
    """The studies that have a record: how far forecasts err, beside other ways, and how often the spread holds."""

    name: str
    title: str
    seeds: int = 1

    def experiments(self):
        return []

    def records(self, results, seeds=None):
        """In the order of the studies."""
        paths = (results / PRESET / f"{name}.json" for name in STUDIES)
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]

    def sheet(self, records):
        heading = ["recording", "ahead", "forecasts", "rms error", "standing still", "constant velocity", "other"]
        heading += ["within 1σ", "within 2σ", "fit, s"]
        return Sheet(self.title, heading, [_line(record) for record in records], list(records))

    def quick(self):
        return Recordings(f"{self.name}-quick", f"{self.title} (quick look: as recorded)")


def _line(record: dict[str, Any]) -> list[str]:
    numbers = record["metrics"]
    others = [(key, value) for key, value in numbers.items() if key in ("rms_published", "rms_linear")]
    return [
        record["study"].removeprefix("measured-"),
        record["asked"]["horizon"],
        str(numbers["trajectories"]),
        figure(numbers["rms"]),
        figure(numbers["rms_persistence"]),
        figure(numbers["rms_constant_velocity"]),
        ", ".join(f"{figure(value)} ({key.removeprefix('rms_')})" for key, value in others),
        f"{numbers['within_one_deviation']:.0%}",
        f"{numbers['within_two_deviations']:.0%}",
        f"{record['seconds']['train']:.0f}",
    ]


# --- others ----------------------------------------------------------------------------------------------------------


def _linear(train: Recording, test: Recording, model: ModelAware | None, seen: Foresight) -> float:
    """x⁺ = A x + B u + c over two samples, by least squares: what one would try first."""
    rows, targets = [], []
    for piece in train.pieces:
        for last in range(1, len(piece.t) - 1):
            rows.append(_features(piece.q[last - 1], piece.q[last], None if piece.u is None else piece.u[last]))
            targets.append(piece.q[last + 1])
    weights = np.linalg.lstsq(np.asarray(rows), np.asarray(targets), rcond=1e-10)[0]
    errors = []
    for context in seen.contexts:
        before, now = context.q[-2], context.q[-1]
        for step, truth in enumerate(context.truth):
            u = None if context.future.u is None else np.asarray(context.future.u[step])
            before, now = now, _features(before, now, u) @ weights
            errors.append(now - truth)
    return float(np.sqrt(np.mean(np.square(errors))))


def _features(before: np.ndarray, now: np.ndarray, u: np.ndarray | None) -> np.ndarray:
    return np.concatenate([now, before, [1.0], [] if u is None else u])


def _published_arm(train: Recording, test: Recording, model: ModelAware, seen: Foresight) -> float:
    """The rigid-body parameters that the rig's makers published, simulated from states fitted to the same contexts."""
    m1, m2, l1, r1, r2, i1, i2 = 0.559, 0.604, 0.3, 0.3, 0.184, 0.0535, 0.0239
    rotor, ratio, gravity = 7.66e-5, 6.0, 9.81
    first, coupled = i1 + m2 * l1**2, m2 * l1 * r2
    system = PortHamiltonian(
        ChainCosine(((m1 * r1 + m2 * l1) * gravity, m2 * r2 * gravity)),
        JointedMass(first, i2, coupled / (first * i2) ** 0.5, (rotor * (1.0 + ratio**2), rotor * ratio**2)),
        Friction((0.001, 0.001), (0.093, 0.078), 0.0, smoothing=0.05),
    )
    published = ModelAware(Core(system, model.core.transition), model.manifold, model.dt, model.window, model.noise)
    asked = Asked("everywhere", None, seen.q.shape[1])
    return foresee(published, test, asked).summary()["rms"]


# --- the recordings --------------------------------------------------------------------------------------------------


def _single(folder: Path) -> Split:
    recording = read(_file(folder, "multiarm_single_100Hz.csv"), positions="q:angle")
    return recording.between(stop=20.0), recording.between(start=20.0)


def _double(folder: Path) -> Split:
    recording = read(_file(folder, "multiarm_double_200Hz.csv"), positions="q1:angle,q2:angle")
    return recording.between(stop=40.0), recording.between(start=40.0)


def _arm(folder: Path) -> Split:
    """Six runs to learn from, two to be judged by: one of each kind of excitation."""

    def runs(*numbers: str) -> Recording:
        files = [str(_file(folder, f"dfki_design_A.0_20220815_{number}.csv")) for number in numbers]
        return read(files, positions="q1:angle,q2:angle", inputs="u1,u2")

    return runs("00", "01", "02", "03", "04", "12"), runs("05", "13")


def _thermal(folder: Path) -> Split:
    recording = read(_file(folder, "tclab_mimo_1Hz.csv"), positions="T1_degC,T2_degC", inputs="u1_pct,u2_pct")
    return recording.between(stop=400.0), recording.between(start=400.0)


def _lynx(folder: Path) -> Split:
    recording = read(_file(folder, "lynx_hare.csv"), time="Year", positions="Lynx,Hare")
    return recording.between(stop=1913.0), recording.between(start=1908.0)


def _frequency(model: ModelAware) -> dict[str, float]:
    """Of small swings, in rad/s."""
    rates = np.asarray(model.learned_system().spectrum(jnp.zeros(1)))
    return {"natural_frequency": float(np.max(np.abs(rates)))}


_BEARINGS = "viscous+coulomb+quadratic"
STUDIES: dict[str, Study] = {
    "measured-single": Study(
        "Single pendulum: 2 s ahead from 0.2 s, learned from the first 20 s",
        _single,
        {"regime": "known", "potential": "cosine", "damping": _BEARINGS},
        "0.2 s",
        "2 s",
        facts=_frequency,
    ),
    "measured-single-partial": Study(
        "The same with a free potential beside the template and free friction",
        _single,
        {"regime": "partial", "potential": "cosine", "damping": "free+coulomb+quadratic"},
        "0.2 s",
        "2 s",
    ),
    "measured-double": Study(
        "Double pendulum: 1 s ahead from 0.2 s, learned from the first 40 s",
        _double,
        {"regime": "known", "potential": "cosine", "mass": "links", "damping": _BEARINGS},
        "0.2 s",
        "1 s",
    ),
    "measured-arm": Study(
        "Torque-driven double pendulum (DFKI): 0.5 s ahead given the torques, two runs unseen",
        _arm,
        {"regime": "known", "potential": "chain", "mass": "joints", "damping": "viscous+coulomb"},
        "0.1 s",
        "0.5 s",
        (("published", _published_arm),),
    ),
    "measured-thermal": Study(
        "Two heaters and two thermometers: 60 s ahead given the heaters, learned from the first 400 s",
        _thermal,
        {"regime": "known", "potential": "quadratic", "damping": "viscous", "port": "learned"},
        "20 s",
        "60 s",
        (("linear", _linear),),
    ),
    "measured-lynx": Study(
        "Lynx and hare: 3 years ahead, learned from 1900 to 1912",
        _lynx,
        {"regime": "known", "potential": "quadratic", "damping": "viscous"},
        "5",
        "3",
        (("linear", _linear),),
    ),
}
