"""What every object that has a picture does with it: return it, write it, print its text, show it in a notebook."""

from __future__ import annotations

import os
from typing import Any

from ..errors import LayoutError


class Pictured:
    """An object that has a picture and a text: `_picture` and `_table` make them, by functions of `layoutgemm.view`.

    What `svg` and `show` take besides is what that function takes:

    Layout, ComposedLayout      layout_svg: rows, columns, group
    Swizzle                     swizzle_pair_svg: layout (a tile of its own unless given), bits, access
    SmemTile                    swizzle_svg: rows, columns; pair=True: before and after its swizzle
    MmaAtom                     product_svg: color, thread; with operand="A", "B" or "C": fragment_svg
    CopyAtom                    copy_svg: color, thread
    TiledMma, TiledCopy         tiled_mma_svg, tiled_copy_svg: color, thread
    TmaPlan                     box_svg: index
    descriptors                 fields_svg: reasons
    tile orders                 schedule_svg: grid, wave
    plans                       of="fragment", "product", "smem", "order", "a" or "b"
    Timeline                    timeline_svg: block, rows
    """

    __slots__ = ()

    def _picture(self, **options: Any) -> str:
        raise NotImplementedError

    def _table(self, **options: Any) -> str:
        raise NotImplementedError

    def svg(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False, **options: Any) -> str:
        """The picture as an SVG document; with a path it is also written there, as PNG if the name ends in .png.

        The picture follows the reader's page, light or dark; `dark` makes a file dark for good. Raises LayoutError for
        what has no picture, and for PNG without the extra `png`.

        >>> from layoutgemm import Layout
        >>> Layout((4, 8), (8, 1)).svg("rows.svg").count("<title>")    # hovering tells every cell
        32
        """
        from ..view import save

        drawn = self._picture(**options)
        if path is not None:
            save(drawn, path, dark=dark)
        return drawn

    def show(self, **options: Any) -> None:
        """Prints it as text.

        >>> from layoutgemm import Layout
        >>> Layout((2, 4), (4, 1)).show()
        (2,4):(4,1)
            0 1 2 3
          +--------
        0 | 0 1 2 3
        1 | 4 5 6 7
        """
        print(self._table(**options))

    def _repr_svg_(self) -> str | None:
        """What a notebook shows, or None (it then prints the object) where there is no picture."""
        try:
            return self._picture()
        except LayoutError:
            return None


class PicturedLayout(Pictured):
    """A layout, swizzled or not: the offset of every coordinate."""

    __slots__ = ()

    def _picture(self, **options: Any) -> str:
        from ..view import layout_svg

        return layout_svg(self, **options)  # type: ignore[arg-type]

    def _table(self, **options: Any) -> str:
        from ..view import layout_table

        return layout_table(self, **options)  # type: ignore[arg-type]
