"""`lox.logdict`, the container of logs that `lox.spool` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _datasets, _tables
from lox._arguments import names
from lox._blocks import one_event
from lox._events import NOWHERE
from lox._exceptions import LogValueError, StructureError
from lox._keys import on_host
from lox._reduce import Reduction, check_reduction, fold, result

if TYPE_CHECKING:
    import pandas
    import xarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class logdict(Mapping[str, Any]):
    """A frozen mapping from key to the events that were logged under it, and a pytree.

    `logs["loss"]` has one leading event axis, in the order in which the events happened, also when there is one
    event. Under `spool(vmap(f))` the batch axis follows it.

    Attributes:
        data: The events by key, shape `(events, *batch, *shape)`.
        steps: The counters by name and key, shape `(events, *batch)`: `logs.steps["step"]["loss"]`.
        mask: Which events happened, by key, shape `(events, *batch)`; a key is absent when all did.
        dropped: How many events a bounded buffer dropped, by key, shape `batch`; absent when there was no bound.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> logs = lox.logdict({"loss": jnp.array([3.0, 2.0, 1.0])}, {"step": {"loss": jnp.arange(3)}})
    >>> logs.slice(1)["loss"].tolist(), logs.slice(1).steps["step"]["loss"].tolist()
    ([2.0, 1.0], [1, 2])
    >>> logs.reduce("mean")["loss"].tolist()
    [2.0]
    """

    data: dict[str, Any]
    steps: dict[str, dict[str, Any]]
    mask: dict[str, Any]
    dropped: dict[str, Any]

    def __init__(
        self,
        data: dict[str, Any] | None = None,
        steps: dict[str, dict[str, Any]] | None = None,
        mask: dict[str, Any] | None = None,
        dropped: dict[str, Any] | None = None,
    ):
        # JAX makes one at each call of a compiled function, and four calls of a frozen `__setattr__` take longer.
        fields = self.__dict__
        fields["data"] = {} if data is None else data
        fields["steps"] = {} if steps is None else steps
        fields["mask"] = {} if mask is None else mask
        fields["dropped"] = {} if dropped is None else dropped

    def __getitem__(self, key: str) -> Any:
        try:
            return self.data[key]
        except KeyError:
            known = ", ".join(map(repr, sorted(self.data))) or "none"
            raise KeyError(f"no events of the key {key!r} were logged; the keys are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        """Whether two logdicts hold equal arrays of equal shapes and dtypes. Needs concrete values."""
        if not isinstance(other, logdict):
            return NotImplemented
        (mine, tree), (theirs, other_tree) = jax.tree.flatten(self), jax.tree.flatten(other)
        return tree == other_tree and all(
            a.shape == b.shape and a.dtype == b.dtype and bool(jnp.all(a == b))
            for a, b in zip(mine, theirs, strict=True)
        )

    def __repr__(self) -> str:
        keys = ", ".join(f"{key}: {value.dtype.name}{list(value.shape)}" for key, value in self.data.items())
        return f"logdict({keys})"

    def _select(self, keys: Iterable[str], rename: Callable[[str], str] = str) -> logdict:
        chosen = list(keys)

        def pick(values: Mapping[str, Any]) -> dict[str, Any]:
            return {rename(key): values[key] for key in chosen if key in values}

        steps = {name: picked for name, values in self.steps.items() if (picked := pick(values))}
        return logdict(pick(self.data), steps, pick(self.mask), pick(self.dropped))

    def __add__(self, other: logdict) -> logdict:
        """The events of `self`, then those of `other`.

        Raises:
            StructureError: A key has another shape, dtype or other counters in `other`.
        """
        if not isinstance(other, logdict):
            return NotImplemented
        joined = self | other
        steps = {name: dict(values) for name, values in joined.steps.items()}
        data, mask, dropped = dict(joined.data), dict(joined.mask), dict(joined.dropped)
        for key in self.data.keys() & other.data.keys():
            first, second = self.data[key], other.data[key]
            if first.shape[1:] != second.shape[1:] or first.dtype != second.dtype:
                raise StructureError(
                    f"The events of {key!r} cannot be joined: {first.dtype.name}{list(first.shape)} and "
                    f"{second.dtype.name}{list(second.shape)}."
                )
            counters = [{name for name, values in logs.steps.items() if key in values} for logs in (self, other)]
            if counters[0] != counters[1]:
                raise StructureError(f"The events of {key!r} cannot be joined: their counters differ.")
            data[key] = jnp.concatenate([first, second])
            for name in counters[0]:
                steps[name][key] = jnp.concatenate([self.steps[name][key], other.steps[name][key]])
            masks = [logs.mask[key] for logs in (self, other) if key in logs.mask]
            if masks:
                lanes = masks[0].shape[1:]
                happened = [
                    logs.mask.get(key, jnp.ones((logs.data[key].shape[0], *lanes), bool)) for logs in (self, other)
                ]
                mask[key] = jnp.concatenate(happened)
            if key in self.dropped or key in other.dropped:
                dropped[key] = self.dropped.get(key, 0) + other.dropped.get(key, 0)
        return logdict(data, steps, mask, dropped)

    def __or__(self, other: logdict) -> logdict:
        """The keys of both; a key of both comes from `other`."""
        if not isinstance(other, logdict):
            return NotImplemented
        mine = self._select(key for key in self if key not in other.data)
        steps = {name: mine.steps.get(name, {}) | other.steps.get(name, {}) for name in {**mine.steps, **other.steps}}
        return logdict(mine.data | other.data, steps, mine.mask | other.mask, mine.dropped | other.dropped)

    def filter(self, argnames: str | Iterable[str] | Callable[[str], bool]) -> logdict:
        """Only these keys, or those of which the function is true."""
        if callable(argnames):
            return self._select(key for key in self if argnames(key))
        wanted = set(names(argnames, "argnames", ""))
        return self._select(key for key in self if key in wanted)

    def prefix(self, prefix: str) -> logdict:
        """The same logs, with `prefix` before each key."""
        return self._select(self, lambda key: prefix + key)

    def slice(self, start: int | None = None, stop: int | None = None, step: int | None = None) -> logdict:
        """A range of the event axis of every key, as Python's `slice` counts it."""
        chosen = slice(start, stop, step)

        def cut(values: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value[chosen] for key, value in values.items()}

        return logdict(
            cut(self.data), {name: cut(values) for name, values in self.steps.items()}, cut(self.mask), self.dropped
        )

    def reduce(self, reduction: Reduction | Mapping[str, Reduction]) -> logdict:
        """Reduces the events of each key that happened to one.

        The counters become those of the last event, or of the first for "first". A key of which no event happened
        in some lane is masked out there. Of events without a mask, all lanes have as many: "count" is one number.

        Args:
            reduction: "mean", "sum", "min", "max", "first", "last" or "count", or a mapping from key to one of them;
                keys that are not in the mapping stay as they are.

        Raises:
            LogValueError: There is no such reduction.
        """
        if not isinstance(reduction, Mapping):
            reduction = dict.fromkeys(self, reduction)
        reduced = logdict()
        for key in self:
            part = self._select([key])
            if key in reduction:
                part = part._reduced(key, check_reduction(reduction[key]))
            reduced = reduced | part
        return reduced

    def _reduced(self, key: str, reduction: str) -> logdict:
        value, mask = self.data[key], self.mask.get(key)
        steps = {name: values[key] for name, values in self.steps.items()}
        lanes = 0 if mask is None else mask.ndim - 1
        accumulator = fold(reduction, value, mask, steps, NOWHERE, lanes)
        of_steps = {name: {key: one_event(step)} for name, step in accumulator.steps.items()}
        happened = accumulator.mask()
        of_mask = {} if happened is None else {key: one_event(happened)}
        return logdict({key: one_event(result(accumulator))}, of_steps, of_mask)

    def valid(self, key: str) -> np.ndarray[Any, Any]:
        """The events of a key that happened, as a NumPy array of shape `(happened, *shape)`.

        Where batch elements differ in which events happened, their events follow each other event by event. Of typed
        PRNG keys it returns the data, which names their implementation: `jax.random.wrap_key_data(data,
        impl=data.impl)` are the keys.

        Raises:
            LogValueError: The logs are traced, so that it is not known how many there are.
        """
        if isinstance(self[key], jax.core.Tracer):
            raise LogValueError(
                f"valid({key!r}) inside of a function that JAX traces: how many events happened is known when it has "
                "run. Call it on the logs that the function returns, or use logs.mask with jnp.where."
            )
        value = on_host(self[key])
        mask = self.mask.get(key)
        return value if mask is None else value[np.asarray(mask)]

    def to_pandas(self, *, wide: bool = False) -> pandas.DataFrame:
        """The events that happened as a table. Needs the extra `pandas`.

        The long table has a row for each number. Its columns are `key`, `event`, `axis_0` ... for the further axes of
        the events (missing where an event has fewer), the counters (missing where a key has none), and `value`, in
        the dtype to which NumPy promotes those of all keys: beside floats, integers beyond 2**53 are rounded.

        The wide table has a row for each step, and a column for each key, so that it plots and joins as it is. The
        index is the counter `step`, or `event`, the number of the event, when no key has it. Rows are sorted by it;
        events of a key without steps among others with steps come last, where the index is missing. When a key
        logs more than once in a step, the step has several rows. The lanes of batches have rows of their own,
        with the levels `lane`, or `lane_0`, `lane_1`, ..., of the index; they are told from other axes by the counters
        or the mask that have them too. A value with axes has a column for each number, such as `grads[0]` and
        `weights[2, 3]`. Further counters are columns. Where a key has no event in a row, numbers are NaN, and
        integers and truth values are missing in a dtype of pandas that knows this.

        In both, small floats such as bfloat16 become float32, and typed PRNG keys their words.

        Args:
            wide: Whether it is the wide table.

        Raises:
            LogValueError: Two columns would have one name. A `ValueError`.
            StructureError: Keys differ in another counter at one step, for which the wide table has one cell. A
                `ValueError`.

        >>> import jax.numpy as jnp
        >>> import lox
        >>> steps = {"step": {"loss": jnp.array([0, 10, 20]), "accuracy": jnp.array([10])}}
        >>> logs = lox.logdict({"loss": jnp.array([3.0, 2.0, 1.0]), "accuracy": jnp.array([0.5])}, steps)
        >>> print(logs.to_pandas(wide=True))
              loss  accuracy
        step
        0      3.0       NaN
        10     2.0       0.5
        20     1.0       NaN
        """
        return _tables.wide(self) if wide else _tables.long(self)

    def to_parquet(self, path: str | Path, *, wide: bool = False) -> None:
        """Writes the table of `to_pandas` to a file of Parquet. Needs the extra `parquet`.

        Args:
            path: The file, which is replaced when it is there.
            wide: Whether it is the wide table.

        Raises:
            LogDataError: A key is complex, which Parquet has no type for. A `TypeError`.
        """
        _tables.write_parquet(self, path, wide)

    def to_xarray(self) -> xarray.Dataset:
        """The logs as a dataset with a variable for each key. Needs the extra `xarray`.

        The dimensions of a variable are `event`, `lane` (or `lane_0`, `lane_1`, ...) for the axes of batches, told as
        in `to_pandas`, and ``"KEY_axis_0"`` ... for those of its values. The counters are coordinates, along `event`
        alone where the lanes agree, so that `dataset.swap_dims(event="step")` works. Where keys differ in their
        counters or their number of events, those that are alike share `event_KEY`, `step_KEY` and so on, named after
        the first of them. An event that did not happen is NaN, for which integers and truth values become float64.

        Raises:
            LogValueError: Two variables would have one name. A `ValueError`.
        """
        return _datasets.dataset(self)
