"""Random programs keep the laws: of each, two claims of a law are checked, which share what they are compared with."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from lox import testing
from lox.testing import Branch, Call, Scan, While

X = np.float32([0.3, -0.5])
FAMILIES = (
    (testing.transparency, testing.absence, testing.jit),
    (testing.vmap,),
    (testing.derivatives, testing.logs_are_values, testing.custom_rules),
    (testing.scan, testing.cond, testing.while_loop),
    (testing.filters,),
    (testing.tap_and_spool,),
    (testing.sharding, testing.no_silent_loss, testing.hygiene),
)
"""Laws of one kind, which share six parts of the exhaustive tier."""

IS_ABOUT = {
    testing.scan: lambda statement: isinstance(statement, Scan),
    testing.cond: lambda statement: isinstance(statement, Branch),
    testing.while_loop: lambda statement: isinstance(statement, While),
    testing.custom_rules: lambda statement: isinstance(statement, Call) and statement.how.startswith("custom"),
}
"""What a program must have for a law to say something of it."""


def keeps_law(law, examples):
    """Checks the law on random programs of which it says something."""
    programs = testing.programs(depth=2, length=2)
    if law in IS_ABOUT:
        programs = programs.filter(lambda program: any(map(IS_ABOUT[law], program.statements())))
    checked = 0

    @examples
    @given(programs, st.tuples(*[st.integers(0, 6)] * 3), st.integers(0, 1000))
    def keeps(program, starts, number):
        nonlocal checked
        batch = [(X * np.float32(1 - place / 2), np.int32(n)) for place, n in enumerate(starts)]
        try:
            report = testing.check(
                program,
                *batch[0],
                laws=[law],
                batch=batch[1:],
                spool={"max_events": 99} if number % 2 else {},
                choose=functools.partial(two_of, number=number // 2),
            )
        except testing.NothingToCheck:  # A filter leaves no log, or the claims say nothing of the program.
            reject()
        checked += report.claims

    keeps()
    jax.clear_caches()  # What was compiled takes gigabytes.
    return checked


def two_of(claims, number):
    """Two claims of several, which a number chooses."""
    first = number % len(claims)
    distance = 1 + number // len(claims) % max(1, len(claims) - 1)
    return [claims[place] for place in sorted({first, (first + distance) % len(claims)})]


@pytest.mark.generated(5)
@pytest.mark.parametrize("law", testing.LAWS, ids=lambda law: law.__name__)
def test_random_programs_keep_the_law(law, examples):
    assert keeps_law(law, examples) >= 8


PARTS = [
    pytest.param(law, id=f"{law.__name__}-{part}")
    for family in FAMILIES
    for law in family
    for part in range(6 // len(family))
]


@pytest.mark.exhaustive
@pytest.mark.generated(16)
@pytest.mark.parametrize("law", PARTS)
def test_many_random_programs_keep_the_law(law, examples):
    assert keeps_law(law, examples) >= 25


def test_every_law_is_of_one_family():
    assert sorted(law.__name__ for family in FAMILIES for law in family) == sorted(law.__name__ for law in testing.LAWS)
