"""The CuTe DSL's layouts and tensors as ours, read from the notation of their types.

Every such object of the DSL is a value of the compiler whose type says all that is known at trace time:

    !cute.layout<"(?,?{div=8}):(?{i64 div=8},1)">              a layout; ? is a run-time integer, div what divides it
    !cute.composed_layout<"S<3,4,3> o 0 o (8,64):(64,1)">      a layout under a swizzle, or of a layout
    !cute.memref<bf16, smem, align<1024>, S<3,4,3>, "(8,64):(64,1)">   a tensor; a swizzle here belongs to its pointer
    !cute.coord_tensor<"(0,0)", "(4,8):(1@0,1@1)">             a tensor of coordinates, and where it begins
    !cute_nvgpu.smem_desc_view<..., "(1,1,4):(0,0,2)">         one of matrix descriptors, which count 16 bytes

Reading the type adds no operation to the kernel that is being traced, needs no trace, and imports nothing of the DSL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from ..arguments import refusal, shown
from ..dtypes import DType, dtype
from ..errors import LayoutError
from ..layouts import ComposedLayout, CoordinateTensor, Layout, Swizzle
from ..layouts.notation import read
from ..layouts.symbols.dims import dim, entry, fresh_name

# Number formats by the names of the DSL's classes.
ELEMENTS = {
    "Float64": "f64", "Float32": "f32", "TFloat32": "tf32", "Float16": "f16", "BFloat16": "bf16",
    "Float8E4M3FN": "e4m3", "Float8E5M2": "e5m2", "Float8E8M0FNU": "ue8m0",
    "Float6E3M2FN": "e3m2", "Float6E2M3FN": "e2m3", "Float4E2M1FN": "e2m1",
    "Int64": "i64", "Int32": "i32", "Int16": "i16", "Int8": "i8", "Int4": "i4",
    "Uint64": "u64", "Uint32": "u32", "Uint16": "u16", "Uint8": "u8",
}  # fmt: skip
_DYNAMIC = re.compile(r"\?(?:\{([^}]*)\})?")
_DIVISOR = re.compile(r"div=(\d+)")
_SWIZZLE = re.compile(r"S<(-?\d+),(-?\d+),(-?\d+)>")
_ALIGNMENT = re.compile(r"align<(\d+)>")


@dataclass(frozen=True)
class TensorLayout:
    """The layout and the other facts of a tensor.

    layout      coordinate -> element: Layout or ComposedLayout; of coordinates not from 0 a CoordinateTensor
    element     its number format; None without one here: coordinates, matrix descriptors, truth values
    space       "gmem", "smem", "rmem", "tmem" or "generic"; None if unknown
    alignment   bytes that its address is a multiple of; None if unknown
    """

    layout: Layout | ComposedLayout | CoordinateTensor
    element: DType | None
    space: str | None = None
    alignment: int | None = None


def element_of(kind: object) -> DType:
    """The number format of one of the DSL's types. Raises LayoutError where there is no such format here."""
    name = getattr(kind, "__name__", str(kind))
    if name not in ELEMENTS:
        raise LayoutError(f"the DSL's type {name} has no format here; there are {', '.join(ELEMENTS)}")
    return dtype(ELEMENTS[name])


class Symbols:
    """Makes the symbols of run-time entries. One for each entry, or the caller's names in the order of the notation.

    An entry given a name twice is the same integer twice, with the facts of both.
    """

    def __init__(self, names: Sequence[object] | None) -> None:
        if not (names is None or isinstance(names, (str, tuple, list))):
            raise LayoutError(refusal(names, "names of run-time entries", "a string or a tuple of names and symbols"))
        self.names = None if names is None else tuple([names] if isinstance(names, str) else names)
        for name in self.names or ():
            if not isinstance(name, str):
                entry(name, "the name of a run-time entry")
        self.entries: list[tuple[object, int, int]] = []  # (name or symbol, what divides it, its least value)

    def entry(self, default: str, divisor: int, least: int, own: bool = False) -> str:
        """A placeholder for one run-time entry, as a name that `value` knows.

        An entry without a name is an integer of its own: `default` is made a name that no other symbol has, unless it
        is the entry's own name.
        """
        number = len(self.entries)
        if self.names is not None and number >= len(self.names):
            given = ", ".join(map(str, self.names))
            raise LayoutError(f"the layout has more than {len(self.names)} run-time entries; names gives {given}")
        if self.names is not None:
            default = self.names[number]
        elif not own:
            default = fresh_name(default)
        self.entries.append((default, divisor, least))
        return f"e{number}"

    def value(self, placeholder: str) -> Any:
        """The symbol of a placeholder, with all that is known of its name. Raises LayoutError for any other name."""
        if placeholder[1:] not in map(str, range(len(self.entries))):
            raise LayoutError(f"an entry is {placeholder}: the DSL writes x where its algebra found no layout")
        name = self.entries[int(placeholder[1:])][0]
        if not isinstance(name, str):
            return entry(name)
        same = [each for each in self.entries if isinstance(each[0], str) and each[0] == name]
        return dim(name, multiple_of=lcm(*[d for _, d, _ in same]), min=max(least for *_, least in same))

    def check_used(self, what: object) -> None:
        """Raises LayoutError when there are more names than run-time entries."""
        if self.names is not None and len(self.names) != len(self.entries):
            raise LayoutError(f"{what} has {len(self.entries)} run-time entries, and names gives {len(self.names)}")


def quoted(kind: object) -> str:
    """The notation inside the last quotation marks of a compiler type."""
    found = re.findall(r'"([^"]*)"', str(kind))
    if not found:
        raise LayoutError(f"the type {kind} holds no layout")
    return str(found[-1])


def static_layout(kind: object) -> Layout:
    """The layout in a type, one without run-time entries."""
    out = layout_of(quoted(kind), Symbols(()))
    if not isinstance(out, Layout):
        raise LayoutError(f"the type {kind} holds no plain layout")
    return out


def layout_of(
    text: str, symbols: Symbols, element: DType | None = None, unit: int | str | None = None
) -> Layout | ComposedLayout:
    """A layout or composed layout from the DSL's notation. Raises LayoutError for other objects."""
    parts = text.split(" o ")
    if len(parts) == 1:
        return _plain(text, symbols)
    if len(parts) != 3:
        raise LayoutError(f"{text}: a composed layout is read as inner o offset o outer")
    inner, offset, outer = parts
    found = _SWIZZLE.fullmatch(inner)
    if found is None:
        if any(part != "0" for part in re.findall(r"[^(),\s]+", offset)):
            raise LayoutError(f"{text}: a layout of a layout at the offset {offset} is no layout here")
        first = _plain(inner, symbols)
        return first.compose(_plain(outer, symbols))
    start = _named(offset, symbols, "o", 0)
    layout = _plain(outer, symbols)
    at = symbols.value(start) if start != offset else int(start)
    return swizzled(Swizzle(int(found[1]), int(found[2]), int(found[3])), at, layout, element, unit)


def swizzled(
    swizzle: Swizzle, offset: Any, layout: Layout, element: DType | None = None, unit: int | str | None = None
) -> ComposedLayout:
    """A layout of elements under a swizzle of `unit`; None: of the layout's own."""
    if unit is None:
        unit = None if element is None else element.bits
    swizzle = Swizzle(swizzle.bits, swizzle.base, swizzle.shift, unit)
    if unit == "bytes" and element is None:
        raise LayoutError(f"{swizzle} o {offset} o {layout}: say what the layout counts, as in element='bf16'")
    if element is not None and swizzle.unit != element.bits:
        swizzle = swizzle.recast(element.bits)
    return ComposedLayout(swizzle, offset, layout)


def memref(kind: str, element: DType | None, symbols: Symbols) -> TensorLayout:
    """A tensor of a trace, from the text of its type. Raises LayoutError for a swizzle on a pointer it may split."""
    text = quoted(kind)
    if kind.startswith("!cute.coord_tensor"):
        return TensorLayout(_coordinates(text, re.findall(r'"([^"]*)"', kind)[0], symbols), None)
    if kind.startswith("!cute_nvgpu.smem_desc_view"):
        return TensorLayout(layout_of(text, symbols), None, "smem")
    head = kind[: kind.rindex(f'"{text}"')]
    found = re.match(r"!cute\.memref<[^,]+, (\w+)", head)
    if found is None:
        raise LayoutError(f"the type {kind} is read as a tensor of elements in a memory, and it is none")
    align = _ALIGNMENT.search(head)
    alignment = int(align[1]) if align else None if element is None else max(1, element.bits // 8)
    swizzle = _SWIZZLE.search(head)
    layout = layout_of(text, symbols, element)
    if swizzle is not None:
        if isinstance(layout, ComposedLayout):
            raise LayoutError(f"{kind} has a swizzle on its pointer and one in its layout: two are not read as one")
        by = Swizzle(int(swizzle[1]), int(swizzle[2]), int(swizzle[3]), "bytes")
        if alignment is None or alignment % by.span:
            raise LayoutError(
                f"the pointer's {by} repeats every {by.span} bytes, and the tensor begins at a multiple of {alignment}:"
                f" its layout does not say where its elements lie. Take the whole tensor, before it is cut"
            )
        layout = swizzled(by, 0, layout, element, "bytes")
    return TensorLayout(layout, element, found[1], alignment)


def _coordinates(text: str, first: str, symbols: Symbols) -> Layout | ComposedLayout | CoordinateTensor:
    """The layout of a tensor of coordinates that begins at `first`."""
    layout = layout_of(text, symbols)
    if not isinstance(layout, Layout) or re.search(r"[1-9?]", first) is None:
        return layout
    named = _named(first if first.startswith("(") else f"({first})", symbols, "o", 0)
    out = read(f"{named} o 1:0", symbols.value)
    assert isinstance(out, CoordinateTensor)
    return CoordinateTensor(out.offset, layout)


def _plain(text: str, symbols: Symbols) -> Layout:
    shape, colon, stride = text.partition(":")
    if not colon:
        raise LayoutError(f"{text}: a layout is read as shape:stride")
    # An extent is at least 1; of a run-time stride nothing is known but its divisor, and that memory lies ahead.
    named = f"{_named(shape, symbols, 'n', 1)}:{_named(stride, symbols, 'd', 0)}"
    out = read(named, symbols.value)
    assert isinstance(out, Layout)
    return out


def _named(text: str, symbols: Symbols, letter: str, least: int) -> str:
    """The notation with a placeholder for each run-time entry, named after its place."""

    def name(found: re.Match[str]) -> str:
        divisor = _DIVISOR.search(found[1] or "")
        place = sum(1 for c in text[: found.start()] if c == ",")
        return symbols.entry(f"{letter}{place}", int(divisor[1]) if divisor else 1, least)

    return _DYNAMIC.sub(name, text)


def tensor_of_integers(shape: Any, stride: Any, symbols: Symbols) -> Layout:
    """A layout of ints and the DSL's SymInts, as fake tensors and annotations have them."""
    places: dict[int, Any] = {}

    def entries(value: Any, letter: str, least: int, place: Iterator[int]) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple([entries(v, letter, least, place) for v in value])
        at = next(place)
        if isinstance(value, int):
            return value
        if type(value).__name__ != "SymInt":
            raise LayoutError(f"an extent or stride of a tensor is an int or a SymInt, not {shown(value)}")
        # One SymInt used twice is one run-time integer, whatever it is called.
        if id(value) not in places:
            own = value.symbol if symbols.names is None else None
            places[id(value)] = symbols.entry(own or f"{letter}{at}", int(value.divisibility), least, bool(own))
        return places[id(value)]

    def resolve(value: object) -> Any:
        if isinstance(value, tuple):
            return tuple(map(resolve, value))
        return symbols.value(value) if isinstance(value, str) else value

    named = [entries(x, k, m, iter(range(1 << 30))) for x, k, m in ((shape, "n", 1), (stride, "d", 0))]
    return Layout(resolve(named[0]), resolve(named[1]))
