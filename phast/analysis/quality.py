"""How well a model explains the data of its fit: residual beside noise."""

from typing import NamedTuple

import numpy as np

from phast.data.units import Units
from phast.estimation.moving_horizon import ModelAware, balance
from phast.fitting.shooting import Identified


class Quality(NamedTuple):
    """Root mean square residual and noise of each coordinate in the units of the file, over ``count`` positions.

    A fit weighs the residuals of all coordinates by their noise and knows the mean: each has its share of it.
    """

    residual: tuple[float, ...]
    noise: tuple[float, ...]
    count: int


def quality(model: ModelAware, found: Identified, units: Units) -> Quality:
    """That of the fit that found the model."""
    n = model.manifold.size
    noise = np.broadcast_to(np.asarray(model.noise, dtype=float), (n,))
    residual = found.evidence.rms / np.sqrt(balance(model.noise, n)[1])
    each = (tuple(units.to_file(part).tolist()) for part in (residual, noise))
    return Quality(*each, found.evidence.count)
