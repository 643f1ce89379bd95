"""Axes that mean one thing where another is meant."""

from __future__ import annotations

from lox._audit._checks._axes import _meaning, _recurrences

KINDS = (*_meaning.KINDS, *_recurrences.KINDS)
CHECKS = (*_meaning.CHECKS, *_recurrences.CHECKS)
