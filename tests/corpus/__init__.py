"""Small programs with a mistake each that an audit is to find, and programs that look like them and are right.

`found.json` lists all that an audit says of them, with the text of the line; `python tests/corpus_found.py` writes it
anew.

A module for each family of checks. The arguments of a program are arrays or, where their numbers do not matter,
shapes: `f32(4, 3)` is a `jax.ShapeDtypeStruct`.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import lox

Function = Callable[..., Any]

LISTING = Path(__file__).parent / "found.json"
_PLACE = re.compile(r"(?<=line )\d+|(?<=\.py:)\d+|0x[0-9a-f]+|/\S*/(?=\w+\.py)")
"""Numbers of lines, addresses and folders in a message."""

OF_A_VERSION = frozenset(
    {
        "LOX402 a_prefix_of_as_many_as_an_array_says",
        "LOX413 layers_that_are_collected_in_a_list",
        "LOX503 diffusion_that_carries_a_static_array",
        "LOX609 rule_with_a_cotangent_of_another_shape",
        "LOX904 a_simulation_that_shows_each_step",
    }
)
"""Programs of which JAX says or traces something else in other versions: what is found in them is not listed."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program of the corpus.

    Attributes:
        family: The family of checks that it is for.
        name: Its name.
        code: What an audit is to find in it; for a program that is right, what it resembles.
        wrong: Whether there is a mistake in it.
        fun: The program.
        args: Its arguments.
        options: The keywords of `lox.audit`.
    """

    family: str
    name: str
    code: str
    wrong: bool
    fun: Function
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def report(self) -> Any:
        """The report of an audit. A method is that of a new copy of its object, which an audit may change."""
        fun = copy.deepcopy(self.fun) if inspect.ismethod(self.fun) else self.fun
        return lox.audit(fun, **self.options)(*self.args)

    @property
    def found(self) -> set[str]:
        """The codes of what an audit says is wrong, or likely to be."""
        return {finding.code for finding in self.report().at_least("warning")}

    @property
    def key(self) -> str:
        """Its code and its name, by which it is listed."""
        return f"{self.code} {self.name}"


def told(report: Any) -> list[list[str]]:
    """All findings of a report: code, severity, the text of the line, and the message without places."""
    return sorted([each.code, each.severity, each.source, _PLACE.sub("", each.message)] for each in report.found)


_cases: list[Case] = []


def cases() -> list[Case]:
    """All programs of the corpus."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(_cases, key=lambda case: case.code)


def wrong(code: str, *args: Any, **options: Any) -> Callable[[Function], Function]:
    """A program with a mistake that has this code, its arguments, and the keywords of its audit."""
    return _case(code, True, args, options)


def right(code: str, *args: Any, **options: Any) -> Callable[[Function], Function]:
    """A program that looks like one with this mistake, and is right."""
    return _case(code, False, args, options)


def _case(code: str, wrong: bool, args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[Function], Function]:
    def register(fun: Function) -> Function:
        family = fun.__module__.rpartition(".")[2]
        _cases.append(Case(family, fun.__name__, code, wrong, fun, args, options))
        return fun

    return register


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """An argument of 32-bit floats."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    """An argument of 32-bit integers."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def flags(*shape: int) -> jax.ShapeDtypeStruct:
    """An argument of booleans."""
    return jax.ShapeDtypeStruct(shape, jnp.bool_)
