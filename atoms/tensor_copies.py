"""TMA instructions per tile: tilings with large boxes, and layouts without a tensor map.

python atoms/tensor_copies.py
"""

from layoutgemm import Layout, dims
from layoutgemm.atoms import SmemTile, smem_tile, tma_load
from layoutgemm.checks import filled_by, tiles_cover
from layoutgemm.errors import TmaError

M, K, B = dims("M K B", multiple_of=64)
rows, columns = Layout((M, K), (K, 1)), Layout((M, K), (1, M))

print(f"{'global layout':>24}  {'shared tile (bf16)':<34} {'box, innermost first':<26} instructions")
for gmem, smem, tile, options in (
    (rows, smem_tile((128, 64), "bf16", "K", "128B"), None, {}),
    (rows, smem_tile((128, 64), "bf16", "K", "none"), None, {}),  # 16 bytes of a row at a time
    (columns, smem_tile((128, 64), "bf16", "MN", "128B"), None, {}),
    (columns, smem_tile((128, 64), "bf16", "MN", "128B"), None, {"split": True}),  # M seen as (64, M/64)
    (rows, smem_tile((128, 128), "bf16", "K", "128B"), None, {"multicast": 2}),  # one box per CTA of two
    (Layout((M, K, B), (K, 1, M * K)), Layout((128, 32, 2), (32, 1, 4096)), None, {}),
    (rows, Layout((64, 64), (64, 1)), (Layout(64, 2), 64), {}),  # every second row
):
    plan = tma_load(gmem, smem, "bf16", tile=tile, **options)
    box = " x ".join(f"{name} {extent}" for name, extent in zip(plan.dims, plan.box, strict=True))
    shown = f"{smem.major}-major, {smem.swizzle_name}, {smem.extent}" if isinstance(smem, SmemTile) else str(smem)
    each = f", {len(plan.issued_by(0))} per CTA" if plan.multicast > 1 else ""
    print(f"{gmem!s:>24}  {shown:<34} {box:<26} {len(plan.instructions)}{each}")
    assert filled_by("tile", smem, plan) and tiles_cover("tensor", plan)  # each element once, for all M, K, B

print("\nA pitch of 1000 bytes, and the nearest valid layout:")
try:
    tma_load(Layout((4096, 500), (500, 1)), smem_tile((128, 64), "bf16", "K"))
except TmaError as error:
    print(f"  {error}")
    print("  " + error.nearest.plan().explain().replace("\n", "\n  "))
