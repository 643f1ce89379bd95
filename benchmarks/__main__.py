from benchmarks import (
    absence,
    auditing,
    bounded,
    dispatch,
    growth,
    importing,
    loops,
    memory,
    nonfinite,
    overhead,
    peers,
    progress,
    saving,
    scale,
    streaming,
    timelines,
    tracing,
    watching,
)
from benchmarks._report import main

if __name__ == "__main__":
    modules = (
        importing,
        absence,
        overhead,
        timelines,
        bounded,
        peers,
        dispatch,
        tracing,
        memory,
        streaming,
        saving,
        loops,
        growth,
        scale,
        auditing,
        watching,
        nonfinite,
        progress,
    )
    main({module.__name__.removeprefix("benchmarks."): module.measure for module in modules})
