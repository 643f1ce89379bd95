"""Nodes sorted by key: for each key one block of events in the order in which they happened."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._events import Loop, Node, Site
from lox._exceptions import StructureError, UnsupportedPrimitiveError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(slots=True)
class Block:
    """The events of one key. Arrays have the axes of the loops around, then the event axis.

    The event axis is left out while `single` says that there is one event, so that stacking costs nothing.
    """

    value: Any
    steps: dict[str, Any]
    mask: Any
    dropped: Any
    site: Site = dataclasses.field(metadata={"static": True})
    lanes: int = dataclasses.field(metadata={"static": True})
    optional: str = dataclasses.field(metadata={"static": True})
    single: bool = dataclasses.field(default=False, metadata={"static": True})

    def map(self, function: Callable[[Any], Any], **changes: Any) -> Block:
        steps = {name: function(step) for name, step in self.steps.items()}
        mask = None if self.mask is None else function(self.mask)
        return dataclasses.replace(self, value=function(self.value), steps=steps, mask=mask, **changes)


def blocks(nodes: Sequence[Node], depth: int = 0) -> dict[str, Block]:
    """The blocks of all keys, in the order of their first events.

    Args:
        nodes: The nodes, under `depth` loops.
        depth: The number of leading loop axes.

    Raises:
        StructureError: Events of one key differ in shape, dtype or counters. Those of one log call may be in batches of
            several sizes, of which the smaller ones are masked where they have no element.
    """
    parts: dict[str, list[Block]] = {}
    for node in nodes:
        if isinstance(node, Loop):
            for key, block in blocks(node.body, depth + 1).items():
                parts.setdefault(key, []).append(_unroll(block, node.dropped.get(key), depth))
        else:
            if any(node.split):
                raise UnsupportedPrimitiveError(
                    f"reduce=, interval= and branches that log differently cannot be had for the log at {node.site} "
                    "inside a shard_map under vmap with spmd_axis_name=, which splits the batch over shards. Apply "
                    "lox.spool inside the vmap, as in vmap(spool(f), spmd_axis_name=...)."
                )
            for key, value in node.values.items():
                fixed = (node.site, node.lanes, node.optional)
                block = Block(value, node.steps, node.mask, None, *fixed, single=True)
                parts.setdefault(key, []).append(block)
    return {key: _in_sequence(key, found, depth) for key, found in parts.items()}


@functools.partial(jax.jit, inline=True)  # Which an eager call dispatches at once, and a traced one does not show.
def one_event(array: Any) -> Any:
    """An array with an event axis of length one."""
    return jax.lax.expand_dims(array, (0,))


def with_event_axis(block: Block, depth: int = 0) -> Block:
    if not block.single:
        return block
    return block.map(lambda array: jax.lax.expand_dims(array, (depth,)) if depth else one_event(array), single=False)


def _unroll(block: Block, dropped: Any, depth: int) -> Block:
    if dropped is None and block.dropped is not None:
        dropped = 0
    if block.dropped is not None:
        dropped = dropped + jnp.sum(block.dropped, axis=depth)
    if block.single:
        return dataclasses.replace(block, dropped=dropped, single=False)

    def merge(array: Any) -> Any:
        shape = jnp.shape(array)
        return jax.lax.reshape(array, (*shape[:depth], shape[depth] * shape[depth + 1], *shape[depth + 2 :]))

    return block.map(merge, dropped=dropped)


def _in_sequence(key: str, parts: list[Block], depth: int) -> Block:
    first, *others = parts = _in_equal_batches(parts, depth)
    for other in others:
        _check_alike(key, first, other, depth)
    if len(parts) == 1:
        return first
    join = functools.partial(_joined, single=tuple(part.single for part in parts), depth=depth)
    mask = None
    if any(part.mask is not None for part in parts):
        mask = join([_mask_of(part, depth) for part in parts])
    dropped = [part.dropped for part in parts if part.dropped is not None]
    return Block(
        value=join([part.value for part in parts]),
        steps={name: join([part.steps[name] for part in parts]) for name in first.steps},
        mask=mask,
        dropped=sum(dropped[1:], dropped[0]) if dropped else None,
        site=first.site,
        lanes=first.lanes,
        optional=next((part.optional for part in parts if part.optional), ""),
    )


@functools.partial(jax.jit, static_argnames=("single", "depth"), inline=True)
def _joined(arrays: list[Any], single: tuple[bool, ...], depth: int) -> Any:
    """Arrays one after the other along the event axis, which single events do not have yet."""
    parts = [jax.lax.expand_dims(a, (depth,)) if one else a for a, one in zip(arrays, single, strict=True)]
    return jax.lax.concatenate(parts, depth)


def _mask_of(part: Block, depth: int) -> Any:
    if part.mask is not None:
        return part.mask
    axes = depth + part.lanes + (not part.single)
    return jnp.ones(jnp.shape(part.value)[:axes], bool)


def _check_alike(key: str, first: Block, other: Block, depth: int) -> None:
    kinds = [_kind(block, depth) for block in (first, other)]
    if kinds[0] != kinds[1]:
        logged, others = (describe(*kind) for kind in kinds)
        raise StructureError(
            f"The key {key!r} is logged as {logged} at {first.site} and as {others} at {other.site}. "
            f"Events of one key must be alike: give one of them another key or a prefix."
        )
    if first.steps.keys() != other.steps.keys():
        raise StructureError(
            f"The key {key!r} is logged with {_counters(first)} at {first.site} and with {_counters(other)} at "
            f"{other.site}. Events of one key must have the same counters: give one of them another key or a prefix."
        )


def _kind(block: Block, depth: int) -> tuple[Any, tuple[int, ...], int]:
    value = block.value
    return value.dtype, value.shape[depth if block.single else depth + 1 :], block.lanes


def _in_equal_batches(parts: list[Block], depth: int) -> list[Block]:
    """The blocks, of which those of smaller batches get the elements that they lack, where no event happened.

    So it is in `lax.map` with a `batch_size` that does not divide the length. Others stay as they are.
    """
    kinds = [_kind(part, depth) for part in parts]
    sizes = [shape[:lanes] for _, shape, lanes in kinds]
    alike = len({(part.site, _without_lanes(kind)) for part, kind in zip(parts, kinds, strict=True)}) == 1
    if not alike or all(size == sizes[0] for size in sizes):
        return parts
    largest = tuple(map(max, zip(*sizes, strict=True)))
    return [part if size == largest else _padded(part, largest, depth) for part, size in zip(parts, sizes, strict=True)]


def _padded(part: Block, batch: tuple[int, ...], depth: int) -> Block:
    def pad(array: Any, first: int) -> Any:
        for axis, size in enumerate(batch, first):
            lacks = (*array.shape[:axis], size - array.shape[axis], *array.shape[axis + 1 :])
            array = jax.lax.concatenate([array, jax.lax.full(lacks, 0, array.dtype)], axis)
        return array

    dropped = part.dropped
    if dropped is not None and jnp.ndim(dropped) > depth:
        dropped = pad(dropped, depth)
    masked = dataclasses.replace(part, mask=_mask_of(part, depth), dropped=dropped)
    return masked.map(lambda array: pad(array, depth + (not part.single)))


def _without_lanes(kind: tuple[Any, tuple[int, ...], int]) -> tuple[Any, tuple[int, ...], int]:
    dtype, shape, lanes = kind
    return dtype, shape[lanes:], lanes


def describe(dtype: Any, shape: Sequence[int], lanes: int) -> str:
    """The type of an event, in which the axes of batches are told from those that were logged."""
    logged = f"{dtype.name}{list(shape[lanes:])}"
    return f"{logged} in a batch of {' x '.join(map(str, shape[:lanes]))}" if lanes else logged


def _counters(block: Block) -> str:
    return f"the steps {', '.join(sorted(block.steps))}" if block.steps else "no steps"
