"""Listings: the named layouts that CuTe and its DSL print. They are of a tiled MMA, a tiled copy or an atom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..arguments import shown
from ..errors import LayoutError
from .int_tuple import show
from .layout import Layout
from .swizzle import AnyLayout, ComposedLayout

Field: TypeAlias = "AnyLayout | tuple[Field, ...] | int | str | None"

TITLES = ("TiledMMA", "MMA_Atom", "ThrMMA", "TiledCopy", "Copy_Atom", "ThrCopy")
# The names of the DSL and of tensor-layouts -> CuTe's
FIELDS = {
    "Thr Layout VMNK": "ThrLayoutVMNK", "Permutation MNK": "PermutationMNK", "Shape MNK": "Shape_MNK",
    "TV Layout A": "LayoutA_TV", "TV Layout B": "LayoutB_TV", "TV Layout C": "LayoutC_TV", "Tiler MN": "Tiler_MN",
    "TV Layout tiled": "TiledLayout_TV", "TV Layout Src": "ValLayoutSrc", "TV Layout Dst": "ValLayoutDst",
    "Value type": "ValueType", "Thr VMNK": "ThrVMNK",
    "layout_copy_tv": "TiledLayout_TV", "tiler_mn": "Tiler_MN", "atom_layout_MNK": "AtomLayoutMNK",
    "permutation_MNK": "PermutationMNK",
    "name": "Name", "ptx": "PTX", "thr_id": "ThrID", "shape_mnk": "Shape_MNK", "a_layout": "LayoutA_TV",
    "b_layout": "LayoutB_TV", "c_layout": "LayoutC_TV",
}  # fmt: skip

TILERS = ("Tiler_MN", "PermutationMNK", "Shape_MNK", "ThrVMNK")  # whose values are shapes, not layouts


def title_of(line: str) -> str | None:
    """The title that a line of a listing is, None for another line.

    >>> title_of("Tiled MMA"), title_of("MMA_Atom"), title_of("ThrID: 32:1")
    ('TiledMMA', 'MMA_Atom', None)
    """
    plain = line.strip().rstrip(":").replace(" ", "").replace("_", "").lower()
    return next((title for title in TITLES if title.replace("_", "").lower() == plain), None)


@dataclass(frozen=True)
class Listing(Mapping[str, Field]):
    """The printed values of a tiled MMA, copy or atom, by CuTe's names.

    title   its first line, as in "TiledMMA"; "" for lines of names alone
    fields  (name, value) in the order of the text: a layout, a shape, a tiler, or a text

    >>> from layoutgemm import Layout
    >>> atom = Layout.parse("MMA_Atom\\n  ThrID:      _32:_1\\n  Shape_MNK:  (_16,_8,_16)")
    >>> atom.title, atom["Shape_MNK"], atom["ThrID"]
    ('MMA_Atom', (16, 8, 16), Layout(32, 1))
    """

    title: str
    fields: tuple[tuple[str, Field], ...]

    def __getitem__(self, name: str) -> Field:
        """The value of a name. Raises LayoutError, which lists the names, for another."""
        for key, value in self.fields:
            if key == name:
                return value
        raise NoField(f"no {shown(name)} among {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def layouts(self) -> dict[str, AnyLayout]:
        """The layouts alone, by name."""
        return {name: value for name, value in self.fields if isinstance(value, Layout | ComposedLayout)}

    def __str__(self) -> str:
        lines = [self.title] if self.title else []
        return "\n".join([*lines, *[f"  {name}: {_text(value)}" for name, value in self.fields]])


class NoField(LayoutError, KeyError):
    """A listing has no value of this name: a KeyError too, as mappings raise it."""

    __str__ = Exception.__str__  # a KeyError would print the representation


def _text(value: Field) -> str:
    if value is None:
        return "_"
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    return show(value) if isinstance(value, int) else str(value)
