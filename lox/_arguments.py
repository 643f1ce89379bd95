"""Reading the arguments of lox's functions: names, and the data of a call of `lox.log`."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._events import Event, Site
from lox._exceptions import LogDataError, LogValueError
from lox._site import Where

_SCALARS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
_KNOWN = frozenset("?bhilqBHILQefdFD")
"""The dtypes of NumPy, by their characters, that JAX has as well."""

ARRAY_LIKE = (*_SCALARS, np.ndarray, np.generic)


RESERVED_COUNTERS = {
    "tag": "tags= gives a log its tags",
    "argnames": "argnames= of the handler selects keys, as in lox.spool(f, argnames=...)",
    "every": "interval= of lox.spool and lox.tap takes every k-th event",
    "interval": "interval= of lox.spool and lox.tap takes every k-th event",
    "reduce": "reduce= of lox.spool reduces events",
    "mask": "where= says whether the event happens",
    "when": "where= says whether the event happens",
}
"""Names that counters cannot have, since they are keywords of something else, each with the keyword that was meant."""


def check_counters(function: str, counters: Iterable[str], where: str) -> None:
    """Refuse names of counters that are keywords of something else.

    Args:
        function: The function of lox that got them.
        counters: The names.
        where: The place of the call, as messages have it.

    Raises:
        LogValueError: There is such a name. A `ValueError`.
    """
    for name in counters:
        if name in RESERVED_COUNTERS:
            raise LogValueError(
                f"{function} got a counter named {name!r}{where}: {RESERVED_COUNTERS[name]}. Give a counter another "
                "name."
            )


def names(value: str | Iterable[str], what: str, where: str) -> tuple[str, ...]:
    """A name or an iterable of names as a tuple; a bare string is one name."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise LogDataError(f"{what} must be a string or an iterable of strings, got {describe(value)}{where}.")
    found = tuple(value)
    for name in found:
        if not isinstance(name, str):
            raise LogDataError(f"{what} must be strings, got {describe(name)}{where}.")
    return found


def read_event(
    function: str,
    data: Any,
    tags: str | Iterable[str],
    prefix: str,
    where: Any,
    steps: dict[str, Any],
) -> Event:
    """The event that a call of `function` in the user's program logs; it has no values when the call gave none."""
    site, call = _calling_site(tags), _Call(function)
    if not isinstance(prefix, str):
        raise LogDataError(f"prefix must be a string, got {describe(prefix)}, at {site}.")
    call.check_names(steps)
    values = call.values(data, prefix)
    if not values:
        return event_of({}, {}, None, site)
    mask = None if where is None else call.mask(where, values)
    return event_of(values, call.counters(steps, mask), mask, site)


def event_of(values: dict[str, Any], steps: dict[str, Any], mask: Any, site: Site) -> Event:
    """An event of a log call, whose mask, if it has one, has the batch axes of the event."""
    if mask is None:
        return Event(values, steps, None, (), site)
    return Event(values, steps, mask, (), site, batch_ndim=mask.ndim, optional=Where(), where_ndim=mask.ndim)


def read_context(
    function: str, tags: str | Iterable[str], prefix: str, steps: dict[str, Any]
) -> tuple[Site, dict[str, Any]]:
    """Read the place of a call of `function` in the user's program, with its tags, and its counters.

    No operation of JAX runs: a weakly typed array stays one.
    """
    site, call = _calling_site(tags), _Call(function, computes=False)
    if not isinstance(prefix, str):
        raise LogDataError(f"prefix must be a string, got {describe(prefix)}, at {site}.")
    call.check_names(steps)
    if "where" in steps:
        raise LogValueError(f"{function} takes no where=, which is of a log call, at {site}.")
    return site, call.counters(steps)


def read_mapping(function: str, data: Any, prefix: str, site: Site) -> dict[str, Any]:
    """The values of a mapping that a function of the user's, at `site`, returned to `function`."""
    return _Call(function, found=site).values(data, prefix)


def read_values(function: str, data: Any, steps: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values and counters that a call of `function` in the user's program gives to a logger.

    No operation of JAX runs: arrays of NumPy stay on the host, and weakly typed ones weakly typed.
    """
    call = _Call(function, computes=False)
    call.check_names(steps)
    values = call.values(data, "")
    return values, call.counters(steps) if values else {}


def read_counters(function: str, steps: dict[str, Any]) -> dict[str, Any]:
    """The counters that a call of `function` in the user's program gives to logs that exist already."""
    call = _Call(function, computes=False)
    call.check_names(steps)
    return call.counters(steps)


def _calling_site(tags: str | Iterable[str]) -> Site:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("lox._", "lox.loggers._")):
        frame = frame.f_back
    code = frame.f_code
    if type(tags) is not tuple or tags:
        tags = names(tags, "tags", f", at {code.co_filename}:{frame.f_lineno} ({code.co_name})")
    return _site(code.co_filename, frame.f_lineno, code.co_name, tags)


_site = functools.lru_cache(maxsize=4096)(Site)  # An eager program gets there at each call.


@dataclasses.dataclass(slots=True)
class _Call:
    """A call of a function of lox, whose arguments are read before it returns.

    Attributes:
        function: The name of the function, for the messages of errors.
        computes: Whether operations of JAX may run.
        found: The line of the user's program, where it is not the one that is calling.
    """

    function: str
    computes: bool = True
    found: Site | None = None

    @property
    def site(self) -> Site:
        """The line of the user's program that is calling. Only errors need it: to look for it takes time."""
        return self.found or _calling_site(())

    def check_names(self, steps: dict[str, Any]) -> None:
        if not RESERVED_COUNTERS.keys().isdisjoint(steps):
            check_counters(self.function, steps, f", at {self.site}")

    def values(self, data: Any, prefix: str) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise LogDataError(
                f"{self.function} takes a mapping from key to arrays, got {describe(data)}, at {self.site}. "
                f'Write {self.function}({{"name": value}}).'
            )
        values: dict[str, Any] = {}
        for key, leaf in self._flatten(data, ""):
            name = prefix + key
            if "Tracer(" in name:
                raise LogDataError(
                    f"{self.function} got the key {name!r}, which has the text of a traced value in it, at "
                    f"{self.site}. Keys are part of the program, and values are known when it runs: log it as a "
                    "counter, as step=i."
                )
            if name in values:
                raise LogValueError(
                    f"{self.function} got two values for the key {name!r} after flattening, at {self.site}."
                )
            values[name] = self.array(leaf, "key", name)
        return values

    def _flatten(self, data: Mapping[Any, Any], path: str) -> Iterator[tuple[str, Any]]:
        for key, value in data.items():
            if not isinstance(key, str):
                raise LogDataError(
                    f"{self.function} takes string keys, got {describe(key)} under {path or 'the top'!r}, "
                    f"at {self.site}."
                )
            name = f"{path}{key}"
            if value is None:
                raise LogDataError(
                    f"{self.function} got None for key {name!r}, at {self.site}. Leave the key out instead."
                )
            if isinstance(value, jax.Array):
                yield name, value
                continue
            if isinstance(value, Mapping):
                yield from self._flatten(value, f"{name}/")
                continue
            leaves, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda leaf: isinstance(leaf, Mapping))
            for entries, leaf in leaves:
                below = path_name(entries)
                full = f"{name}/{below}" if below else name
                if isinstance(leaf, Mapping):
                    yield from self._flatten(leaf, f"{full}/")
                else:
                    yield full, leaf

    def array(self, value: Any, what: str, name: str | None = None) -> Any:
        """An argument as an array; `what` and `name` say which argument it is."""
        if isinstance(value, jax.Array):
            return strongly_typed(value) if self.computes else value
        try:
            if type(value) in _SCALARS:
                return _scalar(value)
            if isinstance(value, (np.ndarray, np.generic)):
                if value.dtype.kind in "iu":
                    _check_range(value)
                if not self.computes and value.dtype.char in _KNOWN:
                    return np.array(value).astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
            if isinstance(value, ARRAY_LIKE) or hasattr(value, "__jax_array__"):
                return strongly_typed(jnp.array(value))  # A copy: the memory of NumPy's arrays may change.
        except (TypeError, ValueError, OverflowError) as error:
            given = f"{describe(value)} for {_argument(what, name)}, at {self.site}"
            raise LogDataError(f"{self.function} got {given}: {error}") from error
        given = f"{describe(value)} for {_argument(what, name)}, at {self.site}"
        raise LogDataError(f"{self.function} takes array-likes, got {given}.")

    def mask(self, where: Any, values: dict[str, Any]) -> Any:
        mask = self.array(where, "where")
        if mask.dtype != bool:
            raise LogDataError(
                f"where= of {self.function} must be boolean, got {mask.dtype.name}{list(mask.shape)}, at {self.site}. "
                "Write a comparison, as in where=n > 0."
            )
        for key, value in values.items():
            if value.shape[: mask.ndim] != mask.shape:
                raise LogValueError(
                    f"where= of {self.function} has the shape {list(mask.shape)} and the key {key!r} the shape "
                    f"{list(value.shape)}, at {self.site}. The shape of where= is (), or the first axes of every value."
                )
        return mask

    def counters(self, steps: dict[str, Any], mask: Any = None) -> dict[str, Any]:
        return {name: self.counter(name, value, mask) for name, value in steps.items()}

    def counter(self, name: str, value: Any, mask: Any) -> Any:
        counter = self.array(value, "step", name)
        kind = counter.dtype.kind
        is_number = kind in "iuf" or (kind != "c" and jnp.issubdtype(counter.dtype, np.number))  # The first is faster.
        if not is_number or (counter.shape != () and (mask is None or counter.shape != mask.shape)):
            or_masked = f" or a number for each element of where=, of shape {list(mask.shape)}" if np.ndim(mask) else ""
            raise LogValueError(
                f"The step {name!r} of {self.function} must be a scalar number{or_masked}, got "
                f"{counter.dtype.name}{list(counter.shape)}, at {self.site}."
            )
        return counter


def _argument(what: str, name: str | None) -> str:
    return what if name is None else f"{what} {name!r}"


def _scalar(value: Any) -> np.ndarray[Any, Any]:
    """A Python number in the dtype that `jax.numpy` gives it. It stays on the host, which takes no dispatch."""
    dtype = jax.dtypes.canonicalize_dtype(_SCALARS[type(value)])
    if dtype.kind in "bi":
        return np.asarray(value, dtype)
    with np.errstate(over="ignore"):
        return np.asarray(value, dtype)


def _check_range(value: Any) -> None:
    """Refuse integers that the dtype which JAX gives them cannot hold.

    Raises:
        OverflowError: There are some.
    """
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if dtype != value.dtype and np.size(value):
        limits = np.iinfo(dtype)
        if np.min(value) < limits.min or np.max(value) > limits.max:
            raise OverflowError(f"{dtype.name}, which JAX has for {value.dtype.name}, does not hold all of its numbers")


def path_name(path: Any) -> str:
    """The key of a leaf in a pytree, such as ``"layers/0"``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def strongly_typed(array: Any) -> Any:
    """The array, which may be weakly typed as a Python scalar is: all of one key have the type of their dtype."""
    is_weak = array.weak_type if hasattr(array, "weak_type") else jax.typeof(array).weak_type  # The first is faster.
    return jax.lax.convert_element_type(array, array.dtype) if is_weak else array


def untyped(array: Any) -> Any:
    """The array; of typed PRNG keys, their data."""
    return jax.random.key_data(array) if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def keywords(value: Any, what: str, of: str) -> dict[str, Any]:
    """Keywords of a function that an argument holds; None holds none."""
    if value is not None and not isinstance(value, Mapping):
        raise LogDataError(f"{what} is a mapping of keywords of {of}, got {describe(value)}.")
    return dict(value or {})


def describe(value: Any) -> str:
    """A value and its type, as messages have them."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
