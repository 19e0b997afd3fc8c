"""``phast paper bench``."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import phast
from phast import paper
from phast.cli.console import JsonSink, check_figure
from phast.cli.options import Shown
from phast.data.files import check_writable
from phast.errors import InputError
from phast.paper.cli.runs import listed

PANEL = "Measurements"
EXAMPLE = "phast paper bench peers --system pendulum-windy --noise 0,0.01"


def command(
    shown: Shown,
    section: Annotated[
        list[str] | None,
        typer.Argument(help="train, rollout, seeds, primitives, startup, export, mpc; all by default. Or: peers."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's timing figure into this file.")] = None,
    results: Annotated[Path, typer.Option(help="peers: folder of records.")] = Path("results"),
    system_names: Annotated[str | None, typer.Option("--system", help="peers: systems, separated by commas.")] = None,
    model: Annotated[str | None, typer.Option(help="peers: tools, separated by commas.")] = None,
    noise: Annotated[str | None, typer.Option(help="peers: noise levels, separated by commas.")] = None,
) -> None:
    """Measure speed, as ratios to a plain PyTorch implementation in the same run (extra: bench).

    ``phast paper bench peers`` fits the tools that one would pick instead to the same data as ours (extra: peers).
    """
    check_figure(plot)
    if section == ["peers"]:
        _bench_peers(results, system_names, model, noise, shown)
        return
    if "peers" in (section or []) or system_names or model or noise:
        raise InputError("peers is a bench of its own, and --system, --model and --noise belong to it")
    speed_benchmarks().run_bench(section or None, json_path=shown.json_file, plot=plot)


def speed_benchmarks() -> ModuleType:
    """The benchmarks of speed, which lie beside the package."""
    path = Path(phast.__file__).parents[1] / "benchmarks" / "speed.py"
    if not path.is_file():
        raise InputError("the benchmarks of speed lie in the repository, beside the package: run this in a clone of it")
    spec = importlib.util.spec_from_file_location("phast_speed_benchmarks", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def _bench_peers(results: Path, system_names: str | None, model: str | None, noise: str | None, shown: Shown) -> None:
    peers = paper.peers
    chosen = [phast.system(name) for name in listed(system_names, peers.COMPARED)]
    names = listed(model, peers.PEERS)
    for name in names:
        peers.peer(name)  # a wrong name is said before anything is fitted
    noises = list(peers.NOISES) if noise is None else _numbers(noise)
    check_writable(results)
    with paper.experiments.precision(True):
        records = peers.compare_tools(
            results,
            chosen,
            names,
            noises,
            tell=lambda line: None if shown.quiet else print(line, file=sys.stderr, flush=True),
        )
    shown.text(paper.catalogue.table_named("peers").sheet(records).text())
    JsonSink(shown.json_file).write(records)


def _numbers(text: str) -> list[float]:
    try:
        return [float(level) for level in listed(text, ())]
    except ValueError:
        raise InputError(f"--noise '{text}': give numbers separated by commas, e.g. 0,0.01") from None
