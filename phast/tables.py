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
    """One table as runs (systems × models × noise levels × seeds by one preset) and the metrics that it shows."""

    name: str
    title: str
    systems: tuple[str, ...]
    models: tuple[str, ...]
    metrics: tuple[str, ...]
    preset: str = "paper"
    seeds: int = 5
    noise: tuple[float, ...] = (0.0,)


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
        ),
        PaperTable(
            "windy-noise",
            "Windy Pendulum by the sharp preset with noise on training data and contexts",
            ("pendulum-windy",),
            ("phast-partial",),
            ("rollout_theta_wrap_mse_h100", "rollout_theta_wrap_mse_h100_median", "damping_r2", "damping_mae"),
            preset="sharp",
            seeds=3,
            noise=(0.01, 0.05),
        ),
        PaperTable(
            "sharp-mechanical",
            "The other mechanical benchmarks by the sharp preset: rollouts of 100 steps",
            (
                "pendulum-conservative",
                "pendulum-damped",
                "cartpole-windy",
                "oscillator-conservative",
                "oscillator-damped",
                "double-pendulum-conservative",
                "double-pendulum-damped",
            ),
            REGIMES,
            tuple(
                f"rollout_{kind}_h100{suffix}"
                for kind in ("theta_wrap_mse", "mixed_mse", "mse")
                for suffix in ("", "_median")
            ),
            preset="sharp",
            seeds=1,
        ),
        PaperTable(
            "sharp-others",
            "The five non-mechanical benchmarks by the sharp preset: the published error is that of all next steps",
            ("rlc", "heat-exchange", "lennard-jones-3", "n-body-3", "predator-prey"),
            REGIMES,
            ("mse", "next_step_after_burn_in", "rollout_mse_h100"),
            preset="sharp",
            seeds=1,
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
    """system -> model -> metric -> [mean, std]; "parameters" -> count. Beside the systems: ablation -> row -> the same,
    or a plain number where the paper prints no deviation."""
    return tomllib.loads(resources.files("phast").joinpath("paper_tables.toml").read_text(encoding="utf-8"))


class Comparison(NamedTuple):
    """One cell of a table: a metric of one model on one system, ours over seeds and theirs."""

    system: str
    model: str
    noise: float
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
    """Records grouped by system, model and noise: the named metrics over seeds, beside what the paper publishes."""
    groups: dict[tuple[str, str, float], list[Record]] = {}
    for record in records:
        groups.setdefault((record["system"], record["model"], record["noise"]), []).append(record)
    rows = []
    for (system, model, noise), group in groups.items():
        theirs = published().get(system, {}).get(model, {}) if noise == 0.0 else {}
        for metric in metrics:
            values = [record["metrics"][metric] for record in group if metric in record["metrics"]]
            if values:
                deviation = statistics.stdev(values) if len(values) > 1 else 0.0
                centre = statistics.fmean(values), deviation, statistics.median(values)
                pair = tuple(theirs[metric]) if metric in theirs else None
                rows.append(Comparison(system, model, noise, metric, *centre, len(values), pair))
    return rows


def figure(value: float) -> str:
    """Four digits; in scientific notation, or as a distance from one, where that says more."""
    if 0.999 < value < 1.0:
        return f"1 - {1.0 - value:.1e}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


def cells(rows: Sequence[Comparison]) -> list[list[str]]:
    """A table as text, its heading first. System and noise have a column where they vary."""
    heading = ["model", "metric", "ours", "median seed", "paper", "ours/paper"]
    varying = [name for name in ("system", "noise") if len({getattr(row, name) for row in rows}) > 1]
    out = [[*varying, *heading]]
    for row in rows:
        ours = figure(row.mean) + (f" ± {figure(row.deviation)}" if row.seeds > 1 else "")
        theirs = "" if row.published is None else f"{figure(row.published[0])} ± {figure(row.published[1])}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2g}"
        first = [f"{getattr(row, name)}" for name in varying]
        out.append([*first, row.model, row.metric, ours, figure(row.median), theirs, ratio])
    return out


def markdown(rows: Sequence[Comparison]) -> str:
    """The comparison as a Markdown table."""
    heading, *body = cells(rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in (heading, ["---"] * len(heading), *body))
