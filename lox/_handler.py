"""What becomes of logs: three kinds of handler, and the contract of the rules by which primitives run under one.

A `Filter` puts other logs in the place of each log. A `Collector` returns logs, put together in the order in which they
happened. A `Stateful` handler threads a state through the program.

A handler is static, and hashable. The arrays that it needs are its state, a pytree that each call gets and returns.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from lox._effect import emit
from lox._events import Logs, Site

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
    """How a primitive with programs in it runs under a handler.

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
            The outputs of the primitive, the state of the handler after it, and the logs that were collected in it:
            what `handler.leave` has returned.
        """


class Handler(abc.ABC):
    """What becomes of logs.

    Attributes:
        returns_logs: Whether it returns what it makes of logs, with derivatives, and does nothing where they happen.
        forward: Whether a handler further out wants the logs that one which returns logs leaves.
        sees_tapped: Whether it rewrites logs on their way to a tap as well: it mends what JAX does to a program.
        same_on_shards: Whether its state is the same on all shards of a `shard_map`: that of the first one.
        rules: Rules of its own, which come before those for all handlers.
    """

    returns_logs: ClassVar[bool] = False
    forward: bool = False
    sees_tapped: ClassVar[bool] = False
    same_on_shards: ClassVar[bool] = False
    rules: ClassVar[Mapping[Any, Rule]] = {}

    @abc.abstractmethod
    def handle(self, state: State, logs: Logs) -> Results:
        """Take logs that happen now. Those that are left for a handler further out are emitted."""

    def enter(self, state: State, programs: Sequence[Any], inside: Inside) -> tuple[Handler, State]:
        """Return the handler of the programs in a primitive, and its state there.

        Args:
            state: The state before the primitive.
            programs: The jaxprs, as far as they are known.
            inside: What the primitive does with them.
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
        """Return for each branch how to give its results the structure that those of all branches get.

        Args:
            branches: The results of each branch, with abstract values in place of arrays.
        """

    def finish(self, state: State) -> State:
        """Do what is left to do for logs that have happened, at the end of the program or before an exception."""
        return state

    def detached(self, state: State) -> tuple[Filter, State]:
        """Return a filter that does the same where no state can be threaded."""
        raise NotImplementedError(f"{type(self).__name__} returns logs")

    def backward(self, state: State) -> tuple[Filter, State] | None:
        """Return the filter of what a backward pass logs for this part of the program; None leaves that alone."""
        del state
        return None

    def for_custom_rule(self, sites: frozenset[Site]) -> Filter:
        """Return the filter of a rule of differentiation or batching of a function whose logs are returned.

        Args:
            sites: The log calls of the function, which happen in its rule again.
        """
        raise NotImplementedError(f"{type(self).__name__} works in place")


class Filter(Handler):
    """Puts other logs in the place of each log. It only reads its state."""

    @abc.abstractmethod
    def rewrite(self, state: State, logs: Logs) -> Logs:
        """Return the logs that take the place of these."""

    def handle(self, state: State, logs: Logs) -> Results:
        emit(self.rewrite(state, logs))
        return state, ()

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        del after, collected, trips
        return state, ()

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        return [_unchanged for _ in branches]

    def detached(self, state: State) -> tuple[Filter, State]:
        return self, state


class Collector(Handler):
    """Returns logs. Those of a program are the logs of its parts, joined one after the other."""

    returns_logs = True

    @abc.abstractmethod
    def collect(self, logs: Logs) -> Logs:
        """Return the logs to keep."""

    def join(self, state: State, logs: Logs) -> Results:
        """Return what to keep of logs that come after all others, and the state after them."""
        return state, logs

    def handle(self, state: State, logs: Logs) -> Results:
        return self.join(state, self.collect(logs))

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        del after, trips
        return self.join(state, collected)


class Stateful(Handler):
    """Threads a state through the program, and collects nothing."""

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        del collected, trips
        return (state if after is None else after), ()

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        return [_unchanged for _ in branches]


def _unchanged(results: Results) -> Results:
    return results


class DropAll(Filter):
    """Drops every log."""

    sees_tapped = True

    def __eq__(self, other: object) -> bool:
        return type(other) is DropAll

    def __hash__(self) -> int:
        return hash(DropAll)

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
