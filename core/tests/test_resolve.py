from __future__ import annotations

import logging
import sys

import pytest

from fake_dists import GOOD, FakeDists, installed
from trivet.errors import (
    AmbiguousDevice,
    PluginBroken,
    PluginIncompatible,
    PluginNotFound,
)
from trivet.plugins import Discovery, Status, metadata
from trivet.plugins.resolve import resolve
from trivet.settings import Settings

TWO = """
    from trivet.contracts import DeviceInfo
    def trivet_devices():
        return [DeviceInfo("two", 0), DeviceInfo("two", 1)]
"""
NO = GOOD.replace("return True", "return 'no card'")


@pytest.fixture
def dists(tmp_path, monkeypatch):
    return installed(tmp_path, monkeypatch)


def auto(**settings: object):
    discovery = Discovery(Settings(**settings))
    return resolve("auto", discovery), discovery


def test_without_any_plugin_the_references_run_and_it_is_said(dists: FakeDists, caplog):
    with caplog.at_level(logging.WARNING, logger="trivet.plugins"):
        resolved, _ = auto()
    assert resolved.plugin == "reference"
    assert resolved.info.torch.type == "cpu"
    assert resolved.reason == "no device plugin is usable: none is installed"
    assert resolved.providers == ()
    assert resolved.reason in caplog.text


def test_auto_takes_the_only_accelerator_that_says_yes(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("absent-dist", "absent", NO.format(name="absent"))
    dists.add_good("fast")
    resolved, _ = auto()
    assert (resolved.plugin, resolved.info.kind) == ("fast", "fast")
    assert resolved.reason == "the only other device than the embedded one whose probe says yes"


def test_auto_takes_the_cpu_when_no_accelerator_says_yes(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("absent-dist", "absent", NO.format(name="absent"))
    resolved, _ = auto(strict=True)
    assert resolved.plugin == "cpu"
    assert "absent is no_hardware (no card)" in resolved.reason


def test_auto_does_not_choose_between_two_accelerators(dists: FakeDists):
    dists.add_good("cpu")
    dists.add_good("fast")
    dists.add_good("quick")
    with pytest.raises(AmbiguousDevice) as caught:
        auto()
    for text in ("fast (fast-dist)", "quick (quick-dist)", "TRIVET_DEVICE=fast"):
        assert text in str(caught.value)


def test_auto_prefers_another_makers_device_to_our_own(dists: FakeDists):
    dists.add_good("ours", author=metadata.PROJECT)
    dists.add_good("theirs", dist="trivet-theirs", author="Acme")
    resolved, _ = auto()
    assert resolved.plugin == "theirs"
    assert "ours" in resolved.reason


def test_auto_does_not_choose_between_two_of_our_own(dists: FakeDists):
    dists.add_good("a", author=metadata.PROJECT)
    dists.add_good("b", author=metadata.PROJECT)
    with pytest.raises(AmbiguousDevice):
        auto()


@pytest.mark.parametrize("word", ["emulated", "interpreted"])
def test_auto_takes_no_stand_in_for_hardware(dists: FakeDists, word):
    dists.add_good("cpu")
    dists.add(
        "slow-dist",
        "slow",
        f"""
        from trivet.contracts import DeviceInfo
        def trivet_devices():
            return [DeviceInfo("slow", execution="{word}")]
    """,
    )
    resolved, discovery = auto()
    assert resolved.plugin == "cpu"
    assert f"slow is {word}" in resolved.reason
    assert resolve("slow", discovery).plugin == "slow"
    dists.add_good("fast")
    assert auto()[0].plugin == "fast"


def test_auto_says_why_it_passed_over_a_broken_accelerator(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("bad-dist", "bad", "raise OSError('libx.so')")
    resolved, discovery = auto()
    assert resolved.plugin == "cpu"
    assert "bad is import_failed (raises while it is imported: OSError: libx.so" in resolved.reason
    assert discovery.report()["bad"].status is Status.IMPORT_FAILED


def test_strict_does_not_pass_over_a_broken_accelerator(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("bad-dist", "bad", "raise OSError('libx.so')")
    with pytest.raises(PluginBroken, match=r"bad-dist 1.0.*import_failed.*libx\.so"):
        auto(strict=True)


def test_a_broken_cpu_plugin_gives_the_references_with_the_reason(dists: FakeDists):
    dists.add("cpu-dist", "cpu", "raise OSError('libx.so')")
    resolved, _ = auto()
    assert resolved.plugin == "reference"
    assert "cpu is import_failed" in resolved.reason
    with pytest.raises(PluginBroken, match=r"libx\.so"):
        auto(strict=True)


def test_a_device_named_by_a_setting_probes_and_imports_no_other(dists: FakeDists):
    dists.add_good("fast")
    dists.add("bad-dist", "bad", "raise AssertionError")
    dists.add_good("cpu")
    resolved, discovery = auto(device="fast", sources={"device": "TRIVET_DEVICE"})
    assert resolved.plugin == "fast"
    assert resolved.reason == "TRIVET_DEVICE names fast"
    assert {line.plugin: line.loaded for line in discovery.report()} == {
        "bad": False,
        "cpu": False,
        "fast": True,
    }
    assert "fake_cpu_dist" not in sys.modules


def test_the_settings_of_the_moment_decide_and_not_those_of_the_discovery(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("bad-dist", "bad", "raise OSError")
    discovery = Discovery(Settings(device="bad"))
    assert resolve("auto", discovery, Settings(device="cpu")).plugin == "cpu"
    assert resolve("auto", discovery, Settings()).plugin == "cpu"
    with pytest.raises(PluginBroken):
        resolve("auto", discovery, Settings(strict=True))


def test_a_device_named_by_a_setting_that_fails_is_an_error(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("absent-dist", "absent", NO.format(name="absent"))
    with pytest.raises(PluginBroken, match=r"absent-dist 1.0.*no_hardware: no card"):
        auto(device="absent")


def test_a_device_asked_for_by_name_never_becomes_another(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("bad-dist", "bad", "raise OSError")
    dists.add("old-dist", "old", "1/0", contract="v0:v0")
    discovery = Discovery(Settings(deny=("cpu",)))
    with pytest.raises(PluginBroken) as caught:
        resolve("bad", discovery)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(PluginIncompatible, match="built for contract 0 to 0"):
        resolve("old", discovery)
    with pytest.raises(PluginNotFound, match="filtered: denied by"):
        resolve("cpu", discovery)
    with pytest.raises(PluginNotFound, match="did you mean bad"):
        resolve("badd", discovery)


def test_an_index_chooses_among_the_devices_of_a_kind(dists: FakeDists):
    dists.add("two-dist", "two", TWO)
    discovery = Discovery(Settings())
    assert resolve("two", discovery).info.index == 0
    assert resolve("two:1", discovery).info.index == 1
    with pytest.raises(PluginNotFound, match="there is two:0, two:1"):
        resolve("two:2", discovery)
    for text in ("two:", "two:x", "two:-1", "two:\u0660", "two:\u00b2", "two:" + "1" * 5000):
        with pytest.raises(PluginNotFound, match="is no index"):
            resolve(text, discovery)


def test_the_references_can_be_asked_for(dists: FakeDists):
    dists.add_good("cpu")
    discovery = Discovery(Settings())
    for text in ("reference", "reference:0"):
        assert resolve(text, discovery).plugin == "reference"
    with pytest.raises(PluginNotFound, match=r"no device 'reference:5'\n  fix: .*reference:0"):
        resolve("reference:5", discovery)
    with pytest.raises(PluginNotFound, match="is no index"):
        resolve("reference:x", discovery)
    assert not discovery.report()["cpu"].loaded


@pytest.mark.parametrize("strict", [True, False])
def test_auto_never_takes_a_device_that_torch_does_not_have(dists: FakeDists, strict):
    dists.add_good("cpu")
    source = GOOD.replace('DeviceInfo("{name}")', 'DeviceInfo("fast", torch_type="vulkan")')
    dists.add("fast-dist", "fast", source)
    if strict:
        with pytest.raises(PluginBroken, match="'vulkan:0', which this torch does not have"):
            auto(strict=True)
    else:
        resolved, discovery = auto()
        assert resolved.plugin == "cpu"
        assert discovery.report()["fast"].status is Status.BROKEN
        assert "'vulkan:0', which this torch does not have" in resolved.reason


def test_a_plugin_without_a_device_is_no_device(dists: FakeDists):
    dists.add("odd-dist", "odd", "def trivet_operators(): return []")
    with pytest.raises(PluginBroken, match="has no device"):
        resolve("odd", Discovery(Settings()))


EXTENDER = """
    from trivet.contracts import implements
    {probe}
    def trivet_implementations(device):
        return [silu]

    @implements("silu_and_mul@1", name="extra")
    def silu(x):
        return x
"""


def test_a_plugin_that_only_adds_to_a_device_is_loaded_with_it(dists: FakeDists):
    dists.add_good("good")
    dists.add_good("other")
    dists.add("extra-dist", "extra", EXTENDER.format(probe=""), extends="good")
    discovery = Discovery(Settings())
    assert resolve("other", discovery).providers == ("other",)
    assert not discovery.report()["extra"].loaded
    assert resolve("good", discovery).providers == ("good", "extra")
    with pytest.raises(PluginNotFound, match="brings no device, it adds to 'good'"):
        resolve("extra", discovery)


@pytest.mark.parametrize(
    ("probe", "status"),
    [
        ("def trivet_probe(): return 'too old'", Status.NO_HARDWARE),
        ("raise OSError", Status.IMPORT_FAILED),
        ("def trivet_devices(): return []", Status.BROKEN),
    ],
)
def test_a_plugin_that_adds_and_fails_leaves_the_device(dists: FakeDists, probe, status):
    dists.add_good("good")
    dists.add("extra-dist", "extra", EXTENDER.format(probe=probe), extends="good")
    discovery = Discovery(Settings())
    assert resolve("good", discovery).providers == ("good",)
    assert discovery.report()["extra"].status is status


def test_a_plugin_that_only_adds_is_no_candidate_of_auto(dists: FakeDists):
    dists.add_good("cpu")
    dists.add("extra-dist", "extra", EXTENDER.format(probe=""), extends="cpu")
    resolved, _ = auto()
    assert resolved.providers == ("cpu", "extra")
