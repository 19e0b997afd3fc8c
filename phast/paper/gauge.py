"""The paper's study of gauge freedom: which of M and V can be told from motions of the conservative double pendulum.

A row says what M and V are made of. Both are trained on the Euler–Lagrange residual of true (q, q', q''), and then
compared with the true ones at configurations of the test set. Since r is linear in (M, V), their common factor is
measured too, and what is left of the error without it.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.damping import ConstantDamping
from phast.components.lowrank import Dense
from phast.components.mass import AbstractMass, CholeskyMass, NeuralMass
from phast.components.parameter import Positive, value_of
from phast.components.potential import (
    AbstractPotential,
    Cosine,
    PeriodicMLPPotential,
    SeriesPotential,
    Some,
    Sum,
    gradient,
)
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.lagrangian import residual
from phast.dynamics.systems import System
from phast.errors import InputError
from phast.fitting.losses import Batch
from phast.fitting.matching import acceleration

Masses = Callable[[System, PRNGKeyArray], AbstractMass]
Potentials = Callable[[System, PRNGKeyArray], AbstractPotential]

_DEGREE = 3  # of the products of sines and cosines that are the sparse basis
_UNIT = 10.0  # of the coefficients of V: accelerations are of this size, and masses of one


# --- what a row is made of -------------------------------------------------------------------------------------------


class AnchoredMass(AbstractMass):
    """A learned M(q) whose last diagonal entry is given: the inertia of the outer link, which no angle changes.

    It is given at every configuration: where only one value, or a mean over some, was given, networks kept it there
    and went to zero in between.
    """

    inner: AbstractMass
    last: float = 1.0

    def operator(self, q):
        learned = self.inner.operator(q).dense()
        return Dense(self.last / learned[-1, -1] * learned)


def _sparse(system: System, key: PRNGKeyArray) -> AbstractPotential:
    return SeriesPotential.flat(system.manifold, jnp.zeros((1, system.manifold.size)), _DEGREE)


def _uninformed(count: int) -> Cosine:
    return Cosine(Positive.uninformed(count, unit=_UNIT))


def _true_strengths(system: System) -> tuple[float, ...]:
    """(g1, g2) of the simulator: for rows that begin at them or are given one of them."""
    potential = system.port_hamiltonian.potential
    if not isinstance(potential, Cosine):
        raise InputError(f"the gauge study is one of hanging links, and '{system.name}' has another potential")
    return tuple(np.asarray(value_of(potential.amplitudes)).tolist())


def _from_truth(system: System, key: PRNGKeyArray) -> AbstractPotential:
    """Two plain numbers that begin at the truth: one way in which the paper's rows may have come about."""
    return Cosine(Positive.starting_at(_true_strengths(system)))


def _second_given(system: System, key: PRNGKeyArray) -> AbstractPotential:
    return Sum((Some(_uninformed(1), (0,)), Cosine((0.0, _true_strengths(system)[1]))))


_MASSES: dict[str, Masses] = {
    "cholesky-mass": lambda system, key: CholeskyMass.create(system.manifold, key=key),
    "neural-mass": lambda system, key: NeuralMass.create(system.manifold, key=key),
    "known-mass": lambda system, key: system.port_hamiltonian.mass,
}
_POTENTIALS: dict[str, Potentials] = {
    "known": lambda system, key: system.port_hamiltonian.potential,
    "neural": lambda system, key: PeriodicMLPPotential.create(system.manifold, key=key),
    "structured": lambda system, key: _uninformed(2),
    "sparse": _sparse,
    # Beyond the paper's rows: what its text leaves open, and one coefficient of two given.
    "structured-from-truth": _from_truth,
    "structured-g2-given": _second_given,
}


def gauge_builder(name: str) -> Callable[..., PortHamiltonian]:
    """What makes the model of this name, given a system, the kind of its potential, and whether M has an anchor."""
    if name not in _MASSES:
        raise InputError(f"unknown model '{name}' of the gauge study: choose one of {', '.join(_MASSES)}")

    def build(system: System, *, potential: str = "known", anchored: bool = False, key: PRNGKeyArray):
        mass_key, potential_key = jax.random.split(key)
        mass = _MASSES[name](system, mass_key)
        mass = AnchoredMass(mass) if anchored else mass
        return PortHamiltonian(_POTENTIALS[potential](system, potential_key), mass, ConstantDamping(0.0))

    return build


# --- data ------------------------------------------------------------------------------------------------------------


def observed(data: Trajectories, truth: PortHamiltonian, *, window: int = 1) -> Batch:
    """True q, q' and q'' in windows of this many samples: by default each sample is a trajectory of its own."""
    cut = data.windows(window, window)
    q, v = jnp.asarray(cut.q, dtype=float), jnp.asarray(cut.v, dtype=float)
    return Batch(q, v=v, a=_accelerations(truth, q, v))


@eqx.filter_jit
def _accelerations(truth: PortHamiltonian, q: Float[Array, "B T n"], v: Float[Array, "B T n"]) -> Float[Array, "B T n"]:
    return jax.vmap(jax.vmap(lambda x, y: acceleration(truth, x, y)))(q, v)


# --- judging ---------------------------------------------------------------------------------------------------------


@eqx.filter_jit
def recovered(model: PortHamiltonian, truth: PortHamiltonian, seen: Batch) -> dict[str, Float[Array, ""]]:
    """Errors of M and ∇V over configurations, as they are and without the common factor, and of the motion."""
    q, v, a = (x.reshape(-1, x.shape[-1]) for x in (seen.q, seen.v, seen.a))
    masses = [jax.vmap(lambda x, s=s: s.mass.operator(x).dense())(q) for s in (truth, model)]
    forces = [jax.vmap(lambda x, s=s: gradient(s.potential, x))(q) for s in (truth, model)]
    factor = jnp.sum(masses[0] * masses[1]) / jnp.sum(masses[0] ** 2)
    moved = jax.vmap(lambda x, y: acceleration(model, x, y))(q, v)
    return {
        "mass_error": _frobenius(masses[0] - masses[1]),
        "force_error": jnp.mean(jnp.abs(forces[0] - forces[1])),
        "factor": factor,
        "mass_error_rescaled": _frobenius(masses[0] - masses[1] / factor),
        "force_error_rescaled": jnp.mean(jnp.abs(forces[0] - forces[1] / factor)),
        "mass_size": _frobenius(masses[0]),
        "force_size": jnp.mean(jnp.abs(forces[0])),
        "residual": _rms(jax.vmap(lambda x, y, z: residual(model, x, y, z))(q, v, a)),
        "acceleration_error": _rms(moved - a) / _rms(a),
    }


def _frobenius(matrices: Float[Array, "S n n"]) -> Float[Array, ""]:
    """The mean Frobenius norm."""
    return jnp.mean(jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2))))


def _rms(vectors: Float[Array, "S n"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.mean(jnp.sum(vectors**2, axis=-1)))
