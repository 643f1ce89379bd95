"""One run, as a logger on the host knows it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from lox._host_values import PlainEvents, steps_of_elements
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
        last_step: The largest counter `step` of each key that has one, of each batch element, as far as it is known.
    """

    key: Key
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    seen: dict[str, int] = dataclasses.field(default_factory=dict)
    name: str = ""
    identity: str = ""
    notes: str | None = None
    batch_ndim: dict[str, int] = dataclasses.field(default_factory=dict)
    last_step: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, repr=False)

    def steps(self, logs: logdict, key: str, first: int | None = None) -> np.ndarray:
        """Return the number of each event of a key: its counter `step`, or its place in the run if it has none.

        Batch elements inside the run share it: it is that of the first batch element in which the event happened.

        Args:
            logs: Logs that `write` was given.
            key: A key of these logs.
            first: The number of the first event if there is no counter. By default the number of events so far.

        Returns:
            The numbers, shape `(events,)`.
        """
        if key in logs.steps.get("step", {}):
            return PlainEvents.of(logs, key).counter("step")
        first = self.seen.get(key, 0) if first is None else first
        return np.arange(first, first + len(logs[key]))

    def goes_back(self, logs: logdict) -> str:
        """Count logs that were written, and say if the counter `step` of a key goes back.

        Args:
            logs: Logs that were written.

        Returns:
            The warning; empty if no counter goes back.
        """
        found = ""
        for timeline in logs._timelines:
            if "step" not in timeline.steps:
                continue
            key = next(iter(timeline.values))
            steps = steps_of_elements(timeline.steps["step"], timeline.mask)
            before = self.last_step.get(key)
            if before is not None and before.shape == steps.shape[1:]:
                steps = np.concatenate([before[None], steps])
            if (steps[1:] >= steps[:-1]).all():
                latest = steps
            else:  # Or some did not happen.
                latest = np.fmax.accumulate(steps)
                back = steps[1:] < latest[:-1]
                if back.any():
                    place = np.unravel_index(back.argmax(), back.shape)
                    found = (
                        f"the step of {key!r} goes back from {latest[:-1][place]:g} to {steps[1:][place]:g}. If the "
                        "program was begun again from a checkpoint, give the logger resume= and from_step=. If a loop "
                        "in a loop begins at 0 each time, log a step that goes on."
                    )
            self.last_step |= dict.fromkeys(timeline.values, latest[-1])
        return found
