"""Loops: what they go over, which part of it they read, and whether they end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._loops._memories import is_recurrent
from lox._audit._ends import is_boolean, last_name, says_end, says_onward
from lox._audit._episodes import flows
from lox._audit._findings import Finding, Held, Kind
from lox._audit._loops import Scan, origins, reached, scans
from lox._audit._needs import read
from lox._audit._program import Region, Value
from lox._audit._rules import primitives

ALONG = Kind(
    "LOX203",
    "error",
    "A scan goes over axes of different meaning",
    "Bring the same axis first in all that is scanned, as with jnp.swapaxes(x, 0, 1); or mend the labels in axes=.",
    "What is scanned together is scanned along one axis.",
    "The labels of the first axes of the arrays of each scan were compared.",
)
WHOLE = Kind(
    "LOX204",
    "warning",
    "The body of a scan reads a whole array instead of its slice",
    "Use the slice that the body gets in place of the array around it; if all of it is meant, do not scan it.",
)
ENDS = Kind(
    "LOX205",
    "warning",
    "A scan carries a value over the end of an episode",
    "Start anew where an episode ended, as with jnp.where(done, initial, carry), or multiply what goes on by "
    "(1 - done).",
    "Scans over the ends of episodes read them.",
    "Which scanned values the carry of each scan depends on was followed through its body.",
)
FOREVER = Kind(
    "LOX206",
    "error",
    "The condition of a while loop never changes",
    "Let the body change what the condition reads, such as by returning i + 1 for i.",
    "The body of each while loop changes what its condition reads.",
    "What the condition of each while loop depends on was compared with what its body changes.",
)

_GOES_ON = re.compile(r"discount|mask|not_|non_|nonterm|contin|first|start|alive|valid|weight|gamma", re.IGNORECASE)
_ERROR = re.compile(r"err|resid|diff|delta|change|gap|improve", re.IGNORECASE)
"""Names of what a loop goes on until it is small."""
_GATHERING = primitives("add", "max", "min")
"""What makes one number of all that there was."""
_SAME_ELEMENTS = primitives(
    "convert_element_type", "copy", "reshape", "rev", "sharding_constraint", "reshard", "slice", "squeeze", "transpose"
)


def along(audited: Audited) -> Iterator[Finding | Held]:
    """LOX203: the axes that a scan goes over have different labels."""
    for scan, location in scans(audited):
        labelled = [(value, value.fact.labels[0]) for value, _ in scan.xs if value.shape and value.fact.labels[0]]
        differ = [(value, label) for value, label in labelled if label != labelled[0][1]]
        for other, label in differ[:1]:
            one, first = labelled[0]
            yield ALONG.at(location, f"A scan goes over {first} of {one.text}, and over {label} of {other.text}.")
        if len(labelled) > 1 and not differ:
            yield ALONG.fine(location)


def whole(audited: Audited) -> Iterator[Finding | Held]:
    """LOX204: the body closes over an array that is also scanned, and never reads its slice."""
    for scan, location in scans(audited):
        outside = {value: inside for value, inside in scan.consts if value.shape}
        both = [(value, slice_) for value, slice_ in scan.xs if value in outside]
        used = read(scan.body) if both else set()
        for value, slice_ in both:
            if slice_ not in used and outside[value] in used:
                yield WHOLE.at(
                    location,
                    f"The body of a scan over {value.text} reads all of it in each iteration, and never the slice of "
                    f"shape {slice_.shape} that it gets.",
                )


def ends(audited: Audited) -> Iterator[Finding | Held]:
    """LOX205: where episodes end is scanned together with what a recurrence reads, and is not read itself."""
    for scan, location in scans(audited):
        marks = [(value, slice_) for value, slice_ in scan.xs if _end_among(value, slice_)]
        if not marks:
            continue
        used = read(scan.body)
        if any(slice_ in used for _, slice_ in marks):
            yield ENDS.fine(location)
            continue
        value, slice_ = marks[0]
        if _masked_otherwise(scan, marks, used):
            continue
        if _is_recurrence_of(scan, slice_, used) or (not slice_.shape and _is_memory(audited, scan, used)):
            yield ENDS.at(
                location,
                f"A scan gets {_end_among(value, slice_)} with each step and does not read it: what it carries goes on "
                "from one episode into the next.",
            )


def _names(outside: Value, inside: Value) -> list[str]:
    """The names that an array which is scanned has in the body and around it, the last part of each."""
    while not outside.name and outside.maker and outside.maker.equation.primitive in _SAME_ELEMENTS:
        outside = outside.maker.inputs[0]
    parts = (re.findall(r"\w+", value.name) for value in (inside, outside))
    return [found[-1] for found in parts if found]


def _end_among(outside: Value, inside: Value) -> str:
    """The name of an array that is scanned as a flag of where episodes end, or nothing."""
    return next(
        (name for name in _names(outside, inside) if says_end(name, is_boolean(inside)) or says_onward(name)), ""
    )


def _masked_otherwise(scan: Scan, marks: list[tuple[Value, Value]], used: set[Value]) -> bool:
    """Say whether something else that the body reads may tell it where an episode ends."""
    others = [(value, inside) for value, inside, *_ in (*scan.consts, *scan.carry, *scan.xs) if inside in used]
    if any(_dtype(inside, jnp.bool_) for _, inside in others):
        return True
    scanned = [pair for pair in scan.xs if pair[1] in used]
    if any(_GOES_ON.search(name) for value, inside in scanned for name in _names(value, inside)):
        return True
    sources = {source for source in origins(value for value, _ in marks) if source.shape}
    return not sources.isdisjoint(origins(value for value, _ in others))


def _is_recurrence_of(scan: Scan, mark: Value, used: set[Value]) -> bool:
    """Say whether all that a scan carries is of each episode, by its shape, and more than a total of what there was."""
    carried = [(inside, new) for _, inside, new in scan.carry if _dtype(inside, jnp.floating) and inside in used]
    if not carried or any(inside.shape[: len(mark.shape)] != mark.shape for inside, _ in carried):
        return False
    if not mark.shape and any(inside.shape for inside, _ in carried):
        return False
    stepwise = reached(scan.body, [slice_ for _, slice_ in scan.xs])
    for inside, new in carried:
        after = reached(scan.body, [inside])
        gathered = new.maker and new.maker.equation.primitive in _GATHERING and inside in new.maker.inputs
        if new in after and new in stepwise and not (gathered and after.isdisjoint(scan.ys)):
            return True
    return False


def _is_memory(audited: Audited, scan: Scan, used: set[Value]) -> bool:
    """Say whether a loop that has one environment carries the state of a network, or a stack of the last frames."""
    flow = next((each for each in audited.once(flows) if each.loop.step is scan.step), None)
    return flow is not None and any(
        flow.unknown[place].moved & 1 << place or is_recurrent(flow.unknown[place], place)
        for place in flow.numbers
        if scan.carry[place][1] in used
    )


def forever(audited: Audited) -> Iterator[Finding | Held]:
    """LOX206: the body of a while loop passes on untouched all that the condition reads."""
    for step, location in audited.steps:
        if step.equation.primitive not in primitives("while"):
            continue
        condition, body = step.regions
        used = read(condition.block)
        if any(inner.equation.effects for inner in condition.block.steps):  # Such as reading a ref.
            continue
        asked = [each.inside in used for each in condition.carried]
        carried = zip(asked, body.carried, body.block.outputs, strict=True)
        if all(before.inside is after for is_asked, before, after in carried if is_asked):
            yield FOREVER.at(
                location,
                "The body of a while loop returns unchanged what its condition reads: it runs forever or not at all.",
            )
        elif part := _decided(condition, body):
            yield FOREVER.at(
                location,
                f"The body of a while loop returns {part[0]} unchanged, which the condition compares with a number: "
                f"it begins at {part[1].number:g}, and so this part of the condition never changes.",
                severity="warning",
            )
        else:
            yield FOREVER.fine(location)


def _decided(condition: Region, body: Region) -> tuple[str, Value] | None:
    """What a loop begins with as a number and never changes, and what a part of its condition alone depends on."""
    carried = zip(condition.carried, body.carried, body.block.outputs, strict=True)
    known = {asked.inside: asked.outside for asked, before, after in carried if before.inside is after}
    known.update((each.inside, each.outside) for each in condition.inputs if each.role == "in" and each.inside.name)
    left = list(condition.block.outputs)
    while left:
        value = left.pop()
        if value.maker is None:
            continue
        if value.maker.equation.primitive in primitives("and", "convert_element_type"):
            left += value.maker.inputs
        elif value.maker.equation.primitive in primitives("lt", "le", "gt", "ge"):
            ours = [each for each in value.maker.inputs if each in known and known[each].number is not None]
            if len(ours) == 1 and all(each in ours or each.number is not None for each in value.maker.inputs):
                if known[ours[0]].number in (math.inf, -math.inf) or _ERROR.search(last_name(ours[0].name)):
                    return ours[0].name or known[ours[0]].called, known[ours[0]]
    return None


def _dtype(value: Value, kind: Any) -> bool:
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, kind)


KINDS = (ALONG, WHOLE, ENDS, FOREVER)
CHECKS = (along, whole, ends, forever)
