"""Plants as Gymnasium environments: noisy positions are observed, scaled inputs are the actions (extra ``gym``).

The plant is the true system, integrated to tight tolerance between samples with its input held. An action a in
[-1, 1] asks for the input u = a · limit, and an action beyond is applied as far as the actuators go, which ``info``
says. Importing this module registers ``phast/Plant-v0``:

    gymnasium.make("phast.control.environment:phast/Plant-v0", system="cartpole-windy", limits=10.0)
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from phast.control.plant import Plant
from phast.dynamics.systems import Initial, System
from phast.dynamics.systems import system as system_named
from phast.errors import FitError, InputError, Reason

try:
    import gymnasium
except ImportError as error:
    raise ImportError("environments need Gymnasium: pip install 'phast-physics[gym]'") from error

Vector = Float[np.ndarray, " size"]
Reward = Callable[[Vector, Vector], float]


@dataclasses.dataclass(frozen=True)
class QuadraticReward:
    """-(position · |error|² + effort · |u|²), of the distance to the target and the input that was applied."""

    position: float = 1.0
    effort: float = 1e-3

    def __call__(self, error: Vector, u: Vector) -> float:
        return -float(self.position * error @ error + self.effort * u @ u)


class PlantEnvironment(gymnasium.Env[np.ndarray, np.ndarray]):
    """A system to be driven from noisy positions.

    ``system`` is a simulator or its name, with the largest magnitude of each input in ``limits`` and a sampling step
    ``dt`` of its own or another one; or a :class:`~phast.control.plant.Plant`, which has both, with the distribution
    of its ``initial`` states, as that of a simulator.

    An observation is the position plus Gaussian ``noise`` of this standard deviation, angles wrapped into [-π, π], in
    ``dtype``. An episode is truncated after ``horizon`` samples, and terminated where a coordinate on a line leaves
    ±``reach``. ``reward(error, u)`` gets the shortest way from the ``target`` (by default, zero) to the true position,
    and the input that was applied.

    ``info`` has the true state (``q``, ``p``) and its ``energy``, the input that was ``applied`` and whether it
    ``saturated``. ``reset(options={"q": …, "p": …})`` begins at a state of one's own.
    """

    def __init__(
        self,
        system: str | System | Plant,
        *,
        limits: float | tuple[float, ...] | None = None,
        dt: float | None = None,
        initial: Initial | None = None,
        noise: float | tuple[float, ...] = 0.0,
        target: float | tuple[float, ...] = 0.0,
        horizon: int = 200,
        reach: float = 100.0,
        reward: Reward | None = None,
        dtype: type[np.floating] = np.float64,
        render_mode: None = None,
    ):
        self.plant, self._initial = _plant(system, limits, dt, initial)
        n = self.plant.manifold.size
        self._limits = np.asarray(self.plant.limits, dtype=float)
        self._noise, self._target = _each(noise, n, "noise"), _each(target, n, "target")
        if not (self._noise >= 0.0).all() or horizon < 1 or not 0.0 < reach < np.inf:
            raise InputError("noise is zero or more, the horizon at least one sample, and the reach a positive number")
        self.horizon, self.reward = horizon, reward or QuadraticReward()
        self.render_mode = render_mode
        circles = np.asarray(self.plant.manifold.circles)
        self._bound = np.where(circles, np.pi, reach).astype(dtype)
        self.observation_space = gymnasium.spaces.Box(-self._bound, self._bound, dtype=dtype)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.plant.inputs,), dtype=dtype)
        self._reach = np.where(circles, np.inf, reach)
        self._state: tuple[np.ndarray, np.ndarray] | None = None
        self._count = 0
        self._advance = jax.jit(lambda q, p, u: self.plant(q, p, u))
        self._energy = jax.jit(lambda q, p: self.plant.system.energy(q, p))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw an initial state, or begin at ``options``: a position ``q`` and a momentum ``p`` (zero if left out)."""
        super().reset(seed=seed)
        self._state, self._count = self._begin(dict(options or {})), 0
        return self._observed(), self._info(np.zeros(self.plant.inputs), saturated=False)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold the input of ``action`` until the next sample."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset before the first step")
        asked = self._limits * _each(action, self.plant.inputs, "the action")
        applied = np.clip(asked, -self._limits, self._limits)
        with jax.enable_x64(True):
            q, p = (np.asarray(part) for part in self._advance(*map(jnp.asarray, (*self._state, applied))))
        if not np.isfinite([*q, *p]).all():
            raise FitError(Reason.UNSTABLE)
        self._state, self._count = (q, p), self._count + 1
        reward = self.reward(np.asarray(self.plant.manifold.difference(q, self._target)), applied)
        left = bool((np.abs(q) > self._reach).any())
        info = self._info(applied, saturated=bool((applied != asked).any()))
        return self._observed(), reward, left, self._count >= self.horizon, info

    def _begin(self, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        n = self.plant.manifold.size
        if not options:
            q, p = self._initial(self.np_random, 1)
            return np.array(q[0], dtype=float), np.array(p[0], dtype=float)
        if "q" not in options or not options.keys() <= {"q", "p"}:
            raise InputError(f"options {', '.join(options)}: give q, a position, and with it p, a momentum")
        return _each(options["q"], n, "q"), _each(options.get("p", 0.0), n, "p")

    def _observed(self) -> np.ndarray:
        """The position as the sensors tell it: within their range."""
        assert self._state is not None  # reset was called
        seen = self._state[0] + self._noise * self.np_random.standard_normal(self.plant.manifold.size)
        seen = np.asarray(self.plant.manifold.wrap(seen)).astype(self._bound.dtype)
        return np.clip(seen, -self._bound, self._bound)

    def _info(self, applied: np.ndarray, *, saturated: bool) -> dict[str, Any]:
        assert self._state is not None
        with jax.enable_x64(True):
            energy = float(self._energy(*map(jnp.asarray, self._state)))
        q, p = (part.copy() for part in self._state)
        return {"q": q, "p": p, "energy": energy, "applied": applied, "saturated": saturated}


def _plant(
    system: str | System | Plant,
    limits: float | tuple[float, ...] | None,
    dt: float | None,
    initial: Initial | None,
) -> tuple[Plant, Initial]:
    """The plant and the distribution of its initial states."""
    if isinstance(system, Plant):
        if limits is not None or dt is not None:
            raise InputError("a Plant has limits and dt of its own: leave limits=… and dt=… out")
        if system.limits is None or initial is None:
            raise InputError("an environment needs Plant(…, limits=…) and initial=…, a distribution of states")
        return system, initial
    system = system_named(system) if isinstance(system, str) else system
    if limits is None:
        raise InputError("give limits=…, the largest magnitude of each input: an action of 1 asks for it")
    physics = system.port_hamiltonian
    count = physics.input_count(system.manifold.size)
    most = tuple(_each(limits, count, "limits").tolist())
    return Plant(physics, system.manifold, system.dt if dt is None else dt, most), initial or system.initial


def _each(given: Any, size: int, name: str) -> np.ndarray:
    """One finite number each."""
    x = np.asarray(given, dtype=float)
    if x.shape not in ((), (size,)) or not np.isfinite(x).all():
        raise InputError(f"{name} is {given}: give a finite number, or {size} of them")
    return np.broadcast_to(x, (size,)).copy()


gymnasium.register(id="phast/Plant-v0", entry_point="phast.control.environment:PlantEnvironment")
