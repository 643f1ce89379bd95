"""Flags of where episodes end: values that are called so, or declared to be such."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._location import Span
from lox._audit._loops import scans
from lox._audit._naming import place_of, source_text
from lox._audit._origins import PASSING
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_SAID = r"((is|last|prev|previous|next|env|envs|ep|episode|global|new|any|batch)_)?"
_END = re.compile(
    rf"{_SAID}(done|terminal|terminated|termination|terminate|truncated|truncation|episode_end|end_of_episode"
    r"|episode_start|is_first)s?(_t|_tm1|_tp1|_flags?|_prev)?",
    re.IGNORECASE,
)
_END_IF_BOOLEAN = re.compile(
    rf"{_SAID}(reset|term|trunc|timeout|ended|finished)s?(_t|_tm1|_tp1|_flags?)?", re.IGNORECASE
)
_ONWARD = re.compile(
    r"((next|last|prev|previous|is)_?)?(not|non)_?(done|terminal|terminated|terminate|end|ended)s?(_t|_tm1|_tp1|_flags?|_mask)?",
    re.IGNORECASE,
)
_REWARD = re.compile(r"(\w+_)?(rewards?|rew|r)(_t|_tm1|_tp1|_batch)?", re.IGNORECASE)
_GOES_ON = re.compile(r"discount|mask|not_|non_|nonterm|contin|first|start|alive|valid|weight|gamma", re.IGNORECASE)
_NAME = re.compile(r"[\w./'\"\[\]]+")
"""A name of an argument or a field, and not an expression."""
_SLICE = re.compile(r"\[-?\w*:-?\w*\]$")


@functools.lru_cache(maxsize=4096)
def last_name(name: str) -> str:
    """The last part of a name, as of "step.done", or of "done[1:]"; of an expression, nothing."""
    name = _SLICE.sub("", name)
    parts = re.findall(r"\w+", name)
    return parts[-1] if parts and _NAME.fullmatch(name) else ""


@functools.lru_cache(maxsize=4096)
def says_end(name: str, of_boolean: bool) -> bool:
    """Say whether a name, perhaps of booleans, is that of a flag of where episodes end."""
    last = last_name(name)
    return _END.fullmatch(last) is not None or (of_boolean and _END_IF_BOOLEAN.fullmatch(last) is not None)


@functools.lru_cache(maxsize=4096)
def says_onward(name: str) -> bool:
    """Say whether a name is that of a flag of steps after which an episode goes on, such as "not_done"."""
    return _ONWARD.fullmatch(last_name(name)) is not None


@functools.lru_cache(maxsize=4096)
def _says_that_it_goes_on(name: str) -> bool:
    return _GOES_ON.search(last_name(name)) is not None


def is_boolean(value: Value) -> bool:
    """Say whether the elements of a value are booleans."""
    return getattr(value.aval, "dtype", None) == jnp.bool_


class Flags:
    """Which values are flags of where episodes end.

    Attributes:
        declared: The names that are declared to be such.
    """

    def __init__(self, audited: Audited) -> None:
        self.declared: frozenset[str] = frozenset()
        complements = [step.inputs[1] for step, _ in audited.of("sub") if _is_complement(step)]
        self._complemented = {audited.origins.of(value, _CONVERTED, loops=True) for value in complements}
        self._used = {value for step, _ in audited.steps for value in _used_as_ends(step)}
        self._used.update([outside for outside, inside in _stacked(audited) if inside in self])

    def __contains__(self, value: Value) -> bool:
        if value in self._used or self.is_declared(value):
            return True
        names = [name for name in (value.name, value.written) if name]
        is_zero_or_one = is_boolean(value) or value in self._complemented
        return any(says_end(name, is_zero_or_one) for name in names) and _is_flag(value)

    def is_onward(self, value: Value) -> bool:
        """Say whether a value has the name of a flag that is zero where an episode ends."""
        return _is_flag(value) and any(says_onward(name) for name in (value.name, value.written) if name)

    def is_declared(self, value: Value) -> bool:
        """Say whether a value has a name that is declared."""
        if not self.declared or not _is_flag(value):
            return False
        return any(last_name(name) in self.declared for name in (value.name, value.written) if name)


def _is_flag(value: Value) -> bool:
    """Say whether a value may be a flag by its type and by what is known of it."""
    if is_boolean(value):
        return True
    dtype = getattr(value.aval, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        return False
    return value.maker is None or _is_within_one(value)


def _is_within_one(value: Value) -> bool:
    return 0 <= value.fact.range.low and value.fact.range.high <= 1


def _is_complement(step: Step) -> bool:
    """Say whether a step subtracts from one, as `1 - reset` of a flag that is a number."""
    return step.equation.primitive in primitives("sub") and step.inputs[0].number == 1


def _used_as_ends(step: Step) -> Iterator[Value]:
    """The operand that an expression calls by the name of a flag, if that has no name of its own."""
    unnamed = [(value, value.maker) for value in step.inputs if value.maker and not value.name and _is_flag(value)]
    if len(unnamed) != 1:
        return
    (value, maker), place = unnamed[0], place_of(step.equation)
    if place is None or value.number is not None:
        return
    (file, span), made = place, place_of(maker.equation)
    is_inside = made is not None and made[0] == file and span.line <= made[1].line <= made[1].end_line <= span.end_line
    is_zero_or_one = is_boolean(value) or _is_complement(step)
    if not is_inside and len(_ends_in(file, span, is_zero_or_one)) == 1:
        yield value


def _stacked(audited: Audited) -> Iterator[tuple[Value, Value]]:
    """The stacked outputs of scans, each with its value in an iteration; for a carry, in the iteration before."""
    for scan, _ in scans(audited):
        carried = {inside: new for _, inside, new in scan.carry}
        for outside, inside in zip(scan.step.outputs[len(scan.carry) :], scan.ys, strict=True):
            source = audited.origins.of(inside, _CONVERTED)
            yield outside, audited.origins.of(carried.get(source, source), _CONVERTED)


_CONVERTED = PASSING | primitives("convert_element_type")


@functools.lru_cache(maxsize=4096)
def _ends_in(file: str, span: Span, of_boolean: bool) -> frozenset[str]:
    """The names of flags in an expression."""
    text = source_text(file, span)
    return frozenset(name for name in re.findall(r"[\w.]+(?!\w*\()", text) if says_end(name, of_boolean))


def goes_on(value: Value) -> bool:
    """Say whether a value is called as what is zero where an episode ends."""
    return any(_says_that_it_goes_on(name) for name in (value.name, value.written) if name)


def is_reward(value: Value) -> bool:
    """Say whether a value is called a reward."""
    return _REWARD.fullmatch(last_name(value.name or value.written)) is not None
