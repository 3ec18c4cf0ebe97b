"""Pictures of layouts: SVG for a notebook or a file, tables for a terminal, linked pages for a browser: all strings.

layout_svg, layout_table    a rank-2 layout: the offset in every cell
repr_svg                    what a notebook shows for a layout: its picture, or None if it has none
tv_svg, tv_table            a thread-value layout over its tile: which thread holds an element in which value
fragment_svg                an MMA atom's operand: the same, with the registers of one thread written out
swizzle_svg                 a shared-memory tile: the banks that every element sits in

The functions of `view.html` make pages in which an element lights up in every matrix, and in shared memory, at once:
html_of, product_html, tile_html, layout_html, tv_html.
"""

from layoutgemm.view.svg import fragment_svg, layout_svg, repr_svg, swizzle_svg, tv_svg
from layoutgemm.view.text import layout_table, tv_table

__all__ = ["fragment_svg", "layout_svg", "layout_table", "repr_svg", "swizzle_svg", "tv_svg", "tv_table"]
