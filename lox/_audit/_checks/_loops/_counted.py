"""Loops that count: what they read at their counter, and how far it goes."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._loops._reads import Read, Reads, all_reads
from lox._audit._expect import declared_at, is_declared
from lox._audit._files import lines_in, statement_at
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, is_users
from lox._audit._loops import Scan, is_called
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

CLOSED = Kind(
    "LOX210",
    "info",
    "A scan reads an array that it closes over at its counter",
    "Pass the array as xs, and use the slice that the body gets: JAX then checks that it is as long as the loop, and "
    "the derivative does not add each slice to an array of full size, which the compiler does not always do in place.",
)
DECLARED_LENGTH = Kind(
    "LOX211",
    "warning",
    "A scan over a counter is not along the axis that was declared",
    "Take the length from the array, such as with length=x.shape[0] or jnp.arange(x.shape[0]), or scan the array "
    "itself; or mend the labels in axes= or the declaration.",
    "Scans over counters are along the axis that is declared.",
    "The labels of the axes that counters index were compared with lox.audit.expect.",
)
BEYOND = Kind(
    "LOX212",
    "warning",
    "A loop reads or writes beyond the end of an array",
    "Let the loop end where the array does, or pass the array to a scan as xs, whose length is checked; if the last "
    "element is meant where there is none, say so with jnp.minimum(i, x.shape[0] - 1).",
    "What loops read at their counters is in the arrays.",
    "Intervals of each index were computed from the length of the loop, and compared with the size of the axis.",
)

OVERLAPPING = Kind(
    "LOX217",
    "warning",
    "A loop over parts of an array begins each part one element after the one before",
    "Multiply the counter by the size of a part: jax.lax.dynamic_slice_in_dim(x, i * size, size); or scan "
    "x.reshape(count, size, *x.shape[1:]).",
    "Parts that loops read do not overlap, where there are as many as the array has.",
    "The number of iterations was compared with the number of parts of that size in the array.",
)


def closed_over(audited: Audited) -> Iterator[Finding | Held]:
    """LOX210: in iteration i, the body reads nothing but element i of an array that it closes over."""
    seen = set()  # A loop that is differentiated is there again.
    for scan, location, found in audited.once(all_reads):
        if location in seen or not is_called(scan.step, "scan"):
            continue
        arrays = [value for value, inside in scan.consts if _could_be_scanned(scan, value, inside, found.reads)]
        if arrays:
            seen.add(location)
            texts = " and ".join(array.text for array in arrays)
            yield CLOSED.at(
                location,
                f"The body of a scan closes over {texts}, and reads in iteration i nothing but element i.",
            )


def _could_be_scanned(scan: Scan, outside: Value, inside: Value, found: tuple[Read, ...]) -> bool:
    own = [read for read in found if read.array is inside and not read.is_written]
    length, is_reversed = scan.step.equation.params["length"], scan.step.equation.params["reverse"]
    if not own or length < 2 or not jnp.issubdtype(outside.aval.dtype, jnp.inexact):
        return False
    for read in own:
        if read.positions != range(length) or read.size != 1 or outside.shape[read.axis] != length or not read.others:
            return False
        if (read.axis and not read.is_batched) or (is_reversed and not read.is_scanned):
            return False
    reading = {read.step for read in own}
    return inside not in scan.body.outputs and all(step in reading for step in scan.body.steps if inside in step.inputs)


def beyond(audited: Audited) -> Iterator[Finding | Held]:
    """LOX212: the counter of a loop goes further than an array that is read at it."""
    seen = set()
    for scan, around, found in audited.once(all_reads):
        for read in found.reads:
            location = audited.lines[read.step]
            location = location if is_users(location.file) else around
            if not read.clamps:
                continue
            most, size = max(read.positions[0], read.positions[-1]), read.array.shape[read.axis]
            if (least := _before_first(scan, found, read)) is not None and location not in seen:
                seen.add(location)
                yield BEYOND.at(
                    location,
                    f"A loop of {scan.step.equation.params['length']} iterations reads element {least} along axis "
                    f"{read.axis} of {_outside(scan, read.array).text}, which is counted from the end.",
                )
            elif most + read.size <= size:
                yield BEYOND.fine(location)
            elif not found.is_guarded and location not in seen and not _is_meant(audited, scan, read):
                seen.add(location)
                text = _outside(scan, read.array).text
                what = f"element {most}" if read.size == 1 else f"elements {most} to {most + read.size - 1}"
                does = "writes" if read.is_written else "reads"
                if read.is_moved:
                    instead = "over what is last instead"
                else:
                    instead = "nothing" if read.is_written else "what is last instead"
                yield BEYOND.at(
                    location,
                    f"A loop of {scan.step.equation.params['length']} iterations {does} up to {what} along axis "
                    f"{read.axis} of {text}: beyond the end, JAX {does} {instead}.",
                )


def _before_first(scan: Scan, found: Reads, read: Read) -> int | None:
    """The place below zero that a loop reads of an array that it does not change, besides places that are none."""
    least, most = min(read.positions[0], read.positions[-1]), max(read.positions[0], read.positions[-1])
    is_given = any(read.array is inside for _, inside in scan.consts)
    goes_up = read.positions.step > 0  # Who begins with the last element may mean a ring.
    if read.is_written or found.is_asked or not is_given or read.size != 1 or len(read.positions) < 3 or goes_up:
        return None
    return least if -len(read.positions) < 2 * least < 0 < most else None


def _is_meant(audited: Audited, scan: Scan, read: Read) -> bool:
    """Whether nothing takes what is read beyond the end, or the statement says what is to be written there."""
    if not read.is_written:
        return _is_dropped(audited, scan, read)
    location = audited.lines[read.step].of_user
    first, last = statement_at(location.file, location.line)
    return any("mode=" in line for line in lines_in(location.file)[first - 1 : last])


def _is_dropped(audited: Audited, scan: Scan, read: Read) -> bool:
    """Whether only the last iteration reads beyond, for a carry whose last value nothing takes."""
    beyond = [at for at in read.positions if at + read.size > read.array.shape[read.axis]]
    if beyond != [read.positions[-1]]:
        return False
    results = dict(zip(scan.body.outputs, scan.step.outputs, strict=True))
    reached: set[Value] = set()
    waiting = list(read.step.outputs)
    while waiting:
        names = audited.users.names(waiting.pop()) - reached
        reached |= names
        waiting += (output for name in names for step in audited.users.of(name) for output in step.outputs)
    ends = reached & results.keys()
    return bool(ends) and not any(results[end] in audited.live for end in ends)


def overlapping(audited: Audited) -> Iterator[Finding]:
    """LOX217: a loop has as many iterations as an array has parts, and the parts that it reads overlap."""
    seen = set()
    for scan, around, found in audited.once(all_reads):
        for read in found.reads:
            times, size = len(read.positions), read.array.shape[read.axis]
            is_count = 1 < times == size // read.size and read.size > 1 and abs(read.positions.step) == 1
            location = audited.lines[read.step]
            location = location if is_users(location.file) else around
            if is_count and not read.is_written and location not in seen:
                seen.add(location)
                yield OVERLAPPING.at(
                    location,
                    f"A loop reads {read.size} elements along axis {read.axis} of {_outside(scan, read.array).text} in "
                    f"each of {times} iterations, as many as it has such parts, and begins each one element later: "
                    f"only {times + read.size - 1} of {size} are read.",
                )


def declared_length(audited: Audited) -> Iterator[Finding | Held]:
    """LOX211: a scan over a counter is declared to go over an axis that is of another length."""
    if not any(is_declared(step.equation) for step, _ in audited.steps):
        return
    sizes: dict[str, set[int]] = {}
    for value in audited.program.inputs:
        for size, label in zip(value.shape, value.fact.labels, strict=True):
            if label is not None:
                sizes.setdefault(label, set()).add(size)
    known = {scan.step: (scan, found) for scan, _, found in audited.once(all_reads) if is_called(scan.step, "scan")}
    for step, labels in dict(_declared(audited.program, frozenset(), set())).items():
        if step in known and all(map(_is_counter_or_key, known[step][0].xs)):
            yield from _along(audited.lines[step], *known[step], labels, sizes)


def _declared(
    block: Block, around: frozenset[str], seen: set[tuple[Block, frozenset[str]]]
) -> Iterator[tuple[Step, frozenset[str]]]:
    """The scans that are declared to go over axes. Those inside one go over others."""
    if (block, around) in seen:
        return
    seen.add((block, around))
    for step in block.steps:
        labels = declared_at(step.equation).get("scan", around)
        if labels and step.equation.primitive in primitives("scan"):
            yield step, labels
        else:
            for inner in step.blocks:
                yield from _declared(inner, labels, seen)


def _along(
    location: Location, scan: Scan, found: Reads, labels: frozenset[str], sizes: dict[str, set[int]]
) -> Iterator[Finding | Held]:
    said, length = " and ".join(sorted(labels)), scan.step.equation.params["length"]
    reads = (read for read in found.reads if read.size == 1 and not read.is_written)
    at_counter = [(read, read.array.fact.labels[read.axis]) for read in reads]
    along = [(read, label) for read, label in at_counter if label is not None]
    known = set().union(*(sizes.get(label, set()) for label in labels))
    if along and not any(label in labels for _, label in along):
        read, label = along[0]
        yield DECLARED_LENGTH.at(
            location,
            f"A scan that is declared to go over {said} counts along {label} of {_outside(scan, read.array).text}.",
        )
        return
    if along and all(read.is_scanned and _is_inside(read) for read, _ in along):  # Somebody chose which to read.
        yield DECLARED_LENGTH.fine(location)
        return
    as_long = [label for label, each in sizes.items() if label not in labels and length in each - known]
    near = any(abs(length - size) <= 1 for size in known)
    if known and ((as_long and not near) or not any(_could_be_of(length, size) for size in known)):
        each = " or ".join(map(str, sorted(known)))
        like = f", as many as {as_long[0]} has elements" if as_long else ""
        yield DECLARED_LENGTH.at(
            location,
            f"A scan that is declared to go over {said} has {length} iterations{like}, and {said} has {each} elements.",
        )
    elif known:
        yield DECLARED_LENGTH.fine(location)


def _is_inside(read: Read) -> bool:
    """Whether all that a loop reads at its counter is there."""
    return all(0 <= position < read.array.shape[read.axis] for position in (read.positions[0], read.positions[-1]))


def _could_be_of(length: int, size: int) -> bool:
    """Whether a loop may go over an axis: over all of it, what is between its elements, or parts of the same size."""
    return abs(length - size) <= 1 or length == 0 or size % length == 0


def _is_counter_or_key(pair: tuple[Value, Value]) -> bool:
    outside, inside = pair
    dtype = inside.aval.dtype
    is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key) or (dtype == jnp.uint32 and inside.shape == (2,))
    return outside.fact.labels[0] is None and (is_key or (jnp.issubdtype(dtype, jnp.integer) and not inside.shape))


def _outside(scan: Scan, array: Value) -> Value:
    """What an array of the body is outside, which has its name there."""
    return next((value for value, inside in scan.consts if inside is array), array)


KINDS = (CLOSED, DECLARED_LENGTH, BEYOND, OVERLAPPING)
CHECKS = (closed_over, declared_length, beyond, overlapping)
