"""tile::gather4 and tile::scatter4 of small kernels, against NumPy's indexing."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import EmulatorError
from tests.emulator.ops.copy.tensor_copies import (
    BEGIN,
    COMMIT,
    FENCE,
    IN,
    OUT,
    POLICIES,
    SHARED,
    WAIT,
    elements,
    listed,
    setting,
    swizzled,
    tensor,
)
from tests.emulator.run_ptx import Result, run

GATHER = "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
SCATTER = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"


def rows_of(mode: str, box: tuple[int, int] = (32, 1)) -> tuple[TensorMap, np.ndarray]:
    memory, strides = tensor((48, 20), "bf16")
    return TensorMap(dtype("bf16"), (48, 20), strides, box, (1, 1), mode), memory


def gathered(tmap: TensorMap, memory: np.ndarray, at: tuple[int, ...], policy: Policy | None, arm: int = 256) -> Result:
    body = f"""{BEGIN} mov.u32 %r10, 256; @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {arm};
    {GATHER} [%r1], [%map, {listed(at)}], [%r2]; {WAIT} {OUT}"""
    return run(body, setting(tmap, memory, out=np.zeros(256, np.uint8)), shared=SHARED, policy=policy, target="sm_100a")


@pytest.mark.parametrize("mode", ["none", "64B"])
def test_a_gather_stacks_four_rows(mode):
    tmap, memory = rows_of(mode)
    whole = elements(tmap, memory)
    for policy, rows in zip(POLICIES, ((3, 3, 0, 19), (5, 4, 3, 2), (0, 20, -1, 7), (1, 2, 3, 4)), strict=True):
        for column in (0, 24):
            found = gathered(tmap, memory, (column, *rows), policy)
            assert found.findings == []
            want = np.zeros((4, 32), np.uint16)
            for at, row in enumerate(rows):
                if 0 <= row < 20:
                    piece = whole[row, column : column + 32]
                    want[at, : len(piece)] = piece
            assert (found["out"] == swizzled(want.view(np.uint8).reshape(-1), mode)).all(), (policy, rows, column)


def scattered(tmap: TensorMap, memory: np.ndarray, at: tuple[int, ...], after: str = "", fence: str = FENCE) -> Result:
    source = np.arange(128, dtype=np.uint16).view(np.uint8)
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0; mov.u32 %r10, 256;
    {IN} {fence} @!%p0 bra END; {SCATTER} [%map, {listed(at)}], [%r1]; {COMMIT} {after} END:"""
    return run(body, setting(tmap, memory, source=source), shared=SHARED, target="sm_100a")


def test_a_scatter_puts_four_rows_in_their_places():
    tmap, memory = rows_of("none")
    want = elements(tmap, memory.copy()).copy()
    found = scattered(tmap, memory, (8, 17, 2, 25, 0), "cp.async.bulk.wait_group 0;")
    assert found.findings == []
    tile = np.arange(128, dtype=np.uint16).reshape(4, 32)
    for at, row in enumerate((17, 2, 25, 0)):
        if row < 20:
            want[row, 8:40] = tile[at]
    assert (elements(tmap, found["tensor"]) == want).all()
    twice_outside = scattered(tmap, memory, (8, 17, 25, 25, 20), "cp.async.bulk.wait_group 0;")
    assert twice_outside.findings == [] and (elements(tmap, twice_outside["tensor"])[17, 8:40] == tile[0]).all()
    assert "race" in scattered(tmap, memory, (8, 1, 2, 3, 4), "cp.async.bulk.wait_group 0;", "bar.sync 0;").kinds
    assert scattered(tmap, memory, (8, 1, 2, 3, 4)).kinds == ["exit"]
    with pytest.raises(EmulatorError, match="writes row 7 twice"):
        scattered(tmap, memory, (0, 7, 1, 7, 2))


def test_the_box_of_the_map_has_one_row():
    tmap, memory = rows_of("none", (32, 4))
    with pytest.raises(EmulatorError, match="four rows through a box of one"):
        gathered(tmap, memory, (0, 1, 2, 3, 4), None)
