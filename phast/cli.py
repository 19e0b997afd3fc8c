"""The command line. Heavy imports wait until a command needs them, so that ``phast --help`` answers at once."""

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phast import research
from phast.console import Float64, JsonFile, print_table, progress, stages, training, write_json
from phast.errors import InputError
from phast.files import cache_directory

if TYPE_CHECKING:
    from phast.components.potential import AbstractPotential

app = typer.Typer(
    name="phast",
    help="Learn port-Hamiltonian models from positions alone: forecast the system, recover its physics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
    print_table(
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
    write_json(json_file, rows)


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
    print_table(
        ["model", f"parameters ({on})", "what"], [[r["name"], f"{r['parameters']:,}", r["about"]] for r in rows]
    )
    write_json(json_file, rows)


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
    from phast.runs import preset as preset_named
    from phast.tables import figure

    model_builder(model)
    if preset_named(preset).needs_float64:
        enable_float64()
    begun = time.perf_counter()
    print("Windy Pendulum: 1000 trajectories of 200 positions; velocities are never shown to the model.")
    with training(f"fitting {model}", preset, seeds=1) as watch:
        result = run(output, model_name=model, preset_name=preset, watch=watch)
    metrics = result["record"]["metrics"]
    print(
        f"\nForecast of {HORIZON} steps open loop from {CONTEXT} positions, 200 test trajectories (mean squared error):"
    )
    print_table(
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
    print_table(
        ["θ", "true", "learned"], [[f"{a / 3.14159265:.2f} π", f"{t:.3f}", f"{d:.3f}"] for a, t, d in result["damping"]]
    )
    print(
        f"R² of d(θ) over the test set: {metrics['damping_r2']:.5g}   mean absolute error: {metrics['damping_mae']:.2g}"
    )
    print(f"\nModel and figures (rollout, phase, damping, energy): {output}/   [{time.perf_counter() - begun:.0f} s]")
    print(f"All of it on one page: open {output / 'report.html'} in a browser")
    write_json(json_file, [result["record"]])


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
    from phast.runs import PRESETS, as_batch
    from phast.sharp import composition, sharpen
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
        with stages(f"fitting {source}") as on_stage:
            data = benchmark_split(system(source)).train
            start = composition(model)(system(source), data)
            fitted = sharpen(start, data, seed=seed, passive=passive, on_stage=on_stage)
    elif source in SYSTEMS:
        with progress(f"fitting {source}", seeds=1, epochs=settings.epochs) as on_epoch:
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
            with stages(f"fitting {source}") as on_stage:
                fitted = learn(
                    trajectories, regime=regime, potential=template, passive=passive, seed=seed, on_stage=on_stage
                )
        else:
            with progress(f"fitting {source}", seeds=1, epochs=settings.epochs) as on_epoch:
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
    write_json(json_file, summary)


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
    from phast.findings import along, damping_band, force_band, identified, report
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
    with stages(f"identifying {source}") as on_stage:
        found = sharpen(start, data, seed=seed, on_stage=on_stage)
    told = report(identified(found))
    print(f"{len(data)} trajectories of {data.length} positions; noise on a position about {figure(max(found.noise))}")
    print(f"residual of the fit: {figure(found.evidence.rms)} rms over {found.evidence.count:,} positions\n")
    rows = [
        [c.name, figure(c.value), figure(c.deviation), "yes" if c.identifiable else "NOT IDENTIFIABLE"]
        for c in told.coefficients
    ]
    print_table(["coefficient", "value", "± (1σ)", "identifiable"], rows)
    fields = {}
    for i, name in enumerate(data.manifold.names):
        points = along(data, i, 9)
        force, damped = force_band(identified(found), points), damping_band(identified(found), points)
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
        print_table(
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
        curve, width = damping_band(identified(found), fine)
        save_figure(damping_band_figure(fine[:, 0], curve[:, 0], width[:, 0], name=data.manifold.names[0]), plot)
    write_json(
        json_file,
        {
            "source": source,
            "noise": max(found.noise),
            "rms": found.evidence.rms,
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


# --- research --------------------------------------------------------------------------------------------------------

for command in (research.evaluate, research.suite, research.reproduce, research.report, research.bench):
    app.command()(command)


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
