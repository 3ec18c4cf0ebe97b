"""Eight rows of a tile conflict in one bank group. The 128-byte swizzle spreads them by an XOR.

python atoms/bank_conflicts.py
"""

from layoutgemm import Layout
from layoutgemm.atoms import smem_tile
from layoutgemm.checks import bank_conflicts, find_padding, find_swizzle, matrix_access, thread_access, tma_access

# A 128 x 64 tile of bf16: rows of 128 bytes, the width of 32 banks of 4 bytes.
plain = Layout((128, 64), (64, 1))
rows = matrix_access((128, 64), "bf16", name="ldmatrix")
report = bank_conflicts(plain, rows, element="bf16")
assert report.ways == 8
print(f"unswizzled, {plain}: ldmatrix reads 8 rows of 16 bytes at a time\n{report.explain()}\n")

# The TMA tile stores chunk c of row r at chunk c ^ (r % 8). Writes and reads are conflict-free.
tile = smem_tile((128, 64), "bf16", "K", "128B")
swizzled = bank_conflicts(tile, [tma_access(tile), rows])
assert swizzled.ways == 1 and swizzled.wavefronts == swizzled.minimum
print(f"{tile}\n{swizzled.explain()}\n")
print("banks of 16 bytes at (row, 0): " + ", ".join(f"{int(tile.byte(r, 0)) // 4 % 32}.." for r in range(8)) + "\n")

# The search finds the swizzle from the accesses alone, and a padded pitch that costs 2 KiB more.
copy = thread_access(Layout(((8, 16), (8, 8)), ((128 * 8, 1), (128, 16))), 8, "cp.async", "cp.async")
found = find_swizzle(plain, [copy, rows], element="bf16")
padded = find_padding((128, 64), [copy, rows], "bf16")
assert found.swizzle == tile.swizzle and padded.pitch == 72
print(f"{found}\n{padded}\n")

# With scalar columns too, five row bits would have to reach the banks, and 16-byte vectors leave three.
column = thread_access(Layout(32, 1), name="a column")
both = find_swizzle(plain, [rows, column], element="bf16")
assert find_swizzle(plain, column, element="bf16") and not both
print(f"rows and columns at once: {both.explain().splitlines()[0]}")
