"""Audits the functions that a program compiles, without a change to the program."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable, Iterable
from types import CellType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, Self

import jax
import numpy as np

from lox._audit._audit import audit
from lox._audit._capture import name_of
from lox._audit._location import is_internal, is_users, located
from lox._audit._reached import plain
from lox._audit._report import Report
from lox._audit._signature import definition


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A call that JAX compiled: a function that makes the jitted function again, and the abstract arguments."""

    again: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Recorder:
    """Remembers the functions that `jax.jit` compiles while this context is entered, each at its first compilation.

    It replaces `jax.jit`, so that functions that were jitted before are not seen. What is jitted is a function that
    remembers its arguments when JAX traces it, and calls the function of the user; `jax.jit` returns what it always
    does. Functions that are called by others that are compiled are audited with these, and not alone.

    Attributes:
        left_out: The names of functions that JAX could trace, and that raised when they were traced again: they have
            no report.
    """

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._compiled: list[Compiled] = []
        self._audited: list[Report] = []
        self._raised: dict[Any, Compiled] = {}
        self._seen: set[Any] = set()
        self._remembering = functools.lru_cache(maxsize=1024)(self._new_remembering)
        self._lock = threading.Lock()
        self._inside = threading.local()

    def __enter__(self) -> Self:
        self._jit, self._widest = jax.jit, _widest()
        jax.jit = self._recording(jax.jit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        jax.jit = self._jit

    def reports(self, raised: bool = False) -> list[Report]:
        """The reports of the functions that were compiled since this was called last.

        Args:
            raised: Of those that never were, as they raised when they were traced, too.
        """
        with self._lock:
            compiled, self._compiled = self._compiled, []
            audited, self._audited = self._audited, []
            failed = list(self._raised.values()) if raised else []
            self._raised.clear()
        self._inside.deep = True
        try:
            reports = [self._report(each) for each in compiled] + [self._report(each, True) for each in failed]
        finally:
            self._inside.deep = False
        return [*audited, *(report for report in reports if report is not None)]

    def _report(self, compiled: Compiled, raised: bool = False) -> Report | None:
        jitted = compiled.again()
        report = audit(jitted)(*compiled.args, **compiled.kwargs)
        if report.error is not None and not raised:  # JAX could trace it before: what it needs has changed since.
            self.left_out.append(report.name)
            return None
        own = is_users(definition(jitted).file) or any(
            is_users(place.of_user.file) for _, place in located(report.program)
        )
        report = report.of_users()
        return report if own or report.found else None

    def _recording(self, jit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(jit)
        def recording(*args: Any, **kwargs: Any) -> Any:
            if not args:
                return functools.partial(recording, **kwargs)
            fun, *rest = args
            if not callable(fun) or _is_of_jax(fun):
                return jit(fun, *rest, **kwargs)
            try:  # The same function for the same function, so that JAX finds what it compiled for it.
                remembering = self._remembering(fun, jit, tuple(rest), tuple(sorted(kwargs.items())))
            except TypeError:  # An argument has no hash, as a list of numbers has none.
                remembering = self._new_remembering(fun, jit, tuple(rest), tuple(kwargs.items()))
            return jit(remembering, *rest, **kwargs)

        return recording

    def _new_remembering(
        self, fun: Callable[..., Any], jit: Callable[..., Any], args: tuple[Any, ...], options: tuple[Any, ...]
    ) -> Callable[..., Any]:
        again = functools.partial(jit, fun, *args, **dict(options))

        @functools.wraps(fun)
        def remembering(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "deep", False):
                return fun(*args, **kwargs)
            remember = self._taken(fun, again, args, kwargs)
            self._inside.deep = True
            try:
                result = fun(*args, **kwargs)
                remember(raised=False)
            except Exception:
                remember(raised=True)
                raise
            finally:
                self._inside.deep = False
            return result

        return remembering

    def _taken(
        self, fun: Callable[..., Any], again: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., None]:
        """Looks at the arguments of a call, which a function may change, and remembers it when its end is known."""
        try:
            key, (args, kwargs) = makeup(fun), jax.tree.map(_abstract, (args, kwargs))
        except Exception:  # noqa: BLE001  (the program that is audited goes on)
            self.left_out.append(name_of(fun))
            return lambda raised: None

        compiled = Compiled(again, args, kwargs)

        def remember(raised: bool) -> None:
            with self._lock:
                if key in self._seen or (raised and key in self._raised):
                    return
                if raised:
                    self._raised[key] = compiled
                    return
                self._seen.add(key)
                self._raised.pop(key, None)
                if not self._is_bound_to_its_call(fun):
                    self._compiled.append(compiled)
                    return
            try:
                report = self._report(compiled)
            except Exception:  # noqa: BLE001  (the program that is audited goes on)
                self.left_out.append(name_of(fun))
            else:
                with self._lock:
                    self._audited += [] if report is None else [report]

        return remember

    def _is_bound_to_its_call(self, fun: Callable[..., Any]) -> bool:
        """A function can be traced only in its call: in a context of JAX, or of the library whose object it is."""
        code = getattr(type(fun).__call__, "__code__", None)  # Of an object, and not of a function.
        is_of_library = code is not None and not is_users(code.co_filename)
        return is_of_library or not jax.sharding.get_abstract_mesh().empty or _widest() != self._widest


LARGEST = 1000
"""As many objects are looked at to tell functions of the same code apart."""


def makeup(value: Any, seen: set[int] | None = None) -> Hashable:
    """An equal value for functions that trace alike: for the same code over the same functions, flags and types."""
    seen = set() if seen is None else seen
    if value is None or isinstance(value, (bool, str, type)):
        return value
    kind: Any = getattr(value, "__code__", None) or type(value)
    if id(value) in seen or len(seen) >= LARGEST:
        return kind  # type: ignore[no-any-return]
    seen.add(id(value))
    return (kind, *(makeup(each, seen) for each in _parts(value)))


def _parts(value: Any) -> Iterable[Any]:
    """The objects that a function or an object was made from."""
    match value:
        case FunctionType():
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            return (*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        case MethodType():
            return value.__func__, value.__self__
        case functools.partial():
            return value.func, *value.args, *value.keywords.items()
        case dict():
            return [part for item in value.items() for part in item]
        case list() | tuple():
            return value
        case jax.Array() | np.ndarray() | ModuleType():
            return ()
        case _:
            return [part for item in getattr(value, "__dict__", {}).items() for part in item]


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (it raises where the variable has no value yet)
    except ValueError:
        return False
    return True


def not_audited(names: Iterable[str]) -> list[str]:
    """Lines that say which functions were left out."""
    return [
        f"{name} is not audited: it cannot be traced again with the arguments of its first call"
        for name in dict.fromkeys(names)
    ]


def _widest() -> np.dtype:
    """The dtype that JAX has for an int64 in the context of now."""
    return jax.dtypes.canonicalize_dtype(np.int64)


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
