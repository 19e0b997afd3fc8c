"""What numbers depend on: versions of packages, and the commit of the source tree."""

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

_DISTRIBUTIONS = {"phast": "phast-physics"}  # where the name on PyPI is not that of the import


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that the numbers depend on, by import name."""
    packages = ("phast", "jax", "equinox", "optax", "diffrax", "numpy")
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(_DISTRIBUTIONS.get(package, package))
        except importlib.metadata.PackageNotFoundError:
            found[package] = "source"
    return found | {"python": platform.python_version()}


@functools.cache
def commit() -> str:
    """The commit of the source tree that this package is run from, marked where files differ from it."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != root:  # installed in an environment inside another repository
            return "unknown"
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", "phast") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
