# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
# ---

# %% [markdown]
# # From a layout to a descriptor
#
# `wgmma` reads its operands through a 64-bit descriptor, and TMA writes them through a tensor map. Both must describe
# the same bytes. A mismatch raises no error and gives a wrong product. Here box, descriptor and K steps are derived
# from the tile's layout and compared with every element.

# %%
import numpy as np

from layoutgemm import Layout, dims, smem_tile, wgmma
from layoutgemm.atoms import SmemDescriptor, diff, tma_load
from layoutgemm.atoms.smem.descriptor import derive, element_addresses
from layoutgemm.errors import DescriptorError, TmaError
from layoutgemm.view import swizzle_svg

# %% [markdown]
# ## The tile
#
# 128 rows of A, 64 deep, bf16, K contiguous. One row is 128 bytes, so the 128-byte swizzle spans it.

# %%
tile = smem_tile((128, 64), "bf16", "K", "128B")
assert str(tile) == "S<3,4,3>[bytes] o ((8,16),(64,1)):((64,512),(1,0)) x bf16"
assert tile.byte(1, 0) == 128 + 16  # row 1 begins in chunk 1
swizzle_svg(tile.composed, 16, rows=range(16))

# %% [markdown]
# ## The TMA load
#
# The global layout and the tile determine the box, its swizzle, the number of instructions, and the tensor map's
# conditions on symbolic sizes.

# %%
M, K = dims("M K", multiple_of=64)
copies = tma_load(Layout((M, K), (K, 1)), tile)
assert copies.box == (64, 128) and len(copies.instructions) == 1 and copies.swizzle == "128B"
print(copies.explain())

# %% [markdown]
# An error names the violated rule and the nearest valid layout:

# %%
try:
    tma_load(Layout((4096, 500), (500, 1)), tile)
except TmaError as error:
    refusal = str(error)
assert refusal.endswith("a tensor map needs a multiple of 16; nearest that works: global layout (4096,500):(504,1)")

# %% [markdown]
# ## The descriptor
#
# The descriptor has a start address, two strides and a swizzle mode. They come from the layout, each with its reason.

# %%
found = derive(tile, wgmma(128), "A")
assert found.word == 0x4000004000010000
print(found.explain())

# %% [markdown]
# ## Steps along K
#
# An MMA takes 16 elements of K, 32 bytes. The address field counts 16 bytes, so the descriptor grows by 2. (A published
# kernel adds 1.) In a tile of 128 columns the fifth step leaves the 128-byte span and moves to the next column of
# atoms.

# %%
assert found.k_steps == (0, 32, 64, 96) and str(found.k_advance) == "4:2"
wide = derive(smem_tile((128, 128), "bf16", "K", "128B"), wgmma(128), "A")
assert wide.k_steps == (0, 32, 64, 96, 16384, 16416, 16448, 16480)

# %% [markdown]
# ## Every element
#
# An independent model checks the derivation. `element_addresses` decodes a descriptor as the PTX manual describes,
# without the tile. For the step at K = 16 of a tile at address 1024:

# %%
word = found.at(1024, k_block=1).word
m, k = np.meshgrid(np.arange(64), np.arange(16, 32), indexing="ij")
assert (element_addresses(word, "K", (64, 16), tile.dtype) == 1024 + tile.byte(m, k)).all()

# %% [markdown]
# ## A layout without a descriptor
#
# Padded rows, common for `ldmatrix`, have no descriptor. The error names the first element that wgmma would read at
# another address:

# %%
try:
    derive(Layout((64, 64), (72, 1)), wgmma(64), "A")
except DescriptorError as error:
    padded = str(error)
assert "element (mn, k) = (1, 0) would be read at byte 16, the tile holds it at byte 144" in padded

# %% [markdown]
# ## Decoding another descriptor
#
# A guide builds its descriptor with `3 << 14` and `1 << 62`. Bits 14 and 15 belong to no field:

# %%
published, right = 0x400000400000C840, 0x4000004000010840
try:
    SmemDescriptor.decode(published)
except DescriptorError as error:
    assert str(error).endswith("sets bits 14, 15, outside the sm_90 fields")
for change in diff(published, right):
    print(change.text)
