"""``phast filter``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import phast
from phast.cli.console import sink_beside
from phast.cli.options import Columns, Shown, existing_model, model_and_recording
from phast.cli.stream import answer_lines
from phast.errors import InputError

PANEL = "Fit and forecast"
EXAMPLE = "phast filter swing/ swing.csv -o states.csv"


def command(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    files: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of positions, or '-' for standard input.")],
    columns: Columns,
    shown: Shown,
    output: Annotated[
        str, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file of states; '-' for standard output.")
    ] = "-",
    noise: Annotated[
        float | None, typer.Option(help="Standard deviation of a measured position; as learned if left out.")
    ] = None,
    process_noise: Annotated[
        float | None,
        typer.Option(help="For a model fitted by gradient descent: its own error per step, a standard deviation."),
    ] = None,
) -> None:
    """Estimate positions and momenta from every measurement so far.

    From standard input to standard output it is a stream: each line is answered as it comes, with the standard
    deviations of its state. A line that is no sample ends the stream with exit code 2, after all earlier answers.
    """
    if not all(x is None or x > 0 for x in (noise, process_noise)):
        raise InputError("--noise and --process-noise are standard deviations: give positive numbers")
    sink = sink_beside(output, shown.json_file)
    if files == ["-"] and output == "-":
        fitted = phast.load(existing_model(model_file))
        surprise = answer_lines(fitted, columns, silent=shown.quiet, noise=noise, process_noise=process_noise)
        sink.write({"surprise": surprise})
        return
    fitted, recording = model_and_recording(model_file, files, columns, silent=shown.silent or output == "-")
    states = fitted.filter(recording, noise=noise, process_noise=process_noise)
    if output == "-":
        states.to_frame().to_csv(sys.stdout, index=False)
    else:
        states.save(output)
        shown.text(states)
        shown.text(f"states: {output}")
    sink.write({"surprise": states.surprise})
