from benchmarks import absence, dispatch, memory, overhead, saving, streaming, tracing
from benchmarks._report import main

if __name__ == "__main__":
    modules = (absence, overhead, dispatch, tracing, memory, streaming, saving)
    main({module.__name__.removeprefix("benchmarks."): module.measure for module in modules})
