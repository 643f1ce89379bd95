"""Folds what has many similar parts, such as a tree of parameters, into one line of a report."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lox._audit._flow import Row
from lox._audit._stack import Crossing

FEW = 3
"""The number of similar things that are still listed one by one."""


def fold_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of a data flow with one row for the arrays of each argument, and no list longer than a few."""
    folded: dict[str, str] = {}
    found: list[Row] = []
    for tree, group in itertools.groupby(rows, _tree):
        arrays = list(group)
        if tree is None or len(arrays) <= FEW:
            found += arrays
            continue
        _, name = tree
        folded.update((row.name, name) for row in arrays)
        unused = sum("never used" in row.notes for row in arrays)
        notes = (f"{unused} never used",) if unused else ()
        found.append(dataclasses.replace(arrays[0], what=name, name=name, values=(_arrays(arrays),), notes=notes))
    for row in found:
        sources = tuple(dict.fromkeys(folded.get(source, source) for source in row.sources))
        yield dataclasses.replace(row, sources=_few(sources), values=_few(_counted(row.values)))


def _tree(row: Row) -> tuple[int, str] | None:
    """The argument that the array of a row is in."""
    is_input = row.name and row.name == row.what and not row.sources
    root = _ROOT.match(row.name)
    return (row.depth, root[0]) if is_input and root is not None and root[0] != row.name else None


_ROOT = re.compile(r"[^/.\[]+")
"""The argument in the name of an array, as in ``params/w`` and in JAX's own ``carry[0].mu['w']``."""


def _arrays(rows: Sequence[Row]) -> str:
    dtypes = Counter(value.partition("[")[0] for row in rows for value in row.values)
    return f"{len(rows)} arrays: {', '.join(f'{count} of {dtype}' for dtype, count in dtypes.items())}"


def fold_crossings(crossings: Iterable[Crossing]) -> Iterator[Crossing]:
    """The values that cross boundaries: of many values in one role, a line for those that are alike on both sides."""

    def place(crossing: Crossing) -> tuple[object, ...]:
        return crossing.kind, crossing.role, crossing.location

    for _, group in itertools.groupby(crossings, place):
        values = list(group)
        if len(values) <= FEW:
            yield from values
            continue
        same = [each for each in values if each.outside == each.inside]
        if same:
            types = [each.outside.partition(" in ")[0] for each in same]
            yield dataclasses.replace(same[0], outside=", ".join(_few(_counted(types))), inside="the same")
        pairs = Counter((each.outside, each.inside) for each in values if each.outside != each.inside)
        for (outside, inside), count in list(pairs.items())[:FEW]:
            times = f"{count} x " if count > 1 else ""
            yield dataclasses.replace(values[0], outside=f"{times}{outside}", inside=f"{times}{inside}")
        left = sum(list(pairs.values())[FEW:])
        if left:
            yield dataclasses.replace(values[0], outside=f"{left} more", inside="")


def _counted(texts: Sequence[str]) -> tuple[str, ...]:
    """Texts, each once, with how many times it is there."""
    return tuple(f"{count} x {text}" if count > 1 else text for text, count in Counter(texts).items())


def _few(texts: Sequence[str]) -> tuple[str, ...]:
    return (*texts[:FEW], f"{len(texts) - FEW} more") if len(texts) > FEW + 1 else tuple(texts)
