"""The commands of research: lists, tables in every form, figures from fitted models, mistakes in one line."""

import io
import json
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import pytest
from rich.console import Console
from rich.progress import Progress

from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.fitting.checkpoint import save
from phast.paper import figures, progress
from phast.paper.catalogue import TABLES
from phast.paper.drawings import FIGURES, noise_curves, noise_rows
from phast.paper.executors import Finished, Job
from phast.paper.experiments import Experiment, write_record
from phast.paper.models import MODELS
from phast.paper.protocol import Split
from phast.paper.studies import LEVELS, noise_study, noise_study_paths
from phast.paper.tables import Sheet, between_marks

ROOT = Path(__file__).parents[2]
FORMS = {"txt", "md", "tex", "json"}
METRICS = {"rollout_theta_wrap_mse_h100": 0.05, "damping_r2": 0.5, "damping_mae": 0.1}


@pytest.fixture
def results(tmp_path):
    """A folder with the record of one run of the PARTIAL cap table."""
    folder = tmp_path / "results"
    experiment = TABLES["partial-cap"].experiments()[0]
    record = {"system": experiment.system, "model": experiment.model, "preset": "paper", "seed": 0, "noise": 0.0}
    record |= {"variation": dict(experiment.variation), "parameters": 5, "metrics": METRICS, "seconds": {"train": 30.0}}
    write_record(experiment.record_path(folder, 0), record)
    return folder


def test_everything_is_listed(run):
    code, out, err = run("paper", "reproduce", "--list")
    assert (code, err) == (0, "")
    named = {line.split()[0]: line for line in out.splitlines() if line}
    assert {*TABLES, *FIGURES} <= set(named)
    assert "figure" in named["casimir-success"] and "figure" in named["gallery-rollouts"]


def test_a_table_from_records_alone_in_every_form(run, results, tmp_path):
    words = ("paper", "reproduce", "partial-cap", "--records-only", "--results", results)
    code, out, err = run(*words, "-o", tmp_path / "out", "--json", tmp_path / "all.json")
    assert (code, err) == (0, "") and "unbounded" in out and "0.059 ± 0.007" in out and "bound 0.5" not in out
    assert {path.suffix.removeprefix(".") for path in (tmp_path / "out").iterdir()} == FORMS
    (table,) = json.loads((tmp_path / "all.json").read_text())
    assert table["rows"][0]["published"] == [0.059, 0.007]
    for form, mark in (("markdown", "| unbounded |"), ("latex", r"\toprule"), ("json", '"model": "unbounded"')):
        assert mark in run(*words, "--format", form)[1]


def test_a_table_is_renewed_inside_a_document(run, results, tmp_path):
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- partial-cap -->\nold\n<!-- /partial-cap -->\nafter\n")
    code, _, err = run("paper", "reproduce", "all", "--records-only", "--results", results, "--into", document)
    text = document.read_text()
    assert (code, err) == (0, "") and text.startswith("before\n<!-- partial-cap -->\n| model |")
    assert "old" not in text and text.endswith("<!-- /partial-cap -->\nafter\n")


def test_one_that_cannot_be_made_takes_no_other_with_it(run, results, tmp_path):
    names = ("gallery-damping", "primitives-timing", "partial-cap")
    code, out, err = run("paper", "reproduce", *names, "--records-only", "--results", results, "-o", tmp_path / "out")
    assert code == 1 and "unbounded" in out and len(err.splitlines()) == 2
    assert "failed: gallery-damping: no fitted model" in err and "failed: primitives-timing: " in err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"partial-cap.{end}" for end in FORMS}


def test_the_noise_table_of_the_docs_is_that_of_the_records():
    folder, windy = ROOT / "results", system("pendulum-windy")
    assert all(path.exists() for path in noise_study_paths(folder, windy))  # nothing is run here
    records = noise_study(folder, windy, on_stage=lambda stage: None)
    rows = noise_rows(noise_curves(records), LEVELS)
    text = (ROOT / "docs" / "explanation" / "velocity.md").read_text()
    start, end = between_marks(text, "noise-study")
    assert text[start:end] == Sheet("", rows[0], rows[1:], []).markdown()


def test_the_state_of_a_suite(run, results):
    words = ("paper", "suite", "--status", "--results", results, "--system", "rlc", "--model", "gru,s5", "--seeds", 2)
    assert "0 of 4 runs have a record" in run(*words)[1]


def test_lost_models_are_asked_for_by_name(run, results, monkeypatch):
    """Records travel with the source, models do not: for a page with figures they are made again."""
    asked = []
    monkeypatch.setattr("phast.paper.executors.missing", lambda folder, jobs, *, models: asked.append(models) or [])
    words = ("paper", "suite", "--system", "rlc", "--model", "gru", "--results", results)
    assert run(*words)[0] == run(*words, "--models")[0] == 0 and asked == [False, True]


MISTAKES = {
    "unknown system": ("suite --system rcl --status", "did you mean 'rlc'"),
    "unknown model": ("suite --system rlc --model grv --status", "did you mean 'gru'"),
    "a baseline by the sharp preset": ("suite --preset sharp --model gru --status", "sharp preset fits"),
    "unknown preset": ("suite --preset best", "unknown preset 'best'"),
    "no system": ("suite --system , --status", "names nothing"),
    "unknown table": ("reproduce overveiw", "'overveiw': did you mean 'overview'"),
    "a table is no figure": ("reproduce rlc --plot {new}/x.png", "--plot draws one figure"),
    "no records of a study": (
        "reproduce noise-study --records-only --results {new}",
        "seed-0.json: no such record: leave --records-only out",
    ),
    "a figure without records": ("reproduce velocity-study --records-only", "leave --records-only out"),
    "no records of a figure": (
        "reproduce casimir-success --records-only --results {new}",
        "no record of casimir-success",
    ),
    "no recordings": ("reproduce measured-single --results {new}", "not in the repository: --data FOLDER"),
    "no document": ("reproduce rlc --records-only --into {new}/none.md", "cannot read"),
    "no place": ("reproduce rlc --records-only --into {new}/empty.md", "has no place <!-- rlc -->"),
    "no models": ("reproduce gallery-rollouts --records-only --results {new}", "no fitted model of pendulum-windy"),
    "a file for a folder": ("suite --system rlc --results {new}/empty.md", "cannot write into {new}/empty.md"),
    "peers into a file": ("bench peers --results {new}/empty.md", "cannot write into {new}/empty.md"),
    "no scheduler": ("suite --system rlc --results {new} --scheduler nowhere", "no Dask scheduler answers at nowhere"),
}


@pytest.mark.parametrize("words, said", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line_and_leave_nothing_behind(run, tmp_path, words, said):
    (tmp_path / "empty.md").write_text("")
    code, _, err = run("paper", *words.format(new=tmp_path).split())
    assert code == 2 and len(err.splitlines()) == 1 and said.format(new=tmp_path) in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["empty.md"]


def test_a_bar_tells_what_is_running_what_is_left_and_how_long_it_takes(monkeypatch):
    """On a terminal, where the runs of a suite are minutes apart."""
    shown, clock, done = io.StringIO(), [0.0], [3]
    terminal = Console(file=shown, force_terminal=True, width=150)
    monkeypatch.setattr(progress, "_bar", lambda: Progress(*Progress.get_default_columns(), console=terminal))
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    job = Job(Experiment("rlc", "gru"), (0, 1))
    with progress.RunsShown(9, lambda: done[0]) as bar:
        bar.started(job)
        clock[0], done[0] = 600.0, 5
        deadline = time.time() + 20
        while "to go" not in shown.getvalue() and time.time() < deadline:
            time.sleep(0.05)
        bar.finished(Finished(job, None, 600.0))
    assert "1 running, 4 left, about 20 min to go" in shown.getvalue()
    assert "gru on rlc (paper), seeds 0, 1: done (600 s)" in shown.getvalue() and "-:--" not in shown.getvalue()


@pytest.mark.usefixtures("float64", "quick_compile")
def test_galleries_draw_every_model(tmp_path, monkeypatch):
    shown = [Experiment(s, m) for s in ("pendulum-windy", "cartpole-windy-rail") for m in ("phast-known", "s5")]
    for experiment in shown:
        model = MODELS[experiment.model](experiment.simulator(), key=jax.random.key(0))
        save(model, experiment.record_path(tmp_path, 0).with_suffix(".phast"))
    monkeypatch.setattr(figures, "benchmark_split", lambda each: Split(*[simulate(each, 3, length=110)] * 3))
    rollouts = figures.rollouts_and_phases(tmp_path, shown)
    assert len(rollouts.axes) == 4  # one angle each, above and below
    assert all({"phast-known", "s5"} <= {line.get_label() for line in ax.lines} for ax in rollouts.axes[:2])
    damped = figures.damping_and_energy(tmp_path, shown)
    above = damped.axes[1]
    assert [line.get_label() for line in above.lines].count("truth") == 1 and len(above.lines) == 4  # two coordinates
    plt.close("all")
