"""Runs: one model of one system by one preset with one seed, and the small record that is left of it.

An :class:`Experiment` is all of that but the seed: what compiles once. Its seeds run side by side in threads. They
share one compiled program, and on a CPU two threads with one core each get more done than one vmapped program: batching
the small matrix products of several seeds is what a CPU does worst. A finished run is two files, written atomically: a
JSON record, and beside it the fitted model.
"""

import contextlib
import dataclasses
import functools
import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from phast.api.fitting import fit
from phast.components.parameter import parameter_count
from phast.data.files import write_atomically
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import System, system
from phast.errors import InputError
from phast.estimation.forecaster import cores
from phast.fitting.checkpoint import save
from phast.fitting.losses import AbstractLoss, Batch, FullStateLoss, NextStepLoss, ResidualLoss, as_batch
from phast.fitting.training import History, Settings, train, warm_up
from phast.paper.casimir import EACH, judged
from phast.paper.casimir_estimators import controller, estimator_builder, setting_for
from phast.paper.compositions import SHARP, composition
from phast.paper.gauge import gauge_builder, observed, recovered
from phast.paper.metrics import evaluate, evaluate_full_state
from phast.paper.models import FULL_STATE, model_builder
from phast.paper.protocol import Split, benchmark_split
from phast.report.provenance import commit, versions

Record = dict[str, Any]
OnEpoch = Callable[[int, History], None]
OnStage = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What a run is, but for its seed.

    ``variation`` is passed to the model's builder as keyword arguments; ``dt`` replaces the system's sampling step.
    Noise goes on training and validation data and on the test contexts; errors are always against clean trajectories.
    """

    system: str
    model: str
    preset: str = "paper"
    noise: float = 0.0
    variation: tuple[tuple[str, Any], ...] = ()
    dt: float | None = None

    def __str__(self) -> str:
        noise = f", noise {self.noise:g}" if self.noise else ""
        return f"{self.model_folder} on {self.system_folder} ({self.preset}{noise})"

    @property
    def system_folder(self) -> str:
        return self.system if self.dt is None else f"{self.system},dt={self.dt:g}"

    @property
    def model_folder(self) -> str:
        """The model's name and what is varied: ``phast-partial,bound=none``."""
        return ",".join([self.model, *(f"{name}={str(value).lower()}" for name, value in self.variation)])

    def record_path(self, folder: Path, seed: int) -> Path:
        """Where the record of a run lives; its model has the same name with the suffix ``.phast``."""
        name = f"seed-{seed}.json" if self.noise == 0.0 else f"seed-{seed}-noise-{self.noise:g}.json"
        return folder / self.preset / self.system_folder / self.model_folder / name

    def simulator(self) -> System:
        """The system, sampled as asked."""
        chosen = system(self.system)
        return chosen if self.dt is None else dataclasses.replace(chosen, dt=self.dt)


def key_of(record: Record) -> Experiment:
    """The experiment that a record belongs to."""
    variation = tuple(record.get("variation", {}).items())
    return Experiment(record["system"], record["model"], record["preset"], record["noise"], variation, record.get("dt"))


# --- presets ---------------------------------------------------------------------------------------------------------


class Trained(NamedTuple):
    """A model as training left it; the best epoch is 0 where there are no epochs."""

    model: eqx.Module
    best_epoch: int
    compile_seconds: float
    train_seconds: float


class Watch(NamedTuple):
    """Whom to tell of progress, by epochs or by stages, and where a killed run of a seed can go on from."""

    on_epoch: OnEpoch = lambda seed, history: None
    on_stage: OnStage = lambda stage: None
    unfinished: Callable[[int], Path | None] = lambda seed: None


UNWATCHED = Watch()


class AbstractPreset(eqx.Module):
    """A way to train named models on a system's data, and to judge them."""

    needs_float64: eqx.AbstractVar[bool]
    has_epochs: eqx.AbstractVar[bool]  # then several seeds train side by side
    trajectories: eqx.AbstractVar[int | None]  # how many of the training set are used; all if None

    @abstractmethod
    def maker(self, model_name: str) -> Callable[..., Any]:
        """What makes the model of this name before it is trained; a name that this preset cannot train is refused."""

    @abstractmethod
    def train(
        self, simulator: System, experiment: Experiment, data: Split, seeds: Sequence[int], watch: Watch
    ) -> Iterator[Trained]:
        """One trained model per seed, in their order, each as soon as it is there."""

    @abstractmethod
    def judge(self, model: Any, test: Trajectories, truth: PortHamiltonian | None, noise: float) -> dict[str, float]:
        """Every metric that applies."""


class GradientPreset(AbstractPreset):
    """AdamW on a loss, seeds side by side in threads."""

    settings: Settings
    loss: AbstractLoss
    trajectories: int | None = None
    needs_float64: bool = False
    has_epochs: bool = True

    def maker(self, model_name):
        return model_builder(model_name)

    def train(self, simulator, experiment, data, seeds, watch):
        build = functools.partial(self.maker(experiment.model), simulator, **dict(experiment.variation))
        return _descend(build, self.loss, self.settings, as_batch(data.train), as_batch(data.validation), seeds, watch)

    def judge(self, model, test, truth, noise):
        return evaluate(model, test, truth=truth, noise=noise)


class SharpPreset(AbstractPreset):
    """Second-order identification and a model-aware observer (:mod:`phast.fitting.second_order`); a seed draws the
    samples used."""

    trajectories: int | None = None
    needs_float64: bool = True
    has_epochs: bool = False

    def maker(self, model_name):
        return composition(model_name)

    def train(self, simulator, experiment, data, seeds, watch):
        compose = self.maker(experiment.model)
        if experiment.variation:
            raise InputError(f"the sharp preset has no variations: {experiment.model_folder} belongs to the paper's")
        for seed in seeds:
            begun = time.perf_counter()
            fitted = fit(
                data.train,
                compose(simulator, data.train),
                method=SHARP,
                seed=seed,
                progress=lambda told, seed=seed: watch.on_stage(f"seed {seed}, {told.stage}"),
            )
            yield Trained(fitted.model, 0, 0.0, time.perf_counter() - begun)

    def judge(self, model, test, truth, noise):
        return evaluate(model, test, truth=truth, noise=noise)


class FullStatePreset(AbstractPreset):
    """AdamW where q and p are both observed (appendix G.1): a transition alone, no observer."""

    settings: Settings
    trajectories: int | None = None
    needs_float64: bool = False
    has_epochs: bool = True

    def maker(self, model_name):
        return model_builder(model_name, FULL_STATE)

    def train(self, simulator, experiment, data, seeds, watch):
        if experiment.noise:
            raise InputError("full-state runs know the momenta: noise on positions makes no sense for them")
        build = functools.partial(self.maker(experiment.model), simulator, **dict(experiment.variation))
        loss = FullStateLoss(simulator.manifold, simulator.dt)
        batches = (
            as_batch(part)._replace(p=jnp.asarray(part.p, dtype=float)) for part in (data.train, data.validation)
        )
        return _descend(build, loss, self.settings, *batches, seeds, watch)

    def judge(self, model, test, truth, noise):
        return evaluate_full_state(model, test, truth)


class ResidualPreset(AbstractPreset):
    """AdamW on the Euler–Lagrange residual of samples, q, q' and q'' all observed (appendix on gauge freedom)."""

    settings: Settings
    loss: ResidualLoss = ResidualLoss(sparsity=1e-3)
    trajectories: int | None = 200
    window: int = 1  # samples that a batch takes together
    needs_float64: bool = False
    has_epochs: bool = True

    def maker(self, model_name):
        return gauge_builder(model_name)

    def train(self, simulator, experiment, data, seeds, watch):
        if experiment.noise:
            raise InputError("residual runs know velocities and accelerations: noise on positions makes no sense")
        build = functools.partial(self.maker(experiment.model), simulator, **dict(experiment.variation))
        truth = simulator.port_hamiltonian
        batches = (observed(part, truth, window=self.window) for part in (data.train, data.validation))
        return _descend(build, self.loss, self.settings, *batches, seeds, watch)

    def judge(self, model, test, truth, noise):
        return {name: float(value) for name, value in recovered(model, truth, observed(test, truth)).items()}


class CasimirPreset(AbstractPreset):
    """Energy–Casimir control of the true system by a port estimator (section on control): the loop is what is judged.

    The noise of an experiment is that of the loop's positions; observers are trained on clean data by ``settings``,
    with what noise their own variation says.
    """

    settings: Settings
    each: int = EACH  # trials of a regime
    trajectories: int | None = None
    needs_float64: bool = True
    has_epochs: bool = False

    def maker(self, model_name):
        return estimator_builder(model_name)

    def train(self, simulator, experiment, data, seeds, watch):
        swings = benchmark_split(simulator)
        swings = swings._replace(train=swings.train.subset(slice(0, self.trajectories)))
        for seed in seeds:
            begun = time.perf_counter()
            setting = setting_for(simulator, experiment.noise, swings, self.settings, seed)
            made = controller(experiment.model, setting, **dict(experiment.variation))
            yield Trained(made, 0, 0.0, time.perf_counter() - begun)

    def judge(self, model, test, truth, noise):
        return judged(model, noise, self.each)


def _descend(
    build: Callable[..., Any],
    loss: AbstractLoss,
    settings: Settings,
    seen: Batch,
    held_out: Batch,
    seeds: Sequence[int],
    watch: Watch,
) -> Iterator[Trained]:
    start = time.perf_counter()
    models = [build(key=jax.random.key(seed)) for seed in seeds]
    warm_up(models[0], seen, held_out, loss=loss, settings=settings)
    compile_seconds = time.perf_counter() - start

    def one(seed: int, model: Any) -> Trained:
        begun = time.perf_counter()
        fitted, history = train(
            model,
            seen,
            held_out,
            loss=loss,
            settings=settings,
            key=jax.random.fold_in(jax.random.key(seed), 1),
            checkpoint=watch.unfinished(seed),
            on_epoch=lambda h: watch.on_epoch(seed, h),
        )
        return Trained(fitted, history.best_epoch, compile_seconds, time.perf_counter() - begun)

    with ThreadPoolExecutor(max_workers=min(len(seeds), cores())) as pool:
        yield from pool.map(one, seeds, models)


_QUICK = Settings(epochs=5, validate_every=5)

# The loss of the paper keeps the unknowable first step (section 4.1, appendix E.3). Its quick ablations train for 20
# epochs. What is called quick is for a look: fewer trajectories, hardly any training, and never a result to quote.
PRESETS: dict[str, AbstractPreset] = {
    "paper": GradientPreset(Settings(), NextStepLoss()),
    "paper-20": GradientPreset(Settings(epochs=20), NextStepLoss()),
    "sharp": SharpPreset(),
    "full-state": FullStatePreset(Settings()),
    "gauge": ResidualPreset(Settings()),
    "gauge-800": ResidualPreset(Settings(), trajectories=50, window=10),  # as many steps as the paper's other runs have
    "casimir": CasimirPreset(Settings()),
    "quick": GradientPreset(_QUICK, NextStepLoss(), trajectories=256),
    "sharp-quick": SharpPreset(trajectories=200),
    "full-state-quick": FullStatePreset(_QUICK, trajectories=256),
    "gauge-quick": ResidualPreset(_QUICK, trajectories=20),
    "gauge-800-quick": ResidualPreset(_QUICK, trajectories=20, window=10),
    "casimir-quick": CasimirPreset(_QUICK, each=2, trajectories=64),
}
QUICK = {"paper": "quick", "paper-20": "quick"}
QUICK |= {name: f"{name}-quick" for name in ("sharp", "full-state", "gauge", "gauge-800", "casimir")}


def preset(name: str) -> AbstractPreset:
    """The preset called ``name``."""
    if name not in PRESETS:
        raise InputError(f"unknown preset '{name}': choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


@contextlib.contextmanager
def precision(float64: bool) -> Iterator[None]:
    """Single or double precision in the whole process, as a preset needs it, and afterwards as it was."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", float64)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


# --- running ---------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """A finished run: the record, and what the record was made from."""

    record: Record
    model: Any


def run(
    experiment: Experiment,
    seeds: Sequence[int] = (0,),
    *,
    settings: Settings | None = None,
    data: Split | None = None,
    watch: Watch = UNWATCHED,
) -> Iterator[Outcome]:
    """Train and evaluate on the benchmark data of the system, once per seed; each outcome as soon as it is there.

    ``settings`` replaces those of a gradient preset (for a quick look; the record then says so).
    """
    chosen, name = preset(experiment.preset), experiment.preset
    if settings is not None:
        if not isinstance(chosen, GradientPreset):
            raise InputError(f"preset '{name}' has no epochs to change")
        chosen = dataclasses.replace(chosen, settings=settings)
        name = f"{name} with {dataclasses.asdict(settings)}"
    chosen.maker(experiment.model)  # a wrong name is said before anything is simulated
    simulator, noise = experiment.simulator(), experiment.noise
    data = benchmark_split(simulator) if data is None else data
    part = data.train.subset(slice(0, chosen.trajectories))
    seen = Split(_noisy(part, noise, 0), _noisy(data.validation, noise, 1), data.test)
    truth = simulator.dynamics if isinstance(simulator.dynamics, PortHamiltonian) else None
    for seed, done in zip(seeds, chosen.train(simulator, experiment, seen, seeds, watch), strict=True):
        begun = time.perf_counter()
        metrics = chosen.judge(done.model, data.test, truth, noise)
        seconds = {"compile": done.compile_seconds, "train": done.train_seconds}
        seconds["evaluate"] = time.perf_counter() - begun
        yield Outcome(
            {
                "system": experiment.system,
                "model": experiment.model,
                "preset": name,
                "seed": seed,
                "noise": noise,
                **({"variation": dict(experiment.variation)} if experiment.variation else {}),
                **({"dt": experiment.dt} if experiment.dt is not None else {}),
                "parameters": parameter_count(done.model),
                "metrics": {key: x if math.isfinite(x) else None for key, x in metrics.items()},
                "best_epoch": done.best_epoch,
                "seconds": {key: round(x, 3) for key, x in seconds.items()},
                "versions": versions(),
                "commit": commit(),
            },
            done.model,
        )


def run_missing(
    folder: Path, experiment: Experiment, seeds: Iterable[int], *, watch: Watch = UNWATCHED, models: bool = False
) -> list[Record]:
    """The records of these runs: read where they exist, run and written where they do not.

    With ``models`` a run whose model is not in the folder (they are not kept in git) is run again.
    """
    seeds = list(seeds)
    todo = [seed for seed in seeds if not is_done(folder, experiment, seed, models=models)]
    together = [todo] if preset(experiment.preset).has_epochs else [[seed] for seed in todo]
    for group in filter(None, together):
        resumable = watch._replace(unfinished=lambda s: experiment.record_path(folder, s).with_suffix(".unfinished"))
        for seed, outcome in zip(group, run(experiment, group, watch=resumable), strict=True):
            store(folder, experiment, seed, outcome)
    return [read_record(experiment.record_path(folder, seed)) for seed in seeds]


def is_done(folder: Path, experiment: Experiment, seed: int, *, models: bool = False) -> bool:
    """Whether this run has left its record (and, where that is asked, its model)."""
    path = experiment.record_path(folder, seed)
    return path.exists() and (not models or path.with_suffix(".phast").exists())


def store(folder: Path, experiment: Experiment, seed: int, outcome: Outcome) -> None:
    """Model first, then the record that says that the run is done; a record that is there already stays as it is."""
    path = experiment.record_path(folder, seed)
    save(outcome.model, path.with_suffix(".phast"))
    if not path.exists():
        write_record(path, outcome.record)
    path.with_suffix(".unfinished").unlink(missing_ok=True)


def write_record(path: Path, record: Record) -> None:
    """A record as a small JSON file, complete or not at all."""
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())


_FIELDS = {"system": str, "model": str, "preset": str, "seed": int, "noise": int | float, "metrics": dict}
_OPTIONAL = {"seconds": dict, "variation": dict, "dt": int | float, "parameters": int}


def read_record(path: Path) -> Record:
    """The record in ``path``."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable record ({error}): delete it to run it again") from None
    if not _is_record(record):
        raise InputError(f"{path}: not the record of a run: delete it to run it again")
    return record


def _is_record(found: Any) -> bool:
    """Whether this holds what tables, costs and pages are made of, each of its kind."""
    if not isinstance(found, dict) or not _FIELDS.keys() <= found.keys():
        return False
    fields = _FIELDS | {name: kind for name, kind in _OPTIONAL.items() if name in found}
    return (
        all(isinstance(found[name], kind) for name, kind in fields.items())
        and all(isinstance(x, int | float | None) for x in found["metrics"].values())
        and all(isinstance(x, int | float) for x in found.get("seconds", {}).values())
        and all(isinstance(x, int | float | str | None) for x in found.get("variation", {}).values())
    )


def _noisy(part: Trajectories, noise: float, seed: int) -> Trajectories:
    return part if noise == 0.0 else part.with_noise(noise, seed=seed)
