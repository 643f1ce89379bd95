"""The programs of other ways of logging do log."""

import jax
import pytest

from benchmarks import peers, training
from benchmarks._present import host_calls


@pytest.mark.parametrize("make", [training.digits, training.transformer])
def test_each_way_of_logging_calls_the_host_for_each_line_that_logs(make):
    args = make().args
    with jax.numpy_dtype_promotion("standard"):
        calls = {name: host_calls(jitted, *args) for name, jitted in peers.jitted_ways(make)}
    assert calls.pop("nothing") == 0
    assert {"debug.callback", "debug.callback, ordered", "lox.tap"} <= calls.keys()
    assert min(calls.values()) >= 1 and calls["debug.callback"] >= 2
