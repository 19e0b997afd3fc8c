"""``phast export``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import phast
from phast.cli.options import existing_model
from phast.control.export.names import check_extra, format_of, name_in_c
from phast.errors import InputError

PANEL = "Control"
EXAMPLE = "phast export swing/ -o swing.c"


def command(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .c file, beside which its header goes, or .onnx.")],
    form: Annotated[
        Literal["c", "onnx"] | None, typer.Option("--format", help="As the ending says, if left out.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="C: what names of functions begin with; that of the file if left out.")
    ] = None,
    single: Annotated[bool, typer.Option("--single", help="Single precision.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no result.")] = False,
) -> None:
    """Write a model as code that runs without Python: C99 (time step and filter), or ONNX (time step).

    The C has no dependency and allocates no memory; its header says how to call it. ONNX needs the extra `onnx`.
    """
    if format_of(output, form) == "onnx":
        check_extra()
        if name is not None:
            raise InputError("--name is for names in C: leave it out, or write a .c file")
    else:
        name_in_c(output, name)
    path = existing_model(model_file)
    fitted = phast.load(path)
    fitted.export(output, name=name, single=single)
    if not quiet:
        written = [output] if output.suffix == ".onnx" else [output, output.with_suffix(".h")]
        print(", ".join(f"{path} ({path.stat().st_size / 1e3:.0f} kB)" for path in written))
