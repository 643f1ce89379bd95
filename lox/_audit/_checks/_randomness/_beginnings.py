"""States that are drawn once, and that all environments take whose episode ends."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._checks._randomness._key_arrays import DRAWS
from lox._audit._checks._randomness._reuse import SHARED
from lox._audit._ends import Flags
from lox._audit._findings import Finding
from lox._audit._origins import PASSING
from lox._audit._program import Value
from lox._audit._rules import primitives

_SAME = PASSING | primitives("convert_element_type", "not")
_MOST = 60
"""Through how many values is looked for what is drawn."""


def beginnings(audited: Audited) -> Iterator[Finding]:
    """LOX703: by the flag of each environment, a state is taken that is drawn for all of them at once."""
    if not audited.has("random_bits", "random_gamma"):
        return
    flags = None
    for step, location in audited.of("select_n"):
        condition, *cases = step.inputs
        if len(cases) != 2 or not condition.shape or condition.shape != cases[0].shape:
            continue
        end, axis = laid_out(condition, 0, audited.origins)
        if axis is None or end.shape[axis] < 2:
            continue
        alike = [case for case in cases if laid_out(case, 0, audited.origins)[1] is None]
        if len(alike) != 1 or not _is_drawn(audited, alike[0]):
            continue
        flags = audited.once(Flags) if flags is None else flags
        if end in flags or audited.origins.of(end, _SAME) in flags:
            yield SHARED.at(
                location,
                f"All {end.shape[axis]} environments whose episodes end take one state here, which is drawn for all of "
                "them at once.",
            )


def _is_drawn(audited: Audited, value: Value) -> bool:
    """Say whether random numbers of one key have a part in a value."""
    seen, left = set[Value](), [value]
    while left and len(seen) < _MOST:
        each = audited.origins.of(left.pop(), frozenset())
        if each in seen or each.maker is None:
            continue
        seen.add(each)
        if each.maker.equation.primitive in DRAWS and not each.maker.inputs[0].shape:
            return True
        left += each.maker.inputs
    return False


CHECKS = (beginnings,)
