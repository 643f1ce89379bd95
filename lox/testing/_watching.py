"""The law of `lox.watch`: points log as calls of `lox.log` in their places would."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox.testing._compare import on_host, same
from lox.testing._program import Call, Program, define
from lox.testing._subject import BrokenLaw, Claim, Function, Subject

_HANDLERS = ("spool", "tap", "strip", "keep", "context")


def watching(subject: Subject) -> Iterator[Claim]:
    """Law 17. A watched function returns what the function does, and its points log as calls in their places would.

    Args:
        subject: The function, with arguments to call it with.

    Returns:
        The claims of the law, each about one composition of transformations.
    """
    yield from _returns(subject)
    program = subject.fun
    if not isinstance(program, Program) or any(_handles(each) for each in program.statements()):
        return  # A handler in it takes log calls, and no points.
    by_hand, scoped = define(program.source, _log), define(program.source, _scope)
    watch: Callable[[Function], Function] = functools.partial(lox.watch, at=_is_of_log, what=_value)
    slope: Callable[[Function], Function] = lambda f: jax.grad(lambda x, n: f(x, n)[0].sum())  # noqa: E731
    batched: Callable[[Function], Function] = lambda f: jax.vmap(f)  # noqa: E731
    for batches, name, transform in (
        (0, "f", lambda f: f),
        (0, "jit(f)", jax.jit),
        (1, "vmap(f)", batched),
        (1, "jit(vmap(f))", lambda f: jax.jit(jax.vmap(f))),
        (0, "grad(f)", slope),
        (0, "jit(grad(f))", lambda f: jax.jit(slope(f))),
        (1, "vmap(grad(f))", lambda f: jax.vmap(slope(f))),
    ):
        args = subject.batch(batches)[0]
        forms = {f"watch({name})": watch(transform(scoped)), name.replace("f", "watch(f)"): transform(watch(scoped))}
        for form, watched in forms.items():
            spooled = subject.spool(watched)
            for how, fun in ((f"spool({form})", spooled), (f"jit(spool({form}))", jax.jit(spooled))):
                verify = functools.partial(_logs_as, subject, how, fun, transform(by_hand), args)
                yield Claim(how, verify, functools.partial(transform(program.silent), *args))


def _handles(statement: Any) -> bool:
    return isinstance(statement, Call) and statement.how in _HANDLERS


def _returns(subject: Subject) -> Iterator[Claim]:
    watched = lox.watch(subject.fun, at=_is_any)
    for how, fun in (("watch(f)", watched), ("watch(jit(f))", lox.watch(jax.jit(subject.fun), at=_is_any))):
        yield subject.returns(f"spool({how})", lambda *args, fun=fun: subject.spool(fun)(*args)[0])
    yield subject.returns("jit(watch(f))", jax.jit(watched))


def _logs_as(subject: Subject, how: str, fun: Function, by_hand: Function, args: Any) -> None:
    out, logs = fun(*args)
    expected, wanted = subject.spool(by_hand)(*args)
    subject.out_is(expected, out, how)
    paths: dict[str, list[str]] = {}
    for path in logs:
        paths.setdefault(path.rpartition("/")[0].rpartition("/")[2].partition("[")[0], []).append(path)
    if missing := set(paths) ^ set(wanted):
        raise BrokenLaw(f"{how} and log calls by hand do not log the same: {sorted(missing)} of {sorted(wanted)}.")
    for name, (path, *others) in paths.items():
        if others:
            raise BrokenLaw(f"{how} logs {name!r} at several paths: {path!r}, {others}.")
        found, value = _happened(logs, path), _happened(wanted, name)
        if len(found) != len(value):
            raise BrokenLaw(f"{how} logs {len(found)} events of {path!r}, by hand {len(value)}.")
        for number, (one, other) in enumerate(zip(value, found, strict=True)):
            if not same(one, other, subject.tolerance):
                raise BrokenLaw(f"{how} logs {other} as event {number} of {path!r}, by hand {one}.")


def _happened(logs: lox.logdict, key: str) -> list[Any]:
    """The values of a key that happened, event after event and batch element after batch element."""
    values = on_host(logs[key])
    mask = np.asarray(logs.mask.get(key, np.ones(len(values), bool)))
    return list(values[mask])


def _name() -> str:
    """The name of a log call of a program: that of its line."""
    return f"log_at_{sys._getframe(2).f_lineno}"


def _of(data: Mapping[str, Any]) -> Any:
    return jnp.asarray(jax.tree.leaves(next(iter(data.values())))[0])


def _log(data: Mapping[str, Any], **options: Any) -> None:
    del options
    lox.log({_name(): jnp.array(_of(data), copy=True)})


def _scope(data: Mapping[str, Any], **options: Any) -> None:
    del options
    with jax.named_scope(_name()):
        jnp.array(_of(data), copy=True)


def _is_of_log(point: lox.Point) -> bool:
    return point.name.startswith("log_at_") and not point.backward


def _is_any(point: lox.Point) -> bool:
    return not point.obstacle


def _value(point: lox.Point, values: tuple[Any, ...]) -> dict[str, Any]:
    del point
    (value,) = values
    return {"value": value}
