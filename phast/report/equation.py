"""A fitted system as formulas with ±, in text and in LaTeX: T, V and what friction takes."""

import re
from collections.abc import Sequence

import jax
import numpy as np

from phast.analysis.identifiability import Coefficient
from phast.components import damping, mass, potential
from phast.components.parameter import AbstractLearned, value_of
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.report.text import figure, with_deviation


def equation(system: AbstractEnergetic, names: Sequence[str], coefficients: Sequence[Coefficient]) -> str:
    """T, V and friction, one line each; coefficients as ``(9.81 ± 0.02)``."""
    if not isinstance(system, PortHamiltonian):
        return f"{type(system).__name__} of {', '.join(names)}"
    told = _Formula({found.name: found for found in coefficients})
    lines = [
        f"T = {_sum(told.kinetic(system.mass, list(names)))}",
        f"V = {_sum(told.potential('potential', system.potential, list(names)))}",
        *(f"F({speed}) = {_sum(terms)}" for speed, terms in told.friction("damping", system.damping, list(names))),
    ]
    if system.port is not None:
        lines.append("and inputs through G")
    return "\n".join(lines)


def latex(text: str) -> str:
    """The lines of :func:`equation` as an ``align*`` of LaTeX."""
    lines = [_in_latex(line) for line in text.splitlines()]
    return "\\begin{align*}\n" + " \\\\\n".join(lines) + "\n\\end{align*}"


class _Formula:
    """Formulas of components, whose coefficients are found by their names."""

    def __init__(self, coefficients: dict[str, Coefficient]):
        self.coefficients = coefficients

    def numbers(self, path: str, coefficient, count: int) -> list[str]:
        """Each number of a coefficient as text."""
        values = np.atleast_1d(np.asarray(value_of(coefficient)))
        if not isinstance(coefficient, AbstractLearned):
            return [figure(x) for x in np.broadcast_to(values, (count,)).tolist()]
        texts = [self._known(path if values.size == 1 else f"{path}[{i}]", x) for i, x in enumerate(values.tolist())]
        return texts * (count if len(texts) == 1 else 1)

    def _known(self, name: str, value: float) -> str:
        found = self.coefficients.get(name)
        sure = found is not None and np.isfinite(found.deviation)
        return f"({with_deviation(found.value, found.deviation) if sure else figure(value)})"

    # --- energies ----------------------------------------------------------------------------------------------------

    def potential(self, path: str, part: potential.AbstractPotential, x: list[str]) -> list[str]:
        """The terms of V."""
        match part:
            case potential.Sum(parts=parts):
                return [t for i, each in enumerate(parts) for t in self.potential(f"{path}[{i}]", each, x)]
            case potential.Some(template=inner, places=places):
                return self.potential(f"{path}.template", inner, [x[i] for i in places])
            case potential.Along(template=inner, rows=rows):
                return self.potential(f"{path}.template", inner, [_combined(row, x) for row in rows])
            case potential.Scaled(template=inner, scale=scale):
                (factor,) = self.numbers(f"{path}.scale", scale, 1)
                return [f"{factor} {term}" for term in self.potential(f"{path}.template", inner, x)]
            case potential.Cosine(amplitudes=a, centre=c) | potential.ChainCosine(amplitudes=a, centre=c):
                chained = isinstance(part, potential.ChainCosine)
                x = [" + ".join(x[: i + 1]) for i in range(len(x))] if chained else x
                sizes = self.numbers(f"{path}.amplitudes", a, len(x))
                return [f"{k} (1 - cos({w}))" for k, w in zip(sizes, self._about(path, c, x), strict=True) if k != "0"]
            case potential.Quadratic(stiffness=k, centre=c):
                sizes = self.numbers(f"{path}.stiffness", k, len(x))
                places = self._about(path, c, x)
                return [f"½ {k} {_bracketed(w)}²" for k, w in zip(sizes, places, strict=True) if k != "0"]
            case potential.Quartic(stiffness=h, straight=k, centre=c):
                places = [_bracketed(w) for w in self._about(path, c, x)]
                hard, straight = (
                    self.numbers(f"{path}.{n}", v, len(x)) for n, v in (("stiffness", h), ("straight", k))
                )
                terms = [f"½ {k} {w}²" for k, w in zip(straight, places, strict=True) if k != "0"]
                return [*terms, *(f"¼ {h} {w}⁴" for h, w in zip(hard, places, strict=True) if h != "0")]
            case potential.ConstantForce(force=f):
                sizes = self.numbers(f"{path}.force", f, len(x))
                return [f"{_opposite(k)} {_bracketed(w)}" for k, w in zip(sizes, x, strict=True)]
            case potential.PairPower(strengths=s, power=power):
                points = [f"{i + 1}{j + 1}" for i in range(len(x) // 2) for j in range(i + 1, len(x) // 2)]
                sizes = self.numbers(f"{path}.strengths", s, len(points))
                return [f"{k} / r_{p}^{power}" for k, p in zip(sizes, points, strict=True)]
        return [f"{type(part).__name__}({', '.join(x)})"]

    def _about(self, path: str, centre, x: list[str]) -> list[str]:
        places = self.numbers(f"{path}.centre", centre, len(x))
        return [w if c == "0" else f"{w} - {c}" for w, c in zip(x, places, strict=True)]

    def kinetic(self, part: mass.AbstractMass, x: list[str]) -> list[str]:
        """The terms of T, of the entries of M; each ± is that of a diagonal entry."""
        names, n = [f"{name}'" for name in x], len(x)
        match part:
            case mass.ConstantMass(masses=m):
                return [f"½ {k} {w}²" for k, w in zip(self.numbers("mass.masses", m, n), names, strict=True)]
            case mass.UnequalMass(first=first, others=others):
                sizes = [*self.numbers("mass.first", first, 1), *self.numbers("mass.others", others, n - 1)]
                return [f"½ {k} {w}²" for k, w in zip(sizes, names, strict=True)]
            case mass.RelativeMass(inner=inner):
                absolute = [" + ".join(x[: i + 1]) for i in range(n)]
                return self._links(
                    inner, absolute, [_bracketed(" + ".join(names[: i + 1])) for i in range(n)], ".inner"
                )
            case mass.LinkageMass():
                return self._links(part, x, names, "")
        return [f"½ q'ᵀ {type(part).__name__}(q) q'"]

    def _links(self, part: mass.AbstractMass, x: list[str], names: list[str], inner: str) -> list[str]:
        if not isinstance(part, mass.LinkageMass):
            return [f"½ q'ᵀ {type(part).__name__}(q) q'"]
        n = len(x)
        sizes = self.numbers(f"mass{inner}.first", part.first, 1) + self.numbers(
            f"mass{inner}.others", part.others, n - 1
        )
        own = [f"½ {k} {w}²" for k, w in zip(sizes, names, strict=True)]
        entries = np.asarray(part.operator(jax.numpy.zeros(n)).dense())
        turned = [w if turns else "0" for w, turns in zip(x, part.turning, strict=True)]
        for i in range(n):
            for j in range(i + 1, n):
                angle = " - ".join(w for w in (_bracketed(turned[j]), _bracketed(turned[i])) if w != "0") or "0"
                own.append(f"{figure(float(entries[i, j]))} cos({angle}) {names[i]} {names[j]}")
        return own

    # --- friction ----------------------------------------------------------------------------------------------------

    def friction(self, path: str, part: damping.AbstractDamping, x: list[str]) -> list[tuple[str, list[str]]]:
        """(speed, terms of the force against it)."""
        match part:
            case damping.SumDamping(parts=parts):
                return [f for i, each in enumerate(parts) for f in self.friction(f"{path}[{i}]", each, x)]
            case damping.ConstantDamping(coefficients=b):
                pairs = zip(self.numbers(f"{path}.coefficients", b, len(x)), x, strict=True)
                return [(f"{w}'", [f"{k} {w}'"]) for k, w in pairs if k != "0"]
            case damping.Friction():
                return self._joints(path, part, x)
            case damping.FacingDamping(gain=g, place=place, angle=angle):
                (size,) = self.numbers(f"{path}.gain", g, 1)
                return [(f"{x[place]}'", [f"{size} |sin({x[angle]})| {x[place]}'"])]
        return [("q'", [f"{type(part).__name__}(q) q'"])]

    def _joints(self, path: str, part: damping.Friction, x: list[str]) -> list[tuple[str, list[str]]]:
        rows = np.eye(len(x)).tolist() if part.joints is None else part.joints
        speeds = [_combined(row, [f"{w}'" for w in x]) for row in rows]
        forms = {"viscous": "{k} {w}", "coulomb": "{k} sign({w})", "quadratic": "{k} |{w}| {w}"}
        sizes = {name: self.numbers(f"{path}.{name}", getattr(part, name), len(speeds)) for name in forms}
        return [
            (
                w,
                [
                    form.format(k=sizes[name][i], w=_bracketed(w))
                    for name, form in forms.items()
                    if sizes[name][i] != "0"
                ],
            )
            for i, w in enumerate(speeds)
        ]


def _combined(row: Sequence[float], x: list[str]) -> str:
    """``x1 - x2``."""
    terms = [
        ("- " if k < 0 else "+ ") + ("" if abs(k) == 1.0 else f"{figure(abs(k))} ") + w
        for k, w in zip(row, x, strict=True)
        if k != 0.0
    ]
    return " ".join(terms).removeprefix("+ ")


def _opposite(number: str) -> str:
    return number.removeprefix("-") if number.startswith("-") else f"-{number}"


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text else text


def _sum(terms: Sequence[str]) -> str:
    return " + ".join(terms).replace("+ -", "- ") if terms else "0"


_GREEK = "alpha|beta|gamma|delta|theta|phi|psi|omega|rho|sigma|tau"


def _in_latex(line: str) -> str:
    line = (
        line.replace(" = ", " &= ", 1).replace("±", r"\pm").replace("½", r"\tfrac{1}{2}").replace("¼", r"\tfrac{1}{4}")
    )
    line = line.replace("²", "^2").replace("⁴", "^4").replace("ᵀ", r"^\top")
    line = re.sub(r"(\d)e([+-]?\d+)", r"\1 \\cdot 10^{\2}", line)
    line = re.sub(r"\b([A-Za-z]+?)_?(\d*)'", r"\\dot{\1}_{\2}", line)
    line = re.sub(r"(?<![\\_{A-Za-z])([A-Za-z]+?)_?(\d+)\b", r"\1_{\2}", line).replace("_{}", "")
    line = re.sub(r"\b(sign)\(", r"\\operatorname{sign}(", line)
    line = re.sub(r"(?<!\\)\b(cos|sin)\(", r"\\\1(", line)
    return re.sub(rf"(?<![\\A-Za-z])({_GREEK})(?![A-Za-z])", r"\\\1", line)
