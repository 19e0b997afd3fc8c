"""Shapes are checked at run time, randomness is fixed, and a test asks for double precision by name."""

import atexit
import contextlib
import ctypes
import gc
import os
import shutil
import sys
import tempfile
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # tests compile much and compute little
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # one for all workers and commands of a run: they inherit it
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="phast-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

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


_MOST_MAPS = 25_000  # of the 65,530 memory maps that Linux gives a process; every compiled program holds several
_MOST_BYTES, _ROOM = 1_800_000_000, 400_000_000  # of one worker's memory
_most_bytes = [_MOST_BYTES]


@pytest.fixture(autouse=True)
def room_for_programs():
    """Thousands of compiled programs exhaust a worker's memory and its maps, and the next one crashes: forget them."""
    yield
    if not os.path.exists("/proc/self/statm"):  # no such thing on this system
        return
    if _bytes() > _most_bytes[0] or _maps() > _MOST_MAPS:
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(AttributeError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
        _most_bytes[0] = max(_MOST_BYTES, _bytes() + _ROOM)  # what stays is no reason to forget after every test


def _bytes() -> int:
    """The resident memory of this process."""
    with open("/proc/self/statm", "rb") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _maps() -> int:
    with open("/proc/self/maps", "rb") as maps:
        return sum(1 for _ in maps)


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
        from phast.cli import main as cli

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


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not (chromium and driver):
        pytest.skip("no chromium or no chromedriver: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
    for flag in (*flags.split(), "disable-component-update", f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver))
    yield driver
    driver.quit()


@pytest.fixture
def visit(browser):
    """``visit(page, width)``: the page at that width, and a function that waits for a line of script to become true."""
    from selenium.webdriver.support.ui import WebDriverWait

    def until(script):
        return WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(f"return {script}"))

    def at(page, width):
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(page.as_uri())
        until("document.readyState === 'complete'")
        return browser, until

    return at
