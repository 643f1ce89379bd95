"""Exceptions of JAX about lengths that are not known while tracing: it has several types for each, so their text
decides."""

from __future__ import annotations

import re

import jax

from lox._audit._findings import Kind

LENGTH = Kind(
    "LOX402",
    "error",
    "Python counts or indexes with a value that is not known while tracing",
    "Index with jnp.take or jax.lax.dynamic_index_in_dim, take a window of fixed length with jax.lax.dynamic_slice, or "
    "mask what is beyond the end; give shapes and lengths as static arguments.",
)
SELECTED = Kind(
    "LOX404",
    "error",
    "How many elements are selected is not known while tracing",
    "Keep the shape and choose with jnp.where(mask, x, other), or give size= to jnp.nonzero, jnp.unique and the like, "
    "and total_repeat_length= to jnp.repeat.",
)

_SELECTS = re.compile(r"jnp\.(nonzero|unique|repeat|compress)\b|\b(setdiff1d|union1d|setxor1d|intersect1d)\(\)")
_ARGUMENT = re.compile(r"\bargument\b", re.IGNORECASE)
_REFUSED = re.compile(
    r"Shapes must be 1D sequences of concrete values|"
    r"Array slice indices must have static start/stop/step|Slice entries must be static integers|"
    r"expected a sequence of integers or a single integer|"
    r"As of JAX v\S+, parameters to jaxpr equations must have __hash__"
)


def explain(error: BaseException) -> tuple[Kind, str] | None:
    """Which length is not known, if an exception is about one."""
    lines = [line.strip() for line in str(error).strip().split("\n")]
    if type(error) is jax.errors.ConcretizationTypeError and len(lines) > 1:
        # The first line says that it is a tracer, and the second one what it was given to.
        if _SELECTS.search(lines[1]):
            return SELECTED, f"{SELECTED.title}: {lines[1]}"
        return (LENGTH, f"{LENGTH.title}: {lines[1]}") if _ARGUMENT.search(lines[1]) else None
    if isinstance(error, (TypeError, IndexError)) and _REFUSED.match(lines[0]) and "Tracer" in lines[0]:
        return LENGTH, f"{LENGTH.title}: {lines[0]}"
    return None
