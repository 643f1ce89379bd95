"""Two like parts of a loss, where only one stops the gradient of a side."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._alike import Computations
from lox._audit._attained import is_constant, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._stopped import is_stopped
from lox._audit._checks._autodiff._way import Way, is_asked, text_of
from lox._audit._dependence import Node, Place, downstream
from lox._audit._findings import Finding, Kind

ONE_SIDED = Kind(
    "LOX624",
    "warning",
    "Of two like parts of a loss, one stops the gradient of a side, and the other does not",
    "Stop the gradient in both, as a loss of two views does: compare(predict(a), stop_gradient(b)) + "
    "compare(predict(b), stop_gradient(a)).",
)
_MEETING = ("mul", "sub", "dot_general", "div")


def one_sided(audited: Audited) -> Iterator[Finding]:
    """LOX624: two values meet as two others do, and only there is the gradient of one of them stopped."""
    if not is_asked(audited) or not audited.has("stop_gradient"):
        return
    way = audited.once(Way)
    meetings = [place for place in way.of(*_MEETING) if way.touched.issuperset(map(resolved, place.inputs))]
    made = (node for place in audited.dependence.places for node in place.outputs)
    after_stop = downstream(filter(is_stopped, made), smoothly=False)
    stopped = [place for place in meetings if _has_one_gradient(place, way) and _meets(place, after_stop)]
    computed = _without_stops(way)
    images = {computed[place.outputs[0]]: place for place in stopped}
    for place in meetings if stopped else ():
        image = images.get(computed[place.outputs[0]])
        if image is not None and way.on.issuperset(map(resolved, place.inputs)) and not _meets(place, after_stop):
            side = next(
                node for node, other in zip(place.inputs, image.inputs, strict=True) if resolved(other) not in way.on
            )
            yield ONE_SIDED.at(
                place.location,
                f"{text_of(resolved(side))} has a gradient here, and what is in its place in the like part of the loss "
                f"in line {image.location.line} has none.",
            )


def _has_one_gradient(place: Place, way: Way) -> bool:
    return [resolved(node) in way.on for node in place.inputs].count(True) == 1


def _meets(place: Place, nodes: set[Node]) -> bool:
    return not nodes.isdisjoint(place.inputs)


def _without_stops(way: Way) -> Computations[Node]:
    """Numbers for what is computed alike from the parameters, whatever the data are and where gradients stop."""
    data: dict[str, Node] = {}

    def made(node: Node) -> tuple[Node, Place | None]:
        node = resolved(node)
        while node.place is not None and is_stopped(node):
            node = resolved(node.place.inputs[0])
        if node in way.touched or is_constant(plain(node)):
            return node, node.place
        return data.setdefault(str(node.value.aval), node), None

    return Computations(made)


KINDS = (ONE_SIDED,)
CHECKS = (one_sided,)
