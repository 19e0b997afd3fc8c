"""Files of one JSON header and one array per leaf, in a zip: written whole, read with one clear error, without JAX."""

import io
import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from phast.data.files import write_atomically
from phast.errors import InputError

FORMAT = "phast-model"
VERSION = 2


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """The description that was saved with the model in ``path``."""
    return read_archive(path, FORMAT, VERSION, arrays=False)[0]["about"]


def needs_float64(path: str | os.PathLike) -> bool:
    """Whether the model in ``path`` was computed in double precision."""
    return has_float64(read_archive(path, FORMAT, VERSION)[1])


def has_float64(arrays: Iterable[np.ndarray]) -> bool:
    return any(array.dtype == np.float64 for array in arrays)


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
        raise InputError(f"{path}: not a readable {expected} file ({first_line(error)})") from error
    return header, leaves


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _read_array(archive: zipfile.ZipFile, index: int) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(archive.read(f"{index}.npy")), allow_pickle=False)
