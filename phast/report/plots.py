"""Figures: a rollout beside the truth, its phase portrait, the damping field, energy over time."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phast.analysis.forecasts import Foresight
from phast.data.files import write_atomically
from phast.data.units import Units
from phast.errors import InputError

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


def rollout(
    q: np.ndarray, forecasts: Mapping[str, np.ndarray], *, dt: float, names: Sequence[str], context: int
) -> Figure:
    """Positions (T, n) and what was forecast after ``context`` samples, one panel per coordinate."""
    n = q.shape[1]
    figure, axes = panels(n, 1, figsize=(8, 2.6 * n), sharex=True)
    t = dt * np.arange(len(q))
    for i, ax in enumerate(axes[:, 0]):
        ax.axvspan(t[0], t[context - 1], color="0.9", label="context")
        ax.plot(t, q[:, i], **TRUTH)
        for colour, (label, path) in zip(COLOURS, forecasts.items(), strict=False):
            ax.plot(dt * (context + np.arange(len(path))), path[:, i], "--", color=colour, label=label)
        ax.set_ylabel(names[i])
    axes[-1, 0].set_xlabel("time")
    axes[0, 0].legend(loc="upper right", fontsize="small")
    axes[0, 0].set_title("Open-loop forecast from positions alone")
    return figure


def measured_figure(seen: Foresight, units: Units, title: str) -> Figure:
    """The forecast of median error, and how errors grow with the time ahead, beside standing still."""
    off = seen.off()
    median = int(np.argsort(np.mean(off["model"] ** 2, axis=(1, 2)))[len(off["model"]) // 2])
    figure = forecast_figure(seen, units, median)
    figure.axes[0].set_title(title, fontsize="medium")
    ax = figure.axes[0].inset_axes((1.08, 0.0, 0.5, 1.0))
    first = seen.contexts[0]
    for colour, (label, kind) in zip(
        COLOURS, {"forecast": "model", "standing still": "standing still"}.items(), strict=False
    ):
        rms = np.sqrt(np.mean((units.factors * off[kind]) ** 2, axis=(0, 2)))
        ax.semilogy(first.after[: len(rms)] - first.t[-1], rms, color=colour, label=label)
    ax.set(xlabel="time ahead [s]", title="rms error")
    ax.legend(fontsize="x-small")
    ax.grid(alpha=0.3)
    return figure


def forecast_figure(seen: Foresight, units: Units, which: int = 0) -> Figure:
    """One forecast with a band of two standard deviations, after its context, beside what was measured next."""
    first, n = seen.contexts[which], seen.manifold.size
    figure, axes = panels(n, 1, figsize=(8, 2.6 * n), sharex=True)
    measured = units.to_file(np.concatenate([first.q, first.truth]))
    times, path = np.concatenate([first.t, first.after])[: len(measured)], units.to_file(seen.q[which])
    for i, ax in enumerate(axes[:, 0]):
        ax.axvspan(first.t[0], first.t[-1], color="0.9", label="context")
        ax.plot(times, measured[:, i], **TRUTH | {"label": "measured"})
        if seen.deviation is not None:
            width = 2.0 * units.to_file(seen.deviation[which])[:, i]
            ax.fill_between(
                first.after, path[:, i] - width, path[:, i] + width, color=COLOURS[0], alpha=0.25, label="± 2σ"
            )
        ax.plot(first.after, path[:, i], "--", color=COLOURS[0], label="forecast")
        ax.set_ylabel(units.labels[i])
    axes[-1, 0].set_xlabel("time [s]")
    axes[0, 0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    axes[0, 0].set_title("Open-loop forecast from positions alone")
    return figure


def fields_figure(fields: Mapping[str, pd.DataFrame], units: Units) -> Figure:
    """Force and damping along each coordinate, each with a band of two standard deviations."""
    figure, axes = panels(len(fields), 2, figsize=(10, 3.2 * len(fields)))
    for row, field, label in zip(axes, fields.values(), units.labels, strict=True):
        at, force, force_deviation, damping, damping_deviation = field.to_numpy().T
        for ax, values, deviation, name in (
            (row[0], force, force_deviation, "force -∂V/∂q"),
            (row[1], damping, damping_deviation, "damping d [1/s]"),
        ):
            ax.fill_between(at, values - 2 * deviation, values + 2 * deviation, color=COLOURS[0], alpha=0.25)
            ax.plot(at, values, color=COLOURS[0])
            ax.set(xlabel=label, ylabel=name)
        row[1].set_ylim(bottom=0.0)
    figure.tight_layout()
    return figure


def phase_portrait(
    true: tuple[np.ndarray, np.ndarray], forecasts: Mapping[str, tuple[np.ndarray, np.ndarray]], *, name: str
) -> Figure:
    """One coordinate against its velocity."""
    figure, ax = panel(figsize=(5, 4.2))
    ax.plot(*true, **TRUTH)
    for colour, (label, path) in zip(COLOURS, forecasts.items(), strict=False):
        ax.plot(*path, "--", color=colour, label=label)
    ax.plot(true[0][0], true[1][0], "o", color="black", markersize=5)
    ax.set(xlabel=name, ylabel=f"velocity of {name}", title="Phase portrait")
    ax.legend(fontsize="small")
    return figure


def damping_field(q: np.ndarray, true: np.ndarray | None, learned: Mapping[str, np.ndarray], *, name: str) -> Figure:
    """d(q) along one coordinate: the truth where it is known, and what was learned."""
    figure, ax = panel(figsize=(6, 3.6))
    if true is not None:
        ax.plot(q, true, **TRUTH)
    for colour, (label, values) in zip(COLOURS, learned.items(), strict=False):
        ax.plot(q, values, "--", color=colour, label=label)
    ax.set_ylim(bottom=0.0)
    ax.set(xlabel=name, ylabel=f"d({name})", title="Damping")
    ax.legend(fontsize="small")
    return figure


def energy(
    t: np.ndarray, true: np.ndarray, forecasts: Mapping[str, np.ndarray], *, title: str = "Energy of the rollout"
) -> Figure:
    """H over time, true and forecast."""
    figure, ax = panel(figsize=(6, 3.6))
    ax.plot(t, true, **TRUTH)
    for colour, (label, values) in zip(COLOURS, forecasts.items(), strict=False):
        ax.plot(t, values, "--", color=colour, label=label)
    ax.set(xlabel="time", ylabel="energy", title=title)
    ax.legend(fontsize="small")
    return figure


def error_growth(curves: Mapping[str, np.ndarray], *, dt: float) -> Figure:
    """Median squared error over time, a curve for each way to estimate the state."""
    figure, ax = panel(figsize=(7, 4))
    for colour, (label, error) in zip(COLOURS, curves.items(), strict=False):
        ax.semilogy(dt * np.arange(1, len(error) + 1), error, color=colour, label=label)
    ax.set(xlabel="time after the context", ylabel="median squared error")
    ax.set_title("The same, true physics from four estimates of the velocity")
    ax.legend(fontsize="small")
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
    ax.set(xlabel="noise on positions (rad)", ylabel="median squared error over 100 steps")
    ax.set_title("Learned and forecast under noise")
    ax.legend(fontsize="small")
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
