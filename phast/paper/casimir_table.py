"""The tables and the figure of the control study: means over trials, in all regimes or in one, beside the published."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from phast.paper.casimir import DT, REGIMES, SYSTEM
from phast.paper.executors import records_of
from phast.paper.experiments import Experiment, Record, key_of
from phast.paper.tables import AbstractTable, Row, Sheet, hurried, jobs_of, published
from phast.report.plots import COLOURS, panels
from phast.report.text import figure

METRICS = {"success": "success", "final_error": "final error", "effort": "effort", "velocity_error": "velocity error"}
MORE = {"worst_error": "worst error of the last second", "measured_error": "final error as measured"}
PRESET = "casimir"


def control_row(name: str, estimator: str, noise: float, **variation: Any) -> Row:
    """An estimator in the loop under this noise, by the name that the table gives it."""
    return Row(Experiment(SYSTEM, estimator, PRESET, noise, tuple(variation.items()), DT), name)


class CasimirTable(AbstractTable):
    """Rows of estimators, each with its metrics in one regime or over all, and the published ones."""

    name: str
    title: str
    rows: tuple[Row, ...]
    regime: str | None = None
    metrics: tuple[str, ...] = tuple(METRICS)
    seeds: int = 1

    def experiments(self):
        return [row.experiment for row in self.rows]

    def records(self, results, seeds=None):
        return records_of(results, jobs_of(self, seeds))

    def sheet(self, records):
        theirs = published().get(self.name.removesuffix("-quick"), {})
        told = any(metric in row for row in theirs.values() for metric in self.metrics)
        heading = ["σ", "velocity from"]
        heading += [text for m in self.metrics for text in ([(METRICS | MORE)[m]] + (["paper"] if told else []))]
        lines, data = [], []
        for row in self.rows:
            found = metrics_of(row, records, self.regime)
            if found is None:
                continue
            printed = theirs.get(f"{row.name}, σ = {row.experiment.noise:g}", {})
            cells = [(found[m], printed.get(m)) for m in self.metrics]
            shown = [text for pair in cells for text in map(_shown, pair if told else pair[:1])]
            lines.append([f"{row.experiment.noise:g}", row.name or row.experiment.model, *shown])
            data.append({"noise": row.experiment.noise, "name": row.name, **found, "published": printed})
        return Sheet(self.title, heading, lines, data)

    def quick(self):
        rows = tuple(Row(hurried(row.experiment), row.name) for row in self.rows)
        title = f"{self.title} (quick look)"
        return CasimirTable(f"{self.name}-quick", title, rows, self.regime, self.metrics, seeds=1)


def metrics_of(row: Row, records: Sequence[Record], regime: str | None) -> dict[str, float | None] | None:
    """Means over the seeds of a row, in one regime or over all; None where there is no record."""
    mine = [record["metrics"] for record in records if key_of(record) == row.experiment]
    if not mine:
        return None
    suffix = "" if regime is None else f"_{regime}"
    names = [name for name in mine[0] if f"{name}{suffix}" in mine[0] and not name.endswith(tuple(REGIMES))]
    return {name: _mean([each[f"{name}{suffix}"] for each in mine]) for name in names}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _shown(value: float | int | None) -> str:
    return "" if value is None else figure(float(value))


def success_figure(table: CasimirTable, records: Sequence[Record]) -> Figure:
    """Above, the share of successes in each regime; below, the effort: one bar for each way to tell the velocity."""
    told = {row.name: row for row in table.rows if metrics_of(row, records, None) is not None}
    drawn, axes = panels(2, 1, figsize=(9.5, 5.6), sharex=True)
    width = 0.8 / max(len(told), 1)
    for i, (name, row) in enumerate(told.items()):
        places = np.arange(len(REGIMES)) + (i - 0.5 * (len(told) - 1)) * width
        for ax, metric in zip(axes[:, 0], ("success", "effort"), strict=True):
            found = [metrics_of(row, records, regime) for regime in REGIMES]
            heights = [np.nan if each is None or each[metric] is None else each[metric] for each in found]
            ax.bar(places, heights, 0.92 * width, color=COLOURS[i % len(COLOURS)], label=name)
    above, below = axes[:, 0]
    above.set(ylabel="share of successes", ylim=(0.0, 1.05), title=table.title)
    below.set(ylabel="effort ∫u² dt", yscale="log", xticks=range(len(REGIMES)), xticklabels=REGIMES)
    handles, labels = above.get_legend_handles_labels()
    drawn.tight_layout(rect=(0, 0.1, 1, 1))
    drawn.legend(handles, labels, loc="lower center", ncols=3, fontsize="small", frameon=False)
    return drawn
