"""The functions that a program differentiates itself, by `jax.grad` and its like: traced where they are differentiated.

While an audit traces, each leaves an equation in the program that has no operands and no results, and so goes
unchanged through all transformations. Its parameter has the program of the function before differentiation, to which
the checks of `differentiate=` apply.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import mlir

from lox import _compat
from lox._arguments import path_name
from lox._audit._facts import Fact, of_constant, unknown
from lox._logs_in import jaxprs_in

watching = jax.make_user_context(False)
"""Whether the functions that are differentiated are traced for an audit."""


@dataclasses.dataclass(frozen=True, eq=False)
class Differentiated:
    """A function that a program differentiates.

    Attributes:
        fun: The function.
        program: Its jaxpr, whose first inputs are the values that it closes over.
        facts: What is known of its inputs.
        arguments: The names of its inputs, those of what it closes over empty.
        by: The names of those that it is differentiated by.
    """

    fun: Callable[..., Any]
    program: Any
    facts: tuple[Fact, ...]
    arguments: tuple[str, ...]
    by: tuple[str, ...]


differentiated_p = jex.core.Primitive("lox_differentiated")
differentiated_p.multiple_results = True
differentiated_p.def_abstract_eval(lambda **_: [])
differentiated_p.def_impl(lambda **_: [])
mlir.register_lowering(differentiated_p, lambda _, **__: [])


def note(fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool) -> None:
    """Leave an equation that has the program of a function that is about to be differentiated."""
    if not watching.value:
        return
    try:
        found = _traced(fun, primals, has_aux)
    except Exception:  # noqa: BLE001  (differentiating it raises the same, and that is what the program does)
        return
    if found is not None:
        differentiated_p.bind(of=found)


def _traced(fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool) -> Differentiated | None:
    """The program of a function of real numbers with one real number as its result, or None of another one."""
    leaves, structure = jax.tree.flatten(tuple(primals))

    def flat(*leaves: Any) -> list[Any]:
        result = fun(*jax.tree.unflatten(structure, leaves))
        return jax.tree.leaves(result[0] if has_aux else result)

    program, closed_over = _compat.trace(flat, [jax.typeof(leaf) for leaf in leaves], "differentiated")
    results = _compat.out_avals(program)
    if len(results) != 1 or results[0].shape or not jnp.issubdtype(results[0].dtype, jnp.floating):
        return None
    original, names = _names(fun, primals)
    avals = _compat.in_avals(program)
    constants = [unknown(jax.typeof(x)) if isinstance(x, jax.core.Tracer) else of_constant(x) for x in closed_over]
    facts = (*constants, *map(unknown, avals[len(closed_over) :]))
    return Differentiated(original, program, facts, (*[""] * len(closed_over), *names), tuple(names))


def _names(fun: Callable[..., Any], primals: Sequence[Any]) -> tuple[Callable[..., Any], list[str]]:
    """The function that the user differentiates, and the names of the arrays by which."""
    original, places = _compat.function_of_arguments(fun)
    try:
        parameters = list(inspect.signature(original).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    names = []
    for place, primal in enumerate(primals):
        number = places[place] if place < len(places) else place
        name = named[number] if number < len(named) else f"args/{number}"
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(primal)[0]]
        names += [f"{name}/{path_name(path)}" if path else name for path in paths]
    return original, names


def differentiated_in(jaxpr: Any) -> Iterator[tuple[Any, Differentiated]]:
    """The functions that a program differentiates, each once, with the equations that they left."""
    seen: set[Any] = set()
    left = [_compat.open_jaxpr(jaxpr)]
    while left:
        here = left.pop()
        if here in seen:
            continue
        seen.add(here)
        for equation in here.eqns:
            if equation.primitive is differentiated_p and equation.params["of"] not in seen:
                seen.add(equation.params["of"])
                left.append(_compat.open_jaxpr(equation.params["of"].program))
                yield equation, equation.params["of"]
            left += map(_compat.open_jaxpr, jaxprs_in(equation.params))
