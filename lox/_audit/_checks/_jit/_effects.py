"""What a traced function does beside returning a value: once, and not each time that it is computed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from lox._audit._audited import Audited
from lox._audit._checks._jit import _changes, _host
from lox._audit._checks._jit._names import Names
from lox._audit._checks._jit._scope import Scope
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE
from lox._audit._reached import plain
from lox._audit._sources import Source, are_read, calls_in, source_of, sources

KINDS = (*_host.KINDS, *_changes.KINDS)
_BY_CODE = {kind.code: kind for kind in KINDS}


def effects(audited: Audited) -> Iterator[Finding | Held]:
    """LOX410 to LOX414, in the source of the functions that were traced."""
    traced, reached = sources(audited), audited.captured.reached
    scopes = [Scope(audited, source, {source.node: source for source in traced}) for source in traced]
    unknown = set() if are_read(audited) else set(KINDS)
    found = False
    for scope in scopes:
        for each in _found(audited, scope):
            if isinstance(each, Kind):
                unknown.add(each)
            else:
                found |= each.code in (_changes.CHANGED.code, _changes.LEAKED.code)
                yield each
    for scope in _called(audited, scopes):
        unknown.update(each if isinstance(each, Kind) else _BY_CODE[each.code] for each in _found(audited, scope))
    if not reached.complete or (reached.is_changed and not found):  # Something changed, and no line is known that did.
        unknown.update(_changes.KINDS)
    for kind in KINDS:
        if kind not in unknown:
            yield kind.fine(NOWHERE)


def _found(audited: Audited, scope: Scope) -> Iterator[Finding | Kind]:
    """What a function does, or the kinds of what it may do: where it is not known whether it runs, too."""
    source = scope.source
    names = Names(source.node, source.locals - _static_arguments(audited, source) - _static_in_calls(audited, source))
    changes = _changes.Changes(scope, names, audited.fun)
    runs = set(source.executed)
    for node in names.all():
        calls = _host.called(scope, names, node) if isinstance(node, ast.Call) else ()
        for each in (*calls, *changes.found(node)):
            known = isinstance(each, Kind) or node in runs or changes.is_seen(node)
            yield each if known else _BY_CODE[each.code]


def _called(audited: Audited, scopes: Iterable[Scope]) -> Iterator[Scope]:
    """The functions that the traced ones call, and that led to no equation."""
    seen, waiting = {scope.source.code for scope in scopes}, list(scopes)
    while waiting:
        scope = waiting.pop()
        for fun in [fun for call in calls_in(scope.source.node) for fun in scope.objects(call.func) or ()]:
            code = getattr(plain(fun), "__code__", None)
            if code is None or code in seen or code not in audited.captured.reached.functions:
                continue
            seen.add(code)
            source = source_of(plain(fun))
            if source is not None:
                waiting.append(Scope(audited, source, {}))
                yield waiting[-1]


def _static_arguments(audited: Audited, source: Source) -> set[str]:
    """The arguments of the audited function that have no arrays in them."""
    fun = plain(audited.fun)
    if fun is None or fun.__code__ is not source.code:
        return set()
    count = source.code.co_argcount + source.code.co_kwonlyargcount
    arrays = {name.partition("/")[0] for name in audited.captured.arguments}
    return set(source.code.co_varnames[:count]) - arrays


def _static_in_calls(audited: Audited, source: Source) -> set[str]:
    """The arguments of a function for which all calls of it in the program have what is written there, as a number."""
    parameters = [each.arg for each in (*source.node.args.posonlyargs, *source.node.args.args)]
    keywords = [each.arg for each in source.node.args.kwonlyargs]
    given: dict[str, list[ast.expr]] = {name: [] for name in (*parameters, *keywords)}
    name = getattr(source.node, "name", "")
    for node in {each.node: None for each in sources(audited)}:
        calls = [call for call in calls_in(node) if isinstance(call.func, ast.Name) and call.func.id == name]
        read = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
        if len(read) > len(calls):  # It is passed on, as to jax.vmap.
            return set()
        for call in calls:
            for place, value in enumerate(call.args[: len(parameters)]):
                given[parameters[place]].append(value)
            for keyword in call.keywords:
                given.get(keyword.arg or "", []).append(keyword.value)
            if any(isinstance(each, ast.Starred) for each in call.args) or None in {each.arg for each in call.keywords}:
                return set()
    return {each for each, values in given.items() if values and all(map(_is_written, values))}


def _is_written(value: ast.expr) -> bool:
    """Say whether an expression has no names in it, as a number has none."""
    return not any(isinstance(each, ast.Name) for each in ast.walk(value))


CHECKS = (effects,)
