"""Load recordings from files, frames and arrays.

Every source becomes one table (:mod:`phast.data.tables`), and every table a :class:`Recording` in five steps:

1. columns are found by name, or by their headings (:mod:`phast.data.columns`);
2. values are checked: a number in every cell, none that overflows when squared, blanks refused or left out;
3. rows are grouped by trajectory and their times checked: they must go forward;
4. a trajectory is split where a step is longer than ``GAP`` times its median: what happened in between is unknown;
5. pieces shorter than ``SHORTEST`` samples are left out, degrees become radians and angles are unwrapped.

Nothing is resampled, filtered or scaled. Corrections are reported in ``Recording.notes``; what cannot be
corrected is refused in one line.
"""

import dataclasses
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from phast.data.columns import LARGEST, Chosen, NamedColumns, check_dt, choose_columns, largest
from phast.data.manifold import TWO_PI, Manifold
from phast.data.recording import GAP, SHORTEST, Piece, Recording, long_enough, rows_of
from phast.data.tables import TEXT, Table, about, as_numbers, base, existing_file, from_frame, read_table
from phast.data.trajectories import (
    Trajectories,
    as_parts,
    from_arrays,
    refuse_turns,
    stored_arrays,
)
from phast.data.units import Units
from phast.errors import InputError, counted

_REPEATED = 1e-6  # medians: time stamps that differ by less are the same one, rounded
_TURNS = 4  # full turns back and forth: few angles in radians do that, most swings in degrees do


def read(
    source: Any,
    *,
    time: str | None = None,
    positions: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] = (),
    trajectory: str | None = None,
    dt: float | None = None,
    missing: str = "refuse",
) -> Recording:
    """Measured positions from files, frames or arrays.

    ``source`` is a path (.csv, .tsv, .txt, .parquet, .npz) or several, a DataFrame,
    :class:`~phast.data.trajectories.Trajectories`, or one array or a list of arrays (T, n), of which the last columns
    are the inputs. Columns are named:

    - ``positions``: ``"x"``, ``"theta:angle"`` (radians, wrapped or not) or ``"theta:angle:deg"`` each, as a list or
      separated by commas; by default all columns of numbers that are nothing else;
    - ``inputs``: what is held from each sample to the next; by default the columns ``u(·)``;
    - ``time``: by default ``t`` or ``time``. Numbers, or ISO dates, which become seconds. Without it, ``dt``;
    - ``trajectory``: distinguishes runs, by default ``trajectory``. Runs may differ in length and be interleaved.

    ``missing`` says what to do with rows with blanks: ``"refuse"`` them, or ``"split"``: leave them out, and split the
    trajectory where the gap is longer than ``GAP`` steps.
    """
    if missing not in ("refuse", "split"):
        raise InputError(f"missing must be 'refuse' or 'split', not '{missing}'")
    check_dt(dt)
    asked = NamedColumns.of(time, positions, inputs, trajectory)
    if isinstance(source, list | tuple) and source and all(isinstance(part, str | os.PathLike) for part in source):
        given = {"time": time, "positions": positions, "inputs": inputs, "trajectory": trajectory, "dt": dt}
        return joined({Path(part).stem: read(part, **given, missing=missing) for part in source})
    if isinstance(source, str | os.PathLike):
        path = existing_file(Path(source))
        with about(path):
            return _recorded(*_opened(path, dt), asked, missing)
    return _recorded(*_tabled(source, asked, dt), asked, missing)


def read_columns(path: str | os.PathLike, names: Sequence[str]) -> Float[np.ndarray, "rows columns"]:
    """Some columns of a file as numbers, all of them finite."""
    path = existing_file(Path(path))
    with about(path):
        table = read_table(path)
        columns = np.stack([table.numbers(table.find(name.strip())) for name in names], axis=-1)
        if not np.isfinite(columns).all():
            row, column = np.argwhere(~np.isfinite(columns))[0]
            raise InputError(f"column '{names[column]}' is blank or not finite in {table.where(int(row))}: fill it in")
    return columns


def joined(recordings: dict[str, Recording]) -> Recording:
    """Recordings of the same things as one; each is known by its name."""
    first = next(iter(recordings.values()))
    for name, each in recordings.items():
        if each.units != first.units or each.inputs != first.inputs:
            raise InputError(
                f"'{name}' has other columns than '{next(iter(recordings))}': give all files the same columns"
            )
    pieces = [
        piece._replace(label=name if len(each.pieces) == 1 else f"{name} {piece.label}")
        for name, each in recordings.items()
        for piece in each.pieces
    ]
    notes = [f"{name}: {note}" for name, each in recordings.items() for note in each.notes]
    dt = float(np.median([each.dt for each in recordings.values()]))
    return Recording(tuple(pieces), first.manifold, dt, first.inputs, tuple(notes), first.units)


def _opened(path: Path, dt: float | None) -> tuple[Table, float | None]:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _stored(stored_arrays(path), dt)
    if suffix not in (*TEXT, ".parquet"):
        raise InputError(f"the ending must be {', '.join(TEXT)}, .parquet or .npz, not '{path.suffix}'")
    return read_table(path), dt


def _stored(arrays: dict[str, np.ndarray], dt: float | None) -> tuple[Table, float | None]:
    """Saved trajectories, or columns: one per array (T,), and name1, name2, … of an array (T, n)."""
    if "q" in arrays and arrays["q"].ndim == 3:
        frame = from_arrays(arrays, dt).to_frame()
        if "t" in arrays and arrays["t"].shape == arrays["q"].shape[:2]:
            frame["t"] = arrays["t"].ravel()
        return from_frame(frame), None
    columns, named = {}, arrays.pop("coordinates", np.zeros(0))
    for name, array in arrays.items():
        if name == "q" and array.ndim == 2 and named.shape == array.shape[1:]:
            columns |= dict(zip(map(str, named), array.T, strict=True))
        elif array.ndim == 2:
            columns |= {f"{name}{i + 1}": column for i, column in enumerate(array.T)}
        elif array.ndim == 1:
            columns[name] = array
    lengths = {name: len(column) for name, column in columns.items()}
    if not lengths or len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InputError(f"no columns of one length, but {found or 'no arrays'}: store t (T,) and q (T, n)")
    scalar = arrays.get("dt")
    if dt is None and scalar is not None and scalar.ndim == 0 and scalar.dtype.kind in "fiu":
        dt = float(scalar)
    return from_frame(pd.DataFrame(columns)), dt


def _tabled(source: Any, asked: NamedColumns, dt: float | None) -> tuple[Table, float | None]:
    if isinstance(source, Trajectories):
        return from_frame(source.to_frame()), dt
    if isinstance(source, pd.DataFrame):
        return from_frame(source.reset_index() if any(source.index.names) else source), dt
    parts = as_parts(source)
    widths = {part.shape[1] for part in parts}
    if len(widths) != 1:
        raise InputError(f"the arrays have {', '.join(map(str, sorted(widths))) or 'no'} columns: give all the same")
    names = _array_names(widths.pop(), asked)
    frame = pd.DataFrame(np.concatenate(parts), columns=names)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    frame.insert(0, "trajectory", owner, allow_duplicates=True)
    first = np.searchsorted(owner, owner)  # of the same part
    return from_frame(frame)._replace(where=lambda row: f"row {row - first[row]} of trajectory {owner[row]}"), dt


def _array_names(width: int, asked: NamedColumns) -> list[str]:
    count = width - len(asked.inputs)
    positions = [f"q{i + 1}" for i in range(count)] if asked.positions is None else asked.positions
    if len(positions) != count or count < 1:
        raise InputError(
            f"the array has {counted(width, 'column')}, but {counted(len(asked.positions or []), 'position')} and "
            f"{counted(len(asked.inputs), 'input')} were named: name them all, positions first"
        )
    return [*map(base, positions), *asked.inputs]


class _Rows(NamedTuple):
    """Samples as they stand in the table: trajectory, time, positions and inputs, and the row they came from."""

    code: Int[np.ndarray, " rows"]
    t: Float[np.ndarray, " rows"]
    x: Float[np.ndarray, "rows k"]
    row: Int[np.ndarray, " rows"]


def _recorded(table: Table, dt: float | None, asked: NamedColumns, missing: str) -> Recording:
    notes = list(table.notes)
    if not len(table.frame):
        raise InputError("the table has no rows")
    chosen = choose_columns(table, asked, dt, notes)
    manifold = chosen.manifold
    code, labels = _trajectories(table, chosen.trajectory)
    limits = largest(chosen)
    x = np.stack([_tame(table, heading, limits[heading]) for heading in chosen.measured], axis=1)
    t = _counted(code, dt) if chosen.time is None else _seconds(table, chosen.time, notes)
    rows = _Rows(code, t, x, np.arange(len(code)))
    rows = _without_blanks(table, chosen, rows, missing, notes)
    rows = _without_copies(rows, notes) if chosen.time is not None else rows
    pieces = _split(table, chosen, rows, labels, notes)
    return _finished(pieces, manifold, chosen, notes)


def _trajectories(table: Table, heading: str | None) -> tuple[np.ndarray, list[str]]:
    """A number per row, -1 where the trajectory is blank, and what each number is called."""
    if heading is None:
        return np.zeros(len(table.frame), dtype=int), ["0"]
    column = table.frame[heading]
    if not pd.api.types.is_numeric_dtype(column):
        column = column.astype("string").str.strip().replace("", pd.NA)
    code, names = pd.factorize(column)
    whole = [isinstance(name, float | np.floating) and float(name).is_integer() for name in names]
    return np.asarray(code), [str(int(n)) if w else str(n) for n, w in zip(names, whole, strict=True)]


def _tame(table: Table, heading: str, largest: float = LARGEST) -> Float[np.ndarray, " rows"]:
    """A column of numbers that can be computed with."""
    values = table.numbers(heading)
    large = np.abs(values) > largest
    if large.any():
        first = int(np.argmax(large))
        such = counted(int(large.sum()), "such value")
        raise InputError(
            f"column '{base(heading)}' is {values[first]:g} in {table.where(first)} ({such} in all), too"
            " large to compute with: blank it, or change its unit"
        )
    return values


def _counted(code: np.ndarray, dt: float) -> Float[np.ndarray, " rows"]:
    """Times from the step: each trajectory begins at zero, and blank rows take their time."""
    return dt * pd.Series(code).groupby(code).cumcount().to_numpy(dtype=np.float64)


def _seconds(table: Table, heading: str, notes: list[str]) -> Float[np.ndarray, " rows"]:
    """The times: numbers as they are, ISO dates as seconds since the first."""
    column = table.frame[heading]
    if pd.api.types.is_timedelta64_dtype(column):
        return column.dt.total_seconds().to_numpy(dtype=np.float64)
    mostly_numbers = 2 * as_numbers(column)[1].sum() <= column.notna().sum()
    if mostly_numbers or (dates := _dates(column)).isna().all():
        return _tame(table, heading)
    wrong = (dates.isna() & column.notna()).to_numpy(dtype=bool)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InputError(
            f"column '{heading}' holds dates, but {str(column.iloc[first])[:40]!r} in {table.where(first)} is none: "
            "write them as 2024-05-01T12:30:00.25"
        )
    begin = dates[dates.first_valid_index()]
    notes.append(f"times are seconds since {begin.isoformat()}")
    return (dates - begin).dt.total_seconds().to_numpy(dtype=np.float64)


def _dates(column: pd.Series) -> pd.Series:
    if not pd.api.types.is_datetime64_any_dtype(column):
        column = column.astype("string").str.strip().replace("", pd.NA)
    try:
        return pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    except (ValueError, OverflowError):  # some dates that no clock shows are not coerced
        return pd.Series(pd.NaT, index=column.index)


def _without_blanks(table: Table, chosen: Chosen, rows: _Rows, missing: str, notes: list[str]) -> _Rows:
    headings = [*chosen.measured, chosen.time or "", chosen.trajectory or ""]
    blank = np.column_stack([np.isnan(rows.x), np.isnan(rows.t), rows.code < 0])
    if chosen.time is None and blank[:, -1].any():
        where = table.where(int(np.argmax(blank[:, -1])))
        raise InputError(f"column '{chosen.trajectory}' is blank in {where}, and there is no time column: fill it in")
    if missing == "refuse" and blank.any():
        row, column = map(int, np.argwhere(blank)[0])
        count = int(blank[:, column].sum())
        within = counted(int(blank.any(axis=1).sum()), "row")
        raise InputError(
            f"column '{base(headings[column])}' is blank in {table.where(row)} ({counted(count, 'blank')} in it, "
            f"{within} in all): fill them, or leave them out with missing='split' (--missing split)"
        )
    dropped = int(blank.any(axis=1).sum())
    if dropped:
        notes.append(f"{counted(dropped, 'row')} with blanks dropped")
    return rows_of(rows, ~blank.any(axis=1))


def _without_copies(rows: _Rows, notes: list[str]) -> _Rows:
    copies = pd.DataFrame(np.column_stack([rows.code, rows.t, rows.x])).duplicated().to_numpy(dtype=bool)
    if copies.any():
        notes.append(f"repeated rows dropped: {copies.sum():,}")
    return rows_of(rows, ~copies)


def _split(table: Table, chosen: Chosen, rows: _Rows, labels: list[str], notes: list[str]) -> list[Piece]:
    """Each trajectory, where its times go forward, cut at its gaps."""
    rows = rows_of(rows, np.argsort(rows.code, kind="stable"))
    pieces, gaps, n = [], 0, len(chosen.coordinates)
    for run in np.split(np.arange(len(rows.code)), np.flatnonzero(np.diff(rows.code)) + 1):
        if not len(run):
            continue  # no row was left
        own = rows_of(rows, run)
        steps = np.diff(own.t)
        _refuse_backward(table, own, steps)
        cuts = np.flatnonzero(steps > GAP * np.median(steps)) + 1 if len(steps) else []
        label = labels[own.code[0]]
        for part, indices in enumerate(np.split(np.arange(len(run)), cuts), 1):
            one = rows_of(own, indices)
            name = f"{label} part {part}" if len(cuts) else label
            pieces.append(Piece(name, one.t, one.x[:, :n], one.x[:, n:] if chosen.inputs else None))
        gaps += len(cuts)
    if gaps:
        notes.append(f"{counted(gaps, 'gap')} longer than {GAP:g} × the median step: split into {len(pieces)} pieces")
    return pieces


def _refuse_backward(table: Table, rows: _Rows, steps: np.ndarray) -> None:
    if (steps < 0.0).any():
        first = int(np.argmax(steps < 0.0))
        raise InputError(
            f"time goes back from {rows.t[first]:g} to {rows.t[first + 1]:g} in {table.where(rows.row[first + 1])}: "
            "sort the rows, or name the column that distinguishes runs with trajectory=… (--trajectory)"
        )
    repeated = steps <= _REPEATED * np.median(steps) if len(steps) else steps > 0.0
    if repeated.any():
        first, such = int(np.argmax(repeated)), counted(int(repeated.sum()), "such row")
        raise InputError(
            f"time {rows.t[first]:g} is repeated in {table.where(rows.row[first + 1])} ({such}): "
            "keep one row per time, or name the column that distinguishes runs with trajectory=… (--trajectory)"
        )


def _finished(pieces: list[Piece], manifold: Manifold, chosen: Chosen, notes: list[str]) -> Recording:
    kept, left_out = long_enough(pieces)
    if not kept:
        longest = max((len(piece.t) for piece in pieces), default=0)
        raise InputError(
            f"too short: {SHORTEST} samples without a gap are needed, and the longest stretch has {longest}"
        )
    kept = [piece._replace(q=chosen.units.from_file(piece.q)) for piece in kept]
    for piece in kept:
        refuse_turns(piece.q[None], manifold, labels=[piece.label])
    warn_of_degrees(kept, chosen.units)
    dt = _nominal(kept)
    pieces = tuple(_unwrapped(kept, manifold, notes))
    recording = Recording(pieces, manifold, dt, tuple(chosen.inputs), counted=chosen.units)
    if not recording.even:
        steps = np.concatenate([np.diff(piece.t) for piece in kept])
        notes.append(f"irregular sampling: steps between {steps.min():.4g} and {steps.max():.4g}")
    return dataclasses.replace(recording, notes=(*notes, *left_out))


def warn_of_degrees(pieces: Sequence[Piece], units: Units) -> None:
    """Warn of angles that are declared in radians and look like degrees."""
    for i, (name, unit) in enumerate(zip(units.manifold.names, units.names, strict=True)):
        if units.manifold.circles[i] and unit == "rad" and any(_like_degrees(piece.q[:, i]) for piece in pieces):
            warnings.warn(f"'{name}' looks like degrees: declare it as '{name}:angle:deg'", stacklevel=2)


def _like_degrees(q: Float[np.ndarray, " T"]) -> bool:
    """Whether an angle is probably in degrees.

    Radians jump by 2π at most where they wrap, and move by less from sample to sample. Slow swings in degrees are
    recognised by their size: several full turns back and forth, between ±360.
    """
    far = _TURNS * TWO_PI
    rise, fall = np.max(q - np.minimum.accumulate(q)), np.max(np.maximum.accumulate(q) - q)
    swings = rise > far and fall > far and np.abs(q).max() <= 360.0
    return bool(swings or (np.abs(np.diff(q)) > 1.1 * TWO_PI).any())


def _nominal(pieces: Sequence[Piece]) -> float:
    """The median step, without the digits that large times lose: those of the first step, where it is the same."""
    median = float(np.median(np.concatenate([np.diff(piece.t) for piece in pieces])))
    first = float(pieces[0].t[1] - pieces[0].t[0])
    return first if abs(first - median) <= 1e-9 * median else float(f"{median:.9g}")


def _unwrapped(pieces: Sequence[Piece], manifold: Manifold, notes: list[str]) -> list[Piece]:
    circles = np.asarray(manifold.circles)
    turns = sum((np.abs(np.diff(piece.q, axis=0)) > np.pi).sum(axis=0) for piece in pieces)
    notes += [
        f"{manifold.names[i]}: {counted(int(turns[i]), 'turn')} unwrapped"
        for i in np.flatnonzero(circles & (turns > 0))
    ]
    return [piece._replace(q=np.where(circles, np.unwrap(piece.q, axis=0), piece.q)) for piece in pieces]
