"""A function that is to keep the laws, and the claims that laws make of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox import _logs_in
from lox.testing._compare import Events, Lane, Reference, difference, events, same
from lox.testing._program import Program, Vmap
from lox.testing._reference import reference

Function = Callable[..., Any]


class BrokenLaw(AssertionError):
    """A law does not hold for a function."""


class DoesNotApply(Exception):
    """A law says nothing of a function, for a reason."""


class NothingToCheck(ValueError):
    """A function logs nothing, or no law applies to it."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of a law about one composition of transformations.

    Attributes:
        how: The composition.
        verify: Returns if the claim holds.
        plain: Runs the composition without lox, if there is one that JAX may refuse.

    Raises:
        BrokenLaw: By `verify`, if it does not hold.
        DoesNotApply: By `verify`, if it says nothing of the function.
    """

    how: str
    verify: Callable[[], None]
    plain: Callable[[], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Subject:
    """A function that is to keep the laws, with arguments to call it with.

    Attributes:
        fun: The function.
        lanes: The arguments of several calls, of the same shapes; most laws use the first. Read `args` to call it.
        options: Keywords of `lox.spool`.
        tolerance: How far floats may be apart, relative and absolute.
    """

    fun: Function
    lanes: tuple[tuple[Any, ...], ...]
    options: dict[str, Any]
    tolerance: float

    # -- What is expected ----------------------------------------------------------------------------------------

    @property
    def args(self) -> tuple[Any, ...]:
        """Arguments of one call, which may be donated to it."""
        return jax.tree.map(_copy, self.lanes[0])

    @property
    def bound(self) -> str:
        """Keyword that bounds the events of loops, for messages."""
        name = "max_events" if self.options.get("max_events") else "max_iters"
        return f"{name}={self.options.get(name)}"

    @functools.cached_property
    def alone(self) -> Reference:
        """Results and logs of one call."""
        return self._reference(self.lanes[0])

    @functools.cached_property
    def _references(self) -> tuple[Reference, ...]:
        return (self.alone, *map(self._reference, self.lanes[1:]))

    def _reference(self, args: tuple[Any, ...]) -> Reference:
        if isinstance(self.fun, Program):
            return reference(self.fun, *args)
        out = self.fun(*jax.tree.map(_copy, args))
        _, logs = self.spool(self.fun)(*jax.tree.map(_copy, args))
        for key, dropped in logs.dropped.items():
            if np.any(dropped):
                raise ValueError(
                    f"{self.bound} is too small: {dropped} events of key {key!r} were dropped for the arguments {args}."
                )
        return Reference(out, self.events(logs))

    @functools.cached_property
    def unrolled(self) -> Reference:
        """Results and logs of one call when Python runs the loops and branches, so that lox does not see them."""
        if isinstance(self.fun, Program):
            return self.alone
        out, logs = self.in_python(self.spool(self.fun))(*self.args)
        return Reference(out, self.events(logs))

    def in_python(self, fun: Function) -> Function:
        """Return `fun` with Python to run its loops and branches.

        Args:
            fun: A function.

        Returns:
            The function, whose loops and branches are those of Python, so that lox does not see them.
        """

        def run(*args: Any) -> Any:
            try:
                with jax.disable_jit():
                    return fun(*args)
            except ValueError as error:
                if "disable_jit" in str(error):  # JAX has no scan of length zero then.
                    raise DoesNotApply(str(error)) from None
                raise

        return run

    @functools.cached_property
    def types(self) -> Mapping[str, Any]:
        """Types of the logs that may happen, by key, with the axis of events."""
        return jax.eval_shape(lambda: self.spool(self.fun)(*self.args)[1]).data

    @property
    def keys(self) -> frozenset[str]:
        """Keys that it may log."""
        return frozenset(self.types)

    @functools.cached_property
    def forward(self) -> Subject:
        """Subject without what its backward passes log, which another derivative does once more."""
        backward = {key for site in lox.sites(self.fun)(*self.args) if site.backward for key in site.keys}
        return dataclasses.replace(self, fun=lox.strip(self.fun, argnames=backward)) if backward else self

    def batch(self, batches: int) -> tuple[tuple[Any, ...], Reference]:
        """Return the arguments of a call with this many batch axes, and what it returns and logs.

        Args:
            batches: The number of batch axes.

        Returns:
            The arguments, and the reference.
        """
        if not batches:
            return self.args, self.alone
        if not jax.tree.leaves(self.lanes[0]):
            raise DoesNotApply("the function has no arguments that could be batched")
        rows: tuple[tuple[Any, ...], ...] = self.lanes
        expected = self._references
        if batches == 2:
            (row, first), (reversed_row, second) = _stack(rows, expected), _stack(rows[::-1], expected[::-1])
            rows, expected = (row, reversed_row), (first, second)
        return _stack(rows, expected)

    @functools.cached_property
    def primitives(self) -> frozenset[str]:
        """Names of the primitives in the function, at any depth."""
        return frozenset(eqn.primitive.name for eqn in _logs_in.equations(jax.make_jaxpr(self.fun)(*self.args)))

    @property
    def has_shards(self) -> bool:
        """True if it has a `shard_map`, also one that JAX leaves out where nothing logs in it.

        Returns:
            True if there is one.
        """
        if isinstance(self.fun, Program):
            return any(isinstance(each, Vmap) and each.sharded for each in self.fun.statements())
        return "shard_map" in self.primitives

    def require(self, names: Iterable[str], what: str) -> None:
        """Raise DoesNotApply if the function has none of these primitives.

        Args:
            names: The primitives.
            what: What the law is about, for the message.

        Raises:
            DoesNotApply: The function has none of them.
        """
        if self.primitives.isdisjoint(names):
            raise DoesNotApply(f"the function has no {what}")

    # -- What happens --------------------------------------------------------------------------------------------

    def spool(self, fun: Function, **more: Any) -> Function:
        """Return `lox.spool` with the options of the subject.

        Args:
            fun: A function.
            **more: Further options of `lox.spool`.

        Returns:
            The function that returns `(out, logs)`.
        """
        return lox.spool(fun, **(self.options | more))

    def events(self, logs: lox.logdict, batches: int = 0) -> Events:
        """Return the events that happened, by key and batch element, with this many batch axes around the function.

        Args:
            logs: The logs.
            batches: The number of batch axes.

        Returns:
            The events, by key and batch element.
        """
        return events(logs, {key: self.depth(key, logs, batches) for key in logs})

    def depth(self, key: str, logs: lox.logdict, batches: int = 0) -> int:
        """Return the number of batch axes of a key, with this many around the function.

        Args:
            key: The key.
            logs: Logs that have it.
            batches: The number of batch axes around the function.

        Returns:
            The number of batch axes of the key.
        """
        if key in self._depths:
            return batches + self._depths[key]
        # It is one that only a derivative logs: as far as a mask or a counter tells.
        return max((np.ndim(of[key]) - 1 for of in (logs.mask, *logs.steps.values()) if key in of), default=batches)

    @functools.cached_property
    def _depths(self) -> Mapping[str, int]:
        """The number of batch axes inside the function, by key: those of the mask that a branch gives all of it."""

        def maybe(happens: Any) -> None:
            jax.lax.cond(happens, lambda: (self.fun(*self.args), None)[1], lambda: None)

        _, logs = jax.eval_shape(self.spool(maybe, unify=True), True)
        return {key: len(mask.shape) - 1 for key, mask in logs.mask.items()}

    # -- Claims --------------------------------------------------------------------------------------------------

    def returns(self, how: str, fun: Function) -> Claim:
        """Claim that a function returns what the subject does.

        Args:
            how: The composition, for the message.
            fun: The function, composed.

        Returns:
            The claim.
        """
        return Claim(how, lambda: self.out_is(self.alone.out, fun(*self.args), how))

    def spools(
        self,
        how: str,
        spooled: Function,
        *,
        batches: int = 0,
        axis: int = 0,
        expected: Callable[[], Reference] | None = None,
        args: Sequence[Any] | None = None,
        keys: Collection[str] | None = None,
        times: int = 1,
        plain: Function | None = None,
    ) -> Claim:
        """Claim that a function returns what the subject does, and its logs.

        Args:
            how: The composition.
            spooled: Returns a result and logs.
            batches: Number of batch axes around the function; the logs have the first `axis` of them before the
                axis of events.
            axis: The axis of events.
            expected: What is expected instead.
            args: The arguments instead of those of the subject.
            keys: Which keys to look at; all by default.
            times: How often to call it, the second time with what was compiled.
            plain: The same without lox, if JAX may refuse it.

        Returns:
            The claim.
        """

        def verify() -> None:
            its_args, its_reference = self.batch(batches) if expected is None else ((), expected())
            for _ in range(times):
                out, logs = spooled(*jax.tree.map(_copy, its_args if args is None else tuple(args)))
                self.out_is(its_reference.out, out, how)
                logs = _events_first(logs if keys is None else logs.filter(keys.__contains__), axis)
                self.events_are(its_reference.events, self.events(logs, batches), how)

        return Claim(how, verify, plain and (lambda: plain(*self.batch(batches)[0])))

    def taps(
        self,
        how: str,
        tapped: Callable[[Callable[[lox.logdict], None]], Function],
        *,
        batches: int = 0,
        expected: Callable[[], Reference] | None = None,
        args: Sequence[Any] | None = None,
        keys: Collection[str] | None = None,
        plain: Function | None = None,
    ) -> Claim:
        """Claim that a function returns what the subject does, and hands over its logs to a callback.

        Args:
            how: The composition.
            tapped: Makes the function that hands over its logs to a callback.
            batches: Number of batch axes around the function.
            expected: What is expected instead.
            args: The arguments instead of those of the subject.
            keys: Which keys to look at; all by default.
            plain: The same without lox, if JAX may refuse it.

        Returns:
            The claim.
        """

        def verify() -> None:
            its_args, its_reference = self.batch(batches) if expected is None else ((), expected())
            arrived: list[lox.logdict] = []
            out = tapped(arrived.append)(*jax.tree.map(_copy, its_args if args is None else tuple(args)))
            lox.flush()
            self.out_is(its_reference.out, out, how)
            got: dict[str, dict[Lane, list[Any]]] = {}
            for logs in arrived:
                if logs.mask and not any(np.any(logs.mask.get(key, True)) for key in logs):
                    raise BrokenLaw(f"{how} hands over logs of keys {sorted(logs)} that did not happen.")
                for key, lanes in self.events(logs, batches).items():
                    if keys is not None and key not in keys:
                        continue
                    for lane, happened in lanes.items():
                        got.setdefault(key, {}).setdefault(lane, []).extend(happened)
            self.events_are(its_reference.events, got, how)

        return Claim(how, verify, plain and (lambda: plain(*self.batch(batches)[0])))

    def out_is(self, expected: Any, got: Any, how: str) -> None:
        """Raise BrokenLaw if results differ.

        Args:
            expected: The expected results.
            got: The actual ones.
            how: The composition, for the message.

        Raises:
            BrokenLaw: They differ.
        """
        if jax.tree.structure(expected) != jax.tree.structure(got):
            raise BrokenLaw(f"{how} returns {jax.tree.structure(got)}, not {jax.tree.structure(expected)}.")
        for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(got), strict=True):
            if not same(one, other, self.tolerance):
                where = f" at {jax.tree_util.keystr(path)}" if path else ""
                raise BrokenLaw(f"{how} returns another result{where}: expected {one}, got {other}.")

    def events_are(self, expected: Events, got: Events, how: str) -> None:
        """Raise BrokenLaw if events differ.

        Args:
            expected: The expected events.
            got: The actual ones.
            how: The composition, for the message.

        Raises:
            BrokenLaw: They differ.
        """
        found = difference(expected, got, self.tolerance)
        if found is not None:
            raise BrokenLaw(f"{how} logs something else. {found[0].upper()}{found[1:]}.")


def _copy(leaf: Any) -> Any:
    return jnp.array(leaf, copy=True) if isinstance(leaf, jax.Array) else leaf


def _stack(rows: Sequence[tuple[Any, ...]], expected: Sequence[Reference]) -> tuple[tuple[Any, ...], Reference]:
    """Calls as the batch elements of one."""

    def stack(*leaves: Any) -> Any:
        return jnp.stack([jnp.asarray(leaf) for leaf in leaves])

    lanes: dict[str, dict[Lane, Any]] = {}
    for number, one in enumerate(expected):
        for key, inner in one.events.items():
            lanes.setdefault(key, {}).update({(number, *lane): happened for lane, happened in inner.items()})
    return jax.tree.map(stack, *rows), Reference(jax.tree.map(stack, *(one.out for one in expected)), lanes)


def _events_first(logs: lox.logdict, axis: int) -> lox.logdict:
    def move(values: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), values)

    return lox.logdict(move(logs.data), move(logs.steps), move(logs.mask)) if axis else logs
