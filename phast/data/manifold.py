"""Coordinates on lines and circles.

A configuration q lives on a product of lines and circles, R^a x (S^1)^b. It is stored as a plain vector of
length n in which angles are unwrapped; everything that compares two configurations goes through
:meth:`Manifold.difference`, so that 2π is never mistaken for a distance.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from phast.errors import InputError

TWO_PI = 2.0 * math.pi


class Manifold(eqx.Module):
    """A product of lines and circles: one name and one kind per coordinate."""

    names: tuple[str, ...] = eqx.field(static=True)
    circles: tuple[bool, ...] = eqx.field(static=True)

    def __check_init__(self):
        if not self.names:
            raise InputError("a manifold needs at least one coordinate")
        if len(self.names) != len(self.circles):
            raise InputError(f"{len(self.names)} coordinate names but {len(self.circles)} kinds")
        if len(set(self.names)) != len(self.names):
            raise InputError(f"coordinate names must differ, got {', '.join(self.names)}")

    @classmethod
    def parse(cls, *coordinates: str) -> "Manifold":
        """``Manifold.parse("x", "theta:angle")``: a name each, marked ``:angle`` where it lives on a circle."""
        names, circles = [], []
        for coordinate in coordinates:
            name, _, kind = coordinate.partition(":")
            if kind not in ("", "line", "angle"):
                raise InputError(f"coordinate '{coordinate}': the kind is 'line' or 'angle', not '{kind}'")
            names.append(name)
            circles.append(kind == "angle")
        return cls(tuple(names), tuple(circles))

    @property
    def coordinates(self) -> list[str]:
        """``["x", "theta:angle"]``: what :meth:`parse` reads."""
        kinds = zip(self.names, self.circles, strict=True)
        return [f"{name}:angle" if circle else name for name, circle in kinds]

    @property
    def size(self) -> int:
        """n, the degrees of freedom."""
        return len(self.names)

    def wrap(self, q: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        """Angles into [-π, π]; other coordinates as they are."""
        turns = jnp.where(jnp.asarray(self.circles), jnp.round(q / TWO_PI), 0.0)
        return q - TWO_PI * turns

    def difference(self, a: Float[Array, "*batch n"], b: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        """The shortest way from b to a."""
        return self.wrap(a - b)

    def squared_error(self, a: Float[Array, "*batch n"], b: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        """err(a, b) of the paper's appendix on metrics, per coordinate."""
        return self.difference(a, b) ** 2

    def feature_count(self, harmonics: int) -> int:
        """F, the length of :meth:`features`."""
        return sum(2 * harmonics if circle else 1 for circle in self.circles)

    def features(self, q: Float[Array, " n"], harmonics: int) -> Float[Array, " F"]:
        """Lines as they are; each angle as (sin kθ, cos kθ) for k = 1 … harmonics."""
        orders = jnp.arange(1, harmonics + 1, dtype=q.dtype)
        parts = []
        for i, circle in enumerate(self.circles):
            parts += [jnp.sin(orders * q[i]), jnp.cos(orders * q[i])] if circle else [q[i : i + 1]]
        return jnp.concatenate(parts)
