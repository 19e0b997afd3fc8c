"""From positions to velocities and momenta, causally.

An observer reads q_0 … q_t and answers with a velocity at t. Each comes in two forms that agree: ``velocities`` over a
whole trajectory at once, for training, and ``start`` / ``update`` one sample at a time with a constant-size cache, for
forecasting. A canonicalizer then makes a momentum of the velocity.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from phast.components.network import silu
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError


class AbstractObserver(eqx.Module):
    """Positions in, velocity estimates out; row t uses rows 0 … t only."""

    @abstractmethod
    def velocities(self, q: Float[Array, "T n"], dt: float) -> Float[Array, "T n"]:
        """Estimates along a whole trajectory."""

    @abstractmethod
    def start(self, q: Float[Array, " n"]) -> tuple[PyTree, Float[Array, " n"]]:
        """The cache and the estimate after the first sample."""

    @abstractmethod
    def update(self, cache: PyTree, q: Float[Array, " n"], dt: float) -> tuple[PyTree, Float[Array, " n"]]:
        """The cache and the estimate after one more sample."""


class FiniteDifference(AbstractObserver):
    """(q_t - q_{t-1})/dt, zero at t = 0 (Eq. 6)."""

    manifold: Manifold

    def velocities(self, q, dt):
        steps = self.manifold.difference(q[1:], q[:-1]) / dt
        return jnp.concatenate([jnp.zeros_like(q[:1]), steps])

    def start(self, q):
        return q, jnp.zeros_like(q)

    def update(self, cache, q, dt):
        return q, self.manifold.difference(q, cache) / dt


class FixedLagSmoother(AbstractObserver):
    """MAP smoothing over the last samples under nearly constant velocity, then a backward difference at their end.

    Minimises Σ (q - y)²/σ² + Σ (second differences)²/(dt⁴ σ_a²) (the paper's section on control). Its solution is
    linear in the samples, so the quadratic problem is solved once for each number of samples. A velocity then is a
    weighted sum of their finite differences: row k of ``weights`` is for k + 1 differences, the newest first.
    """

    manifold: Manifold
    weights: Float[np.ndarray, "steps steps"] = eqx.field(converter=np.asarray)

    @classmethod
    def create(cls, manifold: Manifold, dt: float, *, window: int, noise: float, acceleration: float = 10.0):
        """For a ``window`` of samples, the standard deviation ``noise`` of a position, and that of accelerations."""
        if window < 2 or not (dt > 0.0 and noise >= 0.0 and acceleration > 0.0):
            raise InputError(f"a smoother needs 2 samples or more, noise ≥ 0 and accelerations > 0: got {window}")
        stiffness = (noise / (acceleration * dt**2)) ** 2
        rows = [_last_slope(count, stiffness) for count in range(2, window + 1)]
        return cls(manifold, np.stack([np.pad(row, (0, window - 1 - len(row))) for row in rows]))

    def velocities(self, q, dt):
        def body(cache, sample):
            return self.update(cache, sample, dt)

        cache, first = self.start(q[0])
        return jnp.concatenate([first[None], jax.lax.scan(body, cache, q[1:])[1]])

    def start(self, q):
        return (q, jnp.zeros((len(self.weights), *q.shape), q.dtype), jnp.asarray(0)), jnp.zeros_like(q)

    def update(self, cache, q, dt):
        previous, differences, count = cache
        newest = self.manifold.difference(q, previous) / dt
        differences = jnp.concatenate([newest[None], differences[:-1]])
        row = jnp.asarray(self.weights, q.dtype)[jnp.minimum(count, len(self.weights) - 1)]
        return (q, differences, count + 1), row @ differences


def _last_slope(count: int, stiffness: float) -> Float[np.ndarray, " steps"]:
    """What each finite difference of ``count`` samples, the newest first, weighs in the smoothed last one."""
    bend = np.diff(np.eye(count), n=2, axis=0)
    smooth = np.linalg.inv(np.eye(count) + stiffness * bend.T @ bend)
    from_positions = smooth[-1] - smooth[-2]
    return np.cumsum(from_positions[::-1])[:-1]


class CausalConvolution(eqx.Module):
    """y_t = b + Σ_j W_j x_{t - j·dilation}, with x = 0 before the start."""

    weight: Float[Array, "taps inputs outputs"]
    bias: Float[Array, " outputs"]
    dilation: int = 1

    @classmethod
    def create(cls, taps: int, inputs: int, outputs: int, *, dilation: int = 1, key: PRNGKeyArray):
        w_key, b_key = jax.random.split(key)
        bound = (taps * inputs) ** -0.5
        weight = jax.random.uniform(w_key, (taps, inputs, outputs), minval=-bound, maxval=bound)
        return cls(weight, jax.random.uniform(b_key, (outputs,), minval=-bound, maxval=bound), dilation)

    @property
    def reach(self) -> int:
        """How many earlier samples an output needs: the length of the cache."""
        return (self.weight.shape[0] - 1) * self.dilation

    def __call__(self, x: Float[Array, "T inputs"]) -> Float[Array, "T outputs"]:
        padded = jnp.concatenate([jnp.zeros((self.reach, x.shape[1]), x.dtype), x])
        shifted = [padded[self.reach - j * self.dilation :][: x.shape[0]] for j in range(self.weight.shape[0])]
        return self._apply(shifted)

    def empty_tail(self) -> Float[Array, "reach inputs"]:
        return jnp.zeros((self.reach, self.weight.shape[1]), self.weight.dtype)

    def update(self, tail: Float[Array, "reach inputs"], x: Float[Array, " inputs"]):
        """(new tail, y) for one more sample."""
        window = jnp.concatenate([tail, x[None]])
        taps = [window[self.reach - j * self.dilation] for j in range(self.weight.shape[0])]
        return window[1:], self._apply(taps)

    def _apply(self, taps: list[Array]) -> Array:
        stacked = jnp.concatenate(taps, axis=-1)
        return stacked @ self.weight.reshape(-1, self.weight.shape[-1]) + self.bias


class ConvolutionalObserver(AbstractObserver):
    """FD+TCN: the finite difference plus a causal convolutional correction of it (Eq. 7).

    Two convolutions of three taps read (q, fd) with angles wrapped; a linear head makes the correction. The head starts
    at zero, so that training begins from the finite difference itself, unless ``random_head`` is asked for.
    225 n + 3136 parameters. A noise-conditioned one also reads ``noise``, the size of the noise in a finite difference.
    """

    manifold: Manifold
    layers: tuple[CausalConvolution, ...]
    head: CausalConvolution
    noise: Float[Array, ""] | float | None = None

    @classmethod
    def create(
        cls,
        manifold: Manifold,
        *,
        width: int = 32,
        taps: int = 3,
        dilations: tuple[int, ...] = (1, 2),
        random_head: bool = False,
        noise: float | None = None,
        key: PRNGKeyArray,
    ) -> "ConvolutionalObserver":
        keys = jax.random.split(key, len(dilations) + random_head)
        widths = (2 * manifold.size + (noise is not None), *[width] * len(dilations))
        layers = tuple(
            CausalConvolution.create(taps, widths[i], widths[i + 1], dilation=d, key=keys[i])
            for i, d in enumerate(dilations)
        )
        if random_head:
            return cls(manifold, layers, CausalConvolution.create(1, width, manifold.size, key=keys[-1]), noise)
        head = CausalConvolution(jnp.zeros((1, width, manifold.size)), jnp.zeros(manifold.size))
        return cls(manifold, layers, head, noise)

    def velocities(self, q, dt):
        rough = FiniteDifference(self.manifold).velocities(q, dt)
        x = self._features(q, rough)
        for layer in self.layers:
            x = silu(layer(x))
        return rough + self.head(x)

    def start(self, q):
        return self._correct(q, jnp.zeros_like(q), tuple(layer.empty_tail() for layer in self.layers))

    def update(self, cache, q, dt):
        previous, tails = cache
        return self._correct(q, self.manifold.difference(q, previous) / dt, tails)

    def _correct(self, q, rough, tails):
        x = self._features(q, rough)
        new_tails = []
        for layer, tail in zip(self.layers, tails, strict=True):
            tail, x = layer.update(tail, x)
            new_tails.append(tail)
            x = silu(x)
        return (q, tuple(new_tails)), rough + self.head(x[None])[0]

    def _features(self, q: Float[Array, "*T n"], rough: Float[Array, "*T n"]) -> Float[Array, "*T inputs"]:
        told = [] if self.noise is None else [jnp.broadcast_to(jnp.asarray(self.noise, q.dtype), (*q.shape[:-1], 1))]
        return jnp.concatenate([self.manifold.wrap(q), rough, *told], axis=-1)


# --- canonicalizers --------------------------------------------------------------------------------------------------


class AbstractCanonicalizer(eqx.Module):
    """C: (q, velocity estimate) -> momentum."""

    @abstractmethod
    def __call__(self, system: PortHamiltonian, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]: ...


class IdentityCanonicalizer(AbstractCanonicalizer):
    """p = v: a velocity-like latent, a momentum up to the (unknown) mass."""

    def __call__(self, system, q, v):
        return v


class MassCanonicalizer(AbstractCanonicalizer):
    """p = M(q) v."""

    def __call__(self, system, q, v):
        return system.momentum(q, v)
