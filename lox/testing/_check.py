"""`lox.testing.check`: whether the laws hold for a function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._effect import recording
from lox.testing._compare import same
from lox.testing._laws import LAWS, Law
from lox.testing._program import Program
from lox.testing._subject import BrokenLaw, Claim, DoesNotApply, Function, NothingToCheck, Subject


@dataclasses.dataclass(frozen=True)
class Report:
    """The laws that a function was found to keep, and why others say nothing of it.

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
    batch: Sequence[tuple[Any, ...]] | None = None,
    spool: dict[str, Any] | None = None,
    tolerance: float = 1e-4,
    choose: Callable[[Sequence[Claim]], Iterable[Claim]] = tuple,
) -> Report:
    """Check that lox keeps its laws for a function, with and without `jit`.

    Args:
        fun: A function that logs. It must return the same when called again. What it returns and logs alone is what
            it must return and log under transformations; for a `Program` it is what `reference` says.
        *args: Its arguments: pytrees of arrays. Bind others with `functools.partial`.
        laws: Which laws, of `lox.testing.LAWS`.
        batch: Tuples of arguments of further calls, which are batched with `args` under `vmap`: of the same structure,
            shapes and dtypes. By default `args` twice more, with the floats somewhat smaller.
        spool: Keywords of `lox.spool`, of `unify`, `max_iters`, `max_events` and `on_while`. By default
            ``{"unify": True, "max_iters": 16}``.
        tolerance: How far floats may be apart, relative and absolute.
        choose: Takes what a law claims and returns what to check: everything by default, which compiles about
            a hundred programs.

    Returns:
        The laws that hold, and the reasons why others do not apply.

    Raises:
        BrokenLaw: A law does not hold. The message names the first difference: key, event, batch element, what was
            expected and what was found. An `AssertionError`.
        NothingToCheck: The function logs nothing, or no law was given or applies. A `ValueError`.
        ValueError: The function returns something else each time, or a loop runs longer than `max_iters`, or logs
            more than `max_events`. Or an argument is not as above.

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
    if recording.value or not _compat.is_top_level():
        raise ValueError("check transforms a function itself: call it outside of other transformations and handlers.")
    if not callable(fun):
        raise ValueError(f"check takes a function, got {fun!r}.")
    if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be a number of at least 0, got {tolerance!r}.")
    laws = _laws(laws)
    subject = Subject(fun, (args, *_batch(args, batch)), _options(spool), tolerance)
    _is_fit(subject)
    kept: dict[str, int] = {}
    not_applicable: dict[str, str] = {}
    for law in laws:
        try:
            claims = _claims(law, choose(_claims(law, law(subject))))
            for claim in claims:
                try:
                    _verify(claim)
                    kept[law.__name__] = kept.get(law.__name__, 0) + 1
                except DoesNotApply as reason:
                    not_applicable[law.__name__] = str(reason)
            if not claims:
                not_applicable[law.__name__] = "none of its claims was chosen"
        except DoesNotApply as reason:
            not_applicable[law.__name__] = str(reason)
        except BrokenLaw as broken:
            broken.add_note(f"The law is {law.__name__}. {law.__doc__}")
            raise
    if not kept:
        raise NothingToCheck(f"There is nothing to check: no law applies. {not_applicable}")
    left = {name: why for name, why in not_applicable.items() if name not in kept}
    return Report(tuple(kept), left, sum(kept.values()))


def _verify(claim: Claim) -> None:
    try:
        claim.verify()
    except (BrokenLaw, DoesNotApply):
        raise
    except Exception:
        if claim.plain is not None:
            try:
                claim.plain()
            except Exception as error:  # noqa: BLE001  (whatever JAX raises)
                raise DoesNotApply(f"JAX has no {claim.how} of it without lox: {error}") from None
        raise


def _laws(laws: Any) -> tuple[Law, ...]:
    if callable(laws) or isinstance(laws, str) or not isinstance(laws, Iterable):
        raise ValueError(f"laws must be a list of laws, of lox.testing.LAWS, got {laws!r}.")
    laws = tuple(dict.fromkeys(laws))
    if not laws:
        raise NothingToCheck("There is nothing to check: no law was given.")
    for law in laws:
        if not callable(law):
            raise ValueError(f"laws must be laws, of lox.testing.LAWS, got {law!r}.")
    return laws


def _claims(law: Law, claims: Any) -> tuple[Claim, ...]:
    claims = tuple(claims) if isinstance(claims, Iterable) else (claims,)
    for claim in claims:
        if not isinstance(claim, Claim):
            raise ValueError(f"A law makes claims, of which choose= takes some; for {law!r} there is {claim!r}.")
    return claims


def _options(spool: Any) -> dict[str, Any]:
    options = {} if spool is None else spool
    if not isinstance(options, Mapping) or not set(options) <= {"unify", "max_iters", "max_events", "on_while"}:
        raise ValueError(f"spool= takes unify, max_iters, max_events and on_while by name, got {spool!r}.")
    return {"unify": True, **({} if "max_events" in options else {"max_iters": 16}), **options}


def _batch(args: tuple[Any, ...], batch: Any) -> tuple[tuple[Any, ...], ...]:
    """The arguments of further calls, as they are given, or like those of the first."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(args):
        if not isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)):
            raise ValueError(
                f"check takes arguments that are pytrees of arrays, got {leaf!r} of type {type(leaf).__name__} at "
                f"{jax.tree_util.keystr(path)}. Bind what is none with functools.partial."
            )
    if batch is None:
        return _scaled(args, 0.5), _scaled(args, 0.75)
    if not isinstance(batch, Sequence) or not all(isinstance(each, tuple) for each in batch) or not batch:
        raise ValueError(f"batch= must be a list with a tuple of arguments for each further call, got {batch!r}.")
    for each in batch:
        given, first = jax.tree.map(_kind, each), jax.tree.map(_kind, args)
        if given != first:
            raise ValueError(
                "The arguments in batch= must have the structure, shapes and dtypes of the others, got "
                f"{given} next to {first}."
            )
    return tuple(batch)


def _kind(leaf: Any) -> str:
    return f"{jnp.result_type(leaf).name}{list(np.shape(leaf))}"


def _scaled(args: tuple[Any, ...], factor: float) -> tuple[Any, ...]:
    def scale(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        return leaf * jnp.asarray(factor, leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

    return jax.tree.map(scale, args)


def _is_fit(subject: Subject) -> None:
    """Raises ValueError if nothing can be said of the function."""
    changes = ValueError("The function cannot be checked: it does something else when it is called again.")
    if isinstance(subject.fun, Program):  # It is deterministic.
        if not subject.keys and not subject.alone.events:
            raise NothingToCheck("There is nothing to check: the program logs nothing.")
        return
    (out, logs), again = (subject.spool(subject.fun)(*subject.args) for _ in range(2))
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex)):
            raise ValueError(
                f"check takes functions that return pytrees of arrays, got {leaf!r} of type {type(leaf).__name__} at "
                f"{jax.tree_util.keystr(path) or 'the top'}."
            )
    if jax.tree.structure((out, logs)) != jax.tree.structure(again) or set(logs) != subject.keys:
        raise changes
    if not logs.data:
        raise NothingToCheck(
            "There is nothing to check: the function logs nothing for these arguments. What lox.log_grad watches is "
            "logged by a derivative: check jax.grad(f)."
        )
    for one, other in zip(jax.tree.leaves((out, logs)), jax.tree.leaves(again), strict=True):
        if not same(one, other, subject.tolerance):
            raise changes
    if "while" in subject.primitives:
        _, bounded = jax.jit(subject.spool(subject.fun))(*subject.args)
        for key, dropped in bounded.dropped.items():
            if np.any(dropped):
                raise ValueError(f"{subject.bound} is too small: {dropped} events of key {key!r} were dropped.")
