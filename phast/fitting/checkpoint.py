"""Models and training states on disk: a zip of one JSON header and one array file per leaf. Never pickle.

The header describes the tree of Equinox modules by class name and fields; loading builds only classes of this package
(and those that the caller names), so a foreign file can at worst fail with one clear error. Writes are atomic.
"""

import dataclasses
import importlib
import io
import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from phast.data.files import write_atomically
from phast.data.manifold import Manifold
from phast.errors import InputError

FORMAT = "phast-model"
VERSION = 2


def save(model: eqx.Module, path: str | os.PathLike, /, **about: Any) -> Path:
    """Write ``model`` to ``path``. Keyword arguments that JSON can hold travel along (see :func:`describe`)."""
    arrays: list[np.ndarray] = []
    header = {"format": FORMAT, "version": VERSION, "about": about, "model": _encode(model, arrays)}
    return write_archive(path, header, arrays)


def load(path: str | os.PathLike, *, classes: Iterable[type] = ()) -> Any:
    """The model in ``path``. Name your own component classes in ``classes`` if it is composed of any."""
    header, arrays = read_archive(path, FORMAT, VERSION)
    try:
        model = _decode(header["model"], arrays, {_name_of(cls): cls for cls in classes})
        if not isinstance(model, eqx.Module):
            raise TypeError(f"{type(model).__name__} is no module")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # whatever a damaged or foreign file makes of it
        raise InputError(f"{path}: the model inside is damaged ({_first_line(error)}): save it again") from error
    return model


def needs_float64(path: str | os.PathLike) -> bool:
    """Whether the model in ``path`` was computed in double precision."""
    return any(array.dtype == np.float64 for array in _read(path, FORMAT, VERSION, arrays=True)[1])


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """The description that :func:`save` stored with the model."""
    return read_archive(path, FORMAT, VERSION, arrays=False)[0]["about"]


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


# --- archives --------------------------------------------------------------------------------------------------------


def write_archive(path: str | os.PathLike, header: dict[str, Any], arrays: Iterable[np.ndarray]) -> Path:
    """Header and arrays into one zip, complete or not at all."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        count = 0
        for array in arrays:
            entry = io.BytesIO()
            np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            archive.writestr(f"{count}.npy", entry.getvalue())
            count += 1
        archive.writestr("header.json", json.dumps({**header, "arrays": count}))
    return write_atomically(path, buffer.getvalue())


def read_archive(
    path: str | os.PathLike, expected: str, version: int, *, arrays: bool = True
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and arrays of a file that :func:`write_archive` wrote, or one clear error."""
    header, leaves = _read(path, expected, version, arrays=arrays)
    if any(a.dtype == np.float64 for a in leaves) and not jax.config.jax_enable_x64:
        raise InputError(f"{path}: holds float64 numbers: read it in double precision, as phast.load does")
    return header, leaves


def _read(path: str | os.PathLike, expected: str, version: int, *, arrays: bool):
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read("header.json"))
            if not isinstance(header, dict) or header.get("format") != expected:
                raise InputError(f"{path}: a zip file, but not a {expected} file")
            if header["version"] < version:
                raise InputError(f"{path}: written by an older PHAST (format {header['version']}): fit it again")
            if header["version"] > version:
                raise InputError(
                    f"{path}: written by a newer PHAST (format {header['version']}): upgrade phast to read it"
                )
            leaves = [_read_array(archive, i) for i in range(header["arrays"])] if arrays else []
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder, not a {expected} file") from None
    except InputError:
        raise
    except Exception as error:  # zlib, zipfile, numpy and json each have their own, and none for all
        raise InputError(f"{path}: not a readable {expected} file ({_first_line(error)})") from error
    return header, leaves


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _read_array(archive: zipfile.ZipFile, index: int) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(archive.read(f"{index}.npy")), allow_pickle=False)
