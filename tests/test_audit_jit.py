"""What an audit says of what happens only while tracing, and of what forces tracing again."""

import functools
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._audit._sources import functions

FAMILY = {f"LOX{number}" for number in (*range(410, 440), *range(500, 510))}
KEPT = []


def found(fun, *args, **options):
    report = lox.audit(fun, **options)(*args)
    return [finding.code for finding in report.at_least("warning") if finding.code in FAMILY]


def line_of(fun, text):
    first = fun.__code__.co_firstlineno
    return first + next(
        place for place, line in enumerate(Path(__file__).read_text().splitlines()[first - 1 :]) if text in line
    )


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def prints(x):
    def body(carry, x):
        print("carry", carry)
        return carry + x, None

    return jax.lax.scan(body, 0.0, x)[0]


def test_an_effect_is_told_at_its_line():
    (finding,) = lox.audit(prints)(jnp.ones(3)).warnings
    assert (finding.code, finding.file, finding.line) == ("LOX410", __file__, line_of(prints, "print("))
    assert "'body'" in finding.message


def test_it_is_told_also_when_the_function_was_traced_before_the_audit():
    jitted = jax.jit(prints)
    jitted(jnp.ones(3))
    assert found(jitted, jnp.ones(3)) == ["LOX410"]


def test_a_function_that_calls_what_is_jitted_runs_as_python():
    step = jax.jit(lambda x: x * 2)
    history = []

    def note(x):
        history.append(x.sum())
        print(x)

    def train(x):
        for _ in range(3):
            x = step(x)
            note(x)
        return x, np.random.uniform()

    assert not found(train, jnp.ones(3))
    assert set(found(jax.jit(train), jnp.ones(3))) == {"LOX410", "LOX411", "LOX413"}


@pytest.mark.parametrize("verbose", [False, True])
def test_of_a_branch_is_told_only_what_is_known_to_run(verbose):
    def step(x, verbose):
        if verbose:
            x = x * 2
            print(x)
        return x

    assert found(step, jnp.ones(3), verbose) == (["LOX410"] if verbose else [])


def test_printing_what_is_known_while_tracing_is_fine():
    def step(params, x, mode="train"):
        shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
        rows, *_ = x.shape
        print(mode, shapes, rows, {name: leaf.dtype for name, leaf in params.items()}, len(x), jax.typeof(x))
        print(
            jax.tree.map(lambda leaf: leaf.shape, params), jax.tree.map(jnp.shape, params), jax.tree.structure(params)
        )
        for place, (name, leaf) in enumerate(params.items()):
            print(place, name, leaf.shape)
        return sum(leaf.sum() for leaf in params.values()) + x.sum()

    assert not found(step, {"w": jnp.ones(3)}, jnp.ones((2, 3)))


def test_printing_a_parameter_that_is_said_to_be_static_is_fine():
    def layer(x, name: str, verbose=True):
        print(name, verbose)
        return x * 2

    assert not found(lambda x: layer(x, "first", False), jnp.ones(3))


def test_printing_a_value_in_a_comprehension_is_not():
    def step(params):
        print([leaf.mean() for leaf in params])
        return params[0]

    assert found(step, [jnp.ones(3)]) == ["LOX410"]


def test_a_global_list_without_tracers_is_fine():
    def step(x):
        KEPT.append((x, 1)[1])
        return x * 2

    assert not found(step, jnp.ones(3))


def test_logging_of_other_levels_and_other_objects():
    def step(x):
        logging.getLogger("a").name.count("a")
        logging.info("now %s", x)
        return x * 2

    assert found(step, jnp.ones(3)) == ["LOX410"]


def test_an_audit_inside_of_a_trace_may_close_over_tracers():
    reports = []

    @jax.jit
    def outer(x):
        reports.append(lox.audit(lambda y: y + x)(jnp.ones(3)))
        return x

    outer(jnp.ones(3))
    assert not reports[0].issues


def test_what_differs_between_calls_is_told_with_both_types():
    def predict(params, x):
        return x @ params["w"]

    params = {"w": jnp.ones((8, 2))}
    report = lox.audit(predict, calls=[(params, jnp.ones((32, 8))), (params, jnp.ones((5, 8)))])(
        params, jnp.ones((32, 8))
    )
    (finding,) = report.warnings
    assert finding.code == "LOX420" and "float32[32, 8]" in finding.message and "float32[5, 8]" in finding.message
    assert "'x'" in finding.message and finding.line == predict.__code__.co_firstlineno


def test_a_call_like_any_earlier_one_is_not_traced_again():
    calls = [(jnp.ones(4),), (jnp.ones(3),), (jnp.ones(4),)]
    report = lox.audit(lambda x: x * 2, calls=calls)(jnp.ones(3))
    assert [finding.code for finding in report.warnings] == ["LOX420"]


def test_a_call_is_compared_with_the_one_it_is_most_like():
    calls = [(jnp.ones(4),), (jnp.ones(4, int),)]
    report = lox.audit(lambda x: x * 2, calls=calls)(jnp.ones(3))
    assert [finding.code for finding in report.warnings] == ["LOX420", "LOX421"]


def test_arguments_by_position_of_static_ones():
    jitted = jax.jit(lambda x, n: x * n, static_argnums=1)
    assert found(jitted, jnp.ones(3), 2, calls=[(jnp.ones(3), 3)]) == ["LOX423"]
    assert not found(jax.jit(lambda x, n: x * n), jnp.ones(3), 2, calls=[(jnp.ones(3), 3)])


def test_keys_and_numpy_arrays_are_arrays_of_their_types():
    key = jax.random.key(0)
    calls = [(np.ones(3), jax.random.key(1))]
    assert not found(lambda x, key: x + jax.random.normal(key, 3), jnp.ones(3), key, calls=calls)


def test_a_donated_state_that_is_passed_on_in_part_is_fine():
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, x):
        return {**state, "a": state["a"] + x}

    def train(state, x):
        for _ in range(3):
            state = step(state, x)
        return state

    assert not found(train, {"a": jnp.ones(3), "key": jax.random.key(0)}, jnp.ones(3))


def test_functions_on_one_line_are_not_mixed_up():
    assert all(len(written) >= 1 for written in functions(__file__).values())
    pair = (lambda x: print(x)), (lambda x: x * 2)
    assert not found(pair[1], jnp.ones(3)) and len(pair) == 2


def test_without_source_nothing_is_told():
    names = {"jnp": jnp}
    exec("def step(x):\n    print(x)\n    return x * 2\n", names)
    assert not found(names["step"], jnp.ones(3))


@pytest.mark.parametrize("library", ["flax", "optax", "equinox"])
def test_libraries_are_silent(library):
    assert not globals()[f"step_with_{library}"]()


def step_with_flax():
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
            return nn.Dropout(0.1, deterministic=not train)(x)

    model, x = Model(), jnp.ones((4, 3))

    def step(variables, key):
        return model.apply(variables, x, True, rngs={"dropout": key}, mutable=["batch_stats"])

    return found(step, model.init(jax.random.key(0), x, False), jax.random.key(1))


def step_with_optax():
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 10)))
    params = {"w": jnp.ones(3)}

    def step(params, state):
        updates, state = optimizer.update(jax.grad(lambda params: (params["w"] ** 2).sum())(params), state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    return found(step, params, state, calls=[jax.jit(step)(params, state)])


def step_with_equinox():
    import equinox as eqx

    model = eqx.nn.MLP(3, 1, 8, 2, key=jax.random.key(0))

    @eqx.filter_jit
    def step(model, x):
        gradient = eqx.filter_grad(lambda model: jax.vmap(model)(x).mean())(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient))

    return found(step, model, jnp.ones((4, 3)))
