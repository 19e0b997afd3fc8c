"""The multilayer perceptron behind every neural component.

Its activation is written so that its own derivatives reuse one tanh. A potential enters the dynamics through ∇V, so
training differentiates twice; with the usual SiLU, XLA evaluates the exponential anew for each order of derivative and
that, not the matrix products, is what a training step on a CPU spends its time on.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


@jax.custom_jvp
def silu(x: Array) -> Array:
    """x · sigmoid(x)."""
    return x * _sigmoid(x)


@silu.defjvp
def _silu_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    s = _sigmoid(x)
    return x * s, dx * (s * (1.0 + x * (1.0 - s)))


def _sigmoid(x: Array) -> Array:
    return 0.5 * jnp.tanh(0.5 * x) + 0.5


class MLP(eqx.Module):
    """Affine maps with SiLU between them."""

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]

    @classmethod
    def create(cls, sizes: tuple[int, ...], *, key: PRNGKeyArray) -> "MLP":
        """Uniform(±1/sqrt(fan-in)) throughout; ``sizes`` runs from the input to the output width."""
        weights, biases = [], []
        for fan_in, fan_out in itertools.pairwise(sizes):
            key, w_key, b_key = jax.random.split(key, 3)
            bound = fan_in**-0.5
            weights.append(jax.random.uniform(w_key, (fan_in, fan_out), minval=-bound, maxval=bound))
            biases.append(jax.random.uniform(b_key, (fan_out,), minval=-bound, maxval=bound))
        return cls(tuple(weights), tuple(biases))

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = silu(x @ w + b)
        return x @ self.weights[-1] + self.biases[-1]
