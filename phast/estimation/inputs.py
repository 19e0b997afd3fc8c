"""What is held over each time step: known inputs, and how long the step lasts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from phast.data.trajectories import Trajectories


class Held(NamedTuple):
    """What is held over each step: the input, and how long the step lasts in units of the sampling step."""

    u: Float[Array, "*steps inputs"] | None = None
    stretch: Float[Array, "*steps"] | None = None


Inputs = Held | Float[Array, "T inputs"] | None  # a bare array is inputs over even steps
Past = Held | Float[Array, "before inputs"] | None  # what acted between the samples of a context


def steps_of(held: Inputs, start: int | None = None, stop: int | None = None) -> Past:
    """Some of the steps."""
    return jax.tree.map(lambda x: x[start:stop], held)


def nothing_held(held: PyTree) -> PyTree:
    """No input over a step of the usual length, in the form of ``held``."""
    if not isinstance(held, Held):
        return jax.tree.map(jnp.zeros_like, held)
    return Held(jax.tree.map(jnp.zeros_like, held.u), jax.tree.map(jnp.ones_like, held.stretch))


def held_before(held: Inputs) -> Inputs:
    """What was held over the step that led to each sample; nothing before the first."""
    return jax.tree.map(lambda none, x: jnp.concatenate([none, x[:-1]]), nothing_held(steps_of(held, 0, 1)), held)


def held_over(windows: Trajectories) -> Held | None:
    """What is held between the samples of each window; None where there are no inputs and all steps are even."""
    return steps_within(held_everywhere(windows), 0, -1)


def steps_within(held: PyTree, start: int, stop: int | None = None) -> PyTree:
    """Some of the steps of many windows."""
    return jax.tree.map(lambda x: x[:, start:stop], held)


def held_everywhere(data: Trajectories) -> Held | None:
    """What is held from each sample on; None where there are no inputs and all steps are even."""
    if data.u is None and data.stretch is None:
        return None
    u, stretch = (None if x is None else jnp.asarray(x) for x in (data.u, data.stretch))
    return Held(u, None if stretch is None else stretch[..., 0])
