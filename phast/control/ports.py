"""Port estimators: the output ŷ ≈ y_p = Gᵀ q' of a plant from noisy positions, one sample at a time.

An estimator reads a position and the input that acted since the last one. It also is handed the true state, which a
simulation knows and only the oracle and other full-state estimators may read.
"""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import State
from phast.errors import InputError
from phast.estimation.forecaster import AbstractFilter
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.observers import AbstractObserver


class AbstractPortEstimator(eqx.Module):
    """Positions in, port outputs out."""

    @abstractmethod
    def start(self, q: Float[Array, " n"], state: State) -> tuple[PyTree, Float[Array, " inputs"]]:
        """The cache and the estimate after the first sample."""

    @abstractmethod
    def update(
        self, cache: PyTree, q: Float[Array, " n"], u: Float[Array, " inputs"], state: State
    ) -> tuple[PyTree, Float[Array, " inputs"]]:
        """The cache and the estimate after one more sample; ``u`` was applied since the last one."""


def driven_system(model: ModelAware) -> PortHamiltonian:
    """The system of a model, which has a port."""
    system = model.core.system
    if not isinstance(system, PortHamiltonian):
        raise InputError(f"a {type(system).__name__} has no input port: nothing can control it")
    return system


class ModelOutput(AbstractPortEstimator):
    """ŷ = Gᵀ ∂Ĥ/∂p of a model at the true state: the oracle where the model is the plant itself."""

    system: PortHamiltonian

    def start(self, q, state):
        return None, self.system.port_output(*state)

    def update(self, cache, q, u, state):
        return None, self.system.port_output(*state)


class ObservedVelocity(AbstractPortEstimator):
    """Gᵀ times the velocity of an observer, such as finite differences or FD+TCN."""

    observer: AbstractObserver
    dt: float
    port: Float[Array, "n inputs"]

    @classmethod
    def of(cls, observer: AbstractObserver, dt: float, system: PortHamiltonian, n: int) -> "ObservedVelocity":
        """With the port matrix of ``system``, which has ``n`` coordinates."""
        return cls(observer, dt, system.port_matrix(n))

    def start(self, q, state):
        cache, v = self.observer.start(q)
        return cache, self.port.T @ v

    def update(self, cache, q, u, state):
        cache, v = self.observer.update(cache, q, self.dt)
        return cache, self.port.T @ v


class FilteredOutput(AbstractPortEstimator):
    """ŷ = Gᵀ ∂Ĥ/∂p of a model at the state that a filter of it estimates, such as a moving horizon.

    The filter is told the input that was applied over each step, so that what the controller does is no surprise to it.
    """

    filter: AbstractFilter
    system: PortHamiltonian

    @classmethod
    def of(cls, model: ModelAware) -> "FilteredOutput":
        """With the moving horizon of a fitted model, and its port."""
        return cls(model.state_filter(), driven_system(model))

    def start(self, q, state):
        idle = jnp.zeros(self.system.input_count(q.shape[0]), q.dtype)
        return self._known(self.filter.start(q, idle), q, idle)

    def update(self, cache, q, u, state):
        return self._known(cache, q, u)

    def _known(self, cache: PyTree, q, u) -> tuple[PyTree, Float[Array, " inputs"]]:
        cache, known = self.filter.update(cache, q, u)
        return cache, self.system.port_output(known.q, known.p)
