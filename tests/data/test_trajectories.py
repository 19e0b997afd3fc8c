"""Trajectories: what is refused at the door, the accuracy of the ground truth, the cache, and files."""

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import phast.dynamics.simulation
import phast.paper.protocol
from phast.data.files import cache_directory
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories, as_trajectories, load_trajectories, save_trajectories
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import SYSTEMS, black_box
from phast.errors import InputError
from phast.paper.protocol import Split, benchmark_split

CART = Manifold.parse("x", "theta:angle")
SPRING = SYSTEMS["spring-mass"]
numbers = st.floats(-1e6, 1e6)
positions = arrays(np.float64, array_shapes(min_dims=3, max_dims=3, max_side=5), elements=numbers)


@pytest.fixture
def recorded():
    """Three trajectories of eight steps, with everything that can be recorded."""
    rng = np.random.default_rng(0)
    q, p, v = rng.normal(size=(3, 3, 8, 2))
    return Trajectories(q, 0.1, CART, p=p, v=v, u=rng.normal(size=(3, 8, 1)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PHAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def assert_same(a, b):
    assert a.dt == b.dt and a.manifold == b.manifold and a.arrays().keys() == b.arrays().keys()
    for name, array in a.arrays().items():
        np.testing.assert_array_equal(array, b.arrays()[name])


def test_they_say_what_they_are_in_one_line(recorded):
    assert repr(recorded) == "Trajectories of x, theta:angle, p, v, u: 3 × 8 samples, every 0.1 s"


# --- the door --------------------------------------------------------------------------------------------------------


@given(positions, st.floats(1e-6, 1e3))
def test_what_fits_is_kept_as_it_is(q, dt):
    data = as_trajectories(q, dt=dt)
    np.testing.assert_array_equal(data.q, q)
    assert (len(data), data.length, data.manifold.size) == q.shape and data.dt == dt
    assert data.q.dtype == np.float64 and data.t[-1] == dt * (q.shape[1] - 1)


@given(positions, st.data(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_a_value_that_is_not_finite_is_named(q, data, value):
    where = tuple(data.draw(st.integers(0, size - 1)) for size in q.shape)
    q[where] = value
    message = f"q is {value} at trajectory {where[0]}, step {where[1]}, coordinate 'q{where[2] + 1}'"
    with pytest.raises(ValueError, match=message):
        as_trajectories(q, dt=0.1)


@given(st.floats(max_value=0.0) | st.sampled_from([np.nan, np.inf]))
def test_a_step_that_is_not_positive_is_refused(dt):
    with pytest.raises(ValueError, match="dt must be a positive number"):
        as_trajectories(np.zeros(5), dt=dt)


@given(array_shapes(min_dims=1, max_dims=4, max_side=4))
def test_momenta_must_run_along_with_positions(shape):
    q = np.zeros((2, 5, 2))
    for name in ("p", "v"):
        with pytest.raises(ValueError, match=rf"{name} has shape .* give {name} the shape \(2, 5, 2\)"):
            Trajectories(q, 0.1, CART, **{name: np.zeros(shape)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": np.zeros((5, 2))}, "use as_trajectories"),
        ({"q": np.zeros((0, 5, 2))}, "no samples"),
        ({"q": np.zeros((1, 5, 3))}, r"3 coordinates but the manifold has 2 \(x, theta\)"),
        ({"q": np.full((1, 5, 2), "a")}, "q must hold numbers"),
        ({"q": np.zeros((1, 5, 2)), "u": np.zeros((1, 4, 1))}, r"give u the shape \(1, 5, inputs\)"),
        ({"q": np.zeros((1, 5, 2)), "u": np.full((1, 5, 1), np.nan)}, "u is nan at trajectory 0, step 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(fields, message):
    with pytest.raises(ValueError, match=message) as error:
        Trajectories(**fields, dt=0.1, manifold=CART)
    assert "\n" not in str(error.value)


def test_data_comes_in_many_forms():
    rows = np.arange(10.0).reshape(5, 2)
    names = ["x", "theta:angle"]
    frame = pd.DataFrame({"theta": rows[:, 1], "note": "a", "x": rows[:, 0]})
    one = as_trajectories(rows, dt=0.1, coordinates=names)
    assert_same(one, as_trajectories(frame, dt=0.1, coordinates=names))
    assert_same(one, as_trajectories([rows], dt=0.1, coordinates=names))
    assert_same(one, as_trajectories(rows[None], dt=0.1, coordinates=names))
    assert one.manifold == CART
    assert as_trajectories(frame[["x", "theta"]], dt=0.1).manifold.names == ("x", "theta")
    assert as_trajectories(rows[:, 0], dt=0.1, coordinates="x").q.shape == (1, 5, 1)
    assert as_trajectories([1.0, 2.0, 3.0], dt=0.1).q.shape == (1, 3, 1)
    assert as_trajectories([rows[:, 0], rows[:, 1]], dt=0.1).q.shape == (2, 5, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([np.zeros(5), np.zeros(4)], "trajectory 1 has shape .* cut them to equal length"),
        (np.zeros((1, 2, 3, 4)), r"got \(1, 2, 3, 4\)"),
        (pd.DataFrame({"y": [0.0]}), "no column 'x': the columns are y"),
        (pd.DataFrame({"x": ["a"]}), "column 'x' must hold numbers"),
        (np.zeros((5, 2)), r"2 coordinates but the manifold has 1"),
    ],
)
def test_data_in_no_known_form_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        as_trajectories(data, dt=0.1, coordinates=["x"])


# --- cutting and noise -----------------------------------------------------------------------------------------------


def test_subsets_and_steps(recorded):
    part = recorded.subset([2, 0])
    np.testing.assert_array_equal(part.v, recorded.v[[2, 0]])
    assert len(recorded.subset(slice(1, None))) == 2
    assert len(recorded.subset(np.array([True, False, True]))) == 2
    np.testing.assert_array_equal(recorded.steps(2, 5).u, recorded.u[:, 2:5])
    assert recorded.steps(3).length == 5


@given(st.integers(1, 8), st.integers(1, 9))
def test_windows_are_stretches_of_their_trajectory(length, stride):
    q = np.arange(48.0).reshape(3, 8, 2)
    cut = Trajectories(q, 0.1, CART, p=-q).windows(length, stride)
    expected = [q[i, start : start + length] for i in range(3) for start in range(0, 8 - length + 1, stride)]
    np.testing.assert_array_equal(cut.q, expected)
    np.testing.assert_array_equal(cut.p, -cut.q)


def test_windows_that_do_not_fit_are_refused(recorded):
    with pytest.raises(ValueError, match="use 1 to 8"):
        recorded.windows(9)
    with pytest.raises(ValueError, match="stride"):
        recorded.windows(3, 0)


def test_noise_touches_a_copy_of_the_positions_only():
    data = Trajectories(np.zeros((50, 200, 1)), 0.1, Manifold.parse("x"), v=np.ones((50, 200, 1)))
    noisy = data.with_noise(0.3, seed=1)
    np.testing.assert_allclose(noisy.q.std(), 0.3, rtol=0.03)
    np.testing.assert_array_equal(noisy.v, data.v)
    assert not data.q.any()
    assert_same(noisy, data.with_noise(0.3, seed=1))
    assert np.any(noisy.q != data.with_noise(0.3, seed=2).q)
    assert_same(data, data.with_noise(0.0, seed=1))
    with pytest.raises(ValueError, match="noise level"):
        data.with_noise(-0.1, seed=1)


# --- uneven steps -----------------------------------------------------------------------------------------------------


@pytest.fixture
def uneven():
    """Two trajectories of five steps whose lengths differ."""
    stretch = np.array([[1.0, 2.0, 0.5, 1.0, 1.0], [3.0, 1.0, 1.0, 0.25, 1.0]])[..., None]
    return Trajectories(np.arange(10.0).reshape(2, 5, 1), 0.1, Manifold.parse("x"), stretch=stretch)


def test_uneven_steps_travel_with_their_samples(uneven):
    np.testing.assert_array_equal(uneven.subset([1]).stretch, uneven.stretch[[1]])
    np.testing.assert_array_equal(uneven.steps(1, 4).stretch, uneven.stretch[:, 1:4])
    np.testing.assert_array_equal(uneven.with_noise(0.1, seed=0).stretch, uneven.stretch)
    windows = uneven.windows(3)
    np.testing.assert_array_equal(windows.stretch[1, :, 0], [2.0, 0.5, 1.0])
    assert uneven.arrays().keys() == {"q", "stretch"}
    np.testing.assert_allclose(uneven.times, [[0.0, 0.1, 0.3, 0.35, 0.45], [0.0, 0.3, 0.4, 0.5, 0.525]])


def test_uneven_steps_in_files(uneven, tmp_path):
    save_trajectories(uneven, tmp_path / "a.npz")
    assert_same(uneven, load_trajectories(tmp_path / "a.npz"))
    save_trajectories(uneven, tmp_path / "a.csv")
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "a.csv")["t"], uneven.times.ravel())
    with pytest.raises(InputError, match=r"not evenly spaced, .*phast\.read"):
        load_trajectories(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("stretch", "message"),
    [
        (np.ones((2, 5)), r"give stretch the shape \(2, 5, 1\)"),
        (np.ones((2, 5, 2)), r"give stretch the shape \(2, 5, 1\)"),
        (np.full((2, 5, 1), np.nan), "stretch is nan at trajectory 0, step 0"),
        (np.zeros((2, 5, 1)), "stretch is 0 at trajectory 0, step 0: times must increase"),
    ],
)
def test_steps_that_cannot_be_are_refused(stretch, message):
    with pytest.raises(InputError, match=message):
        Trajectories(np.zeros((2, 5, 1)), 0.1, Manifold.parse("x"), stretch=stretch)


# --- simulation ------------------------------------------------------------------------------------------------------


def test_a_seed_fixes_the_numbers():
    data = simulate(SPRING, 8, length=20, seed=7)
    assert_same(data, simulate(SPRING, 8, length=20, seed=7))
    assert np.all(data.q != simulate(SPRING, 8, length=20, seed=8).q)
    assert data.dt == SPRING.dt and data.length == 20


def test_the_precision_of_the_process_does_not_matter():
    single = simulate(SPRING, 8, length=20)
    with jax.enable_x64(True):
        assert_same(single, simulate(SPRING, 8, length=20))


def test_against_the_exact_solution():
    """q'' + b q' + q = 0: a damped cosine."""
    data, b = simulate(SPRING, 8, length=20), 0.3
    w = np.sqrt(1.0 - b**2 / 4.0)
    q0, v0 = data.q[:, :1, 0], data.v[:, :1, 0]
    exact = np.exp(-b / 2 * data.t) * (q0 * np.cos(w * data.t) + (v0 + b / 2 * q0) / w * np.sin(w * data.t))
    np.testing.assert_allclose(data.q[..., 0], exact, atol=1e-11)


def test_a_coarser_sampling_of_the_same_motion():
    fine, coarse = simulate(SPRING, 8, length=20, dt=0.05), simulate(SPRING, 8, length=20, dt=0.1)
    np.testing.assert_allclose(fine.q[:, ::2], coarse.q[:, :10], atol=1e-11)


def from_one(rng, count):
    return np.ones((count, 1)), np.ones((count, 1))


def test_a_divergent_system_is_reported():
    """q' = q² from q = 1 is 1/(1 - t): it leaves at t = 1."""
    runaway = black_box(lambda q, p: (q**2, -p), Manifold.parse("x"), from_one, dt=0.15, name="runaway")
    with pytest.raises(InputError, match=r"'runaway': trajectory 0 cannot be followed beyond t = 0\.9 "):
        simulate(runaway, 2, length=30)


@pytest.mark.parametrize(
    ("count", "arguments", "message"),
    [
        (0, {}, "at least 1, got 0"),
        (2, {"length": 1}, "at least 2 samples"),
        (2, {"dt": -0.1}, "dt must be a positive number"),
        (2, {"dt": float("nan")}, "dt must be a positive number"),
    ],
)
def test_an_impossible_simulation_is_refused(count, arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(SPRING, count, **arguments)


def test_initial_states_of_the_wrong_shape_are_refused():
    own = black_box(lambda q, p: (p, -q), CART, from_one, dt=0.1)
    with pytest.raises(ValueError, match=r"initial\(rng, 3\) must return two arrays of shape \(3, 2\)"):
        simulate(own, 3)


# --- splits and their cache ------------------------------------------------------------------------------------------


def small_split(**arguments):
    return benchmark_split(SPRING, **{"sizes": (4, 2, 2), "length": 20} | arguments)


def refuse(*_):
    raise AssertionError("this should have come from the cache")


def test_a_split_is_one_stream_cut_in_three(cache):
    split = small_split()
    assert isinstance(split, Split) and [len(part) for part in split] == [4, 2, 2]
    whole = simulate(SPRING, 8, length=20)
    np.testing.assert_array_equal(np.concatenate([part.q for part in split]), whole.q)
    with pytest.raises(ValueError, match="at least one trajectory"):
        small_split(sizes=(4, 0, 2))


def test_a_split_is_simulated_once(cache, monkeypatch):
    first = small_split()
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(phast.paper.protocol, "trajectories_from", refuse)
    for a, b in zip(first, small_split(), strict=True):
        assert_same(a, b)
    np.testing.assert_array_equal(first.train.q, small_split(sizes=(4, 3, 1)).train.q)


def test_whatever_determines_the_data_is_in_the_key(cache, monkeypatch):
    small_split()
    monkeypatch.setattr(phast.paper.protocol, "trajectories_from", refuse)
    stiffer = black_box(lambda q, p: (p, -2.0 * q), SPRING.manifold, SPRING.initial, SPRING.dt)
    softer = black_box(lambda q, p: (p, -1.0 * q), SPRING.manifold, SPRING.initial, SPRING.dt)
    for change in ({"seed": 1}, {"length": 21}, {"dt": 0.1}, {"sizes": (4, 2, 3)}):
        with pytest.raises(AssertionError):
            small_split(**change)
    assert (
        len({phast.paper.protocol._fingerprint(s, *from_one(None, 2), 20, 0.1) for s in (SPRING, stiffer, softer)}) == 3
    )
    monkeypatch.setattr(phast.paper.protocol, "_CACHE_FORMAT", "another")
    with pytest.raises(AssertionError):
        small_split()


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "text", "other", "poisoned"])
def test_a_damaged_cache_is_simulated_again(cache, damage):
    first = small_split()
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    if damage == "other":
        np.savez(path, a=np.zeros(3))
    elif damage == "poisoned":
        np.savez(path, q=np.full((8, 20, 1), np.nan), dt=SPRING.dt)
    else:
        path.write_bytes({"empty": b"", "truncated": whole[:-100], "flipped": bytes(flipped), "text": b"no"}[damage])
    for a, b in zip(first, small_split(), strict=True):
        assert_same(a, b)
    assert path.read_bytes() == whole or load_trajectories(path).length == 20
    assert list(cache.iterdir()) == [path]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("PHAST_CACHE", str(tmp_path / "file"))
    assert small_split().train.length == 20


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("PHAST_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "phast"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "phast"


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_files_bring_back_what_was_saved(recorded, tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    for data in (recorded, Trajectories(recorded.q / 3.0, 1.0 / 3.0, CART), recorded.subset([0]).steps(0, 2)):
        save_trajectories(data, path)
        assert_same(data, load_trajectories(path))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_gives_the_columns_that_are_asked_for(recorded, tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    save_trajectories(recorded, path)
    angle = load_trajectories(path, coordinates=["theta:angle"])
    np.testing.assert_array_equal(angle.q, recorded.q[..., 1:])
    np.testing.assert_array_equal(angle.v, recorded.v[..., 1:])
    with pytest.raises(ValueError, match="no column 'phi'"):
        load_trajectories(path, coordinates=["phi"])


def test_a_plain_table_of_one_trajectory(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("x,theta\n1,2\n3,4\n5,6\n")
    data = load_trajectories(path, dt=0.1, coordinates=["x", "theta:angle"])
    assert_same(
        data, as_trajectories(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), dt=0.1, coordinates=["x", "theta:angle"])
    )
    with pytest.raises(ValueError, match="pass dt="):
        load_trajectories(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", "", "must be .csv, .parquet or .npz"),
        ("a.npz", "nonsense", "not an NPZ file"),
        ("a.parquet", "nonsense", "a.parquet"),
        ("a.csv", "", "No columns"),
        ("a.csv", "t,x\n", "no rows"),
        ("a.csv", "t,x\n0,1\n1,2\n3,4\n", "not evenly spaced, 2 instead of 1 after step 1 of trajectory 0"),
        ("a.csv", "t,x\n0,1\n1,\n2,3\n", "x?.* is nan at trajectory 0, step 1, coordinate 'x'"),
        ("a.csv", "t,x\n0,1\n1,oops\n", "column 'x' must hold numbers"),
        ("a.csv", "trajectory,t,x\n0,0,1\n0,1,1\n1,0,1\n", "1 to 2 rows"),
        ("a.csv", "trajectory,t\n0,0\n0,1\n", "at least one coordinate"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        load_trajectories(tmp_path / name)
    assert name in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_is_named_and_a_failed_write_leaves_nothing(recorded, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no such file"):
        load_trajectories(tmp_path / "none.csv")
    save_trajectories(recorded, tmp_path / "data.npz")

    def fail(file, **_):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(InputError, match="disk full"):
        save_trajectories(recorded.subset([0]), tmp_path / "data.npz")
    assert_same(recorded, load_trajectories(tmp_path / "data.npz"))
    assert list(tmp_path.iterdir()) == [tmp_path / "data.npz"]
