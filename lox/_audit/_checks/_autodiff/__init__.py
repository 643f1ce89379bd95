"""Derivatives: of what and by what, where they are lost, infinite or wrong."""

from __future__ import annotations

from lox._audit._checks._autodiff import (
    _advantages,
    _compared,
    _mirrored,
    _missing,
    _named,
    _paths,
    _rules,
    _sides,
    _signs,
    _singular,
    _spread,
    _stopped,
)

_OF_LOSSES = (_rules, _stopped, _named, _advantages, _sides, _signs, _spread, _mirrored, _compared)
_ALL = (_paths, _singular, _missing, *_OF_LOSSES)

KINDS = tuple(kind for each in _ALL for kind in each.KINDS)
CHECKS = tuple(check for each in _ALL for check in each.CHECKS)
OF_DERIVATIVES = (_paths.arguments, *(check for each in _OF_LOSSES for check in each.CHECKS))
