"""gather4 and scatter4 against NumPy's indexing, and their rules."""

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import smem_tile, tma_gather
from layoutgemm.atoms.tma.gather import broken_rules, global_bits, load, store
from layoutgemm.errors import TmaError

TILES = {
    "128B": ((1000, 64), smem_tile((32, 64), "bf16", "K"), "bf16"),
    "two spans": ((77, 128), smem_tile((16, 128), "bf16", "K"), "bf16"),
    "64B": ((50, 32), smem_tile((8, 32), "bf16", "K", "64B"), "bf16"),
    "no swizzle, ragged columns": ((50, 72), Layout((8, 96), (96, 1)), "bf16"),
    "bytes": ((60, 128), smem_tile((16, 128), "e4m3", "K"), "e4m3"),
}


def tile_offsets(smem, rows, columns):
    composed = getattr(smem, "composed", smem)
    return np.array([[int(composed(i, j)) for j in range(columns)] for i in range(rows)])


@pytest.mark.parametrize(("shape", "smem", "kind"), TILES.values(), ids=TILES)
@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_rows_are_those_of_numpy(shape, smem, kind, direction):
    word = {"bf16": np.uint16, "e4m3": np.uint8}[kind]
    rng = np.random.default_rng(0)
    plan = tma_gather(Layout(shape, (shape[1], 1)), smem, kind, direction)
    width = max(box.coord_offset[0] for box in plan.boxes) + plan.tensor_map.box[0]
    at = tile_offsets(smem, plan.tile_rows, width)
    matrix = rng.integers(1, 200, shape).astype(word)
    rows = rng.permutation(shape[0] + 5)[: plan.tile_rows]  # some beyond the last row
    shared = rng.integers(1, 200, 1 << 15).astype(np.uint8)
    memory, before = matrix.copy(), shared[2048:].view(word)[at].copy()
    for coordinates, box in zip(plan.coordinates(rows.tolist()), plan.boxes, strict=True):
        move = load if direction == "gather" else store
        move(plan.tensor_map, memory.reshape(-1).view(np.uint8), coordinates, shared, 2048 + box.smem_offset)
    inside = rows < shape[0]
    if direction == "gather":
        wanted = np.zeros((plan.tile_rows, width), word)
        wanted[inside, : shape[1]] = matrix[rows[inside]][:, :width]
        assert (shared[2048:].view(word)[at] == wanted).all()
    else:
        wanted = matrix.copy()
        wanted[rows[inside]] = before[inside][:, : shape[1]]
        assert (memory == wanted).all()


def test_columns_of_a_column_major_matrix_are_gathered():
    plan = tma_gather(Layout((64, 300), (1, 64)), Layout((64, 8), (1, 64)), "bf16", names=("m", "k"))
    assert plan.dims == ("m", "k") and plan.tensor_map.extents == (64, 300)
    assert plan.coordinates(range(8)) == ((0, 0, 1, 2, 3), (0, 4, 5, 6, 7))


def test_a_missing_row_is_zeros():
    plan = tma_gather(Layout((20, 64), (64, 1)), smem_tile((8, 64), "bf16", "K"))
    assert not global_bits(plan.tensor_map, (0, -1, 20, 0, 19))[1][:, :2].any()
    assert global_bits(plan.tensor_map, (0, -1, 20, 0, 19))[1][:, 2:].all()


def test_a_scatter_may_name_a_row_outside_twice():
    plan = tma_gather(Layout((20, 64), (64, 1)), smem_tile((8, 64), "bf16", "K"), None, "scatter")
    memory, shared = np.zeros(20 * 64, np.uint16), np.ones(4096, np.uint8)
    store(plan.tensor_map, memory.view(np.uint8), (0, 20, 20, 3, 21), shared, 1024)
    assert np.flatnonzero(memory.reshape(20, 64).any(axis=1)).tolist() == [3]


def test_landing_is_what_a_gather_does():
    plan = tma_gather(Layout((20, 64), (64, 1)), smem_tile((8, 64), "bf16", "K"))
    memory = np.arange(20 * 64, dtype=np.uint16)
    shared = np.zeros(4096, np.uint8)
    rows = [5, 5, 0, 19, 3, 2, 1, 25]
    for coordinates, box in zip(plan.coordinates(rows), plan.boxes, strict=True):
        load(plan.tensor_map, memory.view(np.uint8), coordinates, shared, 1024 + box.smem_offset)
    for source, inside, target in plan.landing(rows, address=1024):
        assert (shared.view(np.uint16)[target // 16] == np.where(inside, memory[source // 16], 0)).all()


def refused(call, rule, said=""):
    with pytest.raises(TmaError) as caught:
        call()
    assert caught.value.rule == rule and said in str(caught.value)


def test_bad_gathers_are_refused_by_name():
    matrix, tile = Layout((100, 64), (64, 1)), smem_tile((8, 64), "bf16", "K")
    refused(lambda: tma_gather(matrix, Layout((6, 64), (64, 1)), "bf16"), "gather", "6 rows")
    refused(lambda: tma_gather(matrix, Layout((8, 8), (8, 1)), "bf16"), "shared address", "64 bytes")
    refused(lambda: tma_gather(Layout((4, 100, 64), (6400, 64, 1)), tile, "bf16"), "gather", "a matrix")
    refused(lambda: tma_gather(matrix, tile, "bf16", "load"), "direction", "gather or scatter")
    refused(lambda: tma_gather(Layout((100, 60), (60, 1)), tile, "bf16"), "stride", "120 bytes")
    plan = tma_gather(matrix, tile)
    refused(lambda: plan.coordinates([1, 2, 3]), "gather", "3 row numbers")
    refused(lambda: global_bits(plan.tensor_map, (0, 1)), "gather")
    refused(lambda: global_bits(plan.tensor_map, (4, 0, 1, 2, 3)), "coordinate", "multiple of 16 bytes")
    scatter, memory, shared = (
        tma_gather(matrix, tile, None, "scatter"),
        np.zeros(12800, np.uint8),
        np.zeros(4096, np.uint8),
    )
    refused(lambda: scatter.coordinates([1, 2, 3, 4, 5, 6, 7, 1]), "injective", "row 1")
    refused(lambda: store(scatter.tensor_map, memory, (0, 1, 1, 2, 3), shared, 0), "injective", "row 1")
    refused(lambda: store(scatter.tensor_map, memory, (0, -1, 1, 2, 3), shared, 0), "coordinate", "negative")


def test_the_map_of_a_gather_has_a_box_of_one_row():
    tmap = tma_gather(Layout((100, 64), (64, 1)), smem_tile((8, 64), "bf16", "K")).tensor_map
    assert tmap.encode_arguments()["boxDim"] == (64, 1) and not broken_rules(tmap)
    for changes in ({"box": (64, 4)}, {"steps": (1, 2)}):
        assert "gather" in [fault.rule.name for fault in broken_rules(replace(tmap, **changes))]
