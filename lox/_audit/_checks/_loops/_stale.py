"""What loops carry on as it was, although their body computes its new value, or although it is zero then."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._numerics._integers import is_integer
from lox._audit._checks._results._bindings import Binding, Passed, Path, bindings, read_names, read_paths, stems
from lox._audit._checks._results._same import factors_of, terms_of
from lox._audit._loops import loop_of
from lox._audit._needs import read
from lox._audit._program import Step, Value, is_call
from lox._audit._rules import primitives
from lox._audit._sources import Source, sources

_RECURRENT = re.compile(
    r"(?:h[sx]?|hidden\w*|hstate|c|cell\w*|(?:rnn|lstm|gru)_state|mem\w*|m|v|mu|nu|mean|var|ema\w*|avg\w*|average\w*"
    r"|running\w*|momentum|vel\w*|pos\w*|x|y|z|q|count\w*|step\w*|t|time|i|total\w*|acc\w*|sum\w*|best\w*"
    r"|opt\w*_state|batch_stats)"
)
"""Names of what a loop carries in order to change it."""
_ENVIRONMENT = re.compile(r"(?:\w+_)?(?:state|env)")
_OBSERVED = re.compile(r"(?:\w+_)?(?:obs\w*|timestep|ts)")
_COUNTER = re.compile(r"(?:\w+_)?(?:step|steps|t|time|count|counter|i|it|iter|iteration|idx|timestep)")
_STEPS = re.compile(r"(?:\w+_)?(?:steps?|counts?|counter|iters?|iterations?)")
_SETTING = re.compile(
    r"(?:\w+_)?(?:tol\w*|max\w*|min\w*|limit|thresh\w*|eps\w*|num\w*|n|size|dt|gamma|discount|lr|learning_rate|rate|bound"
    r"|lower|upper|key|rng|seed|dummy|unused|step_?size|alpha|beta|tau|scale|weights?|params?|theta|const\w*)"
)
"""Names of what stays the same on purpose."""
_COOLING = re.compile(r"(?:\w+_)?temp(?:erature)?")
_COMPARING = primitives(
    "lt", "le", "gt", "ge", "sub", "add", "and", "or", "not", "neg", "exp", "min", "convert_element_type"
)
_AS_IT_IS = primitives("convert_element_type", "copy")
_BEFORE = re.compile(r"(?:\w+_)?prev(?:ious)?(?:_(?!param|theta|weight|polic|net|model)\w+)?")
_MOST = 200
"""How many pairs of values are compared."""
_TOKEN = re.compile(r"\w+")

Leaves = dict[Path, tuple[Value, bool]]
"""What a loop carries, by its path: what an iteration gets, and whether it changes."""


def stale(audited: Audited, step: Step, found: list[tuple[str, Value, bool]]) -> str:
    """What a loop carries on by mistake, as a sentence; or nothing.

    Args:
        audited: The function.
        step: The loop.
        found: The name of each array that it carries, what an iteration gets, and whether it changes.
    """
    source = source_of(audited, step)
    if source is None:
        return ""
    bound = bindings(source)
    leaves: Leaves = {path_of(name, bound): (value, changes) for name, value, changes in found}
    for new in bound:
        old = _old(new, leaves) or _of_another(step, new, leaves)
        if old is not None and (new.name in read_names(source.node) or not Passed(source, new.node).has(old)):
            line, name = new.node.lineno, ".".join(old)
            return f"computes '{new.name}' in line {line}, and returns '{name}' of its carry as it got it"
    return (
        next(_zeros(step, leaves), "")
        or next(_constant(step, leaves, bound), "")
        or next(_decides(step, leaves), "")
        or next(_next_value(audited, step, leaves), "")
        or next(_of_before(step, leaves), "")
        or next(_of_the_first(audited, step, leaves), "")
    )


def source_of(audited: Audited, step: Step) -> Source | None:
    """The body of a loop."""
    params = step.equation.params
    info = _compat.open_jaxpr(params["body_jaxpr"] if "body_jaxpr" in params else params["jaxpr"]).debug_info
    return audited.once(_by_place).get((info.func_filename, info.func_lineno, info.func_name))


def _by_place(audited: Audited) -> dict[tuple[str | None, int | None, str], Source]:
    return {(each.code.co_filename, each.code.co_firstlineno, each.code.co_name): each for each in sources(audited)}


def path_of(name: str, bound: list[Binding]) -> Path:
    """The path of an array by the names that the body has for it."""
    root, *rest = _TOKEN.findall(name)
    for each in bound:
        place = tuple(map(str, each.place))
        is_whole = getattr(each.value, "id", None) == root
        if is_whole and place and tuple(rest[: len(place)]) == place:
            return (each.name, *rest[len(place) :])
    return (root, *rest)


def _old(new: Binding, leaves: Leaves) -> Path | None:
    """What a name says to be the new one of, if the loop carries that on as it was."""
    wanted = stems(new.name, numbered=False)
    for path in read_paths(new.value) if wanted else ():
        parts = {own: changes for own, (_, changes) in leaves.items() if own[: len(path)] == path}
        if path[-1] not in wanted or not parts or any(parts.values()):
            continue
        if _RECURRENT.fullmatch(path[-1]) or (_ENVIRONMENT.fullmatch(path[-1]) and _observes(leaves)):
            return path
    return None


def _of_another(step: Step, new: Binding, leaves: Leaves) -> Path | None:
    """The carried value that the loop keeps as it was, though a new one is computed, by the name, from what changes."""
    wanted = stems(new.name, numbered=False) if step.equation.primitive in primitives("scan") else set()
    used = {value for block in step.blocks for value in read(block)}
    for path, (value, changes) in leaves.items():
        if len(path) != 1 or path[0] not in wanted or changes or value not in used:
            continue
        names = {each[0] for each in read_paths(new.value)}
        if path[0] not in names and any(changes and own[0] in names for own, (_, changes) in leaves.items()):
            return path
    return None


def _observes(leaves: Leaves) -> bool:
    """Whether what a loop carries has observations that change, so that what is observed is to change too."""
    return any(changes and any(map(_OBSERVED.fullmatch, path)) for path, (_, changes) in leaves.items())


def _zeros(step: Step, leaves: Leaves) -> Iterator[str]:
    """The states, counters and records that the body reads, and that stay the number that they begin at."""
    body = step.blocks[-1]
    outside = dict(zip(body.inputs, step.inputs[len(step.inputs) - len(body.inputs) :], strict=True))
    used = {value for block in step.blocks for value in read(block)}
    for path, (value, changes) in leaves.items():
        start = outside.get(value)
        if changes or value not in used or start is None:
            continue
        if start.number is None:
            if _STEPS.fullmatch(path[-1]) and not value.shape and is_integer(value) and start.maker is None:
                yield f"reads '{'.'.join(path)}' of its carry, which counts, and returns it as it got it"
            continue
        is_counter = _COUNTER.fullmatch(path[-1])
        is_first = start.number == 0 and (is_counter or _RECURRENT.fullmatch(path[-1]))
        if is_first or (start.number == 1 and is_counter) or math.isinf(start.number):
            yield (
                f"reads '{'.'.join(path)}' of its carry, which begins at {start.number:g}, and returns it as it got it"
            )


def _constant(step: Step, leaves: Leaves, bound: list[Binding]) -> Iterator[str]:
    """The values that have a name of their own, begin as one number, and are read and never changed."""
    body = step.blocks[-1]
    outside = dict(zip(body.inputs, step.inputs[len(step.inputs) - len(body.inputs) :], strict=True))
    used = {value for block in step.blocks for value in read(block)}
    named = {each.name for each in bound if len(each.place) == 1}
    changing = {own[0] for own, (_, changes) in leaves.items() if changes}
    for path, (value, changes) in leaves.items():
        start = outside.get(value)
        is_named = len(path) == 1 and path[0] in named and not _SETTING.fullmatch(path[0])
        if not is_named or not changing or changes or value not in used or start is None:
            continue
        if start.number == 0 or (start.number == 1 and _COOLING.fullmatch(path[0])):
            yield f"reads '{path[0]}' of its carry, which begins at {start.number:g}, and returns it as it got it"


def _decides(step: Step, leaves: Leaves) -> Iterator[str]:
    """Values that stay as they began, though the loop compares with them to decide what else changes."""
    loop, unchanged = loop_of(step), {value: path for path, (value, changes) in leaves.items() if not changes}
    outside = dict(zip(loop.body.inputs, step.inputs[len(step.inputs) - len(loop.body.inputs) :], strict=True))
    for _, inside, new in loop.carry:
        choice = new.maker
        while choice is not None and is_call(choice):
            choice = choice.blocks[0].outputs[choice.outputs.index(new)].maker and choice
            break
        if choice is None or inside not in choice.inputs:
            continue
        asked = choice.inputs[0] if choice.equation.primitive in primitives("select_n") or is_call(choice) else None
        left, seen = [asked] if asked is not None else [], set[Value]()
        while left and len(seen) < _MOST:
            value = left.pop()
            seen.add(value)
            start = outside.get(value)
            if value in unchanged and start is not None and start.maker is not None and not value.shape:
                if not _SETTING.fullmatch(unchanged[value][-1]) and jnp.issubdtype(value.aval.dtype, jnp.floating):
                    name = ".".join(unchanged[value])
                    yield f"compares with '{name}' of its carry to decide what to take, and returns '{name}' as it was"
            if value.maker is not None and value.maker.equation.primitive in _COMPARING:
                left += [each for each in value.maker.inputs if each not in seen]


def _next_value(audited: Audited, step: Step, leaves: Leaves) -> Iterator[str]:
    """Values that stay as they began, and are discounted in a temporal difference as those of the next step."""
    unchanged = {value: path for path, (value, changes) in leaves.items() if not changes}
    scanned = {inside for _, inside in loop_of(step).xs}
    for each in step.blocks[-1].steps if unchanged else ():
        if (
            each.equation.primitive not in primitives("sub")
            or audited.origins.of(each.inputs[1], _AS_IT_IS) not in scanned
        ):
            continue
        for term in terms_of(each.inputs[0]):
            factors = list(factors_of(term))
            found = [factor for factor in factors if factor in unchanged and factor.aval == each.inputs[1].aval]
            if found and any(factor.number is not None and 0.8 <= factor.number < 1 for factor in factors):
                name = ".".join(unchanged[found[0]])
                yield f"takes '{name}' of its carry for the value of the next step, and returns it as it got it"


def _of_before(step: Step, leaves: Leaves) -> Iterator[str]:
    """What is called that of the step before, and stays, while what it was before is carried on."""
    used = {value for block in step.blocks for value in read(block)}
    changing = [value.aval for value, changes in leaves.values() if changes]
    for path, (value, changes) in leaves.items():
        if not changes and value in used and value.aval in changing and _BEFORE.fullmatch(path[-1]):
            yield f"reads '{'.'.join(path)}' of its carry as that of the step before, and returns it as it got it"


def _of_the_first(audited: Audited, step: Step, leaves: Leaves) -> Iterator[str]:
    """What was computed of what a loop begins with, stays, and is computed of each candidate to go on with."""
    body = step.blocks[-1]
    outside = dict(zip(body.inputs, step.inputs[len(step.inputs) - len(body.inputs) :], strict=True))
    used = {value for block in step.blocks for value in read(block)}
    names = {value: ".".join(path) for path, (value, _) in leaves.items()}
    candidates = list(_candidates(audited, step, set(names)))
    consts = {inside: outer for outer, inside in loop_of(step).consts}
    for value, changes in leaves.values() if candidates else ():
        start = audited.origins.of(outside[value], _AS_IT_IS)
        if changes or value not in used or start.maker is None or start.number is not None:
            continue
        for old, candidate in candidates:
            first = audited.origins.of(outside[old], _AS_IT_IS)
            alike = (each for inner in body.steps for each in inner.outputs if each.aval == value.aval)
            if any(_is_computed_alike(audited, (start, first), (each, candidate), consts) for each in alike):
                yield (
                    f"computes of each candidate for '{names[old]}' what '{names[value]}' of its carry is of the first "
                    f"one, and returns '{names[value]}' as it got it where it takes the candidate"
                )


def _candidates(audited: Audited, step: Step, carried: set[Value]) -> Iterator[tuple[Value, Value]]:
    """What a loop carries that is chosen anew, and what it may become."""
    for _, inside, new in loop_of(step).carry:
        choice = audited.origins.of(new, _AS_IT_IS).maker
        if inside not in carried or choice is None or choice.equation.primitive not in primitives("select_n"):
            continue
        cases = [audited.origins.of(each, _AS_IT_IS) for each in choice.inputs[1:]]
        if inside in cases and len(cases) == 2:
            yield inside, next((each for each in cases if each is not inside), inside)


def _is_computed_alike(
    audited: Audited, one: tuple[Value, Value], other: tuple[Value, Value], consts: Mapping[Value, Value]
) -> bool:
    """Say whether a value is computed of a source as another one is of its own; each is given with its source.

    The second one is of the body of a loop, and `consts` says what its constants are outside.
    """
    (value, source), (again, own) = one, other
    left, seen = [(value, again)], set[tuple[Value, Value]]()
    while left:
        pair = left.pop()
        value, again = (
            each if each is end else audited.origins.of(each, _AS_IT_IS)
            for each, end in zip(pair, (source, own), strict=True)
        )
        if again in consts:
            again = audited.origins.of(consts[again], _AS_IT_IS)
        if (value, again) in seen or (value is source and again is own):
            continue
        seen.add((value, again))
        if value is source or again is own or len(seen) > _MOST:
            return False
        if value.number is None and value is not again:
            made, mirrored = value.maker, again.maker
            if made is None or mirrored is None or not _is_same_operation(made, mirrored):
                return False
            left += zip(made.inputs, mirrored.inputs, strict=True)
        elif value.number != again.number:
            return False
    return True


def _is_same_operation(one: Step, other: Step) -> bool:
    made, again = one.equation, other.equation
    return made.primitive is again.primitive and not one.blocks and not other.blocks and made.params == again.params
