"""The handler that collects every log, and how branches that log differently become alike."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._blocks import Block, blocks, describe, with_event_axis
from lox._events import Event, Loop, Node, Site, events, map_events, masked, restrict
from lox._exceptions import StructureError, UnsupportedPrimitiveError
from lox._handler import Handler, InPlace
from lox._lanes import where

Maker = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Collect(Handler):
    """Collects every log; events that may not happen are masked."""

    collects = True

    def receive(self, nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        return nodes

    def beside(self, sites: frozenset[Site]) -> Handler:
        return Refuse(sites)

    def while_loops(self, found: Sequence[Event]) -> Any:
        raise AssertionError("logs in a while_loop have no bound")

    def branches(self, nodes: Sequence[tuple[Any, ...]]) -> Sequence[Maker]:
        return align_tagged(nodes)


@dataclasses.dataclass(frozen=True)
class Refuse(InPlace):
    """Drops the logs at `sites`; of others it is not known for which lanes they happen."""

    sites: frozenset[Site]

    def replace(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        for event in events(nodes):
            if event.site not in self.sites:
                raise UnsupportedPrimitiveError(
                    f"A derivative or batching rule logs, at {event.site}, of a function that is called under vmap in "
                    "a cond or switch whose predicate differs between lanes: lox cannot tell for which of them the "
                    "rule runs. Log in the function rather than in its rule, or leave this log out with lox.strip."
                )
        return ()


@dataclasses.dataclass
class Kind:
    """What is known of the events of one key in one branch before it runs."""

    count: int
    aval: Any
    steps: dict[str, Any]
    masked: bool
    dropped: tuple[int, ...] | None  # The shape of the count of those beyond a bound, if there is one.
    site: Site
    lanes: int
    optional: str
    split: tuple[tuple[Any, ...], ...]
    outside: int

    def __str__(self) -> str:
        return describe(self.aval.dtype, self.aval.shape, self.lanes)


def align(branches: Sequence[tuple[Node, ...]]) -> Sequence[Maker]:
    """For each branch, how to bring its nodes into one structure with the others'.

    Where all branches log alike, the nodes stay as they are. Else the j-th event of a key in one branch meets the
    j-th of that key in the others, and where a branch has none, it is masked out there.

    Args:
        branches: For each branch its nodes, with abstract values in place of arrays.

    Raises:
        StructureError: A key has different shapes, dtypes or counters in the branches.
    """
    if all(_alike(branches[0], other) for other in branches[1:]):
        return [tuple for _ in branches]
    kinds = [_kinds(nodes) for nodes in branches]
    _check_kinds(kinds)
    keys = list(dict.fromkeys(key for found in kinds for key in found))
    reason = difference(branches)
    return [lambda nodes: _filled(blocks(nodes), keys, kinds, reason) for _ in branches]


def align_tagged(branches: Sequence[tuple[Node, ...]]) -> Sequence[Maker]:
    """`align` for nodes from which handlers further out may still select some by tags.

    Events of one key that carry different tags do not meet each other. Of such a key, the events of each branch
    stay as they are, in their order, and are masked out in the other branches.
    """
    tags: dict[str, set[tuple[str, ...]]] = {}
    for nodes in branches:
        for event in events(nodes):
            for key in event.values:
                tags.setdefault(key, set()).add(event.site.tags)
    mixed = {key for key, found in tags.items() if len(found) > 1}
    apart = [_restricted(nodes, mixed, True) for nodes in branches]
    if not mixed or all(_alike(apart[0], other) for other in apart[1:]):
        mixed, apart = set(), [() for _ in branches]
    together = align([_restricted(nodes, mixed, False) for nodes in branches])
    reason = difference(branches, with_tags=True)
    counts = [_counts_by_tags(nodes) for nodes in apart]

    def because(event: Event, depth: int) -> Event:
        groups = [(key, event.site.tags) for key in event.values]
        if all(count.get(group, 0) == counts[0].get(group, 0) for count in counts for group in groups):
            return event
        return dataclasses.replace(event, optional=event.optional or reason)

    def make(nodes: tuple[Any, ...], own: int) -> tuple[Any, ...]:
        found = list(together[own](_restricted(nodes, mixed, False)))
        for branch, like in enumerate(apart):
            here = branch == own
            rest = _restricted(nodes, mixed, True) if here else jax.tree.map(_compat.zeros_like_aval, like)
            found += map_events(because, masked(rest, jnp.asarray(here)))
        return tuple(found)

    return [functools.partial(make, own=own) for own in range(len(branches))]


def _restricted(nodes: Sequence[Node], keys: Set[str], wanted: bool) -> tuple[Node, ...]:
    return map_events(lambda event, _: restrict(event, lambda key: (key in keys) == wanted), nodes)


def _counts_by_tags(nodes: Sequence[Node], times: int = 1) -> Counter[tuple[str, tuple[str, ...]]]:
    """How many events there are by key and tags."""
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for node in nodes:
        if isinstance(node, Loop):
            found.update(_counts_by_tags(node.body, times * node.length))
        else:
            found.update({(key, node.site.tags): times for key in node.values})
    return found


def difference(branches: Sequence[tuple[Node, ...]], with_tags: bool = False) -> str:
    """What the branches of a `cond` or `switch` log, when the keys or their numbers of events differ; else empty.

    Args:
        branches: For each branch its nodes.
        with_tags: Whether events of one key with other tags count as others.
    """
    kinds = [_kinds(nodes) for nodes in branches]
    counts: list[Any] = [{key: kind.count for key, kind in found.items()} for found in kinds]
    if with_tags:
        counts = [_counts_by_tags(nodes) for nodes in branches]
    if all(count == counts[0] for count in counts[1:]):
        return ""
    lines = [f"  branch {index} logs {_listed(found)}" for index, found in enumerate(kinds)]
    return (
        "The branches of a cond or switch log different keys, so that some events may not happen:\n"
        + "\n".join(lines)
        + "\nLog the same keys in every branch, use unify=True to get these events with a mask, or leave the keys "
        "out with argnames= or tags=."
    )


def _listed(found: dict[str, Kind]) -> str:
    if not found:
        return "nothing"
    return ", ".join(
        f"{key!r}{f' ({kind.count} events)' if kind.count != 1 else ''} at {kind.site}" for key, kind in found.items()
    )


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


def _kinds(nodes: Sequence[Node], lengths: tuple[int, ...] = ()) -> dict[str, Kind]:
    found: dict[str, Kind] = {}

    def add(key: str, kind: Kind) -> None:
        if key in found:
            kind = dataclasses.replace(
                found[key],
                count=found[key].count + kind.count,
                masked=found[key].masked or kind.masked,
                dropped=_longer(found[key].dropped, kind.dropped),
                optional=found[key].optional or kind.optional,
            )
        found[key] = kind

    for node in nodes:
        if isinstance(node, Loop):
            for key, kind in _kinds(node.body, (*lengths, node.length)).items():
                beyond = jnp.shape(node.dropped[key])[len(lengths) :] if key in node.dropped else None
                add(key, dataclasses.replace(kind, dropped=_longer(kind.dropped, beyond)))
            continue
        for key, value in node.values.items():
            add(
                key,
                Kind(
                    count=math.prod(lengths),
                    aval=_inside(value, len(lengths)),
                    steps={name: _inside(step, len(lengths)) for name, step in node.steps.items()},
                    masked=node.mask is not None,
                    dropped=None,
                    site=node.site,
                    lanes=node.lanes,
                    optional=node.optional,
                    split=node.split,
                    outside=node.outside,
                ),
            )
    return found


def _longer(first: tuple[int, ...] | None, second: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return max((shape for shape in (first, second) if shape is not None), key=len, default=None)


def _inside(aval: Any, loops: int) -> Any:
    for _ in range(loops):
        aval = jex.core.mapped_aval(aval.shape[0], 0, aval)
    return aval


def _check_kinds(kinds: Sequence[dict[str, Kind]]) -> None:
    first: dict[str, Kind] = {}
    for found in kinds:
        for key, kind in found.items():
            other = first.setdefault(key, kind)
            if str(kind) != str(other) or set(kind.steps) != set(other.steps):
                raise StructureError(
                    f"The branches of a cond or switch log the key {key!r} differently: as {other} with steps "
                    f"{sorted(other.steps)} at {other.site}, and as {kind} with steps {sorted(kind.steps)} at "
                    f"{kind.site}. Events of one key must be alike: give one of them another key or a prefix."
                )


def _filled(own: dict[str, Block], keys: list[str], kinds: Sequence[dict[str, Kind]], reason: str) -> tuple[Node, ...]:
    nodes = []
    for key in keys:
        known = [found[key] for found in kinds if key in found]
        count = max(kind.count for kind in known)
        uncertain = len(known) < len(kinds) or any(kind.count != count for kind in known)
        block = own.get(key)
        if block is not None:
            block = with_event_axis(block)
        have = 0 if block is None else jnp.shape(block.value)[0]
        kind = known[0]

        def pad(array: Any, aval: Any, have: int = have, count: int = count) -> Any:
            if array is not None and have == count:
                return array
            extra = _compat.zeros_like_aval(jex.core.unmapped_aval(count - have, 0, aval))
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
        shape = functools.reduce(_longer, (kind.dropped for kind in known))
        if shape is not None:
            beyond = jnp.int32(0) if block is None or block.dropped is None else block.dropped
            dropped[key] = jax.lax.broadcast_in_dim(beyond, shape, range(jnp.ndim(beyond)))
        optional = reason if uncertain else next((kind.optional for kind in known if kind.optional), "")
        value = pad(block.value if block else None, kind.aval)
        event = Event({key: value}, steps, mask, (), kind.site, kind.lanes, optional, kind.split, kind.outside)
        nodes.append(Loop((event,), dropped, count))
    return tuple(nodes)


def fill(aval: Any) -> Any:
    """What the user gets where no event happened: NaN, 0 or False; 0 also while JAX looks for NaN (`jax_debug_nans`).

    Inside the program 0 stands there, to which no check of the program's values can object.
    """
    zeros = _compat.zeros_like_aval(aval)
    if not jnp.issubdtype(aval.dtype, jnp.inexact) or jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        return zeros
    if jnp.issubdtype(aval.dtype, jnp.complexfloating):
        part = fill(jax.typeof(jnp.real(zeros)))
        return jax.lax.complex(part, jnp.zeros_like(part))
    return jnp.maximum(zeros, jnp.asarray(jnp.nan, aval.dtype))  # A sum that is NaN, checkify would report.


def blanked(block: Block) -> Block:
    """The block as the user gets it where events did not happen, whatever batch elements computed for them."""
    return block.map(lambda array: where(block.mask, array, fill(jax.typeof(array))))
