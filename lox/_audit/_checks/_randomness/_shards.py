"""Noise that is the same on all shards, on data that are split over them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._program import Step
from lox._audit._rules import primitives
from lox._audit._varying import SUMS, Around, Seen, Shards, State, named_axes

ALIKE = Kind(
    "LOX709",
    "warning",
    "All shards use the same random key for parts of one batch",
    "Give each shard a key of its own: key = jax.random.fold_in(key, jax.lax.axis_index('data')) inside of shard_map, "
    "or pass jax.random.split(key, shards) with P('data') in in_specs=.",
    "Each shard has random numbers of its own for its part of a batch.",
    "Whether keys and data differ between shards was followed from in_specs to where they meet.",
)
_MEETING = primitives("add", "sub", "mul", "div", "max", "min", "lt", "le", "gt", "ge", "select_n")
"""Operations on elements in which noise meets data."""


def alike(audited: Audited) -> Iterator[Finding | Held]:
    """LOX709: a key without the index of the shard draws the noise for each element of data that are split.

    Only along axes over which something is summed: there the shards have parts of one batch, and are no members of an
    ensemble. Noise that is broadcast along the elements of one shard is shared on purpose, and noise on gradients
    before their mean may be.
    """
    if not any(step.equation.primitive is _compat.shard_map_p for step, _ in audited.steps):
        return
    met: dict[tuple[Step, str], bool] = {}
    summed: dict[str, int] = {}

    def look(seen: Seen) -> None:
        primitive, around = seen.step.equation.primitive, seen.around
        if primitive in SUMS:
            summed.update((axis, around.sizes[axis]) for axis in named_axes(seen.step.equation, around))
        elif primitive in _MEETING and not around.backward:
            for found, is_alike in _met(seen):
                met[found] = met.get(found, False) or is_alike

    inputs = audited.program.inputs
    Shards(look, _MEETING).run(audited.program, [State(given=True)] * len(inputs), Around())
    for (draw, axis), is_alike in met.items():
        location = audited.lines[draw]
        if is_alike and axis in summed:
            yield ALIKE.at(
                location,
                f"What is drawn here comes from one key for all {summed[axis]} shards along '{axis}', and meets data "
                "that are split over them: each shard has the random numbers of the others.",
            )
        elif not is_alike:
            yield ALIKE.fine(location)


def _met(seen: Seen) -> Iterator[tuple[tuple[Step, str], bool]]:
    """Draws that meet data that differ along an axis, element by element, and whether the draw is the same there."""
    pairs = list(zip(seen.step.inputs, seen.inputs, strict=True))
    for axis in seen.around.sizes:
        for value, noise in pairs:
            size = math.prod(value.shape)
            draws = [draw for draw in noise.drawn if math.prod(draw.outputs[0].shape) == size != 1]
            for other, data in pairs if draws else ():
                is_data = data.differs(axis) and data.given and not (data.gradient or data.drawn & noise.drawn)
                if is_data and math.prod(other.shape) == size:
                    yield from (((draw, axis), noise.same(axis)) for draw in draws)


KINDS = (ALIKE,)
CHECKS = (alike,)
