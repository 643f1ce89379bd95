"""The public class of loggers: the calls by which programs give logs to one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, get_args

import jax
import numpy as np

from lox import _channel, _transform
from lox._ambient import ambient, in_context
from lox._arguments import read_counters, read_event, read_values
from lox._effect import emit, recording
from lox._events import NOWHERE, Event
from lox._exceptions import LogDataError, LogValueError
from lox._log import log
from lox._logdict import distributions_of, logdict
from lox._misspelt import says_what_was_meant
from lox._spool import labelled_spool
from lox._strip import strip
from lox._tap import labelled_tap
from lox._trace import is_outermost
from lox.loggers import _exit
from lox.loggers._arrived import Arrived, arrived, by_group
from lox.loggers._calls import some_calls
from lox.loggers._cards import Card, Cards
from lox.loggers._curves import BatchAs
from lox.loggers._delivery import Layout, of_event, of_logs
from lox.loggers._experiment import Experiment
from lox.loggers._packing import packed, with_counters
from lox.loggers._processes import Processes, Word, agree, here, home, whole
from lox.loggers._state import (
    Description,
    State,
    Static,
    labels,
    refuse_several,
    says_what_is_config,
    state_of,
)
from lox.loggers._worker import Worker
from lox.loggers._writing import Writing

Function = Callable[..., Any]

KEYWORDS_OF_LOG = {"tags", "prefix", "where"}

_continuing = threading.RLock()
"""Two threads that continue an experiment do so one after the other: the second takes it over from the first."""

FROM_HERE = Arrived()
"""The origin of arrays that this process has."""


class Logger(Writing):
    """Base class of loggers, which write the logs of each run apart. Derive from it to write a logger.

    `write` gets the logs of one run at a time, in the order in which they happened, on a thread of the logger's own,
    whatever threads they came from. What it raises is kept until `flush` or `close`, and the logger goes on. A
    `LoggerWarning` says so at once, one for each run and type of error.

    A logger is an experiment, a new one by default, and what it writes is apart from that of other experiments.

    Args:
        name: The name of the experiment; by default the date, the time and the script. An experiment of a name that
            exists gets a number, as in "name-2".
        resume: The name of the experiment to continue, or "latest", the one that was begun or continued last; with
            `name`, among those of this name and its numbers. When there is none, "latest" begins a new one, with a
            `LoggerWarning`.
        from_step: The step from which to continue: events whose counter `step` is this one or a later one, in any batch
            element, are taken back before the first new event of their run. A run without one keeps them. Without
            `from_step`, new events follow all others.
        room: Largest number of deliveries from programs that may wait to be written.
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
        LogDataError: A name is not text, or `from_step` not an integer. A `TypeError`.
        LogValueError: An argument is none of the above; or, by the first `init`, `resume` names no experiment. A
            `ValueError`.

    A run whose `step` goes back has a `LoggerWarning`, once for each logger: a program that was begun again from a
    checkpoint needs `from_step`.

    A logger that nothing refers to any more writes what it was given and closes its runs. Loggers that are open when
    the interpreter exits are closed. A logger is neither copied nor pickled, which is a `LogDataError`. A process that
    is forked writes other runs with a logger of its parent: one that the parent has begun is a `LogValueError` there.

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
    seed=7-... x [1.0]
    """

    @says_what_was_meant()
    def __init__(
        self,
        *,
        name: str | None = None,
        resume: str | None = None,
        from_step: int | None = None,
        batch_as: BatchAs = "mean",
        room: int = 1024,
        overflow: Literal["wait", "drop"] = "wait",
        processes: Word | None = None,
    ):
        drops = _transform.choice("overflow", overflow, ("wait", "drop")) == "drop"
        _transform.choice("batch_as", batch_as, get_args(BatchAs))
        of_type = type(self).__name__
        given = dict(vars(self))
        super().__init__(Experiment(name, resume, from_step), Processes(processes))
        self._is_of_several = False
        self._has_given_up = False
        self.batch_as: BatchAs = batch_as
        self._worker = Worker(of_type, _transform.positive("room", room) or 1, drops, self._sync)
        for attribute, value in given.items():
            if hasattr(Logger, attribute) or vars(self)[attribute] is not value:
                raise LogValueError(
                    f"{of_type} sets the attribute {attribute!r}, which lox.loggers.Logger has: give yours another "
                    "name."
                )
        _exit.opened.add(self)

    @says_what_is_config
    def init(
        self,
        /,
        key: Any,
        config: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        notes: str | None = None,
        **values: Any,
    ) -> State:
        """Return the state of a run. Works in `jit` and `vmap`, and starts nothing: the run begins with its first logs.

        A run is a key and a config: the same key with another learning rate is another run, also when both are batch
        elements of one `vmap`. A number is the same run in each dtype that has it as its shortest decimal: `0.1` is
        `jnp.float32(0.1)`. The key and the arrays may be donated later.

        Args:
            key: A PRNG key, or a seed.
            config: Description of the run: numbers, arrays, text, nested mappings of them; functions and classes by
                the names of their modules. Numbers of Python and NumPy keep their 64 bits, also in `jit`.
            name: A name for the run, which alone identifies it. Without it, the run is named by what describes it.
            notes: Text that is stored with the run and does not identify it.
            **values: More of the config. Names of these arguments go into `config`.

        Returns:
            A pytree of arrays that identifies the run, for `tap`, `spool` and `log`.

        Raises:
            LogDataError: The key is not one key; or `config` is not a mapping, or `name` or `notes` not text; or an
                argument is given by its position and by its name; or a value, such as a lambda, has no text that is
                the same in each process. A `TypeError`.
            LogValueError: Two values that describe the run have one name, or `name` is empty; or the logger should
                continue an experiment that is not there. A `ValueError`.
        """
        self._prepare()
        return state_of(key, config, values, name, notes)

    def tap(
        self, fun: Function | None = None, run: State | None = None, *, every_calls: int = 1, **options: Any
    ) -> Any:
        """Make a function write its logs to this logger as they happen, as `lox.tap` does.

        Args:
            fun: The function. Without it, a decorator is returned.
            run: The run, as `init` returns it.
            every_calls: Log only the first call of the returned function and every k-th one after it; the other calls
                run as without the logger. It counts calls from Python, and is an error inside `jit`, `vmap` or `scan`,
                where `interval` takes every k-th event.
            **options: Keywords of `lox.tap`: `argnames`, `tags`, `interval`, `reduce`, `window`, `prefix`, `buffer`,
                `ordered` and `on_error`.

        Returns:
            A function of the same signature and results.

        Raises:
            LogValueError: `every_calls` is not a positive integer, or, with another number than 1, JAX traces the call.
                A `ValueError`.
        """
        run, count = self._checked(run), _transform.positive("every_calls", every_calls) or 1
        return _transform.decorate(fun, lambda f: some_calls(count, self._tapped(f, run, options), f))

    def spool(
        self, fun: Function | None = None, run: State | None = None, *, every_calls: int = 1, **options: Any
    ) -> Any:
        """Make a function write its logs to this logger when it has returned, as `lox.spool` collects them.

        Args:
            fun: The function. Without it, a decorator is returned.
            run: The run, as `init` returns it.
            every_calls: Log only the first call of the returned function and every k-th one after it; the other calls
                run as without the logger. It counts calls from Python, and is an error inside `jit`, `vmap` or `scan`,
                where `interval` takes every k-th event.
            **options: Keywords of `lox.spool`.

        Returns:
            A function of the same signature and results.

        Raises:
            LogValueError: `every_calls` is not a positive integer, or, with another number than 1, JAX traces the call.
                A `ValueError`.
        """
        run, count = self._checked(run), _transform.positive("every_calls", every_calls) or 1

        def spooled(f: Function) -> Function:
            collect = labelled_spool(f, **options)

            @functools.wraps(f, updated=())
            def call(*args: Any, **kwargs: Any) -> Any:
                out, logs = collect(*args, **kwargs)
                self.log(run, logs)
                return out

            def skip(*args: Any, **kwargs: Any) -> Any:
                # A handler further out gets what it would get beside this one.
                return collect(*args, **kwargs)[0] if recording.value else f(*args, **kwargs)

            return some_calls(count, call, skip)

        return _transform.decorate(fun, spooled)

    def log(self, run: State, logs: Mapping[str, Any], /, **steps: Any) -> None:
        """Write logs, in or out of `jit` and `vmap`: the logs of `lox.spool`, or one event.

        The call does not wait for the device, and arrays may be donated or changed after it. Arrays that several
        processes have are written once; where none has all of them, they are sent to the first, for which all must
        call this.

        Args:
            run: The run, as `init` returns it.
            logs: What `lox.spool` returned, whose batch axes are those that the counters or the mask have as
                well; or a mapping from key to array-likes, as `lox.log` takes it, which is one event. Numbers get the
                dtypes that JAX has for them, as in `lox.log`, so 64 bits become 32 unless jax_enable_x64 is set. An
                event gets the prefix and the counters of the `lox.context` around.
            **steps: Counters, such as ``step=i``: scalars, the same for all events of the call. A counter that a key
                of `logs` has already stays.

        Raises:
            LogDataError: The logs are not a mapping, or a key, a leaf or a counter has the wrong type. A `TypeError`.
            LogValueError: Two keys are equal after flattening, or a counter is not a scalar number or has a name that
                `lox.log` refuses as well. A `ValueError`.

        >>> import lox
        >>> logger = lox.loggers.MemoryLogger()
        >>> run = logger.init(7)
        >>> for step in range(3):
        ...     logger.log(run, {"return": 0.5 * step, "norm": {"w": 1.0}}, step=step)
        >>> logger.flush()
        >>> logs = logger[run.name]
        >>> logs["return"].tolist(), logs.steps["step"]["norm/w"].tolist()
        ([0.0, 0.5, 1.0], [0, 1, 2])
        """
        run = self._checked(run)
        if name := steps.keys() & KEYWORDS_OF_LOG:
            raise LogValueError(f"logger.log takes no {min(name)}=, which is of lox.log. Give a counter another name.")
        if isinstance(logs, logdict):
            self._log_collected(run, logs, read_counters("logger.log", steps) if steps else {})
        elif is_outermost():
            event = in_context(Event(*read_values("logger.log", logs, steps), None, (), NOWHERE))
            self._log_now(run, *of_event(event.values, event.steps))
        else:
            event = read_event("logger.log", logs, (), "", None, steps)
            strip(self._tapped(lambda: emit((in_context(event),)), run, {}))()

    def _log_collected(self, state: State, logs: logdict, counters: dict[str, Any]) -> None:
        layout, arrays = of_logs(logs, counters)
        if layout.scalars:
            raise LogDataError(
                f"A lox.logdict holds events along a first axis, and the values of {layout.scalars[0]!r} have none."
            )
        if is_outermost():
            self._log_now(state, layout, arrays)
            return
        distributions = distributions_of(logs)
        with ambient(None):  # Contexts add nothing to logs that exist already.
            logs = with_counters(logs, counters)
            take = functools.partial(self._take_packed, distributions)
            strip(self._tapped(lambda: log(packed(logs)), state, {}, take))()

    def _log_now(self, state: State, layout: Layout, arrays: list[Any]) -> None:
        """Delivers arrays of one layout."""
        first = home(arrays) if here().processes > 1 else None
        if first is not None:
            state = jax.tree.map(whole, state)
            arrays = [*map(whole, arrays)]
            if first != here().process:
                return
        come_from = FROM_HERE if first is None else Arrived(jax.device_count())
        self._deliver(Writing._keep, (state._describe, come_from, layout), layout.held(arrays))

    def flush(self) -> None:
        """Wait until everything logged before is written, and raise errors of the logger's thread.

        Raises:
            Exception: What `write`, or a callback of `lox.tap`, raised first since the last call.
        """
        if _channel.patience.has_ended():
            return
        try:
            _channel.wait(self._worker)
        finally:
            if not _channel.patience.has_ended():
                self._worker.wait(self._sync)
        _channel.flush()

    def close(self) -> None:
        """Write what waits and end all runs. The logger takes no more logs.

        Raises:
            Exception: As `flush`.
        """
        if self._worker.stopped:
            if not _channel.patience.has_ended():
                self._worker.wait()
                _exit.opened.discard(self)
            return
        try:
            self.flush()
        finally:
            self._let_go()
            if not _channel.patience.has_ended():
                self._worker.join()
                _exit.opened.discard(self)
        if not _channel.patience.has_ended():
            _channel.flush()

    def _let_go(self) -> None:
        """Takes no more logs, and does not wait until what waits is written and the runs are closed."""
        self._worker.stop(self._sync, self._finish)

    def __del__(self) -> None:
        # Nobody refers to it but here, so that no more logs come, and none wait. What its runs have open is closed.
        if hasattr(self, "_worker"):
            self._worker.stop(self._sync, self._finish)

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
    def experiment(self) -> str:
        """Name of the experiment, which is begun for that if no run has begun yet.

        Raises:
            LogValueError: It should be continued, and is not there. A `ValueError`.
            OSError: It cannot be begun, in whatever way the service says so.
        """
        self._prepare()
        return self._experiment.begin(self._place)

    @property
    def dropped(self) -> int:
        """Number of deliveries that were dropped because there was no room."""
        return self._worker.dropped

    def __reduce__(self) -> Any:
        raise LogDataError(
            f"{self!r} cannot be copied or pickled: each log would be written twice. Pass the logger itself, or make "
            "another one where it is needed."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _checked(self, state: State | None) -> State:
        if hasattr(self, "_worker") and self._worker.stopped:
            why = (
                ": another logger of this process continues its experiment. Let all threads use one logger."
                if self._has_given_up
                else "."
            )
            raise LogValueError(f"{self!r} was closed, and can be given no more logs{why}")
        here()  # While this thread may ask JAX.
        self._prepare()
        if not isinstance(state, State):
            raise LogDataError(
                f"A logger needs the state of a run, as {type(self).__name__}.init(key) gives it; got "
                f"{type(state).__name__}."
            )
        refuse_several(state._batch)
        if self._inherited is not None:
            _exit.opened.add(self)
            if not state._is_traced:
                self._refuse_run_of_parent(state._describe().identity)
        return state

    def _prepare(self) -> None:
        """Finds the experiment before programs run, where it is continued or is that of several processes."""
        if not hasattr(self, "_worker"):
            raise LogValueError(f"{type(self).__name__}.__init__ must call super().__init__(), which makes its thread.")
        if self._experiment.name is not None:
            return
        if self._shares() or self._experiment.is_resumed:
            self._experiment.owner = repr(self)
        if self._shares():
            agree(self._experiment)
        elif self._experiment.is_resumed and here().process == 0:
            with _continuing:
                if self._experiment.name is not None:  # Another thread has continued it.
                    return
                self._experiment.begin(self._place)
                others = [other for other in _channel.members(_exit.opened) if self._takes_over_from(other)]
            for other in others:
                other._give_up()
            self._continue()

    def _continue(self) -> None:
        """Says what is wrong with the experiment that it continues."""

    def _takes_over_from(self, other: Logger) -> bool:
        """Say whether another logger of this process writes the experiment that this one continues."""
        return other._experiment is not self._experiment and self._experiment.is_that_of(other._experiment)

    def _give_up(self) -> None:
        """Closes it, for another logger that continues its experiment."""
        self._has_given_up = True
        try:
            self.close()
        except Exception as error:  # noqa: BLE001  (it is not that of the other one)
            _channel.keep(error)

    def _kept_by(self, place: Cards) -> None:
        """Has its experiments known in a place."""
        self._place = place
        self._experiment.kept_by(place)

    @property
    def _card(self) -> Card:
        """The card of its experiment, which is begun for that."""
        if self._place is None:
            raise TypeError(f"{self!r} has no place for cards.")
        return self._experiment.card(self._place)

    def _shares(self) -> bool:
        """Say whether other processes may write to the same runs."""
        return self._processes.shares()

    def _check_may_write_for(self, experiment: Experiment) -> None:
        """Checks that it may write an experiment that others write as well, instead of its own.

        Raises:
            LogValueError: It has one of its own. A `ValueError`.
        """
        if not self._experiment.may_be_another:
            raise LogValueError(
                f"{self!r} has an experiment of its own. Give name=, resume= and from_step= to {experiment.owner}."
            )

    def _write_for(self, experiment: Experiment) -> None:
        """Writes an experiment that others write as well, instead of its own."""
        if self._experiment is experiment:
            return
        experiment.takes(self._experiment)
        self._experiment = experiment

    def _tapped(
        self, fun: Function, state: State, options: Mapping[str, Any], take: Callable[[logdict], None] | None = None
    ) -> Function:
        of_run = labels(state)
        if options.get("ordered") is False:
            self._is_ordered = False
        tapped = labelled_tap(fun, take or self._take, of_run, **options)
        if not state._is_traced:
            self._learn(state._number, state._describe)
            return tapped
        static = state.static

        def take_description(logs: logdict) -> None:
            for group, parts in by_group(logs):
                describe = functools.partial(_described, parts, arrived(logs), static)
                self._learn(group, functools.cache(describe))

        about = {"words": state.words, "config": state.config}
        describe = strip(labelled_tap(lambda: log(about), take_description, of_run))

        @functools.wraps(tapped, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            describe()
            return tapped(*args, **kwargs)

        return call

    def _take(self, logs: logdict) -> None:
        self._deliver(Writing._write_all, logs)

    def _take_packed(self, distributions: Mapping[str, Any], logs: logdict) -> None:
        self._deliver(Writing._write_packed, logs, distributions)

    def _deliver(self, act: Callable[..., None], *args: Any) -> None:
        """Has the logger's thread call a function of the logger, after all that was delivered before."""
        if not self._worker.do(functools.partial(self._attempt, act, self, *args)):
            raise LogValueError(f"{self!r} was closed, and gets logs.")


def _described(parts: logdict, come_from: Arrived, static: Static) -> Description:
    """Make the description of a run from the logs that have it."""
    place = (0, int(np.argmax(next(iter(parts.mask.values()), 0)))) if come_from.axis else (0,)
    config = {key.removeprefix("config/"): value[place] for key, value in parts.items() if key.startswith("config/")}
    return Description.made(parts["words"][place], config, static)
