"""The port-Hamiltonian system x' = (J - R)∇H(x) + G u of the paper's Eq. 1, with x = (q, p).

    H(q, p) = V(q) + ½ pᵀ M(q)⁻¹ p,   q' = ∂H/∂p = v,   p' = -∂H/∂q - D(q, v) v + G u,   y = Gᵀ v

Every simulator in :mod:`phast.systems` and every learned model is one of these; they differ only in which
components are given and which are learned.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from phast.components.damping import AbstractDamping
from phast.components.mass import AbstractConstantMass, AbstractMass
from phast.components.parameter import Real, value_of
from phast.components.potential import AbstractPotential, gradient


class PowerBalance(NamedTuple):
    """dH/dt and where it comes from: ``rate = supplied - dissipated`` (Theorem 1)."""

    rate: Float[Array, ""]
    dissipated: Float[Array, ""]
    supplied: Float[Array, ""]


class AbstractDynamics(eqx.Module):
    """Anything that moves a state (q, p), whether or not its energy is known."""

    @abstractmethod
    def vector_field(
        self, q: Float[Array, " n"], p: Float[Array, " n"], u: Float[Array, " inputs"] | None = None
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """(q', p')."""


class PortHamiltonian(AbstractDynamics):
    """V, M, D and the port matrix G (n × inputs, given or learned; ``None`` for one input per coordinate)."""

    potential: AbstractPotential
    mass: AbstractMass
    damping: AbstractDamping
    port: tuple | Real | Float[Array, "n inputs"] | None = None

    @property
    def separable(self) -> bool:
        """Whether M is constant, so that H splits into V(q) + T(p)."""
        return isinstance(self.mass, AbstractConstantMass)

    def energy(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, ""]:
        """H(q, p)."""
        return self.potential(q) + 0.5 * jnp.dot(p, self.velocity(q, p))

    def velocity(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, " n"]:
        """v = M(q)⁻¹ p."""
        return self.mass.operator(q).solve(p)

    def momentum(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
        """p = M(q) v."""
        return self.mass.operator(q).matvec(v)

    def gradient(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """(∂H/∂q, ∂H/∂p). At fixed p, ∂(½ pᵀM⁻¹p)/∂q = -∂(½ vᵀMv)/∂q at fixed v: no solve is differentiated."""
        v = self.velocity(q, p)
        if self.separable:
            return gradient(self.potential, q), v
        return jax.grad(lambda x: self.potential(x) - 0.5 * jnp.dot(v, self.momentum(x, v)))(q), v

    def dissipation(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
        """D(q, v) v, the damping force's opposite."""
        return self.damping.operator(q, v).matvec(v)

    def input_force(self, u: Float[Array, " inputs"]) -> Float[Array, " n"]:
        """G u."""
        return u if self.port is None else value_of(self.port).astype(u.dtype) @ u

    def port_output(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, " inputs"]:
        """y = Gᵀ ∂H/∂p, conjugate to u."""
        v = self.velocity(q, p)
        return v if self.port is None else value_of(self.port).astype(v.dtype).T @ v

    def vector_field(
        self, q: Float[Array, " n"], p: Float[Array, " n"], u: Float[Array, " inputs"] | None = None
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """(q', p')."""
        dh_dq, v = self.gradient(q, p)
        force = -dh_dq - self.dissipation(q, v)
        return v, force if u is None else force + self.input_force(u)

    def power_balance(
        self, q: Float[Array, " n"], p: Float[Array, " n"], u: Float[Array, " inputs"] | None = None
    ) -> PowerBalance:
        """dH/dt = -vᵀ D v + yᵀ u, each side computed on its own: ``rate`` by the chain rule."""
        dh_dq, v = self.gradient(q, p)
        dq, dp = self.vector_field(q, p, u)
        supplied = jnp.zeros((), q.dtype) if u is None else jnp.dot(self.port_output(q, p), u)
        return PowerBalance(jnp.dot(dh_dq, dq) + jnp.dot(v, dp), jnp.dot(v, self.dissipation(q, v)), supplied)

    def spectrum(self, q: Float[Array, " n"]) -> Complex[Array, " twice_n"]:
        """Eigenvalues of the dynamics linearised at the equilibrium (q, 0) (appendix A.4)."""
        n = q.shape[0]

        def field(x):
            return jnp.concatenate(self.vector_field(x[:n], x[n:]))

        return jnp.linalg.eigvals(jax.jacfwd(field)(jnp.concatenate([q, jnp.zeros_like(q)])))
