"""The paper's regimes as networks: builders that return ordinary composed objects.

:func:`known`, :func:`partial` and :func:`unknown` differ only in which components are given and which are learned.
"""

import math

import jax
from jaxtyping import PRNGKeyArray

from phast.components.damping import AbstractDamping, HouseholderDamping
from phast.components.mass import AbstractMass, ConstantMass, LowRankMass
from phast.components.parameter import Coefficient, Positive
from phast.components.potential import (
    AbstractPotential,
    Hybrid,
    MLPPotential,
    PeriodicMLPPotential,
)
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import ExplicitDamping, ImplicitMidpoint, Timestep, Transition, leapfrog
from phast.errors import InputError
from phast.estimation.forecaster import Core, Phast
from phast.estimation.observers import (
    AbstractCanonicalizer,
    AbstractObserver,
    ConvolutionalObserver,
    IdentityCanonicalizer,
    MassCanonicalizer,
)


def known(
    *,
    manifold: Manifold,
    dt: float,
    potential: AbstractPotential,
    damping: AbstractDamping,
    mass: AbstractMass = ConstantMass(1.0),  # noqa: B008 (immutable)
    timestep: Timestep | None = None,
    midpoint: bool = False,
    observer: AbstractObserver | None = None,
    key: PRNGKeyArray,
) -> Phast:
    """V and M given, the coefficients of a damping law learned: ``WindyDamping(Positive.uninformed(), …)``.

    ``midpoint`` asks for the implicit midpoint core where the mass is constant too; ``observer`` replaces FD+TCN.
    """
    system = PortHamiltonian(potential, mass, damping)
    return _pipeline(system, MassCanonicalizer(), manifold, dt, timestep, key, midpoint=midpoint, observer=observer)


def partial(
    *,
    manifold: Manifold,
    dt: float,
    potential: AbstractPotential,
    damping: AbstractDamping | None = None,
    mass: AbstractMass = ConstantMass(1.0),  # noqa: B008 (immutable)
    base: Coefficient | None = None,
    bound: float | None = None,
    harmonics: int = 4,
    timestep: Timestep | None = None,
    key: PRNGKeyArray,
) -> Phast:
    """A template V̄ and M given; ε·Ṽ and, unless a law is given, a Householder D(q) learned.

    ``base`` is d0 (learned if left out) and ``bound`` is β̄ of Eq. 11 (none if left out). ``harmonics=0`` feeds the
    residual the coordinates themselves instead of Fourier features of the angles.
    """
    potential_key, damping_key, observer_key = jax.random.split(key, 3)
    residual = _neural_potential(manifold, harmonics, potential_key)
    damping = _free_damping(manifold, base, bound, damping_key) if damping is None else damping
    hybrid = Hybrid(potential, residual, Positive.starting_at(0.01))
    return _pipeline(PortHamiltonian(hybrid, mass, damping), MassCanonicalizer(), manifold, dt, timestep, observer_key)


def unknown(
    *,
    manifold: Manifold,
    dt: float,
    damping: AbstractDamping | None = None,
    base: Coefficient | None = None,
    bound: float | None = None,
    harmonics: int = 4,
    timestep: Timestep | None = None,
    key: PRNGKeyArray,
) -> Phast:
    """V, a constant M and D all learned; the latent momentum is velocity-like (identity canonicalizer)."""
    potential_key, damping_key, mass_key, observer_key = jax.random.split(key, 4)
    damping = _free_damping(manifold, base, bound, damping_key) if damping is None else damping
    potential = _neural_potential(manifold, harmonics, potential_key)
    system = PortHamiltonian(potential, LowRankMass.create(manifold.size, key=mass_key), damping)
    return _pipeline(system, IdentityCanonicalizer(), manifold, dt, timestep, observer_key)


def _pipeline(
    system: PortHamiltonian,
    canonicalizer: AbstractCanonicalizer,
    manifold: Manifold,
    dt: float,
    timestep: Timestep | None,
    key: PRNGKeyArray,
    *,
    midpoint: bool = False,
    observer: AbstractObserver | None = None,
) -> Phast:
    """FD+TCN observer and Strang splitting: leapfrog where the mass is constant, implicit midpoint elsewhere."""
    if not (dt > 0 and math.isfinite(dt)):
        raise InputError(f"dt must be a positive number of time units per sample, not {dt}")
    core = leapfrog() if system.separable and not midpoint else ImplicitMidpoint()
    return Phast(
        core=Core(system, Transition(core, ExplicitDamping(), timestep or Timestep(dt))),
        observer=ConvolutionalObserver.create(manifold, key=key) if observer is None else observer,
        canonicalizer=canonicalizer,
        manifold=manifold,
        dt=dt,
    )


def _free_damping(
    manifold: Manifold, base: Coefficient | None, bound: float | None, key: PRNGKeyArray
) -> HouseholderDamping:
    base = Positive.uninformed() if base is None else base
    return HouseholderDamping.create(manifold, base=base, total_bound=bound, key=key)


def _neural_potential(manifold: Manifold, harmonics: int, key: PRNGKeyArray) -> AbstractPotential:
    if harmonics and any(manifold.circles):
        return PeriodicMLPPotential.create(manifold, harmonics=harmonics, key=key)
    return MLPPotential.create(manifold, key=key)
