"""The report of a search: where NaN began, as attributes and as a short story."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._text import number


@dataclasses.dataclass(frozen=True)
class Step:
    """An operation that has carried a value on that is not finite, by its name and line."""

    primitive: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.primitive} at {_short(self.file)}:{self.line}" if self.line else self.primitive


@dataclasses.dataclass(frozen=True, eq=False)
class NonfiniteReport:
    """The origin of a value that is not finite, as `lox.find_nonfinite` reports it. It prints as a short report.

    Attributes:
        found: Whether there is one. If not, all other attributes are empty.
        kind: "nan" or "inf".
        primitive: The name of the operation; None where an argument or a constant was not finite.
        argument: The path of that argument, as in ``"args[0]['w']"``; "" where it is none.
        file: The file of the line that the operation comes from, in a backward pass that of the forward pass. Where an
            argument is not finite, the line is the first one that uses it.
        line: The number of the line.
        function: The name of the function that the line is in.
        iterations: The numbers of the iterations of the enclosing loops, the outermost first, each from 0. In the
            backward pass of a loop it is the iteration that is differentiated.
        batch: The index along the axis of each `vmap` around, the outermost first; None for one in which the value
            is the same for all elements. If several elements fail at once, those of the first one.
        element: The index of the first element of the result that is not finite, along the axes that no `vmap` or
            `shard_map` has added.
        shard: The shard of a `shard_map` around, as its index along each axis of the mesh.
        backward: Whether it was computed for a derivative, in a backward pass.
        operands: The operands of the operation, those of this batch element as far as they have batch axes.
        infinities: If it is NaN, the origins of the infinite operands.
        chain: The operations that have carried it to a result or a carry.
        others: With `all=True`, the other origins, the first one first.
        lost: Descriptions of what was not finite where it ran compiled, or in the call of a bundle, and is finite
            where it runs by itself.
    """

    found: bool
    kind: str = ""
    primitive: str | None = None
    argument: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    iterations: tuple[int, ...] = ()
    batch: tuple[int | None, ...] = ()
    element: tuple[int, ...] = ()
    shard: Mapping[str, int] = dataclasses.field(default_factory=dict)
    backward: bool = False
    operands: tuple[Any, ...] = ()
    infinities: tuple[NonfiniteReport, ...] = ()
    chain: tuple[Any, ...] = ()
    others: tuple[NonfiniteReport, ...] = ()
    lost: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True if there is an origin."""
        return self.found

    def __str__(self) -> str:
        if not self.found:
            if not self.lost:
                return "All results and carries are finite."
            return f"Not reproduced: operation by operation, no NaN appeared, but it did in {'; '.join(self.lost)}."
        return "\n".join([*self._story(), *(f"also: {each._headline()}" for each in self.others)])

    __repr__ = __str__

    def _story(self) -> list[str]:
        lines = [self._headline()]
        if source := linecache.getline(self.file, self.line).strip():
            lines.append(f"    {source}")
        lines += [f"  operand {place}: {_excerpt(value)}" for place, value in enumerate(self.operands)]
        lines += dict.fromkeys(f"  fed by {each._headline()}" for each in self.infinities)
        if self.chain:
            shown = self.chain if len(self.chain) <= _SHOWN else (*self.chain[: _SHOWN - 1], self.chain[-1])
            lines.append(f"  then {', '.join(map(str, shown))}")
        cures = (cure_of(each) for each in (self, *self.infinities) if each.primitive is not None)
        if cure := next(filter(None, cures), ""):
            lines.append(f"  {cure}")
        return lines

    def _headline(self) -> str:
        what = "NaN" if self.kind == "nan" else "Inf"
        if self.primitive is not None:
            begins = f"{what} begins in {self.primitive}{' of a backward pass' if self.backward else ''}"
        else:
            begins = f"{what} is in {self.argument or 'a constant of the program'}"
        at = f" at {_short(self.file)}:{self.line} ({self.function})" if self.line else ""
        loops = "".join(f", iteration {each}" for each in self.iterations)
        batch = ", batch element " + ", ".join("any" if each is None else str(each) for each in self.batch)
        shard = "".join(f", shard {number} of {name!r}" for name, number in self.shard.items())
        element = f", at [{', '.join(map(str, self.element))}]" if self.element else ""
        return f"{begins}{at}{loops}{batch if self.batch else ''}{shard}{element}"


_SHOWN = 6


def _short(file: str) -> str:
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return file


def _excerpt(value: Any) -> str:
    """The type of an array, its range, and its first elements."""
    array = np.asarray(value)
    text = f"{array.dtype}{list(array.shape)}"
    if array.size == 0 or array.dtype.kind not in "biufc" and str(array.dtype) not in _SMALL:
        return text
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if array.ndim == 0:
        return f"{text} {number(wide)}"
    known = np.abs(wide[~np.isnan(wide)])
    known = wide[~np.isnan(wide)] if wide.dtype.kind != "c" else known
    bounds = f" from {number(known.min())} to {number(known.max())}" if known.size else " all NaN"
    first = ", ".join(number(each) for each in wide.ravel()[:_SHOWN])
    return f"{text}{bounds}: {first}{', ...' if wide.size > _SHOWN else ''}"


_SMALL = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e5m2fnuz", "float8_e4m3fnuz"})


def cure_of(origin: NonfiniteReport) -> str:
    """The usual cure of an origin; "" where there is none."""
    for names, applies, cure in _CURES:
        if origin.primitive in names and applies(origin, [np.asarray(each) for each in origin.operands]):
            return cure
    return ""


def _has(values: Sequence[Any], place: int, test: Any) -> bool:
    return len(values) > place and bool(np.any(test(values[place])))


def _zero(value: Any) -> Any:
    return value == 0


_CURES: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    (
        ("mul",),
        lambda origin, values: origin.backward and any(np.isinf(value).any() for value in values),
        "A derivative is infinite here, and what follows it is 0: 0 * inf. `where` after the operation does not help; "
        "choose a safe operand before it, as in `jnp.sqrt(jnp.where(x > 0, x, 1))`.",
    ),
    (
        ("div", "mul", "rsqrt", "pow", "integer_pow"),
        lambda origin, values: origin.backward and any((value == 0).any() for value in values),
        "The derivative of a logarithm, a root, a norm or a power is not finite at 0; choose a safe operand with "
        "`jnp.where` before it.",
    ),
    (
        ("log", "log2"),
        lambda origin, values: _has(values, 0, _zero),
        "log(0) is -inf: add a small number, or clip the operand from below.",
    ),
    (
        ("log", "log2", "log1p"),
        lambda origin, values: True,
        "The logarithm is of a number below its domain: clip the operand from below.",
    ),
    (("sqrt", "rsqrt"), lambda origin, values: _has(values, 0, _zero), "1 / sqrt(0) is infinite: add a small number."),
    (
        ("sqrt", "rsqrt"),
        lambda origin, values: True,
        "The root is of a negative number: clip the operand at 0; a variance by E[x^2] - E[x]^2 is rounded below it.",
    ),
    (
        ("div",),
        lambda origin, values: _has(values, 1, _zero) and _has(values, 0, _zero),
        "0 / 0: choose a safe divisor with `jnp.where` before the division, or add a small number to it.",
    ),
    (("div",), lambda origin, values: _has(values, 1, _zero), "Division by 0: add a small number to the divisor."),
    (
        ("exp", "exp2", "expm1", "sinh", "cosh"),
        lambda origin, values: origin.kind == "inf",
        "The exponential overflows: subtract the maximum first, as `jax.nn.softmax` and `logsumexp` do.",
    ),
    (
        ("sub", "add"),
        lambda origin, values: origin.kind == "nan",
        "inf - inf: a row in which all is masked with -inf, or numbers that have overflowed before.",
    ),
    (
        ("convert_element_type",),
        lambda origin, values: origin.kind == "inf",
        "The number is larger than the dtype holds: scale it, or keep this part in float32 or bfloat16.",
    ),
    (
        ("gather",),
        lambda origin, values: True,
        "An index is beyond the end, and JAX fills in NaN: see mode= of `jnp.take` and of `.at[].get`.",
    ),
    (("acos", "asin", "atanh", "acosh"), lambda origin, values: True, "The operand is outside of the domain: clip it."),
    (
        ("cholesky",),
        lambda origin, values: True,
        "The matrix is not positive definite: add a small multiple of the identity.",
    ),
    (
        ("mul", "dot_general", "add", "sub", "reduce_sum", "integer_pow", "square", "pow"),
        lambda origin, values: origin.kind == "inf",
        "The result is larger than the dtype holds: numbers grow without bound, or the dtype is too small.",
    ),
)
