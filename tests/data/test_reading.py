"""The door for measured data: what is read, what is mended and said, what is refused, and that nothing else happens."""

import contextlib
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phast
from phast.data.manifold import Manifold
from phast.data.reading import read
from phast.data.recording import GAP, SHORTEST, Recording
from phast.data.trajectories import Trajectories, refuse_turns, save_trajectories
from phast.errors import InputError, counted

MEASURED = Path(__file__).resolve().parents[3] / "shared" / "data"
TIMES = 0.1 * np.arange(12)
WAVE = np.round(np.sin(TIMES), 6)


def measured(name):
    path = MEASURED / name
    if not path.is_file():
        pytest.skip(f"measured data is not here: {path}")
    return path


def lines(*columns, separator=","):
    return "".join(separator.join(map(str, row)) + "\n" for row in zip(*columns, strict=True))


def written(tmp_path, content, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def assert_whole(recording, rows):
    """What every recording keeps, whatever it was read from."""
    assert recording.pieces and 0.0 < recording.dt < np.inf
    assert sum(len(piece.t) for piece in recording.pieces) <= rows
    for piece in recording.pieces:
        count = len(piece.t)
        assert count >= SHORTEST and piece.q.shape == (count, recording.manifold.size)
        assert (piece.u is None) == (not recording.inputs)
        assert piece.u is None or piece.u.shape == (count, len(recording.inputs))
        assert all(np.isfinite(x).all() for x in piece[1:] if x is not None)
        assert (np.diff(piece.t) > 0.0).all()
        circles = np.asarray(recording.manifold.circles)
        assert (np.abs(np.diff(piece.q, axis=0))[:, circles] <= np.pi + 1e-6).all()
    batch = recording.trajectories()
    assert (batch.stretch is None) == recording.even and (batch.u is None) == (not recording.inputs)


# --- what is read ----------------------------------------------------------------------------------------------------


TEXTS = {
    "plain": "t,x\n" + lines(TIMES, WAVE),
    "marked": "\ufefft,x\n" + lines(TIMES, WAVE),
    "utf-16": ("t,x\n" + lines(TIMES, WAVE)).encode("utf-16"),
    "latin-1": ("t,x,T [°C]\n" + lines(TIMES, WAVE, TIMES)).encode("latin-1"),
    "semicolons": "t;x\n" + lines(TIMES, WAVE, separator=";"),
    "decimal commas": ("t;x\n" + lines(TIMES, WAVE, separator=";")).replace(".", ","),
    "tabs": "t\tx\n" + lines(TIMES, WAVE, separator="\t"),
    "blanks": "t x\n" + lines(TIMES, WAVE, separator="   "),
    "comments": "# from the lab, 2024; run 3\nt,x\n# begin\n" + lines(TIMES, WAVE) + "# end\n",
    "for Excel": "sep=;\nt;x\n" + lines(TIMES, WAVE, separator=";"),
    "headings in a comment": "# t,x\n" + lines(TIMES, WAVE),
    "spaces": " t , x \n" + lines(TIMES, WAVE, separator=" ,  "),
    "windows": ("t,x\n" + lines(TIMES, WAVE)).replace("\n", "\r\n"),
    "old mac": ("t,x\n" + lines(TIMES, WAVE)).replace("\n", "\r"),
    "quoted": '"t","x"\n' + lines(TIMES, [f'"{x}"' for x in WAVE]),
    "trailing separators": "t,x,,\n" + lines(TIMES, WAVE, [",,"] * 12),
    "trailing rows": "t,x\n" + lines(TIMES, WAVE) + ",\n,\n\n\n",
    "no last line break": ("t,x\n" + lines(TIMES, WAVE)).rstrip(),
    "an index": ",t,x\n" + lines(range(12), TIMES, WAVE),
    "a column of text": "t,x,note\n" + lines(TIMES, WAVE, ["fine"] * 12),
    "upper case": "Time,x\n" + lines(TIMES, WAVE),
    "rows twice": "t,x\n" + "".join(line + line for line in lines(TIMES, WAVE).splitlines(keepends=True)),
}


@pytest.mark.parametrize("habit", TEXTS)
def test_text_of_any_habit_is_the_same_table(tmp_path, habit):
    recording = read(written(tmp_path, TEXTS[habit]), positions="x")
    (piece,) = recording.pieces
    np.testing.assert_array_equal(piece.t, TIMES)
    np.testing.assert_array_equal(piece.q[:, 0], WAVE)
    assert recording.manifold == Manifold.parse("x") and recording.dt == 0.1 and recording.even
    if habit not in ("latin-1", "a column of text"):
        assert read(written(tmp_path, TEXTS[habit])).manifold == recording.manifold


def test_what_was_left_out_is_said(tmp_path):
    assert read(written(tmp_path, TEXTS["an index"])).notes == ("column 1 has no heading: left out",)
    assert read(written(tmp_path, TEXTS["a column of text"])).notes == ("column 'note' holds text: left out",)
    assert read(written(tmp_path, TEXTS["rows twice"])).notes == ("repeated rows dropped: 12",)
    (note,) = read(written(tmp_path, TEXTS["plain"]), dt=0.2).notes
    assert note == "column 't' left out: the step was given, 0.2"


def test_sources_of_all_kinds_are_the_same_recording(tmp_path):
    frame = pd.DataFrame({"t": TIMES, "x": WAVE, "force": 2.0 * WAVE})
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    frame.set_index("t").to_parquet(tmp_path / "indexed.parquet")
    frame.to_csv(tmp_path / "A.CSV", index=False)
    np.savez(tmp_path / "columns.npz", **{name: frame[name].to_numpy() for name in frame})
    rows = frame[["x", "force"]].to_numpy()
    save_trajectories(
        Trajectories(rows[None, :, :1], 0.1, Manifold.parse("x"), u=rows[None, :, 1:]), tmp_path / "s.npz"
    )
    paths = [tmp_path / name for name in ("a.parquet", "indexed.parquet", "A.CSV", "columns.npz")]
    named = [read(source, positions="x", inputs=["force"]) for source in (*paths, str(paths[0]), frame)]
    named += [read(source, positions=["x"], inputs="force", dt=0.1) for source in (rows, [rows], rows[None])]
    for recording in (*named, read(tmp_path / "s.npz")):
        (piece,) = recording.pieces
        np.testing.assert_allclose(piece.t, TIMES, atol=1e-15)
        np.testing.assert_array_equal(piece.q, rows[:, :1])
        np.testing.assert_array_equal(piece.u, rows[:, 1:])
        assert recording.manifold.names == ("x",) and recording.dt == 0.1
    assert list(frame.columns) == ["t", "x", "force"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@given(seed=st.integers(0, 99), count=st.integers(1, 3), length=st.integers(SHORTEST, 20), dt=st.floats(1e-4, 1e3))
@settings(max_examples=10)
def test_saved_trajectories_come_back_without_a_word(tmp_path, suffix, seed, count, length, dt):
    rng = np.random.default_rng(seed)
    q, v = np.cumsum(rng.uniform(-1.0, 1.0, (2, count, length, 2)), axis=2)
    u = rng.normal(size=(count, length, 3))
    data = Trajectories(q, dt, Manifold.parse("x", "theta:angle"), p=v, v=v, u=u)
    save_trajectories(data, tmp_path / f"data{suffix}")
    for recording in (read(tmp_path / f"data{suffix}"), read(data)):
        assert recording.manifold == data.manifold and recording.inputs == ("u(1)", "u(2)", "u(3)")
        assert recording.notes == () and [piece.label for piece in recording.pieces] == [str(i) for i in range(count)]
        again = recording.trajectories()
        assert again.dt == dt and again.stretch is None
        np.testing.assert_array_equal(again.q, q)
        np.testing.assert_array_equal(again.u, u)


def test_uneven_trajectories_come_back_with_their_times(tmp_path):
    stretch = np.tile([1.0, 1.0, 2.0, 1.0], 3)[None, :, None]
    data = Trajectories(WAVE[None, :, None], 0.1, Manifold.parse("x"), stretch=stretch)
    for suffix in (".csv", ".parquet", ".npz"):
        save_trajectories(data, tmp_path / f"data{suffix}")
        again = read(tmp_path / f"data{suffix}").trajectories()
        assert again.dt == 0.1
        np.testing.assert_allclose(again.stretch, stretch, rtol=1e-12)


def test_runs_may_be_interleaved_unequal_and_called_anything(tmp_path):
    runs = ["b"] * 12 + ["a 1"] * 9
    frame = pd.DataFrame({"run": runs, "t": [*TIMES, *TIMES[:9]], "x": [*WAVE, *-WAVE[:9]]})
    mixed = frame.sample(frac=1.0, random_state=0).sort_values("t", kind="stable")
    recording = read(mixed, trajectory="run")
    found = {piece.label: piece.q[:, 0] for piece in recording.pieces}
    np.testing.assert_array_equal(found["b"], WAVE)
    np.testing.assert_array_equal(found["a 1"], -WAVE[:9])
    assert len(found) == 2
    numbered = read(mixed.replace({"run": {"b": 1.0, "a 1": 2.0}}).astype({"run": float}), trajectory="run")
    assert {piece.label for piece in numbered.pieces} == {"1", "2"}


def test_dates_become_seconds(tmp_path):
    stamps = pd.Timestamp("2024-02-28T23:59:59.5+01:00") + pd.to_timedelta(TIMES, unit="s")
    frame = pd.DataFrame({"time": stamps, "x": WAVE})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for source in (frame, tmp_path / "a.csv", frame.set_index("time"), frame.assign(time=stamps - stamps[0])):
        (piece,) = read(source).pieces
        np.testing.assert_allclose(piece.t, TIMES, atol=1e-9)
    assert read(frame).notes == ("times are seconds since 2024-02-28T22:59:59.500000+00:00",)


# --- angles ----------------------------------------------------------------------------------------------------------


@given(st.floats(-3.0, 3.0), st.sampled_from(["angle", "angle:deg"]), st.booleans())
def test_an_angle_is_the_same_wrapped_or_not_in_either_unit(speed, kind, positive):
    angle = 0.1 + speed * np.arange(20.0) + 0.01 * np.sin(np.arange(20.0))
    wrapped = np.mod(angle, 2 * np.pi) if positive else np.mod(angle + np.pi, 2 * np.pi) - np.pi
    for given_as in (angle, wrapped):
        values = np.rad2deg(given_as) if kind == "angle:deg" else given_as
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            recording = read(values, dt=0.1, positions=f"theta:{kind}")
        found = recording.pieces[0].q[:, 0]
        np.testing.assert_allclose(np.diff(found), np.diff(angle), atol=1e-9)
        np.testing.assert_allclose(found[0], given_as[0], atol=1e-12)
    turns = int((np.abs(np.diff(wrapped)) > np.pi).sum())
    assert recording.notes == ((f"theta: {counted(turns, 'turn')} unwrapped",) if turns else ())


def test_a_heading_may_say_the_kind_and_the_unit(tmp_path):
    path = written(tmp_path, "t,a:angle:deg,b\n" + lines(TIMES, 100.0 * WAVE, WAVE))
    for positions in (None, "a,b", "a:angle,b", ["a:angle:deg", "b:line"]):
        recording = read(path, positions=positions)
        assert recording.manifold == Manifold.parse("a:angle", "b")
        np.testing.assert_allclose(recording.pieces[0].q[:, 0], np.deg2rad(100.0 * WAVE), atol=1e-12)


SWING = 40.0 * np.sin(0.05 * np.arange(300))  # slow: less than a turn's worth per sample


@pytest.mark.parametrize(
    "degrees",
    [SWING, 3.0 * SWING, np.mod(7.3 * np.arange(300), 360.0), np.mod(7.3 * np.arange(300), 360.0) - 180.0],
    ids=["slow", "fast", "0 to 360", "-180 to 180"],
)
def test_degrees_that_were_declared_radians_are_told(degrees):
    with pytest.warns(UserWarning, match="'q' looks like degrees: declare it as 'q:angle:deg'"):
        read(degrees, dt=0.01, positions="q:angle")


@given(st.floats(-3.0, 3.0), st.floats(0.0, 6.0), st.floats(0.0, 0.5), st.booleans())
def test_radians_are_not_taken_for_degrees(speed, swing, rate, wrap):
    q = speed * np.arange(300) + swing * np.sin(rate * np.arange(300) + 0.1)
    q[-1] += 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(np.mod(q, 2 * np.pi) if wrap else q, dt=0.01, positions="q:angle")


@pytest.mark.parametrize(("turn", "kind"), [(2 * np.pi, "angle"), (360.0, "angle:deg")])
def test_a_line_that_turns_is_an_angle(turn, kind):
    q = np.mod(turn * np.arange(60) / 23.4, turn)
    with pytest.raises(InputError, match=f"of trajectory 0, a turn of an angle: declare it as 'q:{kind}'"):
        read(q, dt=0.1, positions="q")
    refuse_turns(3.0 * q[None, :, None], Manifold.parse("q"))  # neither 2π nor 360°
    refuse_turns(q[None, :, None], Manifold.parse("q:angle"))


def test_what_spans_more_than_a_turn_is_not_in_degrees():
    saw = np.mod(360.0 * np.arange(60) / 23.4, 360.0)
    refuse_turns(np.append(saw, 1000.0)[None, :, None], Manifold.parse("volume"))


# --- gaps and steps --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 20), min_size=3, max_size=6), st.floats(1e-3, 1e3))
def test_a_trajectory_is_split_at_its_gaps_and_only_there(lengths, dt):
    lengths = [*lengths, 30]  # so that the median is dt
    starts = np.cumsum([0, *(np.array(lengths[:-1]) + 3 * GAP)])
    t = dt * np.concatenate([start + np.arange(length) for start, length in zip(starts, lengths, strict=True)])
    recording = read(pd.DataFrame({"t": t, "x": np.sin(t / dt)}))
    assert [len(piece.t) for piece in recording.pieces] == [n for n in lengths if n >= SHORTEST]
    assert [piece.label for piece in recording.pieces] == [
        f"0 part {i + 1}" for i, n in enumerate(lengths) if n >= SHORTEST
    ]
    assert recording.notes[0] == (
        f"{counted(len(lengths) - 1, 'gap')} longer than 5 × the median step: split into {len(lengths)} pieces"
    )
    assert any("left out" in note for note in recording.notes) == (min(lengths) < SHORTEST)
    assert_whole(recording, len(t))


@given(st.lists(st.floats(1.0, 4.9), min_size=8, max_size=30))
def test_uneven_steps_are_kept_as_they_are(steps):
    t = np.concatenate([[0.0], np.cumsum(steps)])
    recording = read(pd.DataFrame({"t": t, "x": np.sin(t)}))
    (piece,) = recording.pieces
    np.testing.assert_array_equal(piece.t, t)
    uneven = bool((np.abs(np.array(steps) / np.median(steps) - 1.0) > 2e-3).any())
    if uneven:
        assert not recording.even and recording.notes[-1].startswith("irregular sampling: steps between ")
        np.testing.assert_allclose(recording.trajectories().times[0], t, rtol=1e-9)


def test_a_slow_run_is_no_row_of_gaps():
    fast = pd.DataFrame({"trajectory": 0, "t": 0.01 * np.arange(100), "x": np.sin(np.arange(100))})
    slow = pd.DataFrame({"trajectory": 1, "t": 0.1 * np.arange(20), "x": np.sin(np.arange(20))})
    recording = read(pd.concat([fast, slow]))
    assert [len(piece.t) for piece in recording.pieces] == [100, 20] and recording.dt == 0.01


@pytest.mark.parametrize("timed", [True, False])
def test_blanks_are_refused_or_left_out(tmp_path, timed):
    x = [f"{x}" for x in np.sin(np.arange(40.0))]
    x[10] = ""
    x[20:30] = ["NaN"] * 10
    frame = f"# a comment\n{'t,' if timed else ''}x\n" + lines(*([np.arange(40.0)] if timed else []), x)
    path = written(tmp_path, frame.replace("\n\n", '\n""\n'))
    dt = None if timed else 1.0
    with pytest.raises(
        InputError, match=r"data.csv': column 'x' is blank in line 13 \(11 blank.*missing='split' \(--mi"
    ):
        read(path, dt=dt)
    recording = read(path, dt=dt, missing="split")
    assert [list(piece.t[[0, -1]]) for piece in recording.pieces] == [[0.0, 19.0], [30.0, 39.0]]
    assert len(recording.pieces[0].t) == 19 and not recording.even
    assert recording.notes[0] == "11 rows with blanks dropped"


# --- cutting a recording ---------------------------------------------------------------------------------------------


@pytest.fixture
def three():
    """Pieces of 30, 20 and 10 samples whose inputs are their times."""
    parts = [
        pd.DataFrame({"trajectory": i, "t": np.arange(0.0, n), "x": np.sin(np.arange(n)), "u(1)": np.arange(0.0, n)})
        for i, n in enumerate((30, 20, 10))
    ]
    return read(pd.concat(parts))


def test_windows_come_from_all_pieces(three):
    assert three.trajectories(10).q.shape == (6, 10, 1)
    assert three.trajectories(15, stride=5).u[:, 0, 0].tolist() == [0.0, 5.0, 10.0, 15.0, 0.0, 5.0]
    assert three.trajectories().q.shape == (6, 10, 1)
    assert read([WAVE, -WAVE], dt=0.1).trajectories().q.shape == (2, 12, 1)
    for length in (0, 31):
        with pytest.raises(InputError, match="use 1 to 30"):
            three.trajectories(length)
    with pytest.raises(InputError, match="stride"):
        three.trajectories(5, 0)


@given(st.lists(st.integers(SHORTEST, 500), min_size=1, max_size=12))
def test_the_default_windows_hold_most_of_the_samples(lengths):
    recording = read([np.sin(np.arange(float(n))) for n in lengths], dt=0.1)
    windows = recording.trajectories()
    assert windows.q.size >= 0.8 * sum(lengths) and windows.length >= SHORTEST // 2
    if len(set(lengths)) == 1:
        assert windows.q.shape == (len(lengths), lengths[0], 1)


def test_first_and_last_samples(three):
    assert three.starts(4).u[:, :, 0].tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3
    assert three.ends(2).u[:, :, 0].tolist() == [[28.0, 29.0], [18.0, 19.0], [8.0, 9.0]]
    with pytest.raises(InputError, match=r"context of 15 samples: trajectory 2 \(10\)"):
        three.ends(15)
    with pytest.raises(InputError, match="at least 1"):
        three.starts(0)


@given(st.floats(0.0, 29.0))
def test_a_recording_is_split_in_time(cut):
    t = np.arange(30.0) + 0.3 * np.sin(np.arange(30.0))
    whole = read(pd.DataFrame({"t": t, "x": np.cos(t)}))
    kept = 0
    for start, stop in ((-np.inf, cut), (cut, np.inf)):
        inside = (start <= t) & (t < stop)
        if inside.sum() < SHORTEST:
            with pytest.raises(InputError, match="no piece has 8 samples between"):
                whole.between(start, stop)
            continue
        part = whole.between(start, stop)
        np.testing.assert_array_equal(part.pieces[0].t, t[inside])
        assert part.dt == whole.dt
        kept += inside.sum()
    assert kept >= len(t) - SHORTEST


def test_a_step_before_a_window_s_end_keeps_its_length():
    t = np.cumsum([0.0, *([1.0, 1.0, 3.0] * 10)])
    windows = read(pd.DataFrame({"t": t, "x": np.sin(t)})).trajectories(3)
    assert windows.stretch[:, :, 0].tolist() == [[1.0, 1.0, 3.0]] * 10


# --- what is refused -------------------------------------------------------------------------------------------------


GOOD = "t,x\n" + lines(TIMES, WAVE)


def spoiled(line, text):
    rows = GOOD.splitlines()
    rows[line - 1] = text
    return "\n".join(rows)


REFUSED = {
    "empty": ("a.csv", "", {}, "the file is empty"),
    "comments only": ("a.csv", "# a\n# b\n", {}, "the file is empty"),
    "headings only": ("a.csv", "t,x\n", {}, "the table has no rows"),
    "no headings": ("a.csv", lines(TIMES, WAVE), {}, "line 1 holds numbers, not headings: begin with a line"),
    "binary": ("a.csv", bytes(range(256)), {}, "this is a binary file"),
    "half of UTF-16": ("a.csv", b"\xff\xfe\x00", {}, "this is a binary file"),
    "a foreign ending": ("a.xlsx", "", {}, "the ending must be .csv, .tsv, .txt, .parquet or .npz, not '.xlsx'"),
    "no Parquet": ("a.parquet", b"PAR1nonsense", {}, "this is not a Parquet file that can be read"),
    "no NPZ": ("a.npz", b"nonsense", {}, "this is not an NPZ file"),
    "headings twice": ("a.csv", GOOD.replace("t,x", "t, t "), {}, "several columns have the same heading, t"),
    "text": ("a.csv", spoiled(5, "0.3,oops"), {}, r"column 'x' must hold numbers, got 'oops' in line 5 \(1 such"),
    "a date among numbers": (
        "a.csv",
        spoiled(5, "2024-01-01,1"),
        {},
        "'t' must hold numbers, got '2024-01-01' in line 5",
    ),
    "text in times": ("a.csv", spoiled(5, "later,1"), {}, "column 't' must hold numbers, got 'later' in line 5"),
    "too many values": ("a.csv", spoiled(5, "0.3,1,2"), {}, r"line 5 has more values than the 2 headings"),
    "too few values": ("a.csv", spoiled(5, "0.3"), {}, r"column 'x' is blank in line 5 \(1 blank.*missing='split'"),
    "a blank time": ("a.csv", spoiled(5, ",1"), {}, "column 't' is blank in line 5"),
    "infinite": ("a.csv", spoiled(5, "0.3,-inf"), {}, "column 'x' is -inf in line 5 .* too large"),
    "overflow": ("a.csv", spoiled(5, "0.3,1e200"), {}, r"column 'x' is 1e\+200 in line 5"),
    "a lost angle": ("a.csv", spoiled(5, "0.3,1e15"), {"positions": "x:angle"}, r"column 'x' is 1e\+15 in line 5"),
    "infinite time": ("a.csv", spoiled(13, "inf,1"), {}, "column 't' is inf in line 13"),
    "backward": ("a.csv", spoiled(5, "0.05,1"), {}, r"time goes back from 0.2 to 0.05 in line 5: sort .*trajectory="),
    "repeated": ("a.csv", spoiled(5, "0.2,1"), {}, r"time 0.2 is repeated in line 5 \(1 such row"),
    "nearly repeated": ("a.csv", spoiled(5, "0.20000000001,1"), {}, "time 0.2 is repeated in line 5"),
    "short": ("a.csv", "t,x\n" + lines(TIMES[:7], WAVE[:7]), {}, "too short: 8 samples .* the longest stretch has 7"),
    "an unknown column": ("a.csv", GOOD, {"positions": "X"}, r"no column 'X': the columns are t, x \(did you mean 'x'"),
    "an unknown input": ("a.csv", GOOD, {"inputs": "u"}, "no column 'u': the columns are t, x"),
    "an unknown time": ("a.csv", GOOD, {"time": "seconds"}, "no column 'seconds'"),
    "an unknown trajectory": ("a.csv", GOOD, {"trajectory": "run"}, "no column 'run'"),
    "an unknown kind": (
        "a.csv",
        GOOD,
        {"positions": "x:circle"},
        "position 'x:circle': write 'x', 'x:line:UNIT', 'x:ang",
    ),
    "degrees on a line": ("a.csv", GOOD, {"positions": "x:line:deg"}, "position 'x:line:deg': write"),
    "one column for two": ("a.csv", GOOD, {"positions": "x", "inputs": "x"}, "column 'x' was named twice"),
    "time as a position": ("a.csv", GOOD, {"positions": "t", "time": "t"}, "column 't' was named twice"),
    "no positions": ("a.csv", "t\n" + lines(TIMES), {}, "no column of positions among t"),
    "no times": ("a.csv", GOOD.replace("t,", "s,"), {}, "no column 't' or 'time' among s, x: name it with time=.*dt="),
    "two clocks": ("a.csv", GOOD, {"time": "t", "dt": 0.1}, "time='t' and dt=0.1 were both given"),
    "no step": ("a.csv", GOOD, {"dt": 0.0}, "dt must be a positive number"),
    "no such way": ("a.csv", GOOD, {"missing": "fill"}, "missing must be 'refuse' or 'split', not 'fill'"),
    "nothing left": (
        "a.csv",
        "t,x,u\n" + lines(TIMES, WAVE, [""] * 12),
        {"inputs": "u", "missing": "split"},
        "too short",
    ),
    "mixed decimals": ("a.csv", "t;x\n" + lines(TIMES, WAVE, separator=";") + "1,2;1,5\n", {}, "got '1,5' in line 14"),
    "a strange date": (
        "a.csv",
        "t,x\n2024-01-01,1\n" + "01/02/24,2\n" * 9,
        {},
        "holds dates, but '01/02/24' in line 3",
    ),
    "a lost row": (
        "a.csv",
        "trajectory,x\n" + lines(["0"] * 5 + [""] + ["0"] * 6, WAVE),
        {"dt": 0.1, "missing": "split"},
        "column 'trajectory' is blank in line 7, and there is no time column",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, case):
    name, content, options, message = REFUSED[case]
    path = written(tmp_path, content, name)
    with pytest.raises(InputError, match=message) as error:
        read(path, **options)
    assert "\n" not in str(error.value)
    assert name in str(error.value) or {"dt", "missing"} & options.keys()


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"no such file: '.*none\.csv'"):
        read(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder: name a file in it"):
        read(tmp_path)


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    save_trajectories(Trajectories(WAVE[None, :, None], 0.1, Manifold.parse("x")), path)
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[len(whole) // 2 :]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"data{suffix}': ") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_no_pickle_is_opened(tmp_path):
    np.savez(tmp_path / "a.npz", q=np.array([{"a": 1}] * 9, dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="this is not an NPZ file that can be read"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (WAVE, {}, "give the step by dt="),
        ([["a", "b"]], {"dt": 0.1}, "must hold numbers"),
        ([np.zeros((9, 1)), np.zeros((9, 2))], {"dt": 0.1}, "the arrays have 1, 2 columns"),
        (np.zeros((9, 3)), {"dt": 0.1, "positions": "a,b"}, "has 3 column.* 2 position.* 0 input"),
        (np.zeros((9, 1)), {"dt": 0.1, "inputs": "u"}, "has 1 column"),
        (np.zeros((9, 1, 1, 1)), {"dt": 0.1}, r"got \(9, 1, 1, 1\)"),
        (np.zeros((0, 5, 1)), {"dt": 0.1}, "no columns"),
        ([np.sin(np.arange(9.0)), np.full(9, np.nan)], {"dt": 0.1}, "blank in row 0 of trajectory 1"),
        (pd.DataFrame({"t": TIMES, 0: 1j * WAVE}), {}, "column '0' must hold numbers|no column of positions"),
    ],
)
def test_arrays_that_cannot_be_used(source, options, message):
    with pytest.raises(InputError, match=message):
        read(source, **options)


# --- nothing else happens --------------------------------------------------------------------------------------------


def tried(path, rows, **options):
    """A recording whose invariants hold, or an InputError of one line: nothing else is an answer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            recording = read(path, **options)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert_whole(recording, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(st.binary(max_size=200), st.sampled_from([".csv", ".txt", ".parquet", ".npz"]), st.sampled_from([None, 0.1]))
@settings(max_examples=100)
def test_any_bytes_are_read_or_refused(folder, content, suffix, dt):
    path = folder / f"bytes{suffix}"
    path.write_bytes(content)
    tried(path, 100, dt=dt)


@given(st.sampled_from([".csv", ".parquet", ".npz"]), st.data())
@settings(max_examples=100)
def test_any_damage_is_read_or_refused(folder, suffix, data):
    path = folder / f"damaged{suffix}"
    q = np.sin(np.arange(40.0)).reshape(2, 10, 2)
    save_trajectories(Trajectories(q, 0.1, Manifold.parse("x", "a:angle"), u=q), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    tried(path, 20, missing=data.draw(st.sampled_from(["refuse", "split"])))


cells = st.floats(allow_nan=True, allow_infinity=True).map(repr) | st.sampled_from(
    [
        "",
        " ",
        "NA",
        "oops",
        "1e400",
        "1,5",
        '"2"',
        '"',
        "#",
        "12345678901234567890123",
        "0x1F",
        "True",
        "2024-01-01",
        "٣",
    ]
)
headings = st.sampled_from(
    ["t", "time", "x", " y ", "a:angle", "b:angle:deg", "u(1)", "trajectory", "", '"z"', "v(x)", "3"]
)


TIMED = {"t", "time"}


@st.composite
def tables(draw):
    """Text that is nearly a good table, and what to read of it: a few cells, rows and habits are off."""
    names = draw(st.lists(headings, min_size=1, max_size=5, unique=True))
    names = draw(st.sampled_from([["t", *(name for name in names if name != "t")], names, [*names, names[0]]]))
    count = draw(st.sampled_from([20, 25, 30, 7, 0]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    columns = {name: 0.5 * np.arange(count) if name in TIMED else rng.normal(size=count) for name in names}
    columns |= {"trajectory": rng.integers(0, 2, count)} if "trajectory" in names else {}
    rows = [list(map(str, row)) for row in zip(*(columns[name] for name in names), strict=True)]
    for _ in range(draw(st.integers(0, 2)) if rows else 0):
        draw(st.sampled_from(rows))[draw(st.integers(0, len(names) - 1))] = draw(cells)
    change = draw(st.sampled_from(["none", "none", "none", "shuffle", "repeat", "drop", "widen"]))
    if change == "shuffle":
        rng.shuffle(rows)
    elif change == "repeat":
        rows += rows[-1:] * 2
    elif change == "drop":
        rows = rows[:9] + rows[16:]
    elif change == "widen" and rows:
        rows[0] = [*rows[0], draw(cells)]
    separator, newline = (
        draw(st.sampled_from([",", ";", "\t", " , ", " "])),
        draw(st.sampled_from(["\n", "\r\n", "\r"])),
    )
    text = newline.join(separator.join(row) for row in [names, *rows])
    text = draw(st.sampled_from(["", "# hello\n", "\n"])) + text + draw(st.sampled_from(["", "\n", ",,\n"]))
    given_names = [None, None, "x", *names, ",".join(names[1:])]
    options = {
        "positions": draw(st.sampled_from(given_names)),
        "inputs": draw(st.sampled_from(["", "", "", "u(1)", names[-1]])),
        "dt": draw(st.sampled_from([None, None, 0.1])),
        "missing": draw(st.sampled_from(["refuse", "split"])),
    }
    return text.encode(draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))), options


@given(tables())
@settings(max_examples=250)
def test_any_table_is_read_or_refused(folder, table):
    path, (content, options) = folder / "table.csv", table
    path.write_bytes(content)
    tried(path, 32, **options)


@given(st.lists(st.tuples(st.integers(0, 19), st.sampled_from(["t", "x"]), cells), min_size=1, max_size=3))
@settings(max_examples=60)
def test_any_cells_are_read_or_refused(folder, odd):
    frame = pd.DataFrame({"t": np.arange(20.0), "x": np.sin(np.arange(20.0))}, dtype=object)
    for row, column, cell in odd:
        frame.loc[row, column] = cell
    path = folder / "cells.csv"
    path.write_text("t,x\n" + lines(frame["t"], frame["x"]))
    tried(path, 20, missing="split")
    with contextlib.suppress(InputError):
        assert_whole(read(frame, missing="split"), 20)


# --- measured data ---------------------------------------------------------------------------------------------------


def test_a_pendulum_at_100_hz():
    recording = phast.read(measured("multiarm_single_100Hz.csv"), positions="q:angle")
    assert isinstance(recording, phast.Recording) and isinstance(recording, Recording)
    assert recording.even and recording.dt == 0.01 and recording.notes == ()
    assert recording.trajectories().q.shape == (1, 4001, 1)


def test_a_driven_double_pendulum_with_an_uneven_clock():
    path = measured("dfki_design_A.0_20220815_04.csv")
    recording = read(path, positions="q1:angle,q2:angle", inputs="u1,u2")
    frame = pd.read_csv(path, comment="#")
    (piece,) = recording.pieces
    np.testing.assert_array_equal(piece.u, frame[["u1", "u2"]])
    np.testing.assert_array_equal(piece.t, frame["t"])
    assert not recording.even and recording.dt == 0.002 and recording.inputs == ("u1", "u2")
    data = recording.trajectories()
    np.testing.assert_allclose(data.times[0], piece.t - piece.t[0], atol=1e-9)
    assert data.stretch.min() > 0.99 and data.stretch.max() < GAP


def test_furs_by_the_year():
    recording = read(measured("lynx_hare.csv"), time="Year")
    assert recording.manifold == Manifold.parse("Lynx", "Hare") and recording.even and recording.dt == 1.0
    (piece,) = recording.pieces
    assert piece.t[[0, -1]].tolist() == [1900.0, 1920.0] and piece.q[0].tolist() == [4.0, 30.0]


def test_two_heaters():
    recording = read(measured("tclab_mimo_1Hz.csv"), positions=["T1_degC", "T2_degC"], inputs=["u1_pct", "u2_pct"])
    assert recording.trajectories().u.shape == (1, 599, 2) and not recording.even
    assert 0.99 < recording.dt < 1.01
