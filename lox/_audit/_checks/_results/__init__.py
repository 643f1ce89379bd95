"""Results that are computed and lost: what a statement drops, and new states in whose place the old ones go on."""

from __future__ import annotations

from lox._audit._checks._results import (
    _averages,
    _dropped,
    _exchanged_arguments,
    _first,
    _in_place,
    _inverted,
    _lost,
    _optimizers,
    _ratios,
    _repeated,
    _replaced,
    _same,
    _thrown,
)

KINDS = (
    *_dropped.KINDS,
    *_replaced.KINDS,
    *_averages.KINDS,
    *_in_place.KINDS,
    *_inverted.KINDS,
    *_first.KINDS,
    *_exchanged_arguments.KINDS,
)
CHECKS = (
    *_dropped.CHECKS,
    *_replaced.CHECKS,
    *_averages.CHECKS,
    *_in_place.CHECKS,
    *_inverted.CHECKS,
    *_first.CHECKS,
    *_thrown.CHECKS,
    *_repeated.CHECKS,
    *_optimizers.CHECKS,
    *_lost.CHECKS,
    *_same.CHECKS,
    *_ratios.CHECKS,
    *_exchanged_arguments.CHECKS,
)
