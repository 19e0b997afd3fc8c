"""Primitives that address elements by computed indices: parts of arrays, gathered and scattered."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
from jax.extend.core import JaxprEqn
from jax.lax import GatherScatterMode

from phast.control.export.lowering import Atoms, Lowering, Rule, arranged, aval_of, choose, kind_of, row_major
from phast.control.export.program import Atom, Ref, names_in

Axes = Sequence[SupportsIndex]  # JAX counts them as Python does, or as NumPy


def _within(lowering: Lowering, index: Atom, last: int) -> Atom:
    """An index brought into 0 … last."""
    return lowering.apply("min", "i", lowering.apply("max", "i", index, 0), last)


def _number(known: Atom) -> int:
    assert isinstance(known, int)
    return known


def _address(lowering: Lowering, starts: Sequence[Atom], strides: Sequence[int]) -> Atom:
    place: Atom = 0
    for start, stride in zip(starts, strides, strict=True):
        place = lowering.apply("add", "i", place, lowering.apply("mul", "i", start, stride))
    return place


def _window(lowering: Lowering, array: Atoms, starts: Sequence[Atom], sizes: Sequence[int]) -> Atoms:
    """Part of an array that begins at computed indices: a pointer to its first element."""
    starts = [_within(lowering, s, n - size) for s, n, size in zip(starts, array.shape, sizes, strict=True)]
    if not names_in(starts):
        begins = map(_number, starts)
        return array[(*(slice(s, s + size) for s, size in zip(begins, sizes, strict=True)), ...)]
    name, items = lowering.stored(array)
    kind, strides, program = kind_of(items[0]), row_major(array.shape), lowering.program
    place = _address(lowering, starts, strides)
    pointer = program.pointer(kind, name, program.text(place), names_in([place]))
    offsets = np.tensordot(np.array(strides, dtype=int), np.indices(sizes), axes=1).reshape(-1)
    return arranged([Ref(pointer, kind, int(i)) for i in offsets], tuple(sizes))


def _dynamic_slice(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    array, *starts = arguments
    return [_window(lowering, array, [s.item() for s in starts], equation.params["slice_sizes"])]


def _dynamic_update_slice(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    array, update, *starts = arguments
    indices = [_within(lowering, s.item(), n - m) for s, n, m in zip(starts, array.shape, update.shape, strict=True)]
    at = [([*indices], True, [(window, window) for window in np.ndindex(update.shape)])]
    return [_written(lowering, array, update, at, None)]


Part = tuple[list[Atom], Atom, list[tuple[tuple[int, ...], tuple[int, ...]]]]


def _written(lowering: Lowering, array: Atoms, update: Atoms, places: Sequence[Part], combine: str | None) -> Atoms:
    """An array with parts replaced: each from a start, where a condition holds, at pairs (in update, in part)."""
    if all(not names_in([*starts, inside]) for starts, inside, _ in places):
        out = array.copy()
        for starts, inside, pairs in places:
            for source, window in pairs if inside else ():
                at = tuple(_number(s) + w for s, w in zip(starts, window, strict=True))
                new = update[source]
                out[at] = new if combine is None else lowering.apply(combine, kind_of(new), out[at], new)
        return out
    return _written_in_place(lowering, array, update, places, combine)


def _written_in_place(lowering: Lowering, array: Atoms, update: Atoms, places, combine: str | None) -> Atoms:
    program, strides, out = lowering.program, row_major(array.shape), lowering.copied(array)
    first = out.reshape(-1)[0]
    assert isinstance(first, Ref)
    for starts, inside, pairs in places:
        place = _address(lowering, starts, strides)
        condition = f"if ({program.text(inside)})"
        with program.block(condition, names_in([inside])):
            for source, window in pairs:
                target = (
                    f"{first.name}[{program.text(place)} + {sum(map(math.prod, zip(window, strides, strict=True)))}]"
                )
                uses = {first.name, *names_in([place, update.item(*source)])}
                value = program.text(update.item(*source))
                sign = {None: "", "add": "+", "mul": "*"}[combine]
                program.line(f"{target} {sign}= {value};", [first.name], uses)
    return out


def _starts(indices: Atoms, dimensions: Axes, rank: int) -> Iterator[tuple[tuple[int, ...], list[Atom]]]:
    """For each index vector (along the last axis): where it stands, and where in the operand its part begins."""
    for at in np.ndindex(indices.shape[:-1]):
        starts: list[Atom] = [0] * rank
        for component, axis in enumerate(dimensions):
            starts[axis] = indices[at][component]
        yield at, starts


def _inside(lowering: Lowering, starts: list[Atom], shape: Sequence[int], sizes: Sequence[int]) -> Atom:
    """Whether a part of these sizes lies in the array."""
    inside: Atom = True
    for start, n, size in zip(starts, shape, sizes, strict=True):
        for name, bound in (("ge", 0), ("le", n - size)):
            inside = lowering.apply("and", "b", inside, lowering.apply(name, "i", start, bound))
    return inside


def _gather(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    array, indices = arguments
    params, out_shape = equation.params, aval_of(equation.outvars[0]).shape
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    if numbers.operand_batching_dims:
        raise lowering.refused(equation, " with batched indices")
    out = np.empty(out_shape, dtype=object)
    for at, starts in _starts(indices, numbers.start_index_map, array.ndim):
        part = np.squeeze(_window(lowering, array, starts, sizes), numbers.collapsed_slice_dims)
        if _fills(params["mode"]):
            part = _filled(lowering, part, _inside(lowering, starts, array.shape, sizes), params["fill_value"])
        where: list[Any] = list(at)
        for axis in sorted(numbers.offset_dims):
            where.insert(axis, slice(None))
        out[(*where, ...)] = part
    return [out]


def _fills(mode: Any) -> bool:
    return GatherScatterMode.from_any(mode) == GatherScatterMode.FILL_OR_DROP


def _filled(lowering: Lowering, part: Atoms, inside: Atom, fill: Any) -> Atoms:
    """What lies outside of an array is not a number, or the lowest integer."""
    kind = kind_of(part.reshape(-1)[0])
    other: Atom = {"f": math.nan, "i": -(2**31), "b": True}[kind] if fill is None else fill
    return arranged([choose(lowering, inside, item, other) for item in part.reshape(-1)], part.shape)


def _scatter(combine: str | None) -> Rule:
    def rule(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
        array, indices, update = arguments
        numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
        if numbers.operand_batching_dims:
            raise lowering.refused(equation, " with batched indices")
        windowed = [axis for axis in range(array.ndim) if axis not in numbers.inserted_window_dims]
        sizes = [1] * array.ndim
        for axis, at in zip(windowed, numbers.update_window_dims, strict=True):
            sizes[axis] = update.shape[at]
        places = []
        for at, starts in _starts(indices, numbers.scatter_dims_to_operand_dims, array.ndim):
            inside = _inside(lowering, starts, array.shape, sizes) if _fills(mode) else True
            starts = [_within(lowering, s, n - m) for s, n, m in zip(starts, array.shape, sizes, strict=True)]
            pairs = list(_pairs(at, numbers.update_window_dims, windowed, sizes))
            places.append((starts, inside, pairs))
        return [_written(lowering, array, update, places, combine)]

    return rule


def _pairs(at: tuple[int, ...], window_dims: Axes, windowed: list[int], sizes: list[int]):
    """(index into the update, index into the part of the operand) for one index vector."""
    for window in np.ndindex(tuple(sizes)):
        source = list(at)
        for axis, dim in zip(windowed, window_dims, strict=True):
            source.insert(dim, window[axis])
        yield tuple(source), window


RULES: dict[str, Rule] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter(None),
    "scatter-add": _scatter("add"),
    "scatter_add": _scatter("add"),
    "scatter_mul": _scatter("mul"),
}
