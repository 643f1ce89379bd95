"""The laws that lox keeps. Each is a function from a subject to what the law claims of it."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import lox
from lox._leading_axes import where as where_mask
from lox._logs_in import events_in
from lox._reduce import AnyReduction
from lox.testing._compare import Happened, Reference, same
from lox.testing._program import Program
from lox.testing._subject import BrokenLaw, Claim, DoesNotApply, Function, Subject
from lox.testing._watching import watching

Claims = Iterator[Claim]
Law = Callable[[Subject], Iterable[Claim]]


def transparency(subject: Subject) -> Claims:
    """Law 1. A handler changes no result: `spool(f)(x)[0] == tap(f)(x) == strip(f)(x) == f(x)`.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f = subject.fun
    handlers: dict[str, Function] = {
        "f": f,
        "spool(f)": lambda *args: subject.spool(f)(*args)[0],
        "tap(f)": lox.tap(f, _ignore),
        "tap(f, buffer=3)": lox.tap(f, _ignore, buffer=3),
        "strip(f)": lox.strip(f),
        "keep(f, argnames=())": lox.keep(f, argnames=()),
    }
    for how, handled in handlers.items():
        yield subject.returns(how, handled)
        yield subject.returns(f"jit({how})", jax.jit(handled))


def absence(subject: Subject) -> Claims:
    """Law 2. Without a handler, a program is the program without its log calls.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f, args = subject.fun, subject.args

    def same_program(how: str, fun: Function, expected: Function, before: Callable[[], Any] = lambda: None) -> Claim:
        def verify() -> None:
            before()
            if str(jax.make_jaxpr(fun)(*args)) != str(jax.make_jaxpr(expected)(*args)):
                raise BrokenLaw(f"{how}, traced without a handler, is another program.")

        return Claim(how, verify)

    def contains_none() -> None:
        if any(events_in(jax.make_jaxpr(f)(*args))):
            raise BrokenLaw("f, traced without a handler, contains logs.")

    yield same_program("strip(f)", lox.strip(f), f)
    yield same_program("f after spool(f)", jax.jit(f), jax.jit(f), lambda: subject.spool(f)(*subject.args))
    yield Claim("f", contains_none)
    if isinstance(f, Program) and not f.handles:
        yield same_program("f", f, f.silent)


def jit(subject: Subject) -> Claims:
    """Law 3. Compiling changes nothing: `jit(spool(f)) == spool(jit(f)) == spool(f)`.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f, spool = subject.fun, subject.spool
    yield subject.spools("spool(f)", spool(f), times=2)
    yield subject.spools("jit(spool(f))", jax.jit(spool(f)), times=2)
    yield subject.spools("spool(jit(f))", spool(jax.jit(f)), times=2)
    yield subject.spools("jit(spool(jit(jit(f))))", jax.jit(spool(jax.jit(lambda *args: jax.jit(f)(*args)))))


def vmap(subject: Subject) -> Claims:
    """Law 4. A batch element of `vmap(spool(f))` and of `spool(vmap(f))` logs what it would have logged alone.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f, spool = subject.fun, subject.spool
    one, two = jax.vmap(f), jax.vmap(jax.vmap(f))

    def spools(how: str, fun: Function, batches: int = 1, axis: int = 0) -> Claim:
        return subject.spools(how, fun, batches=batches, axis=axis, plain=one if batches == 1 else two)

    def taps(how: str, tapped: Callable[[Callable[[lox.logdict], None]], Function], batches: int = 1) -> Claim:
        return subject.taps(how, tapped, batches=batches, plain=one if batches == 1 else two)

    yield spools("vmap(spool(f))", jax.vmap(spool(f)), axis=1)
    yield spools("jit(vmap(spool(f)))", jax.jit(jax.vmap(spool(f))), axis=1)
    yield spools("spool(vmap(f))", spool(one))
    yield spools("spool(jit(vmap(jit(f))))", spool(jax.jit(jax.vmap(jax.jit(f)))))
    yield spools("jit(spool(vmap(vmap(f))))", jax.jit(spool(two)), batches=2)
    yield spools("jit(vmap(spool(vmap(f))))", jax.jit(jax.vmap(spool(one))), batches=2, axis=1)
    yield taps("tap(vmap(f))", lambda callback: lox.tap(one, callback))
    yield taps("jit(vmap(tap(f)))", lambda callback: jax.jit(jax.vmap(lox.tap(f, callback))))
    yield taps("jit(tap(vmap(vmap(f))))", lambda callback: jax.jit(lox.tap(two, callback)), batches=2)


def derivatives(subject: Subject) -> Claims:
    """Law 5. Derivatives stay what they are, and each forward event is logged once, in its order.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    subject = subject.forward
    points, scalar = _differentiable(subject)
    every = tuple(range(len(points)))
    modes: dict[str, Callable[[Function], Function]] = {
        "grad": lambda f: jax.grad(f, every),
        "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f), every),
        "grad of jit": lambda f: jax.grad(jax.jit(f), every),
        "vjp": lambda f: lambda *points: jax.vjp(f, *points)[1](jnp.float32(1)),
        "jvp": lambda f: lambda *points: jax.jvp(f, points, tuple(map(jnp.ones_like, points)))[1],
        "linearize": lambda f: lambda *points: jax.linearize(f, *points)[1](*map(jnp.ones_like, points)),
    }
    several: dict[str, Callable[[Function], Function]] = {
        "jacfwd": lambda f: jax.jacfwd(f, every),
        "jacrev": lambda f: jax.jacrev(f, every),
        "grad of grad": lambda f: jax.grad(lambda *points: sum(d.sum() for d in jax.grad(f, every)(*points)), every),
    }
    of_f = scalar(subject.fun)
    of_spool = scalar(lambda *args: subject.spool(subject.fun)(*args)[0])

    def of_tap(mode: Callable[[Function], Function], callback: Callable[[lox.logdict], None]) -> Function:
        return jax.jit(mode(scalar(lox.tap(subject.fun, callback))))

    # The rules of a generated program run the function, if with a fwd once more.
    silent = {"custom_vjp_call"} if isinstance(subject.fun, Program) else {"custom_vjp_call", "custom_jvp_call"}
    modes |= several
    if isinstance(subject.fun, Program) and not subject.fun.has_reverse:
        modes = {name: modes[name] for name in ("jvp", "linearize", "jacfwd")}
    for name, mode in modes.items():
        expected = functools.cache(functools.partial(_derivative, subject, mode(of_f), points))
        spooled, tapped = jax.jit(subject.spool(mode(of_f))), functools.partial(of_tap, mode)
        spools, taps = f"spool({name} of f)", f"{name} of tap(f)"
        if name not in several and subject.primitives.isdisjoint(silent):
            yield subject.spools(spools, spooled, expected=expected, args=points, keys=subject.keys)
            yield subject.taps(taps, tapped, expected=expected, args=points, keys=subject.keys)
        else:  # Batch elements for directions log besides, and a rule logs what it likes.
            without_logs = functools.partial(lambda spooled, *points: spooled(*points)[0], spooled)
            yield _derives(subject, spools, without_logs, points, expected)
            yield _derives(subject, taps, tapped(_ignore), points, expected)
        # JAX has no forward derivative, under vmap, of a log in a custom_vjp function that a custom_jvp one calls.
        if name != "jacfwd" or not {"custom_jvp_call", "custom_vjp_call"} <= subject.primitives:
            yield _derives(subject, f"{name} of spool(f)", jax.jit(mode(of_spool)), points, expected)


def _differentiable(subject: Subject) -> tuple[list[Any], Callable[[Function], Function]]:
    """The arguments that are floats, and what makes a function one of them whose result is a scalar."""
    leaves, structure = jax.tree.flatten(subject.args)
    floats = [place for place, leaf in enumerate(leaves) if _is_float(leaf)]
    if not floats:
        raise DoesNotApply("no argument is a float")

    def scalar(f: Function) -> Function:
        def of(*points: Any) -> Any:
            new = list(leaves)
            for place, point in zip(floats, points, strict=True):
                new[place] = point
            out = f(*jax.tree.unflatten(structure, new))
            return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(out) if _is_float(leaf)), start=jnp.float32(0))

        return of

    return [jnp.asarray(leaves[place]) for place in floats], scalar


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _derivative(subject: Subject, derivative: Function, points: list[Any]) -> Reference:
    try:
        return Reference(jax.jit(derivative)(*points), subject.alone.events)
    except (TypeError, ValueError) as error:
        raise DoesNotApply(f"JAX has no derivative of the function: {error}") from None


def _derives(
    subject: Subject, how: str, derivative: Function, points: list[Any], expected: Callable[[], Reference]
) -> Claim:
    return Claim(how, lambda: subject.out_is(expected().out, derivative(*points), how))


def logs_are_values(subject: Subject) -> Claims:
    """Law 6. Logs are values: the derivative of a function of them is the true one.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    if not subject.primitives.isdisjoint({"custom_jvp_call", "custom_vjp_call"}):
        raise DoesNotApply("a rule of its own says what the derivative is")
    if isinstance(subject.fun, Program) and "while" in subject.primitives:
        raise DoesNotApply("a program cuts the derivative off where it has a while_loop")
    leaves, structure = jax.tree.flatten(subject.args)
    floats = [place for place, leaf in enumerate(leaves) if jnp.result_type(leaf) == jnp.float32]
    if not floats:
        raise DoesNotApply("no argument is a float of 32 bits")

    def total(shift: Any) -> Any:
        new = [leaf + shift if place in floats else leaf for place, leaf in enumerate(leaves)]
        _, logs = subject.spool(subject.fun)(*jax.tree.unflatten(structure, new))
        return [
            jnp.sum(where_mask(logs.mask[key], value, jnp.zeros_like(value)) if key in logs.mask else value)
            for key, value in sorted(logs.items())
            if value.dtype == jnp.float32
        ]

    if not any(log.dtype == jnp.float32 for log in jax.tree.leaves(jax.eval_shape(total, jnp.float32(0)))):
        raise DoesNotApply("it logs no float of 32 bits")

    def agrees(slope: Callable[[Function], Any]) -> None:
        slopes = slope(total)
        if isinstance(subject.fun, Program):
            expected, tolerances = _finite_differences(jax.jit(total))
        else:  # It may be far from smooth, and may say what its derivative is.
            python = subject.in_python(total)
            expected = jax.jvp(python, (jnp.float32(0),), (jnp.float32(1),))[1]
            tolerances = [subject.tolerance * (1 + abs(each)) for each in expected]
        for got, want, tolerance in zip(slopes, expected, tolerances, strict=True):
            if abs(got - want) > tolerance:
                raise BrokenLaw(f"The derivative of logs is {got}; expected {want}.")

    def forward(total: Function) -> Any:
        return jax.jit(lambda shift: jax.jvp(total, (shift,), (jnp.ones_like(shift),))[1])(jnp.float32(0))

    def reverse(total: Function) -> Any:
        return jax.jit(jax.jacrev(total))(jnp.float32(0))

    def plain(shift: Any) -> Any:
        new = [leaf + shift if place in floats else leaf for place, leaf in enumerate(leaves)]
        return [leaf for leaf in jax.tree.leaves(subject.fun(*jax.tree.unflatten(structure, new))) if _is_float(leaf)]

    for name, slope in (("jvp", forward), ("jacrev", reverse)):
        yield Claim(f"{name} of a function of logs", functools.partial(agrees, slope), functools.partial(slope, plain))


def _finite_differences(totals: Function, step: float = 1e-2) -> tuple[list[Any], list[Any]]:
    """The slopes of sums at zero, and how far off they may be."""
    behind, here, ahead = (totals(jnp.float32(shift)) for shift in (-step, 0, step))
    slopes = [(high - low) / (2 * step) for low, high in zip(behind, ahead, strict=True)]
    curved = [
        abs(high - 2 * middle + low) / step for low, middle, high in zip(behind, here, ahead, strict=True)
    ]  # How much the slope differs over the step.
    return slopes, [0.02 * (1 + abs(slope)) + bend for slope, bend in zip(slopes, curved, strict=True)]


def scan(subject: Subject) -> Claims:
    """Law 7. `scan` logs as the unrolled Python loop does.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    return _unrolled(subject, {"scan"}, "scan")


def cond(subject: Subject) -> Claims:
    """Law 8. `cond` and `switch` log as the Python `if` does.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    return _unrolled(subject, {"cond"}, "cond")


def while_loop(subject: Subject) -> Claims:
    """Law 9. `while_loop` logs as the Python loop does, in its condition and in its body.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    return _unrolled(subject, {"while"}, "while_loop")


def _unrolled(subject: Subject, names: Iterable[str], what: str) -> Claims:
    subject.require(names, what)
    f = subject.fun

    def expected() -> Reference:
        return subject.unrolled

    yield subject.spools("spool(f)", subject.spool(f), expected=expected, args=subject.args)
    yield subject.spools("jit(spool(f))", jax.jit(subject.spool(f)), expected=expected, args=subject.args)
    yield subject.taps("jit(tap(f))", lambda to: jax.jit(lox.tap(f, to)), expected=expected, args=subject.args)


def custom_rules(subject: Subject) -> Claims:
    """Law 10. Functions with a rule of their own keep it under every composition.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    subject.require({"custom_jvp_call", "custom_vjp_call", "custom_linear_solve"}, "rule of its own")
    return derivatives(subject)


def filters(subject: Subject) -> Claims:
    """Law 11. `strip` and `keep` select, `interval` and `reduce` summarize what would have been logged.

    Events of a key with different types are kept apart.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f = subject.fun

    def selects(how: str, handled: Function, names: frozenset[str]) -> Claim:
        def expected() -> Reference:
            return Reference(
                subject.alone.out, {key: lanes for key, lanes in subject.alone.events.items() if key in names}
            )

        return subject.spools(how, jax.jit(subject.spool(handled)), expected=expected, args=subject.args)

    keys = subject.keys
    for key in sorted(keys):
        stripped, kept = lox.strip(f, argnames=key), lox.keep(f, argnames=key)
        yield selects(f"spool(strip(f, argnames={key!r}))", stripped, keys - {key})
        yield selects(
            f"spool(strip(strip(f, argnames={key!r}), argnames={key!r}))",
            lox.strip(stripped, argnames=key),
            keys - {key},
        )
        yield selects(f"spool(keep(f, argnames={key!r}))", kept, frozenset({key}))
        yield selects(
            f"spool(keep(keep(f, argnames={key!r}), argnames={key!r}))", lox.keep(kept, argnames=key), frozenset({key})
        )
    for interval in (2, 3):
        how = f"jit(spool(f, interval={interval}))"
        spooled = jax.jit(subject.spool(f, interval=interval))
        yield subject.spools(how, spooled, expected=functools.partial(_thinned, subject, interval), args=subject.args)
    for bound in (1, 3):
        yield Claim(f"jit(spool(f, max_events={bound}))", functools.partial(_caps, subject, bound))
    mixed = jax.jit(subject.spool(_with_others(f, keys), on_mismatch="split"))
    how = "jit(spool(f and other events of each key, on_mismatch='split'))"
    yield subject.spools(how, mixed, expected=lambda: subject.alone, args=subject.args, keys=keys)
    bounds = {"max_iters": subject.options.get("max_iters") or 16, "max_events": None}
    for reduction in (each for each in _REDUCTIONS if _takes(each, subject)):
        yield Claim(f"jit(spool(f, reduce={reduction!r}))", functools.partial(_reduces, subject, reduction))
        how = f"jit(spool(f, reduce={reduction!r}, window=2))"
        spooled = jax.jit(subject.spool(f, reduce=reduction, window=2, **bounds))
        expected = functools.partial(_windows, subject, reduction, 2)
        yield subject.spools(how, spooled, expected=expected, args=subject.args)


def _takes(reduction: AnyReduction, subject: Subject) -> bool:
    """Tell whether there is such a reduction of all that the function logs."""
    refused: tuple[Any, ...] = () if reduction in ("count", "first", "last") else (jax.dtypes.extended,)
    refused += (jnp.complexfloating,) if reduction in (HISTOGRAM, DECAYED) else ()
    return not any(jnp.issubdtype(each.dtype, kind) for each in subject.types.values() for kind in refused)


def _with_others(fun: Function, keys: Collection[str]) -> Function:
    """The function, after which each key is logged with a type that no function is likely to log."""

    def mixed(*args: Any) -> Any:
        out = fun(*args)
        for key in sorted(keys):
            lox.log({key: jnp.zeros((0, 7, 0, 7), jnp.uint8)})
        return out

    return mixed


def _thinned(subject: Subject, interval: int) -> Reference:
    """Every `interval`-th event of each key."""
    thinned = {
        key: {lane: happened[::interval] for lane, happened in lanes.items()}
        for key, lanes in subject.alone.events.items()
    }
    return Reference(subject.alone.out, thinned)


def _windows(subject: Subject, reduction: AnyReduction, length: int) -> Reference:
    """Each `length` events of each key, reduced."""

    def reduced(happened: Sequence[Happened]) -> list[Happened]:
        windows = [happened[first : first + length] for first in range(0, len(happened), length)]
        return [
            Happened(
                np.asarray(_REDUCTIONS[reduction](jnp.asarray(np.stack([event.value for event in window])))),
                window[0 if reduction == "first" else -1].steps,
            )
            for window in windows
        ]

    found = {
        key: {lane: reduced(happened) for lane, happened in lanes.items()}
        for key, lanes in subject.alone.events.items()
    }
    return Reference(subject.alone.out, found)


def _caps(subject: Subject, bound: int) -> None:
    how = f"jit(spool(f, max_events={bound}))"
    spooled = jax.jit(subject.spool(subject.fun, max_events=bound, max_iters=None))
    out, logs = spooled(*subject.args)
    subject.out_is(subject.alone.out, out, how)
    is_capped = logs.dropped
    for key in logs:
        if key in logs.mask and key not in is_capped:
            raise BrokenLaw(f"{how} has a mask of key {key!r}, whose events it does not count.")
    if subject.has_shards:  # There each shard keeps so many, of what they share as well.
        return
    expected = {
        key: {lane: happened[: bound if key in is_capped else None] for lane, happened in lanes.items()}
        for key, lanes in subject.alone.events.items()
    }
    subject.events_are(expected, subject.events(logs), how)
    for key, dropped in is_capped.items():
        for lane, number in np.ndenumerate(np.asarray(dropped)):
            happened = len(subject.alone.events.get(key, {}).get(lane, ()))
            if number != max(happened - bound, 0):
                raise BrokenLaw(f"{how} counts {number} dropped events of key {key!r}, of {happened} that happened.")


def _reduces(subject: Subject, reduction: AnyReduction) -> None:
    how = f"jit(spool(f, reduce={reduction!r}))"
    out, reduced = jax.jit(subject.spool(subject.fun, reduce=reduction))(*subject.args)
    subject.out_is(subject.alone.out, out, how)
    for key, lanes in subject.alone.events.items():
        depth, counts = subject.depth(key, reduced), reduction == "count"
        axes = min(depth, reduced[key].ndim - 1) if counts else depth  # A count that all shards share is there once.
        for lane in np.ndindex(reduced[key].shape[1 : 1 + depth]) if axes == depth else lanes:
            happened, got = lanes.get(lane, ()), reduced[key][(0, *lane[:axes])]
            if happened:
                expected = _REDUCTIONS[reduction](jnp.asarray(np.stack([event.value for event in happened])))
            elif reduction in ("count", "sum", HISTOGRAM):
                expected = jnp.zeros_like(got)
            else:  # There is no value of no events.
                continue
            if not same(expected, got, max(len(happened), 1) * subject.tolerance):
                where = f"Key {key!r}" + (f", batch element {lane}" if lane else "")
                raise BrokenLaw(f"{how} is {reduced[key]}. {where}: expected {expected}.")


MANY = 10**6
"""More events than a program has."""


def _moving_average(values: jax.Array) -> jax.Array:
    dtype = jnp.mean(values).dtype
    average, *rest = np.asarray(values).astype(np.promote_types(dtype, np.float32))
    for value in rest:
        average = average / 2 + value / 2
    return jnp.asarray(average, dtype)


def _histogram(values: jax.Array) -> jax.Array:
    exact = np.asarray(values.astype(np.float32))
    bins = [exact < EDGES[0], *((low <= exact) & (exact < high) for low, high in itertools.pairwise(EDGES))]
    bins.append(EDGES[-1] <= exact)
    return jnp.asarray(np.stack([np.sum(each, axis=0) for each in bins], axis=-1), jnp.uint32)


EDGES = (0.0, 0.5, 2.0)
HISTOGRAM = lox.reductions.histogram(EDGES)

DECAYED = lox.reductions.Reduction(
    init=lambda event: (jnp.float32(1), jnp.zeros(event.shape, np.float32)),
    step=lambda state, value: (state[0] / 2, state[1] / 2 + value.astype(np.float32)),
    merge=lambda first, second: (first[0] * second[0], first[1] * second[0] + second[1]),
    finish=lambda state: state[1],
    ordered=True,
)
"""The sum of the events with weights: 1 for the last one, and for each other half of that of the next one."""


def _decayed(values: jax.Array) -> jax.Array:
    total = np.zeros(values.shape[1:], np.float32)
    for value in np.asarray(values.astype(np.float32)):
        total = total / 2 + value
    return jnp.asarray(total)


_REDUCTIONS: Mapping[AnyReduction, Callable[[jax.Array], Any]] = {
    "count": len,
    "sum": functools.partial(jnp.sum, axis=0),
    "mean": functools.partial(jnp.mean, axis=0),
    "std": functools.partial(jnp.std, axis=0),
    "var": functools.partial(jnp.var, axis=0),
    "min": functools.partial(jnp.min, axis=0),
    "max": functools.partial(jnp.max, axis=0),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    lox.reductions.ewma(0.5): _moving_average,
    HISTOGRAM: _histogram,
    DECAYED: _decayed,
}


def tap_and_spool(subject: Subject) -> Claims:
    """Law 12. What `tap` hands over, put together, is what `spool` returns, for every `buffer` and `interval`.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f = subject.fun
    for buffer in (1, 2, 100):
        for name, fun in (("f", f), ("jit(f)", jax.jit(f))):
            tapped = functools.partial(lox.tap, fun, buffer=buffer)
            yield subject.taps(f"tap({name}, buffer={buffer})", tapped)
    if subject.has_shards:  # Shards do not count together: `interval` skips nothing there.
        return
    for buffer in (1, 2):
        how = f"tap(jit(f), interval=2, buffer={buffer})"
        tapped = functools.partial(lox.tap, jax.jit(f), buffer=buffer, interval=2)
        yield subject.taps(how, tapped, expected=functools.partial(_thinned, subject, 2), args=subject.args)
    for reduction in ("sum", "first", "last", HISTOGRAM):
        for window in (2, None):
            how = f"tap(jit(f), reduce={reduction!r}, window={window})"
            tapped = functools.partial(lox.tap, jax.jit(f), reduce=reduction, window=window)
            expected = functools.partial(_windows, subject, reduction, window or MANY)
            if _takes(reduction, subject):
                yield subject.taps(how, tapped, expected=expected, args=subject.args)


def sharding(subject: Subject) -> Claims:
    """Law 13. Arguments on several devices change nothing of what is logged.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f, spool = subject.fun, subject.spool
    if jax.device_count() < 2:
        raise DoesNotApply("there is one device")
    if not jax.sharding.get_abstract_mesh().empty:
        raise DoesNotApply("a mesh is set already")
    if subject.has_shards:
        raise DoesNotApply("the function says itself which devices it uses")

    def on(devices: int, spec: PartitionSpec, fun: Function) -> Function:
        sharding = NamedSharding(_mesh(devices), spec)
        return lambda *args: fun(*jax.device_put(args, sharding))

    everywhere = functools.partial(on, jax.device_count(), PartitionSpec())
    plain = everywhere(jax.jit(f))
    yield subject.spools("jit(spool(f)) of replicated arguments", everywhere(jax.jit(spool(f))), plain=plain)
    tapped = lambda to: everywhere(jax.jit(lox.tap(f, to)))  # noqa: E731
    yield subject.taps("jit(tap(f)) of replicated arguments", tapped, plain=plain)
    lanes = len(subject.lanes)
    if lanes > jax.device_count():
        return
    apart = functools.partial(on, lanes, PartitionSpec("lanes"))
    how, plain = "jit(spool(vmap(f))) of a batch element per device", apart(jax.jit(jax.vmap(f)))
    yield subject.spools(how, apart(jax.jit(spool(jax.vmap(f)))), batches=1, plain=plain)

    def shard(*args: Any) -> Any:
        out = f(*jax.tree.map(lambda leaf: leaf[0], args))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], out)

    spec = PartitionSpec("lanes")
    sharded = jax.shard_map(shard, mesh=_mesh(lanes), in_specs=spec, out_specs=spec, check_vma=False)
    plain = jax.jit(sharded)
    yield subject.spools("jit(spool(shard_map(f)))", jax.jit(spool(sharded)), batches=1, plain=plain)
    yield subject.taps("jit(tap(shard_map(f)))", lambda to: jax.jit(lox.tap(sharded, to)), batches=1, plain=plain)


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("lanes",))


def no_silent_loss(subject: Subject) -> Claims:
    """Law 14. Every site that logs is heard of, as often as it logs.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """

    def heard_of(how: str, fun: Function, args: Sequence[Any]) -> Claim:
        return Claim(f"sites({how})", functools.partial(_sites_are_heard_of, subject, how, fun, args))

    yield heard_of("f", subject.fun, subject.args)
    if isinstance(subject.fun, Program) and not subject.fun.has_reverse:
        return
    try:
        points, scalar = _differentiable(subject)
        derivative = jax.grad(scalar(subject.fun), tuple(range(len(points))))
        jax.eval_shape(derivative, *points)
    except (DoesNotApply, TypeError, ValueError):  # JAX has no derivative of the function.
        return
    yield heard_of("grad of f", derivative, points)

    def outside(callback: Callable[[lox.logdict], None]) -> Function:
        return jax.jit(jax.grad(scalar(lox.tap(subject.fun, callback)), tuple(range(len(points)))))

    def inside() -> Reference:
        out, logs = jax.jit(subject.spool(derivative))(*points)
        return Reference(out, subject.events(logs))

    yield subject.taps("grad of tap(f)", outside, expected=inside, args=points)


def _sites_are_heard_of(subject: Subject, how: str, fun: Function, args: Sequence[Any]) -> None:
    sites = lox.sites(fun)(*args)
    keys = {key for site in sites for key in site.keys}
    _, logs = jax.jit(subject.spool(fun))(*args)
    if keys != set(logs):
        raise BrokenLaw(f"sites({how}) lists the keys {sorted(keys)}, spool({how}) returns {sorted(logs)}.")
    for key, lanes in subject.events(logs).items():
        of_key = [site for site in sites if key in site.keys]
        if any(site.events is None for site in of_key):
            continue
        count, exact = sum(site.events or 0 for site in of_key), all(site.exact for site in of_key)
        for lane, happened in lanes.items():
            if count < len(happened) or (exact and count != len(happened)):
                where = f"key {key!r}" + (f", batch element {lane}" if lane else "")
                most = "" if exact else "at most "
                raise BrokenLaw(f"sites({how}) counts {most}{count} events of {where}, and {len(happened)} happen.")


def hygiene(subject: Subject) -> Claims:
    """Law 15. Nothing that JAX caches is changed, nothing leaks, and threads do not hear each other.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    f = subject.fun

    def checked(*args: Any) -> Any:
        try:
            with jax.checking_leaks():
                return subject.spool(jax.jit(f))(*args)
        except Exception as error:  # JAX raises no narrower one.
            if "Leaked" in str(error):
                raise BrokenLaw(f"spool(jit(f)) leaks a tracer: {error}") from error
            raise

    def after(*args: Any) -> Any:
        subject.spool(jax.jit(f))(*subject.args)
        return jax.jit(f)(*args)

    def in_threads() -> None:
        if isinstance(_in_threads([lambda: jax.jit(f)(*subject.args)])[0], BaseException):
            raise DoesNotApply("the function does not run in another thread")
        found, spooled = _in_threads(
            [lambda: jax.jit(f)(*subject.args), lambda: jax.jit(subject.spool(f))(*subject.args)]
        )
        for result in (found, spooled):
            if isinstance(result, BaseException):
                raise result
        subject.out_is(found, spooled[0], "spool(f) in another thread")
        if differs(subject.alone.out, found):
            raise DoesNotApply("the function returns something else in another thread")
        subject.events_are(subject.alone.events, subject.events(spooled[1]), "spool(f) in another thread")

    def differs(expected: Any, got: Any) -> bool:
        try:
            subject.out_is(expected, got, "")
        except BrokenLaw:
            return True
        return False

    yield subject.spools("spool(jit(f)) while JAX checks leaks", checked)
    yield subject.returns("jit(f) after spool(jit(f))", after)
    yield Claim("f and jit(spool(f)) in two threads", in_threads)


def _in_threads(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks at the same time; returns what each returns or raises."""
    results: dict[int, Any] = {}

    def run(place: int) -> None:
        try:
            results[place] = tasks[place]()
        except BaseException as error:  # noqa: BLE001  (for the thread that asked)
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[place] for place in range(len(tasks))]


def _ignore(logs: lox.logdict) -> None:
    pass


LAWS: tuple[Law, ...] = (
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
    watching,
)
