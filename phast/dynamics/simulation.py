"""Ground truth: trajectories of a system, integrated to tight tolerance.

An adaptive eighth-order Runge–Kutta method lands on every sampling time: never the integrator that a model learns with.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from phast.data.trajectories import Trajectories, as_floats
from phast.dynamics.hamiltonian import AbstractDynamics
from phast.dynamics.systems import System
from phast.errors import InputError

# A tolerance per step; over a whole trajectory errors grow, and this keeps them below 1e-9 nearly everywhere.
TOLERANCE = 1e-12
STEPS_PER_SAMPLE = 100


def simulate(system: System, count: int, *, length: int = 200, dt: float | None = None, seed: int = 42) -> Trajectories:
    """Ground truth: ``count`` trajectories of ``length`` samples from the system's own initial distribution."""
    q0, p0 = initial_states(system, count, seed)
    return trajectories_from(system, q0, p0, length, system.dt if dt is None else dt)


def initial_states(system: System, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and momenta (count, n) drawn from the system's own distribution."""
    if count < 1:
        raise InputError(f"the number of trajectories must be at least 1, got {count}")
    q0, p0 = (as_floats(x, "an initial state") for x in system.initial(np.random.default_rng(seed), count))
    expected = (count, system.manifold.size)
    if q0.shape != expected or p0.shape != expected:
        raise InputError(
            f"'{system.name}': initial(rng, {count}) must return two arrays of shape {expected}, "
            f"got {q0.shape} and {p0.shape}"
        )
    return q0, p0


def trajectories_from(system: System, q0: np.ndarray, p0: np.ndarray, length: int, dt: float) -> Trajectories:
    """From these initial states, in float64 whatever precision the process computes in."""
    if length < 2:
        raise InputError(f"a simulated trajectory needs at least 2 samples, got {length}")
    if not (np.isfinite(dt) and dt > 0.0):
        raise InputError(f"dt must be a positive number of seconds between samples, got {dt}")
    with jax.enable_x64(True):
        t, tolerance = jnp.asarray(dt * np.arange(length)), jnp.asarray(TOLERANCE)
        q, p, v, reached = map(np.asarray, _solve(system.dynamics, q0, p0, t, tolerance))
    if not reached.all():
        stuck = int(np.argmin(reached))
        last = dt * (np.isfinite(q[stuck]).all(axis=-1).sum() - 1)
        raise InputError(
            f"'{system.name}': trajectory {stuck} cannot be followed beyond t = {last:g} (it diverges or turns stiff): "
            "use fewer samples, a smaller dt or milder initial states"
        )
    return Trajectories(q, dt, system.manifold, p=p, v=v)


@eqx.filter_jit
def _solve(
    dynamics: AbstractDynamics,
    q0: Float[Array, "N n"],
    p0: Float[Array, "N n"],
    t: Float[Array, " T"],
    tolerance: Float[Array, ""],
) -> tuple[Float[Array, "N T n"], Float[Array, "N T n"], Float[Array, "N T n"], Bool[Array, " N"]]:
    """(q, p, v) at the times t, and whether the solver got there.

    Steps are clipped to land on each sample. Interpolating between free steps would save half the time of a run, less
    than its compilation takes, and lose two digits or more; Tsit5 costs the same as Dopri8 and loses one or two.
    """
    n = q0.shape[1]

    def field(_, state, __):
        return jnp.concatenate(dynamics.vector_field(state[:n], state[n:]))

    def one(state):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Dopri8(),
            t[0],
            t[-1],
            0.25 * (t[1] - t[0]),
            state,
            saveat=diffrax.SaveAt(ts=t),
            stepsize_controller=diffrax.ClipStepSizeController(
                diffrax.PIDController(rtol=tolerance, atol=tolerance), step_ts=t
            ),
            adjoint=diffrax.ForwardMode(),
            max_steps=STEPS_PER_SAMPLE * t.shape[0],
            throw=False,
        )
        q, p = solution.ys[:, :n], solution.ys[:, n:]
        v, _ = jax.vmap(dynamics.vector_field)(q, p)
        return q, p, v, diffrax.is_successful(solution.result)

    return jax.vmap(one)(jnp.concatenate([q0, p0], axis=1))
