"""Settings of the contexts around for the logs inside: a prefix, tags, and names of counters.

These are static, and so part of the key of each of JAX's caches. Values of counters are not. A log call binds
`counter_p` for each counter that it gets from a context; the context replaces it by the value (`_context.py`).
"""

from __future__ import annotations

import contextvars
import dataclasses
from typing import Any, NamedTuple, NoReturn

import jax
import jax.extend as jex
from jax.interpreters import mlir, partial_eval

from lox import _compat
from lox._events import Event
from lox._exceptions import ContextError


class Ambient(NamedTuple):
    """The settings of all contexts around together. JAX hashes it at each call: a tuple does that fast.

    Attributes:
        prefix: Put before every key.
        tags: Added to those of the call.
        counters: The names of counters, each with its dtype.
    """

    prefix: str
    tags: tuple[str, ...]
    counters: tuple[tuple[str, str], ...]

    def inside(self, outer: Ambient | None) -> Ambient:
        """The two together, where `outer` is around this one."""
        if outer is None:
            return self
        tags = tuple(dict.fromkeys(outer.tags + self.tags))
        return Ambient(outer.prefix + self.prefix, tags, tuple((dict(outer.counters) | dict(self.counters)).items()))


ambient = jax.make_user_context(None)
"""The `Ambient` of the contexts around, or None outside all."""


class ReadsContext(BaseException):
    """Ends the trace of a function as soon as a search finds that it depends on the contexts around."""


class Search:
    """The trace of a function to see whether it depends on the contexts around.

    Attributes:
        ended: Number of times that it was found to. The function may catch `ReadsContext`, so that its trace goes on
            without what raised it.
    """

    ended = 0

    def end(self) -> NoReturn:
        """Say that the function depends on the contexts around, and end its trace."""
        self.ended += 1
        raise ReadsContext


looking: contextvars.ContextVar[Search | None] = contextvars.ContextVar("looking", default=None)
"""The search that ends when a handler runs or a log call happens."""

resolving: contextvars.ContextVar[Search | None] = contextvars.ContextVar("resolving", default=None)
"""The search that ends when something needs the value of a counter."""


def in_context(event: Event) -> Event:
    """The event of a log call, with what the contexts around add to it."""
    if (search := looking.get()) is not None:
        search.end()
    around = ambient.value
    if around is None or not event.values:
        return event
    new = {name: dtype for name, dtype in around.counters if name not in event.steps}
    steps = {name: counter_p.bind(name=name, dtype=dtype) for name, dtype in new.items()}
    tags = tuple(dict.fromkeys(around.tags + event.site.tags))
    return dataclasses.replace(
        event,
        values={around.prefix + key: value for key, value in event.values.items()},
        steps=event.steps | steps,
        site=dataclasses.replace(event.site, tags=tags, from_context=tuple(sorted(new))),
    )


def begin_handler() -> None:
    """Say that what is being traced runs a handler, so that its logs depend on the contexts around."""
    if (search := looking.get()) is not None:
        search.end()
    if not _compat.runs_at_once(_compat.current_trace()):
        handled_p.bind()


counter_p = jex.core.Primitive("lox_counter")
"""The value that a context gives to a counter."""

handled_p = jex.core.Primitive("lox_handled")
"""Does nothing. It tells that a handler ran in a program that has no logs left to tell."""
handled_p.multiple_results = True
handled_p.def_impl(lambda: [])
handled_p.def_abstract_eval(lambda: [])
mlir.register_lowering(handled_p, lambda ctx: [])


@counter_p.def_abstract_eval
def _scalar(*, name: str, dtype: str) -> Any:
    del name
    return jax.core.ShapedArray((), dtype)


@counter_p.def_impl
def _unresolved(*, name: str, dtype: str) -> Any:
    del dtype
    raise ContextError(
        f"The counter {name!r} of a lox.context has no value here: the program is compiled or runs where the block is "
        "over or cannot be seen, as in jax.jit(f).lower() and jax.export inside a context, and in "
        "jax.ensure_compile_time_eval() inside jax.jit. Pass the value as an argument, and open the context inside "
        "of the function, as in jax.jit(lambda i, x: lox.context(step=i)(f)(x))."
    )


mlir.register_lowering(counter_p, lambda ctx, *, name, dtype: _unresolved(name=name, dtype=dtype))


def _known(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """Under `checkpoint`, it is saved: in the backward pass, other contexts may be around."""
    del saveable, unknown, instantiated
    return eqn, None, [False] * len(eqn.outvars), [False] * len(eqn.outvars), []


for _primitive in (counter_p, handled_p):
    partial_eval.partial_eval_jaxpr_custom_rules[_primitive] = _known
partial_eval.dce_rules[handled_p] = lambda used_outs, *rest: ([], rest[-1])
