"""PTX text for one matrix copy: ldmatrix, stmatrix or movmatrix on a warp, registers raw.

Each block is one warp and a case of its own. Buffers, by the order of the parameters:

    ldmatrix   image [case][SHARED bytes], addresses [case][lane], registers [case][lane][register] (written)
    stmatrix   image, addresses, registers (read), after [case][SHARED bytes] (written): shared memory after the store
    movmatrix  registers (read), moved [case][lane][register] (written)

Shared memory holds the image before; a lane's address is an offset in it in bytes. What a register means is the
business of whoever fills the buffers, through the atom's maps.
"""

from __future__ import annotations

from layoutgemm.atoms import CopyAtom

PTX_VERSION = "8.8"  # what the copies of sm_100 need: ptxas asks 8.8 for those of 256 bits
SHARED = 4096


def header(arch: str, version: str = PTX_VERSION) -> str:
    return f".version {version}\n.target {arch}\n.address_size 64\n"


def parameters(atom: CopyAtom) -> tuple[str, ...]:
    """The kernel's pointers, in order."""
    if atom.source == atom.target:
        return ("registers", "moved")
    return ("image", "addresses", "registers") + (("after",) if atom.source == "rmem" else ())


def registers(atom: CopyAtom) -> int:
    """32-bit registers of a lane."""
    return atom.bytes_per_thread(next(side for side in ("src", "dst") if atom.space(side) == "rmem")) // 4


def entry(atom: CopyAtom, name: str = "kernel") -> str:
    """The kernel's text without the module's header."""
    names, count = parameters(atom), registers(atom)
    row = {"image": SHARED, "after": SHARED, "addresses": 4 * 32}  # bytes of a case; else bytes of a lane

    def vector(letter: str) -> str:
        listed = ", ".join(f"%{letter}{i}" for i in range(count))
        return listed if "registers" == names[0] else f"{{{listed}}}"

    def each(text: str) -> list[str]:
        return [text.format(i=i, at=4 * i) for i in range(count)]

    def through(load: str, store: str) -> list[str]:
        """SHARED bytes, 16 at a time by each lane."""
        step = 16 * 32
        lines = []
        for at in range(0, SHARED, step):
            lines += [load.format(at=at), store.format(at=at)]
        return lines

    four = "{{%c0, %c1, %c2, %c3}}"
    body = [
        f".shared .align 128 .b8 {name}_tile[{SHARED}];",
        ".reg .b32 %lane, %case, %index, %tile, %mine, %address;",
        *(f".reg .b64 %p{x};" for x in names),
        f".reg .b64 %o; .reg .b32 %c<4>; .reg .b32 %r<{count}>; .reg .b32 %d<{count}>;",
        "mov.u32 %lane, %tid.x;",
        "mov.u32 %case, %ctaid.x;",
        "mad.lo.u32 %index, %case, 32, %lane;",
        f"mov.u32 %tile, {name}_tile;",
        "mad.lo.u32 %mine, %lane, 16, %tile;",
    ]
    for x in names:
        body += [f"ld.param.u64 %p{x}, [{name}_{x}];", f"cvta.to.global.u64 %p{x}, %p{x};"]
        if x in row:
            body += [f"mul.wide.u32 %o, %case, {row[x]};", f"add.u64 %p{x}, %p{x}, %o;"]
            body += [f"mul.wide.u32 %o, %lane, {4 if x == 'addresses' else 16};", f"add.u64 %p{x}, %p{x}, %o;"]
        else:
            body += [f"mul.wide.u32 %o, %index, {4 * count};", f"add.u64 %p{x}, %p{x}, %o;"]
    if "image" in names:
        body += through(f"ld.global.v4.b32 {four}, [%pimage+{{at}}];", f"st.shared.v4.b32 [%mine+{{at}}], {four};")
        body += ["ld.global.b32 %address, [%paddresses];", "add.u32 %address, %address, %tile;", "bar.warp.sync -1;"]
    if atom.source == "smem":
        body += [f"{atom.ptx} {vector('r')}, [%address];", *each("st.global.b32 [%pregisters+{at}], %r{i};")]
    else:
        body += each("ld.global.b32 %r{i}, [%pregisters+{at}];")
        if atom.target == "smem":
            body += [f"{atom.ptx} [%address], {vector('r')};", "bar.warp.sync -1;"]
            body += through(f"ld.shared.v4.b32 {four}, [%mine+{{at}}];", f"st.global.v4.b32 [%pafter+{{at}}], {four};")
        else:
            body += [f"{atom.ptx} {vector('d')}, {vector('r')};", *each("st.global.b32 [%pmoved+{at}], %d{i};")]
    listed = ", ".join(f".param .u64 {name}_{x}" for x in names)
    return f".visible .entry {name}({listed})\n{{\n" + "\n".join(f"  {line}" for line in [*body, "ret;"]) + "\n}\n"


def kernel(atom: CopyAtom, arch: str, version: str = PTX_VERSION, name: str = "kernel") -> str:
    """The whole module's text."""
    return header(arch, version) + entry(atom, name)
