"""Right-hand sides by linear regression: the known physics with a few unknown numbers, and a sparse choice of terms."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.damping import AbstractDamping, ConstantDamping, WindyDamping
from phast.components.lowrank import DiagonalPlusLowRank
from phast.components.mass import AbstractMass
from phast.components.parameter import Positive, value_of
from phast.components.potential import Quadratic, Scaled, gradient
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.derivatives import Samples
from phast.fitting.matching import acceleration
from phast.paper.flow import AbstractField, Library, Regression


class FourierDamping(AbstractDamping):
    """D = diag(d_i) with d_i = Σ_k c_k φ_k(q_a), a Fourier series in one angle.

    Of either sign: least squares knows no passivity. ``angles[i]`` and ``series[i]`` say which angle and which row of
    the coefficients govern coordinate i.
    """

    coefficients: Float[Array, "series terms"]
    angles: tuple[int, ...]
    series: tuple[int, ...]

    @classmethod
    def like(cls, law: AbstractDamping, n: int, harmonics: int) -> "FourierDamping":
        """What is known of a law: constants, or functions of which angle, and whether all coordinates share one."""
        if isinstance(law, WindyDamping):
            shared = value_of(law.base).ndim == value_of(law.gain).ndim == 0
            return cls(jnp.zeros((1 if shared else n, 2 * harmonics + 1)), law.angles, (0,) * n if shared else _each(n))
        if isinstance(law, ConstantDamping):
            return cls(jnp.zeros((n, 1)), (0,) * n, _each(n))
        raise InputError(f"least squares has no series for {type(law).__name__}")

    def terms(self, q: Float[Array, " n"]) -> Float[Array, "n terms"]:
        """φ(q_a) for every coordinate."""
        orders = jnp.arange(1, self.coefficients.shape[1] // 2 + 1)
        angle = q[jnp.asarray(self.angles)][:, None]
        return jnp.concatenate([jnp.ones_like(angle), jnp.cos(orders * angle), jnp.sin(orders * angle)], axis=1)

    def forces(self, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, "n coefficients"]:
        """D v per unit of every coefficient."""
        which = jnp.arange(self.coefficients.shape[0]) == jnp.asarray(self.series)[:, None]
        return (v[:, None, None] * which[:, :, None] * self.terms(q)[:, None, :]).reshape(len(self.series), -1)

    def operator(self, q, v):
        return DiagonalPlusLowRank(jnp.sum(self.terms(q) * self.coefficients[jnp.asarray(self.series)], axis=1))


def _each(n: int) -> tuple[int, ...]:
    return tuple(range(n))


class Mechanical(AbstractField):
    """(v, q'') of a port-Hamiltonian system."""

    system: PortHamiltonian

    def __call__(self, q, v):
        return v, acceleration(self.system, q, v)


@eqx.filter_jit
def _regressors(truth: PortHamiltonian, law: FourierDamping, q: Float[Array, "S n"], v: Float[Array, "S n"]):
    """(acceleration without forces, acceleration per unit of the template's scale and of every damping coefficient)."""
    free = PortHamiltonian(Quadratic(0.0), truth.mass, ConstantDamping(0.0))

    def one(q, v):
        pulls = jnp.concatenate([gradient(truth.potential, q)[:, None], law.forces(q, v)], axis=1)
        return acceleration(free, q, v), -jax.vmap(truth.mass.operator(q).solve, 1, 1)(pulls)

    return jax.vmap(one)(q, v)


def least_squares(truth: PortHamiltonian, law: FourierDamping, samples: Samples) -> Mechanical:
    """M(q)q'' + C(q, q')q' = -a ∇V(q) - D q' with M and the shape of V known: the best a and D, in one solve."""
    free, columns = map(np.asarray, _regressors(truth, law, jnp.asarray(samples.q), jnp.asarray(samples.v)))
    solution = np.linalg.lstsq(columns.reshape(-1, columns.shape[-1]), (samples.a - free).reshape(-1), rcond=None)[0]
    found = eqx.tree_at(lambda d: d.coefficients, law, jnp.asarray(solution[1:]).reshape(law.coefficients.shape))
    strength = Positive.starting_at(max(solution[0], 1e-9))
    return Mechanical(PortHamiltonian(Scaled(truth.potential, strength), truth.mass, found))


def sparse(library: Library, threshold: float, samples: Samples) -> Regression:
    """The equations that pysindy finds, as a field that can be followed for many trajectories at once."""
    import pysindy
    from pysindy.feature_library.base import ConcatLibrary, TensoredLibrary

    def waves():
        return ConcatLibrary([pysindy.PolynomialLibrary(degree=0), pysindy.FourierLibrary(library.harmonics)])

    parts = [*(waves() for _ in library.angles), pysindy.PolynomialLibrary(degree=library.degree)]
    terms = TensoredLibrary(parts, [*([i] for i in library.angles), library.rest])
    model = pysindy.SINDy(optimizer=pysindy.STLSQ(threshold=threshold), feature_library=terms)
    state = np.concatenate([samples.q, samples.v], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a threshold removes everything is for the choice to see
        model.fit(state, t=1.0, x_dot=np.concatenate([samples.v, samples.a], axis=1))
    return Regression(library, jnp.asarray(model.coefficients()[samples.q.shape[1] :]))


def linear_friction(field: AbstractField, mass: AbstractMass, q: Float[Array, " n"]) -> Float[Array, " n"]:
    """diag(-M ∂q''/∂v) at rest, which is diag(D): the Coriolis terms are quadratic in v. M is lent by the simulator."""
    slope = jax.jacfwd(lambda v: field(q, v)[1])(jnp.zeros_like(q))
    return -jnp.diag(mass.operator(q).dense() @ slope)
