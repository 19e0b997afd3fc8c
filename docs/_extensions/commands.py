"""``{command} fit``: the help of a command, rendered from the command itself.

Typer brings a Click of its own, which Sphinx extensions for Click do not know.
"""

from collections.abc import Iterator

from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from phast.cli.main import app


class Command(SphinxDirective):
    """Usage, arguments and options, in the order of ``--help``."""

    required_arguments, final_argument_whitespace = 1, True

    def run(self):
        return self.parse_text_to_nodes("\n".join(shown(self.arguments[0].split())))


def shown(path: list[str]) -> Iterator[str]:
    """The lines of Markdown for ``phast PATH``."""
    command, context = found(path)
    yield from ("```text", command.get_usage(context).removeprefix("Usage:").strip(), "```", "")
    yield from (*_paragraphs(command.help), *_paragraphs(command.epilog))
    for title, rows in _panels(command, context).items():
        yield from (f"| {title} | |", "| --- | --- |", *rows, "")


def found(path: list[str]):
    """A command and its context, by its words."""
    command = get_command(app)
    context = command.make_context("phast", [], resilient_parsing=True)
    for name in path:
        command = command.get_command(context, name)
        if command is None:
            raise LookupError(f"no command `phast {' '.join(path)}`")
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    return command, context


def _panels(command, context) -> dict[str, list[str]]:
    panels: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None:
            title = getattr(parameter, "rich_help_panel", None) or f"{parameter.param_type_name.capitalize()}s"
            panels.setdefault(title, []).append(f"| `{_cell(record[0])}` | {_cell(record[1])} |")
    return panels


def _paragraphs(text: str | None) -> Iterator[str]:
    for part in (text or "").split("\n\n"):
        yield from (" ".join(part.split()), "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def setup(app):
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}
