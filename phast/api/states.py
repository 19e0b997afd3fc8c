"""Filtered states in the units of the user's files."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float

from phast.api.tables import write_table
from phast.data.recording import Recording
from phast.data.units import Units
from phast.errors import InputError, counted
from phast.estimation.forecaster import Filtered
from phast.report.text import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FilteredPiece:
    """States along one uninterrupted stretch, from every measurement so far.

    ``covariance`` is of (q, p); ``innovation`` is by how much each measurement differed from its prediction.
    """

    label: str
    t: Float[np.ndarray, " T"]
    q: Float[np.ndarray, "T n"]
    p: Float[np.ndarray, "T n"]
    covariance: Float[np.ndarray, "T twice_n twice_n"]
    innovation: Float[np.ndarray, "T n"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class States:
    """Positions and momenta of a recording as a model filters them, piece by piece."""

    pieces: tuple[FilteredPiece, ...]
    units: Units

    @classmethod
    def of(cls, recording: Recording, found: Sequence[Filtered]) -> "States":
        """What was filtered, in the units of the file."""
        units = recording.units
        twice = np.tile(units.factors, 2)
        pieces = (
            FilteredPiece(
                piece.label,
                piece.t,
                units.to_file(np.asarray(each.q)),
                units.to_file(np.asarray(each.p)),
                np.asarray(each.covariance) * np.outer(twice, twice),
                units.to_file(np.asarray(each.innovation)),
            )
            for piece, each in zip(recording.pieces, found, strict=True)
        )
        return cls(tuple(pieces), units)

    @property
    def surprise(self) -> float:
        """The root mean square innovation after the first measurement."""
        return float(np.sqrt(np.mean(np.concatenate([p.innovation[1:].reshape(-1) for p in self.pieces]) ** 2)))

    def to_frame(self) -> pd.DataFrame:
        """One row for each sample: trajectory, t, positions and momenta."""
        columns = {
            "trajectory": np.repeat([p.label for p in self.pieces], [len(p.t) for p in self.pieces]),
            "t": np.concatenate([p.t for p in self.pieces]),
        }
        columns |= dict(zip(self.units.headings, np.concatenate([p.q for p in self.pieces]).T, strict=True))
        names = [f"p({name})" for name in self.units.manifold.names]
        columns |= dict(zip(names, np.concatenate([p.p for p in self.pieces]).T, strict=True))
        return pd.DataFrame(columns)

    def save(self, path: str | os.PathLike) -> Path:
        """Write .csv, .parquet or .npz; the last holds arrays, so that all pieces must be equally long."""
        arrays: dict[str, np.ndarray] = {}
        if Path(path).suffix == ".npz":
            if len({len(p.t) for p in self.pieces}) > 1:
                raise InputError("pieces of different lengths make no array: write a .csv or .parquet file")
            arrays = {name: np.stack([getattr(p, name) for p in self.pieces]) for name in ("t", "q", "p")}
            arrays["coordinates"] = np.array(self.units.headings)
        return write_table(path, self.to_frame(), arrays)

    def plot(self, which: int = 0) -> "Figure":
        """Positions and momenta along one piece, each with a band of two standard deviations."""
        from phast.report.plots import states_figure

        piece = self.pieces[which]
        deviation = np.sqrt(np.diagonal(piece.covariance, axis1=1, axis2=2))
        names = [*self.units.labels, *(f"p({name})" for name in self.units.manifold.names)]
        return states_figure(piece.t, np.concatenate([piece.q, piece.p], axis=1), deviation, names)

    def __repr__(self) -> str:
        samples = sum(len(p.t) for p in self.pieces)
        return (
            f"{counted(samples, 'state')} of {', '.join(self.units.labels)} in {counted(len(self.pieces), 'piece')}\n"
            f"rms surprise per measurement: {figure(self.surprise)}"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{self!r}</pre>{self.to_frame().to_html(max_rows=10)}"
