"""Tiers of tests: what runs by default, what only `.ci/run` runs, and how much each may run.

A test is of the default tier unless it is marked. `integration` is for tests that start processes, write to real
sinks, or build pages. `exhaustive` is for whole products and long random searches. `covering(strength)` splits a test
with several parameters: by default it runs a covering array, in which all combinations of `strength` of its
parameters occur; the rest is exhaustive.

`--share=1/2` leaves out every second test of the slow tiers, and `--share=2/2` the others. Of 24 shares, three have a
test that generates programs, and all have one that is marked `every_share`.
"""

import argparse
import itertools
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.internal.conjecture import providers

INTEGRATION = Path(__file__).parent / "integration"
DEFAULT = "not integration and not exhaustive"
BUDGETS = {"default": 9_000, "integration": 1_700, "exhaustive": 4_820}
"""The most that a tier may run: a test counts 1, and one that generates programs as many as it generates."""
SHARES_OF_PROGRAMS = 8
"""In how many shares the tests that generate programs are, at most: each finds more than another test."""


# Hypothesis takes numbers from the source of all modules that are imported: what is generated would depend on which
# other tests are collected. Here the seed alone decides.
assert hasattr(providers, "_get_local_constants")
providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config):
    """Runs what is named on the command line, whatever its tier."""
    paths = [Path(argument).resolve() for argument in config.args]
    named = any("::" in argument for argument in config.args) or any(
        INTEGRATION in (path, *path.parents) for path in paths
    )
    if config.option.markexpr == DEFAULT and named:
        config.option.markexpr = ""


def pytest_ignore_collect(collection_path, config):
    """Leaves out what needs the extra `integration` where no test of that tier can run."""
    chosen = config.option.markexpr
    wanted = not chosen or (chosen != DEFAULT and "integration" in chosen)
    return None if wanted or collection_path != INTEGRATION else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks integration tests by their place and what covering arrays leave out; counts what each tier runs."""
    for item in items:
        if INTEGRATION in item.path.parents:
            item.add_marker(pytest.mark.integration)
    of_function = itertools.groupby(items, lambda item: item.nodeid.partition("[")[0])
    for group in (list(group) for _, group in of_function):
        marker = group[0].get_closest_marker("covering")
        if marker is not None:
            chosen = covering(group, number(marker, group[0].nodeid))
            for item in [item for item in group if item not in chosen]:
                item.add_marker(pytest.mark.exhaustive)
    config.stash[COUNTS] = Counter()
    for item in items:
        config.stash[COUNTS][tier(item)] += generated(item)
    if (share := config.getoption("share")) is not None:
        chosen = {item for item in items if is_in_share(item, *share)}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


COUNTS = pytest.StashKey[Counter]()


def tier(item):
    """The tier of a test."""
    marked = [name for name in ("exhaustive", "integration") if item.get_closest_marker(name)]
    return marked[0] if marked else "default"


def share(text):
    """The number of a share and of how many it is one, of a text as "1/2"."""
    place, _, count = text.partition("/")
    if not (place.isdecimal() and count.isdecimal() and 1 <= int(place) <= int(count)):
        raise argparse.ArgumentTypeError(f"--share takes one of 1/2, 2/2, 1/3 and so on, got {text!r}")
    return int(place), int(count)


def is_in_share(item, place, count):
    """Say whether a test belongs to a share of the tests."""
    if tier(item) == "default" or item.get_closest_marker("every_share"):
        return True
    if item.get_closest_marker("generated"):
        count = min(count, SHARES_OF_PROGRAMS)
    return (place - 1 - zlib.crc32(item.nodeid.encode())) % count == 0


def generated(item):
    """The number of programs that a test generates, or 1."""
    marker = item.get_closest_marker("generated")
    return 1 if marker is None else number(marker, item.nodeid)


def number(marker, test):
    """The number that a marker of a test has."""
    match marker.args:
        case (int(found),) if found > 0:
            return found
    raise pytest.UsageError(f"{test}: {marker.name} takes a positive number, got {marker.args}")


def covering(items, strength):
    """The tests of a covering array, chosen greedily: each has the most combinations that none before it has."""
    combinations = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        values = [(name, id(value)) for name, value in parameters.items()]
        if strength > len(values):
            raise pytest.UsageError(f"{item.nodeid}: covering({strength}) takes a test of that many parameters or more")
        combinations[item] = set(itertools.combinations(values, strength))
    left = set().union(*combinations.values())
    chosen = set()
    while left:
        best = max(combinations, key=lambda item: len(combinations[item] & left))
        left -= combinations.pop(best)
        chosen.add(best)
    return chosen


def search(count):
    """Settings of Hypothesis: this many examples, the same ones in each run with one `--hypothesis-seed`."""
    return settings(
        max_examples=count, deadline=None, database=None, print_blob=False, suppress_health_check=list(HealthCheck)
    )


def generates(count):
    """Decorates a test of Hypothesis with the number of examples that it generates."""
    return lambda test: pytest.mark.generated(count)(search(count)(test))


@pytest.fixture
def examples(request):
    """Decorates the function of Hypothesis in a test that is marked as `generated(count)`.

    Each test has examples of its own.
    """
    marker = request.node.get_closest_marker("generated")
    if marker is None:
        raise pytest.UsageError(f"{request.node.nodeid}: the fixture examples needs the marker generated(count)")
    (count,) = marker.args
    start = f"{request.config.getoption('hypothesis_seed')} {request.node.nodeid}"
    return lambda test: search(count)(seed(start)(test))
