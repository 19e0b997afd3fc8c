"""Potential energies V(q): structured, neural, and template plus a bounded neural residual (appendix D of the paper).

A potential is a scalar function of one configuration; forces come from :func:`gradient`, and batches from ``jax.vmap``.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.network import MLP
from phast.components.parameter import Coefficient, Offset, Positive, value_of
from phast.components.spline import AbstractSmooth, Grid
from phast.data.manifold import Manifold


class AbstractPotential(eqx.Module):
    """V: configuration -> energy."""

    @abstractmethod
    def __call__(self, q: Float[Array, " n"]) -> Float[Array, ""]: ...


def gradient(potential: AbstractPotential, q: Float[Array, " n"]) -> Float[Array, " n"]:
    """∇V(q)."""
    return jax.grad(potential)(q)


# --- structured ------------------------------------------------------------------------------------------------------


class Cosine(AbstractPotential):
    """V = Σ a_i (1 - cos(q_i - c_i)): gravity on hanging angles. A coordinate without gravity has a_i = 0.

    ``centre`` is where they hang at rest: not zero for an encoder whose zero is off.
    """

    amplitudes: Coefficient
    centre: Offset = 0.0

    def __call__(self, q):
        return jnp.sum(value_of(self.amplitudes) * (1.0 - jnp.cos(q - value_of(self.centre))))


class ChainCosine(AbstractPotential):
    """V = Σ a_i (1 - cos(q_1 + … + q_i - c_i)): gravity on links in relative joint angles."""

    amplitudes: Coefficient
    centre: Offset = 0.0

    def __call__(self, q):
        return jnp.sum(value_of(self.amplitudes) * (1.0 - jnp.cos(jnp.cumsum(q) - value_of(self.centre))))


class Quadratic(AbstractPotential):
    """V = ½ Σ k_i (q_i - c_i)²: independent springs."""

    stiffness: Coefficient
    centre: Offset = 0.0

    def __call__(self, q):
        return 0.5 * jnp.sum(value_of(self.stiffness) * (q - value_of(self.centre)) ** 2)


class Quartic(AbstractPotential):
    """V = Σ ½ k_i (q_i - c_i)² + ¼ κ_i (q_i - c_i)⁴: springs that harden (κ > 0) or soften (κ < 0) with the distance.

    ``stiffness`` is κ and ``straight`` is k, of the spring about its centre.
    """

    stiffness: Offset
    straight: Offset = 0.0
    centre: Offset = 0.0

    def __call__(self, q):
        squared = (q - value_of(self.centre)) ** 2
        return jnp.sum(0.5 * value_of(self.straight) * squared + 0.25 * value_of(self.stiffness) * squared**2)


class ConstantForce(AbstractPotential):
    """V = -Σ f_i q_i: forces that are the same everywhere, as weight on a slope or an offset of a motor."""

    force: Offset

    def __call__(self, q):
        return -jnp.sum(value_of(self.force) * q)


class QuadraticForm(AbstractPotential):
    """V = ½ qᵀ K q with K = F Fᵀ ⪰ 0: coupled springs. ``factor`` is F, given as rows of floats or learned."""

    factor: tuple | Float[Array, "n n"]

    def __call__(self, q):
        return 0.5 * jnp.sum((jnp.asarray(self.factor, dtype=q.dtype).T @ q) ** 2)


class HeatExchange(AbstractPotential):
    """V = ½ Σ c_i T_i² + ½ κ (T_1 - T_2)²: two coupled thermal masses."""

    capacities: Coefficient
    coupling: Coefficient

    def __call__(self, q):
        return 0.5 * jnp.sum(value_of(self.capacities) * q**2) + 0.5 * value_of(self.coupling) * (q[0] - q[1]) ** 2


class LennardJones(AbstractPotential):
    """V = Σ_{i<j} 4ε[(σ/r)¹² - (σ/r)⁶] between particles in the plane, with r² softened to r² + s²."""

    depth: Coefficient = 1.0
    diameter: Coefficient = 1.0
    softening: float = 0.1

    def __call__(self, q):
        sixth = (value_of(self.diameter) ** 2 / (_pair_distances_squared(q) + self.softening**2)) ** 3
        return jnp.sum(4.0 * value_of(self.depth) * (sixth**2 - sixth))


class Gravity(AbstractPotential):
    """V = -Σ_{i<j} G m_i m_j / sqrt(r² + s²) between point masses in the plane."""

    masses: Coefficient
    constant: float = 1.0
    softening: float = 0.1

    def __call__(self, q):
        masses = value_of(self.masses)
        first, second = _pairs(len(masses))
        inverse_distance = (_pair_distances_squared(q) + self.softening**2) ** -0.5
        return -self.constant * jnp.sum(masses[first] * masses[second] * inverse_distance)


class PairPower(AbstractPotential):
    """V = Σ_{i<j} c_ij (r² + s²)^(-k/2) between points in the plane: each pair with its own strength, of either sign.

    With k = 1 it is gravity or charge; Lennard and Jones' law is the sum of one with k = 12 and one with k = 6.
    """

    strengths: Offset
    power: int = 1
    softening: float = 0.1

    def __call__(self, q):
        near = _pair_distances_squared(q) + self.softening**2
        return jnp.sum(value_of(self.strengths) * near ** (-0.5 * self.power))


class Prey(AbstractPotential):
    """V = δ q - γ ln q: the prey's share of the Lotka–Volterra invariant, straight below ``floor``."""

    gain: Coefficient = 0.1
    decay: Coefficient = 0.4
    floor: float = 0.05

    def __call__(self, q):
        below = jnp.minimum(q - self.floor, 0.0) / self.floor
        logs = jnp.log(jnp.maximum(q, self.floor)) + below
        return jnp.sum(value_of(self.gain) * q - value_of(self.decay) * logs)


class ArmGravity(AbstractPotential):
    """Gravity on a planar arm of ``n`` links in relative joint angles, the first from the downward vertical.

    V = -g Σ_i m_i y_i with y_i the drop of link i's centre below the base: the gravity regressor of a serial arm.
    """

    masses: Coefficient
    lengths: tuple
    centres: tuple
    gravity: float = 9.81

    def __call__(self, q):
        masses, lengths, centres = value_of(self.masses), value_of(self.lengths), value_of(self.centres)
        cosines = jnp.cos(jnp.cumsum(q))
        ends = jnp.cumsum(lengths * cosines)
        bases = jnp.concatenate([jnp.zeros(1, q.dtype), ends[:-1]])
        return -self.gravity * jnp.sum(masses * (bases + centres * cosines))


def _pairs(count: int) -> tuple[Array, Array]:
    return jnp.triu_indices(count, k=1)


def _pair_distances_squared(q: Float[Array, " n"]) -> Float[Array, " pairs"]:
    points = q.reshape(-1, 2)
    first, second = _pairs(points.shape[0])
    return jnp.sum((points[first] - points[second]) ** 2, axis=-1)


def _pair_distances(q: Float[Array, " n"]) -> Float[Array, " pairs"]:
    """Softened by a hair, so that points in the same place have a gradient."""
    return jnp.sqrt(_pair_distances_squared(q) + 1e-12)


# --- neural and mixed ------------------------------------------------------------------------------------------------


class MLPPotential(AbstractPotential):
    """V = f(q) by a network on the coordinates themselves (angles wrapped)."""

    network: MLP
    manifold: Manifold

    @classmethod
    def create(cls, manifold: Manifold, *, width: int = 64, key: PRNGKeyArray) -> "MLPPotential":
        return cls(MLP.create((manifold.size, width, width, width, 1), key=key), manifold)

    def __call__(self, q):
        return self.network(self.manifold.wrap(q))[0]


class PeriodicMLPPotential(AbstractPotential):
    """V = f(φ(q)) by a network on Fourier features of the angles, so that V is exactly 2π-periodic in them."""

    network: MLP
    manifold: Manifold
    harmonics: int = 4

    @classmethod
    def create(
        cls, manifold: Manifold, *, width: int = 64, harmonics: int = 4, key: PRNGKeyArray
    ) -> "PeriodicMLPPotential":
        sizes = (manifold.feature_count(harmonics), width, width, width, 1)
        return cls(MLP.create(sizes, key=key), manifold, harmonics)

    def __call__(self, q):
        return self.network(self.manifold.features(q, self.harmonics))[0]


class Scaled(AbstractPotential):
    """a · V̄(q): a template whose overall strength is learned."""

    template: AbstractPotential
    scale: Coefficient

    def __call__(self, q):
        return value_of(self.scale) * self.template(q)


class Hybrid(AbstractPotential):
    """V = V̄ + ε·Ṽ: a physics template and a learned residual, with ε = softplus(ρ) begun small."""

    template: AbstractPotential
    residual: AbstractPotential
    epsilon: Positive

    def __call__(self, q):
        return self.template(q) + self.epsilon() * self.residual(q)


class SplinePotential(AbstractPotential, AbstractSmooth):
    """V(q) = Σ_k c_k B_k(q) with cubic B-splines: smooth forces from few local coefficients."""

    coefficients: Float[Array, "..."]
    grid: Grid

    @classmethod
    def flat(cls, grid: Grid) -> "SplinePotential":
        """V = 0."""
        return cls(jnp.zeros(grid.counts), grid)

    def __call__(self, q):
        return self.grid.value(self.coefficients, q, degree=3)

    def values(self):
        return self.coefficients.reshape(-1)

    def roughness(self):
        """Third differences."""
        return self.grid.roughness(self.coefficients, order=3)


class SeriesPotential(AbstractPotential, AbstractSmooth):
    """V(q) = Σ_k c_k Π_i φ_{k_i}(q_i) over all multi-indices with Σ k_i up to a total degree: for many coordinates.

    φ_k are powers of a line's coordinate, scaled to [-1, 1] over the data, and 1, cos θ, sin θ, cos 2θ, … on an angle.
    """

    coefficients: Float[Array, " k"]
    manifold: Manifold
    indices: tuple[tuple[int, ...], ...]
    centre: tuple[float, ...]
    reach: tuple[float, ...]

    @classmethod
    def flat(cls, manifold: Manifold, q: Float[Array, "samples n"], degree: int) -> "SeriesPotential":
        """V = 0, up to this total degree, over the range of the samples."""
        low, high = jnp.min(q, axis=0), jnp.max(q, axis=0)
        indices = _multi_indices(manifold.circles, degree)
        centre, reach = 0.5 * (low + high), 0.5 * (high - low) * (1.0 + 1e-6) + jnp.finfo(q.dtype).tiny
        return cls(jnp.zeros(len(indices)), manifold, indices, tuple(map(float, centre)), tuple(map(float, reach)))

    def __call__(self, q):
        rows, places = self._factors(q)
        values, order = jnp.ones(1), {(0,) * len(self.manifold.circles): 0}
        for level in _by_support(self.indices):  # each product is a shorter one times one more factor
            factors = [_last_factor(index) for index in level]
            parents = [index[:i] + (0,) * (len(index) - i) for index, (i, _) in zip(level, factors, strict=True)]
            shorter = np.array([order[parent] for parent in parents])
            factor = rows[np.array([places[i] + k for i, k in factors])]
            order |= {index: len(order) + j for j, index in enumerate(level)}
            values = jnp.concatenate([values, values[shorter] * factor])
        return jnp.dot(self.coefficients, values[np.array([order[index] for index in self.indices])])

    def _factors(self, q: Float[Array, " n"]) -> tuple[Float[Array, " factors"], list[int]]:
        """φ_0 … of every coordinate in one row, and where each coordinate's begin."""
        row, places = [], []
        for i, circle in enumerate(self.manifold.circles):
            places.append(len(row))
            highest = max(index[i] for index in self.indices)
            if circle:
                waves = ((jnp.cos(m * q[i]), jnp.sin(m * q[i])) for m in range(1, highest // 2 + 1))
                row += [jnp.ones(()), *(wave for pair in waves for wave in pair)]
            else:
                x = (q[i] - self.centre[i]) / self.reach[i]
                row += [x**k for k in range(highest + 1)]
        return jnp.stack(row), places

    def values(self):
        return self.coefficients

    def roughness(self):
        """Coefficients beyond the second degree, weighted by their degree."""
        degrees = np.array([_degree(k, self.manifold.circles) for k in self.indices])
        return (jnp.asarray(np.maximum(degrees - 2.0, 0.0)) * self.coefficients,)


def series_degree(circles: tuple[bool, ...], most: int, highest: int = 6) -> int:
    """The highest total degree whose products are at most this many."""
    return max(d for d in range(1, highest + 1) if d == 1 or len(_multi_indices(circles, d)) <= most)


def _degree(index: tuple[int, ...], circles: tuple[bool, ...]) -> int:
    """The total degree of a product: a power counts as such, cos mθ and sin mθ as m."""
    return sum((k + 1) // 2 if circle else k for k, circle in zip(index, circles, strict=True))


def _multi_indices(circles: tuple[bool, ...], degree: int) -> tuple[tuple[int, ...], ...]:
    """All multi-indices of at most this degree, but for the constant."""
    found: list[tuple[int, ...]] = [()]
    for i, circle in enumerate(circles):
        orders = range(2 * degree + 1) if circle else range(degree + 1)
        longer = ((*index, k) for index in found for k in orders)
        found = [index for index in longer if _degree(index, circles[: i + 1]) <= degree]
    return tuple(index for index in found if any(index))


def _by_support(indices: tuple[tuple[int, ...], ...]) -> list[list[tuple[int, ...]]]:
    """Multi-indices by how many of their entries are not zero."""
    sizes = sorted({np.count_nonzero(index) for index in indices})
    return [[index for index in indices if np.count_nonzero(index) == size] for size in sizes]


def _last_factor(index: tuple[int, ...]) -> tuple[int, int]:
    """(i, k): the last coordinate that takes part, and with which function."""
    i = max(i for i, k in enumerate(index) if k)
    return i, index[i]


class Logarithmic(AbstractPotential):
    """V(q) = W(ln q): a potential of positive coordinates over their logarithms."""

    inner: AbstractPotential

    def __call__(self, q):
        return self.inner(logarithm(q))


def logarithm(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """ln q, finite also where a step has overshot zero."""
    return jnp.log(jnp.maximum(q, jnp.finfo(q.dtype).tiny))


class PairPotential(AbstractPotential):
    """V(q) = Σ_{i<j} V_ij(|x_i - x_j|): points in the plane, x₁, y₁, x₂, y₂, …, every pair with its own free law.

    A law is a spline of ln r: what acts between points is the steeper, the nearer they are.
    """

    laws: tuple[AbstractPotential, ...]

    @classmethod
    def flat(cls, q: Float[Array, "samples n"], count: int) -> "PairPotential":
        """V = 0, with ``count`` nodes over the distances that the samples show."""
        distances = logarithm(jax.vmap(_pair_distances)(q))
        line = Manifold.parse("distance")
        return cls(tuple(Logarithmic(SplinePotential.flat(Grid.over(line, d[:, None], count))) for d in distances.T))

    def __call__(self, q):
        distances = _pair_distances(q)
        return sum(law(distances[i : i + 1]) for i, law in enumerate(self.laws))


class Some(AbstractPotential):
    """V of some of the coordinates, by their places."""

    template: AbstractPotential
    places: tuple[int, ...]

    def __call__(self, q):
        return self.template(jnp.stack([q[i] for i in self.places]))


class Along(AbstractPotential):
    """V(q) = V̄(B q): a template of combinations of coordinates, the rows of B, as of q_1 - q_2 for a spring between
    two."""

    template: AbstractPotential
    rows: tuple[tuple[float, ...], ...]

    def __call__(self, q):
        return self.template(jnp.asarray(self.rows, dtype=q.dtype) @ q)


class Sum(AbstractPotential):
    """Σ V_i."""

    parts: tuple[AbstractPotential, ...]

    def __call__(self, q):
        return sum((part(q) for part in self.parts[1:]), self.parts[0](q))
