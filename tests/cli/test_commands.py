"""The command line: the main job from end to end, and one clear line for everything that a user can mend.

Most commands run in this process through ``main``, a few in their own. Nothing outside temporary folders is written.
"""

import json
import re
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest

from phast.components.damping import ConstantDamping
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.data.trajectories import load_trajectories
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.checkpoint import load, save
from phast.fitting.networks import known
from phast.paper.models import full_state
from phast.paper.protocol import Split

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture
def process(environment):
    """The same in a process of its own."""

    def call(*arguments):
        command = [sys.executable, "-m", "phast", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return call


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def write_model(path, *, name="theta:angle", dt=0.05):
    model = known(
        manifold=Manifold.parse(name),
        dt=dt,
        potential=Cosine(9.81),
        damping=ConstantDamping(Positive.uninformed()),
        key=jax.random.key(0),
    )
    return save(model, path)


def write_table(path, count=3, length=20, dt=0.05, **columns):
    t = dt * np.arange(length)
    table = {"trajectory": np.repeat(np.arange(count), length), "t": np.tile(t, count)}
    table |= {"theta": np.concatenate([0.1 * (i + 1) * np.cos(3.0 * t) for i in range(count)])} | columns
    pd.DataFrame(table).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with good and bad files, which no command may change."""
    folder = tmp_path_factory.mktemp("files")
    write_model(folder / "model.phast")
    write_table(folder / "data.csv")
    write_table(folder / "long.csv", length=100)
    write_table(folder / "slow.csv", dt=0.1)
    write_table(folder / "short.csv", length=6)
    write_table(folder / "few.csv", count=1, length=50)
    gap = np.arange(60.0)
    gap[25] = np.nan
    write_table(folder / "gap.csv", theta=gap)
    write_table(folder / "words.csv", theta=["a"] * 60)
    pd.DataFrame({"t": 0.05 * np.arange(60), "x": np.zeros(60)}).to_csv(folder / "other.csv", index=False)
    uneven = pd.read_csv(folder / "data.csv")
    uneven.loc[5, "t"] += 0.01
    uneven.to_csv(folder / "uneven.csv", index=False)
    pd.DataFrame({"theta": 0.3 * np.cos(0.15 * np.arange(300))}).to_csv(folder / "untimed.csv", index=False)
    (folder / "garbage.phast").write_bytes(b"PK\x03\x04 nonsense")
    (folder / "cut.phast").write_bytes((folder / "model.phast").read_bytes()[:-30])
    (folder / "garbage.csv").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "garbage.parquet").write_bytes(b"PAR1 nonsense")
    (folder / "garbage.npz").write_bytes(b"nonsense")
    (folder / "empty.csv").write_bytes(b"")
    save(full_state(load(folder / "model.phast")), folder / "core.phast")
    with jax.enable_x64(True):
        write_model(folder / "double.phast")
    return folder


# --- the main job ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def windy(tmp_path_factory):
    return tmp_path_factory.mktemp("windy") / "windy.csv"


@pytest.fixture
def simulated(run, windy):
    """Windy pendulums, simulated by the command itself, once."""
    if not windy.exists():
        code, out, err = run("simulate", "pendulum-windy", "-o", windy, "--count", 10, "--length", 112)
        assert code == 0 and err == "" and "10 trajectories of pendulum-windy, 112 samples each, dt = 0.05" in out
    return windy


def test_from_simulation_to_forecast(run, simulated, tmp_path):
    data = load_trajectories(simulated)
    assert data.q.shape == (10, 112, 1) and data.dt == pytest.approx(0.05) and data.manifold.circles == (True,)

    model = tmp_path / "new" / "model.phast"
    words = ("fit", simulated, "-o", model, "--positions", "theta:angle", "--regime", "partial", "--method", "gradient")
    code, out, err = run(*words, "--potential", "cosine:9.81", "--bound", 0.5, "--epochs", 2)
    assert code == 0 and "training (2/2, loss" in err and "13,737 coefficients" in out
    assert [p.name for p in model.parent.iterdir()] == ["model.phast"]  # nothing unfinished is left
    assert load(model).core.system.damping.bound == 0.25

    future, figure, numbers = (tmp_path / name for name in ("future.csv", "future.png", "future.json"))
    code, out, err = run(
        "forecast", model, simulated, "--from", "start", "-o", future, "--horizon", 30, "--plot", figure,
        "--json", numbers,
    )  # fmt: skip
    assert (code, err) == (0, "") and "mean squared error over 30 steps" in out
    table = load_trajectories(future)
    assert table.q.shape == (10, 30, 1) and table.manifold.circles == (True,)
    assert figure.read_bytes().startswith(b"\x89PNG")
    summary = json.loads(numbers.read_text())
    assert summary["trajectories"] == 10 and summary["steps_compared"] == 30 and summary["mode"] == "autoregressive"
    error = (table.q - data.q[:, 10:40] + np.pi) % (2 * np.pi) - np.pi
    assert summary["mse"] == pytest.approx(np.mean(error**2), rel=1e-3)
    assert summary["rms_final"] == pytest.approx(np.sqrt(np.mean(error[:, -1] ** 2)), rel=1e-3)

    states = tmp_path / "states.npz"
    code, out, err = run("filter", model, simulated, "-o", states, "--noise", 0.01)
    assert (code, err) == (0, "") and "rms surprise per measurement" in out
    assert load_trajectories(states).p.shape == (10, 112, 1)


def test_the_same_to_second_order(run, simulated, tmp_path, monkeypatch):
    monkeypatch.setattr("phast.fitting.free_fields._ALONG", {1: (8, 8)})
    model, future = tmp_path / "model.phast", tmp_path / "future.csv"
    words = ("fit", simulated, "-o", model, "--positions", "theta:angle", "--regime", "partial")
    code, out, err = run(*words, "--potential", "cosine:9.81", "--passive")
    assert code == 0 and "17 coefficients" in out and err.splitlines()[-1].endswith("fitted (4/4)")
    code, out, err = run("forecast", model, simulated, "--from", "start", "-o", future, "--horizon", 30)
    assert (code, err) == (0, "")
    data, found = load_trajectories(simulated), load_trajectories(future)
    assert np.median(np.abs(found.q - data.q[:, 10:40])) < 1e-2
    code, out, err = run("forecast", model, simulated, "-o", future, "--horizon", 30, "--adapt", "friction")
    assert code == 2 and "no coefficient 'friction': it has potential[0].scale" in err
    states = tmp_path / "states.npz"
    code, out, err = run("filter", model, simulated, "-o", states)
    assert (code, err) == (0, "") and float(out.splitlines()[1].rpartition(": ")[2]) < 5e-2
    assert load_trajectories(states).p.shape == (10, 112, 1)


def test_a_model_is_there_before_its_spread_is_judged(run, simulated, tmp_path, monkeypatch):
    def interrupted(model, data, *, seed):
        raise KeyboardInterrupt

    monkeypatch.setattr("phast.fitting.second_order.calibrated", interrupted)
    words = ("--positions", "theta:angle", "--potential", "cosine", "--damping", "viscous", "--regime", "known")
    code, _, _ = run("fit", simulated, *words, "--window", 10, "-o", tmp_path / "swing", "--quiet")
    with jax.enable_x64(True):
        assert code == 130 and isinstance(load(tmp_path / "swing" / "model.phast"), ModelAware)


def test_a_context_that_the_model_cannot_explain_is_said(run, simulated, tmp_path, monkeypatch):
    """A pendulum that stands still at one radian: the forecast starts from a smoothed state, and a line says so."""
    held = write_table(tmp_path / "held.csv", count=1, theta=np.full(20, 1.0))
    model = tmp_path / "m.phast"
    with jax.enable_x64(True):
        core = known(
            manifold=Manifold.parse("theta:angle"), dt=0.05, potential=Cosine(9.81),
            damping=ConstantDamping(Positive.uninformed()), key=jax.random.key(0),
        ).core  # fmt: skip
        save(ModelAware(core, Manifold.parse("theta:angle"), 0.05), model)
    code, _, err = run("forecast", model, held, "--horizon", 5, "-o", tmp_path / "x.csv")
    assert code == 0 and len(err.splitlines()) == 1 and "warning: the model cannot explain the context" in err
    assert np.isfinite(load_trajectories(tmp_path / "x.csv").q).all()


def test_a_forecast_beyond_the_data(run, files, tmp_path):
    code, out, err = run(
        "forecast", files / "model.phast", files / "data.csv", "--context", 20, "--horizon", 5, "--mode", "takeover",
        "--json", tmp_path / "x.json", "-o", tmp_path / "x.parquet",
    )  # fmt: skip
    assert (code, err) == (0, "") and "5 steps" in out
    assert json.loads((tmp_path / "x.json").read_text())["steps_compared"] == 0
    assert load_trajectories(tmp_path / "x.parquet").q.shape == (3, 5, 1)


def test_evaluate_writes_records(run, simulated, tmp_path, monkeypatch):
    data = load_trajectories(simulated)
    small = Split(data.subset(slice(0, 6)), data.subset(slice(6, 8)), data.subset(slice(8, None)))
    monkeypatch.setattr("phast.paper.experiments.benchmark_split", lambda system, **_: small)
    file = tmp_path / "records.json"
    code, out, err = run("paper", "evaluate", "pendulum-windy", "--epochs", 1, "--model", "phast-known", "--json", file)
    assert code == 0 and "Traceback" not in err
    (record,) = json.loads(file.read_text())
    keys = {"system", "model", "preset", "seed", "noise", "parameters", "metrics", "seconds", "versions", "commit"}
    assert keys <= set(record)
    assert (record["system"], record["model"], record["seed"]) == ("pendulum-windy", "phast-known", 0)
    assert record["parameters"] == 3364 and record["noise"] == 0.0 and record["preset"].startswith("paper")
    assert set(record["seconds"]) == {"compile", "train", "evaluate"}
    paper = {"theta_wrap_mse", "damping_r2", "damping_mae", "floor", "next_step_after_burn_in"}
    paper |= {f"rollout_theta_wrap_mse_h{h}{s}" for h in (10, 50, 100) for s in ("", "_median")}
    paper |= {f"rollout_takeover_theta_wrap_mse_h{h}" for h in (10, 50, 100)}
    paper |= {f"rollout_energy_budget_resid_h{h}" for h in (10, 50, 100)}
    paper |= {f"rollout_passivity_violations_h{h}" for h in (10, 50, 100)}
    assert paper <= set(record["metrics"]) and all(np.isfinite(list(record["metrics"].values())))
    assert {"phast", "jax", "python"} <= set(record["versions"])
    assert "0.106" in out and "damping_r2" in out  # the published number stands beside ours


def test_systems_and_models(process, run, tmp_path):
    code, out, err = process("systems", "--json", tmp_path / "systems.json")
    assert (code, err) == (0, "")
    rows = json.loads((tmp_path / "systems.json").read_text())
    assert len(rows) == 18 and sum(row["benchmark"] for row in rows) == 13
    assert all(row["name"] in out for row in rows)
    assert {"name": "cartpole-windy", "coordinates": ["x", "theta:angle"]}.items() <= rows[3].items()
    code, out, err = run("paper", "models", "--json", tmp_path / "models.json")
    assert (code, err) == (0, "")
    counts = {row["name"]: row["parameters"] for row in json.loads((tmp_path / "models.json").read_text())}
    assert counts["phast-known"] == 3364 and counts["phast-partial"] == 13_736 and counts["phast-unknown"] == 13_738


def test_double_precision_files(run, process, files, tmp_path):
    words = ("forecast", files / "double.phast", files / "data.csv", "--horizon", 5)
    code, _, err = process(*words, "-o", tmp_path / "x.npz")
    assert (code, err) == (0, "")
    q = load_trajectories(tmp_path / "x.npz").q
    assert np.all(q != q.astype(np.float32))


def test_a_reader_that_leaves_early_is_no_error(environment):
    command = f"{sys.executable} -m phast systems | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=environment)
    assert done.stderr == ""


# --- mistakes --------------------------------------------------------------------------------------------------------

FIT = ("--positions", "theta:angle", "--method", "gradient", "--epochs", "1", "-o", "{new}/m.phast")
MODEL = "{files}/model.phast"
DATA = "{files}/data.csv"
LONG = "{files}/long.csv"

MISTAKES = {
    "unknown system": ("simulate pendulum-widny -o {new}/x.csv", "did you mean 'pendulum-windy'"),
    "unknown system to count": ("paper models --on rcl", "did you mean 'rlc'"),
    "unknown model": ("paper evaluate rlc --model phast-partail", "did you mean 'phast-partial'"),
    "no model": ("paper evaluate rlc --model , --epochs 1", "names no model"),
    "unknown preset": ("paper evaluate rlc --preset best", "unknown preset 'best'"),
    "zero dt": ("simulate rlc -o {new}/x.csv --dt 0", "dt must be a positive number"),
    "negative dt": ("simulate rlc -o {new}/x.csv --dt -0.1", "dt must be a positive number"),
    "no dt at all": ("simulate rlc -o {new}/x.csv --dt nan", "dt must be a positive number"),
    "negative dt to fit": (("fit", "{files}/untimed.csv", *FIT, "--dt", "-1"), "dt must be a positive number"),
    "no times": (("fit", "{files}/untimed.csv", *FIT), "dt"),
    "unknown ending": ("simulate rlc -o {new}/x.txt", r"\.csv, \.parquet or \.npz"),
    "gap": (("fit", "{files}/gap.csv", *FIT), "gap.csv.*theta.*blank in line 27.*split"),
    "gap in a context": (f"forecast {MODEL} {{files}}/gap.csv", "blank in line 27"),
    "words": (("fit", "{files}/words.csv", *FIT), "must hold numbers"),
    "uneven times": (("fit", "{files}/uneven.csv", *FIT, "--quiet"), "needs even steps"),
    "too little": (("fit", "{files}/few.csv", *FIT), "too few"),
    "short": (f"forecast {MODEL} {{files}}/short.csv", "too short"),
    "other columns": (("fit", "{files}/other.csv", *FIT), "no column 'theta'"),
    "other coordinates": (f"forecast {MODEL} {{files}}/other.csv", "no column 'theta'"),
    "other sampling": (f"forecast {MODEL} {{files}}/slow.csv", "sampled every 0.1, but the model was trained at 0.05"),
    "a kind of coordinate": (f"fit {DATA} --positions theta:circle -o {{new}}/m.phast", "circle"),
    "garbage for a model": (f"forecast {{files}}/garbage.phast {DATA}", "not a readable phast-model file"),
    "half a model": (f"forecast {{files}}/cut.phast {DATA}", "not a readable phast-model file"),
    "a table for a model": (f"forecast {DATA} {DATA}", "not a readable phast-model file"),
    "another kind of model": (f"forecast {{files}}/core.phast {DATA}", "holds a Core"),
    "no model file": (f"forecast {{files}}/nothing.phast {DATA}", "no model .*nothing.phast"),
    "a folder for a model": (f"forecast {{folder}} {DATA}", "no model .*folder"),
    "no data file": (f"forecast {MODEL} {{files}}/nothing.csv", "no such file"),
    "no data file to fit": (("fit", "{files}/nothing.csv", *FIT), "no such file"),
    "no data file to filter": (f"filter {MODEL} {{files}}/nothing.csv -o {{new}}/x.csv", "no such file"),
    "garbage for a table": (("fit", "{files}/garbage.csv", *FIT), "garbage.csv"),
    "garbage for parquet": (("fit", "{files}/garbage.parquet", *FIT), "garbage.parquet"),
    "garbage for npz": (("fit", "{files}/garbage.npz", *FIT), "garbage.npz"),
    "an empty table": (("fit", "{files}/empty.csv", *FIT), "empty.csv"),
    "a model for a table": (("fit", MODEL, *FIT), "ending"),
    "partial without a template": (("fit", LONG, *FIT, "--regime", "partial"), "potential"),
    "an unknown template": (
        ("fit", LONG, *FIT, "--regime", "partial", "--potential", "spring:1"),
        "unknown potential 'spring:1'",
    ),
    "a template without number": (
        ("fit", LONG, *FIT, "--regime", "partial", "--potential", "cosine:x"),
        "not a number",
    ),
    "a template of nan": (("fit", LONG, *FIT, "--regime", "partial", "--potential", "cosine:nan"), "finite"),
    "a template of inf": (("fit", LONG, *FIT, "--regime", "partial", "--potential", "cosine:inf"), "finite"),
    "a passive fit by gradient": (("fit", LONG, *FIT, "--passive"), "--passive belongs to --method second-order"),
    "a bound in words": (("fit", LONG, *FIT, "--bound", "small"), "'validated'"),
    "a fit of too little": (
        ("fit", "{files}/few.csv", "--positions", "theta:angle", "--regime", "unknown", "-o", "{new}/m"),
        "positions are too few for 96 coefficients",
    ),
    "a model that cannot adapt": (("forecast", MODEL, DATA, "--adapt", "damping"), "fit with method=SecondOrder"),
    "a negative bound": (("fit", LONG, *FIT, "--bound", "-1"), "bound"),
    "a negative learning rate": (
        ("fit", LONG, *FIT, "--learning-rate", "-1"),
        "--learning-rate -1: give a positive number",
    ),
    "no noise to filter": (f"filter {MODEL} {DATA} -o {{new}}/x.csv --noise 0", "positive"),
    "an unknown table": ("paper reproduce nothing", "nothing"),
    "output below a file": (f"filter {MODEL} {DATA} -o {DATA}/x.csv", "cannot write"),
    "model below a file": (("fit", LONG, *FIT[:-1], f"{DATA}/m.phast"), "cannot write"),
    "numbers below a file": (f"systems --json {DATA}/x.json", "cannot write"),
    "output onto a folder": (f"forecast {MODEL} {DATA} --horizon 5 --json {{folder}}", "cannot write .* folder"),
    "a figure of no known kind": (f"forecast {MODEL} {DATA} --horizon 5 --plot {{new}}/x.xyz", "xyz"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(run, files, tmp_path, words, message):
    """Exit code 2, one line that says what is wrong, and not a byte written or lost."""
    (tmp_path / "folder").mkdir()
    places = {"files": files, "new": tmp_path / "new", "folder": tmp_path / "folder"}
    before = contents(files)
    words = words.split() if isinstance(words, str) else words
    code, _, err = run(*(word.format(**places) for word in words))
    assert code == 2, err
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("phast: "), err
    assert re.search(message, lines[0]), lines[0]
    assert contents(files) == before
    left = [name for name, content in contents(tmp_path).items() if content is not None]
    assert left == []


def test_mistakes_in_a_process_of_their_own(process, files, tmp_path):
    code, out, err = process("simulate", "pendulum-widny", "-o", tmp_path / "x.csv")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and "pendulum-windy" in err
    code, out, err = process("forecast", files / "garbage.phast", files / "data.csv")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["simulate rlc -o x.csv --count 0", "systems --nothing", "fit"])
def test_what_typer_refuses(run, words):
    code, _, err = run(*words.split())
    assert code == 2 and err and "Traceback" not in err


def test_divergence_is_one_line_too(run, files, tmp_path):
    """Not bad input, so another code: the run itself failed."""
    code, _, err = run(
        "fit", files / "untimed.csv", "--dt", 0.05, "--positions", "theta:angle", "-o", tmp_path / "m.phast",
        "--method", "gradient", "--epochs", 3, "--learning-rate", 1e30,
    )  # fmt: skip
    assert code == 1 and "lower the learning rate" in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "m.phast").exists()


def test_an_interrupted_fit_goes_on(run, files, tmp_path, monkeypatch):
    """Ctrl-C leaves the unfinished run; the same words finish it, and other words do not touch it."""
    import phast.fitting.training

    store, epochs = phast.fitting.training._store, []

    def store_and_stop(*arguments):
        store(*arguments)
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt

    words = ("fit", files / "untimed.csv", "--dt", 0.05, "--positions", "theta:angle", "--method", "gradient")
    words = (*words, "-o", tmp_path / "m.phast")
    with monkeypatch.context() as patch:
        patch.setattr(phast.fitting.training, "_store", store_and_stop)
        code, _, err = run(*words, "--epochs", 3)
    assert code == 130 and "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["m.phast.unfinished"]
    code, _, err = run(*words, "--epochs", 4)
    assert code == 2 and "delete it or choose another file" in err
    code, out, _ = run(*words, "--epochs", 3)
    assert code == 0 and "coefficients" in out
    assert [p.name for p in tmp_path.iterdir()] == ["m.phast"]


def test_help_is_quick_and_complete(environment):
    """Nothing heavy is imported until a command needs it."""
    script = (
        "import sys; import phast.cli.main; print([m for m in ('jax', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout == "[]\n", done.stderr
