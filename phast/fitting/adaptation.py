"""Test-time adaptation: coefficients that a user names are refined on the burn-in window alone, jointly with its state.

A pendulum whose bearing has warmed up is the same pendulum with another friction. Ten positions do not say much, so
what was learned stays as a prior: a coefficient may move by about ``tolerance`` of its value, and the window decides
the rest.
"""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.inputs import Past, steps_of
from phast.estimation.moving_horizon import ModelAware, fit_window
from phast.fitting.coefficients import coefficients_of, in_units, names_of


def adapt(
    model: ModelAware,
    context: Float[Array, "K n"],
    coefficients: Sequence[str],
    *,
    past: Past = None,
    tolerance: float = 0.3,
) -> ModelAware:
    """The model with ``coefficients`` (named as by ``phast identify``) refined on the last samples of ``context``.

    ``past`` holds the inputs between the samples. Where the window cannot be explained, nothing changes.
    """
    places, spread = _freedom(model.core.system, coefficients, tolerance)
    y = context[-model.window :]
    past = steps_of(past, max(context.shape[0] - model.window, 0))
    n = model.manifold.size
    noise = np.maximum(np.broadcast_to(model.noise, (n,)), 1e-6 * np.maximum(np.std(y, axis=0), 1e-6 * np.std(y)))
    noise = jnp.asarray(np.maximum(noise, np.finfo(float).tiny))
    bare = dataclasses.replace(model, evidence=None)  # whose numbers would each compile anew
    return eqx.tree_at(lambda m: m.core.system, model, _refined(bare, y, noise, places, spread, past))


@eqx.filter_jit
def _refined(
    model: ModelAware, y: Float[Array, "K n"], noise: Float[Array, " n"], places: Array, spread: Array, past: Past
) -> PortHamiltonian:
    """The system with the coefficients at ``places`` moved, along with the state, to where they explain ``y`` best."""
    theta, rebuild = coefficients_of(model.core.system)
    n = model.manifold.size

    def residual(unknowns, _):
        x, change = unknowns
        core = Core(rebuild(theta.at[places].add(spread * change)), model.core.transition)
        q, _ = core.rollout(x[:n], x[n:], y.shape[0] - 1, past)
        return model.manifold.difference(jnp.concatenate([x[None, :n], q]), y) / noise, change

    start = fit_window(model.core, model.manifold, model.dt, y, jnp.ones(y.shape), past).start
    solver = optx.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
    solved = optx.least_squares(residual, solver, (start, jnp.zeros(spread.size)), max_steps=100, throw=False)
    change = jnp.where(jnp.all(jnp.isfinite(solved.value[1])), solved.value[1], 0.0)
    return rebuild(theta.at[places].add(spread * change))


def _freedom(system: PortHamiltonian, coefficients: Sequence[str], tolerance: float) -> tuple[Array, Array]:
    """Where the named coefficients stand among all, and how far each may move as it is trained."""
    named, natural = names_of(system), in_units(system)
    known = list(dict.fromkeys(name for name, _ in named))
    places = []
    for wanted in coefficients:
        found = [
            i for i, (name, _) in enumerate(named) if name == wanted or name.startswith((f"{wanted}[", f"{wanted}."))
        ]
        if not found:
            raise InputError(f"the model has no coefficient '{wanted}': it has {', '.join(known)}")
        places += found
    values = [(*natural[i], named[i][1]) for i in places]
    spread = [tolerance * (value / slope if kind == "positive" else abs(value) + 1.0) for value, slope, kind in values]
    return jnp.asarray(places), jnp.asarray(spread)
