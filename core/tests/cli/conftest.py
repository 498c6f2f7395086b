from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import click.testing
import pytest

from fake_dists import FakeDists, installed
from trivet import plugins
from trivet.cli import commands
from trivet.cli.program import program
from trivet.settings import PREFIX

ACME = """
    import torch
    from trivet.contracts import (
        DeviceInfo, between, divisible, dtype, equal, feature, implements, one_of
    )

    def trivet_devices():
        return [DeviceInfo("acme", name="Acme One", features=frozenset({"wide"}),
                           cache_bytes={"l2": 1 << 20}, notes=("kernels built without vectors",))]

    def trivet_defaults(device):
        return {"block_size": (16, "a page is a row of the cache"), "dtype": (torch.float32, "x")}

    def trivet_implementations(device):
        return [norm, small, never, packed, raises]

    @implements("rms_norm_out@1", name="vec", graph_safe=True, deterministic=True,
                domain=[dtype("x", "float32"), equal("weight.dtype", "x.dtype"),
                        divisible("hidden", 8), one_of("weight_offset", 0.0)])
    def norm(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0,
             *, out):
        part = x[..., :variance_size] if variance_size else x
        out.copy_(x * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + eps) * weight)

    @implements("silu_and_mul@1", name="small", domain=[between("tokens", 0, 4)])
    def small(x):
        half = x.shape[-1] // 2
        return torch.nn.functional.silu(x[..., :half]) * x[..., half:]

    @implements("silu_and_mul@1", name="never", requires=[feature("tall")])
    def never(x):
        return x

    def pack(facts, weight, bias):
        assert facts["out_features"] == weight.shape[0]
        return [weight.t().contiguous()]

    @implements("linear_packed@1", name="mm", prepare=pack, domain=[dtype("x", "float32")])
    def packed(x, packed, out_features, bias=None):
        y = x @ packed[0]
        return y if bias is None else y + bias

    @implements("sample_token@1", name="raises")
    def raises(
        logits, temperature=None, top_k=None, top_p=None, min_p=None, seed=None, position=None
    ):
        raise RuntimeError("no such instruction")
"""
"""A plugin with a guarded, a derived, a prepared, an impossible and a failing implementation."""


class Cli:
    """Runs commands in this process, with 80 columns and nothing installed but fakes."""

    def __init__(self, dists: FakeDists) -> None:
        self.dists = dists

    def __call__(self, *args: str, code: int = 0) -> click.testing.Result:
        plugins.reset()
        result = click.testing.CliRunner().invoke(program, args, prog_name="trivet")
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "\x1b" not in result.output
        return result

    def json(self, *args: str, code: int = 0) -> dict:
        return json.loads(self(*args, "--json", code=code).stdout)


@pytest.fixture
def dists(tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        found = importlib.metadata.distributions(path=[str(tmp_path)])
        return [p for d in found for p in d.entry_points if p.group == group]

    monkeypatch.setattr(commands, "entry_points", entry_points)
    yield installed(tmp_path, monkeypatch)
    plugins.reset()


@pytest.fixture
def acme(dists):
    dists.add("acme-dist", "acme", ACME)
    return dists


@pytest.fixture
def cli(dists):
    return Cli(dists)


@pytest.fixture
def shell(dists):
    """Runs ``python ARGS`` with the fakes on its path and only those plugins allowed."""

    def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        clean = {n: v for n, v in os.environ.items() if not n.startswith((PREFIX, "COLUMNS"))}
        clean |= {"PYTHONPATH": str(dists.folder), "TRIVET_ALLOW": "acme", "TERM": "xterm"}
        return subprocess.run(
            [sys.executable, *args],
            env=clean | environ,
            cwd=dists.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def plan_file(tmp_path):
    """A file with one site of each kind."""
    path = Path(tmp_path, "sites.json")
    text = """
        {"norm": {"op": "rms_norm", "facts": {"dtype": "float32", "weight.dtype": "float32",
                                              "hidden": 576}},
         "act": {"op": "silu_and_mul", "facts": {"tokens": "rows"}},
         "few": {"op": "silu_and_mul", "facts": {"tokens": [1, 4]}},
         "head": {"op": "linear_packed", "facts": {"dtype": "float32"}}}
    """
    path.write_text(textwrap.dedent(text))
    return path
