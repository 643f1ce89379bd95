"""Products of vectors whose lengths were made one along another axis."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._attention import scores_of
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._checks._numerics._squashes import squashes
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import transformations
from lox._audit._origins import LAID_OUT, Origins
from lox._audit._program import Step, Value, alike
from lox._audit._rules import primitives

LENGTHS = Kind(
    "LOX111",
    "warning",
    "Similarities of vectors that have the length one along another axis",
    "Divide by the norm over the axis that the product sums over, such as x / jnp.linalg.norm(x, axis=-1, "
    "keepdims=True).",
    "Products of vectors of length one sum over the axis of these vectors.",
    "The axis of each norm that divides was compared with the axis that products sum over.",
)

_SAME = primitives("convert_element_type", "copy", "stop_gradient", "abs")
_ROOTS = _SAME | LAID_OUT | primitives("sqrt", "rsqrt")
_WITH_NUMBER = primitives("add", "max", "clamp", "select_n")
_SQUARES = primitives("square", "integer_pow", "mul")


def lengths(audited: Audited) -> Iterator[Finding | Held]:
    """LOX111: both operands of a product are divided by their norms over an axis that it does not sum over.

    Only what goes into a softmax is meant to be cosines: a basis of vectors of length one also has a projection.
    """
    scores = audited.once(_scores)
    for step, location in audited.of("dot_general") if scores else ():
        (left, right), _ = step.equation.params["dimension_numbers"]
        if step not in scores or len(left) != 1 or "transpose" in transformations(step.equation):
            continue
        both = [
            _along(value, axes[0], audited.origins) for value, axes in zip(step.inputs, (left, right), strict=False)
        ]
        if False in both and None not in both:
            one, other = step.inputs[:2]
            which = "both are" if True not in both else f"{(one, other)[both.index(False)].called} is"
            yield LENGTHS.at(
                location,
                f"A product of {one.text} and {other.text} sums over axes {left[0]} and {right[0]}, and the norms that "
                f"{which} divided by are over other axes: it is no cosine.",
            )
        elif True in both:
            yield LENGTHS.fine(location)


def _scores(audited: Audited) -> set[Step]:
    """The products that the logits of softmaxes come out of."""
    found = (scores_of(squash.logits, audited.origins) for squash in audited.once(squashes).values())
    return {each[0] for each in found if each is not None}


def _along(value: Value, axis: int | None, origins: Origins) -> bool | None:
    """Say whether an array was divided by norms along an axis; None if it was not divided by norms over one axis."""
    while True:
        value, axis = laid_out(value, axis, origins)
        maker = value.maker
        if maker is None or axis is None:
            return None
        if maker.equation.primitive in _SAME:
            (value,) = maker.inputs
            continue
        if maker.equation.primitive not in primitives("div", "mul"):
            return None
        divides = maker.equation.primitive in primitives("div")
        pairs = [maker.inputs] if divides else [maker.inputs, maker.inputs[::-1]]
        over = next((axes for one, other in pairs if (axes := _norm(other, one, not divides, origins))), None)
        if over is not None:
            return axis in over if len(over) == 1 else None
        unknown = [each for each in maker.inputs if each.number is None]
        if len(unknown) != 1 or unknown[0].shape != value.shape:
            return None
        (value,) = unknown


def _norm(value: Value, array: Value, inverse: bool, origins: Origins) -> tuple[int, ...] | None:
    """The axes that a value is the norm of an array over, or the inverse of that."""
    is_root = is_inverse = False
    calls: tuple[Step, ...] = ()  # Several calls may share what is inside them.
    while True:
        value, calls = origins.met(value, LAID_OUT | _SAME, calls)
        maker: Step | None = value.maker
        if maker is None:
            return None
        arrays = [each for each in maker.inputs if each.number is None and each.shape]
        if maker.equation.primitive in _ROOTS:
            is_root, is_inverse = True, is_inverse or maker.equation.primitive in primitives("rsqrt")
        elif maker.equation.primitive in primitives("reduce_sum"):
            inner, calls = origins.met(arrays[0], _SAME, calls)
            squares = inner.maker
            if not is_root or is_inverse != inverse or squares is None:
                return None
            if squares.equation.primitive not in _SQUARES or not alike(squares.inputs[0], squares.inputs[-1]):
                return None
            is_same = origins.met(squares.inputs[0], _SAME, calls)[0] is origins.of(array, _SAME)
            return tuple(maker.equation.params["axes"]) if is_same else None
        elif maker.equation.primitive in primitives("select_n"):
            arrays = [each for each in maker.inputs[1:] if each.number is None]
        elif maker.equation.primitive not in _WITH_NUMBER:
            return None
        if len(arrays) != 1:
            return None
        (value,) = arrays


KINDS = (LENGTHS,)
CHECKS = (lengths,)
