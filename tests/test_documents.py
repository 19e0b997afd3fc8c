"""What the documents name exists: public names, commands, options, files."""

import ast
import functools
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import phast
from phast.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(PAGES)]
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

_CODE = re.compile(r"```([^\n]*)\n(.*?)```", re.S)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
FOLDERS = {path.name for path in Path(phast.__file__).parent.iterdir() if (path / "__init__.py").is_file()}


@each_document
def test_names_are_public(document):
    code = [body for _, body in _CODE.findall(document.read_text())] + _SPAN.findall(document.read_text())
    named = {name for text in code for name in re.findall(r"(?<![\w./-])phast\.([A-Za-z_]\w*)", text)}
    assert named <= {*phast.__all__, *FOLDERS}


def test_every_public_name_has_a_place_in_the_reference():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^\.\. (?:auto|py:)\w+:: phast\.(\w+)$", pages, re.M)
    assert sorted(shown) == sorted(phast.__all__)


def test_every_command_has_a_place_in_the_reference():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    root = command_of(())
    single = [name for name in root.list_commands(None) if name != "paper"]
    wanted = [*single, *(f"paper {name}" for name in command_of(("paper",)).list_commands(None))]
    assert re.findall(r"^```\{command\} (.+)$", page, re.M) == wanted


@functools.cache
def command_of(words: tuple[str, ...]):
    """The command of these words."""
    if not words:
        return get_command(app)
    found = command_of(words[:-1]).get_command(None, words[-1])
    assert found is not None, f"no command `phast {' '.join(words)}`"
    return found


def lines_of_commands(text: str) -> list[str]:
    """What a reader would type: lines of shell, and spans that begin with the program."""
    shell = [body for kind, body in _CODE.findall(text) if kind == "sh" or body.startswith("%%bash")]
    lines = [line for body in shell for line in body.replace("\\\n", " ").splitlines()] + _SPAN.findall(text)
    return [line.split(" | ")[-1].strip() for line in lines if re.search(r"(^|\| )phast (?!…|COMMAND)", line)]


@each_document
def test_commands_and_their_options_exist(document):
    for line in lines_of_commands(document.read_text()):
        words = shlex.split(line, comments=True)[1:]
        depth = 0 if words[0].startswith("-") else 2 if words[0] == "paper" and words[1:2] not in ([], ["…"]) else 1
        options = {name for parameter in command_of(tuple(words[:depth])).params for name in parameter.opts}
        given = {word.split("=")[0] for word in words[depth:] if re.fullmatch(r"-[a-z]|--[a-z].*", word)}
        assert given <= options | {"-h", "--help"}, line


@each_document
def test_links_to_files_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def texts(path: Path) -> list[str]:
    """The strings of a module; of those with values in them, the parts between these."""
    return [
        "\0".join(part.value for part in node.values if isinstance(part, ast.Constant))
        if isinstance(node, ast.JoinedStr)
        else str(getattr(node, "value", ""))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr | ast.Constant)
    ]


def test_messages_that_are_explained_are_those_of_the_program():
    source = "\n".join(text for path in Path(phast.__file__).parent.rglob("*.py") for text in texts(path))
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    explained = [message for line in page.splitlines() for message in _SPAN.findall(line) if ": " in message]
    assert len(explained) > 20
    for message in explained:  # values may stand anywhere in it
        parts = [part.strip() for part in re.split(r"'[^']*'|…|[A-Z]{2,}|\b[\dNM]+(?: \w+)?\b", message)]
        long = [part for part in parts if len(part) > 15]
        assert not long or any(part in source for part in long), message


def test_every_picture_is_shown():
    shown = {Path(name).name for page in DOCUMENTS for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())}
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} <= shown


def test_the_python_of_the_readme_is_python():
    blocks = [body for kind, body in _CODE.findall((ROOT / "README.md").read_text()) if kind == "python"]
    assert blocks and all(ast.parse(block) for block in blocks)
