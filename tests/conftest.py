"""Shapes are checked at run time, randomness is fixed, and a test asks for double precision by name."""

import os
import sys
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jaxtyping

jaxtyping.install_import_hook("phast", "beartype.beartype")  # before anything imports phast

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402

settings.register_profile(
    "phast",
    deadline=None,
    derandomize=True,
    max_examples=25,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("phast")


@pytest.fixture
def float64():
    """Double precision for one test; whatever it uses must be created inside it."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def quick_compile():
    """XLA without its expensive passes, for a test that compiles much and computes little."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def perturbed():
    """``perturbed(module, noise)``: ``noise``, one number per parameter, added to everything that can be trained."""

    def perturb(module, noise):
        trainable, rest = eqx.partition(module, eqx.is_inexact_array)
        flat, unflatten = ravel_pytree(trainable)
        return eqx.combine(unflatten(flat + noise), rest)

    return perturb


@pytest.fixture(scope="session")
def trainable_count():
    """How many numbers an optimiser would see."""
    return lambda module: sum(x.size for x in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)))


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(cache):
    return os.environ | {
        "PHAST_CACHE": str(cache),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }


@pytest.fixture
def run(monkeypatch, capfd, environment):
    """``run("systems")`` -> (exit code, standard output, standard error)."""

    def call(*arguments):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["phast", *map(str, arguments)])
        capfd.readouterr()
        from phast import cli

        code, precise, show = 0, jax.config.jax_enable_x64, warnings.showwarning
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            jax.config.update("jax_enable_x64", precise)  # the sharp preset switches a whole process
            warnings.showwarning = show
        return code, *capfd.readouterr()

    return call
