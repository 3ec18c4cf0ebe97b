"""tcgen05.mma, its copies and its epilogue: published rows, laws, refusals, and tensor memory simulated in NumPy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import wgmma
from layoutgemm.atoms.copy.tmem import FRAGMENTS, repetitions, tcgen05_copies, tcgen05_cp, tcgen05_ld, tcgen05_st
from layoutgemm.atoms.mma.tcgen05 import KINDS, legal_m, legal_n, tcgen05_mma, tcgen05_mma_atoms
from layoutgemm.atoms.tmem.fragment import accumulator_fragment
from layoutgemm.atoms.tmem.layout import block_scale_layout, scale_chunk, scale_factors
from layoutgemm.errors import AtomError, LayoutError
from layoutgemm.layouts import E
from layoutgemm.layouts.symbols.dims import dim

VECTORS = Path(__file__).parents[2] / "vectors" / "tv_vectors.json"
MMA = re.compile(r"tcgen05\.mma\.cta(\d)\.m(\d+)n(\d+)k(\d+)\.([\w.]+)\.(SS|TS)")
COPY = re.compile(r"tcgen05\.(Ld|St)(\w+)Op\.x(\d+)")


def as_tuple(nested):
    return tuple(map(as_tuple, nested)) if isinstance(nested, list) else nested


def place(value):
    """(lane, column, bit) of a place that may lack its last entries."""
    return tuple(value) + (0,) * (3 - len(value))


# ------------------------------------------------------------ published rows


def test_published_thread_value_layouts():
    compared = {"mma": 0, "copy": 0}
    for row in json.loads(VECTORS.read_text())["rows"]:
        theirs = Layout(as_tuple(row["shape"]), as_tuple(row["stride"]))
        if found := MMA.fullmatch(row["atom"]):
            group, m, n, _, types, source = found.groups()
            *c, a = types.split(".")
            kind = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "i8": "i8"}.get(a, "f8f6f4")
            where = "smem" if source == "SS" else "tmem"
            atom = tcgen05_mma(kind, int(m), int(n), a, c=c[0] if c else None, cta_group=int(group), a_source=where)
            ours = atom.layout(row["operand"])
        elif found := COPY.fullmatch(row["atom"]):
            way, shape, repeat = found.groups()
            ours = (tcgen05_ld if way == "Ld" else tcgen05_st)(shape, int(repeat)).layout(row["operand"])
        else:
            assert not row["atom"].startswith("tcgen05"), row["atom"]
            continue
        assert ours.equivalent(theirs), (row["atom"], row["operand"], str(ours), str(theirs))
        compared[row["kind"]] += 1
    assert compared["mma"] > 50 and compared["copy"] > 30, compared


# ------------------------------------------------------------ products


def test_blocks_share_a_product_without_overlap():
    seen = 0
    for atom in tcgen05_mma_atoms():
        if atom.a_source == "tmem" or atom.a_dtype != atom.b_dtype or atom.shape_mnk[1] > 32:
            continue
        for operand in "ABC":
            assert atom.layout(operand).is_bijective(), (atom, operand)
            assert atom.layout(operand)[0].size == atom.cta_group
        if atom.scale is not None:
            assert atom.scale.layout_A.is_bijective()
            own = atom.scale.layout_B
            assert set(own[0].offsets()) == {0} and own[1].is_bijective()  # both blocks scale by every row of B
        seen += 1
    assert seen > 60


def test_every_legal_n():
    assert legal_n("f16") == tuple(range(8, 257, 8)) and legal_n("mxf4", 2) == tuple(range(16, 257, 16))
    assert legal_n("i8", 2) == tuple(range(32, 257, 32)) and 40 not in legal_n("i8") and 24 in legal_n("i8")
    assert {atom.shape_mnk[1] for atom in tcgen05_mma_atoms("tf32", every_n=True)} == set(legal_n("tf32"))
    assert legal_m("mxf8f6f4") == (128,) and legal_m("mxf8f6f4", 2, sparse=True) == (256,)


@pytest.mark.parametrize(
    "arguments,says",
    (
        (("fp16", 128, 64), "PTX allows f16, tf32, f8f6f4"),
        (("f16", 256, 64), "M of kind::f16, cta_group::1 = 256: PTX allows 64, 128"),
        (("f16", 64, 64, "f16", None, None, 2), "cta_group::2 = 64: PTX allows 128, 256"),
        (("mxf4", 64, 64), "PTX allows 128"),
        (("f16", 128, 12), "N of kind::f16"),
        (("f16", 128, 0), "N of kind::f16"),
        (("f16", 128, 264), "N of kind::f16"),
        (("f16", 128, 8, "f16", None, None, 2), "N of kind::f16, cta_group::2 = 8: PTX allows 16"),
        (("i8", 128, 40), "8, 16, 24, 32, 48"),
        (("f16", 128, True), "n of tcgen05_mma must be an integer, not True (bool)"),
        (("f16", 128.0, 64), "m of tcgen05_mma must be an integer, not 128.0 (float)"),
        (("f16", 128, 64.0), "n of tcgen05_mma must be an integer"),
        (("f16", 128, 64, "e4m3"), "the type of A of kind::f16"),
        (("f16", 128, 64, "f16", None, None, True), "cta_group of tcgen05_mma must be an integer"),
        (("f16", 128, 64, "f16", "bf16"), "multiplies equal types, not A f16 with B bf16"),
        (("f16", 128, 64, "f16", "bf16"), "multiplies equal types"),
        (("f16", 128, 64, "bf16", None, "f16"), "accumulator of kind::f16 with bf16 inputs = 'f16': PTX allows f32"),
        (("i8", 128, 64, "i8", None, "f32"), "PTX allows i32"),
        (("mxf8f6f4", 128, 64, "e4m3", None, "f16"), "PTX allows f32"),
        (("f16", 128, 64, "f16", None, None, 3), "cta_group = 3: PTX allows 1, 2"),
        (("f16", 128, 64, "f16", None, None, 1, "rmem"), "PTX allows smem, tmem"),
        (("f16", 128, 64, "f16", None, None, 1, "smem", "ue8m0"), "no block scales; PTX has them for kind::mxf8f6f4"),
        (("mxf4", 128, 64, "e2m1", None, None, 1, "smem", "ue4m3"), "PTX allows ue8m0"),
        (("mxf4nvf4", 128, 64, "e2m1", None, None, 1, "smem", "ue4m3", 32), "= 32: PTX allows 16"),
        (("mxf4", 128, 64, "e2m1", None, None, 1, "smem", None, None, 128), "K of kind::mxf4 = 128: PTX allows 64, 96"),
        (("mxf4", 128, 64, "e2m1", None, None, 2, "smem", None, None, 96), "PTX allows 256"),
        (("f8f6f4", 128, 64, "e2m1", None, None, 1, "smem", None, None, 64), "PTX allows e4m3, e5m2"),
    ),
)
def test_illegal_products_say_what_ptx_allows(arguments, says):
    with pytest.raises(AtomError, match=re.escape(says)):
        tcgen05_mma(*arguments)


def test_illegal_forms_say_what_ptx_allows():
    with pytest.raises(AtomError, match=r"kind::mxf4 has no \.ws form; PTX has it for kind::f16, kind::tf32"):
        tcgen05_mma("mxf4", 128, 64, ws=True)
    with pytest.raises(AtomError, match=r"cta_group of tcgen05\.mma\.ws = 2: PTX allows 1"):
        tcgen05_mma("f16", 128, 64, cta_group=2, ws=True)
    with pytest.raises(AtomError, match="= 256: PTX allows 64, 128"):
        tcgen05_mma("f16", 64, 256, ws=True, sparse=True)
    with pytest.raises(AtomError, match="reads A from shared memory"):
        _ = tcgen05_mma("f16", 128, 64).operand_a
    with pytest.raises(AtomError, match="has no scale factors"):
        tcgen05_mma("f16", 128, 64).scale_layout("A")


def test_majors_follow_type_source_and_n():
    both, k_only = ("K", "MN"), ("K",)
    assert tcgen05_mma("f16", 128, 8).b_majors == both
    assert tcgen05_mma("f8f6f4", 128, 24).b_majors == k_only and tcgen05_mma("f8f6f4", 128, 32).b_majors == both
    assert tcgen05_mma("i8", 256, 32, cta_group=2).b_majors == both
    assert tcgen05_mma("f8f6f4", 256, 48, cta_group=2).b_majors == k_only
    assert tcgen05_mma("f16", 128, 64, a_source="tmem").a_majors == k_only
    assert tcgen05_mma("mxf4", 128, 64).a_majors == tcgen05_mma("mxf4", 128, 64).b_majors == k_only


def test_scale_factors_of_one_instruction():
    """PTX, "Valid combinations of scale_vectorsize and shapes": columns of scale_A by kind, block and K."""
    columns = {
        ("mxf8f6f4", None, None, False): 1,
        ("mxf8f6f4", None, None, True): 1,
        ("mxf4", None, None, False): 2,
        ("mxf4", None, None, True): 2,
        ("mxf4", None, 96, False): 3,
        ("mxf4nvf4", 16, None, False): 4,
        ("mxf4nvf4", 16, None, True): 4,
        ("mxf4nvf4", 32, None, False): 2,
        ("mxf4nvf4", 16, 96, False): 6,
        ("mxf4nvf4", 32, 96, False): 3,
    }
    for (kind, vector, k, sparse), count in columns.items():
        scale = "ue8m0" if vector == 32 else None
        atom = tcgen05_mma(kind, 128, 64, scale=scale, vector=vector, k=k, sparse=sparse)
        assert atom.scale.layout_A.size == 128 * count and atom.scale.layout_B.size == 64 * count, (kind, vector, k)
        assert atom.scale.vector * count == atom.shape_mnk[2]
        assert str(atom).endswith(f".block{vector or 32}")


def test_names_and_architectures():
    assert str(tcgen05_mma("f16", 32, 64, ws=True, sparse=True)) == "tcgen05.mma.ws.sp.cta_group::1.kind::f16"
    assert str(tcgen05_mma("mxf8f6f4", 128, 64)).endswith("kind::mxf8f6f4.block_scale.block32")
    assert tcgen05_mma("i8", 128, 64, "u8", "i8").archs == ("sm_100a", "sm_110a")
    assert tcgen05_mma("mxf4", 128, 64, k=96).archs == ("sm_103a",)
    assert tcgen05_mma("mxf4nvf4", 128, 64, k=128).archs == ("sm_107a",)
    assert tcgen05_mma("f8f6f4", 128, 64, sparse=True).shape_mnk == (128, 64, 64)
    assert tcgen05_mma("f8f6f4", 128, 64, "e2m1", sparse=True).archs == KINDS["f8f6f4"].archs
    assert tcgen05_mma("f16", 128, 64).c_source == "tmem" and tcgen05_mma("f16", 128, 64).accumulator_registers == 0


# ------------------------------------------------------------ loads, stores, copies


def test_registers_are_those_of_the_ptx_table():
    each = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
    assert set(each) == set(FRAGMENTS)
    for shape, registers in each.items():
        assert repetitions(shape)[-1] * registers == 128
        for repeat in repetitions(shape):
            for element in ("f32", "f16", "u8", "e2m1"):
                assert tcgen05_ld(shape, repeat, element=element).registers == registers * repeat
            assert tcgen05_st(shape, repeat, unpack=True, element="bf16").registers == registers * repeat


def test_a_load_reads_each_place_of_its_region_once():
    for atom in tcgen05_copies():
        if "rmem" not in (atom.source, atom.target) or atom.repeat > 32:
            continue
        fragment = FRAGMENTS[atom.shape]
        places = np.stack(place(np.broadcast_arrays(*place(atom.tmem.offsets()))), axis=-1)
        wide = fragment.columns * atom.repeat * (2 if atom.pack else 1) * (2 if atom.shape == "16x32bx2" else 1)
        assert len(np.unique(places, axis=0)) == atom.tmem.size == fragment.lanes * wide, atom
        assert places[:, 0].max() == fragment.lanes - 1 and places[:, 1].max() == wide - 1
        registers = atom.layout_dst if atom.target == "rmem" else atom.layout_src
        assert registers.is_bijective() and registers.size == atom.tmem.size


def test_the_reference_tile_and_the_places_tell_one_story():
    for shape in FRAGMENTS:
        for element, per_word in (("f32", 1), ("f16", 2), ("u8", 4)):
            atom = tcgen05_ld(shape, 4, element=element)
            row = 4 * FRAGMENTS[shape].columns * (2 if shape == "16x32bx2" else 1)
            index = atom.layout_dst.offsets()
            lane, column, bit = place(atom.tmem.offsets())
            want = np.asarray(lane) * row * per_word + np.asarray(column) * per_word + np.asarray(bit) * per_word // 32
            assert np.array_equal(np.broadcast_to(want, index.shape), index), (shape, element)


def test_packing_reads_two_columns_for_each_register():
    plain, packed = tcgen05_ld("16x256b", 2), tcgen05_ld("16x256b", 2, pack=True, element="f16")
    for thread in range(32):
        for register in range(8):
            lane, column = plain.tmem(thread, register)
            for half in (0, 1):
                assert packed.tmem(thread, 2 * register + half) == (lane, 2 * column + half)


def test_the_half_split():
    assert tcgen05_ld("16x32bx2", 8).split == 8 and tcgen05_ld("16x32bx2", 8, pack=True, element="f16").split == 16
    atom = tcgen05_ld("16x32bx2", 2, split=100)
    assert atom.tmem(17, 1) == (1, 101) and atom.tmem(1, 1) == (1, 1)
    # the reference tile keeps its numbers: halves side by side, wherever they lie
    assert atom.layout_dst == tcgen05_ld("16x32bx2", 2).layout_dst


@pytest.mark.parametrize(
    "make,arguments,says",
    (
        (tcgen05_ld, ("16x512b", 1), "has the shapes 32x32b, 16x64b"),
        (tcgen05_ld, ("16x256b", 64), "x1, x2, x4, x8, x16, x32, not 64"),
        (tcgen05_st, ("16x128b", 128), "not 128"),
        (tcgen05_ld, ("32x32b", 3), "not 3"),
        (tcgen05_ld, ("32x32b", True), "not True"),
        (tcgen05_ld, ("32x32b", 4, True), "holds two 16-bit elements, not f32"),
        (tcgen05_ld, ("32x32b", 4, False, None, "e3m2"), "whole elements"),
        (tcgen05_ld, ("32x32b", 4, False, None, "f64"), "whole elements"),
        (tcgen05_ld, ("32x32b", 4, False, 4), "only 16x32bx2 has a half split"),
        (tcgen05_ld, ("16x32bx2", 4, False, 512), "0..511 columns, not 512"),
        (tcgen05_ld, ("16x64b", 4, False, None, "f32", "max"), "the shapes 32x32b and 16x32bx2 from x2 on"),
        (tcgen05_ld, ("32x32b", 1, False, None, "f32", "max"), "not 32x32b.x1"),
        (tcgen05_ld, ("32x32b", 4, False, None, "i32", "max.abs"), "not 'max.abs' of i32"),
        (tcgen05_ld, ("32x32b", 4, False, None, "f16", "max"), "not 'max' of f16"),
        (tcgen05_cp, ("64x128b",), "64x128b.warpx2::02_13"),
        (tcgen05_cp, ("32x128b", "warpx2::02_13"), "32x128b.warpx4"),
        (tcgen05_cp, ("128x256b", "", 3), "is 1 or 2, not 3"),
        (tcgen05_cp, ("128x256b", "", 1, "b8x16"), "decompresses b6x16_p32, b4x16_p64"),
    ),
)
def test_illegal_copies_say_what_there_is(make, arguments, says):
    with pytest.raises(AtomError, match=re.escape(says)):
        make(*arguments)


def test_copies_from_shared_memory_reach_the_quarters_they_name():
    def quarters(shape, multicast):
        atom = tcgen05_cp(shape, multicast)
        out: dict[int, set[int]] = {}
        rows, _, copies = (atom.tmem[i].size for i in range(3))
        for row in range(rows):
            for copy in range(copies):
                lane, column, bit = place(atom.tmem(row, 37, copy))
                assert (column, bit) == (1, 5)
                assert lane % 32 == row % 32 or shape == "4x256b"
                out.setdefault(row // 32 if shape != "4x256b" else row, set()).add(lane // 32)
        return out

    assert quarters("128x128b", "") == {0: {0}, 1: {1}, 2: {2}, 3: {3}}
    assert quarters("4x256b", "") == {0: {0}, 1: {1}, 2: {2}, 3: {3}}
    assert quarters("64x128b", "warpx2::02_13") == {0: {0, 2}, 1: {1, 3}}
    assert quarters("64x128b", "warpx2::01_23") == {0: {0, 1}, 1: {2, 3}}
    assert quarters("32x128b", "warpx4") == {0: {0, 1, 2, 3}}


def test_a_copied_chunk_of_scale_factors_lies_where_the_product_reads_it():
    copy = tcgen05_cp("32x128b", "warpx4")
    # byte of the chunk -> (row of 16 bytes, bit within it)
    byte = Layout((16, 32), (8 * E(1), E(0)))
    landed = copy.tmem.compose(byte.compose(scale_chunk()))
    home = scale_factors(128, 4).layout
    assert landed.equivalent(Layout.join(home[0], home[1]))
    assert copy.tmem[2] == home[2]  # the four copies


def test_block_scales_lie_as_cublas_documents():
    """Tiles of 128 x 4 factors, those along K first; each row's four in the 16 bytes of its 32nd."""
    for rows, k, vector in ((128, 4, 1), (200, 5, 1), (300, 1000, 32), (256, 192, 16)):
        layout = block_scale_layout(rows, k, vector)
        tiles = -(-k // (4 * vector))
        row, at = np.arange(rows)[:, None], np.arange(k)
        factor = at // vector
        byte = (row // 128 * tiles + factor // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + factor % 4
        assert (layout(row, at) == byte).all() and layout.cosize == -(-rows // 128) * tiles * 512
    M, K = dim("M", multiple_of=128), dim("K", multiple_of=64)
    assert block_scale_layout(M, K, 16).at(M=256, K=192) == block_scale_layout(256, 192, 16)
    for wrong in ((0, 4), (4, 4, 0), (4.0, 4), (dim("M"), 4)):
        with pytest.raises(LayoutError, match=r"rows|vector|128"):
            block_scale_layout(*wrong)
    assert tcgen05_cp("32x128b.warpx4") == tcgen05_cp("32x128b", "warpx4")


def test_reducing_loads_move_what_plain_ones_do():
    for shape in ("32x32b", "16x32bx2"):
        plain, reducing = tcgen05_ld(shape, 16, element="i32"), tcgen05_ld(shape, 16, element="i32", reduce="min")
        assert (plain.tmem, plain.layout_dst) == (reducing.tmem, reducing.layout_dst)
        assert str(reducing) == f"tcgen05.ld.red.sync.aligned.{shape}.x16.min.s32"
        assert (plain.reduction, reducing.reduction) == ("", "min") and reducing.archs == ("sm_103a", "sm_110a")


def test_decompression():
    six, four = (tcgen05_cp("128x256b", source_format=name) for name in ("b6x16_p32", "b4x16_p64"))
    assert str(six) == "tcgen05.cp.cta_group::1.128x256b.b8x16.b6x16_p32"
    assert [six.unpacked(e) for e in (0, 1, 15, 16)] == [0, 6, 90, 128]
    assert [four.unpacked(e) for e in (0, 1, 15, 16)] == [0, 4, 60, 128]
    assert tcgen05_cp("128x256b").unpacked is None


# ------------------------------------------------------------ the epilogue

# letter -> (M, cta_group, .ws)
EPILOGUES = {"A": (256, 2, False), "B": (128, 2, False), "D": (128, 1, False), "F": (64, 1, False), "E": (64, 1, True),
             "G": (32, 1, True)}  # fmt: skip


def arrays(value):
    """(lane, column, bit) as arrays of one length."""
    return np.broadcast_arrays(*place(value))


@pytest.mark.parametrize("shape", FRAGMENTS)
@pytest.mark.parametrize("letter", EPILOGUES)
def test_four_warps_read_what_the_fragment_says(letter, shape):
    """Tensor memory as an array: the accumulator written by its layout, each load executed, the registers compared."""
    m, group, ws = EPILOGUES[letter]
    for packed in (False, True):
        element = "f16" if packed else "f32"
        atom = tcgen05_mma("f16", m, 128, c=element, cta_group=group, ws=ws)
        ld = tcgen05_ld(shape, 2, packed, element=element)
        assert atom.datapath.letter == letter
        if letter == "F" and shape == "32x32b":
            with pytest.raises(AtomError, match=r"what accumulator, layout F.* does not hold.*reads lane 16, column 0"):
                accumulator_fragment(atom, ld)
            continue
        fragment = accumulator_fragment(atom, ld)
        rows = m // group
        tensor_memory = np.full((128, 512), -1)
        home = atom.accumulator.layout
        lanes, columns, _ = arrays(home.offsets())
        tensor_memory[lanes, columns] = np.arange(rows * 128)  # element (i, j) is number i + rows*j
        held = np.zeros(rows * 128, dtype=int)
        lane, column, _ = arrays(ld.tmem.offsets())
        thread, value = (np.asarray(c) for c in np.divmod(np.arange(ld.tmem.size), 32)[::-1])
        for warp in range(4):
            for issue in range(fragment.issues.size):
                first_lane, first_column, _ = place(fragment.issues(issue))
                got = tensor_memory[32 * warp + first_lane + lane, first_column + column]
                i, j = fragment.coords(thread + 32 * warp, value + ld.tmem[1].size * issue)
                assert np.array_equal(got, i + rows * np.asarray(j)), (warp, issue)
                np.add.at(held, got, 1)
        assert (held == 1).all() and fragment.coords.size == m * 128
        assert fragment.place.ok and fragment.once.ok
        assert fragment.registers == ld.registers * fragment.issues.size
        if group == 2:  # the second block of the pair holds the lower half of the rows, in the same way
            i, j = fragment.coords(128 + 5, 1)
            assert (i - rows, j) == tuple(fragment.coords(5, 1))


def test_a_fragment_of_16x256b_is_the_one_of_wgmma():
    ours = accumulator_fragment(tcgen05_mma("f16", 64, 64), tcgen05_ld("16x256b", 8)).coords
    assert ours.equivalent(wgmma(64).coords_C)


@pytest.mark.parametrize("m,group,n", ((128, 1, 256), (64, 1, 24), (128, 2, 48), (256, 2, 240)))
def test_fragments_of_other_n(m, group, n):
    atom = tcgen05_mma("f16", m, n, cta_group=group)
    fragment = accumulator_fragment(atom, tcgen05_ld("16x256b", 1))
    assert fragment.coords.size == m * n and fragment.once.ok


def test_a_split_load_fills_the_gap():
    fragment = accumulator_fragment(tcgen05_mma("f16", 64, 64), tcgen05_ld("16x32bx2", 4, split=16))
    assert [place(fragment.issues(i))[1] for i in range(fragment.issues.size)] == [0, 4, 8, 12, 32, 36, 40, 44]
    assert fragment.once.ok


def test_loads_that_do_not_fit_are_refused():
    atom = tcgen05_mma("f16", 128, 48)
    with pytest.raises(AtomError, match="covers 32 columns at a time; the accumulator's 48"):
        accumulator_fragment(atom, tcgen05_ld("32x32b", 32))
    with pytest.raises(AtomError, match="it must count 32-bit elements"):
        accumulator_fragment(atom, tcgen05_ld("32x32b", 16, pack=True, element="f16"))
    with pytest.raises(AtomError, match="it must count 32-bit elements"):
        accumulator_fragment(atom, tcgen05_ld("32x32b", 16, element="f16"))
    with pytest.raises(AtomError, match="is no load from tensor memory"):
        accumulator_fragment(atom, tcgen05_st("32x32b", 16))
    with pytest.raises(AtomError, match="does not fill the columns once"):
        accumulator_fragment(atom, tcgen05_ld("16x32bx2", 8, split=12))
