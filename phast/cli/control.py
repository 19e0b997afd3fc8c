"""``phast control``."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import phast
from phast.cli.console import JsonSink, check_figure, stages
from phast.cli.options import Columns, Shown, existing_model, model_and_recording
from phast.control.export.names import name_in_c
from phast.control.wanted import DRAWS, Wanted, numbers_by_name, numbers_of
from phast.data.files import check_target
from phast.errors import InputError
from phast.fitting.archives import describe

if TYPE_CHECKING:
    from phast.data.recording import Recording

PANEL = "Control"
EXAMPLE = "phast control rig/ rig.csv --target 'theta=60' --bandwidth 6 --limits 8 -o control.html --export control.c"


def command(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    columns: Columns,
    shown: Shown,
    target: Annotated[str, typer.Option(help="A number for each coordinate, in the units of the fit: 'x=0,theta=60'.")],
    bandwidth: Annotated[str, typer.Option(help="How fast, in rad/s: one number, or one for each input.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[DATA]", help="A recording, at whose positions trials start.")
    ] = None,
    damping_ratio: Annotated[str, typer.Option(help="How damped: one number, or one for each input.")] = "0.7",
    limits: Annotated[
        str | None,
        typer.Option(help="The largest magnitude of the input: one number, or one for each; none if left out."),
    ] = None,
    holding: Annotated[
        str | None, typer.Option(help="The input that holds the target; from the learned potential if left out.")
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--from", help="Start trials from rest here instead, as in --target; may be repeated."),
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="How near is settled: one number, or one each; 0.05 rad or 5 % if left out.")
    ] = None,
    within: Annotated[str | None, typer.Option(help="The time to settle within, e.g. '3 s'.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Trials, each with coefficients drawn from the fit.")] = DRAWS,
    seed: Annotated[int, typer.Option(help="Draws coefficients and noise.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="An HTML page to write.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A figure of the trials.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="A .c file to write: time step, filter and controller, with a header.")
    ] = None,
) -> None:
    """Design a controller for a fitted model, and try it on the systems that the data of its fit leave possible.

    Potential shaping and damping injection: gains from a bandwidth and a damping ratio, the input at the target from
    the learned potential. A target that the inputs cannot hold, within their limits, is refused.
    """
    options = _options(target, bandwidth, damping_ratio, limits, holding, origins, tolerance)
    Wanted(**options, within=within, draws=draws)
    sink = JsonSink(shown.json_file)
    check_figure(plot)
    if output is not None:
        check_target(output, (".html", ".htm"))
    if export is not None:
        check_target(export, (".c",))
        name_in_c(export)
    fitted, recording = _read(model_file, files, columns, starts=bool(origins), silent=shown.silent)
    with contextlib.nullcontext() if shown.quiet else stages("control") as said:
        if said is not None:
            said(f"{draws} trials")
        found = fitted.control(**options, within=within, recording=recording, draws=draws, seed=seed)
    shown.text(found)
    _write(found, shown, output, plot, export)
    sink.write(found.summary())


def _options(target, bandwidth, damping_ratio, limits, holding, origins, tolerance) -> dict[str, Any]:
    """What was asked for as numbers."""
    each = {
        "bandwidth": bandwidth,
        "damping_ratio": damping_ratio,
        "limits": limits,
        "holding": holding,
        "tolerance": tolerance,
    }
    found: dict[str, Any] = {
        name: numbers_of(text, f"--{name.replace('_', '-')}") for name, text in each.items() if text is not None
    }
    found["target"] = numbers_by_name(target, "--target")
    found["start"] = [numbers_by_name(text, "--from") for text in origins or []] or None
    return found


def _read(
    model_file: Path, files: list[str] | None, columns: Columns, *, starts: bool, silent: bool
) -> "tuple[phast.Fitted, Recording | None]":
    if not files:
        columns.refuse("is for a file of positions: name one after the model")
        if not starts:
            raise InputError("where do trials start? name a recording after the model, or positions: --from 'theta=0'")
    path = existing_model(model_file)  # before `phast.load` loads JAX
    if describe(path).get("inputs") == []:
        raise InputError("this model was fitted without inputs, so there is nothing to control it with")
    return model_and_recording(path, files, columns, silent=silent) if files else (phast.load(path), None)


def _write(
    found: "phast.Controlled", shown: Shown, output: Path | None, plot: Path | None, export: Path | None
) -> None:
    if output is not None:
        found.report(output)
        shown.text(f"page: {output}")
    if plot is not None:
        phast.save_figure(found.plot(), plot)
        shown.text(f"figure: {plot}")
    if export is not None:
        found.export(export)
        shown.text(f"controller: {export}, {export.with_suffix('.h')}")
