"""What is compiled: values that do not belong into it, buffers that are given away, and calls of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._jit._changes import LEAKED
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, Location, locate
from lox._audit._program import Block, Value
from lox._audit._rules import primitives
from lox._audit._sources import drivers
from lox._logs_in import jaxprs_in

CALLED_BACK = Kind(
    "LOX415",
    "warning",
    "Each iteration of a loop calls the host",
    "Return the value from each iteration, or collect it with lox.log; or call the host now and then, in a "
    "jax.lax.cond.",
    "No loop calls the host in each iteration.",
    "Callbacks were searched for in the bodies of all loops.",
)
LARGE = Kind(
    "LOX416",
    "warning",
    "A large array is a constant of the compiled program",
    "Pass the array as an argument: what a function closes over is compiled into it.",
    "No large array is a constant.",
    "The sizes of all constants of the program were added up.",
)
DONATED = Kind(
    "LOX417",
    "error",
    "A donated array is used again",
    "Use what the call returns in its place (state = step(state)), or do not donate it.",
    "No donated array is used again.",
    "Each donated argument was followed to its later uses.",
)

_CALLS = ("pure_callback", "io_callback", "debug_callback", "debug_print")
MANY = 100
"""From how many iterations on a loop is one in which a call of the host counts.

In a loop whose iterations have so many of their own, as an update after a rollout, it does not.
"""
LARGE_BYTES = 16 * 2**20


def called_back(audited: Audited) -> Iterator[Finding | Held]:
    """LOX415: the host is called in each iteration of a loop that is long, or as long as a condition holds."""
    seen: set[tuple[Block, str]] = set()
    calls, iterations = audited.has(*_CALLS), dict[Block, int]()

    def inside(block: Block, loop: str, around: Location) -> Iterator[Finding | Held]:
        if (block, loop) in seen:
            return
        seen.add((block, loop))
        for step in block.steps:
            equation = step.equation
            location = locate(equation, around)
            if equation.primitive in primitives(*_CALLS) and loop:
                yield CALLED_BACK.at(
                    location, f"'{equation.primitive.name}' calls the host in each iteration of {loop}."
                )
            within = loop
            if equation.primitive in primitives("scan"):
                long = equation.params["length"] >= MANY
                within = f"a scan of {equation.params['length']} iterations" if long else loop
                if long:
                    yield CALLED_BACK.fine(location)
            elif equation.primitive in primitives("while"):
                within = "a while loop"
                yield CALLED_BACK.fine(location)
            elif equation.primitive in primitives("cond"):
                within = ""
            if calls and within != loop and max(_iterations(inner, iterations) for inner in step.blocks) >= MANY:
                within = ""
            for inner in step.blocks:
                yield from inside(inner, within, location)

    return inside(audited.program, "", NOWHERE)


def _iterations(block: Block, known: dict[Block, int]) -> int:
    """How many iterations the longest scan in a block has, with those of the scans around it in the block."""
    if block not in known:
        each = (
            _iterations(inner, known) * step.equation.params.get("length", 1)
            for step in block.steps
            for inner in step.blocks
        )
        known[block] = max(each, default=1)
    return known[block]


def large(audited: Audited) -> Iterator[Finding | Held]:
    """LOX416: an array that a function closes over is a constant of its program, and large."""
    told: set[int] = set()
    yield LARGE.fine(NOWHERE)
    for jaxpr, where in _jaxprs(audited):
        opened = _compat.open_jaxpr(jaxpr)
        for var, constant in zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False):
            size = _bytes(constant)
            if size < LARGE_BYTES or id(constant) in told:
                continue
            if jaxpr is audited.captured.jaxpr and drivers(audited):
                continue  # It runs as Python, and passes arrays on.
            told.add(id(constant))
            yield LARGE.at(
                _first_use(jaxpr, var, where),
                f"An array of {var.aval.str_short()}, which takes {size / 2**20:.0f} MiB, is a constant: it is "
                f"compiled into the program, and into each that is compiled after.",
            )


def donated(audited: Audited) -> Iterator[Finding | Held]:
    """LOX417: what was donated to a jitted function is used afterwards, or passed to it twice."""
    given: dict[Value, tuple[str, Location]] = {}
    for step in audited.program.steps:
        location = locate(step.equation)
        for value in dict.fromkeys(step.inputs):
            if value in given:
                yield _again(value, *given[value], f"'{step.equation.primitive.name}' uses it again", location)
        if step.equation.primitive not in primitives("jit"):
            continue
        name = step.equation.params.get("name", "")
        for value, is_donated in zip(step.inputs, step.equation.params["donated_invars"], strict=True):
            if not is_donated or not _is_array(value):
                continue
            if sum(other is value for other in step.inputs) > 1:
                yield _again(value, name, location, "it is passed twice in the same call", location)
            else:
                given[value] = name, location
                yield DONATED.fine(location)
    for value in dict.fromkeys(audited.program.outputs):
        if value in given:
            name, location = given[value]
            yield _again(value, name, location, "it is returned", location)


def out_of_scope(audited: Audited) -> Iterator[Finding | Held]:
    """LOX414: a value of the body of a loop, or of another traced function, is used outside it.

    To JAX it is a constant, although its value is of a program that is closed.
    """
    jaxpr = audited.captured.jaxpr
    if not _compat.is_top_level():
        return  # What is traced around the audit may be closed over.
    for var, constant in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True):
        if isinstance(constant, jax.core.Tracer):
            yield LEAKED.at(
                _first_use(jaxpr, var, NOWHERE),
                f"{var.aval.str_short()} is used here, which was computed inside of another traced function, and got "
                "out by a side effect.",
            )


def _again(value: Value, name: str, at: Location, how: str, location: Location) -> Finding:
    what = f"'{value.name}'" if value.name else "An array"
    place = f", at line {at.line}," if at.line and at != location else ""
    return DONATED.at(location, f"{what} [{value.axes}] is donated to '{name}'{place} and {how}: its memory is gone.")


def _is_array(value: Value) -> bool:
    return hasattr(value.aval, "dtype")


def _jaxprs(audited: Audited) -> Iterator[tuple[Any, Location]]:
    """The jaxpr of the program and all inside it, each once, with the place of what runs it."""
    seen = {id(audited.captured.jaxpr)}
    yield audited.captured.jaxpr, NOWHERE
    for step, location in audited.steps:
        for jaxpr in jaxprs_in(step.equation.params) if step.blocks else ():
            if id(jaxpr) not in seen:
                seen.add(id(jaxpr))
                yield jaxpr, location


def _first_use(jaxpr: Any, var: Any, around: Location) -> Location:
    """The first line that uses a constant of a jaxpr."""
    for equation in _compat.open_jaxpr(jaxpr).eqns:
        if any(atom is var for atom in equation.invars):
            return locate(equation, around)
    return around


def _bytes(constant: Any) -> int:
    size, dtype = getattr(constant, "size", 0), getattr(constant, "dtype", None)
    return int(size) * int(getattr(dtype, "itemsize", 0) or 0) if isinstance(size, (int, np.integer)) else 0


KINDS = (CALLED_BACK, LARGE, DONATED)
CHECKS = (called_back, large, donated, out_of_scope)
