"""`lox.testing.check`: whether the laws hold for a function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox.testing._compare import same
from lox.testing._laws import LAWS, Law
from lox.testing._program import Program
from lox.testing._subject import BrokenLaw, Claim, DoesNotApply, Function, Subject


@dataclasses.dataclass(frozen=True)
class Report:
    """Which laws a function was found to keep, and why others say nothing of it.

    Attributes:
        kept: The names of the laws.
        not_applicable: The reason by the name of the law.
        claims: How many compositions of transformations were checked.
    """

    kept: tuple[str, ...]
    not_applicable: dict[str, str]
    claims: int


def check(
    fun: Function,
    *args: Any,
    laws: Iterable[Law] = LAWS,
    lanes: Sequence[tuple[Any, ...]] | None = None,
    spool: dict[str, Any] | None = None,
    tolerance: float = 1e-4,
    choose: Callable[[Sequence[Claim]], Iterable[Claim]] = tuple,
) -> Report:
    """Checks that lox keeps its laws for a function, with and without `jit`.

    Args:
        fun: A function that logs. It must return the same when called again. What it returns and logs alone is what
            it must return and log under transformations; for a `Program` it is what `reference` says.
        *args: Its arguments: pytrees of arrays.
        laws: Which laws, of `lox.testing.LAWS`.
        lanes: Arguments of the calls that are batched under `vmap`, of the same shapes. By default `args`, and twice
            more with its floats changed.
        spool: Keywords of `lox.spool`. By default ``{"unify": True, "max_iters": 16}``.
        tolerance: How far floats may be apart, relative and absolute.
        choose: Takes what a law claims and returns what of it to check: everything by default, which compiles about
            a hundred programs.

    Returns:
        The laws that hold, and the reasons why others do not apply.

    Raises:
        BrokenLaw: A law does not hold. The message names the first difference: key, event, lane, what was expected
            and what was found. An `AssertionError`.
        ValueError: There is nothing to check: the function logs nothing, it returns something else each time, no law
            was given or none applies, or a loop runs longer than `max_iters`.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> from lox import testing
    >>> def f(x):
    ...     def step(total, x):
    ...         lox.log({"total": total})
    ...         return total + x, None
    ...     return jax.lax.scan(step, 0.0, x)[0]
    >>> testing.check(f, jnp.arange(3.0), laws=[testing.jit, testing.scan]).kept
    ('jit', 'scan')
    """
    laws = tuple(laws)
    if not laws:
        raise ValueError("There is nothing to check: no law was given.")
    options = {"unify": True, "max_iters": 16} | (spool or {})
    subject = Subject(fun, tuple(lanes) if lanes is not None else _lanes(args), options, tolerance)
    _is_fit(subject)
    kept, not_applicable, checked = [], {}, 0
    for law in laws:
        number = 0
        try:
            for claim in choose(tuple(law(subject))):
                try:
                    claim.verify()
                except DoesNotApply as reason:
                    not_applicable[law.__name__] = str(reason)
                else:
                    number += 1
        except DoesNotApply as reason:
            not_applicable[law.__name__] = str(reason)
        except BrokenLaw as broken:
            broken.add_note(f"The law is {law.__name__}. {law.__doc__}")
            raise
        if number:
            kept.append(law.__name__)
            checked += number
    if not checked:
        raise ValueError(f"There is nothing to check: no law applies. {not_applicable}")
    return Report(tuple(kept), {name: why for name, why in not_applicable.items() if name not in kept}, checked)


def _is_fit(subject: Subject) -> None:
    """Raises ValueError if nothing can be said of the function."""
    if not subject.keys and not subject.alone.events:
        raise ValueError("There is nothing to check: the function logs nothing for these arguments.")
    if isinstance(subject.fun, Program):  # It is deterministic, and its reference has no bounds.
        return
    first, again = (subject.spool(subject.fun)(*subject.args) for _ in range(2))
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        if not same(one, other, subject.tolerance):
            raise ValueError("The function cannot be checked: it does something else when it is called again.")
    if "while" in subject.primitives:
        _, bounded = jax.jit(subject.spool(subject.fun))(*subject.args)
        for key, dropped in bounded.dropped.items():
            if np.any(dropped):
                raise ValueError(f"max_iters is too small: {dropped} events of key {key!r} were dropped.")


def _lanes(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    def changed(factor: float) -> Any:
        def change(leaf: Any) -> Any:
            leaf = jnp.asarray(leaf)
            return leaf * jnp.asarray(factor, leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

        return jax.tree.map(change, args)

    return (args, changed(0.5), changed(-1.0))
