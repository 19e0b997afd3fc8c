"""The sampled loop, by law: it comes to the continuous one as samples come closer, for every plant."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import ConstantDamping
from phast.components.mass import CartPoleMass, ConstantMass, DoublePendulumMass
from phast.components.potential import Cosine
from phast.control.interconnection import Interconnection, JoinedState
from phast.control.loop import AbstractController, Decision, Feedback, close_loop
from phast.control.plant import Plant
from phast.control.ports import ModelOutput, ObservedVelocity
from phast.control.shaping import EnergyCasimir
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.observers import FiniteDifference

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

KEY = jax.random.key(0)
run = eqx.filter_jit(close_loop)
STEPS = 0.02, 0.01
PENDULUM = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.0))
LINKS = PortHamiltonian(Cosine((19.62, 9.81)), DoublePendulumMass(), ConstantDamping(0.0))
CART_POLE = PortHamiltonian(Cosine((0.0, 9.81)), CartPoleMass(), ConstantDamping(0.0), ((1.0,), (0.0,)))
PLANTS = {
    "pendulum": (PENDULUM, Manifold.parse("a:angle"), [0.9], [0.5]),
    "two links": (LINKS, Manifold.parse("a:angle", "b:angle"), [0.5, -0.4], [1.0, 0.3]),
    "cart-pole, the cart driven": (CART_POLE, Manifold.parse("x", "a:angle"), [0.5, 0.4], [0.0, 1.0]),
}
every_plant = pytest.mark.parametrize("chosen", PLANTS.values(), ids=PLANTS.keys())


class Recorded(AbstractController):
    """A law with the exact port output, which tells its ξ in place of ŷ."""

    law: EnergyCasimir
    plant: Plant

    def start(self, q, state):
        return self.update(self.plant.system.port_matrix(q.shape[0]).T @ q, q, jnp.zeros(self.law.inputs), state)

    def update(self, cache, q, u, state):
        y = self.plant.port_output(*state)
        return self.law.advance(cache, y, jnp.zeros_like(y), self.plant.dt), Decision(self.law.input(cache, y), cache)


def sampled(chosen, dt, *, injection, seconds=1.0, external=0.0):
    """States (q, p, ξ) at the samples, their energies and Casimir functions, and ∫ v_extᵀ y."""
    system, manifold, q, p = chosen
    plant = Plant(system, manifold, dt)
    law = EnergyCasimir.create(jnp.zeros(plant.inputs), stiffness=10.0, injection=injection)
    steps = round(seconds / dt)
    forced = external * jnp.sin(3.0 * dt * jnp.arange(steps))[:, None] * jnp.ones(plant.inputs)
    trace = run(plant, Recorded(law, plant), jnp.asarray(q), jnp.asarray(p), steps, external=forced, key=KEY)
    joined, states = Interconnection(system, law), JoinedState(trace.q, trace.p, trace.y_believed)
    supplied = jnp.cumsum(dt * jnp.sum(forced * trace.y, axis=1))
    return jax.vmap(joined.energy)(states), jax.vmap(joined.casimir)(states), supplied


@every_plant
def test_the_casimir_is_kept_to_first_order_in_the_time_between_samples(chosen):
    """ξ moves by forward Euler; with v = 0 nothing else is off."""
    coarse, fine = (float(jnp.max(jnp.abs(sampled(chosen, dt, injection=0.0)[1]))) for dt in STEPS)
    assert coarse > 1e-3 and 0.8 < np.log2(coarse / fine) < 1.2


@every_plant
def test_how_far_energy_may_rise_vanishes_with_the_time_between_samples(chosen):
    def rise(dt):
        energy = np.asarray(sampled(chosen, dt, injection=2.0)[0])
        return float(np.max(energy - np.minimum.accumulate(energy))), float(energy[0] - energy[-1])

    (coarse, _), (fine, fall) = (rise(dt) for dt in STEPS)
    assert fine < 0.65 * coarse + 1e-12 and fine < 0.01 * fall


@every_plant
def test_the_passivity_bound_holds_along_forced_runs(chosen):
    """H(t) - H(0) ≤ ∫ v_extᵀ y_p, but for what the time between samples adds."""

    def excess(dt):
        energy, _, supplied = sampled(chosen, dt, injection=2.0, external=4.0)
        assert float(jnp.max(jnp.abs(supplied))) > 0.1
        return energy[1:] - energy[0] - supplied[:-1]

    coarse, fine = (excess(dt) for dt in STEPS)
    assert float(jnp.max(fine)) < max(0.65 * float(jnp.max(coarse)), 1e-12) and float(jnp.min(fine)) < -0.05


def feedback(plant, estimator, **gains):
    settings = {"stiffness": 10.0, "injection": 2.0, "correction": 5.0} | gains
    return Feedback(EnergyCasimir.create(jnp.zeros(plant.inputs), **settings), estimator, plant)


def test_oracle_and_finite_differences_settle_a_pendulum_at_its_target():
    plant = Plant(PENDULUM, Manifold.parse("a:angle"), 0.01)
    rough = ObservedVelocity.of(FiniteDifference(plant.manifold), plant.dt, PENDULUM, 1)
    for estimator in (ModelOutput(PENDULUM), rough):
        trace = run(plant, feedback(plant, estimator), jnp.array([2.0]), jnp.array([0.0]), 1000, key=KEY)
        assert float(jnp.max(jnp.abs(trace.q[-100:]))) < 1e-3
        assert float(trace.saturated) == 0.0
    assert float(jnp.max(jnp.abs(trace.y - trace.y_believed)[1:])) < 0.2  # half a step of acceleration


def test_a_target_that_is_no_natural_equilibrium_needs_the_potential():
    plant = Plant(PENDULUM, Manifold.parse("a:angle"), 0.01)

    def reached(holding):
        law = EnergyCasimir.create([1.0], stiffness=10.0, injection=2.0, holding=holding, correction=5.0)
        controller = Feedback(law, ModelOutput(PENDULUM), plant)
        return float(run(plant, controller, jnp.array([0.0]), jnp.array([0.0]), 1000, key=KEY).q[-1, 0])

    assert reached(9.81 * np.sin(1.0)) == pytest.approx(1.0, abs=1e-3)
    assert reached(0.0) < 0.6


def test_inputs_stop_at_their_limits_and_the_trace_says_so():
    plant = Plant(PENDULUM, Manifold.parse("a:angle"), 0.01, limits=(5.0,))
    trace = run(plant, feedback(plant, ModelOutput(PENDULUM)), jnp.array([1.0]), jnp.array([0.0]), 50, key=KEY)
    assert float(jnp.max(jnp.abs(trace.applied))) == 5.0 and 0.0 < float(trace.saturated) < 1.0
    assert float(jnp.max(jnp.abs(trace.asked))) > 5.0


def test_a_law_needs_one_entry_for_each_input():
    plant = Plant(LINKS, Manifold.parse("a:angle", "b:angle"), 0.01)
    law = EnergyCasimir.create([0.0], stiffness=1.0, injection=1.0)
    with pytest.raises(InputError, match=r"a law for 1 input\(s\) cannot drive a plant with 2"):
        Feedback(law, ModelOutput(LINKS), plant)
