"""Programs with an ordinary way of logging, and the same programs with lox.

Each module has `original()`, which returns the curves of each run, by key: pairs of a step and a value; and
`ported(logger)`, which writes them and returns the states of the runs in the same order.
"""
