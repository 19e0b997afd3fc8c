"""What was found and how sure it is: coefficients and fields with uncertainties, and what the data leave open.

The information matrix of :func:`phast.fitting.shooting.shoot` decides. Its inverse gives standard deviations, which are
compared with values and natural scales (:class:`Determination`); directions in which it has nothing are named in words,
with the anchor that would fix them.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtr, ndtri

from phast.components.damping import depends_on_velocity
from phast.components.parameter import parameter_count
from phast.components.potential import gradient
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster
from phast.estimation.moving_horizon import Evidence, ModelAware
from phast.fitting.coefficients import at_floor, coefficients_of, in_units, names_of, scales_of
from phast.fitting.shooting import Identified

_NO_INFORMATION = 1e-9  # of the largest eigenvalue of the scaled information matrix


class Determination(StrEnum):
    """Whether the data determine a coefficient. A deviation is small against what is more than twice as large."""

    DETERMINED = "determined"  # its deviation is small against its value, or, of either sign, against its natural scale
    AT_ZERO = "at zero"  # positive, compatible with zero, and its deviation is small against its natural scale
    UNDETERMINED = "not determined"  # its deviation is small against neither, or it trades off with others


class Coefficient(NamedTuple):
    """One recovered number: its value, its standard deviation, and whether these data determine it.

    The deviation is infinite where the data leave a direction open. ``upper`` is what a positive coefficient that is
    compatible with zero stays below, with 95 % probability; None for all others.
    """

    name: str
    value: float
    deviation: float
    verdict: Determination = Determination.DETERMINED
    upper: float | None = None

    @property
    def identifiable(self) -> bool:
        """Whether the data say what it is; that it is zero is an answer too."""
        return self.verdict is not Determination.UNDETERMINED


class Report(NamedTuple):
    """What was recovered, what could not be, and why, in words."""

    coefficients: list[Coefficient]
    conditioning: float
    remarks: list[str]
    anchor: str

    @property
    def all_determined(self) -> bool:
        """Whether there are coefficients, and the data determine every one."""
        return bool(self.coefficients) and all(found.identifiable for found in self.coefficients)


def identified(model: AbstractForecaster) -> Identified:
    """The evidence of a second-order fit."""
    if not isinstance(model, ModelAware) or model.evidence is None:
        raise InputError(f"this {type(model).__name__} carries no evidence of its fit: fit with method=SecondOrder()")
    return Identified(model.core.system, model.evidence)


def report(found: Identified) -> Report:
    """Every learned scalar with its uncertainty; what the data leave open, and which anchor would close it.

    A direction without information is one along which all coefficients of the null vector trade off. Spline fields
    count in that test, but their many coefficients are not listed: see the bands below.
    """
    learned = _learned(found)
    open_directions, conditioning = _open_directions(found.evidence.information, learned)
    is_open = np.diag(found.evidence.information) <= 0.0
    for direction in open_directions:
        is_open |= direction.shares > _INVOLVED
    scalars = ~learned.fields
    deviations = np.where(is_open, np.inf, learned.deviations)
    judged = [_judged(learned, i, float(deviations[i])) for i in np.flatnonzero(scalars).tolist()]
    remarks = [_in_words(direction, learned) for direction in open_directions]
    remarks += _vague(judged, ~is_open[scalars], _correlations(found.evidence.covariance)[np.ix_(scalars, scalars)])
    anchor = _anchor(found.system, _COMMON_SCALE in remarks)
    remarks += [] if scalars.any() else ["only fields were learned: there are no coefficients to list"]
    remarks += _left_out(found.evidence)
    return Report(judged, conditioning, list(dict.fromkeys(remarks)), anchor)


# --- the coefficients ------------------------------------------------------------------------------------------------


class _Learned(NamedTuple):
    """Every trained number in raveled order: its name, value, deviation and natural scale, all in physical units.

    The deviation is that of the value, not of the number behind it. Of a positive coefficient near zero the latter is
    without meaning: softplus is flat there. The curvature of the misfit over the value is not.
    """

    names: list[str]
    values: np.ndarray
    slopes: np.ndarray
    deviations: np.ndarray
    scales: np.ndarray
    positive: np.ndarray
    fields: np.ndarray
    at_floor: np.ndarray


def _learned(found: Identified) -> _Learned:
    names, kinds = zip(*names_of(found.system), strict=True)
    values, slopes = np.array(in_units(found.system)).T
    deviations = slopes * np.sqrt(np.maximum(np.diag(found.evidence.covariance), 0.0))
    positive, fields = (np.array([kind == name for kind in kinds]) for name in ("positive", "field"))
    scales, floor = scales_of(found.system), at_floor(found.system)
    return _Learned(list(names), values, slopes, deviations, scales, positive, fields, floor)


def _judged(learned: _Learned, i: int, deviation: float) -> Coefficient:
    """A coefficient and what its deviation, its value and its natural scale say about it."""
    name, value, scale = learned.names[i], float(learned.values[i]), float(learned.scales[i])
    if not np.isfinite(deviation):
        return Coefficient(name, value, deviation, Determination.UNDETERMINED)
    if not learned.positive[i]:
        small = 2.0 * deviation <= max(abs(value), scale)
        return Coefficient(name, value, deviation, Determination.DETERMINED if small else Determination.UNDETERMINED)
    if 2.0 * deviation <= value and not learned.at_floor[i]:
        return Coefficient(name, value, deviation)
    verdict = Determination.AT_ZERO if 2.0 * deviation <= scale else Determination.UNDETERMINED
    return Coefficient(name, value, deviation, verdict, upper_bound(value, deviation))


def upper_bound(value: float, deviation: float, probability: float = 0.95) -> float:
    """What a number that cannot be negative stays below, given a measurement of it with this deviation.

    The quantile of a normal distribution that is cut off at zero. A fit that would rather be below zero stops there, at
    ``value`` = 0, where 1.96 deviations are more than it needs.
    """
    above_zero = ndtr(value / deviation)
    return float(value - deviation * ndtri((1.0 - probability) * above_zero))


def _correlations(covariance: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    deviations = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
    return covariance / np.outer(deviations, deviations)


# --- what is open ----------------------------------------------------------------------------------------------------


class _Direction(NamedTuple):
    """A direction without information: by how much of itself it moves each number (at most one), and by how much as
    they are trained."""

    shares: np.ndarray
    moves: np.ndarray


_INVOLVED = 0.01  # of the largest relative change along a direction
_TINY_SHARE = 1e-3  # of its natural scale: a positive coefficient below changes by shares of that, not of itself


def _open_directions(information: Float[np.ndarray, "k k"], learned: _Learned) -> tuple[list[_Direction], float]:
    """Directions in which the information matrix has nothing, and the conditioning of the others."""
    scale = np.sqrt(np.maximum(np.diag(information), 1e-300))
    values, vectors = np.linalg.eigh(information / np.outer(scale, scale))
    informed = values > _NO_INFORMATION * max(values[-1], 1e-300)
    own = np.maximum(np.abs(learned.values), np.where(learned.positive, _TINY_SHARE, 1.0) * learned.scales)
    directions = []
    for vector in _untangled(vectors[:, ~informed].T, np.flatnonzero(~learned.fields)):
        moves = vector / scale
        shares = np.abs(learned.slopes * moves / own)
        shares = shares if shares.any() else np.abs(moves)  # a bounded coefficient may have no slope left
        directions.append(_Direction(shares / np.max(shares), moves))
    return directions, float(values[-1] / values[informed][0]) if informed.any() else np.inf


def _untangled(rows: Float[np.ndarray, "d k"], scalars: np.ndarray) -> Float[np.ndarray, "d k"]:
    """Another basis of the same space, in which every scalar that can has a direction of its own.

    An eigenvalue of several dimensions comes with any basis: two numbers of which nothing is known look like two that
    trade off, twice. Gauss–Jordan elimination with complete pivoting, over the scalars only.
    """
    rows, left = rows.copy(), list(range(len(rows)))
    while left and len(scalars):
        candidates = np.abs(rows[np.ix_(left, scalars)])
        place, column = np.unravel_index(np.argmax(candidates), candidates.shape)
        if candidates[place, column] < _PIVOT:
            break
        row, pivot = left.pop(place), scalars[column]
        for other in range(len(rows)):
            if other != row:
                rows[other] -= rows[other, pivot] / rows[row, pivot] * rows[row]
    return rows


_PIVOT = 0.1  # of a unit vector: a scalar that moves less is no more than part of a direction of fields


def _in_words(direction: _Direction, learned: _Learned) -> str:
    """What is open along one direction."""
    involved = _involved(direction.shares, learned.names)
    parts = {re.split(r"[.\[]", name)[0] for name in involved}
    fields = {name for name, field in zip(learned.names, learned.fields, strict=True) if field}
    if {"potential", "mass", "damping"} <= parts:
        return _COMMON_SCALE
    within = direction.moves[[name == involved[0] for name in learned.names]]
    level = len(within) > 1 and np.ptp(within) < 0.05 * np.max(np.abs(within))
    if parts == {"potential"} and level and len(involved) == 1:
        return "the potential is determined up to a constant: its zero level moves nothing"
    if len(parts) == 1 and fields.issuperset(involved):
        (part,) = parts
        if len(involved) > 1:
            return f"how the {part} is shared out between overlapping splines is open: their sum is what counts"
        return f"these data say little about {involved[0]} in places that were hardly visited"
    if len(involved) == 1:
        return f"these data say nothing about {involved[0]}: give it, or record motion that depends on it"
    return _trade_off(involved)


_COMMON_SCALE = (
    "the common scale of potential, mass and damping is open: multiplying all three by one factor changes no "
    "trajectory; give the mass, or the strength of the potential, to fix it"
)


def _involved(shares: np.ndarray, names: list[str]) -> list[str]:
    """The names that take part in a direction, in the order of the model."""
    return list(dict.fromkeys(name for name, share in zip(names, shares, strict=True) if share > _INVOLVED))


def _trade_off(names: list[str]) -> str:
    return f"{' and '.join(names)} trade off: only a combination is determined; give one of them to fix the others"


def _vague(judged: list[Coefficient], informed: np.ndarray, correlations: Float[np.ndarray, "k k"]) -> list[str]:
    """Coefficients of which the data say something, but not enough: alone, or because they resemble others."""
    unsure = informed & np.array([found.verdict is Determination.UNDETERMINED for found in judged], dtype=bool)
    remarks = []
    for i in np.flatnonzero(unsure):
        alike = [judged[j].name for j in np.flatnonzero(unsure & (np.abs(correlations[i]) > _ALIKE))]
        alone = f"these data hardly determine {judged[i].name}: its uncertainty is not small against its value; "
        remarks.append(_trade_off(alike) if len(alike) > 1 else alone + "give it, or record motion that depends on it")
    return remarks


_ALIKE = 0.95  # correlation


def _left_out(evidence: Evidence) -> list[str]:
    """Windows that took no part in the fit."""
    count, of = evidence.windows_left_out, evidence.windows
    were, them = ("was", "it") if count == 1 else ("were", "them")
    reason = f"{were} left out of the fit: no state near the first guess explains {them}"
    return [f"{count} of {of} windows {reason}"] if count else []


def _anchor(system: AbstractEnergetic, is_open: bool) -> str:
    """What fixes the scale that potential, mass and damping share: multiplying all three changes no trajectory."""
    if not isinstance(system, PortHamiltonian):
        return "the consumer is counted in what it takes per head and time: that fixes the scale"
    for name in ("mass", "potential", "damping"):
        part = getattr(system, name)
        if parameter_count(part) == 0 and any(np.any(leaf) for leaf in jax.tree.leaves(part)):  # no damping fixes none
            return f"the {name} is given: that fixes the scale which potential, mass and damping share"
    if is_open:
        return "nothing is given whole: the scale that potential, mass and damping share is open"
    return "known forces, or a given entry of the mass, fix the scale that potential, mass and damping share"


# --- fields ----------------------------------------------------------------------------------------------------------


def along(data: Trajectories, coordinate: int, count: int) -> Float[np.ndarray, "count n"]:
    """Configurations along one coordinate, over the circle or over what was seen, the others at their medians."""
    seen = data.q.reshape(-1, data.manifold.size)
    points = np.tile(np.median(np.asarray(data.manifold.wrap(jnp.asarray(seen))), axis=0), (count, 1))
    low, high = (-np.pi, np.pi) if data.manifold.circles[coordinate] else np.quantile(seen[:, coordinate], (0.01, 0.99))
    points[:, coordinate] = np.linspace(low, high, count)
    return points


def typical_speed(system: AbstractEnergetic, data: Trajectories) -> Float[np.ndarray, " n"]:
    """The root mean square speed of each coordinate, at which friction is looked at; rest, where there is none."""
    if not depends_on_velocity(system.damping):
        return np.zeros(data.manifold.size)
    steps = np.asarray(data.manifold.difference(jnp.asarray(data.q[:, 1:]), jnp.asarray(data.q[:, :-1])))
    return np.sqrt(np.mean((steps / np.diff(data.times)[..., None]) ** 2, axis=(0, 1)))


def damping_band(
    found: Identified, q: Float[np.ndarray, "N n"], speed: float | Float[np.ndarray, " n"] = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal of D(q, v) and its standard deviation, at configurations q.

    Each entry is that of its coordinate moving at its ``speed`` and the others at rest: what it takes to drag that one
    alone, over the speed. Of friction, look at a speed that the data have: at rest D is Coulomb's term over a number
    that only smooths it.
    """
    alone = jnp.diag(jnp.broadcast_to(jnp.asarray(speed, dtype=float), (q.shape[1],)))

    def diagonal(system: AbstractEnergetic, x: Array) -> Array:
        return jnp.diagonal(jax.vmap(lambda v: system.damping.operator(x, v).diagonal_part())(alone))

    return _band(found, q, diagonal)


def force_band(found: Identified, q: Float[np.ndarray, "N n"]) -> tuple[np.ndarray, np.ndarray]:
    """-∇V(q) and its standard deviation: what of a potential moves anything."""
    return _band(found, q, lambda system, x: -gradient(system.potential, x))


def _band(found: Identified, q: np.ndarray, field: Callable[[AbstractEnergetic, Array], Array]):
    """A field of the found system and, to first order in its coefficients, how uncertain it is."""
    theta, rebuild = coefficients_of(found.system)
    points = jnp.asarray(q, dtype=float)

    def values(t):
        system = rebuild(t)
        return jax.vmap(lambda x: field(system, x))(points)

    jacobian = np.asarray(jax.jacrev(values)(theta))
    variance = np.einsum("ijk,kl,ijl->ij", jacobian, found.evidence.covariance, jacobian, optimize=True)
    return np.asarray(values(theta)), np.sqrt(np.maximum(variance, 0.0))
