"""One HTML page of a model and a recording: what was read, what was found, and how far to trust it.

Everything on it comes from the model's own evidence (:mod:`phast.analysis.identifiability`), its forecasts along the
recording (:mod:`phast.analysis.forecasts`) and the energy that it can account for (:mod:`phast.analysis.energy`).
Numbers travel in the page as JSON (:mod:`phast.report.page`); ``model_page.js`` draws them. Column names are whatever
a file called them: text, never markup.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from phast.analysis.energy import power_balance
from phast.analysis.forecasts import Asked, Foresight, foresee
from phast.analysis.identifiability import Coefficient, along, damping_band, force_band, identified, report
from phast.components.parameter import in_working_precision, parameter_count
from phast.data.files import write_atomically
from phast.data.recording import Piece, Recording
from phast.data.trajectories import Trajectories
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.states import matched
from phast.fitting.shooting import Identified
from phast.report.page import Cell, rendered, rounded, table
from phast.report.provenance import commit
from phast.report.text import to_its_digits

SECTIONS = ("energy", "fields", "forecasts")  # in the order of their making: the first knows the typical speed
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
    on_section: Callable[[str], None] = lambda name: None,
) -> Path:
    """Write the page of ``model`` on ``recording`` to ``output``.

    ``about`` is what is known of the model beside its coefficients (:func:`phast.describe`). ``on_section`` hears the
    name of each of ``SECTIONS`` before its turn.
    """
    found = identified(model)
    model, recording = in_working_precision(model), matched(model, recording)
    longest = max(len(piece.t) for piece in recording.pieces)
    if longest <= model.window:
        raise InputError(
            f"the longest piece has {longest} samples, but the model looks at {model.window} to find a state: "
            "give a longer recording"
        )
    on_section("energy")
    energies = _energies(model, recording)
    on_section("fields")
    seen = recording.trajectories()
    fields = [_field(found, seen, i, float(speed)) for i, speed in enumerate(energies.speed)]
    on_section("forecasts")
    forecasts = _forecasts(model, recording)
    names = list(model.manifold.names)
    page = rendered(
        "phast.report",
        "model_page",
        [
            {"id": "fields", "names": names, "along": fields},
            {"id": "forecasts", "names": names, "window": model.window, "starts": forecasts.drawn},
            {"id": "energy", "pieces": energies.drawn},
        ],
        names=names,
        read=_read(recording),
        notes=recording.notes,
        model=_described(model),
        said=_flat(about or {}),
        found=report(found),
        coefficients=_coefficients(report(found).coefficients),
        fields=fields,
        forecasts=forecasts,
        energies=energies,
        made_with=commit(),
    )
    return write_atomically(output, page.encode())


# --- what was read, and what the model is ----------------------------------------------------------------------------


def _read(recording: Recording) -> dict[str, str]:
    steps = np.concatenate([np.diff(piece.t) for piece in recording.pieces])
    even = f"every {recording.dt:.6g}"
    kinds = zip(recording.manifold.names, recording.manifold.circles, strict=True)
    return {
        "pieces": f"{len(recording.pieces):,}",
        "samples": f"{sum(len(piece.t) for piece in recording.pieces):,}",
        "time": _number(sum(piece.t[-1] - piece.t[0] for piece in recording.pieces)),
        "sampled": even if recording.even else f"unevenly, steps from {steps.min():.4g} to {steps.max():.4g}",
        "positions": ", ".join(f"{name} (angle, in radians)" if circle else name for name, circle in kinds),
        "inputs": ", ".join(recording.inputs) or "none",
    }


def _described(model: ModelAware) -> dict[str, str]:
    system, evidence = model.core.system, model.evidence
    noise = np.broadcast_to(np.asarray(model.noise, dtype=float), (model.manifold.size,))
    return {
        **{name: type(part).__name__ for name, part in vars(system).items() if isinstance(part, eqx.Module)},
        "coefficients": f"{parameter_count(system):,}",
        "step": f"{model.dt:.6g}",
        "state from": f"the last {model.window} positions",
        "noise on a position": ", ".join(map(_number, dict.fromkeys(noise))),
        "residual of the fit": f"{_number(evidence.rms)} rms over {evidence.count:,} positions",
        "spread widened": f"× {_number(evidence.inflation)}, by errors of forecasts over the data of the fit",
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


# --- coefficients ----------------------------------------------------------------------------------------------------


def _coefficients(found: Sequence[Coefficient]) -> dict[str, Any] | None:
    """A table; none where everything that was learned is a field."""
    return table((each.name, _line(each)) for each in found) if found else None


def _line(found: Coefficient) -> dict[str, Cell]:
    return {
        "value": Cell(to_its_digits(found.value, found.deviation), found.value),
        "± 1σ": Cell(f"{found.deviation:.2g}", found.deviation),
        "identifiable": Cell("yes" if found.identifiable else "NO", float(found.identifiable)),
    }


def _number(value: float) -> str:
    return f"{float(value):.4g}"


# --- fields ----------------------------------------------------------------------------------------------------------


def _field(found: Identified, data: Trajectories, i: int, speed: float) -> dict[str, Any]:
    """The force on a coordinate and its damping, along it."""
    points = along(data, i, _POINTS)
    speeds = np.zeros(data.manifold.size)
    speeds[i] = speed
    bands = {"force": force_band(found, points), "damping": damping_band(found, points, speeds)}
    seen = np.asarray(data.manifold.wrap(jnp.asarray(data.q)))[..., i]
    return {
        "at": rounded(points[:, i]),
        "seen": rounded(np.quantile(seen, (0.01, 0.99))),
        "speed": f"{speed:.3g}",
        **{name: rounded(value[:, i]) for name, (value, _) in bands.items()},
        **{f"{name}_deviation": rounded(deviation[:, i]) for name, (_, deviation) in bands.items()},
    }


# --- forecasts -------------------------------------------------------------------------------------------------------


class Forecasts(NamedTuple):
    """Some to draw, and a table of the errors of all."""

    drawn: list[dict[str, Any]]
    errors: dict[str, Any]
    count: int
    horizon: int


def _forecasts(model: ModelAware, recording: Recording) -> Forecasts:
    cuts, context = _starts(recording, model.window), model.window
    horizon = len(cuts[0].t) - context
    seen = foresee(model, dataclasses.replace(recording, pieces=tuple(cuts)), Asked("start", horizon=horizon))
    drawn = [
        {
            "label": f"{cuts[k].label}, from {_number(cuts[k].t[context - 1])}",
            "t": rounded(cuts[k].t - cuts[k].t[context - 1]),
            "measured": rounded(cuts[k].q.T),
            "forecast": rounded(seen.q[k].T),
            "deviation": rounded(seen.deviation[k].T),
        }
        for k in _evenly(len(cuts), _DRAWN)
    ]
    return Forecasts(drawn, _errors(seen, model.dt), len(cuts), horizon)


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


def _errors(seen: Foresight, dt: float) -> dict[str, Any]:
    """Root mean square errors by lead time, beside those of two forecasts that know no physics."""
    off, names = seen.off(), seen.manifold.names
    rms = {way: np.sqrt(np.mean(error**2, axis=0)) for way, error in off.items()}
    inside = np.mean(np.abs(off["model"]) <= 2.0 * seen.deviation, axis=0)

    def cells(step: int) -> dict[str, Cell]:
        found = {"steps": Cell(str(step), step)}
        for i, name in enumerate(names):
            title = f"{name}: " if len(names) > 1 else ""
            found |= {f"{title}{way}": Cell(f"{x[step - 1, i]:.3g}", float(x[step - 1, i])) for way, x in rms.items()}
            found[f"{title}within ±2σ"] = Cell(f"{inside[step - 1, i]:.0%}", float(inside[step - 1, i]))
        return found

    return table((_number(dt * step), cells(step)) for step in _leads(len(inside)))


def _leads(horizon: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … and the last."""
    round_ones = (k * 10**power for power in range(7) for k in (1, 2, 5))
    return sorted({step for step in round_ones if step < horizon} | {horizon})


# --- energy ----------------------------------------------------------------------------------------------------------


class Energies(NamedTuple):
    """The balance of some pieces, as lines and as a table, and the typical speed of each coordinate along them."""

    drawn: list[dict[str, Any]]
    totals: dict[str, Any]
    speed: Float[np.ndarray, " n"]
    left_out: int


def _energies(model: ModelAware, recording: Recording) -> Energies:
    pieces = [piece for piece in recording.pieces if len(piece.t) > model.window]
    chosen = sorted(range(len(pieces)), key=lambda k: -len(pieces[k].t))[:_PIECES]
    pieces = [pieces[k] for k in sorted(chosen)]
    length = max(len(piece.t) for piece in pieces)
    # The filter looks back only: what stands in for the end of a shorter piece changes nothing before it.
    balance = power_balance(model, _whole(recording, [_extended(piece, length, recording.dt) for piece in pieces]))
    drawn, rows, squares = [], [], []
    for k, piece in enumerate(pieces):
        known = slice(len(piece.t) - model.window + 1)
        v, energy, supplied, dissipated, unexplained = (part[k, known] for part in balance[1:])
        lines = {"stored": energy - energy[0], "dissipated": dissipated, "unexplained": unexplained}
        lines |= {} if piece.u is None else {"supplied": supplied}
        shown = _evenly(len(energy), _SAMPLES)
        drawn.append({"label": piece.label, "t": rounded(piece.t[model.window - 1 :][shown])})
        drawn[-1] |= {name: rounded(line[shown]) for name, line in {"energy": energy, **lines}.items()}
        rows.append((piece.label, _totals(lines, np.ptp(energy))))
        squares.append(v**2)
    speed = np.sqrt(np.mean(np.concatenate(squares), axis=0))
    return Energies(drawn, table(rows), speed, len(recording.pieces) - len(pieces))


def _extended(piece: Piece, length: int, dt: float) -> Piece:
    """The piece with its last sample repeated."""
    more = length - len(piece.t)
    t = np.append(piece.t, piece.t[-1] + dt * np.arange(1, more + 1))
    q, u = (None if x is None else np.pad(x, ((0, more), (0, 0)), mode="edge") for x in (piece.q, piece.u))
    return Piece(piece.label, t, q, u)


def _totals(lines: Mapping[str, np.ndarray], swing: float) -> dict[str, Cell]:
    """What each line comes to, and the largest gap as a share of the energy that went anywhere."""
    supplied = lines.get("supplied")
    moved = swing + lines["dissipated"][-1] + (0.0 if supplied is None else np.abs(np.diff(supplied)).sum())
    gap = float(np.abs(lines["unexplained"]).max())
    ends = {name: float(line[-1]) for name, line in lines.items()}
    return {
        "stored": Cell(_number(ends["stored"]), ends["stored"]),
        "supplied": Cell("") if supplied is None else Cell(_number(ends["supplied"]), ends["supplied"]),
        "dissipated": Cell(_number(ends["dissipated"]), ends["dissipated"]),
        "unexplained": Cell(_number(ends["unexplained"]), ends["unexplained"]),
        "largest gap": Cell(f"{gap / moved:.2%}", gap / moved) if moved > 0.0 else Cell(_number(gap), gap),
    }
