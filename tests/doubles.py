"""Stand-ins for models."""

from phast.data.manifold import Manifold
from phast.estimation.forecaster import AbstractForecaster


class Still(AbstractForecaster):
    """A baseline: nothing moves any more."""

    manifold: Manifold

    def predict_next(self, q, u=None, *, key=None):
        return q

    def init_cache(self, context, past=None, *, horizon=1):
        return context[-1]

    def step(self, cache, u=None):
        return cache, cache
