"""Shared parts of the subcommands: one-line errors, help examples, sizes from text, pictures, JSON."""

from __future__ import annotations

import argparse
import difflib
import json
import numbers
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import view
from ..arguments import PROGRAMS, shown
from ..errors import LayoutError, ParseError
from ..layouts.notation import MAX_TEXT
from .commands import COMMANDS, Commands

SCRIPTS = (".py", ".ipynb", *PROGRAMS)  # what `emulate` runs as a script
FROM_INPUT = "; - reads one from standard input"  # `layout_text`
MESSAGE = 1000  # characters of a message about arguments: a longer one repeats a long argument


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that names the help. Exit status 2.

    Options are written in full: an abbreviation would be a guess (`--a` of plan is not -a).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        # No option begins with a digit: -3:1, -1,0 and -0x5 are values, which their readers refuse by name.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.set_defaults(parser=self)

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Print the words that the command does not take, with the nearest options, and exit."""
        options = self._option_string_actions
        asked = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        near: list[str] = []
        if asked is not None and asked.startswith("--"):
            near = [name for name in options if name.startswith(asked)] or difflib.get_close_matches(asked, options, 1)
        hint = f"; do you mean {' or '.join(near)}?" if near else ""
        self.error(f"it takes no {' '.join(words)}{hint}")

    def error(self, message: str) -> NoReturn:
        """Print the error and exit. For a misspelt choice, the nearest one comes first."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(found[1], re.findall(r"[\w.-]+", found[2]), 1) if found else []
        if found and near:
            message = message.replace(" (choose from", f"; do you mean {near[0]!r}? (choose from")
        self.exit(2, f"{self.prog}: {bounded(message)}; see {self.prog} --help\n")


def add(
    commands: Commands, name: str, examples: Sequence[str], run: Callable[[argparse.Namespace], int], *, says: str = "",
) -> argparse.ArgumentParser:  # fmt: skip
    """Add a subcommand whose help ends with examples. The tests run each one; `# status 1` gives its exit status."""
    command = COMMANDS[name]
    help_ = command.help
    parser: argparse.ArgumentParser = commands.add_parser(
        name, aliases=list(command.aliases), help=help_,
        description=textwrap.fill(says or f"{help_[0].upper()}{help_[1:]}.", 79),
        epilog="\n".join(["examples:" if len(examples) > 1 else "example:", *(f"  {text}" for text in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def script_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those of the script that it runs.

    >>> script_arguments(["emulate", "--banks", "gemm.py", "--m", "64"])
    (['emulate', '--banks', 'gemm.py'], ['--m', '64'])
    >>> script_arguments(["emulate", "-m", "pytest", "-m", "gpu"])
    (['emulate', '-m', 'pytest'], ['-m', 'gpu'])
    >>> script_arguments(["emulate", "kernel.ptx", "--timeline"])
    (['emulate', 'kernel.ptx', '--timeline'], [])
    """
    if not argv or argv[0] not in ("compile", "emulate"):
        return list(argv), []
    names = [i + (word == "-m") for i, word in enumerate(argv) if word == "-m" or word.endswith(SCRIPTS)]
    end = names[0] + 1 if names else len(argv)
    return list(argv[:end]), list(argv[end:])


def layout_text(word: str) -> str:
    """The text of an argument for a layout. `-` stands for standard input, which one argument may read.

    Raises argparse's error for an input that is empty, or longer than any layout.
    """
    if word != "-":
        return word
    text = "" if sys.stdin is None else sys.stdin.read(MAX_TEXT + 1)
    if not text.strip():
        raise argparse.ArgumentTypeError("- reads a layout from standard input, which is empty here")
    if len(text) > MAX_TEXT:
        raise argparse.ArgumentTypeError(f"standard input has more than {MAX_TEXT} characters: give it one layout")
    return text.strip("\n")


LINES = 30  # that are printed without --full


def answer(args: argparse.Namespace, text: Callable[[], str], data: Callable[[], Mapping[str, object]]) -> None:
    """Print for people, or with --json for programs."""
    print(json.dumps(data()) if args.json else text())


def add_full(parser: argparse.ArgumentParser) -> None:
    """The option that prints more than `LINES` lines."""
    parser.add_argument("--full", action="store_true", help=f"every line, not the first {LINES}")


def head_of_lines(text: str, full: bool) -> str:
    """The first lines of a text, and how to print the others.

    >>> head_of_lines("a\\nb", False), head_of_lines("a\\n" * LINES + "b", False).splitlines()[-1]
    ('a\\nb', '29 of 31 lines; --full prints the rest')
    """
    lines = text.splitlines()
    if full or len(lines) <= LINES:
        return text
    return "\n".join([*lines[: LINES - 1], f"{LINES - 1} of {len(lines)} lines; --full prints the rest"])


def add_picture(parser: argparse.ArgumentParser, what: str) -> None:
    """The options that draw instead of printing."""
    parser.add_argument("--svg", type=Path, metavar="FILE", help=f"draw {what} there instead")
    parser.add_argument("--png", type=Path, metavar="FILE", help="the same as PNG (needs the extra png)")
    parser.add_argument("--dark", action="store_true", help="dark; otherwise an SVG follows the viewer's theme")


def drawn(args: argparse.Namespace, draw: Callable[[], str]) -> bool:
    """Draw into the files of --svg and --png and say so; return False without either."""
    files = [file for file in (args.svg, args.png) if file is not None]
    for option, file in (("--svg", args.svg), ("--png", args.png)):
        if file is not None and file.is_dir():
            raise LayoutError(f"{option} {file} is a folder: name a file in it")
    if not files and args.dark:
        raise LayoutError("--dark applies to a picture: give --svg FILE or --png FILE too")
    if not files:
        return False
    if args.svg is not None and args.svg.suffix.lower() not in ("", ".svg", ".png"):
        raise LayoutError(f"--svg {args.svg}: a picture is an .svg or a .png")
    picture = draw()
    for file in files:
        if file is args.png and file.suffix.lower() != ".png":  # --png decides, not the name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(view.png(picture, dark=args.dark))
        else:
            view.save(picture, file, dark=args.dark)
    names = {name: str(file) for name, file in (("svg", args.svg), ("png", args.png)) if file is not None}
    answer(args, lambda: "\n".join(f"written to {name}" for name in names.values()), lambda: dict(names))
    return True


def plain(value: object) -> object:
    """Numbers and tuples as JSON has them. Anything else, a symbol or an array, as its text.

    >>> plain((0, (1, 2))), plain(None), plain(2j)
    ([0, [1, 2]], None, '2j')
    """
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):  # NumPy's and SymPy's, too
        return int(value)
    return value if value is None or isinstance(value, (bool, float, str)) else str(value)


def failed(error: Exception, as_json: bool) -> int:
    """Report an error: one line on stderr, or with --json an object on stdout. Returns the exit status, 2."""
    said = f"{type(error).__name__}: {bounded(one_line(error))}"
    if as_json:
        try:
            print(json.dumps({"ok": False, "error": said}), flush=True)
            return 2
        except OSError:  # the file that stdout writes to takes no more: stderr may
            pass
    print(f"layoutgemm: {said}", file=sys.stderr)
    return 2


def bounded(message: str) -> str:
    """A message without the middle of a long argument that it repeats."""
    half = MESSAGE // 2
    return message if len(message) <= MESSAGE else f"{message[:half]} ... {message[-half:]}"


def one_line(error: Exception) -> str:
    """The error's message on one line.

    A parse error names the place instead of a pointer below the text, an error of a file the file first.

    >>> from layoutgemm.layouts import parse
    >>> try:
    ...     parse("(4,8):(8,x")
    ... except ParseError as error:
    ...     print(one_line(error))
    expected ',' or ')', at the end of '(4,8):(8,x'
    >>> print(one_line(FileNotFoundError(2, "No such file or directory", "kernel.ptx")))
    kernel.ptx: No such file or directory
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ParseError) and error.text:
        rest = error.text[error.position :]
        place = f"{shown(rest)} in" if rest else "the end of"
        return f"{error.reason}, at {place} {shown(error.text)}"
    return "; ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__


def size_pair(text: str, what: str = "sizes are written ROWSxCOLUMNS, as in 64x64") -> tuple[int, int]:
    """`64x128` as two positive ints. Raises LayoutError.

    >>> size_pair("64x128")
    (64, 128)
    """
    found = re.fullmatch(r"([1-9]\d*)[x,]([1-9]\d*)", text)
    if found is None:
        raise LayoutError(f"{shown(text)}: {what}")
    return int(found[1]), int(found[2])
