"""Lines of a stream are read as the rows of a file are."""

import numpy as np
import pytest

import phast
from phast.data.lines import SampleReader
from phast.errors import InputError

T = 0.1 * np.arange(10)
COLUMNS = {"t": T, "x": np.cos(T), "theta:angle:deg": 30.0 * np.sin(T), "u(1)": np.round(T, 2) - 0.3}


def text(separator=",", comma=False, head="", end="") -> str:
    """A table of COLUMNS."""
    rows = [",".join(f"{x:.12g}" for x in row).split(",") for row in zip(*COLUMNS.values(), strict=True)]
    rows = [[x.replace(".", ",") for x in row] if comma else row for row in rows]
    lines = [separator.join(row) + end for row in [list(COLUMNS), *rows]]
    return head + "\n".join(lines) + "\n"


def samples(table: str | bytes, **named) -> list:
    content = table if isinstance(table, bytes) else table.encode()
    return list(SampleReader(content.splitlines(keepends=True), **named))


LAYOUTS = {
    "commas": text(),
    "semicolons and decimal commas": text(";", comma=True),
    "tabs": text("\t"),
    "blanks": text("  "),
    "comments, blank lines and a mark": "\ufeff" + text(head="# by an encoder\n\n").replace("\n", "\r\n"),
    "a separator too many": text(end=","),
    "quotes": text().replace("t,x", '"t","x"'),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lines_are_read_as_rows_of_a_file(layout, tmp_path):
    table = LAYOUTS[layout]
    path = tmp_path / "table.csv"
    path.write_bytes(table.encode())
    whole = phast.read(path)
    reader = SampleReader(table.encode().splitlines(keepends=True))
    found = list(reader)
    (piece,) = whole.pieces
    assert reader.units == whole.units and reader.inputs == whole.inputs
    np.testing.assert_allclose([s.t for s in found], piece.t, atol=1e-12)
    np.testing.assert_allclose(whole.units.from_file(np.stack([s.q for s in found])), piece.q, atol=1e-12)
    np.testing.assert_allclose(np.stack([s.u for s in found]), piece.u, atol=1e-12)


def test_columns_are_chosen_by_name():
    table = "clock,run,a,b\n0,2.0,1,5\n1,2.0,2,6\n1,x,2,6\n"
    found = samples(table, time="clock", positions="b:angle", inputs="a", trajectory="run")
    assert [(s.label, s.t, *s.q, *s.u) for s in found] == [("2", 0, 5, 1), ("2", 1, 6, 2), ("x", 1, 6, 2)]
    with pytest.raises(InputError, match="no column 'c'"):
        samples(table, positions="c")


def test_times_are_counted_or_dates():
    assert [s.t for s in samples("x\n1\n2\n3\n", dt=0.5)] == [0.0, 0.5, 1.0]
    dates = "time,x\n2024-05-01T12:30:59.5,1\n2024-05-01T12:31:00.25Z,2\n"
    assert [s.t for s in samples(dates)] == [0.0, 0.75]


def test_a_sample_is_given_before_the_next_line_is_there():
    given = []

    def lines():
        for line in ("t,x\n", "0,1\n", "1,2\n", "2,3\n"):
            given.append(line)
            yield line.encode()

    for count, sample in enumerate(SampleReader(lines())):
        assert sample.t == count and len(given) == count + 2


def test_blanks_are_refused_or_left_out_and_copies_left_out():
    table = "t,x\n0,1\n1,\n2,nan\n2,3\n2,3\n"
    with pytest.raises(InputError, match="blank in line 3"):
        samples(table)
    assert [(s.line, s.t) for s in samples(table, missing="split")] == [(2, 0.0), (5, 2.0)]


BROKEN = {
    "a word": ("t,x\n0,1\n1,two\n", "'x' must hold numbers, got 'two' in line 3"),
    "Python's number": ("t,x\n0,1\n1,1_0\n", "got '1_0' in line 3"),
    "too few": ("t,x\n0,1\n1\n", "line 3 has 1 value, but there are 2 headings"),
    "too many": ("t,x\n0,1\n1,2,3\n", "line 3 has 3 values, but there are 2"),
    "infinity": ("t,x\n0,1\n1,inf\n", "'x' is inf in line 3, too large"),
    "too large": ("t,x\n0,1\n1,1e200\n", "too large"),
    "binary": (b"t,x\n0,1\n\x00\x01\n", "binary"),
    "no headings": ("0.5,1\n1.5,2\n", "not headings"),
    "no rows": ("t,x\n", "no rows"),
    "nothing": ("", "empty"),
    "no time": ("x\n1\n", "no column 't'"),
    "no positions": ("t\n1\n", "no column of positions"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_sample_is_named(what):
    table, said = BROKEN[what]
    with pytest.raises(InputError, match=said):
        samples(table)
