"""Gains for a learned model: potential shaping and damping injection from a bandwidth and a damping ratio.

At the target the model is M δq'' + D δq' + K δq = G δu with the learned M(q*), D and K = ∇²V(q*). An input moves what
it acts on, y = Gᵀ δq, and with the rest held δq = S y, S = G (Gᵀ G)⁻¹. Of each input, in the diagonals of Sᵀ · S,

    k = ω² M - K,   d = 2 ζ ω M - D,   G u* = ∇V(q*)

are the stiffness, the damping injection and the holding input of :class:`~phast.control.shaping.EnergyCasimir`. Damping
that the system has already is kept: d is never negative. What cannot work is refused, with the reason, before anything
is simulated:

    matching condition   the force that no input can hold, G^⊥ ∇V(q*), must vanish
    limits               the holding input must be within them
    minimum              K + G k Gᵀ, the curvature of the shaped potential, must be positive definite
    stiffness            k must not be negative: a softened well need not hold what is far from it
    sampling             the eigenvalues of the loop that is closed every dt must lie within the unit circle
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Complex, Float

from phast.components.potential import gradient
from phast.control.ports import driven_system
from phast.control.shaping import EnergyCasimir
from phast.control.wanted import Wanted
from phast.data.units import Units
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.moving_horizon import ModelAware

_CORRECTION = 2.0  # k_ξ in bandwidths: how fast ξ forgets what the estimate of y was off
_ROUNDING = 1e-9  # of the largest: below that there is nothing


class Linearised(NamedTuple):
    """A system at rest at a position: M, D, K = ∇²V, ∇V and G."""

    mass: Float[np.ndarray, "n n"]
    damping: Float[np.ndarray, "n n"]
    stiffness: Float[np.ndarray, "n n"]
    force: Float[np.ndarray, " n"]
    port: Float[np.ndarray, "n m"]


class Mode(NamedTuple):
    """A mode of the closed loop: its natural frequency [rad/s] and damping ratio."""

    frequency: float
    ratio: float


class Design(NamedTuple):
    """A controller, what it is for, and how the loop that it closes moves; in the units of the computation.

    Angles of ``target`` are in radians. ``gains`` are what acts on each coordinate: of input j and coordinate i,
    stiffness G_ij k_j and injection G_ij d_j. ``modes`` are those of the sampled loop.
    """

    law: EnergyCasimir
    target: Float[np.ndarray, " n"]
    port: Float[np.ndarray, "n m"]
    limits: tuple[float, ...] | None
    modes: tuple[Mode, ...]
    remarks: tuple[str, ...]


class Gains(NamedTuple):
    """Of each input: stiffness, damping injection, and the bandwidth that the system has by itself."""

    stiffness: Float[np.ndarray, " m"]
    injection: Float[np.ndarray, " m"]
    natural: Float[np.ndarray, " m"]


class Goal(NamedTuple):
    """What is wanted, as arrays in the units of the computation; ``names`` are of the inputs."""

    target: Float[np.ndarray, " n"]
    bandwidth: Float[np.ndarray, " m"]
    ratio: Float[np.ndarray, " m"]
    limits: Float[np.ndarray, " m"] | None
    holding: Float[np.ndarray, " m"] | None
    tolerance: Float[np.ndarray, " n"]
    speed: Float[np.ndarray, " n"]
    units: Units
    names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        wanted: Wanted,
        units: Units,
        names: tuple[str, ...],
        tolerance: Float[np.ndarray, " n"],
        distance: Float[np.ndarray, " n"],
    ) -> "Goal":
        """``distance`` is how far each coordinate has to go, at most: friction is looked at at the speed of that."""
        target, count = wanted.position(wanted.target, "target", units), len(names)
        found = (wanted.each(name, count, "input") for name in ("bandwidth", "damping_ratio", "limits", "holding"))
        bandwidth, ratio, limits, holding = found
        assert bandwidth is not None and ratio is not None  # neither has a default of None
        speed = bandwidth.max() * np.maximum(distance, tolerance)
        return cls(target, bandwidth, ratio, limits, holding, tolerance, speed, units, names)


def design_controller(model: ModelAware, goal: Goal) -> Design:
    """The controller that takes the model to the goal, or why there is none."""
    here, m = _at(driven_system(model), goal), len(goal.names)
    if here.port.shape[1] != m:
        raise InputError(f"the model has {here.port.shape[1]} inputs, but {m} are named: fit it with all of them")
    holding = _holding(here, goal)
    _check_limits(holding, goal)
    found = _gains(here, goal)
    _check_minimum(here, found.stiffness, goal)
    _check_gains(found, goal)
    law = _law(here, goal, found, holding)
    idle = [name for name, d in zip(goal.names, found.injection, strict=True) if d == 0.0]
    remarks = [f"{name}: the system alone is damped more than asked for: no damping is injected" for name in idle]
    multipliers = sampled(here, law, model.dt)
    if not (growth := np.abs(multipliers).max()) < 1.0:
        raise InputError(
            f"unstable gains: sampled every {model.dt:g} s, a deviation from the target would grow {growth:.3g} times "
            f"per sample: lower the bandwidth ({_slower(here, goal, model.dt)}), or sample faster"
        )
    limits = None if goal.limits is None else tuple(goal.limits.tolist())
    return Design(law, goal.target, here.port, limits, _modes(multipliers, model.dt), tuple(remarks))


def _law(here: Linearised, goal: Goal, found: Gains, holding: Float[np.ndarray, " m"]) -> EnergyCasimir:
    vectors = (here.port.T @ goal.target, found.stiffness, found.injection, holding)
    target, stiffness, injection, holding_input = map(jnp.asarray, vectors)
    correction = float(_CORRECTION * goal.bandwidth.max())
    return EnergyCasimir(target, stiffness, injection, holding_input, correction)


# --- the model at the target -----------------------------------------------------------------------------------------


def _at(system: PortHamiltonian, goal: Goal) -> Linearised:
    """The system at the target, with the least damping that it has between rest and the speed of the motion."""
    target, speed = jnp.asarray(goal.target), jnp.asarray(goal.speed)
    resting = Linearised(*map(np.asarray, _linearised(system, target, jnp.zeros_like(target))))
    moving = np.asarray(_linearised(system, target, speed)[1])
    least = min(resting.damping, moving, key=np.trace)  # friction that holds is no damping of a motion
    return resting._replace(damping=least)


@eqx.filter_jit
def _linearised(system: PortHamiltonian, q: Float[Array, " n"], v: Float[Array, " n"]) -> tuple[Array, ...]:
    stiffness, damping = jax.hessian(system.potential)(q), system.damping.operator(q, v).dense()
    force = gradient(system.potential, q)
    return system.mass.operator(q).dense(), damping, stiffness, force, system.port_matrix(len(q))


# --- what the inputs can hold ----------------------------------------------------------------------------------------


def _holding(here: Linearised, goal: Goal) -> Float[np.ndarray, " m"]:
    """u* with G u* = ∇V(q*)."""
    singular = np.linalg.svd(here.port, compute_uv=False)
    if len(singular) < here.port.shape[1] or not singular[-1] > _ROUNDING * singular[0]:
        raise InputError("the inputs do not act independently (their columns of the port G depend on each other)")
    off = np.abs(_held_off(here))
    worst = int(np.argmax(off / goal.tolerance))
    if off[worst] > goal.tolerance[worst]:
        free = scipy.linalg.null_space(here.port.T)
        left = here.force - here.port @ np.linalg.lstsq(here.port, here.force, rcond=None)[0]
        raise InputError(
            f"the target cannot be held: no input acts against the force {np.abs(left).max():.3g} of the learned "
            f"potential along {_along(free, goal.units)} there (matching condition G^⊥ ∇V = 0): choose a target where "
            "that force vanishes"
        )
    if goal.holding is not None:
        return goal.holding
    return np.linalg.lstsq(here.port, here.force, rcond=None)[0]


def _held_off(here: Linearised) -> Float[np.ndarray, " n"]:
    """How far from the target the unactuated coordinates rest, by the curvature that the potential has there."""
    free = scipy.linalg.null_space(here.port.T)
    curvature, directions = np.linalg.eigh(free.T @ here.stiffness @ free)
    pushed = directions.T @ free.T @ here.force
    pushed = np.where(np.abs(pushed) > _ROUNDING * np.abs(here.force).max(initial=0.0), pushed, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.where(pushed == 0.0, 0.0, pushed / np.abs(curvature))
    return np.abs(free @ directions) @ np.abs(off)


def _check_limits(holding: Float[np.ndarray, " m"], goal: Goal) -> None:
    for name, held, most in zip(goal.names, holding, [] if goal.limits is None else goal.limits, strict=False):
        if abs(held) > most:
            raise InputError(
                f"the target is out of reach: holding it takes {name} = {held:.4g}, more than its limit {most:g}: "
                "choose a nearer target, or raise the limits"
            )


def _along(free: Float[np.ndarray, "n k"], units: Units) -> str:
    """The coordinates that take part in directions."""
    involved = np.abs(free).max(axis=1) > 1e-6
    return ", ".join(name for name, taken in zip(units.manifold.names, involved, strict=True) if taken)


# --- gains -----------------------------------------------------------------------------------------------------------


def _gains(here: Linearised, goal: Goal) -> Gains:
    shape = np.linalg.pinv(here.port.T)
    seen, own, present = (np.diag(shape.T @ part @ shape) for part in (here.mass, here.stiffness, here.damping))
    stiffness = goal.bandwidth**2 * seen - own
    injection = 2.0 * goal.ratio * goal.bandwidth * seen - present
    return Gains(stiffness, np.maximum(injection, 0.0), np.sqrt(np.maximum(own / seen, 0.0)))


def _check_gains(found: Gains, goal: Goal) -> None:
    for name, k, natural in zip(goal.names, found.stiffness, found.natural, strict=True):
        if k < 0.0:
            raise InputError(
                f"the bandwidth is below that of the system alone at the target, {natural:.3g} rad/s for {name}: a "
                "controller that softens it may lose it from afar: raise the bandwidth"
            )


def _check_minimum(here: Linearised, stiffness: Float[np.ndarray, " m"], goal: Goal) -> None:
    """Refuse a shaped potential V + H_c without a minimum at the target."""
    shaped = here.stiffness + (here.port * stiffness) @ here.port.T
    if _positive(shaped, here.stiffness):
        return
    free = scipy.linalg.null_space(here.port.T)
    if free.size and not _positive(free.T @ here.stiffness @ free, here.stiffness):
        raise InputError(
            f"unstable gains, whatever they are: no input acts along {_along(free, goal.units)}, where the learned "
            "potential has no minimum at the target: choose a target where it has one"
        )
    raise InputError(
        "unstable gains: the shaped potential has no minimum at the target, since the learned one falls faster than "
        "the stiffness rises: raise the bandwidth"
    )


def _positive(matrix: np.ndarray, scale: np.ndarray) -> bool:
    smallest = np.linalg.eigvalsh(matrix)[0]
    return bool(smallest > _ROUNDING * np.abs(scale).max())


# --- the sampled loop ------------------------------------------------------------------------------------------------


def sampled(here: Linearised, law: EnergyCasimir, dt: float) -> Complex[np.ndarray, " states"]:
    """By what each mode of the loop around the target is multiplied from sample to sample, the port output known."""
    n, m = here.port.shape
    inverse = np.linalg.inv(here.mass)
    rate = np.zeros((2 * n + m, 2 * n + m))  # of (δq, q', u): u is held
    rate[:n, n : 2 * n] = np.eye(n)
    rate[n : 2 * n] = inverse @ np.concatenate([-here.stiffness, -here.damping, here.port], axis=1)
    step = scipy.linalg.expm(rate * dt)[: 2 * n]
    gains, correction = np.asarray(law.stiffness), dt * law.correction
    feedback = np.zeros((m, 2 * n + m))  # of (δq, q', ξ - ξ*)
    feedback[:, n : 2 * n] = -np.asarray(law.injection)[:, None] * here.port.T
    feedback[:, 2 * n :] = -np.diag(gains)
    loop = np.zeros((2 * n + m, 2 * n + m))
    loop[: 2 * n, : 2 * n] = step[:, : 2 * n]
    loop[: 2 * n] += step[:, 2 * n :] @ feedback
    followed = [correction * here.port.T, dt * here.port.T, (1.0 - correction) * np.eye(m)]
    loop[2 * n :] = np.concatenate(followed, axis=1)
    return np.linalg.eigvals(loop).astype(complex)


def _modes(multipliers: Complex[np.ndarray, " states"], dt: float) -> tuple[Mode, ...]:
    """The modes of a stable loop, slowest first; a pair of conjugates is one."""
    upper = multipliers[(np.imag(multipliers) >= 0.0) & (np.abs(multipliers) > np.finfo(float).tiny)]
    rates = np.log(upper) / dt
    rates = rates[np.argsort(-rates.real)]
    return tuple(Mode(float(np.abs(rate)), float(-rate.real / np.abs(rate))) for rate in rates)


def _slower(here: Linearised, goal: Goal, dt: float) -> str:
    """A bandwidth that is stable, found by halving."""
    for halvings in range(1, 20):
        slower = goal._replace(bandwidth=0.5**halvings * goal.bandwidth)
        found = _gains(here, slower)
        law = _law(here, slower, found, np.zeros_like(found.stiffness))
        if np.abs(sampled(here, law, dt)).max() < 1.0:
            return f"{', '.join(f'{each:.3g}' for each in slower.bandwidth)} rad/s would do"
    return "no lower one was found that is stable"
