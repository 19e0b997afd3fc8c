"""The paper's tables: which runs each needs, and our numbers beside the published ones (``paper_tables.toml``)."""

import dataclasses
import functools
import statistics
import tomllib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple

from phast.errors import InputError
from phast.suite import Record

REGIMES = ("phast-known", "phast-partial", "phast-unknown")


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """One table of the paper as runs (systems × models × seeds by one preset) and the metrics that it shows."""

    name: str
    title: str
    systems: tuple[str, ...]
    models: tuple[str, ...]
    metrics: tuple[str, ...]
    preset: str = "paper"
    seeds: int = 5


TABLES: dict[str, PaperTable] = {
    table.name: table
    for table in (
        PaperTable(
            "windy-sharp",
            "Windy Pendulum (q-only) by the sharp preset, beside the same published numbers",
            ("pendulum-windy",),
            REGIMES,
            ("rollout_theta_wrap_mse_h100", "rollout_theta_wrap_mse_h100_median", "damping_r2", "damping_mae"),
            preset="sharp",
            seeds=3,
        ),
        PaperTable(
            "windy-identifiability",
            "Windy Pendulum (q-only): identifiability and energy consistency",
            ("pendulum-windy",),
            REGIMES,
            (
                "rollout_theta_wrap_mse_h100",
                "damping_r2",
                "damping_mae",
                "rollout_energy_budget_resid_h100",
            ),
        ),
    )
}


def paper_table(name: str) -> PaperTable:
    """The table called ``name``."""
    if name not in TABLES:
        raise InputError(f"unknown table '{name}': choose one of {', '.join(TABLES)}")
    return TABLES[name]


@functools.cache
def published() -> dict[str, dict[str, dict[str, Any]]]:
    """system -> model -> metric -> [mean, std]; "parameters" -> count."""
    return tomllib.loads(resources.files("phast").joinpath("paper_tables.toml").read_text(encoding="utf-8"))


class Comparison(NamedTuple):
    """One cell of a table: a metric of one model on one system, ours over seeds and theirs."""

    system: str
    model: str
    metric: str
    mean: float
    deviation: float
    median: float
    seeds: int
    published: tuple[float, float] | None

    @property
    def ratio(self) -> float | None:
        """Ours over theirs, where that means anything."""
        return self.mean / self.published[0] if self.published and min(self.mean, self.published[0]) > 0 else None


def compare(records: Iterable[Record], metrics: Sequence[str]) -> list[Comparison]:
    """Records grouped by system and model: the named metrics over seeds, beside what the paper publishes."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["system"], record["model"]), []).append(record)
    rows = []
    for (system, model), group in groups.items():
        theirs = published().get(system, {}).get(model, {})
        for metric in metrics:
            values = [record["metrics"][metric] for record in group if metric in record["metrics"]]
            if values:
                deviation = statistics.stdev(values) if len(values) > 1 else 0.0
                centre = statistics.fmean(values), deviation, statistics.median(values)
                pair = tuple(theirs[metric]) if metric in theirs else None
                rows.append(Comparison(system, model, metric, *centre, len(values), pair))
    return rows


def figure(value: float) -> str:
    """Four digits; in scientific notation, or as a distance from one, where that says more."""
    if 0.999 < value < 1.0:
        return f"1 - {1.0 - value:.1e}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


def cells(rows: Iterable[Comparison]) -> list[list[str]]:
    """Text for each comparison: model, metric, ours, median seed, paper, ratio."""
    out = []
    for row in rows:
        ours = figure(row.mean) + (f" ± {figure(row.deviation)}" if row.seeds > 1 else "")
        theirs = "" if row.published is None else f"{figure(row.published[0])} ± {figure(row.published[1])}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2g}"
        out.append([row.model, row.metric, ours, figure(row.median), theirs, ratio])
    return out


HEADER = ["model", "metric", "ours", "median seed", "paper", "ours/paper"]


def markdown(rows: Iterable[Comparison]) -> str:
    """The comparison as a Markdown table."""
    lines = [HEADER, ["---"] * len(HEADER), *cells(rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
