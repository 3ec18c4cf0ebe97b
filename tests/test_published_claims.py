"""Published claims about GEMM layouts on Hopper and Ampere: proven, or refuted by a counterexample.

Three documents are the sources: a guide to fast Hopper GEMMs (`guide`), a walkthrough of one Hopper kernel
(`walkthrough`) and an Ampere example (`ampere`). Each test states a claim as it was published, in code, and what is
right, with the condition under which it holds. A claim about every size is proven for every size: sizes are symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from layoutgemm.arch import arch
from layoutgemm.atoms import wgmma
from layoutgemm.atoms.smem.descriptor import SmemDescriptor
from layoutgemm.atoms.smem.tile import smem_tile, swizzle_of
from layoutgemm.checks.budgets import shared_memory
from layoutgemm.errors import DescriptorError
from layoutgemm.layouts import CounterExample, Layout, Proof, Swizzle
from layoutgemm.layouts.formulas import expr, from_expr
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.proofs.digits import minimum
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.layouts.symbols.dims import dim
from layoutgemm.layouts.symbols.polynomial import ge0

B128 = swizzle_of("128B")  # (3, 4, 3) on byte addresses
FRAGMENT = Layout(((4, 8, 4), (2, 2, 8)), ((128, 1, 16), (64, 8, 512)))


def proven(answer: Any) -> Proof:
    assert isinstance(answer, Proof), answer.explain()
    return answer


def refuted(answer: Any) -> CounterExample:
    assert isinstance(answer, CounterExample), answer.explain()
    return answer


# C1: the accumulator of wgmma m64nNk16 --------------------------------------------------------------------------------


def get_coord_m64n64(tid: Any, reg: Any) -> tuple[Any, Any]:
    """guide, 11.2."""
    t0, t1, t2 = tid % 4, (tid // 4) % 8, tid // 32
    r0, r1, r2 = reg % 2, (reg // 2) % 2, reg // 4
    linear = t0 * 128 + t1 + t2 * 16 + r0 * 64 + r1 * 8 + r2 * 512
    return linear % 64, linear // 64


def get_coord_m64n256(tid: Any, reg: Any) -> tuple[Any, Any]:
    """guide, 11.2: 64 columns at a time."""
    row, column = get_coord_m64n64(tid, reg % 32)
    return row, reg // 32 * 64 + column


def fragment_of_the_walkthrough(tid: Any, reg: Any) -> tuple[Any, Any]:
    """walkthrough, steps 9 and 10: group g of 8 columns, then (row +0, col +0), (+0, +1), (+8, +0), (+8, +1)."""
    wid, lane = tid >> 5, tid & 31
    g, li = reg // 4, reg % 4
    return (wid << 4) + (lane >> 2) + 8 * (li // 2), ((lane & 3) << 1) + g * 8 + li % 2


def test_c1_all_three_fragment_maps_are_one_layout() -> None:
    def position(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tid, reg: f(tid, reg)[0] + 64 * f(tid, reg)[1]

    assert from_expr(position(get_coord_m64n64), tid=128, reg=32) == FRAGMENT == wgmma(64).layout_C
    assert from_expr(position(get_coord_m64n256), tid=128, reg=128) == wgmma(256).layout_C
    assert str(from_expr(get_coord_m64n64, tid=128, reg=32)) == str(wgmma(64).coords_C)
    n = dim("N", multiple_of=8)  # every N that the instruction has, and every other multiple of 8
    for f in (get_coord_m64n64, get_coord_m64n256):
        proof = proven(prove_formulas(f, fragment_of_the_walkthrough, tid=128, reg=n // 2))
        assert proof.conditions == ("8 | N",)
    for columns in (8, 64, 256):
        proven(prove_formulas(position(get_coord_m64n64), wgmma(columns).layout_C, tid=128, reg=columns // 2))
    assert str(expr(FRAGMENT, "t", "r")) == "512*(r//4) + 16*(t//32) + 64*(r%2) + 128*(t%4) + 8*((r//2)%2) + (t//4)%8"


def test_c1_the_comment_on_r0_is_wrong() -> None:
    """guide: "r0: even/odd row offset". It moves the column by 1; the first register where that shows is 1."""

    def as_commented(tid: Any, reg: Any) -> tuple[Any, Any]:
        row, column = get_coord_m64n64(tid, reg)
        return row + reg % 2, column - reg % 2

    answer = refuted(prove_formulas(get_coord_m64n64, as_commented, reg=32, tid=128))
    assert (answer.coord, answer.left, answer.right) == ((1, 0), (0, 1), (1, 0))
    assert get_coord_m64n64(0, 1) == (0, 1) and get_coord_m64n64(0, 2) == (8, 0)


# C2: the fragments of mma.sync m16n8k16 -------------------------------------------------------------------------------

# (published map: lane, value -> row and column, in CuTe's notation: row + rows*column)
M16N8K16: list[tuple[str, Callable[..., Any], int, int, str]] = [
    ("A", lambda t, v: (t >> 2) + 8 * (v // 2 % 2) + 16 * (((t & 3) << 1) + v % 2 + 8 * (v // 4)), 8, 256,
     "((4,8),(2,2,2)):((32,1),(16,8,128))"),
    ("B", lambda t, v: (t >> 2) + 8 * (((t & 3) << 1) + v % 2 + 8 * (v // 2)), 4, 128,
     "((4,8),(2,2)):((16,1),(8,64))"),
    ("C", lambda t, v: (t >> 2) + 8 * (v // 2) + 16 * (((t & 3) << 1) + v % 2), 4, 128,
     "((4,8),(2,2)):((32,1),(16,8))"),
]  # fmt: skip


@pytest.mark.parametrize(("operand", "published", "values", "size", "text"), M16N8K16)
def test_c2_ampere_fragments(operand: str, published: Callable[..., Any], values: int, size: int, text: str) -> None:
    layout = from_expr(published, t=32, v=values)
    assert str(layout) == text and layout.size == size
    proven(layout.is_bijective())
    proven(prove_formulas(layout, published, t=32, v=values))


# C3, C4: the descriptor -----------------------------------------------------------------------------------------------


def test_c3_the_published_descriptor_sets_reserved_bits() -> None:
    """guide, 5.3: bits 14-15 = 3 and bit 62. The swizzle mode is bits 62-63, and 14-15 belong to no field."""
    address, stride = 0x8400, 1024
    published = (address >> 4 & 0x3FFF) | 3 << 14 | (stride >> 4 & 0x3FFF) << 32 | 1 << 62
    assert published == 0x400000400000C840
    with pytest.raises(DescriptorError, match="bits 14, 15"):
        SmemDescriptor.decode(published)
    right = SmemDescriptor("128B", stride_bytes=stride, leading_bytes=16, address=address).word
    assert right == 0x4000004000010840
    # What it happens to get right: mode 1, which is 128B. The TMA enumeration, where 128B is 3, is another one.
    assert published >> 62 == right >> 62 == 1


def test_c4_stride_between_groups_of_eight_rows() -> None:
    """guide: SBO = 8*BK*sizeof(bf16). Right where the swizzle spans the row: BK = 64 with 128B, 32 with 64B, ..."""
    for k, swizzle in ((64, "128B"), (32, "64B"), (16, "32B")):
        tile = smem_tile((64, k), "bf16", "K", swizzle)
        assert tile.layout(8, 0) * 2 == 8 * k * 2
    wide = smem_tile((64, 128), "bf16", "K", "128B")
    assert wide.layout(8, 0) * 2 == 1024 != 8 * 128 * 2
    # For every number of rows, a multiple of 8, and every K, a multiple of 64: eight rows down are 1024 bytes on.
    rows, k64 = dim("rows", multiple_of=8), dim("K", multiple_of=64)

    def byte(m: Any, k: Any) -> Any:
        return B128(2 * (k // 64 * 64 * rows + 64 * m + k % 64))

    proven(prove_formulas(lambda m, k: byte(m + 8, k) - byte(m, k), lambda m, k: 1024, m=rows, k=k64))


# C5: the swizzle formula ----------------------------------------------------------------------------------------------


def published_index(m: Any, k: Any, pitch: int) -> Any:
    """guide, 5.4: index = m*stride + (k ^ ((m % 8) * 8))."""
    return m * pitch + (k ^ ((m % 8) * 8))


def test_c5_right_at_a_pitch_of_64_elements_for_every_number_of_rows() -> None:
    rows = dim("M")
    on_elements = B128.recast(16)
    assert on_elements == Swizzle(3, 3, 3, unit=16)
    proven(prove_formulas(lambda m, k: on_elements(64 * m + k), lambda m, k: published_index(m, k, 64), m=rows, k=64))
    proven(prove_formulas(lambda m, k: B128(128 * m + 2 * k), lambda m, k: 2 * published_index(m, k, 64), m=rows, k=64))
    assert from_expr(lambda m, k: published_index(m, k, 64), m=64, k=64) == Swizzle(3, 3, 3) @ Layout((64, 64), (64, 1))


def test_c5_wrong_at_other_pitches() -> None:
    answer = refuted(
        prove_formulas(
            lambda m, k: B128(256 * m + 2 * k), lambda m, k: 2 * published_index(m, k, 128), m=dim("M"), k=128
        )
    )
    assert (answer.coord, answer.left, answer.right) == ((0, 64), 144, 128)
    # Nor is it the tile of atoms that the tensor copy writes: 8064 of 8192 elements of a 64 x 128 tile lie elsewhere.
    tile = smem_tile((64, 128), "bf16", "K")
    m, k = np.meshgrid(np.arange(64), np.arange(128), indexing="ij")
    assert int((tile.byte(m, k) != 2 * published_index(m, k, 128)).sum()) == 8064


def test_c5_two_byte_elements_only() -> None:
    """With 4-byte elements a chunk has 4 of them: k ^ ((m % 8) * 4), at a pitch of 32."""
    rows = dim("M")
    refuted(
        prove_formulas(lambda m, k: B128(128 * m + 4 * k), lambda m, k: 4 * published_index(m, k, 32), m=rows, k=32)
    )
    proven(
        prove_formulas(lambda m, k: B128(128 * m + 4 * k), lambda m, k: 4 * (32 * m + (k ^ (m % 8 * 4))), m=rows, k=32)
    )


def test_c5_the_base_is_aligned_to_1024_bytes() -> None:
    """The hardware swizzles absolute addresses. Aligned to 1024 the base drops out; else its row joins the XOR."""
    rows, base = dim("M"), dim("base", min=0)

    def relative(scale: int) -> Callable[..., Any]:
        return lambda m, k: B128(base * scale + 128 * m + 2 * k) - base * scale

    proven(prove_formulas(relative(1024), lambda m, k: 2 * published_index(m, k, 64), m=rows, k=64))
    answer = prove_formulas(relative(128), lambda m, k: 2 * published_index(m, k, 64), m=rows, k=64)
    assert isinstance(answer, CounterExample) and answer.statement.endswith("a proof lacks 8 | base")
    for at in range(8):  # base offset (address >> 7) & 7
        shifted = prove_formulas(
            lambda m, k, at=at: B128(128 * at + 128 * m + 2 * k) - 128 * at,
            lambda m, k, at=at: 2 * (m * 64 + (k ^ ((m + at) % 8 * 8))),
            m=32,
            k=64,
        )
        proven(shifted)
        assert bool(prove_formulas(lambda m, k, at=at: B128(128 * (m + at) + 2 * k) - 128 * at,
                                   lambda m, k: 2 * published_index(m, k, 64), m=32, k=64)) == (at == 0)  # fmt: skip


def test_c5_atoms_one_after_another_for_every_size() -> None:
    """The tile that the tensor copy writes, K wider than an atom: the rows must be a multiple of 8, and that is all."""
    k64 = dim("K", multiple_of=64)

    def tiled(rows: Any) -> Callable[..., Any]:
        return lambda m, k: B128(2 * (k // 64 * 64 * rows + 64 * m + k % 64))

    def by_atom(rows: Any) -> Callable[..., Any]:
        return lambda m, k: 2 * (k // 64 * 64 * rows + published_index(m, k % 64, 64))

    rows8, rows = dim("rows", multiple_of=8), dim("R")
    proven(prove_formulas(tiled(rows8), by_atom(rows8), m=rows8, k=k64))
    unknown = prove_formulas(tiled(rows), by_atom(rows), m=rows, k=k64)
    assert isinstance(unknown, CounterExample) and unknown.statement.endswith("a proof lacks 8 | R")
    refuted(prove_formulas(tiled(12), by_atom(12), m=12, k=128))


# C6: banks ------------------------------------------------------------------------------------------------------------


def test_c6_banks() -> None:
    """guide: "Row 1: banks 8..11 ... Row 7: 56..59". Those are columns of elements; there are 32 banks of 4 bytes."""
    rows = dim("M")

    def bank(m: Any, byte: Any) -> Any:
        return B128(128 * m + byte) // 4 % 32

    proven(prove_formulas(bank, lambda m, byte: 4 * (m % 8) + byte // 4, m=rows, byte=16))
    answer = refuted(prove_formulas(bank, lambda m, byte: 8 * (m % 8) + byte // 4, m=rows, byte=16))
    assert (answer.coord, answer.left, answer.right) == ((1, 0), 4, 8)
    # The eight 16-byte rows of one access are conflict-free with the swizzle, and 8-way without.
    assert LinearLayout.of(from_expr(lambda w, m: bank(m, 4 * w), w=4, m=8)).is_bijective()
    plain = LinearLayout.of(from_expr(lambda w, m: (128 * m + 4 * w) // 4 % 32, w=4, m=8))
    assert plain.size >> plain.rank == 8


# C7: advancing along K ------------------------------------------------------------------------------------------------


def test_c7_advance_of_a_k_step() -> None:
    """guide, 9.5: k_off = ki * (16/16). The field counts 16 bytes, and 16 elements of 2 bytes are 32 bytes: 2*ki."""
    answer = refuted(prove_formulas(lambda ki: 16 * ki * 2 >> 4, lambda ki: ki * (16 // 16), ki=4))
    assert (answer.coord, answer.left, answer.right) == (1, 2, 1)
    proven(prove_formulas(lambda ki: 16 * ki * 2 >> 4, lambda ki: 2 * ki, ki=dim("steps")))
    # Adding to the address before the XOR is right within the 128-byte span, wherever the aligned tile lies ...
    base = 1024 * dim("base", min=0)
    proven(
        prove_formulas(
            lambda m, ki, k: B128((base + 32 * ki) + 128 * m + 2 * k),
            lambda m, ki, k: base + 2 * published_index(m, 16 * ki + k, 64),
            m=dim("M"),
            ki=4,
            k=16,
        )
    )
    # ... and no longer past it: the fifth step of a 128-element row is in the next atom, 64*rows elements on.
    tile = smem_tile((64, 128), "bf16", "K")
    answer = refuted(prove_formulas(lambda m, k: B128(128 * m + 2 * k), lambda m, k: tile.byte(m, k), m=64, k=128))
    assert answer.coord == (0, 64)


# C8: stmatrix into the swizzled tile ----------------------------------------------------------------------------------


def test_c8_stmatrix_addresses() -> None:
    """guide, 9.3: each 8-element chunk goes where the tensor copy looks for it, if BM is a multiple of 8."""

    def published(bm: Any) -> Callable[..., Any]:
        # i = 8*atom + in_atom counts 8-column chunks of 256 columns; the row is m_offset + 16*warp + lane
        return lambda row, i: i // 8 * bm * 128 + row * 128 + ((i % 8) ^ (row % 8)) * 16

    def where_tma_looks(bm: Any) -> Callable[..., Any]:
        return lambda row, i: B128(i // 8 * bm * 128 + row * 128 + i % 8 * 16)

    bm8, bm = dim("BM", multiple_of=8), dim("B")
    proof = proven(prove_formulas(published(bm8), where_tma_looks(bm8), row=bm8, i=32))
    assert proof.conditions == ("8 | BM",)
    unknown = prove_formulas(published(bm), where_tma_looks(bm), row=bm, i=32)
    assert isinstance(unknown, CounterExample) and unknown.statement.endswith("a proof lacks 8 | B")
    refuted(prove_formulas(published(12), where_tma_looks(12), row=12, i=32))
    # The whole tile, each of its 32768 elements: 128 x 256 as four tiles of 128 x 64.
    tile = smem_tile((128, 256), "bf16", "K", "128B")
    proven(
        prove_formulas(lambda m, n: published(128)(m, n // 8) + n % 8 * 2, lambda m, n: tile.byte(m, n), m=128, n=256)
    )
    # Eight lanes of one phase write eight different groups of 4 banks.
    phase = LinearLayout.of(from_expr(lambda row: ((3 ^ row % 8) * 16 + row * 128) // 16 % 8, row=8))
    assert phase.is_bijective()


# C9: the order of tiles -----------------------------------------------------------------------------------------------


def test_c9_group_m_is_a_bijection_on_any_grid() -> None:
    """guide, 8.1. num_m = G*q + r with 1 <= r < G: q full groups and one of r rows. Then the cases r = 0 and q = 0."""
    q, r, num_n, gap = dim("q"), dim("r"), dim("num_n"), dim("gap")
    G = r + gap  # G > r
    num_m = G * q + r

    def published(t: Any) -> tuple[Any, Any]:
        group = t // (G * num_n)
        first = group * G
        rows = minimum(G, num_m - first)
        return first + t % rows, t % (G * num_n) // rows

    # Full groups: tile number a + G*(b + num_n*c) goes to row a + G*c and column b, a digit for each digit.
    proven(
        prove_formulas(
            lambda a, b, c: published(a + G * (b + num_n * c)), lambda a, b, c: (a + G * c, b), a=G, b=num_n, c=q
        )
    )

    # The last group starts at tile G*num_n*q. Its first row is G*q; within a column the rows are rotated, since the
    # guide takes the tile number modulo r, and Triton the number within the group.
    def last(u: Any, rotation: Any) -> tuple[Any, Any]:
        t = G * num_n * q + u
        group = t // (G * num_n)
        rows = minimum(G, num_m - group * G)
        return group * G + (u + rotation) % rows, t % (G * num_n) // rows

    proven(prove_formulas(lambda a, b: last(a + r * b, 0), lambda a, b: (G * q + a, b), a=r, b=num_n))
    # Rotated by s, 0 < s < r, rows 0..r-s-1 go to s..r-1 and the s others to 0..s-1: each row once. Here r = s + e.
    s, e = dim("s"), dim("e")
    proven(prove_formulas(lambda a, b: (a + (s + e) * b + s) % (s + e), lambda a, b: a + s, a=e, b=num_n))
    proven(prove_formulas(lambda a, b: (e + a + (s + e) * b + s) % (s + e), lambda a, b: a, a=s, b=num_n))


def test_c9_only_full_groups_and_only_a_partial_one() -> None:
    q, r, num_n, gap = dim("q"), dim("r"), dim("num_n"), dim("gap")

    def published(t: Any, num_m: Any, G: Any) -> tuple[Any, Any]:
        first = t // (G * num_n) * G
        rows = minimum(G, num_m - first)
        return first + t % rows, t % (G * num_n) // rows

    proven(
        prove_formulas(
            lambda a, b, c: published(a + r * (b + num_n * c), r * q, r),
            lambda a, b, c: (a + r * c, b),
            a=r,
            b=num_n,
            c=q,
        )
    )
    proven(prove_formulas(lambda a, b: published(a + r * b, r, r + gap), lambda a, b: (a, b), a=r, b=num_n))


def test_c9_every_small_grid_and_the_rotation() -> None:
    """The same by exhaustion, published form against Triton's: bijections both, different only in the last group."""

    def order(num_m: int, num_n: int, G: int, rotated: bool) -> list[tuple[int, int]]:
        out = []
        for t in range(num_m * num_n):
            group = t // (G * num_n)
            rows = min(G, num_m - group * G)
            inside = t if rotated else t % (G * num_n)
            out.append((group * G + inside % rows, t % (G * num_n) // rows))
        return out

    differ = 0
    for num_m in range(1, 14):
        for num_n in range(1, 8):
            for G in (1, 2, 3, 4, 8):
                guide, triton = order(num_m, num_n, G, True), order(num_m, num_n, G, False)
                everything = {(m, n) for m in range(num_m) for n in range(num_n)}
                assert set(guide) == set(triton) == everything
                full = num_m // G * G * num_n
                assert guide[:full] == triton[:full]
                differ += guide != triton
    assert differ > 0
    assert order(5, 1, 4, True) == order(5, 1, 4, False) and order(7, 1, 4, True)[4:] == [(5, 0), (6, 0), (4, 0)]


# C10, C11: numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "published", "right"), [(64, 64, 32, 32), (128, 128, 65, 64), (128, 256, 87, "256/3")]
)
def test_c10_intensity_counts_bytes_into_shared_memory(m: int, n: int, published: int, right: int | str) -> None:
    """FLOP of a tile per byte of its k-slices; K drops out. 65 and 87 are 64 and 85.33."""
    for k in (16, 64, 128):
        assert Fraction(2 * m * n * k, 2 * (m * k + n * k)) == Fraction(right)
    assert (Fraction(right) == published) == (m == 64)


def test_c11_four_stages_and_the_output_tile_do_not_fit() -> None:
    """128 x 256 x 64 bf16: a stage has 48 KiB and a bf16 tile of C 64 KiB, of 227 KiB. Three stages fit beside it."""
    hopper, stage, c = arch("sm_90a"), 2 * (128 * 64 + 256 * 64), 2 * 128 * 256
    assert (stage, c, hopper.smem_per_block) == (48 * 1024, 64 * 1024, 227 * 1024)
    assert not shared_memory(hopper, {"4 stages": 4 * stage, "C tile": c}).ok
    assert shared_memory(hopper, {"3 stages": 3 * stage, "C tile": c}).ok
    assert shared_memory(hopper, {"4 stages": 4 * stage, "C tile of 64 columns": c // 4}).ok


# Theorems that kernels rest on ----------------------------------------------------------------------------------------


def test_splitting_k_covers_it_once_for_every_k_and_every_bk() -> None:
    """K = BK*T - s with 0 <= s < BK, that is T = ceil(K/BK): (k in the tile, tile) <-> k is one-to-one onto 0..BK*T-1.

    K lies above the first T-1 tiles and not above T, so the part k < K meets every tile and every k < K once.
    """
    s, extra, T = dim("s", min=0), dim("extra", min=0), dim("T")
    BK = s + 1 + extra
    K = BK * T - s
    proven(prove_formulas(lambda x, t: ((x + BK * t) % BK, (x + BK * t) // BK), lambda x, t: (x, t), x=BK, t=T))
    proven(prove_formulas(lambda k: k % BK + BK * (k // BK), lambda k: k, k=BK * T))
    assert ge0(BK * T - K) and ge0(K - (T - 1) * BK - 1)


def test_boxes_cover_a_ragged_matrix_once() -> None:
    """Boxes of BX x BY over a grid of TX x TY: coordinate (x, y) is in one box, at one place in it, for all sizes."""
    BX, BY, TX, TY = dim("BX"), dim("BY"), dim("TX"), dim("TY")
    proven(
        prove_formulas(
            lambda x, y, bx, by: (BX * bx + x, BY * by + y, (BX * bx + x) // BX, (BY * by + y) % BY),
            lambda x, y, bx, by: (x + BX * bx, y + BY * by, bx, y),
            x=BX, y=BY, bx=TX, by=TY,
        )
    )  # fmt: skip
    proven(
        prove_formulas(
            lambda x, y: (x // BX * BX + x % BX, y // BY * BY + y % BY), lambda x, y: (x, y), x=BX * TX, y=BY * TY
        )
    )


def test_a_wrong_claim_is_found() -> None:
    """The proofs above fail when the claim is broken: each mutant of the swizzle formula is refuted or undecided."""
    rows = dim("M")
    mutants: list[Callable[..., Any]] = [
        lambda m, k: 64 * m + (k ^ ((m % 8) * 16)),
        lambda m, k: 64 * m + (k ^ ((m % 4) * 8)),
        lambda m, k: 64 * m + (k ^ ((m // 2 % 8) * 8)),
        lambda m, k: 64 * m + (k + (m % 8) * 8) % 64,
        lambda m, k: 64 * m + (k | ((m % 8) * 8)),
        lambda m, k: 65 * m + (k ^ ((m % 8) * 8)),
    ]
    sw = Swizzle(3, 3, 3)
    for mutant in mutants:
        assert not isinstance(prove_formulas(lambda m, k: sw(64 * m + k), mutant, m=rows, k=64), Proof)
        assert isinstance(prove_formulas(lambda m, k: sw(64 * m + k), mutant, m=16, k=64), CounterExample)
