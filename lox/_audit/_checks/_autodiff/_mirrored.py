"""Parts of a loss that are images of each other, of which one stops the gradient of a side and the other does not."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._alike import Computations
from lox._audit._attained import is_constant, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._way import Way, is_asked, text_of
from lox._audit._dependence import Node, Place, upstream
from lox._audit._findings import Finding, Kind
from lox._audit._rules import primitives

ONE_SIDED = Kind(
    "LOX624",
    "warning",
    "Of two like parts of a loss, one stops the gradient of a side, and the other does not",
    "Stop the gradient in both, as a loss of two views does: compare(predict(a), stop_gradient(b)) + "
    "compare(predict(b), stop_gradient(a)).",
)
_STOP = primitives("stop_gradient")
_MEETING = ("mul", "sub", "dot_general", "div")


def one_sided(audited: Audited) -> Iterator[Finding]:
    """LOX624: two values meet as two others do, and only there is the gradient of one of them stopped."""
    if not is_asked(audited) or not audited.has("stop_gradient"):
        return
    way = audited.once(Way)
    meetings = [place for place in way.of(*_MEETING) if way.touched.issuperset(map(resolved, place.inputs))]
    stopped = [place for place in meetings if _is_stopped(place, way)]
    computed = _without_stops(way)
    images = {computed[place.outputs[0]]: place for place in stopped}
    for place in meetings if stopped else ():
        image = images.get(computed[place.outputs[0]])
        if image is not None and way.on.issuperset(map(resolved, place.inputs)) and not _stops(place):
            side = next(
                node for node, other in zip(place.inputs, image.inputs, strict=True) if resolved(other) not in way.on
            )
            yield ONE_SIDED.at(
                place.location,
                f"{text_of(resolved(side))} has a gradient here, and what is in its place in the like part of the loss "
                f"in line {image.location.line} has none.",
            )


def _is_stopped(place: Place, way: Way) -> bool:
    """Say whether one operand has a gradient, and that of the other one is stopped."""
    has_gradient = [resolved(node) in way.on for node in place.inputs]
    return has_gradient.count(True) == 1 and bool(_stops(place))


def _stops(place: Place) -> list[Node]:
    before = upstream(place.inputs, smoothly=False)
    return [node for node in before if node.place is not None and node.place.step.equation.primitive in _STOP]


def _without_stops(way: Way) -> Computations[Node]:
    """Numbers for what is computed alike from the parameters, whatever the data are and where gradients stop."""
    data: dict[str, Node] = {}

    def made(node: Node) -> tuple[Node, Place | None]:
        node = resolved(node)
        while node.place is not None and node.place.step.equation.primitive in _STOP:
            node = resolved(node.place.inputs[0])
        if node in way.touched or is_constant(plain(node)):
            return node, node.place
        return data.setdefault(str(node.value.aval), node), None

    return Computations(made)


KINDS = (ONE_SIDED,)
CHECKS = (one_sided,)
