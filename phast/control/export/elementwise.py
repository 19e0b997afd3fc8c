"""Elementwise primitives: what each is in C, and in NumPy for numbers that are known when the code is written."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special


class ScalarFunction(NamedTuple):
    """A function of numbers: a C expression in {0}, {1}, … ({s} is the suffix of the precision) and its twin."""

    c: str
    known: Callable


def _c_function(name: str, known: Callable) -> ScalarFunction:
    return ScalarFunction(f"{name}{{s}}({{0}})", known)


REAL: dict[str, ScalarFunction] = {
    "add": ScalarFunction("{0} + {1}", np.add),
    "add_any": ScalarFunction("{0} + {1}", np.add),
    "sub": ScalarFunction("{0} - {1}", np.subtract),
    "mul": ScalarFunction("{0} * {1}", np.multiply),
    "div": ScalarFunction("{0} / {1}", np.divide),
    "rem": ScalarFunction("fmod{s}({0}, {1})", np.fmod),
    "pow": ScalarFunction("pow{s}({0}, {1})", np.power),
    "atan2": ScalarFunction("atan2{s}({0}, {1})", np.arctan2),
    "nextafter": ScalarFunction("nextafter{s}({0}, {1})", np.nextafter),
    "max": ScalarFunction("({0} > {1} || {0} != {0}) ? {0} : {1}", np.maximum),  # not a number stays so, unlike in fmax
    "min": ScalarFunction("({0} < {1} || {0} != {0}) ? {0} : {1}", np.minimum),
    "neg": ScalarFunction("-{0}", np.negative),
    "abs": _c_function("fabs", np.abs),
    "sign": ScalarFunction("{0} > 0 ? 1 : ({0} < 0 ? -1 : {0})", np.sign),
    "floor": _c_function("floor", np.floor),
    "ceil": _c_function("ceil", np.ceil),
    "exp": _c_function("exp", np.exp),
    "exp2": _c_function("exp2", np.exp2),
    "expm1": _c_function("expm1", np.expm1),
    "log": _c_function("log", np.log),
    "log1p": _c_function("log1p", np.log1p),
    "sqrt": _c_function("sqrt", np.sqrt),
    "rsqrt": ScalarFunction("1 / sqrt{s}({0})", lambda x: 1 / np.sqrt(x)),
    "cbrt": _c_function("cbrt", np.cbrt),
    "sin": _c_function("sin", np.sin),
    "cos": _c_function("cos", np.cos),
    "tan": _c_function("tan", np.tan),
    "asin": _c_function("asin", np.arcsin),
    "acos": _c_function("acos", np.arccos),
    "atan": _c_function("atan", np.arctan),
    "sinh": _c_function("sinh", np.sinh),
    "cosh": _c_function("cosh", np.cosh),
    "tanh": _c_function("tanh", np.tanh),
    "asinh": _c_function("asinh", np.arcsinh),
    "acosh": _c_function("acosh", np.arccosh),
    "atanh": _c_function("atanh", np.arctanh),
    "logistic": ScalarFunction("1 / (1 + exp{s}(-{0}))", special.expit),
    "erf": _c_function("erf", special.erf),
    "erfc": _c_function("erfc", special.erfc),
    "lgamma": _c_function("lgamma", special.gammaln),
    "square": ScalarFunction("{0} * {0}", np.square),
    "is_finite": ScalarFunction("isfinite({0}) != 0", np.isfinite),
    "eq": ScalarFunction("{0} == {1}", np.equal),
    "ne": ScalarFunction("{0} != {1}", np.not_equal),
    "lt": ScalarFunction("{0} < {1}", np.less),
    "le": ScalarFunction("{0} <= {1}", np.less_equal),
    "gt": ScalarFunction("{0} > {1}", np.greater),
    "ge": ScalarFunction("{0} >= {1}", np.greater_equal),
    "lt_to": ScalarFunction("{0} < {1} || ({0} == {0} && {1} != {1})", lambda a, b: (a < b) | ((a == a) & (b != b))),
    "le_to": ScalarFunction("{0} <= {1} || {1} != {1}", lambda a, b: (a <= b) | (b != b)),
    "clamp": ScalarFunction("{1} < {0} ? {0} : ({1} > {2} ? {2} : {1})", lambda low, x, high: np.clip(x, low, high)),
}
INTEGER: dict[str, ScalarFunction] = {
    **{name: REAL[name] for name in ("add", "add_any", "sub", "mul", "neg", "eq", "ne", "lt", "le", "gt", "ge")},
    **{name: REAL[name] for name in ("clamp", "square")},
    "div": ScalarFunction("{0} / {1}", lambda a, b: np.trunc(a / b).astype(int)),
    "rem": ScalarFunction("{0} % {1}", np.fmod),
    "max": ScalarFunction("{0} > {1} ? {0} : {1}", np.maximum),
    "min": ScalarFunction("{0} < {1} ? {0} : {1}", np.minimum),
    "abs": ScalarFunction("{0} < 0 ? -{0} : {0}", np.abs),
    "sign": ScalarFunction("({0} > 0) - ({0} < 0)", np.sign),
    "and": ScalarFunction("{0} & {1}", np.bitwise_and),
    "or": ScalarFunction("{0} | {1}", np.bitwise_or),
    "xor": ScalarFunction("{0} ^ {1}", np.bitwise_xor),
    "not": ScalarFunction("~{0}", np.bitwise_not),
}
BOOLEAN: dict[str, ScalarFunction] = {
    **{name: REAL[name] for name in ("eq", "ne")},
    "and": ScalarFunction("{0} && {1}", np.logical_and),
    "or": ScalarFunction("{0} || {1}", np.logical_or),
    "xor": ScalarFunction("{0} != {1}", np.not_equal),
    "not": ScalarFunction("!{0}", np.logical_not),
    "max": ScalarFunction("{0} || {1}", np.logical_or),
    "min": ScalarFunction("{0} && {1}", np.logical_and),
}
_KINDS = {"f": REAL, "i": INTEGER, "u": INTEGER, "b": BOOLEAN}
SELECTION = "{0} ? {2} : {1}"
SAME = frozenset({"copy", "copy_p", "stop_gradient", "reduce_precision", "optimization_barrier", "pvary"})


def scalar_function(name: str, params: dict, kinds: list[str], to: str) -> ScalarFunction | None:
    """What an elementwise primitive does to numbers of these kinds; None where it is not one of those in C."""
    if name == "select_n":
        return _selection(kinds)
    if name == "convert_element_type":
        return _conversion(kinds[0], to)
    if name == "integer_pow":
        return _power(int(params["y"]))
    if name == "round":
        nearest = int(params["rounding_method"]) == 1  # ties to even
        return ScalarFunction("rint{s}({0})", np.rint) if nearest else ScalarFunction("round{s}({0})", _round_away)
    return _KINDS[kinds[-1]].get(name)


def _round_away(x):
    return np.trunc(x + np.copysign(0.5, x))


def _selection(kinds: list[str]) -> ScalarFunction | None:
    if len(kinds) != 3:
        return None
    return ScalarFunction(SELECTION, lambda which, no, yes: np.where(which, yes, no))


def _conversion(kind: str, to: str) -> ScalarFunction:
    if to == "b":
        return ScalarFunction("{0} != 0", lambda x: x != 0)
    if to == "f":
        return ScalarFunction("({real}){0}", lambda x: x)
    whole = {"i": "(int64_t){0}", "u": "(uint32_t){0}"}[to]
    return ScalarFunction(whole, lambda x: np.trunc(x).astype(int) if kind == "f" else np.asarray(x).astype(int))


def _power(y: int) -> ScalarFunction:
    """By repeated squaring where that is one product, as XLA does."""
    product = {0: "1", 1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 4: "({0} * {0}) * ({0} * {0})"}
    positive = product.get(abs(y), f"pow{{s}}({{0}}, {abs(y)})")
    if y < 0:
        return ScalarFunction(f"1 / ({positive})", lambda x: 1 / np.power(x, -y))
    return ScalarFunction(positive, lambda x: np.power(x, y))
