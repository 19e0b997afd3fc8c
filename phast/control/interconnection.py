"""Plant and controller as two port-Hamiltonian systems, joined so that no power is made between them.

    plant         x' = (J - R) ∇H_p + G u_p,   y_p = Gᵀ ∂H_p/∂p
    controller    ξ' = u_c,                    y_c = ∇H_c(ξ)
    joined by     u_p = -y_c + v,              u_c = y_p,          v = v_ext - d_inj y_p

so that y_pᵀ u_p + y_cᵀ u_c = y_pᵀ v, C = Gᵀ q - ξ does not change, and H = H_p + H_c has

    H' = -∇H_pᵀ R ∇H_p - y_pᵀ d_inj y_p + y_pᵀ v_ext

(section 3.6 of the paper). This is the loop in continuous time with the exact port output, by which the sampled one
(:mod:`phast.control.loop`), whose output is estimated, is judged.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from phast.control.shaping import EnergyCasimir
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError


class JoinedState(NamedTuple):
    """The plant's (q, p) and the controller's ξ."""

    q: Float[Array, " n"]
    p: Float[Array, " n"]
    xi: Float[Array, " inputs"]


class Ports(NamedTuple):
    """What goes into each port and what comes out, and the part v that is not the controller's answer."""

    u_p: Float[Array, " inputs"]
    y_p: Float[Array, " inputs"]
    u_c: Float[Array, " inputs"]
    y_c: Float[Array, " inputs"]
    v: Float[Array, " inputs"]

    @property
    def cross_power(self) -> Float[Array, ""]:
        """y_pᵀ u_p + y_cᵀ u_c: what the interconnection supplies."""
        return jnp.dot(self.y_p, self.u_p) + jnp.dot(self.y_c, self.u_c)


class Interconnection(eqx.Module):
    """A plant and an energy–Casimir controller in continuous time; ``external`` is v_ext."""

    plant: PortHamiltonian
    law: EnergyCasimir

    def __check_init__(self):
        port = self.plant.port
        if port is not None and self.law.inputs != (count := self.plant.input_count(0)):
            raise InputError(f"a law for {self.law.inputs} input(s) cannot drive a plant with {count}: give one each")

    def start(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> JoinedState:
        """At (q, p), with ξ = Gᵀ q: then C = 0 ever after."""
        return JoinedState(q, p, self._collocated(q))

    def ports(self, x: JoinedState, external: Float[Array, " inputs"] | float = 0.0) -> Ports:
        """What goes through the ports at x."""
        y_p, y_c = self.plant.port_output(x.q, x.p), self.law.output(x.xi)
        v = external - self.law.injection * y_p
        return Ports(-y_c + v, y_p, y_p, y_c, v)

    def vector_field(self, x: JoinedState, external: Float[Array, " inputs"] | float = 0.0) -> JoinedState:
        """x'."""
        through = self.ports(x, external)
        return JoinedState(*self.plant.vector_field(x.q, x.p, through.u_p), through.u_c)

    def energy(self, x: JoinedState) -> Float[Array, ""]:
        """H_p + H_c."""
        return self.plant.energy(x.q, x.p) + self.law.storage(x.xi)

    def casimir(self, x: JoinedState) -> Float[Array, " inputs"]:
        """C = Gᵀ q - ξ."""
        return self._collocated(x.q) - x.xi

    def _collocated(self, q: Float[Array, " n"]) -> Float[Array, " inputs"]:
        return self.plant.port_matrix(q.shape[0]).astype(q.dtype).T @ q
