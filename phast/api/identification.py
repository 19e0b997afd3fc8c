"""What was identified, and what the data do not determine, in the units of the user's files."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from phast.analysis.dimensions import unit_texts
from phast.analysis.energy import power_balance
from phast.analysis.identifiability import (
    Coefficient,
    along,
    damping_band,
    force_band,
    identified,
    report,
    typical_speed,
)
from phast.data.recording import Recording
from phast.data.units import Units
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.coefficients import names_of
from phast.fitting.shooting import Identified
from phast.report.text import coefficient_table, counted, figure, padded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 9  # along each coordinate


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
    noise: tuple[float, ...]
    residual: float
    count: int
    units: Units
    fields: dict[str, pd.DataFrame]
    energy: dict[str, float] | None
    found: Identified
    recording: Recording | None

    @classmethod
    def of(cls, model: ModelAware, units: Units, recording: Recording | None) -> "Identification":
        """What the evidence of a fit says, and its fields along ``recording``."""
        found = identified(model)
        told, kinds = report(found), names_of(found.system)
        texts = unit_texts(found.system, units, driven=_is_driven(model))
        noise = np.broadcast_to(np.asarray(model.noise, dtype=float), (model.manifold.size,))
        return cls(
            tuple(told.coefficients),
            tuple(text for text, (_, kind) in zip(texts, kinds, strict=True) if kind != "field"),
            told.conditioning,
            tuple(told.remarks),
            told.anchor,
            tuple(units.to_file(noise).tolist()),
            found.evidence.rms,
            found.evidence.count,
            units,
            {} if recording is None else _fields(found, recording, units),
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
            "noise": list(self.noise),
            "rms": self.residual,
            "coefficients": [{name: _finite(value) for name, value in row.items()} for row in rows],
            "conditioning": _finite(self.conditioning),
            "remarks": list(self.remarks),
            "anchor": self.anchor,
            "fields": {name: field.to_dict("records") for name, field in self.fields.items()},
            "energy": self.energy,
        }

    def plot(self) -> "Figure":
        """Force and damping along each coordinate, each with a band of two standard deviations."""
        from phast.report.plots import fields_figure

        return fields_figure(self.fields, self.units)

    def __repr__(self) -> str:
        lines = [self._quality(), ""]
        if self.coefficients:
            lines += coefficient_table(self.coefficients, self.coefficient_units)
        lines += [*(f"note: {remark}" for remark in self.remarks), f"anchor: {self.anchor}"]
        return "\n".join(lines)

    def _quality(self) -> str:
        """Residual against noise."""
        residual, noise = figure(self.residual), ", ".join(figure(x) for x in self.noise)
        return f"residual {residual} rms over {counted(self.count, 'position')}, noise about {noise}"

    def details(self) -> str:
        """Fields and energy as text."""
        lines = []
        for name, field in self.fields.items():
            others = " (the other coordinates at their medians)" if len(self.fields) > 1 else ""
            rows = [[f"{x:.4g}" if i == 0 else figure(x) for i, x in enumerate(row)] for row in field.to_numpy()]
            lines += ["", f"Along {name}{others}:", *padded([list(field.columns), *rows])]
        if self.energy is not None:
            parts = ", ".join(f"{name} {figure(value)}" for name, value in self.energy.items())
            lines += ["", f"energy over a trajectory: {parts}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        notes = "\n".join([*(f"note: {remark}" for remark in self.remarks), f"anchor: {self.anchor}"])
        return f"<pre>{self._quality()}</pre>{self.to_frame().to_html()}<pre>{notes}</pre>"


def _finite(value: Any) -> Any:
    """What JSON can hold: nothing where a number is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_driven(model: ModelAware) -> bool:
    """Whether known forces say what a unit of mass is."""
    port = getattr(model.core.system, "port", None)
    return bool(model.core.system.input_count(model.manifold.size)) and isinstance(port, tuple)


def _fields(found: Identified, recording: Recording, units: Units) -> dict[str, pd.DataFrame]:
    """Force and damping along each coordinate, in the units of the file."""
    data = recording.trajectories()
    speed = typical_speed(found.system, data)
    fields = {}
    for i, (name, label) in enumerate(zip(units.manifold.names, units.labels, strict=True)):
        points, factor = along(data, i, _POINTS), units.factors[i]
        force, damped = force_band(found, points), damping_band(found, points, speed)
        at_speed = f" at speed {speed[i] * factor:.3g}" if speed[i] else ""
        fields[name] = pd.DataFrame(
            {
                label: points[:, i] * factor,
                "force -∂V/∂q": force[0][:, i] * factor,
                "± force": force[1][:, i] * factor,
                f"damping d{at_speed}": damped[0][:, i],
                "± damping": damped[1][:, i],
            }
        )
    return fields


def _energy(model: ModelAware, recording: Recording) -> dict[str, float] | None:
    """Where the energy went, on average over trajectories; None where they are too short to tell."""
    data = recording.trajectories()
    if data.length <= model.window + 1:
        return None
    told = power_balance(model, data)
    parts = {name: float(getattr(told, name)[:, -1].mean()) for name in ("supplied", "dissipated", "unexplained")}
    return parts | {"stored": float((told.energy[:, -1] - told.energy[:, 0]).mean())}
