"""The search for swizzles and pitches: every answer counted again, every "none" enumerated again, by loops."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layoutgemm import Layout
from layoutgemm.atoms import SmemTile, ldmatrix, smem_tile
from layoutgemm.checks import (
    AccessPattern,
    bank_conflicts,
    best_swizzle,
    column_access,
    find_padding,
    find_swizzle,
    matrix_access,
    row_access,
    thread_access,
    tma_access,
)
from layoutgemm.checks.smem.access_patterns import byte_addresses
from layoutgemm.checks.smem.swizzle_search import TMA_MODES, candidates, has_effect, pattern_of, ranks
from layoutgemm.errors import AtomError, LayoutError
from layoutgemm.layouts import Swizzle
from tests.checks.smem import bank_model as model


def numbers(swizzle: Swizzle) -> tuple[int, int, int]:
    return swizzle.bits, swizzle.base, swizzle.shift


def moved_ways(access: list[list[int]], width: int, form: tuple[int, int, int]) -> list[int]:
    """Ways of all phases after the swizzle, by loops."""
    move = model.swizzled(*form)
    return [
        w for request in access for w in model.all_ways([None if a < 0 else move(a) for a in request], width) if w > 0
    ]


# The set that is searched ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "vector"), [(256, 4), (256, 16), (512, 1), (384, 16), (320, 4), (640, 8), (96, 2), (1000, 8), (1, 1)]
)
def test_candidates_are_all_that_keep_vectors_and_tile_whole(total: int, vector: int) -> None:
    bits = (total - 1).bit_length()
    mine = [numbers(s) for s in candidates(bits, total, vector)]
    assert len(mine) == len(set(mine))
    assert set(mine) == set(model.forms(bits, total, vector))
    assert [b for b, _, _ in mine] == sorted(b for b, _, _ in mine)


@cache
def within_4_kib(width: int) -> list[Swizzle]:
    return list(candidates(12, 4096, width))


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_what_is_not_looked_at_has_the_effect_of_something_that_is(data: st.DataObject) -> None:
    """Fact 2: the ways under any candidate are those of its part within bits 2 to 6, or of no swizzle."""
    width = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    lanes = data.draw(st.integers(1, 32))
    phase = [data.draw(st.integers(0, 4096 // width - 1)) * width for _ in range(lanes)]
    swizzle = data.draw(st.sampled_from([s for s in within_4_kib(width) if not has_effect(s)]))
    base = max(2, swizzle.base)
    bits = min(swizzle.base + swizzle.bits, 7) - base
    part = Swizzle(bits, base, swizzle.shift, "bytes") if swizzle.shift > 0 and bits > 0 else None
    if part is None or not has_effect(part):
        part = Swizzle(0, 4, 3, "bytes")
    assert part.bits < swizzle.bits
    assert moved_ways([phase], width, numbers(swizzle)) == moved_ways([phase], width, numbers(part))


@given(
    st.sampled_from([1, 2, 4, 8, 16]), st.lists(st.integers(0, 255), min_size=5, max_size=5), st.integers(0, 255),
    st.data(),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_ranks_give_the_ways_of_affine_phases(width: int, columns: list[int], base: int, data: st.DataObject) -> None:
    """Fact 3, at any base: 2^(rank of words - rank of banks) ways."""
    lanes = min(5, 7 - (width.bit_length() - 1))
    scaled = [column * width for column in columns[:lanes]]
    phase = [base * width] * (1 << lanes)
    for lane in range(1 << lanes):
        for bit in range(lanes):
            phase[lane] ^= scaled[bit] if lane >> bit & 1 else 0
    swizzle = data.draw(st.sampled_from(within_4_kib(width)))
    words, banks = ranks(tuple(scaled), width, swizzle)
    assert moved_ways([phase], width, numbers(swizzle)) == [1 << (words - banks)]
    pattern = pattern_of("p", np.array([phase]), width)
    assert len(pattern.columns) == 1 and len(pattern.odd) == 0 and pattern.weigh(swizzle) == (1 << (words - banks),) * 2


# Answers and proofs that no answer exists -----------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> tuple[Layout, int, list[AccessPattern]]:
    """A small tile, its element's bits, and one to three accesses to it; powers of two or not."""
    bits = draw(st.sampled_from([8, 16, 32]))
    rows, columns = draw(st.sampled_from([(8, 8), (16, 16), (32, 8), (8, 32), (12, 16), (16, 24), (32, 4)]))
    pitch = columns * draw(st.sampled_from([1, 1, 2])) + draw(st.sampled_from([0, 0, 0, 4]))
    layout = Layout((rows, columns), (pitch, 1))
    accesses = []
    for number in range(draw(st.integers(1, 3))):
        vector = draw(st.sampled_from([v for v in (1, 2, 4, 8) if v * bits <= 128 and columns % v == 0]))
        lanes = draw(st.sampled_from([8, 16, 32, 32]))
        how = draw(st.sampled_from(["bits", "bits", "strides", "anything"]))
        if how == "bits":  # each bit of the lane moves the row or the vector by a power of two
            powers = [(1 << i, 0) for i in range((rows & -rows).bit_length() - 1)]
            powers += [(0, 1 << i) for i in range(((columns // vector) & -(columns // vector)).bit_length() - 1)]
            chosen = draw(st.permutations(powers))[: lanes.bit_length() - 1]
            lanes = 1 << len(chosen)
            at = [(sum(p[0] for i, p in enumerate(chosen) if lane >> i & 1),
                   sum(p[1] for i, p in enumerate(chosen) if lane >> i & 1)) for lane in range(lanes)]  # fmt: skip
        elif how == "strides":  # strides over the flat coordinate of vectors: down, across or mixed
            step_row, step_vector = draw(st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 1), (3, 1)]))
            at = [(lane * step_row % rows, lane * step_vector % (columns // vector)) for lane in range(lanes)]
        else:
            at = [(draw(st.integers(0, rows - 1)), draw(st.integers(0, columns // vector - 1))) for _ in range(lanes)]
        coords = [[[r + rows * (v * vector + i) for i in range(vector)] for r, v in at]]
        accesses.append(AccessPattern(f"access {number}", "ld.shared", np.array(coords)))
    return layout, bits, accesses


@given(problems())
@settings(max_examples=40, deadline=None)
def test_answers_are_counted_out_and_none_is_enumerated(problem: tuple[Layout, int, list[AccessPattern]]) -> None:
    layout, bits, accesses = problem
    try:
        plain = [byte_addresses(layout, access, bits) for access in accesses]
    except AtomError:  # a padded row that breaks a vector's alignment
        assume(False)
    total = layout.cosize * bits // 8
    widest = max(width for _, width in plain)

    def cost(form: tuple[int, int, int]) -> list[int]:
        return [w for at, width in plain for w in moved_ways(at.tolist(), width, form)]

    every = [numbers(s) for s in candidates((total - 1).bit_length(), total, widest)]  # equal to model.forms: see above
    found = find_swizzle(layout, accesses, element=bits)
    costs = {form: cost(form) for form in every}
    free = [form for form in every if max(costs[form]) == 1]
    assert found.candidates == len(every) and found.examined <= found.candidates
    assert bool(found) == bool(free)
    if found:
        assert found.swizzle is not None and numbers(found.swizzle) in free
        assert found.swizzle.bits == min(B for B, _, _ in free) and found.reason == ""
        assert bool(found.report) and found.as_check()
    else:
        assert found.swizzle is None and found.reason and not found.as_check()
        assert found.as_check().witness == found.reason
    assert sum(costs[numbers(found.best)]) == min(map(sum, costs.values()))
    assert sum(costs[numbers(found.best)]) == sum(int(part.phase_ways.sum()) for part in found.report.parts)
    assert best_swizzle(layout, accesses, element=bits).best == found.best
    hardware = find_swizzle(layout, accesses, element=bits, tma=True)
    modes = [form for form in free if form[1:] == (4, 3)]
    assert bool(hardware) == bool(modes)
    if modes:
        assert hardware.swizzle is not None and numbers(hardware.swizzle) == min(modes)
    wanted = {"GF(2) rank", "exhaustion", "GF(2) rank and exhaustion"}
    assert found.method in wanted


# Known answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "want"),
    [(8, (0, 4, 3)), (16, (1, 4, 3)), (32, (2, 4, 3)), (64, (3, 4, 3)), (128, (3, 4, 4)), (256, (3, 4, 5))],
)
def test_rows_of_every_pitch_get_the_swizzle_of_their_span(k: int, want: tuple[int, int, int]) -> None:
    """The search finds the hardware's modes at their pitches; beyond 128 bytes S grows."""
    rows = matrix_access((64, k), "bf16")
    found = find_swizzle(Layout((64, k), (k, 1)), rows, element="bf16")
    assert found.swizzle is not None and numbers(found.swizzle) == want and found.method == "GF(2) rank"
    hardware = find_swizzle(Layout((64, k), (k, 1)), rows, element="bf16", tma=True)
    assert bool(hardware) == (k <= 64)


def test_writing_and_reading_at_once() -> None:
    """cp.async in order, ldmatrix by rows, and stmatrix, on one tile: one swizzle for all."""
    tile = Layout((128, 64), (64, 1))
    copy = thread_access(Layout(((8, 16), (8, 8)), ((128 * 8, 1), (128, 16))), 8, "cp.async", "cp.async in order")
    rows, stores = matrix_access((128, 64), "bf16"), matrix_access((128, 64), "bf16", kind="stmatrix")
    found = find_swizzle(tile, [copy, rows, stores], element="bf16")
    assert found.swizzle == Swizzle(3, 4, 3, "bytes") and found.on_elements("bf16") == Swizzle(3, 3, 3, 16)
    assert found.report.wavefronts == found.report.minimum == 3 * 128
    assert found.best == found.swizzle and found.examined < found.candidates
    # The engine's tile says the same of its own layout.
    engine = smem_tile((128, 64), "bf16", "K")
    own = find_swizzle(engine, [tma_access(engine), rows], tma=True)
    assert own.swizzle == engine.swizzle


def test_transposed_reads_of_a_tile_of_floats() -> None:
    """Written by rows, read by columns: a 5-bit swizzle of words, and none for the copy engine."""
    tile = Layout((32, 32), (32, 1))
    write = thread_access(Layout((32, 32), (32, 1)), 1, "st.shared", "rows")
    read = thread_access(Layout((32, 32), (1, 32)), 1, "ld.shared", "columns")
    found = find_swizzle(tile, [write, read], element="f32")
    assert found.swizzle is not None and numbers(found.swizzle) == (5, 2, 5)
    hardware = find_swizzle(tile, [write, read], element="f32", tma=True)
    assert not hardware and hardware.best == TMA_MODES[3] and hardware.report.ways == 4
    assert (hardware.candidates, hardware.examined) == (4, 4)
    assert hardware.reason == (
        "columns is at best 4-way under the copy engine's modes, with S<3,4,3>[bytes]: the lanes of a phase move "
        "address bits 7, 8, 9, 10, 11; its words have rank 5 over GF(2), the banks rank 3"
    )
    assert find_padding((32, 32), [write, read], "f32").pitch == 33


def test_rows_apart_by_scattered_bits_have_no_swizzle() -> None:
    """Eight rows that differ in address bits 7, 9 and 11: three bank bits take three consecutive bits, never these."""
    tile = Layout(((2, 2, 2, 2, 2), 64), ((64, 128, 256, 512, 1024), 1))
    rows = [((lane & 1) + (lane >> 1 & 1) * 4 + (lane >> 2 & 1) * 16) for lane in range(8)]
    coords = np.array([[[row + 32 * k for k in range(8)] for row in rows]])
    access = AccessPattern("rows", "ldmatrix", coords)
    found = find_swizzle(tile, access, element="bf16")
    assert not found and found.report.ways == 2
    assert "move address bits 7, 9, 11; its words have rank 5 over GF(2), the banks rank 4" in found.reason
    addresses, width = byte_addresses(tile, access, "bf16")
    forms = [numbers(s) for s in candidates(12, 4096, 16)]
    assert min(max(moved_ways(addresses.tolist(), width, form)) for form in forms) == 2
    with pytest.raises(AtomError, match="rows is at best 2-way"):
        found.on_elements("bf16")


def test_accesses_that_exclude_one_another_are_both_named() -> None:
    """Rows 128 bytes apart want S = 3, rows 256 bytes apart S = 4: no swizzle of 3 bits has both."""
    tile = Layout((64, 32), (32, 1))
    near = AccessPattern("near", "ldmatrix", np.array([[[2 * lane + 64 * k for k in range(8)] for lane in range(8)]]))
    far = AccessPattern("far", "ldmatrix", np.array([[[4 * lane + 64 * k for k in range(8)] for lane in range(8)]]))
    found = find_swizzle(tile, [near, far], element="bf16")
    alone = [find_swizzle(tile, a, element="bf16") for a in (near, far)]
    forms = [numbers(s) for s in candidates(12, 4096, 16)]
    costs = [[max(moved_ways(byte_addresses(tile, a, 16)[0].tolist(), 16, f)) for a in (near, far)] for f in forms]
    assert all(alone) and bool(found) == any(max(pair) == 1 for pair in costs)
    assert not found and "serves all accesses at once: near alone:" in found.reason and "far alone:" in found.reason


def test_pitches() -> None:
    for k, want in ((16, 24), (32, 40), (64, 72), (128, 136), (40, 40)):
        found = find_padding((64, k), matrix_access((64, k), "bf16"), "bf16")
        assert found.pitch == want and found.as_check() and found.wasted == (want - k) * 64 * 2
        # every smaller pitch conflicts or breaks the rows' alignment
        for pitch in range(k, want):
            ways = max(model.ways([pitch * 2 * (8 * block + r) for r in range(8)], 16) for block in range(8))
            assert pitch * 2 % 16 or ways > 1
    turned = find_padding((64, 16), matrix_access((64, 16), "bf16", "MN"), "bf16", "MN")
    assert turned.pitch == 72 and str(turned.layout) == "(64,16):(1,72)"


def test_where_no_pitch_will_do() -> None:
    """Even lanes go down the rows; odd lanes start a chunk that only pitch 0 would separate. They are counted for a
    period."""
    coords = np.array([[[0 + 32 * k for k in range(4)], [0 + 32 * (k + 32) for k in range(4)]]])
    access = AccessPattern("two of one row, 128 bytes apart", "ld.shared", coords)
    none = find_padding((32, 64), access, "f32")
    assert not none and none.tried == 32 and none.report.ways == 2
    assert none.reason == (
        "all pitches from 64 to 95 elements, one period of the banks, conflict; at best 2-way, at 64"
    )
    assert not none.as_check() and "at best 2-way" in none.as_check().witness
    with pytest.raises(AtomError, match="no pitch from 8 to 71 takes these accesses"):
        find_padding((8, 8), matrix_access((8, 8), "bf16", "MN"), "bf16", "K")
    with pytest.raises(AtomError, match="major"):
        find_padding((8, 8), access, "f32", "N")


def test_refusals_and_what_a_search_says() -> None:
    tile = Layout((64, 64), (64, 1))
    with pytest.raises(AtomError, match="no access is given"):
        find_swizzle(tile, [], element="bf16")
    with pytest.raises(AtomError, match="give element="):
        find_swizzle(tile, matrix_access((64, 64), "bf16"))
    for search in (find_swizzle, bank_conflicts, lambda tile, how, element: find_padding((64, 64), how, element)):
        with pytest.raises(AtomError, match=r"AccessPatterns.*not .*CopyAtom"):
            search(tile, ldmatrix(4), element="bf16")
    found = find_swizzle(tile, matrix_access((64, 64), "bf16"), element="bf16")
    text = found.explain()
    assert text.startswith("S<3,4,3>[bytes] is free of conflicts\nsearched: ")
    assert "the tile at a multiple of 1024 bytes" in text
    assert f"{found.examined} counted for {found.candidates} candidates" in str(found)
    odd = find_swizzle(Layout((8, 40), (40, 1)), matrix_access((8, 40), "bf16"), element="bf16")
    assert odd and odd.method == "exhaustion" and odd.swizzle is not None and odd.swizzle.bits == 0
    both = find_swizzle(Layout((24, 64), (64, 1)), [matrix_access((24, 64), "bf16"),
                        thread_access(Layout(24, 1), name="24 lanes")], element="bf16")  # fmt: skip
    assert both.method == "GF(2) rank and exhaustion"
    assert bank_conflicts(tile, matrix_access((64, 64), "bf16"), element=16).ways == 8


def test_bytes_of_one_word_may_be_parted_by_lower_bits() -> None:
    """Bytes 0 and 129 meet in bank 0. With S > 0, byte 128 would join one of the words 1 to 31; with S < 0 odd bytes
    alone move. So the search may not pass S < 0 over for accesses narrower than a word.
    """
    tile = Layout(256, 1)
    odd = AccessPattern("odd", "ld.shared", np.array([[[0], [129]]]))
    even = AccessPattern("even", "ld.shared", np.array([[[128], *([4 * word] for word in range(1, 32))]]))
    found = find_swizzle(tile, [odd, even], element="u8")
    assert found.swizzle is not None and found.swizzle.bits == 1 and found.swizzle.shift < 0
    for form in map(numbers, candidates(8, 256, 1)):
        ways = [*moved_ways([[0, 129]], 1, form), *moved_ways([[128, *range(4, 128, 4)]], 1, form)]
        assert max(ways) > 1 or form[2] < 0
    # It may also put what was one word into two: lanes 0 and 67 share no bank, and then do.
    assert moved_ways([[0, 67]], 1, (6, 0, -6)) == [2] and has_effect(Swizzle(6, 0, -6, "bytes"))


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(("often", "want"), [("near", (3, 4, 3)), ("far", (3, 4, 4))])
def test_the_best_swizzle_weighs_accesses_by_requests(idle: bool, often: str, want: tuple[int, int, int]) -> None:
    """Affine phases, and the same with an idle lane: three requests outweigh one."""
    tile = Layout((64, 32), (32, 1))

    def rows(name: str, step: int) -> AccessPattern:
        starts = [0, 0, 0] if name == often else [0]
        lanes = [[[start + step * lane + 64 * k for k in range(8)] for lane in range(8)] for start in starts]
        coords = np.array(lanes)
        if idle:
            coords[:, 5] = -1
        return AccessPattern(name, "ldmatrix", coords)

    found = best_swizzle(tile, [rows("near", 2), rows("far", 4)], element="bf16")
    assert not found and numbers(found.best) == want
    assert found.method == ("exhaustion" if idle else "GF(2) rank")


def test_the_copy_engines_modes_come_first_among_equals() -> None:
    pair = AccessPattern("pair", "ld.shared", np.array([[[0], [32]]]))
    found = find_swizzle(Layout(64, 1), pair, element="f32")
    assert found.swizzle == TMA_MODES[1]
    assert all(max(moved_ways([[0, 128]], 4, form)) == 1 for form in ((1, 6, 1), (1, 2, 5), (1, 4, 3)))


def test_a_tile_alone_means_its_rows() -> None:
    """Without accesses: the 16-byte rows along the contiguous mode, of plain, swizzled and nested tiles."""
    for tile, along in (
        (Layout((64, 32), (32, 1)), "K"),
        (Layout((64, 32)), "MN"),
        (smem_tile((64, 64), "bf16", "MN"), "MN"),
    ):
        element = None if isinstance(tile, SmemTile) else "bf16"
        extent = (64, 64 if element is None else 32)
        rows = matrix_access(extent, "bf16", along)
        assert (row_access(tile, element).coords == rows.coords).all()
        assert (
            bank_conflicts(tile, element=element).wavefronts == bank_conflicts(tile, rows, element=element).wavefronts
        )
        assert find_swizzle(tile, element=element).swizzle == find_swizzle(tile, rows, element=element).swizzle
        columns = column_access(tile).coords
        assert sorted(columns.ravel().tolist()) == list(range(extent[0] * extent[1]))
        assert columns.shape[1] == 32 and (np.diff(columns[:, :, 0]) == (1 if along == "K" else 64)).all()
    for tile, said in (
        (Layout((4, 8)), "do not tile 4x8; else name"),
        (Layout((8, 8, 2)), "group them"),
        (3, "has no rows"),
    ):
        with pytest.raises(AtomError, match=said):
            find_swizzle(tile, element="bf16")
    with pytest.raises(LayoutError, match="no mode has neighbours"):
        row_access(Layout((8, 8), (16, 2)), "bf16")
