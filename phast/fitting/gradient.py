"""Fit by gradient descent, as the paper does: networks, AdamW, a next-step loss and a convolutional observer."""

import dataclasses
import os
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from phast.components.mass import AbstractMass, ConstantMass
from phast.components.parameter import Coefficient
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.errors import InputError
from phast.estimation.forecaster import AbstractIdentifiable, Phast, roll_out, takeover
from phast.fitting import networks
from phast.fitting.losses import AbstractLoss, NextStepLoss, as_batch
from phast.fitting.method import AbstractMethod
from phast.fitting.preprocess import check_motion
from phast.fitting.progress import Callback, Progress
from phast.fitting.structure import Structure
from phast.fitting.training import History, Settings, train

BOUNDS = (0.1, 0.3, 1.0, 3.0, None)
_WINDOW = 200  # samples of the windows that long recordings are cut into


@dataclasses.dataclass(frozen=True)
class Gradient(AbstractMethod):
    """Train networks by gradient descent; one in five trajectories (or windows of a long one) selects the model.

    ``base`` is d0 and ``bound`` β̄ of Eq. 11; ``bound="validated"`` trains with several and keeps the one whose rollouts
    are best on what was held out. With a ``checkpoint`` a killed training resumes, to the same numbers.
    """

    settings: Settings = dataclasses.field(default_factory=Settings)
    loss: AbstractLoss = dataclasses.field(default_factory=NextStepLoss)
    base: Coefficient | None = None
    bound: float | Literal["validated"] | None = None
    checkpoint: str | os.PathLike | None = None

    def __post_init__(self):
        if self.bound == "validated" and self.checkpoint is not None:
            raise InputError("bound='validated' trains several models: leave the checkpoint out")

    def fit(self, structure, data, *, seed, progress):
        if isinstance(structure, AbstractEnergetic):
            raise InputError("a composed system is fitted to second order: leave method=Gradient(…) out")
        if data.stretch is not None:
            raise InputError("the convolutional observer needs even steps: resample, or use method=SecondOrder()")
        check_motion(data)
        selecting = hold_out(data)
        if self.bound != "validated":
            return self._train(structure, *selecting, seed, progress)

        def with_bound(bound: float | None) -> AbstractIdentifiable:
            return dataclasses.replace(self, bound=bound)._train(structure, *selecting, seed, progress)

        return _best_bound(with_bound, selecting[1])

    def _train(
        self, structure: Structure, seen: Trajectories, held_out: Trajectories, seed: int, progress: Callback
    ) -> Phast:
        key, epochs = jax.random.key(seed), self.settings.epochs

        def tell(history: History) -> None:
            progress(Progress("training", history.epochs_done, epochs, loss=history.loss[-1]))

        fitted, _ = train(
            self._composed(structure, seen, key),
            as_batch(seen),
            as_batch(held_out),
            loss=self.loss,
            settings=self.settings,
            key=jax.random.fold_in(key, 1),
            checkpoint=self.checkpoint,
            on_epoch=tell,
        )
        return fitted

    def _composed(self, structure: Structure, data: Trajectories, key) -> Phast:
        """The networks before they are trained."""
        if structure.port is not None or structure.pairs:
            raise InputError("a port and pairs go with method=SecondOrder()")
        given = {"manifold": data.manifold, "dt": data.dt, "key": key}
        potential, mass, damping = structure.given(data.manifold)
        free = {"base": self.base, "bound": self.bound}
        if structure.inferred_regime == "known":
            if not (self.base is self.bound is None):
                raise InputError("base and bound are those of a free damping field: regime 'known' has none")
            return networks.known(potential=potential, mass=mass, damping=damping, **given)
        if structure.inferred_regime == "partial":
            return networks.partial(potential=potential, mass=mass, damping=damping, **free, **given)
        _refuse_mass(mass)
        return networks.unknown(damping=damping, **free, **given)


def _refuse_mass(mass: AbstractMass) -> None:
    if not (isinstance(mass, ConstantMass) and mass == ConstantMass(1.0)):
        raise InputError("regime 'unknown' learns a constant mass by gradient descent: leave the mass out")


def _best_bound(train: Callable[[float | None], AbstractIdentifiable], held_out: Trajectories) -> AbstractIdentifiable:
    """The model whose takeover rollouts on held-out data are best, over bounds β̄ on the damping strength.

    The next-step error cannot tell them apart: a damping that is too strong shows only as the forecast goes on.
    """
    context = min(10, held_out.length // 2)
    q = jnp.asarray(held_out.q, dtype=float)
    best, least = None, np.inf
    for bound in BOUNDS:
        model = train(bound)
        rolled = roll_out(takeover, model, q[:, :context], held_out.length - context)
        error = float(jnp.mean(held_out.manifold.squared_error(rolled, q[:, context:])))
        if best is None or error < least:
            best, least = model, error
    return best


def hold_out(data: Trajectories) -> tuple[Trajectories, Trajectories]:
    """(training, validation): every fifth trajectory held out, long recordings first cut into windows."""
    pieces = data
    if len(data) < 5:
        length = min(_WINDOW, data.length * len(data) // 10)
        if length < 20:
            raise InputError(
                f"{len(data)} × {data.length} samples are too few to learn from and to check: give at least 200 samples"
            )
        pieces = data.windows(length, length)
    held_out = np.arange(len(pieces)) % 5 == 4
    return pieces.subset(np.flatnonzero(~held_out)), pieces.subset(np.flatnonzero(held_out))
