"""From the device to the host: logs that a tap has taken become calls of Python with NumPy arrays."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from lox import _compat
from lox._arguments import untyped
from lox._channel import Channel, Receiver, failed, find
from lox._columns import ON_HOST, Columns, with_event_axes
from lox._effect import Layout, log_p, ordered_tap_effect, received, recording
from lox._events import Destination, Event, Log, events, map_events, with_depths
from lox._exceptions import UnsupportedPrimitiveError
from lox._keys import impl_of, key_data
from lox._logdict import logdict, map_timelines, of_timelines
from lox._timeline import Timeline

ORDER = ""
"""The name of a counter that numbers the events of several log calls, so that the host can put them in order."""

LABEL = "\0"
"""The beginning of the names of labels, which no counter has."""

INNER = f"{LABEL}inner"
"""The label that counts the batch axes that an event had when it was labelled. It has all batch axes, as counters do,
and stays among them on the host."""

SHARDED = f"{LABEL}sharded"
"""The label of what differs between shards: their axis, or, where it is the other labels that tell them apart, the
number of the shard, less one and negative."""

DEVICES = f"{LABEL}devices"
"""The label of what arrives in one of several processes: on how many devices the program is."""

_compat.cache_weakly(Channel)

channel_p = jex.core.Primitive("lox_channel")
"""The number of a channel, which a compiled program keeps alive."""


@channel_p.def_impl
def _number(*, channel: Receiver) -> Any:
    return np.int32(channel.number)


@channel_p.def_abstract_eval
def _scalar(*, channel: Receiver) -> Any:
    del channel
    return _compat.int32_scalar


def _lower_channel(ctx: Any, *, channel: Receiver) -> Any:
    ctx.module_context.add_keepalive(channel)
    return mlir.lower_fun(lambda: jnp.int32(channel.number), multiple_results=False)(ctx)


mlir.register_lowering(channel_p, _lower_channel)

Keys = tuple[tuple[str, str], ...]
"""Under which keys typed PRNG keys are logged, and of which implementation: what of them arrives is their data."""

call_p = jex.core.Primitive("lox_call")
"""Calls the host."""
call_p.multiple_results = True


@call_p.def_effectful_abstract_eval
def _has_effect(*arrays: Any, layout: Layout, keys: Keys) -> tuple[list[Any], set[Any]]:
    del arrays, keys
    return [], {layout.effect}


def _lower_call(ctx: Any, *arrays: Any, layout: Layout, keys: Keys) -> Any:
    automatic = _compat.automatic_axes(ctx)
    if automatic:  # JAX has callbacks in programs all of whose axes are manual: those that are left become so here.
        if layout.effect is ordered_tap_effect and not _compat.CALLS_IN_ORDER_ON_SOME_AXES:
            logs, _ = layout.tree.unflatten(range(layout.tree.num_leaves))
            raise UnsupportedPrimitiveError(
                f"The log at {next(events(logs)).site} is in a shard_map over some axes of a mesh, from which JAX "
                "before 0.11 cannot call the host in order. Give lox.tap, or the logger's tap, ordered=False, "
                "use lox.spool, or take jax 0.11 or later."
            )
        return mlir.lower_fun(functools.partial(_call_on_first, automatic, layout, keys))(ctx, *arrays)
    _compat.emit_callback(ctx, receiver(layout, keys, _compat.num_devices(ctx)), arrays, layout.effect)
    return []


def _call_on_first(axes: tuple[str, ...], layout: Layout, keys: Keys, *arrays: Any) -> list[Any]:
    def call(*arrays: Any) -> list[Any]:
        first = jax.lax.axis_index(axes) == 0
        return jax.lax.cond(first, lambda: call_p.bind(*arrays, layout=layout, keys=keys), lambda: [])

    specs = (jax.sharding.PartitionSpec(),) * len(arrays)
    return jax.shard_map(call, in_specs=specs, out_specs=[], axis_names=set(axes), check_vma=False)(*arrays)


mlir.register_lowering(call_p, _lower_call, cacheable=False)


def _send(*leaves: Any, layout: Layout) -> list[Any]:
    logs, to = received(leaves, {"layout": layout})
    if to is None:
        _refuse(logs)
        return []
    if to.first:
        _compat.need(_compat.Feature.LOWERING_RULES)
    if all(0 in event.lengths(depth + event.batch_ndim)[depth:] for event, depth in with_depths(logs)):
        return []
    logs = map_events(lambda event, depth: event.with_full_steps(depth), logs)
    arrays = [untyped(leaf) for leaf in jax.tree.leaves((logs, to))]
    if _is_plain(logs, to):
        count = len(jax.tree.leaves(logs))
        arrays = [*(jax.lax.expand_dims(array, (0,)) for array in arrays[:count]), *arrays[count:]]
    keys = tuple(
        (key, impl)
        for event in events(logs)
        for key, value in event.values.items()
        if (impl := impl_of(value)) is not None
    )
    masks = [event.mask for event in events(logs)]
    if any(mask is None for mask in masks):
        call_p.bind(*arrays, layout=layout, keys=keys)
    else:
        _compat.need(_compat.Feature.CONTROL_FLOW)
        reached = functools.reduce(jnp.logical_or, [jnp.any(mask) for mask in masks])
        jax.lax.cond(reached, lambda: call_p.bind(*arrays, layout=layout, keys=keys), lambda: [])
    return []


def _refuse(logs: Sequence[Log]) -> None:
    """Raise for logs that no handler has met, where JAX compiles or runs them: it is too late for that."""
    for event in events(logs):
        if event.values:  # An event without any is only an anchor.
            raise UnsupportedPrimitiveError(
                f"JAX compiles or runs the log at {event.site} before the handler around it can get the log, as in "
                "jax.jit(f).lower() and jax.export inside a handler, and in jax.ensure_compile_time_eval() inside "
                "jax.jit. Apply the handler to the function that is compiled, as in jax.jit(lox.spool(f)).lower(), log "
                "outside of it, or leave the log out with lox.strip(f)."
            )


def _in_callback() -> bool:
    """True while a program that runs has called Python: JAX may do so in the thread in which a handler runs."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _compat.calls_host(frame.f_globals.get("__name__", "")):
            return True
        if frame.f_globals is globals() and frame.f_code.co_name in ("receive", "receive_value"):
            return True
        frame = frame.f_back
    return False


def _is_plain(logs: Sequence[Log], to: Destination) -> bool:
    """Tell whether there is one event, which happens for sure, and everywhere, and is laid out already."""
    if len(logs) > 1 or not isinstance(logs[0], Event) or logs[0].mask is not None or to.shard is not None:
        return False
    return INNER not in logs[0].steps or not logs[0].batch_ndim


def _lower_log(ctx: Any, *leaves: Any, layout: Layout) -> Any:
    logs, to = received(ctx.avals_in, {"layout": layout})
    if to is not None and not isinstance(to, Destination):
        if not to.leaves_out(logs) and recording.value:  # Else what watched the program is over.
            _refuse(logs)
        return []
    return mlir.lower_fun(functools.partial(_send, layout=layout))(ctx, *leaves)


mlir.register_lowering(log_p, _lower_log, cacheable=False)


@functools.partial(jax.jit, static_argnames="layout")
def _log(*leaves: Any, layout: Layout) -> None:
    log_p.bind(*leaves, layout=layout)


@log_p.def_impl
def _run(*leaves: Any, layout: Layout) -> list[Any]:
    logs, to = received(leaves, {"layout": layout})
    if to is None:
        if not _in_callback():  # No handler gets such logs, as on other threads.
            _refuse(logs)
    else:
        with jax.disable_jit(False):  # Nothing but a compiled program calls the host.
            _log(*leaves, layout=layout)
    return []


# -- on the host, where nothing is computed by JAX ------------------------------------------------------------------


def receiver(layout: Layout, keys: Keys, devices: int) -> Callable[..., tuple[Any, ...]]:
    """Build the logs and hand them to their channel, as a program that is compiled for so many devices calls it.

    Its arguments are the arrays of the layout, after what it returns: the tokens by which JAX keeps calls in order.
    Arrays that do not own their memory are the program's, which overwrites it: of them, copies are kept.
    """
    count = layout.tree.num_leaves
    tokens = slice(-count)
    logs, to = layout.tree.unflatten(range(-count, 0))  # The place of each array among the arguments.
    where = ", ".join(dict.fromkeys(str(event.site) for event in events(logs)))
    known = to.channel if isinstance(to.channel, Channel) else None

    if keys or not _is_plain(logs, to) or len(logs[0].values) > 1 or logs[0].steps:
        build = _builder(layout, keys)
        if jax.process_count() > 1 and any(INNER in event.steps for event in events(logs)):
            build = _with_devices(build, devices)

        def receive(*operands: Any) -> tuple[Any, ...]:
            channel = known
            try:
                channel = channel or find(operands[to.channel].item())
                channel.take(build(operands))
            except BaseException as error:  # noqa: BLE001
                failed(channel, error, where)
            return operands[tokens]

        return receive

    ((key, place),) = logs[0].values.items()

    def receive_value(*operands: Any) -> tuple[Any, ...]:
        # The same for one value. A loop may come here a million times, where each line is felt.
        channel = known
        try:
            channel = channel or find(operands[to.channel].item())
            array = operands[place]
            channel.take(logdict({key: array if array.base is None else array.copy()}))
        except BaseException as error:  # noqa: BLE001
            failed(channel, error, where)
        return operands[tokens]

    return receive_value


def _builder(layout: Layout, keys: Keys) -> Callable[[Sequence[Any]], logdict]:
    count = layout.tree.num_leaves
    logs, to = layout.tree.unflatten(range(count))
    plain = _is_plain(logs, to)

    def laid_out(operands: Sequence[Any]) -> logdict:
        arrays = [array if array.base is None else array.copy() for array in operands[-count:]]
        if not plain:
            return _lay_out(*layout.tree.unflatten(arrays))
        (event,) = logs
        values = {key: arrays[place] for key, place in event.values.items()}
        steps = {name: arrays[place] for name, place in event.steps.items() if name != INNER}
        return of_timelines([Timeline(values, steps)])

    impls = dict(keys)

    def with_key_data(timeline: Timeline) -> Timeline:
        values = {key: key_data(v, impls[key]) if key in impls else v for key, v in timeline.values.items()}
        return dataclasses.replace(timeline, values=values)

    return (lambda operands: map_timelines(with_key_data, laid_out(operands))) if keys else laid_out


def _with_devices(build: Callable[[Sequence[Any]], logdict], devices: int) -> Callable[[Sequence[Any]], logdict]:
    def labelled(timeline: Timeline) -> Timeline:
        label = {DEVICES: np.full(len(next(iter(timeline.values.values()))), devices)}
        return dataclasses.replace(timeline, steps=timeline.steps | label)

    return lambda operands: map_timelines(labelled, build(operands))


def _lay_out(logs: Sequence[Log], to: Destination) -> logdict:
    with_masks = to.shard is not None or any(event.mask is not None for event in events(logs))
    found = (_arrived(each, to, with_masks) for each in with_event_axes(logs, ON_HOST))
    return of_timelines(each for each in found if each is not None)


def _arrived(timeline: Columns, to: Destination, with_masks: bool) -> Timeline | None:
    """The events of a timeline that happened, in their order; None where there are none."""
    if 0 in timeline.any_value().shape[: 1 + timeline.batch_ndim]:
        return None
    if with_masks:
        timeline = dataclasses.replace(timeline, mask=timeline.happened())
    order = timeline.steps.get(ORDER)
    if order is not None:
        first = np.argsort(order, axis=0, kind="stable")
        timeline = timeline.map(lambda array: _ordered(array, first))
    if with_masks:
        arrived = timeline.mask.any(axis=tuple(range(1, timeline.mask.ndim)))
        if not arrived.any():
            return None
        if not arrived.all():
            timeline = timeline.map(lambda array: array[arrived])
    steps = {name: step for name, step in timeline.steps.items() if name != ORDER}
    labels = _labels(steps)
    timeline = dataclasses.replace(timeline, steps=steps)
    if to.shard is not None:
        axis = 1 + timeline.outer_batch_ndim
        timeline = timeline.map(lambda array: _of_shard(array, to, axis))
        labels |= {SHARDED: np.full(len(timeline.any_value()), axis)} if labels else {}
    mask = timeline.mask
    if mask is not None and mask.all():
        mask = None
    elif mask is not None:
        timeline = timeline.map(lambda array: _blanked(array, mask))
    return Timeline(timeline.values, timeline.steps | labels, mask)


def _labels(steps: dict[str, Any]) -> dict[str, Any]:
    """Takes all labels but `INNER` from the counters, without the batch axes that were there when they were put on."""
    labels = {name: steps.pop(name) for name in list(steps) if name.startswith(LABEL) and name != INNER}
    if not labels:
        return labels
    inner = steps[INNER]
    if not inner.size:
        return labels
    return {name: label[(..., *[0] * int(inner.flat[0]))] for name, label in labels.items()}


def _ordered(array: Any, first: Any) -> Any:
    return np.take_along_axis(array, first.reshape(first.shape + (1,) * (array.ndim - first.ndim)), axis=0)


def _of_shard(array: Any, to: Destination, axis: int) -> Any:
    """The array with an axis for shards, of which one is here."""
    spread = np.zeros((*array.shape[:axis], to.shards, *array.shape[axis:]), array.dtype)
    spread[(slice(None),) * axis + (to.shard,)] = array
    return spread


def _blanked(array: Any, happened: Any) -> Any:
    blank = array.dtype.type(np.nan if jax.dtypes.issubdtype(array.dtype, np.inexact) else 0)
    return np.where(happened.reshape(happened.shape + (1,) * (array.ndim - happened.ndim)), array, blank)
