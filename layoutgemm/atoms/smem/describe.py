"""Descriptor words at a prompt: explained, or two of them compared."""

from __future__ import annotations

from ...arch import Arch
from ...arguments import checked
from ...dtypes import DType, bf16
from ...dtypes import dtype as dtype_of
from .bit_fields import FieldChange
from .descriptor_words import SmemDescriptor, smem_table
from .instruction_descriptor import TABLES, InstructionDescriptor, codes_of
from .tile import SWIZZLES


@checked()
def decode(word: int, arch: Arch | str = "sm_90a", kind: str | None = None) -> SmemDescriptor | InstructionDescriptor:
    """The fields of a word. It is a matrix descriptor of that architecture, or the instruction descriptor of a kind.

    Raises DescriptorError for bits outside every field and for values without meaning.

    >>> decode(0x4000004000010000).swizzle_name, decode(0x4000404000010000, "sm_100a").swizzle_name
    ('128B', '128B')
    >>> decode(0x8400490, kind="f16").m
    128
    """
    if kind is not None:
        return InstructionDescriptor.decode(word, kind)
    return SmemDescriptor.decode(word, arch)


@checked()
def describe(
    word: int,
    arch: Arch | str = "sm_90a",
    dtype: DType | str = bf16,
    kind: str | None = None,
    packing: str | None = None,
) -> str:
    """A word in full. Its fields, one by one, and for a matrix descriptor the layouts that it may mean.

    dtype  elements in which the layouts are counted
    kind   a kind of tcgen05.mma, for its 32-bit instruction descriptor

    The word does not hold the major, so both layouts are given.

    >>> print(describe(0x4000004000010040))
    0x4000004000010040
      [ 0,14) address         0x40  1024 bytes: start address in shared memory, bytes
      [16,30) leading_bytes    0x1    16 bytes: leading dimension byte offset
      [32,46) stride_bytes    0x40  1024 bytes: stride dimension byte offset
      [49,52) base_offset      0x0     0      : phase of the swizzle pattern at the start address
      [62,64) swizzle_mode     0x1  128B      : 0 none, 1 128B, 2 64B, 3 32B
    the word does not say which dimension is contiguous; the instruction does:
      K-major   S<3,4,3>[bytes] o ((8,m),64):((64,512),1) x bf16
      MN-major  S<3,4,3>[bytes] o ((64,m),(8,k)):((1,8),(64,512)) x bf16
    """
    found = decode(word, arch, kind)
    if isinstance(found, InstructionDescriptor):
        return found.explain()
    layouts = found.layouts(dtype_of(dtype), packing)
    head = "the word does not say which dimension is contiguous; the instruction does:"
    if len(layouts) == 1:
        head = "this swizzle has one major:"
    return "\n".join(
        [found.explain(), head, *(f"  {major + '-major':<9} {layout}" for major, layout in layouts.items())]
    )


@checked()
def diff(before: int, after: int, arch: Arch | str = "sm_90a", kind: str | None = None) -> tuple[FieldChange, ...]:
    """The fields in which two words differ, with what each change means in bytes. () for equal words.

    Neither word needs to be legal.

    >>> for change in diff(0x400000400000c840, 0x4000004000010840):  # a published word and the right one
    ...     print(change)
    leading_bytes: 0 -> 16 bytes (+16): leading dimension byte offset
    reserved: bits 14, 15, outside every field: 0xc000 -> 0x0
    >>> print(diff(0x4000004000010000, 0x8000002000010000)[1])
    swizzle_mode: 128B -> 64B: spans of 128 -> 64 bytes, chunks moved by S<3,4,3> -> S<2,4,3>
    """
    if kind is not None:
        codes_of(kind)
        return TABLES[kind].diff(before, after)
    table = smem_table(arch)
    field = table.by_name["swizzle_mode"]
    names = dict(field.choices)
    changes = []
    for change in table.diff(before, after):
        text = change.text
        if change.name == "swizzle_mode" and change.before in names and change.after in names:
            a, b = (SWIZZLES[names[value]] for value in (change.before, change.after))
            shown = " -> ".join(f"S<{','.join(map(str, mode.xor or ()))}>" for mode in (a, b))
            text = (
                f"swizzle_mode: {names[change.before]} -> {names[change.after]}: spans of {a.span} -> {b.span} bytes, "
                f"chunks moved by {shown}"
            )
        changes.append(FieldChange(change.name, change.before, change.after, text))
    return tuple(changes)
