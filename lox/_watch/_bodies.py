"""Bodies of loops with a mark of each iteration, and branches with marks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jax

from lox import _compat
from lox._compat import _tracebacks
from lox._watch._marks import Place, mark


def with_operands_of_all(
    branches: Sequence[Any], captured: Sequence[Sequence[Any]]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Branches that each take the values of all as new leading inputs, and these values."""
    values = [value for each in captured for value in each]
    if not values:
        return branches, ()
    avals, aligned, first = list(map(jax.typeof, values)), [], 0
    for branch, own in zip(branches, captured, strict=True):
        last = first + len(own)

        def run(*args: Any, branch: Any = branch, own: slice = slice(first, last)) -> Any:
            return _compat.as_fun(branch)(*args[own], *args[len(values) :])

        aligned.append(_compat.trace(run, [*avals, *_compat.in_avals(branch)[len(own) :]], "lox")[0])
        first = last
    return aligned, values


def values_of_iteration(jaxpr: Any, consts: int, carry: int) -> Sequence[int]:
    """The values of an iteration: each is the position of an input of the body, or of an output, which come later.

    The values are the carry after the iteration, or what `scan` stacks if there is no carry.

    Args:
        jaxpr: The body of a loop that is bound now.
        consts: The number of its inputs that are constants.
        carry: The number of its outputs that are carried.
    """
    of_carry, of_stacked = _tracebacks.taken_out(sys._getframe(1))
    count = len(_compat.in_avals(jaxpr))
    inputs, outputs = itertools.count(), itertools.count(count)
    if carry:
        return [next(inputs if is_out else outputs) for is_out in of_carry or [False] * carry]
    stacked = of_stacked or [None] * len(_compat.out_avals(jaxpr))
    return [next(outputs) if given is None else consts + given for given in stacked]


@_compat.weakref_lru_cache
def with_mark(jaxpr: Any, at: Place, values: Sequence[int]) -> tuple[Any, Sequence[Any]]:
    """The body of a loop, with a mark in each iteration of the values at these positions: `values_of_iteration`."""

    def body(*args: Any) -> Any:
        with _compat.staged(args):
            outs = _compat.as_fun(jaxpr)(*args)
        both = [*args, *outs]
        mark(at, [both[each] for each in values])
        return outs

    return _compat.trace(body, _compat.in_avals(jaxpr), "lox")
