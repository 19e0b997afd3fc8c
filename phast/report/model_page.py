"""One HTML page of a model and a recording: how well it fits, what it says, how it was made.

Everything on it comes from the model's own evidence (:mod:`phast.analysis.identifiability`), its forecasts along the
recording (:mod:`phast.analysis.forecasts`) and the energy that it can account for (:mod:`phast.analysis.energy`), in
the units of the recording's file. Numbers travel in the page as JSON (:mod:`phast.report.page`); ``model_page.js``
draws them. Column names are whatever a file called them: text, never markup.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from phast.analysis.dimensions import Scale, coefficient_units, energy_scale
from phast.analysis.energy import power_balance
from phast.analysis.fields import Curve, Field, fields_along
from phast.analysis.forecasts import Asked, Foresight, foresee
from phast.analysis.identifiability import Coefficient, Determination, identified, report
from phast.analysis.quality import Quality, quality
from phast.components.parameter import in_working_precision, parameter_count
from phast.data.files import write_atomically
from phast.data.recording import Piece, Recording
from phast.data.trajectories import Trajectories
from phast.data.units import Units
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.states import matched
from phast.fitting.progress import Callback, Progress
from phast.report.page import Cell, rendered, rounded, table
from phast.report.provenance import commit
from phast.report.text import each_with_unit, reading, residual_text

_STAGES = 3
_POINTS = 81  # along a coordinate
_AHEAD = 10  # windows, at most, of each forecast
_JUDGED, _DRAWN = 64, 9  # forecasts
_PIECES, _SAMPLES = 8, 800  # in the balance of energy; of each, so many are drawn
_LONGEST_TEXT = 300


def write_model_page(
    model: AbstractForecaster,
    recording: Recording,
    output: str | os.PathLike,
    *,
    about: Mapping[str, Any] | None = None,
    progress: Callback = lambda told: None,
) -> Path:
    """Write the page of ``model`` on ``recording`` to ``output``, in the units of the recording's file.

    ``about`` is what is known of the model beside its coefficients (:attr:`phast.Fitted.about`). ``progress`` hears of
    what is drawn next.
    """
    found = identified(model)
    model, recording = in_working_precision(model), matched(model, recording)
    _require_length(model, recording)
    progress(Progress("drawing forecasts", 0, _STAGES))
    forecasts = _forecasts(model, recording)
    progress(Progress("drawing fields", 1, _STAGES))
    fields = fields_along(found, recording, _POINTS)
    progress(Progress("drawing energy", 2, _STAGES))
    energies = _energies(model, recording)
    told, units = report(found), recording.units
    fit = quality(model, found, units)
    page = rendered(
        "phast.report",
        "model_page",
        [
            {"id": "fit", "labels": units.labels, "window": model.window, "starts": forecasts.drawn},
            {"id": "fields", "along": [_drawn(field) for field in fields]},
            {"id": "energy", "unit": energies.scale.heading(""), "pieces": energies.drawn},
        ],
        names=list(units.manifold.names),
        quality=_quality(fit, forecasts, units),
        forecasts=forecasts,
        found=told,
        coefficients=_coefficients(told.coefficients, coefficient_units(found.system, units)),
        fields=fields,
        energies=energies,
        read=_read(recording),
        notes=recording.notes,
        model=_described(model),
        said=_flat(about or {}),
        made_with=commit(),
    )
    return write_atomically(output, page.encode())


def _require_length(model: ModelAware, recording: Recording) -> None:
    longest = max(len(piece.t) for piece in recording.pieces)
    if longest <= model.window:
        raise InputError(
            f"the longest piece has {longest} samples, but the model looks at {model.window} to find a state: "
            "give a longer recording"
        )


# --- how well it fits ------------------------------------------------------------------------------------------------


def _quality(fit: Quality, forecasts: "Forecasts", units: Units) -> dict[str, str]:
    """The first lines of the page; whatever judges them goes before them."""
    ways = {way: each_with_unit(rms[-1].tolist(), units) for way, rms in forecasts.rms.items()}
    own = ways.pop("model")
    return {
        "residual of the fit": residual_text(fit, units),
        "noise on a position": f"about {each_with_unit(fit.noise, units)}",
        f"forecast {_number(forecasts.lasting)} s ahead": f"{own} off (rms); "
        + "; ".join(f"{way} {off}" for way, off in ways.items()),
    }


# --- forecasts -------------------------------------------------------------------------------------------------------


class Forecasts(NamedTuple):
    """Some to draw, and the root mean square errors of all by lead time, as numbers and as a table."""

    drawn: list[dict[str, Any]]
    rms: dict[str, np.ndarray]
    errors: dict[str, Any]
    count: int
    horizon: int
    lasting: float


def _forecasts(model: ModelAware, recording: Recording) -> Forecasts:
    cuts, context, units = _starts(recording, model.window), model.window, recording.units
    horizon = len(cuts[0].t) - context
    seen = foresee(model, dataclasses.replace(recording, pieces=tuple(cuts)), Asked("start", horizon=horizon))
    drawn = [
        {
            "label": f"{cuts[k].label}, from {_number(cuts[k].t[context - 1])} s",
            "t": rounded(cuts[k].t - cuts[k].t[context - 1]),
            "measured": rounded(units.to_file(cuts[k].q).T),
            "forecast": rounded(units.to_file(seen.q[k]).T),
            "deviation": rounded(units.to_file(seen.deviation[k]).T),
        }
        for k in _evenly(len(cuts), _DRAWN)
    ]
    rms = {way: np.sqrt(np.mean(units.to_file(error) ** 2, axis=0)) for way, error in seen.off().items()}
    return Forecasts(drawn, rms, _errors(seen, rms, units, model.dt), len(cuts), horizon, model.dt * horizon)


def _starts(recording: Recording, window: int) -> list[Piece]:
    """Stretches of a context and what follows, evenly spaced along the recording.

    They are as long as they may be without leaving out pieces that hold half of the samples.
    """
    pieces = [piece for piece in recording.pieces if len(piece.t) > window]
    lengths = np.sort([len(piece.t) for piece in pieces])[::-1]
    half = lengths[np.searchsorted(np.cumsum(lengths), 0.5 * lengths.sum())]
    length = int(min((1 + _AHEAD) * window, half))
    begins = [(piece, start) for piece in pieces for start in range(len(piece.t) - length + 1)]
    return [_cut(*begins[k], length) for k in _evenly(len(begins), _JUDGED)]


def _evenly(total: int, count: int) -> list[int]:
    """At most ``count`` of the numbers below ``total``, the first and the last among them."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).astype(int)).tolist()


def _cut(piece: Piece, start: int, length: int) -> Piece:
    rows = slice(start, start + length)
    return Piece(piece.label, piece.t[rows], piece.q[rows], None if piece.u is None else piece.u[rows])


def _whole(recording: Recording, pieces: Sequence[Piece]) -> Trajectories:
    """Pieces of one length as trajectories."""
    return dataclasses.replace(recording, pieces=tuple(pieces)).trajectories()


def _errors(seen: Foresight, rms: Mapping[str, np.ndarray], units: Units, dt: float) -> dict[str, Any]:
    """Root mean square errors by lead time, beside those of two forecasts that know no physics."""
    inside = np.mean(np.abs(seen.off()["model"]) <= 2.0 * seen.deviation, axis=0)

    def cells(step: int) -> dict[str, Cell]:
        found = {}
        for i, (name, unit) in enumerate(zip(units.manifold.names, units.names, strict=True)):
            title, counted = f"{name}: " * (len(units.names) > 1), f" [{unit}]" * bool(unit)
            errors = {way: float(x[step - 1, i]) for way, x in rms.items()}
            found |= {f"{title}{way}{counted}": Cell(f"{error:.3g}", error) for way, error in errors.items()}
            found[f"{title}within ±2σ"] = Cell(f"{inside[step - 1, i]:.0%}", float(inside[step - 1, i]))
        return found

    return table((_number(dt * step), cells(step)) for step in _leads(len(inside)))


def _leads(horizon: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … and the last."""
    round_ones = (k * 10**power for power in range(7) for k in (1, 2, 5))
    return sorted({step for step in round_ones if step < horizon} | {horizon})


# --- energy ----------------------------------------------------------------------------------------------------------


class Energies(NamedTuple):
    """The balance of some pieces, as lines and as a table."""

    drawn: list[dict[str, Any]]
    totals: dict[str, Any]
    scale: Scale
    left_out: int


def _energies(model: ModelAware, recording: Recording) -> Energies:
    pieces = [piece for piece in recording.pieces if len(piece.t) > model.window]
    chosen = sorted(range(len(pieces)), key=lambda k: -len(pieces[k].t))[:_PIECES]
    pieces = [pieces[k] for k in sorted(chosen)]
    length = max(len(piece.t) for piece in pieces)
    # The filter looks back only: what stands in for the end of a shorter piece changes nothing before it.
    balance = power_balance(model, _whole(recording, [_extended(piece, length, recording.dt) for piece in pieces]))
    scale = energy_scale(model.core.system, recording.units)
    drawn, rows = [], []
    for k, piece in enumerate(pieces):
        known = slice(len(piece.t) - model.window + 1)
        energy, supplied, dissipated, unexplained = (scale.factor * part[k, known] for part in balance[2:])
        lines = {"stored": energy - energy[0], "dissipated": dissipated, "unexplained": unexplained}
        lines |= {} if piece.u is None else {"supplied": supplied}
        shown = _evenly(len(energy), _SAMPLES)
        drawn.append({"label": piece.label, "t": rounded(piece.t[model.window - 1 :][shown])})
        drawn[-1] |= {name: rounded(line[shown]) for name, line in {"energy": energy, **lines}.items()}
        rows.append((piece.label, _totals(lines, np.ptp(energy), scale)))
    return Energies(drawn, table(rows), scale, len(recording.pieces) - len(pieces))


def _extended(piece: Piece, length: int, dt: float) -> Piece:
    """The piece with its last sample repeated."""
    more = length - len(piece.t)
    t = np.append(piece.t, piece.t[-1] + dt * np.arange(1, more + 1))
    q, u = (None if x is None else np.pad(x, ((0, more), (0, 0)), mode="edge") for x in (piece.q, piece.u))
    return Piece(piece.label, t, q, u)


def _totals(lines: Mapping[str, np.ndarray], swing: float, scale: Scale) -> dict[str, Cell]:
    """What each line comes to, and the largest gap as a share of the energy that went anywhere."""
    supplied = lines.get("supplied")
    moved = swing + lines["dissipated"][-1] + (0.0 if supplied is None else np.abs(np.diff(supplied)).sum())
    gap = float(np.abs(lines["unexplained"]).max())
    ends = {name: float(lines[name][-1]) for name in _PARTS if name in lines}
    share = Cell(f"{gap / moved:.2%}", gap / moved) if moved > 0.0 else Cell(_number(gap), gap)
    return {scale.heading(name): Cell(_number(end), end) for name, end in ends.items()} | {"largest gap": share}


_PARTS = ("stored", "supplied", "dissipated", "unexplained")


# --- coefficients and fields -----------------------------------------------------------------------------------------


def _coefficients(found: Sequence[Coefficient], units: Iterable[str]) -> dict[str, Any] | None:
    """A table in the words of ``print(fitted)``; none where everything that was learned is a field."""
    return table((each.name, _line(each, unit)) for each, unit in zip(found, units, strict=True)) if found else None


def _line(found: Coefficient, unit: str) -> dict[str, Cell]:
    determined = found.verdict is Determination.DETERMINED
    return {
        "value ± 1σ": Cell(reading(found), found.value, str(found.verdict) if determined else ""),
        "unit": Cell(unit),
    }


def _number(value: float) -> str:
    return f"{float(value):.4g}"


def _drawn(field: Field) -> dict[str, Any]:
    """A field as the script draws it."""

    def numbers(curve: Curve) -> dict[str, Any]:
        return {"title": curve.heading, "y": rounded(curve.values), "deviation": rounded(curve.deviation)}

    known = {"label": field.label, "moving": field.moving, "at": rounded(field.at), "seen": rounded(field.seen)}
    return known | {"force": numbers(field.force), "damping": numbers(field.damping)}


# --- how it was made -------------------------------------------------------------------------------------------------


def _read(recording: Recording) -> dict[str, str]:
    steps = np.concatenate([np.diff(piece.t) for piece in recording.pieces])
    even = f"every {recording.dt:.6g} s"
    kinds = zip(recording.units.labels, recording.manifold.circles, strict=True)
    return {
        "pieces": f"{len(recording.pieces):,}",
        "samples": f"{sum(len(piece.t) for piece in recording.pieces):,}",
        "time": f"{_number(sum(piece.t[-1] - piece.t[0] for piece in recording.pieces))} s",
        "sampled": even if recording.even else f"unevenly, steps from {steps.min():.4g} to {steps.max():.4g} s",
        "positions": ", ".join(f"{label}, an angle" if circle else label for label, circle in kinds),
        "inputs": ", ".join(recording.inputs) or "none",
    }


def _described(model: ModelAware) -> dict[str, str]:
    system = model.core.system
    return {
        **{name: type(part).__name__ for name, part in vars(system).items() if isinstance(part, eqx.Module)},
        "coefficients": f"{parameter_count(system):,}",
        "step": f"{model.dt:.6g} s",
        "state from": f"the last {model.window} positions",
        "spread widened": f"× {_number(model.evidence.inflation)}, by errors of forecasts over the data of the fit",
    }


def _flat(about: Mapping[str, Any], within: str = "") -> dict[str, str]:
    """Nested words as lines of text."""
    lines: dict[str, str] = {}
    for key, value in about.items():
        if isinstance(value, Mapping):
            lines |= _flat(value, f"{within}{key} · ")
        elif value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            lines[f"{within}{key}"] = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    return lines
