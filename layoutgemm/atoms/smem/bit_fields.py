"""Words of bit fields as data. One table of fields gives encoding, decoding, explanation and difference.

Every word that a tensor core instruction takes is a `FieldTable`: matrix descriptors of two architectures, instruction
descriptors of seven kinds. Nothing else in the package shifts or masks a descriptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...arguments import as_int, settle, shown
from ...errors import DescriptorError


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a word. Its bits [low, low + width), and how many low bits of its value are dropped.

    meaning   what the value says
    choices   (value, name) of every legal value, where the field is an enumeration; empty where it is a number
    unit      what a number counts, as in "bytes"
    """

    name: str
    low: int
    width: int
    shift: int
    meaning: str
    choices: tuple[tuple[int, str], ...] = ()
    unit: str = ""

    @property
    def mask(self) -> int:
        """The field's bits in the word."""
        return ((1 << self.width) - 1) << self.low

    def encode(self, value: int) -> int:
        """Value -> its bits in place. Raises DescriptorError when the value does not fit or loses bits."""
        value = as_int(value, self.name, DescriptorError)
        if value < 0 or value % (1 << self.shift) or value >> self.shift >= 1 << self.width:
            raise DescriptorError(
                f"{self.name} = {value} does not fit: it must be a multiple of {1 << self.shift} from 0 to "
                f"{((1 << self.width) - 1) << self.shift}"
            )
        self.label(value)
        return (value >> self.shift) << self.low

    def decode(self, word: int) -> int:
        """Word -> the field's value."""
        return ((word >> self.low) & ((1 << self.width) - 1)) << self.shift

    def label(self, value: int) -> str:
        """The name of a value, or its digits. Raises DescriptorError for a value that is not among the choices."""
        if not self.choices:
            return str(value)
        for number, name in self.choices:
            if number == value:
                return name
        legal = ", ".join(f"{number} {name}" for number, name in self.choices)
        raise DescriptorError(f"{self.name} = {value} has no meaning; it is one of {legal}")

    def value(self, label: str) -> int:
        """The value of a name; raises DescriptorError when no choice has it."""
        for number, name in self.choices:
            if name == label:
                return number
        raise DescriptorError(
            f"{self.name} has no value {shown(label)}; it has {', '.join(n for _, n in self.choices)}"
        )


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field in which two words differ. Both values, by number and by name, and what the change means."""

    name: str
    before: int
    after: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class FieldTable:
    """The fields of one kind of word, in order of their bits. Every bit outside them is zero.

    name    as errors call it, as in "sm_90"
    bits    width of the word
    source  where the table can be read
    """

    name: str
    bits: int
    fields: tuple[Field, ...]
    source: str

    def __post_init__(self) -> None:
        settle(self, DescriptorError)
        taken = 0
        for field in self.fields:
            if taken & field.mask or field.low + field.width > self.bits:
                raise DescriptorError(f"{self.name}: field {field.name} overlaps another or the end of the word")
            taken |= field.mask

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """name -> field."""
        return {field.name: field for field in self.fields}

    def encode(self, values: Mapping[str, int]) -> int:
        """Values of all fields -> word; raises DescriptorError naming the field that does not fit."""
        if set(values) != set(self.by_name):
            raise DescriptorError(f"{self.name}: values for {sorted(values)}, fields are {sorted(self.by_name)}")
        return sum(field.encode(values[field.name]) for field in self.fields)

    def stray(self, word: int) -> tuple[int, ...]:
        """The bits of the word that are set outside every field."""
        rest = as_int(word, f"a word of {self.name}", DescriptorError)
        if not 0 <= rest < 1 << self.bits:
            raise DescriptorError(f"{rest:#x} is no {self.bits}-bit word")
        for field in self.fields:
            rest &= ~field.mask
        return tuple(i for i in range(self.bits) if rest >> i & 1)

    def decode(self, word: int) -> dict[str, int]:
        """Word -> values. Raises DescriptorError for a bit outside the fields or a value that has no meaning."""
        stray = self.stray(word)
        if stray:
            listed = ", ".join(map(str, stray))
            raise DescriptorError(f"{word:#x} sets bits {listed}, outside the {self.name} fields")
        values = {field.name: field.decode(word) for field in self.fields}
        for field in self.fields:
            field.label(values[field.name])
        return values

    def explain(self, word: int, reasons: Mapping[str, str] | None = None) -> str:
        """A table of the word's fields. Bits, raw value, value, meaning and, where told, why it has that value."""
        values = self.decode(word)
        wide = max(13, *(len(field.name) for field in self.fields))
        lines = [f"{word:#0{self.bits // 4 + 2}x}"]
        for field in self.fields:
            value = values[field.name]
            why = (reasons or {}).get(field.name)
            lines.append(
                f"  [{field.low:2},{field.low + field.width:2}) {field.name:<{wide}} {value >> field.shift:#6x} "
                f"{field.label(value):>5} {field.unit:<5}: {field.meaning}" + (f"; {why}" if why else "")
            )
        return "\n".join(lines)

    def diff(self, before: int, after: int) -> tuple[FieldChange, ...]:
        """The fields in which two words differ, in order of their bits, strays last. () for equal words.

        Neither word needs to be legal: this is the tool for looking at one that is not.
        """
        changes = []
        for field in self.fields:
            a, b = field.decode(before), field.decode(after)
            if a == b:
                continue
            shown = " -> ".join(_shown(field, value) for value in (a, b))
            by = f" {field.unit} ({b - a:+d})" if field.unit else ""
            changes.append(FieldChange(field.name, a, b, f"{field.name}: {shown}{by}: {field.meaning}"))
        a, b = (sum(1 << i for i in self.stray(word)) for word in (before, after))
        if a != b:
            bits = ", ".join(str(i) for i in range(self.bits) if (a ^ b) >> i & 1)
            changes.append(
                FieldChange("reserved", a, b, f"reserved: bits {bits}, outside every field: {a:#x} -> {b:#x}")
            )
        return tuple(changes)


def _shown(field: Field, value: int) -> str:
    try:
        return field.label(value)
    except DescriptorError:
        return f"{value} (no meaning)"
