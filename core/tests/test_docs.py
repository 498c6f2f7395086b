from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
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


@pytest.mark.parametrize("page", ["first-plugin", "device-plugin"])
def test_what_the_vendors_pages_implement_is_taken(page):
    from trivet.catalogue import operators
    from trivet.contracts.implementation import claims_of
    from trivet.plugins.verification import verify

    space = {"__name__": "page"}
    for text in BLOCK.findall((ROOT / f"docs/tutorials/{page}.md").read_text(encoding="utf-8")):
        exec(compile(text, "page", "exec"), space)  # noqa: S102
    claims = [claim for value in space.values() for claim in claims_of(value)]
    assert len(claims) > 2
    for claim in claims:
        verify(claim, "acme", operators())


def test_the_forms_of_the_first_plugin_are_right_and_return_none():
    import torch

    space = {"__name__": "page"}
    page = (ROOT / "docs/tutorials/first-plugin.md").read_text(encoding="utf-8")
    for text in BLOCK.findall(page):
        exec(compile(text, "page", "exec"), space)  # noqa: S102
    x, weight = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), torch.full((8,), 2.0)
    wanted = 2 * torch.nn.functional.layer_norm(x, (8,))
    out = torch.empty_like(x)
    assert space["layer_norm_out"](x, weight, out=out) is None
    assert space["layer_norm_"](x, weight) is None
    assert torch.allclose(out, wanted)
    assert torch.equal(x, out)


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


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_declared_is_documented(generator):
    from trivet.catalogue import operators
    from trivet.errors import all_errors
    from trivet.settings import VARIABLES

    pages = {name: page() for name, page in generator.PAGES.items()}
    assert all(f"## {name}\n" in pages["reference/operators.md"] for name in operators())
    assert all(f"## {e.code}\n" in pages["reference/errors.md"] for e in all_errors())
    assert all(f"`{v.name}`" in pages["reference/settings.md"] for v in VARIABLES)
    decisions = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert all(f"]({p.name})" in pages["decisions/index.md"] for p in decisions)


def test_core_is_as_small_as_it_says(generator):
    found = generator.sizes()
    everything, (imported, used, _) = found["all"], (found[use] for use in generator.USES)
    legs = everything["contracts"] - used["contracts"]  # vocabulary that is loaded when it is used
    assert used["contracts"] + everything["catalogue"] <= 1250
    assert legs <= 450
    assert sum(imported.values()) <= 100
    assert sum(n for layer, n in used.items() if layer != generator.DECLARATIONS) <= 4200
    assert not {"capture", "cli", "collectives", "kernels", "memory", "rope"} & used.keys()


def test_the_table_of_layers_is_what_is_enforced():
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Layers of core")[2].partition("## ")[0]
    shown = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if "|" in row]
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (c for c in linted["tool"]["importlinter"]["contracts"] if c["id"] == "layers")
    wanted = [re.findall(r"\w+", text) for text in layers["layers"]]
    assert [names for names in shown if names] == wanted


def test_what_a_vendor_imports_is_documented(generator):
    from trivet import contracts
    from trivet.contracts.hooks import ENGINE_DEFAULTS

    api, domains = generator.api_page(), generator.domain_page()
    never_written_by_hand = {"CONTRACT", "Operator", "Requirement", "Term"}
    for name in set(contracts.__all__) - never_written_by_hand:
        heading = re.compile(rf"^## trivet\.contracts\.(\w+\.)?{name}$", re.MULTILINE)
        assert heading.search(api + domains) or f"`{name}(" in domains, name
    for name in ("allocate", "deallocate"):
        assert f"### trivet.contracts.memory.Allocator.{name}\n" in api
    for name in ("empty", "kv_caches", "kv_blocks", "account", "info", "stats"):
        assert f"### dev.memory.{name}\n" in api
    for name in ("buffers.Buffers", "adaptors.Instrumented", "pools.BestFit", "kv.keys.keys_of"):
        assert f"## trivet.memory.{name}\n" in api
    assert "### dev.memory.budget.register_reclaimable\n" in api
    assert "### dev.collectives.group\n" in api
    assert "### dev.capture.buckets\n" in api
    assert "### trivet.contracts.capture.Capturer.begin\n" in api
    assert "## trivet.workspace\n" in api
    assert all(f"{word.value}: " in api for word in contracts.Execution)
    assert all(
        f"| `{name}` | {row.kind.__name__} |" in api for name, row in ENGINE_DEFAULTS.items()
    )


def test_every_field_of_cases_and_budget_is_explained():
    from dataclasses import fields

    from trivet.contracts import Budget, Cases

    page = (ROOT / "docs/how-to/add-an-operator.md").read_text(encoding="utf-8")
    assert all(f"`{field.name}`" in page for cls in (Cases, Budget) for field in fields(cls))


def test_generated_pages_are_not_kept(generator):
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"docs/{name}" for name in generator.PAGES} <= set(ignored)


def test_links_between_pages_lead_somewhere(generator):
    made = {ROOT / "docs" / name for name in generator.PAGES}
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            assert path.exists() or path in made, f"{page}: {target}"


def test_the_readme_leads_only_to_what_is_kept(generator):
    for name in generator.PAGES:
        assert f"docs/{name}" not in (ROOT / "README.md").read_text(encoding="utf-8"), name


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"[`$] ?make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
