"""Layouts from source text. CuTe's types in C++, and the calls that make a layout in C++ and in the CuTe DSL.

Layout<Shape<_4,_8>,Stride<_8,_1>>                                          a type, as compilers and authors write it
cute::Layout<cute::tuple<cute::C<4>, cute::C<8>>, cute::tuple<...>>
ComposedLayout<Swizzle<3,4,3>, smem_ptr_flag_bits<16>, Layout<...>>
make_layout(make_shape(Int<4>{}, _8{}), make_stride(8, Int<1>{}))           a call; also LayoutLeft{}, LayoutRight{}
composition(Swizzle<3,3,3>{}, Layout<Shape<_8,_64>,Stride<_64,_1>>{})
make_layout(make_layout(4, 1), make_layout(8, 4))     make_ordered_layout(Shape<_4,_8>{}, Step<_1,_0>{})
Layout<Shape<int,_8>,Stride<_8,_1>>                   an extent that the type does not say: a symbol of its own
tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_128,_64>{})       a tile that CUTLASS names
cute.make_layout((4, 8), stride=(8, 1))                                     the DSL's
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from ...arguments import DEPTH
from ...dtypes import dtype
from ...errors import LayoutError, ParseError
from ...regex import regex
from ..basis import E
from ..layout import Layout
from ..swizzle import ComposedLayout, Swizzle
from ..symbols.dims import fresh_name, symbol
from .bases import TextReader

_T = TypeVar("_T")
Tuple: TypeAlias = "int | tuple[Any, ...]"
AnyOperand: TypeAlias = "Tuple | Layout | ComposedLayout"

_HEAD = regex(
    r"\s*(?:(?:using|constexpr|static|const|auto|typename|with|(?:cute::)?(?:Layout|Tensor(?=\s+\w+\s*=)))\s+)*\[?(?:\w+\s*=\s*)?(?:decltype\s*\(\s*)?"
    r"(?:const\s+)?(?=(?:\w+(?:::|\.))*"
    r"(?:(?:Layout|ComposedLayout|Tensor(?=\s*<\s*(?:\w+::)*\w*Engine)|Layout_(?:K|MN)_\w+_Atom)\s*<|tile_to_shape\s*\(|make_tensor\s*[<(]|make_(?:ordered_|identity_)?layout\s*\(|composition\s*\(|make_composed_layout\s*\())"
)
# Tiles of shared memory that CUTLASS names, their swizzles and the bits of a row; Source: mma_traits_sm90_gmma.hpp
_ATOM = regex(r"Layout_(K|MN)_(SW128|SW64|SW32|INTER)_Atom")
_SPANS = {"INTER": (0, 128), "SW32": (1, 256), "SW64": (2, 512), "SW128": (3, 1024)}
_TYPE = regex(r"\s*((?:\w+::)*\w+)\s*>")
_NAME = regex(r"(?:\w+(?:::|\.))*([A-Za-z]\w*)\s*([<(]?)")
_INTEGER = regex(
    r"(?:cute::)?(?:\((?:unsigned |signed )?(?:int|long|short|char)\)\s*)?_?(-?\d+)(?:[uU]?[lL]{0,2})(?![\w.])"
)
_NEGATIVE = regex(r"(?:cute::)?_m(\d{1,3})(?!\w)")  # CuTe's _m1, Int<-1>
# Types of extents and strides that a program computes
_COMPUTED = regex(r"(?:std::)?(?:(?:unsigned|signed|long)\b\s*)*(?:int|long|unsigned|u?int\d+_t|size_t)\b(?!\s*[<(])")
_INTEGER_TYPE = regex(r"\s*(?:std::)?(?:unsigned\s+|signed\s+)?[a-z]\w*(?:\s+(?:int|long))*\s*,\s*")
# Mojo's Layout.row_major(4, 8), and Hidet's row_major(4, 8)
_MAJOR = regex(
    r"\s*(?:\w+\s*=\s*)?(?:\w+\.)*(row|col|column)_major\(\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*\)\s*(?:(?://|#)[^\n]*)?\Z"
)
_END = regex(r"(?:\s*(?:const|&+|\*))*[\s)\]]*(?:\w+\s*;)?[\s;)]*(?:(?://|#)[^\n]*)?\Z")
_ZEROS = regex(r"\((?:\s*(?:0|_0(?:\{\})?|Int<0>\{\})\s*,?)*\)\s*\Z")  # of an iterator that begins at 0
_SOURCE_TUPLE = regex(r"\s*(?:\w+(?:::|\.))*(?:Shape|Stride|Tile|make_(?:shape|stride|tuple|tile)|tuple|Int|C)\s*[<(]")
_KEYWORD = regex(r"(shape|stride|order|offset|inner|outer)\s*=(?!=)\s*")
_LAYOUT = regex(r"\s*(?:\w+(?:::|\.))*(?:Layout\s*<|make_(?:ordered_|identity_)?layout\s*\()")
_TUPLES = ("Shape", "Stride", "Step", "tuple", "make_shape", "make_stride", "make_tuple", "Coord", "make_coord")
_MAJORS = {"LayoutLeft": False, "GenColMajor": False, "LayoutRight": True, "GenRowMajor": True}


def spelled(text: str) -> Layout | ComposedLayout | None:
    """The layout that a C++ type or a call denotes, None for another text.

    Raises ParseError for values that the text does not hold, with the character and what was expected.

    >>> spelled("Layout<Shape<_4,Shape<_2,_2>>, Stride<_1,Stride<_4,_8>>>{}")
    Layout((4, (2, 2)), (1, (4, 8)))
    >>> print(spelled("Layout.row_major(4, 8)"))
    (4,8):(8,1)
    >>> print(spelled("composition(Swizzle<3,3,3>{}, make_layout(make_shape(Int<8>{}, _64{}), LayoutRight{}))"))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    head = _HEAD.match(text)
    if head is None:
        return _by_major(text)
    reader = _SourceReader(text, head.end())
    out = reader.layout(0)
    if _END.match(text, reader.at) is None:
        raise reader.fail("the end of the text")
    return out


def operand(text: str, at: int) -> tuple[AnyOperand, int] | None:
    """The layout or tuple of C++ or the DSL here, and its end. None for another text.

    >>> operand("zipped_divide(Layout<_8,_1>{}, Shape<_2>{})", 14), operand("f(Shape<_2,_4>{})", 2)
    ((Layout(8, 1), 29), ((2, 4), 16))
    """
    head = _HEAD.match(text, at)
    reader = _SourceReader(text, at if head is None else head.end())
    if head is not None:
        return reader.layout(0), reader.at
    return (reader.entry(0), reader.at) if _SOURCE_TUPLE.match(text, at) is not None else None


def _by_major(text: str) -> Layout | None:
    """The layout of a call of extents alone, row_major(4, 8) or col_major(4, 8); None for another text."""
    found = _MAJOR.match(text)
    if found is None:
        return None
    shape = tuple([int(extent[:1000]) for extent in found[2].split(",")])
    try:
        return Layout(shape, _row_major(shape, 1)[0] if found[1] == "row" else None)
    except LayoutError as error:
        raise ParseError(error.reason, text, found.start(2)) from None


class _SourceReader(TextReader):
    """Reads types and calls."""

    def name(self, expected: str) -> tuple[str, str]:
        """A name without its namespaces, and the bracket that opens behind it."""
        self.peek()
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise self.fail(expected)
        self.at = found.end()
        return found[1], found[2]

    def made(self, make: Callable[[], _T], at: int) -> _T:
        """The value of `make`, whose refusal is one of this place."""
        try:
            return make()
        except LayoutError as error:
            raise ParseError(error.reason, self.text, at) from None

    def close(self, opening: str) -> None:
        """The bracket's end, and `{}` or `()` after it. These make a value of a type."""
        if self.peek() != (">" if opening == "<" else ")"):
            raise self.fail(f"',' or '{'>' if opening == '<' else ')'}'")
        self.at += 1
        self.instance()

    def instance(self) -> None:
        """Passes `{}` or `()`, which make a value of a type."""
        self.peek()
        if self.text[self.at : self.at + 2] in ("{}", "()"):
            self.at += 2

    def comma(self) -> bool:
        """True if a comma stands here, which is passed, and no bracket closes behind it."""
        if self.peek() != ",":
            return False
        self.at += 1
        return self.peek() not in (">", ")")

    # ------------------------------------------------------------------------------------------ layouts

    def layout(self, depth: int) -> Layout | ComposedLayout:
        """A layout's type, or a call that makes one."""
        self.peek()
        at = self.at
        name, opening = self.name("a layout, as in Layout<Shape<_4,_8>,Stride<_8,_1>>")
        if depth > DEPTH:
            raise ParseError(f"types nest at most {DEPTH} deep", self.text, at)
        if opening == "<" and name == "Tensor":
            return self.tensor(at, depth)
        if opening == "<" and _ATOM.fullmatch(name) is not None:
            return self.atom(name, at)
        if opening == "(" and name == "tile_to_shape":
            return self.repeated(at, depth)
        if opening and name in ("Layout", "make_layout"):
            return self.joined(at, depth) if _LAYOUT.match(self.text, self.at) is not None else self.plain(opening, at)
        if opening and name == "make_tensor":
            return self.of_tensor(opening, at, depth)
        if opening and name in ("make_ordered_layout", "make_identity_layout"):
            return self.ordered(name == "make_ordered_layout", at)
        if opening and name in ("ComposedLayout", "composition", "make_composed_layout"):
            return self.composed(opening, at, depth)
        raise ParseError("expected a layout, as in Layout<Shape<_4,_8>,Stride<_8,_1>>", self.text, at)

    def atom(self, name: str, at: int) -> ComposedLayout:
        """The tile that CUTLASS names, in elements of the type in brackets."""
        found, of_type = _ATOM.fullmatch(name), _TYPE.match(self.text, self.at)
        if found is None or of_type is None:
            raise self.fail("the type of the elements, as in Layout_K_SW128_Atom<half_t>")
        bits, row = _SPANS[found[2]]
        try:
            width = dtype(of_type[1].rpartition("::")[2]).bits
        except LayoutError as error:
            raise ParseError(f"expected the type of the elements: {error.reason}", self.text, self.at) from None
        self.at = of_type.end()
        self.instance()
        extent = row // width
        plain = Layout((8, extent), (extent, 1)) if found[1] == "K" else Layout((extent, 8), (1, extent))
        return self.made(lambda: ComposedLayout(Swizzle(bits, 4, 3, "bytes").recast(width), 0, plain), at)

    def repeated(self, at: int, depth: int) -> Layout | ComposedLayout:
        """A tile repeated over a shape, in the order of a Step."""
        tile = self.layout(depth + 1)
        if not self.comma():
            raise self.fail("',' and the shape")
        shape, order = self.entry(0), None
        if self.comma():
            order = self.entry(0)
        self.close("(")
        return self.made(lambda: tile.tile_to_shape(shape, order), at)

    def tensor(self, at: int, depth: int) -> Layout | ComposedLayout:
        """The layout of a tensor's type, behind its engine. A swizzled pointer moves elements where it is aligned."""
        start = self.at
        self.argument()
        if "swizzle_ptr" in self.text[start : self.at]:
            raise ParseError(
                "expected a pointer without a swizzle: the type does not say where the swizzle's pattern begins; "
                "print(tensor) does",
                self.text,
                self.text.index("swizzle_ptr", start),
            )
        if not self.comma():
            raise self.fail("',' and the layout of the tensor")
        out = self.layout(depth + 1)
        self.close("<")
        return out

    def of_tensor(self, opening: str, at: int, depth: int) -> Layout | ComposedLayout:
        """The layout, or the shape and stride, behind make_tensor's pointer or type."""
        start = self.at
        self.argument()
        begins = self.text[start : self.at]
        if "iter" in begins and _ZEROS.search(begins) is None:
            raise ParseError(
                "expected a pointer, or zeros: print(tensor) shows where an iterator begins", self.text, start
            )
        if opening == "(" and not self.comma():
            raise self.fail("',' and the layout of the tensor")
        if opening == "<":
            self.close("<")
            if self.text[self.at : self.at + 1] != "(":
                raise self.fail("'(' and the shape of the tensor")
            self.at += 1
        if _HEAD.match(self.text, self.at) is None:
            return self.plain("(", at)
        out = self.layout(depth + 1)
        self.close("(")
        return out

    def argument(self) -> None:
        """Passes one argument, to the comma behind it."""
        nested = 0
        while self.at < len(self.text) and (nested or self.text[self.at] not in ",)>"):
            nested += (self.text[self.at] in "<(") - (self.text[self.at] in ">)")
            self.at += 1

    def plain(self, opening: str, at: int) -> Layout:
        """The shape and the stride behind the bracket."""
        shape = self.entry(0)
        stride: Tuple | None = None
        if self.comma():
            self.keyword()
            major = regex(r"(?:\w+::)*(\w+)").match(self.text, self.at)
            if major is not None and major[1] in _MAJORS:
                self.at = major.end()
                self.instance()
                stride = _row_major(shape, 1)[0] if _MAJORS[major[1]] else None
            else:
                stride = self.entry(0)
        self.close(opening)
        return self.made(lambda: Layout(shape, stride), at)

    def joined(self, at: int, depth: int) -> Layout:
        """The layout whose modes are the layouts behind the bracket."""
        modes: list[Layout] = []
        while not modes or self.comma():
            mode = self.layout(depth + 1)
            if not isinstance(mode, Layout):
                raise ParseError("expected layouts without a swizzle", self.text, at)
            modes.append(mode)
        self.close("(")
        return self.made(lambda: Layout.join(*modes), at)

    def ordered(self, by_order: bool, at: int) -> Layout:
        """The compact layout of a shape and an order, or the identity of a shape."""
        shape = self.entry(0)
        order = None
        if by_order:
            if not self.comma():
                raise self.fail("',' and the order of the modes")
            order = self.entry(0)
        self.close("(")
        return self.made(lambda: Layout.ordered(shape, order) if by_order else Layout.identity(shape), at)

    def composed(self, opening: str, at: int, depth: int) -> ComposedLayout:
        """A swizzle, an offset, or the width of shared memory's elements, and a layout."""
        self.keyword()
        self.peek()
        where = self.at
        name, inside = self.name("a swizzle, as in Swizzle<3,4,3>")
        if name not in ("Swizzle", "make_swizzle") or not inside:
            raise ParseError("expected a swizzle, as in Swizzle<3,4,3>", self.text, where)
        bits, base, shift = self.three()
        self.close(inside)
        if not self.comma():
            raise self.fail("',' and a layout")
        self.keyword()
        width, offset = self.between()
        self.keyword()
        layout = self.layout(depth + 1)
        self.close(opening)
        swizzle = self.made(lambda: Swizzle(bits, base, shift, None if width is None else "bytes"), where)
        if width is not None:
            swizzle = self.made(lambda: swizzle.recast(width), where)
        return self.made(lambda: ComposedLayout(swizzle, offset, layout), at)

    def between(self) -> tuple[int | None, int]:
        """Bits of an element in shared memory, and an offset. They stand between a swizzle and its layout."""
        self.peek()
        found = regex(r"(?:\w+::)*smem_ptr_flag(?:_bits\s*<\s*(\d{1,4})\s*>)?").match(self.text, self.at)
        if found is not None:
            self.at = found.end()
            self.instance()
        elif _INTEGER.match(self.text, self.at) is None and not regex(r"(?:\w+::)*(?:Int|C)\s*<").match(
            self.text, self.at
        ):
            return None, 0
        offset = 0 if found is not None else self.integer()
        if not self.comma():
            raise self.fail("',' and a layout")
        return (int(found[1] or 1) if found is not None else None), offset

    def three(self) -> tuple[int, int, int]:
        """The numbers of a swizzle."""
        numbers = [self.integer()]
        while len(numbers) < 3:
            if not self.comma():
                raise self.fail("','")
            numbers.append(self.integer())
        return numbers[0], numbers[1], numbers[2]

    # ------------------------------------------------------------------------------------------ integers and tuples

    def keyword(self) -> None:
        """Passes the name of an argument."""
        self.peek()
        found = _KEYWORD.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def integer(self) -> int:
        """An entry that is an integer."""
        value = self.entry(0)
        if not isinstance(value, int):
            raise self.fail("an integer")
        return value

    def entry(self, depth: int) -> Any:
        """An integer, a coordinate's unit, or a tuple of these."""
        self.keyword()
        sign = self.peek()
        at = self.at
        if depth > DEPTH:
            raise ParseError(f"tuples nest at most {DEPTH} deep", self.text, at)
        number = _INTEGER.match(self.text, at)
        if number is not None:
            if len(number[1]) > 1000:
                raise ParseError(f"an integer of {len(number[1])} digits", self.text, at)
            self.at = number.end()
            self.instance()
            return int(number[1])
        negative = _NEGATIVE.match(self.text, at)
        if negative is not None:
            self.at = negative.end()
            self.instance()
            return -int(negative[1])
        if sign == "(":
            self.at += 1
            return self.items("(", depth)
        computed = _COMPUTED.match(self.text, at)
        if computed is not None:
            self.at = computed.end()
            return symbol(fresh_name("unknown"), 1)
        name, opening = self.name("an integer, as in _4, Int<4> or 4, or a tuple of them")
        if opening and name in _TUPLES:
            return self.items(opening, depth)
        if opening == "<" and name in ("C", "Int", "E", "integral_constant", "constant"):
            typed = _INTEGER_TYPE.match(self.text, self.at)
            self.at = typed.end() if typed is not None and name.endswith("constant") else self.at
            items = [self.integer()]
            while self.comma():
                items.append(self.integer())
            self.close(opening)
            return E(*items) if name == "E" else items[-1]
        if opening == "<" and name == "ScaledBasis":
            factor, path = self.entry(0), list[int]()
            while self.comma():
                path.append(self.integer())
            self.close(opening)
            if not path:
                raise ParseError("expected a coordinate, as in ScaledBasis<C<1>,0>", self.text, at)
            return self.made(lambda: E(*path) * factor, at)
        raise ParseError("expected an integer, as in _4, Int<4> or 4, or a tuple of them", self.text, at)

    def items(self, opening: str, depth: int) -> tuple[Any, ...]:
        """The entries of a tuple behind its bracket."""
        out: list[Any] = []
        closing = ">" if opening == "<" else ")"
        while self.peek() != closing:
            out.append(self.entry(depth + 1))
            if not self.comma():
                break
        self.close(opening)
        return tuple(out)


def _row_major(shape: Any, width: int) -> tuple[Any, int]:
    """The compact strides from `width` on, the last mode fastest, and the next stride."""
    if not isinstance(shape, tuple):
        return width, width * shape
    out: list[Any] = []
    for mode in reversed(shape):
        stride, width = _row_major(mode, width)
        out.append(stride)
    return tuple(reversed(out)), width
