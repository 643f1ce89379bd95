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
    "error": "An error: the code is wrong.",
    "warning": "A warning: the code is probably wrong, or becomes wrong when something changes.",
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


GROUPS = {
    "LOX1": ("axes", "Axes"),
    "LOX2": ("loops", "Loops and episodes"),
    "LOX3": ("vmap-and-shard-map", "vmap and shard_map"),
    "LOX4": ("jit", "Tracing and jit"),
    "LOX5": ("pytrees", "Pytrees"),
    "LOX6": ("derivatives", "Derivatives"),
    "LOX7": ("random-keys", "Random keys"),
    "LOX8": ("numerics", "Numerics"),
    "LOX9": ("logging", "Logging with lox"),
    "LOX0": ("audits", "The audit itself"),
}
"""The page and the title of the rules whose codes begin so."""


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    corpus = cases()
    of_kinds = {f"{code}.md": _page(kind, corpus) for code, kind in KINDS.items()}
    others = {f"{kind.code}.md": _page_without_programs(kind, text) for kind, text in WITHOUT_PROGRAMS.items()}
    groups = {f"{name}.md": _group(beginning, title) for beginning, (name, title) in GROUPS.items()}
    return {"index.md": _index(corpus), **groups, **others, **of_kinds}


def _kinds_of(beginning: str) -> list[Kind]:
    kinds = [*KINDS.values(), *WITHOUT_PROGRAMS]
    return sorted((kind for kind in kinds if kind.code.startswith(beginning)), key=lambda kind: kind.code)


def _group(beginning: str, title: str) -> str:
    codes = (kind.code for kind in _kinds_of(beginning))
    return "\n".join([f"# {title}", "", "```{toctree}", ":maxdepth: 1", "", *codes, "```", ""])


def _table_of(beginning: str, title: str, corpus: list[Case]) -> list[str]:
    rows = [
        f"| [{kind.code}]({kind.code}.md) | {kind.severity} | {kind.title} | {_count(corpus, kind.code)} |"
        for kind in _kinds_of(beginning)
    ]
    return [f"## {title}", "", "| Code | Severity | Finding | Wrong, correct |", "| --- | --- | --- | --- |", *rows, ""]


def _index(corpus: list[Case]) -> str:
    tables = [_table_of(beginning, title, corpus) for beginning, (_, title) in GROUPS.items()]
    return "\n".join(
        [
            "# Audit rules",
            "",
            _filled(
                "The findings of [lox.audit](../audit.md), in groups. The last column counts the programs of "
                "`tests/corpus` with the mistake, which are all reported, and similar correct programs, which are not. "
                "`lox explain LOX104` prints the page of a code."
            ),
            "",
            *(line for table in tables for line in table),
            "## Reading the pages",
            "",
            _filled(
                "The page of a code has a program with the mistake and a correct one, with the calls that audit them. "
                "The programs use these imports, and these arguments that have only a shape and a dtype:"
            ),
            "",
            "```python",
            *PRESUMED.rstrip("\n").splitlines(),
            "```",
            "",
            "```{toctree}",
            ":hidden:",
            "",
            *(name for name, _ in GROUPS.values()),
            "```",
            "",
        ]
    )


def _count(corpus: list[Case], code: str) -> str:
    found = [case.wrong for case in corpus if case.code == code]
    return f"{sum(found)}, {len(found) - sum(found)}" if found else ""


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
        "## Fix",
        _filled(kind.suggestion),
        "## Correct code that looks like it",
        _code(right),
    ]
    return "\n\n".join(parts) + "\n"


def _page_without_programs(kind: Kind, text: str) -> str:
    parts = [f"# {kind.code}: {kind.title}", _filled(text), "## Fix", _filled(kind.suggestion)]
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
