"""Loops and branches of JAX as those of C. What a loop carries lives in variables that each turn assigns."""

from collections.abc import Sequence

import numpy as np
from jax.extend.core import JaxprEqn

from phast.control.export.lowering import (
    UNROLLED,
    Atoms,
    Lowering,
    Rule,
    aval_of,
    elements,
    flat,
    is_known,
    kind_of,
    known_atoms,
    single,
)
from phast.control.export.program import Ref, names_in


class _Carried:
    """One array that every turn of a loop replaces."""

    def __init__(self, lowering: Lowering, aval, start: Atoms):
        self._lowering, self._kind = lowering, _kind(aval)
        self._name = lowering.program.declare(self._kind, start.size, "c")
        self._own = elements(self._name, self._kind, start.shape)
        lowering.copy(self._name, "", start)

    @property
    def value(self) -> Atoms:
        return self._own

    @property
    def small(self) -> bool:
        return self._own.size <= UNROLLED

    def seen(self) -> Atoms:
        """Its elements as this turn finds them."""
        if not self.small:
            return self._own
        out = np.empty(self._own.shape, dtype=object)
        for at in np.ndindex(out.shape):
            out[at] = self._lowering.program.load(self._kind, str(self._own[at]), {self._name})
        return out

    def safe(self, new: Atoms) -> Atoms:
        """The new elements, in an array of their own where assigning another one first might change them."""
        if new.size == 0 or not any(isinstance(a, Ref) and a.index is not None and a.name[0] in "cr" for a in new.flat):
            return new
        return new if np.array_equal(new, self._own) else self._lowering.copied(new)

    def become(self, new: Atoms) -> None:
        if not (new.shape == self._own.shape and all(a == b for a, b in zip(new.flat, self._own.flat, strict=True))):
            self._lowering.copy(self._name, "", new)


def _kind(aval) -> str:
    return aval.dtype.kind


def _turn(carried: list[_Carried], new: Sequence[Atoms]) -> None:
    """All at once: no new value is read after an old one was overwritten."""
    safe = [each.safe(value) for each, value in zip(carried, new, strict=True)]
    for each, value in zip(carried, safe, strict=True):
        each.become(value)


def _scan(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    params, program = equation.params, lowering.program
    consts, rest = arguments[: params["num_consts"]], arguments[params["num_consts"] :]
    start, sequences = rest[: params["num_carry"]], rest[params["num_carry"] :]
    length, count = params["length"], len(start)
    if length == 1:
        found = lowering.closed(params["jaxpr"], [*consts, *start, *(x[0, ...] for x in sequences)])
        return [*found[:count], *(y[None] for y in found[count:])]
    outputs = [aval_of(variable) for variable in equation.outvars]
    carried = [_Carried(lowering, aval, x) for aval, x in zip(outputs, start, strict=False)]
    stored = [(*lowering.stored(x), x.shape[1:]) if x.size else ("", x, x.shape[1:]) for x in sequences]
    stacked = [(program.declare(_kind(aval), int(np.prod(aval.shape))), aval) for aval in outputs[count:]]
    i = program.fresh("i")
    forward = f"for (int {i} = 0; {i} < {length}; {i}++)"
    with program.block(f"for (int {i} = {length - 1}; {i} >= 0; {i}--)" if params["reverse"] else forward):
        rows = [_row(lowering, name, kind_of(items[0]), i, shape) for name, items, shape in stored]
        found = lowering.closed(params["jaxpr"], [*consts, *(each.seen() for each in carried), *rows])
        for (name, _), y in zip(stacked, found[count:], strict=True):
            lowering.copy(name, flat([i], (y.size,)), y)
        _turn(carried, found[:count])
    ends = [elements(name, _kind(aval), aval.shape) for name, aval in stacked]
    return [*(each.value for each in carried), *ends]


def _row(lowering: Lowering, name: str, kind: str, i: str, shape: tuple[int, ...]) -> Atoms:
    """Row i of what a loop runs over."""
    size = int(np.prod(shape))
    if size == 1:
        return np.broadcast_to(single(lowering.program.load(kind, f"{name}[{i}]", {name})), shape)
    return elements(lowering.program.pointer(kind, name, flat([i], (size,))), kind, shape)


def _while(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    params, program = equation.params, lowering.program
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    avals = [aval_of(variable) for variable in equation.outvars]
    carried = [_Carried(lowering, aval, x) for aval, x in zip(avals, arguments[second:], strict=True)]
    with program.block("for (;;)"):
        seen = [each.seen() for each in carried]
        (more,) = lowering.closed(params["cond_jaxpr"], [*arguments[:first], *seen])
        program.line(f"if (!{program.text(more.item())}) break;", (), names_in([more.item()]))
        _turn(carried, lowering.closed(params["body_jaxpr"], [*arguments[first:second], *seen]))
    return [each.value for each in carried]


def _cond(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    branches, (which, *operands), program = equation.params["branches"], arguments, lowering.program
    if is_known(which):
        return lowering.closed(branches[min(max(int(which.item()), 0), len(branches) - 1)], operands)
    avals = [aval_of(variable) for variable in equation.outvars]
    names = [program.declare(_kind(aval), int(np.prod(aval.shape))) for aval in avals]
    chosen = program.text(which.item())
    for k, branch in enumerate(branches):
        test = f"if ({chosen} {'<=' if k == 0 else '=='} {k})" if k < len(branches) - 1 else ""
        with program.block(" ".join(filter(None, ["else" if k else "", test])), names_in([which.item()])):
            for name, value in zip(names, lowering.closed(branch, operands), strict=True):
                lowering.copy(name, "", value)
    return [elements(name, _kind(aval), aval.shape) for name, aval in zip(names, avals, strict=True)]


def _platform_index(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    """Which of several implementations: that of processors, or the one for all others."""
    platforms = equation.params["platforms"]
    chosen = [k for k, names in enumerate(platforms) if names is None or "cpu" in names]
    return [known_atoms(np.int32(chosen[0]))]


def _callback(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    """Equinox raises errors at run time through Python; what it would return instead is not a number here."""
    if "equinox" not in repr(equation.params.get("callback")) + str(equation.source_info.traceback):
        raise lowering.refused(equation)
    lost = {"f": np.nan, "i": 0, "u": 0, "b": False}
    avals = [aval_of(variable) for variable in equation.outvars]
    return [known_atoms(np.full(aval.shape, lost[_kind(aval)])) for aval in avals]


def _linear_solve(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    """The solver of a linear system, beside which JAX carries what its derivatives need."""
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    consts = arguments[before : before + lengths.solve]
    return lowering.closed(jaxprs.solve, [*consts, *arguments[sum(lengths) :]])


RULES: dict[str, Rule] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "platform_index": _platform_index,
    "pure_callback": _callback,
    "io_callback": _callback,
    "custom_linear_solve": _linear_solve,
}
