"""Descriptors of any shared layout: what can be said is taken, the rest is refused with its reason and element."""

import dataclasses
import itertools
import pickle

import numpy as np
import pytest

from layoutgemm import Layout, Swizzle
from layoutgemm.atoms import SWIZZLES, as_tile, operand_read, smem_tile, tcgen05_mma, tcgen05_read, wgmma
from layoutgemm.atoms.smem.descriptor import (
    SmemDescriptor,
    derive,
    element_addresses,
    element_bits,
    first_misfit,
    layout_of_values,
)
from layoutgemm.atoms.smem.tile import slot_bits
from layoutgemm.dtypes import dtype
from layoutgemm.errors import DescriptorError


def wgmma_read(name, rows, operand="A"):
    """The reads of wgmma: A (64 rows) or B (N rows)."""
    return operand_read(wgmma(64 if operand == "A" else rows, name), operand)


KINDS = [("f16", "bf16"), ("tf32", "tf32"), ("i8", "i8"), ("f8f6f4", "e4m3"), ("f8f6f4", "e3m2"), ("f8f6f4", "e2m1")]
KINDS += [("mxf8f6f4", "e2m3"), ("mxf4", "e2m1")]
READS = [wgmma_read(name, 64) for name in ("f16", "bf16", "tf32", "e4m3", "e5m2", "i8", "u8")]
READS += [wgmma_read("bf16", n, "B") for n in (8, 96, 256)] + [wgmma_read("e4m3", 24, "B")]
READS += [tcgen05_read(kind, name, rows) for kind, name in KINDS for rows in (64, 128)]
READS += [tcgen05_read("f16", "f16", 24, "B"), tcgen05_read("f8f6f4", "e5m2", 128, "B", sparse=True)]


def hardware_bits(read, major, swizzle, leading, stride, address):
    """The reading of PTX ISA in formulas of its own: chunk by chunk, row by row, and the pictures of the swizzles."""
    slot = slot_bits(read.dtype, read.packing)
    per_chunk = 128 // slot
    span = SWIZZLES[swizzle].span
    mn, k = np.meshgrid(np.arange(read.rows), np.arange(read.depth), indexing="ij")
    inner, outer = (k, mn) if major == "K" else (mn, k)
    chunk, within = inner // per_chunk, inner % per_chunk
    rows = SWIZZLES[swizzle].rows
    if swizzle == "none":
        # a core matrix is 8 rows of 16 bytes; `stride` steps along M or N, `leading` along K
        along_chunks, along_rows = (leading, stride) if major == "K" else (stride, leading)
        offset = chunk * along_chunks + outer // 8 * along_rows + outer % 8 * 16
    else:
        chunks = span // 16
        beyond = 0 if major == "K" else leading
        offset = chunk // chunks * beyond + chunk % chunks * 16 + outer // rows * stride + outer % rows * span
    offset = offset + address
    line, piece = offset // 128, offset // 16 % 8
    moved = {
        "none": piece,
        "32B": piece ^ line % 2,
        "64B": piece ^ line % 4,
        "128B": piece ^ line % 8,
        "128B_ATOM_32B": piece ^ line % 4 * 2,
    }[swizzle]
    return (line * 128 + moved * 16 + offset % 16) * 8 + within * read.dtype.bits


@pytest.mark.parametrize(
    "read", READS, ids=lambda read: f"{read.arch}-{read.dtype}-{read.packing}-{read.name}{read.rows}"
)
def test_every_canonical_layout_is_read_as_the_documents_picture_it(read):
    found = 0
    for major in ("K", "MN"):
        for swizzle, mode in SWIZZLES.items():
            if read.objection(major, swizzle):
                continue
            span = mode.span * 8 // slot_bits(read.dtype, read.packing)
            lengths = [read.depth * 4, read.rows]
            if major == "K":
                lengths[0] = max(lengths[0], span)
                if span < read.depth and swizzle != "none":
                    continue
            elif read.rows % span:
                continue
            extent = (lengths[1] * (2 if read.rows < 256 else 1), lengths[0])
            tile = smem_tile(extent, read.dtype, major, swizzle, read.packing)
            made = derive(tile, read, read.name)
            for address in (0, 3 * tile.alignment):
                for block in range(len(made.k_steps)):
                    fields = made.at(address, block)
                    base = fields.leading_bytes, fields.stride_bytes, fields.address
                    have = element_bits(
                        fields.word, major, (read.rows, read.depth), read.dtype, read.arch, read.packing
                    )
                    assert np.array_equal(have, hardware_bits(read, major, swizzle, *base))
                    k = np.arange(read.depth)[None, :] + block * read.depth
                    assert np.array_equal(have, 8 * address + np.asarray(tile.bit(np.arange(read.rows)[:, None], k)))
            found += 1
    assert found


def test_padded_elements_have_the_words_of_bytes():
    """f8f6f4 reads padded 4- and 6-bit elements by the word of 8-bit elements. The padding is to 16 bytes for 16."""
    for swizzle in ("none", "32B", "64B", "128B"):
        words = {
            derive(smem_tile((128, 128), name, "K", swizzle, packing), tcgen05_read("f8f6f4", name, 128), "A").word
            for name, packing in (("e4m3", "packed"), ("e2m3", "b6x16_p32"), ("e2m1", "b4x16_p64"))
        }
        assert len(words) == 1
    with pytest.raises(DescriptorError, match="is stored as b4x16_p64, the tile's elements are packed"):
        derive(smem_tile((128, 128), "e2m1", "K"), tcgen05_read("f8f6f4", "e2m1", 128), "A")


def test_any_way_of_writing_the_layout_gives_the_same_word():
    tile = smem_tile((64, 128), "bf16", "K", "64B")
    want = derive(tile, wgmma(64), "A")
    in_bytes = Layout(tile.layout.shape, tuple(tuple(2 * d for d in mode) for mode in tile.layout.stride))
    for layout, options in (
        (tile.layout, {"swizzle": "64B"}),
        (tile.layout, {"swizzle": "64B", "major": "K"}),
        (tile.composed, {}),
        (Swizzle(2, 3, 3, unit=16) @ tile.layout, {}),
        (Swizzle(2, 3, 3) @ tile.layout, {}),
        (Swizzle(2, 4, 3, unit="bytes") @ in_bytes, {}),
    ):
        assert derive(layout, wgmma(64), "A", **options) == want, layout
    none = derive(Layout(((8, 8), (8, 2)), ((8, 64), (1, 512))), wgmma(64), "A")
    assert none == derive(smem_tile((64, 16), "bf16", "K", "none"), wgmma(64), "A")


def test_strides_beyond_compact_are_taken():
    for layout, swizzle, leading, stride, steps in (
        (Layout(((8, 8), 64), ((64, 1024), 1)), "128B", 16, 2048, (0, 32, 64, 96)),  # gaps between atoms
        (Layout(((8, 8), (64, 2)), ((64, 1024), (1, 512))), "128B", 16, 2048, (0, 32, 64, 96, 1024, 1056, 1088, 1120)),
        (Layout(((64, 1), (8, 8)), ((1, 0), (64, 640))), "128B", 0, 1280, None),  # MN-major
        (Layout(((8, 8), (8, 4)), ((8, 72), (1, 800))), "none", 1600, 144, (0, 3200)),
        (Layout(((8, 8), (8, 8)), ((1, 72), (8, 640))), "none", 1280, 144, None),  # MN-major
    ):
        made = derive(layout, wgmma(64), "A", swizzle=swizzle)
        assert (made.base.leading_bytes, made.base.stride_bytes) == (leading, stride), layout
        assert steps is None or made.k_steps == steps


def test_a_part_of_a_tile_starts_inside_the_pattern():
    tile = smem_tile((128, 128), "bf16", "K", "128B")
    whole = derive(tile, wgmma(64), "A")
    for mn, k in ((0, 64), (64, 0), (64, 96), (8, 16)):
        offset = tile.layout(mn, k)
        part = as_tile(Layout(((8, 8), (16, 2)), ((64, 512), (1, 16))), "bf16", "128B")
        part = dataclasses.replace(part, offset=offset)
        made = derive(part, wgmma(64), "A")
        assert made.word == whole.word and made.k_steps == (2 * offset, 2 * offset + 32)
        block = element_addresses(made.base.at(made.k_steps[1]).word, "K", (64, 16), tile.dtype)
        assert np.array_equal(
            block, np.asarray(tile.byte(mn + np.arange(64)[:, None], k + 16 + np.arange(16)[None, :]))
        )


ATOM = wgmma(64)
REFUSALS = [
    # rows padded to 144 bytes, the classic way to avoid bank conflicts without a swizzle
    (Layout((64, 64), (72, 1)), "none", r"rows of an atom lie 16 bytes apart, the layout's 144 .*\(mn, k\) = \(1, 0\)"),
    (Layout((64, 64), (72, 1)), "128B", r"the layout's 144 \(no swizzle .*\(1, 0\) would be read at byte 144"),
    (Layout((64, 64), (64, 1)), "none", r"the layout's 128 \(swizzle 128B has rows of that many\)"),
    (Layout((64, 64), (64, 1)), "64B", r"lie 64 bytes apart, the layout's 128 \(swizzle 128B .* = \(1, 0\)"),
    (Layout((64, 128), (128, 1)), "128B", r"lie 128 bytes apart, the layout's 256 .* = \(1, 0\)"),
    # consecutive atoms at uneven distances, rows of two atoms interleaved, the K block across spans
    (Layout(((8, 2, 4), 64), ((64, 512, 2048), 1)), "128B", r"no sm_90 descriptor .* = \(16, 0\)"),
    (Layout(((2, 4, 8), 64), ((128, 512, 64), 1)), "128B", r"lie 128 bytes apart, the layout's 256"),
    (Layout(((2, 4, 8), 64), ((64, 256, 1024), 1)), "128B", r"no sm_90 .* element \(mn, k\) = \(2, 0\)"),
    (Layout(((8, 8), (8, 8)), ((64, 512), (1, 4096))), "128B", r"no sm_90 .* \(mn, k\) = \(0, 8\)"),
    (Layout(((8, 8), (4, 16)), ((8, 128), (1, 64))), "none", r"elements 3 and 4 along k are not neighbours"),
    (Layout(((8, 8), (8, 2)), ((8, 64), (1, 516))), "none", r"\(0, 8\) lies 1032 bytes after the first, no"),
    (Layout(((8, 8), (16, 4)), ((64, 512), (1, 20))), "128B", r"the block at k = 16 begins 40 bytes into the tile"),
    (Layout(((8, 8), 64), ((64, 1 << 17), 1)), "128B", "stride_bytes = 262144 does not fit"),
    (Layout((64, 64), (2, 128)), "none", "neither dimension is contiguous"),
    (Layout((32, 64), (64, 1)), "128B", "is 64x16; the tile's 32x64 is no multiple"),
    (Layout((64, 24), (24, 1)), "none", "is 64x16; the tile's 64x24 is no multiple"),
    (Layout(64, 1), "none", "two modes, mn and k"),
    (Swizzle(3, 3, 4, unit=16) @ Layout((64, 64), (64, 1)), None, r"S<3,4,4>\[bytes\] is no swizzle of shared memory"),
    (Swizzle(2, 3, 3, unit=16) @ Layout((64, 64), (64, 1)), None, "lie 64 bytes apart, the layout's 128"),
    (Swizzle(3, 4, 3, unit="bytes") @ Layout((64, 64), (64, 1)), None, "a stride of 1 units of 8 bits"),
    (Swizzle(1, 4, 3) @ (Swizzle(1, 3, 3) @ Layout((64, 64), (64, 1))), None, "more than one swizzle"),
    (Layout((64, 64), (64, 1)), "96B", "unknown shared-memory swizzle '96B'"),
    (smem_tile((64, 64), "bf16", "MN", "128B_ATOM_32B"), None, "swizzle 128B_ATOM_32B is read by tcgen05"),
    (Layout((64, 64), (64, 1)), "128B_ATOM_64B", "swizzle 128B_ATOM_64B is read by no tensor core"),
    (Layout((64, 64), (64, 1)), "128B_ATOM_32B_FLIP_8B", "is read by no tensor core"),
]


@pytest.mark.parametrize("layout, swizzle, text", REFUSALS, ids=[str(i) for i in range(len(REFUSALS))])
def test_what_no_word_says_is_refused_with_its_reason(layout, swizzle, text):
    with pytest.raises(DescriptorError, match=text):
        derive(layout, ATOM, "A", swizzle=swizzle)


@pytest.mark.parametrize(
    "read, major, swizzle, text",
    [
        (wgmma_read("e4m3", 64), "MN", "128B", "the instruction reads K-major e4m3 operands only"),
        (wgmma_read("tf32", 64), "MN", "32B", "reads K-major tf32 operands only"),
        (wgmma_read("i8", 64), "MN", "none", "reads K-major i8 operands only"),
        (tcgen05_read("tf32", "tf32", 128), "MN", "128B", "MN-major operands of 32 bits only with 128B_ATOM_32B"),
        (tcgen05_read("f16", "f16", 128), "MN", "128B_ATOM_32B", "of 16 bits with every swizzle but 128B_ATOM_32B"),
        (tcgen05_read("mxf4", "e2m1", 256), "MN", "128B", "reads K-major e2m1 operands only"),
        (tcgen05_read("f8f6f4", "e2m3", 128), "MN", "128B_ATOM_32B", "of 6 bits with every swizzle but"),
        (operand_read(tcgen05_mma("f8f6f4", 128, 8, "e4m3"), "B"), "MN", "none", "reads K-major e4m3 operands only"),
        (tcgen05_read("tf32", "tf32", 128), "K", "128B_ATOM_32B", "exists for MN-major operands only"),
        (tcgen05_read("f8f6f4", "e4m3", 128, "B", sparse=True), "K", "32B", "64 elements along k are 64 bytes, wider"),
    ],
)
def test_layouts_that_the_instruction_does_not_read_are_refused(read, major, swizzle, text):
    tile = smem_tile((256, 256), read.dtype, major, swizzle, read.packing)
    with pytest.raises(DescriptorError, match=text):
        derive(tile, read, read.name)


def test_operands_without_a_descriptor_are_refused():
    held = dataclasses.replace(wgmma(64), a_source="rmem")
    with pytest.raises(DescriptorError, match="is in rmem: no shared-memory descriptor names it"):
        operand_read(held, "A")
    with pytest.raises(DescriptorError, match="operand A or B, not 'C'"):
        operand_read(wgmma(64), "C")
    with pytest.raises(DescriptorError, match=r"takes no shared-memory descriptor; wgmma and tcgen05.mma do"):
        operand_read(dataclasses.replace(wgmma(64), ptx="mma.sync"), "A")
    with pytest.raises(DescriptorError, match="is operand A; operand 'B' was asked for"):
        operand_read(wgmma_read("bf16", 64), "B")
    for call, text in (
        (lambda: tcgen05_read("f16", "e4m3", 128), "kind::f16 takes f16, bf16, not e4m3"),
        (lambda: tcgen05_read("f15", "e4m3", 128), "no kind 'f15'"),
        (lambda: tcgen05_read("f16", "f16", 128, "D"), "operand A or B"),
    ):
        with pytest.raises(DescriptorError, match=text):
            call()


def test_two_blocks_share_an_operand_and_sparse_operands_store_half():
    atom = tcgen05_mma("f16", 256, 128, cta_group=2)
    assert [(r.rows, r.depth) for r in (operand_read(atom, "A"), operand_read(atom, "B"))] == [(128, 16), (64, 16)]
    sparse = tcgen05_mma("f16", 128, 64, sparse=True)
    assert [operand_read(sparse, name).depth for name in "AB"] == [16, 32]
    with pytest.raises(DescriptorError, match="is in tmem: no shared-memory descriptor names it"):
        operand_read(tcgen05_mma("f16", 128, 64, a_source="tmem"), "A")
    # an atom and what it reads give the same descriptor
    tile = smem_tile((128, 64), "bf16", "K")
    atom = tcgen05_mma("f16", 256, 256, "bf16", cta_group=2)
    for name in "AB":
        assert derive(tile, atom, name).word == derive(tile, tcgen05_read("f16", "bf16", 128, name), name).word


def test_a_tile_at_an_address_between_the_periods_needs_its_base_offset():
    tile = smem_tile((64, 64), "bf16", "K", "128B")
    made = derive(tile, ATOM, "A")
    with pytest.raises(
        DescriptorError, match=r"address 0x480 is not aligned to 1024: .* line 1 of 8; say pattern_start=0x480"
    ):
        made.at(0x480)
    for start in range(0, 1024, 128):
        fields = made.at(start, 2, pattern_start=start)
        assert fields.base_offset == start // 128
        have = element_addresses(fields.word, "K", (64, 16), tile.dtype)
        k = 32 + np.arange(16)[None, :]
        assert np.array_equal(have, start + np.asarray(tile.byte(np.arange(64)[:, None], k)))
    for address, start in ((0x480, 0x440), (0x480, 0x400)):
        with pytest.raises(DescriptorError, match="a pattern at"):
            made.at(address, pattern_start=start)


def test_stages_and_blocks_are_counted():
    tile = smem_tile((128, 64), "bf16", "K", "64B")
    made = derive(tile, ATOM, "A")
    assert made.stage_bytes == tile.bytes and made.mn_steps == (0, 64 * 64)
    assert made.stage(3, 512, k_block=2, mn_block=1).address == 512 + 3 * tile.bytes + 8192 + 4096
    assert made.advance(3, 1) == (made.k_steps[3] + 4096) // 16
    assert derive(tile, ATOM, "A", stage_bytes=32768).stage(2).address == 65536
    with pytest.raises(DescriptorError, match="stages of 16400 bytes; the tile's address must stay a multiple of 512"):
        derive(tile, ATOM, "A", stage_bytes=16400)
    for call, text in (
        (lambda: made.advance(4), "4 block.s. along K; there is no block 4"),
        (lambda: made.advance(0, 2), "2 block.s. along M or N"),
        (lambda: made.advance(True), "k_block of OperandDescriptor.advance must be an integer, not True"),
        (lambda: made.stage(-1), "no stage -1"),
        (lambda: made.stage(20).word, "address = 327680 does not fit"),
    ):
        with pytest.raises(DescriptorError, match=text):
            call()
    with pytest.raises(DescriptorError, match="are no layout"):
        layout_of_values((0, 2, 5, 6))
    assert str(layout_of_values((7,))) == "1:0"
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_k_tile_of_48_bytes_goes_on_at_the_absolute_leading_address():
    """sm_103a: four of them lie in a ring of 128-byte lines, and the third begins in one line and ends in the next."""
    line, ring, rows = 128, (0x4000, 0x8000), 16
    for start in (0, 48, 96):
        first = SmemDescriptor("128B", 1024, ring[1], 0, ring[0] + start, 1, "sm_100a")
        found = element_bits(first.word, "K", (rows, 96), dtype("e2m1"), "sm_100a", "packed")
        for row, k in itertools.product(range(rows), range(96)):
            byte = start + k // 2
            place = ring[byte // line] + row * line + byte % line
            place ^= (place >> 7 & 7) << 4
            assert found[row, k] == place * 8 + k % 2 * 4, (start, row, k)
    with pytest.raises(DescriptorError, match="48 bytes along K from byte 96 of a line leave it"):
        element_bits(
            dataclasses.replace(first, leading_mode=0).word, "K", (rows, 96), dtype("e2m1"), "sm_100a", "packed"
        )


FLIPPED = [("K", "128B", "f16", "bf16"), ("MN", "64B", "f8f6f4", "e4m3"), ("MN", "128B_ATOM_32B", "tf32", "tf32")]
FLIPPED += [("K", "none", "mxf4", "e2m1"), ("MN", "none", "f16", "f16"), ("K", "32B", "f8f6f4", "e3m2")]


@pytest.mark.parametrize("major, swizzle, kind, name", FLIPPED)
def test_any_flipped_bit_of_an_sm100_word_moves_an_element_or_is_ignored_or_refused(major, swizzle, kind, name):
    read = tcgen05_read(kind, name, 128)
    tile = smem_tile((128, 256), name, major, swizzle, read.packing)
    made = derive(tile, read, "A")
    ignored = set()
    for bit in range(64):
        field = next((f for f in made.base.table.fields if f.mask >> bit & 1), None)
        try:
            changed = SmemDescriptor.decode(made.word ^ 1 << bit, "sm_100a")
        except DescriptorError:
            assert field is None or field.name in ("version", "swizzle_mode")
            continue
        if field.name == "leading_mode":
            with pytest.raises(DescriptorError, match="only K-major operands of 48 bytes"):
                first_misfit(dataclasses.replace(made, base=changed), tile, read, "A")
            continue
        if field.name == "address":
            assert changed.address
            continue
        try:
            misfit = first_misfit(dataclasses.replace(made, base=changed), tile, read, "A")
        except DescriptorError:  # another swizzle may have no such layout at all
            assert field.name == "swizzle_mode"
            continue
        if misfit is None:
            ignored.add(field.name)
    # where a K block lies in one span, nothing is between spans; and only the longest pattern has 8 different lines
    expected = {"leading_bytes"} if major == "K" and swizzle != "none" else set()
    expected |= {"base_offset"} if swizzle != "128B" else set()
    assert ignored == expected
