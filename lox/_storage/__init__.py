"""Runs on disk: a directory each, with a table for each set of arrays that are logged together, and a manifest.

    RUN/manifest.json          what the run is, and of each table its directory and its arrays
    RUN/table-0/loss.npy       the events of a key, appended; so has each key and each counter, "@step.npy"
    RUN/table-0/@@mask.npy     which of them happened, where some did not
    RUN/table-0/@@order.npy    numbers of the rows, for the order of keys that several tables have
    RUN/owner.json             the process that writes it

A row is an event: the keys, counters and mask of one log call. A column is written data first and number of entries
after, so that every file is a complete array at any moment. All columns of a table are cut to the shortest of them, by
readers and by who goes on with them: these are the rows that were written in full, and what a killed process left
behind them is overwritten by the next row. A directory of a table is there with all of its columns before the manifest
names it, so that a column which is gone, or shorter than it says, is damaged.
"""

from lox._storage._column import OpenFiles as OpenFiles
from lox._storage._devices import is_of_device as is_of_device
from lox._storage._manifest import MANIFEST as MANIFEST
from lox._storage._manifest import read_manifest as read_manifest
from lox._storage._owner import is_written as is_written
from lox._storage._put import put as put
from lox._storage._reader import load as load
from lox._storage._reader import load_config as load_config
from lox._storage._reader import read_run as read_run
from lox._storage._reader import runs as runs
from lox._storage._save import save as save
from lox._storage._writer import RunWriter as RunWriter
