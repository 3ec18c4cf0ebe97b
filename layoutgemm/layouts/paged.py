"""Objects with a linked page: one HTML file in which all parts of an element light up together."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, overload

from ..arguments import as_path
from .registry import Registry

# `_paged_by` of a class names the module that registers its page.
page = Registry("page", "layoutgemm.view.pages.html", "_paged_by")


class HasPage:
    """Gives layouts, swizzles, tiles, matrix and copy instructions, tiled ones and plans the method `html`."""

    __slots__ = ()
    _paged_by: ClassVar[str] = "layoutgemm.view.pages.html"

    @overload
    def html(self, path: None = None, **options: object) -> str: ...

    @overload
    def html(self, path: str | Path, **options: object) -> Path: ...

    def html(self, path: str | Path | None = None, **options: object) -> str | Path:
        """A page to point at: one self-contained file, with mouse, touch or keyboard, light or dark.

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
