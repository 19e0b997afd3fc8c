"""Forecasts by a plain vector field, from positions alone: what any tool needs around a fitted right-hand side.

The fit needs velocities and accelerations, the forecast a state to start from. Here both come from local polynomials
whose widths and degrees the data choose: those of the derivatives by forecasts of held-out trajectories, those of the
start by how well they foretell what the later samples make of the same instant. This is what a careful user of an
ordinary tool would do; an observer that knows the model (:mod:`phast.estimation.moving_horizon`) needs none of it.
"""

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.errors import InputError
from phast.estimation.derivatives import Samples, Smoother, choose_smoother, differentiate, noise_scale, unwrapped

CONTEXT = 10
LONGEST_STEP = 0.0125  # of a Runge–Kutta step: its error stays below the others on the systems that are compared
SMOOTHERS = tuple(Smoother(w, d) for d in (4, 6) for w in (9, 13, 19, 23, 31, 41, 51))
REGRESSION_SAMPLES = 40_000


# --- the forecast ----------------------------------------------------------------------------------------------------


class AbstractField(eqx.Module):
    """A right-hand side: what a tool has fitted."""

    @abstractmethod
    def __call__(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """(q', v')."""


def runge_kutta(field: AbstractField, q: Float[Array, " n"], v: Float[Array, " n"], dt: float):
    """One classical step of fourth order."""

    def moved(rate, h):
        return q + h * rate[0], v + h * rate[1]

    k1 = field(q, v)
    k2 = field(*moved(k1, 0.5 * dt))
    k3 = field(*moved(k2, 0.5 * dt))
    k4 = field(*moved(k3, dt))
    return moved([(a + 2.0 * b + 2.0 * c + d) / 6.0 for a, b, c, d in zip(k1, k2, k3, k4, strict=True)], dt)


def follow(
    field: AbstractField, q: Float[Array, " n"], v: Float[Array, " n"], dt: float, horizon: int, substeps: int
) -> Float[Array, "H n"]:
    """Positions after 1 … ``horizon`` samples."""

    def sample(state, _):
        state = jax.lax.fori_loop(0, substeps, lambda _, s: runge_kutta(field, *s, dt / substeps), state)
        return state, state[0]

    return jax.lax.scan(sample, (q, v), length=horizon)[1]


@eqx.filter_jit
def _follow_all(field, q, v, dt, horizon, substeps):
    return jax.vmap(lambda a, b: follow(field, a, b, dt, horizon, substeps))(q, v)


class Start(NamedTuple):
    """Weights of the last samples of a context that give position and velocity at its end."""

    position: Float[np.ndarray, " K"]
    velocity: Float[np.ndarray, " L"]

    def state(
        self, contexts: Float[np.ndarray, "B K n"], manifold: Manifold
    ) -> tuple[Float[np.ndarray, "B n"], Float[np.ndarray, "B n"]]:
        """(q, v) at the end of each context."""
        needed = max(len(self.position), len(self.velocity))
        if contexts.shape[1] < needed:
            raise InputError(f"a context of {contexts.shape[1]} samples is too short: this start needs {needed}")
        path = unwrapped(Trajectories(contexts, 1.0, manifold))
        return tuple(np.einsum("k,bkn->bn", w, path[:, -len(w) :]) for w in self)


class Flow(eqx.Module):
    """A forecaster made of a vector field: the state at the end of the context, then Runge–Kutta."""

    field: AbstractField
    start: Start
    manifold: Manifold
    dt: float
    substeps: int

    @classmethod
    def over(cls, field: AbstractField, start: Start, data: Trajectories, substeps: int | None = None) -> "Flow":
        """For data sampled like these; as many substeps per sample as accuracy asks for, unless they are given."""
        needed = math.ceil(data.dt / LONGEST_STEP)
        return cls(field, start, data.manifold, data.dt, needed if substeps is None else substeps)

    def rollout(self, contexts: Float[np.ndarray, "B K n"], horizon: int) -> Float[np.ndarray, "B H n"]:
        """The ``horizon`` positions after each context, in the field's precision; not finite where it runs away."""
        precision = jnp.result_type(*jax.tree.leaves(eqx.filter(self.field, eqx.is_inexact_array)))
        q, v = (jnp.asarray(x, dtype=precision) for x in self.start.state(contexts, self.manifold))
        return np.asarray(_follow_all(self.field, q, v, self.dt, horizon, self.substeps))


# --- where it starts -------------------------------------------------------------------------------------------------


def end_weights(width: int, degree: int, dt: float) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Value and slope at the last of ``width`` samples of the polynomial of this degree that fits them best."""
    powers = np.vander(dt * np.arange(1 - width, 1), degree + 1, increasing=True)
    fit = np.linalg.pinv(powers)
    return fit[0], fit[1] if degree else np.zeros(width)


def choose_start(data: Trajectories, smoother: Smoother, context: int = CONTEXT) -> Start:
    """The one-sided polynomials closest, on the data, to what the smoother makes of the same instants from both sides.

    Judged around where forecasts begin, after the first context: later a damped system is slower and asks for less.
    For the position the last sample itself is a candidate: without noise nothing is better.
    """
    half = smoother.window // 2
    first = max(context - 1, half)
    last = min(first + context, data.length - 1 - half)
    if first > last:
        raise InputError(f"trajectories of {data.length} samples are too short for a window of {smoother.window}")
    near = data.steps(first - half, last + half + 1)
    central = Samples(*(x.reshape(len(data), -1, x.shape[1]) for x in differentiate(near, smoother)[:3]))
    path = unwrapped(data)[:, first - context + 1 : last + 1]
    windows = np.lib.stride_tricks.sliding_window_view(path, context, axis=1)

    def best(candidates, target):
        return min(candidates, key=lambda w: float(np.mean((windows[..., -len(w) :] @ w - target) ** 2)))

    shapes = [(w, d) for w, d in itertools.product(range(2, context + 1), range(1, 8)) if d < w]
    weights = [end_weights(w, d, data.dt) for w, d in shapes]
    return Start(best([np.ones(1), *(w for w, _ in weights)], central.q), best([w for _, w in weights], central.v))


# --- a plain regression ----------------------------------------------------------------------------------------------


class Library(eqx.Module):
    """Candidate terms of an acceleration: Fourier series of every angle ⊗ monomials of lines and velocities.

    Without ``lines`` nothing depends on where along a line the system is: true of a cart, not of a spring.
    """

    manifold: Manifold
    harmonics: int
    lines: bool = True
    degree: int = 2

    @classmethod
    def plain(cls, manifold: Manifold) -> "Library":
        """Of moderate size: two angles together have the square of the waves that one has."""
        return cls(manifold, 4 if sum(manifold.circles) < 2 else 2)

    @classmethod
    def candidates(cls, manifold: Manifold) -> list["Library"]:
        """The plain one and one as wide as still is quick to fit, each with and without lines where there are any."""
        narrow = cls.plain(manifold).harmonics
        kinds = (True,) if all(manifold.circles) else (True, False)
        return [cls(manifold, k, lines) for k in (narrow, 8 if narrow > 2 else 3) for lines in kinds]

    def __call__(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " terms"]:
        """The angles' series from the left, monomials fastest: the order of pysindy's tensored libraries."""
        terms = jnp.ones(1)
        for i in self.angles:
            waves = [wave(k * q[i]) for k in range(1, self.harmonics + 1) for wave in (jnp.sin, jnp.cos)]
            terms = jnp.outer(terms, jnp.stack([jnp.ones(()), *waves])).reshape(-1)
        x = jnp.concatenate([q, v])[jnp.asarray(self.rest)]
        chosen = [c for d in range(self.degree + 1) for c in itertools.combinations_with_replacement(range(len(x)), d)]
        monomials = jnp.stack([math.prod((x[i] for i in c), start=jnp.ones(())) for c in chosen])
        return jnp.outer(terms, monomials).reshape(-1)

    @property
    def size(self) -> int:
        """How many terms there are."""
        return (2 * self.harmonics + 1) ** len(self.angles) * math.comb(len(self.rest) + self.degree, self.degree)

    @property
    def angles(self) -> list[int]:
        return [i for i, circle in enumerate(self.manifold.circles) if circle]

    @property
    def rest(self) -> list[int]:
        """Which entries of (q, v) enter as monomials."""
        n = self.manifold.size
        return [i for i in range(n) if self.lines and i not in self.angles] + list(range(n, 2 * n))


class Regression(AbstractField):
    """q'' as a weighted sum of a library's terms."""

    library: Library
    weights: Float[Array, "n terms"]

    def __call__(self, q, v):
        return v, self.weights @ self.library(q, v)


@eqx.filter_jit
def design(library: Library, q: Float[Array, "S n"], v: Float[Array, "S n"]) -> Float[Array, "S terms"]:
    """The library's terms at every sample."""
    return jax.vmap(library)(q, v)


def regress(library: Library, samples: Samples) -> Regression:
    """The least-squares weights."""
    terms = np.asarray(design(library, jnp.asarray(samples.q), jnp.asarray(samples.v)))
    return Regression(library, jnp.asarray(np.linalg.lstsq(terms, samples.a, rcond=1e-10)[0].T))


# --- derivatives that forecast well ----------------------------------------------------------------------------------


class Derivatives(NamedTuple):
    """What a tool is fitted to, and how its forecasts begin."""

    smoother: Smoother
    samples: Samples
    start: Start


def derive(data: Trajectories, smoother: Smoother, context: int = CONTEXT) -> Derivatives:
    """The derivatives that one smoother gives."""
    if data.u is not None:
        raise InputError("a plain vector field knows no inputs: give unforced trajectories")
    return Derivatives(smoother, differentiate(data, smoother), choose_start(data, smoother, context))


def good_derivatives(
    data: Trajectories, fit: Callable[[Samples], AbstractField] | None = None, context: int = CONTEXT
) -> Derivatives:
    """Derivatives by the smoother with which ``fit``, a plain regression by default, forecasts held-out data best.

    The smoother of the least mean square error is not it: noise in a derivative averages out over many samples and bias
    does not. Without noise the narrowest is best and nothing needs to be tried.
    """
    likely = choose_smoother(data, noise_scale(data))
    if likely.window <= 7:
        return derive(data, likely, context)
    seen, unseen = first_fifth_held_out(data)
    fit = functools.partial(regress, Library.plain(data.manifold)) if fit is None else fit

    def score(smoother: Smoother) -> float:
        found = derive(seen, smoother, context)
        return forecast_score(Flow.over(fit(thinned(found.samples)), found.start, data), unseen, context)

    fitting = [s for s in SMOOTHERS if s.window + context <= data.length // 2] or [likely]
    return derive(data, min(fitting, key=score), context)


def forecast_score(flow: Flow, unseen: Trajectories, context: int = CONTEXT, horizon: int = 50) -> float:
    """The mean log error of forecasts all along unseen trajectories, as measured: what every choice is made by.

    A logarithm, so that a few forecasts near a separatrix do not decide; one that runs away counts as an error of 1e3.
    """
    horizon = min(horizon, unseen.length - context)
    q = unseen.windows(context + horizon, horizon).q
    errors = trajectory_errors(unseen.manifold, flow.rollout(q[:, :context], horizon), q[:, context:])
    return float(np.mean(np.log(np.clip(errors, 1e-300, 1e3))))


def trajectory_errors(
    manifold: Manifold, forecasts: Float[np.ndarray, "B H n"], truth: Float[np.ndarray, "B H n"]
) -> Float[np.ndarray, " B"]:
    """Each forecast's mean squared error; infinite where it ran away."""
    errors = np.mean(np.asarray(manifold.squared_error(jnp.asarray(forecasts), jnp.asarray(truth))), axis=(1, 2))
    return np.where(np.isfinite(errors), errors, np.inf)


def first_fifth_held_out(data: Trajectories) -> tuple[Trajectories, Trajectories]:
    """Four fifths to fit, one to choose by."""
    cut = max(1, len(data) // 5)
    return data.subset(slice(cut, None)), data.subset(slice(0, cut))


def divided(data: Trajectories, samples: Samples) -> tuple[Samples, Trajectories]:
    """The samples of the trajectories that are not held out, and the trajectories that are."""
    unseen = first_fifth_held_out(data)[1]
    count = len(unseen) * (len(samples.q) // len(data))
    return Samples(*(x[count:] for x in samples[:3])), unseen


def thinned(samples: Samples, count: int = REGRESSION_SAMPLES) -> Samples:
    """About ``count`` of the samples, evenly spread."""
    stride = max(1, len(samples.q) // count)
    return Samples(*(x[::stride] for x in samples[:3]))
