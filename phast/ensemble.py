"""How far a forecast may be off: an ensemble of models that the data allow, each with a state that the context allows.

Coefficients are drawn from their Laplace posterior (the covariance that a sharp fit leaves, :class:`Evidence`), every
member fits its own state to the context, and what noise leaves open of that state is drawn too. A model's own error is
no noise, so the spread is compared once with the errors of forecasts over the recording that was learned from, and
widened by what it lacked.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.datasets import Trajectories
from phast.errors import InputError
from phast.forecaster import Inputs, Past, shared_out
from phast.horizon import ModelAware
from phast.identify import coefficients_of, held_over

MEMBERS = 32
_HALF = (0.1587, 0.8413)  # quantiles one standard deviation below and above
_LONGEST, _WINDOWS = 100, 64  # of the forecasts by which a spread is judged


class Spread(NamedTuple):
    """Forecasts and one standard deviation around them, for each trajectory, step and coordinate."""

    q: Float[np.ndarray, "B H n"]
    deviation: Float[np.ndarray, "B H n"]


def spread(
    model: ModelAware,
    contexts: Float[Array, "B K n"],
    horizon: int,
    u: Inputs = None,
    past: Past = None,
    *,
    members: int = MEMBERS,
    seed: int = 0,
) -> Spread:
    """The model's own forecasts, and the spread of the ensemble around them. Robust to members that run away."""
    if model.evidence is None:
        raise InputError("this model carries no evidence of its fit to draw an ensemble from: learn it again")
    theta, _ = coefficients_of(model.core.system)
    draws = np.random.default_rng(seed).standard_normal((members, theta.size + 2 * model.manifold.size))
    draws[0] = 0.0  # the model itself
    paths = shared_out(functools.partial(_members, model, horizon, jnp.asarray(draws)), contexts, u, past)
    paths = np.asarray(paths)
    away = np.asarray(model.manifold.difference(jnp.asarray(paths[:, 1:]), jnp.asarray(paths[:, :1])))
    low, high = np.quantile(np.where(np.isfinite(away), away, 1e300), _HALF, axis=1)
    return Spread(paths[:, 0], model.evidence.inflation * 0.5 * (high - low))


@eqx.filter_jit
def _members(model: ModelAware, horizon: int, draws: Float[Array, "S k"], contexts, u, past) -> Float[Array, "B S H n"]:
    theta, rebuild = coefficients_of(model.core.system)
    root = _root(jnp.asarray(model.evidence.covariance))
    n = model.manifold.size

    def member(draw):
        other = eqx.tree_at(lambda m: m.core.system, model, rebuild(theta + root @ draw[: theta.size]))

        def one(context, inputs, before):
            state = other.estimate(context, before)
            x = jnp.concatenate([state.q, state.p]) + _root(state.covariance) @ draw[theta.size :]
            return other.core.rollout(x[:n], x[n:], horizon, inputs)[0]

        return jax.vmap(one)(contexts, u, past)

    return jnp.swapaxes(jax.lax.map(member, draws), 0, 1)


def _root(covariance: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """R with R Rᵀ = covariance, also where that is singular or, by rounding, a little less than positive."""
    scale = jnp.sqrt(jnp.maximum(jnp.diag(covariance), jnp.finfo(covariance.dtype).tiny))
    values, vectors = jnp.linalg.eigh(covariance / jnp.outer(scale, scale))
    return scale[:, None] * vectors * jnp.sqrt(jnp.maximum(values, 0.0))


def calibrated(model: ModelAware, data: Trajectories, *, seed: int = 0) -> ModelAware:
    """The model with its spread widened to what forecasts over ``data`` err: two in three lie within one deviation."""
    horizon = min(_LONGEST, data.length - model.window)
    if horizon < 1:
        return model
    windows = data.windows(model.window + horizon, max(1, horizon // 2))
    chosen = np.random.default_rng(seed).permutation(len(windows))[:_WINDOWS]
    windows = windows.subset(np.sort(chosen))
    held, q = held_over(windows), jnp.asarray(windows.q)
    past, future = (jax.tree.map(lambda x, cut=cut: x[:, cut], held) for cut in _around(model.window))
    told = spread(model, q[:, : model.window], horizon, future, past, seed=seed)
    error = np.abs(np.asarray(data.manifold.difference(jnp.asarray(told.q), q[:, model.window :])))
    lacking = np.quantile(error / np.maximum(told.deviation, np.finfo(float).tiny), _HALF[1] - _HALF[0])
    wider = model.evidence.inflation * max(1.0, float(lacking)) if np.isfinite(lacking) else 1.0
    return eqx.tree_at(lambda m: m.evidence.inflation, model, wider)


def _around(context: int) -> tuple[slice, slice]:
    """The steps between the samples of a context, and those after its last."""
    return slice(0, context - 1), slice(context - 1, None)
