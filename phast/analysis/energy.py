"""Where the energy of a recording went: stored, supplied, dissipated, and what the model cannot account for.

    H(t) - H(0)  =  Σ (G u)·Δq  -  ∫ vᵀ D v dt  +  what is unexplained

along the states that the model's own filter finds in the positions (:meth:`ModelAware.filter`). Within a step the model
keeps this balance; what is left over is the energy that the measurements put in or took out where they corrected it.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.data.trajectories import Trajectories
from phast.errors import InputError
from phast.estimation.inputs import Held, steps_of
from phast.estimation.moving_horizon import ModelAware


class EnergyBalance(NamedTuple):
    """Times, velocities and energies along trajectories, from the first sample at which the filter is settled.

    ``energy`` is H; ``supplied``, ``dissipated`` and ``unexplained`` are sums since that sample.
    """

    t: Float[np.ndarray, "N K"]
    v: Float[np.ndarray, "N K n"]
    energy: Float[np.ndarray, "N K"]
    supplied: Float[np.ndarray, "N K"]
    dissipated: Float[np.ndarray, "N K"]
    unexplained: Float[np.ndarray, "N K"]


def power_balance(model: ModelAware, trajectories: Trajectories) -> EnergyBalance:
    """The balance of each trajectory, from the sample that completes the filter's first window."""
    if trajectories.length <= model.window:
        raise InputError(
            f"{trajectories.length} samples are too few for a balance of energy: the model looks at {model.window} "
            "positions to find a state, give more"
        )
    lasting = np.ones((*trajectories.q.shape[:2], 1)) if trajectories.stretch is None else trajectories.stretch
    held = Held(
        None if trajectories.u is None else jnp.asarray(trajectories.u),
        jnp.asarray(lasting[..., 0] * (trajectories.dt / model.dt)),
    )
    v, energy, supplied, dissipated = map(np.asarray, _balances(model, jnp.asarray(trajectories.q, dtype=float), held))
    supplied, dissipated = (np.pad(np.cumsum(x, axis=1), ((0, 0), (1, 0))) for x in (supplied, dissipated))
    unexplained = energy - energy[:, :1] - supplied + dissipated
    t = trajectories.times[:, model.window - 1 :]
    return EnergyBalance(t, v, energy, supplied, dissipated, unexplained)


@eqx.filter_jit
def _balances(model: ModelAware, q: Float[Array, "N T n"], held: Held) -> tuple[Array, Array, Array, Array]:
    """Velocities and energies at the samples; what each step between them supplies and dissipates."""
    system = model.core.system
    velocity, energy, losing = map(jax.vmap, (system.velocity, system.energy, system.losses))

    def one(q, held):
        known, settled = model.filter(q, held), model.window - 1
        q, p, steps = known.q[settled:], known.p[settled:], steps_of(held, settled, -1)
        middle = jax.vmap(model.core)(q[:-1], p[:-1], steps._replace(stretch=0.5 * steps.stretch))
        at, between = losing(q, p), losing(*middle)
        dissipated = model.dt * steps.stretch * (at[:-1] + 4.0 * between + at[1:]) / 6.0  # Simpson's rule
        moved = model.manifold.difference(q[1:], q[:-1])
        work = lambda u, way: jnp.dot(system.input_force(u), way)  # noqa: E731
        supplied = jnp.zeros_like(dissipated) if steps.u is None else jax.vmap(work)(steps.u, moved)
        return velocity(q, p), energy(q, p), supplied, dissipated

    return jax.vmap(one)(q, held)
