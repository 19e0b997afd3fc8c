"""Stand-ins for models."""

import numpy as np
import pytest

import phast
from phast.api.fitted import Fitted
from phast.components.parameter import parameter_count
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.data.units import Units
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.estimation.forecaster import AbstractForecaster, AbstractIdentifiable, Core
from phast.estimation.moving_horizon import Evidence, ModelAware
from phast.fitting.preprocess import WINDOW


class Still(AbstractForecaster):
    """A baseline: nothing moves any more."""

    manifold: Manifold

    def predict_next(self, q, u=None, *, key=None):
        return q

    def init_cache(self, context, past=None, *, horizon=1):
        return context[-1]

    def step(self, cache, u=None):
        return cache, cache


def wrapped(model: AbstractIdentifiable, inputs: tuple[str, ...] = ()) -> Fitted:
    """A model that nobody fitted, to be asked as a fitted one is."""
    return Fitted(model, Units.computed(model.manifold), inputs)


def second_order(system: AbstractEnergetic, data: Trajectories, **options) -> ModelAware:
    """The model that a composed system becomes when it is fitted to second order, its spread not judged."""
    with pytest.MonkeyPatch.context() as patch:
        without_spread(patch)
        return phast.fit(data, system, method=phast.SecondOrder(window=WINDOW), **options).model


def without_spread(patch: pytest.MonkeyPatch) -> None:
    """Fit without the judgement of a spread, which takes as long as a fit."""
    patch.setattr("phast.fitting.second_order.calibrated", lambda model, data, seed: model)


def sure(system: AbstractEnergetic, manifold: Manifold, dt: float, *, deviation: float = 0.01) -> ModelAware:
    """A model that says how sure it is without a fit: of every trained number to this deviation."""
    whole = np.eye(parameter_count(system))
    evidence = Evidence(whole / deviation**2, whole * deviation**2, 2e-3, 1000)
    return ModelAware(Core(system, RungeKutta(Timestep(dt))), manifold, dt, 5, 0.002, evidence)
