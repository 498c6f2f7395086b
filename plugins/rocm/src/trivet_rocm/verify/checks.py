"""What only hardware can tell, in a minute: wavefront, formats, graphs, streams, one launch each.

``python -m trivet_rocm.verify.checks --out FILE`` writes rows of a name, ``ok`` and what was seen.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

import trivet

_WIDTH: Final = 4096


def wavefront(dev: trivet.Device) -> str:
    """The lanes that torch tells are those that discovery said."""
    told = torch.cuda.get_device_properties(dev.torch).warp_size
    _same(told, dev.info.subgroup_width)
    return f"{told} lanes"


def units(dev: trivet.Device) -> str:
    """The compute units that torch tells are those that discovery said; RDNA counts pairs."""
    told = torch.cuda.get_device_properties(dev.torch).multi_processor_count
    if dev.info.cores not in {told, 2 * told}:
        msg = f"torch tells {told} multiprocessors, discovery said {dev.info.cores}"
        raise AssertionError(msg)
    return f"{told} of torch's multiprocessors"


def architecture(dev: trivet.Device) -> str:
    """The architecture that torch tells is the one that discovery said."""
    told = torch.cuda.get_device_properties(dev.torch).gcnArchName
    _same(told.partition(":")[0], dev.info.arch[0])
    return str(told)


def rms_norm(dev: trivet.Device) -> str:
    """One launch of a norm agrees with the reference on the CPU."""
    x = torch.randn(37, _WIDTH, dtype=torch.bfloat16, device=dev.torch)
    weight = torch.randn(_WIDTH, dtype=torch.bfloat16, device=dev.torch)
    y = dev.ops.rms_norm(x, weight)
    wanted = trivet.device("cpu").ops.rms_norm(x.cpu(), weight.cpu())
    torch.testing.assert_close(y.cpu(), wanted, rtol=2e-2, atol=2e-2)
    return "agrees with the CPU"


def graph(dev: trivet.Device) -> str:
    """A captured norm replays on other numbers."""
    from trivet_triton.graphs import GraphCapturer

    x = torch.randn(8, _WIDTH, dtype=torch.bfloat16, device=dev.torch)
    weight = torch.ones(_WIDTH, dtype=torch.bfloat16, device=dev.torch)
    dev.ops.rms_norm(x, weight)
    capturer = GraphCapturer(dev.info.index)
    capturer.begin(capturer.pool())
    y = dev.ops.rms_norm(x, weight)
    captured = capturer.end()
    x.copy_(torch.randn_like(x))
    captured.replay()
    torch.cuda.synchronize(dev.torch)
    _same(torch.equal(y, dev.ops.rms_norm(x, weight)), True)
    captured.release()
    return "replays"


def stream(dev: trivet.Device) -> str:
    """A launch goes to the caller's stream."""
    side = torch.cuda.Stream(dev.torch)  # type: ignore[no-untyped-call]
    x = torch.randn(4096, _WIDTH, device=dev.torch)
    side.wait_stream(torch.cuda.current_stream(dev.torch))
    with torch.cuda.stream(side):
        y = dev.ops.silu(x * 1.0)
    side.synchronize()
    torch.testing.assert_close(y, torch.nn.functional.silu(x), rtol=1e-4, atol=1e-4)
    return "ordered"


def fp8(dev: trivet.Device) -> str:
    """Quantised bytes are torch's, of the architecture's own format, up to its largest value."""
    from trivet_triton.hardware import arch_at, architecture
    from trivet_triton.kernels.quantise import quantise

    own = architecture(arch_at(dev.info.index)).fp8
    if own is None:
        return "no format of its own"
    most = torch.finfo(own).max
    x = torch.linspace(-2 * most, 2 * most, 1 << 16, device=dev.torch)
    got = quantise(x, torch.ones((), device=dev.torch))
    wanted = x.cpu().clamp(-most, most).to(own)
    _same(torch.equal(got.cpu().view(torch.uint8), wanted.view(torch.uint8)), True)
    return f"{own}, at most {most:.0f}"


def allocator(dev: trivet.Device) -> str:
    """Memory comes from torch's allocator, and goes back."""
    before = torch.cuda.memory_allocated(dev.torch)
    x = torch.empty(1 << 26, device=dev.torch)
    _same(torch.cuda.memory_allocated(dev.torch) - before, x.nbytes)
    del x
    _same(torch.cuda.memory_allocated(dev.torch), before)
    return "accounted"


CHECKS: Final[tuple[Callable[[trivet.Device], str], ...]] = (
    architecture, wavefront, units, allocator, rms_norm, stream, graph, fp8,
)  # fmt: skip


def rows(dev: trivet.Device) -> list[dict[str, Any]]:
    """Each check with what it saw; one that raises is not ok."""
    found = []
    for check in CHECKS:
        try:
            found.append({"name": check.__name__, "ok": True, "seen": check(dev)})
        except Exception:  # noqa: BLE001 - that is what is to be found out
            seen = traceback.format_exc(limit=-3)
            found.append({"name": check.__name__, "ok": False, "seen": seen})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the rows; 0 where all are ok."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", required=True)
    out = Path(parser.parse_args(arguments).out)
    found = rows(trivet.device("rocm"))
    out.write_text(json.dumps({"rows": found}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in found) else 1


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        msg = f"{found!r} is not {wanted!r}"
        raise AssertionError(msg)


if __name__ == "__main__":
    raise SystemExit(main())
