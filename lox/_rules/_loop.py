"""A handler inside a loop: its state is carried from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox import _compat
from lox._events import Logs
from lox._exceptions import HandlerError
from lox._handler import Filter, Handler, Results, State
from lox._rules._call import discharge, split_results
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
        if self._handler.returns_logs:
            self._inside = _varied(self._handler, self._inside, programs)
        self.carry, self._structure = jax.tree.flatten(None if self._reads_only else self._inside)

    def run(self, carry: Sequence[Any], fun: Callable[..., Any], *args: Any) -> tuple[Any, list[Any], Logs]:
        """Run an iteration; returns the result of `fun`, the carry after it and the logs that were collected."""
        state = self._inside if self._reads_only else jax.tree.unflatten(self._structure, carry)
        outs, after, logs = under(self._handler, fun)(state, *args)
        if not self._reads_only and (before := _arrays(state)) != (found := _arrays(after)):
            raise HandlerError(
                f"{type(self._outer).__name__} goes into a loop with a state of the arrays {_listed(before)} and comes "
                f"out of an iteration with {_listed(found)}. A loop carries the state, so that it must have the same "
                "arrays before and after. Let `enter` make room for what the programs of the loop log."
            )
        carry, self._after = jax.tree.flatten(after)
        return outs, carry, logs

    def leave(self, carry: Sequence[Any], logs: Logs, trips: Any = 1) -> Results:
        """Return the state of the handler after the loop, and the logs that were collected in it."""
        return self._outer.leave(self._before, jax.tree.unflatten(self._after, carry), logs, trips)


def _varied(handler: Handler, state: State, programs: Sequence[Any]) -> State:
    """The state, whose arrays vary over all shards over which they vary after the programs of a loop."""
    if not jax.sharding.get_abstract_mesh().manual_axes or not jax.tree.leaves(state):
        return state
    for program in programs:
        jaxpr, _, structure = discharge(handler, state, program)
        _, after, _ = split_results(_compat.out_avals(jaxpr), structure)
        if jax.tree.structure(after) == jax.tree.structure(state):  # Else `run` says what is wrong.
            vary: Any = lambda leaf, aval: _compat.vary(leaf, sorted(_compat.varying_axes(aval)))  # noqa: E731
            state = jax.tree.map(vary, state, after)
    return state


def _arrays(state: State) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shapes and dtypes of the arrays of a state by their places in it, whatever its static parts are."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.tree.map(jax.typeof, state))
    return {jax.tree_util.keystr(path): (aval.shape, str(aval.dtype)) for path, aval in leaves}


def _listed(arrays: dict[str, tuple[tuple[int, ...], str]]) -> str:
    listed = [f"{dtype}{list(shape)} at {place or 'its root'}" for place, (shape, dtype) in arrays.items()]
    return ", ".join(listed) or "none"
