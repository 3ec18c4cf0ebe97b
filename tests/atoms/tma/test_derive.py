"""Tensor copies: boxes for every tile, the rules of the hardware, and what the copies write."""

import dataclasses

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import SPANS, SWIZZLES, TmaCopy, smem_tile, tma_load
from layoutgemm.atoms.tma.derive import derive
from layoutgemm.atoms.tma.rules import MODES
from layoutgemm.checks import bijective_tile, filled_by
from layoutgemm.errors import OperandError, TmaError

BOXES = [
    # tile (mn, k), major, swizzle -> box innermost first, instructions
    ((64, 64), "K", "128B", (64, 64), 1),
    ((64, 128), "K", "128B", (64, 64), 2),
    ((128, 64), "K", "64B", (32, 128), 2),
    ((64, 64), "K", "none", (8, 64), 8),
    ((64, 64), "MN", "128B", (64, 64), 1),
    ((256, 64), "MN", "128B", (64, 64), 4),
    ((64, 32), "MN", "32B", (16, 32), 4),
    ((256, 64), "K", "128B", (64, 256), 1),
    ((512, 64), "K", "128B", (64, 256), 2),
    ((8, 16), "K", "32B", (16, 8), 1),
]


@pytest.mark.parametrize("extent, major, swizzle, box, count", BOXES)
def test_boxes(extent, major, swizzle, box, count):
    tile = smem_tile(extent, "bf16", major, swizzle)
    plan = derive(tile, ("k", "m") if major == "K" else ("m", "k"))
    assert (plan.box, len(plan.instructions)) == (box, count)
    assert plan.bytes == tile.bytes and plan.driver_swizzle == list(SPANS).index(swizzle)
    assert filled_by("copy", tile, plan) and bijective_tile("tile", tile)


def test_driver_enumeration_is_not_the_descriptors():
    numbers = {name: mode.driver for name, mode in MODES.items()}
    assert numbers == {
        "none": 0,
        "32B": 1,
        "64B": 2,
        "128B": 3,
        "128B, atom 32B": 4,
    }


def test_a_box_writes_its_rows_swizzled():
    plan = derive(smem_tile((64, 64), "bf16", "K"), ("k", "m"))
    address = plan.box_addresses(1024)
    # row 1, chunk 0 lands in chunk 1 of its 128-byte line
    assert address[0, 1] == 1024 + 128 + 16 and address[8, 1] == 1024 + 128
    assert np.array_equal(np.sort(address, axis=None), 1024 + 2 * np.arange(64 * 64))


def wrong(plan, **changes):
    return dataclasses.replace(plan, **changes)


def test_checks_see_a_wrong_copy():
    tile = smem_tile((64, 128), "bf16", "K")
    plan = derive(tile, ("k", "m"))
    assert filled_by("copy", tile, plan)
    first, second = plan.instructions
    for broken, text in (
        (wrong(plan, swizzle="64B"), "element (mn, k) = (4, 0) is the tensor's (k 32, m 4), should be (k 0, m 4)"),
        (wrong(plan, box=(64, 32)), "element (mn, k) = (32, 0) copied 0 times, should be 1"),
        (wrong(plan, instructions=(first,)), "(0, 64) copied 0 times"),
        (wrong(plan, instructions=(first, second, second)), "(0, 64) copied 2 times"),
        (wrong(plan, instructions=(first, TmaCopy((64, 0), 1024))), "(8, 0) copied 2 times"),
        (wrong(plan, instructions=(first, TmaCopy((0, 0), 8192))), "(0, 64) is the tensor's (k 0, m 0), should be"),
        (wrong(plan, instructions=(first, TmaCopy((64, 0), 16384))), "byte 16384, where the tile holds no element"),
        (wrong(plan, instructions=(first, TmaCopy((64, 0), 8200))), "starts at shared byte 8200"),
    ):
        check = filled_by("copy", tile, broken)
        assert not check and text in check.witness, check.witness


def test_tiles_that_no_box_fills_are_refused():
    good = smem_tile((64, 64), "bf16", "K")
    padded = dataclasses.replace(good, layout=Layout((64, 64), (72, 1)), swizzle_name="none")
    with pytest.raises(TmaError, match=r"would start at shared byte \+144; each copy works on multiples of 128"):
        derive(padded, ("k", "m"))
    transposed = dataclasses.replace(good, layout=Layout((64, 64), (1, 64)))
    with pytest.raises(TmaError, match="shared memory runs along m first"):
        derive(transposed, ("k", "m"))
    with pytest.raises(TmaError, match="two dimensions of different names"):
        derive(good, ("k", "k"))
    narrow = dataclasses.replace(good, layout=Layout((64, 4), (4, 1)), swizzle_name="none")
    with pytest.raises(TmaError, match="8 bytes, no multiple of 16"):
        derive(narrow, ("k", "m"))


def test_rows_of_two_spans_cost_an_instruction_each():
    # The box is one span of one row: legal, since the swizzle XORs absolute addresses, and dear.
    wide = dataclasses.replace(smem_tile((64, 64), "bf16", "K"), layout=Layout((64, 128), (128, 1)))
    plan = derive(wide, ("k", "m"))
    assert (plan.box, len(plan.instructions)) == ((64, 1), 128) and filled_by("copy", wide, plan)


RULES = [
    ({"address": 8}, "b starts at address 0x8, 8 bytes past a multiple of 16"),
    ({"strides": (100,)}, "b: stride of m is 100 elements * 2 = 200 bytes, a tensor map needs a multiple of 16 bytes"),
    ({"strides": (-64,)}, "b: stride of m is -128 bytes"),
    ({"strides": (1 << 39,)}, "takes 16 to 2**40 - 16"),
    ({"shape": (0, 5)}, "b: dimension k has 0 elements"),
    ({"shape": (64, (1 << 32) + 1)}, "b: dimension m has 4294967297 elements"),
    ({"shape": (64,)}, "b has 1 dimensions, its box has 2"),
]


@pytest.mark.parametrize("change, text", RULES)
def test_global_rules_name_tensor_rule_and_numbers(change, text):
    plan = derive(smem_tile((64, 64), "bf16", "K"), ("k", "m"))
    arguments = {"address": 0, "shape": (64, 64), "strides": (64,)}
    plan.check_global("b", **arguments)
    plan.check_global("b", **(arguments | {"strides": (0,)}))  # one row for all
    with pytest.raises(OperandError) as error:
        plan.check_global("b", **(arguments | change))
    assert text in str(error.value)


def test_a_box_a_row_names_the_layout_that_takes_one() -> None:
    gmem = Layout((256, 512), (512, 1))
    padded = tma_load(gmem, Layout((64, 64), (128, 1)), "bf16")
    assert len(padded.instructions) == 64
    assert padded.advice == "64 instructions of 128 bytes; shared layout S<3,4,3>[bytes] o (64,64):(64,1) needs 1"
    said = padded.explain().splitlines()
    assert said[2].strip() == padded.advice and said[-1] == "  ... and 48 more: see .instructions" and len(said) < 30
    dense = tma_load(gmem, Layout((64, 64), (64, 1)), "bf16")
    assert not dense.advice and len(dense.instructions) == 1


@pytest.mark.parametrize("name", SWIZZLES)
def test_each_mode_of_a_tile_is_the_driver_s_or_refused(name: str) -> None:
    """A tile's mode is found by its XOR: shared memory and the driver have names of their own for it."""
    tile = smem_tile((64, 64), "bf16", "K", name)
    gmem = Layout((4096, 1024), (1024, 1))
    if name in ("128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"):
        with pytest.raises(TmaError, match=r"no XOR of one field|tensor copies have"):
            tma_load(gmem, tile)
        return
    plan = tma_load(gmem, tile)
    assert MODES[plan.swizzle].swizzle == tile.swizzle or not tile.swizzle.bits
    assert plan.box == tma_load(gmem, tile.composed, dtype="bf16").box
