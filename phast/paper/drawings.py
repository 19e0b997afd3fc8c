"""The figures that ``phast paper reproduce`` makes."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import phast
from phast import paper
from phast.cli.console import print_table, stages
from phast.cli.options import Shown
from phast.errors import InputError
from phast.paper.cli.bench import speed_benchmarks
from phast.paper.cli.runs import Runs
from phast.report.plots import error_growth, measured_figure, noise_levels
from phast.report.text import figure

if TYPE_CHECKING:
    from phast.paper.tables import AbstractTable


class Reproduction(NamedTuple):
    """What was said of all tables and figures alike."""

    runs: Runs
    quick: bool
    seeds: int | None
    records_only: bool
    data: Path | None
    shown: Shown

    def run(self, table: "AbstractTable", *, models: bool = False) -> list[str]:
        """The runs of a table that have no record yet; what failed comes back."""
        if self.records_only:
            return []
        if isinstance(table, paper.tables.AbstractStudy):
            with paper.experiments.precision(True), stages(table.title) as on_stage:
                return table.carry_out(self.runs.results, on_stage)
        return self.runs.carry_out(paper.tables.jobs_of(table, self.seeds), models=models, quiet=self.shown.quiet)

    def table(self, header: list[str], rows: list[list[str]]) -> None:
        if not self.shown.silent:
            print_table(header, rows)

    def need_no_records(self) -> None:
        """Refuse --records-only for what has none."""
        if self.records_only:
            raise InputError("this figure is measured anew each time and has no records: leave --records-only out")


Make = Callable[[Reproduction, Path], list[str]]


class Figure(NamedTuple):
    """A figure: what it shows, and how it is made and drawn into a file; runs that failed come back."""

    title: str
    make: Make


def _gallery(draw_name: str) -> Make:
    def make(asked: Reproduction, target: Path) -> list[str]:
        runs = paper.catalogue.table_named("overview")
        runs = runs.quick() if asked.quick else runs
        failures = asked._replace(seeds=1).run(runs, models=True)
        with paper.experiments.precision(True):
            drawn = getattr(paper.figures, draw_name)(asked.runs.results, runs.experiments())
            phast.save_figure(drawn, target)
        return failures

    return make


def _primitives(asked: Reproduction, target: Path) -> list[str]:
    asked.need_no_records()
    speed_benchmarks().run_bench(["primitives"], json_path=None, plot=target)
    return []


def _velocity_study(asked: Reproduction, target: Path) -> list[str]:
    asked.need_no_records()
    with paper.experiments.precision(True):
        windy = phast.system("pendulum-windy")
        curves = paper.studies.velocity_study(windy)
        steps = (1, 10, 50, 100)
        rows = [[name, *(figure(float(curve[h - 1])) for h in steps)] for name, curve in curves.items()]
        asked.table(["velocity from", *(f"step {h}" for h in steps)], rows)
        phast.save_figure(error_growth(curves, dt=windy.dt), target)
    return []


def _noise_study(asked: Reproduction, target: Path) -> list[str]:
    studies, results = paper.studies, asked.runs.results
    with paper.experiments.precision(True):
        windy, levels = phast.system("pendulum-windy"), studies.LEVELS[::3] if asked.quick else studies.LEVELS
        missing = [path for path in studies.noise_study_paths(results, windy, levels) if not path.exists()]
        if missing and asked.records_only:
            raise InputError(f"{missing[0]}: no such record: leave --records-only out to make it")
        with stages("noise study") as on_stage:
            records = studies.noise_study(results, windy, levels=levels, on_stage=on_stage)
        curves = noise_curves(records)
        rows = noise_rows(curves, levels)
        asked.table(rows[0], rows[1:])
        phast.save_figure(noise_levels(curves), target)
    return []


def _gauge_damping(asked: Reproduction, target: Path) -> list[str]:
    asked.need_no_records()
    picture, angles = paper.gauge_picture, np.linspace(-np.pi, np.pi, 201)
    with paper.experiments.precision(True), stages("one motion from several models") as on_stage:
        found = picture.same_motion(angles, on_stage)
        asked.table(*picture.comparison(found))
        phast.save_figure(picture.gauge_figure(found, angles), target)
    return []


def _casimir_success(asked: Reproduction, target: Path) -> list[str]:
    chosen = paper.catalogue.SUCCESS.quick() if asked.quick else paper.catalogue.SUCCESS
    failures = asked.run(chosen)
    records = chosen.records(asked.runs.results, asked.seeds)
    if not records:
        raise InputError(f"{asked.runs.results}/: no record of {chosen.name}: leave --records-only out to make them")
    sheet = chosen.sheet(records)
    asked.table(sheet.heading, sheet.lines)
    phast.save_figure(paper.casimir_table.success_figure(chosen, records), target)
    return failures


def noise_curves(records: Iterable[dict[str, Any]]) -> dict[str, dict[float, float]]:
    """Method -> noise -> median rollout error."""
    titles = {"FD+TCN": "FD+TCN", "map": "MAP smoother", "horizon": "moving horizon", "floor": "floor: true physics"}
    curves: dict[str, dict[float, float]] = {title: {} for title in titles.values()}
    for record in records:
        curves[titles[record["model"]]][record["noise"]] = record["metrics"]["rollout_h100_median"]
    return curves


def noise_rows(curves: dict[str, dict[float, float]], levels: Iterable[float]) -> list[list[str]]:
    """The same as a table with its heading."""
    heading = ["median rollout error", *(f"σ = {noise:g}" for noise in levels)]
    return [heading, *([title, *(figure(curve[noise]) for noise in levels)] for title, curve in curves.items())]


def _measured(name: str) -> Make:
    def make(asked: Reproduction, target: Path) -> list[str]:
        asked.need_no_records()
        if asked.data is None:
            raise InputError(f"{name} is made from measured recordings, which are not in the repository: --data FOLDER")
        title = paper.recordings.STUDIES[name].title
        with paper.experiments.precision(True):
            with stages(title) as on_stage:
                record, forecast = paper.recordings.carry_out(name, asked.data, asked.runs.results, on_stage)
            found = [[c["name"], figure(c["value"]), figure(c["deviation"])] for c in record["coefficients"]]
            asked.table(["coefficient", "value", "± (1σ)"], found)
            kinds = {k.removeprefix("rms_"): value for k, value in record["metrics"].items() if k.startswith("rms")}
            asked.table(["rms error", *kinds], [["", *map(figure, kinds.values())]])
            phast.save_figure(measured_figure(forecast.seen, forecast.units, title), target)
        return []

    return make


FIGURES: dict[str, Figure] = {
    "gallery-rollouts": Figure("Rollouts and phase portraits of three windy systems", _gallery("rollouts_and_phases")),
    "gallery-damping": Figure("Damping fields and energy of three windy systems", _gallery("damping_and_energy")),
    "primitives-timing": Figure("Time of the structured primitives against n", _primitives),
    "velocity-study": Figure(
        "The true physics from four estimates of the velocity: how its error grows", _velocity_study
    ),
    "noise-study": Figure("KNOWN under noise by FD+TCN, MAP and the moving horizon, beside the floor", _noise_study),
    "gauge-damping": Figure("One motion from several (M, V, D), and the anchors that tell them apart", _gauge_damping),
    "casimir-success": Figure("Energy–Casimir control by initial regime, σ = 0.05", _casimir_success),
    "measured-single": Figure("Measured single pendulum: 2 s ahead", _measured("measured-single")),
    "measured-single-partial": Figure("The same, PARTIAL", _measured("measured-single-partial")),
    "measured-double": Figure("Measured double pendulum: 1 s ahead", _measured("measured-double")),
    "measured-arm": Figure("Measured torque-driven arm: 0.5 s ahead", _measured("measured-arm")),
    "measured-thermal": Figure("Measured temperatures: 60 s ahead", _measured("measured-thermal")),
    "measured-lynx": Figure("Lynx and hare: 3 years ahead", _measured("measured-lynx")),
}
