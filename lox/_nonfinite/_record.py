"""Runs a program operation by operation, and records the operations whose results are not finite.

The operations of a function that runs op by op are met where they are bound; jitted functions, branches and the like
are interpreted equation by equation. Jitted functions without loops run compiled first, and are interpreted only where
a result is not finite. Loops run compiled: `_loops.py`. What is finite is not kept, so that the record does not grow
with the number of operations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.extend.source_info_util as source_info
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._audit._rules import primitives
from lox._compat import _tracebacks
from lox._effect import log_p
from lox._exceptions import LogValueError
from lox._handler import DropAll
from lox._logs_in import jaxprs_in, logs_in
from lox._nonfinite._axes import Axes, axes_p, searching
from lox._nonfinite._branches import runs_for_all
from lox._nonfinite._evaluate import CALLS, bind, bind_on_shards, run_equations
from lox._nonfinite._flow import COMPARISONS
from lox._nonfinite._shards import Shards
from lox._sharding import on_mesh_of
from lox._trace import under

Position = tuple[int, ...]
"""The time of an operation: its number, and for each loop around, before it, the number of the loop and iteration."""

_listed = jex.core.primitives
_LOOPS = frozenset({_listed.scan_p, _listed.while_p})
_PRINTS = primitives("debug_callback", "debug_print")
_ASKS_HOST = primitives("io_callback")


@dataclasses.dataclass(frozen=True)
class Line:
    """The line of an operation."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(eq=False)
class Frame:
    """The surroundings in which operations run.

    Attributes:
        iterations: The numbers of the iterations around, outermost first.
        position: The beginning of the position of what runs in it.
        phase: "forward", "backward", or "anew" for what a `jax.checkpoint` computes again.
        shards: The shards that values are split over, if any.
        in_condition: Whether it is the condition of a `while_loop`.
        for_all: Whether it is a branch that runs also for batch elements that do not take it.
        line: The line of the call around, for operations that JAX knows no line of.
        of_rule: Whether a backward function has made that call.
        closed: Whether a function of JAX runs that runs none of others: its operations are of the line of its call.
        numbers: The numbers of the operations in it.
    """

    iterations: tuple[int, ...] = ()
    position: Position = ()
    phase: str = "forward"
    shards: Shards | None = None
    in_condition: bool = False
    for_all: bool = False
    line: Line = Line("", 0, "")
    of_rule: bool = False
    closed: bool = False
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def next(self) -> Position:
        """The position of the next operation."""
        return (*self.position, next(self.numbers))

    def inside(self, stack: Any) -> Frame:
        """The surroundings of an operation with this name stack; operations are numbered together."""
        phase, for_all = phase_of(stack, self.phase), self.for_all or runs_for_all(stack)
        same = phase == self.phase and for_all == self.for_all
        return self if same else dataclasses.replace(self, phase=phase, for_all=for_all)

    def called(self, info: Any) -> Frame:
        """The surroundings inside a call."""
        return dataclasses.replace(self, line=self.line_of(info), of_rule=_tracebacks.is_of_custom_vjp(info.traceback))

    def called_with_rule(self, info: Any) -> Frame:
        """The surroundings inside a call of a `jax.custom_vjp` function, whose traceback is its own."""
        return dataclasses.replace(self, line=line_of(info))

    def line_of(self, info: Any) -> Line:
        """The line of the program that an operation comes from, or that of the call around.

        What a backward function calls may have the line of another call, the first one: JAX traces it once for all.
        """
        traced_by_rule = self.of_rule or self.phase != "backward"
        is_shared = self.closed or (traced_by_rule and _tracebacks.is_of_custom_vjp(info.traceback))
        if is_shared and self.line.file:
            return self.line
        found = line_of(info)
        return found if found.file else self.line

    def run(self, function: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
        """Run a flat function on values, on each shard if they are split."""
        return list((function if self.shards is None else self.shards.on_each(function))(*args))


@dataclasses.dataclass(eq=False)
class Operation:
    """An operation with a result that is not finite.

    Attributes:
        primitive: The primitive.
        params: Its parameters.
        operands: Its operands.
        results: Its results.
        line: Its line.
        frame: The surroundings.
        position: The time at which it ran.
        moves: A function of operands that it moves to its results, for one that no primitive stands for.
        loop: The loop that it is, if any.
    """

    primitive: Any
    params: dict[str, Any]
    operands: Sequence[Any]
    results: Sequence[Any]
    line: Line
    frame: Frame
    position: Position
    moves: Callable[..., Sequence[Any]] | None = None
    loop: Any = None


@dataclasses.dataclass(eq=False)
class Carried:
    """The place of a value that a loop carries into an iteration.

    Attributes:
        loop: The loop.
        number: The number of the value in the carry.
        trip: The number of the iteration.
    """

    loop: Any
    number: int
    trip: int


Sink = tuple[Any, np.ndarray[Any, Any]]
"""A value that must be finite, and which of its elements are not."""


@dataclasses.dataclass(frozen=True)
class Resume:
    """The iteration at which an outermost loop goes on.

    Attributes:
        loop: The number of the loop.
        trip: The number of the iteration.
        carry: The carry before it.
        infinite: The first iteration whose carry is infinite and began finite, if that is an earlier one, or -1.
        finite_carry: The carry before that.
        shown: The number of the iteration for people: in a backward pass that of the iteration that it differentiates.
        backward: Whether it is in a backward pass.
    """

    loop: int
    trip: int
    carry: Sequence[Any]
    infinite: int = -1
    finite_carry: Sequence[Any] = ()
    shown: int = -1
    backward: bool = False


class Reached(Exception):
    """The search has reached the iteration that it was for.

    Attributes:
        place: The iteration, and the carry before it.
    """

    def __init__(self, place: Resume) -> None:
        super().__init__()
        self.place = place


class Record:
    """The operations that have had results that are not finite.

    Attributes:
        everything: Whether to interpret jitted functions although their results are finite.
        resume: The iteration at which a loop goes on, and the search ends.
        stops: "nan" or "nonfinite", where the search ends at the first outermost loop with such a carry.
        loops: The number of outermost loops so far.
        operations: The operations, in the order in which they were recorded.
        sinks: Values of carries and conditions of loops that are NaN.
        infinite: Values of carries that are infinite and began finite.
        lost: Descriptions of what was not finite where it ran compiled, and is where it runs again.
    """

    def __init__(self, everything: bool = False, resume: Resume | None = None, stops: str = "") -> None:
        self.everything = everything
        self.resume = resume
        self.stops = stops
        self.loops = 0
        self.operations: list[Operation] = []
        self.sinks: list[Sink] = []
        self.infinite: list[Sink] = []
        self.lost: list[str] = []
        self._made: dict[int, tuple[Any, Operation | Carried, int]] = {}
        self._axes: dict[int, tuple[Any, Axes]] = {}

    def made(self, value: Any) -> tuple[Operation | Carried, int] | None:
        """The operation that made a value, and the number of the value among its results."""
        found = self._made.get(id(value))
        return None if found is None else found[1:]

    def note(self, value: Any, by: Operation | Carried, number: int) -> None:
        """Remember what has made a value that is not finite."""
        if id(value) not in self._made:
            self._made[id(value)] = value, by, number

    def axes(self, value: Any) -> Axes | None:
        """The batch axes of a value, as far as they are known."""
        found = self._axes.get(id(value))
        return None if found is None else found[1]

    def tell(self, value: Any, axes: Axes) -> None:
        """Remember the batch axes of a value while it is there. The innermost `vmap` is the last to tell them."""
        key = id(value)
        if len(axes) > len(self.axes(value) or ()) and isinstance(value, jax.Array):
            self._axes[key] = weakref.ref(value, lambda _: self._axes.pop(key, None)), axes

    def keep(self, operation: Operation) -> None:
        """Record an operation if a result of it is not finite."""
        found = [number for number, value in enumerate(operation.results) if is_nonfinite(value)]
        if found:
            self.operations.append(operation)
        for number in found:
            self.note(operation.results[number], operation, number)

    def apply(self, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any) -> list[Any]:
        """Run an operation.

        Args:
            frame: The surroundings.
            primitive: The primitive.
            args: Its operands.
            params: Its parameters.
            info: Where it comes from.
        """
        if primitive is log_p or primitive in _PRINTS:
            return []
        asks = info if primitive in _ASKS_HOST else _asks_host(params)
        if asks is not None:  # Before anything of it runs.
            raise LogValueError(
                f"The io_callback at {frame.line_of(asks)} would run again each time that lox.find_nonfinite runs a "
                "part of the program. Leave it out of the function, or put what it returns into the arguments."
            )
        if primitive is axes_p:
            offset = frame.shards.ndim if frame.shards else 0
            axes = tuple(axis if axis is None else axis + offset for axis in params["axes"])
            self.tell(args[0], axes)
            return list(args)
        run = _rules.get(primitive)
        if run is not None:
            return run(self, frame, primitive, args, params, info)
        return self._run(frame, primitive, args, params, info)

    def _run(self, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any) -> list[Any]:
        run = bind if frame.shards is None else bind_on_shards
        outs = frame.run(lambda *args: run(primitive, args, params), *args)
        line = frame.line_of(info)
        self.keep(Operation(primitive, params, args, outs, line, frame, frame.next()))
        if frame.in_condition and primitive in COMPARISONS and args[0] is not args[-1]:
            self.sinks += [(arg, np.isnan(arg)) for arg in args if is_nan(arg)]
        return outs

    def interpret(self, frame: Frame, jaxpr: Any, args: Sequence[Any]) -> list[Any]:
        """Run a jaxpr, equation by equation."""
        frame = dataclasses.replace(frame, closed=_tracebacks.runs_no_other(_compat.open_jaxpr(jaxpr)))

        def run(eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
            with eqn.ctx.manager if frame.shards is None else contextlib.nullcontext():
                inside = frame.inside(eqn.source_info.name_stack)
                return self.apply(inside, eqn.primitive, inputs, eqn.params, eqn.source_info)

        if frame.shards is not None:
            return run_equations(jaxpr, args, run, frame.shards.copies)
        with on_mesh_of(args):
            return run_equations(jaxpr, args, run)


def phase_of(stack: Any, around: str) -> str:
    """The phase of an operation in these scopes."""
    if _tracebacks.is_recomputed(stack):
        return "anew"
    return "backward" if "transpose" in _tracebacks.transformations(stack.stack) else around


def line_of(info: Any) -> Line:
    """The line of the program that an operation comes from."""
    found = re.fullmatch(r"(.*?):(\d+)(?::\d+)?(?: \((.*)\))?", source_info.summarize(info))
    if found is None or _tracebacks.is_of_caller(found[1], info.traceback):
        return Line("", 0, "")
    return Line(found[1], int(found[2]), (found[3] or "").rpartition(".")[2])


def is_float(value: Any) -> bool:
    """Tell whether a value has elements that may not be finite."""
    dtype = getattr(value, "dtype", None)
    if _compat.is_ref(getattr(value, "aval", None)):
        return False  # What is read of it is a result of the operation that reads.
    return isinstance(value, float) if dtype is None else bool(jnp.issubdtype(dtype, jnp.inexact))


@jax.jit
def _nonfinite(value: Any) -> Any:
    return ~jnp.isfinite(value).all()


@jax.jit
def _nan(value: Any) -> Any:
    return jnp.isnan(value).any()


def is_nonfinite(value: Any) -> bool:
    """Tell whether an element of a value is NaN or infinite."""
    return is_float(value) and bool(_nonfinite(value))


def is_nan(value: Any) -> bool:
    """Tell whether an element of a value is NaN."""
    return is_float(value) and bool(_nan(value))


@_compat.weakref_lru_cache
def without_logs(jaxpr: Any) -> Any:
    """The jaxpr without the logs of taps in the program, and without what it prints."""
    if logs_in({"jaxpr": jaxpr}):
        run = under(DropAll(), _compat.as_fun(jaxpr))
        jaxpr = _compat.trace(lambda *args: run(None, *args)[0], _compat.in_avals(jaxpr), "lox")[0]
    return _without_prints(jaxpr) if prints_in(jaxpr) else jaxpr


@functools.cache
def print_effects() -> tuple[type, ...]:
    """The effects of `jax.debug.callback` and `jax.debug.print`."""
    call = lambda: [jax.debug.callback(print, ordered=ordered) for ordered in (False, True)]  # noqa: E731
    return tuple({type(effect) for effect in jax.make_jaxpr(call)().effects})


@_compat.weakref_lru_cache
def prints_in(jaxpr: Any) -> bool:
    """Tell whether a jaxpr prints."""
    eqns = _compat.open_jaxpr(jaxpr).eqns
    return any(eqn.primitive in _PRINTS or any(map(prints_in, jaxprs_in(eqn.params))) for eqn in eqns)


def _without_prints(jaxpr: Any) -> Any:
    def params(eqn: Any) -> dict[str, Any]:
        return {name: _compat.map_jaxprs(_without_prints, value) for name, value in eqn.params.items()}

    return _compat.filter_equations(jaxpr, lambda eqn: eqn.primitive not in _PRINTS, params, print_effects())


@_compat.weakref_lru_cache
def has_loops(jaxpr: Any) -> bool:
    """Tell whether a jaxpr has a loop in it."""
    eqns = _compat.open_jaxpr(jaxpr).eqns
    return any(eqn.primitive in _LOOPS or any(map(has_loops, jaxprs_in(eqn.params))) for eqn in eqns)


@_compat.weakref_lru_cache
def _must_interpret(jaxpr: Any) -> bool:
    """Tell whether a jaxpr has a loop in it, which has a carry, or what must not run again."""
    eqns = _compat.open_jaxpr(jaxpr).eqns
    return any(
        eqn.primitive in _LOOPS | _PRINTS | _ASKS_HOST | {log_p} or any(map(_must_interpret, jaxprs_in(eqn.params)))
        for eqn in eqns
    )


def _asks_host(params: dict[str, Any]) -> Any:
    """The place of an `io_callback` in the jaxprs among the parameters of a primitive; None if there is none."""
    return next((found for found in map(_asks_host_in, jaxprs_in(params)) if found is not None), None)


@_compat.weakref_lru_cache
def _asks_host_in(jaxpr: Any) -> Any:
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        found = eqn.source_info if eqn.primitive in _ASKS_HOST else _asks_host(eqn.params)
        if found is not None:
            return found
    return None


def _call(name: str) -> Callable[..., list[Any]]:
    def run(
        record: Record, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any
    ) -> list[Any]:
        called = frame.called_with_rule if primitive is _listed.custom_vjp_call_p else frame.called
        return record.interpret(called(info), params[name], args)

    return run


def _jit(
    record: Record, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any
) -> list[Any]:
    jaxpr, inside = params["jaxpr"], frame.called(info)
    alone = record.everything or frame.in_condition or frame.shards is not None or _must_interpret(jaxpr)
    if alone:
        return record.interpret(inside, jaxpr, args)
    outs = frame.run(lambda *args: primitive.bind(*args, **params | {"donated_invars": (False,) * len(args)}), *args)
    if not any(map(is_nonfinite, outs)):
        return outs
    again = record.interpret(inside, jaxpr, args)
    if any(map(is_nan, outs)) and not any(map(is_nan, again)):
        record.lost.append(f"{params['name']} at {inside.line}")
    return again


def _cond(
    record: Record, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any
) -> list[Any]:
    index, *operands = args
    chosen = np.clip(np.asarray(index), 0, len(params["branches"]) - 1)
    taken = np.unique(chosen)
    inside = frame.called(info)
    found = [record.interpret(inside, params["branches"][number], operands) for number in taken]
    if len(found) == 1:
        return found[0]
    outs: list[Any] = []
    for cases in zip(*found, strict=True):  # Shards take several branches.
        which = jnp.asarray(np.searchsorted(taken, chosen), jnp.int32)
        run = lambda *cases, which=which: [jax.lax.select_n(_beside(which, cases[0]), *cases)]  # noqa: E731
        result = run(*cases)
        record.keep(Operation(primitive, params, cases, result, inside.line, frame, frame.next(), run))
        outs += result
    return outs


def _beside(which: Any, case: Any) -> Any:
    return jnp.broadcast_to(which.reshape(which.shape + (1,) * (case.ndim - which.ndim)), case.shape)


def _shard_map(
    record: Record, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any
) -> list[Any]:
    frame = frame.called(info)
    shards, around = Shards.of(params), frame.shards
    each = (lambda run: run) if around is None else around.on_each

    def cross(run: Callable[..., list[Any]], values: Sequence[Any]) -> list[Any]:
        results = run(*values)
        record.keep(Operation(primitive, params, values, results, frame.line, frame, frame.next(), run))
        return results

    values = cross(each(shards.split), args)
    inside = dataclasses.replace(
        frame,
        position=(*frame.next(), 0),
        shards=shards if around is None else shards.within(around),
        numbers=itertools.count(),
    )
    outs = record.interpret(inside, params["jaxpr"], values)
    return cross(each(shards.join), outs)


def _linear_solve(
    record: Record, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any
) -> list[Any]:
    lengths = params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    of_solve, b = args[first : first + lengths.solve], args[sum(lengths) :]
    return record.interpret(frame.called(info), params["jaxprs"].solve, [*of_solve, *b])


_rules: dict[Any, Callable[..., list[Any]]] = {
    **{primitive: _call(name) for primitive, name in CALLS.items()},
    _listed.jit_p: _jit,
    _listed.cond_p: _cond,
    _listed.linear_solve_p: _linear_solve,
    _compat.shard_map_p: _shard_map,
}
if _compat.custom_vmap_p is not None:
    _rules[_compat.custom_vmap_p] = _call("call")


def add_rule(primitive: Any, rule: Callable[..., list[Any]]) -> None:
    """Register how an operation runs."""
    _rules[primitive] = rule


class RecordingTrace(jax.core.Trace):
    """Records the operations of a function that runs under it."""

    def __init__(self, parent: Any, record: Record) -> None:
        super().__init__()
        _compat.adopt_demands(self, parent)
        self.parent_trace = parent
        self.record = record
        self.frame = Frame()

    def stage_value(self, val: Any) -> Any:
        return self.parent_trace.stage_value(val)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        info = source_info.current()
        with _compat.eagerly(), searching(False):
            outs = self.record.apply(self.frame.inside(info.name_stack), primitive, args, params, info)
        return outs if primitive.multiple_results else outs[0]

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, args: Any, /, **params: Any) -> Any:
        return self._called(fun, args)

    def process_custom_vjp_call(self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, **params: Any) -> Any:
        return self._called(fun, args)

    def process_call(self, primitive: Any, fun: Any, args: Any, params: Any, /) -> Any:
        return self._called(fun, args)

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        outs: Any = None

        def staged(*args: Any) -> list[Any]:
            nonlocal outs
            outs = primitive.bind(*args, subfuns=(fun,), **params)
            return list(outs)

        with _compat.eagerly():
            jaxpr = jax.make_jaxpr(staged)(*args)
            with searching(False):
                results = iter(self.record.interpret(self.frame, jaxpr, args))
        return _compat.map_outputs(lambda _: next(results), outs)

    def _called(self, fun: Any, args: Any) -> Any:
        with jex.core.set_current_trace(self):
            return fun.call_wrapped(*args)


def recorded(record: Record, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a function, and record its operations."""
    with jex.core.take_current_trace() as parent:
        trace = RecordingTrace(parent, record)
        with jex.core.set_current_trace(trace):
            return fun(*args, **kwargs)
