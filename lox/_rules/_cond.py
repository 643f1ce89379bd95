"""`cond` and `switch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._handler import Handler, rule
from lox._rules._call import discharge, split_nodes

cond_p = jex.core.primitives.cond_p


# cond: (index, ops) -> outs  becomes  (index, (consts, ops)) -> (outs, nodes)
@rule(cond_p)
def cond(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    index, *ops = args
    branches, consts, structure = discharge_branches(handler, params["branches"])
    outs = primitive.bind(index, *consts, *ops, **params | {"branches": branches})
    return split_nodes(outs, structure)


def discharge_branches(handler: Handler, branches: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any], Any]:
    """The branches with their logs as further outputs, of one structure in all of them.

    Returns:
        The branches, the values to pass for their new leading inputs, and the structure of the nodes.
    """
    handler = handler.inside()
    discharged = [discharge(handler, branch) for branch in branches]
    shapes = [
        split_nodes(_compat.out_avals(jaxpr), structure)[1] for jaxpr, _, structure in discharged
    ]
    makers = handler.branches(shapes)
    consts = [value for _, captured, _ in discharged for value in captured]
    avals = [jax.typeof(value) for value in consts]
    structure = None
    aligned = []
    position = 0
    for (jaxpr, captured, own), make in zip(discharged, makers, strict=True):
        first, last = position, position + len(captured)
        position = last

        def branch(*args: Any, jaxpr: Any = jaxpr, own: Any = own, make: Any = make, mine: Any = (first, last)) -> list[Any]:
            nonlocal structure
            outs = _compat.as_fun(jaxpr)(*args[mine[0] : mine[1]], *args[len(consts) :])
            outs, nodes = split_nodes(outs, own)
            leaves, structure = jax.tree.flatten(make(nodes))
            return [*outs, *leaves]

        in_avals = [*avals, *_compat.in_avals(jaxpr)[len(captured) :]]
        new, more = _compat.trace(branch, in_avals, "lox")
        if more:
            raise AssertionError("a branch captured values after its own were made inputs")
        aligned.append(new)
    return tuple(aligned), consts, structure
