"""`lox.sites`: what a function would log, found without running it."""

import functools
import inspect

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox


def rows(f, *args, **kwargs):
    return [(site.path, site.keys, site.count, site.bytes) for site in lox.sites(f)(*args, **kwargs)]


def line_of(function, number=0):
    lines, start = inspect.getsourcelines(function)
    return [start + offset for offset, line in enumerate(lines) if "lox.log(" in line][number]


def straight(x):
    lox.log({"a": x, "b": {"c": x.sum()}}, tags=["m", "n"], step=1)
    return x


def test_a_site_says_what_is_logged_and_where():
    (site,) = lox.sites(straight)(jnp.ones((2, 3)))
    assert site.keys == ("a", "b/c")
    assert site.shapes == {"a": (2, 3), "b/c": ()}
    assert site.dtypes == {"a": "float32", "b/c": "float32"}
    assert site.steps == ("step",)
    assert site.tags == ("m", "n")
    assert (site.events, site.exact, site.count) == (1, True, "1")
    assert site.path == ""
    assert (site.file, site.line) == (__file__, line_of(straight))
    # Two values of 6 and 1 elements and the counter that they share, of four bytes each.
    assert site.bytes == 4 * (6 + 1 + 1)


def test_the_bytes_are_those_of_the_spooled_arrays():
    def f(x):
        def step(x, i):
            lox.log({"x": x, "half": x.astype(jnp.bfloat16), "flag": i > 1}, i=i, j=jnp.int8(1))
            return x, None

        return lax.scan(step, x, jnp.arange(5))[0]

    (site,) = lox.sites(f)(jnp.ones(3))
    _, logs = lox.spool(f)(jnp.ones(3))
    assert site.bytes == sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(logs))
    assert site.bytes == 5 * (12 + 6 + 1 + 4 + 1)


def test_a_log_of_a_cotangent_is_backward():
    loss = jax.grad(lambda x: jnp.sum(lox.log_grad({"x": lox.log({"y": x})["y"]})["x"] ** 2))
    assert [(site.keys, site.backward) for site in lox.sites(loss)(jnp.ones(2))] == [
        (("y",), False),
        (("grad/x",), True),
    ]


def test_nothing_runs():
    def f(x):
        assert isinstance(x, jax.core.Tracer)
        jax.debug.callback(lambda: pytest.fail("the function ran"))
        lox.log({"x": x})
        return x

    assert rows(f, jax.ShapeDtypeStruct((1000, 1000), jnp.float32)) == [("", ("x",), "1", 4_000_000)]
    assert rows(f, np.ones(2, np.float32)) == [("", ("x",), "1", 8)]
    assert rows(f, np.float32(1)) == [("", ("x",), "1", 4)]


def logs(key):
    def branch(x):
        lox.log({key: x})
        return x

    return branch


def test_loops_branches_and_calls_make_the_path_and_the_number_of_events():
    @jax.jit
    def step(x, i):
        lox.log({"step": x})
        x = lax.cond(x > 1, logs("large"), logs("small"), x)
        x = lax.while_loop(lambda x: lox.log({"check": x})["check"] < 3, logs("while"), x)
        x = lax.switch(i, [lambda x: x, lambda x: lax.fori_loop(0, 2, lambda j, x: logs("inner")(x), x)], x)
        return x, None

    def f(x):
        x, _ = lax.scan(step, x, jnp.arange(1000))
        return lox.log({"out": x})["out"]

    assert rows(f, jnp.float32(1)) == [
        ("scan[1000] / jit:step", ("step",), "1,000", 4000),
        ("scan[1000] / jit:step / cond[0]", ("small",), "at most 1,000", 4000),
        ("scan[1000] / jit:step / cond[1]", ("large",), "at most 1,000", 4000),
        ("scan[1000] / jit:step / while.cond", ("check",), "unbounded", None),
        ("scan[1000] / jit:step / while", ("while",), "unbounded", None),
        ("scan[1000] / jit:step / cond[1] / scan[2]", ("inner",), "at most 2,000", 8000),
        ("", ("out",), "1", 4),
    ]


def test_the_number_of_events_is_that_of_the_spooled_logs():
    def f(x):
        def outer(x, i):
            x, _ = lax.scan(lambda x, j: (logs("a")(x), None), x, jnp.arange(3))
            return jax.checkpoint(logs("b"))(x), None

        return lax.scan(outer, x, jnp.arange(4))[0]

    for g, x in (
        (f, jnp.float32(1)),
        (jax.jit(f), jnp.float32(1)),
        (jax.grad(f), jnp.float32(1)),
        (jax.vmap(f), jnp.ones(2)),
    ):
        assert {site.keys[0]: site.events for site in lox.sites(g)(x)} == {"a": 12, "b": 4}
        assert {key: len(values) for key, values in lox.spool(g)(x)[1].items()} == {"a": 12, "b": 4}


def test_batches_are_part_of_the_shape():
    (site,) = lox.sites(jax.vmap(jax.vmap(straight)))(jnp.ones((5, 4, 2)))
    assert site.shapes == {"a": (5, 4, 2), "b/c": (5, 4)}
    assert site.events == 1


def test_events_that_lanes_may_not_have_are_at_most_so_many():
    def f(x):
        return lax.cond(x > 1, logs("a"), lambda x: x, x)

    (site,) = lox.sites(jax.vmap(f))(jnp.ones(3))
    assert (site.keys, site.count, site.shapes) == (("a",), "at most 1", {"a": (3,)})


def test_a_site_that_is_reached_twice_is_listed_twice():
    def f(x):
        return logs("a")(logs("a")(x))

    assert rows(f, jnp.float32(1)) == [("", ("a",), "1", 4)] * 2


def test_filters_apply_to_what_is_listed():
    assert [site.keys for site in lox.sites(lox.strip(straight, argnames="a"))(jnp.ones(2))] == [("b/c",)]
    assert list(lox.sites(lox.strip(straight))(jnp.ones(2))) == []
    assert list(lox.sites(lox.spool(straight))(jnp.ones(2))) == []
    assert len(lox.sites(lox.spool(straight, keep_logs=True))(jnp.ones(2))) == 1


def test_other_arguments_are_passed_on_as_they_are():
    def f(x, n, *, mode, call=None):
        for _ in range(n):
            lox.log({mode: x if call is None else call(x)})

    assert rows(f, jnp.float32(1), 2, mode="m") == [("", ("m",), "1", 4)] * 2
    assert rows(functools.partial(f, call=jnp.atleast_1d), jnp.float32(1), 1, mode="m") == [("", ("m",), "1", 4)]


def test_it_prints_as_a_table():
    def f(x):
        lox.log({"n": 1, "total": x})
        return lax.while_loop(lambda x: x < 3, logs("w"), lax.fori_loop(0, 1500, lambda i, x: logs("s")(x), x))

    text = str(lox.sites(f)(jnp.float32(1)))
    here, branch = line_of(f), line_of(logs)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "keys event events bytes path site"
    assert set(lines[1]) == {"-"} and set(lines[5]) == {"-"}
    assert lines[2] == f"n, total int32[], float32[] 1 8 - {__file__}:{here}"
    assert lines[3] == f"s float32[] 1,500 6,000 scan[1500] {__file__}:{branch}"
    assert lines[4] == f"w float32[] unbounded unbounded while {__file__}:{branch}"
    assert lines[6] == "total 6,008 + unbounded"
    columns = [
        line.index(word) for line, word in zip(text.splitlines()[2:5], ("int32", "float32", "float32"), strict=True)
    ]
    assert len(set(columns)) == 1
    assert repr(lox.sites(f)(jnp.float32(1))) == text
    assert str(lox.sites(lambda: None)()) == "no log calls"


def test_sites_leaves_the_function_as_it_was():
    f = jax.jit(straight)
    lox.sites(f)(jnp.ones(2))
    assert not jax.make_jaxpr(f)(jnp.ones(2)).effects
    assert lox.spool(f)(jnp.ones(2))[1]["a"].shape == (1, 2)


def test_the_number_of_events_in_a_primitive_that_lox_does_not_know_is_unknown():
    twice = jax.extend.core.Primitive("twice")
    twice.multiple_results = True
    twice.def_abstract_eval(lambda *avals, jaxpr: [aval.strip_weak_type() for aval in avals])

    def f(x):
        jaxpr = jax.make_jaxpr(lambda x: lox.log({"x": x})["x"])(x)
        lax.scan(lambda carry, _: (twice.bind(carry, jaxpr=jaxpr)[0], None), x, None, length=3)

    (site,) = lox.sites(f)(jnp.float32(1))
    assert (site.events, site.exact, site.bytes, site.count) == (None, False, None, "unbounded")
    assert site.path == "scan[3] / twice"


@jax.custom_jvp
def with_jvp(x):
    return logs("jvp")(x)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), *tangents))


@jax.custom_vjp
def with_vjp(x):
    return logs("vjp")(x)


with_vjp.defvjp(lambda x: (x, None), lambda _, bar: (bar,))


@jax.custom_batching.custom_vmap
def with_vmap(x):
    return logs("vmap")(x)


with_vmap.def_vmap(lambda size, batched, x: (x, batched[0]))


def test_each_kind_of_call_is_a_part_of_the_path_and_happens_once():
    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",)), jax.sharding.PartitionSpec("i")

    def solve(matvec, b):
        return logs("solve")(b) / 2

    def body(x, _):
        x = with_vmap(with_vjp(with_jvp(x)))
        x = jax.checkpoint(logs("checkpoint"))(x)
        x = jax.shard_map(logs("shards"), mesh=mesh, in_specs=spec, out_specs=spec)(x)
        return lax.custom_linear_solve(lambda v: logs("times")(2 * v), x, solve, symmetric=True), None

    found = lox.sites(lambda x: lax.scan(body, x, None, length=3)[0])(jnp.ones(2))
    assert {site.keys[0]: (site.path, site.count, site.shapes[site.keys[0]], site.bytes) for site in found} == {
        "jvp": ("scan[3] / custom_jvp_call", "3", (2,), 24),
        "vjp": ("scan[3] / custom_vjp_call", "3", (2,), 24),
        "vmap": ("scan[3] / custom_vmap_call", "3", (2,), 24),
        "checkpoint": (f"scan[3] / {jax.extend.core.primitives.remat_p.name}", "3", (2,), 24),
        "shards": ("scan[3] / shard_map", "3", (1,), 12),
        "solve": ("scan[3] / linear_solve", "3", (2,), 24),
    }


def test_events_of_loops_in_a_branch_that_a_batch_takes_apart_are_listed_with_all_of_them():
    def inner(x):
        def step(x, i):
            lox.log({"x": jnp.stack([x, x])}, i=i)
            return lax.scan(lambda x, _: (logs("y")(x), None), x, None, length=4)[0], None

        return lax.scan(step, x, jnp.arange(5))[0]

    def f(x):
        return lax.scan(lambda x, _: (lax.cond(x > 0, inner, lambda x: x, x), None), x, None, length=3)[0]

    _, spooled = lox.spool(jax.vmap(f), unify=True)(jnp.ones(7))
    found = {site.keys[0]: site for site in lox.sites(jax.vmap(f))(jnp.ones(7))}
    assert {key: (site.events, site.exact) for key, site in found.items()} == {"x": (15, False), "y": (60, False)}
    for key, site in found.items():
        counters = [of[key] for of in spooled.steps.values() if key in of]
        assert site.bytes == sum(array.nbytes for array in [spooled[key], *counters])
        assert site.shapes[key] == spooled[key].shape[1:]


def test_a_table_of_sites_whose_bytes_are_known_ends_with_their_sum():
    lines = str(lox.sites(lambda x: (logs("a")(x), logs("bb")(jnp.int8(1))))(jnp.ones(1000))).splitlines()
    assert [" ".join(line.split()[:4]) for line in lines[2:4]] == ["a float32[1000] 1 4,000", "bb int8[] 1 1"]
    assert lines[-1].split() == ["total", "4,001"] and len(lines[1]) == max(map(len, lines[2:4])) == len(lines[4])


def test_a_site_has_what_the_contexts_around_add():
    def f(x):
        with lox.context(tags=["o", "x"], prefix="o/", epoch=1, step=jnp.int8(1)):

            def step(c, i):
                with lox.context(tags=["i", "x"], prefix="i/", step=i):
                    lox.log({"a": c}, tags=["own", "o"], where=c > 0, prefix="p/")
                    lox.log({"b": c}, step=2.5)
                return c, None

            return lax.scan(step, x, jnp.arange(3))[0]

    found = [(site.keys, site.tags, site.steps, site.count, site.bytes) for site in lox.sites(f)(jnp.float32(1))]
    assert found == [
        (("o/i/p/a",), ("o", "x", "i", "own"), ("epoch", "step"), "at most 3", 3 * (4 + 4 + 4)),
        (("o/i/b",), ("o", "x", "i"), ("epoch", "step"), "3", 3 * (4 + 4 + 4)),
    ]
