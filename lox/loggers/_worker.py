"""A thread that does one thing after the other."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable

from lox import _channel

Task = Callable[[], None]


class Worker:
    """Runs tasks on a thread of its own, in the order in which they came.

    Attributes:
        dropped: How many tasks found no room.
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
        self._name, self._room, self._drops, self._idle, self._failed = name, room, drops, idle, failed
        self.forget()
        _channel.waiting.add(self)
        _workers.add(self)

    def forget(self) -> None:
        """Begins anew without a thread, as a forked process must: it has none, and the tasks are its parent's."""
        self._tasks: queue.Queue[Task | None] = queue.Queue(self._room)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def do(self, task: Task) -> None:
        """Does something later. Without room it waits, or drops the task."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        try:
            self._tasks.put(task, block=not self._drops)
        except queue.Full:
            with self._lock:
                self.dropped += 1

    def wait(self) -> None:
        """Returns when all is done that came before."""
        if threading.current_thread() is not self._thread:
            self._tasks.join()

    def stop(self) -> None:
        """Returns when all is done and the thread has ended. Another task starts another one."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            thread.join()

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                if task is None:
                    return
                self._attempt(task)
                if self._tasks.empty():
                    self._attempt(self._idle)
            finally:
                self._tasks.task_done()

    def _attempt(self, task: Task) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  (whatever a sink raises: the next task runs all the same)
            self._failed(error)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _forget() -> None:
    for worker in list(_workers):
        worker.forget()


if hasattr(os, "register_at_fork"):  # Windows does not fork.
    os.register_at_fork(after_in_child=_forget)
