"""The 32-bit word of tcgen05.mma: its shape, types and operand modes.

Shared-memory descriptors say where operands lie; this word says everything else. It holds M and N, the formats of A, B
and D, the MN-major ("transposed") operands, negation, saturation and sparsity. For the block-scaled kinds it holds the
format and the place of the scale factors. Its fields depend on the kind; kinds of one table share them.

The words agree with the CuTe DSL and with the documents; no hardware of that architecture has read them here.

Sources: PTX ISA, "Instruction descriptor" (the tables of fields), "Transpose and Negate operations";
cute/arch/mma_sm100_desc.hpp. Which types and shapes exist is the atoms' own table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...arguments import checked, having, settle, shown
from ...dtypes import DType, dtype
from ...errors import DescriptorError
from ...layouts.display import HasPicture
from ..mma.tcgen05 import KINDS, legal_m, legal_n
from .bit_fields import Field, FieldTable
from .tile import MAJORS, packing_of

_PTX = 'PTX ISA, "Instruction descriptor" of tcgen05; cute/arch/mma_sm100_desc.hpp'
_F8F6F4 = (("e4m3", 0), ("e5m2", 1), ("e2m3", 3), ("e3m2", 4), ("e2m1", 5))


@dataclass(frozen=True)
class Codes:
    """The numbers of types and modes in the word of one `.kind`. The types and modes are the table in mma_tcgen05.

    inputs, outputs   (type, code) of A and B, and of D; the words of block-scaled kinds do not say D's
    negate, saturate  whether the kind has it
    scales            (type, code) of the scale factors; empty where the kind has none
    scale_ids         legal values of the two scale factor ids
    padded            inputs narrower than a byte are padded to 16 bytes for 16 of them
    """

    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    negate: bool = True
    saturate: bool = False
    scales: tuple[tuple[str, int], ...] = ()
    scale_ids: tuple[int, ...] = ()
    padded: bool = False

    def packing(self, element: DType) -> str:
        """The storage of this type in shared memory for this kind."""
        if self.padded and element.bits < 8:
            return "b4x16_p64" if element.bits == 4 else "b6x16_p32"
        return packing_of(element)


_E8M0, _E4M3 = ("ue8m0", 1), ("ue4m3", 0)
CODES: dict[str, Codes] = {
    "f16": Codes((("f16", 0), ("bf16", 1)), (("f16", 0), ("f32", 1))),
    "tf32": Codes((("tf32", 2),), (("f32", 1),)),
    "f8f6f4": Codes(_F8F6F4, (("f16", 0), ("f32", 1)), padded=True),
    "i8": Codes((("u8", 0), ("i8", 1)), (("i32", 2),), negate=False, saturate=True),
    "mxf8f6f4": Codes(_F8F6F4, (), scales=(_E8M0,), scale_ids=(0, 1, 2, 3), padded=True),
    "mxf4": Codes((("e2m1", 1),), (), scales=(_E8M0,), scale_ids=(0, 2)),
    "mxf4nvf4": Codes((("e2m1", 1),), (), scales=(_E4M3, _E8M0), scale_ids=(0, 2)),
}


def _flag(name: str, low: int, meaning: str, off: str = "no", on: str = "yes") -> Field:
    return Field(name, low, 1, 0, meaning, ((0, off), (1, on)))


def _formats(name: str, low: int, width: int, meaning: str, formats: tuple[tuple[str, int], ...]) -> Field:
    return Field(name, low, width, 0, meaning, tuple((code, text) for text, code in formats))


def _table(name: str) -> FieldTable:
    """The fields of one kind's word."""
    kind = CODES[name]
    scaled = bool(kind.scales)
    # the E2M1-only kinds have two bits for B's format, the twelfth is reserved
    narrow = len(kind.inputs) == 1 and scaled
    fields: list[Field] = []
    if not scaled:
        fields.append(Field("sparsity_selector", 0, 2, 0, "which metadata a sparse A uses"))
    fields.append(_flag("sparse", 2, "A is 2:4 sparse"))
    if scaled:
        fields.append(Field("scale_b_id", 4, 2, 0, "where in its TMEM word B's scale factor lies"))
    else:
        fields.append(_flag("saturate", 3, "clamp an integer D"))
        fields.append(_formats("d_format", 4, 2, "type of D", kind.outputs))
    fields += [
        _formats("a_format", 7, 3, "type of A", kind.inputs),
        _formats("b_format", 10, 2 if narrow else 3, "type of B", kind.inputs),
        _flag("negate_a", 13, "use -A"),
        _flag("negate_b", 14, "use -B"),
        _flag("a_major", 15, "contiguous dimension of A", *MAJORS),
        _flag("b_major", 16, "contiguous dimension of B", *MAJORS),
        Field("n", 17, 6, 3, "N of the instruction"),
    ]
    if scaled:
        fields += [
            _formats("scale_format", 23, 1, "type of the scale factors", kind.scales),
            Field("m", 27, 2, 7, "M of the instruction"),
            Field("scale_a_id", 29, 2, 0, "where in its TMEM word A's scale factor lies"),
        ]
        if narrow:
            fields.append(_flag("k_96", 31, "K of a dense instruction (96: sm_103a)", "64", "96"))
    else:
        fields += [
            Field("m", 24, 5, 4, "M of the instruction"),
            Field("max_shift", 30, 2, 0, "reuse of B by .ws", ((0, "0"), (1, "8"), (2, "16"), (3, "32"))),
        ]
    return FieldTable(f"kind::{name}", 32, tuple(fields), _PTX)


TABLES: dict[str, FieldTable] = {name: _table(name) for name in CODES}


def codes_of(kind: str) -> Codes:
    """The codes of a kind; raises DescriptorError, listing the kinds, for another name."""
    if kind not in CODES:
        raise DescriptorError(f"tcgen05.mma has no kind {shown(kind)}; it has {', '.join(CODES)}")
    return CODES[kind]


@dataclass(frozen=True, slots=True)
class InstructionDescriptor(HasPicture):
    """The fields of one tcgen05 instruction descriptor; illegal combinations are refused when it is made.

    kind             "f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4" or "mxf4nvf4"
    m, n             of the instruction, over both blocks where two work together
    a, b, d          types of A, B and the accumulator
    a_major, b_major "K" or "MN"
    scale            type of the block scales; None where the kind has none
    scale_a_id, scale_b_id  which byte of a TMEM word holds the scale factor
    max_shift        elements, of the weight-stationary form: 0, 8, 16 or 32
    k_96             a dense instruction of K = 96 (sm_103a) rather than 64
    cta_group        1 or 2 blocks, which the word does not say; None accepts what either has
    weight_stationary  the .ws form, which the word does not say

    >>> word = InstructionDescriptor("f16", 128, 256, "bf16", "bf16", "f32").word
    >>> hex(word)
    '0x8400490'
    >>> InstructionDescriptor.decode(word, "f16").n
    256
    """

    kind: str
    m: int
    n: int
    a: DType
    b: DType
    d: DType
    a_major: str = "K"
    b_major: str = "K"
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    sparse: bool = False
    sparsity_selector: int = 0
    scale: DType | None = None
    scale_a_id: int = 0
    scale_b_id: int = 0
    max_shift: int = 0
    k_96: bool = False
    cta_group: int | None = None
    weight_stationary: bool = False

    def __post_init__(self) -> None:
        settle(self, DescriptorError)
        for name in ("a", "b", "d", "scale"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, dtype(value))
        kind = codes_of(self.kind)
        if self.scale is None and len(kind.scales) == 1:
            object.__setattr__(self, "scale", dtype(kind.scales[0][0]))
        problem = next(self._problems(kind), None)
        if problem is not None:
            raise DescriptorError(f"tcgen05.mma.kind::{self.kind} m{self.m} n{self.n}: {problem}")

    # ------------------------------------------------------------------------------------------------------ what exists
    def _problems(self, kind: Codes) -> Iterator[str]:
        entry = KINDS[self.kind]
        for name, element in (("A", self.a), ("B", self.b)):
            if element.name not in entry.types:
                yield f"{name} is {element}; the kind takes {', '.join(entry.types)}"
            outputs = entry.accumulators.get(element.name) or entry.accumulators[""]
            if self.d.name not in outputs:
                yield f"D is {self.d}; {element} accumulates in {' or '.join(outputs)}"
        if kind.scales and self.scale is None:
            yield f"its block scales are {' or '.join(text for text, _ in kind.scales)}: say which"
        if self.scale is not None and self.scale.name not in [text for text, _ in kind.scales]:
            legal = " or ".join(text for text, _ in kind.scales) or "none: the kind is not block-scaled"
            yield f"scale factors of {self.scale}; the kind takes {legal}"
        yield from self._operand_problems()
        yield from self._flag_problems(kind)
        yield from self._shape_problems()

    def _operand_problems(self) -> Iterator[str]:
        for name, major in (("A", self.a_major), ("B", self.b_major)):
            if major not in MAJORS:
                yield f"major of {name} is {shown(major)}; it is 'K' or 'MN'"
            if major == "MN" and not KINDS[self.kind].transposes:
                yield f"{name} is MN-major; the kind reads K-major operands only"

    def _flag_problems(self, kind: Codes) -> Iterator[str]:
        flags = ("negate_a", "negate_b", "saturate", "sparse", "k_96", "weight_stationary")
        for name in flags:
            if not isinstance(getattr(self, name), bool):
                yield f"{name} = {shown(getattr(self, name))} is neither True nor False"
        if (self.negate_a or self.negate_b) and not kind.negate:
            yield "the kind does not negate its operands"
        if self.saturate and not kind.saturate:
            yield "only integers saturate"
        # PTX ISA, "Layout of the Sparsity Metadata Matrix": 0 for kind::i8 and kind::f8f6f4.
        if self.sparsity_selector and (not self.sparse or self.kind not in ("f16", "tf32")):
            yield f"sparsity selector {self.sparsity_selector} without a sparse A of a kind that has one"
        for name in ("scale_a_id", "scale_b_id"):
            value = getattr(self, name)
            if value and value not in kind.scale_ids:
                legal = ", ".join(map(str, kind.scale_ids)) or "0: the kind is not block-scaled"
                yield f"{name} = {value}; the kind takes {legal}"
        if self.k_96 and (self.kind not in ("mxf4", "mxf4nvf4") or self.sparse):
            yield "K = 96 is for dense mxf4 and mxf4nvf4"
        if self.max_shift not in (0, 8, 16, 32) or (self.max_shift and kind.scales):
            yield f"a maximum shift of {self.max_shift}; the weight-stationary form takes 0, 8, 16 or 32"
        if self.weight_stationary and (kind.scales or self.cta_group == 2):
            yield "the weight-stationary form is for kinds without block scales and one block"
        if self.max_shift and not self.weight_stationary:
            yield f"a maximum shift of {self.max_shift} outside the weight-stationary form"
        if self.cta_group not in (None, 1, 2):
            yield f"cta_group is 1 or 2, not {shown(self.cta_group)}"

    def _shape_problems(self) -> Iterator[str]:
        groups = (1, 2) if self.cta_group is None else (self.cta_group,)
        answers = [self._shape_problem(group) for group in groups if group in (1, 2)]
        if answers and all(answers):
            yield "; ".join(dict.fromkeys(text for text in answers if text))

    def _shape_problem(self, group: int) -> str | None:
        """Why one or two blocks have no such M and N: PTX ISA, "Matrix Shape" and "8bit transpose B"."""
        ws = self.weight_stationary
        ms = legal_m(self.kind, group, 96 if self.k_96 else None, ws, self.sparse)
        ns = legal_n(self.kind, group, ws, self.sparse)
        if self.b_major == "MN" and self.b.bits <= 8:
            ns = tuple(n for n in ns if n % (16 * group) == 0)
        if self.m in ms and self.n in ns:
            return None
        shown = f"{ns[0]}, {ns[1]}, ..., {ns[-1]}" if len(ns) > 3 else ", ".join(map(str, ns))
        return f"{group} block(s) have M of {', '.join(map(str, ms))} and N of {shown}"

    # -------------------------------------------------------------------------------------------------------- the word
    @property
    def table(self) -> FieldTable:
        """The fields of this kind's word."""
        return TABLES[self.kind]

    @property
    def k(self) -> int:
        """Elements of K that one instruction consumes."""
        if self.k_96:
            return 96
        return KINDS[self.kind].k * (2 if self.sparse else 1)

    @property
    def word(self) -> int:
        """The 32-bit word."""
        kind = codes_of(self.kind)
        inputs, outputs, scales = dict(kind.inputs), dict(kind.outputs), dict(kind.scales)
        values = {
            "sparsity_selector": self.sparsity_selector,
            "sparse": int(self.sparse),
            "saturate": int(self.saturate),
            "d_format": outputs.get(self.d.name, 0),
            "a_format": inputs[self.a.name],
            "b_format": inputs[self.b.name],
            "negate_a": int(self.negate_a),
            "negate_b": int(self.negate_b),
            "a_major": MAJORS.index(self.a_major),
            "b_major": MAJORS.index(self.b_major),
            "n": self.n,
            "m": self.m,
            "max_shift": (0, 8, 16, 32).index(self.max_shift),
            "scale_format": scales[self.scale.name] if self.scale is not None else 0,
            "scale_a_id": self.scale_a_id,
            "scale_b_id": self.scale_b_id,
            "k_96": int(self.k_96),
        }
        return self.table.encode({name: values[name] for name in self.table.by_name})

    @classmethod
    @checked(DescriptorError)
    def decode(cls, word: int, kind: str) -> InstructionDescriptor:
        """Word and kind -> fields. Raises DescriptorError for reserved bits and for combinations that do not exist.

        The kind is in the instruction's name, not in the word: the same word means other types in another kind.
        """
        has = codes_of(kind)
        table = TABLES[kind]
        values = table.decode(word)
        labels = {name: table.by_name[name].label(value) for name, value in values.items()}
        return cls(
            kind,
            values["m"],
            values["n"],
            dtype(labels["a_format"]),
            dtype(labels["b_format"]),
            dtype(labels["d_format"] if has.outputs else KINDS[kind].accumulators[""][0]),
            a_major=labels["a_major"],
            b_major=labels["b_major"],
            negate_a=bool(values["negate_a"]),
            negate_b=bool(values["negate_b"]),
            saturate=bool(values.get("saturate", 0)),
            sparse=bool(values["sparse"]),
            sparsity_selector=values.get("sparsity_selector", 0),
            scale=dtype(labels["scale_format"]) if has.scales else None,
            scale_a_id=values.get("scale_a_id", 0),
            scale_b_id=values.get("scale_b_id", 0),
            max_shift=int(labels.get("max_shift", 0)),
            k_96=bool(values.get("k_96", 0)),
            # the shapes of the weight-stationary form are not those of the other, and the word does not tell them apart
            weight_stationary=not has.scales and (values["m"] == 32 or bool(values.get("max_shift", 0))),
        )

    def explain(self) -> str:
        """A table of the word's fields: bits, raw value, value, meaning.

        >>> print(InstructionDescriptor("mxf4", 128, 64, "e2m1", "e2m1", "f32").explain())
        0x08900480
          [ 2, 3) sparse           0x0    no      : A is 2:4 sparse
          [ 4, 6) scale_b_id       0x0     0      : where in its TMEM word B's scale factor lies
          [ 7,10) a_format         0x1  e2m1      : type of A
          [10,12) b_format         0x1  e2m1      : type of B
          [13,14) negate_a         0x0    no      : use -A
          [14,15) negate_b         0x0    no      : use -B
          [15,16) a_major          0x0     K      : contiguous dimension of A
          [16,17) b_major          0x0     K      : contiguous dimension of B
          [17,23) n                0x8    64      : N of the instruction
          [23,24) scale_format     0x1 ue8m0      : type of the scale factors
          [27,29) m                0x1   128      : M of the instruction
          [29,31) scale_a_id       0x0     0      : where in its TMEM word A's scale factor lies
          [31,32) k_96             0x0    64      : K of a dense instruction (96: sm_103a)
        """
        return self.table.explain(self.word)


def ptx_kind(ptx: str) -> str | None:
    """The kind in the name of a tcgen05 instruction, or None.

    >>> ptx_kind("tcgen05.mma.cta_group::1.kind::f8f6f4")
    'f8f6f4'
    """
    found = re.search(r"^tcgen05\.mma.*\.kind::(\w+)", ptx)
    return found.group(1) if found else None


def ptx_cta_group(ptx: str) -> int:
    """The number of blocks in the name of a tcgen05 instruction, 1 where it says none."""
    found = re.search(r"\.cta_group::([12])", ptx)
    return int(found.group(1)) if found else 1


@checked(DescriptorError)
def instruction_descriptor(atom: Any, a_major: str = "K", b_major: str = "K", **options: Any) -> InstructionDescriptor:
    """The instruction descriptor of a tcgen05 atom. Kind, form and blocks from its name, M, N and types from itself.

    atom     has ptx, shape_mnk, a_dtype, b_dtype, c_dtype and, for block-scaled kinds, scale.dtype (as MmaAtom has)
    options  the fields that an atom does not hold: negate_a, negate_b, saturate, scale_a_id, ...

    Raises DescriptorError when the atom is no tcgen05.mma, when a combination does not exist, or when the atom's K is
    not the one that the word implies.
    """
    having(atom, "atom", "a matrix atom, as tcgen05_mma makes", "ptx", "shape_mnk", "a_dtype", error=DescriptorError)
    kind = ptx_kind(atom.ptx)
    if kind is None:
        raise DescriptorError(f"{atom.ptx} is no tcgen05.mma of a kind: it has no instruction descriptor")
    m, n, k = atom.shape_mnk
    scale = getattr(atom, "scale", None)
    made = InstructionDescriptor(
        kind,
        m,
        n,
        atom.a_dtype,
        atom.b_dtype,
        atom.c_dtype,
        a_major=a_major,
        b_major=b_major,
        sparse=".sp" in atom.ptx,
        scale=None if scale is None else scale.dtype,
        k_96=k == 96,
        cta_group=ptx_cta_group(atom.ptx),
        weight_stationary=".ws" in atom.ptx,
        **options,
    )
    if made.k != k:
        raise DescriptorError(f"{atom.ptx} has K = {k}; the word of kind::{kind} means K = {made.k}")
    return made
