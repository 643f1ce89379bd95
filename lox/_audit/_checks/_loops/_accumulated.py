"""Means over the iterations of a loop: of means whose counts differ, and of losses whose gradients are summed."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._gradients import gradients_of, scales
from lox._audit._location import Location, transformations
from lox._audit._loops import Scan, reached, scans
from lox._audit._origins import LAID_OUT, Origins
from lox._audit._program import Block, Step, Value, blocks_in, is_call
from lox._audit._rules import primitives

MEANS = Kind(
    "LOX214",
    "warning",
    "A mean over iterations of masked means, whose counts differ",
    "Add up the sums and the counts, and divide once after the loop: total / count.",
    "What iterations add up has the same weight in each.",
    "Sums over iterations that are divided by their number were followed back to quotients by a count.",
)

SUMMED = Kind(
    "LOX216",
    "warning",
    "The loss is averaged over micro-batches, and its gradients are summed",
    "Average both: divide what the loop has added up by the number of its iterations, as with "
    "jax.tree.map(lambda g: g / n, grads). If the gradient of a sum is meant, add up the losses as well.",
    "Gradients that a loop adds up are averaged where their losses are.",
    "Sums over iterations of what a backward pass makes were followed to what divides them.",
)

_SAME = LAID_OUT | primitives("convert_element_type")
_MOST = 4
"""Through how many scalings of a sum is looked."""
_GUARDS = _SAME | primitives("max", "add", "clamp")


def accumulated(audited: Audited) -> Iterator[Finding | Held]:
    """LOX214: a scan adds up masked means, or their gradients, that are divided by the number of iterations after."""
    for scan, location in scans(audited):
        averaged = [new for outside, new in _added(scan, audited) if _is_averaged(outside, scan, audited)]
        counts = dict(_counts(scan.body, scan, audited)) if averaged else {}
        for count, where in counts.items():
            if not reached(scan.body, [count]).isdisjoint(averaged):
                yield MEANS.at(
                    where,
                    f"A mean of what a mask keeps is divided by a count of each iteration, and the "
                    f"{scan.step.equation.params['length']} means of all iterations by their number: what is in an "
                    "iteration with few elements weighs more.",
                )
                break
        else:
            if averaged:
                yield MEANS.fine(location)


def summed(audited: Audited) -> Iterator[Finding | Held]:
    """LOX216: a scan adds up gradients, and its losses are averaged over the iterations."""
    for scan, location in scans(audited):
        length = scan.step.equation.params["length"]
        added = [(total, step) for total, new in _added(scan, audited) if (step := _maker(new, audited)) is not None]
        has_arrays = length > 1 and any(total.shape for total, _ in added)
        gradients = set(gradients_of(scan.body, {})) if has_arrays else set()
        sums = [step for total, step in added if total.shape and not gradients.isdisjoint(step.inputs)]
        if not sums or not (_adds_losses(added, scan, audited) or _stacks_losses(scan, audited)):
            continue
        inside = set(blocks_in(scan.body))
        outside = (step for block in blocks_in(audited.program) if block not in inside for step in block.steps)
        if any(scales(step, {length}) for step in outside):
            yield SUMMED.fine(location)
        else:
            yield SUMMED.at(
                audited.lines[sums[0]],
                f"The gradients of {length} micro-batches are added up, and their losses are averaged: the gradient "
                "grows with their number.",
            )


def _maker(value: Value, audited: Audited) -> Step | None:
    return audited.origins.of(value, _SAME).maker


def _adds_losses(added: list[tuple[Value, Step]], scan: Scan, audited: Audited) -> bool:
    """Say whether a number that is added up over iterations is a loss, and is divided by how many there are."""
    return any(
        not total.shape and any(_is_loss(each, audited) for each in step.inputs) and _is_averaged(total, scan, audited)
        for total, step in added
    )


def _stacks_losses(scan: Scan, audited: Audited) -> bool:
    """Say whether iterations put out losses whose mean is taken."""
    stacks = [each.outside for each in scan.step.regions[0].outputs if each.role == "stacked"]
    losses = [stack for stack, inside in zip(stacks, scan.ys, strict=True) if _is_loss(inside, audited)]
    totals = [step for loss in losses for step in audited.users.of(loss)]
    means = primitives("reduce_sum")
    return any(_is_averaged(step.outputs[0], scan, audited) for step in totals if step.equation.primitive in means)


def _is_loss(value: Value, audited: Audited) -> bool:
    """Say whether a number comes of the forward pass of what is differentiated."""
    maker = _maker(value, audited)
    names = transformations(maker.equation) if maker is not None and not value.shape else ()
    return "jvp" in names and "transpose" not in names


def _added(scan: Scan, audited: Audited) -> Iterator[tuple[Value, Value]]:
    """The sums of a loop that begin at zero: the result of the loop, and the value that the body returns."""
    results = {crossed.inside: crossed.outside for crossed in scan.step.regions[0].outputs}
    for outside, inside, new in scan.carry:
        maker = audited.origins.of(new, _SAME).maker
        if outside.number == 0 and maker is not None and maker.equation.primitive in primitives("add", "add_any"):
            if any(audited.origins.of(each, _SAME) is inside for each in maker.inputs) and new in results:
                yield results[new], new


def _is_averaged(value: Value, scan: Scan, audited: Audited) -> bool:
    """Say whether a sum over iterations is divided by how many there are."""
    length, left = scan.step.equation.params["length"], [value]
    for each in left:
        for step in audited.users.of(each):
            if step.equation.primitive in primitives("div") and step.inputs[0] is not step.inputs[1]:
                number = audited.origins.of(step.inputs[1], _SAME)
                if number.number == length > 1 or number in _iterations(scan, audited):
                    return True
            numbers = [known for one in step.inputs if (known := one.number) is not None]
            if step.equation.primitive in primitives("mul") and numbers:
                if length > 1 and abs(numbers[0] * length - 1) < 1e-6:
                    return True
                left += [result for result in step.outputs if len(left) < _MOST]
    return False


def _iterations(scan: Scan, audited: Audited) -> Iterator[Value]:
    """The results of a scan that count its iterations."""
    for outside, new in _added(scan, audited):
        maker = audited.origins.of(new, _SAME).maker
        if maker is not None and any(each.number == 1 for each in maker.inputs):
            yield outside


def _counts(body: Block, scan: Scan, audited: Audited) -> Iterator[tuple[Value, Location]]:
    """The divisors of sums in a body that are sums over several axes of scanned arrays."""
    scanned, others = [inside for _, inside in scan.xs], {inside for _, inside in scan.consts}
    others |= {inside for _, inside, _ in scan.carry}
    of_data = reached(body, scanned) - reached(body, others)
    left, seen = [body], set[Block]()
    while left:
        block = left.pop()
        seen.add(block)
        for step in block.steps:
            if is_call(step):
                left += [each for each in step.blocks if each not in seen]
            elif step.equation.primitive in primitives("div") and "transpose" not in transformations(step.equation):
                total, count = (_sum(each, audited.origins) for each in step.inputs)
                if total is None or count is None or total is count or len(count.inputs[0].shape) < 2:
                    continue
                if audited.origins.of(count.outputs[0], frozenset()) in of_data:
                    yield count.outputs[0], audited.lines[step]


def _sum(value: Value, origins: Origins) -> Step | None:
    """The sum of all elements of an array that a value is, or is not below a number for."""
    while True:
        value = origins.of(value, _SAME)
        maker = value.maker
        if maker is None or maker.equation.primitive not in _GUARDS | primitives("reduce_sum"):
            return None
        if maker.equation.primitive in primitives("reduce_sum"):
            return maker if not maker.outputs[0].shape else None
        arrays = [each for each in maker.inputs if each.number is None]
        if len(arrays) != 1:
            return None
        (value,) = arrays


KINDS = (MEANS, SUMMED)
CHECKS = (accumulated, summed)
