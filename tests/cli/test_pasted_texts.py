"""Pasted texts as arguments of the commands: the layout, the direction and the element type that each states."""

from __future__ import annotations

import functools
import json
import operator

import pytest

from layoutgemm import parse
from layoutgemm.checks import bank_conflicts, matrix_access
from layoutgemm.cli.main import main
from layoutgemm.cli.texts import tile_in_memory
from layoutgemm.errors import AtomError, LayoutError

SWIZZLED = "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>"
PLAIN = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"


def buffer(shape: str, layout: str) -> str:
    return f"!ttg.memdesc<{shape}xf16, {layout}, #ttg.shared_memory, mutable>"


@pytest.mark.parametrize(
    ("text", "tile"),
    [
        (buffer("64x64", SWIZZLED), "S<3,3,3> o 0 o (64,64):(64,1)"),
        (buffer("64x128", PLAIN), "(64,128):(128,1)"),
        (PLAIN.replace("[1, 0]", "[0, 1]"), "(1,1):(0,0)"),
        ("NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)", "S<3,3,3> o 0 o (8,64):(64,1)"),
        ("#ttg.padded_shared<[64:+8] {order = [1, 0], shape = [8, 64]}>", "(8,64):(72,1)"),
    ],
)
def test_a_buffer_of_triton_is_a_tile_from_coordinates_to_offsets(text: str, tile: str) -> None:
    found, right = tile_in_memory(text), parse(tile)
    assert [found(i) for i in range(right.size)] == [right(i) for i in range(right.size)]


@pytest.mark.parametrize(
    ("text", "status", "element", "ways"),
    [
        (buffer("64x64", SWIZZLED), 0, "f16", 1),
        (buffer("64x128", PLAIN), 1, "f16", 8),
        ("f32[8,128]{1,0:T(8,128)}", 1, "f32", 8),
        (buffer("64x64", SWIZZLED).replace("xf16", "xf32").replace("vec = 8", "vec = 4"), 0, "f32", 1),
        (
            "shared_memory_descriptor<fp16, [64, 64], SwizzledSharedLayout(vec=8, per_phase=1, max_phase=8, "
            "order=[1, 0]), [64, 64]>",
            0,
            "f16",
            1,
        ),
        ("#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 32}>", 0, "u32", 1),
    ],
)
def test_banks_are_counted_for_the_stated_type(
    capsys: pytest.CaptureFixture[str], text: str, status: int, element: str, ways: int
) -> None:
    assert main(["banks", text, "--json"]) == status
    said = json.loads(capsys.readouterr().out)
    assert (said["element"], said["ways"]) == (element, ways)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>",
         "is held by threads"),
        ('{"offset": [[0, 1], [1, 0]]}', "no buffer of one block with a shape"),
        (buffer("64x64", SWIZZLED.replace("order", "CGALayout = [[1, 0]], order")), "no buffer of one block"),
    ],
)  # fmt: skip
def test_what_is_no_tile_is_refused(text: str, reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        tile_in_memory(text)


def test_the_wrong_direction_is_refused_at_the_prompt_too() -> None:
    rows = matrix_access((64, 64), "f16")
    found = parse(buffer("64x64", SWIZZLED))
    with pytest.raises(AtomError, match=r"give its inverse\(\)"):
        bank_conflicts(found, rows, element="f16")
    assert bank_conflicts(found.inverse(), rows, element="f16").ways == 1
    held = parse("#ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0]]}>")
    with pytest.raises(AtomError, match="is no tile"):
        bank_conflicts(held, rows, element="f16")


def test_a_buffer_is_proven_against_a_tile() -> None:
    text = buffer("64x64", SWIZZLED)
    tile = "S<3,3,3> o 0 o (64,64):(64,1)"
    assert main(["prove", text, tile]) == main(["prove", tile, text]) == main(["prove", text, text]) == 0
    assert main(["prove", text, "(64,64):(64,1)"]) == 1
    assert main(["prove", text, buffer("64x64", PLAIN)]) == 1


@pytest.mark.parametrize(
    ("layout", "operand", "status"),
    [
        ("Layout.WGMMA", "wgmma:8:bf16:C", 0),
        ("((4,8),(2,2)):((32,1),(16,8))", "mma:m16n8k16:bf16:C", 0),
        ("((4,8),(2,2)):((32,1),(16,8))", "SM80_16x8x16_F32BF16BF16F32_TN:C", 0),
        ("((4,8),(2,2)):((32,1),(8,16))", "mma:m16n8k16:bf16:C", 1),
        ("((4,8),(2,2)):((32,1),(8,16))", "wgmma:63:bf16:C", 2),
    ],
)
def test_a_layout_is_proven_against_an_instruction(layout: str, operand: str, status: int) -> None:
    assert main(["prove", layout, operand]) == main(["prove", operand, layout]) == status


# (register, lane and warp bases, by whom element (1, 2) is held as thread:value)
HELD = [
    ([[0, 1]], [[1, 0], [0, 2]], [[0, 4]], "3:0"),
    ([], [[1, 0], [0, 1], [0, 2]], [], "5:0"),
    ([[1, 1]], [[1, 0], [0, 2]], [], "3:0"),  # a swizzle
    ([[1, 2], [0, 1]], [[1, 0], [1, 1]], [[0, 2], [2, 1]], None),  # no layout
]


@pytest.mark.parametrize(("register", "lane", "warp", "holder"), HELD)
def test_threads_of_triton_are_shown_where_they_hold_elements(register, lane, warp, holder, capsys) -> None:
    bases = [*lane, *warp, *register]
    shape = [1 + functools.reduce(operator.or_, (basis[d] for basis in bases)) for d in range(2)]
    linear = f"#ttg.linear<{{register = {register}, lane = {lane}, warp = {warp}, block = []}}>"
    text = f"tensor<{shape[0]}x{shape[1]}xf32, {linear}>"
    assert main(["show", text, "--json"]) == 0
    held = json.loads(capsys.readouterr().out)["thread_value"]
    threads = 1 << len(lane + warp)
    want = {(i, j): [] for i in range(shape[0]) for j in range(shape[1])}
    for number in range(1 << len(bases)):
        at = [0, 0]
        for bit, basis in enumerate(bases):
            if number >> bit & 1:
                at = [at[0] ^ basis[0], at[1] ^ basis[1]]
        want[tuple(at)].append([number % threads, number // threads])
    assert {(i, j): each for i, row in enumerate(held) for j, each in enumerate(row)} == {
        k: sorted(v) for k, v in want.items()
    }
    assert main(["show", text]) == 0
    assert holder is None or f" {holder} " in capsys.readouterr().out.replace("\n", " ")


def test_triton_layouts_of_other_ranks_are_shown_by_offsets(capsys) -> None:
    sizes = "sizePerThread = [1, 1, 2], threadsPerWarp = [2, 4, 4], warpsPerCTA = [1, 1, 1], order = [2, 1, 0]"
    assert main(["show", f"#ttg.blocked<{{{sizes}}}>", "--json"]) == 0 and '"offsets"' in capsys.readouterr().out
