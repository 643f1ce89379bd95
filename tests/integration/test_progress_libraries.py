"""`lox.progress` on programs of other people, on a terminal and in a pipe."""

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jupyter_client.manager import start_new_kernel

import lox
from lox._progress._board import Board

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def promotes():
    with jax.numpy_dtype_promotion("standard"):  # As libraries need.
        yield


@pytest.fixture
def loops(monkeypatch):
    """The loops that tell how far they are, with the number of iterations of each."""
    loops = {}
    report = Board.report

    def noted(self, loop, number, done, live):
        loops[loop] = loops.get(loop, 0) + done
        return report(self, loop, number, done, live)

    monkeypatch.setattr(Board, "report", noted)
    return loops


def same(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, 1e-5, 1e-6), found, expected)


def test_chains_of_blackjax_have_one_bar(loops):
    kernel = blackjax.nuts(lambda x: -0.5 * jnp.sum(x**2), 0.5, jnp.ones(2))

    def run(key):
        step = lambda state, key: (kernel.step(key, state)[0], state.position)  # noqa: E731
        return jax.lax.scan(step, kernel.init(jnp.ones(2)), jax.random.split(key, 21))[1]

    keys = jax.random.split(jax.random.key(0), 3)
    same(lox.progress(jax.jit(jax.vmap(run)))(keys), jax.jit(jax.vmap(run))(keys))
    (loop,) = loops
    assert (loop.path, loop.length, loop.elements, loops[loop]) == ("run/scan", 21, 3, 21)


@pytest.mark.parametrize("run", [blackjax.util.run_inference_algorithm])
def test_loops_of_blackjax_have_bars(run, loops):
    kernel = blackjax.nuts(lambda x: -0.5 * jnp.sum(x**2), 0.5, jnp.ones(2))
    sample = lambda key: run(key, kernel, 30, initial_position=jnp.ones(2))[1]  # noqa: E731
    same(lox.progress(sample)(jax.random.key(0)), sample(jax.random.key(0)))
    assert {loop.path: count for loop, count in loops.items()} == {"scan": 30}


def test_a_training_of_flax_in_one_scan_has_a_bar(loops):
    model, optimizer = nn.Dense(4), optax.adam(1e-2)

    @jax.jit
    def train(params, keys):
        def step(carry, key):
            params, state = carry
            x = jax.random.normal(key, (8, 4))
            loss, grads = jax.value_and_grad(lambda params: jnp.mean((model.apply(params, x) - x) ** 2))(params)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(step, (params, optimizer.init(params)), keys)[1]

    params = model.init(jax.random.key(0), jnp.ones((8, 4)))
    keys = jax.random.split(jax.random.key(1), 50)
    same(lox.progress(train)(params, keys), train(params, keys))
    assert {loop.path: count for loop, count in loops.items()} == {"train/scan": 50}


PROGRAM = """
    import jax, jax.numpy as jnp, lox
    from jax.experimental import io_callback
    import time
    def step(c, i):
        def wait(i):
            time.sleep(0.01)
            return i
        return c + io_callback(wait, jax.ShapeDtypeStruct((), jnp.int32), i), None
    print("begins")
    print(lox.progress(lambda x: jax.lax.scan(step, x, jnp.arange(120))[0], label="training")(0))
    print("ends")
"""


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "XLA_FLAGS"))}
    return kept | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TERM": "xterm", "COLUMNS": "100"}


def test_a_pipe_gets_lines_on_standard_error():
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (0, "begins\n7140\nends\n")
    first, *_, last = found.stderr.splitlines()
    assert first.startswith("training ") and last.startswith("training 120/120 (100%), ") and "\x1b" not in found.stderr


def test_a_terminal_gets_a_bar_that_moves_and_its_cursor_back():
    outer, inner = pty.openpty()
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    process = subprocess.Popen(command, env=environment(), stdout=inner, stderr=inner, stdin=inner)
    os.close(inner)
    text = b""
    while True:
        try:
            text += os.read(outer, 65536)
        except OSError:  # The other end is closed.
            break
    assert process.wait(60) == 0
    found = text.decode()
    assert found.count("\x1b[?25l") == found.count("\x1b[?25h") == 1
    shown = {line.split("/120")[0].split()[-1] for line in found.splitlines() if "/120" in line}
    assert len(shown) >= 3 and "120" in shown and "training" in found
    assert found.index("begins") < found.index("/120") < found.index("7140") < found.index("ends")


def test_a_notebook_has_one_display_in_the_cell_that_ends_complete():
    manager, client = start_new_kernel(kernel_name="python3", env=environment())
    messages = []
    try:
        reply = client.execute_interactive(textwrap.dedent(PROGRAM), output_hook=messages.append, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    (shown,) = [each["content"] for each in messages if each["msg_type"] == "display_data"]
    updates = [each["content"] for each in messages if each["msg_type"] == "update_display_data"]
    assert {each["transient"]["display_id"] for each in updates} == {shown["transient"]["display_id"]}
    assert all("training" in each["data"]["text/plain"] and "<pre" in each["data"]["text/html"] for each in updates)
    counts = [re.search(r"(\d+)/120", each["data"]["text/plain"]).group(1) for each in (shown, *updates)]
    assert len(set(counts)) >= 3 and counts[-1] == "120"
    text = "".join(each["content"]["text"] for each in messages if each["msg_type"] == "stream")
    assert text == "begins\n7140\nends\n"


LONG = """
    import sys, jax, jax.numpy as jnp, lox
    fun = lambda x: jax.lax.fori_loop(0, 2_000_000_000, lambda i, c: jnp.sin(c) + 1e-9 * i, x)
    fun = lox.progress(jax.jit(fun)) if sys.argv[1] == "of jit" else jax.jit(lox.progress(fun))
    jax.block_until_ready(fun(0.5))
"""


@pytest.mark.parametrize("how", ["of jit", "in jit"])
def test_ctrl_c_ends_a_loop_with_a_bar_at_once_and_the_terminal_gets_its_cursor_back(how):
    outer, inner = pty.openpty()
    command = [sys.executable, "-c", textwrap.dedent(LONG), how]
    process = subprocess.Popen(command, env=environment(), stdout=inner, stderr=inner, stdin=inner)
    os.close(inner)
    text = b""
    while text.count(b"/2,000,000,000") < 3:
        text += os.read(outer, 65536)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            text += os.read(outer, 65536)
        except OSError:  # The other end is closed.
            break
    assert process.wait(30) in ((-signal.SIGINT,) if how == "of jit" else (-signal.SIGINT, 1))
    assert text.count(b"\x1b[?25l") == text.count(b"\x1b[?25h") == 1 and b"KeyboardInterrupt" in text
