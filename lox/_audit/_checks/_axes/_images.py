"""Means over the axes of an image that a convolution gave."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._origins import Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

IMAGES = Kind(
    "LOX113",
    "warning",
    "A mean over the channels of an image and some of its places",
    "Name the axes of the places: with channels last, x.mean(axis=(1, 2)); with channels first, x.mean(axis=(2, 3)).",
    "Means of images are over all places, over the channels, or over both.",
    "The axes of means were compared with those that convolutions give to places and channels.",
)

_SAME = primitives("convert_element_type", "stop_gradient", "copy")
_ELEMENTWISE = _SAME | primitives(
    *("add", "sub", "mul", "div", "max", "min", "square", "integer_pow", "sqrt", "rsqrt", "abs", "neg", "select_n"),
    *("exp", "log", "tanh", "logistic", "erf", "clamp", "custom_jvp_call"),
)
_DEEP = 40


def images(audited: Audited) -> Iterator[Finding | Held]:
    """LOX113: a sum over one of the axes of a convolution that are places, and over its channels."""
    if not audited.has("conv_general_dilated"):
        return
    for step, location in audited.of("reduce_sum"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        made = _convolution(step.inputs[0], audited.origins)
        if made is None:
            continue
        _, channels, *places = made.equation.params["dimension_numbers"].out_spec
        over = {*step.equation.params["axes"]}
        if channels not in over or over.isdisjoint(places) or over.issuperset(places):
            yield IMAGES.fine(location)
            continue
        left = " and ".join(str(axis) for axis in sorted({*places} - over))
        yield IMAGES.at(
            location,
            f"A value of shape {step.inputs[0].shape}, with the places of an image in axes "
            f"{' and '.join(map(str, sorted(places)))} and its channels in axis {channels}, is added up over axes "
            f"{' and '.join(map(str, sorted(over)))}: the places along axis {left} stay apart, and channels are mixed.",
        )


def _convolution(value: Value, origins: Origins) -> Step | None:
    """The convolution that a value is made of, element by element."""
    for _ in range(_DEEP):
        maker = origins.of(value, _SAME).maker
        if maker is None or maker.equation.primitive in primitives("conv_general_dilated"):
            return maker
        if maker.equation.primitive not in _ELEMENTWISE:
            return None
        alike = [each for each in maker.inputs if each.shape == value.shape and each.number is None]
        if not alike:
            return None
        value = alike[0]
    return None


KINDS = (IMAGES,)
CHECKS = (images,)
