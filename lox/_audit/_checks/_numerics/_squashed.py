"""Logits that were squashed before, and logarithms of what squashing makes zero."""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax

from lox._audit._audited import Audited
from lox._audit._checks._numerics._exponentials import PARTS, chosen_from, made_by
from lox._audit._checks._numerics._integers import is_float
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._checks._numerics._squashes import Name, Squash, is_gumbel, squashes
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._loops import scans
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

TWICE = Kind(
    "LOX813",
    "warning",
    "A softmax or sigmoid of what already went through one",
    "Pass the logits: leave out the first softmax or sigmoid, or use what takes probabilities.",
    "What takes logits gets no probabilities.",
    "What goes into each softmax, sigmoid and function of JAX that takes logits was followed back to what makes it.",
)
LOG_OF_SQUASHED = Kind(
    "LOX814",
    "warning",
    "The logarithm of what a sigmoid, a softmax or a tanh brings to zero",
    "Use jax.nn.log_sigmoid(x) for log(sigmoid(x)), jax.nn.log_sigmoid(-x) for log(1 - sigmoid(x)), and "
    "2 * (jnp.log(2) - x - jax.nn.softplus(-2 * x)) for log(1 - tanh(x)**2).",
)

_TAKES: dict[Name, str] = {
    "softmax": "A softmax",
    "sigmoid": "A sigmoid",
    "log_softmax": "A log_softmax or logsumexp",
    "log_sigmoid": "A log_sigmoid or softplus",
    "categorical": "jax.random.categorical",
    "gumbel": "A choice by Gumbel noise",
}
_FLOWS = FLOWS | primitives("neg")
_CHOSEN = FLOWS | PARTS | primitives("top_k", "sort", "rev")
_MOST = 20
_LARGE = 1e3
"""Logits are masked by numbers below minus this."""
_SQUARES = primitives("square", "integer_pow", "mul")


def twice(audited: Audited) -> Iterator[Finding | Held]:
    """LOX813: probabilities go in where logits should."""
    known = audited.once(squashes)
    for squash in known.values():
        if not is_users(squash.location.of_user.file):
            continue
        before = known.get(audited.origins.of(squash.logits, _FLOWS, loops=True).maker)  # type: ignore[arg-type]
        if before is None:
            before = _chances(squash, known, audited) or _parted(squash, known, audited.origins)
        is_same = before is not None and before.name in ("softmax", "sigmoid") and before is not squash
        bounded = before is not None and (before.name, squash.name) == ("sigmoid", "softmax")
        if before is not None and is_same and not bounded:  # A softmax of numbers between 0 and 1 may be meant.
            yield TWICE.at(
                squash.location,
                f"{_TAKES[squash.name]} takes logits, and gets {_from(before)}: numbers between 0 and 1.",
            )
        else:
            yield TWICE.fine(squash.location)


def _chances(squash: Squash, known: dict[Step, Squash], audited: Audited) -> Squash | None:
    """The softmax that logits are made from, in this iteration or the one before.

    Between the two are a factor, limits, a mask, noise, or a mean over another axis.
    """
    value, origins, carried = squash.logits, audited.origins, audited.once(_carried)
    for _ in range(_MOST):
        value = origins.of(value, _FLOWS)
        value = origins.of(carried.get(value, value), _FLOWS)
        maker = value.maker
        found = known.get(maker)  # type: ignore[arg-type]
        if maker is None or found is not None:
            return found if found is not None and found.name == "softmax" else None
        primitive, unknown = maker.equation.primitive, [each for each in maker.inputs if each.number is None]
        if primitive in primitives("reduce_sum"):
            inside = known.get(origins.of(maker.inputs[0], FLOWS).maker)  # type: ignore[arg-type]
            if inside is None or not set(inside.axes).isdisjoint(maker.equation.params["axes"]):
                return None
        elif primitive in primitives("select_n"):
            unknown = [each for each in unknown if each is not maker.inputs[0]]
            numbers = [each.number for each in maker.inputs[1:] if each.number is not None]
            if len(numbers) != 1 or numbers[0] > -_LARGE:
                return None
        elif primitive in primitives("add", "sub") and len(unknown) == 2:
            unknown = [each for each in unknown if not (_is_penalty(each, origins) or is_gumbel(each, origins))]
            if len(unknown) == 2 and squash.name == "log_softmax" and value is origins.of(squash.logits, _FLOWS):
                summed = [known.get(origins.of(each, FLOWS).maker) for each in unknown]  # type: ignore[arg-type]
                alike = [each for each in summed if each and each.name == "softmax" and each.axes == squash.axes]
                return alike[0] if len(alike) == 1 else None
        elif primitive not in primitives("mul", "div", "add", "sub", "max", "min", "clamp"):
            return None
        if len(unknown) != 1 or (primitive in primitives("div", "sub") and unknown[0] is not maker.inputs[0]):
            return None
        (value,) = unknown
    return None


def _parted(squash: Squash, known: dict[Step, Squash], origins: Origins) -> Squash | None:
    """The softmax from which logits are taken along its axis, such as its largest elements."""
    if squash.name in ("sigmoid", "log_sigmoid"):
        found = known.get(origins.of(squash.logits, _FLOWS | PARTS | primitives("reduce_max")).maker)  # type: ignore[arg-type]
        return found if found is not None and found.name == "softmax" else None
    value, axis = squash.logits, squash.axes[0] if len(squash.axes) == 1 else None
    for _ in range(_MOST):
        value, axis = laid_out(value, axis, origins)
        maker = value.maker
        if maker is None or axis is None:
            break
        found = known.get(maker)
        if found is not None:
            return found if found.name == "softmax" and found.axes == (axis,) else None
        if maker.equation.primitive not in _CHOSEN:
            break
        if maker.equation.primitive in primitives("gather"):
            axis = _axis_of_gather(maker, axis)
        value = maker.inputs[maker.outputs.index(value)] if len(maker.inputs) == len(maker.outputs) else maker.inputs[0]
    return None


def _axis_of_gather(gather: Step, axis: int) -> int | None:
    """The axis of an array along which an index or a slice makes an axis of what is taken from it."""
    numbers, array = gather.equation.params["dimension_numbers"], gather.inputs[0]
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    if axis in numbers.offset_dims:
        left = [each for each in range(len(array.shape)) if each not in hidden]
        return int(left[numbers.offset_dims.index(axis)])
    batch = [each for each in range(len(gather.outputs[0].shape)) if each not in numbers.offset_dims].index(axis)
    if batch in numbers.start_indices_batching_dims:
        return int(numbers.operand_batching_dims[numbers.start_indices_batching_dims.index(batch)])
    return int(numbers.start_index_map[0]) if len(numbers.start_index_map) == 1 else None


def _carried(audited: Audited) -> dict[Value, Value]:
    """For each carried value of an iteration, the one that the iteration before returns."""
    return {inside: new for scan, _ in scans(audited) for _, inside, new in scan.carry if inside is not new}


def differences(audited: Audited) -> Iterator[Finding]:
    """LOX813: probabilities are subtracted from logarithms of probabilities."""
    known, origins = audited.once(squashes), audited.origins
    for step, location in audited.of("sub") if known else ():
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        one, other = step.inputs
        chances = known.get(origins.of(other, FLOWS).maker)  # type: ignore[arg-type]
        logarithm = made_by(origins.of(one, FLOWS), primitives("log"))
        if chances is None or chances.name != "softmax" or logarithm is None:
            continue
        inside = [origins.of(logarithm.inputs[0], FLOWS)]
        if inside[0].maker is not None:
            inside += [origins.of(each, FLOWS) for each in inside[0].maker.inputs]
        if any(getattr(known.get(each.maker), "name", "") == "softmax" for each in inside):  # type: ignore[arg-type]
            yield TWICE.at(
                location,
                f"From logarithms of probabilities, {_from(chances)} is subtracted as it is: numbers between 0 and 1, "
                "and no logarithms.",
            )


def _is_penalty(value: Value, origins: Origins) -> bool:
    """Say whether a value is a mask times a large number, as is added to logits of what is left out."""
    product = made_by(origins.of(value, _FLOWS), primitives("mul"))
    return product is not None and any(each.number is not None and abs(each.number) > _LARGE for each in product.inputs)


def _from(squash: Squash) -> str:
    where = f" of {squash.location.of_user}" if squash.location.of_user.file else ""
    return f"the {squash.name}{where}"


def logarithm(audited: Audited) -> Iterator[Finding | Held]:
    """LOX814: the logarithm of a sigmoid, or of what it, a softmax or the square of a tanh leaves of one."""
    known, choosing = audited.once(squashes), audited.once(chosen_from)
    for step, location in audited.of("log", "log2", "log1p"):
        result = step.outputs[0]
        in_vain = result not in audited.live and "jvp" not in transformations(step.equation)
        if in_vain or result in choosing or not is_float(result):
            continue
        written = _written(step, known, audited.origins)
        if written is not None:
            name, least = written
            yield LOG_OF_SQUASHED.at(location, f"{name} is -inf, and its derivative infinite, where {least}.")


def _written(step: Step, known: dict[Step, Squash], origins: Origins) -> tuple[str, str] | None:
    """How the logarithm of what may be zero is written, and where it is zero."""
    inside = origins.of(step.inputs[0], FLOWS | PARTS)
    if step.equation.primitive in primitives("log1p"):
        minus = made_by(inside, primitives("neg"))
        left = minus.inputs[0] if minus is not None else None
    else:
        whole = known.get(inside.maker)  # type: ignore[arg-type]
        if whole is not None and whole.name == "sigmoid" and whole.logits.fact.range.low < -_largest(inside):
            return "log(sigmoid(x))", f"x is below {-_largest(inside):.3g}"
        left = _left_of_one(inside)
    if left is None:
        return None
    end = (jax.dtypes.finfo(left.aval.dtype).nmant + 2) * math.log(2)
    squashed = origins.of(left, FLOWS | PARTS)
    squash = known.get(squashed.maker)  # type: ignore[arg-type]
    if squash is not None and squash.name == "sigmoid" and squash.logits.fact.range.high > end:
        return "log(1 - sigmoid(x))", f"x is above {end:.3g}, where the sigmoid is 1"
    if squash is not None and squash.name == "softmax":
        return "log(1 - softmax(x))", f"an element is more than {end:.3g} above all others, where the softmax is 1"
    root = _root(squashed, origins)
    limits = root.inputs[0].fact.range if root is not None else None
    if limits is not None and max(limits.high, -limits.low) > end / 2:
        return "log(1 - tanh(x)**2)", f"x is beyond {end / 2:.3g}, where the tanh is 1 or -1"
    return None


def _left_of_one(value: Value) -> Value | None:
    """What is subtracted from one."""
    minus = made_by(value, primitives("sub"))
    if minus is None:
        return None
    one, left = minus.inputs
    return left if one.number == 1 else None


def _root(value: Value, origins: Origins) -> Step | None:
    """The tanh that a value is the square of."""
    square = made_by(value, _SQUARES)
    if square is None or square.equation.params.get("y", 2) != 2 or len({*square.inputs}) != 1:
        return None
    return made_by(origins.of(square.inputs[0], FLOWS), primitives("tanh"))


def _largest(value: Value) -> float:
    """The number above which the exponential is infinite."""
    return math.log(float(jax.dtypes.finfo(value.aval.dtype).max))


KINDS = (TWICE, LOG_OF_SQUASHED)
CHECKS = (twice, differences, logarithm)
