"""Velocities and accelerations from positions: local polynomials whose width is chosen from the data.

They are what derivative matching starts from (:mod:`phast.fitting.shooting`). The noise on the positions is measured
from high-order differences, and the smoother that follows from it balances noise that passes against
bias.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline

from phast.data.trajectories import Trajectories
from phast.errors import InputError


class Smoother(NamedTuple):
    """A local polynomial of ``degree`` over ``window`` samples (Savitzky and Golay)."""

    window: int
    degree: int

    def kernels(self, dt: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights that give value, slope and curvature at the centre of the window."""
        half = self.window // 2
        powers = np.vander(np.arange(-half, half + 1) / half, self.degree + 1, increasing=True)
        fit, reach = np.linalg.pinv(powers), half * dt
        return fit[0], fit[1] / reach, 2.0 * fit[2] / reach**2


_NARROWEST = Smoother(7, 6)
SMOOTHERS = (_NARROWEST, *(Smoother(w, 4) for w in (7, 9, 11, 13, 15, 19, 23, 31)))


class Samples(NamedTuple):
    """Positions, velocities, accelerations and inputs at the same instants, and how far accelerations may be off."""

    q: Float[np.ndarray, "S n"]
    v: Float[np.ndarray, "S n"]
    a: Float[np.ndarray, "S n"]
    u: Float[np.ndarray, "S inputs"] | None = None
    bias: Float[np.ndarray, "S n"] | None = None


def unwrapped(data: Trajectories) -> Float[np.ndarray, "N T n"]:
    """Positions without 2π jumps in the angles."""
    steps = np.diff(data.q, axis=1)
    turns = np.where(np.asarray(data.manifold.circles), np.round(steps / (2 * np.pi)), 0.0)
    return data.q - 2 * np.pi * np.concatenate([np.zeros_like(data.q[:, :1]), np.cumsum(turns, axis=1)], axis=1)


def evenly(data: Trajectories) -> Trajectories:
    """The same motion at even steps: splines through the positions, inputs as they were held.

    They are as long as ``dt``, or shorter where the shortest trajectory would keep too few samples. All last as long
    as that one, and one that went on is cut into several.
    """
    if data.stretch is None:
        return data
    shortest = float(data.times[:, -1].min())
    dt = min(data.dt, shortest / (min(data.length, _ENOUGH) - 1))
    length = _ticks(shortest, dt)
    q, u = [], []
    for i, (t, path) in enumerate(zip(data.times, unwrapped(data), strict=True)):
        count = _ticks(t[-1], dt) // length * length
        ticks = np.minimum(dt * np.arange(count), t[-1])
        q += np.split(CubicSpline(t, path)(ticks), count // length)
        if data.u is not None:
            held = np.searchsorted(t, ticks + _LATE * dt, side="right") - 1
            u += np.split(data.u[i, held], count // length)
    return Trajectories(np.stack(q), dt, data.manifold, u=np.stack(u) if u else None)


_ENOUGH = 40  # samples for any smoother
_LATE = 1e-6  # of a step: a tick that rounding put before its sample has the input of that sample


def _ticks(duration: float, dt: float) -> int:
    return int(duration / dt + _LATE) + 1


def noise_scale(data: Trajectories) -> Float[np.ndarray, " n"]:
    """The standard deviation of white noise on each coordinate, from high-order differences.

    A smooth signal shrinks under differencing and noise grows by a known factor; the smallest of the estimates that
    orders 3 to 10 give is the least fooled by the signal. Over uneven steps differences are divided ones.
    """
    q = unwrapped(data)
    difference = _even_difference if data.stretch is None else _divided_difference
    orders = range(3, min(11, data.length))
    estimates = [np.median(np.abs(difference(data, q, order)), axis=(0, 1)) / 0.6745 for order in orders]
    return np.min(estimates, axis=0) if estimates else np.zeros(q.shape[2])


def _even_difference(data: Trajectories, q: np.ndarray, order: int) -> np.ndarray:
    """Differences between neighbours that leave white noise as large as it is."""
    growth = np.sqrt(np.prod([(order + k) / k for k in range(1, order + 1)]))  # sqrt of binomial(2 order, order)
    return np.diff(q, n=order, axis=1) / growth


def _divided_difference(data: Trajectories, q: np.ndarray, order: int) -> np.ndarray:
    """The same where steps are uneven: weights 1/Π(t_j - t_i), which take away all polynomials of lower degree."""
    t = np.lib.stride_tricks.sliding_window_view(data.times / data.dt, order + 1, axis=1)
    weights = np.ones_like(t)
    for away in range(1, order + 1):
        weights /= t - np.roll(t, away, axis=-1)
    weights /= np.linalg.norm(weights, axis=-1, keepdims=True)
    windows = np.lib.stride_tricks.sliding_window_view(q, order + 1, axis=1)
    return np.einsum("sjik,sjk->sji", windows, weights)


def choose_smoother(data: Trajectories, noise: Float[np.ndarray, " n"]) -> Smoother:
    """The smoother with the least estimated error in the acceleration: noise that passes, plus bias.

    The bias is what a polynomial of higher degree over the same window finds beside it, less the noise of that. Each
    coordinate counts by its own spread, so that units do not decide.
    """
    q = unwrapped(data)
    spread = np.std(q, axis=(0, 1)) + np.finfo(float).tiny
    q, noise = q / spread, float(np.sqrt(np.mean((noise / spread) ** 2)))
    best, least = _NARROWEST, np.inf
    for smoother in SMOOTHERS:
        if smoother.window > data.length:
            continue
        kernel = smoother.kernels(data.dt)[2]
        risk = noise**2 * float(kernel @ kernel)
        if smoother != _NARROWEST:
            extra = Smoother(smoother.window, smoother.degree + 2).kernels(data.dt)[2] - kernel
            risk += max(float(np.mean(_slide(q, extra) ** 2)) - noise**2 * float(extra @ extra), 0.0)
        if risk < least:
            best, least = smoother, risk
    return best


def differentiate(data: Trajectories, smoother: Smoother) -> Samples:
    """(q, v, a) wherever the smoother's window fits, flattened over trajectories.

    An input that is held from sample to sample jumps at each: the mean of both sides stands beside the acceleration.
    The bias is what the polynomial of next lower degree would have made of the curvature: large where the motion is
    sharper than its samples show.
    """
    if smoother.window > data.length:
        raise InputError(f"trajectories of {data.length} samples are too short for a window of {smoother.window}")
    q = unwrapped(data)
    n = q.shape[2]
    derivatives = [_slide(q, kernel).reshape(-1, n) for kernel in smoother.kernels(data.dt)]
    lower = Smoother(smoother.window, smoother.degree - 2).kernels(data.dt)[2]
    bias = np.abs(_slide(q, lower).reshape(-1, n) - derivatives[2])
    if data.u is None:
        return Samples(*derivatives, bias=bias)
    half = smoother.window // 2
    held = 0.5 * (data.u[:, half - 1 : data.length - half - 1] + data.u[:, half : data.length - half])
    return Samples(*derivatives, held.reshape(-1, data.u.shape[2]), bias)


def _slide(q: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(q, len(kernel), axis=1) @ kernel
