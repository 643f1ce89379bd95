"""The handler that collects every log, and how branches that log differently become alike."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeVar, cast

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._columns import Columns, describe, with_event_axes, with_steps_of_one_dtype
from lox._events import Event, Log, Logs, Site, StackedEvents, events, map_events, masked, restrict
from lox._exceptions import StructureError, UnsupportedPrimitiveError
from lox._handler import Collector, Filter, Handler, Results, State
from lox._leading_axes import shared, where
from lox._logs_in import events_in, jaxprs_in
from lox._sharding import concatenate
from lox._site import BranchesDiffer, strictest
from lox._split import MENDS, by_type, plain, untyped
from lox._timeline import groups

Maker = Callable[[Logs], Logs]


def _refuse_while(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    del state, args
    where = cast(Collect, handler).where
    (site, *_) = (event.site for jaxpr in jaxprs_in(params) for event in events_in(jaxpr))
    raise UnsupportedPrimitiveError(
        f"lox.log is called at {site} in a {primitive} loop in {where}: the number of events is not known there. Log "
        "outside of the loop, apply lox.spool or lox.tap inside the vmap, or leave this log out with lox.strip."
    )


@dataclasses.dataclass(frozen=True)
class Collect(Collector):
    """Collects every log; events that may not happen are masked.

    Attributes:
        where: The construct around the program. It does not tell for which batch elements a rule runs.
    """

    where: str
    forward: bool = dataclasses.field(default=False, init=False)

    rules = {jex.core.primitives.while_p: _refuse_while}

    def collect(self, logs: Logs) -> Logs:
        return logs

    def detached(self, state: State, sites: frozenset[Site]) -> tuple[Filter, State]:
        return Refuse(sites, self.where), None

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        return of_logs(unify_branches_by_tag([logs for _, logs in branches]))


@dataclasses.dataclass(frozen=True)
class Refuse(Filter):
    """Drops the logs at `sites`; of others it is not known for which batch elements they happen."""

    sites: frozenset[Site]
    where: str

    def rewrite(self, state: State, logs: Logs) -> Logs:
        for event in events(logs):
            if event.site not in self.sites:
                raise UnsupportedPrimitiveError(
                    f"A derivative or batching rule logs, at {event.site}, of a function that is called under vmap in "
                    f"{self.where}: lox cannot tell for which of them the rule runs. Log in the function rather than "
                    "in its rule, or leave this log out with lox.strip."
                )
        return ()


def of_logs(makers: Sequence[Maker]) -> Sequence[Callable[[Results], Results]]:
    """Make what `Handler.unify_branches` returns, for a handler without a state."""

    def unify(results: Results, maker: Maker) -> Results:
        return results[0], maker(results[1])

    return [functools.partial(unify, maker=maker) for maker in makers]


def unify_branches(branches: Sequence[Logs]) -> Sequence[Maker]:
    """Return for each branch a function that brings its logs into one structure with the others'.

    Where all branches log alike, the logs stay as they are. Else the j-th event of a key in one branch meets the
    j-th of that key in the others, and where a branch has none, it is masked out there.

    Args:
        branches: For each branch its logs, with abstract values in place of arrays.

    Raises:
        StructureError: A key has different shapes, dtypes or counters in the branches.
    """
    if all(_alike(branches[0], other) for other in branches[1:]):
        like = jax.tree.structure(branches[-1])  # The sites of the log calls may differ.
        return [lambda logs: jax.tree.unflatten(like, jax.tree.leaves(logs)) for _ in branches]
    found = [_compat.abstract(with_event_axes, logs) for logs in branches]
    parts = [part for timelines in found for part in timelines]
    reason, counts = difference(branches), [_counts_by_key(_counts_by_tags(logs)) for logs in branches]
    together = []
    for keys, places in groups(part.values for part in parts).items():
        differ = len({count.get(keys[0], 0) for count in counts}) > 1
        together.append(_Together(keys, [parts[at] for at in places], len(branches), reason if differ else None))
    return [functools.partial(_filled, together=together) for _ in branches]


def unify_branches_by_tag(branches: Sequence[Logs]) -> Sequence[Maker]:
    """`unify_branches` for logs from which handlers further out may still select some by tags.

    Events of one key that carry different tags do not meet each other. Of such a key, the events of each branch
    stay as they are, in their order, and are masked out in the other branches. Events of different types do not meet
    either: handlers further out may leave some out, or tell them apart.
    """
    branches = list(map(by_type, branches))
    tags: dict[str, set[tuple[str, ...]]] = {}
    for logs in branches:
        for event in events(logs):
            for key in event.values:
                tags.setdefault(key, set()).add(event.site.tags)
    mixed = {key for key, found in tags.items() if len(found) > 1}
    apart = [_restricted(logs, mixed, True) for logs in branches]
    if not mixed or all(_alike(apart[0], other) for other in apart[1:]):
        mixed, apart = set(), [() for _ in branches]
    together = unify_branches([_restricted(logs, mixed, False) for logs in branches])
    reason = difference(branches, with_tags=True)
    counts = [_counts_by_tags(logs) for logs in apart]

    def because(event: Event, depth: int) -> Event:
        groups = [(key, event.site.tags) for key in event.values]
        if all(count.get(group, 0) == counts[0].get(group, 0) for count in counts for group in groups):
            return event
        return dataclasses.replace(event, optional=event.optional or reason)

    def make(logs: tuple[Any, ...], own: int) -> tuple[Any, ...]:
        logs = by_type(logs)
        found = list(together[own](_restricted(logs, mixed, False)))
        for branch, like in enumerate(apart):
            here = branch == own
            rest = _restricted(logs, mixed, True) if here else jax.tree.map(_compat.zeros_like_aval, like)
            found += map_events(because, masked(rest, jnp.asarray(here)))
        return untyped(found)

    return [functools.partial(make, own=own) for own in range(len(branches))]


def _restricted(logs: Sequence[Log], keys: Set[str], wanted: bool) -> Logs:
    return map_events(lambda event, _: restrict(event, lambda key: (key in keys) == wanted), logs)


def _counts_by_tags(logs: Sequence[Log], times: int = 1) -> Counter[tuple[str, tuple[str, ...]]]:
    """Count the events by key and tags, without those of calls that say themselves where they happen."""
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for log in logs:
        if isinstance(log, StackedEvents):
            found.update(_counts_by_tags(log.body, times * log.length))
        elif log.optional is None or log.optional.needs_unify:
            found.update({(key, log.site.tags): times for key in log.values})
    return found


def difference(branches: Sequence[Logs], with_tags: bool = False) -> BranchesDiffer | None:
    """Return the logs of each branch of a `cond` or `switch` if keys or their numbers of events differ; else None.

    Args:
        branches: For each branch its logs.
        with_tags: Whether events of one key with other tags count as others.
    """
    by_tags = [_counts_by_tags(logs) for logs in branches]
    by_key = [_counts_by_key(count) for count in by_tags]
    counts: Sequence[Any] = by_tags if with_tags else by_key
    if all(count == counts[0] for count in counts[1:]):
        return None
    listed = []
    for logs, count in zip(branches, by_key, strict=True):
        sites = {key: event.site for event in reversed(list(events(logs))) for key in event.values}
        listed.append(tuple((plain(key), number, sites[key]) for key, number in count.items()))
    return BranchesDiffer(tuple(listed))


def _counts_by_key(counts: Mapping[tuple[str, tuple[str, ...]], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (key, _), count in counts.items():
        found[key] = found.get(key, 0) + count
    return found


def _alike(first: Logs, second: Logs) -> bool:
    def unplaced(logs: Logs) -> tuple[Any, ...]:
        return tuple(
            StackedEvents(unplaced(log.body), log.dropped, log.length)
            if isinstance(log, StackedEvents)
            else dataclasses.replace(
                log, iteration_deps=(), site=dataclasses.replace(log.site, file="", line=0, function="")
            )
            for log in logs
        )

    leaves, structure = jax.tree.flatten(unplaced(first))
    others, other_structure = jax.tree.flatten(unplaced(second))
    return structure == other_structure and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(leaves, others, strict=True)
    )


@dataclasses.dataclass
class _Together:
    """The events of keys that all branches log together, or not at all.

    Attributes:
        keys: The keys.
        parts: Their events in the branches that have some, with an event axis, and with abstract values for arrays.
        branches: How many branches there are.
        reason: Why their number differs between branches, as far as no `where=` says so.
    """

    keys: tuple[str, ...]
    parts: list[Columns]
    branches: int
    reason: BranchesDiffer | None

    def __post_init__(self) -> None:
        for part in self.parts[1:]:
            for key in self.keys:
                _check_branches(key, self.parts[0], part)
        self.parts = _compat.abstract(with_steps_of_one_dtype, self.parts)

    @property
    def length(self) -> int:
        return max(part.any_value().shape[0] for part in self.parts)

    @property
    def is_optional(self) -> bool:
        lengths = {part.any_value().shape[0] for part in self.parts}
        return len(self.parts) < self.branches or len(lengths) > 1

    def dropped(self, own: Columns | None) -> Any:
        """The count of those beyond a bound, if a branch has one."""
        if own is not None and own.dropped is not None:
            return own.dropped
        shape = next((part.dropped.shape for part in self.parts if part.dropped is not None), None)
        return None if shape is None else jnp.zeros(shape, jnp.int32)

    def filled(self, own: Columns | None) -> StackedEvents:
        """The events of one branch, if it has some, and those that only others have, which did not happen."""
        like, length = self.parts[0], self.length
        if own is not None:
            steps = {name: step.astype(like.steps[name].dtype) for name, step in own.steps.items()}
            own = dataclasses.replace(own, steps=steps)
        have = 0 if own is None else jnp.shape(own.any_value())[0]

        def pad(array: Any, aval: Any) -> Any:
            if array is not None and have == length:
                return array
            extra = _compat.zeros_like_aval(aval.update(shape=(length - have, *aval.shape[1:])))
            return extra if array is None else concatenate([array, extra], 0)

        mask = None
        if self.is_optional or any(part.mask is not None for part in self.parts):
            mask = jnp.zeros((length - have, *like.batch(0)), bool)
            if own is not None:
                mask = concatenate([own.happened(), mask], 0)
        values = {key: pad(own.values[key] if own else None, like.values[key]) for key in self.keys}
        steps = {name: pad(own.steps[name] if own else None, aval) for name, aval in like.steps.items()}
        optional = strictest((self.reason, *(part.optional for part in self.parts)))
        return Columns(
            values,
            steps,
            mask,
            self.dropped(own),
            site=like.site,
            batch_ndim=like.batch_ndim,
            optional=optional,
            outer_batch_ndim=like.outer_batch_ndim,
            where_ndim=like.where_ndim,
        ).as_log()


def _check_branches(key: str, first: Columns, other: Columns) -> None:
    kinds = [
        (describe(part.values[key].dtype, part.values[key].shape[1:], part.batch_ndim), sorted(part.steps))
        for part in (first, other)
    ]
    if kinds[0] != kinds[1]:
        (here, steps), (there, other_steps) = kinds
        raise StructureError(
            f"The branches of a cond or switch log the key {plain(key)!r} differently: as {here} with steps {steps} at "
            f"{first.site}, and as {there} with steps {other_steps} at {other.site}. Events of one key must be alike: "
            f"{MENDS}"
        )


def _filled(logs: Sequence[Log], together: Sequence[_Together]) -> Logs:
    own = with_event_axes(logs)
    having = {key: part for part in own for key in part.values}
    return tuple(each.filled(having.get(each.keys[0])) for each in together)


def fill(aval: Any) -> Any:
    """The value that the user gets where no event happened: NaN, 0 or False; 0 also under `jax_debug_nans`.

    Inside the program 0 stands there, to which no check of the program's values can object.
    """
    zeros = _compat.zeros_like_aval(aval)
    if not jnp.issubdtype(aval.dtype, jnp.inexact) or jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        return zeros
    if jnp.issubdtype(aval.dtype, jnp.complexfloating):
        part = fill(jax.typeof(jnp.real(zeros)))
        return jax.lax.complex(part, jnp.zeros_like(part))
    return jnp.maximum(zeros, jnp.asarray(jnp.nan, aval.dtype))  # A sum that is NaN, checkify would report.


T = TypeVar("T", Columns, Event)


def filled(events: T, depth: int = 0) -> T:
    """Events as the user gets them where they did not happen, whatever batch elements computed for them."""
    if events.mask is None or events.is_filled:
        return events
    if isinstance(events, Event):
        events = events.with_full_steps(depth)
    ndim = jnp.ndim(events.mask)

    def fill_in(array: Any) -> Any:  # A counter may be shared by the elements of a mask.
        return array if jnp.ndim(array) < ndim else where(events.mask, array, fill(jax.typeof(array)))

    return dataclasses.replace(_with_each(fill_in, events), is_filled=True)


def zeroed(events: T, depth: int = 0) -> T:
    """Events with zeros where they did not happen, as a carry has them: what was computed there may be NaN."""
    del depth
    if events.mask is None:
        return events

    def zero(array: Any) -> Any:
        return where(shared(events.mask, array), array, _compat.zeros_like_aval(jax.typeof(array)))

    return _with_each(zero, events)


def _with_each(change: Callable[[Any], Any], events: T) -> T:
    """Events with each of their arrays changed."""
    values = {key: change(each) for key, each in events.values.items()}
    steps = {name: change(step) for name, step in events.steps.items()}
    return dataclasses.replace(events, values=values, steps=steps)
