"""Groups of commands, each loaded from the module of its name when it is called for."""

import importlib
from abc import abstractmethod
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from phast.cli.options import with_groups
from phast.errors import InputError

Command = TyperCommand | TyperGroup
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class AbstractCommands(TyperGroup):
    """The commands ``names``, each ``command`` in the module of its name in ``package``, and :meth:`others`."""

    package: ClassVar[str]
    names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def others(self) -> dict[str, Callable[[], Command]]:
        """Commands from elsewhere."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.names, *self.others()]

    def get_command(self, ctx: Any, name: str) -> Command | None:
        if name in self.names:
            return _loaded(self.package, name)
        load = self.others().get(name)
        return None if load is None else load()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names, or the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in (known := self.list_commands(ctx)):
            near = get_close_matches(args[0], known, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            raise InputError(f"no command '{args[0]}'{hint}: choose {', '.join(known[:-1])} or {known[-1]}")
        return super().resolve_command(ctx, args)


def _loaded(package: str, name: str) -> Command:
    module = importlib.import_module(f"{package}.{name}")
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    epilog = f"Example: `{module.EXAMPLE}`"
    single.command(name, epilog=epilog, context_settings=HELP_OPTIONS)(with_groups(module.command))
    found = typer.main.get_command(single)
    found.rich_help_panel = module.PANEL
    return found


def group(name: str, commands: type[AbstractCommands], about: str, panel: str | None = None) -> typer.Typer:
    """An application whose commands these are; inside another, ``panel`` is where it is listed."""
    return typer.Typer(
        name=name,
        cls=commands,
        help=about,
        rich_help_panel=panel,
        add_completion=panel is None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings=HELP_OPTIONS,
    )
