"""Which values differ between the shards of a `shard_map`, and what collectives are applied to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from lox import _compat
from lox._audit._forward import Forward
from lox._audit._location import transformations
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

Axes = frozenset[str]
_NO: Axes = frozenset()

SUMS = primitives("psum", "psum_invariant")
_LOOKED_AT = SUMS | {_compat.shard_map_p}
_DRAWS = primitives("random_bits", "random_gamma")
_MIXING = primitives("dot_general", "conv_general_dilated", "gather", "sort", "cumsum", "cumprod", "cummax", "rev")
"""After these, what was drawn is no noise on single elements, although there may be as many."""
_REDUCTIONS = primitives("psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant")
"""What is the same on all shards afterwards."""
_VARYING = primitives("reduce_scatter", "axis_index")
"""What gives each shard its own."""
_CASTS = primitives("pvary")
"""What only tells JAX that a value is to count as one that differs."""
_OPAQUE = primitives("pure_callback", "io_callback", "ffi_call", "pallas_call")
_LINEAR = primitives(
    *("add", "sub", "neg", "mul", "div", "add_any", "dot_general", "reduce_sum", "select_n", "convert_element_type"),
    *("broadcast_in_dim", "reshape", "squeeze", "transpose", "concatenate", "stack", "slice", "split", "copy", "pvary"),
    *("sharding_constraint", "reshard", "optimization_barrier"),
)
"""What makes a scaled gradient from a gradient."""


class State(NamedTuple):
    """What is known of a value on the shards.

    Attributes:
        varies: The axes of the mesh along which it differs.
        hidden: Those along which it may differ or not: it went from shard to shard, or where nobody can follow.
        given: Whether it depends on an argument of the program.
        gradient: Whether it depends on what was computed backward and differs.
        crossed: The axes along which it is a gradient of what a collective gave, as the same on all shards.
        summed: The axes over which it is a gradient that differentiation has summed.
        drawn: What was drawn from a key of the program's arguments, and is in it element by element.
    """

    varies: Axes = _NO
    hidden: Axes = _NO
    given: bool = False
    gradient: bool = False
    crossed: Axes = _NO
    summed: Axes = _NO
    drawn: frozenset[Step] = frozenset()

    def differs(self, axis: str) -> bool:
        """Say whether it is known to differ along an axis."""
        return axis in self.varies and axis not in self.hidden

    def same(self, axis: str) -> bool:
        """Say whether it is known to be the same along an axis."""
        return axis not in self.varies and axis not in self.hidden


NOTHING = State()
"""The state of a constant."""


def _join(states: Sequence[State]) -> State:
    if not states:
        return NOTHING
    varies, hidden, given, _, crossed, summed, drawn = zip(*states, strict=True)
    return State(
        _NO.union(*varies),
        _NO.union(*hidden),
        any(given),
        any(state.gradient and state.varies for state in states),
        _NO.union(*crossed),
        _NO.union(*summed),
        frozenset().union(*drawn),
    )


@dataclasses.dataclass(frozen=True)
class Around:
    """Where a block runs: the sizes of the axes, whether JAX tracks what varies, whether it is a backward pass."""

    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tracked: bool = False
    backward: bool = False

    @property
    def key(self) -> Any:
        return tuple(self.sizes.items()), self.tracked, self.backward


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """A step, what goes in and out, and where it runs.

    Attributes:
        step: The step.
        inputs: The states of what goes in.
        outputs: The states of what comes out; of a `shard_map`, inside it.
        around: Where it runs.
        of: The states of the values of its block, as far as they are not constants.
        users: The steps of its block that take each value.
        leaves: Whether what comes out leaves its block for another one on the shards.
    """

    step: Step
    inputs: Sequence[State]
    outputs: Sequence[State]
    around: Around
    of: Mapping[Value, State]
    users: Mapping[Value, Sequence[Step]]
    leaves: bool


class Shards(Forward[State]):
    """Follows what differs between shards through a program.

    Args:
        look: Is called with each step that is a collective sum or a `shard_map`.
        also: The primitives of further steps that it is called with.
    """

    def __init__(self, look: Callable[[Seen], None], also: Set[Any] = frozenset()) -> None:
        self._look, self._looked_at = look, _LOOKED_AT | also
        self._around = Around()
        self._known: dict[Any, list[State]] = {}
        self._within: dict[Step, Sequence[State]] = {}
        self._users: dict[Block, dict[Value, list[Step]]] = {}

    def run(self, block: Block, states: Sequence[State], around: Around) -> list[State]:
        """The states of the results of a block."""
        key = (block, tuple(states), around.key, self.is_searching)
        if key not in self._known:
            self._known[key] = self._run(block, states, around)
        return self._known[key]

    def _run(self, block: Block, states: Sequence[State], around: Around) -> list[State]:
        of: dict[Value, State] = dict(zip(block.inputs, states, strict=False))
        results = set() if block.kind.startswith("shard_map") else set(block.outputs)
        back = dataclasses.replace(around, backward=True)
        for step in block.steps:
            inputs = [of.get(value, NOTHING) for value in step.inputs]
            self._around = outside = (
                back if around.backward or "transpose" in transformations(step.equation) else around
            )
            outputs = self.through(step, inputs)
            of.update(zip(step.outputs, outputs, strict=False))
            if not self.is_searching and step.equation.primitive in self._looked_at:
                leaves = any(value in results for value in step.outputs)
                inside = self._within.get(step, outputs)
                self._look(Seen(step, inputs, inside, outside, of, self._users_of(block), leaves))
        return [of.get(value, NOTHING) for value in block.outputs]

    def _users_of(self, block: Block) -> dict[Value, list[Step]]:
        if block not in self._users:
            found: dict[Value, list[Step]] = {}
            for step in block.steps:
                for value in step.inputs:
                    found.setdefault(value, []).append(step)
            self._users[block] = found
        return self._users[block]

    def join(self, facts: Sequence[State]) -> State:
        return _join(facts)

    def decide(self, by: State, fact: State) -> State:
        return _join([by, fact])

    def until(self, again: State, fact: State) -> State:
        return _join([fact, again._replace(given=False)])

    def inside(self, step: Step, place: int, facts: Sequence[State]) -> list[State]:
        around, block = self._around, step.blocks[place]
        try:
            if step.equation.primitive is _compat.shard_map_p:
                return self._on_shards(step, block, facts, around)
            return self.run(block, facts, around)
        finally:
            self._around = around

    def _on_shards(self, step: Step, block: Block, facts: Sequence[State], around: Around) -> list[State]:
        params, axes = step.equation.params, manual_axes(step.equation)
        sizes = {**around.sizes, **{axis: dict(params["mesh"].shape)[axis] for axis in sorted(axes)}}
        states = [
            state._replace(varies=state.varies | axes & axes_of(spec))
            for state, spec in zip(facts, params["in_specs"], strict=True)
        ]
        found = self.run(block, states, Around(sizes, bool(params.get("check_vma")), around.backward))
        self._within[step] = found
        return [_without(state, axes) for state in found]

    def transfer(self, step: Step, facts: Sequence[State]) -> list[State]:
        primitive, count, around = step.equation.primitive, len(step.equation.outvars), self._around
        if primitive in SUMS:
            return [_reduced(step, state, around) for state in facts]
        state = _join(facts)
        if primitive in _DRAWS:
            state = state._replace(drawn=frozenset([step] if state.given else []))
        elif state.drawn and not _is_elementwise(step, facts):
            state = state._replace(drawn=frozenset())
        axes = named_axes(step.equation, around)
        if around.backward:
            state = state._replace(gradient=True)
        elif primitive not in _LINEAR or _is_product_of_gradients(primitive, facts):
            state = state._replace(crossed=_NO, summed=_NO)
        if primitive in _REDUCTIONS:
            state = _without(state, axes)
        elif primitive in _VARYING:
            state = state._replace(varies=state.varies | axes, hidden=state.hidden - axes)
        elif primitive in _CASTS:
            if around.backward:  # What was summed over these axes gets its cotangent back.
                state = state._replace(crossed=state.crossed | {axis for axis in axes if state.same(axis)})
        elif axes:
            state = state._replace(hidden=state.hidden | axes)
        if any(_compat.is_ref(value.aval) for value in step.inputs):  # What else is in the memory is not known.
            state = state._replace(hidden=frozenset(around.sizes))
        elif step.blocks or primitive in _OPAQUE:
            state = state._replace(hidden=state.hidden | state.varies)
        return [state] * count


def _is_elementwise(step: Step, facts: Sequence[State]) -> bool:
    """Say whether a step has an element for each one that was drawn in what it takes."""
    if step.equation.primitive in _MIXING or not step.outputs:
        return False
    drawn = [math.prod(value.shape) for value, state in zip(step.inputs, facts, strict=True) if state.drawn]
    return drawn == [math.prod(step.outputs[0].shape)] * len(drawn)


def named_axes(equation: Any, around: Around) -> Axes:
    """The axes of the mesh that a collective goes over."""
    axes = collective_axes(equation)
    return frozenset(each for each in axes if isinstance(each, str) and each in around.sizes)


def collective_axes(equation: Any) -> list[Any]:
    """The axes that a collective goes over: names, or places where `vmap` has given it an axis of an array."""
    found = [equation.params.get(name) for name in ("axes", "axis_name", "axis")]
    return [each for axes in found for each in (axes if isinstance(axes, (tuple, list)) else (axes,))]


def manual_axes(equation: Any) -> Axes:
    """The axes along which a `shard_map` gives each shard its own program."""
    return frozenset(equation.params["newly_manual_axes"])


def axes_of(spec: Any) -> Axes:
    """The axes of the mesh in a `PartitionSpec`."""
    names = [each for part in spec for each in (part if isinstance(part, tuple) else (part,))]
    return frozenset(each for each in (*names, *getattr(spec, "unreduced", ())) if isinstance(each, str))


def _without(state: State, axes: Axes) -> State:
    return state._replace(
        varies=state.varies - axes,
        hidden=state.hidden - axes,
        crossed=state.crossed - axes,
        summed=state.summed - axes,
    )


def _reduced(step: Step, state: State, around: Around) -> State:
    """What a sum over shards makes of a value."""
    axes = named_axes(step.equation, around)
    if step.equation.params.get("axis_index_groups") is not None:
        return state._replace(hidden=state.hidden | axes)
    found = _without(state, axes)
    if not around.backward:
        return found
    if around.tracked:
        return found._replace(summed=found.summed | {axis for axis in axes - state.crossed if state.differs(axis)})
    return found._replace(crossed=found.crossed | {axis for axis in axes if state.same(axis)})


def _is_product_of_gradients(primitive: Any, inputs: Sequence[State]) -> bool:
    if primitive not in primitives("mul", "dot_general"):
        return primitive in primitives("div") and bool(inputs[1].crossed | inputs[1].summed)
    return all(state.crossed | state.summed for state in inputs)
