"""Controllers of learned models: gains by law, what is refused, and closed loops on draws of the fit."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from compiling import call, compiled, memory
from doubles import sure, wrapped
from pages import loads_nothing, own_markup, read_page, runs_nothing_foreign

from phast.components.damping import ConstantDamping, Friction
from phast.components.mass import CartPoleMass, ConstantMass, DoublePendulumMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine, Quadratic, Some
from phast.control.design import Design, Goal, design_controller
from phast.control.trials import Task, Trials, looped
from phast.control.wanted import Wanted
from phast.data.manifold import Manifold
from phast.data.recording import Piece, Recording
from phast.data.units import Units
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation.moving_horizon import ModelAware
from phast.report.control_page import write_control_page

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

DT = 0.02
ANGLE, RAIL = Manifold.parse("theta:angle"), Manifold.parse("x", "theta:angle")
TWO = Manifold.parse("a:angle", "b:angle")
EVIL = "<img src=x onerror=document.title='owned'>"


def pendulum(port=((0.5,),)) -> ModelAware:
    """m = 0.8, gravity 6: both learned, as is the damping."""
    learned = Cosine(Positive.starting_at(6.0)), ConstantMass(Positive.starting_at(0.8))
    return sure(PortHamiltonian(*learned, ConstantDamping(Positive.starting_at(0.3)), port), ANGLE, DT)


def cart_pole(centre=0.0) -> ModelAware:
    """Only the cart is pushed; the pole hangs at zero, and stands there where the centre is π."""
    system = PortHamiltonian(
        Some(Cosine(Positive.starting_at(9.81), centre), (1,)),
        CartPoleMass(),
        ConstantDamping((0.1, 0.1)),
        ((1.0,), (0.0,)),
    )
    return sure(system, RAIL, DT)


def arm() -> ModelAware:
    system = PortHamiltonian(
        Cosine((18.0, 9.0)), DoublePendulumMass(), ConstantDamping(Positive.starting_at(0.1)), None
    )
    return sure(system, TWO, DT)


def designed(model: ModelAware, target, **options) -> Design:
    """The design alone, in radians."""
    names = tuple(f"u{j}" for j in range(model.core.system.port_matrix(model.manifold.size).shape[1]))
    n = model.manifold.size
    wanted = Wanted(
        dict(zip(model.manifold.names, np.atleast_1d(target).tolist(), strict=True)), **{"bandwidth": 6.0} | options
    )
    return design_controller(
        model, Goal.of(wanted, Units.computed(model.manifold), names, np.full(n, 0.05), np.ones(n))
    )


# --- gains -----------------------------------------------------------------------------------------------------------


def test_gains_place_the_modes_and_hold_the_target():
    """k = ω² M - V'', d = 2 ζ ω M - D and u* = V', each through the port: G = 0.5 acts twice."""
    found = designed(pendulum(), 1.0)
    g, k, d = 0.5, (36.0 * 0.8 - 6.0 * np.cos(1.0)), 2 * 0.7 * 6.0 * 0.8 - 0.3
    np.testing.assert_allclose(found.law.stiffness, k / g**2, rtol=1e-6)
    np.testing.assert_allclose(found.law.injection, d / g**2, rtol=1e-6)
    np.testing.assert_allclose(found.law.holding, 6.0 * np.sin(1.0) / g, rtol=1e-6)
    fast = designed(dataclasses.replace(pendulum(), dt=1e-4), 1.0)
    swing = min(fast.modes, key=lambda mode: mode.ratio)
    assert swing.frequency == pytest.approx(6.0, rel=1e-3) and swing.ratio == pytest.approx(0.7, rel=1e-3)


def test_each_coordinate_has_gains_of_its_own_mass():
    """Uncoupled masses: every pair of modes is as wanted, of each input as it is told."""
    well = Quadratic(Positive.starting_at(1.0))
    system = PortHamiltonian(well, ConstantMass((2.0, 0.1)), ConstantDamping(0.0), None)
    model = dataclasses.replace(sure(system, Manifold.parse("x", "y"), DT), dt=1e-4)
    found = designed(model, (0.5, -0.5), bandwidth=(5.0, 9.0), damping_ratio=(0.5, 0.9))
    pairs = sorted((mode.frequency, mode.ratio) for mode in found.modes if mode.ratio < 0.99)
    np.testing.assert_allclose(pairs, [(5.0, 0.5), (9.0, 0.9)], rtol=2e-3)


def test_a_coupled_arm_is_stable_and_about_as_fast_as_wanted():
    found = designed(arm(), (1.0, 2.0))
    assert all(3.0 < mode.frequency < 15.0 and mode.ratio > 0.4 for mode in found.modes)
    np.testing.assert_allclose(found.law.holding, [18.0 * np.sin(1.0), 9.0 * np.sin(2.0)], rtol=1e-6)


def test_the_cart_is_placed_with_the_pole_hanging():
    """Partial actuation that meets the matching condition: every mode of the sampled loop dies out."""
    found = designed(cart_pole(), (0.7, 0.0), bandwidth=2.0)
    assert all(mode.ratio > 0.0 for mode in found.modes)
    np.testing.assert_allclose(found.law.holding, 0.0, atol=1e-12)


def test_static_friction_is_no_damping_of_a_motion():
    """Coulomb friction seems endless at rest; counted there, nothing would be injected."""
    system = PortHamiltonian(Cosine(Positive.starting_at(6.0)), ConstantMass(0.8), Friction(0.1, 0.5), ((1.0,),))
    rubbing = designed(sure(system, ANGLE, DT), 1.0)
    at_speed = 0.1 + 0.5 / np.hypot(6.0, 0.05)
    np.testing.assert_allclose(rubbing.law.injection, 2 * 0.7 * 6.0 * 0.8 - at_speed, rtol=1e-6)


def test_damping_beyond_what_is_asked_for_is_kept_and_said():
    system = PortHamiltonian(Cosine(Positive.starting_at(6.0)), ConstantMass(0.8), ConstantDamping(20.0), ((1.0,),))
    found = designed(sure(system, ANGLE, DT), 1.0)
    assert float(found.law.injection[0]) == 0.0 and "no damping is injected" in found.remarks[0]


REFUSED = {
    "beyond the limits": (pendulum, 1.0, {"limits": 10.0}, "holding it takes u0 = 10.1, more than its limit 10"),
    "two limits for one input": (pendulum, 1.0, {"limits": (1.0, 2.0)}, "limits 1, 2 has 2 numbers, but .* 1 input"),
    "a limit of zero": (pendulum, 1.0, {"limits": 0.0}, "limits 0: give positive numbers"),
    "no number": (pendulum, float("nan"), {}, "target nan: give finite numbers"),
    "an endless bandwidth": (pendulum, 1.0, {"bandwidth": float("inf")}, "bandwidth inf: give positive numbers"),
    "slower than alone": (
        pendulum,
        0.1,
        {"bandwidth": 1.0},
        "below that of the system alone at the target, 2.73 rad/s",
    ),
    "too fast for the samples": (
        pendulum,
        1.0,
        {"bandwidth": 90.0},
        r"unstable gains: sampled .* \(45 rad/s would do\)",
    ),
    "a pole aslant": (
        cart_pole,
        (0.0, 0.8),
        {},
        r"no input acts against the force .* along theta .*matching condition",
    ),
    "a pole upright": (cart_pole, (0.0, np.pi), {}, "whatever they are: no input acts along theta"),
    "no trials": (pendulum, 1.0, {"draws": 0}, "draws 0: give at least one"),
    "the same input twice": (lambda: pendulum(((0.5, 1.0),)), 1.0, {}, "do not act independently"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_reason(case):
    model, target, options, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as refused:
        designed(model(), target, **options)
    assert "\n" not in str(refused.value)


def test_the_bandwidth_that_would_do_does():
    designed(pendulum(), 1.0, bandwidth=45.0)


# --- trials ----------------------------------------------------------------------------------------------------------


RIG = {
    "target": {"theta": 60.0},
    "bandwidth": 6.0,
    "within": 60,
    "draws": 8,
    "start": [{"theta": 0.0}, {"theta": 375.0}],
}


@pytest.fixture(scope="module")
def rig():
    """A pendulum from a file in degrees, driven by a torque."""
    with jax.enable_x64(True):
        return dataclasses.replace(wrapped(pendulum(), ("torque",)), units=Units(ANGLE, ("deg",)))


@pytest.fixture(scope="module")
def held(rig):
    with jax.enable_x64(True):
        return rig.control(**RIG, limits=12.0)


def test_a_target_that_is_no_equilibrium_is_held_for_every_draw(held):
    """Some samples are at the limit, which is said; none is beyond."""
    outcome = held.outcome
    assert outcome.settled == 1.0 and outcome.settling_worst < 1.0
    assert 0.0 < outcome.saturated < 0.5 and outcome.largest_input == [12.0]
    assert np.abs(held.q[:, -1] - 60.0).max() < 1.0 and len(held.to_frame()) == 8
    np.testing.assert_allclose(held.q[:2, 0, 0], [0.0, 15.0], atol=1e-9)  # the short way


def test_without_the_learned_potential_it_is_missed(rig):
    """The spring alone stops where G k (q* - q) = V'(q) / G: by a third of the way."""
    found = rig.control(**RIG, holding=0.0, limits=100.0)
    k = float(found.design.law.stiffness[0]) * 0.25
    rest = 1.0
    for _ in range(50):
        rest = np.pi / 3 - 6.0 * np.sin(rest) / k
    assert np.pi / 3 - rest > 0.15 and found.outcome.settled == 0.0
    np.testing.assert_allclose(np.median(found.trials.remaining), rest - np.pi / 3, rtol=0.1)


def test_gains_are_those_of_the_file(held):
    (gain,) = held.gains
    np.testing.assert_allclose(gain.stiffness, 0.5 * float(held.design.law.stiffness[0]) * np.pi / 180, rtol=1e-12)
    assert (gain.unit, gain.limit) == ("u/deg", 12.0)
    for text in (
        "controller to theta 60 deg",
        "u·s/deg",
        "settled: 100.0% within ± theta 2.865 deg by 1.2 s",
        "saturated: ",
    ):
        assert text in repr(held)
    assert "<pre>controller" in held._repr_html_()
    told = json.loads(json.dumps(held.summary()))
    assert (
        told["target"]["theta"] == pytest.approx(60.0)
        and told["settled"] == 1.0
        and told["gains"][0]["input"] == "torque"
    )


def trials(q, u=None, start=None) -> Trials:
    """Hand-made positions about a target at zero."""
    q = np.asarray(q, dtype=float)[..., None]
    found = Design(None, np.zeros(1), np.ones((1, 1)), None, (), ())
    return Trials(found, Task(q[:1, 0], np.array([0.1]), 4, len(q), 0), 0.5, q, np.ones_like(q), np.zeros(len(q)))


def test_what_is_said_of_trials():
    found = trials(
        [[1.0, 0.5, -0.3, 0.05, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.2], [-1.0, 0.3, np.nan, np.nan, np.nan, np.nan]]
    )
    np.testing.assert_allclose(found.settling, [1.5, np.inf, np.inf])
    assert found.settled.tolist() == [True, False, False]
    np.testing.assert_allclose(found.overshoot[:, 0], [0.3, 0.2, np.inf])
    np.testing.assert_allclose(found.effort, 3.0)
    assert trials([[0.05, 0.0, 0.0]]).settling.tolist() == [0.0]


ASKED_WRONGLY = {
    "no such coordinate": ({"target": {"phi": 1.0}}, r"target: no coordinate 'phi': give theta \[deg\] as 'theta=0'"),
    "nothing": ({"target": {}}, "target: nothing for 'theta'"),
    "a wrong start": ({"start": {"phi": 1.0}}, "start: no coordinate 'phi'"),
    "nowhere to start": ({"start": None}, r"give a start \(--from\), or the data"),
    "a tolerance for two": ({"tolerance": (1.0, 2.0)}, "tolerance 1, 2 has 2 numbers"),
    "no time": ({"within": "soon"}, "'soon' is no duration"),
}


@pytest.mark.parametrize("case", ASKED_WRONGLY)
def test_what_is_asked_wrongly_is_refused(rig, case):
    options, message = ASKED_WRONGLY[case]
    with pytest.raises(InputError, match=message):
        rig.control(**RIG | options)


def test_models_that_cannot_be_controlled_are_refused(rig):
    with pytest.raises(InputError, match="fitted without inputs"):
        dataclasses.replace(rig, inputs=()).control(**RIG)
    with pytest.raises(InputError, match="2 are named"):
        dataclasses.replace(rig, inputs=("a", "b")).control(**RIG)
    with pytest.raises(InputError, match="no evidence of its fit"):
        dataclasses.replace(rig, model=dataclasses.replace(rig.model, evidence=None)).control(**RIG)


def test_a_line_needs_to_be_told_how_near_is_settled():
    system = PortHamiltonian(Quadratic(Positive.starting_at(1.0)), ConstantMass(1.0), ConstantDamping(0.1), None)
    slider = wrapped(sure(system, Manifold.parse("x"), DT), ("force",))
    with pytest.raises(InputError, match="every start has 'x' at its target: say how near is settled with a tolerance"):
        slider.control({"x": 1.0}, bandwidth=5.0, start={"x": 1.0})


def test_trials_start_where_the_recording_was_and_far_targets_are_said(rig):
    """The same program as before: only numbers differ."""
    q = np.deg2rad(np.linspace(-20.0, 10.0, 50))[:, None]
    piece = Piece("0", DT * np.arange(50), q, np.zeros((50, 1)))
    seen = Recording((piece,), ANGLE, DT, ("torque",), counted=Units(ANGLE, ("deg",)))
    found = dataclasses.replace(rig, recording=seen).control(**RIG | {"start": None}, limits=20.0)
    np.testing.assert_allclose([found.q[0, 0, 0], found.q[-1, 0, 0]], [-20.0, 10.0], atol=1e-9)
    assert any("stays 50 deg of theta away from the target" in remark for remark in found.remarks)


# --- the page and the file in C --------------------------------------------------------------------------------------


def test_the_page_shows_gains_and_loops_and_runs_nothing_foreign(held, tmp_path):
    parsed = read_page(held.report(tmp_path / "page.html"))
    text = own_markup(tmp_path / "page.html")
    assert loads_nothing(parsed) and runs_nothing_foreign(parsed)
    assert "<dd>100.0% within ± theta 2.865 deg by 1.2 s</dd>" in text and "u·s/deg" in text
    (loop,) = json.loads(parsed.scripts[0])
    assert np.shape(loop["positions"]) == (2, 1, 3, 90) and loop["limits"] == [12.0] and loop["target"] == [60.0]
    np.testing.assert_allclose(loop["positions"][0][0][1][-1], 60.0, atol=1.0)
    evil = Units(Manifold((EVIL,), (True,)), ("deg",))
    hostile = read_page(write_control_page(held.trials, evil, (EVIL,), tmp_path / "evil.html", (EVIL,)))
    assert runs_nothing_foreign(hostile) and EVIL not in (tmp_path / "evil.html").read_text(encoding="utf-8")


def test_the_figure_has_a_panel_for_each_coordinate_and_input(held):
    assert [ax.get_ylabel() for ax in held.plot().axes] == ["theta [deg]", "torque [u]"]


def measured_along(model: ModelAware, held) -> tuple[np.ndarray, np.ndarray]:
    """What the first of the trials measured and applied, by the program that ran them."""
    task, trace = held.trials.task, looped(model, held.design, held.trials.task)
    assert task.draws == len(trace.q)
    np.testing.assert_allclose(trace.q, held.trials.q, rtol=1e-10, atol=1e-12)  # compiled again, it rounds otherwise
    return np.asarray(trace.measured[0]), np.asarray(trace.applied[0])


def test_the_exported_controller_closes_the_same_loop(rig, held, tmp_path):
    """Filter and controller in C, on what the loop in JAX measured, ask for the inputs that were applied there."""
    held.export(tmp_path / "rig.c")
    with pytest.raises(InputError, match=r"the ending must be \.c"):
        held.export(tmp_path / "rig.onnx")
    library, header = compiled(tmp_path / "rig.c"), (tmp_path / "rig.h").read_text()
    measured, applied = measured_along(rig.model, held)
    names = ("filter", "state", "controller")
    filter_, state, controller = (memory(header, name) for name in names)
    u, asked, limited = np.zeros(1), [], []
    for y in measured:
        call(library.rig_filter_update, filter_, y, u, np.float64(1.0), state)
        call(library.rig_control, controller, y, state, u)
        asked.append(u.copy())
        limited.append(controller.limited)
    np.testing.assert_allclose(asked, applied, rtol=1e-6, atol=1e-9)
    assert 0 < sum(limited) < len(limited)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_page_file_and_numbers(run, rig, tmp_path):
    rig.save(tmp_path / "model.phast")
    words = ("control", tmp_path / "model.phast", "--target", "theta=60", "--bandwidth", "6", "--limits", "12")
    words += ("--from", "theta=0", "--from", "theta=15", "--draws", 8, "--within", "60")
    out = ("-o", tmp_path / "page.html", "--export", tmp_path / "rig.c", "--json", tmp_path / "told.json")
    code, said, error = run(*words, *out)
    assert code == 0 and "controller to theta 60 deg" in said and re.search(r"page: .*page.html\ncontroller: ", said), (
        error
    )
    assert json.loads((tmp_path / "told.json").read_text())["settled"] == 1.0
    assert {path.name for path in tmp_path.iterdir()} == {"model.phast", "page.html", "rig.c", "rig.h", "told.json"}
    code, said, error = run(*words, "--limits", "5", "-o", tmp_path / "other.html", "--quiet")
    assert code == 2 and said == "" and "out of reach: holding it takes torque = 10.39, more than its limit 5" in error
    assert not (tmp_path / "other.html").exists() and len(error.splitlines()) == 1
    dataclasses.replace(rig, inputs=()).save(tmp_path / "idle.phast")
    code, _, error = run("control", tmp_path / "idle.phast", *words[2:])
    assert (
        code == 2 and error == "phast: this model was fitted without inputs, so there is nothing to control it with\n"
    )
