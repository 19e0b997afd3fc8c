"""Which terms of a library a motion needs: least squares on accelerations, and as many terms as the evidence pays for.

The residual is q'' as the model predicts it less what a smoother found, over its standard deviation: the noise that
passes the smoother, and its bias. For a given set of terms it is minimised by Gauss and Newton's method; the masses
make it nonlinear. Terms are then removed one by one, the least significant first, while the evidence (BIC, with the
number of candidates counted) rises, and put back where it asks for them. The normal equations of all terms serve every
subset.
"""

import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from phast.estimation.derivatives import Samples
from phast.fitting.library import DISSIPATIVE, Candidate, Family


class Selection(NamedTuple):
    """The terms that are kept, their coefficients, those of the mass, and how well they explain the accelerations.

    ``evidence`` is -½ BIC up to a constant that all selections from the same samples share; ``excess`` is the mean
    square of the residuals.
    """

    family: Family
    kept: tuple[Candidate, ...]
    coefficients: Float[np.ndarray, " k"]
    mass: Float[np.ndarray, " m"]
    evidence: float
    excess: float


class Equations:
    """The equations of motion at samples, for a family of masses and a library."""

    def __init__(
        self,
        samples: Samples,
        forces: Float[np.ndarray, "S n"],
        deviation: Float[np.ndarray, "S n"],
        family: Family,
        library: list[Candidate],
        smoothing: float,
    ):
        q, v = samples.q, samples.v
        self.family, self.library = family, library
        self.a, self.forces, self.deviation = samples.a, forces, deviation
        self.terms = np.stack([term.force(q, v, smoothing) for term in library], axis=2)  # S n K
        self.given_mass = sum((term.mass(q) for term in family.given), np.zeros((*q.shape, q.shape[1])))
        self.given_bias = sum((term.bias(q, v) for term in family.given), np.zeros_like(q))
        self.masses = [term.mass(q) for term in family.terms]
        self.biases = [term.bias(q, v) for term in family.terms]

    def start(self) -> Float[np.ndarray, " k"]:
        """Coefficients from the forces at the measured accelerations: linear, also in those of the mass."""
        columns = np.concatenate([self.terms, self._moving(self.a)], axis=2) / self.deviation[..., None]
        known = (self.forces - self._given(self.a)) / self.deviation
        every = np.ones(columns.shape[2], dtype=bool)
        normal = ScaledNormal.of(columns.reshape(-1, len(every)), known.reshape(-1))
        return normal.solve(every)[0] / normal.scale

    def linearised(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(J, t): the residuals around these coefficients are J θ - t."""
        k, m = self.terms.shape[2], len(self.masses)
        matrix = self.given_mass + sum((c * x for c, x in zip(theta[k:], self.masses, strict=True)), 0.0)
        force = self.forces - self.given_bias - self.terms @ theta[:k]
        force -= sum((c * x for c, x in zip(theta[k:], self.biases, strict=True)), 0.0)
        inverse = np.linalg.inv(matrix)
        a = np.einsum("sij,sj->si", inverse, force)
        columns = np.concatenate([self.terms, self._moving(a)], axis=2) if m else self.terms
        slopes = -np.einsum("sij,sjk->sik", inverse, columns) / self.deviation[..., None]
        residual = (a - self.a) / self.deviation
        slopes = slopes.reshape(-1, k + m)
        return slopes, slopes @ theta - residual.reshape(-1)

    def _moving(self, a: np.ndarray) -> np.ndarray:
        """What each learned term of the mass asks for, S n M."""
        found = [np.einsum("sij,sj->si", m, a) + c for m, c in zip(self.masses, self.biases, strict=True)]
        return np.stack(found, axis=2) if found else np.zeros((*self.a.shape, 0))

    def _given(self, a: np.ndarray) -> np.ndarray:
        return np.einsum("sij,sj->si", self.given_mass, a) + self.given_bias


def select(equations: Equations, deadline: float = np.inf) -> Selection:
    """The terms that pay, by elimination from all of them."""
    k, m = equations.terms.shape[2], len(equations.masses)
    kept, theta = np.ones(k + m, dtype=bool), equations.start()
    theta, normal = _settled(equations, theta, kept)
    count = normal.count
    excess = max(normal.cost(kept) / max(count - k - m, 1), _SHARPEST)
    price = price_of(count, k)
    for _ in range(_ROUNDS):
        before = kept.copy()
        kept = eliminated(normal, kept, price * excess, equations.library)
        theta, normal = _settled(equations, np.where(kept, theta, 0.0), kept)
        if (kept == before).all() or time.monotonic() > deadline:
            break
    shares = np.abs(theta[:k]) * np.sqrt(np.mean(equations.terms**2, axis=(0, 1)))
    kept[:k] &= shares > _LEAST * np.max(shares, initial=0.0, where=kept[:k])
    theta, normal = _settled(equations, np.where(kept, theta, 0.0), kept)
    chosen = np.flatnonzero(kept[:k])
    cost = normal.cost(kept)
    evidence = -0.5 * count * np.log(max(cost / count, _SHARPEST)) - 0.5 * np.sum(kept) * price
    terms = tuple(equations.library[i] for i in chosen)
    return Selection(equations.family, terms, theta[chosen], theta[k:], float(evidence), float(cost / count))


def settle(equations: Equations, found: Selection) -> Selection:
    """The same terms, which are all that these equations have, with their best coefficients."""
    theta = np.concatenate([found.coefficients, found.mass])
    kept = np.ones(len(theta), dtype=bool)
    theta, normal = _settled(equations, theta, kept)
    k = len(found.coefficients)
    return found._replace(coefficients=theta[:k], mass=theta[k:], excess=normal.cost(kept) / normal.count)


_ROUNDS, _STEPS, _TINY = 6, 8, 1e-300
_LEAST = 1e-4  # of the largest force: what is less cannot be told from the error of a derivative
_SHARPEST = 1e-2  # mean squares below are as good as each other: deviations are no more than estimates


def price_of(count: int, terms: int) -> float:
    """By how much a term has to lower the sum of squares: BIC, with the number of terms that were tried."""
    return float(np.log(count) + 2.0 * np.log(terms))


class ScaledNormal(NamedTuple):
    """Normal equations in units in which the diagonal is one."""

    gram: np.ndarray
    pull: np.ndarray
    square: float
    scale: np.ndarray
    count: int

    @classmethod
    def of(cls, slopes: np.ndarray, target: np.ndarray) -> "ScaledNormal":
        scale = np.sqrt(np.sum(slopes**2, axis=0)) + _TINY
        slopes = slopes / scale
        gram = slopes.T @ slopes + _RIDGE * np.eye(len(scale))
        return cls(gram, slopes.T @ target, float(target @ target), scale, len(target))

    @classmethod
    def about(cls, information: np.ndarray, theta: np.ndarray, count: int) -> "ScaledNormal":
        """Those of a fit that has its minimum at these coefficients."""
        scale = np.sqrt(np.maximum(np.diag(information), 0.0)) + _TINY
        gram = information / np.outer(scale, scale) + _RIDGE * np.eye(len(scale))
        pull = gram @ (scale * theta)
        return cls(gram, pull, float(pull @ (scale * theta)), scale, count)

    def solve(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients of the kept terms, and by how much the cost rises without each."""
        inverse = np.linalg.pinv(self.gram[np.ix_(kept, kept)], rcond=1e-13, hermitian=True)
        x = inverse @ self.pull[kept]
        return x, x**2 / np.maximum(np.diag(inverse), _TINY)

    def cost(self, kept: np.ndarray) -> float:
        x, _ = self.solve(kept)
        return max(self.square - float(self.pull[kept] @ x), 0.0)

    def gains(self, kept: np.ndarray) -> np.ndarray:
        """By how much the cost falls with each term that is not kept."""
        out = np.flatnonzero(~kept)
        across = self.gram[np.ix_(kept, out)]
        solved = np.linalg.pinv(self.gram[np.ix_(kept, kept)], rcond=1e-13, hermitian=True) @ across
        left = self.pull[out] - solved.T @ self.pull[kept]
        own = np.diag(self.gram)[out] - np.sum(across * solved, axis=0)
        gains = np.zeros(len(kept))
        gains[out] = np.where(own > 1e-9, left**2 / np.maximum(own, 1e-9), 0.0)
        return gains


_RIDGE = 1e-13


def _settled(equations: Equations, theta: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, ScaledNormal]:
    """Gauss and Newton's method over the kept terms, halving steps that make it worse."""
    best, normal = np.inf, None
    step = np.zeros_like(theta)
    share = 1.0
    for _ in range(_STEPS if equations.masses else 2):
        try:
            slopes, target = equations.linearised(theta + share * step)
            cost = float(np.sum((slopes @ (theta + share * step) - target) ** 2))
        except np.linalg.LinAlgError:
            cost = np.inf
        if not np.isfinite(cost) or cost > best * (1.0 + 1e-9):
            share *= 0.5
            continue
        done = cost > best * (1.0 - 1e-6)
        theta, best, share = theta + share * step, cost, 1.0
        normal = ScaledNormal.of(slopes, target)
        if done:
            break
        step = np.zeros_like(theta)
        step[kept] = normal.solve(kept)[0] / normal.scale[kept]
        step -= theta
    if normal is None:
        raise np.linalg.LinAlgError("no finite start")
    return theta, normal


def eliminated(normal: ScaledNormal, kept: np.ndarray, price: float, library: list[Candidate]) -> np.ndarray:
    """Terms out, the least significant first, and back in where they pay."""
    kept, k = kept.copy(), len(library)
    dissipative = np.array([term.kind in DISSIPATIVE for term in library])
    for _ in range(_MOST * k):
        x, losses = normal.solve(kept)
        places = np.flatnonzero(kept)
        free = places < k
        driving = free & (x < 0.0) & np.concatenate([dissipative, np.zeros(len(kept) - k, dtype=bool)])[places]
        if driving.any() and not (free & ~driving & (losses < price)).any():
            kept[places[driving][np.argmin(losses[driving])]] = False
            continue
        weakest = np.argmin(np.where(free, losses, np.inf)) if free.any() else None
        if weakest is not None and losses[weakest] < price:
            kept[places[weakest]] = False
            continue
        gains = normal.gains(kept)[:k]
        best = int(np.argmax(gains))
        if gains[best] < 1.5 * price:
            break
        kept[best] = True
        if dissipative[best] and normal.solve(kept)[0][np.flatnonzero(kept) == best][0] < 0.0:
            kept[best] = False
            break
    return kept


_MOST = 3  # times as many moves as there are terms
