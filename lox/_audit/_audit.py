"""`lox.audit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from lox._arguments import names
from lox._audit._audited import Audited
from lox._audit._capture import Capture, capture
from lox._audit._checks import ALL, OF_DERIVATIVES, OF_DIFFERENTIATED
from lox._audit._derivatives import derivatives
from lox._audit._expect import expect
from lox._audit._failures import guarded, reported
from lox._audit._findings import Finding, Held, first_causes
from lox._audit._follow import follow
from lox._audit._inline import leave_out
from lox._audit._label import label
from lox._audit._location import Location
from lox._audit._naming import name_values
from lox._audit._options import Axes, check_that_it_takes, read_axes, read_calls
from lox._audit._report import Report, report_of
from lox._audit._settings import expand
from lox._audit._signature import definition
from lox._audit._sources import Source, sources
from lox._exceptions import LogValueError


class Audit:
    """The type of `lox.audit`, which is called, and has `expect` and `label`."""

    expect = staticmethod(expect)
    label = staticmethod(label)

    def __call__(
        self,
        fun: Callable[..., Any],
        *,
        axes: Axes | None = None,
        differentiate: str | Iterable[str] | None = None,
        calls: Iterable[tuple[Any, ...]] = (),
        ignore: str | Iterable[str] = (),
        check_rules: bool = False,
    ) -> Callable[..., Report]:
        """Find mistakes in a function without running it.

        The function is traced, with the log calls in it, and is not run. Of what is in it, only functions with a custom
        derivative rule are computed, on random numbers: small ones, and with `check_rules=True` larger ones.

        Args:
            fun: The function.
            axes: What the axes of arguments mean, by the name of the argument, as in
                ``{"obs": ("time", "batch", None)}``, or of an array in it, as in ``{"batch/obs": ("time", None)}``; a
                name means all arrays in the argument that have no labels of their own.
            differentiate: The name or names of arguments, or of arrays in them, that the result is to be
                differentiated by.
            calls: Further tuples of arguments, for what changes from call to call.
            ignore: The code or codes of what is not to be reported, such as ``"LOX104"``.
            check_rules: Whether to compare each rule of `jax.custom_jvp` and `jax.custom_vjp` with the derivative of
                its function, on random numbers of the shapes of the call. This option computes. Functions are left out,
                and named, that have side effects, loops of unknown length, or arguments of more than 10000 elements.

        Returns:
            A function of the arguments of `fun`, each array of which may be a `jax.ShapeDtypeStruct`, that returns a
            report: `issues`, `warnings` and `verified` are tuples of findings with `code`, `severity`, `message`,
            `file`, `line` and `suggestion`; `str` of it is all of it as text, and it has `to_markdown`, `to_json`,
            `to_mermaid` and `raise_for`. What the function raises is an issue of the report; a check of lox that
            fails is a warning of it, and the other checks run.

        Raises:
            LogValueError: `fun` does not take the arguments, or those of one of `calls`; `axes` or `differentiate`
                names no argument, `axes` has another number of labels than the argument has axes, or `ignore` has an
                unknown code. A `ValueError`.

        >>> import jax.numpy as jnp
        >>> import lox
        >>> def advantages(returns, values):
        ...     return returns - values
        >>> labels = {"returns": ("time", "batch"), "values": ("batch", "time")}
        >>> report = lox.audit(advantages, axes=labels)(jnp.ones((8, 8)), jnp.ones((8, 8)))
        >>> [finding.code for finding in report.issues]
        ['LOX101']
        """
        if not callable(fun):
            raise TypeError(f"lox.audit takes a function, got {fun!r} of type {type(fun).__name__}.")
        labels, more = read_axes(axes), read_calls(fun, calls)
        ignored = expand(names(ignore, "ignore=", " of lox.audit"))
        by = () if differentiate is None else names(differentiate, "differentiate=", " of lox.audit")

        def audited(*args: Any, **kwargs: Any) -> Report:
            captured = capture(fun, args, kwargs)
            if isinstance(captured.error, TypeError):  # What injects arguments may tell the signature of what it wraps.
                check_that_it_takes(fun, args, kwargs, f"lox.audit({captured.name}) is given")
            failures: list[Finding] = []
            program = follow(captured, labels, failures)
            with reported("Naming the values", failures):
                name_values(program)
            seen = Audited(
                fun=fun,
                arguments=((args, kwargs), *((each, {}) for each in more)),
                captured=captured,
                program=program,
                differentiate=_arrays(by, captured),
                others=tuple(capture(fun, each, {}) for each in more),
                check_rules=check_rules,
            )
            whole = captured.error is None  # Otherwise what comes after the error was not looked at.
            traced: list[Source] = []
            if whole:
                with reported("Reading the source", failures):
                    traced = sources(seen)
            here = definition(fun)
            checked = [_placed(each, here) for check in ALL for each in guarded(check, seen)]
            with reported("Following what the program differentiates", failures):
                for loss, plain, where in derivatives(seen):
                    checked += [_placed(each, where) for check in OF_DERIVATIVES for each in guarded(check, loss)]
                    known = {_line(each) for each in checked if isinstance(each, Finding)}
                    also = [each for check in OF_DIFFERENTIATED for each in guarded(check, plain)]
                    checked += [each for each in also if isinstance(each, Finding) and _line(each) not in known]
            found = dict.fromkeys([*failures, *checked])
            findings = first_causes(each for each in found if isinstance(each, Finding))
            held = [each for each in found if isinstance(each, Held) and whole]
            kept, used = leave_out(findings, traced)
            return report_of(captured.name, program, kept, held, used, captured.error).only(ignore=ignored)

        return audited


def _placed(found: Finding | Held, here: Location) -> Finding | Held:
    """The finding, placed at the function or the call if it has no line of its own."""
    if isinstance(found, Held) or found.file:
        return found
    return dataclasses.replace(found, file=here.file, line=here.line)


def _line(found: Finding) -> tuple[str, str, int]:
    """The code and the place of a finding. A message names values, and a derivative loses their names."""
    return found.code, found.file, found.line


def _arrays(by: tuple[str, ...], captured: Capture) -> tuple[str, ...]:
    """The arrays among the arguments that are meant by names of arguments."""
    for name in by:
        if not any(each == name or each.startswith(f"{name}/") for each in captured.arguments):
            known = ", ".join(map(repr, captured.arguments)) or "none"
            raise LogValueError(
                f"differentiate= names {name!r}, but the arrays among the arguments of {captured.name} are {known}."
            )
    return tuple(each for each in captured.arguments if any(each == name or each.startswith(f"{name}/") for name in by))


audit = Audit()
audit.__doc__ = Audit.__call__.__doc__
