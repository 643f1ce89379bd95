"""What the log calls of the function would cost, or could not do."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives
from lox._columns import describe
from lox._effect import log_p, received, without_logs
from lox._events import Event, Site, events, with_depths
from lox._handler import rules
from lox._sites import sites_of

UNBOUNDED = Kind(
    "LOX900",
    "warning",
    "A log in a while_loop, whose number of events lox.spool cannot know",
    "Give lox.spool max_iters= or reduce=, use lox.tap, or loop with jax.lax.scan or a fori_loop of static bounds.",
    "The number of events is known.",
    "The program was searched for logs in loops of unknown length.",
)
BRANCHES = Kind(
    "LOX901",
    "warning",
    "Branches log different keys, which lox.spool refuses",
    "Log the same keys in each branch, or log after the cond or switch what it returns; or use lox.spool(unify=True), "
    "which returns a mask, or lox.tap.",
    "All branches log the same keys.",
    "The keys that the branches of each cond log were compared.",
)
UNLIKE = Kind(
    "LOX902",
    "warning",
    "A key is logged in different types, which lox.spool refuses",
    "Give one of them another key or a prefix=, or log the same shape, dtype and counters at both.",
    "Each key has events of one type.",
    "The shapes and dtypes of the events of each key were compared.",
)
MEMORY = Kind(
    "LOX903",
    "warning",
    "lox.spool would hold more than 1 GiB of logs",
    "Keep every n-th event with lox.spool(interval=n), or one with reduce=; stream them with lox.tap; or log less, "
    "such as a mean.",
    "The logs that lox.spool would hold are less than 1 GiB.",
    "The sizes of all events were added up.",
)
CHATTY = Kind(
    "LOX904",
    "warning",
    "A tap in a loop whose iterations are shorter than the call of a callback",
    "Give lox.tap buffer=, so that many logs arrive in one call, or interval=.",
    "Taps are not called more often than a loop can bear.",
    "The operations of each loop that logs were counted.",
)
CONSTANT = Kind(
    "LOX905",
    "info",
    "A log in a loop of what is the same in each iteration",
    "Log it once, before the loop; or log what the loop computes.",
)
UNREAD = Kind(
    "LOX906",
    "error",
    "A log is where lox cannot read it",
    "Log outside of it, such as what it returns; or run the function without this log: lox.strip(f).",
    "Logs are where lox can read them.",
    "The program was searched for logs in primitives that lox has no rule for.",
)

_BUDGET = 2**30
_OFTEN = 1000
"""From how many iterations on the cost of a callback counts."""

_SHORT = 100_000
"""The operations of an iteration that take about as long as the call of a callback."""

_ANYWHERE = Location()


@dataclasses.dataclass(frozen=True)
class _Logged:
    """An equation that logs.

    Attributes:
        events: What it logs, each with the number of its loops that are in its arrays.
        tapped: Whether a tap has taken it.
        times: How often it happens at most, or None when nothing tells.
        body: What the innermost loop around it runs, if there is one.
        branched: Whether it is in a branch of that.
        unread: The primitive around it that lox has no rule for, or empty.
    """

    events: tuple[tuple[Event, int], ...]
    tapped: bool
    times: int | None
    body: Block | None
    branched: bool
    unread: str = ""


class _Logs:
    """The logs of a program; those that a tap takes are not for lox.spool."""

    def __init__(self, audited: Audited) -> None:
        self._has_logs = functools.cache(self._look)
        self.all = list(self._inside(audited.program, _Logged((), False, 1, None, False)))
        self._tapped = {event.site for each in self.all if each.tapped for event, _ in each.events}
        self.left = [
            (event, depth, each)
            for each in self.all
            for event, depth in each.events
            if not each.tapped and self.is_left(event)
        ]

    def is_left(self, event: Event) -> bool:
        return bool(event.values) and event.site not in self._tapped

    def _look(self, block: Block) -> bool:
        return any(
            step.equation.primitive is log_p or any(self._has_logs(inner) for inner in step.blocks)
            for step in block.steps
        )

    def _inside(self, block: Block, around: _Logged) -> Iterator[_Logged]:
        for step in block.steps if self._has_logs(block) else ():
            primitive = step.equation.primitive
            if primitive is log_p:
                nodes, to = _carried(step)
                yield dataclasses.replace(around, events=tuple(with_depths(nodes)), tapped=to is not None)
            for inner in step.blocks:
                here = around
                if primitive not in rules:
                    here = dataclasses.replace(around, unread=around.unread or primitive.name)
                elif primitive in primitives("scan"):
                    times = around.times and around.times * step.equation.params["length"]
                    here = dataclasses.replace(around, times=times, body=inner, branched=False)
                elif primitive in primitives("while"):
                    here = dataclasses.replace(around, times=None, body=inner, branched=False)
                elif primitive in primitives("cond"):
                    here = dataclasses.replace(around, branched=True)
                yield from self._inside(inner, here)


def _carried(step: Step) -> tuple[Any, Any]:
    """What an equation logs, with types in place of arrays, and where a tap sends it."""
    return received([value.aval for value in step.inputs], step.equation.params)


def unbounded(audited: Audited) -> Iterator[Finding | Held]:
    """LOX900: a log in a loop of which the number of iterations is not known."""
    for event, _, each in audited.once(_Logs).left:
        if each.times is None:
            yield UNBOUNDED.at(
                _at(event.site), f"{_keys(event)} is logged in a while_loop, or a fori_loop whose bounds are computed."
            )
        else:
            yield UNBOUNDED.fine(_at(event.site))


def branches(audited: Audited) -> Iterator[Finding | Held]:
    """LOX901: whether an event happens depends on data."""
    logs = audited.once(_Logs)
    counts = functools.cache(lambda block: _counts(block, logs, counts))
    for step, location in audited.steps:
        if step.equation.primitive is log_p:
            nodes, to = _carried(step)
            for event in events(nodes):
                if to is None and _is_unasked(event) and logs.is_left(event):
                    yield BRANCHES.at(
                        _at(event.site), f"{_keys(event)} is logged in some branches of a cond or switch."
                    )
        if step.equation.primitive not in primitives("cond"):
            continue
        each = [counts(block) for block in step.blocks]
        differing = {key for found in each for key in found if any(found[key] != other[key] for other in each)}
        if differing:
            listed = "; ".join(
                f"branch {place} {_listed({key: found[key] for key in found if key in differing})}"
                for place, found in enumerate(each)
            )
            yield BRANCHES.at(location, f"The branches of this cond or switch log differently: {listed}.")
        elif any(each):
            yield BRANCHES.fine(location)


def _is_unasked(event: Event) -> bool:
    """Whether an event may not happen, and no `where=` says so."""
    return event.optional is not None and event.optional.needs_unify


def _counts(block: Block, logs: _Logs, counts: Any) -> Counter[str]:
    """How many events of each key a block logs; those of a loop without a bound count as one."""
    found: Counter[str] = Counter()
    for step in block.steps:
        if step.equation.primitive is log_p:
            nodes, to = _carried(step)
            for event, depth in with_depths(nodes):
                is_sure = event.optional is None or _is_unasked(event)
                if to is None and is_sure and logs.is_left(event):
                    found.update(dict.fromkeys(event.values, math.prod(event.lengths(depth))))
        elif step.equation.primitive in primitives("cond"):
            for key in {key for inner in step.blocks for key in counts(inner)}:
                found[key] += max(counts(inner)[key] for inner in step.blocks)
        else:
            times = step.equation.params["length"] if step.equation.primitive in primitives("scan") else 1
            for inner in step.blocks:
                found.update({key: times * count for key, count in counts(inner).items()})
    return found


def unlike(audited: Audited) -> Iterator[Finding | Held]:
    """LOX902: events of one key differ in shape, dtype or counters."""
    first: dict[str, tuple[str, Site]] = {}
    for event, depth, _ in audited.once(_Logs).left:
        steps = f"the steps {', '.join(sorted(event.steps))}" if event.steps else "no steps"
        for key, value in event.values.items():
            what = f"{describe(value.dtype, value.shape[depth:], event.batch_ndim)} with {steps}"
            known, site = first.setdefault(key, (what, event.site))
            if known == what:
                yield UNLIKE.fine(_at(event.site))
            else:
                yield UNLIKE.at(_at(event.site), f"{key!r} is {what} here, and {known} at {_at(site)}.")


def memory(audited: Audited) -> Iterator[Finding | Held]:
    """LOX903: the arrays that lox.spool would return are large."""
    left = {(event.site.file, event.site.line) for event, _, _ in audited.once(_Logs).left}
    if not left:
        return
    sites = [site for site in sites_of(audited.captured.jaxpr) if (site.file, site.line) in left and site.bytes]
    total = sum(site.bytes or 0 for site in sites)
    if total < _BUDGET:
        yield MEMORY.fine(_ANYWHERE)
        return
    for site in sorted(sites, key=lambda site: site.bytes or 0, reverse=True):
        if total >= _BUDGET:
            shown = ", ".join(f"{key!r} of {site.dtypes[key]}{list(site.shapes[key])}" for key in site.keys)
            yield MEMORY.at(
                Location(site.file, site.line),
                f"{site.count} events of {shown} are {(site.bytes or 0) / 2**30:,.1f} GiB.",
            )
            total -= site.bytes or 0


def chatty(audited: Audited) -> Iterator[Finding | Held]:
    """LOX904: a tap calls back in each iteration of a loop that does little else."""
    work: Any = functools.cache(lambda block: _work(block, work))
    for each in audited.once(_Logs).all:
        if not each.tapped or each.body is None:
            continue
        for event, depth in each.events:
            # What has an interval or a buffer is in a branch, or stacked.
            often = (each.times or 0) >= _OFTEN and depth == 0 and not each.branched
            if often and work(each.body) < _SHORT:
                yield CHATTY.at(
                    _at(event.site),
                    f"The tap of {_keys(event)} calls back {each.times:,} times, in a loop of about "
                    f"{work(each.body):,.0f} operations an iteration.",
                )
            else:
                yield CHATTY.fine(_at(event.site))


def _work(block: Block, work: Any) -> float:
    """About how many operations on numbers a block does."""
    total = 0.0
    for step in block.steps:
        params, primitive = step.equation.params, step.equation.primitive
        if primitive in primitives("while", "custom_call", "pallas_call"):
            return math.inf
        if primitive in primitives("cond"):
            total += max(map(work, step.blocks))
        elif step.blocks:
            total += sum(map(work, step.blocks)) * params.get("length", 1)
        else:
            each = 1
            if primitive in primitives("dot_general"):
                each = math.prod(step.inputs[0].shape[axis] for axis in params["dimension_numbers"][0][0])
            elif primitive in primitives("conv_general_dilated"):
                each = math.prod(step.inputs[1].shape)
            sizes = (math.prod(value.shape) for value in (*step.inputs, *step.outputs))
            total += each * max(sizes, default=0)
    return total


def constant(audited: Audited) -> Iterator[Finding | Held]:
    """LOX905: nothing that is logged in a loop depends on the iteration."""
    logs = audited.once(_Logs)
    for step, _ in audited.steps if logs.left else ():
        if step.equation.primitive in primitives("scan"):
            (region,) = step.regions
            body = region.block
            carried = zip((each.inside for each in region.carried), body.outputs, strict=False)
            same = {before for before, after in carried if before is after}
            varying = {each.inside for each in region.inputs if each.role != "in"} - same
            yield from _constant(body, varying, logs)


def _constant(block: Block, varying: set[Value], logs: _Logs) -> Iterator[Finding | Held]:
    for step in block.steps:
        if step.equation.primitive is log_p:
            nodes, to = _carried(step)
            known = all(value.number is not None for value in step.inputs)
            if to is None and not known and varying.isdisjoint(step.inputs):
                for event in filter(logs.is_left, events(nodes)):
                    yield CONSTANT.at(_at(event.site), f"{_keys(event)} is the same in each iteration of the loop.")
            continue
        if not varying.isdisjoint(step.inputs) or without_logs(step.equation.effects):
            varying.update(step.outputs)
        if step.equation.primitive not in primitives("scan", "while", "cond"):
            for inner in step.blocks:
                if len(inner.inputs) == len(step.inputs):
                    of = zip(inner.inputs, step.inputs, strict=True)
                    yield from _constant(inner, {value for value, outer in of if outer in varying}, logs)


def unread(audited: Audited) -> Iterator[Finding | Held]:
    """LOX906: a log in a primitive that lox has no rule for."""
    for event, _, each in audited.once(_Logs).left:
        if each.unread:
            yield UNREAD.at(
                _at(event.site), f"{_keys(event)} is logged inside of '{each.unread}', for which lox has no rule."
            )
        else:
            yield UNREAD.fine(_at(event.site))


def _at(site: Site) -> Location:
    return Location(site.file, site.line, site.function)


def _keys(event: Event) -> str:
    return ", ".join(map(repr, event.values))


def _listed(found: dict[str, int]) -> str:
    logged = ", ".join(f"{key!r}{f' ({count:,} events)' if count != 1 else ''}" for key, count in found.items())
    return f"logs {logged}" if logged else "logs none of these"


KINDS = (UNBOUNDED, BRANCHES, UNLIKE, MEMORY, CHATTY, CONSTANT, UNREAD)
CHECKS = (unbounded, branches, unlike, memory, chatty, constant, unread)
