"""The order of packed weights. It is wgmma's register order of A, so that no code is shuffled.

    unit             64 output features x 128 of K: the codes of both, then the scales of its groups
    codes            each thread of a warpgroup has whole 16-byte vectors: (code in a word, word, thread, vector). The
                     bits of float8 and the signs of e2m1 lie where the conversion takes them: `moves`
    scales           16-bit numbers, side by side those of a thread's two rows: (row of a fragment, lane's row, warp,
                     group); with zero points, twice as many: the two rows' scales, then their magic zeros
    packed weights   (row block, K unit) -> unit, K units next to each other

Both orders are layouts onto (row + 64 * column) of the unit. They are derived from the instruction's own map of A, and
`checks` proves that each is a bijection, and that a thread's fragment is what its words become.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...atoms import MmaAtom, wgmma
from ...atoms.copy.base import VECTOR_BYTES
from ...errors import PlanError
from ...layouts import Layout
from . import float8
from .conversions import TARGETS, WORD, TargetFormat, bias_factor, bits_of_places, nibbles, pair_values
from .formats import UNIT_K, UNIT_ROWS, QuantizedFormat

WORDS = VECTOR_BYTES // 4  # of a vector: the widest load from shared memory
NUMBER_BYTES = 2  # of a scale
THREADS = 128


@dataclass(frozen=True)
class PackedOrder:
    """The order of a packed unit for a format and an activation type.

    >>> order = PackedOrder(QuantizedFormat("int4", 128), "bf16")
    >>> print(order.codes)
    (((2,2),2),4,(4,8,4),2):(((8,512),64),1024,(128,1,16),4096)
    >>> order.unit_bytes, order.vectors, order.codes.is_bijective().method
    (4224, 2, 'injective onto its span')
    """

    format: QuantizedFormat
    activations: str

    def __post_init__(self) -> None:
        if self.activations == "e4m3" and (reason := float8.refusal(self.format)):
            raise PlanError(f"weights are {self.format}, for float8 activations: {reason}")

    @property
    def target(self) -> TargetFormat:
        """The type that codes become."""
        return TARGETS[self.activations]

    @cached_property
    def atom(self) -> MmaAtom:
        """An instruction that takes A from registers: all have the same map of A."""
        return wgmma(8, self.activations, a_source="rmem")

    @property
    def depth(self) -> int:
        """K of a fragment: of one instruction."""
        return int(self.atom.shape_mnk[2])

    @property
    def scales_sums(self) -> bool:
        """True if the scales of groups multiply sums, not weights, which float8 would round."""
        return self.target.values > 2

    @property
    def converts(self) -> bool:
        """True if fragments are other registers than the words that are loaded."""
        return self.format.facts.stored != self.target.dtype

    @property
    def factor(self) -> float:
        """The value of a code divided by its register's value: a power of two."""
        return float8.factor(self.format) if self.scales_sums else 1.0

    @property
    def division(self) -> float:
        """The divisor of values that are converted by one shift: totals are multiplied by it."""
        return nibbles(self.target).factor if self.format.code == "int4" and not self.scales_sums else 1.0

    @property
    def bias_factor(self) -> float:
        """The exponent's bias as a power of two; it multiplies a float8 group's scale."""
        return bias_factor(self.format.code, self.target) if self.format.group else 1.0

    @property
    def codes_of_word(self) -> int:
        """Codes of a 32-bit word."""
        return WORD // self.format.bits

    @property
    def words_of_fragment(self) -> int:
        """Words that become a fragment of one instruction: 8 or 16 values of a thread."""
        return int(self.atom.layout_A[1].size) // self.codes_of_word

    @property
    def fragments(self) -> int:
        """Fragments of a 16-byte vector, one after the other along K."""
        return WORDS // self.words_of_fragment

    @property
    def vectors(self) -> int:
        """16-byte vectors of a thread in a unit."""
        return UNIT_K // (self.depth * self.fragments)

    @property
    def word_values(self) -> Layout:
        """Place of a code in its word -> value of the word's registers."""
        return float8.word_values(self.format) if self.scales_sums else pair_values(self.format.code)

    def bits_of(self, place: int) -> tuple[int, ...]:
        """The bits of a word that hold a stored code's bits, lowest first.

        >>> PackedOrder(QuantizedFormat("e2m1", 32), "bf16").bits_of(1)
        (4, 5, 6, 11)
        """
        if self.scales_sums:
            return float8.bits_of_places(self.format)[place]
        return bits_of_places(self.format.code, self.target)[place]

    @property
    def stored(self) -> tuple[int, ...]:
        """Code -> the code that a word holds for it; () where that is the same.

        >>> PackedOrder(QuantizedFormat("int4", 128), "e4m3").stored[:3]
        (15, 14, 13)
        """
        return float8.stored(self.format) if self.scales_sums else ()

    @property
    def codes_of_stored(self) -> tuple[int, ...]:
        """The inverse of `stored`."""
        return tuple(map(self.stored.index, range(len(self.stored))))

    @cached_property
    def moves(self) -> tuple[tuple[int, int], ...]:
        """(mask, shift to the left) of each part of a stored word.

        Parts are taken from a word with its codes side by side; () where that is the stored word.

        >>> [(hex(mask), left) for mask, left in PackedOrder(QuantizedFormat("e5m2"), "f16").moves]
        [('0xff00ff', 8), ('0xff00ff00', -8)]
        """
        found: dict[int, int] = {}
        for place in range(self.codes_of_word):
            for bit, there in enumerate(self.bits_of(place)):
                plain = place * self.format.bits + bit
                found[there - plain] = found.get(there - plain, 0) | 1 << plain
        return () if set(found) == {0} else tuple((mask, left) for left, mask in found.items())

    @property
    def moved_since(self) -> bool:
        """True if an earlier version had the codes side by side, as they are.

        That is all but e2m1 for 16-bit activations.

        >>> [PackedOrder(QuantizedFormat("e2m1", 32), name).moved_since for name in ("bf16", "e4m3")]
        [False, True]
        """
        return bool(self.moves) and (self.scales_sums or self.format.bits == 8)

    @property
    def back(self) -> tuple[tuple[int, int], ...]:
        """The inverse of `moves`.

        >>> PackedOrder(QuantizedFormat("int8"), "bf16").back
        ()
        """
        return tuple((mask << left if left > 0 else mask >> -left, -left) for mask, left in self.moves)

    @cached_property
    def codes(self) -> Layout:
        """(code of a word, word of a vector, thread, vector) -> row + 64 * column of the unit."""
        thread, value = self.atom.layout_A[0], self.atom.layout_A[1]
        word = value.compose(self.word_values)
        step = self.depth * UNIT_ROWS
        words = Layout(self.fragments, step)
        if self.words_of_fragment > 1:
            inside = value.compose(Layout(self.words_of_fragment, self.codes_of_word))
            words = Layout((inside.shape, self.fragments), (inside.stride, step))
        vectors = Layout(self.vectors, step * self.fragments)
        parts = (word, words, thread, vectors)
        return Layout(tuple(x.shape for x in parts), tuple(x.stride for x in parts))

    @cached_property
    def scales(self) -> Layout:
        """(row of a fragment, lane's row, warp, group) -> row + 64 * group of the unit."""
        thread, value = self.atom.layout_A[0], self.atom.layout_A[1]
        parts = (value[1], thread[1], thread[2], Layout(max(1, self.format.groups), UNIT_ROWS))
        return Layout(tuple(x.shape for x in parts), tuple(x.stride for x in parts))

    @property
    def scale_words(self) -> int:
        """32-bit words that a thread reads for a group. The scales of its two rows, then their zeros."""
        return 1 + self.format.zeros

    @cached_property
    def vector_bytes(self) -> Layout:
        """(thread, vector) -> the vector's byte in the unit."""
        return Layout((THREADS, self.vectors), (VECTOR_BYTES, VECTOR_BYTES * THREADS))

    @cached_property
    def scale_bytes(self) -> Layout:
        """(thread, group) -> the byte of the thread's scales in the unit, behind `code_bytes`. Four lanes read one."""
        word = 4 * self.scale_words
        rows, warps = int(self.scales[1].size), int(self.scales[2].size)
        lanes = THREADS // (rows * warps)
        thread = ((lanes, rows, warps), (0, word, word * rows))
        return Layout((thread[0], max(1, self.format.groups)), (thread[1], word * rows * warps))

    @property
    def code_bytes(self) -> int:
        """Bytes of a unit's codes."""
        return UNIT_ROWS * UNIT_K * self.format.bits // 8

    @property
    def group_bytes(self) -> int:
        """Bytes of the scales of one group, with its zeros."""
        return UNIT_ROWS * NUMBER_BYTES * self.scale_words

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit, a multiple of 16."""
        return self.code_bytes + self.format.groups * self.group_bytes

    def group_of(self, fragment: int) -> int:
        """The group of a K tile's fragment, among the groups of the K tile."""
        return 0 if self.format.group is None else fragment * self.depth // self.format.group

    def row_of(self, register: int) -> int:
        """Which of a thread's two rows a register of a fragment holds."""
        row, _ = self.atom.coords("A")(0, self.target.values * register)
        return int(row) // int(self.scales[0].stride)
