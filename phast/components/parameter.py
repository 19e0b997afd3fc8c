"""Given and learned coefficients.

Equinox trains inexact arrays only. So a *given* coefficient is a Python float (or a tuple of floats) and a
*learned* positive one is a :class:`Positive`; components read both through :func:`value_of` and never ask which it is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Positive(eqx.Module):
    """A learned coefficient (or array of them) that stays positive: softplus of what is trained."""

    raw: Float[Array, "*shape"]

    @classmethod
    def starting_at(cls, value) -> "Positive":
        """The coefficient that begins at ``value`` > 0."""
        value = jnp.asarray(value, dtype=float)
        return cls(value + jnp.log(-jnp.expm1(-value)))

    @classmethod
    def uninformed(cls, *shape: int) -> "Positive":
        """softplus(0) = log 2 everywhere: the start of a coefficient about which nothing is known."""
        return cls(jnp.zeros(shape))

    def __call__(self) -> Float[Array, "*shape"]:
        return jax.nn.softplus(self.raw)


Coefficient = float | tuple | Positive


def value_of(coefficient: Coefficient) -> Float[Array, "*shape"]:
    """The number or array behind a given or a learned coefficient."""
    return coefficient() if isinstance(coefficient, Positive) else jnp.asarray(coefficient, dtype=float)
