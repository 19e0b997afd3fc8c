"""The terms that a search for a law chooses from, each a generalised force that is linear in its coefficient.

    d/dt ∂T/∂v - ∂T/∂q + ∇V(q) + D(q, v) v = G u

A :class:`Candidate` is a part of V or D along a combination x = r·q of coordinates; a :class:`Kinetic` is a part of T,
cos(w·q) (r·v)(s·v). There are as many of them as coordinates and pairs of coordinates times a number, never more.
"""

from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from phast.data.manifold import Manifold

Row = tuple[float, ...]
Kind = Literal["constant", "quadratic", "quartic", "cosine", "sine", "pair", "viscous", "coulomb", "drag", "facing"]
DISSIPATIVE = ("viscous", "coulomb", "drag", "facing")
SOFTENING = 0.1  # of the distance between points
_POWERS = (1, 2, 6, 12)  # of the distance, in the energy of a pair of points

Samples2 = Float[np.ndarray, "S n"]


class Candidate(NamedTuple):
    """A term of V or D; ``where`` is an angle that faces something, ``power`` that of a distance."""

    kind: Kind
    row: Row
    where: int = 0
    power: int = 0

    def force(self, q: Samples2, v: Samples2, smoothing: float) -> Samples2:
        """∇V or D v for a coefficient of one."""
        if self.kind == "pair":
            return self._of_pair(q)
        row = np.asarray(self.row)
        x, w = q @ row, v @ row
        speed = np.sqrt(w**2 + smoothing**2)
        along = {
            "constant": lambda: -np.ones_like(x),
            "quadratic": lambda: x,
            "quartic": lambda: x**3,
            "cosine": lambda: np.sin(x),
            "sine": lambda: -np.cos(x),
            "viscous": lambda: w,
            "coulomb": lambda: w / speed,
            "drag": lambda: w * speed,
            "facing": lambda: np.abs(np.sin(q[:, self.where])) * w,
        }[self.kind]()
        return along[:, None] * row

    def _of_pair(self, q: Samples2) -> Samples2:
        """That of (r² + s²)^(-k/2) between the points that the row names."""
        first, second = (int(i) // 2 for i in np.flatnonzero(self.row)[::2])
        points = q.reshape(len(q), -1, 2)
        apart = points[:, first] - points[:, second]
        near = np.sum(apart**2, axis=1, keepdims=True) + SOFTENING**2
        found = np.zeros_like(points)
        found[:, first] = -self.power * near ** (-0.5 * self.power - 1.0) * apart
        found[:, second] = -found[:, first]
        return found.reshape(q.shape)


class Kinetic(NamedTuple):
    """T = cos(w·q) (r·v)(s·v), with a factor ½ where r = s."""

    turn: Row
    left: Row
    right: Row

    def mass(self, q: Samples2) -> Float[np.ndarray, "S n n"]:
        """∂²T/∂v²."""
        left, right = np.asarray(self.left), np.asarray(self.right)
        return self._share * np.cos(q @ np.asarray(self.turn))[:, None, None] * _symmetric(left, right)

    def bias(self, q: Samples2, v: Samples2) -> Samples2:
        """d/dt ∂T/∂v - ∂T/∂q without what the acceleration adds."""
        turn, left, right = (np.asarray(x) for x in self)
        sine = np.sin(q @ turn)[:, None]
        moved = (v @ turn)[:, None] * (v @ _symmetric(left, right))
        return self._share * sine * (((v @ left) * (v @ right))[:, None] * turn - moved)

    @property
    def _share(self) -> float:
        return 0.5 if self.left == self.right else 1.0


def _symmetric(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.outer(left, right) + np.outer(right, left)


class Family(NamedTuple):
    """A kind of mass: the given part of M, and the terms that are learned beside it.

    ``parts[i]`` belongs to the learned ``terms[i]``: ("diagonal", i) or ("coupling", i, j).
    """

    name: Literal["unit", "unequal", "links", "joints", "cartpole"]
    given: tuple[Kinetic, ...]
    terms: tuple[Kinetic, ...]
    parts: tuple[tuple, ...]
    turning: tuple[bool, ...] = ()


def families(manifold: Manifold, driven: bool) -> list[Family]:
    """The masses to try, from the simplest. With known forces all of M is learned; else its first entry is one."""
    n, circles = manifold.size, np.asarray(manifold.circles)
    eye, still = np.eye(n), (0.0,) * n

    def family(name, rows, couplings):
        diagonal = [Kinetic(still, tuple(rows[i]), tuple(rows[i])) for i in range(n)]
        given = () if driven else tuple(diagonal[:1])
        kept = diagonal if driven else diagonal[1:]
        parts = [("diagonal", i) for i in range(0 if driven else 1, n)]
        coupled = [("coupling", i, j) for i, j in pairs[: len(couplings)]]
        return Family(name, given, (*kept, *couplings), (*parts, *coupled), tuple(manifold.circles))

    pairs = list(combinations(range(n), 2))
    unequal = family("unequal", eye, ())
    unit = Family("unit", tuple(Kinetic(still, tuple(e), tuple(e)) for e in eye), (), ())
    found = [unequal] if driven else [unit, unequal][: min(n, 2)]
    turned = np.where(circles, eye, 0.0) if n > 1 else eye
    if n > 1 and circles.any() and np.sum(~circles) <= 1:
        name = "links" if circles.all() else "cartpole"
        found.append(family(name, eye, [_coupling(eye, turned, i, j) for i, j in pairs]))
    if n > 1 and circles.all():
        absolute = np.tril(np.ones((n, n)))
        found.append(family("joints", absolute, [_coupling(absolute, absolute, i, j) for i, j in pairs]))
    return found


def _coupling(rows: np.ndarray, turned: np.ndarray, i: int, j: int) -> Kinetic:
    return Kinetic(tuple((turned[i] - turned[j]).tolist()), tuple(rows[i].tolist()), tuple(rows[j].tolist()))


def candidates(manifold: Manifold, moved: Float[np.ndarray, " n"]) -> list[Candidate]:
    """Every term of V and D that is tried; ``moved`` is how far each coordinate went in all."""
    n, circles = manifold.size, np.asarray(manifold.circles)
    eye = np.eye(n)
    single = [tuple(e.tolist()) for e in eye]
    apart = [tuple((eye[i] - eye[j]).tolist()) for i, j in combinations(range(n), 2) if circles[i] == circles[j]]
    angles = [i for i in range(n) if circles[i]]
    sums = {tuple(np.sum(eye[angles[: k + 1]], axis=0).tolist()) for k in range(1, len(angles))}
    sums |= {tuple((eye[i] + eye[j]).tolist()) for i, j in combinations(angles, 2)}
    swinging = [row for row in [*single, *apart, *sorted(sums)] if all(circles[np.flatnonzero(row)])]
    sprung = [row for row in [*single, *apart] if not (circles & (moved > 2.0 * np.pi))[np.flatnonzero(row)].any()]
    found = [Candidate("constant", row) for row in single]
    found += [Candidate(kind, row) for row in sprung for kind in ("quadratic", "quartic")]
    found += [Candidate(kind, row) for row in swinging for kind in ("cosine", "sine")]
    found += [Candidate(kind, row) for row in [*single, *apart] for kind in ("viscous", "coulomb", "drag")]
    found += [Candidate("facing", row, where) for row in single for where in angles]
    if n >= 4 and n % 2 == 0 and not circles.any():
        found += [
            Candidate("pair", _points(i, j, n), power=k) for i, j in combinations(range(n // 2), 2) for k in _POWERS
        ]
    return found


def _points(i: int, j: int, n: int) -> Row:
    return tuple(1.0 if k // 2 == i else -1.0 if k // 2 == j else 0.0 for k in range(n))
