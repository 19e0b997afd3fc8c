"""Two port-Hamiltonian systems joined, by law: power, the Casimir function, energy, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import ConstantDamping
from phast.components.mass import CartPoleMass, ConstantMass, DoublePendulumMass
from phast.components.potential import Cosine, Quadratic
from phast.control.interconnection import Interconnection, JoinedState
from phast.control.plant import Plant
from phast.control.shaping import EnergyCasimir
from phast.control.stability import multipliers, require_stable
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

CART = ((1.0,), (0.0,))
SKEWED = ((1.0, 0.5), (-0.3, 2.0))
PLANTS = {
    "pendulum": (Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.0), None, 1),
    "two links, both driven": (Cosine((19.62, 9.81)), DoublePendulumMass(), ConstantDamping(0.1), None, 2),
    "two links, skewed port": (Cosine((19.62, 9.81)), DoublePendulumMass(), ConstantDamping(0.0), SKEWED, 2),
    "cart-pole, the cart driven": (Cosine((0.0, 9.81)), CartPoleMass(), ConstantDamping(0.2), CART, 1),
    "three springs, two driven": (
        Quadratic(2.0), ConstantMass((1.0, 2.0, 0.5)), ConstantDamping(0.0), ((1.0, 0.0), (0.0, 1.0), (1.0, -1.0)), 2
    ),
}  # fmt: skip
every_plant = pytest.mark.parametrize("parts", PLANTS.values(), ids=PLANTS.keys())


def joined(parts, *, injection=0.0):
    *components, inputs = parts
    law = EnergyCasimir.create([0.4, -0.2][:inputs], stiffness=6.0, injection=injection, holding=0.3)
    return Interconnection(PortHamiltonian(*components), law)


def size(parts):
    port, inputs = parts[3:]
    return inputs if port is None else len(port)


def states(parts, seed=0, count=20):
    rng, n, inputs = np.random.default_rng(seed), size(parts), parts[4]
    return [JoinedState(*(jnp.asarray(rng.normal(size=k)) for k in (n, n, inputs))) for _ in range(count)]


def followed(system, x, external, dt, steps):
    """Classical Runge–Kutta over plant and controller together, with ∫ v_extᵀ y_p dt beside them."""

    def rate(t, x):
        v = external(t)
        return system.vector_field(x, v), jnp.dot(system.ports(x, v).y_p, v)

    def body(carry, i):
        t, x, supplied = i * dt, *carry
        at = lambda k, h: jax.tree.map(lambda a, b: a + h * b, x, k)  # noqa: E731
        k1, s1 = rate(t, x)
        k2, s2 = rate(t + dt / 2, at(k1, dt / 2))
        k3, s3 = rate(t + dt / 2, at(k2, dt / 2))
        k4, s4 = rate(t + dt, at(k3, dt))
        moved = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
        carry = at(moved, dt), supplied + dt * (s1 + 2 * s2 + 2 * s3 + s4) / 6
        return carry, (*carry, system.energy(carry[0]), system.casimir(carry[0]))

    _, (path, supplied, energy, casimir) = jax.lax.scan(body, (x, jnp.zeros(())), jnp.arange(steps))
    return path, supplied, energy, casimir


@every_plant
def test_the_interconnection_makes_no_power(parts):
    """The cross power is yᵀ v alone, to rounding, and nothing where v = 0."""
    still, damped = joined(parts), joined(parts, injection=1.5)
    for x in states(parts):
        through = still.ports(x)
        assert abs(through.cross_power) < 1e-13 * (1.0 + jnp.abs(through.y_p) @ jnp.abs(through.y_c))
        forced = damped.ports(x, jnp.full(parts[4], 0.7))
        assert float(forced.cross_power - forced.y_p @ forced.v) == pytest.approx(0.0, abs=1e-12)
        injected = -1.5 * forced.y_p @ forced.y_p + 0.7 * jnp.sum(forced.y_p)
        assert float(forced.y_p @ forced.v) == pytest.approx(float(injected), rel=1e-12)


@every_plant
def test_energy_changes_by_damping_and_by_what_is_supplied(parts):
    """H' by the chain rule is -∇Hᵀ R ∇H - d_inj |y|² + yᵀ v_ext."""
    system, v = joined(parts, injection=0.8), jnp.full(parts[4], -0.4)
    for x in states(parts):
        rate = sum(jnp.vdot(g, d) for g, d in zip(jax.grad(system.energy)(x), system.vector_field(x, v), strict=True))
        y = system.ports(x, v).y_p
        expected = -system.plant.losses(x.q, x.p) - 0.8 * y @ y + y @ v
        assert float(rate) == pytest.approx(float(expected), rel=1e-10, abs=1e-10)


@every_plant
def test_the_casimir_does_not_change_whatever_the_energies_and_the_forcing_are(parts):
    """It is linear, so that a Runge–Kutta step keeps it to rounding at any step size."""
    system = joined(parts, injection=0.5)
    x = states(parts)[0]
    path, _, energy, casimir = followed(system, x, lambda t: jnp.full(parts[4], jnp.sin(3.0 * t)), 0.02, 200)
    np.testing.assert_allclose(casimir, jnp.broadcast_to(system.casimir(x), casimir.shape), atol=1e-12)
    assert float(jnp.ptp(energy)) > 0.1 and float(jnp.max(jnp.ptp(path.q, axis=0))) > 0.1  # something happened
    q, p, _ = x
    np.testing.assert_array_equal(system.casimir(system.start(q, p)), 0.0)


@every_plant
def test_energy_never_rises_under_the_exact_port_output(parts):
    _, _, energy, _ = followed(
        joined(parts, injection=0.8), states(parts)[1], lambda t: jnp.zeros(parts[4]), 2e-3, 2000
    )
    assert float(jnp.max(jnp.diff(energy))) < 1e-10 and float(energy[0] - energy[-1]) > 0.1


@every_plant
def test_forced_the_loop_is_passive(parts):
    """H(t) - H(0) ≤ ∫ v_extᵀ y_p at every time, and without any damping the two are equal."""
    x = states(parts)[2]

    def external(t):
        return jnp.full(parts[4], 3.0 * jnp.sin(2.0 * t))

    system = joined(parts, injection=0.8)
    _, supplied, energy, _ = followed(system, x, external, 2e-3, 2000)
    assert float(jnp.max(energy - system.energy(x) - supplied)) < 1e-8
    assert float(jnp.max(supplied)) > 0.0
    lossless = joined((*parts[:2], ConstantDamping(0.0), *parts[3:]))
    _, supplied, energy, _ = followed(lossless, x, external, 1e-3, 1000)
    np.testing.assert_allclose(energy - lossless.energy(x), supplied, atol=1e-6)


# --- what is refused -------------------------------------------------------------------------------------------------


def pendulum(dt=0.01):
    return Plant(PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.0)), Manifold.parse("a:angle"), dt)


def law(**changed):
    return EnergyCasimir.create([0.0], **({"stiffness": 10.0, "injection": 2.0, "correction": 5.0} | changed))


def test_the_multipliers_are_those_of_the_linear_loop():
    """A spring and its controller without correction, port output known: x' = A x + B u held, solved exactly."""
    plant = Plant(PortHamiltonian(Quadratic(4.0), ConstantMass(1.0), ConstantDamping(0.0)), Manifold.parse("x"), 0.1)
    w, dt = 2.0, 0.1
    free = np.array([[np.cos(w * dt), np.sin(w * dt) / w], [-w * np.sin(w * dt), np.cos(w * dt)]])
    pushed = np.array([(1 - np.cos(w * dt)) / w**2, np.sin(w * dt) / w])
    loop = np.zeros((3, 3))
    loop[:2, :2], loop[:2, 1], loop[:2, 2] = free, free[:, 1] - 2.0 * pushed, -10.0 * pushed
    loop[2] = [0.0, dt, 1.0]
    expected = np.linalg.eigvals(loop)
    expected = expected[np.argsort(np.abs(expected - 1.0))[1:]]
    found = multipliers(plant, law(correction=0.0), jnp.zeros(1))
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(expected), atol=1e-8)
    assert np.abs(found).max() < 1.0
    require_stable(plant, law(), jnp.zeros(1))


@pytest.mark.parametrize(
    "gains, said",
    [
        ({"injection": 250.0}, "lower the damping, or sample faster"),
        ({"stiffness": -12.0}, "unstable gains"),
        ({"injection": 0.0}, "unstable gains"),
        ({"holding": 0.1}, "nothing rests at the target"),
    ],
)
def test_unstable_gains_are_refused(gains, said):
    require_stable(pendulum(), law(), jnp.zeros(1))
    with pytest.raises(InputError, match=said):
        require_stable(pendulum(), law(**gains), jnp.zeros(1))


def test_wrong_gains_and_plants_without_a_port_are_refused():
    with pytest.raises(InputError, match="feeds energy in"):
        law(injection=-0.1)
    with pytest.raises(InputError, match="k_ξ must not be negative"):
        law(correction=-1.0)
    links = PortHamiltonian(*PLANTS["two links, skewed port"][:4])
    with pytest.raises(InputError, match=r"a law for 1 input\(s\) cannot drive a plant with 2"):
        Interconnection(links, law())
    none = PortHamiltonian(Quadratic(1.0), ConstantMass(1.0), ConstantDamping(0.0), ((), ()))
    with pytest.raises(InputError, match="has no input port"):
        Plant(none, Manifold.parse("x", "y"), 0.1)
