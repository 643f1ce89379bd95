"""Writes the pages of docs/audit from the checks and the corpus: `python -m benchmarks.pages`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from corpus import Case, cases

import lox
from benchmarks.listing import PRESUMED, listing
from lox._audit._checks import KINDS
from lox._audit._findings import Kind
from lox._audit._own_kinds import CHANGED, FAILED, UNUSED

FOLDER = Path(lox.__file__).parent.parent / "docs" / "audit"

SEVERITY = {
    "error": "An error: it is wrong.",
    "warning": "A warning: it is likely to be wrong, or to become so.",
    "info": "For information.",
}


WITHOUT_PROGRAMS = {
    FAILED: "A warning: an audit does not raise when one of its checks does. The report names the check, its error and "
    "the line in lox, and has what all other checks found. What the failed check looks for may be in the program.",
    UNUSED: "A warning: the comment is in a function that was audited, and no finding of its code is at its statement. "
    "The mistake was corrected, or moved to another line, or the code is another one.",
    CHANGED: "For information: with --baseline, an audit compares the types of what goes into and comes out of each "
    "loop, branch and call with those that were there when the baseline was written.",
}


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    corpus = cases()
    of_kinds = {f"{code}.md": _page(kind, corpus) for code, kind in KINDS.items()}
    others = {f"{kind.code}.md": _page_without_programs(kind, text) for kind, text in WITHOUT_PROGRAMS.items()}
    return {"index.md": _index(corpus), **others, **of_kinds}


def _index(corpus: list[Case]) -> str:
    rows = [
        f"| [{code}]({code}.md) | {kind.severity} | {kind.title} | {_count(corpus, code)} |"
        for code, kind in sorted(KINDS.items())
    ]
    rows[:0] = [f"| [{kind.code}]({kind.code}.md) | {kind.severity} | {kind.title} | |" for kind in WITHOUT_PROGRAMS]
    return "\n".join(
        [
            "# What an audit finds",
            "",
            _filled(
                "For each code there are programs with the mistake, all of which are reported, and similar correct "
                "ones, in which nothing is. They are in `tests/corpus`. [lox.audit](../audit.md) says how to ask."
            ),
            "",
            "| Code | Severity | What | Programs: wrong, right |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            "## Reading the pages",
            "",
            _filled(
                "The page of a code shows one program of each kind, with the call that audits it. All of them presume "
                "these imports, and these names for arguments of which only the shape and the type matter:"
            ),
            "",
            "```python",
            *(f"{'... ' if line.startswith(' ') else '>>> '}{line}" if line else "" for line in PRESUMED.splitlines()),
            "```",
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
        _filled(f"The report says: {finding.message}"),
        "## What to do",
        _filled(kind.suggestion),
        "## What looks like it, and is right",
        _code(right),
    ]
    return "\n\n".join(parts) + "\n"


def _page_without_programs(kind: Kind, text: str) -> str:
    parts = [f"# {kind.code}: {kind.title}", _filled(text), "## What to do", _filled(kind.suggestion)]
    return "\n\n".join(parts) + "\n"


def _code(case: Case) -> str:
    return f"```python\n{listing(case)}\n```"


def _filled(text: str) -> str:
    """A paragraph; addresses, which are others in each process, are left out."""
    return textwrap.fill(re.sub(r"0x[0-9a-f]+", "0x...", text), 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
