"""State estimation that knows the model: a moving-horizon (shooting) fit of the state to a window of positions.

The state x = (q, p) at the start of the window is fitted to all of its positions through the model itself,

    min_x  Σ_s w_s |q_s(x) - y_s|² / σ²  +  a weak prior on the momentum,

by a few damped Gauss–Newton steps from a MAP smoother's guess, and carried to the end of the window. What a finite
difference loses (half a step of acceleration, and all the noise) is what this keeps. Batched by ``vmap``,
differentiable, never NaN: where the fit does not improve on the smoother, the smoother's state is returned and said so.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from phast.components.lowrank import solve_spd
from phast.forecaster import AbstractIdentifiable, Core
from phast.hamiltonian import PortHamiltonian
from phast.manifold import Manifold

ITERATIONS = 8
_WARM_ITERATIONS = 3
_WEAK_PRIOR = 1e-7  # relative weight of "p is near zero": decides only where positions say nothing


class StateEstimate(NamedTuple):
    """The state at the end of a window, how sure it is, and how well the window was explained.

    ``covariance`` is of (q, p); ``rms`` the root mean square of the position residuals; ``fell_back`` whether the
    smoother's state had to stand in.
    """

    q: Float[Array, " n"]
    p: Float[Array, " n"]
    covariance: Float[Array, "twice_n twice_n"]
    rms: Float[Array, ""]
    fell_back: Bool[Array, ""]


def smooth_map(
    y: Float[Array, "K n"], weights: Float[Array, " K"], dt: float, stiffness: float = 1e-3
) -> tuple[Float[Array, "K n"], Float[Array, "K n"]]:
    """MAP smoothing under nearly constant velocity: (positions, velocities) at every sample.

    Minimises Σ w (q - y)² + stiffness · Σ (second differences)²; samples of weight zero are filled in.
    """
    count = y.shape[0]
    if count < 3:
        slope = (y[-1:] - y[:1]) / (dt * max(count - 1, 1))
        return y, jnp.broadcast_to(slope, y.shape)
    bend = jnp.diff(jnp.eye(count, dtype=y.dtype), n=2, axis=0)
    smooth = jnp.linalg.solve(jnp.diag(weights) + stiffness * bend.T @ bend, weights[:, None] * y)
    return smooth, _slopes(smooth, dt)


def _slopes(x: Float[Array, "K n"], dt: float) -> Float[Array, "K n"]:
    """Second-order derivatives on the samples, one-sided at the ends."""
    first = (-1.5 * x[0] + 2.0 * x[1] - 0.5 * x[2]) / dt
    last = (1.5 * x[-1] - 2.0 * x[-2] + 0.5 * x[-3]) / dt
    return jnp.concatenate([first[None], (x[2:] - x[:-2]) / (2.0 * dt), last[None]])


class WindowFit(NamedTuple):
    """The state (q, p) at the start of a window that explains its positions best, beside the smoother's."""

    start: Float[Array, " twice_n"]
    cost: Float[Array, ""]
    smooth: Float[Array, "K n"]
    slopes: Float[Array, "K n"]


def fit_window(
    core: Core,
    manifold: Manifold,
    dt: float,
    y: Float[Array, "K n"],
    weights: Float[Array, " K"],
    iterations: int = ITERATIONS,
    guess: Float[Array, " twice_n"] | None = None,
) -> WindowFit:
    """Damped Gauss–Newton on the state at the first sample, from the smoother's guess unless another is given."""
    unwrapped = y[:1] + jnp.concatenate([jnp.zeros_like(y[:1]), jnp.cumsum(manifold.difference(y[1:], y[:-1]), 0)])
    smooth, slopes = smooth_map(unwrapped, weights, dt)
    residual = _window_residual(core, manifold, y, weights)

    def improve(carry, _):
        x, damping, cost = carry
        jacobian = jax.jacfwd(residual)(x)
        normal = jacobian.T @ jacobian
        ridge = damping * jnp.diag(normal) + 1e-14 * jnp.trace(normal)
        proposal = x - solve_spd(normal + jnp.diag(ridge), jacobian.T @ residual(x))
        new_cost = jnp.sum(residual(proposal) ** 2)
        better = new_cost < cost  # False also where the proposal is not finite
        chosen = (
            jnp.where(better, proposal, x),
            jnp.where(better, 0.1, 10.0) * damping,
            jnp.where(better, new_cost, cost),
        )
        return chosen, None

    start = jnp.concatenate([smooth[0], core.system.momentum(smooth[0], slopes[0])]) if guess is None else guess
    cost = jnp.sum(residual(start) ** 2)
    begun = (start, jnp.asarray(1e-3, y.dtype), jnp.where(jnp.isfinite(cost), cost, jnp.inf))
    (x, _, cost), _ = jax.lax.scan(improve, begun, length=iterations)
    return WindowFit(x, cost, smooth, slopes)


def _window_residual(core: Core, manifold: Manifold, y: Float[Array, "K n"], weights: Float[Array, " K"]):
    n = y.shape[1]
    steps = manifold.difference(y[1:], y[:-1]) * weights[1:, None]
    weak = _WEAK_PRIOR * jnp.sqrt(jnp.mean(steps**2) + 1e-12)

    def residual(x):
        q, _ = core.rollout(x[:n], x[n:], y.shape[0] - 1)
        off = manifold.difference(jnp.concatenate([x[None, :n], q]), y) * jnp.sqrt(weights)[:, None]
        return jnp.concatenate([off.reshape(-1), weak * x[n:]])

    return residual


def estimate_state(
    core: Core,
    manifold: Manifold,
    dt: float,
    y: Float[Array, "K n"],
    weights: Float[Array, " K"] | None = None,
    *,
    noise: float = 0.0,
    iterations: int = ITERATIONS,
) -> StateEstimate:
    """The state at the last sample of ``y``. ``noise`` = 0 estimates the scale from the residuals of the fit."""
    count, n = y.shape
    weights = jnp.ones(count, y.dtype) if weights is None else weights
    fit = fit_window(core, manifold, dt, y, weights, iterations)

    def end(x):
        q, p = core.rollout(x[:n], x[n:], count - 1)
        return jnp.concatenate([q[-1], p[-1]])

    measured = jnp.sum(weights) * n
    variance = noise**2 if noise > 0.0 else fit.cost / jnp.maximum(measured - 2 * n, 1.0)
    jacobian = jax.jacfwd(_window_residual(core, manifold, y, weights))(fit.start)
    normal = jacobian.T @ jacobian
    flow = jax.jacfwd(end)(fit.start)
    covariance = variance * flow @ jnp.linalg.inv(normal + 1e-14 * jnp.trace(normal) * jnp.eye(2 * n)) @ flow.T
    fell_back = ~jnp.isfinite(fit.cost)
    smoothed = jnp.concatenate([fit.smooth[-1], core.system.momentum(fit.smooth[-1], fit.slopes[-1])])
    state = jnp.where(fell_back, smoothed, end(fit.start))
    return StateEstimate(state[:n], state[n:], covariance, jnp.sqrt(fit.cost / jnp.maximum(measured, 1.0)), fell_back)


class ModelAware(AbstractIdentifiable):
    """A forecaster whose observer is the model: states by :func:`estimate_state` over the last ``window`` samples."""

    core: Core
    manifold: Manifold
    dt: float
    window: int = 10
    noise: float = 0.0

    def learned_system(self) -> PortHamiltonian:
        return self.core.system

    def estimate(self, context: Float[Array, "K n"]) -> StateEstimate:
        """The state at the end of a context, from its last ``window`` samples."""
        return estimate_state(self.core, self.manifold, self.dt, context[-self.window :], noise=self.noise)

    def predict_next(self, q, u=None):
        """One fit per sample to the last ``window`` positions, each begun from where the one before it ended."""
        length, n = q.shape
        window = min(self.window, length)
        cell = jnp.arange(window)

        def one(start, inputs):
            t, u_t = inputs
            first = jnp.maximum(t - window + 1, 0)
            y = jax.lax.dynamic_slice_in_dim(q, first, window)
            weights = (cell <= t - first).astype(q.dtype)
            x = fit_window(self.core, self.manifold, self.dt, y, weights, _WARM_ITERATIONS, start).start
            qs, ps = self.core.rollout(x[:n], x[n:], window - 1)
            here = t - first
            state = jnp.concatenate([x[None, :n], qs])[here], jnp.concatenate([x[None, n:], ps])[here]
            moves = t >= window - 1
            start = jnp.where(moves, jnp.concatenate([qs[0], ps[0]]), x)
            return start, self.core(*state, u_t)[0]

        begin = jnp.concatenate([q[0], jnp.zeros_like(q[0])])
        return jax.lax.scan(one, begin, (jnp.arange(length), u))[1]

    def init_cache(self, context):
        state = self.estimate(context)
        return state.q, state.p

    def step(self, cache, u=None):
        """A generated position is no measurement: conditioned on the context, the state after it is the model's own."""
        q, p = self.core(*cache, u)
        return (q, p), q

    def takeover(self, context, horizon, u=None):
        state = self.estimate(context)
        return self.core.rollout(state.q, state.p, horizon, u)[0]
