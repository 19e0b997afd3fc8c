"""The command line. A command is loaded when it is called for, and JAX when something is computed."""

import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from phast.cli.commands import AbstractCommands, Command, group
from phast.data.files import cache_directory, limit_cache
from phast.errors import FitError, InputError

DISTRIBUTION = "phast-physics"
_LARGEST_CACHE = 2**30  # bytes


class Commands(AbstractCommands):
    """The user's commands, and those that other packages add."""

    package = "phast.cli"
    names = (
        "fit",
        "forecast",
        "identify",
        "compare",
        "filter",
        "report",
        "control",
        "export",
        "simulate",
        "systems",
        "demo",
    )

    def others(self) -> dict[str, Callable[[], Command]]:
        points = sorted(importlib.metadata.entry_points(group="phast.commands"), key=lambda point: point.name)
        return {point.name: lambda point=point: typer.main.get_command(point.load()) for point in points}


app = group(
    "phast",
    Commands,
    "Learn port-Hamiltonian models from positions alone: forecast the system, recover its physics.\n\n"
    "Compiled programs are kept in `~/.cache/phast` for later calls, 1 GB at most; `PHAST_CACHE` names another folder.",
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
        sys.exit(app(standalone_mode=False) or 0)
    except (InputError, FitError) as error:
        _stop(str(error), 2 if isinstance(error, InputError) else 1)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:  # Typer's own have no common class in all its versions
        if not hasattr(error, "format_message"):
            raise
        _stop(_of_usage(error), 2)
    finally:
        if "jax" in sys.modules:  # else nothing was compiled
            limit_cache(cache_directory(), _LARGEST_CACHE)


def _stop(message: str, code: int) -> NoReturn:
    if message:
        print(f"phast: {message}", file=sys.stderr)
    sys.exit(code)


def _of_usage(error: Any) -> str:
    """What Typer says of the words of a command, in one line, and where to look; nothing where it showed the help."""
    said = " ".join(error.format_message().replace("Value error, ", "").split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    where = f": see `{context.command_path} --help`" if said and context else ""
    return f"{said[:1].lower()}{said[1:]}{where}"


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning is one line too."""
    print(f"phast: warning: {message}", file=sys.stderr)
