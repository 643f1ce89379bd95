"""Misspelt and misplaced arguments, keys and attributes: each error says what was meant."""

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import pytest

import lox

LOGGERS = lox.loggers


def f(x):
    return x


def message(error, call):
    with pytest.raises(error) as raised:
        call()
    return raised.value.args[0]


OPTIONS = "name=, resume=, from_step=, batch_as=, room=, overflow=, processes="
CALLS = {
    "spool, keys=": (lambda: lox.spool(f, keys="a"), "lox.spool has no argument keys=. Did you mean argnames=?"),
    "spool, name=": (lambda: lox.spool(name="a"), "lox.spool has no argument name=. Did you mean argnames=?"),
    "spool, every=": (lambda: lox.spool(f, every=2), "lox.spool has no argument every=. Did you mean interval=?"),
    "spool, tag=": (lambda: lox.spool(f, tag="a"), "lox.spool has no argument tag=. Did you mean tags=?"),
    "spool, max_iter=": (
        lambda: lox.spool(f, max_iter=2),
        "lox.spool has no argument max_iter=. Did you mean max_iters=?",
    ),
    "spool, buffer=": (
        lambda: lox.spool(f, buffer=2),
        "lox.spool has no argument buffer=. buffer= is an argument of lox.tap.",
    ),
    "tap, buffer_size=": (
        lambda: lox.tap(f, print, buffer_size=2),
        "lox.tap has no argument buffer_size=. Did you mean buffer=?",
    ),
    "strip, every=": (
        lambda: lox.strip(f, every=2),
        "lox.strip has no argument every=. interval= is an argument of lox.spool and lox.tap.",
    ),
    "keep, xyz=": (lambda: lox.keep(f, xyz=2), "lox.keep has no argument xyz=. It has fun=, argnames=, tags=."),
    "spool, an argument": (
        lambda: lox.spool(f, 1.0),
        "lox.spool takes only fun by position, and returns a function: write lox.spool(f)(x).",
    ),
    "strip, an argument": (
        lambda: lox.strip(f, jnp.ones(2)),
        "lox.strip takes only fun by position, and returns a function: write lox.strip(f)(x).",
    ),
    "keep, a key": (
        lambda: lox.keep(f, ["a", "b"]),
        "lox.keep takes only fun by position. To select keys, write argnames=['a', 'b'].",
    ),
    "tap, an argument": (
        lambda: lox.tap(f, print, 1.0),
        "lox.tap takes only fun, callback by position, and returns a function: write lox.tap(f, callback)(x).",
    ),
    "sites, an argument": (
        lambda: lox.sites(f, 1.0),
        "lox.sites takes only fun by position, and returns a function: write lox.sites(f)(x).",
    ),
    "logger.tap, keys=": (
        lambda: LOGGERS.MemoryLogger().tap(f, lox.loggers.MemoryLogger().init(1), keys="a"),
        "lox.tap has no argument keys=. Did you mean argnames=?",
    ),
    "logger.spool, keys=": (
        lambda: LOGGERS.MemoryLogger().spool(f, lox.loggers.MemoryLogger().init(1), keys="a"),
        "lox.spool has no argument keys=. Did you mean argnames=?",
    ),
    "ConsoleLogger, every=": (
        lambda: LOGGERS.ConsoleLogger(every=1),
        "ConsoleLogger has no argument every=. Did you mean seconds=?",
    ),
    "SaveLogger, folder=": (
        lambda: LOGGERS.SaveLogger(folder="a"),
        "SaveLogger has no argument folder=. Did you mean path=?",
    ),
    "SaveLogger, of Logger": (
        lambda: LOGGERS.SaveLogger("a", overflw="drop"),
        "SaveLogger has no argument overflw=. Did you mean overflow=?",
    ),
    "SaveLogger, a second one": (
        lambda: LOGGERS.SaveLogger("a", "continue"),
        f"SaveLogger takes only path by position, and by name durable=, {OPTIONS}.",
    ),
    "SaveLogger, nothing": (LOGGERS.SaveLogger, "SaveLogger: missing a required argument: 'path'."),
    "MemoryLogger": (
        lambda: LOGGERS.MemoryLogger("a"),
        f"MemoryLogger takes all arguments by name: {OPTIONS}.",
    ),
    "ConsoleLogger": (
        lambda: LOGGERS.ConsoleLogger(total=3),
        "ConsoleLogger has no argument total=. Did you mean progress=?",
    ),
    "TensorBoardLogger": (
        lambda: LOGGERS.TensorBoardLogger(path="a"),
        "TensorBoardLogger has no argument path=. Did you mean logdir=?",
    ),
    "WandbLogger, a name": (
        lambda: LOGGERS.WandbLogger("mine"),
        "WandbLogger takes all arguments by name. Did you mean init='mine'?",
    ),
    "MlflowLogger": (
        lambda: LOGGERS.MlflowLogger(uri="a"),
        "MlflowLogger has no argument uri=. Did you mean tracking_uri=?",
    ),
    "MultiLogger": (
        lambda: LOGGERS.MultiLogger(room=3),
        "MultiLogger has no argument room=. It has name=, resume=, from_step=.",
    ),
    "MultiLogger, batch_as=": (
        lambda: LOGGERS.MultiLogger(batch_as="each"),
        "MultiLogger has no argument batch_as=. It has name=, resume=, from_step=.",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_that_there_is_not(call):
    called, expected = CALLS[call]
    assert message(TypeError, called) == expected


def test_a_keyword_that_wandb_does_not_know():
    pytest.importorskip("wandb")
    assert message(TypeError, lambda: LOGGERS.WandbLogger(init={"projct": "a"})) == (
        "wandb.init has no argument projct=. Did you mean project=?"
    )


def test_an_array_where_the_callback_of_tap_goes():
    found = message(lox.LogValueError, lambda: lox.tap(f, jnp.float32(1)))
    assert found.endswith("To call the function, write lox.tap(f)(x).")


def test_a_type_error_of_another_call_stays():
    class Odd:
        def __iter__(self):
            raise TypeError("mine")

    assert message(TypeError, lambda: lox.spool(f, argnames=Odd())) == "mine"
    assert message(TypeError, lambda: lox.spool(3)) == "lox transforms functions, got 3 of type int."


def test_signatures_stay_as_they_are():
    for function in (lox.spool, lox.tap, lox.strip, lox.keep, lox.sites):
        parameters = inspect.signature(function).parameters.values()
        assert next(iter(parameters)).name == "fun"
        assert not any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters)
    assert list(inspect.signature(LOGGERS.SaveLogger).parameters) == ["path", "durable", "options"]


LOGS = lox.logdict(
    {"loss": jnp.ones(2), "norm": jnp.ones(2), "{}": jnp.ones(2)},
    {"step": {"loss": jnp.arange(2)}},
    {"norm": jnp.array([True, False])},
)


def test_a_key_that_is_written_as_an_attribute():
    assert message(AttributeError, lambda: LOGS.loss) == "a logdict has no attribute 'loss'; write logs['loss']"
    assert message(AttributeError, lambda: LOGS.los) == (
        "a logdict has no attribute 'los'; its keys are: 'loss', 'norm', '{}'"
    )
    assert not hasattr(LOGS, "dtype") and not hasattr(LOGS, "__jax_array__")
    assert jax.jit(lambda logs: hasattr(logs, "shape"))(LOGS) is not True


def test_a_key_that_counters_and_masks_do_not_have():
    assert message(KeyError, lambda: LOGS.steps["epoch"]) == ("no counter 'epoch' was logged; the names are: 'step'")
    assert message(KeyError, lambda: LOGS.steps["step"]["{}"]) == (
        "the counter 'step' was not logged with the key '{}'; the names are: 'loss'"
    )
    assert message(KeyError, lambda: LOGS.mask["loss"]) == (
        "'loss' has no mask: all of its events happened, or it is no key; the names are: 'norm'"
    )
    assert message(KeyError, lambda: LOGS.dropped["loss"]) == (
        "'loss' has no count of dropped events: it has no bound, or it is no key; the names are: none"
    )
    assert message(KeyError, lambda: LOGS.data["x"]) == (
        "no events of the key 'x' were logged; the names are: 'loss', 'norm', '{}'"
    )
    assert "x" not in LOGS.mask and LOGS.mask.get("x") is None and LOGS.steps.get("x", 3) == 3


def test_logdicts_are_copied_and_pickled_as_before():
    for made in (copy.copy(LOGS), copy.deepcopy(LOGS), pickle.loads(pickle.dumps(LOGS))):
        assert made == LOGS and made.steps["step"]["loss"].tolist() == [0, 1]
