"""The dissipative Hamiltonian neural network: two scalar networks whose gradients make a vector field.

x' = (∂H/∂p, -∂H/∂q) + ∇D, a curl and a divergence (Helmholtz). Neither scalar is constrained, so nothing makes D take
energy away: it fits fields well and promises nothing.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.network import MLP

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
