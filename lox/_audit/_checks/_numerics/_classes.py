"""Probabilities of classes, of which a label chooses one in each row of a batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from lox._audit._audited import Audited
from lox._audit._checks._autodiff._stopped import SAME
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._integers import is_integer
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._checks._numerics._squashes import Squash, squashes
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

CLASSES = Kind(
    "LOX821",
    "warning",
    "A softmax over the rows of a batch, where a label chooses a class in each row",
    "Give the softmax the axis of the classes: axis=-1 for logits of shape (batch, classes).",
    "Labels choose among probabilities that add up to one.",
    "The axis of each softmax was compared with the axis along which labels choose from its result.",
)

_BATCH = re.compile(r"b|batch(_?size)?|examples?", re.IGNORECASE)
_SAME = primitives("convert_element_type")
_ELEMENTWISE = _SAME | primitives("log", "neg", "exp", "add", "sub", "mul", "div", "max", "min", "clamp")
_MOST = 100
_MANY = 1000


class Choice(NamedTuple):
    """A choice of one element in each row.

    Attributes:
        array: What it chooses from.
        rows: The axes along which each row has a label of its own.
        axis: The axis along which a label chooses.
        labels: The labels.
    """

    array: Value
    rows: frozenset[int]
    axis: int
    labels: Value


def classes(audited: Audited) -> Iterator[Finding | Held]:
    """LOX821: a softmax goes over the rows of a batch, and not over the classes."""
    known, origins = audited.once(squashes), audited.origins
    if not any(squash.name in ("softmax", "log_softmax") for squash in known.values()):
        return
    yield from _over_batch(audited)
    for step, location in audited.of("mul", "gather"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        for choice in choices(step, origins):
            squash, axis = squash_of(choice.array, choice.axis, known, origins)
            if squash is None or axis is None or not _is_data(choice.labels, origins):
                continue
            if shifted := _unshifted(audited, squash, choice.labels):
                yield SAME.at(location, shifted)
            rows = {squash_of(choice.array, row, known, origins)[1] for row in choice.rows}
            if axis in squash.axes:
                yield CLASSES.fine(squash.location)
            elif set(squash.axes) <= rows and _is_of_parameters(squash.logits, axis, origins):
                yield CLASSES.at(
                    squash.location,
                    f"The {squash.name} of shape {squash.logits.shape} goes over axis {squash.axes[0]}, along which "
                    f"each row has a label that chooses along axis {axis}: the classes of a row do not add up to one.",
                )


def _unshifted(audited: Audited, squash: Squash, labels: Value) -> str:
    """What is wrong with labels that are the tokens at the places of the logits, where both lack the last one."""
    own, cut = _without_last(labels, audited.origins), _without_last(squash.logits, audited.origins)
    if own is None or cut is None or own[1] != cut[1]:
        return ""
    left, seen = [cut[0]], set[Value]()
    while left and len(seen) < _MANY:
        value = audited.origins.of(left.pop(), FLOWS, loops=True)
        if value not in seen:
            seen.add(value)
            left += value.maker.inputs if value.maker is not None else ()
    if own[0] not in seen:
        return ""
    return (
        f"The labels are all of {own[0].called} but the last along axis {own[1]}, and the logits all but the last too: "
        "what is predicted at a place is what is given there, and not what follows."
    )


def _without_last(value: Value, origins: Origins) -> tuple[Value, int] | None:
    """The array that a value is without its last elements along an axis, and the axis."""
    value = origins.of(value, FLOWS)
    choice = made_by(value, primitives("select_n"))  # Indices below zero are counted from the end.
    maker = made_by(origins.of(choice.inputs[1], FLOWS) if choice is not None else value, primitives("slice"))
    if maker is None:
        return None
    (array,), (cut,) = maker.inputs, maker.outputs
    pairs = enumerate(zip(array.shape, cut.shape, strict=True))
    axes = [axis for axis, (old, new) in pairs if new != old]
    is_first = len(axes) == 1 and cut.shape[axes[0]] == array.shape[axes[0]] - 1
    if not is_first or any(maker.equation.params["start_indices"]) or maker.equation.params["strides"]:
        return None
    return origins.of(array, FLOWS), axes[0]


def _over_batch(audited: Audited) -> Iterator[Finding]:
    """Each softmax over an axis that is called the batch, where no other axis is."""
    for squash in audited.once(squashes).values():
        labels = squash.logits.fact.labels
        over = [labels[axis] for axis in squash.axes] if squash.name in ("softmax", "log_softmax") else []
        is_batch = len(over) == 1 and isinstance(over[0], str) and _BATCH.fullmatch(over[0]) is not None
        others = [size for axis, size in enumerate(squash.logits.shape) if axis not in squash.axes and size > 1]
        if is_batch and others and labels.count(over[0]) == 1 and is_users(squash.location.of_user.file):
            yield CLASSES.at(
                squash.location,
                f"The {squash.name} of shape {squash.logits.shape} goes over its axis {squash.axes[0]}: {over[0]}.",
            )


def choices(step: Step, origins: Origins) -> Iterator[Choice]:
    """The choices by labels that a step makes: with indices, or as a product with one-hot vectors."""
    if step.equation.primitive in primitives("gather"):
        yield from _by_index(step, origins)
        return
    for array, flags in (step.inputs, step.inputs[::-1]):
        equal = made_by(origins.of(flags, _SAME), primitives("eq"))
        for labels, places in (equal.inputs, equal.inputs[::-1]) if equal is not None else ():
            axes = [laid_out(places, axis, origins) for axis in range(len(places.shape))]
            counted = [axis for axis, (value, along) in enumerate(axes) if _counts(value, along)]
            rows = {axis for axis in range(len(labels.shape)) if laid_out(labels, axis, origins)[1] is not None}
            rows = {axis for axis in rows if labels.shape[axis] > 1}
            if len(counted) == 1 and counted[0] not in rows and array.shape == flags.shape:
                yield Choice(array, frozenset(rows), counted[0], labels)


def _by_index(step: Step, origins: Origins) -> Iterator[Choice]:
    numbers, (array, indices) = step.equation.params["dimension_numbers"], step.inputs[:2]
    axes, rows = numbers.start_index_map, {*numbers.operand_batching_dims}
    sizes = step.equation.params["slice_sizes"]
    if any(sizes[axis] != 1 for axis in axes):
        return
    columns = [indices]
    if len(axes) > 1:
        pair = made_by(origins.of(indices, _SAME), primitives("concatenate"))
        columns = list(pair.inputs) if pair is not None and len(pair.inputs) == len(axes) else []
    labels = {}
    for axis, column in zip(axes, columns, strict=False):
        index = origins.index(column)
        if made_by(index, primitives("iota")):
            rows.add(axis)
        else:
            labels[axis] = index
    if len(labels) == 1 and rows:
        ((axis, label),) = labels.items()
        yield Choice(array, frozenset(map(int, rows)), int(axis), label)


def _counts(value: Value, axis: int | None) -> bool:
    counter = made_by(value, primitives("iota"))
    return counter is not None and axis == counter.equation.params["dimension"]


def squash_of(
    value: Value, axis: int | None, known: dict[Step, Squash], origins: Origins
) -> tuple[Squash | None, int | None]:
    """The softmax that a value is computed from element by element, and an axis of the value there."""
    for _ in range(_MOST):
        value, axis = laid_out(value, axis, origins)
        maker = value.maker
        if maker is None or axis is None or maker.equation.primitive not in _ELEMENTWISE:
            break
        normalizer = origins.of(maker.inputs[-1], FLOWS).maker
        squash = known.get(maker) or known.get(normalizer)  # type: ignore[arg-type]
        if squash is not None and squash.name in ("softmax", "log_softmax") and len(squash.axes) == 1:
            return squash, axis
        arrays = [each for each in maker.inputs if each.number is None]
        if len(arrays) != 1 or arrays[0].shape != value.shape:
            break
        value = arrays[0]
    return None, None


def _is_data(labels: Value, origins: Origins) -> bool:
    """Say whether an input of the program has a part in labels, rather than only what counts."""
    left, seen = [labels], set[Value]()
    while left and len(seen) < _MOST:
        value = origins.of(left.pop(), FLOWS, loops=True)
        if value in seen:
            continue
        seen.add(value)
        if value.maker is None and value.number is None and value.constant is None:
            return is_integer(labels)
        left += value.maker.inputs if value.maker is not None else ()
    return False


def _is_of_parameters(logits: Value, axis: int, origins: Origins) -> bool:
    """Say whether the places along an axis of logits are those of the last axis of an array that comes from outside.

    Of scores between two sets of vectors, which have a softmax over either, it would be another axis.
    """
    left: list[tuple[Value, int | None]] = [(logits, axis)]
    for _ in range(_MOST):
        if not left:
            break
        value, along = laid_out(*left.pop(), origins)
        maker = value.maker
        if maker is None or along is None:
            continue
        if maker.equation.primitive in primitives("dot_general"):
            return _is_column(maker, along, origins)
        if maker.equation.primitive in _ELEMENTWISE | primitives("select_n"):
            left += [(each, along) for each in maker.inputs if each.shape == value.shape and each.number is None]
    return False


def _is_column(product: Step, axis: int, origins: Origins) -> bool:
    """Say whether an axis of a product is the last one of its second operand, which comes from outside as it is."""
    weights = product.inputs[1]
    (_, contracted), (_, batch) = product.equation.params["dimension_numbers"]
    is_last = axis == len(product.outputs[0].shape) - 1
    is_free = len(weights.shape) - 1 not in (*contracted, *batch)
    return is_last and is_free and origins.of(weights, _SAME, loops=True).maker is None


KINDS = (CLASSES,)
CHECKS = (classes,)
