"""Least-squares optimal control by a Riccati recursion: one Gauss–Newton iteration, linear in the horizon.

    min  ½ Σ_t |r(x_t, u_t)|² + ½ |r_N(x_N)|²,   x_{t+1} = f(x_t, u_t),   |u| ≤ limits

:func:`improved` linearises f, r and r_N along a plan, solves the linear-quadratic problem backwards in time with the
limits of each input kept stage by stage (control-limited differential dynamic programming, Tassa et al. 2014), and
carries the policy that follows forwards through f itself. So a plan is always a motion of the model within the limits,
and the best of several lengths of the step is never worse than none. Gaps of the plan that it began from, whose states
need not follow from its inputs, are closed on the way.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from phast.components.lowrank import solve_spd

_SHARES = (1.0, 0.5, 0.25, 0.1, 0.02, 0.0)  # of the step


class AbstractOptimalControl(eqx.Module):
    """A model, residuals whose squares are the cost, and the largest magnitude of each input."""

    limits: eqx.AbstractVar[Float[Array, " inputs"]]

    @abstractmethod
    def step(self, x: Float[Array, " states"], u: Float[Array, " inputs"]) -> Float[Array, " states"]:
        """f(x, u)."""

    @abstractmethod
    def stage(self, x: Float[Array, " states"], u: Float[Array, " inputs"]) -> Float[Array, " residuals"]:
        """r(x, u)."""

    @abstractmethod
    def final(self, x: Float[Array, " states"]) -> Float[Array, " residuals"]:
        """r_N(x)."""


class Plan(NamedTuple):
    """States and inputs over a horizon."""

    x: Float[Array, "H_and_one states"]
    u: Float[Array, "H inputs"]


class Policy(NamedTuple):
    """Corrections of a plan's inputs: k_t + K_t (x_t - x̄_t)."""

    feedforward: Float[Array, "*H inputs"]
    gain: Float[Array, "*H inputs states"]


class Stage(NamedTuple):
    """A stage of a plan to first order: the slopes are those of the next state and of the residuals in (x, u).

    ``gap`` is by how much the model's next state is beyond that of the plan.
    """

    u: Float[Array, "*H inputs"]
    gap: Float[Array, "*H states"]
    residual: Float[Array, "*H residuals"]
    flow: Float[Array, "*H states both"]
    slope: Float[Array, "*H residuals both"]


class Ahead(NamedTuple):
    """The cost of what is to come, as a quadratic of the state here."""

    gradient: Float[Array, " states"]
    curvature: Float[Array, "states states"]


def plan_cost(problem: AbstractOptimalControl, plan: Plan) -> Float[Array, ""]:
    """Half the sum of squared residuals."""
    stages = jax.vmap(problem.stage)(plan.x[:-1], plan.u)
    return 0.5 * (jnp.sum(stages**2) + jnp.sum(problem.final(plan.x[-1]) ** 2))


def improved(problem: AbstractOptimalControl, x: Float[Array, " states"], plan: Plan) -> tuple[Plan, Float[Array, ""]]:
    """One iteration: a plan from ``x`` and its cost, which is infinite where no plan stays finite."""
    policy = _backward(problem, plan)

    def tried(share):
        found = _forward(problem, x, plan, policy, share)
        return found, plan_cost(problem, found)

    plans, costs = jax.vmap(tried)(jnp.asarray(_SHARES, x.dtype))
    costs = jnp.where(jnp.isfinite(costs), costs, jnp.inf)
    best = jnp.argmin(costs)
    return jax.tree.map(lambda each: each[best], plans), costs[best]


# --- backwards -------------------------------------------------------------------------------------------------------


def _backward(problem: AbstractOptimalControl, plan: Plan) -> Policy:
    """The policy that minimises the linear-quadratic problem along the plan."""

    def ending(x):
        return (problem.final(x),) * 2

    slope, residual = jax.jacfwd(ending, has_aux=True)(plan.x[-1])
    ahead = Ahead(slope.T @ residual, slope.T @ slope)

    def body(ahead, stage):
        return _before(ahead, stage, problem.limits)

    return jax.lax.scan(body, ahead, _expanded(problem, plan), reverse=True)[1]


def _expanded(problem: AbstractOptimalControl, plan: Plan) -> Stage:
    """All stages of a plan."""
    size = plan.x.shape[1]

    def both(z):
        x, u = z[:size], z[size:]
        value = problem.step(x, u), problem.stage(x, u)
        return value, value

    (flow, slope), (ahead, residual) = jax.vmap(jax.jacfwd(both, has_aux=True))(
        jnp.concatenate([plan.x[:-1], plan.u], axis=1)
    )
    return Stage(plan.u, ahead - plan.x[1:], residual, flow, slope)


def _before(ahead: Ahead, stage: Stage, limits: Float[Array, " inputs"]) -> tuple[Ahead, Policy]:
    """One step of the recursion: the cost from this stage on, and the policy here."""
    size = stage.gap.shape[0]
    expected = stage.slope.T @ stage.residual + stage.flow.T @ (ahead.gradient + ahead.curvature @ stage.gap)
    hessian = stage.slope.T @ stage.slope + stage.flow.T @ ahead.curvature @ stage.flow
    qx, qu = expected[:size], expected[size:]
    qxx, qux, quu = hessian[:size, :size], hessian[size:, :size], hessian[size:, size:]
    k, free = box_minimum(quu, qu, -limits - stage.u, limits - stage.u)
    gain = -_solved(quu, qux, free)
    gradient = qx + gain.T @ (quu @ k + qu) + qux.T @ k
    across = gain.T @ qux
    curvature = qxx + gain.T @ quu @ gain + across + across.T
    return Ahead(gradient, 0.5 * (curvature + curvature.T)), Policy(k, gain)


def box_minimum(
    hessian: Float[Array, "m m"], gradient: Float[Array, " m"], low: Float[Array, " m"], high: Float[Array, " m"]
):
    """The z within [low, high] that minimises ½ zᵀHz + gᵀz, and which of its entries are free.

    Projected Newton steps, as many as tiny problems need; one input needs one. The start is within the box.
    """
    z = jnp.clip(jnp.zeros_like(gradient), low, high)
    for _ in range(1 if z.shape[0] == 1 else 3 * z.shape[0]):
        free = _free(hessian, gradient, z, low, high)
        slope = jnp.where(free, gradient + hessian @ z, 0.0)
        z = jnp.clip(z - solve_spd(_only(hessian, free), slope), low, high)
    return z, _free(hessian, gradient, z, low, high)


def _free(hessian, gradient, z, low, high):
    slope = gradient + hessian @ z
    return ~(((z <= low) & (slope > 0.0)) | ((z >= high) & (slope < 0.0)))


def _only(hessian, free):
    """H where both entries are free, the identity elsewhere."""
    return jnp.where(free[:, None] & free[None, :], hessian, jnp.eye(free.shape[0], dtype=hessian.dtype))


def _solved(quu, qux, free):
    """Quu⁻¹ Qux over the free inputs, zero in the others."""
    return jax.vmap(solve_spd, (None, 1), 1)(_only(quu, free), jnp.where(free[:, None], qux, 0.0))


# --- forwards --------------------------------------------------------------------------------------------------------


def _forward(problem: AbstractOptimalControl, x, plan: Plan, policy: Policy, share) -> Plan:
    """The motion of the model from ``x`` under this share of the policy's correction."""

    def body(x, stage):
        at, u, feedforward, gain = stage
        u = jnp.clip(u + share * feedforward + gain @ (x - at), -problem.limits, problem.limits)
        return problem.step(x, u), (x, u)

    end, (states, inputs) = jax.lax.scan(body, x, (plan.x[:-1], plan.u, *policy))
    return Plan(jnp.concatenate([states, end[None]]), inputs)
