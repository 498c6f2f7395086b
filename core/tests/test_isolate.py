from __future__ import annotations

import os

import pytest

from fake_dists import FakeDists, installed
from trivet.plugins import Status
from trivet.plugins.isolate import isolated_report

HANGS = "import time\ntime.sleep(600)\n"
CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
LEAVES = "import os\ndef trivet_probe(): os._exit(7)\ndef trivet_devices(): return []\n"
ADDS_AND_HANGS = """
import time
def trivet_implementations(device):
    time.sleep(600)
"""


@pytest.fixture
def dists(tmp_path, monkeypatch):
    return installed(tmp_path, monkeypatch)


def report(*names: str, seconds: float):
    """The isolated report of some plugins; whatever else is installed is left out."""
    return isolated_report(seconds, environ={**os.environ, "TRIVET_ALLOW": ",".join(names)})


def test_a_hang_is_one_line_and_names_the_stage(dists: FakeDists):
    dists.add("bad-dist", "bad", HANGS)
    dists.add_good("good")
    lines = report("bad", "good", seconds=5)
    assert lines["bad"].status is Status.IMPORT_FAILED
    assert lines["bad"].reason == "no answer within 5 s, while importing it"
    assert "TRIVET_DENY=bad" in lines["bad"].fix
    assert lines["good"].status is Status.FOUND
    assert lines["good"].reason == "1 implementation"


def test_a_crash_of_native_code_is_one_line(dists: FakeDists):
    dists.add("bad-dist", "bad", CRASHES)
    lines = report("bad", seconds=60)
    assert lines["bad"].status is Status.IMPORT_FAILED
    assert "by SIGSEGV" in lines["bad"].reason


def test_an_exit_while_probing_is_one_line(dists: FakeDists):
    dists.add("bad-dist", "bad", LEAVES)
    lines = report("bad", seconds=60)
    assert lines["bad"].status is Status.RAISED
    assert lines["bad"].reason == "ended its process with status 7, while probing it"


def test_what_can_be_said_in_one_process_is_said_alike(dists: FakeDists):
    dists.add("bad-dist", "bad", "print('junk')\nraise OSError('libx.so')")
    line = report("bad", seconds=60)["bad"]
    assert line.status is Status.IMPORT_FAILED
    assert "OSError: libx.so" in line.reason
    assert line.printed == "junk"


def test_a_hang_of_a_device_is_not_blamed_on_what_adds_to_it(dists: FakeDists):
    dists.add("bad-dist", "bad", HANGS)
    dists.add("extra-dist", "extra", "def trivet_implementations(device): return []", extends="bad")
    lines = report("bad", "extra", seconds=2)
    assert lines["bad"].status is Status.IMPORT_FAILED
    assert lines["extra"].status is Status.FOUND
    assert "while starting the device that it adds to" in lines["extra"].reason


def test_a_hang_of_what_adds_is_not_blamed_on_the_device(dists: FakeDists):
    dists.add_good("good")
    dists.add("extra-dist", "extra", ADDS_AND_HANGS, extends="good")
    lines = report("good", "extra", seconds=5)
    assert lines["good"].status is Status.FOUND
    assert lines["extra"].status is Status.RAISED
    assert "while listing what it brings" in lines["extra"].reason
