# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
# ---

# %% [markdown]
# # A fragment map: from the PTX picture to a proof
#
# The PTX manual draws the thread of each element of a tensor-core operand, and writes the map as cases. Kernels need it
# as arithmetic, where one wrong register is easy to miss. Here the manual's cases become a layout, and the layout is
# proven equal to the instruction's.

# %%
from layoutgemm import CounterExample, Layout, Proof, dim, smem_tile, wgmma
from layoutgemm.atoms import feeds, ldmatrix, mma_sync
from layoutgemm.layouts.formulas import from_expr
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.view import fragment_svg

# %% [markdown]
# ## The manual's text
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
    return row + 16 * column  # the element's index in the 16 x 16 operand, down the columns


A = from_expr(manual, lane=32, i=8)
assert str(A) == "((4,8),(2,2,2)):((32,1),(16,8,128))"
assert A.is_bijective()  # 256 elements, each held once

# %% [markdown]
# A formula becomes a layout. It is a *thread-value layout*, equal to the library's layout of the instruction:

# %%
atom = mma_sync("m16n8k16", "bf16")
assert A == atom.layout_A
assert isinstance(A.equivalent(atom.layout_A), Proof)
fragment_svg(atom, "A", thread=5)

# %% [markdown]
# The layout also converts back to arithmetic: (row, column) of value v of thread t. This is the line for a kernel:

# %%
assert str(atom.formula("A")) == "(t//4 + 8*((v//2)%2), 8*(v//4) + 2*(t%4) + v%2)"

# %% [markdown]
# ## One wrong register
#
# Exchange two of the bits: a0, a1, a6 and a7 stay right. The answer is a value with the thread, the register, and the
# expected and actual element.


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
# The accumulator of `wgmma.m64nNk16` has a similar map with 128 threads. N is 8 to 256 in steps of 8. One proof with a
# symbol covers all 32 widths.


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
for n in range(8, 257, 8):  # the same layout at each N of the instruction
    assert wgmma(n).layout_C.equivalent(by_digits.at(N=n))
fragment_svg(wgmma(16), "C", thread=37)

# %% [markdown]
# ## The copy that loads it
#
# A fragment also needs its copy. `ldmatrix` distributes 8x8 matrices in its own order, from a swizzled tile. `feeds`
# checks that each register gets the element that the MMA expects, and returns the chain of layouts:

# %%
tile = smem_tile((64, 64), "bf16", "K", "128B")
answer = feeds(ldmatrix(4), tile, atom, "A")
assert isinstance(answer, Proof)
print(answer.explain())

# %% [markdown]
# ## In your tests
#
# All answers are true or false, so a test is one line. The package has a pytest plugin. A failure report shows both
# layouts, the first coordinate at which they differ, and both values.

# %%
tests = {
    "the map in the kernel is the instruction's": A.equivalent(atom.layout_A),
    "each accumulator is written by one thread": wgmma(256).layout_C.is_bijective(),
    "ldmatrix brings what mma.sync wants": feeds(ldmatrix(4), tile, atom, "A"),
}
assert all(tests.values())
