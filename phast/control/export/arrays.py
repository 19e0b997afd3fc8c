"""Primitives of whole arrays: what only moves elements, and what adds them up."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from jax.extend.core import JaxprEqn

from phast.control.export.lowering import (
    Atoms,
    Lowering,
    Rule,
    arranged,
    choose,
    elements,
    flat,
    is_known,
    kind_of,
    known_atoms,
    row_major,
)
from phast.control.export.program import Atom, names_in

UNROLLED_SUM = 160  # terms of sums that are written out, and not a loop

# --- what only moves elements: nothing in C --------------------------------------------------------------------------


def _move(move: Callable[..., Atoms | Sequence[Atoms]]) -> Rule:
    """A rule from what NumPy does to the arguments, given the parameters of the equation."""

    def rule(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
        found = move(*arguments, **equation.params)
        return [found] if isinstance(found, np.ndarray) else list(found)

    return rule


def _broadcast_in_dim(x, *dynamic, shape, broadcast_dimensions, **_):
    wide = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        wide[axis] = size
    return np.broadcast_to(x.reshape(wide), shape)


def _pad(x, value, *, padding_config):
    """Interior padding first, then at the edges; negative padding cuts off."""
    for axis, (low, high, inside) in enumerate(padding_config):
        x, size = np.moveaxis(x, axis, 0), x.shape[axis]
        spread = np.full((max(size + max(size - 1, 0) * inside, 0), *x.shape[1:]), value.item(), dtype=object)
        spread[:: inside + 1] = x
        edges = [np.full((max(int(count), 0), *x.shape[1:]), value.item(), dtype=object) for count in (low, high)]
        x = np.concatenate([edges[0], spread, edges[1]])
        x = np.moveaxis(x[max(-int(low), 0) : x.shape[0] - max(-int(high), 0)], 0, axis)
    return x


def _rows(x, axis):
    return [np.moveaxis(x, axis, 0)[i, ...] for i in range(x.shape[axis])]


def _split(x, *, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis=axis)


def _iota(*, dtype, shape, dimension, **_):
    return known_atoms(np.indices(shape)[dimension].astype(dtype))


def _slice(x, *, start_indices, limit_indices, strides):
    steps = strides or (1,) * x.ndim
    return x[tuple(itertools.starmap(slice, zip(start_indices, limit_indices, steps, strict=True)))]


MOVES: dict[str, Rule] = {
    "broadcast_in_dim": _move(_broadcast_in_dim),
    "reshape": _move(lambda x, *, new_sizes, **_: x.reshape(new_sizes)),
    "squeeze": _move(lambda x, *, dimensions: np.squeeze(x, dimensions)),
    "expand_dims": _move(lambda x, *, dimensions: np.expand_dims(x, dimensions)),
    "transpose": _move(lambda x, *, permutation: np.transpose(x, permutation)),
    "rev": _move(lambda x, *, dimensions: np.flip(x, dimensions)),
    "slice": _move(_slice),
    "concatenate": _move(lambda *parts, dimension: np.concatenate(parts, dimension)),
    "pad": _move(_pad),
    "split": _move(_split),
    "stack": _move(lambda *parts, axis: np.stack(parts, axis)),
    "tile": _move(lambda x, *, reps: np.tile(x, reps)),
    "unstack": _move(lambda x, *, axis: _rows(x, axis)),
    "iota": _move(_iota),
}

# --- sums ------------------------------------------------------------------------------------------------------------


def _dot_general(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    """Σ_k a[batch, i, k] b[batch, j, k], for which both are brought into this order."""
    a, b = arguments
    (contract_a, contract_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    free_a = [axis for axis in range(a.ndim) if axis not in (*contract_a, *batch_a)]
    free_b = [axis for axis in range(b.ndim) if axis not in (*contract_b, *batch_b)]
    batch, summed = [a.shape[axis] for axis in batch_a], [a.shape[axis] for axis in contract_a]
    rows, columns = [a.shape[axis] for axis in free_a], [b.shape[axis] for axis in free_b]
    shape = (*batch, *rows, *columns)
    left = np.transpose(a, (*batch_a, *free_a, *contract_a)).reshape(*batch, *rows, *[1] * len(columns), *summed)
    right = np.transpose(b, (*batch_b, *free_b, *contract_b)).reshape(*batch, *[1] * len(rows), *columns, *summed)
    whole = (*shape, *summed)
    return [_summed(lowering, len(shape), [np.broadcast_to(each, whole) for each in (left, right)])]


def _reduction(combine: str) -> Rule:
    def rule(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
        axes = equation.params["axes"]
        kept = [axis for axis in range(arguments[0].ndim) if axis not in axes]
        return [_summed(lowering, len(kept), [np.transpose(arguments[0], (*kept, *axes))], combine)]

    return rule


_START: dict[str, Callable[[str], Atom]] = {
    "add": lambda kind: 0.0 if kind == "f" else 0,
    "mul": lambda kind: 1.0 if kind == "f" else 1,
    "max": lambda kind: {"f": -math.inf, "i": -(2**62), "b": False}[kind],
    "min": lambda kind: {"f": math.inf, "i": 2**62, "b": True}[kind],
    "and": lambda kind: True,
    "or": lambda kind: False,
}


def _summed(lowering: Lowering, kept: int, factors: list[Atoms], combine: str = "add") -> Atoms:
    """The products of the factors, combined over all axes after the first ``kept``."""
    shape, over = factors[0].shape[:kept], factors[0].shape[kept:]
    if 0 in over:
        return known_atoms(np.full(shape, _START[combine]("f")))
    kind = kind_of(factors[0].reshape(-1)[0])
    if math.prod(shape) * math.prod(over) <= UNROLLED_SUM or all(is_known(each) for each in factors):
        out = np.empty(shape, dtype=object)
        for at in np.ndindex(shape):
            terms = zip(*(each[(*at, ...)].reshape(-1) for each in factors), strict=True)
            out[at] = _combined(lowering, kind, combine, [_product(lowering, kind, *term) for term in terms])
        return out
    return _summed_in_a_loop(lowering, shape, over, factors, combine)


def _product(lowering: Lowering, kind: str, *factors: Atom) -> Atom:
    return factors[0] if len(factors) == 1 else lowering.apply("mul", kind, *factors)


def _combined(lowering: Lowering, kind: str, combine: str, terms: list[Atom]) -> Atom:
    total = terms[0]
    for term in terms[1:]:
        total = lowering.apply(combine, kind, total, term)
    return total


def _summed_in_a_loop(lowering: Lowering, shape, over, factors: list[Atoms], combine: str) -> Atoms:
    """One term at a time for all elements, so that neighbours are added side by side."""
    program, kind, whole = lowering.program, kind_of(factors[0].reshape(-1)[0]), (*over, *shape)
    views = [lowering.view(np.moveaxis(each, range(len(shape)), range(-len(shape), 0))) for each in factors]
    name = program.declare(kind, math.prod(shape))
    with lowering.loops(shape) as at:
        start = program.text(_START[combine](kind))
        program.line(f"{name}[{flat(at, row_major(shape))}] = {start};", [name], ())
    with lowering.loops(whole) as at:
        place = f"{name}[{flat(at[len(over) :], row_major(shape))}]"
        term = " * ".join(term(at) for term, _ in views)
        uses = {name, *(used for _, names in views for used in names)}
        if combine == "add":
            program.line(f"{place} += {term};", [name], uses)
        else:
            pair = [program.load(kind, text, uses) for text in (place, term)]
            combined = lowering.apply(combine, kind, *pair)
            program.line(f"{place} = {program.text(combined)};", [name], names_in([combined]))
    return elements(name, kind, tuple(shape))


def _cumulative(combine: str) -> Rule:
    def rule(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
        axis, backward = equation.params["axis"], equation.params["reverse"]
        rows = _rows(arguments[0], axis)[:: -1 if backward else 1]
        out = [rows[0]]
        for row in rows[1:]:
            pairs = zip(out[-1].reshape(-1), row.reshape(-1), strict=True)
            items = [lowering.apply(combine, kind_of(pair[0]), *pair) for pair in pairs]
            out.append(arranged(items, row.shape))
        return [np.moveaxis(np.stack(out[:: -1 if backward else 1]), 0, axis)]

    return rule


def _argument_of(compare: str) -> Rule:
    """The first place of the largest (or smallest) element along one axis."""

    def rule(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
        (axis,) = equation.params["axes"]
        rows = np.moveaxis(arguments[0], axis, -1)
        out = np.empty(rows.shape[:-1], dtype=object)
        for at in np.ndindex(out.shape):
            best, place = rows[at][0], 0
            for i, item in enumerate(rows[at][1:], 1):
                better = lowering.apply(compare, kind_of(item), item, best)
                best, place = (choose(lowering, better, new, old) for new, old in ((item, best), (i, place)))
            out[at] = place
        return [out]

    return rule


SUMS: dict[str, Rule] = {
    "dot_general": _dot_general,
    "reduce_sum": _reduction("add"),
    "reduce_prod": _reduction("mul"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_and": _reduction("and"),
    "reduce_or": _reduction("or"),
    "cumsum": _cumulative("add"),
    "cumprod": _cumulative("mul"),
    "cummax": _cumulative("max"),
    "cummin": _cumulative("min"),
    "argmax": _argument_of("gt"),
    "argmin": _argument_of("lt"),
}
RULES: dict[str, Rule] = {**MOVES, **SUMS}
