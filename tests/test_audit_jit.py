"""What an audit says of what happens only while tracing, and of what forces tracing again."""

import functools
import logging
import sys
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
    assert "LOX400" not in {issue.code for issue in report.issues}  # Of what raises, little is looked at.
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


def test_a_file_that_is_opened_to_be_written_is_an_effect(tmp_path):
    def reads(x):
        open(path).close()
        open(path, mode="rb").close()
        return x

    def changes(x):
        open(path, "r+").close()
        return x

    def makes(x):
        open(tmp_path / str(len(list(tmp_path.iterdir()))), mode="xb").close()
        return x

    def extends(x):
        open(path, "a").close()
        return x

    path = tmp_path / "file"
    path.touch()
    assert [found(f, jnp.ones(3)) for f in (reads, changes, makes, extends)] == [[], *[["LOX410"]] * 3]


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
    assert set(found(jax.jit(train), jnp.ones(3))) == {"LOX410", "LOX411", "LOX414"}


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


def test_of_arrays_that_differ_in_weak_types_alone_it_is_told_which_is_weakly_typed():
    report = lox.audit(lambda x: x * 2, calls=[(jnp.asarray(1.0),)])(jnp.float32(1.0))
    (finding,) = report.warnings
    assert finding.code == "LOX421"
    assert "is float32[] in an earlier call, and is float32[] (weakly typed)" in finding.message


def test_a_global_that_is_assigned_in_a_branch_that_may_not_run_is_not_told():
    def step(x, keeps):
        global ASSIGNED
        if keeps:
            ASSIGNED = x + 1
        return x

    assert found(step, jnp.ones(3), False) == []


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
    pair = (lambda x: print(x)), (lambda x: x * 2)
    assert len(functions(__file__)[pair[0].__code__.co_firstlineno, "<lambda>"]) == 2
    assert [found(fun, jnp.ones(3)) for fun in pair] == [["LOX410"], []]


def test_without_source_nothing_is_told():
    names = {"jnp": jnp}
    exec("def step(x):\n    print(x)\n    return x * 2\n", names)
    assert not found(names["step"], jnp.ones(3))


@pytest.mark.integration
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


# -- what outlives a call ------------------------------------------------------------------------------------------


class Stepper:
    """An object whose methods change it, or do not."""

    shared: list = []
    count = 0

    def __init__(self):
        self.steps, self.seen, self.named, self.cache, self.logger = 0, [], {}, None, logging.getLogger("stepper")
        self.generator = np.random.default_rng(0)

    def counts(self, x):
        self.steps += 1
        return x * self.steps

    def appends(self, x):
        self.seen.append(1)
        return x * 2

    def names(self, x):
        self.named["n"] = 3
        return x * 2

    def shares(self, x):
        self.shared.append(1)
        return x * 2

    def counts_in_the_class(self, x):
        Stepper.count += 1
        return x * 2

    @classmethod
    def counts_of_all(cls, x):
        cls.count += 1
        return x * 2

    def counts_in_a_scan(self, x):
        def body(carry, x):
            self.steps += 1
            return carry + x, None

        return jax.lax.scan(body, 0.0, x)[0]

    def calls_another(self, x):
        return self.counts(x)

    def caches(self, x):
        if self.cache is None:
            self.cache = np.ones(3, np.float32)
        return x * self.cache

    @functools.partial(jax.jit, static_argnums=0)
    def counts_jitted(self, x):
        self.steps += 1
        return x * 2

    def keeps(self, x):
        self.named.setdefault("x", []).append(x.sum())
        return x * 2

    def by_alias(self, x):
        seen = self.seen
        seen.append(1)
        return x * 2

    def by_name(self, x):
        setattr(self, "steps", self.steps + 1)
        return x * 2

    @functools.cached_property
    def table(self):
        return np.ones(3, np.float32)

    def reads_a_cached_property(self, x):
        return x * self.table

    def takes_back(self, x):
        self.seen.append(x)
        return self.seen.pop() * 2

    def draws(self, x):
        return x + self.generator.normal()

    def logs(self, x):
        self.logger.warning("%s", x)
        return x * 2


STEPPER = Stepper()
CHANGING = {
    "counts": "self.steps += 1",
    "appends": "self.seen.append(1)",
    "names": 'self.named["n"] = 3',
    "shares": "self.shared.append(1)",
    "counts_in_the_class": "Stepper.count += 1",
    "counts_of_all": "cls.count += 1",
    "counts_in_a_scan": "self.steps += 1",
    "calls_another": "self.steps += 1",
    "caches": "self.cache = np.ones",
    "counts_jitted": "self.steps += 1",
}


def verified(fun, *args):
    return {finding.code for finding in lox.audit(fun)(*args).verified}


@pytest.mark.parametrize("how", ["bound", "lambda", "global", "argument"])
@pytest.mark.parametrize("name", CHANGING)
def test_an_object_that_outlives_the_call_is_changed(name, how):
    stepper = STEPPER if how == "global" else Stepper()
    stepper.cache = None
    stepper.named.clear()
    methods = {
        "bound": getattr(stepper, name),
        "lambda": lambda x: getattr(stepper, name)(x),
        "global": lambda x: getattr(STEPPER, name)(x),
    }
    if how == "argument":
        report = lox.audit(lambda stepper, x: getattr(stepper, name)(x))(stepper, jnp.ones(3))
    else:
        report = lox.audit(methods[how])(jnp.ones(3))
    (finding,) = report.warnings
    assert finding.code == "LOX413" and finding.file == __file__
    assert Path(__file__).read_text().splitlines()[finding.line - 1].strip().startswith(CHANGING[name])


def test_what_a_partial_function_has_been_given_is_outside_of_it():
    def first(seen, x):
        seen.steps += 1
        return x * 2

    def named(x, *, seen):
        seen.steps += 1
        return x * 2

    for step in (functools.partial(first, Stepper()), functools.partial(named, seen=Stepper())):
        assert found(step, jnp.ones(3)) == ["LOX413"]


def test_what_is_not_changed_for_good_is_fine():
    stepper = Stepper()
    for fun in (stepper.takes_back, lambda x: Stepper().counts(x), lambda x: Stepper().appends(x) + stepper.steps):
        assert not found(fun, jnp.ones(3))
    assert verified(lambda x: Stepper().counts(x), jnp.ones(3)) >= {"LOX413", "LOX414"}


def test_a_method_that_was_traced_before_changes_its_object_nevertheless():
    for name in ("counts", "appends"):
        jitted = jax.jit(getattr(Stepper(), name))
        assert found(jitted, jnp.ones(3)) == found(jitted, jnp.ones(3)) == ["LOX413"]
    jitted = jax.jit(Stepper().names)
    assert found(jitted, jnp.ones(3)) == ["LOX413"] and not found(jitted, jnp.ones(3))
    assert not {"LOX413", "LOX414"} & verified(jitted, jnp.ones(3))  # Whether it does cannot be told.


class Doubled:
    def __init__(self, x):
        self.count = 0
        self.value = x * 2

    def more(self, x):
        self.count += 1
        return x * 2


def test_what_makes_an_object_changes_no_other_one():
    doubled = Doubled(1.0)
    report = lox.audit(lambda x: doubled.more(x) + Doubled(x).value)(jnp.ones(3))
    assert [finding.line for finding in report.warnings] == [line_of(Doubled.more, "self.count += 1")]


def bumps(stepper, x):
    stepper.steps += 1
    return x * 2


def test_an_object_by_another_name_is_changed():
    stepper = Stepper()
    assert found(lambda x: bumps(stepper, x), jnp.ones(3)) == ["LOX413"]
    assert not found(lambda x: bumps(Stepper(), x), jnp.ones(3))


def test_a_tracer_in_a_container_of_an_object_is_told_once():
    (finding,) = lox.audit(lambda x: Stepper.keeps(STEPPER, x))(jnp.ones(3)).issues
    STEPPER.named.clear()
    assert finding.code == "LOX414" and "'self.named'" in finding.message


@pytest.mark.parametrize("name", ["by_alias", "by_name", "reads_a_cached_property"])
def test_a_change_whose_line_is_not_known_is_not_verified_to_be_none(name):
    report = lox.audit(getattr(Stepper(), name))(jnp.ones(3))
    assert not report.warnings and not {"LOX413", "LOX414"} & {finding.code for finding in report.verified}


def test_the_logs_and_generators_of_objects_are_those_of_the_host():
    assert found(Stepper().draws, jnp.ones(3)) == ["LOX411"]
    assert found(Stepper().logs, jnp.ones(3)) == ["LOX410"]


NAMED = {}
COUNTS = {"n": 0}


def counts_in_its_default(x, seen=[]):
    seen.append(1)
    return x * 2


def adds_to_its_default(x, *, seen=[]):
    seen += [1]
    return x * 2


def keeps_in_its_default(x, seen=[]):
    seen.append(x.sum())
    return x * 2


def keeps_in_a_global(x):
    NAMED.setdefault("x", []).append(x.sum())
    return x * 2


def counts_in_a_global(x):
    COUNTS["n"] += 1
    return x * 2


def counts_in_a_scan(x):
    counts = {"n": 0}

    def body(carry, x):
        counts["n"] += 1
        return carry + x, None

    return jax.lax.scan(body, 0.0, x)[0]


def caches_in_a_global(x):
    NAMED["shape"] = x.shape
    return x * 2


@pytest.mark.parametrize(
    ("fun", "codes"),
    [
        (counts_in_its_default, ["LOX413"]),
        (adds_to_its_default, ["LOX413"]),
        (keeps_in_its_default, ["LOX414"]),
        (keeps_in_a_global, ["LOX414"]),
        (counts_in_a_global, ["LOX413"]),
        (counts_in_a_scan, ["LOX413"]),
        (caches_in_a_global, []),
    ],
)
def test_containers_that_outlive_the_call(fun, codes):
    NAMED.clear()
    assert found(fun, jnp.ones(3)) == codes
    assert codes or "LOX413" not in verified(fun, jnp.ones(3))


def test_a_default_that_is_given_is_not_changed():
    assert not found(lambda x: counts_in_its_default(x, []), jnp.ones(3))


# -- what is verified ----------------------------------------------------------------------------------------------


def writes(x):
    sys.stdout.write("hi")
    return x * 2


def writes_the_value(x):
    sys.stderr.write(f"{x}")
    return x * 2


def prints_the_value(x):
    print(x, file=sys.stderr)
    return x * 2


def prints_words(x):
    print("hi", file=sys.stderr)
    return x * 2


def logs_at_once(x):
    logging.getLogger(__name__).warning("%s", x)
    return x * 2


def logs(x):
    logging.warning("%s", x)


def logs_by_another(x):
    logs(x)
    return x * 2


def shapes_by_another(x):
    return x * rows(x)


def rows(x):
    return x.shape[0]


@pytest.mark.parametrize("fun", [writes_the_value, prints_the_value, logs_at_once])
def test_all_ways_to_write_a_value_are_told(fun):
    assert found(fun, jnp.ones(3)) == ["LOX410"]


@pytest.mark.parametrize("fun", [writes, prints_words, logs_by_another])
def test_what_writes_or_may_is_not_verified_to_be_silent(fun):
    assert not found(fun, jnp.ones(3))
    assert "LOX410" not in verified(fun, jnp.ones(3))


def test_a_function_that_leads_to_no_equation_and_is_silent_is_verified_with_its_caller():
    assert {"LOX410", "LOX411", "LOX412", "LOX413", "LOX414"} <= verified(shapes_by_another, jnp.ones(3))


def test_lambdas_on_one_line_are_told_apart():
    pair = (lambda x: (logging.warning("%s", x), x)[1]), (lambda x: x * 2)
    assert [found(fun, jnp.ones(3)) for fun in pair] == [["LOX410"], []]
    outer, inner = (lambda x: lambda y: (print(y), x)[1]), (lambda x: x)
    assert found(outer(jnp.ones(3)), jnp.ones(3)) == ["LOX410"] and not found(inner, jnp.ones(3))


def test_without_source_nothing_is_verified():
    names = {"jnp": jnp}
    exec("def step(x):\n    print(x)\n    return x * 2\n", names)
    assert not {"LOX410", "LOX411", "LOX412", "LOX413", "LOX414"} & verified(names["step"], jnp.ones(3))


@pytest.mark.integration
def test_a_loop_of_python_around_what_equinox_jits_may_change_its_object():
    import equinox as eqx

    @eqx.filter_jit
    def step(model, x):
        return model * 0.9 + x.mean(), x.sum()

    class Trainer:
        def __init__(self):
            self.model, self.losses = jnp.ones(3), []

        def train(self, x):
            for _ in range(2):
                self.model, loss = step(self.model, x)
                self.losses.append(loss)
            return self.model

    assert not found(Trainer().train, jnp.ones(3))
    assert set(found(jax.jit(Trainer().train), jnp.ones(3))) == {"LOX414"}


@pytest.mark.integration
def test_modules_of_flax_and_equinox_may_assign_what_they_make():
    import equinox as eqx
    import flax.linen as nn
    from flax import nnx

    class Linen(nn.Module):
        def setup(self):
            self.dense, self.scale = nn.Dense(3), 2.0

        def __call__(self, x):
            return self.dense(x) * self.scale

    class Equinox(eqx.Module):
        w: jax.Array

        def __init__(self, key):
            self.w = jax.random.normal(key, (3,))

        def __call__(self, x):
            return x * self.w

    class Nnx(nnx.Module):
        def __init__(self):
            self.linear, self.calls = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.calls[...] += 1
            return self.linear(x)

    x, key, linen, state = jnp.ones((2, 3)), jax.random.key(0), Linen(), nnx.split(Nnx())
    assert not found(linen.apply, linen.init(key, x), x) and not found(lambda key: Linen().init(key, x), key)
    assert not found(Equinox(key), x) and not found(lambda key: Equinox(key)(x), key)
    assert not found(nnx.jit(lambda model, x: model(x)), Nnx(), x)
    assert not found(lambda state_of, x: nnx.merge(state[0], state_of)(x), state[1], x)


def test_of_what_is_too_long_to_look_at_nothing_is_verified():
    long, short = [None] * 100_000, [None] * 100
    assert "LOX413" not in verified(lambda x: x * len(long), jnp.ones(3))
    assert "LOX413" in verified(lambda x: x * len(short), jnp.ones(3))


@pytest.mark.integration
def test_what_wraps_a_method_hides_no_change():
    import equinox as eqx

    for around in (jax.jit, eqx.filter_jit, jax.vmap, jax.checkpoint, functools.partial):
        assert found(around(Stepper().counts), jnp.ones(3)) == ["LOX413"]


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_whose_method_was_replaced_is_still_written_to(name, monkeypatch):
    """As Weights & Biases does, to keep what a run prints."""
    stream = getattr(sys, name)
    monkeypatch.setattr(stream, "write", lambda text, writes=stream.write: writes(text))

    def to_stdout(x):
        sys.stdout.write(f"{x}\n")
        return x + 1

    def to_stderr(x):
        sys.stderr.write(f"{x}\n")
        return x + 1

    report = lox.audit({"stdout": to_stdout, "stderr": to_stderr}[name])(np.float32(1))
    assert [finding.code for finding in report.found] == ["LOX410"]


def test_what_is_deleted_outside_is_not_told_as_counted():
    kept = {"old": 1}

    def forgets(x):
        del kept["old"]
        return x

    assert not lox.audit(forgets)(jnp.ones(3)).warnings and not kept
