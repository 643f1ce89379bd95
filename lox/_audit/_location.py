"""Where an equation comes from: a line of the user's program, and the transformations around it."""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from lox import _compat
from lox._audit._program import Block, Step

_JAX, _LOX = (str(Path(module.__file__ or "").parent) for module in (jax, _compat))
_PYTHON = sysconfig.get_paths()["stdlib"]


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of a program; of none, the file is empty."""

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" if self.file else ""

    @property
    def code(self) -> str:
        """What is written there."""
        return linecache.getline(self.file, self.line).strip()


NOWHERE = Location()


def locate(equation: Any, around: Location = NOWHERE) -> Location:
    """The innermost line outside of JAX, lox and Python's own library that led to an equation; `around` for none."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if not is_internal(frame.file_name):
            return Location(frame.file_name, frame.line_num, frame.function_name)
    return around


def call(equation: Any) -> tuple[Any, ...]:
    """By which call in the user's program an equation came about: its line, and what was called there.

    An operator is called through a function that all operators share, so that this is two functions deep.
    """
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    inside = list(itertools.takewhile(lambda frame: is_internal(frame.file_name), frames))
    # What a library has jitted may have been traced for another call before: nothing is around it.
    deep = 2 if len(inside) < len(frames) else 1
    return locate(equation), *(frame.function_name for frame in inside[-deep:])


def is_internal(file: str) -> bool:
    """Whether a file is of JAX, of lox or of Python's own library."""
    if file.startswith((f"{_JAX}/", f"{_LOX}/_", f"{_LOX}/loggers/")):
        return True
    return file.startswith((_PYTHON, "<frozen")) and "site-packages" not in file


def located(block: Block, around: Location = NOWHERE) -> Iterator[tuple[Step, Location]]:
    """The steps of a block and of all inside of it, each with its line, or that of what runs it where it has none."""
    for step in block.steps:
        location = locate(step.equation, around)
        yield step, location
        for inner in step.blocks:
            yield from located(inner, location)


def transformations(equation: Any) -> tuple[str, ...]:
    """The transformations of JAX that an equation went through, the outermost first, such as ``("jvp", "vmap")``."""
    stack = equation.source_info.name_stack.stack
    return tuple(each.name for each in stack if type(each).__name__ == "Transform")
