"""An audit finds the mistakes of the corpus, at their line, and nothing in the programs that are right."""

import ast
import builtins
import dis
import inspect
import json
import re
import types

import jax
import pytest
from corpus import LISTING, OF_A_VERSION, cases, told

import lox
from benchmarks.listing import PRESUMED
from benchmarks.pages import FOLDER, pages
from lox._audit._checks import KINDS

CASES = cases()
TOLD = json.loads(LISTING.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("case", [case for case in CASES if case.wrong], ids=lambda case: f"{case.code}-{case.name}")
def test_a_mistake_is_found_as_it_is_listed_in_the_file_where_it_is(case):
    report = case.report()
    found = [finding for finding in report.found if finding.code == case.code]
    assert found
    assert {finding.file for finding in found} <= {inspect.getsourcefile(inspect.unwrap(case.fun)), ""}
    assert all(finding.message and finding.suggestion for finding in found)
    assert case.key in OF_A_VERSION or told(report) == TOLD[case.key]


@pytest.mark.parametrize("case", [c for c in CASES if not c.wrong], ids=lambda case: f"{case.code}-{case.name}")
def test_in_a_program_that_is_right_there_are_only_the_notes_that_are_listed(case):
    report = case.report()
    assert not report.at_least("warning")
    assert case.key in OF_A_VERSION or told(report) == TOLD.get(case.key, [])


@pytest.mark.parametrize("case", {case.code: case for case in CASES if case.wrong}.values(), ids=lambda case: case.code)
def test_what_is_ignored_is_not_found(case):
    report = lox.audit(case.fun, **case.options, ignore=case.code)(*case.args)
    assert case.code not in {finding.code for finding in (*report.issues, *report.warnings, *report.verified)}


def test_of_each_code_there_is_a_mistake_and_a_near_miss():
    assert {(case.code, case.wrong) for case in CASES} == {(code, wrong) for code in KINDS for wrong in (True, False)}


def test_the_pages_of_the_documentation_are_those_of_the_checks():
    """`python -m benchmarks.pages` writes them. Addresses differ, and numbers of operations between versions of JAX."""
    written = {page.name: page.read_text(encoding="utf-8") for page in FOLDER.glob("*.md")}
    assert _without_numbers(written) == _without_numbers(pages())


def _without_numbers(texts):
    return {name: re.sub(r"0x[0-9a-f]+|\d+", "#", text) for name, text in texts.items()}


@pytest.fixture(scope="module")
def shown():
    """The wrong and the right program of each page of the documentation."""
    texts = {code: (FOLDER / f"{code}.md").read_text(encoding="utf-8") for code in KINDS}
    return {code: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for code, text in texts.items()}


@pytest.mark.parametrize("code", sorted(KINDS))
def test_the_programs_of_a_page_are_complete_differ_in_more_than_names_and_are_wrong_and_right(code, shown, tmp_path):
    named = ((text, re.search(r"^lox\.audit\(([^,)]+)", text, re.MULTILINE)[1]) for text in shown[code])
    wrong, right = (text.replace(name, "f") for text, name in named)
    assert wrong != right
    for program, is_wrong in zip(shown[code], (True, False), strict=True):
        file = tmp_path / f"{is_wrong}.py"
        file.write_text(program)
        *lines, audit = ast.parse(program).body
        names = {"__name__": "shown"}
        exec(PRESUMED, names)
        definitions = compile(ast.Module(lines, []), file, "exec")
        exec(definitions, names)
        assert names_of(definitions) <= names.keys() | vars(builtins).keys()
        report = eval(compile(ast.Expression(audit.value), file, "eval"), names)
        if is_wrong:
            assert code in {finding.code for finding in report.at_least("info")}
        else:
            assert not report.at_least("warning")


def names_of(code):
    """The names that the functions in code take from their module."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return own.union(*(names_of(each) for each in code.co_consts if isinstance(each, types.CodeType)))
