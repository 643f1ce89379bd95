"""Which run a log belongs to: the state that a program carries, and the run that the host knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._arguments import path_name
from lox._deliver import DEVICES, INNER, LABEL, SHARDED
from lox._exceptions import LogDataError, LogValueError
from lox._host_values import PlainEvents, plain
from lox._logdict import logdict

Key = tuple[int, ...]
"""The words of a PRNG key."""

WIDE = ("int64", "uint64", "float64", "complex128")
"""The dtypes that JAX has only when it is told so."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The run that a program logs to: a pytree of arrays, that `vmap` may batch and `jit` may trace.

    Attributes:
        words: The data of the run's PRNG key, shape `(words,)`.
        config: The numbers and arrays that describe the run, by name; nested ones have names like "optimizer/lr".
        wide: The dtypes of those of 64 or 128 bits, by name, which JAX would shorten. They are in `config` as words of
            32 bits along a last axis.
        notes: What describes the run and is no array, by name.
    """

    words: Any
    config: dict[str, Any]
    wide: tuple[tuple[str, str], ...] = dataclasses.field(default=(), metadata={"static": True})
    notes: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata={"static": True})

    @property
    def name(self) -> str:
        """The name of the run, by which loggers and `lox.load` know it.

        Raises:
            LogValueError: The state is traced, or of several runs. A `ValueError`.
        """
        if isinstance(self.words, jax.core.Tracer) or np.ndim(self.words) != 1:
            raise LogValueError("A run has a name outside of jit and vmap, where its key is one and has a value.")
        return _name(self.words)


def _name(words: Iterable[int]) -> str:
    return "".join(f"{word:08x}" for word in words)


def describer(state: State) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What makes of the `config` of a state, in arrays of NumPy, what describes the run; it holds no arrays itself."""
    wide, notes = state.wide, dict(state.notes)

    def described(config: Mapping[str, Any]) -> dict[str, Any]:
        whole = {name: np.ascontiguousarray(config[name]).view(dtype)[..., 0] for name, dtype in wide if name in config}
        return {**config, **whole, **notes}

    return described


@dataclasses.dataclass
class Run:
    """One run, as a logger on the host knows it.

    Attributes:
        key: The words of its PRNG key.
        name: The same as hexadecimal digits, eight for each, unless it has a title.
        config: What describes it, by name: numbers and arrays as arrays of NumPy, and text.
        seen: How many events of each key were written by this process.
        title: Another name for it.
        batch_ndim: The number of batch axes of each key that is being written: one for each `vmap` inside the run, and
            those of `where=`. They follow the event axis.
    """

    key: Key
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    seen: dict[str, int] = dataclasses.field(default_factory=dict)
    title: str = ""
    batch_ndim: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.title or _name(self.key)

    def steps(self, logs: logdict, key: str, first: int | None = None) -> np.ndarray:
        """The number of each event of a key: its `step` counter, or, when it has none, its place in the run.

        Batch elements inside of the run share it: it is that of the first batch element in which the event
        happened.
        """
        if key in logs.steps.get("step", {}):
            return PlainEvents.of(logs, key).counter("step")
        first = self.seen.get(key, 0) if first is None else first
        return np.arange(first, first + len(logs[key]))


def state_of(key: Any, config: Mapping[str, Any]) -> State:
    """A state.

    Raises:
        LogDataError: The key is none. A `TypeError`.
        LogValueError: Two values have one name. A `ValueError`.
    """
    words = _words(key)
    arrays: dict[str, Any] = {}
    wide, notes = [], []
    leaves, _ = jax.tree_util.tree_flatten_with_path(dict(config), is_leaf=lambda leaf: leaf is None)
    named: dict[str, Any] = {}
    for path, leaf in leaves:
        if path_name(path) in named:
            raise LogValueError(f"Two values that describe a run are called {path_name(path)!r} after flattening.")
        named[path_name(path)] = leaf
    for name, leaf in named.items():
        array = _array(leaf)
        if array is None:
            note = plain(leaf)
            notes.append((name, note if isinstance(note, (str, int, type(None))) else repr(note)))
        elif array.dtype.name in WIDE and not isinstance(array, jax.Array):
            wide.append((name, array.dtype.name))
            arrays[name] = np.array(array, array.dtype.name)[..., None].view(np.uint32)
        else:
            arrays[name] = array
    return State(words, arrays, tuple(wide), tuple(notes))


def _array(leaf: Any) -> Any:
    """What describes a run as an array, which may be traced; None of what JAX has no arrays of."""
    if isinstance(leaf, jax.Array):
        return leaf
    if not isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray)):
        return None
    array = np.asarray(leaf)
    known = array.dtype.name in WIDE or jnp.issubdtype(array.dtype, np.number) or array.dtype == bool
    return array if known and array.dtype.name not in ("longdouble", "clongdouble") else None


def _words(key: Any) -> Any:
    if _is_seed(key):
        key = jax.random.key(key)
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        words, shape = jax.random.key_data(key), key.shape
    elif hasattr(key, "dtype") and key.dtype == np.uint32 and np.ndim(key) > 0:
        words, shape = jnp.asarray(key), np.shape(key)[:-1]
    else:
        raise LogDataError(
            f"A logger's run is named by a PRNG key, as of jax.random.key, or by a seed; got {key!r} of type "
            f"{type(key).__name__}."
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
    """Whether a key is an integer, traced or not.

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


def labels(words: Any) -> dict[str, Any]:
    """The labels that tell the host which run an event is of."""
    return {f"{LABEL}{place:02}": words[place] for place in range(words.shape[0])}


class Arrived(NamedTuple):
    """Where logs come from.

    Attributes:
        devices: On how many devices their program is; 0 when they come from none.
        axis: The axis of shards; 0 when there is none.
        shard: The number of the shard, where each has runs of its own.
        differs: Whether other shards may have other logs.
    """

    devices: int = 0
    axis: int = 0
    shard: int | None = None
    differs: bool = False


def arrived(logs: logdict) -> Arrived:
    """Where logs with labels come from."""
    devices, place = _label(logs, DEVICES), _label(logs, SHARDED)
    if place is None:
        return Arrived(devices or 0)
    return Arrived(devices or 0, max(place, 0), None if place > 0 else -1 - place, True)


def _label(logs: logdict, name: str) -> int | None:
    """The label of this name, if there is one, which is the same for all logs."""
    return next((int(label.flat[0]) for label in logs.steps.get(name, {}).values()), None)


def by_run(logs: logdict) -> Iterator[tuple[Key, logdict]]:
    """Takes logs with labels apart into those of each run.

    An event of a run has no axes of batches around its logger, and a mask that says whether it happened in the batch
    element. The label of its batch axes inside stays among its counters.

    Raises:
        LogDataError: Two batch elements are of one run. A `TypeError`.
    """
    names = sorted(name for name in logs.steps if name.startswith(LABEL) and name[len(LABEL) :].isdigit())
    counters = {name: of for name, of in logs.steps.items() if name == INNER or not name.startswith(LABEL)}
    words_of = logs.steps[names[0]]
    if not logs.mask and all(words_of[key].ndim == 1 for key in logs.data):  # There is one run, and all happened.
        key = next(iter(logs.data))
        yield tuple(logs.steps[name][key][0].item() for name in names), logdict(logs.data, counters)
        return
    axis = arrived(logs).axis
    runs: dict[Key, tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]] = {}
    for key, value in logs.items():
        words = np.stack([logs.steps[name][key] for name in names], -1)  # (events, *batch, words)
        found = set()
        for lane in np.ndindex(words.shape[1:-1]):
            run: Key = tuple(words[(0, *lane)].tolist())
            if run in found:
                raise LogDataError(
                    "Two batch elements log to one run. Give each a key of its own: "
                    "vmap(lambda key, x: logger.tap(f, logger.init(key))(x))(jax.random.split(key, n), xs)."
                )
            found.add(run)
            here: tuple[Any, ...] = (slice(None), *lane)
            if axis:
                here = (*here[:axis], slice(None), *here[axis:])
            of_value, of_steps = value[here], {name: of[key][here] for name, of in counters.items() if key in of}
            data, steps, mask = runs.setdefault(run, ({}, {}, {}))
            if key in logs.mask:
                happened = logs.mask[key][here]
                if not happened.any():
                    continue
                mask[key] = happened
            data[key] = of_value
            for name, step in of_steps.items():
                steps.setdefault(name, {})[key] = step
    for run, (data, steps, mask) in runs.items():
        if data:
            yield run, logdict(data, steps, mask)
