"""Tables of what to do for each primitive."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax.extend as jex

from lox import _compat

Rule = TypeVar("Rule", bound=Callable[..., Any])


class Rules(Generic[Rule]):
    """Rules by primitive."""

    def __init__(self, default: Rule | None = None) -> None:
        self.default = default
        self.of: dict[Any, Rule] = {}

    def __call__(self, *names: str) -> Callable[[Rule], Rule]:
        """Registers the rule of primitives by their names in `jax.extend`, as far as this JAX has them."""

        def register(rule: Rule) -> Rule:
            self.of.update(dict.fromkeys(primitives(*names), rule))
            return rule

        return register

    def __getitem__(self, primitive: Any) -> Rule | None:
        return self.of.get(primitive, self.default)


@functools.cache
def primitives(*names: str) -> frozenset[Any]:
    """The primitives of these names that this JAX has."""
    listed = jex.core.primitives
    found = (getattr(listed, f"{name}_p", _compat.unlisted_primitives.get(name)) for name in names)
    return frozenset(primitive for primitive in found if primitive is not None)
