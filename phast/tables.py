"""Our numbers beside the published ones, which live in ``paper_tables.toml``."""

import functools
import statistics
import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any, NamedTuple

Record = dict[str, Any]


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


def compare(records: Iterable[Record], metrics: Iterable[str] | None = None) -> list[Comparison]:
    """Group records by system and model; every metric that the paper publishes there, or the ones named."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["system"], record["model"]), []).append(record)
    rows = []
    for (system, model), group in groups.items():
        theirs = {k: v for k, v in published().get(system, {}).get(model, {}).items() if k != "parameters"}
        for metric in metrics if metrics is not None else theirs:
            values = [record["metrics"][metric] for record in group if metric in record["metrics"]]
            if values:
                deviation = statistics.stdev(values) if len(values) > 1 else 0.0
                pair = tuple(theirs[metric]) if metric in theirs else None
                rows.append(
                    Comparison(
                        system,
                        model,
                        metric,
                        statistics.fmean(values),
                        deviation,
                        statistics.median(values),
                        len(values),
                        pair,
                    )
                )
    return rows
