"""The study of gauge freedom: what its rows are made of, what is measured of them, and the verdicts of its table."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import ConstantDamping
from phast.components.mass import DoublePendulumMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.fitting.losses import Batch, ResidualLoss
from phast.fitting.training import Settings
from phast.paper import experiments, gauge_picture
from phast.paper.catalogue import TABLES
from phast.paper.experiments import Experiment, ResidualPreset
from phast.paper.gauge import AnchoredMass, gauge_builder, observed, recovered
from phast.paper.gauge_picture import PicturedModel
from phast.paper.gauge_table import IDENTIFIABLE, NOT_IDENTIFIABLE, UP_TO_A_FACTOR, verdict
from phast.paper.protocol import Split
from phast.paper.tables import published

LINKS = system("double-pendulum-conservative")
ROWS = [row for name in ("gauge-freedom", "gauge-anchors") for row in TABLES[name].rows]


def scaled(c: float) -> PortHamiltonian:
    """The truth, M and V multiplied by c."""
    mass = DoublePendulumMass(Positive.starting_at(c), Positive.starting_at(c))
    return PortHamiltonian(Cosine(Positive.starting_at((19.62 * c, 9.81 * c))), mass, ConstantDamping(0.0))


@pytest.fixture(scope="module")
def data():
    return simulate(LINKS, 4, length=20, seed=2)


@pytest.mark.usefixtures("float64", "quick_compile")
def test_a_common_factor_is_measured_and_nothing_else_is_off(data):
    seen = observed(data, LINKS.port_hamiltonian)
    assert seen.q.shape == (80, 1, 2)
    told = {name: float(value) for name, value in recovered(scaled(0.3), LINKS.port_hamiltonian, seen).items()}
    assert told["factor"] == pytest.approx(0.3, rel=1e-12)
    assert told["mass_error"] == pytest.approx(0.7 * told["mass_size"], rel=1e-12)
    assert told["force_error"] == pytest.approx(0.7 * told["force_size"], rel=1e-12)
    assert max(told[f"{x}_error_rescaled"] for x in ("mass", "force")) < 1e-12
    assert told["acceleration_error"] < 1e-12 and told["residual"] < 1e-12


@pytest.mark.usefixtures("float64", "quick_compile")
def test_the_loss_is_the_paper_s_and_falls_with_the_square_of_the_factor(data):
    seen = observed(data, LINKS.port_hamiltonian)
    loss, one = ResidualLoss(), jax.tree.map(lambda x: x[3], seen)
    wrong = one._replace(a=one.a + jnp.array([0.5, -1.0]))
    pushed = LINKS.port_hamiltonian.momentum(one.q[0], jnp.array([0.5, -1.0]))
    assert loss(scaled(1.0), one, None) < 1e-20
    assert float(loss(scaled(1.0), wrong, None)) == pytest.approx(float(pushed @ pushed), rel=1e-9)
    assert float(loss(scaled(0.1), wrong, None)) == pytest.approx(0.01 * float(pushed @ pushed), rel=1e-9)
    with pytest.raises(InputError, match="velocities and accelerations"):
        loss(scaled(1.0), Batch(one.q), None)


@pytest.mark.usefixtures("quick_compile")
def test_sparsity_is_the_weight_of_coefficients_and_selects_nothing(data):
    one = jax.tree.map(lambda x: x[0], observed(data, LINKS.port_hamiltonian))
    model = gauge_builder("known-mass")(LINKS, potential="sparse", key=jax.random.key(0))
    model = eqx.tree_at(lambda m: m.potential.coefficients, model, replace_fn=lambda c: c.at[:2].set([3.0, -4.0]))
    plain, sparse = ResidualLoss(), ResidualLoss(sparsity=0.5)
    assert float(sparse(model, one, None) - plain(model, one, None)) == pytest.approx(3.5, rel=1e-4)
    assert sparse.selection(model, one) == plain.selection(model, one)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_a_row_learns_is_not_begun_at_the_truth(row):
    """But for the rows that say so; and what an anchor gives is there from the start."""
    build, variation = gauge_builder(row.experiment.model), dict(row.experiment.variation)
    model = build(LINKS, key=jax.random.key(0), **variation)
    q, truth = jnp.array([0.7, -0.4]), LINKS.port_hamiltonian
    mass, force = model.mass.operator(q).dense(), jax.grad(model.potential)(q)
    off_mass = float(jnp.abs(mass - truth.mass.operator(q).dense()).max())
    off_force = float(jnp.abs(force - jax.grad(truth.potential)(q)).max())
    assert (off_mass > 0.3) == (row.experiment.model != "known-mass")
    assert (off_force > 1.0) == (variation["potential"] not in ("known", "structured-from-truth"))
    assert isinstance(model.mass, AnchoredMass) == variation.get("anchored", False)
    assert not variation.get("anchored") or float(mass[1, 1]) == pytest.approx(1.0, rel=1e-6)


def test_models_of_the_study_are_named():
    with pytest.raises(InputError, match="unknown model 'gru' of the gauge study: choose one of cholesky-mass"):
        gauge_builder("gru")
    springs = system("oscillator-conservative")
    with pytest.raises(InputError, match="has another potential"):
        gauge_builder("known-mass")(springs, potential="structured-from-truth", key=jax.random.key(0))


@pytest.mark.usefixtures("quick_compile")
def test_a_run_leaves_a_record_and_moves_towards_the_truth(data, monkeypatch):
    few = ResidualPreset(Settings(epochs=6, batch_size=8, learning_rate=0.03, validate_every=2))
    monkeypatch.setitem(experiments.PRESETS, "few", few)
    told = Experiment(LINKS.name, "known-mass", "few", variation=(("potential", "structured"),))
    split = Split(data, data, data)
    (outcome,) = experiments.run(told, data=split)
    start = gauge_builder("known-mass")(LINKS, potential="structured", key=jax.random.key(0))
    before = recovered(start, LINKS.port_hamiltonian, observed(data, LINKS.port_hamiltonian))
    assert outcome.record["metrics"]["force_error"] < 0.7 * float(before["force_error"])
    assert outcome.record["parameters"] == 2 and outcome.record["variation"] == {"potential": "structured"}
    with pytest.raises(InputError, match="noise on positions makes no sense"):
        list(experiments.run(dataclasses.replace(told, noise=0.1), data=split))


# --- the table -------------------------------------------------------------------------------------------------------

SIZES = {"mass": 2.4, "force": 8.9}


def test_the_published_numbers_give_the_published_verdicts_by_our_rule():
    for row in published()["gauge-freedom"].values():
        errors = {kind: row[f"{kind}_error"] for kind in SIZES if f"{kind}_error" in row}
        assert verdict(errors, SIZES) == row["verdict"]


@pytest.mark.parametrize(
    "errors, rescaled, said",
    [
        ((0.1, 0.1), (0.1, 0.1), IDENTIFIABLE),
        ((2.3, 8.0), (0.1, 0.1), UP_TO_A_FACTOR),
        ((0.1, 8.0), (0.1, 5.0), NOT_IDENTIFIABLE),
        ((2.3, 8.0), (0.1, 5.0), NOT_IDENTIFIABLE),
    ],
)
def test_a_verdict_needs_both_fields(errors, rescaled, said):
    errors, rescaled = (dict(zip(SIZES, each, strict=True)) for each in (errors, rescaled))
    assert verdict(errors, SIZES, rescaled) == said


def record(row, seed, **metrics):
    whole = {"mass_error": 2.3, "force_error": 8.0, "factor": 0.05, "mass_error_rescaled": 0.01}
    whole |= {"force_error_rescaled": 0.1, "mass_size": 2.4, "force_size": 8.9, "acceleration_error": 0.013}
    chosen = row.experiment
    about = {"system": chosen.system, "model": chosen.model, "preset": chosen.preset, "noise": 0.0}
    return about | {"seed": seed, "variation": dict(chosen.variation), "metrics": whole | metrics}


def test_rows_stand_beside_the_published_ones_in_the_order_of_the_table():
    table = TABLES["gauge-freedom"]
    rows = {row.name: row for row in table.rows}
    structured, known = rows["structured V, Cholesky"], rows["known V, Cholesky"]
    made = table.sheet([record(structured, 0), record(structured, 1, factor=0.07), record(known, 0, mass_error=0.01)])
    assert [line[0] for line in made.lines[:2]] == ["known V, Cholesky", "structured V, Cholesky"]
    first, second, nothing = (dict(zip(made.heading, line, strict=True)) for line in made.lines)
    assert (nothing["FrobErr_M"], nothing["MAE_∇V"], nothing["common factor"]) == ("2.4", "8.9", "0")
    assert first["MAE_∇V"] == "given" and first["common factor"] == "" and first["verdict"] == IDENTIFIABLE
    assert second["common factor"] == "0.06 ± 0.01414" and second["off in q''"] == "1.3%" and second["seeds"] == "2"
    assert (second["verdict"], second["paper's"]) == (UP_TO_A_FACTOR, "identifiable")
    assert made.data[1]["published"]["mass_error"] == 0.035


def test_a_run_that_diverged_is_not_identifiable():
    row = TABLES["gauge-freedom"].rows[0]
    line, _ = TABLES["gauge-freedom"].sheet([record(row, 0, mass_error=None)]).lines
    assert "diverged" in line and NOT_IDENTIFIABLE in line


# --- the picture -----------------------------------------------------------------------------------------------------


def test_the_picture_shows_every_model_in_every_panel():
    angles = np.linspace(-3.0, 3.0, 11)

    def shown(c):
        return PicturedModel(2.0 * c, np.sin(np.arange(20.0)), c * np.sin(angles), c * (0.6 + np.abs(np.sin(angles))))

    found = {"truth": shown(1.0), "half": shown(0.5)}
    heading, rows = gauge_picture.comparison(found)
    assert rows[1] == ["half", "1", "0", "0.5"] and len(heading) == 4
    drawn = gauge_picture.gauge_figure(found, angles)
    assert [[line.get_label() for line in ax.lines] for ax in drawn.axes] == [["truth (M = 2)", "half"]] * 3
