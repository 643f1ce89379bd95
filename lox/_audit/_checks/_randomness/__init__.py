"""Random keys that are used again, or shared."""

from __future__ import annotations

from lox._audit._checks._randomness import _reuse

KINDS = _reuse.KINDS
CHECKS = _reuse.CHECKS
