"""Dampings D(q, v) ⪰ 0, as operators acting on the velocity.

Most depend on q alone; ``AbstractFriction`` marks those that depend on v too, for which a damping step has to look
ahead. Whatever the parameters, vᵀ D v ≥ 0: that is what makes a model passive.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.lowrank import AbstractOperator, Dense, DiagonalPlusLowRank, add_scaled
from phast.components.mass import root, unit_rows
from phast.components.network import MLP
from phast.components.parameter import Coefficient, check_unit, value_of
from phast.components.potential import logarithm
from phast.components.spline import AbstractSmooth, Grid
from phast.data.manifold import Manifold
from phast.errors import InputError


class AbstractDamping(eqx.Module):
    """D: (configuration, velocity) -> symmetric positive semidefinite operator."""

    @abstractmethod
    def operator(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> AbstractOperator: ...


class AbstractFriction(AbstractDamping):
    """A damping that depends on the velocity."""


def depends_on_velocity(damping: AbstractDamping) -> bool:
    """Whether there is friction in this damping, also deep in a sum."""
    is_friction = lambda node: isinstance(node, AbstractFriction)  # noqa: E731
    return any(map(is_friction, jax.tree.leaves(damping, is_leaf=is_friction)))


class ConstantDamping(AbstractDamping):
    """D = diag(d): viscous, one coefficient for all coordinates or one each. ``ConstantDamping(0.0)`` is none."""

    coefficients: Coefficient

    def operator(self, q, v):
        return DiagonalPlusLowRank(jnp.broadcast_to(value_of(self.coefficients), q.shape))


class WindyDamping(AbstractDamping):
    """D = diag(d_i + g_i abs(sin q_{a(i)})): drag that depends on how an angle faces the wind (appendix B.1).

    ``angles[i]`` names the angle that governs coordinate i.
    """

    base: Coefficient
    gain: Coefficient
    angles: tuple[int, ...]

    def operator(self, q, v):
        facing = jnp.abs(jnp.sin(jnp.stack([q[a] for a in self.angles])))
        return DiagonalPlusLowRank(value_of(self.base) + value_of(self.gain) * facing)


class FacingDamping(AbstractDamping):
    """D = g abs(sin q_a) e eᵀ: drag on one coordinate that depends on how the angle q_a faces the flow.

    ``place`` is the coordinate that feels it. A :class:`WindyDamping` has this on every coordinate, and a base.
    """

    gain: Coefficient
    place: int
    angle: int

    def operator(self, q, v):
        strength = jnp.sum(value_of(self.gain)) * jnp.abs(jnp.sin(q[self.angle]))
        return DiagonalPlusLowRank(jnp.zeros_like(q).at[self.place].set(strength))


class HouseholderDamping(AbstractDamping):
    """D(q) = d0 I + Σ β_i(q) k_i(q) k_i(q)ᵀ with unit vectors k_i and β_i ≥ 0 (Eq. 10).

    With ``bound`` every β_i = bound·sigmoid(·), so Σ β_i ≤ β̄ = rank · bound and λ_max(D) ≤ d0 + β̄ (Eq. 11);
    without it β_i = softplus(·). ``create`` takes β̄ itself.
    """

    base: Coefficient
    direction_network: MLP
    strength_network: MLP
    manifold: Manifold
    bound: float | None
    harmonics: int = 4

    @classmethod
    def create(
        cls,
        manifold: Manifold,
        *,
        base: Coefficient,
        total_bound: float | None = None,
        rank: int = 2,
        width: int = 64,
        harmonics: int = 4,
        key: PRNGKeyArray,
    ) -> "HouseholderDamping":
        if total_bound is not None and not total_bound > 0:
            raise InputError(f"the bound on the damping strength must be positive, not {total_bound}")
        features = manifold.feature_count(harmonics)
        direction_key, strength_key = jax.random.split(key)
        return cls(
            base,
            MLP.create((features, width, rank * manifold.size), key=direction_key),
            MLP.create((features, width, rank), key=strength_key),
            manifold,
            None if total_bound is None else total_bound / rank,
            harmonics,
        )

    def strengths(self, q: Float[Array, " n"]) -> Float[Array, " r"]:
        """β(q)."""
        return self._bounded(self.strength_network(self.manifold.features(q, self.harmonics)))

    def operator(self, q, v):
        features = self.manifold.features(q, self.harmonics)
        factor = root(self._bounded(self.strength_network(features)))[None]
        if q.shape[0] > 1:  # in one dimension k kᵀ = 1 whatever the network says
            factor = unit_rows(self.direction_network(features).reshape(-1, q.shape[0])).T * factor
        return DiagonalPlusLowRank(jnp.broadcast_to(value_of(self.base), q.shape), factor)

    def _bounded(self, raw: Float[Array, " r"]) -> Float[Array, " r"]:
        return jax.nn.softplus(raw) if self.bound is None else self.bound * jax.nn.sigmoid(raw)


class Friction(AbstractFriction):
    """Joint friction ``D(v) = diag(b + c/|v| + a|v|)``, with ``|v|`` smoothed to sqrt(v² + s²).

    Viscous b, Coulomb c and quadratic a per coordinate; D v tends to ``b v + c sign(v) + a v|v|`` as s → 0.

    With ``joints``, the rows of a matrix B, friction acts on the relative velocities w = B v instead, with one b, c and
    a for each: ``D = Bᵀ diag(b + c/|w| + a|w|) B``. Two links in absolute angles have the joints ((1, 0), (-1, 1)).
    """

    viscous: Coefficient
    coulomb: Coefficient = 0.0
    quadratic: Coefficient = 0.0
    smoothing: float = 0.05
    joints: tuple | None = None

    def operator(self, q, v):
        return self.placed(self.strengths(self.speeds(v)), q)

    def speeds(self, v) -> Float[Array, " m"]:
        """w, the velocities on which the friction acts."""
        return v if self.joints is None else jnp.asarray(self.joints, dtype=v.dtype) @ v

    def strengths(self, w: Float[Array, " m"]) -> Float[Array, " m"]:
        """Force over velocity, of each joint."""
        terms = value_of(self.viscous), value_of(self.coulomb), value_of(self.quadratic)
        return jnp.broadcast_to(_friction(*terms, w, self.smoothing), w.shape)

    def placed(self, strengths: Float[Array, " m"], q) -> DiagonalPlusLowRank:
        """D of joints with these strengths."""
        if self.joints is None:
            return DiagonalPlusLowRank(strengths)
        return _at_joints(jnp.asarray(self.joints, dtype=q.dtype), strengths)


class DirectionalFriction(AbstractFriction):
    """Friction that differs by direction: ``forward`` where a joint moves towards larger numbers, else ``backward``.

    D is that of the one or of the other, joint by joint, and near rest, over the smoothing of ``forward``, a mean of
    both. The two have the same joints.
    """

    forward: Friction
    backward: Friction

    def __check_init__(self):
        if self.forward.joints != self.backward.joints:
            raise InputError("friction that differs by direction has the same joints both ways")

    def operator(self, q, v):
        w = self.forward.speeds(v)
        share = 0.5 * (1.0 + w / jnp.sqrt(w**2 + self.forward.smoothing**2))
        strengths = share * self.forward.strengths(w) + (1.0 - share) * self.backward.strengths(w)
        return self.forward.placed(strengths, q)


class Stiction(AbstractFriction):
    """Coulomb friction that holds: a joint at rest stays there under any load up to its ``limit``.

    In motion it is the force -c sign(w), as in :class:`Friction`, smoothed in the vector field. A
    :class:`~phast.dynamics.integrators.Transition` resolves it exactly instead (:mod:`phast.dynamics.stiction`).
    ``joints`` are rows as in :class:`Friction`.
    """

    limit: Coefficient
    smoothing: float = 0.05
    joints: tuple | None = None

    def operator(self, q, v):
        return Friction(0.0, self.limit, 0.0, self.smoothing, self.joints).operator(q, v)


class FrictionField(AbstractFriction, AbstractSmooth):
    """Friction of one joint that varies with the position: ``D(q, v) = (b(q) + c(q)/|w| + a(q)|w|) j jᵀ``, w = j·v.

    ``entries[…, i]`` make b, c and a at the nodes of the grid, units[i] · softplus, with hats between: none is ever
    negative. ``joint`` is the row j, as in :class:`Friction`; left out, it is the coordinate along which the grid lies.
    Several joints are a :class:`SumDamping`.
    """

    entries: Float[Array, "... 3"]
    grid: Grid
    joint: tuple | None = None
    smoothing: float = 0.05
    units: tuple[float, float, float] = eqx.field(static=True, default=(1.0, 1.0, 1.0))

    def __check_init__(self):
        for unit in self.units:
            check_unit(unit)
        if self.joint is None and len(self.grid.spanned) > 1:
            raise InputError("friction on a grid over two coordinates needs joint=…, the row j of w = j·v")

    @classmethod
    def uninformed(
        cls,
        grid: Grid,
        joint: tuple | None = None,
        *,
        smoothing: float = 0.05,
        units: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> "FrictionField":
        """softplus(0) = log 2 units of each at every node."""
        return cls(jnp.zeros((*grid.counts, 3)), grid, joint, smoothing, units)

    def operator(self, q, v):
        b, c, a = self.grid.value(jnp.asarray(self.units) * jax.nn.softplus(self.entries), q, degree=1)
        if self.joint is None:
            (own,) = self.grid.spanned
            return DiagonalPlusLowRank(jnp.zeros_like(q).at[own].set(_friction(b, c, a, v[own], self.smoothing)))
        joint = jnp.asarray(self.joint, dtype=q.dtype)[None]
        return _at_joints(joint, _friction(b, c, a, joint @ v, self.smoothing))

    def values(self):
        return self.entries.reshape(-1)

    def roughness(self):
        """Second differences, of each term on its own."""
        return tuple(part for i in range(3) for part in self.grid.roughness(self.entries[..., i], order=2))


def _friction(viscous, coulomb, quadratic, w: Float[Array, "*joints"], smoothing: float) -> Float[Array, "*joints"]:
    """b + c/|w| + a|w|: force over velocity."""
    speed = jnp.sqrt(w**2 + smoothing**2)
    return viscous + coulomb / speed + quadratic * speed


def _at_joints(joints: Float[Array, "m n"], strengths: Float[Array, " m"]) -> DiagonalPlusLowRank:
    """Bᵀ diag(f) B."""
    return DiagonalPlusLowRank(jnp.zeros(joints.shape[1], joints.dtype), joints.T * root(strengths))


class SplineDamping(AbstractDamping, AbstractSmooth):
    """D(q) = u Σ_k B_k(q) L_k L_kᵀ with hat functions B_k ≥ 0 and a Cholesky factor at every node: D ⪰ 0 everywhere.

    ``entries[…, :n]`` make the diagonal of L_k through softplus, the others stand below it. u is the ``unit``, the
    magnitude that D is expected to have.
    """

    entries: Float[Array, "... k"]
    grid: Grid
    unit: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_unit(self.unit)

    @classmethod
    def uninformed(cls, grid: Grid, unit: float = 1.0) -> "SplineDamping":
        """The same at every node, without coupling: softplus(0)² = 0.48 units on the diagonal, whatever the data."""
        n = grid.manifold.size
        return cls(jnp.zeros((*grid.counts, n * (n + 1) // 2)), grid, unit)

    def operator(self, q, v):
        n = q.shape[0]
        if n == 1:
            return DiagonalPlusLowRank(self.unit * self.grid.value(jax.nn.softplus(self.entries) ** 2, q, degree=1))
        lower = _lower(self.entries, n)
        return Dense(self.unit * self.grid.value(lower @ jnp.swapaxes(lower, -1, -2), q, degree=1))

    def values(self):
        return self.entries.reshape(-1)

    def roughness(self):
        """Second differences."""
        return self.grid.roughness(self.entries, order=2)


class PSDDamping(AbstractDamping):
    """D = u L Lᵀ, constant and full: viscous drag that may couple the coordinates. Fields as in SplineDamping."""

    entries: Float[Array, " k"]
    unit: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_unit(self.unit)

    @classmethod
    def uninformed(cls, n: int, unit: float = 1.0) -> "PSDDamping":
        """softplus(0)² = 0.48 units on the diagonal, no coupling."""
        return cls(jnp.zeros(n * (n + 1) // 2), unit)

    def operator(self, q, v):
        lower = _lower(self.entries, q.shape[0])
        return Dense(self.unit * (lower @ lower.T))


class SumDamping(AbstractDamping):
    """Σ D_i: a sum of dampings is one."""

    parts: tuple[AbstractDamping, ...]

    def operator(self, q, v):
        total, *others = (part.operator(q, v) for part in self.parts)
        for other in others:
            total = add_scaled(total, 1.0, other)
        return total


class ProportionalDamping(AbstractDamping):
    """D(q) = Q D̄(ln q) Q with Q = diag(q): what D̄ is to the logarithms of positive coordinates."""

    inner: AbstractDamping

    def operator(self, q, v):
        return Dense(self.inner.operator(logarithm(q), v).dense() * jnp.outer(q, q))


def _lower(entries: Float[Array, "*nodes k"], n: int) -> Float[Array, "*nodes n n"]:
    """Lower triangular matrices whose diagonal is softplus of the first n entries."""
    rows, columns = jnp.tril_indices(n, k=-1)
    lower = jnp.eye(n) * jax.nn.softplus(entries[..., None, :n])
    return lower.at[..., rows, columns].set(entries[..., n:])
