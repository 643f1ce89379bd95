collect_ignore_glob = ["*.py"]  # Nothing here is a test, and the programs need libraries that may be missing.
