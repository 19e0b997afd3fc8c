"""Laws that every potential, mass and damping obeys, whatever its parameters.

A new class costs one line in POTENTIALS, MASSES or DAMPINGS; a class that is in none of them fails
``test_every_class_is_under_test``.
"""

import inspect

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from phast.components import damping, mass, potential
from phast.components.damping import (
    ConstantDamping,
    DirectionalFriction,
    FacingDamping,
    Friction,
    FrictionField,
    HouseholderDamping,
    ProportionalDamping,
    PSDDamping,
    SplineDamping,
    Stiction,
    SumDamping,
    WindyDamping,
    depends_on_velocity,
)
from phast.components.lowrank import (
    Dense,
    DiagonalPlusLowRank,
    add_scaled,
    cholesky,
    exponential_of_negative,
    solve_pentadiagonal,
    solve_spd,
)
from phast.components.mass import (
    AbstractConstantMass,
    ArmMass,
    CartPoleMass,
    CholeskyMass,
    ConstantMass,
    DoublePendulumMass,
    GearedMass,
    JointedMass,
    LinkageMass,
    LinkedMass,
    LowRankMass,
    NeuralMass,
    RelativeMass,
    UnequalMass,
    unit_rows,
)
from phast.components.network import MLP, silu
from phast.components.parameter import Bounded, Positive, Real, value_of
from phast.components.potential import (
    Along,
    ArmGravity,
    ChainCosine,
    ConstantForce,
    Cosine,
    Gravity,
    HeatExchange,
    Hybrid,
    LennardJones,
    Logarithmic,
    MLPPotential,
    PairPotential,
    PairPower,
    PeriodicMLPPotential,
    Prey,
    Quadratic,
    QuadraticForm,
    Quartic,
    Scaled,
    SeriesPotential,
    Some,
    SplinePotential,
    Sum,
)
from phast.components.spline import Grid
from phast.data.manifold import TWO_PI, Manifold
from phast.errors import InputError

pytestmark = pytest.mark.usefixtures("float64")

PAIR = Manifold.parse("x", "theta:angle")
FOUR = Manifold.parse("x", "theta:angle", "y", "phi:angle")
LINKS = {"lengths": (1.0, 0.8, 0.6), "centres": (0.5, 0.3, 0.3)}
SEEDS = st.integers(0, 2**31 - 1)
SAMPLES = 24

# Each entry: the degrees of freedom and how to make one.
ANGLE = Manifold.parse("theta:angle")
GRID = Grid(PAIR, (7, 6), (-3.0, 0.0), (3.0, 1.0))
ALONG = Grid(PAIR, (8,), (0.0,), (1.0,), axes=(1,))
FOUR_ANGLES = (True,) * 4
ABSOLUTE = ((1.0, 0.0), (-1.0, 1.0))  # the joints of two links in absolute angles


def _random(key, module):
    """The module with random numbers for everything that is trained."""
    trainable, rest = eqx.partition(module, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda x: jax.random.normal(key, x.shape), trainable), rest)


def _two_link_start():
    return Positive.uninformed(unit=0.01), Positive.uninformed(unit=0.01), Bounded.starting_at(0.3)


POTENTIALS = {
    "cosine": (4, lambda key: Cosine((0.0, 9.81, 1.0, 2.0))),
    "cosine, learned": (4, lambda key: Cosine(Positive.uninformed(4))),
    "cosine, off centre": (4, lambda key: Cosine(Positive.uninformed(4), Real.starting_at((0.1, -2.0, 0.0, 0.5)))),
    "chain of cosines": (3, lambda key: ChainCosine((3.0, 2.0, 1.0), 0.3)),
    "chain of cosines, learned": (3, lambda key: ChainCosine(Positive.uninformed(3), Real.starting_at(0.0))),
    "quadratic": (4, lambda key: Quadratic((1.0, 2.0, 3.0, 4.0), (0.5, -0.5, 0.0, 1.0))),
    "quadratic, learned": (4, lambda key: Quadratic(Positive.uninformed())),
    "quadratic form": (2, lambda key: QuadraticForm(((1.0, 0.0), (-0.7, 2.0)))),
    "quadratic form, learned": (4, lambda key: QuadraticForm(jax.random.normal(key, (4, 4)))),
    "quartic": (4, lambda key: Quartic((1.0, -2.0, 0.0, 1.0), (0.0, 3.0, 1.0, 0.5), 0.3)),
    "quartic, learned": (4, lambda key: Quartic(Real.starting_at(jnp.zeros(4)), Positive.uninformed(4))),
    "constant force": (4, lambda key: ConstantForce((1.0, -2.0, 0.0, 1.0))),
    "constant force, learned": (4, lambda key: ConstantForce(Real.starting_at(jnp.zeros(4)))),
    "along a difference": (4, lambda key: Along(Quadratic(2.0, 0.3), ((1.0, -1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 1.0)))),
    "heat": (2, lambda key: HeatExchange((1.0, 2.0), 0.5)),
    "heat, learned": (2, lambda key: HeatExchange(Positive.uninformed(2), Positive.uninformed())),
    "lennard-jones": (4, lambda key: LennardJones()),
    "lennard-jones, learned": (6, lambda key: LennardJones(Positive.uninformed(), Positive.uninformed())),
    "gravity": (4, lambda key: Gravity((1.0, 3.0))),
    "gravity, learned": (6, lambda key: Gravity(Positive.uninformed(3), constant=2.0)),
    "pair power": (4, lambda key: PairPower((-2.0,), 1)),
    "pair power, learned": (6, lambda key: PairPower(Real.starting_at(jnp.ones(3)), 6)),
    "prey": (1, lambda key: Prey()),
    "arm": (3, lambda key: ArmGravity((1.0, 2.0, 0.5), **LINKS)),
    "arm, learned": (3, lambda key: ArmGravity(Positive.uninformed(3), **LINKS)),
    "mlp": (4, lambda key: MLPPotential.create(FOUR, width=8, key=key)),
    "periodic mlp": (4, lambda key: PeriodicMLPPotential.create(FOUR, width=8, key=key)),
    "spline": (2, lambda key: SplinePotential(jax.random.normal(key, (7, 6)), GRID)),
    "spline, along one": (2, lambda key: SplinePotential(jax.random.normal(key, (8,)), ALONG)),
    "series": (4, lambda key: _random(key, SeriesPotential.flat(FOUR, jnp.array([[-3.0] * 4, [3.0] * 4]), 3))),
    "pairs": (6, lambda key: _random(key, PairPotential.flat(jnp.array([[-4.0, -4, 4, 4, 0, 0], [0.0] * 6]), 9))),
    "logarithmic": (2, lambda key: Logarithmic(SplinePotential(jax.random.normal(key, (8,)), ALONG))),
    "some": (2, lambda key: Some(Cosine(9.81), (1,))),
    "sum": (2, lambda key: Sum((Cosine((0.0, 9.81)), SplinePotential.flat(GRID), SplinePotential.flat(ALONG)))),
    "scaled": (4, lambda key: Scaled(Cosine((0.0, 9.81, 1.0, 2.0)), Positive.uninformed())),
    "hybrid": (
        4,
        lambda key: Hybrid(
            Cosine((0.0, 9.81, 1.0, 2.0)),
            PeriodicMLPPotential.create(FOUR, width=8, key=key),
            Positive.starting_at(0.01),
        ),
    ),
}
MASSES = {
    "constant": (4, lambda key: ConstantMass((1.0, 2.0, 0.1, 5.0))),
    "constant, shared": (4, lambda key: ConstantMass(2.0)),
    "constant, learned": (4, lambda key: ConstantMass(Positive.uninformed(4))),
    "unequal": (4, lambda key: UnequalMass(1.0, (2.0, 0.1, 5.0))),
    "unequal, learned": (3, lambda key: UnequalMass(Positive.uninformed(), Positive.uninformed(2))),
    "low rank": (4, lambda key: LowRankMass.create(4, key=key)),
    "low rank, wide": (7, lambda key: LowRankMass.create(7, terms=5, key=key)),
    "cart-pole": (2, lambda key: CartPoleMass(1.0, 0.3, 0.7)),
    "cart-pole, learned": (2, lambda key: CartPoleMass(*[Positive.uninformed() for _ in range(3)])),
    "double pendulum": (2, lambda key: DoublePendulumMass(1.0, 0.5, 0.7, 1.2)),
    "double pendulum, learned": (2, lambda key: DoublePendulumMass(*[Positive.uninformed() for _ in range(4)])),
    "arm": (3, lambda key: ArmMass((1.0, 2.0, 0.5), inertias=(0.1, 0.2, 0.05), **LINKS)),
    "arm, learned": (3, lambda key: ArmMass(Positive.uninformed(3), inertias=Positive.uninformed(3), **LINKS)),
    "linked": (2, lambda key: LinkedMass(0.735, 0.72, 0.42 / (0.735 * 0.72) ** 0.5)),
    "linked, learned": (2, lambda key: LinkedMass(*_two_link_start(), Real.starting_at(0.1))),
    "jointed": (2, lambda key: JointedMass(0.735, 0.72, 0.42 / (0.735 * 0.72) ** 0.5)),
    "jointed, learned": (2, lambda key: JointedMass(*_two_link_start(), Positive.uninformed(2), 0.1)),
    "linkage": (3, lambda key: LinkageMass(3.0, (2.0, 1.0), (0.8, -0.5, 0.9), (True,) * 3)),
    "linkage, learned": (
        4,
        lambda key: LinkageMass(1.0, Positive.uninformed(3), Bounded.starting_at([0.3] * 6), FOUR_ANGLES),
    ),
    "linkage on a cart": (3, lambda key: LinkageMass(3.0, (2.0, 1.0), (0.8, -0.5, 0.9), (False, True, True))),
    "relative": (3, lambda key: RelativeMass(LinkageMass(3.0, (2.0, 1.0), (0.8, -0.5, 0.9), (True,) * 3))),
    "geared": (2, lambda key: GearedMass(JointedMass(1.0, Positive.uninformed(), 0.5), Positive.uninformed(1), (1,))),
    "neural": (4, lambda key: NeuralMass.create(FOUR, width=8, key=key)),
    "cholesky": (4, lambda key: CholeskyMass.create(FOUR, width=8, key=key)),
}
DAMPINGS = {
    "none": (4, lambda key: ConstantDamping(0.0)),
    "constant": (4, lambda key: ConstantDamping((0.1, 0.0, 2.0, 0.3))),
    "constant, learned": (4, lambda key: ConstantDamping(Positive.uninformed(4))),
    "windy": (2, lambda key: WindyDamping(0.1, (0.3, 0.5), (1, 1))),
    "windy, learned": (4, lambda key: WindyDamping(Positive.uninformed(4), Positive.uninformed(), (1, 1, 3, 3))),
    "facing": (2, lambda key: FacingDamping(0.3, 0, 1)),
    "facing, learned": (4, lambda key: FacingDamping(Positive.uninformed(1), 3, 1)),
    "householder": (4, lambda key: HouseholderDamping.create(FOUR, base=0.0, width=8, key=key)),
    "householder, learned base": (
        4,
        lambda key: HouseholderDamping.create(FOUR, base=Positive.starting_at(0.1), width=8, rank=5, key=key),
    ),
    "householder, bounded": (
        4,
        lambda key: HouseholderDamping.create(FOUR, base=0.1, total_bound=0.6, width=8, rank=3, key=key),
    ),
    "spline": (1, lambda key: SplineDamping(jax.random.normal(key, (9, 1)), Grid(ANGLE, (9,), (0.0,), (1.0,)))),
    "spline, coupled": (2, lambda key: SplineDamping(jax.random.normal(key, (7, 6, 3)), GRID)),
    "spline, along one": (2, lambda key: SplineDamping(jax.random.normal(key, (8, 3)), ALONG)),
    "constant matrix": (4, lambda key: _random(key, PSDDamping.uninformed(4))),
    "sum": (
        2,
        lambda key: SumDamping((SplineDamping.uninformed(ALONG), SplineDamping.uninformed(GRID), ConstantDamping(0.1))),
    ),
    "proportional": (2, lambda key: ProportionalDamping(SplineDamping(jax.random.normal(key, (8, 3)), ALONG))),
    "friction": (4, lambda key: Friction(0.1, (0.5, 0.0, 1.0, 2.0), 0.2)),
    "friction, learned": (4, lambda key: Friction(*[Positive.uninformed(4) for _ in range(3)])),
    "friction, at joints": (2, lambda key: Friction(*[Positive.uninformed(2) for _ in range(3)], joints=ABSOLUTE)),
    "friction, at one joint": (2, lambda key: Friction(0.1, 0.5, 0.2, joints=((-1.0, 1.0),))),
    "friction, by direction": (4, lambda key: DirectionalFriction(Friction(0.1, 0.5), Friction(0.3, (2.0, 1, 0, 3)))),
    "friction, by direction, at joints": (
        2,
        lambda key: DirectionalFriction(
            Friction(Positive.uninformed(2), Positive.uninformed(2), joints=ABSOLUTE),
            Friction(Positive.uninformed(2), joints=ABSOLUTE),
        ),
    ),
    "stiction": (4, lambda key: Stiction((0.5, 0.0, 1.0, 2.0))),
    "stiction, at joints": (2, lambda key: Stiction(Positive.uninformed(2), joints=ABSOLUTE)),
    "friction field": (2, lambda key: _random(key, FrictionField.uninformed(ALONG, units=(0.1, 1.0, 0.01)))),
    "friction field, at a joint": (2, lambda key: _random(key, FrictionField.uninformed(GRID, (-1.0, 1.0)))),
    "friction, in a sum": (
        2,
        lambda key: SumDamping((FrictionField.uninformed(ALONG), Friction(0.1, 0.5, joints=ABSOLUTE))),
    ),
}


def cases(constructors):
    return pytest.mark.parametrize("size, make", constructors.values(), ids=constructors.keys())


def random_vectors(seed, size, scale=2.5, samples=SAMPLES):
    return jnp.asarray(np.random.default_rng(seed).uniform(-scale, scale, (samples, size)))


def noise_for(model, scale, samples=SAMPLES):
    """Normal noise, one row per sample and one column per parameter."""
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    return jnp.asarray(scale * np.random.default_rng(7).normal(size=(samples, count)))


def over_samples(function, *arrays):
    """``function`` of one row of each array, for all rows, as NumPy."""
    return [np.asarray(x) for x in jax.jit(jax.vmap(function))(*arrays)]


def test_pairs_of_points_feel_neither_place_nor_direction(float64):
    """V of points depends on their distances alone, and every pair on a law of its own."""
    law = POTENTIALS["pairs"][1](jax.random.key(1))
    law = eqx.tree_at(lambda each: each.laws[1].inner.coefficients, law, replace_fn=lambda c: 2.0 * c)
    q = jnp.array([0.3, 0.1, 1.5, -0.4, -0.7, 1.9])
    turn = jnp.array([[0.6, -0.8], [0.8, 0.6]])
    moved = (q.reshape(3, 2) @ turn.T + jnp.array([2.0, -5.0])).reshape(-1)
    np.testing.assert_allclose(law(moved), law(q), rtol=1e-12)
    swapped = q.reshape(3, 2)[jnp.array([1, 0, 2])].reshape(-1)
    assert abs(law(swapped) - law(q)) > 1e-3
    assert np.isfinite(jax.grad(law)(jnp.zeros(6))).all()


@pytest.mark.parametrize(
    "module, base, constructors",
    [
        (potential, potential.AbstractPotential, POTENTIALS),
        (mass, mass.AbstractMass, MASSES),
        (damping, damping.AbstractDamping, DAMPINGS),
    ],
    ids=["potential", "mass", "damping"],
)
def test_every_class_is_under_test(module, base, constructors):
    leaves = {
        name
        for name, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, base) and member.__module__ == module.__name__ and not name.startswith("Abstract")
    }
    assert leaves == {type(make(jax.random.key(0))).__name__ for _, make in constructors.values()}


# --- dampings --------------------------------------------------------------------------------------------------------


@cases(DAMPINGS)
def test_damping_is_symmetric_positive_semidefinite_and_acts_as_its_matrix(size, make, perturbed):
    model = make(jax.random.key(0))

    def evaluate(noise, q, v, x):
        operator = perturbed(model, noise).operator(q, v)
        return operator.dense(), operator.matvec(x), operator.diagonal_part()

    x = random_vectors(3, size)
    matrices, products, diagonals = over_samples(
        evaluate, noise_for(model, 5.0), random_vectors(1, size, 10.0), random_vectors(2, size), x
    )
    scale = 1.0 + np.abs(matrices).max()
    np.testing.assert_array_equal(matrices, np.swapaxes(matrices, 1, 2))
    assert np.linalg.eigvalsh(matrices).min() >= -1e-13 * scale
    np.testing.assert_allclose(products, np.einsum("sij,sj->si", matrices, x), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(diagonals, np.einsum("sii->si", matrices), rtol=1e-12)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_householder_bound_holds_per_term_in_sum_and_for_the_largest_eigenvalue(rank, perturbed):
    base, total = 0.1, 0.6
    model = HouseholderDamping.create(FOUR, base=base, total_bound=total, rank=rank, width=8, key=jax.random.key(0))

    def evaluate(noise, q):
        noisy = perturbed(model, noise)
        return noisy.strengths(q), noisy.operator(q, q).dense()

    strengths, matrices = over_samples(evaluate, noise_for(model, 20.0, 100), random_vectors(1, 4, 10.0, 100))
    assert strengths.min() >= 0.0
    assert strengths.max() <= total / rank
    assert strengths.max() > 0.99 * total / rank  # the bound is reached, so the test could fail
    assert strengths.sum(axis=1).max() <= total + 1e-12
    assert np.linalg.eigvalsh(matrices).max() <= base + total + 1e-12


def test_householder_without_a_bound_exceeds_it(perturbed):
    model = HouseholderDamping.create(FOUR, base=0.1, width=8, key=jax.random.key(0))
    (strengths,) = over_samples(
        lambda noise, q: (perturbed(model, noise).strengths(q),), noise_for(model, 20.0), random_vectors(1, 4)
    )
    assert strengths.min() >= 0.0
    assert strengths.max() > 10.0


def test_householder_is_the_sum_of_equation_10():
    model = HouseholderDamping.create(FOUR, base=0.3, total_bound=2.0, rank=3, width=8, key=jax.random.key(0))
    q = random_vectors(1, 4)[0]
    features = FOUR.features(q, 4)
    raw = np.asarray(model.direction_network(features)).reshape(3, 4)
    directions = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    strengths = (2.0 / 3.0) / (1.0 + np.exp(-np.asarray(model.strength_network(features))))
    expected = 0.3 * np.eye(4) + sum(b * np.outer(k, k) for b, k in zip(strengths, directions, strict=True))
    np.testing.assert_allclose(model.operator(q, q).dense(), expected, rtol=1e-9, atol=1e-12)


def test_householder_base_is_one_more_parameter_when_learned(trainable_count):
    def make(base):
        return HouseholderDamping.create(PAIR, base=base, width=8, key=jax.random.key(0))

    given_base, learned_base = make(0.1), make(Positive.starting_at(0.1))
    assert trainable_count(learned_base) == trainable_count(given_base) + 1
    q = jnp.array([0.3, -1.0])
    np.testing.assert_allclose(learned_base.operator(q, q).dense(), given_base.operator(q, q).dense(), rtol=1e-12)


@pytest.mark.parametrize("raw", [-200.0, 200.0])
@pytest.mark.parametrize("bound", [None, 0.5])
def test_householder_has_finite_gradients_where_its_strengths_saturate(bound, raw):
    with jax.enable_x64(False):
        model = HouseholderDamping.create(PAIR, base=0.1, total_bound=bound, width=4, key=jax.random.key(0))
        model = eqx.tree_at(lambda m: m.strength_network.biases[-1], model, replace_fn=lambda b: jnp.full_like(b, raw))
        q, v = jnp.array([0.3, -1.0]), jnp.array([1.0, 2.0])
        gradient = eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(m.operator(q, v).matvec(v))))(model)
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("raw", [-30.0, -200.0])
def test_low_rank_mass_has_finite_gradients_where_a_strength_vanishes(raw):
    with jax.enable_x64(False):
        model = LowRankMass.create(3, terms=2, key=jax.random.key(0))
        model = eqx.tree_at(lambda m: m.strengths.raw, model, jnp.full(2, raw))
        x = jnp.array([1.0, 2.0, 3.0])
        gradient = eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(m.operator(x).solve(x))))(model)
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradient))


def test_windy_damping_is_base_plus_gain_times_how_an_angle_faces_the_wind():
    q = random_vectors(1, 3, 10.0)
    model = WindyDamping((0.05, 0.1, 0.2), (0.3, 0.4, 0.5), (2, 1, 2))
    (diagonals,) = over_samples(lambda q: (model.operator(q, q).diagonal_part(),), q)
    expected = np.array([0.05, 0.1, 0.2]) + np.array([0.3, 0.4, 0.5]) * np.abs(np.sin(np.asarray(q)[:, [2, 1, 2]]))
    np.testing.assert_allclose(diagonals, expected, rtol=1e-12)


def test_friction_tends_to_viscous_coulomb_and_quadratic_forces():
    v = jnp.array([-3.0, -0.1, 0.2, 4.0])

    def force(model):
        return np.asarray(model.operator(v, v).matvec(v))

    sharp = {"smoothing": 1e-9}
    np.testing.assert_allclose(force(Friction(0.5, **sharp)), 0.5 * v, rtol=1e-12)
    np.testing.assert_allclose(force(Friction(0.0, 0.7, **sharp)), 0.7 * np.sign(v), rtol=1e-9)
    np.testing.assert_allclose(force(Friction(0.0, 0.0, 0.2, **sharp)), 0.2 * v * np.abs(v), rtol=1e-9)
    both = Friction(0.5, 0.7, 0.2, **sharp)
    np.testing.assert_allclose(force(both), 0.5 * v + 0.7 * np.sign(v) + 0.2 * v * np.abs(v), rtol=1e-9)
    at_rest = Friction(0.5, 0.7, 0.2).operator(v, jnp.zeros(4)).diagonal_part()
    np.testing.assert_allclose(at_rest, 0.5 + 0.7 / 0.05 + 0.2 * 0.05, rtol=1e-12)


def test_friction_at_joints_is_felt_as_relative_velocity():
    """Two links that turn as one rub only in the first joint; what the second takes from one link the other gets."""
    v, w = np.array([0.3, -2.0]), np.array([0.3, -2.3])
    joints, terms = np.array(ABSOLUTE), (np.array([0.1, 0.2]), np.array([0.5, 0.7]), np.array([0.0, 0.3]))
    speed = np.sqrt(w**2 + 0.05**2)
    expected = joints.T @ np.diag(terms[0] + terms[1] / speed + terms[2] * speed) @ joints
    model = Friction(*(tuple(x.tolist()) for x in terms), joints=ABSOLUTE)
    np.testing.assert_allclose(model.operator(v, jnp.asarray(v)).dense(), expected, rtol=1e-12)
    second = Friction((0.0, 0.2), (0.0, 0.7), joints=ABSOLUTE)
    np.testing.assert_allclose(second.operator(v, jnp.ones(2)).matvec(jnp.ones(2)), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.sum(second.operator(v, jnp.asarray(v)).matvec(jnp.asarray(v))), 0.0, atol=1e-12)


@given(SEEDS)
def test_a_friction_field_with_equal_nodes_is_friction(seed):
    rng = np.random.default_rng(seed)
    raw, units = rng.normal(size=3), (0.1, 2.0, 0.01)
    q, v = (jnp.asarray(rng.normal(size=2) * 3.0) for _ in range(2))
    terms = np.array(units) * np.log1p(np.exp(raw))
    for joint, rows in (None, ((0.0, 1.0),)), ((-1.0, 1.0), ((-1.0, 1.0),)):
        field = FrictionField(jnp.tile(jnp.asarray(raw), (8, 1)), ALONG, joint, units=units)
        same = Friction(*map(float, terms), joints=rows)
        np.testing.assert_allclose(field.operator(q, v).dense(), same.operator(q, v).dense(), rtol=1e-9, atol=1e-12)


def test_a_friction_field_varies_along_its_grid_alone_and_has_a_roughness_per_term():
    field = _random(jax.random.key(0), FrictionField.uninformed(ALONG))
    v = jnp.array([0.4, -1.0])
    at = lambda x, theta: field.operator(jnp.array([x, theta]), v).diagonal_part()  # noqa: E731
    np.testing.assert_array_equal(at(0.0, 1.0), at(5.0, 1.0))
    assert abs(at(0.0, 1.0)[1] - at(0.0, 2.0)[1]) > 1e-3
    assert [part.size for part in field.roughness()] == [8, 8, 8]
    even = eqx.tree_at(lambda f: f.entries, field, jnp.ones((8, 3)).at[::2, 1].set(2.0))
    assert [float(jnp.max(jnp.abs(part))) for part in even.roughness()] == [0.0, 2.0, 0.0]


def test_a_friction_field_over_two_coordinates_needs_a_joint():
    with pytest.raises(InputError, match="needs joint="):
        FrictionField.uninformed(GRID)


@cases(DAMPINGS)
def test_dampings_that_depend_on_velocity_are_marked(size, make):
    """A damping step looks ahead for these, and only for these."""
    model = make(jax.random.key(0))
    q = random_vectors(1, size)
    slow, fast = (
        over_samples(lambda q, s=s: (model.operator(q, s * jnp.arange(1.0, size + 1.0)).dense(),), q)[0]
        for s in (0.1, 3.0)
    )
    assert depends_on_velocity(model) == bool(np.abs(slow - fast).max() > 0.0)


@pytest.mark.parametrize(
    "law, on",
    [(SplineDamping, GRID), (SplineDamping, Grid(ANGLE, (9,), (0.0,), (1.0,))), (PSDDamping, 2)],
    ids=["spline", "spline of one", "constant"],
)
def test_a_unit_scales_the_damping_and_not_what_is_trained(law, on):
    small, one = (_random(jax.random.key(1), law.uninformed(on, unit)) for unit in (1e-4, 1.0))
    q = jnp.array([0.3, -1.0])[: on.manifold.size if law is SplineDamping else on]
    np.testing.assert_allclose(small.operator(q, q).dense(), 1e-4 * one.operator(q, q).dense(), rtol=1e-12)
    assert jnp.array_equal(small.entries, one.entries)


# --- masses ----------------------------------------------------------------------------------------------------------


@cases(MASSES)
def test_mass_is_symmetric_positive_definite_solves_what_it_multiplies_and_is_constant_if_marked(size, make, perturbed):
    model = make(jax.random.key(0))

    def evaluate(noise, q, x):
        operator = perturbed(model, noise).operator(q)
        returned = operator.solve(operator.matvec(x)), operator.matvec(operator.solve(x))
        answers = operator.dense(), operator.matvec(x), *returned, operator.log_determinant(), operator.diagonal_part()
        return *answers, model.operator(q).dense()

    x = random_vectors(2, size)
    q = random_vectors(1, size, 10.0)
    matrices, products, there, back, log_determinants, diagonals, unperturbed = over_samples(
        evaluate, noise_for(model, 1.0), q, x
    )
    signs, expected_log_determinants = np.linalg.slogdet(matrices)
    np.testing.assert_allclose(matrices, np.swapaxes(matrices, 1, 2), rtol=1e-14)
    assert np.linalg.eigvalsh(matrices).min() > 0.0
    np.testing.assert_allclose(products, np.einsum("sij,sj->si", matrices, x), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(there, x, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(back, x, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(signs, 1.0)
    np.testing.assert_allclose(log_determinants, expected_log_determinants, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(diagonals, np.einsum("sii->si", matrices), rtol=1e-12)
    spread_over_positions = np.ptp(unperturbed, axis=0).max()
    assert (spread_over_positions == 0.0) == isinstance(model, AbstractConstantMass)


@eqx.filter_jit
def _operator_answers(operator, x):
    return operator.matvec(x), operator.solve(x), operator.log_determinant(), operator.dense()


@given(SEEDS, st.sampled_from([2, 4, 7]), st.sampled_from([1, 3, 5]))
def test_woodbury_equals_dense(seed, n, r):
    rng = np.random.default_rng(seed)
    diagonal, factor, x = np.exp(rng.normal(size=n)), rng.normal(size=(n, r)), rng.normal(size=n)
    matrix = np.diag(diagonal) + factor @ factor.T
    expected = matrix @ x, np.linalg.solve(matrix, x), np.linalg.slogdet(matrix)[1], matrix
    low_rank = DiagonalPlusLowRank(jnp.asarray(diagonal), jnp.asarray(factor))
    for operator in (low_rank, Dense(jnp.asarray(matrix))):
        for answer, wanted in zip(_operator_answers(operator, jnp.asarray(x)), expected, strict=True):
            np.testing.assert_allclose(answer, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("n", [1, 3, 4, 5])
def test_cholesky_and_solve_agree_with_numpy_unrolled_or_not(n):
    rng = np.random.default_rng(n)
    root, y = rng.normal(size=(n, n)), rng.normal(size=n)
    matrix = root @ root.T + 0.1 * np.eye(n)
    np.testing.assert_allclose(cholesky(jnp.asarray(matrix)), np.linalg.cholesky(matrix), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(solve_spd(jnp.asarray(matrix), jnp.asarray(y)), np.linalg.solve(matrix, y), rtol=1e-8)


@pytest.mark.parametrize("left", ["diagonal", "low rank", "dense"])
@pytest.mark.parametrize("right", ["diagonal", "low rank", "dense"])
def test_sums_of_operators_are_low_rank_where_both_are(left, right):
    factor = jnp.array([[1.0], [2.0], [-1.0]])
    operators = {
        "diagonal": DiagonalPlusLowRank(jnp.array([1.0, 2.0, 3.0])),
        "low rank": DiagonalPlusLowRank(jnp.array([1.0, 2.0, 3.0]), factor),
        "dense": Dense(jnp.eye(3) + factor @ factor.T),
    }
    total = add_scaled(operators[left], 0.3, operators[right])
    expected = operators[left].dense() + 0.3 * operators[right].dense()
    np.testing.assert_allclose(total.dense(), expected, rtol=1e-12)
    assert isinstance(total, Dense if "dense" in (left, right) else DiagonalPlusLowRank)


@pytest.mark.parametrize("n, terms", [(3, 2), (10, 4), (2, None)])
def test_low_rank_mass_has_n_plus_m_times_n_plus_one_parameters(n, terms, trainable_count):
    m = min(4, n) if terms is None else terms
    assert trainable_count(LowRankMass.create(n, terms=terms, key=jax.random.key(0))) == n + m * (n + 1)


def test_unit_rows_have_length_one_and_a_finite_gradient_at_zero():
    rows = jnp.array([[3.0, 4.0], [1e-3, 0.0], [0.0, -1e5]])
    np.testing.assert_allclose(np.linalg.norm(unit_rows(rows), axis=1), 1.0, rtol=1e-6)
    assert np.all(np.isfinite(jax.jacfwd(unit_rows)(jnp.zeros((2, 2)))))


def _cart_pole(q):
    return jnp.array([[q[0], 0.0], [q[0] + 0.7 * jnp.sin(q[1]), -0.7 * jnp.cos(q[1])]])


def _double_pendulum(q):
    first = 0.7 * jnp.array([jnp.sin(q[0]), -jnp.cos(q[0])])
    return jnp.stack([first, first + 1.2 * jnp.array([jnp.sin(q[1]), -jnp.cos(q[1])])])


def _arm(q):
    centres, joint, angle = [], jnp.zeros(2), 0.0
    for i in range(3):
        angle = angle + q[i]
        along = jnp.array([jnp.sin(angle), -jnp.cos(angle)])
        centres.append(joint + LINKS["centres"][i] * along)
        joint = joint + LINKS["lengths"][i] * along
    return jnp.stack(centres)


def _jointed(q):
    return _double_pendulum(jnp.cumsum(q))


KINEMATICS = {  # which mass, where its parts are, and how heavy and (for links) how hard to turn they are
    "cart-pole": (_cart_pole, (1.0, 0.3), (0.0, 0.0)),
    "double pendulum": (_double_pendulum, (1.0, 0.5), (0.0, 0.0)),
    "arm": (_arm, (1.0, 2.0, 0.5), (0.1, 0.2, 0.05)),
    "linked": (_double_pendulum, (1.0, 0.5), (0.0, 0.0)),
    "jointed": (_jointed, (1.0, 0.5), (0.0, 0.0)),
}


@pytest.mark.parametrize("name", KINEMATICS)
def test_mass_gives_the_kinetic_energy_of_its_moving_parts(name):
    positions, masses, inertias = KINEMATICS[name]
    size, make = MASSES[name]
    model = make(jax.random.key(0))

    def evaluate(q, v):
        _, velocities = jax.jvp(positions, (q,), (v,))
        translation = 0.5 * jnp.sum(jnp.asarray(masses) * jnp.sum(velocities**2, axis=-1))
        rotation = 0.5 * jnp.sum(jnp.asarray(inertias) * jnp.cumsum(v) ** 2)
        return 0.5 * v @ model.operator(q).matvec(v), translation + rotation

    energies, expected = over_samples(evaluate, random_vectors(1, size), random_vectors(2, size))
    np.testing.assert_allclose(energies, expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["linked, learned", "jointed, learned"])
@given(raw=st.lists(st.floats(-10.0, 10.0), min_size=6, max_size=6), coupling=st.sampled_from([-1e3, 0.0, 3.0, 1e3]))
def test_two_links_have_a_positive_mass_however_their_parameters_saturate(name, raw, coupling):
    model = MASSES[name][1](jax.random.key(0))
    trainable, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unflatten = jax.flatten_util.ravel_pytree(trainable)
    model = eqx.combine(unflatten(jnp.asarray(raw)[: flat.size]), rest)
    model = eqx.tree_at(lambda m: m.coupling.raw, model, jnp.asarray(coupling))
    for q in (jnp.array([0.1, 0.0]), jnp.array([0.0, np.pi]), jnp.array([2.0, 0.3])):
        assert np.isfinite(np.linalg.cholesky(model.operator(q).dense())).all()


def test_two_links_are_the_same_in_absolute_and_in_joint_angles():
    """Offsets included; rotors add to the diagonal."""
    relative, v = jnp.array([0.4, -1.1]), jnp.array([0.7, -0.2])
    linked, jointed = LinkedMass(2.0, 0.5, -0.6, -0.3), JointedMass(2.0, 0.5, -0.6, offset=0.3)
    absolute, w = jnp.cumsum(relative), jnp.cumsum(v)
    np.testing.assert_allclose(
        v @ jointed.operator(relative).matvec(v), w @ linked.operator(absolute).matvec(w), rtol=1e-12
    )
    geared = JointedMass(2.0, 0.5, -0.6, (0.1, 0.2), 0.3).operator(relative).dense()
    np.testing.assert_allclose(geared - jointed.operator(relative).dense(), np.diag([0.1, 0.2]), atol=1e-12)


def test_a_coupling_beyond_one_is_refused():
    for mass_of in (LinkedMass, JointedMass):
        with pytest.raises(InputError, match="between -1 and 1"):
            mass_of(1.0, 1.0, 1.0)


def test_arm_gravity_is_the_weight_of_the_links_at_their_heights():
    model = ArmGravity((1.0, 2.0, 0.5), gravity=9.0, **LINKS)
    weights = 9.0 * jnp.array([1.0, 2.0, 0.5])
    energies, expected = over_samples(lambda q: (model(q), weights @ _arm(q)[:, 1]), random_vectors(1, 3))
    np.testing.assert_allclose(energies, expected, rtol=1e-10)


# --- potentials ------------------------------------------------------------------------------------------------------


@cases(POTENTIALS)
def test_potential_is_finite_and_its_gradient_matches_finite_differences(size, make, perturbed):
    model, h = make(jax.random.key(0)), 1e-6

    def evaluate(noise, q):
        noisy = perturbed(model, noise)
        ahead, behind = (jax.vmap(lambda step: noisy(q + step))(s * h * jnp.eye(size)) for s in (1.0, -1.0))
        return noisy(q), potential.gradient(noisy, q), (ahead - behind) / (2.0 * h)

    energies, gradients, differences = over_samples(evaluate, noise_for(model, 0.5), random_vectors(1, size))
    assert np.all(np.isfinite(energies))
    assert np.ptp(energies) > 1e-3  # not constant, so that the comparison says something
    scale = 1.0 + np.abs(energies)[:, None] + np.abs(gradients).max(axis=1, keepdims=True)
    assert np.abs((gradients - differences) / scale).max() < 1e-7


@pytest.mark.parametrize("name", ["lennard-jones", "gravity", "prey", "periodic mlp"])
def test_potential_and_gradient_are_finite_at_the_origin_and_far_out_in_single_precision(name):
    size, make = POTENTIALS[name]
    with jax.enable_x64(False):
        model = make(jax.random.key(0))
        evaluate = jax.jit(jax.value_and_grad(lambda q: model(q)))
        for q in (jnp.zeros(size), jnp.full(size, -50.0), 100.0 * jnp.arange(1.0, size + 1.0)):
            energy, gradient = evaluate(q)
            assert energy.dtype == gradient.dtype == jnp.float32
            assert jnp.isfinite(energy)
            assert jnp.all(jnp.isfinite(gradient))


@pytest.mark.parametrize("name", ["cosine", "mlp", "periodic mlp", "hybrid"])
def test_potential_is_periodic_in_its_angles(name, perturbed):
    size, make = POTENTIALS[name]
    model, circles = make(jax.random.key(0)), jnp.asarray(FOUR.circles, dtype=float)

    def evaluate(noise, q, turns):
        noisy = perturbed(model, noise)
        return noisy(q), noisy(q + TWO_PI * jnp.round(turns) * circles)

    here, turned = over_samples(evaluate, noise_for(model, 1.0), random_vectors(1, size, 2.0), random_vectors(2, size))
    np.testing.assert_allclose(turned, here, rtol=1e-10, atol=1e-10)


def test_a_network_potential_is_not_periodic_in_its_lines_nor_blind_to_half_a_turn():
    for make in (MLPPotential.create, PeriodicMLPPotential.create):
        model = make(FOUR, width=8, key=jax.random.key(0))
        q = jnp.array([0.1, 0.2, 0.3, 0.4])
        assert abs(model(q.at[0].add(TWO_PI)) - model(q)) > 1e-3
        assert abs(model(q.at[1].add(np.pi)) - model(q)) > 1e-3


@pytest.mark.parametrize("name", ["lennard-jones, learned", "gravity, learned"])
def test_pair_potentials_do_not_see_rotations_or_translations(name, perturbed):
    size, make = POTENTIALS[name]
    model = make(jax.random.key(0))

    def evaluate(noise, q, motion):
        noisy = perturbed(model, noise)
        c, s = jnp.cos(motion[0]), jnp.sin(motion[0])
        moved = q.reshape(-1, 2) @ jnp.array([[c, s], [-s, c]]) + motion[1:]
        return noisy(q), noisy(moved.reshape(-1)), noisy(q.at[0].add(0.5))

    here, moved, changed = over_samples(evaluate, noise_for(model, 0.5), random_vectors(1, size), random_vectors(2, 3))
    np.testing.assert_allclose(moved, here, rtol=1e-8)
    assert np.all(np.abs(changed - here) > 1e-6)


def test_pair_potentials_of_two_points_are_the_textbook_functions():
    q = jnp.array([0.0, 0.0, 0.6, 0.8])  # one apart
    np.testing.assert_allclose(Gravity((2.0, 3.0), constant=5.0, softening=0.0)(q), -30.0, rtol=1e-12)
    np.testing.assert_allclose(LennardJones(2.0, 1.0, softening=0.0)(q), 0.0, atol=1e-12)
    at_the_bottom = LennardJones(2.0, 2.0 ** (-1.0 / 6.0), softening=0.0)
    np.testing.assert_allclose(at_the_bottom(q), -2.0, rtol=1e-12)
    np.testing.assert_allclose(potential.gradient(at_the_bottom, q), 0.0, atol=1e-10)


def test_hybrid_is_template_plus_epsilon_times_residual():
    template, residual = Cosine((0.0, 9.81, 1.0, 2.0)), MLPPotential.create(FOUR, width=8, key=jax.random.key(0))
    q = jnp.array([0.1, 0.2, 0.3, 0.4])
    hybrid = Hybrid(template, residual, Positive.starting_at(0.03))
    np.testing.assert_allclose(hybrid(q), template(q) + 0.03 * residual(q), rtol=1e-12)
    np.testing.assert_allclose(Scaled(template, 2.5)(q), 2.5 * template(q), rtol=1e-12)


def test_coupled_potentials_equal_their_formulas():
    q, factor = jnp.array([0.7, -1.1]), np.array([[1.0, 0.5], [-0.7, 2.0]])
    form = QuadraticForm(tuple(map(tuple, factor.tolist())))
    np.testing.assert_allclose(form(q), 0.5 * q @ (factor @ factor.T) @ q, rtol=1e-12)
    heat = 0.5 * (1.0 * 0.7**2 + 2.0 * 1.1**2) + 0.5 * 0.5 * 1.8**2
    np.testing.assert_allclose(HeatExchange((1.0, 2.0), 0.5)(q), heat, rtol=1e-12)
    np.testing.assert_allclose(Quadratic((3.0, 4.0), (0.2, -0.1))(q), 0.5 * (3.0 * 0.25 + 4.0 * 1.0), rtol=1e-12)


def test_prey_is_the_invariant_above_its_floor_and_its_tangent_below():
    prey, floor = Prey(0.1, 0.4, 0.05), 0.05
    at = lambda x: prey(jnp.array([x]))  # noqa: E731
    np.testing.assert_allclose(at(2.0), 0.1 * 2.0 - 0.4 * np.log(2.0), rtol=1e-12)
    slope = 0.1 - 0.4 / floor
    np.testing.assert_allclose(at(-1.0) - at(floor), slope * (-1.0 - floor), rtol=1e-10)


def test_cosines_hang_at_their_centre_and_a_chain_adds_up_its_joints():
    q = jnp.array([0.7, -1.1])
    expected = 3.0 * (1.0 - np.cos(0.2)) + 4.0 * (1.0 - np.cos(-1.0))
    np.testing.assert_allclose(Cosine((3.0, 4.0), (0.5, -0.1))(q), expected, rtol=1e-12)
    absolute = Cosine((3.0, 4.0), (0.5, -0.1))(jnp.cumsum(q))
    np.testing.assert_allclose(ChainCosine((3.0, 4.0), (0.5, -0.1))(q), absolute, rtol=1e-12)


# --- networks and coefficients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_silu_and_its_derivatives_equal_those_of_jax(order):
    ours, theirs = silu, jax.nn.silu
    for _ in range(order):
        ours, theirs = jax.grad(ours), jax.grad(theirs)
    x = jnp.linspace(-40.0, 40.0, 161)
    np.testing.assert_allclose(jax.vmap(ours)(x), jax.vmap(theirs)(x), atol=1e-12)


@pytest.mark.parametrize("inputs", [1, 5, 16])
def test_the_potential_network_has_the_papers_parameter_count(inputs, trainable_count):
    network = MLP.create((inputs, 64, 64, 64, 1), key=jax.random.key(0))
    assert trainable_count(network) == 64 * inputs + 8449
    assert network(jnp.ones(inputs)).shape == (1,)


@pytest.mark.parametrize("manifold", [PAIR, FOUR], ids=["pair", "four"])
def test_potential_networks_read_coordinates_or_features(manifold, trainable_count):
    plain = MLPPotential.create(manifold, key=jax.random.key(0))
    periodic = PeriodicMLPPotential.create(manifold, harmonics=3, key=jax.random.key(0))
    assert trainable_count(plain) == 64 * manifold.size + 8449
    assert trainable_count(periodic) == 64 * manifold.feature_count(3) + 8449


def test_network_composes_affine_maps_and_silu():
    network = MLP.create((2, 3, 4, 1), key=jax.random.key(0))
    x = np.array([0.3, -2.0])
    hidden = x
    for w, b in zip(network.weights[:-1], network.biases[:-1], strict=True):
        hidden = np.asarray(hidden @ w + b)
        hidden = hidden / (1.0 + np.exp(-hidden))
    np.testing.assert_allclose(network(jnp.asarray(x)), hidden @ network.weights[-1] + network.biases[-1], rtol=1e-12)


@given(st.floats(1e-6, 1e6), st.sampled_from([1e-4, 1.0, 1e5]))
def test_a_positive_coefficient_starts_where_it_is_told(value, unit):
    np.testing.assert_allclose(Positive.starting_at(unit * value, unit)(), unit * value, rtol=1e-9)
    np.testing.assert_allclose(Positive.starting_at(unit * value, unit).raw, Positive.starting_at(value).raw, rtol=1e-9)


@given(st.floats(-0.99, 0.99), st.floats(-1e6, 1e6))
def test_bounded_and_real_numbers_start_where_they_are_told(share, value):
    np.testing.assert_allclose(Bounded.starting_at(share)(), share, rtol=1e-9, atol=1e-12)
    assert abs(Bounded(jnp.asarray(value))()) < 1.0
    assert Real.starting_at(value)() == value_of(Real.starting_at(value)) == value


@pytest.mark.parametrize("unit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_unit_is_a_positive_number(unit):
    for make in (Positive.uninformed, lambda unit: PSDDamping.uninformed(2, unit)):
        with pytest.raises(InputError, match="positive number"):
            make(unit=unit)


@given(st.floats(-700.0, 1e6))
def test_a_positive_coefficient_stays_positive(raw):
    assert Positive(jnp.asarray(raw))() > 0.0


def test_only_learned_coefficients_are_trainable(trainable_count):
    assert trainable_count(ConstantMass((1.0, 2.0))) == 0
    assert trainable_count(ConstantMass(Positive.uninformed(2))) == 2
    np.testing.assert_array_equal(value_of((1.0, 2.0)), [1.0, 2.0])
    np.testing.assert_allclose(value_of(Positive.uninformed(2, unit=3.0)), 3.0 * np.log(2.0))
    assert trainable_count(Cosine(1.0, Real.starting_at((0.0, 0.1)))) == 2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("values", [(0.0, 0.0, 2.0), (1.0, 1.0, 1.0), (0.3, 5.0, 1e6)], ids=["null", "equal", "stiff"])
def test_exponential_is_a_contraction_with_the_right_gradient_where_eigenvalues_meet(values):
    basis = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (3, 3)))[0]
    matrix = (basis * jnp.array(values)) @ basis.T
    matrix = 0.5 * (matrix + matrix.T)
    decay = exponential_of_negative(matrix)
    np.testing.assert_allclose(decay, (basis * np.exp(-np.array(values))) @ basis.T, atol=1e-9)
    assert float(jnp.linalg.norm(decay, 2)) <= 1.0 + 1e-12
    change = jax.random.normal(jax.random.key(1), (3, 3))
    change = change + change.T + 4.0 * jnp.eye(3)  # keeps S positive on the way
    _, slope = jax.jvp(exponential_of_negative, (matrix,), (change,))
    h = 1e-5
    numeric = (scipy.linalg.expm(-(matrix + h * change)) - scipy.linalg.expm(-(matrix - h * change))) / (2 * h)
    if max(values) < 100:
        np.testing.assert_allclose(slope, numeric, atol=1e-7)
    assert np.isfinite(slope).all()


@given(st.integers(3, 30), st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_a_pentadiagonal_solve_is_the_dense_one(n, seed):
    rng = np.random.default_rng(seed)
    bend = np.diff(np.eye(n), n=2, axis=0) * rng.uniform(0.3, 3.0, (n - 2, 1))
    matrix, y = np.diag(rng.uniform(0.1, 1.0, n)) + bend.T @ bend, rng.normal(size=(n, 2))
    with jax.enable_x64(True):
        found = solve_pentadiagonal(jnp.asarray(matrix), jnp.asarray(y))
    np.testing.assert_allclose(np.asarray(found), np.linalg.solve(matrix, y), rtol=1e-9, atol=1e-11)
