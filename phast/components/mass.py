"""Masses M(q) ≻ 0, as operators: a mass answers with M(q), and velocity and momentum follow.

``AbstractConstantMass`` marks the separable case, which explicit splitting integrators require.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.lowrank import AbstractOperator, Dense, DiagonalPlusLowRank
from phast.components.network import MLP
from phast.components.parameter import Bounded, Coefficient, Offset, Positive, value_of
from phast.data.manifold import Manifold
from phast.errors import InputError


class AbstractMass(eqx.Module):
    """M: configuration -> symmetric positive definite operator."""

    @abstractmethod
    def operator(self, q: Float[Array, " n"]) -> AbstractOperator: ...


class AbstractConstantMass(AbstractMass):
    """A mass that does not depend on q, so that H = V(q) + ½ pᵀM⁻¹p is separable."""


class ConstantMass(AbstractConstantMass):
    """M = diag(m)."""

    masses: Coefficient

    def operator(self, q):
        return DiagonalPlusLowRank(jnp.broadcast_to(value_of(self.masses), q.shape))


class UnequalMass(AbstractConstantMass):
    """M = diag(first, others): the ratios of masses, where the first is what others are counted in."""

    first: Coefficient
    others: Coefficient

    def operator(self, q):
        others = jnp.broadcast_to(value_of(self.others), (q.shape[0] - 1,))
        return DiagonalPlusLowRank(jnp.concatenate([value_of(self.first).reshape(1), others]))


class LowRankMass(AbstractConstantMass):
    """M = diag(d) + Σ α_i k_i k_iᵀ with unit vectors k_i (appendix C.2): n + m(n + 1) parameters for m terms."""

    diagonal: Positive
    strengths: Positive
    directions: Float[Array, "m n"]

    @classmethod
    def create(cls, n: int, *, terms: int | None = None, key: PRNGKeyArray) -> "LowRankMass":
        terms = min(4, n) if terms is None else terms
        directions = jax.random.normal(key, (terms, n))
        return cls(Positive.starting_at(jnp.ones(n)), Positive.starting_at(jnp.full(terms, 0.01)), directions)

    def operator(self, q):
        return DiagonalPlusLowRank(self.diagonal(), _outer_factor(self.directions, self.strengths()))


class CartPoleMass(AbstractMass):
    """M(θ) of a cart with a hanging pole, q = (x, θ) (appendix B.2)."""

    cart: Coefficient = 1.0
    pole: Coefficient = 1.0
    length: Coefficient = 1.0

    def operator(self, q):
        cart, pole, length = value_of(self.cart), value_of(self.pole), value_of(self.length)
        coupling = pole * length * jnp.cos(q[1])
        return Dense(jnp.stack([jnp.stack([cart + pole, coupling]), jnp.stack([coupling, pole * length**2])]))


class DoublePendulumMass(AbstractMass):
    """M(q) of two point masses on massless rods in absolute angles (appendix B.4)."""

    first: Coefficient = 1.0
    second: Coefficient = 1.0
    first_length: Coefficient = 1.0
    second_length: Coefficient = 1.0

    def operator(self, q):
        m1, m2 = value_of(self.first), value_of(self.second)
        l1, l2 = value_of(self.first_length), value_of(self.second_length)
        coupling = m2 * l1 * l2 * jnp.cos(q[0] - q[1])
        return Dense(jnp.stack([jnp.stack([(m1 + m2) * l1**2, coupling]), jnp.stack([coupling, m2 * l2**2])]))


class LinkedMass(AbstractMass):
    """M(q) = [[a, c cos δ], [c cos δ, b]] with δ = q_1 - q_2: any two links in a plane, in absolute angles.

    a, b and c are what motion can tell of lengths, masses and inertias: a = I_1 + m_2 l_1², b = I_2, c = m_2 l_1 r_2,
    with I_i about joint i and r_2 from the second joint to the centre of its link. ``coupling`` is c/sqrt(ab), between
    -1 and 1, so that M ≻ 0. ``offset`` is δ where the links are in line: not zero for an encoder whose zero is off.
    """

    first: Coefficient
    second: Coefficient
    coupling: float | Bounded
    offset: Offset = 0.0

    def __check_init__(self):
        _check_coupling(self.coupling)

    def operator(self, q):
        return Dense(_two_links(self.first, self.second, self.coupling, q[0] - q[1] - value_of(self.offset)))


class JointedMass(AbstractMass):
    """The mass of :class:`LinkedMass` in joint angles, the second relative to the first, and the rotors that turn them.

    M(q) = [[a + b + 2c cos q_2 + r_1, b + c cos q_2], [b + c cos q_2, b + r_2]]. No motion tells r_1 from a.
    """

    first: Coefficient
    second: Coefficient
    coupling: float | Bounded
    rotors: Coefficient = 0.0
    offset: Offset = 0.0

    def __check_init__(self):
        _check_coupling(self.coupling)

    def operator(self, q):
        links = _two_links(self.first, self.second, self.coupling, q[1] - value_of(self.offset))
        turned = jnp.array([[1.0, 0.0], [1.0, 1.0]], q.dtype)  # absolute from relative velocities
        return Dense(turned.T @ links @ turned + jnp.diag(jnp.broadcast_to(value_of(self.rotors), (2,))))


def _two_links(first: Coefficient, second: Coefficient, coupling: float | Bounded, angle: Float[Array, ""]):
    """The mass matrix in absolute angles of two links with this angle between them."""
    a, b = value_of(first), value_of(second)
    across = value_of(coupling) * jnp.sqrt(a * b) * jnp.cos(angle)
    return jnp.stack([jnp.stack([a, across]), jnp.stack([across, b])])


def _check_coupling(coupling: float | Bounded) -> None:
    if isinstance(coupling, float) and not abs(coupling) < 1.0:
        raise InputError(f"the coupling of two links is c/sqrt(ab), between -1 and 1, not {coupling}")


class LinkageMass(AbstractMass):
    """M_ij(q) = a_ij cos(φ_i - φ_j): any number of links in a plane, in absolute angles, also on a cart.

    φ_i is the angle q_i, and zero where ``turning`` says that a coordinate does not turn, as of a cart. The a_ij are
    what motion can tell of lengths, masses and inertias, as in :class:`LinkedMass`. They make a positive definite
    matrix: its diagonal is ``first`` and ``others``, and ``couplings`` are partial correlations, row by row below the
    diagonal, each between -1 and 1. By Schur's product theorem M ≻ 0 then, whatever the angles are.
    """

    first: Coefficient
    others: Coefficient
    couplings: tuple | Bounded
    turning: tuple[bool, ...]

    def __check_init__(self):
        count = len(self.turning) * (len(self.turning) - 1) // 2
        if value_of(self.couplings).shape != (count,):
            raise InputError(f"{len(self.turning)} links have {count} couplings, given as so many numbers")

    def operator(self, q):
        n = len(self.turning)
        others = jnp.broadcast_to(value_of(self.others), (n - 1,))
        size = jnp.sqrt(jnp.concatenate([value_of(self.first)[None], others]))
        angles = jnp.where(jnp.asarray(self.turning), q, 0.0)
        entries = _correlations(value_of(self.couplings), n) * jnp.outer(size, size)
        return Dense(entries * jnp.cos(angles[:, None] - angles[None, :]))


class RelativeMass(AbstractMass):
    """A mass of absolute angles, in joint angles: each link's relative to the one before."""

    inner: AbstractMass

    def operator(self, q):
        turned = jnp.tril(jnp.ones((q.shape[0], q.shape[0]), q.dtype))  # absolute from relative velocities
        matrix = turned.T @ self.inner.operator(jnp.cumsum(q)).dense() @ turned
        return Dense(0.5 * (matrix + matrix.T))


class GearedMass(AbstractMass):
    """M(q) + diag(r): the inertias of rotors, as seen through their gears (the gear ratio squared times the rotor's).

    ``places`` are the coordinates that rotors turn.
    """

    inner: AbstractMass
    rotors: Coefficient
    places: tuple[int, ...]

    def operator(self, q):
        matrix = self.inner.operator(q).dense()
        return Dense(matrix.at[jnp.array(self.places), jnp.array(self.places)].add(value_of(self.rotors)))


def _correlations(partial: Float[Array, " pairs"], n: int) -> Float[Array, "n n"]:
    """The correlation matrix with these partial correlations: L Lᵀ with rows of L on the unit sphere."""
    rows, place = [], 0
    for i in range(n):
        left, row = jnp.ones(()), []
        for coupling in partial[place : place + i]:
            row.append(coupling * jnp.sqrt(left))
            left = left * (1.0 - coupling**2)
        rows.append(jnp.stack([*row, jnp.sqrt(left), *[jnp.zeros(())] * (n - i - 1)]))
        place += i
    lower = jnp.stack(rows)
    return lower @ lower.T


class ArmMass(AbstractMass):
    """M(q) of a planar serial arm with n links in relative joint angles, from CAD-style link data.

    Composite-rigid-body algorithm in the plane: M_jk = Σ_{i ≥ max(j,k)} m_i (c_i - o_j)·(c_i - o_k) + I_i, with c_i the
    centre of link i and o_j the position of joint j.
    """

    masses: Coefficient
    lengths: tuple
    centres: tuple
    inertias: Coefficient

    def operator(self, q):
        n = q.shape[0]
        masses, inertias = value_of(self.masses), value_of(self.inertias)
        angles = jnp.cumsum(q)
        along = jnp.stack([jnp.sin(angles), -jnp.cos(angles)], axis=-1)
        ends = jnp.cumsum(value_of(self.lengths)[:, None] * along, axis=0)
        joints = jnp.concatenate([jnp.zeros((1, 2), q.dtype), ends[:-1]])
        centres = joints + value_of(self.centres)[:, None] * along
        arms = centres[:, None, :] - joints[None, :, :]  # from joint j to the centre of link i
        moves = jnp.tril(jnp.ones((n, n), q.dtype))  # link i moves with joint j iff j <= i
        arms = arms * moves[:, :, None]
        return Dense(
            jnp.einsum("i,ijd,ikd->jk", masses, arms, arms) + jnp.einsum("i,ij,ik->jk", inertias, moves, moves)
        )


class NeuralMass(AbstractMass):
    """M(q) = diag(d(q)) + Σ α_i(q) k_i(q) k_i(q)ᵀ from one network (the paper's gauge study), solved by Woodbury."""

    network: MLP
    manifold: Manifold
    terms: int
    harmonics: int = 4

    @classmethod
    def create(
        cls, manifold: Manifold, *, terms: int | None = None, width: int = 64, harmonics: int = 4, key: PRNGKeyArray
    ) -> "NeuralMass":
        n = manifold.size
        terms = min(4, n) if terms is None else terms
        sizes = (manifold.feature_count(harmonics), width, n + terms * (n + 1))
        return cls(MLP.create(sizes, key=key), manifold, terms, harmonics)

    def operator(self, q):
        n, m = self.manifold.size, self.terms
        out = self.network(self.manifold.features(q, self.harmonics))
        diagonal = jax.nn.softplus(out[:n] + 0.5413) + 1e-3  # near one at the start
        return DiagonalPlusLowRank(
            diagonal, _outer_factor(out[n + m :].reshape(m, n), jax.nn.softplus(out[n : n + m] - 3.0))
        )


class CholeskyMass(AbstractMass):
    """M(q) = L(q) L(q)ᵀ + 10⁻³ I with L lower triangular from a network and a positive diagonal."""

    network: MLP
    manifold: Manifold
    harmonics: int = 4

    @classmethod
    def create(cls, manifold: Manifold, *, width: int = 64, harmonics: int = 4, key: PRNGKeyArray) -> "CholeskyMass":
        n = manifold.size
        sizes = (manifold.feature_count(harmonics), width, width, n * (n + 1) // 2)
        return cls(MLP.create(sizes, key=key), manifold, harmonics)

    def operator(self, q):
        n = self.manifold.size
        out = self.network(self.manifold.features(q, self.harmonics))
        rows, columns = jnp.tril_indices(n, k=-1)
        lower = jnp.diag(jax.nn.softplus(out[:n] + 0.5413)).at[rows, columns].set(out[n:])
        return Dense(lower @ lower.T + 1e-3 * jnp.eye(n, dtype=out.dtype))


def _outer_factor(directions: Float[Array, "r n"], strengths: Float[Array, " r"]) -> Float[Array, "n r"]:
    """U with U Uᵀ = Σ strength_i k_i k_iᵀ for unit k_i along the rows of ``directions``."""
    return (unit_rows(directions) * root(strengths)[:, None]).T


def root(strengths: Float[Array, " r"]) -> Float[Array, " r"]:
    """The square root, with a finite gradient also where a strength underflows to zero."""
    return jnp.sqrt(jnp.maximum(strengths, jnp.finfo(strengths.dtype).tiny))


def unit_rows(directions: Float[Array, "r n"]) -> Float[Array, "r n"]:
    """Rows scaled to length one, with a finite gradient also at zero."""
    return directions / jnp.sqrt(jnp.sum(directions**2, axis=-1, keepdims=True) + 1e-12)
