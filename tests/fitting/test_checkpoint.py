"""Model files: whole, exact, and harmless whatever is in them."""

import dataclasses
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array, Float

from phast.components.damping import ConstantDamping, HouseholderDamping
from phast.components.mass import ConstantMass, NeuralMass
from phast.components.parameter import Positive
from phast.components.potential import AbstractPotential, Cosine, Hybrid, MLPPotential, QuadraticForm, Scaled
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import CayleyNeumann, ImplicitDamping, Timestep, Transition
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.forecaster import Core, PhastBlock
from phast.fitting.archives import VERSION, describe
from phast.fitting.checkpoint import load, save
from phast.paper.models import MODELS, model_builder

PAIR = Manifold.parse("x", "theta:angle")


class Own(AbstractPotential):
    """A user's component."""

    strength: Float[Array, ""]
    name: str
    offsets: tuple

    def __call__(self, q):
        return self.strength * jnp.sum(q)


def small():
    """Something of every kind, in as few bytes as possible."""
    return Scaled(QuadraticForm(jnp.array([[0.1, -2.5], [3e-30, 4.0]])), Positive(jnp.array(0.25)))


def composed():
    keys = jax.random.split(jax.random.key(0), 4)
    potential = Hybrid(Cosine((0.0, 9.81)), MLPPotential.create(PAIR, width=3, key=keys[0]), Positive.starting_at(0.01))
    damping = HouseholderDamping.create(PAIR, base=0.1 + 0.2, total_bound=0.5, width=2, harmonics=1, key=keys[1])
    mass = NeuralMass.create(PAIR, width=2, harmonics=1, key=keys[2])
    timestep = Timestep(Positive.starting_at(jnp.array([0.1, 0.2])), 2)
    core = Core(
        PortHamiltonian(potential, mass, damping, ((1.0,), (-0.0,))),
        Transition(CayleyNeumann(3), ImplicitDamping(), timestep),
    )
    return PhastBlock.create(core, 3, 2, key=keys[3])


def assert_same(a, b):
    """Equal to the last bit: structure, types, Python numbers and arrays."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert type(one) is type(other)
        if eqx.is_array(one):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        else:
            assert one == other and repr(one) == repr(other)


def one_line(error):
    message = str(error.value)
    assert "\n" not in message and message.strip()
    return message


# --- there and back --------------------------------------------------------------------------------------------------


def trip_every_model(folder):
    for name in MODELS:
        model = model_builder(name)(system("pendulum-windy"), key=jax.random.key(1))
        path = save(model, folder / f"{name}.phast", model=name)
        assert_same(load(path), model)
        assert describe(path) == {"model": name}


def test_every_model_comes_back(tmp_path):
    trip_every_model(tmp_path)


def test_every_model_comes_back_in_double_precision(tmp_path, float64):
    trip_every_model(tmp_path)
    assert load(tmp_path / "phast-known.phast").observer.head.weight.dtype == jnp.float64


def test_any_composition_comes_back(tmp_path):
    block = composed()
    assert_same(load(save(block, tmp_path / "block.phast")), block)
    bare = PortHamiltonian(Cosine(float("inf")), ConstantMass(1e-320), ConstantDamping(float("nan")))
    again = load(save(bare, tmp_path / "bare.phast"))
    assert again.potential.amplitudes == float("inf") and again.mass.masses == 1e-320
    assert np.isnan(again.damping.coefficients)


@given(
    numbers=st.lists(st.floats(width=32), max_size=5),
    name=st.text(st.characters(codec="utf-8"), max_size=8),
    about=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
)
def test_a_users_class_comes_back_if_named(tmp_path, numbers, name, about):
    own = Own(jnp.array(numbers, dtype=float).sum() if numbers else jnp.array(1.0), name, (1, True, None, (0.5,)))
    about = {f"k{key}": value for key, value in about.items()}
    path = save(own, tmp_path / "own.phast", **about)
    assert_same(load(path, classes=[Own]), own)
    assert describe(path) == about
    with pytest.raises(InputError, match=r"not part of PHAST: load\(path, classes=\[…\]\)") as error:
        load(path)
    assert ":Own'" in one_line(error)


def test_what_cannot_be_saved_leaves_no_file(tmp_path):
    own = Own(jnp.array(1.0), "x", ({"a": 1},))
    with pytest.raises(InputError, match="cannot save a dict inside a model"):
        save(own, tmp_path / "own.phast")
    assert list(tmp_path.iterdir()) == []


def test_single_precision_stays_so_in_a_double_precision_process(tmp_path):
    path = save(small(), tmp_path / "small.phast")
    with jax.enable_x64(True):
        assert_same(load(path), small_single := load(path))
        assert small_single.template.factor.dtype == jnp.float32


def test_double_precision_is_read_in_double_precision(tmp_path):
    with jax.enable_x64(True):
        path = save(small(), tmp_path / "double.phast")
    with pytest.raises(InputError, match=r"read it in double precision, as phast\.load does") as error:
        load(path)
    assert str(path) in one_line(error)
    assert describe(path) == {}


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = save(small(), tmp_path_factory.mktemp("whole") / "small.phast", note="n")
    return path.read_bytes()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "small.phast"


def refused_or_equal(path: Path, content: bytes):
    """The only two ways in which a damaged file may end."""
    path.write_bytes(content)
    try:
        model = load(path)
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return
    assert_same(model, small())


def test_every_truncation_is_refused(whole, damaged):
    for length in range(len(whole)):
        damaged.write_bytes(whole[:length])
        with pytest.raises(InputError):
            load(damaged)
    refused_or_equal(damaged, whole)


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_every_byte_may_go_wrong(whole, damaged, bits):
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= bits
        refused_or_equal(damaged, bytes(content))


@settings(max_examples=150)
@given(edits=st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4))
def test_any_edit_is_refused_or_harmless(whole, damaged, edits):
    content = bytearray(whole)
    for position, patch in edits:
        at = position % len(content)
        content[at : at + len(patch)] = patch
    refused_or_equal(damaged, bytes(content))


@given(content=st.binary(max_size=200))
def test_noise_is_refused(damaged, content):
    damaged.write_bytes(content)
    with pytest.raises(InputError, match="not a readable phast-model file"):
        load(damaged)


# --- foreign and hostile files ---------------------------------------------------------------------------------------


def crafted(path, header, arrays=()):
    """A well-formed zip with this header and these bytes as array files."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", header if isinstance(header, str) else json.dumps(header))
        for i, content in enumerate(arrays):
            archive.writestr(f"{i}.npy", content)
    return path


def header_of(model, **changes):
    return {"format": "phast-model", "version": VERSION, "about": {}, "arrays": 0, "model": model} | changes


FINE = {"class": "phast.components.potential:Cosine", "fields": {"amplitudes": 2.0}}


def test_the_craft_is_right(tmp_path):
    assert load(crafted(tmp_path / "a", header_of(FINE))) == Cosine(2.0)


def test_a_file_from_before_a_field_was_there_takes_its_default(tmp_path):
    """As those written before ``Positive`` had a unit and ``Cosine`` a centre."""
    path = save(small(), tmp_path / "now.phast")
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("header.json"))
        arrays = [archive.read(f"{i}.npy") for i in range(header["arrays"])]
    del header["model"]["fields"]["scale"]["fields"]["unit"]
    assert_same(load(crafted(tmp_path / "before.phast", header, arrays)), small())


def test_units_travel_with_a_model(tmp_path):
    scaled = Scaled(Cosine(2.0, 0.5), Positive.starting_at(3e-4, unit=1e-3))
    assert_same(load(save(scaled, tmp_path / "scaled.phast")), scaled)


WRONG = {
    "not json": "{",
    "a list": "[]",
    "a number": "3",
    "another format": header_of(FINE, format="phast-training"),
    "no format": {"version": VERSION},
    "newer": header_of(FINE, version=VERSION + 1),
    "a version that is no number": header_of(FINE, version="one"),
    "no version": {"format": "phast-model", "arrays": 0, "model": FINE},
    "arrays that are not there": header_of(FINE, arrays=3),
    "arrays that are no number": header_of(FINE, arrays="many"),
    "no model": {"format": "phast-model", "version": VERSION, "arrays": 0},
    "a model that is a word": header_of("hello"),
    "a model that is a list": header_of([FINE]),
    "a model that is nothing": header_of(None),
    "a class that is a number": header_of({"class": 3, "fields": {}}),
    "a missing field": header_of({"class": FINE["class"], "fields": {}}),
    "fields that are a list": header_of({"class": FINE["class"], "fields": []}),
    "defaults that are a list": header_of({"class": "phast.components.potential:Prey", "fields": []}),
    "an array out of range": header_of({"class": FINE["class"], "fields": {"amplitudes": {"array": 0}}}),
    "an array by name": header_of({"class": FINE["class"], "fields": {"amplitudes": {"array": "x"}}}),
    "an abstract class": header_of({"class": "phast.components.potential:AbstractPotential", "fields": {}}),
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG.keys())
def test_wrong_headers_are_refused(tmp_path, header):
    path = crafted(tmp_path / "crafted.phast", header)
    with pytest.raises(InputError) as error:
        load(path)
    message = one_line(error)
    assert str(path) in message and "older PHAST" not in message


def test_an_older_version_says_fit_again(tmp_path):
    with pytest.raises(InputError, match=rf"older PHAST \(format {VERSION - 1}\): fit it again"):
        load(crafted(tmp_path / "old.phast", header_of(FINE, version=VERSION - 1)))


def test_a_newer_version_says_upgrade(tmp_path):
    with pytest.raises(InputError, match=r"newer PHAST .* upgrade"):
        load(crafted(tmp_path / "new.phast", header_of(FINE, version=99)))
    with pytest.raises(InputError, match="newer PHAST"):
        describe(crafted(tmp_path / "new.phast", header_of(FINE, version=99)))


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:eval",
        "builtins:object",
        "subprocess:Popen",
        "equinox.nn:Linear",
        "phast.cli.main:app",
        "phast.cli.main:main",
        "phast.errors:InputError",
        "phast.data.trajectories:Trajectories",
        "phast.nowhere:Thing",
        "phast.paper.models:eqx.Module",
        "phastly:Thing",
        "phast",
        "",
        "phast.:x",
    ],
)
def test_classes_from_elsewhere_are_refused(tmp_path, name):
    path = crafted(tmp_path / "crafted.phast", header_of({"class": name, "fields": {}}))
    with pytest.raises(InputError) as error:
        load(path)
    one_line(error)


def test_a_file_cannot_run_the_command_line(tmp_path, monkeypatch):
    """``phast.__main__`` runs on import; no name in a file may import it."""
    called = []
    monkeypatch.setattr("phast.cli.main.main", lambda: called.append(True))
    path = crafted(tmp_path / "crafted.phast", header_of({"class": "phast.__main__:main", "fields": {}}))
    with pytest.raises(InputError):
        load(path)
    assert not called


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_pickles_are_never_opened(tmp_path):
    sprung = tmp_path / "sprung"
    entry = io.BytesIO()
    np.save(entry, np.array([Payload(sprung)], dtype=object), allow_pickle=True)
    model = {"class": FINE["class"], "fields": {"amplitudes": {"array": 0}}}
    for content in (entry.getvalue(), pickle.dumps(Payload(sprung))):
        path = crafted(tmp_path / "crafted.phast", header_of(model, arrays=1), [content])
        with pytest.raises(InputError) as error:
            load(path)
        one_line(error)
    assert not sprung.exists()


def test_no_file_no_folder(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "nothing.phast")
    with pytest.raises(InputError, match="a folder"):
        load(tmp_path)
    with pytest.raises(InputError):
        load(tmp_path / "nothing.phast" / "below.phast")


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = save(small(), tmp_path / "model.phast")
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises((InputError, OSError)):
            save(dataclasses.replace(small(), scale=2.0), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.phast"]


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=r"cannot write .*No space left on device"):
        save(small(), tmp_path / "model.phast")


def test_unwritable_places_are_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "model.phast", tmp_path):
        with pytest.raises(InputError, match="cannot write") as error:
            save(small(), path)
        assert str(path) in one_line(error)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert list(tmp_path.parent.glob(f".{tmp_path.name}*")) == []


def test_folders_on_the_way_are_made(tmp_path):
    path = save(small(), tmp_path / "a" / "b" / "model.phast")
    assert_same(load(path), small())
