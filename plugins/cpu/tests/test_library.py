from __future__ import annotations

import json

import pytest
import torch

from trivet.errors import DomainError, PluginBroken
from trivet_cpu import isa, kernel_library
from trivet_cpu.kernel_library import KERNELS, Library, library, refuse
from trivet_cpu.machine import this_machine


@pytest.fixture
def unloaded(monkeypatch):
    """A library that was not loaded yet; the real one comes back afterwards."""
    monkeypatch.setattr(kernel_library, "library", kernel_library.cache(library.__wrapped__))
    return monkeypatch


def test_every_level_that_the_machine_runs_was_built():
    wanted = {"x86-64-v4": "avx512", "x86-64-v3": "avx2"}
    arch = this_machine().arch
    plain = "neon" if "aarch64" in arch else "baseline"
    expected = {plain} | {wanted[a] for a in arch if a in wanted}
    assert set(isa.levels()) == expected
    assert isa.level() == isa.levels()[-1]


def test_a_level_is_used_inside_the_block_only():
    before = isa.level()
    plainest = isa.levels()[0]
    with isa.using(plainest):
        assert isa.level() == plainest
    assert isa.level() == before


def test_a_level_that_cannot_run_is_refused(monkeypatch):
    monkeypatch.setattr(isa, "LEVELS", ("baseline", "avx2", "avx512", "avx1024"))
    before = isa.level()
    with pytest.raises(DomainError, match="not compiled or cannot run"), isa.using("avx1024"):
        pass
    assert isa.level() == before


def test_a_level_that_does_not_exist_is_refused():
    with pytest.raises(DomainError, match="no level 'nonsense'"), isa.using("nonsense"):
        pass
    before = isa.level()
    for number in (-1, 3, -(2**32), 2**32, 2**62):
        with pytest.raises(RuntimeError, match="not compiled or cannot run"):
            kernel_library.op("set_isa")(number)
    assert isa.level() == before


def test_levels_compute_with_other_instructions(randn):
    """Sums in lanes of another width round differently: the table really changes."""
    if len(isa.levels()) == 1:
        assert isa.levels()[0] in {"baseline", "neon"}
        return
    from trivet_cpu.compiled.norm import rms_norm

    x, weight, results = randn(64, 4096), randn(4096), []
    for name in isa.levels():
        with isa.using(name):
            results.append(rms_norm(x, weight))
    assert all(not torch.equal(results[0], other) for other in results[1:])


def test_the_record_is_missing(unloaded, tmp_path):
    unloaded.setattr(kernel_library, "RECORD", tmp_path / "none.json")
    assert kernel_library.library() == Library({}, "the package was not built")
    assert "not built" in kernel_library.library().note


def test_the_build_had_no_compiler(unloaded, tmp_path):
    record = tmp_path / "_build.json"
    record.write_text(json.dumps({"built": False, "reason": "no compiler"}))
    unloaded.setattr(kernel_library, "RECORD", record)
    found = kernel_library.library()
    assert found.reason == "no compiler"
    assert found.path is None
    assert "no compiler" in found.note
    with pytest.raises(PluginBroken, match="no compiler"):
        kernel_library.op("rms_norm")


def test_the_file_does_not_load(unloaded, tmp_path):
    record = tmp_path / "_build.json"
    record.write_text(json.dumps({**library().record, "library": "broken.so"}))
    (tmp_path / "broken.so").write_bytes(b"no library")
    unloaded.setattr(kernel_library, "RECORD", record)
    unloaded.setattr(kernel_library, "PACKAGE", tmp_path)
    assert "broken.so does not load" in kernel_library.library().reason


def test_loaded_library_says_how_it_was_built():
    note = library().note
    assert library().reason == ""
    assert library().record["compiler"] in note
    assert all(name in note for name in isa.levels())


def test_refusals_become_domain_errors_and_nothing_else_does():
    with pytest.raises(DomainError, match="op: why"):
        refuse(RuntimeError("trivet_cpu domain: op: why\nmore"))
    with pytest.raises(DomainError, match="no such backend"):
        refuse(NotImplementedError("no such backend\nmore"))
    error = RuntimeError("out of something")
    with pytest.raises(RuntimeError) as raised:
        refuse(error)
    assert raised.value is error


def test_sources_name_existing_files():
    for name in kernel_library.sources("norm.h", "norm_op.h"):
        assert (KERNELS.parent / "compiled" / name).is_file()
    assert f"../{library().path.name}" in kernel_library.sources()
