"""One HTML page to look at: every table and figure of a folder of runs, in a single file that needs no network.

Records make the tables. Where a fitted model lies beside its record, its forecasts, energies and damping are computed
here once (:mod:`phast.paper.curves`) and travel in the page as JSON (:mod:`phast.report.page`); ``results_page.js``
draws them.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phast.data.files import write_atomically
from phast.data.trajectories import Trajectories
from phast.data.units import Units
from phast.dynamics.systems import SYSTEMS, System, system
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster
from phast.fitting.checkpoint import load
from phast.paper.curves import CONTEXT, HORIZON, Scene, model_curves, scene, true_curves
from phast.paper.experiments import Record, read_record
from phast.paper.models import MODELS
from phast.paper.protocol import benchmark_split
from phast.paper.tables import MetricRow, metric_rows, published
from phast.report.page import Cell, rendered, rounded, table
from phast.report.provenance import commit
from phast.report.text import figure

_SHOWN = ("paper", "sharp")
_KINDS = ("theta_wrap_mse", "mixed_mse", "mse")
_COLUMNS = {  # heading -> (metric, what it says)
    "rollout": ("rollout_{kind}_h100", "mean squared error over 100 steps forecast open loop from 10 positions"),
    "median": ("rollout_{kind}_h100_median", "the same error of the median test trajectory"),
    "takeover": ("rollout_takeover_{kind}_h100", "the same, integrated from one state at the end of the context"),
    "R² of D": ("damping_r2", "share of the true damping's variation that the learned one explains; 1 is perfect"),
    "energy residual": ("rollout_energy_budget_resid_h100", "mean |dH/dt + dissipated power| along the rollout"),
    "next step": ("next_step_after_burn_in", "mean squared error one step ahead, after ten positions"),
}
_ABOUT = {name: about for name, (_, about) in _COLUMNS.items()} | {
    "seeds": "runs that differ in nothing but their random numbers",
    "parameters": "trainable numbers",
    "paper": "the published mean",
    "ours/paper": "our mean over the published one, in the same metric",
    "best PHAST": "by the paper's recipe",
    "paper's best PHAST": "the lowest published mean",
    "best other": "the best model that is not a PHAST",
    "gain": "error of the best other model over that of the best PHAST by the same recipe",
    "best sharp PHAST": "by the default preset of this library",
}
_NEXT_STEPS = "all next steps"
_REGIME_COLOURS, _OTHER_COLOURS = 3, 7


class Run(NamedTuple):
    """A record, and the model that it judges: in memory, in a file, or gone."""

    record: Record
    model: AbstractForecaster | Path | None = None


# --- records and models from a folder --------------------------------------------------------------------------------


def collect(folder: str | os.PathLike, systems: Sequence[str] = ()) -> list[Run]:
    """The runs under ``folder`` by the two presets, of ``systems`` or of all; variations are left out."""
    wanted = {system(name).name for name in systems}
    paths = [
        path
        for preset in _SHOWN
        for path in sorted(Path(folder).glob(f"{preset}/*/*/seed-*.json"))
        if "," not in path.parent.name + path.parent.parent.name and (not wanted or path.parent.parent.name in wanted)
    ]
    if not paths or (missing := wanted - {path.parent.parent.name for path in paths}):
        of = f" of {', '.join(sorted(missing if paths else wanted))}" if wanted else ""
        raise InputError(
            f"no records{of} in '{folder}': make them with `phast paper suite`, or name their folder: --results"
        )
    return [Run(read_record(path), model if (model := path.with_suffix(".phast")).exists() else None) for path in paths]


# --- one model of one system, over its seeds -------------------------------------------------------------------------


class Entry(NamedTuple):
    """The runs of one model on one system by one preset, and how its lines look."""

    model: str
    preset: str
    runs: list[Run]
    kind: str
    colour: str
    dash: str

    @property
    def label(self) -> str:
        return f"{self.model}, {self.preset}"

    @property
    def ours(self) -> bool:
        return _is_ours(self.model)

    def metric(self, name: str) -> MetricRow | None:
        """A metric over seeds, beside what is published of it."""
        rows = metric_rows((run.record for run in self.runs), [name])
        return rows[0] if rows else None

    @property
    def rollout(self) -> MetricRow | None:
        return self.metric(f"rollout_{self.kind}_h100")

    @property
    def as_published(self) -> MetricRow | None:
        """What the paper prints of this model: rollouts of mechanics, next steps of the others."""
        found = (self.metric(name) for name in (f"rollout_{self.kind}_h100", self.kind))
        return next((row for row in found if row is not None and row.published), None)

    def shown(self) -> Run | None:
        """The run to draw: the median one of those with a model, neither the best to show nor the worst."""
        drawable = [run for run in self.runs if run.model is not None]
        drawable.sort(key=lambda run: _or_infinity(run.record["metrics"].get(f"rollout_{self.kind}_h100")))
        return drawable[(len(drawable) - 1) // 2] if drawable else None


def _or_infinity(value: float | None) -> float:
    """An error that was too large to be a number."""
    return math.inf if value is None else value


def _is_ours(model: str) -> bool:
    return model.startswith("phast-")


def _entries(runs: Iterable[Run], others: Sequence[str]) -> list[Entry]:
    """PHAST first, then the rest; each in the order of the presets and of the table of models."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.record["model"], run.record["preset"]), []).append(run)

    def place(key: tuple[str, str]) -> tuple:
        model, preset = key
        return not _is_ours(model), _SHOWN.index(preset) if preset in _SHOWN else len(_SHOWN), _rank(model)

    return [Entry(*key, groups[key], _kind(groups[key]), *_look(*key, others)) for key in sorted(groups, key=place)]


def _rank(model: str) -> tuple[int, str]:
    """The table's order, then the alphabet."""
    names = list(MODELS)
    return names.index(model) if model in names else len(names), model


def _kind(runs: Sequence[Run]) -> str:
    """The paper's name of the error on this system's coordinates."""
    return next(
        (kind for kind in _KINDS if any(f"rollout_{kind}_h100" in run.record["metrics"] for run in runs)), "mse"
    )


def _look(model: str, preset: str, others: Sequence[str]) -> tuple[str, str]:
    """PHAST in one family of colours, dashed where it is the paper's recipe; everything else in another, dotted."""
    if _is_ours(model):
        return f"--phast-{_rank(model)[0] % _REGIME_COLOURS}", "solid" if preset == "sharp" else "dash"
    return f"--other-{others.index(model) % _OTHER_COLOURS}", "dot"


# --- tables ----------------------------------------------------------------------------------------------------------


def _cell(row: MetricRow | None, note: str = "") -> Cell:
    if row is None:
        return Cell("")
    as_distance = row.deviation < 1.0 - row.mean  # figures print 0.9995 as a distance from one, if that is sure
    mean = figure(row.mean) if as_distance or row.mean > 1.0 else f"{row.mean:.4g}"
    deviation = f" ± {figure(float(f'{row.deviation:.2g}'))}" if row.seeds > 1 else ""
    return Cell(mean + deviation, row.mean, note)


def _ratio(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(f"{value:.2g}", value)


def _line(entry: Entry) -> dict[str, Cell]:
    """A model in one line."""
    measured = {name: _cell(entry.metric(metric.format(kind=entry.kind))) for name, (metric, _) in _COLUMNS.items()}
    parameters, theirs = entry.runs[0].record.get("parameters"), entry.as_published
    note = _NEXT_STEPS if theirs and theirs.metric == entry.kind else ""
    return {
        "rollout": measured.pop("rollout"),
        "paper": Cell(figure(theirs.published[0]), theirs.published[0], note) if theirs else Cell(""),
        "ours/paper": _ratio(theirs.ratio if theirs else None),
        **measured,
        "parameters": Cell("") if parameters is None else Cell(f"{parameters:,}", parameters),
        "seeds": Cell(str(len(entry.runs)), len(entry.runs)),
    }


def _best(entries: Iterable[Entry]) -> Entry | None:
    ranked = [(row.mean, i, entry) for i, entry in enumerate(entries) if (row := entry.rollout) and row.mean >= 0]
    return min(ranked)[2] if ranked else None


def _summary(name: str, entries: Sequence[Entry]) -> dict[str, Cell]:
    """A benchmark in one line: the best of each side, and what the paper has."""
    ours = [entry for entry in entries if entry.ours and entry.preset == "paper"]
    best, other = _best(ours), _best(entry for entry in entries if not entry.ours)
    sharp = _best(entry for entry in entries if entry.ours and entry.preset == "sharp")
    gain = other.rollout.mean / best.rollout.mean if best and other and best.rollout.mean > 0 else None
    theirs = _published_best(name, entries[0].kind)
    same = [row.mean for entry in ours if theirs and (row := entry.metric(theirs[0]))]
    return {
        "best PHAST": _named(best),
        "paper's best PHAST": Cell("") if theirs is None else Cell(figure(theirs[1]), theirs[1], theirs[2]),
        "ours/paper": _ratio(min(same) / theirs[1] if same and theirs else None),
        "best other": _named(other),
        "gain": Cell("") if gain is None else Cell(f"{gain:.3g}×", gain),
        "best sharp PHAST": _named(sharp),
    }


def _named(entry: Entry | None) -> Cell:
    return Cell("") if entry is None else _cell(entry.rollout, entry.model)


def _published_best(name: str, kind: str) -> tuple[str, float, str] | None:
    """(metric, the lowest published mean of a PHAST, its model and what it measures)."""
    for metric, about in ((f"rollout_{kind}_h100", ""), (kind, f", {_NEXT_STEPS}")):
        found = [
            (numbers[metric][0], model)
            for model, numbers in published().get(name, {}).items()
            if _is_ours(model) and metric in numbers
        ]
        if found:
            value, model = min(found)
            return metric, value, model + about
    return None


# --- the page --------------------------------------------------------------------------------------------------------


def write_report(
    runs: Sequence[Run],
    output: str | os.PathLike,
    *,
    trajectories: int = 3,
    test_data: Callable[[System], Trajectories] = lambda chosen: benchmark_split(chosen).test,
    on_section: Callable[[str], None] = lambda name: None,
) -> Path:
    """Write the page of ``runs`` to ``output``: a section per system, with its first ``trajectories`` test motions.

    ``on_section`` hears the name of each system before its turn. Runs with noise are not drawn and not in the tables.
    """
    clean = [run for run in runs if run.record["noise"] == 0.0]
    if not clean:
        raise InputError("no run without noise to report: `phast paper suite` makes them")
    sections, drawings = [], []
    for place, (name, entries) in enumerate(_by_system(clean)):
        on_section(name)
        shown, drawing = _drawing(name, entries, trajectories, test_data)
        sections.append(_section(f"s{place}", name, entries, shown, drawing))
        drawings.append(drawing and drawing | {"id": f"s{place}"})
    page = rendered(
        "phast.paper",
        "results_page",
        [drawing for drawing in drawings if drawing],
        about=_ABOUT,
        sections=sections,
        summary=table((section, section["summary"]) for section in sections),
        facts={"records": len(clean), "left_out": len(runs) - len(clean), "made_with": _versions(clean)},
    )
    return write_atomically(output, page.encode())


def section_names(runs: Iterable[Run]) -> list[str]:
    """The systems of a page, in its order: the table's own first, then whatever else there is."""
    names = {run.record["system"] for run in runs if run.record["noise"] == 0.0}
    return [name for name in SYSTEMS if name in names] + sorted(names - set(SYSTEMS))


def _by_system(runs: Sequence[Run]) -> Iterator[tuple[str, list[Entry]]]:
    others = sorted({run.record["model"] for run in runs if not _is_ours(run.record["model"])}, key=_rank)
    for name in section_names(runs):
        yield name, _entries((run for run in runs if run.record["system"] == name), others)


def _section(
    identifier: str, name: str, entries: Sequence[Entry], shown: Sequence[Entry], drawing: dict[str, Any] | None
) -> dict[str, Any]:
    known = SYSTEMS.get(name)
    return {
        "id": identifier,
        "name": name,
        "title": known.title if known else name,
        "facts": "" if known is None else f"{known.domain} · {', '.join(known.manifold.names)} · dt = {known.dt:g}",
        "table": table((entry, _line(entry)) for entry in entries),
        "summary": _summary(name, entries),
        "shown": shown,
        "missing": [entry.label for entry in entries if entry not in shown],
        "drawing": drawing,
    }


def _drawing(
    name: str, entries: Sequence[Entry], trajectories: int, test_data: Callable[[System], Trajectories]
) -> tuple[list[Entry], dict[str, Any] | None]:
    """Which models could be drawn, and what the script needs for it."""
    models = [(entry, model) for entry in entries if (run := entry.shown()) and (model := _loaded(run)) is not None]
    if not models or name not in SYSTEMS:
        return [], None
    on = scene(SYSTEMS[name], test_data(SYSTEMS[name]), trajectories)
    lines = [
        {"label": entry.label, "colour": entry.colour, "dash": entry.dash} | model_curves(on, model)
        for entry, model in models
    ]
    return [entry for entry, _ in models], _described(on) | {"models": lines}


def _described(on: Scene) -> dict[str, Any]:
    truth, units = true_curves(on), Units.computed(on.manifold)
    varies = [np.ptp(along, axis=-1).max() for along in truth["damping"] or [[[0.0]]]]
    return {
        "dt": on.dt,
        "context": CONTEXT,
        "horizon": HORIZON,
        "names": on.manifold.names,
        "labels": units.labels,
        "speeds": [f" [{unit}]" if unit else "" for unit in units.speeds],
        "count": on.count,
        "along": rounded([line[:, i] for i, line in enumerate(on.lines)]),
        "most_varied": int(np.argmax(varies)),
        "truth": truth,
    }


def _loaded(run: Run) -> AbstractForecaster | None:
    """The model of a run; a file that cannot be read costs its lines, with a warning, and not the page."""
    if not isinstance(run.model, Path):
        return run.model
    try:
        return load(run.model)
    except InputError as error:
        warnings.warn(f"not drawn: {error}", stacklevel=2)
        return None


def _versions(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """What the numbers were made with, each package once with every version of it."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for package, version in {
            **run.record.get("versions", {}),
            "commit": run.record.get("commit", "unknown"),
        }.items():
            found.setdefault(str(package), set()).add(str(version))
    made_with = [(package, ", ".join(sorted(versions))) for package, versions in found.items()]
    return [*made_with, ("this page", f"commit {commit()}")]
