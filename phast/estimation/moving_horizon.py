"""State estimation that knows the model: a moving-horizon (shooting) fit of the state to a window of positions.

The state x = (q, p) at the start of the window is fitted to all of its positions through the model itself,

    min_x  Σ_s w_s |q_s(x) - y_s|² / σ²  +  a weak prior on the momentum,

by a few damped Gauss–Newton steps from a MAP smoother's guess, and carried to the end of the window. What a finite
difference loses (half a step of acceleration, and all the noise) is what this keeps. Batched by ``vmap``,
differentiable, never NaN: where the fit explains the window worse than standing still would, the smoother's state is
returned and said so. Slid along a trajectory, one step per sample from where the last window ended, it is a filter.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from phast.components.lowrank import solve_spd
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.dynamics.integrators import DiscreteGradient, ImplicitMidpoint, Transition, leapfrog
from phast.estimation.forecaster import AbstractFilter, AbstractIdentifiable, Core, Filtered
from phast.estimation.inputs import Inputs, Past, nothing_held, steps_of
from phast.estimation.smoother import smoothed_ends, smoothed_path, unwrapped_path

ITERATIONS = 8
_WEAK_PRIOR = 1e-7  # of what one more sample would tell: it decides only where positions say nothing
Noise = float | tuple[float, ...]  # a standard deviation of positions, for all coordinates or for each; 0 is unknown


class StateEstimate(NamedTuple):
    """The state at the end of a window, how sure it is, and how well the window was explained.

    ``covariance`` is of (q, p); ``rms`` the root mean square of the position residuals; ``fell_back`` whether the
    smoother's state was used instead.
    """

    q: Float[Array, " n"]
    p: Float[Array, " n"]
    covariance: Float[Array, "twice_n twice_n"]
    rms: Float[Array, ""]
    fell_back: Bool[Array, ""]


# --- the fit ---------------------------------------------------------------------------------------------------------


class Explained(NamedTuple):
    """A start and what follows from it: the path through the window, its sensitivity, and the least-squares problem.

    Row s of ``flow`` is ∂x_s/∂x_0; ``normal`` and ``gradient`` are JᵀJ and Jᵀr of all weighted residuals, ``cost`` is
    r·r, and ``misfit`` the share of it that positions have.
    """

    path: Float[Array, "K twice_n"]
    flow: Float[Array, "K twice_n twice_n"]
    normal: Float[Array, "twice_n twice_n"]
    gradient: Float[Array, " twice_n"]
    cost: Float[Array, ""]
    misfit: Float[Array, ""]

    @property
    def start(self) -> Float[Array, " twice_n"]:
        return self.path[0]


def _path(core: Core, x: Float[Array, " twice_n"], count: int, u: Past) -> Float[Array, "K twice_n"]:
    n = x.shape[0] // 2
    q, p = core.rollout(x[:n], x[n:], count - 1, u)
    return jnp.concatenate([x[None], jnp.concatenate([q, p], axis=1)])


def explain(
    core: Core,
    manifold: Manifold,
    y: Float[Array, "K n"],
    weights: Float[Array, "K n"],
    x: Float[Array, " twice_n"],
    u: Past = None,
) -> Explained:
    """What the model makes of a window when it starts at x."""

    def trace(x):
        return (_path(core, x, y.shape[0], u),) * 2

    flow, path = jax.jacfwd(trace, has_aux=True)(x)
    return _weighed(core, manifold, y, weights, path, flow)


def _weighed(
    core: Core,
    manifold: Manifold,
    y: Float[Array, "K n"],
    weights: Float[Array, "K n"],
    path: Float[Array, "K twice_n"],
    flow: Float[Array, "K twice_n twice_n"],
) -> Explained:
    """The least-squares problem of a path through a window and its sensitivity to the start."""
    n = y.shape[1]
    root = jnp.sqrt(weights)
    off, slope = manifold.difference(path[:, :n], y) * root, flow[:, :n] * root[..., None]
    moved = sum(core.transition.timestep.pieces()) * core.system.mobility(y[0])  # by p, in a step
    weak = jnp.concatenate([jnp.zeros(n), weights[0] * (_WEAK_PRIOR * moved) ** 2])
    still = path[0].at[:n].set(0.0).at[n:].add(-core.system.rest(y[0]))
    normal = jnp.einsum("sia,sib->ab", slope, slope) + jnp.diag(weak)
    gradient = jnp.einsum("sia,si->a", slope, off) + weak * still
    misfit = jnp.sum(off**2)
    return Explained(path, flow, normal, gradient, misfit + jnp.dot(weak, still**2), misfit)


def step_down(normal: Float[Array, "k k"], gradient: Float[Array, " k"], damping: Float[Array, ""] | float):
    """One damped Gauss–Newton step, the same in any units."""
    ridge = (damping + 1e-14) * jnp.diag(normal)
    return -solve_spd(normal + jnp.diag(ridge), gradient)


def fit_window(
    core: Core,
    manifold: Manifold,
    dt: float,
    y: Float[Array, "K n"],
    weights: Float[Array, "K n"],
    u: Past = None,
    *,
    iterations: int = ITERATIONS,
) -> Explained:
    """The state at the first sample that explains the window best, sought from the smoother's guess."""
    present = (weights[:, 0] > 0).astype(y.dtype)
    start = smoothed_ends(core, manifold, dt, y, present, u)[0]
    return improve(core, manifold, y, weights, start, u, iterations=iterations)


def improve(
    core: Core,
    manifold: Manifold,
    y: Float[Array, "K n"],
    weights: Float[Array, "K n"],
    start: Float[Array, " twice_n"],
    u: Past = None,
    *,
    iterations: int,
) -> Explained:
    """Damped Gauss–Newton on the state at the first sample of a window, from ``start``: never worse than that."""

    def step(carry, _):
        best, damping = carry
        change = step_down(best.normal, best.gradient, damping)
        proposal = explain(core, manifold, y, weights, best.start + change, u)
        better = proposal.cost < best.cost  # False also where the proposal is not finite
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), proposal, best)
        return (best, jnp.where(better, 0.1, 10.0) * damping), None

    first = explain(core, manifold, y, weights, start, u)
    first = first._replace(cost=jnp.where(jnp.isfinite(first.cost), first.cost, jnp.inf))
    (best, _), _ = jax.lax.scan(step, (first, jnp.asarray(1e-3, y.dtype)), length=iterations)
    return best


def balance(noise: Noise, n: int) -> tuple[float, Float[np.ndarray, " n"]]:
    """The noise of a typical coordinate, and what a squared residual of each weighs beside one of that."""
    each = np.broadcast_to(np.asarray(noise, dtype=float), (n,))
    if not (each > 0.0).all():
        return 0.0, np.ones(n)
    typical = float(np.exp(np.mean(np.log(each))))
    return typical, (typical / each) ** 2


def _covariance(fit: Explained, here: int | Array, noise: float, measured: Float[Array, ""]):
    """Of the state at sample ``here``; the noise is estimated from the residuals where it is not given."""
    size = fit.normal.shape[0]
    variance = noise**2 if noise > 0.0 else fit.misfit / jnp.maximum(measured - size, 1.0)
    scale = 1.0 / jnp.sqrt(jnp.maximum(jnp.diag(fit.normal), jnp.finfo(fit.normal.dtype).tiny))
    scaled = fit.normal * jnp.outer(scale, scale) + 1e-14 * jnp.eye(size)
    inverse = jax.vmap(solve_spd, (None, 0))(scaled, jnp.eye(size)) * jnp.outer(scale, scale)
    flow = fit.flow[here]
    return variance * flow @ inverse @ flow.T


def estimate_state(
    core: Core,
    manifold: Manifold,
    dt: float,
    y: Float[Array, "K n"],
    weights: Float[Array, " K"] | None = None,
    u: Past = None,
    *,
    noise: Noise = 0.0,
    iterations: int = ITERATIONS,
) -> StateEstimate:
    """The state at the last sample of ``y``. ``noise`` = 0 estimates the scale from the residuals of the fit.

    Row s of ``u`` acts from sample s to sample s + 1: there are K - 1 of them.
    """
    count, n = y.shape
    present = jnp.ones(count, y.dtype) if weights is None else weights
    typical, share = balance(noise, n)
    weights = present[:, None] * share
    fit = fit_window(core, manifold, dt, y, weights, u, iterations=iterations)
    measured = jnp.sum(present) * n
    fell_back = _unexplained(manifold, y, weights, present, fit, typical)
    state = jnp.where(fell_back, smoothed_ends(core, manifold, dt, y, present, u)[1], fit.path[-1])
    rms = jnp.sqrt(fit.misfit / jnp.maximum(measured, 1.0))
    return StateEstimate(state[:n], state[n:], _covariance(fit, -1, typical, measured), rms, fell_back)


def _unexplained(manifold: Manifold, y, weights, present, fit: Explained, noise: float) -> Bool[Array, ""]:
    """Whether the model explains a window worse than standing still would, and worse than noise may make it look."""
    seen = unwrapped_path(manifold, y)
    still = jnp.sum(weights * (seen - jnp.average(seen, axis=0, weights=present)) ** 2)
    count = jnp.sum(present) * y.shape[1]
    likely = noise**2 * (count + _UNLIKELY * jnp.sqrt(2.0 * count))
    return ~(jnp.isfinite(fit.cost) & (fit.misfit <= jnp.maximum(still, likely) + 1e-12 * jnp.sum(weights * seen**2)))


_UNLIKELY = 4.0  # standard deviations of the sum of squares that noise leaves


# --- the filter ------------------------------------------------------------------------------------------------------


class Horizon(NamedTuple):
    """What a moving horizon remembers: its samples, what was held between them, and how the last window ended.

    Rows not yet filled weigh nothing. ``slopes`` are ∂x_{s+1}/∂x_s over the steps of the window, ``start`` is the state
    at the first sample of the next window, ``state`` that at the newest sample, and ``count`` how many there were.
    """

    y: Float[Array, "K n"]
    held: PyTree
    slopes: Float[Array, "steps twice_n twice_n"]
    start: Float[Array, " twice_n"]
    state: Float[Array, " twice_n"]
    count: Int[Array, ""]

    @property
    def here(self) -> Int[Array, ""]:
        """The row of the newest sample."""
        return jnp.minimum(self.count, self.y.shape[0]) - 1


class MovingHorizonFilter(AbstractFilter):
    """The state at each sample, from the last ``window`` positions.

    Windows differ by one sample, so one Gauss–Newton step from where the last one ended is enough, and of its slopes
    only that of the newest step is new: the others stay as they were when they entered the window. A window that the
    model cannot explain is left to the smoother, and the next one starts from there. States are fitted through
    ``observer``; the innovation is against the prediction of ``core``.
    """

    core: Core
    observer: Core
    manifold: Manifold
    dt: float
    window: int
    noise: Noise = 0.0

    def start(self, q, held=None):
        rest = jnp.concatenate([q, self.observer.system.rest(q)])
        steps, twice = self.window - 1, rest.shape[0]
        return Horizon(
            jnp.broadcast_to(q, (self.window, *q.shape)),
            jax.tree.map(lambda x: jnp.broadcast_to(x, (steps, *x.shape)), nothing_held(held)),
            jnp.broadcast_to(jnp.eye(twice, dtype=q.dtype), (steps, twice, twice)),
            rest,
            rest,
            jnp.asarray(0),
        )

    def update(self, cache, q, held=None):
        n, last = q.shape[0], cache.state
        innovation = self.manifold.difference(q, self.core(last[:n], last[n:], held)[0])
        seen = self._taken_in(cache, q, held)
        path, covariance = self._fitted(seen)
        after = seen._replace(start=path[jnp.where(seen.here == self.window - 1, 1, 0)], state=path[seen.here])
        innovation = jnp.where(cache.count > 0, innovation, jnp.zeros_like(q))
        return after, Filtered(after.state[:n], after.state[n:], covariance, innovation)

    def _taken_in(self, cache: Horizon, q, held) -> Horizon:
        """The window with one more sample, and without its first where it was full."""
        n, full = q.shape[0], cache.count == self.window
        here = jnp.minimum(cache.count, self.window - 1)

        def put(rows, new, at):
            return jnp.where(full, jnp.roll(rows, -1, axis=0), rows).at[at].set(new)

        def advance(x):
            return jnp.concatenate(self.observer(x[:n], x[n:], held))

        step = jnp.maximum(here - 1, 0)  # before the first sample there is none: the next one overwrites it
        return cache._replace(
            y=put(cache.y, q, here),
            held=jax.tree.map(lambda rows, new: put(rows, new, step), cache.held, held),
            slopes=put(cache.slopes, jax.jacfwd(advance)(cache.state), step),
            count=jnp.minimum(cache.count + 1, self.window),
        )

    def _fitted(self, seen: Horizon) -> tuple[Float[Array, "K twice_n"], Float[Array, "twice_n twice_n"]]:
        """The path through the window, and the covariance of the state at its newest sample."""
        n, here, observer, y = seen.y.shape[1], seen.here, self.observer, seen.y
        typical, share = balance(self.noise, n)
        present = (jnp.arange(self.window) <= here).astype(y.dtype)
        weights = present[:, None] * share
        begin = jnp.eye(2 * n, dtype=y.dtype)
        flow = jax.lax.scan(lambda f, a: (a @ f,) * 2, begin, seen.slopes)[1]
        flow = jnp.concatenate([begin[None], flow])
        path = _path(observer, seen.start, self.window, seen.held)
        before = _weighed(observer, self.manifold, y, weights, path, flow)
        moved = seen.start + step_down(before.normal, before.gradient, 1e-9)
        path = _path(observer, moved, self.window, seen.held)
        after = _weighed(observer, self.manifold, y, weights, path, flow)
        fit = jax.tree.map(lambda new, old: jnp.where(after.cost < before.cost, new, old), after, before)
        covariance = _covariance(fit, here, typical, n * (here + 1.0))
        lost = _unexplained(self.manifold, y, weights, present, fit, typical)
        smoothed = smoothed_path(observer, self.manifold, self.dt, y, present, seen.held)
        return jnp.where(lost, smoothed, fit.path), covariance


# --- the forecaster --------------------------------------------------------------------------------------------------


class Evidence(eqx.Module):
    """What the data of a fit say about its coefficients, in the raveled order of the system's trainable leaves.

    ``information`` is that of the data alone, ``covariance`` includes the smoothness prior; both as NumPy arrays, which
    nothing trains. ``rms`` is the root mean square of ``count`` position residuals. ``inflation`` is by how much the
    errors of forecasts over the data exceed the spread that the covariance gives them: a model's own error is no noise.
    Of ``windows`` that were to be fitted, ``windows_left_out`` took no part: no state near the first guess explained
    them.
    """

    information: np.ndarray
    covariance: np.ndarray
    rms: float
    count: int
    inflation: float = 1.0
    windows: int = 0
    windows_left_out: int = 0


class ModelAware(AbstractIdentifiable):
    """A forecaster whose observer is the model: states by :func:`estimate_state` over the last ``window`` samples.

    ``evidence`` is what its fit knows of how sure it is; None where it was not fitted to second order.
    """

    core: Core
    manifold: Manifold
    dt: float
    window: int = 10
    noise: Noise = 0.0
    evidence: Evidence | None = None

    def learned_system(self) -> AbstractEnergetic:
        return self.core.system

    @property
    def observer(self) -> Core:
        """What states are fitted through: the core, or where its step is a solve for exact energy, a quicker one of the
        same order, since a fit differentiates it over and over."""
        step = self.core.transition
        if not (isinstance(step, Transition) and isinstance(step.core, DiscreteGradient)):
            return self.core
        quicker = leapfrog() if self.core.system.separable else ImplicitMidpoint()
        return Core(self.core.system, Transition(quicker, step.damping, step.timestep))

    def estimate(self, context: Float[Array, "K n"], past: Past = None) -> StateEstimate:
        """The state at the end of a context, from its last ``window`` samples and the inputs between them."""
        past = steps_of(past, max(context.shape[0] - self.window, 0))
        return estimate_state(self.observer, self.manifold, self.dt, context[-self.window :], u=past, noise=self.noise)

    def start(self, context: Float[Array, "K n"], past: Past = None) -> Float[Array, " twice_n"]:
        """The state at the first of the last ``window`` samples that explains them best; ``past`` is theirs."""
        y = context[-self.window :]
        weights = jnp.ones((y.shape[0], 1)) * balance(self.noise, y.shape[1])[1]
        return fit_window(self.observer, self.manifold, self.dt, y, weights, past).start

    def state_filter(self, length: int | None = None) -> MovingHorizonFilter:
        """What estimates a state from one sample after the other; its window is no longer than a recording's length."""
        window = self.window if length is None else min(self.window, max(length, 2))
        return MovingHorizonFilter(self.core, self.observer, self.manifold, self.dt, window, self.noise)

    def filter(self, q: Float[Array, "T n"], u: Inputs = None) -> Filtered:
        """What is known after each measurement, from the last ``window`` of them."""
        return self.state_filter(len(q)).along(q, u)

    def predict_next(self, q, u=None, *, key=None):
        known = self.filter(q, u)
        return self._ahead(known.q, known.p, u)[0]

    def _ahead(self, q, p, u):
        return jax.vmap(self.core)(q, p) if u is None else jax.vmap(self.core)(q, p, u)

    def init_cache(self, context, past=None, *, horizon=1):
        state = self.estimate(context, past)
        return state.q, state.p

    def step(self, cache, u=None):
        """A generated position is no measurement: conditioned on the context, the state after it is the model's own."""
        q, p = self.core(*cache, u)
        return (q, p), q

    def takeover(self, context, horizon, u=None, past=None):
        state = self.estimate(context, past)
        return self.core.rollout(state.q, state.p, horizon, u)[0]
