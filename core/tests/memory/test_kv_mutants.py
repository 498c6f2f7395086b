"""Wrong pools of blocks: the tests of the pool must see each of them."""

from __future__ import annotations

import importlib.util
import inspect
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from trivet.memory.kv import blocks

SOURCE = Path(blocks.__file__).read_text(encoding="utf-8")
FILES = ("test_kv_blocks", "test_kv_prefix")

MUTANTS = {
    "share_does_nothing": ("self._references[block] += 1\n\n    def refcount",
                           "pass\n\n    def refcount"),
    "free_ignores_references": ("references[block] -= 1", "references[block] = 0"),
    "same_block_twice": ("del self._empty[-n:]", "del self._empty[-n:-1]"),
    "key_of_another_block": ("self._by_key[key] = key, block", "self._by_key[key] = key, 0"),
    "first_key_replaced": ("known is None and key not in self._by_key", "known is None"),
    "block_in_use_evicted": ("del self._idle[block]\n            self._references[block] += 1",
                             "pass\n            self._references[block] += 1"),
    "taken_without_a_reference": ("            self._references[block] += 1\n        return found",
                                  "        return found"),
    "double_free_accepted": ("if not self._is_own(block) or not references[block]:",
                             "if not self._is_own(block):"),
    "half_of_a_free_kept": ("references[given_up] += 1", "pass"),
    "some_taken_when_exhausted": ("            raise _exhausted(self, n)\n        if short",
                                  "            self._empty.clear()\n        if short"),
    "evicted_and_still_found": ("            self._drop(block)\n        self._empty[:0]",
                                "            pass\n        self._empty[:0]"),
    "newest_evicted_first": ("zip(self._idle, range(n), strict=False)",
                             "zip(reversed(self._idle), range(n), strict=False)"),
    "old_reference_kept_by_a_copy": ("        self.free([block])\n        return new, True",
                                     "        return new, True"),
    "written_though_it_is_shared": ("count == 1 and block", "count and block"),
    "forgotten_and_lost": ("self._empty += reversed(self._idle)", "pass"),
}  # fmt: skip


def changed(old, new):
    """The module of the pool with one place of its text changed."""
    assert SOURCE.count(old) == 1, old
    module = types.ModuleType("changed")
    exec(compile(SOURCE.replace(old, new), "changed", "exec"), vars(module))  # noqa: S102
    return module.KvBlocks


def suite(pool, examples=60):
    """The tests of the pool that take no argument, and its models, over another class."""
    quick = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, database=None,
        derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        print_blob=False,
    )  # fmt: skip
    for name in FILES:
        path = Path(__file__).with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"{name}_of_mutants", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.KvBlocks = pool
        for label, made in list(vars(module).items()):
            own = getattr(made, "__module__", "") == module.__name__
            if label.startswith("test_") and own and not inspect.signature(made).parameters:
                if "soak" not in {m.name for m in getattr(made, "pytestmark", ())}:
                    yield made
            elif own and isinstance(made, type) and issubclass(made, RuleBasedStateMachine):
                yield lambda made=made: run_state_machine_as_test(made, settings=quick)


def killed(pool):
    """Whether a test fails over another class; any error of its own counts."""
    for test in suite(pool):
        try:
            test()
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a mutant may break anything
            return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_pool_is_seen(name):
    assert killed(changed(*MUTANTS[name]))


def test_the_right_pool_passes():
    for test in suite(changed("# a stack", "# the stack"), examples=3):
        test()
