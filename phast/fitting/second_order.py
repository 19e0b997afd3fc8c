"""Fit to second order: match accelerations, refine by shooting, forecast with an observer that knows the model.

Where the paper trains networks by next-step prediction through a guessed velocity, this fits few coefficients to
second order (:mod:`phast.fitting.shooting`) and estimates states through the model
(:mod:`phast.estimation.moving_horizon`). Fields that the paper makes neural are splines here: as free, but linear in
local coefficients, so that a least-squares fit finds the best of them and gives
their uncertainty. Everything is in double precision.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.damping import depends_on_velocity
from phast.components.parameter import in_working_precision, parameter_count
from phast.data.durations import check_duration, steps_in
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.dynamics.integrators import (
    AbstractTransition,
    DiscreteGradient,
    ExactDamping,
    ImplicitMidpoint,
    RungeKutta,
    Timestep,
    Transition,
    leapfrog,
)
from phast.dynamics.stiction import parted
from phast.errors import InputError, counted
from phast.estimation.forecaster import Core
from phast.estimation.inputs import held_over
from phast.estimation.moving_horizon import ModelAware, Noise
from phast.estimation.smoother import smoothed_ends
from phast.fitting.matching import match
from phast.fitting.method import AbstractMethod
from phast.fitting.preprocess import Preprocessed
from phast.fitting.progress import Callback, Progress
from phast.fitting.search import find_law
from phast.fitting.shooting import shoot
from phast.fitting.structure import Structure, compose
from phast.fitting.uncertainty import calibrated

MATCH_SAMPLES = 20_000
SHOOT_SAMPLES = 200_000  # of one coordinate; fewer of several, where each costs more
CLEAN = 1e-6  # noise, relative to the motion, below which there is none
ITERATIONS = 12  # fewer of several coordinates
SUBSTEPS = (1, 2, 4)  # of Runge–Kutta per sample, from which the data choose
EXACT_SUBSTEPS = (1, 2, 4, 8, 16, 32, 64)  # the same where next to no noise hides the error of a step


# --- the fit ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SecondOrder(AbstractMethod):
    """Fit to second order: match accelerations, refine by shooting over windows, judge the spread of forecasts.

    ``context`` is how many samples, or seconds (``"0.2 s"``), a state is taken from, ``window`` how many samples a
    window of the fit has; both are chosen from the motion where they are left out. ``noise`` is the standard deviation
    of a position, estimated where it is left out. ``passive`` makes the model forecast by steps along which energy
    cannot rise (:func:`passive_transition`). ``budget`` is how many seconds a search for the law may take, where
    nothing is named. Noise below ``clean`` times the motion counts as none: less is neither fitted nor integrated.
    """

    context: int | str | None = None
    window: int | None = None
    noise: Noise | None = None
    passive: bool = False
    budget: float | None = None
    clean: float = CLEAN

    def __post_init__(self):
        if self.context is not None:
            check_duration(self.context)
        if self.window is not None and self.window < 2:
            raise InputError(f"a window has at least 2 samples, not {self.window}")
        if self.budget is not None and not self.budget > 0.0:
            raise InputError(f"budget is a time in seconds: give a positive number, not {self.budget}")
        if self.noise is not None and not (np.asarray(self.noise) > 0.0).all():
            raise InputError(f"noise is a standard deviation: give a positive number, not {self.noise}")

    def fit(self, structure, data, *, seed, progress):
        with jax.enable_x64(True):
            preprocessed = Preprocessed(data)
            system = self._system(structure, preprocessed, seed, progress)
            if isinstance(system, ModelAware):  # the search has fitted it
                model = made_passive(system) if self.passive else system
            else:
                model = self._shoot(in_working_precision(system), preprocessed, seed, progress)
            progress(Progress("judging the spread of forecasts", 3, STAGES, model))
            model = calibrated(model, data, seed=seed)
            progress(Progress("fitted", STAGES, STAGES, model))
            return model

    def _system(
        self, structure: Structure | AbstractEnergetic, preprocessed: Preprocessed, seed: int, progress: Callback
    ):
        """What is to be fitted, or the fitted law that a search has found."""
        if isinstance(structure, AbstractEnergetic):
            return structure
        if not structure.is_open:
            return compose(structure, preprocessed)
        progress(Progress("searching for the law", 0, STAGES))

        def fitted(system: AbstractEnergetic, clean: float) -> ModelAware:
            method = dataclasses.replace(self, clean=min(clean, self.clean))
            return method._refined(system, preprocessed, seed, progress)

        return find_law(structure, preprocessed, fitted, budget=self.budget)

    def _shoot(self, system: AbstractEnergetic, preprocessed: Preprocessed, seed: int, progress: Callback):
        data, even, noise = preprocessed.data, preprocessed.even, self._noise(preprocessed)
        if data.q.size < 2 * parameter_count(system):
            raise InputError(
                f"{data.q.size} positions are too few for {parameter_count(system)} coefficients: record more, or give "
                "a potential and a damping law (regime 'known')"
            )
        rng = np.random.default_rng(seed)
        progress(Progress("matching accelerations", 0, STAGES))
        samples = preprocessed.samples
        chosen = rng.permutation(len(samples.q))[:MATCH_SAMPLES]
        samples = jax.tree.map(lambda x: x[chosen], samples)
        samples = samples._replace(bias=_SHARPER * samples.bias)
        passed = noise * float(np.linalg.norm(preprocessed.smoother.kernels(even.dt)[2]))
        system = match(system, samples, deviation=np.maximum(passed, 1e-3 * np.std(samples.a, axis=0) + _TINY))
        model = self._refined(system, preprocessed, seed, progress)
        return made_passive(model) if self.passive else model

    def _noise(self, preprocessed: Preprocessed) -> Float[np.ndarray, " n"]:
        if self.noise is None:
            return preprocessed.noise
        return np.broadcast_to(np.asarray(self.noise, dtype=float), (preprocessed.data.manifold.size,))

    def _refined(self, system: AbstractEnergetic, preprocessed: Preprocessed, seed: int, progress: Callback):
        """The model whose coefficients explain windows of positions best, from where they are."""
        data, noise, rng = preprocessed.data, self._noise(preprocessed), np.random.default_rng(seed + 1)
        window, n = self.window or preprocessed.natural_window, data.manifold.size
        context = _context_length(self.context, window, data)
        progress(Progress("choosing the time step", 1, STAGES))
        length = min(window, data.length)
        windows = data.windows(length, length)
        enough = max(SHOOT_SAMPLES // (length * n**3), parameter_count(system), 50)  # a place for each coefficient
        windows = windows.subset(rng.permutation(len(windows))[:enough])
        least = self.clean * np.std(windows.q, axis=(0, 1)) + _TINY
        counts = SUBSTEPS if self.clean >= CLEAN else EXACT_SUBSTEPS
        tolerance = np.maximum(0.1 * noise, least)
        transition = sharpest(system, windows.subset(slice(0, 100)), tolerance=tolerance, counts=counts)
        progress(Progress("shooting over windows", 2, STAGES))
        found = shoot(
            Core(system, transition),
            windows,
            noise=tuple(map(float, np.maximum(noise, least))),
            smooth=bool((noise > least).any()),
            iterations=max(ITERATIONS // n, 4),
        )
        core = Core(found.system, transition)
        return ModelAware(core, data.manifold, data.dt, context, tuple(map(float, noise)), found.evidence)


STAGES = 4
MINIMUM_CONTEXT, _DEFAULT_CONTEXT = 2, 10


def _context_length(context: int | str | None, window: int, data: Trajectories) -> int:
    if context is None:
        return min(max(_DEFAULT_CONTEXT, window // 4), data.length - 1)
    count = steps_in(context, data.dt)
    if not MINIMUM_CONTEXT <= count <= data.length:
        raise InputError(f"a context of {counted(count, 'sample')}: give {MINIMUM_CONTEXT} to {data.length}")
    return count


def made_passive(model: ModelAware) -> ModelAware:
    """The model with steps along which energy cannot rise."""
    if not isinstance(model.core.system, PortHamiltonian):
        raise InputError("steps along which energy cannot rise are those of mechanical systems: leave passive out")
    return eqx.tree_at(lambda m: m.core.transition, model, passive_transition(model.dt))


_TINY = np.finfo(float).tiny
_SHARPER = 0.03  # of its bias is what an acceleration is off by


def sharpest(
    system: AbstractEnergetic,
    windows: Trajectories,
    *,
    tolerance: float | Float[np.ndarray, " n"],
    counts: tuple[int, ...] = SUBSTEPS,
) -> AbstractTransition:
    """The cheapest step over these windows that halving would not change by more than ``tolerance``.

    Runge–Kutta first. Where even its smallest step does not settle (stiff damping), or friction near rest would make it
    chatter, Strang splitting, whose damping step is exact. Only mechanical systems can be split: others get the finest.
    """
    dt, moved = windows.dt, np.std(windows.q, axis=(0, 1))
    if not isinstance(system, PortHamiltonian):
        return RungeKutta(Timestep(dt, 2 * counts[-1]))
    core = leapfrog() if system.separable else ImplicitMidpoint()
    strang = Transition(core, ExactDamping(), Timestep(dt, 2 * SUBSTEPS[-1]))
    if parted(system.damping)[1]:  # what holds is resolved in the step itself
        return strang
    if depends_on_velocity(system.damping) and _decay_at_rest(system, windows) * dt / SUBSTEPS[-1] > _STABLE:
        return strang
    coarse = _final_positions(system, RungeKutta(Timestep(dt, counts[0])), windows)
    for count in counts:
        fine = _final_positions(system, RungeKutta(Timestep(dt, 2 * count)), windows)
        error = np.sqrt(np.mean(np.asarray(windows.manifold.squared_error(fine, coarse)), axis=0))
        if (error <= tolerance).all() or (count == counts[-1] and (error < 1e-2 * moved).all()):
            return RungeKutta(Timestep(dt, count))
        coarse = fine
    return strang


_STABLE = 2.7  # how far along the negative axis the classical Runge–Kutta method is stable


def _decay_at_rest(system: PortHamiltonian, windows: Trajectories) -> float:
    """The fastest rate at which friction would slow what hardly moves: the largest eigenvalue of M⁻¹ D(q, 0)."""

    def fastest(q):
        rest = system.damping.operator(q, jnp.zeros_like(q)).dense()
        return jnp.max(jnp.abs(jnp.linalg.eigvals(jnp.linalg.solve(system.mass.operator(q).dense(), rest))))

    return float(jnp.max(jax.vmap(fastest)(jnp.asarray(windows.q[:, 0]))))


@eqx.filter_jit
def _final_positions(
    system: AbstractEnergetic, transition: AbstractTransition, windows: Trajectories
) -> Float[Array, "W n"]:
    """Where each window ends, from the smoother's guess of its beginning."""
    core, q = Core(system, transition), jnp.asarray(windows.q)
    present, n = jnp.ones(windows.length), windows.manifold.size

    def one(y, u):
        x = smoothed_ends(core, windows.manifold, windows.dt, y, present, u)[0]
        return core.rollout(x[:n], x[n:], windows.length - 1, u)[0][-1]

    return jax.vmap(one)(q, held_over(windows))


def passive_transition(dt: float, substeps: int = 8) -> Transition:
    """Energy never rises along an unforced rollout: at any step size, for any parameters."""
    return Transition(DiscreteGradient(), ExactDamping(), Timestep(dt, substeps))
