# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
# ---

# %% [markdown]
# # Why the 128-byte swizzle works
#
# "XOR the chunk with the row" removes bank conflicts. This notebook computes the reason: why three bits, why these
# bits, and when it fails. Banks are address bits, a swizzle is a linear map of address bits, and a conflict is a rank
# deficit.

# %%
from layoutgemm import CounterExample, Layout, Proof, Swizzle, dim, smem_tile
from layoutgemm.checks import bank_conflicts, find_padding, find_swizzle, matrix_access, thread_access, tma_access
from layoutgemm.layouts.formulas import from_expr
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.view import swizzle_svg

# %% [markdown]
# ## The conflict
#
# Shared memory has 32 banks of 4 bytes, 128 bytes in total. A K-major bf16 tile of 64 columns has rows of 128 bytes, so
# column 0 of every row is in bank 0. `ldmatrix` reads eight rows of 16 bytes at a time.

# %%
plain = Layout((64, 64), (64, 1))
rows = matrix_access((64, 64), "bf16")
report = bank_conflicts(plain, rows, element="bf16")
assert report.ways == 8 and report.wavefronts == 8 * report.minimum
print(report.explain())

# %%
swizzle_svg(Layout((8, 64), (64, 1)), 16)

# %% [markdown]
# Each column of the picture has one colour: one group of four banks for eight rows. Every read takes eight passes.
#
# ## The XOR
#
# Row r stores its 16-byte chunk c at chunk c ^ (r % 8). In bytes, chunk bits are 4 to 6 and row bits 7 to 9. Bits 7 to
# 9 are XORed into bits 4 to 6: `Swizzle(3, 4, 3)` has three bits, base bit 4 and shift 3.

# %%
swizzle = Swizzle(3, 4, 3, unit="bytes")
assert swizzle.recast(16) == Swizzle(3, 3, 3, unit=16)  # in bf16 elements, as CuTe prints it
tile = smem_tile((64, 64), "bf16", "K", "128B")
assert tile.swizzle == swizzle
swizzled = bank_conflicts(tile, rows)
assert swizzled.ways == 1 and swizzled.wavefronts == swizzled.minimum
swizzle_svg(smem_tile((8, 64), "bf16", "K", "128B").composed, 16)

# %% [markdown]
# Each column now has eight colours, and so has each row. TMA writes rows and has no conflict either. The swizzle uses
# no extra bytes.

# %%
assert bank_conflicts(tile, [tma_access(tile), rows]).ways == 1

# %% [markdown]
# ## The reason, as a matrix
#
# A matrix over GF(2) maps the access to its bank: row and word bits in, bank bits out. 8 rows of 4 words are 32 = 2^5
# accesses for 32 = 2^5 banks. They are conflict-free exactly if the matrix has rank 5.


# %%
def bank(byte_address):
    return byte_address // 4 % 32


without = LinearLayout.of(from_expr(lambda word, row: bank(128 * row + 4 * word), word=4, row=8), names=("word", "row"))
with_xor = LinearLayout.of(
    from_expr(lambda word, row: bank(swizzle(128 * row + 4 * word)), word=4, row=8), names=("word", "row")
)
assert without.rank == 2 and without.size >> without.rank == 8  # 8-way: three row bits reach no bank
assert with_xor.rank == 5 and with_xor.is_bijective()
print(without, with_xor, sep="\n\n")

# %% [markdown]
# ## The search
#
# Given only the tile and the accesses, the search finds the swizzle, or proves that none exists. No swizzle serves both
# `ldmatrix` and a column of single elements. 32 lanes in 32 rows need five row bits in the bank, and 16-byte vectors
# leave three.

# %%
found = find_swizzle(plain, rows, element="bf16")
assert found.swizzle == swizzle and found.method == "GF(2) rank"
column = thread_access(Layout(32, 1), name="a column")
both = find_swizzle(plain, [rows, column], element="bf16")
assert not both
print(found, both.explain().splitlines()[0], sep="\n")

# %% [markdown]
# Padding by 8 elements per row also works if threads write the tile. wgmma has no descriptor for padded rows.

# %%
assert find_padding((64, 64), rows, "bf16").pitch == 72

# %% [markdown]
# ## The usual formula
#
# `m * pitch + (k ^ ((m % 8) * 8))` is the swizzle at a pitch of 64 bf16 elements, for any number of rows. At a pitch of
# 128 it is not, and the first wrong element is (0, 64). A wider tile is *two* column blocks of 64, one after the other.

# %%
M = dim("M")


def copied(m, k, pitch):
    return m * pitch + (k ^ ((m % 8) * 8))


at_64 = prove_formulas(lambda m, k: swizzle(2 * (64 * m + k)), lambda m, k: 2 * copied(m, k, 64), m=M, k=64)
at_128 = prove_formulas(lambda m, k: swizzle(2 * (128 * m + k)), lambda m, k: 2 * copied(m, k, 128), m=M, k=128)
assert isinstance(at_64, Proof)
assert isinstance(at_128, CounterExample) and at_128.coord == (0, 64)
print(at_64.explain().splitlines()[0], at_128.explain(), sep="\n")
