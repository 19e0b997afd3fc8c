"""Units of coefficients: each has a dimension, which the units of the positions and the anchor of the scale turn into
text.

A dimension is the powers of mass, length and time. Without a known force the mass is a number, so that powers of it
are left out; with one it is u s²/length, so that a force is counted in the unit u of the inputs.

Coefficients are those of the computation (angles in radians, in which the formulas hold); what is seen along a
recording is in the units of its file.
"""

from typing import NamedTuple

import jax

from phast.components import damping, mass, potential
from phast.data.units import Units
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.fitting.coefficients import names_of, trained_leaves


class Dimension(NamedTuple):
    """Powers of mass, length and time."""

    mass: int
    length: int
    time: int


ENERGY, FORCE, STIFFNESS = Dimension(1, 2, -2), Dimension(1, 1, -2), Dimension(1, 0, -2)
MASS, LENGTH, NUMBER = Dimension(1, 0, 0), Dimension(0, 1, 0), Dimension(0, 0, 0)
VISCOUS, QUADRATIC = Dimension(1, 0, -1), Dimension(1, -1, 0)
QUARTIC = Dimension(1, -2, -2)

_OF_FIELDS: dict[type, dict[str, Dimension]] = {
    potential.Cosine: {"amplitudes": ENERGY, "centre": LENGTH},
    potential.ChainCosine: {"amplitudes": ENERGY, "centre": LENGTH},
    potential.Quadratic: {"stiffness": STIFFNESS, "centre": LENGTH},
    potential.Quartic: {"stiffness": QUARTIC, "straight": STIFFNESS, "centre": LENGTH},
    potential.ConstantForce: {"force": FORCE},
    potential.LennardJones: {"depth": ENERGY, "diameter": LENGTH},
    potential.Gravity: {"masses": MASS},
    potential.Scaled: {"scale": NUMBER},
    mass.ConstantMass: {"masses": MASS},
    mass.LinkedMass: {"first": MASS, "second": MASS, "coupling": NUMBER, "offset": LENGTH},
    mass.JointedMass: {"first": MASS, "second": MASS, "coupling": NUMBER, "rotors": MASS, "offset": LENGTH},
    mass.UnequalMass: {"first": MASS, "others": MASS},
    mass.LinkageMass: {"first": MASS, "others": MASS, "couplings": NUMBER},
    mass.GearedMass: {"rotors": MASS},
    damping.ConstantDamping: {"coefficients": VISCOUS},
    damping.WindyDamping: {"base": VISCOUS, "gain": VISCOUS},
    damping.Friction: {"viscous": VISCOUS, "coulomb": FORCE, "quadratic": QUADRATIC},
    damping.FacingDamping: {"gain": VISCOUS},
    damping.Stiction: {"limit": FORCE},
    PortHamiltonian: {"port": FORCE},
}


def coefficient_units(system: AbstractEnergetic, units: Units) -> list[str]:
    """The unit of every coefficient that is listed: of all trainable numbers but those of fields."""
    kinds = (kind for _, kind in names_of(system))
    return [text for text, kind in zip(unit_texts(system, units), kinds, strict=True) if kind != "field"]


def unit_texts(system: AbstractEnergetic, units: Units) -> list[str]:
    """The unit of every trainable number, in the order of :func:`~phast.fitting.coefficients.names_of`."""
    lengths = set(Units.computed(units.manifold).names if any(units.manifold.circles) else units.names)
    length = lengths.pop() or "[q]" if len(lengths) == 1 else "[q]"
    driven, texts = _is_driven(system, units), []
    for path, leaf in trained_leaves(system):
        size = sum(x.size for x in jax.tree.leaves(leaf))
        texts += [_text(_dimension(system, path), length, driven)] * size
    return texts


def _is_driven(system: AbstractEnergetic, units: Units) -> bool:
    """Whether known forces say what a unit of mass is."""
    return bool(system.input_count(units.manifold.size)) and isinstance(getattr(system, "port", None), tuple)


# --- along a recording -----------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """How many of the file's units make one of the computation's, and what they are called."""

    factor: float
    unit: str

    def heading(self, text: str) -> str:
        """For axes and columns: ``"energy [deg²/s²]"``."""
        return f"{text} [{self.unit}]" if self.unit else text


def force_scales(system: AbstractEnergetic, units: Units) -> list[Scale]:
    """Of the force on each coordinate: that of the inputs where these are known, else that of an acceleration."""
    if _is_driven(system, units):
        return [Scale(1.0, "u")] * units.manifold.size
    return [Scale(factor, _text(FORCE, name, False)) for factor, name in _each(units)]


def damping_scales(system: AbstractEnergetic, units: Units) -> list[Scale]:
    """Of force over velocity, of each coordinate."""
    if _is_driven(system, units):
        return [Scale(1.0 / factor, _text(VISCOUS, name, True)) for factor, name in _each(units)]
    return [Scale(1.0, _text(VISCOUS, name, False)) for _, name in _each(units)]


def energy_scale(system: AbstractEnergetic, units: Units) -> Scale:
    """Of energies: work of the inputs where these are known (of a torque, per radian), else a speed squared.

    Coordinates that are counted differently have no common unit: their energy is that of the computation.
    """
    driven, alike = _is_driven(system, units), len(set(units.names)) == 1
    if driven or not alike:
        computed = set(Units.computed(units.manifold).names if any(units.manifold.circles) else units.names)
        return Scale(1.0, _text(ENERGY, (computed.pop() or "q") if len(computed) == 1 else "q", driven))
    ((factor, name), *_) = _each(units)
    return Scale(factor**2, _text(ENERGY, name, False))


def _each(units: Units) -> list[tuple[float, str]]:
    return [(float(factor), name or "q") for factor, name in zip(units.factors, units.names, strict=True)]


# --- dimensions as text ----------------------------------------------------------------------------------------------


def _dimension(node: object, path: tuple) -> Dimension | None:
    """That of the innermost field on the way to a leaf that has one."""
    found = None
    for key in path:
        name = getattr(key, "name", None)
        found = _OF_FIELDS.get(type(node), {}).get(name, found)
        node = getattr(node, name) if name is not None else node[key.idx]
    return found


def _text(dimension: Dimension | None, length: str, driven: bool) -> str:
    if dimension is None:
        return ""
    powers = {"u": dimension.mass, length: dimension.length - dimension.mass, "s": dimension.time + 2 * dimension.mass}
    if not driven:
        powers = {length: dimension.length, "s": dimension.time}
    above = "·".join(_power(unit, k) for unit, k in powers.items() if k > 0)
    below = "·".join(_power(unit, -k) for unit, k in powers.items() if k < 0)
    return f"{above or '1'}/{below}" if below else above


_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(unit: str, k: int) -> str:
    return unit if k == 1 else unit + str(k).translate(_SUPERSCRIPTS)
