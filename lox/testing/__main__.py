"""Random programs against the laws from the command line, ``python -m lox.testing``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import jax

from lox import testing
from lox.commands._arguments import positive, whole

DEVICES = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Runs random programs for as long as asked.

    Args:
        argv: The arguments after the program's name; those of this process by default.

    Returns:
        The exit code: 0 when all laws held, 1 when one was broken or none was checked, 130 when it was interrupted.

    Raises:
        SystemExit: With code 2 for arguments that are wrong, with 0 after ``--help``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m lox.testing",
        description="Checks the laws of lox on random programs, and stores those that break one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--minutes", type=positive, default=10.0, metavar="N", help="how long")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="where to begin")
    parser.add_argument("--depth", type=whole, default=3, metavar="N", help="how deep statements nest")
    parser.add_argument(
        "--length", type=whole, default=3, metavar="N", help="the length of sequences, loops and batches"
    )
    parser.add_argument("--laws", nargs="+", choices=_LAWS, default=list(_LAWS), metavar="LAW", help="which laws")
    parser.add_argument("--out", default="lox-fuzz", metavar="FOLDER", help="where programs that break one go")
    args = parser.parse_args(argv)
    try:
        tally = testing.fuzz(
            seconds=60 * args.minutes,
            seed=args.seed,
            depth=args.depth,
            length=args.length,
            folder=args.out,
            laws=[_LAWS[name] for name in dict.fromkeys(args.laws)],
            report=_print,
        )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except OSError as error:
        parser.error(str(error))
    if not tally.claims:
        print("Nothing was checked: give it more time.", file=sys.stderr)
        return 1
    return 1 if tally.failures else 0


_LAWS = {law.__name__: law for law in testing.LAWS}


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)  # for shard_map
    sys.exit(main())
