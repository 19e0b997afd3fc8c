"""The dissipative Hamiltonian neural network: two scalar networks whose gradients make a vector field.

x' = (∂H/∂p, -∂H/∂q) + ∇D, a curl and a divergence (Helmholtz). Neither scalar is constrained, so nothing makes D take
energy away: it fits fields well and promises nothing.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.network import MLP
from phast.data.manifold import Manifold
from phast.errors import InputError
from phast.estimation.forecaster import AbstractFullState

LATENT = 64
HIDDEN = 200


class DHNN(eqx.Module):
    """x' = W_out (J ∇H(z) + ∇D(z)) with z = W_in x: H and D live on a latent phase space of even dimension."""

    encoder: MLP
    energy: MLP
    dissipation: MLP
    decoder: MLP

    @classmethod
    def create(cls, n: int, *, inputs: int | None = None, key: PRNGKeyArray) -> "DHNN":
        """For n degrees of freedom; ``inputs`` is how x is presented, (q, p) itself unless another width is given."""
        into, energy, dissipation, out = jax.random.split(key, 4)
        scalar = (LATENT, HIDDEN, HIDDEN, 1)
        return cls(
            MLP.create((2 * n if inputs is None else inputs, LATENT), key=into),
            MLP.create(scalar, key=energy),
            MLP.create(scalar, key=dissipation),
            MLP.create((LATENT, 2 * n), key=out),
        )

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " twice_n"]:
        z = self.encoder(x)
        by_q, by_p = jnp.split(jax.grad(lambda y: self.energy(y)[0])(z), 2)
        return self.decoder(jnp.concatenate([by_p, -by_q]) + jax.grad(lambda y: self.dissipation(y)[0])(z))


class DhnnStep(AbstractFullState):
    """The flow of a DHNN over one sample by the classical Runge–Kutta rule; the networks see wrapped angles."""

    field: DHNN
    manifold: Manifold
    dt: float

    def __call__(self, q, p, u=None):
        if u is not None:
            raise InputError("a DHNN takes no inputs: forced systems need one of the phast models")
        n, x, dt = self.manifold.size, jnp.concatenate([q, p]), self.dt
        rate = lambda y: self.field(jnp.concatenate([self.manifold.wrap(y[:n]), y[n:]]))  # noqa: E731
        k1 = rate(x)
        k2 = rate(x + 0.5 * dt * k1)
        k3 = rate(x + 0.5 * dt * k2)
        k4 = rate(x + dt * k3)
        moved = x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        return moved[:n], moved[n:]
