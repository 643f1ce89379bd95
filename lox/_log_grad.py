"""`lox.log_grad`: a value whose cotangent is logged where a backward pass computes it.

The primitive is the identity. It is linear, so that every transformation of JAX finds what it needs: forward mode
passes tangents on, and reverse mode transposes it, which logs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from lox import _compat
from lox._ambient import in_context
from lox._arguments import event_of, path_name, read_event, strongly_typed
from lox._effect import emit, log_effect, recording
from lox._events import Site
from lox._exceptions import LogDataError

Data = TypeVar("Data")


class Backward:
    """Handles a cotangent, given the values that the primitive carries along with its own.

    It is a parameter of the primitive, and its effects tell that handlers have to do with it.
    """

    effects = frozenset({log_effect})

    def __call__(self, cotangent: Any, *residuals: Any) -> None:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LogCotangent(Backward):
    """Logs it.

    Attributes:
        key: The key.
        steps: The names of the counters, which come first among the residuals.
        has_mask: Whether the mask of the event comes after them.
        site: The call.
    """

    key: str
    steps: tuple[str, ...]
    has_mask: bool
    site: Site

    def __call__(self, cotangent: Any, *residuals: Any) -> None:
        if not recording.value:
            return
        steps = dict(zip(self.steps, residuals, strict=False))
        mask = residuals[-1] if self.has_mask else None
        emit((event_of({self.key: strongly_typed(cotangent)}, steps, mask, self.site),))


@dataclasses.dataclass(frozen=True)
class EachElement(Backward):
    """Does so for each batch element.

    Attributes:
        backward: What it does for a batch element.
        in_axes: Where the cotangent and the residuals have the axis of the batch.
        axis: The names and the size of that, as `jax.vmap` takes them.
    """

    backward: Backward
    in_axes: tuple[int | None, ...]
    axis: tuple[tuple[str, Any], ...]

    def __call__(self, cotangent: Any, *residuals: Any) -> None:
        jax.vmap(self.backward, self.in_axes, **dict(self.axis))(cotangent, *residuals)


_compat.cache_weakly(EachElement)

log_grad_p = jex.core.Primitive("lox_log_grad")


@log_grad_p.def_impl
def _identity(value: Any, *residuals: Any, backward: Backward, of_tangent: bool) -> Any:
    del residuals, backward, of_tangent
    return value


log_grad_p.def_abstract_eval(_identity)
mlir.register_lowering(log_grad_p, lambda ctx, value, *residuals, **params: [value])


def _batch(
    axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, backward: Backward, of_tangent: bool
) -> tuple[Any, Any]:
    if any(dim is not None for dim in dims):  # What all batch elements share has one cotangent, the sum of theirs.
        names = (("axis_name", axis_data.name), ("axis_size", axis_data.size), ("spmd_axis_name", axis_data.spmd_name))
        backward = EachElement(backward, tuple(dims), names)
    return log_grad_p.bind(*args, backward=backward, of_tangent=of_tangent), dims[0]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, backward: Backward, of_tangent: bool) -> tuple[Any, Any]:
    tangent, *_ = tangents
    if not of_tangent and not _compat.is_zero(tangent):
        # It may be transposed next. The tangent of a tangent is that of no value: its cotangent means nothing here.
        tangent = log_grad_p.bind(tangent, *primals[1:], backward=backward, of_tangent=True)
    return log_grad_p.bind(*primals, backward=backward, of_tangent=of_tangent), tangent


def _transpose(cotangent: Any, *args: Any, backward: Backward, of_tangent: bool) -> list[Any]:
    del of_tangent
    value, *residuals = args
    if not ad.is_undefined_primal(value) or _compat.is_zero(cotangent):
        return [None] * len(args)
    backward(cotangent, *residuals)
    return [cotangent, *[None] * len(residuals)]


def _jet(
    primals: Sequence[Any], series: Sequence[Any], *, backward: Backward, of_tangent: bool
) -> tuple[Any, Sequence[Any]]:
    return log_grad_p.bind(*primals, backward=backward, of_tangent=of_tangent), series[0]


_compat.add_jet_rule(log_grad_p, _jet)
batching.fancy_primitive_batchers[log_grad_p] = _batch
ad.primitive_jvps[log_grad_p] = _jvp
ad.primitive_transposes[log_grad_p] = _transpose


def log_grad(
    data: Data, *, tags: str | Iterable[str] = (), prefix: str = "grad/", where: Any = None, **steps: Any
) -> Data:
    """Log the cotangent of `data` in the backward pass, and return `data`.

    Use what it returns: the cotangent is that of the returned value, the derivative of the differentiated function by
    it. Where nothing is differentiated in reverse mode, or nothing depends on the value, nothing is logged; nor for
    integers, which have no derivative. Each array is an event of its own, in the order of the backward pass. Under
    `vmap` each batch element has its own, except that a value which all batch elements share has one cotangent, the sum
    of theirs. Without a handler, nothing happens.

    A `lox.tap` hears of the backward pass also from inside the `jax.grad`, whereas `lox.spool` must be around it
    to return what happens there.

    Args:
        data: A mapping from key to a pytree of arrays of any shape and dtype, which is a pytree itself.
        tags: A name or names by which handlers can select this log.
        prefix: Put before every key.
        where: A boolean of shape `()`, or of the shape of the first axes of every array: where the event happens, as in
            `lox.log`. The cotangent goes back in any case.
        **steps: Named counters of the event, such as ``step=i, episode=e``: scalars, or of the shape of `where`.
            They cannot be named `tag`, `argnames`, `every`, `interval`, `reduce`, `mask` or `when`, which are taken for
            misspelt keywords.

    Returns:
        `data`, of the same structure.

    Raises:
        LogDataError: `data`, a key, a leaf, a tag or `where` has the wrong type. A `TypeError`.
        LogValueError: Two keys are equal after flattening, a value does not begin with the axes of `where`, or a
            counter has another shape than described or one of these names. A `ValueError`.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> def loss(w, x):
    ...     hidden = lox.log_grad({"hidden": w * x})["hidden"]
    ...     return jnp.sum(hidden**2)
    >>> _, logs = lox.spool(jax.grad(loss))(2.0, jnp.arange(3.0))
    >>> logs["grad/hidden"].tolist()
    [[0.0, 4.0, 8.0]]
    """
    if not recording.value:
        return data
    event = read_event("lox.log_grad", data, tags, prefix, where, steps)
    logged = in_context(event)
    keys = dict(zip(event.values, logged.values, strict=True))
    mask = () if event.mask is None else (event.mask,)

    def watch(path: Any, leaf: Any) -> Any:
        key = prefix + path_name(path)
        if key not in event.values:
            raise LogDataError(
                f"lox.log_grad takes mappings that are pytrees with keys, got {type(data).__name__} with the leaf "
                f"{path_name(path)!r}, at {event.site}."
            )
        if not isinstance(leaf, jax.Array) and not hasattr(leaf, "__jax_array__"):
            return leaf
        value = jnp.asarray(leaf)
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return leaf
        backward = LogCotangent(
            keys[key], tuple(logged.steps), bool(mask), dataclasses.replace(logged.site, backward=True)
        )
        return log_grad_p.bind(value, *logged.steps.values(), *mask, backward=backward, of_tangent=False)

    return jax.tree_util.tree_map_with_path(watch, data)
