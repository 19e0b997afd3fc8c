"""Shapes are checked at run time, randomness is fixed, and a test asks for double precision by name."""

import gc
import os
import shutil
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


_MOST_MAPS = 25_000  # of the 65,530 memory maps that Linux gives a process; every compiled program holds several


@pytest.fixture(autouse=True)
def room_for_programs():
    """Thousands of compiled programs exhaust a worker's memory maps, and the next compilation crashes: forget them."""
    yield
    _forget_programs()


def _forget_programs() -> None:
    try:
        with open("/proc/self/maps", "rb") as maps:
            crowded = sum(1 for _ in maps) > _MOST_MAPS
    except OSError:  # no such thing on this system
        return
    if crowded:
        jax.clear_caches()
        gc.collect()


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
