"""What was built, kept between processes: one file a key, written whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trivet_metal_emulator.errors import EmulatorError

__all__ = ["VARIABLE", "folder", "key_of", "locked", "place", "prune", "touch"]

VARIABLE = "TRIVET_METAL_CACHE"
_KEPT = 30 * 24 * 3600
PACKAGE = Path(__file__).parent


def folder() -> Path:
    """Where built kernels lie: `$TRIVET_METAL_CACHE`, or the user's cache."""
    given = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(given) if given else Path(home) / "trivet-metal"
    try:
        path = path.expanduser()
    except RuntimeError:  # nobody's home is known
        path = Path(tempfile.gettempdir()) / f"trivet-metal-{os.getuid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmulatorError(
            f"built kernels cannot be kept in {path}: {error}", fix=f"set {VARIABLE} to a folder"
        ) from error
    if not os.access(path, os.W_OK):
        raise EmulatorError(f"{path} cannot be written", fix=f"set {VARIABLE} to a folder that can")
    return path


@functools.cache
def _own_files() -> str:
    """A digest of this package: another emulator builds other kernels of the same text."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in {".py", ".h", ".cpp"}:
            digest.update(path.relative_to(PACKAGE).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(*parts: object) -> str:
    """A name for what these parts make, with this version of the emulator."""
    return hashlib.sha256(repr((_own_files(), parts)).encode()).hexdigest()[:24]


@contextlib.contextmanager
def locked(key: str) -> Iterator[Path]:
    """Holds the lock of a key; gives the path without suffix. Other processes wait meanwhile."""
    base = folder() / key
    try:
        file = Path(f"{base}.lock").open("w", encoding="ascii")  # noqa: SIM115 - closed below
    except OSError as error:
        raise EmulatorError(
            f"{base.parent} cannot be used: {error}", fix=f"set {VARIABLE} to another folder"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield base


def prune() -> None:
    """Removes what nobody used for a month; `touch` says that something is used."""
    oldest = time.time() - _KEPT
    for path in folder().glob("*.so"):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if path.stat().st_mtime < oldest:
                path.with_suffix(".json").unlink(missing_ok=True)
                path.unlink()


def touch(path: Path) -> None:
    """Notes that a file of the cache is used."""
    with contextlib.suppress(OSError):  # somebody else's cache, only read here
        os.utime(path)


@contextlib.contextmanager
def place(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes the target when the block ends without an error."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=target.suffix)
    os.close(handle)
    path = Path(name)
    try:
        yield path
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)
