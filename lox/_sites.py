"""`lox.sites`: the logs of a function, before it runs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.extend as jex

from lox import _compat, _transform
from lox._abstract import trace
from lox._effect import log_p, received
from lox._events import Log, Site, StackedEvents
from lox._logs_in import jaxprs_in
from lox._misspelt import says_what_was_meant

primitives = jex.core.primitives


@dataclasses.dataclass(frozen=True)
class LogSite:
    """One log call of a function, in one place of the program.

    Attributes:
        keys: The keys that it logs.
        shapes: The shape of one event by key, the axes of batches first.
        dtypes: The dtype by name.
        steps: The names of its counters.
        tags: Its tags.
        events: How many events of each key there will be, or None when no bound is known: in a `while_loop`, and in a
            primitive that lox does not know.
        exact: Whether there will be exactly so many rather than at most.
        bytes: The bytes that `lox.spool` would need for them, counters included, or None when no bound is known.
        path: The loops, branches and calls around it, such as ``scan[1000] / cond[1] / jit:step``.
        file: The file of the call.
        line: Its line.
        backward: Whether it is a `lox.log_grad`, that a backward pass comes back to.
    """

    keys: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    steps: tuple[str, ...]
    tags: tuple[str, ...]
    events: int | None
    exact: bool
    bytes: int | None
    path: str
    file: str
    line: int
    backward: bool = False

    @property
    def count(self) -> str:
        """Number of events as text: a number, "at most n" or "unbounded"."""
        if self.events is None:
            return "unbounded"
        return f"{self.events:,}" if self.exact else f"at most {self.events:,}"


class Sites(list[LogSite]):
    """A list of sites that prints as a table."""

    def __str__(self) -> str:
        if not self:
            return "no log calls"
        header = ("keys", "event", "events", "bytes", "path", "site")
        rows = [
            (
                ", ".join(site.keys),
                ", ".join(dict.fromkeys(f"{site.dtypes[key]}{list(site.shapes[key])}" for key in site.keys)),
                site.count,
                "unbounded" if site.bytes is None else f"{site.bytes:,}",
                site.path or "-",
                f"{site.file}:{site.line}",
            )
            for site in self
        ]
        known = [site.bytes for site in self if site.bytes is not None]
        total = ("total", "", "", f"{sum(known):,}{'' if len(known) == len(self) else ' + unbounded'}", "", "")
        table = [header, *rows, total]
        widths = [max(len(row[column]) for row in table) for column in range(len(header))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        rule = "-" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class _Place:
    """A place in the program: how often it is reached, and through which primitives."""

    events: int | None = 1
    exact: bool = True
    path: tuple[str, ...] = ()

    def through(self, name: str, times: int | None = 1, exact: bool = True) -> _Place:
        events = None if self.events is None or times is None else self.events * times
        return _Place(events, self.exact and exact, (*self.path, name) if name else self.path)


@says_what_was_meant("lox.sites", "lox.sites(f)(x)")
def sites(fun: Callable[..., Any]) -> Callable[..., Sites]:
    """Make a function that lists the logs it would make, without running it.

    Args:
        fun: The function.

    Returns:
        A function with the arguments of `fun`, whose arrays may be `jax.ShapeDtypeStruct` objects, that returns a
        list with a `LogSite` for each log call and place it is called from, which prints as a table. Arrays are traced;
        other arguments are passed on as they are.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> def f(xs):
    ...     def step(total, x):
    ...         lox.log({"total": total + x}, step=0)
    ...         return total + x, None
    ...     return jax.lax.scan(step, 0.0, xs)[0]
    >>> (site,) = lox.sites(f)(jnp.zeros(1000))
    >>> site.path, site.count, site.bytes
    ('scan[1000]', '1,000', 8000)
    """

    @functools.wraps(fun, updated=())
    def found(*args: Any, **kwargs: Any) -> Sites:
        def without_results(*args: Any, **kwargs: Any) -> None:
            fun(*args, **kwargs)

        jaxpr, _ = trace(without_results, args, kwargs)
        return sites_of(jaxpr)

    return _transform.decorate(fun, lambda _: found)


def sites_of(jaxpr: Any) -> Sites:
    """The sites of a program that was traced with its log calls."""
    return Sites(_walk(jaxpr, _Place()))


def _walk(jaxpr: Any, place: _Place) -> Iterator[LogSite]:
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        if eqn.primitive is log_p:
            logs, to = received([var.aval for var in eqn.invars], eqn.params)
            for log in logs if to is None else ():
                yield from _logged(log, place)
            continue
        for inner, where in _inside(eqn, place):
            yield from _walk(inner, where)


def _inside(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    """The jaxprs of an equation and how often each is reached."""
    yield from _reached.get(eqn.primitive, _unknown)(eqn, place)


Reached = Callable[[Any, _Place], Iterator[tuple[Any, _Place]]]


def _scan(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    length = eqn.params["length"]
    yield eqn.params["jaxpr"], place.through(f"scan[{length}]", length)


def _while(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    yield eqn.params["cond_jaxpr"], place.through("while.cond", None)
    yield eqn.params["body_jaxpr"], place.through("while", None)


def _cond(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    for index, branch in enumerate(eqn.params["branches"]):
        yield branch, place.through(f"cond[{index}]", 1, exact=False)


def _jit(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    yield eqn.params["jaxpr"], place.through(f"jit:{eqn.params['name']}")


def _linear_solve(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    yield eqn.params["jaxprs"].solve, place.through("linear_solve")


def _once(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    for inner in jaxprs_in(eqn.params):
        yield inner, place.through(eqn.primitive.name)


def _unknown(eqn: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    """A primitive that may run its jaxprs any number of times."""
    for inner in jaxprs_in(eqn.params):
        yield inner, place.through(eqn.primitive.name, None, exact=False)


_reached: dict[Any, Reached] = {
    primitives.scan_p: _scan,
    primitives.while_p: _while,
    primitives.cond_p: _cond,
    primitives.jit_p: _jit,
    primitives.linear_solve_p: _linear_solve,
    primitives.remat_p: _once,
    primitives.closed_call_p: _once,
    primitives.call_p: _once,
    primitives.custom_jvp_call_p: _once,
    primitives.custom_vjp_call_p: _once,
    _compat.custom_vmap_p: _once,
    _compat.shard_map_p: _once,
}


def _logged(log: Log, place: _Place, loops: tuple[int, ...] = ()) -> Iterator[LogSite]:
    if isinstance(log, StackedEvents):
        for inner in log.body:
            yield from _logged(inner, place, (*loops, log.length))
        return
    if not log.values:
        return
    here = place.through("", math.prod(loops), exact=log.mask is None)
    depth = len(loops)
    shapes = {key: tuple(aval.shape[depth:]) for key, aval in log.values.items()}
    batch = math.prod(log.lengths(depth + log.batch_ndim)[depth:])
    per_event = sum(math.prod(shapes[key]) * aval.dtype.itemsize for key, aval in log.values.items())
    per_event += sum(batch * aval.dtype.itemsize for aval in log.steps.values())
    site: Site = log.site
    yield LogSite(
        keys=tuple(log.values),
        shapes=shapes,
        dtypes={key: aval.dtype.name for key, aval in log.values.items()},
        steps=tuple(log.steps),
        tags=site.tags,
        events=here.events,
        exact=here.exact,
        bytes=None if here.events is None else here.events * per_event,
        path=" / ".join(here.path),
        file=site.file,
        line=site.line,
        backward=site.backward,
    )
