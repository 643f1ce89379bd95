"""Follows values through a program: the steps of each block, and what is known of every value."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from types import CodeType
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._audit import _failures
from lox._audit._differentiated import differentiated_p
from lox._audit._facts import ANY, Fact, Interval, join, of_constant, unknown
from lox._audit._findings import Finding
from lox._audit._forward import Forward
from lox._audit._labels import labels_of
from lox._audit._location import is_users, of_this_trace
from lox._audit._narrowed import narrowed
from lox._audit._program import Block, Step, Value
from lox._audit._ranges import range_of
from lox._audit._regions import Role, ports_of

P = jex.core.primitives

_CALLED = {P.remat_p: "checkpoint", _compat.shard_map_p: "shard_map"}
"""What people call a primitive, where that is another name."""


MOST_FACTS = 64
"""With how many facts a jaxpr is looked at, before it is with none: what calls itself twice is called very often."""

MOST_ITERATIONS = 8
"""How many iterations of a loop are looked at until the facts do not change any more, before what changes has none."""


class Walk(Forward[Fact]):
    """Goes through programs. What was seen of a jaxpr with the same facts is not looked at again.

    Args:
        failures: Gets a finding for each operation about which nothing is known as a rule of lox failed.
        ranges: Whether ranges are followed, and not the meaning of axes alone.
        code: The code of the function that is audited, if it is known.
    """

    def __init__(
        self, failures: list[Finding] | None = None, ranges: bool = True, code: CodeType | None = None
    ) -> None:
        self._failures = [] if failures is None else failures
        self._ranges = ranges
        self._code = code
        self._seen: dict[Any, Block] = {}
        self._times: Counter[Any] = Counter()
        self._constants: dict[int, Fact] = {}  # By identity: the jaxprs keep them.
        self._running: dict[Step, dict[int, Block]] = {}

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
        function = self._function_of(opened)
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
            if equation.primitive is differentiated_p:  # Which computes nothing.
                continue
            own = of_this_trace(equation, *function)
            step = Step(own, tuple([read(atom) for atom in equation.invars]), ports=ports_of(equation))
            for value in step.inputs:
                value.uses += 1
            results = self.through(step, [value.fact for value in step.inputs])
            if step.ports:
                running = self._running.pop(step)
                step.runs(tuple(running[place] for place in range(len(step.ports))))
            made = [Value(var.aval, fact, "", step) for var, fact in zip(equation.outvars, results, strict=True)]
            step.outputs = tuple(made)
            values.update(zip(equation.outvars, made, strict=True))
            steps.append(step)
        outputs = tuple(map(read, opened.outvars))
        for value in outputs:
            value.uses += 1
        return Block(kind, inputs, tuple(steps), outputs)

    def _function_of(self, jaxpr: Any) -> tuple[str, int]:
        """The file and the first line of the function that a jaxpr is of, or of the one that is audited."""
        info = jaxpr.debug_info
        if self._code is not None and not is_users(info.func_filename or ""):
            return self._code.co_filename, self._code.co_firstlineno
        return info.func_filename or "", info.func_lineno or 0

    def join(self, facts: Sequence[Fact]) -> Fact:
        return join(facts)

    def widen(self, old: Fact, new: Fact, times: int) -> Fact:
        if times >= MOST_ITERATIONS:
            return Fact((None,) * len(new.labels))
        return dataclasses.replace(new, range=_widened(old.range, new.range)) if times else new

    def enter(self, step: Step, fact: Fact, role: Role) -> Fact:
        return Fact(fact.labels[1:], fact.range) if role == "each" else fact

    def leave(self, step: Step, fact: Fact, role: Role) -> Fact:
        return Fact((_scanned(step), *fact.labels), fact.range) if role == "stacked" else fact

    def inside(self, step: Step, place: int, facts: Sequence[Fact]) -> list[Fact]:
        ports = step.ports[place]
        if self._ranges and ports.kind == "branch":
            facts = narrowed(step, place, facts)
        block = self.block(_named(step, place), ports.jaxpr, facts)
        self._running.setdefault(step, {})[place] = block
        return [value.fact for value in block.outputs]

    def transfer(self, step: Step, facts: Sequence[Fact]) -> list[Fact]:
        for place, ports in enumerate(step.ports):
            self.inside(step, place, [unknown(aval) for aval in _compat.in_avals(ports.jaxpr)])
        return self._facts(step)

    def _facts(self, step: Step) -> list[Fact]:
        """What the rules know of the outputs of a step: what the types tell where a rule fails."""
        try:  # Not in `reported`: as a context, that takes as long as most of the rules.
            labels = labels_of(step)
            return list(map(Fact, labels, range_of(step) if self._ranges else [ANY] * len(labels)))
        except Exception as error:  # noqa: BLE001  (whatever it is, the audit goes on)
            self._failures.append(_failures.failure(f"The rule of '{step.equation.primitive.name}'", error))
            return [unknown(var.aval) for var in step.equation.outvars]


def _named(step: Step, place: int) -> str:
    """What a region of a step is called in a report."""
    primitive, params, ports = step.equation.primitive, step.equation.params, step.ports[place]
    if ports.kind == "branch":
        return f"branch {place}"
    if ports.kind == "condition":
        return "while condition"
    if primitive is P.scan_p:
        label = _scanned(step)
        return f"scan[{params['length']}{f' {label}' if label else ''}]"
    if ports.kind != "call":
        return str(primitive.name)
    name, called = params.get("name", ""), _CALLED.get(primitive, primitive.name)
    return f"{called}:{name}" if name else str(called)


def _scanned(step: Step) -> Any:
    """The label of the axis that a scan goes over, if it is known and one."""
    ports = step.ports[-1].inputs
    found = {step.inputs[port.place].fact.labels[0] for port in ports if port.role == "each"} - {None}
    return found.pop() if len(found) == 1 else None


def _widened(old: Interval, new: Interval) -> Interval:
    return Interval(new.low if new.low == old.low else ANY.low, new.high if new.high == old.high else ANY.high)
