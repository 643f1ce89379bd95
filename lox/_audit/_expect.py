"""What people declare of a part of a program, for audits to check."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from lox._arguments import names
from lox._audit._program import Block, Step
from lox._exceptions import LogValueError

auditing = jax.make_user_context(False)
"""Whether an audit traces, so that declarations leave their mark."""

_around: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("around", default=())
"""The declarations around the call of an audit, the outermost first."""

_MARK = "lox.audit.expect"

DONE = "done"
"""The name by which flags of the ends of episodes are declared, beside those of operations."""


class Operation(NamedTuple):
    """What a declaration is about: primitives, as far as they come from calls of these functions."""

    primitives: tuple[str, ...]
    functions: tuple[str, ...]


OPERATIONS = {
    "scan": Operation(("scan",), ("scan",)),
    "sum": Operation(("reduce_sum",), ("sum", "nansum", "reduce_sum")),
    "mean": Operation(("reduce_sum",), ("mean", "nanmean", "average", "var", "nanvar", "std", "nanstd")),
    "max": Operation(("reduce_max", "argmax"), ("max", "amax", "nanmax", "reduce_max", "argmax", "nanargmax")),
    "min": Operation(("reduce_min", "argmin"), ("min", "amin", "nanmin", "reduce_min", "argmin", "nanargmin")),
    "prod": Operation(("reduce_prod",), ("prod", "nanprod", "reduce_prod")),
    "cumsum": Operation(("cumsum",), ("cumsum", "nancumsum")),
    "sort": Operation(("sort",), ("sort", "argsort", "lexsort", "sort_key_val")),
    "index": Operation(
        ("slice", "dynamic_slice", "gather"), ("getitem", "take", "index_in_dim", "dynamic_index_in_dim")
    ),
}
"""The operations that can be declared."""


@contextlib.contextmanager
def expect(*, done: str | Sequence[str] = (), **axes: str | Sequence[str]) -> Iterator[None]:
    """Declare over which axes operations go and what ends episodes, for `lox.audit` to check.

    A context manager, and a decorator. Around the call of an audit, it is of the whole audited function. Without an
    audit it does nothing.

    Args:
        done: The name of the flag that is true, or 1, in the last step of an episode, or several: of an argument, a
            variable or a field, as in "terminated" for ``step.terminated``. What loops in this part of the program
            carry is checked to stop there. Flags with names such as "done" or "terminated" are known without it; of
            those that are not declared, values of next states are checked not to stop there, as where an episode is
            only cut short.
        **axes: For "scan", "sum", "mean", "max", "min", "prod", "cumsum", "sort" or "index" (as in ``x[0]``) the label
            of the axis that all such operations in this part of the program go over, or several. An axis without a
            label is not checked.

    Returns:
        The context manager.

    Raises:
        LogValueError: There is no such operation. A `ValueError`.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> def normalize(x):
    ...     with lox.audit.expect(mean="batch"):
    ...         return x - x.mean(axis=0)
    >>> [finding] = lox.audit(normalize, axes={"x": ("time", "batch")})(jnp.ones((5, 7))).issues
    >>> finding.code, finding.message
    ('LOX105', "'mean' goes over time here, and expect(mean=...) says batch.")
    >>> import jax
    >>> def returns(rewards, over):
    ...     def back(following, step):
    ...         reward, over = step
    ...         return reward + 0.99 * following, following * (1 - over)
    ...     with lox.audit.expect(done="over"):
    ...         return jax.lax.scan(back, 0.0, (rewards, over), reverse=True)[1]
    >>> [finding] = lox.audit(returns)(jnp.ones(8), jnp.zeros(8)).at_least("warning")
    >>> finding.code
    'LOX220'
    """
    for name in axes:
        if name not in OPERATIONS:
            raise LogValueError(f"lox.audit.expect knows {', '.join(OPERATIONS)}, and not {name!r}.")
    declared = {name: names(labels, f"{name}=", " of lox.audit.expect") for name, labels in axes.items()}
    if done:
        declared[DONE] = names(done, "done=", " of lox.audit.expect")
    text = ";".join(f"{name}={','.join(labels)}" for name, labels in declared.items())
    if auditing.value:
        with _mark(text):
            yield
        return
    token = _around.set((*_around.get(), text))
    try:
        yield
    finally:
        _around.reset(token)


def _mark(text: str) -> contextlib.AbstractContextManager[Any]:
    return jax.named_scope(f"{_MARK}({text})")


@contextlib.contextmanager
def with_declarations() -> Iterator[None]:
    """The context in which a function is traced that has declarations around the call of its audit."""
    with contextlib.ExitStack() as scopes:
        for text in _around.get():
            scopes.enter_context(_mark(text))
        yield


def is_declared(equation: Any) -> bool:
    """Whether something is declared around an equation, in the function that it is in."""
    return any(entry.name.startswith(f"{_MARK}(") for entry in equation.source_info.name_stack.stack)


def declared_at(equation: Any) -> dict[str, frozenset[str]]:
    """What is declared around an equation, in the function that it is in."""
    found: dict[str, frozenset[str]] = {}
    for entry in equation.source_info.name_stack.stack:
        if entry.name.startswith(f"{_MARK}("):
            for part in entry.name[len(_MARK) + 1 : -1].split(";"):
                name, _, labels = part.partition("=")
                if name:
                    found[name] = frozenset(labels.split(","))
    return found


def declared_around(program: Block) -> Iterator[tuple[Step, dict[str, frozenset[str]]]]:
    """The steps of a program, also inside others, with all that is declared around them.

    A step is there once for each place that it runs in where other things are declared. Axes replace those that are
    declared farther out, and flags are added to these.
    """
    seen: set[Any] = set()

    def inside(block: Block, around: dict[str, frozenset[str]]) -> Iterator[tuple[Step, dict[str, frozenset[str]]]]:
        here = (block, frozenset(around.items()))
        if here in seen:
            return
        seen.add(here)
        for step in block.steps:
            declared = {**around, **declared_at(step.equation)}
            if DONE in around:
                declared[DONE] |= around[DONE]
            yield step, declared
            for inner in step.blocks:
                yield from inside(inner, declared)

    return inside(program, {})
