"""``phast fit``."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import phast
from phast.cli.console import JsonSink, watching
from phast.cli.options import Columns, Shown, StructureOptions, existing_files, model_path
from phast.data.durations import check_duration
from phast.errors import InputError

PANEL = "Fit and forecast"
EXAMPLE = "phast fit swing.csv --positions q:angle:deg --potential cosine --damping viscous+coulomb -o swing/"


@dataclasses.dataclass(frozen=True)
class _Method:
    """The method and its options."""

    name: Literal["second-order", "gradient"]
    second_order: dict[str, Any]
    gradient: dict[str, Any]

    def __post_init__(self):
        other = self.gradient if self.name == "second-order" else self.second_order
        said = [name for name, value in other.items() if not (value is None or value is False)]
        if said:
            wanted = "gradient" if self.name == "second-order" else "second-order"
            raise InputError(f"--{said[0].replace('_', '-')} belongs to --method {wanted}")
        for name in ("noise", "budget", "learning_rate"):
            if (value := (self.second_order | self.gradient)[name]) is not None and not value > 0.0:
                raise InputError(f"--{name.replace('_', '-')} {value:g}: give a positive number")

    def build(self, checkpoint: Path):
        if self.name == "second-order":
            return phast.SecondOrder(**self.second_order)
        said = {name: value for name, value in self.gradient.items() if value is not None}
        bound = said.pop("bound", None)
        resumed = None if bound == "validated" else checkpoint
        return phast.Gradient(settings=phast.Settings(**said), bound=bound, checkpoint=resumed)


def command(
    files: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of positions, or '-' for standard input.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model to write: a .phast file or a folder.")],
    columns: Columns,
    asked: StructureOptions,
    shown: Shown,
    method: Annotated[
        Literal["second-order", "gradient"],
        typer.Option(help="Fit to second order, or train networks as the paper does.", rich_help_panel="Method"),
    ] = "second-order",
    context: Annotated[
        str | None,
        typer.Option(help="What a state is taken from: samples, or a time such as '0.2 s'.", rich_help_panel="Method"),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=2, help="Samples in a window of the fit.", rich_help_panel="Method")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(help="Standard deviation of a position; from the data if left out.", rich_help_panel="Method"),
    ] = None,
    passive: Annotated[
        bool,
        typer.Option("--passive", help="Forecast by steps along which energy cannot rise.", rich_help_panel="Method"),
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds for the search, where the law is to be found.", rich_help_panel="Method"),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Gradient: passes over the data.", rich_help_panel="Method")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Gradient: of AdamW.", rich_help_panel="Method")] = None,
    bound: Annotated[
        str | None,
        typer.Option(help="Gradient: bound on the damping strength, or 'validated'.", rich_help_panel="Method"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the samples that are used.", rich_help_panel="Method")] = 0,
) -> None:
    """Learn a model from positions, and say how sure it is.

    The model is written before the spread of its forecasts is judged. A training by --method gradient that is killed
    resumes when the same command is given again.
    """
    existing_files(files)
    asked.check()
    if context is not None:
        check_duration(context)
    path = model_path(output)
    unfinished = path.with_name(path.name + ".unfinished")
    second_order = {"context": _whole(context), "window": window, "noise": noise, "passive": passive, "budget": budget}
    gradient = {"epochs": epochs, "learning_rate": learning_rate, "bound": _bound(bound)}
    chosen = _Method(method, second_order, gradient)
    sink = JsonSink(shown.json_file)
    recording = columns.read(files, silent=shown.silent)
    said = {"columns": columns.named(), "source": ", ".join(files)}

    def keep(fitted: "phast.Fitted") -> "phast.Fitted":
        fitted = dataclasses.replace(fitted, about=fitted.about | said)
        fitted.save(path)
        return fitted

    with watching("fitting", quiet=shown.quiet) as progress:
        fitted = phast.fit(
            recording,
            asked.structure(),
            method=chosen.build(unfinished),
            seed=seed,
            progress=lambda told: progress(told) if told.model is None else (keep(told.model), progress(told)),
        )
    fitted = keep(fitted)
    unfinished.unlink(missing_ok=True)
    shown.text(fitted)
    shown.text(f"model: {path}")
    sink.write(fitted.summary() | {"model": str(path)})


def _whole(context: str | None) -> str | int | None:
    return int(context) if context is not None and context.strip().isdigit() else context


def _bound(text: str | None) -> float | str | None:
    if text is None or text == "validated":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--bound '{text}': give a number, or 'validated' to choose it by validation") from None
