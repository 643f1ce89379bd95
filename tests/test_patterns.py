"""Patterns of names: `*` within a part, `**` across parts, and nothing else is special."""

import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._patterns import matches
from lox._select import Selection

NAMES = ["loss", "norm", "a*", "ab", "x[0]", "x0", "q?", "train/loss", "train/grad/norm", "train/grad/max", "a\nb", ""]

MATCHES = {
    "loss": ["loss"],
    "*": ["loss", "norm", "a*", "ab", "x[0]", "x0", "q?", "a\nb", ""],
    "**": NAMES,
    "***": NAMES,
    "*/*": ["train/loss"],
    "train/*": ["train/loss"],
    "train/**": ["train/loss", "train/grad/norm", "train/grad/max"],
    "train/*/norm": ["train/grad/norm"],
    "**/norm": ["norm", "train/grad/norm"],
    "train/**/norm": ["train/grad/norm"],
    "train/**/loss": ["train/loss"],
    "**/grad/**": ["train/grad/norm", "train/grad/max"],
    "**norm": ["norm", "train/grad/norm"],
    "*o*": ["loss", "norm"],
    "a*": ["a*", "ab", "a\nb"],
    "x[0]": ["x[0]"],
    "x[*]": ["x[0]"],
    "q?": ["q?"],
    "?": [],
    "[a]*": [],
    "*.*": [],
    "LOSS": [],
    "": [""],
}


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_star_matches_within_a_part_and_two_across_parts(pattern):
    assert [name for name in NAMES if matches(pattern, name)] == MATCHES[pattern]


def f():
    for place, key in enumerate(["loss", "train/loss", "train/grad/norm", "x[0]"]):
        lox.log({key: jnp.float32(place)}, tags=[f"tag/{place % 2}"])
    lox.log({"loss": jnp.float32(9)})


def keys(fun):
    return sorted(lox.spool(fun)()[1])


ALL = ["loss", "train/grad/norm", "train/loss", "x[0]"]
SELECTIONS = [
    ({"argnames": "train/*"}, ["train/loss"]),
    ({"argnames": ["loss", "**/norm"]}, ["loss", "train/grad/norm"]),
    ({"argnames": "x[*]"}, ["x[0]"]),
    ({"tags": "tag/*"}, ALL),
    ({"tags": "*/1"}, ["train/loss", "x[0]"]),
    ({"argnames": "train/**", "tags": "**/1"}, ["train/loss"]),
]


@pytest.mark.parametrize(("selection", "selected"), SELECTIONS, ids=lambda value: str(value))
def test_handlers_select_keys_and_tags_by_patterns(selection, selected):
    received = []
    lox.tap(f, received.append, **selection)()
    lox.flush()
    assert sorted({key for logs in received for key in logs}) == selected
    assert sorted(lox.spool(f, **selection)()[1]) == selected
    assert keys(lox.keep(f, **selection)) == selected
    others = sorted({*ALL} - {*selected} | ({"loss"} if "tags" in selection else set()))
    assert keys(lox.strip(f, **selection)) == others


def test_loggers_select_by_patterns():
    logger = lox.loggers.MemoryLogger()
    logger.tap(f, logger.init(1), argnames="train/**")()
    logger.spool(f, logger.init(2), tags="*/1")()
    logger.flush()
    assert [sorted(logger[run]) for run in logger.runs] == [["train/grad/norm", "train/loss"], ["train/loss", "x[0]"]]


def series():
    for value in (1.0, 2.0, 6.0):
        lox.log({key: jnp.float32(value) for key in ("loss", "loss*", "train/loss", "train/x", "other/deep/x")})


REDUCTIONS = [
    ({"loss": "mean", "*": "last"}, {"loss": [3.0], "loss*": [6.0]}),
    ({"*": "last", "loss": "mean"}, {"loss": [3.0], "loss*": [6.0]}),
    ({"loss*": "max", "*": "min"}, {"loss": [6.0], "loss*": [6.0]}),
    ({"*": "min", "loss*": "max"}, {"loss": [1.0], "loss*": [6.0]}),
    ({"train/*": "sum", "train/loss": "first"}, {"train/x": [9.0], "train/loss": [1.0]}),
    ({"**/x": "sum", "train/**": "min"}, {"train/x": [9.0], "other/deep/x": [9.0], "train/loss": [1.0]}),
]


@pytest.mark.parametrize(("reduce", "reduced"), REDUCTIONS, ids=lambda value: str(value))
def test_the_name_of_a_key_has_its_reduction_and_then_the_first_pattern_that_matches(reduce, reduced):
    whole = lox.spool(series)()[1]
    expected = {key: reduced.get(key, [1.0, 2.0, 6.0]) for key in whole}
    for logs in (lox.spool(series, reduce=reduce)()[1], whole.reduce(reduce)):
        assert {key: logs[key].tolist() for key in logs} == expected


def test_a_reduction_by_pattern_takes_only_keys_that_argnames_select():
    logs = lox.spool(series, argnames=["train/*", "loss"], reduce={"**/x": "sum", "loss": "max"})()[1]
    assert {key: logs[key].tolist() for key in logs} == {"loss": [6.0], "train/loss": [1.0, 2.0, 6.0], "train/x": [9.0]}


def test_a_logdict_is_filtered_by_patterns():
    logs = lox.logdict(dict.fromkeys(NAMES, np.zeros(1)))
    for pattern, names in MATCHES.items():
        if names:
            assert set(logs.filter(pattern)) == set(names)
    assert set(logs.filter(["x*", "**/max"])) == {"x[0]", "x0", "train/grad/max"}


def test_keys_of_a_mapping_of_reductions_are_strings():
    with pytest.raises(lox.LogDataError, match="keys of reduce= must be strings, got 3 of type int"):
        lox.spool(f, reduce={3: "mean"})


@pytest.mark.parametrize("names", [["a"], ["a", "b/*"], ["**"]])
def test_selections_of_the_same_names_are_equal_and_hash_alike(names):
    first, second = Selection.of(names, names), Selection.of(names[::-1], tuple(names))
    assert first == second and hash(first) == hash(second)
    assert first != Selection.of([*names, "c"], names)


def test_names_without_wildcards_are_looked_up_in_a_frozenset():
    selection = Selection.of(["loss", "x[0]?"], "metric")
    assert type(selection.argnames) is frozenset and type(selection.tags) is frozenset
