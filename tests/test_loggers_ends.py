"""What loggers have written however a program ends: at once, by an exception, by Ctrl-C, in a forked child."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import ROOT
from sinks import TensorBoard

import lox

PRELUDE = """
import os, sys, time
import numpy as np
import lox
from lox.loggers import Logger
class Printer(Logger):
    def start(self, run):
        say("start", run.name)
    def write(self, run, logs):
        say("write", run.name, *logs["x"].tolist())
    def finish(self, run):
        say("finish", run.name)
def say(*words):  # In one write: several processes have the same pipe.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def started(code, *arguments, **options):
    """A program that logs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "WANDB_SILENT": "true"}
    command = [sys.executable, "-u", "-c", PRELUDE + code, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    return subprocess.Popen(command, **(pipes | options))


def ended(code, *arguments, returns=0):
    """What a program prints, and its errors."""
    with started(code, *arguments) as process:
        try:
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == returns, errors
    return out.splitlines(), errors


# -- a program that ends at once -----------------------------------------------------------------------------------

NEEDS_THREADS = """
import atexit, threading
class Service(Printer):  # As W&B: it has a service that ends at the exit, if it was there before, and starts threads.
    def start(self, run):
        say("begins")
        time.sleep(0.5)
        self.there = True
        atexit.register(self.end)
        thread = threading.Thread(target=time.sleep, args=(0.3,))
        thread.start()
        thread.join()
    def end(self):
        self.there = False
    def write(self, run, logs):
        say("write" if self.there else "lost", *logs["x"].tolist())
logger = Service()
logger.log(logger.init(7), {"x": 3})
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("seconds", [pytest.param(0, marks=pytest.mark.integration), 0.7])
def test_what_a_sink_needs_is_there_though_the_program_ends_while_its_first_run_begins(seconds):
    assert ended(NEEDS_THREADS, seconds)[0] == ["begins", "write 3", "finish seed=7-941678"]


# -- a program that is interrupted ---------------------------------------------------------------------------------

BLOCKS = """
class Blocked(Printer):
    gathers = {gathers}
    def write(self, run, logs):
        say("blocked")
        while True:
            time.sleep(1)
with {loggers} as logger:
    for i in range(5):
        logger.log(logger.init(7), {{"x": i}})
    {end}
"""


@pytest.mark.parametrize(
    ("loggers", "end", "gathers"),
    [
        ("Blocked()", "logger.flush()", False),
        pytest.param("Blocked()", "pass", True, marks=pytest.mark.integration),
        pytest.param("lox.loggers.MultiLogger(Blocked(), Blocked())", "pass", False, marks=pytest.mark.integration),
        pytest.param(
            "lox.loggers.MultiLogger(Blocked(), Blocked())", "logger.flush()", True, marks=pytest.mark.integration
        ),
        pytest.param("Blocked()", "sys.exit()", False, marks=pytest.mark.integration),
    ],
)
def test_two_interrupts_end_a_program_whose_sink_blocks(loggers, end, gathers):
    with started(BLOCKS.format(loggers=loggers, end=end, gathers=gathers)) as process:
        try:
            while "start" not in process.stdout.readline() or "blocked" not in process.stdout.readline():
                pass
            for _ in range(2):
                time.sleep(0.3)
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    count = 5 * loggers.count("Blocked")
    assert f"{count} deliveries to loggers were not written" in errors


# -- a program that forks ------------------------------------------------------------------------------------------

FORKS = """
import warnings, multiprocessing
warnings.filterwarnings("ignore", message=".*fork.*")
def fork_by_hand(child):
    if not os.fork():
        child()
        sys.exit()
    os.wait()
def fork_by_multiprocessing(child):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
how = pytest.mark.parametrize(
    "fork", [pytest.param("fork_by_hand", marks=pytest.mark.integration), "fork_by_multiprocessing"]
)

SLOW = """
class Slow(Printer):
    def write(self, run, logs):
        time.sleep(0.3)
        super().write(run, logs)
logger, other = Slow(), Slow()
run = logger.init(7)
logger.log(run, {"x": 1})
def fail(logs):
    raise OSError("disk full")
lox.tap(lambda x: lox.log({"x": x}), fail)(1.0)
def child():
    lox.flush()  # The error is that of the parent.
    logger.log(logger.init(8), {"x": 2})
    own = Slow()
    own.log(own.init(9), {"x": 3})
    try:
        logger.log(run, {"x": 4})
    except lox.LogValueError as error:
        say(error)
fork(child)
logger.log(run, {"x": 5})
try:
    lox.flush()
except OSError as error:
    say(error)
"""


@forks
@how
def test_a_forked_process_writes_runs_of_its_own_and_none_of_its_parent(fork):
    found, errors = ended(FORKS + SLOW.replace("fork(child)", f"{fork}(child)"))
    seven, eight, nine = "seed=7-941678", "seed=8-016d05", "seed=9-405480"
    refused = (
        f"Run {seven} of Slow() was begun by the process from which this one was forked, and both would write it. Make "
        "another logger in this process, or log to a run of another key, config or name."
    )
    parents = [f"start {seven}", f"write {seven} 1", f"write {seven} 5", f"finish {seven}"]
    assert [line for line in found if seven in line and line != refused] == parents
    assert found.count(refused) == 1 and "Error" not in errors
    assert found.count("disk full") == 1
    for run, x in ((eight, 2), (nine, 3)):
        assert [line for line in found if run in line] == [f"start {run}", f"write {run} {x}", f"finish {run}"]


TAPS = """
import jax, jax.numpy as jnp
logger, ones = Printer(), jnp.ones((2000, 2000))
run = logger.init(8)
def f(x):
    lox.log({"x": x})
    return x
loop = jax.jit(lambda x: 0 * (ones @ (ones * x))[0, 0] + x)
tapped = jax.jit(lox.tap(f, lambda logs: time.sleep(1)))
x = tapped(loop(jnp.float32(1))).block_until_ready()
for _ in range(9):
    x = loop(x)
tapped(x)
if not os.fork():
    logger.log(run, {"x": 2})
    sys.exit()
os.wait()  # JAX may end such a child with a signal.
say("ended")
os._exit(0)
"""


@forks
@pytest.mark.integration
def test_a_process_that_is_forked_while_a_program_logs_ends():
    found, _ = ended(FORKS + TAPS)
    assert found == ["start seed=8-016d05", "write seed=8-016d05 2", "finish seed=8-016d05", "ended"]


BUSY = """
from lox.loggers import _fork
_fork.LONGEST = 0.2
class Busy(Printer):
    def write(self, run, logs):
        time.sleep(2)
        super().write(run, logs)
logger = Busy()
logger.log(logger.init(7), {"x": 1})
def child():
    try:
        logger.log(logger.init(8), {"x": 2})
    except lox.LogValueError as error:
        say(error)
fork_by_multiprocessing(child)
"""


@forks
@pytest.mark.integration
def test_a_logger_that_is_writing_when_its_process_forks_is_refused_in_the_child():
    refused = (
        "Busy() was still writing 0.2 s after this process was to be forked, and cannot be used in it. Make another "
        "logger in this process, or call `flush` before the fork."
    )
    run = "seed=7-941678"
    assert ended(FORKS + BUSY)[0] == [f"start {run}", refused, f"write {run} 1", f"finish {run}"]


@forks
@pytest.mark.integration
def test_a_run_of_the_process_before_the_last_fork_but_one_is_refused_as_well():
    code = """
logger = Printer()
runs = [logger.init(seed) for seed in (7, 8)]
logger.log(runs[0], {"x": 1})
lox.flush()
def grandchild():
    try:
        logger.log(runs[0], {"x": 3})
    except lox.LogValueError:
        say("refused")
def child():
    logger.log(runs[1], {"x": 2})
    lox.flush()
    fork_by_hand(grandchild)
fork_by_hand(child)
"""
    found, _ = ended(FORKS + code)
    assert found.count("refused") == 1 and not any("write" in line and line.endswith(" 3") for line in found)


SINKS = """
import rich.console
from lox.loggers import ConsoleLogger, MultiLogger, SaveLogger, TensorBoardLogger
folder, console = sys.argv[1], rich.console.Console(file=sys.stdout, force_terminal=False)
sinks = TensorBoardLogger(folder), SaveLogger(folder), ConsoleLogger({"step": 10}, console=console)
logger = MultiLogger(*sinks, name="tried")
runs = [logger.init(seed) for seed in (7, 8)]
logger.log(runs[0], {"x": 1.0}, step=0)
logger.flush()
def child():
    for step in (4, 5):
        logger.log(runs[1], {"x": float(step)}, step=step)
    try:
        logger.log(runs[0], {"x": 9.0}, step=9)
    except lox.LogValueError:
        say("refused")
fork_by_multiprocessing(child)
logger.log(runs[0], {"x": 3.0}, step=1)
"""


@forks
def test_a_forked_process_writes_its_own_runs_alone_to_files_and_lines_of_text(tmp_path):
    lines, errors = ended(FORKS + SINKS, tmp_path)
    assert "Error" not in errors and lines.count("refused") == 1
    seven, eight = "seed=7-941678", "seed=8-016d05"
    assert {name: logs["x"].tolist() for name, logs in lox.load(tmp_path / "tried").items()} == {
        seven: [1, 3],
        eight: [4, 5],
    }
    sink = TensorBoard(tmp_path)
    assert sink.numbers() == {seven: {"x": [(0, 1), (1, 3)]}, eight: {"x": [(4, 4), (5, 5)]}}
    assert len(list((tmp_path / "tried").rglob("events*"))) == 2
    shown = [(line.partition(")")[0], line.rpartition("  ")[2]) for line in lines if line != "refused"]
    (first, *own, last) = shown
    assert (first, own[-1], last) == (("step 1/10 (10%", "x 1"), ("step 6/10 (60%", "x 5"), ("step 2/10 (20%", "x 3"))
    assert {*own[:-1]} <= {("step 5/10 (50%", "x 4")}
