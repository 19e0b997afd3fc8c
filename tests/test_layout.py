"""A module imports only from modules above it, in the order that ``phast.MODULES`` states."""

import ast
import importlib.util
from pathlib import Path

import pytest

import phast

ROOT = Path(phast.__file__).parent
ORDER = {f"phast.{name}": place for place, name in enumerate(phast.MODULES)}
FILES = {
    ".".join(("phast", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in ROOT.rglob("*.py")
    if path.stem not in ("__init__", "__main__")
}


def imports(name: str) -> set[str]:
    """What a module imports of this package, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), name.rpartition(".")[0])
            members = {f"{source}.{alias.name}" for alias in node.names}
            found |= {member if member in ORDER else source for member in members}
    return {source for source in found if source.split(".")[0] == "phast"}


def test_every_module_has_one_place_in_the_order():
    assert sorted(ORDER) == sorted(FILES)
    assert len(ORDER) == len(phast.MODULES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_module_imports_only_from_above(name):
    assert not {source for source in imports(name) if ORDER.get(source, len(ORDER)) >= ORDER.get(name, -1)}
