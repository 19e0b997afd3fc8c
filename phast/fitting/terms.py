"""Potentials and dampings from their words, every coefficient uninformed and in units of the motion.

A word stands for all coordinates that it suits, or, with brackets, for combinations of them, ``quadratic(x1-x2)``.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from phast.components.damping import (
    AbstractDamping,
    ConstantDamping,
    DirectionalFriction,
    Friction,
    Stiction,
    SumDamping,
)
from phast.components.mass import AbstractMass, LinkageMass, LinkedMass
from phast.components.parameter import Positive, Real
from phast.components.potential import (
    AbstractPotential,
    Along,
    ChainCosine,
    ConstantForce,
    Cosine,
    Quadratic,
    Quartic,
    Scaled,
    Some,
)
from phast.data.trajectories import Trajectories
from phast.errors import InputError
from phast.fitting.free_fields import free_damping
from phast.fitting.preprocess import Scales
from phast.fitting.words import Term, check_dampings, check_potentials, combinations_in, strength_in

Rows = tuple[tuple[float, ...], ...]


class Combinations(NamedTuple):
    """Where a term acts: rows over the coordinates, what they are in the data, and which are angles."""

    rows: Rows
    motion: Float[np.ndarray, "N T m"]
    circles: Float[np.ndarray, " m"] | np.ndarray

    @classmethod
    def of(cls, rows: Rows, data: Trajectories) -> "Combinations":
        angles = np.asarray(data.manifold.circles)
        circles = np.array([all(angles[np.flatnonzero(row)]) for row in rows])
        return cls(rows, data.q @ np.asarray(rows).T, circles)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def unit(self) -> float:
        """One, of angles; of others how far they move."""
        if self.circles.all():
            return 1.0
        spread = np.std(self.motion, axis=(0, 1))
        return float(np.exp(np.mean(np.log(spread[spread > 0.0])))) if (spread > 0.0).any() else 1.0

    @property
    def middle(self) -> Float[np.ndarray, " m"]:
        """The mean position; of angles, the direction of the mean of their arrows."""
        arrows = np.angle(np.mean(np.exp(1j * self.motion), axis=(0, 1)))
        return np.where(self.circles, arrows, np.mean(self.motion, axis=(0, 1)))

    def placed(self, template: AbstractPotential, n: int) -> AbstractPotential:
        """A template of what is here, as one of all coordinates."""
        if self.rows == _every(n):
            return template
        own = [np.flatnonzero(row) for row in self.rows]
        if all(len(k) == 1 and row[k[0]] == 1.0 for k, row in zip(own, self.rows, strict=True)):
            return Some(template, tuple(int(k[0]) for k in own))
        return Along(template, self.rows)


def _every(n: int) -> Rows:
    return tuple(map(tuple, np.eye(n).tolist()))


def pairs_of(n: int) -> Rows:
    """q_i - q_j for every i < j."""
    eye = np.eye(n)
    return tuple(tuple((eye[i] - eye[j]).tolist()) for i, j in combinations(range(n), 2))


# --- potentials ------------------------------------------------------------------------------------------------------


def potential_of(text: str, data: Trajectories, scales: Scales) -> tuple[AbstractPotential, ...]:
    """The terms of a potential; ``none`` is one of no strength.

    Of straight springs a centre is no more than a constant force, so that it is learned only where no other term has
    that force already.
    """
    terms = check_potentials(text)
    if terms == [Term("none")]:
        return (Quadratic(0.0),)
    hardening = [term.where for term in terms if term.kind == "quartic"]
    covered: list[tuple[float, ...]] = []
    found = []
    for term in sorted(terms, key=_covers):
        if term.kind == "quadratic" and term.where in hardening and term.strength is None:
            continue  # the quartic spring has both
        straight = Term("quadratic", term.where) in terms
        for combined in _combinations(term, data):
            found.append((terms.index(term), _spring_or_other(term, combined, covered, straight, data, scales)))
    return tuple(part for _, part in sorted(found, key=lambda each: each[0]))


def _covers(term: Term) -> float:
    """Constant forces first, then what has a centre of its own, then what may do without."""
    return 0.0 if term.kind == "constant" else 2.0 if term.kind == "coupled" else 1.0 if term.where is None else 1.5


def _combinations(term: Term, data: Trajectories) -> list[Combinations]:
    manifold = data.manifold
    if term.where is not None:
        combined = Combinations.of(combinations_in(term.where, manifold.names), data)
        if term.kind == "cosine" and not combined.circles.all():
            raise InputError(
                f"'cosine({term.where})' is of angles: declare them, positions='{manifold.names[0]}:angle' "
                "(--positions)"
            )
        return [combined]
    if term.kind == "coupled":
        if manifold.size < 2:
            raise InputError("potential 'coupled' joins coordinates in pairs: there is only one")
        return [Combinations.of((row,), data) for row in pairs_of(manifold.size)]
    every = np.array(_every(manifold.size))
    angles = np.asarray(manifold.circles)
    suited = {"cosine": angles, "chain": angles, "constant": angles | ~angles}
    where = suited.get(term.kind, ~angles if (~angles).any() else angles)
    if not where.any():
        raise InputError(
            f"potential '{term.kind}' is of angles: declare them, positions='{manifold.names[0]}:angle' (--positions)"
        )
    return [Combinations.of(tuple(map(tuple, every[where].tolist())), data)]


def _spring_or_other(
    term: Term, combined: Combinations, covered: list, straight: bool, data: Trajectories, scales: Scales
) -> AbstractPotential:
    n, kind = data.manifold.size, term.kind
    if term.strength:
        build = {"cosine": Cosine, "quadratic": Quadratic, "chain": ChainCosine}[kind]
        return combined.placed(of_strength(build, term.strength, kind), n)
    if kind == "constant":
        covered.extend(combined.rows)
        return combined.placed(ConstantForce(Real.starting_at(np.zeros(combined.count), unit=scales.force)), n)
    if kind in ("cosine", "chain"):
        seen = combined._replace(motion=np.cumsum(combined.motion, axis=2)) if kind == "chain" else combined
        build = ChainCosine if kind == "chain" else Cosine
        strengths = Positive.uninformed(combined.count, unit=scales.force)
        return combined.placed(build(strengths, Real.starting_at(seen.middle, unit=1.0)), n)
    free = kind == "quartic" or _independent(combined.rows, covered)
    covered.extend(combined.rows if free else ())
    centre = Real.starting_at(combined.middle, unit=combined.unit) if free else 0.0
    stiffness = Positive.uninformed(combined.count, unit=scales.force / combined.unit)
    if kind != "quartic":
        return combined.placed(Quadratic(stiffness, centre), n)
    hardening = Real.starting_at(np.zeros(combined.count), unit=scales.force / combined.unit**3)
    return combined.placed(Quartic(hardening, stiffness if straight else 0.0, centre), n)


def _independent(rows: Sequence, covered: list) -> bool:
    """Whether none of these forces is one that the covered ones can add up to."""
    before = np.linalg.matrix_rank(covered) if covered else 0
    return bool(np.linalg.matrix_rank([*covered, *rows]) == before + len(rows))


def of_strength(build: type, strength: str, text: str) -> AbstractPotential:
    """A template of this strength, up to a factor to be found."""
    return Scaled(build(strength_in(strength, f"{text}:{strength}")), Positive.starting_at(1.0))


# --- damping ---------------------------------------------------------------------------------------------------------


def damping_of(text: str, data: Trajectories, scales: Scales, mass: AbstractMass) -> AbstractDamping:
    """The terms of a damping, those of the same coordinates in one."""
    terms, n = check_dampings(text), data.manifold.size
    kinds = {term.kind for term in terms if term.where is None}
    if "none" in kinds:
        return ConstantDamping(0.0)
    parts = [free_damping(data, unit=scales.damping)] if "free" in kinds else []
    if kinds & {"viscous", "coulomb", "quadratic"}:
        parts.append(_friction(kinds, None, _link_joints(mass, n), n, scales))
    if "stiction" in kinds:
        parts.append(_stiction(_link_joints(mass, n), n, scales))
    if "coupled" in kinds:
        if n < 2:
            raise InputError("damping 'coupled' joins coordinates in pairs: there is only one")
        parts.append(_friction({"viscous"}, None, pairs_of(n), n, scales))
    for where in dict.fromkeys(term.where for term in terms if term.where is not None):
        here = {term.kind for term in terms if term.where == where}
        rows = combinations_in(where, data.manifold.names)
        if here - {"stiction"}:
            parts.append(_friction(here, where, rows, n, scales))
        if "stiction" in here:
            parts.append(_stiction(rows, n, scales))
    return parts[0] if len(parts) == 1 else SumDamping(tuple(parts))


def _friction(
    kinds: set[str], where: str | None, joints: Rows | None, n: int, scales: Scales
) -> Friction | DirectionalFriction:
    """Viscous, Coulomb and quadratic terms, one for each direction where they differ."""
    count = n if joints is None else len(joints)
    units = {
        "viscous": scales.damping,
        "coulomb": scales.damping * scales.velocity,
        "quadratic": scales.damping / scales.velocity,
    }
    found = {name: Positive.uninformed(count, unit=units[name]) if name in kinds else 0.0 for name in units}
    law = Friction(**found, smoothing=_SMOOTHING * scales.velocity, joints=joints)
    return DirectionalFriction(law, law) if "directional" in kinds and where is None else law


_SMOOTHING = 0.02  # of the typical velocity


def _stiction(joints: Rows | None, n: int, scales: Scales) -> Stiction:
    limit = Positive.uninformed(n if joints is None else len(joints), unit=scales.damping * scales.velocity)
    return Stiction(limit, _SMOOTHING * scales.velocity, joints)


def _link_joints(mass: AbstractMass, n: int) -> Rows | None:
    """Where coordinates are absolute angles of links, friction is in their joints: each against the one before."""
    if not (isinstance(mass, LinkedMass) or (isinstance(mass, LinkageMass) and all(mass.turning))):
        return None
    return tuple(map(tuple, (np.eye(n) - np.eye(n, k=-1)).tolist()))
