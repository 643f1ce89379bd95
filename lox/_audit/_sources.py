"""The functions of the user's program that were traced, as code and as source."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from types import CodeType
from typing import Any

import jax

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._executed import Function, executed
from lox._audit._files import of_file, syntax
from lox._audit._location import Location, frames, is_users
from lox._audit._program import Step
from lox._audit._reached import plain
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

_JAX = f"{PurePath(jax.__file__).parent}/"


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A function that was traced.

    Attributes:
        code: Its code.
        node: Its syntax.
        parents: What it is written in, the innermost first.
        lines: Lines of it that led to equations.
        within: The code of what called it, up to the innermost transformation of JAX around it.
        names: The global names that it sees.
    """

    code: CodeType
    node: Function
    parents: tuple[Function, ...]
    lines: frozenset[int]
    within: frozenset[CodeType]
    names: Mapping[str, Any]

    def at(self, node: ast.AST) -> Location:
        """The place of a part of it."""
        column = getattr(node, "col_offset", -1) + 1
        return Location(self.code.co_filename, getattr(node, "lineno", 0), self.code.co_name, column)

    @property
    def locals(self) -> frozenset[str]:
        """The names that it binds itself."""
        return frozenset(self.code.co_varnames) | frozenset(self.code.co_cellvars)

    @functools.cached_property
    def executed(self) -> Sequence[ast.AST]:
        """Its parts that are run, as far as can be told, without those of functions and classes inside."""
        return tuple(executed(self.node, self.lines))


def sources(audited: Audited) -> list[Source]:
    """The functions that were traced, of the user's program, that JAX is likely to run compiled.

    A function that calls what is jitted by itself, and is not inside a transformation, runs as Python.
    """
    return [source for source in audited.once(_sources).values() if source is not None]


def are_read(audited: Audited) -> bool:
    """Say whether all functions of the user's program that were traced have a source that could be read."""
    return None not in audited.once(_sources).values()


def _sources(audited: Audited) -> dict[CodeType, Source | None]:
    seen: dict[CodeType, set[int]] = {}
    within: dict[CodeType, set[CodeType]] = {}
    python, outside = drivers(audited), set(audited.program.steps)
    for is_outside, equation in _distinct(audited.steps, outside):
        stretches = [stretch for stretch in _stretches(equation) if stretch]
        if is_outside and stretches and any(code in python for code, _ in stretches[-1]):
            stretches.pop()
        for stretch in stretches:
            around: set[CodeType] = set()
            for code, instruction in reversed(stretch):
                seen.setdefault(code, set()).add(instruction)
                within.setdefault(code, set()).update(around)
                around.add(code)
    fun = plain(audited.fun)
    if fun is not None and fun.__code__ not in python and is_users(fun.__code__.co_filename):
        seen.setdefault(fun.__code__, set())
    here = fun.__code__.co_filename if fun is not None else ""
    others = {code.co_filename for code in seen} - {here}
    modules = _modules(others) if others else {}
    found: dict[CodeType, Source | None] = {}
    for code, instructions in seen.items():
        known = fun.__globals__ if code.co_filename == here else modules.get(code.co_filename, {})
        written = _written(code)
        if written is None:
            found[code] = None
        else:
            lines = frozenset(_lines(code, instructions))
            found[code] = Source(code, *written, lines, frozenset(within.get(code, ())), known)
    return found


def source_of(fun: Any) -> Source | None:
    """A function that was not traced, or led to no equation."""
    written = _written(fun.__code__)
    return None if written is None else Source(fun.__code__, *written, frozenset(), frozenset(), fun.__globals__)


def _written(code: CodeType) -> tuple[Function, tuple[Function, ...]] | None:
    """The syntax of a function with what it is written in, if only one function can be meant."""
    written = functions(code.co_filename).get((code.co_firstlineno, code.co_name), [])
    if len(written) > 1:  # Lambdas on one line, of which those around others come first.
        written = [each for each in written if _has_code(each[0], code)]
        written = written[-1:] if all(node in written[-1][1] for node, _ in written[:-1]) else []
    return written[0] if len(written) == 1 else None


def _has_code(node: Function, code: CodeType) -> bool:
    """Say whether what runs in some code is all written in the body of a lambda."""
    body = node.body
    if isinstance(body, list):
        return True
    places = [
        place
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column) and column != end_column
        for place in ((line, column), (end_line, end_column))
    ]
    first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return bool(places) and all(first <= place <= last for place in places)


def _distinct(steps: Iterable[tuple[Step, Location]], outside: set[Step]) -> Iterator[tuple[bool, Any]]:
    """One equation for each traceback, and whether it is of the program itself."""
    seen = set()
    for step, _ in steps:
        here = (step in outside, step.equation.source_info.traceback)
        if here not in seen:
            seen.add(here)
            yield step in outside, step.equation


def drivers(audited: Audited) -> frozenset[CodeType]:
    """The code of functions that call what the user jitted while no transformation is around them."""
    found: set[CodeType] = set()
    for step in audited.program.steps:
        if step.equation.primitive in primitives("jit") and _is_users_function(step.equation):
            outermost = [stretch for stretch in _stretches(step.equation) if stretch][-1:]
            found.update(code for stretch in outermost for code, _ in stretch)
    return frozenset(found)


def _is_users_function(equation: Any) -> bool:
    """Say whether what is jitted is the user's: what a library jits for the user, as equinox does, it only names so."""
    jaxpr, name = _compat.open_jaxpr(equation.params["jaxpr"]), equation.params.get("name", "")
    if jaxpr.debug_info.func_filename and is_users(jaxpr.debug_info.func_filename):
        return True
    called = {code for inner in jaxpr.eqns for code, _ in frames(inner)}
    return any(code.co_name == name and is_users(code.co_filename) for code in called)


def _stretches(equation: Any) -> list[list[tuple[CodeType, int]]]:
    """The user's functions that led to an equation, the innermost first, a list for each level of transformation."""
    found: list[list[tuple[CodeType, int]]] = [[]]
    for code, instruction in frames(equation):
        if is_users(code.co_filename):
            found[-1].append((code, instruction))
        elif found[-1] and _transforms(code.co_filename):
            found.append([])
    return found


@functools.lru_cache(maxsize=4096)
def _transforms(file: str) -> bool:
    return file.startswith(_JAX) and tracebacks.transforms(file)


def _lines(code: CodeType, instructions: set[int]) -> Iterator[int]:
    ordered = sorted(instructions)
    for first, last, line in code.co_lines():
        place = bisect.bisect_left(ordered, first)
        if line is not None and place < len(ordered) and ordered[place] < last:
            yield line


def _modules(files: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The names of the modules that are in files."""
    if any(_is_new(file) for file in files):
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__dict__", {}).get("__file__")
            if isinstance(file, str) and _is_new(file):
                _module_names[file] = name
    return {file: vars(sys.modules[_module_names[file]]) for file in files if not _is_new(file)}


_module_names: dict[str, str] = {}
"""The module that is in a file, so that not all of them are looked at in each audit."""


def _is_new(file: str) -> bool:
    """Say whether it is not known which module is in a file, or is no longer so."""
    module = sys.modules.get(_module_names.get(file, ""))
    return getattr(module, "__dict__", {}).get("__file__") != file


@functools.lru_cache(maxsize=4096)
def calls_in(node: Function) -> tuple[ast.Call, ...]:
    """The calls that are written in a function, also in functions inside it."""
    return tuple(each for each in ast.walk(node) if isinstance(each, ast.Call))


def names_in_calls(location: Location) -> set[str]:
    """The names in the arguments of the calls on a line, but for those in functions that are written there."""
    name = location.function.rpartition(".")[2]
    around = [
        node
        for (_, known), found in functions(location.file).items()
        for node, _ in found
        if known == name and node.lineno <= location.line <= (node.end_lineno or 0)
    ]
    calls = [each for node in around for each in calls_in(node)]
    left: list[ast.AST] = [
        argument
        for each in calls
        if each.lineno <= location.line <= (each.end_lineno or 0)
        for argument in (*each.args, *(keyword.value for keyword in each.keywords))
    ]
    names = set()
    while left:
        node = left.pop()
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        if not isinstance(node, ast.Lambda):
            left += ast.iter_child_nodes(node)
    return names


@of_file
def functions(file: str) -> dict[tuple[int, str], list[tuple[Function, tuple[Function, ...]]]]:
    """The functions in a file, by first line and name. Each has a tuple of the functions around it, innermost first.

    Several lambdas on one line have the same line and name. An outer one comes before the ones inside it.
    """
    found: dict[tuple[int, str], list[tuple[Function, tuple[Function, ...]]]] = {}
    left: list[tuple[ast.AST, tuple[Function, ...]]] = [(syntax(file), ())]
    while left:
        node, parents = left.pop()
        for child in ast.iter_child_nodes(node):
            inner = parents
            if isinstance(child, Function):
                decorators = getattr(child, "decorator_list", ())
                first = min(each.lineno for each in (child, *decorators))
                found.setdefault((first, getattr(child, "name", "<lambda>")), []).append((child, parents))
                inner = (child, *parents)
            left.append((child, inner))
    return found
