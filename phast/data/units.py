"""Units of positions: what a file counts in, beside what is computed in (angles in radians, the rest as it comes)."""

import dataclasses

import numpy as np
from jaxtyping import Float

from phast.data.manifold import Manifold
from phast.errors import InputError, counted

_PER_RADIAN = {"rad": 1.0, "deg": 180.0 / np.pi}


@dataclasses.dataclass(frozen=True)
class Units:
    """The unit of each coordinate in the user's files: "rad" or "deg" of an angle, any word or nothing of a line."""

    manifold: Manifold
    names: tuple[str, ...]

    def __post_init__(self):
        if len(self.names) != self.manifold.size:
            raise InputError(
                f"{counted(len(self.names), 'unit')} for {counted(self.manifold.size, 'coordinate')}: name one each"
            )
        for coordinate, circle, name in zip(self.manifold.names, self.manifold.circles, self.names, strict=True):
            if circle and name not in _PER_RADIAN:
                raise InputError(f"'{coordinate}' is an angle in '{name}': choose {' or '.join(_PER_RADIAN)}")

    @classmethod
    def computed(cls, manifold: Manifold) -> "Units":
        """Those of the computation."""
        return cls(manifold, tuple("rad" if circle else "" for circle in manifold.circles))

    @property
    def factors(self) -> Float[np.ndarray, " n"]:
        """How many of the file's units make one of the computation's."""
        kinds = zip(self.names, self.manifold.circles, strict=True)
        return np.array([_PER_RADIAN[name] if circle else 1.0 for name, circle in kinds])

    def to_file(self, q: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n"]:
        """Positions, velocities or their deviations in the units of the file."""
        return np.asarray(q, dtype=float) * self.factors

    def from_file(self, q: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n"]:
        """Positions in the units of the computation."""
        return np.asarray(q, dtype=float) / self.factors

    @property
    def labels(self) -> list[str]:
        """For axes and tables: ``["x", "theta [deg]"]``."""
        pairs = zip(self.manifold.names, self.names, strict=True)
        return [f"{name} [{unit}]" if unit else name for name, unit in pairs]

    @property
    def speeds(self) -> list[str]:
        """The unit of each velocity; nothing where that of the position is not known."""
        return [f"{unit}/s" if unit else "" for unit in self.names]

    @property
    def headings(self) -> list[str]:
        """For columns of files that :func:`phast.read` reads back: ``["x", "theta:angle:deg"]``."""
        return [_heading(*each) for each in zip(self.manifold.names, self.manifold.circles, self.names, strict=True)]


def _heading(name: str, circle: bool, unit: str) -> str:
    if not circle:
        return f"{name}:line:{unit}" if unit else name
    return f"{name}:angle" if unit == "rad" else f"{name}:angle:{unit}"
