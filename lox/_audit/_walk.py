"""Follows values through a program: the steps of each block, and what is known of every value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._audit._facts import ANY, Fact, Interval, join, of_constant, unknown
from lox._audit._labels import labels_of
from lox._audit._program import Block, Step, Value
from lox._audit._ranges import range_of
from lox._handler import jaxprs_in

P = jex.core.primitives

_CALLED = {P.remat_p: "checkpoint", _compat.shard_map_p: "shard_map"}
"""What people call a primitive, where that is another name."""


class Walk:
    """Goes through programs. What was seen of a jaxpr with the same facts is not looked at again."""

    def __init__(self) -> None:
        self._seen: dict[Any, Block] = {}

    def block(self, kind: str, jaxpr: Any, facts: Sequence[Fact], names: Sequence[str] = ()) -> Block:
        """What a jaxpr does with inputs of which so much is known."""
        opened = _compat.open_jaxpr(jaxpr)
        key = (kind, opened, tuple(facts), tuple(names))
        if key not in self._seen:
            self._seen[key] = self._block(kind, jaxpr, opened, facts, names)
        return self._seen[key]

    def _block(self, kind: str, jaxpr: Any, opened: Any, facts: Sequence[Fact], names: Sequence[str]) -> Block:
        values: dict[Any, Value] = {}
        for var, constant in zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False):
            values[var] = Value(var.aval, of_constant(constant))
        names = names or opened.debug_info.arg_names or ()
        names = [*names, *[""] * len(facts)][: len(facts)]
        inputs = tuple(
            Value(var.aval, fact, name or "") for var, fact, name in zip(opened.invars, facts, names, strict=True)
        )
        values.update(zip(opened.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            if isinstance(atom, jex.core.Literal):
                return Value(atom.aval, of_constant(atom.val))
            if atom not in values:
                values[atom] = Value(atom.aval, unknown(atom.aval))
            return values[atom]

        steps = []
        for equation in opened.eqns:
            step = Step(equation, tuple(map(read, equation.invars)))
            for value in step.inputs:
                value.uses += 1
            results, step.blocks = self._through(step)
            step.outputs = tuple(
                Value(var.aval, fact, maker=step) for var, fact in zip(equation.outvars, results, strict=True)
            )
            values.update(zip(equation.outvars, step.outputs, strict=True))
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
        if len(inner) == 1 and len(_compat.in_avals(inner[0])) == len(facts):
            name = params.get("name", "")
            called = _CALLED.get(primitive, primitive.name)
            block = self.block(f"{called}:{name}" if name else called, inner[0], facts)
            if len(block.outputs) == len(step.equation.outvars):
                return [value.fact for value in block.outputs], (block,)
        blocks = [
            self.block(primitive.name, jaxpr, [unknown(aval) for aval in _compat.in_avals(jaxpr)]) for jaxpr in inner
        ]
        return list(map(Fact, labels_of(step), range_of(step))), tuple(blocks)

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
        before, first = list(carry), True
        while True:
            block = self.block(kind, jaxpr, [*consts, *before, *xs])
            after = [join([old, new.fact]) for old, new in zip(before, block.outputs, strict=False)]
            if after == before:
                return block, before
            if not first:  # What grows again may grow without bound.
                pairs = zip(before, after, strict=True)
                after = [dataclasses.replace(new, range=_widened(old.range, new.range)) for old, new in pairs]
            before, first = after, False


def _widened(old: Interval, new: Interval) -> Interval:
    return Interval(new.low if new.low == old.low else ANY.low, new.high if new.high == old.high else ANY.high)
