from __future__ import annotations

import logging
import shutil

from hypothesis import strategies as st

from fuzzing import HUGE, ODD, amounts, fuzz, mutated, outcome
from trivet.errors import PluginError
from trivet.plugins import Discovery, Status
from trivet.plugins.resolve import resolve
from trivet.settings import Settings

HEAD = b"Metadata-Version: 2.1\nName: bad-dist\nVersion: 1.0\nAuthor: Somebody\n"
POINTS = b"""[console_scripts]
run = bad:main
[trivet.plugins]
bad = fake_bad
other_one = fake_bad:inner.part
[trivet.contract]
bad = v1:v1
other_one = v1:v9
[trivet.extends]
other_one = good
[trivet.commands]
grow = fake_bad:command
"""
TOKENS = [b"\0", b"\xff", b"\r", b"[trivet.plugins]\n", b"[trivet.contract]\n", b"[", b"]", b"=",
          b"[trivet.extends]\nbad = bad\n", b"good = fake_bad\n", b"v1:v1", b"v9:v1", b"auto = m\n",
          b"Name: \n", b"Name: good-dist\n", b"Name: ../x\n", b"\n\n", b"\xe2\x80\xa8", b" = ",
          b"m:a.b.c", b"m [extra]", b"..", b"os:getcwd", b"fake_bad:", b":", b"9",
          *[t.encode() for t in (*HUGE, *ODD)]]  # fmt: skip
FILES = ["METADATA", "entry_points.txt", "METADATA", "entry_points.txt", "RECORD", "top_level.txt"]

SOURCE = """
from trivet.contracts import DeviceInfo
def trivet_devices():
    return [DeviceInfo("bad")]
"""


@st.composite
def folders(draw):
    """Both files of a distribution, at least one of them damaged, and how one of them is lost."""
    points = draw(mutated([POINTS], TOKENS))
    head = draw(st.one_of(st.just(HEAD), mutated([HEAD], TOKENS)))
    name = draw(st.sampled_from(["bad_dist-1.0", "bad_dist-1.0", "bad_dist", "-", "bad-dist-1-x"]))
    loss = draw(st.sampled_from([None] * 5 + ["absent", "folder", "loop", "pipe"]))
    return points, head, f"{name}.dist-info", loss, draw(st.sampled_from(FILES[:2]))


def write(folder, one):
    points, head, name, loss, which = one
    info = folder / name
    info.mkdir()
    for file, data in (("entry_points.txt", points), ("METADATA", head)):
        path = info / file
        if loss and file == which:
            if loss == "folder":
                path.mkdir()
            elif loss == "loop":
                path.symlink_to(file)
        else:
            path.write_bytes(data)
    return info


@amounts("entry-point metadata")
def test_damaged_metadata_costs_lines_and_never_the_others(amount, dists, caplog):
    caplog.set_level(logging.CRITICAL, "trivet")
    dists.add_good("good")
    (dists.folder / "fake_bad.py").write_text(SOURCE)

    def check(one):
        info = write(dists.folder, one)
        try:
            discovery = Discovery(Settings())
            report = discovery.report()
            for line in report:
                works(discovery, line)
            assert "good" in discovery.names
            claimed = [line for line in report if line.plugin == "good"]
            mine = next(line for line in claimed if line.dist == "good-dist")
            if [ln for ln in claimed if ln.status is not Status.BROKEN]:
                assert resolve("good", discovery).plugin == "good"
            else:  # somebody else claims the name too: said, and neither is taken
                assert mine.status is Status.BROKEN
                assert "is claimed by" in mine.reason
            assert str(discovery.report()).encode()
            assert discovery.report().to_json()
        finally:
            shutil.rmtree(info)

    fuzz(amount, folders(), check)


def works(discovery, line) -> None:
    """A plugin that is usable gives devices, or an error that is its line."""
    if discovery.line(line.plugin).dist != line.dist or not line.usable:
        assert line.reason
        assert line.usable or line.fix
        return
    got, error = outcome(lambda: resolve(line.plugin, discovery), PluginError)
    assert got or (error.what and error.fix)
