"""A file that appears with all that is in it, if there is none of its name."""

from __future__ import annotations

import os
from pathlib import Path


def put(new: Path, place: Path) -> bool:
    """Gives a file another name as well; returns False when that is taken.

    On file systems without hard links it is a copy, which others may see empty for a moment.
    """
    try:
        os.link(new, place)  # Unlike a rename, it fails when there is one.
        return True
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:
        try:
            with open(place, "xb") as file:
                file.write(new.read_bytes())
        except FileExistsError:
            return False
        return True
