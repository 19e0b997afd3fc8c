"""The standard deviation of a forecast, to first order: covariances of coefficients and state, propagated through it.

Coefficients have the covariance of a Laplace approximation at the fit (:class:`Evidence`). The estimated state depends
on them: it moves by one Gauss–Newton step, as the implicit function theorem says; its own covariance, from the noise of
the context, is added. Model error is not noise: the spread is compared once with the errors of forecasts over the
training data, and inflated by one factor where it is too small. The noise of a measurement is added, not inflated.
"""

import dataclasses
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from scipy.special import expit

from phast.data.trajectories import Trajectories
from phast.errors import InputError
from phast.estimation.forecaster import Core, shared_out
from phast.estimation.inputs import held_over, steps_of, steps_within
from phast.estimation.moving_horizon import ModelAware, balance, explain, step_down
from phast.fitting.coefficients import coefficients_of, through_softplus

_INSIDE = 0.6827  # of normal errors, within one standard deviation
_LONGEST, _WINDOWS = 100, 64  # of the forecasts by which a spread is judged
_ANYWHERE = np.pi / np.sqrt(3.0)  # the deviation of an angle about which nothing is known


class Spread(NamedTuple):
    """Forecasts and one standard deviation of what is measured around them, by trajectory, step and coordinate."""

    q: Float[np.ndarray, "*batch H n"]
    deviation: Float[np.ndarray, "*batch H n"]


def spread(
    model: ModelAware, contexts: Float[Array, "B K n"], horizon: int, u: PyTree = None, past: PyTree = None
) -> Spread:
    """The model's forecasts and their standard deviations; ``u`` and ``past`` as for a rollout, batched."""
    if model.evidence is None:
        raise InputError("this model carries no evidence of its fit: fit it again to have a spread")
    q, carried = _carried(model, contexts, horizon, u, past)
    deviation = np.hypot(model.evidence.inflation * carried, model.noise)
    limit = np.where(np.asarray(model.manifold.circles), _ANYWHERE, np.inf)
    return Spread(q, np.minimum(deviation, limit))


def _carried(model: ModelAware, contexts, horizon: int, u: PyTree, past: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Forecasts, and the deviations of the motion itself that coefficients and states give them."""
    root = _root(jnp.asarray(model.evidence.covariance))
    bare = dataclasses.replace(model, evidence=None)  # whose numbers would each compile anew
    q, variance = shared_out(functools.partial(_forecasts, bare, root, horizon), contexts, u, past)
    return np.asarray(q), np.sqrt(np.asarray(variance))


@eqx.filter_jit
def _forecasts(model: ModelAware, root: Float[Array, "k k"], horizon: int, contexts, u, past) -> tuple[Array, Array]:
    theta, rebuild = coefficients_of(model.core.system)
    n, carrier = model.manifold.size, model.observer.transition

    def one(context, inputs, before):
        state = model.estimate(context, before)
        y = context[-model.window :]
        before = steps_of(before, max(context.shape[0] - model.window, 0))
        weights = jnp.ones((y.shape[0], 1)) * balance(model.noise, n)[1]
        start = model.start(context, before)

        def last(core, x):
            q, p = core.rollout(x[:n], x[n:], y.shape[0] - 1, before)
            return jnp.concatenate([q[-1], p[-1]])

        settled = last(Core(model.core.system, carrier), start)

        def path(theta, shift):
            core = Core(rebuild(theta), carrier)
            here = explain(core, model.manifold, y, weights, start, before)
            moved = start + step_down(here.normal, here.gradient, 0.0)
            x = jnp.concatenate([state.q, state.p]) + last(core, moved) - settled + shift
            return core.rollout(x[:n], x[n:], horizon, inputs)[0]

        still = jnp.zeros(2 * n)
        by_coefficient = jax.vmap(lambda r: jax.jvp(lambda t: path(t, still), (theta,), (r,))[1])(root.T)
        by_state = jax.jacfwd(path, argnums=1)(theta, still)
        variance = jnp.sum(by_coefficient**2, axis=0)
        variance += jnp.einsum("hna,ab,hnb->hn", by_state, state.covariance, by_state)
        return model.core.rollout(state.q, state.p, horizon, inputs)[0], variance

    return jax.vmap(one)(contexts, u, past)


def _root(covariance: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """R with R Rᵀ = covariance, also where that is singular or, by rounding, a little less than positive."""
    scale = jnp.sqrt(jnp.maximum(jnp.diag(covariance), jnp.finfo(covariance.dtype).tiny))
    values, vectors = jnp.linalg.eigh(covariance / jnp.outer(scale, scale))
    return scale[:, None] * vectors * jnp.sqrt(jnp.maximum(values, 0.0))


def drawn(model: ModelAware, count: int, *, seed: int = 0) -> Float[np.ndarray, "count k"]:
    """Coefficients of systems that the data of the fit leave possible, in the raveled order of the trained ones.

    Normal, with the covariance of the fit, as wide as its forecasts err. What softplus makes positive is drawn by its
    value, to first order, and is zero where that would be negative.
    """
    if model.evidence is None:
        raise InputError("this model carries no evidence of its fit: fit it again to draw from its spread")
    theta = np.asarray(coefficients_of(model.core.system)[0])
    root = np.asarray(_root(jnp.asarray(model.evidence.covariance)))
    steps = model.evidence.inflation * np.random.default_rng(seed).normal(size=(count, theta.size)) @ root.T
    value = np.maximum(np.logaddexp(0.0, theta) + expit(theta) * steps, _ZERO)
    positive = value + np.log(-np.expm1(-value))
    return np.where(through_softplus(model.core.system), positive, theta + steps)


_ZERO = 2e-9  # units of a positive coefficient: none


def calibrated(model: ModelAware, data: Trajectories, *, seed: int = 0) -> ModelAware:
    """The model with its spread widened to what forecasts over ``data`` err: two in three lie within one deviation."""
    horizon = min(_LONGEST, data.length - model.window)
    if horizon < 1:
        return model
    windows = data.windows(model.window + horizon, max(1, horizon // 2))
    chosen = np.random.default_rng(seed).permutation(len(windows))[:_WINDOWS]
    windows = windows.subset(np.sort(chosen))
    held, q = held_over(windows), jnp.asarray(windows.q)
    past, future = steps_within(held, 0, model.window - 1), steps_within(held, model.window - 1)
    told, carried = _carried(model, q[:, : model.window], horizon, future, past)
    error = np.asarray(data.manifold.difference(jnp.asarray(told), q[:, model.window :]))
    beyond = np.sqrt(np.maximum(error**2 - np.square(model.noise), 0.0))  # what noise does not explain
    needed = beyond / np.maximum(carried, np.finfo(float).tiny)
    needed = needed[np.isfinite(needed)]
    wider = max(1.0, float(np.quantile(needed, _INSIDE))) if len(needed) else 1.0
    return eqx.tree_at(lambda m: m.evidence.inflation, model, wider)
