"""An audit never raises for what it finds: a check that fails is reported, and the others run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import cases
from jax import lax

import lox
from lox._audit import _audit, _failures, _walk
from lox._audit._checks import ALL

REPORTED = _failures.failure  # In the other tests, it raises.
TABLE, INDICES = np.ones((7, 5), np.float32), np.arange(5)


@pytest.fixture
def reported(monkeypatch):
    monkeypatch.setattr(_failures, "failure", REPORTED)


def broken(audited):
    """LOX999: nothing."""
    yield from ()
    raise KeyError("lanes")


def mistaken(x, y):
    return x - y


def report(**options):
    labels = {"x": ("time", "batch"), "y": ("batch", "time")}
    return lox.audit(mistaken, axes=labels, **options)(np.ones((3, 3)), np.ones((3, 3)))


def test_a_check_that_fails_is_named_with_its_error_and_its_line_and_the_others_run(monkeypatch, reported):
    whole = report()
    monkeypatch.setattr(_audit, "ALL", (broken, *ALL))
    found = report()
    (failed,) = (each for each in found.warnings if each.code == "LOX000")
    assert failed.message.startswith("The check 'broken' (LOX999: nothing) failed at test_audit_failures.py:")
    assert failed.message.endswith("KeyError: 'lanes'") and "report it" in failed.suggestion
    assert found.issues == whole.issues and found.verified == whole.verified
    assert not [each for each in report(ignore="LOX000").warnings if each.code == "LOX000"]


@pytest.mark.parametrize("place", range(len(ALL)), ids=[f"{check.__module__}.{check.__name__}" for check in ALL])
def test_whichever_check_fails_the_report_is_complete_but_for_it(place, monkeypatch, reported):
    whole = report().issues
    monkeypatch.setattr(_audit, "ALL", (*ALL[:place], broken, *ALL[place + 1 :]))
    found = report()
    assert [each.code for each in found.warnings if each.code == "LOX000"] == ["LOX000"]
    assert set(found.issues) <= set(whole) and str(found)


@pytest.mark.parametrize("rule", ["labels_of", "range_of"])
def test_where_a_rule_of_an_operation_fails_nothing_is_known_of_its_result(rule, monkeypatch, reported):
    def fails(step):
        raise ZeroDivisionError

    monkeypatch.setattr(_walk, rule, fails)
    found = report()
    (failed,) = (each for each in found.warnings if each.code == "LOX000")
    assert "The rule of 'sub' failed at test_audit_failures.py:" in failed.message
    assert [each.code for each in found.issues] == ["LOX101"]


@pytest.mark.parametrize(("part", "message"), [("name_values", "Naming the values"), ("sources", "Reading the source")])
def test_without_names_or_sources_the_checks_run(part, message, monkeypatch, reported):
    def fails(*args):
        raise RecursionError

    whole = report()
    monkeypatch.setattr(_audit, part, fails)
    found = report()
    (failed,) = (each for each in found.warnings if each.code == "LOX000")
    assert failed.message.startswith(f"{message} failed at test_audit_failures.py:")
    assert [each.code for each in found.issues] == [each.code for each in whole.issues]


def test_a_check_that_fails_fails_the_tests(monkeypatch):
    monkeypatch.setattr(_audit, "ALL", (broken, *ALL))
    case = next(case for case in cases() if not case.wrong)
    with jax.numpy_dtype_promotion("standard"), pytest.raises(KeyError, match="lanes"):
        case.report()


def chosen(which, i):
    return lax.switch(which, [lambda i: i, lambda i: i + 1, lambda i: i + 2], i)


@pytest.mark.parametrize(
    "read",
    [
        lambda table, i: jax.vmap(lambda which, i: table[chosen(which, i)])(i, i),
        lambda table, i: table[jnp.arange(5), jax.vmap(chosen)(i, i)],
        lambda table, i: table[lax.select_n(i, i, i + 1, i + 2), i],
        lambda table, i: table.at[lax.select_n(i, i, i + 1, i + 2), i].add(1.0),
    ],
    ids=["switch in vmap", "switch after vmap", "select_n", "scatter"],
)
def test_an_index_that_is_one_of_three_is_audited(read):
    assert not lox.audit(read)(TABLE, INDICES).issues


def test_no_check_fails_for_a_mask_that_is_a_product_with_one_number():
    def likelihood(coefficients):
        roots = jnp.roots(jnp.append(coefficients, 1.0), strip_zeros=False)
        real = jnp.abs(roots.imag) < 1e-6
        paired = ~real * (jnp.cumsum(~real) * ~real) % 2
        ratios = roots.real / jnp.where(real, 1.0, roots.imag) * paired
        return jnp.diag(ratios[:-1], k=1).sum()

    with jax.numpy_dtype_promotion("standard"):
        report = lox.audit(likelihood, differentiate="coefficients")(jnp.array([1.1, 1.3]))
    assert not report.at_least("warning")
