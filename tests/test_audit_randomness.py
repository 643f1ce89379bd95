"""What an audit knows of random keys, compared with JAX's own checker and with the numbers that are drawn."""

import importlib
import inspect
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from corpus import cases

import lox
from lox._audit._checks._randomness._keys import KeyFlow

KEY = jax.random.key(0)
USED_TWICE = [case for case in cases() if case.code in ("LOX700", "LOX701")]
# JAX takes what fold_in makes for a new key always, and both branches that vmap runs for uses of a key; whether it
# looks at what a loop carries depends on its version.
SEEN_BY_LOX_ONLY = {"policy_and_simulation_fold_the_same_number_into_the_key"}
SEEN_BY_JAX_ONLY = {
    "an_increment_of_a_path_that_a_key_determines",
    "a_batch_that_is_shuffled_with_its_labels",
    "a_loss_and_its_gradient_with_the_same_dropout",
    "a_target_network_that_begins_as_its_critic",
    "each_branch_uses_the_key_in_its_way",
    "two_orders_for_the_same_demand",
    "antithetic_pairs_of_a_disturbance",
    "codes_with_noise_of_both_signs",
    "rows_and_labels_that_are_sorted_by_the_same_numbers",
    "queues_of_two_rates_with_the_same_customers",
    "the_derivative_of_each_output_with_one_dropout",
}
UNSETTLED = {"a_random_walk_that_carries_the_key_it_has_drawn_from"}


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def found(fun, *args):
    """The codes of what an audit finds about keys."""
    return sorted({each.code for each in lox.audit(fun)(*args).at_least("warning") if each.code.startswith("LOX7")})


def has_typed_keys(case):
    shapes = jax.tree.leaves(case.args)
    return any(jnp.issubdtype(shape.dtype, jax.dtypes.prng_key) for shape in shapes)


CHECKED = [case for case in USED_TWICE if has_typed_keys(case) and case.name not in UNSETTLED]


@pytest.mark.parametrize("case", CHECKED, ids=lambda case: case.name)
def test_the_checker_of_jax_agrees_on_which_programs_use_a_key_twice(case):
    expected = case.wrong and case.name not in SEEN_BY_LOX_ONLY or case.name in SEEN_BY_JAX_ONLY
    with jax.debug_key_reuse(True):
        try:
            jax.eval_shape(jax.jit(case.fun), *case.args)
            raised = False
        except jax.errors.KeyReuseError:
            raised = True
    assert raised == expected


def normal(key):
    return jax.random.normal(key, (2,))


def uniform(key):
    return jax.random.uniform(key, (2,))


WAYS = {
    "unpacked": lambda keys: tuple(keys)[1],
    "indexed": lambda keys: keys[-3],
    "sliced": lambda keys: keys[1:3][0],
    "sliced with a stride": lambda keys: keys[::2][1],
    "reversed": lambda keys: keys[::-1][0],
    "reshaped": lambda keys: keys.reshape(2, 2, *keys.shape[1:])[1, 0],
    "turned": lambda keys: jnp.swapaxes(keys.reshape(2, 2, *keys.shape[1:]), 0, 1)[1, 0],
    "stacked": lambda keys: jnp.stack([keys[3], keys[1]])[0],
    "concatenated": lambda keys: jnp.concatenate([keys[3:], keys[:3]])[1],
    "divided": lambda keys: jnp.split(keys, 2)[1][1],
    "broadcast": lambda keys: jnp.broadcast_to(keys, (3, *keys.shape))[2, 1],
    "through jit": lambda keys: jax.jit(lambda keys: (keys[1:], keys[0]))(keys)[1],
    "through a branch": lambda keys: jax.lax.cond(True, lambda keys: keys, lambda keys: keys, keys)[2],
    "through a barrier": lambda keys: jax.lax.optimization_barrier(keys)[2],
    "through a loop": lambda keys: jax.lax.fori_loop(0, 3, lambda _, carry: (carry[0], carry[1] + 1), (keys, 0))[0][2],
}


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "old"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", range(4))
def test_a_key_is_known_however_it_is_taken_out_of_an_array(way, make, place):
    keys = jax.random.split(make(0), 4)

    def fun(keys):
        return normal(WAYS[way](keys)), uniform(keys[place])

    assert found(fun, keys) == (["LOX700"] if (WAYS[way](keys) == keys[place]).all() else [])


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda keys: (jax.lax.map(normal, keys), jax.lax.map(uniform, keys)), ["LOX700"]),
        (lambda keys: (jax.vmap(normal)(keys), uniform(keys[2])), ["LOX700"]),
        (lambda keys: (jax.vmap(normal)(keys[:2]), uniform(keys[2])), []),
        (lambda keys: jax.jit(lambda one, other: (normal(one), uniform(other)))(keys[0], keys[0]), ["LOX701"]),
        (lambda keys: jax.jit(lambda one, other: (normal(one), uniform(other)))(keys[0], keys[1]), []),
        (lambda keys: (normal(keys[jnp.argmax(jnp.ones(4))]), uniform(keys[jnp.argmin(jnp.ones(4))])), []),
        (lambda keys: jax.lax.fori_loop(0, 3, lambda i, x: x + normal(keys[i]), jnp.zeros(2)), []),
        (lambda keys: jax.lax.scan(lambda x, _: (x + normal(keys[0]), None), jnp.zeros(2), length=1), []),
        (lambda keys: jax.lax.map(lambda x: x + normal(keys[0]), jnp.zeros((3, 2))), ["LOX702"]),
        (lambda keys: [normal(each) for each in keys], []),
        (lambda keys: [normal(keys[0]) for _ in range(3)], ["LOX701"]),
        (lambda keys: (normal(keys[0]), normal(jax.random.clone(keys[0]))), []),
        (lambda keys: (normal(keys[0]), normal(jax.random.fold_in(keys[0], 1))), []),
    ],
)
def test_where_a_key_goes_is_followed(fun, expected):
    assert found(fun, jax.random.split(KEY, 4)) == expected


def test_a_key_that_two_carries_swap_is_used_again_by_the_next_iteration():
    def fun(one, other):
        def body(carry, _):
            one, other = carry
            return (other, one), normal(one) + uniform(other)

        return jax.lax.scan(body, (one, other), length=3)[1]

    findings = lox.audit(fun)(KEY, KEY).issues
    assert findings and all("the one before" in finding.message for finding in findings)


def test_the_same_function_with_other_settings_in_branches_that_vmap_runs_both():
    def draw(scale, key):
        return scale * normal(key)

    def choose(key, bold):
        return jax.lax.cond(bold, partial(draw, 2.0), partial(draw, 1.0), key)

    assert not found(jax.vmap(choose), jax.random.split(KEY, 4), jnp.arange(4) > 1)


def test_a_constant_key_in_a_loop_is_told_once():
    def fun(x):
        return jax.lax.scan(lambda x, _: (x + normal(jax.random.key(1)), None), x, length=3)[0]

    assert found(fun, jnp.ones(2)) == ["LOX702"]


def test_branches_that_vmap_runs_both_share_a_key():
    def draw(scale, key):
        return scale * normal(key)

    branches = [lambda key: draw(1.0, key), lambda key: draw(2.0, key), uniform]
    keys = jax.random.split(KEY, 4)
    assert not found(jax.vmap(lambda key, place: jax.lax.switch(place, branches, key)), keys, jnp.arange(4) % 3)


@pytest.mark.parametrize("data", [lambda step: 7, lambda step: step], ids=["a constant", "an argument"])
def test_what_a_jitted_function_folds_into_a_key_is_followed(data):
    @jax.jit
    def noise(key, step):
        return normal(jax.random.fold_in(key, data(step)))

    def twice(key, step):
        first = noise(key, step)
        return first, noise(key, step)

    def once_for_each(key, step):
        other = jax.random.fold_in(key, 1)
        return noise(key, step), noise(other, step)

    assert found(twice, KEY, jnp.arange(3)[0]) == ["LOX701"]
    assert not found(once_for_each, KEY, jnp.arange(3)[0])


def test_a_backward_pass_draws_the_same_again():
    def loss(w, keys):
        def layer(x, key):
            return x * w * normal(key), None

        def deep(x, keys):
            return jax.lax.scan(jax.checkpoint(layer), x, keys)[0]

        return jax.jit(jax.checkpoint(deep))(jnp.ones(2), keys).sum()

    assert not found(lambda w, keys: jax.value_and_grad(loss)(w, keys), jnp.ones(2), jax.random.split(KEY, 3))


def test_a_jacobian_has_the_same_noise_for_each_direction():
    def fun(key, x):
        return jnp.sin(x * jax.random.normal(key, x.shape)).sum()

    for transform in (jax.hessian, jax.jacfwd, jax.jacrev):
        assert not found(transform(fun, argnums=1), KEY, jnp.ones(4))


SAMPLERS = {
    "binomial": lambda key: jax.random.binomial(key, 5.0, 0.3),
    "categorical": lambda key: jax.random.categorical(key, jnp.ones(3)),
    "choice": lambda key: jax.random.choice(key, 10, (3,), replace=False),
    "dirichlet": lambda key: jax.random.dirichlet(key, jnp.ones(3)),
    "gamma": lambda key: jax.random.gamma(key, 2.0),
    "orthogonal": lambda key: jax.random.orthogonal(key, 3),
    "permutation": lambda key: jax.random.permutation(key, 10),
    "poisson": lambda key: jax.random.poisson(key, 3.0),
    "randint": lambda key: jax.random.randint(key, (3,), 0, 5),
    "t": lambda key: jax.random.t(key, 2.0),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_how_jax_samples_is_not_looked_at(name):
    assert not found(SAMPLERS[name], KEY)
    assert not found(SAMPLERS[name], jax.random.PRNGKey(0))
    assert not found(jax.vmap(SAMPLERS[name]), jax.random.split(KEY, 4))


@pytest.mark.parametrize(("one", "other"), [(0, 0), (0, 1), (2, 2), (1, 2)])
def test_what_lanes_fold_into_a_key_makes_other_keys(one, other):
    def fun(key):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(3))
        return normal(keys[one]), uniform(keys[other])

    assert found(fun, KEY) == (["LOX700"] if one == other else [])


def test_a_large_array_of_keys_costs_nothing():
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1_000_000))
    flow = KeyFlow(lox.audit(lambda keys: (jax.vmap(normal)(keys), jax.vmap(uniform)(keys)))(keys).program)
    assert not flow.program.origins


def test_a_finding_names_both_lines():
    def fun(key):
        first = normal(key)
        second = uniform(key)
        return first, second

    (finding,) = lox.audit(fun)(KEY).issues
    assert finding.line == fun.__code__.co_firstlineno + 2
    assert finding.message == f"The key 'key' is used here and was used before in line {finding.line - 1}."


def test_what_was_looked_at_and_is_right_is_told():
    def fun(key):
        key, now = jax.random.split(key)
        return key, normal(now)

    assert {each.code for each in lox.audit(fun)(KEY).verified} >= {"LOX700", "LOX705"}


@pytest.mark.parametrize("is_new", [True, False])
def test_a_used_key_that_a_jitted_function_returns_is_found_where_it_is_used(is_new):
    @jax.jit
    def draw(key):
        return jax.random.normal(key)

    @jax.jit
    def step(key):
        if is_new:
            key, other = jax.random.split(key)
            return draw(key), key, draw(other)
        return draw(key), key

    (finding,) = lox.audit(step)(KEY).found
    assert finding.code == "LOX705" and finding.source.startswith("return draw(key), key")


def told(code, fun, *args):
    """The messages with a code, of which an audit has all severities."""
    return [each.message for each in lox.audit(fun)(*args).at_least("info") if each.code == code]


def unused(fun, *args):
    """The keys that an audit says nothing uses, or what else it says."""
    messages = told("LOX706", fun, *args)
    return [text.removeprefix("Nothing uses ").removesuffix(" that this split makes.") for text in messages]


def deterministic(key, x):
    return x + 1


def one_of_four(key):
    one, _, three, four = jax.random.split(key, 4)
    return normal(one), uniform(three), normal(four)


def two_of_four(key):
    keys = jax.random.split(key, 4)
    return normal(keys[0]), normal(keys[-1])


def in_a_loop_of_python(key):
    first, second, third = jax.random.split(key, 3)
    return [normal(each) for each in (first, second)]


def in_a_scan(key):
    def step(key, _):
        key, now, _ = jax.random.split(key, 3)
        return key, normal(now)

    return jax.lax.scan(step, key, length=3)


def of_each_lane(keys):
    return jax.vmap(lambda key: normal(jax.random.split(key, 3)[1]))(keys)


def assigned_again(key):
    key, now = jax.random.split(key)
    x = normal(now)
    key, now = jax.random.split(key)
    return x, normal(key)


def overwritten(key):
    key, now = jax.random.split(key)
    x = normal(key)
    key, now = jax.random.split(key)
    return x, normal(now)


def all_of_them(key):
    jax.random.split(key)
    return normal(key)


def the_only_one(key):
    jax.random.split(key, 1)
    return normal(key)


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (one_of_four, "[1] of the 4 keys"),
        (two_of_four, "[1], [2] of the 4 keys"),
        (in_a_loop_of_python, "[2] of the 3 keys"),
        (in_a_scan, "[2] of the 3 keys"),
        (of_each_lane, "[2] of the 3 keys"),
        (assigned_again, "[1] of the 2 keys"),
        (overwritten, "[1] of the 2 keys"),
        (all_of_them, "any of the 2 keys"),
        (the_only_one, "the key"),
    ],
)
@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "old"])
def test_keys_that_nothing_uses_are_named(fun, expected, make):
    key = jax.random.split(make(0), 4) if fun is of_each_lane else make(0)
    assert unused(fun, key) == [expected]


def carried_on(key):
    for _ in range(3):
        key, now = jax.random.split(key)
        yield normal(now)


def last_carried_on(key):
    now, key = jax.random.split(key)
    again, key = jax.random.split(key)
    return normal(now), normal(again)


def returned(key):
    key, now = jax.random.split(key)
    return key, now


def at_a_place_that_is_computed(key, place):
    return normal(jax.random.split(key, 8)[place])


def in_a_dict(key):
    keys = {}
    keys["weights"], keys["noise"] = jax.random.split(key)
    return normal(keys["weights"])


def handed_to_what_draws_nothing(key):
    key, now = jax.random.split(key)
    return key, deterministic(now, 1.0)


def handed_to_lanes_that_draw_nothing(key):
    return jax.vmap(deterministic)(jax.random.split(key, 3), jnp.ones(3))


def handed_on_in_a_loop(key):
    x, now = 0.0, key
    for _ in range(3):
        x = deterministic(now, x)
        key, now = jax.random.split(key)
    return x


def read_by_a_function_before(key):
    def move(x):
        return deterministic(now, x)

    key, now = jax.random.split(key)
    return move(normal(key))


def sliced(key):
    keys = jax.random.split(key, 4)
    return jax.vmap(normal)(keys[1:-1])


def used_at_the_second_call(key):
    def first_or_second(key, place):
        one, other = jax.random.split(key)
        return normal([one, other][place])

    one, other = jax.random.split(key)
    return first_or_second(one, 0), first_or_second(other, 1)


@pytest.mark.parametrize(
    "fun",
    [
        lambda key: list(carried_on(key)),
        last_carried_on,
        returned,
        partial(at_a_place_that_is_computed, place=jnp.argmax(jnp.arange(3))),
        in_a_dict,
        handed_to_what_draws_nothing,
        handed_to_lanes_that_draw_nothing,
        handed_on_in_a_loop,
        read_by_a_function_before,
        sliced,
        used_at_the_second_call,
        lambda key: jax.vmap(normal)(jax.random.split(key, 4)),
        lambda key: [normal(each) for each in jax.random.split(key, 4)],
        lambda key: jax.lax.map(normal, jax.random.split(key, 4)),
        lambda key: jax.random.choice(key, 10, (3,), replace=False),
        lambda key: jnp.stack(list(jax.random.split(key, 3))),
    ],
)
@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "old"])
def test_keys_that_something_uses_or_may_use_are_not_named(fun, make):
    assert not unused(fun, make(0))


def test_what_is_not_traced_to_its_end_has_no_unused_keys():
    def fun(key):
        key, now = jax.random.split(key)
        raise ValueError(now)

    assert not unused(fun, KEY)


WRITTEN = """
from jax.random import normal, split

def one_of_two(key):
    one, two = split(key)
    return normal(one)

def both_returned(key):
    return split(key)

def row_of_lanes(key):
    return vmap(lambda key: normal(split(key, 3)[1]))(split(key, 5))

def each_in_another_call(key):
    def either(key, place):
        one, other = split(key)
        return normal([one, other][place])

    first, second, third = split(key, 3)
    return either(first, 0), either(second, 1), normal(third)

def raises(key):
    one, other = split(key)
    raise ValueError(normal(one))
"""


def written(name, file="<stdin>"):
    """A function whose source is not to be had, as if it were in a file."""
    names = {"vmap": jax.vmap}
    exec(compile(WRITTEN, file, "exec"), names)
    return names[name]


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "old"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one_of_two", ["[1] of the 2 keys"]),
        ("both_returned", []),
        ("row_of_lanes", ["[2] of the 3 keys"]),
        ("each_in_another_call", []),
        ("raises", []),
    ],
)
def test_without_source_what_uses_keys_is_told_by_the_program_alone(name, expected, make):
    assert unused(written(name), make(0)) == expected


def test_keys_are_the_same_however_split_is_called(tmp_path, monkeypatch):
    (tmp_path / "splits.py").write_text(
        "import jax\nfrom jax import random\nfrom jax.random import split\n\n"
        + "".join(
            f"def {name}(key):\n    key, one, other = {split}(key, 3)\n    return jax.random.normal(one)\n\n"
            for name, split in (("whole", "jax.random.split"), ("part", "random.split"), ("alone", "split"))
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    splits = importlib.import_module("splits")
    expected = unused(splits.whole, KEY)
    assert [unused(fun, KEY) for fun in (splits.part, splits.alone)] == [expected, expected] != [[], []]


def test_what_jax_does_with_an_old_key_is_not_told_of():
    assert not told("LOX707", lambda key: jax.nn.initializers.normal()(key, (3,)), jax.random.PRNGKey(0))


def test_keys_of_a_library_are_its_own_matter():
    key = jax.random.PRNGKey(0)
    assert not unused(written("one_of_two", pytest.__file__), key)
    assert not told("LOX707", written("one_of_two", pytest.__file__), key)
    assert told("LOX707", written("one_of_two"), key)


@pytest.mark.parametrize("name", SAMPLERS)
def test_typed_keys_are_not_old_ones_and_unused_keys_of_jax_are_not_named(name):
    assert not told("LOX707", SAMPLERS[name], KEY)
    assert not told("LOX706", SAMPLERS[name], KEY)
    assert len(told("LOX707", SAMPLERS[name], jax.random.PRNGKey(0))) == 1


def test_old_keys_are_told_of_once_and_at_the_first_line():
    def fun(key, x):
        first = jax.random.normal(key, x.shape)
        second = jax.random.normal(jax.random.PRNGKey(3), x.shape)
        return first + second

    (finding,) = (each for each in lox.audit(fun)(jax.random.PRNGKey(0), jnp.ones(3)).at_least("info"))
    assert (finding.code, finding.line) == ("LOX707", fun.__code__.co_firstlineno + 1)
    assert finding.message.startswith("jax.random.normal takes a key here that is an array, uint32[2]")


@pytest.mark.parametrize(
    "fun",
    [
        lambda key, data: jax.random.key_data(key) + data,
        lambda key, data: normal(jax.random.wrap_key_data(data)),
        lambda key, data: normal(jax.random.key(data[0])),
        lambda key, data: data + 1,
    ],
)
def test_keys_that_are_taken_from_numbers_on_purpose_are_not_old(fun):
    assert not told("LOX707", fun, KEY, jnp.zeros(2, jnp.uint32))


def dropped(x, key):
    return jnp.sum(jnp.tanh(x) * jax.random.bernoulli(key, 0.5, x.shape))


def noise(key):
    return jax.random.normal(key, (3,))


def test_one_draw_for_several_derivatives_is_told_from_two_draws():
    def curvature(x, key):
        gradient = jax.grad(dropped)(x, key)
        return jax.jvp(lambda x: jax.grad(dropped)(x, key), (x,), (gradient,))

    def layers(x, key):
        return (lambda x: x + noise(key))((lambda x: x * noise(key))(x))

    assert found(curvature, jnp.ones(3), KEY) == ["LOX701"]
    assert found(layers, jnp.ones(3), KEY) == ["LOX700"]
    assert found(lambda x, key: (dropped(x, key), jax.grad(dropped)(x, key)), jnp.ones(3), KEY) == []


def test_arrays_may_be_shuffled_together():
    def together(x, key):
        return jax.random.permutation(key, x), jax.random.permutation(key, x[:, 0])

    def chosen(x, key):
        return jax.random.choice(key, x, (2,)), jax.random.choice(key, x[:, 0], (2,))

    def mixed(x, key):
        return jax.random.permutation(key, x), jax.random.choice(key, x[:, 0], (2,)), noise(key)

    def by_lane(x, key):
        keys = jax.random.split(key, 4)
        shuffle = jax.vmap(jax.random.permutation)
        return shuffle(keys, x), shuffle(keys, x + 1)

    def of_tree(x, key):
        return jax.tree.map(lambda leaf: jax.random.permutation(key, leaf), {"x": x, "y": x[:, 0], "z": x + 1})

    def sampled(x, key):
        tree = {"x": x, "y": x[:, 0], "z": x + 1}
        return {name: leaf[jax.random.randint(key, (8,), 0, 4)] for name, leaf in tree.items()}

    for fun in (together, chosen, by_lane, of_tree, sampled):
        assert found(fun, jnp.ones((4, 2)), KEY) == []
    assert found(mixed, jnp.ones((4, 2)), KEY) == ["LOX700"]


def test_a_function_of_ones_own_that_is_called_like_one_that_pairs_is_no_such():
    def choice(key):
        return jax.random.normal(key, (3,))

    def permutation(key):
        return jax.random.uniform(key, (3,))

    assert found(lambda x, key: x + choice(key) * permutation(key), jnp.ones(3), KEY) == ["LOX700"]


def walk(key, xs):
    return jax.lax.scan(lambda x, d: (x + d * jax.random.normal(key), x), 0.0, xs)[0]


def both(key, xs):
    def value(x):
        return x * jax.random.normal(key)

    return value(xs[0]) + value(xs[1])


@pytest.mark.parametrize(("function", "code"), [(walk, "LOX702"), (both, "LOX701")])
def test_what_a_library_does_with_a_key_is_on_purpose(function, code):
    installed = {"jax": jax}
    exec(compile(inspect.getsource(function), "/python/site-packages/library/paths.py", "exec"), installed)
    assert found(function, KEY, jnp.ones(5)) == [code]
    assert found(installed[function.__name__], KEY, jnp.ones(5)) == []


def test_a_loop_that_gives_a_library_the_same_key_each_time_is_found():
    installed = {"jax": jax}
    source = "def kick(key, x):\n    return x + jax.random.normal(key)\n"
    exec(compile(source, "/python/site-packages/library/moves.py", "exec"), installed)
    walk = lambda key, xs: jax.lax.scan(lambda x, d: (installed["kick"](key, x) * d, x), 0.0, xs)  # noqa: E731
    assert found(walk, KEY, jnp.ones(5)) == ["LOX702"]


def test_a_choice_among_keys_that_were_not_split_of_one_is_no_way_down_a_tree():
    def f(key, xs):
        def step(x, d):
            first = jax.random.split(key)[0]
            return x + d * jax.random.normal(
                jax.random.wrap_key_data(
                    jnp.where(d > 0, jax.random.key_data(first), jax.random.key_data(jax.random.key(0)))
                )
            ), x

        return jax.lax.scan(step, 0.0, xs)

    assert found(f, KEY, jnp.ones(5)) == ["LOX702"]


def test_what_is_drawn_only_for_its_shape_is_no_use_of_a_key_and_what_the_next_iteration_needs_is():
    def shape_only(key, x):
        return jax.random.normal(key, (3,)), jnp.ones_like(jax.random.uniform(key, (3,)))

    def carried(key, xs):
        def step(carry, d):
            before, noise = carry
            return (noise, jax.random.normal(key)), before * d

        return jax.lax.scan(step, (0.0, 0.0), xs)[1]

    assert found(shape_only, KEY, jnp.ones(3)) == []
    assert found(carried, KEY, jnp.ones(3)) == ["LOX702"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_choice_between_two_keys_is_neither_of_them(place):
    def f(key, flag):
        keys = jax.random.split(key)
        chosen = jnp.where(flag, keys[0], keys[1])
        return jax.random.normal(chosen) + jax.random.normal(keys[place])

    assert lox.audit(f)(jax.random.key(0), jnp.array(True)).issues == ()


def test_noise_of_one_row_that_is_added_to_what_a_network_gives_or_scaled_by_each_row_is_found():
    def explored(key, weights, obs, shape):
        return jnp.tanh(obs @ weights) + 0.1 * jax.random.normal(key, shape)

    def latent(key, weights, x, shape):
        hidden = jnp.tanh(x @ weights)
        return hidden + jnp.exp(0.5 * hidden) * jax.random.normal(key, shape)

    def random_features(key, obs):
        first, second = jax.random.split(key)
        return jnp.cos(obs @ jax.random.normal(first, (4, 2)) + jax.random.normal(second, (2,)))

    args = KEY, jnp.ones((4, 2)), jnp.ones((32, 4))
    for fun in (explored, latent):
        assert found(lambda *args, fun=fun: fun(*args, (32, 2)), *args) == []
        assert found(lambda *args, fun=fun: fun(*args, (2,)), *args) == ["LOX703"]
    assert found(random_features, KEY, jnp.ones((32, 4))) == []


def test_a_number_that_is_repeated_and_noise_that_lacks_a_named_batch_are_found():
    def environments_whose_masses_are_one_random_number(key, forces):
        mass = jnp.full((16,), jax.random.uniform(key, minval=0.5, maxval=1.5))
        return forces / mass[:, None]

    def particles_that_are_moved_by_the_same_noise(key, x):
        def step(x, key):
            return x - 0.1 * x + 0.4 * jax.random.normal(key, x.shape[1:]), None

        return jax.lax.scan(step, x, jax.random.split(key, 20))[0]

    def random_features_and_masses_that_are_drawn_for_each(key, x, forces):
        first, second, third = jax.random.split(key, 3)
        directions = jax.random.normal(first, (5, 32))
        phases = jax.random.uniform(second, (32,), maxval=2 * jnp.pi)
        masses = jax.random.uniform(third, (64,), minval=0.5, maxval=1.5)
        return jnp.cos(x @ directions + phases), forces / masses

    def codes(fun, *args, **axes):
        return [each.code for each in lox.audit(fun, axes=axes)(*args).at_least("warning")]

    assert codes(environments_whose_masses_are_one_random_number, KEY, jnp.ones((16, 4))) == ["LOX703"]
    x = {"x": ("batch", None)}
    assert codes(particles_that_are_moved_by_the_same_noise, KEY, jnp.ones((64, 2)), **x) == ["LOX703"]
    assert codes(random_features_and_masses_that_are_drawn_for_each, KEY, jnp.ones((64, 5)), jnp.ones(64), **x) == []
