"""Physics from words: every word, every mistake, and the same result in any units."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from doubles import without_spread, wrapped
from hypothesis import given
from hypothesis import strategies as st

import phast
from phast.analysis.identifiability import report
from phast.components.damping import (
    ConstantDamping,
    DirectionalFriction,
    Friction,
    PSDDamping,
    SplineDamping,
    Stiction,
    SumDamping,
)
from phast.components.mass import ConstantMass, GearedMass, JointedMass, LinkageMass, LinkedMass, RelativeMass
from phast.components.parameter import Positive, Real, parameter_count
from phast.components.potential import (
    Along,
    ChainCosine,
    ConstantForce,
    Cosine,
    Quadratic,
    Quartic,
    Scaled,
    Some,
    SplinePotential,
    Sum,
)
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.derivatives import choose_smoother, differentiate, noise_scale
from phast.estimation.forecaster import Core
from phast.estimation.states import input_count
from phast.fitting.coefficients import coefficients_of
from phast.fitting.matching import acceleration, match
from phast.fitting.preprocess import Preprocessed
from phast.fitting.shooting import shoot
from phast.fitting.structure import Structure, compose
from phast.fitting.words import check_regime

pytestmark = pytest.mark.usefixtures("float64")


def moving(*coordinates: str, inputs: int = 0, seed: int = 0) -> Trajectories:
    """Some motion, in closed form, and inputs that have nothing to do with it."""
    rng = np.random.default_rng(seed)
    n, t = len(coordinates), 0.05 * np.arange(60)[:, None]
    pace, phase = rng.uniform(1.0, 3.0, n), rng.uniform(0.0, 6.0, (4, 1, n))
    u = rng.normal(size=(4, 60, inputs)) if inputs else None
    return Trajectories(np.exp(-0.1 * t) * np.cos(pace * t + phase), 0.05, Manifold.parse(*coordinates), u=u)


LINE, ANGLE = moving("x"), moving("theta:angle")
ARM, CART = moving("first:angle", "second:angle"), moving("x", "theta:angle")
MANY, THREE = moving("a", "b", "c"), moving("a:angle", "b:angle", "c:angle")
DRIVEN_CART = moving("x", "theta:angle", inputs=2)
DRIVEN, DRIVEN_ARM = moving("x", inputs=1), moving("first:angle", "second:angle", inputs=2)


def known(data: Trajectories, potential="quadratic", mass="1.0", damping="viscous", port=None) -> PortHamiltonian:
    return composed("known", wanted(potential, mass, damping, port), data)


def wanted(potential=None, mass="1.0", damping=None, port=None) -> dict:
    return {"potential": potential, "mass": mass, "damping": damping, "port": port}


def composed(regime: str, words: dict, data: Trajectories) -> PortHamiltonian:
    return compose(Structure(**words, regime=regime), Preprocessed(data))


# --- every word ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words", "kind", "learned"),
    [
        (ANGLE, "cosine", Cosine, 2),
        (ARM, "cosine", Cosine, 4),
        (ARM, "chain", ChainCosine, 4),
        (LINE, "quadratic", Quadratic, 2),
        (ANGLE, "quadratic", Quadratic, 2),
        (CART, "cosine", Some, 2),
        (CART, "quadratic", Some, 2),
        (CART, " cosine + quadratic ", Sum, 4),
        (ANGLE, "cosine:9.81", Scaled, 1),
        (CART, "quadratic:3", Some, 1),
        (ARM, "quartic", Quartic, 4),
        (LINE, "quadratic+quartic", Quartic, 3),  # one spring, with one centre
        (ARM, "constant", ConstantForce, 2),
        (ARM, "coupled", Along, 2),
        (MANY, "coupled", Sum, 5),  # of three rest lengths two count
        (LINE, "constant+quadratic", Sum, 2),  # a centre would be that force again
        (MANY, "quadratic+coupled", Sum, 9),
        (MANY, "quadratic(a-b, c)+quartic(b)", Sum, 6),
        (ARM, "cosine(first+second)", Along, 2),
        (LINE, "none", Quadratic, 0),
    ],
)
def test_words_for_potentials(data, words, kind, learned):
    found = known(data, words).potential
    assert isinstance(found, kind) and parameter_count(found) == learned
    if words == "cosine:9.81":
        assert float(found(jnp.array([np.pi]))) == pytest.approx(2 * 9.81)
    if words in ("cosine", "quadratic:3") and data is CART:  # of its own coordinate and no other
        slope = jax.grad(found)(jnp.array([0.7, 0.7]))
        assert (slope[0] != 0.0) == (words != "cosine") and (slope[1] != 0.0) == (words == "cosine")


@pytest.mark.parametrize(
    ("data", "words", "kind", "learned"),
    [
        (CART, "2", ConstantMass, 0),
        (CART, "1.0, 0.5", ConstantMass, 0),
        (DRIVEN, "learned", ConstantMass, 1),
        (ARM, "links", LinkedMass, 2),
        (ARM, "joints", JointedMass, 2),
        (ARM, "joints+rotors", GearedMass, 3),
        (CART, "cartpole", LinkageMass, 2),
        (DRIVEN_CART, "cartpole", LinkageMass, 3),
        (THREE, "links", LinkageMass, 5),
        (THREE, "joints", RelativeMass, 5),
        (THREE, "joints+rotors", GearedMass, 7),
        (DRIVEN_ARM, "links", LinkedMass, 3),  # a known force fixes the scale, so all of M can be found
    ],
)
def test_words_for_masses(data, words, kind, learned):
    found = known(data, "quadratic", words).mass
    assert isinstance(found, kind) and parameter_count(found) == learned
    matrix = np.asarray(found.operator(jnp.asarray(data.q[0, 0])).dense())
    assert (np.linalg.eigvalsh(matrix) > 0.0).all()
    if words == "1.0, 0.5":
        np.testing.assert_array_equal(matrix, np.diag([1.0, 0.5]))


@pytest.mark.parametrize(
    ("words", "kind", "learned"),
    [
        ("viscous", Friction, 2),
        ("coulomb", Friction, 2),
        ("quadratic", Friction, 2),
        ("viscous+coulomb + quadratic", Friction, 6),
        ("none", ConstantDamping, 0),
        ("stiction", Stiction, 2),
        ("coulomb+directional", DirectionalFriction, 4),
        ("viscous(first-second)+viscous", SumDamping, 3),
        ("viscous+coupled+stiction(first)", SumDamping, 4),
        ("free", SumDamping, None),
        ("free+coulomb", SumDamping, None),
    ],
)
def test_words_for_friction(words, kind, learned):
    found = known(ARM, "cosine", damping=words).damping
    assert isinstance(found, kind) and learned in (None, parameter_count(found))
    slow, fast = (float(v * found.operator(jnp.zeros(2), jnp.full(2, v)).diagonal_part()[0]) for v in (1.0, 2.0))
    growth = {"viscous": 2.0, "coulomb": 1.0, "quadratic": 4.0}
    if words in growth:
        assert fast / slow == pytest.approx(growth[words], rel=1e-2)
    assert (slow == 0.0) == (words == "none")


def test_friction_of_links_is_in_their_joints():
    """Two links that turn as one do not rub in the second joint."""
    law = known(ARM, "cosine", "links").damping
    force = law.operator(jnp.zeros(2), jnp.ones(2)).matvec(jnp.ones(2))
    assert float(force[1]) == pytest.approx(0.0, abs=1e-12) and float(force[0]) > 0.0
    assert known(ARM, "chain", "joints").damping.joints is None


def test_friction_of_three_links_is_in_their_joints():
    law = known(THREE, "cosine", "links").damping
    np.testing.assert_allclose(law.operator(jnp.zeros(3), jnp.ones(3)).matvec(jnp.ones(3))[1:], 0.0, atol=1e-12)
    assert known(CART, "cosine", "cartpole").damping.joints is None


def test_a_word_of_a_difference_acts_between_two():
    found = known(MANY, "quadratic(a-c)", damping="viscous(a-c)")
    q = jnp.array([0.3, -1.0, 0.8])
    force, drag = jax.grad(found.potential)(q), found.damping.operator(q, q).matvec(q)
    for each in (force, drag):
        assert float(each[1]) == 0.0 and float(each[0]) == pytest.approx(-float(each[2])) != 0.0


def test_no_potential_has_no_force_and_no_free_part():
    found = composed("partial", wanted("none", damping="viscous"), LINE)
    assert parameter_count(found.potential) == 0 and float(jax.grad(found.potential)(jnp.ones(1))[0]) == 0.0


@pytest.mark.parametrize("given", ["0,1;2,0", ((0.0, 1.0), (2.0, 0.0)), [[0, 1], [2, 0]], np.array([[0, 1], [2, 0]])])
def test_a_port_in_numbers(given):
    found = known(DRIVEN_ARM, "cosine", port=given)
    np.testing.assert_array_equal(found.input_force(jnp.array([3.0, 5.0])), [5.0, 6.0])


@pytest.mark.parametrize("given", [None, "identity"])
def test_a_port_of_one_input_for_each_coordinate(given):
    found = known(DRIVEN_ARM, "cosine", port=given)
    np.testing.assert_array_equal(found.input_force(jnp.array([3.0, 5.0])), [3.0, 5.0])
    assert known(ARM, "cosine").port is None


def test_ones_own_components_stand_in_the_place_of_words():
    own = wanted(Cosine(9.81), ConstantMass(2.0), ConstantDamping(Positive.uninformed()))
    found = composed("known", own, ANGLE)
    assert [found.potential, found.mass, found.damping] == [own[name] for name in ("potential", "mass", "damping")]


# --- regimes ---------------------------------------------------------------------------------------------------------


def test_known_is_what_is_named_and_nothing_else():
    assert parameter_count(known(ANGLE, "cosine")) == 3


def test_partial_is_a_template_beside_a_free_potential():
    found = composed("partial", wanted("cosine:9.81"), ANGLE)
    template, free = found.potential.parts
    assert isinstance(template, Scaled) and isinstance(free.template, SplinePotential)
    assert isinstance(found.damping, SplineDamping)
    q = jnp.array([0.3])
    assert float(found.potential(q)) == pytest.approx(float(template(q)))  # the rest starts flat
    named = composed("partial", wanted("cosine:9.81", damping="viscous"), ANGLE)
    assert isinstance(named.damping, Friction) and len(named.potential.parts) == 2


def test_unknown_has_no_template():
    found = composed("unknown", wanted(), ANGLE)
    assert isinstance(found.potential.template, SplinePotential) and isinstance(found.damping, SplineDamping)
    many = moving("a", "b", "c")
    assert isinstance(composed("unknown", wanted(), many).damping, PSDDamping)


def test_the_start_does_not_depend_on_the_answer():
    """What is trained starts at nothing known: strengths at none of any size, centres in the middle of the motion."""
    words = wanted("quadratic", "learned", "viscous+coulomb+quadratic+free", "identity")
    found = composed("known", words, moving("x", inputs=1, seed=1))
    theta, _ = coefficients_of(dataclasses.replace(found, potential=Quadratic(1.0)))
    assert not np.asarray(theta).any() and not np.asarray(found.potential.stiffness.raw).any()
    learned = composed("known", words | {"mass": "1.0", "port": "learned"}, moving("x", inputs=1, seed=1)).port
    assert isinstance(learned, Real) and not np.asarray(learned.value).any()
    for data in (LINE, ANGLE):
        kind = "cosine" if data is ANGLE else "quadratic"
        ahead = dataclasses.replace(data, q=data.q + 2.5)
        shift = known(ahead, kind).potential.centre() - known(data, kind).potential.centre()
        assert float(np.angle(np.exp(1j * (shift[0] - 2.5)))) == pytest.approx(0.0, abs=1e-9)


WORDS = {
    "known": wanted("quadratic", "1.0", "viscous+coulomb+quadratic", "learned"),
    "mass": wanted("quadratic", "learned", "viscous", "identity"),
    "unknown": wanted(None, "1.0", "free+coulomb", "learned"),
}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize(("length", "time", "force"), [(1e-6, 1e-6, 5.0), (1e4, 60.0, 1e-9)])
def test_the_start_is_the_same_in_any_units(name, length, time, force):
    """Trained numbers are equal, and so are accelerations in their own units."""
    regime = "unknown" if name == "unknown" else "known"
    other = Trajectories(length * DRIVEN.q, time * DRIVEN.dt, DRIVEN.manifold, u=force * DRIVEN.u)
    here, there = (composed(regime, WORDS[name], data) for data in (DRIVEN, other))
    raw, rebuild = coefficients_of(here)
    np.testing.assert_allclose(coefficients_of(there)[0], raw, atol=1e-9)
    shifted = np.asarray(raw) + np.random.default_rng(0).normal(0.0, 0.3, raw.shape)
    here, there = rebuild(jnp.asarray(shifted)), coefficients_of(there)[1](jnp.asarray(shifted))
    q, v, u = (jnp.array([x]) for x in (0.4, -0.7, 0.6))
    expected = length / time**2 * acceleration(here, q, v, u)
    np.testing.assert_allclose(acceleration(there, length * q, length / time * v, force * u), expected, rtol=1e-6)


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_scales_are_those_of_the_motion(length, time):
    own, other = (Preprocessed(d).scales for d in (LINE, Trajectories(length * LINE.q, time * LINE.dt, LINE.manifold)))
    powers = [length, length / time, length / time**2, 1.0, 1.0]
    np.testing.assert_allclose(np.array(other) / np.array(own), powers, rtol=1e-5)


# --- what is found under inputs --------------------------------------------------------------------------------------


def from_accelerations(start: PortHamiltonian, data: Trajectories) -> PortHamiltonian:
    samples = differentiate(data, choose_smoother(data, noise_scale(data)))
    return match(start, samples, deviation=0.1)


@pytest.fixture(scope="module")
def pushed() -> Trajectories:
    """m q'' = -k (q - c) - d q' + G u in closed form, of two inputs held from sample to sample: m = 2, G = (3, -5)."""
    rng, dt = np.random.default_rng(3), 0.05
    linear = np.array([[0.0, 1.0, 0.0], [-8.0 / 2.0, -0.6 / 2.0, 1.0 / 2.0], [0.0, 0.0, 0.0]])
    step = np.eye(3)
    for k in range(20, 0, -1):  # the exponential of a small matrix
        step = np.eye(3) + dt * linear @ step / k
    pace, phase = rng.uniform(1.0, 5.0, (6, 1, 2)), rng.uniform(0.0, 6.0, (6, 1, 2))
    u = 3.0 * np.sin(pace * dt * np.arange(100)[:, None] + phase)
    x = np.concatenate([rng.normal(size=(6, 2)), np.zeros((6, 1))], axis=1)
    path = []
    for t in range(100):
        path.append(x[:, :1])
        x[:, 2] = u[:, t] @ np.array([3.0, -5.0])
        x = x @ step.T
    return Trajectories(np.stack(path, axis=1) + 10.0, dt, Manifold.parse("x"), u=u)


@pytest.mark.parametrize(
    ("mass", "port", "inputs"),
    [("2.0", "learned", None), ("2.0", "3,-5", None), ("learned", "3,-5", None), ("learned", "identity", (3.0, -5.0))],
    ids=["port", "matrix", "mass by a matrix", "mass by identity"],
)
def test_forces_are_found_or_find_the_mass(pushed, mass, port, inputs):
    """From accelerations alone, so to a few per cent."""
    data = pushed if inputs is None else dataclasses.replace(pushed, u=pushed.u @ np.array(inputs)[:, None])
    found = from_accelerations(known(data, "quadratic", mass, "viscous", port), data)
    masses = np.asarray(found.mass.operator(jnp.zeros(1)).dense())[0, 0]
    assert masses == pytest.approx(2.0, rel=0.05)
    assert float(found.potential.stiffness()[0]) == pytest.approx(8.0, rel=0.05)
    assert float(found.potential.centre()[0]) == pytest.approx(10.0, abs=0.05)
    assert float(found.damping.viscous()[0]) == pytest.approx(0.6, rel=0.15)
    force = found.input_force(jnp.array([1.0, 0.0])) if inputs is None else 3.0 * found.input_force(jnp.ones(1))
    assert float(force[0]) == pytest.approx(3.0, rel=0.05)


# --- what fixes the scale --------------------------------------------------------------------------------------------

EXACT = Cosine((19.62, 9.81))
STARTS = {  # (regime, potential, port, data), and how many of the three numbers of two links are learned
    "nothing else": (("known", "cosine", None, ARM), 2),
    "a learned strength": (("known", "cosine:9.81", None, ARM), 2),
    "an exact potential": (("known", EXACT, None, ARM), 3),
    "a free potential beside it": (("partial", EXACT, None, ARM), 2),
    "a flat potential": (("known", Cosine(0.0), None, ARM), 2),
    "known forces": (("known", "cosine", "identity", DRIVEN_ARM), 3),
    "forces of unknown size": (("known", "cosine", "learned", DRIVEN_ARM), 2),
    "an exact potential and unknown forces": (("known", EXACT, "learned", DRIVEN_ARM), 3),
    "both": (("known", EXACT, "identity", DRIVEN_ARM), 3),
}


@pytest.mark.parametrize(("start", "learned"), STARTS.values(), ids=STARTS.keys())
def test_the_mass_is_the_anchor_only_where_nothing_else_is(start, learned):
    regime, potential, port, data = start
    found = composed(regime, wanted(potential, "links", "viscous", port), data).mass
    assert parameter_count(found) == learned
    assert learned == 3 or float(found.operator(jnp.zeros(2)).dense()[0, 0]) == 1.0
    if learned == 2:
        with pytest.raises(InputError, match=r"only from known forces: .* or a potential with its numbers"):
            composed(regime, wanted(potential, "learned", "viscous", port), data)


@pytest.mark.parametrize("mass", ["links", "joints"])
def test_an_exact_potential_gives_two_links_their_mass(mass):
    """The double pendulum of the paper, in the absolute angles of its links and in the angles of its joints."""
    data = simulate(system("double-pendulum-conservative"), 6, length=60, seed=1)
    potential, truth = EXACT, [[2.0, 1.0], [1.0, 1.0]]
    if mass == "joints":
        data = dataclasses.replace(data, q=data.q @ [[1.0, -1.0], [0.0, 1.0]], p=None, v=None)
        potential, truth = ChainCosine((19.62, 9.81)), [[5.0, 2.0], [2.0, 1.0]]
    found = from_accelerations(composed("known", wanted(potential, mass, "viscous"), data), data)
    np.testing.assert_allclose(found.mass.operator(jnp.zeros(2)).dense(), truth, rtol=0.01)


def test_an_exact_potential_gives_a_pendulum_its_mass():
    """The paper's row "pendulum, unknown mass": 1.5, and a drag of 0.3."""
    data = simulate(system("pendulum-unknown-mass"), 10, length=60, seed=1).with_noise(1e-3, seed=2)
    start = from_accelerations(composed("known", wanted(Cosine(9.81), "learned", "viscous"), data), data)
    found = shoot(Core(start, RungeKutta(Timestep(data.dt, 2))), data.windows(20, 20), noise=1e-3)
    mass, drag = report(found).coefficients
    for coefficient, truth in ((mass, 1.5), (drag, 0.3)):
        assert coefficient.identifiable and abs(coefficient.value - truth) < 4 * coefficient.deviation < 0.02
    assert report(found).anchor.startswith("the potential is given")


# --- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = {
    "no template": (("partial", wanted(), LINE), "regime 'partial' needs a potential"),
    "nothing known": (("known", wanted(damping="viscous"), LINE), "regime 'known' needs a potential"),
    "no friction": (("known", wanted("quadratic"), LINE), "'known' needs a damping law .*: name its terms"),
    "a template of the unknown": (("unknown", wanted("cosine"), ANGLE), "regime 'unknown' has no template"),
    "potential": (("partial", wanted("cubic"), LINE), "unknown potential 'cubic'"),
    "no word": (("partial", wanted("quadratic+"), LINE), "unknown potential ''"),
    "no angle": (("partial", wanted("cosine"), LINE), "'cosine' is of angles: declare them, positions='x:angle'"),
    "no angle in a chain": (("partial", wanted("chain"), LINE), "'chain' is of angles"),
    "strength": (("partial", wanted("cosine:strong"), ANGLE), "potential 'cosine:strong': 'strong' is not a number"),
    "negative strength": (("partial", wanted("cosine:-1"), ANGLE), "give one strength, a positive number"),
    "endless strength": (("partial", wanted("cosine:inf"), ANGLE), "'inf' is not a finite number"),
    "two strengths": (("partial", wanted("cosine:1,2"), ANGLE), "give one strength"),
    "none and some potential": (("known", wanted("none+cosine"), ANGLE), "'none' goes with no other term"),
    "a strength of a push": (("known", wanted("constant:3"), LINE), "only cosine, quadratic, chain take a strength"),
    "brackets of a chain": (("known", wanted("chain(first)"), ARM), "'chain' is of all coordinates"),
    "empty brackets": (("known", wanted("quadratic()", damping="none"), LINE), "name coordinates in the brackets"),
    "an unknown coordinate": (("partial", wanted("quadratic(x-y)"), LINE), r"'\(x-y\)': name coordinates, of x"),
    "half a bracket": (("partial", wanted("quadratic(x"), LINE), "write a word, or a word of some coordinates"),
    "a cosine of a line": (("partial", wanted("cosine(x)"), CART), r"'cosine\(x\)' is of angles"),
    "one alone": (("partial", wanted("coupled"), LINE), "there is only one"),
    "one alone, damped": (("partial", wanted("quadratic", damping="coupled"), LINE), "there is only one"),
    "no pole": (("unknown", wanted(mass="cartpole"), ARM), "declare one line, and an angle for each pole"),
    "directions of nothing": (("unknown", wanted(damping="directional"), LINE), "name what differs by direction"),
    "held twice": (("unknown", wanted(damping="stiction+coulomb"), LINE), "leave coulomb out"),
    "mass": (("unknown", wanted(mass="heavy"), LINE), "mass 'heavy' .*'heavy' is not a number"),
    "negative mass": (("unknown", wanted(mass="-1"), LINE), "give positive numbers"),
    "too many masses": (("unknown", wanted(mass="1,2,3"), CART), "give one positive number, or 2"),
    "mass without a force": (("unknown", wanted(mass="learned"), LINE), "a mass can be learned only from known forces"),
    "mass and port": (("unknown", wanted(mass="learned", port="learned"), DRIVEN), "only from known forces"),
    "links of a cart": (
        ("unknown", wanted(mass="links"), CART),
        "'links' is that of two links or more: declare an angle",
    ),
    "joints of one": (("unknown", wanted(mass="joints"), ANGLE), "'joints' is that of two links"),
    "friction": (("unknown", wanted(damping="sticky"), LINE), "unknown damping 'sticky': choose of viscous"),
    "none and some": (("unknown", wanted(damping="none+viscous"), LINE), "'none' goes with no other term"),
    "a port without inputs": (("unknown", wanted(port="identity"), LINE), "a port needs inputs: name their columns"),
    "too few inputs": (("unknown", wanted(), moving("a", "b", inputs=1)), r"1 input, 2 coordinates: give"),
    "port": (("unknown", wanted(port="straight"), DRIVEN), "port 'straight' .*: 'straight' is not a number"),
    "a port of another shape": (("unknown", wanted(port="1,0"), DRIVEN), r"give 1 row of 1 number"),
    "a ragged port": (("unknown", wanted(port=((1.0, 0.0), (1.0,))), DRIVEN_ARM), r"give 2 rows of 2"),
    "a port of one row": (("unknown", wanted(port=(1.0, 2.0)), DRIVEN_ARM), r"give 2 rows of 2"),
    "a port of words": (("unknown", wanted(port=(("a",),)), DRIVEN), r"give 1 row of 1"),
    "an endless port": (("unknown", wanted(port=((np.nan,),)), DRIVEN), r"give 1 row of 1"),
    "no motion": (("unknown", wanted(), dataclasses.replace(LINE, q=0.0 * LINE.q)), "'x' never moves"),
    "too short": (("unknown", wanted(), LINE.steps(0, 7)), "too short to learn from"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_named_in_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as error:
        composed(*arguments)
    assert "\n" not in str(error.value)


def test_an_unknown_regime_is_named():
    with pytest.raises(InputError, match="unknown regime 'guess': choose known, partial or unknown"):
        check_regime("guess", has_potential=False, has_damping=False)


# --- learning in any units -------------------------------------------------------------------------------------------


def circuit(time: float, charge: float) -> pd.DataFrame:
    """The charge of a series circuit, sampled unevenly: L = 1, C = 1 and R = 0.2 in units of their own, and noise."""
    rng = np.random.default_rng(0)
    t = np.cumsum(0.1 * rng.uniform(0.7, 1.3, (6, 120)), axis=1)
    size, phase = rng.uniform(0.5, 2.0, (6, 1)), rng.uniform(0.0, 6.0, (6, 1))
    q = size * np.exp(-0.1 * t) * np.cos(np.sqrt(0.99) * t + phase) + 1e-3 * rng.normal(size=t.shape)
    label = np.repeat(np.arange(6), 120)
    return pd.DataFrame({"trajectory": label, "t": time * t.ravel(), "charge": charge * q.ravel()})


CIRCUIT = phast.Structure(potential="quadratic", damping="viscous", regime="known")


@pytest.fixture(scope="module")
def circuits():
    """(recording, model) in natural units, and in seconds and coulombs: 1e-6 of each."""
    recordings = {"si": phast.read(circuit(1e-5, 1e-6)), "natural": phast.read(circuit(1.0, 1.0))}
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        si = phast.fit(recordings["si"], CIRCUIT)
        without_spread(patch)
        natural = phast.fit(recordings["natural"], CIRCUIT)
    return {"si": (recordings["si"], si), "natural": (recordings["natural"], natural)}


def test_a_circuit_is_learned_from_a_recording(circuits):
    recording, model = circuits["si"][0], circuits["si"][1].model
    physics = model.learned_system()
    assert float(physics.potential.stiffness()[0]) == pytest.approx(1e10, rel=2e-3)
    assert float(physics.damping.viscous()[0]) == pytest.approx(0.2e5, rel=1e-2)
    assert abs(float(physics.potential.centre()[0])) < 1e-9
    assert model.noise[0] == pytest.approx(1e-9, rel=0.1)
    assert model.dt == recording.dt == pytest.approx(1e-6, rel=0.05) and not recording.even


def test_the_same_circuit_in_natural_units_is_the_same(circuits):
    (_, natural), (_, si) = circuits["natural"], circuits["si"]
    raw, scaled = (coefficients_of(model.learned_system())[0] for model in (natural.model, si.model))
    np.testing.assert_allclose(scaled, raw, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(si.model.evidence.covariance, natural.model.evidence.covariance, rtol=1e-2, atol=1e-12)


def test_a_recording_is_forecast_for_a_time(circuits):
    """From the end of each of its pieces: as far as the closed form says, in seconds as in steps."""
    recording, fitted = circuits["si"]
    found, model = fitted.forecast("20 us"), fitted.model
    future, steps = found.q, round(20e-6 / model.dt)
    assert future.shape == (6, steps, 1)
    np.testing.assert_array_equal(fitted.forecast(steps, recording).q, future)
    rng = np.random.default_rng(0)
    ends = np.cumsum(0.1 * rng.uniform(0.7, 1.3, (6, 120)), axis=1)[:, -1:]
    size, phase = rng.uniform(0.5, 2.0, (6, 1)), rng.uniform(0.0, 6.0, (6, 1))
    t = ends + model.dt / 1e-5 * np.arange(1, steps + 1)
    truth = 1e-6 * size * np.exp(-0.1 * t) * np.cos(np.sqrt(0.99) * t + phase)
    np.testing.assert_allclose(future[..., 0], truth, atol=3e-9)  # three deviations of the noise


RECORDING_MISTAKES = {
    "other coordinates": (
        lambda r: dataclasses.replace(r, manifold=Manifold.parse("q")),
        "the coordinates q, but the model charge",
    ),
    "another clock": (
        lambda r: dataclasses.replace(r, dt=1e-3),
        "sampled every 0.001, but the model was fitted at 1.0",
    ),
    "other inputs": (lambda r: dataclasses.replace(r, inputs=("a", "b")), r"has 2 inputs, but the model 1"),
    "too short": (lambda r: r.between(0.0, 1.2e-6), "too short for a context|no piece has 8 samples"),
}


@pytest.mark.parametrize(("change", "message"), RECORDING_MISTAKES.values(), ids=RECORDING_MISTAKES.keys())
def test_recordings_that_do_not_fit(circuits, change, message):
    recording, fitted = circuits["si"]
    with pytest.raises(InputError, match=message) as error:
        fitted.forecast(5, change(recording))
    assert "\n" not in str(error.value)


def test_inputs_that_a_driven_model_needs(circuits):
    recording, fitted = circuits["si"]
    model = fitted.model
    for port in (((1.0, 2.0),), Real.starting_at([[1.0, 2.0]]), jnp.array([[1.0, 2.0]])):
        pushed = dataclasses.replace(model.core.system, port=port)
        driven = dataclasses.replace(model, core=dataclasses.replace(model.core, system=pushed))
        assert input_count(driven) == 2
        with pytest.raises(InputError, match=r"has 0 inputs, but the model 2: name the columns with inputs=…"):
            wrapped(driven).forecast(5, recording)
    with pytest.raises(InputError, match="holds its own inputs: leave past=… out"):
        fitted.forecast(5, recording, past=np.zeros((10, 1)))


def temperatures(time: float, units: tuple[float, float], zero: float) -> Trajectories:
    """Two bodies that warm to their surroundings, each overdamped in its own way: V = ½Σ k (T - c)², and noise."""
    rng, rates = np.random.default_rng(1), np.array([[0.3, 1.2], [0.5, 2.0]])  # of each body, by unit of time
    t = 0.1 * np.arange(80)[:, None, None]
    shares = rng.normal(size=(8, 1, 2, 2))
    q = np.sum(shares * np.exp(-rates * t), axis=-1) + np.array([0.4, -0.3])
    q = q + 1e-3 * rng.normal(size=q.shape)
    manifold = Manifold.parse("inner", "outer")
    return Trajectories(np.array(units) * (q + zero), time * 0.1, manifold)


@pytest.fixture(scope="module")
def bodies():
    """Models in natural units, and in seconds with one body in kelvin about 300 and the other in millikelvin."""
    units = {"natural": (1.0, (1.0, 1.0), 0.0), "si": (10.0, (10.0, 1e4), 30.0)}
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        without_spread(patch)
        context = {"natural": phast.SecondOrder(context="1 s"), "si": phast.SecondOrder(context="10 s")}
        return {name: phast.fit(temperatures(*unit), CIRCUIT, method=context[name]) for name, unit in units.items()}


def test_temperatures_are_learned_in_any_units(bodies):
    """Rates a and b of a body are k = a b and d = a + b."""
    for name, time in (("natural", 1.0), ("si", 10.0)):
        physics = bodies[name].model.learned_system()
        np.testing.assert_allclose(time**2 * physics.potential.stiffness(), [0.36, 1.0], rtol=0.03)
        np.testing.assert_allclose(time * physics.damping.viscous(), [1.5, 2.5], rtol=0.03)
    np.testing.assert_allclose(bodies["natural"].model.learned_system().potential.centre(), [0.4, -0.3], atol=5e-3)
    np.testing.assert_allclose(
        bodies["si"].model.learned_system().potential.centre(), [304.0, 297e3], atol=50.0, rtol=2e-4
    )
    np.testing.assert_allclose(
        np.array(bodies["si"].model.noise) / [10.0, 1e4], bodies["natural"].model.noise, rtol=1e-6
    )
    assert bodies["natural"].model.window == bodies["si"].model.window == 10


def test_a_coordinates_unit_changes_no_estimate(bodies):
    """Forces in units of their own, as near as the noise of the data lets a fit stop."""
    natural, si = (fitted.model for fitted in bodies.values())
    scale = np.array([10.0, 1e4])
    for q, v in np.random.default_rng(0).normal(size=(5, 2, 2)):
        here = acceleration(natural.learned_system(), jnp.asarray(q), jnp.asarray(v))
        there = acceleration(si.learned_system(), jnp.asarray(scale * (q + 30.0)), jnp.asarray(scale / 10.0 * v))
        np.testing.assert_allclose(100.0 * there / scale, here, atol=1e-3)


def test_temperatures_are_forecast(bodies):
    data = temperatures(10.0, (10.0, 1e4), 30.0)
    future = bodies["si"].forecast("60 s", data.q[:, :10]).q
    error = np.sqrt(np.mean((future - data.q[:, 10:70]) ** 2, axis=(0, 1)))
    assert (error / np.array([10.0, 1e4]) < 5e-3).all()  # of motions of about one such unit
