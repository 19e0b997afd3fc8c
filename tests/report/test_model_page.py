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
from phast.analysis.identifiability import damping_band, identified
from phast.components.damping import Friction
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine, Quadratic, Some, Sum
from phast.data.manifold import Manifold
from phast.data.recording import Piece, Recording
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
FIELDS, FORECASTS, ENERGY = "fields", "forecasts", "energy"


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
    """The model's own motion, driven and sampled unevenly, in pieces of several lengths."""
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
    return Recording(tuple(pieces), model.manifold, DT, inputs, ("a note: " + EVIL,))


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
    assert links == sections == ["read", "coefficients", FIELDS, FORECASTS, ENERGY]


def test_what_was_read_and_who_read_it_is_said(page):
    text = own_markup(page)
    assert "<dd>4</dd>" in text and f"<dd>{sum(LENGTHS)}</dd>" in text and "unevenly, steps from 0.03" in text
    assert "<dt>regime</dt><dd>known</dd>" in text and "a note: &lt;img" in text and "<dt>columns · dt</dt>" not in text


def test_coefficients_stand_with_their_deviations(page):
    found = {row[0]: row[1:] for row in cells(page, "coefficients")}
    assert found["damping.viscous"][0].startswith("0.3") and found["damping.viscous"][2] == "yes"
    assert float(found["damping.viscous"][1]) == pytest.approx(0.01 * (1.0 - np.exp(-0.3)), rel=0.02)  # of softplus
    assert "Every coefficient is determined" in own_markup(page) and "Conditioning" in own_markup(page)


def test_fields_are_those_of_the_model_at_the_typical_speed(hostile, drawn):
    model, recording, _ = hostile
    balances = [power_balance(model, each) for each in recording.singly() if each.length > WINDOW]
    speed = np.sqrt(np.mean(np.concatenate([each.v[0] for each in balances]) ** 2, axis=0))
    for i, field in enumerate(drawn[FIELDS]["along"]):
        at = np.array(field["at"])
        force = -5.0 * np.sin(at) if i == 0 else -8.0 * at
        np.testing.assert_allclose(field["force"], force, rtol=1e-3, atol=1e-3)
        assert float(field["speed"]) == pytest.approx(speed[i], rel=5e-3)
        smooth = np.hypot(speed[i], 0.05)
        np.testing.assert_allclose(field["damping"], 0.3 + 0.2 / smooth + 0.1 * smooth, rtol=1e-3)
        assert min(field["damping_deviation"]) > 0.0 and max(field["force_deviation"]) > 0.0
        assert at[0] <= field["seen"][0] < field["seen"][1] <= at[-1] + 1e-6


def test_forecasts_begin_all_along_and_meet_what_was_measured(hostile, page, drawn):
    _, recording, _ = hostile
    starts = drawn[FORECASTS]["starts"]
    horizon = 10 * WINDOW
    assert 5 <= len(starts) <= 9
    for start in starts:
        assert len(start["t"]) == WINDOW + horizon and start["t"][WINDOW - 1] == 0.0
        off = np.array(start["forecast"]) - np.array(start["measured"])[:, WINDOW:]
        assert np.abs(off).max() < 0.1
    first = recording.pieces[0]
    np.testing.assert_allclose(starts[0]["measured"], first.q[: WINDOW + horizon].T, rtol=1e-3, atol=1e-3)
    rows = cells(page, FORECASTS)
    assert [row[1] for row in rows] == ["1", "2", "5", "10", "20", "50", str(horizon)]
    last = [float(x.removesuffix("%")) for x in rows[-1][2:]]
    assert last[0] < 0.1 * last[1] and last[4] < 0.1 * last[5] and len(last) == 8


def test_the_balance_of_every_piece_that_is_long_enough(hostile, page, drawn):
    model, recording, _ = hostile
    pieces = drawn[ENERGY]["pieces"]
    assert len(pieces) == 3  # eight samples tell one state
    for piece, line, data in zip(recording.pieces, pieces, recording.singly(), strict=False):
        alone = power_balance(model, data)
        np.testing.assert_allclose(line["t"], piece.t[WINDOW - 1 :], rtol=1e-4)
        for name in ("energy", "supplied", "dissipated", "unexplained"):
            np.testing.assert_allclose(line[name], getattr(alone, name)[0], rtol=1e-4, atol=1e-6)
    gaps = [float(row[-1].removesuffix("%")) for row in cells(page, ENERGY)]
    assert max(gaps) < 5.0 and "3 longest pieces of 4" in own_markup(page)


def test_a_model_that_is_not_driven_has_no_supply(tmp_path):
    model = sure(rig(port=None), Manifold.parse("theta:angle", "x"))
    driven = recorded(model)
    free = dataclasses.replace(driven, inputs=(), notes=(), pieces=tuple(p._replace(u=None) for p in driven.pieces))
    page = write_model_page(model, free, tmp_path / "page.html")
    text = own_markup(page)
    assert "--other-6" not in text[text.index('<section id="energy">') :] and "<dd>none</dd>" in text
    assert "How it was made" not in text


# --- what cannot be shown --------------------------------------------------------------------------------------------


def test_what_cannot_be_shown_is_refused_in_one_line(hostile, tmp_path):
    model, recording, _ = hostile
    short = dataclasses.replace(recording, pieces=recording.pieces[3:])
    mute = dataclasses.replace(recording, inputs=(), pieces=tuple(p._replace(u=None) for p in recording.pieces))
    cases = [
        (dataclasses.replace(model, evidence=None), recording, "carries no evidence of its fit"),
        (model, short, "longest piece has 8 samples, but the model looks at 8"),
        (model, mute, r"has 0 input\(s\), but the model 1: name them"),
        (model, dataclasses.replace(recording, manifold=Manifold.parse("a:angle", "b")), "the coordinates a, b"),
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


def _as_table(piece):
    degrees, x = np.rad2deg(piece.q[:, 0]), piece.q[:, 1]
    return pd.DataFrame({"run": piece.label, "clock": piece.t, "theta": degrees, "x": x, "tau": piece.u[:, 0]})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model that remembers its columns, and a driven recording in degrees with an uneven clock."""
    folder = tmp_path_factory.mktemp("own")
    with jax.enable_x64(True):
        model = sure(rig(), Manifold.parse("theta:angle", "x"))
        columns = {"time": "clock", "positions": "theta:angle:deg,x", "inputs": "tau", "trajectory": "run"}
        save(model, folder / "model.phast", regime="known", columns=columns)
        rows = [
            pd.DataFrame(
                {"run": p.label, "clock": p.t, "theta": np.rad2deg(p.q[:, 0]), "x": p.q[:, 1], "tau": p.u[:, 0]}
            )
            for p in recorded(model).pieces
        ]
    pd.concat(rows).to_csv(folder / "data.csv", index=False)
    return folder


def test_the_command_writes_the_page_of_a_model(run, files, tmp_path):
    code, said, warned = run("report", files, files / "data.csv", "-o", tmp_path / "page.html")
    assert code == 0 and "page.html in a browser" in said and "drawing forecasts (3/3)" in warned
    text = own_markup(tmp_path / "page.html")
    assert "theta (angle, in radians), x" in text and "<dd>tau</dd>" in text and "<dd>theta:angle:deg,x</dd>" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{files}/model.phast",), "name the recording to show the model on"),
        (("{files}/none.phast", "{files}/data.csv"), "none.phast: no such file"),
        (("{files}", "{files}/data.csv", "--inputs", "x"), "named twice"),
    ],
)
def test_the_command_says_what_is_missing(run, files, tmp_path, arguments, message):
    words = [word.format(files=files) for word in arguments]
    code, _, warned = run("report", *words, "-o", tmp_path / "page.html")
    assert code == 2 and message in warned and len(warned.strip().splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


# --- in a browser ----------------------------------------------------------------------------------------------------


def show(browser, until, section):
    browser.execute_script(
        "document.documentElement.style.scrollBehavior = 'auto';"
        "document.querySelector(`#${arguments[0]} .figures`).scrollIntoView()",
        section,
    )
    until(f"document.querySelectorAll('#{section} .main-svg').length > 0")


def test_figures_are_drawn_when_they_come_into_view_and_nothing_complains(visit, page):
    browser, until = visit(page, 1280)
    for section, count in ((FIELDS, 2), (FORECASTS, 1), (ENERGY, 2)):
        show(browser, until, section)
        until(f"[...document.querySelectorAll('#{section} [data-figure]')].filter(f => f.data).length === {count}")
    assert "owned" not in browser.title.replace("='owned'", "")
    assert not browser.get_log("browser")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_selectors_change_what_is_drawn(visit, page, drawn):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    browser, until = visit(page, 1280)

    def select(section, name, value):
        found = browser.find_element(By.CSS_SELECTOR, f"#{section} select[name={name}]")
        Select(found).select_by_value(value)

    show(browser, until, FORECASTS)
    figure = f"document.querySelector('#{FORECASTS} [data-figure=forecast]')"
    select(FORECASTS, "start", "1")
    select(FORECASTS, "coordinate", "1")
    wanted = drawn[FORECASTS]["starts"][1]["forecast"][1]
    until(f"{figure}.data.at(-1).y[0] === {wanted[0]}")
    upper = browser.execute_script(f"return {figure}.data[0].y")
    deviation = np.array(drawn[FORECASTS]["starts"][1]["deviation"][1])
    np.testing.assert_allclose(upper[: len(wanted)], np.array(wanted) + 2 * deviation, atol=1e-9)
    show(browser, until, FIELDS)
    title = f"document.querySelector('#{FIELDS} [data-figure=damping]').layout.yaxis.title.text"
    assert drawn[FIELDS]["along"][0]["speed"] in browser.execute_script(f"return {title}")
    select(FIELDS, "coordinate", "1")
    until(f"{title}.includes('{drawn[FIELDS]['along'][1]['speed']}')")
    show(browser, until, ENERGY)
    select(ENERGY, "piece", "2")
    until(f"document.querySelector('#{ENERGY} [data-figure=balance]').data[0].y.length === {LENGTHS[2] - WINDOW + 1}")


@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_is_no_wider_than_the_window(visit, page, width):
    browser, until = visit(page, width)
    for section in (FIELDS, FORECASTS, ENERGY):
        show(browser, until, section)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
