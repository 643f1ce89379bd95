"""Labels of the next place that `jnp.roll` gives: those of the last places are the first ones."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._integers import is_integer
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._origins import LAID_OUT, PASSING, axes_before
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

ROLLED = Kind(
    "LOX825",
    "warning",
    "Labels that jnp.roll brings from the beginning to the end, and that count in a loss",
    "Leave out the last place: logits[:, :-1] with tokens[:, 1:]; or mask it, as with mask.at[:, -1].set(0).",
    "Labels that were rolled count where they are those of the next place.",
    "What is chosen by labels that were rolled was followed to its sum.",
)

_ELEMENTWISE = primitives(
    *("add", "sub", "mul", "div", "neg", "select_n", "convert_element_type", "max", "min", "exp", "log", "abs", "pow"),
    *("stop_gradient", "copy", "square", "integer_pow", "custom_jvp_call", "eq", "lt", "gt", "add_any", "and", "or"),
)
_SHIFTING = primitives(*("concatenate", "pad", "iota", "scatter", "dynamic_update_slice", "slice", "gather"))
_MOST = 100


def rolled(audited: Audited) -> Iterator[Finding | Held]:
    """LOX825: what labels that were rolled choose at each place is added up over all places."""
    for step, _ in audited.of("concatenate"):
        if not is_integer(step.outputs[0]) or "transpose" in transformations(step.equation):
            continue
        moved = _moved_by(step, audited)
        if moved is None:
            continue
        summed = _sum_of_chosen(audited, step.outputs[0], step.equation.params["dimension"])
        if summed is not None and is_users(audited.lines[summed].of_user.file):
            yield ROLLED.at(
                audited.lines[step].of_user,
                f"The labels of the last places along axis {step.equation.params['dimension']} are the first {moved}, "
                "as jnp.roll brings them there, and count in the loss like all others.",
            )


def _moved_by(step: Step, audited: Audited) -> int | None:
    """By how many places an array is rolled towards its beginning."""
    axis, made = step.equation.params["dimension"], [audited.origins.of(each).maker for each in step.inputs]
    if len(made) != 2 or any(each is None or each.equation.primitive not in primitives("slice") for each in made):
        return None
    end, beginning = (each for each in made if each is not None)
    if audited.origins.of(end.inputs[0]) is not audited.origins.of(beginning.inputs[0]):
        return None
    size, count = end.inputs[0].shape[axis], beginning.outputs[0].shape[axis]
    starts = [each.equation.params["start_indices"][axis] for each in (end, beginning)]
    is_whole = end.outputs[0].shape[axis] == size - count
    return count if starts == [count, 0] and is_whole and 0 < count <= size // 2 else None


def _sum_of_chosen(audited: Audited, labels: Value, axis: int) -> Step | None:
    """The sum over all places of what labels choose from the classes at each place, if no place is left out before."""
    size, length = len(labels.shape), labels.shape[axis]
    left: list[tuple[Value, int, bool]] = [(labels, axis, False)]
    seen = set[Value]()
    while left and len(seen) < _MOST:
        value, place, chosen = left.pop()
        if value in seen:
            continue
        seen.update(audited.users.names(value))
        names = audited.users.names(value)
        for step in audited.users.of(value):
            primitive = step.equation.primitive
            if "transpose" in transformations(step.equation) or len(step.outputs) != 1:
                continue
            result = step.outputs[0]
            if primitive in primitives("reduce_sum"):
                if place in step.equation.params["axes"]:
                    return step if chosen else None
                before = sum(each < place for each in step.equation.params["axes"])
                left.append((result, place - before, chosen))
            elif primitive in primitives("gather") and step.inputs[1] in names:
                if len(step.inputs[0].shape) == size + 1 and result.shape[place : place + 1] == (length,):
                    left.append((result, place, True))
            elif primitive in PASSING and primitive in LAID_OUT:
                axes = axes_before(step) or []
                if place in axes:
                    left.append((result, axes.index(place), chosen))
            elif primitive in _ELEMENTWISE:
                others = [each for each in step.inputs if each not in names and place < len(each.shape)]
                if chosen and any(_leaves_out(audited, each) for each in others if each.shape[place] == length):
                    return None
                left.append((result, place, chosen))
    return None


def _leaves_out(audited: Audited, value: Value) -> bool:
    """Say whether a value may be a mask that knows of places: it is made of counters, or was moved or cut itself."""
    left, seen = [value], set[Value]()
    while left and len(seen) < _MOST:
        value = audited.origins.of(left.pop())
        if value in seen or value.maker is None:
            continue
        seen.add(value)
        if value.maker.equation.primitive in _SHIFTING:
            return True
        if value.maker.equation.primitive in _ELEMENTWISE | PASSING:
            left += value.maker.inputs
    return False


KINDS = (ROLLED,)
CHECKS = (rolled,)
