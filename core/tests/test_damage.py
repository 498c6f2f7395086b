from __future__ import annotations

import sys

import pytest

from fake_dists import FakeDists, installed
from test_discovery import Case, assert_works, run_everything
from trivet.plugins import Discovery, Status
from trivet.settings import Settings

OURS = "[trivet.plugins]\nbad = fake_bad\n[trivet.contract]\nbad = v1:v1\n"
THEIRS = "[console_scripts]\nsays_trivet. = a:b\n"


@pytest.fixture
def dists(tmp_path, monkeypatch):
    return installed(tmp_path, monkeypatch)


FILES = [
    (b"\x80\x81\xff", OURS.encode(), "METADATA cannot be read: UnicodeDecodeError"),
    (b"\x00\x01\x02\n", OURS.encode(), "its METADATA gives no name"),
    (None, OURS.encode() + b"# \xff", "not UTF-8 (byte 64)"),
    (None, OURS.encode() + b"odd\n", "line 5 of its entry_points.txt, 'odd'"),
    (None, b"[trivet.plugins]\nbad =\n", "'bad =', is not NAME = VALUE"),
]


@pytest.mark.parametrize(("head", "points", "text"), FILES, ids=[f[2] for f in FILES])
def test_a_damaged_distribution_is_one_line(dists: FakeDists, head, points, text):
    dists.add_good("good")
    dists.write("bad-dist", "", version="2.5")
    info = dists.info("bad-dist", "2.5")
    (info / "entry_points.txt").write_bytes(points)
    if head is not None:
        (info / "METADATA").write_bytes(head)
    discovery = Discovery(Settings())
    (line,) = [line for line in discovery.report() if line.plugin != "good"]
    assert line.status is Status.BROKEN
    assert text in line.reason
    assert (line.dist.replace("_", "-"), line.version) == ("bad-dist", "2.5")
    assert "install it again" in line.fix
    assert_works(discovery, "good")


@pytest.mark.parametrize(
    "points", [b"\xff[console_scripts]\nx = y:z\n", THEIRS.encode() + b"\xff", b"no equals\n"]
)
def test_damage_that_does_not_concern_us_is_ignored(dists: FakeDists, points):
    dists.add_good("good")
    dists.write("other-dist", "")
    (dists.info("other-dist") / "entry_points.txt").write_bytes(points)
    (dists.info("other-dist") / "METADATA").write_bytes(b"\xff")
    discovery = Discovery(Settings())
    assert [line.plugin for line in discovery.report()] == ["good"]
    assert_works(discovery, "good")


def test_a_damaged_distribution_is_no_rival(dists: FakeDists):
    dists.add_good("good")
    dists.write("bad-dist", "[trivet.plugins]\ngood = m\nodd\n")
    discovery = Discovery(Settings())
    assert_works(discovery, "good")
    assert {ln.dist: ln.status for ln in discovery.report()} == {
        "bad-dist": Status.BROKEN,
        "good-dist": Status.FOUND,
    }


@pytest.mark.parametrize("contract", ["v1:v" + "9" * 5000, "v\u0661:v\u0661", "v1", "v-1:v1"])
def test_an_odd_contract_range_is_incompatible(dists: FakeDists, contract):
    dists.write("bad-dist", "")
    points = f"[trivet.plugins]\nbad = m\n[trivet.contract]\nbad = {contract}\n"
    (dists.info("bad-dist") / "entry_points.txt").write_text(points, encoding="utf-8")
    line = Discovery(Settings()).report()["bad"]
    assert line.status is Status.INCOMPATIBLE
    assert "is not of the form vN:vM" in line.reason
    assert len(line.reason) < 200


def test_a_missing_contract_range_shows_the_lines_to_write(dists: FakeDists):
    dists.add("bad-dist", "bad", "1/0", contract=None)
    fix = Discovery(Settings()).report()["bad"].fix
    assert fix.splitlines()[1:] == [
        '    [project.entry-points."trivet.contract"]',
        '    bad = "v1:v1"',
    ]
    assert "pyproject.toml of bad-dist" in fix


PANIC = """
import sys
from trivet.contracts import DeviceInfo, dtype, implements
class Panic(BaseException):
    pass
class Mute(Exception):
    def __str__(self): raise Panic
class Odd:
    def __repr__(self): raise Panic
class List(list):
    def __iter__(self): raise Panic("no")
def trivet_devices():
    return [DeviceInfo("bad")]
"""

CASES = [
    Case("panic at import", Status.IMPORT_FAILED, ("Panic", "fake_bad_dist.py:14"),
         PANIC + "raise Panic('no')"),
    Case("generator exit", Status.IMPORT_FAILED, ("GeneratorExit",), "raise GeneratorExit"),
    Case("cancelled", Status.RAISED, ("trivet_devices raises: CancelledError",),
         "import asyncio\ndef trivet_devices(): raise asyncio.CancelledError"),
    Case("stop", Status.RAISED, ("trivet_devices raises: StopIteration",),
         "def trivet_devices(): raise StopIteration"),
    Case("mute", Status.IMPORT_FAILED, ("Mute: its message cannot be read",),
         PANIC + "raise Mute"),
    Case("exits oddly", Status.IMPORT_FAILED, ("sys.exit(<Odd, whose repr raises>)",),
         PANIC + "sys.exit(Odd())"),
    Case("odd probe", Status.BROKEN, ("trivet_probe returns <Odd, whose repr raises>",),
         PANIC + "def trivet_probe(): return Odd()"),
    Case("odd devices", Status.BROKEN, ("a list with <Odd, whose repr raises> in it",),
         PANIC + "def trivet_devices(): return [Odd()]"),
    Case("odd operators", Status.BROKEN, ("a list with <Odd, whose repr raises> in it",),
         PANIC + "def trivet_operators(): return [Odd()]"),
    Case("odd implementations", Status.BROKEN, ("returns <Odd, whose repr raises>, not a list",),
         PANIC + "def trivet_implementations(device): return Odd()"),
    Case("odd defaults", Status.BROKEN, ("'a': <Odd, whose repr raises>, not (value",),
         PANIC + "def trivet_defaults(device): return {'a': Odd()}"),
    Case("odd list", Status.RAISED, ("trivet_devices raises: Panic: no",),
         PANIC + "def trivet_devices(): return List([1])"),
    Case("lone surrogate", Status.IMPORT_FAILED, (r"OSError: \udcff",), "raise OSError('\\udcff')"),
    Case("odd module", Status.BROKEN, ("its hooks cannot be read: AttributeError",),
         PANIC + "globals()[1] = 2"),
    Case("closes its output", Status.IMPORT_FAILED, ("OSError: late",),
         "import sys\nsys.stdout.close()\nraise OSError('late')"),
    Case("no devices", Status.BROKEN, ("trivet_devices returns no device",),
         "def trivet_devices(): return []"),
    Case("unknown type of torch", Status.RAISED,
         ("torch_type 'nonsense' is no type", "fake_bad_dist.py:2", "Expected one of cpu"),
         "from trivet.contracts import DeviceInfo\n"
         "def trivet_devices(): return [DeviceInfo('bad', torch_type='nonsense')]"),
    Case("absent from torch", Status.BROKEN, ("'vulkan:0', which this torch does not have: Not",),
         "from trivet.contracts import DeviceInfo\n"
         "def trivet_devices(): return [DeviceInfo('bad', torch_type='vulkan')]"),
    Case("term at import", Status.IMPORT_FAILED, ("has no dtype 'bf16'", "fake_bad_dist.py:14"),
         PANIC + "dtype('x', 'bf16')"),
    Case("imports what is absent", Status.IMPORT_FAILED,
         ("ModuleNotFoundError: No module named 'absent_'", "fake_bad_dist.py:2"),
         "\nimport absent_"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_plugin_is_one_line_and_the_others_work(dists: FakeDists, case):
    dists.add("bad-dist", "bad", case.source)
    dists.add_good("good")
    discovery = Discovery(Settings())
    (error,) = run_everything(discovery, "bad")
    line = discovery.report()["bad"]
    assert line.status is case.status, str(line)
    for text in case.texts:
        assert text in str(line), str(line)
        assert text in str(error), str(error)
    str(discovery.report()).encode()
    assert discovery.report().to_json()
    assert_works(discovery, "good")


def test_the_place_of_a_module_that_is_absent_is_not_the_machinery(dists: FakeDists):
    dists.add("bad-dist", "bad", None)
    discovery = Discovery(Settings())
    discovery.load("bad")
    assert discovery.report()["bad"].reason.endswith("No module named 'fake_bad_dist'")
    assert "fake_bad_dist" not in sys.modules


class Backend:
    """What torch has for a type of device; ``is_available`` of some would start the driver."""

    is_available = None

    def __init__(self, count: int) -> None:
        self.count = count

    def device_count(self) -> int:
        return self.count


@pytest.mark.parametrize(
    ("count", "text"), [(0, "torch.meta has none"), (1, "torch counts 1"), (2, "")]
)
def test_torch_is_asked_for_a_device_before_anything_is_allocated(
    dists: FakeDists, monkeypatch, count, text
):
    monkeypatch.setattr("torch.get_device_module", lambda device: Backend(count))
    monkeypatch.setattr("torch.empty", None)
    dists.add("bad-dist", "bad", "from trivet.contracts import DeviceInfo\n"
              "def trivet_devices(): return [DeviceInfo('bad', 1, torch_type='meta')]")  # fmt: skip
    discovery = Discovery(Settings())
    assert bool(discovery.devices("bad")) is not bool(text)
    line = discovery.report()["bad"]
    assert line.status is (Status.BROKEN if text else Status.FOUND)
    assert text in line.reason


def test_what_is_added_to_a_misspelt_device_is_noted_with_the_near_miss(dists: FakeDists):
    dists.add_good("good")
    dists.add("extra-dist", "extra", "", extends="goood")
    dists.add("more-dist", "more", "", extends="extra")
    assert Discovery(Settings()).report().notes == (
        "extra adds to 'goood', which no installed distribution brings, did you mean good?",
        "more adds to 'extra', which no installed distribution brings",
    )
