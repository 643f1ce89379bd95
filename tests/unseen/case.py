"""One mistake and the right programs beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Case:
    """A wrong program and right ones that nearly equal it.

    Args:
        name: Unique among all cases.
        family: The kind of mistake.
        wrong: The program with the mistake.
        right: The mended twin first, then near misses.
        args: The arguments of each of them, or a function that returns them.
        where: Source text of the mistake, once in the file but for lines that begin with `where=`.
        axes: Labels, as `lox.audit` takes them.
        differentiate: As `lox.audit` takes it.
        calls: Further tuples of arguments, or a function that returns them.
        source: Where the idea is from.
        planted: The mistake was planted in a program of our own.
    """

    name: str
    family: str
    wrong: Callable[..., Any]
    right: tuple[Callable[..., Any], ...]
    args: tuple[Any, ...] | Callable[[], tuple[Any, ...]]
    where: str
    axes: dict[str, tuple[str | None, ...]] | None = None
    differentiate: str | tuple[str, ...] | None = None
    calls: tuple[tuple[Any, ...], ...] | Callable[[], tuple[tuple[Any, ...], ...]] = ()
    source: str = ""
    planted: bool = False

    def arguments(self) -> tuple[Any, ...]:
        return self.args() if callable(self.args) else self.args

    def further_calls(self) -> tuple[tuple[Any, ...], ...]:
        return self.calls() if callable(self.calls) else self.calls


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def flags(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


def key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def shapes_of(function: Callable[..., Any], *args: Any) -> Any:
    """What `function` returns, as shapes."""
    return jax.eval_shape(function, *args)
