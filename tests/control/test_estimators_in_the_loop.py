"""Port estimators inside a loop: exact where they may be, told the inputs, any number of coordinates."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import ConstantDamping
from phast.components.mass import CartPoleMass, ConstantMass
from phast.components.potential import Cosine
from phast.control.loop import Feedback, close_loop
from phast.control.plant import Plant
from phast.control.ports import AbstractPortEstimator, FilteredOutput, ModelOutput, ObservedVelocity
from phast.control.shaping import EnergyCasimir
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import MovingHorizonFilter
from phast.estimation.observers import ConvolutionalObserver, FiniteDifference, FixedLagSmoother

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

DT, STEPS = 0.02, 60
PENDULUM = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.1))
CART_POLE = PortHamiltonian(Cosine((0.0, 9.81)), CartPoleMass(), ConstantDamping(0.2), ((2.0,), (0.0,)))
PLANTS = {
    "pendulum": Plant(PENDULUM, Manifold.parse("a:angle"), DT),
    "cart-pole, the cart driven": Plant(CART_POLE, Manifold.parse("x", "a:angle"), DT),
}
every_plant = pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
run = eqx.filter_jit(close_loop)


def in_the_loop(plant: Plant, estimator: AbstractPortEstimator, noise: float = 0.0):
    """A run from some way off, the angle across ±π."""
    n = plant.manifold.size
    law = EnergyCasimir.create(jnp.zeros(1), stiffness=10.0, injection=2.0, correction=5.0)
    q, p = jnp.linspace(0.5, 3.0, n) if n > 1 else jnp.array([3.0]), jnp.ones(n)
    return run(plant, Feedback(law, estimator, plant), q, p, STEPS, noise=noise, key=jax.random.key(1))


def moving_horizon(system: PortHamiltonian, plant: Plant, noise: float = 0.0) -> FilteredOutput:
    core = Core(system, RungeKutta(Timestep(plant.dt)))
    state_filter = MovingHorizonFilter(core, core, plant.manifold, plant.dt, 10, noise)
    return FilteredOutput(state_filter, system)


@every_plant
def test_observers_in_the_loop_tell_the_port_output_of_what_was_measured(plant):
    """Sample by sample the same as over the whole recording, times Gᵀ."""
    n, key = plant.manifold.size, jax.random.key(0)
    for observer in (
        FiniteDifference(plant.manifold),
        FixedLagSmoother.create(plant.manifold, DT, window=5, noise=0.01),
        ConvolutionalObserver.create(plant.manifold, random_head=True, key=key),
    ):
        trace = in_the_loop(plant, ObservedVelocity.of(observer, DT, plant.system, n), noise=0.01)
        expected = observer.velocities(trace.measured, DT) @ plant.system.port_matrix(n)
        np.testing.assert_allclose(trace.y_believed, expected, rtol=1e-9, atol=1e-9)


@every_plant
def test_a_model_told_the_state_gives_its_own_velocity(plant):
    exact = in_the_loop(plant, ModelOutput(plant.system))
    np.testing.assert_array_equal(exact.y, exact.y_believed)


@every_plant
def test_a_filter_that_knows_model_and_inputs_knows_the_port_output(plant):
    """Its time step is the only error left; one that is not told the inputs is far off."""
    n = plant.manifold.size
    trace = in_the_loop(plant, moving_horizon(plant.system, plant))
    late = slice(12, None)
    off = float(jnp.max(jnp.abs(trace.y - trace.y_believed)[late]))
    untold = moving_horizon(plant.system, plant).filter.along(trace.measured)
    outputs = jax.vmap(plant.system.port_output)(untold.q, untold.p)
    assert off < 1e-4 < 1e-2 < float(jnp.max(jnp.abs(trace.y - outputs)[late]))
    told = moving_horizon(plant.system, plant).filter.along(trace.measured, trace.applied)
    np.testing.assert_allclose(
        trace.y_believed, jax.vmap(plant.system.port_output)(told.q, told.p), rtol=1e-6, atol=1e-8
    )
    assert trace.applied.shape == (STEPS, 1) and trace.measured.shape == (STEPS, n)


def test_under_noise_a_model_is_worth_more_than_differences():
    plant = PLANTS["pendulum"]

    def off(estimator):
        trace = in_the_loop(plant, estimator, noise=0.02)
        return float(jnp.mean(jnp.abs(trace.y - trace.y_believed)[12:]))

    rough = off(ObservedVelocity.of(FiniteDifference(plant.manifold), DT, plant.system, 1))
    smooth = off(
        ObservedVelocity.of(FixedLagSmoother.create(plant.manifold, DT, window=10, noise=0.02), DT, PENDULUM, 1)
    )
    assert off(moving_horizon(plant.system, plant, 0.02)) < 0.2 * smooth < 0.2 * rough
