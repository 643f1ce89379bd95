"""Processes that save logs and are killed, and what is right about the logs that they leave."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import lox

TESTS = Path(__file__).parent
RUNS = 3
EVENTS = 4_000
"""Event `i` of process `p` has the number `p * EVENTS + i` in each value and each counter of its log call."""

EMPTY = np.empty(0)
COUNTERS = ("step", "epoch")
CALLS = {
    "alone": ("loss",),
    "pair": ("loss", "accuracy"),
    "lanes": ("return", "length"),
    "two": ("shape",),
    "three": ("shape",),
    "large": ("large", "norm"),
}
"""The keys of each log call. `loss` is in two; `shape` has shape (2,) in one call and (3,) in another."""


def planned(process):
    """The log call and the run of each event of a process."""
    rng = np.random.default_rng(process)
    names = list(CALLS)
    blocks = rng.integers(0, 2, EVENTS // 16)
    for event, (name, run) in enumerate(zip(rng.integers(0, 5, EVENTS), rng.integers(0, RUNS, EVENTS), strict=True)):
        if name >= 3:
            name = 5 if name == 4 else 3 + blocks[event // 16]
        yield names[name], int(run)


def mask_of(number):
    """The batch elements in which an event happened, shape `(3,)`, or None where it has no mask."""
    if number // 16 % 2:
        return None
    return np.array([number % 7 + 1 >> place & 1 for place in range(3)], bool)


def event_of(name, number):
    """The logs of one event."""
    shapes = {"two": (2,), "three": (3,), "large": (1024,), "lanes": (3,)}
    batch = (3,) if name == "lanes" else ()
    values = {key: np.full((1, *shapes.get(name, ())), number, np.float32) for key in CALLS[name]}
    if name == "large":
        values["norm"] = np.float32([number])
    counters = {counter: dict.fromkeys(values, np.full((1, *batch), number, np.int32)) for counter in COUNTERS}
    mask = mask_of(number) if name == "lanes" else None
    if mask is not None:
        values["return"] = np.where(mask, values["return"], -1)
    return lox.logdict(values, counters, {} if mask is None else dict.fromkeys(values, mask[None]))


def work(process, path, acknowledged, way):
    """Log events until somebody kills this process, and write to a file how many of them were flushed.

    Args:
        process: The number of the process, which decides what it logs.
        path: The directory of the experiments.
        acknowledged: The file.
        way: "plain", "durable" for `durable=True`, or "synced" for a `sync` of all disks after each `flush`.
    """
    options = {"resume": "latest", "name": "job"} if process % 2 or not process else {"resume": "job"}
    if way == "durable":
        options["durable"] = True
    logger = lox.loggers.SaveLogger(path, **options)
    states = [logger.init(seed) for seed in range(RUNS)]
    flushes = np.random.default_rng((process, 1)).random(EVENTS) < 0.3
    file = None
    for event, (name, run) in enumerate(planned(process)):
        logger.log(states[run], event_of(name, process * EVENTS + event))
        if flushes[event]:
            logger.flush()
            if way == "synced":
                os.sync()
            if file is None:
                acknowledged.with_suffix(".new").write_bytes(b"%09d" % (event + 1))
                acknowledged.with_suffix(".new").rename(acknowledged)
                file = os.open(acknowledged, os.O_WRONLY)
            os.pwrite(file, b"%09d" % (event + 1), 0)
    signal.pause()


def nursery():
    """Fork a process for each line of the standard input: its number, its way and its directory. Print its id."""
    warnings.simplefilter("ignore")  # Those of JAX, which the children alone use, of the fork.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            process, way, path, acknowledged = line.split()
            try:
                work(int(process), path, Path(acknowledged), way)
            except Exception as error:  # noqa: BLE001  (whatever it is, the test says it)
                Path(f"{acknowledged}.error").write_text(f"{type(error).__name__}: {error}")
                os._exit(1)
        print(child, flush=True)


@contextlib.contextmanager
def writers():
    """Give a function that starts a process, with arguments as those of `work`, and returns its id."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, __file__], env=environment, **pipes) as forks:

        def start(process, path, acknowledged, way="plain"):
            forks.stdin.write(f"{process} {way} {path} {acknowledged}\n")
            forks.stdin.flush()
            return int(forks.stdout.readline())

        yield start


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        while True:
            os.kill(process, 0)
            time.sleep(1e-3)


def wait_for(acknowledged, seconds=30):
    """Wait until a process has acknowledged something, or has failed, for so long at most."""
    end = time.monotonic() + seconds
    while not acknowledged.exists() and failed(acknowledged) is None and time.monotonic() < end:
        time.sleep(1e-3)


def failed(acknowledged):
    """The error of a process that failed, or None."""
    error = Path(f"{acknowledged}.error")
    return error.read_text() if error.exists() else None


class Faults:
    """What went wrong, as sets of places, so that a fault that stays is counted once.

    Attributes:
        lost: Events that `flush` acknowledged and that are not there, of a key.
        skipped: Events that are not there while a later one of their log call and process is.
        doubled: Events that a key has more than once.
        shifted: Events whose values, counters and mask are not those of one event, or that some keys of the log call
            have and others have not.
        disordered: Events of a key that follow a later one.
        unreadable: Files that `np.load` does not read, runs that `lox.load` does not, keys that nothing logged.
        stopped: Errors of `flush`.
    """

    def __init__(self):
        for name in ("lost", "skipped", "doubled", "shifted", "disordered", "unreadable", "stopped"):
            setattr(self, name, set())

    def counts(self):
        return {name: len(found) for name, found in vars(self).items()}


class Checker:
    """Compares what is saved with what the processes logged.

    Args:
        path: The directory of the experiments.
        files: Whether all files and all runs must be whole, and be in one experiment.
        **options: Keywords of `lox.load`.
    """

    def __init__(self, path, files=True, **options):
        self.path = path
        self._files, self._options = files, options
        self.faults = Faults()
        self._processes = 0
        self._logged = {(run, name): np.zeros(0, np.int64) for run in range(RUNS) for name in CALLS}
        self._acknowledged = dict(self._logged)

    def killed(self, acknowledged):
        """Compares after the next process was killed, of which so many events were acknowledged."""
        calls = {where: [] for where in self._logged}
        start = self._processes * EVENTS
        for event, (name, run) in enumerate(planned(self._processes)):
            calls[run, name].append(start + event)
        newest = {where: np.array(numbers, np.int64) for where, numbers in calls.items()}
        for where, numbers in newest.items():
            self._logged[where] = np.append(self._logged[where], numbers)
            flushed = numbers[numbers < start + acknowledged]
            self._acknowledged[where] = np.append(self._acknowledged[where], flushed)
        self._processes += 1
        for file in self.path.rglob("table-*/*.npy") if self._files else ():
            try:
                np.load(file, allow_pickle=False)
            except (OSError, ValueError, EOFError):
                self.faults.unreadable.add(str(file))
        try:
            runs = lox.load(self.path, **self._options) if any(self.path.rglob("manifest.json")) else {}
        except lox.StorageError as error:
            self.faults.unreadable.add(str(error))
            return
        for run in range(RUNS):
            found = [logs for name, logs in runs.items() if f"/seed={run}-" in name]
            if len(found) > 1 and self._files:
                self.faults.unreadable.add(f"seed {run} is in several experiments")
            self._check(run, found, newest)

    def _check(self, run, parts, newest):
        """Compares the logs of a run, those of each experiment, and what the newest process logged."""
        found = [{key: self._numbers(run, logs, key) for key in logs} for logs in parts]
        known = set()
        for name, keys in CALLS.items():
            columns = {}
            for key in keys:
                places = [(part, key) for part, logs in enumerate(parts) if key in logs]
                if key == "shape":
                    size = 2 if name == "two" else 3
                    places = [(part, place) for part, logs in enumerate(parts) for place in ("shape", "shape#2")]
                    places = [
                        (part, place) for part, place in places if parts[part].get(place, EMPTY).shape[1:] == (size,)
                    ]
                known.update(places)
                numbers = np.concatenate([np.zeros(0, np.int64), *(found[part][place] for part, place in places)])
                columns[key] = numbers = numbers[np.isin(numbers, self._logged[run, name])]
                lost = np.setdiff1d(self._acknowledged[run, name], numbers)
                self.faults.lost.update((key, number) for number in lost.tolist())
                there = np.isin(newest[run, name], numbers)
                until = np.flatnonzero(there)[-1] if there.any() else 0
                skipped = newest[run, name][:until][~there[:until]]
                self.faults.skipped.update((key, number) for number in skipped.tolist())
            first, *others = columns.values()
            for other in others:
                self.faults.shifted.update((name, number) for number in np.setxor1d(first, other).tolist())
        self.faults.unreadable.update({(part, key) for part, logs in enumerate(parts) for key in logs} - known)

    def _numbers(self, run, logs, key):
        """The number of each event of a key, by its first value that happened."""
        values = np.asarray(logs[key])
        if not len(values):
            return np.zeros(0, np.int64)
        rows = values.reshape(len(values), -1)
        happened = np.ones(rows.shape, bool)
        masked = key in CALLS["lanes"]
        if masked and key in logs.mask:
            happened = np.asarray(logs.mask[key])
        numbers = rows[np.arange(len(rows)), happened.argmax(axis=1)].astype(np.int64)
        wrong = ((rows != numbers[:, None]) & happened).any(axis=1)
        for counter in COUNTERS:
            counts = np.asarray(logs.steps[counter][key]) if key in logs.steps.get(counter, {}) else np.empty(0)
            wrong |= len(counts) != len(rows) or (counts.reshape(len(rows), -1) != numbers[:, None]).any(axis=1)
        if masked:
            expected = [np.ones(3, bool) if (mask := mask_of(each)) is None else mask for each in numbers.tolist()]
            wrong |= (happened != np.array(expected).reshape(-1, 3)).any(axis=1)
        self.faults.shifted.update((run, key, place) for place in np.flatnonzero(wrong).tolist())
        unique, counts = np.unique(numbers, return_counts=True)
        self.faults.doubled.update((key, number) for number in unique[counts > 1].tolist())
        later = numbers[1:][np.diff(numbers) < 0]
        self.faults.disordered.update((key, number) for number in later.tolist())
        return numbers


if __name__ == "__main__":
    nursery()
