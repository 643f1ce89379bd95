"""`lox.find_nonfinite`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._arguments import describe
from lox._exceptions import LogDataError, LogValueError
from lox._misspelt import says_what_was_meant
from lox._nonfinite._axes import telling
from lox._nonfinite._branches import marking
from lox._nonfinite._loops import sinks
from lox._nonfinite._record import Operation, Reached, Record, Resume, Sink, is_float, recorded
from lox._nonfinite._report import NonfiniteReport, Step
from lox._nonfinite._results import values_of
from lox._nonfinite._walk import Origin, batch_axes, origins

Found = tuple[Origin, list[Operation]]
Names = Callable[[Any], str]


@says_what_was_meant("lox.find_nonfinite", "lox.find_nonfinite(f)(x)")
def find_nonfinite(fun: Callable[..., Any], *, all: bool = False) -> Callable[..., NonfiniteReport]:
    """Make a function that finds where its first NaN begins: line, iteration, batch element and operands.

    NaN begins in an operation that has a NaN result and no NaN operand; an infinite value, where the operands are
    finite. Reported is the first one that reaches a result of the function or the carry of a loop, NaN before infinite
    values. What `where`, a mask or unused code drops is not. A carry is bad when it has a NaN, or is infinite and began
    finite, so that ``best = -jnp.inf`` is none. NaN in the condition of a `while_loop` is reported as well.

    The function runs operation by operation. Its loops run compiled, up to the first iteration whose carry is bad,
    which runs again alone: memory does not grow with the number of iterations. It works through `jit`, `grad`, `vmap`,
    loops, branches, `checkpoint`, custom rules and `shard_map`, and for functions that run Python around jitted ones.
    Logs are dropped, and donated arguments stay.

    Args:
        fun: The function.
        all: Whether to report also what reaches neither a result nor a carry: all other origins are in `others`.

    Returns:
        A function of the arguments of `fun`, which must be concrete, that returns a `NonfiniteReport`. It prints as a
        short story.

    Raises:
        LogDataError: `fun` is not a function. A `TypeError`.
        LogValueError: When the function runs: it is called inside a transformation of JAX, or it has an `io_callback`.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> @jax.jit
    ... def train(x, rates):
    ...     def step(x, rate):
    ...         return x - rate * jnp.log(x), None
    ...     return jax.lax.scan(step, x, rates)[0]
    >>> report = lox.find_nonfinite(jax.vmap(train, (0, None)))(jnp.array([1.0, 2.0]), jnp.array([1.0, 8.0, 1.0]))
    >>> report.primitive, report.iterations, report.batch
    ('log', (2,), (1,))
    >>> print(f"{report.operands[0]:.3f}")
    -0.834
    """
    if not callable(fun):
        raise LogDataError(f"lox.find_nonfinite takes a function, got {describe(fun)}.")

    @functools.wraps(fun, updated=())
    def found(*args: Any, **kwargs: Any) -> NonfiniteReport:
        return search(fun, args, kwargs, all)

    return found


def search(
    fun: Callable[..., Any], args: Any, kwargs: Any, everything: bool = False, resume: Resume | None = None
) -> NonfiniteReport:
    """Search a call for what is not finite, all of it or from an iteration of a loop on."""
    record = Record(everything, resume)
    try:
        outs = _run(record, fun, args, kwargs)
    except Reached:
        outs = ()
    return report(record, args, kwargs, outs)


def last_good_carry(fun: Callable[..., Any], args: Any, kwargs: Any, infinite: bool) -> Resume | None:
    """The carry before the first bad one of an outermost loop, or None if all are good."""
    try:
        _run(Record(stops="nonfinite" if infinite else "nan"), fun, args, kwargs)
    except Reached as reached:
        return reached.place
    return None


def _run(record: Record, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if not _compat.is_top_level():
        raise LogValueError(
            "lox.find_nonfinite must be called with concrete arrays, outside of jax.jit, jax.vmap, jax.grad and "
            "handlers of lox: give it the transformed function."
        )
    with telling(), marking(True), jax.debug_nans(False), jax.debug_infs(False):
        return recorded(record, fun, args, kwargs)


def report(record: Record, args: Any, kwargs: Any, outs: Any) -> NonfiniteReport:
    """Make the report from the record of a function."""
    names = _names(args, kwargs)
    results = [(_of_program(leaf, record), mask) for leaf, mask in values_of(outs) if is_float(leaf)]
    found: list[Found] = []
    for nan in (True, False):
        begin = list(_bad(results, np.isnan if nan else np.isinf)) + (record.sinks if nan else record.infinite)
        if record.everything:
            values = [value for operation in record.operations for value in operation.results]
            begin += sinks(values, np.isnan if nan else np.isinf)
        of_kind = [each for each in origins(record, begin, nan) if nan or _is_made(each[0], names)]
        is_written = lambda origin: origin.operation is None and not names(origin.value)  # noqa: E731
        found += sorted(of_kind, key=lambda each: (is_written(each[0]), each[0].position))
        if found and not record.everything:
            break
    if not found:
        return NonfiniteReport(False, lost=tuple(record.lost))
    reports = [_described(each, record, names) for each in (found if record.everything else found[:1])]
    first, *others = reports
    return _with_others(first, others, tuple(record.lost))


def _bad(results: Sequence[tuple[Any, Any]], test: Callable[[Any], Any]) -> Iterator[Sink]:
    """The results that have elements of the program which a test finds, each with these."""
    for value, mask in results:
        for _, found in sinks([value], test):
            if mask is not None:
                found &= np.reshape(mask, np.shape(mask) + (1,) * (found.ndim - np.ndim(mask)))
            if found.any():
                yield value, found


def _with_others(first: NonfiniteReport, others: Sequence[NonfiniteReport], lost: tuple[str, ...]) -> NonfiniteReport:
    return dataclasses.replace(first, others=tuple(others), lost=lost)


def _is_made(origin: Origin, names: Names) -> bool:
    """Tell whether an infinite value is not one that the program has written, as ``-jnp.inf``."""
    return origin.operation is not None or bool(names(origin.value))


def _of_program(leaf: Any, record: Record) -> Any:
    """A result; for one that Python has taken out of JAX, the last value of its shape that is not finite."""
    if isinstance(leaf, jax.Array) or not np.any(~np.isfinite(leaf)):
        return leaf
    for operation in reversed(record.operations):
        for value in operation.results:
            if np.shape(value) == np.shape(leaf) and np.array_equal(np.isnan(value), np.isnan(leaf)):
                return value
    return leaf


def _described(found: Found, record: Record, names: Names) -> NonfiniteReport:
    origin, chain = found
    operation = origin.operation
    kind = "nan" if origin.nan else "inf"
    steps = tuple(Step(_name(each), each.line.file, each.line.line) for each in chain)
    if operation is None:
        first = chain[0] if chain else None
        line = first.line if first is not None else None
        return NonfiniteReport(
            True,
            kind,
            argument=names(origin.value),
            file=line.file if line else "",
            line=line.line if line else 0,
            function=line.function if line else "",
            iterations=first.frame.iterations if first is not None else (),
            chain=steps,
        )
    axes, of_operands = batch_axes(record, operation, origin.number)
    order = [axis for axis in axes if axis is not None]
    order += [axis for axis in range(origin.mask.ndim) if axis not in order]
    place = dict(zip(order, map(int, np.argwhere(np.transpose(origin.mask, order))[0]), strict=True))
    batch = [None if axis is None else place[axis] for axis in axes]
    shards = operation.frame.shards
    shard = {} if shards is None else {name: place[axis] for axis, name in enumerate(shards.names)}
    here = tuple(shard.values())
    pairs = zip(operation.operands, of_operands, strict=True)
    operands = tuple(_element(value, of_value, batch, here) for value, of_value in pairs)
    fed = []
    if origin.nan:
        infinite = [(value, np.isinf(np.asarray(value))) for value in operation.operands if is_float(value)]
        begin = [(value, mask) for value, mask in infinite if mask.any()]
        fed = [each for each in origins(record, begin, False) if _is_made(each[0], names)]
        fed.sort(key=lambda each: each[0].position)
    return NonfiniteReport(
        True,
        kind,
        primitive=_name(operation),
        file=operation.line.file,
        line=operation.line.line,
        function=operation.line.function,
        iterations=operation.frame.iterations,
        batch=tuple(batch),
        element=tuple(place[axis] for axis in range(len(here), origin.mask.ndim) if axis not in axes),
        shard=shard,
        backward=operation.frame.phase == "backward",
        operands=operands,
        infinities=tuple(_described(each, record, names) for each in fed),
        chain=steps,
    )


def _element(value: Any, axes: Sequence[int | None] | None, batch: Sequence[int | None], shard: tuple[int, ...]) -> Any:
    """One batch element of a value, on one shard."""
    index: list[Any] = [*shard, *[slice(None)] * (np.ndim(value) - len(shard))]
    for axis, number in zip(axes or (), batch, strict=False):
        if axis is not None and number is not None:
            index[axis] = number
    return np.asarray(value, _dtype(value))[tuple(index)]


def _dtype(value: Any) -> Any:
    """The dtype in which JAX computes with a number or an array of NumPy."""
    numbers = (bool, int, float, complex, np.ndarray, np.generic)
    return jnp.result_type(value) if isinstance(value, numbers) else None


def _name(operation: Operation) -> str:
    if operation.primitive is not None:
        return str(operation.primitive.name)
    return "slice"


def _names(args: Any, kwargs: Any) -> Names:
    """The path of the argument that a value is, or "": an array is told by itself, a number by what it is."""
    leaves, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
    paths = [
        f"{'args' if first.idx == 0 else 'kwargs'}{jax.tree_util.keystr(tuple(path))}" for (first, *path), _ in leaves
    ]
    arrays = {id(leaf): path for path, (_, leaf) in zip(paths, leaves, strict=True)}
    numbers = {repr(leaf): path for path, (_, leaf) in zip(paths, leaves, strict=True) if type(leaf) is float}

    def name(value: Any) -> str:
        found = arrays.get(id(value))
        return found or (
            numbers.get(repr(float(np.ravel(value)[0])), "") if is_float(value) and np.size(value) == 1 else ""
        )

    return name
