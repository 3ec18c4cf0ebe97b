"""Stands in for a GPU when benchmarks/verify_atoms.py is tested: runs its kernels by the formulas that PTX prints.

Fragments are read and written where `ptx_fragments.place` says, shared memory where the hardware's descriptor
arithmetic says; nothing here looks at an atom's layouts. It knows the one instruction of a kernel and no more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from layoutgemm.atoms import MmaAtom, atoms
from layoutgemm.atoms.smem.descriptor import element_addresses
from layoutgemm.dtypes import DType
from tests.atoms.mma.ptx_fragments import place
from tests.micro import values

CODES = range(-4, 5)


def decoded(dtype: DType, bits: Any) -> Any:
    """Raw bits -> small integers, by the table of their encodings; accumulators by their format."""
    if dtype.name in ("f32", "f64", "f16", "i32"):
        return values.decode(dtype, bits)
    table = {}
    for value in CODES:
        try:
            table[values.encode_one(dtype, value)] = value
        except ValueError:
            continue
    out = np.full(bits.shape, np.nan)
    for code, value in table.items():
        out[bits == code] = value
    return out


class ModelGpu:
    ptx_version = (8, 8)

    def __init__(self, target: str) -> None:
        self.target = target
        self.atoms = {(a.ptx, a.a_source): a for a in atoms(target) if isinstance(a, MmaAtom)}

    def load(self, text: str) -> str:
        return text

    def unload(self, module: str) -> None:
        pass

    def reopen(self) -> None:
        pass

    def launch(
        self, text: str, name: str, grid: int, block: int, inputs: Sequence[Any], outputs: Sequence[int],
        order: Sequence[int] | None = None,
    ) -> list[Any]:  # fmt: skip
        called = re.search(r"((?:mma\.sync|wgmma\.mma_async)\S+) (\{.*);", text)
        assert called is not None
        atom = self.atoms[called[1], "smem" if "%descA" in called[2] else "rmem"]
        sides: dict[str, Any] = {}
        for operand, data in zip("ABC", inputs):
            in_smem = operand != "C" and f"%desc{operand}" in called[2]
            sides[operand] = self.shared(text, atom, operand, data) if in_smem else self.read(atom, operand, data)
        a, b, c = sides["A"], sides["B"], sides["C"]
        if atom.scale is not None:
            chosen = [tuple(map(int, pair)) for pair in re.findall(r"\{(\d), (\d)\}", called[2])]
            a = a * np.repeat(self.scales(atom, "A", inputs[3], *chosen[0]), atom.scale.vector, axis=2)[:, None]
            b = b * np.repeat(self.scales(atom, "B", inputs[4], *chosen[1]), atom.scale.vector, axis=2)[:, None]
        if ".xor." in atom.ptx:
            product = (a[:, :, :, None, :] != b[:, :, None, :, :]).sum(-1)
        else:
            product = np.einsum("xpmk,xpnk->xpmn", a, b)
        total = np.nan_to_num(product + c, nan=-999)  # bits that are no small integer: garbage was read
        if atom.c_dtype.name == "i32":
            exact = total.astype(np.int64)
            total = np.clip(exact, -(2**31), 2**31 - 1) if "satfinite" in atom.ptx else exact.astype(np.int32)
        return [self.write(atom, total.astype(np.int64)).view(np.uint8).reshape(-1)]

    def positions(self, atom: MmaAtom, operand: str) -> tuple[Any, ...]:
        """Arrays over (product, lane, element): lane of the warp, row, column; element i is at bit i * width."""
        width, count = atom.element_bits(operand), atom.registers(operand) * 32 // atom.element_bits(operand)
        threads = 32 if atom.threads <= 32 else atom.threads
        products = 4 if atom.threads == 8 else 1
        lane, i = np.meshgrid(np.arange(threads), np.arange(count), indexing="ij")
        where = np.array([[place(atom, operand, t, x) for x in range(count)] for t in range(threads)])
        # a quad pair is the lanes with one value of lane // 4 % 4
        product = lane // 4 % 4 if products == 4 else 0 * lane
        return product, lane, i, where[..., 0], where[..., 1], width

    def read(self, atom: MmaAtom, operand: str, data: Any) -> Any:
        product, lane, i, row, column, width = self.positions(atom, operand)
        words = data.astype(np.uint64)
        low = 2 if width == 8 and atom.dtype_of(operand).name == "e2m1" else 0
        bits = words[:, lane, i * width // 32] >> (i * width % 32).astype(np.uint64)
        if width == 64:
            bits |= words[:, lane, i * 2 + 1] << np.uint64(32)
        else:
            bits &= np.uint64((1 << width) - 1)
        bits >>= np.uint64(low)
        rows, columns = atom.tile_of(operand)
        out = np.full((len(data), int(product.max()) + 1, rows, columns), np.nan)
        out[:, product, row, column] = decoded(atom.dtype_of(operand), bits)
        return out

    def write(self, atom: MmaAtom, matrices: Any) -> Any:
        product, lane, i, row, column, width = self.positions(atom, "D")
        bits = values.encode(atom.dtype_of("D"), matrices)[:, product, row, column]
        words = np.zeros((len(matrices), lane.shape[0], atom.registers("D")), dtype=np.uint64)
        for element in range(i.shape[1]):
            bit = element * width
            words[:, :, bit // 32] |= (bits[:, :, element] << np.uint64(bit % 32)) & np.uint64(0xFFFFFFFF)
            if width == 64:
                words[:, :, bit // 32 + 1] |= bits[:, :, element] >> np.uint64(32)
        return words.astype(np.uint32)

    def scales(self, atom: MmaAtom, operand: str, data: Any, byte_id: int, thread_id: int) -> Any:
        """PTX ISA, block scaling: one pair of each quad gives A's factors, one lane of it B's."""
        assert atom.scale is not None
        factors = atom.shape_mnk[2] // atom.scale.vector
        row = np.arange(16 if operand == "A" else 8)[:, None]
        lane = 4 * (row % 8) + (2 * thread_id + row // 8 if operand == "A" else thread_id)
        shift = 8 * (byte_id + np.arange(factors)[None, :])
        bits = data[:, lane, 0] >> shift & 0xFF
        return decoded(atom.scale.dtype, bits.astype(np.uint64))

    def shared(self, text: str, atom: MmaAtom, operand: str, data: Any) -> Any:
        word = re.search(rf"or.b64 %desc{operand}, %desc{operand}, (0x[0-9a-f]+);", text)
        step = re.search(rf"add.u32 %w, %s{operand}, (\d+);", text)
        assert word is not None and step is not None
        tail = re.search(r"%descB, %add(.*);", text)
        flags = [int(x) for x in tail[1].split(",")[1:]] if tail else []
        trans = flags[2:]  # imm-scale-a and imm-scale-b come first
        mine = trans[0 if operand == "A" else -1] if trans else 0
        dtype = atom.dtype_of(operand)
        extent = atom.tile_of(operand)
        first = element_addresses(int(word[1], 16) + (int(step[1]) >> 4), "MN" if mine else "K", extent, dtype)
        bits = np.zeros((len(data), *extent), dtype=np.uint64)
        for byte in range(dtype.bits // 8):
            bits |= data[:, first + byte].astype(np.uint64) << np.uint64(8 * byte)
        return decoded(dtype, bits)[:, None]
