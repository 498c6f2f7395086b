"""The command `trivet-metal-emulator` as `python -m trivet_metal_emulator`."""

from __future__ import annotations

from trivet_metal_emulator.cli import main

if __name__ == "__main__":
    main()
