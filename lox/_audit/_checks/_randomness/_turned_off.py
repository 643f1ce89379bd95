"""Calls of modules that are given a key for dropout, and told to leave dropout out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from lox._audit._audited import Audited
from lox._audit._checks._randomness._unused import UNUSED
from lox._audit._findings import Finding
from lox._audit._location import frames, transformations
from lox._audit._sources import sources

_OFF = {"deterministic": True, "train": False, "training": False, "is_training": False}


def turned_off(audited: Audited) -> Iterator[Finding]:
    """LOX706: a loss that is differentiated gives a module a key for dropout, and turns dropout off."""
    differentiated: set[CodeType] | None = None
    for source in sources(audited):
        for call in source.executed:
            option = _turns_off(call) if isinstance(call, ast.Call) else ""
            if not option:
                continue
            differentiated = _differentiated(audited) if differentiated is None else differentiated
            if audited.differentiate or source.code in differentiated:
                yield UNUSED.at(
                    source.at(call),
                    f"This call gives a key for dropout, and {option} leaves dropout out of the loss that is trained.",
                    severity="warning",
                )


def _turns_off(call: ast.Call) -> str:
    """The option of a call with a key for dropout that turns dropout off."""
    given = {each.arg: each.value for each in call.keywords}
    keys = given.get("rngs")
    named = [each.value for each in keys.keys if isinstance(each, ast.Constant)] if isinstance(keys, ast.Dict) else []
    for name, off in _OFF.items():
        value = given.get(name)
        if "dropout" in named and isinstance(value, ast.Constant) and value.value is off:
            return f"{name}={off}"
    return ""


def _differentiated(audited: Audited) -> set[CodeType]:
    """The code of the functions that the program differentiates, and of those that they call."""
    steps = (step for step, _ in audited.steps if "jvp" in transformations(step.equation))
    return {frame.code for step in steps for frame in frames(step.equation)}


CHECKS = (turned_off,)
