"""Sectors and lines of global accesses, against sets of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutgemm import Layout
from layoutgemm.checks import matrix_access, sectors, thread_access
from layoutgemm.errors import AtomError


@given(
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.lists(st.none() | st.integers(0, 300), min_size=1, max_size=32),
    st.sampled_from([256, 128, 64, 32]),
)
@settings(max_examples=100, deadline=None)
def test_against_sets_of_bytes(width: int, lanes: list[int | None], alignment: int) -> None:
    addresses = [None if a is None else a * width for a in lanes]
    report = sectors(addresses, width, alignment=alignment)
    used = {byte for a in addresses if a is not None for byte in range(a, a + width)}
    worst = max(len({(byte + base) // 32 for byte in used}) for base in range(0, 256, alignment))
    assert (report.sectors, report.bytes, report.minimum) == (worst, len(used), -(-len(used) // 32))
    assert report.lines == len({(byte + report.base) // 128 for byte in used}) and report.base % alignment == 0
    assert len({(byte + report.base) // 32 for byte in used}) == worst
    assert bool(report) == (worst == report.minimum) == (report.witness == "")
    if worst:
        assert report.efficiency == len(used) / (32 * worst) <= 1


@pytest.mark.parametrize(
    ("stride", "width", "want"),  # sectors of a full warp
    [(1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 8, 8), (16, 16, 16), (32, 32, 32), (8, 4, 8), (32, 4, 32), (0, 4, 1),
     (128, 16, 32), (64, 2, 32)],
)  # fmt: skip
def test_known_strides(stride: int, width: int, want: int) -> None:
    report = sectors([stride * lane for lane in range(32)], width)
    assert (report.sectors, report.requests, report.per_request) == (want, 1, want)


@pytest.mark.parametrize(("alignment", "want"), [(256, 4), (32, 4), (16, 5), (4, 5)])
def test_a_misaligned_base_costs_a_sector(alignment: int, want: int) -> None:
    report = sectors(range(0, 128, 4), 4, alignment=alignment)
    assert (report.sectors, report.minimum, report.coalesced) == (want, 4, want == 4)
    assert f"base a multiple of {alignment} bytes" in report.as_check().statement
    if want > 4:
        assert "5 sectors for 128 bytes, which fit 4" in report.witness


def test_loads_of_a_matrix_by_rows_and_by_columns() -> None:
    """A row-major bf16 matrix: 16-byte vectors along the row fill their sectors; scalars down a column use 2 of 32."""
    matrix = Layout((128, 64), (64, 1))
    along = thread_access(Layout(((8, 16), 8), ((128 * 8, 1), 128)), 8, "ld.global", "16-byte vectors along rows")
    report = sectors(matrix, along, element="bf16")
    assert (report.requests, report.sectors, report.minimum, report.efficiency) == (4, 64, 64, 1.0)
    assert report.as_check() and "100% of the bytes moved are used" in report.as_check("A").statement
    down = thread_access(Layout(32, 1), 1, "ld.global", "a column")
    bad = sectors(matrix, down, element="bf16")
    assert (bad.sectors, bad.minimum, bad.lines, bad.efficiency) == (32, 2, 32, 1 / 16)
    check = bad.as_check("A")
    assert not check and check.witness == (
        "a column, request 0: 32 sectors for 64 bytes, which fit 2; of the sector at byte 0 lane 0 uses 2 of 32 bytes"
    )
    both = sectors(matrix, [along, down], element="bf16")
    assert both.sectors == 96 and both.witness == check.witness and "a column" in both.explain()
    assert "no request moves a sector that it does not need" in report.explain()


def test_a_pitch_that_is_no_multiple_of_a_sector() -> None:
    """Rows of 200 bytes: each row but the first in four starts inside a sector that it shares with the row before."""
    matrix = Layout((4, 100), (100, 1))
    rows = thread_access(Layout((25, 4), (16, 4)), 4, "ld.global", "rows in 8-byte vectors")
    report = sectors(matrix, rows, element="bf16")
    assert report.bytes == 200 and report.minimum == 7
    table = np.asarray(matrix.offsets())[rows.coords] * 2
    assert report.sectors == len(set((table // 32).ravel().tolist()))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: sectors([0], 4, "ld.shared"), "'ld.shared' does not access global memory"),
        (lambda: sectors(Layout((8, 64), (64, 1)), matrix_access((8, 64), "bf16"), element=16), "'ldmatrix' does not"),
        (lambda: sectors([0], 4, alignment=48), "power of two of bytes, not 48"),
        (lambda: sectors([0], 4, alignment=0), "power of two"),
        (lambda: sectors([0], 4, alignment=True), "alignment of sectors must be an integer"),
        (lambda: sectors([0], 16, alignment=8), "does not align accesses of 16"),
        (lambda: sectors([4], 8), "names byte 4, no multiple of its 8 bytes"),
        (lambda: sectors([0], 64), "not 64"),
        (lambda: sectors(Layout(32, 1), "ld", element=32), "accesses are AccessPatterns, as matrix_access"),
        (lambda: sectors(Layout(32, 1), thread_access(Layout(32, 1), 1, "ld.global"), "x", element=32), "own kind"),
    ],
)
def test_refusals(act: object, message: str) -> None:
    with pytest.raises(AtomError) as refusal:
        act()
    assert message in str(refusal.value)
