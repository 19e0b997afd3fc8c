"""Samples from lines of text, as they come through a pipe.

The first line names the columns; from it and the first row, layout and columns are found as in files
(:mod:`phast.data.reading`). From then on each line is one :class:`Sample`, read without a table. A line that is no
sample ends the stream with an error that names it.
"""

import collections
import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from phast.data.columns import NamedColumns, check_dt, choose_columns, largest
from phast.data.tables import Layout, base, decoded, is_aside, layout_of, table_of
from phast.data.units import Units
from phast.errors import InputError, counted


class Sample(NamedTuple):
    """One row, in the units of its columns. ``u`` is held from this sample on; lines count from 1."""

    line: int
    label: str
    t: float
    q: Float[np.ndarray, " n"]
    u: Float[np.ndarray, " m"]


class SampleReader:
    """The samples in lines of text; to iterate is to wait for the next line.

    Columns are named as in :func:`phast.read`. ``missing`` says what to do with lines with blanks: ``"refuse"`` them,
    or ``"split"``: leave them out. A line that repeats the one before is left out.
    """

    def __init__(
        self,
        lines: Iterable[bytes],
        *,
        time: str | None = None,
        positions: str | Sequence[str] | None = None,
        inputs: str | Sequence[str] = (),
        trajectory: str | None = None,
        dt: float | None = None,
        missing: str = "refuse",
    ):
        rest = ((i, text) for i, line in enumerate(lines, 1) if (text := decoded(line).strip("\n ")))
        asides, first = [], []
        for i, text in rest:
            (asides if is_aside(text) else first).append((i, text))
            if len(first) == 2:
                break
        table = table_of("\n".join(text for _, text in (*asides, *first)))
        if not len(table.frame):
            raise InputError("the table has no rows")
        self._layout = layout_of(first, [text for i, text in asides if i < first[0][0]])
        self._rows = itertools.chain(first[self._layout.skipped :], rest)
        check_dt(dt)
        self._chosen = choose_columns(table, NamedColumns.of(time, positions, inputs, trajectory), dt, [])
        self._dt, self._splits = dt or 0.0, missing == "split"

    @property
    def units(self) -> Units:
        return self._chosen.units

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self._chosen.inputs)

    def __iter__(self) -> Iterator[Sample]:
        cells, last = _Cells(self._layout, largest(self._chosen)), None
        chosen, seconds, counts = self._chosen, _Seconds(cells), collections.Counter()
        for line, text in (row for row in self._rows if not is_aside(row[1])):
            found = cells.of(line, text)
            x = np.array([cells.number(line, heading, found[heading]) for heading in chosen.measured])
            label = "0" if chosen.trajectory is None else _named(found[chosen.trajectory])
            if chosen.time is None:
                t = self._dt * counts[label]  # a row with blanks takes its time too
                counts[label] += 1
            else:
                t = seconds.of(line, chosen.time, found[chosen.time])
            n = len(chosen.coordinates)
            sample = Sample(line, label, t, x[:n], x[n:])
            if np.isnan(x).any() or np.isnan(t) or not label:
                if not self._splits:
                    raise InputError(f"a value is blank in line {line}: fill it, or leave blanks out (--missing split)")
            elif last is None or chosen.time is None or not _same(sample, last):
                last = sample
                yield sample


class _Cells(NamedTuple):
    """The values of a line by their headings, and the numbers in them."""

    layout: Layout
    largest: dict[str, float]

    def of(self, line: int, text: str) -> dict[str, str]:
        found, width = self.layout.values(text), len(self.layout.headings)
        if len(found) < width or any(found[width:]):
            raise InputError(
                f"line {line} has {counted(len(found), 'value')}, but there are {counted(width, 'heading')}"
            )
        return dict(zip(self.layout.headings, found, strict=False))

    def number(self, line: int, heading: str, text: str) -> float:
        try:
            value = self.layout.number(text)
        except ValueError:
            raise InputError(
                f"column '{base(heading)}' must hold numbers, got {text[:40]!r} in line {line}: correct or drop it"
            ) from None
        if abs(value) > self.largest[heading]:
            raise InputError(
                f"column '{base(heading)}' is {value:g} in line {line}, too large to compute with: blank it, or change "
                "its unit"
            )
        return value


class _Seconds:
    """Times: numbers as they are, ISO dates as seconds since the first."""

    def __init__(self, cells: _Cells):
        self._cells, self._begin = cells, None

    def of(self, line: int, heading: str, text: str) -> float:
        try:
            date = datetime.datetime.fromisoformat(text) if "-" in text[1:] and ":" in text else None
        except ValueError:
            date = None
        if date is None:
            return self._cells.number(line, heading, text)
        date = date if date.tzinfo else date.replace(tzinfo=datetime.UTC)
        self._begin = date if self._begin is None else self._begin
        return (date - self._begin).total_seconds()


def _named(text: str) -> str:
    """What a trajectory is called: a whole number without its decimals."""
    try:
        return str(int(float(text))) if float(text).is_integer() else text
    except ValueError:
        return text


def _same(one: Sample, other: Sample) -> bool:
    return (
        (one.label, one.t) == (other.label, other.t)
        and np.array_equal(one.q, other.q)
        and np.array_equal(one.u, other.u)
    )
