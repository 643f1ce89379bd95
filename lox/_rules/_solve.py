"""`custom_linear_solve`, which is also under `custom_root`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._handler import Handler, Silence, rule, under
from lox._rules._call import discharge


# linear_solve: (matvec_consts, vecmat_consts, solve_consts, transpose_solve_consts, b) -> x
#     becomes the same without logs, and the solver once more for its logs, of which only those are used
@rule(jex.core.primitives.linear_solve_p)
def linear_solve(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    lengths, jaxprs = params["const_lengths"], params["jaxprs"]
    inner = Silence() if handler.collects else handler.detached()
    parts = [None if jaxpr is None else discharge(inner, jaxpr) for jaxpr in jaxprs]
    position, new_args = 0, []
    for part, length in zip(parts, lengths, strict=True):
        new_args += [*(part[1] if part else ()), *args[position : position + length]]
        position += length
    b = args[position:]
    new_lengths = type(lengths)(*(n + (len(part[1]) if part else 0) for part, n in zip(parts, lengths, strict=True)))
    new_jaxprs = type(jaxprs)(*(part and part[0] for part in parts))
    outs = primitive.bind(*new_args, *b, **params | {"const_lengths": new_lengths, "jaxprs": new_jaxprs})
    if not handler.collects:
        return outs, handler.arrays() if handler.carries else ()
    first = lengths.matvec + lengths.vecmat
    _, nodes = under(handler, _compat.as_fun(jaxprs.solve))(*args[first : first + lengths.solve], *b)
    return outs, nodes
