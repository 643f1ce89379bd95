"""Experiments of loggers: a new one for each logger, apart from all others, and one that goes on only when asked."""

import contextlib
import datetime
import gc
import importlib.machinery
import json
import os
import re
import shutil
import signal
import socket
import string
import subprocess
import sys
import threading
import time
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import name_of

import lox
from lox._storage import _owner
from lox._storage._table import Rows, Table
from lox.loggers import Logger, MemoryLogger, MultiLogger, SaveLogger, TensorBoardLogger
from lox.loggers._cards import Card, Files
from lox.loggers._experiment import Experiment, experiment_name

RUN = name_of(7)


def logs_of(steps, **values):
    values = {key: np.asarray(value) for key, value in values.items()}
    return lox.logdict(values, {"step": dict.fromkeys(values, np.asarray(steps))})


def write(path, steps, seed=7, config=None, **options):
    with SaveLogger(path, **options) as logger:
        logger.log(logger.init(seed, config), logs_of(steps, x=np.float32(steps)))
    return logger.experiment


# -- which experiment it is ------------------------------------------------------------------------------------------

CELL = """
logger = lox.loggers.SaveLogger(path, name="cell")
@jax.jit
@jax.vmap
def train(seed):
    def step(x, i):
        lox.log({"x": x}, step=i)
        return x + 1, None
    return logger.tap(lambda x: jax.lax.scan(step, x, jnp.arange(3))[0], logger.init(seed))(jnp.float32(0))
train(jnp.arange(2))
lox.flush()
"""


def test_a_cell_of_a_notebook_that_runs_three_times_makes_three_experiments(tmp_path):
    cell = {"lox": lox, "jax": jax, "jnp": jnp, "path": tmp_path}
    for _ in range(3):
        exec(CELL, cell)
    cell["logger"].flush()
    names = [f"{experiment}/{name_of(seed)}" for experiment in ("cell", "cell-2", "cell-3") for seed in range(2)]
    runs = lox.load(tmp_path)
    assert sorted(runs) == sorted(names)
    assert all(runs[name] == runs[names[0]] and runs[name]["x"].tolist() == [0, 1, 2] for name in names)
    del cell
    gc.collect()
    lox.flush()


def test_the_thread_of_a_logger_that_nobody_holds_ends(tmp_path):
    logger = SaveLogger(tmp_path, name="a")
    logger.log(logger.init(7), {"x": 1.0})
    logger.flush()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "SaveLogger"]
    del logger
    thread.join(10)
    assert not thread.is_alive() and not list(tmp_path.rglob("owner.json"))


def test_an_experiment_has_the_date_the_time_and_the_script_as_its_name(tmp_path):
    logger = SaveLogger(tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\w+", logger.experiment)
    assert logger.directory == tmp_path / logger.experiment


def test_loggers_that_begin_at_once_have_experiments_of_their_own(tmp_path):
    loggers = [SaveLogger(tmp_path, name="a") for _ in range(16)]
    together = threading.Barrier(len(loggers))

    def begin(logger):
        together.wait()
        logger.log(logger.init(7), {"x": 1.0})
        logger.close()

    threads = [threading.Thread(target=begin, args=(logger,)) for logger in loggers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {logger.experiment for logger in loggers} == {"a", *(f"a-{number}" for number in range(2, 17))}
    assert len(lox.load(tmp_path)) == 16


@pytest.mark.integration
def test_terminals_that_begin_at_once_have_experiments_of_their_own(tmp_path):
    program = (
        "import sys, lox\n"
        "logger = lox.loggers.MultiLogger(*(of(sys.argv[1]) for of in (lox.loggers.SaveLogger,\n"
        "    lox.loggers.TensorBoardLogger)), name='a')\n"
        "run = logger.init(7)\n"
        "print(flush=True)\n"
        "sys.stdin.readline()\n"
        "logger.log(run, {'x': 1.0})\n"
        "logger.close()\n"
        "print(logger.experiment)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for process in running:
        process.stdout.readline()
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    names = {process.communicate(timeout=120)[0].strip() for process in running}
    assert len(names) == 3 and {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        assert lox.load(tmp_path / name)[RUN]["x"].tolist() == [1.0]
        assert len(list((tmp_path / name / RUN).glob("events*"))) == 1


def test_nothing_is_made_before_the_first_logs(tmp_path):
    logger = MultiLogger(SaveLogger(tmp_path / "a"), TensorBoardLogger(tmp_path / "b"))
    run = logger.init(7)
    logger.tap(lambda: None, run)()
    logger.flush()
    assert not list(tmp_path.iterdir())
    logger.log(run, {"x": 1.0})
    logger.close()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a ", "ä", "a\n", "x" * 101, "latest", "nul", "COM1.a"])
def test_names_that_not_every_file_system_takes(tmp_path, name):
    with pytest.raises(lox.LogValueError, match="name="):
        SaveLogger(tmp_path, name=name)


def test_arguments_that_exclude_each_other(tmp_path):
    with pytest.raises(lox.LogValueError, match="names the experiment: with name=, it is None or 'latest'"):
        SaveLogger(tmp_path, name="a", resume="b")
    with pytest.raises(lox.LogValueError, match="there is no resume="):
        SaveLogger(tmp_path, from_step=3)
    with pytest.raises(lox.LogDataError, match="from_step= of a logger is an integer, got 'a' of type str"):
        SaveLogger(tmp_path, resume="a", from_step="a")
    with pytest.raises(lox.LogValueError, match="has 64 bits"):
        SaveLogger(tmp_path, resume="a", from_step=2**63)
    with pytest.raises(lox.LogValueError, match="has 64 bits, got -"):
        SaveLogger(tmp_path, resume="a", from_step=-(2**63) - 1)
    with pytest.raises(lox.LogDataError, match="from_step= of a logger is an integer, got True of type bool"):
        SaveLogger(tmp_path, resume="a", from_step=True)
    for step in (-(2**63), 2**63 - 1, np.uint8(0)):
        SaveLogger(tmp_path, resume="a", from_step=step)
    with pytest.raises(lox.LogDataError, match="name= of a logger is text, got 3 of type int"):
        SaveLogger(tmp_path, name=3)


# -- one that goes on ------------------------------------------------------------------------------------------------


def test_an_experiment_goes_on_by_its_name_or_as_the_latest(tmp_path):
    for name in ("a", "b"):
        write(tmp_path, [0], name=name)
    assert write(tmp_path, [1], resume="latest") == "b"
    assert write(tmp_path, [1], resume="a") == "a"
    assert write(tmp_path, [2], resume="latest") == "a"  # The one that was continued last.
    runs = lox.load(tmp_path)
    assert {name: logs["x"].tolist() for name, logs in runs.items()} == {f"a/{RUN}": [0, 1, 2], f"b/{RUN}": [0, 1]}


def test_the_latest_of_a_name_goes_on_and_is_begun_when_there_is_none(tmp_path):
    write(tmp_path, [0], name="other")
    with pytest.warns(lox.LoggerWarning, match="there is none called 'job' in "):
        assert write(tmp_path, [0], name="job", resume="latest") == "job"
    write(tmp_path, [0], name="jobs")
    assert write(tmp_path, [1], name="job", resume="latest") == "job"
    assert write(tmp_path, [0], name="job") == "job-2"
    assert write(tmp_path, [1], name="job", resume="latest", from_step=1) == "job-2"


def test_signs_of_a_name_stand_for_themselves_where_its_latest_goes_on(tmp_path):
    for name, other in (("lr0.1", "lr0x1"), ("a+b", "aab"), ("a.+b", "acb")):
        assert write(tmp_path, [0], name=name) == name
        assert write(tmp_path, [0], name=other) == other
        assert write(tmp_path, [1], name=name, resume="latest") == name
        assert write(tmp_path, [2], name=other, resume="latest") == other
        assert write(tmp_path, [0], name=name) == f"{name}-2"
        assert write(tmp_path, [1], name=name, resume="latest") == f"{name}-2"
        with pytest.warns(lox.LoggerWarning, match="there is none called"):
            write(tmp_path, [0], name=f"{name}c", resume="latest")


@pytest.mark.parametrize("of", [SaveLogger, lambda path, **options: MemoryLogger(**options)])
def test_the_first_program_that_resumes_the_latest_begins_one_and_says_so(tmp_path, of):
    with pytest.warns(lox.LoggerWarning, match="begins a new experiment: there is none") as warned:
        logger = of(tmp_path, resume="latest", from_step=4)
        run = logger.init(7)
    assert {warning.filename for warning in warned} == {__file__}
    logger.log(run, {"x": 1.0}, step=5)
    logger.close()


def test_an_experiment_that_is_not_there_is_an_error_at_once(tmp_path):
    write(tmp_path, [0], name="mine")
    logger = SaveLogger(tmp_path, resume="main")
    with pytest.raises(lox.LogValueError, match=r"cannot continue 'main'.*The latest are 'mine'"):
        logger.init(7)
    with pytest.raises(lox.LogValueError, match="There is none at all"):
        MemoryLogger(resume="a").init(7)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_directory_that_was_renamed_or_copied_is_an_experiment_of_its_name(tmp_path):
    write(tmp_path, [0], name="a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "c")
    for name in ("b", "c"):
        assert write(tmp_path, [1], resume=name) == name
    assert [logs["x"].tolist() for logs in lox.load(tmp_path).values()] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("there", ["a file", "a run"])
def test_what_is_no_experiment_has_its_name_and_nothing_is_written_into_it(tmp_path, there):
    if there == "a file":
        (tmp_path / "a").write_text("")
    else:
        lox.save(logs_of([0], x=[0]), tmp_path / "a")
    assert write(tmp_path, [0], name="a") == "a-2"
    assert f"a-2/{RUN}" in lox.load(tmp_path)


def test_the_directory_is_where_the_program_was_when_the_logger_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = SaveLogger("runs", name="a")
    (tmp_path / "elsewhere").mkdir()
    for folder in (tmp_path / "elsewhere", tmp_path):
        monkeypatch.chdir(folder)
        logger.log(logger.init(7), {"x": 1.0})
        logger.flush()
    logger.close()
    assert len(lox.load(tmp_path / "runs" / "a" / RUN)["x"]) == 2


def test_a_logger_that_continues_is_let_go_at_once_as_well(tmp_path):
    write(tmp_path, [0], name="a")
    logger = SaveLogger(tmp_path, resume="a")
    logger.log(logger.init(7), {"x": 1.0})
    logger.flush()
    gone, until = weakref.ref(logger), time.monotonic() + 10
    del logger
    gc.disable()
    try:
        while gone() is not None and time.monotonic() < until:  # Its thread has it while it does its last task.
            time.sleep(0.01)
        assert gone() is None
    finally:
        gc.enable()


def test_of_two_threads_that_continue_an_experiment_one_takes_it_over(tmp_path, monkeypatch):
    write(tmp_path, [0], name="a")
    loggers = [SaveLogger(tmp_path, resume="a") for _ in range(2)]
    both, begin = threading.Barrier(2), Experiment.begin

    def begin_together(self, place=None):
        name = begin(self, place)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1)
        return name

    monkeypatch.setattr(Experiment, "begin", begin_together)
    threads = [threading.Thread(target=logger.init, args=(7,)) for logger in loggers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (closed,) = [logger for logger in loggers if logger._worker.stopped]
    (other,) = [logger for logger in loggers if logger is not closed]
    with pytest.raises(lox.LogValueError, match=r"was closed.*: another logger .* continues its experiment"):
        closed.log(closed.init(7), {"x": 1.0})
    with other:
        other.log(other.init(7), logs_of([1], x=np.float32([1])))
    assert lox.load(tmp_path / "a")[RUN]["x"].tolist() == [0, 1]


def test_where_warnings_are_errors_nothing_is_lost_that_they_are_about(tmp_path):
    write(tmp_path, [0], name="a")
    owner = {"process": 1, "host": "elsewhere", "id": "other"}
    (tmp_path / "a" / RUN / "owner.json").write_text(json.dumps(owner))
    with pytest.raises(lox.LoggerWarning, match="was written by process 1 on elsewhere, and is continued here"):
        write(tmp_path, [1], resume="a")
    assert lox.load(tmp_path / "a")[RUN]["x"].tolist() == [0, 1]


def test_what_was_taken_over_is_refused_to_the_other_process(tmp_path):
    with (
        pytest.raises(lox.StorageError, match="is written by another process now"),
        SaveLogger(tmp_path, name="a") as logger,
    ):
        logger.log(logger.init(7), {"x": 1.0})
        logger.flush()
        (logger.directory / RUN / "owner.json").write_text(json.dumps({"process": 1, "host": "elsewhere", "id": "o"}))
        logger.log(logger.init(7), {"x": 2.0})
    assert lox.load(tmp_path / "a")[RUN]["x"].tolist() == [1.0]


def test_a_process_that_still_writes_is_said_when_another_continues(tmp_path):
    write(tmp_path, [0], name="a")
    with subprocess.Popen(["sleep", "60"]) as other:
        owner = {"process": other.pid, "host": socket.gethostname(), "id": "other"}
        (tmp_path / "a" / RUN / "owner.json").write_text(json.dumps(owner))
        logger = MultiLogger(SaveLogger(tmp_path), MemoryLogger(), resume="a")
        with pytest.warns(lox.LoggerWarning, match=f"another process of this machine writes .*{RUN}"):
            run = logger.init(7)
        logger.log(run, {"x": 1.0})
        with pytest.raises(lox.StorageError, match=f"is written by process {other.pid}"):
            logger.close()
        other.kill()


def test_a_process_with_the_number_of_a_writer_that_is_gone_is_not_the_writer(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as other, contextlib.ExitStack() as end:
        end.callback(other.kill)
        owner = {"process": other.pid, "started": _owner._started(other.pid), "host": socket.gethostname(), "id": "x"}
        (tmp_path / "owner.json").write_text(json.dumps(owner))
        with pytest.raises(lox.StorageError, match=f"is written by process {other.pid}"):
            lox.save(lox.logdict({"x": np.zeros(2)}), tmp_path)
        (tmp_path / "owner.json").write_text(json.dumps(owner | {"started": "before"}))
        lox.save(lox.logdict({"x": np.zeros(2)}), tmp_path)
    assert lox.load(tmp_path)["x"].tolist() == [0, 0]


def test_a_damaged_run_is_in_nobodys_way(tmp_path):
    write(tmp_path, [0], name="a", seed=8)
    (tmp_path / "a" / name_of(8) / "manifest.json").write_text("{")
    write(tmp_path, [0], resume="a")
    assert lox.load(tmp_path / "a" / RUN)["x"].tolist() == [0]


def test_steps_are_compared_to_the_last_bit(tmp_path):
    steps = np.int64(2**53) + np.arange(3)
    with SaveLogger(tmp_path, name="a") as logger:
        logger.log(logger.init(7), logs_of(steps, x=steps))
    with SaveLogger(tmp_path, resume="a", from_step=2**53 + 1) as logger:
        logger.log(logger.init(7), {"y": 1.0})
    assert lox.load(tmp_path / "a")[RUN]["x"].tolist() == [2**53]


@pytest.mark.parametrize("text", [b"", bytes(80)])
def test_an_experiment_whose_card_did_not_get_to_the_disk_goes_on(tmp_path, text):
    write(tmp_path, [0], name="a")
    (tmp_path / "a" / "experiment.json").write_bytes(text)
    write(tmp_path, [1], resume="latest")
    write(tmp_path, [2], resume="a")
    assert [logs["x"].tolist() for logs in lox.load(tmp_path).values()] == [[0, 1, 2]]


def test_a_damaged_experiment_is_an_error_where_it_is_the_one_to_continue(tmp_path):
    for name in ("a", "b"):
        write(tmp_path, [0], name=name)
    card = tmp_path / "a" / "experiment.json"
    infinite = '{"name": "a", "token": "", "time": Infinity}'
    for text in (b"{", b"[]", b"\xff", b"[" * 100_000, infinite.encode()):
        card.write_bytes(text)
        for options in ({"resume": "a"}, {"resume": "latest"}, {"name": "a", "resume": "latest"}):
            with pytest.raises(lox.StorageError, match=r"experiment\.json cannot be read"):
                SaveLogger(tmp_path, **options).init(7)
    assert write(tmp_path, [1], resume="b") == write(tmp_path, [2], resume="latest") == "b"
    assert write(tmp_path, [3], name="b", resume="latest") == "b"
    assert write(tmp_path, [0], name="a") == "a-2"


def test_a_key_with_another_config_in_an_experiment_that_goes_on(tmp_path):
    write(tmp_path, [0], config={"rate": 0.1}, name="a")
    with pytest.raises(lox.LoggerWarning, match="has the same key and another config"):
        write(tmp_path, [1], config={"rate": 0.2}, resume="a")
    runs = lox.load(tmp_path / "a")
    assert [runs[name_of(7, rate=rate)]["x"].tolist() for rate in (0.1, 0.2)] == [[0], [1]]


@pytest.mark.parametrize("steps", [[3, 2], [[3, 3], [3, 2]]])
def test_a_step_that_goes_back_is_said_once(tmp_path, steps):
    with SaveLogger(tmp_path, name="a") as logger:
        run = logger.init(7)
        for _ in range(2):
            logger.log(run, logs_of(steps, x=np.ones(np.shape(steps), np.float32)))
        with pytest.raises(lox.LoggerWarning, match=r"Run seed=7-\w+: the step of 'x' goes back from 3 to 2"):
            logger.flush()
        logger.log(run, logs_of(steps, x=np.ones(np.shape(steps), np.float32)))
    with pytest.raises(lox.LoggerWarning, match="goes back from 3 to 1"):
        write(tmp_path, [1], resume="a") if np.ndim(steps) == 1 else write(tmp_path, [[1, 1]], resume="a")
    assert len(lox.load(tmp_path / "a")[RUN]["x"]) == 7


def test_a_step_that_did_not_happen_does_not_go_back(tmp_path):
    with MemoryLogger() as logger:
        for happened, steps in (([True, False], [5, 1]), ([False, True], [1, 3]), ([True, False], [6, 0])):
            logs = lox.logdict(
                {"x": np.ones((1, 2))}, {"step": {"x": np.array([steps])}}, mask={"x": np.array([happened])}
            )
            logger.log(logger.init(7), logs)


# -- from a step -----------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, jax, jax.numpy as jnp, lox
path, options = sys.argv[1], eval(sys.argv[2])
logger = lox.loggers.SaveLogger(path, **options)
start, end = options.get("from_step", 0), 7 if "name" in options else 10

@jax.jit
def step(x):
    lox.log({"x": x})
    return x + 1

x = jnp.float32(start)
run = logger.init(7, rate=0.1)
for i in range(start, end):
    x, logs = lox.spool(step)(x)
    logger.log(run, logs, step=i)
logger.flush()
if "name" in options:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.integration
def test_a_job_that_was_killed_goes_on_from_its_checkpoint(tmp_path):
    for options in ({"name": "job"}, {"resume": "latest", "from_step": 4}):
        command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path), repr(options)]
        code = subprocess.run(command, timeout=120).returncode
        assert code == (-signal.SIGKILL if "name" in options else 0)
    ((name, logs),) = lox.load(tmp_path).items()
    assert name == f"job/{name_of(7, rate=0.1)}"
    assert logs["x"].tolist() == logs.steps["step"]["x"].tolist() == [*range(10)]
    assert lox.load(tmp_path / name / "aside-1")["x"].tolist() == [4, 5, 6]


def test_what_is_taken_back_is_moved_aside_in_all_segments_and_batch_elements(tmp_path):
    batch = lox.logdict(
        {"x": np.arange(6.0).reshape(3, 2)},
        {"step": {"x": np.array([[0, 1], [9, 2], [1, 4]])}},
        mask={"x": np.array([[True, True], [False, True], [True, True]])},
    )
    parts = [batch, logs_of([0, 1], y=[0, 1]), logs_of([2, 3, 5], y=[2.5, 3.5, 5.5]), lox.logdict({"z": np.ones(2)})]
    with SaveLogger(tmp_path, name="a") as logger:
        for part in parts:
            logger.log(logger.init(7), part)
    with (
        pytest.raises(lox.LoggerWarning, match=r"Events of \['z'\] .* stay"),
        SaveLogger(tmp_path, resume="a", from_step=3) as logger,
    ):
        logger.log(logger.init(7), logs_of([3, 4], y=[30.5, 40.5]))
    logs, aside = lox.load(tmp_path / "a" / RUN), lox.load(tmp_path / "a" / RUN / "aside-1")
    assert logs["x"].tolist() == [[0, 1], [2, 3]] and aside["x"].tolist() == [[4, 5]]
    assert logs.mask["x"].tolist() == [[True, True], [False, True]]
    assert (logs["y"].tolist(), logs["y#2"].tolist(), aside["y"].tolist()) == ([0, 1], [2.5, 30.5, 40.5], [3.5, 5.5])
    assert logs["z"].tolist() == [1, 1] and "z" not in aside


def test_each_restart_moves_its_events_aside(tmp_path):
    write(tmp_path, [0, 1, 2, 3], name="a")
    for start in (2, 2, 0, 9):
        write(tmp_path, [start, start + 1], resume="a", from_step=np.int32(start))
    folder = tmp_path / "a" / RUN
    assert lox.load(tmp_path)[f"a/{RUN}"]["x"].tolist() == [0, 1, 9, 10]
    assert [lox.load(folder / f"aside-{n}")["x"].tolist() for n in (1, 2, 3)] == [[2, 3], [2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("place", range(6))
def test_a_program_that_fails_while_it_moves_events_aside_loses_none(tmp_path, place, monkeypatch):
    write(tmp_path, [0, 1, 2, 3], name="a")
    count = [-100]

    def failing(function):
        def call(*args):
            count[0] += 1
            if count[0] == place:
                raise OSError("no")
            return function(*args)

        return call

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    logger = SaveLogger(tmp_path, resume="a", from_step=2)
    run = logger.init(7)
    count[0] = 0
    logger.log(run, logs_of([2], x=np.float32([20])))
    try:
        logger.close()
    except OSError:
        monkeypatch.undo()
        with SaveLogger(tmp_path, resume="a") as logger:  # What is begun or not is in the way of no other segment.
            logger.log(logger.init(7), {"x": 3}, step=5)
        assert lox.load(tmp_path / "a")[RUN]["x#2"].tolist() == [3]
        write(tmp_path, [20], resume="a", from_step=2)
    assert lox.load(tmp_path / "a")[RUN]["x"].tolist() == [0, 1, 20]
    assert lox.load(tmp_path / "a" / RUN / "aside-1")["x"].tolist() == [2, 3]


# -- several loggers -------------------------------------------------------------------------------------------------


def test_the_loggers_of_a_multi_logger_have_one_experiment(tmp_path):
    write(tmp_path / "b", [0], name="a")
    memory, innermost = MemoryLogger(), SaveLogger(tmp_path / "c")
    inner = MultiLogger(MultiLogger(innermost))
    loggers = [SaveLogger(tmp_path / "b"), SaveLogger(tmp_path / "d"), memory, inner]
    with MultiLogger(*loggers, name="a") as logger:
        logger.log(logger.init(7), {"x": 1.0}, step=1)
    assert {each.experiment for each in (logger, *loggers, *inner.loggers, innermost)} == {"a-2"}
    assert [[*lox.load(tmp_path / place)] for place in "cd"] == [[f"a-2/{RUN}"]] * 2
    others = SaveLogger(tmp_path / "c"), SaveLogger(tmp_path / "new")
    with MultiLogger(*others, resume="a-2") as logger:
        logger.log(logger.init(7), {"x": 1.0}, step=2)
    assert len(lox.load(tmp_path / "c")[f"a-2/{RUN}"]["x"]) == 2
    assert len(lox.load(tmp_path / "new")[f"a-2/{RUN}"]["x"]) == 1


def test_a_logger_with_an_experiment_of_its_own_is_in_no_multi_logger(tmp_path):
    other = MemoryLogger()
    with pytest.raises(lox.LogValueError, match="has an experiment of its own"):
        MultiLogger(other, SaveLogger(tmp_path, name="a"))
    MultiLogger(other)
    begun = SaveLogger(tmp_path)
    assert begun.experiment
    with pytest.raises(lox.LogValueError, match="has an experiment of its own"):
        MultiLogger(begun, name="b")


def test_a_logger_is_in_one_multi_logger_once():
    logger, inner = MemoryLogger(), MemoryLogger()
    several = MultiLogger(inner)
    for loggers in ([logger, logger], [inner], [several, several], [several, inner], [MultiLogger(several), several]):
        with pytest.raises(lox.LogValueError, match="is in a MultiLogger already"):
            MultiLogger(*loggers)
    with MultiLogger(logger) as of_one:  # What was refused took nothing.
        of_one.log(of_one.init(7), {"x": 1.0})
    assert len(logger[RUN]["x"]) == 1


def test_a_logger_that_cannot_begin_keeps_no_other_from_what_it_gets(tmp_path):
    (tmp_path / "file").write_text("")
    saver = SaveLogger(tmp_path / "there")
    logger = MultiLogger(SaveLogger(tmp_path / "file"), saver, name="a")
    logger.log(logger.init(7), {"x": 1.0})
    with pytest.raises(OSError, match="file"):
        logger.close()
    assert lox.load(saver.directory)[RUN]["x"].tolist() == [1.0]


def test_a_logger_that_cannot_go_on_keeps_no_other_from_it(tmp_path):
    for place in "ab":
        write(tmp_path / place, [0], name="x")
    (tmp_path / "a" / "x" / "experiment.json").write_text("{")
    logger = MultiLogger(SaveLogger(tmp_path / "a"), SaveLogger(tmp_path / "b"), resume="x")
    logger.log(logger.init(7), logs_of([1], x=np.float32([1])))
    with pytest.raises(lox.StorageError, match="cannot be read"):
        logger.close()
    assert lox.load(tmp_path / "b")[f"x/{RUN}"]["x"].tolist() == [0, 1]


def test_an_experiment_ends_where_it_is_known_when_its_logger_is_closed(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(Files, "end", lambda place, name: ended.append(name))
    assert [write(tmp_path, [0])] == ended


def test_a_logger_of_ones_own_has_experiments_too():
    class Mine(Logger):
        def write(self, run, logs):
            pass

    with Mine(name="mine") as logger:
        logger.log(logger.init(7), {"x": 1.0})
    assert logger.experiment == "mine"


def test_what_is_odd_about_an_experiment_that_goes_on_is_said_once(tmp_path):
    host = socket.gethostname()
    with SaveLogger(tmp_path, name="a") as logger:
        for seed in range(4):
            logger.log(logger.init(seed, rate=0.1), logs_of([0, 1], x=[0, 1]))
        logger.log(logger.init(0, name="bare"), lox.logdict({"y": np.ones(1), "z": np.ones(1)}))
    names = [name_of(seed, rate=0.1) for seed in range(4)]
    with subprocess.Popen(["sleep", "60"]) as other:
        claims = [tmp_path / "a" / name / "owner.json" for name in sorted(names)[:3]]
        for claim in claims:
            claim.write_text(json.dumps({"process": other.pid, "host": host, "id": "other"}))
        with pytest.warns(lox.LoggerWarning) as warned:
            logger = SaveLogger(tmp_path, resume="a", from_step=1)
            logger.init(9)
        for claim in claims[1:]:
            claim.unlink()
        with pytest.warns(lox.LoggerWarning, match=f"of this machine writes {claims[0].parent}. Until it closes them"):
            SaveLogger(tmp_path, resume="a").init(9)
        other.kill()
    (message,) = [str(each.message) for each in warned]
    assert f"another process of this machine writes {claims[0].parent} and 2 more runs. Until it closes them" in message
    logger.close()
    with pytest.warns(lox.LoggerWarning) as warned:
        with SaveLogger(tmp_path, resume="a", from_step=1) as logger:
            for seed, config in ((5, {}), (0, {"rate": 0.2}), (1, {"rate": 0.3}), (2, {"rate": 0.1})):
                logger.log(logger.init(seed, config), logs_of([1, 2], x=[10, 20]))
            logger.log(logger.init(0, name="bare"), lox.logdict({"y": np.ones(1)}))
            logger.flush()
    first, second = [str(each.message) for each in warned]
    run = tmp_path / "a" / name_of(0, rate=0.2)
    assert first.startswith(
        f"{run} is a new run of an experiment that is continued, in which {names[0]} has the same key"
    )
    assert (
        f"Events of ['y', 'z'] of {tmp_path / 'a' / 'bare'} stay: they have no counter step, to go on from 1." in second
    )
    found = {name: logs for name, logs in lox.load(tmp_path / "a").items()}
    assert [found[name]["x"].tolist() for name in names] == [[0, 1], [0, 1], [0, 10, 20], [0, 1]]
    assert found["bare"]["y"].tolist() == [1, 1] and found["bare"]["z"].tolist() == [1]


def test_a_name_that_is_taken_in_one_place_is_begun_in_none(tmp_path):
    """Of the loggers of several, the first has begun it when the second finds that there is one."""
    for _ in range(2):
        write(tmp_path / "second", [0], name="a")
    first, second = SaveLogger(tmp_path / "first"), SaveLogger(tmp_path / "second")
    with MultiLogger(first, second, name="a") as logger:
        logger.log(logger.init(7), {"x": 1.0}, step=1)
    assert logger.experiment == "a-3"
    assert [path.name for path in (tmp_path / "first").iterdir()] == ["a-3"]
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == ["a", "a-2", "a-3"]
    cards = [json.loads((place.directory / "experiment.json").read_text()) for place in (first, second)]
    assert cards[0] == cards[1] and cards[0]["name"] == "a-3" and cards[0]["resumed"] == []


def test_an_experiment_is_named_after_the_script_or_module_that_runs(monkeypatch):
    for module, file, end in (
        (None, "/x/my train.py", "my-train"),
        ("package.train", "/x/train.py", "train"),
        ("package.train.__main__", "/x/__main__.py", "train"),
        (None, None, "python"),
        (None, f"/x/{'long_' * 20}.py", "long_" * 8),
    ):
        main = types.ModuleType("__main__")
        main.__spec__ = None if module is None else importlib.machinery.ModuleSpec(module, None)
        if file is not None:
            main.__file__ = file
        monkeypatch.setitem(sys.modules, "__main__", main)
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        before = datetime.datetime.now().replace(microsecond=0)
        name = MemoryLogger().experiment
        when = datetime.datetime.strptime(name[:19], "%Y-%m-%d_%H-%M-%S")
        assert before <= when <= datetime.datetime.now() and name[19:] == f"-{end}"


def test_an_experiment_that_is_not_there_is_told_from_the_latest_ten(tmp_path):
    for place in range(12):
        write(tmp_path, [0], name=f"e{place}")
    write(tmp_path, [1], resume="e3")
    latest = ", ".join(repr(f"e{place}") for place in (3, 11, 10, 9, 8, 7, 6, 5, 4, 2))
    with pytest.raises(lox.LogValueError) as raised:
        SaveLogger(tmp_path, resume="e12").init(7)
    assert str(raised.value).endswith(f"no such experiment is in {tmp_path}. The latest are {latest}.")
    with pytest.raises(lox.LogValueError, match=r"There is none at all\.$"):
        SaveLogger(tmp_path / "new", resume="e1").init(7)


def test_each_restart_of_an_experiment_has_an_end_of_names_of_its_own():
    """For sinks that take nothing back. What goes on from the end of an experiment keeps the end of its names."""
    card, ends = Card("a", "token", 1), []
    for step in (None, 4, None, 4, 12, None, 4, 0, -3, 12):
        again = card.again(step)
        assert (again.name, again.token) == ("a", "token") and again.time >= card.time
        assert Card.from_json(again.to_json()) == again
        card = again
        ends.append(card.suffix)
    assert ends[:5] == ["", "-from4", "-from4", "-from4-2", "-from12"]
    assert ends[5:] == ["-from12", "-from4-3", "-from0", "-from-3", "-from12-2"]
    assert card.resumed == (4, 4, 12, 4, 0, -3, 12) and card.time > time.time_ns() - 60 * 10**9


def is_name(name):
    """Say whether a logger takes a name for an experiment, both for a new one and to continue it."""
    found = []
    for word in ("name", "resume"):
        try:
            Experiment(**{word: name})
        except lox.LogValueError as error:
            assert f"{word}={name!r} is not the name of an experiment" in str(error)
            found.append(False)
        else:
            found.append(True)
    assert len({*found}) == 1
    return found[0]


def test_signs_of_a_name_are_those_that_each_file_system_takes_in_their_place():
    letters = {*string.ascii_letters, *string.digits, "_"}
    for sign in [*map(chr, range(0x20, 0x180)), "\n", "\t", "模"]:
        inside, last = sign in letters | {*" .,=+@-"}, sign in letters | {*"=+@-"}
        assert (is_name(sign), is_name(f"{sign}a"), is_name(f"a{sign}")) == (sign in letters, sign in letters, last)
        assert is_name(f"a{sign}b") == inside, sign
    for name in ("con", "Aux.log", "COM1", "lpt9.txt", "PRN", "a.json", "_.json", "nul.a", ""):
        assert not is_name(name)
    for name in ("console", "com", "com10", "lpt", "nulx", "json", "ajson", "a.json.b", "a.con", "x" * 100):
        assert is_name(name)
    Experiment(resume=f"{'x' * 100}-12")  # With its number.
    with pytest.raises(lox.LogValueError, match="is not the name of an experiment"):
        Experiment(name="x" * 101)


def test_any_text_is_made_a_name_that_an_experiment_can_have():
    texts = {
        "a": "a",
        "a b": "a-b",
        "lr=0.1,w=2+@": "lr=0.1,w=2+@",
        "two/deep": "two-deep",
        ".a": "_.a",
        "-a": "_-a",
        "a..": "a",
        "a,": "a",
        "a.,": "a",
        "é": "_-",
        "": "_",
        "...": "_",
        "latest": "_latest",
        "latest2": "latest2",
        "con": "_con",
        "NUL.x": "_NUL.x",
        "runs.json": "runs-json",
        ".json": "_-json",
        "x" * 90: "x" * 90,
        "x" * 95: "x" * 90,
        f"{'x' * 89}.y": "x" * 89,
        f"{'x' * 85}.json.a": f"{'x' * 85}-json",
    }
    assert {text: experiment_name(text) for text in texts} == texts
    assert all(map(is_name, texts.values()))


def test_a_logger_that_could_not_begin_joins_the_experiment_of_the_others_when_it_can(tmp_path):
    place = tmp_path / "place"
    place.write_text("")
    first, second = SaveLogger(place), SaveLogger(tmp_path / "there")
    logger = MultiLogger(first, second, name="a")
    run = logger.init(7)
    logger.log(run, {"x": 1.0}, step=1)
    with pytest.raises(OSError, match="place"):
        logger.flush()
    place.unlink()
    write(place, [0], name="a")
    logger.log(run, {"x": 2.0}, step=2)
    with pytest.raises(lox.LogValueError, match=f"There is another experiment 'a' in {place}. Give this one another"):
        logger.flush()
    assert lox.load(place)[f"a/{RUN}"]["x"].tolist() == [0]
    shutil.rmtree(place)
    logger.log(run, {"x": 3.0}, step=3)
    logger.close()
    assert [lox.load(each.directory)[RUN]["x"].tolist() for each in (first, second)] == [[3], [1, 2, 3]]


@pytest.mark.parametrize(("of", "name"), [(Table, "look"), (Rows, "timeline"), (Rows, "__init__")])
def test_a_run_of_which_events_are_taken_back_while_it_is_read_is_read_anew(tmp_path, monkeypatch, of, name):
    write(tmp_path, [0, 1, 2, 3], name="a")
    read, taken = getattr(of, name), []

    def meanwhile(*args):
        if not taken:
            taken.append(1)
            write(tmp_path, [2], resume="a", from_step=2)
        return read(*args)

    monkeypatch.setattr(of, name, meanwhile)
    assert lox.load(tmp_path)[f"a/{RUN}"]["x"].tolist() == [0, 1, 2] and taken
