"""A jaxpr in parts: what its other outputs do not need can run later, or never."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax.extend as jex
import numpy as np

from lox._compat._jaxprs import closed, open_jaxpr, variables
from lox._compat._params import unspecified

_listed = jex.core.primitives
jit_p = _listed.jit_p

_CHEAP = frozenset(
    {
        *(_listed.add_p, _listed.sub_p, _listed.mul_p, _listed.div_p, _listed.neg_p, _listed.max_p, _listed.min_p),
        *(_listed.select_n_p, _listed.convert_element_type_p, _listed.broadcast_in_dim_p, _listed.reshape_p),
    }
)
"""Operations on elements whose results a compiler need not write to memory, unless another program takes them."""

_CHAIN = 16
"""So many of them in a row, at most, are computed again."""


@dataclasses.dataclass(frozen=True)
class LatePart:
    """A part of a jaxpr whose results are outputs, and nothing else needs them.

    Attributes:
        jaxpr: A closed jaxpr without constants.
        operands: For each of its inputs, which of the values that the first part computes for later it is.
        outs: For each of its outputs, the output of the whole that it is.
    """

    jaxpr: Any
    operands: tuple[int, ...]
    outs: tuple[int, ...]


def split_late(
    jaxpr: Any, late: Mapping[int, Sequence[Hashable]], size: Callable[[int], int | None]
) -> tuple[Any, list[LatePart]]:
    """Take what only some outputs need out of a jaxpr, in parts of about equal work that share no equation.

    Calls of jitted functions are split as well; other equations are whole. Work is the number of array elements that
    equations take.

    Args:
        jaxpr: A closed jaxpr without constants.
        late: The outputs to take out, each with labels. Those that have a label in common are in one part.
        size: A function of the work that can be taken out, which returns that of a part, or None to take out nothing.

    Returns:
        A closed jaxpr of the same inputs, whose outputs are the others, then what the parts need; and the parts, in
        the order of their outputs. If nothing is taken out, there are none, and the jaxpr is whole.
    """
    given = open_jaxpr(jaxpr)
    eqns, taken, names = _split(given, late)
    outs = {number: _renamed(given.outvars[number], names) for number in late}
    groups = _in_parts(_independent(taken, outs, late), size)
    if not groups:
        return jaxpr, []
    computed = {var for eqn in taken for var in variables(eqn.outvars)}
    between: dict[Any, int] = {}
    debug = given.debug_info.with_unknown_names()
    parts = []
    for group in groups:
        results = [outs[number] for number in group.outs]
        used = [*(var for eqn in group.eqns for var in variables(eqn.invars)), *variables(results)]
        invars = [var for var in dict.fromkeys(used) if var not in computed]
        operands = tuple(between.setdefault(var, len(between)) for var in invars)
        part = given.replace(eqns=group.eqns, invars=invars, outvars=results, effects=set(), debug_info=debug)
        parts.append(LatePart(closed(part), operands, tuple(group.outs)))
    others = [var for number, var in enumerate(given.outvars) if number not in late]
    return closed(given.replace(eqns=eqns, outvars=[*others, *between], debug_info=debug)), parts


def _split(given: Any, late: Mapping[int, Any]) -> tuple[list[Any], list[Any], dict[Any, Any]]:
    """The equations of the first part, those of the others, and what replaces results of split calls in these."""
    needed = set(variables([var for number, var in enumerate(given.outvars) if number not in late]))
    needed_late = set(variables([given.outvars[number] for number in late]))
    first, taken, names = [], [], {}
    for eqn in reversed(given.eqns):
        waits = [var in needed_late and var not in needed for var in eqn.outvars]
        here, later = [eqn], []
        if not eqn.effects and needed.isdisjoint(variables(eqn.outvars)):
            here, later = [], [eqn] if any(waits) else []
        elif eqn.primitive is jit_p and any(waits) and not eqn.effects:
            call, later, of_call = _split_call(eqn, waits)
            here = [call]
            names.update(of_call)
        first += here
        taken += reversed(later)
        needed.update(var for each in here for var in variables(each.invars))
        needed_late.update(var for each in later for var in variables(each.invars))
    taken = [each.replace(invars=[_renamed(atom, names) for atom in each.invars]) for each in reversed(taken)]
    first.reverse()
    return first, _from_their_sources(taken, first), names


def _from_their_sources(taken: Sequence[Any], first: Sequence[Any]) -> list[Any]:
    """The equations that were taken, which compute again what costs more to be handed over from the first part.

    Those are results of cheap operations on values that take no more memory together, to an eighth.
    """
    sources: dict[Any, tuple[dict[Any, Any], dict[Any, int]]] = {}  # Equations and values that a result is made from.
    for eqn in first:
        if eqn.primitive not in _CHEAP:
            continue
        (var,) = eqn.outvars
        inputs = [sources.get(atom, ({}, {atom: _size(atom)})) for atom in variables(eqn.invars)]
        chain = {each: None for made, _ in inputs for each in made} | {eqn: None}
        values = {value: size for _, made_from in inputs for value, size in made_from.items()}
        if len(chain) <= _CHAIN and sum(values.values()) <= _size(var) * 9 // 8:
            sources[var] = chain, values
    computed = {var for eqn in taken for var in variables(eqn.outvars)}
    operands = dict.fromkeys(var for eqn in taken for var in variables(eqn.invars) if var not in computed)
    again: list[Any] = []
    names: dict[Any, Any] = {}
    for operand in operands:
        own: dict[Any, Any] = {}  # Parts that have an operand in common can be apart, those with an equation cannot.
        for eqn in sources.get(operand, ({}, {}))[0]:
            (var,) = eqn.outvars
            own[var] = jex.core.Var(var.aval)
            again.append(eqn.replace(invars=[_renamed(atom, own) for atom in eqn.invars], outvars=[own[var]]))
        names |= {operand: own[operand]} if own else {}
    return [*again, *(each.replace(invars=[_renamed(atom, names) for atom in each.invars]) for each in taken)]


def _size(var: Any) -> int:
    return int(np.prod(var.aval.shape))


def _split_call(eqn: Any, waits: Sequence[bool]) -> tuple[Any, list[Any], dict[Any, Any]]:
    """The call of a jitted function without some results, the equations of these, and what replaces them there."""
    given = open_jaxpr(eqn.params["jaxpr"])
    free = unspecified()
    late = dict.fromkeys(
        number
        for number, (waiting, sharding) in enumerate(zip(waits, eqn.params["out_shardings"], strict=True))
        if waiting and sharding == free
    )
    first, taken, names = _split(given, late)
    if not taken:
        return eqn, [], {}
    fresh = {var: jex.core.Var(var.aval) for each in taken for var in variables(each.outvars)}
    used = [*(atom for each in taken for atom in each.invars), *(_renamed(given.outvars[n], names) for n in late)]
    between = {var: jex.core.Var(var.aval) for var in variables(used) if var not in fresh}
    fresh |= between
    later = [
        each.replace(
            invars=[_renamed(atom, fresh) for atom in each.invars],
            outvars=[_renamed(var, fresh) for var in each.outvars],
        )
        for each in taken
    ]
    kept = [number for number in range(len(eqn.outvars)) if number not in late]
    count = len(between)
    changes = {
        "jaxpr": closed(
            given.replace(
                eqns=first,
                outvars=[*(given.outvars[number] for number in kept), *between],
                debug_info=given.debug_info.with_unknown_names(),
            )
        ),
        "out_shardings": (*(eqn.params["out_shardings"][number] for number in kept), *(free,) * count),
        "out_layouts": (*(eqn.params["out_layouts"][number] for number in kept), *(None,) * count),
    }
    call = eqn.replace(
        params=eqn.params | changes, outvars=[*(eqn.outvars[number] for number in kept), *between.values()]
    )
    return (
        call,
        later,
        {eqn.outvars[number]: _renamed(_renamed(given.outvars[number], names), fresh) for number in late},
    )


def _renamed(atom: Any, names: Mapping[Any, Any]) -> Any:
    """What replaces a variable; literals and other variables are themselves."""
    return names.get(atom, atom) if isinstance(atom, jex.core.Var) else atom


@dataclasses.dataclass
class _Group:
    """Equations that have a variable or a label in common."""

    eqns: list[Any] = dataclasses.field(default_factory=list)
    outs: list[int] = dataclasses.field(default_factory=list)

    def work(self) -> int:
        return sum(_size(var) for eqn in self.eqns for var in variables(eqn.invars))


def _independent(eqns: Sequence[Any], outs: Mapping[int, Any], labels: Mapping[int, Sequence[Any]]) -> list[_Group]:
    """The equations and outputs in groups that share no variable that is computed there, and no label."""
    group_of: dict[Any, set[Any]] = {}  # Of equations, by their numbers, and of outputs and labels as tuples.

    def join(nodes: Iterable[Any]) -> None:
        found = {id(group): group for node in nodes for group in [group_of.setdefault(node, {node})]}
        largest, *others = sorted(found.values(), key=len, reverse=True)
        for other in others:
            largest |= other
            group_of.update(dict.fromkeys(other, largest))

    source = {var: number for number, eqn in enumerate(eqns) for var in variables(eqn.outvars)}
    for number, eqn in enumerate(eqns):
        join([number, *(source[var] for var in variables(eqn.invars) if var in source)])
    for number, atom in outs.items():
        join([("out", number), *(("label", label) for label in labels[number])])
        join([("out", number), *(source[var] for var in variables([atom]) if var in source)])
    groups: dict[int, _Group] = {}
    for number in outs:
        groups.setdefault(id(group_of["out", number]), _Group()).outs.append(number)
    for number, eqn in enumerate(eqns):
        groups[id(group_of[number])].eqns.append(eqn)
    return list(groups.values())


def _in_parts(groups: Sequence[_Group], size: Callable[[int], int | None]) -> list[_Group]:
    """Groups joined to parts of about equal work."""
    works = [group.work() for group in groups]
    least = size(sum(works))
    if least is None:
        return []
    parts, work = [_Group()], 0
    for group, more in zip(groups, works, strict=True):
        if work >= least:
            parts.append(_Group())
            work = 0
        parts[-1].eqns += group.eqns
        parts[-1].outs += group.outs
        work += more
    return parts
