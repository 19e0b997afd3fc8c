"""The paper's data: training, validation and test trajectories of a system, simulated once per machine."""

import contextlib
import dataclasses
import hashlib
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from phast.data.files import cache_directory
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories, load_trajectories, save_trajectories
from phast.dynamics.simulation import STEPS_PER_SAMPLE, TOLERANCE, initial_states, trajectories_from
from phast.dynamics.systems import System
from phast.errors import InputError

_CACHE_FORMAT = "1"


class Split(NamedTuple):
    """What is fitted, what selects, and what is reported."""

    train: Trajectories
    validation: Trajectories
    test: Trajectories


def benchmark_split(
    system: System,
    *,
    sizes: tuple[int, int, int] = (1000, 200, 200),
    length: int = 200,
    seed: int = 42,
    dt: float | None = None,
) -> Split:
    """The paper's protocol: one stream of initial states, cut into 1000/200/200 trajectories of 200 samples.

    Simulated once per machine: the result stays in the cache directory.
    """
    if min(sizes) < 1:
        raise InputError(f"each part of a split needs at least one trajectory, got sizes {sizes}")
    dt = system.dt if dt is None else dt
    q0, p0 = initial_states(system, sum(sizes), seed)
    path = cache_directory() / f"{_fingerprint(system, q0, p0, length, dt)}.npz"
    data = _recall(path, system.manifold, (*q0.shape[:1], length, *q0.shape[1:]))
    if data is None:
        data = trajectories_from(system, q0, p0, length, dt)
        with contextlib.suppress(OSError, InputError):  # a cache that cannot be written costs time, not the result
            path.parent.mkdir(parents=True, exist_ok=True)
            save_trajectories(data, path)
    train, validation = sizes[0], sizes[0] + sizes[1]
    cuts = slice(0, train), slice(train, validation), slice(validation, None)
    return Split(*(data.subset(cut) for cut in cuts))


def _fingerprint(system: System, q0: np.ndarray, p0: np.ndarray, length: int, dt: float) -> str:
    """A hash of all that determines the data.

    The initial states stand for the seed and the distribution; the compiled vector field stands for the physics, so a
    changed line in a component, or in a user's own function, is another key.
    """
    with jax.enable_x64(True):
        program = jax.jit(lambda q, p: system.dynamics.vector_field(q, p)).lower(q0[0], p0[0]).as_text()
    described = repr((_CACHE_FORMAT, repr(system.dynamics), program, length, dt, TOLERANCE, STEPS_PER_SAMPLE))
    return hashlib.sha256(described.encode() + q0.tobytes() + p0.tobytes()).hexdigest()[:32]


def _recall(path: Path, manifold: Manifold, shape: tuple[int, ...]) -> Trajectories | None:
    """The cached data, or None where there is none that can be read."""
    try:
        data = dataclasses.replace(load_trajectories(path), manifold=manifold)
    except Exception:  # whatever is wrong with the file, its content can be simulated again
        return None
    return data if data.q.shape == shape and data.p is not None and data.v is not None else None
