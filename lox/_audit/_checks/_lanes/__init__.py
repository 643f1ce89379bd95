"""What runs for many batch elements or shards at once."""

from __future__ import annotations

from lox._audit._checks._lanes import _closures, _gathered, _gradients, _positions, _quotients, _shards, _vmap

_ALL = (_shards, _gradients, _vmap, _positions, _closures, _gathered)

KINDS = tuple(kind for each in _ALL for kind in each.KINDS)
CHECKS = (*(check for each in _ALL for check in each.CHECKS), *_quotients.CHECKS)
