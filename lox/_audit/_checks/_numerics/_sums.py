"""Sums that are added up one number after the other, in too few digits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax

from lox._audit._audited import Audited
from lox._audit._checks._numerics._integers import is_float
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location
from lox._audit._loops import scans
from lox._audit._origins import Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

STALLS = Kind(
    "LOX805",
    "warning",
    "A running sum in too few digits",
    "Keep the sum in jnp.float32, as with jnp.zeros((), jnp.float32), jnp.cumsum(x, dtype=jnp.float32) or "
    "x.astype(jnp.float32) before what adds up, and convert the result; count with integers.",
    "Running sums have the digits for their length.",
    "The numbers of terms of running sums were compared with the digits of their dtype.",
)

_FLOWS = primitives("convert_element_type", "copy", "reshape", "broadcast_in_dim", "squeeze")
_ADDS = primitives("add", "add_jaxvals")


_LOST = "what is less than 1/{0} of the sum is lost when it is added, and a count stops at {0}"
# It adds up in pairs, and then in pairs of these: only its results are short of digits.
_ROUNDED = "a result does not tell less than 1/{0} of the sum, so that neighbours become equal"


def stalls(audited: Audited) -> Iterator[Finding | Held]:
    """LOX805: so much is added up, one after the other, that what is added gets lost."""
    yield from _scans(audited)
    for step, location in audited.of("cumsum"):
        length = step.inputs[0].shape[step.equation.params["axis"]]
        yield from _stalls(step.outputs[0], length, location, f"A cumsum of {length} numbers", lost=_ROUNDED)
    for step, location in audited.of("scatter_add"):
        count, places = _scattered(step)
        length = math.ceil(count / places) if places else 0
        text = f"A scatter-add of {count} numbers into {places} place{'s' if places > 1 else ''}"
        least = f", and {length} or more come to one of them" if places > 1 else ""
        yield from _stalls(step.outputs[0], length, location, text, least)
    for step, location in audited.of("reduce_window_sum"):
        length = math.prod(step.equation.params["window_dimensions"])
        yield from _stalls(step.outputs[0], length, location, f"A sum over windows of {length} numbers")


def _scans(audited: Audited) -> Iterator[Finding | Held]:
    origins = audited.origins
    for scan, location in scans(audited):
        for _, before, after in scan.carry:
            added = _added(after, before, origins) if is_float(before) else None
            if added is not None:
                length = scan.step.equation.params["length"]
                where = audited.lines.get(added, location)
                yield from _stalls(before, length, where, f"A carry of a scan that adds up {length} numbers")


def _stalls(
    total: Value, length: int, location: Location, what: str, more: str = "", lost: str = _LOST
) -> Iterator[Finding | Held]:
    if not is_float(total) or not isinstance(length, int):
        return
    dtype = total.aval.dtype
    enough = 2 ** (jax.dtypes.finfo(dtype).nmant + 1)
    if length < (256 if dtype.itemsize < 4 else enough):
        yield STALLS.fine(location)
    else:
        yield STALLS.at(location, f"{what} is in {dtype}{more}: {lost.format(enough)}.")


def _scattered(step: Step) -> tuple[int, int]:
    """How many numbers a step adds, and to how many places; 0 of what is not known or never meets."""
    params = step.equation.params
    numbers = params["dimension_numbers"]
    operand, indices, updates = (value.shape for value in step.inputs)
    if params["unique_indices"] or not all(isinstance(size, int) for size in (*operand, *indices)):
        return 0, 0
    each = [axis for axis in range(len(indices) - 1) if axis not in numbers.scatter_indices_batching_dims]
    apart = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(operand)) if axis not in apart]
    sizes = {axis: updates[place] for axis, place in zip(windows, numbers.update_window_dims, strict=True)}
    places = (operand[axis] - sizes.get(axis, 1) + 1 for axis in numbers.scatter_dims_to_operand_dims)
    return math.prod(indices[axis] for axis in each), math.prod(places)


def _added(result: Value, target: Value, origins: Origins) -> Step | None:
    """The step in which something is added to a value, if that is how a result comes of it."""
    waiting: list[tuple[Value, Step | None]] = [(result, None)]
    seen: set[tuple[Value, bool]] = set()
    while waiting:
        value, added = waiting.pop()
        value = origins.of(value, _FLOWS)
        if value is target and added is not None:
            return added
        step = value.maker
        if step is None or (value, added is None) in seen:
            continue
        seen.add((value, added is None))
        if step.equation.primitive in primitives("select_n"):
            waiting += [(case, added) for case in step.inputs[1:]]
        elif step.equation.primitive in _ADDS:
            waiting += [(operand, step) for operand in step.inputs]
        elif step.equation.primitive in primitives("sub"):
            waiting.append((step.inputs[0], step))
    return None


KINDS = (STALLS,)
CHECKS = (stalls,)
