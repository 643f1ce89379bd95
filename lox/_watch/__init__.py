"""Events of programs that do not log: `lox.watch` and `lox.points`.

While a function is watched, each operation is seen where the program binds it, before JAX differentiates, batches or
stages it (`_observer.py`), and so is the end of each name scope (`_scopes.py`). There a *mark* is emitted: a log of the
values themselves, on its way to the watcher (`_marks.py`). What encloses the place is not known yet, since JAX traces
the body of a loop before it binds the loop: each enclosing operation puts its own part before the paths of the marks
inside. At the outside paths are whole, and `Resolve` replaces the marks that are selected with logs (`_resolve.py`).
Backward passes, which no line of the program binds, are found by the scopes of their equations (`_backward.py`), and
what leaves each name scope there is marked (`_leaving.py`).
"""

from lox._watch._points import Point as Point
from lox._watch._watch import points as points
from lox._watch._watch import watch as watch
