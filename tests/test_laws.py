"""Random programs keep the laws: of each program one claim of a law is checked, the same ones each time."""

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from lox import testing
from lox.testing import Branch, Call, Scan, While

X = np.float32([0.3, -0.5])
PROGRAMS = 300
FAMILIES = (
    (testing.transparency, testing.absence, testing.jit),
    (testing.vmap,),
    (testing.derivatives, testing.logs_are_values, testing.custom_rules),
    (testing.scan, testing.cond, testing.while_loop),
    (testing.filters,),
    (testing.tap_and_spool,),
    (testing.sharding, testing.no_silent_loss, testing.hygiene),
)
"""Laws of one kind, which share so many programs."""

IS_ABOUT = {
    testing.scan: lambda statement: isinstance(statement, Scan),
    testing.cond: lambda statement: isinstance(statement, Branch),
    testing.while_loop: lambda statement: isinstance(statement, While),
    testing.custom_rules: lambda statement: isinstance(statement, Call) and statement.how.startswith("custom"),
}
"""What a program must have for a law to say something of it."""


@pytest.mark.parametrize("law", testing.LAWS, ids=lambda law: law.__name__)
def test_random_programs_keep_the_law(law):
    (family,) = (family for family in FAMILIES if law in family)
    wanted, checked = PROGRAMS // len(family), 0
    programs = testing.programs(depth=2, length=2)
    if law in IS_ABOUT:
        programs = programs.filter(lambda program: any(map(IS_ABOUT[law], program.statements())))

    @settings(
        max_examples=wanted,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(programs, st.tuples(*[st.integers(0, 6)] * 3), st.integers(0, 1000))
    def keeps(program, starts, number):
        nonlocal checked
        lanes = [(X * np.float32(1 - place / 2), np.int32(n)) for place, n in enumerate(starts)]
        try:
            testing.check(
                program,
                *lanes[0],
                laws=[law],
                lanes=lanes[1:],
                choose=lambda claims: [claims[number % len(claims)]],
            )
        except testing.NothingToCheck:  # A filter leaves no log, or the claim says nothing of the program.
            reject()
        checked += 1
        if checked % 50 == 0:  # What was compiled takes gigabytes.
            jax.clear_caches()

    keeps()
    jax.clear_caches()
    assert checked >= wanted
