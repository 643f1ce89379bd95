"""Functions and files of JAX that the auditor and the watcher recognize in tracebacks and name stacks.

Their names are private, and a check that no longer finds one says nothing rather than something wrong.
`tests/test_contracts.py` traces a small program for each, so that this does not pass unnoticed.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

import jax
import jax.extend.source_info_util as source_info
from jax.extend.core.primitives import remat_p

from lox._compat._jaxprs import open_jaxpr

CLAMPING = frozenset({"_getitem", "dynamic_index_in_dim", "dynamic_slice", "dynamic_slice_in_dim"})
"""The functions that clamp indices, although the call does not say so: LOX203 and its like."""

FILLING = frozenset({"_take", "take_along_axis"})
"""The functions that fill in NaN at indices beyond the end, although the call does not say so: LOX820."""

TAKING_LOGITS = frozenset({"categorical"})
"""The functions that draw by the largest of logits with noise: LOX813."""

PAIRED_DRAWS = frozenset({"permutation", "choice"})
"""Functions that people call with one key for several arrays on purpose, to keep elements together: LOX700."""

PLACED_DRAWS = PAIRED_DRAWS | {"randint"}
"""Functions that they call so for each array of a tree, on one line: LOX705."""

_JAX = f"{PurePath(jax.__file__).parent}{os.sep}"
_DERIVATIVES = f"{_JAX}_src{os.sep}interpreters{os.sep}ad.py"
_CHECKPOINTS = f"{_JAX}_src{os.sep}ad_checkpoint.py"
_CUSTOM_DERIVATIVES = inspect.getsourcefile(jax.custom_vjp) or ""
_LINEARIZES = inspect.getsourcefile(inspect.unwrap(jax.linearize)) or ""
_CALLING = tuple(f"{_JAX}_src{os.sep}{name}" for name in ("linear_util.py", "api_util.py", f"interpreters{os.sep}"))
_PARALLEL = inspect.getsourcefile(jax.lax.psum) or ""
_SCIPY = (
    f"{PurePath(inspect.unwrap(jax.scipy.special.exp1).__code__.co_filename).parent}{os.sep}",
    inspect.unwrap(jax.scipy.special.logsumexp).__code__.co_filename,
)
_WITHOUT_TRANSFORMATION = frozenset({"tree_util.py", "tree.py", "traceback_util.py"})


def function_of(name: str) -> str:
    """The name of a function without the scopes around it."""
    return name.rpartition(".")[2]


def writes_at(name: str) -> bool:
    """Tell whether a function writes to an array at the indices that it is given: LOX820."""
    return name.startswith(("_IndexUpdateRef.", "segment_", "dynamic_update_"))


def copies_result(names: Iterable[str]) -> bool:
    """Tell whether a `vmap` copies a result that is the same for all batch elements, by functions inside: LOX310."""
    return "matchaxis" in map(function_of, names)


def is_collective(files: Iterable[str]) -> bool:
    """Tell whether an operation is of a `psum` or its like, by the files of JAX that it comes from: LOX301."""
    return _PARALLEL in files


def is_of_scipy(files: Iterable[str]) -> bool:
    """Say whether an operation is of a function of `jax.scipy`, by the files that it comes from: LOX606, LOX808.

    These choose between formulas, and guard the values of those that they do not choose.
    """
    return any(file.startswith(_SCIPY) for file in files)


def is_jacobian(names: Iterable[str]) -> bool:
    """Tell whether the `vmap` around is that of a Jacobian matrix, by the functions that led to an equation: LOX703."""
    return any(name.startswith(("jacfwd.", "jacrev.")) for name in names)


def maps(name: str) -> bool:
    """Tell whether a function of JAX is the one that `jax.vmap` returns: LOX703."""
    return name == "vmap.<locals>.vmap_f"


def differentiates(files: Iterable[str]) -> bool:
    """Tell whether an operation is of a derivative that JAX takes, by the files that it comes from."""
    return _DERIVATIVES in files


def calls_jitted(file: str) -> bool:
    """Tell whether a file of JAX is the one that calls jitted functions: LOX705."""
    return PurePath(file).name == "pjit.py"


def transforms(file: str) -> bool:
    """Tell whether the functions of a file of JAX may transform what they call, rather than merely call it."""
    return PurePath(file).name not in _WITHOUT_TRANSFORMATION


_LOX = f"{PurePath(__file__).parent.parent}{os.sep}"
_LOX_COMMAND = f"{_LOX}__main__.py"
_SEARCHES = tuple(f"{_LOX}_nonfinite{os.sep}{each}" for each in ("_find.py", "_replay.py"))


@functools.cache
def hide_lox() -> None:
    """Have equations be of the program's lines, and not of lox's."""
    source_info.register_exclusion(_LOX)


def is_of_caller(file: str, traceback: Any) -> bool:
    """Tell whether a file in a traceback is not of the program, but of what has called a search for it.

    That is what starts the command of lox, or code that is in no file.

    Args:
        file: The file.
        traceback: The traceback of an equation, the innermost frame first.
    """
    files = [code.co_filename for code in traceback.raw_frames()[0]] if traceback is not None else []
    entries = [_LOX_COMMAND] if not file.startswith("<") else [_LOX_COMMAND, *_SEARCHES]
    ends = [files.index(each) for each in entries if each in files]
    return bool(ends) and file not in files[: min(ends)]


def library_of(frame: FrameType) -> str:
    """The top-level package of the code of a frame: "lox" for lox's own files only, not for doctests in them."""
    root = frame.f_globals.get("__name__", "").partition(".")[0]
    return root if root != "lox" or frame.f_code.co_filename.startswith(_LOX) else ""


_DECORATED = jax.named_scope("scope")(lambda: None).__code__
"""The code of functions that a scope decorates: it is open around each call."""


def opens_own_scope() -> bool:
    """Tell whether JAX opens the name scope that is entered, for itself: `lox.watch`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        by_user = frame.f_code.co_name == "named_scope"
        if frame.f_code is _DECORATED:  # The scope is of who has decorated the function: who defines it, and calls it.
            function: Any = inspect.unwrap(frame.f_locals["func"])
            file = function.__code__.co_filename if inspect.isfunction(function) else ""
            return file.startswith(_JAX) and frame.f_back is not None and frame.f_back.f_code.co_filename == file
        if not by_user and library_of(frame) not in ("lox", "contextlib", "functools"):
            file = frame.f_code.co_filename
            return file.startswith(_JAX) and PurePath(file).name != "source_info_util.py"
        frame = frame.f_back
    return False


def transposes() -> bool:
    """Tell whether JAX itself binds what is bound now, to transpose an equation: `lox.watch`.

    A backward function is called for the same, but binds what its own lines say, even if it is one of JAX's.
    """
    return any(map(_is_transposing, _of_machinery()))


def recomputes() -> bool:
    """Tell whether JAX binds what is bound now to compute the forward part of a `jax.checkpoint` anew: `lox.watch`."""
    for frame in _of_machinery():
        if _is_transposing(frame):
            return False
        if frame.f_code.co_filename == _CHECKPOINTS and frame.f_code.co_name == "transposed":
            return True
    return False


def _is_transposing(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _DERIVATIVES and frame.f_code.co_name.startswith("backward_pass")


def _of_machinery() -> Iterator[FrameType]:
    """The innermost frames, up to the first one that is neither JAX's nor lox's, or is a backward function of JAX."""
    frame: FrameType | None = sys._getframe(1)
    last = ""
    while frame is not None and (
        frame.f_code.co_filename.startswith(_JAX) or library_of(frame) in ("lox", "contextlib", "functools")
    ):
        if _calls_backward_function(frame) and last.startswith(_JAX):
            return
        if not frame.f_code.co_filename.startswith(_CALLING):
            last = frame.f_code.co_filename
        yield frame
        frame = frame.f_back


def _calls_backward_function(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _CUSTOM_DERIVATIVES and frame.f_code.co_name == "_flatten_bwd"


_EVALUATES: CodeType = jax.core.eval_jaxpr.__code__


def evaluated(frame: FrameType) -> tuple[Any, Any]:
    """The jaxpr and the equation that `jax.core.eval_jaxpr` is running, if it is what binds: `lox.watch`.

    Args:
        frame: The frame that binds. Those of observers are left out.

    Returns:
        The jaxpr, and the equation; None and None if something else binds.
    """
    frame = _without_observers(frame)
    if binds_checkpoint(frame) and frame.f_back is not None:
        frame = frame.f_back
    found = frame.f_locals if frame.f_code is _EVALUATES else {}
    return found.get("jaxpr"), found.get("eqn")


def is_tangent(frame: FrameType) -> bool:
    """Tell whether a frame binds what the function that `jax.linearize` returned computes: `lox.watch`."""
    frame = _without_observers(frame)
    if frame.f_code is not _EVALUATES or frame.f_back is None:
        return False
    around = frame.f_back.f_code
    return around.co_filename == _LINEARIZES and around.co_name == "_lift_linearized"


_LOOPS = frozenset(inspect.unwrap(loop).__code__ for loop in (jax.lax.scan, jax.lax.while_loop))


def taken_out(frame: FrameType) -> tuple[Sequence[bool], Sequence[int | None]]:
    """The values that JAX has moved out of a loop, by the frame that binds the loop: `lox.watch`.

    A carry that the body returns unchanged becomes one of the first constants, and an output that is an input is left
    out. Without this, the values after them would have lower numbers.

    Args:
        frame: The frame that binds. Those of observers are left out.

    Returns:
        For each leaf of the carry, whether it is taken out; for each output that `scan` stacks, None if it is not, and
        otherwise which input it is, counted without constants. Both are empty if it is not the frame of such a loop.
    """
    frame = _without_observers(frame)
    if frame.f_code not in _LOOPS:
        return (), ()
    return frame.f_locals.get("move_to_const", ()), frame.f_locals.get("ext_to_ext_fwd", ())


def _without_observers(frame: FrameType) -> FrameType:
    while frame.f_code.co_filename.startswith(_LOX) and frame.f_back is not None:
        frame = frame.f_back
    return frame


_BINDS_CHECKPOINT = getattr(remat_p.bind, "__code__", None)


def binds_checkpoint(frame: FrameType) -> bool:
    """Tell whether a frame is that of JAX's own function which binds a `jax.checkpoint`: `lox.watch`."""
    return frame.f_code is _BINDS_CHECKPOINT


def is_internal(jaxpr: Any) -> bool:
    """Tell whether a jaxpr is that of a function of JAX's own, or of lox's: `lox.watch`."""
    source = str(open_jaxpr(jaxpr).debug_info.func_src_info)
    return _JAX in source or _LOX in source


_CLOSED = tuple(
    f"{_JAX}_src{os.sep}{part}"
    for part in (
        *(f"{name}{os.sep}" for name in ("nn", "numpy", "random", "lax", f"tpu{os.sep}linalg")),
        *(f"scipy{os.sep}{name}" for name in ("special", "linalg")),
    )
)
_OPEN = f"{os.sep}control_flow{os.sep}", "_piecewise "


def runs_no_other(fun: Any) -> bool:
    """Tell whether a function, or a jaxpr, is of one of JAX's functions that run none of others, as `jax.nn.relu`."""
    source = str(getattr(getattr(fun, "debug_info", None), "func_src_info", None))
    return not any(part in source for part in _OPEN) and any(part in source for part in _CLOSED)


def code_of(fun: Any) -> CodeType:
    """The code of a function of JAX, as it is in tracebacks."""
    return inspect.unwrap(fun).__code__


_CALLS_CUSTOM_VJP = code_of(jax.custom_vjp.__call__)


def is_of_custom_vjp(traceback: Any) -> bool:
    """Tell whether an equation is bound by a call of a `jax.custom_vjp` function itself.

    So is the call, and each equation of the backward function: JAX runs it with the traceback of the call. What the
    backward function calls is traced once for all calls, and keeps the traceback of the first.

    Args:
        traceback: The traceback of the equation, the innermost frame first.
    """
    for code in traceback.raw_frames()[0] if traceback is not None else ():
        if code is _CALLS_CUSTOM_VJP or not code.co_filename.startswith((_JAX, _LOX)):
            return code is _CALLS_CUSTOM_VJP
    return False


def transformations(scopes: Iterable[Any]) -> tuple[str, ...]:
    """The transformations among scopes of a name stack, the outermost first, such as ``("jvp", "vmap")``."""
    return tuple(each.name for each in scopes if type(each).__name__ == "Transform")


def split_at_transpositions(scopes: Sequence[Any]) -> list[list[Any]]:
    """The scopes outside all backward passes, then those in the outermost of them, and so on.

    JAX names some twice, as those around what a `jax.checkpoint` transposes. Here, each is there once.
    """
    split: list[list[Any]] = [[]]
    for scope in {id(scope): scope for scope in scopes}.values():
        if transformations([scope]) == ("transpose",):
            split.append([])
        split[-1].append(scope)
    return split


def is_recomputed(name_stack: Any, times: int = 1) -> bool:
    """Tell whether an equation is of the forward part of a `jax.checkpoint`, computed anew in the backward part.

    Args:
        name_stack: The scopes of the equation.
        times: How often it was computed anew, at least: twice in the derivative of a backward part.
    """
    return [each.name for each in name_stack.stack].count("rematted_computation") >= times
