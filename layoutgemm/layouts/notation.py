"""Layouts from text, as str(), CuTe, the CuTe DSL and pycute print them.

(8,(2,2)):(2,(1,16))                              this library, pycute, CuTe; static integers as _8, too
(?,8):(8,1)   (?{div=8},8):(?{i64},1)             CuTe and the DSL: each ? is a symbol of its own
(4,8):(1@0,1@1)   (4,8):(E<0>,E<1>)               strides that are coordinates
S<3,4,3>[bytes] o 0 o (8,64):(64,1)               a swizzle, with its unit
Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)  CuTe: the swizzle counts bytes, the layout elements of 16 bits
gmem_ptr[16b](0x7f00) o (4,8):(8,1)               CuTe's tensors: the pointer is left out
ArithTuple(128,_0) o (4,8):(1@0,1@1)              tensors of coordinates; those that begin at 0 are layouts
(128,0) o (4,8):(1@0,1@1)                         the DSL's
tensor<ptr<f16, smem, align<16>> o (4,8):(8,1)>   the DSL's
!cute.layout<"(4,8):(8,1)">                       its IR
!fly.layout<(4,8):(8,1)>                          FlyDSL's IR
Layout((4, 8), (8, 1))                            what repr() prints
SW_3_4_3 o 0 o (8, 64):(64, 1)                    pycute's swizzle
(6,2):(8,2) o (4,3):(3,1)                         a composition: the layout that it is
Tensor<0x7f00@gmem o (4,8):(8,1)>                 the DSL's tensors outside a kernel
!cute.tiled_copy<..., layout_copy_tv = <"...">>   tiled copies and MMAs of its IR: a listing
print(tCgA);  // gmem_ptr[16b](0x7f) o 4:1        a statement before its value's comment, lines that go on in the next
tCsA: (4,8):(8,1)                                 a label before it, a comment or the values of a tensor after it
TiledMMA ... MMA_Atom ...                         a listing, over several lines: each of its layouts by name
#ttg.linear<{register = [[0, 1]], ...}>           Triton's linear layouts: see texts.bases
Layout<Shape<_4,_8>,Stride<_8,_1>>                C++, and calls of make_layout: see texts.spelled
SM80_16x8x16_F32BF16BF16F32_TN                    an atom: see atoms.cutlass_names
zipped_divide((8,16):(16,1), (4,8))               an operation: its result
tensor<64x64xf16, #ttg.blocked<{...}>>            its layouts of a tensor: see texts.encodings
bf16[16,256]{1,0:T(8,128)(2,1)}   TiledLayout(...)  XLA's shapes, Mosaic's registers: see texts.tilings
spatial(4, 8).local(2, 1)   Fragment([8] -> [4], ...)  threads of Tilus, Hidet, TileLang and CK: see texts.mappings
torch.Size([4, 8]) (8, 1)   memref<4x8xf16>       sizes and strides of torch, Inductor and MLIR: see texts.sized
!nvgpu.tensormap.descriptor<tensor = ...>         the swizzled box of a tensor map: see texts.tensor_maps
[[T0:0, T0:1]   Offset: 0 -> (0,0)                Triton's views of a linear layout: see texts.views
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, overload

from ..arguments import DEPTH, refusal, shown
from ..dtypes import DType, dtype
from ..errors import LayoutError, ParseError
from ..regex import regex
from . import registries
from .basis import ScaledBasis
from .coordinates import CoordinateTensor
from .display import HasPicture
from .int_tuple import Stride, StrideEntry
from .layout import Layout
from .linear import LinearLayout
from .listing import FIELDS, TILERS, Field, Listing, title_of
from .swizzle import SWIZZLES, AnyLayout, ComposedLayout, Swizzle, composed_from
from .symbols.dims import declared, fresh_name, parse_entry, symbol
from .symbols.facts import as_facts
from .symbols.polynomial import Scalar
from .texts.bases import TextReader, linear
from .texts.encodings import encoded, shaped
from .texts.mappings import mapped
from .texts.operations import of_result, of_triton
from .texts.padded import padded
from .texts.sized import sized
from .texts.spelled import operand, spelled
from .texts.surroundings import (
    PAIR,
    bare,
    has_code,
    of_compiler,
    quoted,
    refuse_other_type,
    refuse_others,
    without_labels,
    without_pins,
)
from .texts.tensor_maps import tensor_map
from .texts.tilings import tiled
from .texts.views import viewed

Symbols = Callable[[str], Any]
MAX_TEXT = 1 << 16  # characters: no layout that can be read by a person, or is printed by a program, is longer

# Where the name of an atom may stand; `layoutgemm.atoms` says whether it is one
_ATOM = regex(
    r"\s*(?:\w+\s+)*(?:\w+\s*=\s*)?(?:\w+::)*(?:SM\d|G?MMA_|Copy_|Tiled|make_tiled|Universal|Auto|Default)"
    r"|[^\n]*MMA Operation"
)
_INVISIBLE = dict.fromkeys((0xFEFF, 0x200B, 0x200C, 0x200D, 0x2060, 0xA0), " ")  # what copying adds to a text
_NUMBER = regex(r"\s*(_?-?|-_)(\d+)((?:@\d+)*)(?![\w.])(?!\s*[/*%+-])")
_TYPE_OF_INTEGER = regex(r"\s*(?:cute::)?(?:Int|C)<\s*(-?\d+)\s*>(?:\{\})?")
_BASIS = regex(r"\s*(?:(-?\d+)\s*\*\s*)?E[<(]\s*(\d+(?:\s*,\s*\d+)*)\s*[>)]")
_FLY_BASIS = regex(r"\s*(-?\d+)E(\d+)(?![\w.])")  # FlyDSL's 1E0
_UNKNOWN = regex(r"\s*\?(?:\{([^{}]*)\})?")
_PATH = regex(r"(?:@\d{1,4})+(?![\w.])")
_FACTS = regex(r"\s*(?:i\d+\b)?\s*(?:div\s*=\s*(0*[1-9]\d*))?\s*")
_SWIZZLE = regex(
    r"\s*(?:cute::)?S(?:w|wizzle)?<\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)"
    r"(?:\s*>(?:\{\})?(?:\[(?:(bytes)|(\d+)b)\])?|(?=\s+o\s+-?\d+\s+o\s))"  # the DSL prints S<3,0,-3 o 8 o (8,8):(8,1)
)
_CALLED_SWIZZLE = regex(
    r"\s*\(?(?:\w+(?:\.|::))*(?:make_s|S)wizzle\(\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*\)\)?(?:\{\})?(?=\s+o\s|\s*;?\s*\Z)"
)
_PYCUTE_SWIZZLE = regex(r"\s*SW_(\d+)_(\d+)_(-?\d+)(?=\s+o\s|\s*\Z)")
_LINK = regex(r"\s*o\s+")
_OFFSET = regex(r"\s*(?:_?(-?\d+)|\{(-?\d+)\})\s+o\s+")
# An offset of symbols: ? or M+3, no pointer, swizzle or layout
_OFFSET_OF_SYMBOLS = regex(r"\s*(\?(?:\{[^{}]*\})?|[^\s:<>\[\]\",?][^:<>\[\]\",?\n]*?)(?=\s+o\s)")
_OFFSET_NAMED = regex(r"\s*,\s*(?:pre)?offset\s*=\s*(-?\d+)")
# CuTe's pointers: ptr[32b](nil), gmem_ptr[16b](0x7f00), smem_ptr[16b](unset), tmem_[32b](0x0)
# and sparse<2>_gmem_ptr[8b](0x7f00), smem_sparse<2>_ptr[8b](unset): 2 elements of the layout in 8 bits
_POINTER = regex(
    r"[\s_]*(?:(?:smem_)?sparse<(?P<sparsity>\d{1,3})>_)?(\w*ptr|\w*mem_|subbyte_iterator)\[(?P<bits>\d+)b\]\((?P<address>[^()]*)\)"
)
# An address that a published listing leaves out, 0x7f.. or SMEM_ADDR: it stands for the beginning of a buffer
_LEFT_OUT = regex(r"0x[0-9a-fA-F]*\.\.+|[A-Z][A-Z0-9_]*|unset|nil|")
_ADDRESS = regex(r"(0x[0-9a-fA-F]+)(?:\.0)?")  # subptr[4b](0x7f00.0): behind the point the first bit of the byte
_COORDINATE = regex(r"\s*(?:ArithTuple(?:Iter(?:ator)?)?)?(?=\([^:\"<>\n]*\)\s*o\s)")
# Iterators of other things than elements: UMMA::DescriptorIterator, counting_iter(0), smem_desc<...>
_ITERATOR = regex(r"\s*(?:[A-Za-z_]\w*(?:::\w+)+|\w*(?:iter|desc|tensor)\w*)(?:<[^<>]*>)?(?:\([^()]*\))?(?=\s+o\s)")
_COUNTER = regex(r"\s*(?:counting_iter\(\s*_?(-?\d+)\s*\)|(?<=tensor<)(-?\d+)(?=\s+o\s))")
# The DSL's: ptr<f16, smem, align<16>>, raw_ptr(0x7f00: f32, generic, align<4>)
_TYPED = regex(r"\s*(?:raw_)?ptr([<(])")
# Its tensors outside a kernel: Tensor<0x00007f5c@gmem o (4,8):(8,1)>
_AT_ADDRESS = regex(r"\s*Tensor<0x[0-9a-fA-F]+@\w+\s+o\s")
_MEMREF = regex(r"\s*!?(?:cute\.)?memref<(?=[^\"<>]*(?:<[^\"<>]*>[^\"<>]*)*\")")
_TYPE = regex(r"\s*(?:(0x[0-9a-fA-F]+)\s*:\s*)?([A-Za-z]\w*)")
_UNREAD = regex(r"[^\w\s,:.!]")
_ALIGNED = regex(r"align<(\d+)>")
_CALL = regex(r"\s*_?(?:\w+\.)*(Layout|ComposedLayout|CoordinateTensor|Swizzle)\(")
_ARGUMENT = regex(r"\s*(?:shape|stride)\s*=\s*")
_UNIT = regex(r"\s*(?:'(bytes)'|(\d+)|None)")
_WRAPPERS = (
    _AT_ADDRESS,
    regex(r"\s*(?:!cute\.)?(?:tensor|memref|layout|composed_layout|swizzle)<\s*\"?"),
    regex(r"\s*(?:tma_gbasis|layout_copy_tv|atom_layout_MNK)\s*=\s*<\s*\""),
    regex(r"\s*!fly\.(?:(?:composed_)?layout<|memref<\s*[\w.]+\s*,\s*[#\w.]+(?:<[^<>]*>)?\s*,)(?=\s*[(_\d?S])"),
    regex(r"\s*tensor\((?=\w*ptr)"), regex(r"\s*[\"'`]"),
)  # fmt: skip
_COORDINATES = regex(r"\s*!?(?:cute\.)?coord_tensor<\s*\"")
_SECOND_TEXT = regex(r"\s*\"\s*,\s*\"")
# What stands behind a layout: closing signs of a wrapper, then the values of a tensor, another value, a comment
_CLOSED = regex(r"(?:\s*,\s*align<\d+>(?=>))?[\s>\"'`)]*(?:=\s*(?:\(.*|\Z)|,\s*data\s*=.*)?", re.DOTALL)
_REMARK = regex(
    r"\s*(?:[;,.]|\{\s*\Z)?\s*(?:loc\([^\n]*\)|;\s*\w+=[^\n]*|(?://|#(?=\s)|(?<=\s)#|<-)[^\n]*"
    r"|(?:=>|->|\u2192)(?![^\n]*[\d)?]\s*:\s*[(_\d?-])[^\n]*)?:?\s*(?:\n[-\s\d|+.,einaf()]*)?\Z"
)
# What stands before it: the sign of a comment, a name and ':' or '=', words before a pointer
_COMMENT = regex(r"(?:\s*(?:\[[A-Za-z][\w .:-]*\](?=\s)|//+|(?:#|\*|%+|\w{0,3}>>>?|\w{0,3}>\?\?)(?=\s)))+\s*")
# Behind a layout: a second one, which the text says to be the same function
_SAME = regex(r"\s*(?:==?>?|->|\u2192|\u21d2|is\b)\s*(?=[^\n=]*[\d)?]\s*:\s*[(_\d?-])(?=[(_\d?]|Sw?<)")
_ARROW = regex(r"\s*(?:->|=>|\u2192|\u21d2|=)\s*(?=[(_\d?S!])")  # before a result
_LABEL = regex(
    r"\s*(?=[^:=\n]*[A-Za-z])([^:=\n<>\"'{}]+?)\s*(?:==?>|->|[:=])\s*(?:(?=[^:\n]*:)(?=[(\[\"'`\d_?]|[A-Za-z!])|(?=(?:Composed)?Layout\())"
)
_WORDS = regex(r"\s*[A-Za-z_][\w.,' -]*?\s+(?=(?:raw_)?ptr[<(]|tensor[<(]|\w*ptr\[|tmem_\[|Sw<)")
# of the IR, up to the type of its result, the last one
_OPERATION = regex(
    r"\s*(?:%?\w+(?::\d+)?\s*=(?=\s*\"?(?:cute|fly)\.|\s*!(?:cute|fly)\.)|CHECK[\w-]*:(?=[^\n]*(?:cute|fly)\.)|:(?=\s*\(?!(?:cute|fly)\.)|->(?=\s*!(?:cute|fly)\.))"
    r"(?:[^\n]*->\s*(?=!(?:cute|fly)\.)|[^\n]*?(?=!(?:cute|fly)\.))"
)
_TILED = regex(r"\s*(?:!\w+\s*=\s*)?!cute\.(tiled_copy|tiled_mma)<")
_TILE = regex(r"\s*(?:%\w+\s*=[^\n]*?|:\s*|->\s*)?!cute\.tile<\"(\[[^\"]*\])\">\s*\)?\s*\Z")
_ATOM_CALL = regex(r"\s*(?:\w+\s*=\s*)?(?:\w+\.)*(MMA|Copy)Atom\((?=\s*name\s*=)")
_ATOM_FIELD = regex(r"\s*([a-z]\w*)\s*=\s*")
_ATOM_TEXT = regex(r"(?:'([^'\n]*)'|\"([^\"\n]*)\"|None)")
# Its str(), which has the name in CUTLASS alone
_ATOM_NAME = regex(r"\s*(?:MMA|Copy)Atom\('(\w+)'(?:,\s*[\dx]+)?\)\s*\Z")
_TILED_FIELD = regex(r",\s*(\w+)\s*=\s*<\"([^\"]*)\">")
_WORD = regex(r"\s*(?!o\s)[A-Za-z_]\w*\s+(?=\([^:\n]*:)")  # one word before a shape
_SHAPE = regex(r"\s*(?:[\w.]+\s*[=:(]\s*)?[Ss]hape\s*[=:]?\s*(?=\()")
_STRIDE = regex(r"[\s,;]*[Ss]tride\s*[=:]?\s*(?=\()")
_LABELS = 4  # in a row, as in "[host] layout A: sA = (4,8):(8,1)"
_NO_LABEL = regex(r"\s*(?:[^\n]*\so\s+[(_\d]|S(?:w|wizzle)?<|\w*ptr[<(\[]|tensor[<(]|!cute|Layout\(|ComposedLayout\()")
_STATIC = regex(r"_\d")  # how CuTe's static integers begin: no name of a symbol does
_ASSIGNED = regex(r"[\w. ]*=\s*(?:\{\}\s*)?")  # a name before a title
_NAME_OF_LINE = regex(r"[A-Za-z_]\w*(?: (?!_?\d+\b)[\w()\[\].=,]+)*\s*")  # of a value in a listing
_SECOND = regex(r"[^\n]*\so\s")  # what a swizzle is composed with
_WORD_OF_OTHER = regex(r"\s*([<%@$]?[A-Za-z_][\w.:%-]*)\s*(?=[(<\[{\s'\"=@,]|\Z)")
_NOTHING = regex(r"_(?![\w(])")  # CuTe's Underscore: a mode without an entry
_WIDTH = regex(r"[A-Za-z0-9_]+\s*\Z")


# HasPicture: an atom or a tiled product
_BASIS_ALONE = regex(r"\s*(_?\d+\s*\*\s*)?E<[\d, ]+>\s*$|\s*_?\d+(@\d+)+\s*$")
Parsed: TypeAlias = (
    "Layout | ComposedLayout | CoordinateTensor | Swizzle | LinearLayout | Listing | HasPicture | ScaledBasis"
)


Kind = TypeVar("Kind")


@overload
def parse(text: str, given: object = (), *, kind: None = None) -> Parsed: ...


@overload
def parse(text: str, given: object = (), *, kind: type[Kind]) -> Kind: ...


@registries.parsed.register(object)
def parse(text: str, given: object = (), *, kind: type | None = None) -> object:
    """A layout, a swizzle, or a swizzled layout from its notation. Raises ParseError, which points at the character.

    A listing of a tiled MMA, a tiled copy or an atom gives a Listing, with a value for each name. A linear layout of
    Triton gives a LinearLayout (register, lane, ...) -> flat index of the tensor. Coordinates that begin elsewhere than
    at 0 give a CoordinateTensor. The name of an atom in CUTLASS gives the MmaAtom, CopyAtom or TiledMma. A basis
    element alone, as E<0>, gives a ScaledBasis. `kind` is the class that the caller expects: the result is one of it,
    or ParseError names what the text is.

    Entries may hold symbols; `given` are facts about them, as `Facts` takes them, under which the text is read. Each
    `?` is a new symbol, unlike those of every other text. A pointer before a layout is left out. One of CuTe's after a
    swizzle says that the swizzle counts bytes; the result counts the pointer's elements, from the last address at which
    the swizzle's pattern begins. A pointer with a swizzle and neither an address nor that alignment is refused.

    >>> parse("((_4,_2),8):((1,16),4)")
    Layout(((4, 2), 8), ((1, 16), 4))
    >>> parse("S<3,4,3>[bytes] o 0 o (8,64):(64,1)")
    ComposedLayout(Swizzle(3, 4, 3, 'bytes'), 0, Layout((8, 64), (64, 1)))
    >>> print(parse("(64,M//64):(1,64)", given="64 | M").coalesce())
    M:1
    >>> print(parse("Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)"))
    S<3,3,3>[16b] o 0 o (8,64):(64,1)
    >>> print(parse("Sw<3,4,3>_smem_ptr[16b](0x7f10) o (8,64):(64,1)"))
    S<3,3,3>[16b] o 392 o (8,64):(64,1)
    >>> print(parse("tCsA: Sw<3,4,3>_smem_ptr[16b](0x7f..) o (_8,_64):(_64,_1)  // a tile"))
    S<3,3,3>[16b] o 0 o (8,64):(64,1)
    >>> parse("S<3,4,3>", kind=Layout)
    Traceback (most recent call last):
    layoutgemm.errors.ParseError: 'S<3,4,3>' is a Swizzle and no Layout
    """
    if not isinstance(text, str):
        raise ParseError(refusal(text, "a layout's notation", "a string"))
    if kind is not None and not isinstance(kind, type):
        raise ParseError(refusal(kind, "kind", "a class, such as Layout"))
    found = read(text, _symbols(given))
    if kind is not None and not isinstance(found, kind):
        raise ParseError(f"{shown(text)} is a {type(found).__name__} and no {kind.__name__}")
    return found


def read(text: str, symbol: Symbols) -> Parsed:
    """`parse` with the meaning of each name in the text said by `symbol`."""
    if len(text) > MAX_TEXT:
        raise ParseError(f"{len(text)} characters: a layout's notation has at most {MAX_TEXT}", text, MAX_TEXT)
    text = text.translate(_INVISIBLE)
    for sign, plain in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#39;", "'")):  # copied from a page's source
        text = text.replace(sign, plain)
    try:
        return _read(text, symbol)
    except ParseError:
        inside = quoted(text) or of_compiler(text)
        if inside is None:
            raise
        return _read(inside, symbol)


def _read(text: str, symbol: Symbols) -> Parsed:
    """`read` of a text with a layout and the words around it."""
    text = without_pins(text)
    if _BASIS_ALONE.match(text) is not None:  # a stride of a mode of one element
        alone = _read(f"1:{text}", symbol)
        return alone.stride if isinstance(alone, Layout) and isinstance(alone.stride, ScaledBasis) else alone
    refuse_others(bare(text))
    called = _ATOM_NAME.match(text)
    if called is not None or may_name_atom(text):
        atom: HasPicture | None = registries.atom_named(text if called is None else called[1])
        if atom is not None:
            return atom
    result = of_result(without_labels(text))
    if result != text:
        refuse_others(result)
    text = of_triton(result)
    for by_triton in (viewed, padded, encoded):
        found = by_triton(text)
        if found is not None:
            return found
    by_tiles = tiled(text)
    if by_tiles is not None:
        return by_tiles
    by_threads = mapped(text)
    if by_threads is not None:
        return by_threads
    by_sizes = tensor_map(text, symbol) or sized(text, symbol)
    if by_sizes is not None:
        return by_sizes
    operation = _operation(text, symbol)
    if operation is not None:
        return operation
    for reader in (linear, spelled):
        try:
            read_by = reader(text)
        except ParseError:
            if reader is spelled and has_code(text):  # a call of variables, with its value in a comment
                break
            raise
        if read_by is not None:
            return read_by
    named = _named(text, symbol)
    if named is not None:
        return named
    text = bare(text)
    listed = _tiled(text, symbol) or _atom(text, symbol) or _tile(text, symbol) or _listing(text, symbol)
    if listed is not None:
        return listed
    try:
        return cast("Parsed", _LayoutReader(text, symbol).all())
    except ParseError as error:
        other = _WORD_OF_OTHER.match(text)
        # Another reason than what was expected is of a word that was read, and whose numbers are refused
        read_words = not error.reason.startswith("expected")
        if other is None or read_words or error.position != other.start(1) or PAIR.search(text) is not None:
            raise
        raise ParseError(
            f"expected a layout, as in (4,8):(8,1), and {other[1][:64]} begins no text that is read",
            text,
            other.start(1),
        ) from None


def may_name_atom(text: str) -> bool:
    """True if a text begins as the name of an atom in CUTLASS does. Only then are atoms loaded to read it.

    >>> may_name_atom("SM75_U32x4_LDSM_N"), may_name_atom("(4,8):(8,1)")
    (True, False)
    """
    return _ATOM.match(text) is not None


def _operation(text: str, symbol: Symbols) -> AnyLayout | CoordinateTensor | None:
    """The result of an operation on layouts by their notation, as in complement((2,2):(1,6), 24); None for none."""
    source = _SOURCE.search(text) is not None
    if _CALLED_OPERATION.match(text) is None or (_SPELLED.match(text) if source else PAIR.search(text) is None):
        return None
    reader = _LayoutReader(text, symbol)
    try:
        out: AnyLayout = reader.operation(0)
        reader.behind(False, out)
    except ParseError:
        if has_code(text):  # a call of variables, with its value in a comment
            return None
        raise
    return out


def _named(text: str, symbol: Symbols) -> Layout | None:
    """The layout of a text that names its shape and stride, or None."""
    found = _SHAPE.match(text)
    if found is None:
        return None
    reader = _LayoutReader(text, symbol, found.end())
    shape = reader.entries(0)
    between = reader.take(_STRIDE)
    if between is None:
        return None
    stride = reader.entries(0)
    reader.behind(True)
    return cast("Layout", reader.made(lambda: Layout(shape, stride), found))


def _tiled(text: str, symbol: Symbols) -> Listing | None:
    """The listing of a tiled copy or MMA of the IR, `!cute.tiled_copy<atom, layout_copy_tv = <"...">, ...>`."""
    found = _TILED.match(text)
    if found is None:
        return None
    depth, end = 0, found.end()
    while end < len(text) and (depth or text[end] != ","):
        depth += (text[end] == "<") - (text[end] == ">" and text[end - 1] != "-")
        end += 1
    at = _TILED_FIELD.match(text, end)
    if at is None:
        raise ParseError('expected the layouts, as in layout_copy_tv = <"(32,8):(8,1)">', text, end)
    fields: list[tuple[str, Field]] = [("Atom", text[found.end() : end].lstrip("!"))]
    while at is not None:
        if at[1] not in FIELDS:
            raise ParseError("expected layout_copy_tv, tiler_mn or atom_layout_MNK", text, at.start(1))
        reader = _LayoutReader(text, symbol, at.start(2), at.end(2))
        fields.append((FIELDS.get(at[1], at[1]), reader.field()))
        if reader.peek():
            raise reader.fail("'\"'")
        end = at.end()
        at = _TILED_FIELD.match(text, end)
    if regex(r"\s*>\s*(?://[^\n]*)?\Z").match(text, end) is None:
        raise ParseError("expected ',' or '>'", text, end)
    return Listing({"tiled_copy": "TiledCopy", "tiled_mma": "TiledMMA"}[found[1]], tuple(fields))


def _atom(text: str, symbol: Symbols) -> Listing | None:
    """The listing of an atom of tensor-layouts, MMAAtom(name='...', thr_id=Layout(32, 1), ...); None for another."""
    found = _ATOM_CALL.match(text)
    if found is None:
        return None
    reader = _LayoutReader(text, symbol, found.end())
    fields: list[tuple[str, Field]] = []
    while True:
        key = reader.take(_ATOM_FIELD)
        if key is None:
            raise reader.fail("a name and its value, as in thr_id=Layout(32, 1)")
        said = reader.take(_ATOM_TEXT)
        if said is not None:
            value: Field = None if said[0].strip() == "None" else said[1] or said[2]
        else:
            layout = _CALL.match(text, reader.at) is not None
            value = reader.call(0) if layout else cast("Field", reader.entries(0))
        fields.append((FIELDS.get(key[1], key[1]), value))
        if not reader.comma():
            break
    if reader.peek() != ")" or text[reader.at + 1 :].strip():
        raise reader.fail("')' and the end of the text")
    return Listing({"MMA": "MMA_Atom", "Copy": "Copy_Atom"}[found[1]], tuple(fields))


def _tile(text: str, symbol: Symbols) -> Listing | None:
    """The listing of a tiler of the IR, `!cute.tile<"[(4,8):(1,4);_]">`."""
    found = _TILE.match(text)
    if found is None:
        return None
    reader = _LayoutReader(text, symbol, found.start(1), found.end(1))
    value = reader.field()
    if reader.peek():
        raise reader.fail("the end of the tile")
    return Listing("", (("Tiler_MN", value),))


def _listing(text: str, symbol: Symbols) -> Listing | None:
    """The listing that several lines with names are; None for a layout."""
    label = text.partition(":")[0].strip()
    if "\n" not in text and FIELDS.get(label, label) not in TILERS:
        return None
    title, at = "", 0
    fields: list[tuple[str, int, int]] = []
    names: set[str] = set()
    for line in text.split("\n"):
        start, at = at, at + len(line) + 1
        found = _COMMENT.match(line)
        begin = found.end() if found is not None else len(line) - len(line.lstrip())
        if not line[begin:].strip():
            continue
        name, colon, rest = line[begin:].partition(":")
        said = title_of(line[begin:]) or title_of(rest) or title_of(_ASSIGNED.sub("", line[begin:]))
        if said is not None:
            title = title or said
            continue
        if colon and not rest.strip() and not title and not fields:
            continue  # the name of what is listed
        if not colon or not rest.strip() or not any(map(str.isalpha, name)) or "," in name or _NO_LABEL.match(name):
            if not title and len(fields) < 2:
                return None
            raise ParseError("expected a name and its layout, as in LayoutA_TV: (4,2):(1,4)", text, start + begin)
        if _NAME_OF_LINE.fullmatch(name) is None:
            raise ParseError("expected a name of letters and digits before its layout", text, start + begin)
        name = FIELDS.get(name.strip(), name.strip())
        if name in names:
            raise ParseError(f"expected another name than {name}, which has a value already", text, start + begin)
        names.add(name)
        fields.append((name, start + begin + len(line[begin:].partition(":")[0]) + 1, start + len(line)))
    if not title and len(fields) < 2 and not (fields and fields[0][0] in TILERS):
        return None
    return Listing(title, tuple([(name, _LayoutReader(text, symbol, at, end).field()) for name, at, end in fields]))


def _symbols(given: object) -> Symbols:
    """The entry that a name in the text stands for."""
    if given.__class__ is tuple and not given:
        return declared
    return as_facts(given).__getitem__


_STATED = regex(
    r"(?:ptr[<(]|memref<|memory_descriptor<)\s*(?:0x[0-9a-fA-F]+\s*:\s*)?([A-Za-z]\w*)|\d\s*x\s*([a-z]+\d\w*)\s*[,>]"
    r"|(?:ptr|mem_)\[(\d{1,3})b\]|\b([a-z]+\d\w*)\[[\d,\s]+\](?=[\[{])"
    r"|element_?[bB]it_?[wW]idth\s*=\s*(\d{1,3})"
)


def stated_element(text: str) -> DType | None:
    """The element type that a pasted text states, None for none. Of CuTe's pointers, which state bits, an unsigned one.

    Raises LayoutError for a type that is not known.

    >>> stated_element("tensor<ptr<f32, smem, align<16>> o (4,8):(8,1)>"), stated_element("(4,8):(8,1)")
    (dtype('f32'), None)
    >>> stated_element("Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)")
    dtype('u16')
    """
    found = _STATED.search(text)
    return None if found is None else dtype(found[1] or found[2] or found[4] or f"u{found[3] or found[5]}")


def stated_extents(text: str) -> list[int] | None:
    """The shape that a text of Triton states, or its own tile's. None for another text.

    >>> stated_extents("tensor<4x2xf16, #ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0]]}>>")
    [4, 2]
    """
    found = shaped(of_triton(text))
    return None if found is None else found[1]


class _Pointer(NamedTuple):
    """The facts that a pointer's text states.

    bits        of an element; None where the type is not known, and of a tensor of coordinates
    swizzle     of its bytes, if it holds one
    address     in bytes; None where it is not said
    alignment   bytes that the address is a multiple of
    """

    bits: int | None
    swizzle: Swizzle | None
    address: int | None
    alignment: int


# CuTe's names of operations -> the methods of a layout
OPERATIONS = {
    name: name
    for name in (
        *(f"{kind}_divide" for kind in ("logical", "zipped", "tiled", "flat")),
        *(f"{kind}_product" for kind in ("logical", "zipped", "tiled", "flat", "blocked", "raked")),
        *("coalesce", "complement", "right_inverse", "left_inverse", "filter", "flatten", "upcast", "downcast"),
        *("nullspace", "with_shape", "tile_to_shape", "max_common_layout", "select", "group", "compose"),
    )
} | {"composition": "compose"}
_CALLED_OPERATION = regex(
    rf"\s*(?:(?:constexpr\s+)?auto\s+\w+\s*=\s*)?(?:cute(?:::|\.))?({'|'.join(OPERATIONS)})\s*(?:<\s*(\d{{1,9}})\s*>\s*)?\("
)
_SOURCE = regex(r"Layout\s*<|Layout\s*\(|make_|Swizzle<[^>]*>\{\}")  # C++ and the DSL: `spelled` reads them
_SPELLED = regex(r"\s*(?:cute(?:::|\.))?(?:composition|tile_to_shape)\s*\(")  # with such operands: `spelled` reads it
_CALLED = {
    "Layout": (Layout, 1, 2), "Swizzle": (Swizzle, 3, 4), "ComposedLayout": (ComposedLayout, 3, 3),
    "CoordinateTensor": (CoordinateTensor, 2, 2),
}  # fmt: skip


class _LayoutReader(TextReader):
    """Reads layouts, and the words around them."""

    def __init__(self, text: str, symbol: Symbols, at: int = 0, end: int | None = None) -> None:
        super().__init__(text[:end], at)
        self.symbol = symbol

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The match at the position, which moves past it, or None."""
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    # ------------------------------------------------------------------------------------------ layouts

    def all(self) -> Any:
        """The object that the whole text denotes."""
        self.labels()
        memref = self.memref()
        first = self.coordinates()
        wrapped = first is not None
        while any(self.take(pattern) is not None for pattern in _WRAPPERS):
            wrapped = True
        out = self.object_at(memref) if first is None else self.coordinates_from(first, self.at)
        if isinstance(out, Swizzle) and _SECOND.match(self.text, self.at) is not None:
            raise self.fail("' o ' and the layout after the swizzle")
        self.behind(wrapped or memref is not None, out)
        return out

    def object_at(self, memref: _Pointer | None) -> object:
        """The object at the position, inside its wrappers."""
        if memref is not None:
            if _SWIZZLE.match(self.text, self.at) is not None:
                return self.elements(memref, self.composed(0), self.at)
            layout = self.layout()
            return layout if memref.swizzle is None else self.under(memref.swizzle, memref, layout, self.at)
        called = _CALL.match(self.text, self.at) is not None and _CALLED_SWIZZLE.match(self.text, self.at) is None
        return self.call(0) if called else self.composed(0)

    def labels(self) -> None:
        """Move past the text before a layout: a comment's sign, names, words before a pointer."""
        self.take(_COMMENT)
        self.take(_ARROW)
        if self.take(_OPERATION) is not None:
            refuse_other_type(self.text, self.at)
        for _ in range(_LABELS):
            label = _LABEL.match(self.text, self.at)
            if (
                label is None
                or _NO_LABEL.match(label[1]) is not None
                or label[1].count("(") != label[1].count(")")
                or "][" in label[1]
            ):
                break
            self.at = label.end()
        self.take(_WORDS)
        self.take(_WORD)

    def same(self, value: object) -> None:
        """Move past a second layout that the text states as equal to `value`. Refuse one that is another function."""
        found = _SAME.match(self.text, self.at) if isinstance(value, Layout | ComposedLayout) else None
        if found is None:
            return
        self.at = found.end()
        second = self.composed(0)
        try:
            answer = cast("Layout", value).equivalent(second)
            why = "" if answer else str(answer.explain()).removeprefix("not equivalent: ")
        except LayoutError as error:
            why = error.reason
        if why:
            raise ParseError(f"expected the function of {value}, as the text says: {why}", self.text, found.end())

    def behind(self, wrapped: bool, value: object = None) -> None:
        """Refuse a text behind the layout. A remark, closing signs and the same layout again are passed."""
        self.same(value)
        end = self.at
        if wrapped or "=" in self.text[end:]:
            closed = _CLOSED.match(self.text, end)
            end = closed.end() if closed is not None else end
        if _REMARK.match(self.text, end) is None and self.text[end:].strip():
            self.peek()
            raise ParseError("there is more text after the layout: expected its end", self.text, self.at)

    def operation(self, depth: int) -> Any:
        """The result of a call, or one of its arguments. It is a layout, an integer, `_`, or a tuple of these."""
        found = self.take(_CALLED_OPERATION)
        if found is None:
            self.peek()
            source = operand(self.text, self.at)
            if source is not None:
                value, self.at = source
                return value
            swizzled = _SWIZZLE.match(self.text, self.at) is not None
            return self.composed(0) if swizzled else self.value(0)
        if depth >= DEPTH:
            raise ParseError(f"operations nest at most {DEPTH} deep", self.text, found.start(1))
        args = [self.operation(depth + 1)]
        args += [] if found[2] is None else [_int(found[2])]  # upcast<2>(...)
        while self.peek() == ",":
            self.at += 1
            args.append(self.operation(depth + 1))
        if self.peek() != ")":
            raise self.fail("',' or ')'")
        self.at += 1
        if not isinstance(args[0], Layout | ComposedLayout | CoordinateTensor):
            raise ParseError("expected a layout as the first operand, as in (4,8):(8,1)", self.text, found.end())
        try:
            return getattr(args[0], OPERATIONS[found[1]])(*args[1:])
        except TypeError:
            raise ParseError(f"expected other operands of {found[1]}", self.text, found.start(1)) from None

    def field(self) -> Field:
        """The value of a name in a listing. It is a layout, a tuple of values, an integer, or the text of a type."""
        self.peek()
        start, whole = self.at, _WIDTH.match(self.text, self.at)
        if whole is not None and any(map(str.isalpha, whole[0])):
            return whole[0].strip()
        out = self.value(0)
        if _REMARK.match(self.text, self.at) is None:
            self.at = start
            self.labels()
            return self.all_of_line()
        return out

    def all_of_line(self) -> Field:
        """A layout with a pointer or a swizzle before it."""
        out: Field = self.all()
        return out

    def value(self, depth: int) -> Field:
        """A layout, an integer, `_` for None, or a tuple of these."""
        sign = self.peek()
        if self.take(_NOTHING) is not None:
            return None
        opens = sign in ("(", "[", "<")
        if (opens and not self._colon_behind_bracket()) or (not opens and not self._colon_behind_entry()):
            if not opens:
                number = sign in "_?-" or sign.isdigit()
                return cast("Field", self.entries(depth) if number else self.composed(0))
            if depth >= DEPTH:
                raise ParseError(f"tuples nest at most {DEPTH} deep", self.text, self.at)
            self.at += 1
            out: list[Field] = []
            close = {"(": ")", "[": "]", "<": ">"}[sign]
            while self.peek() != close:
                out.append(self.value(depth + 1))
                if self.peek() in (",", ";"):
                    self.at += 1
                elif self.peek() != close:
                    raise self.fail(f"',' or '{close}'")
            self.at += 1
            return tuple(out)
        return self.layout()

    def _colon_behind_bracket(self) -> bool:
        """True if the bracket that opens here is a shape: a colon follows its end."""
        depth = 0
        for i in range(self.at, len(self.text)):
            depth += (self.text[i] in "([") - (self.text[i] in ")]")
            if depth == 0:
                return self.text[i + 1 :].lstrip()[:1] == ":"
        return False

    def _colon_behind_entry(self) -> bool:
        """True if the integer that stands here is a shape."""
        return regex(r"_?\d+\s*:").match(self.text, self.at) is not None

    def memref(self) -> _Pointer | None:
        """The pointer of a memref of the IR, up to its layout; None for none."""
        if self.take(_MEMREF) is None:
            return None
        start, end = self.at, self.text.index('"', self.at)
        pointer = self.typed(self.text[start:end], start)
        self.at = end + 1
        return pointer

    def coordinates(self) -> Any:
        """The first coordinate of the IR's type of coordinates; the position moves to its layout. None for none."""
        if self.take(_COORDINATES) is None:
            return None
        first = self.entries(0)
        if self.take(_SECOND_TEXT) is None:
            raise self.fail("'\"', and the layout in quotation marks")
        return first

    def coordinates_from(self, first: object, start: int) -> AnyLayout | CoordinateTensor:
        """The layout that stands here, whose values are counted from the first one. That one is a coordinate or an
        integer."""
        layout = self.layout()
        try:
            from_first = registries.offset_by if isinstance(first, int) else registries.coordinates_from
            out: AnyLayout | CoordinateTensor = layout if first == 0 else from_first(layout, first)
        except LayoutError as error:
            raise ParseError(error.reason, self.text, start) from None
        return out

    def composed(self, count: int) -> Any:
        """A swizzle and its operands, or a layout, with or without a pointer before it."""
        found = self.take(_SWIZZLE) or self.take(_CALLED_SWIZZLE) or self.take(_PYCUTE_SWIZZLE)
        if found is None:
            start = self.at
            first = self.first()
            if first is not None:
                return self.coordinates_from(first, start)
            pointer = self.pointer()
            if pointer is not None and _SWIZZLE.match(self.text, self.at) is not None:
                return self.elements(pointer, self.composed(count), start)
            bracketed = pointer is None and self._bracketed()
            if bracketed:
                self.peek()
                self.at += 1
            layout = self.layout()
            if bracketed:
                if self.peek() != ")":
                    raise self.fail("')'")
                self.at += 1
            if pointer is None and self.take(_LINK) is not None:
                return self.composition(layout, count, start)
            if pointer is None or pointer.swizzle is None:
                return layout
            return self.under(pointer.swizzle, pointer, layout, start)
        if count >= SWIZZLES:
            raise ParseError(f"more than {SWIZZLES} swizzles, one after another", self.text, found.start())
        numbers, (in_bytes, width) = found.groups()[:3], (*found.groups()[3:], None, None)[:2]
        swizzle = self.made(lambda: _swizzle(numbers, "bytes" if in_bytes else _unit(width)), found)
        start = self.at
        linked = self.take(_LINK) is not None
        pointer = self.pointer()
        if pointer is not None and pointer.bits is not None:
            layout = self.layout()
            if pointer.swizzle is not None:
                raise ParseError("two swizzles of one pointer", self.text, start)
            # CuTe's swizzles of shared memory act on addresses.
            return self.under(self.made(lambda: _swizzle(numbers, "bytes"), found), pointer, layout, found.start())
        if not linked:
            return swizzle
        offset = self.offset()
        follows = self.composed(count + 1)
        if isinstance(follows, Swizzle):
            raise ParseError("a composed layout ends with a layout", self.text, self.at)
        return self.made(lambda: ComposedLayout(swizzle, cast("int", offset), follows), found)  # or symbols

    def offset(self) -> Scalar:
        """The offset that stands here with the `o` after it. It is an integer or symbols; 0 for none."""
        found = self.take(_OFFSET)
        if found is not None:
            digits = found[1] or found[2]
            return cast("int", self.made(lambda: _int(digits), found))
        found = _OFFSET_OF_SYMBOLS.match(self.text, self.at)
        if found is None:
            return 0
        self.at = found.start(1)
        unknown = self.take(_UNKNOWN)
        if unknown is None:
            self.at, words = found.end(), found[1]
            out: Scalar = self.made(lambda: parse_entry(words, self.symbol), found)
        else:
            out = self._fresh(unknown)
        self.take(_LINK)
        return out

    def composition(self, left: Layout, count: int, start: int) -> AnyLayout:
        """left o right, or left o offset o right: composed layouts without a swizzle."""
        if count >= SWIZZLES:
            raise ParseError(f"more than {SWIZZLES} layouts, one after another", self.text, start)
        at = self.at
        first = self.offset()
        if not isinstance(first, int):
            raise ParseError(f"expected an offset in numbers behind {left}, which is no swizzle", self.text, at)
        right = self.composed(count + 1)
        try:
            out: AnyLayout = composed_from(left, first, right) if first else left.compose(right)
            return out
        except LayoutError as error:
            raise ParseError(f"expected two layouts that compose: {error}", self.text, start) from None

    def _bracketed(self) -> bool:
        """True if a layout stands in brackets here, as in ((8, 64) : (64, 1))."""
        if self.peek() != "(":
            return False
        depth = 0
        for i in range(self.at, len(self.text)):
            sign = self.text[i]
            if depth == 1 and sign in ":,":
                return sign == ":"
            depth += (sign == "(") - (sign == ")")
            if (depth == 0 and sign == ")") or depth > DEPTH:
                return False
        return False

    def elements(self, pointer: _Pointer, composed: ComposedLayout | Swizzle, start: int) -> ComposedLayout:
        """A swizzled layout behind a typed pointer: its swizzle counts the pointer's elements."""
        if pointer.swizzle is not None:
            raise ParseError("two swizzles of one pointer", self.text, start)
        if isinstance(composed, Swizzle):
            raise self.fail("' o ' and the layout after the swizzle")
        swizzle = composed.swizzle
        if pointer.bits is None or swizzle.unit is not None or not isinstance(composed.layout, Layout):
            return composed
        by = Swizzle(swizzle.bits, swizzle.base, swizzle.shift, pointer.bits)
        return ComposedLayout(by, composed.offset, composed.layout)

    def under(self, swizzle: Swizzle, pointer: _Pointer, layout: Layout, start: int) -> ComposedLayout:
        """The layout of a pointer's elements under a swizzle of its bytes. It begins where the swizzle's pattern
        does."""
        assert pointer.bits is not None
        if pointer.address is None and pointer.alignment % swizzle.span:
            raise ParseError(
                f"{swizzle} repeats every {swizzle.span} bytes, and the pointer is a multiple of {pointer.alignment}: "
                f"the text does not say where its elements lie",
                self.text,
                start,
            )
        offset, rest = divmod((pointer.address or 0) % swizzle.span * 8, pointer.bits)
        if rest:
            raise ParseError(f"the address is no multiple of an element of {pointer.bits} bits", self.text, start)
        try:
            return ComposedLayout(swizzle.recast(pointer.bits), offset, layout)
        except LayoutError as error:
            raise ParseError(error.reason, self.text, start) from None

    def first(self) -> Any:
        """The coordinate or the count from which a tensor begins, and the `o` after it. None for none."""
        counted = self.take(_COUNTER)
        if counted is not None:
            first: Any = self.made(lambda: _int(counted[1] or counted[2]), counted)
        elif self.take(_COORDINATE) is not None:
            first = self.entries(0)
        else:
            return None
        if self.take(_LINK) is None:
            raise self.fail("' o ' and the layout of coordinates")
        return first

    def pointer(self) -> _Pointer | None:
        """A pointer and the `o` after it; None for none."""
        start = self.at
        found = self.take(_POINTER)
        if found is not None:
            bits: int | None = self.made(lambda: _int(found["bits"]), found)
            shared = _int(found["sparsity"] or "1")
            if not bits or not shared or bits % shared:
                raise ParseError(
                    f"a pointer's elements have at least one bit, not {bits}/{shared}", self.text, found.start("bits")
                )
            bits //= shared
            inner = None
            where = found["address"].strip()
            address: int | None = 0  # "unset" and "nil": what is not there yet can be aligned
            known = _ADDRESS.fullmatch(where)
            if known is not None:
                address = self.made(lambda: _int(known[1], 16), found)
            elif _LEFT_OUT.fullmatch(where) is None:
                address = None
            alignment = 1
        else:
            opening = self.take(_TYPED)
            if opening is None:
                if self.take(_ITERATOR) is None:
                    return None
                self.take(_LINK)
                return _Pointer(None, None, None, 1)
            depth, end = 1, self.at
            while depth and end < len(self.text):
                depth += (self.text[end] in "<(") - (self.text[end] in ">)")
                end += 1
            if depth:
                raise self.fail(f"the end of the pointer, '{'>' if opening[1] == '<' else ')'}'")
            pointer = self.typed(self.text[self.at : end - 1], start)
            bits, inner, address, alignment = pointer
            self.at = end
        if self.take(_LINK) is None:
            raise self.fail("' o ' and the layout after the pointer")
        return _Pointer(bits, inner, address, alignment)

    def typed(self, inside: str, start: int) -> _Pointer:
        """A pointer of the DSL from the text in its brackets. `start` is the place of the pointer."""
        named = _TYPE.match(inside)
        try:
            bits = dtype(named[2]).bits if named is not None else None
        except LayoutError:
            bits = None
        swizzle = _SWIZZLE.search(inside)
        left = inside if swizzle is None else inside[: swizzle.start()] + inside[swizzle.end() :]
        unread = _UNREAD.search(_ALIGNED.sub("", left, count=1))
        if unread is not None:
            raise ParseError(
                f"expected an element type, a memory space, align<16> or S<3,4,3>, not {shown(unread[0])}",
                self.text,
                start,
            )
        given = named[1] if named is not None else None
        aligned = _ALIGNED.search(inside)
        try:
            inner = _swizzle(swizzle.groups()[:3], "bytes") if swizzle is not None else None
            address = _int(given, 16) if given else None
            alignment = max(1, _int(aligned[1]) if aligned else (bits or 8) // 8)
        except LayoutError as error:
            raise ParseError(error.reason, self.text, start) from None
        if inner is not None and bits is None:
            raise ParseError("the pointer has a swizzle, and its element type is not known", self.text, start)
        return _Pointer(bits, inner, address, alignment)

    def call(self, count: int) -> Any:
        """An object as repr() prints it: Layout(shape, stride), Swizzle(3, 4, 3, 'bytes'), ComposedLayout(swizzle, 0,
        layout)."""
        found = self.take(_CALL)
        if found is None:
            raise self.fail("a Layout, a ComposedLayout or a Swizzle")
        parts: list[object] = []
        if found[1] == "Layout":
            self.take(_ARGUMENT)
            parts = [self.entries(0)]
            if self.peek() == ":":  # Layout((4,8):(8,1))
                self.at += 1
                parts.append(self.entries(0))
            while self.comma():
                self.take(_ARGUMENT)
                parts.append(self.entries(0))
        elif found[1] == "CoordinateTensor":
            parts = [self.entries(0)]
            if self.comma():
                parts.append(self.call(count))
        elif found[1] == "Swizzle":
            while len(parts) < 3 and (not parts or self.comma()):
                parts.append(self.entries(0))
            if self.comma():
                unit = self.take(_UNIT)
                if unit is None:
                    raise self.fail("'bytes' or a number of bits")
                parts.append(unit[1] or self.made(lambda: _unit(unit[2]), unit))
        else:
            if count >= SWIZZLES:
                raise ParseError(f"more than {SWIZZLES} swizzles, one after another", self.text, found.start())
            parts.append(self.call(count))
            if self.comma() and _CALL.match(self.text, self.at) is not None:  # as tensor-layouts prints it
                inner = self.call(count + 1)
                named = self.take(_OFFSET_NAMED)
                parts += [0 if named is None else self.made(lambda: _int(named[1]), named), inner]
            elif len(parts) == 1:
                parts.append(self.entries(0))
                if self.comma():
                    parts.append(self.call(count + 1))
        if self.peek() != ")":
            raise self.fail("')'")
        self.at += 1
        kind, least, most = _CALLED[found[1]]
        if not least <= len(parts) <= most:
            raise ParseError(f"a {found[1]} is made of {least} to {most} parts", self.text, found.start())
        return self.made(lambda: kind(*parts), found)

    def comma(self) -> bool:
        """True if a comma and something else stand at the position; moves past the comma."""
        if self.peek() != ",":
            return False
        self.at += 1
        return self.peek() != ")"

    def layout(self) -> Layout:
        """shape:stride."""
        self.peek()
        start = self.at
        shape = self.entries(0)
        if self.peek() != ":":
            raise self.fail("':'")
        self.at += 1
        stride = self.entries(0)
        try:
            return Layout(shape, stride)
        except LayoutError as error:
            raise ParseError(error.reason, self.text, start) from None

    def made(self, make: Callable[[], object], found: re.Match[str]) -> Any:
        """The value, or a ParseError at the match."""
        try:
            return make()
        except ParseError as error:
            raise ParseError(error.reason, self.text, found.start()) from None
        except LayoutError as error:
            raise ParseError(str(error), self.text, found.start()) from None

    # ------------------------------------------------------------------------------------------ entries

    def entries(self, depth: int) -> Any:
        """An entry, or a tuple of them in brackets."""
        if self.peek() != "(" or self._is_expression():
            return self.entry()
        if depth >= DEPTH:
            raise ParseError(f"tuples nest at most {DEPTH} deep", self.text, self.at)
        self.at += 1
        out: list[Scalar] = []
        while self.peek() != ")":
            out.append(self.entries(depth + 1))
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != ")":
                raise self.fail("',' or ')'")
        self.at += 1
        return tuple(out)

    def entry(self) -> StrideEntry:
        """An integer, a coordinate, an unknown, or an expression of symbols."""
        start = self.at
        found = self.take(_BASIS)
        if found is not None:
            factor, inside = found[1] or "1", found[2].split(",")
            return self.made(lambda: _basis(_int(factor), inside), found)
        found = self.take(_FLY_BASIS)
        if found is not None:
            factor, inside = found[1], [found[2]]
            return self.made(lambda: _basis(_int(factor), inside), found)
        found = self.take(_NUMBER)
        if found is not None:
            digits, path = ("-" if "-" in found[1] else "") + found[2], found[3].split("@")[:0:-1]
            value = self.made(lambda: _int(digits), found)
            return self.made(lambda: _basis(value, path), found) if path else value
        found = self.take(_TYPE_OF_INTEGER)
        if found is not None:
            digits = found[1]
            return self.made(lambda: _int(digits), found)
        found = self.take(_UNKNOWN)
        if found is not None:
            along = self.take(_PATH)
            unknown = self._fresh(found)
            return unknown if along is None else unknown * ScaledBasis(1, tuple(map(int, along[0].split("@")[:0:-1])))
        end = self._end_of_entry()
        words = self.text[start:end].strip()
        if _STATIC.match(words) is not None:
            raise self.fail("an integer, as in _8")
        if not any(map(str.isalpha, words)) or words[0] in ")],:":
            raise self.fail("an integer or '('")
        value, *path = words.split("@")
        if not all(part.isdigit() for part in path):
            raise ParseError("a path is integers, as in M@1@0", self.text, start)
        try:
            x = parse_entry(value, self.symbol)
        except LayoutError as error:
            if getattr(error, "needs", ()):  # a fact is missing: the notation is right
                raise ParseError(str(error), self.text, start) from error
            reason = str(getattr(error, "reason", "") or error)
            raise ParseError(f"expected an integer, a symbol or '(': {reason}", self.text, start) from None
        self.at = end
        return x * ScaledBasis(1, tuple([int(p) for p in reversed(path)])) if path else x

    def _fresh(self, found: re.Match[str]) -> Scalar:
        """A symbol that no other text has: unknown, unknown_1, ..."""
        facts = _FACTS.fullmatch(found[1] or "")
        if facts is None:
            raise ParseError("expected ?{i64 div=8}, ?{div=8} or ?{i64}", self.text, found.start(1))
        return self.made(lambda: symbol(fresh_name("unknown"), _int(facts[1] or "1")), found)

    def _end_of_entry(self) -> int:
        """The end of the entry that begins here: at a comma, colon or bracket outside its own brackets."""
        depth = 0
        for i in range(self.at, len(self.text)):
            c = self.text[i]
            if depth == 0 and (c in "),:>\"'`=;]\n" or self.text.startswith(" // ", i)):
                return i
            depth += (c == "(") - (c == ")")
        return len(self.text)

    def _is_expression(self) -> bool:
        """True if the bracket that opens here is part of an expression, as in (M+1)*2: an operator follows its end."""
        depth = 0
        for i in range(self.at, len(self.text)):
            depth += (self.text[i] == "(") - (self.text[i] == ")")
            if depth == 1 and self.text[i] == ",":
                return False
            if depth == 0:
                after = self.text[i + 1 :].lstrip()[:1]
                return bool(after) and after in "+-*/%@"
            if depth > DEPTH:
                return False
        return False


def _int(text: str, base: int = 10) -> int:
    if len(text) > 1000:
        raise ParseError(f"an integer of {len(text)} digits")
    return int(text, base)


def _swizzle(numbers: Sequence[str], unit: int | str | None) -> Swizzle:
    bits, base, shift = map(_int, numbers)
    return Swizzle(bits, base, shift, unit)


def _unit(bits: str | None) -> int | None:
    return None if bits is None else _int(bits)


def _basis(value: int, path: list[str]) -> Stride:
    return ScaledBasis(value, tuple([_int(part.strip()) for part in path])) if value else 0
