"""Attention blocks: the Transformer's, and a volume-preserving one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.errors import InputError
from phast.paper.baselines.sequence import AbstractBlock, Affine, LayerNorm

# --- Transformer -----------------------------------------------------------------------------------------------------


class Positions(AbstractBlock):
    """Adds (sin ω_i t, cos ω_i t) with ω_i from 1 down to 1/10000: nothing to learn."""

    width: int

    def __call__(self, x, key=None):
        return x + self._waves(jnp.arange(x.shape[0]), x.dtype)

    def start(self, length):
        return jnp.zeros((), int)

    def update(self, cache, x):
        return cache + 1, x + self._waves(cache, x.dtype)

    def _waves(self, t, dtype):
        rates = 10_000.0 ** -(jnp.arange(0, self.width, 2, dtype=dtype) / self.width)
        angles = t[..., None].astype(dtype) * rates
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[..., : self.width]


class TransformerBlock(AbstractBlock):
    """x ← LN(x + attention(x)), x ← LN(x + W₂ relu(W₁ x)): causal softmax attention, norms after the sums.

    While training, a tenth of each of the two branches is dropped. 12d² + 13d parameters.
    """

    heads: int
    project: Affine  # queries, keys and values
    collect: Affine
    attended: LayerNorm
    widen: Affine
    narrow: Affine
    fed: LayerNorm
    dropout: float

    @classmethod
    def create(cls, width: int, *, heads: int = 4, dropout: float = 0.1, key: PRNGKeyArray) -> "TransformerBlock":
        if width % heads:
            raise InputError(f"{heads} heads need a width that they divide, not {width}")
        keys = jax.random.split(key, 4)
        return cls(
            heads,
            Affine.create(width, 3 * width, key=keys[0]),
            Affine.create(width, width, key=keys[1]),
            LayerNorm.create(width),
            Affine.create(width, 4 * width, key=keys[2]),
            Affine.create(4 * width, width, key=keys[3]),
            LayerNorm.create(width),
            dropout,
        )

    def __call__(self, x, key=None):
        first, second = (None, None) if key is None else jax.random.split(key)
        queries, keys, values = (jnp.swapaxes(part, 0, 1) for part in self._heads(x))
        mixed = [_attend(queries, keys, values, t, min(t + ROWS, x.shape[0])) for t in range(0, x.shape[0], ROWS)]
        mixed = jnp.swapaxes(jnp.concatenate(mixed, axis=1), 0, 1)
        return self._feed(x, mixed.reshape(x.shape), first, second)

    def start(self, length):
        width = self.collect.bias.shape[0]
        empty = jnp.zeros_like(self.collect.bias, shape=(length, self.heads, width // self.heads))
        return jnp.zeros((), int), empty, empty

    def update(self, cache, x):
        """Keys and values are kept, ``length`` of them at most: after that the answer is not a number."""
        seen, keys, values = cache
        query, key, value = (part[0] for part in self._heads(x[None]))
        keys, values = keys.at[seen].set(key), values.at[seen].set(value)
        scores = jnp.einsum("hk,shk->hs", query, keys)
        weights = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[0]) <= seen, scores, -jnp.inf))
        y = self._feed(x, jnp.einsum("hs,shk->hk", weights, values).reshape(-1))
        return (seen + 1, keys, values), jnp.where(seen < keys.shape[0], y, jnp.nan)

    def _heads(self, x):
        """Queries (scaled by 1/sqrt of their size), keys and values, each (T, heads, size)."""
        size = x.shape[1] // self.heads
        parts = self.project(x).reshape(x.shape[0], 3, self.heads, size)
        return parts[:, 0] * size**-0.5, parts[:, 1], parts[:, 2]

    def _feed(self, x, mixed, first=None, second=None):
        x = self.attended(x + self._drop(self.collect(mixed), first))
        return self.fed(x + self._drop(self.narrow(jax.nn.relu(self.widen(x))), second))

    def _drop(self, x, key):
        if key is None:
            return x
        kept = jax.random.bernoulli(key, 1.0 - self.dropout, x.shape)
        return jnp.where(kept, x / (1.0 - self.dropout), 0.0)


ROWS = 100


def _attend(queries, keys, values, first: int, last: int) -> Float[Array, "heads rows size"]:
    """Rows ``first`` … ``last`` of causal attention, arrays (heads, T, size): keys after the last are never touched.

    Dividing by the sum of the weights at the end, not in the matrix, spares one pass over it.
    """
    past = jnp.arange(last) <= jnp.arange(first, last)[:, None]
    scores = jnp.where(past, queries[:, first:last] @ jnp.swapaxes(keys[:, :last], 1, 2), -jnp.inf)
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    return (weights @ values[:, :last]) / jnp.sum(weights, axis=-1, keepdims=True)


# --- volume preserving -----------------------------------------------------------------------------------------------

CHUNK = 16


class VolumePreserving(AbstractBlock):
    """Attention and two feed-forward layers, each of which keeps the volume of z_0 … z_T.

    z'_t = (I - ½S_tAᵀ)⁻¹(I + ½S_tAᵀ) z_t with S_t = Σ_{s<t} z_s z_sᵀ and A skew: a Cayley transform, since S is
    symmetric and so I ± ½SAᵀ have the same determinant. Then z ← z + tanh(Lz + b) with L strictly lower and after that
    strictly upper triangular. No softmax, no norm, no residual. The count of 2d² + 2d numbers leaves d² for
    A = gain · (K - Kᵀ) and d² for both triangles in one matrix (whose diagonal is idle), beside the two biases.

    S_t grows with t, so a small A saturates the transform: it starts small, whatever the gain. A gain below one slows
    the training of A against that of the rest, and a gain of zero leaves a model without memory.
    """

    weights: Float[Array, "d d"]
    triangles: Float[Array, "d d"]
    biases: Float[Array, "2 d"]
    gain: float = 1.0

    @classmethod
    def create(cls, width: int, *, gain: float = 1.0, key: PRNGKeyArray) -> "VolumePreserving":
        a_key, l_key, b_key = jax.random.split(key, 3)
        bound = width**-0.5
        return cls(
            jax.random.normal(a_key, (width, width)) * 0.01 * bound / (gain or 1.0),
            jax.random.uniform(l_key, (width, width), minval=-bound, maxval=bound),
            jax.random.uniform(b_key, (2, width), minval=-bound, maxval=bound),
            gain,
        )

    def skew(self) -> Float[Array, "d d"]:
        """A."""
        return self.gain * (self.weights - self.weights.T)

    def __call__(self, x, key=None):
        return self._feed(2.0 * resolve(x, self.skew()) - x)

    def start(self, length):
        return jnp.eye(self.weights.shape[0], dtype=self.weights.dtype)

    def update(self, cache, x):
        """The cache is N = (I - ½SAᵀ)⁻¹. One more sample changes S by xxᵀ, and N by Sherman and Morrison's formula: no
        d×d system is solved (a batched LAPACK call inside a scan, run from two threads, also locks XLA up)."""
        ahead, along = cache @ x, self.skew() @ x
        pivot = 1.0 - 0.5 * jnp.dot(along, ahead)  # at least one: its parts are a skew and a semi-definite form
        inverse = cache + 0.5 * jnp.outer(ahead, along @ cache) / pivot
        return inverse, self._feed(2.0 * ahead - x)  # (I - X)⁻¹(I + X) = 2(I - X)⁻¹ - I

    def _feed(self, z):
        for triangle, bias in zip(
            (jnp.tril(self.triangles, -1), jnp.triu(self.triangles, 1)), self.biases, strict=True
        ):
            z = z + jnp.tanh(z @ triangle.T + bias)
        return z


@jax.custom_vjp
def resolve(z: Float[Array, "T d"], skew: Float[Array, "d d"]) -> Float[Array, "T d"]:
    """w_t = (I - ½S_tAᵀ)⁻¹ z_t for all t, in O(d² + d·chunk) a sample instead of a d³ solve.

    Let N = (I - ½SAᵀ)⁻¹ at the start of a chunk of samples Z (rows), V = Z Nᵀ and Y = Z Aᵀ. By the Woodbury identity
    the inverses after each prefix of the chunk follow from the leading blocks of M = I - ½ Y Vᵀ, and those from one
    factorisation M = LDU without pivoting: the rows w are U⁻ᵀV, and N ← N + ½ wᵀD⁻¹L⁻¹YN. No pivot is below one:
    each is 1 + |S^½ Aᵀw|²/4, the growth of det(I - ½SAᵀ) by one sample.
    """
    return _resolve(z, skew)[0]


def _resolve(z, skew):
    length, width = z.shape

    def body(inverse, chunk):
        v, y = chunk @ inverse.T, chunk @ skew.T
        factors = lower, pivots, upper = _inverse_factors(jnp.eye(CHUNK, dtype=z.dtype) - 0.5 * y @ v.T)
        w = upper.T @ v
        after = inverse + 0.5 * (w / pivots[:, None]).T @ (lower @ (y @ inverse))
        return after, (w, inverse, factors)

    w, inverses, factors = jax.lax.scan(body, jnp.eye(width, dtype=z.dtype), _chunks(z))[1]
    return w.reshape(-1, width)[:length], (z, skew, w, inverses, factors)


def _resolve_back(saved, slope):
    """The adjoint, from the last chunk to the first.

    With λ_t = N_tᵀ ∂/∂w_t and Ω_s = Σ_{t>s} λ_t w_tᵀ: ∂/∂z_s = λ_s + ½(Ω_s A z_s + Aᵀb_s) and ∂/∂A = ½ Σ b_s z_sᵀ,
    where b_s = Ω_sᵀ z_s. Differentiating the scan instead takes more than twice as long.
    """
    z, skew, w, inverses, factors = saved

    def body(omega, inputs):
        chunk, w, slope, inverse, (lower, pivots, upper) = inputs
        v, y = chunk @ inverse.T, chunk @ skew.T
        earlier = jnp.triu(upper.T @ jnp.triu(v @ slope.T, 1), 1) / pivots[:, None]
        adjoint = slope @ inverse + 0.5 * (lower.T @ earlier).T @ (y @ inverse)
        a = y @ omega.T + jnp.triu(y @ w.T, 1) @ adjoint
        b = chunk @ omega + jnp.triu(chunk @ adjoint.T, 1) @ w
        return omega + adjoint.T @ w, (adjoint + 0.5 * (a + b @ skew), b)

    inputs = (_chunks(z), w, _chunks(slope), inverses, factors)
    by_z, b = jax.lax.scan(body, jnp.zeros_like(skew), inputs, reverse=True)[1]
    return by_z.reshape(-1, z.shape[1])[: z.shape[0]], 0.5 * b.reshape(-1, z.shape[1])[: z.shape[0]].T @ z


resolve.defvjp(_resolve, _resolve_back)


def _chunks(z: Float[Array, "T d"]) -> Float[Array, "chunks c d"]:
    """Filled up with zeros, which add nothing to S."""
    return jnp.pad(z, ((0, -z.shape[0] % CHUNK), (0, 0))).reshape(-1, CHUNK, z.shape[1])


def _inverse_factors(m: Float[Array, "c c"]) -> tuple[Float[Array, "c c"], Float[Array, " c"], Float[Array, "c c"]]:
    """(L⁻¹, D, U⁻¹) of M = LDU with unit triangles, by elimination."""
    places, unit = jnp.arange(m.shape[0]), jnp.eye(m.shape[0], dtype=m.dtype)

    def body(carry, k):
        m, lower, upper = carry
        below = jnp.where(places > k, m[:, k] / m[k, k], 0.0)[:, None]
        right = jnp.where(places > k, m[k] / m[k, k], 0.0)
        return (m - below * m[k], lower - below * lower[k], upper - upper[:, k, None] * right), m[k, k]

    (_, lower, upper), pivots = jax.lax.scan(body, (m, unit, unit), places)
    return lower, pivots, upper
