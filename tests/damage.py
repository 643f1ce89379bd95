"""Runs of several log calls, random damage to one of their files, and what reading them may then give."""

import collections
import contextlib
import dataclasses
import io
import shutil
import warnings
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from runs import saver

import lox
from lox.__main__ import main
from lox.commands.tail import Follower

RUNS = ("a", "b", "c")
"""The names of the runs, of which `b` is damaged."""

ROUNDS = 12


def events():
    """The logs of each log call: a key that two calls share, masks, a shape that changes, a large value."""
    for i in range(ROUNDS):
        mask = np.array([[True, i % 2 == 0, i % 3 == 0]])
        wide = {"return": np.full((1, 3), i, np.float32), "length": np.full((1, 3), 10 * i, np.int32)}
        yield {"loss": np.float32([i])}, None, i
        yield {"loss": np.float32([i + 0.5]), "accuracy": np.float32([0.1 * i])}, None, i
        yield wide, mask if i % 4 else None, np.full(3, i)
        yield {"shape": np.full((1, 2 if i < ROUNDS // 2 else 3), i, np.float32)}, None, i
        yield {"large": np.full((1, 1024), i, np.float32), "done": np.array([i % 2 == 0])}, None, i


def make(path):
    """Save the runs below a directory that does not exist yet."""
    with saver(path) as logger:
        for seed, name in enumerate(RUNS):
            state = logger.init(seed, name=name, rate=0.5)
            for values, mask, step in events():
                steps = {"step": dict.fromkeys(values, np.int32(step)[None])}
                logger.log(state, lox.logdict(values, steps, {} if mask is None else dict.fromkeys(values, mask)))
        logger.flush()


def parts(logs):
    """The arrays of logs, by what they are and their key. A mask is there for each key."""
    found = {("value", key): np.array(values) for key, values in logs.items()}
    for name, counters in logs.steps.items():
        found |= {(f"counter {name}", key): np.array(counter) for key, counter in counters.items()}
    for key, values in logs.items():
        batch = values.shape[: found["counter step", key].ndim] if ("counter step", key) in found else values.shape[:1]
        found["mask", key] = np.array(logs.mask.get(key, np.ones(batch, bool)))
    return found


def equal(mine, theirs):
    return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()


def begins(short, whole):
    return short.dtype == whole.dtype and len(short) <= len(whole) and equal(short, whole[: len(short)])


def alike(mine, theirs):
    """Whether arrays could be told apart by their values alone."""
    return mine.dtype == theirs.dtype and mine.shape[1:] == theirs.shape[1:] and len(mine) <= len(theirs)


# -- damage --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Damage:
    """What was done to which file, and what reading may give then.

    Attributes:
        text: What was done, for people.
        seen: Whether reading can notice it: other data in a whole file cannot be told from data that was logged.
        shorter: Whether it may look like a file whose last events were not written yet.
        manifest: Whether the run has no manifest any more, so that it is no run.
    """

    text: str
    seen: bool = True
    shorter: bool = False
    manifest: bool = False


def arrays(folder):
    return sorted(folder.rglob("*.npy"))


def header_size(file):
    """The number of bytes before the data of a `.npy` file."""
    with file.open("rb") as stream:
        version = npy.read_magic(stream)
        (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
        return stream.tell()


def used_size(file):
    """The number of bytes until the end of the data."""
    return header_size(file) + np.load(file, mmap_mode="r" if file.stat().st_size > 256 else None).nbytes


def pick(folder, rng, manifest=True):
    files = [*arrays(folder), *([folder / "manifest.json"] * 3 if manifest else [])]
    return files[rng.integers(len(files))]


def flip(file, place, rng):
    """Flip one bit of a byte."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << rng.integers(8)
    file.write_bytes(data)


def truncated(folder, rng):
    file = pick(folder, rng)
    size = int(rng.integers(used_size(file) if file.suffix == ".npy" else file.stat().st_size))
    with file.open("r+b") as stream:
        stream.truncate(size)
    return Damage(f"{file.parent.name}/{file.name} truncated to {size} bytes")


def flipped_header(folder, rng):
    file = pick(folder, rng, manifest=False)
    place = int(rng.integers(header_size(file)))
    flip(file, place, rng)
    return Damage(f"a bit of byte {place} of the header of {file.parent.name}/{file.name} flipped", shorter=True)


def flipped_manifest(folder, rng):
    file = folder / "manifest.json"
    place = int(rng.integers(file.stat().st_size))
    flip(file, place, rng)
    return Damage(f"a bit of byte {place} of the manifest flipped: {file.read_bytes()[place - 20 : place + 20]}")


def flipped_data(folder, rng):
    files = [file for file in arrays(folder) if used_size(file) > header_size(file)]
    file = files[rng.integers(len(files))]
    place = int(rng.integers(header_size(file), used_size(file)))
    flip(file, place, rng)
    return Damage(f"a bit of byte {place} of the data of {file.parent.name}/{file.name} flipped", seen=False)


def deleted(folder, rng):
    file = pick(folder, rng)
    file.unlink()
    return Damage(f"{file.parent.name}/{file.name} deleted", manifest=file.suffix == ".json")


def replaced_by_text(folder, rng):
    file = pick(folder, rng)
    text = ["", "{}", "null", "nonsense", "[1, 2", '{"columns": 3}', "\x00\ud800"][rng.integers(7)]
    file.write_bytes(text.encode(errors="surrogatepass"))
    return Damage(f"{file.parent.name}/{file.name} replaced by {text!r}")


def replaced_by_directory(folder, rng):
    file = pick(folder, rng)
    file.unlink()
    file.mkdir()
    if rng.integers(2):
        (file / "file").write_text("x")
    return Damage(f"{file.parent.name}/{file.name} replaced by a directory", manifest=file.suffix == ".json")


def zero_filled(folder, rng):
    file = pick(folder, rng)
    size, header = file.stat().st_size, header_size(file) if file.suffix == ".npy" else 0
    start = [0, header, int(rng.integers(size))][rng.integers(3)]
    with file.open("r+b") as stream:
        stream.seek(start)
        stream.write(bytes(size - start))
    return Damage(
        f"{file.parent.name}/{file.name} has zeros from byte {start} on", seen=start < header or file.suffix != ".npy"
    )


def appended(folder, rng):
    file = pick(folder, rng)
    garbage = rng.bytes(int(rng.integers(1, 5000)))
    with file.open("ab") as stream:
        stream.write(garbage)
    return Damage(f"{len(garbage)} bytes of garbage after the end of {file.parent.name}/{file.name}")


def swapped(folder, rng):
    files = arrays(folder)
    one, other = (files[place] for place in rng.choice(len(files), 2, replace=False))
    mine, theirs = (np.load(file) for file in (one, other))
    seen = mine.dtype != theirs.dtype or mine.shape[1:] != theirs.shape[1:]
    one.rename(folder / "swap")
    other.rename(one)
    (folder / "swap").rename(other)
    return Damage(f"{one.parent.name}/{one.name} and {other.parent.name}/{other.name} swapped", seen=seen)


def malformed_owner(folder, rng):
    texts = ["", "{", "null", "[]", "7", '{"pid": "x"}', '{"pid": -1}', '{"host": 3, "pid": 1e99}', "\x00\x01"]
    text = texts[rng.integers(len(texts))]
    (folder / "owner.json").write_text(text)
    return Damage(f"owner.json is {text!r}")


DAMAGES = (
    truncated,
    flipped_header,
    flipped_manifest,
    flipped_data,
    deleted,
    replaced_by_text,
    replaced_by_directory,
    zero_filled,
    appended,
    swapped,
    malformed_owner,
)


# -- reading -------------------------------------------------------------------------------------------------------


class Damaged:
    """Runs that are damaged again and again.

    Args:
        path: The directory for the runs, which does not exist yet.

    Attributes:
        path: This directory.
    """

    def __init__(self, path):
        self.path = path / "runs"
        make(self.path)
        self._whole = path / "whole"
        shutil.copytree(self.path / "b", self._whole)
        self.expected = parts(lox.load(self._whole))
        assert len(self.expected) == 3 * len(
            {"loss", "accuracy", "return", "length", "shape", "shape#2", "large", "done"}
        )

    def case(self, number):
        """Damage the run in the way of this number; return the damage."""
        shutil.rmtree(self.path / "b")
        shutil.copytree(self._whole, self.path / "b")
        return DAMAGES[number % len(DAMAGES)](self.path / "b", np.random.default_rng(number))

    def load(self, damage):
        """What `lox.load` gives of the run: right, refused, something that cannot be told from logs, or a fault."""
        try:
            found = parts(lox.load(self.path / "b"))
        except lox.StorageError as error:
            return "refused" if str(self.path / "b") in str(error) else f"FAULT: refused without its name: {error}"
        except Exception as error:  # noqa: BLE001  (the fault that is looked for)
            return f"FAULT: {type(error).__name__}: {error}"
        if found.keys() == self.expected.keys():
            if all(equal(found[part], self.expected[part]) for part in found):
                return "right"
            if not damage.seen and all(alike(found[part], self.expected[part]) for part in found):
                return "cannot be seen"
        if damage.shorter and self._begins(found):
            return "shorter"
        return f"FAULT: other logs without an error: {self._differing(found)}"

    def load_prefix(self, damage, refused):
        """What `lox.load(damaged="prefix")` gives of all runs: all, or the beginning of each key of the damaged one."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                runs = {name: parts(logs) for name, logs in lox.load(self.path, damaged="prefix").items()}
            except Exception as error:  # noqa: BLE001  (as above)
                return f"FAULT: {type(error).__name__}: {error}"
        others = [name for name in RUNS if name != "b"]
        if not all(name in runs and self._begins(runs[name], whole=True) for name in others):
            return "FAULT: other runs are not whole"
        if refused and not damage.manifest and not any(str(self.path / "b") in str(each.message) for each in caught):
            return f"FAULT: no warning that names the run, but {[str(each.message) for each in caught]}"
        if "b" not in runs:
            return "no logs" if refused else "FAULT: no logs of a run that can be loaded"
        found = runs["b"]
        if damage.seen and not self._begins(found):
            return f"FAULT: not the beginning of each key: {self._differing(found)}"
        if not damage.seen:
            return "cannot be seen"
        if self._begins(found, whole=True):
            return "whole"
        return "FAULT: not whole" if not refused and not damage.shorter else "beginning"

    def _begins(self, found, whole=False):
        compare = equal if whole else begins
        complete = found.keys() == self.expected.keys() if whole else found.keys() <= self.expected.keys()
        return complete and all(compare(array, self.expected[part]) for part, array in found.items())

    def _differing(self, found):
        return [part for part in found if part not in self.expected or not equal(found[part], self.expected[part])] + [
            ("no", *part) for part in self.expected if part not in found
        ]


def run(*argv):
    """Run a command; return its exit code, what it printed and what it complained of."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        try:
            code = main([str(arg) for arg in argv])
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), error.getvalue()


def commanded(path, refused, out):
    """What is wrong with what the commands say and do about runs of which one is damaged, as a list of texts."""
    found = []
    commands = {"ls": ["ls", path], "show": ["show", path], "csv": ["export", path, "--to", "csv"]}
    commands["plot"] = ["plot", path, "loss", "-o", out] if out else None
    for name, argv in commands.items():
        if argv is None:
            continue
        code, printed, error = run(*argv)
        first = {line.replace(",", "\t").split("\t")[0] for line in printed.splitlines()}
        if name != "plot" and not {"a", "c"} <= first:
            found.append(f"{name}: other runs are not there but {first}: {error}")
        if code != int(refused):
            found.append(f"{name}: ended with {code}")
        if (str(path / "b") in error) != refused:
            found.append(f"{name}: complained {error!r}")
    with contextlib.redirect_stderr(io.StringIO()) as error:
        rows = list(Follower(path).new(1))
    if not {"a", "c"} <= {row[0] for row in rows}:
        found.append(f"tail: other runs are not there but {rows}")
    if (str(path / "b") in error.getvalue()) != refused:
        found.append(f"tail: complained {error.getvalue()!r}")
    return found


def faults_of(path, numbers, plots=0, commands=True):
    """Read after so many damages; return the faults as texts, and how often each damage had which outcome.

    Args:
        path: A directory for runs.
        numbers: The numbers of the damages.
        plots: The number of damages after which a plot is drawn, 0 for none.
        commands: Whether the commands are run too.
    """
    damaged = Damaged(Path(path))
    found, outcomes = [], collections.Counter()
    for number in numbers:
        damage = damaged.case(number)
        name = DAMAGES[number % len(DAMAGES)].__name__
        outcome = damaged.load(damage)
        refused = outcome == "refused"
        said = [("load", outcome), ("prefix", damaged.load_prefix(damage, refused))]
        if commands and not damage.manifest and not outcome.startswith("FAULT"):
            picture = Path(path) / "plot.svg" if plots and number % plots == 0 else None
            said += [("commands", f"FAULT: {text}") for text in commanded(damaged.path, refused, picture)]
        for way, outcome in said:
            outcomes[name, way, outcome.partition(": ")[0]] += 1
            if outcome.startswith("FAULT"):
                found.append(f"{number}: {damage.text}: {way}: {outcome.removeprefix('FAULT: ')}")
    return found, outcomes
