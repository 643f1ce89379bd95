"""What JAX refuses while it traces, at the line of the user's program."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator

import jax

from lox._audit._audited import Audited
from lox._audit._checks._jit import _refused, _unknown
from lox._audit._checks._loops import _carry
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, Location, is_internal, is_users
from lox._audit._signature import definition

_CURES = (
    "Choose with jnp.where or jax.lax.cond (jax.lax.while_loop for a loop), or make the argument that it depends on "
    "static, as with jax.jit(f, static_argnames=...)."
)
RAISED = Kind(
    "LOX400",
    "error",
    "The function raises while it is traced",
    "Fix what the message says, and audit again.",
    "JAX traces the function.",
    "The function was traced with these arguments.",
)
_BY_ERROR = {
    jax.errors.TracerBoolConversionError: Kind(
        "LOX401", "error", "Python decides on a value that is not known while tracing", _CURES
    ),
    jax.errors.TracerIntegerConversionError: _unknown.LENGTH,
    jax.errors.TracerArrayConversionError: Kind(
        "LOX403",
        "error",
        "NumPy is asked for a value that is not known while tracing",
        "Use jax.numpy in the place of numpy, or jax.pure_callback for what only runs on the host.",
    ),
    jax.errors.NonConcreteBooleanIndexError: _unknown.SELECTED,
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
    where = _where(error, definition(audited.fun))
    try:
        text = str(error).strip()
    except Exception as failed:  # noqa: BLE001  (whatever an exception of the user raises when it is to say what it is)
        said = f"its text is not known, as its __str__ raises {type(failed).__name__}"
        yield RAISED.at(where, f"{RAISED.title}: {type(error).__name__}: {said}")
        return
    explained = _explained(error)
    if explained is not None:
        known, message = explained
        yield known.at(where, message)
        return
    kind = next((kind for of, kind in _BY_ERROR.items() if isinstance(error, of)), RAISED)
    first = text.split("\n")[0]
    yield kind.at(where, f"{kind.title}: {type(error).__name__}{f': {first}' if first else ''}")


def _explained(error: BaseException) -> tuple[Kind, str] | None:
    """What an exception of JAX's is about, if its text says it."""
    if not isinstance(error, Exception):
        return None
    return _carry.explain(error) or _refused.explain(error) or _unknown.explain(error)


def _where(error: BaseException, otherwise: Location) -> Location:
    """The innermost line outside JAX that an exception came through, with the user's line that led there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_internal(frame.filename)]
    found = [Location(each.filename, each.lineno or 0, each.name, (each.colno or -1) + 1) for each in frames]
    if not found:
        return otherwise
    users = [each for each in found if is_users(each.file)]
    return found[-1] if not users or users[-1] is found[-1] else dataclasses.replace(found[-1], caller=users[-1])


KINDS = (RAISED, *_BY_ERROR.values())
CHECKS = (raised,)
