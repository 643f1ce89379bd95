"""Returns of a few steps that are summed without a loop of JAX."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import made_by, unscaled
from lox._audit._checks._loops._episodes import RETURNS
from lox._audit._dependence import Node, upstream
from lox._audit._ends import Flags, is_reward
from lox._audit._findings import Finding
from lox._audit._rules import primitives

_ADDS = primitives("add")
_MOST = 60
"""So many terms of a sum are read."""


def few_steps(audited: Audited) -> Iterator[Finding]:
    """LOX220: rewards of later steps are added whatever ends between, and a flag cuts what comes after them."""
    if not _has_rewards(audited):
        return
    flags = Flags(audited)
    for place in audited.dependence.places:
        if place.step.equation.primitive not in _ADDS:
            continue
        (total,) = place.outputs
        if any(fed.place is not None and fed.place.step.equation.primitive in _ADDS for fed, _ in total.feeds):
            continue  # It is a part of a longer sum.
        terms = list(_terms(total))
        rewards = {node: found for node in terms if (found := _slice_of_rewards(node)) is not None}
        arrays = {id(array): array for array, _ in rewards.values()}
        if len(arrays) != 1 or len({start for _, start in rewards.values()}) < 2:
            continue
        first = min(start for _, start in rewards.values())
        later = [node for node, (_, start) in rewards.items() if start > first]
        rest = [node for node in terms if node not in rewards]
        if any(_is_cut(node, flags) for node in rest) and not any(_is_cut(node, flags) for node in later):
            (array,) = arrays.values()
            yield RETURNS.at(
                place.location,
                f"A return adds {array.value.called} of later steps, also where an episode ends before them: only what "
                "comes after them is cut there.",
            )


def _has_rewards(audited: Audited) -> bool:
    return any(is_reward(step.inputs[0]) for step, _ in audited.of("slice", "dynamic_slice"))


def _terms(total: Node) -> Iterator[Node]:
    """The terms of a sum."""
    left = [total]
    for _ in range(_MOST):
        if not left:
            return
        node = left.pop()
        place = made_by(node, "add")
        if place is None:
            yield node
        else:
            left += place.inputs


def _slice_of_rewards(term: Node) -> tuple[Node, int] | None:
    """The rewards that a term has a slice of, perhaps times numbers, and where along the first axis it begins."""
    place = made_by(unscaled(term), "slice")
    if place is None or not is_reward(plain(place.inputs[0]).value):
        return None
    return plain(place.inputs[0]), place.step.equation.params["start_indices"][0]


def _is_cut(term: Node, flags: Flags) -> bool:
    """Say whether a term depends on a flag of the end of an episode."""
    return any(node.value in flags for node in upstream([term], smoothly=False))


CHECKS = (few_steps,)
