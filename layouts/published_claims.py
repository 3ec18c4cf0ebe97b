"""Published claims about GEMM layouts: each proven for every size, or refuted.

    python layouts/published_claims.py

Each claim is code, as published, and a prover decides it. A proof holds for all sizes of the symbols, and a refutation
names the first failing coordinate. `CLAIMS` is the list. This program prints it, the documentation shows it, and
tests/test_published_claims.py has more on each claim.

The sources are three public documents, which `SOURCES` names by their titles. Each claim names its section.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from layoutgemm import Layout, Swizzle, dim, smem_tile, wgmma
from layoutgemm.arch import arch
from layoutgemm.atoms import SmemDescriptor
from layoutgemm.checks import Interleaving, Pipeline, ring, shared_memory
from layoutgemm.checks.pipeline.actions import Advance, ForK
from layoutgemm.errors import DescriptorError
from layoutgemm.layouts import Undecided
from layoutgemm.layouts.formulas import from_expr
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.proofs.digits import minimum
from layoutgemm.layouts.proofs.index_formulas import prove_formulas

SWIZZLE = Swizzle(3, 4, 3, unit="bytes")
M, N, K = dim("M"), dim("N", multiple_of=8), dim("K", multiple_of=64)


# A short name -> the title of the document
SOURCES = {
    "guide": "From Zero to 800 TFLOPS: A Complete Guide to High-Performance CUDA GEMM on Hopper GPUs",
    "walkthrough": "Hopper GEMM, a page of pyptx's documentation on its examples/hopper/gemm_highperf_hopper.py",
    "example": "Ampere / Gemm Pipelined, a page of pyptx's documentation on its examples/ampere/gemm_pipelined.py",
}


@dataclass(frozen=True)
class Claim:
    """One published statement.

    topic   heading
    source  a name of SOURCES with its section or step, as in "guide 5.3"; or "asked", a follow-up question
    says    the statement: its formula, or its fact in our words
    ask     returns a proof, a counterexample or a check: true or false, with `explain()` or as text
    holds   the expected answer
    right   the correction, or the statement's condition
    """

    topic: str
    source: str
    says: str
    ask: Callable[[], Any]
    holds: bool
    right: str = ""

    def answer(self) -> tuple[bool, str]:
        """(the verdict, its first line)."""
        found = self.ask()
        if isinstance(found, Undecided):
            raise ValueError(f"{self.says}: {found.explain()}")
        text = found.explain() if hasattr(found, "explain") else str(found)
        return bool(found), text.splitlines()[0]


# 1. The accumulator of wgmma m64nNk16 ---------------------------------------------------------------------------------


def get_coord_m64n64(tid, reg):
    """The guide's CUDA code."""
    t0, t1, t2 = tid % 4, (tid // 4) % 8, tid // 32
    r0, r1, r2 = reg % 2, (reg // 2) % 2, reg // 4
    return t0 * 128 + t1 + t2 * 16 + r0 * 64 + r1 * 8 + r2 * 512


def walkthrough(tid, reg):
    """The walkthrough's row and column."""
    wid, lane = tid >> 5, tid & 31
    row = (wid << 4) + (lane >> 2) + 8 * (reg % 4 // 2)
    return row + 64 * (((lane & 3) << 1) + reg // 4 * 8 + reg % 2)


def as_commented(tid, reg):
    """The map if r0 moved the row, as the guide's comment states."""
    return get_coord_m64n64(tid, reg) - 63 * (reg % 2)


def example_a(lane, v):
    """Operand A of m16n8k16 in the example."""
    return (lane >> 2) + 8 * (v // 2 % 2) + 16 * (((lane & 3) << 1) + v % 2 + 8 * (v // 4))


# 2. The 128-byte swizzle ----------------------------------------------------------------------------------------------


def swizzled(m, k, pitch):
    """The guide's formula, in elements of bf16."""
    return m * pitch + (k ^ ((m % 8) * 8))


def at_pitch(pitch):
    """Compares the formula with the swizzle at a pitch, for every number of rows."""
    return prove_formulas(
        lambda m, k: SWIZZLE(2 * (pitch * m + k)), lambda m, k: 2 * swizzled(m, k, pitch), m=M, k=pitch
    )


def atom_by_atom(rows, columns):
    """Compares a wide tile as consecutive 64-element column blocks of `rows` rows."""
    return prove_formulas(
        lambda m, k: SWIZZLE(2 * (k // 64 * 64 * rows + 64 * m + k % 64)),
        lambda m, k: 2 * (k // 64 * 64 * rows + swizzled(m, k % 64, 64)),
        m=rows,
        k=columns,
    )


def bank(m, byte):
    """The 4-byte bank, of 32, of a byte in row m."""
    return SWIZZLE(128 * m + byte) // 4 % 32


def phase_is_free():
    """Checks that the eight 16-byte rows of one access use 32 different banks."""
    found = LinearLayout.of(from_expr(lambda w, m: bank(m, 4 * w), w=4, m=8))
    return Found(found.is_bijective().ok, f"the matrix from word and row bits to bank bits has rank {found.rank} of 5")


# 3. Descriptors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A verdict by arithmetic or by a refusal, with the reason."""

    ok: bool
    reason: str

    def __bool__(self):
        return self.ok

    def explain(self):
        """The reason."""
        return self.reason


def published_word():
    """The guide's descriptor of a tile at 0x8400."""
    try:
        return SmemDescriptor.decode(0x8400 >> 4 | 3 << 14 | (1024 >> 4) << 32 | 1 << 62)
    except DescriptorError as error:
        return Found(False, str(error))


def rows_apart(k, swizzle):
    """Checks that rows r and r + 8 of a k-column tile are 8*k*2 bytes apart."""
    tile = smem_tile((64, k), "bf16", "K", swizzle)
    return prove_formulas(lambda m: tile.layout(m + 8, 0) * 2 - tile.layout(m, 0) * 2, lambda m: 8 * k * 2, m=56)


def added_before_the_xor():
    """Adds 32*ki bytes to an address aligned to 1024, before the hardware's swizzle."""
    base = 1024 * dim("base", min=0)
    return prove_formulas(
        lambda m, ki, k: SWIZZLE(base + 32 * ki + 128 * m + 2 * k),
        lambda m, ki, k: base + 2 * swizzled(m, 16 * ki + k, 64),
        m=M,
        ki=4,
        k=16,
    )


def stmatrix_addresses(rows):
    """Compares stmatrix's chunk addresses with the TMA tile of `rows` rows."""
    return prove_formulas(
        lambda row, i: i // 8 * rows * 128 + row * 128 + ((i % 8) ^ (row % 8)) * 16,
        lambda row, i: SWIZZLE(i // 8 * rows * 128 + row * 128 + i % 8 * 16),
        row=rows,
        i=32,
    )


# 4. Loops, orders, budgets --------------------------------------------------------------------------------------------


def without_flip(pipeline: Pipeline) -> Pipeline:
    """The same loops with `stage = (stage + 1) % 4` and a constant phase."""
    for role in pipeline.roles:
        program = []
        for action in role.program:
            if isinstance(action, ForK):
                body = [Advance(a.cursor, flip=False) if isinstance(a, Advance) else a for a in action.body]
                action = ForK(tuple(body))
            program.append(action)
        pipeline = pipeline.with_program(role.name, tuple(program))
    return pipeline


def forgotten_phase():
    """The guide's section 6.2."""
    found = without_flip(ring(stages=4, bytes=32768)).prove()
    assert isinstance(found, Interleaving)
    step = next(step for step in found.steps if step.k == 4 and "waits for full[0], parity 0" in step.text)
    return Found(False, f"at k = 4, stage 0 again: {step.text}, which passes at once, on what k = 0 left behind")


def group_m():
    """The guide's section 8.1: num_m = G*q + r rows of tiles. As 1 <= r < G, they are q full groups and one of r
    rows."""
    q, r, num_n, gap, s, e = (dim(name) for name in ("q", "r", "num_n", "gap", "s", "e"))
    G = r + gap

    def published(t, num_m=G * q + r, G=G):
        first = t // (G * num_n) * G
        rows = minimum(G, num_m - first)
        return first + t % rows, t % (G * num_n) // rows

    steps = (
        # A tile of a full group: its number and its position have the same digits.
        prove_formulas(
            lambda a, b, c: published(a + G * (b + num_n * c)), lambda a, b, c: (a + G * c, b), a=G, b=num_n, c=q
        ),
        # The last group, without rotation, and with a column rotated by s of s + e rows: each row once.
        prove_formulas(lambda a, b: (a + r * b) % r, lambda a, b: a, a=r, b=num_n),
        prove_formulas(lambda a, b: (a + (s + e) * b + s) % (s + e), lambda a, b: a + s, a=e, b=num_n),
        prove_formulas(lambda a, b: (e + a + (s + e) * b + s) % (s + e), lambda a, b: a, a=s, b=num_n),
        # Only full groups, and a single partial group.
        prove_formulas(
            lambda a, b, c: published(a + r * (b + num_n * c), r * q, r), lambda a, b, c: (a + r * c, b),
            a=r, b=num_n, c=q,
        ),
        prove_formulas(lambda a, b: published(a + r * b, r, G), lambda a, b: (a, b), a=r, b=num_n),
    )  # fmt: skip
    return next((step for step in steps if not step), steps[0])


def split_of_k():
    """Maps k to (index in the tile, tile) and back. T = ceil(K / BK) means K = BK*T - s, 0 <= s < BK."""
    s, extra, T = dim("s", min=0), dim("extra", min=0), dim("T")
    BK = s + 1 + extra
    there = prove_formulas(lambda x, t: ((x + BK * t) % BK, (x + BK * t) // BK), lambda x, t: (x, t), x=BK, t=T)
    back = prove_formulas(lambda k: k % BK + BK * (k // BK), lambda k: k, k=BK * T)
    return back if there else there


def intensity():
    """FLOP per loaded byte of A and B for a 128x256 tile."""
    exact = Fraction(2 * 128 * 256, 2 * (128 + 256))
    return Found(exact == 87, f"2*128*256 FLOP for 2*(128 + 256) bytes of each k is {float(exact):.2f}")


def stages_beside_c(stages):
    """Checks that `stages` stages of 128x256x64 fit beside a bf16 tile of C."""
    return shared_memory(arch("sm_90a"), {f"{stages} stages": stages * 2 * (128 + 256) * 64, "C tile": 2 * 128 * 256})


CLAIMS = (
    Claim("accumulator", "guide 11.2",
          "m64nN: t0*128 + t1 + t2*16 + r0*64 + r1*8 + r2*512 is the element of register r",
          lambda: from_expr(get_coord_m64n64, tid=128, reg=32).equivalent(wgmma(64).layout_C), True,
          "The formula is the layout `((4,8,4),(2,2,8)):((128,1,16),(64,8,512))`, equal to the instruction's."),
    Claim("accumulator", "walkthrough 9", "row (wid << 4) + (lane >> 2) + 8*(reg%4//2), column ((lane & 3) << 1) + ...",
          lambda: prove_formulas(get_coord_m64n64, walkthrough, tid=128, reg=N // 2), True,
          "The same function as the guide's, for every N that 8 divides: one proof for all 32 widths."),
    Claim("accumulator", "guide 11.2", "bit 0 of the register number selects an even or an odd row",
          lambda: prove_formulas(get_coord_m64n64, as_commented, tid=128, reg=32), False,
          "r0 moves the column. The code is right and its comment is wrong."),
    Claim("fragments", "example",
          "A of m16n8k16: row (lane >> 2) + 8*(v//2%2), column ((lane & 3) << 1) + v%2 + 8*(v//4)",
          lambda: from_expr(example_a, lane=32, v=8).is_bijective(), True,
          "Each of 256 elements once; the layout is `((4,8),(2,2,2)):((32,1),(16,8,128))`."),
    Claim("swizzle", "guide 5.4", "index = m*stride + (k ^ ((m % 8) * 8)), stride = 64", lambda: at_pitch(64), True,
          "For every number of rows, if the tile begins at a multiple of 1024 bytes: absolute addresses are XORed."),
    Claim("swizzle", "asked", "the same at stride = 128", lambda: at_pitch(128), False,
          "A wider tile is consecutive column blocks of 64 elements."),
    Claim("swizzle", "asked", "64-element columns one after another, each of a multiple of 8 rows",
          lambda: atom_by_atom(dim("rows", multiple_of=8), K), True, "For every K that 64 divides."),
    Claim("swizzle", "asked", "64-element columns one after another, each of 12 rows",
          lambda: atom_by_atom(12, 128), False,
          "With 12 rows the second column block begins in the middle of the swizzle pattern."),
    Claim("banks", "guide 5.4", "row 0: banks 0..3, row 1: banks 8..11, ... row 7: banks 56..59",
          lambda: prove_formulas(bank, lambda m, byte: 8 * (m % 8) + byte // 4, m=M, byte=16), False,
          "These are element columns. There are 32 banks of 4 bytes: row r's first chunk is in banks 4r to 4r+3."),
    Claim("banks", "guide 5.4", "the XOR spreads eight rows over all 32 banks", phase_is_free, True,
          "Without the XOR the rank is 2: an 8-way conflict."),
    Claim("descriptor", "guide 5.3", "desc |= 3 << 14 | ... | 1 << 62", published_word, False,
          "The swizzle mode is bits 62 and 63, where 128B is 1; bits 14 and 15 belong to no field."),
    Claim("descriptor", "guide 10.2", "SBO = 8*BK*sizeof(bf16), BK = 64 with 128B",
          lambda: rows_apart(64, "128B"), True,
          "It holds if the swizzle spans the row, also for BK = 32 with 64B and BK = 16 with 32B."),
    Claim("descriptor", "asked", "SBO = 8*BK*sizeof(bf16), BK = 128 with 128B", lambda: rows_apart(128, "128B"), False,
          "Rows r and r + 8 are 1024 bytes apart for every BK."),
    Claim("descriptor", "guide 9.5", "k_off = ki * (16/16), added to the word at each K step of 16 elements",
          lambda: prove_formulas(lambda ki: 16 * ki * 2 >> 4, lambda ki: ki, ki=4), False,
          "The field counts 16 bytes, and 16 elements of bf16 are 32: 2*ki."),
    Claim("descriptor", "guide 9.5", "the step may be added to the address before the XOR", added_before_the_xor, True,
          "It holds within the 128-byte span, at every tile address that is a multiple of 1024 bytes."),
    Claim("store", "guide 9.3", "stmatrix: chunk i of row r goes to (i%8) ^ (r%8) of its 64-column tile, BM = 128",
          lambda: stmatrix_addresses(128), True, "For every BM that 8 divides; at BM = 12 it is refuted."),
    Claim("pipeline", "guide 6.2", "stage = (stage + 1) % 4 at the end of each k tile, without the phase",
          forgotten_phase, False, "The phase must flip where the stage wraps. Then the ring is proven for any K."),
    Claim("tile order", "guide 8.1",
          "GROUP_M: row first_m + tile % rows, column (tile % (GROUP_M*num_n)) // rows; every tile once",
          group_m, True, "For every grid and every GROUP_M. In a smaller last group columns are rotated, since `tile` "
          "is not reduced to the group: a valid order that differs from Triton's."),
    Claim("covering", "asked", "ceil(K / BK) tiles cover K once", split_of_k, True,
          "For every K and every BK, in one proof."),
    Claim("budget", "guide 6.4", "a 128x256 tile has an intensity of 87 FLOP/byte", intensity, False,
          "128x128 has 64; the guide prints 65."),
    Claim("budget", "guide 6.3", "128x256x64 in four stages beside a whole bf16 tile of C",
          lambda: stages_beside_c(4), False, "Three stages fit, or four beside 64 columns of C."),
)  # fmt: skip


def main() -> None:
    """Prints every claim with its answer, and compares it with the expected one."""
    for name, title in SOURCES.items():
        print(f"{name:12}{title}")
    topic = ""
    for number, claim in enumerate(CLAIMS, 1):
        if claim.topic != topic:
            topic = claim.topic
            print(f"\n{topic}")
        holds, line = claim.answer()
        print(f"  {number}. {claim.source}: {claim.says}\n    {line}" + (f"\n    {claim.right}" if claim.right else ""))
        assert holds is claim.holds, claim.says

    # The same at any size: two swizzled layouts of 2^40 elements, equal and not.
    a = Swizzle(3, 4, 3) @ Layout((1 << 20, 1 << 20), (1 << 20, 1))
    b = Swizzle(3, 4, 3) @ Layout(((1 << 10, 1 << 10), 1 << 20), ((1 << 20, 1 << 30), 1))
    c = Swizzle(2, 4, 3) @ Layout((1 << 20, 1 << 20), (1 << 20, 1))
    assert LinearLayout.of(a).equivalent(b) and not LinearLayout.of(a).equivalent(c)
    wrong = sum(not claim.holds for claim in CLAIMS)
    print(f"\n{len(CLAIMS)} claims decided as expected: {len(CLAIMS) - wrong} hold, {wrong} do not")


if __name__ == "__main__":
    main()
