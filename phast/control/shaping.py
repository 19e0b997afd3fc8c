"""Energy–Casimir control: a controller that stores energy, coupled to the plant through its port.

With y_p = Gᵀ q' the plant's output and G constant, the controller is itself port-Hamiltonian,

    ξ' = u_c,   y_c = ∇H_c(ξ),   H_c(ξ) = ½ (ξ - ξ*)ᵀ K (ξ - ξ*) - u*ᵀ ξ,   ξ* = Gᵀ q*,

and u_p = -y_c + v, u_c = y_p make the interconnection lossless: y_pᵀ u_p + y_cᵀ u_c = y_pᵀ v. Then C = Gᵀ q - ξ does
not change, whatever the energies are: it is a Casimir function, and H_c shapes the potential of the plant. The input
u* that holds the plant at q* is zero at a natural equilibrium; elsewhere it must be known from the potential,
G u* = ∇V(q*). Damping injection v = v_ext - d_inj y_p then makes H_p + H_c fall to its minimum at q*.
"""

import equinox as eqx
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from phast.errors import InputError


class EnergyCasimir(eqx.Module):
    """The controller's storage and gains, one entry for each input.

    ``target`` is ξ* = Gᵀ q*, ``stiffness`` the diagonal of K (k_c), ``injection`` the damping d_inj, ``holding`` the
    input u* at the target, and ``correction`` (k_ξ) pulls ξ towards the measured positions, since a sampled loop has
    only an estimate of y_p.
    """

    target: Float[Array, " inputs"]
    stiffness: Float[Array, " inputs"]
    injection: Float[Array, " inputs"]
    holding: Float[Array, " inputs"]
    correction: float = 0.0

    @classmethod
    def create(cls, target, *, stiffness, injection, holding=0.0, correction: float = 0.0) -> "EnergyCasimir":
        """Numbers where all inputs share them."""
        target = jnp.atleast_1d(jnp.asarray(target, dtype=float))

        def each(gain):
            return jnp.broadcast_to(jnp.asarray(gain, dtype=float), target.shape)

        return cls(target, each(stiffness), each(injection), each(holding), correction)

    def __check_init__(self):
        if self.correction < 0.0:
            raise InputError(f"correction={self.correction}: the gain k_ξ must not be negative")
        if not isinstance(self.injection, Tracer) and not bool(jnp.all(self.injection >= 0.0)):
            raise InputError(f"injection={self.injection}: a negative d_inj feeds energy in; give zero or more")

    @property
    def inputs(self) -> int:
        """How many inputs the law drives."""
        return self.target.shape[0]

    def storage(self, xi: Float[Array, " inputs"]) -> Float[Array, ""]:
        """H_c(ξ)."""
        off = xi - self.target
        return 0.5 * jnp.dot(self.stiffness * off, off) - jnp.dot(self.holding, xi)

    def output(self, xi: Float[Array, " inputs"]) -> Float[Array, " inputs"]:
        """y_c = ∇H_c(ξ)."""
        return self.stiffness * (xi - self.target) - self.holding

    def input(
        self, xi: Float[Array, " inputs"], y: Float[Array, " inputs"], external: Float[Array, " inputs"] | float = 0.0
    ) -> Float[Array, " inputs"]:
        """u_t = -y_c(ξ_t) + v_ext - d_inj ŷ_t (the paper's forced mode)."""
        return -self.output(xi) + external - self.injection * y

    def advance(
        self, xi: Float[Array, " inputs"], y: Float[Array, " inputs"], off: Float[Array, " inputs"], dt: float
    ) -> Float[Array, " inputs"]:
        """ξ_{t+1} = ξ_t + Δt (ŷ_t + k_ξ off), where ``off`` = Gᵀ q_meas - ξ_t, angles by their shortest way."""
        return xi + dt * (y + self.correction * off)
