"""Dtypes: where precision or range is lost."""

from __future__ import annotations

from lox._audit._checks._numerics import _dtypes, _exponentials, _integers, _promotions, _sums

KINDS = (*_dtypes.KINDS, *_sums.KINDS, *_promotions.KINDS, *_integers.KINDS, *_exponentials.KINDS)
CHECKS = (*_dtypes.CHECKS, *_sums.CHECKS, *_promotions.CHECKS, *_integers.CHECKS, *_exponentials.CHECKS)
