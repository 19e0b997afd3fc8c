"""Tables: named columns from text or Parquet files, and the numbers in them.

Text files of measurements vary: byte order marks, commas, semicolons, tabs or blanks between the values,
decimal commas, comments before the headings or in their place, a separator too many at the end of each line. They are
told apart here, once; pandas does the rest. A :class:`Table` knows where each of its rows stood, so that a value that
is no number is named with its line in the file.
"""

import contextlib
import csv
import difflib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from phast.errors import InputError, counted

TEXT = (".csv", ".tsv", ".txt")
_ASIDE = re.compile(r"\s*#|sep=.$")  # a comment, or the separator for Excel's eyes
_BLANKS = r"\s+"
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
_COMMA_NUMBER = r"^\s*([+-]?\d*),(\d*(?:[eE][+-]?\d+)?)\s*$"


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Add the name of the file to every error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"'{path}': {error}") from error


@contextlib.contextmanager
def parsing(kind: str) -> Iterator[None]:
    """One error for all that a library's parser raises on a damaged file."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {_first_line(error.strerror or error)}") from error
    except Exception as error:
        raise InputError(f"this is not {kind} that can be read ({_first_line(error)})") from error


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def existing_file(path: Path) -> Path:
    """``path``, once it is known to be a file."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder: name a file in it")
    if not path.is_file():
        raise InputError(f"no such file: '{path}'")
    return path


class Table(NamedTuple):
    """A frame whose headings are distinct strings, where each row stood ("line 7"), and what was left out."""

    frame: pd.DataFrame
    where: Callable[[int], str]
    notes: tuple[str, ...] = ()

    @property
    def headings(self) -> list[str]:
        return list(self.frame.columns)

    def find(self, name: str) -> str:
        """The heading of this column, whether or not it says ``:angle``."""
        if name in self.frame.columns:
            return name
        bare = [heading for heading in self.headings if base(heading) == name]
        if len(bare) == 1:
            return bare[0]
        near = difflib.get_close_matches(name.lower(), [base(heading).lower() for heading in self.headings], n=1)
        hint = "".join(f" (did you mean '{h}'?)" for h in self.headings if base(h).lower() in near)
        raise InputError(f"no column '{name}': the columns are {', '.join(self.headings)}{hint}")

    def numbers(self, heading: str) -> Float[np.ndarray, " rows"]:
        """A column as float64, NaN where it is blank; anything else in it is refused by name."""
        values, wrong = as_numbers(self.frame[heading])
        if wrong.any():
            first = int(np.argmax(wrong))
            raise InputError(
                f"column '{base(heading)}' must hold numbers, got {str(self.frame[heading].iloc[first])[:40]!r} in "
                f"{self.where(first)} ({counted(int(wrong.sum()), 'such value')} in all): correct or drop it"
            )
        return values


def base(heading: str) -> str:
    """The name in a heading such as ``theta:angle``."""
    return heading.partition(":")[0].strip()


def as_numbers(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """The numbers in a column, NaN where there is none, and which cells hold something else."""
    if pd.api.types.is_numeric_dtype(column) and column.dtype.kind != "c":
        return column.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(column), dtype=bool)
    text = column.astype("string").str.strip()
    values = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    stated = (column.notna() & (text != "").fillna(False)).to_numpy(dtype=bool)
    return values, stated & np.isnan(values) & (text.str.lower() != "nan").fillna(True).to_numpy(dtype=bool)


def from_frame(frame: pd.DataFrame) -> Table:
    """A DataFrame as it is, its headings as text; rows count from 0."""
    headings = [str(column).strip() for column in frame.columns]
    _refuse_repeated(headings)
    return Table(frame.set_axis(headings, axis=1).reset_index(drop=True), "row {}".format)


def _refuse_repeated(headings: Sequence[str]) -> None:
    repeated = sorted({heading for heading in headings if headings.count(heading) > 1})
    if repeated:
        raise InputError(f"several columns have the same heading, {', '.join(repeated)}: give each its own")


def read_table(path: Path) -> Table:
    """A file of columns: Parquet, or text with a line of headings."""
    if path.suffix.lower() in TEXT:
        with parsing("a text file"):
            content = path.read_bytes()
        return table_of(decoded(content))
    with parsing("a Parquet file"):
        frame = pd.read_parquet(path)
        frame = frame.reset_index() if any(frame.index.names) else frame
    return from_frame(frame)


# --- text ------------------------------------------------------------------------------------------------------------


def decoded(content: bytes) -> str:
    """UTF-16 by its mark, else UTF-8, else Latin-1, which old spreadsheets write."""
    marked = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0" if marked else content.decode("latin-1")
    if _CONTROL.search(text):
        raise InputError("this is a binary file: give a table as text, Parquet or NPZ")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def table_of(text: str) -> Table:
    """A text of columns with a line of headings."""
    numbered = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip(" ")]
    kept = [(i, line) for i, line in numbered if not is_aside(line)]
    if not kept:
        raise InputError("No columns: the file is empty")
    layout = layout_of(kept[:2], [line for i, line in numbered if i < kept[0][0]])
    body = kept[layout.skipped :]
    frame = _parsed([line for _, line in body], layout.separator, len(layout.headings))
    # A quoted line break makes fewer rows than lines: then rows are all that can be counted.
    where = (lambda row: f"line {body[row][0]}") if len(frame) == len(body) else "row {}".format
    return _trimmed(_named(Table(frame, where), layout.headings))


class Layout(NamedTuple):
    """How a text is cut into named values; ``skipped`` is how many lines the headings take of the table."""

    separator: str
    headings: list[str]
    skipped: int

    def values(self, line: str) -> list[str]:
        """The values of a line."""
        return _fields(line, self.separator)

    def number(self, value: str) -> float:
        """The number in a value, NaN where it is blank."""
        text = value if self.separator == "," else value.replace(",", ".")
        if text == "" or text.lower() == "nan":
            return float("nan")
        if "_" in text:  # for Python a number
            raise ValueError(text)
        return float(text)


def is_aside(line: str) -> bool:
    """Whether a line is a comment and no row."""
    return bool(_ASIDE.match(line))


def layout_of(first: Sequence[tuple[int, str]], asides: Sequence[str]) -> Layout:
    """The layout of a text, from its first two lines with their numbers and the comments above them."""
    separator = _separator([line for _, line in first])
    headings, skipped = _headings(first[0], [line.lstrip(" #") for line in asides], separator)
    return Layout(separator, headings, skipped)


def _separator(lines: Sequence[str]) -> str:
    """Semicolon, tab or comma, whichever cuts both the headings and the first row; else blanks, where they do."""
    for separator in (";", "\t", ","):
        if all(len(_fields(line, separator)) > 1 for line in lines):
            return separator
    counts = {len(line.split()) for line in lines}
    return _BLANKS if len(counts) == 1 and counts != {1} else ","


def _fields(line: str, separator: str) -> list[str]:
    if separator == _BLANKS:
        return [field.strip('"') for field in line.split()]
    if '"' not in line:
        return [field.strip() for field in line.split(separator)]
    with parsing("a table"):
        return [field.strip() for field in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]


def _headings(first: tuple[int, str], comments: Sequence[str], separator: str) -> tuple[list[str], int]:
    """The headings, and how many lines they take of the table: none where they are the comment above it."""
    found = _fields(first[1], separator)
    if not _all_numbers(found):
        return found, 1
    above = _fields(comments[-1], separator) if comments else []
    if len(above) == len(found) and not _all_numbers(above):
        return above, 0
    if not all(heading.isdecimal() for heading in found if heading):  # a frame without names is written as 0, 1, 2, …
        raise InputError(f"line {first[0]} holds numbers, not headings: begin with a line such as 't,q1,q2'")
    return found, 1


def _all_numbers(fields: Sequence[str]) -> bool:
    stated = pd.Series([field for field in fields if field], dtype="string").str.replace(",", ".")
    return bool(len(stated) and pd.to_numeric(stated, errors="coerce").notna().all())


def _parsed(lines: list[str], separator: str, headings: int) -> pd.DataFrame:
    """One column per value of the longest line: pandas would drop what stands beyond the headings."""
    widths = (len(line.split()) if separator == _BLANKS else line.count(separator) + 1 for line in lines)
    names = range(max(headings, max(widths, default=0)))
    if not lines:
        return pd.DataFrame({name: np.zeros(0) for name in names})
    with parsing("a table"), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # a quoted line break can still lose values
        frame = pd.read_csv(
            io.StringIO("\n".join(lines)),
            sep=separator,
            header=None,
            names=names,
            index_col=False,
            skipinitialspace=True,
            skip_blank_lines=False,
            low_memory=False,
        )
    return frame if separator == "," else frame.apply(_decimal_commas)


def _decimal_commas(column: pd.Series) -> pd.Series:
    """0,5 as 0.5, in a column that has no 0.5 in it: where both occur, one of them is something else."""
    text = column.astype("string")
    if pd.api.types.is_numeric_dtype(column) or text.str.contains(".", regex=False).any():
        return column
    pointed = text.str.replace(_COMMA_NUMBER, r"\1.\2", regex=True)
    values, wrong = as_numbers(pointed)
    return pointed if wrong.any() else pd.Series(values, index=column.index)


def _named(table: Table, headings: list[str]) -> Table:
    """The columns under their headings, without those that have none."""
    beyond = table.frame.iloc[:, len(headings) :].notna().any(axis=1).to_numpy()
    if beyond.any():
        raise InputError(
            f"{table.where(int(np.argmax(beyond)))} has more values than the {counted(len(headings), 'heading')}: "
            "give each column a heading"
        )
    named = [i for i, heading in enumerate(headings) if heading]
    _refuse_repeated([headings[i] for i in named])
    nameless = [i for i, heading in enumerate(headings) if not heading and table.frame[i].notna().any()]
    notes = tuple(f"column {i + 1} has no heading: left out" for i in nameless)
    return table._replace(frame=table.frame[named].set_axis([headings[i] for i in named], axis=1), notes=notes)


def _trimmed(table: Table) -> Table:
    """Without the rows of separators only that spreadsheets leave at the end."""
    stated = np.flatnonzero(table.frame.notna().any(axis=1).to_numpy())
    end = stated[-1] + 1 if len(stated) else 0
    return table._replace(frame=table.frame.iloc[:end])
