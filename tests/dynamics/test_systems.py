"""Every simulator against laws and against equations of motion written by hand, without the component classes."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import simpson, solve_ivp

import phast.dynamics.simulation
from phast.components.damping import ConstantDamping
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import SYSTEMS, black_box, robot_arm, system

BENCHMARKS = [
    "pendulum-conservative",
    "pendulum-damped",
    "pendulum-windy",
    "cartpole-windy",
    "oscillator-conservative",
    "oscillator-damped",
    "double-pendulum-conservative",
    "double-pendulum-damped",
    "rlc",
    "lennard-jones-3",
    "heat-exchange",
    "n-body-3",
    "predator-prey",
]
OTHERS = [
    "cartpole-windy-rail",
    "double-pendulum-windy",
    "spring-mass",
    "pendulum-unknown-mass",
    "robot-arm",
]
WITH_ENERGY = [name for name in SYSTEMS if name != "predator-prey"]
GRAVITY = 9.81


@functools.cache
def sample(name, finer=1):
    """A few short trajectories, sampled ``finer`` times as often as the system's own step."""
    return simulate(SYSTEMS[name], 4, length=101, dt=SYSTEMS[name].dt / finer)


@functools.cache
def energetics(name):
    """Finely sampled trajectories, and the energy and power balance at each of their states."""
    data, physics = sample(name, finer=10), SYSTEMS[name].port_hamiltonian
    with jax.enable_x64(True):
        both = jax.jit(jax.vmap(jax.vmap(lambda q, p: (physics.energy(q, p), physics.power_balance(q, p)))))
        return data, *jax.tree.map(np.asarray, both(data.q, data.p))


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_holds_the_papers_thirteen_and_five_more():
    assert list(SYSTEMS) == BENCHMARKS + OTHERS
    assert [name for name, entry in SYSTEMS.items() if entry.benchmark] == BENCHMARKS
    assert all(name == entry.name for name, entry in SYSTEMS.items())


@pytest.mark.parametrize("name", SYSTEMS)
def test_nothing_in_a_system_is_trainable(name):
    leaves = jax.tree.leaves(SYSTEMS[name])
    assert not [leaf for leaf in leaves if isinstance(leaf, np.ndarray | np.generic)]
    assert sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(SYSTEMS[name], eqx.is_inexact_array))) == 0


def test_regimes_are_those_of_table_1():
    expected = {"rlc": "KNOWN", "n-body-3": "PARTIAL", "robot-arm": "PARTIAL", "predator-prey": "UNKNOWN"}
    expected |= {"pendulum-windy": "KNOWN", "pendulum-unknown-mass": "PARTIAL", "cartpole-windy": "PARTIAL"}
    assert {name: SYSTEMS[name].regime for name in expected} == expected


def test_a_misspelt_name_is_answered_with_the_nearest():
    assert system("rlc") is SYSTEMS["rlc"]
    with pytest.raises(ValueError) as error:
        system("pendulum-wndy")
    assert str(error.value) == (
        "unknown system 'pendulum-wndy': did you mean 'pendulum-windy'? `phast systems` lists all"
    )


@given(st.text().filter(lambda name: name not in SYSTEMS))
def test_any_other_name_is_refused(name):
    with pytest.raises(ValueError, match="unknown system"):
        system(name)


def test_only_systems_with_an_energy_expose_it():
    assert SYSTEMS["rlc"].port_hamiltonian is SYSTEMS["rlc"].dynamics
    with pytest.raises(TypeError, match="'predator-prey' has no known potential"):
        _ = SYSTEMS["predator-prey"].port_hamiltonian


@pytest.mark.parametrize("name", ["cartpole-windy", "double-pendulum-damped", "robot-arm", "n-body-3"])
def test_constant_mass_is_the_diagonal_averaged_over_configurations(name):
    entry = SYSTEMS[name]
    axis = np.arange(4) * math.pi / 2  # enough to average cosines exactly
    grid = np.stack(np.meshgrid(*[axis] * entry.manifold.size), axis=-1).reshape(-1, entry.manifold.size)
    masses = jax.vmap(lambda q: entry.port_hamiltonian.mass.operator(q).diagonal_part())(jnp.asarray(grid))
    constant = entry.constant_mass.operator(jnp.zeros(entry.manifold.size)).diagonal_part()
    np.testing.assert_allclose(np.mean(masses, axis=0), constant, rtol=1e-5)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_tighter_tolerance_changes_nothing(name, monkeypatch):
    monkeypatch.setattr(phast.dynamics.simulation, "TOLERANCE", 0.5 * phast.dynamics.simulation.TOLERANCE)
    tighter = simulate(SYSTEMS[name], 4, length=101)
    np.testing.assert_allclose(tighter.q, sample(name).q, atol=1e-8)
    np.testing.assert_allclose(tighter.p, sample(name).p, atol=1e-8)


# --- energy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_simulates(name):
    data = sample(name)
    assert data.q.shape == data.p.shape == data.v.shape == (4, 101, SYSTEMS[name].manifold.size)
    assert np.all(np.ptp(data.q, axis=1) > 0.0)


@pytest.mark.parametrize("name", WITH_ENERGY)
def test_energy_falls_by_what_the_damping_takes(name):
    data, energy, balance = energetics(name)
    scale = 1.0 + np.abs(energy).max()
    if SYSTEMS[name].port_hamiltonian.damping == ConstantDamping(0.0):
        np.testing.assert_allclose(energy, energy[:, :1] * np.ones(101), atol=1e-10 * scale)
        return
    assert np.all(np.diff(energy, axis=1) < 1e-11 * scale)
    lost = simpson(balance.dissipated, dx=data.dt, axis=1)  # second order where |sin θ| has a kink
    np.testing.assert_allclose(energy[:, 0] - energy[:, -1], lost, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name.endswith("conservative")])
def test_energy_is_conserved_over_a_whole_trajectory(name):
    data = sample(name)
    with jax.enable_x64(True):
        energy = np.asarray(jax.vmap(jax.vmap(SYSTEMS[name].port_hamiltonian.energy))(data.q, data.p))
    np.testing.assert_allclose(energy, energy[:, :1] * np.ones(101), atol=1e-9)


@pytest.mark.parametrize("name", WITH_ENERGY)
def test_power_balance_holds_at_every_sample(name):
    _, _, balance = energetics(name)
    np.testing.assert_allclose(balance.rate, -balance.dissipated, atol=1e-10 * (1.0 + np.abs(balance.rate).max()))


# --- equations of motion, from textbooks ----------------------------------------------------------------------------


def pendulum(inertia, damping):
    return lambda q, v: (-GRAVITY * np.sin(q) - damping(q) * v) / inertia


def windy(angle):
    return 0.3 + 0.5 * np.abs(np.sin(angle))


def cart_pole(cart_damping):
    """(m_c + m_p) x'' + m_p l cos θ θ'' - m_p l sin θ θ'² = -d ẋ;  cos θ x'' + l θ'' + g sin θ = -d θ'."""

    def acceleration(q, v):
        sin, cos, d = np.sin(q[1]), np.cos(q[1]), windy(q[1])
        push = sin * v[1] ** 2 - cart_damping(d) * v[0]
        swing = -GRAVITY * sin - d * v[1]
        return np.array([push - cos * swing, 2.0 * swing - cos * push]) / (2.0 - cos**2)

    return acceleration


def double_pendulum(damping):
    """2 θ₁'' + cos δ θ₂'' + sin δ θ₂'² + 2g sin θ₁ = -d₁θ₁';  cos δ θ₁'' + θ₂'' - sin δ θ₁'² + g sin θ₂ = -d₂θ₂'."""

    def acceleration(q, v):
        sin, cos = np.sin(q[0] - q[1]), np.cos(q[0] - q[1])
        first = -sin * v[1] ** 2 - 2.0 * GRAVITY * np.sin(q[0]) - damping(q[0]) * v[0]
        second = sin * v[0] ** 2 - GRAVITY * np.sin(q[1]) - damping(q[1]) * v[1]
        return np.array([first - cos * second, 2.0 * second - cos * first]) / (2.0 - cos**2)

    return acceleration


def two_link_arm(q, v):
    """The manipulator equation with inertia, Coriolis and gravity terms as in any robotics course."""
    m, length, centre, inertia = 1.0, 0.5, 0.25, 0.5**2 / 12.0
    cos, coriolis = np.cos(q[1]), m * length * centre * np.sin(q[1])
    shared = inertia + m * (centre**2 + length * centre * cos)
    mass = [
        [2 * inertia + m * (centre**2 + length**2 + centre**2 + 2 * length * centre * cos), shared],
        [shared, inertia + m * centre**2],
    ]
    tip = m * centre * GRAVITY * np.sin(q[0] + q[1])
    gravity = np.array([(m * centre + m * length) * GRAVITY * np.sin(q[0]) + tip, tip])
    bias = np.array([-coriolis * v[1] * (2 * v[0] + v[1]), coriolis * v[0] ** 2])
    friction = 0.05 * v + 0.1 * v / np.sqrt(v**2 + 0.05**2)
    return np.linalg.solve(mass, -bias - gravity - friction)


def gravity_of_three(q, v):
    masses, points = np.array([1.0, 0.8, 0.6]), q.reshape(3, 2)
    pulls = np.zeros((3, 2))
    for i in range(3):
        for j in range(3):
            if i != j:
                apart = points[j] - points[i]
                pulls[i] += masses[j] * apart / (apart @ apart + 0.1**2) ** 1.5
    return (pulls - 0.05 * v.reshape(3, 2) / masses[:, None]).ravel()


def lennard_jones(q, v):
    points = q.reshape(3, 2)
    force = np.zeros((3, 2))
    for i in range(3):
        for j in range(3):
            if i != j:
                apart = points[i] - points[j]
                square = apart @ apart + 0.1**2
                force[i] += (48.0 / square**7 - 24.0 / square**4) * apart
    return force.ravel() - 0.1 * v


def springs(stiffness, damping):
    return lambda q, v: -np.asarray(stiffness) @ q - damping * v


ACCELERATIONS = {
    "pendulum-conservative": pendulum(1.0, lambda q: 0.0),
    "pendulum-damped": pendulum(1.0, lambda q: 0.5),
    "pendulum-windy": pendulum(1.0, windy),
    "pendulum-unknown-mass": pendulum(1.5, lambda q: 0.3),
    "cartpole-windy": cart_pole(lambda d: d),
    "cartpole-windy-rail": cart_pole(lambda d: 0.3),
    "oscillator-conservative": springs(np.eye(2), 0.0),
    "oscillator-damped": springs(np.eye(2), 0.1),
    "double-pendulum-conservative": double_pendulum(lambda q: 0.0),
    "double-pendulum-damped": double_pendulum(lambda q: 0.2),
    "double-pendulum-windy": double_pendulum(windy),
    "rlc": springs([[1.0]], 0.5),
    "lennard-jones-3": lennard_jones,
    "heat-exchange": springs([[1.5, -0.5], [-0.5, 1.5]], 0.1),
    "n-body-3": gravity_of_three,
    "spring-mass": springs([[1.0]], 0.3),
    "robot-arm": two_link_arm,
}


@pytest.mark.parametrize("name", WITH_ENERGY)
def test_follows_the_textbook_equations(name):
    data, acceleration, n = sample(name), ACCELERATIONS[name], SYSTEMS[name].manifold.size

    def field(_, x):
        return np.concatenate([x[n:], acceleration(x[:n], x[n:])])

    start = np.concatenate([data.q[0, 0], data.v[0, 0]])
    solution = solve_ivp(field, (0.0, data.t[-1]), start, "DOP853", data.t, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(data.q[0], solution.y.T[:, :n], atol=1e-7)
    np.testing.assert_allclose(data.v[0], solution.y.T[:, n:], atol=1e-6)


def test_predator_prey_follows_its_equations():
    data = sample("predator-prey")

    def field(_, x):
        prey, predator = x
        return [
            1.0 * prey * (1.0 - prey / 100.0) - 0.1 * prey * predator - 0.01 * prey,
            0.1 * prey * predator - 0.4 * predator - 0.01 * predator,
        ]

    start = [data.q[0, 0, 0], data.p[0, 0, 0]]
    solution = solve_ivp(field, (0.0, data.t[-1]), start, "DOP853", data.t, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(np.concatenate([data.q, data.p], axis=-1)[0], solution.y.T, atol=1e-7)
    assert np.all(data.q > 0.0) and np.all(data.p > 0.0)


@pytest.mark.parametrize("links", [1, 2, 3, 5])
def test_arm_mass_and_gravity_agree_with_forward_kinematics(links):
    """½ vᵀM v is the kinetic energy of the moving links: their velocities by a complex step through the kinematics."""
    rng = np.random.default_rng(links)
    q, v = rng.normal(size=(2, links))

    def centres(q):
        angles = np.cumsum(q)
        along = np.stack([np.sin(angles), -np.cos(angles)], axis=-1)
        ends = np.cumsum(0.5 * along, axis=0)
        return ends - 0.25 * along

    speeds = np.imag(centres(q + 1e-30j * v)) / 1e-30
    kinetic = 0.5 * np.sum(speeds**2) + 0.5 * (0.5**2 / 12.0) * np.sum(np.cumsum(v) ** 2)
    physics = robot_arm(links).port_hamiltonian
    with jax.enable_x64(True):
        p = physics.momentum(jnp.asarray(q), jnp.asarray(v))
        np.testing.assert_allclose(0.5 * np.dot(v, p), kinetic, rtol=1e-12)
        np.testing.assert_allclose(physics.potential(jnp.asarray(q)), GRAVITY * np.sum(centres(q)[:, 1]), rtol=1e-12)
        np.testing.assert_allclose(physics.velocity(jnp.asarray(q), p), v, rtol=1e-9)


def test_an_arm_needs_a_link():
    assert robot_arm(3).manifold.names == ("theta1", "theta2", "theta3")
    with pytest.raises(ValueError, match="at least one link"):
        robot_arm(0)


# --- initial states --------------------------------------------------------------------------------------------------

PI = math.pi
UNIFORM = {  # bounds of q0 and of p0, or of v0 where the table of the paper samples velocities
    "cartpole-windy": ([-1, -PI], [1, PI], [-2, -2], [2, 2]),
    "double-pendulum-damped": ([-PI, -PI], [PI, PI], [-2, -2], [2, 2]),
    "rlc": ([-2], [2], [-2], [2]),
    "predator-prey": ([10], [50], [5], [20]),
}
NORMAL = {  # deviations of p0
    "pendulum-conservative": 3.0,
    "pendulum-damped": 3.0,
    "pendulum-windy": 4.0,
    "oscillator-damped": 1.0,
    "lennard-jones-3": 0.1,
    "heat-exchange": 0.3,
    "n-body-3": 0.5,
}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_initial_states_fill_their_ranges(name):
    q0, p0 = SYSTEMS[name].initial(np.random.default_rng(0), 4000)
    if name.startswith("double"):
        p0 = np.asarray(jax.vmap(SYSTEMS[name].port_hamiltonian.velocity)(jnp.asarray(q0), jnp.asarray(p0)))
    q_low, q_high, p_low, p_high = map(np.asarray, UNIFORM[name])
    for x, low, high in ((q0, q_low, q_high), (p0, p_low, p_high)):
        room = 0.005 * (high - low)
        assert np.all(np.abs(x.min(axis=0) - low) < room) and np.all(np.abs(x.max(axis=0) - high) < room)
        np.testing.assert_allclose(x.std(axis=0), (high - low) / math.sqrt(12.0), rtol=0.05)


@pytest.mark.parametrize("name", NORMAL)
def test_normal_initial_momenta_have_their_deviation(name):
    _, p0 = SYSTEMS[name].initial(np.random.default_rng(0), 4000)
    np.testing.assert_allclose(p0.std(axis=0), NORMAL[name], rtol=0.06)
    np.testing.assert_allclose(p0.mean(axis=0), 0.0, atol=0.06 * NORMAL[name])


@pytest.mark.parametrize(
    ("name", "side", "spread"),
    [("lennard-jones-3", 2.0 ** (1 / 6), 0.05), ("n-body-3", 2.0 * math.sqrt(3.0), 0.3)],
)
def test_triangles_are_equilateral_on_average(name, side, spread):
    q0, _ = SYSTEMS[name].initial(np.random.default_rng(0), 4000)
    corners = q0.mean(axis=0).reshape(3, 2)
    sides = np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=-1)
    np.testing.assert_allclose(sides, side, atol=0.05 * spread)
    np.testing.assert_allclose(q0.std(axis=0), spread, rtol=0.06)


def test_heat_exchange_starts_warm():
    q0, _ = SYSTEMS["heat-exchange"].initial(np.random.default_rng(0), 4000)
    assert 0.5 <= q0.min() < 0.51 and 1.99 < q0.max() <= 2.0


# --- a user's own system ---------------------------------------------------------------------------------------------


def start(rng, count):
    return rng.normal(size=(count, 1)), rng.normal(size=(count, 1))


def test_a_black_box_is_a_system_like_any_other():
    own = black_box(lambda q, p: (p, -4.0 * q), Manifold.parse("x"), start, dt=0.1)
    data = simulate(own, 3, length=20)
    expected = data.q[:, :1, 0] * np.cos(2.0 * data.t) + 0.5 * data.p[:, :1, 0] * np.sin(2.0 * data.t)
    np.testing.assert_allclose(data.q[..., 0], expected, atol=1e-10)
    assert own.name == "black-box" and not isinstance(own.dynamics, PortHamiltonian)


def test_a_black_box_of_the_wrong_shape_is_refused():
    own = black_box(lambda q, p: (p, jnp.zeros(2)), Manifold.parse("x"), start, dt=0.1)
    with pytest.raises(ValueError, match=r"must return two arrays of shape \(1,\)"):
        simulate(own, 3, length=20)


def test_systems_without_a_port_refuse_an_input():
    with pytest.raises(TypeError, match="no input port"):
        SYSTEMS["predator-prey"].dynamics.vector_field(jnp.ones(1), jnp.ones(1), jnp.ones(1))
