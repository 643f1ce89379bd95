"""`custom_linear_solve`, which is also under `custom_root`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._events import Logs
from lox._handler import DropAll, Handler, State, rule
from lox._rules._call import discharge
from lox._trace import under


# linear_solve: (matvec_consts, vecmat_consts, solve_consts, transpose_solve_consts, b) -> x
#     becomes the same without logs, and the solver once more for its logs, of which only those are used
@rule(jex.core.primitives.linear_solve_p)
def linear_solve(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    lengths, jaxprs = params["const_lengths"], params["jaxprs"]
    if not handler.returns_logs:
        state = handler.finish(state)
    inner, inside = (DropAll(), None) if handler.returns_logs else handler.detached(state, frozenset())
    parts = [None if jaxpr is None else discharge(inner, inside, jaxpr) for jaxpr in jaxprs]
    position, new_args = 0, []
    for part, length in zip(parts, lengths, strict=True):
        new_args += [*(part[1] if part else ()), *args[position : position + length]]
        position += length
    b = args[position:]
    new_lengths = type(lengths)(*(n + (len(part[1]) if part else 0) for part, n in zip(parts, lengths, strict=True)))
    new_jaxprs = type(jaxprs)(*(part and part[0] for part in parts))
    outs = primitive.bind(*new_args, *b, **params | {"const_lengths": new_lengths, "jaxprs": new_jaxprs})
    if not handler.returns_logs:
        return outs, state, ()
    first = lengths.matvec + lengths.vecmat
    collector, inside = handler.enter(state, [jaxprs.solve], "rule")
    solve = under(collector, _compat.as_fun(jaxprs.solve))
    _, after, logs = solve(inside, *args[first : first + lengths.solve], *b)
    return outs, *handler.leave(state, after, logs)
