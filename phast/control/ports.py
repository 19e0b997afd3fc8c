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
from phast.estimation.forecaster import AbstractFilter
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
    """ŷ = Gᵀ ∂Ĥ/∂p of a learned model at the state that a filter finds, told the inputs that were applied.

    The filter is a moving horizon or a Kalman filter around the same model.
    """

    filter: AbstractFilter
    system: PortHamiltonian
    inputs: int

    @classmethod
    def of(cls, state_filter: AbstractFilter, system: PortHamiltonian, n: int) -> "FilteredOutput":
        """With the port of ``system``, which has ``n`` coordinates."""
        return cls(state_filter, system, system.input_count(n))

    def start(self, q, state):
        nothing = jnp.zeros(self.inputs, q.dtype)
        return self.update(self.filter.start(q, nothing), q, nothing, state)

    def update(self, cache, q, u, state):
        cache, known = self.filter.update(cache, q, u)
        return cache, self.system.port_output(known.q, known.p)
