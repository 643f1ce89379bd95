"""From a function to its program with what is known of each value."""

from __future__ import annotations

from lox import _compat
from lox._audit._capture import Capture
from lox._audit._facts import Fact, unknown
from lox._audit._findings import Finding
from lox._audit._options import Axes
from lox._audit._program import Block
from lox._audit._walk import Walk
from lox._exceptions import LogValueError


def follow(captured: Capture, axes: Axes, failures: list[Finding] | None = None) -> Block:
    """The program of a captured function.

    Args:
        captured: The function.
        axes: What the axes of arguments mean, by the name of the argument, as in ``{"obs": ("time", "batch", None)}``,
            or of an array in it, as in ``{"batch/obs": ("time", "batch", None)}``. An argument has the labels of all
            arrays in it that have none of their own.
        failures: Gets a finding for each operation about which nothing is known as a rule of lox failed.

    Raises:
        LogValueError: There is no such argument, or it has another number of axes.
    """
    avals = _compat.in_avals(captured.jaxpr)
    unused = {name for name in axes if not any(name in _prefixes(each) for each in captured.arguments)}
    if unused:
        known = ", ".join(map(repr, captured.arguments)) or "none"
        raise LogValueError(
            f"axes= names {', '.join(map(repr, sorted(unused)))}, but the arrays among the arguments of "
            f"{captured.name} are {known}."
        )
    facts = []
    for name, aval in zip(captured.arguments, avals, strict=True):
        labels = next((axes[each] for each in _prefixes(name) if each in axes), None)
        if labels is not None and len(labels) != aval.ndim:
            raise LogValueError(
                f"axes= gives {name!r} {len(labels)} labels, {tuple(labels)}, but its shape is {aval.shape}: "
                f"{aval.ndim} axes."
            )
        fact = unknown(aval)
        facts.append(fact if labels is None else Fact(tuple(labels), fact.range))
    return Walk(failures, code=captured.code).block(captured.name, captured.jaxpr, facts, captured.arguments)


def _prefixes(name: str) -> list[str]:
    """The names that mean an array: its own first, then those of what it is in."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
