"""Audits the functions that a program compiles, without a change to the program."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import jax

from lox._audit._audit import audit
from lox._audit._capture import name_of
from lox._audit._location import is_internal, is_users
from lox._audit._report import Report
from lox._audit._signature import definition
from lox._audit._sources import plain


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A function that was compiled, with its arguments: each array as a `jax.ShapeDtypeStruct`."""

    jitted: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Recorder:
    """Remembers the functions that `jax.jit` compiles while this context is entered, each at its first compilation.

    It replaces `jax.jit`, so that functions that were jitted before are not seen. What is jitted is a function that
    remembers its arguments when JAX traces it, and calls the function of the user; `jax.jit` returns what it always
    does. Functions that are called by others that are compiled are audited with these, and not alone.

    Attributes:
        left_out: The names of functions that raised when they were traced again, and have no report.
    """

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._compiled: list[Compiled] = []
        self._seen: set[Any] = set()
        self._lock = threading.Lock()
        self._inside = threading.local()

    def __enter__(self) -> Self:
        self._jit = jax.jit
        jax.jit = self._recording(jax.jit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        jax.jit = self._jit

    def reports(self) -> list[Report]:
        """The reports of the functions that were compiled since this was called last."""
        with self._lock:
            compiled, self._compiled = self._compiled, []
        self._inside.deep = True
        try:
            return [report for each in compiled if (report := self._report(each)) is not None]
        finally:
            self._inside.deep = False

    def _report(self, compiled: Compiled) -> Report | None:
        found = audit(compiled.jitted)
        report = found(*compiled.args, **compiled.kwargs)
        if report.error is not None:  # JAX could trace it before: what it needs has changed since.
            self.left_out.append(report.name)
            return None
        report = report.of_users()
        own = is_users(definition(compiled.jitted).file)
        return report if own or report.found else None

    def _recording(self, jit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(jit)
        def recording(*args: Any, **kwargs: Any) -> Any:
            if not args:
                return functools.partial(recording, **kwargs)
            fun, *rest = args
            if not callable(fun) or _is_of_jax(fun):
                return jit(fun, *rest, **kwargs)
            return jit(self._remembering(fun, functools.partial(jit, fun, *rest, **kwargs)), *rest, **kwargs)

        return recording

    def _remembering(self, fun: Callable[..., Any], again: Callable[[], Any]) -> Callable[..., Any]:
        written = plain(fun)
        key = fun if written is None else written.__code__

        @functools.wraps(fun)
        def remembering(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "deep", False):
                return fun(*args, **kwargs)
            self._remember(key, name_of(fun), again, args, kwargs)
            self._inside.deep = True
            try:
                return fun(*args, **kwargs)
            finally:
                self._inside.deep = False

        return remembering

    def _remember(
        self, key: Any, name: str, again: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with self._lock:
            if _identity(key) in self._seen:
                return
            self._seen.add(_identity(key))
        try:
            args, kwargs = jax.tree.map(_abstract, (args, kwargs))
            compiled = Compiled(again(), args, kwargs)
        except Exception:  # noqa: BLE001  (the program that is audited goes on)
            self.left_out.append(name)
            return
        with self._lock:
            self._compiled.append(compiled)


def _identity(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return id(key)
    return key


def _abstract(leaf: Any) -> Any:
    """The type of what JAX traces; anything else, such as a static argument, as it is."""
    if not isinstance(leaf, jax.core.Tracer):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _is_of_jax(fun: Callable[..., Any]) -> bool:
    """Whether a function is of JAX or of lox, as those that JAX jits when it is imported."""
    written = plain(fun)
    return written is not None and is_internal(written.__code__.co_filename)
