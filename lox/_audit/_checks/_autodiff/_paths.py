"""What a derivative of the function would be: of what, by what, and where it is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
from jax.interpreters import ad

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._dependence import Dependence, Node, Place, downstream, is_inexact, upstream
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE
from lox._audit._rules import primitives

RESULT = Kind(
    "LOX600",
    "error",
    "The result to differentiate is not a single real number",
    "Return a scalar first, such as loss.mean(), and anything else after it: return loss, aux. For a derivative of "
    "each element, use jax.jacobian, and audit without differentiate=.",
    "The result is one real number.",
    "Shape and dtype of the result were read.",
)
NUMBERS = Kind(
    "LOX601",
    "error",
    "An argument that the result is to be differentiated by is not made of real numbers",
    "Differentiate by an argument of floats: choose it with argnums=, or convert it with x.astype(jnp.float32) before.",
    "The arguments to differentiate by are made of real numbers.",
    "The dtypes of the arguments to differentiate by were read.",
)
CUT = Kind(
    "LOX602",
    "error",
    "The derivative by an argument is zero: no differentiable path leads from it to the result",
    "Take out the stop_gradient, or make the step smooth: softmax or jax.random.gumbel in the place of argmax, the log "
    "probability of what was sampled, or a straight-through estimator, x + stop_gradient(jnp.round(x) - x).",
    "There is a differentiable path from the arguments to the result.",
    "Paths from the arguments to the result were followed through operations that have a derivative.",
)
UNUSED = Kind(
    "LOX603",
    "warning",
    "The result does not depend on an argument that it is to be differentiated by",
    "Use the argument, or do not differentiate by it.",
    "The result depends on the arguments to differentiate by.",
    "Paths from the arguments to the result were followed.",
)
PART_CUT = Kind(
    "LOX604",
    "warning",
    "An array among those to differentiate by gets a derivative of zero",
    "Make the step smooth, such as jax.nn.sigmoid((x - threshold) / temperature) in the place of x > threshold; or "
    "keep the array out of what is trained, or say that it is meant with jax.lax.stop_gradient.",
)
REFUSED = Kind(
    "LOX605",
    "error",
    "JAX has no reverse-mode derivative of a step on the way to the result",
    "For a while_loop, or a fori_loop whose bounds are not known while tracing, use a fori_loop with constant bounds "
    "or jax.lax.scan, which mask what comes after the end; for other steps, write a rule with jax.custom_vjp.",
    "JAX can differentiate each step on the way.",
    "Each step on the way to the result was looked up among those that JAX can transpose.",
)

_RAISING = primitives("pure_callback", "io_callback")
"""What has a rule that raises."""

_COMPARISONS = primitives("eq", "ne", "lt", "le", "gt", "ge")


def loss_of(audited: Audited, dependence: Dependence) -> Sequence[Node]:
    """What is to be differentiated: the first result, where the others are beside it; else any."""
    named = audited.captured.results[:1]
    return dependence.outputs[:1] if named in (("out",), ("out/0",)) else dependence.outputs


def differentiated(audited: Audited, dependence: Dependence) -> dict[str, Node]:
    """The arrays of real numbers among those that it is to be differentiated by."""
    named = zip(audited.captured.arguments, dependence.inputs, strict=True)
    return {name: node for name, node in named if name in audited.differentiate and is_inexact(node.value)}


def result(audited: Audited) -> Iterator[Finding | Held]:
    """LOX600: what is to be differentiated is an array, or an integer."""
    if not audited.differentiate or not audited.captured.results:
        return
    loss, name = audited.program.outputs[0], audited.captured.results[0]
    dtype = getattr(loss.aval, "dtype", None)
    if loss.shape or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        location = NOWHERE
        if loss.maker is not None:
            location = next((where for step, where in audited.steps if step is loss.maker), NOWHERE)
        yield RESULT.at(
            location,
            f"'{name}', which is to be differentiated by {_listed(audited.differentiate)}, has shape ({loss.axes}) and "
            f"dtype {dtype}; jax.grad takes a scalar of floats, alone or as the first of a pair.",
        )
    else:
        yield RESULT.fine(NOWHERE)


def arguments(audited: Audited) -> Iterator[Finding | Held]:
    """LOX601 to LOX604: an argument has no derivative, or one of zero."""
    if not audited.differentiate or not audited.captured.results:
        return
    if any(_compat.is_ref(value.aval) for step, _ in audited.steps for value in step.inputs):
        return  # What is in memory is not followed.
    dependence = audited.dependence
    loss = loss_of(audited, dependence)
    smooth, anyhow = upstream(loss), upstream(loss, smoothly=False)
    real = differentiated(audited, dependence)
    for argument, group in itertools.groupby(audited.differentiate, _argument):
        names = list(group)
        arrays = {name: real[name] for name in names if name in real}
        if not arrays:
            dtypes = dict(zip(audited.captured.arguments, audited.program.inputs, strict=True))
            found = sorted({str(getattr(dtypes[name].aval, "dtype", "")) for name in names})
            yield NUMBERS.at(NOWHERE, f"'{argument}' is of {' and '.join(found)}, which jax.grad refuses.")
            continue
        yield NUMBERS.fine(NOWHERE)
        cuts = {name: _cuts(node, anyhow) for name, node in arrays.items() if node not in smooth}
        if len(cuts) < len(arrays):
            yield CUT.fine(NOWHERE)
            yield UNUSED.fine(NOWHERE)
            yield from _parts(cuts)
            continue
        places = _in_order(place for each in cuts.values() for place in each)
        shown = repr(argument) if len(names) > 1 else repr(names[0])
        if places:
            yield CUT.at(
                places[0].location,
                f"The derivative of '{audited.captured.results[0]}' by {shown} is zero: every path from it goes "
                f"through {_text(places)}.",
            )
        else:
            yield UNUSED.at(
                NOWHERE,
                f"'{audited.captured.results[0]}' does not depend on {shown}, and so its derivative by it is zero.",
            )


def _parts(cuts: dict[str, list[Place]]) -> Iterator[Finding]:
    """Of some arrays of an argument that no derivative gets to: those for which nobody said that it is meant."""
    for name, places in cuts.items():
        unsaid = [place for place in places if place.step.equation.primitive not in primitives("stop_gradient")]
        if unsaid and len(unsaid) == len(places):
            yield PART_CUT.at(
                unsaid[0].location,
                f"The derivative by '{name}' is zero, and not that by the rest: every path from it goes through "
                f"{_text(unsaid)}.",
            )


def _cuts(node: Node, towards: set[Node]) -> list[Place]:
    """Where the paths from a value to a result stop being differentiable."""
    found = (
        result.place
        for source in downstream([node])
        for result, smooth in source.feeds
        if not smooth and result in towards and result.place is not None
    )
    return _in_order(found)


def _in_order(places: Iterator[Place]) -> list[Place]:
    def order(place: Place) -> tuple[str, int, int, str]:
        where = place.location
        return where.file, where.line, where.column, place.step.equation.primitive.name

    return sorted(set(places), key=order)


def _text(places: list[Place]) -> str:
    said = list(
        dict.fromkeys(f"{_what(place)}{f' ({place.location})' if place.location.file else ''}" for place in places)
    )
    return " or ".join(said[:3]) + (" or others" if len(said) > 3 else "")


def _what(place: Place) -> str:
    primitive = place.step.equation.primitive
    if primitive in primitives("convert_element_type"):
        return f"a conversion to {place.step.equation.params['new_dtype']}"
    if primitive in _COMPARISONS:
        return f"the comparison '{primitive.name}'"
    return f"'{primitive.name}'"


def refused(audited: Audited) -> Iterator[Finding | Held]:
    """LOX605: JAX refuses to differentiate a step on the way."""
    if not audited.differentiate or not audited.captured.results:
        return
    dependence = audited.dependence
    after = downstream(differentiated(audited, dependence).values())
    way = after & upstream(loss_of(audited, dependence))
    for place in dependence.places:
        if not any(node in way for node in place.outputs) or not any(node in after for node in place.inputs):
            continue
        equation = place.step.equation
        if equation.primitive in primitives("while"):
            yield REFUSED.at(
                place.location,
                "The number of rounds of this 'while' is not known while tracing, and the result depends "
                "differentiably on what it computes: jax.grad raises.",
            )
        elif equation.primitive in _RAISING or not (place.step.blocks or equation.primitive in ad.primitive_jvps):
            if equation.primitive not in primitives("custom_jvp_call", "custom_vjp_call", "custom_lin"):
                yield REFUSED.at(place.location, f"JAX has no derivative of '{equation.primitive.name}'.")
    if way:
        yield REFUSED.fine(NOWHERE)


def _argument(name: str) -> str:
    """The argument that an array belongs to."""
    first, _, rest = name.partition("/")
    return f"{first}/{rest.partition('/')[0]}" if first == "args" and rest else first


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


KINDS = (RESULT, NUMBERS, CUT, UNUSED, PART_CUT, REFUSED)
CHECKS = (result, arguments, refused)
