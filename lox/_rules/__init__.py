"""One rule per higher-order primitive: how it runs when logs happen inside it. Importing this fills the table."""

from lox._rules import _call as _call
from lox._rules import _cond as _cond
from lox._rules import _custom as _custom
from lox._rules import _log_grad as _log_grad
from lox._rules import _scan as _scan
from lox._rules import _shard_map as _shard_map
from lox._rules import _solve as _solve
from lox._rules import _while as _while
