"""Configurations on lines and circles: 2π is never a distance."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phast.data.manifold import TWO_PI, Manifold

pytestmark = pytest.mark.usefixtures("float64")

KINDS = st.lists(st.booleans(), min_size=1, max_size=4)
COORDINATE = st.floats(-500.0, 500.0, allow_subnormal=False)  # XLA takes subnormals for zero
NAMES = st.text("abcdefgh_", min_size=1, max_size=5)


def manifold_of(circles) -> Manifold:
    return Manifold(tuple(f"q{i}" for i in range(len(circles))), tuple(circles))


@st.composite
def manifold_and(draw, count):
    """The kinds of a manifold's coordinates, ``count`` configurations, and whole turns for its angles."""
    circles = draw(KINDS)
    n = len(circles)
    points = [np.array(draw(st.lists(COORDINATE, min_size=n, max_size=n))) for _ in range(count)]
    turns = np.array(draw(st.lists(st.integers(-20, 20), min_size=n, max_size=n))) * np.array(circles)
    return circles, points, turns  # arrays and modules are made in the test: checking them draws random numbers


@given(manifold_and(1))
def test_wrap_keeps_lines_and_brings_angles_home(case):
    manifold, q = manifold_of(case[0]), jnp.asarray(case[1][0])
    circle = np.array(manifold.circles)
    wrapped = np.asarray(manifold.wrap(q))
    turns = (np.asarray(q) - wrapped) / TWO_PI
    assert np.array_equal(wrapped[~circle], np.asarray(q)[~circle])
    assert np.all(np.abs(wrapped[circle]) <= np.pi + 1e-12)
    np.testing.assert_allclose(turns[circle], np.round(turns[circle]), atol=1e-10)
    np.testing.assert_allclose(manifold.wrap(manifold.wrap(q)), wrapped, atol=1e-12)


@given(manifold_and(2))
def test_difference_is_antisymmetric_and_blind_to_whole_turns(case):
    manifold, (a, b), turns = manifold_of(case[0]), map(jnp.asarray, case[1]), case[2]
    forth = np.asarray(manifold.difference(a, b))
    assert np.array_equal(forth, -np.asarray(manifold.difference(b, a)))
    moved = np.asarray(manifold.difference(a + TWO_PI * turns, b))
    np.testing.assert_allclose(np.cos(moved - forth)[turns != 0], 1.0, atol=1e-10)
    np.testing.assert_allclose(np.abs(moved), np.abs(forth), atol=1e-9)  # at ±π both signs are shortest


@given(manifold_and(2))
def test_difference_is_the_shortest_way_and_arrives(case):
    manifold, (a, b), turns = manifold_of(case[0]), map(jnp.asarray, case[1]), case[2]
    way = np.asarray(manifold.difference(a, b))
    np.testing.assert_allclose(manifold.difference(b + way, a), 0.0, atol=1e-9)
    assert np.all(np.abs(way) <= np.abs(np.asarray(a - b) + TWO_PI * turns) + 1e-9)
    np.testing.assert_allclose(manifold.squared_error(a, b), way**2, rtol=1e-12)


def test_two_angles_either_side_of_the_seam_are_close_and_two_places_are_not():
    manifold = Manifold.parse("x", "theta:angle")
    a, b = jnp.array([3.1, 3.1]), jnp.array([-3.1, -3.1])
    np.testing.assert_allclose(manifold.difference(a, b), [6.2, 6.2 - TWO_PI], rtol=1e-12)


def test_difference_takes_batches():
    manifold = Manifold.parse("x", "theta:angle")
    a, b = jnp.linspace(-9.0, 9.0, 24).reshape(3, 4, 2), jnp.linspace(4.0, -7.0, 24).reshape(3, 4, 2)
    one_by_one = [[manifold.difference(a[i, j], b[i, j]) for j in range(4)] for i in range(3)]
    np.testing.assert_array_equal(manifold.difference(a, b), np.array(one_by_one))


@given(manifold_and(1), st.integers(1, 4))
def test_features_are_lines_and_fourier_pairs_of_angles(case, harmonics):
    manifold, q, turns = manifold_of(case[0]), jnp.asarray(case[1][0]), case[2]
    features = np.asarray(manifold.features(q, harmonics))
    expected = []
    for value, circle in zip(np.asarray(q), manifold.circles, strict=True):
        orders = np.arange(1, harmonics + 1)
        expected += [*np.sin(orders * value), *np.cos(orders * value)] if circle else [value]
    np.testing.assert_allclose(features, expected, atol=1e-12)
    assert features.shape == (manifold.feature_count(harmonics),)
    np.testing.assert_allclose(manifold.features(q + TWO_PI * turns, harmonics), features, atol=1e-9)


@given(st.lists(st.tuples(NAMES, st.sampled_from(["", ":line", ":angle"])), min_size=1, unique_by=lambda pair: pair[0]))
def test_parse_reads_names_and_kinds(pairs):
    manifold = Manifold.parse(*(name + kind for name, kind in pairs))
    assert manifold.names == tuple(name for name, _ in pairs)
    assert manifold.circles == tuple(kind == ":angle" for _, kind in pairs)
    assert manifold.size == len(pairs)


@given(NAMES, st.text(min_size=1).filter(lambda kind: kind not in ("line", "angle")))
def test_parse_names_the_kind_it_does_not_know(name, kind):
    with pytest.raises(ValueError, match="'line' or 'angle'") as error:
        Manifold.parse("ok", f"{name}:{kind}")
    assert f"{name}:{kind}" in str(error.value)


@given(st.lists(NAMES, min_size=1, max_size=4), st.data())
def test_parse_refuses_a_name_twice(names, data):
    repeated = data.draw(st.sampled_from(names))
    with pytest.raises(ValueError, match="must differ"):
        Manifold.parse(*names, f"{repeated}:angle")


def test_a_manifold_needs_coordinates_and_one_kind_each():
    with pytest.raises(ValueError, match="at least one"):
        Manifold.parse()
    with pytest.raises(ValueError, match="2 coordinate names but 1 kinds"):
        Manifold(("x", "y"), (True,))
