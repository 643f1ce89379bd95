"""The handler that collects every log, and how branches that log differently become alike."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._blocks import Block, blocks, describe, with_event_axis
from lox._events import Event, Loop, Node, Site
from lox._exceptions import StructureError
from lox._handler import Handler
from lox._lanes import where

Maker = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Group = tuple[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Collect(Handler):
    """Collects every log; events that may not happen are masked."""

    collects = True

    def receive(self, nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        return nodes

    def while_loops(self, found: Sequence[Event]) -> Any:
        raise AssertionError("logs in a while_loop have no bound")

    def branches(self, nodes: Sequence[tuple[Any, ...]]) -> Sequence[Maker]:
        return align(nodes)


@dataclasses.dataclass
class Kind:
    """What is known of the events of one key in one branch before it runs."""

    count: int
    aval: Any
    steps: dict[str, Any]
    masked: bool
    bounded: bool
    site: Site
    lanes: int
    optional: str

    def __str__(self) -> str:
        return describe(self.aval.dtype, self.aval.shape, self.lanes)


def align(branches: Sequence[tuple[Node, ...]]) -> Sequence[Maker]:
    """For each branch, how to bring its nodes into one structure with the others'.

    Where all branches log alike, the nodes stay as they are. Else the j-th event of a key in one branch meets the
    j-th of that key in the others, and where a branch has none, it is masked out there: its value is NaN, 0 or
    False.

    Args:
        branches: For each branch its nodes, with abstract values in place of arrays.

    Raises:
        StructureError: A key has different shapes, dtypes or counters in the branches.
    """
    if all(_alike(branches[0], other) for other in branches[1:]):
        return [tuple for _ in branches]
    kinds = [_kinds(nodes) for nodes in branches]
    _check_kinds(kinds)
    groups = list(dict.fromkeys(group for found in kinds for group in found))
    reason = difference(branches)
    return [lambda nodes: _filled(blocks(nodes, _group), groups, kinds, reason) for _ in branches]


def difference(branches: Sequence[tuple[Node, ...]]) -> str:
    """What the branches of a `cond` or `switch` log, when the keys or their numbers of events differ; else empty."""
    kinds = [_kinds(nodes) for nodes in branches]
    counts = [{group: kind.count for group, kind in found.items()} for found in kinds]
    if all(count == counts[0] for count in counts[1:]):
        return ""
    lines = [f"  branch {index} logs {_listed(found)}" for index, found in enumerate(kinds)]
    return (
        "The branches of a cond or switch log different keys, so that some events may not happen:\n"
        + "\n".join(lines)
        + "\nLog the same keys in every branch, use unify=True to get these events with a mask, or leave the keys "
        "out with argnames= or tags=."
    )


def _listed(found: dict[Group, Kind]) -> str:
    if not found:
        return "nothing"
    return ", ".join(
        f"{key!r}{f' ({kind.count} events)' if kind.count != 1 else ''} at {kind.site}"
        for (key, _), kind in found.items()
    )


def _group(key: str, event: Event) -> Group:
    return key, event.site.tags


def _alike(first: tuple[Node, ...], second: tuple[Node, ...]) -> bool:
    def unplaced(nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        return tuple(
            Loop(unplaced(node.body), node.dropped, node.length)
            if isinstance(node, Loop)
            else dataclasses.replace(
                node, anchors=(), site=dataclasses.replace(node.site, file="", line=0, function="")
            )
            for node in nodes
        )

    leaves, structure = jax.tree.flatten(unplaced(first))
    others, other_structure = jax.tree.flatten(unplaced(second))
    return structure == other_structure and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(leaves, others, strict=True)
    )


def _kinds(nodes: Sequence[Node], lengths: tuple[int, ...] = ()) -> dict[Group, Kind]:
    found: dict[Group, Kind] = {}

    def add(group: Group, kind: Kind) -> None:
        if group in found:
            kind = dataclasses.replace(
                found[group],
                count=found[group].count + kind.count,
                masked=found[group].masked or kind.masked,
                bounded=found[group].bounded or kind.bounded,
                optional=found[group].optional or kind.optional,
            )
        found[group] = kind

    for node in nodes:
        if isinstance(node, Loop):
            for group, kind in _kinds(node.body, (*lengths, node.length)).items():
                add(group, dataclasses.replace(kind, bounded=kind.bounded or group[0] in node.dropped))
            continue
        for key, value in node.values.items():
            add(
                _group(key, node),
                Kind(
                    count=math.prod(lengths),
                    aval=_inside(value, len(lengths)),
                    steps={name: _inside(step, len(lengths)) for name, step in node.steps.items()},
                    masked=node.mask is not None,
                    bounded=False,
                    site=node.site,
                    lanes=node.lanes,
                    optional=node.optional,
                ),
            )
    return found


def _inside(aval: Any, loops: int) -> Any:
    for _ in range(loops):
        aval = jex.core.mapped_aval(aval.shape[0], 0, aval)
    return aval


def _check_kinds(kinds: Sequence[dict[Group, Kind]]) -> None:
    first: dict[str, Kind] = {}
    for found in kinds:
        for (key, _), kind in found.items():
            other = first.setdefault(key, kind)
            if str(kind) != str(other) or set(kind.steps) != set(other.steps):
                raise StructureError(
                    f"The branches of a cond or switch log the key {key!r} differently: as {other} with steps "
                    f"{sorted(other.steps)} at {other.site}, and as {kind} with steps {sorted(kind.steps)} at "
                    f"{kind.site}. Events of one key must be alike: give one of them another key or a prefix."
                )


def _filled(
    own: dict[Group, Block], groups: list[Group], kinds: Sequence[dict[Group, Kind]], reason: str
) -> tuple[Node, ...]:
    nodes = []
    for group in groups:
        known = [found[group] for found in kinds if group in found]
        count = max(kind.count for kind in known)
        uncertain = len(known) < len(kinds) or any(kind.count != count for kind in known)
        block = own.get(group)
        if block is not None:
            block = with_event_axis(block)
        have = 0 if block is None else jnp.shape(block.value)[0]
        kind = known[0]

        def pad(array: Any, aval: Any, have: int = have, count: int = count) -> Any:
            if have == count:
                return array
            extra = fill(jex.core.unmapped_aval(count - have, 0, aval))
            return extra if array is None else jax.lax.concatenate([array, extra], 0)

        mask = None
        if uncertain or any(kind.masked for kind in known):
            lanes = kind.aval.shape[: kind.lanes]
            happened = jnp.zeros((count - have, *lanes), bool)
            if block is not None:
                own_mask = jnp.ones((have, *lanes), bool) if block.mask is None else block.mask
                happened = jax.lax.concatenate([own_mask, happened], 0)
            mask = happened
        steps = {name: pad(block.steps[name] if block else None, aval) for name, aval in kind.steps.items()}
        dropped = {}
        if any(kind.bounded for kind in known):
            dropped[group[0]] = jnp.int32(0) if block is None or block.dropped is None else block.dropped
        optional = reason if uncertain else next((kind.optional for kind in known if kind.optional), "")
        value = pad(block.value if block else None, kind.aval)
        event = Event({group[0]: value}, steps, mask, (), kind.site, kind.lanes, optional)
        nodes.append(Loop((event,), dropped, count))
    return tuple(nodes)


def fill(aval: Any) -> Any:
    """What stands where no event happened: NaN, 0 or False."""
    zeros = _compat.zeros_like_aval(aval)
    return zeros + jnp.asarray(jnp.nan, aval.dtype) if jnp.issubdtype(aval.dtype, jnp.inexact) else zeros


def blanked(block: Block) -> Block:
    """The block, with nothing left of what lanes computed for events that did not happen."""

    def blank(array: Any) -> Any:
        return where(block.mask, array, fill(jax.typeof(array)))

    return block.map(blank)
