"""An independent oracle: what a program computes and logs, by Python and NumPy, one step and batch element at a time.

It shares nothing with lox's handlers and rules. Derivatives are those that JAX finds for the program whose log calls
are deleted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox.testing._compare import Happened, Lane, Reference
from lox.testing._program import (
    Body,
    Branch,
    Call,
    Derivative,
    Log,
    Program,
    Scan,
    Statement,
    Update,
    Vmap,
    While,
)


def reference(program: Program, x: Any, n: Any) -> Reference:
    """Run a program in Python and NumPy, with loops unrolled, branches taken and batch elements one by one.

    Args:
        program: The program.
        x: Floats of any shape.
        n: An integer.

    Returns:
        Its results, and its events by key and batch element.

    >>> import numpy as np
    >>> from lox.testing import Log, Program, Scan, Update, reference
    >>> program = Program((Scan(2, (Log("n", "n"), Update(0.5, 0.25, 1))),))
    >>> [event.value for event in reference(program, np.float32(1), 2).events["n"][()]]
    [2, 0]
    """
    run = _Run({}, (), lambda tags: True)
    return Reference(run.body(program.body, np.asarray(x), int(n), 0), run.events)


_NUMPY: dict[str, Callable[[Any, int], Any]] = {
    "x": lambda x, n: x,
    "n": lambda x, n: n,
    "sum": lambda x, n: x.sum(),
    "constant": lambda x, n: 2.5,
    "flag": lambda x, n: n > 2,
    "nested": lambda x, n: {"/twice": 2 * x, "/parts/0": n, "/parts/1": x[..., None]},
    "empty": lambda x, n: np.zeros((0, 2)),
}


@dataclasses.dataclass(frozen=True)
class _Run:
    events: dict[str, dict[Lane, list[Happened]]]
    lane: Lane
    hears: Callable[[tuple[str, ...]], bool]
    prefix: str = ""
    tags: tuple[str, ...] = ()
    steps: tuple[tuple[str, int], ...] = ()

    def body(self, body: Body, x: Any, n: int, i: int) -> tuple[Any, int]:
        for statement in body:
            x, n = self._statement(statement, x, n, i)
        return x, n

    def _statement(self, statement: Statement, x: Any, n: int, i: int) -> tuple[Any, int]:
        match statement:
            case Log(key, value, tags, steps, prefix, beside, where):
                for name, of in ((key, value), *beside) if self.hears((*tags, *self.tags)) else ():
                    logged = _NUMPY[of](x, n) if of in _NUMPY else x.astype(jnp.dtype(of))
                    for lane, part in _happens(where, logged, n):
                        dataclasses.replace(self, lane=(*self.lane, *lane))._log(
                            self.prefix + prefix + name, part, dict(self.steps) | ({"step": i} if steps else {})
                        )
                return x, n
            case Update(scale, shift, count):
                return np.sin(scale * x + shift + 0.1 * n).astype(x.dtype), (3 * n + count) % 7
            case Call(how, body, tag):
                hears = self.hears
                if how == "strip":
                    hears = lambda tags: self.hears(tags) and tag not in tags  # noqa: E731
                elif how == "keep":
                    hears = lambda tags: self.hears(tags) and tag in tags  # noqa: E731
                elif how == "context":
                    tags, prefix = (*self.tags, tag), f"{self.prefix}in/"
                    inside = dataclasses.replace(self, tags=tags, prefix=prefix, steps=(("context", n),))
                    return inside.body(body, x, n, i)
                elif how == "spool":
                    hears = lambda tags: False  # noqa: E731
                return dataclasses.replace(self, hears=hears).body(body, x, n, i)
            case Scan(length, body, reverse, _):
                for number in reversed(range(length)) if reverse else range(length):
                    x, n = self.body(body, x, n, number)
                return x, n
            case While(bound, body, test):
                trips, looped = n % bound, x
                for number in range(trips):
                    self.body(test, looped, n, number)
                    looped, n = self.body(body, looped, n, number)
                self.body(test, looped, n, trips)
                return x + looped, n
            case Branch(branches, on):
                return self.body(branches[(n if on == "n" else i) % len(branches)], x, n, i)
            case Derivative(how, body):
                y, after = self.body(body, x, n, i)
                return np.sin(y + _slope(how, body, x, n, i)).astype(x.dtype), after
            case Vmap(size, body, _, _):
                outs = [self._in_lane(lane, body, x, n, i) for lane in range(size)]
                return np.mean([x for x, _ in outs], 0).astype(x.dtype), max(n for _, n in outs)
        raise TypeError(f"{statement!r} is no statement of a program")

    def _in_lane(self, lane: int, body: Body, x: Any, n: int, i: int) -> tuple[Any, int]:
        inside = dataclasses.replace(self, lane=(*self.lane, lane))
        return inside.body(body, (x * (1 + lane) / 2).astype(x.dtype), (n + lane) % 7, i)

    def _log(self, key: str, value: Any, steps: dict[str, int]) -> None:
        for suffix, part in value.items() if isinstance(value, dict) else [("", value)]:
            lanes = self.events.setdefault(key + suffix, {})
            lanes.setdefault(self.lane, []).append(Happened(part, steps))


def _happens(where: str, value: Any, n: int) -> Iterator[tuple[Lane, Any]]:
    """The logged values where `where=` is true, and the further batch elements."""
    if where == "each":
        for number, lane in enumerate(np.ndindex(value.shape)):
            if (n + number) % 2 == 1:
                yield lane, value[lane]
    elif not where or n % 2 == 1:
        yield (), value


def _slope(how: str, body: Body, x: Any, n: int, i: int) -> Any:
    """The derivative of the sum of a body's result, or the directional one along ones, without logs."""
    silent = Program(body, i).silent
    if how in ("grad", "vjp"):
        return np.asarray(jax.grad(lambda x: silent(x, n)[0].sum())(jnp.asarray(x)))
    return np.asarray(jax.jvp(lambda x: silent(x, n)[0], (jnp.asarray(x),), (jnp.ones_like(x),))[1])
