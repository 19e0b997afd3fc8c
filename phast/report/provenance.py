"""What numbers depend on: versions of packages, and the commit of the source tree."""

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path


@functools.cache
def versions() -> dict[str, str]:
    """What the numbers depend on."""
    packages = ("phast", "jax", "equinox", "optax", "diffrax", "numpy")
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
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
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", "phast") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
