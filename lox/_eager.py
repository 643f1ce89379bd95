"""Logs of a program that runs op by op, kept as they were logged until they are stacked, many at a time.

A reference takes no time; a copy takes a dispatch, as long as an operation of the program does. An array is copied when
the handler sees a call that may delete it. What it does not see, an executable of `jit(f).lower(x).compile()` or
`x.delete()`, is found when the logs are stacked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox._columns import ON_DEVICE
from lox._events import Event, Log, StackedEvents, events
from lox._exceptions import SpoolError

Tree = TypeVar("Tree")

CHUNK = 32
"""The number of logs that are stacked at a time, if they are alike."""


def may_delete(primitive: Any, params: dict[str, Any]) -> bool:
    """Tell whether a primitive may delete its arguments."""
    return any(params.get("donated_invars", ())) or primitive is jex.core.primitives.device_put_p


def copied(tree: Tree, doomed: Sequence[Any]) -> Tree:
    """The tree, with copies of arrays that are about to be deleted."""
    copies = {id(array): jnp.copy(array) for array in doomed}
    return jax.tree.map(lambda leaf: copies.get(id(leaf), leaf), tree) if copies else tree


@contextlib.contextmanager
def reporting_deleted(tree: Any) -> Iterator[None]:
    """Say which logs have arrays that were deleted, where that makes JAX fail.

    Raises:
        SpoolError: An array was deleted.
    """
    try:
        yield
    except (RuntimeError, ValueError):
        check_alive(tree)
        raise


def check_alive(tree: Any) -> None:
    """Raise SpoolError where an array of logs, or of what was folded of them, was deleted."""
    parts = jax.tree.leaves(tree, is_leaf=lambda part: hasattr(part, "site"))
    sites = [str(part.site) for part in parts if any(map(_is_deleted, jax.tree.leaves(part)))]
    if sites:
        raise SpoolError(
            f"What is logged at {', '.join(dict.fromkeys(sites))} was deleted before the function returned: by "
            "x.delete(), or as a donated argument of a function that was compiled ahead of time, which lox does not "
            "see. Log a copy, as lox.log({'x': jnp.copy(x)}), or call the function that jax.jit returns."
        )


def _is_deleted(leaf: Any) -> bool:
    return hasattr(leaf, "is_deleted") and not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted()


def stacked(logs: Sequence[Log], least: int) -> list[Log]:
    """Stack logs that are alike: `CHUNK` at a time, and the rest of them if there are at least `least`.

    The logs of each key keep their order, which is all that counts.
    """
    done: list[Log] = []
    kinds: dict[Any, Any] = {}
    alike: dict[Any, _Alike] = {}
    last: dict[str, Any] = {}
    for log in logs:
        leaves, structure = jax.tree.flatten(log)
        keys = tuple(log.values if isinstance(log, Event) else _keys(log))
        # By the keys, since structures that differ in nothing else have one hash.
        kind = keys, structure, tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
        kind = kinds.setdefault(kind, kind)  # To compare two of them takes longer than to see that they are one.
        for key in keys:
            if last.setdefault(key, kind) is not kind:  # What was logged otherwise before comes first.
                done += alike.pop(last[key], _Alike()).joined(least)
                last[key] = kind
        found = alike.setdefault(kind, _Alike())
        found.logs.append(log)
        found.leaves.append(leaves)
        if len(found.logs) == CHUNK:
            done += alike.pop(kind).joined(least)
    return [*done, *(log for found in alike.values() for log in found.joined(least))]


class _Alike:
    """Logs that are alike, and their arrays."""

    __slots__ = ("leaves", "logs")

    def __init__(self) -> None:
        self.logs: list[Log] = []
        self.leaves: list[list[Any]] = []

    def joined(self, least: int) -> list[Log]:
        """Stack all of them into one log if there are at least `least`; else return them as they are."""
        count = len(self.logs)
        if count < least:
            return self.logs
        arrays = ON_DEVICE.joined_leaves(self.leaves, (True,) * count, 0)
        return [StackedEvents((jax.tree.structure(self.logs[0]).unflatten(arrays),), {}, count)]


def _keys(log: StackedEvents) -> dict[str, None]:
    return {key: None for event in events([log]) for key in event.values}
