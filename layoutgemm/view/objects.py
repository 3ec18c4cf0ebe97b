"""Gives swizzles, atoms, tiles, descriptors, tensor copies and tile orders their picture and their text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from layoutgemm.atoms import (
    CopyAtom,
    GatherPlan,
    Im2colPlan,
    InstructionDescriptor,
    MmaAtom,
    OperandDescriptor,
    SmemDescriptor,
    SmemTile,
    TiledCopy,
    TiledMma,
    TmaPlan,
)
from layoutgemm.atoms.mma.tcgen05 import Tcgen05Atom
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import Layout, Swizzle
from layoutgemm.layouts.display import picture, table
from layoutgemm.schedule import Persistent, Schedule
from layoutgemm.view.banks import own_tile, swizzle_pair_svg, swizzle_svg
from layoutgemm.view.box import box_svg
from layoutgemm.view.copy import copy_svg, tiled_copy_svg
from layoutgemm.view.diagrams.gather import gather_svg, gather_table
from layoutgemm.view.diagrams.im2col import im2col_svg, im2col_table
from layoutgemm.view.diagrams.tmem import tmem_operands, tmem_svg
from layoutgemm.view.fields import fields_svg
from layoutgemm.view.product import product_svg, tiled_mma_svg
from layoutgemm.view.schedule import schedule_svg
from layoutgemm.view.text.atoms import copy_table, product_table
from layoutgemm.view.text.layouts import tv_table
from layoutgemm.view.text.memory import box_table, schedule_table, swizzle_pair_table, swizzle_table
from layoutgemm.view.threads import fragment_svg

View = TypeVar("View", bound=Callable[..., str])
GRID = (16, 12)  # tiles on which an order is shown

picture.register(CopyAtom)(copy_svg)
picture.register(TiledCopy)(tiled_copy_svg)
picture.register(TiledMma)(tiled_mma_svg)
picture.register(TmaPlan)(box_svg)
picture.register(Im2colPlan)(im2col_svg)
picture.register(GatherPlan)(gather_svg)
table.register(CopyAtom, TiledCopy)(copy_table)
table.register(TiledMma)(product_table)
table.register(TmaPlan)(box_table)
table.register(Im2colPlan)(im2col_table)
table.register(GatherPlan)(gather_table)


def both(*kinds: type) -> Callable[[View], View]:
    """Register a function as the picture of these types, and as their text. It takes `draws`."""

    def registered(view: View) -> View:
        picture.register(*kinds)(functools.partial(view, draws=True))
        table.register(*kinds)(functools.partial(view, draws=False))
        return view

    return registered


@both(Swizzle)
def swizzle_view(
    swizzle: Swizzle, layout: Layout | None = None, bits: int | None = None, *, draws: bool, **options: Any
) -> str:
    """The tile that a swizzle is shown on, before and after it."""
    layout, bits = own_tile(swizzle, layout, bits)
    return (swizzle_pair_svg if draws else swizzle_pair_table)(layout, swizzle, bits, **options)


@both(MmaAtom)
def mma_view(
    atom: MmaAtom, operand: str | None = None, tmem: bool | None = None, *, draws: bool, **options: Any
) -> str:
    """An instruction's product, the fragment of one operand, or the tensor memory that it takes.

    No thread holds an operand of tcgen05.mma: its picture is tensor memory unless `tmem` is False.
    """
    if tmem is None:
        tmem = draws and operand is None and isinstance(atom, Tcgen05Atom) and not {"color", "thread"} & options.keys()
    if tmem and draws:
        return tmem_svg(_tcgen05(atom), **options)
    if tmem:
        home = _tcgen05(atom)
        return "\n".join(f"{name}: {place}" for name, place in tmem_operands(home).items())
    if operand is None:
        return (product_svg if draws else product_table)(atom, **options)
    if draws:
        return fragment_svg(atom, operand, **options)
    return f"{atom}, {operand}: {tv_table(atom.layout(operand), atom.tile_of(operand), **options)}"


def _tcgen05(atom: MmaAtom) -> Tcgen05Atom:
    if not isinstance(atom, Tcgen05Atom):
        raise LayoutError(f"{atom} takes nothing from tensor memory: tmem=True is of tcgen05.mma")
    return atom


@both(SmemTile)
def tile_view(tile: SmemTile, pair: bool = False, *, draws: bool, **options: Any) -> str:
    """A tile by banks; as a pair before and after its swizzle."""
    if pair:
        return (swizzle_pair_svg if draws else swizzle_pair_table)(tile.layout, tile.swizzle, tile.slot_bits, **options)
    return (swizzle_svg if draws else swizzle_table)(tile.composed, tile.slot_bits, **options)


@both(OperandDescriptor, SmemDescriptor, InstructionDescriptor)
def descriptor_view(
    descriptor: OperandDescriptor | SmemDescriptor | InstructionDescriptor, *, draws: bool, **options: Any
) -> str:
    """The fields of a descriptor; of an operand's, with the reasons for their values."""
    if not draws:
        return descriptor.explain(**options)
    if isinstance(descriptor, OperandDescriptor):
        return fields_svg(descriptor.base.table, descriptor.word, **{"reasons": dict(descriptor.reasons), **options})
    return fields_svg(descriptor.table, descriptor.word, **options)


@both(Schedule, Persistent)
def order_view(order: Schedule | Persistent, grid: tuple[int, int] = GRID, *, draws: bool, **options: object) -> str:
    """An order's path over a grid of tiles. A persistent one with its waves: one step of all workers."""
    if draws and isinstance(order, Persistent) and order.workers > 1:
        options = {"wave": order.workers * order.cluster[0] * order.cluster[1], **options}
    return (schedule_svg if draws else schedule_table)(order, grid, **options)
