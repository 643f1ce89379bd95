"""Rules of `jax.custom_jvp` and `jax.custom_vjp` that give another derivative than that of their function.

This check computes: small functions that have a rule, and nothing else, on numbers of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._dependence import CONSTANT
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, is_internal, is_users
from lox._audit._rules import primitives
from lox._logs_in import jaxprs_in

DIFFERS = Kind(
    "LOX608",
    "warning",
    "A custom derivative rule gives another derivative than that of its function",
    "Mend the rule, and check it with jax.test_util.check_grads, or against jax.grad of the function without the rule.",
    "Custom derivative rules agree with their functions.",
    "Each rule was compared with the derivative of its function, numerically or by what it depends on.",
)
RAISES = Kind(
    "LOX609",
    "error",
    "A custom derivative rule raises",
    "Return from bwd a tuple with a cotangent for each argument, of its shape and dtype (None for zero); from a jvp "
    "rule the result and its tangent, of equal shapes and dtypes.",
    "Custom derivative rules can be traced.",
    "Each custom derivative rule was traced.",
)

_RULES = primitives("custom_jvp_call", "custom_vjp_call")
_LOOPS = primitives("while", "scan", "pure_callback", "io_callback", "debug_callback", "debug_print")
"""What a function may not contain to be run: it may run long, or have the derivative of its rule only nearly."""

_ROUNDING = CONSTANT - primitives("stop_gradient") | primitives("argmax", "argmin")
"""What makes a rule that gives another derivative an estimator by intent."""

_MOST_ELEMENTS = 4096
_MOST_EQUATIONS = 300

_TOLERANCE = 0.02
"""By how much of the largest element a derivative may differ."""

_STEP = 1e-2
_COTANGENT = 1e-3
"""How large cotangents are: a rule that clips is to let them pass."""

_ROUNDS = 3
"""How many arguments of each family are tried."""

_SOON = {"xla_backend_optimization_level": 0}
"""Compiles faster what runs a few times."""

Point = list[Any]
Flat = Callable[..., Sequence[Any]]


def rules(audited: Audited) -> Iterator[Finding | Held]:
    """LOX608 and LOX609: a custom rule is not that of its function, or raises."""
    for equation, location, name in ruled_steps(audited):
        if _is_small(equation.params["call_jaxpr"]):
            with jax.ensure_compile_time_eval():
                yield from _judged(equation, location, name, compare=not audited.check_rules)


def ruled_steps(audited: Audited) -> Iterator[tuple[Any, Location, str]]:
    """The equations that call a function of the user's with a rule, each function once for each type of arguments.

    Returns:
        Each with the place of the rule, and the name of the function.
    """
    seen = set()
    for step, _ in audited.steps:
        if step.equation.primitive not in _RULES:
            continue
        jaxpr = step.equation.params["call_jaxpr"]
        info = _compat.open_jaxpr(jaxpr).debug_info
        file = info.func_filename or ""
        key = (file, info.func_lineno, tuple(map(str, _compat.in_avals(jaxpr))))
        if file and not is_internal(file) and "site-packages" not in file and key not in seen:
            seen.add(key)
            here = Location(file, info.func_lineno or 0, info.func_name or "")
            yield step.equation, _place_of_rule(step.equation) or here, info.func_name or "a function"


def _place_of_rule(equation: Any) -> Location | None:
    """The line at which a derivative rule begins; None if the user did not write it as a function."""
    rule = equation.params.get("bwd") or equation.params.get("jvp_jaxpr_fun")
    info = getattr(rule, "debug_info", None)
    file, line = getattr(info, "func_filename", None), getattr(info, "func_lineno", None)
    return Location(file, line, info.func_name or "") if info and file and line and is_users(file) else None


def _judged(equation: Any, location: Location, name: str, compare: bool) -> Iterator[Finding | Held]:
    rule = Ruled(equation)
    try:
        only_computes = rule.try_out()
    except jax.errors.JAXTypeError:  # It needs what is only there where it is called.
        return
    except (TypeError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        yield RAISES.at(location, f"The derivative rule of '{name}' raises {type(error).__name__}: {first}")
        return
    except Exception:  # noqa: BLE001  (such as for the name of an axis, which is only there where it is called)
        return
    yield RAISES.fine(location)
    if rule.ignores_cotangents():
        yield DIFFERS.at(
            location,
            f"The derivative rule of '{name}' gives the same whatever cotangent it is given: the derivative of what "
            "comes after the function is lost. A rule multiplies by it.",
        )
        return
    if not compare or not only_computes or is_estimated(rule.jaxpr):
        return
    try:
        found = rule.compared()
    except Exception:  # noqa: BLE001  (JAX has no derivative of the function to compare with)
        return
    if len(found) >= _ROUNDS and all(found):
        yield DIFFERS.at(
            location,
            f"The derivative rule of '{name}' gives another derivative than that of the function at all "
            f"{len(found)} points that were tried, by up to {max(found):.2g} times its largest element.",
        )
    elif found:
        yield DIFFERS.fine(location)


class Ruled:
    """A function with a custom rule, of which only what is made of real numbers has a derivative."""

    def __init__(self, equation: Any):
        self.equation = equation
        self.jaxpr = equation.params["call_jaxpr"]
        self.avals = _compat.in_avals(self.jaxpr)
        self.results = _compat.out_avals(self.jaxpr)
        self.families = _families(self.jaxpr)
        self.real = [place for place, aval in enumerate(self.avals) if is_real(aval)]
        self.is_forward = equation.primitive in primitives("custom_jvp_call")

    def with_rule(self, *args: Any) -> Sequence[Any]:
        primitive, params = self.equation.primitive, self.equation.params
        found: Sequence[Any] = primitive.bind(*args, **primitive.get_bind_params(params))
        return found

    def of_real(self, fun: Flat, args: Point) -> tuple[Callable[[Point], Point], Point]:
        """A function as one of its real arguments, with real results, and these arguments."""

        def restricted(values: Point) -> Point:
            filled = dict(zip(self.real, values, strict=True))
            outs = fun(*(filled.get(place, arg) for place, arg in enumerate(args)))
            return [out for out, aval in zip(outs, self.results, strict=True) if is_real(aval)]

        return restricted, [args[place] for place in self.real]

    def try_out(self) -> bool:
        """Whether the rule does nothing but compute.

        Raises:
            Exception: What the rule raises.
        """
        traced = self.traced
        return bool(self.real) and not traced.effects and not any(e.primitive in _LOOPS for e in equations_in(traced))

    @functools.cached_property
    def traced(self) -> Any:
        """The program of the rule. It takes the arguments, and then tangents or cotangents.

        Raises:
            Exception: What the rule raises.
        """

        def derived(args: Point, others: Point) -> Any:
            fun, values = self.of_real(self.with_rule, args)
            return jax.jvp(fun, (values,), (others,)) if self.is_forward else jax.vjp(fun, values)[1](others)

        results = [aval for aval in self.results if is_real(aval)]
        others = [self.avals[place] for place in self.real] if self.is_forward else results
        of_type = [[jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals] for avals in (self.avals, others)]
        return jax.make_jaxpr(derived)(*of_type)

    def ignores_cotangents(self) -> bool:
        """Say whether a derivative is computed from the arguments alone."""
        if self.is_forward:
            return False
        program = _compat.open_jaxpr(self.traced)
        args, cotangents = program.invars[: len(self.avals)], program.invars[len(self.avals) :]
        of_args, of_cotangents = _computed_from(program, args), _computed_from(program, cotangents)
        return any(out in of_args and out not in of_cotangents for out in _variables(program.outvars))

    def compared(self) -> list[float]:
        """By how much the derivative by the rule differs from that of the function, at points where that is sure."""

        @functools.partial(jax.jit, compiler_options=_SOON)
        def both(args: Point, direction: Point, cotangents: Point) -> Any:
            fun, values = self.of_real(_compat.as_fun(self.jaxpr), args)
            results, pull = jax.vjp(fun, values)
            ahead, behind = (
                fun([value + sign * move for value, move in zip(values, direction, strict=True)]) for sign in (1, -1)
            )
            change = [(one - other) / 2 for one, other in zip(ahead, behind, strict=True)]
            ruled, _ = self.of_real(self.with_rule, args)
            return jax.vjp(ruled, values)[1](cotangents)[0], pull(cotangents)[0], _dot(cotangents, change), results

        random = np.random.default_rng(0)
        found = []
        for point in (self.point(number, random) for number in range(len(self.families) * _ROUNDS)):
            values = [point[place] for place in self.real]
            direction = [(_STEP * random.normal(size=value.shape)).astype(value.dtype) for value in values]
            cotangents = [
                (_COTANGENT * random.normal(size=aval.shape)).astype(aval.dtype)
                for aval in self.results
                if is_real(aval)
            ]
            by_rule, by_jax, change, results = jax.tree.map(np.asarray, both(point, direction, cotangents))
            largest = sum(np.abs(one * two).sum() for one, two in zip(by_jax, direction, strict=True))
            sure = abs(_dot(by_jax, direction) - change) <= _TOLERANCE * largest
            if sure and all(np.isfinite(each).all() for each in (*by_jax, *by_rule)):
                same = all(any(np.array_equal(result, value) for value in values) for result in results)
                found.append(0.0 if same else max(map(_difference, by_rule, by_jax)))
        return found

    def point(self, number: int, random: np.random.Generator) -> Point:
        """Arguments: any numbers, or those of a family.

        A rule that is only right for some of these is not wrong: it may be meant for them.
        """
        family = self.families[number % len(self.families)]
        point = []
        for aval in self.avals:
            values = family(random.normal(size=aval.shape)) if is_real(aval) else random.integers(0, 2, aval.shape)
            point.append(np.asarray(values, aval.dtype))
        return point


def _unit(values: Any) -> Any:
    return values / np.linalg.norm(values, axis=-1, keepdims=True) if np.ndim(values) else values


def _weights(values: Any) -> Any:
    return np.exp(values) / np.exp(values).sum(axis=-1, keepdims=True) if np.ndim(values) else np.exp(values)


def _symmetric(values: Any) -> Any:
    square = np.ndim(values) > 1 and values.shape[-1] == values.shape[-2]
    return values @ values.swapaxes(-1, -2) + np.eye(values.shape[-1]) if square else values


_OF_ELEMENTS = (np.asarray, np.exp, np.tanh, lambda values: np.tanh(values) ** 2)
"""Any numbers, positive ones, those from -1 to 1 and those from 0 to 1."""

_OF_VECTORS = (np.asarray, np.exp, _unit, _weights)
"""Any numbers, positive ones, vectors of length one, and those that sum to one."""

_DECOMPOSED = primitives("cholesky", "eigh", "lu", "svd", "qr", "triangular_solve", "linear_solve")
"""What is often applied to symmetric matrices alone."""

_PLAIN_PARAMETERS = {"accuracy", "y", "new_dtype", "weak_type", "sharding", "rounding_method"}
"""The parameters that primitives may have which treat elements apart."""


def _families(jaxpr: Any) -> tuple[Callable[[Any], Any], ...]:
    """The families of arguments that a function may be meant for, as maps of any numbers to some of a family."""
    equations = [equation for equation in equations_in(jaxpr) if not list(jaxprs_in(equation.params))]
    if all(
        equation.params.keys() <= _PLAIN_PARAMETERS
        or (equation.primitive in primitives("broadcast_in_dim") and not equation.invars[0].aval.shape)
        for equation in equations
    ):
        return _OF_ELEMENTS
    if any(equation.primitive in _DECOMPOSED for equation in equations):
        return (*_OF_VECTORS, _symmetric)
    return _OF_VECTORS


def _difference(by_rule: Any, by_jax: Any) -> float:
    """By how much a derivative differs from another one, in parts of its largest element; 0 for what is near enough.

    Where the function is flat a rule may give anything, such as a straight-through estimator does; and if it gives zero
    everywhere, the argument is meant to be a constant.
    """
    largest = float(np.abs(by_jax).max(initial=0))
    off = np.where(by_jax == 0, 0, np.abs(by_rule - by_jax))
    if largest == 0 or not by_rule.any() or off.max(initial=0) <= _TOLERANCE * largest:
        return 0.0
    return float(off.max()) / largest


def _dot(left: Point, right: Point) -> Any:
    return sum(((one * two).sum() for one, two in zip(left, right, strict=True)), start=0.0)


def _is_small(jaxpr: Any) -> bool:
    """Whether a function takes and computes so little, and so plainly, that it may be run."""
    if _compat.open_jaxpr(jaxpr).effects or getattr(_compat.open_jaxpr(jaxpr), "constvars", ()):
        return False
    equations = list(equations_in(jaxpr))
    avals = [var.aval for equation in equations for var in equation.outvars] + _compat.in_avals(jaxpr)
    loops = any(equation.primitive in _LOOPS for equation in equations)
    return not loops and len(equations) <= _MOST_EQUATIONS and all(map(is_plain, avals))


def _computed_from(program: Any, start: Iterable[Any]) -> set[Any]:
    """Some variables of a program, and those that are computed from them."""
    found = set(start)
    for equation in program.eqns:
        if not found.isdisjoint(_variables(equation.invars)):
            found.update(equation.outvars)
    return found


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jex.core.Literal)]


def is_estimated(jaxpr: Any) -> bool:
    """Whether a function rounds, so that a rule that gives a derivative other than zero is an estimator."""
    return any(
        equation.primitive in _ROUNDING
        or (
            equation.primitive in primitives("convert_element_type")
            and (equation.invars[0].aval.dtype == jnp.bool_ or is_real(equation.invars[0].aval))
            and not (is_real(equation.invars[0].aval) and is_real(equation.outvars[0].aval))
        )
        for equation in equations_in(jaxpr)
    )


def equations_in(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program, and those inside others."""
    for equation in _compat.open_jaxpr(jaxpr).eqns:
        yield equation
        for inner in jaxprs_in(equation.params):
            yield from equations_in(inner)


def is_plain(aval: Any, most: int = _MOST_ELEMENTS) -> bool:
    """Whether a type is that of an array of so many elements, on no mesh, that are exact enough to compare."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None or math.prod(aval.shape) > most or not aval.sharding.mesh.empty:
        return False
    return dtype in (jnp.float32, jnp.float64, jnp.bool_) or jnp.issubdtype(dtype, jnp.integer)


def is_real(aval: Any) -> bool:
    """Whether a type is that of real numbers."""
    return bool(jnp.issubdtype(aval.dtype, jnp.floating))


KINDS = (DIFFERS, RAISES)
CHECKS = (rules,)
