"""What the name scopes in name stacks stand for: equations of backward passes are in the same ones as the program."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any

import jax.extend.source_info_util as source_info

from lox import _compat
from lox._watch._points import Numbers, Part

_parts: dict[int, tuple[Any, Part | Numbers]] = {}
"""What each scope of a staged program stands for, by its identity. Scopes of JAX itself are not among them."""

_recent: OrderedDict[int, tuple[Any, Part | Numbers]] = OrderedDict()
"""The same of the last scopes in which operations ran at once: it may be long until their backward pass, if any."""

_RECENT = 4096


def remember(scope: Any, part: Part | Numbers) -> None:
    """Remember what a scope that the program opens now stands for.

    Args:
        scope: The scope.
        part: Its part, or the numbers of what comes before the parts in it: those are no part of paths.
    """
    if not _compat.runs_at_once(_compat.current_trace()):
        _parts[id(scope)] = scope, part
        return
    _recent[id(scope)] = scope, part
    if len(_recent) > _RECENT:
        _recent.popitem(last=False)


def remembered(scope: Any) -> Part | Numbers:
    """What a scope stands for; nothing, for one of JAX itself."""
    return (_parts.get(id(scope)) or _recent.get(id(scope)) or (None, ()))[1]


def new_scope() -> Any:
    """A scope that lox opens where the program opens none."""
    return source_info.new_name_stack("lox.watch").stack[0]


def opened(part: Part | Numbers, scope: Any = None, inside: int = 0) -> contextlib.AbstractContextManager[Any]:
    """The context in a scope that stands for something.

    Args:
        part: What it stands for: see `remember`.
        scope: The scope; None for a new one.
        inside: How many of the scopes that are open are in it.
    """
    scope = new_scope() if scope is None else scope
    remember(scope, part)
    scopes = source_info.current_name_stack().stack
    count = len(scopes) - inside
    return source_info.set_name_stack(source_info.NameStack((*scopes[:count], scope, *scopes[count:])))
