# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
# ---

# %% [markdown]
# # Layouts in ten minutes
#
# A layout is a function from coordinates to offsets, written `shape:stride`. Tiles, threads, fragments and copies are
# compositions of such functions. This notebook needs no GPU.

# %%
from layoutgemm import CounterExample, Layout, Proof, dim, prove
from layoutgemm.errors import CompositionError

row_major = Layout((4, 8), (8, 1))
assert row_major(2, 3) == 2 * 8 + 3 * 1
row_major

# %% [markdown]
# Cell *(i, j)* of the picture prints its offset. A mode may itself be a tuple. Its coordinate is then split, leftmost
# digit fastest. Here the columns count as (2, 4): stride 1 within a pair, stride 8 between pairs. Each pair of columns
# is contiguous in memory. One stride per dimension cannot express that; CuTe's nested modes can.

# %%
paired = Layout((4, (2, 4)), (2, (1, 8)))
assert paired(3, 5) == 3 * 2 + 1 * 1 + 2 * 8  # column 5 is digit 1 of pair 2
assert paired(3, 5) == paired(3, (1, 2)) == paired(23)  # one number for all: 3 + 4*5
paired

# %% [markdown]
# ## Equal or equivalent
#
# `==` compares shape and stride. `equivalent` compares the functions, and returns a proof or the first coordinate that
# differs.

# %%
written, short = Layout((2, (1, 4), 3), (1, (5, 2), 8)), Layout(24)
assert written != short and written.coalesce() == short
assert written.equivalent(short)

answer = Layout((4, 8), (8, 1)).equivalent(Layout((4, 8), (8, 2)))
assert isinstance(answer, CounterExample) and (answer.coord, answer.left, answer.right) == ((0, 1), 1, 2)

# %% [markdown]
# ## Composition
#
# `A.compose(B)` (or `A @ B`) is the layout of c -> A(B(c)): B selects the elements, and A gives their offsets. Every
# second column of the matrix is the matrix composed with "every second column":

# %%
every_second = Layout((4, 4), (1, 8))  # 4 x 4 elements out of 4 x 8, counted down the columns
chosen = row_major @ every_second
assert str(chosen) == "(4,4):(8,2)"
assert all(chosen(c) == row_major(every_second(c)) for c in range(chosen.size))
chosen

# %% [markdown]
# Some compositions of layouts are not layouts. Then you get an error with the operands and the coordinate. Other
# implementations return wrong offsets for this one: 0, 1, 3, 4 in place of 0, 1, 3, 8.

# %%
try:
    Layout((4, 2), (1, 8)) @ Layout((2, 2), (1, 3))
except CompositionError as error:
    refusal = error
assert refusal.witness == 3
print(refusal)

# %% [markdown]
# ## Tiles, then threads
#
# Dividing by a tile splits every coordinate into (inside the tile, which tile). It is a composition too.

# %%
tiled = row_major.zipped_divide((2, 4))
assert str(tiled) == "((2,4),(2,2)):((8,1),(16,4))"
inside, which = tiled[0], tiled[1]
assert [which(i) for i in range(4)] == [0, 16, 4, 20]  # offset of each tile's first element

# %% [markdown]
# A thread-value layout maps (thread, value) to an element. Compose the matrix with it and fix the thread to get that
# thread's addresses. Each of eight threads has a 2 x 2 block:

# %%
tv = Layout(((2, 4), (2, 2)), ((2, 8), (1, 4)))  # into the 4 x 8, its elements counted down the columns
assert tv.is_bijective()  # each element has exactly one owner
addresses = row_major @ tv
assert [addresses(3, v) for v in range(4)] == [18, 26, 19, 27]

# %%
from layoutgemm.view import tv_svg

tv_svg(tv, (4, 8), thread=3)

# %% [markdown]
# Values 0 and 1 of a thread are 8 apart in memory: four loads of one element. After exchanging the two modes of the
# values they are neighbours, and one load brings two. The algebra shows this before a profiler does:

# %%
by_row = Layout(((2, 4), (2, 2)), ((2, 8), (4, 1)))
assert addresses[1].max_common_vector(Layout(4)) == 1
assert (row_major @ by_row)[1].max_common_vector(Layout(4)) == 2

# %% [markdown]
# ## For all sizes
#
# Extents and strides may be symbols with facts. The result is a proof for every size that the facts allow, or the
# smallest size at which the claim fails.

# %%
M, N = dim("M", multiple_of=64), dim("N")
tiles = Layout((M, N), (N, 1)).zipped_divide((64, N))
assert str(tiles) == "((64,N),(M//64,1)):((N,1),(64*N,0))"

assert isinstance(prove(Layout((64, M // 64), (1, 64)), Layout(M)), Proof)  # splitting M and merging it
wrong = prove(Layout((M, N), (N, 1)), Layout((M, N)))  # row-major is column-major?
assert wrong.explain() == "not equivalent at M=64, N=2: (1,0) gives 2 and 1"
print(wrong.explain())

# %% [markdown]
# Next: fragments of tensor cores are thread-value layouts (`02_fragment_map`), swizzles are layouts with an XOR
# (`03_swizzle_128b`), and a descriptor encodes a tile's layout in 64 bits (`04_layout_to_descriptor`).
