"""What loops carry without need: what never changes, and what nothing reads."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._loops._restarts import restarted
from lox._audit._checks._loops._stale import stale
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location
from lox._audit._loops import is_called, loop_of
from lox._audit._needs import read
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._rules import primitives

SAME = Kind(
    "LOX208",
    "info",
    "A loop carries what never changes",
    "Return its new value, if it was to have one; if it is to stay as it is, let the body close over it, so that what "
    "is carried is what changes.",
    "What loops carry changes.",
    "What each loop carries was compared before and after the body.",
)
UNREAD = Kind(
    "LOX209",
    "info",
    "Nothing reads what a loop carries",
    "Return it or use it, if it was to be of use; if not, do not carry it.",
    "What loops carry is read.",
    "What each loop carries was followed to its results and to what reads them.",
)

_PART = re.compile(r"(?!args\b)(\w+)(\[\d+\])?")
"""The name of an argument and, if it is a tuple, the element of it: what is in one element changes as a whole.

JAX says "args" of bodies that it makes itself, as where only some of a batch go on.
"""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array or a number that a loop carries.

    Attributes:
        name: Its name in the body.
        inside: What an iteration gets.
        changes: Whether an iteration may return another one.
        is_read: Whether anything depends on it.
    """

    name: str
    inside: Value
    changes: bool
    is_read: bool


def same(audited: Audited) -> Iterator[Finding | Held]:
    """LOX208: an element of the carry is returned as it came."""
    for step, location, parts in audited.once(_carries):
        used = {value for block in step.blocks for value in read(block)}
        found = [
            name
            for name, leaves in parts.items()
            if not any(leaf.changes for leaf in leaves)
            and not all(_is_key(leaf.inside) for leaf in leaves)
            and ("[" in name or any(leaf.inside in used for leaf in leaves))  # Else it is a carry for want of one.
        ]
        leaves = [(leaf.name, leaf.inside, leaf.changes) for of_part in parts.values() for leaf in of_part]
        if by_mistake := stale(audited, step, leaves):
            yield SAME.at(location, f"The body of a loop {by_mistake}.", severity="warning")
        elif found:
            what = "it" if len(found) == 1 else "them"
            yield SAME.at(location, f"The body of a loop returns {_list(found)} of its carry as it got {what}.")
        elif parts:
            yield SAME.fine(location)


def unread(audited: Audited) -> Iterator[Finding | Held]:
    """LOX209: an element of the carry changes, and nothing depends on it."""
    for step, location, parts in audited.once(_carries):
        found = [
            name
            for name, leaves in parts.items()
            if any(leaf.changes for leaf in leaves)
            and not any(leaf.is_read or _is_key(leaf.inside) or _is_counter(leaf.inside) for leaf in leaves)
        ]
        changing = [leaf for leaves in parts.values() for leaf in leaves if leaf.changes and not _is_key(leaf.inside)]
        if by_mistake := restarted(audited, step, {leaf.inside: leaf.name for leaf in changing}):
            yield UNREAD.at(location, by_mistake, severity="warning")
        elif flag := next((leaf.name for leaf in changing if not leaf.is_read and _remembers(step, leaf.inside)), ""):
            yield UNREAD.at(
                location,
                f"A loop keeps in {flag} of its carry whether something happened, and nothing reads it: the loop goes "
                "on as if it had not.",
                severity="warning",
            )
        elif found:
            what = "it" if len(found) == 1 else "them"
            yield UNREAD.at(
                location,
                f"A loop computes {_list(found)} of its carry anew in each iteration, and nothing that comes out of "
                f"the program depends on {what}.",
            )
        elif parts:
            yield UNREAD.fine(location)


def _carries(audited: Audited) -> list[tuple[Step, Location, dict[str, list[Leaf]]]]:
    """The loops that people wrote and of which anything is used, and what they carry."""
    return [
        (step, location, _parts(_leaves(step, audited.live)))
        for step, location in audited.of("scan", "while")
        if is_called(step, "scan", "while_loop", "fori_loop")
        and (step.equation.effects or not audited.live.isdisjoint(step.outputs))
    ]


def _leaves(step: Step, live: set[Value]) -> Iterator[Leaf]:
    """What a loop carries."""
    loop = loop_of(step)
    for _, value in loop.unchanged:
        yield Leaf(value.name, value, changes=False, is_read=True)
    asked = [[each.inside for each in region.carried] for region in step.regions]  # Also of a condition.
    for (_, value, after), outside, *inside in zip(loop.carry, step.outputs, *asked, strict=False):
        if value.name:
            yield Leaf(value.name, value, _passed(after) is not value, not live.isdisjoint((outside, *inside)))


def _parts(leaves: Iterable[Leaf]) -> dict[str, list[Leaf]]:
    """What is carried by the element of the tuple that it is in, or all together if the carry is no tuple."""
    found = collections.defaultdict(list)
    for leaf in leaves:
        match = _PART.match(leaf.name)
        if match:
            found[match[0]].append(leaf)
    return dict(sorted(found.items()))


def _passed(value: Value) -> Value:
    """What a value is before the calls that only pass it on."""
    while value.maker is not None and is_call(value.maker):
        inner: Block = value.maker.blocks[0]
        own = _passed(inner.outputs[value.maker.outputs.index(value)])
        if own not in inner.inputs:
            break
        value = value.maker.inputs[inner.inputs.index(own)]
    return value


def _is_counter(value: Value) -> bool:
    """Say whether a value may count iterations, which costs nothing."""
    return not value.shape and jnp.issubdtype(value.aval.dtype, jnp.integer)


def _is_key(value: Value) -> bool:
    """Say whether a value may be a key, which has checks of its own, or is no array at all."""
    dtype = getattr(value.aval, "dtype", None)
    if dtype is None or jnp.issubdtype(dtype, jax.dtypes.extended):
        return True
    return dtype == jnp.uint32 and value.shape[-1:] == (2,)


def _remembers(step: Step, value: Value) -> bool:
    """Say whether a value of a carry is a flag that stays set once it is, of booleans or of the numbers 0 and 1."""
    outside, new = next((outside, after) for outside, inside, after in loop_of(step).carry if inside is value)
    if new.maker is None or value not in new.maker.inputs:
        return False
    if getattr(value.aval, "dtype", None) == jnp.bool_:
        return new.maker.equation.primitive in primitives("or", "and")
    is_number = jnp.issubdtype(getattr(value.aval, "dtype", jnp.bool_), jnp.number)
    others = [each.fact.range for each in new.maker.inputs if each is not value]
    is_factor = new.maker.equation.primitive in primitives("mul") and outside.number == 1
    is_largest = new.maker.equation.primitive in primitives("max") and outside.number == 0
    return is_number and (is_factor or is_largest) and all(each.low == 0 and each.high == 1 for each in others)


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


KINDS = (SAME, UNREAD)
CHECKS = (same, unread)
