"""What people say that axes mean, in the middle of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from lox._arguments import describe
from lox._audit._expect import auditing
from lox._exceptions import LogValueError

T = TypeVar("T")

label_p = jex.core.Primitive("lox_label")
"""An array whose axes have these meanings. It is in a program only while an audit traces it."""


def label(x: T, axes: Sequence[str | None]) -> T:
    """Say what the axes of an array mean, for `lox.audit` to follow from here on.

    Where `lox.audit(fun, axes=...)` labels the arguments of a function, this labels what a function makes itself, as
    a training function does whose only argument is a key. Without an audit, the program is the same as without it.

    Args:
        x: An array, or a pytree of arrays that have as many axes as there are labels.
        axes: What each axis means, such as ``("time", "env", None)``; None where that is not to be said. Axes that
            `vmap` adds are not among them.

    Returns:
        `x`.

    Raises:
        LogValueError: `axes` is not a sequence of strings and None, or an array has another number of axes. A
            `ValueError`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> def train(key):
    ...     rewards = lox.audit.label(jax.random.normal(key, (16, 4)), ("time", "env"))
    ...     with lox.audit.expect(cumsum="time"):
    ...         return jnp.cumsum(rewards, axis=1)
    >>> [finding] = lox.audit(train)(jax.random.key(0)).issues
    >>> finding.code, finding.found, finding.expected
    ('LOX105', 'env', 'time')
    """
    if isinstance(axes, (str, bytes)) or not isinstance(axes, Sequence):
        raise LogValueError(f'lox.audit.label takes a label for each axis, as in ("time", None), got {describe(axes)}.')
    for each in axes:
        if each is not None and not isinstance(each, str):
            raise LogValueError(f"lox.audit.label takes strings and None as labels, got {describe(each)}.")
    for leaf in jax.tree.leaves(x):
        if jnp.ndim(leaf) != len(axes):
            raise LogValueError(
                f"lox.audit.label is given {len(axes)} labels, {tuple(axes)}, and an array of shape "
                f"{jnp.shape(leaf)}: {jnp.ndim(leaf)} axes."
            )
    if not auditing.value:
        return x
    labelled: T = jax.tree.map(lambda leaf: label_p.bind(jnp.asarray(leaf), axes=tuple(axes)), x)
    return labelled


@label_p.def_impl
def _same(x: jax.Array, *, axes: tuple[str | None, ...]) -> jax.Array:
    return x


@label_p.def_abstract_eval
def _type(x: jax.core.ShapedArray, *, axes: tuple[str | None, ...]) -> jax.core.ShapedArray:
    return x


def _batch(
    operands: Sequence[jax.Array], places: Sequence[int], *, axes: tuple[str | None, ...]
) -> tuple[jax.Array, int]:
    ((x,), (place,)) = operands, places
    return label_p.bind(x, axes=(*axes[:place], None, *axes[place:])), place


mlir.register_lowering(label_p, lambda ctx, x, *, axes: [x])
batching.primitive_batchers[label_p] = _batch
ad.deflinear2(label_p, lambda cotangent, x, *, axes: [cotangent])
