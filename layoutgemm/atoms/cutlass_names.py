"""Atoms by the names of their C++ types in CUTLASS.

SM80_16x8x16_F32BF16BF16F32_TN                          mma.sync: shape, types of D, A, B, C, majors
SM90_64x128x16_F32BF16BF16_SS<Major::K, Major::K>       wgmma; SM90::GMMA::MMA_64x128x16_F32BF16BF16_SS is the same
SM100_MMA_F16BF16_SS<half_t, half_t, float, 128, 256, UMMA::Major::K, UMMA::Major::K>      tcgen05.mma
SM120::BLOCKSCALED::SM120_16x8x64_TN_VS<float_e2m1_t, float_e2m1_t, float, float_ue8m0_t, 32>
SM75_U32x4_LDSM_N, SM90_U16x8_STSM_T, SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, UniversalCopy<float>     copies
SM100_TMEM_LOAD_32dp32b32x, SM100_UTCCP_128dp256bit_1cta
MMA_Atom<NAME>, MMA_Traits<NAME>, Copy_Atom<NAME, half_t>
TiledMMA<MMA_Atom<NAME>, Layout<Shape<_2,_2,_1>>, Tile<_32,_32,_16>>       make_tiled_mma(NAME{}, ...) too
TiledCopy<Copy_Atom<NAME, half_t>, Layout<...>, Shape<_128,_8>>     the layout is (thread, value) -> element of the tile
make_tiled_copy(Copy_Atom<NAME, half_t>{}, Layout<Shape<_32,_8>>{}, Layout<Shape<_4,_1>>{})   threads and values
warp-level F16/BF16 MMA Operation and the lines behind it, as the CuTe DSL prints an operation
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ..arguments import DEPTH
from ..dtypes import dtype
from ..errors import LayoutError, ParseError
from ..layouts import Layout, registries
from ..layouts.texts.bases import TextReader
from ..layouts.texts.spelled import spelled
from ..regex import regex
from .copy.base import CopyAtom
from .copy.cp_async import cp_async
from .copy.ldmatrix import ldmatrix, ldmatrix_m16n8, movmatrix, stmatrix
from .copy.tmem import tcgen05_cp, tcgen05_ld, tcgen05_st
from .copy.vector import load_global, store_global, universal_copy
from .mma.base import MmaAtom
from .mma.fma import fma
from .mma.sync import mma_sync
from .mma.tcgen05 import tcgen05_mma
from .mma.wgmma import wgmma
from .tiled.copy import TiledCopy
from .tiled.derived_copies import make_tiled_copy
from .tiled.mma import TiledMma

Named = MmaAtom | CopyAtom | TiledMma | TiledCopy
_T = TypeVar("_T")

_WRAPPERS = ("MMA_Atom", "MMA_Traits", "Copy_Atom", "Copy_Traits")
_TILED = ("TiledMMA", "make_tiled_mma", "TiledCopy", "make_tiled_copy")
_BEFORE = (
    r"\s*(?:(?:using|constexpr|static|const|auto|typename|(?:Tiled(?:MMA|Copy)|(?:MMA|Copy)_Atom)(?=\s+\w+\s*=))\s+)*"
    r"(?:\w+\s*=\s*)?(?:(?:cute|cutlass)::)*"
)
_HEAD = regex(
    rf"{_BEFORE}(?=(?:{'|'.join([*_WRAPPERS, *_TILED])})\s*[<(]|(?:SM\d+::)?(?:GMMA::|BLOCKSCALED::|SPARSE::)*"
    r"(?:SM\d+_[A-Z0-9]\w*|G?MMA_64x\w+)|Universal(?:FMA|Copy)\b|DefaultCopy\b|AutoVectorizingCopy)"
)
_NAME = regex(r"(?:[A-Za-z_]\w*(?:::|\.))*([A-Za-z_]\w*)")
_END = regex(r"(?:[\s;]|\{\}|\(\))*(?:(?://|#)[^\n]*)?\Z")
_INTEGER = regex(r"_?(\d+)(?:[uU]?[lL]{0,2})(?![\w.])")
_CAST = regex(r"\(\s*[A-Za-z_][\w:]*\s*\)\s*\d+")  # of an enumerator, as compilers print it
_KEPT = regex(r"(?:Layout|Tile|Shape|Stride|tuple)\b")  # what has a layout inside
_TYPES = regex(r"TF32|BF16|F64|F32|F16|E4M3|E5M2|S32|S8|U8|S4|U4|U1")
_VECTOR = regex(r"(u?int|float|half|double|short|char)([248])")  # CUDA's
_BITS = {"int": 32, "uint": 32, "float": 32, "half": 16, "double": 64, "short": 16, "char": 8}
_EXAMPLE = "SM100_MMA_F16BF16_SS<half_t, half_t, float, 128, 256, UMMA::Major::K, UMMA::Major::K>"


class _Type(NamedTuple):
    """A C++ type: its name without namespaces, its arguments, and where both begin.

    args  types, integers, and the texts of layouts
    """

    name: str
    args: tuple[_Type | int | str, ...]
    at: int


# The DSL's operations: a title, then "  name = value" in lines
_OPERATION = regex(r"(?:\s|[#>/]|\w+\s*[=:]\s)*((?:warp-level|warpgroup|tcgen05) [^\n]*MMA Operation[^\n]*)\n")
_FIELD = regex(r"(?m)^[\s#/]*([A-Z][A-Za-z/ ]*?)\s*= ([^\n]+?)\s*$")


def _printed(text: str) -> MmaAtom | None:
    """The atom of an operation of the DSL as print() shows it; None for another text."""
    title = _OPERATION.match(text)
    if title is None:
        return None
    fields = {name.replace("Accumulator", "C"): value for name, value in _FIELD.findall(text[title.end() :])}
    atoms, at = _Atoms(text), title.start(1)
    both = fields.get("A/B data type")
    a, b, c = (fields.get(f"{x} data type", both) for x in "ABC")
    size = re.fullmatch(r"\((\d{1,4}), (\d{1,4}), (\d{1,4})\)", fields.get("Instruction shape MNK", ""))
    if a is None or b is None or c is None or size is None:
        raise atoms.fail("its data types and its Instruction shape MNK = (16, 8, 16)", at)
    if re.search(r"Sparse|MX", title[1]) is not None:
        raise atoms.fail("a dense product without scale factors", at)
    m, n, k = map(int, size.groups())
    source = "rmem" if fields.get("A source location", "").endswith("RMEM") else "smem"

    def make() -> MmaAtom:
        if title[1].startswith("warp-level"):
            return mma_sync((m, n, k), a, b, c)
        if title[1].startswith("warpgroup"):
            return wgmma(n, a, b, c, source)
        tmem = "tmem" if fields.get("A source location", "").endswith("TMEM") else "smem"
        kind = {"tf32": "tf32", "f16": "f16", "bf16": "f16", "i8": "i8", "u8": "i8"}.get(dtype(a).name, "f8f6f4")
        return tcgen05_mma(kind, m, n, a, b, c, 2 if fields.get("CTA group", "").endswith("TWO") else 1, tmem, k=k)

    return atoms.made(make, at)


@registries.atom_named.register(str)
def named(text: str) -> Named | None:
    """The atom that the name of a C++ type denotes. None for a text that is no such name.

    Raises ParseError with the character and what was expected, AtomError for what no instruction is.

    >>> print(named("SM80_16x8x16_F32BF16BF16F32_TN"))
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    >>> print(named("Copy_Atom<SM75_U32x4_LDSM_N, half_t>"))
    ldmatrix.sync.aligned.m8n8.x4.shared.b16
    """
    head = _HEAD.match(text)
    if head is None:
        return _printed(text)
    reader = _TypeReader(text, head.end())
    found = reader.type(0)
    if _END.match(text, reader.at) is None:
        raise reader.fail("the end of the name")
    return _Atoms(text).tiled(found) if found.name in _TILED else _Atoms(text).atom(found, ())


class _TypeReader(TextReader):
    """Reads a type with its arguments."""

    def type(self, depth: int) -> _Type:
        self.peek()
        at, found = self.at, _NAME.match(self.text, self.at)
        if found is None:
            raise self.fail("a name, as in SM80_16x8x16_F32BF16BF16F32_TN")
        if depth > DEPTH:
            raise ParseError(f"types nest at most {DEPTH} deep", self.text, at)
        self.at = found.end()
        args: list[_Type | int | str] = []
        opening = self.peek()
        called = opening == "(" and found[1] in ("make_tiled_mma", "make_tiled_copy")
        if opening == "<" or called:
            closing = ">" if opening == "<" else ")"
            self.at += 1
            while self.peek() != closing:
                args.append(self.argument(depth + 1))
                if self.peek() == ",":
                    self.at += 1
                elif self.peek() != closing:
                    raise self.fail(f"',' or '{closing}'")
            self.at += 1
        if self.text[self.at : self.at + 2] in ("{}", "()"):
            self.at += 2
        return _Type(found[1], tuple(args), at)

    def argument(self, depth: int) -> _Type | int | str:
        self.peek()
        cast, number = _CAST.match(self.text, self.at), _INTEGER.match(self.text, self.at)
        if cast is not None:
            self.at = cast.end()
            return cast[0]
        if number is not None:
            self.at = number.end()
            self.at += 2 if self.text[self.at : self.at + 2] == "{}" else 0
            return int(number[1][:9])
        start = self.at
        found = self.type(depth)
        if found.name in ("C", "Int", "constant", "integral_constant") and isinstance(found.args[-1:], tuple):
            return next((x for x in reversed(found.args) if isinstance(x, int)), found)
        return self.text[start : self.at] if _KEPT.match(found.name) is not None else found


class _Atoms:
    """Makes atoms of types."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fail(self, expected: str, at: int) -> ParseError:
        return ParseError(f"expected {expected}", self.text, at)

    def tiled(self, found: _Type) -> TiledMma | TiledCopy:
        """TiledMMA<atom, layout of atoms, tile>, or a tiled copy."""
        if found.name.endswith(("Copy", "copy")):
            return self.tiled_copy(found)
        if not found.args or not isinstance(found.args[0], _Type):
            raise self.fail("an atom, as in TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>>", found.at)
        atom = self.atom(found.args[0], ())
        if not isinstance(atom, MmaAtom):
            raise self.fail("the atom of a matrix product", found.args[0].at)
        layout, tile = (*found.args[1:3], None, None)[:2]
        each = Layout((1, 1, 1)) if layout is None else self.made(lambda: spelled(str(layout)), found.at)
        if not isinstance(each, Layout):
            raise self.fail("the layout of atoms, as in Layout<Shape<_2,_2,_1>>", found.at)
        sides = _sides(str(tile)) if tile is not None else []
        if sides is None:
            raise self.fail("a tile of integers, as in Tile<_32,_32,_16>", found.at)
        return self.made(lambda: TiledMma(atom, each, tuple(sides)), found.at)

    def tiled_copy(self, found: _Type) -> TiledCopy:
        """TiledCopy<atom, (thread, value) -> element, tile>, or make_tiled_copy(atom, threads, values)."""
        example = "TiledCopy<Copy_Atom<UniversalCopy<uint128_t>, half_t>, Layout<...>, Shape<_16,_64>>"
        called = found.name == "make_tiled_copy"
        if (
            not found.args
            or not isinstance(found.args[0], _Type)
            or len(found.args) != 3 - (called and len(found.args) == 2)
        ):
            raise self.fail(
                f"an atom and two layouts, as in {'make_tiled_copy(atom, threads, values)' if called else example}",
                found.at,
            )
        atom = self.atom(found.args[0], ())
        if not isinstance(atom, CopyAtom):
            raise self.fail("the atom of a copy", found.args[0].at)
        first = self.made(lambda: spelled(str(found.args[1])), found.at)
        second = spelled(str(found.args[2])) if called and len(found.args) == 3 else None
        tile = None if called else _sides(str(found.args[2]))
        if not isinstance(first, Layout) or not isinstance(second, Layout | None) or (tile is None and not called):
            raise self.fail(f"layouts, as in {example}", found.at)
        if called:
            return self.made(lambda: make_tiled_copy(atom, first, second), found.at)
        return self.made(lambda: TiledCopy(atom, first, tuple(tile or ())), found.at)

    def atom(self, found: _Type, given: Sequence[_Type | int | str]) -> MmaAtom | CopyAtom:
        """The atom of a type; `given` are the arguments of a wrapper around it."""
        if found.name in _WRAPPERS:
            if not found.args or not isinstance(found.args[0], _Type):
                raise self.fail(f"the name of an operation, as in {found.name}<SM75_U32x4_LDSM_N, half_t>", found.at)
            return self.atom(found.args[0], (*found.args[1:], *given))
        for pattern, make in _FORMS:
            match = pattern.fullmatch(found.name)
            if match is not None:
                self.no_others(make, found, given)
                return self.made(lambda: make(self, match, found, (*found.args, *given)), found.at)  # noqa: B023
        raise self.fail(
            "the name of an atom, as in SM80_16x8x16_F32BF16BF16F32_TN, SM90_64x128x16_F32BF16BF16_SS, "
            "SM75_U32x4_LDSM_N",
            found.at,
        )

    def no_others(self, make: object, found: _Type, given: Sequence[_Type | int | str]) -> None:
        """Refuse arguments that would be passed over."""
        if make in _BARE and found.args:
            raise self.fail(f"{found.name} without arguments", found.at)
        if make is _sync and given:
            raise self.fail(f"MMA_Atom<{found.name}> without further arguments", found.at)
        if make in _BARE and (len(given) > 1 or any(not isinstance(x, _Type) for x in given)):
            raise self.fail(f"one type of elements, as in Copy_Atom<{found.name}, half_t>", found.at)

    def made(self, make: Callable[[], _T], at: int) -> _T:
        try:
            return make()
        except ParseError:
            raise
        except LayoutError as error:
            raise ParseError(error.reason, self.text, at) from None

    def types(self, args: Sequence[_Type | int | str], count: int, found: _Type, example: str) -> list[str]:
        """The first `count` types among the arguments."""
        out = [x.name for x in args if isinstance(x, _Type) and x.name not in _ENUMERATORS]
        if len(out) < count:
            raise self.fail(f"its types{'' if '<' not in example else f', as in {example}'}", found.at)
        return out[:count]

    def width(self, args: Sequence[_Type | int | str], found: _Type) -> int:
        """The bits of the first type."""
        (name,) = self.types(args, 1, found, f"{found.name}<uint128_t>")
        vector = _VECTOR.fullmatch(name)
        if vector is not None:
            return _BITS[vector[1]] * int(vector[2])
        return 128 if name == "uint128_t" else 256 if name == "uint256_t" else dtype(name).bits


_ENUMERATORS = ("K", "MN", "One", "Neg", "True", "False", "integral_constant")
Maker = Callable[["_Atoms", "re.Match[str]", _Type, "Sequence[_Type | int | str]"], "MmaAtom | CopyAtom"]


def _sides(tile: str) -> list[object] | None:
    """The extents or layouts of a Tile<...>; None where it has others."""
    inside = tile[tile.index("<") + 1 : tile.rindex(">")] if "<" in tile else ""
    parts, depth = [""], 0
    for sign in inside:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    out: list[object] = []
    for part in map(str.strip, parts):
        number = re.fullmatch(r"(?:(?:cute::)?(?:C|Int)<\s*(\d+)\s*>|_(\d+))(?:\{\})?", part)
        found = None if number is not None or part in ("_", "Underscore", "cute::Underscore") else spelled(part)
        if number is None and found is None and part not in ("_", "Underscore", "cute::Underscore"):
            return None
        out.append(int(number[1] or number[2]) if number is not None else found)
    return out


def _parts(atoms: _Atoms, found: _Type, word: str, count: int) -> list[str]:
    """The types that a word is made of."""
    parts = _TYPES.findall(word)
    if "".join(parts) != word or len(parts) != count:
        at = found.at + atoms.text[found.at :].index(word)
        raise atoms.fail(f"{count} types, as in {'F32BF16BF16F32' if count == 4 else 'F32BF16BF16'}", at)
    return ["b1" if part == "U1" else part.lower() for part in parts]


def _size(text: str) -> tuple[int, int, int]:
    m, n, k = [int(n[:6]) for n in text.split("x")]
    return m, n, k


def _sync(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> MmaAtom:
    d, a, b, c = _parts(atoms, found, match["types"], 4)
    if match["size"].startswith("64x"):  # the names of wgmma in CUTLASS' own page on atoms
        raise atoms.fail("three types and where A is, as in SM90_64x128x16_F16F16F16_SS or _RS, for wgmma", found.at)
    majors = ("row" if match["majors"][0] == "T" else "col", "col" if match["majors"][1] == "N" else "row")
    bit_op = "and" if match["bit"] == "AND" else "xor"
    return mma_sync(
        _size(match["size"]), a, b, c, d, layouts=majors, saturate=bool(match["clamp"]), bit_op=bit_op
    )  # fmt: skip


def _sparse(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> MmaAtom:
    raise atoms.fail("a dense product: sparse wgmma and mma.sync have no atom here", found.at)


def _wgmma(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> MmaAtom:
    if match["sparse"]:
        return _sparse(atoms, match, found, args)
    c, a, b = _parts(atoms, found, match["types"], 3)
    _, n, k = _size(match["size"])
    source = "rmem" if match["source"] == "RS" else "smem"
    out = wgmma(n, a, b, c, source, saturate=bool(match["clamp"]))
    if out.shape_mnk[2] != k:
        raise atoms.fail(f"K = {out.shape_mnk[2]}, 32 bytes of {a}, not {k}", found.at)
    return out


_KINDS = {"TF32": "tf32", "F16BF16": "f16", "S8": "i8", "F8F6F4": "f8f6f4", "MXF8F6F4": "mxf8f6f4", "MXF4": "mxf4",
          "MXF4NVF4": "mxf4nvf4"}  # fmt: skip


def _tcgen05(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> MmaAtom:
    kind, scaled = _KINDS[match["kind"]], match["kind"].startswith("MX")
    a, b, c, *scale = atoms.types(args, 4 if scaled else 3, found, _EXAMPLE)
    sizes = [x for x in args if isinstance(x, int)]
    if len(sizes) < 2:
        raise atoms.fail(f"M and N behind its types, as in {_EXAMPLE}", found.at)
    vector = sizes[2] if kind.startswith("mxf4") and len(sizes) > 2 else None
    kind = "mxf4nvf4" if vector == 16 else kind
    factors = dtype(scale[0]).name if scale else None
    factors = "ue4m3" if factors == "e4m3" else factors  # factors have no sign
    m, n, group, source = *sizes[:2], 2 if match["pair"] else 1, "tmem" if match["source"] == "TS" else "smem"
    k = 96 if "ULTRA" in found.name else None
    return tcgen05_mma(kind, m, n, a, b, c, group, source, factors, vector, k, sparse=bool(match["sparse"]))


def _sync_120(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> MmaAtom:
    if match["scaled"] is None:
        a, b, c = atoms.types(args, 3, found, f"{found.name}<float_e4m3_t, float_e4m3_t, float>")
        return mma_sync(_size(match["size"]), a, b, c, kind="f8f6f4")
    example = f"{found.name}<float_e2m1_t, float_e2m1_t, float, float_ue8m0_t, 32>"
    a, b, c, scale = atoms.types(args, 4, found, example)
    vectors = [x for x in args if isinstance(x, int)]
    if not vectors:
        raise atoms.fail(f"the elements that share a factor, as in {example}", found.at)
    size = _size(match["size"])
    kind = "mxf8f6f4" if size[2] == 32 else "mxf4" if vectors[0] == 32 else "mxf4nvf4"
    return mma_sync(size, a, b, c, kind=kind, scale=dtype(scale).name, vector=vectors[0])


def _element(args: Sequence[_Type | int | str], skip: int = 0) -> str | None:
    """The element type of a Copy_Atom, which stands behind the operation's own arguments."""
    types = [x.name for x in args if isinstance(x, _Type)]
    return types[skip] if len(types) > skip else None


def _matrices(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    """ldmatrix and stmatrix of 8x8 matrices: counted in 32-bit words, or transposed in 16-bit elements."""
    plain = match["unit"] == "U32"
    if plain != (match["majors"] == "N"):
        raise atoms.fail("U32 with _N, or U16 with _T", found.at)
    count = int(match["count"]) if plain else int(match["count"]) // 2
    make = ldmatrix if match["way"] == "LD" else stmatrix
    return make(count, transpose=not plain, element=_element(args))


def _bytes_of_matrices(
    atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]
) -> CopyAtom:  # fmt: skip
    count = int(match["count"]) // 4
    if match["way"] == "LD":
        return ldmatrix_m16n8(count, element=_element(args))
    return stmatrix(count, "m16n8.b8", transpose=True, element=_element(args))


def _padded(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    form = {"4": "m8n16.b8x16.b4x16_p64", "6": "m8n16.b8x16.b6x16_p32"}[match["bits"]]
    return ldmatrix(int(match["count"]), form, element=_element(args))


_BARE = (_sync, _matrices, _bytes_of_matrices, _padded)  # of names that have no arguments of their own


def _async(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    cache = "ca" if match["cache"] == "ALWAYS" else "cg"
    filled = "register" if match["zeros"] else None
    return cp_async(atoms.width(args, found) // 8, cache, _element(args, len(found.args)) or "u8", filled)


def _universal(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    bits = atoms.width(args, found)
    return universal_copy(bits, _element(args, len(found.args)) or "u8")


def _tmem(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    shape = "16x32bx2" if match["lanes"] == "16dp32b" else match["lanes"].replace("dp", "x")
    make = tcgen05_ld if match["way"] == "LOAD" else tcgen05_st
    element = _element(args)
    packed = match["packed"] is not None
    return make(shape, int(match["count"]), packed, element=element or ("u16" if packed else "f32"))


_ROWS = {
    "128dp256bit": ("128x256b", ""), "128dp128bit": ("128x128b", ""), "4dp256bit": ("4x256b", ""),
    "4x32dp128bit": ("32x128b", "warpx4"), "2x64dp128bitlw0213": ("64x128b", "warpx2::02_13"),
    "2x64dp128bitlw0123": ("64x128b", "warpx2::01_23"),
}  # fmt: skip


def _to_tmem(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    shape, multicast = _ROWS[match["rows"]]
    return tcgen05_cp(shape, multicast, int(match["ctas"]), element=_element(args) or "u8")


def _wide(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    make = load_global if match["way"] == "LOAD" else store_global
    return make(256, _element(args) or "u8", evict="no_allocate")


def _without_map(atoms: _Atoms, match: re.Match[str], found: _Type, args: Sequence[_Type | int | str]) -> CopyAtom:
    calls = {"STORE": "tma_store", "REDUCE": "tma_reduce"}
    if "TMA" not in found.name:
        raise atoms.fail(f"a copy of one width, as in UniversalCopy<uint128_t>: {found.name} has none", found.at)
    call = next((call for word, call in calls.items() if word in found.name), "tma_load")
    call = "tma_im2col" if "IM2COL" in found.name else call
    raise atoms.fail(f"a copy with a map: {found.name} has none before its tensor and tile, see {call}()", found.at)


_FORMS: tuple[tuple[re.Pattern[str], Maker], ...] = (
    (regex(r"(?:SM90_|(?P<sparse>G)?MMA_)(?P<size>64x\d+x\d+)_(?P<types>[A-Z0-9]+)_(?P<source>SS|RS)(?:_TN)?"
                r"(?P<clamp>_SATURATE)?"), _wgmma),
    (regex(r"SM\d+_(?P<size>\d+x\d+x\d+)_(?P<types>[A-Z0-9]+)_(?P<majors>[TN][TN])(?P<clamp>_SATURATE)?"
                r"(?:_(?P<bit>XOR|AND)POPC)?"), _sync),
    (regex(r"SM100_MMA_(?P<kind>TF32|F16BF16|S8|F8F6F4|MXF8F6F4|MXF4NVF4|MXF4)(?P<pair>_2x1SM)?_(?P<source>SS|TS)"
                r"(?:_SCALED)?(?P<sparse>_SPARSE)?"), _tcgen05),
    (regex(r"SM103_(?P<kind>MXF4)_ULTRA(?P<pair>_2x1SM)?_(?P<source>SS)_VS(?P<sparse>_SPARSE)?"), _tcgen05),
    (regex(r"SM120_(?P<size>16x8x\d+)_TN(?P<scaled>_VS)?"), _sync_120),
    (regex(r"SM120_SPARSE_\w+"), _sparse),
    (regex(r"SM(?:75|90)_(?P<unit>U32|U16)x(?P<count>\d)_(?P<way>LD|ST)SM_(?P<majors>[TN])"), _matrices),
    (regex(r"SM100_U8x(?P<count>4|8|16)_(?P<way>LD|ST)SM_T"), _bytes_of_matrices),
    (regex(r"SM100_SU(?P<bits>[46])_DU8x16_x(?P<count>\d)_LDSM_N"), _padded),
    (regex(r"SM75_U32x1_MOVM_T"), lambda atoms, match, found, args: movmatrix(_element(args))),
    (regex(r"SM80_CP_ASYNC_CACHE(?P<cache>ALWAYS|GLOBAL)(?P<zeros>_ZFILL)?"), _async),
    (regex(r"SM100_TMEM_(?P<way>LOAD|STORE)_(?P<lanes>\d+dp\d+b)(?P<count>\d+)x(?P<packed>_16b)?"), _tmem),
    (regex(rf"SM100_UTCCP_(?P<rows>{'|'.join(_ROWS)})_(?P<ctas>[12])cta"), _to_tmem),
    (regex(r"SM100_(?P<way>LOAD|STORE)_256bit_CACHE_NOALLOCATION"), _wide),
    (regex(r"UniversalCopy"), _universal),
    (regex(r"UniversalFMA"), lambda atoms, match, found, args: fma(
        atoms.types(args, 1, found, "UniversalFMA<float>")[0])),
    (regex(r"SM\d+_(?:TMA|BULK_COPY)_\w+|DefaultCopy|AutoVectorizingCopy\w*"), _without_map),
)  # fmt: skip
