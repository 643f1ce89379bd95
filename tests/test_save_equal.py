"""Saved logs are equal in whatever way the same events were logged, also when several log calls share a key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from runs import saver

import lox

COUNT = 4
STARTS = np.float32([1, 0.25, 0.75])
BOUND = 0.6

VALUES = {
    "loss": lambda x, place: x + place,
    "accuracy": lambda x, place: 1 - x,
    "positive": lambda x, place: x > 0.7,
    "vector": lambda x, place: (jnp if isinstance(x, jax.Array) else np).stack([x, 2 * x], axis=-1),
}
"""The value of each key, given `x` and the number of the log call in a step."""


def step_of(calls):
    """The body of a loop that makes log calls: each has keys, and None, "cond" or "where" for when it happens."""

    def step(x, i):
        for place, (keys, when) in enumerate(calls):
            values = {key: VALUES[key](x, place) for key in keys}
            if when == "cond":
                lax.cond(x > BOUND, lambda: lox.log(values, step=i) and None, lambda: None)
            else:
                lox.log(values, step=i, where=None if when is None else x > BOUND)
        return 1 - x / 2, None

    return step


def expected_of(calls, xs):
    """The logs that the loop makes of all its batch elements, by a loop in Python; shape `()` is a single one."""
    values, steps, masks = {}, {}, {}
    for i in range(COUNT):
        for place, (keys, when) in enumerate(calls):
            happened = np.broadcast_to(True, xs.shape) if when is None else xs > BOUND
            for key in keys if happened.any() else ():
                values.setdefault(key, []).append(VALUES[key](xs, place))
                steps.setdefault(key, []).append(np.full(xs.shape, i, np.int32))
                masks.setdefault(key, []).append(happened)
        xs = np.float32(1) - xs / np.float32(2)
    stacked = [{key: np.stack(rows) for key, rows in each.items()} for each in (values, steps, masks)]
    return lox.logdict(stacked[0], {"step": stacked[1]}, {k: m for k, m in stacked[2].items() if not m.all()})


def ways(logger, calls, batched):
    """Log the same events in all ways, each to a run of the name of the way."""
    step = step_of(calls)

    def loop(x, start, count=COUNT):
        return lax.scan(step, x, start + jnp.arange(count))[0]

    f = jax.vmap(loop, (0, None)) if batched else loop
    one = jax.vmap(lambda x, i: loop(x, i, 1), (0, None)) if batched else lambda x, i: loop(x, i, 1)
    x, start = jnp.asarray(STARTS if batched else STARTS[0]), jnp.int32(0)
    runs = {name: logger.init(0, name=name) for name in WAYS}
    jax.jit(logger.tap(f, runs["tap"]))(x, start)
    jax.jit(logger.tap(f, runs["tap-with-a-buffer"], buffer=3))(x, start)
    jax.jit(logger.spool(f, runs["spool"], unify=True))(x, start)
    _, logs = jax.jit(lox.spool(f, unify=True))(x, start)
    logger.log(runs["log-of-what-spool-returned"], logs)
    tapped, spooled = (jax.jit(way) for way in (logger.tap(one, runs["tap-of-steps"]), lox.spool(one, unify=True)))
    for i in range(COUNT):
        lox.flush()
        tapped(x, jnp.int32(i))
        x, logs = spooled(x, jnp.int32(i))
        logger.log(runs["log-of-steps"], logs)
        logger.flush()
    events = []
    jax.jit(lox.tap(f, events.append))(jnp.asarray(STARTS if batched else STARTS[0]), start)
    lox.flush()
    for name, flush in (("each-event-alone", False), ("each-event-alone-and-flushed", True)):
        for event in events:
            logger.log(runs[name], event)
            if flush:
                logger.flush()


WAYS = (
    "tap",
    "tap-with-a-buffer",
    "spool",
    "log-of-what-spool-returned",
    "tap-of-steps",
    "log-of-steps",
    "each-event-alone",
    "each-event-alone-and-flushed",
)

PROGRAMS = {
    "scan": ([(("loss",), None), (("loss", "accuracy"), None)], False),
    "cond": ([(("loss",), "cond"), (("accuracy", "loss"), None)], False),
    "vmap": ([(("loss", "vector"), None), (("loss", "accuracy", "positive"), None)], True),
    "masks": ([(("loss",), "cond"), (("loss", "accuracy"), None), (("accuracy", "vector"), "where")], True),
}


def check(path, calls, batched):
    with saver(path / "runs") as logger:
        ways(logger, calls, batched)
    expected, runs = expected_of(calls, STARTS if batched else STARTS[0]), lox.load(path / "runs")
    assert not {name for name in WAYS if runs[name] != expected}


@pytest.mark.parametrize(
    "name", ["masks", "scan", *(pytest.param(each, marks=pytest.mark.integration) for each in ("cond", "vmap"))]
)
def test_saved_logs_are_equal_in_whatever_way_they_were_logged(tmp_path, name):
    check(tmp_path, *PROGRAMS[name])


@pytest.mark.exhaustive
@pytest.mark.generated(15)
def test_saved_logs_of_random_log_calls_are_equal_in_whatever_way_they_were_logged(tmp_path_factory, examples):
    keys = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True).map(tuple)
    call = st.tuples(keys, st.sampled_from([None, "cond", "where"]))

    @examples
    @given(st.lists(call, min_size=1, max_size=4), st.booleans())
    def run(calls, batched):
        check(tmp_path_factory.mktemp("runs"), calls, batched)

    run()
