"""`lox.logdict`, the container of logs that `lox.spool` returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from lox import _datasets, _notebook, _tables
from lox._arguments import names
from lox._events import NOWHERE
from lox._exceptions import LogValueError, StructureError
from lox._keys import on_host
from lox._patterns import first_match, names_of
from lox._reduce import AnyReduction, apart, as_timeline, fold, read_reduction
from lox._reductions import Reducer
from lox._site import calling_site
from lox._timeline import Timeline, canonical, groups, refined
from lox._unmatched import unmatched, warn_unmatched

if TYPE_CHECKING:
    import pandas
    import xarray


class _View(dict[Any, Any]):
    """A dict that belongs to a logdict, and cannot be changed.

    Args:
        items: Its keys and values.
        missing: The message for a key that it does not have, before a list of those that it has.
    """

    def __init__(self, items: Iterable[tuple[Any, Any]], missing: str = "no such key: {!r}"):
        super().__init__(items)
        self._missing = missing

    def __missing__(self, key: Any) -> NoReturn:
        raise KeyError(f"{self._missing.replace('{!r}', repr(key))}; the names are: {_listed(self)}")

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "The data, steps, mask, dropped and distributions of a logdict cannot be changed. Make another one: "
            "lox.logdict(data, steps, mask, dropped, distributions), or logs.filter, logs | other, jax.tree.map."
        )

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return dict, (list(self.items()),)


def _flat_view(view: _View) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    keys = tuple(sorted(view))
    return [(jax.tree_util.DictKey(key), view[key]) for key in keys], keys


jax.tree_util.register_pytree_with_keys(
    _View,
    _flat_view,
    lambda keys, values: dict(zip(keys, values, strict=True)),
)


@dataclasses.dataclass(frozen=True)
class _Structure:
    """The timelines of a logdict, as the part of a pytree's structure that JAX's errors show."""

    timelines: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        return f"timelines {self.timelines} (logs.ungrouped() has one structure for logs of the same keys)"


class logdict(Mapping[str, Any]):
    """A frozen mapping from key to the events that were logged under it, and a pytree.

    `logs["loss"]` has one leading event axis, in the order in which the events happened, also when there is one
    event. Under `spool(vmap(f))` the batch axis follows it.

    Keys form a *timeline* when every log call that has one of them has all. They share their counters, mask and count
    of dropped events: `logs.steps["step"]["loss"] is logs.steps["step"]["accuracy"]`. As a pytree, a logdict has each
    shared array once. Which keys form a timeline depends on the program alone. A logdict that is made by hand has a
    timeline for each key.

    Args:
        data: The events by key, shape `(events, *batch, *shape)`.
        steps: The counters by name and key, shape `(events, *batch)`.
        mask: Masks of events that happened, by key, shape `(events, *batch)`; a key is absent when all did.
        dropped: Numbers of events that a bounded buffer dropped, by key, shape `batch`; absent without a bound.
        distributions: By key, `lox.reductions.histogram(edges)` or `lox.reductions.quantiles(qs)`, where the values
            are what it makes of events: see `distributions`.

    Raises:
        LogValueError: There are counters, a mask or a count of dropped events for a key without events, or a
            distribution is neither a histogram nor quantiles along an axis.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> logs = lox.logdict({"loss": jnp.array([3.0, 2.0, 1.0])}, {"step": {"loss": jnp.arange(3)}})
    >>> logs.slice(1)["loss"].tolist(), logs.slice(1).steps["step"]["loss"].tolist()
    ([2.0, 1.0], [1, 2])
    >>> logs.reduce("mean")["loss"].tolist()
    [2.0]
    """

    _parts: tuple[tuple[Any, ...], ...]

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        mask: Mapping[str, Any] | None = None,
        dropped: Mapping[str, Any] | None = None,
        distributions: Mapping[str, Any] | None = None,
    ):
        data, steps, mask, dropped = (part or {} for part in (data, steps, mask, dropped))
        made: dict[str, dict[str, Any]] = {key: {} for key in data}
        for key, reduction in (distributions or {}).items():
            if not isinstance(reduction, Reducer) or not reduction.is_distribution:
                raise LogValueError(
                    "The distributions of a logdict are lox.reductions.histogram(edges) and "
                    f"lox.reductions.quantiles(qs) with several qs, got {reduction!r} for {key!r}."
                )
            made.setdefault(key, {})[key] = reduction
        counters: dict[str, dict[str, Any]] = {key: {} for key in data}
        for part in (mask, dropped, made, *steps.values()):
            for key in part:
                if key not in data:
                    raise LogValueError(
                        f"a logdict has counters, a mask, dropped events or a distribution of {key!r}, but no events"
                    )
        for name, of in steps.items():
            for key, step in of.items():
                counters[key][name] = step
        self.__dict__["_parts"] = tuple(
            _part(Timeline({key: value}, counters[key], mask.get(key), dropped.get(key), made[key]))
            for key, value in data.items()
        )

    @functools.cached_property
    def _timelines(self) -> tuple[Timeline, ...]:
        return tuple(Timeline(*part) for part in self._parts)

    @property
    def _order(self) -> tuple[str, ...]:
        """The keys in order, where that is not the order of the timelines. It is no part of the pytree."""
        return self.__dict__.get("_keys", ())  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a logdict cannot be changed: {name!r}")

    def __reduce__(self) -> Any:
        return of_timelines, (self._timelines, self._order)

    @property
    def timelines(self) -> tuple[tuple[str, ...], ...]:
        """Keys of each timeline, in an order that depends on the keys alone.

        >>> import jax
        >>> import lox
        >>> @lox.spool
        ... def f(x):
        ...     lox.log({"loss": x, "rate": 0.1}, step=0)
        ...     return lox.log({"epoch": 1})
        >>> f(2.0)[1].timelines
        (('epoch',), ('loss', 'rate'))
        """
        return canonical(each.values for each in self._timelines)

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """Events by key, shape `(events, *batch, *shape)`. It cannot be changed."""
        items = {key: value for each in self._timelines for key, value in each.values.items()}
        if self._order:
            items = {key: items[key] for key in [*self._order, *items] if key in items}
        return _View(items.items(), "no events of the key {!r} were logged")

    @functools.cached_property
    def steps(self) -> dict[str, dict[str, Any]]:
        """Counters by name and key, shape `(events, *batch)`. It cannot be changed."""
        found: dict[str, dict[str, Any]] = {}
        for each in self._timelines:
            for name, step in each.steps.items():
                found.setdefault(name, {}).update(dict.fromkeys(each.values, step))
        of_name = {
            name: _View(of.items(), f"the counter {name!r} was not logged with the key {{!r}}")
            for name, of in found.items()
        }
        return _View(of_name.items(), "no counter {!r} was logged")

    @functools.cached_property
    def mask(self) -> dict[str, Any]:
        """Masks of events that happened, by key, shape `(events, *batch)`; a key is absent when all did."""
        of_key = ((key, each.mask) for each in self._timelines if each.mask is not None for key in each.values)
        return _View(of_key, "{!r} has no mask: all of its events happened, or it is no key")

    @functools.cached_property
    def dropped(self) -> dict[str, Any]:
        """Numbers of events that a bounded buffer dropped, by key, shape `batch`; absent without a bound."""
        of_key = ((key, each.dropped) for each in self._timelines if each.dropped is not None for key in each.values)
        return _View(of_key, "{!r} has no count of dropped events: it has no bound, or it is no key")

    @functools.cached_property
    def distributions(self) -> dict[str, Any]:
        """Reduction by which a key got its values, where it was a histogram or quantiles; other keys are absent.

        Its attribute `edges`, or `qs`, says what the last axis of the values is. Loggers and `lox plot` draw such a key
        as a distribution. It is part of the structure of the pytree, and what `jax.tree.map` returns has it too;
        whether two logdicts are equal does not depend on it.

        >>> import jax.numpy as jnp
        >>> import lox
        >>> logs = lox.logdict({"loss": jnp.array([-1.0, 0.5, 99.0])}).reduce(lox.reductions.histogram([0, 1, 10]))
        >>> logs.distributions["loss"], logs.distributions["loss"].edges
        (lox.reductions.histogram([0, 1, 10]), (0, 1, 10))
        """
        items = distributions_of(self).items()
        return _View(items, "{!r} has no distribution: no histogram or quantiles made its values, or it is no key")

    def ungrouped(self) -> logdict:
        """Return the same logs with a timeline for each key.

        Logdicts with equal keys and different timelines are different pytrees. Ungrouped, they have the same structure,
        so that `jax.tree.map` and the branches of `jax.lax.cond` take both.

        Returns:
            A logdict of the same arrays, where keys do not share counters, mask or count of dropped events.
        """
        return of_timelines(refined(self._timelines, lambda key: key), self._order)

    def __getitem__(self, key: str) -> Any:
        """Return the events of a key, shape `(events, *batch, *shape)`.

        Args:
            key: A key of the logs.

        Returns:
            The array.

        Raises:
            KeyError: No events of the key were logged. The message has the keys that there are.
        """
        try:
            return self.data[key]
        except KeyError:
            raise KeyError(f"no events of the key {key!r} were logged; the keys are: {_listed(self.data)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and libraries ask for these.
            raise AttributeError(f"a logdict has no attribute {name!r}", name=name, obj=self)
        if name in self.data:
            advice = f"write logs[{name!r}]"
        else:
            advice = f"its keys are: {_listed(self.data)}"
        raise AttributeError(f"a logdict has no attribute {name!r}; {advice}", name=name, obj=self)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        """Say whether the same happened in both: equal events, counters, masks and numbers of dropped events.

        Shapes and dtypes must be equal. Values and counters of events that the mask says did not happen do not
        matter. A NaN that was logged differs from every value, as in NumPy. Needs concrete values.
        """
        if not isinstance(other, logdict):
            return NotImplemented
        mine, theirs = _undescribed(self.ungrouped()), _undescribed(other.ungrouped())
        if jax.tree.structure(mine) != jax.tree.structure(theirs):
            return False
        of_key = {key: timeline for timeline in theirs._timelines for key in timeline.values}
        return all(_equal(timeline, of_key[key]) for timeline in mine._timelines for key in timeline.values)

    def __repr__(self) -> str:
        return f"logdict({', '.join(f'{key}: {_shown(value)}' for key, value in self.data.items())})"

    def _repr_html_(self) -> str:
        return _notebook.table(self)

    def __add__(self, other: logdict) -> logdict:
        """The events of `self`, then those of `other`. Their timelines are as far together as in both.

        Raises:
            StructureError: A key has another shape or dtype, or other counters, batch axes or another distribution, in
                `other`.
        """
        if not isinstance(other, logdict):
            return NotImplemented
        parts = [*self._timelines, *other._timelines]
        return of_timelines(
            functools.reduce(_joined, (parts[place].only(keys) for place in places))
            for keys, places in groups(part.values for part in parts).items()
        )

    def __or__(self, other: logdict) -> logdict:
        """The keys of both; a key of both comes from `other`."""
        if not isinstance(other, logdict):
            return NotImplemented
        mine = self.filter(lambda key: key not in other.data)
        return of_timelines((*mine._timelines, *other._timelines))

    def filter(self, argnames: str | Iterable[str] | Callable[[str], bool]) -> logdict:
        """Return the logs of some keys.

        Args:
            argnames: Keys, patterns such as ``"train/*"``, or a function that is true of the keys to return.

        Returns:
            New logs, with these keys only.

        Warns:
            SelectionWarning: A name or pattern matches no key.
        """
        if callable(argnames):
            wanted = {key for key in self if argnames(key)}
        else:
            asked = names(argnames, "argnames", "")
            self._warn_of_unmatched("filter", "argnames", asked)
            chosen = names_of(asked)
            wanted = {key for key in self if key in chosen}
        kept = (each.only(wanted) for each in self._timelines)
        return of_timelines((each for each in kept if each.values), self._order)

    def prefix(self, prefix: str) -> logdict:
        """Return the same logs, with `prefix` before each key.

        Args:
            prefix: Text that is put before each key as it is, such as ``"train/"``.

        Returns:
            A logdict of the same arrays by their new keys.
        """
        renamed = (timeline.renamed(lambda key: prefix + key) for timeline in self._timelines)
        return of_timelines(renamed, [prefix + key for key in self._order])

    def slice(self, start: int | None = None, stop: int | None = None, step: int | None = None) -> logdict:
        """Return a range of the event axis of every key, counted like Python's `slice`.

        Args:
            start: The first event. A negative number counts from the end.
            stop: The event after the last one.
            step: The distance between events.

        Returns:
            A logdict with that range of the events, counters and mask of each key.
        """
        chosen = slice(start, stop, step)
        return map_timelines(lambda timeline: timeline.map(lambda array: array[chosen]), self)

    def reduce(self, reduction: AnyReduction | Mapping[str, AnyReduction]) -> logdict:
        """Reduce the events of each key that happened to one.

        The counters become those of the last event, or of the first for "first". A key without an event in some
        batch element is masked out there. Without a mask, all batch elements have as many events: "count" is one
        number. `dropped` stays: the results leave out events beyond a bound.

        Args:
            reduction: "mean", "sum", "std", "var", "min", "max", "first", "last" or "count", an object of
                `lox.reductions`, or a mapping from key to one of these; keys that are not in the mapping stay
                as they are. Its keys are names or patterns such as ``"train/*"``; the name itself comes first, then
                the first pattern that matches.

        Returns:
            A logdict with one event of each reduced key. Quantiles, bins and the like are a further axis, the last one.

        Raises:
            LogValueError: There is no such reduction.

        Warns:
            SelectionWarning: A name or pattern matches no key.
        """
        asked = reduction if isinstance(reduction, Mapping) else dict.fromkeys(self, reduction)
        self._warn_of_unmatched("reduce", "reduction", asked)
        matching = {key: first_match(asked, key) for key in self}
        of_key = {key: read_reduction(asked[found]) for key, found in matching.items() if found is not None}
        together = {key: apart(each, key) for key, each in of_key.items()}
        parts = refined(self._timelines, together.get)
        reduced = (_reduced(part, of_key) if of_key.keys() & part.values else part for part in parts)
        return of_timelines(reduced, self._order)

    def _warn_of_unmatched(self, method: str, keyword: str, asked: Iterable[str]) -> None:
        for name in unmatched(asked, self.data) if self.data else ():
            warn_unmatched(f"logdict.{method}", keyword, name, self.data, calling_site())

    def valid(self, key: str) -> np.ndarray[Any, Any]:
        """Return the events of a key that happened, as a NumPy array of shape `(happened, *shape)`.

        If different events happened in different batch elements, those of all elements follow each other, event by
        event. Typed PRNG keys are returned as their data, which names their implementation:
        `jax.random.wrap_key_data(data, impl=data.impl)` are the keys.

        Args:
            key: A key of the logs.

        Returns:
            The events, shape `(happened, *shape)`, in the dtype of the key.

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
        """Return the events that happened as a table. Needs the extra `pandas`.

        The long table has a row for each number. Its columns are `key`, `event`, `axis_0` ... for the further axes of
        the events (missing where an event has fewer), the counters (missing where a key has none), and `value`, in
        the dtype to which NumPy promotes those of all keys: beside floats, integers beyond 2**53 are rounded.

        The wide table has a row for each step, and a column for each key, so that it plots and joins as it is. The
        index is the counter `step`, or `event`, the number of the event, when no key has it. Rows are sorted by it;
        events of a key without steps among others with steps come last, where the index is missing. When a key
        logs more than once in a step, the step has several rows. The elements of batches have rows of their own,
        with the levels `batch`, or `batch_0`, `batch_1`, ..., of the index; the counters or the mask show which axes
        these are. A value with axes has a column for each number, such as `grads[0]` and `weights[2, 3]`. Further
        counters are columns. If a key has no event in a row, numbers are NaN, and integers and booleans are missing, in
        a pandas dtype that has missing values.

        In both, small floats such as bfloat16 become float32, and typed PRNG keys their words.

        Args:
            wide: Whether it is the wide table.

        Returns:
            The long table, or the wide one.

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
        """Write the table of `to_pandas` to a Parquet file. Needs the extra `parquet`.

        Args:
            path: The file, which is replaced when it exists.
            wide: Whether it is the wide table.

        Raises:
            LogDataError: A key is complex, which Parquet has no type for. A `TypeError`.
        """
        _tables.write_parquet(self, path, wide)

    def to_xarray(self) -> xarray.Dataset:
        """Return the logs as a dataset with a variable for each key. Needs the extra `xarray`.

        The dimensions of a variable are `event`, `batch` (or `batch_0`, `batch_1`, ...) for the batch axes, told as
        in `to_pandas`, and ``"KEY_axis_0"`` ... for those of its values. The counters are coordinates, along `event`
        alone where the batch elements agree, so that `dataset.swap_dims(event="step")` works. Where keys differ in
        their counters or their number of events, those that are alike share `event_KEY`, `step_KEY` and so on, named
        after the first of them. An event that did not happen is NaN, for which integers and booleans become
        float64.

        Returns:
            The dataset.

        Raises:
            LogValueError: Two variables would have one name. A `ValueError`.
        """
        return _datasets.dataset(self)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


def _shown(value: Any) -> str:
    """The dtype and the shape of an array, and another leaf as it is."""
    if _notebook.is_array(value):
        return f"{value.dtype.name}{list(value.shape)}"
    return repr(value)


def _equal(first: Timeline, second: Timeline) -> bool:
    """Say whether the same happened in two timelines of the same keys and counters."""
    whole = [(first.mask, second.mask), (first.dropped, second.dropped)]
    if not all(_equal_arrays(mine, theirs) for mine, theirs in whole if mine is not None):
        return False
    parts = (first.values, second.values), (first.steps, second.steps)
    return all(_equal_arrays(mine[name], theirs[name], first.mask) for mine, theirs in parts for name in mine)


def _equal_arrays(first: Any, second: Any, where: Any = None) -> bool:
    are_arrays = _notebook.is_array(first), _notebook.is_array(second)
    if not all(are_arrays):  # jax.tree.map makes others.
        return not any(are_arrays) and bool(first == second)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    equal = first == second
    if isinstance(equal, bool):  # Abstract values.
        return equal
    if where is not None and _notebook.is_array(where) and where.shape == equal.shape[: where.ndim]:
        equal |= jnp.expand_dims(jnp.logical_not(where), tuple(range(where.ndim, equal.ndim)))
    return bool(jnp.all(equal))


def _joined(first: Timeline, second: Timeline) -> Timeline:
    for key in first.values:
        values = first.values[key], second.values[key]
        if values[0].shape[1:] != values[1].shape[1:] or values[0].dtype != values[1].dtype:
            here, there = (f"{value.dtype.name}{list(value.shape)}" for value in values)
            raise StructureError(f"The events of {key!r} cannot be joined: {here} and {there}.")
        if first.steps.keys() != second.steps.keys():
            raise StructureError(f"The events of {key!r} cannot be joined: their counters differ.")
        if first.distributions.get(key) != second.distributions.get(key):
            made = first.distributions.get(key), second.distributions.get(key)
            raise StructureError(
                f"The events of {key!r} cannot be joined: their distributions are {made[0]!r} and {made[1]!r}."
            )
    with_batch = [(step, second.steps[name]) for name, step in first.steps.items()]
    if first.mask is not None and second.mask is not None:
        with_batch.append((first.mask, second.mask))
    for mine, theirs in with_batch:
        if mine.shape[1:] != theirs.shape[1:]:
            shapes = f"{list(mine.shape)} and {list(theirs.shape)}"
            raise StructureError(
                f"The events of {min(first.values)!r} cannot be joined: batch axes of {shapes} differ."
            )
    masks = [each.mask for each in (first, second) if each.mask is not None]
    mask = None
    if masks:
        batch = masks[0].shape[1:]
        mask = jnp.concatenate(
            [
                jnp.ones((len(next(iter(each.values.values()))), *batch), bool) if each.mask is None else each.mask
                for each in (first, second)
            ]
        )
    dropped = [each.dropped for each in (first, second) if each.dropped is not None]
    return Timeline(
        {key: jnp.concatenate([value, second.values[key]]) for key, value in first.values.items()},
        {name: jnp.concatenate([step, second.steps[name]]) for name, step in first.steps.items()},
        mask,
        sum(dropped[1:], dropped[0]) if dropped else None,
        first.distributions,
    )


def _undescribed(logs: logdict) -> logdict:
    """The logs without their distributions."""
    return map_timelines(lambda timeline: dataclasses.replace(timeline, distributions={}), logs)


def _reduced(timeline: Timeline, reductions: Mapping[str, Reducer[Any]]) -> Timeline:
    batch_ndim = 0 if timeline.mask is None else timeline.mask.ndim - 1
    found = {
        key: fold(reductions[key], value, timeline.mask, timeline.steps, NOWHERE, batch_ndim)
        for key, value in timeline.values.items()
    }
    made = {key: each for key, each in timeline.distributions.items() if reductions[key].keeps(each)}
    reduced = as_timeline(found)
    return dataclasses.replace(reduced, dropped=timeline.dropped, distributions=made | reduced.distributions)


def _flat(logs: logdict) -> tuple[tuple[Any], _Structure]:
    # One child, so that JAX compares the structures, and shows them, before it counts the timelines.
    return (tuple(sorted(logs._parts, key=lambda part: min(part[0]))),), _Structure(logs.timelines)


def _flat_with_keys(logs: logdict) -> tuple[tuple[tuple[Any, Any]], _Structure]:
    (child,), structure = _flat(logs)
    return ((jax.tree_util.GetAttrKey("timelines"), child),), structure


def of_timelines(timelines: Iterable[Timeline], order: Iterable[str] = ()) -> logdict:
    """Make a logdict of timelines that have no key in common.

    Args:
        timelines: The timelines.
        order: Keys that come first, in this order; those that the timelines do not have are skipped. The others are in
            the order of the timelines.
    """
    logs = _of_parts((), (tuple(map(_part, timelines)),))
    if first := tuple(order):
        logs.__dict__["_keys"] = first
    return logs


def _part(timeline: Timeline) -> tuple[Any, ...]:
    """The parts of a timeline, as JAX sees them; the fewer there are, the faster JAX makes a logdict."""
    parts = timeline.values, timeline.steps, timeline.mask, timeline.dropped
    if timeline.distributions:
        return *parts, timeline.distributions
    return parts if timeline.steps or timeline.mask is not None or timeline.dropped is not None else parts[:1]


def distributions_of(logs: logdict) -> dict[str, Any]:
    """The distributions of logs, without their timelines, whose making would cost more than a small event."""
    return {key: each for part in logs._parts for of in part[4:] for key, each in of.items()}


def described(logs: logdict, distributions: Callable[[str], Reducer[Any] | None]) -> logdict:
    """The logs with the distributions that a function has for their keys."""

    def of(timeline: Timeline) -> Timeline:
        found = {key: each for key in timeline.values if (each := distributions(key)) is not None}
        return dataclasses.replace(timeline, distributions=found) if found else timeline

    return map_timelines(of, logs)


def map_timelines(function: Callable[[Timeline], Timeline], logs: logdict) -> logdict:
    """Apply a function to each timeline."""
    return of_timelines(map(function, logs._timelines), logs._order)


def _of_parts(structure: Any, children: tuple[Any]) -> logdict:
    logs = object.__new__(logdict)  # JAX makes one at each call of a compiled function, and the rest when it is needed.
    (logs.__dict__["_parts"],) = children
    return logs


jax.tree_util.register_pytree_with_keys(logdict, _flat_with_keys, _of_parts, flatten_func=_flat)
