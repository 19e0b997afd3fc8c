"""The port-Hamiltonian system x' = (J - R)∇H(x) + G u of the paper's Eq. 1, with x = (q, p).

    H(q, p) = V(q) + ½ pᵀ M(q)⁻¹ p,   q' = ∂H/∂p = v,   p' = -∂H/∂q - D(q, v) v + G u,   y = Gᵀ v

Every simulator in :mod:`phast.dynamics.systems` and every learned model is one of these; they differ only in which
components are given and which are learned. One is not mechanical: where something unseen lives on what is measured,
J varies and H is no square of p (:class:`ConsumerResource`).
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from phast.components.damping import AbstractDamping
from phast.components.mass import AbstractConstantMass, AbstractMass
from phast.components.parameter import Coefficient, Real, value_of
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


class AbstractEnergetic(AbstractDynamics):
    """Dynamics with an energy that falls by damping alone, and a hidden momentum that the velocity determines."""

    potential: eqx.AbstractVar[AbstractPotential]
    damping: eqx.AbstractVar[AbstractDamping]

    @abstractmethod
    def energy(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, ""]:
        """H(q, p)."""

    @abstractmethod
    def velocity(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, " n"]:
        """q' at (q, p) without inputs."""

    @abstractmethod
    def momentum(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
        """The p at which q moves with velocity v."""

    @abstractmethod
    def rest(self, q: Float[Array, " n"]) -> Float[Array, " n"]:
        """The p to expect at q where nothing more is known."""

    @abstractmethod
    def mobility(self, q: Float[Array, " n"]) -> Float[Array, " n"]:
        """By how much one unit of a momentum changes the velocity of its own coordinate."""

    @abstractmethod
    def losses(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, ""]:
        """The power ∇Hᵀ R ∇H ≥ 0 that damping takes."""

    @abstractmethod
    def input_count(self, n: int) -> int:
        """How many inputs there are beside n coordinates."""


class PortHamiltonian(AbstractEnergetic):
    """V, M, D and the port matrix G (n × inputs, given or learned; ``None`` for one input per coordinate)."""

    potential: AbstractPotential
    mass: AbstractMass
    damping: AbstractDamping
    port: tuple | Real | Float[Array, "n inputs"] | None

    def __init__(  # type checkers would put the abstract fields of the interface first
        self,
        potential: AbstractPotential,
        mass: AbstractMass,
        damping: AbstractDamping,
        port: tuple | Real | Float[Array, "n inputs"] | None = None,
    ):
        self.potential = potential
        self.mass = mass
        self.damping = damping
        self.port = port

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

    def rest(self, q: Float[Array, " n"]) -> Float[Array, " n"]:
        """No momentum."""
        return jnp.zeros_like(q)

    def mobility(self, q: Float[Array, " n"]) -> Float[Array, " n"]:
        """1 / M_ii(q)."""
        return 1.0 / self.mass.operator(q).diagonal_part()

    def gradient(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """(∂H/∂q, ∂H/∂p). At fixed p, ∂(½ pᵀM⁻¹p)/∂q = -∂(½ vᵀMv)/∂q at fixed v: no solve is differentiated."""
        v = self.velocity(q, p)
        if self.separable:
            return gradient(self.potential, q), v
        return jax.grad(lambda x: self.potential(x) - 0.5 * jnp.dot(v, self.momentum(x, v)))(q), v

    def dissipation(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
        """D(q, v) v, the damping force's opposite."""
        return self.damping.operator(q, v).matvec(v)

    def losses(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, ""]:
        """vᵀ D v."""
        v = self.velocity(q, p)
        return jnp.dot(v, self.dissipation(q, v))

    def input_count(self, n: int) -> int:
        """Where no port is named, one for each coordinate."""
        return n if self.port is None else value_of(self.port).shape[1]

    def input_force(self, u: Float[Array, " inputs"]) -> Float[Array, " n"]:
        """G u."""
        return u if self.port is None else value_of(self.port).astype(u.dtype) @ u

    def port_matrix(self, n: int) -> Float[Array, "n inputs"]:
        """G as an array, for ``n`` coordinates."""
        return jnp.eye(n) if self.port is None else value_of(self.port)

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


class ConsumerResource(AbstractEnergetic):
    """A measured resource q > 0 and an unseen consumer p > 0 that lives on it, coordinate by coordinate:

        q' = q (g - p) - D(q) ∂V/∂q,   p' = p q ∂V/∂q,   H(q, p) = V(q) + Σ (p - g ln p)

    that is x' = (J - R)∇H with J = diag(q p) ⊗ [[0, -1], [1, 0]], skew, and R = diag(D(q), 0) ⪰ 0, so that
    dH/dt = -∇Vᵀ D ∇V ≤ 0. V says how the consumer grows on the resource, g and D how the resource grows by itself. The
    consumer is counted in what it takes of the resource per head and time. Lotka and Volterra's equations with a
    carrying capacity are the case V = δq - γ ln q, D = (α/Kδ) q².
    """

    potential: AbstractPotential
    damping: AbstractDamping
    growth: Coefficient

    def energy(self, q, p):
        return self.potential(q) + jnp.sum(p - value_of(self.growth) * jnp.log(p))

    def velocity(self, q, p):
        return q * (value_of(self.growth) - p) - self._loss(q)

    def momentum(self, q, v):
        return value_of(self.growth) - (v + self._loss(q)) / q

    def rest(self, q):
        """What p is on average along a closed orbit, whatever its size: ∮ (ln q)' dt = 0 = ∮ (g - p) dt where D = 0."""
        return value_of(self.growth) * jnp.ones_like(q)

    def mobility(self, q):
        return q

    def vector_field(self, q, p, u=None):
        if u is not None:
            raise TypeError("a consumer and its resource have no input port: call vector_field(q, p) without u")
        return self.velocity(q, p), p * q * gradient(self.potential, q)

    def losses(self, q, p):
        return jnp.dot(gradient(self.potential, q), self._loss(q))

    def input_count(self, n):
        return 0

    def _loss(self, q: Float[Array, " n"]) -> Float[Array, " n"]:
        """D(q) ∇V(q)."""
        return self.damping.operator(q, jnp.zeros_like(q)).matvec(gradient(self.potential, q))
