"""Forecasters: q_0 … q_t in, the future out.

Every model, PHAST or baseline, is an :class:`AbstractForecaster`: it predicts the next configuration along a whole
trajectory at once (for training) and rolls out one step at a time from a constant-size cache (for forecasting), never
re-running the prefix. :class:`Phast` is observer → canonicalizer → port-Hamiltonian transition, and adds the rollouts
that only a model with a state has: takeover and predict–correct.
"""

import functools
import math
import os
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.dynamics.integrators import AbstractTransition, Scalar, State
from phast.estimation.inputs import Held, Inputs, Past, held_before
from phast.estimation.observers import AbstractCanonicalizer, AbstractObserver


class AbstractForecaster(eqx.Module):
    """A causal predictor of configurations."""

    manifold: eqx.AbstractVar[Manifold]

    @abstractmethod
    def predict_next(
        self, q: Float[Array, "T n"], u: Inputs = None, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "T n"]:
        """Row t is the prediction of q_{t+1} from q_0 … q_t (teacher forced). A key is for training: dropout."""

    @abstractmethod
    def init_cache(self, context: Float[Array, "K n"], past: Past = None, *, horizon: int = 1) -> PyTree:
        """What :meth:`step` needs to know of the context and of the K - 1 inputs that acted between its samples.

        A cache that grows with what it has seen is made large enough for ``horizon`` steps.
        """

    @abstractmethod
    def step(self, cache: PyTree, u: Float[Array, " inputs"] | None = None) -> tuple[PyTree, Float[Array, " n"]]:
        """The next configuration, fed back into the cache."""


def autoregressive(
    model: AbstractForecaster, context: Float[Array, "K n"], horizon: int, u: Inputs = None, past: Past = None
) -> Float[Array, "H n"]:
    """Self-conditioned rollout: ``horizon`` configurations after the context. Row h of ``u`` acts over step h."""

    def body(cache, inputs):
        return model.step(cache, inputs)

    return jax.lax.scan(body, model.init_cache(context, past, horizon=horizon), u, length=horizon)[1]


class AbstractIdentifiable(AbstractForecaster):
    """A forecaster that exposes the physics that it has learned, and so has a physical state. Sampled every ``dt``."""

    dt: eqx.AbstractVar[float]

    @abstractmethod
    def learned_system(self) -> AbstractEnergetic:
        """V, M and D as they stand."""

    @abstractmethod
    def takeover(
        self, context: Float[Array, "K n"], horizon: int, u: Inputs = None, past: Past = None
    ) -> Float[Array, "H n"]:
        """Infer one state at the end of the context, then integrate open loop (Eq. 8)."""


def takeover(
    model: AbstractIdentifiable, context: Float[Array, "K n"], horizon: int, u: Inputs = None, past: Past = None
) -> Float[Array, "H n"]:
    """Takeover rollout: the counterpart of :func:`autoregressive`."""
    return model.takeover(context, horizon, u, past)


def roll_out(
    rollout: Callable,
    model: AbstractForecaster,
    contexts: Float[Array, "B K n"],
    horizon: int,
    u: PyTree = None,
    past: PyTree = None,
) -> Float[Array, "B H n"]:
    """:func:`autoregressive` or :func:`takeover` forecasts of many trajectories, shared out over the cores.

    ``u`` and ``past`` are those of one forecast, with an axis for trajectories before.
    """
    return shared_out(functools.partial(_roll_out, rollout, model, horizon), contexts, u, past)


@eqx.filter_jit
def _roll_out(rollout, model, horizon, contexts, u, past):
    return jax.vmap(lambda context, inputs, before: rollout(model, context, horizon, inputs, before))(contexts, u, past)


_SMALLEST_SHARE = 16


def cores() -> int:
    """How many cores this process may use: fewer than the machine has where workers share it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_out(run: Callable[..., PyTree], *batches: PyTree) -> PyTree:
    """``run(*batches)``, its trajectories (the leading axis of every array) shared out over the cores.

    A step is made of matrix products too small for XLA to split, so one thread per core, each with its share of the
    trajectories, is what keeps all of them busy.
    """
    count = jax.tree.leaves(batches)[0].shape[0]
    share = math.ceil(count / cores())
    if share < _SMALLEST_SHARE or share == count:
        return run(*batches)
    starts = [min(start, count - share) for start in range(0, count, share)]  # the last overlaps: one shape for all
    precise = jax.config.jax_enable_x64  # a thread does not know in which context it was started

    def part(start: int) -> PyTree:
        with jax.enable_x64(precise):
            return jax.block_until_ready(run(*jax.tree.map(lambda x: x[start : start + share], batches)))

    with ThreadPoolExecutor(len(starts)) as pool:
        parts = list(pool.map(part, starts))
    fresh = (len(starts) - 1) * share - starts[-1]
    parts[-1] = jax.tree.map(lambda x: x[fresh:], parts[-1])
    return jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *parts)


class AbstractFullState(eqx.Module):
    """A transition of whole states (q, p), for data in which both are observed."""

    @abstractmethod
    def __call__(
        self, q: Float[Array, " n"], p: Float[Array, " n"], u: Held | Float[Array, " inputs"] | None = None
    ) -> State:
        """The state one sample later."""

    def rollout(
        self, q: Float[Array, " n"], p: Float[Array, " n"], horizon: int, u: Inputs = None
    ) -> tuple[Float[Array, "H n"], Float[Array, "H n"]]:
        """States after 1 … ``horizon`` steps from (q, p)."""

        def body(state, inputs):
            state = self(*state, inputs)
            return state, state

        return jax.lax.scan(body, (q, p), u, length=horizon)[1]


class Core(AbstractFullState):
    """The PHAST core transition: a port-Hamiltonian system and the time step Φ_dt that moves it. Full-state models of
    PHAST are one of these and nothing else."""

    system: AbstractEnergetic
    transition: AbstractTransition

    def __call__(self, q, p, u=None):
        held = u if isinstance(u, Held) else Held(u)
        return self.transition(self.system, q, p, held.u, 1.0 if held.stretch is None else held.stretch)


class Filtered(NamedTuple):
    """What is known after each measurement: states, their covariance, and the innovation."""

    q: Float[Array, "*samples n"]
    p: Float[Array, "*samples n"]
    covariance: Float[Array, "*samples twice_n twice_n"]
    innovation: Float[Array, "*samples n"]


class AbstractFilter(eqx.Module):
    """States from positions, one sample at a time with a cache of constant size; a recording is a scan of it."""

    @abstractmethod
    def start(self, q: Float[Array, " n"], held: Held | Float[Array, " inputs"] | None = None) -> PyTree:
        """The cache before the first sample ``q``. Of ``held``, only its form matters: it is that of later samples."""

    @abstractmethod
    def update(
        self, cache: PyTree, q: Float[Array, " n"], held: Held | Float[Array, " inputs"] | None = None
    ) -> tuple[PyTree, Filtered]:
        """The cache after one more sample, and what is known then.

        ``held`` acted over the step that led to this sample; before the first one nothing did, and it is not used.
        """

    def along(self, q: Float[Array, "T n"], u: Inputs = None) -> Filtered:
        """What is known after each sample of a recording. Row t of ``u`` acts from sample t to sample t + 1."""
        before = held_before(u)
        start = self.start(q[0], jax.tree.map(lambda x: x[0], before))
        return jax.lax.scan(lambda cache, sample: self.update(cache, *sample), start, (q, before))[1]


class ExtendedKalmanFilter(AbstractFilter):
    """Predict–correct around a core transition, measuring q at every step.

    ``measurement_noise`` is the standard deviation of a position, ``process_noise`` that of the model's own error in p
    per step. Starts at rest at the first position, with a momentum as uncertain as one unit per sample.
    """

    core: Core
    manifold: Manifold
    dt: float
    measurement_noise: Scalar = 1e-3
    process_noise: Scalar = 1e-3

    def start(self, q, held=None):
        doubt = jnp.concatenate([jnp.full_like(q, self.measurement_noise), jnp.full_like(q, 1.0 / self.dt)])
        return jnp.concatenate([q, jnp.zeros_like(q)]), jnp.diag(doubt), jnp.asarray(False)

    def update(self, cache, q, held=None):
        """Covariances as P = R Rᵀ, moved by QR: from 1/dt down to the noise, P would lose its sign in float32."""
        n = self.manifold.size
        x, root = self._ahead(cache, held)
        innovation = self.manifold.difference(q, x[:n])
        above = jnp.concatenate([self.measurement_noise * jnp.eye(n), root[:n]], axis=1)
        below = jnp.concatenate([jnp.zeros((2 * n, n)), root], axis=1)
        joint = _lower_root(jnp.concatenate([above, below]))
        gain = jax.scipy.linalg.solve_triangular(joint[:n, :n], joint[n:, :n].T, lower=True, trans=1).T
        x, root = x + gain @ innovation, joint[n:, n:]
        covariance = root @ root.T
        known = Filtered(x[:n], x[n:], 0.5 * (covariance + covariance.T), innovation)
        return (x, root, jnp.asarray(True)), known

    def _ahead(self, cache, held):
        """The state and the root of its covariance one step later; as they are before the first sample."""
        x, root, begun = cache
        n = self.manifold.size

        def advance(x):
            return (jnp.concatenate(self.core(x[:n], x[n:], held)),) * 2

        process = jnp.concatenate([jnp.full(n, 1e-6), jnp.full(n, self.process_noise)])
        jacobian, ahead = jax.jacfwd(advance, has_aux=True)(x)
        moved = _lower_root(jnp.concatenate([jacobian @ root, jnp.diag(process)], axis=1))
        return jnp.where(begun, ahead, x), jnp.where(begun, moved, root)


def _lower_root(wide: Float[Array, "rows columns"]) -> Float[Array, "rows rows"]:
    """The lower triangular L with L Lᵀ = W Wᵀ."""
    return jnp.linalg.qr(wide.T, mode="r").T


class Phast(AbstractIdentifiable):
    """The q-only pipeline of section 3.1: velocity observer, canonicalizer, core transition."""

    core: Core
    observer: AbstractObserver
    canonicalizer: AbstractCanonicalizer
    manifold: Manifold
    dt: float

    def learned_system(self) -> AbstractEnergetic:
        return self.core.system

    def states(self, q: Float[Array, "T n"]) -> tuple[Float[Array, "T n"], Float[Array, "T n"]]:
        """(q_t, p̂_t) along a trajectory of positions."""
        v = self.observer.velocities(q, self.dt)
        return q, jax.vmap(self._momentum)(q, v)

    def predict_next(self, q, u=None, *, key=None):
        return self.predict_states(q, u)[0]

    def predict_states(self, q: Float[Array, "T n"], u: Inputs = None):
        """(q̂_{t+1}, p̂_{t+1}) from q_0 … q_t, for every t."""
        if u is None:
            return jax.vmap(self.core)(*self.states(q))
        return jax.vmap(self.core)(*self.states(q), u)

    def init_cache(self, context, past=None, *, horizon=1):
        seen, v = self.observer.start(context[0])

        def body(carry, q):
            return self.observer.update(carry[0], q, self.dt), None

        (seen, v), _ = jax.lax.scan(body, (seen, v), context[1:])
        return seen, context[-1], v

    def step(self, cache, u=None):
        seen, q, v = cache
        q, _ = self.core(q, self._momentum(q, v), u)
        seen, v = self.observer.update(seen, q, self.dt)
        return (seen, q, v), q

    def state_after(self, context: Float[Array, "K n"]) -> State:
        """(q_{K-1}, p̂_{K-1}): the state from which a takeover begins."""
        _, q, v = self.init_cache(context)
        return q, self._momentum(q, v)

    def takeover(self, context, horizon, u=None, past=None):
        return self.core.rollout(*self.state_after(context), horizon, u)[0]

    def filter(
        self,
        q: Float[Array, "T n"],
        u: Inputs = None,
        *,
        measurement_noise: Scalar = 1e-3,
        process_noise: Scalar = 1e-3,
    ) -> Filtered:
        """Predict–correct along a recording: see :class:`ExtendedKalmanFilter`."""
        return ExtendedKalmanFilter(self.core, self.manifold, self.dt, measurement_noise, process_noise).along(q, u)

    def _momentum(self, q, v):
        return self.canonicalizer(self.core.system, q, v)


class PhastBlock(eqx.Module):
    """A sequence-model layer around the transition (appendix C.1): project, step, project back, add.

    Maps a sequence of d features to another, so that blocks stack like any other layer.
    """

    core: Core
    down: Float[Array, "d twice_n"]
    up: Float[Array, "twice_n d"]

    @classmethod
    def create(cls, core: Core, width: int, n: int, *, key: PRNGKeyArray) -> "PhastBlock":
        down_key, up_key = jax.random.split(key)
        down = jax.random.normal(down_key, (width, 2 * n)) * width**-0.5
        up = jax.random.normal(up_key, (2 * n, width)) * (2 * n) ** -0.5
        return cls(core, down, up)

    def __call__(self, x: Float[Array, "T d"]) -> Float[Array, "T d"]:
        state = x @ self.down
        n = state.shape[1] // 2
        moved = jnp.concatenate(jax.vmap(self.core)(state[:, :n], state[:, n:]), axis=-1)
        return x + (moved - state) @ self.up
