"""The picture methods of objects: return it, write it, print its text, show it in a notebook."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, overload

from ..arguments import as_bool, as_path, shown
from ..errors import LayoutError
from .registry import Registry

# `_drawn_by` of a class names the module that registers its picture and its text.
picture = Registry("picture", "layoutgemm.view.objects", "_drawn_by")
table = Registry("text of its picture", "layoutgemm.view.objects", "_drawn_by")
save = Registry("file", "layoutgemm.view.raster")


class HasPicture:
    """An object with a picture and a text; `layoutgemm.view` registers the functions for its type.

    `svg` and `show` take the options of that function:

    Layout, ComposedLayout      layout_svg: rows, columns, planes, group, tile, nested, divided
    Swizzle                     swizzle_pair_svg: layout (a tile of its own unless given), bits, access
    SmemTile                    swizzle_svg: rows, columns; pair=True: before and after its swizzle
    MmaAtom                     product_svg: color, thread; with operand="A", "B" or "C": fragment_svg
                                of tcgen05 with tmem=True: tmem_svg
    CopyAtom                    copy_svg: color, thread
    TiledMma, TiledCopy         tiled_mma_svg, tiled_copy_svg: color, thread
    TmaPlan                     box_svg: index
    Im2colPlan, GatherPlan      im2col_svg: index, box; gather_svg: rows, column
    descriptors                 fields_svg: reasons
    tile orders                 schedule_svg: grid, wave
    plans                       of="fragment", "product", "smem", "order", "a" or "b"
    Pipeline                    pipeline_svg
    Timeline                    timeline_svg: block, rows
    """

    __slots__ = ()
    _drawn_by: ClassVar[str] = "layoutgemm.view.objects"

    @overload
    def svg(self, path: None = None, *, dark: bool = False, **options: object) -> str: ...

    @overload
    def svg(self, path: str | os.PathLike[str], *, dark: bool = False, **options: object) -> Path: ...

    def svg(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False, **options: object) -> str | Path:
        """The picture as an SVG document; with a path it is written there, and the path is returned.

        A name that ends in .png gives a PNG. The picture follows the reader's page, light or dark; `dark` makes a file
        dark for good. Raises LayoutError for what has no picture, for another ending of the name, and for PNG without
        the extra `png`.

        >>> from layoutgemm import Layout
        >>> Layout((4, 8), (8, 1)).svg().count("<title>")    # hovering tells every cell
        32
        >>> Layout((4, 8), (8, 1)).svg("rows.svg").name
        'rows.svg'
        """
        where, dark = None if path is None else as_path(path, "path of svg"), as_bool(dark, "dark of svg")
        if where is not None and where.suffix.lower() not in (".svg", ".png"):
            raise LayoutError(
                f"{shown(str(where))}: a picture is written to an .svg or a .png; one operand of an atom is drawn by "
                f"operand='A'"
            )
        drawn: str = picture(self, **options)
        if where is None:
            return drawn
        save(drawn, where, dark=dark)
        return where

    def show(self, **options: object) -> None:
        """Prints it as text.

        >>> from layoutgemm import Layout
        >>> Layout((2, 4), (4, 1)).show()
        (2,4):(4,1)
            0 1 2 3
          +--------
        0 | 0 1 2 3
        1 | 4 5 6 7
        """
        print(table(self, **options))

    def _repr_svg_(self) -> str | None:
        """The notebook's view: None where there is no picture, and the notebook prints the object."""
        try:
            drawn: str = picture(self)
        except LayoutError:
            return None
        return drawn


class PicturedLayout(HasPicture):
    """A layout, swizzled or not: the offset of every coordinate."""

    __slots__ = ()
    _drawn_by: ClassVar[str] = "layoutgemm.view.layouts"  # which loads no atoms
