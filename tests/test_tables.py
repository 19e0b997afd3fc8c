"""Tables from records: means over seeds, columns for what varies, the published numbers beside them."""

import pytest

from phast.tables import TABLES, cells, compare, figure, markdown


def record(system="pendulum-windy", model="phast-known", seed=0, noise=0.0, **metrics):
    return {"system": system, "model": model, "preset": "sharp", "seed": seed, "noise": noise, "metrics": metrics}


def test_seeds_are_averaged_beside_what_is_published():
    (row,) = compare([record(seed=s, damping_r2=v) for s, v in enumerate((0.5, 0.6, 1.0))], ["damping_r2", "mse"])
    assert (row.mean, row.median, row.seeds) == (pytest.approx(0.7), 0.6, 3)
    assert row.published == (0.996, 0.004) and row.ratio == pytest.approx(0.7 / 0.996)


def test_noise_and_systems_are_told_apart_and_have_a_column_where_they_vary():
    records = [record(noise=n, damping_r2=0.9) for n in (0.0, 0.01)] + [record("rlc", noise=0.01, damping_r2=0.8)]
    rows = compare(records, ["damping_r2"])
    assert [(r.system, r.noise) for r in rows] == [("pendulum-windy", 0.0), ("pendulum-windy", 0.01), ("rlc", 0.01)]
    assert [r.published for r in rows] == [(0.996, 0.004), None, None]  # nobody published numbers under noise
    heading, first, *_ = cells(rows)
    assert heading[:3] == ["system", "noise", "model"] and first[:2] == ["pendulum-windy", "0.0"]
    assert cells(rows[:1])[0][0] == "model"
    assert markdown(rows).splitlines()[1].count("---") == len(heading)


@pytest.mark.parametrize(
    "value, text",
    [(0.25, "0.25"), (3.7e-8, "3.70e-08"), (1 - 2.5e-6, "1 - 2.5e-06"), (0.0, "0"), (12345.6, "1.23e+04")],
)
def test_figures_read_well(value, text):
    assert figure(value) == text


def test_every_table_names_runs_that_exist():
    from phast.models import MODELS
    from phast.suite import PRESETS
    from phast.systems import SYSTEMS

    for table in TABLES.values():
        assert set(table.systems) <= set(SYSTEMS) and set(table.models) <= set(MODELS) and table.preset in PRESETS
        assert table.metrics and table.seeds >= 1 and min(table.noise) >= 0.0
