"""Keys that are arrays of integers."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any

import jax

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import frames, is_internal, is_users
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

OLD = Kind(
    "LOX707",
    "info",
    "Random keys of the old kind",
    "Make keys with jax.random.key(seed), and of what was saved with jax.random.wrap_key_data: they have a dtype of "
    "their own, and JAX refuses to compute with them.",
    once=True,
)


_MAKES, _WRAPS = tracebacks.code_of(jax.random.PRNGKey), tracebacks.code_of(jax.random.wrap_key_data)
_RANDOM = tracebacks.code_of(jax.random.split).co_filename


def old(audited: Audited) -> Iterator[Finding | Held]:
    """LOX707: `jax.random.PRNGKey` makes a key, or a function of `jax.random` gets one that is an array of integers."""
    for step, location in audited.steps:
        if step.equation.primitive not in primitives("random_wrap", "random_unwrap") or not is_users(location.file):
            continue
        code, made = _called(step.equation), step.equation.primitive in primitives("random_unwrap")
        if code is None or code.co_filename != _RANDOM or code is _WRAPS or (made and code is not _MAKES):
            continue
        data = (step.outputs if made else step.inputs)[0].aval
        does = "makes" if made else "takes"
        yield OLD.at(
            location,
            f"jax.random.{code.co_name} {does} a key here that is an array, {data.str_short()}: JAX does not notice "
            f"where it is indexed, added to or mixed up with data.",
        )
        return  # Once said, it holds for the others too.


def _called(equation: Any) -> CodeType | None:
    """Which function of JAX the user called where an equation came about."""
    called = frames(equation)
    for inside, outside in zip(called, called[1:], strict=False):
        if not is_internal(outside.file):
            return inside.code
    return None


KINDS = (OLD,)
CHECKS = (old,)
