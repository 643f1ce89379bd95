"""Sees the operations of a program where it binds them."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend as jex
from jax.extend.linear_util import wrap_init

from lox import _compat
from lox._compat import _tracebacks
from lox._effect import log_p, recording, watching
from lox._handler import rules
from lox._logs_in import has_rule, rules_in
from lox._rules._call import discharge
from lox._rules._scan import operands
from lox._watch import _backward, _leaving
from lox._watch._bodies import values_of_iteration, with_mark, with_operands_of_all
from lox._watch._contained import counts_in, first_parts_in
from lox._watch._enclosing import beside, enclosing, outside, run_inside
from lox._watch._inside import Inside, moved
from lox._watch._levels import (
    Level,
    Parent,
    level_of,
    run_of,
    runs_one_by_one,
    silent,
    state,
)
from lox._watch._marks import (
    Nothing,
    NotInLoops,
    Place,
    announce,
    cannot_watch,
    kept,
    mark,
    place,
    places_in,
    without_combining,
)
from lox._watch._points import RULE, Before, Kind, Numbers, Operations, Part
from lox._watch._remembered import opened
from lox._watch._scopes import note

primitives = jex.core.primitives


def observed(bind: Callable[..., Any]) -> Callable[..., Any]:
    """`Primitive.bind`, which also emits marks."""

    @functools.wraps(bind)
    def observing(self: Any, *args: Any, **params: Any) -> Any:
        operations = watching.value
        if operations is None and self is _compat.eval_p and places_in(params):
            return _in_rule_of_jax(bind, self, args, params)
        if operations is None and not state.scopes:
            return bind(self, *args, **params)
        trace = _compat.current_trace()
        is_heard = operations is not None and (recording.value or operations.unheard)
        jaxpr, eqn = _tracebacks.evaluated(sys._getframe(1)) if is_heard else (None, None)
        if not is_heard or (_is_of_lox(self) and jaxpr is None):
            outs = bind(self, *args, **params)
        else:
            level = level_of(trace)
            with watching(None):  # What JAX and lox bind for it is not of the program, nor is what JAX caches of that.
                is_tangent = jaxpr is not None and _tracebacks.is_tangent(sys._getframe(1))
                if level is None or is_tangent or _backward.is_recomputed(level):
                    outs = bind(self, *args, **params)
                else:
                    outs = _Operation(bind, self, level, operations).run(args, params, jaxpr, eqn)
        note(trace, outs if self.multiple_results else [outs])
        return outs

    return observing


def _in_rule_of_jax(bind: Callable[..., Any], primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Evaluate a jaxpr with marks in a rule of JAX's own, which may do so several times."""
    run = run_of(_compat.current_trace())
    if run is None or run.evaluates:
        return bind(primitive, *args, **params)
    run.parent = run.parent or Parent()
    before, _, scope = run.parent.before(params["call_jaxpr"])
    changed = moved(params, Inside((), before, before))
    with opened(Before(before), scope), run.evaluating(True):
        return bind(primitive, *args, **(params if changed is None else changed))


def _is_of_lox(primitive: Any) -> bool:
    return primitive.name.startswith("lox_")


_SUMS = {primitives.add_p, primitives.sub_p, primitives.add_jaxvals_p, primitives.copy_p}


class _Operation:
    """An operation that a program binds, what encloses it, and which operations are marked."""

    def __init__(self, bind: Callable[..., Any], primitive: Any, level: Level, operations: Operations):
        self._bind = functools.partial(bind, primitive)
        self._primitive = primitive
        self._level = level
        self._operations = operations
        self._transposed = _backward.is_transposed(level)
        self._batched = self._transposed and _backward.is_batched()
        self._resolve = level.resolve

    @functools.cached_property
    def _parent(self) -> Parent:
        """Its parent. Equations of jaxprs with marks do not ask for it: the jaxpr has numbered its backward passes."""
        return _backward.parent_of(self._level)

    def run(self, args: Sequence[Any], params: dict[str, Any], jaxpr: Any = None, eqn: Any = None) -> Any:
        """Bind it, and emit the marks that belong to it, unless it is in a jaxpr that was traced with them."""
        if jaxpr is not None and places_in({"jaxpr": jaxpr}):
            with _backward.around_jaxpr(eqn):
                parent = _backward.parent_of(self._level)
                before, apart, scope = parent.before(jaxpr)
                own, outside = (apart, _backward.scopes_before(self._level)) if self._transposed else (before, ())
                scopes = Counter(dict(own)) + Counter(dict(outside))
            inside = enclosing(self._level, parent.parts, before, tuple(sorted(scopes.items())))
            with opened(Before(own, self._level.home), scope, len(eqn.source_info.name_stack.stack)):
                return self._under(inside, args, params, has_marks=True)
        if _is_of_lox(self._primitive):
            return self._bind(*args, **params)
        params = without_combining(self._primitive, params)
        level = self._level
        if (
            self._transposed
            and not level.transposed
            and (level.in_function or runs_one_by_one(_compat.current_trace()))
        ):
            with silent():
                _backward.say_unwatched(self._level)
        if self._transposed:
            _backward.number(level)
        if self._level.scopes and not self._transposed and self._is_sum(params):
            args = _leaving.with_equation(args)
        run = _runs.get(self._primitive)
        if run is not None:
            return run(self, args, params)
        if self._may_mark(params):
            return self._transparent(args, params)
        outs = self._bind(*args, **params)
        if self._operations.has(self._primitive.name):
            self._mark(self._parent.part(self._primitive.name), "primitive", outs)
        return outs

    def _is_sum(self, params: dict[str, Any]) -> bool:
        """Tell whether JAX may transpose it, or what it contains as a function of JAX, without an equation."""
        if self._primitive is not primitives.jit_p or not _tracebacks.is_internal(params["jaxpr"]):
            return self._primitive in _SUMS
        return any(eqn.primitive in _SUMS for eqn in _compat.open_jaxpr(params["jaxpr"]).eqns)

    def _scan(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        part = self._part("scan", params["jaxpr"])
        consts, carry, _ = map(len, operands(args, params))
        body, captured = self._body(params["jaxpr"], "scan", consts, carry)
        params = _compat.extend_scan(params, body, len(captured), 0)
        return self._inside(part, [*captured, *args], params, loops=1)

    def _while(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        part = self._part("while", params["body_jaxpr"])
        consts = params["body_nconsts"]
        body, captured = self._body(params["body_jaxpr"], "while", consts, len(_compat.out_avals(params["body_jaxpr"])))
        cond, of_cond = self._with_marks(params["cond_jaxpr"])
        (_, body), (_, more) = self._numbered([cond, body])
        before = params["cond_nconsts"]
        captured = [*more, *captured]
        params = params | {
            "cond_jaxpr": cond,
            "cond_nconsts": before + len(of_cond),
            "body_jaxpr": body,
            "body_nconsts": consts + len(captured),
        }
        return self._inside(part, [*of_cond, *args[:before], *captured, *args[before:]], params, loops=1)

    def _cond(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if "branches_platforms" in params:  # Where JAX knows the platform, it runs one of the branches without a cond.
            return self._transparent(*self._with_marked_branches(args, params, are_numbered=False))
        part = self._part("cond", params["branches"][0])
        args, params = self._with_marked_branches(args, params, are_numbered=True)
        outs = self._inside(part, args, params)
        self._mark(part, "cond", outs)
        return outs

    def _with_marked_branches(
        self, args: Sequence[Any], params: dict[str, Any], are_numbered: bool
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """The operands and the parameters of a cond whose branches have marks.

        Args:
            args: Its operands.
            params: Its parameters.
            are_numbered: Whether the points of a branch come after those of the branches before it.
        """
        marked = [self._with_marks(branch) for branch in params["branches"]]
        branches: Sequence[Any] = [branch for branch, _ in marked]
        values = [list(captured) for _, captured in marked]
        if are_numbered:
            branches, more = self._numbered(branches)
            values = [[*new, *old] for new, old in zip(more, values, strict=True)]
        branches, captured = with_operands_of_all(branches, values)
        index, *operands = args
        return [index, *captured, *operands], params | {"branches": tuple(branches)}

    def _call(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        original = params["jaxpr"]
        jaxpr, captured = self._with_marks(original)
        if jaxpr is not original:
            args, params = [*captured, *args], _compat.extend_jit(params, jaxpr, len(captured), 0)
        if _tracebacks.is_internal(original):
            closed = _tracebacks.runs_no_other(_compat.open_jaxpr(original))
            return self._transparent(args, kept(self._primitive, params, NotInLoops()) if closed else params)
        part = self._part(params["name"], original)
        outs = self._inside(part, args, params)
        self._mark(part, "call", outs)
        return outs

    def _checkpoint(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        jaxpr, captured = self._with_marks(params["jaxpr"])
        if jaxpr is not params["jaxpr"]:
            args, params = [*captured, *args], _compat.extend_checkpoint(params, jaxpr, len(captured), 0)
        return self._transparent(args, params)

    def _part(self, name: str, program: Any) -> Part:
        """Its part in its parent. In a backward pass, JAX runs one program for several calls: each is another point."""
        if self._transposed:
            return self._parent.call_in_pass(name, _backward.call_of(self._level))
        return self._parent.part(name, program)._replace(of="call", home=self._level.home)

    def _body(self, jaxpr: Any, kind: Kind, consts: int, carry: int) -> tuple[Any, Sequence[Any]]:
        body, before = self._with_marks(jaxpr)
        values = values_of_iteration(jaxpr, consts, carry)
        body, captured = with_mark(body, self._place((), kind), tuple(len(before) + each for each in values))
        return body, [*captured, *before]

    def _with_marks(self, jaxpr: Any) -> tuple[Any, Sequence[Any]]:
        return _leaving.with_marks(jaxpr, self._transposed, self._batched)

    def _transparent(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Bind an operation that is no part of paths: what it encloses belongs to its parent."""
        if not self._may_mark(params):
            if counts := counts_in(params):
                self._parent.add(counts)
            return self._bind(*args, **params)
        if self._primitive not in rules:
            reason = f"it is inside {self._primitive.name}, and lox has no rule for this primitive"
            return self._unwatched(self._parent.parts, reason, args, params)
        if self._transposed and self._primitive is primitives.linear_solve_p:
            reason = "a linear solver has the points of the forward pass there; solve in the function of a custom_vjp"
            return self._unwatched(self._parent.parts, reason, args, params, depth=1)
        level, parent = self._level, self._parent
        counts, rule = counts_in(params), None
        if has_rule(self._primitive, params):
            counts = {RULE.name: 1} | counts
            rule = RULE if _backward.is_numbered(level, parent.numbers) else RULE.after(Before(parent.numbers))
        scopes = _backward.scopes_before(level) if self._transposed else parent.numbers
        is_function = rule is not None or "subfuns" in params
        inside = enclosing(level, parent.parts, self._numbers(params), scopes)
        has_backward = self._primitive is primitives.custom_vjp_call_p
        inside = dataclasses.replace(inside, of="function" if is_function else "", rule=rule, is_open=has_backward)

        def run(inside: Inside) -> Any:
            with opened(rule if has_backward else None):
                return self._under(inside, args, params)

        return beside(level, parent, counts, inside, run)

    def _numbers(self, params: dict[str, Any]) -> Numbers:
        """The numbers before what is in an operation: JAX may transpose a loop in a function of its own."""
        numbers = self._parent.numbers
        of = _backward.call_of(self._level) if self._transposed else None
        if of is None or all(part.name != of[0].name or part.is_scope for part in first_parts_in(params)):
            return numbers
        part = self._parent.call_in_pass(of[0].name, of)
        return tuple(sorted({**dict(numbers), part.name: part.number}.items()))

    def _numbered(self, jaxprs: Sequence[Any]) -> tuple[list[Any], list[Sequence[Any]]]:
        """Its jaxprs with their points numbered one jaxpr after the other.

        In a backward pass, the name scopes in them have the numbers of the forward pass.

        Returns:
            The jaxprs, and the values to pass for the new leading inputs of each.
        """
        parent = Parent()
        numbered, captured = [], []
        for jaxpr in jaxprs:
            own = counts_in({"jaxpr": jaxpr})
            more: Sequence[Any] = ()
            if own.keys() & parent.counts.keys():
                scopes = () if self._transposed else parent.numbers
                jaxpr, more, _ = discharge(Inside((), parent.numbers, scopes, self._level.home), None, jaxpr)
                if scopes:
                    jaxpr, values = _backward.in_numbered(jaxpr, Before(scopes, self._level.home))
                    more = [*values, *more]
            parent.add(own)
            numbered.append(jaxpr)
            captured.append(more)
        return numbered, captured

    def _inside(self, part: Part, args: Sequence[Any], params: dict[str, Any], loops: int = 0) -> Any:
        with _backward.called(self._level, part):
            if not self._may_mark(params):
                return self._bind(*args, **params)
            return self._under(enclosing(self._level, (*self._parent.parts, part), loops=loops), args, params)

    def _unwatched(
        self, parts: tuple[Part, ...], reason: str, args: Sequence[Any], params: dict[str, Any], depth: int = 0
    ) -> Any:
        """Bind it without the marks in it, and report their points as ones that cannot be watched.

        Args:
            parts: The path to it.
            reason: Why they cannot.
            args: Its operands.
            params: Its parameters.
            depth: How many of the last parts of the paths inside are kept; 0 for all.
        """
        for each in places_in(params):
            announce(each)
            cannot_watch(dataclasses.replace(each, parts=(*parts, *each.parts[-depth:])), reason)
        return self._bind(*args, **kept(self._primitive, params, Nothing()))

    def _under(self, inside: Inside, args: Sequence[Any], params: dict[str, Any], has_marks: bool = False) -> Any:
        """Bind it with longer paths of the marks in it; if it `has_marks`, only rules that run later get more."""
        if _compat.is_folded(args):
            reason = "it runs while JAX traces the program, in jax.ensure_compile_time_eval"
            return self._unwatched(inside.parts, reason, args, params)
        if self._resolve is not None:  # Their paths are whole.
            for each in places_in(params):
                self._resolve.see(inside.place(each))
        if "subfuns" not in params and self._primitive is not log_p and not has_rule(self._primitive, params):
            changed = moved(params, inside)
            if changed is not None:
                with outside(inside):
                    return self._bind(*args, **self._selected(changed))
        subfuns = params.get("subfuns", ())
        if subfuns:
            traced, functions = subfuns[:has_marks], subfuns[has_marks:]
            if self._transposed and self._primitive is _compat.shard_map_p:
                functions = [_leaving.traced(fun, self._batched) for fun in functions]
            params = params | {"subfuns": (*traced, *(_of_program(fun, self._operations) for fun in functions))}
        if self._primitive is _compat.custom_vmap_p:
            params = params | {"rule": _of_program(params["rule"], self._operations)}
        outs = run_inside(inside, self._bind, args, params)
        if subfuns:  # JAX knows these, not those that have run in their place.
            _compat.settle(*subfuns)
        return outs

    def _selected(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters with the marks that the watcher around selects: their paths are whole here."""
        return params if self._resolve is None else kept(self._primitive, params, self._resolve)

    def _may_mark(self, params: dict[str, Any]) -> bool:
        """Tell whether what the operation encloses may emit marks, now or later."""
        if "subfuns" in params:
            return not _tracebacks.runs_no_other(params["subfuns"][0])
        return has_rule(self._primitive, params) or bool(places_in(params)) or rules_in(params)

    def _mark(self, part: Part, kind: Kind, outs: Any) -> None:
        with silent():
            mark(self._place((part,), kind), outs if self._primitive.multiple_results else [outs])

    def _place(self, parts: tuple[Part, ...], kind: Kind) -> Place:
        found = place((*self._parent.parts, *parts) if parts else (), kind)
        return dataclasses.replace(found, obstacle=_backward.BATCHED) if self._batched else found


_runs: dict[Any, Callable[[_Operation, Sequence[Any], dict[str, Any]], Any]] = {
    primitives.scan_p: _Operation._scan,
    primitives.while_p: _Operation._while,
    primitives.cond_p: _Operation._cond,
    primitives.jit_p: _Operation._call,
    primitives.remat_p: _Operation._checkpoint,
}


def _of_program(fun: Any, operations: Operations) -> Any:
    """A function of the program that JAX runs where it is bound, or later for a derivative or a batch."""
    is_flat = hasattr(fun, "call_wrapped")
    run = _compat.renewed(fun) if is_flat else fun

    def call(*args: Any) -> Any:
        is_over = level_of(_compat.current_trace()) is None  # A pullback may run when the watched call is over.
        with watching(None if is_over else operations):
            return run(*args)

    return wrap_init(call, debug_info=fun.debug_info) if is_flat else functools.wraps(fun)(call)
