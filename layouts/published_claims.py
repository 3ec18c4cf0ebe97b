"""Claims about GEMM layouts that have been published, checked for every size: proven, or refuted where they first fail.

    python layouts/published_claims.py

Each step states a claim in code, as it was written down for people, and asks for a proof. What is proven holds for all
sizes that the symbols may take; what is refuted comes with the first coordinate that shows it.
"""

from layoutgemm import Layout, Swizzle
from layoutgemm.layouts.digit_proof import prove_formulas
from layoutgemm.layouts.formula import expr, from_expr
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.symbolic import dim


def show(claim: str, answer: object, holds: bool) -> None:
    print(f"  {claim}\n    {answer.explain().splitlines()[0]}")
    assert bool(answer) is holds, answer


# ----------------------------------------------------------------------------------------------------------------------
print("1. The accumulator of wgmma m64nNk16, as a guide prints it in CUDA")


def get_coord_m64n64(tid, reg):
    t0, t1, t2 = tid % 4, (tid // 4) % 8, tid // 32
    r0, r1, r2 = reg % 2, (reg // 2) % 2, reg // 4
    return t0 * 128 + t1 + t2 * 16 + r0 * 64 + r1 * 8 + r2 * 512


fragment = from_expr(get_coord_m64n64, tid=128, reg=32)
print("  formula in, layout out:", fragment)
print("  and back again:        ", expr(fragment, "t", "r"))
assert fragment == Layout(((4, 8, 4), (2, 2, 8)), ((128, 1, 16), (64, 8, 512)))


def walkthrough(tid, reg):
    wid, lane = tid >> 5, tid & 31
    row = (wid << 4) + (lane >> 2) + 8 * (reg % 4 // 2)
    column = ((lane & 3) << 1) + reg // 4 * 8 + reg % 2
    return row + 64 * column


N = dim("N", multiple_of=8)
answer = prove_formulas(get_coord_m64n64, walkthrough, tid=128, reg=N // 2)
show("another author's row and column, for every N that 8 divides:", answer, True)
show(
    'its comment "r0: row offset" (r0 moves the column):',
    prove_formulas(get_coord_m64n64, lambda tid, reg: get_coord_m64n64(tid, reg) - 63 * (reg % 2), tid=128, reg=32),
    False,
)

# ----------------------------------------------------------------------------------------------------------------------
print("\n2. The 128-byte swizzle of a bf16 tile is k ^ ((m % 8) * 8)")

swizzle, M = Swizzle(3, 4, 3, unit="bytes"), dim("M")


def formula(m, k, pitch):
    return m * pitch + (k ^ ((m % 8) * 8))


answer = prove_formulas(lambda m, k: swizzle(2 * (64 * m + k)), lambda m, k: 2 * formula(m, k, 64), m=M, k=64)
show("at a pitch of 64 elements, for every number of rows:", answer, True)
answer = prove_formulas(lambda m, k: swizzle(2 * (128 * m + k)), lambda m, k: 2 * formula(m, k, 128), m=M, k=128)
show("at a pitch of 128 elements:", answer, False)
print("  as a formula:", expr(from_expr(lambda m, k: formula(m, k, 64), m=64, k=64), "m", "k"))

# A tile wider than 64 elements is 64-element columns of atoms, one after another. How many rows may it have?
rows, K = dim("rows"), dim("K", multiple_of=64)


def tiled(m, k, rows):
    return swizzle(2 * (k // 64 * 64 * rows + 64 * m + k % 64))


def atom_by_atom(m, k, rows):
    return 2 * (k // 64 * 64 * rows + formula(m, k % 64, 64))


answer = prove_formulas(lambda m, k: tiled(m, k, rows), lambda m, k: atom_by_atom(m, k, rows), m=rows, k=K)
show("64-element columns of any number of rows, nothing known of it:", answer, False)
rows = dim("rows", multiple_of=8)
answer = prove_formulas(lambda m, k: tiled(m, k, rows), lambda m, k: atom_by_atom(m, k, rows), m=rows, k=K)
show("the same, given that 8 divides the rows:", answer, True)

# ----------------------------------------------------------------------------------------------------------------------
print("\n3. Banks: 32 of 4 bytes, not the columns of elements that a picture showed")


def bank(m, byte):
    return swizzle(128 * m + byte) // 4 % 32


show(
    "row r, first chunk, is in banks 4r .. 4r+3:",
    prove_formulas(bank, lambda m, byte: 4 * (m % 8) + byte // 4, m=M, byte=16),
    True,
)
show('"row 1: banks 8..11":', prove_formulas(bank, lambda m, byte: 8 * (m % 8) + byte // 4, m=M, byte=16), False)
for name, f in (("swizzled", bank), ("plain", lambda m, byte: (128 * m + byte) // 4 % 32)):
    matrix = LinearLayout.of(from_expr(lambda w, m, f=f: f(m, 4 * w), w=4, m=8), names=("word", "row"))
    print(f"  {name}: 8 rows of 16 bytes meet {matrix.size >> matrix.rank}-way; bank bits by word and row bits:")
    print("\n".join("    " + line for line in str(matrix).splitlines()))

# ----------------------------------------------------------------------------------------------------------------------
print("\n4. One K step of 16 elements in a descriptor that counts 16 bytes")

show("k_off = ki * (16/16):", prove_formulas(lambda ki: 16 * ki * 2 >> 4, lambda ki: ki, ki=4), False)
base = 1024 * dim("base", min=0)
answer = prove_formulas(
    lambda m, ki, k: swizzle(base + 32 * ki + 128 * m + 2 * k),
    lambda m, ki, k: base + 2 * formula(m, 16 * ki + k, 64),
    m=M,
    ki=4,
    k=16,
)
show("adding 32*ki to an address aligned to 1024 before the XOR, for every such address:", answer, True)

# ----------------------------------------------------------------------------------------------------------------------
print("\n5. Splitting K by BK covers it once, for every K and every BK")

s, extra, T = dim("s", min=0), dim("extra", min=0), dim("T")
BK = s + 1 + extra  # T = ceil(K / BK) says K = BK*T - s with 0 <= s < BK
there = prove_formulas(lambda x, t: ((x + BK * t) % BK, (x + BK * t) // BK), lambda x, t: (x, t), x=BK, t=T)
back = prove_formulas(lambda k: k % BK + BK * (k // BK), lambda k: k, k=BK * T)
show("place in the tile and tile, to k, and back:", there, True)
show("k to place in the tile and tile, and back:", back, True)

# ----------------------------------------------------------------------------------------------------------------------
print("\n6. At any size: two swizzled layouts of 2^40 elements")

a = Swizzle(3, 4, 3) @ Layout((1 << 20, 1 << 20), (1 << 20, 1))
b = Swizzle(3, 4, 3) @ Layout(((1 << 10, 1 << 10), 1 << 20), ((1 << 20, 1 << 30), 1))
c = Swizzle(2, 4, 3) @ Layout((1 << 20, 1 << 20), (1 << 20, 1))
show(f"{a} and {b}:", LinearLayout.of(a).equivalent(b), True)
show(f"{a} and {c}:", LinearLayout.of(a).equivalent(c), False)
print("\nall claims decided as expected")
