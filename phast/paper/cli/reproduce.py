"""``phast paper reproduce``."""

import dataclasses
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phast import paper
from phast.cli.console import JsonSink, check_figure, print_table
from phast.cli.options import Shown
from phast.data.files import write_atomically
from phast.errors import InputError
from phast.paper.cli.runs import Runs, report_failures

if TYPE_CHECKING:
    from phast.paper.drawings import Reproduction
    from phast.paper.tables import AbstractTable, Sheet

PANEL = "Tables and figures"
EXAMPLE = "phast paper reproduce cartpole --records-only"

Format = Literal["text", "markdown", "latex", "json"]


@dataclasses.dataclass(frozen=True)
class _Target:
    """Where tables go."""

    form: Format
    folder: Path | None
    document: Path | None

    def put(self, name: str, made: "Sheet", *, shown: bool) -> None:
        if shown:
            _print_sheet(made, self.form)
        if self.folder is not None:
            _write_sheet(made, self.folder / name)
        if self.document is not None:
            _renew(self.document, name, made)


def command(
    runs: Runs,
    shown: Shown,
    table: Annotated[list[str] | None, typer.Argument(help="What to make; 'all' for everything. See --list.")] = None,
    list_tables: Annotated[bool, typer.Option("--list", help="Name every table and figure.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Hardly any training, one seed: a look in minutes.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds; as many as the paper's if left out.")] = None,
    records_only: Annotated[bool, typer.Option("--records-only", help="Run nothing: show what there is.")] = False,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for each table as .txt, .md, .tex and .json.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="A Markdown file: tables between <!-- NAME --> and <!-- /NAME --> are renewed.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="For a figure: the file to draw it into.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="For measured-…: the folder of measured recordings, which are not in this one.")
    ] = None,
) -> None:
    """Make tables and figures of the paper, and ours, from records; only the missing runs are run."""
    if list_tables or not table:
        _print_names()
        return
    check_figure(plot)
    names = _names(table, into)
    if plot is not None and (len(names) > 1 or names[0] not in paper.drawings.FIGURES):
        raise InputError(f"--plot draws one figure: {', '.join(paper.drawings.FIGURES)}")
    asked = paper.drawings.Reproduction(runs, quick, seeds, records_only, data, shown)
    target = _Target(form, output, into)
    made, failures = [], []
    for name in names:
        try:
            if name in paper.drawings.FIGURES:
                failures += _draw(name, asked, plot or (output or Path(".")) / f"{name}.png")
            else:
                sheet, failed = _made(name, asked)
                failures += failed
                target.put(name, sheet, shown=not shown.silent)
                made.append({"title": sheet.title, "rows": sheet.data})
        except InputError as error:  # one of many that cannot be made takes no other with it
            if len(names) == 1:
                raise
            failures.append(f"{name}: {error}")
    JsonSink(shown.json_file).write(made)
    report_failures(failures)


def _print_names() -> None:
    listed = [[table.name, "table", table.title] for table in paper.catalogue.TABLES.values()]
    listed += [[name, "figure", figure.title] for name, figure in paper.drawings.FIGURES.items()]
    print_table(["name", "kind", "what"], listed)


def _names(asked: list[str], into: Path | None) -> list[str]:
    """What is asked for, once each can be made."""
    tables = paper.catalogue.TABLES
    names = asked
    if asked == ["all"]:
        names = [*tables, *paper.drawings.FIGURES] if into is None else _marked(into, tables)
    for name in names:
        if name not in tables and name not in paper.drawings.FIGURES:
            near = difflib.get_close_matches(name, [*tables, *paper.drawings.FIGURES], n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise InputError(f"unknown table or figure '{name}': {hint}`phast paper reproduce --list` names all")
    return names


def _made(name: str, asked: "Reproduction") -> tuple["Sheet", list[str]]:
    """A table from its records, and which runs failed."""
    chosen: AbstractTable = paper.catalogue.table_named(name)
    chosen = chosen.quick() if asked.quick else chosen
    failures = asked.run(chosen)
    return chosen.sheet(chosen.records(asked.runs.results, asked.seeds)), failures


def _draw(name: str, asked: "Reproduction", target: Path) -> list[str]:
    failures = paper.drawings.FIGURES[name].make(asked, target)
    asked.shown.text(f"{paper.drawings.FIGURES[name].title}: {target}")
    return failures


# --- tables into files -----------------------------------------------------------------------------------------------


def _print_sheet(made: "Sheet", form: Format) -> None:
    if form == "text":
        print(f"\n{made.title}\n")
        print_table(made.heading, made.lines)
    else:
        print({"markdown": made.markdown, "latex": made.latex, "json": made.json}[form]())


def _write_sheet(made: "Sheet", stem: Path) -> None:
    contents = {".txt": made.text(), ".md": made.markdown(), ".tex": made.latex(), ".json": made.json()}
    for suffix, content in contents.items():
        write_atomically(stem.with_name(stem.name + suffix), (content + "\n").encode())


def _marked(document: Path, names: Iterable[str]) -> list[str]:
    """The tables that have a place in a Markdown file."""
    text = _text(document)
    return [name for name in names if paper.tables.between_marks(text, name) is not None]


def _text(document: Path) -> str:
    try:
        return document.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {document}: {error.strerror}") from None


def _renew(document: Path, name: str, made: "Sheet") -> None:
    """Put a table between its marks in a Markdown file."""
    text = _text(document)
    if (found := paper.tables.between_marks(text, name)) is None:
        raise InputError(f"{document}: has no place <!-- {name} --> … <!-- /{name} -->")
    write_atomically(document, (text[: found[0]] + made.markdown() + text[found[1] :]).encode())
