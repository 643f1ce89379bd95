"""Functions that are compiled again in each iteration of a loop of Python, for another size or another number."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._jit._recompilation import SHAPE, STATIC
from lox._audit._findings import Finding
from lox._audit._location import Location, is_users
from lox._audit._program import Step, Value
from lox._audit._rules import primitives
from lox._audit._sources import functions
from lox._logs_in import jaxprs_in

TIMES = 5
"""As often a function is compiled before it is said."""


def grown(audited: Audited) -> Iterator[Finding]:
    """LOX420 and LOX423: calls on one line have arrays that grow, or programs that differ in numbers alone."""
    called: dict[tuple[Any, Location], list[Step]] = {}
    for step in audited.program.steps:
        if step.equation.primitive in primitives("jit"):
            info, location = _info(step), audited.lines[step]
            if is_users(info.func_filename or "") and is_users(location.file):
                place = (info.func_filename, info.func_lineno, info.func_name)
                called.setdefault((place, location), []).append(step)
    for (place, location), every in called.items():
        calls = list({id(step.equation.params["jaxpr"]): step for step in every}.values())
        if len(calls) < TIMES:
            continue
        times = f"'{place[-1]}' is traced and compiled {len(calls)} times on this line"
        places = _growing(calls, audited)
        if places:
            names = _info(calls[0]).arg_names or ()
            what = f"'{names[places[0]]}'" if places[0] < len(names) else "an argument"
            shapes = [calls[at].inputs[places[0]].shape for at in (0, 1, -1)]
            yield SHAPE.at(location, f"{times}, as {what} has shape {shapes[0]}, then {shapes[1]}, up to {shapes[2]}.")
        elif (static := _static(calls[0])) and len({_program(step)[0] for step in calls}) == 1:
            if len({_program(step)[1] for step in calls}) == len(calls):
                yield STATIC.at(location, f"{times}, for each value of {static}: the programs differ in numbers alone.")


def _info(step: Step) -> Any:
    return _compat.open_jaxpr(step.equation.params["jaxpr"]).debug_info


def _growing(calls: Sequence[Step], audited: Audited) -> list[int]:
    """The arguments that grow equally from call to call along one axis; none if others change in another way.

    The layers of a network have other arrays each.
    """
    found: list[int] = []
    if len({len(step.inputs) for step in calls}) > 1:
        return found
    for place, values in enumerate(zip(*(step.inputs for step in calls), strict=True)):
        shapes = [value.shape for value in values]
        if len(set(shapes)) == 1:
            continue
        if len(set(map(len, shapes))) > 1 or not all(isinstance(size, int) for shape in shapes for size in shape):
            return []
        steps = {tuple(b - a for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(shapes)}
        if len(steps) > 1 or sum(map(bool, next(iter(steps)))) != 1 or not _is_series(values, audited):
            return []
        found.append(place)
    return found


def _is_series(values: Sequence[Value], audited: Audited) -> bool:
    """Say whether values are slices of one array, or each is made of the one before, or of its parts, and more."""
    origins = [audited.origins.of(value) for value in values]
    parts = [[] if each.maker is None else [*map(audited.origins.of, each.maker.inputs)] for each in origins]
    if all(_made_by(each, "slice") for each in origins[1:]):
        return len({inputs[0] for inputs in parts[1:]}) == 1
    return all(
        _made_by(after, "concatenate", "pad", "stack") and (before in its or (its != old and its[: len(old)] == old))
        for (before, old), (after, its) in itertools.pairwise(zip(origins, parts, strict=True))
    )


def _made_by(value: Value, *names: str) -> bool:
    return value.maker is not None and value.maker.equation.primitive in primitives(*names)


def _static(step: Step) -> str:
    """The parameters of a jitted function of which its program has no part."""
    info = _info(step)
    found = functions(info.func_filename).get((info.func_lineno, info.func_name), [])
    if len(found) != 1 or not isinstance(found[0][0], ast.FunctionDef):
        return ""
    given = found[0][0].args
    traced = {name.split("[")[0].split(".")[0] for name in info.arg_names or ()}
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return ", ".join(f"'{name}'" for name in names if name not in traced | {"self"})


def _program(step: Step) -> tuple[Any, Any]:
    """The operations of a program without its literal numbers, and these numbers."""
    numbers: list[str] = []

    def makeup(jaxpr: Any) -> Any:
        opened = _compat.open_jaxpr(jaxpr)
        operations = []
        for equation in opened.eqns:
            literals = [str(atom.val) for atom in equation.invars if isinstance(atom, jex.core.Literal)]
            numbers.extend(literals)
            inner = tuple(map(makeup, jaxprs_in(equation.params)))
            params = tuple(str(each) for name, each in equation.params.items() if not [*jaxprs_in({name: each})])
            outs = tuple(str(var.aval) for var in equation.outvars)
            operations.append((equation.primitive, len(literals), params, outs, inner))
        return tuple(str(var.aval) for var in opened.invars), tuple(operations)

    return makeup(step.equation.params["jaxpr"]), tuple(numbers)


KINDS = ()
CHECKS = (grown,)
