"""Follows values through a program: the steps of each block, and what is known of every value."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._audit import _failures
from lox._audit._facts import ANY, Fact, Interval, join, of_constant, unknown
from lox._audit._findings import Finding
from lox._audit._labels import labels_of
from lox._audit._program import Block, Step, Value
from lox._audit._ranges import range_of
from lox._logs_in import jaxprs_in

P = jex.core.primitives

_CALLED = {P.remat_p: "checkpoint", _compat.shard_map_p: "shard_map"}
"""What people call a primitive, where that is another name."""


MOST_FACTS = 64
"""With how many facts a jaxpr is looked at, before it is with none: what calls itself twice is called very often."""

MOST_ITERATIONS = 8
"""How many iterations of a loop are looked at until the facts do not change any more, before it is with none."""


class Walk:
    """Goes through programs. What was seen of a jaxpr with the same facts is not looked at again."""

    def __init__(self, failures: list[Finding] | None = None) -> None:
        self._failures = [] if failures is None else failures
        self._seen: dict[Any, Block] = {}
        self._times: Counter[Any] = Counter()
        self._constants: dict[int, Fact] = {}  # By identity: the jaxprs keep them.

    def block(self, kind: str, jaxpr: Any, facts: Sequence[Fact], names: Sequence[str] = ()) -> Block:
        """What a jaxpr does with inputs of which so much is known."""
        opened = _compat.open_jaxpr(jaxpr)
        if self._times[opened] >= MOST_FACTS:
            facts = [unknown(var.aval) for var in opened.invars]
        key = (kind, opened, tuple(facts), tuple(names))
        if key not in self._seen:
            self._times[opened] += 1
            self._seen[key] = self._block(kind, jaxpr, opened, facts, names)
        return self._seen[key]

    def _block(self, kind: str, jaxpr: Any, opened: Any, facts: Sequence[Fact], names: Sequence[str]) -> Block:
        values: dict[Any, Value] = {}
        for var, constant in zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False):
            if id(constant) not in self._constants:
                self._constants[id(constant)] = of_constant(constant)
            values[var] = Value(var.aval, self._constants[id(constant)], constant=constant)
        names = names or opened.debug_info.arg_names or ()
        names = [*names, *[""] * len(facts)][: len(facts)]
        inputs = tuple(
            Value(var.aval, fact, name or "") for var, fact, name in zip(opened.invars, facts, names, strict=True)
        )
        values.update(zip(opened.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            if isinstance(atom, jex.core.Literal):
                return Value(atom.aval, of_constant(atom.val))
            found = values.get(atom)
            if found is None:
                found = values[atom] = Value(atom.aval, unknown(atom.aval))
            return found

        steps = []
        for equation in opened.eqns:
            step = Step(equation, tuple([read(atom) for atom in equation.invars]))
            for value in step.inputs:
                value.uses += 1
            results, step.blocks = self._through(step)
            made = [Value(var.aval, fact, "", step) for var, fact in zip(equation.outvars, results, strict=True)]
            step.outputs = tuple(made)
            values.update(zip(equation.outvars, made, strict=True))
            steps.append(step)
        outputs = tuple(map(read, opened.outvars))
        for value in outputs:
            value.uses += 1
        return Block(kind, inputs, tuple(steps), outputs)

    def _through(self, step: Step) -> tuple[Sequence[Fact], tuple[Block, ...]]:
        """What is known of the outputs of a step, and what it runs."""
        params, primitive = step.equation.params, step.equation.primitive
        facts = [value.fact for value in step.inputs]
        if primitive is P.scan_p:
            return self._scan(step, facts)
        if primitive is P.while_p:
            return self._while(step, facts)
        if primitive is P.cond_p:
            blocks = [
                self.block(f"branch {place}", branch, facts[1:]) for place, branch in enumerate(params["branches"])
            ]
            outputs = zip(*([value.fact for value in block.outputs] for block in blocks), strict=True)
            return [join(each) for each in outputs], tuple(blocks)
        inner = list(jaxprs_in(params))
        if len(inner) == 1 and _is_call(step.equation, inner[0]):
            name = params.get("name", "")
            called = _CALLED.get(primitive, primitive.name)
            block = self.block(f"{called}:{name}" if name else called, inner[0], facts)
            return [value.fact for value in block.outputs], (block,)
        blocks = [
            self.block(primitive.name, jaxpr, [unknown(aval) for aval in _compat.in_avals(jaxpr)]) for jaxpr in inner
        ]
        return self._facts(step), tuple(blocks)

    def _facts(self, step: Step) -> list[Fact]:
        """What the rules know of the outputs of a step: what the types tell where a rule fails."""
        with _failures.reported(f"The rule of '{step.equation.primitive.name}'", self._failures):
            return list(map(Fact, labels_of(step), range_of(step)))
        return [unknown(var.aval) for var in step.equation.outvars]

    # scan: (consts, carry, xs) -> (carry, ys)
    def _scan(self, step: Step, facts: Sequence[Fact]) -> tuple[Sequence[Fact], tuple[Block, ...]]:
        params = step.equation.params
        num_consts, num_carry = _compat.scan_counts(params)
        consts, carry = facts[:num_consts], facts[num_consts : num_consts + num_carry]
        xs = [Fact(fact.labels[1:], fact.range) for fact in facts[num_consts + num_carry :]]
        scanned = {fact.labels[0] for fact in facts[num_consts + num_carry :]} - {None}
        label = scanned.pop() if len(scanned) == 1 else None
        kind = f"scan[{params['length']}{f' {label}' if label else ''}]"
        block, carry = self._loop(kind, params["jaxpr"], consts, carry, xs)
        ys = [value.fact for value in block.outputs[num_carry:]]
        return [*carry, *(Fact((label, *fact.labels), fact.range) for fact in ys)], (block,)

    # while: (cond consts, body consts, carry) -> carry
    def _while(self, step: Step, facts: Sequence[Fact]) -> tuple[Sequence[Fact], tuple[Block, ...]]:
        params = step.equation.params
        num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
        cond, body, init = facts[:num_cond], facts[num_cond : num_cond + num_body], facts[num_cond + num_body :]
        block, carry = self._loop("while", params["body_jaxpr"], body, init, ())
        again = self.block("while condition", params["cond_jaxpr"], [*cond, *carry])
        return carry, (again, block)

    def _loop(
        self, kind: str, jaxpr: Any, consts: Sequence[Fact], carry: Sequence[Fact], xs: Sequence[Fact]
    ) -> tuple[Block, list[Fact]]:
        """The block of a loop, and what is known of its carry in whichever iteration."""
        before = list(carry)
        for times in range(MOST_ITERATIONS):
            block = self.block(kind, jaxpr, [*consts, *before, *xs])
            after = [join([old, new.fact]) for old, new in zip(before, block.outputs, strict=False)]
            if after == before:
                return block, before
            if times:  # What grows again may grow without bound.
                pairs = zip(before, after, strict=True)
                after = [dataclasses.replace(new, range=_widened(old.range, new.range)) for old, new in pairs]
            before = after
        carried = _compat.in_avals(jaxpr)[len(consts) :]
        before = [unknown(aval) for aval, _ in zip(carried, carry, strict=False)]
        return self.block(kind, jaxpr, [*consts, *before, *xs]), before


def _is_call(equation: Any, jaxpr: Any) -> bool:
    """Whether what an equation runs takes its operands and returns its results, other than that of a reduction does."""
    outside = [[var.aval for var in each] for each in (equation.invars, equation.outvars)]
    inside = [_compat.in_avals(jaxpr), _compat.out_avals(jaxpr)]
    return [list(map(_axes, each)) for each in outside] == [list(map(_axes, each)) for each in inside]


def _axes(aval: Any) -> int:
    return getattr(aval, "ndim", 0)


def _widened(old: Interval, new: Interval) -> Interval:
    return Interval(new.low if new.low == old.low else ANY.low, new.high if new.high == old.high else ANY.high)
