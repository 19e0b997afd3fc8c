"""The command line. Heavy imports wait until a command needs them, so that ``phast --help`` answers at once."""

import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phast.errors import InputError
from phast.files import cache_directory, write_atomically

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from phast.components.potential import AbstractPotential
    from phast.training import History

app = typer.Typer(
    name="phast",
    help="Learn port-Hamiltonian models from positions alone: forecast the system, recover its physics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to FILE.")]
Float64 = Annotated[bool, typer.Option("--float64", help="Compute in double precision.")]


def main() -> None:
    """Run the command line: bad input is one line on standard error and exit code 2."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_directory() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    warnings.showwarning = _warn
    try:
        app()
    except InputError as error:
        print(f"phast: {error}", file=sys.stderr)
        sys.exit(2)
    except FloatingPointError as error:
        print(f"phast: {error}", file=sys.stderr)
        sys.exit(1)


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning is one line too."""
    print(f"phast: warning: {message}", file=sys.stderr)


# --- looking around --------------------------------------------------------------------------------------------------


@app.command()
def systems(json_file: JsonFile = None) -> None:
    """List the systems that can be simulated: domain, coordinates, regime."""
    from phast.systems import SYSTEMS

    rows = [
        {
            "name": s.name,
            "domain": s.domain,
            "coordinates": [
                f"{n}:angle" if c else n for n, c in zip(s.manifold.names, s.manifold.circles, strict=True)
            ],
            "regime": s.regime,
            "dt": s.dt,
            "benchmark": s.benchmark,
        }
        for s in SYSTEMS.values()
    ]
    _print_table(
        ["system", "domain", "coordinates", "regime", "dt", "benchmark"],
        [
            [
                r["name"],
                r["domain"],
                ", ".join(r["coordinates"]),
                r["regime"],
                f"{r['dt']:g}",
                "yes" if r["benchmark"] else "",
            ]
            for r in rows
        ],
    )
    _write_json(json_file, rows)


@app.command()
def models(
    on: Annotated[str, typer.Option(help="The system for which parameters are counted.")] = "pendulum-windy",
    json_file: JsonFile = None,
) -> None:
    """List the models and their trainable parameters."""
    import jax

    from phast.models import MODELS, parameter_count
    from phast.systems import system

    chosen = system(on)
    rows = [
        {
            "name": name,
            "parameters": parameter_count(build(chosen, key=jax.random.key(0))),
            "about": (build.__doc__ or "").strip().splitlines()[0],
        }
        for name, build in MODELS.items()
    ]
    _print_table(
        ["model", f"parameters ({on})", "what"], [[r["name"], f"{r['parameters']:,}", r["about"]] for r in rows]
    )
    _write_json(json_file, rows)


@app.command()
def simulate(
    name: Annotated[str, typer.Argument(metavar="SYSTEM")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file.")],
    count: Annotated[int, typer.Option(min=1, help="Trajectories.")] = 10,
    length: Annotated[int, typer.Option(min=2, help="Samples per trajectory.")] = 200,
    dt: Annotated[float | None, typer.Option(help="Sampling step; the system's own if left out.")] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="Standard deviation of noise on the positions.")] = 0.0,
    seed: int = 42,
) -> None:
    """Simulate a system to tight tolerance and write its trajectories to a file."""
    from phast.datasets import save_trajectories, simulate
    from phast.systems import system

    data = simulate(system(name), count, length=length, dt=dt, seed=seed)
    save_trajectories(data if noise == 0.0 else data.with_noise(noise, seed=seed), output)
    print(f"{count} trajectories of {name}, {length} samples each, dt = {data.dt:g}: {output}")


# --- the main job ----------------------------------------------------------------------------------------------------


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the model, the figures and the page.")
    ] = Path("demo"),
    model: Annotated[str, typer.Option(help="Which model to fit.")] = "phast-partial",
    preset: Annotated[str, typer.Option(help="How to train: sharp or paper.")] = "sharp",
    json_file: JsonFile = None,
) -> None:
    """Simulate Windy Pendulum, learn it from positions, forecast 100 steps, compare with the truth, draw figures."""
    import time

    from phast.api import enable_float64
    from phast.demo import CONTEXT, HORIZON, run
    from phast.models import model_builder
    from phast.suite import preset as preset_named
    from phast.tables import figure

    model_builder(model)
    if preset_named(preset).needs_float64:
        enable_float64()
    begun = time.perf_counter()
    print("Windy Pendulum: 1000 trajectories of 200 positions; velocities are never shown to the model.")
    with _training(f"fitting {model}", preset, seeds=1) as told:
        result = run(output, model_name=model, preset_name=preset, **told)
    metrics = result["record"]["metrics"]
    print(
        f"\nForecast of {HORIZON} steps open loop from {CONTEXT} positions, 200 test trajectories (mean squared error):"
    )
    _print_table(
        ["", "mean", "median"],
        [
            [mode, figure(metrics[f"{key}_h{HORIZON}"]), figure(metrics[f"{key}_h{HORIZON}_median"])]
            for mode, key in (
                ("autoregressive", "rollout_theta_wrap_mse"),
                ("takeover", "rollout_takeover_theta_wrap_mse"),
            )
        ],
    )
    print("\nDamping d(θ), learned beside the truth:")
    _print_table(
        ["θ", "true", "learned"], [[f"{a / 3.14159265:.2f} π", f"{t:.3f}", f"{d:.3f}"] for a, t, d in result["damping"]]
    )
    print(
        f"R² of d(θ) over the test set: {metrics['damping_r2']:.5g}   mean absolute error: {metrics['damping_mae']:.2g}"
    )
    print(f"\nModel and figures (rollout, phase, damping, energy): {output}/   [{time.perf_counter() - begun:.0f} s]")
    print(f"All of it on one page: open {output / 'report.html'} in a browser")
    _write_json(json_file, [result["record"]])


@app.command()
def fit(
    source: Annotated[str, typer.Argument(help="A system's name, or a file of trajectories.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")],
    model: Annotated[str, typer.Option(help="For a system: which model.")] = "phast-partial",
    positions: Annotated[
        str | None, typer.Option(help="For a file: its position columns, e.g. 'x,theta:angle'.")
    ] = None,
    dt: Annotated[float | None, typer.Option(help="For a file: the sampling step, if it has no time column.")] = None,
    regime: Annotated[Literal["partial", "unknown"], typer.Option(help="For a file: what is known.")] = "unknown",
    potential: Annotated[
        str | None, typer.Option(help="For a file: the template, 'cosine:9.81' or 'quadratic:1.0'.")
    ] = None,
    preset: Annotated[
        Literal["sharp", "paper"], typer.Option(help="Fit sharply, or train as the paper does.")
    ] = "sharp",
    passive: Annotated[
        bool, typer.Option("--passive", help="Sharp: forecast by steps along which energy cannot rise.")
    ] = False,
    bound: Annotated[
        str | None,
        typer.Option(help="Paper, for a file: bound on the damping strength, a number or 'validated'."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Paper: passes over the data.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Paper: AdamW's.")] = None,
    seed: int = 0,
    float64: Float64 = False,
) -> None:
    """Learn a model. Killed and started again with the same words, it goes on where it was."""
    import dataclasses

    import jax

    from phast.api import enable_float64, learn
    from phast.checkpoint import save
    from phast.datasets import benchmark_split, load_trajectories
    from phast.models import model_builder, parameter_count
    from phast.sharp import composition, sharpen
    from phast.suite import PRESETS, as_batch
    from phast.systems import SYSTEMS, system
    from phast.training import fit

    if float64 or preset == "sharp":
        enable_float64()
    if preset == "sharp" and (epochs or learning_rate or bound):
        raise InputError("--epochs, --learning-rate and --bound belong to the paper preset: add --preset paper")
    if preset == "paper" and passive:
        raise InputError("--passive belongs to the sharp preset: leave out --preset paper")
    chosen = PRESETS["paper"]
    changes = {"epochs": epochs, "learning_rate": learning_rate}
    settings = dataclasses.replace(chosen.settings, **{k: v for k, v in changes.items() if v is not None})
    unfinished = output.with_name(output.name + ".unfinished")
    model_builder(model)  # a wrong name is said before anything is simulated
    if source not in SYSTEMS and not Path(source).exists():
        if Path(source).suffix:
            raise InputError(f"{source}: no such file")
        system(source)  # says which name is nearest
    if source not in SYSTEMS and positions is None:
        raise InputError("a file needs --positions, its position columns, e.g. --positions 'x,theta:angle'")
    if source in SYSTEMS and preset == "sharp":
        with _stages(f"fitting {source}") as on_stage:
            data = benchmark_split(system(source)).train
            start = composition(model)(system(source), data)
            fitted = sharpen(start, data, seed=seed, passive=passive, on_stage=on_stage).model
    elif source in SYSTEMS:
        with _progress(f"fitting {source}", seeds=1, epochs=settings.epochs) as on_epoch:
            data = benchmark_split(system(source))
            fitted, _ = fit(
                model_builder(model)(system(source), key=jax.random.key(seed)),
                as_batch(data.train),
                as_batch(data.validation),
                loss=chosen.loss,
                settings=settings,
                key=jax.random.fold_in(jax.random.key(seed), 1),
                checkpoint=unfinished,
                on_epoch=lambda history: on_epoch(seed, history),
            )
    else:
        trajectories = load_trajectories(Path(source), coordinates=positions.split(","), dt=dt)
        template = None if potential is None else _template(potential)
        if preset == "sharp":
            with _stages(f"fitting {source}") as on_stage:
                fitted = learn(
                    trajectories, regime=regime, potential=template, passive=passive, seed=seed, on_stage=on_stage
                )
        else:
            with _progress(f"fitting {source}", seeds=1, epochs=settings.epochs) as on_epoch:
                fitted = learn(
                    trajectories,
                    regime=regime,
                    potential=template,
                    bound=_bound(bound),
                    preset="paper",
                    settings=settings,
                    loss=chosen.loss,
                    seed=seed,
                    checkpoint=None if bound == "validated" else unfinished,
                    on_epoch=lambda history: on_epoch(seed, history),
                )
    how = {"settings": dataclasses.asdict(settings)} if preset == "paper" else {"passive": passive}
    save(fitted, output, source=source, seed=seed, preset=preset, **how)
    unfinished.unlink(missing_ok=True)
    print(f"{parameter_count(fitted):,} parameters: {output}")


@app.command()
def forecast(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    data_file: Annotated[Path, typer.Argument(metavar="DATA", help="Trajectories whose beginning is the context.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file.")] = None,
    context: Annotated[int, typer.Option(min=2, help="Samples to start from.")] = 10,
    horizon: Annotated[int, typer.Option(min=1, help="Steps to forecast.")] = 100,
    mode: Literal["autoregressive", "takeover"] = "autoregressive",
    adapt_names: Annotated[
        str | None,
        typer.Option("--adapt", help="Coefficients to refine on each context, e.g. 'damping.base,potential.scale'."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A figure of the first trajectory.")] = None,
    float64: Float64 = False,
    json_file: JsonFile = None,
) -> None:
    """Forecast from the first samples of each trajectory; where the file goes on, report the error."""
    import jax.numpy as jnp
    import numpy as np

    from phast.api import adapt, forecast
    from phast.datasets import Trajectories, save_trajectories
    from phast.forecaster import AbstractIdentifiable
    from phast.tables import figure

    model, data = _model_and_data(AbstractIdentifiable, model_file, data_file, float64)
    if data.length < context:
        raise InputError(
            f"{data_file}: trajectories of {data.length} samples are shorter than the context of {context}: "
            "lower --context or give longer ones"
        )
    starts = data.q[:, :context]
    if adapt_names is None:
        future = forecast(model, starts, horizon, mode=mode)
    else:
        names = [name.strip() for name in adapt_names.split(",")]
        future = np.stack([forecast(adapt(model, start, names), start, horizon, mode=mode) for start in starts])
    if not np.isfinite(future).all():
        raise FloatingPointError("the forecast left the range of floating point numbers: the model is unstable here")
    known = min(horizon, data.length - context)
    summary: dict[str, Any] = {"trajectories": len(data), "horizon": horizon, "mode": mode, "steps_compared": known}
    if known > 0:
        after = jnp.asarray(data.q[:, context : context + known], dtype=float)
        wrapped = np.asarray(data.manifold.squared_error(jnp.asarray(future[:, :known]), after))
        summary |= {
            "mse": float(wrapped.mean()),
            "mse_median": float(np.median(wrapped.mean(axis=(1, 2)))),
            "rms_final": float(np.sqrt(wrapped[:, -1].mean())),
        }
        mean, median = figure(summary["mse"]), figure(summary["mse_median"])
        print(f"mean squared error over {known} steps: {mean} (median over trajectories {median})")
    if output is not None:
        save_trajectories(Trajectories(np.asarray(future, dtype=float), data.dt, data.manifold), output)
        print(f"{len(data)} forecasts of {horizon} steps: {output}")
    if plot is not None:
        from phast.plots import rollout, save_figure

        shown = data.q[0, : context + horizon]
        save_figure(rollout(shown, {mode: future[0]}, dt=data.dt, names=data.manifold.names, context=context), plot)
    _write_json(json_file, summary)


@app.command()
def identify(
    source: Annotated[str, typer.Argument(help="A system's name, or a file of trajectories.")],
    model: Annotated[str, typer.Option(help="For a system: which model.")] = "phast-known",
    positions: Annotated[
        str | None, typer.Option(help="For a file: its position columns, e.g. 'x,theta:angle'.")
    ] = None,
    dt: Annotated[float | None, typer.Option(help="For a file: the sampling step, if it has no time column.")] = None,
    potential: Annotated[
        str | None, typer.Option(help="For a file: the template, 'cosine:9.81' or 'quadratic:1.0'; none if left out.")
    ] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="For a system: noise added to the positions.")] = 0.0,
    plot: Annotated[
        Path | None, typer.Option(help="A figure of the first coordinate's damping with its uncertainty.")
    ] = None,
    seed: int = 0,
    json_file: JsonFile = None,
) -> None:
    """Recover physical coefficients with their uncertainty, and say which ones the data cannot determine."""
    from phast.api import enable_float64

    enable_float64()

    from phast.components.mass import ConstantMass
    from phast.datasets import benchmark_split, load_trajectories
    from phast.findings import along, damping_band, force_band, report
    from phast.sharp import composition, partial_system, sharpen, unknown_system
    from phast.systems import SYSTEMS, system
    from phast.tables import figure

    if source in SYSTEMS or not Path(source).exists():
        chosen = system(source)
        data = benchmark_split(chosen).train
        data = data.with_noise(noise, seed=seed) if noise else data
        start = composition(model)(chosen, data)
    else:
        if positions is None:
            raise InputError("a file needs --positions, its position columns, e.g. --positions 'x,theta:angle'")
        data = load_trajectories(Path(source), coordinates=positions.split(","), dt=dt)
        start = (
            unknown_system(data) if potential is None else partial_system(data, _template(potential), ConstantMass(1.0))
        )
    with _stages(f"identifying {source}") as on_stage:
        found = sharpen(start, data, seed=seed, on_stage=on_stage)
    told = report(found.identified)
    print(f"{len(data)} trajectories of {data.length} positions; noise on a position about {figure(found.noise)}")
    print(f"residual of the fit: {figure(found.identified.rms)} rms over {found.identified.count:,} positions\n")
    rows = [
        [c.name, figure(c.value), figure(c.deviation), "yes" if c.identifiable else "NOT IDENTIFIABLE"]
        for c in told.coefficients
    ]
    _print_table(["coefficient", "value", "± (1σ)", "identifiable"], rows)
    fields = {}
    for i, name in enumerate(data.manifold.names):
        points = along(data, i, 9)
        force, damped = force_band(found.identified, points), damping_band(found.identified, points)
        fields[name] = [
            {
                "at": float(q),
                "force": float(f),
                "force_deviation": float(df),
                "damping": float(d),
                "deviation": float(dd),
            }
            for q, f, df, d, dd in zip(points[:, i], *(x[:, i] for x in (*force, *damped)), strict=True)
        ]
        others = " (the other coordinates at their medians)" if data.manifold.size > 1 else ""
        print(f"\nAlong {name}{others}:")
        _print_table(
            [name, "force -∂V/∂q", "± (1σ)", "damping d", "± (1σ)"],
            [[f"{row['at']:.3f}", *(figure(x) for x in list(row.values())[1:])] for row in fields[name]],
        )
    print(f"\nconditioning of the information: {told.conditioning:.1e}")
    print(f"anchor: {told.anchor}")
    for remark in told.remarks:
        print(f"note: {remark}")
    if not told.remarks:
        print("every coefficient is determined by these data")
    if plot is not None:
        from phast.plots import damping_band_figure, save_figure

        fine = along(data, 0, 201)
        curve, width = damping_band(found.identified, fine)
        save_figure(damping_band_figure(fine[:, 0], curve[:, 0], width[:, 0], name=data.manifold.names[0]), plot)
    _write_json(
        json_file,
        {
            "source": source,
            "noise": found.noise,
            "rms": found.identified.rms,
            "coefficients": [c._asdict() for c in told.coefficients],
            "conditioning": told.conditioning,
            "remarks": told.remarks,
            "anchor": told.anchor,
            "fields": fields,
        },
    )


@app.command(name="filter")
def filter_command(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    data_file: Annotated[Path, typer.Argument(metavar="DATA")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file of filtered states.")],
    noise: Annotated[
        float | None,
        typer.Option(help="Standard deviation of a measured position; as learned if left out."),
    ] = None,
    process: Annotated[
        float | None, typer.Option(help="For a model of the paper's: its own error per step, a standard deviation.")
    ] = None,
    float64: Float64 = False,
) -> None:
    """Predict–correct: estimate positions and momenta from every measurement so far."""
    import numpy as np

    from phast.api import filter_states
    from phast.datasets import Trajectories, save_trajectories
    from phast.forecaster import Phast
    from phast.horizon import ModelAware
    from phast.tables import figure

    if not all(x is None or x > 0 for x in (noise, process)):
        raise InputError("--noise and --process are standard deviations: give positive numbers")
    model, data = _model_and_data((Phast, ModelAware), model_file, data_file, float64)
    states = filter_states(model, data.q, measurement_noise=noise, process_noise=process)
    filtered = Trajectories(
        np.asarray(states.q, dtype=float), data.dt, data.manifold, p=np.asarray(states.p, dtype=float)
    )
    save_trajectories(filtered, output)
    rms = float(np.sqrt(np.mean(states.innovation[:, 1:] ** 2)))
    print(f"rms surprise per measurement: {figure(rms)}   states: {output}")


@app.command()
def evaluate(
    name: Annotated[str, typer.Argument(metavar="SYSTEM")],
    model: Annotated[
        str, typer.Option(help="Model names, separated by commas.")
    ] = "phast-known,phast-partial,phast-unknown",
    preset: Annotated[str, typer.Option(help="How to train.")] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 1,
    noise: Annotated[float, typer.Option(min=0.0, help="Noise on training data and contexts.")] = 0.0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer epochs than the preset's, for a quick look.")] = None,
    float64: Float64 = False,
    json_file: JsonFile = None,
) -> None:
    """Train and judge models on a system by the paper's protocol, beside the published numbers."""
    from phast.api import enable_float64
    from phast.models import model_builder
    from phast.suite import preset as preset_named
    from phast.suite import run_seeds
    from phast.systems import system
    from phast.training import Settings

    way = preset_named(preset)
    if float64 or way.needs_float64:
        enable_float64()
    chosen = system(name)
    names = [part.strip() for part in model.split(",") if part.strip()]
    if not names:
        raise InputError("--model names no model: `phast models` lists all")
    for each in names:
        model_builder(each)
    settings = None if epochs is None else Settings(epochs=epochs)
    records = []
    for each in names:
        with _training(f"{each} on {name}", preset, seeds=seeds, epochs=epochs or Settings().epochs) as told:
            outcomes = run_seeds(
                chosen,
                each,
                preset_name=preset,
                seeds=range(seeds),
                noise=noise,
                settings=settings,
                **told,
            )
        records += [outcome.record for outcome in outcomes]
        _write_json(json_file, records)
    _print_comparison(records, chosen)


@app.command()
def reproduce(
    table: Annotated[list[str] | None, typer.Argument(help="Tables to make; see --list.")] = None,
    list_tables: Annotated[bool, typer.Option("--list", help="Name the tables.")] = False,
    results: Annotated[Path, typer.Option(help="Folder of records; missing runs are added to it.")] = Path("results"),
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    plot: Annotated[Path | None, typer.Option(help="For a study: draw its figure into this file.")] = None,
) -> None:
    """Make a table or a study from the records in ``results``, running only what is missing."""
    from phast.api import enable_float64
    from phast.suite import preset, run_missing
    from phast.systems import system
    from phast.tables import TABLES, cells, compare, paper_table
    from phast.tables import markdown as as_markdown

    if list_tables or not table:
        studies = [[name, (study.__doc__ or "").strip().splitlines()[0]] for name, study in _STUDIES.items()]
        _print_table(["table", "what"], [[t.name, t.title] for t in TABLES.values()] + studies)
        return
    if table[0] in _STUDIES and len(table) == 1:
        _STUDIES[table[0]](results, plot)
        return
    tables = [paper_table(name) for name in table]
    precisions = {preset(wanted.preset).needs_float64 for wanted in tables}
    if len(precisions) > 1:
        raise InputError("these tables compute in different precisions: make the sharp ones in a command of their own")
    if True in precisions:
        enable_float64()
    for wanted in tables:
        records = []
        for name, model, noise in itertools.product(wanted.systems, wanted.models, wanted.noise):
            with _training(f"{model} on {name}", wanted.preset, seeds=wanted.seeds) as told:
                records += run_missing(
                    results,
                    system(name),
                    model,
                    preset_name=wanted.preset,
                    seeds=range(wanted.seeds),
                    noise=noise,
                    **told,
                )
        rows = compare(records, wanted.metrics)
        print(f"\n{wanted.title}\n")
        if markdown:
            print(as_markdown(rows))
        else:
            heading, *body = cells(rows)
            _print_table(heading, body)


def _velocity_study(results: Path, plot: Path | None) -> None:
    """The true physics from four estimates of the velocity: how its error grows"""
    from phast.api import enable_float64

    enable_float64()
    from phast.plots import error_growth, save_figure
    from phast.studies import velocity_study
    from phast.systems import system
    from phast.tables import figure

    windy = system("pendulum-windy")
    curves = velocity_study(windy)
    steps = (1, 10, 50, 100)
    rows = [[name, *(figure(float(curve[h - 1])) for h in steps)] for name, curve in curves.items()]
    _print_table(["velocity from", *(f"step {h}" for h in steps)], rows)
    if plot is not None:
        save_figure(error_growth(curves, dt=windy.dt), plot)


def _noise_study(results: Path, plot: Path | None) -> None:
    """KNOWN under noise by FD+TCN, MAP and the moving horizon, beside the floor"""
    from phast.api import enable_float64

    enable_float64()
    from phast.plots import noise_levels, save_figure
    from phast.studies import LEVELS, noise_study
    from phast.systems import system
    from phast.tables import figure

    with _stages("noise study") as on_stage:
        records = noise_study(results, system("pendulum-windy"), on_stage=on_stage)
    titles = {"FD+TCN": "FD+TCN", "map": "MAP smoother", "horizon": "moving horizon", "floor": "floor: true physics"}
    curves = {
        title: {r["noise"]: r["metrics"]["rollout_h100_median"] for r in records if r["model"] == name}
        for name, title in titles.items()
    }
    rows = [[title, *(figure(curve[noise]) for noise in LEVELS)] for title, curve in curves.items()]
    _print_table(["median rollout error", *(f"σ = {noise:g}" for noise in LEVELS)], rows)
    if plot is not None:
        save_figure(noise_levels(curves), plot)


_STUDIES = {"velocity-study": _velocity_study, "noise-study": _noise_study}


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="Folder of records, and of the models beside them.")] = Path("results"),
    system_names: Annotated[list[str] | None, typer.Option("--system", help="Only this one; may be repeated.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    trajectories: Annotated[int, typer.Option(min=1, max=200, help="Test trajectories to draw per system.")] = 3,
) -> None:
    """Write one HTML page of all results: tables, and figures of every model that lies beside its record."""
    from phast.api import enable_float64
    from phast.report import collect, section_names, write_report

    enable_float64()  # holds the models of either precision
    runs = collect(results, system_names or ())
    with _sections("drawing", total=len(section_names(runs))) as on_section:
        write_report(runs, output, trajectories=trajectories, on_section=on_section)
    print(f"{len(section_names(runs))} systems, {output.stat().st_size / 1e6:.1f} MB: open {output} in a browser")


@app.command()
def bench(
    section: Annotated[
        list[str] | None, typer.Argument(help="train, rollout, seeds, primitives, startup; all if left out. Or: peers.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's timing figure into this file.")] = None,
    results: Annotated[Path, typer.Option(help="peers: folder of records.")] = Path("results"),
    system_names: Annotated[str | None, typer.Option("--system", help="peers: systems, separated by commas.")] = None,
    model: Annotated[str | None, typer.Option(help="peers: tools, separated by commas.")] = None,
    noise: Annotated[str | None, typer.Option(help="peers: noise levels, separated by commas.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure speed, as ratios to a plain PyTorch implementation in the same run (extra: bench).

    ``phast bench peers`` fits the tools that one would pick instead to the same data as ours (extra: peers).
    """
    if section == ["peers"]:
        _bench_peers(results, system_names, model, noise, json_file)
        return
    if "peers" in (section or []) or system_names or model or noise:
        raise InputError("peers is a bench of its own, and --system, --model and --noise belong to it")
    from phast.bench import run_bench

    run_bench(section or None, json_path=json_file, plot=plot)


def _bench_peers(
    results: Path, system_names: str | None, model: str | None, noise: str | None, json_file: Path | None
) -> None:
    from phast.api import enable_float64
    from phast.peers import COMPARED, NOISES, PEERS, compare, peer, table
    from phast.systems import system

    chosen = [system(name) for name in _listed(system_names, COMPARED)]
    names = _listed(model, PEERS)
    for name in names:
        peer(name)  # a wrong name is said before anything is fitted
    try:
        noises = [float(level) for level in _listed(noise, NOISES)]
    except ValueError:
        raise InputError(f"--noise '{noise}': give numbers separated by commas, e.g. 0,0.01") from None
    enable_float64()
    records = compare(results, chosen, names, noises, tell=lambda line: print(line, file=sys.stderr, flush=True))
    for each in chosen:
        if found := [record for record in records if record["system"] == each.name]:
            print(f"\n{each.title}: error of 100 steps forecast from 10 positions; seconds to fit + to choose settings")
            _print_table(*table(found))
    _write_json(json_file, records)


def _listed(text: str | None, default: Iterable[Any]) -> list[Any]:
    return list(default) if text is None else [part.strip() for part in text.split(",") if part.strip()]


# --- helpers ---------------------------------------------------------------------------------------------------------


def _bound(text: str | None) -> "float | str | None":
    if text is None or text == "validated":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--bound '{text}': give a number, or 'validated' to choose it by validation") from None


def _model_and_data(kind: type | tuple[type, ...], model_file: Path, data_file: Path, float64: bool):
    from phast.api import enable_float64
    from phast.checkpoint import load, needs_float64
    from phast.datasets import load_trajectories

    if float64 or needs_float64(model_file):
        enable_float64()
    model = load(model_file)
    if not isinstance(model, kind):
        raise InputError(f"{model_file}: holds a {type(model).__name__}, which cannot do this")
    names = [f"{n}:angle" if c else n for n, c in zip(model.manifold.names, model.manifold.circles, strict=True)]
    data = load_trajectories(data_file, coordinates=names, dt=None)
    if abs(data.dt - model.dt) > 1e-3 * model.dt:
        raise InputError(
            f"{data_file}: sampled every {data.dt:g}, but the model was trained at {model.dt:g}: resample it"
        )
    return model, data


def _template(text: str) -> "AbstractPotential":
    from phast.components.parameter import Positive
    from phast.components.potential import Cosine, Quadratic, Scaled

    kinds = {"cosine": Cosine, "quadratic": Quadratic}
    kind, _, strength = text.partition(":")
    try:
        value = float(strength or "1.0")
    except ValueError:
        raise InputError(f"--potential '{text}': '{strength}' is not a number") from None
    if kind not in kinds or not 0.0 < value < float("inf"):
        raise InputError(f"--potential '{text}': give cosine:STRENGTH or quadratic:STRENGTH with a positive strength")
    return Scaled(kinds[kind](value), Positive.starting_at(1.0))


def _print_comparison(records: list[dict[str, Any]], system) -> None:
    from phast.metrics import error_name
    from phast.tables import cells, compare

    kind = error_name(system.manifold)
    shown = [
        f"rollout_{kind}_h100",
        f"rollout_takeover_{kind}_h100",
        "damping_r2",
        "damping_mae",
        "rollout_energy_budget_resid_h100",
        "rollout_passivity_violations_h100",
        kind,
        "floor",
        "next_step_after_burn_in",
    ]
    seeds = len({record["seed"] for record in records})
    counts = ", ".join(f"{m} {p:,}" for m, p in {r["model"]: r["parameters"] for r in records}.items())
    print(f"\n{system.title}: {seeds} seed(s), preset {records[0]['preset']}; parameters: {counts}")
    heading, *body = cells(compare(records, shown))
    _print_table(heading, body)


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    """A table for a terminal, and the same columns in plain text elsewhere."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(header):
        table.add_column(name, no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def _write_json(path: Path | None, content: Any) -> None:
    if path is not None:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


@contextmanager
def _training(title: str, preset: str, *, seeds: int, epochs: int = 50) -> "Iterator[dict[str, Callable]]":
    """What a preset tells of its progress, shown: epochs in a bar, or stages by name."""
    from phast.suite import preset as preset_named

    if preset_named(preset).has_epochs:
        with _progress(title, seeds=seeds, epochs=epochs) as on_epoch:
            yield {"on_epoch": on_epoch}
    else:
        with _stages(title) as on_stage:
            yield {"on_stage": on_stage}


@contextmanager
def _stages(title: str) -> "Iterator[Callable[[str], None]]":
    """A spinner that names the stage on a terminal, a plain line per stage elsewhere; both on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: print(f"{title}: {stage}", file=sys.stderr)
        return
    with console.status(title) as status:
        yield lambda stage: status.update(f"{title}: {stage}")


@contextmanager
def _progress(title: str, *, seeds: int, epochs: int = 50) -> "Iterator[Callable[[int, History], None]]":
    """A bar on a terminal, a plain line every ten epochs elsewhere; both on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:

        def line(seed: int, history: "History") -> None:
            if history.epochs_done % 10 == 0 or history.epochs_done == epochs:
                print(
                    f"{title}, seed {seed}: epoch {history.epochs_done}/{epochs}, loss {history.loss[-1]:.3e}",
                    file=sys.stderr,
                )

        yield line
        return
    with _bar(console) as bar:
        task = bar.add_task(title, total=seeds * epochs)

        def advance(seed: int, history: "History") -> None:
            bar.update(task, advance=1, description=f"{title}  loss {history.loss[-1]:.2e}")

        yield advance


@contextmanager
def _sections(title: str, *, total: int) -> "Iterator[Callable[[str], None]]":
    """A bar that names what is being done on a terminal, a plain line for each elsewhere; both on standard error."""
    from rich.console import Console
    from rich.markup import escape

    console, places = Console(stderr=True), itertools.count()
    if not console.is_terminal:
        yield lambda name: print(f"{title} {name} ({next(places) + 1}/{total})", file=sys.stderr)
        return
    with _bar(console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda name: bar.update(task, completed=next(places), description=escape(f"{title} {name}"))
        bar.update(task, completed=total)


def _bar(console: "Console") -> "Progress":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
