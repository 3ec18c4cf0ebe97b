"""Shared-memory descriptors: derived from every layout that wgmma can read.

python atoms/hopper_operands.py
"""

from layoutgemm.atoms import SPANS, smem_tile, wgmma
from layoutgemm.atoms.smem.descriptor import derive
from layoutgemm.atoms.tma.derive import derive as derive_tma

atom = wgmma(128)
print(f"{atom}\naccumulator (thread, value) -> row + 64*column: {atom.layout_C}")
print(f"value 5 of thread 37 is (row, column) = {atom.coords_C(37, 5)}\n")

# One 128 x 64 tile of B for each major and swizzle. K-major means that K is contiguous.
print(f"{'tile':>12}  {'descriptor':>18}  {'leading':>7} {'stride':>6}  steps along K        TMA boxes")
for major, dims in (("K", ("k", "n")), ("MN", ("n", "k"))):
    for swizzle in reversed(SPANS):
        tile = smem_tile((128, 64), "bf16", major, swizzle)
        word = derive(tile, atom, "B")  # raises unless every element's address agrees
        copies = derive_tma(tile, dims)
        box = "x".join(map(str, copies.box))
        steps = ", ".join(map(str, word.k_steps))
        base = word.base
        fields = f"{word.word:#018x}  {base.leading_bytes:>7} {base.stride_bytes:>6}"
        print(f"{major + ', ' + swizzle:>12}  {fields}  {steps:<20} {len(copies.instructions)} x {box}")

print("\nThe first descriptor, field by field:")
print(derive(smem_tile((128, 64), "bf16", "K", "128B"), atom, "B").explain())
