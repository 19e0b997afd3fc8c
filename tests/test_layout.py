"""Folders import only from folders above them, and nothing of the library imports the study."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import phast

ROOT = Path(phast.__file__).parent


def imported(path: Path) -> set[str]:
    """The entries of the package that a module imports from, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("phast.")}


def graph() -> dict[str, set[str]]:
    """Folder (or module at the top) -> what it imports of the others."""
    edges: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        entry = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if not entry.startswith("__"):
            edges[entry] = edges.get(entry, set()) | (imported(path) - {entry})
    return edges


def test_folders_have_an_order():
    order = list(TopologicalSorter(graph()).static_order())  # refuses a cycle, and says which
    assert order[0] == "errors" and order.index("data") < order.index("fitting") < order.index("cli")


def test_the_library_does_not_import_the_study():
    assert not [entry for entry, others in graph().items() if "paper" in others]


def test_the_top_level_has_at_most_a_dozen_entries():
    assert len(graph()) <= 12


def test_every_folder_says_what_comes_in_and_what_goes_out():
    for folder in (path for path in ROOT.iterdir() if (path / "__init__.py").is_file()):
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert said and "In:" in said and "Out:" in said and len(said.splitlines()) <= 6, folder.name


def test_a_name_stands_for_one_thing():
    """Public classes and functions of modules; each command has its own module, and a user loads what a file holds."""
    defined: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name for name, places in defined.items() if len(places) > 1} <= {"command", "load"}
