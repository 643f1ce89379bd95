"""What happens only while a function is traced: output, random numbers and clocks of the host, changes of state."""

from __future__ import annotations

import ast
import builtins
import collections
import datetime
import logging
import random
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._jit._names import Names
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, Location
from lox._audit._sources import Source, plain, sources

PRINTED = Kind(
    "LOX410",
    "warning",
    "Output is written once, while JAX traces",
    'Write jax.debug.print("x = {}", x), or lox.log({"x": x}) for what is to be kept.',
    "No traced function prints, or writes to a log or a file.",
)
DRAWN = Kind(
    "LOX411",
    "error",
    "A random number of the host is drawn once, while JAX traces",
    "Pass a key, and draw with jax.random; or draw on the host, and pass the numbers as an argument.",
    "No traced function draws random numbers of the host.",
)
TIMED = Kind(
    "LOX412",
    "warning",
    "The clock is read once, while JAX traces",
    "Read the clock outside of the function, after jax.block_until_ready on what it returns.",
    "No traced function reads the clock.",
)
CHANGED = Kind(
    "LOX413",
    "warning",
    "State outside of a function is changed once, while JAX traces",
    "Return the value, and carry it from call to call as an argument; lox.log collects values from inside.",
    "No traced function changes what is outside of it.",
)
LEAKED = Kind(
    "LOX414",
    "error",
    "A value of a traced function is kept outside of it",
    "Return the value (from the body of a scan, as its second result), or collect it with lox.log.",
    "No traced value is kept outside of its function.",
)

_CLOCKS = (time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.process_time)
_LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_MUTATING = {"append", "appendleft", "extend", "insert", "add", "setdefault", "update"}
_CONTAINERS = (list, set, dict, collections.deque)
_NEW = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter"}
_STREAMS = (np.random.Generator, np.random.RandomState, random.Random)

Effect = Callable[["_Function"], Iterator[Finding]]


def effects(audited: Audited) -> Iterator[Finding | Held]:
    """LOX410 to LOX414: what a traced function does beside returning a value."""
    traced = sources(audited)
    by_node = {source.node: source for source in traced}
    for kind in KINDS:
        yield kind.fine(NOWHERE)
    for source in traced:
        yield from _Function(audited, source, by_node).found()


class _Function:
    """A traced function, whose source is read."""

    def __init__(self, audited: Audited, source: Source, by_node: dict[Any, Source]) -> None:
        self.audited = audited
        self.source = source
        self.by_node = by_node
        self.fun = plain(audited.fun)
        self.names = Names(source.node, source.locals - self._static_arguments())

    def found(self) -> Iterator[Finding]:
        for node in self.names.executed(self.source.lines):
            if isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    yield from self._store(target, node.value, isinstance(node, ast.AugAssign))

    def _call(self, call: ast.Call) -> Iterator[Finding]:
        name, called = ast.unparse(call.func), self._global(call.func)
        at = self.source.at(call)
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        traced = any(map(self.names.may_be_traced, values))
        if _writes(called, call) and (traced or called is builtins.open):
            what = f"{name}(...) runs once, while '{self.source.code.co_name}' is traced, and not when it is computed"
            seen = "" if called is builtins.open else ", and is given tracers, which have no numbers"
            yield PRINTED.at(at, f"{what}{seen}.")
        elif _draws(called, call):
            yield DRAWN.at(
                at, f"{name} draws while '{self.source.code.co_name}' is traced: each call gets the same numbers."
            )
        elif _is_clock(called):
            yield TIMED.at(at, f"{name} is read while '{self.source.code.co_name}' is traced, and never again.")
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _MUTATING and traced:
            yield from self._kept(call.func.value, f"{name}(...)", at)

    def _store(self, target: ast.expr, value: ast.expr, again: bool) -> Iterator[Finding]:
        at = self.source.at(target)
        name = ast.unparse(target)
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                yield from self._store(each, value, again)
        elif isinstance(target, ast.Subscript) and self.names.may_be_traced(value):
            yield from self._kept(target.value, f"{name} = ...", at)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            if _has_tracer(getattr(self._self(target.value.id), target.attr, None)):
                yield LEAKED.at(at, f"'{name}' holds a tracer after '{self.source.code.co_name}' was traced.")
        elif isinstance(target, ast.Name) and target.id in self.names.outer:
            if target.id in self.names.declared_global and _has_tracer(self.source.names.get(target.id)):
                yield LEAKED.at(
                    at, f"The global '{name}' holds a tracer after '{self.source.code.co_name}' was traced."
                )
            elif (again or self.names.may_be_traced(value)) and self._owner(target.id) not in self.source.within:
                yield CHANGED.at(
                    at,
                    f"'{name}' of outside is assigned while '{self.source.code.co_name}' is traced, and never again.",
                )

    def _kept(self, container: ast.expr, what: str, at: Location) -> Iterator[Finding]:
        """What puts a value into a container that a function does not own."""
        if not isinstance(container, ast.Name) or container.id in self.source.locals:
            return
        function = self.source.code.co_name
        if container.id in self.source.code.co_freevars:
            known = self._cell(container.id)
            owner = self._owner(container.id)
            if known is None and owner is not None and owner not in self.source.within:
                if self._is_container(container.id):
                    yield CHANGED.at(at, f"{what} is run while '{function}' is traced, and puts a tracer there, once.")
        else:
            known = self.source.names.get(container.id)
        if isinstance(known, _CONTAINERS) and _has_tracer(known):
            yield LEAKED.at(
                at, f"'{container.id}', which is outside of '{function}', holds a tracer after it was traced."
            )

    def _global(self, node: ast.expr) -> Any:
        """The object that a dotted name stands for, if its first part is a global name."""
        if isinstance(node, ast.Name):
            if node.id in self.source.locals or node.id in self.source.code.co_freevars:
                return None
            return self.source.names.get(node.id, getattr(builtins, node.id, None))
        if isinstance(node, ast.Attribute):
            owner = self._global(node.value)
            if isinstance(owner, (types.ModuleType, type, logging.Logger, *_STREAMS)):
                return getattr(owner, node.attr, None)
        return None

    def _cell(self, name: str) -> Any:
        """What a name of a function around it stands for, if it is the audited function."""
        if self.fun is None or self.fun.__code__ is not self.source.code or not self.fun.__closure__:
            return None
        cell = dict(zip(self.source.code.co_freevars, self.fun.__closure__, strict=True)).get(name)
        try:
            return cell.cell_contents if cell is not None else None
        except ValueError:  # It is empty.
            return None

    def _owner(self, name: str) -> Any:
        """The code of the function around it that has a name, or the name if none that is traced has it."""
        for node in self.source.parents:
            source = self.by_node.get(node)
            if source is not None and name in source.locals:
                return source.code
        return name

    def _is_container(self, name: str) -> bool:
        """Whether a function around it binds a name to a new container."""
        for node in self.source.parents:
            for each in ast.walk(node):
                if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in each.targets):
                    value = each.value
                    called = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _NEW
                    return called or isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp))
        return False

    def _self(self, name: str) -> Any:
        """The object that a method of the audited function belongs to, if the name is that of its first argument."""
        owner = _owner_of(self.audited.fun)
        method = getattr(type(owner), self.source.code.co_name, None)
        arguments = self.source.code.co_varnames[:1]
        return owner if (name,) == arguments and getattr(method, "__code__", None) is self.source.code else None

    def _static_arguments(self) -> set[str]:
        """The arguments of the audited function that have no arrays in them."""
        if self.fun is None or self.fun.__code__ is not self.source.code:
            return set()
        count = self.source.code.co_argcount + self.source.code.co_kwonlyargcount
        arrays = {name.partition("/")[0] for name in self.audited.captured.arguments}
        return set(self.source.code.co_varnames[:count]) - arrays


def _owner_of(fun: Any) -> Any:
    while hasattr(fun, "__wrapped__"):
        fun = fun.__wrapped__
    return getattr(fun, "__self__", fun)


def _writes(called: Any, call: ast.Call) -> bool:
    if called is builtins.open:
        modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)
    if called is builtins.print:
        return True
    owner = getattr(called, "__self__", None)
    if isinstance(owner, logging.Logger):
        return getattr(called, "__name__", "") in _LOGGED
    return getattr(called, "__module__", "") in ("logging", "absl.logging") and (
        getattr(called, "__name__", "") in _LOGGED
    )


def _draws(called: Any, call: ast.Call) -> bool:
    if called is np.random.default_rng:
        return not call.args and not call.keywords
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    return isinstance(owner, _STREAMS) and name not in ("seed", "get_state", "set_state", "getstate", "setstate")


def _is_clock(called: Any) -> bool:
    if isinstance(called, types.BuiltinMethodType) and isinstance(called.__self__, type):
        return issubclass(called.__self__, datetime.datetime) and called.__name__ in ("now", "utcnow", "today")
    return any(called is clock for clock in _CLOCKS)


def _has_tracer(value: Any) -> bool:
    leaves: Sequence[Any] = list(value) if isinstance(value, (set, collections.deque)) else [value]
    try:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(leaves))
    except ValueError:  # Keys that cannot be sorted.
        return False


KINDS = (PRINTED, DRAWN, TIMED, CHANGED, LEAKED)
CHECKS = (effects,)
