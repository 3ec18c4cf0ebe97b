"""Tile orders of C, and their DRAM reads, which differ by a factor of two.

python kernels/tile_orders.py

Every order is proven to visit each tile of every grid once. Then the program counts the reads of A and B by 132
concurrent CTAs, with a tile of 128 x 256 each, for a product of 8192 x 8192.
"""

from layoutgemm.schedule import Grouped, Hilbert, Linear, Persistent, StreamK, reuse, visits_once

grid, wave, tile = (8192 // 128, 8192 // 256), 132, (128, 256)
orders = {
    "column by column": Linear(),
    "row by row": Linear("N"),
    "groups of 8 rows": Grouped(group=8),
    "groups of 16 rows": Grouped(group=16),
    "groups of 16 rows, there and back": Grouped(group=16, serpentine=True),
    "Hilbert's curve": Hilbert(),
}
print(f"{grid[0]} x {grid[1]} tiles; panels of A (128 rows) and B (256 columns) read by waves of {wave} tiles:")
for name, order in orders.items():
    table, proof = order.table(grid), order.prove()
    counted = reuse(table, wave, tile)
    panels = f"A {sum(counted.rows):5}  B {sum(counted.columns):5}  each used {counted.factor:5.2f} times"
    print(f"  {name:34} {panels}  visits each tile once: {bool(visits_once(table, grid))} [{proof.reason}]")
print(f"  the bound for such waves: each panel is used at most {counted.best:.2f} times on average")

ragged, odd = Persistent(Grouped(group=16), workers=66, cluster=(2, 1)), (63, 31)
print(f"\n66 clusters of 2 x 1 CTAs on {odd[0]} x {odd[1]} tiles: {ragged.steps(odd)} steps.")
print(f"{ragged.idle(odd)} times a CTA is idle. Every tile once, for any grid: {ragged.prove().ok}.")

cut = StreamK(tiles=140, k_tiles=128, workers=132)
parts = ", ".join(f"K tiles {part.first}-{part.last} of tile {part.tile}" for part in cut.segments(5))
print("\n140 tiles on 132 workers take two waves, the second nearly empty. Stream-K splits them along K:")
print(f"worker 5 does {parts}. The busiest does {cut.busiest} K tiles, not {2 * cut.k_tiles},")
print(f"for {cut.workspace(128 * 256 * 4) / 2**20:.0f} MiB of partial sums exchanged.")
