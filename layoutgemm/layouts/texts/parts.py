"""Parts of the readers of Triton's attributes. Checked fields, bases that grow, blocks of a cluster.

CGALayout = [[1, 0]], or CTAsPerCGA = [2, 1], CTASplitNum = [2, 1], CTAOrder = [1, 0] of older versions: block 1 holds
the lower half of the tensor. Blocks beyond the split hold the same elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ...errors import ParseError
from ...regex import regex
from .bases import AttributeValue, TextReader, Value, basis_of, integers_of

Vectors: TypeAlias = "list[tuple[int, ...]]"
CLUSTER = frozenset("CTAsPerCGA CTASplitNum CTAOrder CGALayout".split())
# Behind the layout in a type: a memory space, the shape of the buffer that this is a part of, a remark
_REST = regex(
    r"(?:\s*,\s*(?:#[\w.]+|mutable|(?P<whole>\d+(?:\s*x\s*\d+)*)))*\s*>(?P<outer>\s*>)?\s*(?:loc\([^\n]*\)\s*)?"
    r"(?:(?://|;)[^\n]*)?\s*\Z"
)
_GLUON_REST = regex(r"\s*(?:,\s*\[(?P<whole>[\d,\s]*)\]\s*)?>\s*\Z")


def end_of_type(reader: TextReader, shape: Sequence[int], *, described: bool = False) -> None:
    """Refuse other text than the end of a type of Triton's IR. `described`: in a tensordesc.

    Raises ParseError, also for a part of a buffer.
    """
    rest = _REST.match(reader.text, reader.at)
    if rest is None or (rest["outer"] is not None and not described):
        raise reader.fail("'>' and the end of the type")
    _is_whole(reader.text, rest, shape)


def end_of_gluon_type(reader: TextReader, shape: Sequence[int]) -> None:
    """Refuse other text than the end of a type of Gluon. Raises ParseError."""
    rest = _GLUON_REST.match(reader.text, reader.at)
    if rest is None:
        raise reader.fail("'>' and the end of the type")
    _is_whole(reader.text, rest, shape)


def _is_whole(text: str, rest: re.Match[str], shape: Sequence[int]) -> None:
    """Refuse a part of a buffer: its elements lie where the whole buffer's layout puts them."""
    whole = [int(extent) for extent in re.findall(r"\d{1,18}", rest["whole"] or "")]
    if whole and whole[-len(shape) :] != list(shape):
        said = "x".join(map(str, whole[-len(shape) :]))
        raise ParseError(f"expected a whole buffer: this is a part of one of {said}", text, rest.start("whole"))


class AttributeFields:
    """The fields of an attribute, with the expected type of each."""

    def __init__(self, text: str, attribute: AttributeValue) -> None:
        self.text, self.name, self.at = text, attribute.name, attribute.at
        self.fields: Mapping[str, Value] = dict(attribute.fields.items)

    def fail(self, expected: str) -> ParseError:
        """The error that says what was expected in the attribute."""
        return ParseError(f"expected {expected} in {self.name}", self.text, self.at)

    def number(self, name: str, *, power: bool = True) -> int:
        """An integer from 0, or a power of two. Raises ParseError."""
        value = self.fields.get(name)
        if not isinstance(value, int) or value < 0 or (power and (value < 1 or value & (value - 1))):
            raise self.fail(f"{name} = an integer{', a power of two' if power else ''}")
        return value

    def instruction(self) -> list[int]:
        """The shape of the instruction: [m, n, ...], without a batch of 1 before it."""
        if "instrShape" not in self.fields:
            raise self.fail("instrShape = [m, n, ...]")
        found = integers_of(self.text, self.fields["instrShape"], self.at)
        return found[1:] if len(found) > 2 and found[0] == 1 else found

    def flag(self, name: str) -> bool:
        """True or false; false where the field is not there. Raises ParseError."""
        value = str(self.fields.get(name, "false")).lower()
        if value not in ("true", "false"):
            raise self.fail(f"{name} = true or false")
        return value == "true"

    def numbers(self, name: str, rank: int) -> list[int]:
        """One power of two for each dimension."""
        if name not in self.fields:
            raise self.fail(f"{name} = [...]")
        found = integers_of(self.text, self.fields[name], self.at)
        if len(found) != rank:
            raise self.fail(f"{rank} integers, one a dimension, for {name}, not {found},")
        for n in found:
            if n < 1 or n & (n - 1):
                raise self.fail(f"powers of two for {name}, not {n},")
        return found

    def tiles(self, rank: int) -> list[int]:
        """tilesPerWarp; absent, or ones of whatever number, as Triton 3.9 prints by default, it is 1 everywhere."""
        found = self.fields.get("tilesPerWarp")
        ones = found is None or set(integers_of(self.text, found, self.at)) == {1}
        return [1] * rank if ones else self.numbers("tilesPerWarp", rank)

    def extents(self, name: str) -> list[int]:
        """Two or three powers of two: one for each dimension, the batch first."""
        rank = len(integers_of(self.text, self.fields.get(name, 0), self.at)) if name in self.fields else 2
        if rank not in (2, 3):
            raise self.fail(f"{name} = [...] of 2 or 3 dimensions")
        return self.numbers(name, rank)

    def depth(self, rank: int) -> int:
        """The dimension that is K, of the last two."""
        which = self.number("opIdx", power=False)
        if which > 1 or rank < 2:
            raise self.fail("opIdx = 0 or 1, and a tensor of 2 dimensions or more,")
        return rank - 1 - which

    def order(self, rank: int) -> list[int]:
        """The dimensions, fastest first."""
        found = integers_of(self.text, self.fields.get("order", 0), self.at)
        if sorted(found) != list(range(rank)):
            raise self.fail(f"order = a permutation of {rank} dimensions, not {found},")
        return found

    def cluster(self, rank: int) -> Vectors:
        """The bases of the blocks of a cluster, in units of a block's part."""
        if "CGALayout" in self.fields:
            if both := sorted(CLUSTER & set(self.fields) - {"CGALayout"}):
                raise self.fail(f"CGALayout alone, without {', '.join(both)},")
            vectors = basis_of(self.text, "CGALayout", self.fields["CGALayout"], self.at).vectors
            for vector in vectors:
                if len(vector) != rank or sum(1 for x in vector if x) > 1 or any(x < 0 or x & (x - 1) for x in vector):
                    raise self.fail(f"CGALayout = bases of {rank} integers, one a power of two, not {list(vector)},")
            return list(vectors)
        ones = [1] * rank
        blocks, split = (
            self.numbers(name, rank) if name in self.fields else ones for name in ("CTAsPerCGA", "CTASplitNum")
        )
        order = list(range(rank))[::-1]
        if "CTAOrder" in self.fields:
            order = integers_of(self.text, self.fields["CTAOrder"], self.at)
            if sorted(order) != list(range(rank)):
                raise self.fail(f"CTAOrder = a permutation of {rank} dimensions, not {order},")
        out: Vectors = []
        for dim in order:
            if blocks[dim] % split[dim]:
                raise self.fail(f"CTASplitNum that divides CTAsPerCGA, not {split[dim]} of {blocks[dim]},")
            out += [unit(dim, 1 << i, rank) for i in range(split[dim].bit_length() - 1)]
            out += [unit(dim, 0, rank)] * ((blocks[dim] // split[dim]).bit_length() - 1)
        return out

    def one_split(self) -> None:
        """Refuse the older fields of tensor memory in a cluster. They count the CTAs among the columns."""
        for name in ("CTASplitM", "CTASplitN"):
            if str(self.fields.get(name, 1)) != "1":
                raise self.fail(f"{name} = 1; of blocks in a cluster CGALayout, as in CGALayout = [[1, 0]],")
        for name in ("CTAsPerCGA", "CTASplitNum"):
            each = self.fields.get(name)
            if each is not None and set(integers_of(self.text, each, self.at)) != {1}:
                raise self.fail(f"{name} = 1 along every dimension; of blocks in a cluster CGALayout")
        if self.flag("twoCTAs") and self.cluster(2)[:1] != [(1, 0)]:
            raise self.fail("twoCTAs = false, or CGALayout = [[1, 0], ...]: a pair of CTAs shares the rows,")

    def only(self, *names: str) -> None:
        """Refuse every other field: it would change the layout."""
        for name in self.fields:
            if name not in names and name not in CLUSTER:
                raise self.fail(f"one of {', '.join(names)}, not {name},")


def unit(dim: int, value: int, rank: int) -> tuple[int, ...]:
    """A vector of zeros with a value at one dimension."""
    return tuple([value if d == dim else 0 for d in range(rank)])


class Tile:
    """Bases that grow along the dimensions of a tensor; beyond the tensor they repeat it."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape, self.reached = shape, [1] * len(shape)
        self.bases: dict[str, Vectors] = {"register": [], "lane": [], "warp": [], "block": []}

    def grow(self, name: str, dim: int, extent: int, *, repeats: bool = False) -> None:
        """More bits of an input along a dimension; with `repeats` they move nowhere."""
        self.bases[name] += self.taken(dim, extent, repeats=repeats)

    def taken(self, dim: int, extent: int, *, repeats: bool = False) -> Vectors:
        """The bases of `grow`, for an input that is put together later."""
        out: Vectors = []
        for _ in range(extent.bit_length() - 1):
            inside = self.reached[dim] < self.shape[dim] and not repeats
            out.append(unit(dim, self.reached[dim] if inside else 0, len(self.shape)))
            self.reached[dim] *= 1 if repeats else 2
        return out

    def place(self, name: str, vectors: Sequence[tuple[int, ...]], *, zeroed: int | None = None) -> None:
        """Bits of an input at multiples of the tile so far. Along the dimension `zeroed` they move nowhere."""
        rank = len(self.shape)
        for vector in vectors:
            at = [0 if d == zeroed else x * by for d, (x, by) in enumerate(zip(vector, self.reached, strict=True))]
            self.bases[name].append(tuple([at[d] if at[d] < self.shape[d] else 0 for d in range(rank)]))

    def filled(self, order: Sequence[int]) -> dict[str, Vectors]:
        """The bases, with registers for the rest of the tensor."""
        for dim in order:
            self.grow("register", dim, max(1, self.shape[dim] // self.reached[dim]))
        return self.bases
