"""``phast paper evaluate``."""

import contextlib
from typing import Annotated, Any

import typer

import phast
from phast import paper
from phast.cli.console import JsonSink, print_table
from phast.cli.options import Shown
from phast.dynamics.names import check_system
from phast.errors import InputError, counted
from phast.paper.cli.runs import listed
from phast.paper.progress import training

PANEL = "Runs"
EXAMPLE = "phast paper evaluate pendulum-windy --model phast-known --preset sharp"


def command(
    name: Annotated[str, typer.Argument(metavar="SYSTEM")],
    shown: Shown,
    model: Annotated[
        str, typer.Option(help="Model names, separated by commas.")
    ] = "phast-known,phast-partial,phast-unknown",
    preset: Annotated[str, typer.Option(help="How to train.")] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 1,
    noise: Annotated[float, typer.Option(min=0.0, help="Noise on training data and contexts.")] = 0.0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer epochs than the preset's, for a quick look.")] = None,
    float64: Annotated[bool, typer.Option("--float64", help="Compute in double precision.")] = False,
) -> None:
    """Train and judge models on a system by the paper's protocol, beside the published numbers."""
    check_system(name)
    chosen, way = phast.system(name), paper.experiments.preset(preset)
    names = listed(model, ())
    if not names:
        raise InputError("--model names no model: `phast paper models` lists all")
    for each in names:
        way.maker(each)
    settings = None if epochs is None else phast.Settings(epochs=epochs)
    sink, records = JsonSink(shown.json_file), []
    with paper.experiments.precision(float64 or way.needs_float64):
        for each in names:
            title = f"{each} on {name}"
            bar = training(title, preset, seeds=seeds, epochs=epochs or phast.Settings().epochs)
            with contextlib.nullcontext(paper.experiments.UNWATCHED) if shown.quiet else bar as watch:
                experiment = paper.experiments.Experiment(name, each, preset, noise)
                outcomes = paper.experiments.run(experiment, range(seeds), settings=settings, watch=watch)
                records += [outcome.record for outcome in outcomes]
            if shown.json_file != "-" or each == names[-1]:
                sink.write(records)
    if not shown.silent:
        _print_comparison(records, chosen)


def _print_comparison(records: list[dict[str, Any]], system: "phast.System") -> None:
    kind = paper.metrics.error_name(system.manifold)
    columns = [
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
    title = f"{system.title}: {counted(seeds, 'seed')}, preset {records[0]['preset']}"
    judged = paper.tables.sheet(title, paper.tables.metric_rows(records, columns))
    print(f"\n{judged.title}")
    print_table(judged.heading, judged.lines)
