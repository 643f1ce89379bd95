"""Arrays of random keys as arrays of numbers: what is in slices, stacks and reshapes of keys and of their data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._audit._program import Step, Value
from lox._audit._rules import Rules, primitives

DRAWS = primitives("random_bits", "random_gamma")
SPLITS = primitives("random_split")
USES = DRAWS | SPLITS
CHOICES = primitives("select_n", "dynamic_slice", "gather")
"""What takes some of several keys by a value."""
FOLDED = primitives("random_fold_in")
SEEDED = primitives("random_seed")

_LARGEST = 4096
"""Of larger arrays, keys are not told apart."""
_WORDS = 4
"""The data of a key has no more words than this."""

Rule = Callable[[Step, Sequence[Any]], Iterable[Any]]
RULES: Rules[Rule] = Rules()
"""From the numbers of the elements of the inputs of a step to those of its outputs."""


def is_key(aval: Any) -> bool:
    """Whether a type is that of keys."""
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def is_keyed(aval: Any) -> bool:
    """Whether a type is that of keys, or may be that of their data."""
    return is_key(aval) or (str(getattr(aval, "dtype", "")) == "uint32" and aval.shape[-1:] in ((2,), (4,)))


def is_small(aval: Any) -> bool:
    """Whether a type is that of an array that is small enough to look at each of its elements."""
    if not isinstance(aval, jax.core.ShapedArray) or not all(isinstance(size, int) for size in aval.shape):
        return False
    return aval.size <= _LARGEST


def is_tracked(aval: Any) -> bool:
    """Whether a type is that of keys or of their data, and of no more than are told apart."""
    return is_small(aval) and (is_key(aval) or (aval.dtype == jnp.uint32 and aval.shape[-1:] in ((2,), (4,))))


def key_shape(aval: Any) -> tuple[int, ...]:
    """The shape of the keys that a type has, or has the data of."""
    return tuple(aval.shape if is_key(aval) else aval.shape[:-1])


def elements_of(aval: Any, keys: Any) -> Any:
    """The numbers of the elements of an array that is of these keys, or of their data."""
    keys = np.asarray(keys).reshape(key_shape(aval))
    return keys if is_key(aval) else keys[..., None] * _WORDS + np.arange(aval.shape[-1])


def keys_of(aval: Any, elements: Any) -> Any:
    """The keys that an array is of, or is the data of; None where its elements are not the data of keys."""
    if is_key(aval):
        return elements
    keys = elements // _WORDS
    whole = (elements % _WORDS == np.arange(elements.shape[-1])).all() and (keys == keys[..., :1]).all()
    return keys[..., 0] if whole else None


def in_keys(aval: Any, elements: Any) -> Any:
    """The key that each element of an array is, or is of."""
    return elements if is_key(aval) else elements // _WORDS


@RULES("random_wrap")
def _wrap(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    found = keys_of(step.inputs[0].aval, elements[0])
    return [] if found is None else [found]


@RULES("random_unwrap")
def _unwrap(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return [elements_of(step.outputs[0].aval, elements[0])]


@RULES(
    "copy",
    "copy_p",
    "convert_element_type",
    "optimization_barrier",
    "device_put",
    "sharding_constraint",
    "reshard",
    "pvary",
)
def _same(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return elements


@RULES("squeeze", "reshape")
def _reshaped(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return [elements[0].reshape(step.outputs[0].shape)]


@RULES("transpose")
def _transposed(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return [elements[0].transpose(step.equation.params["permutation"])]


@RULES("broadcast_in_dim")
def _broadcast(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    params = step.equation.params
    shape = [1] * len(params["shape"])
    for size, axis in zip(elements[0].shape, params["broadcast_dimensions"], strict=True):
        shape[axis] = size
    return [np.broadcast_to(elements[0].reshape(shape), params["shape"])]


@RULES("slice")
def _sliced(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    params = step.equation.params
    strides = params["strides"] or [1] * elements[0].ndim
    return [elements[0][tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]]


@RULES("rev")
def _reversed(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return [np.flip(elements[0], step.equation.params["dimensions"])]


@RULES("concatenate")
def _concatenated(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return [np.concatenate(elements, step.equation.params["dimension"])]


@RULES("stack")
def _stacked(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return [np.stack(elements, step.equation.params["axis"])]


@RULES("unstack")
def _unstacked(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return list(np.moveaxis(elements[0], step.equation.params["axis"], 0))


@RULES("split")
def _split(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    params = step.equation.params
    return np.split(elements[0], np.cumsum(params["sizes"])[:-1], params["axis"])


@RULES("tile")
def _tiled(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return [np.tile(elements[0], step.equation.params["reps"])]


@RULES("dynamic_slice")
def _taken(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    sizes = step.equation.params["slice_sizes"]
    starts = _starts(step.inputs[1:], step.inputs[0].shape, sizes)
    if starts is None:
        return []
    return [elements[0][tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]]


@RULES("dynamic_update_slice")
def _replaced(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    return _written(elements[0], elements[1], _starts(step.inputs[2:], *(value.shape for value in step.inputs[:2])))


@RULES("scatter")
def _scattered(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    """A write of one row, as `keys.at[3].set(key)` is."""
    numbers, (into, index, update) = step.equation.params["dimension_numbers"], step.inputs
    place = index.fact.range
    batched = getattr(numbers, "operand_batching_dims", ())
    row = update.shape == into.shape[1:] and tuple(numbers.inserted_window_dims) == (0,)
    if tuple(numbers.scatter_dims_to_operand_dims) != (0,) or batched or not row or index.shape != (1,):
        return []
    if place.low != place.high or not 0 <= place.low < into.shape[0]:
        return []
    return _written(elements[0], elements[2][None], (int(place.low), *[0] * update.aval.ndim))


def _starts(values: Sequence[Value], shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Where a slice begins, if that is known: one that does not fit is moved to where it does."""
    found = []
    for value, size, width in zip(values, shape, sizes, strict=True):
        low, high = (min(max(end, 0), size - width) for end in (value.fact.range.low, value.fact.range.high))
        if low != high:
            return None
        found.append(int(low))
    return tuple(found)


def _written(into: Any, update: Any, starts: tuple[int, ...] | None) -> Iterable[Any]:
    if starts is None:
        return []
    found = into.copy()
    found[tuple(slice(start, start + size) for start, size in zip(starts, update.shape, strict=True))] = update
    return [found]


@RULES("select_n")
def _selected(step: Step, elements: Sequence[Any]) -> Iterable[Any]:
    cases = elements[1:]
    return cases[:1] if all(np.array_equal(each, cases[0]) for each in cases) else []
