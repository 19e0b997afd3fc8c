"""The page: what is on it, that nothing on it loads or runs but its own, and that it works in a browser."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import Still
from pages import loads_nothing, own_markup, read_page, runs_nothing_foreign

from phast.cli import main as cli
from phast.data.trajectories import Trajectories
from phast.dynamics.systems import SYSTEMS, system
from phast.errors import InputError
from phast.fitting.checkpoint import save
from phast.paper.curves import CONTEXT, HORIZON, model_curves, scene, true_curves
from phast.paper.experiments import Experiment, write_record
from phast.paper.metrics import error_name
from phast.paper.models import MODELS
from phast.paper.results_page import Run, collect, section_names, write_report
from phast.report.page import rounded

pytestmark = pytest.mark.usefixtures("quick_compile")

BENCHMARKS = [name for name, s in SYSTEMS.items() if s.benchmark]
DRAWN = ("pendulum-windy", "oscillator-damped")
EVIL = "<img src=x onerror=document.title='owned'>"


def motion(chosen, count=3, length=CONTEXT + HORIZON):
    """Test trajectories of the right shape without simulating any: a sine for each coordinate."""
    phase = np.arange(count)[:, None, None] + 0.5 * np.arange(chosen.manifold.size)
    q = 1.2 * np.sin(2.0 * chosen.dt * np.arange(length)[:, None] + phase)
    return Trajectories(q, chosen.dt, chosen.manifold)


def record(name, model="phast-known", preset="paper", seed=0, noise=0.0, error=0.05):
    kind = error_name(SYSTEMS[name].manifold) if name in SYSTEMS else "mse"
    metrics = {f"rollout_{kind}_h100": error, f"rollout_{kind}_h100_median": 0.5 * error, kind: 1e-4, "damping_r2": 0.9}
    about = {"system": name, "model": model, "preset": preset, "seed": seed, "noise": noise, "parameters": 1234}
    return about | {"metrics": metrics, "versions": {"jax": "0.0"}, "commit": "abc"}


def put(folder, name, model, preset="paper", seed=0, noise=0.0, error=0.05, fitted=False):
    path = Experiment(name.replace("/", "_"), model.replace("/", "_"), preset, noise).record_path(folder, seed)
    write_record(path, record(name, model, preset, seed, noise, error))
    if fitted:
        save(MODELS[model](system(name), key=jax.random.key(seed)), path.with_suffix(".phast"))
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Records of every benchmark, models of two, a variation, noise, and a name that would like to run."""
    folder = tmp_path_factory.mktemp("results")
    for name in BENCHMARKS:
        for seed, error in enumerate((0.03, 0.05, 0.1)):
            put(folder, name, "phast-known", seed=seed, error=error, fitted=name in DRAWN)
        put(folder, name, "phast-partial", "sharp", error=1e-8)
    put(folder, "pendulum-windy", "phast-known", noise=0.05, error=7.0)
    put(folder, "pendulum-windy", "phast-partial,bound=none", error=8.0)
    put(folder, EVIL, "gru")
    put(folder, "pendulum-windy", f"</script><script>{EVIL}</script>", error=0.2)
    return folder


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    runs = [
        *collect(results),
        Run(record("pendulum-windy", "gru", error=0.5), Still(system("pendulum-windy").manifold)),
    ]
    return write_report(runs, tmp_path_factory.mktemp("page") / "report.html", test_data=motion)


@pytest.fixture(scope="module")
def parsed(page):
    return read_page(page)


def test_every_benchmark_has_a_section_and_a_link_to_it(page, parsed):
    text = own_markup(page)
    assert all(SYSTEMS[name].title in text and f"<code>{name}</code>" in text for name in BENCHMARKS)
    sections = {attrs["id"] for tag, attrs in parsed.tags if tag == "section"}
    links = {attrs["href"].removeprefix("#") for tag, attrs in parsed.tags if tag == "a"}
    assert links == sections and len(sections) == len(BENCHMARKS) + 2  # the summary, and the name that is no system


def test_nothing_comes_from_a_network(parsed):
    assert loads_nothing(parsed)


def test_names_are_text_and_never_markup(page, parsed):
    assert EVIL not in page.read_text(encoding="utf-8")
    assert "&lt;img src=x onerror" in own_markup(page)
    assert runs_nothing_foreign(parsed)


def test_the_tables_hold_means_over_clean_runs_beside_the_published(page):
    text = own_markup(page)
    assert "0.06 ± 0.036" in text  # of 0.03, 0.05 and 0.1
    assert ">0.106<" in text and ">0.57<" in text  # published, and ours over it
    assert "bound=none" not in text and ">7<" not in text
    assert "Not on this page: 1 of runs with noise" in text
    assert "3.33×" in text  # 0.2 of the best other over 0.06 of the best of ours


def test_models_are_drawn_by_their_median_seed_and_the_others_are_named(page, parsed):
    data = json.loads(next(text for text in parsed.scripts if text.startswith("[")))
    assert [len(drawing["models"]) for drawing in data] == [2, 1]
    windy = data[0]
    assert [m["label"] for m in windy["models"]] == ["phast-known, paper", "gru, paper"]
    expected = model_curves(
        scene(system("pendulum-windy"), motion(system("pendulum-windy")), 3),
        MODELS["phast-known"](system("pendulum-windy"), key=jax.random.key(1)),  # errors 0.03, 0.05, 0.1
    )
    np.testing.assert_allclose(windy["models"][0]["q"], expected["q"], rtol=1e-4)
    assert windy["models"][1]["damping"] is None and windy["truth"]["damping"]
    assert "Not drawn, for want of a fitted model beside the record: phast-partial, sharp" in own_markup(page)


def test_truth_and_still_life_as_curves():
    windy = system("pendulum-windy")
    shown = scene(windy, motion(windy), 2)
    truth, still = true_curves(shown), model_curves(shown, Still(windy.manifold))
    assert np.shape(truth["q"]) == (2, 1, CONTEXT + HORIZON) and np.shape(still["q"]) == (2, 1, HORIZON + 1)
    np.testing.assert_allclose(still["q"][0][0], truth["q"][0][0][CONTEXT - 1], rtol=1e-4)
    np.testing.assert_allclose(still["energy"][0], 9.81 * (1 - np.cos(still["q"][0][0])), rtol=1e-3)
    angles = shown.lines[0, :, 0]
    np.testing.assert_allclose(truth["damping"][0][0], 0.3 + 0.5 * np.abs(np.sin(angles)), rtol=1e-4, atol=1e-6)


def test_a_turn_leaves_no_jump_and_velocities_are_those_of_the_motion():
    windy = system("pendulum-windy")
    angle = 3.0 * windy.dt * np.arange(CONTEXT + HORIZON)
    wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
    truth = true_curves(scene(windy, Trajectories(wrapped[None, :, None], windy.dt, windy.manifold), 1))
    np.testing.assert_allclose(truth["q"][0][0], angle, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(truth["v"][0][0], 3.0, rtol=1e-3)


def test_single_precision_models_are_drawn_in_double_precision():
    windy = system("pendulum-windy")
    model = MODELS["phast-known"](windy, key=jax.random.key(0))
    with jax.enable_x64(True):
        curves = model_curves(scene(windy, motion(windy), 1), model)
    np.testing.assert_allclose(curves["q"], model_curves(scene(windy, motion(windy), 1), model)["q"], rtol=0.01)


def test_numbers_are_short_and_never_nan():
    assert rounded(np.array([[1 / 3, np.nan], [np.inf, 123456.0]])) == [[0.33333, None], [None, 123460.0]]
    assert rounded(jnp.float32(0.1)) == 0.1


# --- folders ---------------------------------------------------------------------------------------------------------


def test_folders_are_collected_by_system_in_the_order_of_the_systems(results):
    runs = collect(results, ["rlc", "pendulum-windy"])
    assert section_names(runs) == ["pendulum-windy", "rlc"]
    assert sum(isinstance(run.model, Path) for run in runs) == 3
    with pytest.raises(InputError, match="unknown system 'rcl': did you mean 'rlc'"):
        collect(results, ["rcl"])
    with pytest.raises(InputError, match="no records of robot-arm in"):
        collect(results, ["rlc", "robot-arm"])


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"metrics": 3}', '{"system": 1}'])
def test_an_unreadable_record_is_named(tmp_path, content):
    path = put(tmp_path, "rlc", "phast-known")
    path.write_text(content)
    with pytest.raises(InputError, match=r"seed-0.json: not .*record.*delete it to run it again"):
        collect(tmp_path)


def test_a_damaged_model_costs_its_lines_and_a_warning(tmp_path):
    put(tmp_path, "rlc", "phast-known").with_suffix(".phast").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="not drawn: .*seed-0.phast"):
        page = write_report(collect(tmp_path), tmp_path / "report.html", test_data=motion)
    assert "Not drawn" in page.read_text() and "<div data-figure" not in own_markup(page)


def test_the_command_writes_the_page_or_says_what_to_do(tmp_path, monkeypatch, capfd):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["phast", "paper", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, capfd.readouterr()

    monkeypatch.setenv("PHAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("warnings.showwarning", None)  # restored afterwards
    put(tmp_path / "results", "rlc", "phast-known")
    code, told = run("--results", tmp_path / "results", "-o", tmp_path / "out" / "page.html")
    assert code == 0 and "drawing rlc (1/1)" in told.err and "page.html in a browser" in told.out
    assert (tmp_path / "out" / "page.html").stat().st_size > 1e6
    code, told = run("--results", tmp_path / "nowhere", "-o", tmp_path / "none.html")
    assert code == 2 and len(told.err.strip().splitlines()) == 1
    assert "no records in" in told.err and "phast paper suite" in told.err and not (tmp_path / "none.html").exists()


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(visit, page):
    """``opened(width)``: the page at that width, and a function that waits for a line of script to become true."""
    return lambda width: visit(page, width)


def windy_section():
    return f"s{BENCHMARKS.index('pendulum-windy')}"


def scroll_to(browser, identifier):
    browser.execute_script(
        "document.documentElement.style.scrollBehavior = 'auto';"
        "document.querySelector(`#${arguments[0]} .figures`).scrollIntoView()",
        identifier,
    )


def test_figures_are_drawn_when_they_come_into_view_and_nothing_complains(opened):
    browser, until = opened(1280)
    count = f"document.querySelectorAll('#{windy_section()} .main-svg').length"
    assert browser.execute_script(f"return {count}") == 0  # far below
    scroll_to(browser, windy_section())
    assert until(f"{count} >= 4")
    assert until(f"document.querySelectorAll('#{windy_section()} .scatterlayer .trace').length >= 8")
    assert not browser.get_log("browser")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.title == "PHAST report"  # the name that would like to run did not


def test_the_selectors_and_toggles_change_what_is_drawn(opened):
    browser, until = opened(1280)
    scroll_to(browser, windy_section())
    figure = f"document.querySelector('#{windy_section()} [data-figure=rollout]')"
    until(f"{figure}.data?.length === 3")  # truth and two models
    first = browser.execute_script(f"return {figure}.data[0].y[0]")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element(By.CSS_SELECTOR, f"#{windy_section()} select[name=trajectory]")).select_by_value("2")
    until(f"{figure}.data[0].y[0] !== {first}")
    browser.find_element(By.CSS_SELECTOR, f"#{windy_section()} input[name=model]").click()
    until(f"{figure}.data.length === 2")
    browser.find_element(By.CSS_SELECTOR, f"#{windy_section()} button.all").click()
    until(f"{figure}.data.length === 3")


def test_a_click_on_a_heading_sorts_and_another_turns_it_round(opened):
    browser, _ = opened(1280)
    click = f"document.querySelectorAll('#{windy_section()} th button')[1].click()"  # model, rollout
    values = f"return [...document.querySelectorAll('#{windy_section()} tbody tr')].map(r => +r.cells[1].dataset.value)"
    rising = browser.execute_script(f"{click}; {values}")
    assert rising == sorted(rising) and len(set(rising)) > 2
    assert browser.execute_script(f"{click}; {values}") == rising[::-1]


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_the_page_is_no_wider_than_the_window(opened, width):
    browser, until = opened(width)
    scroll_to(browser, windy_section())
    until(f"document.querySelectorAll('#{windy_section()} .main-svg').length >= 4")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
