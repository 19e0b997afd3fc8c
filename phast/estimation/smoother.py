"""A MAP smoother under nearly constant velocity: the guess from which states are fitted."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from phast.components.lowrank import solve_pentadiagonal
from phast.data.manifold import Manifold
from phast.estimation.forecaster import Core
from phast.estimation.inputs import Held, Past


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
    states = smoothed_path(core, manifold, dt, y, weights, u)
    return [states[0], states[-1]]


def smoothed_path(core: Core, manifold: Manifold, dt: float, y, weights, u: Past) -> Float[Array, "K twice_n"]:
    """The smoother's states at every sample."""
    stretch = u.stretch if isinstance(u, Held) else None
    smooth, slopes = smooth_map(unwrapped_path(manifold, y), weights, dt, stretch)
    return jnp.concatenate([smooth, jax.vmap(core.system.momentum)(smooth, slopes)], axis=1)


def unwrapped_path(manifold: Manifold, y: Float[Array, "K n"]) -> Float[Array, "K n"]:
    """The same positions without 2π jumps in the angles."""
    return y[:1] + jnp.concatenate([jnp.zeros_like(y[:1]), jnp.cumsum(manifold.difference(y[1:], y[:-1]), 0)])
