"""What was found and how sure it is: coefficients and fields with uncertainties, and what the data leave open.

The information matrix of :func:`phast.identify.shoot` decides. Its inverse gives standard deviations; directions in
which it has nothing are named in words, with the anchor that would fix them.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from phast.hamiltonian import PortHamiltonian
from phast.identify import Identified, coefficients_of

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


def report(found: Identified) -> Report:
    """Every learned scalar with its uncertainty; what the data leave open, and which anchor would close it.

    A direction without information is one along which all coefficients of the null vector trade off. Spline fields
    count in that test, but their many coefficients are not listed: see :func:`damping_band`.
    """
    names = names_of(found.system)
    theta = np.asarray(coefficients_of(found.system)[0])
    natural = [
        (_softplus(x), _sigmoid(x)) if kind == "positive" else (x, 1.0)
        for x, (_, kind) in zip(theta, names, strict=True)
    ]
    scale = np.sqrt(np.maximum(np.diag(found.information), 1e-300))
    values, vectors = np.linalg.eigh(found.information / np.outer(scale, scale))
    informed = values > _NO_INFORMATION * max(values[-1], 1e-300)
    relative = np.array([s / (abs(x) + (kind != "positive")) for (x, s), (_, kind) in zip(natural, names, strict=True)])
    moves = vectors[:, ~informed] / scale[:, None]
    null = relative[:, None] * moves  # the relative change along each open direction
    null /= np.maximum(np.max(np.abs(null), axis=0, keepdims=True, initial=0.0), 1e-300)
    open_ones = np.any(np.abs(null) > 0.01, axis=1)
    deviations = np.sqrt(np.maximum(np.diag(found.covariance), 0.0))
    coefficients = [
        Coefficient(name, float(value), float(slope * deviation), not is_open)
        for (name, kind), (value, slope), deviation, is_open in zip(names, natural, deviations, open_ones, strict=True)
        if kind != "field"
    ]
    remarks = [_in_words(direction, move, names) for direction, move in zip(null.T, moves.T, strict=True)]
    conditioning = float(values[-1] / values[informed][0]) if informed.any() else np.inf
    return Report(coefficients, conditioning, list(dict.fromkeys(remarks)))


def damping_band(found: Identified, q: Float[np.ndarray, "N n"]) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal of D(q) and its standard deviation, at configurations q, at rest."""
    theta, rebuild = coefficients_of(found.system)
    points = jnp.asarray(q, dtype=float)
    rest = jnp.zeros(points.shape[1])

    def field(t):
        law = rebuild(t).damping
        return jax.vmap(lambda x: law.operator(x, rest).diagonal_part())(points)

    jacobian = np.asarray(jax.jacfwd(field)(theta))
    variance = np.einsum("ijk,kl,ijl->ij", jacobian, found.covariance, jacobian)
    return np.asarray(field(theta)), np.sqrt(np.maximum(variance, 0.0))


def names_of(system: PortHamiltonian) -> list[tuple[str, str]]:
    """(name, kind) of every trainable number, in raveled order; the kind is "positive", "field" or "plain"."""
    names = []
    params = eqx.filter(system, eqx.is_inexact_array)
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        parts = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
        positive, field = parts[-1] == "raw", parts[-1] in ("coefficients", "entries")
        name = ".".join(parts[:-1] if positive or field else parts)
        kind = "positive" if positive else "field" if field else "plain"
        names += [(name if leaf.size == 1 or field else f"{name}[{i}]", kind) for i in range(leaf.size)]
    return names


def _in_words(direction: np.ndarray, move: np.ndarray, names: list[tuple[str, str]]) -> str:
    """What is open along one direction, given as relative changes and as the move of the raw coefficients."""
    shares: dict[str, float] = {}
    for (name, _), change in zip(names, direction, strict=True):
        shares[name] = max(shares.get(name, 0.0), abs(float(change)))
    involved = sorted((name for name, share in shares.items() if share > 0.01), key=lambda name: -shares[name])
    parts = {name.partition(".")[0] for name in involved}
    if {"potential", "mass", "damping"} <= parts:
        return (
            "the common scale of potential, mass and damping is open: multiplying all three by one factor changes no "
            "trajectory; give the mass, or the strength of the potential, to fix it"
        )
    within = move[[name == involved[0] for name, _ in names]]
    if len(involved) == 1 and len(within) > 1 and np.ptp(within) < 0.05 * np.max(np.abs(within)):
        return f"{involved[0]} is determined up to a constant: its zero level moves nothing"
    if len(involved) == 1:
        return f"these data say nothing about {involved[0]}: give it, or record motion that depends on it"
    return f"{' and '.join(involved)} trade off: only a combination is determined; give one of them to fix the others"


def _softplus(x: float) -> float:
    return float(np.logaddexp(0.0, x))


def _sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))
