"""The names of the logs that happen while a handler runs a function, to notice selected names that are not logged.

A program that JAX has cached is not traced again. So its names are read from its jaxpr.
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax

from lox import _compat
from lox._effect import log_p, received
from lox._events import Logs, Site, events
from lox._log_grad import LogCotangent, log_grad_p
from lox._logs_in import has_rule as has_own_rule
from lox._logs_in import jaxprs_in
from lox._unmatched import unmatched, warn_unmatched

Function = Callable[..., Any]
Name = tuple[str, tuple[str, ...]]
"""A key, and the tags of the call that logs it."""

_JAX = os.path.dirname(jax.__file__) + os.sep

taken: set[Name] = set()
"""The names that handlers inside others took. Where JAX has cached the function around one, nothing else tells."""

removed: set[str] = set()
"""The functions inside others all of whose logs are removed, so that their names are unknown. While there are any, no
name is known to be missing."""

_excused: set[tuple[str, str]] = set()
"""The keywords and names that may be of logs that nothing shows."""


@dataclasses.dataclass(slots=True, eq=False)
class Met:
    """The logs that a handler meets in one call of a function.

    Attributes:
        owner: An object that identifies the handler.
        names: Their names.
        has_rules: Whether a function is called with a rule that is not JAX's, in which it may log what nothing shows.
    """

    owner: Any
    names: set[Name] = dataclasses.field(default_factory=set)
    has_rules: bool = False

    def meet(self, logs: Logs) -> None:
        """Take the names of logs that happen."""
        for event in events(logs):
            for key in event.values:
                self.names.add((key, event.site.tags))

    def meet_primitive(self, primitive: Any, params: dict[str, Any]) -> None:
        """Take the names of the logs in the programs of a primitive."""
        names, has_rules = _names_of(primitive, params)
        self.names |= names
        self.has_rules |= has_rules


meeting: contextvars.ContextVar[Met | None] = contextvars.ContextVar("meeting", default=None)
"""The collector of the names of the logs that happen."""


def _names_of(primitive: Any, params: dict[str, Any]) -> tuple[frozenset[Name], bool]:
    programs = [_names_in(jaxpr) for jaxpr in jaxprs_in(params)]
    names = frozenset[Name]().union(*(names for names, _ in programs))
    if primitive is log_grad_p:
        names |= {_name_of(params["backward"])}
    has_rules = any(has_rules for _, has_rules in programs)
    return names, has_rules or (has_own_rule(primitive, params) and not _is_of_jax(params))


def user_rules_in(params: dict[str, Any]) -> bool:
    """Tell whether a function with a rule that is not JAX's is called in a jaxpr among the parameters."""
    return any(_names_in(jaxpr)[1] for jaxpr in jaxprs_in(params))


@_compat.weakref_lru_cache
def _names_in(jaxpr: Any) -> tuple[frozenset[Name], bool]:
    names, has_rules = frozenset[Name](), False
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        if eqn.primitive is log_p:
            logs, to = received([var.aval for var in eqn.invars], eqn.params)
            if to is None:
                names |= {(key, event.site.tags) for event in events(logs) for key in event.values}
        else:
            inside, rules_inside = _names_of(eqn.primitive, eqn.params)
            names, has_rules = names | inside, has_rules or rules_inside
    return names, has_rules


def _name_of(backward: Any) -> Name:
    while not isinstance(backward, LogCotangent):
        backward = backward.backward
    return backward.key, backward.site.tags


def _is_of_jax(params: dict[str, Any]) -> bool:
    """Say whether JAX itself defines the function that has a rule, which then logs nothing."""
    infos = [_compat.open_jaxpr(jaxpr).debug_info for jaxpr in jaxprs_in(params)]
    infos += [params["fun"].debug_info] if "fun" in params else []
    return all((getattr(info, "func_filename", None) or "").startswith(_JAX) for info in infos)


def taking(owner: Any, takes: Callable[..., bool], call: Function, *args: Any) -> Any:
    """Call a function under a handler that takes logs from the handlers around it, and remember their names.

    Args:
        owner: An object that identifies the handler.
        takes: Whether it takes logs of this key and these tags.
        call: The function.
        *args: Its arguments.
    """
    around = meeting.get()
    met = around if around is not None and around.owner is owner else Met(owner)
    token = meeting.set(met)
    try:
        return call(*args)
    finally:
        meeting.reset(token)
        taken.update(name for name in met.names if takes(*name))


def silently(call: Function, *args: Any) -> Any:
    """Call a function all of whose logs are removed, so that their names are not known."""
    removed.add(call.__qualname__)
    return call(*args)


class Search:
    """Looks for the names that a selection has, until a call of the function has logged.

    Args:
        function: The function of lox that got them.
        keywords: The names by keyword.
        site: The place of the call.
        heeds_rules: Whether rules of differentiation may log for the handler when the call is over.
    """

    def __init__(self, function: str, keywords: dict[str, tuple[str, ...]], site: Site, heeds_rules: bool):
        self._function, self._keywords, self._site, self._heeds_rules = function, keywords, site, heeds_rules
        self._is_over = False

    def call(self, owner: Any, call: Function, args: Any, kwargs: Any) -> Any:
        """Call a function under a handler, and warn of the names that it does not log, once."""
        if self._is_over:
            return call(*args, **kwargs)
        met = Met(owner)
        token = meeting.set(met)
        try:
            result = call(*args, **kwargs)
        finally:
            meeting.reset(token)
        # Where JAX runs branches in Python, it runs one.
        if met.names and not removed and not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            self._is_over = True
            self._look(met)
        return result

    def _look(self, met: Met) -> None:
        for keyword, asked in self._keywords.items():
            there = _of_keyword(keyword, met.names)
            missing = unmatched(asked, there)
            if not missing:
                continue
            if self._heeds_rules and met.has_rules:
                _excused.update((keyword, name) for name in missing)
            for name in unmatched(missing, _of_keyword(keyword, taken)):
                if (keyword, name) not in _excused:
                    warn_unmatched(self._function, keyword, name, there, self._site)


def _of_keyword(keyword: str, names: set[Name]) -> set[str]:
    return {tag for _, tags in names for tag in tags} if keyword == "tags" else {key for key, _ in names}
