"""Losses against loops written out in NumPy; fitting by law: same seed same bits, killed runs lose nothing."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from phast.components.damping import ConstantDamping, WindyDamping
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import ExplicitDamping, Timestep, Transition, leapfrog
from phast.dynamics.systems import system
from phast.errors import FitError, InputError, Reason
from phast.estimation.forecaster import Core, Phast
from phast.estimation.observers import FiniteDifference, MassCanonicalizer
from phast.fitting.losses import Batch, FullStateLoss, NextStepLoss, PhysicsLoss
from phast.fitting.training import History, Settings
from phast.fitting.training import train as descend
from phast.paper.models import full_state, phast_known, phast_partial, phast_unknown

DT = 0.05
PAIR = Manifold.parse("x", "theta:angle")
ANGLE = Manifold.parse("theta:angle")


# --- the losses, written out -----------------------------------------------------------------------------------------


class Plain:
    """Cart and angle with constant masses, one step at a time in NumPy: what the losses are checked against."""

    masses = np.array([2.0, 1.5])
    amplitudes = np.array([1.0, 4.0])
    base, gain = 0.03, 0.05
    dt = 0.2

    def damping(self, q):
        return self.base + self.gain * abs(np.sin(q[1]))

    def energy(self, q, p):
        return np.sum(self.amplitudes * (1 - np.cos(q))) + 0.5 * np.sum(p**2 / self.masses)

    def step(self, q, p, u=0.0):
        p = p - 0.5 * self.dt * self.damping(q) * p / self.masses
        p = p + 0.5 * self.dt * (u - self.amplitudes * np.sin(q))
        q = q + self.dt * p / self.masses
        p = p + 0.5 * self.dt * (u - self.amplitudes * np.sin(q))
        return q, p - 0.5 * self.dt * self.damping(q) * p / self.masses

    def error(self, a, b):
        d = a - b
        d[1] = (d[1] + np.pi) % (2 * np.pi) - np.pi
        return np.mean(d**2)

    def momenta(self, q):
        p = np.zeros_like(q)
        for t in range(1, len(q)):
            d = q[t] - q[t - 1]
            d[1] = (d[1] + np.pi) % (2 * np.pi) - np.pi
            p[t] = self.masses * d / self.dt
        return p

    def terms(self, q, p, u, burn_in=0, whole=False):
        """(L_data, L_pass, L_energy) of Eqs. 14 to 16 from the states (q, p)."""
        data, rises, budget = [], [], []
        for t in range(len(q) - 1):
            q1, p1 = self.step(q[t], p[t], u[t])
            data.append(self.error(q1, q[t + 1]) + (np.mean((p1 - p[t + 1]) ** 2) if whole else 0.0))
            rise = self.energy(q1, p1) - self.energy(q[t], p[t])
            v = p[t] / self.masses
            rises.append(max(0.0, rise))
            budget.append(abs(rise / self.dt + self.damping(q[t]) * v @ v))
        return np.mean(data[burn_in:]), np.mean(rises), np.mean(budget)

    def rollout(self, q, p, u, start, horizon, whole=False):
        a, b, errors = q[start], p[start], []
        for h in range(1, horizon + 1):
            a, b = self.step(a, b, u[start + h - 1])
            errors.append(self.error(a.copy(), q[start + h]) + (np.mean((b - p[start + h]) ** 2) if whole else 0.0))
        return np.mean(errors)


PLAIN = Plain()


def plain_model():
    physics = PortHamiltonian(
        Cosine((1.0, 4.0)),
        ConstantMass(Positive.starting_at((2.0, 1.5))),
        WindyDamping(0.03, Positive.starting_at(0.05), (1, 1)),
    )
    core = Core(physics, Transition(leapfrog(), ExplicitDamping(), Timestep(PLAIN.dt)))
    return Phast(core, FiniteDifference(PAIR), MassCanonicalizer(), PAIR, PLAIN.dt)


@pytest.fixture
def sample(float64):
    """Rough motion with turns over ±π, momenta that are not quite consistent with it, and inputs."""
    rng = np.random.default_rng(0)
    q = np.array([0.0, 3.0]) + np.cumsum(rng.normal(0.02, 0.08, (9, 2)), axis=0)
    q[5:, 1] -= 2 * np.pi
    return q, rng.normal(0.0, 2.0, (9, 2)), rng.normal(0.0, 1.0, (9, 2))


KEY = 5


def value(loss, model, q, p=None, u=None, key=KEY):
    return float(
        eqx.filter_jit(loss)(
            model, Batch(*(None if x is None else jnp.asarray(x) for x in (q, p, u))), jax.random.key(key)
        )
    )


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("burn_in", [0, 3])
def test_q_only_terms(sample, forced, burn_in):
    q, _, u = sample
    data, passivity, energy = PLAIN.terms(q, PLAIN.momenta(q), u if forced else 0 * u, burn_in)
    model, given = plain_model(), u if forced else None
    assert value(NextStepLoss(burn_in), model, q, u=given) == pytest.approx(data, rel=1e-9)
    assert value(PhysicsLoss(burn_in=burn_in), model, q, u=given) == pytest.approx(data, rel=1e-9)
    weighted = PhysicsLoss(data=0.5, passivity=2.0, energy=0.7, burn_in=burn_in)
    expected = 0.5 * data + 2.0 * passivity + 0.7 * energy
    assert passivity > 0 and value(weighted, model, q, u=given) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("forced", [False, True])
def test_full_state_terms(sample, forced):
    q, p, u = sample
    data, passivity, energy = PLAIN.terms(q, p, u if forced else 0 * u, whole=True)
    model, given = plain_model().core, u if forced else None
    assert value(FullStateLoss(PAIR, PLAIN.dt), model, q, p, given) == pytest.approx(data, rel=1e-9)
    weighted = FullStateLoss(PAIR, PLAIN.dt, data=0.5, passivity=2.0, energy=0.7)
    assert value(weighted, model, q, p, given) == pytest.approx(0.5 * data + 2 * passivity + 0.7 * energy, rel=1e-9)


@pytest.mark.parametrize("whole", [False, True], ids=["q-only", "full state"])
def test_rollout_terms(sample, whole):
    """Over many keys the start runs through {burn-in, …, T - 1 - H} and nothing else."""
    q, p, u = sample
    horizon, burn_in = 4, 0 if whole else 2
    if whole:
        loss, model = FullStateLoss(PAIR, PLAIN.dt, data=0.0, rollout=3.0, horizon=horizon), plain_model().core
    else:
        p = PLAIN.momenta(q)
        loss, model = PhysicsLoss(data=0.0, rollout=3.0, horizon=horizon, burn_in=burn_in), plain_model()
    starts = range(burn_in, len(q) - horizon)
    expected = sorted(3.0 * PLAIN.rollout(q, p, u, start, horizon, whole) for start in starts)
    batch = Batch(jnp.asarray(q), jnp.asarray(p) if whole else None, jnp.asarray(u))
    got = jax.jit(jax.vmap(lambda k: loss(model, batch, k)))(jax.random.split(jax.random.key(0), 200))
    found = np.unique(np.round(got, 12))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_selection_is_the_next_step_error(sample):
    q, p, u = sample
    batch = Batch(jnp.asarray(q), jnp.asarray(p), jnp.asarray(u))
    data, *_ = PLAIN.terms(q, PLAIN.momenta(q), u, 2)
    weighted = PhysicsLoss(data=0.1, passivity=2.0, energy=0.7, rollout=1.0, horizon=3, burn_in=2)
    assert float(weighted.selection(plain_model(), batch)) == pytest.approx(data, rel=1e-9)
    data, *_ = PLAIN.terms(q, p, u, whole=True)
    assert float(FullStateLoss(PAIR, PLAIN.dt, energy=1.0).selection(plain_model().core, batch)) == pytest.approx(
        data, rel=1e-9
    )


def test_a_rollout_that_does_not_fit_is_refused(sample):
    q, p, _ = sample
    with pytest.raises(InputError, match="needs longer trajectories"):
        value(PhysicsLoss(rollout=1.0, horizon=6, burn_in=3), plain_model(), q)
    with pytest.raises(InputError, match="needs longer trajectories"):
        value(FullStateLoss(PAIR, PLAIN.dt, rollout=1.0, horizon=9), plain_model().core, q, p)


# --- gradients -------------------------------------------------------------------------------------------------------

REGIMES = {"known": phast_known, "partial": phast_partial, "unknown": phast_unknown}
EVERYTHING = PhysicsLoss(passivity=0.3, energy=0.1, rollout=0.5, horizon=3, burn_in=1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("build", REGIMES.values(), ids=REGIMES.keys())
def test_gradients_equal_finite_differences(build, perturbed, trainable_count):
    """Of all four terms together, averaged over a batch, in a random direction of all parameters."""
    model = build(system("pendulum-windy"), key=jax.random.key(0))
    rng = np.random.default_rng(0)
    model = perturbed(model, rng.normal(0.0, 0.05, trainable_count(model)))
    batch = Batch(jnp.asarray(pendulums(3, 8)))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unflatten = ravel_pytree(params)
    keys = jax.random.split(jax.random.key(0), 3)

    @jax.jit
    @jax.value_and_grad
    def objective(flat):
        whole = eqx.combine(unflatten(flat), static)
        return jnp.mean(jax.vmap(lambda b, k: EVERYTHING(whole, b, k))(batch, keys))

    gradient = objective(flat)[1]
    assert np.all(np.isfinite(gradient))
    h = 1e-6
    for _ in range(3):
        direction = rng.normal(size=flat.shape)
        direction /= np.linalg.norm(direction)
        slope = (objective(flat + h * direction)[0] - objective(flat - h * direction)[0]) / (2 * h)
        np.testing.assert_allclose(gradient @ direction, slope, rtol=1e-5, atol=1e-8)


# --- fitting ---------------------------------------------------------------------------------------------------------


def pendulums(count, length, seed=0, damping=0.5):
    """Damped pendulums by Runge–Kutta in fine steps: (count, length, 1) positions; momenta from ``states``."""
    return states(count, length, seed, damping)[0]


def states(count, length, seed=0, damping=0.5, inner=10):
    rng = np.random.default_rng(seed)
    x = np.stack([rng.uniform(-2.5, 2.5, count), rng.normal(0.0, 2.0, count)])
    h = DT / inner

    def field(x):
        return np.stack([x[1], -9.81 * np.sin(x[0]) - damping * x[1]])

    rows = [x]
    for _ in range(length - 1):
        for _ in range(inner):
            k1 = field(x)
            k2 = field(x + 0.5 * h * k1)
            k3 = field(x + 0.5 * h * k2)
            k4 = field(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        rows.append(x)
    paths = np.stack(rows, axis=-1)[..., None]
    return paths[0], paths[1]


def tiny(seed=0):
    """Two learned numbers: quick to compile, and enough to be trained."""
    physics = PortHamiltonian(
        Cosine(Positive.starting_at(6.0 + seed)), ConstantMass(1.0), ConstantDamping(Positive.uninformed())
    )
    core = Core(physics, Transition(leapfrog(), ExplicitDamping(), Timestep(DT)))
    return Phast(core, FiniteDifference(ANGLE), MassCanonicalizer(), ANGLE, DT)


def batch_of(count, length=8, seed=0):
    return Batch(jnp.asarray(pendulums(count, length, seed), dtype=float))


LOSS = NextStepLoss(burn_in=1)
SETTINGS = Settings(epochs=6, batch_size=4, learning_rate=0.5, validate_every=2)
TRAIN, VALIDATION = pendulums(10, 8, 0), pendulums(3, 8, 1)


def train(model=None, settings=SETTINGS, seed=0, loss=LOSS, data=TRAIN, **more):
    pair = (Batch(jnp.asarray(x, dtype=float)) for x in (data, VALIDATION))
    return descend(model or tiny(), *pair, loss=loss, settings=settings, key=jax.random.key(seed), **more)


def bits(model):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(eqx.filter(model, eqx.is_array))]


def plain_mean(model, data):
    return float(np.mean([LOSS(model, Batch(jnp.asarray(q, dtype=float)), jax.random.key(0)) for q in data]))


def test_fitting_lowers_the_loss_and_keeps_the_best():
    seen = []
    fitted, history = train(on_epoch=lambda h: seen.append(h.epochs_done))
    assert seen == [1, 2, 3, 4, 5, 6] and history.epochs_done == 6
    assert history.loss[-1] < 0.8 * history.loss[0]
    assert list(history.validation) == [2, 4, 6]
    assert history.best_epoch == min(history.validation, key=history.validation.get)
    assert plain_mean(fitted, VALIDATION) == pytest.approx(min(history.validation.values()), rel=1e-4)
    assert type(fitted) is Phast and fitted.manifold == ANGLE


def test_a_validation_also_comes_last():
    _, history = train(settings=dataclasses.replace(SETTINGS, epochs=3))
    assert list(history.validation) == [2, 3]


def test_the_last_is_not_always_the_best():
    """So large a step that training jumps to and fro: what comes back is the best seen on validation data."""
    wild = dataclasses.replace(SETTINGS, epochs=8, learning_rate=30.0, validate_every=1)
    fitted, history = train(settings=wild, data=TRAIN[:4])
    errors = history.validation
    assert errors[history.best_epoch] == min(errors.values()) < 0.9 * errors[8], "a case that tests nothing"
    assert plain_mean(fitted, VALIDATION) == pytest.approx(min(errors.values()), rel=1e-4)


def test_every_trajectory_counts_the_same():
    """Ten trajectories in batches of four: two of the last batch are fillers, and the mean is the plain one."""
    still = dataclasses.replace(SETTINGS, epochs=1, learning_rate=1e-12)
    _, history = train(settings=still)
    assert history.loss[0] == pytest.approx(plain_mean(tiny(), TRAIN), rel=1e-5)
    _, history = train(settings=dataclasses.replace(still, batch_size=64))
    assert history.loss[0] == pytest.approx(plain_mean(tiny(), TRAIN), rel=1e-5)


def test_fillers_pull_no_gradient():
    """A batch that is larger than the data steps exactly like one of the right size."""
    once = Settings(epochs=1, batch_size=10, learning_rate=0.1)
    exact, _ = train(settings=once)
    filled, _ = train(settings=dataclasses.replace(once, batch_size=16))
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(filled), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_the_seed_decides_every_bit():
    (first, a), (again, b), (other, c) = train(), train(), train(seed=1)
    assert bits(first) == bits(again) and a == b
    assert bits(first) != bits(other) and a.loss != c.loss


def test_every_epoch_draws_anew():
    """Nothing is learned, so only the random starts of the rollout can tell two epochs apart."""
    still = dataclasses.replace(SETTINGS, epochs=3, learning_rate=1e-12)
    _, history = train(settings=still, loss=PhysicsLoss(data=0.0, rollout=1.0, horizon=3))
    assert len(set(np.float32(history.loss))) == 3


def test_divergence_says_what_to_do():
    wild = dataclasses.replace(SETTINGS, epochs=3, learning_rate=1e30)
    with pytest.raises(FitError, match=r"diverged in epoch \d: lower the learning rate \(now 1e\+30\)") as error:
        train(settings=wild)
    assert error.value.reason is Reason.TRAINING_DIVERGED


@pytest.mark.usefixtures("float64")
def test_double_precision():
    fitted, history = train(settings=dataclasses.replace(SETTINGS, epochs=2))
    assert {x.dtype for x in jax.tree.leaves(eqx.filter(fitted, eqx.is_array))} == {jnp.dtype("float64")}
    assert history.loss[0] != float(np.float32(history.loss[0]))


def test_a_core_learns_from_full_states():
    q, p = states(12, 10)
    core = full_state(tiny(), learned_timestep=False)
    batch = Batch(jnp.asarray(q, dtype=float), jnp.asarray(p, dtype=float))
    loss = FullStateLoss(ANGLE, DT, rollout=0.5, horizon=4)
    settings = Settings(epochs=60, batch_size=4, learning_rate=0.1, validate_every=20)
    fitted, history = descend(core, batch, batch, loss=loss, settings=settings, key=jax.random.key(0))
    assert history.loss[-1] < history.loss[0] / 10
    assert float(fitted.system.damping.coefficients()) == pytest.approx(0.5, abs=0.1)
    assert float(fitted.system.potential.amplitudes()) == pytest.approx(9.81, abs=0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"validate_every": -1}, "validate_every must be at least 1"),
        ({"learning_rate": 0.0}, "learning"),
        ({"learning_rate": float("nan")}, "learning"),
    ],
)
def test_settings_are_checked(changes, message):
    with pytest.raises(InputError, match=message):
        Settings(**changes)


@pytest.mark.parametrize("length", [1, 2])
def test_data_without_a_step_to_learn_from_are_refused(length):
    """Not as a divergence: no learning rate helps."""
    with pytest.raises(InputError, match="longer"):
        descend(
            tiny(), *[batch_of(5, length)] * 2, loss=NextStepLoss(burn_in=1), settings=SETTINGS, key=jax.random.key(0)
        )


# --- resuming --------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_only_read(tmp_path):
    file = tmp_path / "run"
    first, a = train(checkpoint=file)
    before = file.read_bytes()
    again, b = train(checkpoint=file, on_epoch=lambda _: pytest.fail("trained again"))
    assert bits(first) == bits(again) and a == b and file.read_bytes() == before


class Stop(Exception):
    pass


def stop_after(epochs):
    def check(history: History):
        if history.epochs_done == epochs:
            raise Stop

    return check


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_an_interrupted_run_goes_on(tmp_path, epochs):
    with pytest.raises(Stop):
        train(checkpoint=tmp_path / "run", on_epoch=stop_after(epochs))
    resumed, history = train(checkpoint=tmp_path / "run")
    straight, expected = train()
    assert bits(resumed) == bits(straight) and history == expected


def other_physics():
    return eqx.tree_at(lambda m: m.core.transition.timestep.duration, tiny(), 2 * DT)


OTHER_RUNS = {
    "settings": {"settings": dataclasses.replace(SETTINGS, learning_rate=0.01)},
    "more epochs": {"settings": dataclasses.replace(SETTINGS, epochs=7)},
    "seed": {"seed": 1},
    "model": {"model": eqx.tree_at(lambda m: m.core.system.mass, tiny(), ConstantMass(Positive.uninformed()))},
    "given numbers in the model": {"model": other_physics()},
    "loss": {"loss": NextStepLoss(burn_in=2)},
    "data": {"data": TRAIN[::-1].copy()},
}


@pytest.mark.parametrize("change", OTHER_RUNS.values(), ids=OTHER_RUNS.keys())
def test_another_run_is_refused(tmp_path, change):
    with pytest.raises(Stop):
        train(checkpoint=tmp_path / "run", on_epoch=stop_after(2))
    before = (tmp_path / "run").read_bytes()
    with pytest.raises(InputError, match="delete it or choose another file") as error:
        train(checkpoint=tmp_path / "run", **change)
    assert "\n" not in str(error.value) and str(tmp_path / "run") in str(error.value)
    assert (tmp_path / "run").read_bytes() == before


def test_another_precision_is_refused(tmp_path):
    with pytest.raises(Stop):
        train(checkpoint=tmp_path / "run", on_epoch=stop_after(2))
    with jax.enable_x64(True), pytest.raises(InputError, match="delete it or choose another file"):
        train(model=tiny(), checkpoint=tmp_path / "run")


def test_a_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "run").write_bytes(b"PK nonsense")
    with pytest.raises(InputError, match="not a readable phast-training file"):
        train(checkpoint=tmp_path / "run")


SCRIPT = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[1])
    import jax, numpy as np
    from test_training import bits, train, SETTINGS
    import dataclasses
    settings = dataclasses.replace(SETTINGS, epochs=40)
    model, history = train(settings=settings, checkpoint=sys.argv[2],
                           on_epoch=lambda h: print(h.epochs_done, flush=True))
    straight, expected = train(settings=settings)
    assert bits(model) == bits(straight) and history == expected, (history, expected)
    print("same")
    """
)


def test_a_killed_process_loses_nothing(tmp_path):
    """SIGKILL at a random moment of a random epoch; the run that follows ends in the same bits as one left alone."""
    chance = random.Random(0)
    command = [sys.executable, "-c", SCRIPT, os.path.dirname(__file__), str(tmp_path / "run")]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as victim:
        epoch = str(chance.randrange(2, 30))
        for line in victim.stdout:
            if line.strip() == epoch:
                time.sleep(chance.uniform(0.0, 0.02))
                victim.send_signal(signal.SIGKILL)
                break
    assert victim.returncode == -signal.SIGKILL
    assert (tmp_path / "run").exists()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert lines[-1] == "same" and lines[-2] == "40"
    assert int(lines[0]) > int(epoch)
