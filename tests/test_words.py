"""The words of pages and docstrings: those that were replaced do not come back."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import lox
import lox.loggers
import lox.reductions
import lox.testing

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
PAGES = [page for page in PAGES if not page.name.startswith("LOX") and page != ROOT / "docs" / "performance.md"]
"""All but those made of messages of the audit and of tables of benchmarks."""

EVERYWHERE = {
    r"lanes?(?!:)": "batch element",
    r"thin(s|ned|ning)?": "subsample, or reduce",
    r"(in|out)side of": "inside, outside",
    r"truth values?": "boolean",
    r"become[s]? of (it|them|the|an?)": "say what happens to it, or who uses it",
    r"nobody (listens|looks)": "without a handler",
    r"such that has": "split the sentence",
    r"for want of": "because there is no",
    r"what of it": "which part of it",
}
"""Words that neither pages nor docstrings have, each with what to write instead."""

FOR_READERS = {
    r"of which": "split the sentence",
    r"(?<!there )(is|are) no (?!longer|more|less|other|such|problem)\w+": "is not a",
    r"ends nothing": "exceptions do not stop the program",
    r"has a use of its own": "reserved",
    r"decides? from the outside": "the caller chooses",
    r"in the place of": "instead of, or replaces",
}
"""Words that pages and docstrings of public names do not have."""

STARTS_OF_QUESTIONS = ("What ", "Whether ", "Where ", "How ")


def found(words, text):
    """The words that a text has."""
    return [word for word in words if re.search(rf"\b({word})\b", text, re.IGNORECASE)]


def prose_of(page):
    """The text of a page, without code and the targets of links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`|\]\([^)]*\)", "", text)


def public():
    """Names that people read about, with what they name."""
    for module in (lox, lox.loggers, lox.reductions, lox.testing):
        yield module.__name__, module
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or not str(getattr(value, "__module__", "")).startswith("lox"):
                continue
            yield f"{module.__name__}.{name}", value
            if inspect.isclass(value):
                yield from ((f"{name}.{of}", each) for of, each in vars(value).items() if not of.startswith("_"))
    yield from {"lox.audit.expect": lox.audit.expect, "lox.audit.label": lox.audit.label}.items()


def docstring_of(value):
    text = getattr(value, "__doc__", None) if inspect.isroutine(value) or inspect.isclass(value) else None
    return inspect.cleandoc(text) if isinstance(text, str) else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_has_none_of_the_words_that_were_replaced(page):
    words = EVERYWHERE | FOR_READERS
    assert {word: words[word] for word in found(words, prose_of(page))} == {}


def test_no_docstring_has_the_words_that_were_replaced():
    places = {}
    for path in (ROOT / "lox").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                words = found(EVERYWHERE, ast.get_docstring(node) or "")
                if words:
                    places[f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"] = words
    assert places == {}


def test_docstrings_of_public_names_have_none_of_the_words_that_were_replaced():
    assert {name: words for name, value in public() if (words := found(FOR_READERS, docstring_of(value)))} == {}


def test_docstrings_of_public_functions_begin_in_the_imperative():
    """A verb such as "Return", neither "Returns" nor "The"; laws state what holds."""
    wrong = {}
    for name, value in public():
        first = docstring_of(value).partition("\n")[0]
        if first and inspect.isfunction(value) and not first.startswith(("Law ", "See `Logger`")):
            word = first.partition(" ")[0]
            if not re.fullmatch(r"[A-Z][a-z]+", word) or word in ("The", "A", "An") or re.search(r"[^s]s$", word):
                wrong[name] = first
    assert wrong == {}


def test_docstrings_of_public_names_do_not_begin_with_a_question():
    starts = {name: docstring_of(value) for name, value in public()}
    assert [name for name, text in starts.items() if text.startswith(STARTS_OF_QUESTIONS)] == []


def test_words_are_found_as_words():
    assert found(EVERYWHERE, "The lanes that were thinned, outside of it.") == [
        r"lanes?(?!:)",
        r"thin(s|ned|ning)?",
        r"(in|out)side of",
    ]
    assert found(EVERYWHERE | FOR_READERS, "Planes, something, which is no longer there.") == []
