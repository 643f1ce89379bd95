"""Dtypes: where precision or range is lost."""

from __future__ import annotations

from lox._audit._checks._numerics import (
    _attention,
    _classes,
    _dropout,
    _dtypes,
    _exponentials,
    _indices,
    _infinities,
    _integers,
    _ones,
    _padding,
    _poles,
    _promotions,
    _ranks,
    _rings,
    _rolled,
    _rows,
    _scales,
    _shifts,
    _squashed,
    _sums,
    _weights,
    _zeros,
)

_ALL = (
    _dtypes,
    _sums,
    _promotions,
    _rings,
    _integers,
    _exponentials,
    _squashed,
    _indices,
    _infinities,
    _rows,
    _attention,
    _scales,
    _classes,
    _weights,
    _ones,
    _ranks,
    _padding,
    _zeros,
    _dropout,
    _rolled,
    _shifts,
)

KINDS = tuple(kind for each in _ALL for kind in each.KINDS)
CHECKS = (*(check for each in _ALL for check in each.CHECKS), *_poles.CHECKS)
