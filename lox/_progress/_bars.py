"""The handler that gives loops their bars: it leaves a mark in each of them until they are compiled."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from lox._effect import emit
from lox._endpoint import manual_axes
from lox._events import Destination, Event, Logs
from lox._handler import State
from lox._site import Site
from lox._watch._marks import TO_WATCHER, Place
from lox._watch._points import LOOPS, matches
from lox._watch._resolve import Resolver, point_of

BOARD = "board"
"""The value of a bar: the number of the board that shows it, or 0 for no board."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ToLoop:
    """The destination of bars: the loop that they are in, when it is compiled."""

    ordered: ClassVar[bool] = False
    first: ClassVar[tuple[Any, ...]] = ()
    channel: ClassVar[Any] = None

    def leaves_out(self, logs: Logs) -> bool:
        """Tell whether bars may be left out where there is no loop any more, as where it is unrolled."""
        del logs
        return True


TO_LOOP: Any = ToLoop()


@dataclasses.dataclass(frozen=True)
class LoopSite(Site):
    """The place of a loop.

    Attributes:
        path: Its path.
    """

    path: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bars(Resolver):
    """Leaves a bar in each outermost loop, and in nested loops that are selected. Its state is the number of the board.

    Attributes:
        nested: The patterns of the nested loops that are selected.
    """

    nested: tuple[str, ...]

    def wants(self, place: Place) -> bool:
        if place.kind not in LOOPS or place.obstacle:
            return False
        return place.loops == 1 or any(matches(pattern, point_of(place)) for pattern in self.nested)

    def resolved(self, state: State, event: Event, place: Place, depth: int) -> Event | None:
        number = jnp.asarray(state, jnp.int32)
        for name in manual_axes():  # The first shard speaks for all.
            number = jnp.where(jax.lax.axis_index(name) == 0, number, 0)
        values = {BOARD: jnp.broadcast_to(number, event.lengths(depth + event.batch_ndim))}
        site = LoopSite(place.file, place.line, place.function, (), path=point_of(place).path)
        emit((dataclasses.replace(event, values=values, steps={}, site=site),), TO_LOOP)
        return None

    def destination(self, to: Destination) -> Destination | None:
        return None if to == TO_WATCHER else to
