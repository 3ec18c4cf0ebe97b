"""Checks that all views of a shared-memory tile agree. Its layout, and the word that reads it."""

from __future__ import annotations

from ...arguments import checked
from ...atoms import MmaAtom, OperandDescriptor, SmemTile
from ...atoms.smem.descriptor import first_misfit
from ...atoms.smem.tile import slot_to_bit
from ...lazy_numpy import np
from ...report import Check


@checked()
def bijective_tile(name: str, tile: SmemTile) -> Check:
    """Check that every tile element has its own address, with none left over. The swizzle is included."""
    mn, k = tile.extent
    order = np.sort(np.asarray(tile.bit(np.arange(mn)[:, None], np.arange(k)[None, :])), axis=None)
    want = np.asarray(slot_to_bit(np.arange(mn * k), tile.dtype, tile.packing))
    witness = ""
    if not np.array_equal(order, want):
        at = int(np.nonzero(order != want)[0][0])
        unit, width = ("bit", 1) if tile.dtype.bits % 8 else ("byte", 8)
        missing, twice = int(want[at]) // width, int(order[at]) // width
        witness = f"{unit} {missing} is held by no element" if order[at] > want[at] else f"{unit} {twice} twice"
    statement = f"{tile} maps {mn}x{k} elements one to one onto {tile.bytes} bytes"
    return Check(name, statement, not witness, f"exhaustion ({mn * k} elements)", witness)


@checked()
def read_by(name: str, tile: SmemTile, descriptor: OperandDescriptor, atom: MmaAtom, operand: str) -> Check:
    """Check that the descriptor's address arithmetic reaches every element of every block in its place."""
    misfit = first_misfit(descriptor, tile, atom, operand)
    witness = ""
    if misfit is not None:
        unit = "bit" if tile.dtype.bits % 8 else "byte"
        witness = f"element (mn, k) = ({misfit[0]}, {misfit[1]}) read at {unit} {misfit[2]}, held at {misfit[3]}"
    blocks = len(descriptor.k_steps) * len(descriptor.mn_steps)
    rows, depth = atom.tile_of(operand)
    return Check(
        name,
        f"{descriptor.word:#018x} and its steps {descriptor.k_steps} address all {blocks} block(s) of {rows}x{depth}",
        misfit is None,
        f"exhaustion ({tile.layout.size} elements)",
        witness,
    )
