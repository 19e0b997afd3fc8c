"""A selection of terms as a system of ordinary components, and which term each of its trained numbers belongs to."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from phast.components.damping import AbstractDamping, ConstantDamping, FacingDamping, Friction, SumDamping
from phast.components.mass import AbstractMass, ConstantMass, LinkageMass, RelativeMass, UnequalMass
from phast.components.parameter import Bounded, Positive, Real
from phast.components.potential import (
    AbstractPotential,
    Along,
    ConstantForce,
    Cosine,
    PairPower,
    Quadratic,
    Quartic,
    Some,
    Sum,
)
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.fitting.library import DISSIPATIVE, SOFTENING, Candidate, Row
from phast.fitting.selection import Selection

Owned = tuple[Candidate | None, ...]


class Law(NamedTuple):
    """A system, and for every trained number the term that is gone without it; None for those of the mass."""

    system: PortHamiltonian
    owners: Owned


def law_of(selection: Selection, n: int, smoothing: float, port: tuple | None) -> Law:
    """The selected terms as components that start at the selected coefficients."""
    found = dict(zip(selection.kept, selection.coefficients.tolist(), strict=True))
    potential, of_potential = _potential(found, n)
    mass, count = mass_of(selection, n)
    damping, of_damping = _damping(found, n, smoothing)
    owners = (*of_potential, *[None] * count, *of_damping)
    return Law(PortHamiltonian(potential, mass, damping, port), owners)


# --- potential -------------------------------------------------------------------------------------------------------


def _potential(found: dict[Candidate, float], n: int) -> tuple[AbstractPotential, Owned]:
    parts, owners = [], ()
    rows = dict.fromkeys(term.row for term in found if term.kind not in ("pair", *DISSIPATIVE))
    for row in rows:
        here = {term.kind: term for term in found if term.row == row}
        for build in (_swing, _spring):
            part, own = build(here, found)
            parts += [_placed(part, row, n)] if part is not None else []
            owners += own
    for power in sorted({term.power for term in found if term.kind == "pair"}):
        part, own = _pairs(found, power, n)
        parts.append(part)
        owners += own
    if not parts:
        return Quadratic(0.0), ()
    return parts[0] if len(parts) == 1 else Sum(tuple(parts)), owners


def _swing(here: dict[str, Candidate], found: dict[Candidate, float]) -> tuple[AbstractPotential | None, Owned]:
    """a (1 - cos(x - c)) from a cosine and a sine: c is given, 0, π or ±π/2, where only one of them is there."""
    cosine, sine = here.get("cosine"), here.get("sine")
    if cosine is None and sine is None:
        return None, ()
    a, b = (0.0 if term is None else found[term] for term in (cosine, sine))
    size, centre = _positive(float(np.hypot(a, b))), float(np.arctan2(b, a))
    if cosine is None or sine is None:
        return Cosine(size, centre), (cosine or sine,)
    return Cosine(size, Real.starting_at([centre])), (cosine, sine)


def _spring(here: dict[str, Candidate], found: dict[Candidate, float]) -> tuple[AbstractPotential | None, Owned]:
    """½ k (x - c)² + ¼ κ x⁴ - f x; a straight spring takes the force into its centre."""
    straight, hard, force = (here.get(kind) for kind in ("quadratic", "quartic", "constant"))
    k, f = (0.0 if term is None else found[term] for term in (straight, force))
    if hard is not None:
        kappa, stiffness = _real(found[hard]), 0.0 if straight is None else _real(k)
        part, owners = Quartic(kappa, stiffness), (hard, *([straight] if straight else []))
        return (part, owners) if force is None else (Sum((part, ConstantForce(_real(f)))), (*owners, force))
    if straight is None:
        return (None, ()) if force is None else (ConstantForce(_real(f)), (force,))
    if k > 0.0:
        return (
            (Quadratic(_positive(k)), (straight,))
            if force is None
            else (Quadratic(_positive(k), _real(f / k)), (straight, force))
        )
    part = Quartic(0.0, _real(k))
    return (part, (straight,)) if force is None else (Sum((part, ConstantForce(_real(f)))), (straight, force))


def _pairs(found: dict[Candidate, float], power: int, n: int) -> tuple[AbstractPotential, Owned]:
    """Of one power of the distance: every pair of points has a strength, learned together."""
    strengths, owners = [], []
    points = n // 2
    for i in range(points):
        for j in range(i + 1, points):
            term = Candidate(
                "pair", tuple(1.0 if k // 2 == i else -1.0 if k // 2 == j else 0.0 for k in range(n)), power=power
            )
            strengths.append(found.get(term, 0.0))
            owners.append(term)
    unit = float(np.max(np.abs(strengths)))
    return PairPower(Real.starting_at(strengths, unit=unit), power, SOFTENING), tuple(owners)


def _placed(part: AbstractPotential, row: Row, n: int) -> AbstractPotential:
    if n == 1:
        return part
    places = np.flatnonzero(row)
    return Some(part, (int(places[0]),)) if len(places) == 1 and row[places[0]] == 1.0 else Along(part, (row,))


def _positive(value: float) -> Positive:
    value = max(abs(value), _SMALLEST)
    return Positive.starting_at(jnp.array([value]), unit=value)


def _real(value: float) -> Real:
    return Real.starting_at([value], unit=max(abs(value), _SMALLEST))


_SMALLEST = 1e-30


# --- mass and damping ------------------------------------------------------------------------------------------------


def mass_of(selection: Selection, n: int) -> tuple[AbstractMass, int]:
    """M of this family, and how many numbers of it are learned."""
    name, parts = selection.family.name, dict(zip(selection.family.parts, selection.mass.tolist(), strict=True))
    if name == "unit":
        return ConstantMass(1.0), 0
    diagonal = np.array([parts.get(("diagonal", i), 1.0) for i in range(n)])
    diagonal = np.maximum(diagonal, 1e-6 * np.max(np.abs(diagonal)))
    first = _scalar(diagonal[0]) if ("diagonal", 0) in parts else 1.0
    if n == 1:
        return ConstantMass(first), 1
    others = Positive.starting_at(jnp.asarray(diagonal[1:]), unit=float(np.exp(np.mean(np.log(diagonal[1:])))))
    count = n - 1 + isinstance(first, Positive)
    if name == "unequal":
        return UnequalMass(first, others), count
    matrix = np.diag(diagonal)
    for (_, i, j), value in ((key, value) for key, value in parts.items() if key[0] == "coupling"):
        matrix[i, j] = matrix[j, i] = value
    couplings = Bounded.starting_at(partial_correlations(matrix))
    mass = LinkageMass(first, others, couplings, selection.family.turning)
    return RelativeMass(mass) if name == "joints" else mass, count + n * (n - 1) // 2


def _scalar(value: float) -> Positive:
    return Positive.starting_at(float(value), unit=float(value))


def partial_correlations(matrix: np.ndarray) -> list[float]:
    """Those of the nearest matrix that is positive definite, row by row, as :class:`LinkageMass` takes them."""
    size = np.sqrt(np.diag(matrix))
    values, vectors = np.linalg.eigh(matrix / np.outer(size, size))
    matrix = (vectors * np.maximum(values, 1e-3)) @ vectors.T
    size = np.sqrt(np.diag(matrix))
    lower = np.linalg.cholesky(matrix / np.outer(size, size))
    found = []
    for i in range(1, len(lower)):
        left = 1.0
        for j in range(i):
            found.append(float(np.clip(lower[i, j] / np.sqrt(left), -0.99, 0.99)))
            left -= lower[i, j] ** 2
    return found


def _damping(found: dict[Candidate, float], n: int, smoothing: float) -> tuple[AbstractDamping, Owned]:
    parts, owners = [], ()
    rows = dict.fromkeys(term.row for term in found if term.kind in ("viscous", "coulomb", "drag"))
    for row in rows:
        here = [Candidate(kind, row) for kind in ("viscous", "coulomb", "drag")]
        terms = [_positive(found[term]) if term in found else 0.0 for term in here]
        parts.append(Friction(*terms, smoothing=smoothing, joints=None if n == 1 else (row,)))
        owners += tuple(term for term in here if term in found)
    for term in (term for term in found if term.kind == "facing"):
        parts.append(FacingDamping(_positive(found[term]), int(np.argmax(term.row)), term.where))
        owners += (term,)
    if not parts:
        return ConstantDamping(0.0), ()
    return parts[0] if len(parts) == 1 else SumDamping(tuple(parts)), owners
