"""Operand reads of instructions: one instruction's part, and the layouts that the hardware reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...arguments import checked, having, shown
from ...dtypes import DType
from ...dtypes import dtype as dtype_of
from ...errors import DescriptorError
from ..mma.tcgen05 import KINDS
from .instruction_descriptor import codes_of, ptx_cta_group, ptx_kind
from .tile import ATOM_ROWS, packing_of, slot_bits, swizzle_mode


@dataclass(frozen=True, slots=True)
class OperandRead:
    """One operand of one tensor-core instruction, as a descriptor hands it over.

    name         "A" or "B"
    rows, depth  elements along M (or N) and along K that one instruction reads from one block's shared memory
    dtype        element type
    packing      how shared memory holds elements narrower than a byte
    majors       which dimension may be contiguous
    arch         "sm_90a" or "sm_100a"
    family       "wgmma" or "tcgen05"
    text         how errors call the instruction
    """

    name: str
    rows: int
    depth: int
    dtype: DType
    packing: str
    majors: tuple[str, ...]
    arch: str
    family: str
    text: str

    @checked(DescriptorError)
    def objection(self, major: str, swizzle_name: str) -> str | None:
        """Why the instruction cannot read a layout of that major and swizzle, whatever its strides. None if it can.

        The majors are the instruction's own. Sources of the rest: PTX ISA, "Transpose and Negate operations" and "Valid
        Combinations of Type-Size, Major-ness and Swizzling" of tcgen05. (That table lists MN-major operands of 8 bits
        and more; CUTLASS has 4- and 6-bit ones too, in kind f8f6f4, where they lie in 8-bit slots.)
        """
        mode = swizzle_mode(swizzle_name)
        if self.family not in mode.readers:
            readers = " and ".join(mode.readers) or "no tensor core"
            return f"swizzle {swizzle_name} is read by {readers}"
        if major not in self.majors:
            why = ": wgmma transposes f16 and bf16 alone" if self.family == "wgmma" else ""
            return f"the instruction reads {' or '.join(self.majors)}-major {self.dtype} operands only{why}"
        if major == "K":
            return None if mode.rows == ATOM_ROWS else f"swizzle {swizzle_name} exists for MN-major operands only"
        wide = slot_bits(self.dtype, self.packing) == 32
        if self.family == "tcgen05" and wide != (swizzle_name == "128B_ATOM_32B"):
            need = "only with" if wide else "with every swizzle but"
            return f"tcgen05 reads MN-major operands of {self.dtype.bits} bits {need} 128B_ATOM_32B"
        return None


@checked(DescriptorError)
def operand_read(atom: Any, operand: str) -> OperandRead:
    """The read of operand "A" or "B" by a matrix atom through a descriptor.

    Of an operand of two tcgen05 blocks each block's descriptor says one half. Raises DescriptorError for an operand
    that is not in shared memory, and for an instruction without descriptors.

    >>> from layoutgemm.atoms import wgmma
    >>> read = operand_read(wgmma(96), "B")
    >>> read.rows, read.depth, read.arch
    (96, 16, 'sm_90a')
    """
    if isinstance(atom, OperandRead):
        if atom.name != operand:
            raise DescriptorError(f"{atom.text} is operand {atom.name}; operand {shown(operand)} was asked for")
        return atom
    if operand not in ("A", "B"):
        raise DescriptorError(f"a descriptor hands over operand A or B, not {shown(operand)}")
    having(atom, "atom", "a matrix atom, as wgmma makes", "ptx", "a_source", "tile_of", error=DescriptorError)
    source = atom.a_source if operand == "A" else atom.b_source
    if source != "smem":
        raise DescriptorError(f"operand {operand} of {atom} is in {source}: no shared-memory descriptor names it")
    rows, depth = atom.tile_of(operand)
    element, majors = (atom.a_dtype, atom.a_majors) if operand == "A" else (atom.b_dtype, atom.b_majors)
    text = f"operand {operand} of {atom}"
    if atom.ptx.startswith("wgmma"):
        return OperandRead(operand, rows, depth, element, packing_of(element), majors, "sm_90a", "wgmma", text)
    kind = ptx_kind(atom.ptx)
    if kind is None:
        raise DescriptorError(f"{atom} takes no shared-memory descriptor; wgmma and tcgen05.mma do")
    blocks = ptx_cta_group(atom.ptx)
    # a 2:4 sparse A stores half of its K
    stored = depth // 2 if ".sp" in atom.ptx and operand == "A" else depth
    packing = codes_of(kind).packing(element)
    return OperandRead(operand, rows // blocks, stored, element, packing, majors, "sm_100a", "tcgen05", text)


@checked(DescriptorError)
def tcgen05_read(kind: str, dtype: DType | str, rows: int, operand: str = "A", sparse: bool = False) -> OperandRead:
    """The read of one CTA's operand by tcgen05.mma of a kind, without an atom.

    rows    of the operand in this block: M or N, or half of it where two blocks work together
    sparse  is A 2:4 sparse: then a dense B is twice as deep

    >>> read = tcgen05_read("f8f6f4", "e2m3", 128)
    >>> read.depth, read.packing
    (32, 'b6x16_p32')
    """
    has, element = codes_of(kind), dtype_of(dtype)
    entry = KINDS[kind]
    if element.name not in entry.types:
        raise DescriptorError(f"kind::{kind} takes {', '.join(entry.types)}, not {element}")
    if operand not in ("A", "B"):
        raise DescriptorError(f"a descriptor hands over operand A or B, not {shown(operand)}")
    depth = entry.k * (2 if sparse and operand == "B" else 1)
    majors = ("K", "MN") if entry.transposes else ("K",)
    text = f"operand {operand} of tcgen05.mma.kind::{kind}"
    return OperandRead(operand, rows, depth, element, has.packing(element), majors, "sm_100a", "tcgen05", text)
