"""Sectors of files that reach the disk in any order before a power cut: what was on the disk stays, and runs go on.

The model: a sector of 512 bytes is as it was at the last sync or as it was written since then, each by itself. So is
the size of a file. A file that is new since then may be missing, and a part that is new may have zeros. A file that
another was renamed to is the old one or the new one.
"""

import itertools
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from damage import begins, events, parts

import lox

SECTOR = 512
EVENTS = list(events())
LAST = 10
CASES = 8
FLUSHES = (0, 3, 5, 12, 31, 40)  # A table shares a key first in the same, or in a later one.


def log(logger, some):
    """Log events to one run, and write them."""
    state = logger.init(7, name="run")
    for values, mask, step in some:
        steps = {"step": dict.fromkeys(values, np.int32(step)[None])}
        logger.log(state, lox.logdict(values, steps, {} if mask is None else dict.fromkeys(values, mask)))
    logger.flush()


class Synced:
    """Notes what files had in them when they were synced, by their numbers in the file system.

    Args:
        monkeypatch: That of pytest.
        then: Called before each sync, with the path.
    """

    def __init__(self, monkeypatch, then=lambda path: None):
        self._contents, self._renamed, fsync = {}, {}, os.fsync

        def note(file):
            path = Path(f"/proc/self/fd/{file}").resolve()
            then(path)
            fsync(file)
            if path.is_file():
                self._contents[os.fstat(file).st_ino] = path.read_bytes()
            self._renamed |= {each: each.read_bytes() for each in path.glob("*.json")}

        monkeypatch.setattr(os, "fsync", note)

    def copy(self, source, target):
        """Copy what was synced of a directory over an older copy."""
        for file in source.rglob("*"):
            is_renamed = file.suffix == ".json"
            content = self._renamed.get(file) if is_renamed else self._contents.get(file.stat().st_ino)
            if content is not None and file.name != "owner.json":
                (target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
                (target / file.relative_to(source)).write_bytes(content)


def copy(source, target):
    # The process whose id is in owner.json is gone after a power cut.
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("owner.json"), dirs_exist_ok=True)


def states(path, synced, monkeypatch):
    """The directories of experiments that a running process leaves after so many events, and after all but the last."""
    old, new = path / "old", path / "new"
    old.mkdir()
    with lox.loggers.SaveLogger(path / "live", name="job") as logger:
        for state, some in ((old, EVENTS[:synced]), (new, EVENTS[synced:-LAST])):
            files = Synced(monkeypatch)
            log(logger, some)
            if some:
                copy(path / "live", state)
        files.copy(path / "live", old)
    return old, new


def mixed(old, new, rng):
    """The bytes of a file of which some sectors are old and some new."""
    size = len(old) if rng.random() < 0.3 else len(new)
    found = bytearray(size)
    for start in range(0, size, SECTOR):
        one = (old if rng.random() < 0.5 else new)[start : min(start + SECTOR, size)]
        found[start : start + len(one)] = one
    return bytes(found)


def cut(old, new, disk, rng):
    """Make the directory that is on the disk after a cut between two states of it."""
    for file in sorted(new.rglob("*")):
        place = file.relative_to(new)
        if file.is_dir():
            (disk / place).mkdir(parents=True, exist_ok=True)
        elif not (old / place).exists():
            if rng.random() < 0.7:
                (disk / place).write_bytes(mixed(b"", file.read_bytes(), rng))
        elif file.suffix == ".json":
            shutil.copy((old if rng.random() < 0.5 else new) / place, disk / place)
        else:
            (disk / place).write_bytes(mixed((old / place).read_bytes(), file.read_bytes(), rng))


def saved(path):
    """The arrays of the run, none where it has no logs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = lox.load(path, damaged="prefix")
    return parts(runs["run"]) if "run" in runs else {}


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # What a cut left of a run is said by warnings.
@pytest.mark.parametrize("synced", [0, 5, 35])
def test_what_was_on_the_disk_before_a_power_cut_stays_and_the_run_goes_on(tmp_path, synced, monkeypatch):
    old, new = states(tmp_path, synced, monkeypatch)
    kept = saved(old / "job") if synced else {}
    for case in range(CASES):
        disk = tmp_path / f"disk{case}"
        cut(old, new, disk, np.random.default_rng(case))
        if synced:
            left = saved(disk / "job")
            assert all(part in left and begins(array, left[part]) for part, array in kept.items()), f"case {case}"
        with lox.loggers.SaveLogger(disk, name="job", resume="latest") as logger:
            log(logger, EVENTS[-LAST:])
        left = saved(logger.directory)
        assert all(part in left and begins(array, left[part]) for part, array in kept.items()), f"case {case}"
        for values, _, step in EVENTS[-LAST:]:
            for key in values:
                counters = [left["counter step", name] for name in (key, f"{key}#2") if ("value", name) in left]
                assert any(step in counter for counter in counters), f"case {case}: {key} at {step}"


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")
def test_a_power_cut_while_a_durable_logger_syncs_leaves_what_was_flushed_in_order(tmp_path, monkeypatch):
    rng, moments, flushed = np.random.default_rng(0), [], [{}]
    live = tmp_path / "live"

    def look(path):
        if live.exists() and rng.random() < (1 if path.name == "@@order.npy" else 0.1):
            moment = tmp_path / f"moment{len(moments)}"
            copy(live, moment / "new")
            (moment / "old").mkdir()
            files.copy(live, moment / "old")
            moments.append((moment, flushed[0]))

    files = Synced(monkeypatch, look)
    with lox.loggers.SaveLogger(live, name="job", durable=True) as logger:
        for first, end in itertools.pairwise(FLUSHES):
            log(logger, EVENTS[first:end])
            flushed[0] = saved(live / "job")
    monkeypatch.undo()
    for path, kept in moments:
        for case in range(CASES):
            disk = path / f"disk{case}"
            disk.mkdir()
            cut(path / "old", path / "new", disk, rng)
            left = saved(disk / "job") if any(disk.rglob("manifest.json")) else {}
            loss = left.get(("value", "loss"), np.zeros(0)).tolist()
            assert loss == sorted(loss), f"{path.name}, case {case}"
            assert all(part in left and begins(array, left[part]) for part, array in kept.items()), (
                f"{path.name}, case {case}"
            )
    assert len(moments) > 20
