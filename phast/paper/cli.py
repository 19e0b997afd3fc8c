"""``phast paper``: judge models by the paper's protocol, run whole suites, make the tables and figures, measure."""

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from phast.cli.console import JsonSink, print_table, sections, stages
from phast.data.files import check_ending, check_writable, write_atomically
from phast.errors import InputError
from phast.paper.progress import RunsShown, training

if TYPE_CHECKING:
    from phast.paper.executors import Job
    from phast.paper.experiments import Record
    from phast.paper.tables import AbstractTable, Sheet

app = typer.Typer(
    name="paper",
    help="The study: judge models by the paper's protocol, make its tables and figures.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to FILE.")]
Float64 = Annotated[bool, typer.Option("--float64", help="Compute in double precision.")]
Results = Annotated[Path, typer.Option(help="Folder of records; missing runs are added to it.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time, each in a process; one per core if left out.")]
Scheduler = Annotated[str | None, typer.Option(help="A Dask scheduler to send the runs to, e.g. tcp://host:8786.")]
Format = Literal["text", "markdown", "latex", "json"]


def use_double_precision() -> None:
    """Double precision in the whole process from here on."""
    import jax

    jax.config.update("jax_enable_x64", True)


@app.command()
def evaluate(
    name: Annotated[str, typer.Argument(metavar="SYSTEM")],
    model: Annotated[
        str, typer.Option(help="Model names, separated by commas.")
    ] = "phast-known,phast-partial,phast-unknown",
    preset: Annotated[str, typer.Option(help="How to train.")] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 1,
    noise: Annotated[float, typer.Option(min=0.0, help="Noise on training data and contexts.")] = 0.0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer epochs than the preset's, for a quick look.")] = None,
    float64: Float64 = False,
    json_file: JsonFile = None,
) -> None:
    """Train and judge models on a system by the paper's protocol, beside the published numbers."""
    from phast.dynamics.systems import system
    from phast.fitting.training import Settings
    from phast.paper.experiments import Experiment, run
    from phast.paper.experiments import preset as preset_named

    way = preset_named(preset)
    if float64 or way.needs_float64:
        use_double_precision()
    chosen = system(name)
    names = [part.strip() for part in model.split(",") if part.strip()]
    if not names:
        raise InputError("--model names no model: `phast paper models` lists all")
    for each in names:
        way.maker(each)
    settings = None if epochs is None else Settings(epochs=epochs)
    records = []
    for each in names:
        with training(f"{each} on {name}", preset, seeds=seeds, epochs=epochs or Settings().epochs) as watch:
            outcomes = run(Experiment(name, each, preset, noise), range(seeds), settings=settings, watch=watch)
            records += [outcome.record for outcome in outcomes]
        JsonSink(json_file).write(records)
    _print_comparison(records, chosen)


def _print_comparison(records: list[dict[str, Any]], system) -> None:
    from phast.paper.metrics import error_name
    from phast.paper.tables import compare, sheet

    kind = error_name(system.manifold)
    shown = [
        f"rollout_{kind}_h100",
        f"rollout_takeover_{kind}_h100",
        "damping_r2",
        "damping_mae",
        "rollout_energy_budget_resid_h100",
        "rollout_passivity_violations_h100",
        kind,
        "floor",
        "next_step_after_burn_in",
    ]
    seeds = len({record["seed"] for record in records})
    judged = sheet(f"{system.title}: {seeds} seed(s), preset {records[0]['preset']}", compare(records, shown))
    print(f"\n{judged.title}")
    print_table(judged.heading, judged.lines)


@app.command()
def models(
    on: Annotated[str, typer.Option(help="The system for which parameters are counted.")] = "pendulum-windy",
    json_file: JsonFile = None,
) -> None:
    """List the models and their trainable parameters."""
    import jax

    from phast.components.parameter import parameter_count
    from phast.dynamics.systems import system
    from phast.paper.models import MODELS

    chosen = system(on)
    rows = [
        {
            "name": name,
            "parameters": parameter_count(build(chosen, key=jax.random.key(0))),
            "about": (build.__doc__ or "").strip().splitlines()[0],
        }
        for name, build in MODELS.items()
    ]
    print_table(
        ["model", f"parameters ({on})", "what"], [[r["name"], f"{r['parameters']:,}", r["about"]] for r in rows]
    )
    JsonSink(json_file).write(rows)


# --- many runs -------------------------------------------------------------------------------------------------------


@app.command()
def suite(
    system: Annotated[str, typer.Option(help="Systems, separated by commas; 'all' for the thirteen.")] = "all",
    model: Annotated[str, typer.Option(help="Models, separated by commas; 'all' for those of the preset.")] = "all",
    preset: Annotated[str, typer.Option(help="How to train.")] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 5,
    noise: Annotated[float, typer.Option(min=0.0, help="Noise on training data and contexts.")] = 0.0,
    results: Results = Path("results"),
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    models: Annotated[
        bool, typer.Option("--models", help="Run also those whose record is there and whose model is not.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say what is there and what all would cost.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Run systems × models × seeds, one small record each. Killed and started again, it goes on where it was."""
    from phast.dynamics.systems import system as system_named
    from phast.paper.executors import Job, cost, records_of
    from phast.paper.experiments import Experiment
    from phast.paper.experiments import preset as preset_named
    from phast.paper.tables import BASELINES, BENCHMARKS, REGIMES

    way = preset_named(preset)
    systems = _listed(None if system == "all" else system, BENCHMARKS)
    names = _listed(None if model == "all" else model, (*REGIMES, *BASELINES) if way.has_epochs else REGIMES)
    for name in systems:
        system_named(name)
    for name in names:
        way.maker(name)
    if not systems or not names:
        raise InputError("--system or --model names nothing: see `phast systems` and `phast paper models`")
    wanted = [Job(Experiment(s, m, preset, noise), tuple(range(seeds))) for s in systems for m in names]
    failures = [] if status else _carry_out(results, wanted, jobs, scheduler, models=models)
    records = records_of(results, wanted)
    sums = cost(records, wanted)
    print(
        f"{sums.done} of {sums.total} runs have a record in {results}/: {_duration(sums.spent)} of running. "
        f"All of them: about {_duration(sums.whole)}."
    )
    JsonSink(json_file).write(records)
    _report_failures(failures)


def _carry_out(
    results: Path, wanted: "Sequence[Job]", jobs: int | None, scheduler: str | None, *, models: bool = False
) -> list[str]:
    """Run what is missing, showing how far it is; what went wrong comes back."""
    from phast.estimation.forecaster import cores
    from phast.paper.executors import cluster, connect, count_done, here, missing, processes

    left = missing(results, wanted, models=models)
    if not left:
        return []
    client = None if scheduler is None else connect(scheduler)
    check_writable(results)
    count = min(jobs or cores(), len(left))
    failures = []
    with RunsShown(sum(len(job.seeds) for job in wanted), lambda: count_done(results, wanted)) as shown:
        if client is not None:
            finished = cluster(results, left, client, on_start=shown.started)
        elif count == 1:
            finished = here(results, left, models=models, on_start=shown.started)
        else:
            finished = processes(results, left, count, models=models, on_start=shown.started)
        try:
            for result in finished:
                shown.finished(result)
                if result.failure:
                    failures.append(f"{result.job}: {result.failure}")
        except KeyboardInterrupt:
            print("phast: stopped; the same command goes on from here", file=sys.stderr)
            os._exit(130)  # threads in the middle of a computation would be waited for
        finally:
            if client is not None:
                client.close()
    return failures


def _report_failures(failures: list[str]) -> None:
    for failure in failures:
        print(f"phast: failed: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- tables and figures ----------------------------------------------------------------------------------------------


@app.command()
def reproduce(
    table: Annotated[list[str] | None, typer.Argument(help="What to make; 'all' for everything. See --list.")] = None,
    list_tables: Annotated[bool, typer.Option("--list", help="Name every table and figure.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Hardly any training, one seed: a look in minutes.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds; as many as the paper's if left out.")] = None,
    records_only: Annotated[bool, typer.Option("--records-only", help="Run nothing: show what there is.")] = False,
    results: Results = Path("results"),
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for each table as .txt, .md, .tex and .json.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="A Markdown file: tables between <!-- NAME --> and <!-- /NAME --> are renewed.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="For a figure: the file to draw it into.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of measured recordings.")] = Path("../shared/data"),
    json_file: JsonFile = None,
) -> None:
    """Make tables and figures of the paper, and ours, from records; only the missing runs are run."""
    from phast.paper.catalogue import NOT_YET, TABLES
    from phast.paper.catalogue import table as table_named

    if list_tables or not table:
        listed = [[t.name, "table", t.title] for t in TABLES.values()]
        listed += [[name, "figure", entry.title] for name, entry in FIGURES.items()]
        print_table(["name", "kind", "what"], listed + [[name, "not yet", title] for name, title in NOT_YET.items()])
        return
    names = table if table != ["all"] else [*TABLES, *FIGURES] if into is None else _marked(into, TABLES)
    for name in names:
        if name in NOT_YET:
            raise InputError(f"'{name}' cannot be made yet: {NOT_YET[name]}")
        if name not in TABLES and name not in FIGURES:
            near = difflib.get_close_matches(name, [*TABLES, *FIGURES, *NOT_YET], n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise InputError(f"unknown table or figure '{name}': {hint}`phast paper reproduce --list` names all")
    if plot is not None and (len(names) > 1 or names[0] not in FIGURES):
        raise InputError(f"--plot draws one figure: {', '.join(FIGURES)}")
    asked = _Asked(results, quick, seeds, records_only, jobs, scheduler, data)
    made, failures = [], []
    for name in names:
        try:
            if name in FIGURES:
                failures += _draw(name, asked, plot or (output or Path(".")) / f"{name}.png")
            else:
                chosen = table_named(name).quick() if quick else table_named(name)
                failures += _run_table(chosen, asked)
                made.append(_sheet(chosen, asked))
                _print_sheet(made[-1], form)
                if output is not None:
                    _write_sheet(made[-1], output / chosen.name)
                if into is not None:
                    _renew(into, name, made[-1])
        except InputError as error:  # one of many that cannot be made takes no other with it
            if len(names) == 1:
                raise
            failures.append(f"{name}: {error}")
    JsonSink(json_file).write([{"title": each.title, "rows": each.data} for each in made])
    _report_failures(failures)


class _Asked(NamedTuple):
    """What the user said of all tables alike."""

    results: Path
    quick: bool
    seeds: int | None
    records_only: bool
    jobs: int | None
    scheduler: str | None
    data: Path


def _run_table(table: "AbstractTable", asked: _Asked, *, models: bool = False) -> list[str]:
    from phast.paper.tables import jobs_of

    if asked.records_only:
        return []
    return _carry_out(asked.results, jobs_of(table, asked.seeds), asked.jobs, asked.scheduler, models=models)


def _sheet(table: "AbstractTable", asked: _Asked) -> "Sheet":
    return table.sheet(table.records(asked.results, asked.seeds))


def _print_sheet(made: "Sheet", form: Format) -> None:
    if form == "text":
        print(f"\n{made.title}\n")
        print_table(made.heading, made.lines)
    else:
        print({"markdown": made.markdown, "latex": made.latex, "json": made.json}[form]())


def _write_sheet(made: "Sheet", stem: Path) -> None:
    contents = {".txt": made.text(), ".md": made.markdown(), ".tex": made.latex(), ".json": made.json()}
    for suffix, content in contents.items():
        write_atomically(stem.with_name(stem.name + suffix), (content + "\n").encode())


def _marked(document: Path, names: Iterable[str]) -> list[str]:
    """The tables that have a place in a Markdown file."""
    from phast.paper.tables import between_marks

    text = _text(document)
    return [name for name in names if between_marks(text, name) is not None]


def _text(document: Path) -> str:
    try:
        return document.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {document}: {error.strerror}") from None


def _renew(document: Path, name: str, made: "Sheet") -> None:
    """Put a table between its marks in a Markdown file."""
    from phast.paper.tables import between_marks

    text = _text(document)
    if (found := between_marks(text, name)) is None:
        raise InputError(f"{document}: has no place <!-- {name} --> … <!-- /{name} -->")
    write_atomically(document, (text[: found[0]] + made.markdown() + text[found[1] :]).encode())


class Figure(NamedTuple):
    """A figure: what it shows, and how it is made and drawn into a file; runs that failed come back."""

    title: str
    make: Callable[[_Asked, Path], list[str]]


def _draw(name: str, asked: _Asked, target: Path) -> list[str]:
    failures = FIGURES[name].make(asked, target)
    print(f"{FIGURES[name].title}: {target}")
    return failures


def _gallery(draw_name: str) -> Callable[[_Asked, Path], list[str]]:
    def make(asked: _Asked, target: Path) -> list[str]:
        from phast.paper import figures
        from phast.paper.catalogue import table as table_named
        from phast.report.plots import save_figure

        runs = table_named("overview").quick() if asked.quick else table_named("overview")
        failures = _run_table(runs, asked._replace(seeds=1), models=True)
        use_double_precision()
        save_figure(getattr(figures, draw_name)(asked.results, runs.experiments()), target)
        return failures

    return make


def _primitives(asked: _Asked, target: Path) -> list[str]:
    _refuse_records_only(asked)
    speed_benchmarks().run_bench(["primitives"], json_path=None, plot=target)
    return []


def _refuse_records_only(asked: _Asked) -> None:
    if asked.records_only:
        raise InputError("this figure is measured anew each time and has no records: leave --records-only out")


def _velocity_study(asked: _Asked, target: Path) -> list[str]:

    _refuse_records_only(asked)
    use_double_precision()
    from phast.dynamics.systems import system
    from phast.paper.studies import velocity_study
    from phast.report.plots import error_growth, save_figure
    from phast.report.text import figure

    windy = system("pendulum-windy")
    curves = velocity_study(windy)
    steps = (1, 10, 50, 100)
    rows = [[name, *(figure(float(curve[h - 1])) for h in steps)] for name, curve in curves.items()]
    print_table(["velocity from", *(f"step {h}" for h in steps)], rows)
    save_figure(error_growth(curves, dt=windy.dt), target)
    return []


def _noise_study(asked: _Asked, target: Path) -> list[str]:

    use_double_precision()
    from phast.dynamics.systems import system
    from phast.paper.studies import LEVELS, noise_study, noise_study_paths
    from phast.report.plots import noise_levels, save_figure

    windy, levels = system("pendulum-windy"), LEVELS[::3] if asked.quick else LEVELS
    missing = [path for path in noise_study_paths(asked.results, windy, levels) if not path.exists()]
    if missing and asked.records_only:
        raise InputError(f"{missing[0]}: no such record: leave --records-only out to make it")
    with stages("noise study") as on_stage:
        records = noise_study(asked.results, windy, levels=levels, on_stage=on_stage)
    curves = noise_curves(records)
    rows = noise_rows(curves, levels)
    print_table(rows[0], rows[1:])
    save_figure(noise_levels(curves), target)
    return []


def noise_curves(records: "Iterable[Record]") -> dict[str, dict[float, float]]:
    """Method -> noise -> median rollout error."""
    titles = {"FD+TCN": "FD+TCN", "map": "MAP smoother", "horizon": "moving horizon", "floor": "floor: true physics"}
    curves: dict[str, dict[float, float]] = {title: {} for title in titles.values()}
    for record in records:
        curves[titles[record["model"]]][record["noise"]] = record["metrics"]["rollout_h100_median"]
    return curves


def noise_rows(curves: dict[str, dict[float, float]], levels: Iterable[float]) -> list[list[str]]:
    """The same as a table with its heading."""
    from phast.report.text import figure

    heading = ["median rollout error", *(f"σ = {noise:g}" for noise in levels)]
    return [heading, *([title, *(figure(curve[noise]) for noise in levels)] for title, curve in curves.items())]


def _measured(name: str) -> Callable[[_Asked, Path], list[str]]:
    def make(asked: _Asked, target: Path) -> list[str]:

        _refuse_records_only(asked)
        use_double_precision()
        from phast.paper.recordings import STUDIES, carry_out
        from phast.report.plots import measured_figure, save_figure
        from phast.report.text import figure

        with stages(STUDIES[name].title) as on_stage:
            record, forecast = carry_out(name, asked.data, asked.results, on_stage)
        print_table(
            ["coefficient", "value", "± (1σ)"],
            [[c["name"], figure(c["value"]), figure(c["deviation"])] for c in record["coefficients"]],
        )
        kinds = {key.removeprefix("rms_"): value for key, value in record["metrics"].items() if key.startswith("rms")}
        print_table(["rms error", *kinds], [["", *map(figure, kinds.values())]])
        save_figure(measured_figure(forecast.seen, forecast.units, STUDIES[name].title), target)
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
    "measured-single": Figure("Measured single pendulum: 2 s ahead", _measured("measured-single")),
    "measured-single-partial": Figure("The same, PARTIAL", _measured("measured-single-partial")),
    "measured-double": Figure("Measured double pendulum: 1 s ahead", _measured("measured-double")),
    "measured-arm": Figure("Measured torque-driven arm: 0.5 s ahead", _measured("measured-arm")),
    "measured-thermal": Figure("Measured temperatures: 60 s ahead", _measured("measured-thermal")),
    "measured-lynx": Figure("Lynx and hare: 3 years ahead", _measured("measured-lynx")),
}


@app.command()
def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    results: Annotated[Path, typer.Option(help="Folder of records, and of the models beside them.")] = Path("results"),
    system_names: Annotated[list[str] | None, typer.Option("--system", help="Only this one; may be repeated.")] = None,
    trajectories: Annotated[int, typer.Option(min=1, max=200, help="Test trajectories to draw per system.")] = 3,
) -> None:
    """Write one HTML page of all results, with every model beside its record."""
    check_ending(output, (".html", ".htm"))
    _report_results(results, system_names or (), output, trajectories)


def _report_results(results: Path, system_names: Sequence[str], output: Path, trajectories: int) -> None:
    from phast.paper.results_page import collect, section_names, write_report

    use_double_precision()  # holds the models of either precision
    runs = collect(results, system_names)
    with sections("drawing", total=len(section_names(runs))) as on_section:
        write_report(runs, output, trajectories=trajectories, on_section=on_section)
    print(f"{len(section_names(runs))} systems, {output.stat().st_size / 1e6:.1f} MB: open {output} in a browser")


# --- measuring -------------------------------------------------------------------------------------------------------


@app.command()
def bench(
    section: Annotated[
        list[str] | None, typer.Argument(help="train, rollout, seeds, primitives, startup; all if left out. Or: peers.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's timing figure into this file.")] = None,
    results: Annotated[Path, typer.Option(help="peers: folder of records.")] = Path("results"),
    system_names: Annotated[str | None, typer.Option("--system", help="peers: systems, separated by commas.")] = None,
    model: Annotated[str | None, typer.Option(help="peers: tools, separated by commas.")] = None,
    noise: Annotated[str | None, typer.Option(help="peers: noise levels, separated by commas.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure speed, as ratios to a plain PyTorch implementation in the same run (extra: bench).

    ``phast paper bench peers`` fits the tools that one would pick instead to the same data as ours (extra: peers).
    """
    if section == ["peers"]:
        _bench_peers(results, system_names, model, noise, json_file)
        return
    if "peers" in (section or []) or system_names or model or noise:
        raise InputError("peers is a bench of its own, and --system, --model and --noise belong to it")
    speed_benchmarks().run_bench(section or None, json_path=json_file, plot=plot)


def speed_benchmarks() -> ModuleType:
    """The benchmarks of speed, which lie beside the package."""
    import importlib.util

    path = Path(__file__).parents[2] / "benchmarks" / "speed.py"
    if not path.is_file():
        raise InputError("the benchmarks of speed lie in the repository, beside the package: run this in a clone of it")
    spec = importlib.util.spec_from_file_location("phast_speed_benchmarks", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def _bench_peers(
    results: Path, system_names: str | None, model: str | None, noise: str | None, json_file: Path | None
) -> None:
    from phast.dynamics.systems import system
    from phast.paper.catalogue import table as table_named
    from phast.paper.peers import COMPARED, NOISES, PEERS, compare, peer

    chosen = [system(name) for name in _listed(system_names, COMPARED)]
    names = _listed(model, PEERS)
    for name in names:
        peer(name)  # a wrong name is said before anything is fitted
    try:
        noises = [float(level) for level in _listed(noise, NOISES)]
    except ValueError:
        raise InputError(f"--noise '{noise}': give numbers separated by commas, e.g. 0,0.01") from None
    check_writable(results)
    use_double_precision()
    records = compare(results, chosen, names, noises, tell=lambda line: print(line, file=sys.stderr, flush=True))
    print(table_named("peers").sheet(records).text())
    JsonSink(json_file).write(records)


def _listed(text: str | None, default: Iterable[Any]) -> list[Any]:
    return list(default) if text is None else [part.strip() for part in text.split(",") if part.strip()]
