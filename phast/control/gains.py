"""The gains of a design as a user reads them: what acts on each coordinate, in the units of the file."""

from typing import NamedTuple

import numpy as np

from phast.control.design import Design
from phast.data.units import Units

_NOTHING = 1e-12  # of the largest entry of a port: below that an input does not act


class Gain(NamedTuple):
    """What one input does about one coordinate; ``unit`` is of the stiffness, that of injection has s more."""

    input: str
    coordinate: str
    stiffness: float
    injection: float
    holding: float
    limit: float | None
    unit: str

    def cells(self) -> dict[str, str]:
        """As text."""
        above, _, below = self.unit.partition("/")
        injection = f"{above}·s/{below}" if below else f"{above}·s"
        return {
            "input": self.input,
            "on": self.coordinate,
            "stiffness": f"{self.stiffness:.4g} {self.unit}",
            "injection": f"{self.injection:.4g} {injection}",
            "holding": f"{self.holding:.4g} u",
            "limit": "none" if self.limit is None else f"{self.limit:g} u",
        }


def gains(design: Design, units: Units, inputs: tuple[str, ...]) -> tuple[Gain, ...]:
    """u_j = u*_j - Σ_i G_ij k_j (q_i - q*_i) - Σ_i G_ij d_j q'_i: a row for each pair that has something to do."""
    law, limits = design.law, design.limits or (None,) * len(inputs)
    stiffness, injection, holding = (np.asarray(part) for part in (law.stiffness, law.injection, law.holding))
    share = design.port / units.factors[:, None]
    names = zip(units.manifold.names, units.names, strict=True)
    return tuple(
        Gain(
            inputs[j],
            name,
            float(share[i, j] * stiffness[j]),
            float(share[i, j] * injection[j]),
            float(holding[j]),
            limits[j],
            f"u/{unit}" if unit else f"u/{name}",
        )
        for i, (name, unit) in enumerate(names)
        for j in range(len(inputs))
        if abs(design.port[i, j]) > _NOTHING * np.abs(design.port).max()
    )
