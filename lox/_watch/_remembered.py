"""Which part of a path each name scope is.

JAX keeps the name scopes of the program on the equations of its backward passes, so these are found there.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any

import jax.extend.source_info_util as source_info

from lox import _compat
from lox._watch._points import Before, Part

_parts: dict[int, tuple[Any, Part | Before]] = {}
"""What each scope of a staged program stands for, by the identity of the scope."""

_recent: OrderedDict[int, tuple[Any, Part | Before]] = OrderedDict()
"""The same of the last scopes in which operations ran at once: it may be long until their backward pass, if any."""

_RECENT = 4096


def remember(scope: Any, part: Part | Before) -> None:
    """Remember what a scope that is opened now stands for.

    Args:
        scope: The scope.
        part: Its part, or what comes before the parts in it: then it is no part of paths.
    """
    if not _compat.runs_at_once(_compat.current_trace()):
        _parts[id(scope)] = scope, part
        return
    _recent[id(scope)] = scope, part
    if len(_recent) > _RECENT:
        _recent.popitem(last=False)


def remembered(scope: Any) -> Part | Before | None:
    """What a scope stands for: see `remember`. None if it is one of JAX's own."""
    return (_parts.get(id(scope)) or _recent.get(id(scope)) or (None, None))[1]


def new_scope() -> Any:
    """A scope that lox opens where the program opens none."""
    return source_info.new_name_stack("lox.watch").stack[0]


def opened(part: Part | Before | None, scope: Any = None, inside: int = 0) -> contextlib.AbstractContextManager[Any]:
    """The context in a scope of lox's own; one that stands for nothing is left out.

    Args:
        part: What it stands for: see `remember`.
        scope: The scope; None for a new one.
        inside: How many of the scopes that are open are in it.
    """
    if part is None or (isinstance(part, Before) and not part.numbers):
        return contextlib.nullcontext()
    scope = new_scope() if scope is None else scope
    remember(scope, part)
    scopes = source_info.current_name_stack().stack
    count = len(scopes) - inside
    return source_info.set_name_stack(source_info.NameStack((*scopes[:count], scope, *scopes[count:])))
