"""Processes that are killed while they save logs: what `flush` acknowledged is there, once, in order and in whole rows.

`python tests/integration/test_storage_kills.py 200` kills 200 processes and prints what went wrong.
"""

import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from killed import Checker, failed, kill, wait_for, writers

import lox

KILLS = 50


def faults_of(path, kills, longest=0.05):
    """Kill so many processes at random instants; return the number of acknowledged events and what went wrong.

    A fifth of the processes is killed at any time from its start, and the others after their first `flush`.
    """
    rng = np.random.default_rng(0)
    checker, events = Checker(path / "runs"), 0
    (path / "runs").mkdir()
    with writers() as start:
        for process in range(kills):
            acknowledged = path / f"acknowledged-{process}"
            started = start(process, path / "runs", acknowledged)
            if rng.random() < 0.2:
                time.sleep(rng.uniform(0, 0.3))
            else:
                wait_for(acknowledged)
            time.sleep(rng.uniform(0, longest))
            kill(started)
            if (error := failed(acknowledged)) is not None:
                checker.faults.stopped.add(error)
            flushed = int(acknowledged.read_text()) if acknowledged.exists() else 0
            events += flushed
            checker.killed(flushed)
    return events, checker.faults


def test_killed_processes_lose_and_double_nothing_and_leave_whole_rows(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lox.LoggerWarning)
        events, faults = faults_of(tmp_path, KILLS)
    assert events > KILLS  # Some were acknowledged.
    assert faults.counts() == dict.fromkeys(faults.counts(), 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", lox.LoggerWarning)
        count = int(sys.argv[1])
        events, faults = faults_of(Path(folder), count)
        found = ", ".join(f"{number} {name}" for name, number in faults.counts().items())
        print(f"{count} kills, {events} acknowledged events: {found}")
        for name, those in vars(faults).items():
            for each in sorted(map(str, those))[:3]:
                print(f"  {name}: {each}")
