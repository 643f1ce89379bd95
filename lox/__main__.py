"""The command line of lox, ``lox`` or ``python -m lox``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DEMO_MODULES = ("matplotlib", "optax", "rich", "sklearn")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The arguments after the program's name; those of this process by default.

    Returns:
        The exit code: 0 when the command did its work, 1 when it could not.

    Raises:
        SystemExit: With code 2 for arguments that are wrong, with 0 after ``--help``.
    """
    args = _parser().parse_args(argv)
    return args.command(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lox", description="Logging for JAX.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo_parser = commands.add_parser(
        "demo",
        help="train on handwritten digits and show the logs",
        description="Trains small networks on scikit-learn's handwritten digits, all seeds and steps in one jitted "
        "program, shows what was logged as tables and plots it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo_parser.add_argument("--steps", type=_positive, default=1000, metavar="N", help="training steps")
    demo_parser.add_argument("--seeds", type=_positive, default=4, metavar="N", help="networks trained side by side")
    demo_parser.add_argument(
        "--out", type=_png_path, default="lox-demo.png", metavar="PATH", help="where the plot goes (PNG)"
    )
    demo_parser.set_defaults(command=_run_demo)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _png_path(text: str) -> Path:
    # Found out here rather than after the training that the file is for.
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
    return path


def _run_demo(args: argparse.Namespace) -> int:
    try:
        from lox import demo
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in DEMO_MODULES:
            raise
        return _fail(f"demo needs {error.name}, which the extra 'demo' installs: pip install 'jax-lox[demo]'")
    try:
        demo.run(steps=args.steps, seeds=args.seeds, out=args.out)
    except OSError as error:
        return _fail(f"demo could not write {args.out}: {error.strerror or error}")
    return 0


def _fail(message: str) -> int:
    print(f"lox: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
