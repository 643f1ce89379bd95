"""`max_events=`: the first n events that happen of those whose number is not static, whatever loops they are in."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import lox

N = np.int32(5)


def nested_whiles(n):
    def outer(carry):
        i, x = carry
        lox.log({"x": x, "twice": 2 * x}, step=i)
        j = jax.lax.while_loop(lambda j: j < i, lambda j: (lox.log({"inner": j + 10 * i}), j + 1)[1], 0)
        return i + 1, x + j.astype(x.dtype)

    return jax.lax.while_loop(lambda carry: carry[0] < n, outer, (jnp.int32(0), jnp.float32(0)))[1]


def while_in_scan(n):
    lox.log({"a": jnp.int32(-1)})

    def step(total, i):
        lox.log({"a": 100 * i})
        lox.log({"static": i}, step=i)
        end = jax.lax.while_loop(lambda j: j < i, lambda j: (lox.log({"a": j + 10 * i}), j + 1)[1], 0)
        return total + end, None

    total, _ = jax.lax.scan(step, n, jnp.arange(4))
    lox.log({"a": jnp.int32(-2)})
    return total


def condition_that_logs(n):
    def goes_on(i):
        lox.log({"tested": i})
        return i < n

    return jax.lax.while_loop(goes_on, lambda i: (lox.log({"i": i}), i + 1)[1], 0)


def masked_in_scan(n):
    def step(total, i):
        lox.log({"odd": i * total}, where=(i + n) % 2 == 1, step=i)
        return total + 1, i

    return jax.lax.scan(step, 1, jnp.arange(7), reverse=True)[0]


def branches(n):
    def step(total, i):
        one = lambda: lox.log({"a": i})["a"]  # noqa: E731
        many = lambda: jax.lax.fori_loop(0, n, lambda j, x: lox.log({"a": 10 * i + j})["a"], 0)  # noqa: E731
        scanned = lambda: jax.lax.scan(lambda c, j: (c, lox.log({"a": -j})["a"]), 0, jnp.arange(9))[0]  # noqa: E731
        jax.lax.switch((i + n) % 4, [one, many, scanned, lambda: 0])
        return total + i, None

    return jax.lax.scan(step, 0, jnp.arange(6))[0]


def jit_in_loops(n):
    @jax.jit
    def body(i):
        lox.log({"a": i}, where=i != 2)
        return jax.jit(lambda i: jax.lax.fori_loop(0, i, lambda j, x: lox.log({"b": x + j})["b"], i))(i) * 0 + i + 1

    return jax.lax.while_loop(lambda i: i < n, body, 0)


def rules_in_loops(n):
    @jax.custom_vjp
    def g(x):
        lox.log({"g": x}, where=x > 1)
        return x + 1

    g.defvjp(lambda x: (g(x), None), lambda _, bar: (bar,))
    checked = jax.checkpoint(lambda x: lox.log({"g": 2 * x})["g"])
    end = jnp.asarray(n, jnp.float32)
    return jax.lax.while_loop(lambda x: x < end, lambda x: g(x) + 0 * checked(x), jnp.float32(0))


def mapped(n):
    def each(i):
        return jax.lax.while_loop(lambda j: j < i, lambda j: (lox.log({"j": 10 * i + j}), j + 1)[1], 0)

    return jax.lax.map(each, jnp.arange(5) % n, batch_size=2).sum()


def python_loop(n):
    for i in range(3):
        lox.log({"a": i, "b": -i}, step=i)
        jax.lax.while_loop(lambda j: j < n, lambda j, i=i: (lox.log({"a": 10 * i + j}, step=j), j + 1)[1], 0)
    lox.log({"a": 7, "b": 8}, step=9)
    return n


def staggered(n):
    """Keys with different numbers of events before a loop that logs them together, and a key that it does not log."""
    for i in range(3):
        lox.log({"a": jnp.int32(-i), "static": i}, step=i)
    lox.log({"b": jnp.int32(-9)}, step=9)
    for i in range(5):
        lox.log({"maybe": i}, **({"where": n > 3} if i == 2 else {}))

    def many(i):
        def each(c, j):
            lox.log({"a": 100 * i + j, "b": j}, step=j)
            return c, None

        return jax.lax.scan(each, i + 1, jnp.arange(11))[0]

    jax.lax.while_loop(lambda i: i < n, lambda i: jax.lax.cond(i % 2 == 0, many, lambda i: i + 1, i), 0)
    for i in range(4):
        lox.log({"static": 10 + i}, step=i)
        lox.log({"a": jnp.int32(i), "b": jnp.int32(-i)}, step=-i)
    lox.log({"b": jnp.int32(5)}, step=5)
    return n


def keys_of_prngs(n):
    def body(carry):
        i, key = carry
        lox.log({"key": key, "i": i})
        return i + 1, jax.random.fold_in(key, i)

    jax.lax.while_loop(lambda carry: carry[0] < n, body, (0, jax.random.key(3)))
    return n


PROGRAMS = [
    nested_whiles,
    while_in_scan,
    condition_that_logs,
    masked_in_scan,
    branches,
    jit_in_loops,
    rules_in_loops,
    mapped,
    python_loop,
    staggered,
    keys_of_prngs,
]


def happened(fun, *args):
    """All events, by key, as a tap gets them: the value and the counters of each, and its batch element."""
    found = {}

    def take(logs):
        for key, value in logs.items():
            mask = logs.mask.get(key)
            steps = {name: of[key] for name, of in logs.steps.items() if key in of}
            for place in np.ndindex(*(value.shape[:1] if mask is None else mask.shape)):
                if mask is None or mask[place]:
                    event = (
                        np.asarray(value[place]).tolist(),
                        {name: step[place].item() for name, step in steps.items()},
                    )
                    found.setdefault(key, {}).setdefault(place[1:], []).append(event)

    jax.block_until_ready(jax.jit(lox.tap(fun, take))(*args))
    lox.flush()
    return found


def kept(logs, key, batch=()):
    """The events of a key in a batch element."""
    value, mask = logs[key], logs.mask.get(key)
    value = np.asarray(jax.random.key_data(value) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value)
    steps = {name: np.asarray(of[key]) for name, of in logs.steps.items() if key in of}
    return [
        (value[(at, *batch)].tolist(), {name: step[(at, *batch)].item() for name, step in steps.items()})
        for at in range(len(value))
        if mask is None or mask[(at, *batch)]
    ]


def is_first(logs, expected, bound, interval=1):
    for key in logs:
        events = expected.get(key, {}).get((), [])[::interval]
        capped = key in logs.dropped
        assert kept(logs, key) == (events[:bound] if capped else events), key
        assert (key in logs.mask) == capped
        if capped:
            assert len(logs[key]) == bound
            assert logs.dropped[key] == max(len(events) - bound, 0), key
    assert any(key in logs.dropped for key in logs)


HOW = {
    "eager": lambda f, **how: lox.spool(f, **how),
    "jit of spool": lambda f, **how: jax.jit(lox.spool(f, **how)),
    "spool of jit": lambda f, **how: lox.spool(jax.jit(f), **how),
    "jvp of spool": lambda f, **how: (
        lambda n: jax.jvp(lambda x: (x, lox.spool(f, **how)(n)), (1.0,), (1.0,), has_aux=False)[0][1]
    ),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("bound", [1, 3, 100])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("program", [program for program in PROGRAMS if program not in (mapped, staggered)])
def test_the_first_events_are_kept_and_the_others_counted(program, how, bound, interval):
    out, logs = HOW[how](program, max_events=bound, interval=interval, unify=True)(N)
    np.testing.assert_array_equal(out, program(N))
    is_first(logs, happened(program, N), bound, interval)


@pytest.mark.parametrize(
    ("how", "bound", "interval"),
    list(zip(HOW, [1, 3, 3, 100], [3, 1, 3, 2], strict=True)),
)
def test_keys_with_other_numbers_of_events_before_are_counted_apart(how, bound, interval):
    out, logs = HOW[how](staggered, max_events=bound, interval=interval, unify=True)(N)
    np.testing.assert_array_equal(out, staggered(N))
    is_first(logs, happened(staggered, N), bound, interval)


@pytest.mark.covering(1)
@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("bound", [2, 100])
@pytest.mark.parametrize("spool_first", [True, False])
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in (keys_of_prngs, mapped, staggered)])
def test_each_batch_element_keeps_its_own_first_events(program, spool_first, bound, interval):
    ns = jnp.array([3, 1, 5])
    how = {"max_events": bound, "interval": interval, "unify": True}
    spooled = jax.vmap(lox.spool(program, **how)) if spool_first else lox.spool(jax.vmap(program), **how)
    _, logs = jax.jit(spooled)(ns)
    for element, n in enumerate(ns):
        expected = happened(program, n)
        axis = 0 if spool_first else 1
        alone = lox.logdict(
            *({key: jnp.take(value, element, axis) for key, value in part.items()} for part in (logs.data,)),
            {name: {key: jnp.take(s, element, axis) for key, s in of.items()} for name, of in logs.steps.items()},
            {key: jnp.take(mask, element, axis) for key, mask in logs.mask.items()},
            {key: dropped[element] for key, dropped in logs.dropped.items()},
        )
        is_first(alone, expected, bound, interval)


@pytest.mark.parametrize("bound", [1, 2, 9])
def test_a_map_whose_batches_do_not_divide_its_length_keeps_the_first_of_each_element(bound):
    _, logs = jax.jit(lox.spool(mapped, max_events=bound))(N)
    for element in range(2):
        trips = [i for i in range(element, 5, 2)]
        events = [10 * i + j for i in trips for j in range(i)]
        assert [value for value, _ in kept(logs, "j", (element,))] == events[:bound]
        assert logs.dropped["j"][element] == max(len(events) - bound, 0)


def test_keys_that_are_logged_together_share_their_counters_mask_and_count():
    _, logs = jax.jit(lox.spool(nested_whiles, max_events=3))(N)
    assert logs.timelines == (("inner",), ("twice", "x"))
    assert logs.steps["step"]["x"] is logs.steps["step"]["twice"] and logs.mask["x"] is logs.mask["twice"]
    assert len(jax.tree.leaves(logs)) == 3 + 1 + 2 + 2


def test_keys_whose_number_of_events_is_static_are_not_bounded():
    _, logs = jax.jit(lox.spool(while_in_scan, max_events=2))(N)
    assert logs["static"].tolist() == [0, 1, 2, 3] and "static" not in logs.mask
    assert logs["a"].tolist() == [-1, 0] and logs.dropped["a"] == 1 + 4 + 6 + 1 - 2


def test_where_with_axes_keeps_the_first_of_each_element_in_memory_of_the_bound():
    rng = np.random.default_rng(1)
    done = rng.random((50, 8)) < 0.2
    returns = rng.normal(size=(50, 8)).astype(np.float32)

    def episodes(returns, done):
        def step(episode, now):
            lox.log({"return": now[0]}, where=now[1], step=now[2], episode=episode)
            return episode + now[1].astype(int), None

        jax.lax.scan(step, jnp.zeros(8, int), (returns, done, jnp.arange(50)))

    _, logs = jax.jit(lox.spool(episodes, max_events=4))(returns, done)
    assert logs["return"].shape == (4, 8)
    for env in range(8):
        steps = np.flatnonzero(done[:, env])
        assert logs.dropped["return"][env] == max(len(steps) - 4, 0)
        there = np.asarray(logs.mask["return"][:, env])
        np.testing.assert_array_equal(np.asarray(logs["return"])[there, env], returns[steps[:4], env])
        np.testing.assert_array_equal(np.asarray(logs.steps["step"]["return"])[there, env], steps[:4])
        np.testing.assert_array_equal(
            np.asarray(logs.steps["episode"]["return"])[there, env], np.arange(len(steps))[:4]
        )


def test_in_a_shard_map_each_shard_keeps_its_first_events():
    mesh = jax.make_mesh((2,), ("d",), (jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def f(ns):
        return jax.vmap(nested_whiles)(ns)

    for check in (True, False):
        sharded = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)
        _, logs = jax.jit(lox.spool(sharded, max_events=3))(jnp.array([2, 4, 5, 0]))
        assert logs["x"].shape == (3, 2, 2)
        for place, n in enumerate([2, 4, 5, 0]):
            events = happened(nested_whiles, n).get("x", {}).get((), [])
            assert kept(logs, "x", divmod(place, 2)) == events[:3]
            assert logs.dropped["x"][divmod(place, 2)] == max(len(events) - 3, 0)


def test_a_handler_further_out_gets_the_other_logs_and_with_keep_logs_all():
    def f(n):
        return lox.spool(nested_whiles, argnames="x", max_events=2)(n)[1]["x"]

    (first, logs) = jax.jit(lox.spool(f, max_events=100))(N)
    assert first.tolist() == [0.0, 0.0] and set(logs) == {"inner", "twice"}
    is_first(logs, {key: of for key, of in happened(nested_whiles, N).items() if key != "x"}, 100)

    def g(n):
        return lox.spool(nested_whiles, max_events=2, keep_logs=True)(n)[0]

    is_first(jax.jit(lox.spool(g, max_events=100))(N)[1], happened(nested_whiles, N), 100)
    _, logs = jax.vmap(lox.spool(g, max_events=100))(jnp.array([5, 2]))
    for element, n in enumerate((5, 2)):
        is_first(jax.tree.map(lambda leaf, e=element: leaf[e], logs), happened(nested_whiles, n), 100)


def test_derivatives_of_what_is_kept_are_those_of_the_values():
    def f(xs):
        def step(total, x):
            lox.log({"square": x**2 * total}, where=x > 0)
            return total + x, None

        return jax.lax.scan(step, jnp.float32(1), xs)[0]

    def total(xs, **how):
        _, logs = lox.spool(f, **how)(xs)
        return jnp.sum(jnp.where(logs.mask["square"], logs["square"], 0))

    def by_hand(xs):
        before = 1 + jnp.concatenate([jnp.zeros(1), jnp.cumsum(xs)[:-1]])
        chosen = (xs > 0) & (jnp.cumsum(xs > 0) <= 2)
        return jnp.sum(jnp.where(chosen, xs**2 * before, 0))

    xs = jnp.float32([1, -2, 3, 4])
    for differentiate in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(
            differentiate(functools.partial(total, max_events=2))(xs), differentiate(by_hand)(xs)
        )
    np.testing.assert_allclose(
        jax.vmap(jax.grad(functools.partial(total, max_events=2)))(jnp.stack([xs, -xs])),
        jax.vmap(jax.grad(by_hand))(jnp.stack([xs, -xs])),
    )


def test_nothing_that_is_written_to_a_buffer_is_an_error_of_the_program():
    errors = checkify.all_checks
    for program in (nested_whiles, while_in_scan, masked_in_scan, branches):
        spooled = jax.jit(lox.spool(program, max_events=2, unify=True))
        error, _ = checkify.checkify(spooled, errors)(N)
        assert error.get() is None


def test_what_branches_log_differently_still_needs_unify():
    with pytest.raises(lox.StructureError, match="log different keys"):
        lox.spool(branches, max_events=3)(N)


def test_bounds_by_iterations_and_by_events_exclude_each_other():
    with pytest.raises(lox.LogValueError, match="max_iters= or max_events=, not both"):
        lox.spool(nested_whiles, max_events=3, max_iters=3)


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, "many"])
def test_a_bound_is_a_positive_integer(bound):
    with pytest.raises(lox.LogValueError, match="max_events must be a positive integer"):
        lox.spool(nested_whiles, max_events=bound)


def test_events_of_one_key_must_be_alike_in_loops_too():
    def f(n):
        lox.log({"x": 1.0})
        return jax.lax.while_loop(lambda i: i < n, lambda i: (lox.log({"x": i}), i + 1)[1], 0)

    with pytest.raises(lox.StructureError, match="The key 'x' is logged as"):
        lox.spool(f, max_events=3)(N)


def test_reduced_keys_and_bounded_keys_go_together():
    _, logs = jax.jit(lox.spool(nested_whiles, max_events=2, reduce={"inner": "count"}))(N)
    assert logs["inner"].tolist() == [10] and logs["x"].shape == (2,)


@pytest.mark.parametrize("nested", [False, True])
def test_loops_of_as_many_iterations_as_a_shard_has_keep_its_first_events(nested):
    mesh = jax.make_mesh((2,), ("d",), (jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def f(ns):
        def loop(start):
            def body(i):
                lox.log({"i": i})
                lox.log({"odd": i}, where=i % 2 == 1)
                return i + 1

            return jax.lax.while_loop(lambda i: i < ns[0], body, jax.lax.pcast(start, ("d",), to="varying"))

        if not nested:
            return ns + loop(jnp.int32(0))

        def outer(carry):
            number, total = carry
            lox.log({"number": number})
            return number + 1, total + loop(number)

        start = jax.lax.pcast(jnp.int32(0), ("d",), to="varying")
        return ns + jax.lax.while_loop(lambda carry: carry[0] < 2, outer, (jnp.int32(0), start))[1]

    sharded = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    _, logs = jax.jit(lox.spool(sharded, max_events=3))(jnp.array([2, 4]))
    for shard, n in enumerate((2, 4)):
        starts = range(2) if nested else range(1)
        events = [i for start in starts for i in range(start, n)]
        assert [value for value, _ in kept(logs, "i", (shard,))] == events[:3]
        assert logs.dropped["i"][shard] == max(len(events) - 3, 0)
        assert [value for value, _ in kept(logs, "odd", (shard,))] == [i for i in events if i % 2 == 1][:3]
    if nested:
        assert logs["number"].shape == (3,) and logs.valid("number").tolist() == [0, 1]


def test_a_batch_of_loops_selects_between_no_buffers():
    """JAX selects every carried value of a loop with a batched predicate, which would copy them in each iteration."""

    def selects(fun, n):
        program = jax.jit(fun).lower(n).as_text()
        return len(re.findall(r"stablehlo\.select .*tensor<(?:\d+x)*\d{4,}x\w+>", program))

    spooled = lox.spool(
        lambda n: jax.lax.while_loop(lambda i: i < n, lambda i: lox.log({"i": i})["i"] + 1, 0), max_events=5000
    )
    assert selects(jax.vmap(spooled), jnp.arange(3)) == selects(spooled, N) <= 1


@pytest.mark.parametrize("batched", [False, True])
def test_tangents_of_a_while_loop_whose_buffers_have_none_are_those_of_the_loop(batched):
    def f(x):
        def body(state):
            lox.log({"y": state[1]})
            return state[0] + 1, state[1] * x

        return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, 1.0))[1]

    run, x = lox.spool(f, max_events=4), jnp.float32([2, 3])
    fun = (lambda x: jax.vmap(run)(x)[0]) if batched else (lambda x: run(x[0])[0])
    out, tangent = jax.jvp(fun, (x,), (jnp.ones(2),))
    assert np.ravel(out).tolist() == [8, 27][: np.size(out)] and np.ravel(tangent).tolist() == [12, 27][: np.size(out)]


def test_a_bound_of_a_branch_is_of_the_events_that_its_interval_keeps():
    def f(n):
        def loop(n):
            return jax.lax.while_loop(lambda i: i < n, lambda i: lox.log({"a": i})["a"] + 1, 0)

        return jax.lax.cond(n > 0, loop, lambda n: n, n)

    for number, bound, interval in ((6, 3, 2), (9, 3, 2), (10, 2, 3), (0, 2, 2)):
        kept = list(range(number))[::interval]
        for transform in (lambda f: f, jax.jit):
            _, logs = transform(lox.spool(f, max_events=bound, interval=interval, unify=True))(jnp.int32(number))
            assert logs.valid("a").tolist() == kept[:bound], (number, bound)


def test_a_batched_loop_may_carry_and_test_constants():
    def fun(x):
        x, y = jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (lox.log({"x": c[0]}), (2.0, 1))[1], (x, 0))
        return jax.lax.while_loop(lambda x: False, lambda x: lox.log({"never": x})["never"], x), y

    x = jnp.array([0.0, 3.0])
    out, logs = lox.spool(jax.vmap(fun), max_events=2)(x)
    assert jax.tree.map(np.ndarray.tolist, jax.device_get(out)) == ([2.0, 3.0], [1, 0])
    assert logs.mask["x"].tolist() == [[True, False], [False, False]] and not logs.mask["never"].any()
