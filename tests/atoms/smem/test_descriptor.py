"""sm_90 descriptors: words that the DSL derives, words that the guide got wrong, and what none can express."""

import dataclasses

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import SPANS, SmemDescriptor, smem_tile, wgmma
from layoutgemm.atoms.smem.descriptor import ADDRESS_MASK, SM90_FIELDS, derive, element_addresses, first_misfit
from layoutgemm.errors import DescriptorError

# What the CuTe DSL derives for a 128x64 bf16 tile of A: constant, advance per K block in units of 16 bytes.
DSL = [
    ("K", "128B", 0x4000004000010000, (0, 2, 4, 6)),
    ("K", "64B", 0x8000002000010000, (0, 2, 512, 514)),
    ("K", "32B", 0xC000001000010000, (0, 256, 512, 768)),
    ("K", "none", (2048 >> 4) << 16 | (128 >> 4) << 32, (0, 256, 512, 768)),
    ("MN", "128B", 0x4000004000000000, (0, 128, 256, 384)),
    ("MN", "64B", 0x8000002001000000, (0, 64, 128, 192)),
    ("MN", "32B", 0xC000001000800000, (0, 32, 64, 96)),
    ("MN", "none", (128 >> 4) << 16 | (1024 >> 4) << 32, (0, 16, 32, 48)),
]


@pytest.mark.parametrize("major, swizzle, word, steps", DSL, ids=[f"{row[0]}-{row[1]}" for row in DSL])
def test_words_and_advances_equal_the_dsl(major, swizzle, word, steps):
    found = derive(smem_tile((128, 64), "bf16", major, swizzle), wgmma(64), "A")
    assert hex(found.word) == hex(word)
    assert tuple(step // 16 for step in found.k_steps) == steps


@pytest.mark.parametrize("major", ("K", "MN"))
@pytest.mark.parametrize("swizzle", SPANS)
@pytest.mark.parametrize("n, depth", ((8, 64), (64, 64), (64, 128), (96, 192), (256, 64), (128, 16)))
def test_every_element_is_reached_at_any_aligned_address(major, swizzle, n, depth):
    contiguous = depth if major == "K" else n
    if contiguous * 16 % (SPANS[swizzle] * 8):
        with pytest.raises(ValueError, match="is no multiple of the atom's"):
            smem_tile((n, depth), "bf16", major, swizzle)
        return
    atom, tile = wgmma(n), smem_tile((n, depth), "bf16", major, swizzle)
    found = derive(tile, atom, "B")
    for base in (0, tile.alignment, 7 * tile.alignment, 100 * tile.alignment):
        for block, step in enumerate(found.k_steps):
            have = element_addresses(found.base.at(base + step).word, major, (n, 16), tile.dtype)
            k = np.arange(16)[None, :] + 16 * block
            assert np.array_equal(have, base + np.asarray(tile.byte(np.arange(n)[:, None], k)))


def test_encode_decode_round_trip():
    rng = np.random.default_rng(0)
    for _ in range(500):
        word = sum(field.encode(int(rng.integers(1 << field.width)) << field.shift) for field in SM90_FIELDS)
        assert SmemDescriptor.decode(word).word == word


def test_the_guides_word_is_read_bit_by_bit():
    """The published constructor writes 3 into the unused bits 14-15, and leaves the leading offset out."""
    with pytest.raises(DescriptorError, match="sets bits 14, 15"):
        SmemDescriptor.decode(0x400000400000C840)
    right = derive(smem_tile((64, 64), "bf16", "K"), wgmma(64), "A").base.at(0x8400)
    assert hex(right.word) == "0x4000004000010840"
    assert SmemDescriptor.decode(right.word).swizzle_name == "128B"


def test_stride_is_the_distance_between_atoms_not_the_row():
    """8 * BK * sizeof(bf16) is right up to BK = 64; at 128 the tile is 64-wide atoms and the stride stays 1024."""
    for depth, stride in ((32, 512), (64, 1024), (128, 1024), (256, 1024)):
        assert derive(smem_tile((64, depth), "bf16", "K"), wgmma(64), "A").base.stride_bytes == stride


def test_one_k_block_is_two_units():
    """A K block of 16 bf16 is 32 bytes: two 16-byte units, not 16 // 16."""
    assert derive(smem_tile((64, 64), "bf16", "K"), wgmma(64), "A").k_steps[1] // 16 == 2


def test_fields_that_do_not_fit_are_refused():
    for values, text in (
        (
            {"stride_bytes": 1 << 18},
            r"stride_bytes = 262144 does not fit: it must be a multiple of 16 from 0 to 262128",
        ),
        ({"stride_bytes": 1000}, "stride_bytes = 1000 does not fit"),
        ({"address": 1 << 18}, "address = 262144 does not fit"),
        ({"base_offset": 8}, "base_offset = 8 does not fit: it must be a multiple of 1 from 0 to 7"),
        ({"leading_bytes": -16}, "leading_bytes = -16 does not fit"),
    ):
        with pytest.raises(DescriptorError, match=text):
            _ = dataclasses.replace(SmemDescriptor("128B", 1024, 16), **values).word
    with pytest.raises(DescriptorError, match="no 64-bit word"):
        SmemDescriptor.decode(1 << 64)


def test_tiles_that_no_word_describes_are_refused_with_the_element():
    good = smem_tile((64, 64), "bf16", "K")
    # rows of an atom in another order: the hardware's row step is fixed
    shuffled = dataclasses.replace(good, layout=Layout(((2, 4, 8), 64), ((256, 64, 512), 1)))
    with pytest.raises(DescriptorError, match=r"element \(mn, k\) = \(1, 0\) would be read at byte 144"):
        derive(shuffled, wgmma(64), "A")
    # row-major with a pitch of 128 elements: the guide's index formula at BK = 128
    wide = dataclasses.replace(smem_tile((64, 128), "bf16", "K"), layout=Layout((64, 128), (128, 1)))
    with pytest.raises(DescriptorError, match=r"element \(mn, k\) = \(1, 0\)"):
        derive(wide, wgmma(64), "A")


def test_operands_that_do_not_belong_are_refused():
    with pytest.raises(DescriptorError, match=r"operand A of .* is 64x16; the tile's 32x64 is no multiple"):
        derive(smem_tile((32, 64), "bf16", "K"), wgmma(64), "A")
    with pytest.raises(DescriptorError, match=r"operand B of .* is f16, the tile holds bf16"):
        derive(smem_tile((64, 64), "bf16", "K"), wgmma(64, "f16"), "B")


@pytest.mark.parametrize("bit", range(64))
def test_any_flipped_bit_moves_an_element_or_is_ignored_by_the_hardware(bit):
    """Each bit of the word is unused, ignored by the mode, or moves some element."""
    tile, atom = smem_tile((64, 64), "bf16", "K"), wgmma(64)
    found = derive(tile, atom, "A")
    word = found.word ^ 1 << bit
    fields = [field for field in SM90_FIELDS if field.low <= bit < field.low + field.width]
    if not fields:
        with pytest.raises(DescriptorError, match="outside the sm_90 fields"):
            SmemDescriptor.decode(word)
        return
    changed = dataclasses.replace(found, base=SmemDescriptor.decode(word))
    if fields[0].name == "address":
        have = element_addresses(word, "K", (64, 16), tile.dtype)
        assert not np.array_equal(have, element_addresses(found.word, "K", (64, 16), tile.dtype))
        return
    misfit = first_misfit(changed, tile, atom, "A")
    # for swizzled K-major operands the hardware does not read the leading offset
    assert (misfit is None) == (fields[0].name == "leading_bytes"), (fields[0].name, misfit)


def test_addresses_stay_in_the_window():
    assert ADDRESS_MASK == (1 << 18) - 1
    high = element_addresses(
        SmemDescriptor("none", 128, 128, address=ADDRESS_MASK - 15).word,
        "K",
        (64, 16),
        smem_tile((64, 64), "bf16", "K").dtype,
    )
    assert high.max() <= ADDRESS_MASK
