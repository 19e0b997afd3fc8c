"""Dampings D(q, v) ⪰ 0, as operators acting on the velocity.

Most depend on q alone; friction also on v. Whatever the parameters, vᵀ D v ≥ 0: that is what makes a model passive.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.lowrank import AbstractOperator, Dense, DiagonalPlusLowRank, add_scaled
from phast.components.mass import root, unit_rows
from phast.components.network import MLP
from phast.components.parameter import Coefficient, value_of
from phast.components.spline import AbstractSmooth, Grid
from phast.errors import InputError
from phast.manifold import Manifold


class AbstractDamping(eqx.Module):
    """D: (configuration, velocity) -> symmetric positive semidefinite operator."""

    @abstractmethod
    def operator(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> AbstractOperator: ...


class ConstantDamping(AbstractDamping):
    """D = diag(d): viscous, one coefficient for all coordinates or one each. ``ConstantDamping(0.0)`` is none."""

    coefficients: Coefficient

    def operator(self, q, v):
        return DiagonalPlusLowRank(jnp.broadcast_to(value_of(self.coefficients), q.shape))


class WindyDamping(AbstractDamping):
    """D = diag(d_i + g_i |sin q_{a(i)}|): drag that depends on how an angle faces the wind (appendix B.1).

    ``angles[i]`` names the angle that governs coordinate i.
    """

    base: Coefficient
    gain: Coefficient
    angles: tuple[int, ...]

    def operator(self, q, v):
        facing = jnp.abs(jnp.sin(jnp.stack([q[a] for a in self.angles])))
        return DiagonalPlusLowRank(value_of(self.base) + value_of(self.gain) * facing)


class HouseholderDamping(AbstractDamping):
    """D(q) = d0 I + Σ β_i(q) k_i(q) k_i(q)ᵀ with |k_i| = 1 and β_i ≥ 0 (Eq. 10).

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


class Friction(AbstractDamping):
    """Joint friction D(v) = diag(b + c/|v| + a|v|), with |v| smoothed to sqrt(v² + s²).

    Viscous b, Coulomb c and quadratic a per coordinate; D v tends to b v + c sign(v) + a v|v| as s → 0.
    """

    viscous: Coefficient
    coulomb: Coefficient = 0.0
    quadratic: Coefficient = 0.0
    smoothing: float = 0.05

    def operator(self, q, v):
        speed = jnp.sqrt(v**2 + self.smoothing**2)
        diagonal = value_of(self.viscous) + value_of(self.coulomb) / speed + value_of(self.quadratic) * speed
        return DiagonalPlusLowRank(jnp.broadcast_to(diagonal, q.shape))


class SplineDamping(AbstractDamping, AbstractSmooth):
    """D(q) = Σ_k B_k(q) L_k L_kᵀ with hat functions B_k ≥ 0 and a Cholesky factor at every node: D ⪰ 0 everywhere.

    ``entries[…, :n]`` make the diagonal of L_k through softplus, the others stand below it.
    """

    entries: Float[Array, "... k"]
    grid: Grid

    @classmethod
    def uninformed(cls, grid: Grid) -> "SplineDamping":
        """The same at every node, without coupling: softplus(0)² = 0.48 on the diagonal, whatever the data."""
        n = grid.manifold.size
        return cls(jnp.zeros((*grid.counts, n * (n + 1) // 2)), grid)

    def operator(self, q, v):
        n = q.shape[0]
        if n == 1:
            return DiagonalPlusLowRank(self.grid.value(jax.nn.softplus(self.entries) ** 2, q, degree=1))
        lower = _lower(self.entries, n)
        return Dense(self.grid.value(lower @ jnp.swapaxes(lower, -1, -2), q, degree=1))

    def values(self):
        return self.entries.reshape(-1)

    def roughness(self):
        """Second differences."""
        return self.grid.roughness(self.entries, order=2)


class PSDDamping(AbstractDamping):
    """D = L Lᵀ, constant and full: viscous drag that may couple the coordinates. ``entries`` as in SplineDamping."""

    entries: Float[Array, " k"]

    @classmethod
    def uninformed(cls, n: int) -> "PSDDamping":
        """softplus(0)² = 0.48 on the diagonal, no coupling."""
        return cls(jnp.zeros(n * (n + 1) // 2))

    def operator(self, q, v):
        lower = _lower(self.entries, q.shape[0])
        return Dense(lower @ lower.T)


class SumDamping(AbstractDamping):
    """Σ D_i: a sum of dampings is one."""

    parts: tuple[AbstractDamping, ...]

    def operator(self, q, v):
        total, *others = (part.operator(q, v) for part in self.parts)
        for other in others:
            total = add_scaled(total, 1.0, other)
        return total


def _lower(entries: Float[Array, "*nodes k"], n: int) -> Float[Array, "*nodes n n"]:
    """Lower triangular matrices whose diagonal is softplus of the first n entries."""
    rows, columns = jnp.tril_indices(n, k=-1)
    lower = jnp.eye(n) * jax.nn.softplus(entries[..., None, :n])
    return lower.at[..., rows, columns].set(entries[..., n:])
