from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fuzzing import SECONDS

SLOW = """
import time
from trivet.contracts import DeviceInfo, implements
with open({log!r}, "a") as file:
    file.write("imported\\n")
{slow_import}
def trivet_devices():
    {slow_devices}
    return [DeviceInfo("slow")]
@implements("silu_and_mul@1", name="plain")
def plain(x):
    return x
def trivet_implementations(device):
    {slow_list}
    return [plain]
"""
NAP = "print('noise'); time.sleep(0.7)"

THREADS = """
import json, sys, threading
import trivet.plugins
import trivet
N = 16
start, found = threading.Barrier(N), []
def ask(number):
    start.wait()
    try:
        if number % 4 == 3:
            found.append(trivet.plugins.discover().report().to_json() and "report")
        else:
            dev = trivet.device(("slow", "auto", "absent")[number % 4 % 3])
            dev.bind("silu_and_mul")
            found.append(repr(dev))
    except trivet.errors.TrivetError as error:
        found.append(error.code)
threads = [threading.Thread(target=ask, args=(n,)) for n in range(N)]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps(sorted(found)))
"""

FORK = """
import os, sys, threading, time
import trivet
from trivet.plugins import discover
import trivet.devices, trivet.binding.binder
thread = threading.Thread(target=lambda: trivet.device("slow"))
thread.start()
while not (os.path.exists(sys.argv[1]) and discover()._entries["slow"].busy):
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
child = os.fork()
if not child:
    said = []
    for name in ("slow", "good", "slow"):
        try:
            said.append(repr(trivet.device(name)))
        except trivet.errors.TrivetError as error:
            said.append(str(error))
    print("child:", said, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
print("parent:", repr(trivet.device("slow")), status, flush=True)
"""

STORM = """
import os, threading
import trivet
from trivet.plugins import reset
import trivet.devices, trivet.binding.binder
done = False
def ask():
    while not done:
        trivet.device("good").bind("silu_and_mul")
        reset()
trivet.device("good").bind("silu_and_mul")  # a module half imported at a fork is lost for ever
thread = threading.Thread(target=ask)
thread.start()
ends = []
for _ in range(30):
    child = os.fork()
    if not child:
        try:
            trivet.device("good").bind("silu_and_mul")
        except trivet.errors.TrivetError:
            pass
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])
done = True
thread.join()
print(ends)
"""

# forks at every moment of a first start: each child starts what it can, none waits for ever
FIRST = """
import os, sys, threading, time
import trivet
from trivet.plugins import discover
import trivet.devices, trivet.binding.binder
discover()
thread = threading.Thread(target=lambda: trivet.device("slow"))
thread.start()
children = []
while thread.is_alive():
    child = os.fork()
    if not child:
        for name in ("slow", "good", "slow"):
            try:
                trivet.device(name)
            except trivet.errors.TrivetError:
                pass
        os._exit(0)
    children.append(child)
    time.sleep(0.0005 if len(children) < 20 else 0.05)
print(len(children) > 5, {os.waitpid(child, 0)[1] for child in children})
"""


@pytest.fixture
def slow(dists, tmp_path):
    """Adds a device whose plugin takes a second in one of three places; says what it logs."""
    log = tmp_path / "log"

    def add(place=""):
        naps = {name: NAP if name == place else "pass"
                for name in ("slow_import", "slow_devices", "slow_list")}  # fmt: skip
        dists.add("slow-dist", "slow", SLOW.format(log=str(log), **naps))
        dists.add_good("good")
        return log

    return add


def python(dists, code, *arguments) -> str:
    """What a fresh interpreter prints; one that does not end in time fails the test."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(dists.folder), *sys.path]),
                          "TRIVET_ALLOW": "slow,good", "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("place", ["", "slow_import", "slow_devices", "slow_list"])
def test_threads_that_ask_at_once_get_one_discovery(dists, slow, place):
    log = slow(place)
    found = json.loads(python(dists, THREADS))
    assert len(found) == 16
    assert set(found) == {
        "report", "plugin-not-found", "ambiguous-device",
        "<trivet device slow:0 of plugin 'slow'>",
    }  # fmt: skip
    assert log.read_text() == "imported\n"


@pytest.mark.parametrize("place", ["slow_import", "slow_devices", "slow_list"])
@pytest.mark.parametrize("later", [0.0, 0.3])
def test_a_fork_while_a_plugin_answers_leaves_a_child_that_works(dists, slow, place, later):
    log = slow(place)
    child, parent = python(dists, FORK, log, later).splitlines()
    assert child.startswith("child: ["), child
    assert "<trivet device good:0 of plugin 'good'>" in child
    assert "slow:0 of plugin 'slow'" in child or "forked" in child
    assert parent == "parent: <trivet device slow:0 of plugin 'slow'> 0"


def test_many_forks_during_discovery_all_end(dists, slow):
    slow()
    assert python(dists, STORM) == f"{[0] * 30}\n"


@pytest.mark.parametrize("place", ["slow_devices", "slow_list"])
def test_forks_at_any_moment_of_a_first_start_leave_children_that_work(dists, slow, place):
    slow(place)
    assert python(dists, FIRST) == "True {0}\n"
