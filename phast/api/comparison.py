"""``phast.compare``: which of several laws the data prefer, and how decisively."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from phast.api.fitted import Fitted
from phast.api.fitting import as_recording, fit
from phast.data.durations import steps_in
from phast.data.recording import Recording, rows_of
from phast.errors import FitError, InputError
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.method import AbstractMethod
from phast.fitting.progress import Callback
from phast.fitting.second_order import SecondOrder
from phast.fitting.structure import Structure
from phast.report.text import figure, padded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DECISIVE = ((5.0, "decisive"), (2.5, "strong"), (1.0, "weak"))  # differences in log evidence, after Jeffreys
_ALIKE = 1.05  # held-out errors within this factor are as good as each other


class Ranked(NamedTuple):
    """One structure: its log evidence, how many numbers it has learned, its residual, and its error held out.

    ``evidence`` is -N ln(residual) - ½ k ln N, the BIC with the noise that the residuals themselves show; k counts what
    the data determine of fields. ``error`` is that of forecasts over what was not fitted, over the error of standing
    still. ``fitted`` is None where the fit failed.
    """

    name: str
    evidence: float
    coefficients: float
    residual: float
    error: float
    fitted: Fitted | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Candidates, the best first, by their evidence."""

    candidates: tuple[Ranked, ...]
    horizon: str

    @property
    def best(self) -> Fitted:
        """The fit with the largest evidence."""
        found = self.candidates[0].fitted
        assert found is not None
        return found

    def verdicts(self) -> list[str]:
        """Of each candidate, how decisively the best is better."""
        return ["best", *(_words(self.candidates[0].evidence - each.evidence) for each in self.candidates[1:])]

    def remarks(self) -> list[str]:
        """Candidates that cannot be told apart, and a held-out ranking that differs."""
        best, *others = self.candidates
        alike = [each.name for each in others if best.evidence - each.evidence < _DECISIVE[-1][0]]
        notes = [f"{' and '.join([best.name, *alike])} cannot be told apart by these data"] if alike else []
        least = min(self.candidates, key=lambda each: each.error)
        if least.error * _ALIKE < best.error:
            notes.append(f"{least.name} forecasts what was held out better: {figure(least.error)} of standing still")
        notes += [f"{each.name} could not be fitted" for each in self.candidates if each.fitted is None]
        return notes

    def to_frame(self) -> pd.DataFrame:
        """One row for each candidate."""
        rows = [each._asdict() for each in self.candidates]
        frame = pd.DataFrame(rows).drop(columns="fitted").set_index("name")
        frame.insert(1, "behind", [self.candidates[0].evidence - each.evidence for each in self.candidates])
        return frame.assign(verdict=self.verdicts())

    def summary(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        rows = self.to_frame().reset_index().to_dict("records")
        finite = lambda x: None if isinstance(x, float) and not math.isfinite(x) else x  # noqa: E731
        told = [{name: finite(value) for name, value in row.items()} for row in rows]
        return {"candidates": told, "horizon": self.horizon, "remarks": self.remarks()}

    def plot(self) -> "Figure":
        """How far each is behind in evidence, and its error held out."""
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(8.0, 0.5 * len(self.candidates) + 1.5), layout="constrained")
        left, right = drawn.subplots(1, 2, sharey=True)
        frame = self.to_frame().iloc[::-1].replace([math.inf, -math.inf], math.nan)
        left.barh(frame.index, frame["behind"])
        left.set_xlabel("log evidence behind the best")
        right.barh(frame.index, frame["error"])
        right.set_xlabel("error held out / standing still")
        return drawn

    def __repr__(self) -> str:
        rows = [
            [
                each.name,
                figure(self.candidates[0].evidence - each.evidence),
                verdict,
                figure(each.coefficients),
                figure(each.residual),
                figure(each.error),
            ]
            for each, verdict in zip(self.candidates, self.verdicts(), strict=True)
        ]
        heading = ["candidate", "behind", "difference", "numbers", "residual", f"error held out ({self.horizon})"]
        return "\n".join([*padded([heading, *rows]), *(f"note: {remark}" for remark in self.remarks())])


def compare(
    data: Any,
    structures: Sequence[Structure],
    *,
    holdout: float = 0.25,
    horizon: int | str = 50,
    method: AbstractMethod = SecondOrder(),  # noqa: B008 (frozen)
    dt: float | None = None,
    positions: str | list[str] | None = None,
    seed: int = 0,
    progress: Callback | None = None,
) -> Comparison:
    """Fit every structure to a recording, and rank them by evidence and by forecasts of what was not fitted.

    ``data``, ``dt`` and ``positions`` are as for :func:`phast.fit`. The last ``holdout`` of the runs, or of the time
    where there are fewer than four, is not fitted; forecasts of ``horizon`` steps, or a time, are made over it.
    """
    if not structures:
        raise InputError("nothing to compare: give structures, [Structure(potential=…), …]")
    if not 0.0 < holdout < 1.0:
        raise InputError(f"holdout {holdout}: give the share that is not fitted, between 0 and 1")
    recording = as_recording(data, dt, positions)
    learned, kept = split(recording, holdout)
    names = _names(structures)
    found = []
    for name, structure in zip(names, structures, strict=True):
        try:
            fitted = fit(learned, structure, method=method, seed=seed, progress=progress)
        except FitError:
            found.append(Ranked(name, -math.inf, math.inf, math.inf, math.inf, None))
            continue
        found.append(_judged(name, fitted, kept, horizon))
    if all(each.fitted is None for each in found):
        raise InputError("none of the candidates could be fitted: check the units and dt")
    return Comparison(tuple(sorted(found, key=lambda each: -each.evidence)), _told(horizon))


def split(recording: Recording, share: float) -> tuple[Recording, Recording]:
    """What is fitted, and what is not: the last runs, or the last part of each."""
    pieces, count = recording.pieces, len(recording.pieces)
    if count >= _RUNS:
        left = max(1, round((1.0 - share) * count))
        early, late = pieces[:left], pieces[left:]
        return dataclasses.replace(recording, pieces=early), dataclasses.replace(recording, pieces=late)
    ends = [round((1.0 - share) * len(piece.t)) for piece in pieces]
    early = tuple(rows_of(piece, np.arange(len(piece.t)) < end) for piece, end in zip(pieces, ends, strict=True))
    late = tuple(rows_of(piece, np.arange(len(piece.t)) >= end) for piece, end in zip(pieces, ends, strict=True))
    return dataclasses.replace(recording, pieces=early), dataclasses.replace(recording, pieces=late)


_RUNS = 4  # and more: whole runs are held out


def _judged(name: str, fitted: Fitted, kept: Recording, horizon: int | str) -> Ranked:
    model = fitted.model
    if not isinstance(model, ModelAware) or (evidence := model.evidence) is None:
        raise InputError("a comparison needs the evidence of its fits: use method=SecondOrder(…)")
    count = float(np.trace(evidence.information @ evidence.covariance))
    told = -evidence.count * math.log(max(evidence.rms, np.finfo(float).tiny)) - 0.5 * count * math.log(evidence.count)
    told -= evidence.windows_left_out / max(evidence.windows, 1) * evidence.count  # what it leaves out it does not tell
    return Ranked(name, told, count, evidence.rms, _error(fitted, model.window, kept, horizon), fitted)


def _error(fitted: Fitted, window: int, kept: Recording, horizon: int | str) -> float:
    """That of forecasts over what was held out, over that of standing still."""
    room = min(len(piece.t) for piece in kept.pieces) - window
    if room < 1:
        return math.nan
    try:
        off = fitted.forecast(min(steps_in(horizon, fitted.model.dt), room), kept, start="everywhere").seen.off()
    except FitError:
        return math.inf
    own, still = (np.sqrt(np.mean(off[name] ** 2, axis=(0, 1))) for name in ("model", "standing still"))
    return float(np.sqrt(np.mean((own / np.maximum(still, np.finfo(float).tiny)) ** 2)))


def _names(structures: Sequence[Structure]) -> list[str]:
    """What differs between the structures, as text."""
    words = [{k: v for k, v in each.words().items() if k != "regime" or each.regime} for each in structures]
    keys = list(dict.fromkeys(key for each in words for key in each))
    differing = [key for key in keys if len({each.get(key) for each in words}) > 1] or keys[:1]
    names = [", ".join(each[key] for key in differing if key in each) or "nothing named" for each in words]
    if len(set(names)) < len(names):
        raise InputError("two candidates are the same: name each once")
    return names


def _words(behind: float) -> str:
    return next((word for least, word in _DECISIVE if behind >= least), "cannot be told apart")


def _told(horizon: int | str) -> str:
    return horizon if isinstance(horizon, str) else f"{horizon} steps"
