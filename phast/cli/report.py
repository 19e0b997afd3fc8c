"""``phast report``."""

from pathlib import Path
from typing import Annotated

import typer

from phast.cli.console import watching
from phast.cli.options import Columns, model_and_recording
from phast.data.files import check_target

PANEL = "Physics"
EXAMPLE = "phast report swing/ swing.csv -o swing.html"


def command(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    files: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of positions to show the model on.")],
    columns: Columns,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no notes and no result.")] = False,
) -> None:
    """Write one HTML page: how well a model fits a recording, its forecasts, its coefficients."""
    check_target(output, (".html", ".htm"))
    fitted, recording = model_and_recording(model_file, files, columns, silent=quiet)
    with watching("report", quiet=quiet) as progress:
        fitted.report(output, recording, progress=progress)
    if not quiet:
        print(f"{output.stat().st_size / 1e6:.1f} MB: open {output} in a browser")
