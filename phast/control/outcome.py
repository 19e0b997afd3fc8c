"""How the trials of a controller went, in the units of the file, as numbers and as text."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from phast.control.trials import Trials
from phast.data.units import Units


class LoopOutcome(NamedTuple):
    """Over all trials; times in seconds, positions in the units of the file.

    ``settled`` is the share that stays within ``tolerance`` of the target from some time before ``within`` on; the
    worst overshoot, and the worst of what remains of the error at the end, are one number for each coordinate.
    ``saturated`` is the share of samples at which an input was cut to its limit.
    """

    draws: int
    starts: list[list[float]]
    tolerance: list[float]
    within: float
    lasting: float
    settled: float
    settling_median: float
    settling_worst: float
    overshoot_worst: list[float]
    remaining_worst: list[float]
    effort_median: float
    effort_worst: float
    largest_input: list[float]
    saturated: float
    saturated_worst: float

    @classmethod
    def of(cls, trials: Trials, units: Units) -> "LoopOutcome":
        """The worst of a trial that ran away is infinite."""
        task, settling, effort = trials.task, trials.settling, trials.effort
        return cls(
            task.draws,
            units.to_file(task.starts).tolist(),
            units.to_file(task.tolerance).tolist(),
            trials.dt * task.within,
            trials.dt * trials.q.shape[1],
            float(trials.settled.mean()),
            float(np.sort(settling)[len(settling) // 2]),
            float(settling.max()),
            _worst(units.to_file(trials.overshoot)),
            _worst(units.to_file(trials.remaining)),
            float(np.sort(effort)[len(effort) // 2]),
            float(effort.max()),
            _worst(trials.u.max(axis=1), trials.u.min(axis=1)),
            float(trials.saturated.mean()),
            float(trials.saturated.max()),
        )

    def facts(self, units: Units) -> dict[str, str]:
        """Each number with its unit."""
        low, high = (with_units(f(self.starts, axis=0), units) for f in (np.min, np.max))
        return {
            "trials": f"{self.draws:,} draws of the fit, {self.lasting:.3g} s each",
            "from rest at": low if low == high else f"{low} to {high}",
            "settled": f"{self.settled:.1%} within ± {with_units(self.tolerance, units)} by {self.within:.3g} s",
            "settling time": f"median {_time(self.settling_median)}, worst {_time(self.settling_worst)}",
            "worst overshoot": with_units(self.overshoot_worst, units),
            "worst error at the end": with_units(self.remaining_worst, units),
            "effort ∫ u² dt": f"median {self.effort_median:.3g} u² s, worst {self.effort_worst:.3g} u² s",
            "saturated": f"{self.saturated:.1%} of the samples, {self.saturated_worst:.1%} in the worst trial",
        }


def with_units(values: Iterable[float], units: Units) -> str:
    """``x 0.5 m, theta 57.3 deg``, of numbers in the units of the file."""
    known = zip(units.manifold.names, values, units.names, strict=True)
    return ", ".join(f"{name} {value:.4g} {unit}".rstrip() for name, value, unit in known)


def _worst(*parts: Float[np.ndarray, "trials k"]) -> list[float]:
    """The largest magnitude in each column; infinite where a number is missing."""
    sizes = np.abs(np.concatenate(parts))
    return np.where(np.isfinite(sizes), sizes, np.inf).max(axis=0).tolist()


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if math.isfinite(seconds) else "never"
