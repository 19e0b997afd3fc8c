"""Splines on grids: partition of unity, exact polynomials, smoothness across nodes and around circles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import SplineDamping
from phast.components.potential import SeriesPotential, SplinePotential
from phast.components.spline import Grid
from phast.data.manifold import Manifold
from phast.errors import InputError

ANGLE = Grid(Manifold.parse("theta:angle"), (12,), (0.0,), (1.0,))
LINE = Grid(Manifold.parse("x"), (9,), (-2.0,), (3.0,))
PLANE = Grid(Manifold.parse("x", "theta:angle"), (8, 10), (-2.0, 0.0), (3.0, 1.0))


@pytest.mark.parametrize("grid", [ANGLE, LINE, PLANE], ids=["circle", "line", "product"])
@pytest.mark.parametrize("degree", [1, 3])
def test_equal_nodes_make_a_constant(grid, degree):
    inside = jax.random.uniform(jax.random.key(0), (50, grid.manifold.size), minval=-1.9, maxval=2.9)
    values = jax.vmap(lambda q: grid.value(jnp.full(grid.counts, 2.5), q, degree))(inside)
    np.testing.assert_allclose(values, 2.5, rtol=1e-5)


def test_hats_pass_through_their_nodes_on_a_circle():
    nodes = 2 * np.pi * np.arange(12) / 12
    coefficients = jax.random.normal(jax.random.key(1), (12,))
    values = jax.vmap(lambda x: ANGLE.value(coefficients, x[None], 1))(jnp.asarray(nodes + 1e-5))
    np.testing.assert_allclose(values, coefficients, atol=1e-3)


@pytest.mark.usefixtures("float64")
def test_cubics_reproduce_a_parabola_on_a_line():
    """A least-squares fit by cubic splines of a polynomial of degree two has no error left."""
    x = jnp.linspace(-2.0, 3.0, 60)
    basis = jax.vmap(lambda c: jax.vmap(lambda q: LINE.value(c, q[None], 3))(x))(jnp.eye(9)).T
    wanted = 1.0 - 2.0 * x + 0.5 * x**2
    fitted = basis @ jnp.linalg.lstsq(basis, wanted)[0]
    np.testing.assert_allclose(fitted, wanted, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_potential_is_twice_differentiable_across_nodes_and_periodic():
    potential = SplinePotential(jax.random.normal(jax.random.key(2), (12,)), ANGLE)
    curvature = jax.jit(jax.vmap(jax.hessian(lambda x: potential(x[None]))))
    node = 2 * np.pi * np.arange(-12, 24) / 12
    np.testing.assert_allclose(curvature(node - 1e-9), curvature(node + 1e-9), atol=1e-6)
    q = jnp.linspace(-3.0, 3.0, 20)
    value = jax.vmap(lambda x: potential(x[None]))
    np.testing.assert_allclose(value(q), value(q + 4 * np.pi), atol=1e-9)


def test_a_force_outside_its_grid_stays_what_it_was_at_the_edge(float64):
    """A path that leaves the data goes on by the law beside the spline, however far, and never to no number."""
    line = Manifold.parse("x")
    nodes = jnp.asarray(np.random.default_rng(0).normal(size=9))
    spline = SplinePotential(nodes, Grid(line, (9,), (-1.0,), (2.0,)))
    force = jax.vmap(jax.grad(lambda x: spline(x[None])))
    edges, outside = force(jnp.array([-1.0, 2.0])), force(jnp.array([-1.001, -50.0, 2.001, 1e6]))
    np.testing.assert_allclose(outside, np.repeat(edges, 2), rtol=1e-9)
    inside = jnp.linspace(-0.99, 1.99, 7)
    values, h = jax.vmap(lambda x: spline(x[None])), 1e-5
    np.testing.assert_allclose(force(inside), (values(inside + h) - values(inside - h)) / (2 * h), rtol=1e-6, atol=1e-8)


def test_damping_outside_its_grid_stays_what_it_was_at_the_edge():
    damping = SplineDamping(jax.random.normal(jax.random.key(3), (9, 1)), LINE)
    rest = jnp.zeros(1)
    edge = damping.operator(jnp.array([3.0]), rest).diagonal_part()
    np.testing.assert_allclose(damping.operator(jnp.array([30.0]), rest).diagonal_part(), edge, rtol=1e-5)


def test_roughness_vanishes_for_what_it_should_not_mind():
    line = jnp.arange(9.0)
    np.testing.assert_allclose(LINE.roughness(line, 2)[0], 0.0, atol=1e-6)
    assert float(jnp.max(jnp.abs(LINE.roughness(line**2, 2)[0]))) == pytest.approx(2.0)
    np.testing.assert_allclose(ANGLE.roughness(jnp.ones(12), 2)[0], 0.0, atol=1e-6)
    assert ANGLE.roughness(jnp.arange(12.0), 2)[0].shape == (12,)  # all around the circle


def test_three_coordinates_are_refused_with_the_way_out():
    with pytest.raises(InputError, match="add up grids over fewer"):
        Grid(Manifold.parse("x", "y", "z"), (4, 4, 4), (0.0,) * 3, (1.0,) * 3)


def test_a_grid_along_one_coordinate_does_not_feel_the_others():
    plane = Manifold.parse("x", "theta:angle")
    grid = Grid(plane, (9,), (-2.0,), (3.0,), axes=(0,))
    coefficients = jax.random.normal(jax.random.key(4), (9,))
    here, there = jnp.array([1.3, 0.2]), jnp.array([1.3, 2.9])
    assert grid.value(coefficients, here, 3) == grid.value(coefficients, there, 3)
    np.testing.assert_allclose(grid.value(coefficients, here, 3), LINE.value(coefficients, here[:1], 3), rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_a_series_holds_every_product_up_to_its_degree():
    """x² cos θ has degree three: a least-squares fit by the series leaves nothing of it."""
    plane = Manifold.parse("x", "theta:angle")
    q = jax.random.uniform(jax.random.key(5), (200, 2), minval=-2.0, maxval=3.0)
    series = SeriesPotential.flat(plane, q, 3)
    size = series.coefficients.size

    def value(c, x):
        return eqx.tree_at(lambda s: s.coefficients, series, c)(x)

    basis = jax.vmap(lambda c: jax.vmap(lambda x: value(c, x))(q))(jnp.eye(size)).T
    wanted = q[:, 0] ** 2 * jnp.cos(q[:, 1])
    basis = jnp.concatenate([basis, jnp.ones((200, 1))], axis=1)
    np.testing.assert_allclose(basis @ jnp.linalg.lstsq(basis, wanted)[0], wanted, atol=1e-9)


@pytest.mark.parametrize("n, degree, terms", [(2, 3, 10), (6, 4, 210)])
def test_a_series_of_lines_has_as_many_terms_as_polynomials_have(n, degree, terms):
    lines = Manifold.parse(*(f"x{i}" for i in range(n)))
    assert SeriesPotential.flat(lines, jnp.array([[-1.0] * n, [1.0] * n]), degree).coefficients.size == terms - 1
