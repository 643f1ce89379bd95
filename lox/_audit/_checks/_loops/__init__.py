"""Loops: what they carry, what they go over, and whether they end."""

from __future__ import annotations

from lox._audit._checks._loops import (
    _accumulated,
    _bootstraps,
    _carried,
    _carry,
    _constant,
    _counted,
    _divided,
    _episodes,
    _memories,
    _reports,
    _scan,
    _stored,
    _targets,
    _unrolled,
    _without_scan,
)

KINDS = (
    *_carry.KINDS,
    *_scan.KINDS,
    *_unrolled.KINDS,
    *_carried.KINDS,
    *_counted.KINDS,
    *_divided.KINDS,
    *_episodes.KINDS,
    *_bootstraps.KINDS,
    *_memories.KINDS,
    *_accumulated.KINDS,
    *_constant.KINDS,
)
CHECKS = (
    *_carry.CHECKS,
    *_scan.CHECKS,
    *_unrolled.CHECKS,
    *_carried.CHECKS,
    *_counted.CHECKS,
    *_divided.CHECKS,
    *_episodes.CHECKS,
    *_bootstraps.CHECKS,
    *_memories.CHECKS,
    *_reports.CHECKS,
    *_accumulated.CHECKS,
    *_stored.CHECKS,
    *_targets.CHECKS,
    *_constant.CHECKS,
    *_without_scan.CHECKS,
)
OF_DIFFERENTIATED = _carried.CHECKS
