"""``phast identify``."""

from pathlib import Path
from typing import Annotated

import typer

import phast
from phast.cli.console import JsonSink, check_figure, watching
from phast.cli.options import (
    Columns,
    Shown,
    StructureOptions,
    existing_files,
    existing_model,
    is_model,
    model_and_recording,
)
from phast.errors import InputError

PANEL = "Physics"
EXAMPLE = "phast identify swing/ swing.csv --plot fields.png"


def command(
    source: Annotated[str, typer.Argument(metavar="MODEL|DATA", help="A fitted model, or a file of positions to fit.")],
    columns: Columns,
    asked: StructureOptions,
    shown: Shown,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[DATA]", help="Files to look at fields and energy along.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A figure of the fields with their uncertainty.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the samples of a fit; 0 if left out.")] = None,
) -> None:
    """Recover physical coefficients with their uncertainty, and say which ones the data cannot determine."""
    check_figure(plot)
    sink = JsonSink(shown.json_file)
    if is_model(source):
        _refuse_idle(columns, asked, seed, has_data=bool(files))
        if files:
            fitted, recording = model_and_recording(Path(source), files, columns, silent=shown.silent)
        else:
            path = existing_model(Path(source))
            fitted, recording = phast.load(path), None
    else:
        existing_files([source, *(files or [])])
        asked.check()
        recording = columns.read([source, *(files or [])], silent=shown.silent)
        with watching("fitting", quiet=shown.quiet) as progress:
            fitted = phast.fit(recording, asked.structure(), seed=seed or 0, progress=progress)
    if plot is not None and recording is None:
        raise InputError("a figure along a coordinate needs data: give a file after the model")
    found = fitted.identify(recording)
    shown.text(found)
    if found.fields:
        shown.text(found.details())
    if plot is not None:
        phast.save_figure(found.plot(), plot)
        shown.text(f"figure: {plot}")
    sink.write(found.summary() | {"source": source})


def _refuse_idle(columns: Columns, asked: StructureOptions, seed: int | None, *, has_data: bool) -> None:
    """Refuse options of a fit beside a model, and columns where no file is read."""
    fitted = "is for a fit: this model is fitted already"
    asked.refuse(fitted)
    if seed is not None:
        raise InputError(f"--seed {fitted}")
    if not has_data:
        columns.refuse("is for a file of positions: name one after the model")
