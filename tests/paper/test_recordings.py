"""Real recordings; skipped where they are not to be had. They are never part of the repository."""

import json
from pathlib import Path

import numpy as np
import pytest

from phast.errors import InputError
from phast.paper import recordings
from phast.paper.recordings import STUDIES, Recordings, carry_out

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
RECORDS = Recordings("measured", "measured").records(ROOT / "results")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no recordings in {DATA}")


@needs_data
@pytest.mark.usefixtures("float64")
def test_a_single_pendulum_is_foretold_and_its_friction_found(tmp_path):
    """Trained on the first 20 s: 2 s ahead in the last 20 s within 10 mrad, the natural frequency within 1 %."""
    record, forecast = carry_out("measured-single", DATA, tmp_path, lambda stage: None)
    seen = forecast.seen
    assert record["metrics"]["rms"] < 10e-3 and len(seen.contexts) >= 15
    assert min(context.t[0] for context in seen.contexts) >= 20.0
    assert record["facts"]["natural_frequency"] == pytest.approx(np.sqrt(64.1), rel=0.01)
    found = {c["name"]: c for c in record["coefficients"]}
    assert found["damping.coulomb"]["value"] > 3.0 * found["damping.coulomb"]["deviation"] > 0.0
    assert record["metrics"]["within_two_deviations"] > 0.8
    assert json.loads((tmp_path / "measured" / "measured-single.json").read_text()) == record


@needs_data
@pytest.mark.parametrize("name", STUDIES)
def test_nothing_is_trained_on_that_is_forecast(name):
    """Parts do not overlap in time, or are different runs; the lynx's contexts reach back, its forecasts do not."""
    train, test = STUDIES[name].split(DATA)
    if {piece.label for piece in train.pieces} & {piece.label for piece in test.pieces}:
        last = max(piece.t[-1] for piece in train.pieces)
        count = int(STUDIES[name].context) if name == "measured-lynx" else 0
        assert all(piece.t[count] > last for piece in test.pieces)


def test_records_say_what_the_docs_claim():
    numbers = {record["study"]: record["metrics"] for record in RECORDS}
    assert numbers["measured-single"]["rms"] < 10e-3 and numbers["measured-double"]["rms"] < 15e-3
    table = Recordings("measured", "measured").sheet(RECORDS).markdown()
    assert table in (ROOT / "docs" / "explanation" / "measured.md").read_text(encoding="utf-8")


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(InputError, match="--data"):
        carry_out("measured-single", tmp_path / "nothing", tmp_path, lambda stage: None)


def test_the_linear_rival_finds_a_linear_system():
    """x⁺ = 0.9 x foretold exactly."""
    from phast.analysis.forecasts import Context, Foresight
    from phast.data.manifold import Manifold
    from phast.data.recording import Piece, Recording
    from phast.estimation.inputs import Held

    q = 0.9 ** np.arange(40.0)[:, None]
    piece = Piece("0", np.arange(40.0), q, None)
    recording = Recording((piece,), Manifold.parse("x"), 1.0)
    context = Context("0", piece.t[:5], q[:5], Held(), Held(), piece.t[5:15], q[5:15])
    seen = Foresight([context], q[None, 5:15], None, recording.manifold, "takeover")
    assert recordings._linear(recording, recording, None, seen) < 1e-10
