"""What axes mean after an operation, from what they meant before."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lox._audit._facts import Labels
from lox._audit._label import label_p
from lox._audit._program import Step
from lox._audit._rules import Rules, primitives


@dataclasses.dataclass(frozen=True)
class Merged:
    """The meaning of an axis that a reshape made of several."""

    parts: tuple[Any, ...]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return "*".join("others" if part is None else str(part) for part in self.parts)


Rule = Callable[[Step], Sequence[Labels]]
_rule = Rules[Rule]()


def labels_of(step: Step) -> Sequence[Labels]:
    """The labels of what comes out of a step; of one that has no rule, those of what is as it is shaped."""
    if step.equation.primitive is not label_p and not any(any(value.fact.labels) for value in step.inputs):
        return [(None,) * len(shape) for shape in _shapes(step)]
    return (_rule[step.equation.primitive] or _elementwise)(step)


def has_rule(primitive: Any) -> bool:
    """Whether an operation does something else than to take elements at the same place."""
    return _rule[primitive] is not None


def _in(step: Step, place: int = 0) -> tuple[tuple[int, ...], Labels]:
    value = step.inputs[place]
    return value.shape, value.fact.labels


def _shapes(step: Step) -> list[tuple[int, ...]]:
    return [tuple(getattr(var.aval, "shape", ())) for var in step.equation.outvars]


def _elementwise(step: Step) -> Sequence[Labels]:
    return [_of_shape(step, shape) for shape in _shapes(step)]


def _of_shape(step: Step, shape: tuple[int, ...]) -> Labels:
    found: list[Any] = [None] * len(shape)
    for value in step.inputs:
        own = value.shape
        if not own:
            continue
        if len(own) != len(shape) or any(size not in (1, out) for size, out in zip(own, shape, strict=True)):
            return (None,) * len(shape)
        for axis, label in enumerate(value.fact.labels):
            if own[axis] == shape[axis]:
                found[axis] = found[axis] or label
    return tuple(found)


@_rule("broadcast_in_dim")
def _broadcast(step: Step) -> Sequence[Labels]:
    (shape,), (own, labels) = _shapes(step), _in(step)
    found: list[Any] = [None] * len(shape)
    for axis, place in enumerate(step.equation.params["broadcast_dimensions"]):
        found[place] = labels[axis] if own[axis] == shape[place] else None
    return [tuple(found)]


@_rule("transpose")
def _transpose(step: Step) -> Sequence[Labels]:
    _, labels = _in(step)
    return [tuple(labels[axis] for axis in step.equation.params["permutation"])]


@_rule("squeeze")
def _squeeze(step: Step) -> Sequence[Labels]:
    return [_without(_in(step)[1], step.equation.params["dimensions"])]


def _reduce(name: str) -> Rule:
    def rule(step: Step) -> Sequence[Labels]:
        outputs = len(step.equation.outvars)
        return [_without(_in(step, place)[1], step.equation.params[name]) for place in range(outputs)]

    return rule


_rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor")(_reduce("axes"))
_rule("argmax", "argmin")(_reduce("axes"))
_rule("psum", "pmax", "pmin")(_reduce("axes"))  # Under vmap the axis with a name is one of the array.
_rule("reduce")(_reduce("dimensions"))


def _without(labels: Labels, axes: Sequence[int]) -> Labels:
    return tuple(label for axis, label in enumerate(labels) if axis not in axes)


@_rule("reshape")
def _reshape(step: Step) -> Sequence[Labels]:
    (shape,), (own, labels) = _shapes(step), _in(step)
    found: list[Any] = [None] * len(shape)
    repeated = _repeated(step)
    for (before, _), (parts, sizes, after) in zip(groups(own, shape), regrouped(step), strict=True):
        kept = [labels[axis] for axis in before if axis not in repeated]
        if [shape[axis] for axis in after] == sizes:
            for axis, label in zip(after, parts, strict=True):
                found[axis] = label
        elif len(after) == 1 and all(parts):
            found[after[0]] = Merged(tuple(parts), tuple(sizes))
        elif len(after) == len(kept) == 1:
            found[after[0]] = kept[0]
    return [tuple(found)]


def _repeated(step: Step) -> set[int]:
    """The axes of the operand of a step along which elements are repeated, as `jnp.repeat` and `jnp.tile` do it."""
    value = step.inputs[0]
    if value.maker is None or value.maker.equation.primitive not in primitives("broadcast_in_dim"):
        return set()
    kept = value.maker.equation.params["broadcast_dimensions"]
    before = dict(zip(kept, value.maker.inputs[0].shape, strict=True))
    return {axis for axis, size in enumerate(value.shape) if before.get(axis) != size}


def regrouped(step: Step) -> Iterator[tuple[list[Any], list[int], list[int]]]:
    """What a reshape makes of what: the labels and sizes of some axes, and the axes that take their elements.

    An axis that was made of several stands for these.
    """
    (shape,), (own, labels) = _shapes(step), _in(step)
    for before, after in groups(own, shape):
        parts, sizes = [labels[axis] for axis in before], [own[axis] for axis in before]
        if len(before) == 1 and isinstance(parts[0], Merged):
            parts, sizes = list(parts[0].parts), list(parts[0].sizes)
        yield parts, sizes, after


def groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The least groups of axes of two shapes with as many elements, of which one becomes the other in a reshape.

    Axes of length one are in no group.

    >>> groups((6, 4, 1, 5), (2, 3, 20))
    [([0], [0, 1]), ([1, 3], [2])]
    """
    old = [axis for axis, size in enumerate(before) if size != 1]
    new = [axis for axis, size in enumerate(after) if size != 1]
    if 0 in before:
        return []
    found = []
    while old and new:
        first, second = [old.pop(0)], [new.pop(0)]
        while (left := math.prod(before[axis] for axis in first)) != (
            right := math.prod(after[axis] for axis in second)
        ):
            if left < right:
                first.append(old.pop(0))
            else:
                second.append(new.pop(0))
        found.append((first, second))
    return found


@_rule("dot_general")
def _dot(step: Step) -> Sequence[Labels]:
    (contracted, batched) = step.equation.params["dimension_numbers"]
    (_, left), (_, right) = _in(step, 0), _in(step, 1)
    batch = [left[a] or right[b] for a, b in zip(*batched, strict=True)]
    return [
        (
            *batch,
            *_without(left, (*contracted[0], *batched[0])),
            *_without(right, (*contracted[1], *batched[1])),
        )
    ]


@_rule("conv_general_dilated")
def _conv(step: Step) -> Sequence[Labels]:
    numbers = step.equation.params["dimension_numbers"]
    (_, image), (_, kernel) = _in(step, 0), _in(step, 1)
    found: list[Any] = [None] * len(image)
    for place, axis in enumerate(numbers.out_spec):  # (batch, feature, *spatial) of each
        found[axis] = kernel[numbers.rhs_spec[0]] if place == 1 else image[numbers.lhs_spec[place]]
    return [tuple(found)]


@_rule("slice", "dynamic_slice", "dynamic_update_slice", "pad", "rev", "sharding_constraint")
@_rule("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")
@_rule("split", "top_k", "tile")
def _of_first(step: Step) -> Sequence[Labels]:
    return [_in(step)[1] for _ in step.equation.outvars]


def _said(step: Step) -> Sequence[Labels]:
    pairs = zip(step.equation.params["axes"], _in(step)[1], strict=True)
    return [tuple(known if said is None else said for said, known in pairs)]


_rule.of[label_p] = _said


@_rule("random_split", "random_bits", "random_unwrap")
def _of_keys(step: Step) -> Sequence[Labels]:
    (shape,), (_, labels) = _shapes(step), _in(step)
    return [(*labels, *[None] * (len(shape) - len(labels)))]


@_rule("random_wrap")
def _wrapped(step: Step) -> Sequence[Labels]:
    return [_in(step)[1][: len(step.equation.outvars[0].aval.shape)]]


@_rule("concatenate")
def _concatenate(step: Step) -> Sequence[Labels]:
    axes = zip(*(value.fact.labels for value in step.inputs), strict=True)
    found = [[label for label in axis if label is not None] for axis in axes]
    joined = step.equation.params.get("dimension")
    if joined is not None and len(set(found[joined])) > 1:  # Such as features of one kind and of another.
        found[joined] = []
    return [tuple(next(iter(labels), None) for labels in found)]


@_rule("stack")
def _stack(step: Step) -> Sequence[Labels]:
    ((*labels,),) = _concatenate(step)
    labels.insert(step.equation.params["axis"], None)
    return [tuple(labels)]


@_rule("gather")
def _gather(step: Step) -> Sequence[Labels]:
    (shape,), (own, labels), (_, places) = _shapes(step), _in(step, 0), _in(step, 1)
    params = step.equation.params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    found: list[Any] = [None] * len(shape)
    taken = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(len(own)) if axis not in taken]
    for axis, place in zip(kept, numbers.offset_dims, strict=True):
        found[place] = labels[axis] if sizes[axis] == own[axis] else None
    others = [place for place in range(len(shape)) if place not in numbers.offset_dims]
    for place, label in zip(others, places[:-1], strict=True):  # The last axis of the indices is the index.
        found[place] = label
    batched = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for axis, index in batched:
        found[others[index]] = found[others[index]] or labels[axis]
    return [tuple(found)]


@_rule("cholesky", "eig", "eigh", "fft", "lu", "qr", "svd", "rng_bit_generator")
def _unknown(step: Step) -> Sequence[Labels]:
    return [(None,) * len(shape) for shape in _shapes(step)]
