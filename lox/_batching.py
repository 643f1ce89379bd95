"""Batching of programs in which logs happen.

JAX batches the jaxprs of higher-order primitives, and a log in them with the rest, except where batch elements part: a
`cond` with a predicate per batch element becomes a selection that runs every branch, a `while_loop` runs its body for
finished batch elements too. There, while a handler is in scope, it is settled what each batch element logs before JAX
batches it. So it is for a `shard_map`, whose logs get their axis for shards before that of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._collect import Collect
from lox._effect import batching_shards, emit, emit_batched, in_place, recording, with_batch_axis
from lox._events import Event, Logs, Site, map_events, masked
from lox._exceptions import UnsupportedPrimitiveError
from lox._handler import DropAll, Filter, Results, State, rules
from lox._log_grad import log_grad_p
from lox._logs_in import equations, has_log, jaxprs_in, logs_in, rules_in, tapped_in, unsupported
from lox._rules._call import discharge
from lox._rules._cond import cond_p, discharge_branches
from lox._rules._while import split_args, while_p
from lox._site import InBranch, Optional
from lox._trace import under

_COLLECT = Collect("a cond or switch whose predicate differs between batch elements")
_COLLECT_SPLIT = Collect("a shard_map whose batch is split over shards by spmd_axis_name=")

Batcher = Callable[..., tuple[Sequence[Any], Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Mask(Filter):
    """Keeps of each log what happens where a condition holds.

    Its state is the condition, a bool of the current batch element, shape `()`, or with the batch axes that were there
    before.

    Attributes:
        optional: Why the number of events depends on a branch; None when it does not.
        only_tapped: Whether logs that wait for a handler stay as they are.
    """

    sees_tapped = True
    optional: Optional | None = None
    only_tapped: bool = False

    def backward(self, state: State) -> tuple[Filter, State]:
        return Mask(self.optional), state

    def handle(self, state: State, logs: Logs) -> Results:
        emit(logs if self.only_tapped else self.rewrite(state, logs))
        return state, ()

    def rewrite(self, state: State, logs: Logs) -> Logs:
        def say_why(event: Event, depth: int) -> Event:
            return dataclasses.replace(event, optional=event.optional or self.optional)

        return map_events(say_why, masked(logs, state))


def _batch_cond(original: Batcher) -> Batcher:
    def batch(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, branches: Sequence[Any], **params: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        parts = dims[0] is not None and "branches_platforms" not in params
        inside = {"branches": tuple(branches)}
        if not parts or not (recording.value or tapped_in(inside)) or not _may_log(inside):
            return original(axis_data, args, dims, branches=branches, **params)
        all_stay = in_place.value or not logs_in(inside) or any(_has_unbounded_logs(branch) for branch in branches)
        if all_stay or tapped_in(inside) or _log_of_derivatives(inside):
            # Such logs do not become outputs; they stay where they are, each branch's masked by the predicate.
            index_aval = jex.core.mapped_aval(axis_data.size, dims[0], jax.typeof(args[0]))
            branches = tuple(_masked_branch(*each, index_aval, not all_stay) for each in enumerate(branches))
            args, dims = [args[0], *args], [dims[0], *dims]
        if all_stay:
            return original(axis_data, args, dims, branches=branches, **params)
        index, *ops = args
        index_dim, *op_dims = dims
        pure, consts, structure = discharge_branches(_COLLECT, None, branches, index)
        args = [index, *consts, *ops]
        dims = [index_dim, *[None] * len(consts), *op_dims]
        outs, out_dims = original(axis_data, args, dims, branches=pure, **params)
        count = len(outs) - structure.num_leaves
        if structure.num_leaves:
            emit_batched(axis_data, outs[count:], out_dims[count:], structure.children()[1])
        return outs[:count], out_dims[:count]

    return batch


def _may_log(params: dict[str, Any]) -> bool:
    return logs_in(params) or rules_in(params)


def _has_unbounded_logs(jaxpr: Any) -> bool:
    return any(eqn.primitive is while_p and logs_in(eqn.params) for eqn in equations(jaxpr))


def _log_of_derivatives(params: dict[str, Any]) -> bool:
    return any(eqn.primitive is log_grad_p for jaxpr in jaxprs_in(params) for eqn in equations(jaxpr))


def _masked_branch(place: int, branch: Any, index: Any, only_tapped: bool) -> Any:
    def masked_branch(index: Any, *ops: Any) -> list[Any]:
        return under(Mask(InBranch(), only_tapped), _compat.as_fun(branch))(index == place, *ops)[0]

    jaxpr, captured = _compat.trace(masked_branch, [index, *_compat.in_avals(branch)], "lox")
    if captured:
        raise AssertionError("a closed branch captured values")
    return jaxpr


def _batch_while(original: Batcher) -> Batcher:
    def batch(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        record = recording.value or tapped_in(params)
        if not record or not _may_log(params) or not _predicate_is_batched(axis_data, dims, params):
            return original(axis_data, args, dims, **params)
        cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
        num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
        if has_log(cond_jaxpr):  # The condition is checked once before the loop, by every batch element.
            first = [*args[:num_cond], *args[num_cond + num_body :]], [*dims[:num_cond], *dims[num_cond + num_body :]]
            _compat.batch(cond_jaxpr, axis_data, *first)
        masked_params = {
            "cond_jaxpr": discharge(DropAll(), None, cond_jaxpr)[0],
            "cond_nconsts": num_cond,
            "body_jaxpr": _masked_body(body_jaxpr, cond_jaxpr, num_cond, num_body),
            "body_nconsts": num_cond + num_body,
        }
        return original(axis_data, [*args[:num_cond], *args], [*dims[:num_cond], *dims], **masked_params)

    return batch


@_compat.weakref_lru_cache  # JAX batches a body more than once, and remembers the results by its identity.
def _masked_body(body_jaxpr: Any, cond_jaxpr: Any, num_cond: int, num_body: int) -> Any:
    """The body with the logs of the batch elements that go on, and of the condition that is checked after it."""
    cond = _compat.as_fun(cond_jaxpr)

    def body(*args: Any) -> Sequence[Any]:
        cond_consts, body_consts = args[:num_cond], args[num_cond : num_cond + num_body]
        carry = args[num_cond + num_body :]
        ((live,), *_) = under(DropAll(), cond)(None, *cond_consts, *carry)
        outs = under(Mask(), _compat.as_fun(body_jaxpr))(live, *body_consts, *carry)[0]
        if has_log(cond_jaxpr):
            under(Mask(), cond)(live, *cond_consts, *outs)
        return outs

    avals = [*_compat.in_avals(cond_jaxpr)[:num_cond], *_compat.in_avals(body_jaxpr)]
    return _compat.trace(body, avals, "lox")[0]


def _predicate_is_batched(axis_data: Any, dims: Sequence[Any], params: dict[str, Any]) -> bool:
    cond_consts, body_consts, carry = split_args([dim is not None for dim in dims], params)
    cond, body = (discharge(DropAll(), None, params[name])[0] for name in ("cond_jaxpr", "body_jaxpr"))
    for _ in range(1 + len(carry)):  # Each turn batches at least one more of the carried values.
        outs = _compat.batched_outputs(body, axis_data, [*body_consts, *carry])
        grown = [before or after for before, after in zip(carry, outs, strict=True)]
        if grown == list(carry):
            break
        carry = grown
    (batched,) = _compat.batched_outputs(cond, axis_data, [*cond_consts, *carry])
    return batched


@dataclasses.dataclass(frozen=True)
class KeepExcept(Filter):
    """Leaves every log where it is but those at `sites`, which it drops."""

    sites: frozenset[Site] = frozenset()

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return map_events(lambda event, _: None if event.site in self.sites else event, logs)


def _batch_shard_map(original: Callable[..., Any]) -> Callable[..., Any]:
    def batch(trace: Any, primitive: Any, fun: Any, args: Sequence[Any], /, **params: Any) -> Any:
        if trace in batching_shards.get():
            return original(trace, primitive, fun, args, **params)
        token = batching_shards.set((*batching_shards.get(), trace))
        try:
            if not recording.value:
                return original(trace, primitive, fun, args, **params)
            if primitive not in rules:
                raise UnsupportedPrimitiveError(unsupported(primitive, params))
            with jex.core.set_current_trace(trace):
                handler = _COLLECT_SPLIT if trace.axis_data.spmd_name else KeepExcept()
                outs, _, logs = rules[primitive](handler, None, primitive, args, {"fun": fun, **params})
                emit(logs)
        finally:
            batching_shards.reset(token)
        return outs

    return batch


@dataclasses.dataclass(frozen=True)
class InBatch(Filter):
    """Gives logs that do not depend on a batch its axis all the same, as every log has it.

    Attributes:
        axis_data: JAX's description of the axis.
    """

    sees_tapped = True
    adds_axes = True

    axis_data: Any

    def rewrite(self, state: State, logs: Logs) -> Logs:
        leaves, tree = jax.tree.flatten(logs)
        return with_batch_axis(self.axis_data, leaves, [None] * len(leaves), tree)


def _batch_custom_vmap(original: Batcher) -> Batcher:
    def batch(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        mapped = any(dim is not None for dim in dims)
        if mapped or not (recording.value or tapped_in(params)) or not logs_in(params):
            return original(axis_data, args, dims, **params)
        # JAX does not run the rule, and would run the function as if there was no batch.
        outs, _, _ = rules[_compat.custom_vmap_p](InBatch(axis_data), None, _compat.custom_vmap_p, args, params)
        return outs, [None] * len(outs)

    return batch


_compat.wrap_batching(cond_p, _batch_cond)
_compat.wrap_batching(while_p, _batch_while)
if _compat.custom_vmap_p is not None:
    _compat.wrap_batching(_compat.custom_vmap_p, _batch_custom_vmap)
_compat.wrap_shard_map_batching(_batch_shard_map)
