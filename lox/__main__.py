"""The command line of lox, ``lox`` or ``python -m lox``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lox._audit._settings import FORMATS
from lox._exceptions import LoxError
from lox.commands import audit, demo, explain, export, ls, plot, replay, show, tail
from lox.commands._arguments import audited, axes, codes, function, output_file, positive, whole
from lox.commands._output import Failure, complain

INTERRUPTED, READER_GONE = 130, 141
"""Exit codes that shells report for programs that SIGINT and SIGPIPE end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The arguments after the program's name; those of this process by default.

    Returns:
        The exit code: 0 when the command did its work, 1 when it could not, or not all of it; 130 when it was
        interrupted, 141 when nobody reads its output any longer.

    Raises:
        SystemExit: With code 2 for arguments that are wrong, with 0 after ``--help``.
    """
    args = _parser().parse_args(argv)
    if sys.stdout is None:
        complain("the standard output is closed")
        return 1
    try:
        code = args.command(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends.
        return READER_GONE
    except (Failure, LoxError, OSError) as error:
        complain(str(error))
    except ModuleNotFoundError as error:
        if not hasattr(error, "__notes__"):  # It is a mistake of lox, not a package that is not installed.
            raise
        complain(" ".join(error.__notes__))
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lox",
        description="Logging for JAX: what to do with saved logs, and what a function will do.",
        epilog="Exit codes: 0 done, 1 not or not all done, 2 wrong usage, 130 interrupted. On a terminal, tables are "
        "aligned and have a header, and runs are called by what differs between them; elsewhere they are lines of "
        "fields with tabs between, with the whole names of runs. PATH is the directory of a run, as lox.save makes it, "
        "or one with runs in it, as SaveLogger does; it may be written meanwhile.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_ls(commands)
    _add_show(commands)
    _add_plot(commands)
    _add_tail(commands)
    _add_export(commands)
    _add_audit(commands)
    _add_explain(commands)
    _add_replay(commands)
    _add_demo(commands)
    return parser


def _add_ls(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "ls",
        help="list runs and their keys",
        description="Lists the runs of a directory and their keys: how many events each has, the step and the value of "
        "the last one, and its type. Of an array it is the mean of its numbers.",
    )
    _add_path(parser)
    parser.add_argument("--names", action="store_true", help="add a column: the path from PATH to each run")
    parser.set_defaults(command=lambda args: ls.ls(args.path, args.names))


def _add_show(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "show",
        help="show statistics of keys",
        description="Shows keys as statistics of their finite numbers, the last value, how many numbers are not "
        "finite, and a line over time, with a cross where it is not finite.",
    )
    _add_path(parser)
    _add_keys(parser, "*")
    parser.set_defaults(command=lambda args: show.show(args.path, args.keys))


def _add_plot(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw keys over steps",
        description="Draws each key over the counter 'step', its only counter, or the number of the event. "
        "Several runs are their mean in a band of one standard deviation. Of arrays the mean is drawn.",
    )
    _add_path(parser)
    _add_keys(parser, "+")
    parser.add_argument(
        "-o", dest="out", metavar="FILE", type=output_file(".png", ".svg"), required=True, help="a .png or .svg"
    )
    parser.add_argument("--lines", action="store_true", help="a line for each run")
    parser.set_defaults(command=lambda args: plot.plot(args.path, args.keys, args.out, args.lines))


def _add_tail(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "tail",
        help="follow runs that are written",
        description="Prints the latest events of each key, and then each event as it is written, also of runs and "
        "keys that come later, until it is interrupted.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_path(parser)
    parser.add_argument("--events", "-n", type=whole, default=1, metavar="N", help="how many of each key to begin with")
    parser.add_argument("--interval", type=positive, default=1.0, metavar="SECONDS", help="how often to look")
    parser.set_defaults(command=lambda args: tail.tail(args.path, args.events, args.interval))


def _add_export(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "export",
        help="write logs for other programs",
        description="Writes all runs to a table, with a column that names the run, or to TensorBoard or W&B, a run "
        "for each.",
    )
    _add_path(parser)
    parser.add_argument("--to", choices=("csv", "parquet", "tensorboard", "wandb"), required=True, help="what")
    parser.add_argument(
        "-o",
        dest="out",
        metavar="OUT",
        type=Path,
        help="the file of a table, by default the standard output for CSV; the folder for TensorBoard; the folder for "
        "the files of W&B, by default this one",
    )
    parser.add_argument("--wide", action="store_true", help="a column for each key, for tables")
    parser.add_argument("--offline", action="store_true", help="write files for 'wandb sync', for W&B")
    parser.add_argument("--project", metavar="NAME", help="the project, for W&B")

    def run(args: argparse.Namespace) -> int:
        if args.wide and args.to not in ("csv", "parquet"):
            parser.error("--wide is for tables, --to csv or parquet")
        if (args.offline or args.project) and args.to != "wandb":
            parser.error("--offline and --project are for --to wandb")
        if args.out is None and args.to in ("parquet", "tensorboard"):
            parser.error(f"--to {args.to} needs -o OUT")
        if args.to == "csv":
            return export.to_csv(args.path, args.out, args.wide)
        if args.to == "parquet":
            return export.to_parquet(args.path, args.out, args.wide)
        if args.to == "tensorboard":
            return export.to_tensorboard(args.path, args.out)
        return export.to_wandb(args.path, args.out, args.offline, args.project)

    parser.set_defaults(command=run)


def _add_audit(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "audit",
        help="find mistakes in a function, or in a script that runs",
        description="Follows the data through a function, without computing anything, and prints a line for each "
        "mistake that it finds. With --run, it runs a script and audits each function at its first compilation. The "
        "exit code is 1 when something is found that is as bad as --fail-on. [tool.lox.audit] of pyproject.toml may "
        "set select, ignore, fail-on and format.",
    )
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", type=audited, nargs="?", help="as in package.module:name"
    )
    parser.add_argument(
        "--run",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="a script with its arguments, or -m and a module; last",
    )
    parser.add_argument(
        "--args",
        metavar="MODULE:FACTORY",
        type=function,
        help="what returns arguments for it, a tuple or a dict; arrays may be jax.ShapeDtypeStructs",
    )
    parser.add_argument(
        "--axes",
        metavar="NAME=LABELS",
        type=axes,
        action="append",
        default=[],
        help="what the axes of an argument mean, as in obs=time,batch,_",
    )
    parser.add_argument("--differentiate", metavar="NAME", action="append", default=[], help="an argument")
    for name, text in (("select", "the only codes to report"), ("ignore", "codes that are not reported")):
        parser.add_argument(
            f"--{name}",
            metavar="CODES",
            type=codes,
            action="extend",
            help=f"{text}, as in LOX104,LOX7; a beginning means all",
        )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--format", choices=FORMATS, help="concise by default")
    forms.add_argument("--full", dest="format", action="store_const", const="full", help="the whole report as text")
    parser.add_argument(
        "--detail", choices=("calls", "lines", "equations"), default="calls", help="of the data flow; calls by default"
    )
    parser.add_argument("--output", metavar="FILE", type=output_file(), help="write to a file")
    parser.add_argument("--baseline", metavar="FILE", type=Path, help="report only what this file does not have")
    parser.add_argument("--write-baseline", metavar="FILE", type=output_file(), help="write what is found to this file")
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "info"),
        help="the severity from which on the exit code is 1; error by default",
    )

    def run(args: argparse.Namespace) -> int:
        named = {each.name for each in dataclasses.fields(audit.Choices)}
        choices = audit.Choices(**{name: value for name, value in vars(args).items() if name in named})
        if (args.function is None) == (args.run is None):
            parser.error("give a function, as in package.module:name, or a script, as in --run train.py --steps 100")
        if args.run is None:
            return audit.audit(args.function, args.args, dict(args.axes), args.differentiate, choices)
        if not args.run:
            parser.error("--run takes a script, as in --run train.py --steps 100; it comes after other options")
        if args.args or args.axes or args.differentiate:
            parser.error("--args, --axes and --differentiate are for one function")
        return audit.audit_run(args.run, choices)

    parser.set_defaults(command=run)


def _add_explain(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "explain",
        help="say what a code of the audit means",
        description="Prints the page of a code, or lists all codes.",
    )
    parser.add_argument("code", metavar="CODE", nargs="?", help="as in LOX104")
    parser.set_defaults(command=lambda args: explain.explain(args.code))


def _add_replay(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "replay",
        help="find where NaN began in a call that lox.guard has kept",
        description="Runs the call of a bundle again and prints where its first NaN begins: the line, the iteration, "
        "the batch element and the operands. The exit code is 1 when all is finite, and 2 when the call "
        "does not run again, for example since the function is another one.",
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="the directory that lox.guard wrote")
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", type=function, help="the function that was guarded, guarded or not"
    )
    parser.add_argument(
        "--args",
        metavar="MODULE:FACTORY",
        type=function,
        help="what returns arguments of the same structure, a tuple or a dict, where they have types that cannot be "
        "imported; the arrays are those of the bundle",
    )
    parser.set_defaults(command=lambda args: replay.replay(args.bundle, args.function, args.args))


def _add_demo(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "demo",
        help="train on handwritten digits and show the logs",
        description="Trains small networks on scikit-learn's handwritten digits, all seeds and steps in one jitted "
        "program, shows what was logged as tables and plots it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=whole, default=1000, metavar="N", help="training steps")
    parser.add_argument("--seeds", type=whole, default=4, metavar="N", help="networks trained side by side")
    parser.add_argument(
        "--out", type=output_file(), default="lox-demo.png", metavar="PATH", help="where the plot goes (PNG)"
    )
    parser.set_defaults(command=lambda args: demo.demo(args.steps, args.seeds, args.out))


def _add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help="a run, or a directory with runs in it")


def _add_keys(parser: argparse.ArgumentParser, count: str) -> None:
    parser.add_argument("keys", metavar="KEY", nargs=count, help="a key, or a pattern such as 'train/*'")


if __name__ == "__main__":
    sys.exit(main())
