"""Random keys that are used again, shared, never used, or of the old kind."""

from __future__ import annotations

from lox._audit._checks._randomness import (
    _accepted,
    _beginnings,
    _beyond,
    _old_keys,
    _reuse,
    _rows,
    _shards,
    _turned_off,
    _unused,
)

KINDS = (*_reuse.KINDS, *_unused.KINDS, *_old_keys.KINDS, *_beyond.KINDS, *_shards.KINDS, *_accepted.KINDS)
CHECKS = (
    *_reuse.CHECKS,
    *_unused.CHECKS,
    *_old_keys.CHECKS,
    *_beyond.CHECKS,
    *_shards.CHECKS,
    *_beginnings.CHECKS,
    *_rows.CHECKS,
    *_accepted.CHECKS,
    *_turned_off.CHECKS,
)
