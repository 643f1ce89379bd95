"""Moving averages that are computed, and that nothing keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._results._dropped import statements
from lox._audit._checks._results._lost import kept
from lox._audit._checks._results._replaced import found as old_ones
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import applied_at, is_users, transformations
from lox._audit._loops import loop_of
from lox._audit._origins import FLOWS
from lox._audit._program import NAMELESS, Step, Value
from lox._audit._rules import primitives

LOST = Kind(
    "LOX432",
    "warning",
    "A moving average is computed, and lost",
    "Return its new value, and pass it to the next call: with flax, logits, updates = model.apply(..., "
    "mutable=['batch_stats']) and updates['batch_stats']; with equinox, the state that the model returns.",
    "Moving averages that are computed are kept.",
    "The program was searched for averages of an argument and a new value, of which nothing depends on the result.",
)

_NNX = ("flax.nnx.module", "flax.nnx.pytreelib", "flax.nnx.object", "flax.nnx.variablelib")


def lost(audited: Audited) -> Iterator[Finding | Held]:
    """LOX432: nothing depends on a moving average of an argument, or the old one is returned in its place.

    Where no derivative is taken, the program may only evaluate, and lose it on purpose.
    """
    found = [(step, location, root) for step, location in audited.of("add", "sub") if (root := _root(audited, step))]
    living = {root for step, _, root in found if not audited.live.isdisjoint(step.outputs)}
    returned = {audited.origins.of(value, FLOWS) for value in _returned(audited)} if found else set()
    replaced = {root for step, _, root in found if not returned.isdisjoint(step.outputs)}
    told: set[tuple[str, int]] = set()
    for step, location, root in found:
        of_library, here = location.caller is not None, (location.of_user.file, location.of_user.line)
        is_old = root in returned - replaced and (of_library or audited.differentiates or root not in living)
        if is_old and (audited.once(_is_said) or here in audited.once(_dropping)):
            continue  # The source says it better.
        if not is_old and (root in living or not audited.differentiates or root in returned):
            yield LOST.fine(location)
        elif here not in told:
            told.add(here)
            how = "the old one is returned" if is_old else "nothing depends on it"
            of = "what a loop carries" if root.called == NAMELESS else f"'{root.called}'"
            applied = applied_at(step.equation)
            where = "here" if applied is None else f"in {location.of_user}"
            yield LOST.at(applied or location, f"A moving average of {of} is computed {where}, and {how}.")


def _is_said(audited: Audited) -> bool:
    """Say whether the source says that an old value is returned in the place of a new one."""
    return bool(audited.once(old_ones)) or any(kept(audited))


def _dropping(audited: Audited) -> set[tuple[str, int]]:
    """The lines of statements that drop what they compute."""
    return {(each.source.code.co_filename, each.node.lineno) for each in statements(audited)}


def _root(audited: Audited, step: Step) -> Value | None:
    """The argument of the program that a step computes the moving average of, or None."""
    (made,) = step.outputs
    if not is_users(audited.lines[step].of_user.file) or not jnp.issubdtype(made.aval.dtype, jnp.inexact):
        return None
    if "transpose" in transformations(step.equation):
        return None
    for value in step.inputs:
        scaled = audited.origins.of(value, FLOWS).maker
        if scaled is None or scaled.equation.primitive not in primitives("mul"):
            continue
        for each, other in (scaled.inputs, scaled.inputs[::-1]):
            root = _argument(audited, each)
            if root is not None and root.shape == made.shape and _is_rate(other):
                return root
    return None


def _is_rate(value: Value) -> bool:
    """Whether a value is how much of the old one an average keeps."""
    return value.number is not None and 0 < value.number < 1


def _argument(audited: Audited, value: Value) -> Value | None:
    """The argument of the program, or the value that all iterations of a loop get, that a value is."""
    outside = audited.once(_outside)
    found = audited.origins.of(value, FLOWS)
    is_of_loop = found in outside
    while found in outside:
        found = audited.origins.of(outside[found], FLOWS)
    return found if is_of_loop or found in audited.once(_arguments) else None


def _arguments(audited: Audited) -> set[Value]:
    """The arguments of the program that do not change in place, as modules of flax.nnx do unless JAX itself jits."""
    values = audited.arguments[0]
    if not _compat.is_jitted(audited.fun) and any(map(_is_of_nnx, jax.tree.leaves(values, is_leaf=_is_of_nnx))):
        return set()
    return set(audited.program.inputs)


def _is_of_nnx(value: Any) -> bool:
    return any(of.__module__.startswith(_NNX) for of in type(value).__mro__)


def _returned(audited: Audited) -> Iterator[Value]:
    """What the program returns, and what its loops carry and never change."""
    yield from audited.program.outputs
    for step, _ in audited.of("scan", "while"):
        yield from (outside for outside, _ in loop_of(step).unchanged)


def _outside(audited: Audited) -> dict[Value, Value]:
    """What the values that all iterations of a loop get are outside it."""
    found: dict[Value, Value] = {}
    for step, _ in audited.of("scan", "while"):
        found.update((inside, outside) for outside, inside in loop_of(step).consts)
    return found


KINDS = (LOST,)
CHECKS = (lost,)
