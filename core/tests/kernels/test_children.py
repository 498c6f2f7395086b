from __future__ import annotations

import tuned_kernels
from trivet.kernels.triton.children import Children, Lost


def test_a_job_that_ends_or_spoils_its_process_costs_only_itself(capfd):
    jobs = [(what,) for what in ("first", "dies", "spoils", "raises", "last")]
    with Children(1) as children:
        found = {job[0]: answer for job, answer in children.done(tuned_kernels.job, jobs)}
    assert found["dies"] == Lost("its process ended by signal 9")
    assert found["spoils"] == Lost("the device is gone")
    assert found["raises"] == Lost("ValueError: no such thing")
    assert isinstance(found["first"], int)
    assert isinstance(found["last"], int)
    assert found["first"] != found["last"]
    assert capfd.readouterr().out == "", "what children print is nobody's output"


def test_a_job_that_hangs_is_ended_and_processes_are_used_again():
    with Children(1, limit_s=60) as children:
        before = [answer for _, answer in children.done(tuned_kernels.job, [("a",), ("b",)])]
        children._limit = 0.2
        ((_, hung),) = children.done(tuned_kernels.job, [("hangs",)])
    assert len(set(before)) == 1
    assert hung == Lost("it did not end within 0 seconds")


def test_each_imports_its_home_before_it_works():
    with Children(1, home="colorsys") as children:
        [(_, answer)] = children.done(imported, [("colorsys",)])
    assert answer is True
    with Children(1, home="no_such_home") as children:
        [(_, answer)] = children.done(imported, [("colorsys",)])
    assert "no_such_home" in answer.reason


def imported(name):
    """Whether a module was imported before this job."""
    import sys

    return name in sys.modules
