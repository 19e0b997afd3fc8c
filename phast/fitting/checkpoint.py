"""Models and training states on disk: a zip of one JSON header and one array file per leaf. Never pickle.

The header describes the tree of Equinox modules by class name and fields; loading builds only classes of this package
(and those that the caller names), so a foreign file can at worst fail with one clear error. Writes are atomic.
"""

import dataclasses
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from phast.data.manifold import Manifold
from phast.errors import InputError
from phast.fitting.archives import FORMAT, VERSION, first_line, has_float64, read_archive, write_archive


def save(model: eqx.Module, path: str | os.PathLike, /, **about: Any) -> Path:
    """Write ``model`` to ``path``. Keyword arguments that JSON can hold travel along, for ``describe`` to read."""
    arrays: list[np.ndarray] = []
    header = {"format": FORMAT, "version": VERSION, "about": about, "model": _encode(model, arrays)}
    return write_archive(path, header, arrays)


def load(path: str | os.PathLike, *, classes: Iterable[type] = ()) -> Any:
    """The model in ``path``. Name your own component classes in ``classes`` if it is composed of any."""
    header, arrays = read_matching(path, FORMAT, VERSION)
    try:
        model = _decode(header["model"], arrays, {_name_of(cls): cls for cls in classes})
        if not isinstance(model, eqx.Module):
            raise TypeError(f"{type(model).__name__} is no module")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # whatever a damaged or foreign file makes of it
        raise InputError(f"{path}: the model inside is damaged ({first_line(error)}): save it again") from error
    return model


def read_matching(path: str | os.PathLike, expected: str, version: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and arrays; refused where they are more precise than JAX now computes."""
    header, arrays = read_archive(path, expected, version)
    if has_float64(arrays) and not jax.config.read("jax_enable_x64"):
        raise InputError(f"{path}: holds float64 numbers: read it in double precision, as phast.load does")
    return header, arrays


# --- the tree of modules as JSON -------------------------------------------------------------------------------------


def _encode(node: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(node, eqx.Module | Manifold):
        fields = {f.name: _encode(getattr(node, f.name), arrays) for f in dataclasses.fields(node)}
        return {"class": _name_of(type(node)), "fields": fields}
    if isinstance(node, jax.Array | np.ndarray):
        arrays.append(np.asarray(node))
        return {"array" if isinstance(node, jax.Array) else "constant": len(arrays) - 1}
    if isinstance(node, tuple):
        return {"tuple": [_encode(item, arrays) for item in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise InputError(f"cannot save a {type(node).__name__} inside a model: components hold modules, arrays and numbers")


def _decode(node: Any, arrays: list[np.ndarray], known: dict[str, type]) -> Any:
    if not isinstance(node, dict):
        return node
    if "array" in node:
        return jnp.asarray(arrays[node["array"]])
    if "constant" in node:  # what was kept as NumPy: nothing trains it
        return arrays[node["constant"]]
    if "tuple" in node:
        return tuple(_decode(item, arrays, known) for item in node["tuple"])
    cls = known.get(node["class"]) or _class_of(node["class"])
    module = object.__new__(cls)
    values = _defaults(cls) | {name: _decode(value, arrays, known) for name, value in node["fields"].items()}
    for field in dataclasses.fields(cls):
        object.__setattr__(module, field.name, values[field.name])
    return module


def _defaults(cls: type) -> dict[str, Any]:
    """What stands for the fields that a class got after a file was written."""
    return {field.name: field.default for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING}


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class_of(name: str) -> type:
    module, _, qualname = name.partition(":")
    package = __name__.partition(".")[0]
    cls = None
    if module.startswith(f"{package}."):
        try:
            cls = getattr(importlib.import_module(module), qualname, None)
        except ImportError:
            cls = None
    if not (isinstance(cls, type) and issubclass(cls, eqx.Module | Manifold)):
        raise InputError(
            f"the file holds a component '{name}' that is not part of PHAST: load(path, classes=[…]) names it"
        )
    return cls
