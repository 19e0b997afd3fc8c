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
from jaxtyping import Array, Bool, Float

from phast.components.lowrank import solve_pentadiagonal, solve_spd
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.dynamics.integrators import DiscreteGradient, ImplicitMidpoint, Transition, leapfrog
from phast.estimation.forecaster import AbstractIdentifiable, Core, Filtered
from phast.estimation.inputs import Held, Inputs, Past, steps_of

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


# --- the smoother's guess --------------------------------------------------------------------------------------------


def smooth_map(
    y: Float[Array, "K n"],
    weights: Float[Array, " K"],
    dt: float,
    stretch: Float[Array, " steps"] | None = None,
    *,
    stiffness: float = 1e-3,
) -> tuple[Float[Array, "K n"], Float[Array, "K n"]]:
    """MAP smoothing under nearly constant velocity: (positions, velocities) at every sample.

    Minimises Σ w (q - y)² + stiffness · Σ (second differences)², divided ones over steps of ``stretch`` times dt;
    samples of weight zero are filled in.
    """
    count = y.shape[0]
    steps = jnp.ones(count - 1, y.dtype) if stretch is None else stretch
    if count < 3:
        slope = (y[-1:] - y[:1]) / (dt * (jnp.sum(steps) if count > 1 else 1.0))
        return y, jnp.broadcast_to(slope, y.shape)
    usual = jnp.mean(steps)
    rate = jnp.diff(jnp.eye(count, dtype=y.dtype), axis=0) * (usual / steps)[:, None]
    bend = jnp.diff(rate, axis=0) * (2.0 * usual / (steps[1:] + steps[:-1]))[:, None]
    smooth = solve_pentadiagonal(jnp.diag(weights) + stiffness * bend.T @ bend, weights[:, None] * y)
    return smooth, _slopes(smooth, dt * steps[:, None])


def _slopes(x: Float[Array, "K n"], steps: Float[Array, "before 1"]) -> Float[Array, "K n"]:
    """Second-order derivatives on the samples, one-sided at the ends."""
    rate, left, right = jnp.diff(x, axis=0) / steps, steps[:-1], steps[1:]
    share, bend = left / (left + right), jnp.diff(rate, axis=0)
    inner = rate[:-1] + share * bend
    first, last = rate[0] - share[0] * bend[0], rate[-1] + (1.0 - share[-1]) * bend[-1]
    return jnp.concatenate([first[None], inner, last[None]])


def smoothed_ends(
    core: Core,
    manifold: Manifold,
    dt: float,
    y: Float[Array, "K n"],
    weights: Float[Array, " K"],
    u: Past = None,
) -> list[Float[Array, " twice_n"]]:
    """The smoother's states (q, p) at the first and at the last sample."""
    states = _smoothed(core, manifold, dt, y, weights, u)
    return [states[0], states[-1]]


def _smoothed(core: Core, manifold: Manifold, dt: float, y, weights, u: Past) -> Float[Array, "K twice_n"]:
    """The smoother's states at every sample."""
    stretch = u.stretch if isinstance(u, Held) else None
    smooth, slopes = smooth_map(unwrapped(manifold, y), weights, dt, stretch)
    return jnp.concatenate([smooth, jax.vmap(core.system.momentum)(smooth, slopes)], axis=1)


def unwrapped(manifold: Manifold, y: Float[Array, "K n"]) -> Float[Array, "K n"]:
    """The same positions without 2π jumps in the angles."""
    return y[:1] + jnp.concatenate([jnp.zeros_like(y[:1]), jnp.cumsum(manifold.difference(y[1:], y[:-1]), 0)])


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
    seen = unwrapped(manifold, y)
    still = jnp.sum(weights * (seen - jnp.average(seen, axis=0, weights=present)) ** 2)
    count = jnp.sum(present) * y.shape[1]
    likely = noise**2 * (count + _UNLIKELY * jnp.sqrt(2.0 * count))
    return ~(jnp.isfinite(fit.cost) & (fit.misfit <= jnp.maximum(still, likely) + 1e-12 * jnp.sum(weights * seen**2)))


_UNLIKELY = 4.0  # standard deviations of the sum of squares that noise leaves


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

    def slide(self, q: Float[Array, "T n"], u: Inputs = None) -> tuple[Float[Array, "T twice_n"], Array]:
        """States and their covariances at every sample, each from the last ``window`` positions.

        Windows differ by one sample, so one Gauss–Newton step from where the last one ended is enough, and of its
        slopes only that of the newest step is new: the others stay as they were when they entered the window. A window
        that the model cannot explain is left to the smoother, and the next one starts from there.
        """
        (length, n), observer = q.shape, self.observer
        window = min(self.window, length)
        cell = jnp.arange(window)
        typical, share = balance(self.noise, n)

        def advance(x, u_t):
            return jnp.concatenate(observer(x[:n], x[n:], u_t))

        def one(carry, t):
            start, slopes = carry
            first = jnp.maximum(t - window + 1, 0)
            here = t - first
            y = jax.lax.dynamic_slice_in_dim(q, first, window)
            inputs = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, window - 1), u)
            present = (cell <= here).astype(q.dtype)
            weights = present[:, None] * share
            begin = jnp.eye(2 * n, dtype=q.dtype)
            flow = jax.lax.scan(lambda f, a: (a @ f,) * 2, begin, slopes[:-1])[1]
            flow = jnp.concatenate([begin[None], flow])
            before = _weighed(observer, self.manifold, y, weights, _path(observer, start, window, inputs), flow)
            moved = _path(observer, start + step_down(before.normal, before.gradient, 1e-9), window, inputs)
            after = _weighed(observer, self.manifold, y, weights, moved, flow)
            fit = jax.tree.map(lambda new, old: jnp.where(after.cost < before.cost, new, old), after, before)
            covariance = _covariance(fit, here, typical, n * (here + 1.0))
            lost = _unexplained(self.manifold, y, weights, present, fit, typical)
            path = jnp.where(lost, _smoothed(observer, self.manifold, self.dt, y, present, inputs), fit.path)
            state = path[here]
            slopes = slopes.at[here].set(jax.jacfwd(advance)(state, jax.tree.map(lambda x: x[t], u)))
            full = here == window - 1
            return (path[jnp.where(full, 1, 0)], jnp.where(full, jnp.roll(slopes, -1, axis=0), slopes)), (
                state,
                covariance,
            )

        start = jnp.concatenate([q[0], observer.system.rest(q[0])])
        slopes = jnp.broadcast_to(jnp.eye(2 * n, dtype=q.dtype), (window, 2 * n, 2 * n))
        return jax.lax.scan(one, (start, slopes), jnp.arange(length))[1]

    def predict_next(self, q, u=None, *, key=None):
        n = q.shape[1]
        states, _ = self.slide(q, u)
        return self._ahead(states[:, :n], states[:, n:], u)[0]

    def filter(self, q: Float[Array, "T n"], u: Inputs = None) -> Filtered:
        """What is known after each measurement, from the last ``window`` of them."""
        n = q.shape[1]
        states, covariance = self.slide(q, u)
        ahead = self._ahead(states[:-1, :n], states[:-1, n:], steps_of(u, 0, -1))[0]
        surprise = self.manifold.difference(q[1:], ahead)
        return Filtered(
            states[:, :n], states[:, n:], covariance, jnp.concatenate([jnp.zeros_like(surprise[:1]), surprise])
        )

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
