"""What is asked of an export in words: endings, names in C. Checked before anything heavy is loaded."""

import importlib.util
import os
import re
from pathlib import Path

from phast.data.files import check_target
from phast.errors import InputError

ENDINGS = {"c": ".c", "onnx": ".onnx"}
_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
bool catch class delete explicit export false friend main mutable namespace new operator private protected public
template this throw true try typename using virtual
"""


def format_of(path: str | os.PathLike, form: str | None = None) -> str:
    """``c`` or ``onnx``, by the ending of the file, which ``form`` must agree with where it is given."""
    path = Path(path)
    if form is not None and path.suffix.lower() != ENDINGS[form]:
        raise InputError(f"'{path}': a file of format {form} ends in {ENDINGS[form]}, not '{path.suffix}'")
    check_target(path, tuple(ENDINGS.values()))
    return path.suffix.lower().removeprefix(".")


def name_in_c(path: str | os.PathLike, given: str | None = None) -> str:
    """What begins every name in C and C++: ``given``, or the name of the file."""
    name = Path(path).stem if given is None else given
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in _WORDS.split():
        raise InputError(f"'{name}' is no name in C: give one with letters, digits and _ (--name swing)")
    return name


def check_extra() -> None:
    """Refuse ONNX where jax2onnx is not installed."""
    if importlib.util.find_spec("jax2onnx") is None:
        raise InputError("ONNX needs jax2onnx and onnxruntime: pip install 'phast-physics[onnx]'")
