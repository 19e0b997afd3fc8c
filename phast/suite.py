"""Runs: one model of one system by one preset with one seed, and the small record that is left of it.

Seeds run side by side in threads. They share one compiled program, and on a CPU two threads with one core each get more
done than one vmapped program: batching the small matrix products of several seeds is what a CPU does worst.
"""

import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from phast.datasets import Split, Trajectories, benchmark_split
from phast.errors import InputError
from phast.files import write_atomically
from phast.forecaster import AbstractForecaster
from phast.hamiltonian import PortHamiltonian
from phast.metrics import evaluate
from phast.models import model_builder, parameter_count
from phast.sharp import composition, sharpen
from phast.systems import System
from phast.training import AbstractLoss, Batch, History, NextStepLoss, Settings, fit, warm_up

Record = dict[str, Any]
OnEpoch = Callable[[int, History], None]
OnStage = Callable[[str], None]


class Trained(NamedTuple):
    """A model as training left it; the best epoch is 0 where there are no epochs."""

    model: AbstractForecaster
    best_epoch: int
    compile_seconds: float
    train_seconds: float


class AbstractPreset(eqx.Module):
    """A way to train named models on a system's data."""

    needs_float64: eqx.AbstractVar[bool]
    has_epochs: eqx.AbstractVar[bool]  # then several seeds train side by side

    @abstractmethod
    def train(
        self,
        system: System,
        model_name: str,
        data: Split,
        seeds: Sequence[int],
        on_epoch: OnEpoch,
        on_stage: OnStage,
    ) -> list[Trained]:
        """One trained model per seed; progress is told by epochs or by stages, whichever there are."""


class GradientPreset(AbstractPreset):
    """AdamW on a loss, seeds side by side in threads."""

    settings: Settings
    loss: AbstractLoss
    needs_float64: bool = False
    has_epochs: bool = True

    def train(self, system, model_name, data, seeds, on_epoch, on_stage):
        train, validation = as_batch(data.train), as_batch(data.validation)
        start = time.perf_counter()
        models = [model_builder(model_name)(system, key=jax.random.key(seed)) for seed in seeds]
        warm_up(models[0], train, validation, loss=self.loss, settings=self.settings)
        compile_seconds = time.perf_counter() - start

        def one(seed: int, model: AbstractForecaster) -> Trained:
            begun = time.perf_counter()
            fitted, history = fit(
                model,
                train,
                validation,
                loss=self.loss,
                settings=self.settings,
                key=jax.random.fold_in(jax.random.key(seed), 1),
                on_epoch=lambda h: on_epoch(seed, h),
            )
            return Trained(fitted, history.best_epoch, compile_seconds, time.perf_counter() - begun)

        with ThreadPoolExecutor(max_workers=min(len(seeds), os.cpu_count() or 1)) as pool:
            return list(pool.map(one, seeds, models))


class SharpPreset(AbstractPreset):
    """Second-order identification and a model-aware observer (:mod:`phast.sharp`); a seed draws the samples used."""

    needs_float64: bool = True
    has_epochs: bool = False

    def train(self, system, model_name, data, seeds, on_epoch, on_stage):
        compose, trained = composition(model_name), []
        for seed in seeds:
            begun = time.perf_counter()
            found = sharpen(
                compose(system, data.train),
                data.train,
                seed=seed,
                on_stage=lambda stage, seed=seed: on_stage(f"seed {seed}, {stage}"),
            )
            trained.append(Trained(found.model, 0, 0.0, time.perf_counter() - begun))
        return trained


PRESETS: dict[str, AbstractPreset] = {
    # Section 4.1 and appendix E.3; the loss keeps the unknowable first step, as the paper's does.
    "paper": GradientPreset(Settings(), NextStepLoss()),
    "sharp": SharpPreset(),
}


def preset(name: str) -> AbstractPreset:
    """The preset called ``name``."""
    if name not in PRESETS:
        raise InputError(f"unknown preset '{name}': choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A finished run: the record, and what the record was made from."""

    record: Record
    model: AbstractForecaster


def as_batch(data: Trajectories) -> Batch:
    """Trajectories as the arrays that training takes, in the process's precision."""
    return Batch(jnp.asarray(data.q, dtype=float), u=None if data.u is None else jnp.asarray(data.u, dtype=float))


def run_seeds(
    system: System,
    model_name: str,
    *,
    preset_name: str = "paper",
    seeds: Sequence[int] = (0,),
    noise: float = 0.0,
    settings: Settings | None = None,
    data: Split | None = None,
    on_epoch: OnEpoch = lambda seed, history: None,
    on_stage: OnStage = lambda stage: None,
) -> list[Outcome]:
    """Train and evaluate ``model_name`` on the benchmark data of ``system``, once per seed.

    ``settings`` replaces those of a gradient preset (for a quick look; the record then says so). Noise goes on training
    and validation data and on the test contexts; errors are always against the clean trajectories.
    """
    chosen = preset(preset_name)
    if settings is not None:
        if not isinstance(chosen, GradientPreset):
            raise InputError(f"preset '{preset_name}' has no epochs to change")
        chosen = GradientPreset(settings, chosen.loss)
    model_builder(model_name)
    data = benchmark_split(system) if data is None else data
    seen = Split(_noisy(data.train, noise, 0), _noisy(data.validation, noise, 1), data.test)
    trained = chosen.train(system, model_name, seen, seeds, on_epoch, on_stage)

    truth = system.dynamics if isinstance(system.dynamics, PortHamiltonian) else None
    outcomes = []
    for seed, done in zip(seeds, trained, strict=True):
        begun = time.perf_counter()
        metrics = evaluate(done.model, data.test, truth=truth, noise=noise)
        record = {
            "system": system.name,
            "model": model_name,
            "preset": preset_name if settings is None else f"{preset_name} with {dataclasses.asdict(settings)}",
            "seed": seed,
            "noise": noise,
            "parameters": parameter_count(done.model),
            "metrics": metrics,
            "best_epoch": done.best_epoch,
            "seconds": {
                "compile": round(done.compile_seconds, 3),
                "train": round(done.train_seconds, 3),
                "evaluate": round(time.perf_counter() - begun, 3),
            },
            "versions": versions(),
            "commit": commit(),
        }
        outcomes.append(Outcome(record, done.model))
    return outcomes


def record_path(folder: Path, system: str, model: str, preset_name: str, seed: int, noise: float = 0.0) -> Path:
    """Where the record of one run lives."""
    name = f"seed-{seed}.json" if noise == 0.0 else f"seed-{seed}-noise-{noise:g}.json"
    return folder / preset_name / system / model / name


def run_missing(
    folder: Path,
    system: System,
    model_name: str,
    *,
    preset_name: str,
    seeds: Sequence[int],
    noise: float = 0.0,
    on_epoch: OnEpoch = lambda seed, history: None,
    on_stage: OnStage = lambda stage: None,
) -> list[Record]:
    """The records of these runs: read where they exist, run and written where they do not."""
    paths = {seed: record_path(folder, system.name, model_name, preset_name, seed, noise) for seed in seeds}
    missing = [seed for seed, path in paths.items() if not path.exists()]
    together = [missing] if preset(preset_name).has_epochs else [[seed] for seed in missing]
    for group in filter(None, together):
        outcomes = run_seeds(
            system,
            model_name,
            preset_name=preset_name,
            seeds=group,
            noise=noise,
            on_epoch=on_epoch,
            on_stage=on_stage,
        )
        for seed, outcome in zip(group, outcomes, strict=True):
            write_record(paths[seed], outcome.record)
    return [read_record(path) for path in paths.values()]


def write_record(path: Path, record: Record) -> None:
    """A record as a small JSON file, complete or not at all."""
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())


def read_record(path: Path) -> Record:
    """The record in ``path``."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}")
        return record
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable record ({error}): delete it to run it again") from None


def _noisy(part: Trajectories, noise: float, seed: int) -> Trajectories:
    return part if noise == 0.0 else part.with_noise(noise, seed=seed)


@functools.cache
def versions() -> dict[str, str]:
    """What the numbers depend on."""
    packages = ("phast", "jax", "equinox", "optax", "diffrax", "numpy")
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "source"
    return found | {"python": platform.python_version()}


@functools.cache
def commit() -> str:
    """The commit of the source tree that this package is run from, marked where files differ from it."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", "phast") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
