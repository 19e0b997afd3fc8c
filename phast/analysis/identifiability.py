"""What was found and how sure it is: coefficients and fields with uncertainties, and what the data leave open.

The information matrix of :func:`phast.fitting.shooting.shoot` decides. Its inverse gives standard deviations;
directions in which it has nothing are named in words, with the anchor that would fix them.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.damping import depends_on_velocity
from phast.components.parameter import parameter_count
from phast.components.potential import gradient
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.coefficients import coefficients_of, in_units, names_of
from phast.fitting.shooting import Identified

_NO_INFORMATION = 1e-9  # of the largest eigenvalue of the scaled information matrix


class Coefficient(NamedTuple):
    """One recovered number: its value, its standard deviation, and whether these data determine it."""

    name: str
    value: float
    deviation: float
    identifiable: bool


class Report(NamedTuple):
    """What was recovered, what could not be, and why, in words."""

    coefficients: list[Coefficient]
    conditioning: float
    remarks: list[str]
    anchor: str


def identified(model: AbstractForecaster) -> Identified:
    """What a sharp model knows of its own fit."""
    if not isinstance(model, ModelAware) or model.evidence is None:
        raise InputError(f"this {type(model).__name__} carries no evidence of its fit: fit with method=SecondOrder()")
    return Identified(model.core.system, model.evidence)


def report(found: Identified) -> Report:
    """Every learned scalar with its uncertainty; what the data leave open, and which anchor would close it.

    A direction without information is one along which all coefficients of the null vector trade off. Spline fields
    count in that test, but their many coefficients are not listed: see the bands below.
    """
    names, natural = names_of(found.system), in_units(found.system)
    scale = np.sqrt(np.maximum(np.diag(found.evidence.information), 1e-300))
    values, vectors = np.linalg.eigh(found.evidence.information / np.outer(scale, scale))
    informed = values > _NO_INFORMATION * max(values[-1], 1e-300)
    relative = np.array([_share(*pair, kind) for pair, (_, kind) in zip(natural, names, strict=True)])
    moves = vectors[:, ~informed] / scale[:, None]
    null = relative[:, None] * moves  # the relative change along each open direction
    null /= np.maximum(np.max(np.abs(null), axis=0, keepdims=True, initial=0.0), 1e-300)
    open_ones = np.any(np.abs(null) > 0.01, axis=1)
    deviations = np.sqrt(np.maximum(np.diag(found.evidence.covariance), 0.0))
    coefficients = [
        Coefficient(name, float(value), float(slope * deviation), not is_open)
        for (name, kind), (value, slope), deviation, is_open in zip(names, natural, deviations, open_ones, strict=True)
        if kind != "field"
    ]
    remarks = [_in_words(direction, move, names) for direction, move in zip(null.T, moves.T, strict=True)]
    conditioning = float(values[-1] / values[informed][0]) if informed.any() else np.inf
    return Report(coefficients, conditioning, list(dict.fromkeys(remarks)), _anchor(found.system))


def _share(value: float, slope: float, kind: str) -> float:
    """By what share of itself a number changes; one that may be zero counts as at least a unit."""
    return slope / max(abs(value) + (abs(slope) if kind != "positive" else 0.0), 1e-300)


def _anchor(system: AbstractEnergetic) -> str:
    """What fixes the scale that potential, mass and damping share: multiplying all three changes no trajectory."""
    if not isinstance(system, PortHamiltonian):
        return "the consumer is counted in what it takes per head and time: that fixes the scale"
    for name in ("mass", "potential", "damping"):
        if parameter_count(getattr(system, name)) == 0:
            return f"the {name} is given: that fixes the scale which potential, mass and damping share"
    return "nothing is given whole: the scale that potential, mass and damping share may be open"


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


def _in_words(direction: np.ndarray, move: np.ndarray, names: list[tuple[str, str]]) -> str:
    """What is open along one direction, given as relative changes and as the move of the raw coefficients."""
    shares: dict[str, float] = {}
    for (name, _), change in zip(names, direction, strict=True):
        shares[name] = max(shares.get(name, 0.0), abs(float(change)))
    involved = sorted((name for name, share in shares.items() if share > 0.01), key=lambda name: -shares[name])
    parts = {re.split(r"[.\[]", name)[0] for name in involved}
    if {"potential", "mass", "damping"} <= parts:
        return (
            "the common scale of potential, mass and damping is open: multiplying all three by one factor changes no "
            "trajectory; give the mass, or the strength of the potential, to fix it"
        )
    within = move[[name == involved[0] for name, _ in names]]
    level = len(within) > 1 and np.ptp(within) < 0.05 * np.max(np.abs(within))
    if parts == {"potential"} and level and len(involved) == 1:
        return "the potential is determined up to a constant: its zero level moves nothing"
    if len(parts) == 1 and all(kind == "field" for name, kind in names if name in involved):
        (part,) = parts
        if len(involved) > 1:
            return f"how the {part} is shared out between overlapping splines is open: their sum is what counts"
        return f"these data say little about {involved[0]} in places that were hardly visited"
    if len(involved) == 1:
        return f"these data say nothing about {involved[0]}: give it, or record motion that depends on it"
    return f"{' and '.join(involved)} trade off: only a combination is determined; give one of them to fix the others"
