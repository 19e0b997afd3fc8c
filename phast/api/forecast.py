"""A forecast in the units of the user's files: numbers, a frame, a figure, a file."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from phast.analysis.forecasts import Foresight
from phast.api.tables import write_table
from phast.data.units import Units
from phast.errors import counted
from phast.report.text import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """Forecasts after one context, or after each of several.

    ``t`` holds the times, ``q`` the positions and ``deviation`` one standard deviation of what will be measured around
    them (None where the model knows none): (horizon, n) after one context, (contexts, horizon, n) after several.
    """

    t: Float[np.ndarray, "*contexts H"]
    q: Float[np.ndarray, "*contexts H n"]
    deviation: Float[np.ndarray, "*contexts H n"] | None
    units: Units
    labels: tuple[str, ...]
    seen: Foresight

    @classmethod
    def of(cls, seen: Foresight, units: Units, *, single: bool) -> "Forecast":
        """The forecasts in the units of the file."""
        t = np.stack([context.after for context in seen.contexts])
        deviation = None if seen.deviation is None else units.to_file(seen.deviation)
        q = units.to_file(seen.q)
        if single:
            t, q, deviation = t[0], q[0], None if deviation is None else deviation[0]
        return cls(t, q, deviation, units, tuple(seen.labels), seen)

    def summary(self) -> dict[str, Any]:
        """Errors over the steps that were measured, beside standing still and constant velocity."""
        return self.seen.summary(self.units.factors)

    def to_frame(self) -> pd.DataFrame:
        """One row for each step of each forecast: trajectory, t, positions, ``deviation(·)``."""
        horizon, n = self.q.shape[-2:]
        columns = {"trajectory": np.repeat(self.labels, horizon), "t": np.reshape(self.t, -1)}
        columns |= dict(zip(self.units.headings, self.q.reshape(-1, n).T, strict=True))
        if self.deviation is not None:
            names = [f"deviation({name})" for name in self.units.manifold.names]
            columns |= dict(zip(names, self.deviation.reshape(-1, n).T, strict=True))
        return pd.DataFrame(columns)

    def save(self, path: str | os.PathLike) -> Path:
        """Write .csv, .parquet or .npz."""
        arrays = {"t": self.t, "q": self.q} | ({} if self.deviation is None else {"deviation": self.deviation})
        return write_table(path, self.to_frame(), arrays | {"coordinates": np.array(self.units.headings)})

    def plot(self, which: int = 0) -> "Figure":
        """One forecast with a band of two standard deviations, beside what was measured next."""
        from phast.report.plots import forecast_figure

        return forecast_figure(self.seen, self.units, which)

    def __repr__(self) -> str:
        """What was forecast, and its error where the future was measured."""
        horizon = self.q.shape[-2]
        lines = [
            f"{counted(len(self.labels), 'forecast')} of {', '.join(self.units.labels)}, {counted(horizon, 'step')}"
        ]
        numbers = self.summary()
        if numbers["steps_compared"]:
            mse, median = figure(numbers["mse"]), figure(numbers["mse_median"])
            compared = counted(numbers["steps_compared"], "step")
            lines.append(f"mean squared error over {compared}: {mse} (median over forecasts {median})")
            still, moving = figure(numbers["rms_persistence"]), figure(numbers["rms_constant_velocity"])
            lines.append(f"rms error {figure(numbers['rms'])}; standing still {still}, constant velocity {moving}")
            if self.deviation is not None:
                lines.append(f"measured positions within ± 1σ: {numbers['within_one_deviation']:.0%} of the time")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{self!r}</pre>{self.to_frame().to_html(max_rows=10)}"
