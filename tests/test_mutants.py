"""The harness finds what is broken: each mutant breaks a law on some random program."""

import contextlib
import pathlib
import re

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from mutants import MUTANTS, OF_BARS

import lox
from lox import _handler, testing

LANES = tuple((np.float32([0.3, -0.5]) * np.float32(scale), np.int32(n)) for scale, n in ((1, 5), (0.5, 2), (-1, 3)))


def find_broken(law, where):
    """Checks the law on random programs of these constructs, or on the given one, until one breaks it."""

    def keeps(program):
        with contextlib.suppress(testing.NothingToCheck):  # A filter leaves no log, or the law says nothing of it.
            testing.check(program, *LANES[0], laws=[getattr(testing, law)], batch=LANES[1:])

    if callable(where):
        return keeps(where)
    programs = testing.programs(depth=2, length=2, constructs=where, values=["x", "n"], dtypes=[])
    search = settings(
        max_examples=300,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    search(given(programs)(keeps))()


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant, monkeypatch):
    broken, law, where = MUTANTS[mutant]
    jax.clear_caches()
    with monkeypatch.context() as patch:
        broken(patch)
        with pytest.raises((testing.BrokenLaw, lox.LoxError, TypeError, ValueError, AttributeError, KeyError)):
            find_broken(law, where)
    jax.clear_caches()
    lox.flush()


def test_every_rule_has_a_mutant():
    class Patch:
        def setitem(self, table, key, value):
            broken.add(key)

        def setattr(self, *args):
            pass

    broken = set()
    for breaks, _, _ in MUTANTS.values():
        breaks(Patch())
    of_one_rule = {_handler.rules[primitive] for primitive in broken & set(_handler.rules)}
    assert set(_handler.rules.values()) == of_one_rule


def test_the_documentation_lists_every_mutant_and_the_law_that_finds_it():
    page = (pathlib.Path(__file__).parent.parent / "docs" / "testing.md").read_text()
    assert re.findall(r"^- (.+)$", page, re.MULTILINE) == list(OF_BARS)
    rows = re.findall(r"^\| (.+?) +\| `(\w+)` +\|$", page, re.MULTILINE)
    assert dict(rows) == {mutant: law for mutant, (_, law, _) in MUTANTS.items()}
