"""The command line `layoutgemm COMMAND` and its subcommands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import LayoutError
from .arguments import Parser, failed, script_arguments
from .commands import COMMANDS

# Optional modules, and the extra that installs each.
EXTRAS = {"torch": "torch", "cutlass": "dsl", "resvg_py": "png"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 for yes, 1 for no, 2 for input that it cannot take."""
    if sys.stderr is None:  # closed by the shell's 2>&-: print() would write errors to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # open until the program ends
    if sys.stdout is None:
        return failed(LayoutError("stdout is closed: there is nowhere to print to"), False)
    own, of_script = script_arguments(sys.argv[1:] if argv is None else argv)
    parser = make_parser(next((word for word in own if not word.startswith("-")), ""))
    if not own:  # no command: print the help
        parser.print_help()
        return 2
    args, unknown = parser.parse_known_args(own, argparse.Namespace(script=of_script))
    if unknown:
        args.parser.refuse(unknown)
    as_json = getattr(args, "json", False)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does; nothing is left to flush at exit
        discard_unwritten()
        return 141  # the status that shells use for a closed pipe: 1 would say no
    except KeyboardInterrupt:
        return 130  # the status that shells use for ^C
    except MemoryError as error:
        return failed(LayoutError(f"not enough memory ({str(error) or 'here'}): try a smaller problem"), as_json)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        way_out = f"pip install 'layoutgemm[{EXTRAS[error.name]}]'; layoutgemm doctor says what else is missing"
        return failed(LayoutError(f"{error.name} is not installed: {way_out}"), as_json)
    except (LayoutError, OSError) as error:
        status = failed(error, as_json)
        if isinstance(error, OSError):
            discard_unwritten()
        return status


def discard_unwritten() -> None:
    """Drop unwritable stdout text: Python would retry at exit and print a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all subcommands.

    only  the one command whose file is loaded: the others have their lines in the help, and no arguments
    """
    parser = Parser(
        prog="layoutgemm", description="CuTe-style layouts and the GEMM kernels built on them",
        epilog="examples:\n  layoutgemm show '(4,8):(8,1)'\n  layoutgemm demo\n\n"
        "layoutgemm COMMAND --help shows those of a command\n"
        "exit status: 0 yes, 1 no (conflicts, refuted, not found), 2 input that it cannot take",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"layoutgemm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        if only is None or only in (command.name, *command.aliases):
            command.add(commands)
        else:
            commands.add_parser(command.name, aliases=list(command.aliases), help=command.help)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
