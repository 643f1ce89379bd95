"""Tells which elements of the operands an element of a result depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lox._audit._rules import primitives
from lox._sharding import like

Pairs = Sequence[tuple[int, int]]
"""Axes along which an element of the result depends on the same element of the operand: of the operand, the result."""

ELEMENTWISE = primitives(
    *"abs acos acosh add add_jaxvals and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp complex "
    "conj convert_element_type copy cos cosh custom_lin device_put digamma div eq erf erf_inv erfc exp exp2 expm1 "
    "floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p log2 logistic lt max min "
    "mul name ne neg nextafter not one_minus_square or polygamma pow real reduce_precision "
    "regularized_incomplete_beta rem round rsqrt sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta "
    "sharding_constraint optimization_barrier pvary reshard".split()
)
MOVES = primitives(
    *"broadcast_in_dim concatenate dynamic_slice dynamic_update_slice gather pad reshape rev scatter select_n slice "
    "split squeeze stack tile transpose unstack".split()
)
REDUCTIONS = primitives(
    *"argmax argmin reduce_max reduce_min reduce_prod reduce_sum reduce_and reduce_or reduce_xor".split()
)
CUMULATIVE = primitives("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
DOT = primitives("dot_general")
COLLECTIVES = primitives(
    *"psum pmax pmin psum_invariant ppermute all_gather all_gather_invariant all_to_all reduce_scatter".split()
)
_ON_ELEMENTS = ELEMENTWISE | primitives("psum", "pmax", "pmin", "psum_invariant", "ppermute")
COMPARISONS = primitives("eq", "ge", "gt", "le", "lt", "ne", "eq_to", "le_to", "lt_to")


def pairs(
    primitive: Any, params: dict[str, Any], shapes: Sequence[tuple[int, ...]], place: int, out: tuple[int, ...]
) -> Pairs | None:
    """The axes that operand `place` of an operation shares with its first result; None where that is not known.

    Args:
        primitive: The primitive.
        params: Its parameters.
        shapes: The shapes of the operands.
        place: The number of the operand.
        out: The shape of the result.
    """
    shape = shapes[place]
    if primitive in _ON_ELEMENTS:
        return [(axis, axis) for axis, size in enumerate(shape) if size == out[axis]]
    if primitive in REDUCTIONS:
        kept = [axis for axis in range(len(shape)) if axis not in params["axes"]]
        return [(axis, place) for place, axis in enumerate(kept)]
    if primitive in CUMULATIVE:
        return [(axis, axis) for axis in range(len(shape)) if axis != params["axis"]]
    if primitive in DOT:
        contracted, batch = params["dimension_numbers"]
        free = [
            [axis for axis in range(len(each)) if axis not in (*contracted[side], *batch[side])]
            for side, each in enumerate(shapes)
        ]
        first = len(batch[0]) + (len(free[0]) if place else 0)
        return [(axis, i) for i, axis in enumerate([*batch[place]])] + [
            (axis, first + i) for i, axis in enumerate(free[place])
        ]
    return None


def spread(mask: np.ndarray[Any, Any], of: Pairs, shape: tuple[int, ...], backwards: bool) -> Any:
    """A mask over one side of an operation as one over the other side.

    Args:
        mask: The elements.
        of: The axes that both sides share, of the operand and of the result.
        shape: The shape of the other side.
        backwards: Whether the mask is over the result, rather than over the operand.
    """
    of = sorted(((out, own) if backwards else (own, out)) for own, out in of)
    kept = [own for own, _ in of]
    summed = mask.any(axis=tuple(axis for axis in range(mask.ndim) if axis not in kept))
    expanded = np.transpose(summed, np.argsort([other for _, other in of])) if of else summed
    sizes = [1] * len(shape)
    for own, other in of:
        sizes[other] = mask.shape[own]
    return np.broadcast_to(expanded.reshape(sizes), shape)


def sources(run: Any, operands: Sequence[Any], is_moved: Sequence[bool], outs: int) -> list[np.ndarray[Any, Any]]:
    """For each element of the results the number of the element of the operands that it is; 0 where it is none.

    Args:
        run: The operation, which merely moves elements.
        operands: Its operands.
        is_moved: Which of them it moves, while the others say where to.
        outs: The number of results.
    """
    first, numbered = 1, []
    for operand, moved in zip(operands, is_moved, strict=True):
        if moved:
            numbers = np.arange(first, first + np.size(operand), dtype=np.int32).reshape(np.shape(operand))
            first += numbers.size
            numbered.append(like(operand, numbers))
        else:
            numbered.append(operand)
    found = run(*numbered)
    return [np.maximum(np.asarray(each), 0) for each in found][:outs]
