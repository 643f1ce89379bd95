"""`lox.guard`: notices a call that fails, keeps what it needs to be run again, and goes on.

The verdict on a call is an array that the device computes with the results. Each call looks at the verdicts of those
before that are there already, so that none waits.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching, mlir

from lox import _channel, _compat, _transform
from lox._abstract import is_array
from lox._ambient import begin_handler
from lox._arguments import describe
from lox._effect import LogEffect
from lox._exceptions import LogDataError, LogValueError, NonfiniteWarning
from lox._leading_axes import where
from lox._misspelt import says_what_was_meant
from lox._nonfinite._axes import searching
from lox._nonfinite._branches import marking
from lox._nonfinite._bundle import name_of_function, runs_again, unbound, write_bundle
from lox._nonfinite._carries import Carries, devices_of, earlier, is_bad
from lox._nonfinite._find import last_good_carry
from lox._nonfinite._record import Resume, is_float, print_effects
from lox._nonfinite._results import values_of
from lox._site import calling_site
from lox._trace import is_called_from_python, under

Function = Callable[..., Any]


@overload
def guard(
    fun: None = None, *, bundle: str | os.PathLike[str], when: str = "nan", keep: bool = True
) -> Callable[[Function], Function]: ...
@overload
def guard(fun: Function, *, bundle: str | os.PathLike[str], when: str = "nan", keep: bool = True) -> Function: ...
@says_what_was_meant("lox.guard", 'lox.guard(step, bundle="failed")(x)')
def guard(fun: Function | None = None, *, bundle: str | os.PathLike[str], when: str = "nan", keep: bool = True) -> Any:
    """Watch a function for NaN: on a failing call, keep its arguments in a bundle, warn, and go on.

    A call fails if a result of it is bad, or the carry of an outermost loop in it after any iteration. For a step of
    training in a Python loop, guard the step; for a whole training in a `scan`, guard that. The guarded function
    returns what the function returns, and does not wait for the device: the calls after it look whether it has failed,
    and so do `lox.flush` and the end of the program. `lox.replay` runs the bundle again and finds the origin.

    The first call that fails is written, one bundle for each guarded function; from then on the function runs
    unguarded, in one of several processes as before, since all must run the same program. The bundle is there as a
    whole or not at all. It has the arguments as they were when the call began, also those that change in place.

    The last good carry of a loop that fails is computed again when the bundle is written, so that it costs nothing
    before. Only a jitted function runs again, and only one without effects: no `io_callback`, no `jax.Ref` that it
    writes. Of others, the warning says that the carry is missing, and a replay runs the loop from its beginning. The
    operations of the function, with which a replay compares, are recorded of jitted functions only.

    Where `jax.distributed` connects processes, each writes a bundle, NAME-process0 and so on, with its shards of arrays
    that are spread over them. `lox.replay` puts those of all processes together; such a bundle has no last good carry.

    Args:
        fun: The function, jitted or not. Without it, a decorator is returned.
        bundle: The directory to write, relative to the working directory of now. Where there is one already, a number
            is added to its name.
        when: "nan", or "nonfinite" for infinite values as well: results, and carries that began finite.
        keep: Whether to copy donated arguments before each call, on the device, so that they can be written. False
            raises for a function that donates.

    Returns:
        A function of the same signature and results. Inside `jax.jit` it calls the host if it fails; guard the
        outside `jax.vmap`, `jax.grad` and loops, `lox.guard(jax.vmap(f), ...)`.

    Raises:
        LogDataError: An argument has the wrong type. A `TypeError`.
        LogValueError: `when` is neither; `bundle` cannot be the path of a new directory; the function donates and
            `keep` is False; or, when it is called, that it is inside a transformation other than `jax.jit`, or of that
            in one of several processes. `jax.vmap` of a function with a guard inside `jax.jit` raises as well.

    Warns:
        NonfiniteWarning: A call has failed; it names the bundle and the number of the call, from 0.

    >>> import pathlib, tempfile, warnings
    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> step = lox.guard(jax.jit(lambda x: x - jnp.log(x)), bundle=folder / "failed")
    >>> x = jnp.float32(0.5)
    >>> with warnings.catch_warnings(record=True) as warned:
    ...     warnings.simplefilter("always")
    ...     for _ in range(3):
    ...         x = step(x - 1.0)
    ...     lox.flush()
    >>> [warning.category.__name__ for warning in warned]
    ['NonfiniteWarning']
    >>> print(lox.replay(folder / "failed", step).primitive)
    log
    """
    if not isinstance(bundle, (str, os.PathLike)):
        raise LogDataError(f"bundle= of lox.guard must be a path, got {describe(bundle)}.")
    if not isinstance(keep, bool):
        raise LogDataError(f"keep= of lox.guard must be a bool, got {describe(keep)}.")
    name = Path(bundle).name
    if name in ("", "..") or "\0" in os.fspath(bundle) or len(os.fsencode(name)) > _LONGEST:
        raise LogValueError(
            f"bundle= of lox.guard must be the path of a directory to make, with a name of at most {_LONGEST} bytes, "
            f"got {os.fspath(bundle)!r}."
        )
    path = Path(os.path.abspath(bundle))  # Whatever the working directory is when a call has failed.
    _transform.choice("when= of lox.guard", when, ("nan", "nonfinite"))
    site = calling_site()
    return _transform.decorate(fun, lambda f: _Guard(f, path, when == "nonfinite", keep, site).function())


_LONGEST = 200
"""Bytes in the name of a bundle. File systems take 255, of which lox needs some while it writes one."""


class _Pending(NamedTuple):
    """A call whose verdict may not be there yet.

    Attributes:
        verdicts: The verdicts, one for each set of devices that it has used.
        leaves: The leaves of the arguments, as they were when it began.
        structure: The structure of the arguments; None where they have none, and are the only leaf.
        x64: Whether types of 64 bits were enabled.
        number: The number of the call, from 0; None inside `jax.jit`.
    """

    verdicts: list[Any]
    leaves: list[Any]
    structure: Any
    x64: bool
    number: int | None

    def arguments(self) -> tuple[Any, Any]:
        """The arguments, positional and by keyword."""
        args, kwargs = self.leaves[0] if self.structure is None else jax.tree.unflatten(self.structure, self.leaves)
        return args, kwargs


_guards: weakref.WeakSet[_Guard] = weakref.WeakSet()
_unsettled: set[_Guard] = set()
"""Those with calls whose verdict was not read yet. They are kept here, since the program may have dropped them."""


class _Guard:
    """The state of a guarded function: the calls that nobody has looked at, and whether one has failed."""

    def __init__(self, fun: Function, path: Path, infinite: bool, keep: bool, site: Any) -> None:
        self._fun = fun
        self._path = path
        self._infinite = infinite
        self._site = site
        self._pending: deque[_Pending] = deque()
        self._calls = itertools.count()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failed = False
        self._jitted = None
        self._donates: Callable[[Any, Any], tuple[Any, Any]] | None = None
        if _compat.is_jitted(fun):
            options = dict(_compat.jit_options(fun) or ())
            if any(options.get(name) for name in ("donate_argnums", "donate_argnames")):
                if not keep:
                    raise LogValueError(
                        f"{name_of_function(fun)} donates arguments, which are gone when it has failed. Let keep= of "
                        "lox.guard be True, which copies them before each call, or donate nothing."
                    )
                self._donates = functools.partial(_copied, options["donate_argnums"], options["donate_argnames"])
            self._jitted = _transform.jitted(fun, self._judged)
        _guards.add(self)

    def function(self) -> Function:
        """The guarded function."""

        @functools.wraps(self._fun, updated=())
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs)

        guarded.lox_guarded = self._fun  # type: ignore[attr-defined]
        return guarded

    def call(self, args: Any, kwargs: Any) -> Any:
        """Call the function. After a step that fills the processor's caches, each object that this uses costs time."""
        if searching.value:
            return self._fun(*args, **kwargs)
        if not is_called_from_python():
            return self._staged(args, kwargs)
        for each in list(_unsettled):
            each.look()
        if self._failed and jax.process_count() == 1:
            return self._fun(*args, **kwargs)
        kept = _kept(*((args, kwargs) if self._donates is None else self._donates(args, kwargs)))
        if self._jitted is not None:
            outs, *verdicts = self._jitted(*args, **kwargs)
        else:
            outs, verdicts = self._judged_eagerly(args, kwargs)
        with self._lock:
            if not self._failed:
                self._pending.append(_Pending(verdicts, *kept, jax.config.jax_enable_x64, next(self._calls)))  # type: ignore[attr-defined]
                _unsettled.add(self)
        return outs

    def _judged(self, fun: Function, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The results of a call, and whether one of them is bad and the first bad iteration, or -1."""
        outs, values, firsts = self._run(fun, args, kwargs)
        arrays, known = _told(values, self._infinite)
        return outs, _verdict(arrays, firsts, self._infinite, known)

    def _judged_eagerly(self, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """The same of a function that Python runs op by op, with a verdict for each set of devices that it uses."""
        outs, results, firsts = self._run(self._fun, args, kwargs)
        arrays, known = _told([each for each in results if not _is_deleted(each[0])], self._infinite)
        groups: dict[Any, tuple[list[Any], list[Any]]] = {}
        for place, values in enumerate((arrays, firsts)):
            for value in values:
                groups.setdefault(devices_of(value), ([], []))[place].append(value)
        verdicts = [_verdict(*group, self._infinite, known) for group in groups.values()]
        return outs, verdicts or [_verdict([], [], self._infinite, known)]

    def _run(self, fun: Function, args: Any, kwargs: Any) -> tuple[Any, list[tuple[Any, Any]], Any]:
        begin_handler()
        with marking(True):
            outs, firsts, _ = under(Carries(infinite=self._infinite), fun)((), *args, **kwargs)
        return outs, list(values_of(outs)), firsts

    def _staged(self, args: Any, kwargs: Any) -> Any:
        function = name_of_function(self._fun)
        if not _compat.is_staging(_compat.current_trace()):
            raise LogValueError(
                f"lox.guard of {function} is inside of jax.vmap, jax.grad or a handler of lox. "
                "Guard what is outside of it, as in lox.guard(jax.vmap(f), bundle=...)."
            )
        if jax.process_count() > 1:
            raise LogValueError(
                f"lox.guard of {function} is inside of jax.jit, in one of several processes. Guard "
                "what is outside of it, as in lox.guard(jax.jit(f), bundle=...)."
            )
        outs, verdict = self._judged(self._fun, args, kwargs)
        verdict = _unbatched_p.bind(verdict, function=function)
        leaves, structure = jax.tree.flatten((args, kwargs))
        traced = [number for number, leaf in enumerate(leaves) if is_array(leaf)]
        x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]

        def fails(verdict: Any, *arrays: Any) -> None:
            if not self._claim():
                return
            filled = list(leaves)
            for number, array in zip(traced, arrays, strict=True):
                filled[number] = array
            bad, iteration = np.asarray(verdict).tolist()
            # A callback must not wait for JAX, which waits for it.
            arguments = (bool(bad), iteration, _Pending([], filled, structure, x64, None))
            thread = threading.Thread(target=self._write, args=arguments)
            with self._lock:
                self._threads.append(thread)
            thread.start()

        call = functools.partial(jax.debug.callback, fails)
        bad = (verdict[0] > 0) | (verdict[1] >= 0)
        jax.lax.cond(bad, call, lambda *_: None, verdict, *(leaves[number] for number in traced))
        return outs

    def look(self, wait: bool = False) -> None:
        """Look at the verdicts of calls before, those that are there or all, the first one first."""
        while wait and self._threads:
            self._threads.pop().join()
        while (call := self._next(wait)) is not None:
            bad, iteration = functools.reduce(_worse, _read(call.verdicts))
            if (bad or iteration >= 0) and self._claim():
                self._write(bool(bad), iteration, call)

    def _next(self, wait: bool) -> _Pending | None:
        """Take the first call whose verdict nobody has read, if there is one and its verdict is there."""
        with self._lock:
            if not self._pending:
                _unsettled.discard(self)
                return None
            if not wait:
                for verdict in self._pending[0].verdicts:
                    if not verdict.is_ready():
                        return None
            return self._pending.popleft()

    def _claim(self) -> bool:
        """Say that a call has failed; False if one has before."""
        with self._lock:
            if self._failed:
                return False
            self._failed = True
            self._pending.clear()
            return True

    def _write(self, in_result: bool, iteration: int, call: _Pending) -> None:
        try:
            with jax.enable_x64(call.x64), jax.transfer_guard("allow"):
                self._write_bundle(in_result, iteration, call)
        except Exception:
            raise  # Of a warning that is an error.
        except BaseException:  # An interrupt: a later call that fails is written.
            self._failed = False
            raise

    def _write_bundle(self, in_result: bool, iteration: int, call: _Pending) -> None:
        what = "inf or NaN" if self._infinite else "NaN"
        name = name_of_function(self._fun)
        name = name if call.number is None else f"Call {call.number} of {name}"
        if any(map(_is_deleted, call.leaves)):
            self._warn(
                f"{name} has {what} in {_where(iteration, None)}. Arguments of it were deleted since, as by a function "
                "that donates them, inside of it or in a later call: no bundle is written. Guard the function that "
                "donates: lox.guard copies its arguments."
            )
            return
        place_in_loop: Resume | None = None
        remark = ""
        arrays = [leaf for leaf in call.leaves if isinstance(leaf, jax.Array)]
        if not all(array.is_fully_addressable for array in arrays):
            remark = ", with the part of this process"  # Which would run again at other times than other processes.
        elif iteration >= 0:
            try:
                _check_runs_again(self._fun, *call.arguments())
                reached = last_good_carry(self._fun, *call.arguments(), self._infinite)
            except _HasEffects as error:
                reached, remark = None, f" without its last good carry: {error}"
            except Exception as error:  # noqa: BLE001  (the program that is guarded goes on whatever happens)
                reached, remark = None, f" without its last good carry ({type(error).__name__}: {error})"
            if reached is not None and reached.trip == iteration:  # Else it is not reproduced.
                place_in_loop = reached
        failed = f"{name} has {what} in {_where(iteration, place_in_loop)}"
        found = {
            "when": "nonfinite" if self._infinite else "nan",
            "call": call.number,
            "iteration": iteration,
            "in_result": in_result,
        }
        try:
            place = write_bundle(self._path, self._fun, *call.arguments(), found, place_in_loop)
        except Exception as error:  # noqa: BLE001  (a full disk ends no training)
            self._warn(f"{failed}. No bundle is written to {self._path}: {type(error).__name__}: {error}.")
        else:
            self._warn(f"{failed}. The call is in {place}{remark}. Run it again with lox.replay.")

    def _warn(self, message: str) -> None:
        site = self._site
        warnings.warn_explicit(message, NonfiniteWarning, site.file, site.line, registry={})


def _where(trip: int, place: Resume | None) -> str:
    """The place of what is bad, with its iteration as a report counts it, if it is found again."""
    if trip < 0:
        return "a result"
    if place is None:
        return f"the carry of a loop after iteration {trip}"
    return f"the carry of a loop after iteration {place.shown}{' of its backward pass' if place.backward else ''}"


class _HasEffects(Exception):
    """A function must not run again."""


def _check_runs_again(fun: Function, args: Any, kwargs: Any) -> None:
    """Refuse to run a function again that may do more than compute.

    Raises:
        _HasEffects: It is not jitted, so that it may do whatever Python does, or has effects other than prints and
            logs.
    """
    if not runs_again(fun):
        raise _HasEffects("the function is not jitted, and so is not run again")
    values = jax.tree.leaves((args, kwargs))
    inner, args, kwargs = unbound(fun, args, kwargs)
    program = inner.trace(*args, **kwargs).jaxpr
    effects = [effect for effect in program.effects if not isinstance(effect, (LogEffect, *print_effects()))]
    if effects or any(map(_is_ref, (*program.consts, *values))):
        raise _HasEffects("the function has effects, and so is not run again")


def _is_ref(value: Any) -> bool:
    return _compat.is_ref(getattr(value, "aval", None))


_unbatched_p = jex.core.Primitive("lox_unbatched")
"""The identity. `vmap` refuses it: both branches run for all its elements, and so calls that the program drops."""
_unbatched_p.def_impl(lambda value, *, function: value)
_unbatched_p.def_abstract_eval(lambda value, *, function: value)
mlir.register_lowering(_unbatched_p, lambda ctx, value, *, function: [value])


def _refuse(axis_data: Any, values: Sequence[Any], dims: Sequence[Any], *, function: str) -> Any:
    if dims[0] is None:  # As in jax.jacfwd, which maps derivatives alone.
        return _unbatched_p.bind(*values, function=function), None
    raise LogValueError(
        f"lox.guard of {function} is in a function that jax.vmap maps, as in jax.vmap(jax.jit(guarded)). Guard what is "
        "outside of it, as in lox.guard(jax.vmap(f), bundle=...)."
    )


batching.fancy_primitive_batchers[_unbatched_p] = _refuse


def _kept(args: Any, kwargs: Any) -> tuple[list[Any], Any]:
    """The leaves of arguments, those that may change in place copied, and their structure."""
    try:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
    except (TypeError, ValueError):  # As of a dict whose keys have no order: it cannot be written, which is said then.
        return [(args, kwargs)], None
    if not all(map(_is_of_arrays, set(map(type, leaves)))):
        leaves = [leaf if isinstance(leaf, jax.Array) else _frozen(leaf) for leaf in leaves]
    return leaves, structure


@functools.lru_cache(maxsize=1000)
def _is_of_arrays(kind: type) -> bool:
    return issubclass(kind, jax.Array)


def _frozen(leaf: Any) -> Any:
    """A leaf that does not change in place."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return jax.new_ref(leaf[...]) if _is_ref(leaf) else leaf


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted()


def _copied(places: Sequence[int], names: Sequence[str], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with copies of those that are donated."""
    copy = lambda tree: jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, tree)  # noqa: E731
    donated = {place % len(args) for place in places if -len(args) <= place < len(args)}
    return (
        tuple(copy(each) if place in donated else each for place, each in enumerate(args)),
        {name: copy(each) if name in names else each for name, each in kwargs.items()},
    )


def _told(results: Iterable[tuple[Any, Any]], infinite: bool) -> tuple[list[Any], bool]:
    """The arrays of floats among results, and whether one of the numbers and arrays of NumPy among them is bad."""
    leaves = [leaf if mask is None else _computed(leaf, mask) for leaf, mask in results]
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array) and is_float(leaf)]
    return arrays, any(_is_bad_on_host(leaf, infinite) for leaf in leaves if isinstance(leaf, _ON_HOST))


def _computed(leaf: Any, mask: Any) -> Any:
    """A result with zeros for the elements that the program has not computed."""
    return where(mask, leaf, jnp.zeros_like(leaf)) if is_float(leaf) else leaf


_ON_HOST = (float, complex, np.ndarray, np.generic)


def _is_bad_on_host(value: Any, infinite: bool) -> bool:
    if not isinstance(value, (float, complex)) and not is_float(value):
        return False
    return bool(np.any(np.isnan(value) | (infinite and np.isinf(value))))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _verdict(arrays: Sequence[Any], firsts: Sequence[Any], infinite: bool, known: bool) -> Any:
    """Whether a result is bad, or one is known to be, and the first bad iteration."""
    bad = is_bad(arrays, [True] * len(arrays), infinite) | known
    return jnp.stack([bad.astype(jnp.int32), functools.reduce(earlier, firsts, jnp.int32(-1))])


def _read(verdicts: Sequence[Any]) -> list[list[int]]:
    """The verdicts of a call, on the host."""
    if jax.config.jax_transfer_guard_device_to_host in (None, "allow"):  # type: ignore[attr-defined]
        return [np.asarray(verdict).tolist() for verdict in verdicts]
    with jax.transfer_guard("allow"):  # The program forbids transfers for itself. This takes some time to enter.
        return [np.asarray(verdict).tolist() for verdict in verdicts]


def _worse(verdict: Any, other: Any) -> Any:
    (bad, first), (other_bad, other_first) = verdict, other
    return max(bad, other_bad), first if first >= 0 else other_first


def settle() -> None:
    """Look at all calls of all guarded functions."""
    if _guards:
        jax.effects_barrier()
    for each in {*_guards, *_unsettled}:
        each.look(wait=True)


atexit.register(settle)
_channel.before_flush.append(settle)
