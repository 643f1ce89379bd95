"""Reductions that users define."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._exceptions import LogValueError
from lox._leading_axes import where
from lox._stepwise import Stepwise


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction of your own, for `reduce=` of `lox.spool`, `lox.tap` and `lox.logdict.reduce`.

    Its functions are written for one event and one state: batch elements are reduced by `jax.vmap` of them. They are
    traced, and have to be pure. The result of no events is not `finish` of the first state but NaN, 0 or False, with a
    mask that says so.

    Attributes:
        init: The state of no events, an array or a pytree of arrays; or a function that makes it of a
            `jax.ShapeDtypeStruct` of an event.
        step: Takes a state and the whole value of an event, and returns the state with that event, of the same shapes
            and dtypes.
        merge: Takes the states of some events and of those after them, and returns that of all. That of no events
            changes nothing.
        finish: Takes a state, and returns the result, an array.
        ordered: Whether the result depends on the order of the events, for `lox.testing.check_reduction`, which
            tells whether these functions are as described.

    Raises:
        lox.LogValueError: When it is used: a function returns something else than described.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> norm = lox.reductions.Reduction(
    ...     init=jnp.float32(0),
    ...     step=lambda state, x: state + jnp.sum(x * x),
    ...     merge=jnp.add,
    ...     finish=jnp.sqrt,
    ... )
    >>> def f(xs):
    ...     return jax.lax.map(lambda x: lox.log({"x": x})["x"], xs)
    >>> _, logs = lox.spool(f, reduce=norm)(jnp.array([[3.0, 0.0], [0.0, 4.0]]))
    >>> logs["x"]
    Array([5.], dtype=float32)
    """

    init: Any
    step: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    ordered: bool = False

    def __repr__(self) -> str:
        return f"lox.reductions.Reduction(step={getattr(self.step, '__qualname__', self.step)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Own(Stepwise):
    """A reduction that a user has defined."""

    own: Reduction

    pool = False
    saves = "Log less of the value, or keep less of it"

    def __repr__(self) -> str:
        return repr(self.own)

    @property
    def is_ordered(self) -> bool:  # type: ignore[override]
        return self.own.ordered

    def start(self, shape: tuple[int, ...], dtype: Any) -> Any:
        init = self.own.init
        found = init(jax.ShapeDtypeStruct(shape, dtype)) if callable(init) else init
        try:
            state = jax.tree.map(jnp.asarray, found)
        except TypeError as error:
            raise LogValueError(f"The state of {self} is an array or a tree of arrays, got {found!r}.") from error
        if not jax.tree.leaves(state):
            raise LogValueError(f"The state of {self} has no arrays: init is {init!r}.")
        return state

    def bytes_of(self, shape: tuple[int, ...], dtype: Any, batch_shape: tuple[int, ...]) -> int:
        leaves = jax.tree.leaves(jax.eval_shape(lambda: self.start(shape, dtype)))
        return math.prod(batch_shape) * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

    def add(self, state: Any, values: Any, happened: Any, shape: tuple[int, ...]) -> Any:
        step = _batched(self.own.step, values.ndim - 1 - len(shape))

        def one(state: Any, event: Any) -> tuple[Any, None]:
            value, happened = event
            new = self._alike("step", step(state, value), state)
            if happened is not None:
                new = jax.tree.map(lambda new, old: where(happened, new, old), new, state)
            return new, None

        if values.shape[-1] == 1:
            return one(state, (values[..., 0], None if happened is None else happened[..., 0]))[0]
        events = jax.tree.map(lambda array: jnp.moveaxis(array, -1, 0), (values, happened))
        return jax.lax.scan(one, state, events)[0]

    def join(self, first: Any, second: Any, batch_ndim: int) -> Any:
        return self._alike("merge", _batched(self.own.merge, batch_ndim)(first, second), first)

    def value(self, state: Any, shape: tuple[int, ...], dtype: Any, batch_ndim: int) -> Any:
        found = _batched(self.own.finish, batch_ndim)(state)
        if not isinstance(found, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
            raise LogValueError(f"finish of {self} returns an array, got {found!r}.")
        return jnp.asarray(found)

    def _alike(self, function: str, new: Any, state: Any) -> Any:
        """The new state, which has to have the types of the old one."""
        here, there = (jax.tree.map(_type, each) for each in (new, state))
        if here != there:
            raise LogValueError(f"{function} of {self} returns a state of {here}, but init is one of {there}.")
        return jax.tree.map(jnp.asarray, new)


def _type(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _batched(function: Callable[..., Any], ndim: int) -> Callable[..., Any]:
    for _ in range(ndim):
        function = jax.vmap(function)
    return function
