"""Runs on disk: a directory each, with a column of `.npy` for each key and counter, and a manifest.

    RUN/manifest.json       what the run is, of each column its key, part and logical dtype, and what was dropped
    RUN/COLUMN.SEGMENT.npy  the events, appended
    RUN/owner.json          the process that writes it

A column is written data first and header after, so that every file is a complete array at any moment. What a killed
process left behind the end of the array is overwritten by the next event. Columns of a key are cut to the shortest of
them, by readers and by who goes on with them: these are the events that were written in full. All columns of a key are
made before its first event, so that one that is gone, or shorter than its header says, is damaged.
"""

from lox._storage._manifest import MANIFEST as MANIFEST
from lox._storage._manifest import read_manifest as read_manifest
from lox._storage._owner import is_written as is_written
from lox._storage._reader import load as load
from lox._storage._reader import load_config as load_config
from lox._storage._reader import read_run as read_run
from lox._storage._reader import runs as runs
from lox._storage._save import save as save
from lox._storage._writer import RunWriter as RunWriter
