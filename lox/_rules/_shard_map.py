"""`shard_map`, which is also `pmap`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from lox import _compat
from lox._events import Event, Log, Logs, StackedEvents, events
from lox._handler import Handler, State, rule
from lox._trace import under

Axes = tuple[Any, ...]
AxesOf = Callable[[Sequence[Any]], Axes]


# shard_map: args -> outs  becomes  args -> (outs, state, logs)
# A value that varies over shards gets an axis for them, before the axes of a `vmap` inside and after those of one
# outside; a value that does not vary appears once.
@rule(_compat.shard_map_p)
def shard_map(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    fun = params.pop("fun")
    inner: Handler
    if handler.returns_logs or params["check_vma"]:
        inner, inside = handler.enter(state, (), "rule")
    else:  # JAX does not know that the state is the same on all shards.
        state = handler.finish(state)
        inner, inside = handler.detached(state, frozenset())
    manual = [name for name in params["mesh"].axis_names if name in params["newly_manual_axes"]]
    structure = None

    def axes_of(leaves: Sequence[Any]) -> Axes:
        if not params["check_vma"]:  # JAX does not track what varies.
            return tuple(manual)
        varying = frozenset[Any]().union(*map(_compat.varying_axes, leaves))
        return tuple(name for name in manual if name in varying)

    def of_tree(tree: Any) -> Axes:
        return axes_of(jax.tree.leaves(tree))

    def with_results(*args: Any) -> Any:
        nonlocal structure
        outs, after, logs = under(inner, fun)(inside, *args)
        states, specs = _expand_state(inner.by_shards(after, of_tree), of_tree)
        logs, log_specs = _expand(logs, axes_of, frozenset(manual))
        leaves, structure = jax.tree.flatten((states, logs))
        specs += log_specs
        return _compat.extend_outputs(outs, leaves, specs)

    results = primitive.bind(*args, subfuns=(with_results,), **params)
    outs, leaves = _compat.split_outputs(results)
    # Of an empty array, jax 0.10 may give what it returned eagerly the shape of the whole on each shard.
    leaves = [_compat.zeros_like_aval(jax.typeof(leaf)) if 0 in leaf.shape else leaf for leaf in leaves]
    states, logs = jax.tree.unflatten(structure, leaves)
    collected: list[Any] = []
    for after in states:
        state, found = handler.leave(state, after, logs)
        collected, logs = [*collected, *found], ()
    return outs, state, tuple(collected)


def _expand_state(
    parts: Sequence[tuple[int, State]], axes_of: Callable[[Any], Axes]
) -> tuple[list[State], list[PartitionSpec]]:
    """The parts of a state with an axis for shards where they vary, and the out_spec of each of their leaves."""
    expanded, specs = [], []
    for place, part in parts:
        axes = axes_of(part)
        part, part_specs = _with_shards(part, axes, place, [*[None] * place, *([axes] if axes else [])])
        expanded.append(part)
        specs += part_specs
    return expanded, specs


def _with_shards(
    tree: Any, axes: Axes, place: int, spec: Sequence[Axes | None], split: Axes = ()
) -> tuple[Any, list[PartitionSpec]]:
    """A tree of arrays with an axis at `place` for shards, if they vary along any axes of the mesh, and its out_specs.

    Args:
        tree: The arrays.
        axes: The axes of the mesh that the new axis is for.
        place: Its position.
        spec: The axes of the mesh along which each array axis of the result is split.
        split: The axes of the mesh along which a batch axis that the arrays have is split.
    """
    tree = jax.tree.map(lambda leaf: _compat.vary(leaf, (*axes, *split)), tree)
    if axes:
        tree = jax.tree.map(lambda leaf: jax.lax.expand_dims(leaf, (place,)), tree)
    return tree, [PartitionSpec(*spec) if axes or split else PartitionSpec()] * len(jax.tree.leaves(tree))


def _expand(
    logs: Sequence[Log], axes_of: AxesOf, manual: frozenset[Any], depth: int = 0
) -> tuple[tuple[Any, ...], list[PartitionSpec]]:
    """The logs with an axis for shards where they vary, and the out_spec of each of their leaves.

    A batch axis that is split over shards is put together again.
    """
    expanded: list[Any] = []
    specs: list[PartitionSpec] = []

    for log in logs:
        if isinstance(log, StackedEvents):
            body, body_specs = _expand(log.body, axes_of, manual, depth + 1)
            before = {key: event for event in events(log.body) for key in event.values}
            after = {key: event.batch_ndim for event in events(body) for key in event.values}
            shards = axes_of(jax.tree.leaves(log))
            counts = {}
            for keys, count in log.dropped.items():  # What varies is told key by key, and so splits a timeline.
                for varies in dict.fromkeys(after[key] > before[key].batch_ndim for key in keys):
                    counts[tuple(key for key in keys if (after[key] > before[key].batch_ndim) == varies)] = (
                        count,
                        varies,
                    )
            dropped = {}
            for keys, (count, varies) in sorted(counts.items()):  # As JAX flattens them.
                place = depth + before[keys[0]].outer_batch_ndim
                axes = shards if varies else ()
                dropped[keys] = jax.lax.expand_dims(_compat.vary(count, axes), (place,)) if axes else count
                body_specs.append(PartitionSpec(*[None] * place, axes) if axes else PartitionSpec())
            expanded.append(StackedEvents(body, dropped, log.length))
            specs += body_specs
        else:
            log = log.with_full_steps(depth)
            others = jax.tree.leaves((log.steps, log.mask))
            axes_by_key = {key: axes_of([value, *others]) for key, value in log.values.items()}
            for group in dict.fromkeys(axes_by_key.values()):
                values = {key: value for key, value in log.values.items() if axes_by_key[key] == group}
                own = dataclasses.replace(log, values=values, iteration_deps=())
                event, event_specs = _expand_event(own, group, manual, depth)
                expanded.append(event)
                specs += event_specs
    return tuple(expanded), specs


def _expand_event(event: Event, axes: Axes, manual: frozenset[Any], depth: int) -> tuple[Event, list[PartitionSpec]]:
    outer, names_of = event.outer_batch_ndim, event.spmd_axes
    split = [tuple(name for name in names if name in manual) for names in names_of]
    axes = tuple(name for name in axes if not any(name in names for names in split))
    of_batch = [names or None for names in split] + [None] * (outer - len(split))
    spec = [*[None] * depth, *of_batch[:outer], *([axes] if axes else []), *of_batch[outer:]]
    event, specs = _with_shards(event, axes, depth + outer, spec, tuple(name for names in split for name in names))
    rest = tuple(tuple(name for name in names if name not in manual) for names in names_of)
    rest = ((), *rest) if axes and any(rest) else rest if any(rest) else ()
    batch_ndim = event.batch_ndim + bool(axes)
    return dataclasses.replace(event, batch_ndim=batch_ndim, spmd_axes=rest, outer_batch_ndim=0), specs
