"""Noise that lacks an axis of the data that it meets, so that all rows of a batch have the same random numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._randomness._key_arrays import DRAWS
from lox._audit._checks._randomness._reuse import SHARED, draws_of
from lox._audit._findings import Finding
from lox._audit._forward import Forward
from lox._audit._labels import has_rule
from lox._audit._location import call, is_internal, is_users, transformations
from lox._audit._origins import PASSING
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._rules import primitives

_ROWS = re.compile(
    r"b|batch(es|_?size)?|(num_?)?(env(ironment)?|actor|agent|worker|lane|example|particle|chain|walker|trajector(y|ie)"
    r"|episode|image|sequence|graph)s?",
    re.IGNORECASE,
)
"""Names of axes whose elements have noise of their own."""
_KEPT = primitives("slice", "dynamic_slice", "rev", "pad", "concatenate")
_SAME = PASSING | primitives("convert_element_type")
_MOST_PASSES = 8
_DEEP = 20
_REPEATING = {"full", "repeat", "tile"}
"""Functions of JAX that repeat what they get."""


class Noise(NamedTuple):
    """Random numbers that are in a value, element by element.

    Attributes:
        draw: The step that draws them, or the call of the function of JAX that does.
        varies: The axes of the value along which they differ.
    """

    draw: Step
    varies: frozenset[int]


class Mark(NamedTuple):
    """The noise in a value, whether it is a product with a matrix that is drawn, and whether a loop carries it on."""

    noises: frozenset[Noise] = frozenset()
    is_projected: bool = False
    is_state: bool = False


_NONE = Mark()


def rows(audited: Audited) -> Iterator[Finding]:
    """LOX703: noise is drawn for one row of a batch, and broadcast to all of them."""
    if not audited.has("random_bits", "random_gamma"):
        return
    told, shared = set[Step](), {draw.location for draw in audited.once(draws_of).shared}
    for draw, text in _Rows(audited).found.items():
        location = audited.lines.get(draw)
        if location is not None and draw not in told and location not in shared and is_users(location.file):
            told.add(draw)
            yield SHARED.at(location, text)


class _Rows(Forward[Mark]):
    """Follows noise to the data that it meets.

    Attributes:
        found: What is wrong with a draw.
    """

    most_iterations = _MOST_PASSES

    def __init__(self, audited: Audited) -> None:
        self.found: dict[Step, str] = {}
        self._repeated: set[Step] = set()
        self._audited = audited
        self._known: dict[tuple[Block, tuple[Mark, ...]], list[Mark]] = {}
        self._of(audited.program, [_NONE] * len(audited.program.inputs))

    def _of(self, block: Block, marks: Sequence[Mark]) -> list[Mark]:
        key = (block, tuple(marks))
        if key not in self._known:
            known = dict(zip(block.inputs, marks, strict=True))
            for step in block.steps:
                results = self.through(step, [known.get(value, _NONE) for value in step.inputs])
                known.update(zip(step.outputs, results, strict=True))
            self._known[key] = [known.get(value, _NONE) for value in block.outputs]
        return self._known[key]

    def join(self, facts: Sequence[Mark]) -> Mark:
        noises = frozenset[Noise]().union(*(each.noises for each in facts))
        return Mark(noises, any(each.is_projected for each in facts), any(each.is_state for each in facts))

    def inside(self, step: Step, place: int, facts: Sequence[Mark]) -> list[Mark]:
        return self._of(step.blocks[place], facts)

    def enter(self, step: Step, fact: Mark, role: str) -> Mark:
        return fact._replace(is_state=True) if role == "carry" else _moved(fact, -1) if role == "each" else fact

    def leave(self, step: Step, fact: Mark, role: str) -> Mark:
        return _moved(fact, 1) if role == "stacked" else fact

    def through(self, step: Step, facts: Sequence[Mark]) -> Sequence[Mark]:
        results = super().through(step, facts)
        if not is_call(step) or not _is_of_jax(step):
            return results
        given = {noise.draw for fact in facts for noise in fact.noises}
        return [
            mark._replace(noises=frozenset(n if n.draw in given else n._replace(draw=step) for n in mark.noises))
            for mark in results
        ]

    def transfer(self, step: Step, facts: Sequence[Mark]) -> list[Mark]:
        return [self._mark(step, facts)] * len(step.equation.outvars)

    def _mark(self, step: Step, facts: Sequence[Mark]) -> Mark:
        primitive = step.equation.primitive
        if primitive in DRAWS:
            return Mark(frozenset({Noise(step, _long(step.equation.outvars[0].aval.shape))}))
        every = self.join(facts)
        if not step.equation.outvars:
            return _NONE
        if not every.noises and not every.is_projected:
            return _NONE if has_rule(primitive) or step.blocks else every
        if primitive in PASSING:
            self._repeat(step, facts[0])
            noises = frozenset(filter(None, (_laid_out(step, noise) for noise in facts[0].noises)))
            return every._replace(noises=noises)
        if primitive in primitives("dot_general"):
            return Mark(is_projected=bool(every.noises) or every.is_projected)
        if primitive in primitives("argmax"):
            self._choose(step, facts[0])
        if primitive in primitives("concatenate"):
            self._join(facts)
        if step.blocks or (has_rule(primitive) and primitive not in _KEPT):
            return Mark(is_projected=every.is_projected)
        if not has_rule(primitive):
            if primitive in primitives("select_n"):
                self._toss(step, facts)
                self._drop(step, facts)
            if primitive in primitives("mul"):
                self._scale(step, facts)
            if primitive in primitives("add"):
                self._shift(step, facts)
            met = self._meet(step, facts)
            long = _long(step.equation.outvars[0].aval.shape)
            is_state = every.is_state and all(noise.varies == long for noise in every.noises)
            if not is_state:
                met |= {noise for fact in facts if fact.is_state for noise in fact.noises}
            every = every._replace(noises=every.noises - met, is_state=is_state)
        return every

    def _is_plain(self, step: Step) -> bool:
        return not {"vmap", "transpose"} & {*transformations(step.equation)}

    def _meet(self, step: Step, facts: Sequence[Mark]) -> set[Noise]:
        """The noise that meets data which have a labelled axis of rows, along which it is the same.

        Noise in a state of its own, which a loop carries on, is meant for all rows.
        """
        met = set[Noise]()
        for place, mark in enumerate(facts):
            for noise in mark.noises if not mark.is_state else ():
                for value, other in zip(step.inputs, facts, strict=True):
                    if value is step.inputs[place] or value.number is not None or not value.shape:
                        continue
                    label = _label(value, noise)
                    if label is None or any(noise.draw is each.draw for each in other.noises):
                        continue
                    met.add(noise)
                    if noise.varies and not other.is_projected and self._is_plain(step):
                        self.found.setdefault(
                            noise.draw,
                            f"What is drawn here is the same for all of the {label} that it meets in {value.text}: "
                            f"give it that axis too.",
                        )
        return met

    def _choose(self, step: Step, mark: Mark) -> None:
        """Notes noise on what is chosen from, that is the same for all rows in which something is chosen."""
        (value, *_), axes = step.inputs, {*step.equation.params["axes"]}
        others = _long(value.shape) - axes
        if not self._is_plain(step) or any(not others.isdisjoint(noise.varies) for noise in mark.noises):
            return
        for noise in mark.noises:
            if axes <= noise.varies and others:
                self.found.setdefault(
                    noise.draw,
                    f"What is drawn here is added to {value.text}, along the last axis alone: each of the rows chooses "
                    "by the same random numbers.",
                )

    def _toss(self, step: Step, facts: Sequence[Mark]) -> None:
        """Notes one random number that chooses for all rows between what is drawn for each row and something else."""
        if len(step.inputs) != 3 or not self._is_plain(step):
            return
        drawn = [bool(mark.noises) and all(noise.varies for noise in mark.noises) for mark in facts[1:]]
        for place in (0, 1):
            other = step.inputs[2 - place]
            if not drawn[place] or facts[2 - place].noises or other.number is not None or not other.shape:
                continue
            made = self._audited.origins.of(other, _SAME).maker
            is_greedy = made is not None and made.equation.primitive in primitives("argmax")
            is_of_rows = any(isinstance(label, str) and _ROWS.fullmatch(label) for label in other.fact.labels)
            for noise in facts[0].noises if is_greedy or is_of_rows else ():
                if not noise.varies and len(facts[0].noises) == 1:
                    self.found.setdefault(
                        noise.draw,
                        f"One random number is drawn here, and chooses for all rows of {other.text} at once between it "
                        "and what is drawn for each row.",
                    )

    def _drop(self, step: Step, facts: Sequence[Mark]) -> None:
        """Notes a mask of dropout that has the last axis alone."""
        numbers = [value.number for value in step.inputs[1:]]
        if len(numbers) != 2 or numbers.count(0.0) != 1 or not self._is_plain(step):
            return
        kept = step.inputs[1 + (numbers[0] == 0)]
        scaled = self._audited.origins.of(kept, _SAME).maker
        is_scaled = scaled is not None and any(each.number is not None for each in scaled.inputs[:2])
        if scaled is None or not is_scaled or scaled.equation.primitive not in primitives("mul", "div"):
            return
        for noise in facts[0].noises:
            last = len(kept.shape) - 1
            if noise.varies == {last} and last > 0 and kept.shape[0] > 1:
                self.found.setdefault(
                    noise.draw,
                    f"The dropout of {kept.text} is drawn along its last axis alone: all rows lose the same elements.",
                )

    def _scale(self, step: Step, facts: Sequence[Mark]) -> None:
        """Notes noise along the last axis, that is multiplied by the scales of each row."""
        for noise in facts[0].noises | facts[1].noises if self._is_plain(step) else ():
            for value, other in zip(step.inputs, facts, strict=True):
                rows, last = value.shape[:1], len(value.shape) - 1
                if noise.varies != {last} or last != 1 or rows[0] < 2 or value.shape[last] < 2 or other.noises:
                    continue
                made = self._audited.origins.of(value, _SAME).maker
                if made is not None and made.equation.primitive in primitives("exp", "sqrt") and not other.is_projected:
                    self.found.setdefault(
                        noise.draw,
                        f"What is drawn here is multiplied by {value.text}, and is the same for all of its "
                        f"{rows[0]} rows.",
                    )

    def _shift(self, step: Step, facts: Sequence[Mark]) -> None:
        """Notes normal noise along the last axis, that is added to what a network gives for each row."""
        for noise in facts[0].noises | facts[1].noises if self._is_plain(step) else ():
            for place, (value, other) in enumerate(zip(step.inputs, facts, strict=True)):
                if self._is_weighed(step.inputs[1 - place]) or self._is_kept(step.inputs[1 - place]):
                    continue
                is_row = noise.varies == {1} and len(value.shape) == 2 and min(value.shape) > 1
                if not is_row or other.noises or other.is_projected or "normal" not in call(noise.draw.equation)[1:]:
                    continue
                if _is_of_network(self._audited, value):
                    self.found.setdefault(
                        noise.draw,
                        f"What is drawn here is added to {value.text}, and is the same for all of its "
                        f"{value.shape[0]} rows.",
                    )

    def _is_weighed(self, value: Value) -> bool:
        """Say whether a value is a product with a number for each row, as in an outer product."""
        made = self._audited.origins.of(value, _SAME - primitives("broadcast_in_dim")).maker
        is_product = made is not None and made.equation.primitive in primitives("mul")
        return made is not None and is_product and any(_differs_by_row(factor) for factor in made.inputs)

    def _is_kept(self, value: Value) -> bool:
        """Say whether a value is used elsewhere too, as a change of parameters is that is tried on all rows."""
        return self._audited.origins.of(value, _SAME).uses > 1

    def _join(self, facts: Sequence[Mark]) -> None:
        """Takes repeated numbers for those of groups, where several of them are joined."""
        repeated = {noise.draw for mark in facts for noise in mark.noises} & self._repeated
        for draw in repeated if len(repeated) > 1 else ():
            self.found.pop(draw, None)

    def _repeat(self, step: Step, mark: Mark) -> None:
        """Notes one random number that is repeated."""
        shape = tuple(step.equation.outvars[0].aval.shape)
        if len(shape) != 1 or shape[0] < 2 or not _REPEATING & {*call(step.equation)[1:]} or not self._is_plain(step):
            return
        for noise in mark.noises:
            if not noise.varies and len(mark.noises) == 1:
                self._repeated.add(noise.draw)
                self.found.setdefault(
                    noise.draw, f"One random number is drawn here, and repeated {shape[0]} times: all are the same."
                )


def _is_of_network(audited: Audited, value: Value) -> bool:
    """Say whether a value is computed, row by row, from a product with a matrix."""
    for _ in range(_DEEP):
        maker = audited.origins.of(value, _SAME).maker
        if maker is None or maker.blocks:
            return False
        if maker.equation.primitive in primitives("dot_general"):
            return True
        alike = [each for each in maker.inputs if each.shape == value.shape and each.number is None]
        if has_rule(maker.equation.primitive) or not alike:
            return False
        (value, *_) = alike
    return False


def _label(value: Value, noise: Noise) -> str | None:
    """The label of an axis of rows of a value along which noise is the same."""
    for axis, (size, label) in enumerate(zip(value.shape, value.fact.labels, strict=True)):
        if size != 1 and axis not in noise.varies and isinstance(label, str) and _ROWS.fullmatch(label):
            return label
    return None


def _differs_by_row(value: Value) -> bool:
    """Say whether a value was repeated along other axes than that of its rows."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in primitives("broadcast_in_dim") or not maker.inputs:
        return False
    old = maker.inputs[0].shape
    (row, *_) = _axes_before(maker, old, value.shape) or (None,)
    return row is not None and old[row] > 1 and value.shape != old


def _long(shape: Sequence[int]) -> frozenset[int]:
    return frozenset(axis for axis, size in enumerate(shape) if size != 1)


def _moved(mark: Mark, by: int) -> Mark:
    """A mark of what has one axis more or less in front."""
    noises = (Noise(draw, frozenset(axis + by for axis in varies if axis + by >= 0)) for draw, varies in mark.noises)
    return mark._replace(noises=frozenset(noises))


def _laid_out(step: Step, noise: Noise) -> Noise | None:
    """Noise after its elements were laid out in other axes; None where it is not known along which it differs."""
    if step.equation.primitive in primitives("transpose"):
        order = step.equation.params["permutation"]
        return noise._replace(varies=frozenset(order.index(axis) for axis in noise.varies))
    if step.equation.primitive not in primitives("broadcast_in_dim", "reshape", "squeeze"):
        return noise
    operand, shape = step.inputs[0], tuple(step.equation.outvars[0].aval.shape)
    before = _axes_before(step, operand.shape, shape)
    if before is None:
        return None
    return noise._replace(varies=frozenset(axis for axis, old in enumerate(before) if old in noise.varies))


def _axes_before(step: Step, old: Sequence[int], new: Sequence[int]) -> Sequence[int | None] | None:
    kept = step.equation.params.get("broadcast_dimensions")
    if kept is not None:
        return [kept.index(axis) if axis in kept else None for axis in range(len(new))]
    long = [axis for axis, size in enumerate(old) if size != 1]
    if [old[axis] for axis in long] != [size for size in new if size != 1]:
        return None
    left = iter(long)
    return [None if size == 1 else next(left) for size in new]


def _is_of_jax(step: Step) -> bool:
    """Say whether a call runs a function of JAX, such as one of `jax.random`."""
    file = _compat.open_jaxpr(step.ports[0].jaxpr).debug_info.func_filename
    return not file or is_internal(file)


CHECKS = (rows,)
