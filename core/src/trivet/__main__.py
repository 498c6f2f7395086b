"""``python -m trivet`` is the ``trivet`` command."""

from __future__ import annotations

from trivet.cli import main

main()
