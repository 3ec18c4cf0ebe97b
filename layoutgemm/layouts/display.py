"""The methods that other rooms of the package fill. An object's picture, its linked page, its twin of the CuTe DSL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, overload

from ..arguments import as_bool, as_path, shown
from ..errors import LayoutError
from .registries import Registry

# `_drawn_by` of a class names the module that registers its picture and its text.
picture = Registry("picture", "layoutgemm.view.objects", "_drawn_by")
table = Registry("text of its picture", "layoutgemm.view.objects", "_drawn_by")
save = Registry("file", "layoutgemm.view.raster")
darkened = Registry("dark picture", "layoutgemm.view.raster")
# `_paged_by` of a class names the module that registers its page, in which all parts of an element light up together.
page = Registry("page", "layoutgemm.view.pages.html", "_paged_by")
converted = Registry("object of the CuTe DSL", "layoutgemm.interop.cute_writer")


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
        """The picture as an SVG document. With a path it is written there, and the path is returned.

        A name that ends in .png gives a PNG. The picture follows the reader's page, light or dark; `dark` makes it
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
            return str(darkened(drawn)) if dark else drawn
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


class HasPage:
    """Gives layouts, swizzles, tiles, matrix and copy instructions, tiled ones and plans the method `html`."""

    __slots__ = ()
    _paged_by: ClassVar[str] = "layoutgemm.view.pages.html"

    @overload
    def html(self, path: None = None, **options: object) -> str: ...

    @overload
    def html(self, path: str | Path, **options: object) -> Path: ...

    def html(self, path: str | Path | None = None, **options: object) -> str | Path:
        """A page to point at. One self-contained file, with mouse, touch or keyboard, light or dark.

        path     a file to write it to, too
        options  of a layout `tile=(M, N)` where it is a thread-value layout over that tile, else none; of a matrix
                 instruction `a=`, `b=`: its operands' tiles in shared memory; `extent=`; see `view.product_html`. Of
                 a copy `src=`, `dst=`: where that side lies; see `view.copy_html`. Of a swizzle `layout=`, `bits=`,
                 `access=`; see `view.swizzle_html`. `title=` of each. Of a plan none

        Returns the page, or with a path the path. Raises LayoutError for what has no picture, and for more elements
        than a page holds.

        >>> from layoutgemm.layouts import Layout
        >>> Layout((4, 8), (8, 1)).html()[:15]
        '<!DOCTYPE html>'
        """
        where = None if path is None else as_path(path, "path of html")
        text = str(page(self, where, **options))
        return text if where is None else where


class Convertible:
    """Gives layouts, swizzles, matrix and copy instructions and tiled ones the method `to_cute`."""

    __slots__ = ()

    def to_cute(self, **values: object) -> Any:
        """The same as an object of the CuTe DSL. See interop.to_cute.

        It needs a trace, or `interop.cute_context()`.
        """
        return converted(self, **values)
