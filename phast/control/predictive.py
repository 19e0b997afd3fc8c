"""Model-predictive control on a learned model: positions in, the first input of a plan out, every sample.

The plan minimises, over a horizon of samples,

    ½ Σ_t ( w_q |q_t - q*|² + w_v |v_t|² + w_u |u_t - u*|² + w_o |beyond the position limits|² )  +  ½ x_Nᵀ P x_N

with angles by their shortest way, u* the input that holds the target, and P the cost of the model's regulator from
there on for ever. Limits on inputs are kept exactly. Limits on positions are soft, a quadratic penalty: noise may carry
an estimate beyond them, and then there is still a plan. Every sample the last plan is moved on by one, and improved by
one Gauss–Newton iteration (:mod:`phast.control.riccati`) from the state that the moving horizon estimates.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.control.loop import AbstractController, Decision
from phast.control.regulator import expansion, held_at, regulator, root_of
from phast.control.riccati import AbstractOptimalControl, Plan, improved
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import Horizon, ModelAware, MovingHorizonFilter

_FIRST = 60  # iterations on the first plan, for which there is time
Each = float | tuple[float, ...]  # one number for all, or one each
Range = tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Weights:
    """What a sample costs: ½ times these times the squares.

    ``position`` and ``velocity`` have one number for all coordinates, or one each; ``effort`` the same for inputs;
    ``outside`` is that of how far positions are beyond their limits.
    """

    position: Each = 1.0
    velocity: Each = 0.1
    effort: Each = 0.01
    outside: float = 1e3

    def __post_init__(self):
        for name in ("position", "velocity"):
            if not (np.asarray(given := getattr(self, name), dtype=float) >= 0.0).all():
                raise InputError(f"{name}={given}: a weight must not be negative")
        if not (np.asarray(self.effort, dtype=float) > 0.0).all():
            raise InputError(f"effort={self.effort}: the weight of an input must be positive")
        if not self.outside > 0.0:
            raise InputError(f"outside={self.outside}: give a positive weight")


class Tracking(AbstractOptimalControl):
    """Reach a target and stay there: the optimal control problem of a learned model."""

    core: Core
    manifold: Manifold
    target: Float[Array, " n"]
    holding: Float[Array, " inputs"]
    limits: Float[Array, " inputs"]
    low: Float[Array, " n"]
    high: Float[Array, " n"]
    roots: tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " inputs"], float]  # of the weights
    terminal: Float[Array, "twice_n twice_n"]  # R with P = RᵀR

    def step(self, x, u):
        q, p = jnp.split(x, 2)
        return jnp.concatenate(self.core(q, p, u))

    def stage(self, x, u):
        q, p = jnp.split(x, 2)
        position, velocity, effort, outside = self.roots
        beyond = jnp.maximum(q - self.high, 0.0) + jnp.minimum(q - self.low, 0.0)
        moving = velocity * self.core.system.velocity(q, p)
        return jnp.concatenate([position * self._off(q), moving, effort * (u - self.holding), outside * beyond])

    def final(self, x):
        q, p = jnp.split(x, 2)
        return self.terminal @ jnp.concatenate([self._off(q), p])

    def _off(self, q: Float[Array, " n"]) -> Float[Array, " n"]:
        return self.manifold.difference(q, self.target)


class Planned(NamedTuple):
    """What predictive control remembers: the filter's window, and the plan that was made at the last sample."""

    seen: Horizon
    plan: Plan


class PredictiveControl(AbstractController):
    """Predictive control with states from the moving horizon. ``create`` makes one from a fitted model.

    ``gain`` is that of the regulator at the target: it ends a plan that is moved on. A position that is not a number is
    replaced by the predicted one, and an input that is none by the one of the last plan: what is applied is always
    finite and within the limits.
    """

    problem: Tracking
    filter: MovingHorizonFilter
    gain: Float[Array, "inputs twice_n"]
    horizon: int = 40
    iterations: int = 1

    @classmethod
    def create(
        cls,
        model: ModelAware,
        target: Sequence[float] | Float[np.ndarray, " n"],
        *,
        limits: Each,
        weights: Weights = Weights(),
        horizon: int = 40,
        within: Sequence[Range] | None = None,
        iterations: int = 1,
    ) -> "PredictiveControl":
        """Control of a fitted model (``fitted.model``), in the units of the computation (angles in radians).

        ``limits`` is the largest magnitude of each input, ``within`` the least and the largest position of each
        coordinate, or None where it is free. ``horizon`` counts samples, ``iterations`` are per sample.
        """
        n, inputs = model.manifold.size, _checked_inputs(model)
        if horizon < 2 or iterations < 1:
            raise InputError(f"horizon={horizon}, iterations={iterations}: give at least 2 samples and 1 iteration")
        most = _each(limits, inputs, "limits", "input")
        if not (most > 0.0).all():
            raise InputError(f"limits={limits}: give positive numbers, the largest magnitude of each input")
        with jax.enable_x64(True):
            system = model.core.system
            assert isinstance(system, PortHamiltonian)  # checked with the inputs
            q, holding = held_at(system, _each(target, n, "target", "coordinate"), model.manifold.names)
            low, high = _ranges(within, n)
            _check_within(model.manifold.names, q, low, high)
            _check_reached(holding, most)
            problem = Tracking(
                core=model.core,
                manifold=model.manifold,
                target=jnp.asarray(q),
                holding=jnp.asarray(holding),
                limits=jnp.asarray(most),
                low=jnp.asarray(low),
                high=jnp.asarray(high),
                roots=_roots(weights, n, inputs),
                terminal=jnp.zeros((2 * n, 2 * n)),
            )
            x, u = jnp.asarray(np.concatenate([q, np.zeros(n)])), problem.holding
            gain, p = regulator(expansion(problem.step, x, u), expansion(problem.stage, x, u))
            problem = eqx.tree_at(lambda each: each.terminal, problem, jnp.asarray(root_of(p)))
            return cls(problem, model.state_filter(), jnp.asarray(gain), horizon, iterations)

    def start(self, q, state):
        idle = jnp.zeros_like(self.problem.holding)
        seen = self.filter.start(q, idle)
        seen, known = self.filter.update(seen, q, idle)
        x = jnp.concatenate([known.q, known.p])
        return self._decided(seen, self.started(x))

    def update(self, cache, q, u, state):
        expected = cache.plan.x[1]
        n = q.shape[0]
        q = jnp.where(jnp.all(jnp.isfinite(q)), q, expected[:n])
        seen, known = self.filter.update(cache.seen, q, u)
        near = expected[:n] + self.filter.manifold.difference(known.q, expected[:n])  # no jumps of 2π
        x = jnp.concatenate([near, known.p])
        x = jnp.where(jnp.all(jnp.isfinite(x)), x, expected)
        return self._decided(seen, self._best(x, self.moved_on(cache.plan), self.iterations))

    def started(self, x: Float[Array, " twice_n"]) -> Plan:
        """A plan from ``x`` where there is no last one."""
        return self._best(x, self.first_plan(x), _FIRST)

    def first_plan(self, x: Float[Array, " twice_n"]) -> Plan:
        """At the target all along, by the way round that is shortest: its policy is the regulator's."""
        n = self.filter.manifold.size
        near = x[:n] - self.problem._off(x[:n])
        states = jnp.broadcast_to(jnp.concatenate([near, jnp.zeros(n)]), (self.horizon + 1, 2 * n))
        return Plan(states, jnp.broadcast_to(self.problem.holding, (self.horizon, *self.problem.holding.shape)))

    def moved_on(self, plan: Plan) -> Plan:
        """One sample later, with the regulator's input at the end."""
        last = plan.x[-1]
        n = self.filter.manifold.size
        off = jnp.concatenate([self.problem._off(last[:n]), last[n:]])
        u = jnp.clip(self.problem.holding - self.gain @ off, -self.problem.limits, self.problem.limits)
        after = self.problem.step(last, u)
        return Plan(jnp.concatenate([plan.x[1:], after[None]]), jnp.concatenate([plan.u[1:], u[None]]))

    def solve(self, x: Float[Array, " twice_n"], plan: Plan) -> Plan:
        """The plan from ``x`` after one iteration on ``plan``; from rest at the target where none is finite."""
        found, cost = improved(self.problem, x, plan)
        spare = self.first_plan(x)
        return jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(cost), new, old), found, spare)

    def _best(self, x, plan: Plan, iterations: int) -> Plan:
        if iterations == 1:
            return self.solve(x, plan)
        return jax.lax.fori_loop(0, iterations, lambda _, plan: self.solve(x, plan), plan)

    def _decided(self, seen: Horizon, plan: Plan) -> tuple[Planned, Decision]:
        q, p = jnp.split(plan.x[0], 2)
        system = self.problem.core.system
        assert isinstance(system, PortHamiltonian)
        return Planned(seen, plan), Decision(plan.u[0], system.port_output(q, p))


# --- checking --------------------------------------------------------------------------------------------------------


def _checked_inputs(model: ModelAware) -> int:
    system = model.core.system
    count = system.input_count(model.manifold.size)
    if not isinstance(system, PortHamiltonian) or count == 0:
        raise InputError("the model has no input port: fit one to a recording with inputs")
    return count


def _each(given: Each | Sequence[float] | Float[np.ndarray, " size"], size: int, name: str, of: str) -> np.ndarray:
    x = np.asarray(given, dtype=float)
    if x.shape not in ((), (size,)) or not np.isfinite(x).all():
        raise InputError(f"{name}={given}: give one finite number for each {of}, {size} in all")
    return np.broadcast_to(x, (size,)).copy()


def _roots(weights: Weights, n: int, inputs: int) -> tuple[Array, Array, Array, float]:
    position, velocity = (_each(getattr(weights, name), n, name, "coordinate") for name in ("position", "velocity"))
    effort = _each(weights.effort, inputs, "effort", "input")
    position, velocity, effort = (jnp.sqrt(jnp.asarray(each)) for each in (position, velocity, effort))
    return position, velocity, effort, float(weights.outside) ** 0.5


def _ranges(within: Sequence[Range] | None, n: int) -> tuple[np.ndarray, np.ndarray]:
    if within is None:
        return np.full(n, -np.inf), np.full(n, np.inf)
    if len(within) != n:
        raise InputError(f"within has {len(within)} entries: give (least, largest) or None for each coordinate, {n}")
    pairs = np.array([(-np.inf, np.inf) if pair is None else pair for pair in within], dtype=float)
    if pairs.shape != (n, 2) or not (pairs[:, 0] < pairs[:, 1]).all():
        raise InputError(f"within={within}: give (least, largest) or None for each coordinate")
    return pairs[:, 0], pairs[:, 1]


def _check_within(names: tuple[str, ...], q: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    for name, at, least, most in zip(names, q, low, high, strict=True):
        if not least < at < most:
            raise InputError(f"the target {name}={at:.4g} is outside its limits, {least:.4g} to {most:.4g}")


def _check_reached(holding: np.ndarray, most: np.ndarray) -> None:
    for i, (u, limit) in enumerate(zip(holding, most, strict=True)):
        if not abs(u) < limit:
            raise InputError(
                f"holding the target takes {u:.4g} of input {i + 1}, and its limit is {limit:.4g}: choose another "
                "target, or stronger actuators"
            )
