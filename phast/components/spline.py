"""Splines on a grid over the configuration space: fields that are linear in a few local coefficients.

A :class:`Grid` lays evenly spaced nodes along one or two coordinates, around the circle for an angle and between two
ends for a line, and :meth:`Grid.value` contracts node coefficients with B-spline weights of the chosen degree: 1 for
damping (it follows kinks, and stays positive where its nodes are), 3 for potentials (their forces are smooth). Fields
of this kind are what second-order fits want: few coefficients, each felt only nearby, and a plain measure of roughness.
A field over several coordinates is a sum of such: fine ones along each coordinate, coarse ones over pairs.
"""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from phast.data.manifold import TWO_PI, Manifold
from phast.errors import InputError

LARGEST = 2  # coordinates under one grid: a tensor grid grows as nodes**k


class AbstractSmooth(eqx.Module):
    """A field whose roughness a fit may hold down, in each direction with a weight of its own."""

    @abstractmethod
    def values(self) -> Float[Array, " k"]:
        """All coefficients of the field."""

    @abstractmethod
    def roughness(self) -> tuple[Float[Array, " k"], ...]:
        """What a smooth field has little of, per direction; linear in the coefficients."""


class Grid(eqx.Module):
    """``counts[i]`` nodes along the i-th of the spanned coordinates, over ``[low[i], high[i]]`` where it is a line.

    ``axes`` names the coordinates that the grid spans; all of them if left out.
    """

    manifold: Manifold
    counts: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    axes: tuple[int, ...] | None = None

    def __check_init__(self):
        if len(self.spanned) > LARGEST:
            raise InputError(
                f"one grid spans at most {LARGEST} coordinates, not {len(self.spanned)}: add up grids over fewer"
            )

    @classmethod
    def over(
        cls, manifold: Manifold, q: Float[Array, "samples n"], count: int, axes: tuple[int, ...] | None = None
    ) -> "Grid":
        """A grid with ``count`` nodes per spanned coordinate over the range of the samples."""
        spanned = tuple(range(manifold.size)) if axes is None else axes
        low, high = jnp.min(q, axis=0), jnp.max(q, axis=0)
        margin = 0.02 * (high - low) + jnp.finfo(q.dtype).tiny
        return cls(
            manifold,
            (count,) * len(spanned),
            tuple(float((low - margin)[a]) for a in spanned),
            tuple(float((high + margin)[a]) for a in spanned),
            axes,
        )

    @property
    def spanned(self) -> tuple[int, ...]:
        return tuple(range(self.manifold.size)) if self.axes is None else self.axes

    def value(self, coefficients: Float[Array, "..."], q: Float[Array, " n"], degree: int) -> Float[Array, "..."]:
        """Σ_k B_k(q) c_k, over the leading axes of ``coefficients``, one per spanned coordinate."""
        block = coefficients
        for axis, coordinate in enumerate(self.spanned):
            nodes, weights = self._local(axis, q[coordinate], degree)
            block = jnp.tensordot(weights, block[nodes], axes=1)
        return block

    def _local(self, axis: int, x: Float[Array, ""], degree: int) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
        """The nodes that x feels along one axis of the grid, and their weights."""
        count = self.counts[axis]
        if self.manifold.circles[self.spanned[axis]]:
            turns = x / TWO_PI
            s = (turns - jnp.floor(turns)) * count
            cell = jnp.floor(s)
            nodes = (cell.astype(int) + jnp.arange(-(degree // 2), degree // 2 + 2)) % count
            return nodes, _weights(s - cell, degree)
        inside = count - degree
        s = (x - self.low[axis]) / (self.high[axis] - self.low[axis]) * inside
        within = jnp.clip(s, 0.0, inside)
        cell = jnp.clip(jnp.floor(within), 0, inside - 1)
        weights = _weights(within - cell, degree)
        if degree == 3:  # beyond its ends a cubic is straight, so that its force stays what it was there
            weights = weights + (s - within) * _slopes(within - cell)
        return cell.astype(int) + jnp.arange(degree + 1), weights

    def roughness(self, coefficients: Float[Array, "..."], order: int) -> tuple[Float[Array, " k"], ...]:
        """Differences of this order between neighbouring nodes, along every axis."""
        parts = []
        for axis, coordinate in enumerate(self.spanned):
            ring = coefficients
            if self.manifold.circles[coordinate]:
                ring = jnp.concatenate([ring, jnp.take(ring, jnp.arange(order), axis=axis)], axis=axis)
            parts.append(jnp.diff(ring, n=order, axis=axis).reshape(-1))
        return tuple(parts)


def _weights(f: Float[Array, ""], degree: int) -> Float[Array, " k"]:
    if degree == 1:
        return jnp.stack([1.0 - f, f])
    if degree == 3:
        g = 1.0 - f
        return jnp.stack([g**3, 3 * f**3 - 6 * f**2 + 4, 3 * g**3 - 6 * g**2 + 4, f**3]) / 6.0
    raise ValueError(f"splines of degree 1 or 3, not {degree}")


def _slopes(f: Float[Array, ""]) -> Float[Array, " k"]:
    """How the weights of a cubic change with f."""
    g = 1.0 - f
    return jnp.stack([-(g**2), 3 * f**2 - 4 * f, 4 * g - 3 * g**2, f**2]) / 2.0
