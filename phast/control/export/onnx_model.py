"""The time step of a model as one ONNX graph, written by jax2onnx (extra ``onnx``).

What C would be too slow or too large for, and whatever runs ONNX already: one step at a time, without a loop over time.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox.internal as eqxi
import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from phast.control.export.names import check_extra
from phast.data.files import check_target, write_atomically
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.inputs import Held


def write_onnx(core: Core, n: int, inputs: int, path: str | os.PathLike, *, single: bool = False) -> Path:
    """Write (q, p, u) -> (q, p) one even step later; there is no u where the model has no inputs."""
    check_extra()
    check_target(path, (".onnx",))
    sizes = {"q": n, "p": n, **({"u": inputs} if inputs else {})}

    def step(q, p, u=None):
        return core(q, p, Held(u))

    with jax.enable_x64(not single):
        dtype = np.float32 if single else np.float64
        shapes = [jax.ShapeDtypeStruct((size,), dtype) for size in sizes.values()]
        graph = _graph(_in_primitives_of_jax(step, shapes), shapes, list(sizes), single)
    return write_atomically(path, graph.SerializeToString())


def _in_primitives_of_jax(step: Callable, shapes: list[jax.ShapeDtypeStruct]) -> Callable:
    """The same function without the primitives of Equinox and Lineax. Once more for those inside of the first ones."""
    program = eqxi.finalise_jaxpr(eqxi.finalise_make_jaxpr(step)(*shapes))
    return lambda *arguments: tuple(jaxpr_as_fun(program)(*arguments))


def _graph(step: Callable, shapes: list[jax.ShapeDtypeStruct], names: list[str], single: bool) -> Any:
    import jax2onnx  # pyright: ignore[reportMissingImports] (an extra)

    with contextlib.redirect_stdout(None):
        try:
            return jax2onnx.to_onnx(
                step,
                inputs=shapes,
                input_names=names,
                output_names=["q_next", "p_next"],
                model_name="step",
                enable_double_precision=not single,
            )
        except NotImplementedError as error:
            raise InputError(f"this model has no counterpart in ONNX ({error}): export to C, -o model.c") from error
