"""PTX text for copies of single threads: every instruction once, with operands of its width."""

from __future__ import annotations

from layoutgemm.atoms import AsyncCopy, BulkCopy, CopyAtom

_SPACE = {"gmem": "[%g]", "smem": "[%s]"}


def instruction(atom: CopyAtom) -> str:
    """The instruction with its operands: %g and %s are global and shared addresses, %b an mbarrier's."""
    if isinstance(atom, AsyncCopy):
        size = {None: "", "register": ", %r0"}.get(atom.src_bytes, f", {atom.src_bytes}")
        return f"{atom.ptx} [%s], [%g], {atom.bytes}{size};"
    if isinstance(atom, BulkCopy):
        mask = ", %h0" if atom.multicast or atom.byte_mask else ""
        barrier = ", [%b]" if atom.completion == "mbarrier" else ""
        return f"{atom.ptx} {_SPACE[atom.target]}, {_SPACE[atom.source]}, {atom.bytes}{barrier}{mask};"
    bits = 8 * atom.bytes_per_thread("src")
    words = ", ".join(f"%r{i}" for i in range(max(1, bits // 32)))
    vector = f"{{{words}}}" if bits > 32 else "%h0" if bits == 16 else words
    if atom.source == "rmem":
        barrier = ", [%b]" if atom.ptx.startswith("st.async") else ""
        return f"{atom.ptx} {_SPACE[atom.target]}, {vector}{barrier};"
    return f"{atom.ptx} {vector}, {_SPACE[atom.source]};"


def entry(atoms: list[CopyAtom], name: str = "kernel") -> str:
    """A kernel that names each instruction once: text for an assembler, not meant to be run."""
    body = [
        ".shared .align 128 .b8 tile[4096];",
        ".reg .b32 %s, %b, %r<8>; .reg .b16 %h<1>; .reg .b64 %g;",
        f"ld.param.u64 %g, [{name}_p];",
        "mov.u32 %s, tile;",
        "mov.u32 %b, tile;",
        *(f"mov.u32 %r{i}, 0;" for i in range(8)),
        "mov.u16 %h0, 1;",
        *map(instruction, atoms),
        "ret;",
    ]
    return f".visible .entry {name}(.param .u64 {name}_p)\n{{\n" + "\n".join(f"  {x}" for x in body) + "\n}\n"
