"""Carries that a loop leaves as they were, though its body computes new values of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, after, bodies
from lox._audit._checks._loops._carried import SAME
from lox._audit._checks._loops._stale import path_of, source_of
from lox._audit._checks._results._bindings import bindings, stems
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding
from lox._audit._location import transformations
from lox._audit._program import Value
from lox._audit._rules import primitives

_WRITES = ("dynamic_update_slice", "scatter")
_READS = ("gather", "dynamic_slice")
_MEETS = ("rem", "min", "max", "lt", "le", "gt", "ge", "eq", "ne", "sub")
_COUNT = re.compile(r"(?:\w+_)?(?:size|count|filled|fill|used|occupied|stored)|(?:n|num)_(?:items|stored|filled|valid)")
_LAST = re.compile(r"\W*\w+\W*$")


def updated(audited: Audited) -> Iterator[Finding]:
    """LOX208: an array is read with what an iteration wrote into it, and is carried on without that."""
    for body in audited.once(bodies):
        writes = list(body.places(*_WRITES))
        counters = list(body.counters) if writes else []
        varying = [each.inside for each in body.changing if each not in counters] + [node for _, node in body.scanned]
        for kept in body.kept if counters else ():
            for place in writes if kept.value.shape else ():
                written, at = _operands(place)
                is_own = plain(place.inputs[0]) is kept.inside and place.outputs[0].value in audited.live
                if not is_own:
                    continue
                counter = next((each for each in counters if not at.isdisjoint(after([each.inside]))), None)
                if counter is None or written not in after(varying) - after([kept.inside]):
                    continue
                if _returns(body, written, place, counters) or _beside(body, kept, place, counter, after(varying)):
                    yield SAME.at(
                        place.location,
                        f"An iteration of a loop writes into {kept.name} of its carry and reads the result, and the "
                        f"loop carries {kept.name} on as it was: the next iteration does not have what was written.",
                        severity="warning",
                    )


def _operands(place: Place) -> tuple[Node, set[Node]]:
    """The values that are written into an array, and the indices."""
    if place.step.equation.primitive in primitives("scatter"):
        return place.inputs[2], {place.inputs[1]}
    return place.inputs[1], set(place.inputs[2:])


def _returns(body: Body, written: Node, place: Place, counters: list[Carried]) -> bool:
    """Say whether what is written is computed from what iterations before made of the array, as a memory is."""
    results = after(place.outputs)
    return any(
        each not in counters and each.new in results and written in after([each.inside]) for each in body.changing
    )


def _beside(body: Body, kept: Carried, place: Place, counter: Carried, varying: set[Node]) -> bool:
    """Say whether another such array is written at the same place, and is carried on."""
    results, indices = after(place.outputs), after([counter.inside])
    for other in body.places(*_WRITES):
        written, at = _operands(other)
        array = next((each for each in body.changing if plain(other.inputs[0]) is each.inside), None)
        if array is None or array.value.aval != kept.value.aval or array.new not in after(other.outputs):
            continue
        if not at.isdisjoint(indices) and written in varying and written not in results:
            return True
    return False


def dead(audited: Audited) -> Iterator[Finding]:
    """LOX208: a new value has the name of what is carried, and nothing reads it."""
    for body in audited.once(bodies):
        source = source_of(audited, body.loop.step) if body.kept and body.changing else None
        if source is None:
            continue
        bound = bindings(source)
        changing = {_LAST.sub("", each.value.name) for each in body.changing}
        for kept in body.kept:
            if not kept.value.name or _LAST.sub("", kept.value.name) not in changing:
                continue
            name, unread = path_of(kept.value.name, bound)[-1], _unread(audited, kept)
            if new := next((each for each in unread if _is_new(each.written, name)), None):
                yield SAME.at(
                    audited.lines[new.maker] if new.maker is not None else body.location,
                    f"Nothing reads this new value of {kept.value.name}, which a loop carries on as it was.",
                    severity="warning",
                )


def _unread(audited: Audited, kept: Carried) -> list[Value]:
    """The values of the type of one that is carried, and computed from it, that nothing depends on, in order."""
    computed = {node.value for node in after([kept.inside])} - audited.live
    alike = {each.maker: each for each in computed if each.aval == kept.value.aval and each.maker is not None}
    return [
        alike[step]
        for step, _ in audited.steps
        if step in alike and not {"jvp", "transpose"} & set(transformations(step.equation))
    ]


def _is_new(written: str, name: str) -> bool:
    return written == name or name in stems(written, numbered=False)


def uncounted(audited: Audited) -> Iterator[Finding]:
    """LOX208: elements are written at a counter, and read up to a count that never changes."""
    for body in audited.once(bodies):
        for kept in body.kept:
            if kept.value.shape or not kept.is_of(jnp.integer):
                continue
            for counter in body.counters:
                array, place = next(_filled(body, counter), (None, None))
                if array is None or _meet(body, kept, counter) or not _is_read_up_to(body, array, kept):
                    continue
                yield SAME.at(
                    body.location if place is None else place.location,
                    f"A loop writes into {array.name} of its carry at {counter.name}, which goes on, and reads from "
                    f"{array.name} as many elements as {kept.name} says, which stays as it was.",
                    severity="warning",
                )


def _filled(body: Body, counter: Carried) -> Iterator[tuple[Carried, Place]]:
    """The arrays that iterations write into at a counter, and where they do."""
    indices = after([counter.inside])
    for place in body.places(*_WRITES):
        _, at = _operands(place)
        array = next((each for each in body.changing if plain(place.inputs[0]) is each.inside), None)
        if array is not None and array.new in after(place.outputs) and not at.isdisjoint(indices):
            yield array, place


def _meet(body: Body, kept: Carried, counter: Carried) -> bool:
    """Say whether a number that stays is compared with a counter, as the size of an array that is full is."""
    one, other = after([kept.inside]), after([counter.inside])
    return any(
        (first in one and second in other) or (first in other and second in one)
        for place in body.places(*_MEETS)
        for first, second in [place.inputs]
        if not place.outputs[0].value.shape
    )


def _is_read_up_to(body: Body, array: Carried, kept: Carried) -> bool:
    """Say whether elements are drawn up to a count, or masked after it."""
    reads, bounded, random = after([array.inside]), after([kept.inside]), body.random
    for place in body.places(*_READS):
        if place.inputs[0] in reads and any(index in bounded and index in random for index in place.inputs[1:]):
            return True
    if not _COUNT.fullmatch(re.findall(r"\w+", kept.name)[-1]):
        return False
    return any(
        place.outputs[0].value.shape[-1:] == array.value.shape[:1]
        and any(plain(node) is kept.inside for node in place.inputs)
        and not after(place.outputs).isdisjoint(reads)
        for place in body.places("lt", "le", "gt", "ge")
    )


CHECKS = (updated, dead, uncounted)
