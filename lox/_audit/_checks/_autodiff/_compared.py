"""Rules of `jax.custom_jvp` and `jax.custom_vjp` that are compared with their functions where one asks for it.

This computes, with ``check_rules=True`` alone: each function with a rule of the user's, on random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._rules import Point, Ruled, equations_in, is_estimated, is_plain, is_real, ruled_steps
from lox._audit._findings import Finding, Held, Kind, Severity
from lox._audit._location import Location
from lox._audit._rules import primitives

COMPARED = Kind(
    "LOX615",
    "warning",
    "A custom derivative rule was compared with its function, and differs",
    "Mend the rule. If another derivative is meant, as of a straight-through estimator or to clip or reverse "
    "gradients, leave the finding out with ignore='LOX615' or a comment.",
    "Custom derivative rules give the derivatives of their functions at random numbers.",
    "Each rule was compared with the derivative of its function, in a random direction for each argument.",
)

_CALLBACKS = primitives("pure_callback", "io_callback", "debug_callback", "debug_print", "ffi_call", "pallas_call")
_LOOPS = primitives("scan", "while")
_BACKWARD = primitives("custom_vjp_call")
_MOST_ELEMENTS = 10_000
_MOST_BETWEEN = 1_000_000
_MOST_ITERATIONS = 1000
_TOLERANCE = 0.01
"""By how much of the sum of the sizes of all changes a change may differ."""

_ROUNDS = 3


def compared(audited: Audited) -> Iterator[Finding | Held]:
    """LOX615: with `check_rules=True`, a rule gives another derivative than its function has."""
    if not audited.check_rules:
        return
    for equation, location, name in ruled_steps(audited):
        with jax.ensure_compile_time_eval():
            yield from _judged(Ruled(equation), location, name)


def _judged(rule: Ruled, location: Location, name: str) -> Iterator[Finding | Held]:
    why = _obstacle(rule)
    found = {}
    if not why:
        try:
            found = _differences(rule)
        except Exception as error:  # noqa: BLE001  (JAX cannot differentiate the function, or not where it is)
            why = f"comparing them raises {type(error).__name__}"
    if why:
        text = f"The derivative rule of '{name}' was not compared with its function: {why}."
        yield COMPARED.at(location, text, severity="info")
    elif not any(any(each) for each in found.values()):
        yield COMPARED.fine(location)
    for place, differences in found.items():
        wrong = [each for each in differences if each]
        if wrong:
            is_zero, is_most = math.isinf(max(wrong)), len(wrong) > 0.7 * len(differences) >= _ROUNDS
            certain: Severity = "error" if is_most and not is_zero and not is_estimated(rule.jaxpr) else "warning"
            yield COMPARED.at(
                location,
                f"The rule of '{name}' gives {'zero for the derivative' if is_zero else 'another derivative'} by "
                f"{_called(rule, place)} {'where it is not' if is_zero else 'than the function has'}, at {len(wrong)} "
                f"of {len(differences)} points that were tried.",
                severity="info" if _returns_what_it_gets(rule.jaxpr) else certain,
            )


def _returns_what_it_gets(jaxpr: Any) -> bool:
    """Whether a function returns its argument: its rule is there to reverse, scale or clip gradients."""
    opened = _compat.open_jaxpr(jaxpr)
    return not set(opened.invars).isdisjoint(opened.outvars)


def _called(rule: Ruled, place: int) -> str:
    """What to call an argument of a function with a rule."""
    names = _compat.open_jaxpr(rule.jaxpr).debug_info.arg_names or ()
    name = names[place] if place < len(names) else ""
    return repr(name) if name else f"argument {place}"


def _obstacle(rule: Ruled) -> str:
    """Why a rule is not compared with its function; nothing if it is."""
    try:
        traced = rule.traced
    except Exception as error:  # noqa: BLE001  (whatever the rule raises)
        return f"it raises {type(error).__name__}"
    steps = [*equations_in(rule.jaxpr), *equations_in(traced)]
    used = {equation.primitive for equation in steps}
    if not rule.real:
        return "it takes no real numbers"
    if _compat.open_jaxpr(rule.jaxpr).effects or traced.effects or used & _CALLBACKS:
        return "they do more than compute"
    if getattr(_compat.open_jaxpr(rule.jaxpr), "constvars", ()):
        return "it closes over arrays"
    loops = [equation.params.get("length", math.inf) for equation in steps if equation.primitive in _LOOPS]
    if any(length > _MOST_ITERATIONS for length in loops):
        return "they have loops that may take long"
    between = [var.aval for equation in equations_in(rule.jaxpr) for var in equation.outvars]
    if not all(is_plain(aval, _MOST_ELEMENTS) for aval in rule.avals):
        return f"it takes more than {_MOST_ELEMENTS} elements, or what are no numbers"
    return "" if all(is_plain(aval, _MOST_BETWEEN) for aval in between) else "its arrays are large, or no numbers"


def _differences(rule: Ruled) -> dict[int, list[float]]:
    """By how much the derivatives by each argument differ at some points: 0 for what is near enough, infinity where the
    rule says zero."""
    random = np.random.default_rng(0)
    measured = jax.jit(lambda *given: _changes(rule, *given))
    found: dict[int, list[float]] = {place: [] for place in rule.real}
    for number in range(len(rule.families) * _ROUNDS):
        point = rule.point(number, random)
        directions = [random.normal(size=rule.avals[place].shape).astype(point[place].dtype) for place in rule.real]
        real = [aval for aval in rule.results if is_real(aval)]
        cotangents = [random.normal(size=aval.shape).astype(aval.dtype) for aval in real]
        for place, (by_rule, by_jax, size) in zip(rule.real, measured(point, directions, cotangents), strict=True):
            if np.isfinite(by_jax) and np.isfinite(size):
                off = abs(float(by_rule) - float(by_jax)) / max(float(size), abs(float(by_rule)), 1e-30)
                differs = math.inf if by_rule == 0 else off
                found[place].append(0.0 if off <= _TOLERANCE else differs)
    return found


def _changes(rule: Ruled, args: Point, directions: Point, cotangents: Point) -> list[tuple[Any, Any, Any]]:
    """For each argument, the change of the results by the rule and by the function, and the size of the latter."""
    plain, values = rule.of_real(_compat.as_fun(rule.jaxpr), args)
    ruled, _ = rule.of_real(rule.with_rule, args)
    is_backward = any(each.primitive in _BACKWARD for each in equations_in(rule.jaxpr))
    found = []
    for place, direction in enumerate(directions):
        moved = [direction if other == place else jnp.zeros_like(value) for other, value in enumerate(values)]
        by_jax, size = _change(plain, values, moved, cotangents, is_backward)
        by_rule, _ = _change(ruled, values, moved, cotangents, rule.equation.primitive in _BACKWARD)
        found.append((by_rule, by_jax, size))
    return found


def _change(fun: Any, values: Point, direction: Point, cotangents: Point, is_backward: bool) -> tuple[Any, Any]:
    """The derivative along a direction and its size; backward for what JAX differentiates no other way."""
    if is_backward:
        return _sums(jax.vjp(fun, values)[1](cotangents)[0], direction)
    return _sums(jax.jvp(fun, (values,), (direction,))[1], cotangents)


def _sums(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, Any]:
    products = [left * right for left, right in zip(one, other, strict=True)]
    return sum(map(jnp.sum, products)), sum(jnp.abs(each).sum() for each in products)


KINDS = (COMPARED,)
CHECKS = (compared,)
