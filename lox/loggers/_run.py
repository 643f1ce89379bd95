"""One run, as a logger on the host knows it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from lox._host_values import PlainEvents
from lox._logdict import logdict

Key = tuple[int, ...]
"""The words of a PRNG key."""


@dataclasses.dataclass
class Run:
    """One run, as a logger on the host knows it.

    Attributes:
        key: The words of its PRNG key.
        config: What describes it, by name: numbers and arrays as arrays of NumPy, and text.
        seen: How many events of each key were written by this process.
        name: The name by which it is stored.
        identity: 32 hexadecimal digits that are the same for the same key and config, or name, in any program.
            Where each process writes a run of its own, "-process0" and so on follows.
        notes: Text that is stored with it.
        batch_ndim: The number of batch axes of each key that is being written: one for each `vmap` inside the run, and
            those of `where=`. They follow the event axis.
    """

    key: Key
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    seen: dict[str, int] = dataclasses.field(default_factory=dict)
    name: str = ""
    identity: str = ""
    notes: str | None = None
    batch_ndim: dict[str, int] = dataclasses.field(default_factory=dict)

    def steps(self, logs: logdict, key: str, first: int | None = None) -> np.ndarray:
        """The number of each event of a key: its `step` counter, or, when it has none, its place in the run.

        Batch elements inside of the run share it: it is that of the first batch element in which the event
        happened.
        """
        if key in logs.steps.get("step", {}):
            return PlainEvents.of(logs, key).counter("step")
        first = self.seen.get(key, 0) if first is None else first
        return np.arange(first, first + len(logs[key]))
