"""Programs as data: what the strategy generates, what prints as Python, and what the reference interprets.

A program maps an array `x` of floats and an integer `n` to new ones. Predicates and trip counts depend on integers
only, so that a program computes them exactly, and every other value only within rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox


@dataclasses.dataclass(frozen=True)
class Log:
    """Logs one of `VALUES`, or `x` as one of `DTYPES`; a key that has steps has them at every site.

    `beside` are further keys of the same call, each with its value. `where` is one of `WHERES`; with "each", all
    values are `x` or a cast of it.
    """

    key: str
    value: str
    tags: tuple[str, ...] = ()
    steps: bool = False
    prefix: str = ""
    beside: tuple[tuple[str, str], ...] = ()
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Update:
    """Computes a new `x`, bounded by 1, and a new `n`, from 0 to 6."""

    scale: float
    shift: float
    count: int


@dataclasses.dataclass(frozen=True)
class Call:
    """Runs the body as `jit`, `checkpoint`, `custom_jvp`, `custom_vjp`, under a handler, or in a context.

    `strip` and `keep` select by `tag`; `spool` leaves no log to what is around, `tap` leaves all. `context` adds the
    tag, a prefix and a counter, which is `n`.
    """

    how: str
    body: Body
    tag: str = ""


@dataclasses.dataclass(frozen=True)
class Scan:
    length: int
    body: Body
    reverse: bool = False
    unroll: int = 1


@dataclasses.dataclass(frozen=True)
class While:
    """A loop of `n % bound` iterations, with the body `test` in its condition, or a dynamic `fori_loop`.

    Reverse mode does not go through it, which is why derivatives are cut off where they enter it, as long as `cut`.
    """

    bound: int
    body: Body
    test: Body = ()
    fori: bool = False
    cut: bool = True


@dataclasses.dataclass(frozen=True)
class Branch:
    """A `switch`, or a `cond` when there are two, on `n`, or on the loop counter, which no batch has."""

    bodies: tuple[Body, ...]
    on: str = "n"


@dataclasses.dataclass(frozen=True)
class Derivative:
    """Differentiates the body by `x` and goes on with what that gives."""

    how: str
    body: Body


@dataclasses.dataclass(frozen=True)
class Vmap:
    """Maps the body over batch elements that start from different values, and goes on with their mean.

    The batch is along `axis` of `x`, the first or the last, or on one device each.
    """

    size: int
    body: Body
    axis: int = 0
    sharded: bool = False


Statement = Log | Update | Call | Scan | While | Branch | Derivative | Vmap
Body = tuple[Statement, ...]

VALUES = {
    "x": "x",
    "n": "n",
    "sum": "x.sum()",
    "constant": "2.5",
    "flag": "n > 2",
    "nested": '{"twice": 2 * x, "parts": [n, x[..., None]]}',
    "empty": "jnp.zeros((0, 2))",
}
"""The values that can be logged, as Python."""

WHERES = {
    "": "",
    "odd": "n % 2 == 1",
    "each": "(n + jnp.arange(x.size).reshape(x.shape)) % 2 == 1",
}
"""The values of `where=`, as Python: nothing, one yes or no, or one for each number of `x`."""

DTYPES = ("float16", "bfloat16", "complex64", "int32", "bool")
"""Dtypes that `x` can be cast to when it is logged."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of `x`, floats of any shape, and `n`, an integer, that logs; it prints as the Python that it runs.

    Attributes:
        body: What it does.
        i: The counter outside all loops.

    >>> from lox.testing import Log, Program, Scan, Update
    >>> program = Program((Scan(2, (Log("a", "x", steps=True), Update(0.5, 0.25, 1))),))
    >>> print(program.source)
    def program(x, n):
        i = 0
        def body_1(carry, i):
            x, n = carry
            lox.log({"a": x}, step=i)
            x, n = jnp.sin(0.5 * x + 0.25 + 0.1 * jnp.asarray(n, x.dtype)), (3 * n + 1) % 7
            return (x, n), None
        (x, n), _ = jax.lax.scan(body_1, (x, n), jnp.arange(2), reverse=False, unroll=1)
        return x, n
    """

    body: Body
    i: int = 0

    @functools.cached_property
    def source(self) -> str:
        """Program as Python."""
        lines = _Source().body(self.body)
        return "\n".join(["def program(x, n):", *_indent([f"i = {self.i}", *lines, "return x, n"])])

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """Function that the source defines, which logs through `lox.log`."""
        return define(self.source, lox.log)

    @functools.cached_property
    def silent(self) -> Callable[..., Any]:
        """Function without log calls."""
        return define(self.source, lambda data, **options: data)

    def __call__(self, x: Any, n: Any) -> Any:
        return self.function(x, n)

    def __repr__(self) -> str:
        return f"\n{self.source}\n"

    @property
    def handles(self) -> bool:
        """Tell whether it has a handler inside.

        Returns:
            True if a handler, such as `lox.spool`, is inside the program.
        """
        return any(isinstance(each, Call) and each.how in ("spool", "tap") for each in self.statements())

    @property
    def has_reverse(self) -> bool:
        """Say whether reverse mode goes through the whole program.

        Returns:
            True if `jax.grad` works.
        """
        return all(each.cut for each in self.statements() if isinstance(each, While))

    def statements(self) -> Iterator[Statement]:
        """Iterate over all statements, also those inside others.

        Returns:
            An iterator over them, an outer one before those inside it.
        """
        return _statements(self.body)


def _statements(body: Body) -> Iterator[Statement]:
    for statement in body:
        yield statement
        for inner in bodies(statement):
            yield from _statements(inner)


def bodies(statement: Statement) -> tuple[Body, ...]:
    """The bodies inside a statement."""
    if isinstance(statement, Branch):
        return statement.bodies
    if isinstance(statement, While):
        return (statement.body, statement.test)
    if isinstance(statement, (Log, Update)):
        return ()
    return (statement.body,)


def define(source: str, log: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that the source of a program defines, with `log` in place of `lox.log`.

    Args:
        source: What `str` of a `Program` is.
        log: A function to call in place of `lox.log`.

    Returns:
        The function, which takes the arguments of the program.
    """

    others = {name: getattr(lox, name) for name in ("strip", "keep", "spool", "tap", "context")}
    scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "lox": types.SimpleNamespace(log=log, **others)}
    exec(compile(source, "<program>", "exec"), scope)
    return scope["program"]


def _indent(lines: list[str]) -> list[str]:
    return [textwrap.indent(line, "    ") for line in lines]


class _Source:
    """Writes statements as lines of Python; functions inside get numbers."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def body(self, body: Body) -> list[str]:
        return [line for statement in body for line in self._statement(statement)]

    def _function(self, arguments: str, before: list[str], body: Body, result: str) -> tuple[str, list[str]]:
        name = f"body_{next(self._numbers)}"
        lines = [*before, *self.body(body), f"return {result}"]
        return name, [f"def {name}({arguments}):", *_indent(lines)]

    def _statement(self, statement: Statement) -> list[str]:
        match statement:
            case Log(key, value, tags, steps, prefix, beside, where):
                data = []
                for name, logged in ((key, value), *beside):
                    if logged not in VALUES and logged not in DTYPES:
                        raise ValueError(f"A program logs one of {', '.join((*VALUES, *DTYPES))}; got {logged!r}.")
                    data.append(f'"{name}": {VALUES.get(logged, f"x.astype(jnp.{logged})")}')
                options = f", tags={list(tags)}" if tags else ""
                options += f', prefix="{prefix}"' if prefix else ""
                options += f", where={WHERES[where]}" if where else ""
                options += ", step=i" if steps else ""
                return [f"lox.log({{{', '.join(data)}}}{options})"]
            case Update(scale, shift, count):
                return [f"x, n = jnp.sin({scale} * x + {shift} + 0.1 * jnp.asarray(n, x.dtype)), (3 * n + {count}) % 7"]
            case Call():
                return self._call(statement)
            case Scan(length, body, reverse, unroll):
                name, lines = self._function("carry, i", ["x, n = carry"], body, "(x, n), None")
                options = f"reverse={reverse}, unroll={unroll}"
                return [*lines, f"(x, n), _ = jax.lax.scan({name}, (x, n), jnp.arange({length}), {options})"]
            case While():
                return self._while(statement)
            case Branch(branches, on):
                names, lines = [], []
                for branch in branches:
                    name, defined = self._function("x, n", [], branch, "x, n")
                    names.append(name)
                    lines += defined
                if len(names) == 2:
                    return [*lines, f"x, n = jax.lax.cond({on} % 2 == 1, {names[1]}, {names[0]}, x, n)"]
                return [*lines, f"x, n = jax.lax.switch({on} % {len(names)}, [{', '.join(names)}], x, n)"]
            case Derivative():
                return self._derivative(statement)
            case Vmap():
                return self._vmap(statement)
        raise TypeError(f"{statement!r} is no statement of a program")

    def _call(self, call: Call) -> list[str]:
        # A rule runs when the loop around is gone: what its function uses is an argument.
        arguments = "x, n, i" if call.how.startswith("custom") else "x, n"
        name, lines = self._function(arguments, [], call.body, "x, n")
        match call.how:
            case "jit":
                return [*lines, f"x, n = jax.jit({name})(x, n)"]
            case "checkpoint":
                return [*lines, f"x, n = jax.checkpoint({name})(x, n)"]
            case "spool":
                return [*lines, f"x, n = lox.spool({name}, unify=True, max_iters=16)(x, n)[0]"]
            case "tap":
                return [*lines, f"x, n = lox.tap({name}, lambda logs: None)(x, n)"]
            case "context":
                options = f'tags="{call.tag}", prefix="in/", context=n'
                return [*lines, f"x, n = lox.context({options})({name})(x, n)"]
            case "strip" | "keep":
                return [*lines, f'x, n = lox.{call.how}({name}, tags="{call.tag}")(x, n)']
            case "custom_jvp":
                rule = [f"def {name}_jvp(primals, tangents):"]
                rule += _indent([f"return {name}(*primals), (2 * tangents[0], tangents[1])"])
                decorated = [f"{name} = jax.custom_jvp({name})", *rule, f"{name}.defjvp({name}_jvp)"]
                return [*lines, *decorated, f"x, n = {name}(x, jnp.asarray(n), jnp.asarray(i))"]
            case "custom_vjp":
                rule = [
                    f"{name}_fwd = lambda x, n, i: ({name}(x, n, i), None)",
                    f"{name}_bwd = lambda _, bars: (3 * bars[0], None, None)",
                ]
                decorated = [f"{name} = jax.custom_vjp({name})", *rule, f"{name}.defvjp({name}_fwd, {name}_bwd)"]
                return [*lines, *decorated, f"x, n = {name}(x, jnp.asarray(n), jnp.asarray(i))"]
        raise ValueError(f"{call.how!r} is no way to call")

    def _while(self, loop: While) -> list[str]:
        start = "jax.lax.stop_gradient(x)" if loop.cut else "x"
        if loop.fori:
            name, lines = self._function("i, carry", ["x, n = carry"], loop.body, "x, n")
            run = f"looped, n = jax.lax.fori_loop(0, n % {loop.bound}, {name}, ({start}, n))"
            return [*lines, run, "x = x + looped"]
        name, lines = self._function("carry", ["i, x, n = carry"], loop.body, "i + 1, x, n")
        trips = f"{name}_trips"  # A name of its own: loops in the condition have some as well.
        test, test_lines = self._function("carry", ["i, x, n = carry"], loop.test, f"i < {trips}")
        run = f"_, looped, n = jax.lax.while_loop({test}, {name}, (0, {start}, n))"
        return [*lines, f"{trips} = n % {loop.bound}", *test_lines, run, "x = x + looped"]

    def _vmap(self, lanes: Vmap) -> list[str]:
        size, axis = lanes.size, lanes.axis
        xs = f"jnp.stack([x * (1 + lane) / 2 for lane in range({size})], {axis})"
        ns = f"(n + jnp.arange({size})) % 7"
        if not lanes.sharded:
            name, lines = self._function("x, n", [], lanes.body, "x, n")
            mapped = f"jax.vmap({name}, in_axes=({axis}, 0), out_axes=({axis}, 0))"
            return [*lines, f"x, n = {mapped}({xs}, {ns})", f"x, n = x.mean({axis}), n.max()"]
        before = ["x, n = x[0], n[0]"]
        name, lines = self._function("x, n", before, lanes.body, "x[None], jnp.asarray(n)[None]")
        mesh = f'jax.sharding.Mesh(jax.devices()[:{size}], ("shards",))'
        spec = 'jax.sharding.PartitionSpec("shards")'
        mapped = f"jax.shard_map({name}, mesh={mesh}, in_specs={spec}, out_specs={spec})"
        return [*lines, f"x, n = {mapped}({xs}, {ns})", "x, n = x.mean(0), n.max()"]

    def _derivative(self, derivative: Derivative) -> list[str]:
        name, lines = self._function("x, n=n", [], derivative.body, "x, n")
        match derivative.how:
            case "grad":
                scalar = f"lambda x: (lambda y, n: (y.sum(), (y, n)))(*{name}(x))"
                run = [f"slope, (y, n) = jax.grad({scalar}, has_aux=True)(x)"]
            case "vjp":
                run = [f"y, pull_back, n = jax.vjp({name}, x, has_aux=True)", "slope = pull_back(jnp.ones_like(y))[0]"]
            case "jvp":
                run = [f"y, slope, n = jax.jvp({name}, (x,), (jnp.ones_like(x),), has_aux=True)"]
            case "linearize":
                run = [f"y, push, n = jax.linearize({name}, x, has_aux=True)", "slope = push(jnp.ones_like(x))"]
            case _:
                raise ValueError(f"{derivative.how!r} is no way to differentiate")
        return [*lines, *run, "x = jnp.sin(y + slope)"]
