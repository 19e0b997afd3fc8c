"""Which columns of a table hold what: those that were named, and the rest by their headings."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phast.data.manifold import Manifold
from phast.data.tables import Table, as_numbers, base
from phast.data.trajectories import beside_positions
from phast.data.units import Units
from phast.errors import InputError

LARGEST = 1e150  # its square is a number
LARGEST_ANGLE = 1e9  # beyond, too few digits are left for the place on the circle


class NamedColumns(NamedTuple):
    """The columns that were named, and those that were not."""

    time: str | None
    positions: list[str] | None
    inputs: list[str]
    trajectory: str | None

    @classmethod
    def of(
        cls,
        time: str | None,
        positions: str | Sequence[str] | None,
        inputs: str | Sequence[str],
        trajectory: str | None,
    ) -> "NamedColumns":
        """Columns named as for :func:`phast.read`."""
        return cls(time, None if positions is None else _listed(positions), _listed(inputs), trajectory)


def _listed(names: str | Sequence[str]) -> list[str]:
    parts = names.split(",") if isinstance(names, str) else map(str, names)
    return [part.strip() for part in parts if part.strip()]


def check_dt(dt: float | None) -> None:
    """Refuse a step between samples that is none."""
    if dt is not None and not (np.isfinite(dt) and 0.0 < dt <= LARGEST):
        raise InputError(f"dt must be a positive number of seconds between samples, got {dt}")


class _Coordinate(NamedTuple):
    heading: str
    name: str
    circle: bool
    unit: str


class Chosen(NamedTuple):
    """Headings of the table, by what they hold."""

    time: str | None
    trajectory: str | None
    coordinates: list[_Coordinate]
    inputs: list[str]

    @property
    def measured(self) -> list[str]:
        return [*(c.heading for c in self.coordinates), *self.inputs]

    @property
    def manifold(self) -> Manifold:
        return Manifold(tuple(c.name for c in self.coordinates), tuple(c.circle for c in self.coordinates))

    @property
    def units(self) -> Units:
        return Units(self.manifold, tuple(c.unit for c in self.coordinates))


def largest(chosen: Chosen) -> dict[str, float]:
    """The largest magnitude that can be computed with, of each column that holds numbers."""
    limits = {c.heading: LARGEST_ANGLE if c.circle else LARGEST for c in chosen.coordinates}
    return limits | dict.fromkeys([*chosen.inputs, *filter(None, [chosen.time])], LARGEST)


def choose_columns(table: Table, asked: NamedColumns, dt: float | None, notes: list[str]) -> Chosen:
    """What each column of a table holds; corrections are added to ``notes``."""
    if asked.time is not None and dt is not None:
        raise InputError(f"time='{asked.time}' and dt={dt:g} were both given: give one of them")
    extra = beside_positions(table.headings)
    inputs = [table.find(name) for name in asked.inputs] or extra["u"]
    positions = None if asked.positions is None else [_coordinate(table, spec) for spec in asked.positions]
    taken = {*inputs, *(c.heading for c in positions or ())}
    trajectory = _found(table, asked.trajectory, ("trajectory",), taken)
    time = _found(table, asked.time, ("t", "time"), taken)
    if time is None and dt is None:
        raise InputError(
            f"no column 't' or 'time' among {', '.join(table.headings)}: name it with time=… (--time), or "
            "give the step by dt=… (--dt)"
        )
    if positions is None:
        others = {*inputs, *extra["p"], *extra["v"], trajectory, time}
        left = [heading for heading in table.headings if heading not in others]
        positions = [_coordinate(table, heading) for heading in left if _holds_numbers(table, heading, notes)]
    if time is not None and dt is not None:
        notes.append(f"column '{time}' left out: the step was given, {dt:g}")
    if not positions:
        raise InputError(f"no column of positions among {', '.join(table.headings)}: name some with positions=…")
    chosen = Chosen(time if dt is None else None, trajectory, positions, inputs)
    _refuse_overlap([*chosen.measured, *filter(None, (time, trajectory))])
    return chosen


def _found(table: Table, name: str | None, habits: Sequence[str], taken: set[str]) -> str | None:
    if name is not None:
        return table.find(name)
    free = {heading.lower(): heading for heading in reversed(table.headings) if heading not in taken}
    return next((free[habit] for habit in habits if habit in free), None)


def _coordinate(table: Table, spec: str) -> _Coordinate:
    """A column by its name and kind; marks that are left out are those of its heading."""
    heading = table.find(base(spec))
    marks, stated = ([part.strip() for part in text.split(":")[1:]] for text in (spec, heading))
    marks = stated if stated[: len(marks)] == marks else marks
    name, kind, unit = base(spec), *(*marks, "", "")[:2]
    is_turn, is_angle = unit in ("rad", "deg"), kind == "angle"
    if len(marks) > 2 or kind not in ("", "line", "angle") or (unit and is_turn != is_angle):
        raise InputError(
            f"position '{spec}': write '{name}', '{name}:line:UNIT', '{name}:angle' (in radians) or '{name}:angle:deg'"
        )
    return _Coordinate(heading, name, kind == "angle", unit or ("rad" if kind == "angle" else ""))


def _holds_numbers(table: Table, heading: str, notes: list[str]) -> bool:
    """Whether a column that was not named holds numbers; if some of its cells do, all must."""
    values, wrong = as_numbers(table.frame[heading])
    if np.isnan(values).all():
        notes.append(f"column '{heading}' {'holds text' if wrong.any() else 'is empty'}: left out")
    return not np.isnan(values).all()


def _refuse_overlap(headings: Sequence[str]) -> None:
    twice = sorted({heading for heading in headings if headings.count(heading) > 1})
    if twice:
        raise InputError(f"column '{twice[0]}' was named twice: it can be one of position, input, time or trajectory")
