"""Where NaN begins: `lox.find_nonfinite`, `lox.guard` and `lox.replay`.

A search runs a function operation by operation and records those whose results are not finite (`_record.py`). Loops run
compiled up to the first iteration whose carry is not finite, which is interpreted alone (`_loops.py`). What is not
finite is then followed backwards from results and carries to where it began (`_walk.py`), element by element where the
operation says which elements depend on which (`_flow.py`); an identity in the program tells the axes that `vmap` adds
(`_axes.py`).
"""

from lox._nonfinite._find import find_nonfinite as find_nonfinite
from lox._nonfinite._report import NonfiniteReport as NonfiniteReport
