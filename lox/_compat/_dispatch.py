"""Jitted functions: how JAX dispatches to them, what they were jitted with, and caches like theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.interpreters import xla

from lox._compat._names import private, private_attribute
from lox._compat._params import unspecified

Function = TypeVar("Function", bound=Callable[..., Any])

_cache = private(
    "jax._src.util:weakref_lru_cache",
    purpose="to remember what it makes of a jaxpr",
    otherwise="It is made anew each time, which takes longer to trace.",
    has="__call__",
)
_tokens = private(
    "jax._src.dispatch:runtime_tokens",
    purpose="to have a forked process not wait for programs of its parent",
    otherwise="A process that is forked while programs log may wait for ever at its end.",
    has="clear",
)
_info = private_attribute(
    "jax:jit",
    "_jit_info",
    purpose="to compile what a handler adds to a jitted function together with that",
    otherwise="The function is called under the handler each time, as any other is, which takes longer.",
)

_PjitFunction = type(jax.jit(lambda: None))


def weakref_lru_cache(function: Function) -> Function:
    """Remember what a function returns for a jaxpr, its first argument, while that lives and in JAX's contexts."""
    return _cache.value(function) if _cache.found else function


def cached_by_function(function: Function) -> Function:
    """The same for a function of a function, in whatever context."""
    if not _cache.found:
        return function
    try:
        return _cache.value(function, trace_context_in_key=False)
    except TypeError:  # Another JAX has another keyword for it.
        return function


def run_compiled(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Run a primitive as JAX does where it is bound eagerly: compiled, under `jax.disable_jit` as well."""
    return xla.apply_primitive(primitive, *args, **params)


def is_jitted(fun: Any) -> bool:
    """Tell whether `fun` is what `jax.jit` returned."""
    return isinstance(fun, _PjitFunction)


def jit_options(fun: Any) -> tuple[tuple[str, Any], ...] | None:
    """Read how a jitted function takes its arguments, or None for one with shardings, layouts or a device of its own.

    A jitted function has no public attribute for its static and donated arguments.
    """
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused")
    try:
        info = getattr(fun, _info.attribute)
        options = tuple((name, getattr(info, name)) for name in names)
        shardings = (*info.in_shardings_leaves, *info.out_shardings_leaves)
        compiled = dict(info.compiler_options_kvs)
        others = (info.device, info.backend, *info.in_layouts_leaves, *info.out_layouts_leaves)
    except AttributeError:  # Another JAX says it otherwise.
        return None
    if any(value is not unspecified() for value in shardings) or any(value is not None for value in others):
        return None
    return (*options, ("compiler_options", compiled)) if compiled else options


def forget_what_runs() -> None:
    """Have a forked process wait for no effects of the programs that its parent runs, whose threads it has not."""
    if _tokens.found:
        _tokens.value.clear()
