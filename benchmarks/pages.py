"""Writes the pages of docs/audit from the checks and the corpus: `python -m benchmarks.pages`."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import lox
from benchmarks.corpus import Case, cases
from lox._audit._checks import KINDS
from lox._audit._findings import Kind

FOLDER = Path(lox.__file__).parent.parent / "docs" / "audit"

SEVERITY = {
    "error": "An error: it is wrong.",
    "warning": "A warning: it is likely to be wrong, or to become so.",
    "info": "For information.",
}


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    corpus = cases()
    return {"index.md": _index(corpus)} | {f"{code}.md": _page(kind, corpus) for code, kind in KINDS.items()}


def _index(corpus: list[Case]) -> str:
    rows = [
        f"| [{code}]({code}.md) | {kind.severity} | {kind.title} | {_count(corpus, code)} |"
        for code, kind in sorted(KINDS.items())
    ]
    return "\n".join(
        [
            "# What an audit finds",
            "",
            "The programs are those of `benchmarks/corpus`: of each code some that are wrong, all of which are found,",
            "and some that look like them and are right, in which nothing is found. [lox.audit](../audit.md) says how",
            "to ask.",
            "",
            "| Code | Severity | What | Programs: wrong, right |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            "```{toctree}",
            ":hidden:",
            ":glob:",
            "",
            "LOX*",
            "```",
            "",
        ]
    )


def _count(corpus: list[Case], code: str) -> str:
    found = [case.wrong for case in corpus if case.code == code]
    return f"{sum(found)}, {len(found) - sum(found)}"


def _page(kind: Kind, corpus: list[Case]) -> str:
    of_kind = [case for case in corpus if case.code == kind.code]
    wrong, right = (next(case for case in of_kind if case.wrong is is_wrong) for is_wrong in (True, False))
    report = wrong.report()
    finding = next(each for each in (*report.issues, *report.warnings) if each.code == kind.code)
    parts = [
        f"# {kind.code}: {kind.title}",
        SEVERITY[kind.severity],
        _code(wrong),
        _filled(f"{_asked(wrong)}: {finding.message}"),
        "## What to do",
        _filled(kind.suggestion),
        "## What looks like it, and is right",
        _code(right),
    ]
    return "\n\n".join(parts) + "\n"


def _code(case: Case) -> str:
    lines = textwrap.dedent(inspect.getsource(inspect.unwrap(case.fun))).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(("def ", "@")) and "@wrong" not in line)
    while lines[start].startswith(("@wrong", "@right")):
        start += 1
    body = "\n".join(lines[start:])
    return f"```python\n{body}\n```"


def _asked(case: Case) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in case.options.items() if name != "calls")
    more = " of several calls" if "calls" in case.options else ""
    return f"An audit{more} with `{options}` says" if options else f"An audit{more} says"


def _filled(text: str) -> str:
    """A paragraph; addresses, which are others in each process, are left out."""
    return textwrap.fill(re.sub(r"0x[0-9a-f]+", "0x...", text), 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
