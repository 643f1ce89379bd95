"""Progress bars for loops of programs that have none: `lox.progress`.

Each loop that gets a bar is marked, as for `lox.watch`, and its mark stays in the body of the loop through `vmap`,
derivatives and `jit` (`_bars.py`). When the loop is compiled, it is compiled as a loop over chunks of iterations
(`_chunks.py`). After each chunk it tells the host how far it is, and gets the length of the next chunk (`_report.py`):
so the device counts, and the clock is the host's. The host keeps what is shown (`_board.py`).
"""

from lox._progress._progress import progress as progress
