"""Recordings: uninterrupted pieces of measured motion, and the windows that a fit cuts from them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.data.units import Units
from phast.errors import InputError

SHORTEST = 8  # samples; fewer show neither a motion nor its noise
GAP = 5.0  # medians of a trajectory's steps
EVEN = 1e-3  # of dt: what clocks do, and less than a model of the motion would notice
_COVERED = 0.8  # of the samples, by windows of the length that is chosen where none is given


class Piece(NamedTuple):
    """One uninterrupted stretch of a trajectory.

    Times strictly increase and angles are unwrapped. Row s of ``u`` acts from sample s to s + 1.
    """

    label: str
    t: Float[np.ndarray, " T"]
    q: Float[np.ndarray, "T n"]
    u: Float[np.ndarray, "T m"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """What was measured, piece by piece; ``dt`` is the median step, ``notes`` are the corrections made when reading.

    Angles are in radians here; ``units`` are those of the file that they came from.
    """

    pieces: tuple[Piece, ...]
    manifold: Manifold
    dt: float
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counted: Units | None = None

    @property
    def units(self) -> Units:
        """Those of the file, or of the computation."""
        return Units.computed(self.manifold) if self.counted is None else self.counted

    @classmethod
    def of(cls, data: Trajectories, units: Units | None = None) -> "Recording":
        """Trajectories as pieces; their inputs are called u1, u2, …"""
        inputs = [None] * len(data) if data.u is None else data.u
        pieces = tuple(Piece(str(i), *each) for i, each in enumerate(zip(data.times, data.q, inputs, strict=True)))
        names = () if data.u is None else tuple(f"u{i + 1}" for i in range(data.u.shape[2]))
        return cls(pieces, data.manifold, data.dt, names, counted=units)

    def __repr__(self) -> str:
        samples, kind = sum(len(piece.t) for piece in self.pieces), "" if self.even else ", unevenly"
        lasting = sum(float(piece.t[-1] - piece.t[0]) for piece in self.pieces)
        pieces = "1 piece" if len(self.pieces) == 1 else f"{len(self.pieces):,} pieces"
        return (
            f"Recording of {', '.join(self.units.labels)}{', driven by ' * bool(self.inputs)}{', '.join(self.inputs)}\n"
            f"  {samples:,} samples in {pieces}, every {self.dt:.6g} s{kind}, {lasting:.6g} s in all\n"
            f"  notes: {'; '.join(self.notes) or 'none'}"
        )

    @functools.cached_property
    def even(self) -> bool:
        """Whether all steps are ``dt``, up to a thousandth."""
        return all((np.abs(np.diff(piece.t) / self.dt - 1.0) <= EVEN).all() for piece in self.pieces)

    def trajectories(self, length: int | None = None, stride: int | None = None) -> Trajectories:
        """Windows of ``length`` samples from all pieces, begun every ``stride`` samples (by default, end to end).

        The default length is that of the pieces where they are equal, else the longest whose windows cover four
        fifths of all samples. A piece that is shorter gives no window.
        """
        lengths = [len(piece.t) for piece in self.pieces]
        length = _common_length(lengths) if length is None else length
        if not 1 <= length <= max(lengths):
            raise InputError(f"a window of {length} samples fits no piece: use 1 to {max(lengths)}")
        fitting = [self._alone(piece) for piece in self.pieces if len(piece.t) >= length]
        return _joined([piece.windows(length, length if stride is None else stride) for piece in fitting])

    def singly(self) -> list[Trajectories]:
        """Each piece as a trajectory of its own."""
        return [self._alone(piece) for piece in self.pieces]

    def between(self, start: float = -np.inf, stop: float = np.inf) -> "Recording":
        """The samples with ``start`` <= t < ``stop``; what is left of a piece must be long enough to be one."""
        cut = [rows_of(piece, (start <= piece.t) & (piece.t < stop)) for piece in self.pieces]
        pieces, notes = long_enough([piece for piece in cut if len(piece.t)])
        if not pieces:
            first, last = min(piece.t[0] for piece in self.pieces), max(piece.t[-1] for piece in self.pieces)
            raise InputError(
                f"no piece has {SHORTEST} samples between {start:g} and {stop:g}: times run from {first:g} to {last:g}"
            )
        return dataclasses.replace(self, pieces=tuple(pieces), notes=(*self.notes, *notes))

    def starts(self, context: int) -> Trajectories:
        """The first ``context`` samples of each piece."""
        self._require(context)
        return _joined([self._alone(piece).steps(0, context) for piece in self.pieces])

    def ends(self, context: int) -> Trajectories:
        """The last ``context`` samples of each piece."""
        self._require(context)
        return _joined([self._alone(piece).steps(len(piece.t) - context) for piece in self.pieces])

    def _require(self, context: int) -> None:
        if context < 1:
            raise InputError(f"a context needs at least 1 sample, got {context}")
        short = [f"{piece.label} ({len(piece.t)})" for piece in self.pieces if len(piece.t) < context]
        if short:
            raise InputError(f"too short for a context of {context} samples: trajectory {_few(short)}")

    def _alone(self, piece: Piece) -> Trajectories:
        steps = None if self.even else np.append(np.diff(piece.t) / self.dt, 1.0)[None, :, None]
        u = None if piece.u is None else piece.u[None]
        return Trajectories(piece.q[None], self.dt, self.manifold, u=u, stretch=steps)


def _joined(parts: Sequence[Trajectories]) -> Trajectories:
    arrays = [part.arrays() for part in parts]
    return dataclasses.replace(parts[0], **{name: np.concatenate([x[name] for x in arrays]) for name in arrays[0]})


def _common_length(lengths: Sequence[int]) -> int:
    counts = np.asarray(lengths)
    # Coverage only peaks where a window fits some piece a whole number of times.
    candidates = {int(c) // k for c in np.unique(counts) for k in range(1, 65) if c // k >= 1}
    covered = (c for c in sorted(candidates, reverse=True) if (counts // c * c).sum() >= _COVERED * counts.sum())
    return next(covered, int(counts.min()))


def _few(items: Sequence[str]) -> str:
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def rows_of(part: Any, keep: np.ndarray) -> Any:
    """Some rows of whatever has its arrays in a named tuple."""
    return part._replace(**{k: v[keep] for k, v in part._asdict().items() if isinstance(v, np.ndarray)})


def long_enough(pieces: Sequence[Piece]) -> tuple[list[Piece], list[str]]:
    short = [f"{piece.label} ({len(piece.t)})" for piece in pieces if len(piece.t) < SHORTEST]
    notes = [f"fewer than {SHORTEST} samples, left out: trajectory {_few(short)}"] if short else []
    return [piece for piece in pieces if len(piece.t) >= SHORTEST], notes
