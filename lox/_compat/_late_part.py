"""A jaxpr in two parts: what its other outputs do not need can run later, or never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend as jex
import numpy as np

from lox._compat._jaxprs import closed, in_avals, open_jaxpr, variables
from lox._compat._params import unspecified

jit_p = jex.core.primitives.jit_p


def split_late(jaxpr: Any, late_outs: Sequence[bool]) -> tuple[Any, Any]:
    """Take what only some outputs need out of a jaxpr.

    Calls of jitted functions are split as well; other equations are whole.

    Args:
        jaxpr: A closed jaxpr without constants.
        late_outs: Which outputs the second part computes.

    Returns:
        A closed jaxpr of the same inputs, whose outputs are the others, then what the second part needs; and the
        second part.
    """
    given = open_jaxpr(jaxpr)
    first_outs = [var for var, is_late in zip(given.outvars, late_outs, strict=True) if not is_late]
    second_outs = [var for var, is_late in zip(given.outvars, late_outs, strict=True) if is_late]
    needed, needed_late = set(variables(first_outs)), set(variables(second_outs))
    first, second = [], []
    for eqn in reversed(given.eqns):
        late = [var in needed_late and var not in needed for var in eqn.outvars]
        early_part, late_part = eqn, None
        if not eqn.effects and needed.isdisjoint(variables(eqn.outvars)):
            early_part, late_part = None, eqn if any(late) else None
        elif eqn.primitive is jit_p and any(late) and not eqn.effects:
            early_part, late_part = _split_call(eqn, late)
        if early_part is not None:
            first.append(early_part)
            needed.update(variables(early_part.invars))
        if late_part is not None:
            second.append(late_part)
            needed_late.update(variables(late_part.invars))
    first, second = first[::-1], second[::-1]
    defined = {var for eqn in second for var in variables(eqn.outvars)}
    used = [*(var for eqn in second for var in variables(eqn.invars)), *variables(second_outs)]
    between = [var for var in dict.fromkeys(used) if var not in defined]
    debug = given.debug_info.with_unknown_names()
    return (
        closed(given.replace(eqns=first, outvars=[*first_outs, *between], debug_info=debug)),
        closed(given.replace(eqns=second, invars=between, outvars=second_outs, effects=set(), debug_info=debug)),
    )


def work(jaxpr: Any) -> int:
    """The number of array elements that the equations of a jaxpr take."""
    return sum(int(np.prod(var.aval.shape)) for eqn in open_jaxpr(jaxpr).eqns for var in variables(eqn.invars))


def _split_call(eqn: Any, late: Sequence[bool]) -> tuple[Any, Any]:
    """The call of a jitted function as two; the second is None where it would compute nothing."""
    first, second = split_late(eqn.params["jaxpr"], late)
    if not open_jaxpr(second).eqns:
        return eqn, None
    between = [jex.core.Var(aval) for aval in in_avals(second)]
    outs = list(zip(eqn.outvars, eqn.params["out_shardings"], eqn.params["out_layouts"], late, strict=True))
    early_outs, late_outs = ([out for out in outs if out[-1] is is_late] for is_late in (False, True))
    early_outs += [(var, unspecified(), None, False) for var in between]

    def call(jaxpr: Any, outs: Sequence[Any], **of_inputs: Any) -> dict[str, Any]:
        shardings, layouts = (tuple(out[place] for out in outs) for place in (1, 2))
        return eqn.params | {"jaxpr": jaxpr, "out_shardings": shardings, "out_layouts": layouts} | of_inputs

    count = len(between)
    of_inputs = {
        "in_shardings": (unspecified(),) * count,
        "in_layouts": (None,) * count,
        "donated_invars": (False,) * count,
    }
    return (
        eqn.replace(params=call(first, early_outs), outvars=[out[0] for out in early_outs]),
        eqn.replace(params=call(second, late_outs, **of_inputs), invars=between, outvars=[out[0] for out in late_outs]),
    )
