"""How rough a free field may be: the prior on it, and the weight that the evidence prefers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from phast.components.spline import AbstractSmooth
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.fitting.levenberg_marquardt import Normal


def excess_misfit(normal: "Normal", count: int) -> float:
    """By how much squared residuals exceed what the noise explains: a model's own error counts as noise too."""
    return max(float(normal.cost) / count, 1.0)


def smooth_fields(system: AbstractEnergetic) -> list[AbstractSmooth]:
    """The fields of a system that have a roughness."""
    return [leaf for leaf in jax.tree.leaves(system, is_leaf=_is_smooth) if _is_smooth(leaf)]


def _is_smooth(node: Any) -> bool:
    return isinstance(node, AbstractSmooth)


def field_count(system: AbstractEnergetic) -> int:
    """How many weights of smoothness there are: one for each direction of each field."""
    return sum(len(field.roughness()) for field in smooth_fields(system))


_WHISPER = 1e-4  # keeps what the data never show where it is


def roughness(system: AbstractEnergetic, smoothness: float | Float[Array, " directions"]) -> Float[Array, " k"]:
    """Prior residuals: the weighted roughness of every smooth field, and a weak prior on its values."""
    fields = smooth_fields(system)
    rough = [part for field in fields for part in field.roughness()]
    weights = jnp.broadcast_to(jnp.asarray(smoothness, dtype=float), (len(rough),))
    values = [_WHISPER * field.values() for field in fields]
    return jnp.concatenate([jnp.zeros(1), *(w * part for w, part in zip(weights, rough, strict=True)), *values])


def choose_smoothness(
    normal: Normal, theta: Float[Array, " k"], rebuild: Callable[[Array], AbstractEnergetic], count: int
) -> Float[np.ndarray, " directions"]:
    """The weights of roughness that the data themselves prefer: the largest evidence (marginal likelihood).

    With the residuals linear around ``theta`` and the roughness linear in it, the evidence of a choice is a formula:
    the best fit that the prior allows, and how much of the prior's volume that fit leaves. Weights are improved one
    after the other. ``count`` residuals beyond what the noise explains widen the noise.
    """
    excess = excess_misfit(normal, count)
    matrix, gradient, at = (np.asarray(x) for x in (normal.matrix / excess, normal.gradient / excess, theta))

    def parts(t):
        return [part for field in smooth_fields(rebuild(t)) for part in field.roughness()]

    penalties = [np.asarray(j.T @ j) for j in jax.jacfwd(parts)(theta)]
    touched = [np.flatnonzero(np.diag(penalty)) for penalty in penalties]
    shared = [np.unique(np.concatenate([b for b in touched if np.intersect1d(a, b).size])) for a in touched]
    whisper = _WHISPER**2 * np.eye(len(at))

    def evidence(weights: np.ndarray, changed: int) -> float:
        """Up to terms that do not depend on the changed weight: of the prior's volume, only its own field's counts."""
        prior = np.tensordot(weights**2, penalties, axes=1) + whisper
        scale = np.sqrt(np.diag(matrix) + np.diag(prior))
        scaled = (matrix + prior) / np.outer(scale, scale) + 1e-12 * np.eye(len(at))  # as much as rounding takes away
        posterior = scipy.linalg.cho_factor(scaled, lower=True)
        step = -scipy.linalg.cho_solve(posterior, (gradient + prior @ at) / scale) / scale
        fit = 2 * gradient @ step + step @ matrix @ step + (at + step) @ prior @ (at + step)
        field = np.ix_(shared[changed], shared[changed])
        return np.linalg.slogdet(prior[field])[1] - fit - 2.0 * np.sum(np.log(scale * np.diag(posterior[0])))

    weights = np.full(len(penalties), 1.0)
    for _ in range(_SWEEPS):
        for i in range(len(weights)):
            tried = [np.where(np.arange(len(weights)) == i, w, weights) for w in WEIGHTS]
            weights = max(tried, key=lambda w, i=i: evidence(w, i))
    return np.sqrt(excess) * weights


WEIGHTS = tuple(10.0 ** (k / 2) for k in range(-4, 11))
_SWEEPS, ROUNDS = 2, 4
