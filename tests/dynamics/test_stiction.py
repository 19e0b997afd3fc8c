"""Friction that holds, by law: what is at rest stays, energy never rises, sliding is Coulomb's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import ConstantDamping, Friction, Stiction, SumDamping
from phast.components.mass import CartPoleMass, ConstantMass, LinkedMass
from phast.components.potential import Along, ConstantForce, Cosine, Quadratic, Sum
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import DiscreteGradient, ExactDamping, ImplicitMidpoint, Timestep, Transition, leapfrog
from phast.dynamics.stiction import parted

pytestmark = pytest.mark.usefixtures("float64")

JOINTS = ((1.0, 0.0), (-1.0, 1.0))
SPRING = Along(Quadratic(3.0), ((1.0, -1.0),))
BLOCK = PortHamiltonian(ConstantForce(0.5), ConstantMass(2.0), Stiction(0.7))
CART = PortHamiltonian(
    Sum((Quadratic((3.0, 0.0)), Cosine((0.0, 9.0)))), CartPoleMass(), SumDamping((Stiction(1.0), ConstantDamping(0.1)))
)
LINKS = PortHamiltonian(Cosine((6.0, 2.0)), LinkedMass(2.0, 0.7, 0.6), Stiction((0.8, 0.5), joints=JOINTS))
MASSES = PortHamiltonian(Sum((Quadratic(2.0), SPRING)), ConstantMass((1.0, 0.5)), Stiction((0.4, 0.3)))


def run(system, q, p, steps, dt=0.02, core=None, u=None):
    """(q, p) after each step."""
    step = Transition(core or DiscreteGradient(), ExactDamping(), Timestep(dt))

    def one(state, _):
        state = step(system, *state, u)
        return state, state

    first = jnp.asarray(q, dtype=float), jnp.asarray(p, dtype=float)
    return jax.jit(lambda state: jax.lax.scan(one, state, length=steps)[1])(first)


AT_REST = {
    "a block on a slope": (BLOCK, [0.3], None, leapfrog(), 10_000),
    "the same, keeping energy": (BLOCK, [0.3], None, DiscreteGradient(), 1000),
    "pushed": (BLOCK, [0.3], [-1.1], leapfrog(), 10_000),
    "springs": (MASSES, [0.1, 0.05], None, leapfrog(), 10_000),
    "a cart-pole": (CART, [0.2, 0.1], None, DiscreteGradient(), 200),
    "the same, by midpoints": (CART, [0.2, 0.1], None, ImplicitMidpoint(), 200),
    "links": (LINKS, [0.05, 0.1], None, DiscreteGradient(), 200),
}


@pytest.mark.parametrize(("system", "q", "u", "core", "steps"), AT_REST.values(), ids=AT_REST.keys())
def test_at_rest_under_a_load_below_the_limit_nothing_moves(system, q, u, core, steps):
    u = None if u is None else jnp.array(u)
    paths, momenta = run(system, q, np.zeros(len(q)), steps, core=core, u=u)
    np.testing.assert_allclose(paths, np.broadcast_to(q, paths.shape), atol=1e-15)
    np.testing.assert_allclose(momenta, 0.0, atol=1e-12)
    pushed = run(system, q, np.zeros(len(q)), 20, core=core, u=jnp.full(len(q), 3.0))[0]
    assert np.abs(pushed[-1] - np.asarray(q)).max() > 1e-2  # under more it moves, so that the test could fail


def test_sliding_is_coulombs_and_ends_where_it_should():
    """Free: v falls by c/m. On a spring: each half-swing loses 2c/k, and rest is where k|q| ≤ c."""
    free = PortHamiltonian(Quadratic(0.0), ConstantMass(2.0), Stiction(0.7))
    q, p = run(free, [0.0], [1.4], 150, core=leapfrog())
    t = 0.02 * np.arange(1, 151)
    np.testing.assert_allclose(p[:, 0], np.maximum(1.4 - 0.7 * t, 0.0), atol=1e-12)
    stopped = np.minimum(t, 2.0)
    np.testing.assert_allclose(q[:, 0], 0.7 * stopped - 0.175 * stopped**2, atol=1e-3)
    spring = PortHamiltonian(Quadratic(4.0), ConstantMass(1.0), Stiction(0.3))
    q, _ = run(spring, [1.0], [0.0], 2600, dt=0.005, core=leapfrog())
    half = round(np.pi / 2.0 / 0.005)
    np.testing.assert_allclose(q[half * np.arange(1, 6) - 1, 0], [-0.85, 0.7, -0.55, 0.4, -0.25], atol=2e-3)
    assert np.ptp(q[-200:]) == 0.0 and 4.0 * abs(float(q[-1, 0])) <= 0.3


def test_sliding_is_what_smoothed_friction_tends_to():
    sharp = PortHamiltonian(LINKS.potential, LINKS.mass, Friction(0.0, (0.8, 0.5), smoothing=1e-4, joints=JOINTS))
    start = [1.2, -0.7], [0.5, 1.0]
    held, smooth = (run(each, *start, 600, dt=0.002)[0] for each in (LINKS, sharp))
    np.testing.assert_allclose(held, smooth, atol=5e-3)


SYSTEMS = {"springs": MASSES, "a cart-pole": CART, "links": LINKS}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
def test_energy_never_rises(system):
    """From random states, at small steps and at steps of the size of the motion."""
    step = Transition(DiscreteGradient(), ExactDamping(), Timestep(0.01))

    def energies(state, stretch):
        def one(state, _):
            state = step(system, *state, None, stretch)
            return state, system.energy(*state)

        return jnp.append(system.energy(*state), jax.lax.scan(one, state, length=100)[1])

    states = jnp.asarray(np.random.default_rng(0).uniform(-2.0, 2.0, (2, 12, 2)))
    found = np.asarray(jax.jit(jax.vmap(energies))(tuple(states), jnp.array([1.0, 5.0, 20.0] * 4)))
    assert np.diff(found, axis=1).max() <= 1e-9 * (1.0 + np.abs(found).max())
    assert (found[:, -1] < found[:, 0]).all()


def test_one_coordinate_holds_while_another_moves():
    """Held, the first mass is a wall for the second."""
    system = PortHamiltonian(SPRING, ConstantMass((1.0, 0.5)), Stiction((5.0, 0.0)))
    q, _ = run(system, [0.3, 0.9], [0.0, 0.0], 500)
    np.testing.assert_array_equal(q[:, 0], 0.3)
    t = 0.02 * np.arange(1, 501)
    np.testing.assert_allclose(q[:, 1], 0.3 + 0.6 * np.cos(np.sqrt(6.0) * t), atol=2e-2)


def test_what_holds_is_found_deep_in_a_sum():
    inner = SumDamping((Stiction(0.3), ConstantDamping(0.2)))
    rest, found = parted(SumDamping((inner, Friction(0.1), Stiction(0.5, joints=((1.0,),)))))
    assert [each.limit for each in found] == [0.3, 0.5]
    assert float(rest.operator(jnp.zeros(1), jnp.ones(1)).diagonal_part()[0]) == pytest.approx(0.3)
    assert parted(Friction(0.1)) == (Friction(0.1), ())
