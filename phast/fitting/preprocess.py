"""What a fit needs to know of the data, computed once: noise, derivatives, scales, the length of a window."""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from phast.data.recording import SHORTEST
from phast.data.trajectories import Trajectories, refuse_turns
from phast.errors import InputError
from phast.estimation.derivatives import Samples, Smoother, choose_smoother, differentiate, evenly, noise_scale

WINDOW = 40  # samples, at least where the data have them
_LIGHT = 0.1  # friction is sought from a tenth of the force that moves things
_TINY = np.finfo(float).tiny


def check_motion(data: Trajectories) -> None:
    """Refuse positions from which nothing can be learned."""
    if data.length < SHORTEST:
        raise InputError(f"trajectories of {data.length} samples are too short to learn from: give at least {SHORTEST}")
    for i, name in enumerate(data.manifold.names):
        if np.ptp(data.q[..., i]) == 0.0:
            raise InputError(f"'{name}' never moves: leave it out, or record motion")
    refuse_turns(data.q, data.manifold)


class Scales(NamedTuple):
    """How large things are: typical position, velocity, acceleration and input, and the mass that anchors them."""

    position: float
    velocity: float
    acceleration: float
    input: float
    mass: float

    @property
    def force(self) -> float:
        return self.mass * self.acceleration

    @property
    def energy(self) -> float:
        return self.mass * self.velocity**2

    @property
    def damping(self) -> float:
        return _LIGHT * self.force / self.velocity


class Preprocessed:
    """Trajectories that move, and what follows from them. Each is computed when it is first needed, and kept."""

    def __init__(self, data: Trajectories):
        check_motion(data)
        self.data = data

    @functools.cached_property
    def even(self) -> Trajectories:
        """The same motion at even steps."""
        return evenly(self.data)

    @functools.cached_property
    def noise(self) -> Float[np.ndarray, " n"]:
        """The standard deviation of the noise on each coordinate."""
        return noise_scale(self.data)

    @functools.cached_property
    def smoother(self) -> Smoother:
        """The smoother that the derivatives are taken with."""
        return choose_smoother(self.even, self.noise)

    @functools.cached_property
    def samples(self) -> Samples:
        """Positions, velocities and accelerations."""
        return differentiate(self.even, self.smoother)

    @functools.cached_property
    def scales(self) -> Scales:
        """From the positions and their derivatives, with a mass of one."""
        moved = (typical(x - x.mean(axis=0)) for x in self.samples[:3])
        u = self.data.u
        return Scales(*moved, 1.0 if u is None else typical(u.reshape(-1, u.shape[2])), 1.0)

    @functools.cached_property
    def natural_window(self) -> int:
        """Samples in half a swing, within limits: long enough to feel friction, short enough to be explained."""
        q, v = self.samples.q, self.samples.v
        slowness = np.std(q, axis=0) / np.maximum(np.std(v, axis=0), _TINY)
        return int(np.clip(np.pi * np.median(slowness) / self.data.dt, WINDOW, 5 * WINDOW))


def typical(x: Float[np.ndarray, "samples n"]) -> float:
    """Of coordinates in different units, the geometric mean."""
    each = np.sqrt(np.mean(x**2, axis=0))
    each = each[each > 0.0]
    return float(np.exp(np.mean(np.log(each)))) if len(each) else 1.0
