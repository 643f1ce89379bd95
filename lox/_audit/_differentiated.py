"""The functions that a program differentiates itself, by `jax.grad` and its like, before they are differentiated.

In a context of `watched`, each leaves an equation in the program that has no operands and no results, and so goes
unchanged through all transformations. Its parameter has the program of the function, to which the checks of
`differentiate=` apply.
"""

from __future__ import annotations

import contextlib
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
"""True where differentiated functions leave their programs. JAX caches traces in this context apart."""


@dataclasses.dataclass(frozen=True, eq=False)
class Differentiated:
    """A function that a program differentiates.

    Attributes:
        name: Its name.
        program: Its jaxpr, whose first inputs are the values that it closes over.
        result: The place among its outputs of the one that is differentiated.
        facts: What is known of its inputs.
        arguments: The names of its inputs, those of what it closes over empty.
        by: The names of those that it is differentiated by.
    """

    name: str
    program: Any
    result: int
    facts: tuple[Fact, ...]
    arguments: tuple[str, ...]
    by: tuple[str, ...]

    @property
    def called(self) -> str:
        """The name of its result in a report."""
        return "loss" if self.name == "<lambda>" else self.name


differentiated_p = jex.core.Primitive("lox_differentiated")
differentiated_p.multiple_results = True
differentiated_p.def_abstract_eval(lambda **_: [])
differentiated_p.def_impl(lambda **_: [])
mlir.register_lowering(differentiated_p, lambda _, **__: [])


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Let the functions that are differentiated in this context leave their programs."""
    _compat.wrap_gradients(_traced)
    with watching(True):
        yield


def _traced(fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool) -> Callable[..., Any]:
    """A function that is about to be differentiated, of which the program has been left in an equation.

    It is called once, as it may change what is outside it: what is differentiated is its program.
    """
    if not watching.value:
        return fun
    leaves, structure = jax.tree.flatten(tuple(primals))
    results: list[Any] = []
    result_structure: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal result_structure
        results[:], result_structure = jax.tree.flatten(fun(*jax.tree.unflatten(structure, leaves)))
        return [each for each in results if isinstance(each, jax.core.Tracer)]

    program, closed_over = _compat.trace(flat, [jax.typeof(leaf) for leaf in leaves], "differentiated")
    of_tracers = iter(range(len(results)))
    places = [next(of_tracers) if isinstance(each, jax.core.Tracer) else None for each in results]
    constants = [None if isinstance(each, jax.core.Tracer) else each for each in results]

    def replaced(*primals: Any) -> Any:
        computed = _compat.as_fun(program)(*closed_over, *jax.tree.leaves(tuple(primals)))
        leaves = [each if at is None else computed[at] for at, each in zip(places, constants, strict=True)]
        return jax.tree.unflatten(result_structure, leaves)

    loss = jax.tree.unflatten(result_structure, places)
    place = loss[0] if has_aux and isinstance(loss, (tuple, list)) and loss else loss
    avals = _compat.out_avals(program)
    if isinstance(place, int) and not avals[place].shape and jnp.issubdtype(avals[place].dtype, jnp.floating):
        name, names = _names(fun, primals)
        known = [unknown(jax.typeof(x)) if isinstance(x, jax.core.Tracer) else of_constant(x) for x in closed_over]
        facts = (*known, *map(unknown, _compat.in_avals(program)[len(closed_over) :]))
        closed = _names_of_closed_over(_compat.function_of_arguments(fun)[0])
        arguments = (*(closed.get(id(each), "") for each in closed_over), *names)
        differentiated_p.bind(of=Differentiated(name, program, place, facts, arguments, tuple(names)))
    return replaced


def _names(fun: Callable[..., Any], primals: Sequence[Any]) -> tuple[str, list[str]]:
    """The names of the function that the user differentiates, and of the arrays by which."""
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
    return str(getattr(original, "__name__", type(original).__name__)), names


def _names_of_closed_over(fun: Any) -> dict[int, str]:
    """The names of the arrays that a function closes over, and the functions that it does, by their identities."""
    found: dict[int, str] = {}
    functions, seen = [fun], set[int]()
    while functions:
        each = functions.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        code, cells = getattr(each, "__code__", None), getattr(each, "__closure__", None) or ()
        for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
            with contextlib.suppress(Exception):  # Nothing is in it yet, or JAX cannot flatten it.
                content = cell.cell_contents
                functions += [content] if inspect.isfunction(content) else []
                for path, leaf in jax.tree_util.tree_flatten_with_path(content)[0]:
                    found.setdefault(id(leaf), f"{name}/{path_name(path)}" if path else name)
    return found


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
