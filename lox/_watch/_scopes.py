"""Sees where name scopes begin and end, and what the modules of flax return in theirs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import jax

from lox import _compat
from lox._compat import _tracebacks
from lox._effect import recording, watching
from lox._watch._backward import parent_of
from lox._watch._levels import Scope, level_of, silent, state
from lox._watch._marks import mark, place
from lox._watch._points import is_backward
from lox._watch._remembered import remember


def enters(owner: Any, scope: Any) -> None:
    """See that a context manager has opened a scope of JAX."""
    operations = watching.value
    if operations is None or not (recording.value or operations.unheard) or _tracebacks.opens_own_scope():
        return
    trace = _compat.current_trace()
    level = level_of(trace)
    if level is None:
        return
    parent = parent_of(level)
    part = parent.scope(scope.name, level.transposed or is_backward(parent.parts))._replace(home=level.home)
    remember(scope, part)
    opened = Scope(owner, level, place((*parent.parts, part), "scope"), trace)
    level.scopes.append(opened)
    state.scopes.append(opened)


def leaves(owner: Any, normally: bool) -> None:
    """See that a context manager is left, normally or by an exception."""
    if all(scope.owner is not owner for scope in state.scopes):
        return
    scope = _pop()
    while scope.owner is not owner:  # It was never left, as in a generator that is not run to its end.
        _give_results(scope)
        scope = _pop()
    if not normally or scope.results is None or watching.value is None:
        return
    with silent():
        mark(scope.place, scope.results)
    _give_results(scope)


def _give_results(scope: Scope) -> None:
    around = scope.level.parent
    if isinstance(around, Scope) and around.trace is scope.trace and scope.results is not None:
        around.results = scope.results


def _pop() -> Scope:
    scope = state.scopes.pop()
    scope.level.scopes.remove(scope)
    return scope


def note(trace: Any, outs: Any) -> None:
    """Remember the results of an operation as those of the innermost scope that is open under this trace."""
    if not state.scopes or not outs:
        return
    for scope in reversed(state.scopes):
        if scope.trace is trace:
            scope.results = outs
            return


def of_modules() -> contextlib.AbstractContextManager[Any]:
    """The context in which the results of a module of flax.linen are those of its scope: it may return several."""
    linen = sys.modules.get("flax.linen")
    return contextlib.nullcontext() if linen is None else linen.intercept_methods(_intercept)


def _intercept(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    del context
    scope = state.scopes[-1] if state.scopes else None
    outs = method(*args, **kwargs)
    if scope is not None and state.scopes and state.scopes[-1] is scope:
        scope.results = [leaf for leaf in jax.tree.leaves(outs) if isinstance(leaf, jax.Array)]
    return outs
