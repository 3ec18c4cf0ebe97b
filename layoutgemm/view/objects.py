"""Gives swizzles, atoms, tiles, descriptors, tensor copies and tile orders their picture and their text."""

from __future__ import annotations

from typing import Any

from layoutgemm.atoms import (
    CopyAtom,
    InstructionDescriptor,
    MmaAtom,
    OperandDescriptor,
    SmemDescriptor,
    SmemTile,
    TiledCopy,
    TiledMma,
    TmaPlan,
)
from layoutgemm.layouts import Layout, Swizzle
from layoutgemm.layouts.display import picture, table
from layoutgemm.schedule import Persistent, Schedule
from layoutgemm.view.banks import own_tile, swizzle_pair_svg, swizzle_svg
from layoutgemm.view.box import box_svg
from layoutgemm.view.copy import copy_svg, tiled_copy_svg
from layoutgemm.view.fields import fields_svg
from layoutgemm.view.product import product_svg, tiled_mma_svg
from layoutgemm.view.schedule import schedule_svg
from layoutgemm.view.text.atoms import copy_table, product_table
from layoutgemm.view.text.layouts import tv_table
from layoutgemm.view.text.memory import box_table, schedule_table, swizzle_pair_table, swizzle_table
from layoutgemm.view.threads import fragment_svg

GRID = (16, 12)  # tiles on which an order is shown

picture.register(CopyAtom)(copy_svg)
picture.register(TiledCopy)(tiled_copy_svg)
picture.register(TiledMma)(tiled_mma_svg)
picture.register(TmaPlan)(box_svg)
table.register(CopyAtom, TiledCopy)(copy_table)
table.register(TiledMma)(product_table)
table.register(TmaPlan)(box_table)


@picture.register(Swizzle)
def swizzle_picture(swizzle: Swizzle, layout: Layout | None = None, bits: int | None = None, **options: Any) -> str:
    """The tile that a swizzle is shown on, before and after it."""
    layout, bits = own_tile(swizzle, layout, bits)
    return swizzle_pair_svg(layout, swizzle, bits, **options)


@table.register(Swizzle)
def swizzle_text(swizzle: Swizzle, layout: Layout | None = None, bits: int | None = None, **options: Any) -> str:
    """The same as text."""
    layout, bits = own_tile(swizzle, layout, bits)
    return swizzle_pair_table(layout, swizzle, bits, **options)


@picture.register(MmaAtom)
def mma_picture(atom: MmaAtom, operand: str | None = None, **options: Any) -> str:
    """An instruction's product, or the fragment of one operand."""
    return product_svg(atom, **options) if operand is None else fragment_svg(atom, operand, **options)


@table.register(MmaAtom)
def mma_text(atom: MmaAtom, operand: str | None = None, **options: Any) -> str:
    """The same as text."""
    if operand is None:
        return product_table(atom, **options)
    return f"{atom}, {operand}: {tv_table(atom.layout(operand), atom.tile_of(operand), **options)}"


@picture.register(SmemTile)
def tile_picture(tile: SmemTile, pair: bool = False, **options: Any) -> str:
    """A tile by banks; as a pair before and after its swizzle."""
    if pair:
        return swizzle_pair_svg(tile.layout, tile.swizzle, tile.slot_bits, **options)
    return swizzle_svg(tile.composed, tile.slot_bits, **options)


@table.register(SmemTile)
def tile_text(tile: SmemTile, pair: bool = False, **options: Any) -> str:
    """The same as text."""
    if pair:
        return swizzle_pair_table(tile.layout, tile.swizzle, tile.slot_bits, **options)
    return swizzle_table(tile.composed, tile.slot_bits, **options)


@picture.register(OperandDescriptor)
def operand_picture(operand: OperandDescriptor, **options: Any) -> str:
    """The fields of an operand's descriptor, with the reasons for their values."""
    return fields_svg(operand.base.table, operand.word, **{"reasons": dict(operand.reasons), **options})


@picture.register(SmemDescriptor, InstructionDescriptor)
def descriptor_picture(descriptor: SmemDescriptor | InstructionDescriptor, **options: Any) -> str:
    """The fields of a descriptor."""
    return fields_svg(descriptor.table, descriptor.word, **options)


@table.register(OperandDescriptor, SmemDescriptor, InstructionDescriptor)
def descriptor_text(descriptor: OperandDescriptor | SmemDescriptor | InstructionDescriptor, **options: Any) -> str:
    """The same as text."""
    return descriptor.explain(**options)


@picture.register(Schedule)
def order_picture(order: Schedule, grid: tuple[int, int] = GRID, **options: Any) -> str:
    """An order's path over a grid of tiles."""
    return schedule_svg(order, grid, **options)


@picture.register(Persistent)
def persistent_picture(order: Persistent, grid: tuple[int, int] = GRID, **options: Any) -> str:
    """The path with its waves: what all workers do in one step."""
    if order.workers > 1:
        options = {"wave": order.workers * order.cluster[0] * order.cluster[1], **options}
    return schedule_svg(order, grid, **options)


@table.register(Schedule, Persistent)
def order_text(order: Schedule | Persistent, grid: tuple[int, int] = GRID, **options: object) -> str:
    """The same as text."""
    return schedule_table(order, grid, **options)
