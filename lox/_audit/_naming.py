"""Names for the values of a program: those of the variables they are assigned to, or their source text."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import Any

from lox._audit._files import lines_in, of_file, syntax
from lox._audit._location import Frame, Span, frames, is_users, span_of, transformations
from lox._audit._origins import PASSING
from lox._audit._program import NAMELESS, Block, Step
from lox._audit._rules import primitives

LONGEST = 40
"""The number of characters of the longest source text that is a name."""

Place = tuple[str, Span]
"""An expression: its file, and its place in it."""


def name_values(program: Block) -> None:
    """Names the values of a program and of all that it runs.

    An expression may be several equations, of which the last one that is used elsewhere computes its value. What only
    lays out another value within an expression, as implicit broadcasting does, has the name of that value; what a loop
    or a call closes over, that which it has outside.
    """
    seen: set[Block] = set()
    left = [program]
    while left:
        block = left.pop()
        if block in seen:
            continue
        seen.add(block)
        _name(block)
        for step in block.steps:
            for inner in step.blocks:
                _name_inputs(step, inner)
                left.append(inner)


def _name(block: Block) -> None:
    places = {step: place_of(step.equation) for step in block.steps}
    used = {(value, places[step]) for step in block.steps for value in step.inputs}
    used.update((value, None) for value in block.outputs)
    elsewhere = {value for value, place in used if value.maker in places and places[value.maker] != place}
    # The equations of a derivative have the places of those that they are the derivative of.
    results: dict[Any, Step] = {}
    for step, place in places.items():
        expression = place, transformations(step.equation)
        if len(step.outputs) == 1 and (step.outputs[0] in elsewhere or expression not in results):
            results[expression] = step
    computed = set(results.values())
    for step, place in places.items():
        if len(step.outputs) != 1 or place is None:
            continue
        (made,) = step.outputs
        if step in computed and "transpose" not in transformations(step.equation):  # Not of a gradient.
            made.written = _variable_outside(step.equation) or text_of(*place)
        elif step.equation.primitive in PASSING and step.inputs:
            made.laid_out = step.inputs[0].laid_out or step.inputs[0]


def _name_inputs(step: Step, inner: Block) -> None:
    """Names what goes into a block without a name of its own."""
    given = step.inputs[len(step.inputs) - len(inner.inputs) :]
    if step.equation.primitive in primitives("while") or len(given) != len(inner.inputs):
        return
    for outside, inside in zip(given, inner.inputs, strict=True):
        if not inside.name and outside.called != NAMELESS and outside.shape == inside.shape:
            inside.written = outside.called


def place_of(equation: Any) -> Place | None:
    """The expression of the user's program that an equation is computed for."""
    for code, instruction in frames(equation):
        if is_users(code.co_filename):
            span = span_of(code, instruction)
            return None if span is None else (code.co_filename, span)
    return None


def variables_of(equation: Any) -> Iterator[tuple[Frame, str]]:
    """The variables that an equation is computed for, those of functions that are called for one too.

    Returns:
        The innermost first, each with the call, or the expression, that it is assigned.
    """
    for frame in frames(equation):
        if is_users(frame.file) and (span := span_of(*frame)) is not None and span in _assigned(frame.file):
            yield frame, _assigned(frame.file)[span]


def _variable_outside(equation: Any) -> str:
    """The variable that a call is assigned to, where an equation is for an expression that the function returns."""
    written = list(itertools.islice((frame for frame in frames(equation) if is_users(frame.file)), 2))
    returned = _returned(written[0].file).get(span_of(*written[0])) if len(written) == 2 else None
    if returned is None:
        return ""
    place, count = returned
    names = _unpacked(written[1].file).get(span_of(*written[1]), ())
    return names[place] if len(names) == count else ""


def text_of(file: str, span: Span) -> str:
    """The variable that an expression is assigned to, or its source text if that is short, or nothing."""
    assigned = _assigned(file).get(span)
    if assigned is not None:
        return assigned
    text = source_text(file, span)
    return text if len(text) <= LONGEST else ""


def source_text(file: str, span: Span) -> str:
    """The source text of an expression that is on one line, or nothing."""
    lines = lines_in(file)
    if span.line != span.end_line or span.line > len(lines):
        return ""
    return lines[span.line - 1].encode()[span.column : span.end_column].decode(errors="replace")


@of_file
def _assigned(file: str) -> dict[Span, str]:
    """The names of the variables in a file, by the expressions that they are assigned."""
    found = {}
    for node in ast.walk(syntax(file)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) else None
        if value is not None and len(targets) == 1 and isinstance(targets[0], ast.Name):
            found[_span(value)] = targets[0].id
    return found


@of_file
def _returned(file: str) -> dict[Span | None, tuple[int, int]]:
    """The expressions that functions in a file return in tuples: the place of each, and how many there are."""
    found: dict[Span | None, tuple[int, int]] = {}
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            found |= {_span(each): (place, len(node.value.elts)) for place, each in enumerate(node.value.elts)}
    return found


@of_file
def _unpacked(file: str) -> dict[Span | None, tuple[str, ...]]:
    """The names that calls in a file are unpacked to, by the calls."""
    found: dict[Span | None, tuple[str, ...]] = {}
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Call):
            names = [each.id if isinstance(each, ast.Name) else "" for each in node.targets[0].elts]
            found[_span(node.value)] = tuple(names)
    return found


def _span(node: ast.expr) -> Span:
    return Span(node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
