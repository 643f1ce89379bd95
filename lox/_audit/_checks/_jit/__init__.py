"""What JAX refuses while it traces, what happens only then, and what is compiled again and again."""

from __future__ import annotations

from lox._audit._checks._jit import _compiled, _effects, _recompilation, _refused, _tracing

KINDS = (*_tracing.KINDS, *_refused.KINDS, *_effects.KINDS, *_compiled.KINDS, *_recompilation.KINDS)
CHECKS = (*_tracing.CHECKS, *_refused.CHECKS, *_effects.CHECKS, *_compiled.CHECKS, *_recompilation.CHECKS)
