"""Which lane's byte an mma.sync with block scales reads. The selectors {byte-id, thread-id} of its metadata registers.

Every lane passes one 32-bit register of factors for A and one for B, and two small numbers say which of them count.
Both follow from the scales' thread-value layout. The mode of stride 0 counts the copies that a quad may hold, and the
thread-id picks one. The factors of one lane fill part of the register, and the byte-id picks the part.

Source: PTX ISA, "Block Scaling for mma.sync", table of valid values for the selector components.
"""

from __future__ import annotations

from ...arguments import shown
from ...errors import AtomError
from .base import MmaAtom

REGISTER_BYTES = 4


def selectors(atom: MmaAtom, operand: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(legal byte-ids, legal thread-ids) of operand "SFA" or "SFB". Raises AtomError where there are no block scales.

    >>> from layoutgemm.atoms import mma_sync
    >>> atom = mma_sync((16, 8, 64), "e2m1", kind="mxf4")
    >>> selectors(atom, "SFA"), selectors(atom, "SFB")
    (((0, 2), (0, 1)), ((0, 2), (0, 1, 2, 3)))
    """
    copies, factors = atom.layout(_scales(atom, operand))[0].nullspace(), atom.tile_of(operand)[1]
    return tuple(range(0, REGISTER_BYTES - factors + 1, factors)), tuple(range(copies.size))


def provider(
    atom: MmaAtom, operand: str, row: int, block: int, byte_id: int = 0, thread_id: int = 0
) -> tuple[int, int]:
    """(lane, byte of its register) of the factor of a row and K block.

    Raises AtomError for selectors that PTX leaves undefined, and for a factor that is not there.

    >>> from layoutgemm.atoms import mma_sync
    >>> provider(mma_sync((16, 8, 64), "e2m1", kind="mxf4"), "SFA", row=9, block=1, byte_id=2, thread_id=1)
    (7, 3)
    """
    bytes_allowed, threads_allowed = selectors(atom, operand)
    if byte_id not in bytes_allowed or thread_id not in threads_allowed:
        raise AtomError(
            f"{operand} of {atom.ptx} has byte-id in {bytes_allowed} and thread-id in {threads_allowed}, "
            f"not {{{byte_id}, {thread_id}}}"
        )
    rows, blocks = atom.tile_of(operand)
    if not (0 <= row < rows and 0 <= block < blocks):
        raise AtomError(f"{operand} of {atom.ptx} has {rows}x{blocks} factors, none at ({row}, {block})")
    lane, byte = atom.owner(operand)(row, block)
    return lane + atom.layout(operand)[0].nullspace()(thread_id), byte + byte_id


def _scales(atom: MmaAtom, operand: str) -> str:
    if atom.scale is None or operand not in ("SFA", "SFB") or atom.scale.dtype.bits != 8:
        raise AtomError(f"{atom.ptx} has no block scales {shown(operand)} in registers")
    return operand
