"""A JAX function as a C function: arguments and results are arrays of the caller."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from phast.control.export import arrays, control_flow, indexing, linear_algebra
from phast.control.export.lowering import UNROLLED, Atoms, Lowering, elements, single
from phast.control.export.program import Precision, Program, Tables, names_in

RULES = {**arrays.RULES, **indexing.RULES, **control_flow.RULES, **linear_algebra.RULES}


class Place(NamedTuple):
    """Where an argument comes from or a result goes: a C expression, and the shape of what it names."""

    name: str
    shape: tuple[int, ...] = ()
    kind: str = "f"


class Written(NamedTuple):
    """The body of a C function, how much stack it uses, and the helpers that it calls."""

    body: str
    stack: int
    helpers: frozenset[str]


def written(
    function: Callable[..., Sequence[Any]],
    arguments: Sequence[Place],
    results: Sequence[Place | None],
    precision: Precision,
    tables: Tables,
) -> Written:
    """``function`` of flat arguments, traced and lowered. A result without a place is not computed.

    All arguments are read before a result is written, so that a caller may have both in one array.
    """
    program = Program(precision, tables)
    lowering = Lowering(program, RULES)
    types = {"f": precision.dtype, "i": np.int64, "b": np.bool_}
    jaxpr = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(place.shape, types[place.kind]) for place in arguments))
    found = lowering.closed(jaxpr, [_read(lowering, place) for place in arguments])
    for place, value in zip(results, found, strict=True):
        if place is not None:
            _write(lowering, place, value)
    body, stack = program.body({place.name for place in results if place is not None})
    used = frozenset(name for name in program.helpers if f"{name}(" in body)
    return Written(body, stack, used)


def _read(lowering: Lowering, place: Place) -> Atoms:
    if place.shape == ():
        return single(lowering.program.load(place.kind, place.name, ()))
    size = math.prod(place.shape)
    if size <= UNROLLED:
        out = np.empty(size, dtype=object)
        out[:] = [lowering.program.load(place.kind, f"{place.name}[{i}]", ()) for i in range(size)]
        return out.reshape(place.shape)
    return lowering.copied(elements(place.name, place.kind, place.shape))


def _write(lowering: Lowering, place: Place, value: Atoms) -> None:
    if place.shape == ():
        text = lowering.program.text(value.item())
        lowering.program.line(f"{place.name} = {text};", [place.name], names_in([value.item()]))
    else:
        lowering.copy(place.name, "", value)
