"""Axes that mean one thing where another is meant."""

from __future__ import annotations

from lox._audit._checks._axes import (
    _batches,
    _crossed,
    _diagonal,
    _exchanged,
    _heads,
    _images,
    _lengths,
    _meaning,
    _merged,
    _permuted,
    _recurrences,
    _sizes,
    _statistics,
)

KINDS = (
    *_meaning.KINDS,
    *_crossed.KINDS,
    *_recurrences.KINDS,
    *_statistics.KINDS,
    *_sizes.KINDS,
    *_lengths.KINDS,
    *_batches.KINDS,
    *_images.KINDS,
)
CHECKS = (
    *(*_meaning.CHECKS, *_crossed.CHECKS, *_diagonal.CHECKS, *_exchanged.CHECKS, *_heads.CHECKS, *_permuted.CHECKS),
    *_merged.CHECKS,
    *(*_recurrences.CHECKS, *_statistics.CHECKS, *_sizes.CHECKS, *_lengths.CHECKS, *_batches.CHECKS, *_images.CHECKS),
)
