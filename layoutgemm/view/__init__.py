"""Pictures of layouts, atoms and plans. SVG for a notebook or a file, tables for a terminal.

Only strings are made here. Every picture is legible in light and in dark pages, keeps its colours apart for
colour-blind eyes, and shows the value under the pointer. The same are methods of the objects. `svg(path)` returns the
picture and writes a file: .svg, or .png with the extra `png`. `show()` prints the text. A notebook shows the picture by
itself.

layout_svg, layout_table        a rank-2 layout: the offset in every cell
repr_svg                        a layout's picture for a notebook, or None
tv_svg, tv_table                a thread-value layout over its tile, by thread or by register
fragment_svg                    an MMA atom's operand: the same, with the registers of one thread written out
product_svg, product_table      an MMA atom: A, B and C arranged as in the product
tiled_mma_svg                   a tiled MMA likewise, warps outlined
copy_svg, copy_table            a copy atom: source and destination side by side
tiled_copy_svg                  a tiled copy likewise, warps outlined
swizzle_svg, swizzle_table      a shared-memory tile: the banks of every element
swizzle_pair_svg, -_table       the same before and after a swizzle, the lanes that conflict marked; own_tile: the tile
                                on which a swizzle alone is shown
access_svg                      an access to a tile: its banks, and the lanes and banks of the worst phase
fields_svg                      a descriptor: its bits and fields
box_svg, box_table              the TMA boxes of a tile on their tensor, edge boxes shown
im2col_svg, im2col_table        the pixels of an im2col load: a plane of the image, its padding and the pixel box
gather_svg, gather_table        the rows that gather4 or scatter4 moves, and the row of the tile for each
smem_map_svg, smem_map_table    a block's shared memory by stage; of `Region`s
schedule_svg, schedule_table    an order of tiles as a path over the grid
pipeline_svg                    a pipeline of roles: stages, barriers, and what each role does at which
tmem_svg                        the tensor memory of a tcgen05.mma: accumulator, A and scale factors by lane and column
timeline_svg                    the activity of warps and engines, by role, from the emulator's timeline
png, save                       a picture as PNG; a picture into a file of either kind

Each `*_svg` returns an SVG document, each `*_table` text; both raise LayoutError for objects without a picture.
`fields_svg` and `timeline_svg` have their text with their data: `FieldTable.explain`, `Timeline.text`.

Each file has the pictures of its name; svg those of layouts, threads those of fragments and thread-value layouts,
smem_map and schedule theirs. Drawing itself is in sheet (header, legend, grids), panel (one grid), canvas (SVG),
palette (fills) and raster (PNG).

`view.pages.html` makes interactive pages, with an element lit up in every matrix and in shared memory: html_of,
product_html, copy_html, tile_html, swizzle_html, layout_html, tv_html. The method is `html(path)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from .access import access_svg as access_svg
    from .banks import own_tile as own_tile
    from .banks import swizzle_pair_svg as swizzle_pair_svg
    from .banks import swizzle_svg as swizzle_svg
    from .box import box_svg as box_svg
    from .copy import copy_svg as copy_svg
    from .copy import tiled_copy_svg as tiled_copy_svg
    from .diagrams.gather import gather_svg as gather_svg
    from .diagrams.gather import gather_table as gather_table
    from .diagrams.im2col import im2col_svg as im2col_svg
    from .diagrams.im2col import im2col_table as im2col_table
    from .diagrams.pipeline import pipeline_svg as pipeline_svg
    from .diagrams.tmem import tmem_svg as tmem_svg
    from .fields import fields_svg as fields_svg
    from .product import product_svg as product_svg
    from .product import tiled_mma_svg as tiled_mma_svg
    from .raster import png as png
    from .raster import save as save
    from .schedule import schedule_svg as schedule_svg
    from .smem_map import Region as Region
    from .smem_map import smem_map_svg as smem_map_svg
    from .svg import layout_svg as layout_svg
    from .svg import repr_svg as repr_svg
    from .text.atoms import copy_table as copy_table
    from .text.atoms import product_table as product_table
    from .text.layouts import layout_table as layout_table
    from .text.layouts import tv_table as tv_table
    from .text.memory import box_table as box_table
    from .text.memory import schedule_table as schedule_table
    from .text.memory import smem_map_table as smem_map_table
    from .text.memory import swizzle_pair_table as swizzle_pair_table
    from .text.memory import swizzle_table as swizzle_table
    from .threads import fragment_svg as fragment_svg
    from .threads import tv_svg as tv_svg
    from .timeline import timeline_svg as timeline_svg

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = named_later(__name__)
