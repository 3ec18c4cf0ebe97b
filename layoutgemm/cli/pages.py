"""`layoutgemm show --html`: an interactive page of a layout, tile, swizzle, copy or atom."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..errors import LayoutError
from .arguments import answer
from .texts import tile_of


def add_page(parser: argparse.ArgumentParser) -> None:
    """The options of a page."""
    parser.add_argument(
        "--html", type=Path, metavar="FILE",
        help="write an interactive page there: an atom with A, B, C, a copy with both sides",
    )  # fmt: skip
    for operand in "ab":
        parser.add_argument(
            f"--smem-{operand}", metavar="TILE",
            help=f"with --html and an atom: {operand.upper()} in shared memory, as in smem:64x64:bf16:K:128B",
        )  # fmt: skip


def paged(args: argparse.Namespace, is_atom: bool, find: Callable[[], object]) -> bool:
    """Write the page of `find()`'s object if --html asks for it; returns True if written."""
    given = {name: text for name, text in (("a", args.smem_a), ("b", args.smem_b)) if text is not None}
    if args.html is None:
        if given:
            raise LayoutError("--smem-a and --smem-b are tiles shown beside an atom on a page: give --html FILE too")
        return False
    for option in ("svg", "png", "rows", "columns", "planes", "color", "thread"):
        if getattr(args, option) is not None:
            raise LayoutError(f"--html writes a page of the whole: omit --{option}")
    if given and not is_atom:
        raise LayoutError(f"--smem-a and --smem-b are tiles of an atom's operands, and {args.what} is not an atom")
    found = find()
    if not hasattr(found, "html"):
        known = "layouts, tiles, swizzles, copies and atoms"
        raise LayoutError(f"{args.what} has no page: {known} have; --svg FILE draws it")
    found.html(args.html, **{name: tile_of(text) for name, text in given.items()})
    answer(args, lambda: f"written to {args.html}", lambda: {"html": str(args.html)})
    return True
