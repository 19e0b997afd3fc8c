"""What to look for: potential, mass, damping and port, in words or as components.

    potential   cosine · quadratic · quartic · constant · coupled · chain · none, joined by +
    mass        1.0 · 1.0,0.5 · learned · links · joints · joints+rotors · cartpole
    damping     viscous · coulomb · quadratic · stiction · directional · coupled · free · none, joined by +
    port        identity · learned · 1,0;0,1

A word with brackets is of combinations of coordinates, ``quadratic(x1-x2)``, ``viscous(x1-x2)``; a strength may be
given, ``cosine:9.81``.

Positions alone determine potential, mass and damping only up to a common factor. One anchor fixes it: known forces
(inputs with a given port) or an exact potential (regime KNOWN, a component without learned coefficients); else the
mass, whose first entry is one.

Every learned coefficient starts uninformed, in units that the motion itself gives: about where, how far, how fast, how
sharply it turns. So a charge of 10⁻⁶ C, a temperature of 300 K and an encoder whose zero is on top are as easy to learn
as an angle.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from phast.components.damping import AbstractDamping
from phast.components.mass import (
    AbstractMass,
    ConstantMass,
    GearedMass,
    JointedMass,
    LinkageMass,
    LinkedMass,
    RelativeMass,
)
from phast.components.parameter import Bounded, Positive, Real, parameter_count
from phast.components.potential import AbstractPotential, Cosine, Quadratic, Sum, gradient
from phast.data.manifold import Manifold
from phast.data.trajectories import Numbers, Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError, counted
from phast.fitting.free_fields import free_potential
from phast.fitting.preprocess import Preprocessed, Scales, typical
from phast.fitting.terms import damping_of, of_strength, potential_of
from phast.fitting.words import (
    MASSES,
    check_dampings,
    check_mass,
    check_port,
    check_potentials,
    check_regime,
    masses_in,
    rows_in,
)

Regime = Literal["known", "partial", "unknown"]


@dataclasses.dataclass(frozen=True)
class Structure:
    """What to look for: each part a word, joined by ``+``, or a component of one's own.

    ``regime`` says how far the words go. KNOWN has what is named and nothing else; PARTIAL a free potential beside the
    template; UNKNOWN no template. Left out, it is PARTIAL where a potential is named and UNKNOWN elsewhere. In the last
    two the damping is free to vary with the position unless it is named. ``port`` is G, for data with inputs.
    ``pairs`` says that the coordinates are points in the plane, x1, y1, x2, y2, …, that act on each other in pairs: V
    is then a free function of every distance.
    """

    potential: str | AbstractPotential | None = None
    mass: str | float | AbstractMass = 1.0
    damping: str | AbstractDamping | None = None
    port: str | Numbers | None = None
    regime: Regime | None = None
    pairs: bool = False

    def __post_init__(self):
        for name, component in (("potential", AbstractPotential), ("damping", AbstractDamping)):
            if not isinstance(given := getattr(self, name), str | component | None):
                raise InputError(f"{name}={given!r}: give words, or a component")
        if isinstance(self.potential, str):
            check_potentials(self.potential)
        if isinstance(self.damping, str):
            check_dampings(self.damping)
        if not isinstance(self.mass, AbstractMass):
            check_mass(str(self.mass))
        if isinstance(self.port, str):
            check_port(self.port)
        elif self.port is not None:  # rows of any kind, as what can be compared
            object.__setattr__(self, "port", tuple(tuple(np.atleast_1d(row).tolist()) for row in self.port))
        if self.potential == "auto" and not (self.damping is self.regime is None and str(self.mass) in ("1.0", "1")):
            raise InputError("potential 'auto' finds the whole law: leave mass, damping and regime out")
        check_regime(self.regime, has_potential=self.potential is not None, has_damping=self.damping is not None)

    @property
    def is_open(self) -> bool:
        """Whether the law is to be found: nothing is named but, perhaps, a port."""
        nothing = self.potential is None and self.regime is None and not self.pairs
        return self.potential == "auto" or (nothing and self.damping is None and str(self.mass) in ("1.0", "1"))

    @property
    def inferred_regime(self) -> Regime:
        """The regime, or the one that follows from what is named."""
        return self.regime or ("unknown" if self.potential is None else "partial")

    def given(self, manifold: Manifold) -> tuple[AbstractPotential | None, AbstractMass, AbstractDamping | None]:
        """The parts that need no data to be composed: components, templates with a strength, masses with a value."""
        potential, mass, damping = self.potential, self.mass, self.damping
        if isinstance(potential, str):
            potential = _given_template(potential)
        if not isinstance(mass, AbstractMass):
            mass = _given_mass(str(mass), manifold.size)
        if isinstance(damping, str):
            raise InputError(
                f"damping '{damping}': words are fitted to second order; give a component, or leave it out"
            )
        return potential, mass, damping

    def words(self) -> dict[str, str]:
        """What was asked for, as text."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        told = {name: _spelled_out(value) for name, value in given.items() if not (value is None or value is False)}
        return told | {"regime": "found" if self.is_open else self.inferred_regime}


def _spelled_out(value: Any) -> str:
    return str(value) if isinstance(value, str | float | int | bool | tuple | list) else type(value).__name__


def compose(structure: Structure, preprocessed: Preprocessed) -> PortHamiltonian:
    """The system to be fitted, its coefficients uninformed and in units of the motion."""
    data, scales = preprocessed.data, preprocessed.scales
    rows = _rows(structure.port, data)
    mass = structure.mass
    if not isinstance(mass, AbstractMass):
        mass = _mass(str(mass), data, _unit_of_mass(structure, rows, data, scales))
    scales = scales._replace(mass=_level(mass, data))
    port = _unknown_port(data, scales) if rows == "learned" else rows
    template = _template(structure.potential, data, scales)
    bounded = structure.inferred_regime == "known" or structure.potential == "none"
    parts = template if bounded else (*template, *free_potential(data, structure.pairs, unit=scales.energy))
    damping = structure.damping
    if not isinstance(damping, AbstractDamping):
        damping = damping_of(damping or "free", data, scales, mass)
    return PortHamiltonian(parts[0] if len(parts) == 1 else Sum(parts), mass, damping, port)


def _level(mass: AbstractMass, data: Trajectories) -> float:
    return float(jnp.mean(mass.operator(jnp.asarray(data.q[0, 0])).diagonal_part()))


# --- potentials ------------------------------------------------------------------------------------------------------


def _template(
    wanted: str | AbstractPotential | None, data: Trajectories, scales: Scales
) -> tuple[AbstractPotential, ...]:
    if wanted is None:
        return ()
    return (wanted,) if isinstance(wanted, AbstractPotential) else potential_of(wanted, data, scales)


def _given_template(text: str) -> AbstractPotential:
    kind, _, strength = text.partition(":")
    if kind not in ("cosine", "quadratic") or not strength:
        raise InputError(f"potential '{text}': give cosine:STRENGTH or quadratic:STRENGTH, or a component")
    return of_strength(Cosine if kind == "cosine" else Quadratic, strength, kind)


# --- masses ----------------------------------------------------------------------------------------------------------


def _unit_of_mass(structure: Structure, rows: Any, data: Trajectories, scales: Scales) -> float | None:
    """The mass that the forces of the anchor ask for; None without an anchor but the mass itself."""
    if data.u is not None and rows != "learned":
        return scales.input / scales.acceleration
    potential = structure.potential
    exact = isinstance(potential, AbstractPotential) and parameter_count(potential) == 0
    if structure.inferred_regime == "known" and exact:
        forces = np.asarray(jax.vmap(lambda q: gradient(potential, q))(jnp.asarray(np.concatenate(data.q))))
        return typical(forces) / scales.acceleration if forces.any() else None
    return None


def _given_mass(text: str, n: int) -> ConstantMass:
    given = masses_in(text)
    if len(given) not in (1, n):
        raise InputError(f"mass '{text}': give one positive number, or {n}, or choose {', '.join(MASSES)}")
    return ConstantMass(given[0] if len(given) == 1 else given)


def _mass(text: str, data: Trajectories, unit: float | None) -> AbstractMass:
    """Without another anchor (``unit`` is None) the scale of M is open: its first entry is then one."""
    n = data.manifold.size
    if text.replace(" ", "") not in MASSES:
        return _given_mass(text, n)
    if text == "learned":
        if unit is None:
            raise InputError(
                "a mass can be learned only from known forces: give inputs and their port, or a potential with its "
                "numbers (regime 'known'), or the mass"
            )
        return ConstantMass(Positive.uninformed(n, unit=unit))
    word, circles = text.replace(" ", ""), data.manifold.circles
    turning = sum(circles)
    if word == "cartpole" and not (turning and n - turning == 1):
        raise InputError("mass 'cartpole' is that of poles on a cart: declare one line, and an angle for each pole")
    if word != "cartpole" and not (n > 1 and turning == n):
        raise InputError(f"mass '{word}' is that of two links or more: declare an angle for each")
    return _links(word, n, circles, 1.0 if unit is None else Positive.uninformed(unit=unit), unit or 1.0)


def _links(
    word: str, n: int, turning: tuple[bool, ...], first: float | Positive, unit: float
) -> LinkedMass | JointedMass | LinkageMass | RelativeMass | GearedMass:
    """Links in absolute or in joint angles, or on a cart, and the rotors that turn all but the first."""
    if n == 2 and word != "cartpole":
        build = LinkedMass if word == "links" else JointedMass
        mass = build(first, Positive.uninformed(unit=unit), Bounded.uninformed())
    else:
        mass = LinkageMass(first, Positive.uninformed(n - 1, unit=unit), Bounded.uninformed(n * (n - 1) // 2), turning)
        mass = RelativeMass(mass) if word.startswith("joints") else mass
    return GearedMass(mass, Positive.uninformed(n - 1, unit=unit), tuple(range(1, n))) if "rotors" in word else mass


# --- ports -----------------------------------------------------------------------------------------------------------


def port_rows(wanted: Any, data: Trajectories) -> tuple | None:
    """G where it is known, as a search for the law needs it."""
    rows = _rows(wanted, data)
    if isinstance(rows, str):
        raise InputError("a search for the law needs a port that is known: give its rows, or name a potential")
    return rows


def _rows(wanted: Any, data: Trajectories) -> tuple | str | None:
    """G: None for one input per coordinate, numbers where it is given, "learned" where it is to be found."""
    if data.u is None:
        if wanted is not None:
            raise InputError("a port needs inputs: name their columns")
        return None
    n, m = data.manifold.size, data.u.shape[2]
    if wanted is None or (isinstance(wanted, str) and wanted == "identity"):
        if n != m:
            raise InputError(
                f"{counted(m, 'input')}, {counted(n, 'coordinate')}: give the port as {counted(n, 'row')} of "
                f"{counted(m, 'number')}, or 'learned'"
            )
        return None
    if isinstance(wanted, str) and wanted == "learned":
        return "learned"
    rows = rows_in(wanted) if isinstance(wanted, str) else wanted
    try:
        rows = np.asarray(rows, dtype=float)
    except (TypeError, ValueError):  # ragged, or words
        rows = np.zeros(0)
    if rows.shape != (n, m) or not np.isfinite(rows).all():
        raise InputError(
            f"port {wanted}: give {counted(n, 'row')} of {counted(m, 'number')}, e.g. '1,0;0,1', or 'learned'"
        )
    return tuple(map(tuple, rows.tolist()))


def _unknown_port(data: Trajectories, scales: Scales) -> Real:
    shape = data.manifold.size, data.u.shape[2]
    return Real.starting_at(np.zeros(shape), unit=scales.force / scales.input)
