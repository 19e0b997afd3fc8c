"""Time steps tested by law: order of accuracy, symplecticity, reversibility, passivity, and their gradients."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from hypothesis import example, given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from phast.components.damping import (
    ConstantDamping,
    Friction,
    FrictionField,
    HouseholderDamping,
    SumDamping,
    WindyDamping,
)
from phast.components.mass import CartPoleMass, CholeskyMass, ConstantMass, LinkedMass, LowRankMass
from phast.components.parameter import Bounded, Positive, Real
from phast.components.potential import Cosine, PeriodicMLPPotential, Quadratic, QuadraticForm, Scaled
from phast.components.spline import Grid
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import (
    CayleyNeumann,
    DiscreteGradient,
    ExactDamping,
    ExplicitDamping,
    ImplicitDamping,
    ImplicitMidpoint,
    RungeKutta,
    Splitting,
    Timestep,
    Transition,
    fourth_order,
    leapfrog,
)

pytestmark = pytest.mark.usefixtures("float64")

PAIR = Manifold.parse("x", "theta:angle")
FOUR = Manifold.parse("a", "b:angle", "c", "d:angle")
ANGLES = Manifold.parse("first:angle", "second:angle")
JOINTS = ((1.0, 0.0), (-1.0, 1.0))

CORES = {
    "leapfrog": leapfrog,
    "fourth order": fourth_order,
    "implicit midpoint": ImplicitMidpoint,
    "cayley-neumann": CayleyNeumann,
    "discrete gradient": DiscreteGradient,
}
DAMPING_STEPS = {"explicit": ExplicitDamping, "implicit": ImplicitDamping, "exact": ExactDamping}
every_core = pytest.mark.parametrize("core", CORES.values(), ids=CORES.keys())


def pendulum():
    """Damped by the wind; over the time of a test its angle stays positive, where |sin| is smooth."""
    return PortHamiltonian(Cosine(4.0), ConstantMass(1.5), WindyDamping(0.3, 0.5, (0,)))


def chain():
    """Coupled nonlinear oscillators with a full mass matrix and low-rank damping."""
    return PortHamiltonian(
        Cosine((3.0, 2.0)),
        LowRankMass(
            Positive.starting_at(jnp.array([1.0, 2.0])),
            Positive.starting_at(jnp.array([0.7])),
            jnp.array([[1.0, -0.5]]),
        ),
        HouseholderDamping.create(PAIR, base=0.2, total_bound=0.5, width=4, harmonics=1, key=jax.random.key(0)),
    )


def cart_pole():
    return PortHamiltonian(Cosine((0.0, 9.81)), CartPoleMass(), WindyDamping(0.3, 0.5, (1, 1)), ((1.0,), (0.0,)))


def springs():
    """A quadratic energy with a full stiffness and a full mass."""
    return dataclasses.replace(chain(), potential=QuadraticForm(((1.5, 0.0), (-0.7, 1.0))))


def slider():
    """A pendulum whose bearing rubs in every way."""
    return PortHamiltonian(Cosine(4.0), ConstantMass(1.5), Friction(0.2, 0.7, 0.3))


def rubbing_links():
    """Two links with friction in their joints, which varies around the circle, and air drag."""
    grid = Grid(ANGLES, (6,), (0.0,), (1.0,), axes=(0,))
    laws = Friction(0.1, (0.5, 0.3), 0.2, 0.2, JOINTS), FrictionField.uninformed(grid, smoothing=0.2)
    return PortHamiltonian(Cosine((3.0, 1.0)), LinkedMass(1.5, 0.7, 0.6), SumDamping((*laws, ConstantDamping(0.1))))


def without_damping(system):
    return dataclasses.replace(system, damping=ConstantDamping(0.0))


SYSTEMS = {
    "pendulum": pendulum,
    "chain": chain,
    "cart-pole": cart_pole,
    "springs": springs,
    "slider": slider,
    "rubbing links": rubbing_links,
}
START = {
    "pendulum": ([1.2], [0.4]),
    "chain": ([0.9, -0.7], [0.3, 0.8]),
    "cart-pole": ([0.1, 1.0], [0.3, -0.2]),
    "springs": ([0.9, -0.7], [0.3, 0.8]),
    "slider": ([-0.9], [4.0]),
    "rubbing links": ([0.2, -0.7], [1.5, 2.0]),
}


def start(name):
    q, p = START[name]
    return jnp.array(q), jnp.array(p)


def random_state(seed, n, scale=1.5):
    return jnp.asarray(np.random.default_rng(seed).uniform(-scale, scale, (2, n)))


# --- order of accuracy -----------------------------------------------------------------------------------------------

END = 0.5


def reference(system, q, p, u=None):
    """(q, p) at END, by an eighth-order Runge-Kutta method at close to machine precision."""
    n = q.shape[0]
    field = jax.jit(lambda x: jnp.concatenate(system.vector_field(x[:n], x[n:], u)))
    solution = scipy.integrate.solve_ivp(
        lambda t, x: np.asarray(field(x)), (0.0, END), np.concatenate([q, p]), "DOP853", rtol=1e-13, atol=1e-14
    )
    return solution.y[:, -1]


def measured_order(step, q, p, expected, counts):
    """The slope of log error against log dt, where ``step(q, p, dt)`` is one step."""

    @jax.jit
    def integrate(count):
        dt = END / count
        return jnp.concatenate(jax.lax.fori_loop(0, count, lambda _, state: step(*state, dt), (q, p)))

    errors = [np.linalg.norm(integrate(count) - expected) for count in counts]
    assert min(errors) > 1e-12  # above rounding, so that the slope means something
    return np.polyfit(np.log(1.0 / np.array(counts)), np.log(errors), 1)[0]


ORDER_CASES = [
    ("pendulum", "leapfrog"),
    ("chain", "leapfrog"),
    ("pendulum", "fourth order"),
    ("chain", "fourth order"),
    ("pendulum", "implicit midpoint"),
    ("cart-pole", "implicit midpoint"),
    ("chain", "cayley-neumann"),
    ("cart-pole", "cayley-neumann"),
    ("cart-pole", "discrete gradient"),
]


@pytest.mark.parametrize("name, core_name", ORDER_CASES)
def test_cores_have_the_order_that_they_declare(name, core_name):
    core, system = CORES[core_name](), without_damping(SYSTEMS[name]())
    q, p = start(name)
    u = jnp.array([0.7] if name == "cart-pole" else [0.7, -0.4][: q.shape[0]])
    force = system.input_force(u)
    expected = reference(system, q, p, u)
    order = measured_order(lambda q, p, dt: core.step(system, q, p, force, dt), q, p, expected, (16, 32, 64))
    assert order == pytest.approx(core.order, abs=0.12)


def transition_step(core, damping, system, u=None):
    def step(q, p, dt):
        return Transition(core, damping, Timestep(Positive.starting_at(dt)))(system, q, p, u)

    return step


STRANG_CASES = {
    "pendulum, leapfrog, exact": ("pendulum", leapfrog, ExactDamping, 2),
    "pendulum, fourth order, exact": ("pendulum", fourth_order, ExactDamping, 2),
    "pendulum, leapfrog, explicit": ("pendulum", leapfrog, ExplicitDamping, 1),
    "pendulum, leapfrog, implicit": ("pendulum", leapfrog, ImplicitDamping, 1),
    "chain, leapfrog, exact": ("chain", leapfrog, ExactDamping, 2),
    "cart-pole, implicit midpoint, exact": ("cart-pole", ImplicitMidpoint, ExactDamping, 2),
    "friction, leapfrog, exact": ("slider", leapfrog, ExactDamping, 2),
    "friction, leapfrog, implicit": ("slider", leapfrog, ImplicitDamping, 1),
    "friction at joints, discrete gradient, exact": ("rubbing links", DiscreteGradient, ExactDamping, 2),
}


@pytest.mark.parametrize("name, core, damping, order", STRANG_CASES.values(), ids=STRANG_CASES.keys())
def test_strang_splitting_has_second_order_with_exact_damping_and_first_without(name, core, damping, order):
    system = SYSTEMS[name]()
    q, p = start(name)
    expected = reference(system, q, p)
    slope = measured_order(transition_step(core(), damping(), system), q, p, expected, (32, 64, 128))
    assert slope == pytest.approx(order, abs=0.12)


@pytest.mark.parametrize("name", ["pendulum", "chain", "cart-pole"])
def test_runge_kutta_has_fourth_order_with_damping_and_input(name):
    """Where the damping is smooth: pushed, the cart-pole would swing through the kink of |sin θ|."""
    system = SYSTEMS[name]()
    if name == "cart-pole":
        system = dataclasses.replace(system, damping=ConstantDamping((0.3, 0.5)))
    q, p = start(name)
    u = jnp.array([0.7] if name == "cart-pole" else [0.7, -0.4][: q.shape[0]])
    slope = measured_order(
        lambda q, p, dt: RungeKutta(Timestep(Positive.starting_at(dt)))(system, q, p, u),
        q,
        p,
        reference(system, q, p, u),
        (16, 32, 64),
    )
    assert slope == pytest.approx(4, abs=0.2)


def test_runge_kutta_takes_its_substeps():
    system, (q, p) = cart_pole(), start("cart-pole")
    half = RungeKutta(Timestep(0.1))
    np.testing.assert_allclose(
        jnp.stack(RungeKutta(Timestep(0.2, substeps=2))(system, q, p)),
        jnp.stack(half(system, *half(system, q, p))),
        rtol=1e-13,
    )


# --- geometry of the cores -------------------------------------------------------------------------------------------


GEOMETRIC_CASES = {
    "leapfrog": ("chain", leapfrog),
    "fourth order": ("chain", fourth_order),
    "implicit midpoint, M(q)": ("cart-pole", ImplicitMidpoint),
    "cayley-neumann, quadratic": ("springs", lambda: CayleyNeumann(terms=30)),
    "cayley-neumann, few terms": ("springs", lambda: CayleyNeumann(terms=2)),
    "cayley-neumann, not quadratic": ("chain", lambda: CayleyNeumann(terms=30)),
}


@functools.cache
def geometry(case):
    """For random states x, over one step: x, where it leads, where a step back leads from there, and the Jacobian."""
    name, make = GEOMETRIC_CASES[case]
    core, system = make(), SYSTEMS[name]()

    def step(x, dt):
        return jnp.concatenate(core.step(system, x[:2], x[2:], 0.3, dt))

    def evaluate(x):
        return x, step(x, 0.2), step(step(x, 0.2), -0.2), jax.jacfwd(step)(x, 0.1)

    states = jnp.stack([random_state(seed, 2).reshape(-1) for seed in range(5)])
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(evaluate))(states))


def symplectic_defect(case):
    """max |ΦᵀJΦ - J| with Φ the Jacobian of a step."""
    jacobians = geometry(case)[3]
    J = np.kron([[0.0, 1.0], [-1.0, 0.0]], np.eye(2))
    return np.abs(np.einsum("sji,jk,skl->sil", jacobians, J, jacobians) - J).max()


STRUCTURED = ["leapfrog", "fourth order", "implicit midpoint, M(q)", "cayley-neumann, quadratic"]


@pytest.mark.parametrize("case", STRUCTURED)
def test_cores_are_symplectic(case):
    assert symplectic_defect(case) < 1e-9


@pytest.mark.parametrize("case", ["cayley-neumann, few terms", "cayley-neumann, not quadratic"])
def test_cayley_neumann_is_symplectic_only_for_quadratic_energy_and_many_terms(case):
    assert symplectic_defect(case) > 1e-7


@pytest.mark.parametrize("case", STRUCTURED)
def test_cores_run_backwards_along_the_way_they_came(case):
    x, away, back, _ = geometry(case)
    assert np.linalg.norm(away - x, axis=1).min() > 1e-2
    np.testing.assert_allclose(back, x, atol=1e-9)


@pytest.mark.parametrize("make", [leapfrog, fourth_order])
def test_splitting_coefficients_are_consistent_and_palindromic(make):
    core = make()
    assert core.kicks == core.kicks[::-1]
    assert core.drifts == core.drifts[::-1]
    np.testing.assert_allclose([sum(core.kicks), sum(core.drifts)], 1.0, rtol=1e-14)


def test_fourth_order_is_three_leapfrogs():
    gamma = 1.0 / (2.0 - 2.0 ** (1.0 / 3.0))
    system, (q, p) = pendulum(), start("pendulum")
    once = fourth_order().step(system, q, p, 0.3, 0.2)
    for length in (gamma, 1.0 - 2.0 * gamma, gamma):
        q, p = leapfrog().step(system, q, p, 0.3, 0.2 * length)
    np.testing.assert_allclose(jnp.stack(once), jnp.stack([q, p]), rtol=1e-12)


def test_a_splitting_needs_one_kick_more_than_drifts():
    with pytest.raises(ValueError, match="one kick more"):
        Splitting(kicks=(0.5, 0.5), drifts=(0.5, 0.5), order=2)


# --- linear and free motion ------------------------------------------------------------------------------------------


@every_core
def test_a_constant_force_on_a_free_mass_draws_the_parabola_exactly(core):
    masses, u, dt = np.array([2.0, 0.5]), jnp.array([0.7, -1.1]), 0.4
    system = PortHamiltonian(Quadratic(0.0), ConstantMass((2.0, 0.5)), ConstantDamping(0.0))
    transition = Transition(core(), ExplicitDamping(), Timestep(dt, substeps=3))
    q0, p0 = jnp.array([0.3, -0.2]), jnp.array([1.0, 2.0])
    q, p = jax.jit(lambda q, p: transition(system, q, p, u))(q0, p0)
    np.testing.assert_allclose(q, q0 + dt * p0 / masses + 0.5 * dt**2 * u / masses, rtol=1e-12)
    np.testing.assert_allclose(p, p0 + dt * u, rtol=1e-12)


def test_the_input_enters_through_the_port_matrix():
    system = dataclasses.replace(without_damping(pendulum()), port=((2.0, -1.0),))
    by_port = Transition(leapfrog(), ExactDamping(), Timestep(0.1))
    q, p = start("pendulum")
    direct = leapfrog().step(system, q, p, jnp.array([2.0 * 0.5 - 1.0 * 0.3]), 0.1)
    np.testing.assert_allclose(jnp.stack(by_port(system, q, p, jnp.array([0.5, 0.3]))), jnp.stack(direct), rtol=1e-12)


def oscillator_matrix(core, damping, m, d, k, dt):
    """The 2 × 2 matrix of one transition of a damped spring."""
    system = PortHamiltonian(Quadratic(k), ConstantMass(m), ConstantDamping(d))
    transition = Transition(core, damping, Timestep(dt))

    def step(x):
        return jnp.concatenate(transition(system, x[:1], x[1:]))

    return np.asarray(jax.jit(jax.jacfwd(step))(jnp.array([0.3, 0.4])))


def test_steps_of_a_linear_oscillator_are_the_textbook_matrices():
    m, k, dt = 2.0, 3.0, 0.3
    a = 0.25 * dt**2 * k / m
    cayley = np.array([[1.0 - a, dt / m], [-dt * k, 1.0 - a]]) / (1.0 + a)
    verlet = np.array([[1.0 - 2.0 * a, dt / m], [-dt * k * (1.0 - a), 1.0 - 2.0 * a]])
    exact = ExactDamping()
    np.testing.assert_allclose(oscillator_matrix(leapfrog(), exact, m, 0.0, k, dt), verlet, rtol=1e-12)
    np.testing.assert_allclose(oscillator_matrix(ImplicitMidpoint(), exact, m, 0.0, k, dt), cayley, rtol=1e-9)
    np.testing.assert_allclose(oscillator_matrix(CayleyNeumann(30), exact, m, 0.0, k, dt), cayley, rtol=1e-12)
    decay = np.diag([1.0, np.exp(-0.5 * dt * 0.8 / m)])
    damped = oscillator_matrix(leapfrog(), exact, m, 0.8, k, dt)
    np.testing.assert_allclose(damped, decay @ verlet @ decay, rtol=1e-12)


@pytest.mark.parametrize("core", [leapfrog, fourth_order])
def test_an_explicit_splitting_refuses_a_mass_that_depends_on_position(core):
    transition = Transition(core(), ExactDamping(), Timestep(0.01))
    with pytest.raises(TypeError, match=r"CartPoleMass.*ImplicitMidpoint"):
        transition(cart_pole(), *start("cart-pole"))


# --- damping half-steps ----------------------------------------------------------------------------------------------


@functools.cache
def stiff_system(kind):
    manifold, mass = {
        "low-rank mass": (FOUR, LowRankMass.create(4, terms=2, key=jax.random.key(1))),
        "M(q)": (PAIR, CartPoleMass()),
    }[kind]
    damping = HouseholderDamping.create(manifold, base=0.0, rank=3, width=4, harmonics=1, key=jax.random.key(2))
    return PortHamiltonian(Quadratic(0.0), mass, damping)


@eqx.filter_jit
def _kinetic_energies(half_step, system, noise, stiffness, q, p, h):
    """Before and after a half-step with noise on all parameters and D made ``stiffness`` times as strong."""
    trainable, rest = eqx.partition(system, eqx.is_inexact_array)
    flat, unflatten = ravel_pytree(trainable)
    system = eqx.combine(unflatten(flat + noise[: flat.size]), rest)
    raise_strengths = lambda b: b + stiffness  # noqa: E731
    system = eqx.tree_at(lambda s: s.damping.strength_network.biases[-1], system, replace_fn=raise_strengths)
    return system.energy(q, p), system.energy(q, half_step.step(system, q, p, h))


@pytest.mark.parametrize("kind", ["low-rank mass", "M(q)"])
@pytest.mark.parametrize("half_step", [ImplicitDamping, ExactDamping])
@given(st.integers(0, 2**31 - 1), st.floats(-3.0, 3.0), st.sampled_from([0.0, 10.0, 1e3]))
@example(seed=0, log_h=3.0, stiffness=1e3)
def test_implicit_and_exact_damping_never_raise_the_energy(half_step, kind, seed, log_h, stiffness):
    rng = np.random.default_rng(seed)
    n = 4 if kind == "low-rank mass" else 2
    q, p = (jnp.asarray(rng.normal(size=n) * 2.0) for _ in range(2))
    noise, h = jnp.asarray(rng.normal(size=400)), jnp.asarray(10.0**log_h)
    before, after = _kinetic_energies(half_step(), stiff_system(kind), noise, stiffness, q, p, h)
    assert 0.0 <= after <= before * (1.0 + 1e-9)


@given(st.integers(0, 2**31 - 1), st.floats(-3.0, 1.0))
def test_explicit_damping_changes_the_energy_by_the_formula_of_appendix_a2(seed, log_h):
    rng = np.random.default_rng(seed)
    q, p = (jnp.asarray(rng.normal(size=4)) for _ in range(2))
    h = 10.0**log_h
    system = stiff_system("low-rank mass")
    D, M = np.asarray(system.damping.operator(q, p).dense()), np.asarray(system.mass.operator(q).dense())
    v = np.linalg.solve(M, p)
    before, after = _kinetic_energies(ExplicitDamping(), system, jnp.zeros(400), 0.0, q, p, jnp.asarray(h))
    expected = -h * v @ D @ v + 0.5 * h**2 * v @ D @ np.linalg.solve(M, D @ v)
    np.testing.assert_allclose(after - before, expected, rtol=1e-7, atol=1e-9 * (1.0 + float(after)))
    if h * np.linalg.eigvalsh(D).max() / np.linalg.eigvalsh(M).min() <= 2.0:
        assert after <= before * (1.0 + 1e-9)


def test_explicit_damping_raises_the_energy_where_it_is_stiff_and_the_others_do_not():
    system = PortHamiltonian(Quadratic(0.0), ConstantMass(1.0), ConstantDamping(1e3))
    q, p = jnp.zeros(1), jnp.ones(1)
    energy = {name: system.energy(q, make().step(system, q, p, 0.01)) for name, make in DAMPING_STEPS.items()}
    assert energy["explicit"] > 10.0 * system.energy(q, p)
    assert energy["implicit"] < 0.01 * system.energy(q, p)
    assert energy["exact"] < energy["implicit"]


@pytest.mark.parametrize("name", ["chain", "cart-pole"])
def test_damping_half_steps_equal_their_formulas(name):
    system, (q, p), h = SYSTEMS[name](), start(name), 0.7
    M = np.asarray(system.mass.operator(q).dense())
    D = np.asarray(system.damping.operator(q, p).dense())
    rate = D @ np.linalg.inv(M)
    expected = {
        "explicit": p - h * rate @ p,
        "implicit": M @ np.linalg.solve(M + h * D, p),
        "exact": scipy.linalg.expm(-h * rate) @ p,
    }
    for step_name, make in DAMPING_STEPS.items():
        found = jax.jit(functools.partial(make().step, system))(q, p, h)
        np.testing.assert_allclose(found, expected[step_name], rtol=1e-9, err_msg=step_name)


def test_exact_damping_of_diagonal_operators_is_elementwise():
    system = PortHamiltonian(Quadratic(1.0), ConstantMass((1.0, 2.0)), ConstantDamping((0.5, 3.0)))
    p = jnp.array([0.3, -0.8])
    expected = p * np.exp(-0.7 * np.array([0.5 / 1.0, 3.0 / 2.0]))
    np.testing.assert_allclose(ExactDamping().step(system, jnp.zeros(2), p, 0.7), expected, rtol=1e-12)


def test_exact_damping_of_one_coordinate_is_a_decay():
    manifold = Manifold.parse("theta:angle")
    damping = HouseholderDamping.create(manifold, base=0.2, rank=2, width=4, key=jax.random.key(0))
    system = PortHamiltonian(Cosine(1.0), ConstantMass(2.0), damping)
    q, p = start("pendulum")
    total = 0.2 + np.sum(damping.strengths(q))
    np.testing.assert_allclose(ExactDamping().step(system, q, p, 0.7), p * np.exp(-0.7 * total / 2.0), rtol=1e-9)


# --- friction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["slider", "rubbing links"])
def test_the_exact_half_step_is_of_second_order_where_damping_depends_on_velocity(name):
    """p' = -D(q, v) v alone, q held still."""
    system, (q, p) = SYSTEMS[name](), start(name)
    field = jax.jit(lambda p: -system.dissipation(q, system.velocity(q, p)))
    solution = scipy.integrate.solve_ivp(
        lambda t, p: np.asarray(field(p)), (0.0, END), p, "DOP853", rtol=1e-13, atol=1e-14
    )
    expected = np.concatenate([q, solution.y[:, -1]])
    step = lambda q, p, h: (q, ExactDamping().step(system, q, p, h))  # noqa: E731
    assert measured_order(step, q, p, expected, (16, 32, 64)) == pytest.approx(2, abs=0.12)


@functools.cache
def _rough_step(half_step, smoothing):
    """Energies before and after a half-step of two links with any friction in their joints and any M(q)."""

    @jax.jit
    def energies(key, coefficients, h):
        keys = jax.random.split(key, 3)
        friction = Friction(*map(Positive.starting_at, coefficients), smoothing, JOINTS)
        mass = CholeskyMass.create(ANGLES, width=4, harmonics=1, key=keys[0])
        system = PortHamiltonian(Quadratic(0.0), mass, friction)
        q, p = jax.random.normal(keys[1], (2,)), 3.0 * jax.random.normal(keys[2], (2,))
        return system.energy(q, p), system.energy(q, half_step().step(system, q, p, h))

    return energies


coefficients_of_friction = st.lists(st.floats(-6.0, 6.0), min_size=6, max_size=6).map(
    lambda logs: jnp.asarray(10.0 ** np.reshape(logs, (3, 2)))
)


@pytest.mark.parametrize("half_step", [ImplicitDamping, ExactDamping])
@given(st.integers(0, 2**31 - 1), coefficients_of_friction, st.floats(-3.0, 3.0), st.sampled_from([1e-9, 0.05]))
def test_no_friction_is_too_stiff_for_a_half_step(half_step, seed, coefficients, log_h, smoothing):
    energies = _rough_step(half_step, smoothing)(jax.random.key(seed), coefficients, jnp.asarray(10.0**log_h))
    before, after = map(float, energies)
    assert 0.0 <= after <= before * (1.0 + 1e-9)


@functools.cache
def _slide(dt, steps, slope):
    """Positions and velocities of a mass on a slope with Coulomb friction that is smoothed by next to nothing."""

    @jax.jit
    def slide(mass, coulomb, speed):
        friction = Friction(0.0, Positive.starting_at(coulomb), smoothing=1e-6)
        system = PortHamiltonian(Quadratic(0.0), ConstantMass(Positive.starting_at(mass)), friction)
        transition = Transition(leapfrog(), ExactDamping(), Timestep(dt))

        def body(state, _):
            state = transition(system, *state, slope * coulomb[None])
            return state, (state[0][0], state[1][0] / mass)

        return jax.lax.scan(body, (jnp.zeros(1), mass * speed[None]), length=steps)[1]

    return slide


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(0.3, 2.0), st.sampled_from([0.1, 0.01]))
def test_what_slides_stops_where_and_when_coulomb_says_and_stays(mass, deceleration, lasting, dt):
    speed = deceleration * lasting
    q, v = _slide(dt, int(3.0 / dt), 0.0)(*map(jnp.asarray, (mass, mass * deceleration, speed)))
    moving = dt * np.sum(np.abs(v) > 1e-3 * speed)
    assert abs(moving - lasting) <= 3.0 * dt
    assert abs(q[-1] - 0.5 * speed * lasting) <= deceleration * dt**2
    after = np.arange(1, len(v) + 1) * dt > lasting + 4.0 * dt
    assert after.sum() > 10 and np.abs(v[after]).max() < 1e-9 and np.ptp(q[after]) < 1e-9
    assert np.min(v) >= 0.0


@pytest.mark.parametrize("dt", [0.1, 0.01])
def test_a_mass_on_a_slope_that_friction_holds_creeps_by_no_more_than_the_step_makes_it(dt):
    """Kicks and friction take turns, so v is of the size of one kick: it does not run away, and vanishes with dt."""
    _, v = _slide(dt, 400, 0.8)(*map(jnp.asarray, (2.0, 6.0, 1.0)))
    assert np.abs(v[200:]).max() < 3.0 * dt


def test_friction_between_two_links_keeps_their_momentum_and_locks_them():
    """Of D = c j jᵀ with j = (-1, 1), what one link loses the other gains; stiff, both end up turning as one."""
    mass = LinkedMass(1.5, 0.7, 0.6)
    system = PortHamiltonian(Quadratic(0.0), mass, Friction(0.0, 1e3, 0.0, 1e-6, joints=((-1.0, 1.0),)))
    q, p = jnp.array([0.3, 1.0]), jnp.array([1.5, -0.7])
    after = ExactDamping().step(system, q, p, 0.1)
    np.testing.assert_allclose(jnp.sum(after), jnp.sum(p), rtol=1e-6)
    v = system.velocity(q, after)
    np.testing.assert_allclose(v, jnp.sum(p) / jnp.sum(mass.operator(q).dense()), rtol=1e-6)


@pytest.mark.parametrize("speed", [0.0, 1e-8, 1.0])
@pytest.mark.parametrize("joints", [None, JOINTS], ids=["coordinates", "joints"])
def test_stiff_friction_has_finite_gradients_in_single_precision(joints, speed):
    with jax.enable_x64(False):
        friction = Friction(
            Positive.starting_at(0.1), Positive.starting_at(1e3), Positive.starting_at(1e3), 1e-6, joints
        )
        system = PortHamiltonian(Quadratic(0.0), ConstantMass((1.0, 2.0)), friction)
        p = speed * jnp.array([1.0, -0.3])
        loss = eqx.filter_grad(lambda args: jnp.sum(ExactDamping().step(args[0], p, args[1], 0.1)))
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(loss((system, p))))


# --- timesteps and substeps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("substeps", [1, 4])
def test_substeps_equal_as_many_shorter_transitions(substeps):
    system, (q, p), u = pendulum(), start("pendulum"), jnp.array([0.3])
    once = Transition(leapfrog(), ExactDamping(), Timestep(0.2, substeps))(system, q, p, u)
    for _ in range(substeps):
        q, p = Transition(leapfrog(), ExactDamping(), Timestep(0.2 / substeps))(system, q, p, u)
    np.testing.assert_allclose(jnp.stack(once), jnp.stack([q, p]), rtol=1e-12)


def test_a_duration_per_substep_equals_their_composition_in_order():
    system, (q, p), durations = pendulum(), start("pendulum"), [0.05, 0.2, 0.1]
    timestep = Timestep(Positive.starting_at(jnp.array(durations)), 3)
    once = Transition(leapfrog(), ExactDamping(), timestep)(system, q, p)
    for duration in durations:
        q, p = Transition(leapfrog(), ExactDamping(), Timestep(duration))(system, q, p)
    np.testing.assert_allclose(jnp.stack(once), jnp.stack([q, p]), rtol=1e-10)


def test_durations_must_be_as_many_as_the_substeps():
    with pytest.raises(ValueError, match="substeps"):
        Timestep(Positive.starting_at(jnp.array([0.1, 0.1])), substeps=3)


@pytest.mark.parametrize("length, count", [(None, 0), ((), 1), ((3,), 3)], ids=["given", "shared", "each"])
def test_a_timestep_trains_none_one_or_one_number_per_substep(length, count, trainable_count):
    duration = 0.3 if length is None else Positive.starting_at(jnp.full(length, 0.3 if length == () else 0.1))
    transition = Transition(leapfrog(), ExactDamping(), Timestep(duration, 3))
    assert trainable_count(transition) == count
    np.testing.assert_allclose(sum(transition.timestep.pieces()), 0.3, rtol=1e-12)


# --- gradients -------------------------------------------------------------------------------------------------------


def learned_pendulum():
    return PortHamiltonian(
        Cosine(Positive.starting_at(4.0)),
        ConstantMass(Positive.starting_at(1.5)),
        WindyDamping(Positive.starting_at(0.3), Positive.starting_at(0.5), (0,)),
    )


def learned_cart_pole():
    return PortHamiltonian(
        Cosine(Positive.starting_at(jnp.array([0.5, 9.81]))),
        CartPoleMass(*[Positive.starting_at(x) for x in (1.0, 0.5, 0.8)]),
        WindyDamping(Positive.starting_at(jnp.array([0.3, 0.2])), Positive.starting_at(0.5), (1, 1)),
    )


def learned_links():
    """Everything about two links with friction in their joints."""
    grid = Grid(ANGLES, (6,), (0.0,), (1.0,), axes=(1,))
    field = FrictionField.uninformed(grid, (-1.0, 1.0), smoothing=0.3, units=(0.1, 0.3, 0.1))
    friction = Friction(*(Positive.starting_at(jnp.array(x), 0.1) for x in ([0.1, 0.2], [0.5, 0.3])), joints=JOINTS)
    return PortHamiltonian(
        Cosine(Positive.starting_at(jnp.array([3.0, 1.0])), Real.starting_at((0.1, -0.2))),
        LinkedMass(
            Positive.starting_at(1.5), Positive.starting_at(0.7), Bounded.starting_at(0.6), Real.starting_at(0.1)
        ),
        SumDamping((friction, field)),
    )


GRADIENT_CASES = {  # the last entry is the shape of the duration: shared, or one per substep
    "leapfrog, explicit": (leapfrog, ExplicitDamping, learned_pendulum, (2,)),
    "leapfrog, exact": (leapfrog, ExactDamping, learned_pendulum, ()),
    "leapfrog, low rank, implicit": (leapfrog, ImplicitDamping, chain, ()),
    "fourth order, implicit": (fourth_order, ImplicitDamping, learned_pendulum, ()),
    "cayley-neumann, exact": (CayleyNeumann, ExactDamping, learned_pendulum, ()),
    "implicit midpoint, exact": (ImplicitMidpoint, ExactDamping, learned_pendulum, ()),
    "implicit midpoint, M(q), implicit": (ImplicitMidpoint, ImplicitDamping, learned_cart_pole, ()),
    "implicit midpoint, M(q), friction, exact": (ImplicitMidpoint, ExactDamping, learned_links, ()),
}


@pytest.mark.parametrize("core, damping, make, shape", GRADIENT_CASES.values(), ids=GRADIENT_CASES.keys())
def test_gradients_through_a_rollout_match_finite_differences(core, damping, make, shape):
    """With respect to everything: each duration, each parameter, the initial state and the input."""
    timestep = Timestep(Positive.starting_at(jnp.full(shape, 0.2)), substeps=max(1, sum(shape)))
    q, p = start("pendulum" if make is learned_pendulum else "chain")
    everything = (Transition(core(), damping(), timestep), make(), q, p, jnp.array([0.3, -0.2])[: q.shape[0]])
    trainable, rest = eqx.partition(everything, eqx.is_inexact_array)
    flat, unflatten = ravel_pytree(trainable)

    @jax.jit
    @jax.value_and_grad
    def loss(x):
        transition, system, q, p, u = eqx.combine(unflatten(x), rest)
        (q, p), _ = jax.lax.scan(lambda state, _: (transition(system, *state, u), None), (q, p), length=3)
        return jnp.sum(jnp.sin(q) + 0.5 * p**2)

    gradient, h = np.asarray(loss(flat)[1]), 1e-5
    durations = np.arange(flat.size) < max(1, sum(shape))  # they come first
    for direction in (*np.random.default_rng(0).normal(size=(6, flat.size)), 1.0 * durations):
        difference = (loss(flat + h * direction)[0] - loss(flat - h * direction)[0]) / (2.0 * h)
        assert abs(difference) > 1e-4
        np.testing.assert_allclose(gradient @ direction, difference, rtol=2e-6, atol=1e-8)


def test_the_matrix_exponential_of_exact_damping_is_differentiated():
    system, (q, p) = chain(), start("chain")
    half_step = jax.jit(lambda p, h: ExactDamping().step(system, q, p, h))
    _, change = jax.jvp(half_step, (p, 0.3), (jnp.ones(2), 1.0))
    difference = (half_step(p + 1e-6, 0.3 + 1e-6) - half_step(p - 1e-6, 0.3 - 1e-6)) / 2e-6
    np.testing.assert_allclose(change, difference, rtol=1e-7)


@pytest.mark.parametrize("double, tolerance", [(False, 2e-6), (True, 1e-12)])
def test_implicit_midpoint_solves_its_equation_in_either_precision(double, tolerance):
    with jax.enable_x64(double):
        system, (q, p), dt = cart_pole(), start("cart-pole"), 0.1
        next_q, next_p = jax.jit(lambda q, p: ImplicitMidpoint().step(system, q, p, 0.0, dt))(q, p)
        dh_dq, v = jax.jit(system.gradient)(0.5 * (q + next_q), 0.5 * (p + next_p))
        np.testing.assert_allclose(next_q - q, dt * v, atol=tolerance)
        np.testing.assert_allclose(next_p - p, -dt * dh_dq, atol=tolerance)


# --- energy that cannot rise -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def passive_rollout():
    """Energies along 40 steps of random networks with M(q), D up to ``stiff`` and steps of length ``dt``."""
    manifold = Manifold.parse("x", "theta:angle")

    @jax.jit
    def energies(key, stiff, dt):
        keys = jax.random.split(key, 5)
        system = PortHamiltonian(
            Scaled(PeriodicMLPPotential.create(manifold, width=8, key=keys[0]), Positive(stiff)),
            CholeskyMass.create(manifold, width=8, key=keys[1]),
            HouseholderDamping.create(manifold, base=Positive(stiff), width=8, key=keys[2]),
        )

        def body(state, _):
            p = ExactDamping().step(system, *state, 0.5 * dt)
            q, p = DiscreteGradient().step(system, state[0], p, 0.0, dt)
            p = ExactDamping().step(system, q, p, 0.5 * dt)
            return (q, p), system.energy(q, p)

        start = jax.random.normal(keys[3], (2,)), 3.0 * jax.random.normal(keys[4], (2,))
        rolled = jax.lax.scan(body, start, length=40)[1]
        return jnp.concatenate([system.energy(*start)[None], rolled])

    return energies


@functools.cache
def _rough_rollout(smoothing):
    """The same with friction in the joints of two links, of any strength and varying around the circle."""

    @jax.jit
    def energies(key, coefficients, dt):
        keys = jax.random.split(key, 4)
        grid = Grid(ANGLES, (5,), (0.0,), (1.0,), axes=(0,))
        field = FrictionField(3.0 * jax.random.normal(keys[0], (5, 3)), grid, smoothing=smoothing)
        friction = Friction(*map(Positive.starting_at, coefficients), smoothing, JOINTS)
        mass = LinkedMass(*map(Positive, jax.random.normal(keys[1], (2,))), Bounded(2.0 * coefficients[0, 0]))
        system = PortHamiltonian(Cosine((3.0, 1.0)), mass, SumDamping((friction, field)))
        transition = Transition(DiscreteGradient(), ExactDamping(), Timestep(Positive.starting_at(dt)))

        def body(state, _):
            state = transition(system, *state)
            return state, system.energy(*state)

        start = jax.random.normal(keys[2], (2,)), 3.0 * jax.random.normal(keys[3], (2,))
        return jnp.concatenate([system.energy(*start)[None], jax.lax.scan(body, start, length=40)[1]])

    return energies


@given(
    st.integers(0, 10_000), coefficients_of_friction, st.sampled_from([0.01, 0.3, 5.0]), st.sampled_from([1e-6, 0.05])
)
def test_discrete_energy_never_rises_with_friction(seed, coefficients, dt, smoothing):
    energy = np.asarray(_rough_rollout(smoothing)(jax.random.key(seed), coefficients, jnp.asarray(dt)))
    assert np.isfinite(energy).all()
    assert np.max(np.diff(energy)) < 1e-9 * (np.max(np.abs(energy)) + 1.0)


@given(
    seed=st.integers(0, 10_000), stiff=st.sampled_from([-3.0, 1.0, 30.0, 1000.0]), dt=st.sampled_from([0.01, 0.3, 5.0])
)
def test_discrete_energy_never_rises(passive_rollout, seed, stiff, dt):
    with jax.enable_x64(True):
        energy = np.asarray(passive_rollout(jax.random.key(seed), jnp.asarray(stiff), jnp.asarray(dt)))
    assert np.isfinite(energy).all()
    scale = np.max(np.abs(energy)) + 1.0
    assert np.max(np.diff(energy)) < 1e-9 * scale


# --- close to rest ---------------------------------------------------------------------------------------------------

_SMALL = 10.0 ** -np.arange(1.0, 7.0)  # amplitudes


@pytest.mark.parametrize("precise", [False, True], ids=["float32", "float64"])
def test_small_swings_are_linear_at_every_amplitude(precise):
    """Against the exponential of the linearised field: the same bound from 1e-1 to 1e-6."""
    with jax.enable_x64(precise):

        @jax.jit
        @jax.vmap
        def swing(amplitude):
            transition = Transition(DiscreteGradient(), ExactDamping(), Timestep(0.01))
            system = PortHamiltonian(Cosine(4.0), ConstantMass(1.5), ConstantDamping(0.3))
            start = amplitude * jnp.ones(1), jnp.zeros(1)
            return jax.lax.scan(lambda x, _: (transition(system, *x), x[0]), start, length=400)[1] / amplitude

        found = np.asarray(swing(jnp.asarray(_SMALL)))
    linear = [scipy.linalg.expm(0.01 * i * np.array([[0.0, 1.0], [-4.0 / 1.5, -0.3 / 1.5]]))[:1, 0] for i in range(400)]
    assert np.abs(found - linear).max() < 5e-3


def test_a_small_swing_keeps_its_own_energy_in_single_precision():
    with jax.enable_x64(False):

        @jax.jit
        @jax.vmap
        def end(amplitude):
            system = without_damping(pendulum())
            core, start = DiscreteGradient(), (amplitude * jnp.ones(1), jnp.zeros(1))
            return jax.lax.fori_loop(0, 400, lambda _, x: core.step(system, *x, 0.0, jnp.float32(0.02)), start)

        q, p = (np.asarray(x, dtype=float)[:, 0] for x in end(jnp.asarray(_SMALL)))
    energy = p**2 / 3.0 + 8.0 * np.sin(0.5 * q) ** 2
    np.testing.assert_allclose(energy, 8.0 * np.sin(0.5 * _SMALL) ** 2, rtol=1e-3)
