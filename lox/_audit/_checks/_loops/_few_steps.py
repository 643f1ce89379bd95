"""Returns of a few steps that are summed without a loop of JAX."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import made_by
from lox._audit._checks._loops._episodes import RETURNS
from lox._audit._dependence import Node, upstream
from lox._audit._ends import Flags, is_reward
from lox._audit._findings import Finding

_MOST = 60
"""How many terms are looked at."""


def few_steps(audited: Audited) -> Iterator[Finding]:
    """LOX220: rewards of later steps are added whatever ends between, and a flag cuts what comes after them."""
    flags = Flags(audited)
    for place in audited.dependence.places if _has_rewards(audited) else ():
        total = place.outputs[0] if place.step.equation.primitive.name == "add" else None
        if total is None or any(made_by(fed, "add") is fed.place is not None for fed, _ in total.feeds):
            continue
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
    """The rewards that a term has a slice of, perhaps times a number, and where along the first axis it begins."""
    scaled = made_by(term, "mul")
    if scaled is not None:
        others = [node for node in scaled.inputs if node.value.number is None]
        if len(others) != 1:
            return None
        term = others[0]
    place = made_by(term, "slice")
    if place is None or not is_reward(plain(place.inputs[0]).value):
        return None
    return plain(place.inputs[0]), place.step.equation.params["start_indices"][0]


def _is_cut(term: Node, flags: Flags) -> bool:
    """Say whether a term depends on a flag of the end of an episode."""
    return any(node.value in flags for node in upstream([term], smoothly=False))


CHECKS = (few_steps,)
