"""Why the velocity decides: two studies on Windy Pendulum, each behind a figure of the docs.

:func:`velocity_study` gives the *true* physics a state from ten positions in four ways and lets it run: whatever error
is left is that of the estimate. :func:`noise_study` does the whole job under noise, physics learned too, by the paper's
observer, by a smoother, and by the moving horizon, beside the floor: the true physics with the moving horizon.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.api.fitting import fit
from phast.data.trajectories import Trajectories
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.dynamics.systems import System
from phast.estimation.forecaster import Core, roll_out, shared_out, takeover
from phast.estimation.moving_horizon import ModelAware, estimate_state
from phast.estimation.smoother import smooth_map, unwrapped_path
from phast.paper.compositions import SHARP, composition
from phast.paper.experiments import Experiment, Record, read_record, run_missing, write_record
from phast.paper.protocol import Split, benchmark_split
from phast.report.provenance import commit, versions

CONTEXT, HORIZON = 10, 100
LEVELS = (0.0, 1e-3, 1e-2, 5e-2)
PRESET = "study"
_STIFFNESS = tuple(10.0**k for k in range(-7, 4))

State = tuple[Float[Array, " n"], Float[Array, " n"]]


# --- four ways to a state --------------------------------------------------------------------------------------------


def _first_difference(core: Core, data: Trajectories, y: Float[Array, "K n"]) -> State:
    """The paper's start: (q_t - q_{t-1})/dt."""
    return y[-1], core.system.momentum(y[-1], data.manifold.difference(y[-1], y[-2]) / data.dt)


def _five_points(core: Core, data: Trajectories, y: Float[Array, "K n"]) -> State:
    """The slope at the last sample of the quartic through the last five."""
    path = unwrapped_path(data.manifold, y)[-5:]
    slope = jnp.tensordot(jnp.array([3.0, -16.0, 36.0, -48.0, 25.0]) / 12.0, path, axes=1) / data.dt
    return y[-1], core.system.momentum(y[-1], slope)


def _smoothed(stiffness: float) -> Callable[[Core, Trajectories, Array], State]:
    """The MAP smoother's state at the last sample."""

    def state(core, data, y):
        q, v = smooth_map(unwrapped_path(data.manifold, y), jnp.ones(y.shape[0]), data.dt, stiffness=stiffness)
        return q[-1], core.system.momentum(q[-1], v[-1])

    return state


def _moving_horizon(core: Core, data: Trajectories, y: Float[Array, "K n"]) -> State:
    found = estimate_state(core, data.manifold, data.dt, y)
    return found.q, found.p


def _errors(core: Core, state: Callable, seen: Trajectories, clean: Trajectories) -> Float[np.ndarray, "N H n"]:
    """Squared errors of forecasts from the first samples of each trajectory."""

    @eqx.filter_jit
    def run(y, after):
        def one(y):
            return core.rollout(*state(core, clean, y), HORIZON)[0]

        return clean.manifold.squared_error(jax.vmap(one)(y), after)

    end = CONTEXT + HORIZON
    return np.asarray(shared_out(run, jnp.asarray(seen.q[:, :CONTEXT]), jnp.asarray(clean.q[:, CONTEXT:end])))


def velocity_study(system: System) -> dict[str, Float[np.ndarray, " H"]]:
    """Method -> the median squared error after 1 … H steps of the true physics, from clean positions."""
    _, validation, test = benchmark_split(system)
    core = _truth(system)
    ways = {
        "finite difference": _first_difference,
        "five-point difference": _five_points,
        "MAP smoother": _smoothed(_best_stiffness(core, validation, validation)),
        "moving horizon": _moving_horizon,
    }
    return {name: np.median(_errors(core, way, test, test).mean(axis=2), axis=0) for name, way in ways.items()}


def _truth(system: System) -> Core:
    return Core(system.port_hamiltonian, RungeKutta(Timestep(system.dt, 4)))


def _best_stiffness(core: Core, seen: Trajectories, clean: Trajectories) -> float:
    """The smoother's one parameter, at its best on these data: nothing is held against it."""
    return min(_STIFFNESS, key=lambda s: float(np.median(_errors(core, _smoothed(s), seen, clean).mean(axis=(1, 2)))))


# --- the whole job under noise ---------------------------------------------------------------------------------------


def noise_study(
    folder: Path, system: System, *, levels: Sequence[float] = LEVELS, on_stage: Callable[[str], None]
) -> list[Record]:
    """KNOWN, learned and forecast under each noise level in four ways; finished parts are read from ``folder``."""
    records = []
    for noise in levels:
        on_stage(f"noise {noise:g}: FD+TCN")
        (paper,) = run_missing(folder, _paper(system, noise), [0])
        mean, median = (paper["metrics"][f"rollout_theta_wrap_mse_h{HORIZON}{end}"] for end in ("", "_median"))
        records.append(_record(system, "FD+TCN", noise, mean, median))
        paths = _state_paths(folder, system, noise)
        if not all(path.exists() for path in paths.values()):
            on_stage(f"noise {noise:g}: MAP, moving horizon, floor")
            for name, errors in _by_states(system, benchmark_split(system), noise).items():
                each = errors.mean(axis=(1, 2))
                write_record(paths[name], _record(system, name, noise, float(each.mean()), float(np.median(each))))
        records += [read_record(path) for path in paths.values()]
    return records


def noise_study_paths(folder: Path, system: System, levels: Sequence[float] = LEVELS) -> list[Path]:
    """The records that the study is made of."""
    return [
        path
        for noise in levels
        for path in (_paper(system, noise).record_path(folder, 0), *_state_paths(folder, system, noise).values())
    ]


def _paper(system: System, noise: float) -> Experiment:
    return Experiment(system.name, "phast-known", noise=noise)


def _state_paths(folder: Path, system: System, noise: float) -> dict[str, Path]:
    return {
        name: Experiment(system.name, name, PRESET, noise).record_path(folder, 0)
        for name in ("map", "horizon", "floor")
    }


def _by_states(system: System, data: Split, noise: float) -> dict[str, np.ndarray]:
    noisy = (lambda part, seed: part.with_noise(noise, seed=seed)) if noise else (lambda part, seed: part)
    train, seen = noisy(data.train, 0), noisy(data.test, 2)
    learned = fit(train, composition("phast-known")(system, train), method=SHARP).model
    truth = ModelAware(_truth(system), system.manifold, system.dt, window=CONTEXT)
    end = CONTEXT + HORIZON
    contexts, after = jnp.asarray(seen.q[:, :CONTEXT]), jnp.asarray(data.test.q[:, CONTEXT:end])
    stiffness = _best_stiffness(learned.core, noisy(data.validation, 1), data.validation)

    def rolled(model):
        return np.asarray(system.manifold.squared_error(roll_out(takeover, model, contexts, HORIZON), after))

    return {
        "map": _errors(learned.core, _smoothed(stiffness), seen, data.test),
        "horizon": rolled(learned),
        "floor": rolled(truth),
    }


def _record(system: System, method: str, noise: float, mean: float, median: float) -> Record:
    kept = {"rollout_h100": mean, "rollout_h100_median": median}
    return {
        "system": system.name,
        "model": method,
        "preset": PRESET,
        "seed": 0,
        "noise": noise,
        "metrics": kept,
        "versions": versions(),
        "commit": commit(),
    }
