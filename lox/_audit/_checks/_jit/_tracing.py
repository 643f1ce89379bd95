"""What JAX refuses while it traces, at the line of the user's program."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import jax

from lox._audit._audited import Audited
from lox._audit._checks._jit import _refused
from lox._audit._checks._loops import _carry
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, Location, is_internal

_CURES = (
    "Choose with jnp.where or jax.lax.cond (jax.lax.while_loop for a loop), or make the argument that it depends on "
    "static, as with jax.jit(f, static_argnames=...)."
)
RAISED = Kind(
    "LOX400",
    "error",
    "The function raises while it is traced",
    "Mend what the message says, and audit again.",
    "JAX traces the function.",
)
_BY_ERROR = {
    jax.errors.TracerBoolConversionError: Kind(
        "LOX401", "error", "Python decides on a value that is not known while tracing", _CURES
    ),
    jax.errors.TracerIntegerConversionError: Kind(
        "LOX402",
        "error",
        "Python counts or indexes with a value that is not known while tracing",
        "Index with jnp.take or jax.lax.dynamic_index_in_dim, and give shapes and lengths as static arguments.",
    ),
    jax.errors.TracerArrayConversionError: Kind(
        "LOX403",
        "error",
        "NumPy is asked for a value that is not known while tracing",
        "Use jax.numpy in the place of numpy, or jax.pure_callback for what only runs on the host.",
    ),
    jax.errors.NonConcreteBooleanIndexError: Kind(
        "LOX404",
        "error",
        "How many elements are selected is not known while tracing",
        "Keep the shape and choose with jnp.where(mask, x, other), or give size= to jnp.nonzero.",
    ),
    jax.errors.ConcretizationTypeError: Kind(
        "LOX405", "error", "Python asks for a value that is not known while tracing", _CURES
    ),
}


def raised(audited: Audited) -> Iterator[Finding | Held]:
    """LOX400 to LOX405, or what another family has for it: what the function raised."""
    error = audited.captured.error
    if error is None:
        yield RAISED.fine(NOWHERE)
        return
    explained = _carry.explain(error) or _refused.explain(error)
    if explained is not None:
        known, message = explained
        yield known.at(_where(error), message)
        return
    kind = next((kind for of, kind in _BY_ERROR.items() if isinstance(error, of)), RAISED)
    first = str(error).strip().split("\n")[0]
    yield kind.at(_where(error), f"{kind.title}: {type(error).__name__}: {first}")


def _where(error: Exception) -> Location:
    """The innermost line of the user's program that an exception came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_internal(frame.filename)]
    if not frames:
        return NOWHERE
    return Location(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)


KINDS = (RAISED, *_BY_ERROR.values())
CHECKS = (raised,)
