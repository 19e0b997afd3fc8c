"""Right-hand sides by networks, trained on derivative samples or through the steps of an integrator."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.network import MLP
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.estimation.derivatives import Samples, unwrapped
from phast.paper.baselines.dhnn import DHNN
from phast.paper.flow import AbstractField, follow


class Spreads(NamedTuple):
    """What a network takes as one: the spread of velocities and accelerations, per coordinate."""

    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]

    @classmethod
    def of(cls, samples: Samples) -> "Spreads":
        return cls(*(tuple(map(float, np.std(x, axis=0))) for x in (samples.v, samples.a)))

    def arrays(self, dtype) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return jnp.asarray(self.velocity, dtype), jnp.asarray(self.acceleration, dtype)


class DhnnField(AbstractField):
    """A DHNN in units of order one, angles as their sines and cosines."""

    network: DHNN
    manifold: Manifold
    units: Spreads
    harmonics: int

    @classmethod
    def create(cls, manifold: Manifold, units: Spreads, *, harmonics: int, key: PRNGKeyArray) -> "DhnnField":
        inputs = manifold.feature_count(harmonics) + manifold.size
        return cls(in_single_precision(DHNN.create(manifold.size, inputs=inputs, key=key)), manifold, units, harmonics)

    def __call__(self, q, v):
        velocity, acceleration = self.units.arrays(v.dtype)
        rate = self.network(jnp.concatenate([self.manifold.features(q, self.harmonics), v / velocity]))
        return velocity * rate[: q.shape[0]], acceleration * rate[q.shape[0] :]


class NeuralField(AbstractField):
    """q'' by a perceptron with three hidden layers, in units of order one, angles as their sines and cosines."""

    network: MLP
    manifold: Manifold
    units: Spreads
    harmonics: int

    @classmethod
    def create(
        cls, manifold: Manifold, units: Spreads, *, width: int, harmonics: int, key: PRNGKeyArray
    ) -> "NeuralField":
        inputs = manifold.feature_count(harmonics) + manifold.size
        network = MLP.create((inputs, width, width, width, manifold.size), key=key)
        return cls(in_single_precision(network), manifold, units, harmonics)

    def __call__(self, q, v):
        velocity, acceleration = self.units.arrays(v.dtype)
        return v, acceleration * self.network(
            jnp.concatenate([self.manifold.features(q, self.harmonics), v / velocity])
        )


def in_single_precision(tree: Any) -> Any:
    """Arrays in single precision: twice as fast, and networks do not reach its limits."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, tree)


def matching_loss(field: DhnnField | NeuralField, batch: Sequence[Array]) -> Float[Array, ""]:
    """Mean squared error of (q', v') in the field's units."""
    q, v, a = batch
    dq, dv = jax.vmap(field)(q, v)
    velocity, acceleration = field.units.arrays(v.dtype)
    return jnp.mean(((dq - v) / velocity) ** 2) + jnp.mean(((dv - a) / acceleration) ** 2)


def shooting_loss(dt: float, field: AbstractField, batch: Sequence[Array]) -> Float[Array, ""]:
    """Mean squared error of positions along windows, each followed from its first state."""
    q, v, future = batch
    paths = jax.vmap(lambda a, b: follow(field, a, b, dt, future.shape[1], 1))(q, v)
    return jnp.mean((paths - future) ** 2)


def windows(
    data: Trajectories, samples: Samples, half: int, length: int
) -> tuple[Float[np.ndarray, "W n"], Float[np.ndarray, "W n"], Float[np.ndarray, "W L n"]]:
    """(q, v) of the samples, the first of which lies ``half`` steps into each trajectory, and the positions after them.

    The positions are the measured ones: smoothing would carry its bias into the fit.
    """
    n = data.manifold.size
    length = min(length, data.length - half - 1)
    after = np.lib.stride_tricks.sliding_window_view(unwrapped(data)[:, half + 1 :], length, axis=1)
    q, v = (x.reshape(len(data), -1, n)[:, : after.shape[1]] for x in samples[:2])
    future = np.moveaxis(after[:, : q.shape[1]], -1, 2)
    return q.reshape(-1, n), v.reshape(-1, n), future.reshape(-1, length, n)


@eqx.filter_jit
def _descend(static, params, loss, data, order, optimiser):
    def step(carry, chosen):
        params, state = carry
        value, slope = jax.value_and_grad(lambda p: loss(eqx.combine(p, static), [x[chosen] for x in data]))(params)
        change, state = optimiser.update(slope, state, params)
        return (optax.apply_updates(params, change), state), value

    (params, _), values = jax.lax.scan(step, (params, optimiser.init(params)), order)
    return params, values


def descend(
    field: AbstractField,
    loss: Callable[[Any, Sequence[Array]], Array],
    data: Sequence[np.ndarray],
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> tuple[AbstractField, Float[np.ndarray, " steps"]]:
    """AdamW with a cosine schedule over random batches of the rows of ``data``; also the loss at every step."""
    order = np.random.default_rng(seed).integers(len(data[0]), size=(steps, min(batch, len(data[0]))))
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, max(1, steps // 20), steps)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-5))
    params, static = eqx.partition(field, eqx.is_inexact_array)
    rows = [jnp.asarray(x, dtype=jnp.float32) for x in data]
    params, values = _descend(static, params, loss, rows, jnp.asarray(order), optimiser)
    return eqx.combine(params, static), np.asarray(values)
