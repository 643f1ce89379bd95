"""What loggers have written however a program ends: at once, by an exception, by Ctrl-C, in a forked child."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import ROOT

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
            _, errors = process.communicate(timeout=5)
        finally:
            process.kill()
    count = 5 * loggers.count("Blocked")
    assert f"{count} deliveries to loggers were not written" in errors
