"""A thread that does one thing after the other."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from lox import _channel

Task = Callable[[], object]


class Worker:
    """Runs tasks on a thread of its own, in the order in which they came.

    Attributes:
        dropped: How many tasks found no room.
        stopped: Whether it takes no more tasks.
    """

    def __init__(self, name: str, room: int, drops: bool, idle: Task, failed: Callable[[BaseException], None]):
        """Starts no thread yet.

        Args:
            name: The name of the thread.
            room: How many tasks may wait.
            drops: Whether a task that finds no room is dropped rather than waited for.
            idle: What to run after a task when no other waits.
            failed: What to do with what a task raised.
        """
        self.dropped = 0
        self.stopped = False
        self._name, self._room, self._drops, self._idle, self._failed = name, room, drops, idle, failed
        self.forget()
        _channel.waiting.add(self)

    def forget(self) -> None:
        """Begins anew without a thread, as a forked process must: it has none, and the tasks are its parent's."""
        self._tasks: collections.deque[Task] = collections.deque()
        self._came, self._done = 0, 0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._more, self._fewer = threading.Condition(self._lock), threading.Condition(self._lock)

    def do(self, task: Task) -> bool:
        """Does something later. Without room it waits, or drops the task. Returns False when it has stopped."""
        with self._lock:
            while len(self._tasks) >= self._room and not self.stopped and not self._is_here():
                if self._drops:
                    self.dropped += 1
                    return True
                self._fewer.wait()
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
                self._put(last)
            came = self._came
            while self._done < came:
                self._fewer.wait()

    def stop(self, last: Task) -> None:
        """Takes no more tasks, and returns when all is done, then `idle`, then `last`, and the thread has ended."""
        with self._lock:
            if not self.stopped and self._thread is not None:
                self._put(self._idle)
                self._put(last)
            self.stopped = True
            thread = self._thread
        if thread is not None and not self._is_here():
            thread.join()

    def _is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _put(self, task: Task) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.append(task)
        self._came += 1
        self._more.notify()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            self._attempt(task)
            if not self._tasks and not self.stopped:
                self._attempt(self._idle)
            self._done += 1

    def _next(self) -> Task | None:
        with self._lock:
            self._fewer.notify_all()
            while not self._tasks:
                if self.stopped:
                    return None
                self._more.wait()
            return self._tasks.popleft()

    def _attempt(self, task: Task) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  (whatever a sink raises: the next task runs all the same)
            self._failed(error)
