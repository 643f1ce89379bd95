"""What JAX refuses of a loop while it traces: a carry that does not stay what it is, arrays of different lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._rules import primitives

TYPE = Kind(
    "LOX200",
    "error",
    "The carry of a loop changes its type",
    "Start the carry with what the body returns, such as jnp.zeros(shape, dtype) or jnp.zeros_like(x), or bring the "
    "new value to the type of the old one in the body: new.astype(old.dtype), or a sum over the axis that is too many.",
    "The carry of each loop keeps its shape and its dtype.",
    "Shape and dtype of each carry were compared before and after the body.",
)
STRUCTURE = Kind(
    "LOX201",
    "error",
    "The body of a loop returns another structure than it gets",
    "Return the carry with the same keys, lengths and types as it comes in; from the body of a scan, return the pair "
    "(carry, output), where output may be None.",
)
LENGTHS = Kind(
    "LOX202",
    "error",
    "A scan goes over arrays of different lengths",
    "Bring the same axis first in each, as with jnp.swapaxes(x, 0, 1), cut or pad what has more or fewer steps, and "
    "let the body close over what is the same in each iteration.",
    "What is scanned together has as many elements.",
    "The lengths of the arrays of each scan were compared.",
)

_CARRY = re.compile(r"(\w+) body function carry input and carry output must have (equal types|the same pytree)")
_PAIR = re.compile(r"scan body output must be a pair, got (.*)\.$", re.DOTALL)
_LENGTHS = re.compile(
    r"scan got values with different leading axis sizes: (?P<sizes>[\d, ]+)"
    r"|scan got `length` argument of (?P<length>\d+) which disagrees with leading axis sizes \[(?P<others>[\d, ]+)\]"
)


def kept(audited: Audited) -> Iterator[Finding | Held]:
    """LOX200 to LOX202: where they hold. Where they do not, JAX raises, and `explain` says what."""
    for step, location in audited.steps:
        if step.equation.primitive in primitives("scan", "while"):
            yield TYPE.fine(location)


def explain(error: Exception) -> tuple[Kind, str] | None:
    """What JAX refused in a loop, if it was that: JAX has one type of exception for all of it, so its text decides."""
    text = str(error)
    if isinstance(error, ValueError) and (match := _LENGTHS.match(text)):
        if match["sizes"]:
            return LENGTHS, f"The arrays that a scan goes over have first axes of sizes {match['sizes']}."
        return LENGTHS, f"A scan has length={match['length']}, and what it goes over has {match['others']} elements."
    if not isinstance(error, TypeError):
        return None
    if match := _PAIR.match(text):
        return STRUCTURE, f"The body of a scan returns {match[1]} where the pair (carry, output) is expected."
    match = _CARRY.match(text)
    if match is None or "jax.lax.pcast" in text:  # How values vary over shards is not what the suggestions are about.
        return None
    loop = "fori_loop" if "loop_carry[" in text else match[1]
    kind, what = (TYPE, "type") if match[2] == "equal types" else (STRUCTURE, "structure")
    return kind, f"The carry of a {loop} does not keep its {what}: {_differences(text)}"


def _differences(text: str) -> str:
    """What JAX says is different, on one line."""
    lines = text.split("Revise the function")[0].strip().splitlines()[1:]
    said = " ".join(line.strip().removeprefix("* ") for line in lines).strip()
    said = re.sub(r"a <class '[\w.]*ShapedArray'>", "an array", said)
    said = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", said)
    said = re.sub(r"loop_carry\[[12]\]", "val", said)  # It is a part of what JAX makes of a fori_loop.
    return said[:1].lower() + said[1:]


KINDS = (TYPE, STRUCTURE, LENGTHS)
CHECKS = (kept,)
