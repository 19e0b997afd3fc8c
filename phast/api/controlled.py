"""A controller for a fitted model, and what it does to the systems that the data of the fit leave possible."""

import dataclasses
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from phast.analysis.identifiability import identified, report
from phast.control.design import Design, Goal, design_controller
from phast.control.gains import Gain, gains
from phast.control.outcome import LoopOutcome, with_units
from phast.control.trials import Task, Trials, tried
from phast.control.wanted import Wanted
from phast.data.durations import steps_in
from phast.data.recording import Recording
from phast.errors import InputError
from phast.estimation.moving_horizon import ModelAware
from phast.report.text import figure, padded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from phast.api.fitted import Fitted
    from phast.data.units import Units

_STARTS = 8  # of a recording
_ANGLE = 0.05  # radians around a target that count as settled
_SHARE = 0.05  # of the way there, of a coordinate on a line
_CONSTANTS = 10.0  # time constants 1 / (ζ ω) within which to settle
_FAR = 0.1  # of the range of a recording: a target that far from it is beyond what was seen


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Controlled:
    """A controller of a fitted model by potential shaping and damping injection, tried out in closed loop.

        u = holding - Σ stiffness · (q - target) - Σ injection · q'

    with q' from the moving horizon of the model. ``design`` and ``trials`` are in the units of the computation; what is
    printed, drawn and written is in those of the file.
    """

    fitted: "Fitted"
    design: Design
    trials: Trials
    remarks: tuple[str, ...]

    @property
    def units(self) -> "Units":
        return self.fitted.units

    @property
    def gains(self) -> tuple[Gain, ...]:
        """Stiffness and damping injection of each input on each coordinate that it acts on, with units."""
        return gains(self.design, self.units, self.fitted.inputs)

    @property
    def outcome(self) -> LoopOutcome:
        """Over all trials: the share that settles, worst overshoot, effort and saturation."""
        return LoopOutcome.of(self.trials, self.units)

    @property
    def q(self) -> Float[np.ndarray, "trials T n"]:
        """True positions along each trial; ``trials.t`` are the times, ``trials.u`` the inputs."""
        return self.units.to_file(self.trials.q)

    def to_frame(self) -> pd.DataFrame:
        """One row for each trial."""
        trials, units = self.trials, self.units
        columns: dict[str, np.ndarray] = {
            f"start({name})": x for name, x in zip(units.labels, units.to_file(trials.q[:, 0]).T, strict=True)
        }
        columns |= {"settled": trials.settled, "settling time [s]": trials.settling}
        for name, over, rest in zip(
            units.labels, units.to_file(trials.overshoot).T, units.to_file(trials.remaining).T, strict=True
        ):
            columns |= {f"overshoot({name})": over, f"remaining({name})": rest}
        columns |= {"effort [u² s]": trials.effort, "saturated": trials.saturated}
        return pd.DataFrame(columns).rename_axis("trial")

    def summary(self) -> dict[str, Any]:
        """Gains and outcome as plain data, for JSON."""
        names = self.units.manifold.names
        told = {
            "target": dict(zip(names, self.units.to_file(self.design.target).tolist(), strict=True)),
            "units": dict(zip(names, self.units.names, strict=True)),
            "gains": [gain._asdict() for gain in self.gains],
            "modes": [mode._asdict() for mode in self.design.modes],
            **self.outcome._asdict(),
            "remarks": list(self.remarks),
        }
        return _plain(told)

    def plot(self) -> "Figure":
        """Positions of all trials around the target, and inputs between their limits."""
        from phast.report.plots import closed_loop_figure

        return closed_loop_figure(self.trials, self.units, self.fitted.inputs)

    def report(self, path: str | os.PathLike) -> Path:
        """Write one HTML page: gains, how the trials went, their positions and inputs."""
        from phast.report.control_page import write_control_page

        return write_control_page(self.trials, self.units, self.fitted.inputs, path, self.remarks)

    def export(self, path: str | os.PathLike, *, name: str | None = None, single: bool = False) -> Path:
        """Write time step, filter and this controller as one C99 file with its header; angles are in radians there."""
        if Path(path).suffix != ".c":
            raise InputError(f"'{path}': a controller is exported to C: the ending must be .c")
        return self.fitted.export(path, name=name, single=single, controller=self.design.law, limits=self.design.limits)

    def __repr__(self) -> str:
        rows = [["input", "on", "stiffness", "injection", "holding", "limit"]]
        rows += [list(gain.cells().values()) for gain in self.gains]
        target = with_units(self.units.to_file(self.design.target), self.units)
        modes = ", ".join(f"{figure(mode.frequency)} ({mode.ratio:.2f})" for mode in self.design.modes)
        lines = [f"controller to {target}", "", *padded(rows), f"modes of the loop: {modes} rad/s (damping ratio)", ""]
        lines += [f"{name}: {value}" for name, value in self.outcome.facts(self.units).items()]
        return "\n".join([*lines, *(f"note: {remark}" for remark in self.remarks)])

    def _repr_html_(self) -> str:
        return f"<pre>{self!r}</pre>"


def controlled(
    fitted: "Fitted", model: ModelAware, wanted: Wanted, recording: Recording | None, seed: int
) -> Controlled:
    """Design a controller for a fitted model and try it out; ``recording`` says where the system usually is."""
    if not fitted.inputs:
        raise InputError("this model was fitted without inputs, so there is nothing to control it with")
    units = fitted.units
    target = wanted.position(wanted.target, "target", units)
    starts = _starts(wanted, target, recording, units)
    distance = np.abs(starts - target).max(axis=0)
    tolerance = _tolerance(wanted, distance, units)
    found = design_controller(model, Goal.of(wanted, units, fitted.inputs, tolerance, distance))
    within = steps_in(wanted.within or f"{_time_for(found)} s", model.dt)
    trials = tried(model, found, Task(starts, tolerance, within, wanted.draws, seed))
    remarks = [*found.remarks, *_beyond(target, recording), *report(identified(model)).remarks]
    return Controlled(fitted, found, trials, tuple(remarks))


def _time_for(found: Design) -> float:
    """A round time that is long beside the slowest mode."""
    wanted = _CONSTANTS / min(mode.ratio * mode.frequency for mode in found.modes)
    power = 10.0 ** math.floor(math.log10(wanted))
    return power * next(digit for digit in (1, 1.5, 2, 3, 5, 7, 10) if digit * power >= wanted)


def _starts(wanted: Wanted, target: np.ndarray, recording: Recording | None, units: "Units") -> np.ndarray:
    """Initial positions, angles by the shortest way to the target."""
    if wanted.start:
        found = np.stack([wanted.position(point, "start", units) for point in wanted.start])
    elif recording is not None:
        q = np.concatenate([piece.q for piece in recording.pieces])
        found = q[np.linspace(0, len(q) - 1, min(_STARTS, len(q))).astype(int)]
    else:
        raise InputError("a model from a file holds no recording: give a start (--from), or the data")
    return target + units.manifold.wrap(found - target)


def _tolerance(wanted: Wanted, distance: np.ndarray, units: "Units") -> np.ndarray:
    """The band around the target in the units of the computation."""
    given = wanted.each("tolerance", len(distance), "coordinate")
    if given is not None:
        return units.from_file(given)
    found = np.where(units.manifold.circles, _ANGLE, _SHARE * distance)
    for name, each in zip(units.manifold.names, found, strict=True):
        if not each > 0.0:
            raise InputError(f"every start has '{name}' at its target: say how near is settled with a tolerance")
    return found


def _beyond(target: np.ndarray, recording: Recording | None) -> list[str]:
    """Whether the recording never came near the target."""
    if recording is None:
        return []
    q, units = np.concatenate([piece.q for piece in recording.pieces]), recording.units
    off = np.abs(units.manifold.wrap(q - target))
    nearest = off[np.argmin((off / np.maximum(np.ptp(q, axis=0), np.finfo(float).tiny)).max(axis=1))]
    far = nearest > _FAR * np.ptp(q, axis=0)
    pairs = zip(units.manifold.names, units.to_file(nearest), units.names, far, strict=True)
    named = [f"{figure(x)} {unit} of {name}".replace("  ", " ") for name, x, unit, is_far in pairs if is_far]
    return (
        [f"the recording stays {', '.join(named)} away from the target: the model extrapolates there"] if named else []
    )


def _plain(x: Any) -> Any:
    """What JSON can hold: nothing where a number is not finite."""
    if isinstance(x, dict):
        return {name: _plain(part) for name, part in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(part) for part in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
