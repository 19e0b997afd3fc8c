"""Options that several commands share: a group of them is one class, and one parameter of each command."""

import dataclasses
import functools
import inspect
import math
import os
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import phast
from phast.cli.console import note
from phast.data.files import check_writable
from phast.dynamics.names import SYSTEM_NAMES
from phast.errors import InputError
from phast.fitting import words
from phast.fitting.archives import describe

if TYPE_CHECKING:
    from phast.api.fitted import Fitted
    from phast.data.lines import Sample
    from phast.data.recording import Recording

MODEL_FILE = "model.phast"


@dataclasses.dataclass(frozen=True)
class Options:
    """A group: each field is an option."""

    def refuse(self, because: str) -> None:
        """Refuse these options where none applies."""
        for field in dataclasses.fields(self):
            if getattr(self, field.name) != field.default:
                raise InputError(f"--{field.name} {because}")


def with_groups(command: Callable) -> Callable:
    """The command with every parameter that is a group taken apart into its options."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Options)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        kinds = typing.get_type_hints(groups[name], include_extras=True)
        for field in dataclasses.fields(groups[name]):
            annotation, default = kinds[field.name], field.default
            parameters.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        return command(**values)

    del run.__wrapped__
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@dataclasses.dataclass(frozen=True)
class Columns(Options):
    """How a file is read."""

    time: Annotated[
        str | None, typer.Option(help="The time column; 't' or 'time' if left out.", rich_help_panel="Columns")
    ] = None
    positions: Annotated[
        str | None,
        typer.Option(
            help="The position columns, e.g. 'x,theta:angle' or 'theta:angle:deg'.", rich_help_panel="Columns"
        ),
    ] = None
    inputs: Annotated[
        str | None, typer.Option(help="The columns of known inputs, e.g. 'u1,u2'.", rich_help_panel="Columns")
    ] = None
    trajectory: Annotated[
        str | None, typer.Option(help="The column that distinguishes runs.", rich_help_panel="Columns")
    ] = None
    dt: Annotated[
        float | None, typer.Option(help="The sampling step, where there is no time column.", rich_help_panel="Columns")
    ] = None
    missing: Annotated[
        Literal["refuse", "split"] | None,
        typer.Option(help="Rows with blanks: refuse them, or leave them out.", rich_help_panel="Columns"),
    ] = None
    start: Annotated[float | None, typer.Option(help="Use samples from this time on.", rich_help_panel="Columns")] = (
        None
    )
    stop: Annotated[float | None, typer.Option(help="Use samples before this time.", rich_help_panel="Columns")] = None

    def named(self) -> dict[str, Any]:
        """The options that were given."""
        said = dataclasses.asdict(self)
        return {
            name: said[name]
            for name in ("time", "positions", "inputs", "trajectory", "dt", "missing")
            if said[name] is not None
        }

    def read(self, files: Sequence[str], known: dict[str, Any] | None = None, *, silent: bool = False) -> "Recording":
        """The files as one recording; ``known`` are a model's columns, for options that were not given."""
        recording = _read(files, self._beside(known or {}))
        for remark in () if silent else recording.notes:
            note(remark)
        if self.start is None and self.stop is None:
            return recording
        return recording.between(
            -math.inf if self.start is None else self.start, math.inf if self.stop is None else self.stop
        )

    def named_for(self, fitted: "Fitted") -> dict[str, Any]:
        """The columns of a model's data, or those that were named instead."""
        return self._beside(_columns_of(fitted))

    def _beside(self, known: dict[str, Any]) -> dict[str, Any]:
        said = self.named()
        return {name: value for name, value in known.items() if not (name == "time" and "dt" in said)} | said

    def between(self, samples: "Iterable[Sample]") -> "Iterator[Sample]":
        """The samples from the start on, up to the first at the stop."""
        for sample in samples:
            if self.stop is not None and sample.t >= self.stop:
                return
            if self.start is None or sample.t >= self.start:
                yield sample


def _read(files: Sequence[str], named: dict[str, Any]) -> "Recording":
    """Files, of which '-' is a CSV file that comes through the pipe."""
    if "-" not in files:
        return phast.read(files[0] if len(files) == 1 else list(files), **named)
    with tempfile.TemporaryDirectory() as folder:
        piped = Path(folder) / "stdin.csv"
        piped.write_bytes(sys.stdin.buffer.read())
        try:
            return _read([str(piped) if name == "-" else name for name in files], named)
        except InputError as error:
            raise InputError(str(error).replace(f"'{piped}'", "standard input")) from error


@dataclasses.dataclass(frozen=True)
class StructureOptions(Options):
    """What to look for, in words."""

    potential: Annotated[
        str | None,
        typer.Option(
            help="The template: cosine, quadratic, quartic, constant, coupled, chain, none or auto, joined by +; "
            "'quadratic(x1-x2)' is of a difference, 'cosine:9.81' has a strength.",
            rich_help_panel="Structure",
        ),
    ] = None
    mass: Annotated[
        str,
        typer.Option(
            help="The mass: a number, one each, or learned, links, joints, joints+rotors or cartpole.",
            rich_help_panel="Structure",
        ),
    ] = "1.0"
    damping: Annotated[
        str | None,
        typer.Option(
            help="viscous, coulomb, quadratic, stiction, directional, coupled, free or none, joined by +; "
            "'viscous(x1-x2)' is of a difference; free if left out.",
            rich_help_panel="Structure",
        ),
    ] = None
    port: Annotated[
        str | None,
        typer.Option(help="How inputs act: identity, learned, or rows '1,0;0,1'.", rich_help_panel="Structure"),
    ] = None
    regime: Annotated[
        Literal["known", "partial", "unknown"] | None,
        typer.Option(
            help="What is known; left out, partial if a potential is named, else unknown; where nothing is named, the "
            "law is found.",
            rich_help_panel="Structure",
        ),
    ] = None

    def check(self) -> None:
        """Refuse unknown words before anything is loaded."""
        words.check(self.potential, self.mass, self.damping, self.regime)
        words.check_port(self.port)

    def structure(self) -> "phast.Structure":
        return phast.Structure(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Shown(Options):
    """What is shown and where numbers go."""

    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write the numbers to FILE; '-' prints them alone."),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, no notes and no results.")] = False

    @property
    def silent(self) -> bool:
        """Whether results are not to be printed as text."""
        return self.quiet or self.json_file == "-"

    def text(self, line: object) -> None:
        if not self.silent:
            print(line)


def model_path(path: Path) -> Path:
    """Where a model goes: a folder holds it as ``model.phast``. Refused if it is another file, or cannot be written."""
    if path.is_dir() or not path.suffix:
        path = path / MODEL_FILE
    elif path.suffix != ".phast":
        raise InputError(f"'{path}': the ending of a model is .phast; without one it is a folder")
    check_writable(path.parent)
    return path


def is_model(source: str) -> bool:
    """Whether this names a model: a file or a folder of one."""
    path = Path(source)
    return path.suffix == ".phast" or (path / MODEL_FILE).is_file() or source.endswith(("/", os.sep))


def existing_model(path: Path) -> Path:
    """The file of the model in ``path``, or what to do without one."""
    found = path / MODEL_FILE if path.is_dir() else path
    if not found.is_file():
        raise InputError(f"no model '{path}': make one with `phast fit DATA.csv -o {path}`")
    return found


def existing_files(files: Sequence[str]) -> None:
    """Refuse a file that is not there, before anything is loaded."""
    for name in files:
        if name == "-" or Path(name).is_file():
            continue
        if Path(name).is_dir():
            raise InputError(f"'{name}' is a folder: name the files in it")
        if not Path(name).suffix and name in SYSTEM_NAMES:
            raise InputError(
                f"'{name}' is a system, not a file: simulate it first, `phast simulate {name} -o {name}.csv`"
            )
        raise InputError(f"no such file: '{name}'")


def model_and_recording(
    model_file: Path, files: Sequence[str], columns: Columns, *, silent: bool
) -> tuple["Fitted", "Recording"]:
    """A model, and files read as it reads them."""
    path = existing_model(model_file)
    existing_files(files)
    if said := describe(path).get("columns"):  # a wrong column need not wait for the model
        recording = columns.read(files, said, silent=silent)
        return phast.load(path), recording
    fitted = phast.load(path)
    return fitted, columns.read(files, _columns_of(fitted), silent=silent)


def _columns_of(fitted: "Fitted") -> dict[str, Any]:
    """How the columns of the data of a fit were named."""
    return fitted.about.get("columns") or {"positions": ",".join(fitted.units.headings)}
