"""``phast compare``."""

import itertools
from pathlib import Path
from typing import Annotated

import typer

import phast
from phast.cli.console import JsonSink, check_figure, watching
from phast.cli.options import Columns, Shown, StructureOptions, existing_files
from phast.data.durations import check_duration
from phast.errors import InputError
from phast.fitting import words

PANEL = "Physics"
EXAMPLE = "phast compare swing.csv --positions q:angle:deg --potential 'cosine|quadratic' --damping 'viscous|coulomb'"


def command(
    files: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of positions, or '-' for standard input.")],
    columns: Columns,
    asked: StructureOptions,
    shown: Shown,
    holdout: Annotated[float, typer.Option(help="The share of runs, or of the time, that is not fitted.")] = 0.25,
    horizon: Annotated[str, typer.Option(help="How far what was held out is forecast: steps, or '1 s'.")] = "50",
    plot: Annotated[Path | None, typer.Option(help="A figure of the ranking.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the samples that are used.")] = 0,
) -> None:
    """Fit candidates, 'cosine|quadratic', and rank them by evidence and by forecasts of what was not fitted."""
    existing_files(files)
    check_figure(plot)
    steps = int(horizon) if horizon.strip().isdigit() else horizon
    check_duration(steps)
    if not 0.0 < holdout < 1.0:
        raise InputError(f"--holdout {holdout}: give the share that is not fitted, between 0 and 1")
    choices = named_candidates(asked)
    sink = JsonSink(shown.json_file)
    recording = columns.read(files, silent=shown.silent)
    structures = [phast.Structure(**each) for each in choices]
    with watching("comparing", quiet=shown.quiet) as progress:
        found = phast.compare(recording, structures, holdout=holdout, horizon=steps, seed=seed, progress=progress)
    shown.text(found)
    if plot is not None:
        phast.save_figure(found.plot(), plot)
        shown.text(f"figure: {plot}")
    sink.write(found.summary())


def named_candidates(asked: StructureOptions) -> list[dict]:
    """Every combination of the words between bars, checked."""
    parts = {name: value.split("|") for name in ("potential", "mass", "damping") if (value := getattr(asked, name))}
    given = {"port": asked.port, "regime": asked.regime}
    found = [given | dict(zip(parts, each, strict=True)) for each in itertools.product(*parts.values())]
    if len(found) < 2:
        raise InputError("nothing to compare: put a bar between candidates, --potential 'cosine|quadratic'")
    for each in found:
        each |= {name: value.strip() for name, value in each.items() if isinstance(value, str)}
        words.check(each.get("potential"), each["mass"], each.get("damping"), each["regime"])
    words.check_port(asked.port)
    return found
