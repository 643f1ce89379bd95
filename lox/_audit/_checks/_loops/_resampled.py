"""Resampling by weights that stay what they were."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, after, bodies, made_by
from lox._audit._checks._results._replaced import OLD
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding, Held, Kind
from lox._audit._program import Value

WEIGHTS = Kind(
    "LOX225",
    "warning",
    "Weights go on after elements were drawn by them",
    "Start them anew where elements are drawn, as with log_weights = jnp.zeros_like(log_weights): how often an element "
    "is drawn is its weight.",
    "Weights start anew where elements are drawn by them.",
    "Log weights that loops carry and draw indices by were followed to their new values.",
)


def resampled(audited: Audited) -> Iterator[Finding | Held]:
    """LOX225: what a loop carries is drawn by log weights, to which an iteration adds and which it carries on."""
    for body in audited.once(bodies):
        random = body.random
        for place in body.places("argmax") if random else ():
            weights = next((each for each in body.changing if _is_drawn_by(place, each, random)), None)
            drawn = None if weights is None else _drawn(body, place, weights.value)
            if weights is None or drawn is None:
                continue
            array, goes_on = drawn
            if not goes_on:
                if weights.new not in after([weights.inside]):
                    yield OLD.at(
                        place.location,
                        f"A loop draws the elements of {array.name} by {weights.name}, which start anew, and goes on "
                        f"with those of {array.name} that it had before.",
                    )
                continue
            if _signs(weights.new, weights.inside) == [1]:
                yield WEIGHTS.at(
                    place.location,
                    f"A loop draws the elements of {array.name} by {weights.name}, and goes on with {weights.name} as "
                    "if none were drawn: each weight counts again in the next iteration.",
                )
            else:
                yield WEIGHTS.fine(place.location)


def _is_drawn_by(place: Place, weights: Carried, random: set[Node]) -> bool:
    """Say whether an index is where log weights and random numbers are largest together, one for each weight."""
    total = made_by(place.inputs[0], "add")
    if total is None or not weights.is_of(jnp.floating) or place.outputs[0].value.shape != weights.value.shape:
        return False
    return any(
        noise in random and logits not in random and 1 in _signs(logits, weights.inside)
        for noise, logits in (total.inputs, total.inputs[::-1])
    )


def _drawn(body: Body, place: Place, weights: Value) -> tuple[Carried, bool] | None:
    """The carried array that has an element for each weight, and is read at the indices that are drawn.

    Returns:
        The array, and whether what is read goes on to the next iteration.
    """
    indices, found = after(place.outputs), None
    for read in body.places("gather"):
        array = next((each for each in body.changing if plain(read.inputs[0]) is each.inside), None)
        is_of_all = array is not None and array.value is not weights and array.value.shape[:1] == weights.shape
        if array is not None and is_of_all and read.inputs[1] in indices:
            if array.new in after(read.outputs):
                return array, True
            found = array, False
    return found


def _signs(node: Node, source: Node) -> list[int]:
    """The signs with which a value is among the terms of a sum."""
    found, left, deep = list[int](), [(node, 1)], 60
    while left and deep:
        deep -= 1
        each, sign = left.pop()
        if plain(each) is source:
            found.append(sign)
        elif (place := made_by(each, "add", "sub", "stop_gradient")) is not None:
            is_difference = place.step.equation.primitive.name == "sub"
            left += [(one, -sign if is_difference and index else sign) for index, one in enumerate(place.inputs)]
    return found


KINDS = (WEIGHTS,)
CHECKS = (resampled,)
