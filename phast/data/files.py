"""Files: written whole or not at all, and where caches live."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from phast.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file that appears under its name only once it is whole: written beside it, synced, renamed."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except IsADirectoryError:
        raise InputError(f"cannot write {path}: it is a folder") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_atomically(path: str | os.PathLike, content: bytes) -> Path:
    """``content`` into ``path``."""
    with replacing(path) as file:
        file.write(content)
    return Path(path)


def check_writable(folder: str | os.PathLike) -> None:
    """Refuse a folder that could not be made or written into, before anything is computed for it."""
    folder = Path(folder).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"cannot write into {folder}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {folder}: Permission denied")


def cache_directory() -> Path:
    """$PHAST_CACHE, or phast's folder in the user's cache directory."""
    if chosen := os.environ.get("PHAST_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phast"


def limit_cache(folder: Path, size: int) -> None:
    """Remove the files that were used longest ago, until all take no more than ``size`` bytes."""
    files = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process cleans up too
            if path.is_file():
                found = path.stat()
                files.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    total = sum(length for _, length, _ in files)
    for _, length, path in sorted(files):
        if total <= size:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= length


TABLES = (".csv", ".parquet", ".npz")
FIGURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".eps", ".webp", ".tif", ".tiff")


def check_target(path: str | os.PathLike, endings: Sequence[str]) -> None:
    """Refuse a file of another ending, or where nothing can be written, before anything is computed for it."""
    check_writable(check_ending(path, endings).parent)


def check_ending(path: str | os.PathLike, endings: Sequence[str]) -> Path:
    """The path, once its ending is one of these."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        known = " or ".join([", ".join(endings[:-1]), endings[-1]] if endings[1:] else endings)
        raise InputError(f"'{path}': the ending must be {known}, not '{path.suffix}'")
    return path
