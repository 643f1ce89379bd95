"""`lox.strip` and `lox.keep`: complements, idempotent, and handlers in any nesting."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from reference import assert_logs

import lox


def f(x):
    lox.log({"a": x, "b": 2 * x}, tags=["m"])

    def step(x, i):
        lox.log({"a": x, "c": i}, tags=["d", "loop"])
        return x + 1, None

    x, _ = lax.scan(step, x, jnp.arange(2))
    lox.log({"d": x})
    return x


ALL = {("a", "m"): [1.0], ("b", "m"): [2.0], ("a", "d"): [1.0, 2.0], ("c", "d"): [0, 1], ("d", ""): [3.0]}
selections = {
    "everything": ({}, lambda key, tag: True),
    "a": ({"argnames": "a"}, lambda key, tag: key == "a"),
    "b and c": ({"argnames": ["b", "c"]}, lambda key, tag: key in "bc"),
    "nothing": ({"argnames": []}, lambda key, tag: False),
    "no tag": ({"tags": ()}, lambda key, tag: False),
    "tag m": ({"tags": "m"}, lambda key, tag: tag == "m"),
    "tags": ({"tags": ["m", "loop"]}, lambda key, tag: tag in ("m", "d")),
    "a of tag d": ({"argnames": "a", "tags": "d"}, lambda key, tag: (key, tag) == ("a", "d")),
}


def events(wanted):
    found = {}
    for (key, tag), values in ALL.items():
        if wanted(key, tag):
            found[key] = found.get(key, []) + values
    return found


transforms = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


@pytest.mark.parametrize("selection", selections)
@transforms
def test_strip_removes_what_it_selects_and_keep_the_rest(selection, transform):
    options, selected = selections[selection]
    x = jnp.float32(1)
    out, logs = lox.spool(transform(lox.strip(f, **options)))(x)
    assert out == 3
    assert_logs(logs, events(lambda key, tag: not selected(key, tag)))
    out, logs = lox.spool(lox.keep(transform(f), **options))(x)
    assert out == 3
    assert_logs(logs, events(selected))


@pytest.mark.parametrize("selection", selections)
def test_strip_and_keep_are_idempotent(selection):
    options, selected = selections[selection]
    x = jnp.float32(1)
    _, logs = lox.spool(lox.strip(lox.strip(f, **options), **options))(x)
    assert_logs(logs, events(lambda key, tag: not selected(key, tag)))
    _, logs = lox.spool(lox.keep(lox.keep(f, **options), **options))(x)
    assert_logs(logs, events(selected))
    _, logs = lox.spool(lox.strip(lox.keep(f, **options), **options))(x)
    assert_logs(logs, {})


def test_nested_filters_apply_both():
    x = jnp.float32(1)
    for (options, selects), (others, also) in itertools.combinations(selections.values(), 2):
        _, logs = lox.spool(lox.keep(lox.strip(f, **options), **others))(x)
        assert_logs(logs, events(lambda key, tag, s=selects, t=also: not s(key, tag) and t(key, tag)))


def test_a_filter_inside_the_function_applies_to_its_part_only():
    def g(x):
        lox.strip(f, argnames="a")(x)
        return lox.keep(f, argnames="a")(x)

    _, logs = lox.spool(g)(jnp.float32(1))
    assert_logs(logs, events(lambda key, tag: True))


@transforms
def test_without_a_handler_around_a_filter_does_nothing(transform):
    assert transform(lox.strip(f))(jnp.float32(1)) == 3
    assert transform(lox.keep(f, argnames="a"))(jnp.float32(1)) == 3
    assert not jax.make_jaxpr(lox.keep(f))(jnp.float32(1)).effects


def test_filters_are_decorators_with_and_without_arguments():
    @lox.strip
    def nothing(x):
        return f(x)

    @lox.strip(argnames="a")
    def without_a(x):
        return f(x)

    @lox.keep
    def everything(x):
        return f(x)

    @lox.keep(tags="m")
    def tagged(x):
        return f(x)

    x = jnp.float32(1)
    assert_logs(lox.spool(nothing)(x)[1], {})
    assert_logs(lox.spool(without_a)(x)[1], events(lambda key, tag: key != "a"))
    assert_logs(lox.spool(everything)(x)[1], events(lambda key, tag: True))
    assert_logs(lox.spool(tagged)(x)[1], events(lambda key, tag: tag == "m"))


def test_nested_spools_divide_the_logs_among_them():
    x = jnp.float32(1)
    for transform in (lambda f: f, jax.jit):
        spooled = lox.spool(transform(lox.spool(transform(lox.spool(f, argnames="a")), tags="m")))
        ((out, first), second), third = spooled(x)
        assert out == 3
        assert_logs(first, events(lambda key, tag: key == "a"))
        assert_logs(second, events(lambda key, tag: key == "b"))
        assert_logs(third, events(lambda key, tag: key in "cd"))


def test_filters_work_in_while_loops_and_branches():
    def g(x):
        def body(x):
            lox.log({"a": x, "b": x})
            return x + 1

        x = lax.while_loop(lambda x: x < 3, body, x)
        return lax.cond(x > 0, lambda x: lox.log({"a": x, "c": x})["a"], lambda x: lox.log({"a": -x})["a"], x)

    for transform in (lambda f: f, jax.jit):
        out, logs = lox.spool(transform(lox.strip(g, argnames=["b", "c"])), max_iters=3)(jnp.float32(1))
        assert out == 3
        assert logs.valid("a").tolist() == [1.0, 2.0, 3.0] and sorted(logs) == ["a"]
        out, logs = lox.spool(transform(lox.keep(g, argnames=())))(jnp.float32(1))
        assert_logs(logs, {})


def test_stripped_programs_carry_no_logging_work():
    def logs_a_lot(x):
        lox.log({"huge": jnp.outer(x, x)})
        return x.sum()

    for fun, has_work in ((logs_a_lot, True), (lox.strip(logs_a_lot), False)):
        text = jax.jit(lox.spool(fun)).lower(jnp.ones(50)).compile().as_text()
        assert ("50,50" in text) == has_work
