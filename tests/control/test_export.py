"""Exported models, compiled by the system's compiler, against the JAX programs that they were traced from."""

import re
import shutil
import subprocess
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import build, call, compiled, memory
from doubles import wrapped
from jax.flatten_util import ravel_pytree

from phast.components.damping import ConstantDamping, Friction
from phast.components.mass import CartPoleMass, ConstantMass, DoublePendulumMass
from phast.components.parameter import Positive
from phast.components.potential import AbstractPotential, Cosine, MLPPotential
from phast.control.export.c_model import ModelWriter
from phast.control.loop import Feedback
from phast.control.plant import Plant
from phast.control.ports import ModelOutput
from phast.control.shaping import EnergyCasimir
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.data.units import Units
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import (
    DiscreteGradient,
    ExactDamping,
    ImplicitMidpoint,
    RungeKutta,
    Timestep,
    Transition,
    leapfrog,
)
from phast.errors import InputError
from phast.estimation.forecaster import Core, Phast
from phast.estimation.inputs import Held
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.observers import FiniteDifference, MassCanonicalizer
from phast.fitting.checkpoint import save
from phast.fitting.free_fields import unknown_system

pytestmark = pytest.mark.usefixtures("float64")
DT, ANGLE, TWO = 0.02, Manifold.parse("theta:angle"), Manifold.parse("a:angle", "b:angle")
RAIL = Manifold.parse("x", "theta:angle")
FRICTION = Friction(viscous=0.2, coulomb=0.1)


def aware(system, transition, manifold, **options):
    return ModelAware(Core(system, transition), manifold, DT, **options)


def rubbing():
    """A known pendulum with friction, its torque given."""
    system = PortHamiltonian(Cosine(Positive.starting_at(9.81)), ConstantMass(1.0), FRICTION)
    return aware(system, RungeKutta(Timestep(DT, 2)), ANGLE, noise=0.01)


def passive():
    system = PortHamiltonian(Cosine(Positive.starting_at(9.81)), ConstantMass(1.0), FRICTION)
    return aware(system, Transition(DiscreteGradient(), ExactDamping(), Timestep(DT, 2)), ANGLE)


def linked():
    system = PortHamiltonian(Cosine((9.0, 3.0)), DoublePendulumMass(), ConstantDamping((0.1, 0.2)))
    return aware(system, Transition(ImplicitMidpoint(), ExactDamping(), Timestep(DT)), TWO)


def splines():
    """Nothing known: V and D on grids."""
    rng = np.random.default_rng(0)
    system = unknown_system(Trajectories(rng.uniform(-3.0, 3.0, (4, 50, 1)), DT, Manifold.parse("x")))
    trained, rest = eqx.partition(system, eqx.is_inexact_array)
    flat, unflatten = ravel_pytree(trained)
    system = eqx.combine(unflatten(flat + 0.3 * rng.normal(size=flat.shape)), rest)
    return aware(system, RungeKutta(Timestep(DT)), Manifold.parse("x"))


def driven():
    """A cart with a pole, of which only the cart is pushed."""
    system = PortHamiltonian(Cosine((0.0, 9.81)), CartPoleMass(), ConstantDamping((0.1, 0.1)), ((1.0,), (0.0,)))
    return aware(system, RungeKutta(Timestep(DT)), RAIL, window=6, noise=(0.01, 0.02))


def network():
    potential = MLPPotential.create(Manifold.parse("x"), width=40, key=jax.random.key(0))
    system = PortHamiltonian(potential, ConstantMass(1.0), ConstantDamping(0.1))
    return aware(system, Transition(leapfrog(), ExactDamping(), Timestep(DT)), Manifold.parse("x"))


MODELS = {f.__name__: f for f in (rubbing, passive, linked, splines, driven, network)}


def writer_of(model, *, single=False, inputs=()):
    return ModelWriter(model.core, Units.computed(model.manifold), inputs, model.dt, "rig", single=single)


def written_to(folder, writer):
    found = writer.texts("rig.h")
    (folder / "rig.h").write_text(found.header)
    (folder / "rig.c").write_text(found.source)
    return folder / "rig.c"


def names_of(model):
    return () if model.core.system.port is None else ("force",)


def relative(found, wanted):
    """By how much states (one for each row) differ, in terms of their size."""
    return np.max(np.abs(found - wanted), axis=1) / np.linalg.norm(wanted, axis=1)


# --- the time step ---------------------------------------------------------------------------------------------------


def steps(library, model, q, p, u, stretch):
    """Every state one step later, by the exported function."""
    q_next, p_next = np.empty_like(q), np.empty_like(p)
    for i in range(len(q)):
        held = (u[i],) if names_of(model) else ()
        call(library.rig_step, q[i], p[i], *held, stretch[i], q_next[i], p_next[i])
    return np.concatenate([q_next, p_next], axis=1)


def states(model, count, dtype=np.float64):
    rng, n = np.random.default_rng(0), model.manifold.size
    q, p, u = rng.uniform(-3, 3, (count, n)), rng.normal(0, 2, (count, n)), rng.normal(0, 3, (count, 1))
    return [x.astype(dtype) for x in (q, p, u, rng.uniform(0.5, 1.5, count))]


def advanced(core, model, q, p, u, stretch):
    def one(q, p, u, stretch):
        return jnp.concatenate(core(q, p, Held(u if names_of(model) else None, stretch)))

    return np.asarray(jax.jit(jax.vmap(one))(q, p, u, stretch))


@pytest.mark.parametrize("name", MODELS)
def test_the_step_is_that_of_jax(name, tmp_path):
    model = MODELS[name]()
    writer = writer_of(model, inputs=names_of(model))
    writer.add_step()
    library, given = compiled(written_to(tmp_path, writer)), states(model, 300)
    error = relative(steps(library, model, *given), advanced(model.core, model, *given))
    assert np.max(error) < (1e-11 if name == "passive" else 1e-12)  # whose solve stops at 1e-12


def test_the_step_may_overwrite_its_arguments(tmp_path):
    model = linked()
    writer = writer_of(model)
    writer.add_step()
    library, (q, p, _, _) = compiled(written_to(tmp_path, writer)), states(model, 1)
    apart, own = steps(library, model, q, p, None, np.ones(1)), np.concatenate([q, p], axis=1)
    call(library.rig_step, own[0, :2], own[0, 2:], np.float64(1.0), own[0, :2], own[0, 2:])
    np.testing.assert_array_equal(own, apart)


def test_single_precision_is_another_trace(tmp_path):
    """Where tolerances and the smallest number depend on the precision: at rest, and not only there."""
    model = passive()
    with warnings.catch_warnings(action="error"):
        writer = writer_of(model, single=True)
        writer.add_step()
    q, p, u, stretch = states(model, 100, np.float32)
    q[0], p[0] = 0.0, 0.0
    found = steps(compiled(written_to(tmp_path, writer), "-Wdouble-promotion"), model, q, p, u, stretch)
    assert found.dtype == np.float32 and np.isfinite(found).all()
    wanted = advanced(model.core, model, *(x.astype(np.float64) for x in (q, p, u, stretch)))
    assert np.max(relative(found[1:], wanted[1:])) < 1e-4


# --- the filter ------------------------------------------------------------------------------------------------------


def recorded(model, length=60, seed=1):
    """Noisy positions along a motion, with a jump that no model explains; inputs, and uneven steps."""
    rng, n = np.random.default_rng(seed), model.manifold.size
    u, stretch = rng.normal(0.0, 2.0, (length, 1)), rng.uniform(0.7, 1.4, length)
    held = Held(jnp.asarray(u) if names_of(model) else None, jnp.asarray(stretch))
    q, _ = model.core.rollout(jnp.full(n, 0.7), jnp.full(n, 0.2), length, held)
    y = np.asarray(q) + 0.01 * rng.normal(size=(length, n))
    y[length // 2 : length // 2 + 3] += 1.0
    return y, held


def held_before(held, t):
    """What acted over the step before sample t, as the exported function is told."""
    return (() if held.u is None else (np.asarray(held.u[t - 1]),)) + (np.float64(held.stretch[t - 1]),)


@pytest.fixture(scope="module", params=[rubbing, driven])
def filtering(request, tmp_path_factory):
    """A model, the directory of its exported filter, and that compiled."""
    with jax.enable_x64(True):
        model, folder = request.param(), tmp_path_factory.mktemp("filter")
        wrapped(model, names_of(model)).export(folder / "rig.c")
        return model, folder, compiled(folder / "rig.c")


def along(library, header, y, held):
    """(states, covariances, innovations) by the exported filter."""
    filter_, state, rows = memory(header, "filter"), memory(header, "state"), []
    for t in range(len(y)):
        call(library.rig_filter_update, filter_, y[t], *held_before(held, t), state)
        rows.append(np.concatenate([np.array(getattr(state, name)) for name, _ in state._fields_]))
    n = y.shape[1]
    return np.split(np.array(rows), [2 * n, 2 * n + 4 * n * n], axis=1)


def test_the_filter_is_that_of_jax(filtering):
    """From a zeroed struct, through windows that fill, that are full, and that the model cannot explain."""
    model, folder, library = filtering
    y, held = recorded(model)
    wanted = eqx.filter_jit(model.state_filter().along)(jnp.asarray(y), held)
    known, covariance, innovation = along(library, (folder / "rig.h").read_text(), y, held)
    assert np.max(relative(known, np.concatenate([wanted.q, wanted.p], axis=1))) < 1e-11
    of_jax = np.asarray(wanted.covariance).reshape(len(y), -1)
    assert np.max(np.abs(covariance - of_jax) / np.abs(of_jax).max(axis=1, keepdims=True)) < 1e-9
    np.testing.assert_allclose(innovation, wanted.innovation, atol=1e-11)


def test_it_needs_nothing_but_the_mathematical_library(filtering):
    _, folder, _ = filtering
    shown = subprocess.run(["nm", "-u", folder / "rig.so"], capture_output=True, text=True, check=True).stdout
    needed = {name.split("@")[0] for name in re.findall(r"U (\S+)", shown)}
    of_libm, of_the_compiler = {"sin", "cos", "sincos", "sqrt", "rint"}, {"memcpy", "memset", "__stack_chk_fail"}
    assert needed <= of_libm | of_the_compiler


def test_the_header_is_one_of_cpp_too(filtering):
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler: install one as `g++`")
    _, folder, _ = filtering
    subprocess.run(["g++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", folder / "rig.h"], check=True)


def test_the_header_says_what_is_what(filtering):
    model, folder, _ = filtering
    header = (folder / "rig.h").read_text()
    for name in model.manifold.names:
        assert re.search(rf"q\[\d\]  {name}, ", header)
    assert "an angle in radians" in header and f"#define RIG_DT {DT}" in header
    assert ("u[0]  force" in header) == bool(names_of(model))


def test_a_trained_model_has_a_kalman_filter(tmp_path):
    core = rubbing().core
    model = Phast(core, FiniteDifference(ANGLE), MassCanonicalizer(), ANGLE, DT)
    wrapped(model).export(tmp_path / "rig.c")
    y, held = recorded(rubbing(), 20)
    known, _, _ = along(compiled(tmp_path / "rig.c"), (tmp_path / "rig.h").read_text(), y, held)
    wanted = eqx.filter_jit(model.filter)(jnp.asarray(y), held)
    assert np.max(relative(known, np.concatenate([wanted.q, wanted.p], axis=1))) < 1e-9


# --- the controller --------------------------------------------------------------------------------------------------


def test_the_controller_is_that_of_jax(tmp_path):
    """Over turns of the angle, and where its input is cut to the limit, which it says."""
    model = rubbing()
    law = EnergyCasimir.create([0.5], stiffness=3.0, injection=2.0, holding=0.1, correction=0.7)
    wrapped(model, ("force",)).export(tmp_path / "rig.c", controller=law, limits=[2.0])
    library, header = compiled(tmp_path / "rig.c"), (tmp_path / "rig.h").read_text()
    plant = Plant(model.core.system, ANGLE, DT, (2.0,))
    feedback = Feedback(law, ModelOutput(model.core.system), plant)
    controller, state, u = memory(header, "controller"), memory(header, "state"), np.zeros(1)
    rng, cache, cut = np.random.default_rng(0), None, []
    for q, p in zip(np.cumsum(rng.normal(0, 0.5, (40, 1)), axis=0), rng.normal(0, 1, (40, 1)), strict=True):
        measured = q + 0.01
        state.q[:], state.p[:] = q.tolist(), p.tolist()
        call(library.rig_control, controller, measured, state, u)
        step = feedback.start if cache is None else lambda *x, cache=cache: feedback.update(cache, x[0], None, x[1])
        cache, decided = step(jnp.asarray(measured), (jnp.asarray(q), jnp.asarray(p)))
        np.testing.assert_allclose(u, plant.saturated(decided.u), rtol=1e-12)
        assert controller.limited == (abs(float(decided.u[0])) > 2.0)
        cut.append(controller.limited)
    assert 0 < sum(cut) < 40


# --- files -----------------------------------------------------------------------------------------------------------


class Sorted(AbstractPotential):
    """A component of a user that has no counterpart in C."""

    def __call__(self, q):
        return jnp.sum(jnp.sort(q) ** 2)


def test_what_cannot_be_exported_is_named_and_nothing_is_written(tmp_path):
    system = PortHamiltonian(Sorted(), ConstantMass(1.0), FRICTION)
    model = aware(system, RungeKutta(Timestep(DT)), TWO)
    with pytest.raises(InputError, match=r"^'sort' has no counterpart .* \(Sorted.__call__, test_export.py:\d+\)"):
        wrapped(model).export(tmp_path / "rig.c")
    with pytest.raises(InputError, match="nothing to control it with"):
        wrapped(model).export(tmp_path / "rig.c", controller=EnergyCasimir.create([0.0], stiffness=1.0, injection=1.0))
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_what_python_writes(run, tmp_path):
    """The same model gives the same bytes."""
    save(rubbing(), tmp_path / "model.phast")
    (tmp_path / "out").mkdir()
    code, said, error = run("export", tmp_path / "model.phast", "-o", tmp_path / "out" / "swing.c", "--name", "rig")
    assert code == 0 and "swing.h" in said, error
    wrapped(rubbing()).export(tmp_path / "swing.c", name="rig")
    for file in ("swing.c", "swing.h"):
        assert (tmp_path / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"swing.c", "swing.h"}


def test_the_program_of_the_documentation_compiles_and_runs(tmp_path):
    """The page that shows how to call the functions: a motion goes in, its state and a forecast come out."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "export.md").read_text()
    model = rubbing()
    wrapped(model).export(tmp_path / "swing.c")
    (tmp_path / "main.c").write_text(re.search(r"```c\n(.*?)```", page, re.S)[1])
    build(tmp_path / "swing", tmp_path / "main.c", tmp_path / "swing.c")
    q, p = model.core.rollout(jnp.array([0.7]), jnp.array([0.2]), 100)
    told = "\n".join(map(repr, np.asarray(q)[:50, 0].tolist()))
    said = subprocess.run([tmp_path / "swing"], input=told, capture_output=True, text=True, check=True).stdout
    *filtered, forecast = [list(map(float, re.findall(r"= (-?[\d.]+)", line))) for line in said.splitlines()]
    np.testing.assert_allclose(filtered[-1], [q[49, 0], p[49, 0]], atol=1e-4)
    np.testing.assert_allclose(forecast, q[99], atol=1e-3)
