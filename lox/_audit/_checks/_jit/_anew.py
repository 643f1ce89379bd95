"""Functions that are compiled again in each iteration of a loop of Python, as each makes a new function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._files import of_file, syntax
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, is_users, locate
from lox._audit._rules import primitives
from lox._audit._sources import functions
from lox._logs_in import jaxprs_in

ANEW = Kind(
    "LOX434",
    "warning",
    "A program is compiled again although nothing in it changed",
    "Call jax.jit once, outside of the loop, and pass what changes as an argument: JAX knows a function by its "
    "identity, and a lambda, a partial, a derivative, a bound method or a function defined in the loop is a new one "
    "each time.",
    "Functions that are called several times are compiled once.",
    "The programs of all calls of jitted functions were compared.",
)

TIMES = 3
"""As often a function is compiled before it is said."""


def anew(audited: Audited) -> Iterator[Finding | Held]:
    """LOX434: calls of one function have equal programs that were traced each for itself."""
    codes = audited.captured.reached.functions
    made_before = {(c.co_filename, c.co_firstlineno, c.co_name) for c in codes if "<" in c.co_qualname}
    called: dict[Any, list[tuple[Any, Location]]] = {}
    for step in audited.program.steps:
        if step.equation.primitive in primitives("jit"):
            jaxpr = step.equation.params["jaxpr"]
            info = _compat.open_jaxpr(jaxpr).debug_info
            place = (info.func_filename, info.func_lineno, info.func_name)
            if is_users(info.func_filename or "") and place not in made_before:
                called.setdefault(place, []).append((jaxpr, locate(step.equation)))
    for place, calls in called.items():
        programs = {id(jaxpr): (jaxpr, location) for jaxpr, location in calls}
        if len(programs) < TIMES:
            yield from (ANEW.fine(location) for _, location in calls[:1] if len(calls) > 1)
            continue
        alike: dict[Any, list[Location]] = {}
        for jaxpr, location in programs.values():
            alike.setdefault(_makeup(jaxpr, numbers=not _is_in_loop(*place)), []).append(location)
        for locations in alike.values():
            if len(locations) >= TIMES:
                yield ANEW.at(
                    locations[0],
                    f"'{place[-1]}' is traced and compiled {len(locations)} times for equal arguments, each time as a "
                    f"new function.",
                )


def _is_in_loop(file: str, line: int, name: str) -> bool:
    """Whether a function is written in a loop, and a new one in each iteration: numbers that it reads differ then."""
    for node, parents in functions(file).get((line, name), []):
        begin = parents[0].lineno if parents else 0
        if any(begin <= first <= node.lineno <= last for first, last in _loops(file)):
            return True
    return False


@of_file
def _loops(file: str) -> list[tuple[int, int]]:
    """The first and the last line of each loop in a file."""
    loops = [node for node in ast.walk(syntax(file)) if isinstance(node, (ast.For, ast.While))]
    return [(loop.lineno, loop.end_lineno or loop.lineno) for loop in loops]


def _makeup(jaxpr: Any, numbers: bool) -> Any:
    """What is equal for equal programs: types, operations and, if they count, numbers."""
    opened = _compat.open_jaxpr(jaxpr)
    operations = [
        (
            equation.primitive,
            tuple(str(atom.val) for atom in equation.invars if numbers and isinstance(atom, jex.core.Literal)),
            tuple(str(var.aval) for var in equation.outvars),
            tuple(value for value in equation.params.values() if numbers and _is_number(value)),
            tuple(_makeup(inner, numbers) for inner in jaxprs_in(equation.params)),
        )
        for equation in opened.eqns
    ]
    return tuple(str(var.aval) for var in opened.invars), tuple(operations)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, tuple) and all(map(_is_number, value)))


KINDS = (ANEW,)
CHECKS = (anew,)
