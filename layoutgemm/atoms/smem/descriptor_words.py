"""The fields of the 64-bit words for shared-memory operands of wgmma (sm_90a) and tcgen05 (sm_100a).

The two words are alike but no word is legal in both: sm_100a has the constant 1 in bits 46 to 48, where sm_90a has
zeros. The swizzle modes have other numbers (128B is 1 and 2, 64B is 2 and 4) because the field of sm_100a begins one
bit lower. So in the word the modes that both have are the same bits. The numbers are neither's of the tensor maps.

The sm_90a words were checked on an H200. The sm_100a words agree with the CuTe DSL and with the documents; no hardware
of that architecture has read them here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...arch import Arch, arch
from ...arguments import checked, settle
from ...dtypes import DType, bf16
from ...dtypes import dtype as dtype_of
from ...errors import DescriptorError
from ...layouts.display import HasPicture
from .bit_fields import Field, FieldTable
from .canonical_layouts import canonical_notation
from .tile import MAJORS, SWIZZLES, packing_of

_COMMON = (
    Field("address", 0, 14, 4, "start address in shared memory, bytes", unit="bytes"),
    Field("leading_bytes", 16, 14, 4, "leading dimension byte offset", unit="bytes"),
    Field("stride_bytes", 32, 14, 4, "stride dimension byte offset", unit="bytes"),
)
_BASE_OFFSET = Field("base_offset", 49, 3, 0, "phase of the swizzle pattern at the start address")


def _swizzle(low: int, width: int, modes: tuple[tuple[int, str], ...]) -> Field:
    return Field("swizzle_mode", low, width, 0, ", ".join(f"{number} {name}" for number, name in modes), modes)


SM90 = FieldTable(
    "sm_90",
    64,
    (
        *_COMMON,
        _BASE_OFFSET,
        _swizzle(62, 2, ((0, "none"), (1, "128B"), (2, "64B"), (3, "32B"))),
    ),
    'PTX ISA, "Matrix Descriptor Format" of wgmma; cute/arch/mma_sm90_desc.hpp',
)
SM100 = FieldTable(
    "sm_100",
    64,
    (
        *_COMMON,
        Field("version", 46, 3, 0, "constant 0b001", ((1, "1"),)),
        _BASE_OFFSET,
        Field(
            "leading_mode",
            52,
            1,
            0,
            "leading offset: 0 relative, 1 an absolute address (sm_103a)",
            ((0, "rel"), (1, "abs")),
        ),
        _swizzle(61, 3, ((0, "none"), (1, "128B_ATOM_32B"), (2, "128B"), (4, "64B"), (6, "32B"))),
    ),
    'PTX ISA, "Shared memory descriptor" of tcgen05; cute/arch/mma_sm100_desc.hpp',
)
SM90_FIELDS = SM90.fields
# Shared addresses have 18 bits in a descriptor: bits above name the block of the cluster and must not reach a field.
ADDRESS_MASK = (1 << (SM90_FIELDS[0].width + SM90_FIELDS[0].shift)) - 1


def smem_table(arch_: Arch | str) -> FieldTable:
    """The fields of the architecture's matrix descriptor; raises DescriptorError where it has none."""
    facts = arch(arch_)
    if "wgmma" in facts.features:
        return SM90
    if "tcgen05" in facts.features:
        return SM100
    raise DescriptorError(f"{facts.name} has no matrix descriptors: its tensor cores take registers")


@dataclass(frozen=True, slots=True)
class SmemDescriptor(HasPicture):
    """The fields of one shared-memory matrix descriptor, in bytes.

    swizzle_name  a mode that the architecture has
    leading_mode  1: the leading offset is an absolute address. PTX has this for sm_103a alone: operands of 48 bytes
                  along K go on there at the end of a 128-byte line. `element_bits` reads it; nothing derives it
    arch          "sm_90a" or "sm_100a": which word

    >>> d = SmemDescriptor(swizzle_name="128B", stride_bytes=1024, leading_bytes=16)
    >>> hex(d.word), hex(d.at(0x8400).word)
    ('0x4000004000010000', '0x4000004000010840')
    >>> hex(SmemDescriptor("128B", 1024, 16, arch="sm_100a").word)
    '0x4000404000010000'
    >>> SmemDescriptor.decode(0x4000004000010840) == d.at(0x8400)
    True
    """

    swizzle_name: str
    stride_bytes: int
    leading_bytes: int
    base_offset: int = 0
    address: int = 0
    leading_mode: int = 0
    arch: str = "sm_90a"

    def __post_init__(self) -> None:
        settle(self, DescriptorError)

    @property
    def table(self) -> FieldTable:
        """The fields of this architecture's word."""
        return smem_table(self.arch)

    def _values(self) -> dict[str, int]:
        table = self.table
        values = {
            "address": self.address,
            "leading_bytes": self.leading_bytes,
            "stride_bytes": self.stride_bytes,
            "base_offset": self.base_offset,
            "swizzle_mode": table.by_name["swizzle_mode"].value(self.swizzle_name),
        }
        if "version" in table.by_name:
            return values | {"version": 1, "leading_mode": self.leading_mode}
        if self.leading_mode:
            raise DescriptorError(f"the {table.name} descriptor has no leading_mode")
        return values

    @property
    def word(self) -> int:
        """The 64-bit word. Raises DescriptorError when a field does not fit or the architecture lacks the swizzle."""
        return self.table.encode(self._values())

    @checked(DescriptorError)
    def at(self, address: int) -> SmemDescriptor:
        """The same descriptor starting at a shared-memory byte address, a multiple of 16 below 2**18."""
        return replace(self, address=address)

    @classmethod
    @checked(DescriptorError)
    def decode(cls, word: int, arch: Arch | str = "sm_90a") -> SmemDescriptor:
        """Word -> fields. Raises DescriptorError when a bit outside every field is set or a value has no meaning.

        >>> SmemDescriptor.decode(0x400000400000c840)
        Traceback (most recent call last):
        ...
        layoutgemm.errors.DescriptorError: 0x400000400000c840 sets bits 14, 15, outside the sm_90 fields
        >>> SmemDescriptor.decode(0x4000404000010000, "sm_100a").swizzle_name
        '128B'
        """
        table = smem_table(arch)
        values = table.decode(word)
        values.pop("version", None)
        name = table.by_name["swizzle_mode"].label(values.pop("swizzle_mode"))
        return cls(name, arch=arch if isinstance(arch, str) else arch.name, **values)

    @checked(DescriptorError)
    def canonical(self, major: str, dtype: DType | str = bf16, packing: str | None = None) -> str:
        """The layout that the word says, for one major, in CuTe's notation: `canonical_notation`.

        The word does not hold the major: wgmma takes it as an immediate, tcgen05 from the instruction descriptor.

        >>> SmemDescriptor("128B", 1024, 16).canonical("K")
        'S<3,4,3>[bytes] o ((8,m),64):((64,512),1) x bf16'
        """
        element = dtype_of(dtype)
        return canonical_notation(
            major, self.swizzle_name, element, packing_of(element, packing), self.leading_bytes, self.stride_bytes
        )

    @checked(DescriptorError)
    def layouts(self, dtype: DType | str = bf16, packing: str | None = None) -> dict[str, str]:
        """major -> canonical layout, for each major that the swizzle has. Which one is meant the word does not say."""
        majors = MAJORS if SWIZZLES[self.swizzle_name].rows == 8 else ("MN",)
        return {major: self.canonical(major, dtype, packing) for major in majors}

    @checked(DescriptorError)
    def explain(self, reasons: dict[str, str] | None = None) -> str:
        """A table of the word's fields. Bits, raw value, what the value means, and why where reasons are told.

        >>> print(SmemDescriptor("128B", 1024, 16).explain())
        0x4000004000010000
          [ 0,14) address          0x0     0 bytes: start address in shared memory, bytes
          [16,30) leading_bytes    0x1    16 bytes: leading dimension byte offset
          [32,46) stride_bytes    0x40  1024 bytes: stride dimension byte offset
          [49,52) base_offset      0x0     0      : phase of the swizzle pattern at the start address
          [62,64) swizzle_mode     0x1  128B      : 0 none, 1 128B, 2 64B, 3 32B
        """
        return self.table.explain(self.word, reasons)
