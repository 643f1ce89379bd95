"""How `vmap` meets a program in which logs happen.

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
from lox._effect import batching_shards, emit, emit_batched, in_place, recording
from lox._events import Event, Node, Site, map_events, masked
from lox._exceptions import UnsupportedPrimitiveError
from lox._handler import (
    Handler,
    InPlace,
    Silence,
    equations,
    has_log,
    jaxprs_in,
    logs_in,
    rules,
    rules_in,
    tapped_in,
    under,
    unsupported,
)
from lox._log_grad import log_grad_p
from lox._rules._call import discharge
from lox._rules._cond import cond_p, discharge_branches
from lox._rules._while import split_args, while_p

Batcher = Callable[..., tuple[Sequence[Any], Sequence[Any]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Mask(InPlace):
    """Keeps of each log what happens where a condition holds.

    Attributes:
        condition: A bool of the current batch element, shape `()`, or with the axes of batches that were there before.
        optional: Why the number of events depends on a branch; empty when it does not.
        only_tapped: Whether logs that wait for a handler stay as they are.
    """

    cacheable, mends = False, True
    condition: Any
    optional: str = ""
    only_tapped: bool = False

    def arrays(self) -> tuple[Any, ...]:
        return (self.condition,)

    def holding(self, arrays: Sequence[Any]) -> Handler:
        (condition,) = arrays
        return Mask(condition, self.optional, self.only_tapped)

    def backward(self) -> Handler:
        return Mask(self.condition, self.optional)

    def receive(self, nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        emit(nodes if self.only_tapped else self.replace(nodes))
        return ()

    def replace(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        def say_why(event: Event, depth: int) -> Event:
            reason = event.optional or (self.optional and f"{self.optional} The log is at {event.site}.")
            return dataclasses.replace(event, optional=reason)

        return map_events(say_why, masked(nodes, self.condition))


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
        pure, consts, structure = discharge_branches(Collect(), branches, index)
        args = [index, *consts, *ops]
        dims = [index_dim, *[None] * len(consts), *op_dims]
        outs, out_dims = original(axis_data, args, dims, branches=pure, **params)
        count = len(outs) - structure.num_leaves
        if structure.num_leaves:
            emit_batched(axis_data, outs[count:], out_dims[count:], structure)
        return outs[:count], out_dims[:count]

    return batch


def _may_log(params: dict[str, Any]) -> bool:
    return logs_in(params) or rules_in(params)


def _has_unbounded_logs(jaxpr: Any) -> bool:
    return any(eqn.primitive is while_p and logs_in(eqn.params) for eqn in equations(jaxpr))


def _log_of_derivatives(params: dict[str, Any]) -> bool:
    return any(eqn.primitive is log_grad_p for jaxpr in jaxprs_in(params) for eqn in equations(jaxpr))


def _masked_branch(place: int, branch: Any, index: Any, only_tapped: bool) -> Any:
    reason = (
        "A branch of a cond or switch logs, in a while_loop or in its derivative, what may not happen. Use unify=True "
        "to get it with a mask, or leave the key out with argnames= or tags=."
    )

    def masked_branch(index: Any, *ops: Any) -> list[Any]:
        return under(Mask(index == place, reason, only_tapped), _compat.as_fun(branch))(*ops)[0]

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
            "cond_jaxpr": discharge(Silence(), cond_jaxpr)[0],
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
        ((live,), _) = under(Silence(), cond)(*cond_consts, *carry)
        outs, _ = under(Mask(live), _compat.as_fun(body_jaxpr))(*body_consts, *carry)
        if has_log(cond_jaxpr):
            under(Mask(live), cond)(*cond_consts, *outs)
        return outs

    avals = [*_compat.in_avals(cond_jaxpr)[:num_cond], *_compat.in_avals(body_jaxpr)]
    return _compat.trace(body, avals, "lox")[0]


def _predicate_is_batched(axis_data: Any, dims: Sequence[Any], params: dict[str, Any]) -> bool:
    cond_consts, body_consts, carry = split_args([dim is not None for dim in dims], params)
    cond, body = (discharge(Silence(), params[name])[0] for name in ("cond_jaxpr", "body_jaxpr"))
    for _ in range(1 + len(carry)):  # Each turn batches at least one more of the carried values.
        outs = _compat.batched_outputs(body, axis_data, [*body_consts, *carry])
        grown = [before or after for before, after in zip(carry, outs, strict=True)]
        if grown == list(carry):
            break
        carry = grown
    (batched,) = _compat.batched_outputs(cond, axis_data, [*cond_consts, *carry])
    return batched


@dataclasses.dataclass(frozen=True)
class Leave(InPlace):
    """Leaves every log where it is but those at `sites`, which it drops."""

    sites: frozenset[Site] = frozenset()

    def replace(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return map_events(lambda event, _: None if event.site in self.sites else event, nodes)


@dataclasses.dataclass(frozen=True)
class CollectBounded(Collect):
    """Collects every log but those of loops of unknown length and of rules, which stay where they are.

    What was collected before a primitive with such a loop inside is left before it, so that all keep their order.

    Attributes:
        leaves: Whether the next primitive is one.
    """

    foresees = True
    leaves: bool = False

    def before(self, primitive: Any, params: dict[str, Any]) -> Handler:
        inside = logs_in(params) if primitive is while_p else any(map(_has_unbounded_logs, jaxprs_in(params)))
        return dataclasses.replace(self, leaves=inside)

    def after(self, nodes: list[Any]) -> tuple[Handler, list[Any]]:
        if not self.leaves:
            return self, nodes
        emit(nodes)
        return Leave(), []

    def while_loops(self, found: Sequence[Event]) -> Handler:
        return Leave()

    def beside(self, sites: frozenset[Site]) -> Handler:
        return Leave(sites)


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
                outs, nodes = rules[primitive](CollectBounded(), primitive, args, {"fun": fun, **params})
                emit(nodes)
        finally:
            batching_shards.reset(token)
        return outs

    return batch


_compat.wrap_batching(cond_p, _batch_cond)
_compat.wrap_batching(while_p, _batch_while)
_compat.wrap_shard_map_batching(_batch_shard_map)
