"""What runs for many batch elements or shards at once."""

from __future__ import annotations

from lox._audit._checks._lanes import _closures, _gradients, _positions, _quotients, _shards, _vmap

KINDS = (*_shards.KINDS, *_gradients.KINDS, *_vmap.KINDS, *_positions.KINDS, *_closures.KINDS)
CHECKS = (*_shards.CHECKS, *_gradients.CHECKS, *_vmap.CHECKS, *_positions.CHECKS, *_closures.CHECKS, *_quotients.CHECKS)
