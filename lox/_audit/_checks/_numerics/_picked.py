"""Probabilities that are normalized over one axis, and of which another axis is taken for the classes."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from lox._audit._audited import Audited
from lox._audit._checks._lanes._vmap import counted
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._checks._numerics._squashes import Squash, squashes
from lox._audit._checks._numerics._weights import is_of_data
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import called, is_users, transformations
from lox._audit._origins import Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

PICKED = Kind(
    "LOX818",
    "warning",
    "Probabilities are normalized over one axis, and classes are along another",
    "Give the softmax the axis of the classes, such as jax.nn.log_softmax(logits, axis=-1).",
    "Classes are picked along the axis that a softmax normalizes over.",
    "The axis of each softmax was followed to lookups, one-hot products and entropies.",
)

_UNARY = primitives("neg", "log", "convert_element_type", "copy", "exp")
_WITH_NUMBER = primitives("add", "mul", "max", "clamp", "div", "sub")
_SUMS = frozenset({"softmax", "log_softmax"})


class _Probabilities:
    """Finds out over which axis probabilities, or their logarithms, are normalized."""

    def __init__(self, audited: Audited) -> None:
        self._origins = audited.origins
        self._known = {
            step: squash
            for step, squash in audited.once(squashes).items()
            if squash.name in _SUMS and len(squash.axes) == 1 and is_users(squash.location.of_user.file)
        }

    def __bool__(self) -> bool:
        return bool(self._known)

    def of(self, value: Value, axis: int | None) -> tuple[Squash, int | None] | None:
        """The softmax that a value comes out of, and the axis of its logits that an axis of the value is."""
        while True:
            value, axis = laid_out(value, axis, self._origins)
            maker = value.maker
            if maker is None:
                return None
            squash = self._known.get(maker) or self._normalizer(maker)
            if squash is not None:
                return squash, axis
            arrays = [each for each in maker.inputs if each.number is None]
            if maker.equation.primitive in _UNARY or (maker.equation.primitive in _WITH_NUMBER and len(arrays) == 1):
                (value,) = arrays
            else:
                return None

    def _normalizer(self, maker: Step) -> Squash | None:
        """The sum of exponentials whose logarithm a step subtracts from logits."""
        waiting = [maker.inputs[1]] if maker.equation.primitive in primitives("sub") else []
        while waiting:
            inner = laid_out(waiting.pop(), None, self._origins)[0].maker
            squash = self._known.get(inner) if inner is not None else None
            if squash is not None and squash.name == "log_softmax":
                return squash if squash.logits.shape == maker.outputs[0].shape else None
            if inner is not None and inner.equation.primitive in primitives("add", "stop_gradient"):
                waiting += inner.inputs[:2]
        return None


def looked_up(audited: Audited) -> Iterator[Finding | Held]:
    """LOX818: labels choose elements along another axis than that of the softmax."""
    known = _Probabilities(audited)
    for step, location in audited.of("gather") if known else ():
        if "transpose" in transformations(step.equation):
            continue
        picked = _picked(step)
        found = known.of(step.inputs[0], picked[0]) if picked is not None else None
        if picked is None or found is None:
            continue
        (squash, axis), (_, beside) = found, picked
        if squash.axes == (axis,):
            yield PICKED.fine(location)
        elif is_of_data(step.inputs[1], audited.origins, of_arguments=True):
            others = [known.of(step.inputs[0], each) for each in beside]
            if any(each is not None and each[0].axes == (each[1],) for each in others):
                yield PICKED.at(squash.location, _text(squash, "a label picks", axis))


def _picked(step: Step) -> tuple[int, list[int]] | None:
    """The axis along which indices choose one element, and those that they go along element by element."""
    numbers, (array, indices) = step.equation.params["dimension_numbers"], step.inputs[:2]
    if not isinstance(numbers, jax.lax.GatherDimensionNumbers):
        return None
    beside, indexed = list(numbers.operand_batching_dims), list(numbers.start_index_map)
    maker = indices.maker
    if maker is not None and maker.equation.primitive in primitives("concatenate"):
        columns = maker.inputs if len(maker.inputs) == len(indexed) else ()
    else:
        columns = (indices,) if len(indexed) == 1 else ()
    for axis, column in zip(indexed, columns, strict=False):
        place = counted(column)
        if place is not None and column.shape[place] == array.shape[axis]:
            beside.append(axis)
    chosen = [axis for axis in indexed if axis not in beside and step.equation.params["slice_sizes"][axis] == 1]
    return (chosen[0], beside) if len(chosen) == 1 and columns else None


def multiplied(audited: Audited) -> Iterator[Finding | Held]:
    """LOX818: one-hot labels, or an entropy, go along another axis than that of the softmax."""
    known, origins = _Probabilities(audited), audited.origins
    for step, location in audited.of("mul") if known else ():
        if "transpose" in transformations(step.equation) or len(step.outputs[0].shape) < 2:
            continue
        for one, other in (step.inputs, step.inputs[::-1]):
            axis = _of_classes(other, origins)
            found = known.of(one, axis) if axis is not None else None
            if found is not None and found[1] is not None:
                squash, place = found
                if squash.axes == (place,):
                    yield PICKED.fine(location)
                else:
                    yield PICKED.at(squash.location, _text(squash, "one-hot labels are", place))
        yield from _entropy(step, known, audited)


def _of_classes(value: Value, origins: Origins) -> int | None:
    """The axis along which labels are one-hot, if they are."""
    for axis, size in enumerate(value.shape):
        flags, place = value, axis
        while True:
            flags, at = laid_out(flags, place, origins)
            if at is None or flags.maker is None or flags.maker.equation.primitive not in _UNARY:
                break
            (flags,), place = flags.maker.inputs, at
        if at is None or flags.maker is None or flags.maker.equation.primitive not in primitives("eq") or size == 1:
            continue
        for one, other in (flags.maker.inputs, flags.maker.inputs[::-1]):
            numbers, along = laid_out(one, at, origins)
            made = numbers.maker
            if made is None or made.equation.primitive not in primitives("iota"):
                continue
            is_classes = made.equation.params["dimension"] == along
            if is_classes and is_of_data(other, origins, of_arguments=True):  # Not a range, for pairs in order.
                return axis
    return None


def _entropy(step: Step, known: _Probabilities, audited: Audited) -> Iterator[Finding]:
    """Products of probabilities and logarithms that are summed over another axis, and averaged over their own."""
    left = [step.outputs[0]]
    for value in left:
        for user in audited.users.of(value):
            if user.equation.primitive in primitives("neg") and len(left) < 4:
                left.append(user.outputs[0])
            elif user.equation.primitive in primitives("reduce_sum") and called(user.equation) == "sum":
                axes = user.equation.params["axes"]
                if len(axes) != 1 or len(value.shape) != 2 or not _is_averaged(user.outputs[0], audited):
                    continue
                axis = axes[0]
                both = [known.of(each, axis) for each in step.inputs]
                squashes_of = [each[0] for each in both if each is not None and each[1] not in (None, each[0].axes[0])]
                if len(squashes_of) == 2 and both[0] is not None:
                    yield PICKED.at(squashes_of[0].location, _text(squashes_of[0], "an entropy is summed", both[0][1]))


def _is_averaged(value: Value, audited: Audited) -> bool:
    left = [value]
    for each in left:
        for user in audited.users.of(each):
            if user.equation.primitive in primitives("reduce_sum"):
                return called(user.equation) == "mean"
            if user.equation.primitive in primitives("neg", "mul") and len(left) < 4:
                left.append(user.outputs[0])
    return False


def _text(squash: Squash, does: str, axis: int | None) -> str:
    return (
        f"Logits of shape {squash.logits.shape} are normalized over axis {squash.axes[0]}, and {does} along axis "
        f"{axis}: the probabilities of that axis do not add up to one."
    )


KINDS = (PICKED,)
CHECKS = (looked_up, multiplied)
