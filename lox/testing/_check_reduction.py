"""`lox.testing.check_reduction`: whether a reduction gives the same however its events are grouped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox._reduce import AnyReduction, read_reduction
from lox.testing._compare import same
from lox.testing._subject import BrokenLaw

KEY = "value"


def check_reduction(reduction: AnyReduction, values: Any, *, tolerance: float = 1e-4) -> None:
    """Check that a reduction does not depend on how loops and functions group the events.

    They are split in two and in three at each of several places, into loops of their own and into functions; masked
    ones come between them; they are batch elements of a `vmap`; and unless the reduction is `ordered`, they come in
    another order. Whether the result is what you mean, it does not say.

    Args:
        reduction: What `reduce=` takes for a key, such as a `lox.reductions.Reduction`.
        values: The events, stacked along the first axis: at least 2.
        tolerance: How far floats may be apart, relative and absolute.

    Raises:
        BrokenLaw: It does not. The message says how the events were grouped, and has both results. An
            `AssertionError`.
        ValueError: There are fewer than 2 events, or the tolerance is none.

    >>> import jax.numpy as jnp
    >>> import lox.testing
    >>> mean = lox.reductions.Reduction(
    ...     init=(0.0, 0.0),
    ...     step=lambda state, x: (state[0] + x, state[1] + 1),
    ...     merge=lambda first, second: (first[0] + second[0], first[1] + second[1]),
    ...     finish=lambda state: state[0] / state[1],
    ... )
    >>> lox.testing.check_reduction(mean, jnp.array([3.0, 1.0, 4.0, 1.0, 5.0]))
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be a number of at least 0, got {tolerance!r}.")
    values = jnp.asarray(values)
    if not values.ndim or len(values) < 2:
        raise ValueError(f"check_reduction takes at least 2 events, stacked along the first axis, got {values!r}.")
    is_ordered = read_reduction(reduction).is_ordered
    names = [f"{kind}{how}" for how, _, _ in _groupings(values, is_ordered) for kind in ("", "jit of ")]
    wanted, results, pairs = jax.jit(lambda values: _in_one_program(reduction, values, is_ordered))(values)
    _compare("a Python loop", wanted, _reduced(reduction, _in_python, values), reduction, tolerance)
    for how, result in zip(names, results, strict=True):
        _compare(how, wanted, result, reduction, tolerance)
    for element, (alone, batched) in enumerate(pairs):
        _compare(f"batch element {element} of vmap", alone, batched, reduction, tolerance)


def _in_one_program(reduction: AnyReduction, values: Any, is_ordered: bool) -> tuple[Any, list[Any], list[Any]]:
    """The results of a loop, of each grouping, and of batch elements alone and under vmap, compiled as one program."""
    found = []
    for _, fun, events in _groupings(values, is_ordered):
        found += [_reduced(reduction, each, events) for each in (fun, jax.jit(fun))]
    pair = jnp.stack([values, values[::-1]])
    batched = jax.vmap(lambda events: _reduced(reduction, _loop, events))(pair)
    pairs = [(_reduced(reduction, _loop, events), batched[element]) for element, events in enumerate(pair)]
    return _reduced(reduction, _loop, values), found, pairs


def _groupings(values: Any, is_ordered: bool) -> Iterator[tuple[str, Callable[[Any], None], Any]]:
    number = len(values)
    yield "a Python loop", _in_python, values
    places = sorted({0, 1, number // 3, number // 2, number})

    def in_two(place: int) -> Callable[[Any], None]:
        def fun(values: Any) -> None:
            _loop(values[:place])
            _loop(values[place:])

        return fun

    def in_three(place: int) -> Callable[[Any], None]:
        def fun(values: Any) -> None:
            _loop(values[:place])
            jax.jit(in_two((number - place) // 2))(values[place:])

        return fun

    for place in places:
        yield f"loops of {place} and {number - place} events", in_two(place), values
        yield f"a loop of {place} events, and a function of two loops", in_three(place), values
    yield "a loop in which events come that do not happen", _with_masked, values
    yield "a loop with two branches", _in_branches, values
    if not is_ordered:
        yield "a loop of the events in the opposite order", _loop, values[::-1]
        yield "a loop of the events in another order", _loop, values[np.random.default_rng(0).permutation(number)]


def _reduced(reduction: AnyReduction, fun: Callable[[Any], None], values: Any) -> Any:
    return lox.spool(fun, reduce=reduction, unify=True)(values)[1][KEY][0]


def _log(value: Any, where: Any = None) -> None:
    lox.log({KEY: value}, where=where)


def _loop(values: Any) -> None:
    def step(carry: None, value: Any) -> tuple[None, None]:
        _log(value)
        return carry, None

    jax.lax.scan(step, None, values)


def _in_python(values: Any) -> None:
    for value in values:
        _log(value)


def _with_masked(values: Any) -> None:
    def step(carry: None, place: Any) -> tuple[None, None]:
        _log(values[len(values) - 1 - place], where=place < 0)
        _log(values[place], where=place >= 0)
        return carry, None

    jax.lax.scan(step, None, jnp.arange(len(values)))


def _in_branches(values: Any) -> None:
    def step(carry: None, place: Any) -> tuple[None, None]:
        jax.lax.cond(place % 2 == 0, lambda: _log(values[place]), lambda: _loop(values[place][None]))
        return carry, None

    jax.lax.scan(step, None, jnp.arange(len(values)))


def _compare(how: str, wanted: Any, found: Any, reduction: AnyReduction, tolerance: float) -> None:
    if not same(np.asarray(wanted), np.asarray(found), tolerance):
        raise BrokenLaw(f"{reduction} gives {wanted} of the events in one loop, but {found} in: {how}.")
