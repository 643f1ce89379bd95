"""The handler that folds logs as they happen, in memory that does not grow with their number."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._columns import Columns, columns, describe
from lox._eager import reporting_deleted
from lox._effect import log_p, received
from lox._events import Event, Logs, with_depths
from lox._exceptions import StructureError, UnsupportedPrimitiveError
from lox._handler import Inside, Results, Stateful
from lox._logs_in import jaxprs_in, logs_in
from lox._patterns import first_match
from lox._reduce import (
    Accumulator,
    Reductions,
    apart,
    as_timeline,
    continued,
    empty_in_branch,
    empty_in_loop,
    entered,
    fold,
    in_common_batches,
    in_equal_batches,
    lift,
    merge,
    numbered_after,
    out_of_loop,
    repeated,
    with_certain,
    with_full_state,
)
from lox._reductions import Reducer
from lox._rules._call import discharge, split_results
from lox._select import Selecting, Selection
from lox._site import from_context
from lox._split import MENDS, by_type, in_order, is_typed, plain
from lox._timeline import canonical, refined

_primitives = jex.core.primitives
_shows_logs = {
    *(_primitives.jit_p, _primitives.remat_p, _primitives.closed_call_p),
    *(_primitives.scan_p, _primitives.while_p, _primitives.cond_p),
    *(_primitives.custom_jvp_call_p, _primitives.custom_vjp_call_p),
}
"""The primitives of which a handler gets just those logs that their programs show."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reduced:
    """The state of a `Reduce`: the events of some keys so far.

    Attributes:
        accumulators: The events of each key.
        timelines: The keys that are logged together, and whose counters and masks are therefore equal.
        in_loop: Whether it has the same arrays after any events.
        continues: The keys of which the events before the primitive are part, that it is in.
        order: The names that `_split.by_type` has made, in the order in which they first appeared.
    """

    accumulators: dict[str, Accumulator]
    timelines: tuple[tuple[str, ...], ...] = dataclasses.field(metadata={"static": True})
    in_loop: bool = dataclasses.field(default=False, metadata={"static": True})
    continues: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})
    order: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})

    def map(self, function: Callable[[str, Accumulator], Accumulator], **changes: Any) -> Reduced:
        """Apply a function to each key and accumulator."""
        found = {key: function(key, accumulator) for key, accumulator in self.accumulators.items()}
        return dataclasses.replace(self, accumulators=found, **changes)


NOTHING = Reduced({}, ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reduce(Selecting, Stateful):
    """Folds the selected logs.

    Attributes:
        reductions: The reduction of every key (under None) or of some.
        split: Whether events of one key that are not alike are folded apart rather than refused.
    """

    reductions: Reductions
    split: bool

    def reduction(self, name: str) -> Reducer[Any]:
        """The reduction of a key that is selected, which a name is made of."""
        return reduction_of(self.reductions, name)

    def start(self) -> Reduced:
        """The state before a function."""
        return NOTHING

    def order(self, state: Reduced, logs: Logs) -> tuple[str, ...]:
        """The names that `by_type` has made, in the order in which they first appear in the program."""
        del logs
        return state.order

    def result(self, state: Reduced, logs: Logs) -> list[Columns]:
        """The timelines of all events of a function."""
        del logs
        with reporting_deleted(state):
            return [as_timeline({key: state.accumulators[key] for key in keys}) for keys in state.timelines]

    def handle(self, state: Reduced, logs: Logs) -> Results:
        selected = self.taken(logs)
        return (merged(state, self._folded(selected, state)) if selected else state), ()

    def enter(self, state: Reduced, programs: Sequence[Any], inside: Inside) -> tuple[Reduce, Reduced]:
        is_numbered = any(each.is_numbered for _, each in self.reductions)
        if not is_numbered and (inside == "rule" or (inside == "call" and not state.in_loop)):
            return self, NOTHING
        # One that has them before can go on with these; another has them begin anew, and merges them.
        found = NOTHING
        for program in programs:
            found = _both(found, self._found(program))
        if inside == "rule":
            _check_not_numbered(found)
            return self, NOTHING
        before = {key: entered(each) for key, each in state.accumulators.items()} if state.in_loop else {}
        if inside == "branch":  # Which returns events, where a state is large.
            before = {key: each for key, each in before.items() if not each.reduction.is_large}
        continues = tuple(
            key for key, each in found.accumulators.items() if key in before and _alike(before[key], each)
        )

        def start(key: str, like: Accumulator) -> Accumulator:
            if key in continues:
                return with_full_state(before[key]) if inside == "loop" else before[key]
            none = empty_in_branch(like) if inside == "branch" else empty_in_loop(like)
            return numbered_after(state.accumulators.get(key), none)

        return self, found.map(start, in_loop=True, continues=continues)

    def leave(self, state: Reduced, after: Reduced, collected: Logs, trips: Any = 1) -> Results:
        del collected
        if after.in_loop:
            after = after.map(lambda _, each: repeated(each, trips))
        else:
            _check_first(state, after)
        goes_on = {key: continued(state.accumulators[key], after.accumulators[key]) for key in after.continues}
        rest = {key: each for key, each in after.accumulators.items() if key not in goes_on}
        if after.in_loop:
            rest = {key: out_of_loop(each) for key, each in rest.items()}
        state = dataclasses.replace(state, accumulators=state.accumulators | goes_on)
        return merged(state, Reduced(rest, after.timelines, order=after.order)), ()

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        states = [state for state, _ in branches]
        surely = {key: min(state.accumulators[key].certain for state in states) for key in states[0].accumulators}
        of_all = [
            key
            for key in surely
            if any(
                state.accumulators[key].is_masked or state.accumulators[key].certain != surely[key] for state in states
            )
        ]
        timelines = canonical(keys for state in states for keys in state.timelines)

        def unify(results: Results) -> Results:
            def change(key: str, each: Accumulator) -> Accumulator:
                is_masked = key in of_all
                site = states[0].accumulators[key].site
                alike = each.reduction.alike(each.state, [state.accumulators[key].state for state in states])
                return dataclasses.replace(with_certain(each, surely[key]), state=alike, is_masked=is_masked, site=site)

            return results[0].map(change, timelines=timelines), ()

        return [unify for _ in branches]

    def by_shards(self, state: Reduced, axes_of: Callable[[Any], Any]) -> list[tuple[int, Reduced]]:
        """Split the state key by key: a value that does not vary over shards gets no axis for them."""
        found: dict[Any, list[str]] = {}
        for place, keys in enumerate(state.timelines):
            for key in keys:
                found.setdefault((place, axes_of(state.accumulators[key])), []).append(key)
        parts = []
        for (_, axes), alike in found.items():
            outer = state.accumulators[alike[0]].outer_batch_ndim
            shards = (jax.lax.axis_size(axes),) if axes else ()
            own = {key: _on_shards(state.accumulators[key], outer, shards) for key in alike}
            parts.append((outer, Reduced(own, (tuple(alike),), state.in_loop, order=state.order)))
        return parts

    def _folded(self, logs: Logs, before: Reduced = NOTHING) -> Reduced:
        logs = by_type(logs, lambda key: self.split or self.reduction(key).is_number_of_events)
        order = in_order(logs) if self.split else ()
        return reduced(columns(logs), self.reduction, before.accumulators, order)

    def _found(self, program: Any) -> Reduced:
        """Return the state that a program ends with, with abstract values in place of arrays."""
        if not jax.sharding.get_abstract_mesh().manual_axes and _shows_all(program):
            return _folds(program, self)
        inner = dataclasses.replace(self, forward=False)
        discharged, _, structure = discharge(inner, NOTHING, program)
        return split_results(_compat.out_avals(discharged), structure)[1]


def _check_not_numbered(found: Reduced) -> None:
    """Raise UnsupportedPrimitiveError for events whose numbers a reduction asks for, in a rule, which has none."""
    for key, each in found.accumulators.items():
        if each.reduction.is_numbered:
            raise UnsupportedPrimitiveError(
                f"The key {plain(key)!r}, logged at {each.site}, cannot be reduced by {each.reduction}: it is in a "
                "function with a rule of its own, where nobody knows how many events there were before. Leave it out "
                "of reduce=, or log it outside of that function."
            )


def _check_first(before: Reduced, found: Reduced) -> None:
    """Raise UnsupportedPrimitiveError for events in a `shard_map`, where numbers begin at 0, that are not the first."""
    for key, each in found.accumulators.items():
        if each.reduction.is_numbered and key in before.accumulators:
            raise UnsupportedPrimitiveError(
                f"The key {plain(key)!r}, logged at {each.site}, cannot be reduced by {each.reduction}: it is in a "
                "shard_map, where nobody knows how many events there were before, and there may have been some. Leave "
                "it out of reduce=, log it outside of the shard_map, or apply lox.spool inside of it."
            )


@functools.lru_cache(maxsize=4096)
def reduction_of(reductions: Reductions, name: str) -> Reducer[Any]:
    """The reduction of the key that a name is made of: that of every key, or the first that matches."""
    of_key = dict(reductions)
    return of_key[None if None in of_key else first_match([each for each in of_key if each is not None], plain(name))]


def _on_shards(accumulator: Accumulator, place: int, shards: tuple[int, ...]) -> Accumulator:
    """The accumulator, told that its arrays will have a batch axis of this size for shards at this place."""
    shape = accumulator.batch_shape
    return dataclasses.replace(accumulator, outer_batch_ndim=0, batch_shape=(*shape[:place], *shards, *shape[place:]))


@_compat.weakref_lru_cache
def _shows_all(program: Any) -> bool:
    """Tell whether a handler gets exactly the logs that a program shows."""
    return all(
        eqn.primitive in _shows_logs and all(map(_shows_all, jaxprs_in(eqn.params)))
        for eqn in _compat.open_jaxpr(program).eqns
        if logs_in(eqn.params)
    )


@_compat.weakref_lru_cache
def _folds(program: Any, handler: Reduce) -> Reduced:
    found = NOTHING
    for event in _events(program, handler.selection):
        found = _both(found, _compat.abstract(lambda event: handler._folded((event,)), event))
    return found


def _both(first: Reduced, second: Reduced) -> Reduced:
    """The events of both, with abstract values in place of arrays."""
    if not first.accumulators:
        return second
    return _compat.abstract(lambda both: merged(*both), (first, second))


def _events(program: Any, selection: Selection) -> list[Event]:
    """The selected events of a program, one iteration of each, with abstract values in place of arrays."""
    found = []
    for eqn in _compat.open_jaxpr(program).eqns:
        if eqn.primitive is log_p:
            logs, to = received([var.aval for var in eqn.invars], eqn.params)
            for event, depth in with_depths(selection.split(logs)[0] if to is None else ()):
                for _ in range(depth):
                    event = jax.tree.map(lambda aval: jex.core.mapped_aval(aval.shape[0], 0, aval), event)
                found += [event] if event.values else []
        else:
            for inner in jaxprs_in(eqn.params):
                found += _events(inner, selection)
    return found


def _alike(first: Accumulator, second: Accumulator) -> bool:
    dtypes = [{name: step.dtype for name, step in each.steps.items()} for each in (first, second)]
    return _type(first) == _type(second) and first.batch_shape == second.batch_shape and dtypes[0] == dtypes[1]


def reduced(
    timelines: Sequence[Columns],
    reduction: Callable[[str], Reducer[Any]],
    before: Mapping[str, Accumulator],
    order: tuple[str, ...] = (),
) -> Reduced:
    """The events of some timelines, each key by its reduction, numbered after those `before`.

    Those of any type count together.
    """
    accumulators: dict[str, Accumulator] = {}
    groups = []
    for each in refined(timelines, lambda name: apart(reduction(name), name)):
        keys = [plain(name) if reduction(name).is_number_of_events else name for name in each.values]
        for key, value in zip(keys, each.values.values(), strict=True):
            fixed = (reduction(key), value, each.mask, each.steps, each.site, each.batch_ndim, each.where_ndim)
            sofar = before.get(key)
            one = numbered_after(sofar, lift(*fixed)) if each.single else fold(*fixed, before=sofar)
            _add(accumulators, key, dataclasses.replace(one, outer_batch_ndim=each.outer_batch_ndim))
        groups.append(keys)
    return Reduced(accumulators, canonical(groups), order=order)


def merged(first: Reduced, second: Reduced) -> Reduced:
    """The events of `first`, then those of `second`.

    Raises:
        StructureError: Events of one key differ in shape, dtype or counters.
    """
    accumulators = dict(first.accumulators)
    for key, accumulator in second.accumulators.items():
        _add(accumulators, key, accumulator)
    timelines, order = _together(first, second), tuple(dict.fromkeys((*first.order, *second.order)))
    return dataclasses.replace(first, accumulators=accumulators, timelines=timelines, order=order)


def _add(accumulators: dict[str, Accumulator], key: str, further: Accumulator) -> None:
    if key in accumulators:
        before, further = in_equal_batches(accumulators[key], further, of_any_call=is_typed(key))
        if further.reduction.is_number_of_events:
            before, further = in_common_batches(before, further)
        else:
            check_alike(key, before, further)
        further = merge(before, further)
    accumulators[key] = further


def _together(first: Reduced, second: Reduced) -> tuple[tuple[str, ...], ...]:
    """The timelines of both, quickly where nothing is regrouped: each log call of a program comes here."""
    if not any(key in first.accumulators for keys in second.timelines for key in keys):
        return tuple(sorted((*first.timelines, *second.timelines)))
    if all(keys in first.timelines for keys in second.timelines):
        return first.timelines
    return canonical([*first.timelines, *second.timelines])


def _type(accumulator: Accumulator) -> tuple[str, list[str]]:
    if accumulator.reduction.is_number_of_events:
        batch = " x ".join(map(str, accumulator.batch_shape))
        return f"events in a batch of {batch}" if batch else "events", sorted(accumulator.steps)
    shape, batch_shape = accumulator.shape, accumulator.batch_shape
    return describe(accumulator.dtype, (*batch_shape, *shape), len(batch_shape)), sorted(accumulator.steps)


def check_alike(key: str, first: Accumulator, other: Accumulator) -> None:
    """Raise StructureError where events of one key are not alike."""
    (here, steps), (there, other_steps) = _type(first), _type(other)
    if (here, steps) != (there, other_steps):
        raise StructureError(
            f"The key {plain(key)!r} is logged as {here} with steps {steps} at {first.site} and as {there} with steps "
            f"{other_steps} at {other.site}. Events of one key must be alike: {MENDS}"
            f"{from_context(first.site, other.site)}"
        )
