"""One HTML page of a controller: its gains, how its trials went, their positions and inputs.

Everything is in the units of the recording's file. Numbers travel in the page as JSON (:mod:`phast.report.page`);
``control_page.js`` draws them. Names are whatever a file called them: text, never markup.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phast.control.design import Design
from phast.control.gains import Gain, gains
from phast.control.outcome import LoopOutcome, with_units
from phast.control.trials import Trials
from phast.data.files import write_atomically
from phast.data.units import Units
from phast.report.page import Cell, rendered, rounded, table
from phast.report.provenance import commit
from phast.report.text import figure

_SAMPLES = 600  # of a trajectory are drawn


def write_control_page(
    trials: Trials, units: Units, inputs: Sequence[str], output: str | os.PathLike, remarks: Sequence[str] = ()
) -> Path:
    """Write the page of a design and its trials to ``output``."""
    design, names = trials.design, tuple(inputs)
    page = rendered(
        "phast.report",
        "control_page",
        [_loop(trials, units, names)],
        names=list(units.manifold.names),
        inputs=list(names),
        target=with_units(units.to_file(design.target), units),
        starts=[with_units(start, units) for start in units.to_file(_starts(trials))],
        outcome=LoopOutcome.of(trials, units).facts(units),
        gains=_gains(gains(design, units, names)),
        modes=_modes(design),
        remarks=remarks,
        made_with=commit(),
    )
    return write_atomically(output, page.encode())


def _starts(trials: Trials) -> np.ndarray:
    """Those from which a trial began."""
    return trials.task.starts[: len(trials.q)]


def _loop(trials: Trials, units: Units, inputs: tuple[str, ...]) -> dict[str, Any]:
    """Fans of positions and inputs over time, from each start, and the lines beside them."""
    kept = np.unique(np.linspace(0, len(trials.t) - 1, _SAMPLES).astype(int))
    q, u = units.to_file(trials.q[:, kept]), trials.u[:, kept]
    target, band = units.to_file(trials.design.target), units.to_file(trials.task.tolerance)
    limits = trials.design.limits or (None,) * len(inputs)
    return {
        "id": "loop",
        "t": rounded(trials.t[kept]),
        "positions": [rounded(trials.fan(k, q)) for k in range(len(_starts(trials)))],
        "applied": [rounded(trials.fan(k, u)) for k in range(len(_starts(trials)))],
        "labels": units.labels,
        "inputs": [f"{name} [u]" for name in inputs],
        "target": rounded(target),
        "band": rounded(np.stack([target - band, target + band], axis=1)),
        "limits": [None if most is None else rounded(most) for most in limits],
    }


def _gains(found: Sequence[Gain]) -> dict[str, Any]:
    """Each number with its unit."""
    rows = [gain.cells() for gain in found]
    return table((row.pop("input"), {name: Cell(text) for name, text in row.items()}) for row in rows)


def _modes(design: Design) -> dict[str, Any]:
    rows = [
        {
            "natural frequency [rad/s]": Cell(figure(m.frequency), m.frequency),
            "damping ratio": Cell(figure(m.ratio), m.ratio),
        }
        for m in design.modes
    ]
    return table((i + 1, row) for i, row in enumerate(rows))
