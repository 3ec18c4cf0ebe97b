"""PTX text for one wgmma: bring the operands' bytes into shared memory as they are, run it once, store D's registers.

A block of 128 threads is one case. The tiles come as raw bytes in the order of their shared-memory layout; the
descriptor's constant bits and the byte offset of the K step are written into the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from layoutgemm.atoms import MmaAtom
from layoutgemm.atoms.smem.descriptor import ADDRESS_MASK, SM90_FIELDS
from tests.micro.mma_sync import PTX_VERSION, header


@dataclass(frozen=True)
class Tile:
    """An operand in shared memory: bytes of the tile, the descriptor at address 0, offset of the step, transposed."""

    bytes: int
    word: int
    step: int
    transposed: bool


def _fill(operand: str, tile: Tile, name: str) -> list[str]:
    """The CTA copies a tile from global to shared memory, a word at a time. The tile is its case's."""
    return [
        f"ld.param.u64 %g, [{name}_{operand}];",
        "cvta.to.global.u64 %g, %g;",
        f"mul.wide.u32 %o, %case, {tile.bytes};",
        "add.u64 %g, %g, %o;",
        "mul.wide.u32 %o, %lane, 4;",
        "add.u64 %g, %g, %o;",
        f"mov.u32 %s{operand}, {name}_smem{operand};",
        f"mad.lo.u32 %to, %lane, 4, %s{operand};",
        *fill_loop(operand, tile.bytes),
        *place_address(operand, f"%s{operand}", tile.step, tile.word),
    ]


def fill_loop(operand: str, size: int) -> list[str]:
    """128 threads copy `size` bytes from %g to %to, each its words; labels are the operand's."""
    return [
        "mul.lo.u32 %i, %lane, 4;",
        f"fill{operand}:",
        f"setp.ge.u32 %stop, %i, {size};",
        f"@%stop bra filled{operand};",
        "ld.global.b32 %w, [%g];",
        "st.shared.b32 [%to], %w;",
        "add.u64 %g, %g, 512;",
        "add.u32 %to, %to, 512;",
        "add.u32 %i, %i, 512;",
        f"bra fill{operand};",
        f"filled{operand}:",
    ]


def place_address(operand: str, base: str, step: int, word: int) -> list[str]:
    """%desc of the operand: the word, with the shared address base + step in its address field."""
    return [
        f"add.u32 %w, {base}, {step};",
        f"and.b32 %w, %w, {ADDRESS_MASK:#x};",
        f"shr.u32 %w, %w, {SM90_FIELDS[0].shift};",
        f"cvt.u64.u32 %desc{operand}, %w;",
        f"or.b64 %desc{operand}, %desc{operand}, {word:#x};",
    ]


def kernel(
    atom: MmaAtom, a: Tile | None, b: Tile, arch: str = "sm_90a", version: str = PTX_VERSION, name: str = "kernel"
) -> str:
    """A module with one kernel of parameters A, B, C, D; without `a`, A comes from registers."""
    tiles = {"A": a, "B": b} if a is not None else {"B": b}
    fragments = ("C",) if a is not None else ("A", "C")

    def vector(operand: str) -> str:
        return "{" + ", ".join(f"%{operand.lower()}{i}" for i in range(atom.registers(operand))) + "}"

    body = [
        ".reg .b32 %lane, %case, %index, %w, %i, %to, %sA, %sB;",
        ".reg .b64 %g, %o, %descA, %descB;",
        ".reg .pred %stop, %add;",
        *(f".reg .b32 %{operand.lower()}<{atom.registers(operand)}>;" for operand in fragments),
        "mov.u32 %lane, %tid.x;",
        "mov.u32 %case, %ctaid.x;",
        "mad.lo.u32 %index, %case, 128, %lane;",
    ]
    for operand, tile in tiles.items():
        assert tile is not None
        body += _fill(operand, tile, name)
    for operand in fragments:
        body += _place(operand, atom, name)
        body += [f"ld.global.b32 %{operand.lower()}{i}, [%g+{4 * i}];" for i in range(atom.registers(operand))]
    tail = ", %add"
    if atom.c_dtype.name != "i32":
        tail += ", 1, 1"
        if atom.b_majors != ("K",):
            tail += f", {int(a.transposed)}" if a is not None else ""
            tail += f", {int(b.transposed)}"
    first = "%descA" if a is not None else vector("A")
    body += [
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
        "setp.eq.u32 %add, 0, 0;",
        "wgmma.fence.sync.aligned;",
        f"{atom.ptx} {vector('C')}, {first}, %descB{tail};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        *_place("D", atom, name),
        *(f"st.global.b32 [%g+{4 * i}], %c{i};" for i in range(atom.registers("C"))),
        "ret;",
    ]
    shared = "".join(
        f".shared .align 1024 .b8 {name}_smem{operand}[{tile.bytes}];\n"
        for operand, tile in tiles.items()
        if tile is not None
    )
    listed = ", ".join(f".param .u64 {name}_{operand}" for operand in "ABCD")
    text = "\n".join(line if line.endswith(":") else f"  {line}" for line in body)
    return f"{header(arch, version)}{shared}.visible .entry {name}({listed})\n{{\n{text}\n}}\n"


def _place(operand: str, atom: MmaAtom, name: str) -> list[str]:
    return [
        f"ld.param.u64 %g, [{name}_{operand}];",
        "cvta.to.global.u64 %g, %g;",
        f"mul.wide.u32 %o, %index, {4 * atom.registers(operand)};",
        "add.u64 %g, %g, %o;",
    ]
