"""Loops of Python that are traced once for each iteration."""

from __future__ import annotations

import ast
import collections
from collections.abc import Iterable, Iterator
from typing import Any

import jax.extend as jex

from lox._audit._audited import Audited
from lox._audit._files import of_file, syntax
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, is_internal, transformations
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

UNROLLED = Kind(
    "LOX207",
    "warning",
    "A loop of Python is traced once for each iteration",
    "Write it as jax.lax.scan or jax.lax.fori_loop, or, where no iteration needs another one, as jax.vmap: the program "
    "then stays as small as one iteration, and compiles as fast.",
)

ITERATIONS = 16
"""From how many iterations on a loop is worth a word."""
EQUATIONS = 64
"""From how many equations on."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_KEYS = primitives("random_fold_in")
"""With which a library makes the parameters of each layer of a network, which are then its own."""

Loop = tuple[str, int, int, str]
"""The file of a loop, its first and its last line, and the function that it is in."""


def unrolled(audited: Audited) -> Iterator[Finding | Held]:
    """LOX207: the lines of a loop were traced many times, on what it computed and on parts of the same arrays."""
    lines = audited.lines
    reported: set[Loop] = set()  # A loop that is differentiated is there again, backwards.
    for block, runs in _blocks(audited.program, None, set()):
        for loop, traced in _loops(block, lines).items():
            file, first, last, function = loop
            times, own = max(times for times, _ in traced), [step for _, steps in traced for step in steps]
            if loop in reported or len(own) < EQUATIONS:
                continue
            inside = {step for step in block.steps if _is_within(lines[step], file, first, last)}.union(own)
            makes_layers = any(step.equation.primitive in _KEYS and "site-packages" in lines[step].file for step in own)
            # What a differentiated function keeps of each iteration, for going backwards, comes out of it as well.
            outputs = () if runs is not None and "jvp" in transformations(runs.equation) else block.outputs
            results = sum(value.maker in inside for value in outputs)
            gets_its_own = any(_has_its_own(steps, inside, times) for _, steps in traced)
            if not makes_layers and not gets_its_own and 2 * results < times:
                reported.add(loop)
                yield UNROLLED.at(
                    Location(file, first, function),
                    f"A loop of Python is traced {times} times or more, which makes {len(own)} equations.",
                )


def _loops(block: Block, lines: dict[Step, Location]) -> dict[Loop, list[tuple[int, list[Step]]]]:
    """The loops that led to steps of a block: for each line in them, how many times it was traced, and its steps."""
    by_line = collections.defaultdict(list)
    for step in block.steps:
        by_line[lines[step].file, lines[step].line].append(step)
    found: dict[Loop, list[tuple[int, list[Step]]]] = collections.defaultdict(list)
    for steps in by_line.values():
        if len(steps) >= ITERATIONS:
            for loop, times, own in _traced(steps):
                found[loop].append((times, own))
    return found


def _blocks(block: Block, runs: Step | None, seen: set[Block]) -> Iterator[tuple[Block, Step | None]]:
    """All blocks, each once, with the step that runs it."""
    if block not in seen:
        seen.add(block)
        yield block, runs
        for step in block.steps:
            for inner in step.blocks:
                yield from _blocks(inner, step, seen)


def _traced(steps: Iterable[Step]) -> Iterator[tuple[Loop, int, list[Step]]]:
    """The loops that led to the steps of a line, how many times each was traced, and the steps."""
    # What a derivative takes from inside a jitted function has the stack of its call, hence the operation.
    by_traceback = collections.defaultdict(list)
    for step in steps:
        shapes = tuple(value.shape for value in step.outputs)
        by_traceback[step.equation.source_info.traceback, step.equation.primitive, shapes].append(step)
    by_stack: dict[Any, list[Step]] = collections.defaultdict(list)
    for (traceback, primitive, shapes), own in by_traceback.items():
        frames = traceback.frames if traceback is not None else ()
        stack = tuple((each.file_name, each.line_num, each.function_name) for each in frames)
        by_stack[stack, primitive, shapes] += own
    by_loop = collections.defaultdict(list)
    for (stack, _, _), own in by_stack.items():
        loop = _loop_of(stack)
        if loop is not None:
            by_loop[loop].append(own)
    for loop, groups in by_loop.items():
        # Once is before, after or in one of the iterations. The first one may compute with a Python number.
        counts = {len(own) for own in groups if len(own) > 1}
        least = min(counts, default=1)
        times = least + (least + 1 in counts)
        if times >= ITERATIONS:
            yield loop, times, [step for own in groups for step in own]


def _loop_of(stack: Iterable[tuple[str, int, str]]) -> Loop | None:
    """The innermost loop in a stack, if it is in the user's program, and no library called back from within."""
    found = False
    for file, line, function in stack:
        if is_internal(file):
            if found:
                return None
            continue
        found = True
        lines = _loop_by_line(file).get(line)
        if lines is not None:
            return None if "site-packages" in file else (file, *lines, function)
    return None


@of_file
def _loop_by_line(file: str) -> dict[int, tuple[int, int] | None]:
    """By line, the first and the last line of the innermost loop around it, in the same function."""
    found: dict[int, tuple[int, int] | None] = {}
    for first, last, loop in sorted(_nodes(file), key=lambda each: (each[0], -each[1])):  # Inner ones come last.
        found.update(dict.fromkeys(range(first, last + 1), loop))
    return found


def _nodes(file: str) -> list[tuple[int, int, tuple[int, int] | None]]:
    """For each function and the body of each loop in a file: the lines of it, and those of the loop."""
    found: list[tuple[int, int, tuple[int, int] | None]] = []
    for node in ast.walk(syntax(file)):
        if isinstance(node, _FUNCTIONS):
            found.append((node.lineno, node.end_lineno or 0, None))
        elif isinstance(node, _LOOPS):
            lines = (node.lineno, node.end_lineno or 0)
            found.append((node.body[0].lineno, node.body[-1].end_lineno or 0, lines))
        elif isinstance(node, _COMPREHENSIONS):
            found.append((node.lineno, node.end_lineno or 0, (node.lineno, node.end_lineno or 0)))
    return found


def _is_within(location: Location, file: str, first: int, last: int) -> bool:
    return location.file == file and first <= location.line <= last


def _has_its_own(steps: Iterable[Step], inside: set[Step], times: int) -> bool:
    """Whether iterations get arrays of their own from outside, as the layers of a network do."""
    values: set[Value] = set()
    for step in steps:
        for atom, value in zip(step.equation.invars, step.inputs, strict=True):
            if not isinstance(atom, jex.core.Literal) and value.maker not in inside:
                values.add(value)
    return 2 * len(values) >= times


KINDS = (UNROLLED,)
CHECKS = (unrolled,)
