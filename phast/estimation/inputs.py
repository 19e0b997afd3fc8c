"""What is held over each time step: known inputs, and how long the step lasts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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


def held_over(windows: Trajectories) -> Held | None:
    """What is held between the samples of each window; None where there are no inputs and all steps are even."""
    if windows.u is None and windows.stretch is None:
        return None
    u, stretch = (None if x is None else jnp.asarray(x[:, :-1]) for x in (windows.u, windows.stretch))
    return Held(u, None if stretch is None else stretch[..., 0])


def steps_within(held: PyTree, start: int, stop: int | None = None) -> PyTree:
    """Some of the steps of many windows."""
    return jax.tree.map(lambda x: x[:, start:stop], held)


def held_everywhere(piece: Trajectories) -> tuple[np.ndarray, Held | None]:
    """The positions of one trajectory, and what is held from each of them on."""
    if piece.u is None and piece.stretch is None:
        return piece.q[0], None
    u, stretch = (None if x is None else jnp.asarray(x) for x in (piece.u, piece.stretch))
    return piece.q[0], Held(u, None if stretch is None else stretch[..., 0])
