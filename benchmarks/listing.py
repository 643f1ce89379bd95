"""Programs of the corpus as one would write them: with what of their module they name, and the call of their audit."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import symtable
from typing import Any

from corpus import Case, f32, flags, i32

_IMPORTS = """\
import dataclasses
import functools
import logging
import math
import random
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental import pallas
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import lox
"""
PRESUMED = "\n".join([_IMPORTS, *map(inspect.getsource, (f32, i32, flags))])
"""What is not shown with each program."""

COLUMNS = 120
"""Of a line, beyond which it is broken as `ruff format` would."""


def listing(case: Case) -> str:
    """A program, after the helpers, classes and constants that it names, and before the call of its audit."""
    source, statements = _module(case.family)
    audit = _audit(source, *_registration(case, statements))
    parts = [*(_text(source, each) for each in _needed(audit, source, statements)), audit]
    gaps = ["\n\n\n" if "\n" in before + after else "\n" for before, after in itertools.pairwise(parts)]
    return "".join(itertools.chain(*zip(parts, [*gaps, ""], strict=True)))


@functools.cache
def _module(family: str) -> tuple[str, list[ast.stmt]]:
    source = inspect.getsource(importlib.import_module(f"corpus.{family}"))
    return source, ast.parse(source).body


def _registration(case: Case, statements: list[ast.stmt]) -> tuple[ast.stmt, ast.Call]:
    """The statement that adds a program to the corpus, and the call of `wrong` or `right` in it."""
    return next(
        (statement, call)
        for statement in statements
        for call in _registering(statement)
        if (call.func.id == "wrong", call.args[0].value, _name(statement)) == (case.wrong, case.code, case.name)
    )


def _registering(statement: Any) -> list[Any]:
    """The calls of `wrong` and `right` in a statement: decorators, or what is called with a method."""
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    calls = [statement.value.func] if is_call else getattr(statement, "decorator_list", [])
    return [each for each in calls if isinstance(each, ast.Call) and ast.unparse(each.func) in ("wrong", "right")]


def _name(statement: Any) -> str:
    """The name of the function or method that a statement adds to the corpus."""
    return getattr(statement, "name", "") or ast.unparse(statement).rstrip(")").rpartition(".")[2]


def _audit(source: str, statement: Any, call: ast.Call) -> str:
    """The call of an audit, with the arguments and the options that `wrong` or `right` is given."""
    audited = getattr(statement, "name", "") or _segment(source, statement.value.args[0])
    options = [audited, *(f"{option.arg}={_segment(source, option.value)}" for option in call.keywords)]
    args = ", ".join(_segment(source, each) for each in call.args[1:])
    head, within = f"lox.audit({', '.join(options)})", f"    {', '.join(options)}\n"
    if len(head) + len(args) + 2 <= COLUMNS:
        return f"{head}({args})"
    if len(head) < COLUMNS:
        return f"{head}(\n    {args}\n)"
    if len(within) > COLUMNS:
        within = "".join(f"    {option},\n" for option in options)
    return f"lox.audit(\n{within})({args})"


def _segment(source: str, node: ast.AST) -> str:
    return ast.get_source_segment(source, node) or ""


def _text(source: str, statement: Any) -> str:
    """A statement without what adds it to the corpus, and what is for checkers of its style."""
    decorators = getattr(statement, "decorator_list", [])
    starts = [each for each in decorators if each not in _registering(statement)] or [statement]
    lines = source.splitlines()[starts[0].lineno - 1 : statement.end_lineno]
    return "\n".join(line.partition("  # noqa")[0] for line in lines)


def _needed(text: str, source: str, statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that give a text its names, or do more with what has these names."""
    defined = set().union(*map(_defines, statements))
    names = _names(text)
    while True:
        found = [each for each in statements if not defined.isdisjoint(names & (_defines(each) | _extends(each)))]
        more = names.union(*(_names(_text(source, each)) for each in found))
        if more == names:
            return found
        names = more


def _defines(statement: Any) -> set[str]:
    """The names that a statement defines."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = getattr(statement, "targets", None) or [statement.target]
        return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return {statement.name} if hasattr(statement, "name") else set()


def _extends(statement: Any) -> set[str]:
    """The names whose methods a statement calls, as `f.defvjp(...)` does, or is decorated with."""
    calls = [*getattr(statement, "decorator_list", []), getattr(getattr(statement, "value", None), "func", None)]
    return {ast.unparse(each.value) for each in calls if isinstance(each, ast.Attribute)}


def _names(text: str) -> set[str]:
    """The names that a text takes from its module."""

    def within(table: symtable.SymbolTable) -> set[str]:
        is_module = table.get_type() == "module"
        taken = {
            symbol.get_name()
            for symbol in table.get_symbols()
            if (symbol.is_referenced() if is_module else symbol.is_global())
        }
        return taken.union(*map(within, table.get_children()))

    return within(symtable.symtable(text, "", "exec"))
