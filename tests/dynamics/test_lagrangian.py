"""The Euler–Lagrange residual by law: zero along motions, Christoffel's symbols, and what changes no motion.

A gauge is checked where it is exact: (M, V, D, G) times a constant for all motions, M times any function of q where D
may depend on the velocity, and, of a single coordinate, where all motions have one energy.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phast.components.damping import AbstractDamping, ConstantDamping
from phast.components.lowrank import Dense, DiagonalPlusLowRank
from phast.components.mass import AbstractMass, ArmMass, CholeskyMass, ConstantMass, DoublePendulumMass, NeuralMass
from phast.components.parameter import Positive
from phast.components.potential import AbstractPotential, Cosine, PeriodicMLPPotential
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.lagrangian import coriolis, residual
from phast.dynamics.simulation import initial_states, simulate, trajectories_from
from phast.dynamics.systems import system
from phast.fitting.matching import acceleration

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

TWO_ANGLES = Manifold.parse("a:angle", "b:angle")
GRAVITY = 9.81
numbers = functools.partial(st.lists, st.floats(-4.0, 4.0))


def double_pendulum(c: float = 1.0) -> PortHamiltonian:
    """Damped and driven, everything multiplied by c."""
    return PortHamiltonian(  # learned coefficients, so that all factors share one compiled program
        Cosine(Positive.starting_at((2.0 * c * GRAVITY, c * GRAVITY))),
        DoublePendulumMass(Positive.starting_at(c), Positive.starting_at(c)),
        ConstantDamping(Positive.starting_at((0.1 * c, 0.3 * c))),
        jnp.array([[c], [0.5 * c]]),
    )


@eqx.filter_jit
def force(physics, q, v, a, u=None):
    """The residual, compiled."""
    return residual(physics, q, v, a, u)


@eqx.filter_jit
def moved(physics, q, v, u=None):
    """q'', compiled."""
    return acceleration(physics, q, v, u)


# --- zero along motions ----------------------------------------------------------------------------------------------


def slopes(x, dt):
    """Central differences of eighth order, at all samples but four at each end."""
    weights = np.array([1 / 280, -4 / 105, 1 / 5, -4 / 5, 0, 4 / 5, -1 / 5, 4 / 105, -1 / 280])
    return sum(w * x[:, k : x.shape[1] - 8 + k] for k, w in enumerate(weights)) / dt


def test_it_vanishes_along_the_true_motion():
    """q'' is a difference of the simulator's velocities: what is left is its error."""
    data = simulate(system("double-pendulum-conservative"), 4, length=60, dt=2e-3, seed=1)
    a = slopes(data.v, data.dt).reshape(-1, 2)
    q, v = (x[:, 4:-4].reshape(-1, 2) for x in (data.q, data.v))
    r = jax.vmap(functools.partial(residual, system("double-pendulum-conservative").port_hamiltonian))(q, v, a)
    assert np.abs(a).max() > 5.0 and np.abs(r).max() < 1e-8


@given(numbers(min_size=7, max_size=7))
def test_it_is_the_mass_times_what_the_acceleration_is_off_by(x):
    x, physics = jnp.array(x), double_pendulum()
    q, v, a, u = x[:2], x[2:4], x[4:6], x[6:]
    wanted = physics.momentum(q, a - moved(physics, q, v, u))
    np.testing.assert_allclose(force(physics, q, v, a, u), wanted, rtol=1e-9, atol=1e-9)


MASSES = {
    "double pendulum": lambda: DoublePendulumMass(1.3, 0.7, 0.9, 1.1),
    "arm": lambda: ArmMass((1.0, 2.0), (0.5, 0.4), (0.25, 0.2), (0.1, 0.05)),
    "Cholesky": lambda: CholeskyMass.create(TWO_ANGLES, width=8, key=jax.random.key(0)),
    "NeuralMass": lambda: NeuralMass.create(TWO_ANGLES, width=8, key=jax.random.key(1)),
    "constant": lambda: ConstantMass((2.0, 1.0)),
}


@pytest.mark.parametrize("name", MASSES)
def test_the_coriolis_force_is_that_of_christoffels_symbols(name):
    mass = MASSES[name]()

    @jax.jit
    def both(q, v):
        slope = jax.jacfwd(lambda x: mass.operator(x).dense())(q)  # slope[i, j, k] = ∂M_ij/∂q_k
        symbols = 0.5 * (slope + slope.transpose(0, 2, 1) - slope.transpose(2, 0, 1))
        return coriolis(mass, q, v), jnp.einsum("ijk,j,k->i", symbols, v, v)

    for x in np.random.default_rng(0).normal(0.0, 2.0, (20, 4)):
        found, wanted = both(x[:2], x[2:])
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    assert (name == "constant") == (float(jnp.abs(found).max()) == 0.0)


def test_its_gradients_are_those_of_finite_differences(perturbed):
    model = PortHamiltonian(
        PeriodicMLPPotential.create(TWO_ANGLES, width=4, harmonics=1, key=jax.random.key(0)),
        CholeskyMass.create(TWO_ANGLES, width=4, harmonics=1, key=jax.random.key(1)),
        ConstantDamping(0.2),
    )
    q, v, a = jnp.array([[0.3, -1.2], [0.5, 2.0], [-3.0, 1.0]])
    count = sum(x.size for x in jax.tree.leaves(model) if isinstance(x, jax.Array))
    ways = jax.random.normal(jax.random.key(2), (5, count))

    @jax.jit
    def both(steps):
        return jax.value_and_grad(lambda s: jnp.sum(residual(perturbed(model, s @ ways), q, v, a) ** 2))(steps)

    exact = both(jnp.zeros(5))[1]
    differences = [(both(step)[0] - both(-step)[0]) / 2e-5 for step in 1e-5 * jnp.eye(5)]
    np.testing.assert_allclose(differences, exact, rtol=1e-7, atol=1e-7 * float(jnp.abs(exact).max()))


# --- what leaves the motions as they are -----------------------------------------------------------------------------


def test_a_common_factor_changes_no_motion_and_multiplies_the_residual():
    chosen = dataclasses.replace(system("double-pendulum-conservative"), dynamics=double_pendulum())
    scaled = dataclasses.replace(chosen, dynamics=double_pendulum(0.25))
    q0, p0 = initial_states(chosen, 2, seed=3)
    ours, theirs = (trajectories_from(s, q0, c * p0, 60, s.dt) for s, c in ((chosen, 1.0), (scaled, 0.25)))
    np.testing.assert_allclose(theirs.q, ours.q, atol=1e-9)
    q, v, a = jnp.array([[0.3, -1.2], [0.5, 2.0], [-3.0, 1.0]])
    small, whole = (force(double_pendulum(c), q, v, a, jnp.array([0.7])) for c in (0.25, 1.0))
    np.testing.assert_allclose(small, 0.25 * whole, rtol=1e-12)


def test_coordinates_that_do_not_couple_have_a_factor_each():
    first, other = (
        PortHamiltonian(Cosine((2.0 * c, 3.0 * d)), ConstantMass((c, d)), ConstantDamping((0.1 * c, 0.2 * d)))
        for c, d in ((1.0, 1.0), (4.0, 0.5))
    )
    q, v = jnp.array([[0.3, -1.2], [0.5, 2.0]])
    np.testing.assert_allclose(moved(other, q, v), moved(first, q, v), rtol=1e-12)


def factor(q):
    """f(q) > 0."""
    return jnp.exp(0.3 * jnp.sin(q[0]) - 0.2 * jnp.cos(q[-1]))


class Times(AbstractMass):
    """f(q)ᵏ M(q)."""

    mass: AbstractMass
    power: float

    def operator(self, q):
        return Dense(factor(q) ** self.power * self.mass.operator(q).dense())


class AtEnergy(AbstractPotential):
    """V' = E - f(q) (E - V(q))."""

    potential: AbstractPotential
    energy: float

    def __call__(self, q):
        return self.energy - factor(q) * (self.energy - self.potential(q))


def at_energy(physics, q, direction, energy):
    """The velocity along ``direction`` that gives this energy."""
    kinetic = 0.5 * jnp.dot(direction, physics.momentum(q, direction))
    return direction * jnp.sqrt((energy - physics.potential(q)) / kinetic)


def test_one_coordinate_at_one_energy_tells_neither_mass_nor_potential():
    """½Mv² = E - V gives v(q), and so q(t): M and E - V may be multiplied by any f(q), but at this energy alone."""
    energy, pendulum = 30.0, PortHamiltonian(Cosine(GRAVITY), ConstantMass(1.5), ConstantDamping(0.0))
    other = PortHamiltonian(AtEnergy(pendulum.potential, energy), Times(pendulum.mass, 1.0), ConstantDamping(0.0))
    off = {energy: 0.0, energy + 10.0: 0.0}
    for q in jnp.linspace(-3.0, 3.0, 13)[:, None]:
        for each in off:
            v = at_energy(pendulum, q, jnp.ones(1), each)
            found = force(other, q, v, moved(pendulum, q, v))
            off[each] = max(off[each], float(jnp.abs(found).max()))
    assert off[energy] < 1e-11 and off[energy + 10.0] > 0.5


def test_several_coordinates_at_one_energy_keep_their_paths_but_not_their_times():
    """Jacobi and Maupertuis: M/f with f (E - V) has the same paths at energy E, run through f times as fast."""
    energy = 60.0
    links = PortHamiltonian(Cosine((2.0 * GRAVITY, GRAVITY)), DoublePendulumMass(), ConstantDamping(0.0))
    bent = PortHamiltonian(AtEnergy(links.potential, energy), Times(links.mass, -1.0), ConstantDamping(0.0))
    straight = PortHamiltonian(bent.potential, Times(links.mass, 1.0), ConstantDamping(0.0))
    q = jnp.array([0.4, -1.1])
    v = at_energy(links, q, jnp.array([1.0, -0.6]), energy)
    a, f, change = moved(links, q, v), factor(q), jnp.dot(jax.grad(factor)(q), v)
    assert jnp.abs(force(bent, q, f * v, f**2 * a + f * change * v)).max() < 1e-11
    assert jnp.abs(force(straight, q, v, a)).max() > 0.5  # the gauge of one coordinate is none of two


class Compensated(AbstractDamping):
    """D' = f D - ½ f'(q) M v, of one coordinate: what a factor f(q) of the mass asks of the damping."""

    damping: float
    mass: float

    def operator(self, q, v):
        slope = jax.grad(factor)(q)
        return DiagonalPlusLowRank(factor(q) * self.damping - 0.5 * slope * self.mass * v)


class Weighted(AbstractPotential):
    """V' = ∫ f dV from 0 to q for V = g (1 - cos q), by Gauss's rule: exact to rounding."""

    strength: float

    def __call__(self, q):
        nodes, weights = np.polynomial.legendre.leggauss(40)
        at = 0.5 * q[0] * (nodes + 1.0)
        force = jax.vmap(lambda x: factor(x[None]))(at) * self.strength * jnp.sin(at)
        return 0.5 * q[0] * jnp.dot(jnp.asarray(weights), force)


def test_a_damping_that_depends_on_the_velocity_hides_any_mass():
    """M' = f M, V' = ∫ f dV, D' = f D - ½ f' M v: every motion is the same, and D' ≥ 0 up to some speed."""
    pendulum = PortHamiltonian(Cosine(GRAVITY), ConstantMass(1.5), ConstantDamping(2.0))
    other = PortHamiltonian(Weighted(GRAVITY), Times(pendulum.mass, 1.0), Compensated(2.0, 1.5))
    for q, v in np.random.default_rng(1).uniform(-3.0, 3.0, (20, 2, 1)):
        q, v = jnp.asarray(q), jnp.asarray(v)
        np.testing.assert_allclose(moved(other, q, v), moved(pendulum, q, v), rtol=1e-9, atol=1e-9)
        assert other.damping.operator(q, v).diagonal_part()[0] > 0.0
