"""What an audit knows of random keys, compared with JAX's own checker and with the numbers that are drawn."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import lox
from benchmarks.corpus import cases
from lox._audit._checks._randomness._keys import KeyFlow

KEY = jax.random.key(0)
USED_TWICE = [case for case in cases() if case.code in ("LOX700", "LOX701")]
# JAX takes what fold_in makes for a new key always, and both branches that vmap runs for uses of a key; whether it
# looks at what a loop carries depends on its version.
SEEN_BY_LOX_ONLY = {"policy_and_simulation_fold_the_same_number_into_the_key"}
SEEN_BY_JAX_ONLY = {"a_loss_and_its_gradient_with_the_same_dropout", "each_branch_uses_the_key_in_its_way"}
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
