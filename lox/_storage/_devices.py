"""Names that no file can have on Windows."""

import re


def is_of_device(name: str) -> bool:
    """Say whether Windows has a name for a device, with any ending and in any case.

    >>> is_of_device("nul"), is_of_device("CON.npy"), is_of_device("console")
    (True, True, False)
    """
    return re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name, re.IGNORECASE) is not None
