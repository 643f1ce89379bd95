"""A thread that does one thing after the other."""

from __future__ import annotations

import collections
import threading
import time
import weakref
from collections.abc import Callable

from lox import _channel

Task = Callable[[], object]

GATHERS = 0.05
"""Seconds for which the thread lets tasks gather after the first: to wake for each costs more than a small task."""

AT_MOST = 0.1
"""Largest number of seconds until `idle` runs while tasks keep coming."""


class Worker:
    """Runs tasks on a thread of its own, in the order in which they came.

    The thread keeps nothing alive but the tasks that wait, and handles no errors: tasks do not raise.

    Attributes:
        dropped: Number of tasks that found no room.
        stopped: Whether it takes no more tasks.
    """

    _has_given_up = False

    def __init__(self, name: str, room: int, drops: bool, idle: Task):
        """Starts no thread yet.

        Args:
            name: The name of the thread.
            room: Largest number of tasks that may wait.
            drops: Whether a task that finds no room is dropped rather than waited for.
            idle: A method to run after tasks when no other waits, and from time to time while others do. Its object
                is not kept alive.
        """
        self.dropped = 0
        self.stopped = False
        self._name, self._room, self._drops, self._idle = name, room, drops, weakref.WeakMethod(idle)
        self.forget()
        _channel.waiting.add(self)

    def forget(self) -> None:
        """Begins anew without a thread, as a forked process must: it has none, and the tasks are its parent's."""
        self._tasks: collections.deque[Task] = collections.deque()
        self._came, self._done = 0, 0  # How many tasks.
        self._settled = 0  # So many were done when `idle` ran last.
        self._lasts = 0  # So many of those that are not done are no deliveries.
        self._hurried = 0  # So many are to be done at once.
        self._waiting = 0  # So many threads wait until fewer tasks are left.
        self._ran = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # Garbage collection may stop the worker while this thread holds it.
        self._more, self._fewer = threading.Condition(self._lock), threading.Condition(self._lock)

    def do(self, task: Task) -> bool:
        """Does something later. Without room it waits, or drops the task. Returns False when it has stopped."""
        with self._lock:
            if self._is_full():
                if self._drops:
                    self.dropped += 1
                    return True
                self._wait_while(self._is_full)
            if self.stopped:
                return False
            self._put(task)
            return True

    def wait(self, last: Task | None = None) -> None:
        """Returns when all is done that came before, and `last` after that, for which there is always room."""
        with self._lock:
            if self._thread is None or self._is_here():
                return
            if last is not None and not self.stopped:
                self._put_last(last)
            came = self._came
            self._hurry()
            self._wait_while(lambda: self._done < came)

    def stop(self, *last: Task) -> None:
        """Takes no more tasks, and ends the thread when all is done that came before, and then `last`."""
        with self._lock:
            if not self.stopped and self._thread is not None:
                for task in last:
                    self._put_last(task)
            self.stopped = True
            self._hurry()

    def join(self) -> None:
        """Returns when the thread of a worker that was stopped has ended."""
        if self._thread is not None and not self._is_here() and not self._has_given_up:
            with _channel.patience():
                self._thread.join()

    def give_up(self, gathered: bool) -> int:
        """Takes no more tasks, and has nobody wait any longer. Returns how many are not done.

        Args:
            gathered: Whether a task is done only when `idle` has run after it.
        """
        with self._lock:
            if self._has_given_up:
                return 0
            self._has_given_up = self.stopped = True
            self._fewer.notify_all()
            return max(self._came - (self._settled if gathered else self._done) - self._lasts, 0)

    def hold(self, until: float) -> bool:
        """Waits until all is done, and lets nothing in until `release`.

        Args:
            until: When to stop waiting, by `time.monotonic()`. It returns False then.
        """
        if self._is_here() or not self._lock.acquire(timeout=max(until - time.monotonic(), 0)):
            return False
        held = False
        try:
            self._hurry()
            self._wait_while(lambda: self._done < self._came and time.monotonic() < until, until)
            held = self._done == self._came
        finally:
            if not held:
                self._lock.release()
        return held

    def release(self) -> None:
        """Ends `hold`."""
        self._lock.release()

    def _is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _is_full(self) -> bool:
        return len(self._tasks) >= self._room and not self.stopped and not self._is_here()

    def _wait_while(self, holds: Callable[[], bool], until: float | None = None) -> None:
        self._waiting += 1  # Before it looks: the worker's thread, which takes no lock, looks afterwards.
        try:
            with _channel.patience():
                while holds() and not self._has_given_up:
                    self._fewer.wait(None if until is None else max(until - time.monotonic(), 0))
        finally:
            self._waiting -= 1

    def _put(self, task: Task) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.append(task)
        self._came += 1
        if len(self._tasks) == 1:
            self._more.notify()
        if 2 * len(self._tasks) >= self._room:  # Before a program has to wait.
            self._hurry()

    def _put_last(self, task: Task) -> None:
        def last() -> None:
            try:
                task()
            finally:
                self._lasts -= 1

        self._lasts += 1
        self._put(last)

    def _hurry(self) -> None:
        self._hurried = self._came
        self._more.notify()

    def _run(self) -> None:
        while self._gather():
            while self._step():
                pass

    def _gather(self) -> bool:
        """Wait for tasks; returns False when there will be none."""
        with self._lock:
            while not self._tasks:
                if self.stopped:
                    return False
                self._more.wait()
            until = time.monotonic() + GATHERS
            while self._done >= self._hurried and (left := until - time.monotonic()) > 0:
                self._more.wait(left)
        self._ran = time.monotonic()
        return True

    def _step(self) -> bool:
        """Do a task; returns False when no other waited after it. It is not referred to when this returns.

        To take the lock costs more than a small task. Only this thread takes tasks and counts what is done, so that it
        needs none.
        """
        task = self._tasks.popleft()
        self._say_fewer()
        task()
        was_last = not self._tasks
        if was_last or time.monotonic() - self._ran > AT_MOST:
            idle = self._idle()
            if idle is not None and not self.stopped:
                idle()
            self._settled, self._ran = self._done + 1, time.monotonic()
        self._done += 1
        self._say_fewer()
        return not was_last  # What came since gathers anew.

    def _say_fewer(self) -> None:
        if self._waiting:
            with self._lock:
                self._fewer.notify_all()
