"""Physics from words: which potential, mass, friction and port to look for, as a command line or a notebook says it.

    potential   cosine · quadratic · chain · cosine:9.81 · cosine+quadratic
    mass        1.0 · 1.0,0.5 · learned · links · joints
    friction    viscous · coulomb · quadratic · free · none, joined by +
    port        identity · learned · 1,0;0,1

Motion alone tells potential, mass and friction only up to a common factor. One anchor fixes it: known forces (inputs
with a given port) or an exact potential (regime KNOWN, a component without learned coefficients); else the mass, whose
first entry is one.

Every learned coefficient starts uninformed, in units that the motion itself gives: about where, how far, how fast, how
sharply it turns. So a charge of 10⁻⁶ C, a temperature of 300 K and an encoder whose zero is on top are as easy to learn
as an angle.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from phast.components.damping import AbstractDamping, ConstantDamping, Friction, SumDamping
from phast.components.mass import AbstractMass, ConstantMass, JointedMass, LinkedMass
from phast.components.parameter import Bounded, Positive, Real, parameter_count
from phast.components.potential import AbstractPotential, ChainCosine, Cosine, Quadratic, Scaled, Some, Sum, gradient
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.derivatives import choose_smoother, differentiate, evenly, noise_scale
from phast.fitting.free_fields import free_damping, free_potential
from phast.fitting.second_order import check_motion, require_float64

REGIMES = ("known", "partial", "unknown")
MASSES = ("learned", "links", "joints")
FRICTIONS = ("viscous", "coulomb", "quadratic", "free", "none")
_LIGHT = 0.1  # friction is sought from a tenth of the force that moves things


class Scales(NamedTuple):
    """How large things are: typical position, velocity, acceleration and input, and the mass that anchors them."""

    position: float
    velocity: float
    acceleration: float
    input: float
    mass: float

    @classmethod
    def of(cls, data: Trajectories) -> "Scales":
        """From the positions, with a mass of one."""
        even = evenly(data)
        samples = differentiate(even, choose_smoother(even, noise_scale(even)))
        moved = (_typical(x - x.mean(axis=0)) for x in samples[:3])
        return cls(*moved, 1.0 if data.u is None else _typical(data.u.reshape(-1, data.u.shape[2])), 1.0)

    @property
    def force(self) -> float:
        return self.mass * self.acceleration

    @property
    def energy(self) -> float:
        return self.mass * self.velocity**2

    @property
    def damping(self) -> float:
        return _LIGHT * self.force / self.velocity


def _typical(x: Float[np.ndarray, "samples n"]) -> float:
    """Of coordinates in different units, the geometric mean."""
    each = np.sqrt(np.mean(x**2, axis=0))
    each = each[each > 0.0]
    return float(np.exp(np.mean(np.log(each)))) if len(each) else 1.0


class Wanted(NamedTuple):
    """What to look for, in words; components of one's own may stand in their place. None is the regime's own choice."""

    potential: str | AbstractPotential | None = None
    mass: str | AbstractMass = "1.0"
    friction: str | AbstractDamping | None = None
    port: str | tuple | None = None


def compose(regime: str, wanted: Wanted, data: Trajectories, *, pairs: bool = False) -> PortHamiltonian:
    """The system to be fitted: KNOWN has what is named and nothing else, PARTIAL a free potential beside the template,
    UNKNOWN no template. Friction is free to vary with the position in the last two unless it is named."""
    if regime not in REGIMES:
        raise InputError(f"unknown regime '{regime}': choose known, partial or unknown")
    require_float64()
    check_motion(data)
    rows, scales = _rows(wanted.port, data), Scales.of(data)
    mass = wanted.mass
    if not isinstance(mass, AbstractMass):
        mass = _mass(mass, data, _unit_of_mass(regime, wanted.potential, rows, data, scales))
    scales = scales._replace(mass=_level(mass, data))
    port = _unknown_port(data, scales) if rows == "learned" else rows
    template = _template(regime, wanted.potential, data, scales)
    free = () if regime == "known" else free_potential(data, pairs, unit=scales.energy)
    parts = (*template, *free)
    friction = wanted.friction
    if not isinstance(friction, AbstractDamping):
        friction = _friction(_default(friction, regime), data, scales, mass)
    return PortHamiltonian(parts[0] if len(parts) == 1 else Sum(parts), mass, friction, port)


def _level(mass: AbstractMass, data: Trajectories) -> float:
    return float(jnp.mean(mass.operator(jnp.asarray(data.q[0, 0])).diagonal_part()))


def _default(friction: str | None, regime: str) -> str:
    if friction is None and regime == "known":
        raise InputError(f"regime 'known' needs a damping law: name its terms, of {', '.join(FRICTIONS)}, joined by +")
    return friction or "free"


# --- potentials ------------------------------------------------------------------------------------------------------


def _template(regime: str, wanted, data: Trajectories, scales: Scales) -> tuple[AbstractPotential, ...]:
    if regime == "unknown":
        if wanted is not None:
            raise InputError("regime 'unknown' has no template: leave the potential out, or choose 'partial'")
        return ()
    if wanted is None:
        raise InputError(f"regime '{regime}' needs potential=…, e.g. cosine, quadratic, or Cosine(9.81)")
    if isinstance(wanted, AbstractPotential):
        return (wanted,)
    return tuple(_potential(word.strip(), data, scales) for word in wanted.split("+"))


def _potential(text: str, data: Trajectories, scales: Scales) -> AbstractPotential:
    kind, _, strength = text.partition(":")
    manifold = data.manifold
    angles = tuple(i for i, circle in enumerate(manifold.circles) if circle)
    lines = tuple(i for i, circle in enumerate(manifold.circles) if not circle)
    if kind == "cosine":
        build, where, unit = Cosine, angles, scales.force
    elif kind == "chain":
        build, where, unit = ChainCosine, angles, scales.force
    elif kind == "quadratic":
        build, where, unit = Quadratic, lines or angles, scales.force / scales.position
    else:
        raise InputError(f"unknown potential '{text}': choose cosine, quadratic or chain, or a strength, 'cosine:9.8'")
    if not where:
        raise InputError(f"potential '{kind}' is of angles: declare them, e.g. '{manifold.names[0]}:angle'")
    found = _of_strength(build, strength, text) if strength else _uninformed(build, data, where, unit, scales)
    return found if len(where) == manifold.size else Some(found, where)


def _uninformed(
    build: Callable, data: Trajectories, where: tuple[int, ...], unit: float, scales: Scales
) -> AbstractPotential:
    """Strengths and centres to be found, the latter from the middle of the motion."""
    q, circles = data.q[..., list(where)], np.asarray(data.manifold.circles)[list(where)]
    centre = _middle(np.cumsum(q, axis=2) if build is ChainCosine else q, circles)
    scale = 1.0 if circles.all() else scales.position
    return build(Positive.uninformed(len(where), unit=unit), Real.starting_at(centre, unit=scale))


def _middle(q: Float[np.ndarray, "N T k"], circles: np.ndarray) -> Float[np.ndarray, " k"]:
    """The mean position; of angles, the direction of the mean of their arrows."""
    return np.where(circles, np.angle(np.mean(np.exp(1j * q), axis=(0, 1))), np.mean(q, axis=(0, 1)))


def template(text: str) -> AbstractPotential:
    """A template of one strength, for coordinates of any number: ``cosine:9.81``; 1 where none is given."""
    kinds = {"cosine": Cosine, "quadratic": Quadratic}
    kind, _, strength = text.partition(":")
    if kind not in kinds:
        raise InputError(f"potential '{text}': give cosine:STRENGTH or quadratic:STRENGTH")
    return _of_strength(kinds[kind], strength or "1.0", text)


def _of_strength(build: Callable, strength: str, text: str) -> AbstractPotential:
    """A template of this strength, up to a factor to be found."""
    strengths = _numbers(strength, f"potential '{text}'")
    if len(strengths) > 1 or strengths[0] <= 0.0:
        raise InputError(f"potential '{text}': give one strength, a positive number")
    return Scaled(build(*strengths), Positive.starting_at(1.0))


# --- masses ----------------------------------------------------------------------------------------------------------


def _unit_of_mass(regime: str, potential: Any, rows: Any, data: Trajectories, scales: Scales) -> float | None:
    """The mass that the forces of the anchor ask for; None without an anchor but the mass itself."""
    if data.u is not None and rows != "learned":
        return scales.input / scales.acceleration
    if regime == "known" and isinstance(potential, AbstractPotential) and parameter_count(potential) == 0:
        forces = np.asarray(jax.vmap(lambda q: gradient(potential, q))(jnp.asarray(np.concatenate(data.q))))
        return _typical(forces) / scales.acceleration if forces.any() else None
    return None


def _mass(text: str, data: Trajectories, unit: float | None) -> AbstractMass:
    """Without another anchor (``unit`` is None) the scale of M is open: its first entry is then one."""
    n = data.manifold.size
    if text not in MASSES:
        given = _numbers(text, f"mass '{text}' (a number, one for each coordinate, or {', '.join(MASSES)})")
        if len(given) not in (1, n) or min(given) <= 0.0:
            raise InputError(f"mass '{text}': give one positive number, or {n}, or choose {', '.join(MASSES)}")
        return ConstantMass(given[0] if len(given) == 1 else given)
    if text == "learned":
        if unit is None:
            raise InputError(
                "a mass can be learned only from known forces: give inputs and their port, or a potential with its "
                "numbers (regime 'known'), or the mass"
            )
        return ConstantMass(Positive.uninformed(n, unit=unit))
    if n != 2 or not all(data.manifold.circles):
        raise InputError(f"mass '{text}' is that of two links: declare two angles")
    build = LinkedMass if text == "links" else JointedMass
    first = 1.0 if unit is None else Positive.uninformed(unit=unit)
    return build(first, Positive.uninformed(unit=unit or 1.0), Bounded.uninformed())


# --- friction --------------------------------------------------------------------------------------------------------


def _friction(text: str, data: Trajectories, scales: Scales, mass: AbstractMass) -> AbstractDamping:
    terms = [word.strip() for word in text.split("+")]
    unknown = [word for word in terms if word not in FRICTIONS]
    if unknown or (len(terms) > 1 and "none" in terms):
        raise InputError(f"unknown friction '{text}': choose of {', '.join(FRICTIONS)}, joined by +")
    if terms == ["none"]:
        return ConstantDamping(0.0)
    parts = (free_damping(data, unit=scales.damping),) if "free" in terms else ()
    if set(terms) != {"free"}:
        parts = (*parts, _law(terms, data.manifold.size, scales, isinstance(mass, LinkedMass)))
    return parts[0] if len(parts) == 1 else SumDamping(parts)


def _law(terms: list[str], n: int, scales: Scales, links: bool) -> Friction:
    """Viscous, Coulomb and quadratic terms, at the joints where coordinates are absolute angles of links."""
    units = {
        "viscous": scales.damping,
        "coulomb": scales.damping * scales.velocity,
        "quadratic": scales.damping / scales.velocity,
    }
    found = {name: Positive.uninformed(n, unit=units[name]) if name in terms else 0.0 for name in units}
    return Friction(**found, smoothing=0.02 * scales.velocity, joints=((1.0, 0.0), (-1.0, 1.0)) if links else None)


# --- ports -----------------------------------------------------------------------------------------------------------


def _rows(wanted: Any, data: Trajectories) -> tuple | str | None:
    """G: None for one input per coordinate, numbers where it is given, "learned" where it is to be found."""
    if data.u is None:
        if wanted is not None:
            raise InputError("a port needs inputs: name their columns")
        return None
    n, m = data.manifold.size, data.u.shape[2]
    if wanted is None or (isinstance(wanted, str) and wanted == "identity"):
        if n != m:
            raise InputError(f"{m} input(s), {n} coordinate(s): give the port as {n} rows of {m} numbers, or 'learned'")
        return None
    if isinstance(wanted, str) and wanted == "learned":
        return "learned"
    rows = [_numbers(row, f"port '{wanted}'") for row in wanted.split(";")] if isinstance(wanted, str) else wanted
    try:
        rows = np.asarray(rows, dtype=float)
    except (TypeError, ValueError):  # ragged, or words
        rows = np.zeros(0)
    if rows.shape != (n, m) or not np.isfinite(rows).all():
        raise InputError(f"port {wanted}: give {n} row(s) of {m} number(s), e.g. '1,0;0,1', or 'learned'")
    return tuple(map(tuple, rows.tolist()))


def _unknown_port(data: Trajectories, scales: Scales) -> Real:
    shape = data.manifold.size, data.u.shape[2]
    return Real.starting_at(np.zeros(shape), unit=scales.force / scales.input)


def _numbers(text: str, what: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{what}: '{text}' is not a number") from None
    if not np.isfinite(values).all():
        raise InputError(f"{what}: '{text}' is not a finite number")
    return values
