"""ldmatrix, stmatrix, movmatrix: their maps against the published ones, their laws, and what they feed."""

import numpy as np
import pytest

from layoutgemm import ComposedLayout, Layout, Swizzle
from layoutgemm.atoms import (
    MmaAtom,
    feeds,
    ldmatrix,
    ldmatrix_m16n8,
    matrix_copies,
    movmatrix,
    operand_map,
    row_addresses,
    smem_tile,
    stmatrix,
    swizzle_of,
    wgmma,
)
from layoutgemm.atoms.copy.base import counted_in, in_bits
from layoutgemm.dtypes import dtype
from layoutgemm.errors import AtomError

ALL = list(matrix_copies())
# mma.sync.m16n8k16 as published: A (m, k), B (n, k) and C (m, n), column-major.
M16N8K16 = MmaAtom(
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", ("sm_80",), (16, 8, 16), dtype("bf16"), dtype("bf16"),
    dtype("f32"), 32, Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128))),
    Layout(((4, 8), (2, 2)), ((16, 1), (8, 64))), Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), "rmem", "rmem", "test",
)  # fmt: skip


def sides(atom):
    memory = "src" if atom.source == "smem" else "dst"
    return memory, "dst" if memory == "src" else "src"


@pytest.mark.parametrize("atom", ALL, ids=str)
def test_each_element_is_in_one_register_and_at_one_address(atom):
    if atom.source == atom.target:
        for side in ("src", "dst"):
            assert sorted(atom.layout(side).offsets()) == list(range(64))
        return
    memory, registers = sides(atom)
    size = atom.layout(registers).size
    assert sorted(atom.layout(registers).offsets()) == list(range(size))
    table = atom.layout(memory).offsets().reshape(-1, 32).T
    named = atom.address_threads(memory)
    assert sorted(table[list(named)].reshape(-1)) == list(range(size))
    assert {tuple(row) for row in table} == {tuple(row) for row in table[list(named)]}
    assert atom.bytes_per_thread(memory) == 16 and atom.bytes_per_thread(registers) * 32 == size * atom.element.bytes
    assert [len(phase) for phase in atom.phases] == [8] * (size * atom.element.bytes // 128)
    reached = [(a.lane, x) for phase in atom.accesses(memory) for a in phase for x in range(a.first, a.first + 1)]
    assert reached == [(lane, table[lane, 0]) for lane in named]


def test_the_words_of_ptx():
    # Row r of a matrix is at the address of lane r; lane l receives elements 2*(l%4) and the next of row l//4, and with
    # .trans those of column l//4.
    for count in (1, 2, 4):
        for lane in range(32):
            for register in range(count):
                for half in range(2):
                    along = 2 * (lane % 4) + half
                    value = 2 * register + half
                    assert ldmatrix(count).layout_dst(lane, value) == 64 * register + 8 * (lane // 4) + along
                    turned = 64 * register + 8 * along + lane // 4
                    assert stmatrix(count, transpose=True).layout_src(lane, value) == turned
    assert ldmatrix(4).coords("dst")(5, 3) == (1, 3, 1)
    assert ldmatrix(4, transpose=True).coords("dst")(5, 3) == (3, 1, 1)


# cute/atom/copy_traits_sm100.hpp: (thread, value) -> bit, source and destination.
HEADER = {
    "SM100_U8x8_LDSM_T": (
        ldmatrix_m16n8(2), "((2,2,4,2),128):((128,1024,256,0),1)", "((4,8),(8,2,2,2)):((256,8),(1,128,64,1024))",
    ),
    "SM100_U8x16_LDSM_T": (
        ldmatrix_m16n8(4), "((2,2,4,2),128):((128,1024,256,2048),1)", "((4,8),(8,2,2,4)):((256,8),(1,128,64,1024))",
    ),
    "SM100_SU4_DU8x16_x1_LDSM_N": (
        ldmatrix(1, "m8n16.b8x16.b4x16_p64"), "((8,4),128):((128,0),1)", "(32,32):(32,1)",
    ),
    "SM100_SU6_DU8x16_x4_LDSM_N": (
        ldmatrix(4, "m8n16.b8x16.b6x16_p32"), "(32,128):(128,1)", "(32,(32,4)):(32,(1,1024))",
    ),
    "SM100_U8x4_STSM_T": (
        stmatrix(1, "m16n8.b8", True), "((4,8),(8,2,2)):((256,8),(1,128,64))", "((8,4),128):((128,0),1)",
    ),
    "SM100_U8x16_STSM_T": (
        stmatrix(4, "m16n8.b8", True), "((4,8),(8,2,2,4)):((256,8),(1,128,64,1024))", "(32,128):(128,1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADER)
def test_maps_of_the_headers(name):
    atom, src, dst = HEADER[name]
    for side, text in (("src", src), ("dst", dst)):
        ours = in_bits(atom.layout(side), atom.element.bits)
        theirs = Layout.parse(text)
        assert ours.equivalent(theirs) and ours[0].size == theirs[0].size, (side, str(ours))


def test_m16n8_loads_are_m16n16_with_rows_and_bytes_exchanged():
    for count in (2, 4):
        seen, real = ldmatrix_m16n8(count), ldmatrix(count // 2, "m16n16.b8", True)
        lane_row = {int(lane): seen.layout_src(lane, 0) // 16 for lane in seen.address_threads("src")}
        for lane in range(32):
            held = []
            for value in range(real.values_per_thread("dst")):
                row, at = divmod(real.layout_dst(lane, value), 16)
                held.append(16 * lane_row[row] + at)  # hardware row `row` is what lane `row` addresses
            assert sorted(held) == sorted(seen.layout_dst(lane, v) for v in range(len(held)))


@pytest.mark.parametrize(
    "make, message",
    (
        (lambda: ldmatrix(3), "ldmatrix m8n8.b16 moves 1, 2 or 4 matrices, not 3"),
        (lambda: ldmatrix(True), "not True"),
        (lambda: ldmatrix(1, "m8n8.b8"), "no form 'm8n8.b8'; PTX allows m8n8.b16, m16n16.b8"),
        (lambda: ldmatrix(1, "m16n16.b8"), "exists only with .trans"),
        (lambda: ldmatrix(4, "m16n16.b8", True), "moves 1 or 2 matrices, not 4"),
        (lambda: ldmatrix(1, "m8n16.b8x16.b4x16_p64", True), "exists only without .trans"),
        (lambda: ldmatrix(1, transpose=1), "transpose of ldmatrix must be True or False, not 1"),
        (lambda: stmatrix(8), "1, 2 or 4 matrices, not 8"),
        (lambda: stmatrix(1, "m16n16.b8", True), "no form 'm16n16.b8'; PTX allows m8n8.b16, m16n8.b8"),
        (lambda: ldmatrix_m16n8(1), "in pairs"),
        (lambda: movmatrix("f32"), "no whole f32 at dst: thread 0, value 0 has bits 0..15 of the tile and then bits"),
        (lambda: ldmatrix(1, element="e2m3"), "moves no whole e2m3 at src"),
        (lambda: ldmatrix(4, element="f64"), "thread 0, value 0 has bits 16..31 of the tile and then bits 1024..1039"),
        (lambda: ldmatrix(4).layout("a"), 'sides "src" and "dst"'),
        (lambda: movmatrix().phases, "no one side is in 'smem'"),
        (lambda: ldmatrix(4).accesses("dst"), "shared-memory side at src"),
        (lambda: ldmatrix(4).accesses("src", lambda lane: lane), "fixes the element of every lane"),
        (lambda: ldmatrix(4).address_threads("dst"), "takes no address at dst"),
    ),
)
def test_refusals(make, message):
    with pytest.raises(AtomError, match=message.replace("(", r"\(")):
        make()


def test_recast_keeps_the_bits():
    done = 0
    for atom in ALL:
        for bits in ("e2m1", "u8", "u16", "u32"):
            try:
                other = atom.recast(bits)
            except AtomError:
                continue
            done += 1
            for side in ("src", "dst"):
                mine, theirs = (in_bits(x.layout(side), x.element.bits) for x in (atom, other))
                assert mine.equivalent(theirs), (str(atom), bits, side)
            assert other.recast(atom.element).layout_dst.equivalent(atom.layout_dst)
    assert done > 80


def test_elements_that_would_be_split_have_no_map():
    assert counted_in(16, Layout((4, 32), (32, 1))) == Layout((4, 2), (2, 1))
    assert counted_in(16, Layout((4, 16), (8, 1))) is None  # threads half an element apart
    assert counted_in(16, Layout((1, (16, 2)), (0, (1, 24)))) is None  # the second value begins inside an element
    assert counted_in(16, Layout((1, (8, 4)), (0, (1, 16)))) is None  # halves
    assert counted_in(16, Layout((1, 24), (0, 1))) is None  # one and a half


# ------------------------------------------------------------ what they feed


def simulated(copy, memory, addresses):
    """The registers after a load: PTX's rule, element by element, from bytes of memory."""
    side = sides(copy)
    width = copy.values_per_thread(side[0])
    tile = np.concatenate([memory[addresses[lane] : addresses[lane] + width] for lane in copy.address_threads(side[0])])
    return tile[copy.layout(side[1]).offsets()].reshape(-1, 32)


FED = (
    (ldmatrix(4), "A", "K", (1, 1)),
    (ldmatrix(4, transpose=True), "A", "MN", (1, 1)),
    (ldmatrix(2), "B", "K", (1, 1)),
    (ldmatrix(2, transpose=True), "B", "MN", (1, 1)),
    (ldmatrix(4), "B", "K", (2, 1)),
    (ldmatrix(4), "B", "K", (1, 2)),
    (ldmatrix(4, transpose=True), "B", "MN", (4, 1)),
    (ldmatrix(1), "A", "K", (2, 2)),
)


@pytest.mark.parametrize("swizzle", ("none", "32B", "64B", "128B"))
@pytest.mark.parametrize("copy, operand, major, blocks", FED, ids=lambda x: str(x).split("aligned.")[-1])
def test_ldmatrix_feeds_mma_sync(copy, operand, major, blocks, swizzle):
    tile = smem_tile((64, 64), "bf16", major, swizzle)
    verdict = feeds(copy, tile, M16N8K16, operand, blocks)
    assert verdict and verdict.method == "composition of layouts", verdict.explain()
    addresses = row_addresses(copy, tile, M16N8K16, operand, blocks)
    # Another way to the same fact: fill memory through the tile, load at the addresses, look at the fragment.
    offsets = tile.composed.offsets()
    memory = np.empty(64 * 64, dtype=np.int64)
    memory[offsets] = np.arange(64 * 64)
    first, second = M16N8K16.tile_of(operand)
    fragment = M16N8K16.layout(operand)
    rows = addresses.offsets().reshape(-1, 32)
    loaded = np.concatenate([simulated(copy, memory, row) for row in rows])
    for value in range(loaded.shape[0]):
        held, block = value % fragment[1].size, value // fragment[1].size
        for lane in range(32):
            mn, k = fragment(lane, held) % first, fragment(lane, held) // first
            want = (mn + first * (block % blocks[0])) + 64 * (k + second * (block // blocks[0]))
            assert loaded[value, lane] == want


def test_what_does_not_feed():
    wrong = feeds(ldmatrix(4), smem_tile((16, 64), "bf16", "MN", "32B"), M16N8K16, "A")
    assert not wrong and wrong.coord == ((0, 1), (0, 0)) and "contiguous" in wrong.explain()
    assert not feeds(ldmatrix(4, transpose=True), smem_tile((16, 64), "bf16", "K"), M16N8K16, "A")
    # A pitch of 20 elements: rows are contiguous, but 40 bytes apart.
    pitch = feeds(ldmatrix(4), Layout((16, 16), (20, 1)), M16N8K16, "A")
    assert not pitch and "start at multiples of 16 bytes: ((1,0),(0,0)) gives 20 and 16" in pitch.explain()
    assert feeds(ldmatrix(4), Layout((16, 16), (24, 1)), M16N8K16, "A")
    # A swizzle of single elements takes rows apart.
    assert not feeds(ldmatrix(4), ComposedLayout(Swizzle(2, 1, 3), 0, Layout((16, 16), (16, 1))), M16N8K16, "A")


def test_addresses_given():
    tile = smem_tile((16, 16), "bf16", "K", "32B")
    right = row_addresses(ldmatrix(4), tile, M16N8K16, "A")
    assert feeds(ldmatrix(4), tile, M16N8K16, "A", addresses=lambda lane: right(lane, 0))
    # The usual formula, and the usual slip: rows of the second matrix are 8 further down, not 8 to the right.
    swizzle = swizzle_of("32B").recast(16)
    good = feeds(ldmatrix(4), tile, M16N8K16, "A", addresses=lambda x: swizzle(x % 16 * 16 + x // 16 * 8))
    assert good
    slip = feeds(
        ldmatrix(4), tile, M16N8K16, "A", addresses=lambda x: swizzle((x % 8 + x // 16 * 8) * 16 + x // 8 % 2 * 8)
    )
    assert not slip and slip.coord[0] == (8, 0)
    # x2 ignores lanes 16..31: nonsense there is no error.
    two = row_addresses(ldmatrix(2), tile, M16N8K16, "B")
    assert feeds(ldmatrix(2), tile, M16N8K16, "B", addresses=lambda x: two(x, 0) if x < 16 else 1)
    with pytest.raises(AtomError, match="takes 4 instructions here"):
        feeds(ldmatrix(1), tile, M16N8K16, "A", addresses=lambda x: 0)


@pytest.mark.parametrize("count", (1, 2, 4))
@pytest.mark.parametrize("n", (64, 256))
def test_stmatrix_from_the_accumulator_of_wgmma(n, count):
    for major, transpose in (("K", False), ("MN", True)):
        tile = smem_tile((64, n), "bf16", major)
        assert feeds(stmatrix(count, transpose=transpose), tile, wgmma(n), "C")
        assert not feeds(stmatrix(count, transpose=not transpose), tile, wgmma(n), "C")


def test_published_store_of_the_accumulator():
    # For stmatrix.x2 of a 64 x 256 accumulator: row r, column c is at byte (c/64)*64*128 + S<3,4,3>(r*128 + (c%64)*2).
    tile = smem_tile((64, 256), "bf16", "K", "128B")
    wanted = operand_map(stmatrix(2), wgmma(256), "C")
    swizzle = swizzle_of("128B")
    element = wanted.offsets()
    row, column = element % 64, element // 64
    published = column // 64 * 64 * 128 + swizzle(row * 128 + column % 64 * 2)
    ours = 2 * tile.composed.offsets()[element]
    assert np.array_equal(ours, published) and len(element) == 64 * 256 * 2  # lanes 16..31 repeat
    assert feeds(stmatrix(2), tile, wgmma(256), "C")


def test_packed_sources_feed_the_kinds_that_take_bytes():
    # mma.sync.m16n8k32 with 6- and 4-bit operands, which sit in bytes of the registers.
    def product(kind, name):
        return MmaAtom(
            f"mma.sync.aligned.m16n8k32.row.col{name}.f32.{kind}.{kind}.f32", ("sm_120a",), (16, 8, 32), dtype(kind),
            dtype(kind), dtype("f32"), 32, Layout(((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256))),
            Layout(((4, 8), (4, 2)), ((32, 1), (8, 128))), Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), "rmem", "rmem",
            "test",
        )  # fmt: skip

    tile = smem_tile((16, 32), "u8", "K", "32B")
    six, four = (ldmatrix(4, f"m8n16.b8x16.{name}") for name in ("b6x16_p32", "b4x16_p64"))
    assert feeds(six, tile, product("e2m3", ".kind::f8f6f4"), "A")
    assert feeds(four, tile, product("e2m1", ".kind::f8f6f4"), "A")
    assert feeds(ldmatrix(4, element="u8"), tile, product("e4m3", ""), "A")
    turned = smem_tile((16, 32), "u8", "MN", "none")
    assert feeds(ldmatrix(2, "m16n16.b8", True), turned, product("e4m3", ""), "A")
    assert feeds(ldmatrix(2, "m16n16.b8x16.b4x16_p64", True), turned, product("e2m1", ".kind::f8f6f4"), "A")
    assert feeds(ldmatrix_m16n8(4), turned, product("e4m3", ""), "A").ok is False  # one register holds two rows
    with pytest.raises(AtomError, match=r"counts 4-bit sources of 8-bit elements and A of .* has 6 bits, 8 in its"):
        feeds(four, tile, product("e2m3", ".kind::f8f6f4"), "A")
    with pytest.raises(AtomError, match="has 4 bits, 4 in its registers"):
        feeds(four, tile, product("e2m1", ".kind::mxf4"), "A")


def test_operands_that_no_matrix_copy_moves():
    with pytest.raises(AtomError, match="takes A from smem"):
        operand_map(ldmatrix(4), wgmma(64), "A")
    with pytest.raises(AtomError, match=r"C of .* is stored"):
        operand_map(ldmatrix(4), M16N8K16, "C")
    with pytest.raises(AtomError, match=r"counts 8-bit elements and A of .* has 16 bits"):
        operand_map(ldmatrix(4, element="u8"), M16N8K16, "A")
    with pytest.raises(AtomError, match=r"moves 8 values of 32 lanes; B of .* has 4 values of 32 threads"):
        operand_map(ldmatrix(4), M16N8K16, "B")
    with pytest.raises(AtomError, match="no tile of 16x16"):
        feeds(ldmatrix(4), Layout((24, 16), (16, 1)), M16N8K16, "A")
    with pytest.raises(AtomError, match="blocks are two positive counts"):
        operand_map(ldmatrix(4), M16N8K16, "A", (0, 1))
    with pytest.raises(AtomError, match=r"cannot move A of .*contiguous"):
        row_addresses(ldmatrix(4), Layout((16, 16)), M16N8K16, "A")
