"""The code of a page, run from its first line to its last: each block prints what the block of text below it says.

A ```` ```python ```` block runs, with the names of the blocks above it. What it prints is in a ```` ```text ```` block
directly below it; a block without one prints nothing. A block that raises has the name of the exception and its message
there. In these texts `...` stands for anything, and spaces and line ends count as one space. A ```` ```{code-block}
python ```` is shown and does not run.

`python tests/page_code.py PAGE...` writes what the blocks print into the pages, where it is not what they say.
"""

import contextlib
import dataclasses
import doctest
import io
import linecache
import re
import sys
from pathlib import Path

FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code, the number of its first line in the page, and the text below it, which it must print."""

    code: str
    line: int
    output: str | None


def blocks_of(text: str) -> list[Block]:
    """The blocks of code of a page."""
    fences = list(FENCE.finditer(text))
    found = []
    for index, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        below = fences[index + 1] if index + 1 < len(fences) else None
        has_output = below and below[1] == "text" and not text[fence.end() : below.start()].strip()
        line = text[: fence.start(2)].count("\n") + 1
        found.append(Block(fence[2], line, below[2] if has_output else None))
    return found


def run(page: Path, text: str):
    """Runs the blocks of a page in turn, and yields each with what it printed."""
    blocks = blocks_of(text)
    lines = [""] * (text.count("\n") + 1)  # Those of the page, so that a message names the page's own line.
    for block in blocks:
        code = block.code.splitlines()
        lines[block.line - 1 : block.line - 1 + len(code)] = code
    name = str(page)
    linecache.cache[name] = (sum(map(len, lines)), None, [f"{line}\n" for line in lines], name)
    names: dict = {"__name__": "__main__"}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), names)
            except Exception as error:
                if block.output is None:
                    raise
                package = type(error).__module__.partition(".")[0]
                print("" if package == "builtins" else f"{package}.", type(error).__name__, f": {error}", sep="")
        yield block, printed.getvalue()


def is_as_said(block: Block, printed: str) -> bool:
    """Whether a block printed what the page says."""
    return doctest.OutputChecker().check_output(block.output or "", printed, FLAGS)


def write(page: Path) -> None:
    """Puts what the blocks of a page print into it."""
    text = page.read_text(encoding="utf-8")
    for block, printed in run(page, text):
        if not is_as_said(block, printed):
            code = f"```python\n{block.code}```\n"
            said = f"\n```text\n{block.output}```\n" if block.output is not None else ""
            if said + text.partition(code)[2][len(said) :] != text.partition(code)[2]:
                raise ValueError(f"{page}:{block.line}: write an empty line between the code and its output.")
            text = text.replace(code + said, f"{code}\n```text\n{printed}```\n")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        write(Path(argument))
