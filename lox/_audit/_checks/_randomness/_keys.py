"""Follows random keys through a program: which values are the same key, and which step uses each up.

Every key has a number in the block where it is, and an array of keys is an array of numbers. What is not known to be a
key that was there before gets new numbers, so that what is not understood is never taken for a key that is used again.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import jax.extend as jex
import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._randomness._key_arrays import (
    CHOICES,
    FOLDED,
    SEEDED,
    SPLITS,
    USES,
    elements_of,
    in_keys,
    is_key,
    is_small,
    is_tracked,
    key_shape,
    keys_of,
)
from lox._audit._checks._randomness._key_arrays import RULES as ARRAY_RULES
from lox._audit._checks._randomness._key_uses import LOOPS, Origin, Repetition, Reuse, Sharing, Use, paired
from lox._audit._checks._randomness._steady import Steady
from lox._audit._location import transformations
from lox._audit._needs import read
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

_SAME = primitives("convert_element_type", "copy", "squeeze", "reshape")
"""What changes nothing about a number that is folded into a key."""


class KeyFlow:
    """The use of the keys of a program: the mistakes, and the keys of each block.

    Args:
        program: The program.
        live: The values that have a part in its results, or None for all: what is drawn only for its shape is no use.
    """

    def __init__(self, program: Block, live: Set[Value] | None = None) -> None:
        self.live = live
        self.reuses: list[Reuse] = []
        self.repetitions: list[Repetition] = []
        self.sharings: list[Sharing] = []
        self._blocks: dict[Block, Keys] = {}
        self.program = self.of(program)

    def of(self, block: Block) -> Keys:
        """The keys of a block, which is looked at once."""
        if block not in self._blocks:
            self._blocks[block] = Keys(block, self)
        return self._blocks[block]

    @property
    def blocks(self) -> Iterable[Keys]:
        """The keys of each block."""
        return self._blocks.values()


def flow_of(audited: Audited) -> KeyFlow:
    """The use of the keys of a function."""
    return KeyFlow(audited.program, None if audited.captured.error is not None else audited.live)


class Keys:
    """The keys of a block.

    Attributes:
        origins: Where each key comes from, by its number.
        first: What used each key first, by its number.
        uses: All that uses keys.
        moves: The steps that only pass keys on, or their data.
        searched: The keys of which a value takes its way down a tree of splits, as a Brownian path that is drawn again
            wherever it is asked for: these are used again on purpose.
    """

    def __init__(self, block: Block, flow: KeyFlow) -> None:
        self.block, self.flow = block, flow
        self.origins: list[Origin] = []
        self.first: dict[int, Use] = {}
        self.uses: list[Use] = []
        self._reuses: list[tuple[int, Reuse]] = []
        self.moves: set[Step] = set()
        self.searched: set[int] = set()
        self._split_of: dict[int, frozenset[int]] = {}
        self._elements: dict[Value, Any] = {}
        self._folded: dict[Any, int] = {}
        for place, value in enumerate(block.inputs):
            if is_tracked(value.aval):
                self._number(value, [Origin(place=place, index=index) for index in range(_count(value))])
        for step in block.steps:
            if "transpose" not in transformations(step.equation):  # There, noise of the forward pass is drawn again.
                self._follow(step)
        flow.reuses += [reuse for key, reuse in self._reuses if key not in self.searched]

    def of(self, value: Value) -> list[int]:
        """The keys that a value is, or has the data of."""
        found = keys_of(value.aval, self.elements(value)) if is_tracked(value.aval) else None
        return [] if found is None else found.ravel().tolist()

    def parts(self, value: Value) -> set[int]:
        """The keys that a value has anything of, as far as it was met."""
        found = self._elements.get(value)
        return set() if found is None else set(in_keys(value.aval, found).ravel().tolist())

    def name(self, key: int) -> str:
        """What to call a key."""
        root = self.root(key)
        name = "" if root.place is None else self.block.inputs[root.place].name
        which = f"the key {name!r}" if name else "a key that is a constant" if root.constant else "a key"
        return which if root is self.origins[key] else f"the same fold_in of {which}"

    def is_given(self, key: int) -> bool:
        """Say whether a key comes from outside the block, or is a constant."""
        root = self.root(key)
        return root.place is not None or root.constant

    def root(self, key: int) -> Origin:
        """Where the key comes from that others were made of by folding."""
        origin = self.origins[key]
        while origin.parent is not None:
            origin = self.origins[origin.parent]
        return origin

    def fold(self, key: int, data: Any) -> int:
        """The key that folding something into a key makes."""
        if (key, data) not in self._folded:
            self._folded[key, data] = self.new(Origin(parent=key, data=data))
        return self._folded[key, data]

    def new(self, origin: Origin) -> int:
        """The number of a new key."""
        self.origins.append(origin)
        return len(self.origins) - 1

    def elements(self, value: Value) -> Any:
        """The numbers of the keys in a value, or of the words of their data."""
        if value not in self._elements:
            self._number(value, [Origin(constant=value.maker is None)] * _count(value))
        return self._elements[value]

    def _number(self, value: Value, origins: Sequence[Origin]) -> None:
        self._elements[value] = elements_of(value.aval, np.array([self.new(each) for each in origins], int))

    def _use(self, step: Step, groups: Iterable[frozenset[int]], told: bool = False) -> None:
        use = Use(step, tuple(dict.fromkeys(groups)), told)
        before: dict[Use, int] = {}
        for key in sorted(use.keys):
            first = self.first.setdefault(key, use)
            if first is not use:
                before.setdefault(first, key)
        self._reuses += [(key, Reuse(self.block, first, use, self.name(key))) for first, key in before.items()]
        self.uses.append(use)

    def _follow(self, step: Step) -> None:
        primitive = step.equation.primitive
        if step.blocks:
            if self._is_live(step):
                self._run(step)
        elif primitive in USES:
            lanes = self.of(step.inputs[0])
            if lanes and self._is_live(step):
                self._use(step, [self._group(step, lanes)])
            if primitive in SPLITS and is_tracked(step.outputs[0].aval):
                self._split_of.update(dict.fromkeys(self.of(step.outputs[0]), frozenset(lanes)))
        elif primitive in FOLDED:
            self._fold(step)
        elif primitive in SEEDED and is_tracked(step.outputs[0].aval):
            constant = step.inputs[0].maker is None and step.inputs[0] not in self.block.inputs
            self._number(step.outputs[0], [Origin(constant=constant)] * _count(step.outputs[0]))
        elif (rule := ARRAY_RULES[primitive]) is not None and _moves_keys(step):
            given = [self.elements(v) if is_tracked(v.aval) else np.full(v.shape, -1) for v in step.inputs]
            for value, found in zip(step.outputs, rule(step, given), strict=False):
                if found.shape == value.shape and (found >= 0).all():
                    self._elements[value] = found
            if all(value in self._elements for value in step.outputs):
                self.moves.add(step)
        if primitive in CHOICES:
            self._choose(step)

    def _is_live(self, step: Step) -> bool:
        return self.flow.live is None or bool(step.equation.effects) or not self.flow.live.isdisjoint(step.outputs)

    def _choose(self, step: Step) -> None:
        """Marks the keys that those were split of among which a value chooses."""
        if step.equation.primitive in primitives("select_n"):
            by, given = step.inputs[:1], [self.parts(value) for value in step.inputs[1:]]
        else:
            by, given = step.inputs[1:], [{key} for key in self.parts(step.inputs[0])]
        self._search(by, given)

    def _search(self, by: Iterable[Value], given: Sequence[Iterable[int]]) -> None:
        if len({frozenset(each) for each in given}) > 1 and any(value.number is None for value in by):
            self.searched |= set.intersection(*map(self._before, given))

    def _before(self, keys: Iterable[int]) -> set[int]:
        """The keys that keys come of by splits."""
        found: set[int] = set()
        left = list(keys)
        while left:
            new = self._split_of.get(left.pop(), frozenset()) - found
            found |= new
            left += new
        return found

    def _group(self, step: Step, lanes: Sequence[int]) -> frozenset[int]:
        """The keys that are used at once, of which each is to be another one."""
        different = frozenset(lanes)
        if len(different) == 1 < len(lanes):
            self.flow.sharings.append(Sharing(step, len(lanes)))
        elif len(different) < len(lanes) and (pair := _odd_pair(lanes)):
            self.flow.sharings.append(Sharing(step, len(lanes), *pair))
        return different

    def _fold(self, step: Step) -> None:
        (keys, data), made = step.inputs, step.outputs[0]
        if not (is_tracked(keys.aval) and is_tracked(made.aval)) or keys.shape not in ((), made.shape):
            return
        literal = step.equation.invars[1]
        what = int(literal.val) if isinstance(literal, jex.core.Literal) and not data.shape else _same(data)
        given = np.broadcast_to(self.elements(keys), made.shape)
        folded = [self.fold(key, (what, lane * bool(data.shape))) for lane, key in enumerate(given.ravel().tolist())]
        self._elements[made] = np.array(folded, int).reshape(made.shape)

    def _run(self, step: Step) -> None:
        groups: dict[bool, list[frozenset[int]]] = {False: [], True: []}
        results: list[list[Any]] = []
        for block in step.blocks:
            inner, pairs = self.flow.of(block), list(paired(step, block))
            outside, loop = _Outside(self, step, inner, pairs), _Loop(step, block, inner, pairs)
            told: set[int] = set()
            for use, keys in loop.repeated():
                name = self.name(outside.keys(min(keys))[0])
                self.flow.repetitions.append(Repetition(block.kind, step, use, name))
                told |= keys
            self.flow.reuses += loop.reused()
            tops = [key for key in inner.searched if inner.root(key).place is not None]
            for key in tops:
                self.searched |= {*outside.keys(key)} | self._before(outside.keys(key))
            returned = {key for value in block.outputs for key in inner.of(value)}
            seen: dict[int, frozenset[int]] = {}
            for use in inner.uses:
                for group in use.groups:
                    kept = sorted(key for key in group if key in returned or inner.is_given(key))
                    found = self._group(step, [each for key in kept for each in outside.keys(key)])
                    if found:
                        groups[use.told or not told.isdisjoint(group)].append(found)
                    twice = {key for key in found if seen.setdefault(key, group).isdisjoint(group)}
                    if twice:  # The same key is given twice, and both are used inside.
                        again = Use(step, (found,))
                        self.flow.reuses.append(Reuse(self.block, again, again, self.name(min(twice))))
            results.append([outside.result(*loop.source(place)) for place in range(len(block.outputs))])
        if step.equation.primitive in primitives("while"):
            results = results[1:]
        for place, value in enumerate(step.outputs):
            ways = [each[place] for each in results if place < len(each)]
            if ways and all(each is not None and np.array_equal(each, ways[0]) for each in ways):
                if ways[0].shape == value.shape:
                    self._elements[value] = ways[0]
            elif step.equation.primitive in primitives("cond") and all(each is not None for each in ways):
                self._search(step.inputs[:1], [in_keys(value.aval, each).ravel().tolist() for each in ways])
        for was_told, used in groups.items():
            if used:
                self._use(step, used, was_told)


class _Loop:
    """What the iterations of a loop have in common; of what is no loop, nothing."""

    def __init__(self, step: Step, block: Block, inner: Keys, pairs: Sequence[tuple[Value, str]]) -> None:
        self.block, self.inner = block, inner
        self.runs = step.equation.primitive in LOOPS and step.equation.params.get("length") not in (0, 1)
        self.is_loop = step.equation.primitive in LOOPS
        self.length = step.equation.params.get("length", 0)
        roles = [role for _, role in pairs]
        is_body = len(block.outputs) >= roles.count("carry") and block is step.blocks[-1]
        places = [place for place, role in enumerate(roles) if role == "carry"] if is_body else []
        self.carried = dict(enumerate(places))
        kept = {place for result, place in self.carried.items() if self._is_kept(result, place)}
        self.fixed = {place for place, role in enumerate(roles) if role == "in"} | kept
        self.kept = kept

    def source(self, place: int) -> tuple[Value | None, tuple[int, ...]]:
        """The value whose keys an output of the step has, if that is known, and how often: once in each iteration."""
        value = self.block.outputs[place]
        if not self.is_loop or self.carried.get(place) in self.kept:
            return value, ()
        if place in self.carried or not self.length or not all(map(self._is_fixed, self.inner.of(value))):
            return None, ()
        return value, (self.length,)

    def repeated(self) -> Iterator[tuple[Use, set[int]]]:
        """The keys that each iteration uses."""
        for use in self.inner.uses if self.runs else ():
            same = {key for key in use.keys - self.inner.searched if not use.told and self._is_fixed(key)}
            if self._passed_on.isdisjoint(use.step.outputs):  # An evaluation counts through the same keys on purpose.
                same = {key for key in same if not self._is_counted(key)}
            if same:
                yield use, same

    def reused(self) -> Iterator[Reuse]:
        """The keys that one iteration uses and passes to the next one, which uses them again."""
        first = self.inner.first
        told: set[Use] = set()
        for result, place in self.carried.items() if self.runs else ():
            before, after = self.inner.of(self.block.inputs[place]), self.inner.of(self.block.outputs[result])
            for one, other in zip(before, after, strict=False):
                again = one in first and other in first and one != other and not self._is_fixed(other)
                if again and first[one] not in told:
                    told.add(first[one])
                    yield Reuse(self.block, first[other], first[one], self.inner.name(one), self.block.kind)

    def _is_kept(self, result: int, place: int) -> bool:
        before, after = self.block.inputs[place], self.block.outputs[result]
        keys = self.inner.of(before)
        return before is after or (bool(keys) and keys == self.inner.of(after))

    def _is_fixed(self, key: int) -> bool:
        """Say whether a key is the same in each iteration."""
        origin = self.inner.origins[key]
        if origin.parent is None:
            return origin.constant or origin.place in self.fixed
        return self._is_fixed(origin.parent) and self._steady.has(origin.data[0])

    @functools.cached_property
    def _steady(self) -> Steady:
        return Steady(self.block, {self.block.inputs[place] for place in self.fixed})

    @functools.cached_property
    def _passed_on(self) -> set[Value]:
        """The values that have a part in what the next iteration gets."""
        return read(self.block, [self.block.outputs[result] for result in self.carried])

    def _is_counted(self, key: int) -> bool:
        """Say whether what was folded into a key is counted again in each iteration, as in an inner loop."""
        origin = self.inner.origins[key]
        while origin.parent is not None:
            what = origin.data[0]
            if not (isinstance(what, int) or what in self.block.inputs):
                return True
            origin = self.inner.origins[origin.parent]
        return False


class _Outside:
    """The keys of a block as the block around it has them."""

    def __init__(self, outer: Keys, step: Step, inner: Keys, pairs: Sequence[tuple[Value, str]]) -> None:
        self.outer, self.step, self.inner, self.pairs = outer, step, inner, pairs
        self._known: dict[int, tuple[int, ...]] = {}
        self._inputs: dict[int, tuple[list[int], int]] = {}

    def keys(self, key: int) -> tuple[int, ...]:
        """What a key is outside: of what is scanned, the keys of all iterations."""
        if key not in self._known:
            origin = self.inner.origins[key]
            found = self._of_input(origin) or self._of_fold(origin)
            self._known[key] = found or (self.outer.new(Origin(constant=origin.constant)),)
        return self._known[key]

    def result(self, value: Value | None, times: tuple[int, ...]) -> Any:
        """The elements outside a value of the block, along a new axis that is as long as `times` says."""
        if value is None or not is_tracked(value.aval):
            return None
        keys = keys_of(value.aval, self.inner.elements(value))
        if keys is None:
            return None
        found = elements_of(value.aval, np.array([self.keys(key)[0] for key in keys.ravel().tolist()], int))
        return np.broadcast_to(found, (*times, *found.shape))

    def _of_input(self, origin: Origin) -> tuple[int, ...]:
        if origin.place is None or origin.place >= len(self.pairs):
            return ()
        value, role = self.pairs[origin.place]
        if origin.place not in self._inputs:
            self._inputs[origin.place] = self.outer.of(value), _count(self.inner.block.inputs[origin.place])
        keys, count = self._inputs[origin.place]
        if role == "each" and len(keys) == count * value.shape[0]:
            return tuple(keys[origin.index :: count])
        return (keys[origin.index],) if role != "each" and len(keys) == count else ()

    def _of_fold(self, origin: Origin) -> tuple[int, ...]:
        if origin.parent is None:
            return ()
        parents, (what, lane) = self.keys(origin.parent), origin.data
        for value, (outside, role) in zip(self.inner.block.inputs, self.pairs, strict=False):
            if value is what and role == "in":
                what = _same(outside)
                break
        else:
            what = what if isinstance(what, int) else (self.step, what)
        return (self.outer.fold(parents[0], (what, lane)),) if len(parents) == 1 else ()


def _moves_keys(step: Step) -> bool:
    """Say whether a step may have keys or their data in its results, and is small enough to look at each of them."""
    if not all(is_small(value.aval) for value in (*step.inputs, *step.outputs)):
        return False
    return any(is_key(value.aval) or value.aval.dtype == np.uint32 for value in step.outputs)


def _odd_pair(lanes: Sequence[int]) -> tuple[int, int] | None:
    """Two batch elements with one key among batch elements with keys of their own, the later one first.

    As many batch elements for each of several keys may be meant, as may the last ones that fill up a batch.
    """
    if len(set(Counter(lanes).values())) == 1:
        return None
    first: dict[int, int] = {}
    again = [lane for lane, key in enumerate(lanes) if first.setdefault(key, lane) != lane]
    if again == list(range(again[0], len(lanes))):
        return None
    return again[0], first[lanes[again[0]]]


def _count(value: Value) -> int:
    return math.prod(key_shape(value.aval))


def _same(value: Value) -> Value:
    """The value that is the same number, as early as it is there."""
    while value.maker is not None and value.maker.equation.primitive in _SAME:
        value = value.maker.inputs[0]
    return value
