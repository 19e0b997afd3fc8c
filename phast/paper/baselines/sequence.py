"""Sequence models as forecasters: an encoder, a stack of causal blocks, a decoder.

A block comes in two forms that agree, like an observer: over a whole sequence at once, for training, and ``start`` /
``update`` one sample at a time, for forecasting. Everything else, the reading of angles, the feeding back of
predictions and the shape of the caches, is the same for all of them and is written once, in :class:`SequenceModel`.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from phast.data.manifold import Manifold
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster

RAW, UNWRAPPED, SINCOS = "raw", "unwrapped", "sincos"


class Affine(eqx.Module):
    """x W + b on the last axis, started at Uniform(±1/sqrt(fan-in))."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    @classmethod
    def create(cls, inputs: int, outputs: int, *, fan_in: int | None = None, key: PRNGKeyArray) -> "Affine":
        w_key, b_key = jax.random.split(key)
        bound = (fan_in or inputs) ** -0.5
        weight = jax.random.uniform(w_key, (inputs, outputs), minval=-bound, maxval=bound)
        return cls(weight, jax.random.uniform(b_key, (outputs,), minval=-bound, maxval=bound))

    def __call__(self, x: Float[Array, "*T inputs"]) -> Float[Array, "*T outputs"]:
        return x @ self.weight + self.bias


class LayerNorm(eqx.Module):
    """(x - mean)/std over the last axis, scaled and shifted."""

    scale: Float[Array, " d"]
    shift: Float[Array, " d"]

    @classmethod
    def create(cls, width: int) -> "LayerNorm":
        return cls(jnp.ones(width), jnp.zeros(width))

    def __call__(self, x: Float[Array, "*T d"]) -> Float[Array, "*T d"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        spread = jnp.mean(centred**2, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(spread + 1e-5) * self.scale + self.shift


class AbstractBlock(eqx.Module):
    """A causal map from sequences of features to sequences of features."""

    @abstractmethod
    def __call__(self, x: Float[Array, "T inputs"], key: PRNGKeyArray | None = None) -> Float[Array, "T d"]:
        """Row t from rows 0 … t. A key is given while training, for what is random then."""

    @abstractmethod
    def start(self, length: int) -> PyTree:
        """The cache before the first sample, with room for ``length`` of them."""

    @abstractmethod
    def update(self, cache: PyTree, x: Float[Array, " inputs"]) -> tuple[PyTree, Float[Array, " d"]]:
        """The cache and the output after one more sample."""


class SequenceModel(AbstractForecaster):
    """q_0 … q_t -> q̂_{t+1} by features, encoder, blocks and decoder, trained to predict the next sample.

    Features are ``raw``, the coordinates themselves with angles wrapped into [-π, π] (so they jump at ±π),
    ``unwrapped``, angles that run on over ±π, or ``sincos``, the sine and cosine of each angle. The decoder gives
    q̂_{t+1} itself or, if ``residual``, the step from q_t to it.
    """

    manifold: Manifold
    encoder: Affine | None
    blocks: tuple[AbstractBlock, ...]
    decoder: Affine
    features: str = RAW
    residual: bool = False

    def __check_init__(self):
        feature_count(self.manifold, self.features)

    def predict_next(self, q, u=None, *, key=None):
        _refuse(u)
        x = jax.vmap(self._read)(q)
        keys = [None] * len(self.blocks) if key is None else jax.random.split(key, len(self.blocks))
        for block, block_key in zip(self.blocks, keys, strict=True):
            x = block(x, block_key)
        return self._answer(q, x)

    def init_cache(self, context, past=None, *, horizon=1):
        _refuse(past)
        caches = tuple(block.start(context.shape[0] + horizon) for block in self.blocks)
        (caches, ahead), _ = jax.lax.scan(lambda c, q: (self._feed(c[0], q), None), (caches, context[0]), context)
        return caches, ahead

    def step(self, cache, u=None):
        _refuse(u)
        caches, q = cache
        return self._feed(caches, q), q

    def _feed(self, caches, q):
        """Caches and the next prediction after one more sample."""
        x, after = self._read(q), []
        for block, cache in zip(self.blocks, caches, strict=True):
            cache, x = block.update(cache, x)
            after.append(cache)
        return tuple(after), self._answer(q, x)

    def _read(self, q):
        x = _READERS[self.features](self.manifold, q)
        return x if self.encoder is None else self.encoder(x)

    def _answer(self, q, x):
        return q + self.decoder(x) if self.residual else self.decoder(x)


def feature_count(manifold: Manifold, features: str) -> int:
    """How many numbers a sequence model reads per sample."""
    if features not in _READERS:
        raise InputError(f"features are {', '.join(_READERS)}, not '{features}'")
    return manifold.feature_count(1) if features == SINCOS else manifold.size


_READERS: dict[str, Callable[[Manifold, Float[Array, " n"]], Float[Array, " inputs"]]] = {
    RAW: lambda manifold, q: manifold.wrap(q),
    UNWRAPPED: lambda manifold, q: q,
    SINCOS: lambda manifold, q: manifold.features(q, 1),
}


def _refuse(inputs: Array | None) -> None:
    if inputs is not None:
        raise InputError("a sequence model reads positions only: inputs need one of the phast models")
