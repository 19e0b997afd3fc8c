"""Coordinates on lines and circles.

A configuration q lives on a product of lines and circles, R^a x (S^1)^b. It is stored as a plain vector of
length n in which angles are unwrapped; everything that compares two configurations goes through
:meth:`Manifold.difference`, so that 2π is never mistaken for a distance.
"""

import dataclasses
import math
from typing import Any

from jaxtyping import Float

from phast.errors import InputError

TWO_PI = 2.0 * math.pi


@dataclasses.dataclass(frozen=True)
class Manifold:
    """A product of lines and circles: one name and one kind per coordinate.

    Methods take arrays of NumPy or of JAX and answer in kind, so that reading a file loads no JAX.
    """

    names: tuple[str, ...]
    circles: tuple[bool, ...]

    def __post_init__(self):
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

    def wrap(self, q: Float[Any, "*batch n"]) -> Float[Any, "*batch n"]:
        """Angles into [-π, π]; other coordinates as they are."""
        xp = q.__array_namespace__()
        turns = xp.where(xp.asarray(self.circles), xp.round(q / TWO_PI), 0.0)
        return q - TWO_PI * turns

    def difference(self, a: Float[Any, "*batch n"], b: Float[Any, "*batch n"]) -> Float[Any, "*batch n"]:
        """The shortest way from b to a."""
        return self.wrap(a - b)

    def squared_error(self, a: Float[Any, "*batch n"], b: Float[Any, "*batch n"]) -> Float[Any, "*batch n"]:
        """err(a, b) of the paper's appendix on metrics, per coordinate."""
        return self.difference(a, b) ** 2

    def feature_count(self, harmonics: int) -> int:
        """F, the length of :meth:`features`."""
        return sum(2 * harmonics if circle else 1 for circle in self.circles)

    def features(self, q: Float[Any, " n"], harmonics: int) -> Float[Any, " F"]:
        """Lines as they are; each angle as (sin kθ, cos kθ) for k = 1 … harmonics."""
        xp = q.__array_namespace__()
        orders = xp.arange(1, harmonics + 1, dtype=q.dtype)
        parts = []
        for i, circle in enumerate(self.circles):
            parts += [xp.sin(orders * q[i]), xp.cos(orders * q[i])] if circle else [q[i : i + 1]]
        return xp.concatenate(parts)
