"""One tcgen05.mma as a PTX text, with its inputs and its exact result.

Where things lie in tensor memory is said here again, in the words of the PTX ISA, and not taken from the atoms.
"""

from __future__ import annotations

import numpy as np

from layoutgemm.atoms import smem_tile
from layoutgemm.atoms.smem.descriptor import derive
from layoutgemm.atoms.smem.instruction_descriptor import instruction_descriptor
from layoutgemm.atoms.smem.operand_read import operand_read
from layoutgemm.atoms.smem.tile import SPANS
from layoutgemm.emulator.machine.interpreter import Policy
from tests.emulator.ops.mma.test_wgmma import tile_bytes
from tests.emulator.run_ptx import Result, run
from tests.micro import tcgen05 as text_of
from tests.micro import values

EARLY = Policy(products="early")
STRICT = Policy(tensor_strict=True)


# ------------------------------------------------------------ where things lie, by the PTX ISA


def accumulator_place(atom, row, column):
    """(block, lane, column) of an element of D. Data path layouts A, B, D, E, F, G."""
    m, n, _ = atom.shape_mnk
    block, row = divmod(row, m // atom.cta_group)
    if m == 64 and not atom.ws:  # F
        return block, 32 * (row // 16) + row % 16, column
    parts = {(32, 1): 4, (64, 1): 2, (128, 2): 2}.get((m, atom.cta_group), 1)  # G, E, B
    part, column = divmod(column, n // parts)
    return block, 128 // parts * part + row, column


def a_places(atom, row, k):
    """(block, lane, column, bit) of an element of A, and of its copies."""
    m = atom.shape_mnk[0]
    bits = atom.a_dtype.bits
    if atom.kind in ("f8f6f4", "mxf8f6f4"):
        bits = max(bits, 8)
    block, row = divmod(row, m // atom.cta_group)
    lane = 32 * (row // 16) + row % 16 if m == 64 and not atom.ws else row
    low = 2 if atom.a_dtype.bits == 4 and bits == 8 else 0
    copies = {(128, 2): 2, (64, 1): 2 if atom.ws else 1, (32, 1): 4}.get((m, atom.cta_group), 1)
    lanes = [lane + 128 // copies * copy for copy in range(copies)]
    return [(block, at, k * bits // 32, k * bits % 32 + low) for at in lanes]


def scale_places(atom, operand: str, row, block, first: int):
    """(block of the pair, lane, column, byte) of a scale factor: one copy for each quarter of the lanes."""
    m, n, _ = atom.shape_mnk
    word, byte = divmod(first + block, 4)
    if operand == "A":
        owner, own = divmod(row, m // atom.cta_group)
        groups = m // atom.cta_group // 32
        return [(owner, 32 * q + own % 32, own // 32 + groups * word, byte) for q in range(4)]
    halves = 2 if (m, atom.cta_group) == (128, 2) else 1
    padded = -(-n // (32 * halves)) * 32
    half, own = divmod(row, padded)
    groups = padded // 32
    lanes = [32 * q + own % 32 for q in range(4)] if halves == 1 else [64 * half + 32 * q + own % 32 for q in (0, 1)]
    return [(g, lane, own // 32 + groups * word, byte) for g in range(atom.cta_group) for lane in lanes]


# What the 4 bits of a group say: the places of its two stored parts, the lower bits first.
PAIRS = {0b0100: (0, 1), 0b1000: (0, 2), 0b1100: (0, 3), 0b1001: (1, 2), 0b1101: (1, 3), 0b0110: (2, 1), 0b1110: (2, 3)}
SINGLE = {0b0100: (0,), 0b1110: (1,)}


def metadata_places(atom, row, group):
    """(block, lane, column, bit) of the 4 bits of a sparse A's group, with copies."""
    m = atom.shape_mnk[0]
    block, row = divmod(row, m // atom.cta_group)
    if atom.kind in ("f16", "tf32"):  # 16 rows in 16 lanes: rows 0..7 and 8..15 in halves of the word
        lane, column, bit = (
            16 * (row // 16) + row % 8 + 8 * (group // 4),
            0 * group,
            16 * (row // 8 % 2) + 4 * (group % 4),
        )
    else:
        lane, column, bit = row, group // 8, 4 * (group % 8)
    copies = {(64, 1): 2, (32, 1): 4}.get((m, atom.cta_group), 1)
    return [(block, lane + 128 // copies * copy, column, bit) for copy in range(copies)]


# ------------------------------------------------------------ one product


class Case:
    """One tcgen05.mma, its inputs and what it gives exactly.

    The image's columns: the accumulator, then A if it is in tensor memory, then the scale factors of A and of B. Those
    of a sparse A's metadata come last, 2 of 4, of which `selector` names one.
    """

    def __init__(self, atom, major_a="K", major_b="K", swizzle="128B", seed=0, ids=(0, 0), adds=True, mma="", **says):
        rng = np.random.default_rng(seed)
        self.atom, self.group = atom, atom.cta_group
        n = atom.shape_mnk[1]
        draw = {op: values.range_of(atom.dtype_of(op)) for op in "ABC"}
        self.m = {op: rng.integers(low, high + 1, size=atom.tile_of(op)) for op, (low, high) in draw.items()}
        self.tiles, self.inputs, self.stored = {}, {}, {"A": self.m["A"], "B": self.m["B"]}
        selector = says.get("sparsity_selector", 0)
        if atom.sparse:
            self.thin_out(rng)
        for operand, major in (("A", major_a), ("B", major_b)):
            if operand == "A" and atom.a_source == "tmem":
                continue
            self.shared(rng, operand, major, swizzle)
        d_columns = -(-n // 8) * 8
        self.at = {"D": 0, "A": d_columns, "SFA": d_columns + 16, "SFB": d_columns + 16 + 16}
        columns = d_columns + (16 if atom.a_source == "tmem" else 0)
        if atom.scale is not None:
            columns = d_columns + 48
        self.at["META"] = columns
        columns += 8 * atom.sparse
        self.image = np.full((self.group, 128, columns), 0x7FC0DEAD, dtype=np.uint32)
        self.bring_accumulator()
        if atom.a_source == "tmem":
            self.bring_a()
        self.scales = [None, None]
        if atom.scale is not None:
            self.bring_scales(rng, ids)
            says |= {"scale_a_id": ids[0], "scale_b_id": ids[1]}
        if atom.sparse:
            self.bring_metadata(selector)
        self.word = instruction_descriptor(atom, major_a, major_b, **says).word
        self.adds = adds
        self.body = self.instructions(mma)
        self.text = text_of.kernel(self.body, self.tiles, columns, self.group)

    def shared(self, rng, operand, major, swizzle) -> None:
        atom = self.atom
        read = operand_read(atom, operand)
        wide = SPANS.get(swizzle, 128) * 8 // (8 if read.packing.startswith("b") else read.dtype.bits)
        extent = (read.rows, max(read.depth, wide)) if major == "K" else (-(-read.rows // wide) * wide, read.depth)
        tile = smem_tile(extent, read.dtype, major, swizzle, read.packing)
        padded = smem_tile((read.rows * (extent[0] // read.rows), extent[1]), read.dtype, major, swizzle, read.packing)
        described = derive(padded, read, operand)
        rows = self.stored[operand].reshape(self.group, read.rows, read.depth)
        data = []
        for own in rows:
            matrix = np.vstack([own, np.zeros((tile.extent[0] - read.rows, read.depth), dtype=np.int64)])
            data.append(tile_bytes(rng, tile, 0, matrix))
        self.tiles[operand] = text_of.Tile(tile.bytes, described.word)
        self.inputs[operand] = np.stack(data)

    def bring_accumulator(self) -> None:
        bits = values.encode(self.atom.c_dtype, self.m["C"])
        self.image[accumulator_place(self.atom, *np.indices(bits.shape))] = bits

    def bring_a(self) -> None:
        bits = values.encode(self.atom.a_dtype, self.stored["A"])
        columns = slice(self.at["A"], self.at["A"] + 16)
        self.image[:, :, columns] = 0
        for block, lane, column, bit in a_places(self.atom, *np.indices(bits.shape)):
            where = (block, lane, self.at["A"] + column)
            np.bitwise_or.at(self.image, where, (bits << bit.astype(np.uint64)).astype(np.uint32))

    def thin_out(self, rng) -> None:
        """Leave half of A, and say where it is: `metadata` [row, group of K]."""
        single, per = self.atom.kind == "tf32", 2 if self.atom.kind in ("mxf4", "mxf4nvf4") else 1
        said = SINGLE if single else PAIRS
        whole = self.m["A"]
        parts = whole.reshape(len(whole), -1, 2 if single else 4, per)
        self.metadata = rng.choice(list(said), size=parts.shape[:2])
        places = np.array([said.get(bits, (0,)) for bits in range(16)] if single else
                          [said.get(bits, (0, 0)) for bits in range(16)])[self.metadata]  # fmt: skip
        stored = np.take_along_axis(parts, places[..., None], axis=2)
        self.m["A"] = np.zeros_like(parts)
        np.put_along_axis(self.m["A"], places[..., None], stored, axis=2)
        self.m["A"] = self.m["A"].reshape(whole.shape)
        self.stored["A"] = stored.reshape(len(whole), -1)

    def bring_metadata(self, selector: int) -> None:
        first = self.at["META"]
        self.image[:, :, first : first + 8] = 0
        for block, lane, column, bit in metadata_places(self.atom, *np.indices(self.metadata.shape)):
            where = (block, lane, first + selector + column)
            np.bitwise_or.at(self.image, where, (self.metadata << bit).astype(np.uint32))

    def bring_scales(self, rng, ids) -> None:
        vector = self.atom.scale.vector
        blocks = self.atom.shape_mnk[2] // vector
        self.image[:, :, self.at["SFA"] :] = 0
        for which, (operand, size) in enumerate(zip("AB", self.atom.shape_mnk)):
            factors = 2 ** rng.integers(0, 3, size=(size, blocks))
            self.scales[which] = factors
            codes = values.encode(self.atom.scale.dtype, factors)
            for owner, lane, column, byte in scale_places(self.atom, operand, *np.indices(codes.shape), ids[which]):
                where = (owner, lane, self.at["SF" + operand] + column)
                np.bitwise_or.at(self.image, where, (codes << (8 * byte).astype(np.uint64)).astype(np.uint32))

    def instructions(self, mma: str) -> list[str]:
        in_tmem = self.atom.a_source == "tmem"
        scaled = ", [%sfa], [%sfb]" if self.atom.scale is not None else ""
        sparse = "[%at], " if self.atom.sparse else ""
        name = mma or self.atom.ptx
        return [
            f"mov.u32 %idesc, {self.word:#x};",
            "mov.b32 %d, %base;",
            *(
                f"add.u32 %{to}, %base, {self.at[of]};"
                for to, of in (("a", "A"), ("sfa", "SFA"), ("sfb", "SFB"), ("at", "META"))
            ),
            f"setp.{'eq' if self.adds else 'ne'}.u32 %add, 0, 0;",
            f"{name} [%d], {'[%a]' if in_tmem else '%descA'}, %descB, {sparse}%idesc{scaled}, %add;",
            *text_of.commit(self.group),
        ]

    def run(self, text: str | None = None, policy: Policy | None = None) -> Result:
        buffers = {"T": self.image.copy(), **{name: data.copy() for name, data in self.inputs.items()}}
        return run(text or self.text, buffers, block=128, grid=self.group, cluster=self.group, policy=policy)

    def result(self, found: Result):
        bits = found["T"][accumulator_place(self.atom, *np.indices(self.m["C"].shape))].astype(np.uint64)
        return values.decode(self.atom.c_dtype, bits & np.uint64((1 << self.atom.c_dtype.bits) - 1))

    @property
    def exact(self):
        a, b = self.m["A"].astype(float), self.m["B"].astype(float)
        if self.scales[0] is not None:
            a = a * np.repeat(self.scales[0], self.atom.scale.vector, axis=1)
            b = b * np.repeat(self.scales[1], self.atom.scale.vector, axis=1)
        return a @ b.T + (self.m["C"] if self.adds else 0)

    def check(self, policy: Policy | None = None) -> None:
        found = self.run(policy=policy)
        assert found.findings == []
        assert np.array_equal(self.result(found), self.exact)


def only(found: Result, kind: str, says: str) -> None:
    assert found.kinds and set(found.kinds) == {kind}, found.findings
    assert any(says in finding.message for finding in found.findings), found.findings
