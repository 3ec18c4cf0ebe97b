"""The bridge's instructions of the Ampere kernels: cp.async of any width, ldmatrix, stores.

    library object                    function here               instruction
    ------------------------------    -----------------------     ------------------------------------------------
    CopyAtom cp_async(16, 8, 4)       copy_bytes                  cp.async.cg / .ca, zeros beyond the valid bytes
    Sm80PackedOperand.chunk           copy_chunk                  cp.async.cg of 16 bytes, by some threads
    CopyAtom ldmatrix(4)              load_fragment               ldmatrix.sync.aligned.m8n8.x4(.trans)
    the same of padded elements       load_padded                 ldmatrix.sync.aligned.m8n16.x4...b8x16
    CopyAtom store_global(...)        store_vector                st.global of 4, 8 or 16 bytes

Sources: PTX ISA, "cp.async", "ldmatrix", "ld", "st".
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Int8, Int16, Int32, Int64
from cutlass.experimental import primitives

from ...atoms import CopyAtom
from .types import assembly, raw


def copy_bytes(destination: cute.Pointer, address: Int64, size: int, valid: Int32) -> None:
    """cp.async of 16, 8 or 4 bytes. The first `valid` (0 to `size`) are read, the others become zeros."""
    source = cute.make_ptr(Int8, address, cute.AddressSpace.gmem, assumed_align=size)
    cache = primitives.LoadCacheModifier.CG if size == 16 else primitives.LoadCacheModifier.CA
    primitives.cp_async_shared_global(raw(destination), raw(source), size, cache, cp_size=valid)


def copy_chunk(destination: cute.Pointer, address: Int64, valid: Int32, there: Boolean) -> None:
    """cp.async of 16 bytes by the threads for which `there` is true. The first `valid` are read, others are zeros."""
    assembly(
        "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p cp.async.cg.shared.global [$0], [$1], 16, $2; }",
        "r,l,r,r,~{memory}",
        [Int32(destination.toint()), Int64(address), Int32(valid), Int32(there)],
    )


def select_word(condition: Boolean, chosen: Int64, other: Int64) -> Int64:
    """selp of 64 bits. Of two kernel parameters the compiler would load one at a selected address, a lane each."""
    text = "{ .reg .pred p; setp.ne.b32 p, $1, 0; selp.b64 $0, $2, $3, p; }"
    return assembly(text, "=l,r,l,l", [Int32(condition), Int64(chosen), Int64(other)], (Int64,), pure=True)[0]


def load_fragment(address: cute.Pointer, transpose: bool) -> list[Int32]:
    """ldmatrix.x4: four registers; `address` is that of the lane's row."""
    order = primitives.MMALayout.COL if transpose else primitives.MMALayout.ROW
    words = primitives.ldmatrix(raw(address), 4, order)
    return [words[i] for i in range(4)]


def load_padded(address: cute.Pointer, matrices: CopyAtom) -> list[Int32]:
    """ldmatrix.x4 of padded elements, each in a byte's low bits. `address`: the lane's row."""
    text = f"{matrices.ptx} {{$0, $1, $2, $3}}, [$4];"
    return assembly(text, "=r,=r,=r,=r,r,~{memory}", [Int32(address.toint())], (Int32,) * 4)


def permute(low: Int32, high: Int32, selector: Int32) -> Int32:
    """prmt: four of the eight bytes of two registers, as the selector's four digits say."""
    operands = [Int32(value) for value in (low, high, selector)]
    return assembly("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", operands, (Int32,), pure=True)[0]


def load_word(address: cute.Pointer) -> Int32:
    """ld.shared of 32 bits, aligned to them. Without that promise the compiler loads bytes."""
    pointer = cute.make_ptr(Int32, address.toint(), cute.AddressSpace.smem, assumed_align=4)
    return cute.make_tensor(pointer, cute.make_layout(1))[0]


def load_words(address: cute.Pointer, count: int) -> list[Int32]:
    """ld.shared of one, two or four words, aligned to all of them."""
    vector = "" if count == 1 else f".v{count}"
    names = ", ".join(f"${i}" for i in range(count))
    return assembly(
        f"ld.shared{vector}.b32 {'{' + names + '}' if count > 1 else names}, [${count}];",
        ",".join(["=r"] * count + ["r", "~{memory}"]),
        [Int32(address.toint())],
        (Int32,) * count,
    )


def load_vector(address: Int64, count: int) -> list[Int32]:
    """ld.global of two or four 32-bit words, aligned to their total size."""
    names = ", ".join(f"${i}" for i in range(count))
    return assembly(
        f"ld.global.v{count}.b32 {{{names}}}, [${count}];",
        ",".join(["=r"] * count + ["l", "~{memory}"]),
        [Int64(address)],
        (Int32,) * count,
    )


def store_vector(address: Int64, words: Sequence[Int32]) -> None:
    """st.global of one, two or four 32-bit registers, aligned to their total size."""
    vector = "" if len(words) == 1 else f".v{len(words)}"
    names = ", ".join(f"${i + 1}" for i in range(len(words)))
    assembly(
        f"st.global{vector}.b32 [$0], {'{' + names + '}' if len(words) > 1 else names};",
        ",".join(["l"] + ["r"] * len(words) + ["~{memory}"]),
        [Int64(address), *map(Int32, words)],
    )


def store_part(address: Int64, word: Int32, part: int, bits: int) -> None:
    """st.global of one element of 32, 16 or 8 bits, the `part`-th of a register."""
    kind = {32: Int32, 16: Int16, 8: Int8}[bits]
    value = word if bits == 32 else kind(word >> (part * bits))
    pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=bits // 8)
    cute.make_tensor(pointer, cute.make_layout(1))[0] = value


def load_element(address: Int64, inside: Boolean, bits: int) -> Int32:
    """ld.global of one element of 32, 16 or 8 bits, as an Int32. Bits above are zeros; not inside it is 0, without an
    access."""
    return assembly(
        f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.u{bits} $0, [$1]; }}",
        "=&r,l,r",
        [Int64(address), Int32(inside)],
        (Int32,),
    )[0]
