"""Named models: keyword-only builders that return ordinary composed objects, and the one table of them.

:func:`known`, :func:`partial` and :func:`unknown` are the paper's regimes for any system; they differ only in which
components are given and which are learned. The ``phast_*`` builders apply them to a simulated system the way that the
paper's table rows do, so that every printed parameter count comes out (notes, section 2).
"""

import dataclasses
import difflib
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from phast.components.damping import AbstractDamping, ConstantDamping, Friction, WindyDamping
from phast.components.mass import AbstractMass, ConstantMass
from phast.components.parameter import Coefficient, Positive, parameter_count, value_of
from phast.components.potential import (
    AbstractPotential,
    LennardJones,
    Prey,
    QuadraticForm,
    Scaled,
)
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import Timestep
from phast.dynamics.systems import System
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster, AbstractFullState, Core, Phast
from phast.estimation.observers import (
    ConvolutionalObserver,
)
from phast.fitting.networks import known, partial, unknown
from phast.paper.baselines.attention import Positions, TransformerBlock, VolumePreserving
from phast.paper.baselines.dhnn import DHNN, DhnnStep
from phast.paper.baselines.recurrent import GRU, LSTM, S5, DLinOSS, LinOSS
from phast.paper.baselines.sequence import AbstractBlock, Affine, SequenceModel, feature_count

# --- the paper's rows ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """What the paper gives a model of one system, decoded from its parameter counts.

    ``template`` makes the potential of KNOWN and PARTIAL with the scalars that are learned in it; the internal timestep
    is learned where the count has room for it (the five non-mechanical rows); ``harmonics`` are the Fourier features of
    the residual in PARTIAL; ``silent`` rows have no damping parameter in UNKNOWN. ``mass`` is what M is taken to be:
    the paper's rows approximate it by a constant.
    """

    template: Callable[[System], AbstractPotential]
    mass: Callable[[System], AbstractMass] = lambda system: system.constant_mass
    learned_timestep: bool = False
    harmonics: int = 4
    silent: bool = False


def _as_given(system: System) -> AbstractPotential:
    return system.port_hamiltonian.potential


def _scaled(system: System) -> AbstractPotential:
    return Scaled(system.port_hamiltonian.potential, Positive.starting_at(1.0))


def _stiffness(system: System) -> AbstractPotential:
    return QuadraticForm(jnp.eye(system.manifold.size))


def _well(system: System) -> AbstractPotential:
    return LennardJones(Positive.starting_at(1.0), Positive.starting_at(1.0))


def _prey(system: System) -> AbstractPotential:
    return Scaled(Prey(), Positive.starting_at(1.0))


ROWS: dict[str, PaperRow] = {
    "pendulum-conservative": PaperRow(_scaled),
    "pendulum-damped": PaperRow(_scaled),
    "pendulum-windy": PaperRow(_scaled),
    "cartpole-windy": PaperRow(_scaled),
    "oscillator-conservative": PaperRow(_as_given, silent=True),
    "oscillator-damped": PaperRow(_as_given, silent=True),
    "double-pendulum-conservative": PaperRow(_scaled, harmonics=0, silent=True),
    "double-pendulum-damped": PaperRow(_scaled, harmonics=0, silent=True),
    "rlc": PaperRow(_stiffness, learned_timestep=True),
    "lennard-jones-3": PaperRow(_well, learned_timestep=True),
    "heat-exchange": PaperRow(_stiffness, learned_timestep=True),
    "n-body-3": PaperRow(_scaled, learned_timestep=True),
    "predator-prey": PaperRow(_prey, learned_timestep=True),
    # Not a row of the paper: V anchors the scale, so that this pendulum's mass can be learned.
    "pendulum-unknown-mass": PaperRow(_as_given, mass=lambda system: ConstantMass(Positive.starting_at(1.0))),
}
_OTHER = PaperRow(_as_given, mass=lambda system: system.port_hamiltonian.mass)


def phast_known(
    system: System,
    *,
    key: PRNGKeyArray,
    true_mass: bool = False,
    midpoint: bool = False,
    random_head: bool = False,
    unwrapped: bool = False,
    **variation: Any,
) -> Phast:
    """V and M from the system, every damping coefficient forgotten and learned.

    ``true_mass`` takes the simulator's M(q) instead of the constant that the paper's rows approximate it by.
    ``random_head`` and ``unwrapped`` are choices of the observer that the paper leaves open: its correction starts
    anywhere instead of at zero; it reads angles that run on instead of wrapped ones.
    """
    row = row_of(system)
    seen = Manifold(system.manifold.names, (False,) * system.manifold.size) if unwrapped else system.manifold
    return known(
        manifold=system.manifold,
        dt=system.dt,
        potential=row.template(system),
        damping=forgotten(true_damping(system)),
        mass=system.port_hamiltonian.mass if true_mass else row.mass(system),
        timestep=_timestep(system, row, **variation),
        midpoint=midpoint,
        observer=ConvolutionalObserver.create(seen, random_head=random_head, key=key),
        key=key,
    )


def phast_partial(
    system: System,
    *,
    key: PRNGKeyArray,
    bound: float | str | None = "calibrated",
    learned_base: bool = False,
    **variation: Any,
) -> Phast:
    """A template plus a neural residual; on windy systems a bounded Householder D(q) over the given base d0.

    ``bound`` is β̄: by default the system's own damping variation, as in the paper; None for none.
    """
    row = row_of(system)
    law = true_damping(system)
    windy = isinstance(law, WindyDamping)
    return partial(
        manifold=system.manifold,
        dt=system.dt,
        potential=row.template(system),
        damping=None if windy else forgotten(law),
        mass=row.mass(system),
        base=_mean(law.base) if windy and not learned_base else None,
        bound=(_largest(law.gain) if windy else None) if bound == "calibrated" else bound,
        harmonics=row.harmonics,
        timestep=_timestep(system, row, **variation),
        key=key,
    )


def phast_unknown(system: System, *, key: PRNGKeyArray, bound: float | None = None, **variation: Any) -> Phast:
    """Everything learned; on windy systems an unbounded Householder D(q) over a learned base."""
    row = row_of(system)
    law = true_damping(system)
    constant = ConstantDamping(0.0) if row.silent else ConstantDamping(Positive.uninformed())
    return unknown(
        manifold=system.manifold,
        dt=system.dt,
        damping=None if isinstance(law, WindyDamping) else constant,
        bound=bound,
        timestep=_timestep(system, row, **variation),
        key=key,
    )


def full_state(model: Phast, *, learned_timestep: bool = True) -> Core:
    """The core of a q-only model on its own, for data in which q and p are both observed (appendix G.1)."""
    timestep = Timestep(Positive.starting_at(model.dt) if learned_timestep else model.dt)
    return eqx.tree_at(lambda core: core.transition.timestep, model.core, timestep)


def row_of(system: System) -> PaperRow:
    """What the paper gives a model of this system."""
    if not isinstance(system.dynamics, PortHamiltonian) and system.name not in ROWS:
        raise InputError(f"'{system.name}' gives no potential or mass to build on: use models.unknown(…) for it")
    return ROWS.get(system.name, _OTHER)


def true_damping(system: System) -> AbstractDamping:
    """The simulator's damping law; none where there is no known energy."""
    return system.dynamics.damping if isinstance(system.dynamics, PortHamiltonian) else ConstantDamping(0.0)


def _timestep(system: System, row: PaperRow, *, learned_timestep: bool | None = None, substeps: int = 1) -> Timestep:
    learned = row.learned_timestep if learned_timestep is None else learned_timestep
    return Timestep(Positive.starting_at(system.dt) if learned else system.dt, substeps)


@functools.singledispatch
def forgotten(law: AbstractDamping) -> AbstractDamping:
    """The same damping law with every coefficient unknown: nothing of the answer stays behind."""
    raise InputError(f"no uninformed start is defined for {type(law).__name__}: pass the damping to learn explicitly")


@forgotten.register
def _(law: ConstantDamping) -> ConstantDamping:
    return ConstantDamping(_forgotten(law.coefficients))


@forgotten.register
def _(law: WindyDamping) -> WindyDamping:
    return WindyDamping(_forgotten(law.base), _forgotten(law.gain), law.angles)


@forgotten.register
def _(law: Friction) -> Friction:
    terms = (_forgotten(term) for term in (law.viscous, law.coulomb, law.quadratic))
    return Friction(*terms, law.smoothing, law.joints)


def _forgotten(coefficient: Coefficient) -> Positive:
    return Positive.uninformed(*value_of(coefficient).shape)


def _mean(coefficient: float | tuple) -> float:
    return float(jnp.mean(jnp.asarray(coefficient)))


def _largest(coefficient: float | tuple) -> float:
    return float(jnp.max(jnp.asarray(coefficient)))


# --- what others would use -------------------------------------------------------------------------------------------


def gru(system: System, *, key: PRNGKeyArray, **variation: Any) -> SequenceModel:
    """Gated recurrent units, two layers."""
    return _gated(GRU, system, key, **variation)


def lstm(system: System, *, key: PRNGKeyArray, **variation: Any) -> SequenceModel:
    """Long short-term memory, two layers."""
    return _gated(LSTM, system, key, **variation)


def s5(system: System, *, key: PRNGKeyArray, **variation: Any) -> SequenceModel:
    """Diagonal state space model with 64 states, two layers."""
    return _stack(S5.create, system, key, **variation)


def linoss(system: System, *, key: PRNGKeyArray, implicit: bool = True, **variation: Any) -> SequenceModel:
    """Linear oscillators, two layers; ``implicit`` is LinOSS-IM, otherwise IMEX."""
    return _stack(functools.partial(LinOSS.create, implicit=implicit), system, key, **variation)


def d_linoss(system: System, *, key: PRNGKeyArray, **variation: Any) -> SequenceModel:
    """Linear oscillators with learned damping and timesteps, two layers."""
    return _stack(DLinOSS.create, system, key, **variation)


def transformer(system: System, *, key: PRNGKeyArray, width: int = 64, **variation: Any) -> SequenceModel:
    """Causal Transformer with four heads, two layers."""
    return _stack(TransformerBlock.create, system, key, width=width, before=(Positions(width),), **variation)


def vpt(system: System, *, key: PRNGKeyArray, gain: float = 1.0, **variation: Any) -> SequenceModel:
    """Volume-preserving Transformer in a causal form, two layers; ``gain`` is that of its attention."""
    return _stack(functools.partial(VolumePreserving.create, gain=gain), system, key, **variation)


def _gated(block: type[GRU | LSTM], system: System, key, *, width: int = 64, features="raw", residual=False):
    """Two layers that read the features themselves."""
    first, second, last = jax.random.split(key, 3)
    inputs = feature_count(system.manifold, features)
    blocks = block.create(inputs, width, key=first), block.create(width, width, key=second)
    decoder = Affine.create(width, system.manifold.size, key=last)
    return SequenceModel(system.manifold, None, blocks, decoder, features, residual)


def _stack(
    create: Callable[..., AbstractBlock],
    system: System,
    key: PRNGKeyArray,
    *,
    width: int = 64,
    features: str = "raw",
    residual: bool = False,
    before: tuple[AbstractBlock, ...] = (),
) -> SequenceModel:
    """An encoder, two blocks and a decoder."""
    into, first, second, last = jax.random.split(key, 4)
    return SequenceModel(
        system.manifold,
        Affine.create(feature_count(system.manifold, features), width, key=into),
        (*before, create(width, key=first), create(width, key=second)),
        Affine.create(width, system.manifold.size, key=last),
        features,
        residual,
    )


def dhnn(system: System, *, key: PRNGKeyArray) -> DhnnStep:
    """Dissipative Hamiltonian neural network: two unconstrained scalar networks."""
    return DhnnStep(DHNN.create(system.manifold.size, key=key), system.manifold, system.dt)


def full_state_partial(system: System, *, key: PRNGKeyArray) -> Core:
    """The core of PARTIAL with a learned timestep."""
    return full_state(phast_partial(system, key=key))


def full_state_unknown(system: System, *, key: PRNGKeyArray) -> Core:
    """The core of UNKNOWN with a learned timestep."""
    return full_state(phast_unknown(system, key=key))


# --- the tables ------------------------------------------------------------------------------------------------------

MODELS: dict[str, Callable[..., AbstractForecaster]] = {
    "phast-known": phast_known,
    "phast-partial": phast_partial,
    "phast-unknown": phast_unknown,
    "gru": gru,
    "lstm": lstm,
    "s5": s5,
    "linoss": linoss,
    "d-linoss": d_linoss,
    "transformer": transformer,
    "vpt": vpt,
}

# Where q and p are both observed (appendix G.1).
FULL_STATE: dict[str, Callable[..., AbstractFullState]] = {
    "phast-partial": full_state_partial,
    "phast-unknown": full_state_unknown,
    "dhnn": dhnn,
}


def model_builder(name: str, among: dict[str, Callable] = MODELS) -> Callable[..., Any]:
    """The builder behind a model's name."""
    if name not in among:
        near = difflib.get_close_matches(name, among, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        every = "`phast paper models` lists all" if among is MODELS else f"choose one of {', '.join(among)}"
        raise InputError(f"unknown model '{name}': {hint}{every}")
    return among[name]


def parameter_counts(system: System) -> dict[str, int]:
    """How many trainable parameters each named model of a system has."""
    return {name: parameter_count(build(system, key=jax.random.key(0))) for name, build in MODELS.items()}
