"""The trace that is current, what runs under a trace, and at which level of tracing it counts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex

from lox._compat._names import Feature, private, private_attribute

_folding = private(
    "jax._src.config:eager_constant_folding",
    purpose="to stage a log of constants under jax.ensure_compile_time_eval, where it would happen while tracing",
    needed_for=Feature.CONSTANTS,
)
_level = private_attribute(
    "jax.core:Trace",
    "_weakref",
    purpose="to let jitted functions under a handler be dispatched as without one",
    otherwise="They are dispatched to more slowly, and libraries that compare levels of tracing refuse to mutate what "
    "was made outside of the handler.",
)

_trace_of = private_attribute(
    "jax.core:Tracer",
    "_trace",
    purpose="to tell whether a while_loop with logs ran while it was evaluated partially",
    needed_for=Feature.DERIVATIVES,
)

with jax.core.eval_context(), jex.core.take_current_trace() as _eager:
    pass


def current_trace() -> Any:
    """The current trace, which stays in its place."""
    return jex.core.find_top_trace(())


def is_eager(trace: Any) -> bool:
    """Tell whether operations bound under `trace` run at once, with nothing to differentiate, batch or stage them."""
    return trace is _eager


def is_top_level() -> bool:
    """Tell whether no transformation of JAX is in progress."""
    return jex.core.find_top_trace(()) is _eager


@functools.cache
def _staging() -> type:
    """The class of the traces under which JAX makes jaxprs, which has no public name."""
    found = []
    jax.make_jaxpr(lambda: found.append(type(current_trace())))()
    return found[0]


def is_staging(trace: Any) -> bool:
    """Tell whether operations bound under `trace` become equations of a jaxpr."""
    return isinstance(trace, _staging())


def runs_at_once(trace: Any) -> bool:
    """Tell whether operations bound under `trace` run at once, batched or differentiated or not, or are staged.

    That a trace refers to the one around it by this name is not documented.
    """
    ends = (_staging(), type(None))
    while not is_eager(trace) and not isinstance(trace, ends):
        trace = getattr(trace, "parent_trace", None)
    return is_eager(trace)


def eagerly() -> contextlib.AbstractContextManager[Any]:
    """The context in which operations run at once, whatever the current trace."""
    return jex.core.set_current_trace(_eager)


def is_left_by(trace: Any, value: Any) -> bool:
    """Tell whether a value is one that partial evaluation under `trace` has not computed."""
    return isinstance(value, jax.core.Tracer) and _trace_of.of(value) is trace and not value.is_known()  # type: ignore[attr-defined]


def is_folded(operands: Sequence[Any]) -> bool:
    """Tell whether a primitive on these operands runs while JAX traces, under `jax.ensure_compile_time_eval`."""
    if not _folding.found or not _folding.value.value or not is_staging(current_trace()):
        return False
    return not any(isinstance(operand, jax.core.Tracer) for operand in operands)


def staged(operands: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """The context in which a primitive on these operands is staged also under `jax.ensure_compile_time_eval`.

    Raises:
        UnsupportedJaxError: Nothing tells here whether a primitive on constants would be.
    """
    if _folding.found:
        return _folding.value(False)
    is_constant = not any(isinstance(operand, jax.core.Tracer) for operand in operands)
    if is_constant and not runs_at_once(current_trace()):
        _folding.need()
    return contextlib.nullcontext()


def adopt_demands(trace: Any, parent: Any) -> None:
    """Let `trace` get the primitives that `parent` gets.

    On jax 0.12 a trace that does not want high-level primitives gets what they stand for, without their rules of
    differentiation and batching. `custom_root` is one, and a `jit` is one if such a primitive is in it. No
    documentation names the attribute.
    """
    with contextlib.suppress(AttributeError):
        trace.requires_low = parent.requires_low


def adopt_level(trace: Any, parent: Any) -> None:
    """Make `trace`, which has no tracers of its own, count as `parent` where JAX tells levels of tracing apart.

    That is in the keys of jit's dispatch, and in libraries that refuse to mutate an object of another level.
    """
    level = getattr(parent, _level.attribute, None)
    if level is not None:
        with contextlib.suppress(AttributeError):  # One that cannot be set is as none.
            setattr(trace, _level.attribute, level)
