"""The paper's tables: which runs each needs, and our numbers beside the published ones (``published.toml``).

A :class:`ModelTable` is rows, each an experiment, and the metrics that it shows; :class:`Summary` is the one table that
chooses among models. Both make a :class:`Sheet`, which prints as text, Markdown, LaTeX or JSON.
"""

import dataclasses
import functools
import json
import math
import statistics
import tomllib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx

from phast.dynamics.systems import SYSTEMS
from phast.paper.executors import Job, cost, records_of
from phast.paper.experiments import QUICK, Experiment, Record, key_of, read_record
from phast.paper.metrics import error_name
from phast.report.text import figure

REGIMES = ("phast-known", "phast-partial", "phast-unknown")
BASELINES = ("gru", "lstm", "s5", "linoss", "d-linoss", "transformer", "vpt")
BENCHMARKS = tuple(name for name, each in SYSTEMS.items() if each.benchmark)
OTHERS = ("rlc", "lennard-jones-3", "heat-exchange", "n-body-3", "predator-prey")  # judged by their next step
MECHANICAL = tuple(name for name in BENCHMARKS if name not in OTHERS)
_HIGHER = ("damping_r2",)  # better where it is higher; lower everywhere else

# --- what is published -----------------------------------------------------------------------------------------------


@functools.cache
def published() -> dict[str, dict[str, dict[str, Any]]]:
    """system -> model -> metric -> [mean, std], and ablation -> row -> the same; "parameters" -> count."""
    return tomllib.loads(resources.files("phast.paper").joinpath("published.toml").read_text(encoding="utf-8"))


class Published(NamedTuple):
    """A printed number; the deviation is None where the paper prints none."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return figure(self.mean) + ("" if self.deviation is None else f" ± {figure(self.deviation)}")


def _published(theirs: dict[str, Any], metric: str) -> Published | None:
    if metric not in theirs:
        return None
    value = theirs[metric]
    return Published(*value) if isinstance(value, list) else Published(float(value), None)


# --- comparing -------------------------------------------------------------------------------------------------------


class MetricRow(NamedTuple):
    """One cell: a metric of one row, ours over seeds and theirs."""

    system: str
    model: str
    noise: float
    metric: str
    mean: float
    deviation: float
    median: float
    seeds: int
    parameters: int | None
    published: Published | None

    @property
    def ratio(self) -> float | None:
        """Ours over theirs, where that means anything."""
        if self.published is None or min(self.mean, self.published.mean) <= 0 or math.isinf(self.mean):
            return None
        return self.mean / self.published.mean

    @property
    def better(self) -> str:
        """Who wins: ours, paper, or even where the means are within a deviation of each other."""
        if self.published is None:
            return ""
        if abs(self.mean - self.published.mean) <= max(self.deviation, self.published.deviation or 0.0):
            return "even"
        return "ours" if (self.mean > self.published.mean) == (self.metric in _HIGHER) else "paper"


def metric_rows(
    records: Iterable[Record], metrics: Sequence[str], names: dict[Experiment, tuple[str, dict[str, Any]]] | None = None
) -> list[MetricRow]:
    """Records grouped by experiment: the named metrics over seeds, beside what the paper publishes.

    ``names`` gives a row another name than its model's, and its published numbers.
    """
    groups: dict[Experiment, list[Record]] = {}
    for record in records:
        groups.setdefault(key_of(record), []).append(record)
    rows = []
    for experiment, group in groups.items():
        label, theirs = (names or {}).get(experiment) or (experiment.model_folder, _standard(experiment))
        for metric in metrics:
            values = [record["metrics"][metric] for record in group if metric in record["metrics"]]
            if values:
                rows.append(
                    MetricRow(
                        experiment.system_folder,
                        label,
                        experiment.noise,
                        metric,
                        *_centre([math.inf if x is None else x for x in values]),
                        len(values),
                        group[0].get("parameters"),
                        _published(theirs, metric),
                    )
                )
    return rows


def _standard(experiment: Experiment) -> dict[str, Any]:
    plain = not (experiment.noise or experiment.variation or experiment.dt)
    return published().get(experiment.system, {}).get(experiment.model, {}) if plain else {}


def _centre(values: list[float]) -> tuple[float, float, float]:
    """Mean, deviation and median over seeds; a run that went to infinity takes the mean with it."""
    deviation = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else 0.0
    return statistics.fmean(values), deviation, statistics.median(values)


def best(rows: Sequence[MetricRow]) -> set[MetricRow]:
    """The best row of every system and metric where several compete."""
    winners = set()
    for where in {(row.system, row.noise, row.metric) for row in rows}:
        rivals = [row for row in rows if (row.system, row.noise, row.metric) == where]
        if len(rivals) > 1:
            winners.add((max if where[2] in _HIGHER else min)(rivals, key=lambda row: row.mean))
    return winners


# --- sheets ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A table ready to print: heading, lines of text, and the same as data."""

    title: str
    heading: list[str]
    lines: list[list[str]]
    data: list[dict[str, Any]]

    def text(self) -> str:
        rows = [self.heading, *self.lines]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join([self.title, "", *(line.rstrip() for line in padded)])

    def markdown(self) -> str:
        if not self.lines:
            return "*No records yet.*"
        rows = (self.heading, ["---"] * len(self.heading), *self.lines)
        return "\n".join("| " + " | ".join(line) + " |" for line in rows)

    def latex(self) -> str:
        """A ``booktabs`` table."""
        body = [" & ".join(map(_latex, line)) + r" \\" for line in (self.heading, *self.lines)]
        return "\n".join(
            [
                r"\begin{table}",
                rf"  \caption{{{_latex(self.title)}}}",
                rf"  \begin{{tabular}}{{{'l' * len(self.heading)}}}",
                r"    \toprule",
                f"    {body[0]}",
                r"    \midrule",
                *(f"    {line}" for line in body[1:]),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
            ]
        )

    def json(self) -> str:
        return json.dumps({"title": self.title, "rows": self.data}, indent=1)


def _latex(text: str) -> str:
    special = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "±": r"$\pm$", "σ": r"$\sigma$", "²": r"$^2$"}
    special |= {"×": r"$\times$", "★": r"$\star$", "·": r"$\cdot$", "–": "--"}
    return "".join(special.get(character, character) for character in text)


def sheet(title: str, rows: Sequence[MetricRow]) -> Sheet:
    """Comparisons as a sheet. System and noise have a column where they vary; ★ marks the best of each group."""
    varying = [name for name in ("system", "noise") if len({getattr(row, name) for row in rows}) > 1]
    shown = ["model", "parameters", "metric", "ours", "seeds", "median seed", "paper", "ours/paper", "better"]
    winners = best(rows)
    lines, data = [], []
    for row in rows:
        ours = figure(row.mean) + (f" ± {figure(row.deviation)}" if row.seeds > 1 else "")
        lines.append(
            [
                *(f"{getattr(row, name)}" for name in varying),
                row.model,
                "" if row.parameters is None else f"{row.parameters:,}",
                row.metric,
                ours + " ★" * (row in winners),
                str(row.seeds),
                figure(row.median),
                "" if row.published is None else str(row.published),
                "" if row.ratio is None else f"{row.ratio:.2g}",
                row.better,
            ]
        )
        finite = {"mean": row.mean, "median": row.median} if math.isfinite(row.mean) else {"mean": None, "median": None}
        told = {"published": None if row.published is None else list(row.published), "ratio": row.ratio}
        data.append(row._asdict() | finite | told | {"better": row.better, "best": row in winners})
    return Sheet(title, [*varying, *shown], lines, data)


def between_marks(text: str, name: str) -> tuple[int, int] | None:
    """Where the table called ``name`` stands in a Markdown text, between <!-- name --> and <!-- /name -->."""
    opening, closing = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    start = text.find(opening)
    end = text.find(closing, start)
    return None if start < 0 or end < 0 else (start + len(opening), end)


# --- tables ----------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """An experiment, under another name than its model's where a table says so."""

    experiment: Experiment
    name: str | None = None


class AbstractTable(eqx.Module):
    """A table: the experiments behind it, over how many seeds, and how their records are laid out."""

    name: eqx.AbstractVar[str]
    title: eqx.AbstractVar[str]
    seeds: eqx.AbstractVar[int]

    @abstractmethod
    def experiments(self) -> list[Experiment]:
        """What has to be run."""

    @abstractmethod
    def records(self, results: Path, seeds: int | None = None) -> list[Record]:
        """What there is of that."""

    @abstractmethod
    def sheet(self, records: Sequence[Record]) -> Sheet:
        """The table, from the records that there are."""

    @abstractmethod
    def quick(self) -> "AbstractTable":
        """Some of it with hardly any training and one seed: to see in minutes that it works, never to quote."""


class AbstractStudy(AbstractTable):
    """A table whose runs are no experiments: it carries out itself what has no record yet."""

    @abstractmethod
    def carry_out(self, results: Path, on_stage: Callable[[str], None]) -> list[str]:
        """Make the records that are missing; what failed comes back."""


def jobs_of(table: AbstractTable, seeds: int | None = None) -> list[Job]:
    """The runs behind a table."""
    return [Job(experiment, tuple(range(seeds or table.seeds))) for experiment in table.experiments()]


def hurried(experiment: Experiment) -> Experiment:
    """The same by the quick version of its preset."""
    return dataclasses.replace(experiment, preset=QUICK.get(experiment.preset, experiment.preset))


class ModelTable(AbstractTable):
    """Rows × metrics."""

    name: str
    title: str
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]
    seeds: int = 5

    def experiments(self):
        return [row.experiment for row in self.rows]

    def records(self, results, seeds=None):
        return records_of(results, jobs_of(self, seeds))

    def sheet(self, records):
        name = self.name.removesuffix("-quick")
        ablation = None if name in SYSTEMS else published().get(name)  # some tables are named like their system
        names = {
            row.experiment: (row.name, _standard(row.experiment) if ablation is None else ablation.get(row.name, {}))
            for row in self.rows
            if row.name is not None
        }
        order = {experiment: place for place, experiment in enumerate(self.experiments())}
        mine = sorted((r for r in records if key_of(r) in order), key=lambda r: order[key_of(r)])
        return sheet(self.title, metric_rows(mine, self.metrics, names))

    def quick(self):
        first = self.rows[0].experiment.system
        rows = tuple(Row(hurried(row.experiment), row.name) for row in self.rows if row.experiment.system == first)
        rest = "" if len(rows) == len(self.rows) else f", {first} alone"
        return ModelTable(f"{self.name}-quick", f"{self.title} (quick look{rest})", rows, self.metrics, seeds=1)


class Summary(AbstractTable):
    """Per benchmark: our best PHAST by each recipe, our best baseline, the gain, and the paper's three numbers."""

    name: str
    title: str
    systems: tuple[str, ...] = BENCHMARKS
    baselines: tuple[str, ...] = BASELINES
    recipes: tuple[str, str] = ("paper", "sharp")
    seeds: int = 5

    def experiments(self):
        paper, sharp = self.recipes
        return [Experiment(s, m, paper) for s in self.systems for m in (*REGIMES, *self.baselines)] + [
            Experiment(s, m, sharp) for s in self.systems for m in REGIMES
        ]

    def records(self, results, seeds=None):
        return records_of(results, jobs_of(self, seeds))

    def sheet(self, records):
        paper, sharp = self.recipes
        heading = ["benchmark", "PHAST, sharp", "PHAST, paper's recipe", "best baseline", "gain"]
        heading += ["paper's PHAST", "paper's baseline", "paper's gain"]
        lines, data = [], []
        for name in self.systems:
            metric = main_metric(name)
            rows = {
                preset: metric_rows([r for r in records if r["system"] == name and r["preset"] == preset], [metric])
                for preset in {paper, sharp}
            }
            ours = _least(rows[paper], REGIMES), _least(rows[paper], BASELINES), _least(rows[sharp], REGIMES)
            theirs = published().get("suite-summary", {}).get(name, {})
            gain = None if ours[0] is None or ours[1] is None else ours[1].mean / ours[0].mean
            cells = [_choice(ours[2]), _choice(ours[0]), _choice(ours[1]), "" if gain is None else f"{gain:.3g}×"]
            told = [
                _their_choice(theirs, "best_phast"),
                _their_choice(theirs, "best_baseline"),
                f"{theirs['gain']:g}×" if "gain" in theirs else "",
            ]
            lines.append([name, *cells, *told])
            picked = {"sharp": ours[2], "phast": ours[0], "baseline": ours[1]}
            named = {key: None if c is None else {"model": c.model, "mean": c.mean} for key, c in picked.items()}
            data.append({"system": name, "metric": metric, **named, "gain": gain, "published": theirs})
        return Sheet(self.title, heading, lines, data)

    def quick(self):
        recipes = tuple(QUICK[preset] for preset in self.recipes)
        title = f"{self.title} (quick look, two of them and two baselines)"
        return Summary(f"{self.name}-quick", title, ("pendulum-damped", "rlc"), ("gru", "linoss"), recipes, seeds=1)


class Costs(AbstractTable):
    """Per model: how long its runs took, and what those of all systems and seeds would take in the same way."""

    name: str
    title: str
    systems: tuple[str, ...] = BENCHMARKS
    recipe: str = "paper"
    seeds: int = 5

    def experiments(self):
        return [Experiment(s, m, self.recipe) for s in self.systems for m in (*REGIMES, *BASELINES)]

    def records(self, results, seeds=None):
        return records_of(results, jobs_of(self, seeds))

    def sheet(self, records):
        jobs = jobs_of(self)
        heading = ["model", "runs with a record", "median seconds", f"{len(self.systems)} systems × {self.seeds} seeds"]
        lines, data = [], []
        for model in (*REGIMES, *BASELINES, None):
            mine = [job for job in jobs if model in (None, job.experiment.model)]
            found = [r for r in records if r["preset"] == self.recipe and model in (None, r["model"])]
            if not found:
                continue
            sums, middle = cost(found, mine), statistics.median(sum(r.get("seconds", {}).values()) for r in found)
            lines.append(
                [model or "all", f"{sums.done} of {sums.total}", f"{middle:.0f}", f"{sums.whole / 3600:.1f} h"]
            )
            data.append({"model": model, **dataclasses.asdict(sums), "median": middle})
        return Sheet(self.title, heading, lines, data)

    def quick(self):
        return Costs(f"{self.name}-quick", f"{self.title} (quick look, rlc alone)", ("rlc",), "quick", seeds=1)


class Tools(AbstractTable):
    """What ``phast paper bench peers`` has measured of other tools and of ours, on the same arrays."""

    name: str
    title: str
    seeds: int = 1

    def experiments(self):
        return []

    def records(self, results, seeds=None):
        """By system and noise, the other tools first."""
        found = [read_record(path) for path in (results / "peers").glob("*/*/*.json")]
        ours = lambda r: (r["model"] in REGIMES, r["model"])  # noqa: E731
        return sorted(found, key=lambda r: (BENCHMARKS.index(r["system"]), r["noise"], *ours(r)))

    def sheet(self, records):
        heading = ["system", "noise", "tool", "mean", "median", "R²_D", "MAE_D"]
        heading += ["fit, s", "settings, s", "200 forecasts, s"]
        return Sheet(self.title, heading, [_tool(record) for record in records], list(records))

    def quick(self):
        return Tools(f"{self.name}-quick", f"{self.title} (quick look: as recorded)")


def _tool(record: Record) -> list[str]:
    metrics, seconds = record["metrics"], record["seconds"]
    errors = [value for name, value in metrics.items() if name.startswith("mse_h")]  # None where forecasts ran away
    fields = (metrics.get("damping_r2"), metrics.get("damping_mae"))  # None where the tool gives no damping
    return [
        record["system"],
        f"{record['noise']:g}",
        record["model"],
        *("diverged" if error is None else figure(error) for error in errors),
        *("" if field is None else figure(field) for field in fields),
        *(figure(seconds[stage]) for stage in ("train", "choose", "rollout")),
    ]


def main_metric(system: str) -> str:
    """What a benchmark is judged by: the rollout of 100 steps, or the next step where the paper prints only that."""
    kind = error_name(SYSTEMS[system].manifold)
    return kind if system in OTHERS else f"rollout_{kind}_h100"


def _least(rows: Sequence[MetricRow], models: Sequence[str]) -> MetricRow | None:
    return min((row for row in rows if row.model in models), key=lambda row: row.mean, default=None)


def _choice(row: MetricRow | None) -> str:
    if row is None:
        return ""
    deviation = f" ± {figure(row.deviation)}" if row.seeds > 1 else ""
    return f"{figure(row.mean)}{deviation} ({row.model.removeprefix('phast-')})"


def _their_choice(theirs: dict[str, Any], key: str) -> str:
    value = _published(theirs, key)
    return "" if value is None else f"{value} ({theirs[f'{key}_model'].replace('phast-', '')})"
