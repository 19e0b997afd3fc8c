"""The paper's table of gauge freedom: errors of M and ∇V, the common factor, and a verdict by one rule.

The rule, for means over seeds: a row is *identifiable* where what is learned of M and ∇V is off by less than 20 % of
its size, *up to a factor* where that holds once the common factor is taken out, and *non-identifiable* otherwise. By
this rule the published numbers give the published verdicts.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from phast.paper.executors import records_of
from phast.paper.experiments import Experiment, Record, key_of
from phast.paper.tables import AbstractTable, Row, Sheet, hurried, jobs_of, published
from phast.report.text import figure

TOLERANCE = 0.2
LEARNED = {"mass": "FrobErr_M", "force": "MAE_∇V"}
IDENTIFIABLE, UP_TO_A_FACTOR, NOT_IDENTIFIABLE = "identifiable", "up to a factor", "non-identifiable"
_SYSTEM = "double-pendulum-conservative"


class GaugeTable(AbstractTable):
    """Rows of masses and potentials, each with its errors as they are and without the common factor."""

    name: str
    title: str
    rows: tuple[Row, ...]
    seeds: int = 2

    def experiments(self):
        return [row.experiment for row in self.rows]

    def records(self, results, seeds=None):
        return records_of(results, jobs_of(self, seeds))

    def sheet(self, records):
        heading = ["learned", *(x for name in LEARNED.values() for x in (name, "paper"))]
        heading += ["common factor", *(f"{name} without it" for name in LEARNED.values()), "off in q''", "seeds"]
        told = [found for row in self.rows if (found := _found(row, records)) is not None]
        theirs = published().get(self.name.removesuffix("-quick"), {})
        lines = [_line(found, theirs.get(found.name, {})) for found in told] + [_nothing(each) for each in told[:1]]
        data = [found._asdict() | {"verdict": found.verdict, "published": theirs.get(found.name)} for found in told]
        return Sheet(self.title, [*heading, "verdict", "paper's"], lines, data)

    def quick(self):
        rows = tuple(Row(hurried(row.experiment), row.name) for row in self.rows)
        return GaugeTable(f"{self.name}-quick", f"{self.title} (quick look)", rows, seeds=1)


def gauge_row(name: str, mass: str, potential: str, *, preset: str = "gauge", **variation: Any) -> Row:
    """A mass and a potential, under the name that the table gives them."""
    choices = (("potential", potential), *variation.items())
    return Row(Experiment(_SYSTEM, f"{mass}-mass", preset, variation=choices), name)


class Found(NamedTuple):
    """A row over its seeds: metric -> values, for what is learned of it."""

    name: str
    learned: tuple[str, ...]
    metrics: dict[str, list[float]]

    def mean(self, metric: str) -> float:
        return statistics.fmean(self.metrics[metric])

    @property
    def verdict(self) -> str:
        errors = {kind: self.mean(f"{kind}_error") for kind in self.learned}
        sizes = {kind: self.mean(f"{kind}_size") for kind in self.learned}
        rescaled = {kind: self.mean(f"{kind}_error_rescaled") for kind in self.learned}
        return verdict(errors, sizes, rescaled if len(self.learned) == len(LEARNED) else None)


def verdict(errors: dict[str, float], sizes: dict[str, float], rescaled: dict[str, float] | None = None) -> str:
    """What errors of M and ∇V, against their sizes, say of a row; ``rescaled`` ones are without the common factor."""
    if all(error < TOLERANCE * sizes[kind] for kind, error in errors.items()):
        return IDENTIFIABLE
    if rescaled is not None and all(error < TOLERANCE * sizes[kind] for kind, error in rescaled.items()):
        return UP_TO_A_FACTOR
    return NOT_IDENTIFIABLE


def _found(row: Row, records: Sequence[Record]) -> Found | None:
    mine = [record["metrics"] for record in records if key_of(record) == row.experiment]
    if not mine:
        return None
    given = {"mass": row.experiment.model == "known-mass", "force": ("potential", "known") in row.experiment.variation}
    metrics = {metric: [math.inf if each[metric] is None else each[metric] for each in mine] for metric in mine[0]}
    return Found(row.name or row.experiment.model, tuple(kind for kind in LEARNED if not given[kind]), metrics)


def _nothing(found: Found) -> list[str]:
    """The trivial solution, whose residual is zero everywhere: its errors are the sizes of M and ∇V."""
    sizes = [x for kind in LEARNED for x in (figure(found.mean(f"{kind}_size")), "")]
    return ["(M = 0 and V = 0)", *sizes, "0", *[""] * (len(LEARNED) + 2), NOT_IDENTIFIABLE, ""]


def _line(found: Found, theirs: dict[str, Any]) -> list[str]:
    def ours(metric: str, shown: bool) -> str:
        values = found.metrics[metric]
        spread = f" ± {figure(statistics.stdev(values))}" if len(values) > 1 else ""
        return figure(found.mean(metric)) + spread if shown else ""

    both = len(found.learned) == len(LEARNED)
    errors = [
        text
        for kind in LEARNED
        for text in (
            ours(f"{kind}_error", kind in found.learned) or "given",
            figure(theirs[f"{kind}_error"]) if f"{kind}_error" in theirs else "",
        )
    ]
    free = [ours("factor", both), *(ours(f"{kind}_error_rescaled", both) for kind in LEARNED)]
    off = f"{found.mean('acceleration_error'):.1%}"
    seeds = str(len(found.metrics["factor"]))
    return [found.name, *errors, *free, off, seeds, found.verdict, theirs.get("verdict", "")]
