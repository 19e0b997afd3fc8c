"""C code as it is written: statements in nested blocks, each computed once, those that nothing needs left out.

Every value is an :class:`Atom`: a number that is known when the code is written, or a :class:`Ref` to a C variable that
is assigned once. An array is a NumPy array of atoms, so that slicing, reshaping and transposing cost nothing in C.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from phast.errors import InputError

STACK_LIMIT = 512 * 1024  # bytes of local variables in one function
_TABLE_ROW = 8


class Ref(NamedTuple):
    """A C variable, or one element of a C array; ``kind`` is NumPy's letter for its numbers: f, i, u or b."""

    name: str
    kind: str
    index: int | None = None

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"


Atom = float | int | bool | Ref


@dataclasses.dataclass(frozen=True)
class Precision:
    """A floating-point type of C beside that of NumPy, with the suffix of its functions and numbers."""

    name: str
    dtype: type[np.floating]
    suffix: str

    def number(self, value: float) -> str:
        """The shortest number that is read back exactly."""
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "(-INFINITY)"
        text = str(self.dtype(value))
        return f"({text}{self.suffix})" if text.startswith("-") else f"{text}{self.suffix}"


DOUBLE = Precision("double", np.float64, "")
SINGLE = Precision("float", np.float32, "f")


class Statement(NamedTuple):
    """One line, or the head of a block with its ``body``.

    ``defines`` is what it writes (a line that writes nothing stays), ``uses`` what it reads; ``declares`` is how many
    bytes it puts on the stack.
    """

    text: str
    defines: frozenset[str]
    uses: frozenset[str]
    body: "list[Statement] | None" = None
    declares: int | None = None


class Program:
    """A C function under construction. Statements are appended to the innermost open block."""

    def __init__(self, precision: Precision, tables: "Tables"):
        self.precision, self.tables = precision, tables
        self.helpers: set[str] = set()
        self._blocks: list[list[Statement]] = [[]]
        self._known: list[dict[str, Ref]] = [{}]
        self._count = 0

    # --- names and types ---------------------------------------------------------------------------------------------

    def type_of(self, kind: str) -> str:
        """The C type of numbers of this kind."""
        return {"f": self.precision.name, "i": "int64_t", "u": "uint32_t", "b": "int"}[kind]

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def text(self, atom: Atom) -> str:
        """An atom in an expression."""
        if isinstance(atom, Ref):
            return str(atom)
        if isinstance(atom, bool | np.bool_):
            return str(int(atom))
        if isinstance(atom, int | np.integer):
            return str(atom) if atom >= 0 else f"({atom})"
        return self.precision.number(float(atom))

    # --- statements --------------------------------------------------------------------------------------------------

    def line(self, text: str, defines: Iterable[str], uses: Iterable[str], **more) -> None:
        """Any statement; one that defines nothing stays."""
        self._blocks[-1].append(Statement(text, frozenset(defines), frozenset(uses), **more))

    def scalar(self, kind: str, template: str, *atoms: Atom) -> Ref:
        """``template`` filled with the atoms, as a constant variable; the same expression is computed once."""
        expression = template.format(*(self.text(atom) for atom in atoms))
        for known in self._known:
            if expression in known:
                return known[expression]
        found = self.load(kind, expression, names_in(atoms))
        self._known[-1][expression] = found
        return found

    def load(self, kind: str, expression: str, uses: Iterable[str]) -> Ref:
        """What an expression is worth now."""
        found = Ref(self.fresh("t"), kind)
        self.line(f"const {self.type_of(kind)} {found.name} = {expression};", [found.name], uses)
        return found

    def pointer(self, kind: str, name: str, offset: str, uses: Iterable[str] = ()) -> str:
        """A pointer into an array."""
        found = self.fresh("r")
        self.line(f"const {self.type_of(kind)} *const {found} = {name} + {offset};", [found], {name, *uses})
        return found

    def declare(self, kind: str, size: int | None, prefix: str = "a") -> str:
        """A variable, or an array of ``size``, that is assigned later."""
        found = self.fresh(prefix)
        bounds = "" if size is None else f"[{max(size, 1)}]"
        width = self.precision.dtype().itemsize if kind == "f" else 8
        self.line(f"{self.type_of(kind)} {found}{bounds};", [found], (), declares=width * (size or 1))
        return found

    @contextlib.contextmanager
    def block(self, head: str, uses: Iterable[str] = ()) -> Iterator[None]:
        """What is written inside becomes the body of a loop or a branch."""
        self._blocks.append([])
        self._known.append({})
        yield
        self._known.pop()
        body = self._blocks.pop()
        self.line(head, (), uses, body=body)

    # --- the text ----------------------------------------------------------------------------------------------------

    def body(self, outputs: Iterable[str], indent: str = "    ") -> tuple[str, int]:
        """The statements that the outputs depend on, and how many bytes of stack they use."""
        (statements,) = self._blocks
        kept, _ = _needed(statements, set(outputs))
        stack = _stack(kept)
        if stack > STACK_LIMIT:
            raise InputError(f"this model needs {stack} bytes of stack in C, more than {STACK_LIMIT}: make it smaller")
        return "\n".join(_lines(kept, indent)), stack


class Tables:
    """Constant arrays at the top of a file, each written once."""

    def __init__(self, precision: Precision):
        self._precision = precision
        self._names: dict[tuple[str, str], str] = {}

    def name(self, kind: str, texts: list[str]) -> str:
        """The table with these numbers."""
        return self._names.setdefault((kind, ", ".join(texts)), f"table{len(self._names) + 1}")

    def text(self, used: str) -> str:
        """Definitions of the tables that occur in ``used``."""
        out = []
        for (kind, numbers), name in self._names.items():
            if f"{name}[" in used or f"{name} " in used or f"{name}," in used or f"{name})" in used:
                items = numbers.split(", ")
                rows = (", ".join(items[i : i + _TABLE_ROW]) for i in range(0, len(items), _TABLE_ROW))
                out.append(f"static const {kind} {name}[{len(items)}] = {{\n    " + ",\n    ".join(rows) + "\n};\n")
        return "\n".join(out)


def names_in(atoms: Iterable[Atom]) -> set[str]:
    """The variables that atoms refer to."""
    return {atom.name for atom in atoms if isinstance(atom, Ref)}


def _needed(statements: list[Statement], live: set[str]) -> tuple[list[Statement], set[str]]:
    """The statements that what is ``live`` afterwards depends on, and what is live before them."""
    kept: list[Statement] = []
    live = set(live)
    for statement in reversed(statements):
        if statement.body is not None:
            inside = _needed_inside(statement, live)
            if inside is None:
                continue
            statement = statement._replace(body=inside[0])
            live |= inside[1] | statement.uses
        elif statement.defines and not statement.defines & live:
            continue
        else:
            live |= statement.uses
        kept.append(statement)
    return kept[::-1], live


def _needed_inside(statement: Statement, live: set[str]) -> tuple[list[Statement], set[str]] | None:
    """The body of a loop: what one turn leaves is read by the next. None where it computes nothing that is needed."""
    inner = set(live)
    while True:
        body, before = _needed(statement.body or [], inner)
        if before <= inner:
            break
        inner |= before
    return (body, before) if any(_writes(each, live) for each in body) else None


def _writes(statement: Statement, live: set[str]) -> bool:
    return bool(statement.defines & live) or any(_writes(each, live) for each in statement.body or ())


def _stack(statements: list[Statement]) -> int:
    return sum((s.declares or 0) + _stack(s.body or []) for s in statements)


def _lines(statements: list[Statement], indent: str) -> Iterator[str]:
    for statement in statements:
        if statement.body is None:
            yield indent + statement.text
        else:
            yield f"{indent}{statement.text} {{"
            yield from _lines(statement.body, indent + "    ")
            yield indent + "}"
