"""Reductions that count events by bins: quantiles and histograms. They merge by addition."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._reductions import result_dtype
from lox._stepwise import Stepwise, check_ordered, of_each

MOST = np.uint32(2**32 - 1)
"""A bin that has counted so many counts no more."""

SINGLE = 8
"""So many events or fewer are added one at a time, each where its bin is not full."""


class Counts(NamedTuple):
    """A state of bins.

    Attributes:
        number: The count of numbers in each bin, uint32, shape `(*batch, *shape, bins)`.
        most: At least as many as any bin of the batch element has counted, uint32.
    """

    number: Any
    most: Any


class Binned(Stepwise):
    """Counts events by bins. Its states are `Counts`."""

    @abc.abstractmethod
    def bins(self, dtype: Any) -> int:
        """Return the number of bins."""

    @abc.abstractmethod
    def bin_of(self, values: Any) -> Any:
        """The bin of each value, int32; the number of bins for what is in none."""

    def bytes_of(self, shape: tuple[int, ...], dtype: Any, batch_shape: tuple[int, ...]) -> int:
        like = jax.eval_shape(self.read, jax.ShapeDtypeStruct(shape, dtype))
        return 4 * self.samples(shape, batch_shape) * self.bins(like.dtype)

    def start(self, shape: tuple[int, ...], dtype: Any) -> Counts:
        return Counts(np.broadcast_to(np.uint32(0), (*shape, self.bins(dtype))), np.uint32(0))

    def add(self, state: Counts, values: Any, happened: Any, shape: tuple[int, ...]) -> Counts:
        counts, most = state
        bins, number = counts.shape[-1], values.shape[-1]
        places = self.bin_of(values)
        if happened is not None:
            places = jnp.where(of_each(happened, places), places, bins)
        if number <= SINGLE:
            for place in range(number):
                counts = _plus(counts, places[..., place : place + 1], _unless_full)
        else:
            counts = jax.lax.cond(
                jnp.all(most <= MOST - np.uint32(number)),
                lambda counts: _plus(counts, places, _one),
                lambda counts: _sum(counts, _plus(jnp.zeros_like(counts), places, _one)),
                counts,
            )
        return Counts(counts, _sum(most, np.uint32(number)))

    def join(self, first: Counts, second: Counts, batch_ndim: int) -> Counts:
        return Counts(*map(_sum, first, second))


def _sum(first: Any, second: Any) -> Any:
    """The sum, or the most that there can be."""
    total = first + second
    return jnp.where(total < first, MOST, total)


def _one(at: Any) -> Any:
    return np.uint32(1)


def _unless_full(at: Any) -> Any:
    return (at.get(mode="fill", fill_value=0) != MOST).astype(jnp.uint32)


def _plus(counts: Any, places: Any, one: Callable[[Any], Any]) -> Any:
    """Add one at each of these places along the last axis, where there is such a place."""
    where = jnp.indices(places.shape, jnp.int32, sparse=True)[:-1]
    at = counts.at[(*where, places)]
    return at.add(one(at), mode="drop")


@dataclasses.dataclass(frozen=True)
class FloatBins:
    """Bins of floats by their exponent and the first bits of their significand.

    The bins are in the order of the numbers: first those of the negative ones, then one for 0, then those of the
    positive ones. Each infinity has a bin of its own. A subnormal number has no exponent of its own; its place is found
    by its leading bit, as if it had one.

    Attributes:
        dtype: The dtype of the floats.
        depth: Number of significand bits that count. A bin is `2**-depth` times as wide as its numbers are large.
    """

    dtype: Any
    depth: int

    @property
    def _bits(self) -> Any:
        return jnp.dtype(f"uint{8 * jnp.dtype(self.dtype).itemsize}")

    @property
    def _digits(self) -> int:
        return int(jnp.finfo(self.dtype).nmant)

    @property
    def _infinity(self) -> int:
        """The bits of infinity."""
        return ((1 << jnp.finfo(self.dtype).nexp) - 1) << self._digits

    @property
    def of_sign(self) -> int:
        """The number of bins of positive numbers, or of negative ones."""
        return self._of_normal(self._infinity) + 1

    @property
    def number(self) -> int:
        """The number of bins."""
        return 2 * self.of_sign + 1

    def _of_normal(self, bits: Any) -> Any:
        """The bin of a normal number, or of infinity, among those of its sign."""
        return (bits >> (self._digits - self.depth)) + ((self._digits - 1) << self.depth)

    def bin_of(self, values: Any) -> Any:
        """The bin of each value, int32; the number of bins for NaN."""
        unsigned, depth = self._bits, self.depth
        bits = jax.lax.bitcast_convert_type(values, unsigned)
        size = bits & unsigned.type((1 << (8 * unsigned.itemsize - 1)) - 1)
        exponent = (8 * unsigned.itemsize - 1) - jax.lax.clz(jnp.maximum(size, unsigned.type(1)))
        shift = exponent.astype(jnp.int32) - depth
        leading = jnp.where(
            shift >= 0,
            size >> jnp.maximum(shift, 0).astype(unsigned),
            size << jnp.maximum(-shift, 0).astype(unsigned),
        )
        of_subnormal = (exponent.astype(jnp.int32) << depth) + leading.astype(jnp.int32) - (1 << depth)
        of_normal = self._of_normal(size).astype(jnp.int32)
        of_size = jnp.where(size < unsigned.type(1 << self._digits), of_subnormal, of_normal)
        is_negative = size != bits
        place = self.of_sign + jnp.where(is_negative, -1 - of_size, 1 + of_size)
        place = jnp.where(size == unsigned.type(0), self.of_sign, place)
        return jnp.where(size > unsigned.type(self._infinity), self.number, place)

    def value_of(self, places: Any) -> Any:
        """The middle of each bin."""
        unsigned, depth = self._bits, self.depth
        of_size = jnp.abs(places - self.of_sign) - 1
        below, half = self._digits - depth, (1 << (self._digits - depth)) >> 1
        normal = of_size - ((self._digits - 1) << depth)
        bits_of_normal = (normal.astype(unsigned) << unsigned.type(below)) + unsigned.type(half)
        exponent = of_size >> depth
        leading = ((of_size & ((1 << depth) - 1)) | (1 << depth)).astype(unsigned)
        shift = exponent - depth
        up, down = (jnp.maximum(each, 0).astype(unsigned) for each in (shift, -shift))
        middle = (unsigned.type(1) << up) >> unsigned.type(1)
        bits_of_subnormal = jnp.where(shift >= 0, (leading << up) + middle, leading >> down)
        size = jnp.where(of_size < (self._digits << depth), bits_of_subnormal, bits_of_normal)
        size = jnp.where(of_size == self.of_sign - 1, unsigned.type(self._infinity), size)
        size = jnp.where(places == self.of_sign, unsigned.type(0), size)
        sign = (places < self.of_sign).astype(unsigned) << unsigned.type(8 * unsigned.itemsize - 1)
        return jax.lax.bitcast_convert_type(size | sign, self.dtype)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class Quantiles(Binned):
    """Quantiles, within a relative error. Attributes: see `lox.reductions.quantiles`.

    The bins are those of DDSketch (Masson, Rim and Lee, PVLDB 12, 2019), taken from the bits of a float instead of its
    logarithm.
    """

    qs: tuple[float, ...]
    relative_error: float
    is_single: bool
    pool: bool | int

    name = "quantiles"
    saves = f"{Binned.saves}, and a larger relative_error= takes less"

    @property
    def is_distribution(self) -> bool:  # type: ignore[override]
        return not self.is_single

    @property
    def size(self) -> int:
        """The length of the last axis of the result."""
        return len(self.qs)

    def __repr__(self) -> str:
        more = f", relative_error={self.relative_error}" if self.relative_error != 0.01 else ""
        qs = self.qs[0] if self.is_single else list(self.qs)
        return self.written(f"{qs}{more}")

    def read(self, value: Any) -> Any:
        check_ordered(value.dtype)
        return value.astype(_float_of(value.dtype))

    def bins(self, dtype: Any) -> int:
        return self._bins(dtype).number

    def bin_of(self, values: Any) -> Any:
        return self._bins(values.dtype).bin_of(values)

    def value(self, state: Counts, shape: tuple[int, ...], dtype: Any, batch_ndim: int) -> Any:
        counts = state.number
        bins = self._bins(_float_of(dtype))
        values = bins.value_of(jnp.minimum(_bins_of_ranks(counts, self.qs), bins.number - 1))
        unknown = jnp.all(counts == np.uint32(0), axis=-1) | jnp.any(counts == MOST, axis=-1)
        values = jnp.where(unknown[..., None], np.asarray(np.nan, values.dtype), values)
        values = values.astype(result_dtype("mean", dtype))
        return values[..., 0] if self.is_single else values

    def _bins(self, dtype: Any) -> FloatBins:
        # The error of converting an integer to a float counts too.
        digits = int(jnp.finfo(dtype).nmant)
        depth = math.ceil(-math.log2(self.relative_error - 2.0**-24)) - 1
        return FloatBins(jnp.dtype(dtype), min(max(depth, 0), digits))


def _float_of(dtype: Any) -> Any:
    """The dtype of the floats that stand for values of a dtype."""
    dtype = jnp.dtype(result_dtype("mean", dtype))
    return jnp.float16 if dtype.itemsize == 1 else dtype


class Words(NamedTuple):
    """An integer of 64 bits."""

    high: Any
    low: Any

    @classmethod
    def added_up(cls, words: Words) -> Words:
        """The sums of all words up to each along the last axis."""
        low = jnp.cumsum(words.low, axis=-1, dtype=jnp.uint32)
        carried = (low < words.low).astype(jnp.uint32)  # It begins anew at 2**32.
        return cls(jnp.cumsum(words.high + carried, axis=-1, dtype=jnp.uint32), low)

    def minus(self, other: Words) -> Words:
        return Words(self.high - other.high - (self.low < other.low).astype(jnp.uint32), self.low - other.low)

    def up_to(self, other: Words) -> Any:
        """Tell whether it is at most another."""
        return (self.high < other.high) | ((self.high == other.high) & (self.low <= other.low))

    def map(self, function: Callable[[Any], Any]) -> Words:
        return Words(*map(function, self))


def _bins_of_ranks(counts: Any, qs: tuple[float, ...]) -> Any:
    """The bin of each quantile, of shape `(*batch, *shape, qs)`.

    It is looked for among blocks of bins first and then in one block, which takes a pass over all bins, but no sum of
    all up to each.
    """
    bins = counts.shape[-1]
    size = math.isqrt(bins) + 1
    blocks = -(-bins // size)
    counts = jnp.pad(counts, [(0, 0)] * (counts.ndim - 1) + [(0, blocks * size - bins)])
    counts = counts.reshape(*counts.shape[:-1], blocks, size)
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    lower, upper = (jnp.sum(part, axis=-1, dtype=jnp.uint32) for part in (counts & mask, counts >> half))
    low = lower + (upper << half)
    total = Words.added_up(Words((upper >> half) + (low < lower).astype(jnp.uint32), low))
    last = total.map(lambda words: words[..., -1:])
    rank = _rank(qs, last)

    def before(sums: Words) -> Any:
        """The number of sums that are at most the rank."""
        return jnp.sum(sums.up_to(rank.map(lambda words: words[..., None])), axis=-1, dtype=jnp.int32)

    block = jnp.minimum(before(total.map(lambda words: words[..., None, :])), blocks - 1)
    is_first = block == 0
    sofar = total.map(lambda words: jnp.take_along_axis(words, jnp.maximum(block - 1, 0), axis=-1))
    rank = rank.minus(sofar.map(lambda words: jnp.where(is_first, np.uint32(0), words)))
    inside = jnp.take_along_axis(counts, block[..., None], axis=-2)
    return block * size + before(Words.added_up(Words(jnp.zeros_like(inside), inside)))


def _rank(qs: tuple[float, ...], number: Words) -> Words:
    """The largest integers up to q times (n - 1), along the last axis. There q is a multiple of 2**-32, rounded up."""
    last = number.minus(Words(np.uint32(0), np.uint32(1)))
    parts = [math.ceil(q * 2**32) for q in qs]
    factors = np.asarray([part % 2**32 for part in parts], np.uint32)
    carried = _product(last.low, factors).high
    high, low = _product(last.high, factors)
    total = low + carried
    found = Words(high + (total < carried).astype(jnp.uint32), total)
    is_last = np.asarray([part == 2**32 for part in parts])
    return Words(*(jnp.where(is_last, whole, word) for whole, word in zip(last, found, strict=True)))


def _product(words: Any, factors: Any) -> Words:
    """The products of words and factors of one word."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a1, a0, b1, b0 = words >> half, words & mask, factors >> half, factors & mask
    middle = (a0 * b0 >> half) + (a0 * b1 & mask) + (a1 * b0 & mask)
    high = a1 * b1 + (a0 * b1 >> half) + (a1 * b0 >> half) + (middle >> half)
    return Words(high, (middle << half) | (a0 * b0 & mask))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class Histogram(Binned):
    """Counts by bins with these edges. Attributes: see `lox.reductions.histogram`."""

    edges: tuple[float, ...]
    pool: bool | int

    name = "histogram"
    is_zero_of_none = True
    is_distribution = True
    adds_up = True

    def __repr__(self) -> str:
        edges = list(self.edges) if len(self.edges) < 6 else f"[{self.edges[0]}, ..., {self.edges[-1]}]"
        return self.written(f"{edges}")

    def read(self, value: Any) -> Any:
        check_ordered(value.dtype)
        if value.dtype == bool:
            return value.astype(jnp.uint8)
        if jnp.issubdtype(value.dtype, jnp.floating):
            return value.astype(jnp.float32) if value.dtype.itemsize < 4 else value
        if jnp.iinfo(value.dtype).bits < 8:  # NumPy has no such dtypes.
            return value.astype(jnp.int32)
        return value

    @property
    def size(self) -> int:
        """The length of the last axis of the result."""
        return len(self.edges) + 1

    def bins(self, dtype: Any) -> int:
        return self.size

    def bin_of(self, values: Any) -> Any:
        below, edges = _edges(self.edges, np.dtype(values.dtype))
        if len(edges) <= 64:
            place = jnp.sum(values[..., None] >= edges, axis=-1, dtype=jnp.int32)
        else:
            place = jnp.searchsorted(edges, values, side="right", method="scan_unrolled").astype(jnp.int32)
        place = place + below
        if jnp.issubdtype(values.dtype, jnp.floating):
            place = jnp.where(jnp.isnan(values), self.bins(values.dtype), place)
        return place

    def value(self, state: Counts, shape: tuple[int, ...], dtype: Any, batch_ndim: int) -> Any:
        return state.number


def _edges(edges: tuple[float, ...], dtype: Any) -> tuple[int, Any]:
    """The number of edges that all numbers of a dtype are at or above, and the others, rounded up to such a number."""
    if np.issubdtype(dtype, np.floating):
        with np.errstate(over="ignore"):
            nearest = [dtype.type(edge) for edge in edges]
        up = dtype.type(np.inf)
        pairs = zip(nearest, edges, strict=True)
        return 0, np.asarray([np.nextafter(near, up) if float(near) < edge else near for near, edge in pairs], dtype)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    below = sum(edge <= least for edge in edges)
    return below, np.asarray([math.ceil(edge) for edge in edges if least < edge <= most], dtype)
