"""Looks for NaN in compiled programs: in the carry of a loop, and in the operands of a condition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._leading_axes import where
from lox._nonfinite._evaluate import bind, bind_on_shards, evaluate, on_shards
from lox._nonfinite._flow import COMPARISONS
from lox._nonfinite._record import has_loops, is_float, without_logs
from lox._nonfinite._shards import Shards
from lox._rules._scan import operands, options, run_scan
from lox._rules._while import split_args

FlagOf = Callable[[Any, Sequence[Any], Sequence[Any]], Any]
"""Tells of an equation, its operands and its results whether it is flagged."""

_listed = jex.core.primitives


def any_of(test: Callable[[Any], Any], values: Sequence[Any]) -> Any:
    """Tell whether a test finds an element of one of some values."""
    flags = [test(value).any() for value in values if is_float(value)]
    return functools.reduce(jnp.logical_or, flags, jnp.bool_(False))


def nothing(eqn: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """Flag no equation by itself."""
    return jnp.bool_(False)


def any_nan(eqn: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """Flag an equation with a NaN in a result."""
    return any_of(jnp.isnan, results)


def compares_nan(eqn: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """Flag a comparison of NaN; ``x != x`` asks for it."""
    asks = eqn.primitive in COMPARISONS and eqn.invars[0] is not eqn.invars[-1]
    return any_of(jnp.isnan, operands) if asks else jnp.bool_(False)


def flagged(jaxpr: Any, flag_of: FlagOf, shards: Shards | None, for_all: bool) -> Callable[..., tuple[list[Any], Any]]:
    """The function that a jaxpr stands for, which also returns whether something in it is flagged.

    That is an equation, the carry of a loop inside, or what the condition of one compares; of a loop in a branch that
    runs for all batch elements, neither: its results are NaN for elements in which one would be.
    """
    jaxpr = without_logs(jaxpr)
    if flag_of is nothing and not has_loops(jaxpr):
        plain = _compat.as_fun(jaxpr) if shards is None else on_shards(jaxpr)
        return lambda *args: (plain(*args), jnp.bool_(False))
    one = bind if shards is None else bind_on_shards

    def run(*args: Any) -> tuple[list[Any], Any]:
        flag = jnp.bool_(False)

        def bind_flagged(eqn: Any, inputs: Sequence[Any], for_all: bool) -> Sequence[Any]:
            nonlocal flag
            rule = _rules.get(eqn.primitive)
            if rule is not None:
                outs, inside = rule(eqn.params, inputs, flag_of, shards, for_all)
            else:
                outs = list(one(eqn.primitive, inputs, eqn.params))
                inside = flag_of(eqn, inputs, outs)
            flag |= inside
            return outs

        return evaluate(jaxpr, args, bind_flagged, for_all), flag

    return run


class Condition:
    """The condition of a `while_loop`, and what NaN does to it.

    Args:
        jaxpr: The condition.
        carry: What the loop carries.
        shards: The shards on which it runs, if any.
        for_all: Whether it is in a branch that runs for all batch elements.
    """

    def __init__(self, jaxpr: Any, carry: Sequence[Any], shards: Shards | None, for_all: bool) -> None:
        self._jaxpr, self._shards = without_logs(jaxpr), shards
        self._poisons = for_all and any(map(is_float, carry))
        self._run = flagged(jaxpr, nothing if self._poisons else compares_nan, shards, for_all)

    def __call__(self, consts: Sequence[Any], carry: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
        """Tell whether the loop goes on, and whether the condition compares NaN; and the carry.

        Batch elements whose carry has a NaN stand still: nothing else may end them. In a branch that runs for all
        elements a comparison of NaN may be of one that does not take it: there the carry of elements for which it
        decides becomes NaN, which is dropped with it.
        """
        (going,), compares = self._run(*consts, *carry)
        carry = list(carry)
        if self._poisons:
            decided = going ^ self._flipped(*consts, *carry)
            carry = [where(decided, jnp.full_like(each, jnp.nan), each) if is_float(each) else each for each in carry]
            going &= ~decided
        for value in filter(is_float, carry):
            if going.ndim and value.shape[: going.ndim] == going.shape:
                going &= ~jnp.isnan(value).any(axis=tuple(range(going.ndim, value.ndim)))
        return going, compares, carry

    def _flipped(self, *args: Any) -> Any:
        """The condition with the contrary of each comparison of NaN."""
        one = bind if self._shards is None else bind_on_shards

        def flip(eqn: Any, inputs: Sequence[Any], for_all: bool) -> Sequence[Any]:
            outs = one(eqn.primitive, inputs, eqn.params)
            if eqn.primitive not in COMPARISONS or eqn.invars[0] is eqn.invars[-1]:
                return outs
            (holds,) = outs
            for value in filter(is_float, inputs):
                holds = jnp.where(jnp.isnan(value), ~outs[0], holds)
            return [holds]

        (going,) = evaluate(self._jaxpr, args, flip)
        return going


def across(shards: Shards | None, flag: Any) -> Any:
    """Whether a flag is set on any shard."""
    return flag if shards is None else shards.any(flag)


def _scan(
    params: Any, args: Sequence[Any], flag_of: FlagOf, shards: Shards | None, for_all: bool
) -> tuple[list[Any], Any]:
    consts, init, xs = operands(args, params)
    body = flagged(params["jaxpr"], flag_of, shards, for_all)

    def iterate(flag: Any, _: Any, *values: Any) -> tuple[Sequence[Any], Any, Any]:
        outs, inside = body(*consts, *values)
        return outs, flag | inside | (not for_all and any_of(jnp.isnan, outs[: len(init)])), ()

    outs, flag, _ = run_scan(iterate, jnp.bool_(False), init, xs, **options(params))
    return outs, flag


def until_flagged(params: Any, args: Sequence[Any], shards: Shards | None, for_all: bool) -> list[Any]:
    """The results of a scan whose iterations do nothing once something in one was flagged: a loop in it may not end."""
    consts, init, xs = operands(args, params)
    body = flagged(params["jaxpr"], nothing, shards, for_all)
    stacked = _compat.out_avals(params["jaxpr"])[len(init) :]

    def iterate(flag: Any, _: Any, *values: Any) -> tuple[Sequence[Any], Any, Any]:
        nothing_more = lambda: ([*values[: len(init)], *(jnp.zeros(y.shape, y.dtype) for y in stacked)], flag)  # noqa: E731
        outs, inside = jax.lax.cond(flag, nothing_more, lambda: body(*consts, *values))
        return outs, flag | across(shards, inside), ()

    return run_scan(iterate, jnp.bool_(False), init, xs, **options(params))[0]


def _while(
    params: Any, args: Sequence[Any], flag_of: FlagOf, shards: Shards | None, for_all: bool
) -> tuple[list[Any], Any]:
    of_condition, consts, init = split_args(args, params)
    body = flagged(params["body_jaxpr"], flag_of, shards, for_all)
    test = Condition(params["cond_jaxpr"], init, shards, for_all)

    def iterate(state: Any) -> Any:
        going, flag, carry = state
        outs, inside = body(*consts, *carry)
        new = [where(going, after, before) for after, before in zip(outs, carry, strict=True)]
        again, compares, new = test(of_condition, new)
        return again & going, flag | inside | compares | (not for_all and any_of(jnp.isnan, new)), new

    def continues(state: Any) -> Any:
        going, flag, _ = state
        return across(shards, going.any()) & ~across(shards, flag)

    _, flag, carry = jax.lax.while_loop(continues, iterate, test(of_condition, init))
    return carry, flag


def _cond(
    params: Any, args: Sequence[Any], flag_of: FlagOf, shards: Shards | None, for_all: bool
) -> tuple[list[Any], Any]:
    index, *inputs = args
    branches = [flagged(branch, flag_of, shards, for_all) for branch in params["branches"]]
    outs, flag = jax.lax.switch(index.astype(jnp.int32), branches, *inputs)
    return list(outs), flag


_rules = {_listed.scan_p: _scan, _listed.while_p: _while, _listed.cond_p: _cond}
