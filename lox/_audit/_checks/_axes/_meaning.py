"""Axes that mean one thing where another is meant."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lox._audit._audited import Audited
from lox._audit._expect import OPERATIONS, declared_around, is_declared
from lox._audit._findings import Finding, Held, Kind
from lox._audit._labels import has_rule, regrouped
from lox._audit._location import Location, call, called
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

MEETING = Kind(
    "LOX101",
    "error",
    "Two axes of different meaning meet",
    "Bring the axes into one order first, with jnp.transpose, jnp.moveaxis or x[:, None]; or mend the labels in axes=.",
    "Axes that meet element by element mean the same.",
    "The labels of axes= were followed through the operations to each place where labelled axes meet.",
)
CONTRACTED = Kind(
    "LOX102",
    "error",
    "A product sums over axes of different meaning",
    "Name the axes with jnp.einsum, and transpose the operand whose axis is another one.",
    "Products go along axes that mean the same.",
    "The labels of axes= were followed to the axes that each product sums over or pairs.",
)
RESHAPED = Kind(
    "LOX103",
    "error",
    "A reshape takes the elements of one axis for those of another",
    "Reshape to the axes in the order in which they are, then transpose: x.reshape(time, batch).swapaxes(0, 1).",
    "Reshapes keep the order of the axes that they merge or split.",
    "The labels and sizes of the axes before and after each reshape were compared.",
)
DECLARED = Kind(
    "LOX105",
    "error",
    "An operation goes over another axis than was declared",
    "Give the operation the axis that is meant, or bring that axis first for a scan: jnp.swapaxes(x, 0, 1).",
    "What is declared with lox.audit.expect is so.",
    "The labels of the axes that operations go over were compared with lox.audit.expect.",
)

_ALONGSIDE = primitives("concatenate", "stack")
"""What has a rule of its own for axes, and yet takes operands side by side."""


_TRANSPOSED = primitives("transpose")
ADDING = primitives("pad", "concatenate")


class Pairing(NamedTuple):
    """Two axes that an operation pairs: one of an operand, and one of another operand."""

    step: Step
    location: Location
    one: Value
    axis: int
    other: Value
    other_axis: int

    @property
    def labels(self) -> tuple[str | None, str | None]:
        """The meaning of both axes."""
        return self.one.fact.labels[self.axis], self.other.fact.labels[self.other_axis]

    @property
    def differs(self) -> bool:
        """Whether both have a meaning, and not the same."""
        one, other = self.labels
        return one is not None and other is not None and one != other


def meetings(audited: Audited) -> Iterator[Pairing]:
    """The labelled axes that operations on elements pair."""
    for step, location in audited.steps:
        if step.blocks or (has_rule(step.equation.primitive) and step.equation.primitive not in _ALONGSIDE):
            continue
        arrays = [value for value in step.inputs if value.shape]
        if len(arrays) < 2 or len({len(value.shape) for value in arrays}) > 1:
            continue
        joined = step.equation.params.get("dimension") if step.equation.primitive in primitives("concatenate") else None
        for axis in set(range(len(arrays[0].shape))) - {joined}:
            labelled = [value for value in arrays if value.fact.labels[axis] is not None]
            for other in labelled[1:]:
                if other.shape[axis] == labelled[0].shape[axis]:
                    yield Pairing(step, location, labelled[0], axis, other, axis)


def products(audited: Audited) -> Iterator[Pairing]:
    """The axes that products pair: those that they sum over, and those of a batch."""
    for step, location in audited.of("dot_general"):
        left, right = step.inputs[:2]
        for axes in step.equation.params["dimension_numbers"]:
            for a, b in zip(*axes, strict=True):
                yield Pairing(step, location, left, a, right, b)


def symmetric(audited: Audited) -> set[frozenset[str | None]]:
    """The pairs of labels of one set of things: of the axes of an array that meets its own transpose."""
    found = set[frozenset[str | None]]()
    for pairing in meetings(audited):
        one, other = (audited.origins.of(each, _TRANSPOSED) for each in (pairing.one, pairing.other))
        if pairing.differs and one is other:
            found.add(frozenset(pairing.labels))
    return found


def meeting(audited: Audited) -> Iterator[Finding | Held]:
    """LOX101: in an operation on elements, an axis of one operand meets another axis of the other."""
    one_set = audited.once(symmetric)
    for step, found in itertools.groupby(meetings(audited), lambda pairing: pairing.step):
        pairings = list(found)
        wrong = next((each for each in pairings if each.differs and frozenset(each.labels) not in one_set), None)
        if wrong is None:
            yield MEETING.fine(pairings[0].location)
            continue
        one, other = map(str, wrong.labels)
        yield MEETING.at(
            wrong.location,
            f"Axis {wrong.axis} of {wrong.one.text} is {one}, that of {wrong.other.text} is {other}, and "
            f"'{step.equation.primitive.name}' takes them element by element.",
            found=other,
            expected=one,
        )


def contracted(audited: Audited) -> Iterator[Finding | Held]:
    """LOX102: a product pairs an axis of one operand with another axis of the other."""
    for pairing in products(audited):
        one, other = pairing.labels
        if pairing.differs and frozenset(pairing.labels) not in audited.once(symmetric):
            over, _ = pairing.step.equation.params["dimension_numbers"]
            what = "sums over" if (pairing.axis, pairing.other_axis) in zip(*over, strict=True) else "goes along"
            yield CONTRACTED.at(
                pairing.location,
                f"A product of {pairing.one.text} and {pairing.other.text} {what} {one} of the first, which is axis "
                f"{pairing.axis}, and {other} of the second, which is axis {pairing.other_axis}.",
                found=str(other),
                expected=str(one),
            )
        elif one is not None and other is not None:
            yield CONTRACTED.fine(pairing.location)


def reshaped(audited: Audited) -> Iterator[Finding | Held]:
    """LOX103: a reshape exchanges the sizes of axes, and not their elements."""
    origins = audited.origins
    for step, location in audited.of("reshape"):
        maker = origins.of(step.inputs[0], frozenset()).maker
        if maker is not None and maker.equation.primitive in ADDING:
            continue  # What is longer by one is reshaped to be moved by one, as in relative attention.
        for labels, sizes, after in regrouped(step):
            new = [step.outputs[0].shape[axis] for axis in after]
            if len(labels) < 2 or not all(labels):
                continue
            places, axes = _places(new), _places(sizes)
            moved = [place for place, axis in enumerate(axes) if axis not in places and axis.size in new]
            if moved:
                text = " and ".join(map(str, labels))
                yield RESHAPED.at(
                    location,
                    f"The axes {text} of sizes {sizes} are reshaped to {new}: the axis of size {sizes[moved[0]]} in "
                    f"that is not {labels[moved[0]]}, but has elements of {text} in turn.",
                )
            elif len(new) == 1 or new == sizes:
                yield RESHAPED.fine(location)


class _Place(NamedTuple):
    """Where an axis is among others: how many elements there are of those before it, and of its own."""

    before: int
    size: int


def _places(sizes: Sequence[int]) -> list[_Place]:
    return [_Place(math.prod(sizes[:axis]), size) for axis, size in enumerate(sizes)]


def declared(audited: Audited) -> Iterator[Finding | Held]:
    """LOX105: an operation goes over another axis than `lox.audit.expect` declares."""
    for step, name, labels in declarations(audited):
        for label in gone_over(step):
            if label in labels:
                yield DECLARED.fine(audited.lines[step])
            else:
                said = " and ".join(sorted(labels))
                yield DECLARED.at(
                    audited.lines[step],
                    f"'{called(step.equation)}' goes over {label} here, and expect({name}=...) says {said}.",
                    found=label,
                    expected=said,
                )


def declarations(audited: Audited) -> Iterator[tuple[Step, str, frozenset[str]]]:
    """The operations that `lox.audit.expect` declares axes of, each with its name and the labels there."""
    if not any(is_declared(step.equation) for step, _ in audited.steps):
        return
    for step, expected in declared_around(audited.program):
        yield from ((step, name, labels) for name, labels in expected.items() if _is(name, step))


def _is(name: str, step: Step) -> bool:
    """Whether a step comes from an operation of this name."""
    operation = OPERATIONS.get(name)
    if operation is None:
        return False
    return step.equation.primitive in primitives(*operation.primitives) and called(step.equation) in operation.functions


def gone_over(step: Step) -> list[str]:
    """The labels, as far as there are any, of the axes that a reduction, a loop, a sort or an index goes over."""
    params, primitive = step.equation.params, step.equation.primitive
    if primitive in primitives("scan"):
        (region,) = step.regions
        scanned: list[tuple[Value, tuple[int, ...]]] = [
            (each.outside, (0,)) for each in region.inputs if each.role == "each"
        ]
    elif primitive in primitives(*OPERATIONS["index"].primitives):
        scanned = [(step.inputs[0], _indexed(step))]
    else:
        axes = params["axes"] if "axes" in params else (params.get("axis", params.get("dimension")),)
        scanned = [(step.inputs[0], axes)]
    found = (value.fact.labels[axis] for value, axes in scanned for axis in axes)
    return list(dict.fromkeys(str(label) for label in found if label is not None))


def _indexed(step: Step) -> tuple[int, ...]:
    """The axes of an array of which a step takes the element at one index."""
    shape, params = step.inputs[0].shape, step.equation.params
    numbers = params.get("dimension_numbers")
    if numbers is not None and len(step.inputs[1].shape) > 1 + len(numbers.start_indices_batching_dims):
        return ()  # At several indices.
    taken = params["slice_sizes"] if "slice_sizes" in params else step.outputs[0].shape
    looked = range(len(shape)) if numbers is None else numbers.start_index_map
    return tuple(axis for axis in looked if taken[axis] == 1 != shape[axis])


def is_made_for(value: Value, step: Step) -> bool:
    """Whether an operand of a step got axes in the very call that the step comes from."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in primitives("broadcast_in_dim", "reshape"):
        return False
    return len(value.shape) > len(maker.inputs[0].shape) and call(maker.equation) == call(step.equation)


KINDS = (MEETING, CONTRACTED, RESHAPED, DECLARED)
CHECKS = (meeting, contracted, reshaped, declared)
