"""Between which numbers the results of an operation lie, by interval arithmetic."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._audit._facts import ANY, Interval, hull, of_dtype
from lox._audit._label import label_p
from lox._audit._program import Step, Value, alike
from lox._audit._rules import Rules, primitives

Rule = Callable[..., Interval]
_rule = Rules[Rule]()


def range_of(step: Step) -> list[Interval]:
    """The ranges of what comes out of a step; what its dtype tells where the step has no rule."""
    known = [of_dtype(var.aval.dtype) if hasattr(var.aval, "dtype") else ANY for var in step.equation.outvars]
    if step.equation.primitive in _same:
        return [value.fact.range for value in step.inputs[: len(known)]]
    if step.equation.primitive in _parts:
        return [step.inputs[0].fact.range] * len(known)
    rule = _rule[step.equation.primitive]
    if rule is None or len(known) != 1:
        return known
    dtype = step.equation.outvars[0].aval.dtype
    if getattr(dtype, "kind", "") == "c":  # Keys have none.
        return known
    return [_within(rule(step, *[value.fact.range for value in step.inputs]), dtype, known[0])]


def exact_range(step: Step) -> Interval | None:
    """The range of the one thing that comes out of a step if its dtype had no end; None of a step without a rule."""
    rule = _rule[step.equation.primitive]
    if rule is None or len(step.equation.outvars) != 1:
        return None
    return rule(step, *(value.fact.range for value in step.inputs))


def _within(found: Interval, dtype: Any, known: Interval) -> Interval:
    """What a value of a dtype may be, of which the dtype tells something, and interval arithmetic the rest."""
    low, high = found.low, found.high
    least, most, floating = _limits(dtype)
    if floating:
        low, high = _rounded(low, dtype), _rounded(high, dtype)
    if math.isnan(low) or math.isnan(high):  # Also of a dtype that has no infinity.
        return known
    if not (least <= low and high <= most) and found != known:
        return known  # It may wrap around.
    low, high = max(low, known.low), min(high, known.high)
    return found if low == found.low and high == found.high else Interval(low, high)


@functools.lru_cache(maxsize=1024)
def _limits(dtype: Any) -> tuple[float, float, bool]:
    """The least and the greatest number of a dtype, infinite but for integers, and whether it rounds."""
    if jnp.issubdtype(dtype, jnp.integer):
        info = jax.dtypes.iinfo(dtype)
        return float(info.min), float(info.max), False
    return -math.inf, math.inf, bool(jnp.issubdtype(dtype, jnp.floating))


@functools.lru_cache(maxsize=4096)
def _rounded(number: float, dtype: Any) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(number).astype(dtype))


COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    primitive: getattr(operator, name)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for primitive in primitives(name)
}
"""What each comparison asks of two numbers."""

_same = primitives("sort")
"""Each output has the elements of its input."""

_parts = primitives("split")
"""Each output has some of the elements of the input."""


@_rule("broadcast_in_dim", "reshape", "transpose", "squeeze", "slice", "dynamic_slice", "rev")
@_rule("copy", "stop_gradient", "reduce_max", "reduce_min", "cummax", "cummin", "sharding_constraint", "reshard")
@_rule("pmax", "pmin", "name", "tile", "all_gather", "ppermute", "all_to_all")
def _first(step: Step, first: Interval, *_: Interval) -> Interval:
    return first if step.inputs[0].aval.size else ANY


_rule.of[label_p] = _first


@_rule("gather")
def _gather(step: Step, first: Interval, *_: Interval) -> Interval:
    if step.equation.params["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP or _is_inside(step):
        return first
    fill, dtype = float(step.equation.params["fill_value"]), step.inputs[0].aval.dtype
    if jnp.issubdtype(dtype, jnp.integer) and fill in _limits(dtype)[:2]:
        return ANY  # It says that nothing was there, and is no number.
    return first if math.isnan(fill) else hull([first, Interval(fill, fill)])


def _is_inside(step: Step) -> bool:
    """Whether all indices that a step reads at are known to be inside its array."""
    numbers, sizes = step.equation.params["dimension_numbers"], step.equation.params["slice_sizes"]
    ends = [step.inputs[0].shape[axis] - sizes[axis] for axis in numbers.start_index_map]
    indices = step.inputs[1].fact.range
    return 0 <= indices.low and indices.high <= min(ends, default=0)


@_rule("concatenate", "stack")
def _together(step: Step, *parts: Interval) -> Interval:
    return hull(parts)


@_rule("pad", "dynamic_update_slice")
def _put(step: Step, first: Interval, second: Interval, *_: Interval) -> Interval:
    return hull([first, second])


@_rule("select_n")
def _select(step: Step, which: Interval, *cases: Interval) -> Interval:
    if which.number is not None:
        return cases[int(which.number)]
    by = modulus(step)
    if by is None or not jnp.issubdtype(step.inputs[1].aval.dtype, jnp.integer):
        return hull(cases)
    return Interval(0, by.high - 1) if by.low > 0 else Interval(by.low + 1, 0)


def modulus(step: Step) -> Interval | None:
    """The range of what numbers are divided by, all of one sign, if a step makes remainders of that sign.

    So does Python's `%`, as `jnp.remainder` has it: the divisor is added where the remainder has the other sign.
    """
    rest, moved = step.inputs[1].maker, step.inputs[-1].maker
    if len(step.inputs) != 3 or rest is None or moved is None or rest.equation.primitive not in primitives("rem"):
        return None
    by = rest.inputs[1]
    if moved.equation.primitive not in primitives("add") or step.inputs[1] not in moved.inputs:
        return None
    added = moved.inputs[moved.inputs[0] is step.inputs[1]]
    return by.fact.range if added is by and 0 not in by.fact.range else None


@_rule("lt", "le", "gt", "ge")
def _compared(step: Step, first: Interval, second: Interval) -> Interval:
    exact = all(jnp.issubdtype(value.aval.dtype, jnp.integer) for value in step.inputs)
    if not exact and (first.low != first.high or second.low != second.high):
        return Interval(0, 1)  # NaN may be among them.
    holds = COMPARISONS[step.equation.primitive]
    found = {float(holds(one, other)) for one in (first.low, first.high) for other in (second.low, second.high)}
    return Interval(min(found), max(found))


@_rule("eq", "ne")
def _equal(step: Step, first: Interval, second: Interval) -> Interval:
    exact = all(jnp.issubdtype(value.aval.dtype, jnp.integer) for value in step.inputs)
    one, other = first.number is not None, second.number is not None
    differ = first.high < second.low or second.high < first.low
    if not (one and other) and not (exact and differ):
        return Interval(0, 1)
    found = float(differ is (step.equation.primitive in primitives("ne")))
    return Interval(found, found)


@_rule("and", "or", "not")
def _logic(step: Step, first: Interval, second: Interval = ANY) -> Interval:
    if not jnp.issubdtype(step.inputs[0].aval.dtype, jnp.bool_):
        return ANY
    if step.equation.primitive in primitives("not"):
        return Interval(1 - first.high, 1 - first.low)
    choose = min if step.equation.primitive in primitives("and") else max
    return Interval(choose(first.low, second.low), choose(first.high, second.high))


@_rule("convert_element_type")
def _convert(step: Step, first: Interval) -> Interval:
    new, old = step.equation.params["new_dtype"], step.inputs[0].aval.dtype
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in (new, old)) or jnp.issubdtype(new, jnp.bool_):
        return ANY
    if jnp.issubdtype(new, jnp.integer) and not jnp.issubdtype(old, jnp.integer):
        return Interval(_truncated(first.low), _truncated(first.high))
    return first


def _truncated(number: float) -> float:
    return number if math.isinf(number) else float(math.trunc(number))


def _monotone(function: Callable[[Any], Any]) -> Rule:
    @functools.lru_cache(maxsize=1024)
    def at(end: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(np.float64(end)))

    def rule(step: Step, first: Interval) -> Interval:
        low, high = at(first.low), at(first.high)
        return Interval(-math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high)

    return rule


MONOTONE: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "cbrt": np.cbrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "sign": np.sign,
    "erf": math.erf,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": lambda x: np.sqrt(np.maximum(x, 0)),
}
for _name, _function in MONOTONE.items():
    _rule(_name)(_monotone(_function))


@_rule("sin", "cos")
def _wave(step: Step, first: Interval) -> Interval:
    return Interval(-1, 1)


@_rule("neg")
def _neg(step: Step, first: Interval) -> Interval:
    return Interval(-first.high, -first.low)


@_rule("abs")
def _abs(step: Step, first: Interval) -> Interval:
    high = max(abs(first.low), abs(first.high))
    return Interval(0 if 0 in first else min(abs(first.low), abs(first.high)), high)


@_rule("square")
def _square(step: Step, first: Interval) -> Interval:
    size = _abs(step, first)
    return Interval(size.low * size.low, size.high * size.high)  # The square of a float raises an OverflowError.


@_rule("one_minus_square")
def _one_minus_square(step: Step, first: Interval) -> Interval:
    square = _square(step, first)
    return Interval(1 - square.high, 1 - square.low)


@_rule("integer_pow")
def _integer_pow(step: Step, first: Interval) -> Interval:
    power = step.equation.params["y"]
    if power < 0 and 0 in first:
        return Interval(0 if power % 2 == 0 else -math.inf, math.inf)
    ends = [_power(first.low, power), _power(first.high, power)]
    if power % 2 == 0 and 0 in first:
        ends.append(0.0)
    return Interval(min(ends), max(ends))


def _power(base: float, power: int) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(base) ** power)


@_rule("add")
def _add(step: Step, first: Interval, second: Interval) -> Interval:
    return Interval(first.low + second.low, first.high + second.high)


@_rule("sub")
def _sub(step: Step, first: Interval, second: Interval) -> Interval:
    if _is_reduction("reduce_max", step.inputs[1], step.inputs[0]):
        return Interval(first.low - second.high, 0)
    return Interval(first.low - second.high, first.high - second.low)


@_rule("mul")
def _mul(step: Step, first: Interval, second: Interval) -> Interval:
    if alike(*step.inputs):
        return _square(step, first)
    return _product(first, second)


def _product(first: Interval, second: Interval) -> Interval:
    ends = [_times(a, b) for a, b in itertools.product((first.low, first.high), (second.low, second.high))]
    return Interval(min(ends), max(ends))


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


@_rule("div")
def _div(step: Step, first: Interval, second: Interval) -> Interval:
    if first.low >= 0 and _is_reduction("reduce_sum", step.inputs[1], step.inputs[0]):
        return Interval(0, 1)
    integers = jnp.issubdtype(step.inputs[0].aval.dtype, jnp.integer)
    if second.low <= 0 <= second.high:
        positive = first.low >= 0 and second.low >= 0
        return Interval(0, math.inf) if positive and not integers else ANY
    with np.errstate(all="ignore"):
        ends = [
            float(np.float64(a) / np.float64(b))
            for a, b in itertools.product((first.low, first.high), (second.low, second.high))
        ]
    if any(map(math.isnan, ends)):
        return Interval(0, math.inf) if first.low >= 0 and second.low > 0 else ANY
    return Interval(*(_truncated(end) if integers else end for end in (min(ends), max(ends))))


def _is_reduction(name: str, whole: Value, part: Value) -> bool:
    """Whether a value is the reduction of another over some axes, at most broadcast since."""
    while whole.maker is not None and whole.maker.equation.primitive in _passing:
        arrays = [value for value in whole.maker.inputs if value.maker is not None]
        if whole.maker.equation.primitive in primitives("select_n"):
            is_bounded = math.isfinite(part.fact.range.high - part.fact.range.low)
            arrays = _if_finite(whole.maker) if is_bounded else []
        if len(arrays) != 1:
            return False
        (whole,) = arrays
    maker = whole.maker
    return maker is not None and maker.equation.primitive in primitives(name) and alike(maker.inputs[0], part)


def _if_finite(select: Step) -> list[Value]:
    """What a choice takes if that is finite; nothing if it chooses by something else."""
    asked, chosen = select.inputs[0].maker, select.inputs[-1]
    if asked is None or asked.equation.primitive not in primitives("is_finite") or asked.inputs[0] is not chosen:
        return []
    return [chosen]


_passing = primitives("broadcast_in_dim", "reshape", "stop_gradient", "max", "select_n")
"""What comes between a reduction and its use where a library normalizes; a maximum only with a constant."""


@_rule("max")
def _max(step: Step, first: Interval, second: Interval) -> Interval:
    return Interval(max(first.low, second.low), max(first.high, second.high))


@_rule("min")
def _min(step: Step, first: Interval, second: Interval) -> Interval:
    return Interval(min(first.low, second.low), min(first.high, second.high))


@_rule("clamp")
def _clamp(step: Step, low: Interval, first: Interval, high: Interval) -> Interval:
    return _min(step, _max(step, first, low), high)


@_rule("rem")
def _rem(step: Step, first: Interval, second: Interval) -> Interval:
    size = max(abs(second.low), abs(second.high))
    if second.low <= 0 <= second.high or math.isinf(size):
        return ANY
    if jnp.issubdtype(step.inputs[0].aval.dtype, jnp.integer):
        size -= 1
    return Interval(0 if first.low >= 0 else -size, 0 if first.high <= 0 else size)


@_rule("reduce_sum", "cumsum")
def _sum(step: Step, first: Interval) -> Interval:
    params, shape = step.equation.params, step.inputs[0].aval.shape
    axes = params["axes"] if "axes" in params else (params["axis"],)
    count = math.prod(shape[axis] for axis in axes)
    total = Interval(_times(count, first.low), _times(count, first.high))
    return total if "axes" in params else hull([first, total])


@_rule("argmax", "argmin")
def _arg(step: Step, first: Interval) -> Interval:
    return Interval(0, max(0, step.inputs[0].aval.shape[step.equation.params["axes"][0]] - 1))


@_rule("iota")
def _iota(step: Step, *_: Interval) -> Interval:
    return Interval(0, max(0, step.equation.params["shape"][step.equation.params["dimension"]] - 1))


@_rule("dot_general")
def _dot(step: Step, first: Interval, second: Interval) -> Interval:
    (axes, _), _ = step.equation.params["dimension_numbers"]
    count = math.prod(step.inputs[0].aval.shape[axis] for axis in axes)
    each = _product(first, second)
    return Interval(_times(count, each.low), _times(count, each.high))
