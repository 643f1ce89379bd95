"""What an audit looks for, by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lox._audit._audited import Audited
from lox._audit._checks import (
    _autodiff,
    _axes,
    _jit,
    _lanes,
    _logging,
    _loops,
    _numerics,
    _pytrees,
    _randomness,
    _results,
)
from lox._audit._findings import Finding, Held, Kind
from lox._audit._own_kinds import OWN

Check = Callable[[Audited], Iterator[Finding | Held]]

_FAMILIES: Any = (_axes, _loops, _lanes, _jit, _pytrees, _autodiff, _randomness, _numerics, _results, _logging)

ALL: tuple[Check, ...] = tuple(check for family in _FAMILIES for check in family.CHECKS)
OF_DERIVATIVES: tuple[Check, ...] = _autodiff.OF_DERIVATIVES
"""Those that are also made of each function that a program differentiates itself, with its result alone."""
OF_DIFFERENTIATED: tuple[Check, ...] = _loops.OF_DIFFERENTIATED
"""Those that are also made of it with all that it returns, as a derivative takes apart what they look at."""
KINDS: dict[str, Kind] = {kind.code: kind for family in _FAMILIES for kind in family.KINDS}
"""The kinds of findings that checks look for, by code."""
KNOWN: dict[str, Kind] = {**KINDS, **{kind.code: kind for kind in OWN}}
"""All kinds of findings, by code."""
