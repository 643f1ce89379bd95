"""Paths in backward passes.

JAX transposes a program equation by equation, and each transposed equation keeps the scopes of the one it comes from.
So an operation of a backward pass is in the name scopes of the forward pass that are on its name stack.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.extend.source_info_util as source_info

from lox import _compat
from lox._compat import _tracebacks
from lox._watch._levels import Level, Parent
from lox._watch._marks import cannot_watch, place
from lox._watch._points import Before, Numbers, Part, is_backward
from lox._watch._remembered import opened, remembered

BATCHED = (
    "JAX has batched this backward pass where it traced it, and its values are of all batch elements; take the "
    "derivative of one element under jax.jit, as in jax.vmap(jax.jit(jax.grad(f)))"
)

_IN_NO_JAXPR = (
    "its backward pass is in no jitted function or loop that lox.watch sees; put jax.jit inside lox.watch, as in "
    "lox.watch(jax.jit(f), ...), and inside a function on shards or with rules of its own, even if there is one around "
    "it"
)


def numbered(level: Level, numbers: Numbers) -> contextlib.AbstractContextManager[Any]:
    """The context of what is no part of paths, and what comes before the parts in it.

    It is among the scopes of its equations, so that name scopes get the same numbers in their backward pass.

    Args:
        level: The level that runs it.
        numbers: By name, how many parts come before.
    """
    return opened(Before(numbers, level.home) if is_numbered(level, numbers) else None)


def called(level: Level, part: Part) -> contextlib.AbstractContextManager[Any]:
    """The context of a loop, a branch or a jitted function of the forward pass: its backward pass has its number."""
    return contextlib.nullcontext() if _of_backward(level) is not None else opened(part)


def is_numbered(level: Level, numbers: Numbers) -> bool:
    """Tell whether `numbered` opens a scope: in a backward pass, there are those of the forward pass."""
    return bool(numbers) and _of_backward(level) is None


@_compat.weakref_lru_cache
def in_numbered(jaxpr: Any, before: Before) -> tuple[Any, Sequence[Any]]:
    """A branch whose equations are in a scope for what comes before, and the values to pass for new leading inputs."""

    def run(*args: Any) -> Any:
        with _compat.staged(args), opened(before):
            return _compat.as_fun(jaxpr)(*args)

    return _compat.trace(run, _compat.in_avals(jaxpr), "lox")


def path_to(
    scopes: Sequence[Any], backward_pass: Callable[[tuple[Part, ...], Sequence[Any]], Part]
) -> tuple[tuple[Part, ...], Numbers]:
    """The path that scopes lead to, and the numbers of scopes that come before those in the last.

    It is from the function or loop on that is traced. What JAX makes of a backward pass, to transpose that in turn, is
    a backward pass in another.

    Args:
        scopes: The scopes.
        backward_pass: Gives the part of the backward pass at a path, by the scope that JAX has named it by, and those
            of lox around that one: a program that is evaluated several times has its backward pass in each.
    """
    path: tuple[Part, ...] = ()
    around = list[Any]()
    before = list[Before]()
    for number, each in enumerate(_tracebacks.split_at_transpositions(scopes)):
        if number:
            path = (*path, backward_pass(path, [*around, each[0]]))
        for scope in each:
            found = remembered(scope)
            if isinstance(found, Part):
                path = (*path, functools.reduce(Part.after, before, found))
                around, before = [], []
            elif found is not None:
                around.append(scope)
                before.append(found)
    numbers = sum((Counter(dict(each.numbers)) for each in before), Counter[str]())
    return path, tuple(sorted(numbers.items()))


def scopes_in_backward_pass(path: tuple[Part, ...], whole: bool = False) -> Iterator[tuple[Part, ...]]:
    """The paths of the scopes in a backward pass that a path leads through: of all, if the `whole` path is in one.

    Those that a backward function opens, in a rule, have their events where it closes them.
    """
    for length in range(1, len(path) + 1):
        kinds = [part.of for part in path[:length]]
        passes = kinds.count("pass")
        in_rule = passes == 1 and "rule" in kinds[kinds.index("pass") :]
        opened_there = kinds[-1] == "scope of pass" and in_rule and not whole
        if (whole or passes) and path[length - 1].is_scope and not opened_there:
            yield path[:length]


def is_of_backward_pass(stack: Any) -> bool:
    """Tell whether an operation in these scopes is one of a backward pass, and not computed anew for it."""
    return "transpose" in _tracebacks.transformations(stack.stack) and not _tracebacks.is_recomputed(stack)


def around_jaxpr(eqn: Any) -> contextlib.AbstractContextManager[Any]:
    """The scopes around a jaxpr while one of its equations is bound: without the equation's own."""
    own, scopes = eqn.source_info.name_stack.stack, source_info.current_name_stack().stack
    return source_info.set_name_stack(source_info.NameStack(scopes[: len(scopes) - len(own)]))


def parent_of(level: Level) -> Parent:
    """The parent of what is bound or opened now: in a backward pass, it is in the scopes of the forward one."""
    found = _of_backward(level)
    if found is None:
        return level.parent
    path = found[0][:-1] if _is_of_call(found[0]) else found[0]
    return level.at(path) if path else level.parent


def number(level: Level) -> None:
    """Number the backward pass of an operation that is bound now, whether it is marked or not."""
    scopes = source_info.current_name_stack().stack
    ends = [index for index, scope in enumerate(scopes) if _tracebacks.transformations([scope]) == ("transpose",)]
    if ends and level.is_new(scopes[: ends[-1] + 1]):
        parent_of(level)


def call_of(level: Level) -> tuple[Part, Any] | None:
    """The part in the forward pass of the loop, the branch or the jitted function that JAX transposes now, if any.

    It comes with its scope, which each call has anew: a loop of Python's runs one part several times.
    """
    found = _of_backward(level)
    if found is None or not _is_of_call(found[0]):
        return None
    scopes = source_info.current_name_stack().stack
    return found[0][-1], next(scope for scope in reversed(scopes) if isinstance(remembered(scope), Part))


def _is_of_call(path: tuple[Part, ...]) -> bool:
    return bool(path) and path[-1].of == "call"


def scopes_before(level: Level) -> Numbers:
    """The numbers of the next name scopes in what JAX makes of a forward pass: they are those of the forward pass."""
    found = _of_backward(level)
    return () if found is None else found[1]


def _of_backward(level: Level) -> tuple[tuple[Part, ...], Numbers] | None:
    """The path to what is bound now, and the numbers of the next name scopes; None if it is in no backward pass."""
    around = level.parent
    stack = source_info.current_name_stack()
    if level.scopes and (level.transposed or is_backward(around.parts)):
        return _of_backward_in(level, around.parts, stack.stack)
    if not level.transposed and not is_of_backward_pass(stack):
        return None
    return path_to(level.from_here(stack.stack), level.backward_pass)


def _of_backward_in(
    level: Level, scope: tuple[Part, ...], scopes: Sequence[Any]
) -> tuple[tuple[Part, ...], Numbers] | None:
    """The same for what is in a scope of a backward function of the program, which may have backward passes in it."""
    each_once = itertools.chain(*_tracebacks.split_at_transpositions(scopes))
    inside = list(itertools.dropwhile(lambda each: remembered(each) != scope[-1], each_once))
    if len(_tracebacks.split_at_transpositions(inside)) == 1:
        return None
    path, numbers = path_to(inside[1:], lambda outside, names: level.backward_pass((*scope, *outside), names))
    return (*scope, *path), numbers


def is_batched() -> bool:
    """Tell whether an operation that is bound now is of the backward pass of a batch, whose axes nothing tells apart.

    A `vmap` around the derivative is in progress instead, and JAX gives each batch element its marks.
    """
    stack = source_info.current_name_stack()
    _, *passes = _tracebacks.split_at_transpositions(stack.stack)
    return is_of_backward_pass(stack) and any("vmap" in _tracebacks.transformations(scopes) for scopes in passes)


def is_transposed(level: Level) -> bool:
    """Tell whether what is bound now is what JAX makes of the forward pass, rather than a line of the program."""
    return (level.transposed or is_of_backward_pass(source_info.current_name_stack())) and _tracebacks.transposes()


def say_unwatched(level: Level) -> None:
    """Report the scopes of an operation of a backward pass which is in no jaxpr, as points that cannot be watched.

    What leaves them is known when all operations are. No more is said of scopes that the level has told.
    """
    path, _ = path_to(level.from_here(source_info.current_name_stack().stack), level.backward_pass)
    for parts in scopes_in_backward_pass(path):
        if parts not in level.told:
            level.told.add(parts)
            cannot_watch(place(parts, "scope"), _IN_NO_JAXPR)


def is_recomputed(level: Level) -> bool:
    """Tell whether what is bound now is of a forward pass, whose points have had their events, computed anew."""
    return level.transposed and _tracebacks.recomputes()
