"""Port estimators: what a controller believes of Gᵀ q' from noisy positions."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import ConstantDamping
from phast.components.mass import ConstantMass
from phast.components.potential import Cosine
from phast.control.loop import Feedback, close_loop
from phast.control.plant import Plant
from phast.control.ports import AbstractPortEstimator, FilteredOutput, ObservedVelocity
from phast.control.shaping import EnergyCasimir
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.observers import FiniteDifference

pytestmark = pytest.mark.usefixtures("float64")

ANGLE, DT, NOISE, TARGET = Manifold.parse("theta:angle"), 0.02, 0.01, 1.0


def model(port=((0.5,),)) -> ModelAware:
    system = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.1), port)
    return ModelAware(Core(system, RungeKutta(Timestep(DT))), ANGLE, DT, 10, NOISE)


class Hearing(AbstractPortEstimator):
    """An estimator that is told a share of the inputs."""

    estimator: AbstractPortEstimator
    share: jax.Array

    def start(self, q, state):
        return self.estimator.start(q, state)

    def update(self, cache, q, u, state):
        return self.estimator.update(cache, q, self.share * u, state)


@eqx.filter_jit
def misjudged(estimator: AbstractPortEstimator, noise: float) -> jax.Array:
    """The rms error of an estimator in a loop that goes to the target, after the first ten samples.

    One for each of two shares of the inputs that it may hear: all and nothing.
    """
    plant = Plant(model().core.system, ANGLE, DT)
    holding = 9.81 * np.sin(TARGET) / 0.5
    law = EnergyCasimir.create([0.5 * TARGET], stiffness=60.0, injection=12.0, holding=holding, correction=5.0)

    def off(share, key):
        controller = Feedback(law, Hearing(estimator, share), plant)
        trace = close_loop(plant, controller, jnp.zeros(1), jnp.zeros(1), 100, noise=noise, key=key)
        return jnp.mean((trace.y_believed - trace.y)[10:] ** 2)

    over_keys = jax.vmap(off, (None, 0))
    squared = jax.vmap(over_keys, (0, None))(jnp.array([1.0, 0.0]), jax.random.split(jax.random.key(0), 8))
    return jnp.sqrt(jnp.mean(squared, axis=1))


def test_a_filter_of_the_model_that_hears_the_inputs_is_exact_without_noise():
    """To the order of the model's step; deaf to the inputs it is off by what they do within the window."""
    hearing, deaf = misjudged(FilteredOutput.of(model()), jnp.asarray(0.0))
    assert hearing < 1e-5
    assert deaf > 0.1


def test_under_noise_it_errs_far_less_than_finite_differences():
    """0.5 · 0.01 · √2 / 0.02 = 0.35 for these."""
    seen = FiniteDifference(ANGLE)
    differences, _ = misjudged(ObservedVelocity.of(seen, DT, model().core.system, 1), jnp.asarray(NOISE))
    assert 0.25 < differences < 0.5
    assert misjudged(FilteredOutput.of(model()), jnp.asarray(NOISE))[0] < differences / 4


def test_a_model_without_a_named_port_has_one_input_for_each_coordinate():
    estimator = FilteredOutput.of(dataclasses.replace(model(None), window=4))
    q, state = jnp.array([0.3]), (jnp.zeros(1), jnp.zeros(1))
    cache, y = jax.jit(estimator.start)(q, state)
    assert y.shape == (1,)
    _, y = jax.jit(estimator.update)(cache, q + 0.1, jnp.array([1.0]), state)
    assert float(y[0]) > 1.0
