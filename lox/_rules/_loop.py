"""A handler inside a loop: its state is carried from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._events import Logs
from lox._handler import Filter, Handler, Results, State
from lox._trace import under


class InLoop:
    """A handler inside a loop.

    Attributes:
        carry: The arrays of its state before the first iteration. A state that is only read is not carried.
    """

    def __init__(self, handler: Handler, state: State, programs: Sequence[Any]):
        """Enter a loop with these programs."""
        self._outer, self._before = handler, state
        self._handler, self._inside = handler.enter(state, programs, "loop")
        self._reads_only = isinstance(self._handler, Filter)
        self.carry, self._structure = jax.tree.flatten(None if self._reads_only else self._inside)

    def run(self, carry: Sequence[Any], fun: Callable[..., Any], *args: Any) -> tuple[Any, list[Any], Logs]:
        """Run an iteration; returns the result of `fun`, the carry after it and the logs that were collected."""
        state = self._inside if self._reads_only else jax.tree.unflatten(self._structure, carry)
        outs, after, logs = under(self._handler, fun)(state, *args)
        carry, self._after = jax.tree.flatten(after)
        return outs, carry, logs

    def leave(self, carry: Sequence[Any], logs: Logs, trips: Any = 1) -> Results:
        """Return the state of the handler after the loop, and the logs that were collected in it."""
        return self._outer.leave(self._before, jax.tree.unflatten(self._after, carry), logs, trips)
