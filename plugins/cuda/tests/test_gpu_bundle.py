"""What a GPU machine without a network is given: packed, thinned, unpacked; nothing is fetched."""

from __future__ import annotations

import importlib
import lzma
import struct
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def script(monkeypatch):
    """Imports a script of ``.ci``."""
    monkeypatch.syspath_prepend(ROOT / ".ci")
    return importlib.import_module


def entry(kind, arch, payload):
    head = struct.pack("<HHIQ", kind, 0x101, 64, len(payload))
    return (head + bytes(12) + struct.pack("<I", arch)).ljust(64, b"\0") + payload


def binary(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_a_bundle_unpacks_into_one_folder_with_the_metadata_of_projects(script, tmp_path):
    module, bundle = script("gpu_unpack"), tmp_path / "bundle"
    (bundle / "vllm").mkdir(parents=True)
    (bundle / "vllm" / "_C.so.xz").write_bytes(lzma.compress(b"library"))
    with zipfile.ZipFile(bundle / "one-1.whl", "w") as archive:
        archive.writestr("one/__init__.py", "")
    site = tmp_path / "site"
    module.unpack(bundle, site)
    assert (site / "vllm" / "_C.so").read_bytes() == b"library"
    assert (site / "one" / "__init__.py").exists()
    said = module.main(tmp_path / "other", [ROOT / "core", ROOT / "plugins" / "cuda"])
    assert said.startswith(f"export PYTHONPATH={ROOT / 'core' / 'src'}:")
    (info,) = (tmp_path / "other").glob("trivet_cuda-*.dist-info")
    assert (
        "[trivet.plugins]\ncuda = trivet_cuda.plugin\n" in (info / "entry_points.txt").read_text()
    )


def test_a_bundle_packs_what_it_fetched_and_says_its_size(script, monkeypatch, tmp_path, capsys):
    module = script("gpu_bundle")
    for name in ("TARGET", "DOWNLOADS"):
        monkeypatch.setattr(module, name, tmp_path / name)

    def download(command, *, check):
        assert check
        name, _, version = command[-1].partition("==")
        wheel = f"{name.replace('-', '_')}-{version}-py3.whl"
        with zipfile.ZipFile(tmp_path / "DOWNLOADS" / wheel, "w") as archive:
            for library in module.LIBRARIES:
                archive.writestr(library.file, binary(entry(2, 90, b"x" * 64)))

    monkeypatch.setattr(module.subprocess, "run", download)
    assert module.main() == 0
    packed = tmp_path / "TARGET" / "first" / "vllm" / "_C_stable_libtorch.abi3.so.xz"
    assert lzma.decompress(packed.read_bytes()) == binary(entry(2, 90, b"x" * 64))
    assert (tmp_path / "TARGET" / "second" / "unpack.py").exists()
    assert "flashinfer" in (tmp_path / "TARGET" / "left-out.txt").read_text()
    monkeypatch.setattr(module, "LIMIT", 10)
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: 1 / 0)
    assert module.main() == 1
    assert "MiB of" in capsys.readouterr().out


def test_a_thinned_library_keeps_one_architecture_and_every_address(script):
    fatbin = script("fatbin")
    code = {arch: bytes([arch]) * 64 for arch in (80, 90, 100)}
    both = binary(*(entry(2, a, c) for a, c in code.items()))
    none = binary(entry(1, 80, code[80]), entry(2, 100, code[100]))
    data = b"\1" * 24 + both + none + b"\1" * 8
    thin, counts = fatbin.thinned(data, 90)
    assert len(thin) == len(data)
    assert counts == {"kept": 128, "cleared": 192}
    assert thin.count(code[90]) == 1
    assert thin.count(code[80]) == 1
    assert thin.count(code[100]) == 0
    assert [[e.arch for e in es] for es in fatbin.binaries(thin)] == [[80, 90, 100], [80, 100]]
    looks = b"\0" * 8 + fatbin.MAGIC + b"\7" * 28
    assert fatbin.thinned(looks, 90) == (looks, {"kept": 0, "cleared": 0})
