"""Checks that all views of a shared-memory tile agree: its layout, and the word that reads it."""

from __future__ import annotations

import numpy as np

from ..atoms import MmaAtom, OperandDescriptor, SmemTile
from ..atoms.descriptor import first_misfit
from .report import Check


def bijective_tile(name: str, tile: SmemTile) -> Check:
    """Does every element of the tile have an address of its own, with none left over, swizzle included?"""
    mn, k = tile.extent
    address = np.asarray(tile.byte(np.arange(mn)[:, None], np.arange(k)[None, :]))
    order = np.sort(address, axis=None)
    want = np.arange(mn * k) * tile.dtype.bytes
    witness = ""
    if not np.array_equal(order, want):
        at = int(np.nonzero(order != want)[0][0])
        witness = (
            f"byte {int(want[at])} is held by no element" if order[at] > want[at] else f"byte {int(order[at])} twice"
        )
    statement = f"{tile} maps {mn}x{k} elements one to one onto {tile.bytes} bytes"
    return Check(name, statement, not witness, f"exhaustion ({mn * k} elements)", witness)


def read_by(name: str, tile: SmemTile, descriptor: OperandDescriptor, atom: MmaAtom, operand: str) -> Check:
    """Does the descriptor's own address arithmetic reach every element of every block where the tile holds it?"""
    misfit = first_misfit(descriptor, tile, atom, operand)
    witness = ""
    if misfit is not None:
        witness = f"element (mn, k) = ({misfit[0]}, {misfit[1]}) read at byte {misfit[2]}, held at {misfit[3]}"
    blocks = len(descriptor.k_steps) * len(descriptor.mn_steps)
    rows, depth = atom.tile_of(operand)
    return Check(
        name,
        f"{descriptor.word:#018x} and its steps {descriptor.k_steps} address all {blocks} block(s) of {rows}x{depth}",
        misfit is None,
        f"exhaustion ({tile.layout.size} elements)",
        witness,
    )
