"""Evaluates a jaxpr by a function of its equations, with jitted functions and the like inlined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
from jax.extend.core import Literal

from lox import _compat
from lox._audit._rules import primitives
from lox._nonfinite._axes import axes_p
from lox._nonfinite._branches import runs_for_all

_listed = jex.core.primitives

CALLS = {
    _listed.jit_p: "jaxpr",
    _listed.remat_p: "jaxpr",
    _listed.closed_call_p: "call_jaxpr",
    _listed.custom_jvp_call_p: "call_jaxpr",
    _listed.custom_vjp_call_p: "call_jaxpr",
}
"""The primitives that call one jaxpr, with the parameter that it is."""

_CASTS = primitives("pvary")
_SUMS = primitives("psum_invariant")
_LOOPS_AND_BRANCHES = frozenset({_listed.scan_p, _listed.while_p, _listed.cond_p})

Bind = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""Gives the results of an equation for these operands."""


def run_equations(
    jaxpr: Any, args: Sequence[Any], bind: Bind, fixed: Callable[[Any], Any] = lambda value: value
) -> list[Any]:
    """Run a jaxpr equation by equation.

    Args:
        jaxpr: The jaxpr.
        args: Its arguments.
        bind: Runs an equation.
        fixed: Maps constants and literals.
    """
    given = _compat.open_jaxpr(jaxpr)
    values: dict[Any, Any] = dict(zip(given.constvars, map(fixed, getattr(jaxpr, "consts", ())), strict=True))
    values.update(zip(given.invars, args, strict=True))
    read = lambda atom: fixed(atom.val) if isinstance(atom, Literal) else values[atom]  # noqa: E731
    for eqn in given.eqns:
        values.update(zip(eqn.outvars, bind(eqn, list(map(read, eqn.invars))), strict=True))
    return list(map(read, given.outvars))


def evaluate(
    jaxpr: Any, args: Sequence[Any], bind: Callable[[Any, Sequence[Any], bool], Sequence[Any]], for_all: bool = False
) -> list[Any]:
    """Evaluate a jaxpr, and what it calls.

    Args:
        jaxpr: The jaxpr.
        args: Its arguments.
        bind: Runs an equation, told whether it is in a branch that runs for all batch elements.
        for_all: Whether the whole jaxpr is in one.
    """

    def run(eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        inside = for_all or runs_for_all(eqn.source_info.name_stack)
        if eqn.primitive in CALLS:
            return evaluate(eqn.params[CALLS[eqn.primitive]], inputs, bind, inside)
        return inputs if eqn.primitive is axes_p else bind(eqn, inputs, inside)

    return run_equations(jaxpr, args, run)


def bind(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """The results of an operation."""
    outs = primitive.bind(*args, **primitive.get_bind_params(params))
    return outs if primitive.multiple_results else [outs]  # type: ignore[no-any-return]


def bind_on_shards(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """The results of an operation where JAX does not track which values vary over shards, although it did before."""
    if primitive in _CASTS:
        return args
    if primitive in _SUMS:
        return [jax.lax.psum(arg, params["axes"]) for arg in args]
    if primitive in _LOOPS_AND_BRANCHES:
        params = {name: _compat.map_jaxprs(_without_varying, value) for name, value in params.items()}
    return bind(primitive, args, params)


def on_shards(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function that a jaxpr stands for, where JAX does not track which values vary over shards."""
    return lambda *args: evaluate(jaxpr, args, lambda eqn, inputs, _: bind_on_shards(eqn.primitive, inputs, eqn.params))


def _without_varying(jaxpr: Any) -> Any:
    avals = [
        jax.core.ShapedArray(aval.shape, aval.dtype, aval.weak_type) if type(aval) is jax.core.ShapedArray else aval
        for aval in _compat.in_avals(jaxpr)
    ]
    return _compat.trace(on_shards(jaxpr), avals, "lox")[0]
