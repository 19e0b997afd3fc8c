"""What was identified, and what the data do not determine, in the units of the user's files."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from phast.analysis.dimensions import coefficient_units, energy_scale
from phast.analysis.energy import power_balance
from phast.analysis.fields import fields_along
from phast.analysis.identifiability import Coefficient, identified, report
from phast.analysis.quality import Quality, quality
from phast.data.recording import Recording
from phast.data.units import Units
from phast.errors import InputError
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.shooting import Identified
from phast.report.equation import equation, latex
from phast.report.text import coefficient_table, each_with_unit, figure, padded, residual_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS, _DRAWN = 9, 81  # along each coordinate


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Identification:
    """Coefficients with their uncertainties and units, fields along each coordinate, and where the energy went.

    ``remarks`` say what is not determined and what would determine it, ``anchor`` what fixes the scale that potential,
    mass and damping share. ``fields`` and ``energy`` need a recording to look along.
    """

    coefficients: tuple[Coefficient, ...]
    coefficient_units: tuple[str, ...]
    conditioning: float
    remarks: tuple[str, ...]
    anchor: str
    quality: Quality
    units: Units
    fields: dict[str, pd.DataFrame]
    energy: dict[str, float] | None
    found: Identified
    recording: Recording | None

    @classmethod
    def of(cls, model: ModelAware, units: Units, recording: Recording | None) -> "Identification":
        """What the evidence of a fit says, and its fields along ``recording``."""
        found = identified(model)
        told = report(found)
        return cls(
            tuple(told.coefficients),
            tuple(coefficient_units(found.system, units)),
            told.conditioning,
            tuple(told.remarks),
            told.anchor,
            quality(model, found, units),
            units,
            {} if recording is None else _frames(found, recording),
            None if recording is None else _energy(model, recording),
            found,
            recording,
        )

    def to_frame(self) -> pd.DataFrame:
        """One row for each coefficient."""
        rows = [
            c._asdict() | {"verdict": str(c.verdict), "unit": unit}
            for c, unit in zip(self.coefficients, self.coefficient_units, strict=True)
        ]
        return pd.DataFrame(rows, columns=[*Coefficient._fields, "unit"]).set_index("name")

    def summary(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        rows = self.to_frame().reset_index().to_dict("records")
        return {
            "noise": list(self.quality.noise),
            "rms": list(self.quality.residual),
            "coefficients": [{name: _finite(value) for name, value in row.items()} for row in rows],
            "conditioning": _finite(self.conditioning),
            "remarks": list(self.remarks),
            "anchor": self.anchor,
            "fields": {name: field.to_dict("records") for name, field in self.fields.items()},
            "energy": self.energy,
        }

    def equation(self, form: Literal["text", "latex"] = "text") -> str:
        """What was found as formulas: T, V and the force of friction against each velocity, with ±."""
        if form not in ("text", "latex"):
            raise InputError(f"unknown form '{form}': choose text or latex")
        text = equation(self.found.system, self.units.manifold.names, self.coefficients)
        return text if form == "text" else latex(text)

    def plot(self) -> "Figure":
        """Force and damping along each coordinate, each with a band of two standard deviations."""
        from phast.report.plots import fields_figure

        if self.recording is None:
            raise InputError("a figure along a coordinate needs a recording: identify(phast.read('swing.csv'))")
        return fields_figure(fields_along(self.found, self.recording, _DRAWN))

    def __repr__(self) -> str:
        lines = [self._quality(), ""]
        if self.coefficients:
            lines += coefficient_table(self.coefficients, self.coefficient_units)
        lines += [*(f"note: {remark}" for remark in self.remarks), f"anchor: {self.anchor}"]
        return "\n".join(lines)

    def _quality(self) -> str:
        """Residual against noise."""
        residual, noise = residual_text(self.quality, self.units), each_with_unit(self.quality.noise, self.units)
        return f"residual {residual}, noise about {noise}"

    def details(self) -> str:
        """Fields and energy as text."""
        lines = []
        for name, field in self.fields.items():
            others = " (the other coordinates at their medians)" if len(self.fields) > 1 else ""
            rows = [[f"{x:.4g}" if i == 0 else figure(x) for i, x in enumerate(row)] for row in field.to_numpy()]
            lines += ["", f"Along {name}{others}:", *padded([list(field.columns), *rows])]
        if self.energy is not None:
            parts = ", ".join(f"{name} {figure(value)}" for name, value in self.energy.items())
            lines += ["", f"{energy_scale(self.found.system, self.units).heading('energy')} over a trajectory: {parts}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        notes = "\n".join([*(f"note: {remark}" for remark in self.remarks), f"anchor: {self.anchor}"])
        return f"<pre>{self._quality()}</pre>{self.to_frame().to_html()}<pre>{notes}</pre>"


def _finite(value: Any) -> Any:
    """What JSON can hold: nothing where a number is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _frames(found: Identified, recording: Recording) -> dict[str, pd.DataFrame]:
    """Force and damping along each coordinate, by its name."""
    names = recording.manifold.names
    return {name: field.to_frame() for name, field in zip(names, fields_along(found, recording, _POINTS), strict=True)}


def _energy(model: ModelAware, recording: Recording) -> dict[str, float] | None:
    """Where the energy went, on average over trajectories; None where they are too short to tell."""
    data = recording.trajectories()
    if data.length <= model.window + 1:
        return None
    told, factor = power_balance(model, data), energy_scale(model.core.system, recording.units).factor
    parts = {name: getattr(told, name)[:, -1] for name in ("supplied", "dissipated", "unexplained")}
    parts["stored"] = told.energy[:, -1] - told.energy[:, 0]
    return {name: factor * float(part.mean()) for name, part in parts.items()}
