"""The closed loop: noisy positions to a controller, its input to the true plant, sample by sample.

Everything is one program over samples and, batched by ``vmap``, over trials.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from phast.control.plant import Plant
from phast.control.ports import AbstractPortEstimator
from phast.control.shaping import EnergyCasimir
from phast.dynamics.integrators import State
from phast.errors import InputError


class Decision(NamedTuple):
    """What a controller decides at a sample: the input, and the port output that it believes in."""

    u: Float[Array, " inputs"]
    y: Float[Array, " inputs"]


class AbstractController(eqx.Module):
    """Positions in, inputs out. ``state`` is the true one, which only estimators of full states may read."""

    @abstractmethod
    def start(self, q: Float[Array, " n"], state: State) -> tuple[PyTree, Decision]:
        """The cache and the input after the first sample."""

    @abstractmethod
    def update(
        self, cache: PyTree, q: Float[Array, " n"], u: Float[Array, " inputs"], state: State
    ) -> tuple[PyTree, Decision]:
        """The cache and the next input; ``u`` is what the actuators applied since the last sample."""


class Feedback(AbstractController):
    """Energy–Casimir control with an estimated port output."""

    law: EnergyCasimir
    estimator: AbstractPortEstimator
    plant: Plant  # its dt, its coordinates and its port; never its physics

    def __check_init__(self):
        if self.law.inputs != self.plant.inputs:
            raise InputError(
                f"a law for {self.law.inputs} input(s) cannot drive a plant with {self.plant.inputs}: give one gain, "
                "and one entry of the target, for each input"
            )

    def start(self, q, state):
        cache, y = self.estimator.start(q, state)
        return self._decide(self._collocated(q), q, cache, y)

    def update(self, cache, q, u, state):
        xi, followed, seen = cache
        seen, y = self.estimator.update(seen, q, u, state)
        return self._decide(xi, followed + self.plant.manifold.difference(q, followed), seen, y)

    def _decide(self, xi, followed, seen, y):
        """The next cache and the input; ``followed`` is the measured position, its angles without jumps of 2π."""
        u = self.law.input(xi, y)
        xi = self.law.advance(xi, y, self._collocated(followed) - xi, self.plant.dt)
        return (xi, followed, seen), Decision(u, y)

    def _collocated(self, q: Float[Array, " n"]) -> Float[Array, " inputs"]:
        return self.plant.system.port_matrix(q.shape[0]).T @ q


class Trace(NamedTuple):
    """A closed loop, sample by sample: true states, what was measured, asked for, applied and believed."""

    q: Float[Array, "T n"]
    p: Float[Array, "T n"]
    measured: Float[Array, "T n"]
    asked: Float[Array, "T inputs"]
    applied: Float[Array, "T inputs"]
    y: Float[Array, "T inputs"]
    y_believed: Float[Array, "T inputs"]

    @property
    def effort(self) -> Float[Array, "*batch"]:
        """``Σ |u_t|²`` over samples; times dt it is an integral."""
        return jnp.sum(self.applied**2, axis=(-2, -1))

    @property
    def saturated(self) -> Float[Array, "*batch"]:
        """The share of samples at which the actuators could not apply what was asked for."""
        return jnp.mean(jnp.any(self.applied != self.asked, axis=-1), axis=-1)


def close_loop(
    plant: Plant,
    controller: AbstractController,
    q: Float[Array, " n"],
    p: Float[Array, " n"],
    steps: int,
    *,
    noise: Float[Array, "*each"] | float = 0.0,
    external: Float[Array, "steps inputs"] | None = None,
    key: PRNGKeyArray,
) -> Trace:
    """``steps`` samples of the plant from (q, p) under a controller that sees positions with Gaussian ``noise``.

    ``noise`` is one standard deviation, or one for each coordinate. ``external`` is v_ext, added to what the controller
    asks for (the paper's forced mode): row t acts from sample t on. Positions are not wrapped: an encoder counts on,
    and so does ξ.
    """
    forced = jnp.zeros((steps, plant.inputs), q.dtype) if external is None else external
    disturbance = noise * jax.random.normal(key, (steps, q.shape[0]), q.dtype)

    def sample(state: State, cache: PyTree, seen: Float[Array, " n"], decided: Decision, v: Float[Array, " inputs"]):
        asked = decided.u + v
        applied = plant.saturated(asked)
        row = Trace(*state, seen, asked, applied, plant.port_output(*state), decided.y)
        return (plant(*state, applied), cache, applied), row

    def body(carry, now):
        (state, cache, applied), (off, v) = carry, now
        seen = state[0] + off
        cache, decided = controller.update(cache, seen, applied, state)
        return sample(state, cache, seen, decided, v)

    first = q + disturbance[0]
    cache, decided = controller.start(first, (q, p))
    carry, row = sample((q, p), cache, first, decided, forced[0])
    _, rows = jax.lax.scan(body, carry, (disturbance[1:], forced[1:]))
    return jax.tree.map(lambda head, tail: jnp.concatenate([head[None], tail]), row, rows)
