"""The laws that lox keeps, each a function that checks it on a function of the user's."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox import _handler
from lox._lanes import where as where_mask
from lox.testing._compare import difference, events, same

Function = Callable[..., Any]


class BrokenLaw(AssertionError):
    """A law does not hold for a function."""


class DoesNotApply(Exception):
    """A law says nothing of a function, for a reason."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A function that is to keep the laws, with arguments to call it with.

    Attributes:
        fun: The function.
        lanes: The arguments of several calls, of the same shapes; most laws use the first.
        options: Keywords of `lox.spool`.
        tolerance: How far floats may be apart, relative and absolute.
    """

    fun: Function
    lanes: tuple[tuple[Any, ...], ...]
    options: dict[str, Any]
    tolerance: float

    @property
    def args(self) -> tuple[Any, ...]:
        return self.lanes[0]

    @functools.cached_property
    def baseline(self) -> tuple[Any, lox.logdict]:
        """What the function returns, and what it logs when it is called alone and not compiled."""
        return self.fun(*self.args), self.spool(self.fun)(*self.args)[1]

    @functools.cached_property
    def primitives(self) -> frozenset[str]:
        """The names of the primitives in the function, at any depth."""
        return frozenset(eqn.primitive.name for eqn in _handler.equations(jax.make_jaxpr(self.fun)(*self.args)))

    def spool(self, fun: Function, **more: Any) -> Function:
        return lox.spool(fun, **(self.options | more))

    def tap(self, fun: Function, arrived: list[Any], **options: Any) -> Function:
        return lox.tap(fun, arrived.append, **options)

    def stacked(self) -> tuple[Any, ...]:
        return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *self.lanes)

    def require(self, names: Iterable[str], what: str) -> None:
        if self.primitives.isdisjoint(names):
            raise DoesNotApply(f"the function has no {what}")

    def out_is(self, expected: Any, got: Any, how: str) -> None:
        """The results are the same."""
        if jax.tree.structure(expected) != jax.tree.structure(got):
            raise BrokenLaw(f"{how} returns {jax.tree.structure(got)}, not {jax.tree.structure(expected)}.")
        for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(got), strict=True):
            if not same(one, other, self.tolerance):
                where = f" at {jax.tree_util.keystr(path)}" if path else ""
                raise BrokenLaw(f"{how} returns another result{where}: expected {one}, got {other}.")

    def logs_are(self, expected: lox.logdict, got: lox.logdict, how: str) -> None:
        """The events that happened are the same."""
        depths = {key: _depth(key, expected, got) for key in {*expected, *got}}
        found = difference(events(expected, depths), events(got, depths), self.tolerance)
        if found is not None:
            raise BrokenLaw(f"{how} logs something else. {found[0].upper()}{found[1:]}.")


def _depth(key: str, *found: lox.logdict) -> int:
    """The number of batch axes of a key, as far as a mask or a counter tells."""
    arrays = [of[key] for logs in found for of in (logs.mask, *logs.steps.values()) if key in of]
    return max((np.ndim(array) - 1 for array in arrays), default=0)


def transparency(subject: Subject) -> None:
    """Law 1. A handler changes no result: `spool(f)(x)[0] == tap(f)(x) == strip(f)(x) == f(x)`."""
    f, args = subject.fun, subject.args
    expected, _ = subject.baseline
    handlers: dict[str, Function] = {
        "spool(f)": lambda *args: subject.spool(f)(*args)[0],
        "tap(f)": subject.tap(f, []),
        "tap(f, buffer=3)": subject.tap(f, [], buffer=3),
        "strip(f)": lox.strip(f),
        "keep(f, argnames=())": lox.keep(f, argnames=()),
    }
    for name, handled in handlers.items():
        subject.out_is(expected, handled(*args), name)
        subject.out_is(expected, jax.jit(handled)(*args), f"jit({name})")
    lox.flush()


def absence(subject: Subject) -> None:
    """Law 2. Without a handler, a program is the program without its log calls."""
    f, args = subject.fun, subject.args
    jaxpr = jax.make_jaxpr(f)(*args)
    if any(name.startswith("lox_") for name in subject.primitives):
        raise BrokenLaw("f, traced without a handler, contains logs.")
    subject.spool(f)(*args)
    if str(jax.make_jaxpr(f)(*args)) != str(jaxpr):
        raise BrokenLaw("f, traced without a handler, is another program after it ran under one.")
    if str(jax.make_jaxpr(lox.strip(f))(*args)) != str(jaxpr):
        raise BrokenLaw("strip(f) is another program than f without a handler.")


def jit(subject: Subject) -> None:
    """Law 3. Compiling changes nothing: `jit(spool(f)) == spool(jit(f)) == spool(f)`."""
    f, args = subject.fun, subject.args
    out, logs = subject.baseline
    compositions: dict[str, Function] = {
        "jit(spool(f))": jax.jit(subject.spool(f)),
        "spool(jit(f))": subject.spool(jax.jit(f)),
        "jit(spool(jit(jit(f))))": jax.jit(subject.spool(jax.jit(lambda *args: jax.jit(f)(*args)))),
    }
    for name, spooled in compositions.items():
        for _ in range(2):  # The second time what was compiled is used.
            found, got = spooled(*args)
            subject.out_is(out, found, name)
            subject.logs_are(logs, got, name)


def vmap(subject: Subject) -> None:
    """Law 4. A lane of `vmap(spool(f))` and of `spool(vmap(f))` logs what it would have logged alone."""
    f, stacked = subject.fun, subject.stacked()
    expected = [jax.jit(subject.spool(f))(*args) for args in subject.lanes]
    for name, spooled, axis in (
        ("vmap(spool(f))", jax.vmap(subject.spool(f)), 0),
        ("jit(vmap(spool(f)))", jax.jit(jax.vmap(subject.spool(f))), 0),
        ("spool(vmap(f))", subject.spool(jax.vmap(f)), 1),
        ("spool(jit(vmap(jit(f))))", subject.spool(jax.jit(jax.vmap(jax.jit(f)))), 1),
    ):
        found, got = spooled(*stacked)
        for lane, (out, logs) in enumerate(expected):
            where = f"lane {lane} of {name}"
            subject.out_is(out, jax.tree.map(lambda leaf, lane=lane: leaf[lane], found), where)
            subject.logs_are(logs, _lane(got, lane, axis), where)
    arrived: list[Any] = []
    subject.tap(jax.vmap(f), arrived)(*stacked)
    lox.flush()
    for lane, (_, logs) in enumerate(expected):
        _sequence_is(subject, logs, [_lane(each, lane, 1) for each in arrived], f"lane {lane} of tap(vmap(f))")


def _lane(logs: lox.logdict, lane: int, axis: int) -> lox.logdict:
    def of(values: Any) -> Any:
        return jax.tree.map(lambda leaf: np.take(np.asarray(leaf), lane, axis), values)

    return lox.logdict(of(logs.data), of(logs.steps), of(logs.mask))


def derivatives(subject: Subject) -> None:
    """Law 5. Derivatives stay what they are, and each forward event is logged once, in its order."""
    f = subject.fun
    leaves, structure = jax.tree.flatten(subject.args)
    floats = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    if not floats:
        raise DoesNotApply("no argument is a float")
    points = [jnp.asarray(leaves[place]) for place in floats]

    def scalar(f: Function) -> Function:
        def of(*points: Any) -> Any:
            new = list(leaves)
            for place, point in zip(floats, points, strict=True):
                new[place] = point
            out = f(*jax.tree.unflatten(structure, new))
            sums = [leaf.sum() for leaf in jax.tree.leaves(out) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
            return sum(sums, start=jnp.float32(0))

        return of

    g = scalar(f)
    every = tuple(range(len(points)))
    modes: dict[str, Callable[[Function], Function]] = {
        "grad": lambda f: jax.grad(f, every),
        "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f), every),
        "grad of jit": lambda f: jax.grad(jax.jit(f), every),
        "vjp": lambda f: lambda *points: jax.vjp(f, *points)[1](jnp.float32(1)),
        "jvp": lambda f: lambda *points: jax.jvp(f, points, tuple(map(jnp.ones_like, points)))[1],
        "linearize": lambda f: lambda *points: jax.linearize(f, *points)[1](*map(jnp.ones_like, points)),
        "grad of grad": lambda f: jax.grad(lambda *points: sum(d.sum() for d in jax.grad(f, every)(*points)), every),
    }
    applied = 0
    for name, mode in modes.items():
        try:
            expected = jax.jit(mode(g))(*points)
        except (TypeError, ValueError):  # JAX has no such derivative of this function.
            continue
        applied += 1
        once = (
            name != "grad of grad" and "custom_vjp_call" not in subject.primitives
        )  # Its fwd and bwd may log besides.
        _, logs = subject.baseline
        found, got = jax.jit(subject.spool(mode(g)))(*points)
        subject.out_is(expected, found, f"spool({name} of f)")
        if once:
            subject.logs_are(logs, got, f"spool({name} of f)")
        inside = scalar(lambda *args: subject.spool(f)(*args)[0])
        subject.out_is(expected, jax.jit(mode(inside))(*points), f"{name} of spool(f)")
        arrived: list[Any] = []
        subject.out_is(expected, jax.jit(mode(scalar(subject.tap(f, arrived))))(*points), f"{name} of tap(f)")
        lox.flush()
        if once:
            _sequence_is(subject, logs, arrived, f"{name} of tap(f)")
    if not applied:
        raise DoesNotApply("JAX has no derivative of the function")


def logs_are_values(subject: Subject) -> None:
    """Law 6. Logs are values: the derivative of a function of them is the true one."""
    if not subject.primitives.isdisjoint({"custom_jvp_call", "custom_vjp_call"}):
        raise DoesNotApply("a rule of its own says what the derivative is")
    leaves, structure = jax.tree.flatten(subject.args)
    floats = [place for place, leaf in enumerate(leaves) if jnp.result_type(leaf) == jnp.float32]
    if not floats:
        raise DoesNotApply("no argument is a float of 32 bits")
    step = 1e-2

    def total(shift: Any) -> Any:
        new = [leaf + shift if place in floats else leaf for place, leaf in enumerate(leaves)]
        _, logs = subject.spool(subject.fun)(*jax.tree.unflatten(structure, new))
        return [
            jnp.sum(where_mask(logs.mask[key], value, jnp.zeros_like(value)) if key in logs.mask else value)
            for key, value in sorted(logs.items())
            if value.dtype == jnp.float32
        ]

    total = jax.jit(total)
    slopes = jax.jvp(total, (jnp.float32(0),), (jnp.float32(1),))[1]
    ahead, behind = total(jnp.float32(step)), total(jnp.float32(-step))
    here = total(jnp.float32(0))
    for slope, high, middle, low in zip(slopes, ahead, here, behind, strict=True):
        difference = (high - low) / (2 * step)
        curved = abs(high - 2 * middle + low) / step  # How much the slope differs over the step.
        if abs(slope - difference) > 0.02 * (1 + abs(slope)) + curved:
            raise BrokenLaw(f"The derivative of logs is {slope}; by finite differences it is {difference}.")


def _unrolled(subject: Subject, names: Iterable[str], what: str) -> None:
    subject.require(names, what)
    _, logs = subject.baseline
    with jax.disable_jit():  # Python runs the loops and branches, of which lox then sees nothing.
        _, expected = subject.spool(subject.fun)(*subject.args)
    subject.logs_are(expected, logs, "spool(f)")


def scan(subject: Subject) -> None:
    """Law 7. `scan` logs as the unrolled Python loop does."""
    _unrolled(subject, {"scan"}, "scan")


def cond(subject: Subject) -> None:
    """Law 8. `cond` and `switch` log as the Python `if` does."""
    _unrolled(subject, {"cond"}, "cond")


def while_loop(subject: Subject) -> None:
    """Law 9. `while_loop` logs as the Python loop does, in its condition and in its body."""
    _unrolled(subject, {"while"}, "while_loop")


def custom_rules(subject: Subject) -> None:
    """Law 10. Functions with a rule of their own keep it under every composition."""
    subject.require({"custom_jvp_call", "custom_vjp_call", "custom_linear_solve"}, "rule of its own")
    derivatives(subject)


def filters(subject: Subject) -> None:
    """Law 11. `strip` and `keep` select, `interval` and `reduce` summarize what would have been logged."""
    f, args = subject.fun, subject.args
    _, logs = subject.baseline
    for key in logs:
        rest = logs.filter([other for other in logs if other != key])
        stripped = lox.strip(f, argnames=key)
        for name, handled, expected in (
            (f"strip(f, argnames={key!r})", stripped, rest),
            (f"strip(strip(f, argnames={key!r}), argnames={key!r})", lox.strip(stripped, argnames=key), rest),
            (f"keep(f, argnames={key!r})", lox.keep(f, argnames=key), logs.filter(key)),
        ):
            subject.logs_are(expected, jax.jit(subject.spool(handled))(*args)[1], f"spool({name})")
    _, every_second = jax.jit(subject.spool(f, interval=2))(*args)
    _, reduced = jax.jit(subject.spool(f, reduce="sum"))(*args)
    _, counted = jax.jit(subject.spool(f, reduce="count"))(*args)
    for key, lanes in events(logs, {key: _depth(key, logs) for key in logs}).items():
        thinned = events(every_second, {key: _depth(key, logs) for key in every_second})[key]
        for lane, happened in lanes.items():
            where = f"key {key!r}" + (f", lane {lane}" if lane else "")
            if [event.steps for event in thinned[lane]] != [event.steps for event in happened[::2]]:
                raise BrokenLaw(f"spool(f, interval=2) keeps other events. {where}: {thinned[lane]}.")
            if int(counted[key][(0, *lane)]) != len(happened):
                raise BrokenLaw(f"spool(f, reduce='count') is {counted[key]}. {where}: expected {len(happened)}.")
            if not happened or reduced[key].dtype in (jnp.float16, jnp.bfloat16, jnp.bool_):
                continue
            total = np.sum([event.value for event in happened], 0)
            if not same(total, reduced[key][(0, *lane)], len(happened) * subject.tolerance):
                raise BrokenLaw(f"spool(f, reduce='sum') is {reduced[key]}. {where}: expected {total}.")


def tap_and_spool(subject: Subject) -> None:
    """Law 12. What `tap` hands over, put together, is what `spool` returns, for every buffer."""
    f, args = subject.fun, subject.args
    _, logs = subject.baseline
    for buffer in (1, 2, 100):
        for name, function in (("f", f), ("jit(f)", jax.jit(f))):
            arrived: list[Any] = []
            subject.tap(function, arrived, buffer=buffer)(*args)
            lox.flush()
            _sequence_is(subject, logs, arrived, f"tap({name}, buffer={buffer})")


def _sequence_is(subject: Subject, expected: lox.logdict, arrived: Sequence[lox.logdict], how: str) -> None:
    """What arrived one after the other are the events that happened."""
    depths = {key: _depth(key, expected, *arrived) for key in {*expected, *(key for logs in arrived for key in logs)}}
    got: dict[str, dict[Any, list[Any]]] = {}
    for logs in arrived:
        for key, lanes in events(logs, depths).items():
            for lane, happened in lanes.items():
                got.setdefault(key, {}).setdefault(lane, []).extend(happened)
    found = difference(events(expected, depths), got, subject.tolerance)
    if found is not None:
        raise BrokenLaw(f"{how} hands over something else. {found[0].upper()}{found[1:]}.")


def sharding(subject: Subject) -> None:
    """Law 13. Arguments on several devices change nothing of what is logged."""
    devices = jax.devices()
    if len(devices) < 2:
        raise DoesNotApply("there is one device")
    mesh = jax.sharding.Mesh(np.array(devices), ("lox",))
    args = jax.device_put(subject.args, jax.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    out, logs = subject.baseline
    found, got = jax.jit(subject.spool(subject.fun))(*args)
    subject.out_is(out, found, "jit(spool(f)) on several devices")
    subject.logs_are(logs, got, "jit(spool(f)) on several devices")
    arrived: list[Any] = []
    jax.jit(subject.tap(subject.fun, arrived))(*args)
    lox.flush()
    _sequence_is(subject, logs, arrived, "jit(tap(f)) on several devices")


def no_silent_loss(subject: Subject) -> None:
    """Law 14. Every site that logs is heard of, as often as it logs."""
    _, logs = subject.baseline
    sites = lox.sites(subject.fun)(*subject.args)
    listed = {key for site in sites for key in site.keys}
    if listed != set(logs):
        raise BrokenLaw(f"sites(f) lists the keys {sorted(listed)}, spool(f) returns {sorted(logs)}.")
    if not subject.primitives.isdisjoint({"cond", "while"}):
        raise DoesNotApply("how often it logs depends on data")
    for key in logs:
        count = sum(int(site.count) for site in sites if key in site.keys)
        if count != len(logs[key]):
            raise BrokenLaw(f"sites(f) counts {count} events of key {key!r}, spool(f) returns {len(logs[key])}.")


def hygiene(subject: Subject) -> None:
    """Law 15. Nothing that JAX caches is changed, nothing leaks, and threads do not hear each other."""
    f, args = subject.fun, subject.args
    out, logs = subject.baseline
    with jax.checking_leaks():
        subject.spool(jax.jit(f))(*args)
    subject.out_is(out, jax.jit(f)(*args), "jit(f) after spool(jit(f))")
    results: dict[int, Any] = {}
    spooled = jax.jit(subject.spool(f))

    def run(thread: int) -> None:
        results[thread] = spooled(*args) if thread % 2 else (jax.jit(f)(*args), None)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    subject.out_is(out, results[0][0], "f in another thread")
    subject.logs_are(logs, results[1][1], "spool(f) in another thread")


LAWS: tuple[Callable[[Subject], None], ...] = (
    transparency,
    absence,
    jit,
    vmap,
    derivatives,
    logs_are_values,
    scan,
    cond,
    while_loop,
    custom_rules,
    filters,
    tap_and_spool,
    sharding,
    no_silent_loss,
    hygiene,
)


@dataclasses.dataclass(frozen=True)
class Report:
    """Which laws a function was found to keep, and why others say nothing of it."""

    kept: tuple[str, ...]
    not_applicable: dict[str, str]


def check(
    fun: Function,
    *args: Any,
    laws: Iterable[Callable[[Subject], None]] = LAWS,
    lanes: Sequence[tuple[Any, ...]] | None = None,
    spool: dict[str, Any] | None = None,
    tolerance: float = 1e-4,
) -> Report:
    """Checks that lox keeps its laws for a function, with and without `jit`.

    Args:
        fun: A function that logs. It must return the same when called again.
        *args: Its arguments: pytrees of arrays.
        laws: Which laws, of `lox.testing.LAWS`.
        lanes: Arguments of the calls that are batched under `vmap`, of the same shapes. By default `args`, and twice
            more with its floats changed.
        spool: Keywords of `lox.spool`. By default ``{"unify": True, "max_iters": 16}``.
        tolerance: How far floats may be apart, relative and absolute.

    Returns:
        The laws that hold, and the reasons why others do not apply.

    Raises:
        BrokenLaw: A law does not hold. The message names the first difference: key, event, lane, what was expected
            and what was found. An `AssertionError`.
        ValueError: There is nothing to check: the function logs nothing, it returns something else each time, no law
            was given or none applies, or a loop runs longer than `max_iters`.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> from lox import testing
    >>> def f(x):
    ...     def step(total, x):
    ...         lox.log({"total": total})
    ...         return total + x, None
    ...     return jax.lax.scan(step, 0.0, x)[0]
    >>> testing.check(f, jnp.arange(3.0), laws=[testing.jit, testing.scan]).kept
    ('jit', 'scan')
    """
    laws = tuple(laws)
    if not laws:
        raise ValueError("There is nothing to check: no law was given.")
    subject = Subject(
        fun,
        tuple(lanes) if lanes is not None else _lanes(args),
        {"unify": True, "max_iters": 16} | (spool or {}),
        tolerance,
    )
    out, logs = subject.baseline
    if not logs.data:
        raise ValueError("There is nothing to check: the function logs nothing for these arguments.")
    again = subject.spool(fun)(*subject.args)
    for one, other in zip(jax.tree.leaves((out, logs)), jax.tree.leaves(again), strict=True):
        if not same(one, other, tolerance):
            raise ValueError("The function cannot be checked: it does something else when it is called again.")
    bounded = jax.jit(subject.spool(fun))(*subject.args)[1] if "while" in subject.primitives else logs
    for key, dropped in bounded.dropped.items():
        if np.any(dropped):
            raise ValueError(f"max_iters is too small: {dropped} events of key {key!r} were dropped.")
    kept, not_applicable = [], {}
    for law in laws:
        try:
            law(subject)
        except DoesNotApply as reason:
            not_applicable[law.__name__] = str(reason)
        except BrokenLaw as broken:
            broken.add_note(f"The law is {law.__name__}. {law.__doc__}")
            raise
        else:
            kept.append(law.__name__)
    if not kept:
        raise ValueError(f"There is nothing to check: no law applies. {not_applicable}")
    return Report(tuple(kept), not_applicable)


def _lanes(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    def changed(factor: float) -> Any:
        def change(leaf: Any) -> Any:
            leaf = jnp.asarray(leaf)
            return leaf * jnp.asarray(factor, leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

        return jax.tree.map(change, args)

    return (args, changed(0.5), changed(-1.0))
