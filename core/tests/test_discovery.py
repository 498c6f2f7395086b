from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from importlib.metadata import PathDistribution, distributions

import pytest
import torch

from fake_dists import FakeDists, installed
from trivet.catalogue import operators
from trivet.errors import PluginError, PluginNotFound
from trivet.plugins import Discovery, Status, discover, metadata, reset
from trivet.plugins.offer import collect
from trivet.plugins.resolve import resolve
from trivet.settings import Settings


@pytest.fixture
def dists(tmp_path, monkeypatch):
    reset()
    yield installed(tmp_path, monkeypatch)
    reset()


@dataclass(frozen=True)
class Case:
    """A plugin that is wrong in one way, and what its line must say."""

    name: str
    status: Status
    texts: tuple[str, ...]
    source: str | None = ""
    contract: str | None = "v1:v1"
    value: str = ""
    settings: Settings = field(default_factory=Settings)


DEVICE = """
from trivet.contracts import DeviceInfo, implements
def trivet_devices():
    return [DeviceInfo("bad")]
"""

CASES = [
    Case("raises", Status.IMPORT_FAILED, ("RuntimeError: no driver", "fake_bad_dist.py:2"),
         "\nraise RuntimeError('no driver')"),
    Case("exits", Status.IMPORT_FAILED, ("sys.exit(3)", "while it is imported"),
         "import sys; sys.exit(3)"),
    Case("no module", Status.IMPORT_FAILED, ("ModuleNotFoundError", "fake_bad_dist"), None),
    Case("no attribute", Status.IMPORT_FAILED, ("AttributeError", "absent"), DEVICE,
         value="fake_bad_dist:absent"),
    Case("no module object", Status.BROKEN, ("names a function, not a module",), DEVICE,
         value="fake_bad_dist:trivet_devices"),
    Case("syntax", Status.IMPORT_FAILED, ("SyntaxError",), "def"),
    Case("other contract", Status.INCOMPATIBLE,
         ("built for contract 2 to 3, this trivet has contract 1",), "1/0", contract="v2:v3"),
    Case("no contract", Status.INCOMPATIBLE, ("states no contract range",), "1/0", contract=None),
    Case("odd contract", Status.INCOMPATIBLE, ("'one:two' is not of the form vN:vM",), "1/0",
         contract="one:two"),
    Case("misspelt hook", Status.BROKEN,
         ("trivet_device is no hook", "did you mean trivet_devices?", "trivet_probe"),
         "def trivet_device(): return []"),
    Case("hook argument", Status.BROKEN,
         ("trivet_implementations has argument 'dev'", "(device)", "did you mean 'device'?"),
         DEVICE + "def trivet_implementations(dev): return []"),
    Case("hook default", Status.BROKEN, ("gives 'device' a default",),
         DEVICE + "def trivet_implementations(device=None): return []"),
    Case("hook no function", Status.BROKEN, ("trivet_probe is a bool, not a function",),
         DEVICE + "trivet_probe = True"),
    Case("probe raises", Status.RAISED, ("trivet_probe raises: OSError: libx.so",),
         DEVICE + "def trivet_probe(): raise OSError('libx.so')"),
    Case("probe exits", Status.RAISED, ("trivet_probe raises: it calls sys.exit(None)",),
         DEVICE + "def trivet_probe(): raise SystemExit"),
    Case("probe says no", Status.NO_HARDWARE, ("no card in any slot",),
         DEVICE + "def trivet_probe(): return 'no card in any slot'"),
    Case("probe says no without a reason", Status.NO_HARDWARE, ("gives no reason",),
         DEVICE + "def trivet_probe(): return False"),
    Case("probe nonsense", Status.BROKEN, ("trivet_probe returns None",),
         DEVICE + "def trivet_probe(): pass"),
    Case("devices raise", Status.RAISED, ("trivet_devices raises: KeyError",),
         "def trivet_devices(): return {}[1]"),
    Case("devices no list", Status.BROKEN, ("trivet_devices returns 7, not a list",),
         "def trivet_devices(): return 7"),
    Case("devices no infos", Status.BROKEN, ("'bad' in it, not a DeviceInfo",),
         "def trivet_devices(): return ['bad']"),
    Case("devices of another kind", Status.BROKEN, ("kind 'good', the plugin's name is 'bad'",),
         DEVICE.replace('"bad"', '"good"')),
    Case("devices twice", Status.BROKEN, ("indices [0, 0]",),
         DEVICE + "def trivet_devices(): return [DeviceInfo('bad'), DeviceInfo('bad')]"),
    Case("implementations no list", Status.BROKEN,
         ("trivet_implementations returns 'all', not a list of functions",),
         DEVICE + "def trivet_implementations(device): return 'all'"),
    Case("implementations raise", Status.RAISED, ("trivet_implementations raises: ZeroDivision",),
         DEVICE + "def trivet_implementations(device): return 1 / 0"),
    Case("operators nonsense", Status.BROKEN, ("trivet_operators returns a list with 'foo'",),
         DEVICE + "def trivet_operators(): return ['foo']"),
    Case("defaults nonsense", Status.BROKEN, ("returns 'block_size': 16, not (value, reason)",),
         DEVICE + "def trivet_defaults(device): return {'block_size': 16}"),
    Case("no hook", Status.REGISTERED_NOTHING, ("its module has no hook",), "x = 1"),
    Case("denied", Status.FILTERED, ("denied by default",), "1/0",
         settings=Settings(deny=("bad_dist",))),
    Case("not allowed", Status.FILTERED, ("not among those allowed by TRIVET_ALLOW",), "1/0",
         settings=Settings(allow=("good",), sources={"allow": "TRIVET_ALLOW"})),
]  # fmt: skip


def run_everything(discovery: Discovery, name: str) -> list[PluginError]:
    """Loads, starts and collects a plugin; returns what was raised on the way."""
    try:
        collect(discovery, resolve(name, discovery), operators())
    except PluginError as error:
        return [error]
    return []


def assert_works(discovery: Discovery, name: str) -> None:
    """Checks that a good plugin gives a device and a kernel that computes."""
    resolved = resolve(name, discovery)
    offer = collect(discovery, resolved, operators())
    assert [i.provider for i in offer.implementations] == [f"{name}/plain"]
    x = torch.tensor([[1.0, 2.0]])
    expected = torch.nn.functional.silu(x[:, :1]) * x[:, 1:]
    assert torch.equal(offer.implementations[0].function(x), expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_plugin_is_one_line_and_the_others_work(dists: FakeDists, case, capfd):
    dists.add("bad-dist", "bad", case.source, contract=case.contract, value=case.value)
    dists.add_good("good")
    discovery = Discovery(case.settings)

    (error,) = run_everything(discovery, "bad")

    line = discovery.report()["bad"]
    assert line.status is case.status
    assert (line.dist, line.version) == ("bad-dist", "1.0")
    for text in case.texts:
        assert text in str(line), str(line)
        assert text in str(error), str(error)
    assert_works(discovery, "good")
    assert capfd.readouterr().out == ""


def test_nothing_is_imported_before_it_is_asked_for(dists: FakeDists):
    dists.add("bad-dist", "bad", "1/0")
    dists.add_good("good")
    discovery = Discovery(Settings())
    resolve("good", discovery)
    line = discovery.report()["bad"]
    assert line.status is Status.FOUND
    assert not line.loaded
    assert "not imported" in line.reason
    assert "fake_bad_dist" not in sys.modules


def test_a_plugin_is_imported_once_even_when_it_fails(dists: FakeDists, tmp_path):
    counter = tmp_path / "count"
    dists.add(
        "bad-dist",
        "bad",
        f"""
        with open({str(counter)!r}, 'a') as file:
            file.write('x')
        raise OSError
    """,
    )
    discovery = Discovery(Settings())
    for _ in range(3):
        assert discovery.load("bad") is None
    assert counter.read_text() == "x"


def test_two_distributions_of_one_name_are_both_refused_and_both_named(dists: FakeDists):
    dists.add("first-dist", "bad", DEVICE)
    dists.add("second-dist", "bad", DEVICE, version="2.5")
    dists.add_good("good")
    discovery = Discovery(Settings())
    (error,) = run_everything(discovery, "bad")
    lines = [line for line in discovery.report() if line.plugin == "bad"]
    assert [line.status for line in lines] == [Status.BROKEN, Status.BROKEN]
    for text in [str(error), *map(str, lines)]:
        assert "first-dist 1.0" in text
        assert "second-dist 2.5" in text
    assert "fake_first_dist" not in sys.modules
    assert_works(discovery, "good")


def test_denying_one_of_two_rivals_makes_the_other_usable(dists: FakeDists):
    dists.add("first-dist", "bad", DEVICE)
    dists.add_good("bad", dist="second-dist")
    discovery = Discovery(Settings(deny=("first_dist",)))
    assert_works(discovery, "bad")
    by_dist = {line.dist: line.status for line in discovery.report()}
    assert by_dist == {"first-dist": Status.FILTERED, "second-dist": Status.FOUND}


@pytest.mark.parametrize("first_has_a_plugin", [True, False])
def test_a_distribution_hidden_by_an_earlier_folder_does_not_count(
    dists: FakeDists, tmp_path, monkeypatch, first_has_a_plugin
):
    later = tmp_path / "later"
    later.mkdir()
    if first_has_a_plugin:
        dists.add_good("good")
    else:
        dists.write("good-dist", "[console_scripts]\ngood = m:f\n")
    FakeDists(later).add("good-dist", "good", None, version="0.1", value="elsewhere")
    both = [str(tmp_path), str(later)]
    monkeypatch.setattr(sys, "path", [*both, *sys.path])
    monkeypatch.setattr(metadata, "distributions", lambda: distributions(path=both))
    discovery = Discovery(Settings())
    assert [line.version for line in discovery.report()] == ["1.0"][:first_has_a_plugin]
    if first_has_a_plugin:
        assert_works(discovery, "good")


def test_what_a_plugin_prints_stays_away_from_standard_output(dists: FakeDists, capfd):
    junk = "import os\nprint('hello from python')\nos.write(1, b'hello from native code')\n"
    dists.add("loud-dist", "loud", junk + DEVICE.replace("bad", "loud"))
    discovery = Discovery(Settings())
    assert discovery.devices("loud")
    print("after")
    assert capfd.readouterr().out == "after\n"
    line = discovery.report()["loud"]
    assert line.usable
    assert "hello from python" in line.printed
    assert "hello from native code" in line.printed
    assert "hello from python" in str(line)


def test_a_plugin_that_starts_devices_while_it_is_imported_is_told_so(dists: FakeDists):
    source = "from trivet.plugins import discover\ndiscover().load('bad')\n"
    dists.add("bad-dist", "bad", source)
    assert discover(Settings()).load("bad") is None
    line = discover().report()["bad"]
    assert line.status is Status.IMPORT_FAILED
    assert "is asked while it is answering" in line.reason


def test_the_interrupt_of_a_user_is_not_taken_for_a_broken_plugin(dists: FakeDists):
    dists.add("bad-dist", "bad", "raise KeyboardInterrupt")
    discovery = Discovery(Settings())
    with pytest.raises(KeyboardInterrupt):
        discovery.load("bad")
    assert discovery.report()["bad"].status is Status.FOUND


@pytest.mark.parametrize("name", ["auto", "reference", "Bad", "bad-name"])
def test_a_name_that_cannot_be_asked_for_is_broken(dists: FakeDists, name):
    dists.add("bad-dist", name, DEVICE)
    dists.add_good("good")
    discovery = Discovery(Settings())
    line = discovery.report()[name]
    assert line.status is Status.BROKEN
    assert repr(name) in line.reason
    assert_works(discovery, "good")


def test_an_unknown_name_lists_near_misses_and_what_is_installed(dists: FakeDists):
    dists.add_good("good")
    dists.add_good("other")
    with pytest.raises(PluginNotFound) as caught:
        Discovery(Settings()).line("goood")
    assert "'goood'" in str(caught.value)
    assert "did you mean good?" in str(caught.value)
    assert "installed: good, other" in str(caught.value)


def test_a_filter_that_fits_nothing_is_noted_with_the_near_miss(dists: FakeDists):
    dists.add_good("good")
    report = Discovery(Settings(allow=("goood",), sources={"allow": "TRIVET_ALLOW"})).report()
    assert report["good"].status is Status.FILTERED
    assert report.notes == (
        "TRIVET_ALLOW names 'goood', which is not installed, did you mean good?",
    )
    assert report.notes[0] in str(report)


def test_a_plugin_that_adds_to_an_absent_device_is_noted(dists: FakeDists):
    dists.add("extra-dist", "extra", "", extends="absent")
    assert Discovery(Settings()).report().notes == (
        "extra adds to 'absent', which no installed distribution brings",
    )


def test_a_contract_entry_under_another_name_is_shown(dists: FakeDists):
    dists.write("odd-dist", "[trivet.plugins]\nodd = m\n[trivet.contract]\nood = v1:v1\n")
    line = Discovery(Settings()).report()["odd"]
    assert line.status is Status.INCOMPATIBLE
    assert "it states one for ood" in line.reason


def test_only_our_distributions_have_their_metadata_read(dists: FakeDists, monkeypatch):
    for number in range(60):
        dists.write(f"other-{number}", "[console_scripts]\nx = y:z\n")
    dists.add_good("good")
    read = []
    plain = PathDistribution.read_text
    monkeypatch.setattr(
        PathDistribution, "read_text", lambda self, name: read.append(name) or plain(self, name)
    )
    assert [line.plugin for line in Discovery(Settings()).report()] == ["good"]
    assert read.count("entry_points.txt") >= 61
    assert 0 < read.count("METADATA") < 10


def test_discovery_is_one_object_for_all_threads(dists: FakeDists):
    dists.add_good("good")
    found = []
    threads = [threading.Thread(target=lambda: found.append(discover())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(d) for d in found}) == 1


def test_the_report_is_text_and_json_with_the_same_facts(dists: FakeDists):
    dists.add("bad-dist", "bad", "raise OSError('x')")
    dists.add_good("good")
    discovery = Discovery(Settings())
    discovery.load("bad")
    report = discovery.report()
    rows = json.loads(json.dumps(report.to_json()))["plugins"]
    assert [row["plugin"] for row in rows] == ["bad", "good"]
    assert rows[0]["status"] == "import_failed"
    assert rows[0]["error"] == "OSError: x"
    assert report["bad"].status is Status.IMPORT_FAILED
    assert "no plugin is installed" not in str(report)
    assert len(report) == 2


def test_a_spawned_child_sees_the_same_report(dists: FakeDists, tmp_path):
    dists.add("bad-dist", "bad", "raise OSError('x')")
    dists.add_good("good")
    text = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from trivet.plugins import Discovery; from trivet.settings import Settings\n"
        "import json, multiprocessing\n"
        "def report(queue):\n"
        "    d = Discovery(Settings(allow=('bad', 'good')))\n"
        "    d.load('bad'); d.devices('good')\n"
        "    rows = [r for r in d.report().to_json()['plugins'] if r['status'] != 'filtered']\n"
        "    queue.put(json.dumps(rows))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue(); report(queue); parent = queue.get()\n"
        "    child = context.Process(target=report, args=(queue,)); child.start()\n"
        "    assert queue.get() == parent; child.join(); print(parent)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["plugin"], row["status"]) for row in rows] == [
        ("bad", "import_failed"),
        ("good", "found"),
    ]
