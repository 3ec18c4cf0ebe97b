"""`layoutgemm prove`: two layouts are equal for every size, or the first difference."""

from __future__ import annotations

import argparse

from ..layouts import CounterExample, Proof, Undecided
from ..layouts.proofs.prove import prove
from ..layouts.symbols.facts import Facts
from .arguments import FROM_INPUT, add, answer, layout_text, plain
from .commands import Commands
from .object_names import atom_layout
from .texts import is_buffer, stated, tile_in_memory

EXAMPLES = (
    "layoutgemm prove '(64,M//64):(1,64)' M:1 --given '64 | M'",
    "layoutgemm prove '((4,8),(2,2)):((32,1),(16,8))' mma:m16n8k16:bf16:C",
)


def add_prove(commands: Commands) -> None:
    """The subcommand prove."""
    parser = add(
        commands, "prove", EXAMPLES, run,
        says="Layouts in CuTe's notation, symbols allowed. Exit status: 0 proven, 1 refuted, 3 undecided.",
    )  # fmt: skip
    parser.add_argument(
        "a", type=layout_text,
        help="a layout, as in '(M,N):(N,1)', a tile, as in smem:64x64:bf16:K:128B, or an operand: wgmma:64:bf16:C"
        + FROM_INPUT,
    )  # fmt: skip
    parser.add_argument("b", type=layout_text, help="another")
    parser.add_argument("--given", action="append", default=[], metavar="FACT", help="'64 | M', 'ld >= M'; repeatable")


def run(args: argparse.Namespace) -> int:
    """Prove or refute, and print; returns the exit status."""
    # Names are symbols under these facts alone, whatever facts the process has stated before.
    facts = Facts(*args.given)
    buffers = [is_buffer(text) for text in (args.a, args.b)]
    found = prove(*(
        tile_in_memory(text) if buffer and not all(buffers) else atom_layout(text) or stated(text, facts)
        for text, buffer in zip((args.a, args.b), buffers, strict=True)
    ))  # fmt: skip
    verdict = "undecided" if isinstance(found, Undecided) else "proven" if found else "refuted"

    def data() -> dict[str, object]:
        said: dict[str, object] = {"verdict": verdict, "given": args.given, "explanation": found.explain()}
        if isinstance(found, CounterExample):
            witness = {"coord": found.coord, "left": found.left, "right": found.right}
            said |= {"method": found.method, "sizes": dict(found.sizes)}
            said |= {name: plain(value) for name, value in witness.items()}
        elif isinstance(found, Proof):
            said |= {"method": found.method, "conditions": [str(each) for each in found.conditions]}
        return said

    given = f"given {', '.join(args.given)}:\n" if args.given else ""
    answer(args, lambda: given + found.explain(), data)
    return {"proven": 0, "refuted": 1, "undecided": 3}[verdict]
