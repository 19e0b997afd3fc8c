"""Exported C as the system's compiler makes it, called from Python."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
REAL = {np.dtype(np.float64): ctypes.c_double, np.dtype(np.float32): ctypes.c_float}


def build(target: Path, *what: str | Path) -> None:
    """Compile C without a warning; the test is skipped where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: install one as `cc`")
    command = ["cc", *STRICT, "-o", str(target), *map(str, what), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def compiled(source: Path, *options: str) -> ctypes.CDLL:
    """The functions of a C file."""
    library = source.with_suffix(".so")
    build(library, "-shared", "-fPIC", *options, source)
    return ctypes.CDLL(str(library))


def memory(header, name):
    """A struct of the header as one of ctypes."""
    body = re.search(r"typedef struct \{([^}]*)\} rig_" + name, header)[1]
    types = {"double": ctypes.c_double, "float": ctypes.c_float, "int64_t": ctypes.c_int64, "int": ctypes.c_int}
    fields = []
    for kind, field, size in re.findall(r"(\w+) (\w+)(?:\[(\d+)\])?;", body):
        fields.append((field, types[kind] * int(size) if size else types[kind]))
    return type(name, (ctypes.Structure,), {"_fields_": fields})()


def call(function, *arguments):
    """Call a C function with arrays and structs, which are passed by reference, and numbers of NumPy."""
    function.restype = None
    function(*map(_passed, arguments))


def _passed(argument):
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    return ctypes.c_void_p(argument.ctypes.data) if argument.ndim else REAL[argument.dtype](argument)
