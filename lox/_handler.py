"""The four kinds of handler, and the contract of the rules by which primitives run under one.

| | only reads its state | threads its state through the program |
| acts where a log happens | `Filter`: puts other logs in its place | `Streamer`: sends logs to the host |
| returns results to its caller | `Collector`: the logs, in order | `Stateful`: the state, made of the logs |

A handler is static, and hashable. The arrays that it needs are its state, a pytree that each call gets and returns.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from lox._ambient import Ambient
from lox._effect import emit
from lox._events import Destination, Logs, Site
from lox._logs_in import logs_in

State = Any
"""A pytree of arrays, whose static parts are known while a program is traced."""

Inside = Literal["call", "loop", "branch", "rule"]
"""The use that a primitive makes of the programs in it. "call": it runs one of them, once. "loop": it repeats them.
"branch": it runs one of several, so that the results of all must have one structure. "rule": it has rules of
differentiation or batching, which take its results apart. In "loop" the state must have the same arrays before and
after."""

Results = tuple[State, Logs]
"""The state after a program, and the logs that were collected in it."""


class Rule(Protocol):
    """Runs a primitive with programs in it under a handler.

    A rule gets the state into the primitive with `handler.enter`, runs the programs `under` the handler that this
    returns, and gets the state and the logs that were collected out again with `handler.leave`.
    """

    def __call__(
        self, handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
    ) -> tuple[Any, State, Logs]:
        """Run the primitive.

        Args:
            handler: The handler.
            state: Its state before the primitive.
            primitive: The primitive.
            args: Its arguments.
            params: Its parameters, in a dict of the rule's own.

        Returns:
            The outputs of the primitive, the state of the handler after it, and the logs that were collected in it, as
            `handler.leave` has returned them.
        """


class Handler(abc.ABC):
    """Handles logs. Derive from one of the kinds below.

    Attributes:
        returns_logs: Whether it returns results to its caller, with derivatives, and does nothing where logs happen.
            Each kind sets it.
        forward: Whether a handler further out wants the logs that this one leaves. All kinds but `Filter` have it.
        sees_tapped: Whether it rewrites logs on their way to a tap as well: it mends what JAX does to a program.
        adds_axes: Whether it gives logs batch axes, so that those of a batch have others than those of an element.
        rules: Rules of its own, which come before those for all handlers.
        around: What the contexts say that logs are in. None for a handler that is no context: it leaves that as it is.
    """

    returns_logs: ClassVar[bool]
    forward: bool
    sees_tapped: ClassVar[bool] = False
    adds_axes: ClassVar[bool] = False
    rules: ClassVar[Mapping[Any, Rule]] = {}
    around: Ambient | None = None

    def concerns(self, primitive: Any, params: dict[str, Any]) -> bool:
        """Tell whether a primitive must run under the handler, for itself or for the programs in it."""
        del primitive
        return logs_in(params)

    @abc.abstractmethod
    def handle(self, state: State, logs: Logs) -> Results:
        """Take logs that happen now. Those that are left for a handler further out are emitted."""

    def enter(self, state: State, programs: Sequence[Any], inside: Inside) -> tuple[Handler, State]:
        """Return the handler of the programs in a primitive, and its state there.

        Args:
            state: The state before the primitive.
            programs: The jaxprs, as far as they are known.
            inside: The use that the primitive makes of them.
        """
        del programs, inside
        return self, state

    @abc.abstractmethod
    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        """Return the state after a primitive, and the logs that were collected in it.

        Args:
            state: The state before the primitive.
            after: The state at the end of its programs; None where these ran under a filter.
            collected: The logs that were collected in them.
            trips: How often a loop has run its program; an array where that is not known. `after` has the arrays of the
                end, and the static parts of one iteration.
        """

    @abc.abstractmethod
    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        """Return for each branch a function that gives its results the structure of those of all branches.

        To drop the logs that may not happen, return functions that return `(state, ())`.

        Args:
            branches: The results of each branch, with abstract values in place of arrays.
        """

    def by_shards(self, state: State, axes_of: Callable[[Any], Any]) -> Sequence[tuple[int, State]]:
        """Return the parts of a state at the end of a `shard_map`.

        A part that varies over shards gets an axis for them, and `leave` is called with one part after the other. A
        handler that acts where logs happen has the same state on all shards.

        Args:
            state: The state on a shard.
            axes_of: A function that returns the axes of the mesh over which a tree of arrays varies.

        Returns:
            For each part the position of its axis for shards, and the part.
        """
        del axes_of
        return [(0, state)]

    def finish(self, state: State) -> State:
        """Do what is left to do for logs that have happened.

        It is called at the end of the function, before an exception leaves it, and before a primitive through which no
        state can be threaded.
        """
        return state

    @abc.abstractmethod
    def detached(self, state: State, sites: frozenset[Site]) -> tuple[Filter, State]:
        """Return a filter, and its state, for a program from which neither a state nor logs can come back.

        A handler that acts where logs happen does the same there. Under a handler that returns results, such a program
        is the rule of a function: logs at `sites` are dropped, and the others left for a handler further out.

        Args:
            state: The state before the program.
            sites: The log calls of the function that the program is a rule of. They happen again in the rule, and what
                the handler makes of them is returned with the function.
        """

    @contextlib.contextmanager
    def in_function(self, state: State, is_rule: bool) -> Iterator[tuple[Handler, State]]:
        """The context in which a function with rules runs, or a rule, with the handler and its state for that.

        Args:
            state: The state of the handler.
            is_rule: Whether it is a rule, which runs in place of the function.
        """
        del is_rule
        yield self, state

    def in_backward_rule(self, state: State) -> tuple[Filter, State]:
        """Return a filter, and its state, for the backward pass that a function has as a rule."""
        return self.detached(state, frozenset())

    def backward(self, state: State) -> tuple[Filter, State] | None:
        """Return the filter of what a backward pass logs for this part of the program; None leaves that alone."""
        del state
        return None


class Filter(Handler):
    """Puts other logs in place of each log. It only reads its state."""

    returns_logs = False

    @abc.abstractmethod
    def rewrite(self, state: State, logs: Logs) -> Logs:
        """Return the logs that take the place of these."""

    def handle(self, state: State, logs: Logs) -> Results:
        emit(self.rewrite(state, logs))
        return state, ()

    def destination(self, to: Destination) -> Destination | None:
        """Return where logs go that were on their way here, and that this has rewritten."""
        return to

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        del after, collected, trips
        return state, ()

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        return [_unchanged for _ in branches]

    def detached(self, state: State, sites: frozenset[Site]) -> tuple[Filter, State]:
        del sites
        return self, state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collector(Handler):
    """Returns logs. Those of a program are the logs of its parts, joined one after the other."""

    returns_logs = True

    forward: bool

    @abc.abstractmethod
    def collect(self, logs: Logs) -> Logs:
        """Return the logs to keep."""

    def join(self, state: State, logs: Logs) -> Results:
        """Keep some of the logs that come after all others, and return the state after them and the logs kept."""
        return state, logs

    def handle(self, state: State, logs: Logs) -> Results:
        return self.join(state, self.collect(logs))

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        del after, trips
        return self.join(state, collected)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Threads(Handler):
    """Threads a state through the program, and collects nothing."""

    forward: bool

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        del collected, trips
        return (state if after is None else after), ()

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        return [_unchanged for _ in branches]


class Stateful(_Threads):
    """Threads a state through the program, and returns it."""

    returns_logs = True


class Streamer(_Threads):
    """Acts where logs happen, and threads a state through the program, which is the same on all shards."""

    returns_logs = False


def _unchanged(results: Results) -> Results:
    return results


@dataclasses.dataclass(frozen=True)
class DropAll(Filter):
    """Drops every log."""

    sees_tapped = True

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return ()


rules: dict[Any, Rule] = {}


def rule(*primitives: Any) -> Callable[[Rule], Rule]:
    """Register the rule of one or several primitives."""

    def register(function: Rule) -> Rule:
        for primitive in primitives:
            if primitive is None:  # This JAX has no such primitive.
                continue
            if primitive in rules:
                raise ValueError(f"{primitive} already has a rule")
            rules[primitive] = function
        return function

    return register
