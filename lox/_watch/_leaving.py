"""Cotangents that leave name scopes in backward passes.

JAX transposes a program equation by equation, and each transposed equation keeps the scopes of the one it comes from.
So the backward pass of a scope is the equations in that scope, in the jaxpr of the function or loop that runs it. Its
results are what leaves the scope: cotangents of what the scope got.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import jax
import jax.extend.source_info_util as source_info
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.extend.core.primitives import add_jaxvals_p

from lox import _compat
from lox._compat import _tracebacks
from lox._effect import watching
from lox._logs_in import jaxprs_in
from lox._watch._backward import BATCHED, is_of_backward_pass, path_to, scopes_in_backward_pass
from lox._watch._contained import passes_in, scopes_around
from lox._watch._marks import Place, cannot_watch, mark, place_of, places_at, places_in
from lox._watch._points import BACKWARD, Part, relative
from lox._watch._remembered import remembered

RECOMPUTED = (
    "a jax.checkpoint computes values for this derivative of a derivative anew, among which JAX tells no cotangents; "
    "leave out the jax.checkpoint"
)

COMPUTED = (
    "a library computes other values in it for this derivative, as a linear solver does, among which JAX tells no "
    "cotangents; watch the function without the derivative"
)

DIFFERENTIATED = (
    "JAX differentiates this backward pass where it traces it, so that tangents and values for later are among those "
    "that leave the scope; put jax.jit around the function in the inner derivative, as in jax.grad(jax.jit(f))"
)


def _leave(cotangent: Any, value: Any) -> list[Any]:
    del value
    with watching(None):  # What JAX runs for it on shards is not of the program.
        return [left_p.bind(cotangent)]


left_p: Any = _compat.identity("lox_left", lambda aval: aval, _leave)
"""The identity, put on what an operation in a name scope gets.

Where JAX transposes the operation without an equation, as a sum, the cotangents that leave the scope have one all the
same.
"""


def with_equation(values: Sequence[Any]) -> list[Any]:
    """Values whose cotangents have an equation where they are of an operation.

    Last values come first, so that JAX adds up the cotangents of equal ones in the same order.
    """
    return [left_p.bind(value) if _may_vary(value) else value for value in reversed(values)][::-1]


def _may_vary(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer) and jnp.issubdtype(value.dtype, jnp.inexact)


@_compat.weakref_lru_cache
def with_marks(jaxpr: Any, whole: bool, batched: bool) -> tuple[Any, Sequence[Any]]:
    """A jaxpr with marks of what leaves each scope in a backward pass, and the values to pass for new leading inputs.

    Args:
        jaxpr: The jaxpr.
        whole: Whether all of it is of a backward pass.
        batched: Whether that is one of a batch.
    """
    found = _leaving(jaxpr, whole)
    if not found:
        return jaxpr, ()

    def run(*args: Any) -> list[Any]:
        given = _compat.open_jaxpr(jaxpr)
        values: dict[Any, Any] = {}
        values.update(zip([*given.constvars, *given.invars], [*getattr(jaxpr, "consts", ()), *args], strict=True))
        for number, eqn in enumerate(given.eqns):
            with _compat.staged(args), _at(eqn), eqn.ctx.manager:
                params = eqn.primitive.get_bind_params(eqn.params)
                outs = eqn.primitive.bind(*(_read(values, atom) for atom in eqn.invars), **params)
            values.update(zip(eqn.outvars, outs if eqn.primitive.multiple_results else [outs], strict=True))
            for at, leaving, obstacle in found.get(number, ()):
                if batched or obstacle:
                    cannot_watch(at, obstacle or BATCHED)
                else:
                    mark(at, [functools.reduce(add_jaxvals_p.bind, map(values.get, terms)) for terms in leaving])
        return [_read(values, atom) for atom in given.outvars]

    marked, captured = _compat.trace(run, _compat.in_avals(jaxpr), "lox")
    return _compat.named_as(marked, jaxpr), captured


def traced(fun: Callable[..., Any], batched: bool) -> Callable[..., Any]:
    """A function that JAX makes to transpose another, with marks of what leaves each scope in it.

    Args:
        fun: The function: one of flat values, as `shard_map` runs.
        batched: Whether it is of the backward pass of a batch.
    """

    def run(*args: Any) -> Any:
        found: list[Any] = []

        def flat(*args: Any) -> list[Any]:
            values: list[Any] = []
            found.append(fun(*args))
            _compat.map_outputs(values.append, found[0])
            return values

        jaxpr, captured = _compat.trace(flat, list(map(jax.typeof, args)), "lox")
        with watching(None):  # The marks of its operations are in it.
            jaxpr, more = with_marks(jaxpr, True, batched)
        values = iter(_compat.as_fun(jaxpr)(*more, *captured, *args))
        return _compat.map_outputs(lambda _: next(values), found[0])

    return run


def _read(values: dict[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]


def _at(eqn: Any) -> contextlib.AbstractContextManager[Any]:
    stack = source_info.current_name_stack() + eqn.source_info.name_stack
    return source_info.user_context(eqn.source_info.traceback, name_stack=stack)


@_compat.weakref_lru_cache
def _leaving(jaxpr: Any, whole: bool) -> dict[int, list[tuple[Place, list[tuple[Any, ...]], str]]]:
    """The scopes whose backward pass ends with an equation, by its number.

    Each comes with the variables whose sums leave it, and with what keeps it from being watched.
    """
    given = _compat.open_jaxpr(jaxpr)
    inside: dict[tuple[Part, ...], list[int]] = {}
    passes = _Passes(given.eqns)
    derived = whole and any(_is_derived(eqn.source_info.name_stack.stack) for eqn in given.eqns)
    again = whole and any(_tracebacks.is_recomputed(eqn.source_info.name_stack, 2) for eqn in given.eqns)
    elsewhere = frozenset[int]().union(*(_passes_in(inner) for eqn in given.eqns for inner in jaxprs_in(eqn.params)))
    for number, eqn in enumerate(given.eqns):
        stack = eqn.source_info.name_stack
        if elsewhere.intersection(map(id, stack.stack)):
            continue  # JAX has moved it out of a loop.
        if not again and (_tracebacks.is_recomputed(stack) or not (whole or is_of_backward_pass(stack))):
            continue
        path, _ = path_to(stack.stack, functools.partial(passes.at, number))
        for parts in scopes_in_backward_pass(path, whole):
            inside.setdefault(parts, []).append(number)
    found: dict[int, list[tuple[Place, list[tuple[Any, ...]], str]]] = {}
    used = [{*filter(_is_var, eqn.invars)} for eqn in given.eqns]
    # Those that a backward function has opened are marked already.
    marked = {relative(each.parts) for each in places_in({"jaxpr": jaxpr})}
    for parts, numbers in sorted(inside.items(), key=lambda item: -len(item[0])):
        if parts in marked:
            continue
        others = set(range(len(given.eqns))).difference(numbers)
        read = {*filter(_is_var, given.outvars)}.union(*(used[number] for number in others))
        leaving = _leaving_from([given.eqns[number] for number in numbers], read)
        if leaving:
            at = place_of(given.eqns[numbers[-1]], parts)
            count = sum(not part.is_pass for part in parts)
            stacks = [given.eqns[number].source_info.name_stack.stack for number in numbers]
            enclosing = [_around(stack, count) for stack in stacks]
            obstacle = RECOMPUTED if again else _obstacle(enclosing)
            if derived and not obstacle and not all(map(_is_derived, stacks)):
                obstacle = COMPUTED
            found.setdefault(numbers[-1], []).append((at, leaving, obstacle))
    return found


@_compat.weakref_lru_cache
def _passes_in(jaxpr: Any) -> frozenset[int]:
    """The backward passes that equations in a jaxpr are of, by the identities of the scopes that JAX names them by."""
    found = set[int]()
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        _, *passes = _tracebacks.split_at_transpositions(eqn.source_info.name_stack.stack)
        found.update(id(scopes[0]) for scopes in passes)
        found.update(*map(_passes_in, jaxprs_in(eqn.params)))
    return frozenset(found)


def _obstacle(enclosing: Iterable[Sequence[Any]]) -> str:
    """The obstacle to watching the backward pass of a scope; "" if there is none.

    Args:
        enclosing: For each of its equations, the scopes around this scope.
    """
    for scopes in enclosing:
        outside, *passes = map(_tracebacks.transformations, _tracebacks.split_at_transpositions(scopes))
        around = [outside, *(each[2:] for each in passes[:-1])]  # Each pass begins with the derivative that it is of.
        if passes and any("jvp" in each for each in around):
            return DIFFERENTIATED
        if "vmap" in _tracebacks.transformations(scopes):
            return BATCHED
    return ""


def _is_derived(stack: Sequence[Any]) -> bool:
    return "jvp" in _tracebacks.transformations(stack)


class _Passes:
    """The backward passes of a jaxpr, with the numbers that they got when it was traced: `Level.backward_pass`.

    Args:
        eqns: The equations, which contain the marks of some.
    """

    def __init__(self, eqns: Sequence[Any]):
        self._eqns = eqns
        self._found: dict[tuple[Any, ...], tuple[Part, int]] = {}

    def at(self, number: int, outside: tuple[Part, ...], scopes: Sequence[Any]) -> Part:
        """The part of the backward pass of an equation. The first one of a pass tells which were before."""
        key = outside, *map(id, scopes)
        if key not in self._found:
            before = 0
            for index, eqn in enumerate(self._eqns[:number]):
                marked = [relative(each.parts)[: len(outside) + 1] for each in places_at(eqn)]
                others = [(*path, part) for (path, *_), (part, first) in self._found.items() if first == index]
                named = [path[-1] for path in [*marked, *others] if path and path[:-1] == outside]
                numbers = [part.number for part in named if part.name == BACKWARD.name]
                before = max(before, max(numbers) + 1) if numbers else before + _unmarked(eqn, outside)
            self._found[key] = BACKWARD._replace(number=before), number
        return self._found[key][0]


def _unmarked(eqn: Any, outside: tuple[Part, ...]) -> int:
    """The number of backward passes without marks at a path that are in an equation, which is in none."""
    count, scopes = passes_in(eqn), scopes_around(eqn)
    if not count or "transpose" in _tracebacks.transformations(scopes):
        return 0
    return count if path_to(scopes, lambda *_: BACKWARD)[0] == outside else 0


def _leaving_from(eqns: Sequence[Any], read: Container[Any]) -> list[tuple[Any, ...]]:
    """The variables whose sums leave the equations of a scope.

    JAX adds up the cotangents of a value that is used more than once in the scope of the equation that it transposes.
    What comes from elsewhere in such a sum is left out.

    Args:
        eqns: The equations.
        read: The variables that are read elsewhere.
    """
    own: dict[Any, tuple[Any, ...]] = {}
    for eqn in eqns:
        terms = [own.get(atom, ()) for atom in eqn.invars if not isinstance(atom, Literal)]
        if eqn.primitive is not add_jaxvals_p or terms == [(atom,) for atom in eqn.invars]:
            own.update((var, (var,)) for var in eqn.outvars)
        else:
            own[eqn.outvars[0]] = tuple(itertools.chain(*terms))
    return [terms for var, terms in own.items() if terms and var in read]


def _around(scopes: Sequence[Any], count: int) -> Sequence[Any]:
    """The scopes of JAX and of the program around the last one of so many of the program."""
    found = set[int]()
    for number, scope in enumerate(scopes):
        if isinstance(remembered(scope), Part):
            found.add(id(scope))
        if len(found) == count:
            return scopes[:number]
    return scopes


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, Literal)
