"""`while_loop`, which is also `fori_loop` with dynamic bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._effect import as_array
from lox._events import Logs, events
from lox._exceptions import UnsupportedPrimitiveError
from lox._handler import Handler, State, rule
from lox._leading_axes import where
from lox._lockstep import any_live, settle
from lox._logs_in import has_log
from lox._rules._call import varied
from lox._rules._loop import InLoop
from lox._trace import under

while_p = jex.core.primitives.while_p


# while: (consts, carry) -> carry  becomes  (consts, ((carry, predicate), state)) -> ((carry, predicate), state)
@rule(while_p)
def while_loop(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    del primitive
    loop = Loop(args, params)
    return run_loop(handler, state, loop, loop.iterate)


def run_loop(
    handler: Handler, state: State, loop: Loop, iterate_values: Callable[..., list[Any]]
) -> tuple[list[Any], State, Logs]:
    """Run a loop under a handler, with this function of the carried values for an iteration.

    Raises:
        UnsupportedPrimitiveError: The handler collects logs in it, of which the number is not known.
    """
    start, state, first = loop.start(handler, state)
    inside = InLoop(handler, state, loop.programs)

    def iterate(carry: Any) -> Any:
        values, state, trips = carry
        values, state, logs = inside.run(state, iterate_values, *values)
        for event in events(logs):
            raise UnsupportedPrimitiveError(
                f"{type(handler).__name__} collects the log at {event.site}, which is in a while_loop whose number of "
                "iterations is not known. Give the handler a rule of its own for while_loop in Handler.rules, or leave "
                "the log out with lox.strip."
            )
        return values, state, trips and [trips[0] + 1]

    trips = [loop.differing(jnp.int32(0))] if inside.carry else []
    outs, carry, trips = jax.lax.while_loop(lambda carry: loop.goes_on(carry[0]), iterate, (start, inside.carry, trips))
    state, logs = inside.leave(carry, (), *trips)
    return loop.outs(outs), state, (*first, *logs)


class Loop:
    """A `while_loop` as a start, an iteration and a test of the values that it carries.

    Where the condition logs, the predicate of the next iteration is computed at the end of this one, so that this logs
    as well. So is a predicate with axes: it belongs to a batched loop, in which finished batch elements stand still.
    The predicate is carried in `lockstep` too, so that they stand still under a later `vmap`.

    Attributes:
        init: The values that the loop of the program carries.
        programs: The jaxprs of the condition and of the body.
        lockstep: Whether a `vmap` around runs the loop until the last batch element is done.
    """

    def __init__(self, args: Sequence[Any], params: dict[str, Any], lockstep: bool = False):
        """Take the arguments and the parameters of a `while_loop`."""
        self.lockstep = lockstep
        self._cond_consts, self._body_consts, self.init = split_args(args, params)
        (self._predicate,) = _compat.out_avals(params["cond_jaxpr"])
        self._cond, self._body = self.programs = [
            varied(params[name], self._predicate) for name in ("cond_jaxpr", "body_jaxpr")
        ]
        self._types = [_compat.varying_axes(value) for value in self.init]

    def start(self, handler: Handler, state: State) -> tuple[list[Any], State, Logs]:
        """The values before the first iteration, and the state and the logs after the first test."""
        if not has_log(self._cond) and not self._predicate.shape and not self.lockstep:
            return list(self.init), state, ()
        ((predicate,), state_after, logs) = under(handler, self._test)(state, *self.init)
        init = [self._vary(value, predicate) for value in self.init] if predicate.shape else self.init
        return [*init, predicate], state_after if state_after is not None else state, logs

    def iterate(self, *values: Any) -> list[Any]:
        """The values after an iteration."""
        carry, carried = values[: len(self._types)], values[len(self._types) :]
        new = _arrays(_compat.as_fun(self._body)(*self._body_consts, *self._typed(carry)))
        if not carried:
            return new
        (predicate,) = carried
        if predicate.shape:
            pairs = zip(new, carry, strict=True)
            new = [where(predicate, self._vary(after, predicate), before) for after, before in pairs]
        elif self.lockstep:
            new = [settle(predicate, after, before) for after, before in zip(new, carry, strict=True)]
        (again,) = self._test(*self._typed(new))
        return [*new, again & predicate]

    def goes_on(self, values: Sequence[Any]) -> Any:
        """Tell whether there is another iteration after these values."""
        carried = values[len(self._types) :]
        again = jnp.any(*carried) if carried else self._test(*self._typed(values))[0]
        return any_live(again) if self.lockstep else again

    def outs(self, values: Sequence[Any]) -> list[Any]:
        """The values that the loop of the program returns."""
        return self._typed(values[: len(self._types)])

    @property
    def differs_over(self) -> list[Any]:
        """The axes of the mesh along which the number of iterations differs between shards."""
        return sorted(_compat.varying_axes(self._predicate))

    def differing(self, value: Any) -> Any:
        """The value, as one that differs between shards if the number of iterations does."""
        return self._vary(value, self._predicate)

    def _test(self, *values: Any) -> list[Any]:
        return _arrays(_compat.as_fun(self._cond)(*self._cond_consts, *values))

    def _typed(self, values: Sequence[Any]) -> list[Any]:
        return [_compat.unvary(value, axes) for value, axes in zip(values, self._types, strict=True)]

    @staticmethod
    def _vary(value: Any, predicate: Any) -> Any:
        # A value that is selected by a predicate that varies over shards varies as well.
        return _compat.vary(value, sorted(_compat.varying_axes(predicate)))


def _arrays(values: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr as arrays: some may be constants, which JAX keeps as numbers of Python."""
    return list(map(as_array, values))


def split_args(args: Sequence[Any], params: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The constants of the condition, those of the body, and the carry."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return args[:first], args[first:second], args[second:]
