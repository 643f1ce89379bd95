"""Elements of a batch that are mixed with each other: what is taken over the batch, and used for each element."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import declarations
from lox._audit._checks._axes._recurrences import BATCH, TIME
from lox._audit._checks._numerics._attention import attentions
from lox._audit._findings import Finding, Kind
from lox._audit._labels import has_rule
from lox._audit._location import Location, frames, is_users, transformations
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value, alike, is_call
from lox._audit._rules import primitives
from lox._audit._worklist import Worklist

MIXED = Kind(
    "LOX112",
    "warning",
    "What is taken over a batch is used for each of its elements",
    "Give the operation the axis of what it is to go over, such as x.max(axis=-1) or jnp.linalg.norm(x, axis=-1, "
    "keepdims=True); or map a function of one element with jax.vmap.",
)

_SQUARES = primitives("square", "integer_pow", "mul", "abs")
_ROOTS = primitives("sqrt", "rsqrt")
_LARGEST = primitives("reduce_max", "reduce_min")
_NORMALIZING = re.compile(r"(layer|instance|group|rms)_?norm", re.IGNORECASE)
_MOST = 60
"""Through how many operations is looked."""


def mixed(audited: Audited) -> Iterator[Finding]:
    """LOX112: a maximum, a norm or the place of a maximum is over a batch, and meets elements of the batch."""
    if not any(label for value in audited.program.inputs for label in value.fact.labels):
        return
    yield from _first_of_batch(audited)
    yield from _attended(audited)
    for step, location in audited.of("reduce_max", "reduce_min", "reduce_sum", "argmax", "argmin"):
        names = transformations(step.equation)
        label = _batch(step)
        if (
            label is None
            or label in audited.once(_declared).get(step, ())
            or "transpose" in names
            or not is_users(location.of_user.file)
        ):
            continue
        (value, *_), axes = step.inputs, {*step.equation.params["axes"]}
        others = [axis for axis, size in enumerate(value.shape) if size > 1 and value.fact.labels[axis] != label]
        if step.equation.primitive in primitives("argmax", "argmin"):
            if others:
                yield _found(location, f"The place of the largest or least of {value.text} is looked for over {label}.")
        elif step.equation.primitive in _LARGEST:
            other = _meets(audited, step, label) if others else None
            if other is not None:
                what = "largest" if step.equation.primitive in primitives("reduce_max") else "least"
                yield _found(location, f"The {what} of {value.text} over {label} meets {other.text}.")
        elif _NORMALIZING.search(_function(step)) and len(value.shape) - 1 not in axes:
            yield _found(
                location,
                f"'{_function(step)}' takes the mean of {value.text} over {label}, and not over the features of each.",
            )
        elif (factor := _scaled_by_mean(audited, step, label)) is not None:
            yield _found(location, f"The mean of {value.text} over {label} is multiplied by {factor.text}.")
        elif (other := _added(audited, step, label)) is not None:
            yield _found(location, f"The sum of {value.text} over {label} is added to {other.text}.")
        elif (root := _root(audited, step)) is not None:
            array = audited.origins.of(value, FLOWS)
            other = _meets(audited, root, label)
            is_single = not others and other is not None and not _asks(audited, root)
            if other is not None and not is_single:
                yield _found(location, f"The norm of {array.text} over {label} meets {other.text}.")


def _found(location: Location, text: str) -> Finding:
    return MIXED.at(location, f"{text} Each element depends on which others are in its batch.")


def _batch(step: Step) -> str | None:
    """The label of a batch that a reduction goes over."""
    labels = step.inputs[0].fact.labels
    found = [labels[axis] for axis in step.equation.params["axes"]]
    return next((each for each in found if isinstance(each, str) and BATCH.names.fullmatch(each)), None)


def _declared(audited: Audited) -> dict[Step, set[str]]:
    """The labels that `lox.audit.expect` says an operation goes over."""
    found: dict[Step, set[str]] = {}
    for step, _, labels in declarations(audited):
        found.setdefault(step, set()).update(labels)
    return found


def _function(step: Step) -> str:
    """The function of the user's program that a step is in."""
    return next((each.code.co_name for each in frames(step.equation) if is_users(each.file)), "")


def _first_of_batch(audited: Audited) -> Iterator[Finding]:
    """Reads of one element of a batch, from arrays whose other elements nothing reads."""
    made = (value for step, _ in audited.steps if not step.blocks for value in step.outputs)
    for value in (*audited.program.inputs, *made):
        for axis, (size, label) in enumerate(zip(value.shape, value.fact.labels, strict=True)):
            is_batch = (
                isinstance(label, str)
                and size > 1
                and (BATCH.names.fullmatch(label) or _is_of_several(audited, value, label))
            )
            users = list(audited.users.of(value)) if is_batch else []
            if any(each.blocks and not is_call(each) for each in users):
                continue  # A loop reads the others.
            steps = [each for each in users if not each.blocks]
            steps = [each for each in steps if "transpose" not in transformations(each.equation)]
            steps = [each for each in steps if label not in audited.once(_declared).get(each, ())]
            taken = {_taken(step, axis) for step in steps}
            if len(taken) == 1 and None not in taken and is_users(audited.lines[steps[0]].file):
                yield _found(
                    audited.lines[steps[0]], f"Of {value.text}, one element along {label} is read, and no other one."
                )


def _is_of_several(audited: Audited, value: Value, label: str) -> bool:
    """Say whether several arguments have an axis of this name, which are no steps of time."""
    inputs = audited.program.inputs
    return value in inputs and not TIME.names.fullmatch(label) and sum(label in each.fact.labels for each in inputs) > 1


def _taken(step: Step, axis: int) -> float | None:
    """The place of the one element that a step reads along an axis, if it is a constant."""
    params = step.equation.params
    if step.equation.primitive in primitives("slice"):
        start, limit = params["start_indices"][axis], params["limit_indices"][axis]
        return float(start) if limit - start == 1 else None
    is_read = step.equation.primitive in primitives("dynamic_slice") and params["slice_sizes"][axis] == 1
    return step.inputs[1 + axis].number if is_read else None


def _attended(audited: Audited) -> Iterator[Finding]:
    """Attention of the elements of a batch to each other, where time has an axis of its own."""
    for found in audited.once(attentions):
        labels = found.squash.logits.fact.labels
        label = labels[found.axis]
        is_batch = isinstance(label, str) and BATCH.names.fullmatch(label) is not None
        if is_batch and found.axis in found.summed and any(isinstance(each, str) and each != label for each in labels):
            yield _found(found.location, f"Attention goes over {label} of {found.values.text}.")


def _scaled_by_mean(audited: Audited, step: Step, label: str) -> Value | None:
    """The array with an axis of the batch that a mean over it is multiplied by."""
    if step.outputs[0].shape:
        return None
    reduced = audited.origins.of(step.inputs[0], FLOWS)
    for division in audited.users.of(step.outputs[0]):
        if division.equation.primitive not in primitives("div") or division.inputs[1].number is None:
            continue
        for each in division.outputs:
            for user in audited.users.of(each):
                other = next((one for one in user.inputs if label in one.fact.labels), None)
                if user.equation.primitive in primitives("mul") and other is not None:
                    return None if _is_made_of(audited, other, reduced) else other
    return None


def _added(audited: Audited, step: Step, label: str) -> Value | None:
    """The array with an axis of the batch alone that a sum over it and other axes is added to, undivided."""
    if step.outputs[0].shape or len(step.equation.params["axes"]) < 2:
        return None
    made = Worklist(step.outputs, _MOST)
    for value in made:
        for user in audited.users.of(value):
            is_scaled = user.equation.primitive in primitives("mul") and any(each.number for each in user.inputs)
            if "transpose" in transformations(user.equation):
                continue
            if user.equation.primitive in FLOWS | primitives("neg") or is_scaled:
                made.add(user.outputs)
            elif user.equation.primitive in primitives("add", "sub"):
                other = next((each for each in user.inputs if each.fact.labels == (label,)), None)
                if other is not None and other is not value:
                    return other
                made.add(user.outputs)
    return None


def _root(audited: Audited, step: Step) -> Step | None:
    """The root of a sum of squares."""
    squares = audited.origins.of(step.inputs[0], FLOWS).maker
    if (
        squares is None
        or squares.equation.primitive not in _SQUARES
        or not alike(squares.inputs[0], squares.inputs[-1])
    ):
        return None
    made = audited.origins.of(squares.inputs[0], FLOWS).maker
    labels = {*step.inputs[0].fact.labels} - {None}
    is_difference = made is not None and made.equation.primitive in primitives("sub")
    if made is not None and is_difference and labels.isdisjoint(audited.origins.of(made.inputs[1], FLOWS).fact.labels):
        return None  # Such as a deviation from the mean.
    left, seen = [step.outputs[0]], 0
    while left and seen < _MOST:
        seen += 1
        for user in audited.users.of(left.pop()):
            if user.equation.primitive in _ROOTS:
                return user
            if user.equation.primitive in FLOWS | primitives("add", "max"):
                left += user.outputs
    return None


def _meets(audited: Audited, step: Step, label: str) -> Value | None:
    """An array with this label that a result meets element by element, and that is not made from what was reduced."""
    reduced = audited.origins.of(step.inputs[0], FLOWS)
    made = Worklist(step.outputs, _MOST)
    for value in made:
        for user in audited.users.of(value):
            if user.blocks or "transpose" in transformations(user.equation):
                continue
            if user.equation.primitive in FLOWS:
                made.add(user.outputs)
            elif not has_rule(user.equation.primitive):
                other = next((each for each in user.inputs if each is not value and label in each.fact.labels), None)
                if other is None:
                    made.add(user.outputs)
                elif step.equation.primitive in _ROOTS or not _is_made_of(audited, other, reduced):
                    return other
    return None


def _asks(audited: Audited, step: Step) -> bool:
    """Say whether a result is compared."""
    made = Worklist(step.outputs, _MOST)
    for value in made:
        for user in audited.users.of(value):
            if user.equation.primitive in primitives("lt", "le", "gt", "ge"):
                return True
            made.add(user.outputs if user.equation.primitive in FLOWS else ())
    return False


def _is_made_of(audited: Audited, value: Value, source: Value) -> bool:
    """Say whether two values are computed, element by element, from a common one."""
    sources, own = _elements(audited, source), _elements(audited, value)
    return not sources.isdisjoint(own)


def _elements(audited: Audited, value: Value) -> set[Value]:
    """The arrays that a value is made from element by element."""
    seen, left = set[Value](), [value]
    while left and len(seen) < _MOST:
        each = audited.origins.of(left.pop(), FLOWS)
        if each in seen or not each.shape:
            continue
        seen.add(each)
        if each.maker is not None and not each.maker.blocks and not has_rule(each.maker.equation.primitive):
            left += each.maker.inputs
    return seen


KINDS = (MIXED,)
CHECKS = (mixed,)
