"""The text around exported functions: what a header says of a model, its structs, and names that C accepts."""

import importlib.metadata
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from phast.control.export.function import Place, Written
from phast.control.export.program import Precision
from phast.data.units import Units

FORMAT = 1  # of the exported functions: raised where a caller would have to change


class Signature(NamedTuple):
    """A C function: its name after the prefix, its parameters, and a sentence on what it does."""

    name: str
    parameters: tuple[str, ...]
    about: str

    def text(self, prefix: str) -> str:
        return f"void {prefix}_{self.name}({', '.join(self.parameters)})"


class Function(NamedTuple):
    """A C function; ``first`` is a line before its traced body."""

    signature: Signature
    written: Written
    first: str = ""

    def text(self, prefix: str) -> str:
        """Its definition. A parameter that nothing depends on is marked as such."""
        names = [re.sub(r"\[.*", "", parameter).split()[-1].lstrip("*") for parameter in self.signature.parameters]
        body = self.first + self.written.body
        unused = [f"    (void){name};" for name in names if not re.search(rf"\b{name}\b", body)]
        return "\n".join([f"{self.signature.text(prefix)} {{", *unused, body, "}", ""])


class ModelText(NamedTuple):
    """What a header says of a model."""

    name: str
    units: Units
    inputs: tuple[str, ...]
    dt: float
    precision: Precision

    @property
    def title(self) -> str:
        version = importlib.metadata.version("phast-physics")
        return f"{self.name}: a port-Hamiltonian model, exported by phast {version} (C export, format {FORMAT})"

    def about(self, stack: int) -> Iterable[str]:
        """Line by line, for who calls it."""
        manifold = self.units.manifold
        yield from (self.title, "", "Coordinates, in this order in every q, and their momenta in every p:")
        for i, (name, circle, unit) in enumerate(zip(manifold.names, manifold.circles, self.units.names, strict=True)):
            yield f"  q[{i}]  {name}, {_unit(circle, unit)}"
        if self.inputs:
            yield from ("Inputs:", *(f"  u[{i}]  {each}" for i, each in enumerate(self.inputs)))
        yield from (
            f"A step lasts stretch * {float(self.dt)!r} s: stretch is 1 where samples are evenly spaced.",
            f"Numbers are {self.precision.name}. Functions allocate nothing, call libm alone, and keep nothing between",
            f"calls but in the structs that they are given; none uses more than {_rounded(stack)} bytes of stack.",
        )

    def header(self, functions: Sequence[Function], structs: Sequence[str]) -> str:
        """The header, for C and C++."""
        big = self.name.upper()
        sizes = {"FORMAT": FORMAT, "COORDINATES": self.units.manifold.size, "INPUTS": len(self.inputs)}
        return _HEADER.format(
            about="\n".join(f" * {line}".rstrip() for line in self.about(max(f.written.stack for f in functions))),
            guard=f"{big}_H",
            integer="#include <stdint.h>\n\n" if any("int64_t" in text for text in structs) else "",
            defines="\n".join(f"#define {big}_{k} {v}" for k, v in {**sizes, "DT": float(self.dt)}.items()),
            structs="\n".join(structs),
            prototypes="\n".join(f"{_comment(f.signature.about)}{f.signature.text(self.name)};\n" for f in functions),
        )

    def source(self, functions: Sequence[Function], tables: str, helpers: str, header: str) -> str:
        """The file beside the header, which is called ``header``."""
        includes = f'#include "{header}"\n\n#include <math.h>\n#include <stdint.h>\n'
        parts = [_comment(self.title), includes, helpers, tables, *(f.text(self.name) for f in functions)]
        return "\n".join(part for part in parts if part)


def struct(name: str, precision: Precision, fields: Sequence[Place], about: str) -> str:
    """The definition of a struct."""
    types = {"f": precision.name, "i": "int64_t", "b": "int"}
    lines = [f"    {types[field.kind]} {field.name}{_bounds(field)};" for field in fields]
    return "\n".join([f"{_comment(about)}typedef struct {{", *lines, f"}} {name};", ""])


def _bounds(field: Place) -> str:
    return f"[{math.prod(field.shape)}]" if field.shape else ""


def _comment(text: str) -> str:
    return f"/* {text} */\n"


def _unit(circle: bool, unit: str) -> str:
    """What a coordinate is counted in, and how to get there from the files that the model was learned from."""
    if circle:
        return "an angle in radians" + (" (files hold degrees: times 0.017453292519943295)" if unit == "deg" else "")
    return f"in {unit}" if unit else "in the unit of the recording"


def _rounded(stack: int) -> int:
    return 1024 * math.ceil((stack + 512) / 1024)  # what a compiler adds for a call


_HEADER = """/*
{about}
 */
#ifndef {guard}
#define {guard}

{integer}#ifdef __cplusplus
extern "C" {{
#endif

{defines}

{structs}
{prototypes}
#ifdef __cplusplus
}}
#endif

#endif
"""
