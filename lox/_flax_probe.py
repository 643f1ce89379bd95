"""Traces that only look: a library traces a function once more to learn something, and throws the trace away."""

from __future__ import annotations

import sys
from types import FrameType


def probing() -> bool:
    """Say whether flax is tracing the body of an `nn.scan` only to look for values that do not depend on the loop.

    It removes dead code from that trace and refuses what is left if it uses the loop's inputs, as any effect does.
    There is no hook for it; but while the trace lasts, the function that makes it has not yet assigned its result.
    """
    if "flax" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "scan_fn" and frame.f_globals.get("__name__") == "flax.core.axes_scan":
            return "constants_out" not in frame.f_locals
        frame = frame.f_back
    return False
