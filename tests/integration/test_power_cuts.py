"""Power cuts while logs are saved with `durable=True`: what `flush` acknowledged is there, and runs go on.

A file system of its own, ext4 in a file on a loop device, is shut down without its journal being flushed, as at a power
cut: only what was synced is there when it is mounted again. This needs root. Before the cut, files that are chosen at
random are synced, as the kernel may write them back in any order.

`python tests/integration/test_power_cuts.py 50 durable` cuts 50 times and prints what went wrong. In place of durable,
`plain` syncs nothing, and `synced` syncs the whole disk after each flush.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from killed import Checker, failed, kill, wait_for, writers

CUTS = 12
SHUTDOWN, WITHOUT_FLUSHING = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN and its flag NOLOGFLUSH.


class Disk:
    """A disk of which the power can be cut.

    Args:
        path: A directory for the file that is the disk, and for the directory where it is mounted.

    Attributes:
        folder: Where it is mounted.
    """

    def __init__(self, path):
        self._image, self.folder = path / "image", path / "mounted"
        self.folder.mkdir()
        with self._image.open("wb") as file:
            file.truncate(64 * 2**20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True, capture_output=True)
        self.on()

    def on(self):
        command = ["mount", "-t", "ext4", "-o", "loop,commit=1", self._image, self.folder]
        subprocess.run(command, check=True, capture_output=True)

    def cut(self):
        """Lose all that was not synced. What writes on the disk gets errors."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
        finally:
            os.close(folder)

    def off(self):
        subprocess.run(["umount", self.folder], check=True, capture_output=True)


@contextlib.contextmanager
def disk(path):
    """Give a disk, or skip the test where none can be had."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
        pytest.skip("mounting a disk needs root, mkfs.ext4 and mount")
    try:
        made = Disk(path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no disk can be mounted: {error.stderr}")
    try:
        yield made
    finally:
        made.off()


def write_back(folder, rng):
    """Sync some files and directories, which are chosen at random."""
    files = sorted(folder.rglob("*"))
    for place in rng.permutation(len(files))[: rng.integers(4)]:
        with contextlib.suppress(OSError):  # It may be gone.
            file = os.open(files[place], os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def faults_of(path, cuts, way):
    """Cut the power so often; return the numbers of acknowledged events by cut and what went wrong."""
    rng = np.random.default_rng(0)
    events = []
    with disk(path) as made, writers() as start:
        runs = made.folder / "runs"
        runs.mkdir()
        os.sync()
        checker = Checker(runs, files=False, damaged="prefix")
        for process in range(cuts):
            acknowledged = path / f"acknowledged-{process}"
            started = start(process, runs, acknowledged, way)
            early = process % 3 == 0
            if not early:
                wait_for(acknowledged)
            end = time.monotonic() + rng.uniform(0, 0.5)
            while time.monotonic() < end:
                time.sleep(rng.uniform(0, 0.05))
                write_back(runs, rng)
            if (error := failed(acknowledged)) is not None:
                checker.faults.stopped.add(error)
            flushed = int(acknowledged.read_text()) if acknowledged.exists() else 0
            made.cut()
            kill(started)
            made.off()
            made.on()
            events.append(None if early else flushed)
            checker.killed(flushed)
    return events, checker.faults


@pytest.mark.filterwarnings("ignore")  # What the cut left of a run is said by warnings.
def test_what_flush_made_durable_is_there_after_a_power_cut_and_runs_go_on(tmp_path):
    events, faults = faults_of(tmp_path, CUTS, "durable")
    assert not faults.stopped
    assert faults.counts() == dict.fromkeys(faults.counts(), 0)
    assert 0 not in events


@pytest.mark.filterwarnings("ignore")
def test_what_a_power_cut_leaves_can_be_read_and_goes_on_also_where_nothing_was_synced(tmp_path):
    events, faults = faults_of(tmp_path, CUTS, "plain")
    assert not (faults.doubled or faults.disordered or faults.unreadable or faults.stopped)
    assert 0 not in events


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        events, faults = faults_of(Path(folder), int(sys.argv[1]), sys.argv[2])
        found = ", ".join(f"{number} {name}" for name, number in faults.counts().items())
        print(f"{len(events)} cuts, acknowledged events {events}: {found}")
