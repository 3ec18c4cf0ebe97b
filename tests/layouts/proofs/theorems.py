"""Theorems about layouts of any size: the tests prove them, `benchmarks/bench_proofs.py` times them.

Each theorem is a function that states its objects and facts and asks for the proofs of its parts; `mutants` asks the
same of statements that look alike and are false. Parts are (text, answer, method that should decide).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from layoutgemm import E, Layout, Swizzle
from layoutgemm.layouts import make_layout
from layoutgemm.layouts.proofs.digits import minimum
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.layouts.proofs.prove import covers, disjoint, injective, prove
from layoutgemm.layouts.symbols.dims import dim, dims
from layoutgemm.layouts.symbols.facts import Facts


class Part(NamedTuple):
    """A statement, its answer, and the method that should give it; of a mutant, ""."""

    text: str
    answer: Any
    method: str = ""


class Theorem(NamedTuple):
    """A theorem: what it says, its proof, and false statements that must not be proven.

    `whole`: the parts together are the proof; else each is the theorem, of one family of layouts.
    """

    text: str
    whole: bool
    parts: Callable[[], Iterator[Part]]
    mutants: Callable[[], Iterator[Part]]


NORMAL, CHAIN, INVERSE = "coalesced normal form", "growing strides", "right inverse"


# ----------------------------------------------------------------------------------------------------------------------
# Divide, then put in order again.


def divisions() -> list[tuple[Layout, Layout]]:
    """Layouts A and tilers T with size(T) * size(T*) = size(A). T* is the complement of T up to size(A)."""
    t, m, n, ld = dims("t m n ld")
    by_eight = Facts("8 | M", "BM | N")
    M, N, BM = by_eight["M"], by_eight["N"], by_eight["BM"]
    return [
        (Layout(t * m), Layout(t)),
        (Layout(t * m, ld), Layout(t, m)),
        (Layout((t * m, n), (n, 1)), Layout(t)),
        (Layout((t * m, n), (n, 1)), Layout((t, n), (1, t * m))),
        (Layout((t, m, 4), (4 * m, 4, 1)), Layout((t, 2), (1, t * m))),
        (Layout((M, N), (N, 1)), Layout((8, N // BM), (1, M * BM))),
        (Layout(((4, 8, 4), (2, 2, n)), ((128, 1, 16), (64, 8, 512))), Layout(128)),
    ]


def divide() -> Iterator[Part]:
    for A, T in divisions():
        both = make_layout(T, T.complement(A.size))
        assert both.size == A.size, "the hypothesis"
        order = both.right_inverse()
        yield Part(f"{A} divided by {T} and put in order", prove(A.logical_divide(T).compose(order), A), NORMAL)
    given = Facts("BM | M", "BN | N")
    A = given(Layout((dim("M"), dim("N")), (dim("N"), 1)))
    tiles = A.logical_divide((given["BM"], given["BN"]))
    yield Part(f"{A} by modes", prove(tiles.coalesce((1, 1)), A), NORMAL)


def divide_mutants() -> Iterator[Part]:
    # Without size(T) * size(T*) = size(A): the last tile hangs over.
    given = Facts("T = ceil_div(M, 64)")
    A, T = given(Layout(dim("M"))), Layout(64)
    tiles = A.logical_divide(T)
    order = make_layout(T, T.complement(A.size)).right_inverse()
    yield Part("a tile that hangs over", prove(tiles.compose(order), A))
    t, m, n = dims("t m n")
    A, T = Layout((t * m, n), (n, 1)), Layout((t, n), (1, t * m))
    tiles, order = A.logical_divide(T), make_layout(T, T.complement(A.size)).right_inverse()
    yield Part("without the reorder", prove(tiles, A))
    yield Part("reordered twice", prove(tiles.compose(order), Layout(A.size, 1)))
    yield Part("another tile's order", prove(Layout(t * m).logical_divide(Layout(t, m)), Layout(t * m)))


# ----------------------------------------------------------------------------------------------------------------------
# L o right_inverse(L) is the identity on its domain.


def layouts_to_invert() -> list[Layout]:
    M, N, K, ld = dims("M N K ld")
    return [
        Layout((M, N), (N, 1)),
        Layout((M, N, K), (N, 1, M * N)),
        Layout((M, N, K), (N * K, K, 1)),
        Layout((M, (4, N)), (4 * N, (N, 1))),
        Layout((M, N), (1, ld)).given("ld >= M"),
        Layout((8, M, 2), (1, 16, 8)),
        Layout((M, N, 3), (N, 1, 0)),
        Layout(((4, 8, 4), (2, 2, N)), ((128, 1, 16), (64, 8, 512))),
    ]


def right_inverse() -> Iterator[Part]:
    for L in layouts_to_invert():
        R = L.right_inverse()
        yield Part(f"{L} after {R}", prove(L.compose(R), Layout(R.size)), NORMAL)


def right_inverse_mutants() -> Iterator[Part]:
    M, N, ld = dims("M N ld")
    L = Layout((M, N), (N, 1))
    yield Part("the inverse of another layout", prove(L.compose(Layout(M * N).right_inverse()), Layout(M * N)))
    wider = Layout((M, N), (2 * N, 1))
    yield Part("of a layout with a pitch", prove(wider.compose(L.right_inverse()), Layout(M * N)))
    padded = Layout((M, N), (1, ld)).given("ld >= M")
    yield Part("all of a padded layout", covers(padded, padded.size))


# ----------------------------------------------------------------------------------------------------------------------
# (A o B) o C = A o (B o C), where images lie inside domains.


def triples() -> list[tuple[Layout, Layout, Layout]]:
    M, N, a, b, c, ld = dims("M N a b c ld")
    return [
        (Layout((M, N), (N, 1)), Layout((N, M), (M, 1)), Layout((M, N), (N, 1))),
        (Layout((a * b * c, N), (N, 1)), Layout((a, b), (b * c, c)), Layout(a)),
        (Layout((a * b, c), (1, ld)), Layout((a, b * c)), Layout((a, b), (1, a))),
        (Layout((8, M, N), (1, ld, 8)), Layout((4, M), (2, 8)), Layout((2, M), (2, 4))),
        (Layout((a, b, c), (b * c, c, 1)), Layout((c, a * b), (a * b, 1)), Layout((a, c), (c, 1))),
    ]


def associative() -> Iterator[Part]:
    for A, B, C in triples():
        assert B.cosize <= A.size and C.cosize <= B.size, "the hypothesis"
        answer = prove(A.compose(B).compose(C), A.compose(B.compose(C)))
        yield Part(f"{A} o {B} o {C}", answer, NORMAL)


def associative_mutants() -> Iterator[Part]:
    c, N, ld = dims("c N ld")
    # B o C runs past the end of B, where A o B goes on as B's last mode does, and A does not.
    A, B, C = Layout((2 * c, N), (1, ld)), Layout(c), Layout(4 * c)
    assert not C.cosize <= B.size
    yield Part("C hangs over B", prove(A.compose(B).compose(C), A.compose(B.compose(C))))
    A, B, C = Layout((4, 4), (1, 100)), Layout(2), Layout(4, 2)
    yield Part("numbers that hang over", prove(A.compose(B).compose(C), A.compose(B.compose(C))))
    A, B = Layout((2 * c, N), (N, 1)), Layout(c, 2)
    yield Part("the order of the operands", prove(A.compose(B), Layout(2 * c, N).compose(Layout(c))))


# ----------------------------------------------------------------------------------------------------------------------
# The grouped order of tiles visits every tile of a grid once.


def grouped(pid: Any, rows: Any, columns: Any, G: Any) -> tuple[Any, Any]:
    """(row, column) of tile `pid`: groups of G rows, each column by column; the last group has what is left."""
    group = pid // (G * columns)
    first = group * G
    height = minimum(rows - first, G)
    inside = pid % (G * columns)
    return first + inside % height, inside // height


# The number of rows is G*q + r: both kinds of groups, full ones only, and less than one.
GRIDS = {
    "full groups and a last one": Facts("rows == G*q + r", "G > r"),
    "full groups": Facts("rows == G*q"),
    "one partial group": Facts("G > rows"),
}


def grid(case: str) -> tuple[Facts, list[tuple[Layout, Any]]]:
    """The facts of a case, and its pieces: (i, column, group) -> (row, column), with the first row of the piece."""
    given = GRIDS[case]
    rows, G, q, r, n = (given[x] for x in ("rows", "G", "q", "r", "n"))
    full = (Layout((G, n, q), (E(0), E(1), G * E(0))), 0)
    if case == "full groups":
        return given, [full]
    if case == "one partial group":
        return given, [(Layout((rows, n), (E(0), E(1))), 0)]
    return given, [full, (Layout((r, n), (E(0), E(1))), G * q)]


def follows(formula: Callable[..., Any], given: Facts, piece: Layout, start: Any, first: Any) -> Any:
    """True if tiles from number `start` on are the piece from row `first` on."""
    rows, n, G = given["rows"], given["n"], given["G"]
    return prove_formulas(
        lambda pid: formula(pid + start, rows, n, G), lambda pid: shifted(piece(pid), first), pid=piece.size
    )


def group_m() -> Iterator[Part]:
    for case in GRIDS:
        given, pieces = grid(case)
        rows, n = given["rows"], given["n"]
        start: Any = 0
        for piece, first in pieces:
            answer = follows(grouped, given, piece, start, first)
            yield Part(f"{case}: the order is {piece} from row {first}", answer, "digits")
            yield Part(f"{case}: {piece} meets no tile twice", injective(flat(piece, rows)), CHAIN)
            start = start + piece.size
        if len(pieces) == 2:
            a, b = (flat(piece, rows) for piece, _ in pieces)
            yield Part(f"{case}: the pieces share no tile", disjoint(a, b, pieces[1][1]), "disjoint ranges")
        # As many different tiles as the grid has, all inside: rows stay below `rows`, columns below n.
        yield Part(f"{case}: as many as the grid has", prove(Layout(start), Layout(rows * n)), NORMAL)
        piece, first = pieces[-1]
        last = piece.shape[0] * (piece.shape[2] if len(piece.shape) == 3 else 1)
        yield Part(f"{case}: the last row is the grid's", prove(Layout(first + last), Layout(rows)), NORMAL)


def flat(piece: Layout, rows: Any) -> Layout:
    """The piece with tile (row, column) as row + rows * column."""
    return Layout(piece.shape, tuple([d.value if d.path == (0,) else rows * d.value for d in piece.stride]))


def shifted(tile: tuple[Any, Any], first: Any) -> tuple[Any, Any]:
    return tile[0] + first, tile[1]


def group_m_mutants() -> Iterator[Part]:
    def never_shorter(pid: Any, rows: Any, columns: Any, G: Any) -> tuple[Any, Any]:
        inside = pid % (G * columns)
        return pid // (G * columns) * G + inside % G, inside // G

    def wrong_period(pid: Any, rows: Any, columns: Any, G: Any) -> tuple[Any, Any]:
        return grouped(pid, rows, columns + 1, G)

    given, pieces = grid("full groups and a last one")
    rows, n, G = given["rows"], given["n"], given["G"]
    piece, first = pieces[1]
    start = pieces[0][0].size
    for formula in (never_shorter, wrong_period):
        answer = follows(formula, given, piece, start, first)
        yield Part(f"{formula.__name__} in the last group", answer)
    a, b = (flat(piece, rows) for piece, _ in pieces)
    yield Part("the last group begins a row early", disjoint(a, b, first - 1))
    yield Part("groups one row apart", injective(Layout((G, n, given["q"]), (1, rows, 1))))
    yield Part("the last group is forgotten", prove(Layout(start), Layout(rows * n)))


# ----------------------------------------------------------------------------------------------------------------------
# The 128-byte swizzle of a tile of two-byte elements.


def by_hand(m: Any, k: Any, pitch: int, factor: int = 8, period: int = 8) -> Any:
    return pitch * m + (k ^ (m % period * factor))


def swizzle_128() -> Iterator[Part]:
    M = dim("M")
    elements, bytes_ = Swizzle(3, 3, 3), Swizzle(3, 4, 3, unit="bytes")
    answer = prove_formulas(lambda m, k: elements(64 * m + k), lambda m, k: by_hand(m, k, 64), m=M, k=64)
    yield Part("on elements, any number of rows", answer, "digits")
    answer = prove_formulas(lambda m, k: bytes_(2 * (64 * m + k)), lambda m, k: 2 * by_hand(m, k, 64), m=M, k=64)
    yield Part("on bytes, any number of rows", answer, "digits")
    answer = prove_formulas(elements @ Layout((M, 64), (64, 1)), lambda m, k: by_hand(m, k, 64), m=M, k=64)
    yield Part("as a swizzled layout", answer, "digits")
    wide = elements @ Layout((8 * M, (64, dim("N"))), (64, (1, 512 * M)))
    answer = prove_formulas(wide, lambda m, k: k // 64 * (512 * M) + by_hand(m, k % 64, 64), m=8 * M, k=64 * dim("N"))
    yield Part("64-element columns of 8*M rows, one after the other", answer, "digits")


def swizzle_128_mutants() -> Iterator[Part]:
    M = dim("M")
    swizzle = Swizzle(3, 3, 3)
    yield Part(
        "a pitch of 128", prove_formulas(lambda m, k: swizzle(128 * m + k), lambda m, k: by_hand(m, k, 128), m=M, k=128)
    )
    for what, factor, period in (("m % 4", 8, 4), ("times 16", 16, 8), ("m % 16", 8, 16)):
        answer = prove_formulas(
            lambda m, k: swizzle(64 * m + k),
            lambda m, k, f=factor, p=period: by_hand(m, k, 64, f, p),
            m=M,
            k=64,
        )
        yield Part(what, answer)
    # Counting bytes with the swizzle of elements.
    yield Part(
        "units mixed up",
        prove_formulas(lambda m, k: swizzle(2 * (64 * m + k)), lambda m, k: 2 * by_hand(m, k, 64), m=M, k=64),
    )


# ----------------------------------------------------------------------------------------------------------------------
# K in tiles of BK, and a tensor in boxes.


def k_split() -> Iterator[Part]:
    given = Facts("T = ceil_div(K, BK)")
    K, BK, T = given["K"], given["BK"], given["T"]
    tiles = Layout((BK, T), (1, BK))
    yield Part("no k in two places", injective(tiles), CHAIN)
    yield Part("every k in some tile", covers(tiles, K), INVERSE)
    yield Part("the last tile is not empty", covers(Layout(K), (T - 1) * BK + 1), INVERSE)
    answer = prove_formulas(lambda k: k % BK + BK * (k // BK), lambda k: k, k=K)
    yield Part("split and recombined", answer, "digits")
    answer = prove_formulas(lambda x, t: ((x + BK * t) % BK, (x + BK * t) // BK), lambda x, t: (x, t), x=BK, t=T)
    yield Part("recombined and split", answer, "digits")


def k_split_mutants() -> Iterator[Part]:
    given = Facts("T = ceil_div(K, BK)")
    K, BK, T = given["K"], given["BK"], given["T"]
    yield Part("tiles that overlap", injective(Layout((BK + 1, T), (1, BK))))
    yield Part("one more k", covers(Layout((BK, T), (1, BK)), K + BK))
    yield Part("tiles with a hole", covers(Layout((BK, T), (1, BK + 1)), K))
    rounded_down = Facts("K >= BK", "T = K // BK")
    tiles = Layout((rounded_down["BK"], rounded_down["T"]), (1, rounded_down["BK"]))
    yield Part("the quotient rounded down", covers(tiles, rounded_down["K"]))
    answer = prove_formulas(lambda k: k % BK + BK * (k // (BK + 1)), lambda k: k, k=K)
    yield Part("split at BK + 1", answer)


def tma_boxes() -> Iterator[Part]:
    given = Facts("TM = ceil_div(M, BM)", "TK = ceil_div(K, BK)")
    M, K, BM, BK, TM, TK = (given[x] for x in ("M", "K", "BM", "BK", "TM", "TK"))
    boxes = Layout(((BM, BK), (TM, TK)), ((E(0), E(1)), (BM * E(0), BK * E(1))))
    yield Part("no coordinate in two places", injective(boxes), CHAIN)
    # As tiles of the padded tensor, which the in-bounds part lies in.
    whole = Layout((BM, TM, BK, TK), (E(0), BM * E(0), E(1), BK * E(1)))
    yield Part("boxes make the padded tensor", prove(whole, Layout.identity((BM * TM, BK * TK))), NORMAL)
    for size, box, count in ((M, BM, TM), (K, BK, TK)):
        yield Part("every coordinate in bounds in some box", covers(Layout((box, count), (1, box)), size), INVERSE)
        yield Part("no box outside", covers(Layout(size), (count - 1) * box + 1), INVERSE)
    answer = prove_formulas(
        lambda m, k: (m % BM + BM * (m // BM), k % BK + BK * (k // BK)), lambda m, k: (m, k), m=M, k=K
    )
    yield Part("the box and the place of each coordinate lead back to it", answer, "digits")


def tma_boxes_mutants() -> Iterator[Part]:
    given = Facts("TM = ceil_div(M, BM)", "TK = ceil_div(K, BK)")
    M, BM, BK, TM, TK = (given[x] for x in ("M", "BM", "BK", "TM", "TK"))
    strides = ((E(0), E(1)), (BM * E(0), BK * E(1)))
    yield Part("boxes one wider than their pitch", injective(Layout(((BM, BK + 1), (TM, TK)), strides)))
    yield Part("the pitches exchanged", injective(Layout(((BM, BK), (TM, TK)), ((E(0), E(1)), (BK * E(0), BM * E(1))))))
    yield Part("one box too many", covers(Layout(M), TM * BM + 1))
    # A coordinate is in one box, but the padded tensor is larger than the tensor.
    yield Part("nothing out of bounds", prove(Layout(BM * TM), Layout(M)))


THEOREMS = {
    "divide": Theorem("logical_divide, then its inverse reorder, is the identity", False, divide, divide_mutants),
    "right inverse": Theorem("L o right_inverse(L) is the identity", False, right_inverse, right_inverse_mutants),
    "associative": Theorem("(A o B) o C = A o (B o C)", False, associative, associative_mutants),
    "grouped order": Theorem("the grouped tile order is a bijection on any grid", True, group_m, group_m_mutants),
    "128-byte swizzle": Theorem("it is k ^ ((m % 8) * 8) at pitch 64", False, swizzle_128, swizzle_128_mutants),
    "K split": Theorem("tiles of BK cover K exactly once", True, k_split, k_split_mutants),
    "TMA boxes": Theorem("boxes cover the in-bounds part exactly once", True, tma_boxes, tma_boxes_mutants),
}
