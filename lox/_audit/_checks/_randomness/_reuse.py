"""Keys that are used again, or that all share."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._randomness._common import Common
from lox._audit._checks._randomness._draws import Draws
from lox._audit._checks._randomness._fixed import is_fixed
from lox._audit._checks._randomness._key_arrays import USES, is_key, is_keyed
from lox._audit._checks._randomness._key_uses import Reuse, Use
from lox._audit._checks._randomness._keys import KeyFlow, flow_of
from lox._audit._files import syntax
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, Location, column_of, is_internal, mapped_at, transformations
from lox._audit._program import Block, Step, is_call
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

REUSED = Kind(
    "LOX700",
    "error",
    "A random key is used twice",
    "Split it first, and use each of the keys once: key, other = jax.random.split(key).",
    "Each random key is used once.",
    "Each random key was followed through splits and copies to its uses.",
)
AGAIN = Kind(
    "LOX701",
    "warning",
    "A random key is used again in the same way",
    "Give each call a key of its own, as in first, second = jax.random.split(key); where the same numbers are meant, "
    "say so with jax.random.clone(key).",
    "No function gets a random key that it had before.",
    "Each random key was followed through splits and copies to the functions that get it.",
)
REPEATED = Kind(
    "LOX702",
    "warning",
    "Each iteration of a loop uses the same random key",
    "Carry the key and split it in each iteration, scan over jax.random.split(key, length), or use "
    "jax.random.fold_in(key, iteration); draw before the loop what is to be the same in all iterations.",
    "Each iteration of a loop has random keys of its own.",
    "Keys that are used in loops were followed to whether they change between iterations.",
)
SHARED = Kind(
    "LOX703",
    "warning",
    "All batch elements of a vmap use the same random key",
    "Split the key, and map over the keys: jax.vmap(f)(jax.random.split(key, batch), x); draw before the vmap what is "
    "to be the same for all batch elements.",
    "Each batch element of a vmap has a random key of its own.",
    "Keys that are used under vmap were followed to whether they differ between batch elements.",
)
CONSTANT = Kind(
    "LOX704",
    "warning",
    "Random numbers are the same in each call",
    "Make the key an argument of the function, or split the one that it takes, and pass another one in each call.",
    "The random numbers depend on the arguments.",
    "Each random key was followed back to the arguments.",
)
RETURNED = Kind(
    "LOX705",
    "warning",
    "A random key that was used is returned",
    "Return a key that nothing was drawn from: key, used = jax.random.split(key), and draw with `used`.",
    "The random keys that are returned are new.",
    "The keys among the results were followed back to their uses.",
)

_COPIES = {"target", "teacher", "ema", "old", "slow", "frozen", "reference", "ref"}
"""Words in the names of networks that begin as copies of others."""


class _Frame(NamedTuple):
    """Where a function was when it called the next one."""

    code: Any
    instruction: int
    location: Location

    @property
    def is_internal(self) -> bool:
        return is_internal(self.location.file)


def used(audited: Audited) -> Iterator[Finding | Held]:
    """LOX700 to LOX703, LOX705: a key is used twice, in each iteration, in several elements, or is returned."""
    if not audited.has("random_bits", "random_gamma", "random_split"):
        return
    flow, locations = audited.once(flow_of), audited.lines
    yield from _reused(audited, flow, locations)
    for repetition in flow.repetitions:
        if _is_of_library(_frames(repetition.step)) and _is_of_library(_frames(repetition.use.step)):
            continue
        if is_fixed(audited, repetition):
            continue
        own = [frame.location for frame in _frames(repetition.use.step) if _is_own(frame)]
        yield REPEATED.at(
            own[0] if own else locations[repetition.use.step],
            f"Each iteration of {repetition.loop} uses {repetition.name}, and so has the same random numbers.",
        )
    for sharing in flow.sharings:
        text = f"{sharing.lanes} batch elements use the same key, and so have the same random numbers."
        if sharing.again is not None:
            text = (
                f"Batch element {sharing.again} of {sharing.lanes} uses the key of batch element {sharing.before}, "
                "and so has the same random numbers."
            )
        yield SHARED.at(locations[sharing.step], text)
    yield from _returned(audited, flow, locations)


def draws_of(audited: Audited) -> Draws:
    """The draws of a program and their uses."""
    return Draws(audited.program, audited.lines, audited.live)


def drawn(audited: Audited) -> Iterator[Finding | Held]:
    """LOX703 and LOX704: what is drawn for one batch element of a vmap or for one call is drawn for all."""
    if not audited.has("random_bits", "random_gamma"):
        return
    draws = audited.once(draws_of)
    for draw, around in draws.shared.items():
        called = (mapped_at(step.equation) for step in reversed(around))
        location = next(filter(None, called), draw.location)
        where = "here" if str(location) == str(draw.location) else f"in {draw.location}"
        yield SHARED.at(
            location,
            f"All batch elements of a vmap draw from one key {where}, and use the numbers with data of their own.",
        )
    for location, drawn_at in draws.copied.items():
        where = "here" if str(location) == str(drawn_at) else f"in {drawn_at}"
        yield SHARED.at(
            location,
            f"All batch elements of a vmap draw from one key {where}, and nothing else differs between them: all of "
            "them are the same.",
        )
    named = zip(audited.captured.arguments, audited.program.inputs, strict=True)
    keys = [name for name, value in named if is_keyed(value.aval)]
    takes = f"takes the key {keys[0]!r}," if keys else "takes no key,"
    if not draws.keyed and any("/" in name for name in keys):  # A state whose key has its use elsewhere.
        return
    for draw in draws.beside if draws.keyed else draws.constant:
        yield CONSTANT.at(
            draw.location,
            f"{audited.captured.name} {takes} and draws here from a key that is a constant: each call has the same "
            "random numbers.",
        )


def _reused(audited: Audited, flow: KeyFlow, locations: dict[Step, Location]) -> Iterator[Finding | Held]:
    bad = set()
    for reuse in flow.reuses:
        if reuse.loop:
            first, second = (locations[use.step] for use in (reuse.first, reuse.second))
            bad.add(second)
            yield REUSED.at(
                second,
                f"Each iteration of {reuse.loop} uses here a key that the one before has used{_line(first, second)}: "
                f"the key that it carries on is no new one.",
            )
        elif found := _compared(reuse):
            if audited.once(Common).is_meant(reuse.first.step, reuse.second.step):
                continue
            kind, first, second = found
            bad.add(second)
            again = "again as it was" if kind is AGAIN else "and was used before"
            yield kind.at(
                second, f"{reuse.name[0].upper()}{reuse.name[1:]} is used here {again}{_line(first, second)}."
            )
    for step, location in locations.items():
        if step.equation.primitive in USES and location not in bad:
            yield REUSED.fine(location)


def _returned(audited: Audited, flow: KeyFlow, locations: dict[Step, Location]) -> Iterator[Finding | Held]:
    keys = flow.program
    for name, value in zip(audited.captured.results, audited.program.outputs, strict=False):
        found = keys.of(value)
        uses = [use for use in map(keys.first.get, found) if use is not None]
        if uses and len(uses) == len(found) and not uses[0].told:
            yield RETURNED.at(
                locations[_first_use(flow, found[0])],
                f"{audited.captured.name} uses {keys.name(found[0])} here, and returns it as {name!r}.",
            )
        elif found and is_key(value.aval):
            yield RETURNED.fine(NOWHERE)


def _first_use(flow: KeyFlow, key: int) -> Step:
    """The step that uses a key of the program first; of a jitted function that is audited, the step in its body."""
    keys = flow.program
    first = keys.first[key].step
    if len(keys.block.steps) > 1 or not is_call(first):
        return first
    body = flow.of(first.blocks[0])
    outside, inside = (*first.inputs, *first.outputs), (*body.block.inputs, *body.block.outputs)
    pairs = (zip(keys.of(one), body.of(other), strict=False) for one, other in zip(outside, inside, strict=True))
    own = (own for pair in pairs for known, own in pair if known == key and own in body.first)
    return next((body.first[each].step for each in own), first)


def _compared(reuse: Reuse) -> tuple[Kind, Location, Location] | None:
    """What two uses of a key are, by where the calls part that led to them, and the lines where they do."""
    one, other = (_frames(use.step) for use in (reuse.first, reuse.second))
    place = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if place is None:  # A loop of Python, or the branches of a cond that vmap runs both.
        user = [frame for frame in other if not frame.is_internal]
        if not user or other[0].code is not _root(reuse.block):
            return None
        if _is_of_jax(reuse) or _is_drawn_by(reuse, tracebacks.PLACED_DRAWS) or not _is_own(user[-1]):
            return None
        return AGAIN, user[-1].location, user[-1].location
    first, second = one[place], other[place]
    if first.code is not second.code:
        outside = other[place - 1] if place else None
        if outside is None or outside.is_internal:  # JAX calls both, such as the branches of a cond.
            return None
        return REUSED, outside.location, outside.location
    if second.is_internal:
        return None
    inside = [_called(use.step, frames[place + 1 :]) for use, frames in ((reuse.first, one), (reuse.second, other))]
    differentiated = {"jvp" in transformations(use.step.equation) for use in (reuse.first, reuse.second)}
    is_same_draw = _innermost(one) is not None and _innermost(one) == _innermost(other) and True in differentiated
    if not is_same_draw and (inside[0] is None or inside[0] != inside[1]):
        return None if _is_drawn_by(reuse, tracebacks.PAIRED_DRAWS) else (REUSED, first.location, second.location)
    if len(differentiated) > 1 or not _is_own(first):  # A loss and its gradient; a library that does so on purpose.
        return None
    if _is_for_copy(first.location) != _is_for_copy(second.location):
        return None
    return AGAIN, first.location, second.location


def _is_for_copy(location: Location) -> bool:
    """Whether what is computed in a line is given a name of a network that begins as a copy."""
    return any(
        not _COPIES.isdisjoint(name.lower().split("_"))
        for node in ast.walk(syntax(location.file))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.keyword)
        and node.value is not None
        and node.lineno <= location.line <= (node.end_lineno or 0)
        for name in _names(node)
    )


def _names(node: ast.Assign | ast.AnnAssign | ast.keyword) -> list[str]:
    """The names that a value is given."""
    if isinstance(node, ast.keyword):
        return [node.arg or ""]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = (part for target in targets for part in ast.walk(target))
    return [
        part.id if isinstance(part, ast.Name) else part.attr
        for part in parts
        if isinstance(part, ast.Name | ast.Attribute)
    ]


def _is_drawn_by(reuse: Reuse, functions: Set[str]) -> bool:
    """Whether both uses of a key are in calls of these functions of JAX."""

    def callers(use: Use) -> set[str]:
        return {frame.code.co_name for frame in _frames(use.step) if frame.is_internal}

    return not any(callers(use).isdisjoint(functions) for use in (reuse.first, reuse.second))


def _innermost(frames: list[_Frame]) -> _Frame | None:
    """The innermost line of the user's that led to a step."""
    return next((frame for frame in reversed(frames) if not frame.is_internal), None)


def _is_of_jax(reuse: Reuse) -> bool:
    """Whether a function of JAX has used a key twice, of which no more can be told than who called it."""
    if reuse.first is reuse.second:
        return _called(reuse.first.step, []) is None
    if reuse.second.step.equation.primitive in primitives("jit"):
        return False
    # What a jit was inlined to has the frames of the call, and none of what was called.
    return any(
        frame.is_internal and tracebacks.calls_jitted(frame.location.file) for frame in _frames(reuse.second.step)
    )


def _called(step: Step, inside: list[_Frame]) -> Any:
    """Which function of the user's led to a step, of those that were called in a frame."""
    for frame in inside:
        if not frame.is_internal:
            return frame.code
    jaxpr = step.equation.params.get("jaxpr")
    if not step.blocks or jaxpr is None:
        return None
    info = _compat.open_jaxpr(jaxpr).debug_info
    return None if not info.func_filename or is_internal(info.func_filename) else (info.func_filename, info.func_name)


def _frames(step: Step) -> list[_Frame]:
    """The frames that led to a step, the outermost first."""
    traceback = step.equation.source_info.traceback
    if traceback is None:
        return []
    found = []
    for code, instruction, frame in zip(*traceback.raw_frames(), traceback.frames, strict=False):
        column = column_of(code, instruction, frame.line_num)
        location = Location(frame.file_name, frame.line_num, frame.function_name, column)
        found.append(_Frame(code, instruction, location))
    return found[::-1]


def _root(block: Block) -> Any:
    """Where most of the steps of a block come from: the outermost function."""
    found: dict[Any, int] = {}
    for step in block.steps:
        for frame in _frames(step)[:1]:
            found[frame.code] = found.get(frame.code, 0) + 1
    return max(found, key=lambda root: found[root], default=None)


def _is_of_library(frames: list[_Frame]) -> bool:
    """Whether a step is written in a library: what it does with a key is on purpose."""
    written = _innermost(frames)
    return written is not None and not _is_own(written)


def _is_own(frame: _Frame) -> bool:
    """Whether a function is the user's own, and of no library."""
    return not frame.is_internal and "site-packages" not in frame.location.file


def _line(first: Location, second: Location) -> str:
    if first == second:
        return " on the same line"
    return f" in line {first.line}" if first.file == second.file else f" at {first}"


KINDS = (REUSED, AGAIN, REPEATED, SHARED, CONSTANT, RETURNED)
CHECKS = (used, drawn)
