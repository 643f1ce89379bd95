"""Loops that add a carried array twice, although its new value is meant the second time."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._alike import of_values
from lox._audit._audited import Audited
from lox._audit._checks._results._same import factors_of, terms_of
from lox._audit._findings import Finding, Kind
from lox._audit._location import is_users, transformations
from lox._audit._loops import loop_of, reached
from lox._audit._origins import FLOWS
from lox._audit._program import Value
from lox._audit._rules import primitives

DOUBLED = Kind(
    "LOX232",
    "warning",
    "A loop adds twice what it carries, and computes its new value in between",
    "Add the new value the second time, as the second half step of velocity Verlet does with the new forces.",
)


def doubled(audited: Audited) -> Iterator[Finding]:
    """LOX232: a sum in the body of a loop has the same multiple of a carried array twice.

    What is carried changes, by what the body computes from the sum or from another new value of the carry.
    """
    computed = of_values()
    for loop_step, _ in audited.of("scan", "while"):
        loop = loop_of(loop_step)
        news = {inside: new for _, inside, new in loop.carry if inside.shape and new is not inside and new.maker}
        if not news:
            continue
        moved = reached(loop.body, [inside for _, inside, _ in loop.carry])
        for step in loop.body.steps:
            location = audited.lines[step]
            passes = {"jvp", "transpose"} & set(transformations(step.equation))
            if step.equation.primitive not in primitives("add") or passes or not is_users(location.of_user.file):
                continue
            terms = list(terms_of(step.outputs[0]))
            pairs = ((one, other) for place, one in enumerate(terms) for other in terms[:place])
            for one, other in pairs:
                again = _carried(audited, one, news) if computed[one] == computed[other] else None
                if again is None or step.outputs[0] not in audited.live:
                    continue
                others = set(news.values()) - {news[again]}
                if others & moved and news[again] in reached(loop.body, others):
                    yield DOUBLED.at(
                        location,
                        f"{again.called} of the carry is added here a second time: its new value is computed from what "
                        "the first time led to, and only carried on.",
                    )
                    break


def _carried(audited: Audited, term: Value, news: dict[Value, Value]) -> Value | None:
    """The carried array that a term is a multiple of, by what does not change."""
    found = [audited.origins.of(each, FLOWS) for each in factors_of(term) if each.number is None]
    arrays = [each for each in found if each in news]
    return arrays[0] if len(arrays) == 1 and all(each in news or not each.shape for each in found) else None


KINDS = (DOUBLED,)
CHECKS = (doubled,)
