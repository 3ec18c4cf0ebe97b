"""Layouts as matrices over GF(2). Exact answers for power-of-two extents and XOR swizzles, at any size.

Let all extents be powers of two and number the bits of the flat (colexicographic) coordinate x. A layout sends bit i to
a column c[i]. The function is *linear* when its value is the XOR of the columns of the bits that are set; with a
constant XORed to it, it is *affine*. Swizzles are linear maps of the offset, so a swizzled layout is such a matrix too.
Equality, injectivity and the inverse are elimination on a few dozen integers, for 2^40 elements as for 8.

When is `offset + sum of bit[i]*stride[i]` affine over GF(2)? Put d[i] = (offset + stride[i]) ^ offset, the change of
the offset at the coordinate 2^i. It is affine exactly when the d[i] have disjoint sets of bits.
- If they have, no bit of the offset is touched twice, and adding the differences is flipping the bits.
- If bits i and j of the coordinate both touch an offset bit, the value at 2^i + 2^j is the sum of the two differences,
  not their XOR. The product bit[i]*bit[j] has a coefficient that other offset bits cannot cancel: it is a sum of
  distinct powers of two with signs. So the test below is no heuristic: what it refuses is not affine, and it names the
  first coordinate that shows it.

The idea of distributed layouts as linear maps over GF(2) is that of Triton's linear layouts (arXiv 2505.23819).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arguments import MAX_BITS, as_int, checked, refusal, settle, shown
from ..errors import CoordinateError, LayoutError
from ..lazy_numpy import np
from . import registries
from .int_tuple import bit_field, coal, leaves, pack, product, show, show_coord
from .layout import Layout
from .proofs.gf2 import Elimination, add_constant, bits_of, clash, combine, rows_of, swizzle_candidates
from .proofs.verdicts import TWO_INDICES, CounterExample, Function, Proof, Verdict, layout_of
from .swizzle import ComposedLayout, Swizzle

if TYPE_CHECKING:
    import numpy.typing as npt

_LINES = 28  # of a matrix as text: a prompt shows it whole


def as_bits(n: int, what: str) -> int:
    """A number of bits of integers that Python works with at once. Raises LayoutError."""
    if n.__class__ is int and 0 <= n <= MAX_BITS:
        return n
    return as_int(n, f"the bits of {what}", least=0, most=MAX_BITS)


@dataclass(frozen=True, slots=True)
class LinearLayout(Function):
    """A matrix over GF(2) as a function of a coordinate. It maps the coordinate to `offset` XOR the columns of the
    coordinate's set bits.

    Domain: coordinates (x0, x1, ...) of 2^bits[0] x 2^bits[1] x ..., or flat indices below their product (the first
    mode varies fastest). Codomain: integers below 2^width, in whatever unit the layout counts; a swizzle's unit is
    not kept.

    Attributes:
        columns: the values of the coordinate bits, lowest bit of the first mode first.
        bits: how many bits each mode has; one mode with all of them unless given.
        names: names of the modes, or () for none; coordinates can then be given by keyword.
        width: bits of the codomain; as many as the values need unless given.
        offset: the value at coordinate 0.

    `==` compares all of these; `equivalent` compares functions. Raises LayoutError where these do not fit together.

    >>> tile = LinearLayout.of(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    >>> tile(1, 0), tile.rank, tile.is_bijective().ok
    (72, 9, True)
    >>> LinearLayout.of(Layout((4, 2), (2, 1)), names=("i", "j"))(i=3, j=1)
    7
    """

    columns: tuple[int, ...]
    bits: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    width: int = -1
    offset: int = 0

    def __post_init__(self) -> None:
        settle(self)
        columns = self.columns
        put = object.__setattr__
        put(self, "bits", self.bits or (len(columns),))
        least, most = min((*columns, self.offset)), max((*columns, self.offset))
        if least < 0:
            raise LayoutError(f"values must be >= 0, not {shown(least)}")
        used = as_bits(most.bit_length(), "the codomain of a LinearLayout")
        as_bits(len(columns), "the domain of a LinearLayout")
        if self.width == -1:
            put(self, "width", used)
        as_bits(self.width, "the codomain of a LinearLayout")
        if used > self.width:
            raise LayoutError(f"{used} bits of values do not fit a codomain of {self.width} bits")
        if sum(self.bits) != len(columns) or min(self.bits) < 0:
            raise LayoutError(f"{len(columns)} columns for modes of {shown(self.bits)} bits")
        if self.names and (len(self.names) != len(self.bits) or len(set(self.names)) != len(self.names)):
            raise LayoutError(f"{len(self.bits)} modes cannot be named {shown(self.names)}")

    # ------------------------------------------------------------ from other forms

    @classmethod
    @checked()
    def of(cls, source: object, names: Sequence[str] = (), bits: int | None = None) -> LinearLayout:
        """The matrix of a Layout, Swizzle or ComposedLayout; its top-level modes become the modes.

        A swizzle is taken on offsets of `bits` bits (the fewest that hold it, unless given). Raises LayoutError where
        the function is not affine over GF(2): an extent that is no power of two, negative values, or two coordinate
        bits that meet in a bit of the offset. Its `witness` is the first flat coordinate whose value is not the XOR. Of
        a ComposedLayout in a ComposedLayout the inner one must be affine too.

        >>> print(LinearLayout.of(Layout((4, 2), (1, 4))).columns)
        (1, 2, 4)
        >>> LinearLayout.of(Layout((4, 2), (1, 3)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        layoutgemm.errors.LayoutError: ... bits 0 and 2 of the coordinate move bit 0 of the offset: index 5 has offset \
4, not 1 ^ 3 = 2
        """
        source = layout_of(source)
        if isinstance(source, LinearLayout):
            return source if not names else cls(source.columns, source.bits, tuple(names), source.width, source.offset)
        if isinstance(source, Swizzle):
            least = source.span.bit_length() - 1
            n = least if bits is None else as_bits(bits, "the domain of a swizzle")
            if n < least:
                raise LayoutError(f"{source} acts on {least} bits, not {n}")
            return cls(tuple([source(1 << i) for i in range(n)]), (n,), tuple(names), n)
        if isinstance(source, ComposedLayout):
            if isinstance(source.layout, ComposedLayout):
                inner = cls.of(source.layout)
                columns, groups, offset = list(inner.columns), inner.bits, inner.offset
                if source.offset:
                    columns, offset = _plus(source.offset, columns, offset, source)
            else:
                columns, groups = _affine(source.layout, source.offset, source)
                offset = source.offset
            swizzle = source.swizzle
            return cls(tuple(map(swizzle, columns)), groups, tuple(names), offset=swizzle(offset))
        if isinstance(source, Layout):
            columns, groups = _affine(source, 0, source)
            return cls(tuple(columns), groups, tuple(names))
        raise LayoutError(refusal(source, "the source of a LinearLayout", "a Layout, a Swizzle or a ComposedLayout"))

    @classmethod
    @checked()
    def from_matrix(cls, matrix: npt.ArrayLike, bits: Sequence[int] = (), names: Sequence[str] = ()) -> LinearLayout:
        """The layout of a 0/1 matrix. Column j is the value of coordinate bit j, row i is bit i of the value.

        >>> LinearLayout.from_matrix([[0, 1], [1, 0]]).columns
        (2, 1)
        """
        try:
            array = np.asarray(matrix)
        except (ValueError, TypeError):  # rows of different lengths, a tensor that NumPy has no type for
            array = np.zeros(())
        if array.ndim != 2 or not np.isin(array, (0, 1)).all():
            raise LayoutError("a matrix over GF(2) has two dimensions and entries 0 and 1")
        columns = tuple(sum(1 << i for i in np.flatnonzero(column).tolist()) for column in array.T)
        return cls(columns, tuple(bits), tuple(names), array.shape[0])

    @classmethod
    @checked()
    def identity(cls, bits: int) -> LinearLayout:
        """x -> x on integers of `bits` bits."""
        bits = as_bits(bits, "the domain of a LinearLayout")
        return cls(tuple(1 << i for i in range(bits)), (bits,), (), bits)

    # ------------------------------------------------------------ the function

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the modes."""
        return tuple(1 << b for b in self.bits)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return 1 << len(self.columns)

    def __call__(self, *coord: object, **named: object) -> Any:
        """The value at a flat index, one coordinate per mode, or named coordinates (default 0).

        Takes ints, NumPy arrays and traced integers alike. Raises CoordinateError when an int
        is out of range or the modes do not match.
        """
        if named:
            if coord or not set(named) <= set(self.names):
                raise CoordinateError(f"modes are named {self.names}, not {tuple(named)}")
            coord = tuple(named.get(name, 0) for name in self.names)
        if len(coord) == 1:
            x = coord[0]
            if not isinstance(x, (tuple, list)):
                return self._xor(x, 0, len(self.columns))
            coord = tuple(x)
        if len(coord) != len(self.bits):
            raise CoordinateError(f"{len(coord)} coordinates for {len(self.bits)} modes of {self.bits} bits")
        value: int = self.offset
        start = 0
        for x, b in zip(coord, self.bits, strict=True):
            value = value ^ (self._xor(x, start, start + b) ^ self.offset)
            start += b
        return value

    def _xor(self, x: Any, start: int, stop: int) -> Any:
        if isinstance(x, (tuple, list)):
            raise CoordinateError(f"coordinate {show_coord(x)}: a mode of a LinearLayout has no modes inside")
        if not isinstance(x, np.ndarray):
            x = bit_field(x, "a coordinate")
        if x.__class__ is int:
            if not 0 <= x < 1 << (stop - start):
                raise CoordinateError(f"coordinate {show_coord(x)} is outside 0..{(1 << (stop - start)) - 1}", x)
            value = self.offset
            while x:
                low = x & -x
                value ^= self.columns[start + low.bit_length() - 1]
                x ^= low
            return value
        if isinstance(x, np.ndarray):
            if x.dtype.kind not in "iuO":
                raise CoordinateError(f"an array of coordinates must hold integers, not {x.dtype}")
            x = x.astype(object if max(self.width, stop - start) > 63 else np.int64)
        value = x * 0 + self.offset
        for i, column in enumerate(self.columns[start:stop]):
            value = value ^ ((x >> i) & 1) * column
        return value

    def offsets(self) -> np.ndarray:
        """All values over the flat domain. They are int64, or Python ints where 63 bits do not hold them."""
        if len(self.columns) > 28:
            raise LayoutError(f"2^{len(self.columns)} values are too many for a table")
        table = np.array([self.offset], dtype=object if self.width > 63 else np.int64)
        for column in self.columns:
            table = np.concatenate([table, table ^ column])
        return table

    # ------------------------------------------------------------ matrix views

    def matrix(self) -> npt.NDArray[np.uint8]:
        """The matrix, width x number of coordinate bits. Entry (i, j) says whether bit j moves bit i of the value.

        >>> LinearLayout.of(Layout((2, 2), (2, 1))).matrix().tolist()
        [[0, 1], [1, 0]]
        """
        out = np.zeros((self.width, len(self.columns)), np.uint8)
        for j, column in enumerate(self.columns):
            for i in bits_of(column):
                out[i, j] = 1
        return out

    @checked()
    def bases(self, shape: Sequence[int]) -> dict[str, list[list[int]]]:
        """Triton's bases, by named mode. For each bit of a mode it has the coordinate in a tensor of this shape.

        Values are flat indices of the tensor, whose first dimension runs fastest, as of what `parse` reads of Triton.
        Raises LayoutError for modes without names, an offset, an extent that is no power of two, and a tensor of
        another size.

        >>> from layoutgemm.atoms import mma_sync
        >>> LinearLayout.of(mma_sync("m16n8k16").layout_C, ("lane", "register")).bases((16, 8))
        {'lane': [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], 'register': [[0, 1], [8, 0]]}
        """
        tensor = LinearLayout.of(Layout(tuple(shape)))
        if not self.names or self.offset:
            lacks = f"values begin at {self.offset}" if self.names else "modes have no names: of(layout, names)"
            raise LayoutError(f"bases are those of a linear map of named modes, and its {lacks}")
        if self.width != tensor.width:
            raise LayoutError(
                f"values of {self.width} bits are not those of a tensor of {show(tensor.shape)}, which has "
                f"{tensor.width}"
            )
        columns = iter(self.columns)
        ends = [sum(tensor.bits[:n]) for n in range(len(tensor.bits))]
        return {
            name: [
                [column >> end & extent - 1 for end, extent in zip(ends, tensor.shape, strict=True)]
                for _, column in zip(range(bits), columns)
            ]
            for name, bits in zip(self.names, self.bits, strict=True)
        }

    def __str__(self) -> str:
        """The matrix as text, with dots for zeros. One line is for each bit of the value, one column for each
        coordinate bit.

        At most 28 lines: more bits are counted.

        >>> print(LinearLayout.of(ComposedLayout(Swizzle(1, 0, 2), 0, Layout((2, 4), (4, 1))), names=("m", "k")))
               m k k
               0 0 1
        bit 0: 1 1 .
        bit 1: . . 1
        bit 2: 1 . .
        """
        names = self.names or tuple(map(str, range(len(self.bits))))
        labels = [(name, i) for name, b in zip(names, self.bits, strict=True) for i in range(b)]
        cells = [[str(name) for name, _ in labels], [str(i) for _, i in labels]]
        cells += [["1" if c >> i & 1 else "." for c in self.columns] for i in range(self.width)]
        tail = ["", "", *[" ^ 1" if self.offset >> i & 1 else "" for i in range(self.width)]]
        gutter = len(f"bit {max(self.width - 1, 0)}: ")
        wide = [max(len(row[j]) for row in cells) for j in range(len(labels))]
        heads = ["", "", *[f"bit {i}: " for i in range(self.width)]]
        lines = [
            (head.rjust(gutter) + " ".join(x.rjust(w) for x, w in zip(row, wide, strict=True)) + end).rstrip()
            for head, row, end in zip(heads, cells, tail, strict=True)
        ]
        more = len(lines) - _LINES
        return "\n".join(lines if more <= 0 else [*lines[: _LINES - 1], f"and {more + 1} bits more"])

    def __format__(self, spec: str) -> str:
        """The matrix in one line, as it stands in sentences. `str()` has its bits.

        >>> f"{LinearLayout((16, 8, 32, 64), bits=(2, 2), names=('register', 'lane'))}"
        'a matrix over GF(2) of register 4, lane 4'
        """
        names = [f"{name} " for name in self.names] or [""] * len(self.bits)
        modes = [f"{name}{1 << bits}" for name, bits in zip(names, self.bits, strict=True)]
        return format(f"a matrix over GF(2) of {(', ' if self.names else ' x ').join(modes)}", spec)

    # ------------------------------------------------------------ algebra

    def compose(self, other: object) -> LinearLayout:
        """`self(other(x))`, with the modes and names of `other` (anything that `of` takes).

        Raises LayoutError where `other` has values outside this layout's domain; `witness` is the first coordinate.

        >>> swap = LinearLayout((2, 1))
        >>> swap.compose(swap) == LinearLayout.identity(2)
        True
        """
        inner = _matrix(other)
        n = len(self.columns)
        for i, value in enumerate((inner.offset, *inner.columns)):
            if value >> n:
                at = 1 << (i - 1) if i else 0
                raise LayoutError(f"index {at} has offset {inner(at)}, outside the domain 0..{self.size - 1}", at)
        columns = tuple(combine(self.columns, c) for c in inner.columns)
        offset = self.offset ^ combine(self.columns, inner.offset)
        return LinearLayout(columns, inner.bits, inner.names, self.width, offset)

    __matmul__ = compose

    @property
    def rank(self) -> int:
        """Rank of the matrix: the function has 2^rank values."""
        return len(Elimination(self.columns).pivots)

    def kernel(self) -> tuple[int, ...]:
        """Independent flat indices k (the smallest first) with value(x ^ k) == value(x). Empty iff injective.

        >>> LinearLayout.of(Layout((2, 2, 2), (1, 0, 1 << 3))).kernel()
        (2,)
        """
        return tuple(Elimination(self.columns).kernel)

    def image(self) -> tuple[int, ...]:
        """A basis of the values (XORed with `offset`), reduced and in increasing order.

        >>> LinearLayout((3, 5, 6)).image()
        (3, 5)
        """
        return tuple(Elimination(self.columns).reduced())

    def is_injective(self) -> Proof | CounterExample:
        """Prove that no value is taken twice. Else index 0 and the first that shares its value.

        >>> LinearLayout((1, 2, 3)).is_injective().explain()
        'the matrix is not injective: indices 0 and 7 both give 0'
        """
        kernel = self.kernel()
        if kernel:
            first = min(kernel)
            said = "the matrix is not injective"
            return CounterExample((0, first), self.offset, self.offset, first, said, TWO_INDICES)
        return Proof("GF(2) matrix", (), (f"{len(self.columns)} independent columns",))

    def is_surjective(self) -> Verdict:
        """Verdict: every integer below 2^width is a value. The witness is a value left out.

        >>> LinearLayout((1, 2, 3)).is_surjective().ok, LinearLayout((1, 4)).is_surjective().reason
        (True, 'the matrix reaches 2^2 of 2^3 values: 2 is none of them')
        """
        if self.rank == self.width:
            return Verdict(True)
        free = self._left_out()
        return Verdict(
            False, f"the matrix reaches 2^{self.rank} of 2^{self.width} values: {free} is none of them", free
        )

    def _left_out(self) -> int:
        """A value below 2^width that no index has."""
        powers = [1 << i for i in range(self.width)]
        return next(v for v in powers if self.solve(v ^ self.offset) is None) ^ self.offset

    def is_bijective(self) -> Proof | CounterExample:
        """Prove that each integer below 2^width is one coordinate's value, or say why not."""
        distinct = self.is_injective()
        if not distinct or len(self.columns) == self.width:
            return distinct
        statement = f"of 2^{self.width} values the matrix reaches 2^{len(self.columns)}: index 0, and a value left out"
        return CounterExample(self.coord(0), self.offset, self._left_out(), 0, statement, "GF(2) matrix")

    @checked()
    def solve(self, value: int) -> int | None:
        """A flat index with this value, or None. It is the only one iff the kernel is empty."""
        return Elimination(self.columns).solve(value ^ self.offset)

    def inverse(self) -> LinearLayout:
        """The function from values to flat indices. Raises LayoutError unless bijective.

        >>> LinearLayout((2, 3)).inverse().columns
        (3, 1)
        """
        if not self.is_surjective():
            free = self._left_out()
            raise LayoutError(f"no inverse: no index has value {free}", free)
        return self.left_inverse()

    def left_inverse(self) -> LinearLayout:
        """G with G(self(x)) == x for every flat index x. It is defined on all integers below 2^width.

        What G does to integers that are no values is not specified. Raises LayoutError unless injective; `witness` is
        then the first index whose value an earlier one has.
        """
        solver = Elimination(self.columns)
        if solver.kernel:
            twice = 1 << (min(k.bit_length() for k in solver.kernel) - 1)
            other = next(k for k in solver.kernel if k.bit_length() == twice.bit_length()) ^ twice
            raise LayoutError(f"no left inverse: indices {other} and {twice} both have value {self(twice)}", twice)
        columns = [solver.solve(1 << i, partial=True) or 0 for i in range(self.width)]
        return LinearLayout(tuple(columns), (self.width,), (), len(self.columns), combine(columns, self.offset))

    def right_inverse(self) -> LinearLayout:
        """The largest R with self(R(y)) == y for all y below its size. CuTe's right inverse, offset -> flat index.

        Of the indices that have a value, R gives one. Raises LayoutError when 0 is no value.

        >>> R = LinearLayout.of(Layout((2, 4), (4, 1))).right_inverse()
        >>> R.size, R(4)
        (8, 1)
        """
        solver = Elimination(self.columns)
        zero = solver.solve(self.offset)
        if zero is None:
            raise LayoutError(f"no right inverse: no index has value 0 (the offset is {self.offset})", 0)
        columns: list[int] = []
        while len(columns) < self.width:
            at = solver.solve(1 << len(columns))
            if at is None:
                break
            columns.append(at)
        return LinearLayout(tuple(columns), (len(columns),), (), len(self.columns), zero)

    # ------------------------------------------------------------ equality of functions

    def equivalent(self, other: object) -> Proof | CounterExample:
        """Compare two functions of the flat index. Proof, or the first coordinate at which they differ.

        `other` is anything that `of` takes. Exact, and independent of the size.

        >>> tile = LinearLayout.of(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((1 << 30, 64), (64, 1))))
        >>> print(tile.equivalent(Layout((1 << 30, 64), (64, 1))).explain())
        not equivalent: (1,0) gives 72 and 64
        """
        right = _matrix(other)
        at = self.first_difference(right)
        n, m = len(self.columns), len(right.columns)
        if at is None:
            return Proof("GF(2) matrix", (), lambda: (f"{n} columns agree, and the value at 0",))
        longer = self if n >= m else right
        left_value = self(at) if at >> n == 0 else None
        right_value = right(at) if at >> m == 0 else None
        statement = "not equivalent" if n == m else f"not equivalent, 2^{n} and 2^{m} elements"
        if longer.names:
            statement += f", at ({', '.join(longer.names)})"
        return CounterExample(longer.coord(at), left_value, right_value, at, statement, "GF(2) matrix")

    def first_difference(self, other: object) -> int | None:
        """The first flat index at which two functions differ, or only one is defined. None when they are equal.

        >>> LinearLayout((1, 2, 4)).first_difference(LinearLayout((1, 2, 8)))
        4
        """
        other = _matrix(other)
        if self.offset != other.offset:
            return 0
        if self.columns == other.columns:
            return None
        # Below 2^i both agree on all columns, so on all values; at 2^i one column tells them apart, or only one of the
        # two has that coordinate.
        pairs = enumerate(zip(self.columns, other.columns, strict=False))
        return 1 << next((i for i, (c, d) in pairs if c != d), min(len(self.columns), len(other.columns)))

    @checked()
    def coord(self, index: int) -> int | tuple[int, ...]:
        """The coordinate of a flat index: an int for one mode, else a tuple.

        >>> LinearLayout((1, 2, 4), bits=(1, 2)).coord(5)
        (1, 2)
        """
        if not 0 <= index < self.size:
            raise CoordinateError(f"index {show_coord(index)} is outside 0..{self.size - 1}", index)
        out = []
        for b in self.bits:
            out.append(index & ((1 << b) - 1))
            index >>= b
        return out[0] if len(out) == 1 else tuple(out)

    # ------------------------------------------------------------ back to layouts

    def to_layout(self) -> Layout:
        """The Layout with this function: one mode for each mode here, coalesced inside.

        Raises LayoutError where none exists: the offset is not 0, or two coordinate bits move one offset bit.

        >>> str(LinearLayout((4, 1, 2), bits=(1, 2)).to_layout())
        '(2,4):(4,1)'
        """
        if self.offset:
            raise LayoutError(f"no layout: index 0 has offset {self.offset}; to_composed() keeps it", 0)
        shared = clash(self.columns)
        if shared is not None:
            i, j, bit = shared
            at = (1 << i) | (1 << j)
            raise LayoutError(
                f"no layout: bits {i} and {j} of the coordinate move bit {bit} of the offset, so index {at} has "
                f"offset {self(at)}, not {self.columns[i]} + {self.columns[j]}; to_composed() looks for a swizzle",
                at,
            )
        return self._with_strides(self.columns)

    def to_composed(self, unit: int | str | None = None) -> ComposedLayout:
        """Swizzle, offset and layout with this function: x -> swizzle(offset + layout(x)). `unit` is the swizzle's.

        Complete: it finds a swizzle whenever one exists, with the fewest bits. Raises LayoutError where none does.

        >>> print(LinearLayout((1, 2, 4, 8 ^ 1, 16 ^ 2), bits=(3, 2)).to_composed())
        S<2,0,3> o 0 o (8,4):(1,8)
        """
        # Unswizzled, no offset bit may be moved by two coordinate bits. Source and target of a swizzle do not meet, so
        # the rows of the matrix that have two ones are its targets, and the row of their source is one of these ones.
        # Taking the offset for a column too keeps strides positive; failing that, negative strides are allowed.
        for columns in ((*self.columns, self.offset), self.columns):
            for B, M, S in swizzle_candidates(rows_of(columns, self.width)):
                swizzle = Swizzle(B, M, S)
                plain = [swizzle(c) for c in (*self.columns, self.offset)]
                if clash(plain[:-1] if columns is self.columns else plain) is None:
                    offset = plain.pop()
                    layout = self._with_strides([(offset ^ c) - offset for c in plain])
                    return ComposedLayout(Swizzle(B, M, S, unit), offset, layout)
        i, j, bit = clash(self.columns) or (0, 0, 0)
        raise LayoutError(
            f"no swizzled layout: bits {i} and {j} of the coordinate move bit {bit} of the offset, and no swizzle "
            f"(B, M, S) separates all bits that meet",
            (1 << i) | (1 << j),
        )

    def _with_strides(self, strides: Sequence[int]) -> Layout:
        modes = []
        start = 0
        for b in self.bits:
            modes.append(pack(*coal((2,) * b, tuple(strides[start : start + b]))))
            start += b
        if len(modes) == 1:
            return Layout(*modes[0])
        return Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))


# ---------------------------------------------------------------- columns of layouts and swizzles


def _matrix(x: object) -> LinearLayout:
    return x if isinstance(x, LinearLayout) else LinearLayout.of(x)


def _affine(layout: Layout, offset: int, source: object) -> tuple[list[int], tuple[int, ...]]:
    """Differences of offset + layout at each coordinate bit, and the bits of each top-level mode; exact, see above."""
    shape = layout.shape
    columns: list[int] = []
    touched = 0
    for s, d in zip(leaves(shape), leaves(layout.stride), strict=True):
        if s.__class__ is not int or d.__class__ is not int:
            raise LayoutError(f"{source} is not a matrix over GF(2): extents and strides must be integers, not {s}:{d}")
        if s & (s - 1):
            raise LayoutError(f"{source} is not linear over GF(2): extent {s} is no power of two")
        while s > 1:
            column = (offset + d) ^ offset
            if column < 0 or offset < 0:
                raise LayoutError(f"{source} is not linear over GF(2): index {1 << len(columns)} is at {offset + d}")
            if column & touched:
                _refuse(source, columns, column, offset)
            touched |= column
            columns.append(column)
            d *= 2
            s >>= 1
    groups = shape if shape.__class__ is tuple else (shape,)
    return columns, tuple(product(g).bit_length() - 1 for g in groups)


def _refuse(source: object, columns: list[int], column: int, offset: int) -> None:
    j = len(columns)
    i = next(i for i, c in enumerate(columns) if c & column)
    bit = (columns[i] & column & -(columns[i] & column)).bit_length() - 1
    at = (1 << i) | (1 << j)
    value = (columns[i] ^ offset) + (column ^ offset) - offset
    terms = f"{offset} ^ " * bool(offset) + f"{columns[i]} ^ {column} = {offset ^ columns[i] ^ column}"
    raise LayoutError(
        f"{source} is not linear over GF(2): bits {i} and {j} of the coordinate move bit {bit} of the offset: "
        f"index {at} has offset {value}, not {terms}",
        at,
    )


def _plus(constant: int, columns: list[int], offset: int, source: object) -> tuple[list[int], int]:
    """Columns and offset of `constant +` an affine function."""
    width = max(map(int.bit_length, (*columns, offset, constant))) + len(columns) + 1
    rows = add_constant(constant, rows_of((*columns, offset), width), len(columns))
    if rows is None:
        raise LayoutError(f"{source} is not linear over GF(2): adding {constant} to what is swizzled inside carries")
    out = rows_of(rows, len(columns) + 1)
    return out[:-1], out[-1]


registries.matrix_of.register(object)(LinearLayout.of)
