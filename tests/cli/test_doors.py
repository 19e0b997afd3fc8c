"""What is wrong in the words of a command is said in one line before JAX is loaded."""

import io
import json
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest

from phast.dynamics.names import SYSTEM_NAMES
from phast.dynamics.systems import SYSTEMS
from phast.fitting.archives import FORMAT, VERSION, write_archive

FIT = "fit {data} --positions q:angle:deg -o {new}/model.phast"
MISTAKES = {
    "fit {data} --positions theta -o {new}/": "no column 'theta': the columns are t, q",
    "fit {data} --time clock -o {new}/": "no column 'clock'",
    "fit nothing.csv -o {new}/": "no such file",
    "fit rlc -o {new}/": "simulate it first",
    f"{FIT} --potential cos": "did you mean 'cosine'?",
    f"{FIT} --damping sticky": "unknown damping 'sticky'",
    f"{FIT} --mass heavy": "'heavy' is not a number",
    f"{FIT} --port 1,x": "'1,x' is not a number",
    f"{FIT} --context soon": "'soon' is no duration",
    f"{FIT} --window 10 --method gradient": "--window belongs to --method second-order",
    f"{FIT} --learning-rate 0": "--learning-rate belongs to --method gradient",
    f"{FIT} --noise -1": "--noise -1: give a positive number",
    "fit {data} --positions q:angle:deg -o {new}/model.txt": "the ending of a model is .phast",
    f"{FIT} --epochs 3": "--epochs belongs to --method gradient",
    f"{FIT} --method gradient --bound tight": "--bound 'tight': give a number",
    f"{FIT} --json {{data}}/x.json": "is a file",
    "fit {data} --positions q:angle:deg -o {data}/model.phast": "is a file",
    "forecast {new}/ {data}": "no model '{new}': make one with `phast fit DATA.csv -o {new}`",
    "forecast {model} {data} --positions theta": "no column 'theta': the columns are t, q",
    "identify {model} {data} --positions theta": "no column 'theta'",
    "forecast {new}/ {data} -o x.txt": "the ending must be .csv, .parquet or .npz",
    "forecast {new}/ {data} --plot x.xyz": "the ending must be .png",
    "forecast {new}/ {data} --horizon soon": "'soon' is no duration",
    "identify {new}/": "no model '{new}'",
    "identify {new}/ --seed 1": "--seed is for a fit: this model is fitted already",
    "identify {new}/ --potential cosine": "--potential is for a fit",
    "identify {new}/ --start 3": "--start is for a file of positions",
    "identify {data} --potential cos --positions q:angle": "did you mean 'cosine'?",
    "filter {new}/ {data} -o x.xls": "the ending must be .csv",
    "report {new}/ {data} -o x.pdf": "the ending must be .html",
    "export {new}/ -o x.c": "no model '{new}'",
    "export {new}/ -o x.txt": "the ending must be .c or .onnx",
    "export {new}/ -o x.c --format onnx": "a file of format onnx ends in .onnx",
    "export {new}/ -o 9x.c": "'9x' is no name in C",
    "export {new}/ -o {data}/x.c": "is a file",
    "control {new}/ --target q=1 --bandwidth 6": "where do trials start? name a recording after the model",
    "control {new}/ --target q=1 --bandwidth 6 --from q=0": "no model '{new}'",
    "control {new}/ {data} --target q=1 --bandwidth 6": "no model '{new}'",
    "control {new}/ {data} --target 1 --bandwidth 6": "--target '1': give each coordinate once, as in 'x=0.5,theta=0'",
    "control {new}/ {data} --target q=one --bandwidth 6": "--target 'q=one': 'one' is not a number",
    "control {new}/ {data} --target q=nan --bandwidth 6": "--target 'q=nan': give finite numbers",
    "control {new}/ {data} --target q=1,q=2 --bandwidth 6": "give each coordinate once",
    "control {new}/ {data} --target q=1 --bandwidth fast": "--bandwidth 'fast': 'fast' is not a number",
    "control {new}/ {data} --target q=1 --bandwidth -6": "bandwidth -6: give positive numbers",
    "control {new}/ {data} --target q=1 --bandwidth 6 --limits 0": "limits 0: give positive numbers",
    "control {new}/ {data} --target q=1 --bandwidth 6 --within soon": "'soon' is no duration",
    "control {new}/ {data} --target q=1 --bandwidth 6 -o x.txt": "the ending must be .html",
    "control {new}/ {data} --target q=1 --bandwidth 6 --export x.onnx": "the ending must be .c",
    "control {new}/ {data} --target q=1 --bandwidth 6 --export 9x.c": "'9x' is no name in C",
    "control {new}/ --target q=1 --bandwidth 6 --from q=0 --positions q": "--positions is for a file of positions",
    "simulate pendulum-widny -o {new}/x.csv": "did you mean 'pendulum-windy'?",
    "filter {new}/ {data} -o - --json -": "both go to standard output",
    "simulate rlc -o - --json -": "both go to standard output",
    "demo -o {data}": "is a file",
    "fti {data}": "no command 'fti' (did you mean 'fit'?): choose fit, ",
    "paper reprodcue rlc": "did you mean 'reproduce'?",
    "simulate rlc -o x.txt": "the ending must be .csv",
    "fit {data}": "missing option '--output' / '-o': see `",
    "fit {data} -o {new}/ --potental cosine": "--potential",
    f"{FIT} --regime knwon": "'knwon' is not one of 'known', 'partial', 'unknown'",
    f"{FIT} --window 1": "invalid value for '--window'",
    "paper evaluate rcl": "did you mean 'rlc'?",
    "paper suite --system rcl": "did you mean 'rlc'?",
    "paper report -o x.txt": "the ending must be .html",
}
_ALL = """
    import contextlib, io, json, sys
    from phast.cli.main import main

    answers = []
    for words in json.load(sys.stdin):
        sys.argv, said = ["phast", *words.split()], io.StringIO()
        with contextlib.redirect_stderr(said):
            try:
                main()
            except SystemExit as stop:
                answers.append([stop.code, said.getvalue(), "jax" in sys.modules])
    print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("doors") / "swing.csv"
    t = 0.02 * np.arange(100)
    pd.DataFrame({"t": t, "q": 30.0 * np.cos(3.0 * t)}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def model(data):
    """A file that says which columns its model was fitted to, which is all that is read before a mistake is found."""
    header = {"format": FORMAT, "version": VERSION, "about": {"columns": {"positions": "q:angle:deg"}}}
    return write_archive(data.with_name("model.phast"), header, [])


def test_mistakes_are_said_before_jax_is_loaded(data, model, environment, tmp_path):
    """All in one process: each must leave it without JAX for the next, and the disk as it was."""
    places = {"data": data, "model": model, "new": tmp_path / "new"}
    told = json.dumps([words.format(**places) for words in MISTAKES])
    command = [sys.executable, "-c", textwrap.dedent(_ALL)]
    done = subprocess.run(command, input=told, capture_output=True, text=True, env=environment, timeout=100)
    answers = json.loads(done.stdout)
    for (words, said), (code, error, jax) in zip(MISTAKES.items(), answers, strict=True):
        assert (code, len(error.splitlines()), jax) == (2, 1, False), (words, error)
        assert said.format(**places) in error, (words, error)
    assert list(tmp_path.iterdir()) == []


def test_help_loads_no_jax(environment):
    code = "import sys; from phast.cli.main import app; app(standalone_mode=False); assert 'jax' not in sys.modules"
    for words in ([], ["paper"], ["fit"]):
        run = [sys.executable, "-c", code, *words, "--help"]
        done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=100)
        assert done.returncode == 0 and "Usage" in done.stdout, done.stderr


def test_the_names_of_the_systems_are_those_of_the_simulators():
    assert tuple(SYSTEMS) == SYSTEM_NAMES


def test_standard_input_and_output(run, tmp_path, monkeypatch):
    """A simulation goes through a pipe, and no file of it stays behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, table, _ = run("simulate", "spring-mass", "--count", 1, "--length", 20, "-o", "-")
    assert code == 0 and table.splitlines()[0] == "trajectory,t,x,p(x),v(x)" and len(table.splitlines()) == 21
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(table.encode())))
    code, _, error = run("fit", "-", "--positions", "y", "-o", tmp_path / "model.phast")
    assert code == 2 and error.startswith("phast: standard input: no column 'y'"), error
    assert list(tmp_path.iterdir()) == []
