"""Implementations over torch and oneDNN, used on any machine.

Every module here is found by itself. What is compiled comes before it; a module that was measured
to be faster where both take a call says ``BEFORE_COMPILED = True``, beside what was measured.
"""

from __future__ import annotations

from typing import Final

PROMISES: Final = frozenset({"graph_safe"})
"""What each implementation here declares: no more than a capture that sees torch's operators, as
torch chooses a product by the number of rows and of threads; a module that copies or compares alone
says ``PROMISES`` itself."""
