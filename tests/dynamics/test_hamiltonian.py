"""The port-Hamiltonian structure: energy goes where Theorem 1 says, for every combination of components."""

import dataclasses
import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phast.components.damping import (
    ConstantDamping,
    Friction,
    HouseholderDamping,
    ProportionalDamping,
    SplineDamping,
    WindyDamping,
)
from phast.components.mass import (
    ArmMass,
    CartPoleMass,
    CholeskyMass,
    ConstantMass,
    DoublePendulumMass,
    LowRankMass,
    NeuralMass,
)
from phast.components.parameter import Positive
from phast.components.potential import (
    ArmGravity,
    Cosine,
    Logarithmic,
    PeriodicMLPPotential,
    Prey,
    Quadratic,
    QuadraticForm,
    SplinePotential,
)
from phast.components.spline import Grid
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import ConsumerResource, PortHamiltonian
from phast.dynamics.systems import LotkaVolterra

pytestmark = pytest.mark.usefixtures("float64")

PREY = Manifold.parse("prey")
PAIR = Manifold.parse("x", "theta:angle")
LINKS = {"lengths": (1.0, 0.8, 0.6), "centres": (0.5, 0.3, 0.3)}
SAMPLES = 16


def householder(manifold, key=3):
    return HouseholderDamping.create(manifold, base=0.05, width=8, key=jax.random.key(key))


# Each entry: degrees of freedom, inputs, and the system.
SYSTEMS = {
    "pendulum": (1, 1, lambda: PortHamiltonian(Cosine(9.81), ConstantMass(2.0), WindyDamping(0.1, 0.5, (0,)))),
    "springs, low-rank mass": (
        2,
        1,
        lambda: PortHamiltonian(
            QuadraticForm(((2.0, 0.0), (-1.0, 1.5))),
            LowRankMass.create(2, key=jax.random.key(1)),
            householder(PAIR),
            jnp.array([[0.7], [-1.3]]),
        ),
    ),
    "cart-pole": (
        2,
        1,
        lambda: PortHamiltonian(Cosine((0.0, 9.81)), CartPoleMass(), WindyDamping(0.1, 0.2, (1, 1)), ((1.0,), (0.0,))),
    ),
    "double pendulum": (
        2,
        2,
        lambda: PortHamiltonian(Cosine((19.62, 9.81)), DoublePendulumMass(), ConstantDamping((0.1, 0.3))),
    ),
    "arm": (
        3,
        2,
        lambda: PortHamiltonian(
            ArmGravity((1.0, 2.0, 0.5), **LINKS),
            ArmMass((1.0, 2.0, 0.5), inertias=(0.1, 0.2, 0.05), **LINKS),
            Friction(0.1, 0.5, 0.2),
            ((1.0, 0.0), (0.0, 0.0), (0.3, 2.0)),
        ),
    ),
    "neural mass": (
        2,
        2,
        lambda: PortHamiltonian(
            PeriodicMLPPotential.create(PAIR, width=8, key=jax.random.key(1)),
            NeuralMass.create(PAIR, width=8, key=jax.random.key(2)),
            householder(PAIR),
        ),
    ),
    "cholesky mass": (
        2,
        2,
        lambda: PortHamiltonian(
            Quadratic(1.0), CholeskyMass.create(PAIR, width=8, key=jax.random.key(2)), householder(PAIR)
        ),
    ),
}
every_system = pytest.mark.parametrize("name", SYSTEMS)


@functools.cache
def evaluated(name):
    """Everything the tests look at, for random states and inputs of one system."""
    n, inputs, make = SYSTEMS[name]
    system, h = make(), 1e-6
    G = np.eye(n) if system.port is None else np.asarray(system.port)

    def difference(function, x):
        return jax.vmap(lambda e: (function(x + h * e) - function(x - h * e)) / (2.0 * h))(jnp.eye(n))

    def evaluate(q, p, u):
        dq, dp = system.vector_field(q, p, u)
        dh_dq, v = jax.grad(system.energy, argnums=(0, 1))(q, p)
        return {
            "forced": system.power_balance(q, p, u),
            "free": system.power_balance(q, p),
            "rate": jax.jvp(system.energy, (q, p), (dq, dp))[1],
            "field": jnp.stack([dq, dp]),
            "assembled field": jnp.stack([v, -dh_dq - system.damping.operator(q, v).dense() @ v + G @ u]),
            "gradient": jnp.stack(system.gradient(q, p)),
            "difference quotient": jnp.stack(
                [difference(lambda x: system.energy(x, p), q), difference(lambda x: system.energy(q, x), p)]
            ),
            "output": system.port_output(q, p),
            "expected output": G.T @ v,
            "velocity": v,
            "p": p,
            "returned p": system.momentum(q, system.velocity(q, p)),
            "kinetic": system.energy(q, p) - system.potential(q),
        }

    rng = np.random.default_rng(0)
    q, p, u = (jnp.asarray(rng.uniform(-2.5, 2.5, (SAMPLES, size))) for size in (n, n, inputs))
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(evaluate))(q, p, u))


@every_system
def test_energy_changes_by_what_the_port_supplies_and_the_damping_takes(name):
    found = evaluated(name)
    forced, free = found["forced"], found["free"]
    np.testing.assert_allclose(forced.rate, forced.supplied - forced.dissipated, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(forced.rate, found["rate"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(free.rate, -free.dissipated, rtol=1e-9, atol=1e-9)
    assert forced.dissipated.min() > 0.0
    assert np.abs(forced.supplied).min() > 0.0
    assert np.all(free.supplied == 0.0)


@every_system
def test_the_gradient_of_the_energy_matches_finite_differences(name):
    found = evaluated(name)
    np.testing.assert_allclose(found["gradient"], found["difference quotient"], rtol=1e-6, atol=1e-7)


@every_system
def test_the_vector_field_is_j_minus_r_times_the_gradient_plus_the_port(name):
    found = evaluated(name)
    np.testing.assert_allclose(found["field"], found["assembled field"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["output"], found["expected output"], rtol=1e-9, atol=1e-10)
    assert found["output"].shape == (SAMPLES, SYSTEMS[name][1])


@every_system
def test_momentum_and_velocity_are_inverse_and_kinetic_energy_is_half_their_product(name):
    found = evaluated(name)
    np.testing.assert_allclose(found["returned p"], found["p"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["kinetic"], 0.5 * np.sum(found["p"] * found["velocity"], axis=1), rtol=1e-8)
    assert np.all(found["kinetic"] > 0.0)


def test_a_system_is_separable_exactly_if_its_mass_is_constant():
    assert {name for name, (_, _, make) in SYSTEMS.items() if make().separable} == {
        "pendulum",
        "springs, low-rank mass",
    }


# --- spectrum --------------------------------------------------------------------------------------------------------

# At the origin these have a minimum of V.
STABLE = {
    "pendulum": SYSTEMS["pendulum"][2],
    "springs, low-rank mass": SYSTEMS["springs, low-rank mass"][2],
    "cart-pole on a spring": lambda: dataclasses.replace(SYSTEMS["cart-pole"][2](), potential=Quadratic((3.0, 9.81))),
    "double pendulum": SYSTEMS["double pendulum"][2],
    "cholesky mass": SYSTEMS["cholesky mass"][2],
}


@pytest.mark.parametrize("make", STABLE.values(), ids=STABLE.keys())
def test_at_a_minimum_modes_decay_with_damping_and_only_turn_without(make):
    system = make()
    n = 1 if isinstance(system.damping, WindyDamping) and len(system.damping.angles) == 1 else 2
    undamped = dataclasses.replace(system, damping=ConstantDamping(0.0))
    damped, conservative = map(np.asarray, jax.jit(lambda q: (system.spectrum(q), undamped.spectrum(q)))(jnp.zeros(n)))
    assert damped.shape == conservative.shape == (2 * n,)
    assert damped.real.max() < -1e-4
    assert np.abs(conservative.real).max() < 1e-10
    assert np.abs(conservative.imag).min() > 0.1


def test_a_pendulum_on_its_head_has_an_unstable_mode():
    system = PortHamiltonian(Cosine(9.0), ConstantMass(1.0), ConstantDamping(0.0))
    growth = np.sort(np.asarray(system.spectrum(jnp.array([np.pi]))).real)
    np.testing.assert_allclose(growth, [-3.0, 3.0], rtol=1e-9)


@eqx.filter_jit
def _spring_spectrum(m, d, k):
    positive = Positive.starting_at
    system = PortHamiltonian(Quadratic(positive(k)), ConstantMass(positive(m)), ConstantDamping(positive(d)))
    return system.spectrum(jnp.zeros(1))


@given(st.floats(0.1, 10.0), st.floats(0.01, 10.0), st.floats(0.1, 10.0))
def test_the_spectrum_of_a_spring_mass_damper_is_minus_sigma_plus_minus_i_omega(m, d, k):
    sigma, squared = d / (2.0 * m), k / m - (d / (2.0 * m)) ** 2
    assume(abs(squared) > 1e-3)  # a double eigenvalue is ill-conditioned
    expected = -sigma + np.array([-1.0, 1.0]) * np.emath.sqrt(-squared)
    found = np.asarray(_spring_spectrum(*map(jnp.asarray, (m, d, k))))
    order = lambda values: np.array(sorted(values, key=lambda x: (round(x.imag, 9), x.real)))  # noqa: E731
    np.testing.assert_allclose(order(found), order(expected), rtol=1e-8, atol=1e-9)


# --- what is consumed ------------------------------------------------------------------------------------------------


def consumed():
    """Lotka and Volterra's equations with a carrying capacity and mortality, the consumer counted in what it takes."""
    truth, decay = LotkaVolterra(), LotkaVolterra().decay + LotkaVolterra().mortality
    crowding = truth.growth / truth.capacity
    growth = truth.growth - truth.mortality - crowding * decay / truth.conversion
    damping = ProportionalDamping(ConstantDamping(crowding / truth.conversion))
    return ConsumerResource(Prey(truth.conversion, decay, floor=1e-6), damping, growth)


def populations(seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.uniform(0.1, 50.0, (SAMPLES, 1))), jnp.asarray(rng.uniform(0.05, 4.0, (SAMPLES, 1)))


def test_a_consumer_and_its_resource_are_lotka_and_volterra():
    truth, (q, p) = LotkaVolterra(), populations()
    dq, dp = jax.vmap(truth.vector_field)(q, p / truth.predation)
    found_q, found_p = jax.vmap(consumed().vector_field)(q, p)
    np.testing.assert_allclose(found_q, dq, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found_p, dp * truth.predation, rtol=1e-12, atol=1e-12)


CONSUMED = {
    "lotka and volterra": consumed,
    "free": lambda: ConsumerResource(
        Logarithmic(SplinePotential(jax.random.normal(jax.random.key(0), (9,)), Grid(PREY, (9,), (-3.0,), (4.0,)))),
        ProportionalDamping(
            SplineDamping(jax.random.normal(jax.random.key(1), (9, 1)), Grid(PREY, (9,), (-3.0,), (4.0,)))
        ),
        Positive.uninformed(),
    ),
}


@pytest.mark.parametrize("name", CONSUMED)
def test_the_energy_of_consumer_and_resource_falls_by_the_damping_alone(name):
    system = CONSUMED[name]()

    def rate(q, p):
        return jax.jvp(system.energy, (q, p), system.vector_field(q, p))[1]

    q, p = populations(1)
    rates = jax.vmap(rate)(q, p)
    np.testing.assert_allclose(rates, -jax.vmap(system.losses)(q, p), rtol=1e-9, atol=1e-9)
    assert (rates <= 1e-9).all() and (rates < -1e-6).any()


@pytest.mark.parametrize("name", CONSUMED)
def test_the_velocity_of_a_resource_tells_its_consumer(name):
    system, (q, p) = CONSUMED[name](), populations(2)
    velocity = jax.vmap(system.velocity)(q, p)
    np.testing.assert_allclose(velocity, jax.vmap(system.vector_field)(q, p)[0])
    np.testing.assert_allclose(jax.vmap(system.momentum)(q, velocity), p, rtol=1e-9)
    slopes = jax.vmap(jax.jacfwd(system.velocity, argnums=1))(q, p)
    np.testing.assert_allclose(jax.vmap(system.mobility)(q), np.abs(slopes[:, 0]), rtol=1e-12)


def test_a_consumer_is_expected_to_be_what_it_is_on_average():
    """Along a closed orbit (no damping) the mean of p is g, however large the orbit: what `rest` says."""
    system = ConsumerResource(Prey(0.1, 0.4, floor=1e-6), ConstantDamping(0.0), 0.8)
    term = diffrax.ODETerm(lambda t, x, _: system.vector_field(*x))
    start = (jnp.array([20.0]), jnp.array([1.2]))
    grid = jnp.linspace(0.0, 60.0, 6001)
    q, p = diffrax.diffeqsolve(
        term,
        diffrax.Dopri8(),
        0.0,
        60.0,
        0.01,
        start,
        saveat=diffrax.SaveAt(ts=grid),
        stepsize_controller=diffrax.PIDController(1e-10, 1e-10),
        max_steps=100_000,
    ).ys
    crossings = np.flatnonzero((np.asarray(q[:-1, 0]) < 20.0) & (np.asarray(q[1:, 0]) >= 20.0)) + 1
    orbits = np.asarray(p[crossings[0] : crossings[-1], 0])
    assert len(crossings) >= 3 and np.ptp(orbits) > 0.5
    np.testing.assert_allclose(orbits.mean(), system.rest(start[0])[0], rtol=2e-3)


def test_a_consumer_has_no_port():
    with pytest.raises(TypeError, match="no input port"):
        consumed().vector_field(jnp.ones(1), jnp.ones(1), jnp.ones(1))
