"""Tables from records: means over seeds, columns for what varies, the published numbers beside them."""

import json
import math
from pathlib import Path

import pytest

from phast.dynamics.systems import SYSTEMS
from phast.paper.catalogue import TABLES
from phast.paper.experiments import PRESETS, Experiment, key_of
from phast.paper.tables import (
    BASELINES,
    BENCHMARKS,
    OTHERS,
    REGIMES,
    Costs,
    ModelTable,
    Row,
    Summary,
    between_marks,
    jobs_of,
    main_metric,
    metric_rows,
    published,
    sheet,
)
from phast.report.text import figure

ERROR = "rollout_theta_wrap_mse_h100"


def record(system="pendulum-windy", model="phast-known", seed=0, noise=0.0, preset="paper", parameters=7, **metrics):
    about = {"system": system, "model": model, "preset": preset, "seed": seed, "noise": noise}
    return about | {"parameters": parameters, "metrics": metrics}


def test_seeds_are_averaged_beside_what_is_published():
    (row,) = metric_rows([record(seed=s, damping_r2=v) for s, v in enumerate((0.5, 0.6, 1.0))], ["damping_r2", "mse"])
    assert (row.mean, row.median, row.seeds) == (pytest.approx(0.7), 0.6, 3)
    assert row.published == (0.996, 0.004) and row.ratio == pytest.approx(0.7 / 0.996)


def test_noise_and_systems_are_told_apart_and_have_a_column_where_they_vary():
    records = [record(noise=n, damping_r2=0.9) for n in (0.0, 0.01)] + [record("rlc", noise=0.01, damping_r2=0.8)]
    rows = metric_rows(records, ["damping_r2"])
    assert [(r.system, r.noise) for r in rows] == [("pendulum-windy", 0.0), ("pendulum-windy", 0.01), ("rlc", 0.01)]
    assert [r.published for r in rows] == [(0.996, 0.004), None, None]  # nobody published numbers under noise
    made = sheet("title", rows)
    assert made.heading[:3] == ["system", "noise", "model"] and made.lines[0][:2] == ["pendulum-windy", "0.0"]
    assert sheet("title", rows[:1]).heading[0] == "model"


@pytest.mark.parametrize(
    "metric, ours, better",
    [(ERROR, 0.05, "ours"), (ERROR, 0.2, "paper"), (ERROR, 0.11, "even"), ("damping_r2", 0.5, "paper")],
)
def test_who_wins_depends_on_which_way_is_better(metric, ours, better):
    (row,) = metric_rows([record(**{metric: ours})], [metric])
    assert row.better == better


def test_the_best_model_of_each_group_is_marked_and_r2_is_better_where_it_is_higher():
    records = [record(model=m, **{ERROR: e, "damping_r2": r}) for m, e, r in (("a", 0.1, 0.9), ("b", 0.2, 0.95))]
    lines = {(line[0], line[2]): line[3] for line in sheet("t", metric_rows(records, [ERROR, "damping_r2"])).lines}
    assert lines["a", ERROR].endswith("★") and lines["b", "damping_r2"].endswith("★")
    assert not lines["b", ERROR].endswith("★") and not lines["a", "damping_r2"].endswith("★")


def test_a_run_that_diverged_is_said_so():
    made = sheet("t", metric_rows([record(seed=0, mse=0.1), record(seed=1, mse=None)], ["mse"]))
    assert made.lines[0][3] == "diverged ± 0" and made.data[0]["mean"] is None
    assert json.loads(made.json())["rows"][0]["mean"] is None


def test_four_formats_say_the_same():
    made = sheet("100 % of σ", metric_rows([record(**{ERROR: 0.05}), record(model="gru", **{ERROR: 0.5})], [ERROR]))
    markdown, latex, text = made.markdown().splitlines(), made.latex(), made.text()
    assert markdown[1].count("---") == len(made.heading) and len(markdown) == 4
    assert r"rollout\_theta\_wrap\_mse\_h100" in latex and r"100 \% of $\sigma$" in latex
    assert latex.count(r"\\") == 3 and r"\begin{tabular}{" + "l" * len(made.heading) + "}" in latex
    assert "0.106 ± 0.02" in text and text.splitlines()[2].startswith("model")
    assert [row["model"] for row in json.loads(made.json())["rows"]] == ["phast-known", "gru"]


@pytest.mark.parametrize(
    "value, text",
    [
        (0.25, "0.25"), (3.7e-8, "3.70e-08"), (1 - 2.5e-6, "1 - 2.5e-06"), (0.0, "0"), (12345.6, "1.23e+04"),
        (math.inf, "diverged"),
    ],
)  # fmt: skip
def test_figures_read_well(value, text):
    assert figure(value) == text


ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[!_]*/*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [(document, name) for document in DOCUMENTS for name in TABLES if between_marks(document.read_text(), name)]


@pytest.mark.parametrize("document, name", SHOWN, ids=lambda value: getattr(value, "name", value))
def test_tables_in_the_documents_are_those_that_the_records_give(document, name):
    """`phast paper reproduce NAME --records-only --into DOCUMENT` renews one."""
    text, table = document.read_text(), TABLES[name]
    start, end = between_marks(text, name)
    assert text[start:end] == table.sheet(table.records(ROOT / "results")).markdown()


def test_the_documents_show_tables():
    shown = {(document.name, name) for document, name in SHOWN}
    assert {
        ("README.md", "headline"),
        ("results.md", "suite-summary"),
        ("results.md", "pendulums"),
        ("measured.md", "measured"),
    } <= shown


# --- the catalogue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_table_names_runs_that_can_be_made(table):
    for version in (table, table.quick()):
        for experiment in version.experiments():
            assert experiment.system in SYSTEMS and experiment.preset in PRESETS and experiment.noise >= 0.0
            PRESETS[experiment.preset].maker(experiment.model)
        assert len(set(version.experiments())) == len(version.experiments())
        assert version.sheet([]).lines == [] or isinstance(version, Summary)
    assert table.quick().seeds == 1 and "quick" in table.quick().title


@pytest.mark.parametrize(
    "table", [t for t in TABLES.values() if isinstance(t, ModelTable)], ids=lambda table: table.name
)
def test_named_rows_of_an_ablation_are_those_that_the_paper_prints(table):
    if table.name in published() and table.name not in SYSTEMS:
        assert {row.name for row in table.rows} == set(published()[table.name])


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_quick_look_is_a_dozen_runs_or_so_and_says_what_it_leaves_out(table):
    quick = table.quick()
    assert len(quick.experiments()) <= 16
    if len(quick.experiments()) < len(table.experiments()):
        assert "alone" in quick.title or "two of them" in quick.title


def test_the_list_is_complete():
    paper = """overview cartpole suite-summary windy-identifiability partial-cap unknown-cap cap-sensitivity pendulums
    double-pendulums oscillators rlc lennard-jones heat n-body predator-prey full-state cartpole-mass
    double-pendulum-mass substeps timestep-policy baseline-capacity gauge-freedom casimir casimir-full-state
    casimir-near-stable casimir-noise-match casimir-stress"""
    assert set(paper.split()) <= set(TABLES)
    assert len(BENCHMARKS) == 13 and set(OTHERS) < set(BENCHMARKS)


def test_jobs_have_the_papers_seeds_unless_told():
    table = TABLES["cap-sensitivity"]
    assert all(job.seeds == (0, 1, 2) for job in jobs_of(table))
    assert all(job.seeds == (0,) for job in jobs_of(table, 1))


def test_a_row_of_an_ablation_stands_beside_its_own_published_number():
    varied = record(model="phast-partial", damping_r2=-90.0) | {"variation": {"bound": None}}
    made = TABLES["partial-cap"].sheet([varied])
    assert made.lines[0][0] == "unbounded" and made.data[0]["published"] == [-90.15, 6.14]
    assert key_of(varied) == Experiment("pendulum-windy", "phast-partial", variation=(("bound", None),))


def test_sharp_rows_stand_beside_the_same_published_number():
    table = ModelTable("t", "t", (Row(Experiment("rlc", "phast-known", "sharp"), "phast-known (sharp)"),), ("mse",))
    made = table.sheet([record("rlc", preset="sharp", mse=1e-6), record("rlc", preset="paper", mse=1.0)])
    assert [(line[0], line[6]) for line in made.lines] == [("phast-known (sharp)", "2.64e-05 ± 1.50e-08")]


def test_a_table_named_like_its_system_is_no_ablation():
    made = TABLES["rlc"].sheet([record("rlc", preset="sharp", mse=1e-6)])
    assert [row["published"] for row in made.data] == [[2.64e-05, 1.5e-08]]


def test_the_summary_picks_the_best_of_each_family():
    errors = dict(zip((*REGIMES, *BASELINES), (0.3, 0.1, 0.2, 4.0, 5.0, 3.0, 6.0, 7.0, 8.0, 9.0), strict=True))
    metric = main_metric("pendulum-damped")
    records = [record("pendulum-damped", m, **{metric: e}) for m, e in errors.items()]
    records.append(record("pendulum-damped", "phast-unknown", preset="sharp", **{metric: 1e-9}))
    made = Summary("s", "t", systems=("pendulum-damped",)).sheet(records)
    assert made.lines[0][:5] == ["pendulum-damped", "1.00e-09 (unknown)", "0.1 (partial)", "3 (s5)", "30×"]
    assert made.lines[0][5:] == ["0.017 ± 0.005 (known)", "0.45 ± 0.241 (d-linoss)", "26.5×"]
    assert main_metric("rlc") == "mse" and main_metric("cartpole-windy") == "rollout_mixed_mse_h100"


def test_the_costs_are_those_of_the_records_carried_over_to_all_runs():
    table = Costs("c", "t", systems=("rlc", "heat-exchange"), seeds=3)
    took = {"seconds": {"compile": 60.0, "train": 300.0}}
    made = table.sheet([record(s, "gru", seed=i) | took for s in ("rlc", "heat-exchange") for i in range(2)])
    assert made.heading[-1] == "2 systems × 3 seeds"
    assert made.lines == [["gru", "4 of 6", "360", "0.6 h"], ["all", "4 of 60", "360", "6.0 h"]]
    assert TABLES["suite-cost"].seeds * len(TABLES["suite-cost"].experiments()) == 13 * 10 * 5
