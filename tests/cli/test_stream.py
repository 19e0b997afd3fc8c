"""``phast filter MODEL -``: each line is answered as it comes."""

import io
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from doubles import wrapped

from phast.components.damping import ConstantDamping
from phast.components.mass import ConstantMass
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import ModelAware

pytestmark = pytest.mark.usefixtures("quick_compile")

DT = 0.05
T = DT * np.arange(40)
LINES = ["t,theta:angle", *(f"{t:.12g},{x:.12g}" for t, x in zip(T, np.cos(3.0 * T), strict=True))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pendulum = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.4))
    core, theta = Core(pendulum, RungeKutta(Timestep(DT, 2))), Manifold.parse("theta:angle")
    return wrapped(ModelAware(core, theta, DT, 5, 0.01)).save(tmp_path_factory.mktemp("model") / "model.phast")


@pytest.fixture
def filtered(run, model, monkeypatch):
    """``filtered(lines, *options)`` in this process, its lines through a pipe."""

    def call(lines, *options):
        content = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return run("filter", model, "-", *options)

    return call


def test_a_stream_has_the_numbers_of_the_batch_command(filtered, run, model, tmp_path):
    (tmp_path / "swing.csv").write_text("\n".join(LINES))
    code, out, err = filtered(LINES)
    assert code == 0 and err == ""
    stream, batch = (pd.read_csv(io.StringIO(x)) for x in (out, run("filter", model, tmp_path / "swing.csv")[1]))
    assert list(stream)[: len(batch.columns)] == list(batch)
    assert list(stream)[-2:] == ["deviation(theta)", "deviation(p(theta))"] and stream.iloc[:, -2:].gt(0.0).all(
        axis=None
    )
    np.testing.assert_allclose(stream[batch.columns], batch, rtol=1e-5, atol=1e-5)  # single precision


def test_each_line_is_answered_before_the_next_and_a_broken_one_ends_the_stream(model, environment):
    """Through a real pipe; what was answered stays whole."""
    command = [sys.executable, "-m", "phast", "filter", str(model), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, env=environment, **pipes) as process:
        watchdog = threading.Timer(120.0, process.kill)
        watchdog.start()
        process.stdin.write(LINES[0] + "\n" + LINES[1] + "\n")
        assert process.stdout.readline().startswith("trajectory,t,theta:angle,p(theta),deviation")
        answers = [process.stdout.readline()]
        for line in LINES[2:6]:
            process.stdin.write(line + "\n")
            answers.append(process.stdout.readline())
        process.stdin.write("0.25,oops\n")
        rest, said = process.communicate()
        watchdog.cancel()
    assert process.returncode == 2 and rest == ""
    assert said == (
        "phast: standard input: column 'theta' must hold numbers, got 'oops' in line 7: correct or drop it\n"
    )
    assert [float(x.split(",")[1]) for x in answers] == pytest.approx(T[:5])
    assert all(x.endswith("\n") and len(x.split(",")) == 6 for x in answers)


def test_a_reader_that_goes_away_ends_the_stream_without_a_word(model, environment):
    command = [sys.executable, "-m", "phast", "filter", str(model), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, **pipes)
    process.stdout.close()
    _, said = process.communicate("\n".join(LINES).encode(), timeout=120)
    assert process.returncode == 1 and said == b""


def test_gaps_and_runs_start_again_and_are_named_as_in_a_file(filtered):
    lines = ["run,t,theta:angle", "a,0,0.1", "a,0.05,0.12", "a,5,1", "a,5.05,1.01", "b,0,0.3", "b,0.05,0.31"]
    code, out, err = filtered(lines, "--trajectory", "run")
    table = pd.read_csv(io.StringIO(out))
    assert code == 0 and list(table["trajectory"]) == ["a", "a", "a part 2", "a part 2", "b", "b"]
    np.testing.assert_allclose(table["p(theta)"][[0, 2, 4]], 0.0, atol=1e-6)
    assert err == "note: a gap before line 4: the filter starts again\n"


def test_a_stream_is_cut_by_time_and_its_surprise_is_written(filtered, tmp_path):
    code, out, _ = filtered(LINES, "--start", "0.4", "--stop", "0.6", "--json", tmp_path / "numbers.json")
    assert code == 0 and len(out.splitlines()) == 5
    assert "surprise" in (tmp_path / "numbers.json").read_text()


MISTAKES = {
    "another coordinate": (["t,x", "0,1", "1,2"], (), "no column 'theta'"),
    "time that goes back": ([*LINES[:4], "0,1"], (), "line 5: time goes from 0.1 to 0"),
    "another rate": ([LINES[0], *(f"{5 * t},{t}" for t in T)], ("--quiet",), "resample it"),
    "two tables in one stream": (LINES, ("--json", "-"), "both go to standard output"),
    "process noise": (LINES, ("--process-noise", "0.1"), "trusts its physics"),
    "inputs": (["t,theta:angle,u(1),u(2)", "0,1,0,0", "1,2,0,0"], (), "2 inputs, but the model 1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(filtered, mistake):
    lines, options, said = MISTAKES[mistake]
    code, _, err = filtered(lines, *options)
    assert code == 2 and len(err.splitlines()) == 1 and said in err, err
