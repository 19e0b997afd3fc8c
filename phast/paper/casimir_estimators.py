"""The port estimators that the control study compares, each as one entry, and how those that learn are trained.

Nothing is trained on the evaluation trials: observers learn from free swings of the same pendulum, the moving
horizon's model from noisy positions of driven ones.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.api.fitting import fit
from phast.components.parameter import in_working_precision
from phast.control.loop import Feedback
from phast.control.plant import Plant
from phast.control.ports import (
    AbstractPortEstimator,
    FilteredOutput,
    ModelOutput,
    ObservedVelocity,
    driven_system,
)
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import System
from phast.errors import InputError
from phast.estimation.observers import AbstractObserver, ConvolutionalObserver, FiniteDifference, FixedLagSmoother
from phast.fitting.losses import AbstractLoss, Batch, FullStateLoss, NextStepLoss, as_batch
from phast.fitting.second_order import SecondOrder
from phast.fitting.structure import Structure
from phast.fitting.training import Settings, train
from phast.paper.casimir import STIFFNESS, check_law, driven, law_for, plant_of
from phast.paper.models import FULL_STATE, model_builder
from phast.paper.protocol import Split

WINDOW = 20  # samples of the fixed-lag smoother, which the paper leaves open
HORIZON = 60  # samples of the moving horizon


class Setting(NamedTuple):
    """What an estimator is made for, and what it may be trained on."""

    simulator: System
    plant: Plant
    noise: float
    swings: Split  # free and without noise: the paper's data
    settings: Settings
    seed: int

    def observed(self, observer: AbstractObserver) -> AbstractPortEstimator:
        """An observer of velocities, as a port estimator."""
        return ObservedVelocity.of(observer, self.plant.dt, self.plant.system, self.plant.manifold.size)


class Built(NamedTuple):
    """An estimator, and the model whose potential is known to whoever has it."""

    estimator: AbstractPortEstimator
    system: PortHamiltonian | None = None


# --- trained observers -----------------------------------------------------------------------------------------------


class VelocityLoss(AbstractLoss):
    """The mean squared error of an observer's velocities from positions with noise of σ ~ U[low, high].

    A noise-conditioned observer is told the size that σ gives a finite difference.
    """

    low: float
    high: float
    dt: float

    def __call__(self, model: ConvolutionalObserver, trajectory: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        level_key, noise_key = jax.random.split(key)
        level = jax.random.uniform(level_key, minval=self.low, maxval=self.high)
        return self._error(model, trajectory, level, noise_key)

    def selection(self, model: ConvolutionalObserver, trajectory: Batch) -> Float[Array, ""]:
        """Under the least, the middle and the largest noise, drawn once."""
        levels, keys = jnp.linspace(self.low, self.high, 3), jax.random.split(jax.random.key(0), 3)
        return jnp.mean(jax.vmap(lambda level, key: self._error(model, trajectory, level, key))(levels, keys))

    def _error(self, model: ConvolutionalObserver, trajectory: Batch, level: Float[Array, ""], key: PRNGKeyArray):
        assert trajectory.v is not None
        seen = trajectory.q + level * jax.random.normal(key, trajectory.q.shape, trajectory.q.dtype)
        return jnp.mean((told_noise(model, level / self.dt).velocities(seen, self.dt) - trajectory.v) ** 2)


def told_noise(observer: ConvolutionalObserver, noise: Float[Array, ""] | float) -> ConvolutionalObserver:
    """The same observer, told another size of the noise if it listens to any."""
    return observer if observer.noise is None else dataclasses.replace(observer, noise=noise)


def _with_velocities(data: Trajectories) -> Batch:
    return as_batch(data)._replace(v=jnp.asarray(data.v, dtype=float))


def trained(model: Any, loss: AbstractLoss, batches: tuple[Batch, Batch], settings: Settings, seed: int) -> Any:
    """The model after training, its numbers as wide as the process computes."""
    key = jax.random.fold_in(jax.random.key(seed), 1)
    return train(model, *batches, loss=loss, settings=settings, key=key)[0]


def fd_tcn(
    setting: Setting, *, low: float = 0.0, high: float = 0.0, conditioned: bool = False, epochs: int | None = None
) -> Built:
    """FD+TCN, trained on velocities under noise of σ ~ U[low, high]; for another number of epochs if one is given."""
    dt = setting.plant.dt
    settings = setting.settings if epochs is None else dataclasses.replace(setting.settings, epochs=epochs)
    with jax.enable_x64(False):
        observer = ConvolutionalObserver.create(
            setting.plant.manifold, noise=0.0 if conditioned else None, key=jax.random.key(setting.seed)
        )
        batches = _with_velocities(setting.swings.train), _with_velocities(setting.swings.validation)
        observer = trained(observer, VelocityLoss(low, high, dt), batches, settings, setting.seed)
    return Built(setting.observed(told_noise(in_working_precision(observer), setting.noise / dt)))


def phast_observer(setting: Setting) -> Built:
    """The observer inside KNOWN, trained by next-step prediction alone (the paper's recipe)."""
    with jax.enable_x64(False):
        model = model_builder("phast-known")(setting.simulator, key=jax.random.key(setting.seed))
        batches = as_batch(setting.swings.train), as_batch(setting.swings.validation)
        model = trained(model, NextStepLoss(), batches, setting.settings, setting.seed)
    return Built(setting.observed(in_working_precision(model.observer)))


def phast_output(setting: Setting) -> Built:
    """∂Ĥ/∂p at the observed (q, p), of UNKNOWN trained on whole states (the paper's recipe)."""

    def both(part: Trajectories) -> Batch:
        return as_batch(part)._replace(p=jnp.asarray(part.p, dtype=float))

    with jax.enable_x64(False):
        model = model_builder("phast-unknown", FULL_STATE)(setting.simulator, key=jax.random.key(setting.seed))
        loss = FullStateLoss(setting.plant.manifold, setting.plant.dt)
        batches = both(setting.swings.train), both(setting.swings.validation)
        model = trained(model, loss, batches, setting.settings, setting.seed)
    system = in_working_precision(model.system)
    return Built(ModelOutput(system), system)


# --- without training ------------------------------------------------------------------------------------------------


def oracle(setting: Setting) -> Built:
    """The true port output."""
    return Built(ModelOutput(setting.plant.system), setting.plant.system)


def finite_difference(setting: Setting) -> Built:
    """(q_t - q_{t-1})/dt."""
    return Built(setting.observed(FiniteDifference(setting.plant.manifold)))


def map_smoother(setting: Setting, *, window: int = WINDOW) -> Built:
    """The fixed-lag MAP smoother, told the noise."""
    return Built(
        setting.observed(
            FixedLagSmoother.create(setting.plant.manifold, setting.plant.dt, window=window, noise=setting.noise)
        )
    )


# --- ours ------------------------------------------------------------------------------------------------------------

_FORMS = {
    "known": Structure(potential="cosine", mass="learned", damping="viscous", port="identity", regime="known"),
    "unknown": Structure(mass="learned", damping="viscous", port="identity"),
}


def moving_horizon(setting: Setting, *, form: str = "known", window: int = HORIZON) -> Built:
    """The moving horizon with a model learned from positions and torques, as noisy as those of the loop."""
    data = driven(setting.plant, setting.noise, seed=1 + setting.seed)
    model = fit(data, _FORMS[form], method=SecondOrder(context=window), seed=setting.seed).model
    return Built(FilteredOutput.of(model), driven_system(model))


ESTIMATORS: dict[str, Callable[..., Built]] = {
    "oracle": oracle,
    "finite-difference": finite_difference,
    "map-smoother": map_smoother,
    "fd-tcn": fd_tcn,
    "phast-observer": phast_observer,
    "phast-output": phast_output,
    "moving-horizon": moving_horizon,
}


def estimator_builder(name: str) -> Callable[..., Built]:
    """What makes the estimator of this name."""
    if name not in ESTIMATORS:
        raise InputError(f"unknown estimator '{name}' of the control study: choose one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]


def controller(
    name: str,
    setting: Setting,
    *,
    target: float = 0.0,
    holding: bool = True,
    stiffness: float = STIFFNESS,
    **variation: Any,
) -> Feedback:
    """The study's law with the estimator of this name.

    A ``target`` other than zero is held by the potential that the estimator's model has; ``holding`` = False goes
    without.
    """
    built = estimator_builder(name)(setting, **variation)
    if target and holding and built.system is None:
        raise InputError(f"'{name}' has no model, so no potential to hold the target {target:g} by")
    law = law_for(target, built.system if target and holding else None, stiffness)
    if not target:
        check_law(setting.plant, law, target)
    return Feedback(law, built.estimator, setting.plant)


def setting_for(simulator: System, noise: float, swings: Split, settings: Settings, seed: int) -> Setting:
    """What estimators are made for."""
    return Setting(simulator, plant_of(simulator), noise, swings, settings, seed)
