"""`lox.loggers.ConsoleLogger` on a terminal, off it, and in a notebook."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import lox
from lox import _screen
from lox.loggers._run import Run
from lox.loggers._statistics import BARS, Series, Statistics, numbers_of


def terminal(**options):
    return Console(file=io.StringIO(), force_terminal=True, width=100, legacy_windows=False, **options)


def pipe():
    return Console(file=io.StringIO(), force_terminal=False)


def printed(console):
    """What was printed, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue()).replace("\r", "\n")


def last_table(console):
    lines = [line.split() for line in printed(console).splitlines() if line.strip()]
    starts = [place for place, line in enumerate(lines) if "last" in line and "mean" in line]
    return lines[starts[-1] :] if starts else lines


def logs_of(**values):
    return lox.logdict({key.replace("_", "/"): np.asarray(value) for key, value in values.items()})


def test_a_line_says_how_far_it_is_and_what_was_last():
    console = pipe()
    with lox.loggers.ConsoleLogger({"step": 4}, seconds=1000, console=console) as logger:
        for key, scale in ((1, 1.0), (2, 3.0)):
            values = np.arange(3) * scale
            logs = lox.logdict({"loss": values, "v": np.ones((3, 2))}, {"step": {"loss": np.arange(3)}})
            logger.log(logger.init(key), logs)
            logger.flush()
    first, last = printed(console).splitlines()
    assert re.match(r"step 3/4 \(75%\).*  loss 2  v 1$", first)
    assert re.match(r"step 3/4 \(75%\).*  loss 4 ± 2  v 1 ± 0$", last)


def test_lines_come_every_so_many_seconds_whatever_the_number_of_events():
    console = pipe()
    with lox.loggers.ConsoleLogger(seconds=0.2, console=console) as logger:
        state, start = logger.init(0), time.monotonic()
        for i in range(3000):
            logger.log(state, logs_of(x=[float(i)]))
            time.sleep(1e-4)
    lines = printed(console).splitlines()
    assert 2 <= len(lines) <= (time.monotonic() - start) / 0.2 + 2
    assert lines[-1] == "x 2999"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int32, np.float32])
def test_a_counter_of_any_dtype_makes_progress(dtype):
    console = pipe()
    with lox.loggers.ConsoleLogger({"step": 4}, console=console) as logger:
        for steps in (np.arange(3), np.zeros((2, 0))):
            logs = lox.logdict({"x": np.ones(steps.shape)}, {"step": {"x": steps.astype(dtype)}})
            logger.log(logger.init(0), logs)
            logger.flush()
    assert printed(console).startswith("step 3/4 (75%)")


def test_a_counter_that_is_not_finite_makes_no_progress():
    console = pipe()
    with lox.loggers.ConsoleLogger({"step": 4}, console=console) as logger:
        steps = np.array([0.0, np.nan, 1.0, np.inf])
        logger.log(logger.init(0), lox.logdict({"x": np.ones(4)}, {"step": {"x": steps}}))
    assert printed(console).startswith("step 2/4 (50%)")


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # The step goes back.
def test_progress_is_the_mean_of_the_furthest_steps_of_runs():
    console = pipe()
    with lox.loggers.ConsoleLogger({"step": 8}, console=console) as logger:
        for run, steps in ((1, [4, 2]), (1, [3]), (2, [0]), (3, [-1]), (1, [])):
            logs = lox.logdict({"x": np.ones(len(steps))}, {"step": {"x": np.array(steps, int)}})
            logger.log(logger.init(run), logs)
            logger.flush()
    assert printed(console).splitlines()[-1].startswith("step 2/8 (25%)")  # (5 + 1 + 0) / 3


def test_a_counter_that_goes_beyond_its_total_makes_no_progress_for_other_runs():
    console = pipe()
    with lox.loggers.ConsoleLogger({"step": 8}, console=console) as logger:
        for run, step, line in (
            (1, 8, "step 8/8 (100%), 0:00:00 left"),
            (1, 19, "step 8/8 (100%), now 19,"),
            (2, 1, "step 5/8 (62%), now 19"),
        ):
            logger.log(logger.init(run), {"x": 1.0}, step=step)
            logger.flush()
            assert logger.line().startswith(line)
        table = terminal()
        table.print(logger.table(10))
        assert "5/8 now 19 " in printed(table)


def test_a_key_of_several_shapes_counts_all_of_its_values():
    console = pipe()
    with lox.loggers.ConsoleLogger(seconds=1000, console=console) as logger:
        run = Run((0, 7), {})
        logger.start(run)
        for values in ([1.0], [[2.0, 4.0]], [[[8.0]]]):
            logger.write(run, logs_of(x=values))
    table = terminal()
    table.print(logger.table(10))
    assert last_table(table)[-1][:5] == ["x", "8", "4", "1", "8"]  # The mean of 1, 3 and 8.


def test_names_are_text_on_one_line():
    name, key = "[red]a[/red]\n[/b]", "[red]k\x1b[2J"
    for console in (terminal(), pipe()):
        with lox.loggers.ConsoleLogger({name: 4}, console=console) as logger:
            logger.log(logger.init(0), lox.logdict({key: np.ones(1)}, {name: {key: np.ones(1)}}))
        assert r"[red]a[/red]\n[/b] " in printed(console) and r"[red]k\x1b[2J " in printed(console)


def test_the_time_of_a_bar_goes_on_when_another_run_begins(monkeypatch):
    console, now = terminal(), [0.0]
    monkeypatch.setattr(console, "get_time", lambda: now[0])
    with lox.loggers.ConsoleLogger({"step": 2}, console=console) as logger:
        for run, steps in ((1, [0, 1]), (2, [0])):
            logger.log(logger.init(run), lox.logdict({"x": np.ones(len(steps))}, {"step": {"x": np.array(steps)}}))
            logger.flush()
            logger.table(10)
            now[0] += 3600.0
        table = terminal()
        table.print(logger.table(10))
    assert "2:00:00" in printed(table)


def test_a_file_that_has_no_such_characters():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with lox.loggers.ConsoleLogger(console=Console(file=file, force_terminal=False)) as logger:
        for run in (1, 2):
            logger.log(logger.init(run), logs_of(x=[float(run)]))
    assert rb"x 1.5 \xb1 0.5" in file.buffer.getvalue()


def test_a_reader_that_is_gone_ends_nothing():
    code = (
        "import time, numpy as np, lox\n"
        "logger = lox.loggers.ConsoleLogger(seconds=1e-3)\n"
        "for i in range(100):\n"
        "    logger.log(logger.init(np.zeros(2, np.uint32)), lox.logdict({'x': np.ones(1)}))\n"
        "    time.sleep(2e-3)\n"
        "logger.flush()\n"
        "open(0, 'w').write('to the end')\n"
    )
    ours, theirs = os.pipe()
    with subprocess.Popen(["bash", "-c", '"$@" | true', "_", sys.executable, "-c", code], stdin=theirs) as process:
        assert process.wait(60) == 0
    os.close(theirs)
    with os.fdopen(ours) as reader:
        assert reader.read() == "to the end"


def test_what_cannot_be_drawn_is_an_error_of_the_logger_and_the_next_table_is_there():
    console = terminal()
    logger = lox.loggers.ConsoleLogger(console=console)
    logger.log(logger.init(0), lox.logdict({"x": np.array(["text"])}))
    with pytest.raises(ValueError, match="text") as raised:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            logger.flush()
            time.sleep(0.02)
    assert any("ConsoleLogger" in note for note in raised.value.__notes__)
    logger.log(logger.init(0), logs_of(y=[5.0]))
    logger.close()
    assert last_table(console)[-1][:2] == ["y", "5"]


def test_consoles_on_one_terminal_share_a_table():
    primary, secondary = pty.openpty()
    with os.fdopen(primary, "rb", 0), os.fdopen(secondary, "w") as tty:
        consoles = [Console(file=tty, force_terminal=True) for _ in range(2)]
        with (
            lox.loggers.ConsoleLogger(console=consoles[0]) as first,
            lox.loggers.ConsoleLogger(console=consoles[1]) as second,
        ):
            assert first._screen is second._screen


@pytest.mark.parametrize("console", [terminal(), pipe()], ids=["table", "lines"])
def test_what_was_dropped_is_said(console):
    with lox.loggers.ConsoleLogger(console=console, room=1, overflow="drop") as logger:
        with logger._lock:  # Nothing is drawn, and of what comes one delivery waits at most.
            for place in range(10):
                logger.log(logger.init(0), lox.logdict({f"k{place}": np.ones(1)}))
    shown = 10 - logger.dropped
    assert 1 <= shown <= 3
    assert f"{logger.dropped} deliveries dropped" in printed(console).splitlines()[-1]


def test_a_line_names_a_few_of_many_keys():
    console = pipe()
    with lox.loggers.ConsoleLogger(console=console) as logger:
        logger.log(logger.init(0), lox.logdict({f"k{place}": np.zeros(1) for place in range(10_000)}))
    assert printed(console).splitlines()[0].endswith("  k7 0  and 9,992 keys more")


def test_nothing_is_shown_of_a_logger_that_logs_nothing():
    for console in (terminal(), pipe()):
        with lox.loggers.ConsoleLogger({"step": 3}, console=console):
            pass
        assert console.file.getvalue() == ""


def test_a_table_shows_runs_groups_statistics_and_what_is_not_finite():
    console = terminal(height=30)

    def train(key, rate):
        def step(w, i):
            lox.log({"loss": jnp.where(i == 3, jnp.nan, w), "flat": 1e-20}, prefix="train/", step=i)
            lox.log({"huge": 1e30 * jnp.ones((2, 2))})
            return w - rate, None

        return logger.tap(lambda w: jax.lax.scan(step, w, jnp.arange(10))[0], logger.init(key))(10.0)

    with lox.loggers.ConsoleLogger({"step": 20}, console=console) as logger:
        jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2), jnp.array([1.0, 0.5]))
    rows = {row[0]: row[1:] for row in last_table(console)}
    assert rows["train"] == []
    # The last values are 1 and 5.5; of 0 to 9 losses 1, 1.5 ... , those at step 3 are NaN.
    assert rows["loss"][:6] == ["3.25", "±", "2.25", "(2", "not", "finite)"]
    expected = np.array([10.0 - np.arange(10), 10.0 - np.arange(10) / 2])
    expected = np.delete(expected, 3, axis=1)
    assert [float(cell) for cell in rows["loss"][6:9]] == pytest.approx([expected.mean(), 1, 10], rel=1e-3)
    assert rows["loss"][9] == "█▇▆×▅▄▃▃▂▁"
    assert rows["flat"][:4] == ["1e-20", "±", "0", "1e-20"]
    assert rows["huge"][:4] == ["1e+30", "±", "0", "1e+30"]
    assert "10/20" in printed(console)


def test_a_table_shows_as_many_keys_as_there_is_room_for():
    console = terminal(height=12)
    with lox.loggers.ConsoleLogger(console=console) as logger:
        logger.log(logger.init(0), lox.logdict({f"k{place:05}": np.zeros(1) for place in range(10_000)}))
    rows = last_table(console)
    assert rows[-1] == ["and", "9,991", "keys", "more"]
    assert len(rows) == 11


def test_a_table_shows_as_many_groups_as_there_is_room_for():
    console = terminal(height=12)
    with lox.loggers.ConsoleLogger(console=console) as logger:
        logger.log(logger.init(0), lox.logdict({f"g{place}/{key}": np.zeros(1) for place in range(30) for key in "ab"}))
    rows = last_table(console)
    assert len(rows) <= 11
    assert rows[-1] == ["and", "54", "keys", "more"]


def test_what_is_not_finite_does_not_count_in_the_range():
    console = terminal()
    with lox.loggers.ConsoleLogger(console=console) as logger:
        logger.log(logger.init(0), logs_of(x=[1.0, np.inf, 3.0, -np.inf, np.nan, 2.0]))
    (row,) = (row for row in last_table(console) if row[0] == "x")
    assert row[1:8] == ["2", "(3", "not", "finite)", "2", "1", "3"]


@pytest.mark.parametrize("value", [np.zeros((1, 0)), np.zeros((1, 0), bool), np.zeros((1, 3, 0), np.int8)])
def test_events_without_elements_are_named(value):
    for console in (terminal(), pipe()):
        with lox.loggers.ConsoleLogger(console=console) as logger:
            logger.log(logger.init(0), logs_of(empty=value, there=[1.0]))
        assert "empty" in printed(console) and "there" in printed(console)


@pytest.mark.parametrize(
    "value, shown",
    [
        (jnp.bfloat16(1.5), "1.5"),
        (jnp.bool_(True), "1"),
        (jnp.complex64(3 + 4j), "5"),
        (jnp.float32(jnp.inf), "inf"),
        (jnp.float16(-jnp.inf), "-inf"),
        (jnp.array([jnp.inf, -jnp.inf]), "nan"),
        (jnp.uint8(200), "200"),
        (np.float64(-1e300), "-1e+300"),
    ],
)
def test_values_of_every_kind(value, shown):
    for console in (terminal(), pipe()):
        with lox.loggers.ConsoleLogger(console=console) as logger:
            logger.log(logger.init(0), logs_of(x=np.asarray(value)[None]))
        assert re.search(rf"\bx +{re.escape(shown)}\b", printed(console))


@pytest.mark.parametrize(("batch_as", "line"), [("mean", "x 3"), ("histogram", "x 3"), ("each", "x/0 3  x/1 2  x/2 4")])
def test_a_line_shows_the_mean_of_batch_elements_or_each(batch_as, line):
    console = pipe()
    with lox.loggers.ConsoleLogger(console=console, batch_as=batch_as) as logger:
        for scale in (3.0, 1.0):
            xs = scale * jnp.array([1.0, 2.0, 4.0])
            logger.tap(lambda xs: lox.log({"x": xs}, where=xs > 1), logger.init(0))(xs)
    assert printed(console).splitlines()[-1] == line


def test_too_many_batch_elements_for_a_row_each_are_an_error_of_their_key_alone():
    console = pipe()
    logs = lox.logdict({"many": np.zeros((1, 513)), "x": np.ones(1)}, {"step": {"many": np.zeros((1, 513))}})
    with pytest.raises(lox.LogDataError, match="'many' has 513 batch elements"):
        with lox.loggers.ConsoleLogger(console=console, batch_as="each") as logger:
            logger.log(logger.init(0), logs)
    assert printed(console).splitlines()[-1] == "x 1"


def test_batch_elements_in_which_nothing_happened_are_left_out():
    def f(x):
        return jax.lax.cond(x > 1, lambda: (lox.log({"x": x}), x)[1], lambda: x)

    console = pipe()
    with lox.loggers.ConsoleLogger(console=console) as logger:
        logger.tap(jax.vmap(f), logger.init(0))(jnp.array([1.0, 2.0, 4.0]))
    assert printed(console).splitlines() == ["x 3"]


def test_the_table_is_drawn_ten_times_a_second_at_most():
    console = terminal()
    with lox.loggers.ConsoleLogger(console=console) as logger:
        state, start = logger.init(0), time.monotonic()
        while time.monotonic() - start < 1:
            logger.log(state, logs_of(x=[1.0]))
        logger.flush()
        seconds = time.monotonic() - start
    assert 2 <= printed(console).count("last") <= 10 * seconds + 3


@pytest.mark.integration
def test_several_loggers_share_a_terminal():
    console = terminal(height=40)
    first, second = (lox.loggers.ConsoleLogger({name: 5}, console=console) for name in ("one", "two"))
    for logger, value in ((first, 111), (second, 222)):
        logger.log(logger.init(0), logs_of(x=[value]))
        logger.flush()
    deadline = time.monotonic() + 60
    while not re.search(r"one.*\n(.*\n)+x +111.*\n(two).*\n(.*\n)+x +222", printed(console)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.log(first.init(0), logs_of(x=[333]))
    first.close()
    second.close()
    assert "333" in printed(console)
    assert console.file.getvalue().endswith("\x1b[?25h")  # The cursor is there again.
    with lox.loggers.ConsoleLogger(console=console) as third:
        third.log(third.init(0), logs_of(x=[444]))
    assert "444" in printed(console)


CHILD = """
import jax
import lox
from lox import _screen

logger = lox.loggers.ConsoleLogger({"step": 1000})

def loop(x):
    def step(c):
        lox.log({"x": c}, step=c)
        return c + 1
    return jax.lax.while_loop(lambda c: c < LIMIT, step, x)

"""
RUN = "logger.tap(loop, logger.init(0))(0); logger.flush()\n"
ENDINGS = {
    "close": (f"LIMIT = 20\nwith logger:\n    {RUN}", 0),
    "no close": (f"LIMIT = 20\n{RUN}", 0),
    "exception": (f"LIMIT = 20\n{RUN}raise OSError", 1),
    "exception within": (f"LIMIT = 20\nwith logger:\n    {RUN}    raise OSError", 1),
    "interrupt": (f"LIMIT = 10**9\n{RUN}", -signal.SIGINT),
    "interrupt within": (f"LIMIT = 10**9\nwith logger:\n    {RUN}", -signal.SIGINT),
}


@pytest.mark.integration
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_terminal_is_restored(ending):
    code, status = ENDINGS[ending]
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD + code], stdin=child, stdout=child, stderr=subprocess.DEVNULL, env=environment
    )
    os.close(child)
    shown, interrupted, deadline = b"", 0.0, time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([parent], [], [], 0.1)[0]:
            try:
                shown += os.read(parent, 1 << 16)
            except OSError:  # The other end is closed.
                break
        # Again if need be: what comes while JAX is called by the garbage collector is ignored by Python.
        if "interrupt" in ending and shown.count(b"last") > 3 and time.monotonic() > interrupted + 10:
            interrupted = time.monotonic()
            process.send_signal(signal.SIGINT)
    try:
        assert process.wait(30) == status
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert b"\x1b[?25l" in shown, "it was drawn in place"
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor is there again"


@pytest.mark.integration
def test_a_notebook_has_a_display_that_changes():
    from jupyter_client.manager import start_new_kernel

    code = """
import time, jax, jax.numpy as jnp, lox
logger = lox.loggers.ConsoleLogger({"step": 100})
state = logger.init(0)
for i in range(2000):
    logger.log(state, lox.logdict({"loss": jnp.ones(1) * i}, {"step": {"loss": jnp.arange(i, i + 1)}}))
logger.close()
print("done")
"""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        messages, start = [], time.monotonic()
        reply = client.execute_interactive(code, output_hook=messages.append, timeout=60)
        seconds = time.monotonic() - start
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    of = {kind: [m["content"] for m in messages if m["msg_type"] == kind] for kind in ("display_data", "stream")}
    updates = [m["content"] for m in messages if m["msg_type"] == "update_display_data"]
    assert len(of["display_data"]) == 1
    assert 1 <= len(updates) <= 10 * seconds + 2
    assert "1999" in updates[-1]["data"]["text/plain"] and "100/100" in updates[-1]["data"]["text/plain"]
    assert "<pre" in updates[-1]["data"]["text/html"]
    assert [each["text"] for each in of["stream"]] == ["done\n"]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_series_is_that_of_means(reverse):
    values = np.sin(np.arange(1000.0))
    series = Series()
    for start in range(0, 1000, 7):
        series.add(start, values[start : start + 7])
        series.add(start, -values[start : start + 7] if reverse else values[start : start + 7])
    means = series.means()
    assert BARS <= len(means) <= 2 * BARS
    each = 32
    wanted = [0 if reverse else values[start : start + each].mean() for start in range(0, 1000, each)]
    np.testing.assert_allclose(means, wanted, atol=1e-12)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"progress": 100}, lox.LogDataError, 'is a mapping such as {"step": 10_000}, got 100'),
        ({"progress": {3: 10}}, lox.LogDataError, "maps the names of counters, got 3"),
        ({"console": 7}, lox.LogDataError, "is a rich.console.Console, got 7"),
        ({"progress": {"step": 0}}, lox.LogValueError, "needs a positive integer for 'step', got 0"),
        ({"progress": {"step": 1.5}}, lox.LogValueError, "needs a positive integer for 'step', got 1.5"),
        ({"progress": {"step": True}}, lox.LogValueError, "needs a positive integer for 'step', got True"),
        ({"seconds": "1"}, lox.LogDataError, "is a number of seconds, got '1'"),
        ({"seconds": 0}, lox.LogValueError, "must be positive, got 0"),
        ({"seconds": float("nan")}, lox.LogValueError, "must be positive, got nan"),
        ({"room": 0}, lox.LogValueError, "room"),
    ],
)
def test_options_that_mean_nothing_are_errors(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        lox.loggers.ConsoleLogger(**options)


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # The step goes back.
def test_progress_does_not_go_back_with_a_counter():
    console = pipe()
    with lox.loggers.ConsoleLogger({"step": 10}, console=console) as logger:
        state = logger.init(0)
        for step in (7, 2):
            logger.log(state, lox.logdict({"x": np.ones(1)}, {"step": {"x": np.array([step])}}))
            logger.flush()
            assert logger.line().startswith("step 8/10 (80%)")


def test_the_time_of_a_bar_ends_when_all_is_done(monkeypatch):
    console, now = terminal(), [0.0]
    monkeypatch.setattr(console, "get_time", lambda: now[0])
    with lox.loggers.ConsoleLogger({"step": 2}, console=console) as logger:
        logger.log(logger.init(0), lox.logdict({"x": np.ones(2)}, {"step": {"x": np.arange(2)}}))
        logger.flush()
        for _ in range(3):
            table = terminal()
            table.print(logger.table(10))
            now[0] += 3600.0
        assert "0:00:00" in printed(table) and "2:00:00" not in printed(table)


def test_what_is_not_finite_has_its_place_among_the_events():
    statistics = Statistics()
    for numbers in ([1.0, np.nan], [3.0], [np.nan]):
        statistics.add((0,), np.array(numbers))
    np.testing.assert_array_equal(statistics.series.means(), [1, np.nan, 3, np.nan])
    assert np.isnan(statistics.last[0,]) and statistics.not_finite == 2
    parts = [lox.logdict({"x": np.ones(shape)}) for shape in ((2, 3), (2, 0), (1, 2))]
    assert [list(numbers) for numbers in numbers_of("x", parts)] == [[1, 1], [1]]


def test_a_distribution_has_a_row_for_each_quantile():
    console = pipe()
    made_by = {"q": lox.reductions.quantiles([0, 1]), "h": lox.reductions.histogram([0, 1])}
    data = {"x": np.array([[2.0, 4.0]]), "q": np.array([[1.0, 8.0]]), "h": np.array([[0, 5, 0]])}
    with lox.loggers.ConsoleLogger(seconds=1000, console=console) as logger:
        logger.log(logger.init(7), lox.logdict(data, distributions=made_by))
    assert printed(console).splitlines()[-1] == "x 3  q/q0 1  q/q1 8  h/q0.1 0.1  h/q0.5 0.5  h/q0.9 0.9"


def test_lines_that_are_new_are_printed_every_so_many_seconds_and_at_the_end(monkeypatch):
    now, text = 0.0, ""
    monkeypatch.setattr(_screen, "time", types.SimpleNamespace(monotonic=lambda: now))
    console = pipe()
    screen, part = _screen.screen_of(console, 5.0), types.SimpleNamespace(line=lambda: text)
    screen.add(part)
    told = 0
    for now, text, expected in (
        (0.0, "a 1\nb 1", "a 1\nb 1\n"),
        (4.9, "a 2\nb 1", ""),
        (5.0, "a 3\nb 1", "a 3\n"),
        (9.9, "a 4\nb 2", ""),
        (10.1, "a 4\nb 1\nc 1", "a 4\nc 1\n"),
        (15.0, "a 1\nb 1\nc 1", ""),
        (15.1, "a 1\nb 1\nc 1", "a 1\n"),
        (15.2, "a 9\nb 1\nc 1", ""),
    ):
        screen.changed(part)
        assert console.file.getvalue()[told:] == expected, now
        told = len(console.file.getvalue())
    screen.remove(part)
    assert console.file.getvalue()[told:] == "a 9\n"
    told = len(console.file.getvalue())
    screen.add(part)
    screen.changed(part)
    assert console.file.getvalue()[told:] == "a 9\nb 1\nc 1\n"
    told = len(console.file.getvalue())
    screen.remove(part)
    assert console.file.getvalue()[told:] == ""


def shown_of(logs):
    """The numbers of the last line for some logs, by key."""
    console = pipe()
    with lox.loggers.ConsoleLogger(seconds=1000, console=console) as logger:
        logger.log(logger.init(7), logs)
    fields = printed(console).splitlines()[-1].split("  ")
    return {key: float(value) for key, value in (field.split(" ") for field in fields)}


def quantile(edges, counts, q):
    """The quantile of numbers that are spread evenly in bins, those beyond the finite edges being at these."""
    finite = [edge for edge in edges if np.isfinite(edge)]
    first, last = edges.index(finite[0]), len(edges) - 1 - edges.index(finite[-1])
    of_bins = [sum(counts[: first + 1]), *counts[first + 1 : len(counts) - last - 1]]
    of_bins.append(sum(counts[len(counts) - last - 1 :]))
    points, sofar, rank = [finite[0], *finite, finite[-1]], 0, q * sum(counts)
    for low, high, count in zip(points, points[1:], of_bins, strict=False):
        if count and sofar + count >= rank:
            return low + (high - low) * (rank - sofar) / count
        sofar += count


@pytest.mark.parametrize(
    "edges",
    [[0.0, 1.0, 10.0], [-np.inf, 0.0, 1.0, 4.0], [0.0, 2.0, np.inf], [-np.inf, -1.0, 0.5, 3.0, np.inf], [2.0]],
    ids=str,
)
def test_quantiles_of_histograms_are_estimated_as_if_numbers_were_spread_evenly_in_each_bin(edges):
    rng = np.random.default_rng(len(edges))
    for counts in [*rng.integers(0, 9, (3, len(edges) + 1)), np.eye(len(edges) + 1, dtype=int)[-1]]:
        how = lox.reductions.histogram(edges)
        found = shown_of(lox.logdict({"h": np.uint32([counts])}, distributions={"h": how}))
        expected = {f"h/q{q}": quantile(edges, counts.tolist(), q) for q in (0.1, 0.5, 0.9)}
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_a_number_is_the_mean_of_all_elements_of_the_batch_elements_in_which_the_event_happened():
    rng = np.random.default_rng(0)
    mask = np.array([[True, True, True], [True, False, True]])
    floats = rng.random((2, 3, 2, 2)).astype(np.float32)
    values = {
        "f": np.where(mask[..., None, None], floats, np.nan),
        "z": (floats[..., 0] + 1j * floats[..., 1]).astype(np.complex64),
        "i": rng.integers(-100, 100, (2, 3, 4), np.int8),
        "b": rng.random((2, 3)) < 0.5,
        "half": jnp.asarray(floats[:, :, 0], jnp.bfloat16),
    }
    whole = {"w": floats[..., 0, 0], "step": np.float32([[1, 2], [3, 5]])}
    masks = dict.fromkeys(values, mask)
    found = shown_of(lox.logdict(values | whole, {"step": {"w": np.zeros((2, 3), int)}}, masks))
    expected = {
        key: np.abs(np.asarray(value, complex if key == "z" else float)[1][mask[1]]).mean()
        for key, value in values.items()
    }
    expected["i"] = values["i"][1][mask[1]].mean()
    expected |= {"w": floats[1, :, 0, 0].mean(), "step": 4.0}
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_a_table_has_a_line_for_each_bar_group_and_key_as_far_as_there_is_room():
    """Keys are in groups in the order in which these came, and the last line says how many have no room."""
    keys = ["loss", "a/x", "a/y", "lr", "b/c/z", "a/w", "b/c/v", "b/u"]
    groups = {"": ["loss", "lr"], "a": ["x", "y", "w"], "b/c": ["z", "v"], "b": ["u"]}
    console = terminal()
    with lox.loggers.ConsoleLogger({"step": 5, "epoch": 3}, console=console) as logger:
        logger.log(logger.init(0), logs_of(loss=[2.0]), step=1, epoch=0)
        logger.log(logger.init(0), lox.logdict({key: np.ones(1) for key in keys[1:]}))
        logger.flush()
        for dropped in (0, 1234):
            logger._worker.dropped = dropped
            for height in range(3, 20):
                shown = terminal()
                shown.print(logger.table(height))
                lines = [line for line in printed(shown).splitlines() if line.strip()]
                room = max(height - 2 - 2 - bool(dropped), 1)
                expected, left = [], len(keys)
                for group, names in groups.items():
                    if room < 2:
                        break
                    if group:
                        expected.append(group)
                        room -= 1
                    expected += [f"  {name}" if group else name for name in names[:room]]
                    left -= len(names[:room])
                    room -= len(names[:room])
                expected += [f"and {left} keys more"] if left else []
                expected += ["1,234 deliveries dropped"] if dropped else []
                assert [line.split()[0] for line in lines[:2]] == ["step", "epoch"]
                assert "2/5" in lines[0] and "1/3" in lines[1]
                assert lines[2].split() == ["last", "mean", "min", "max"]
                assert [re.match(r" *(and .* more|.* dropped|\S+)", line)[0] for line in lines[3:]] == expected
                assert len(lines) <= max(height, 4 + bool(dropped))
    rows = {row[0]: row[1:] for row in last_table(console)}
    assert rows["loss"][:4] == ["2", "2", "2", "2"] and rows["a"] == rows["b/c"] == []


def test_a_line_says_how_fast_it_goes_and_how_long_it_takes_for_each_counter(monkeypatch):
    console, now = pipe(), [100.0]
    monkeypatch.setattr(console, "get_time", lambda: now[0])
    totals = {"step": 10, "epoch": 4, "never": 3}
    with lox.loggers.ConsoleLogger(totals, seconds=1000, console=console, batch_as="each") as logger:
        run, found = logger.init(0), []
        for place, (steps, epoch) in enumerate((([0, 1], 0), ([2, 3], 1), ([5, 5], 4), ([9, 11], 6))):
            mask = np.array([[True, place != 1]])  # What did not happen is nowhere.
            counters = {"step": np.array([steps]), "epoch": np.full((1, 2), epoch)}
            values = np.array([[1.0, 2.0]]) * (place + 1)
            made = lox.logdict({"x": values}, {name: {"x": step} for name, step in counters.items()}, {"x": mask})
            logger.log(run, made)
            logger.flush()
            found.append(logger.line())
            now[0] += 2.0
    assert found == [
        "step 2/10 (20%)  epoch 1/4 (25%)  never 0/3 (0%)  x/0 1  x/1 2",
        "step 3/10 (30%), 0.5/s, 0:00:14 left  epoch 2/4 (50%), 0.5/s, 0:00:04 left  never 0/3 (0%)  x/0 2  x/1 2",
        "step 6/10 (60%), 1/s, 0:00:04 left  epoch 4/4 (100%), 0.75/s, 0:00:00 left  never 0/3 (0%)  x/0 3  x/1 6",
        "step 10/10 (100%), now 11, 1.333/s, 0:00:00 left  epoch 4/4 (100%), now 6, 0.75/s, 0:00:00 left"
        "  never 0/3 (0%)  x/0 4  x/1 8",
    ]
    assert printed(console).splitlines() == [found[0], found[-1]]


def test_what_is_not_finite_is_red_and_names_of_groups_are_bold():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system="standard", legacy_windows=False)
    with lox.loggers.ConsoleLogger(console=console) as logger:
        data = {"g/good": [1.0, 2.0], "g/bad": [3.0, np.nan], "g/was": [np.inf, 4.0], "g/never": [np.nan, np.nan]}
        logger.log(logger.init(0), lox.logdict({key: np.array(values) for key, values in data.items()}))
    last = console.file.getvalue().rpartition("last")[2].splitlines()
    rows = {re.sub(r"\x1b\[[0-9;]*m", "", line).split()[0]: line for line in last if "\x1b" in line or "good" in line}
    plain = {name: re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).split() for name, line in rows.items()}
    assert plain["good"] == ["good", "2", "1.5", "1", "2", "▁█"]
    assert plain["bad"] == ["bad", "nan", "(1", "not", "finite)", "3", "3", "3", "▁×"]
    assert plain["was"] == ["was", "4", "(1", "not", "finite)", "4", "4", "4", "×▁"]
    assert plain["never"] == ["never", "nan", "(2", "not", "finite)", "××"]
    assert "\x1b[1mg" in rows["g"] and "\x1b[31m" not in rows["good"]
    for name, value in (("bad", "nan"), ("never", "nan")):
        assert f"\x1b[1;31m{value}\x1b[0m\x1b[1;31m (" in rows[name]
    assert "\x1b[1;31m" not in rows["was"] and "\x1b[31m (1 not finite)" in rows["was"]


def test_a_quantile_is_called_as_no_other_key_that_came_before_or_comes_with_it():
    made_by = {"x": lox.reductions.quantiles([0, 1])}
    for together in (False, True):
        console = pipe()
        with lox.loggers.ConsoleLogger(seconds=1000, console=console) as logger:
            run, other = logger.init(7), {"x/q1": np.array([7.0]), "x/q1_": np.array([6.0])}
            for place in range(2):
                data = {"x": np.array([[1.0, 8.0]]) + place}
                if together:
                    logger.log(run, lox.logdict(other | data, distributions=made_by))
                else:
                    logger.log(run, lox.logdict(other))
                    logger.flush()
                    logger.log(run, lox.logdict(data, distributions=made_by))
                logger.flush()
        assert printed(console).splitlines()[-1] == "x/q1 7  x/q1_ 6  x/q0 2  x/q1__ 9"


def test_as_many_batch_elements_as_there_may_be_have_a_row_each():
    console = pipe()
    with lox.loggers.ConsoleLogger(seconds=1000, console=console, batch_as="each") as logger:
        data = np.arange(512.0).reshape(1, 2, 256)
        logger.log(logger.init(0), lox.logdict({"x": data}, {}, {"x": np.ones(data.shape, bool)}))
        logger.flush()
        table = terminal(height=600)
        table.print(logger.table(600))
    rows = [line.split()[:2] for line in printed(table).splitlines()[1:]]
    expected = []
    for i in range(2):
        expected += [[f"x/{i}"], *([f"{j}", f"{256 * i + j}"] for j in range(256))]
    assert [row for row in rows if row] == expected


def test_the_mean_of_many_small_floats_is_finite():
    console = pipe()
    with lox.loggers.ConsoleLogger(console=console) as logger:
        logger.log(logger.init(0), logs_of(x=np.full((1, 100), 2000.0, np.float16)))
    assert printed(console).splitlines()[-1].endswith("x 2000")
