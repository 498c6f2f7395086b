"""Proves that the installed wheels work without the source tree: ``smoke.py CHECKOUT``."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Run one operator on the automatic device and check where the code came from."""
    import torch

    import trivet

    checkout = Path(sys.argv[1]).resolve()
    home = Path(str(trivet.__file__)).resolve()
    if checkout in home.parents:
        print(f"trivet comes from the checkout: {home}")
        return 1
    device = trivet.device("auto")
    x = torch.randn(4, 64)
    got = device.ops.rms_norm(x, torch.ones(64))
    want = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    print(f"ok: {home.parent}, device {device.torch}, torch {torch.__version__}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
