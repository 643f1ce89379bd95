"""Where NaN begins: `lox.find_nonfinite`, `lox.guard` and `lox.replay`.

A search runs a function operation by operation and records those whose results are not finite (`_record.py`). Loops run
compiled up to the first iteration whose carry is not finite, which is interpreted alone (`_loops.py`). What is not
finite is then followed backwards from results and carries to where it began (`_walk.py`), element by element where the
operation says which elements depend on which (`_flow.py`); an identity in the program tells the axes that `vmap` adds
(`_axes.py`).

A guarded function computes with its results whether they are bad, and the first iteration whose carry is (`_guard.py`,
`_carries.py`). What a failing call got is written to a bundle (`_bundle.py`), from which it runs again (`_replay.py`).
"""

from lox._nonfinite._find import find_nonfinite as find_nonfinite
from lox._nonfinite._guard import guard as guard
from lox._nonfinite._replay import replay as replay
from lox._nonfinite._report import NonfiniteReport as NonfiniteReport
