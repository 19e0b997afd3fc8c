"""A model as one C99 file with its header: the time step, the filter, and a controller where one is given.

Every function is traced from the JAX code that Python runs, in the precision of the export: tolerances and guards
depend on it, so that single precision is another trace, not another ``typedef``. What a filter or a controller
remembers is a struct that the caller owns.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from phast.components.parameter import is_trained
from phast.control.export import linear_algebra
from phast.control.export.c_texts import Function, ModelText, Signature, struct
from phast.control.export.function import Place, written
from phast.control.export.program import DOUBLE, SINGLE, Tables
from phast.control.loop import Feedback
from phast.control.plant import Plant
from phast.control.ports import ModelOutput
from phast.control.shaping import EnergyCasimir
from phast.data.units import Units
from phast.estimation.forecaster import AbstractFilter, Core
from phast.estimation.inputs import Held


class Exported(NamedTuple):
    """The texts of a C file and of its header."""

    source: str
    header: str


class ModelWriter:
    """Functions of one model in one precision. They share constants; what is added is written by :meth:`texts`."""

    def __init__(self, core: Core, units: Units, inputs: Sequence[str], dt: float, name: str, *, single: bool = False):
        self.precision = SINGLE if single else DOUBLE
        self._model = ModelText(name, units, tuple(inputs), dt, self.precision)
        self._core, self._tables = self.narrowed(core), Tables(self.precision)
        self._functions: list[Function] = []
        self._structs: list[str] = []

    def add_step(self) -> None:
        """(q, p, u, stretch) -> (q, p) one step later."""

        def step(q, p, *held):
            return self._core(q, p, self._held(held))

        before, after = [self._array("q"), self._array("p")], [self._array("q_next"), self._array("p_next")]
        about = "The state (q_next, p_next) one step after (q, p); they may be the same arrays."
        held = self._held_places()
        signature = Signature("step", (*self._read(before), *self._read(held), *self._written(after)), about)
        self._add(signature, step, [*before, *held], after)

    def add_filter(self, estimator: AbstractFilter) -> None:
        """A filter: what it remembers, its start, and its update by one sample."""
        estimator, held, name = self.narrowed(estimator), self._held_places(), self._model.name
        with self._traced():
            nothing = self._held([jnp.zeros(place.shape) for place in held])
            cache = jax.eval_shape(lambda q: estimator.start(q, nothing), self._shape("q"))
        fields, tree = _fields(cache)
        self._struct("filter", [_STARTED, *fields], "What a filter remembers. All zero, it has seen no sample.")
        known = [self._array(name) for name in ("q", "p", "innovation")]
        known.insert(2, Place("covariance", (2 * self._n, 2 * self._n)))
        self._struct("state", known, _ABOUT_STATE)
        memory = _of("filter", fields)

        def start(q):
            return [jnp.asarray(1), *jax.tree.leaves(estimator.start(q, nothing))]

        def update(q, *rest):
            cache = jax.tree.unflatten(tree, rest[len(held) :])
            cache, found = estimator.update(cache, q, self._held(rest[: len(held)]))
            return [*jax.tree.leaves(cache), found.q, found.p, found.covariance, found.innovation]

        q, itself = [self._array("q")], f"{name}_filter *filter"
        about = "Forgets every sample; q is the next one. The first update of a filter calls it."
        signature = Signature("filter_start", (itself, *self._read(q)), about)
        self._add(signature, start, q, _of("filter", [_STARTED, *fields]))
        about = _ABOUT_UPDATE + (" u acted over the step before it." if held[1:] else "")
        parameters = (itself, *self._read(q), *self._read(held), f"{name}_state *state")
        first = f"    if (!filter->started) {name}_filter_start(filter, q);\n"
        results = [*memory, *_of("state", known)]
        self._add(Signature("filter_update", parameters, about), update, [*q, *held, *memory], results, first)

    def add_controller(self, law: EnergyCasimir, limits: tuple[float, ...] | None = None) -> None:
        """Energy–Casimir control by positions and the filter's state; after :meth:`add_filter`."""
        law, name, system = self.narrowed(law), self._model.name, self._core.system
        plant = Plant(system, self._model.units.manifold, self._model.dt, limits)
        feedback = Feedback(law, ModelOutput(system), plant)
        with self._traced():
            q = self._shape("q")
            cache, _ = jax.eval_shape(lambda q, p: feedback.start(q, (q, p)), q, q)
        fields, tree = _fields(cache)
        fields = [field._replace(name=name) for field, name in zip(fields, ("xi", "followed"), strict=True)]
        limited = Place("limited", (), "i")
        self._struct("controller", [_STARTED, limited, *fields], _ABOUT_CONTROLLER)

        def control(measured, q, p, started, *memory):
            def begin():
                return feedback.start(measured, (q, p))

            def go_on():
                return feedback.update(jax.tree.unflatten(tree, memory), measured, jnp.zeros_like(law.target), (q, p))

            cache, decided = jax.lax.cond(started != 0, go_on, begin)
            u = plant.saturated(decided.u)
            return [jnp.asarray(1), jnp.any(u != decided.u).astype(int), *jax.tree.leaves(cache), u]

        measured, started, memory = self._array("measured"), *_of("controller", [_STARTED]), _of("controller", fields)
        known, u = _of("state", [self._array("q"), self._array("p")]), Place("u", law.target.shape)
        about = f"{_ABOUT_CONTROL} {_limits_text(limits)}"
        parameters = (f"{name}_controller *controller", *self._read([measured]), f"const {name}_state *state")
        signature = Signature("control", (*parameters, *self._written([u])), about)
        results = [started, *_of("controller", [limited]), *memory, u]
        self._add(signature, control, [measured, *known, started, *memory], results)

    def texts(self, header: str) -> Exported:
        """The file and its header, which is called ``header``."""
        bodies = "\n".join(function.written.body for function in self._functions)
        helpers = sorted({name for function in self._functions for name in function.written.helpers})
        sources = linear_algebra.sources(helpers, self.precision.name, self.precision.suffix)
        source = self._model.source(self._functions, self._tables.text(bodies), sources, header)
        return Exported(source, self._model.header(self._functions, self._structs))

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _n(self) -> int:
        return self._model.units.manifold.size

    def _traced(self) -> contextlib.AbstractContextManager:
        """JAX as wide as the export."""
        return jax.enable_x64(self.precision is DOUBLE)

    def narrowed(self, module: Any) -> Any:
        """The same numbers as wide as the export; those of NumPy, which are no model's coefficients, stay."""
        with self._traced():
            return jax.tree.map(lambda x: x.astype(self.precision.dtype) if is_trained(x) else x, module)

    def _add(self, signature: Signature, function: Callable, arguments, results, first: str = "") -> None:
        with self._traced():
            found = written(function, arguments, results, self.precision, self._tables)
        self._functions.append(Function(signature, found, first))

    def _struct(self, name: str, fields: Sequence[Place], about: str) -> None:
        self._structs.append(struct(f"{self._model.name}_{name}", self.precision, fields, about))

    def _array(self, name: str) -> Place:
        return Place(name, (self._n,))

    def _shape(self, name: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self._array(name).shape, self.precision.dtype)

    def _held_places(self) -> list[Place]:
        count = len(self._model.inputs)
        return [*([Place("u", (count,))] if count else []), Place("stretch")]

    def _held(self, given: Sequence[Any]) -> Held:
        *u, stretch = given
        return Held(u[0] if u else None, stretch)

    def _read(self, places: Sequence[Place]) -> list[str]:
        return [f"const {text}" if "[" in text else text for text in self._written(places)]

    def _written(self, places: Sequence[Place]) -> list[str]:
        return [f"{self.precision.name} {p.name}{f'[{p.shape[0]}]' if p.shape else ''}" for p in places]


_STARTED = Place("started", (), "i")
_ABOUT_STATE = "What is known after a sample: the state, its covariance row by row, and how far off its q was foretold."
_ABOUT_CONTROL = "The input from now on, given a measured position and the filter's state after it."
_ABOUT_CONTROLLER = "What a controller remembers. All zero, it has not begun; limited is 1 where u was cut to a limit."
_ABOUT_UPDATE = "Takes in one measured position q, and says what is known then."


def _limits_text(limits: tuple[float, ...] | None) -> str:
    if limits is None:
        return "It is not limited."
    return f"Its magnitude is at most {', '.join(f'{most:g}' for most in limits)}."


def _of(owner: str, fields: Sequence[Place]) -> list[Place]:
    """Fields of a struct behind a pointer."""
    return [field._replace(name=f"{owner}->{field.name}") for field in fields]


def _fields(tree: PyTree) -> tuple[list[Place], Any]:
    """The leaves of a cache as fields of a struct, and how they make a cache."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    places = []
    for path, leaf in leaves:
        name = "_".join(re.findall(r"\w+", jax.tree_util.keystr(path)))
        places.append(Place(name if name[0].isalpha() else f"part{name}", leaf.shape, leaf.dtype.kind))
    return places, structure
