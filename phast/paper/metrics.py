"""Every metric of the paper's appendix on evaluation, under its own keys (Table "metric keys"), and a few of ours.

Errors are means over steps, trajectories and coordinates; the suffix ``_median`` is the median over trajectories of
each one's mean, ``_final`` the error at the last step alone. Keys are absent where a metric does not apply: damping for
models that expose none, energy for systems that have none.
"""

import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.forecaster import (
    AbstractForecaster,
    AbstractFullState,
    AbstractIdentifiable,
    Core,
    Phast,
    autoregressive,
    roll_out,
    shared_out,
    takeover,
)
from phast.estimation.observers import FiniteDifference

PASSIVITY_TOLERANCE = 1e-6


def evaluate(
    model: AbstractForecaster,
    test: Trajectories,
    *,
    truth: PortHamiltonian | None = None,
    context: int = 10,
    horizons: Sequence[int] = (10, 50, 100),
    noise: float = 0.0,
) -> dict[str, float]:
    """All metrics of ``model`` on test trajectories, those of physics judged against ``truth``.

    With ``noise`` the models see noisy positions of that standard deviation; errors are against the clean ones.
    """
    if context < 1 or min(horizons, default=0) < 1:
        raise InputError(f"a context of {context} and horizons {tuple(horizons)}: each needs at least one step")
    longest = max(horizons)
    if test.length < context + longest:
        raise InputError(
            f"trajectories of {test.length} samples cannot hold a context of {context} and a forecast of {longest}: "
            "use longer ones or a shorter horizon"
        )
    q = jnp.asarray(test.q, dtype=float)
    seen = q if noise == 0.0 else jnp.asarray(test.with_noise(noise, seed=2).q, dtype=float)
    kind = error_name(model.manifold)
    metrics = _next_step(model, seen, q, kind, context) | {"floor": first_step_floor(test)}
    rolled = roll_out(autoregressive, model, seen[:, :context], longest)
    metrics |= _rollout_errors(model.manifold, rolled, q, context, horizons, f"rollout_{kind}")
    if isinstance(model, AbstractIdentifiable):
        taken = roll_out(takeover, model, seen[:, :context], longest)
        metrics |= _rollout_errors(model.manifold, taken, q, context, horizons, f"rollout_takeover_{kind}")
    if isinstance(model, Phast):
        metrics |= _probes(model, seen, test)
    if truth is not None:
        metrics |= _energy(truth, model.manifold, rolled, q, context, horizons, test.dt)
        if isinstance(model, AbstractIdentifiable):
            recovered = damping_recovery(model.learned_system(), truth, q)
            metrics |= {name: value for name, value in recovered.items() if np.isfinite(value)}
    return {name: float(value) for name, value in metrics.items()}


def evaluate_full_state(
    model: AbstractFullState,
    test: Trajectories,
    truth: PortHamiltonian | None = None,
    *,
    horizons: Sequence[int] = (10, 50, 100),
) -> dict[str, float]:
    """Errors of q for a model that is given (q, p): one step from every sample, and rollouts from the first.

    The damping is judged against ``truth`` where a model exposes one.
    """
    if test.p is None:
        raise InputError("the trajectories hold no momenta: full-state models need q and p")
    longest = max(horizons)
    if test.length < longest + 1:
        raise InputError(f"trajectories of {test.length} samples cannot hold a forecast of {longest} steps")
    q, p = jnp.asarray(test.q, dtype=float), jnp.asarray(test.p, dtype=float)
    kind = error_name(test.manifold)
    ahead, rolled = shared_out(functools.partial(_full_state_paths, model, longest), q, p)
    metrics = {kind: jnp.mean(test.manifold.squared_error(ahead, q[:, 1:]))}
    metrics |= _rollout_errors(test.manifold, rolled, q, 1, horizons, f"rollout_{kind}")
    if truth is not None and isinstance(model, Core):
        recovered = damping_recovery(model.system, truth, q)
        metrics |= {name: value for name, value in recovered.items() if np.isfinite(value)}
    return {name: float(value) for name, value in metrics.items()}


@eqx.filter_jit
def _full_state_paths(model: AbstractFullState, horizon: int, q, p):
    """Positions one step after every sample but the last, and along a rollout from the first."""
    ahead = jax.vmap(jax.vmap(model))(q[:, :-1], p[:, :-1])[0]
    return ahead, jax.vmap(lambda x, y: model.rollout(x, y, horizon)[0])(q[:, 0], p[:, 0])


def error_name(manifold: Manifold) -> str:
    """The paper's name of the error on this manifold."""
    if all(manifold.circles):
        return "theta_wrap_mse"
    return "mixed_mse" if any(manifold.circles) else "mse"


def first_step_floor(test: Trajectories) -> float:
    """E|v₀|² dt² / (T - 1): unavoidable in the all-steps next-step error, since q₀ alone gives no velocity."""
    if test.v is not None:
        steps = np.asarray(test.v[:, 0]) * test.dt
    else:
        steps = np.asarray(test.manifold.difference(jnp.asarray(test.q[:, 1]), jnp.asarray(test.q[:, 0])))
    return float(np.mean(steps**2) / (test.length - 1))


@eqx.filter_jit
def _next_step_errors(model, seen, q):
    return model.manifold.squared_error(jax.vmap(model.predict_next)(seen[:, :-1]), q[:, 1:])


def _next_step(model, seen, q, kind: str, context: int) -> dict[str, Array]:
    error = shared_out(functools.partial(_next_step_errors, model), seen, q)
    after = error[:, context:]
    return {
        kind: jnp.mean(error),
        "next_step_after_burn_in": jnp.mean(after),
        "next_step_after_burn_in_median": jnp.median(jnp.mean(after, axis=(1, 2))),
    }


def _rollout_errors(manifold, rolled, q, context: int, horizons, prefix: str) -> dict[str, Array]:
    error = manifold.squared_error(rolled, q[:, context : context + rolled.shape[1]])
    metrics = {}
    for h in horizons:
        metrics[f"{prefix}_h{h}"] = jnp.mean(error[:, :h])
        metrics[f"{prefix}_h{h}_median"] = jnp.median(jnp.mean(error[:, :h], axis=(1, 2)))
        metrics[f"{prefix}_h{h}_final"] = jnp.mean(error[:, h - 1])
    return metrics


@eqx.filter_jit
def damping_recovery(
    learned: PortHamiltonian, truth: PortHamiltonian, q: Float[Array, "B T n"]
) -> dict[str, Float[Array, ""]]:
    """R²_D and MAE_D between the diagonals of D at every test configuration (at rest).

    A constant damping has no variance to explain: its R² is not a number.
    """

    def diagonals(system):
        return jax.vmap(jax.vmap(lambda x: damping_diagonal(system, x)))(q)

    return recovery(diagonals(learned), diagonals(truth))


def damping_diagonal(system: PortHamiltonian, q: Float[Array, " n"]) -> Float[Array, " n"]:
    """The diagonal of D(q), at rest."""
    return system.damping.operator(q, jnp.zeros_like(q)).diagonal_part()


def recovery(found: Float[Array, "B T n"], wanted: Float[Array, "B T n"]) -> dict[str, Float[Array, ""]]:
    """R² and mean absolute error of a field."""
    spread = jnp.sum((wanted - jnp.mean(wanted, axis=(0, 1))) ** 2)
    varies = spread > 1e-12 * (1.0 + jnp.sum(wanted**2))
    return {
        "damping_r2": jnp.where(varies, 1.0 - jnp.sum((found - wanted) ** 2) / spread, jnp.nan),
        "damping_mae": jnp.mean(jnp.abs(found - wanted)),
    }


@eqx.filter_jit
def energy_trace(
    truth: PortHamiltonian, manifold: Manifold, path: Float[Array, "T n"], dt: float
) -> tuple[Float[Array, " T-1"], Float[Array, " T-1"]]:
    """(H, power dissipated) along positions: finite differences for v, energy at the later end of each step."""
    v = manifold.difference(path[1:], path[:-1]) / dt
    kinetic = jax.vmap(lambda x, w: 0.5 * jnp.dot(w, truth.momentum(x, w)))(path[1:], v)
    energy = kinetic + jax.vmap(truth.potential)(path[1:])
    return energy, jnp.sum(v * jax.vmap(truth.dissipation)(path[:-1], v), axis=-1)


def _energy(truth, manifold, rolled, q, context: int, horizons, dt: float) -> dict[str, Array]:
    """Energy-budget residual and passivity violations of the rollout, by the simulator's H and D.

    The path is the last context sample and the H predictions; its H energies make H - 1 differences.
    """
    path = jnp.concatenate([q[:, context - 1 : context], rolled], axis=1)
    energy, dissipated = jax.vmap(lambda x: energy_trace(truth, manifold, x, dt))(path)
    rise = jnp.diff(energy, axis=1)
    residual = jnp.abs(rise / dt + dissipated[:, :-1])
    metrics = {}
    for h in (h for h in horizons if h > 1):  # one energy makes no difference
        metrics[f"rollout_energy_budget_resid_h{h}"] = jnp.mean(residual[:, : h - 1])
        metrics[f"rollout_passivity_violations_h{h}"] = jnp.mean(rise[:, : h - 1] > PASSIVITY_TOLERANCE)
    return metrics


@eqx.filter_jit
def _probe_values(model: Phast, q):
    rough = jax.vmap(lambda x: FiniteDifference(model.manifold).velocities(x, model.dt))(q)
    observed = jax.vmap(lambda x: model.observer.velocities(x, model.dt))(q)
    system = model.core.system

    def stiffness(x):
        rest = jnp.zeros_like(x)
        damping, mass = system.damping.operator(x, rest).dense(), system.mass.operator(x).dense()
        return jnp.linalg.eigvalsh(damping)[-1] / jnp.linalg.eigvalsh(mass)[0]

    steps = jnp.stack([jnp.asarray(piece, dtype=q.dtype) for piece in model.core.transition.timestep.pieces()])
    stiff = 0.5 * jnp.max(steps) * jnp.max(jax.vmap(stiffness)(q[:, 0]))
    return observed, rough, stiff, jnp.sum(steps) / model.dt


def _probes(model: Phast, seen: Float[Array, "B T n"], test: Trajectories) -> dict[str, Array]:
    """Where the error comes from (appendix F.1): velocity estimates, stiffness, learned timestep."""
    observed, rough, stiff, ratio = _probe_values(model, seen)
    metrics = {"damping_stiffness": stiff, "timestep_ratio": ratio}
    if test.v is not None:
        metrics["velocity_mae"] = jnp.mean(jnp.abs(observed - test.v)[:, 1:])
        metrics["velocity_fd_mae"] = jnp.mean(jnp.abs(rough - test.v)[:, 1:])
    return metrics
