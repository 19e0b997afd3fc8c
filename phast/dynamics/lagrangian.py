"""The same systems as Euler–Lagrange equations: which force a given motion needs, without M(q)⁻¹ and without p.

    r(q, q', q'') = M(q) q'' + C_M(q, q') q' + ∇V(q) + D(q, q') q' - G u

vanishes exactly along the motions of a :class:`~phast.dynamics.hamiltonian.PortHamiltonian`. It is linear in (M, V, D,
G): multiply all four by c > 0 and r is multiplied by c, while its zeros, the motions, stay the same. So ‖r‖² as a loss
has its trivial minimum at c = 0, and needs an anchor (:class:`~phast.fitting.losses.ResidualLoss`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from phast.components.mass import AbstractMass
from phast.components.potential import gradient
from phast.dynamics.hamiltonian import PortHamiltonian


def coriolis(mass: AbstractMass, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
    """C_M(q, v) v = Ṁ v - ½ ∂(vᵀMv)/∂q, what Christoffel's symbols give: two products with M are differentiated, no
    symbol is formed."""

    def momentum(x):
        return mass.operator(x).matvec(v)

    change = jax.jvp(momentum, (q,), (v,))[1]
    return change - 0.5 * jax.grad(lambda x: jnp.dot(v, momentum(x)))(q)


def residual(
    system: PortHamiltonian,
    q: Float[Array, " n"],
    v: Float[Array, " n"],
    a: Float[Array, " n"],
    u: Float[Array, " inputs"] | None = None,
) -> Float[Array, " n"]:
    """r at (q, q', q''): the generalised force that is missing for this motion."""
    inertial = system.momentum(q, a) + coriolis(system.mass, q, v)
    force = inertial + gradient(system.potential, q) + system.dissipation(q, v)
    return force if u is None else force - system.input_force(u)
