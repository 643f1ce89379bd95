"""The run that a program logs to: a pytree of arrays, which `jit` may trace and `vmap` may batch."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lox._arguments import describe, path_name, untyped
from lox._deliver import LABEL
from lox._exceptions import LogDataError, LogValueError
from lox._host_values import has_address, plain
from lox.loggers._copies import kept
from lox.loggers._identity import identity_of, identity_of_title, stored_names

WIDE = ("int64", "uint64", "float64", "complex128")
"""The dtypes that JAX has only when it is told so."""

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Static:
    """The part of a state that is no array.

    Attributes:
        wide: The dtypes of the numbers of 64 or 128 bits, by name, which JAX would shorten. They are in the state's
            `config` as words of 32 bits along a last axis.
        texts: The values of the config that are no arrays, by name.
        title: The name that was given to the run, which then identifies it.
        notes: Text that is stored with the run and does not identify it.
    """

    wide: tuple[tuple[str, str], ...] = ()
    texts: tuple[tuple[str, Any], ...] = ()
    title: str | None = None
    notes: str | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The run that a program logs to: a pytree of arrays, which `vmap` may batch and `jit` may trace.

    Attributes:
        words: The data of the run's PRNG key, shape `(words,)`.
        config: The numbers and arrays that describe the run, by name; nested ones have names like "optimizer/lr".
        static: The part that is not an array.
    """

    words: Any
    config: dict[str, Any]
    static: Static = dataclasses.field(metadata={"static": True})

    @property
    def name(self) -> str:
        """Name of the run, by which loggers and `lox.load` know it. Waits until its key and config are computed.

        Raises:
            LogValueError: The state is traced, or of several runs. A `ValueError`.
        """
        if self._is_traced or np.ndim(self.words) != 1:
            raise LogValueError("A run has a name outside of jit and vmap, where its key is one and has a value.")
        return self._describe().name

    @property
    def _is_traced(self) -> bool:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self))

    @functools.cached_property
    def _batch(self) -> tuple[int, ...]:
        """The shape of an array of runs; empty for one run."""
        return np.shape(self.words)[:-1]

    @functools.cached_property
    def _number(self) -> int:
        """The group of the logs of this object; a copy has another one."""
        return next(_numbers)

    @functools.cached_property
    def _describe(self) -> Callable[[], Description]:
        """Gets the description of a state that is not traced; for the logger's thread, also when its arrays are gone.

        Where this is first asked for, they are still there.
        """
        return functools.cache(
            functools.partial(_read, kept((self.words, *self.config.values())), [*self.config], self.static)
        )

    def _number_and_read(self) -> None:
        """Number the state, in the same order in all processes, and read its arrays, before they are donated."""
        _ = self._number, self._describe

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Description:
    """The identity and config of a run, on the host.

    Attributes:
        words: The data of its PRNG key.
        config: Its config, by name: numbers and arrays as arrays of NumPy, and text.
        title: The name that was given to it.
        notes: Text that is stored with it.
    """

    words: tuple[int, ...]
    config: dict[str, Any]
    title: str | None = None
    notes: str | None = None

    @classmethod
    def made(cls, words: Any, config: Mapping[str, Any], static: Static) -> Description:
        """Make the description of the parts of a state, of arrays of NumPy."""
        whole = {name: np.ascontiguousarray(config[name]).view(dtype)[..., 0] for name, dtype in static.wide}
        described = {**config, **whole, **dict(static.texts)}
        described = {name: described[name] for name in sorted(described)}
        return cls(tuple(words.tolist()), described, static.title, static.notes)

    @functools.cached_property
    def identity(self) -> str:
        """32 hexadecimal digits, the same for the same run in any program."""
        return self.content if self.title is None else identity_of_title(self.title)

    @functools.cached_property
    def content(self) -> str:
        """As many digits, the same for the same key and config."""
        return identity_of(self.words, self.config)

    @property
    def names(self) -> Iterator[str]:
        """The names by which it may be stored, the best first."""
        return stored_names(self.words, self.config, self.title, self.identity)

    @functools.cached_property
    def name(self) -> str:
        return next(self.names)


def _read(read: Callable[[], list[np.ndarray]], names: Sequence[str], static: Static) -> Description:
    words, *config = read()
    return Description.made(words, dict(zip(names, config, strict=True)), static)


F = TypeVar("F", bound=Callable[..., Any])


def says_what_is_config(init: F) -> F:
    """Decorate `Logger.init` so that an error says where a value of the config goes that is called as an argument."""

    @functools.wraps(init)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        for name, _ in zip(("key", "config"), args, strict=False):
            if name in kwargs:
                raise LogDataError(f"init got {name}= by its position and by its name. {_of_config(name)}")
        return init(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def _of_config(name: str) -> str:
    return f"A value of the config that is called {name!r} goes into config={{{name!r}: ...}}."


def state_of(key: Any, config: Any, values: Mapping[str, Any], title: Any = None, notes: Any = None) -> State:
    """A state of the arguments of `Logger.init`.

    Raises:
        LogDataError: The key is none, the config no mapping, or the title or notes no text. A `TypeError`.
        LogValueError: Two values have one name, or the title is empty. A `ValueError`.
    """
    if config is not None and not isinstance(config, Mapping):
        raise LogDataError(
            f"config= of init is a mapping from names to values, got {describe(config)}. {_of_config('config')}"
        )
    for name, text in (("name", title), ("notes", notes)):
        if text is not None and not isinstance(text, str):
            raise LogDataError(f"{name}= of init is text, got {describe(text)}. {_of_config(name)}")
    if title == "":
        raise LogValueError("name= of init is empty.")
    both = sorted(set(config or {}) & set(values))
    if both:
        raise LogValueError(f"{both[0]!r} is in the config and a keyword of init as well.")
    words = _words(key)
    arrays: dict[str, Any] = {}
    wide, texts = [], []
    leaves, _ = jax.tree_util.tree_flatten_with_path({**(config or {}), **values}, is_leaf=lambda leaf: leaf is None)
    named: dict[str, Any] = {}
    for path, leaf in leaves:
        if path_name(path) in named:
            raise LogValueError(f"Two values that describe a run are called {path_name(path)!r} after flattening.")
        named[path_name(path)] = leaf
    for name, leaf in named.items():
        array = _array(leaf)
        if array is None:
            texts.append((name, _text(name, leaf)))
        elif array.dtype.name in WIDE and not isinstance(array, jax.Array):
            wide.append((name, array.dtype.name))
            arrays[name] = np.array(array, array.dtype.name)[..., None].view(np.uint32)
        else:
            arrays[name] = array
    state = State(words, arrays, Static(tuple(wide), tuple(texts), title, notes))
    if not state._is_traced and not any(map(_is_global, jax.tree.leaves(state))):
        state._number_and_read()
    return state


def _text(name: str, value: Any) -> Any:
    """Convert a value of a config that is no array to text, an integer or None.

    Raises:
        LogDataError: Its text differs between processes.
    """
    found = plain(value)
    if isinstance(found, (str, int, type(None))):
        return found
    text = repr(found)
    if has_address(text):
        raise LogDataError(
            f"The value {name!r} of a run is {text}, of type {type(value).__name__}: its text differs between "
            f"processes, and cannot tell runs apart. Give what describes it, such as {name}='relu'."
        )
    return text


def _is_global(array: Any) -> bool:
    return isinstance(array, jax.Array) and not array.is_fully_addressable


def _array(leaf: Any) -> Any:
    """Return a value of a config as an array, which may be traced; None if JAX has no such arrays."""
    if isinstance(leaf, jax.Array):
        return leaf
    if not isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray)):
        return None
    array = np.asarray(leaf)
    is_number = array.dtype == bool or jnp.issubdtype(array.dtype, np.number)
    return array if is_number and array.dtype.char not in "gGm" else None  # Nor has it longdouble and timedelta64.


def _words(key: Any) -> Any:
    if _is_seed(key):
        key = jax.random.key(key)
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        words, shape = jax.random.key_data(key), key.shape
    elif hasattr(key, "dtype") and key.dtype == np.uint32 and np.ndim(key) > 0:
        words, shape = jnp.asarray(key), np.shape(key)[:-1]
    else:
        raise LogDataError(
            f"A run has a PRNG key, as of jax.random.key, or a seed; got {key!r} of type {type(key).__name__}."
        )
    refuse_several(shape)
    return words


def refuse_several(shape: tuple[int, ...]) -> None:
    """Refuses an array of keys.

    Raises:
        LogDataError: The shape is that of an array. A `TypeError`.
    """
    if shape:
        raise LogDataError(
            f"A logger's state is of one run; got an array of keys of shape {shape}. Make it inside of the function "
            "that vmap maps: vmap(lambda key, x: logger.tap(f, logger.init(key))(x))(keys, xs)."
        )


def _is_seed(key: Any) -> bool:
    """Say whether a key is an integer, traced or not.

    Raises:
        LogDataError: It is one that JAX would cut.
    """
    if isinstance(key, bool) or not isinstance(key, (int, np.integer, np.ndarray, jax.Array)):
        return False
    if not isinstance(key, int):
        return jnp.issubdtype(key.dtype, np.integer) and key.ndim == 0
    if jax.dtypes.canonicalize_dtype(np.int64) == np.int32 and not -(2**31) <= key < 2**32:
        raise LogDataError(f"A seed has 32 bits unless jax_enable_x64 is set, got {key}.")
    return True


# -- groups ------------------------------------------------------------------------------------------------------------

TRACED = np.uint32(2**31)
"""The bit that is set in the second word of a group that is a hash."""


def labels(state: State) -> dict[str, Any]:
    """The labels that tell the host which run an event is of: the words of a group.

    Outside traced programs, it is a number, which the host knows without waiting; in them, a hash of the state.
    """
    if state._is_traced:
        layout = [(name, array.shape, array.dtype.name) for name, array in sorted(state.config.items())]
        salt = hashlib.sha256(repr((layout, state.static)).encode()).digest()[:8]
        words = _hashed((state.words, state.config), np.frombuffer(salt, np.uint32))
    else:
        words = np.array([state._number & 0xFFFFFFFF, state._number >> 32], np.uint32)
    return {f"{LABEL}{place}": words[place] for place in range(2)}


@jax.jit
def _hashed(arrays: Any, salt: Any) -> Any:
    """A hash of the bits of arrays, as two words; the second one has the bit `TRACED`."""
    words = [salt[0], salt[1]]
    for place, array in enumerate(jax.tree.leaves(arrays)):
        bits = _bits(array)
        numbered = bits ^ _mixed(jnp.arange(bits.size, dtype=np.uint32).reshape(bits.shape) + np.uint32(place))
        words = [_mixed(word ^ jnp.sum(_mixed(numbered ^ word), dtype=np.uint32)) for word in words]
    return jnp.stack([words[0], words[1] | TRACED])


def _bits(array: Any) -> Any:
    """The bits of an array as words of 32 bits."""
    array = untyped(array)
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag])
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    elif array.dtype.itemsize < 4 or array.dtype == bool:
        array = array.astype(np.uint32)
    return jax.lax.bitcast_convert_type(array, np.uint32)


def _mixed(words: Any) -> Any:
    """Each word with its bits mixed: the last step of MurmurHash3 by A. Appleby, a bijection."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def number_of(words: Any) -> int:
    """The group of these two words."""
    return int(words[0]) | int(words[1]) << 32
