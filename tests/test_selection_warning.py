"""`lox.SelectionWarning`: a name or pattern that selects nothing is said once, and nothing else is."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox


def f(x):
    lox.log({"train/loss": x, "norm": 2 * x}, tags=["metric"])
    return x


def ignore(logs):
    pass


def said(call, *args):
    """The messages of the warnings of a call, which are of selections and of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*args)
        lox.flush()
    assert all(each.category is lox.SelectionWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


KEYS = "it is none of the keys that are logged: 'norm', 'train/loss'."
TAGS = "it is none of the tags of the logs: 'metric'."
X = jnp.float32(1)
WRONG = [
    ({"argnames": "nrm"}, f"'nrm' in argnames= of {{}} selects nothing: {KEYS} Did you mean 'norm'?"),
    ({"argnames": "loss"}, f"'loss' in argnames= of {{}} selects nothing: {KEYS} Did you mean 'train/loss'?"),
    ({"argnames": ["norm", "xyz"]}, f"'xyz' in argnames= of {{}} selects nothing: {KEYS}"),
    (
        {"argnames": "*loss"},
        f"'*loss' in argnames= of {{}} selects nothing: {KEYS.replace('is none', 'matches none')} "
        "Did you mean '**loss'?",
    ),
    ({"tags": "metrics"}, f"'metrics' in tags= of {{}} selects nothing: {TAGS} Did you mean 'metric'?"),
]
REDUCE = ({"reduce": {"nrm": "mean"}}, f"'nrm' in reduce= of {{}} selects nothing: {KEYS} Did you mean 'norm'?")

WAYS = {
    "eager": lambda handler: handler(f)(X),
    "jit inside": lambda handler: handler(jax.jit(f))(X),
    "jit outside": lambda handler: jax.jit(handler(f))(X),
    "vmap inside": lambda handler: handler(jax.vmap(f))(X[None]),
    "vmap outside": lambda handler: jax.vmap(handler(f))(X[None]),
    "grad inside": lambda handler: handler(jax.grad(f))(X),
    "grad outside": lambda handler: jax.vjp(handler(f), X),
    "scan inside": lambda handler: handler(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 2)[0])(X),
    "scan outside": lambda handler: lax.scan(lambda c, _: ([handler(f)(c)] and c, None), X, None, 2),
    "cond": lambda handler: handler(lambda x: lax.cond(x > 0, f, f, x))(X),
    "checkpoint": lambda handler: handler(jax.checkpoint(f))(X),
    "Python loop": lambda handler: handler(lambda x: [f(x) for _ in range(3)])(X),
}
LOGGER = lox.loggers.MemoryLogger()
HANDLERS = {
    "lox.spool": lox.spool,
    "lox.tap": lambda f, **options: lox.tap(f, ignore, **options),
    "logger.spool": lambda f, **options: LOGGER.spool(f, LOGGER.init(1), **options),
    "logger.tap": lambda f, **options: LOGGER.tap(f, LOGGER.init(1), **options),
}

CASES = [*(("lox.spool", each) for each in [*WRONG, REDUCE]), *((name, WRONG[0]) for name in HANDLERS)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_selection_of_nothing_names_what_is_there_and_the_closest(way, case):
    name, (options, expected) = CASES[case]
    made, function = HANDLERS[name], name.replace("logger", "lox")
    assert said(WAYS[way], lambda g: made(g, **options)) == [expected.format(function)]


@pytest.mark.parametrize("way", WAYS)
def test_no_selection_of_what_is_logged_is_warned_of(way):
    for options in ({}, {"argnames": ["**/loss", "norm"], "tags": "metric"}, {"argnames": ()}):
        for made in (HANDLERS["lox.spool"], HANDLERS["logger.tap"]):
            assert said(WAYS[way], lambda g, made=made, options=options: made(g, **options)) == []
    reduce = {"norm": "mean", "train/*": "sum", "**": "last"}
    assert said(WAYS[way], lambda g: lox.spool(g, reduce=reduce)) == []


def test_it_is_said_at_the_line_that_made_the_handler():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = lox.spool(f, argnames="nrm")
        line = inspect.currentframe().f_lineno - 1
        jax.jit(made)(X)
    assert [(each.filename, each.lineno) for each in caught] == [(__file__, line)]


def test_it_is_said_once_in_a_loop():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            lox.spool(f, argnames="once")(X)
    assert len(caught) == 1
    made = lox.spool(f, argnames="nrm")
    assert said(lambda: [made(X) for _ in range(3)]) != []
    assert said(made, X) == []


def test_logs_that_are_cached_are_there():
    jitted = jax.jit(f)
    looped = jax.jit(lambda x: lax.fori_loop(0, 3, lambda _, x: f(x), x))
    for g in (jitted, looped, jax.jit(jax.grad(jitted))):
        for made in (HANDLERS["lox.spool"], HANDLERS["logger.tap"]):
            for names in ({"argnames": "norm"}, {"tags": "metric"}):
                for _ in range(2):
                    assert said(made(lambda x, g=g: g(x), **names), X) == []
                    assert said(made(g, **names), X) == []


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "inside",
    [
        lambda f: lox.spool(f, argnames="norm"),
        lambda f: lox.spool(f, reduce="mean"),
        lambda f: lox.spool(f, tags="metric"),
        lambda f: lox.strip(f, argnames="norm"),
        lambda f: lox.strip(f),
        lambda f: lox.keep(f, argnames="train/loss"),
        lambda f: LOGGER.spool(f, LOGGER.init(2)),
    ],
    ids=["spool", "reduce", "tags", "strip", "strip all", "keep", "logger"],
)
def test_logs_that_a_handler_inside_took_are_not_warned_of(jit, inside):
    taken = jit(inside(f))

    def both(x):
        lox.log({"other": x})
        return jax.tree.leaves(taken(x))[0]

    for _ in range(2):  # The second time, JAX has cached what is inside.
        for names in ({"argnames": "norm"}, {"tags": "metric"}):
            assert said(lox.spool(both, **names), X) == []
            assert said(lox.tap(both, ignore, **names), X) == []


def test_logs_that_happen_never_or_are_left_out_are_not_warned_of():
    def empty(x):
        lox.log({"other": x})
        return lax.scan(lambda c, _: (f(c), None), x, None, length=0)[0]

    def looped(x):
        lox.log({"other": x})
        return lax.while_loop(lambda x: x < 1, lambda x: f(x) + 1, x)

    def branched(x):
        lox.log({"other": x})
        return lax.cond(x > 5, f, lambda x: x, x)

    assert said(lox.spool(empty, argnames="norm"), X) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lox.SpoolWarning)
        warnings.simplefilter("error", lox.SelectionWarning)
        lox.spool(looped, argnames="norm", on_while="warn")(X)
    assert said(lox.spool(branched, argnames="norm", unify=True), X) == []
    with jax.disable_jit():
        assert said(lox.spool(branched, argnames="norm", unify=True), X) == []


def test_a_function_that_does_not_log_is_not_warned_of():
    for g in (lambda x: x, jax.jit(lambda x: 2 * x), lambda x: lox.log({}) and x):
        assert said(lox.spool(g, argnames="norm", tags="metric", reduce={"x": "mean"}), X) == []


def test_a_call_that_does_not_log_leaves_the_warning_to_the_next():
    made = lox.spool(lambda x, logs: f(x) if logs else x, argnames="nrm")
    assert said(made, X, False) == []
    assert len(said(made, X, True)) == 1


def test_cotangents_that_come_back_after_the_call_are_not_warned_of():
    def loss(w):
        lox.log({"other": w})
        return lox.log_grad({"w": w}, tags=["back"])["w"] ** 2

    for g in (loss, jax.jit(loss)):
        for names in ({"argnames": "grad/w"}, {"tags": "back"}):
            assert said(jax.grad(lox.tap(g, ignore, **names)), X) == []
            assert said(lox.spool(jax.grad(g), **names), X) == []


def test_rules_that_may_log_after_the_call_are_not_warned_of():
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, c: (2 * lox.log({"back": c})["back"],))

    def loss(x):
        lox.log({"other": x})
        return double(x)

    received = []
    for g in (loss, jax.jit(loss)):
        tapped = lox.tap(g, received.append, argnames="back")
        assert said(jax.grad(tapped), X) == []
        assert said(jax.grad(jax.jit(tapped)), X) == []
    assert [list(logs) for logs in received] == 4 * [["back"]]


def test_rules_of_jax_do_not_hide_a_name_that_is_not_there():
    def g(x):
        return f(jax.nn.relu(x))

    for h in (g, jax.jit(g)):
        assert len(said(jax.jit(lox.tap(h, ignore, argnames="nrm")), X)) == 1


def test_logs_in_a_shard_map_and_in_functions_with_rules_are_there():
    @jax.custom_jvp
    def same(x):
        return f(x)

    same.defjvp(lambda primals, tangents: (same(*primals), *tangents))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    sharded = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)

    def g(x):
        lox.log({"other": x})
        return same(x)

    def h(x):
        lox.log({"other": x})
        return sharded(x)

    for jit in (lambda f: f, jax.jit):
        assert said(lox.spool(jit(g), argnames="norm"), X) == []
        assert said(jax.jit(jax.grad(lambda x, jit=jit: lox.spool(jit(g), argnames="norm")(x)[0])), X) == []
        assert said(lox.spool(jit(h), argnames="norm"), jnp.ones(2)) == []


def test_strip_and_keep_do_not_warn():
    for made in (lox.strip, lox.keep):
        for names in ({"argnames": "nrm"}, {"tags": "metrics"}):
            assert said(lox.spool(made(f, **names)), X) == []


def test_a_warning_that_is_an_error_ends_the_call_with_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(lox.SelectionWarning, match="'nrm' in argnames= of lox.spool"):
            lox.spool(f, argnames="nrm")(X)


def test_a_logdict_warns_of_names_that_it_does_not_have():
    logs = lox.logdict({"norm": jnp.ones(2), "train/loss": jnp.ones(2)})
    assert said(logs.filter, ["norm", "nrm"]) == [
        f"'nrm' in argnames= of logdict.filter selects nothing: {KEYS} Did you mean 'norm'?"
    ]
    assert said(logs.reduce, {"nrm": "mean"}) == [
        f"'nrm' in reduction= of logdict.reduce selects nothing: {KEYS} Did you mean 'norm'?"
    ]
    assert said(lambda: [logs.filter(["norm", "**"]), logs.filter(lambda key: False), logs.reduce("mean")]) == []
    assert said(lambda: [lox.logdict().filter("x"), lox.logdict().reduce({"x": "sum"}), logs.filter(())]) == []


def test_many_names_are_cut():
    logs = lox.logdict({f"key{place:02}": np.ones(1) for place in range(30)})
    (message,) = said(logs.filter, "other")
    assert message.endswith("'key08', 'key09' and 20 more.")


def test_logs_without_tags_are_said():
    (message,) = said(lox.spool(lambda x: lox.log({"a": x}), tags="none"), X)
    assert message == "'none' in tags= of lox.spool selects nothing: the logs have no tags."


def test_a_handler_with_names_keeps_the_metadata_of_its_function():
    for made in (lox.spool(f, argnames="norm"), lox.tap(f, ignore, argnames="norm")):
        assert made.__name__ == "f" and made.__wrapped__ is f and str(inspect.signature(made)) == "(x)"


CLOSEST = {
    "**/los": "**/loss",  # Its last part.
    "train/lo*x": "train/loss",
    "*norm": "**norm",  # Across parts.
    "norm": "train/norm",
    "abcdefgh/c": "c",  # It has a part more.
    "trian/loss": "train/loss",
    "xyz": None,
}


def test_the_closest_name_or_pattern_is_meant():
    logs = lox.logdict({"train/loss": jnp.ones(2), "train/norm": jnp.ones(2), "c": jnp.ones(2)})
    there = "keys that are logged: 'c', 'train/loss', 'train/norm'."
    for name, meant in CLOSEST.items():
        found = f"it {'matches' if '*' in name else 'is'} none of the {there}"
        also = "" if meant is None else f" Did you mean {meant!r}?"
        assert said(logs.filter, name) == [f"{name!r} in argnames= of logdict.filter selects nothing: {found}{also}"]


def test_ten_names_are_listed_and_the_others_counted():
    listed = ", ".join(f"'key{place:02}'" for place in range(10))
    for count, more in ((10, ""), (11, " and 1 more"), (12, " and 2 more")):
        logs = lox.logdict({f"key{place:02}": np.ones(1) for place in reversed(range(count))})
        there = f"it is none of the keys that are logged: {listed}{more}."
        assert said(logs.filter, "zzz") == [f"'zzz' in argnames= of logdict.filter selects nothing: {there}"]
