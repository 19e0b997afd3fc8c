"""``phast forecast``."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

import phast
from phast.cli.console import check_figure, sink_beside
from phast.cli.options import Columns, Shown, existing_files, model_and_recording
from phast.data.durations import check_duration
from phast.errors import InputError

PANEL = "Fit and forecast"
EXAMPLE = "phast forecast swing/ swing.csv --horizon '2 s' -o future.csv --plot future.png"


def command(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    files: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of positions, or '-' for standard input.")],
    columns: Columns,
    shown: Shown,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file; '-' for standard output.")
    ] = None,
    origin: Annotated[
        Literal["end", "start", "everywhere"],
        typer.Option("--from", help="After the last samples; or after the first or all along, compared with the rest."),
    ] = "end",
    horizon: Annotated[str, typer.Option(help="Steps to forecast, or a time: '200', '2 s', '500 ms'.")] = "100",
    context: Annotated[
        str | None, typer.Option(help="Samples to start from, or a time; as the model was fitted if left out.")
    ] = None,
    future: Annotated[
        Path | None, typer.Option(help="For a driven model, from the end: a file with the inputs to come.")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Instead: hold the last inputs.")] = False,
    mode: Annotated[
        Literal["autoregressive", "takeover"], typer.Option(help="Feed forecasts back, or integrate one state.")
    ] = "autoregressive",
    adapt: Annotated[
        str | None, typer.Option(help="Coefficients to refine on each context, e.g. 'damping.base,potential.scale'.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A figure of the first forecast.")] = None,
) -> None:
    """Forecast what comes after a recording, with its spread; or from within it, and report the error."""
    check_duration(horizon)
    if context is not None:
        check_duration(context)
    sink = sink_beside(output, shown.json_file)
    check_figure(plot)
    existing_files([str(future)] if future is not None else [])
    fitted, recording = model_and_recording(model_file, files, columns, silent=shown.silent or output == "-")
    found = fitted.forecast(
        horizon,
        recording,
        start=origin,
        context=context,
        inputs=None if future is None else _coming(fitted, future),
        hold=hold,
        mode=mode,
        adapt=() if adapt is None else [name.strip() for name in adapt.split(",")],
    )
    if output == "-":
        found.to_frame().to_csv(sys.stdout, index=False)
    else:
        shown.text(found)
        if output is not None:
            found.save(output)
            shown.text(f"forecasts: {output}")
    if plot is not None:
        phast.save_figure(found.plot(), plot)
        shown.text(f"figure: {plot}")
    sink.write(found.summary())


def _coming(fitted: "phast.Fitted", future: Path) -> np.ndarray:
    """The inputs to come, by the columns that the model knows."""
    if not fitted.inputs:
        raise InputError("this model was fitted without inputs: leave --future out")
    return phast.read_columns(future, fitted.inputs)
