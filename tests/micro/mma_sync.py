"""PTX text for one matrix instruction: load the register fragments raw, run it once, store D's registers raw.

The kernel takes pointers to A, B, C and D (and the metadata registers of the scales of A and B). Each warp of the grid
(one warp a block) is a case of its own; buffers hold [case][lane][register], 32-bit registers in the order of the
instruction's operand list. What a register means is the business of whoever fills the buffers, through the atom's maps.
"""

from __future__ import annotations

from collections.abc import Sequence

from layoutgemm.atoms import MmaAtom

# What the instructions here need at least; a kernel may ask for more.
PTX_VERSION = "8.8"
Selectors = tuple[tuple[int, int], tuple[int, int]]


def header(arch: str, version: str = PTX_VERSION) -> str:
    return f".version {version}\n.target {arch}\n.address_size 64\n"


def parameters(atom: MmaAtom) -> tuple[str, ...]:
    """The operands of the kernel, in the order of its parameters."""
    return ("A", "B", "C", "D") if atom.scale is None else ("A", "B", "C", "D", "SFA", "SFB")


def words(atom: MmaAtom, operand: str) -> int:
    """32-bit words that a lane has in an operand's buffer: one for the scales, else the fragment's registers."""
    return 1 if operand in ("SFA", "SFB") else atom.registers(operand)


def entry(atom: MmaAtom, name: str = "kernel", selectors: Selectors = ((0, 0), (0, 0))) -> str:
    """The kernel's text without the module's header."""
    names = parameters(atom)
    wide = atom.a_dtype.bits == 64
    size = 64 if wide else 32

    def registers(operand: str) -> list[str]:
        return [f"%{operand.lower()}{i}" for i in range(words(atom, operand) * 32 // size)]

    def transfer(operand: str, verb: str) -> list[str]:
        step = size // 8
        if verb == "st":
            return [f"st.global.b{size} [%p{operand}+{i * step}], {r};" for i, r in enumerate(registers(operand))]
        return [f"ld.global.b{size} {r}, [%p{operand}+{i * step}];" for i, r in enumerate(registers(operand))]

    def vector(operand: str) -> str:
        return "{" + ", ".join(registers(operand)) + "}"

    call = ", ".join(vector(operand) for operand in "DABC")
    for operand, (byte_id, thread_id) in zip(names[4:], selectors):
        call += f", {registers(operand)[0]}, {{{byte_id}, {thread_id}}}"
    body = [
        ".reg .b32 %lane, %case, %index;",
        *(f".reg .b64 %p{operand}, %o{operand};" for operand in names),
        *(f".reg .b{size} %{operand.lower()}<{len(registers(operand))}>;" for operand in names),
        "mov.u32 %lane, %tid.x;",
        "mov.u32 %case, %ctaid.x;",
        "mad.lo.u32 %index, %case, 32, %lane;",
    ]
    for operand in names:
        body += [
            f"ld.param.u64 %p{operand}, [{name}_{operand}];",
            f"cvta.to.global.u64 %p{operand}, %p{operand};",
            f"mul.wide.u32 %o{operand}, %index, {4 * words(atom, operand)};",
            f"add.u64 %p{operand}, %p{operand}, %o{operand};",
        ]
    for operand in names:
        if operand != "D":
            body += transfer(operand, "ld")
    body += [f"{atom.ptx} {call};", *transfer("D", "st"), "ret;"]
    listed = ", ".join(f".param .u64 {name}_{operand}" for operand in names)
    return f".visible .entry {name}({listed})\n{{\n" + "\n".join(f"  {line}" for line in body) + "\n}\n"


def kernel(
    atom: MmaAtom,
    arch: str,
    version: str = PTX_VERSION,
    name: str = "kernel",
    selectors: Selectors = ((0, 0), (0, 0)),
) -> str:
    """A module with the one kernel."""
    return header(arch, version) + entry(atom, name, selectors)


def module(atoms: Sequence[MmaAtom], arch: str, version: str = PTX_VERSION) -> str:
    """A module with a kernel k0, k1, ... for each atom."""
    return header(arch, version) + "".join(entry(atom, f"k{i}") for i, atom in enumerate(atoms))
