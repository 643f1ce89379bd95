"""Keys that are made, and that nothing uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._randomness._handed import handed_on
from lox._audit._checks._randomness._keys import Keys, flow_of
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Frame, frames, is_internal, is_users
from lox._audit._program import Step
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

UNUSED = Kind(
    "LOX706",
    "info",
    "Keys of a split that nothing uses",
    "Use the key for what it was meant for, or split into as many as are used.",
    "The keys that a split makes are used.",
    "Each part of a split was followed to its uses.",
)


def unused(audited: Audited) -> Iterator[Finding | Held]:
    """LOX706: nothing uses the keys that a split makes, or one of them that is not the first one.

    The first one is carried on by convention, in some programs the last one, and not used after the last split. What
    is handed to a function that draws nothing is not looked at.
    """
    if audited.captured.error is not None or not audited.has("random_split"):
        return
    # A loop of Python and a function that is called twice split at one place several times.
    places: dict[Frame, list[tuple[Step, list[bool]]]] = {}
    last_is_carried = False
    for keys in audited.once(flow_of).blocks:
        splits = {step: _made(step, keys) for step in keys.block.steps if _is_split(step) and keys.of(step.outputs[0])}
        used = _used(keys)
        lasts = {key for made in splits.values() for key in made[:, -1].tolist()}
        last_is_carried |= any(
            not step.inputs[0].shape and not lasts.isdisjoint(keys.of(step.inputs[0])) for step in splits
        )
        for step, made in splits.items():
            place = _place(step)
            if place is not None and is_users(place.file):
                flags = [not used.isdisjoint(column) for column in made.T.tolist()]
                places.setdefault(place, []).append((step, flags))
    for frame, found in places.items():
        location = audited.lines[found[0][0]]
        flags = [any(each) for each in zip(*(flags for _, flags in found), strict=False)]
        for key in handed_on(frame, location.line, len(flags)):
            flags[key] = True
        carried = {0, len(flags) - 1} if last_is_carried else {0}
        left = [f"[{key}]" for key, is_used in enumerate(flags) if not is_used and key not in carried]
        if not any(flags):
            which = "the key" if len(flags) == 1 else f"any of the {len(flags)} keys"
            yield UNUSED.at(location, f"Nothing uses {which} that this split makes.")
        elif left:
            yield UNUSED.at(location, f"Nothing uses {', '.join(left)} of the {len(flags)} keys that this split makes.")
        else:
            yield UNUSED.fine(location)


def _is_split(step: Step) -> bool:
    return step.equation.primitive in primitives("random_split") and len(step.equation.params["shape"]) == 1


def _made(step: Step, keys: Keys) -> Any:
    """The keys that a split makes, in a row for each key that is split."""
    return np.array(keys.of(step.outputs[0])).reshape(-1, step.equation.params["shape"][0])


def _used(keys: Keys) -> set[int]:
    """The keys of a block that something uses, other than to take them out of an array or to put them in one."""
    found: set[int] = set()
    for step in keys.block.steps:
        if step not in keys.moves:
            found.update(*map(keys.parts, step.inputs))
    return found.union(*map(keys.parts, keys.block.outputs))


def _place(step: Step) -> Frame | None:
    """Where somebody called `jax.random.split`, if that is how a step came about."""
    called = frames(step.equation)
    for inside, outside in zip(called, called[1:], strict=False):
        if not is_internal(outside.file):
            return outside if inside.code is tracebacks.code_of(jax.random.split) else None
    return None


KINDS = (UNUSED,)
CHECKS = (unused,)
