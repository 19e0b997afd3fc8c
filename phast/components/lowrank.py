"""Symmetric operators that are never formed as matrices unless they are tiny.

``DiagonalPlusLowRank`` is A = diag(d) + U Uᵀ with U of shape (n, r): a product costs O(nr), a solve by Woodbury's
identity O(nr² + r³), the log-determinant O(nr² + r³) (appendix A.3 and Algorithm 2 of the paper). ``Dense`` serves
masses that come as a matrix from a Lagrangian. Both answer the same four questions: ``matvec``, ``solve``,
``log_determinant``, ``dense``.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

_UNROLL_UP_TO = 4


class AbstractOperator(eqx.Module):
    """A symmetric positive (semi)definite operator on R^n."""

    @abstractmethod
    def matvec(self, x: Float[Array, " n"]) -> Float[Array, " n"]: ...

    @abstractmethod
    def solve(self, y: Float[Array, " n"]) -> Float[Array, " n"]: ...

    @abstractmethod
    def log_determinant(self) -> Float[Array, ""]: ...

    @abstractmethod
    def diagonal_part(self) -> Float[Array, " n"]: ...

    @abstractmethod
    def dense(self) -> Float[Array, "n n"]: ...


class DiagonalPlusLowRank(AbstractOperator):
    """diag(d) + U Uᵀ."""

    diagonal: Float[Array, " n"]
    factor: Float[Array, "n r"] | None = None

    def matvec(self, x):
        y = self.diagonal * x
        return y if self.factor is None else y + self.factor @ (self.factor.T @ x)

    def solve(self, y):
        """Algorithm 2: v = Λ⁻¹y - Λ⁻¹U (I + UᵀΛ⁻¹U)⁻¹ UᵀΛ⁻¹y."""
        z = y / self.diagonal
        if self.factor is None:
            return z
        scaled = self.factor / self.diagonal[:, None]
        return z - scaled @ solve_spd(_capacitance(self.factor, scaled), self.factor.T @ z)

    def log_determinant(self):
        """log|Λ| + log|I + UᵀΛ⁻¹U|."""
        total = jnp.sum(jnp.log(self.diagonal))
        if self.factor is None:
            return total
        lower = cholesky(_capacitance(self.factor, self.factor / self.diagonal[:, None]))
        return total + 2.0 * jnp.sum(jnp.log(jnp.diagonal(lower)))

    def diagonal_part(self):
        return self.diagonal if self.factor is None else self.diagonal + jnp.sum(self.factor**2, axis=-1)

    def dense(self):
        matrix = jnp.diag(self.diagonal)
        return matrix if self.factor is None else matrix + self.factor @ self.factor.T


def _capacitance(factor: Float[Array, "n r"], scaled: Float[Array, "n r"]) -> Float[Array, "r r"]:
    """I + Uᵀ Λ⁻¹ U."""
    return jnp.eye(scaled.shape[1], dtype=scaled.dtype) + factor.T @ scaled


class Dense(AbstractOperator):
    """A small matrix, as a Lagrangian or a Cholesky network gives it."""

    matrix: Float[Array, "n n"]

    def matvec(self, x):
        return self.matrix @ x

    def solve(self, y):
        return solve_spd(self.matrix, y)

    def log_determinant(self):
        return 2.0 * jnp.sum(jnp.log(jnp.diagonal(cholesky(self.matrix))))

    def diagonal_part(self):
        return jnp.diagonal(self.matrix)

    def dense(self):
        return self.matrix


def add_scaled(a: AbstractOperator, scale: Float[Array, ""] | float, b: AbstractOperator) -> AbstractOperator:
    """a + scale·b for scale ≥ 0, low rank where both are."""
    if isinstance(a, DiagonalPlusLowRank) and isinstance(b, DiagonalPlusLowRank):
        factors = [f for f in (a.factor, None if b.factor is None else jnp.sqrt(scale) * b.factor) if f is not None]
        return DiagonalPlusLowRank(
            a.diagonal + scale * b.diagonal, jnp.concatenate(factors, axis=1) if factors else None
        )
    return Dense(a.dense() + scale * b.dense())


def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower Cholesky factor; written out for tiny matrices, where a batched LAPACK call costs far more."""
    n = matrix.shape[0]
    if n > _UNROLL_UP_TO:
        return jnp.linalg.cholesky(matrix)
    rows: list[list] = []
    for i in range(n):
        row: list = []
        for j in range(i):
            row.append((matrix[i, j] - sum(row[k] * rows[j][k] for k in range(j))) / rows[j][j])
        row.append(jnp.sqrt(matrix[i, i] - sum(entry * entry for entry in row)))
        rows.append(row)
    zero = jnp.zeros((), matrix.dtype)
    return jnp.stack([jnp.stack(row + [zero] * (n - len(row))) for row in rows])


def solve_spd(matrix: Float[Array, "n n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
    """matrix⁻¹ y by Cholesky, written out for tiny matrices."""
    n = matrix.shape[0]
    lower = cholesky(matrix)
    if n > _UNROLL_UP_TO:
        return cho_solve((lower, True), y)
    x = list(solve_lower(lower, y))
    for i in reversed(range(n)):
        x[i] = (x[i] - sum(lower[k, i] * x[k] for k in range(i + 1, n))) / lower[i, i]
    return jnp.stack(x)


def solve_pentadiagonal(matrix: Float[Array, "n n"], y: Float[Array, "n columns"]) -> Float[Array, "n columns"]:
    """matrix⁻¹ y where the matrix is positive definite with two bands on each side, by L D Lᵀ in one pass each way.

    Linear in n, and no call to LAPACK: batched ones from two threads at a time lock XLA up.
    """
    beside = jnp.pad(jnp.diagonal(matrix, 1), (1, 0))
    beyond = jnp.pad(jnp.diagonal(matrix, 2), (2, 0))

    def forth(carry, row):
        (d1, l1, z1), (d2, _, z2) = carry  # one and two rows back
        own, near, far, b = row
        second = far / d2
        first = (near - d2 * second * l1) / d1
        d, z = own - d1 * first**2 - d2 * second**2, b - first * z1 - second * z2
        return ((d, first, z), carry[0]), (first, second, z / d)

    def back(carry, row):
        (x1, first1, second1), (x2, second2) = carry
        first, second, z = row
        x = z - first1 * x1 - second2 * x2
        return ((x, first, second), (x1, second1)), x

    none, nothing = jnp.zeros((), y.dtype), jnp.zeros_like(y[0])
    edge = (jnp.ones((), y.dtype), none, nothing)
    rows = jax.lax.scan(forth, (edge, edge), (jnp.diagonal(matrix), beside, beyond, y))[1]
    return jax.lax.scan(back, ((nothing, none, none), (nothing, none)), rows, reverse=True)[1]


def solve_lower(lower: Float[Array, "n n"], y: Float[Array, "n *columns"]) -> Float[Array, "n *columns"]:
    """lower⁻¹ y, written out for tiny matrices."""
    n = lower.shape[0]
    if n > _UNROLL_UP_TO:
        return solve_triangular(lower, y, lower=True)
    x: list = []
    for i in range(n):
        x.append((y[i] - sum(lower[i, k] * x[k] for k in range(i))) / lower[i, i])
    return jnp.stack(x)


def _eigenvalues(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues and eigenvectors of a symmetric matrix, in closed form where there are two."""
    if matrix.shape[0] != 2:
        return jnp.linalg.eigh(matrix)
    mean, half = 0.5 * (matrix[0, 0] + matrix[1, 1]), 0.5 * (matrix[0, 0] - matrix[1, 1])
    radius, turn = jnp.hypot(half, matrix[0, 1]), 0.5 * jnp.arctan2(matrix[0, 1], half)
    cosine, sine = jnp.cos(turn), jnp.sin(turn)
    vectors = jnp.stack([jnp.stack([-sine, cosine]), jnp.stack([cosine, sine])])
    return jnp.stack([mean - radius, mean + radius]), vectors


@jax.custom_jvp
def exponential_of_negative(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """exp(-S) for symmetric S ⪰ 0, by its eigenvalues: never longer than the identity, however large S is."""
    values, vectors = _eigenvalues(matrix)
    return (vectors * jnp.exp(-jnp.maximum(values, 0.0))) @ vectors.T


@exponential_of_negative.defjvp
def _exponential_of_negative_jvp(primals, tangents):
    """Divided differences of exp(-λ), which stay finite where eigenvalues meet (Daleckii and Krein)."""
    (matrix,), (change,) = primals, tangents
    values, vectors = _eigenvalues(matrix)
    values = jnp.maximum(values, 0.0)
    low = jnp.minimum(values[:, None], values[None, :])
    gap = jnp.abs(values[:, None] - values[None, :])
    close = gap < 1e-6
    slope = jnp.where(close, -1.0 + 0.5 * gap, jnp.expm1(-gap) / jnp.where(close, 1.0, gap))
    inner = jnp.exp(-low) * slope * (vectors.T @ change @ vectors)
    return (vectors * jnp.exp(-values)) @ vectors.T, vectors @ inner @ vectors.T
