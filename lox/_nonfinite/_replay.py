"""`lox.replay`: runs the failing call of a bundle again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from lox._exceptions import LogValueError
from lox._misspelt import says_what_was_meant
from lox._nonfinite._bundle import check_program, filled, name_of_function, read_bundle
from lox._nonfinite._find import search
from lox._nonfinite._report import NonfiniteReport


@says_what_was_meant("lox.replay", 'lox.replay("failed", f)')
def replay(bundle: str | os.PathLike[str], fun: Callable[..., Any], *args: Any, **kwargs: Any) -> NonfiniteReport:
    """Run the call that a bundle of `lox.guard` has kept again, and find where its first NaN begins.

    Arrays are those of the bundle. A loop that failed goes on at the failing iteration, from the last good carry.

    Args:
        bundle: The directory that `lox.guard` wrote.
        fun: The function that was guarded, guarded or not.
        args: Arguments of the same structure. Arrays are replaced by those of the bundle, and everything else is
            used as it is. They may be left out where the arguments were arrays, numbers and text, in lists, tuples,
            dicts and other trees of JAX that can be imported, as named tuples and dataclasses without functions in
            them.
        kwargs: The keyword arguments, likewise.

    Returns:
        The report of `lox.find_nonfinite`; of a loop that failed, for the iteration that did. If nothing is found, it
        says "Not reproduced".

    Raises:
        StorageError: There is no such bundle, or it is damaged.
        LogValueError: The arguments are not those of the bundle, or the function has other operations, operands or
            constants; it says what differs. Or the call needs as many devices as the bundle had.
    """
    found = read_bundle(Path(bundle))
    fun = getattr(fun, "lox_guarded", fun)
    if args or kwargs:
        args, kwargs = filled(found, args, kwargs)
    elif found.args is None:
        name = name_of_function(fun)
        raise LogValueError(
            f"{bundle} has {found.unknown}: give arguments of the same structure, whose arrays do not matter, as in "
            f"lox.replay({os.fspath(bundle)!r}, {name.rpartition(':')[2]}, *args), or to the command "
            f"`lox replay --args package.module:factory`, a function that returns them."
        )
    else:
        args, kwargs = found.args
    try:
        check_program(found, fun, args, kwargs)
        report = search(fun, args, kwargs, everything=False, resume=found.place)
    except Exception as error:
        if found.devices <= jax.device_count():
            raise
        raise LogValueError(
            f"{bundle} has arrays that were spread over {found.devices} devices, and here are {jax.device_count()}. On "
            f"one device the call does not run again: {type(error).__name__}: {error}"
        ) from error
    if report.found or report.lost:
        return report
    compared = "" if found.program else ", with the function that was guarded, which the bundle cannot compare"
    return dataclasses.replace(report, lost=(f"the call that the bundle has{compared}",))
