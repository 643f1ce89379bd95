"""Indices that are known to be outside the array."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._numerics._accesses import READS, WRITES, Access, accesses
from lox._audit._checks._numerics._exponentials import chosen_from, made_by
from lox._audit._facts import ANY
from lox._audit._files import lines_in, statement_at
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, call, is_users, transformations
from lox._audit._origins import PASSING
from lox._audit._program import Step, Value
from lox._audit._ranges import modulus
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

BEYOND_END = Kind(
    "LOX820",
    "warning",
    "An index beyond the end of an array",
    "Index up to x.shape[0] - 1, as with jnp.clip(i, 0, x.shape[0] - 1) or x[1:] for x[jnp.arange(n) + 1]; what is "
    "to be left out is said by mode=, as in x.at[i].get(mode='fill', fill_value=0) and x.at[i].set(y, mode='drop').",
    "Indices that are known are in their arrays.",
    "The numbers that constant, counted and limited indices get to were compared with the size of the axis.",
)

_LAYOUT = PASSING | primitives("convert_element_type")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_BOUNDS = primitives("lt", "le", "gt", "ge")
_APART = primitives("slice", "unstack")


class Most(NamedTuple):
    """The greatest number that an index gets to.

    Attributes:
        number: The number.
        is_limited: Whether it is limited to that.
        is_filler: Whether some elements get it in the place of an index, where flags that nothing else reads say so.
        is_part: Whether only a part of what was put together is that.
        is_scanned: Whether a loop scans the index: what its last iteration computes may be dropped.
    """

    number: float
    is_limited: bool = False
    is_filler: bool = False
    is_part: bool = False
    is_scanned: bool = False


def beyond_end(audited: Audited) -> Iterator[Finding | Held]:
    """LOX820: the numbers of an index get beyond the end of the axis."""
    known, left_out = Known(audited), audited.once(chosen_from)
    for step, location in (*audited.of(*READS), *audited.of(*WRITES)):
        if not is_users(location.file) or "transpose" in transformations(step.equation):
            continue
        found = [text for access in accesses(step, audited.origins) if (text := known.outside(step, access))]
        if found and (step.outputs[0] in left_out or _is_meant(step, location)):
            continue
        if found:
            yield BEYOND_END.at(location, found[0])
        else:
            yield BEYOND_END.fine(location)


def beyond_classes(audited: Audited) -> Iterator[Finding | Held]:
    """LOX820: `jax.nn.one_hot` of an index that gets beyond its number of classes: such a row is all zeros."""
    known = None
    for step, location in audited.of("eq"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        if not _makes_vectors(step):
            continue
        known = Known(audited) if known is None else known
        for index, counter in (step.inputs, step.inputs[::-1]):
            made = made_by(audited.origins.of(counter, _LAYOUT), primitives("iota"))
            most = known.most(index) if made is not None else None
            classes = made.outputs[0].shape[made.equation.params["dimension"]] if made is not None else 0
            if most is not None and classes and most.number >= classes and not known.is_compared(index):
                yield BEYOND_END.at(
                    location,
                    f"jax.nn.one_hot of {index.called} has {classes} classes, and the index gets up to "
                    f"{most.number:.0f}: there, all of them are zero.",
                )


def _makes_vectors(step: Step) -> bool:
    """Say whether a step compares indices with all classes, for `jax.nn.one_hot`."""
    return any(name.endswith("one_hot") for name in call(step.equation)[1:])


def _is_meant(step: Step, location: Location) -> bool:
    """Say whether the call says what to do with an index beyond the end."""
    mode, names = step.equation.params.get("mode"), set(call(step.equation)[1:])
    if step.equation.primitive in primitives(*READS):
        fills = mode == jax.lax.GatherScatterMode.FILL_OR_DROP and not names.isdisjoint(tracebacks.FILLING)
        if not fills and names.isdisjoint(tracebacks.CLAMPING):
            return True
    elif mode not in (None, jax.lax.GatherScatterMode.FILL_OR_DROP) or not any(map(tracebacks.writes_at, names)):
        return True
    first, last = statement_at(location.file, location.line)
    return any("mode=" in line for line in lines_in(location.file)[first - 1 : last])


class Known:
    """What is known of the numbers of indices."""

    def __init__(self, audited: Audited) -> None:
        self._origins, self._users = audited.origins, audited.users
        self._arguments = {*audited.program.inputs, *self._origins.inputs}
        asking = (step for step, _ in audited.of(*_COMPARISONS) if not _makes_vectors(step))
        compared = (value for step in asking for value in self._compared(step))
        self._compared_with = {*compared}

    def _compared(self, step: Step) -> Iterator[Value]:
        """What a step compares, as far as it is not whether an index is counted from the end."""
        for one, other in (step.inputs, step.inputs[::-1]):
            if other.number != 0:
                value = self._origins.of(one, _LAYOUT)
                yield value
                if (moved := self._moved(value)) is not None:
                    yield self._origins.of(moved[0], _LAYOUT)

    def outside(self, step: Step, access: Access) -> str:
        """What is wrong with an access; empty if nothing is known to be."""
        size = step.inputs[0].shape[access.axis]
        index = self._index(access.at)
        most = self.most(index)
        if most is None or not isinstance(size, int) or not size or most.number + access.size <= size:
            return ""
        is_read = step.equation.primitive in primitives(*READS)
        is_window = most.number < size or not is_read  # JAX may keep it inside on purpose.
        if most.is_limited and is_window and not (is_read and self._is_drawn(index)):
            return ""
        if (most.is_filler or most.is_part) and not is_read:  # So that JAX leaves it out.
            return ""
        if most.is_scanned and most.number + access.size == size + 1:
            return ""
        moved = self._moved(index)
        if not self._compared_with.isdisjoint({index, self._origins.of(moved[0], _LAYOUT) if moved else index}):
            return ""
        array = step.inputs[0].text
        what = (
            f"Element {most.number:.0f}"
            if access.size == 1
            else f"The {access.size} elements from {most.number:.0f} on"
        )
        reads = {True: "read", False: "written"}[is_read]
        return f"{what} along axis {access.axis} of {array} {'is' if access.size == 1 else 'are'} {reads}: {_so(step)}."

    def is_compared(self, value: Value) -> bool:
        """Whether a program asks for how an index compares."""
        return self._origins.of(value, _LAYOUT) in self._compared_with

    def _index(self, value: Value) -> Value:
        """An index before what is below zero is counted from the end."""
        value = self._origins.of(value, _LAYOUT)
        maker = made_by(value, primitives("select_n"))
        if maker is None or len(maker.inputs) != 3:
            return value
        asked, index, moved = (self._origins.of(each, _LAYOUT) for each in maker.inputs)
        is_below, added = made_by(asked, primitives("lt")), made_by(moved, primitives("add"))
        if is_below is None or added is None:
            return value
        alike = {self._origins.of(each.inputs[0], _LAYOUT) for each in (is_below, added)}
        return index if alike == {index} else value

    def _moved(self, value: Value) -> tuple[Value, float] | None:
        """The value that a number is added to, and the number."""
        maker = made_by(value, primitives("add", "sub"))
        if maker is None:
            return None
        one, other = maker.inputs
        if one.number is not None and maker.equation.primitive in primitives("add"):
            one, other = other, one
        if other.number is None:
            return None
        return one, other.number if maker.equation.primitive in primitives("add") else -other.number

    def most(self, value: Value, depth: int = 20) -> Most | None:
        """The greatest number that an index gets to."""
        value = self._origins.of(value, _LAYOUT)
        limits, maker = value.fact.range, value.maker
        if value.number is not None:
            return Most(value.number)
        if maker is None and depth and (rows := self._origins.of(value, _LAYOUT, loops=True)) is not value:
            found = self.most(rows, depth - 1) if value.shape in (rows.shape, rows.shape[1:]) else None
            return None if found is None else found._replace(is_scanned=rows.shape != value.shape)
        if maker is None:
            is_constant = value not in self._arguments and math.isfinite(limits.high)
            return Most(limits.high) if is_constant else None
        if not depth or not maker.outputs[0].aval.size:
            return None
        if maker.equation.primitive in primitives("iota", "argmax", "argmin"):
            return Most(limits.high)
        if maker.equation.primitive in primitives("top_k") and value is maker.outputs[1]:
            return Most(maker.inputs[0].shape[maker.equation.params.get("axis", -1)] - 1)
        if (moved := self._moved(value)) is not None:
            found = self.most(moved[0], depth - 1)
            if found is None:
                return None
            is_limited = found.is_limited and not (moved[1] > 0 and self._is_remainder(moved[0]))
            return found._replace(number=found.number + moved[1], is_limited=is_limited)
        if maker.equation.primitive in primitives("add", "sub"):
            return self._of_two(maker, depth)
        if maker.equation.primitive in primitives("mul", "div"):
            return self._scaled(maker, depth)
        if maker.equation.primitive in primitives("rev", "floor"):
            return self.most(maker.inputs[0], depth - 1)
        if maker.equation.primitive in primitives("slice", "gather", "unstack"):
            found = self.most(maker.inputs[0], depth - 1)
            return found if found is not None and (found.is_limited or found.is_filler) else None
        if maker.equation.primitive in primitives("concatenate"):
            numbers = [each.number for each in maker.inputs if each.number is not None]
            return Most(max(numbers), is_part=True) if numbers else None
        if maker.equation.primitive in primitives("sort"):
            return self.most(maker.inputs[maker.outputs.index(value)], depth - 1)
        if maker.equation.primitive in primitives("min", "max", "clamp"):
            return self._limited(maker, depth)
        if (limit := self._chosen(maker) or self._filled(maker, depth) or self._floored(maker, depth)) is not None:
            return limit
        by = _divisor(maker)
        return None if by is None else Most(math.ceil(by) - 1, is_limited=True)

    def _of_two(self, maker: Step, depth: int) -> Most | None:
        """The greatest number of a sum or difference of two counters along axes of their own."""
        one, other = maker.inputs
        if any(a != 1 and b != 1 for a, b in zip(one.shape, other.shape, strict=False)) or one.shape == ():
            return None
        adds = maker.equation.primitive in primitives("add")
        if adds and self._is_remainder(other):
            one, other = other, one
        first, second = self.most(one, depth - 1), self.most(other, depth - 1) if adds else self._least(other)
        if first is None or second is None or second.is_limited:
            return None
        if first.is_limited and not self._is_remainder(one):
            return None
        number = first.number + second.number if adds else first.number - second.number
        return Most(number, is_limited=first.is_limited)

    def _is_remainder(self, value: Value) -> bool:
        """Whether a number is a remainder, as `jax.random.randint` makes it: all below the divisor occur."""
        value = self._origins.of(value, _LAYOUT)
        moved = self._moved(value)
        value = value if moved is None else self._origins.of(moved[0], _LAYOUT)
        if (floored := made_by(value, primitives("floor"))) is not None:
            value = self._origins.of(floored.inputs[0], _LAYOUT)
        return value.maker is not None and _divisor(value.maker) is not None

    def _is_drawn(self, value: Value) -> bool:
        """Whether a number is one element of an array of remainders, such as `jax.random.randint` draws."""
        value = self._origins.of(value, _LAYOUT)
        whole = self._origins.of(value, _LAYOUT | _APART)
        return whole is not value and self._is_remainder(whole)

    def _least(self, value: Value) -> Most | None:
        """The least number that a counter begins with."""
        value = self._origins.of(value, _LAYOUT)
        is_counter = value.maker is not None and value.maker.equation.primitive in primitives("iota")
        return Most(value.fact.range.low) if is_counter else None

    def _scaled(self, maker: Step, depth: int) -> Most | None:
        """The greatest number of what is multiplied or divided by a positive number."""
        one, other = maker.inputs
        if one.number is not None and maker.equation.primitive in primitives("mul"):
            one, other = other, one
        found = self.most(one, depth - 1) if other.number is not None and other.number > 0 else None
        if found is None or other.number is None:
            return None
        is_product = maker.equation.primitive in primitives("mul")
        return found._replace(number=found.number * other.number if is_product else found.number / other.number)

    def _chosen(self, maker: Step) -> Most | None:
        """The greatest number that a choice gives of `jnp.where(i > most, start, i)`."""
        if maker.equation.primitive not in primitives("select_n") or len(maker.inputs) != 3:
            return None
        asked = self._origins.of(maker.inputs[0], _LAYOUT).maker
        if asked is None:
            return None
        if asked.equation.primitive not in _BOUNDS or asked.inputs[1].number is None:
            return None
        is_above, by = asked.equation.primitive in primitives("gt", "ge"), asked.inputs[1].number
        kept, other = maker.inputs[1:] if is_above else maker.inputs[:0:-1]
        kept, index = (self._origins.of(each, _LAYOUT) for each in (kept, asked.inputs[0]))
        if kept is not index or other.number is None or index.fact.range.high <= by:
            return None
        is_reached = asked.equation.primitive in primitives("gt", "le")
        return Most(max(by if is_reached else by - 1, other.number), is_limited=True)

    def _filled(self, maker: Step, depth: int) -> Most | None:
        """The number that `jnp.where(flags, index, number)` has where there is no index."""
        if maker.equation.primitive not in primitives("select_n") or len(maker.inputs) != 3:
            return None
        flags, *cases = maker.inputs
        numbers = [number for each in cases if (number := self._origins.of(each, _LAYOUT).number) is not None]
        others = [each for each in cases if self._origins.of(each, _LAYOUT).number is None]
        if len(numbers) != 1 or not flags.shape or len(list(self._users.of(flags))) > 1:
            return None
        found = self.most(others[0], depth - 1)
        return Most(numbers[0], is_filler=True) if found is not None and found.number < numbers[0] else None

    def _floored(self, maker: Step, depth: int) -> Most | None:
        """The greatest number of `index // n`: JAX chooses between a quotient and one less, for numbers below zero."""
        cases = [self._origins.of(each, _LAYOUT) for each in maker.inputs[1:]]
        quotient = next((each for each in cases if made_by(each, primitives("div")) is not None), None)
        less = next((moved for each in cases if (moved := self._moved(each)) is not None), None)
        if quotient is None or less is None or self._origins.of(less[0], _LAYOUT) is not quotient or less[1] != -1:
            return None
        found = self.most(quotient, depth - 1)
        return None if found is None else found._replace(number=float(math.floor(found.number)))

    def _limited(self, maker: Step, depth: int) -> Most | None:
        is_clamp, is_max = (maker.equation.primitive in primitives(name) for name in ("clamp", "max"))
        limits = [each.fact.range for each in maker.inputs]
        if is_clamp:
            (low, _, high), operand = limits, maker.inputs[1]
        else:
            place = next((place for place, each in enumerate(limits) if each.number is not None), None)
            if place is None:
                return None
            operand = maker.inputs[1 - place]
            low, high = (limits[place], ANY) if is_max else (ANY, limits[place])
        found = self.most(operand, depth - 1)
        if operand.fact.range.high == math.inf and math.isfinite(high.low):
            return Most(high.low, is_limited=True)
        if found is not None and found.number >= high.low > -math.inf:
            return Most(high.low, is_limited=True)
        return None if found is None else found._replace(number=max(found.number, low.low))


def _divisor(maker: Step) -> float | None:
    """What an index that goes further is divided by, if it is the remainder."""
    by, whole = None, None
    if maker.equation.primitive in primitives("rem"):
        whole, by = maker.inputs[0], maker.inputs[1].fact.range
    elif maker.equation.primitive in primitives("select_n"):
        by, rest = modulus(maker), maker.inputs[1].maker
        whole = rest.inputs[0] if by is not None and rest is not None else None
    if whole is None or by is None or by.number is None or by.number <= 0:
        return None
    is_long = whole.fact.range.high >= 2 * by.number
    return by.number if is_long and (by.number > 1 or not jnp.issubdtype(whole.aval.dtype, jnp.floating)) else None


def _so(step: Step) -> str:
    """What JAX does with an index beyond the end."""
    if step.equation.primitive in primitives("gather", "dynamic_slice"):
        fills = step.equation.params.get("mode") == jax.lax.GatherScatterMode.FILL_OR_DROP
        return "beyond the end, JAX gives NaN or the least integer" if fills else "JAX reads what is last instead"
    if step.equation.primitive in primitives("dynamic_update_slice"):
        return "JAX writes to what is last instead"
    return "JAX leaves out what is beyond the end"


KINDS = (BEYOND_END,)
CHECKS = (beyond_end, beyond_classes)
