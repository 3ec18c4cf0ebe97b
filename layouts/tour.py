"""A tour of the algebra: layouts, composition, tiling, refusals and swizzles.

python layouts/tour.py
"""

from layoutgemm import ComposedLayout, Layout, Swizzle
from layoutgemm.errors import CompositionError

# A layout is a function from coordinates to offsets, written shape:stride. This one is a 4 x 8 row-major matrix.
row_major = Layout((4, 8), (8, 1))
print("row-major 4 x 8:          ", row_major, "  (2, 3) is at", row_major(2, 3))

# Flat coordinates run along the first mode fastest; offsets() lists the whole function.
print("its offsets, colexicographic:", row_major.offsets()[:6], "...")

# Composition A o B is the function c -> A(B(c)), and again a layout: here, every second column of the matrix.
columns = Layout((4, 4), (1, 8))
even = row_major.compose(columns)
print("every second column:      ", even)
assert all(even(c) == row_major(columns(c)) for c in range(even.size))

# Dividing by a tile gives (inside the tile, which tile): 2 x 4 tiles of the matrix.
tiled = row_major.zipped_divide((2, 4))
print("in tiles of 2 x 4:        ", tiled)
print("first tile's offsets:     ", tiled[0].offsets())

# If no layout has the function A(B(c)), composition raises an error with the failing coordinate.
try:
    Layout((4, 2), (1, 8)).compose(Layout((2, 2), (1, 3)))
except CompositionError as error:
    print("refused:                  ", error)

# A swizzle holds its unit. Hopper's 128-byte swizzle is (3, 4, 3) on bytes and (3, 3, 3) on 2-byte elements.
on_bytes = Swizzle(3, 4, 3, unit="bytes")
on_elements = on_bytes.recast(16)
tile = ComposedLayout(on_elements, 0, Layout((8, 64), (64, 1)))
print("swizzled bf16 tile:       ", tile)
assert all(2 * tile(m, k) == on_bytes(2 * (64 * m + k)) for m in range(8) for k in range(64))
print("row 1 starts at element", tile(1, 0), "in chunk", tile(1, 0) % 64 // 8, "of its row")
