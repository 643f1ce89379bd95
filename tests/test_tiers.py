"""The tiers of the tests: what each runs, and that it stays within its budget."""

import argparse
import itertools
import types

import pytest
from tiers import BUDGETS, COUNTS, covering, is_in_share, number, share


def test_a_tier_runs_no_more_than_its_budget(pytestconfig):
    counts = pytestconfig.stash[COUNTS]
    assert set(counts) <= set(BUDGETS)
    assert {tier: count for tier, count in counts.items() if count > BUDGETS[tier]} == {}


class Item:
    """A test with parameters, as pytest has it."""

    nodeid = "test_x"

    def __init__(self, **params):
        self.callspec = types.SimpleNamespace(params=params)


@pytest.mark.parametrize(("strength", "least"), [(1, 5), (2, 20), (3, 60)])
def test_a_covering_array_has_all_combinations_of_so_many_parameters(strength, least):
    sizes = {"a": 4, "b": 5, "c": 3}
    values = {name: [object() for _ in range(size)] for name, size in sizes.items()}
    items = [Item(**dict(zip(values, row, strict=True))) for row in itertools.product(*values.values())]
    chosen = covering(items, strength)
    assert least <= len(chosen) <= 1.3 * least
    for names in itertools.combinations(sizes, strength):
        found = {tuple(item.callspec.params[name] for name in names) for item in chosen}
        assert found == set(itertools.product(*(values[name] for name in names)))


def test_a_covering_array_of_more_parameters_than_there_are_is_an_error():
    with pytest.raises(pytest.UsageError, match=r"covering\(3\) takes a test of that many parameters"):
        covering([Item(a=1, b=2)], 3)


def marked(index, *marks):
    """A test with these markers."""
    return types.SimpleNamespace(nodeid=f"test_x[{index}]", get_closest_marker=marks.__contains__)


@pytest.mark.parametrize(
    ("marks", "of_16"),
    [
        ((), 16),
        (("exhaustive",), 1),
        (("integration",), 1),
        (("exhaustive", "generated"), 2),
        (("exhaustive", "generated", "every_share"), 16),
    ],
    ids=str,
)
def test_of_16_shares_so_many_have_a_test_and_each_test_is_in_one(marks, of_16):
    for index, count in itertools.product(range(100), (1, 2, 3, 8, 16)):
        found = sum(is_in_share(marked(index, *marks), place + 1, count) for place in range(count))
        assert found == (count if of_16 == 16 else max(1, of_16 * count // 16))


def test_shares_have_about_as_many_tests():
    assert 400 < sum(is_in_share(marked(index, "exhaustive"), 1, 2) for index in range(1000)) < 600


def test_a_worker_of_xdist_has_the_options_that_the_session_was_given(pytestconfig):
    given = getattr(pytestconfig, "workerinput", {}).get("options", {})
    assert {name: pytestconfig.getoption(name) for name in given} == given


def test_what_is_no_share():
    for text in ["", "1", "0/2", "3/2", "a/b", "1/2/3", "-1/2"]:
        with pytest.raises(argparse.ArgumentTypeError, match="--share takes one of"):
            share(text)


@pytest.mark.parametrize("args", [(), (0,), ("2",), (1, 2)])
def test_a_marker_without_its_number_is_an_error(args):
    with pytest.raises(pytest.UsageError, match="test_x: covering takes a positive number, got"):
        number(pytest.mark.covering(*args).mark, "test_x")
