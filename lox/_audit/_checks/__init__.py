"""What an audit looks for, a module for each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lox._audit._audited import Audited
from lox._audit._checks import (
    _autodiff,
    _axes,
    _boundaries,
    _carry,
    _derivative_rules,
    _effects,
    _jit,
    _lanes,
    _logging,
    _numerics,
    _pytrees,
    _randomness,
    _recompilation,
    _refused,
    _scan,
    _singular_gradients,
    _tracing,
    _unrolled,
)
from lox._audit._findings import Finding, Held, Kind

Check = Callable[[Audited], Iterator[Finding | Held]]

_FAMILIES: Any = (
    _axes,
    _boundaries,
    _carry,
    _scan,
    _unrolled,
    _lanes,
    _tracing,
    _refused,
    _effects,
    _jit,
    _recompilation,
    _pytrees,
    _autodiff,
    _singular_gradients,
    _derivative_rules,
    _randomness,
    _numerics,
    _logging,
)

ALL: tuple[Check, ...] = tuple(check for family in _FAMILIES for check in family.CHECKS)
KINDS: dict[str, Kind] = {kind.code: kind for family in _FAMILIES for kind in family.KINDS}
"""All kinds of findings, by code."""
