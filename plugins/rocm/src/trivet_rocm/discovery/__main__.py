"""Shows what discovery finds here, keeps the answers, or replays kept ones.

``python -m trivet_rocm.discovery`` prints devices or the reason for none. ``--record FILE`` keeps
the answers as one of the files that the tests replay; ``--replay FILE`` judges kept answers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from trivet_rocm.discovery.machine import judge
from trivet_rocm.discovery.record import gather
from trivet_rocm.discovery.recording import kept, lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is found; 0 when there is a device."""
    parser = argparse.ArgumentParser(
        prog="python -m trivet_rocm.discovery", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--record", metavar="FILE", help="keep the answers, serial numbers replaced"
    )
    parser.add_argument("--machine", default="", help="with --record: the machine in one line")
    parser.add_argument("--replay", metavar="FILE", help="judge kept answers, ask nothing here")
    given = parser.parse_args(arguments)
    record = (
        json.loads(Path(given.replay).read_text(encoding="utf-8")) if given.replay else gather()
    )
    finding = judge(record)
    print("\n".join(lines(finding)))  # noqa: T201 - a command
    if given.record:
        Path(given.record).write_text(
            json.dumps(kept(record, given.machine), indent=1) + "\n", encoding="utf-8"
        )
        print(f"kept in {given.record}")  # noqa: T201 - a command
    return 0 if finding.devices else 1


if __name__ == "__main__":
    raise SystemExit(main())
