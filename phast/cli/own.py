"""Commands for one's own data: from a file of positions to a model, its forecasts, its physics and its states.

Columns are named once, when a model is fitted; the model remembers them, and later commands read other files the same
way unless told otherwise. Heavy imports wait until a command needs them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phast.cli.console import Float64, JsonFile, print_table, progress, stages, write_json
from phast.errors import InputError

if TYPE_CHECKING:
    from phast.data.recording import Recording
    from phast.estimation.forecaster import AbstractIdentifiable
    from phast.estimation.moving_horizon import ModelAware

Time = Annotated[str | None, typer.Option(help="The time column; 't' or 'time' if left out.")]
Positions = Annotated[str | None, typer.Option(help="The position columns, e.g. 'x,theta:angle' or 'theta:angle:deg'.")]
InputColumns = Annotated[str | None, typer.Option("--inputs", help="The columns of known inputs, e.g. 'u1,u2'.")]
Runs = Annotated[str | None, typer.Option("--trajectory", help="The column that tells runs apart.")]
Step = Annotated[float | None, typer.Option(help="The sampling step, where there is no time column.")]
Missing = Annotated[
    Literal["refuse", "split"] | None, typer.Option(help="Rows with blanks: refuse them, or leave them out.")
]
Begin = Annotated[float | None, typer.Option(help="Use samples from this time on.")]
Stop = Annotated[float | None, typer.Option(help="Use samples before this time.")]
MODEL_FILE = "model.phast"


# --- fitting ---------------------------------------------------------------------------------------------------------


def fit(
    source: Annotated[list[str], typer.Argument(help="A system's name, or files of positions.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model to write: a .phast file or a folder.")],
    model: Annotated[str, typer.Option(help="For a system: which model.")] = "phast-partial",
    time: Time = None,
    positions: Positions = None,
    inputs: InputColumns = None,
    trajectory: Runs = None,
    dt: Step = None,
    missing: Missing = None,
    start: Begin = None,
    stop: Stop = None,
    regime: Annotated[
        Literal["known", "partial", "unknown"], typer.Option(help="For a file: what is known.")
    ] = "unknown",
    potential: Annotated[
        str | None,
        typer.Option(help="The template: cosine, quadratic, chain, joined by +; 'cosine:9.81' has a strength."),
    ] = None,
    mass: Annotated[
        str, typer.Option(help="The mass: a number, one each, or learned, links or joints (two links).")
    ] = "1.0",
    friction: Annotated[
        str | None, typer.Option(help="viscous, coulomb, quadratic, free or none, joined by +; free if left out.")
    ] = None,
    port: Annotated[str | None, typer.Option(help="How inputs act: identity, learned, or rows '1,0;0,1'.")] = None,
    context: Annotated[
        str | None, typer.Option(help="What a state is taken from: samples, or a time such as '0.2 s'.")
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

    from phast.api import enable_float64
    from phast.components.parameter import parameter_count
    from phast.dynamics.systems import SYSTEMS
    from phast.fitting.checkpoint import save
    from phast.paper.experiments import PRESETS
    from phast.paper.models import model_builder

    if float64 or preset == "sharp":
        enable_float64()
    if preset == "sharp" and (epochs or learning_rate or bound):
        raise InputError("--epochs, --learning-rate and --bound belong to the paper preset: add --preset paper")
    if preset == "paper" and passive:
        raise InputError("--passive belongs to the sharp preset: leave out --preset paper")
    changes = {"epochs": epochs, "learning_rate": learning_rate}
    settings = dataclasses.replace(PRESETS["paper"].settings, **{k: v for k, v in changes.items() if v is not None})
    output = _model_path(output)
    unfinished = output.with_name(output.name + ".unfinished")
    model_builder(model)  # a wrong name is said before anything is simulated
    about: dict[str, Any] = {"source": ", ".join(source), "seed": seed, "preset": preset}
    if len(source) == 1 and _is_system(source[0]):
        fitted = _fit_system(source[0], model, preset, seed, passive, settings, unfinished)
    else:
        columns = named_columns(time, positions, inputs, trajectory, dt, missing)
        recording = _recorded(source, columns, start, stop)
        about |= {"columns": columns, "notes": list(recording.notes)}
        words = {"regime": regime, "potential": potential, "mass": mass, "damping": friction, "port": port}
        about |= {"asked": words}
        if preset == "sharp":
            fitted = _fit_recording(recording, words, context, seed, passive)
        else:
            if words["mass"] != "1.0" or friction or port or context:
                raise InputError("--mass, --friction, --port and --context belong to the sharp preset")
            fitted = _train_recording(recording, regime, potential, bound, seed, settings, unfinished)
    about |= {"settings": dataclasses.asdict(settings)} if preset == "paper" else {"passive": passive}
    output.parent.mkdir(parents=True, exist_ok=True)
    save(fitted, output, **about)
    unfinished.unlink(missing_ok=True)
    print(f"{parameter_count(fitted):,} parameters: {output}")
    if preset == "sharp" and not (len(source) == 1 and source[0] in SYSTEMS):
        _print_coefficients(fitted)


def _is_system(source: str) -> bool:
    """Whether this names a system; what is neither a system nor a file is refused here."""
    from phast.dynamics.systems import SYSTEMS, system

    if source in SYSTEMS:
        return True
    if not Path(source).exists():
        if Path(source).suffix:
            raise InputError(f"{source}: no such file")
        system(source)  # says which name is nearest
    return False


def _fit_system(source, model, preset, seed, passive, settings, unfinished) -> "AbstractIdentifiable":
    import jax

    from phast.dynamics.systems import system
    from phast.fitting.gradient import as_batch, fit
    from phast.fitting.second_order import sharpen
    from phast.paper.compositions import composition
    from phast.paper.experiments import PRESETS
    from phast.paper.models import model_builder
    from phast.paper.protocol import benchmark_split

    if preset == "sharp":
        with stages(f"fitting {source}") as on_stage:
            data = benchmark_split(system(source)).train
            return sharpen(
                composition(model)(system(source), data), data, seed=seed, passive=passive, on_stage=on_stage
            )
    with progress(f"fitting {source}", seeds=1, epochs=settings.epochs) as on_epoch:
        data = benchmark_split(system(source))
        fitted, _ = fit(
            model_builder(model)(system(source), key=jax.random.key(seed)),
            as_batch(data.train),
            as_batch(data.validation),
            loss=PRESETS["paper"].loss,
            settings=settings,
            key=jax.random.fold_in(jax.random.key(seed), 1),
            checkpoint=unfinished,
            on_epoch=lambda history: on_epoch(seed, history),
        )
    return fitted


def _fit_recording(recording: "Recording", words: dict[str, Any], context, seed, passive) -> "AbstractIdentifiable":
    from phast.api import learn

    with stages("fitting") as on_stage:
        return learn(recording, **words, context=context, passive=passive, seed=seed, on_stage=on_stage)


def _train_recording(recording: "Recording", regime, potential, bound, seed, settings, unfinished):
    from phast.api import learn
    from phast.fitting.structure import template
    from phast.paper.experiments import PRESETS

    with progress("fitting", seeds=1, epochs=settings.epochs) as on_epoch:
        return learn(
            recording,
            regime=regime,
            potential=None if potential is None else template(potential),
            bound=_bound(bound),
            preset="paper",
            settings=settings,
            loss=PRESETS["paper"].loss,
            seed=seed,
            checkpoint=None if bound == "validated" else unfinished,
            on_epoch=lambda history: on_epoch(seed, history),
        )


def _bound(text: str | None) -> float | str | None:
    if text is None or text == "validated":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--bound '{text}': give a number, or 'validated' to choose it by validation") from None


# --- forecasting -----------------------------------------------------------------------------------------------------


def forecast(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    data_file: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of positions.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file.")] = None,
    origin: Annotated[
        Literal["end", "start", "everywhere"],
        typer.Option("--from", help="After the last samples; or after the first or all along, compared with the rest."),
    ] = "end",
    context: Annotated[
        str | None, typer.Option(help="Samples to start from, or a time; as the model was fitted if left out.")
    ] = None,
    horizon: Annotated[str, typer.Option(help="Steps to forecast, or a time: '200', '2 s', '500 ms'.")] = "100",
    future: Annotated[
        Path | None, typer.Option(help="From the end, for a driven model: a file with the inputs to come.")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Instead: hold the last inputs.")] = False,
    mode: Literal["autoregressive", "takeover"] = "autoregressive",
    adapt_names: Annotated[
        str | None,
        typer.Option("--adapt", help="Coefficients to refine on each context, e.g. 'damping.base,potential.scale'."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A figure of the first forecast.")] = None,
    time: Time = None,
    positions: Positions = None,
    inputs: InputColumns = None,
    trajectory: Runs = None,
    dt: Step = None,
    missing: Missing = None,
    start: Begin = None,
    stop: Stop = None,
    float64: Float64 = False,
    json_file: JsonFile = None,
) -> None:
    """Forecast what comes after a file, with its spread; or from within it, and report the error."""
    import numpy as np

    from phast.analysis.forecasts import Asked, foresee, write_foresight
    from phast.api import steps_in
    from phast.estimation.forecaster import AbstractIdentifiable

    model, recording = model_and_recording(
        AbstractIdentifiable,
        model_file,
        data_file,
        named_columns(time, positions, inputs, trajectory, dt, missing),
        (start, stop),
        float64,
    )
    asked = Asked(
        origin,
        steps_in(context, model.dt) if context is not None else None,
        steps_in(horizon, model.dt),
        mode,
        tuple(name.strip() for name in adapt_names.split(",")) if adapt_names else (),
        _coming(model_file, future) if future is not None else None,
        hold,
    )
    seen = foresee(model, recording, asked)
    if not np.isfinite(seen.q).all():
        raise FloatingPointError("the forecast left the range of floating point numbers: the model is unstable here")
    for line in seen.told():
        print(line)
    if output is not None:
        write_foresight(seen, output)
        print(f"{len(seen.labels)} forecasts of {asked.horizon} steps: {output}")
    if plot is not None:
        from phast.report.plots import forecast_figure, save_figure

        save_figure(forecast_figure(seen), plot)
    write_json(json_file, seen.summary())


def _coming(model_file: Path, future: Path):
    """The inputs to come, by the columns that the model knows."""
    import numpy as np

    from phast.data.tables import existing_file, read_table
    from phast.fitting.checkpoint import describe

    names = describe(found_model(model_file)).get("columns", {}).get("inputs")
    if not names:
        raise InputError(f"{model_file}: fitted without inputs: leave --future out")
    table = read_table(existing_file(future))
    inputs = np.stack([table.numbers(table.find(name.strip())) for name in names.split(",")], axis=-1)
    if not np.isfinite(inputs).all():
        raise InputError(f"{future}: an input is blank or not finite: fill it in")
    return inputs


# --- physics ---------------------------------------------------------------------------------------------------------


def identify(
    source: Annotated[str, typer.Argument(help="A fitted model, a system's name, or a file of positions.")],
    data_file: Annotated[
        list[str] | None, typer.Argument(metavar="[DATA]", help="For a model: files to look at its fields along.")
    ] = None,
    model: Annotated[str, typer.Option(help="For a system: which model.")] = "phast-known",
    time: Time = None,
    positions: Positions = None,
    inputs: InputColumns = None,
    trajectory: Runs = None,
    dt: Step = None,
    missing: Missing = None,
    start: Begin = None,
    stop: Stop = None,
    regime: Annotated[
        Literal["known", "partial", "unknown"] | None,
        typer.Option(help="For a file: what is known; partial with --potential, else unknown."),
    ] = None,
    potential: Annotated[str | None, typer.Option(help="For a file: the template, as for fit.")] = None,
    mass: Annotated[str, typer.Option(help="For a file: the mass, as for fit.")] = "1.0",
    friction: Annotated[str | None, typer.Option(help="For a file: the friction, as for fit.")] = None,
    port: Annotated[str | None, typer.Option(help="For a file: the port, as for fit.")] = None,
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

    from phast.dynamics.systems import system
    from phast.fitting.checkpoint import describe, load
    from phast.fitting.second_order import sharpen
    from phast.paper.compositions import composition
    from phast.paper.protocol import benchmark_split

    columns = named_columns(time, positions, inputs, trajectory, dt, missing)
    data = None
    if _is_model(source):
        found = load(found_model(Path(source)))
        if data_file:
            columns = columns or describe(found_model(Path(source))).get("columns", {})
            data = _recorded(data_file, columns, start, stop).trajectories()
    elif _is_system(source):
        chosen = system(source)
        data = benchmark_split(chosen).train
        data = data.with_noise(noise, seed=seed) if noise else data
        with stages(f"identifying {source}") as on_stage:
            found = sharpen(composition(model)(chosen, data), data, seed=seed, on_stage=on_stage)
    else:
        recording = _recorded([source, *(data_file or [])], columns, start, stop)
        data = recording.trajectories()
        chosen = regime or ("unknown" if potential is None else "partial")
        words = {"regime": chosen, "potential": potential, "mass": mass, "damping": friction, "port": port}
        found = _fit_recording(recording, words, None, seed, False)
    content = _print_coefficients(found)
    if data is not None:
        content["fields"] = _print_fields(found, data)
        content["energy"] = _print_energy(found, data)
        if plot is not None:
            _draw_damping(found, data, plot)
    elif plot is not None:
        raise InputError("a figure along a coordinate needs data: give a file after the model")
    write_json(json_file, {"source": source, **content})


def _print_coefficients(model: "ModelAware") -> dict[str, Any]:
    from phast.analysis.identifiability import identified, report
    from phast.report.text import figure

    found = identified(model)
    told, evidence = report(found), found.evidence
    print(f"noise on a position about {', '.join(figure(x) for x in model.noise)}", end="; ")
    print(f"residual of the fit: {figure(evidence.rms)} rms over {evidence.count:,} positions\n")
    rows = [
        [c.name, figure(c.value), figure(c.deviation), "yes" if c.identifiable else "NOT IDENTIFIABLE"]
        for c in told.coefficients
    ]
    print_table(["coefficient", "value", "± (1σ)", "identifiable"], rows)
    print(f"\nconditioning of the information: {told.conditioning:.1e}")
    print(f"anchor: {told.anchor}")
    for remark in told.remarks:
        print(f"note: {remark}")
    if not told.remarks:
        print("every coefficient is determined by these data")
    return {
        "noise": max(model.noise),
        "rms": evidence.rms,
        "coefficients": [c._asdict() for c in told.coefficients],
        "conditioning": told.conditioning,
        "remarks": told.remarks,
        "anchor": told.anchor,
    }


def _print_fields(model: "ModelAware", data) -> dict[str, Any]:
    from phast.analysis.identifiability import along, damping_band, force_band, identified, typical_speed
    from phast.report.text import figure

    fields, found = {}, identified(model)
    speed = typical_speed(found.system, data)
    for i, name in enumerate(data.manifold.names):
        points = along(data, i, 9)
        force, damped = force_band(found, points), damping_band(found, points, speed)
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
            [name, "force -∂V/∂q", "± (1σ)", f"damping d{f' at speed {speed[i]:.3g}' if speed[i] else ''}", "± (1σ)"],
            [[f"{row['at']:.4g}", *(figure(x) for x in list(row.values())[1:])] for row in fields[name]],
        )
    return fields


def _print_energy(model: "ModelAware", data) -> dict[str, float] | None:
    """Where the energy went, on average over trajectories."""
    from phast.analysis.energy import power_balance
    from phast.report.text import figure

    if data.length <= model.window + 1:
        return None
    told = power_balance(model, data)
    parts = {name: float(getattr(told, name)[:, -1].mean()) for name in ("supplied", "dissipated", "unexplained")}
    parts |= {"stored": float((told.energy[:, -1] - told.energy[:, 0]).mean())}
    print(f"\nenergy over a trajectory: {', '.join(f'{name} {figure(value)}' for name, value in parts.items())}")
    return parts


def _draw_damping(model: "ModelAware", data, plot: Path) -> None:
    from phast.analysis.identifiability import along, damping_band, identified, typical_speed
    from phast.report.plots import damping_band_figure, save_figure

    fine, found = along(data, 0, 201), identified(model)
    curve, width = damping_band(found, fine, typical_speed(found.system, data))
    save_figure(damping_band_figure(fine[:, 0], curve[:, 0], width[:, 0], name=data.manifold.names[0]), plot)


# --- states ----------------------------------------------------------------------------------------------------------


def filter_command(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL")],
    data_file: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of positions.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file of filtered states.")],
    noise: Annotated[
        float | None,
        typer.Option(help="Standard deviation of a measured position; as learned if left out."),
    ] = None,
    process: Annotated[
        float | None, typer.Option(help="For a model of the paper's: its own error per step, a standard deviation.")
    ] = None,
    time: Time = None,
    positions: Positions = None,
    inputs: InputColumns = None,
    trajectory: Runs = None,
    dt: Step = None,
    missing: Missing = None,
    start: Begin = None,
    stop: Stop = None,
    float64: Float64 = False,
) -> None:
    """Predict–correct: estimate positions and momenta from every measurement so far."""
    import numpy as np

    from phast.analysis.forecasts import write_states
    from phast.api import filter_states
    from phast.estimation.forecaster import Phast
    from phast.estimation.moving_horizon import ModelAware
    from phast.report.text import figure

    if not all(x is None or x > 0 for x in (noise, process)):
        raise InputError("--noise and --process are standard deviations: give positive numbers")
    columns = named_columns(time, positions, inputs, trajectory, dt, missing)
    kinds = (Phast, ModelAware)
    model, recording = model_and_recording(kinds, model_file, data_file, columns, (start, stop), float64)
    states = filter_states(model, recording, measurement_noise=noise, process_noise=process)
    write_states(recording, states, output)
    surprise = np.concatenate([each.innovation[1:].reshape(-1) for each in states])
    print(f"rms surprise per measurement: {figure(float(np.sqrt(np.mean(surprise**2))))}   states: {output}")


# --- files -----------------------------------------------------------------------------------------------------------


def named_columns(time, positions, inputs, trajectory, dt, missing) -> dict[str, Any]:
    """What was said of the columns."""
    named = {"time": time, "positions": positions, "inputs": inputs, "trajectory": trajectory}
    named |= {"dt": dt, "missing": missing}
    return {name: value for name, value in named.items() if value is not None}


def _recorded(files: list[str], columns: dict[str, Any], start: float | None, stop: float | None) -> "Recording":
    """The files as one recording; what was handled on the way in is said."""
    import math

    from phast.data.reading import read

    recording = read(files[0] if len(files) == 1 else files, **columns)
    for note in recording.notes:
        print(f"note: {note}")
    if start is None and stop is None:
        return recording
    return recording.between(-math.inf if start is None else start, math.inf if stop is None else stop)


def _is_model(source: str) -> bool:
    path = Path(source)
    return path.suffix == ".phast" or (path / MODEL_FILE).is_file()


def _model_path(path: Path) -> Path:
    """Where a model goes: a folder holds it as ``model.phast``."""
    return path / MODEL_FILE if path.is_dir() or not path.suffix else path


def found_model(path: Path) -> Path:
    return path / MODEL_FILE if path.is_dir() else path


def model_and_recording(kind, model_file: Path, files: list[str], columns: dict[str, Any], between, float64: bool):
    from phast.api import enable_float64
    from phast.fitting.checkpoint import describe, load, needs_float64

    model_file = found_model(model_file)
    if float64 or needs_float64(model_file):
        enable_float64()
    model = load(model_file)
    if not isinstance(model, kind):
        raise InputError(f"{model_file}: holds a {type(model).__name__}, which cannot do this")
    known = describe(model_file).get("columns") or {"positions": ",".join(model.manifold.coordinates)}
    if "dt" in columns:
        known = {name: value for name, value in known.items() if name != "time"}
    return model, _recorded(files, known | columns, *between)
