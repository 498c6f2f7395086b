"""The page of public names says what is there, and nothing else."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from trivet.binding.plan import Plan
from trivet.binding.prepared import Handle
from trivet.binding.step import Step
from trivet.devices import Device

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/promises.md"
SECTION = re.compile(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \|", re.MULTILINE)
PROMISES = {"stable", "provisional", "internal"}

CLASSES = {"trivet.Device": Device, "Plan": Plan, "Step": Step, "Handle": Handle}
MADE = {
    "Plan": {"at", "mode", "settings", "sites"},
    "Handle": {"site", "packs", "implementations", "source"},
}
"""Attributes that instances alone have."""

PAGES = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))


def names_of(home):
    if home in CLASSES:
        return {n for n in dir(CLASSES[home]) if not n.startswith("_")} | MADE.get(home, set())
    return set(importlib.import_module(home).__all__)


@pytest.mark.parametrize("home", PAGES)
def test_a_page_lists_every_public_name_with_a_promise(home):
    rows = dict(ROW.findall(PAGES[home]))
    assert rows.keys() == names_of(home), f"{PAGE.name}: {home}"
    assert set(rows.values()) <= PROMISES


def test_every_public_module_has_a_section():
    legs = {
        f"trivet.contracts.{leg}"
        for leg in ("memory", "collectives", "topology", "experts", "capture")
    }
    optional = {"trivet.rope", "trivet.memory", "trivet.collectives", "trivet.kernels.triton"}
    optional |= {"trivet.capture", "trivet.topology"}
    memory = ("adaptors", "buffers", "layouts", "migrate", "pools", "sleep", "spill", "tiers")
    memory += ("kv.groups", "kv.keys", "kv.leases")
    optional |= {f"trivet.memory.{name}" for name in memory}
    modules = {"trivet", "trivet.contracts", "trivet_conformance"} | legs | optional
    assert modules | CLASSES.keys() == PAGES.keys()
