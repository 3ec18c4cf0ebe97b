"""Four warps multiply 64 x 64 x 16 by mma.sync with ldmatrix loads. Every map is derived and proven.

python atoms/warp_tile.py
"""

from layoutgemm import Layout
from layoutgemm.atoms import TiledMma, ldmatrix, make_tiled_copy_A, make_tiled_copy_B, mma_sync, smem_tile
from layoutgemm.errors import AtomError

atom, ldmatrix_x4 = mma_sync("m16n8k16", "bf16"), ldmatrix(4)

# Two warps along M and two along N. One x4 load fills 16 columns of B, so a warp's tile is 16 wide, not the atom's 8.
mma = TiledMma(atom, (2, 2, 1), (32, 32, 16))
print(f"{mma}\nwarps (lane, m, n, k) -> thread: {mma.thr_layout_vmnk}")
C = mma.view("C", (64, 64))
print(f"C: {mma.fragment('C', (64, 64)).registers} registers a thread, (thread, value, rest) -> (row, column):\n  {C}")
print(f"  element (41, 27) is (thread, value, rest) {C.owner((41, 27))}; C is held once: {C.once().ok}")
A = mma.view("A", (64, 16))
print(f"A: element (41, 11) is held by both warps of its rows: {[who[0] for who in A.owners((41, 11))]}\n")

for operand, make in (("A", make_tiled_copy_A), ("B", make_tiled_copy_B)):
    copy, smem = make(ldmatrix_x4, mma), smem_tile((64, 16), "bf16", "K")
    fragment = Layout(mma.partition_shape(operand, (64, 16)))
    registers, loads = copy.retile(fragment), copy.partition("src", smem.composed)
    print(f"{operand} in shared memory {smem}: thread 37 names rows at {[loads(37, 0, r, 0) for r in range(2)]}")
    print(f"  every row is one 16-byte vector: {copy.vectors('src', smem.composed).ok}; registers {registers}")
    print(f"  each register gets what the product expects there: {copy.feeds(mma, operand, (64, 16)).explain()}")

try:
    make_tiled_copy_B(ldmatrix_x4, TiledMma(atom, (2, 2, 1)))
except AtomError as refusal:
    print(f"\nWithout the wider tile: {refusal}")
