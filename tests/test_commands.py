"""The commands for saved logs: what they print and write, how they exit, and runs that are damaged or being written."""

import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from PIL import Image
from runs import name_of, saver

import lox
from lox import _storage
from lox.__main__ import main
from lox._text import sparkline
from lox.commands._arguments import output_file
from lox.commands._labels import labels
from lox.commands._series import Series
from lox.commands.plot import over_runs, picture
from lox.commands.tail import Follower
from lox.loggers import SaveLogger
from lox.loggers._identity import identity_of, stored_names

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture
def lox_main(capsys):
    """Runs a command; returns its exit code, the fields of the lines that it printed, and what it complained of."""

    def run(*argv):
        try:
            code = main([str(arg) for arg in argv])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return code, [line.split("\t") for line in printed.out.splitlines()], printed.err

    return run


def save(path, values, config=None, mask=None, **steps):
    values = {key: value if hasattr(value, "dtype") else np.asarray(value) for key, value in values.items()}
    steps = {name: {key: np.asarray(step) for key in values} for name, step in steps.items()}
    lox.save(lox.logdict(values, steps, mask or {}), path, **(config or {}))


@pytest.fixture
def runs(tmp_path):
    """Three runs, of which the last has fewer events."""
    for place, name in enumerate("abc"):
        values = place + np.arange(4.0)[: 2 if name == "c" else 4]
        save(tmp_path / "runs" / name, {"train/loss": values}, {"lr": 0.5}, step=10 * np.arange(len(values)))
    return tmp_path / "runs"


def damage(runs):
    (runs / "b" / "manifest.json").write_text("{")


# -- ls ------------------------------------------------------------------------------------------------------------


def test_ls_lists_runs_keys_and_last_values(lox_main, runs, monkeypatch):
    assert lox_main("ls", runs) == (
        0,
        [
            ["a", "train/loss", "4", "30", "3", "float64[]"],
            ["b", "train/loss", "4", "30", "4", "float64[]"],
            ["c", "train/loss", "2", "10", "3", "float64[]"],
        ],
        "",
    )
    assert lox_main("ls", runs / "a")[1] == [["a", "train/loss", "4", "30", "3", "float64[]"]]
    monkeypatch.chdir(runs / "a")
    assert lox_main("ls", ".")[1] == [["a", "train/loss", "4", "30", "3", "float64[]"]]


ODD = {
    "bfloat16": (jnp.array([1, 0.5], jnp.bfloat16), "0.5", "bfloat16[]"),
    "nan": (jnp.array([1, np.nan]), "nan", "float32[]"),
    "inf": (jnp.array([1, -np.inf]), "-inf", "float32[]"),
    "bool": (jnp.array([False, True]), "True", "bool[]"),
    "complex": (jnp.array([0, 3 + 4j]), "5", "complex64[]"),
    "key": (jax.random.split(jax.random.key(0), 2), "-", "key<threefry2x32>[]"),
    "array": (jnp.array([[1, 1], [2, 4]]), "3", "int32[2]"),
    "zero size": (jnp.zeros((2, 0)), "nan", "float32[0]"),
    "tab\tand\nline \x1b[31m": (jnp.arange(2), "1", "int32[]"),
    "é 日本 $ % [0] %d": (jnp.arange(2), "1", "int32[]"),
    "\udc80": (jnp.arange(2), "1", "int32[]"),
    "": (jnp.arange(2), "1", "int32[]"),
}


@pytest.mark.parametrize("key", ODD)
def test_odd_keys_and_values_are_listed_shown_and_followed(lox_main, tmp_path, key):
    value, last, kind = ODD[key]
    save(tmp_path / "run", {key: value})
    code, ((_, name, events, step, found, found_kind),), _ = lox_main("ls", tmp_path)
    assert (code, events, step, found, found_kind) == (0, "2", "-", last, kind)
    assert name == key if key.isprintable() else key not in name and name.isprintable()
    code, ((*_, shown, not_finite, _),), _ = lox_main("show", tmp_path, key)
    assert (code, shown) == (0, last)
    if key != "key":
        assert not_finite == str(int(key in ("nan", "inf")))
    assert [row[3] for row in Follower(tmp_path).new(1)] == [last]


def test_events_that_did_not_happen_do_not_count(lox_main, tmp_path):
    mask = {"x": np.array([[True, False], [False, True], [False, False]])}
    values = {"x": np.array([[1, np.nan], [np.nan, 3], [np.nan, np.nan]])}
    save(tmp_path / "run", values, mask=mask, step=np.array([[5, 0], [0, 7], [0, 0]]))
    assert lox_main("ls", tmp_path)[1] == [["run", "x", "2", "7", "3", "float64[2]"]]
    assert lox_main("show", tmp_path)[1][0][2:9] == ["2", "2", "1", "1", "3", "3", "0"]
    assert [row[2:] for row in Follower(tmp_path).new()] == [("step 5", "1"), ("step 7", "3")]


def test_runs_without_keys_and_keys_without_events(lox_main, tmp_path):
    save(tmp_path / "nothing", {})
    save(tmp_path / "some", {"x": np.zeros((0, 3)), "masked": np.zeros(1)}, mask={"masked": np.array([False])})
    assert lox_main("ls", tmp_path) == (
        0,
        [
            ["nothing", "-", "0", "-", "-", "-"],
            ["some", "x", "0", "-", "-", "float64[3]"],
            ["some", "masked", "0", "-", "-", "float64[]"],
        ],
        "",
    )
    code, rows, _ = lox_main("show", tmp_path)
    assert code == 0 and [row[2] for row in rows] == ["0", "0"]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A run of ten thousand keys."""
    path = tmp_path_factory.mktemp("many")
    save(path / "run", {f"key{place}": np.float32([place]) for place in range(10_000)})
    return path


@pytest.mark.integration
def test_ten_thousand_keys(lox_main, many):
    code, rows, _ = lox_main("ls", many)
    assert code == 0 and len(rows) == 10_000 and rows[-1] == ["run", "key9999", "1", "-", "9999", "float32[]"]


@pytest.mark.parametrize("command", [["ls"], ["show"], ["plot", "*"], ["export", "--to", "csv"], ["tail"]])
def test_a_path_without_runs_is_an_error(lox_main, tmp_path, command):
    out = ["-o", tmp_path / "plot.png"] if command[0] == "plot" else []
    name, *rest = command
    code, printed, error = lox_main(name, tmp_path / "absent", *rest, *out)
    assert (code, printed) == (1, []) and "is no directory of runs" in error
    if name != "tail":  # It waits for runs.
        code, printed, error = lox_main(name, tmp_path, *rest, *out)
        assert (code, printed) == (1, []) and error == f"lox: {tmp_path} has no run of lox in it\n"


def test_a_damaged_run_is_named_and_the_others_go_on(lox_main, runs, tmp_path):
    damage(runs)
    for command in (["ls", runs], ["show", runs], ["export", runs, "--to", "csv"]):
        code, rows, error = lox_main(*command)
        assert code == 1 and f"{runs / 'b' / 'manifest.json'} is damaged" in error and error.count("\n") == 1
        assert {row[0].partition(",")[0] for row in rows} - {"run"} == {"a", "c"}
    code, _, error = lox_main("plot", runs, "**", "-o", tmp_path / "plot.png")
    assert code == 1 and "is damaged" in error and (tmp_path / "plot.png").exists()
    (runs / "a" / "table-0" / "train%2floss.npy").write_bytes(b"nonsense")
    code, rows, error = lox_main("ls", runs)
    assert code == 1 and "train%2floss.npy is damaged" in error and [row[0] for row in rows] == ["c"]


# -- show ----------------------------------------------------------------------------------------------------------


def test_show_has_statistics_of_what_is_finite_and_a_line(lox_main, tmp_path):
    save(tmp_path / "run", {"x": [1.0, np.nan, 5.0, np.inf, 3.0]})
    assert lox_main("show", tmp_path)[1] == [["run", "x", "5", "3", "1.633", "1", "5", "3", "2", "▁×█×▅"]]


def test_show_takes_names_and_patterns_of_keys(lox_main, tmp_path):
    save(tmp_path / "run", dict.fromkeys(["train/loss", "train/acc", "test/loss", "x[0]"], np.zeros(1)))

    def keys(*patterns):
        code, rows, error = lox_main("show", tmp_path, *patterns)
        return code, [row[1] for row in rows], error

    assert keys("train/*") == (0, ["train/loss", "train/acc"], "")  # In the order in which they were logged.
    assert keys("x[0]", "**/loss", "train/loss") == (0, ["x[0]", "train/loss", "test/loss"], "")
    assert keys("*") == (0, ["x[0]"], "")
    assert keys("x[?]", "test/loss") == (1, ["test/loss"], "lox: no run has the key 'x[?]'\n")
    assert keys("test/loss", "absent") == (1, ["test/loss"], "lox: no run has the key 'absent'\n")


def test_a_key_comes_before_a_pattern_that_is_written_like_it(lox_main, tmp_path):
    save(tmp_path / "run", dict.fromkeys(["a*", "ab"], np.zeros(1)))
    _, rows, _ = lox_main("show", tmp_path, "a*")
    assert [row[1] for row in rows] == ["a*"]


def test_on_a_terminal_tables_are_aligned_under_a_header(runs):
    import pty

    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "lox", "ls", str(runs)]
    with subprocess.Popen(command, stdout=follower, stdin=subprocess.DEVNULL) as process:
        os.close(follower)
        text = b""
        with contextlib.suppress(OSError):  # Its end.
            while part := os.read(leader, 4096):
                text += part
        assert process.wait() == 0
    os.close(leader)
    lines = text.decode().splitlines()
    assert lines[0] == "RUN  KEY         EVENTS  STEP  LAST  TYPE"
    assert lines[1] == "a    train/loss  4       30    3     float64[]"


@pytest.mark.integration
def test_a_reader_that_goes_away_is_no_traceback(many, runs):
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": BUFFERED}
    with (
        subprocess.Popen([sys.executable, "-m", "lox", "ls", str(many)], **pipe) as after_a_line,
        subprocess.Popen([sys.executable, "-m", "lox", "ls", str(runs)], **pipe) as at_once,
    ):
        at_once.stdout.close()
        after_a_line.stdout.readline()
        after_a_line.stdout.close()
        for process in (after_a_line, at_once):
            assert process.stderr.read() == b"" and process.wait() == 141


def test_a_reader_that_is_gone_before_the_first_line_is_no_traceback(runs):
    command = [sys.executable, "-m", "lox", "ls", str(runs)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=BUFFERED) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 141


# -- labels --------------------------------------------------------------------------------------------------------


def made(path, seed=7, *, title=None, suffix="", saved=False, **config):
    """Writes a run as a logger does, to a directory of its own in a path, or one that is only saved; returns it."""
    words = [0, seed]
    identity = identity_of(words, config)
    path = path if saved else path / (next(stored_names(words, config, title, identity)) + suffix)
    save(path, {"x": np.arange(seed)}, config)
    if not saved:
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(manifest | {"key": words, "run": identity + suffix}))
    return path


SAVED = {"saved": True}
LABELS = {
    "configs and seeds": (
        {"A": [{"lr": 0.1, "model/width": 8}, {"lr": 0.2, "model/width": 8}, {"lr": 0.1, "seed": 2}]},
        ["lr=0.1,model.width=8,seed=7", "lr=0.1,seed=2", "lr=0.2,model.width=8,seed=7"],
    ),
    "numbers that read alike": ({"A": [{"lr": 0.10001}, {"lr": 0.10002, "seed": 8}]}, ["seed=7", "seed=8"]),
    "experiments": ({"A": [{"lr": 0.1}], "B": [{"lr": 0.1}]}, ["A", "B"]),
    "seeds in experiments": (
        {"A": [{"seed": 1, "lr": 0.1}], "B": [{"seed": 1, "lr": 0.1}, {"seed": 2, "lr": 0.1}]},
        ["A/seed=1", "B/seed=1", "B/seed=2"],
    ),
    "None and nothing": ({"A": [{"clip": None}, {"clip": 0.5}, {}]}, ["clip=0.5", "clip=None", "seed=7"]),
    "names of users": ({"A": [{"title": "best"}, {"title": "a b"}, {}]}, ["a_b-941678", "best", "seed=7"]),
    "arrays": (
        {"A": [{"lr": 0.1, "x": np.arange(2)}, {"lr": 0.1, "x": np.arange(3)}, {"lr": 0.2}]},
        ["lr=0.1-ef0b06", "lr=0.1-f7b26e", "lr=0.2"],
    ),
    "processes": (
        {"A": [{"suffix": "-process0"}, {"suffix": "-process1"}]},
        ["seed=7-941678-process0", "seed=7-941678-process1"],
    ),
    "directories that are called as labels": (
        {"A": [{"seed": 1, "lr": 0.1}, {"seed": 2, "lr": 0.1}], "A/seed=1": [SAVED], "A/seed=1-c658a6": [SAVED]},
        ["A/lr=0.1,seed=1-c658a6", "A/seed=1", "A/seed=1-c658a6", "seed=2"],
    ),
    "one run": ({"A": [{"lr": 0.1}]}, ["A/lr=0.1,seed=7-bfc975"]),
}


@pytest.mark.parametrize("case", LABELS)
def test_a_label_is_what_tells_a_run_from_the_others(tmp_path, case):
    experiments, expected = LABELS[case]
    for experiment, of_experiment in experiments.items():
        for each in of_experiment:
            made(tmp_path / experiment, **each)
    found = labels(_storage.runs(tmp_path))
    assert found.keys() == lox.load(tmp_path).keys() and sorted(found.values()) == expected


def test_labels_are_for_terminals_and_names_for_programs(lox_main, tmp_path, monkeypatch):
    first, second = (made(tmp_path / "A", seed).relative_to(tmp_path).as_posix() for seed in (1, 2))
    for command in ("ls", "show"):
        assert [row[0] for row in lox_main(command, tmp_path)[1]] == [first, second]
    assert [row[-1] for row in lox_main("ls", tmp_path, "--names")[1]] == [first, second]
    follower = Follower(tmp_path)
    monkeypatch.setattr("lox.commands._labels.on_terminal", lambda: True)
    for command in ("ls", "show"):
        assert [row[0] for row in lox_main(command, tmp_path)[1]] == ["seed=1", "seed=2"]
    assert [(row[0], row[-1]) for row in lox_main("ls", tmp_path, "--names")[1]] == [
        ("seed=1", first),
        ("seed=2", second),
    ]
    assert {row[0] for row in follower.new()} == {"seed=1", "seed=2"}
    made(tmp_path / "B", 3)
    assert {row[0] for row in follower.new()} == {"B/seed=3"}


def test_a_legend_has_labels_of_what_a_logger_wrote(lox_main, tmp_path):
    with lox.loggers.SaveLogger(tmp_path / "runs") as logger:
        for rate in (0.25, 0.5):
            logger.log(logger.init(jax.random.key(7), rate=jnp.float32(rate), width=8), {"x": 1.0})
        logger.log(logger.init(8, name="best", rate=0.5), {"x": 1.0})
    assert lox_main("plot", tmp_path, "x", "--lines", "-o", tmp_path / "plot.svg")[0] == 0
    text = (tmp_path / "plot.svg").read_text()
    assert all(f"<!-- {label} -->" in text for label in ("rate=0.25", "rate=0.5", "best"))


def test_manifests_that_no_logger_wrote_do_not_keep_runs_from_being_listed(lox_main, tmp_path, monkeypatch):
    monkeypatch.setattr("lox.commands._labels.on_terminal", lambda: True)
    file, _ = (made(tmp_path, seed) / "manifest.json" for seed in (1, 2))
    good = json.loads(file.read_text())
    for wrong in (
        {"key": 7},
        {"key": ["a", 1]},
        {"run": 5},
        {"config": {"a": {"b": 1}, "c": [[1], [2, 3]]}},
    ):
        file.write_text(json.dumps(good | wrong))
        code, rows, error = lox_main("ls", tmp_path)
        assert (code, error, len(rows), rows[1][0]) == (0, "", 2, "seed=2")
    file.write_text("{")
    code, rows, error = lox_main("ls", tmp_path)
    assert code == 1 and error.count("is damaged") == 1 and [row[0] for row in rows] == ["seed=2"]


@pytest.fixture
def rich(tmp_path):
    """Two runs of keys of many kinds."""
    mask = np.array([[True, False], [False, False], [True, True], [False, True]])
    lanes = np.array([[[1, 3], [9, 9]], [[9, 9], [9, 9]], [[2, 4], [6, 8]], [[9, 9], [-5, np.nan]]])
    data = {
        "loss": np.float32([4, np.nan, 1, 2.5]),
        "lanes": lanes,
        "count": np.int64([7, 10**9]),
        "z": np.complex64([3 + 4j, 0, 6 + 8j]),
        "q": np.float64([[0, 1, 4], [1, 2, 30]]),
        "h": np.uint32([[0, 5, 5, 0], [9, 0, 0, 1]]),
        "key": jax.random.split(jax.random.key(0), 3),
        "flag": np.array([True, True, False]),
    }
    made_by = {"q": lox.reductions.quantiles([0.1, 0.5, 1]), "h": lox.reductions.histogram([0, 10, 20])}
    steps = {
        "step": {"loss": np.array([0, 10, 30, 20]), "q": np.array([6, 5])},
        "epoch": {"count": np.array([1, 2]), "q": np.array([0, 0])},
    }
    steps["step"]["lanes"] = np.array([[0, 99], [99, 99], [3, 4], [99, 7]])
    logs = lox.logdict(data, steps, {"lanes": mask}, distributions=made_by)
    lox.save(logs, tmp_path / "runs" / "a", lr=0.5)
    lox.save(lox.logdict({"loss": np.float32([8, 16])}, {"step": {"loss": np.array([0, 10])}}), tmp_path / "runs" / "b")
    return tmp_path / "runs"


def test_ls_and_show_have_a_line_for_each_key_of_whatever_kind(lox_main, rich):
    listed = {
        "loss": ["4", "20", "2.5", "float32[]"],
        "lanes": ["3", "7", "nan", "float64[2, 2]"],
        "count": ["2", "-", "1000000000", "int64[]"],
        "z": ["3", "-", "10", "complex64[]"],
        "q": ["2", "5", "2", "float64[3]"],
        "h": ["2", "-", "0", "uint32[4]"],
        "key": ["3", "-", "-", "key<threefry2x32>[]"],
        "flag": ["3", "-", "False", "bool[]"],
    }
    rows = [["a", key, *fields] for key, fields in listed.items()] + [["b", "loss", "2", "10", "16", "float32[]"]]
    assert lox_main("ls", rich) == (0, rows, "")
    names = [[*row, row[0]] for row in rows]
    assert lox_main("ls", rich, "--names") == (0, names, "")

    def statistics(*numbers):
        return [f"{of(numbers):.4g}" for of in (np.mean, np.std, np.min, np.max)]

    shown = {
        "loss": ["4", *statistics(4, 1, 2.5), "2.5", "1", "█×▁▅"],
        "lanes": ["3", *statistics(1, 3, 2, 4, 6, 8, -5), "nan", "1", "▁█×"],
        "count": ["2", *statistics(7, 10**9), "1000000000", "0", "▁█"],
        "z": ["3", *statistics(5, 0, 10), "10", "0", "▅▁█"],
        "q": ["2", *statistics(1, 2), "2", "0", "▁█"],
        "h": ["2", *statistics(10, 0), "0", "0", "█▁"],
        "key": ["3", *["-"] * 6, ""],
        "flag": ["3", *statistics(1, 1, 0), "False", "0", "██▁"],
    }
    for key in ("lanes", "loss", "q"):
        assert shown[key][1] != shown[key][2]
    rows = [["a", key, *fields] for key, fields in shown.items()]
    of_b = ["b", "loss", "2", *statistics(8, 16), "16", "0", "▁█"]
    code, found, error = lox_main("show", rich)
    assert (code, error) == (0, "") and [row for row in found if row[1] != "key"] == [
        row for row in [*rows, of_b] if row[1] != "key"
    ]
    assert [row for row in found if row[1] == "key"] == [["a", "key", "3", *["-"] * 6, ""]]
    assert lox_main("show", rich, "f*", "loss", "*a*") == (0, [rows[7], rows[0], rows[1], of_b], "")


def test_a_plot_has_the_points_of_each_run_in_the_order_of_the_steps(lox_main, rich, capsys):
    long = "a name of a run that is longer than there is room for beside curves"
    of_a, of_b = (lox.load(rich / name) for name in "ab")
    names = {"a": long, "b": "second", "c": "one", "d": "none"}
    nothing = lox.logdict({"loss": np.float32([np.nan, np.inf])}, {"step": {"loss": np.array([0, 1])}})
    one = lox.logdict({"loss": np.float32([np.nan, 7])}, {"step": {"loss": np.array([4, 2])}})
    runs = {"a": of_a, "b": of_b, "c": one, "d": nothing}
    curves = {("loss", "step"): {run: Series.of(logs, "loss") for run, logs in runs.items()}}
    curves["count", "epoch"] = {"a": Series.of(of_a, "count", counters=("step", "epoch"))}
    curves["q", "step"] = {"a": Series.of(of_a, "q")}
    curves["z", "event"] = {"a": Series.of(of_a, "z", 1)}
    curves["half", "step"] = {"a": Series("step", np.array([0.0, 0.5]), np.array([1.0, 2.0]))}
    figure = picture(curves, names, True)
    assert figure.get_size_inches().tolist() == [8, 16]
    loss, count, q, z, half = figure.axes
    assert [(axes.get_title(), axes.get_xlabel()) for axes in figure.axes] == [*curves]
    lines = {line.get_label(): line for line in loss.lines}
    shown = f"{long[:20]}…{long[-19:]}"
    assert [*lines] == [shown, "second", "one", "none"] == [text.get_text() for text in loss.get_legend().get_texts()]
    assert len(shown) == 40
    points = [
        [[0, 4], [10, np.nan], [20, 2.5], [30, 1]],
        [[0, 8], [10, 16]],
        [[2, 7], [4, np.nan]],
        [[0, np.nan], [1, np.nan]],
    ]
    for line, expected in zip(lines.values(), points, strict=True):
        np.testing.assert_array_equal(line.get_xydata(), expected)
    assert [line.get_marker() for line in lines.values()] == ["None", "None", "o", "None"]
    assert count.lines[0].get_xydata().tolist() == [[1, 7], [2, 1e9]] and not count.collections
    assert q.lines[0].get_xydata().tolist() == [[5, 2], [6, 1]]
    (band,) = q.collections
    assert sorted(set(map(tuple, band.get_paths()[0].vertices.tolist()))) == [(5, 1), (5, 30), (6, 0), (6, 4)]
    assert z.lines[0].get_xydata().tolist() == [[1, 0], [2, 10]]
    assert all((axes.get_xticks() % 1 == 0).all() for axes in (loss, count, q, z)) and (half.get_xticks() % 1).any()
    assert capsys.readouterr().err == "lox: 4 values of 'loss' are not finite, and are left out\n"


def test_a_plot_of_bands_has_the_mean_and_the_deviation_of_the_runs_of_a_rate():
    def of(steps, values, band=None):
        return Series("step", np.array(steps), np.array(values, float), None if band is None else np.array(band, float))

    def bands(**of_runs):
        (axes,) = picture({("x", "step"): of_runs}, {run: run for run in of_runs}, False).axes
        lines = [line.get_xydata().tolist() for line in axes.lines]
        areas = [
            sorted(set(map(tuple, path.vertices.tolist()))) for each in axes.collections for path in each.get_paths()
        ]
        legend = axes.get_legend()
        return lines, areas, axes.get_ylabel(), legend and [text.get_text() for text in legend.get_texts()]

    # The deviation is that of the finite values at a step; where there is one, the band has no height.
    a, b, c = of([0, 2, 4], [1, 5, np.nan]), of([2, 0, 4], [1, 3, 8]), of([0, 5, 10, 15], [4, 4, 6, 2])
    of_two = [[(0, 1), (0, 3), (2, 1), (2, 5), (4, 8)]]
    assert bands(a=a, b=b) == ([[[0, 2], [2, 3], [4, 8]]], of_two, "mean ± deviation of 2 runs", None)
    lines, areas, label, legend = bands(a=a, b=b, c=c, d=of([2], [np.inf]), e=of([0], [8]))
    assert lines == [[[0, 4], [2, 3], [4, 8]], [[0, 4], [5, 4], [10, 6], [15, 2]]]
    assert areas[1] == [(0, 4), (5, 4), (10, 6), (15, 2)] and label == "mean ± deviation of 5 runs"
    assert legend == ["every 2 (4 runs)", "every 5 (1 run)"]
    low, high = 4 - np.std([1, 3, 8]), 4 + np.std([1, 3, 8])
    np.testing.assert_allclose(areas[0][:2], [(0, low), (0, high)])
    # Runs of one step are a point and a bar.
    (axes,) = picture({("x", "step"): {"a": of([3], [1]), "b": of([3], [5])}}, {}, False).axes
    (line,), (bar,) = axes.lines, axes.collections
    assert (line.get_xydata().tolist(), line.get_marker()) == ([[3, 3]], "o")
    assert [path.vertices.tolist() for path in bar.get_paths()] == [[[3, 1], [3, 5]]]
    # Distributions of all runs are their mean quantiles; of some, they are numbers.
    q, r = of([0, 1], [2, 4], [[0, 1], [4, 7]]), of([0, 1], [4, 8], [[2, 3], [8, 9]])
    of_quantiles = ([[[0, 3], [1, 6]]], [[(0, 1), (0, 6), (1, 2), (1, 8)]], "mean quantiles of 2 runs", None)
    assert bands(q=q, r=r) == of_quantiles
    assert bands(q=q) == ([[[0, 2], [1, 4]]], [[(0, 0), (0, 4), (1, 1), (1, 7)]], "", ["q"])
    assert bands(q=q, r=of([0, 1], [4, 8]))[1:3] == ([[(0, 2), (0, 4), (1, 4), (1, 8)]], "mean ± deviation of 2 runs")
    mixed = bands(q=q, r=r, a=of([0, 5], [1, 1]))
    assert mixed[2] == "mean quantiles or mean ± deviation of 3 runs" and mixed[3] == [
        "every 1 (2 runs)",
        "every 5 (1 run)",
    ]
    # More rates than there is room for in a legend are one mean.
    many = {f"r{rate}": of([0, rate], [rate, 0]) for rate in range(1, 12)}
    assert len(bands(**dict([*many.items()][:10]))[0]) == 10
    lines, _, _, legend = bands(**many)
    assert lines == [[[0, 6], *([rate, 0] for rate in range(1, 12))]] and legend is None
    irregular = bands(a=of([0, 1, 5], [1, 1, 1]), b=of([0, 2], [3, 3]))
    assert irregular[3] == ["other steps (1 run)", "every 2 (1 run)"]


# -- plot ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [[], ["--lines"]])
def test_plot_draws_keys_of_runs_to_a_file(lox_main, runs, tmp_path, lines):
    save(runs / "d", {"odd $x_{$": jnp.array([1, np.nan], jnp.bfloat16), "train/loss": jnp.array([7.0])})
    code, _, error = lox_main("plot", runs, "train/loss", "odd*", "-o", tmp_path / "plot.png", *lines)
    assert code == 0 and error == "lox: 1 values of 'odd $x_{$' are not finite, and are left out\n"
    with Image.open(tmp_path / "plot.png") as image:
        assert image.format == "PNG" and len(image.convert("L").getcolors()) > 10
    assert lox_main("plot", runs, "train/loss", "-o", tmp_path / "plot.svg", *lines)[0] == 0
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_the_band_is_that_of_the_runs_that_have_a_step():
    series = [
        Series("step", np.array([0, 10, 20]), np.array([1.0, 2.0, np.nan])),
        Series("step", np.array([10, 0, 10]), np.array([4.0, 3.0, np.inf])),
    ]
    steps, mean, deviation = over_runs(series)
    assert steps.tolist() == [0, 10, 20]
    np.testing.assert_array_equal(mean, [2, 3, np.nan])
    np.testing.assert_array_equal(deviation, [1, 1, np.nan])


def test_what_cannot_be_drawn(lox_main, tmp_path):
    values = {"empty": np.zeros(0), "huge": np.array([1e308, -1e308, 1e308])}
    save(tmp_path / "run", {"key": jax.random.split(jax.random.key(0), 2), **values})
    for key, message in [
        ("key", "'key' of run are PRNG keys"),
        ("empty", "nothing to draw"),
        ("x", "has the key 'x'"),
        ("huge", "matplotlib cannot draw these values"),
    ]:
        code, _, error = lox_main("plot", tmp_path, key, "-o", tmp_path / "plot.png")
        assert code == 1 and message in error and not (tmp_path / "plot.png").exists()


def drawn(of_runs, lines=False):
    """The points of the lines of one key, and the heights between which its bands are."""
    series = {run: Series.of(logs, "x") for run, logs in of_runs.items()}
    [axes] = picture({("x", "step"): series}, {run: run for run in of_runs}, lines).axes
    paths = [path.vertices[:, 1] for area in axes.collections for path in area.get_paths()]
    return [line.get_xydata().tolist() for line in axes.lines], [(path.min(), path.max()) for path in paths]


def texts(path):
    """The texts of a plot, as matplotlib writes them into an SVG."""
    return [html.unescape(text) for text in re.findall(r"<!-- (.*?) -->", path.read_text())]


def test_a_plot_is_over_the_only_counter_of_a_key_and_has_axes_for_each_counter_of_its_runs(lox_main, tmp_path):
    counters = {
        "test": ["epoch"],
        "train": ["step"],
        "both": ["step", "epoch"],
        "several": ["epoch", "time"],
        "bare": [],
    }
    steps = {}
    for key, of_key in counters.items():
        for counter in of_key:
            steps.setdefault(counter, {})[key] = np.arange(2)
    lox.save(lox.logdict({key: np.ones(2) for key in counters}, steps), tmp_path / "runs" / "a")
    lox.save(lox.logdict({"test": np.ones(2)}, {"step": {"test": np.arange(2)}}), tmp_path / "runs" / "b")
    drawn_over = {
        "test": ["epoch", "step"],
        "train": ["step"],
        "both": ["step"],
        "several": ["event"],
        "bare": ["event"],
    }
    for key, expected in drawn_over.items():
        assert lox_main("plot", tmp_path / "runs", key, "-o", tmp_path / "plot.svg") == (0, [], "")
        found = texts(tmp_path / "plot.svg")
        assert [text for text in found if text in ("epoch", "step", "event", "time")] == expected
        assert found.count(key) == len(expected)


def of_steps(*steps):
    return lox.logdict({"x": np.array(steps) * 1.0}, {"step": {"x": np.array(steps)}})


def test_runs_of_another_rate_have_a_mean_of_their_own():
    each, tenth = of_steps(*range(21)), of_steps(0, 10, 20)
    assert [len(line) for line in drawn({"a": each, "b": tenth, "c": each, "d": tenth})[0]] == [21, 3]
    # Irregular ones are of one mean, and so are runs that differ in length only or have begun just now.
    assert [len(line) for line in drawn({"a": of_steps(0, 3, 4), "b": of_steps(1, 2, 9)})[0]] == [6]
    assert [len(line) for line in drawn({"a": each, "b": of_steps(0, 1), "c": of_steps(0)})[0]] == [21]
    series = {run: Series.of(logs, "x") for run, logs in {"a": each, "b": tenth, "c": tenth}.items()}
    (axes,) = picture({("x", "step"): series}, {}, False).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["every 1 (1 run)", "every 10 (2 runs)"]


def test_a_plot_of_many_lines_names_a_few_runs_beside_a_scale_of_colours():
    series = {f"run {number}": Series.of(of_steps(0, number), "x") for number in range(40)}
    names = {run: run + "x" * 80 if run == "run 0" else run for run in series}
    axes, scale = picture({("x", "step"): series}, names, True).axes
    colors = [line.get_color() for line in axes.lines]
    assert axes.get_legend() is None and len({tuple(color) for color in colors}) == 40
    named = [text.get_text() for text in scale.get_yticklabels()]
    assert named[-1] == "run 39" and len(named) == 8 and all(len(name) <= 40 for name in named)
    few = dict(list(series.items())[:10])
    (axes,) = picture({("x", "step"): few}, names, True).axes
    assert len(axes.get_legend().get_texts()) == 10


def quantiles(*values, qs=(0.1, 0.5, 1), batch=()):
    made_by = {"x": lox.reductions.quantiles(qs)}
    return lox.logdict({"x": np.array(values)}, {"step": {"x": 10 * np.arange(len(values))}}, distributions=made_by)


@pytest.mark.integration
def test_distributions_are_bands_around_the_median():
    a, b = quantiles([0, 1, 4], [1, 2, 3]), quantiles([2, 3, 8], [3, 4, 5])
    assert drawn({"a": a}) == ([[[0, 1], [10, 2]]], [(0, 4)])
    assert drawn({"a": a, "b": b}, lines=True) == ([[[0, 1], [10, 2]], [[0, 3], [10, 4]]], [(0, 4), (2, 8)])
    assert drawn({"a": a, "b": b}) == ([[[0, 2], [10, 3]]], [(1, 6)])
    assert drawn({"a": quantiles([3, 4], qs=[1, 0.6])}) == ([[[0, 4]]], [(3, 4)])
    assert drawn({"a": quantiles([5, 9, 1], qs=[0.5, 0.9, 0.1])}) == ([[[0, 5]]], [(1, 9)])
    of_elements = lox.logdict({"x": np.array([[[0, 1, 4], [2, 3, 8]]])}, distributions=a.distributions)
    assert drawn({"a": of_elements}) == ([[[0, 2]]], [(1, 6)])

    # Those of a histogram are estimated.
    made_by = {"x": lox.reductions.histogram([0, 10, 20])}
    logs = lox.logdict({"x": np.uint32([[0, 5, 5, 0], [9, 0, 0, 1], [0, 0, 0, 0]])}, distributions=made_by)
    lines, areas = drawn({"a": logs})
    np.testing.assert_allclose(lines, [[[0, 10], [1, 0], [2, np.nan]]])
    np.testing.assert_allclose(areas, [(0, 18)])


@pytest.mark.integration
def test_distributions_are_listed_shown_and_drawn_by_their_median(lox_main, tmp_path):
    lox.save(quantiles([0, 1, 4], [1, 2, 30]), tmp_path / "run")
    assert lox_main("ls", tmp_path)[1][0][1:5] == ["x", "2", "10", "2"]
    assert lox_main("show", tmp_path)[1][0][3:8] == ["1.5", "0.5", "1", "2", "2"]
    assert lox_main("plot", tmp_path, "x", "-o", tmp_path / "plot.png")[0] == 0


# -- export --------------------------------------------------------------------------------------------------------


def test_export_prints_a_table_of_all_runs(lox_main, runs):
    code, rows, _ = lox_main("export", runs, "--to", "csv")
    assert code == 0 and rows[:2] == [["run,key,event,step,value"], ["a,train/loss,0,0,0.0"]] and len(rows) == 11
    code, rows, _ = lox_main("export", runs, "--to", "csv", "--wide")
    assert code == 0 and rows[0] == ["run,step,train/loss"] and rows[-1] == ["c,10,3.0"]


def test_integers_of_every_dtype_are_listed_and_shown_with_all_digits(lox_main, tmp_path):
    for dtype in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"):
        last = np.iinfo(dtype).max
        numbers = np.array([last - 1, last], dtype)
        save(tmp_path / dtype / "a", {"loss": np.array([3.0, 2.0]), "n": numbers}, step=numbers)
        code, rows, error = lox_main("ls", tmp_path / dtype)
        assert (code, error) == (0, "")
        assert [row[:5] for row in rows] == [["a", "loss", "2", str(last), "2"], ["a", "n", "2", str(last), str(last)]]


@pytest.mark.parametrize("to", ["csv", pytest.param("parquet", marks=pytest.mark.integration)])
def test_export_writes_a_table_of_all_runs_to_a_file(lox_main, runs, tmp_path, to):
    assert lox_main("export", runs, "--to", to, "-o", tmp_path / "file", "--wide") == (0, [], "")
    table = {"csv": pandas.read_csv, "parquet": pandas.read_parquet}[to](tmp_path / "file")
    assert table["run"].tolist() == list("aaaabbbbcc") and table["train/loss"].tolist()[-3:] == [4, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runs"]


@pytest.mark.integration
def test_export_writes_through_links_and_into_pipes(lox_main, runs, tmp_path):
    target, link, pipe = tmp_path / "file.csv", tmp_path / "link.csv", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        for out in (link, pipe):
            assert lox_main("export", runs, "--to", "csv", "-o", out) == (0, [], "")
        from_pipe = reader.communicate(timeout=60)[0]
    assert link.is_symlink() and pipe.is_fifo()
    assert from_pipe == target.read_text() and from_pipe.startswith("run,key,event,step,value")


def test_export_to_tensorboard_is_what_its_reader_reads(lox_main, runs, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with saver(runs) as logger:
        logger.log(logger.init(7, rate=0.5), lox.logdict({"x": np.arange(2.0)}))
        logger.log(logger.init(8, notes="with the new data"), {"x": 1.0})
    assert lox_main("export", runs, "--to", "tensorboard", "-o", tmp_path / "tb") == (0, [], "")
    assert any(b"with the new data" in file.read_bytes() for file in (tmp_path / "tb").rglob("*tfevents*"))
    for name, key, values in [("b", "train/loss", [1, 2, 3, 4]), (name_of(7, rate=0.5), "x", [0, 1])]:
        events = EventAccumulator(str(tmp_path / "tb" / runs.name / name))
        events.Reload()
        assert [event.value for event in events.Scalars(key)] == values
        (config,) = events.Tensors("config/text_summary")
        assert b"0.5" in config.tensor_proto.string_val[0]
    assert lox_main("export", runs, "--to", "tensorboard", "-o", tmp_path / "tb")[0] == 0
    once, again = (
        sorted(path.name for path in (tmp_path / "tb" / f"{runs.name}{end}").iterdir()) for end in ("", "-2")
    )
    assert once == again


def test_exports_of_the_directory_that_one_is_in_are_those_of_its_name(lox_main, runs, tmp_path, monkeypatch):
    (runs / "deep").mkdir()
    for number, (place, path) in enumerate(
        [(tmp_path, "runs"), (runs, "."), (runs / "deep", ".."), (runs, "./deep/..")]
    ):
        monkeypatch.chdir(place)
        out = tmp_path / str(number)
        assert lox_main("export", path, "--to", "tensorboard", "-o", out) == (0, [], "")
        assert [each.name for each in out.iterdir()] == ["runs"]
        assert sorted(each.name for each in (out / "runs").iterdir() if each.is_dir()) == ["a", "b", "c"]
        assert lox_main("export", path, "--to", "csv", "--wide", "-o", f"{out}.csv") == (0, [], "")
        table = pandas.read_csv(f"{out}.csv")
        assert list(table) == ["run", "step", "train/loss"] and table["run"].tolist() == list("aaaabbbbcc")
    for to in ("csv", "parquet"):
        code, _, error = lox_main("export", runs / "deep", "--to", to, "--wide", "-o", tmp_path / "none")
        assert code == 1 and "--wide" not in error
    code, _, error = lox_main("export", ".", "--to", "tensorboard", "--wide", "-o", tmp_path / "other")
    assert code == 2 and "--wide" in error and not (tmp_path / "other").exists()


@pytest.mark.integration
def test_export_to_wandb_has_a_run_for_each(lox_main, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    (runs / "c").rename(runs / "b" / "c")
    code, _, _ = lox_main("export", runs, "--to", "wandb", "--offline", "--project", "p", "-o", tmp_path / "wandb")
    assert code == 0
    files = list((tmp_path / "wandb").glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 3
    assert sorted(path.stem for path in tmp_path.glob("wandb/wandb/lox/p/*.json")) == ["b", runs.name]
    deadline = time.monotonic() + 30  # The process of W&B writes the end of a file after `finish` has returned.
    while not all(b"train/loss" in file.read_bytes() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.integration
@pytest.mark.parametrize("to", ["csv", "parquet", "tensorboard"])
def test_complex_keys_are_left_out_and_named(lox_main, tmp_path, to):
    save(tmp_path / "runs" / "a", {"z": jnp.array([1j]), "x": jnp.array([1.0])})
    code, _, error = lox_main("export", tmp_path / "runs", "--to", to, "-o", tmp_path / "out")
    assert code == 1 and error == "lox: 'z' of a is complex, and is left out\n" and (tmp_path / "out").exists()


@pytest.mark.integration
def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(lox_main, runs, tmp_path):
    code, _, error = lox_main("export", runs, "--to", "csv", "-o", tmp_path / "absent" / "file.csv")
    assert code == 1 and "absent" in error and "Traceback" not in error
    code, _, error = lox_main("export", runs, "--to", "csv", "-o", runs)
    assert code == 1 and error and [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_an_exported_table_has_all_events_of_all_runs_that_a_table_can_have(lox_main, rich, tmp_path):
    out, link = tmp_path / "there.csv", tmp_path / "link.csv"
    out.write_text("old")
    link.symlink_to(out)
    lox.save(lox.logdict(), rich / "empty")
    lox.save(lox.logdict({"x": np.ones((1, 1))}, {"axis_0": {"x": np.ones(1)}}), rich / "refused")
    complains = "lox: 'z' of a is complex, and is left out\nlox: refused: The table would have two columns 'axis_0'. "
    code, printed, error = lox_main("export", rich, "--to", "csv", "-o", link)
    assert (code, printed) == (1, []) and error.startswith(complains) and error.count("\n") == 2
    assert link.is_symlink() and sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "runs", "there.csv"]
    table = pandas.read_csv(out, dtype={"value": float})
    assert [*table.columns] == ["run", "key", "event", "step", "axis_0", "axis_1", "epoch", "value"]
    a, b = lox.load(rich / "a"), lox.load(rich / "b")
    expected = []
    for run, logs in (("a", a), ("b", b)):
        for key in logs:
            values = np.asarray(logs[key])
            happened = logs.mask[key] if key in logs.mask else np.ones(len(values), bool)
            for place in np.ndindex(values.shape):
                if key != "z" and happened[place[: happened.ndim]]:
                    axes = {f"axis_{axis}": at for axis, at in enumerate(place[1:])}
                    counters = {}
                    for name, of in logs.steps.items():
                        if key in of:
                            step = np.asarray(of[key])
                            counters[name] = step[place[: step.ndim]]
                    row = {"run": run, "key": key, "event": place[0], **axes, **counters, "value": float(values[place])}
                    expected.append(row)
    found = [{name: value for name, value in row.items() if value == value} for row in table.to_dict("records")]
    assert found == [{name: value for name, value in row.items() if value == value} for row in expected]
    code, printed, error = lox_main("export", rich / "b", "--to", "csv", "--wide")
    assert (code, error) == (0, "") and printed == [["run,step,loss"], ["b,0,8.0"], ["b,10,16.0"]]
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert lox_main("export", rich / "b", "--to", "csv", "--wide", "-o", pipe) == (0, [], "")
    reader.join(10)
    assert read == ["run,step,loss\nb,0,8.0\nb,10,16.0\n"] and pipe.is_fifo()
    code, printed, error = lox_main("export", rich / "refused", "--to", "csv")
    assert (code, printed) == (1, []) and error.endswith("lox: there is nothing to export\n")


def test_exports_to_services_have_an_experiment_for_each_directory_of_runs(lox_main, tmp_path):
    runs = tmp_path / "all runs"
    for experiment in ("one", "two/deep"):
        with SaveLogger(runs / experiment, name="e") as logger:
            for seed in (7, 8):
                run = logger.init(seed, rate=0.5, notes=f"try {seed}" if seed == 7 else None)
                logger.log(run, {"x": seed}, step=1)
                logger.log(run, {"x": seed + 1}, step=4)
    save(runs / "alone", {"y": [1.0, 2.0]}, {"lr": [1, "a"]}, mask={"y": np.array([True, False])})
    save(runs / "z", {"z": np.array([1j]), "y": np.array([3.0])})
    code, printed, error = lox_main("export", runs, "--to", "tensorboard", "-o", tmp_path / "new" / "tb")
    assert (code, printed, error) == (1, [], "lox: 'z' of z is complex, and is left out\n")
    names = [name_of(seed, rate=0.5) for seed in (7, 8)]
    files = (tmp_path / "new" / "tb").rglob("*tfevents*")
    found = {path.parent.relative_to(tmp_path / "new" / "tb").as_posix() for path in files}
    assert found == {"all-runs/alone", "all-runs/z", *(f"{e}/{n}" for e in ("one-e", "two-deep-e") for n in names)}


# -- tail ----------------------------------------------------------------------------------------------------------


def test_follow_what_comes_of_known_and_new_runs_and_keys(tmp_path):
    with saver(tmp_path) as logger:

        def log(seed, values, step):
            steps = {"step": {key: np.array([step]) for key in values}}
            logger.log(logger.init(seed), lox.logdict({key: np.array([v]) for key, v in values.items()}, steps))
            logger.flush()

        for step in range(3):
            log(7, {"x": step / 2}, step)
        follower = Follower(tmp_path)
        run, other = name_of(7), name_of(8)
        assert list(follower.new(2)) == [(run, "x", "step 1", "0.5"), (run, "x", "step 2", "1")]
        assert list(follower.new()) == []
        log(7, {"y": 5, "x": 6.0}, 3)
        log(7, {"y": 7}, 4)
        log(7, {"x": 8.0}, 5)
        log(8, {"z": 0}, 0)
        assert list(follower.new()) == [
            (run, "x", "step 3", "6"),
            (run, "y", "step 3", "5"),
            (run, "y", "step 4", "7"),
            (run, "x", "step 5", "8"),
            (other, "z", "step 0", "0"),
        ]


def test_events_without_steps_are_numbered_from_where_they_were(tmp_path):
    with saver(tmp_path) as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.arange(3.0)}))
        logger.flush()
        follower = Follower(tmp_path)
        assert [row[2] for row in follower.new(1)] == ["event 2"]
        logger.log(logger.init(7), lox.logdict({"x": np.arange(2.0)}))
        logger.flush()
        assert [row[2] for row in follower.new()] == ["event 3", "event 4"]


def test_events_of_a_key_at_one_step_are_followed_in_their_order(tmp_path):
    save(tmp_path / "a", {"x": [10, 9, 8]}, step=[0, 1, 1])
    assert [row[3] for row in Follower(tmp_path).new()] == ["10", "9", "8"]


def test_follow_past_a_damaged_run_and_one_that_is_made_anew(tmp_path, capsys):
    save(tmp_path / "a", {"x": [1, 2]})
    save(tmp_path / "b", {"x": [3]})
    whole = (tmp_path / "a" / "manifest.json").read_text()
    follower = Follower(tmp_path)
    (tmp_path / "a" / "manifest.json").write_text("{")
    assert [row[3] for row in follower.new()] == ["3"]
    assert list(follower.new()) == []
    assert capsys.readouterr().err.count("is damaged") == 1
    (tmp_path / "a" / "manifest.json").write_text(whole)
    assert [row[3] for row in follower.new()] == ["1", "2"]
    shutil.rmtree(tmp_path / "a")
    save(tmp_path / "a", {"x": [9]})
    assert [row[3] for row in follower.new()] == ["9"]


WRITER = """
import sys
import numpy as np
import lox
logger = lox.loggers.SaveLogger(sys.argv[1], name="first")
for i, line in enumerate(sys.stdin):
    logger.log(logger.init(int(line)), lox.logdict({"x": np.array([i])}, {"step": {"x": np.array([10 * i])}}))
    logger.flush()
"""


@pytest.mark.integration
def test_tail_prints_what_another_process_writes_until_it_is_interrupted(tmp_path):
    pipe = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": BUFFERED,
    }
    tail = [sys.executable, "-m", "lox", "tail", str(tmp_path), "--interval", "0.05"]
    with (
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], **pipe) as writer,
        subprocess.Popen(tail, **pipe) as reader,
    ):
        for place, seed in enumerate((7, 7, 8)):
            print(seed, file=writer.stdin, flush=True)
            assert reader.stdout.readline() == f"first/{name_of(seed)}\tx\tstep {10 * place}\t{place}\n"
        reader.send_signal(signal.SIGINT)
        out, error = reader.communicate(timeout=60)
        assert (reader.returncode, out, error) == (130, "", "")
        writer.stdin.close()


def test_without_a_standard_output_commands_say_so(tmp_path):
    save(tmp_path / "run", {"x": np.arange(3)})
    command = [sys.executable, "-m", "lox", "show", str(tmp_path)]
    done = subprocess.run(["bash", "-c", '"$@" >&-', "_", *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "lox: the standard output is closed\n")


def test_tail_looks_as_often_and_begins_with_as_many_events_as_it_is_told(lox_main, tmp_path, monkeypatch):
    """Events are by step, those without one come last, and columns grow with what they hold on a terminal."""
    values = {"loss": np.array([3.0, 2.0, 1.0]), "n": np.array([5, 6]), "late": np.array([0.5])}
    steps = {"step": {"loss": np.array([0, 10, 200]), "late": np.array([100])}, "epoch": {"n": np.arange(2)}}
    lox.save(lox.logdict(values | {"key": jax.random.split(jax.random.key(0), 1)}, steps), tmp_path / "runs" / "a")
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        save(tmp_path / "runs" / "second", {"loss": [1.5, 2.5]}, step=[7, 3])

    monkeypatch.setattr(time, "sleep", sleep)
    first = [
        ["a", "loss", "step 10", "2"],
        ["a", "late", "step 100", "0.5"],
        ["a", "loss", "step 200", "1"],
        ["a", "n", "event 0", "5"],
        ["a", "key", "event 0", "-"],
        ["a", "n", "event 1", "6"],
    ]
    second = [["second", "loss", "step 3", "2.5"], ["second", "loss", "step 7", "1.5"]]
    assert lox_main("tail", tmp_path / "runs", "-n", "2", "--interval", "0.25") == (130, first + second, "")
    assert waits == [0.25, 0.25]
    shutil.rmtree(tmp_path / "runs" / "second")
    waits.clear()
    latest = [row for row in first if row[2] not in ("step 10", "event 0")]
    latest.insert(2, ["a", "key", "event 0", "-"])
    assert lox_main("tail", tmp_path / "runs") == (130, latest + second, "")
    assert waits == [1.0, 1.0]
    shutil.rmtree(tmp_path / "runs" / "second")
    waits.clear()
    monkeypatch.setattr("lox.commands._output.on_terminal", lambda: True)
    assert lox_main("tail", tmp_path / "runs", "--events", "1") == (
        130,
        [
            ["a  late  step 100  0.5"],
            ["a  loss  step 200  1"],
            ["a  key   event 0   -"],
            ["a  n     event 1   6"],
            ["second  loss  step 3    2.5"],
            ["second  loss  step 7    1.5"],
        ],
        "",
    )


# -- use -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plot", ".", "x", "-o", "plot.gif"], "must end in .png or .svg, got 'plot.gif'"),
        (["plot", ".", "x"], "required: -o"),
        (["plot", ".", "-o", "plot.png"], "required: KEY"),
        (["tail", ".", "--interval", "0"], "must be a number of more than 0"),
        (["tail", ".", "-n", "0"], "must be a whole number of at least 1"),
        (["export", "."], "required: --to"),
        (["export", ".", "--to", "xml"], "invalid choice: 'xml'"),
        (["export", ".", "--to", "parquet"], "--to parquet needs -o OUT"),
        (["export", ".", "--to", "tensorboard"], "--to tensorboard needs -o OUT"),
        (["export", ".", "--to", "csv", "--offline"], "--offline and --project are for --to wandb"),
        (["export", ".", "--to", "csv", "--project", "p"], "--offline and --project are for --to wandb"),
        (["export", ".", "--to", "wandb", "--wide"], "--wide is for tables"),
    ],
)
def test_wrong_use_is_said_before_anything_is_done(lox_main, argv, message):
    code, printed, error = lox_main(*argv)
    assert (code, printed) == (2, []) and message in error


@pytest.mark.parametrize(
    ("argv", "module", "extra"),
    [
        (["plot", "*", "-o", "plot.png"], "matplotlib.figure", "plot"),
        (["export", "--to", "csv"], "pandas", "pandas"),
        (["export", "--to", "parquet", "-o", "x"], "pyarrow", "parquet"),
        (["export", "--to", "tensorboard", "-o", "x"], "tensorboardX", "tensorboard"),
        (["export", "--to", "wandb"], "wandb", "wandb"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(lox_main, runs, monkeypatch, argv, module, extra):
    monkeypatch.chdir(runs.parent)
    monkeypatch.setitem(sys.modules, module, None)
    code, _, error = lox_main(argv[0], runs, *argv[1:])
    assert code == 1 and f"the extra {extra!r} installs: pip install 'jax-lox[{extra}]'" in error
    assert [path.name for path in runs.parent.iterdir()] == ["runs"]


def test_output_that_cannot_be_encoded_is_escaped(runs):
    command = [sys.executable, "-m", "lox", "show", str(runs)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "") and r"\u2581" in done.stdout


def test_listing_imports_nothing_heavy_and_starts_no_device(runs):
    program = f"""
import sys
from lox.__main__ import main
from lox._text import sparkline
assert main(["show", {str(runs)!r}]) == 0
from jax._src import xla_bridge
print(sorted({{"pandas", "matplotlib", "wandb", "xarray"}} & set(sys.modules)), xla_bridge.backends_are_initialized())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] False"


def test_a_picture_may_have_its_suffix_in_capitals(tmp_path):
    assert output_file(".png")(str(tmp_path / "CURVES.PNG")) == tmp_path / "CURVES.PNG"


def test_explain_prints_the_page_of_a_code_in_any_case(capsys):
    assert main(["explain", "lox104"]) == 0
    assert capsys.readouterr().out == (Path(__file__).parents[1] / "docs" / "audit" / "LOX104.md").read_text()


def test_explain_lists_all_codes_or_says_that_there_is_no_such_code(lox_main):
    code, rows, error = lox_main("explain")
    assert (code, error) == (0, "") and rows == sorted(rows)
    pages = (Path(__file__).parents[1] / "docs" / "audit").glob("LOX*.md")
    assert {row[0] for row in rows} == {page.stem for page in pages}
    code, rows, error = lox_main("explain", "LOX9999")
    assert code == 1 and not rows and "no LOX9999" in error


def test_a_line_over_time_has_a_bar_for_the_mean_of_each_part_of_as_many_events():
    for width in (20, 24, 3):
        rng = np.random.default_rng(0)
        for count in (1, 2, 3, 19, 20, 21, 24, 39, 45, 400, 1003):
            numbers = rng.normal(size=count) * 10 ** rng.uniform(-3, 3)
            parts = min(count, width)
            sizes = [count // parts + (place < count % parts) for place in range(parts)]
            ends = np.cumsum([0, *sizes])
            means = [numbers[start:end].mean() for start, end in zip(ends, ends[1:], strict=False)]
            low, high = min(means), max(means)
            levels = [0 if high == low else round((mean - low) / (high - low) * 7) for mean in means]
            line = sparkline(numbers) if width == 20 else sparkline(numbers, width)
            assert line == "".join("▁▂▃▄▅▆▇█"[level] for level in levels)
            numbers[-1] = np.nan
            line = sparkline(numbers, width)
            assert line[-1] == "×" and "×" not in line[:-1] and len(line) == parts
    largest = np.finfo(np.float64).max
    assert sparkline([-largest, 0, largest]) == "▁▅█" and sparkline([largest, largest / 2]) == "█▁"
    assert sparkline(np.array([1, 3], np.uint8)) == sparkline(np.array([False, True])) == "▁█"
    assert sparkline([0, 5e-324]) == "▁▁" and sparkline([np.inf, -np.inf, np.nan]) == "×××"
