"""How to fit: the interface of the two methods, second order and gradient descent."""

import abc
import dataclasses

from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.estimation.forecaster import AbstractIdentifiable
from phast.fitting.progress import Callback
from phast.fitting.structure import Structure


@dataclasses.dataclass(frozen=True)
class AbstractMethod(abc.ABC):
    """A way to fit. Its fields are its options."""

    @abc.abstractmethod
    def fit(
        self, structure: Structure | AbstractEnergetic, data: Trajectories, *, seed: int, progress: Callback
    ) -> AbstractIdentifiable:
        """The model that this structure, or this composed system, becomes when it is fitted to ``data``."""
