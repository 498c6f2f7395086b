"""Puts into two folders what a GPU machine without a network needs to run the benchmarks.

Each folder stays below what one transfer carries. Pure Python travels as wheels. Of large wheels
only the libraries that are called travel, thinned to one architecture and packed with xz; the
script ``unpack.py`` beside them puts everything into one folder for ``PYTHONPATH``.

``make gpu-bundle`` fills ``build/gpu``; downloads stay in ``build/gpu-downloads``. What could not
be brought stands in ``build/gpu/left-out.txt``.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import fatbin

ROOT = Path(__file__).resolve().parent.parent
TARGET, DOWNLOADS = ROOT / "build" / "gpu", ROOT / "build" / "gpu-downloads"
LIMIT = 60 << 20
ARCH = 90  # sm_90: H100, H200
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in (17, 24, 27, 28, 31, 34, 35, 39)),
             "manylinux2014_x86_64", "manylinux1_x86_64")  # fmt: skip

WHEELS = {
    "first": (
        "liger-kernel==0.8.5",
        "flag-gems==5.0.2",
        "sqlalchemy==2.1.9",
        "platformdirs",
        "nvidia-cutlass-dsl-libs-base==4.8.1",
        "apache-tvm-ffi==0.1.15.post2",
    ),
    "second": (
        "quack-kernels==0.6.5",
        "nvidia-cutlass-dsl==4.8.1",
        "nvidia-cutlass-dsl-libs-core==4.8.1",
        "torch-c-dlpack-ext==0.1.5",
    ),
}
"""Wheels that travel whole, without what they need: the machine has torch, triton, numpy, einops,
packaging, pyyaml, cuda-bindings, protobuf, click, rich, pluggy, pytest, hypothesis, jinja2,
nvidia-ml-py, tokenizers, safetensors, matplotlib, transformers."""


class Library(NamedTuple):
    """One file of a large wheel."""

    folder: str
    wheel: str
    file: str
    thin: bool = False


_CU13 = "nvidia-cutlass-dsl-libs-cu13==4.8.1"
_DSL = "nvidia_cutlass_dsl"
_IR = f"{_DSL}/dsl_packages/cutlass/_mlir/_mlir_libs"
LIBRARIES = (
    Library("first", "vllm==0.33.0", "vllm/_C_stable_libtorch.abi3.so", thin=True),
    Library("first", "vllm==0.33.0", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", thin=True),
    Library("first", _CU13, f"{_DSL}/cu13/lib/libcute_dsl_runtime.so"),
    Library("first", _CU13, f"{_DSL}/cu13/lib/libcuda_dialect_runtime_static.a"),
    Library("first", _CU13, f"{_IR}/_cutlass_ir_version_cu13.py"),
    Library("second", _CU13, f"{_IR}/_cutlass_ir.cu13.cpython-312-x86_64-linux-gnu.so"),
)
LEFT_OUT = """\
flashinfer-python 0.7.4: its wheel has 97 MB, its kernels are compiled by nvcc at the first call
  (minutes of device time), and it needs cuda-tile, nccl4py, nccl-extensions and
  nvidia-cudnn-frontend besides. FlashAttention 3 stands for it in attention.
vllm 0.33.0 as a package: 336 MB. Two of its libraries are brought: norms, gates, rotary embedding
  and cache writes; FlashAttention 3.
SmolLM2's weights: 93 MB that do not compress. benchmarks/gpu_engine.py draws random ones.
"""


def fetch(wheel: str) -> Path:
    """The file of a wheel for Python 3.12 on x86-64, downloaded once."""
    name, _, version = wheel.partition("==")
    pattern = f"{name.replace('-', '_')}-{version or ''}*.whl"
    if not (have := sorted(DOWNLOADS.glob(pattern))):
        platforms = [word for p in PLATFORMS for word in ("--platform", p)]
        command = [
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
            "--python-version", "3.12", "--implementation", "cp", *platforms,
            "-d", str(DOWNLOADS), wheel,
        ]  # fmt: skip
        subprocess.run(command, check=True)
        have = sorted(DOWNLOADS.glob(pattern))
    return have[-1]


def packed(library: Library) -> Path:
    """One file of a wheel, thinned where it says so, packed with xz; kept beside the downloads."""
    kept = DOWNLOADS / "packed" / f"{library.file}.xz"
    if not kept.exists():
        with zipfile.ZipFile(fetch(library.wheel)) as archive:
            data = archive.read(library.file)
        if library.thin:
            data, counts = fatbin.thinned(data, ARCH)
            print(f"{library.file}: code of {counts}", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_bytes(lzma.compress(data))
        part.replace(kept)
    return kept


def place(source: Path, target: Path) -> None:
    """Copies a file to where the bundle wants it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def main() -> int:
    """Fills the folders; 1 where one is larger than a transfer."""
    DOWNLOADS.mkdir(parents=True, exist_ok=True)
    for folder, wheels in WHEELS.items():
        for wheel in wheels:
            source = fetch(wheel)
            place(source, TARGET / folder / source.name)
    for library in LIBRARIES:
        place(packed(library), TARGET / library.folder / f"{library.file}.xz")
    (TARGET / "left-out.txt").write_text(LEFT_OUT, encoding="utf-8")
    sizes = {}
    for folder in sorted({library.folder for library in LIBRARIES}):
        place(Path(__file__).with_name("gpu_unpack.py"), TARGET / folder / "unpack.py")
        sizes[folder] = sum(p.stat().st_size for p in (TARGET / folder).rglob("*") if p.is_file())
        print(f"{TARGET / folder}: {sizes[folder] / (1 << 20):.1f} MiB of {LIMIT >> 20}")
    print(f"left out:\n{LEFT_OUT}", end="")
    return int(max(sizes.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
