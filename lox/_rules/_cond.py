"""`cond` and `switch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._events import Logs
from lox._exceptions import HandlerError
from lox._handler import Handler, State, rule
from lox._rules._call import discharge, split_results, varied

cond_p = jex.core.primitives.cond_p


# cond: (index, ops) -> outs  becomes  (index, (consts, state, ops)) -> (outs, state, logs)
@rule(cond_p)
def cond(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    index, *ops = args
    branches, operands, structure = discharge_branches(handler, state, params["branches"], index)
    outs = primitive.bind(index, *operands, *ops, **params | {"branches": branches})
    outs, after, logs = split_results(outs, structure)
    return outs, *handler.leave(state, after, logs)


def discharge_branches(
    handler: Handler, state: State, branches: Sequence[Any], index: Any
) -> tuple[tuple[Any, ...], list[Any], Any]:
    """Make the state and the logs further outputs of the branches, of one structure in all of them.

    Args:
        handler: The handler of the logs.
        state: Its state before the branches.
        branches: The branches.
        index: The number of the branch that runs.

    Returns:
        The branches, the values to pass for their new leading inputs, and the structure of the
        new outputs.
    """
    branches = [varied(branch, index) for branch in branches]
    inner, inside = handler.enter(state, branches, "branch")
    discharged = [discharge(inner, inside, branch) for branch in branches]
    shapes = [split_results(_compat.out_avals(jaxpr), structure)[1:] for jaxpr, _, structure in discharged]
    makers = inner.unify_branches(shapes)
    consts = [value for _, captured, _ in discharged for value in captured]
    avals = [jax.typeof(value) for value in consts]
    structures: list[Any] = []
    aligned = []
    position = 0
    for (jaxpr, captured, own), make in zip(discharged, makers, strict=True):
        first, last = position, position + len(captured)
        position = last

        branch = _Branch(jaxpr, own, make, slice(first, last), len(consts))
        aligned.append(_compat.trace(branch, [*avals, *_compat.in_avals(jaxpr)[len(captured) :]], "lox"))
        structures.append(branch.structure)
    structure = structures[-1]
    for place, other in enumerate(structures):
        if other != structure:
            raise HandlerError(
                f"The results of {type(handler).__name__} in branch {place} of a cond or switch have another structure "
                f"than in branch {len(structures) - 1}: {other} and {structure}. Let `enter` make room for what the "
                "branches log, or let `unify_branches` make their results alike."
            )
    aligned, captured = _with_inputs_of_all(aligned)
    consts = captured + consts
    if not inner.returns_logs:  # What such a handler has made of logs is the same on all shards.
        return tuple(aligned), consts, structure
    return _varying_alike(aligned, structure.num_leaves, index), consts, structure


def _with_inputs_of_all(branches: Sequence[tuple[Any, list[Any]]]) -> tuple[list[Any], list[Any]]:
    """The branches, each with the values that it takes for its leading inputs, as branches that take those of all."""
    captured = [value for _, own in branches for value in own]
    if not captured:
        return [branch for branch, _ in branches], []
    found = []
    first = 0
    for branch, own in branches:

        def with_all(*args: Any, branch: Any = branch, first: int = first, count: int = len(own)) -> list[Any]:
            return list(_compat.as_fun(branch)(*args[first : first + count], *args[len(captured) :]))

        avals = [*map(jax.typeof, captured), *_compat.in_avals(branch)[len(own) :]]
        found.append(_compat.trace(with_all, avals, "lox")[0])
        first += len(own)
    return found, captured


def _varying_alike(branches: Sequence[Any], count: int, index: Any) -> tuple[Any, ...]:
    """The branches, whose last `count` outputs vary over the shards over which the index, or one of them, does."""
    varying = [[_compat.varying_axes(aval) for aval in _compat.out_avals(branch)] for branch in branches]
    first = len(varying[0]) - count
    together = [axes.union(_compat.varying_axes(index), *others) for axes, *others in zip(*varying, strict=True)]

    def vary(branch: Any) -> Any:
        def with_axes(*args: Any) -> list[Any]:
            outs = _compat.as_fun(branch)(*args)
            results = zip(outs[first:], together[first:], strict=True)
            return [*outs[:first], *(_compat.vary_in_branch(leaf, sorted(axes)) for leaf, axes in results)]

        return _compat.trace(with_axes, _compat.in_avals(branch), "lox")[0]

    return tuple(
        branch if axes[first:] == together[first:] else vary(branch)
        for branch, axes in zip(branches, varying, strict=True)
    )


class _Branch:
    """A discharged branch that takes the new leading inputs of all branches, and returns results like the others'."""

    def __init__(self, jaxpr: Any, own: Any, make: Any, mine: slice, num_consts: int):
        self.jaxpr, self.own, self.make, self.mine, self.num_consts = jaxpr, own, make, mine, num_consts
        self.structure: Any = None

    def __call__(self, *args: Any) -> list[Any]:
        outs = _compat.as_fun(self.jaxpr)(*args[self.mine], *args[self.num_consts :])
        outs, *results = split_results(outs, self.own)
        leaves, self.structure = jax.tree.flatten(self.make(tuple(results)))
        return [*outs, *leaves]
