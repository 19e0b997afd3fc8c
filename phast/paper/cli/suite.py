"""``phast paper suite``."""

from typing import Annotated

import typer

from phast import paper
from phast.cli.console import JsonSink
from phast.cli.options import Shown
from phast.dynamics.names import check_system
from phast.errors import InputError
from phast.paper.cli.runs import Runs, listed, report_failures

PANEL = "Runs"
EXAMPLE = "phast paper suite --system rlc,spring-mass --preset sharp --seeds 1"


def command(
    runs: Runs,
    shown: Shown,
    system: Annotated[str, typer.Option(help="Systems, separated by commas; 'all' for the thirteen.")] = "all",
    model: Annotated[str, typer.Option(help="Models, separated by commas; 'all' for those of the preset.")] = "all",
    preset: Annotated[str, typer.Option(help="How to train.")] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 5,
    noise: Annotated[float, typer.Option(min=0.0, help="Noise on training data and contexts.")] = 0.0,
    models: Annotated[
        bool, typer.Option("--models", help="Run also those whose record is there and whose model is not.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say what is there and what all would cost.")] = False,
) -> None:
    """Run systems × models × seeds, one small record each. Killed and started again, it goes on where it was."""
    for name in [] if system == "all" else listed(system, ()):
        check_system(name)
    tables, way = paper.tables, paper.experiments.preset(preset)
    systems = listed(None if system == "all" else system, tables.BENCHMARKS)
    default = (*tables.REGIMES, *tables.BASELINES) if way.has_epochs else tables.REGIMES
    names = listed(None if model == "all" else model, default)
    for name in names:
        way.maker(name)
    if not systems or not names:
        raise InputError("--system or --model names nothing: see `phast systems` and `phast paper models`")
    experiments = [paper.experiments.Experiment(s, m, preset, noise) for s in systems for m in names]
    wanted = [paper.executors.Job(experiment, tuple(range(seeds))) for experiment in experiments]
    failures = [] if status else runs.carry_out(wanted, models=models, quiet=shown.quiet)
    records = paper.executors.records_of(runs.results, wanted)
    sums = paper.executors.cost(records, wanted)
    shown.text(
        f"{sums.done} of {sums.total} runs have a record in {runs.results}/: {_duration(sums.spent)} of running. "
        f"All of them: about {_duration(sums.whole)}."
    )
    JsonSink(shown.json_file).write(records)
    report_failures(failures)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
