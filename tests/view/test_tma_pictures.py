"""Pictures of im2col loads and of gathers: the numbers in the cells, read back out."""

import re

import pytest

from layoutgemm import Layout
from layoutgemm.atoms import smem_tile, tma_gather, tma_im2col
from layoutgemm.atoms.tma.im2col import base_pixels
from layoutgemm.errors import LayoutError, TmaError

IMAGES = Layout((2, 7, 9, 64), (4032, 576, 64, 1))
CONVOLUTION = tma_im2col(IMAGES, smem_tile((64, 64), "bf16", "K"), filter=(3, 3), padding=1)
TITLE = re.compile(r"row (\d+) of the tile: pixel W (-?\d+), H (-?\d+) of ([^<,]*)(, outside: zeros)?")


@pytest.mark.parametrize("index", [(0, 0), (1, 5), (1, 8)])
def test_cells_show_the_row_of_each_pixel(index):
    (copy,) = CONVOLUTION.copies(index)
    w, h, image = base_pixels(CONVOLUTION.tensor_map, copy.coordinates)
    wanted = {(row, w[row] + copy.offsets[0], h[row] + copy.offsets[1]) for row in range(64) if image[row] == image[0]}
    found = TITLE.findall(CONVOLUTION.svg(index=index))
    assert {(int(row), int(x), int(y)) for row, x, y, _, _ in found} == wanted
    assert {plane for *_, plane, _ in found} == {f"image {image[0]}"}
    for _, x, y, _, outside in found:
        assert bool(outside) == (not (0 <= int(x) < 9 and 0 <= int(y) < 7))


def test_the_second_instruction_goes_on_with_the_rows():
    plan = tma_im2col(Layout((2, 14, 15, 8), (1680, 120, 8, 1)), Layout((320, 8), (8, 1)), "f32", filter=1)
    rows = [int(row) for row, *_ in TITLE.findall(plan.svg(box=1))]
    assert min(rows) == plan.boxes[1].coord_offset[1] > 0
    with pytest.raises(LayoutError, match="instruction 2 of a tile that takes 2"):
        plan.svg(box=2)


def test_rank_3_is_one_row_and_rank_5_names_its_plane():
    line = tma_im2col(Layout((3, 21, 32), (672, 32, 1)), smem_tile((16, 32), "bf16", "K"), filter=5, padding=2)
    assert {y for _, _, y, _, _ in TITLE.findall(line.svg())} == {"0"}
    volume = Layout((2, 4, 5, 6, 32), (3840, 960, 192, 32, 1))
    cube = tma_im2col(volume, smem_tile((16, 32), "bf16", "K"), filter=(2, 2, 2))
    assert "pixel W 0, H 0 of D 0, image 0" in cube.svg()


def test_a_plane_too_large_is_refused():
    plan = tma_im2col(Layout((1, 300, 300, 8), (720000, 2400, 8, 1)), Layout((16, 8), (8, 1)), "f32", filter=1)
    with pytest.raises(LayoutError, match="300 x 300 pixels: 65536 at most"):
        plan.svg()


def test_lines_join_each_row_inside_the_tensor():
    plan = tma_gather(Layout((100, 128), (128, 1)), smem_tile((8, 128), "bf16", "K"))
    svg = plan.svg(rows=[7, 7, 0, 99, 50, -1, 20, 130])
    assert re.findall(r'data-line="(\d)"', svg) == ["0", "1", "2", "3", "4", "6"]
    assert svg.count("row 6 of the tile: row 20 of the tensor, instruction") == 2  # two spans of columns
    for named in ("instruction 0", "instruction 3", "outside of the tensor"):
        assert f">{named}</text>" in svg
    assert ">outside of the tensor<" not in plan.svg(rows=range(8)) and "instruction 4" not in svg
    tall = tma_gather(Layout((100, 128), (128, 1)), smem_tile((72, 128), "bf16", "K")).svg()
    assert ">instruction 0, 8, ...</text>" in tall and ">instruction 3, 11, ...</text>" in tall
    assert "nothing is written" in tma_gather(Layout((100, 128), (128, 1)), plan.smem, None, "scatter").svg()
    with pytest.raises(TmaError, match="3 row numbers"):
        plan.svg(rows=[1, 2, 3])
