"""What all loggers share: how logs get from a program to the thread that writes them."""

from __future__ import annotations

import atexit
import functools
import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, get_args

import jax
import numpy as np

from lox import _channel, _transform
from lox._ambient import ambient
from lox._exceptions import LogDataError, LogValueError, SpoolWarning
from lox._keys import on_host
from lox._log import log
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant
from lox._run_all import each
from lox._spool import labelled_spool
from lox._strip import strip
from lox._tap import labelled_tap
from lox._trace import is_outermost
from lox.loggers._curves import BatchAs
from lox.loggers._packing import batch_ndim, happened, kept, packed, unlabelled, unpacked
from lox.loggers._processes import Processes, Word, here, home, whole
from lox.loggers._run import Arrived, Key, Run, State, arrived, by_run, describer, labels, refuse_several, state_of
from lox.loggers._worker import Worker

Function = Callable[..., Any]


class Logger:
    """Takes logs somewhere, those of each run apart. A new kind of logger derives from this.

    `write` gets the logs of one run at a time, in the order in which they happened, on a thread of the logger's own,
    whatever threads they came from. What it raises is kept until `flush` or `close`, and the logger goes on.

    Args:
        room: How many deliveries from programs may wait to be written.
        overflow: What to do with one that finds no room: "wait", which makes the program wait as well, or "drop",
            which counts them in `dropped`.
        processes: Which of the processes that `jax.distributed` connects write: the "first", or "all", each what
            arrives in it. Without it the first, and another one that leaves out what might be its own says so in a
            `TapWarning`.
        batch_as: What sinks that draw curves make of a value with batch axes, of a `vmap` inside the run or of
            `where=`: "mean", one value, the mean over the batch elements in which the event happened; "each", a value
            for each batch element, `"key/0"`, `"key/1"` and so on; or "histogram", an array of all of them. Loggers
            that keep arrays keep all of it.

    Raises:
        LogValueError: An argument is none of the above. A `ValueError`.

    Loggers that are open when the interpreter exits are closed. A forked process has none of its parent's logs that
    wait, and closes no logger of its parent.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> class Printer(lox.loggers.Logger):
    ...     def write(self, run, logs):
    ...         for key, values in logs.items():
    ...             print(run.name, key, values.tolist())
    >>> def f(x):
    ...     return lox.log({"x": x})["x"]
    >>> with Printer() as logger:
    ...     _ = logger.tap(f, logger.init(jax.random.key(7)))(jnp.float32(1))
    0000000000000007 x [1.0]
    """

    @says_what_was_meant()
    def __init__(
        self,
        *,
        room: int = 1024,
        overflow: Literal["wait", "drop"] = "wait",
        processes: Word | None = None,
        batch_as: BatchAs = "mean",
    ):
        drops = _transform.choice("overflow", overflow, ("wait", "drop")) == "drop"
        _transform.choice("batch_as", batch_as, get_args(BatchAs))
        name = type(self).__name__
        given = dict(vars(self))
        self.batch_as: BatchAs = batch_as
        self._processes = Processes(processes)
        self._runs: dict[tuple[Key, str], Run] = {}
        self._said: dict[Key, dict[str, Any]] = {}
        self._said_by: dict[tuple[Key, str], tuple[int, Any]] = {}
        self._shards: dict[Key, int] = {}
        self._latest: tuple[Any, Any] = (None, None)
        self._worker = Worker(name, _transform.positive("room", room) or 1, drops, self.sync, self._failed)
        for attribute, value in given.items():
            if hasattr(Logger, attribute) or vars(self)[attribute] is not value:
                raise LogValueError(
                    f"{name} sets the attribute {attribute!r}, which lox.loggers.Logger has: give yours another name."
                )
        _open.add(self)

    # -- What a kind of logger does -------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Begins a run, before its first logs; one with the same key may have been there before."""

    def describe(self, run: Run) -> None:
        """Takes what describes a run, when that was said again after its start."""

    def write(self, run: Run, logs: logdict) -> None:
        """Takes logs of a run.

        Args:
            run: The run.
            logs: Arrays of NumPy, at least one event of each key, of which `run.batch_ndim[key]` axes after the first
                are batch axes. There is a mask only where an event did not happen in some batch elements.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it writes logs.")

    def sync(self) -> None:
        """Makes what was written last; called when no more logs wait, and before `flush` returns."""

    def finish(self, run: Run) -> None:
        """Ends a run, when the logger is closed."""

    # -- What programs do -----------------------------------------------------------------------------------------

    def init(self, key: Any, **config: Any) -> State:
        """The state of a run, which names it. Touches nothing on the host; works in `jit` and `vmap`.

        Args:
            key: A PRNG key, or a seed. Logs under the same key are of the same run, also in another process.
            **config: What describes the run: numbers, arrays, text, nested mappings of them. Numbers of Python and
                NumPy keep their 64 bits, also in `jit`.

        Raises:
            LogDataError: The key is none, or is several. A `TypeError`.
            LogValueError: Two values that describe the run have one name when nested ones are flattened. A
                `ValueError`.
        """
        return state_of(key, config)

    def tap(self, fun: Function | None = None, state: State | None = None, **options: Any) -> Any:
        """`lox.tap` to this logger: what a function logs is written as it happens.

        Args:
            fun: The function. Without it, a decorator is returned.
            state: The state of the run.
            **options: Keywords of `lox.tap`: `argnames`, `tags`, `interval`, `prefix`, `buffer`, `ordered`.

        Returns:
            A function of the same signature and results.
        """
        state = self._checked(state)
        return _transform.decorate(fun, lambda f: self._tapped(f, state, options))

    def spool(self, fun: Function | None = None, state: State | None = None, **options: Any) -> Any:
        """`lox.spool` to this logger: what a function logs is collected, and written when it has returned.

        Args:
            fun: The function. Without it, a decorator is returned.
            state: The state of the run.
            **options: Keywords of `lox.spool`.

        Returns:
            A function of the same signature and results.
        """
        state = self._checked(state)

        def spooled(f: Function) -> Function:
            collect = labelled_spool(f, **options)

            @functools.wraps(f, updated=())
            def call(*args: Any, **kwargs: Any) -> Any:
                out, logs = collect(*args, **kwargs)
                self.log(state, logs)
                return out

            return call

        return _transform.decorate(fun, spooled)

    def log(self, state: State, logs: logdict) -> None:
        """Writes logs that were collected, in or out of `jit` and `vmap`.

        Arrays that several processes have are written once; where none has all of them, they are sent to the first,
        for which all must call this.

        Args:
            state: The state of the run.
            logs: What `lox.spool` returned. The batch axes are those that the counters or the mask have as well.

        Raises:
            LogDataError: The logs are no `lox.logdict`. A `TypeError`.
        """
        state = self._checked(state)
        if not isinstance(logs, logdict):
            raise LogDataError(
                f"A logger writes a lox.logdict, as lox.spool returns it, got {type(logs).__name__}. Arrays of events "
                'make one: lox.logdict({"loss": jnp.array([0.5])}).'
            )
        for key, values in logs.data.items():
            if np.ndim(values) == 0:
                raise LogDataError(
                    f"A lox.logdict holds events along a first axis, and the values of {key!r} have none."
                )
        if not is_outermost():
            with ambient(None):  # Of logs that are there already, contexts say nothing.
                strip(self._tapped(lambda: log(packed(logs)), state, {}, self._take_packed))()
            return
        first = home(jax.tree.leaves(logs)) if here().processes > 1 else None
        if first is not None:
            state, logs = jax.tree.map(whole, (state, logs))
            if first != here().process:
                return
        known, run = self._latest
        if state is not known:
            config = jax.tree.map(on_host, state)
            run = (tuple(config.words.tolist()), describer(state)(config.config))
            self._latest = (state, run)
        come_from = Arrived(0 if first is None else jax.device_count())
        self._deliver(functools.partial(_write_now, run, come_from, kept(logs)))

    def flush(self) -> None:
        """Waits until all is written that was logged before, and raises what was raised meanwhile.

        Raises:
            Exception: What `write`, or a callback of `lox.tap`, raised first since the last call.
        """
        try:
            _channel.flush()
        finally:
            self._worker.wait(self.sync)
        _channel.flush()

    def close(self) -> None:
        """Writes what waits and ends all runs. The logger takes no more logs.

        Raises:
            Exception: As `flush`.
        """
        if self._worker.stopped:
            self._worker.wait()
            return
        try:
            self.flush()
        finally:
            self._worker.stop(self._finish)
            _open.discard(self)
        _channel.flush()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as another:
            if error is None:
                raise
            error.add_note(f"Closing {self!r} raised {type(another).__name__}: {another}")

    @property
    def dropped(self) -> int:
        """How many deliveries were dropped for want of room."""
        return self._worker.dropped

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    # -- On the way -----------------------------------------------------------------------------------------------

    def _checked(self, state: State | None) -> State:
        if not hasattr(self, "_worker"):
            raise LogValueError(f"{type(self).__name__}.__init__ must call super().__init__(), which makes its thread.")
        if self._worker.stopped:
            raise LogValueError(f"{self!r} was closed, and can be given no more logs.")
        here()  # While this thread may ask JAX.
        if not isinstance(state, State):
            raise LogDataError(
                f"A logger needs the state of a run, as {type(self).__name__}.init(key) gives it; got "
                f"{type(state).__name__}."
            )
        if state is not self._latest[0]:
            refuse_several(np.shape(state.words)[:-1])
        return state

    def _tapped(
        self, fun: Function, state: State, options: Mapping[str, Any], take: Callable[[logdict], None] | None = None
    ) -> Function:
        of_run = labels(state.words)
        tapped = labelled_tap(fun, take or self._take, of_run, **options)
        if not state.config and not state.notes:
            return tapped
        described = describer(state)

        def take_config(logs: logdict) -> None:
            self._deliver(functools.partial(_describe, logs, described))

        describe = strip(labelled_tap(lambda: log({"config": state.config, "run": 0}), take_config, of_run))

        @functools.wraps(tapped, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            describe()
            return tapped(*args, **kwargs)

        return call

    def _take(self, logs: logdict) -> None:
        self._deliver(functools.partial(_write_all, logs))

    def _take_packed(self, logs: logdict) -> None:
        self._deliver(functools.partial(_write_packed, logs))

    def _deliver(self, task: Callable[[Logger], None]) -> None:
        """Has the logger's thread do something with it, after all that was delivered before."""
        if not self._worker.do(functools.partial(task, self)):
            raise LogValueError(f"{self!r} was closed, and gets logs.")

    # -- On the logger's thread -----------------------------------------------------------------------------------

    def _run_of(self, key: Key, config: Mapping[str, Any], title: str = "") -> Run:
        """The run of a key, which is started when it is new, by another name where a title is given."""
        run = self._runs.get((key, title))
        if run is None:
            run = Run(key, {**self._said.get(key, {}), **config}, title=title)
            self.start(run)
            self._runs[key, title] = run
            _close_first_at_exit()
        elif config:
            run.config.update(config)
            self.describe(run)
        return run

    def _describe_run(self, key: Key, config: Mapping[str, Any], shard: int | None) -> None:
        """Takes what describes the run of a key, if this process writes it; of one of its shards, where these differ.

        Raises:
            LogValueError: Another shard of the run has said something else. A `ValueError`.
        """
        if shard is not None:
            for name, value in config.items():
                first, said = self._said_by.setdefault((key, name), (shard, value))
                if first != shard and not np.array_equal(said, value):
                    raise LogValueError(f"Two shards describe run {Run(key).name} by different values of {name!r}.")
        if not self._processes.waits():
            if here().process == 0:
                self._run_of(key, config)
            return
        self._said[key] = {**self._said.get(key, {}), **config}
        for known, title in list(self._runs):
            if known == key:
                self._run_of(key, config, title)

    def _write_run(self, key: Key, config: Mapping[str, Any], logs: logdict, come_from: Arrived) -> None:
        """Writes what happened of logs of the run of a key, if this process writes it.

        Raises:
            LogValueError: Another process should, or another shard has a run with the same key. A `ValueError`.
        """
        if come_from.shard is not None and self._shards.setdefault(key, come_from.shard) != come_from.shard:
            raise LogValueError(
                f"Two shards of a shard_map log to run {Run(key).name}, by states that were made on each. Give each "
                "shard a key of its own, or make the state outside of the shard_map."
            )
        if self._processes.writes(self, key, come_from):
            self._write_happened(self._run_of(key, config, self._processes.title(key, come_from)), logs)

    def _write_happened(self, run: Run, logs: logdict) -> None:
        """Writes what happened of logs that may hold more."""
        for key, dropped in logs.dropped.items():
            if np.any(dropped):
                message = f"{np.sum(dropped)} events of {key!r} were dropped before {self!r} got them: max_iters= of "
                warnings.warn(message + "spool is too small.", SpoolWarning, stacklevel=2)
        run.batch_ndim = batch_ndim(logs)
        logs = unlabelled(happened(logs))
        if logs.data:
            try:
                self.write(run, logs)
            finally:  # It may have written some of them.
                for key, values in logs.items():
                    run.seen[key] = run.seen.get(key, 0) + len(values)

    def _finish(self) -> None:
        each(self.finish, self._runs.values())

    def _failed(self, error: BaseException) -> None:
        error.add_note(f"The error was raised by {self!r}.")
        _channel.keep(error)


def _describe(logs: logdict, described: Callable[[Mapping[str, Any]], dict[str, Any]], logger: Logger) -> None:
    axis = arrived(logs).axis
    for key, values in by_run(logs):
        shard = int(np.argmax(next(iter(values.mask.values()), 0))) if axis else None
        config = {name.removeprefix("config/"): value[0] for name, value in values.items() if name != "run"}
        logger._describe_run(key, described(config if shard is None else _of_shard(config, shard)), shard)


def _of_shard(config: Mapping[str, Any], shard: int) -> dict[str, Any]:
    return {name: value[shard] for name, value in config.items()}


def _write_all(logs: logdict, logger: Logger) -> None:
    come_from = arrived(logs)
    each(lambda run: logger._write_run(run[0], {}, run[1], come_from), by_run(logs))


def _write_now(run: tuple[Key, dict[str, Any]], come_from: Arrived, logs: logdict, logger: Logger) -> None:
    logger._write_run(*run, logs, come_from)


def _write_packed(logs: logdict, logger: Logger) -> None:
    come_from = arrived(logs)
    each(lambda run: logger._write_run(run[0], {}, unpacked(run[1], bool(come_from.axis)), come_from), by_run(logs))


_open: weakref.WeakSet[Logger] = weakref.WeakSet()


def _close_all() -> None:
    for logger in _channel.members(_open):
        try:
            logger.close()
        except BaseException as error:  # noqa: BLE001  (the next logger is closed as well)
            _channel.keep(error)  # which is printed when lox itself ends


def _close_first_at_exit() -> None:
    # What a sink needs until it is closed may end at the exit as well, and the last to register is the first to run.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


_close_first_at_exit()


def _forget() -> None:
    for logger in _open:
        logger._worker.forget()
    _open.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork.
    os.register_at_fork(after_in_child=_forget)
