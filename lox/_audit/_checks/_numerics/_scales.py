"""Finds scores of attention that are scaled by a wrong number before their softmax."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._attention import Attention, attentions, is_about
from lox._audit._findings import Finding, Held, Kind

SCALE = Kind(
    "LOX817",
    "warning",
    "Scores of attention that are not divided once by the root of the size of the keys",
    "Divide by it once: scores / jnp.sqrt(keys.shape[-1]). jax.nn.dot_product_attention does so itself.",
    "Scores of attention are not multiplied by the root of the size of the keys, nor divided by it twice.",
    "The constants that scores are multiplied by were compared with the number of elements of the keys.",
)


def scaled(audited: Audited) -> Iterator[Finding | Held]:
    """LOX817: scores are multiplied by what they should be divided by, or divided by it twice."""
    for each in audited.once(attentions):
        size = each.size
        roots = [factor for factor in each.factors if is_about(factor, size**-0.5)]
        if size > 4 and is_about(each.scale, size**0.5):
            yield SCALE.at(
                each.squash.location,
                f"Scores that sum {size} products are multiplied by {each.scale:.4g}, the root of {size}, before the "
                "softmax.",
            )
        elif size > 4 and len(roots) > 1 and is_about(each.scale, 1 / size):
            yield SCALE.at(
                each.squash.location,
                f"Scores that sum {size} products are divided by the root of {size} twice before the softmax: queries, "
                "keys or scores were scaled before.",
            )
        elif (length := _length(each)) is not None:
            yield SCALE.at(
                each.squash.location,
                f"Scores that sum {size} products are divided by the root of {length} before the softmax, which is how "
                "many queries or keys there are.",
            )
        elif size > 4 and each.scale == 1 and is_about(each.by, size**-0.5):
            yield SCALE.at(
                each.squash.location,
                f"Scores that sum {size} products go into the softmax as they are, and its weights are divided by the "
                f"root of {size}, so that they no longer add up to one.",
            )
        else:
            yield SCALE.fine(each.squash.location)


def _length(found: Attention) -> int | None:
    """The number of queries or keys, if scores are divided by its root and not by that of their own size."""
    numbers = found.scores.equation.params["dimension_numbers"]
    sides = zip(found.scores.inputs[:2], *numbers, strict=True)
    lengths = [
        size
        for operand, summed, batch in sides
        for axis, size in enumerate(operand.shape)
        if axis not in (*summed, *batch)
    ]
    sizes = {*lengths} - {found.size}
    return next((size for size in sizes if size > 4 and is_about(found.scale, size**-0.5)), None)


KINDS = (SCALE,)
CHECKS = (scaled,)
