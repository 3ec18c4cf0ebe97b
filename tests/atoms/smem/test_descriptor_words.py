"""Descriptor words as fields: round trips of every table, published constants, naming a word, telling two apart."""

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import SmemDescriptor, decode, describe, diff, smem_tile, tcgen05_read, wgmma
from layoutgemm.atoms.smem.descriptor import SM90, SM100, Field, FieldTable, derive
from layoutgemm.atoms.smem.instruction_descriptor import TABLES
from layoutgemm.errors import DescriptorError

# What the CuTe DSL derives for a 128x64 bf16 tile of A: constant and advance per K block in units of 16 bytes.
PUBLISHED = [
    ("K", "128B", 0x4000004000010000, 0x4000404000010000, "4:2"),
    ("K", "64B", 0x8000002000010000, 0x8000402000010000, "(2,2):(2,512)"),
    ("K", "32B", 0xC000001000010000, 0xC000401000010000, "4:256"),
    ("K", "none", 0x0000000800800000, 0x0000400800800000, "4:256"),
    ("MN", "128B", 0x4000004000000000, 0x4000404002000000, "4:128"),
    ("MN", "64B", 0x8000002001000000, 0x8000402001000000, "4:64"),
    ("MN", "32B", 0xC000001000800000, 0xC000401000800000, "4:32"),
    ("MN", "none", 0x0000004000080000, 0x0000404000080000, "4:16"),
]


@pytest.mark.parametrize("major, swizzle, hopper, blackwell, advance", PUBLISHED)
def test_published_words_of_both_architectures(major, swizzle, hopper, blackwell, advance):
    tile = smem_tile((128, 64), "bf16", major, swizzle)
    on_hopper = derive(tile, wgmma(64), "A")
    # wgmma reads 64 of the rows at a time, tcgen05 all 128: with one span of 64 the leading offset is not used
    on_blackwell = derive(tile, tcgen05_read("f16", "bf16", 128), "A")
    assert (hex(on_hopper.word), hex(on_blackwell.word)) == (hex(hopper), hex(blackwell))
    assert str(on_hopper.k_advance) == str(on_blackwell.k_advance) == advance
    assert [on_hopper.advance(block) for block in range(4)] == list(on_hopper.k_advance.offsets())


@pytest.mark.parametrize("table", [SM90, SM100, *TABLES.values()], ids=lambda table: table.name)
def test_every_table_encodes_what_it_decodes(table):
    rng = np.random.default_rng(1)
    for _ in range(300):
        values = {}
        for field in table.fields:
            legal = [value for value, _ in field.choices] or [int(rng.integers(1 << field.width)) << field.shift]
            values[field.name] = legal[int(rng.integers(len(legal)))]
        word = table.encode(values)
        assert table.decode(word) == values and not table.diff(word, word)
        # one bit more or less shows as exactly one change, of the field that holds the bit
        bit = int(rng.integers(table.bits))
        (change,) = table.diff(word, word ^ 1 << bit)
        holder = [field.name for field in table.fields if field.mask >> bit & 1]
        assert [change.name] == (holder or ["reserved"])


def test_fields_and_tables_refuse_what_has_no_meaning():
    for table, word, text in (
        (SM90, 1 << 14, "0x4000 sets bits 14, outside the sm_90 fields"),
        (SM90, 1 << 46, "sets bits 46"),
        (SM90, 1 << 64, "is no 64-bit word"),
        (SM90, True, "a word of sm_90 must be an integer, not True"),
        (SM90, "0x1", "a word of sm_90 must be an integer, not '0x1'"),
        (SM100, 0, "version = 0 has no meaning; it is one of 1 1"),
        (SM100, 1 << 46 | 3 << 61, "swizzle_mode = 3 has no meaning"),
        (SM100, 1 << 46 | 1 << 60, "sets bits 60"),
        (TABLES["f16"], 1 << 6, "sets bits 6, outside the kind::f16 fields"),
        (TABLES["f16"], 2 << 7, "a_format = 2 has no meaning; it is one of 0 f16, 1 bf16"),
        (TABLES["mxf4"], 1 << 12, "sets bits 12"),
    ):
        with pytest.raises(DescriptorError, match=text):
            table.decode(word)
    with pytest.raises(DescriptorError, match="values for"):
        SM90.encode({"address": 0})
    with pytest.raises(DescriptorError, match="overlaps another"):
        FieldTable("broken", 8, (Field("a", 0, 4, 0, ""), Field("b", 3, 2, 0, "")), "")
    with pytest.raises(DescriptorError, match="or the end of the word"):
        FieldTable("broken", 8, (Field("a", 6, 4, 0, ""),), "")
    with pytest.raises(DescriptorError, match="swizzle_mode has no value '128B_ATOM_32B'"):
        _ = SmemDescriptor("128B_ATOM_32B", 512, 4096).word
    with pytest.raises(DescriptorError, match="address of SmemDescriptor must be an integer, not True"):
        _ = SmemDescriptor("128B", 1024, 16, address=True).word
    with pytest.raises(DescriptorError, match="the sm_90 descriptor has no leading_mode"):
        _ = SmemDescriptor("128B", 1024, 16, leading_mode=1).word
    with pytest.raises(DescriptorError, match="sm_80 has no matrix descriptors"):
        SmemDescriptor.decode(0, "sm_80")


def test_no_word_is_legal_on_both_architectures_but_common_modes_are_the_same_bits():
    for name in ("none", "32B", "64B", "128B"):
        hopper = SmemDescriptor(name, 1024, 4096, address=0x400).word
        blackwell = SmemDescriptor(name, 1024, 4096, address=0x400, arch="sm_100a").word
        assert blackwell == hopper | 1 << 46
        with pytest.raises(DescriptorError, match="version"):
            SmemDescriptor.decode(hopper, "sm_100a")
        with pytest.raises(DescriptorError, match="sets bits 46"):
            SmemDescriptor.decode(blackwell, "sm_90a")


def test_a_word_is_named_back_as_the_layouts_that_it_may_mean():
    found = decode(0x8000002001000000)
    assert found.layouts() == {
        "K": "S<2,4,3>[bytes] o ((8,m),32):((32,256),1) x bf16",
        "MN": "S<2,4,3>[bytes] o ((32,m),(8,k)):((1,2048),(32,256)) x bf16",
    }
    assert found.canonical("K", "tf32") == "S<2,4,3>[bytes] o ((8,m),16):((16,128),1) x tf32"
    assert found.canonical("K", "e3m2") == "S<2,4,3>[bytes] o ((8,m),64):((64,512),1) x e3m2 (b6x16_p32)"
    none = decode(0x0000400800800000, "sm_100a")
    assert none.canonical("K", "e4m3") == "S<0,4,3>[bytes] o ((8,m),(16,k)):((16,128),(1,2048)) x e4m3"
    assert none.canonical("MN", "e4m3") == "S<0,4,3>[bytes] o ((16,m),(8,k)):((1,128),(16,2048)) x e4m3"
    atom = SmemDescriptor("128B_ATOM_32B", 512, 4096, arch="sm_100a")
    assert atom.layouts("tf32") == {"MN": "S<2,5,2>[bytes] o ((32,m),(4,k)):((1,1024),(32,128)) x tf32"}
    with pytest.raises(DescriptorError, match="no K-major canonical layout"):
        atom.canonical("K")
    text = describe(atom.word, "sm_100a", "tf32")
    assert "this swizzle has one major:" in text and text.endswith("x tf32") and "128B_ATOM_32B" in text


@pytest.mark.parametrize("major, swizzle, hopper, blackwell, advance", PUBLISHED)
def test_the_name_is_the_layout_that_the_word_was_derived_from(major, swizzle, hopper, blackwell, advance):
    """Parse the named layout with its repetitions filled in: it is the tile's layout again."""
    tile = smem_tile((128, 16) if major == "MN" else (128, 64), "bf16", major, swizzle)
    for arch, rows in (("sm_90a", 64), ("sm_100a", 128)):
        read = wgmma(64) if arch == "sm_90a" else tcgen05_read("f16", "bf16", 128)
        text = decode(derive(tile, read, "A").word, arch).canonical(major)
        body = text.split(" o ")[1].split(" x ")[0]
        inner = tile.span_elements
        m = rows // 8 if major == "K" else max(1, rows // inner)
        k = 2 if major == "MN" else 16 // inner if swizzle == "none" else 0
        named = Layout.parse(body.replace("m)", f"{m})").replace("k)", f"{k})"))
        for mn in (0, 1, 7, 8, min(rows, named[0].size) - 1):
            for depth in (0, 1, 8, 15):
                assert named(mn, depth) == tile.layout(mn, depth), (text, mn, depth)


def test_differences_are_told_in_bytes():
    before, after = 0x4000004000010000, 0x8000402000010040
    assert [str(change) for change in diff(before, after)] == [
        "address: 0 -> 1024 bytes (+1024): start address in shared memory, bytes",
        "stride_bytes: 1024 -> 512 bytes (-512): stride dimension byte offset",
        "swizzle_mode: 128B -> 64B: spans of 128 -> 64 bytes, chunks moved by S<3,4,3> -> S<2,4,3>",
        "reserved: bits 46, outside every field: 0x0 -> 0x400000000000",
    ]
    assert [str(change) for change in diff(before, after, "sm_100a")][2:] == [
        "version: 0 (no meaning) -> 1: constant 0b001",
        "swizzle_mode: 128B -> 64B: spans of 128 -> 64 bytes, chunks moved by S<3,4,3> -> S<2,4,3>",
    ]
    (change,) = diff(0x8400490, 0x8410490, kind="f16")
    assert (change.name, change.before, change.after) == ("b_major", 0, 1)
    assert diff(before, before) == ()
    with pytest.raises(DescriptorError, match="no kind 'f17'"):
        diff(0, 1, kind="f17")


def test_explanations_give_every_field_and_the_reason():
    text = derive(smem_tile((128, 64), "bf16", "MN", "64B"), tcgen05_read("f16", "bf16", 128), "A").explain()
    for line in (
        "  [16,30) leading_bytes  0x100  4096 bytes: leading dimension byte offset; from mn = 0 to mn = 32, "
        "the next span",
        "  [32,46) stride_bytes    0x20   512 bytes: stride dimension byte offset; from k = 0 to k = 8, the next atom",
        "  [46,49) version          0x1     1      : constant 0b001",
        "  [61,64) swizzle_mode     0x4   64B      : 0 none, 1 128B_ATOM_32B, 2 128B, 4 64B, 6 32B; "
        "the layout's S<2,4,3>[bytes]",
        "  advance per K block, bytes: 0, 1024, 2048, 3072 (0, 64, 128, 192 in 16-byte units)",
    ):
        assert line in text.splitlines(), text
