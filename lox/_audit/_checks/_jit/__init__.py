"""What JAX refuses while it traces, what happens only then, and what is compiled again and again."""

from __future__ import annotations

from lox._audit._checks._jit import _anew, _compiled, _effects, _frozen, _grown, _recompilation, _refused, _tracing

_MODULES = (_tracing, _refused, _effects, _compiled, _recompilation, _frozen, _anew, _grown)

KINDS = tuple(kind for module in _MODULES for kind in module.KINDS)
CHECKS = tuple(check for module in _MODULES for check in module.CHECKS)
