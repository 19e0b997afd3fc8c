"""The command line. A command is loaded when it is called for, and JAX when something is computed."""

import importlib
import importlib.metadata
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from phast.cli.options import with_groups
from phast.data.files import cache_directory
from phast.errors import FitError, InputError

COMMANDS = ("fit", "forecast", "identify", "filter", "report", "simulate", "systems", "demo")
DISTRIBUTION = "phast-physics"


class Commands(TyperGroup):
    """The user's commands, each from the module of its name, and those that other packages add."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *(point.name for point in _added())]

    def get_command(self, ctx: Any, name: str) -> TyperCommand | TyperGroup | None:
        if name in COMMANDS:
            return _loaded(name)
        for point in _added():
            if point.name == name:
                return typer.main.get_command(point.load())
        return None


def _loaded(name: str) -> TyperCommand | TyperGroup:
    module = importlib.import_module(f"phast.cli.{name}")
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    single.command(name, epilog=f"Example: `{module.EXAMPLE}`", context_settings=_HELP)(with_groups(module.command))
    found = typer.main.get_command(single)
    found.rich_help_panel = module.PANEL
    return found


def _added() -> list[importlib.metadata.EntryPoint]:
    return sorted(importlib.metadata.entry_points(group="phast.commands"), key=lambda point: point.name)


_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="phast",
    cls=Commands,
    help="Learn port-Hamiltonian models from positions alone: forecast the system, recover its physics.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings=_HELP,
)


def _version(asked: bool) -> bool:
    if asked:
        print(f"phast {importlib.metadata.version(DISTRIBUTION)}")
        raise typer.Exit
    return asked


@app.callback()
def _phast(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line: bad input is one line on standard error and exit code 2."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what XLA has to say is about itself
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_directory() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    warnings.showwarning = _warn
    try:
        app()
    except (InputError, FitError) as error:
        print(f"phast: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning is one line too."""
    print(f"phast: warning: {message}", file=sys.stderr)
