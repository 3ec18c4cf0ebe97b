# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
# ---

# %% [markdown]
# # A fragment map: from the PTX picture to a proof
#
# The PTX manual draws which thread holds which element of a tensor-core operand, and writes it as cases. Kernels need
# it as arithmetic, and get it wrong in the register that nobody printed. Here the cases are typed in as they stand in
# the manual, turned into a layout, and the layout is proven to be the instruction's.

# %%
from layoutgemm import CounterExample, Layout, Proof, dim, smem_tile, wgmma
from layoutgemm.atoms import feeds, ldmatrix, mma_sync
from layoutgemm.layouts.formulas import from_expr
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.view import fragment_svg

# %% [markdown]
# ## The manual's words
#
# PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", operand A, values a0 to a7, with `groupID =
# lane >> 2` and `threadID_in_group = lane % 4`:
#
# - row: groupID for a0, a1, a4, a5; groupID + 8 for the others
# - column: threadID_in_group * 2 + (i & 1) for i < 4; the same + 8 for the others


# %%
def manual(lane, i):
    group, in_group = lane >> 2, lane % 4
    row = group + 8 * ((i // 2) % 2)  # a2, a3, a6, a7
    column = in_group * 2 + i % 2 + 8 * (i // 4)  # a4 to a7
    return row + 16 * column  # the element's place in the 16 x 16 operand, counted down the columns


A = from_expr(manual, lane=32, i=8)
assert str(A) == "((4,8),(2,2,2)):((32,1),(16,8,128))"
assert A.is_bijective()  # 256 elements, each held once

# %% [markdown]
# Formula in, layout out. It is a *thread-value layout*, and it is the one that the library has for the instruction:

# %%
atom = mma_sync("m16n8k16", "bf16")
assert A == atom.layout_A
assert isinstance(A.equivalent(atom.layout_A), Proof)
fragment_svg(atom, "A", thread=5)

# %% [markdown]
# And back into arithmetic, as (row, column) of value v of thread t. This is the line to put into a kernel, if you
# must:

# %%
assert str(atom.formula("A")) == "(t//4 + 8*((v//2)%2), 8*(v//4) + 2*(t%4) + v%2)"

# %% [markdown]
# ## One wrong register
#
# Exchange two of the bits: a0, a1, a6 and a7 stay right. The answer is a value: which thread, which register, what it
# should hold and what it holds.


# %%
def swapped(lane, i):
    group, in_group = lane >> 2, lane % 4
    return group + 8 * (i // 4) + 16 * (in_group * 2 + i % 2 + 8 * ((i // 2) % 2))


found = prove_formulas(manual, swapped, lane=32, i=8)
assert isinstance(found, CounterExample)
assert (found.coord, found.left, found.right) == ((0, 2), 8, 128)  # lane 0, a2: row 8, not column 8

# %% [markdown]
# ## wgmma, for every N
#
# The accumulator of `wgmma.m64nNk16` is the same story with 128 threads. N is 8 to 256 in steps of 8, so the proof is
# asked for once, with a symbol, and not 32 times.


# %%
def published(tid, reg):
    warp, lane = tid >> 5, tid & 31
    row = (warp << 4) + (lane >> 2) + 8 * (reg % 4 // 2)
    column = ((lane & 3) << 1) + reg // 4 * 8 + reg % 2
    return row + 64 * column


N = dim("N", multiple_of=8)
by_digits = Layout(((4, 8, 4), (2, 2, N // 8)), ((128, 1, 16), (64, 8, 512)))
proof = prove_formulas(published, by_digits, tid=128, reg=N // 2)
assert isinstance(proof, Proof)
for n in range(8, 257, 8):  # the same layout at each N that the instruction has
    assert wgmma(n).layout_C.equivalent(by_digits.at(N=n))
fragment_svg(wgmma(16), "C", thread=37)

# %% [markdown]
# ## What feeds it
#
# A fragment is half of the truth: `ldmatrix` deals out 8x8 matrices in an order of its own, from a tile that is
# swizzled. `feeds` asks whether each register ends up with the element that the product expects there, and returns
# the chain of layouts that shows it:

# %%
tile = smem_tile((64, 64), "bf16", "K", "128B")
answer = feeds(ldmatrix(4), tile, atom, "A")
assert isinstance(answer, Proof)
print(answer.explain())

# %% [markdown]
# ## In your tests
#
# All of these are values that are true or false, so a test is one line. The package brings a pytest plugin: when the
# line fails, the report shows both layouts, the first coordinate at which they differ, and both values.

# %%
tests = {
    "the map in the kernel is the instruction's": A.equivalent(atom.layout_A),
    "each accumulator is written by one thread": wgmma(256).layout_C.is_bijective(),
    "ldmatrix brings what mma.sync wants": feeds(ldmatrix(4), tile, atom, "A"),
}
assert all(tests.values())
