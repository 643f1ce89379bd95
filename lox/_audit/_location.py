"""Where an equation comes from: a line of the user's program, and the transformations around it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import linecache
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import CodeType
from typing import Any, NamedTuple

import jax
import jax.extend.source_info_util as source_info

from lox._audit._program import Block, Step
from lox._compat import _tracebacks as tracebacks

_JAX, _LOX = str(Path(jax.__file__).parent), str(Path(__file__).parents[1])
_AUDIT = f"{_LOX}/_audit/"
_PYTHON = sysconfig.get_paths()["stdlib"]


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of a program; of none, the file is empty.

    Attributes:
        file: Its file.
        line: Its number, from 1.
        function: The function that it is in.
        column: Where in the line, from 1; 0 if that is not known. Locations that differ in this alone are equal.
        caller: The line of the user's program that led to it, if it is in a library. Of no part in equality either.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    column: int = dataclasses.field(default=0, compare=False)
    caller: Location | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" if self.file else ""

    @property
    def code(self) -> str:
        """The source text of the line."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def of_user(self) -> Location:
        """The line of the user's program: this one, or the one that called the library that this one is in."""
        return self.caller or self


NOWHERE = Location()


class Frame(NamedTuple):
    """A call that led to an equation: its code, and how far it was in it."""

    code: CodeType
    instruction: int

    @property
    def file(self) -> str:
        """The file of the code."""
        return self.code.co_filename


def frames(equation: Any) -> tuple[Frame, ...]:
    """The calls that led to an equation, the innermost first."""
    return _frames(equation.source_info.traceback)


def of_this_trace(equation: Any, file: str, line: int) -> Any:
    """An equation, without its lines if they are of another program.

    JAX remembers the derivatives of what it has jitted itself, with the lines that led to them first.

    Args:
        equation: The equation.
        file: The file of the function that it is in, or of the one that is audited.
        line: The first line of that function.
    """
    called = frames(equation) if is_users(file) else ()
    inside = [frame.file for frame in itertools.takewhile(lambda frame: not is_users(frame.file), called)]
    if len(inside) == len(called) or not tracebacks.differentiates(inside):
        return equation
    if any(frame.file == file and frame.code.co_firstlineno == line for frame in called):
        return equation
    return equation.replace(source_info=source_info.SourceInfo(None, equation.source_info.name_stack))


# Tracebacks are equal when they are of the same calls, as those of a loop of Python are.
@functools.lru_cache(maxsize=4096)
def _frames(traceback: Any) -> tuple[Frame, ...]:
    return tuple(map(Frame, *traceback.raw_frames())) if traceback is not None else ()


def locate(equation: Any, around: Location = NOWHERE) -> Location:
    """The innermost line outside JAX, lox and Python's own library that led to an equation; `around` for none."""
    own = _own_line(equation.source_info.traceback)
    if own is None:
        return around
    if own.caller is None and around.file and not is_users(own.file) and is_users(around.of_user.file):
        return dataclasses.replace(own, caller=around.of_user)
    return own


@functools.lru_cache(maxsize=4096)
def _own_line(traceback: Any) -> Location | None:
    innermost = None
    for code, instruction in _frames(traceback):
        if innermost is not None and code.co_filename.startswith(_AUDIT):
            return innermost  # Who called the audit has no part in the program.
        if is_internal(code.co_filename) or (innermost is not None and not is_users(code.co_filename)):
            continue
        line = traceback.code_addr2line(code, instruction)
        here = Location(code.co_filename, line, code.co_qualname, column_of(code, instruction, line))
        if is_users(code.co_filename):
            return here if innermost is None else dataclasses.replace(innermost, caller=here)
        innermost = here
    return innermost


def mapped_at(equation: Any) -> Location | None:
    """The line of the user's program that called the innermost `vmap` around an equation, if its traceback has it."""
    return _called_at(equation, lambda frame: tracebacks.maps(frame.code.co_qualname))


def applied_at(equation: Any) -> Location | None:
    """The line of the user's program that called `apply` of the library whose module an equation is in, or None."""
    return _called_at(equation, _applies)


def _applies(frame: Frame) -> bool:
    is_library = not is_internal(frame.file) and not is_users(frame.file)
    return is_library and frame.code.co_name in ("apply", "apply_fn")


def _called_at(equation: Any, is_callee: Callable[[Frame], bool]) -> Location | None:
    """The innermost line of the user's program that led to the innermost call of some function."""
    traceback = equation.source_info.traceback
    called = iter(_frames(traceback))
    if not any(is_callee(frame) for frame in called):
        return None
    for code, instruction in called:
        if is_users(code.co_filename):
            line = traceback.code_addr2line(code, instruction)
            return Location(code.co_filename, line, code.co_qualname, column_of(code, instruction, line))
    return None


def column_of(code: CodeType, instruction: int, line: int) -> int:
    """The column of an instruction, from 1, or 0 if its code does not tell."""
    span = span_of(code, instruction)
    if span is None or span.line != line:
        return 0
    text = linecache.getline(code.co_filename, line).encode()
    return len(text[: span.column].decode(errors="replace")) + 1 if text else 0


class Span(NamedTuple):
    """The place of an expression in a file: lines from 1, columns in bytes of UTF-8 from 0."""

    line: int
    column: int
    end_line: int
    end_column: int


@functools.lru_cache(maxsize=4096)
def span_of(code: CodeType, instruction: int) -> Span | None:
    """The expression that an instruction of a code belongs to."""
    found = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    if found is None or None in found:
        return None
    line, end_line, column, end_column = found
    return Span(line, column, end_line, end_column)  # type: ignore[arg-type]


def call(equation: Any) -> tuple[Any, ...]:
    """By which call in the user's program an equation came about: its line, and what was called there.

    An operator is called through a function that all operators share, so that this is two functions deep.
    """
    called = frames(equation)
    inside = [code.co_qualname for code, _ in itertools.takewhile(lambda frame: is_internal(frame.file), called)]
    # What a library has jitted may have been traced for another call before: nothing is around it.
    deep = 2 if len(inside) < len(called) else 1
    return locate(equation), *inside[-deep:]


def called(equation: Any) -> str:
    """The name of the function that the user's program called for an equation, such as ``"mean"`` for ``x.mean()``."""
    names = [name for name in call(equation)[1:] if "<locals>" not in name]  # Those are of what forwards calls.
    return names[-1].rpartition(".")[2].strip("_") if names else ""


@functools.lru_cache(maxsize=4096)
def is_internal(file: str) -> bool:
    """Say whether a file is of JAX, of lox or of Python's own library."""
    if file.startswith((f"{_JAX}/", f"{_LOX}/_", f"{_LOX}/loggers/", f"{_LOX}/commands/")):
        return True
    return file.startswith((_PYTHON, "<frozen")) and "site-packages" not in file


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Say whether a file is neither of JAX, of lox or of Python, nor of what is installed."""
    return not is_internal(file) and not {"site-packages", "dist-packages"} & set(PurePath(file).parts)


def located(block: Block, around: Location = NOWHERE) -> Iterator[tuple[Step, Location]]:
    """The steps of a block and of all inside it, each with its line, or that of what runs it where it has none.

    What several steps run, such as a jitted function, is there once.
    """
    seen: set[Block] = set()

    def inside(block: Block, around: Location) -> Iterator[tuple[Step, Location]]:
        if block in seen:
            return
        seen.add(block)
        for step in block.steps:
            location = locate(step.equation, around)
            yield step, location
            for inner in step.blocks:
                yield from inside(inner, location)

    return inside(block, around)


def transformations(equation: Any) -> tuple[str, ...]:
    """The transformations of JAX that an equation went through, the outermost first, such as ``("jvp", "vmap")``."""
    return tracebacks.transformations(equation.source_info.name_stack.stack)


def is_recomputed(equation: Any) -> bool:
    """Say whether an equation is of what a backward part computes anew, rather than keeps."""
    return tracebacks.is_recomputed(equation.source_info.name_stack)
