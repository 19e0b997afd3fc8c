"""The page of one's own model: what is on it, that nothing on it loads or runs but its own, that it works."""

import dataclasses
import json
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from doubles import wrapped
from pages import loads_nothing, own_markup, read_page, runs_nothing_foreign

from phast.analysis.energy import power_balance
from phast.analysis.identifiability import damping_band, identified, typical_speed
from phast.api.fitted import Fitted
from phast.components.damping import Friction
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine, Quadratic, Some, Sum
from phast.data.manifold import Manifold
from phast.data.recording import Piece, Recording
from phast.data.units import Units
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.inputs import Held
from phast.estimation.moving_horizon import Evidence, ModelAware
from phast.fitting.checkpoint import save
from phast.report.model_page import write_model_page

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

EVIL = "<img src=x onerror=document.title='owned'>"
CLOSING = "</script><script>document.title='owned'</script>"
DT, WINDOW, LENGTHS = 0.05, 8, (120, 61, 40, 8)
FIT, FIELDS, ENERGY = "fit", "fields", "energy"
DEGREES = np.array([180.0 / np.pi, 1.0])  # per radian of the angle, and per metre of the other


def rig(port=((1.0,), (0.5,)), joints=None):
    """A pendulum and a spring with friction, driven by one input; four coefficients to be sure of."""
    wells = Sum((Some(Cosine(Positive.starting_at(5.0)), (0,)), Some(Quadratic(Positive.starting_at(8.0)), (1,))))
    rubbing = Friction(Positive.starting_at(0.3), Positive.starting_at(0.2), 0.1, joints=joints)
    return PortHamiltonian(wells, ConstantMass((1.0, 2.0)), rubbing, port)


def sure(system, manifold):
    """A model that says how sure it is, without a fit."""
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(system, eqx.is_inexact_array)))
    evidence = Evidence(1e4 * np.eye(count), 1e-4 * np.eye(count), 1e-3, 1000)
    core = Core(system, RungeKutta(Timestep(DT)))
    return ModelAware(core, manifold, DT, WINDOW, noise=1e-3, evidence=evidence)


def recorded(model, *, labels=("a", "b", "c", "d"), inputs=("tau",), noise=0.0):
    """The model's own motion, driven and sampled unevenly, in pieces of several lengths; from a file in degrees."""
    rng, pieces, length = np.random.default_rng(0), [], max(LENGTHS)
    roll = jax.jit(lambda q, p, held: model.core.rollout(q, p, length - 1, held))
    for label, kept in zip(labels, LENGTHS, strict=True):
        stretch = rng.uniform(0.6, 1.4, length - 1)
        u = 2.0 * np.sin(rng.uniform(0, 6) + 0.3 * np.arange(length))[:, None]
        start = jnp.asarray(rng.normal(0.0, 0.8, 2)), jnp.asarray(rng.normal(0.0, 1.0, 2))
        path = roll(*start, Held(jnp.asarray(u[:-1]), jnp.asarray(stretch)))[0]
        q = np.concatenate([start[0][None], path]) + noise * rng.normal(size=(length, 2))
        t = 3.0 + DT * np.concatenate([[0.0], np.cumsum(stretch)])
        pieces.append(Piece(label, t[:kept], q[:kept], u[:kept]))
    units = Units(model.manifold, ("deg", "m"))
    return Recording(tuple(pieces), model.manifold, DT, inputs, ("a note: " + EVIL,), units)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A driven model with uneven steps, whose columns, runs and notes would like to run."""
    with jax.enable_x64(True):
        model = sure(rig(), Manifold((EVIL, CLOSING), (True, False)))
        recording = recorded(model, labels=(EVIL, CLOSING, "c", "d"), inputs=(EVIL + "2",), noise=1e-3)
        about = {"regime": "known", "columns": {"positions": [EVIL, CLOSING], "dt": None}, EVIL: CLOSING}
        path = tmp_path_factory.mktemp("page") / "model.html"
        return model, recording, write_model_page(model, recording, path, about=about)


@pytest.fixture(scope="module")
def page(hostile):
    return hostile[2]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A pendulum that nothing drives, in degrees, one of whose coefficients is at zero."""
    with jax.enable_x64(True):
        rubbing = Friction(Positive.starting_at(0.3), Positive.starting_at(1e-4), 0.1)
        model = sure(PortHamiltonian(Cosine(Positive.starting_at(5.0)), ConstantMass((1.0,)), rubbing, None), ANGLE)
        evidence = eqx.tree_at(lambda e: e.covariance, model.evidence, np.diag([1e-4, 1e-4, 1e2]))  # of softplus⁻¹
        model = dataclasses.replace(model, evidence=evidence)
        start = jnp.array([1.0]), jnp.array([0.0])
        q = jax.jit(lambda q, p: model.core.rollout(q, p, 99)[0])(*start)
        piece = Piece("0", DT * np.arange(100), np.concatenate([start[0][None], q]), None)
        recording = Recording((piece,), ANGLE, DT, counted=Units(ANGLE, ("deg",)))
        page = write_model_page(model, recording, tmp_path_factory.mktemp("plain") / "page.html")
        return Fitted(model, recording.units, recording=recording), page


ANGLE = Manifold.parse("theta:angle")


@pytest.fixture(scope="module")
def parsed(page):
    return read_page(page)


@pytest.fixture(scope="module")
def drawn(parsed):
    return {section["id"]: section for section in json.loads(parsed.scripts[0])}


def cells(page, section):
    """The rows of a section's table, as text."""
    body = re.search(rf'<section id="{section}">.*?<tbody>(.*?)</tbody>', own_markup(page), re.DOTALL)[1]
    return [re.findall(r"<t[hd][^>]*>([^<]*)", row) for row in body.split("<tr>")[1:]]


# --- what is on it ---------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_and_names_are_text(page, parsed):
    assert loads_nothing(parsed) and runs_nothing_foreign(parsed)
    assert EVIL not in page.read_text(encoding="utf-8") and "owned'</script>" not in page.read_text(encoding="utf-8")
    assert own_markup(page).count("&lt;img src=x onerror") >= 8  # positions, inputs, runs, notes, what was said


def test_every_link_of_the_navigation_leads_to_a_section(parsed):
    sections = [attrs["id"] for tag, attrs in parsed.tags if tag == "section"]
    links = [attrs["href"].removeprefix("#") for tag, attrs in parsed.tags if tag == "a"]
    assert links == sections == [FIT, "coefficients", FIELDS, ENERGY, "made"]


def test_what_was_read_and_who_read_it_is_said(page):
    text = own_markup(page)
    assert "<dd>4</dd>" in text and f"<dd>{sum(LENGTHS)}</dd>" in text and "unevenly, steps from 0.03" in text
    assert "<dt>regime</dt><dd>known</dd>" in text and "a note: &lt;img" in text and "<dt>columns · dt</dt>" not in text


def test_coefficients_stand_in_the_words_of_a_printed_fit(plain):
    """Value and deviation to the same digits, the unit, and what the data determine; positive ones with their bound."""
    fitted, page = plain
    printed = [re.split(r"\s{2,}", line) for line in repr(fitted).splitlines()]
    shown = {row[0]: row[1:] for row in cells(page, "coefficients")}
    assert set(shown) == {"potential.amplitudes", "damping.viscous", "damping.coulomb"}
    for name, (value, *rest) in shown.items():
        assert [name, value, rest[-1]] in printed
    assert shown["damping.viscous"][0].startswith("0.3000 ± 0.0026")  # of softplus: 0.01 (1 - exp(-0.3))
    assert shown["damping.viscous"][-1] == "1/s" and "<small>determined</small>" in own_markup(page)
    assert shown["damping.coulomb"][0].startswith("at zero, below 0.0") and "(95 %)" in shown["damping.coulomb"][0]


def test_the_fit_comes_first_and_how_it_was_made_last_and_closed(plain):
    text = own_markup(plain[1])
    places = [text.index(x) for x in ("residual of the fit", 'data-figure="forecast"', "Table of coef", "<details>")]
    assert places == sorted(places) and "How it was made" in text[: places[0]]  # in the navigation
    residual, noise = (f"{np.rad2deg(1e-3):.4g} deg",) * 2
    assert f"<dd>{residual} rms over 1,000 positions</dd>" in text and f"<dd>about {noise}</dd>" in text
    assert "standing still" in text[places[0] : places[1]]


def test_fields_are_those_of_the_model_at_the_typical_speed(hostile, drawn):
    model, recording, _ = hostile
    speed = typical_speed(model.core.system, recording.trajectories())
    for i, (field, unit) in enumerate(zip(drawn[FIELDS]["along"], ("deg", "m"), strict=True)):
        at = np.array(field["at"]) / DEGREES[i]
        force = -5.0 * np.sin(at) if i == 0 else -8.0 * at
        np.testing.assert_allclose(field["force"]["y"], force, rtol=1e-3, atol=1e-3)  # a torque stays one
        assert field["force"]["title"] == "force -∂V/∂q [u]"
        assert field["damping"]["title"] == f"damping d [u·s/{unit}]"
        assert field["moving"] == f" at {speed[i] * DEGREES[i]:.3g} {unit}/s"
        smooth = np.hypot(speed[i], 0.05)
        damping = (0.3 + 0.2 / smooth + 0.1 * smooth) / DEGREES[i]
        np.testing.assert_allclose(field["damping"]["y"], damping, rtol=1e-3)
        assert min(field["damping"]["deviation"]) > 0.0 and max(field["force"]["deviation"]) > 0.0
        assert field["at"][0] <= field["seen"][0] < field["seen"][1] <= field["at"][-1] + 1e-4


def test_what_is_not_driven_is_counted_as_accelerations_of_the_file(plain):
    fitted, page = plain
    drawn = {section["id"]: section for section in json.loads(read_page(page).scripts[0])}
    (field,) = drawn[FIELDS]["along"]
    assert field["force"]["title"] == "force -∂V/∂q [deg/s²]" and field["label"] == "theta [deg]"
    np.testing.assert_allclose(field["force"]["y"], np.rad2deg(-5.0 * np.sin(np.deg2rad(field["at"]))), atol=0.01)
    assert (
        field["moving"].endswith("deg/s")
        and field["damping"]["title"] == "damping d [1/s]"
        and drawn[ENERGY]["unit"] == " [deg²/s²]"
    )
    energy = power_balance(fitted.model, fitted.recording.trajectories()).energy[0]
    np.testing.assert_allclose(drawn[ENERGY]["pieces"][0]["energy"], np.rad2deg(np.rad2deg(energy)), rtol=1e-4)


def test_forecasts_begin_all_along_and_meet_what_was_measured(hostile, page, drawn):
    _, recording, _ = hostile
    starts = drawn[FIT]["starts"]
    horizon = 10 * WINDOW
    assert 5 <= len(starts) <= 9
    for start in starts:
        assert len(start["t"]) == WINDOW + horizon and start["t"][WINDOW - 1] == 0.0
        off = np.array(start["forecast"]) - np.array(start["measured"])[:, WINDOW:]
        assert (np.abs(off).max(axis=1) < 0.1 * DEGREES).all()
    first = recording.pieces[0].q[: WINDOW + horizon] * DEGREES
    np.testing.assert_allclose(starts[0]["measured"], first.T, rtol=1e-3, atol=1e-3)
    rows = cells(page, FIT)
    assert [float(row[0]) for row in rows] == pytest.approx([DT * k for k in (1, 2, 5, 10, 20, 50, horizon)])
    last = [float(x.removesuffix("%")) for x in rows[-1][1:]]
    assert last[0] < 0.1 * last[1] and last[4] < 0.1 * last[5] and len(last) == 8


def test_the_balance_of_every_piece_that_is_long_enough(hostile, page, drawn):
    model, recording, _ = hostile
    pieces = drawn[ENERGY]["pieces"]
    assert len(pieces) == 3 and drawn[ENERGY]["unit"] == " [u·q]"  # eight samples tell one state
    lengths = [length - WINDOW + 1 for length in LENGTHS[:3]]
    assert [len(line["t"]) for line in pieces] == lengths
    short, line = recording.pieces[2], pieces[2]  # computed with its last sample repeated
    alone = power_balance(model, recording.singly()[2])
    np.testing.assert_allclose(line["t"], short.t[WINDOW - 1 :], rtol=1e-4)
    for name in ("energy", "supplied", "dissipated", "unexplained"):
        np.testing.assert_allclose(line[name], getattr(alone, name)[0], rtol=1e-4, atol=1e-6)
    gaps = [float(row[-1].removesuffix("%")) for row in cells(page, ENERGY)]
    assert max(gaps) < 5.0 and "3 longest pieces of 4" in own_markup(page)


def test_a_model_that_is_not_driven_has_no_supply(plain):
    text = own_markup(plain[1])
    assert "--other-6" not in text[text.index('<section id="energy">') :] and "<dd>none</dd>" in text
    assert "Its fit" not in text


# --- what cannot be shown --------------------------------------------------------------------------------------------


def test_what_cannot_be_shown_is_refused_in_one_line(hostile, tmp_path):
    model, recording, _ = hostile
    short = dataclasses.replace(recording, pieces=recording.pieces[3:])
    mute = dataclasses.replace(recording, inputs=(), pieces=tuple(p._replace(u=None) for p in recording.pieces))
    cases = [
        (dataclasses.replace(model, evidence=None), recording, "carries no evidence of its fit"),
        (model, short, "longest piece has 8 samples, but the model looks at 8"),
        (model, mute, r"has 0 inputs, but the model 1: name the columns"),
        (model, dataclasses.replace(recording, manifold=Manifold.parse("a:angle", "b")), r"has the coordinates a"),
    ]
    for wrong, data, message in cases:
        with pytest.raises(InputError, match=message):
            write_model_page(wrong, data, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


# --- damping at a speed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joints", [None, ((1.0, 0.0), (-1.0, 1.0))])
def test_damping_at_a_speed_is_the_force_it_takes_over_the_speed(joints):
    model = sure(rig(port=None, joints=joints), Manifold.parse("theta:angle", "x"))
    q, speed = np.array([[0.1, 0.2], [1.0, -0.3]]), np.array([0.7, 1.9])
    curve, band = damping_band(identified(model), q, speed)
    for i in range(2):
        v = jnp.zeros(2).at[i].set(speed[i])
        force = jax.vmap(lambda x, v=v: model.core.system.dissipation(x, v))(jnp.asarray(q))
        np.testing.assert_allclose(curve[:, i], force[:, i] / speed[i], rtol=1e-9)
    assert (band > 0.0).all()
    np.testing.assert_allclose(damping_band(identified(model), q)[0], wrapped(model).damping(q))


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(plain, tmp_path_factory):
    """A folder with a model that remembers its columns, and a recording in degrees.

    They are those of the plain page, whose programs are compiled already.
    """
    folder, (fitted, _) = tmp_path_factory.mktemp("own"), plain
    (piece,) = fitted.recording.pieces
    with jax.enable_x64(True):
        columns = {"time": "clock", "positions": "theta:angle:deg"}
        save(fitted.model, folder / "model.phast", regime="known", columns=columns)
    pd.DataFrame({"clock": piece.t, "theta": np.rad2deg(piece.q[:, 0])}).to_csv(folder / "data.csv", index=False)
    return folder


def test_the_command_writes_the_page_of_a_model(run, files, tmp_path):
    code, said, warned = run("report", files, files / "data.csv", "-o", tmp_path / "page.html")
    assert code == 0 and "page.html in a browser" in said and "drawing forecasts (0/3)" in warned
    text = own_markup(tmp_path / "page.html")
    assert "theta [deg], an angle" in text and "<dd>theta:angle:deg</dd>" in text and "<dd>known</dd>" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{files}/none.phast", "{files}/data.csv"), "no model '{files}/none.phast': make one with `phast fit"),
        (("{files}", "{files}/data.csv", "--inputs", "theta"), "named twice"),
    ],
)
def test_the_command_says_what_is_missing(run, files, tmp_path, arguments, message):
    words = [word.format(files=files) for word in arguments]
    code, _, warned = run("report", *words, "-o", tmp_path / "page.html")
    assert code == 2 and message.format(files=files) in warned and len(warned.strip().splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


# --- in a browser ----------------------------------------------------------------------------------------------------


def show(browser, until, section):
    browser.execute_script(
        "document.documentElement.style.scrollBehavior = 'auto';"
        "document.querySelector(`#${arguments[0]} .figures`).scrollIntoView()",
        section,
    )
    until(f"[...document.querySelectorAll('#{section} [data-figure]')].every(f => f.querySelector('.main-svg'))")


OVERLAPPING = """
const boxes = (wanted) => [...document.querySelectorAll(wanted)].map(e => e.getBoundingClientRect());
const across = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
return boxes('[data-figure]').flatMap(f => boxes('.model, [data-figure] .legend').filter(l => across(f, l)));
"""
OVERFLOWING = """
return [...document.querySelectorAll('body *')]
  .filter(e => !e.parentElement.closest('.scroll, nav, svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => `${e.tagName} ${e.className}`);
"""
CUT_OFF = """
return [...document.querySelectorAll('[data-figure]')].flatMap(f => {
  const frame = f.getBoundingClientRect();
  return [...f.querySelectorAll('.xtitle, .ytitle')].filter(title => {
    const box = title.getBoundingClientRect();
    const across = box.left < frame.left - 1 || box.right > frame.right + 1;
    return across || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
  }).map(title => title.textContent);
});
"""
TITLES = """
const figures = [...document.querySelectorAll('[data-figure]')];
return figures.flatMap(f => [f.layout.xaxis, f.layout.yaxis].map(axis => axis.title.text));
"""


def test_the_forecast_is_on_the_first_screen_and_every_axis_has_a_unit(visit, plain):
    browser, until = visit(plain[1], 1280)
    until("document.querySelector('[data-figure=forecast] .main-svg')")  # without scrolling
    place = "return document.querySelector('{}').getBoundingClientRect().{}"
    assert browser.execute_script(place.format("#fit h2", "top")) < 160
    assert browser.execute_script(place.format("[data-figure=forecast] .main-svg", "bottom")) < 800
    for section in (FIELDS, ENERGY):
        show(browser, until, section)
    titles = browser.execute_script(TITLES)
    assert len(titles) == 10 and all(
        re.search(r"\[.*(deg|s)[²/].*\]$|\[(deg|s)\]$|\[1/s\]$", title) for title in titles
    )
    assert browser.execute_script(OVERLAPPING) == [] and browser.execute_script(CUT_OFF) == []
    assert browser.execute_script("return document.querySelector('details').open") is False


def test_a_page_with_names_that_would_like_to_run_works_and_says_nothing(visit, page, drawn):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    browser, until = visit(page, 1280)

    def select(section, name, value):
        found = browser.find_element(By.CSS_SELECTOR, f"#{section} select[name={name}]")
        Select(found).select_by_value(value)

    for section in (FIT, FIELDS, ENERGY):
        show(browser, until, section)
    figure = f"document.querySelector('#{FIT} [data-figure=forecast]')"
    select(FIT, "start", "1")
    select(FIT, "coordinate", "1")
    start = drawn[FIT]["starts"][1]
    wanted, deviation = np.array(start["forecast"][1]), np.array(start["deviation"][1])
    until(f"{figure}.data.at(-1).y[0] === {wanted[0]}")
    upper = browser.execute_script(f"return {figure}.data[0].y")
    np.testing.assert_allclose(upper[: len(wanted)], wanted + 2 * deviation, atol=1e-9)
    title = f"document.querySelector('#{FIELDS} [data-figure=damping]').layout.yaxis.title.text"
    select(FIELDS, "coordinate", "1")
    until(f"{title}.includes('u·s/m')")
    said = browser.execute_script(f"return document.querySelector('#{FIELDS} [data-note]').textContent")
    assert said == drawn[FIELDS]["along"][1]["moving"]
    select(ENERGY, "piece", "2")
    until(f"document.querySelector('#{ENERGY} [data-figure=balance]').data[0].y.length === {LENGTHS[2] - WINDOW + 1}")
    assert "owned" not in browser.title.replace("='owned'", "")
    assert not browser.get_log("browser")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_nothing_is_wider_than_a_narrow_window(visit, page):
    browser, until = visit(page, 390)
    for section in (FIT, FIELDS, ENERGY):
        show(browser, until, section)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert browser.execute_script(OVERFLOWING) == [] and browser.execute_script(OVERLAPPING) == []


def test_every_column_of_one_coordinate_is_seen_on_a_telephone(visit, plain):
    browser, _ = visit(plain[1], 390)
    wide = "return [...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert browser.execute_script(wide) == [0, 0, 0]
