"""What a model says along each coordinate: force and damping with their deviations, in the units of the file."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float

from phast.analysis.dimensions import damping_scales, force_scales
from phast.analysis.identifiability import along, damping_band, force_band, typical_speed
from phast.data.recording import Recording
from phast.fitting.shooting import Identified


class Curve(NamedTuple):
    """A quantity along a coordinate, its standard deviation, and its name with the unit."""

    heading: str
    values: Float[np.ndarray, " N"]
    deviation: Float[np.ndarray, " N"]


class Field(NamedTuple):
    """Force and damping along one coordinate, the others at their medians.

    ``seen`` holds 98 % of the positions of the recording. Friction is looked at while the coordinate moves at its
    typical speed: ``moving`` says so, as in `` at 2.1 deg/s``, and is empty where damping depends on no speed.
    """

    label: str
    at: Float[np.ndarray, " N"]
    seen: Float[np.ndarray, "2"]
    force: Curve
    damping: Curve
    moving: str = ""

    def to_frame(self) -> pd.DataFrame:
        """A column for each quantity and for its deviation."""
        force, damping = self.force, self.damping
        return pd.DataFrame(
            {
                self.label: self.at,
                force.heading: force.values,
                "± force": force.deviation,
                f"{damping.heading}{self.moving}": damping.values,
                "± damping": damping.deviation,
            }
        )


def fields_along(found: Identified, recording: Recording, points: int) -> list[Field]:
    """One for each coordinate of the recording."""
    data, units = recording.trajectories(), recording.units
    speed = typical_speed(found.system, data)
    visited = units.to_file(np.asarray(data.manifold.wrap(jnp.asarray(data.q))).reshape(-1, data.manifold.size))
    scales = zip(force_scales(found.system, units), damping_scales(found.system, units), strict=True)
    fields = []
    for i, (force, damping) in enumerate(scales):
        places = along(data, i, points)
        moving = f" at {units.to_file(speed)[i]:.3g} {units.speeds[i]}".rstrip() if speed[i] else ""
        fields.append(
            Field(
                units.labels[i],
                units.to_file(places)[:, i],
                np.quantile(visited[:, i], (0.01, 0.99)),
                _curve(force.heading("force -∂V/∂q"), force_band(found, places), i, force.factor),
                _curve(damping.heading("damping d"), damping_band(found, places, speed), i, damping.factor),
                moving,
            )
        )
    return fields


def _curve(heading: str, band: tuple[np.ndarray, np.ndarray], i: int, factor: float) -> Curve:
    values, deviation = (factor * part[:, i] for part in band)
    return Curve(heading, values, deviation)
