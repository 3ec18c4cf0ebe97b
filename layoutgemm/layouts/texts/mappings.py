"""Thread maps from text of Tilus, Hidet, Composable Kernel and TileLang.

RegisterLayout(shape=[16, 8], mode_shape=[2, 8, 4, 2], spatial_modes=[1, 2], local_modes=[0, 3])      Tilus
spatial(4, 8).local(2, 1)                      repeat(2, 4).spatial(8, 4)                             Tilus, Hidet
tile_distribution_encoding<sequence<>, tuple<sequence<...>, ...>, ...>                                Composable Kernel
Fragment([16, 64] -> [8], replicate: 1, thread: 128, forward_thread: ..., forward_index: [...])       TileLang
Layout([64, 64] -> [4096], transform: [_i, _j] -> [_i * 64 + _j])                                     TileLang's memory

Each is (thread, value) -> flat index of the tile, whose first dimension runs fastest, as an atom's. TileLang's layout
of a buffer is coordinates -> element.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ...errors import LayoutError, ParseError
from ...regex import regex
from .. import registries
from ..layout import Layout
from ..swizzle import ComposedLayout
from .bases import TextReader, ValueReader, integers_of

_HEAD = r"\s*(?:\w+\s*[:=]\s*)?(?:\w+(?:\.|::))*"
_TILUS = regex(_HEAD + r"(?P<name>RegisterLayout|register_layout)\(")
_TILUS_FIELDS = ("shape", "mode_shape", "spatial_modes", "local_modes")
_DRAWN = regex(r"\s*(?:[┌├│└].*)?\Z", re.DOTALL)  # the grid that visualize_layout prints below
_FACTOR = regex(r"\s*(?:\.|\*)?\s*(column_)?(spatial|local|repeat)\(\s*(\d[\d,\s]*)\)")
_FACTORS = regex(_HEAD + r"(?=(?:column_)?(?:spatial|local|repeat)\(\s*\d)")
_CK = regex(_HEAD + r"(?P<name>tile_distribution_encoding)\s*<")
_CK_LIST = regex(r"\s*(?:\w+::)*(sequence|tuple)\s*<")
_CK_NUMBER = regex(r"\s*(\d{1,9})(?:[uU]?[lL]{0,2})\b")
_CK_REST = regex(r"\s*(?:\{\s*\})?\s*[;,]?\s*\Z")
_TILELANG = regex(
    r"\s*(?:[\w ]+(?=\s(?:Fragment|Layout)))?\s*(?P<name>Fragment|Layout)\(\s*\[(?P<shape>[\d,\s]*)\]\s*->\s*"
    r"\[(?P<out>[\d,\s]*)\]\s*,\s*"
)
_TRANSFORM = regex(r"transform:\s*\[(?P<names>[\w,\s]*)\]\s*->\s*\[(?P<index>.*)\]\s*\)\s*\Z", re.DOTALL)
_FRAGMENT = regex(
    r"replicate:\s*(?P<copies>\d{1,9})\s*,\s*thread:\s*(?P<threads>\d{1,9})\s*,\s*forward_thread:\s*(?P<thread>.*?)\s*,"
    r"\s*forward_index:\s*\[(?P<index>[^\[\]]*)\]\s*(?:,\s*thread_range:\s*(?:\w+\.)?Range\((?P<range>[\d,\s]*)\)\s*)?\)\s*\Z",
    re.DOTALL,
)
_CALLS: dict[str, type[ast.operator]] = {  # TVM's functions as operators
    "bitwise_xor": ast.BitXor, "bitwise_and": ast.BitAnd, "bitwise_or": ast.BitOr, "shift_left": ast.LShift,
    "shift_right": ast.RShift, "floordiv": ast.FloorDiv, "floormod": ast.Mod,
}  # fmt: skip


class _Digit(NamedTuple):
    """A part of a dimension that threads or values run along. It has the dimension, its extent, its step; -1 for
    copies."""

    dim: int
    extent: int
    step: int


def mapped(text: str) -> Layout | ComposedLayout | None:
    """The layout of a text that maps threads onto a tile, None for another.

    Raises ParseError with the character and what was expected. Sources: the guides of Tilus and Hidet, Composable
    Kernel's tile_distribution_encoding, TileLang's Fragment.

    >>> print(mapped("spatial(4, 8).local(2, 1)"))
    ((8,4),2):((8,2),1)
    >>> print(mapped("RegisterLayout(shape=[4], mode_shape=[4], spatial_modes=[-3, 0], local_modes=[])"))
    ((4,3),1):((1,0),0)
    """
    for pattern, reader in ((_TILUS, _tilus), (_FACTORS, _factors), (_CK, _composable), (_TILELANG, _tilelang)):
        found = pattern.match(text)
        if found is not None:
            return reader(text, found)
    return None


def _layout(shape: Sequence[int], threads: Sequence[_Digit], values: Sequence[_Digit]) -> Layout:
    """The layout of digits, the fastest of each side first."""
    first = [prod(shape[:dim]) for dim in range(len(shape))]
    modes = []
    for digits in (threads, values):
        extents = tuple([digit.extent for digit in digits]) or (1,)
        strides = tuple([0 if digit.dim < 0 else digit.step * first[digit.dim] for digit in digits]) or (0,)
        mode = Layout(extents, strides).coalesce()
        modes.append(mode)
    return Layout(tuple([mode.shape for mode in modes]), tuple([mode.stride for mode in modes]))


# ------------------------------------------------------------------------------------------ Tilus, Hidet


def _tilus(text: str, found: re.Match[str]) -> Layout:
    """Modes split the dimensions in order; spatial modes count threads and local modes values, the last the fastest."""
    reader, at = ValueReader(text, found.end()), found.start("name")
    given = reader.arguments(_TILUS_FIELDS, {name: name for name in _TILUS_FIELDS})
    if _DRAWN.match(text, reader.at) is None:
        raise reader.fail("the end of the text")
    if set(given) != set(_TILUS_FIELDS):
        wrong = next(iter(set(given) - set(_TILUS_FIELDS)), "")
        raise ParseError(f"expected {', '.join(_TILUS_FIELDS)}" + (f", not {wrong}" if wrong else ""), text, at)
    shape, modes = (integers_of(text, given[name], at) for name in _TILUS_FIELDS[:2])
    digits = _split(text, at, shape, modes)
    sides: list[list[_Digit]] = []
    used: list[int] = []
    for name in _TILUS_FIELDS[2:]:
        listed = getattr(given[name], "items", None)
        numbers = [] if listed == () else integers_of(text, given[name], at)
        if any(n >= len(digits) or (n < 0 and name == "local_modes") for n in numbers):
            raise ParseError(f"expected {name} = numbers of {len(digits)} modes, not {numbers}", text, at)
        used += [n for n in numbers if n >= 0]
        sides.append([digits[n] if n >= 0 else _Digit(-1, -n, 0) for n in reversed(numbers)])
    if sorted(used) != list(range(len(digits))):
        raise ParseError(f"expected each of {len(digits)} modes once, not {used}", text, at)
    return _layout(shape, sides[0], sides[1])


def _split(text: str, at: int, shape: Sequence[int], modes: Sequence[int]) -> list[_Digit]:
    """The digits of modes that split the dimensions in order."""
    digits: list[_Digit] = []
    left = list(shape)
    dim = 0
    for n in modes:
        while dim < len(shape) - 1 and left[dim] == 1 and n > 1:
            dim += 1
        if n < 1 or left[dim] % n:
            raise ParseError(f"expected modes that split {list(shape)} in order, not {list(modes)}", text, at)
        left[dim] //= n
        digits.append(_Digit(dim, n, left[dim]))
    if set(left) != {1}:
        raise ParseError(f"expected modes with the product of {list(shape)}, not {list(modes)}", text, at)
    return digits


def _factors(text: str, found: re.Match[str]) -> Layout:
    """Factors, the last one the finest: each is a grid of threads, or of values, its last dimension the fastest."""
    factors: list[tuple[bool, str, list[int], int]] = []
    at = found.end()
    while (factor := _FACTOR.match(text, at)) is not None:
        if factors and not re.match(r"\s*[.*]", factor[0]):
            break
        extents = [int(x) for x in re.findall(r"\d{1,9}", factor[3])]
        factors.append((factor[1] is not None, factor[2], extents, factor.start(2)))
        at = factor.end()
    if _DRAWN.match(text, at) is None:
        raise TextReader(text, at).fail("'.spatial(...)', '.local(...)' or the end of the text")
    rank = len(factors[0][2])
    steps = [1] * rank
    sides: dict[bool, list[_Digit]] = {True: [], False: []}
    for column, name, extents, place in reversed(factors):
        if len(extents) != rank or not all(extents):
            raise ParseError(f"expected {rank} extents from 1, not {extents}", text, place)
        for dim in range(rank) if column else reversed(range(rank)):
            sides[name == "spatial"].append(_Digit(dim, extents[dim], steps[dim]))
        steps = [step * extent for step, extent in zip(steps, extents)]
    return _layout(steps, sides[True], sides[False])


# ------------------------------------------------------------------------------------------ Composable Kernel


def _composable(text: str, found: re.Match[str]) -> Layout:
    """P0 counts the warps and P1 the lanes, Ys the registers. Each names digits of the Rs (0) and the Hs (1, ...)."""
    at = found.start("name")
    lists, end = _ck_lists(text, found.end(), 0)
    if len(lists) != 6:
        raise ParseError("expected Rs, Hs, Ps to RHs, major and minor, Ys to RHs, major and minor", text, at)
    if _CK_REST.match(text, end) is None:
        raise TextReader(text, end).fail("the end of the text")
    copies, splits, *rest = lists
    hs = [_integers(text, at, each) for each in _nested(text, at, splits)]
    majors, minors = (_nested(text, at, rest[i]) for i in (0, 1))
    pairs = [*zip(majors, minors), (rest[2], rest[3])]
    digits = [[_Digit(-1, n, 0) for n in _integers(text, at, copies)]]
    digits += [[_Digit(dim, n, prod(h[i + 1 :])) for i, n in enumerate(h)] for dim, h in enumerate(hs)]
    taken: list[tuple[int, int]] = []
    sides: list[list[_Digit]] = []
    if len(majors) != len(minors) or len(majors) not in (1, 2):
        raise ParseError("expected one or two Ps: (warp, lane), major and minor", text, at)
    for major, minor in pairs:
        of_major, of_minor = _integers(text, at, major), _integers(text, at, minor)
        places = list(zip(of_major, of_minor))
        if len(of_major) != len(of_minor) or any(a >= len(digits) or b >= len(digits[a]) for a, b in places):
            raise ParseError(f"expected places of {len(hs)} Hs and the Rs, not {places}", text, at)
        taken += places
        sides.append([digits[a][b] for a, b in reversed(places)])
    unnamed = {(a, b) for a, of_a in enumerate(digits) for b, digit in enumerate(of_a) if digit.extent > 1} - set(taken)
    if len(set(taken)) != len(taken) or unnamed:
        raise ParseError("expected each length of the Rs and Hs once among Ps and Ys", text, at)
    threads = [digit for side in reversed(sides[:-1]) for digit in side]  # the lanes run fastest
    return _layout([prod(h) for h in hs], threads, sides[-1])


def _ck_lists(text: str, at: int, depth: int) -> tuple[list[object], int]:
    """The arguments up to '>': integers, and lists of them."""
    out: list[object] = []
    while True:
        listed, number = _CK_LIST.match(text, at), _CK_NUMBER.match(text, at)
        if listed is not None and depth < 3:
            inside, at = _ck_lists(text, listed.end(), depth + 1)
            out.append(inside)
        elif number is not None:
            out.append(int(number[1]))
            at = number.end()
        reader = TextReader(text, at)
        sign = reader.peek()
        at = reader.at + 1
        if sign == ">":
            return out, at
        if sign != ",":
            raise reader.fail("sequence<...>, tuple<...>, ',' or '>'")


def _nested(text: str, at: int, value: object) -> list[list[object]]:
    found = [each for each in value if isinstance(each, list)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(found) != len(value):
        raise ParseError("expected tuple<sequence<...>, ...>", text, at)
    return found


def _integers(text: str, at: int, value: object) -> list[int]:
    found = [each for each in value if isinstance(each, int)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(found) != len(value):
        raise ParseError("expected sequence<...> of integers", text, at)
    return found


# ------------------------------------------------------------------------------------------ TileLang


def _tilelang(text: str, found: re.Match[str]) -> Layout | ComposedLayout:
    """A formula of the coordinates _i, _j, ...: of an element, or of its thread and its place there."""
    shape, out = ([int(x) for x in re.findall(r"\d{1,9}", found[name])] for name in ("shape", "out"))
    at = found.start("name")
    if not shape or not out or not all(shape) or not all(out):
        raise ParseError("expected extents from 1, as in [64, 64] -> [4096]", text, found.start("shape"))
    extents = {f"_{chr(ord('i') + dim)}": extent for dim, extent in enumerate(shape)}
    rest = (_FRAGMENT if found["name"] == "Fragment" else _TRANSFORM).match(text, found.end())
    if rest is None:
        form = "replicate: 1, thread: 128, forward_thread: ..., forward_index: [...]"
        form = form if found["name"] == "Fragment" else "transform: [_i, _j] -> [_i * 64 + _j]"
        raise ParseError(f"expected {form}", text, found.end())
    place = rest.start("index")
    index = _flat(text, place, rest["index"], out)
    if found["name"] == "Layout":
        names = [name.strip() for name in rest["names"].split(",")]
        if len(set(names)) != len(shape):
            raise ParseError(f"expected {len(shape)} names of coordinates", text, rest.start("names"))
        return _evaluated(text, place, index, dict(zip(names, shape)))
    copies, threads = int(rest["copies"]), int(rest["threads"])
    bounds = [int(x) for x in re.findall(r"\d{1,9}", rest["range"] or f"0, {threads}")]
    if bounds != [0, threads] or not threads or not copies:
        wrong = rest.start("range" if rest["range"] else "threads")
        raise ParseError(f"expected threads from 0 to {threads}, those of thread: and no others", text, wrong)
    if copies > 1:
        extents["_rep"] = copies
    formula = f"({_expression(text, rest.start('thread'), rest['thread'])}) + {threads} * ({index})"
    places = _evaluated(text, place, formula, extents)
    return _held(text, at, places, (prod(shape), copies), (threads, prod(out)))


def _flat(text: str, at: int, listed: str, out: Sequence[int]) -> str:
    """The row-major index of a list of formulas."""
    tree = _tree(text, at, f"[{listed}]")
    items = tree.elts if isinstance(tree, ast.List) else []
    if len(items) != len(out):
        raise ParseError(f"expected {len(out)} formulas, one a dimension, not {len(items)}", text, at)
    return " + ".join(f"{prod(out[i + 1 :])} * ({_unparsed(item)})" for i, item in enumerate(items))


def _expression(text: str, at: int, said: str) -> str:
    return _unparsed(_tree(text, at, said))


def _tree(text: str, at: int, said: str) -> ast.expr:
    try:
        return ast.parse(said.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ParseError("expected a formula of _i, _j, ...", text, at) from None


class _Operators(ast.NodeTransformer):
    """TVM's functions as Python's operators."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`T.bitwise_xor(a, b)` as `a ^ b`; other calls stay."""
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _CALLS and len(node.args) == 2 and not node.keywords:
            return ast.BinOp(node.args[0], _CALLS[name](), node.args[1])
        return node


def _unparsed(node: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(_Operators().visit(node)))


def _evaluated(text: str, at: int, formula: str, extents: dict[str, int]) -> Layout | ComposedLayout:
    """The layout of a formula. Raises ParseError where none has its values."""
    try:
        out: Layout | ComposedLayout = registries.layout_of_formula(formula, **extents)
        return out
    except LayoutError as error:
        raise ParseError(f"expected a formula that is a layout: {error}", text, at) from None


def _held(
    text: str, at: int, places: Layout | ComposedLayout, of_tile: tuple[int, int], of_threads: tuple[int, int]
) -> Layout:
    """(thread, value) -> flat index of the tile.

    places  (element, copy) -> thread + threads * value
    """
    if isinstance(places, ComposedLayout):
        raise ParseError("expected a fragment without XOR: no shape:stride of threads and values is it", text, at)
    if prod(of_tile) != prod(of_threads) or not places.is_bijective():
        said = f"{prod(of_tile)} elements and copies in {of_threads[0]} threads of {of_threads[1]} values"
        raise ParseError(f"expected one element in each place, not {said}", text, at)
    try:
        return Layout(of_tile, (1, 0)).compose(places.right_inverse()).compose(Layout(of_threads))
    except LayoutError as error:
        raise ParseError(f"expected threads and values that are a layout: {error}", text, at) from None
