"""What holds only for the sizes that the arguments happen to have."""

from __future__ import annotations

import ast
import dataclasses
import types
from collections import Counter
from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import meetings, products
from lox._audit._facts import Fact, unknown
from lox._audit._findings import Finding, Held, Kind
from lox._audit._naming import name_values
from lox._audit._sources import Source, calls_in, sources
from lox._audit._walk import Walk

SQUEEZED = Kind(
    "LOX109",
    "info",
    "A squeeze drops every axis of size 1",
    "Name the axis that is meant, as in jnp.squeeze(x, axis=-1).",
    "Squeezes name their axes.",
    "The source of the functions that were traced was read for squeezes without an axis.",
)
COINCIDENT = Kind(
    "LOX110",
    "info",
    "Two axes of one argument meet, and must have equal sizes",
    "If the axes are the same by their meaning, nothing is to be done. If not, one of them is transposed: audit with "
    "arguments whose axes differ in size, and JAX will say where.",
)


def squeezed(audited: Audited) -> Iterator[Finding | Held]:
    """LOX109: a squeeze without an axis would drop the axis of a batch of one."""
    for source in sources(audited):
        for call in calls_in(source.node):
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "squeeze":
                continue
            array = _squeezed(call, call.func, source)
            if array is not None:
                text = ast.unparse(array)
                yield SQUEEZED.at(
                    source.at(call),
                    f"{text} is squeezed without an axis: a batch or another axis of size 1 would be dropped too.",
                )


def _squeezed(call: ast.Call, function: ast.Attribute, source: Source) -> ast.expr | None:
    """The array that a call squeezes along axes that it does not name."""
    owner = source.names.get(function.value.id) if isinstance(function.value, ast.Name) else None
    of_module = isinstance(owner, types.ModuleType)
    if call.keywords or len(call.args) != of_module or (of_module and owner is not jnp):
        return None
    return call.args[0] if of_module else function.value


def coincident(audited: Audited) -> Iterator[Finding | Held]:
    """LOX110: an operation pairs two axes of one argument, which have equal sizes in this call."""
    facts, some = [], False
    for name, value in zip(audited.captured.arguments, audited.program.inputs, strict=True):
        sizes = Counter(value.shape)
        labels = tuple(
            f"axis {axis} of {name}" if sizes[size] > 1 < size else None for axis, size in enumerate(value.shape)
        )
        is_told = any(value.fact.labels)
        some |= any(labels) and not is_told
        facts.append(unknown(value.aval) if is_told else Fact(labels, value.fact.range))
    if not some:
        return
    program = Walk(ranges=False, code=audited.captured.code).block(
        audited.captured.name, audited.captured.jaxpr, facts, audited.captured.arguments
    )
    name_values(program)
    again = dataclasses.replace(audited, program=program)
    for pairing in (*meetings(again), *products(again)):
        one, other = map(str, pairing.labels)
        if pairing.differs and _argument(one) == _argument(other):
            yield COINCIDENT.at(
                pairing.location,
                f"In {pairing.one.called} and {pairing.other.called}, {one} meets {other.partition(' of ')[0]}: their "
                f"size must be equal, as {pairing.one.shape[pairing.axis]} is in this call.",
            )


def _argument(label: str) -> str:
    return label.partition(" of ")[2]


KINDS = (SQUEEZED, COINCIDENT)
CHECKS = (squeezed, coincident)
