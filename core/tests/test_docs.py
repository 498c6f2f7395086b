from __future__ import annotations

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
GENERATED_GUARD = "_f0(x, weight"


def blocks():
    for page in PAGES:
        found = BLOCK.findall(page.read_text(encoding="utf-8"))
        texts = [b for b in found if GENERATED_GUARD not in b]
        if texts:
            yield pytest.param(texts, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("texts", list(blocks()))
def test_every_python_block_of_a_page_runs(texts, monkeypatch, tmp_path):
    kernels = types.ModuleType("acme_kernels")
    kernels.fused_silu = lambda x: x
    monkeypatch.setitem(sys.modules, "acme_kernels", kernels)
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    for text in texts:
        exec(compile(text, "page", "exec"), space)  # noqa: S102


def test_the_guard_in_the_architecture_page_is_what_is_generated():
    from trivet.binding.guard import guard_text
    from trivet.catalogue import operators
    from trivet.contracts import between, contiguous, divisible, dtype, rank
    from trivet.selection.facts import normalise

    op = operators()["rms_norm"]
    common = (
        dtype("x", "bfloat16", "float32"),
        rank("x", 2),
        contiguous("x"),
        divisible("hidden", 8),
    )
    buckets = [between("tokens", 1, 16), between("tokens", 17, 256), between("tokens", 257, None)]
    arms = [(*common, bucket) for bucket in buckets]
    text = guard_text(op, "functional", normalise(op, {}), [*arms, ()], grad=False)
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    assert text in page


def test_generated_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + "run: python docs/generate.py"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"[`$] ?make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
