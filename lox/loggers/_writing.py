"""The part of a logger that runs on its thread: it finds the run of logs, and gathers and writes them."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from lox import _channel
from lox._exceptions import LogDataError, LoggerWarning, LogValueError, SpoolWarning
from lox._logdict import logdict
from lox._run_all import each
from lox.loggers import _exit
from lox.loggers._arrived import SEVERAL_OF_ONE, Arrived, arrived, by_group
from lox.loggers._cards import Cards
from lox.loggers._delivery import Data, Held, Layout
from lox.loggers._experiment import Experiment
from lox.loggers._failures import Failures
from lox.loggers._fork import Inherited
from lox.loggers._gathering import alike, joined
from lox.loggers._packing import batch_ndim, counts_of_dropped, happened, items, unlabelled, unpacked
from lox.loggers._processes import Processes
from lox.loggers._run import Run
from lox.loggers._state import Description

Source = tuple[Callable[[], Description], Arrived, Layout]
"""The common part of calls of `log` that are written as one: their run, the origin of their arrays, their layout."""

Delivery = tuple[Source, Data]
"""One call of `log`."""

GATHERED = 4096
"""Largest number of deliveries that are gathered before they are written."""


class Writing:
    """The work of the thread of a logger: it writes the logs of each run apart, as the kind of logger says.

    The methods run on that thread, except `_learn`, `_warn` and `_failed`, which any thread may call.

    Args:
        experiment: The experiment that the runs are of.
        processes: Says whether this process writes.
    """

    gathers: ClassVar[bool] = False
    """True if `write` is given many events at a time: what arrives until nothing waits, or for a tenth of a second."""

    def __init__(self, experiment: Experiment, processes: Processes):
        self._experiment = experiment
        self._processes = processes
        self._place: Cards | None = None
        self._is_ordered = True
        self._failures = Failures()
        self._inherited: Inherited | None = None
        self._runs: dict[str, Run] = {}
        self._names: set[str] = set()
        self._contents: dict[str, str] = {}
        self._groups: dict[int, Callable[[], Description]] = {}
        self._described: dict[tuple[str, str], Callable[[], Description]] = {}
        self._gathered: dict[str, tuple[Run, list[logdict]]] = {}
        self._count = 0
        self._early: list[tuple[int, logdict, Arrived]] = []
        self._kept: list[Delivery] = []
        self._shards: dict[str, int] = {}

    def start(self, run: Run) -> None:
        """Begins a run, before its first logs; one with the same identity may have been there before."""

    def describe(self, run: Run) -> None:
        """Takes what describes a run, when that was said again after its start."""

    def write(self, run: Run, logs: logdict) -> None:
        """Takes logs of a run.

        Args:
            run: The run.
            logs: Arrays of NumPy, at least one event of each key: `run.batch_ndim[key]` axes after the first
                are batch axes. There is a mask only where one of the events did not happen in some batch elements.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it writes logs.")

    def sync(self) -> None:
        """Makes what was written last; called when no more logs wait, ten times a second while they always do, and
        before `flush` returns.
        """

    def finish(self, run: Run) -> None:
        """Ends a run, when the logger is closed."""

    def _learn(self, group: int, describe: Callable[[], Description]) -> None:
        """Learns which run the logs of a group are of. It needs no room, so that it is known before logs arrive."""
        self._groups.setdefault(group, describe)

    def _refuse_run_of_parent(self, identity: str) -> None:
        """Raises an error in a forked process, for a run that its parent has begun."""
        if self._inherited is not None:
            self._inherited.check(self, identity)

    def _forked(self, is_whole: bool) -> None:
        """Begins anew in a forked process, without the runs of its parent.

        Args:
            is_whole: Whether the fork came when nothing waited to be written.
        """
        self._inherited = Inherited.of(self._inherited, self._runs, is_whole)
        self._runs, self._gathered, self._count = {}, {}, 0
        self._early, self._kept = [], []
        self._failures = Failures()
        self._experiment.forked()

    def _run_of(self, description: Description, suffix: str = "") -> Run | None:
        """The run of a description, which is started when it is new; None when that fails, or has failed just now."""
        identity = f"{description.identity}{suffix}"
        if self._failures.waits(identity):
            return None
        self._refuse_run_of_parent(identity)
        run = self._runs.get(identity)
        if run is None:
            name = next(name for each in description.names if (name := f"{each}{suffix}") not in self._names)
            run = Run(description.words, dict(description.config), {}, name, identity, description.notes)
            try:
                self._begin(run)
            except BaseException as error:  # noqa: BLE001  (other runs go on)
                self._keep_error(error)
                self._failures.not_started(self, identity, name, error)
                return None
        elif self._contents.get(run.name, description.content) != description.content:  # Only its name is the same.
            run.config.update(description.config)
            self._attempt_of(run, self.describe, run)
        self._contents[run.name] = description.content
        return run

    def _begin(self, run: Run) -> None:
        """Starts a run."""
        self._experiment.begin(self._place)
        self.start(run)
        self._names.add(run.name)
        self._runs[run.identity] = run
        if self._inherited is not None:
            _exit.opened.add(self)
        _exit.close_first()

    def _write_groups(self, logs: Iterable[tuple[int, logdict]], come_from: Arrived) -> None:
        """Writes the logs of several groups that arrived together.

        Raises:
            LogDataError: Two of them are of one run. A `TypeError`.
        """
        self._write_kept()
        came = [(group, of_group, come_from) for group, of_group in logs]
        identities = [self._description(group).identity for group, *_ in came if group in self._groups]
        if len(set(identities)) < len(identities):
            raise LogDataError(SEVERAL_OF_ONE)
        self._early += came
        self._write_early()

    def _write_early(self) -> None:
        """Writes what arrived before its run was known, as far as that is known now.

        Callbacks that are not ordered may arrive before the description of their run.
        """
        known: list[tuple[int, logdict, Arrived]] = []
        early, self._early = self._early, []
        for came in early:  # Each is looked up once: callbacks of other threads may learn of its run meanwhile.
            (known if came[0] in self._groups else self._early).append(came)
        each(lambda came: self._write_run(self._description(came[0]), *came[1:]), known)

    def _description(self, group: int) -> Description:
        """Return the description of the run of a known group. All groups of one run then share it."""
        found = self._groups[group]()
        self._groups[group] = self._described.setdefault((found.identity, found.content), self._groups[group])
        return found

    def _write_all(self, logs: logdict) -> None:
        self._write_groups(by_group(logs), arrived(logs))

    def _write_packed(self, logs: logdict, distributions: Mapping[str, Any]) -> None:
        come_from = arrived(logs)
        found = ((group, unpacked(event, bool(come_from.axis), distributions)) for group, event in by_group(logs))
        self._write_groups(found, come_from)

    def _keep(self, source: Source, held: Held) -> None:
        """Keeps what a program gave to `log` until it is written."""
        describe, _, layout = source
        describe()  # Here, where it fails for this delivery alone.
        self._kept.append((source, layout.read(held)))
        if not self.gathers:
            self._write_kept()
        elif len(self._kept) + self._count >= GATHERED:
            self._write_kept()
            self._write_gathered()

    def _write_kept(self) -> None:
        """Writes what programs gave to `log`: what is alike of a run as one, whatever came between."""
        kept, self._kept = self._kept, []
        for groups in alike(kept, _source, _keys):
            each(self._write_alike, groups)

    def _write_alike(self, kept: list[Delivery]) -> None:
        (describe, come_from, layout), _ = kept[0]
        self._write_run(describe(), layout.logs([data for _, data in kept]), come_from)

    def _write_run(self, description: Description, logs: logdict, come_from: Arrived) -> None:
        """Writes what happened of logs of a run, if this process writes it.

        Raises:
            LogValueError: Another process should, or another shard logs to the same run. A `ValueError`.
        """
        shard, identity = come_from.shard, description.identity
        if shard is not None and self._shards.setdefault(identity, shard) != shard:
            raise LogValueError(
                f"Two shards of a shard_map log to run {description.name}, by states that were made on each. Give "
                "each shard a key of its own, or make the state outside of the shard_map."
            )
        if self._processes.writes(self, description.name, come_from):
            suffix = self._processes.suffix(come_from)
            run = self._run_of(description, suffix)
            if run is not None:
                self._write_happened(run, logs)
            else:
                lost = sum(map(len, happened(logs)._timelines))
                self._failures.lose(f"{identity}{suffix}", lost)

    def _write_happened(self, run: Run, logs: logdict) -> None:
        """Writes what happened of logs that may hold more."""
        for key, dropped in counts_of_dropped(logs):
            if np.any(dropped):
                self._warn(
                    f"{np.sum(dropped)} events of {key!r} of run {run.name} were dropped before {self!r} got them: "
                    "max_events= or max_iters= of spool is too small.",
                    SpoolWarning,
                )
        logs = happened(logs)
        if not logs._timelines:
            return
        if not self.gathers:
            self._write(run, logs)
            return
        self._gathered.setdefault(run.identity, (run, []))[1].append(logs)
        self._count += 1
        if self._count >= GATHERED:
            self._write_gathered()

    def _write_gathered(self) -> None:
        gathered, self._gathered, self._count = self._gathered.values(), {}, 0
        each(lambda part: self._write_joined(*part), gathered)

    def _write_joined(self, run: Run, parts: list[logdict]) -> None:
        each(functools.partial(self._write, run), joined(parts))

    def _write(self, run: Run, logs: logdict) -> None:
        """Writes events that happened, with the label of their batch axes."""
        run.batch_ndim = batch_ndim(logs)
        logs = unlabelled(logs)
        self._attempt_of(run, self.write, run, logs)
        for key, values in items(logs):  # Of which it may have written some, where it failed.
            run.seen[key] = run.seen.get(key, 0) + len(values)
        if self._is_ordered and (back := run.goes_back(logs)):
            self._is_ordered = False
            self._warn(f"Run {run.name}: {back}")

    def _sync(self) -> None:
        for act in (self._write_kept, self._write_early, self._write_gathered, self.sync):
            self._attempt(act)

    def _finish(self) -> None:
        self._attempt(self._refuse_unknown)
        each(lambda run: self._attempt_of(run, self.finish, run), self._runs.values())
        if self._inherited is None:
            self._attempt(self._experiment.end, self._place)

    def _refuse_unknown(self) -> None:
        """Raises an error for logs whose run was never said."""
        if self._early:
            keys = sorted({key for _, logs, _ in self._early for key in logs})
            raise LogValueError(
                f"{self!r} does not write what arrived of {keys}: the key and config of their run were computed in the "
                "program, and arrived in another process. Make the state outside of jit, where each process knows it."
            )

    def _attempt(self, act: Callable[..., Any], *args: Any) -> None:
        try:
            act(*args)
        except BaseException as error:  # noqa: BLE001  (whatever a sink raises: the next task runs all the same)
            self._failed(error)

    def _attempt_of(self, run: Run, act: Callable[..., Any], *args: Any) -> None:
        try:
            act(*args)
        except BaseException as error:  # noqa: BLE001  (other runs go on)
            self._keep_error(error)
            self._failures.say(self, error, run.name)

    def _warn(self, message: str, category: type[Warning] = LoggerWarning) -> None:
        """Warns; where warnings are errors, the logger goes on all the same."""
        try:
            warnings.warn(message, category, stacklevel=3)
        except category as warning:
            self._keep_error(warning)

    def _failed(self, error: BaseException) -> None:
        self._keep_error(error)
        self._failures.say(self, error)

    def _keep_error(self, error: BaseException) -> None:
        error.add_note(f"The error was raised by {self!r}.")
        _channel.keep(error)


_source = operator.itemgetter(0)


def _keys(delivery: Delivery) -> set[Hashable]:
    """The run and key of each event: their order stays."""
    (describe, _, layout), _ = delivery
    return {(describe().identity, key) for key in layout.keys}
