"""The child process of a run: loads the plugin, checks it, and tells its parent everything.

Plugin code sees an ordinary interpreter: no variable and no argument of the process names the
kit. Everything is announced before it is done, so that a death has a place.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

import torch

from trivet.errors import TrivetError
from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import BAD, Finding, Result, Status
from trivet_conformance.running import alive
from trivet_conformance.running.harness import harness_checks
from trivet_conformance.running.integrity import Guard
from trivet_conformance.running.load_checks import Loading
from trivet_conformance.running.run import (
    Place,
    Watch,
    comm_places,
    memory_places,
    place_of,
    result,
    run,
    safe,
    told,
)
from trivet_conformance.running.wire import TOLD_WHY, Channel, Job, result_to_json
from trivet_conformance.subject.locating import Located, executed, settle
from trivet_conformance.subject.subject import Subject, installed

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def main(given: Mapping[str, Any]) -> None:
    """Runs the job of a message: a channel, a secret, a job, and what is done already."""
    channel = Channel(given["descriptor"], given["secret"])
    job = Job.from_json(given["job"])
    _die_with_parent()
    errors = os.dup(2)
    faulthandler.enable(errors)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; see Watch.owns_process
    sys.argv[:] = [""]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.executable]
    settle(Located(job.plugin, job.paths))
    # Threads of earlier work make later checks slower, not wrong; seeds are the kit's own.
    random.seed(job.seed)
    torch.manual_seed(job.seed)
    watch = Telling(channel, job, given["done"], given["closed"])
    try:
        _work(channel, job, watch)
    except (TrivetError, ValueError) as error:
        channel.send("refused", text=str(error))
    except Exception as error:  # noqa: BLE001 - outside of every check; the parent reports it
        finding = Finding(Status.ERROR, told(error))
        watch.broken(finding)
        watch.give_up(f"outside of every check something raised {finding.reason}")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the plugin may have closed it
            stream.flush()  # before the end is told: the parent then ends this process
    channel.send("end")
    os._exit(0)  # what the plugin left to be done at the exit is not this run's business


def _work(channel: Channel, job: Job, watch: Telling) -> None:
    loading = Loading(job.plugin)
    watch.plugin = job.plugin
    for place, check in loading.steps():
        watch.check(place, check)
    if loading.failed:
        channel.send("hello", device={}, groups=[], printed=loading.printed, loaded=False)
        return
    whole = executed(installed(job.plugin), job.execution)
    watch.subject = subject = whole.only(job.ops) if job.ops else whole
    chosen = [f for f in job.families or FAMILIES if f in FAMILIES]
    places = [place_of(t, f) for t in subject.targets for f in chosen]
    places += memory_places(subject, job.families)
    places += comm_places(subject, job.families)
    own = [asdict(p) for p in places if in_shard(p.group, job.shard)]
    channel.send(
        "hello",
        device=subject.device.info.to_json(),
        groups=[] if job.checks_only else own,
        printed=loading.printed,
        loaded=True,
        implementations=len(whole.targets),
    )
    for place, check in loading.device_checks(subject.device):
        watch.check(place, check)
    for line in run(
        _empty(subject) if job.checks_only else subject,
        families=job.families,
        seed=job.seed,
        quick=job.quick,
        case=job.case,
        watch=watch,
    ):
        watch.tell(line)
    if job.harness and not job.checks_only:
        gc.collect()
        bench = Bench(job.seed, quick=True)
        for place, check in harness_checks(subject, bench, job.case, watch):
            finding = watch.judged(place, safe(check, watch))
            watch.tell(result(subject, job.seed, place, finding))


def _empty(subject: Subject) -> Subject:
    return Subject(subject.plugin, subject.device, (), subject.refused, subject.unmet)


class Telling(Watch):
    """Tells the parent of every step, and looks after every case what the plugin changed.

    Args:
        channel: to the parent.
        job: of the run.
        done: ids of results that are known.
        closed: implementations in families that are done.
    """

    owns_process = True

    def __init__(
        self, channel: Channel, job: Job, done: Iterable[str], closed: Iterable[str]
    ) -> None:
        self.channel = channel
        self.job = job
        self.done = set(done)
        self.closed = set(closed)
        self.guard = Guard()
        self.subject: Subject | None = None
        self.plugin = job.plugin

    def group(self, place: Place) -> bool:
        """Tells of it, unless it is done or another shard's."""
        if place.group in self.closed or not in_shard(place.group, self.job.shard):
            return False
        self.channel.send("group", place=asdict(place))
        return True

    def end(self, place: Place) -> None:
        """Tells that it is done; a device that a passed case broke must not be the next one's."""
        self.broken(Finding(Status.PASS))
        self.channel.send("closed", group=place.group)

    def case(self, place: Place) -> bool:
        """Tells of it, unless it is done or another shard's."""
        if place.id in self.done or not in_shard(place.group, self.job.shard):
            return False
        self.done.add(place.id)
        self.channel.send("case", place=asdict(place))
        return True

    def judged(self, place: Place, finding: Finding) -> Finding:
        """A failure where something was changed that belongs to everybody."""
        if finding.status in BAD:
            self.broken(finding)
        changes = self.guard.changes()
        if not changes:
            return finding
        text = "; ".join(changes)
        self.channel.send("changes", place=asdict(place), text=text)
        return Finding(Status.FAIL, f"meanwhile {text}", 1.0, finding.inputs, finding.notes)

    def broken(self, finding: Finding) -> None:
        """Ends this process where the device ended; the parent says so of what is open."""
        text = alive.failure(self.subject.device.torch) if self.subject else ""
        if text:
            self.give_up(f"the device failed in it: {text}", finding.reason)

    def give_up(self, how: str, *notes: str) -> NoReturn:
        """Ends this process with a reason; nothing is left to objects that would still act."""
        self.channel.send("ends", how=how, notes=notes)
        os._exit(TOLD_WHY)

    def check(self, place: Place, check: Callable[[], Finding]) -> None:
        """Runs a step of loading; also where it is known, for the next one needs it."""
        known = place.id in self.done or not in_shard(place.group, self.job.shard)
        if not known:
            self.case(place)
        else:
            self.channel.send("again", place=asdict(place))
        finding = self.judged(place, safe(check, self))
        wanted = not self.job.case or place.id == self.job.case
        if known or not (wanted or finding.status is Status.FAIL):
            self.channel.send("passed")
            return
        execution = self.subject.execution if self.subject else "not_run"
        self.tell(
            Result(
                place.family, place.op, place.provider, place.case, "", finding, self.job.seed,
                self.plugin, execution,
            )
        )  # fmt: skip

    def tell(self, line: Result) -> None:
        """Sends a result; its plugin is what the user called it, so that its command works."""
        line = replace(line, plugin=self.job.spec or self.plugin)
        self.channel.send("result", row=result_to_json(line))


def in_shard(group: str, shard: tuple[int, int]) -> bool:
    """Whether an implementation in a family belongs to a shard; its name alone decides.

    What its cases share (right results, a compiled kernel, a plan) is then made by one shard.
    """
    number = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big")
    return number % shard[1] == shard[0] - 1


def _die_with_parent() -> None:
    """Asks the system, where it knows how, to end this process with its parent."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
