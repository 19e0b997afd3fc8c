"""Stand-ins for models."""

import pytest

import phast
from phast.api.fitted import Fitted
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.data.units import Units
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.estimation.forecaster import AbstractForecaster, AbstractIdentifiable
from phast.estimation.moving_horizon import ModelAware
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
