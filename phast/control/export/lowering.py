"""A traced JAX function as C: every equation of its jaxpr becomes statements over fixed-size arrays.

The physics is written once, in JAX; whatever a component computes (a user's own, too) is exported by tracing it. Small
arrays become one C variable for each element, so that what only moves elements costs nothing; larger ones become loops.
What C has no counterpart for is refused with its name and the function that it comes from.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from phast.control.export.elementwise import SAME, SELECTION, ScalarFunction, scalar_function
from phast.control.export.program import Atom, Program, Ref, names_in
from phast.errors import InputError

Atoms = np.ndarray  # an array of atoms
UNROLLED = 32  # elements of an array that become variables, and not a loop
_FEW = 4  # atoms that are copied one by one, and not in a loop
_NO_TYPES = (np.uint8, np.uint16, np.uint64, np.float16)  # neither C's nor wrapped as JAX does
_NEUTRAL: dict[str, tuple[tuple[int, Atom], ...]] = {  # exactly: x + 0.0 is not -0.0 where x is
    "{0} * {1}": ((0, 1.0), (1, 1.0), (0, 1), (1, 1)),
    "{0} / {1}": ((1, 1.0), (1, 1)),
    "{0} - {1}": ((1, 0.0), (1, 0)),
    "{0} + {1}": ((0, 0), (1, 0)),
}
Rule = Callable[["Lowering", JaxprEqn, list[Atoms]], Sequence[Atoms]]


class Lowering:
    """Writes the equations of jaxprs into a :class:`Program`; ``rules`` are those of primitives by name."""

    def __init__(self, program: Program, rules: dict[str, Rule]):
        self.program, self._rules = program, rules
        self._around = ""

    # --- jaxprs ------------------------------------------------------------------------------------------------------

    def closed(self, jaxpr: ClosedJaxpr | Jaxpr, arguments: Sequence[Atoms]) -> list[Atoms]:
        """The outputs of a jaxpr for these arguments."""
        jaxpr = ClosedJaxpr(jaxpr, ()) if isinstance(jaxpr, Jaxpr) else jaxpr
        values: dict[Any, Atoms] = dict(zip(jaxpr.jaxpr.constvars, map(known_atoms, jaxpr.consts), strict=True))
        values |= dict(zip(jaxpr.jaxpr.invars, arguments, strict=True))

        def read(variable) -> Atoms:
            return known_atoms(variable.val) if isinstance(variable, Literal) else values[variable]

        for equation in jaxpr.jaxpr.eqns:
            found = self._equation(equation, [read(variable) for variable in equation.invars])
            values |= dict(zip(equation.outvars, found, strict=True))
        return [read(variable) for variable in jaxpr.jaxpr.outvars]

    def _equation(self, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
        name, outputs = equation.primitive.name, [aval_of(variable) for variable in equation.outvars]
        for out in outputs:
            if out.dtype.kind not in "fiub" or out.dtype in _NO_TYPES:
                raise self.refused(equation, f" of {out.dtype}")
        if name in SAME:
            return arguments
        if name in self._rules:
            return self._rules[name](self, equation, arguments)
        kinds = [aval_of(variable).dtype.kind for variable in equation.invars]
        function = scalar_function(name, equation.params, kinds, outputs[0].dtype.kind) if kinds and outputs else None
        if function is not None:
            return [self.elementwise(function, outputs[0].dtype.kind, outputs[0].shape, arguments)]
        before, self._around = self._around, _origin(equation) or self._around
        found = self.closed(self._taken_apart(equation), arguments)
        self._around = before
        return found

    def _taken_apart(self, equation: JaxprEqn) -> ClosedJaxpr | Jaxpr:
        """What an equation does in other primitives: a function that is called, or the definition of a custom one."""
        for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
            if isinstance(equation.params.get(name), ClosedJaxpr | Jaxpr):
                return equation.params[name]
        own = getattr(equation.primitive.impl, "__module__", None) or ""
        if own.split(".")[0] in ("jax", "functools", ""):
            raise self.refused(equation)
        definition = functools.partial(equation.primitive.impl, **equation.params)
        return jax.make_jaxpr(definition)(
            *(jax.ShapeDtypeStruct(aval_of(v).shape, aval_of(v).dtype) for v in equation.invars)
        )

    def refused(self, equation: JaxprEqn, because: str = "") -> InputError:
        """What cannot be exported, and where it comes from."""
        place = _origin(equation) or self._around
        what = f"'{equation.primitive.name}'{because} has no counterpart in the exported C"
        return InputError(f"{what}{f' ({place})' if place else ''}: export another component, or --format onnx")

    # --- elementwise -------------------------------------------------------------------------------------------------

    def elementwise(self, function: ScalarFunction, kind: str, shape: tuple[int, ...], arguments: list[Atoms]) -> Atoms:
        """A function of numbers, element by element."""
        arguments = [np.broadcast_to(each, shape) for each in arguments]
        if all(is_known(each) for each in arguments):
            return self._known(function, kind, arguments)
        if math.prod(shape) <= UNROLLED:
            found = np.empty(shape, dtype=object)
            for at in np.ndindex(shape):
                found[at] = self.scalar(function, kind, *(each.item(*at) for each in arguments))
            return found
        return self.looped(kind, shape, arguments, self.expression(function).format)

    def _known(self, function: ScalarFunction, kind: str, arguments: list[Atoms]) -> Atoms:
        with np.errstate(all="ignore"):
            found = np.asarray(function.known(*map(self.numbers, arguments)))
        return known_atoms(found.astype({"f": self.program.precision.dtype, "i": int, "u": np.uint32, "b": bool}[kind]))

    def numbers(self, known: Atoms) -> np.ndarray:
        """Known atoms as numbers of NumPy, in the precision of the program."""
        found = np.array(known.tolist())
        return found.astype(self.program.precision.dtype) if found.dtype.kind == "f" else found

    def expression(self, function: ScalarFunction) -> str:
        """A function in C, in the precision of the program."""
        precision = self.program.precision
        return function.c.format("{0}", "{1}", "{2}", s=precision.suffix, real=precision.name)

    def scalar(self, function: ScalarFunction, kind: str, *atoms: Atom) -> Atom:
        """A function of single numbers."""
        if names_in(atoms):
            same = _chosen(function, atoms)
            return self.program.scalar(kind, self.expression(function), *atoms) if same is None else same
        return self._known(function, kind, [single(atom) for atom in atoms]).item()

    def apply(self, name: str, of: str, *atoms: Atom) -> Atom:
        """An elementwise primitive of single numbers of the kind ``of``."""
        kind = "b" if name in ("eq", "ne", "lt", "le", "gt", "ge", "is_finite") else of
        function = scalar_function(name, {}, [of] * len(atoms), kind)
        assert function is not None
        return self.scalar(function, kind, *atoms)

    # --- loops over arrays -------------------------------------------------------------------------------------------

    def looped(
        self, kind: str, shape: tuple[int, ...], arguments: list[Atoms], expression: Callable[..., str]
    ) -> Atoms:
        """A loop that fills an array, element by element, from elements at the same place in the arguments."""
        views = [self.view(each) for each in arguments]
        name = self.program.declare(kind, math.prod(shape))
        with self.loops(shape) as indices:
            text = expression(*(term(indices) for term, _ in views))
            place = flat(indices, row_major(shape))
            self.program.line(f"{name}[{place}] = {text};", [name], {used for _, names in views for used in names})
        return elements(name, kind, shape)

    @contextmanager
    def loops(self, shape: Sequence[int]) -> Iterator[list[str]]:
        """Nested loops over the axes that are longer than one, and the index of each axis."""
        with ExitStack() as stack:
            indices = ["0" if size == 1 else self.program.fresh("i") for size in shape]
            for index, size in zip(indices, shape, strict=True):
                if size != 1:
                    head = f"for (int {index} = 0; {index} < {size}; {index}++)"
                    stack.enter_context(self.program.block(head))
            yield indices

    def view(self, array: Atoms) -> tuple[Callable[[Sequence[str]], str], set[str]]:
        """How to read an array where the index of each axis is given as text, and the variables that are read."""
        repeated = [step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)]
        once = array[tuple(slice(0, 1) if same else slice(None) for same in repeated)]
        found = strided(once)
        if found is None:
            name, items = self.stored(once)
            found = Ref(name, kind_of(items[0]), 0), row_major(once.shape)
        atom, strides = found[0], tuple(0 if same else s for same, s in zip(repeated, found[1], strict=True))
        if not isinstance(atom, Ref) or atom.index is None:
            return lambda indices: self.program.text(atom), names_in([atom])
        start = atom.index
        return lambda indices: f"{atom.name}[{flat(indices, strides, start)}]", {atom.name}

    def stored(self, array: Atoms) -> tuple[str, Atoms]:
        """The name of a C array, or a pointer, with these elements in a row; and these, in a row."""
        items = array.reshape(-1)
        kind, program = kind_of(items[0]), self.program
        if is_known(array):
            return program.tables.name(program.type_of(kind), [program.text(item) for item in items]), items
        found = strided(items)
        if found is not None and isinstance(found[0], Ref) and (found[1] == (1,) or items.size == 1):
            source, _, start = found[0]
            if start is not None:
                return program.pointer(kind, source, str(start)) if start else source, items
        name = program.declare(kind, items.size)
        self.copy(name, "", items)
        return name, items

    def copied(self, array: Atoms) -> Atoms:
        """The same elements in an array of their own."""
        kind = kind_of(array.reshape(-1)[0])
        name = self.program.declare(kind, array.size)
        self.copy(name, "", array)
        return elements(name, kind, array.shape)

    def copy(self, name: str, offset: str, array: Atoms) -> None:
        """The elements of ``name`` from ``offset`` on become those of an array."""
        items, start = array.reshape(-1), 0
        while start < items.size:
            stop = _run_end(items, start)
            run = items[start:stop]
            if len(run) > _FEW:
                term, uses = self.view(run)
                with self.loops(run.shape) as (i,):
                    place = flat([i], (1,), start)
                    self.program.line(f"{name}[{_sum(offset, place)}] = {term([i])};", [name], uses)
            else:
                for i, atom in enumerate(run, start):
                    place = _sum(offset, str(i))
                    self.program.line(f"{name}[{place}] = {self.program.text(atom)};", [name], names_in([atom]))
            start = stop


def aval_of(variable: Any) -> Any:
    """The shape and the type of a variable of a jaxpr."""
    return variable.aval


# --- arrays of atoms -------------------------------------------------------------------------------------------------


def known_atoms(value: Any) -> Atoms:
    """Numbers that are known when the code is written."""
    found = np.asarray(value)
    out = np.empty(found.shape, dtype=object)
    out[...] = found.tolist() if found.ndim == 0 else np.array(found.tolist(), dtype=object).reshape(found.shape)
    return out


def choose(lowering: Lowering, condition: Atom, yes: Atom, no: Atom) -> Atom:
    """One of two numbers."""
    if not isinstance(condition, Ref):
        return yes if condition else no
    return lowering.program.scalar(kind_of(yes), "{0} ? {1} : {2}", condition, yes, no)


def arranged(items: list[Atom], shape: tuple[int, ...]) -> Atoms:
    """Atoms in a row as an array."""
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out.reshape(shape)


def single(atom: Atom) -> Atoms:
    """An atom as an array without axes."""
    out = np.empty((), dtype=object)
    out[()] = atom
    return out


def elements(name: str, kind: str, shape: tuple[int, ...]) -> Atoms:
    """All elements of a C array, row by row."""
    out = np.empty(math.prod(shape), dtype=object)
    out[:] = [Ref(name, kind, i) for i in range(out.size)]
    return out.reshape(shape)


def is_known(array: Atoms) -> bool:
    return not any(isinstance(atom, Ref) for atom in array.flat)


def kind_of(atom: Atom) -> str:
    """NumPy's letter for what numbers these are."""
    if isinstance(atom, Ref):
        return atom.kind
    return "b" if isinstance(atom, bool) else "i" if isinstance(atom, int) else "f"


def strided(array: Atoms) -> tuple[Atom, tuple[int, ...]] | None:
    """The first atom and a stride for each axis, where all are evenly spaced in one C array (or are the same)."""
    first, items = array.reshape(-1)[0], list(array.flat)
    if all(item == first and type(item) is type(first) for item in items):
        return first, (0,) * array.ndim
    if not all(isinstance(item, Ref) and item.index is not None and item.name == items[0].name for item in items):
        return None
    places = np.array([item.index for item in items]).reshape(array.shape) - first.index
    corners = np.eye(array.ndim, dtype=int)
    strides = tuple(int(places[tuple(c)]) if size > 1 else 0 for c, size in zip(corners, array.shape, strict=True))
    even = sum(stride * index for stride, index in zip(strides, np.indices(array.shape), strict=True))
    return (first, strides) if np.array_equal(places, even) else None


def _chosen(function: ScalarFunction, atoms: Sequence[Atom]) -> Atom | None:
    """The argument that a function returns as it is, where that is known."""
    for place, neutral in _NEUTRAL.get(function.c, ()):
        if type(atoms[place]) is type(neutral) and atoms[place] == neutral:
            return atoms[1 - place]
    if function.c == SELECTION and not isinstance(atoms[0], Ref):
        return atoms[2] if atoms[0] else atoms[1]
    return None


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def flat(indices: Sequence[str], strides: Sequence[int], offset: int = 0) -> str:
    """The place in a C array as text."""
    pairs = zip(indices, strides, strict=True)
    terms = [index if stride == 1 else f"{stride} * {index}" for index, stride in pairs if stride and index != "0"]
    return " + ".join([*terms, *([str(offset)] if offset or not terms else [])]).replace("+ -", "- ")


def _sum(offset: str, place: str) -> str:
    return place if not offset else offset if place == "0" else f"{offset} + {place}"


def _run_end(items: Atoms, start: int) -> int:
    """Where the evenly spaced elements that begin at ``start`` end."""
    first = items[start]
    if not isinstance(first, Ref) or first.index is None or start + 1 == items.size:
        return start + 1
    second = items[start + 1]
    if not isinstance(second, Ref) or second.index is None:
        return start + 1
    step, stop = second.index - first.index, start + 1
    while stop < items.size and items[stop] == Ref(first.name, first.kind, first.index + step * (stop - start)):
        stop += 1
    return stop


_OTHERS = re.compile(r"site-packages/(jax|equinox|lineax|optimistix|diffrax|beartype|jaxtyping)/|<|control/export")


def _origin(equation: JaxprEqn) -> str:
    """The function of a component that an equation comes from."""
    traceback = equation.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        if not _OTHERS.search(frame.file_name):
            return f"{frame.function_name}, {frame.file_name.rsplit('/', 1)[-1]}:{frame.line_num}"
    return ""
