"""Random programs keep the laws, of which a few claims about each are checked: they share what they compare with.

Over both ends of what lox supports, 300 programs or more are checked for each law. CI watches all of them in each run,
and checks an eighth for the other laws: the commit decides which.
"""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import lox
from lox import testing
from lox.testing import Branch, Call, Scan, While

X = np.float32([0.3, -0.5])
IS_ABOUT = {
    testing.scan: lambda statement: isinstance(statement, Scan),
    testing.cond: lambda statement: isinstance(statement, Branch),
    testing.while_loop: lambda statement: isinstance(statement, While),
    testing.custom_rules: lambda statement: isinstance(statement, Call) and statement.how.startswith("custom"),
}
"""What a program must have for a law to say something of it."""

PARTIAL = (*IS_ABOUT, testing.logs_are_values, testing.derivatives, testing.sharding, testing.watching)
"""The laws that say nothing of many programs."""

GENERAL = tuple(law for law in testing.LAWS if law not in PARTIAL)


def keep_laws(laws, examples, claims):
    """Checks so many claims of each law on random programs of which all laws say something; returns their number."""
    programs = testing.programs(depth=2, length=2)
    for law in laws:
        if law in IS_ABOUT:
            programs = programs.filter(lambda program, law=law: any(map(IS_ABOUT[law], program.statements())))
    checked = 0

    @examples
    @given(programs, st.tuples(*[st.integers(0, 6)] * 3), st.integers(0, 1000))
    def keep(program, starts, number):
        nonlocal checked
        batch = [(X * np.float32(1 - place / 2), np.int32(n)) for place, n in enumerate(starts)]
        try:
            report = testing.check(
                program,
                *batch[0],
                laws=laws,
                batch=batch[1:],
                spool={"max_events": 99} if number % 2 else {},
                choose=functools.partial(some_of, number=number // 2, count=claims),
            )
        except testing.NothingToCheck:  # A filter leaves no log, or the claims say nothing of the program.
            reject()
        if len(report.kept) < len(laws):
            reject()
        checked += 1

    keep()
    jax.clear_caches()  # What was compiled takes gigabytes.
    return checked


def some_of(claims, number, count):
    """One claim or two of several, which a number chooses."""
    first = number % len(claims)
    distance = 1 + number // len(claims) % max(1, len(claims) - 1)
    return [claims[place] for place in sorted({first, (first + distance) % len(claims)})[:count]]


@pytest.mark.generated(3)
def test_random_programs_keep_the_general_laws(examples):
    assert keep_laws(GENERAL, examples, claims=2) == 3


@pytest.mark.generated(3)
@pytest.mark.parametrize("law", PARTIAL, ids=lambda law: law.__name__)
def test_random_programs_keep_the_law(law, examples):
    assert keep_laws([law], examples, claims=2) == 3


def bars(subject):
    """A function with bars returns, logs and has as derivatives what it does without, under each transformation."""
    f, spool, progress = subject.fun, subject.spool, lox.progress
    one, two = jax.vmap(f), jax.vmap(jax.vmap(f))
    slope = lambda f: jax.grad(lambda x, n: jax.tree.leaves(f(x, n))[0].sum())  # noqa: E731
    yield subject.spools("spool(progress(f))", spool(progress(f)), times=2)
    yield subject.spools("progress(jit(spool(f)))", progress(jax.jit(spool(f))))
    yield subject.spools("jit(spool(progress(jit(f))))", jax.jit(spool(progress(jax.jit(f)))))
    yield subject.spools("spool(progress(vmap(f)))", spool(progress(one)), batches=1, plain=one)
    yield subject.spools("jit(spool(vmap(progress(f))))", jax.jit(spool(jax.vmap(progress(f)))), batches=1, plain=one)
    yield subject.spools("spool(vmap(progress(vmap(f))))", spool(jax.vmap(progress(one))), batches=2, plain=two)
    for batches, how, transform in (
        (0, "grad(f)", slope),
        (0, "jit(grad(f))", lambda f: jax.jit(slope(f))),
        (1, "vmap(grad(f))", lambda f: jax.vmap(slope(f))),
    ):
        args = subject.batch(batches)[0]
        plain = functools.partial(transform(lox.strip(f)), *args)
        for form, fun in (
            (f"progress({how})", progress(transform(lox.strip(f)))),
            (how.replace("(f", "(progress(f"), transform(progress(lox.strip(f)))),
        ):
            verify = lambda fun=fun, plain=plain, args=args, form=form: subject.out_is(plain(), fun(*args), form)  # noqa: E731
            yield testing.Claim(form, verify, plain)


IS_ABOUT[bars] = lambda statement: isinstance(statement, Scan | While)


@pytest.mark.generated(4)
def test_bars_leave_results_logs_and_derivatives_as_they_are(examples):
    assert keep_laws([bars], examples, claims=2) == 4


@pytest.mark.exhaustive
@pytest.mark.generated(60)
def test_bars_leave_more_programs_as_they_are(examples):
    assert keep_laws([bars], examples, claims=2) == 60


@pytest.mark.exhaustive
@pytest.mark.generated(15)
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs_keep_the_general_laws(part, examples):
    assert keep_laws(GENERAL, examples, claims=1) == 15


@pytest.mark.exhaustive
@pytest.mark.generated(30)
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("law", [law for law in PARTIAL if law is not testing.watching], ids=lambda law: law.__name__)
def test_many_random_programs_keep_the_law(law, part, examples):
    assert keep_laws([law], examples, claims=1) == 30


@pytest.mark.exhaustive
@pytest.mark.every_share
@pytest.mark.generated(30)
@pytest.mark.parametrize("part", range(5))
def test_many_random_programs_may_be_watched(part, examples):
    assert keep_laws([testing.watching], examples, claims=1) == 30
