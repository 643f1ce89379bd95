"""Counts what is in jaxprs and gets numbers in paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.extend as jex

from lox import _compat
from lox._compat import _tracebacks
from lox._logs_in import has_rule, jaxprs_in
from lox._watch._marks import places_in
from lox._watch._points import BACKWARD, RULE, Part, relative
from lox._watch._remembered import remembered

primitives = jex.core.primitives

_PARTS = primitives.scan_p, primitives.while_p, primitives.cond_p
"""The primitives that are parts of paths, as functions of `jit` are."""


def counts_in(params: dict[str, Any]) -> dict[str, int]:
    """The number of parts of each name in the jaxprs among the parameters of a primitive that is no part of paths."""
    found = [_in_no_part(jaxpr) for jaxpr in jaxprs_in(params)]
    rules, passes = sum(each.rules for each in found), max((each.passes for each in found), default=0)
    counts = {name: count for name, count in ((RULE.name, rules), (BACKWARD.name, passes)) if count}
    for part in first_parts_in(params):
        counts[part.name] = max(counts.get(part.name, 0), part.number + 1)
    return counts


def first_parts_in(params: dict[str, Any]) -> list[Part]:
    """The first parts of the paths in the jaxprs among the parameters of a primitive."""
    return [parts[0] for each in places_in(params) if (parts := relative(each.parts))]


class _InNoPart(NamedTuple):
    """What may be a part of paths in a jaxpr, whether it has marks or not, and is in no other part.

    Attributes:
        rules: The number of rules that may run in place of functions.
        passes: The number of backward passes.
    """

    rules: int
    passes: int


@_compat.weakref_lru_cache
def _in_no_part(jaxpr: Any) -> _InNoPart:
    rules = passes = 0
    seen = set[int]()
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        outside, *names = _tracebacks.split_at_transpositions(scopes_around(eqn))
        if any(isinstance(remembered(scope), Part) for scope in outside):
            continue
        if names:
            passes += id(names[0][0]) not in seen
            seen.add(id(names[0][0]))
        elif not _is_part(eqn):
            inside = sum(_in_no_part(inner).rules for inner in jaxprs_in(eqn.params))
            rules += max(inside, has_rule(eqn.primitive, eqn.params))
            passes += passes_in(eqn)
    return _InNoPart(rules, passes)


def scopes_around(eqn: Any) -> Sequence[Any]:
    """The scopes that an equation is in, without that of its own rule."""
    scopes = eqn.source_info.name_stack.stack
    return scopes[:-1] if eqn.primitive is primitives.custom_vjp_call_p else scopes


def _is_part(eqn: Any) -> bool:
    is_jitted = eqn.primitive is primitives.jit_p and not _tracebacks.is_internal(eqn.params["jaxpr"])
    return is_jitted or eqn.primitive in _PARTS


def passes_in(eqn: Any) -> int:
    """The number of backward passes in the jaxprs of an equation; 0 if it is a part of paths itself."""
    return 0 if _is_part(eqn) else max((_in_no_part(jaxpr).passes for jaxpr in jaxprs_in(eqn.params)), default=0)
