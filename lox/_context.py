"""`lox.context`: counters, tags and a prefix for every log call in a block.

A context has a static part and values. The static part, `Ambient`, is a user context of JAX, so that what is
traced inside is traced once for each set of names. A log call in it gets its prefix and its tags at once, and for each
counter binds `counter_p`, which has no operands and stands for the value. From there on it is a log call like others.

The values are those of a trace, which is current in the block: a `HandlerTrace` with the filter `Resolve`. It leaves
logs as they are and puts values in place of `counter_p`. One that a primitive has in its jaxpr becomes an operand
by the same rules that get the state of a handler into a primitive. So another value traces and compiles nothing:

>>> import jax
>>> import lox
>>> with lox.context(step=7):
...     jaxpr = jax.make_jaxpr(lox.spool(lambda x: lox.log({"x": x})))(1.0)
>>> [str(eqn.primitive) for eqn in jaxpr.eqns if eqn.primitive.name.startswith("lox")]
['lox_handled', 'lox_counter']

Sharp edges:

- JAX looks a jitted function up before it asks anybody whether contexts matter to it. So `_infer` looks it up as if
  there were none, and once more only if it turns out that a handler runs in it (`handled_p` stays in the jaxpr to tell)
  or, under a handler, that it logs. A function that does not log is neither traced nor compiled again.
- The derivative of a `custom_vjp` runs its bwd rule later, when the block may be over. So the values are saved with the
  residuals (`_save_for_bwd`).
- Under `checkpoint` values are saved rather than computed again, for the same reason.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import jax
import jax.extend as jex
from jax.extend.linear_util import wrap_init

from lox import _compat, _transform
from lox._ambient import Ambient, ReadsContext, Search, ambient, counter_p, looking, resolving
from lox._arguments import read_context, strongly_typed
from lox._effect import recording
from lox._events import Logs
from lox._exceptions import ContextError
from lox._handler import Filter, Handler, Rule, State, rules
from lox._logs_in import counters_in
from lox._trace import HandlerTrace, reads_context, without_values

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Resolve(Filter):
    """Puts values in place of counters, and leaves logs. Its state is the values of a context, by name."""

    around: Ambient

    @property
    def rules(self) -> Mapping[Any, Rule]:  # type: ignore[override]
        return _rules

    def concerns(self, primitive: Any, params: dict[str, Any]) -> bool:
        return primitive is counter_p or counters_in(params)

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return logs


def _resolve(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    if state is None:  # Where the function is called as without the context.
        search = resolving.get()
        if search is None:
            raise ReadsContext
        search.end()
    value = state.get(params["name"])
    if value is None:  # It is of a context further out.
        return primitive.bind(*args, **params), state, ()
    return strongly_typed(value), state, ()


_rules: Mapping[Any, Rule] = {counter_p: _resolve}


class _Dependence:
    """A note on a function: whether it is known to depend on the contexts around."""

    known = False


@_compat.cached_by_function
def _dependence(fun: Callable[..., Any]) -> _Dependence:
    del fun
    return _Dependence()


def _infer(original: Callable[..., Any]) -> Callable[..., Any]:
    def infer(fun: Callable[..., Any], *rest: Any) -> Any:
        if ambient.value is None:
            return original(fun, *rest)
        dependence = _dependence(fun)
        if not dependence.known:
            search = Search()
            token = looking.set(search)
            caught = True  # Whether a part of the function has caught the exception.
            try:
                with ambient(None):
                    found = original(fun, *rest)
                if not search.ended and not reads_context(found[0].params):
                    return found
            except BaseException as error:
                if not search.ended:
                    raise
                caught = search.ended > 1 or not isinstance(error, ReadsContext)
            finally:
                looking.reset(token)
            if search.ended and caught:  # JAX has cached a program without the handler that was to run in it.
                jax.clear_caches()
                dependence = _dependence(fun)
            dependence.known = True
        return original(fun, *rest)

    return infer


_compat.wrap_tracing(_infer)


def _save_for_bwd(original: Callable[..., Any]) -> Callable[..., Any]:
    def process(trace: Any, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Sequence[Any], /, **params: Any) -> Any:
        around = ambient.value
        if around is None:
            return original(trace, primitive, fun, fwd, bwd, args, **params)
        if not recording.value:  # Nothing but a handler in the rule itself could hear of a log.
            return original(trace, primitive, fun, fwd, _later(bwd, around), args, **params)
        with jex.core.set_current_trace(trace):
            values = {name: counter_p.bind(name=name, dtype=dtype) for name, dtype in around.counters}
            with ambient(None):  # What is bound next is not to be met here again.
                params = params | {"fun": fun, "fwd": fwd, "bwd": bwd}
                return rules[primitive](Resolve(around), values, primitive, args, params)[0]

    return process


def _later(bwd: Any, around: Ambient) -> Any:
    """A bwd rule, which needs the values of the contexts around if they are others, or over, when it runs."""
    refusing = without_values(Resolve(around), bwd, lambda: True)

    def call(*args: Any) -> Any:
        return (bwd if ambient.value == around else refusing).call_wrapped(*args)

    return wrap_init(call, debug_info=bwd.debug_info)


class context:
    """Add counters, tags and a prefix to every log call in a block, or in the calls of a function.

    `with lox.context(step=i):` is the same as writing `step=i` at each log call in the block that has no such counter:
    those of the functions that it calls, jitted ones as well, whether the handler is around the block or inside it.

    Contexts nest: prefixes are joined, the outer one first, tags add up, and of two counters of one name the inner one
    counts, or that of the log call itself. Selections by `argnames` and `tags` see what the contexts inside the
    handler and around it have added. The block may be inside `jit`, `vmap`, `grad` or the body of a `scan`: there, a
    counter that is traced is that of the iteration. It is restored when an exception leaves the block, and is not
    seen by threads that are started in it. What `lox.log_grad` and the bwd rule of a `custom_vjp` log has the context
    of the forward call. Do not `yield` or `await` in a block: what runs meanwhile would be in it.

    Values of counters are inputs of compiled programs: another value neither traces nor compiles. The prefix, the
    tags, and the names and dtypes of counters are static. For each new set of them, JAX traces once more those
    functions inside that log under a handler, or that run one. A jitted function that does neither is not traced
    again; a `scan`, `cond` or `while_loop` that runs outside `jit` is.

    Without a handler nothing is logged, and the block adds no operation to a program.

    Args:
        tags: A name or names that are added to the tags of each log call.
        prefix: Put before every key.
        **steps: Named scalar counters, such as ``step=i``, of each log call that does not have them itself.

    Returns:
        A context manager, which is also a decorator. Both may be used any number of times.

    Raises:
        LogDataError: A tag or the prefix is not a string, or a counter not a number. A `TypeError`.
        LogValueError: A counter is not a scalar. A `ValueError`.

    When the block is left, or a program in it is compiled:
        ContextError: The block is left in another order than blocks nest, as when a generator yields in one. Or a
            counter cannot reach a log, as in ``jax.jit(lox.tap(f)).lower(x)`` inside a block. A `RuntimeError`.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> @jax.jit
    ... def update(w):
    ...     lox.log({"w": w})
    ...     return w - 0.25 * w
    >>> @lox.spool
    ... def train(w):
    ...     for epoch in range(3):
    ...         with lox.context(epoch=epoch, prefix="train/"):
    ...             w = update(w)
    ...     return w
    >>> _, logs = train(1.0)
    >>> logs["train/w"].tolist(), logs.steps["epoch"]["train/w"].tolist()
    ([1.0, 0.75, 0.5625], [0, 1, 2])
    """

    def __init__(self, *, tags: str | Iterable[str] = (), prefix: str = "", **steps: Any):
        site, self._values = read_context("lox.context", tags, prefix, steps)
        counters = tuple((name, value.dtype.name) for name, value in self._values.items())
        self._own = Ambient(prefix, site.tags, counters)
        self._open: list[tuple[int, _Block]] = []

    def __enter__(self) -> None:
        _compat.wrap_custom_vjp(_save_for_bwd)
        block = _Block(self._own.inside(ambient.value), self._values)
        self._open.append((threading.get_ident(), block))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        here = threading.get_ident()
        place = max((place for place, (thread, _) in enumerate(self._open) if thread == here), default=None)
        if place is None or not self._open.pop(place)[1].leave():
            raise ContextError(
                "A block of lox.context was left in another order than it was entered: in another thread, after a "
                "block around it, or when what it was in is over. That is so when a generator yields, or a coroutine "
                "awaits, in the block. Close the block before it does, or use the context as a decorator of a function."
            )

    def __call__(self, fun: Function) -> Function:
        return _transform.decorate(fun, self._in_block)  # type: ignore[no-any-return]

    def _in_block(self, fun: Function) -> Callable[..., Any]:
        @functools.wraps(fun, updated=())
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fun(*args, **kwargs)

        return inside


class _Block:
    """A block that was entered in this thread."""

    def __init__(self, around: Ambient, values: dict[str, Any]):
        self._around = around
        self._trace = HandlerTrace(_compat.current_trace(), Resolve(around), values)
        self._held = (jex.core.set_current_trace(self._trace), ambient(around))
        for each in self._held:
            each.__enter__()

    def leave(self) -> bool:
        """Restore what was before the block; returns False if another block, or another trace, was left open in it."""
        trace = current = _compat.current_trace()
        while trace is not self._trace and isinstance(trace, HandlerTrace):
            trace = trace.parent_trace
        inner, outer = self._held
        if trace is self._trace:
            inner.__exit__(None, None, None)
        in_order = current is self._trace and ambient.value is self._around
        if trace is self._trace or ambient.value is self._around:
            outer.__exit__(None, None, None)
        self._trace.close()
        return in_order
