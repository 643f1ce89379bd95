"""Jaxprs: open and closed ones, which are one class from jax 0.11 on, and how functions become jaxprs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
from jax.api_util import debug_info
from jax.extend.linear_util import wrap_init
from jax.interpreters import partial_eval

int32_scalar = jax.core.ShapedArray((), "int32")

_ONE_CLASS = jex.core.Jaxpr is jex.core.ClosedJaxpr


def is_jaxpr(value: Any) -> bool:
    """Tell whether `value` is a jaxpr, open or closed."""
    return isinstance(value, (jex.core.Jaxpr, jex.core.ClosedJaxpr))


def open_jaxpr(jaxpr: Any) -> Any:
    """The equations, variables and effects of an open or closed jaxpr."""
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


def as_fun(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function of flat values that a jaxpr without free constants stands for."""
    consts = getattr(jaxpr, "consts", ())
    return lambda *args: jax.core.eval_jaxpr(open_jaxpr(jaxpr), consts, *args)


def in_avals(jaxpr: Any) -> list[Any]:
    return [v.aval for v in open_jaxpr(jaxpr).invars]


def out_avals(jaxpr: Any) -> list[Any]:
    return [v.aval for v in open_jaxpr(jaxpr).outvars]


def trace(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], name: str) -> tuple[Any, list[Any]]:
    """Trace a flat function to a jaxpr whose captured values are its leading inputs.

    `jax.make_jaxpr` takes shapes and dtypes only; abstract values also carry refs, shardings and varying axes.

    Returns:
        The jaxpr, closed and without constants, and the values to pass for its leading inputs.
    """
    wrapped = wrap_init(fun, debug_info=debug_info(name, fun, tuple(avals), {}))
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    if _ONE_CLASS:
        return partial_eval.close_jaxpr(partial_eval.convert_constvars_jaxpr(jaxpr)), list(consts)
    return closed(_with_inputs(jaxpr)), list(consts)


def _with_inputs(jaxpr: Any) -> Any:
    """A jaxpr of jax 0.10 whose constants are leading inputs."""
    debug = jaxpr.debug_info
    if debug.arg_names is not None:
        debug = debug._replace(arg_names=("",) * len(jaxpr.constvars) + tuple(debug.arg_names))
    return jaxpr.replace(constvars=(), invars=[*jaxpr.constvars, *jaxpr.invars], debug_info=debug)


def named_as(jaxpr: Any, original: Any) -> Any:
    """A closed jaxpr that says that it is of the function that another is of."""
    given = open_jaxpr(jaxpr)
    debug = given.debug_info._replace(func_src_info=open_jaxpr(original).debug_info.func_src_info)
    named = given.replace(debug_info=debug)
    return named if given is jaxpr else jex.core.ClosedJaxpr(named, jaxpr.consts)


def is_ref(aval: Any) -> bool:
    """Tell whether a value of this type is memory that is written to."""
    return hasattr(aval, "inner_aval")


def aval_of(value: Any) -> Any:
    """The abstract value of an array, or of a value that is abstract already."""
    return value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)


def abstract(fun: Callable[[Any], Any], tree: Any) -> Any:
    """Call `fun` with a pytree of abstract values; the result has abstract values in place of arrays.

    `jax.eval_shape` does the same for shapes and dtypes only.
    """
    avals, structure = jax.tree.flatten(tree)
    out_structure: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_structure
        outs, out_structure = jax.tree.flatten(fun(jax.tree.unflatten(structure, leaves)))
        return outs

    jaxpr, _ = trace(flat, avals, "lox")
    return jax.tree.unflatten(out_structure, out_avals(jaxpr))


def prune(
    jaxpr: Any, used_outs: Sequence[bool], kept_ins: Sequence[bool], is_live: Callable[[Any], bool]
) -> tuple[Any, list[bool]]:
    """A closed jaxpr reduced to what these outputs need, and which of its inputs that is.

    Args:
        jaxpr: A closed jaxpr without constants.
        used_outs: Which outputs to compute.
        kept_ins: Which inputs to keep even if nothing needs them.
        is_live: Whether to keep an equation whose outputs nothing needs. (JAX's own elimination of dead code drops
            what has effects inside a `jit` on jax 0.10.)
    """
    given = open_jaxpr(jaxpr)
    outvars = [var for var, used in zip(given.outvars, used_outs, strict=True) if used]
    needed = set(variables(outvars))
    eqns = []
    for eqn in reversed(given.eqns):
        if is_live(eqn) or not needed.isdisjoint(variables(eqn.outvars)):
            eqns.append(eqn)
            needed.update(variables(eqn.invars))
    used_ins = [kept or var in needed for var, kept in zip(given.invars, kept_ins, strict=True)]
    invars = [var for var, used in zip(given.invars, used_ins, strict=True) if used]
    debug = given.debug_info.with_unknown_names()
    pruned = given.replace(invars=invars, outvars=outvars, eqns=eqns[::-1], debug_info=debug)
    return closed(pruned), used_ins


def closed(jaxpr: Any) -> Any:
    """An open jaxpr without constants as a closed one."""
    return jaxpr if _ONE_CLASS else jex.core.ClosedJaxpr(jaxpr, ())


def map_jaxprs(function: Callable[[Any], Any], value: Any) -> Any:
    """A parameter of a primitive with a function applied to each jaxpr in it."""
    if is_jaxpr(value):
        return function(value)
    make = type(value) if type(value) in (tuple, list) else getattr(value, "_make", None)  # That of a named tuple.
    return value if make is None else make(map_jaxprs(function, each) for each in value)


def filter_equations(
    jaxpr: Any, keeps: Callable[[Any], bool], params: Callable[[Any], dict[str, Any]], derived: type | tuple[type, ...]
) -> Any:
    """A jaxpr with some of its equations, which have other parameters. Those that are left out have no outputs.

    Args:
        jaxpr: A jaxpr, open or closed.
        keeps: Whether to keep an equation.
        params: The parameters of an equation that is kept.
        derived: The class of effects that the jaxpr has only as far as an equation that is kept has them.
    """
    given = open_jaxpr(jaxpr)
    eqns = []
    for eqn in filter(keeps, given.eqns):
        changed = params(eqn)
        inner: list[Any] = []
        for value in changed.values():
            map_jaxprs(inner.append, value)
        found = [effect for each in inner for effect in open_jaxpr(each).effects]
        effects = {each for each in eqn.effects if not inner or not isinstance(each, derived) or each in found}
        eqns.append(eqn.replace(params=changed, effects=effects))
    found = [effect for eqn in eqns for effect in eqn.effects]
    effects = {each for each in given.effects if not isinstance(each, derived) or each in found}
    filtered = given.replace(eqns=eqns, effects=effects)
    return filtered if given is jaxpr else jex.core.ClosedJaxpr(filtered, jaxpr.consts)


def variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if isinstance(atom, jex.core.Var)]


def without_unused(jaxpr: Any) -> Any:
    """A closed jaxpr without the equations that its outputs do not depend on, whatever effects these have."""
    given = open_jaxpr(jaxpr)
    used, kept = set(variables(given.outvars)), []
    for eqn in reversed(given.eqns):
        if not used.isdisjoint(eqn.outvars):
            kept.append(eqn)
            used.update(variables(eqn.invars))
    wanted = set(map(id, kept))
    return filter_equations(jaxpr, lambda eqn: id(eqn) in wanted, lambda eqn: eqn.params, object)
