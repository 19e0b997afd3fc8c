"""``phast bench``: how fast this is, as ratios measured in one run.

Seven sections: (a) training steps and (b) rollouts against a plain PyTorch version of the same model, which lives in
``benchmarks/torch_peer.py`` and runs in a process of its own; (c) five seeds against one; (d) low-rank operators as n
grows and against dense ones; (e) start-up; (f) exported C against limits; (g) predictive control against
CasADi and IPOPT on the same learned model (``benchmarks/casadi_peer.py``). What is compared is measured in turns, ours
then theirs, and summarised by the median. That is not enough where other programs run: eager PyTorch waits at a
barrier after every operation, so one busy core slows it thirtyfold and us hardly, and the ratio flatters us. So the
share of the machine that others used is measured too, and above a few per cent there is no verdict. Each section is a
function that returns :class:`Record` s.
"""

import ctypes
import dataclasses
import functools
import importlib.util
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from types import ModuleType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters import partial_eval
from rich.console import Console
from rich.table import Table

from phast.api.fitted import Fitted
from phast.components.lowrank import DiagonalPlusLowRank
from phast.control.predictive import PredictiveControl
from phast.control.riccati import Plan
from phast.data.units import Units
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.forecaster import Core, Phast, autoregressive, roll_out
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.losses import Batch, NextStepLoss
from phast.fitting.training import Settings, _batches, _begin, _epoch
from phast.paper.learned_control import trial_starts
from phast.paper.models import phast_known, phast_partial
from phast.paper.rigs import NOISE, RIGS, Rig, learned
from phast.report.provenance import commit, versions

PEER = Path(__file__).with_name("torch_peer.py")
REGIMES = {"known": phast_known, "partial": phast_partial}
BATCH, LENGTH, CONTEXT, TRAJECTORIES = 64, 200, 10, 200
SIZES = (10**2, 10**3, 10**4, 10**5, 10**6)
DENSE_SIZE = 2048
QUIET = 0.05


@dataclasses.dataclass(frozen=True)
class Record:
    """One measured quantity, judged by ``ratio`` where a limit is given."""

    section: str
    quantity: str
    ours: str
    other: str
    ratio: float
    at_least: float | None = None
    at_most: float | None = None
    others: float = 0.0  # the share of the machine that other programs used meanwhile

    @property
    def passed(self) -> bool | None:
        """None where there is nothing to pass, or where other programs disturbed the measurement."""
        if (self.at_least is None and self.at_most is None) or self.contended:
            return None
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= self.ratio <= high

    @property
    def contended(self) -> bool:
        return self.others > QUIET

    @property
    def target(self) -> str:
        limits = (("≥", self.at_least), ("≤", self.at_most))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None) or "–"


# --- measuring -------------------------------------------------------------------------------------------------------


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call to the end of its computation, after one that warms the memory, as in the peer."""
    jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def in_turns(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each timing over ``rounds``, taken one after the other so that all meet the same machine."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run())
    return {name: median(values) for name, values in times.items()}


class Others:
    """The share of all cores that programs other than this one and its children use, from its creation on (Linux)."""

    def __init__(self):
        self._before = self._now()

    def share(self) -> float:
        wall, busy, own = (after - before for after, before in zip(self._now(), self._before, strict=True))
        return max(0.0, (busy - own) / (wall * os.cpu_count()))

    def _now(self) -> tuple[float, float, float]:
        user, nice, system_time, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        busy = (user + nice + system_time) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peer_seconds(*arguments: object) -> float:
    """What ``torch_peer.py`` measures with these arguments."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "train and rollout compare against PyTorch, which is not installed: pip install 'phast[bench]'"
        )
    if not PEER.exists():
        raise InputError(f"{PEER}: not found; train and rollout need a checkout of the repository")
    command = [sys.executable, str(PEER), *map(str, arguments), "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["seconds"][0]


def swinging(count: int, length: int) -> jax.Array:
    """Angles of the right shape, as the peer makes them."""
    phase, speed = np.random.default_rng(0).random((2, count, 1))
    return jnp.asarray(2 * np.sin(6 * phase + 0.15 * speed * np.arange(length)), dtype=float)[..., None]


def _model(regime: str) -> Phast:
    return REGIMES[regime](system("pendulum-windy"), key=jax.random.key(0))


def _text(value: float) -> str:
    """Seconds for reading."""
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.2f} ms" if value >= 1e-3 else f"{1e6 * value:.1f} µs"


# --- (a) training ----------------------------------------------------------------------------------------------------


def training(*, steps: int = 20, rounds: int = 3) -> list[Record]:
    """Seconds per training step against the peer, and how close to the machine's own matmul it comes."""
    records = []
    for regime in REGIMES:
        records += _training(regime, steps, rounds)
    return records


def _training(regime: str, steps: int, rounds: int) -> list[Record]:
    peer = functools.partial(peer_seconds, "train", regime, "--steps", steps, "--batch", BATCH, "--length", LENGTH)
    epoch, matmul = epoch_runner(regime, steps), matmul_runner()
    runs = {
        "ours": lambda: seconds(epoch) / steps,
        "whole": peer,
        "matmul": lambda: seconds(matmul),
        "trimmed": functools.partial(peer, "--trimmed"),
    }
    found = in_turns(runs, rounds)
    ours, name = found["ours"], f"training step, {regime.upper()}"
    reached = matmul_flops(regime) / ours
    machine = matmul_flops_of_probe() / found["matmul"]
    return [
        Record("train", f"{name}: PyTorch", _text(ours), _text(found["whole"]), found["whole"] / ours, at_least=2.0),
        Record("train", f"{name}: PyTorch, trimmed", _text(ours), _text(found["trimmed"]), found["trimmed"] / ours),
        Record("train", f"{name}: of matmul rate", _rate(reached), _rate(machine), reached / machine),
    ]


def epoch_runner(regime: str, steps: int) -> Callable[[], object]:
    """The compiled epoch of :func:`phast.fitting.training.fit`, ready to run: ``steps`` batches of 64 × 200."""
    train = Batch(swinging(steps * BATCH, LENGTH))
    state, static, optimiser = _begin(_model(regime), train, Settings(batch_size=BATCH))
    order, weights = _batches(jax.random.key(1), steps * BATCH, BATCH)

    def run():
        return _epoch(static, state, optimiser, NextStepLoss(), train, order, weights, jax.random.key(2))

    jax.block_until_ready(run())
    return run


_PROBE = (12800, 64, 64)


def matmul_flops_of_probe(repeats: int = 50) -> int:
    return 2 * math.prod(_PROBE) * repeats


def matmul_runner(repeats: int = 50) -> Callable[[], object]:
    """The machine's rate: 12800 × 64 × 64 in float32, ``repeats`` times in one compiled loop."""
    rows, inner, columns = _PROBE
    x = jax.random.normal(jax.random.key(0), (rows, inner))
    w = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (inner, columns)))[0]
    run = jax.jit(lambda x, w: jax.lax.fori_loop(0, repeats, lambda _, y: y @ w, x))
    jax.block_until_ready(run(x, w))
    return lambda: run(x, w)


def matmul_flops(regime: str) -> int:
    """Floating-point operations of the matrix products in one training step, counted in its program."""
    params, static = eqx.partition(_model(regime), eqx.is_inexact_array)

    def objective(params, q):
        model = eqx.combine(params, static)
        return jnp.mean(jax.vmap(lambda path: NextStepLoss().selection(model, Batch(path)))(q))

    program = jax.make_jaxpr(jax.value_and_grad(objective))(params, swinging(BATCH, LENGTH)).jaxpr
    needed, _ = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    return _flops(needed)


def _flops(program: Jaxpr) -> int:
    return sum(_equation_flops(equation) for equation in program.eqns)


def _equation_flops(equation: JaxprEqn) -> int:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        return 2 * inner * equation.outvars[0].aval.size
    times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
    inside = [p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in equation.params.values()]
    return times * sum(_flops(p) for p in inside if isinstance(p, Jaxpr))


def _rate(flops_per_second: float) -> str:
    return f"{flops_per_second / 1e9:.1f} GFLOP/s"


# --- (b) rollouts ----------------------------------------------------------------------------------------------------


def rollouts(*, rounds: int = 3) -> list[Record]:
    """Autoregressive rollouts of 200 trajectories against the peer, and how their cost grows with the horizon."""
    records = []
    for regime in REGIMES:
        short, short_seconds = _rollouts(regime, 100, rounds, at_least=20.0)
        long, long_seconds = _rollouts(regime, 1000, 1, at_least=100.0)
        growth = math.log10(long_seconds / short_seconds)
        texts = _text(long_seconds), _text(short_seconds)
        records += [
            *short,
            *long,
            Record("rollout", f"rollout, {regime.upper()}: order in H", *texts, growth, at_most=1.1),
        ]
    return records


def _rollouts(regime: str, horizon: int, rounds: int, at_least: float) -> tuple[list[Record], float]:
    peer = functools.partial(peer_seconds, "rollout", regime, "--horizon", horizon, "--count", TRAJECTORIES)
    roll = rollout_runner(regime, horizon)
    runs = {
        "ours": lambda: median(seconds(roll) for _ in range(5)),
        "prefix": peer,
        "windowed": functools.partial(peer, "--windowed"),
    }
    found = in_turns(runs, rounds)
    ours, name = found["ours"], f"rollout H = {horizon}, {regime.upper()}"
    against_prefix = found["prefix"] / ours
    return [
        Record("rollout", f"{name}: PyTorch", _text(ours), _text(found["prefix"]), against_prefix, at_least=at_least),
        Record(
            "rollout", f"{name}: PyTorch, windowed", _text(ours), _text(found["windowed"]), found["windowed"] / ours
        ),
    ], ours


def rollout_runner(regime: str, horizon: int) -> Callable[[], object]:
    """A compiled rollout of 200 trajectories from ten samples each, ready to run."""
    model, contexts = _model(regime), swinging(TRAJECTORIES, CONTEXT)
    return lambda: roll_out(autoregressive, model, contexts, horizon)


# --- (c) seeds and (e) start-up: the command itself ------------------------------------------------------------------


def _command(*arguments: str) -> list[str]:
    """``phast …`` with the interpreter that runs this."""
    script = Path(sys.executable).with_name("phast")
    start = [str(script)] if script.exists() else [sys.executable, "-c", "from phast.cli.main import main; main()"]
    return [*start, *arguments]


def _run_command(*arguments: str) -> tuple[float, float]:
    """(wall time, processor time) of one ``phast …``."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(_command(*arguments), check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seeds() -> list[Record]:
    """Five seeds against one, each the whole command from start to written result."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, 5):
            arguments = ("evaluate", "pendulum-windy", "--model", "phast-known", "--preset", "paper")
            target = os.path.join(folder, f"{count}.json")
            results[count] = _run_command(*arguments, "--seeds", str(count), "--json", target)
    (one, _), (five, processor) = results[1], results[5]
    busy = processor / five
    return [
        Record("seeds", "five seeds: against one", _text(five), _text(one), five / one, at_most=4.5),
        Record("seeds", "five seeds: cores busy", _text(processor), _text(five), busy, at_least=0.8 * os.cpu_count()),
    ]


def startup(*, rounds: int = 5) -> list[Record]:
    """Seconds for ``phast --help``."""
    wall = median(_run_command("--help")[0] for _ in range(rounds))
    return [Record("startup", "phast --help", _text(wall), "1 s", wall, at_most=1.0)]


# --- (d) operators ---------------------------------------------------------------------------------------------------


def operators(*, rounds: int = 7) -> list[Record]:
    """D(q)v and M⁻¹p of rank 2: the order of growth in n, and the gain over dense matrices at n = 2048."""
    records = []
    for name, times in operator_times(rounds=rounds).items():
        growth = slope({n: t for n, t in times.items() if n >= 10**4})
        texts = _text(times[10**6]), _text(times[10**4])
        records.append(Record("primitives", f"{name}: order in n, 10⁴ … 10⁶", *texts, growth, at_most=1.2))
        found = in_turns({k: lambda f=f: seconds(f) for k, f in _against_dense(name).items()}, rounds)
        texts = _text(found["low rank"]), _text(found["dense"])
        ratio = found["dense"] / found["low rank"]
        records.append(Record("primitives", f"{name}: dense at n = {DENSE_SIZE}", *texts, ratio, at_least=1.0))
    return records


OPERATIONS: dict[str, str] = {"D(q)v": "matvec", "M⁻¹p": "solve"}


@functools.cache
def operator_times(*, rounds: int = 7) -> dict[str, dict[int, float]]:
    """{operation: {n: seconds}} for n = 10² … 10⁶; nothing of size n × n is formed."""
    return {name: {n: _operator_seconds(method, n, rounds) for n in SIZES} for name, method in OPERATIONS.items()}


def _operator_seconds(method: str, n: int, rounds: int) -> float:
    """One application, from a batch of calls long enough to time."""
    run, calls = _applied(method, _operator(n), _vector(n)), max(1, 10**5 // n)
    return median(seconds(lambda: [run() for _ in range(calls)]) / calls for _ in range(rounds))


def _against_dense(name: str) -> dict[str, Callable[[], object]]:
    operator, x, method = _operator(DENSE_SIZE), _vector(DENSE_SIZE), OPERATIONS[name]
    matrix = operator.dense()
    dense = jax.jit(jnp.matmul if method == "matvec" else jnp.linalg.solve)
    jax.block_until_ready(dense(matrix, x))
    return {"low rank": _applied(method, operator, x), "dense": lambda: dense(matrix, x)}


def _applied(method: str, operator: DiagonalPlusLowRank, x: jax.Array) -> Callable[[], object]:
    run = jax.jit(lambda operator, x: getattr(operator, method)(x))
    jax.block_until_ready(run(operator, x))
    return lambda: run(operator, x)


def _operator(n: int, rank: int = 2) -> DiagonalPlusLowRank:
    return DiagonalPlusLowRank(jnp.ones(n), jax.random.normal(jax.random.key(0), (n, rank)) * n**-0.5)


def _vector(n: int) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (n,))


def slope(times: dict[int, float]) -> float:
    """The exponent k of time ∝ n^k."""
    return float(np.polyfit(np.log(list(times)), np.log(list(times.values())), 1)[0])


def plot_operators(path: str | os.PathLike) -> None:
    """The paper's timing figure: seconds against n, both axes logarithmic."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for name, times in operator_times().items():
        axes.loglog(list(times), list(times.values()), "o-", label=f"{name}, r = 2")
    reference = np.array(SIZES[2:], dtype=float)
    last = max(times[SIZES[-1]] for times in operator_times().values())
    axes.loglog(reference, 2 * last * reference / reference[-1], "k:", label="linear")
    axes.set(xlabel="degrees of freedom n", ylabel="seconds per application")
    axes.legend(frameon=False)
    figure.savefig(path)
    plt.close(figure)


# --- (f) exported models -------------------------------------------------------------------------------------------


_LOOPS = """
#include "rig.h"

void run_steps(long count, double *x) {{
    for (; count > 0; count--, x += {two}) rig_step(x, x + {n}, 1.0, x, x + {n});
}}
void run_filter(long count, const double *q) {{
    static rig_filter filter;
    rig_state state;
    for (long i = 0; i < count; i++) rig_filter_update(&filter, q + {n} * i, 1.0, &state);
}}
"""
_LIMITS = {"pendulum-windy": (1.0, 20.0), "double-pendulum-damped": (None, None)}  # µs: of a step, of a sample


def exported(*, count: int = 100_000, rounds: int = 9) -> list[Record]:
    """Microseconds of a step and of the filter as C, and how far the steps are from those of JAX."""
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as folder:
        return [record for name in _LIMITS for record in _exported(name, Path(folder), count, rounds)]


def _exported(name: str, folder: Path, count: int, rounds: int) -> list[Record]:
    chosen = system(name)
    model = ModelAware(Core(chosen.dynamics, RungeKutta(Timestep(chosen.dt, 2))), chosen.manifold, chosen.dt)
    library, n = _compiled(model, folder), chosen.manifold.size
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3.0, 3.0, (count, n)), rng.normal(0.0, 2.0, (count, n))], axis=1)
    wanted = np.asarray(jax.jit(jax.vmap(lambda x: jnp.concatenate(model.core(x[:n], x[n:]))))(x))
    moved = x.copy()
    _call(library.run_steps, count, moved)
    error = float(np.max(np.max(np.abs(moved - wanted), axis=1) / np.linalg.norm(wanted, axis=1)))
    samples = np.asarray(model.core.rollout(jnp.full(n, 0.7), jnp.zeros(n), 2000)[0]) + rng.normal(0, 0.01, (2000, n))
    step = min(_timed(library.run_steps, count, x.copy()) for _ in range(rounds)) * 1e6
    sample = min(_timed(library.run_filter, len(samples), samples) for _ in range(rounds)) * 1e6
    most = _LIMITS[name]
    return [
        Record("export", f"{name}: time step", f"{step:.3g} µs", "1 µs", step, at_most=most[0]),
        Record("export", f"{name}: filter, a sample", f"{sample:.3g} µs", "20 µs", sample, at_most=most[1]),
        Record("export", f"{name}: off JAX, {count:,} states", f"{error:.1e}", "1e-12", error / 1e-12, at_most=1.0),
    ]


def _compiled(model: ModelAware, folder: Path) -> ctypes.CDLL:
    n = model.manifold.size
    Fitted(model, Units.computed(model.manifold)).export(folder / "rig.c")
    (folder / "loops.c").write_text(_LOOPS.format(n=n, two=2 * n))
    library = folder / f"{n}.so"
    sources = [str(folder / "rig.c"), str(folder / "loops.c")]
    subprocess.run(["cc", "-std=c99", "-O2", "-shared", "-fPIC", "-o", str(library), *sources, "-lm"], check=True)
    return ctypes.CDLL(str(library))


def _call(function: Callable, count: int, x: np.ndarray) -> None:
    function.restype = None
    function(ctypes.c_long(count), ctypes.c_void_p(x.ctypes.data))


def _timed(function: Callable, count: int, x: np.ndarray) -> float:
    """Seconds of one of ``count`` calls. The fastest of several rounds is the one that others disturbed least."""
    start = time.perf_counter()
    _call(function, count, x)
    return (time.perf_counter() - start) / count


# --- (g) predictive control ------------------------------------------------------------------------------------------


HORIZON, STARTS, SAMPLES = 40, 10, 150


def predictive(*, starts: int = STARTS, samples: int = SAMPLES) -> list[Record]:
    """A learned cart-pole held upright by one Riccati iteration a sample and by IPOPT: costs of the loop, solve times.

    Both see the same noise through the same filter, and take turns at each start.
    """
    rig = RIGS["cart-pole"]
    with jax.enable_x64(True):
        model = learned(rig, seed=0).model
        controller, peer = rig.control(model, HORIZON), _casadi_peer()
        q, p = trial_starts(rig, "upright", starts, seed=2)
        steppers = {"ours": _Riccati(controller)} | {
            name: peer.Ipopt(controller, compiled=compiled)
            for name, compiled in (("IPOPT, compiled", True), ("IPOPT", False))
        }
        loop = _Loop(rig, controller)
        costs, times = {name: 0.0 for name in steppers}, {name: [] for name in steppers}
        for trial in range(starts):
            for name, stepper in steppers.items():
                stepper.last = None
                cost, spent = loop.closed(stepper, q[trial], p[trial], samples, seed=trial)
                costs[name] += cost
                times[name] += spent
    return _compared(costs, {name: median(each) for name, each in times.items()})


def _compared(costs: dict[str, float], times: dict[str, float]) -> list[Record]:
    name = f"cart-pole, {HORIZON} steps"
    ours, theirs = costs["ours"], costs["IPOPT"]
    found = [Record("mpc", f"{name}: cost of the loop", f"{ours:.6g}", f"{theirs:.6g}", ours / theirs, at_most=1.01)]
    for peer in ("IPOPT, compiled", "IPOPT"):
        ratio = times[peer] / times["ours"]
        found.append(
            Record("mpc", f"{name}: solve, {peer}", _text(times["ours"]), _text(times[peer]), ratio, at_least=3.0)
        )
    return found


class _Riccati:
    """One iteration a sample, from the last plan moved on by one."""

    def __init__(self, controller: PredictiveControl):
        self.last: Plan | None = None
        self._first = jax.jit(lambda x: controller.started(x))
        self._next = jax.jit(lambda x, plan: controller.solve(x, controller.moved_on(plan)))
        jax.block_until_ready(self._next(jnp.zeros(4), self._first(jnp.zeros(4))))

    def solve(self, x: np.ndarray) -> tuple[float, float]:
        x = jnp.asarray(x)
        self.last = self._first(x) if self.last is None else self._next(x, self.last)
        return float(self.last.u[0, 0]), 0.0


class _Loop:
    """A rig, the filter that both controllers see it through, and the cost that both minimise."""

    def __init__(self, rig: Rig, controller: PredictiveControl):
        self._plant, self._problem, self._filter = rig.plant, controller.problem, controller.filter
        self._move = jax.jit(lambda q, p, u: self._plant(q, p, u))
        self._see = jax.jit(lambda cache, q, u: self._filter.update(cache, q, u))
        self._cost = jax.jit(lambda x, u: 0.5 * jnp.sum(self._problem.stage(x, u) ** 2))

    def closed(self, stepper, q, p, samples: int, seed: int) -> tuple[float, list[float]]:
        """The cost of a loop, and the seconds of each solve but the first, which has no plan to begin from."""
        noise = NOISE * np.random.default_rng(seed).standard_normal((samples, len(q)))
        u, total, times = jnp.zeros(1), 0.0, []
        cache = self._filter.start(jnp.asarray(q + noise[0]), u)
        for off in noise:
            cache, known = self._see(cache, jnp.asarray(q + off), u)
            x = np.concatenate([known.q, known.p])
            begun = time.perf_counter()
            asked, _ = stepper.solve(x)
            times.append(time.perf_counter() - begun)
            u = jnp.array([asked])
            total += float(self._cost(jnp.concatenate([q, p]), u))
            q, p = self._move(q, p, u)
        return total, times[1:]


def _casadi_peer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("phast_casadi_peer", Path(__file__).with_name("casadi_peer.py"))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError:
        raise InputError("the section mpc needs CasADi: pip install 'phast-physics[mpc]'") from None
    return module


# --- all of it -------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[], list[Record]]] = {
    "train": training,
    "rollout": rollouts,
    "seeds": seeds,
    "primitives": operators,
    "startup": startup,
    "export": exported,
    "mpc": predictive,
}


def run_bench(
    sections: Iterable[str] | None = None,
    json_path: str | os.PathLike | None = None,
    plot: str | os.PathLike | None = None,
) -> list[Record]:
    """Measure the given sections (all if left out), print a table, and write JSON and the timing figure where asked."""
    chosen = list(SECTIONS if sections is None else sections)
    if unknown := [name for name in chosen if name not in SECTIONS]:
        raise InputError(f"unknown section '{unknown[0]}': the sections are {', '.join(SECTIONS)}")
    load, console = os.getloadavg()[0], Console()
    console.print(f"{os.cpu_count()} cores, load average at start {load:.2f}")
    records = []
    for name in chosen:
        with console.status(f"measuring {name}"):
            others, found = Others(), SECTIONS[name]()
            share = others.share()
        records += [dataclasses.replace(record, others=share) for record in found]
    console.print(_table(records))
    if json_path is not None:
        Path(json_path).write_text(json.dumps(_as_json(records, load), indent=2, ensure_ascii=False) + "\n")
    if plot is not None:
        plot_operators(plot)
    return records


def _table(records: list[Record]) -> Table:
    table = Table("", "quantity", "ours", "against", "ratio", "target", "")
    verdicts = {True: "[green]pass[/]", False: "[red]fail[/]", None: ""}
    if any(record.contended for record in records):
        table.caption = "contended: other programs used over 5 % of the machine, so the ratio says little"
    for r in records:
        table.add_row(
            r.section,
            r.quantity,
            r.ours,
            r.other,
            f"{r.ratio:.3g}",
            r.target,
            "[yellow]contended[/]" if r.contended else verdicts[r.passed],
        )
    return table


def _as_json(records: list[Record], load: float) -> dict:
    rows = [dataclasses.asdict(r) | {"passed": r.passed} for r in records]
    made = {"versions": versions(), "commit": commit()}
    return {"load_average": load, "cores": os.cpu_count(), "records": rows} | made
