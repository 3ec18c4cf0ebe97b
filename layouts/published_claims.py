"""Claims about GEMM layouts that have been published, checked for every size: proven, or refuted where they first fail.

    python layouts/published_claims.py

Each claim is stated in code, as it was written down for people, and a proof is asked for. What is proven holds for all
sizes that the symbols may take; what is refuted comes with the first coordinate that shows it. `CLAIMS` is the list:
this program prints it, the documentation shows it, tests/test_published_claims.py goes further into each.

Three documents are quoted: a guide to fast Hopper GEMMs, a walkthrough of one Hopper kernel, an Ampere example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from layoutgemm import DescriptorError, Layout, Swizzle, Undecided, dim, smem_tile, wgmma
from layoutgemm.arch import arch
from layoutgemm.atoms import SmemDescriptor
from layoutgemm.checks import Interleaving, Pipeline, ring, shared_memory
from layoutgemm.checks.pipeline.actions import Advance, ForK
from layoutgemm.layouts.formulas import from_expr
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.proofs.digits import minimum
from layoutgemm.layouts.proofs.index_formulas import prove_formulas

SWIZZLE = Swizzle(3, 4, 3, unit="bytes")
M, N, K = dim("M"), dim("N", multiple_of=8), dim("K", multiple_of=64)


@dataclass(frozen=True)
class Claim:
    """One statement that was published.

    topic   what it is about
    source  who says so: guide, walkthrough or example; or "asked", what a reader of it has to ask next
    says    the statement, as published
    ask     gives the answer: a proof, a counterexample, or a check, true or false, with `explain()` or as text
    holds   whether it is true
    right   what is right instead, or what the statement needs
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
    """The guide's, in CUDA."""
    t0, t1, t2 = tid % 4, (tid // 4) % 8, tid // 32
    r0, r1, r2 = reg % 2, (reg // 2) % 2, reg // 4
    return t0 * 128 + t1 + t2 * 16 + r0 * 64 + r1 * 8 + r2 * 512


def walkthrough(tid, reg):
    """The walkthrough's row and column."""
    wid, lane = tid >> 5, tid & 31
    row = (wid << 4) + (lane >> 2) + 8 * (reg % 4 // 2)
    return row + 64 * (((lane & 3) << 1) + reg // 4 * 8 + reg % 2)


def as_commented(tid, reg):
    """What the guide's comment on r0 says: that it moves the row."""
    return get_coord_m64n64(tid, reg) - 63 * (reg % 2)


def example_a(lane, v):
    """Operand A of m16n8k16, as the example loads it."""
    return (lane >> 2) + 8 * (v // 2 % 2) + 16 * (((lane & 3) << 1) + v % 2 + 8 * (v // 4))


# 2. The 128-byte swizzle ----------------------------------------------------------------------------------------------


def swizzled(m, k, pitch):
    """The guide's formula, in elements of bf16."""
    return m * pitch + (k ^ ((m % 8) * 8))


def at_pitch(pitch):
    """Whether it is the swizzle at a pitch, for every number of rows."""
    return prove_formulas(
        lambda m, k: SWIZZLE(2 * (pitch * m + k)), lambda m, k: 2 * swizzled(m, k, pitch), m=M, k=pitch
    )


def atom_by_atom(rows, columns):
    """A tile wider than 64 elements: columns of 64, each of `rows` rows, one after another."""
    return prove_formulas(
        lambda m, k: SWIZZLE(2 * (k // 64 * 64 * rows + 64 * m + k % 64)),
        lambda m, k: 2 * (k // 64 * 64 * rows + swizzled(m, k % 64, 64)),
        m=rows,
        k=columns,
    )


def bank(m, byte):
    """The bank, of 32 of 4 bytes, of a byte of row m."""
    return SWIZZLE(128 * m + byte) // 4 % 32


def phase_is_free():
    """Whether the eight 16-byte rows of one access meet 32 different banks."""
    found = LinearLayout.of(from_expr(lambda w, m: bank(m, 4 * w), w=4, m=8))
    return Found(found.is_bijective(), f"the matrix from word and row bits to bank bits has rank {found.rank} of 5")


# 3. Descriptors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A verdict that is arithmetic, or a refusal, with the reason."""

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
    """Whether eight rows of a tile of k columns lie 8*k*2 bytes apart."""
    tile = smem_tile((64, k), "bf16", "K", swizzle)
    return prove_formulas(lambda m: tile.layout(m + 8, 0) * 2 - tile.layout(m, 0) * 2, lambda m: 8 * k * 2, m=56)


def added_before_the_xor():
    """Adding 32*ki bytes to an address aligned to 1024, before the hardware swizzles it."""
    base = 1024 * dim("base", min=0)
    return prove_formulas(
        lambda m, ki, k: SWIZZLE(base + 32 * ki + 128 * m + 2 * k),
        lambda m, ki, k: base + 2 * swizzled(m, 16 * ki + k, 64),
        m=M,
        ki=4,
        k=16,
    )


def stmatrix_addresses(rows):
    """Each chunk of eight columns goes where the tensor copy looks for it, in a tile of `rows` rows."""
    return prove_formulas(
        lambda row, i: i // 8 * rows * 128 + row * 128 + ((i % 8) ^ (row % 8)) * 16,
        lambda row, i: SWIZZLE(i // 8 * rows * 128 + row * 128 + i % 8 * 16),
        row=rows,
        i=32,
    )


# 4. Loops, orders, budgets --------------------------------------------------------------------------------------------


def without_flip(pipeline: Pipeline) -> Pipeline:
    """The same loops with `stage = (stage + 1) % 4`, the phase left as it is."""
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
    """The guide's section 8.1: num_m = G*q + r rows of tiles, 1 <= r < G, so q full groups and one of r rows."""
    q, r, num_n, gap, s, e = (dim(name) for name in ("q", "r", "num_n", "gap", "s", "e"))
    G = r + gap

    def published(t, num_m=G * q + r, G=G):
        first = t // (G * num_n) * G
        rows = minimum(G, num_m - first)
        return first + t % rows, t % (G * num_n) // rows

    steps = (
        # A tile of a full group: each digit of its number is a digit of its place.
        prove_formulas(
            lambda a, b, c: published(a + G * (b + num_n * c)), lambda a, b, c: (a + G * c, b), a=G, b=num_n, c=q
        ),
        # The last group, where nothing is rotated, and where a column is rotated by s of s + e rows: each row once.
        prove_formulas(lambda a, b: (a + r * b) % r, lambda a, b: a, a=r, b=num_n),
        prove_formulas(lambda a, b: (a + (s + e) * b + s) % (s + e), lambda a, b: a + s, a=e, b=num_n),
        prove_formulas(lambda a, b: (e + a + (s + e) * b + s) % (s + e), lambda a, b: a, a=s, b=num_n),
        # Full groups alone, and a single group that is not full.
        prove_formulas(
            lambda a, b, c: published(a + r * (b + num_n * c), r * q, r), lambda a, b, c: (a + r * c, b),
            a=r, b=num_n, c=q,
        ),
        prove_formulas(lambda a, b: published(a + r * b, r, G), lambda a, b: (a, b), a=r, b=num_n),
    )  # fmt: skip
    return next((step for step in steps if not step), steps[0])


def split_of_k():
    """k to (place in the tile, tile) and back, for every K and BK: T = ceil(K / BK) says K = BK*T - s, 0 <= s < BK."""
    s, extra, T = dim("s", min=0), dim("extra", min=0), dim("T")
    BK = s + 1 + extra
    there = prove_formulas(lambda x, t: ((x + BK * t) % BK, (x + BK * t) // BK), lambda x, t: (x, t), x=BK, t=T)
    back = prove_formulas(lambda k: k % BK + BK * (k // BK), lambda k: k, k=BK * T)
    return back if there else there


def intensity():
    """FLOP for each byte of A and B that a tile of 128x256 brings in."""
    exact = Fraction(2 * 128 * 256, 2 * (128 + 256))
    return Found(exact == 87, f"2*128*256 FLOP for 2*(128 + 256) bytes of each k is {float(exact):.2f}")


def stages_beside_c(stages):
    """Whether so many stages of 128x256x64 fit beside a bf16 tile of C."""
    return shared_memory(arch("sm_90a"), {f"{stages} stages": stages * 2 * (128 + 256) * 64, "C tile": 2 * 128 * 256})


CLAIMS = (
    Claim("accumulator", "guide", "m64nN: t0*128 + t1 + t2*16 + r0*64 + r1*8 + r2*512 is the element of register r",
          lambda: from_expr(get_coord_m64n64, tid=128, reg=32).equivalent(wgmma(64).layout_C), True,
          "Formula in, layout out: `((4,8,4),(2,2,8)):((128,1,16),(64,8,512))`, the instruction's own."),
    Claim("accumulator", "walkthrough", "row (wid << 4) + (lane >> 2) + 8*(reg%4//2), column ((lane & 3) << 1) + ...",
          lambda: prove_formulas(get_coord_m64n64, walkthrough, tid=128, reg=N // 2), True,
          "The same function as the guide's, for every N that 8 divides: asked once, not for each of 32 widths."),
    Claim("accumulator", "guide", "its comment \"r0: even/odd row offset\"",
          lambda: prove_formulas(get_coord_m64n64, as_commented, tid=128, reg=32), False,
          "r0 moves the column. The code is right and its comment is not; who writes an epilogue reads the comment."),
    Claim("fragments", "example",
          "A of m16n8k16: row (lane >> 2) + 8*(v//2%2), column ((lane & 3) << 1) + v%2 + 8*(v//4)",
          lambda: from_expr(example_a, lane=32, v=8).is_bijective(), True,
          "Each of 256 elements once; the layout is `((4,8),(2,2,2)):((32,1),(16,8,128))`."),
    Claim("swizzle", "guide", "index = m*stride + (k ^ ((m % 8) * 8)), stride = 64", lambda: at_pitch(64), True,
          "For every number of rows, if the tile begins at a multiple of 1024 bytes: absolute addresses are XORed."),
    Claim("swizzle", "asked", "the same at stride = 128", lambda: at_pitch(128), False,
          "A wider tile is columns of 64 elements, one after another."),
    Claim("swizzle", "asked", "64-element columns one after another, each of a multiple of 8 rows",
          lambda: atom_by_atom(dim("rows", multiple_of=8), K), True, "For every K that 64 divides."),
    Claim("swizzle", "asked", "64-element columns one after another, each of 12 rows",
          lambda: atom_by_atom(12, 128), False,
          "A column whose height 8 does not divide begins within the pattern."),
    Claim("banks", "guide", "row 0: banks 0..3, row 1: banks 8..11, ... row 7: banks 56..59",
          lambda: prove_formulas(bank, lambda m, byte: 8 * (m % 8) + byte // 4, m=M, byte=16), False,
          "Those are columns of elements. There are 32 banks of 4 bytes: row r's first chunk is in banks 4r to 4r+3."),
    Claim("banks", "guide", "the XOR spreads eight rows over all 32 banks", phase_is_free, True,
          "Without the XOR the rank is 2: an 8-way conflict."),
    Claim("descriptor", "guide", "desc |= 3 << 14 | ... | 1 << 62", published_word, False,
          "The swizzle mode is bits 62 and 63, where 128B is 1; bits 14 and 15 belong to no field."),
    Claim("descriptor", "guide", "SBO = 8*BK*sizeof(bf16), BK = 64 with 128B", lambda: rows_apart(64, "128B"), True,
          "Where the swizzle's span is the row, as also BK = 32 with 64B and 16 with 32B."),
    Claim("descriptor", "asked", "SBO = 8*BK*sizeof(bf16), BK = 128 with 128B", lambda: rows_apart(128, "128B"), False,
          "Eight rows are 1024 bytes apart whatever BK is."),
    Claim("descriptor", "guide", "k_off = ki * (16/16), added to the word at each K step of 16 elements",
          lambda: prove_formulas(lambda ki: 16 * ki * 2 >> 4, lambda ki: ki, ki=4), False,
          "The field counts 16 bytes, and 16 elements of bf16 are 32: 2*ki."),
    Claim("descriptor", "guide", "the step may be added to the address before the XOR", added_before_the_xor, True,
          "Within the 128-byte span, wherever the tile lies, if aligned to 1024 bytes."),
    Claim("store", "guide", "stmatrix: chunk i of row r goes to (i%8) ^ (r%8) of its 64-column tile, BM = 128",
          lambda: stmatrix_addresses(128), True, "For every BM that 8 divides; at BM = 12 it is refuted."),
    Claim("pipeline", "guide", "stage = (stage + 1) % 4 at the end of each k tile, and no word of the phase",
          forgotten_phase, False, "The phase flips where the stage wraps. With it, the ring is proven for any K."),
    Claim("tile order", "guide",
          "GROUP_M: row first_m + tile % rows, column (tile % (GROUP_M*num_n)) // rows; every tile once",
          group_m, True, "For every grid and every GROUP_M. In a last group of fewer rows a column is rotated, since "
          "`tile` is taken and not the number within the group: another order than Triton's, and no fault."),
    Claim("covering", "asked", "ceil(K / BK) tiles cover K once", split_of_k, True,
          "For every K and every BK, in one proof."),
    Claim("budget", "guide", "a 128x256 tile has an intensity of 87 FLOP/byte", intensity, False,
          "And 64 for 128x128, where 65 is printed."),
    Claim("budget", "guide", "128x256x64 in four stages beside a whole bf16 tile of C",
          lambda: stages_beside_c(4), False, "Three stages fit, or four beside 64 columns of C."),
)  # fmt: skip


def main() -> None:
    """Print every claim with its answer, and make sure that it is the one expected."""
    topic = ""
    for claim in CLAIMS:
        if claim.topic != topic:
            topic = claim.topic
            print(f"\n{topic}")
        holds, line = claim.answer()
        print(f"  {claim.source}: {claim.says}\n    {line}" + (f"\n    {claim.right}" if claim.right else ""))
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
