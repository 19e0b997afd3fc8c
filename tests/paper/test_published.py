"""``published.toml`` is what the paper prints: its shape, and its digits cell by cell where the paper is at hand."""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

import phast
from phast.dynamics.systems import SYSTEMS

PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"
NUMBERS = tomllib.loads((Path(phast.__file__).parent / "paper" / "published.toml").read_text(encoding="utf-8"))

REGIMES = {"KNOWN": "phast-known", "PARTIAL": "phast-partial", "UNKNOWN": "phast-unknown"}
BASELINES = {
    "GRU": "gru",
    "LSTM": "lstm",
    "S5": "s5",
    "LinOSS": "linoss",
    "D-LinOSS": "d-linoss",
    "Transformer": "transformer",
    "VPT": "vpt",
}
ABLATIONS = {
    "partial-cap",
    "unknown-cap",
    "cap-sensitivity",
    "timestep-policy",
    "full-state",
    "cartpole-mass",
    "double-pendulum-mass",
    "substeps",
    "baseline-capacity",
    "gauge-freedom",
    "overview",
    "suite-summary",
    "casimir",
    "casimir-full-state",
    "casimir-near-stable",
    "casimir-noise-match",
    "casimir-stress",
}
THETA, MIXED, PLAIN = (f"rollout_{kind}_h100" for kind in ("theta_wrap_mse", "mixed_mse", "mse"))
R2, MAE = "damping_r2", "damping_mae"
BUDGET, PASSIVITY = "rollout_energy_budget_resid_h100", "rollout_passivity_violations_h100"
PAIRS = {THETA, MIXED, PLAIN, R2, MAE, BUDGET, PASSIVITY, "theta_wrap_mse", "mse", "best_phast", "best_baseline"}
ERRORS = {"mass_error", "force_error"}  # of the gauge study, printed without a deviation
LOOP = {"success", "final_error", "effort", "velocity_error"}  # of the control study, printed without a deviation
VERDICTS = {"identifiable", "non-identifiable"}
BEST = {"best_phast_model": REGIMES, "best_baseline_model": BASELINES}


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_pair(value):
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[1] > 0


def leaves(tables):
    return {
        (t, row, key): value
        for t, rows in tables.items()
        for row, entry in rows.items()
        for key, value in entry.items()
    }


# ── shape ──


def test_every_section_is_of_a_system_and_a_model_or_of_an_ablation():
    assert set(NUMBERS) - set(SYSTEMS) == ABLATIONS
    assert sum(system.benchmark for system in SYSTEMS.values()) == 13
    assert {name for name, system in SYSTEMS.items() if system.benchmark} == set(NUMBERS) - ABLATIONS
    for system in set(NUMBERS) - ABLATIONS:
        assert set(REGIMES.values()) < set(NUMBERS[system]) <= {*REGIMES.values(), *BASELINES.values()}, system
    assert set(NUMBERS["suite-summary"]) == set(NUMBERS) - ABLATIONS
    overview = {tuple(row.split(" ")) for row in NUMBERS["overview"]}
    assert {system for system, _ in overview} <= set(SYSTEMS)
    assert {model for _, model in overview} <= {*REGIMES.values(), *BASELINES.values()}


def test_every_value_is_a_pair_a_count_or_a_name():
    for (table, row, key), value in leaves(NUMBERS).items():
        where = f"{table}.{row}: {key}"
        if key == "parameters":
            assert type(value) is int and value > 0, where
        elif key in BEST:
            assert set(value.split("/")) <= set(BEST[key].values()), where
        elif key == "verdict":
            assert value in VERDICTS, where
        elif key in LOOP:
            assert is_number(value) and value >= 0 and table.startswith("casimir"), where
        elif key in ERRORS:
            assert is_number(value) and value > 0, where
        elif key == "gain":
            assert is_number(value) and value > 1, where
        else:
            plain = table in ("overview", "suite-summary") and is_number(value)
            assert key in PAIRS and (plain or is_pair(value)), where


def test_the_summary_names_the_best_of_each_system():
    """Where the summary rounds, by less than a thousandth; its gains have two digits."""
    for system, best in NUMBERS["suite-summary"].items():
        errors = {
            model: next(v[0] for key, v in entry.items() if key in (THETA, MIXED, PLAIN, "mse"))
            for model, entry in NUMBERS[system].items()
        }
        means = []
        for kind, models in (("best_phast", REGIMES), ("best_baseline", BASELINES)):
            means.append(best[kind][0] if is_pair(best[kind]) else best[kind])
            assert means[-1] == pytest.approx(min(errors[m] for m in models.values() if m in errors), rel=1e-3), system
            for model in best[f"{kind}_model"].split("/"):
                assert means[-1] == pytest.approx(errors[model], rel=1e-3), system
        assert best["gain"] == pytest.approx(means[1] / means[0], rel=0.03), system


# ── digits ──


class Source(NamedTuple):
    """Rows of a printed table: first cell -> row here; per further column, what its heading must say, the tables and
    the form of the row's name here, and the key. A column without a key is not of interest."""

    label: str
    rows: dict[str, str]
    columns: tuple[tuple[str, str, str, str | None], ...]


def columns(table, *pairs):
    return tuple((heading, table, "{}", key) for heading, key in pairs)


PRINTED_REGIMES = {f"PHAST ({printed})": model for printed, model in REGIMES.items()}
EVERYBODY = {**PRINTED_REGIMES, **BASELINES}
SUM, SUM_TO_R = r"$\sum_i\beta_i(q)\le %s$", r"$\sum_{i=1}^{r}\beta_i(q)\le %s$"
DIAGNOSTICS = (("WrapMSE", THETA), ("R^2_D", R2), ("MAE", MAE), ("EbudRes", BUDGET))
PENDULUMS = "pendulum-conservative", "pendulum-damped", "pendulum-windy"


def pendulums(rows, counted):
    errors = zip(("Conservative", "Damped", "Windy"), PENDULUMS, strict=True)
    return Source(
        "tab:qonly_rollout_pendulum_h100",
        rows,
        (("Params", counted, "{}", "parameters"), *((heading, system, "{}", THETA) for heading, system in errors)),
    )


def two_systems(label, rows, kind, key, heading):
    names = f"{kind}-conservative", f"{kind}-damped"
    errors = ((f"{heading} (cons)", names[0], "{}", key), (f"{heading} (damped)", names[1], "{}", key))
    return Source(label, rows, (("Params", " ".join(names), "{}", "parameters"), *errors))


def one_system(label, system, key, heading):
    return Source(
        label,
        {**EVERYBODY, "S5 (best baseline)": "s5"},
        columns(system, ("Params", "parameters"), (heading, key)),
    )


def overview_columns():
    for system, key in (("pendulum-windy", THETA), ("double-pendulum-windy", THETA), ("cartpole-windy-rail", MIXED)):
        yield "MSE$_{100}$", "overview", f"{system} {{}}", key
        yield "R^2_D", "overview", f"{system} {{}}", R2


def substeps(printed, system, key):
    errors = ((f"$L{{=}}{count}$", "substeps", f"{{}}, L = {count}", key) for count in (1, 4))
    return Source(
        "tab:core_substeps_coarse_dt", {printed: system}, (("Metric", "", "", None), (r"$\dt$", "", "", None), *errors)
    )


def masses(label, table, *pairs):
    rows = {"PHAST (KNOWN, constant $M$)": "constant M", "PHAST (KNOWN, $M(q)$)": "M(q)"}
    return Source(label, rows, columns(table, ("Params", "parameters"), *pairs))


SOURCES = (
    Source("tab:windy_identifiability", EVERYBODY, columns("pendulum-windy", *DIAGNOSTICS, ("Params", "parameters"))),
    pendulums(PRINTED_REGIMES, "pendulum-windy"),
    pendulums(BASELINES, " ".join(PENDULUMS)),
    one_system("tab:qonly_rollout_cartpole_h100", "cartpole-windy", MIXED, "Cart-Pole"),
    two_systems("tab:qonly_rollout_double_h100", EVERYBODY, "double-pendulum", THETA, "Double"),
    two_systems("tab:qonly_rollout_oscillator_h100", EVERYBODY, "oscillator", PLAIN, "Oscillator"),
    one_system("tab:qonly_rollout_rlc", "rlc", "mse", "RLC"),
    one_system("tab:qonly_rollout_lj3", "lennard-jones-3", "mse", "LJ-3"),
    one_system("tab:qonly_rollout_heat", "heat-exchange", "mse", "Heat"),
    one_system("tab:qonly_rollout_nbody", "n-body-3", "mse", "N-body"),
    one_system("tab:qonly_rollout_predprey", "predator-prey", "mse", "Predator"),
    Source(
        "tab:partial_damping_cap_windy",
        {"Unbounded": "unbounded", SUM % "0.5": "bound 0.5"},
        columns("partial-cap", *DIAGNOSTICS),
    ),
    Source(
        "tab:unknown_damping_cap_windy",
        {"Unbounded": "unbounded"} | {SUM_TO_R % bound: f"bound {bound}" for bound in ("0.5", "1.0")},
        columns("unknown-cap", *DIAGNOSTICS),
    ),
    Source(
        "tab:windy_cap_sensitivity_quick",
        {"Unbounded": "unbounded"} | {SUM_TO_R % bound: f"bound {bound}" for bound in ("0.25", "0.5", "1.0")},
        columns("cap-sensitivity", *DIAGNOSTICS, ("PassViol", PASSIVITY)),
    ),
    Source(
        "tab:windy_dt_d0_ablation",
        {
            rf"{timestep} $\dt_{{\mathrm{{model}}}}$, {base} $d_0$": f"{timestep.replace('able', 'ed')} dt, {base} d0"
            for timestep in ("fixed", "learnable")
            for base in ("fixed", "learned")
        },
        columns("timestep-policy", *DIAGNOSTICS, ("PassViol", PASSIVITY)),
    ),
    Source(
        "tab:fullstate_windy_dhnn",
        {**PRINTED_REGIMES, "DHNN": "dhnn"},
        columns(
            "full-state",
            ("Params", "parameters"),
            (r"\mathrm{WrapMSE}_\theta$", "theta_wrap_mse"),
            (r"\mathrm{WrapMSE}_\theta^{\mathrm{roll}}(100)", THETA),
            ("R^2_D", R2),
            ("MAE", MAE),
        ),
    ),
    masses(
        "tab:cartpole_nonseparable_mass",
        "cartpole-mass",
        ("MixedMSE", MIXED),
        ("EbudRes", BUDGET),
        ("PassViol", PASSIVITY),
        ("R^2_D", R2),
        ("MAE", MAE),
    ),
    masses(
        "tab:double_pendulum_nonseparable_mass",
        "double-pendulum-mass",
        ("WrapMSE", THETA),
        ("EbudRes", BUDGET),
        ("PassViol", PASSIVITY),
    ),
    substeps("Windy Cart-Pole", "cartpole-windy", MIXED),
    substeps("Double Pendulum", "double-pendulum-damped", THETA),
    Source(
        "tab:baseline_scaling_windy",
        {f"{printed} ($d{{=}}128$)": model for printed, model in BASELINES.items()},
        columns("baseline-capacity", ("Params", "parameters"), ("WrapMSE", THETA)),
    ),
    Source("fig:gallery_overview", {**REGIMES, **BASELINES}, tuple(overview_columns())),
    Source(
        "tab:qonly_suite_summary_h100",
        {
            "Pendulum (cons)": "pendulum-conservative",
            "Pendulum (damped)": "pendulum-damped",
            "Pendulum (windy)": "pendulum-windy",
            "Cart-Pole (windy)": "cartpole-windy",
            "Oscillator (cons)": "oscillator-conservative",
            "Oscillator (damped)": "oscillator-damped",
            "Double pendulum (cons)": "double-pendulum-conservative",
            "Double pendulum (damped)": "double-pendulum-damped",
            "RLC circuit (KNOWN)": "rlc",
            "LJ-3 cluster (KNOWN)": "lennard-jones-3",
            "Heat exchange (KNOWN)": "heat-exchange",
            "N-body gravity (PARTIAL)": "n-body-3",
            "Predator--prey (UNKNOWN)": "predator-prey",
        },
        columns("suite-summary", ("Best PHAST", "best_phast"), ("Best baseline", "best_baseline"), ("Gain", "gain")),
    ),
)

NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
CELL = re.compile(rf"({NUMBER})(?: *\\pm *({NUMBER}))?(?: *\(([\w/-]+)\))?")


def reading(cell):
    """A printed cell: its number, [mean, std] or count, and the name behind it in parentheses; no number for a dash."""
    text = re.sub(r"\{?\\times\}? *10\^\{(-?\d+)\}", r"e\1", cell).replace(" e", "e")
    text = re.sub(r"\\best|\\times|\{,\}|[${}]", "", text).strip()
    if "---" in text or r"\ll" in text:
        return None, None
    match = CELL.fullmatch(text)
    assert match, f"unreadable: {cell}"
    mean, deviation, name = match.groups()
    if deviation is not None:
        return [float(mean), float(deviation)], name
    return (int(mean) if "{,}" in cell else float(mean)), name


def tabular(text, label):
    """The cells of a table's heading (its last line) and of its rows, by the table's label."""
    assert text.count(rf"\label{{{label}}}") == 1, label
    place = text.index(rf"\label{{{label}}}")
    start = max(text.rfind(rf"\begin{{{kind}}}", 0, place) for kind in ("table", "figure"))
    end = min(i for kind in ("table", "figure") if (i := text.find(rf"\end{{{kind}}}", place)) > 0)
    (body,) = re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", text[start:end], re.DOTALL)
    head, _, rest = body.partition(r"\midrule")

    def lines(part):
        bare = re.sub(r"\\(midrule|bottomrule)\b", "", part)
        return [[cell.strip() for cell in line.split("&")] for line in bare.split(r"\\") if line.strip()]

    return lines(head)[-1], [line for line in lines(rest) if not line[0].startswith(r"\multicolumn")]


def printed(text):
    """Everything of the sources as the TOML has it; and all rows of their tables that no source reads."""
    found: dict[tuple[str, str, str], object] = {}
    unread = {}
    for source in SOURCES:
        heading, lines = tabular(text, source.label)
        names = [line[0].replace(r"\;", "").strip() for line in lines]
        unread.setdefault(source.label, set(names)).difference_update(source.rows)
        for name, line in zip(names, lines, strict=True):
            if name not in source.rows:
                continue
            for said, cell, (says, tables, form, key) in zip(heading[1:], line[1:], source.columns, strict=True):
                assert says in said, (source.label, says, said)
                if key is None:
                    continue
                value, model = reading(re.sub(r"\\multicolumn\{1\}\{c\}", "", cell))
                for table in tables.split() if value is not None else ():
                    where = table, form.format(source.rows[name]), key
                    assert found.setdefault(where, value) == value, (source.label, where)
                    if model is not None:
                        names_here = {**REGIMES, **BASELINES}
                        found[*where[:2], f"{key}_model"] = "/".join(names_here[part] for part in model.split("/"))
    return found, {label: rows for label, rows in unread.items() if rows}


GAUGE = {  # the cell "Setup" without its residual loss, which all rows have, and the rows here of each mass
    "Learn $M$ (known $V$)": "known V, {}",
    "Learn $V$ (known $M$)": "neural V, known M",
    "Learn both ($M$ + neural $V$)": "neural V, {}",
    "Learn $M$ + structured $V$": "structured V, {}",
    "Learn both ($M$ + sparse-basis $V$)": "sparse V, {}",
}


def printed_gauge(text):
    """The table of gauge freedom, whose rows are named by two cells, as the TOML has it."""
    found = {}
    for setup, mass, *errors, conclusion in tabular(text, "tab:gauge_freedom_double_pendulum")[1]:
        row = GAUGE[setup.partition(r" + $\mathcal")[0]].format("Cholesky" if mass == "SPD" else mass)
        values = dict(zip(("mass_error", "force_error"), (reading(cell)[0] for cell in errors), strict=True))
        values["verdict"] = conclusion.partition(" (")[0].lower()
        found |= {("gauge-freedom", row, key): value for key, value in values.items() if value is not None}
    return found


CONTROL = {  # label -> the table here, and the noise that all of its rows have where no column says it
    "tab:casimir_main": ("casimir", None),
    "tab:casimir_phast_fullstate": ("casimir-full-state", None),
    "tab:casimir_near_stable": ("casimir-near-stable", 0.01),
    "tab:casimir_noise_match": ("casimir-noise-match", 0.01),
    "tab:casimir_sigma005": ("casimir-stress", 0.05),
}
ESTIMATORS = {
    "Oracle": "oracle",
    "Finite differences": "finite differences",
    "MAP smoother": "MAP smoother",
    "FD+TCN observer": "FD+TCN",
    "PHAST-trained observer": "PHAST-trained observer",
    "PHAST model-based": "∂Ĥ/∂p of a learned model",
    r"$\sigma_{\text{train}}=0.00$ (mismatch)": "FD+TCN trained at σ = 0 (mismatch)",
    r"$\sigma_{\text{train}}=0.01$ (matched)": "FD+TCN trained at σ = 0.01 (matched)",
    r"$\sigma_{\text{train}}\sim\mathcal{U}[0,0.01]$ (anchored range)": "FD+TCN trained on σ ~ U[0, 0.01]",
}
LOOP_HEADINGS = {"Success": "success", "Final error": "final_error", "Effort": "effort", "dot{q}}-": "velocity_error"}


def printed_control(text):
    """The tables of the control study, rows named by an estimator and the noise, as the TOML has it."""
    found = {}
    for label, (table, noise) in CONTROL.items():
        heading, lines = tabular(text, label)
        for line in lines:
            level, cells = (noise, line) if noise is not None else (float(line[0]), line[1:])
            name = ESTIMATORS[cells[0]]
            if "(noise)" in "".join(cells):
                name = "FD+TCN told σ, trained on σ ~ U[0, 0.05]"
            for said, cell in zip(heading, line, strict=True):
                for says, key in LOOP_HEADINGS.items():
                    if says in said:
                        found[table, f"{name}, σ = {level:g}", key] = reading(cell)[0]
    return found


@pytest.mark.parametrize(
    "cell, value",
    [
        ("3{,}364", (3364, None)),
        (r"$0.738 \pm 0.143$", ([0.738, 0.143], None)),
        (r"\best{2.64 \times 10^{-5} \pm 1.5 \times 10^{-8}}", ([2.64e-5, 1.5e-8], None)),
        (r"$1.49{\times}10^{-5} \pm 2.86{\times}10^{-6}$", ([1.49e-5, 2.86e-6], None)),
        (r"\best{-0.234 \pm 0.268}", ([-0.234, 0.268], None)),
        ("$-$1.10", (-1.10, None)),
        (r"\best{0.0010 \pm 0.0002} (KNOWN/PARTIAL)", ([0.0010, 0.0002], "KNOWN/PARTIAL")),
        (r"$4.81 \times 10^{-4}$ (Transformer)", (4.81e-4, "Transformer")),
        (r"$26.5\times$", (26.5, None)),
        (r"$1.1\times 10^{3}$", (1.1e3, None)),
        ("---", (None, None)),
        (r"$\ll\!0$", (None, None)),
    ],
)
def test_a_printed_cell_is_read(cell, value):
    assert reading(cell) == value


@pytest.mark.parametrize("cell", ["", "0.1 0.2", r"$0.1 \pm$", "0.1.2", "about 3"])
def test_a_cell_that_is_something_else_is_not_guessed(cell):
    with pytest.raises(AssertionError, match="unreadable"):
        reading(cell)


@pytest.mark.skipif(not PAPER.exists(), reason=f"the paper's source is not at {PAPER}")
def test_every_number_is_printed_in_its_cell_and_every_cell_is_here():
    text = PAPER.read_text(encoding="utf-8")
    found, unread = printed(text)
    found |= printed_gauge(text) | printed_control(text)
    assert not unread
    here = leaves(NUMBERS)
    assert {where: value for where, value in here.items() if found.get(where) != value} == {}
    assert set(found) - set(here) == set()
