"""``phast paper bench peers``: the tools that users would pick instead, fitted to the same arrays as ours.

Each peer is as strong as a careful user would make it, and sees what our models see: positions. Derivatives and starts
come from :mod:`phast.paper.flow`; what has to be chosen (smoothing, series, thresholds) is chosen by forecasts of
held-out training trajectories. Ours are the ``sharp`` preset. A fit ends as one small record in ``results/peers``, and
is never repeated.
"""

import functools
import importlib.metadata
import importlib.util
import itertools
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.api.fitting import fit
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import System
from phast.errors import InputError
from phast.estimation.forecaster import roll_out, takeover
from phast.paper.baselines.neural import DhnnField, NeuralField, Spreads, descend, matching_loss, shooting_loss, windows
from phast.paper.baselines.regression import FourierDamping, least_squares, linear_friction, sparse
from phast.paper.compositions import SHARP, composition
from phast.paper.experiments import Experiment, Record, read_record, write_record
from phast.paper.flow import (
    CONTEXT,
    Flow,
    Library,
    divided,
    first_fifth_held_out,
    forecast_score,
    good_derivatives,
    thinned,
    trajectory_errors,
)
from phast.paper.metrics import damping_diagonal, recovery
from phast.paper.protocol import Split, benchmark_split
from phast.report.provenance import commit, versions

COMPARED = ("pendulum-windy", "cartpole-windy", "double-pendulum-damped")
NOISES = (0.0, 0.01, 0.05)
HORIZON = 100


class Learned(NamedTuple):
    """What a fit leaves: forecasts, and the diagonal of D at a configuration where the tool gives one."""

    rollout: Callable[[Float[np.ndarray, "B K n"], int], Float[np.ndarray, "B H n"]]
    damping: Callable[[Float[Array, " n"]], Float[Array, " n"]] | None = None


class AbstractPeer(eqx.Module):
    """A tool and the way to use it well."""

    package: eqx.AbstractVar[str | None]  # what it needs beside this one

    @abstractmethod
    def choose(self, system: System, data: Trajectories) -> Any:
        """What a user would choose before the fit, perhaps by hand: its time is recorded separately."""

    @abstractmethod
    def fit(self, system: System, data: Trajectories, choice: Any, seed: int) -> Learned:
        """Learn from positions; of ``system`` only what the tool may know."""


# --- theirs ----------------------------------------------------------------------------------------------------------


class LeastSquares(AbstractPeer):
    """numpy: known mass and template; the strength of gravity and a series for the damping by one linear solve."""

    harmonics: tuple[int, ...] = (4, 8, 16)
    package: str | None = None

    def choose(self, system, data):
        truth = system.port_hamiltonian
        laws = [FourierDamping.like(truth.damping, data.manifold.size, k) for k in self.harmonics]
        found = good_derivatives(data, lambda samples: least_squares(truth, laws[0], samples))
        seen, unseen = divided(data, found.samples)

        def score(law: FourierDamping) -> float:
            return forecast_score(Flow.over(least_squares(truth, law, thinned(seen)), found.start, data), unseen)

        return found, min(laws, key=score)

    def fit(self, system, data, choice, seed):
        found, law = choice
        field = least_squares(system.port_hamiltonian, law, found.samples)
        return Learned(Flow.over(field, found.start, data).rollout, functools.partial(damping_diagonal, field.system))


class Sindy(AbstractPeer):
    """pysindy: sequentially thresholded least squares over Fourier series ⊗ monomials; threshold and series chosen."""

    thresholds: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.3)
    cells: int = 30_000_000  # of the largest table of candidate terms: what fits into memory several times
    package: str | None = "pysindy"

    def choose(self, system, data):
        found = good_derivatives(data)
        seen, unseen = divided(data, found.samples)

        def score(choice: tuple[Library, float]) -> float:
            flow = Flow.over(sparse(*choice, thinned(seen)), found.start, data)
            return forecast_score(flow, unseen, horizon=HORIZON)  # as far as it will be used: some run away late

        return found, *min(itertools.product(Library.candidates(data.manifold), self.thresholds), key=score)

    def fit(self, system, data, choice, seed):
        found, library, threshold = choice
        field = sparse(library, threshold, thinned(found.samples, self.cells // library.size))
        law = functools.partial(linear_friction, field, system.port_hamiltonian.mass)
        return Learned(Flow.over(field, found.start, data).rollout, law)


class Dhnn(AbstractPeer):
    """The dissipative Hamiltonian neural network, on derivative samples."""

    harmonics: int = 4
    steps: int = 12_000
    batch: int = 256
    rate: float = 6e-3
    package: str | None = None

    def choose(self, system, data):
        return good_derivatives(data)

    def fit(self, system, data, found, seed):
        key, units = jax.random.key(seed), Spreads.of(found.samples)
        field = DhnnField.create(data.manifold, units, harmonics=self.harmonics, key=key)
        field, _ = descend(
            field, matching_loss, found.samples[:3], steps=self.steps, batch=self.batch, rate=self.rate, seed=seed
        )
        return Learned(Flow.over(field, found.start, data).rollout)


class NeuralOde(AbstractPeer):
    """A perceptron for q'', fitted to derivative samples; then to positions along windows, if that forecasts better."""

    width: int = 128
    harmonics: int = 4
    steps: int = 20_000
    refinements: int = 1000
    window: int = 20
    package: str | None = None

    def choose(self, system, data):
        return good_derivatives(data)

    def fit(self, system, data, found, seed):
        samples, unseen = divided(data, found.samples)
        key, units = jax.random.key(seed), Spreads.of(samples)
        field = NeuralField.create(data.manifold, units, width=self.width, harmonics=self.harmonics, key=key)
        matched, _ = descend(field, matching_loss, samples[:3], steps=self.steps, batch=512, rate=4e-3, seed=seed)
        refined, _ = descend(
            matched,
            functools.partial(shooting_loss, data.dt),
            windows(first_fifth_held_out(data)[0], samples, found.smoother.window // 2, self.window),
            steps=self.refinements,
            batch=128,
            rate=5e-4,
            seed=seed + 1,
        )
        flows = [Flow.over(field, found.start, data, substeps=1) for field in (refined, matched)]
        return Learned(min(flows, key=lambda flow: forecast_score(flow, unseen)).rollout)


# --- ours ------------------------------------------------------------------------------------------------------------


class Sharp(AbstractPeer):
    """One of our models by the sharp preset."""

    model: str
    package: str | None = None

    def choose(self, system, data):
        return None

    def fit(self, system, data, choice, seed):
        model = fit(data, composition(self.model)(system, data), method=SHARP, seed=seed).model

        def rollout(contexts: Float[np.ndarray, "B K n"], horizon: int) -> Float[np.ndarray, "B H n"]:
            return np.asarray(roll_out(takeover, model, jnp.asarray(contexts), horizon))

        return Learned(rollout, functools.partial(damping_diagonal, model.learned_system()))


PEERS: dict[str, AbstractPeer] = {
    "least-squares": LeastSquares(),
    "sindy": Sindy(),
    "dhnn": Dhnn(),
    "neural-ode": NeuralOde(),
    "phast-known": Sharp("phast-known"),
    "phast-partial": Sharp("phast-partial"),
    "phast-unknown": Sharp("phast-unknown"),
}


def peer(name: str) -> AbstractPeer:
    """The peer called ``name``."""
    if name not in PEERS:
        raise InputError(f"unknown peer '{name}': choose among {', '.join(PEERS)}")
    return PEERS[name]


def missing_package(tool: AbstractPeer) -> str | None:
    """The package that this peer needs and that is not installed."""
    needs = tool.package
    return needs if needs is not None and importlib.util.find_spec(needs) is None else None


# --- records ---------------------------------------------------------------------------------------------------------


def measure(
    name: str, system: System, data: Split, *, noise: float = 0.0, seed: int = 0, horizon: int = HORIZON
) -> Record:
    """Fit one peer to noisy positions and judge its forecasts from noisy contexts against the clean test positions.

    Seconds to choose and to train include compilation; the rollout is timed when it is run again.
    """
    tool = peer(name)
    train = data.train.with_noise(noise, seed=0) if noise else data.train
    seen = data.test.with_noise(noise, seed=2) if noise else data.test
    choice, choosing = _timed(lambda: tool.choose(system, train))
    fitted, training = _timed(lambda: tool.fit(system, train, choice, seed))
    forecasts = fitted.rollout(seen.q[:, :CONTEXT], horizon)
    _, rolling = _timed(lambda: fitted.rollout(seen.q[:, :CONTEXT], horizon))
    metrics = _errors(system.manifold, forecasts, data.test.q[:, CONTEXT : CONTEXT + horizon], horizon)
    if fitted.damping is not None:
        metrics |= _recovery(fitted.damping, system.port_hamiltonian, data.test.q)
    used = {} if tool.package is None else {tool.package: importlib.metadata.version(tool.package)}
    return {
        "system": system.name,
        "model": name,
        "preset": "peers",
        "seed": seed,
        "noise": noise,
        "metrics": metrics,
        "seconds": {"choose": round(choosing, 3), "train": round(training, 3), "rollout": round(rolling, 4)},
        "versions": versions() | used,
        "commit": commit(),
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def _errors(manifold: Manifold, forecasts: np.ndarray, truth: np.ndarray, horizon: int) -> dict[str, float | None]:
    """Mean and median over trajectories; None, with the share that ran away, where a mean has no value."""
    errors = trajectory_errors(manifold, forecasts, truth)
    figures = {f"mse_h{horizon}": float(np.mean(errors)), f"mse_h{horizon}_median": float(np.median(errors))}
    away = float(np.mean(~np.isfinite(errors)))
    return {k: x if math.isfinite(x) else None for k, x in figures.items()} | ({"diverged": away} if away else {})


def _recovery(damping: Callable, truth: PortHamiltonian, q: np.ndarray) -> dict[str, float]:
    """R²_D and MAE_D; without the former where the true damping does not vary, since it then explains nothing."""
    found, wanted = (
        jax.jit(jax.vmap(jax.vmap(law)))(jnp.asarray(q))
        for law in (damping, functools.partial(damping_diagonal, truth))
    )
    scores = {name: float(value) for name, value in recovery(found, wanted).items()}
    if float(jnp.max(jnp.ptp(wanted, axis=(0, 1)))) < 1e-9:
        del scores["damping_r2"]
    return scores


def compare_tools(
    folder: Path,
    systems: Iterable[System],
    names: Sequence[str] = tuple(PEERS),
    noises: Sequence[float] = NOISES,
    *,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Record]:
    """The records of all these fits: read where they exist, made and written where they do not."""
    records = []
    for name in names:
        if package := missing_package(peer(name)):
            tell(f"{name}: skipped, since {package} is not installed: pip install 'phast-physics[peers]'")
    able = [name for name in names if missing_package(peer(name)) is None]
    for system in systems:
        data = None
        for noise in noises:
            for name in able:
                path = Experiment(system.name, name, "peers", noise).record_path(folder, seed)
                if not path.exists():
                    data = benchmark_split(system) if data is None else data
                    record = measure(name, system, data, noise=noise, seed=seed, horizon=HORIZON)
                    write_record(path, record)
                    tell(_line(record))
                records.append(read_record(path))
    return records


def _line(record: Record) -> str:
    figures, seconds = record["metrics"], record["seconds"]
    median = figures[f"mse_h{HORIZON}_median"]
    error = "diverged" if median is None else f"median error {median:.1e}"
    title = f"{record['model']} on {record['system']}, noise {record['noise']:g}"
    fit, forecasts = seconds["train"] + seconds["choose"], seconds["rollout"]
    return f"{title}: {error}, {fit:.2g} s to choose settings and fit, {forecasts:.2f} s to forecast"
