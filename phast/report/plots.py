"""Figures: forecasts beside what was measured, errors by lead time, fields of force and damping, closed loops."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phast.analysis.fields import Field
from phast.analysis.forecasts import Foresight
from phast.data.files import write_atomically
from phast.data.units import Units
from phast.errors import InputError

if TYPE_CHECKING:
    from phast.control.trials import Trials

TRUTH = {"color": "black", "linewidth": 1.6, "label": "truth"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


_DPI = 130
_Size = tuple[float | int, float | int]


class ShownFigure(Figure):
    """A figure that a notebook shows by itself, whatever backend is chosen."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_DPI, bbox_inches="tight")
        return buffer.getvalue()


def panels(rows: int, columns: int, *, figsize: _Size, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (rows, columns)."""
    figure = ShownFigure(figsize=figsize)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def panel(*, figsize: _Size) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    figure, axes = panels(1, 1, figsize=figsize)
    return figure, axes[0, 0]


def save_figure(figure: Figure, path: str | os.PathLike) -> Path:
    """Write ``figure`` in the format that the file name says, whole or not at all."""
    kind, kinds = Path(path).suffix.lstrip(".").lower() or "png", figure.canvas.get_supported_filetypes()
    if kind not in kinds:
        raise InputError(f"cannot draw '{path}': the ending must be one of {', '.join(sorted(kinds))}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=_DPI, bbox_inches="tight")
    return write_atomically(path, buffer.getvalue())


def legend(axes: Axes) -> None:
    """What the lines are, beside the panel: never over the end of a line."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.3, fontsize="small", frameon=False)


def forecast_figure(seen: Foresight, units: Units, which: int = 0) -> Figure:
    """One forecast with a band of two standard deviations, after its context, beside what was measured next."""
    n = seen.manifold.size
    figure, axes = panels(n, 1, figsize=(8, 2.6 * n), sharex=True)
    _draw_forecast(list(axes[:, 0]), seen, units, which)
    legend(axes[0, 0])
    axes[0, 0].set_title("Open-loop forecast from positions alone")
    return figure


def measured_figure(seen: Foresight, units: Units, title: str) -> Figure:
    """The forecast of median error, and how errors grow with the time ahead, beside standing still."""
    errors = np.mean(seen.off()["model"] ** 2, axis=(1, 2))
    n = seen.manifold.size
    figure, axes = panels(n, 2, figsize=(12, 2.6 * n), sharex="col", width_ratios=(2, 1))
    _draw_forecast(list(axes[:, 0]), seen, units, int(np.argsort(errors)[len(errors) // 2]))
    _draw_errors(list(axes[:, 1]), seen, units)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(labels), frameon=False)
    legend(axes[0, 1])
    figure.suptitle(title, fontsize="medium")
    figure.tight_layout()
    return figure


def _draw_forecast(axes: Sequence[Axes], seen: Foresight, units: Units, which: int) -> None:
    first = seen.contexts[which]
    measured = units.to_file(np.concatenate([first.q, first.truth]))
    times, path = np.concatenate([first.t, first.after])[: len(measured)], units.to_file(seen.q[which])
    for i, ax in enumerate(axes):
        ax.axvspan(first.t[0], first.t[-1], color="0.9", label="context")
        ax.plot(times, measured[:, i], **TRUTH | {"label": "measured"})
        if seen.deviation is not None:
            width = 2.0 * units.to_file(seen.deviation[which])[:, i]
            ax.fill_between(
                first.after, path[:, i] - width, path[:, i] + width, color=COLOURS[0], alpha=0.25, label="± 2σ"
            )
        ax.plot(first.after, path[:, i], "--", color=COLOURS[0], label="forecast")
        ax.set_ylabel(units.labels[i])
    axes[-1].set_xlabel("time [s]")


def _draw_errors(axes: Sequence[Axes], seen: Foresight, units: Units) -> None:
    first, off = seen.contexts[0], seen.off()
    for colour, (label, kind) in zip(COLOURS, _RIVALS.items(), strict=False):
        rms = np.sqrt(np.mean(units.to_file(off[kind]) ** 2, axis=0))
        for ax, line in zip(axes, rms.T, strict=True):
            ax.semilogy(first.after[: len(line)] - first.t[-1], line, color=colour, label=label)
    for ax, label in zip(axes, units.labels, strict=True):
        ax.set_ylabel(f"rms error of {label}")
        ax.grid(alpha=0.3)
    axes[-1].set_xlabel("time ahead [s]")


_RIVALS = {"forecast": "model", "standing still": "standing still"}


def fields_figure(fields: Sequence[Field]) -> Figure:
    """Force and damping along each coordinate, each with a band of two standard deviations."""
    figure, axes = panels(len(fields), 2, figsize=(10, 3.2 * len(fields)))
    for row, field in zip(axes, fields, strict=True):
        for ax, curve in zip(row, (field.force, field.damping), strict=True):
            low, high = (curve.values + sign * 2 * curve.deviation for sign in (-1, 1))
            ax.fill_between(field.at, low, high, color=COLOURS[0], alpha=0.25)
            ax.plot(field.at, curve.values, color=COLOURS[0])
            ax.set(xlabel=field.label, ylabel=curve.heading)
        row[1].set_ylim(bottom=0.0)
        row[1].set_title(field.moving.strip(), fontsize="small")
    figure.tight_layout()
    return figure


def damping_field(q: np.ndarray, true: np.ndarray | None, learned: Mapping[str, np.ndarray], *, name: str) -> Figure:
    """d(q) along an angle: the truth where it is known, and what was learned."""
    figure, ax = panel(figsize=(6, 3.6))
    if true is not None:
        ax.plot(q, true, **TRUTH)
    for colour, (label, values) in zip(COLOURS, learned.items(), strict=False):
        ax.plot(q, values, "--", color=colour, label=label)
    ax.set_ylim(bottom=0.0)
    ax.set(xlabel=f"{name} [rad]", ylabel=f"d({name}) [1/s]", title="Damping")
    legend(ax)
    return figure


def error_growth(curves: Mapping[str, np.ndarray], *, dt: float) -> Figure:
    """Median squared error over time, a curve for each way to estimate the state."""
    figure, ax = panel(figsize=(7, 4))
    for colour, (label, error) in zip(COLOURS, curves.items(), strict=False):
        ax.semilogy(dt * np.arange(1, len(error) + 1), error, color=colour, label=label)
    ax.set(xlabel="time after the context [s]", ylabel="median squared error [rad²]")
    ax.set_title("The same, true physics from four estimates of the velocity")
    legend(ax)
    ax.grid(alpha=0.3)
    return figure


def noise_levels(curves: Mapping[str, Mapping[float, float]]) -> Figure:
    """Median rollout error against noise, a line for each method; no noise stands at the left edge."""
    figure, ax = panel(figsize=(7, 4))
    levels = sorted({noise for curve in curves.values() for noise in curve})
    for colour, (label, curve) in zip(COLOURS, curves.items(), strict=False):
        style = {"color": "black", "linestyle": "--"} if label.startswith("floor") else {"color": colour, "marker": "o"}
        ax.semilogy(range(len(levels)), [curve[noise] for noise in levels], label=label, **style)
    ax.set_xticks(range(len(levels)), [f"{noise:g}" for noise in levels])
    ax.set(xlabel="noise on positions [rad]", ylabel="median squared error over 100 steps [rad²]")
    ax.set_title("Learned and forecast under noise")
    legend(ax)
    ax.grid(alpha=0.3)
    return figure


def states_figure(t: np.ndarray, x: np.ndarray, deviation: np.ndarray, names: Sequence[str]) -> Figure:
    """Columns of ``x`` over time, each with a band of two standard deviations, one panel each."""
    figure, axes = panels(len(names), 1, figsize=(8.0, 2.0 * len(names)), sharex=True)
    for ax, values, each, name in zip(axes[:, 0], x.T, deviation.T, names, strict=True):
        ax.fill_between(t, values - 2.0 * each, values + 2.0 * each, color=COLOURS[0], alpha=0.25)
        ax.plot(t, values, color=COLOURS[0])
        ax.set_ylabel(name)
    axes[-1, 0].set_xlabel("time [s]")
    figure.tight_layout()
    return figure


def closed_loop_figure(trials: "Trials", units: Units, inputs: Sequence[str]) -> Figure:
    """Positions and inputs of closed loops: for each start the median and the range of nine in ten trials."""
    n, count = units.manifold.size, units.manifold.size + len(inputs)
    figure, axes = panels(count, 1, figsize=(8.0, 2.2 * count), sharex=True)
    target, band = units.to_file(trials.design.target), units.to_file(trials.task.tolerance)
    for k in range(min(len(trials.task.starts), len(trials.q))):
        colour, values = COLOURS[k % len(COLOURS)], np.concatenate([units.to_file(trials.q), trials.u], axis=2)
        for ax, (low, middle, high) in zip(axes[:, 0], trials.fan(k, values), strict=True):
            ax.fill_between(trials.t, low, high, color=colour, alpha=0.25)
            ax.plot(trials.t, middle, color=colour, linewidth=1.0)
    for i, ax in enumerate(axes[:n, 0]):
        ax.axhspan(target[i] - band[i], target[i] + band[i], color="0.85", zorder=0)
        ax.axhline(target[i], color="black", linestyle="--", linewidth=1.0)
        ax.set_ylabel(units.labels[i])
    for ax, name, most in zip(axes[n:, 0], inputs, trials.design.limits or (None,) * len(inputs), strict=True):
        for sign in () if most is None else (-1.0, 1.0):
            ax.axhline(sign * most, color="black", linestyle=":", linewidth=1.0)
        ax.set_ylabel(f"{name} [u]")
    axes[-1, 0].set_xlabel("time [s]")
    figure.tight_layout()
    return figure
