"""Which law: ranking, how decisive it is, and what is held out."""

import math

import numpy as np
import pytest

import phast
from phast.api import comparison
from phast.api.comparison import Comparison, Ranked, split
from phast.cli.compare import named_candidates
from phast.cli.options import StructureOptions
from phast.errors import InputError


def row(name: str, evidence: float, error: float = 0.1) -> Ranked:
    return Ranked(name, evidence, 2.0, 0.01, error, None if math.isinf(evidence) else object())


def test_differences_in_evidence_are_said_in_words():
    ranked = [row("a", 10.0), row("b", 9.5), row("c", 8.5), row("d", 7.0), row("e", 1.0), row("f", -math.inf)]
    found = Comparison(tuple(ranked), "50 steps")
    assert found.verdicts() == ["best", "cannot be told apart", "weak", "strong", "decisive", "decisive"]
    assert found.remarks() == ["a and b cannot be told apart by these data", "f could not be fitted"]
    assert list(found.to_frame()["behind"][:3]) == [0.0, 0.5, 1.5]
    assert found.summary()["candidates"][-1]["evidence"] is None
    assert "cannot be told apart" in repr(found)
    assert found.plot().axes


def test_a_better_forecast_of_what_was_held_out_is_named():
    found = Comparison((row("a", 10.0, 0.5), row("b", 1.0, 0.1)), "1 s")
    assert found.remarks() == ["b forecasts what was held out better: 0.1 of standing still"]


@pytest.mark.parametrize(
    ("pieces", "learned", "kept"), [(1, [75], [25]), (3, [75] * 3, [25] * 3), (8, [100] * 6, [100] * 2)]
)
def test_the_last_part_is_held_out(pieces, learned, kept):
    recording = phast.read(np.random.default_rng(0).normal(size=(pieces, 100, 1)), dt=0.1)
    parts = split(recording, 0.25)
    assert [[len(piece.t) for piece in part.pieces] for part in parts] == [learned, kept]


def test_only_what_differs_names_a_candidate():
    words = [phast.Structure("cosine", damping=d) for d in ("viscous", "coulomb")]
    assert comparison._names(words) == ["viscous", "coulomb"]
    with pytest.raises(InputError, match="two candidates are the same"):
        comparison._names([words[0], words[0]])


def test_bars_make_every_combination():
    found = named_candidates(StructureOptions(potential="cosine | quadratic", damping="viscous|coulomb"))
    assert [(each["potential"], each["damping"]) for each in found] == [
        ("cosine", "viscous"),
        ("cosine", "coulomb"),
        ("quadratic", "viscous"),
        ("quadratic", "coulomb"),
    ]
    with pytest.raises(InputError, match="put a bar between candidates"):
        named_candidates(StructureOptions(potential="cosine"))
    with pytest.raises(InputError, match="unknown potential 'cosin'"):
        named_candidates(StructureOptions(potential="cosin|quadratic"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(([],), "nothing to compare"), (([phast.Structure("cosine")],), "share that is not fitted")],
)
def test_mistakes(arguments, message):
    with pytest.raises(InputError, match=message):
        phast.compare(np.ones((50, 1)), *arguments, holdout=1.5, dt=0.1)


def test_a_spring_is_preferred_to_a_dry_slide():
    """Two fits of one short recording: the springs of the truth win, decisively."""
    t = 0.1 * np.arange(60)
    q = np.stack([a * np.exp(-0.1 * t) * np.cos(2.0 * t + a) for a in (0.7, 1.3, 2.0, 1.1)])[..., None]
    q = q + 1e-3 * np.random.default_rng(0).normal(size=q.shape)
    asked = [phast.Structure(potential=p, damping="viscous", regime="known") for p in ("constant", "quadratic")]
    found = phast.compare(q, asked, dt=0.1, positions="x", horizon=10)
    assert [each.name for each in found.candidates] == ["quadratic", "constant"]
    assert found.verdicts()[1] == "decisive" and found.candidates[0].error < 0.05 < found.candidates[1].error
