"""Whether a sampled loop comes to rest at its target: checked on its linearisation before anything is simulated.

Gains that shape the energy well in continuous time may be too large for the time between samples: damping injection
of d_inj ≥ 2 M / dt, for one, turns the velocity round at each sample.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from phast.components.potential import gradient
from phast.control.plant import Plant
from phast.control.shaping import EnergyCasimir
from phast.errors import InputError

_AT_REST = 1e-6  # of the forces at the target: below this they balance


def multipliers(plant: Plant, law: EnergyCasimir, target: Float[Array, " n"]) -> Complex[np.ndarray, " states"]:
    """By what each mode of the loop around (q*, 0) is multiplied from sample to sample, the port output known.

    Without correction (k_ξ = 0) there is an equilibrium for each value of the Casimir; the modes along them, which
    neither grow nor die out, are left out.
    """
    n, port = target.shape[0], plant.system.port_matrix(target.shape[0])

    def sample(x):
        q, p, xi = x[:n], x[n : 2 * n], x[2 * n :]
        y = plant.port_output(q, p)
        moved = plant(q, p, law.input(xi, y))
        return jnp.concatenate([*moved, law.advance(xi, y, port.T @ q - xi, plant.dt)])

    rest = jnp.concatenate([target, jnp.zeros_like(target), port.T @ target])
    found = np.linalg.eigvals(np.asarray(jax.jacfwd(sample)(rest))).astype(complex)
    return found if law.correction else found[np.argsort(np.abs(found - 1.0))[law.inputs :]]


def require_stable(plant: Plant, law: EnergyCasimir, target: Float[Array, " n"]) -> None:
    """Refuse a law under which the target is no equilibrium, or an unstable one."""
    port = plant.system.port_matrix(target.shape[0])
    forces = gradient(plant.system.potential, target)
    held = port @ law.input(port.T @ target, jnp.zeros(law.inputs))
    if float(jnp.max(jnp.abs(held - forces))) > _AT_REST * (1.0 + float(jnp.max(jnp.abs(forces)))):
        raise InputError(f"nothing rests at the target {target}: the law's holding u* must have G u* = ∇V(q*)")
    largest = float(np.max(np.abs(multipliers(plant, law, target))))
    if not largest < 1.0:
        raise InputError(
            f"unstable gains: around the target a deviation grows {largest:.4g} times per sample of {plant.dt:g} s; "
            "change the stiffness, lower the damping, or sample faster"
        )
