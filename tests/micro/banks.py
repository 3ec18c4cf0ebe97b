"""PTX microkernels that time the wavefronts of shared-memory instructions, and their access patterns.

Every warp of one block runs the same instruction, with the same addresses, over and over. The warps together keep the
shared memory busy, so that the time for one instruction is the time that the banks take: its wavefronts, times a cycle.

A kernel takes pointers to 32 byte offsets (u32, one per lane; IDLE: the lane takes no part), to one u32 that is 0, and
to the results. The compiler does not know the 0, so it cannot merge accesses to seemingly other addresses. The results:
per warp the clock before and after as u64, then one u32 per thread that keeps the loads alive.
"""

from __future__ import annotations

from dataclasses import dataclass

WARPS, UNROLL, ROUNDS = 32, 8, 32
IDLE = 0xFFFFFFFF
SMEM_BYTES = 32768
RESULT_BYTES = WARPS * 16 + WARPS * 32 * 4


@dataclass(frozen=True)
class Form:
    """One instruction: its PTX with {d} for the data registers and {a} for the address.

    kind, width  as the model names it
    registers    32-bit data registers (16-bit data goes through the low half of one)
    loads        whether it writes the registers
    masked       whether lanes may be idle (the warp-wide matrix instructions need all of them)
    lanes        how many lanes' addresses count
    """

    name: str
    ptx: str
    kind: str
    width: int
    registers: int
    loads: bool = True
    masked: bool = True
    lanes: int = 32


def _matrix(op: str, count: int) -> Form:
    side = "{d}, [{a}]" if op == "ldmatrix" else "[{a}], {d}"
    text = f"{op}.sync.aligned.m8n8.x{count}.shared.b16 {side};"
    return Form(f"{op}_x{count}", text, op, 16, count, op == "ldmatrix", False, 8 * count)


FORMS = {
    form.name: form
    for form in (
        Form("ld_u8", "ld.shared.u8 {d}, [{a}];", "ld.shared", 1, 1),
        Form("ld_u16", "ld.shared.u16 {d}, [{a}];", "ld.shared", 2, 1),
        Form("ld_b32", "ld.shared.b32 {d}, [{a}];", "ld.shared", 4, 1),
        Form("ld_v2", "ld.shared.v2.b32 {d}, [{a}];", "ld.shared", 8, 2),
        Form("ld_v4", "ld.shared.v4.b32 {d}, [{a}];", "ld.shared", 16, 4),
        Form("st_u8", "st.shared.u8 [{a}], {d};", "st.shared", 1, 1, False),
        Form("st_u16", "st.shared.u16 [{a}], {d};", "st.shared", 2, 1, False),
        Form("st_b32", "st.shared.b32 [{a}], {d};", "st.shared", 4, 1, False),
        Form("st_v2", "st.shared.v2.b32 [{a}], {d};", "st.shared", 8, 2, False),
        Form("st_v4", "st.shared.v4.b32 [{a}], {d};", "st.shared", 16, 4, False),
        *(_matrix(op, count) for op in ("ldmatrix", "stmatrix") for count in (1, 2, 4)),
    )
}


def kernel(form: Form) -> str:
    """The entry `form.name`: rounds of UNROLL accesses by each of WARPS warps, between two reads of the clock."""
    grouped = form.registers > 1 or not form.masked

    def data(copy: int) -> str:
        names = ", ".join(f"%d{copy * form.registers + i}" for i in range(form.registers))
        return f"{{{names}}}" if grouped else names

    def access(copy: int) -> str:
        return "    " + form.ptx.replace("{d}", data(copy)).replace("{a}", f"%a{copy}")

    count = UNROLL * form.registers
    start = [f"    mov.u32 %d{i}, {0 if form.loads else '%t'};" for i in range(count)]
    addresses = ["    mov.u32 %a0, %base;", *(f"    add.u32 %a{i}, %a{i - 1}, %zero;" for i in range(1, UNROLL))]
    # Were a step one more %zero, two copies would have one address for the compiler too, and become one access.
    step = [f"    add.u32 %a{i}, %a{i}, %step;" for i in range(UNROLL)]
    keep = [f"    xor.b32 %sum, %sum, %d{i};" for i in range(count)] if form.loads else []
    idle = [f"    @!%on bra {form.name}_idle;"] if form.masked else []
    lines = [
        f".visible .entry {form.name}(.param .u64 p_at, .param .u64 p_zero, .param .u64 p_out)",
        f".maxntid {32 * WARPS}, 1, 1",
        "{",
        "    .reg .pred %on, %more, %first;",
        f"    .reg .b32 %t, %lane, %warp, %off, %zero, %step, %base, %sum, %i, %last, %a<{UNROLL}>, %d<{count}>;",
        "    .reg .b64 %at, %pz, %out, %x, %y, %begin, %end;",
        "    ld.param.u64 %at, [p_at];",
        "    ld.param.u64 %pz, [p_zero];",
        "    ld.param.u64 %out, [p_out];",
        "    mov.u32 %t, %tid.x;",
        "    and.b32 %lane, %t, 31;",
        "    shr.u32 %warp, %t, 5;",
        "    mul.wide.u32 %x, %lane, 4;",
        "    add.u64 %at, %at, %x;",
        "    ld.global.u32 %off, [%at];",
        "    ld.global.u32 %zero, [%pz];",
        f"    mul.lo.u32 %step, %zero, {UNROLL};",
        f"    setp.ne.u32 %on, %off, {IDLE};",
        "    mov.u32 %base, banks_smem;",
        "    @%on add.u32 %base, %base, %off;",
        "    mov.u32 %sum, 0;",
        "    mov.u32 %i, 0;",
        *start,
        *addresses,
        "    bar.sync 0;",
        "    mov.u64 %begin, %clock64;",
        *idle,
        f"{form.name}_round:",
        '    .pragma "nounroll";',
        *(access(copy) for copy in range(UNROLL)),
        *step,
        *keep,
        "    add.u32 %i, %i, 1;",
        f"    setp.lt.u32 %more, %i, {ROUNDS};",
        f"    @%more bra {form.name}_round;",
        "    ld.shared.u32 %last, [banks_smem];",  # behind the stores in the queue: it returns when they are done
        "    xor.b32 %sum, %sum, %last;",
        "    setp.eq.u32 %first, %sum, 0x5eed;",
        "    @%first st.shared.u32 [banks_smem], %sum;",  # the clock is read after what this waits for
        "    mov.u64 %end, %clock64;",
        "    mul.wide.u32 %x, %warp, 16;",
        "    add.u64 %x, %out, %x;",
        "    st.global.u64 [%x], %begin;",
        "    st.global.u64 [%x+8], %end;",
        "    mul.wide.u32 %y, %t, 4;",
        "    add.u64 %y, %out, %y;",
        f"    st.global.u32 [%y+{WARPS * 16}], %sum;",
        f"{form.name}_idle:",
        "    ret;",
        "}",
    ]
    return "\n".join(lines)


def module(target: str = "sm_90", version: str = "7.8") -> str:
    """The PTX of all forms: stmatrix needs sm_90, so it is left out below."""
    able = int("".join(c for c in target if c.isdigit())) >= 90
    forms = [form for form in FORMS.values() if able or form.kind != "stmatrix"]
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    smem = f".shared .align 1024 .b8 banks_smem[{SMEM_BYTES}];\n"
    return head + smem + "\n".join(map(kernel, forms)) + "\n"


@dataclass(frozen=True)
class Pattern:
    """Addresses to run forms on. `plain`: its wavefronts are beyond doubt, so that it sets the cycles of one."""

    name: str
    forms: tuple[str, ...]
    addresses: tuple[int | None, ...]
    plain: bool = False


def patterns() -> list[Pattern]:
    """Patterns on which models of the banks differ: strides, broadcasts, half-warps, quarter-warps, pairs, rows."""
    lanes = range(32)
    out: list[Pattern] = []

    def add(name: str, forms: str, addresses: list[int | None] | list[int], plain: bool = False) -> None:
        out.append(Pattern(name, tuple(forms.split()), tuple(addresses), plain))

    scalar = "ld_u8 ld_u16 ld_b32 st_u8 st_u16 st_b32"
    for stride in (4, 8, 12, 16, 32, 64, 128, 132):
        add(f"a lane every {stride} bytes", scalar, [stride * lane for lane in lanes], True)
    add("one word for all", scalar, [64] * 32)
    add("bytes in order", "ld_u8 st_u8", [*lanes])
    add("halves in order", "ld_u16 st_u16", [2 * lane for lane in lanes])
    add("both halves of words of one bank", "ld_u16 st_u16", [lane // 2 * 128 + lane % 2 * 2 for lane in lanes])
    add("the four bytes of words of one bank", "ld_u8 st_u8", [lane // 4 * 128 + lane % 4 for lane in lanes])
    add("half-warps on the same words", scalar, [lane % 16 * 4 for lane in lanes])
    add("half-warps in the same banks", "ld_b32 st_b32", [lane % 16 * 4 + lane // 16 * 128 for lane in lanes])

    two = "ld_v2 st_v2"
    for stride in (8, 16, 32, 64, 128, 136):
        add(f"a lane every {stride} bytes", two, [stride * lane for lane in lanes], True)
    add("64-bit: half-warps on the same words", two, [lane % 16 * 8 for lane in lanes])
    add("64-bit: half-warps in the same banks", two, [lane % 16 * 8 + lane // 16 * 1024 for lane in lanes])
    add("64-bit: lanes n and n^1 the same", two, [lane // 2 * 8 for lane in lanes])
    add("64-bit: lanes n and n^2 the same", two, [(lane // 4 * 2 + lane % 2) * 8 for lane in lanes])
    add("64-bit: lanes n and n^4 the same", two, [(lane // 8 * 4 + lane % 4) * 8 for lane in lanes])
    add("64-bit: all lanes the same", two, [64] * 32)
    add("64-bit: n and n^1 the same but for one lane", two, [*(lane // 2 * 8 for lane in range(31)), 0])
    add("64-bit: n and n^1 the same, 2-way together", two, [lane // 2 * 16 for lane in lanes])
    add("64-bit: n and n^1 the same, 16-way together", two, [lane // 2 * 128 for lane in lanes])
    add("64-bit: pairs in the lower half-warp only", two, [lane // 2 * 8 if lane < 16 else lane * 8 for lane in lanes])
    add("64-bit: even lanes alone", two, [lane * 4 if lane % 2 == 0 else None for lane in lanes])
    add("64-bit: the lower half-warp alone", two, [lane * 8 if lane < 16 else None for lane in lanes])
    add("64-bit: lanes 8 to 23 alone", two, [lane * 8 if 8 <= lane < 24 else None for lane in lanes])

    four = "ld_v4 st_v4"
    for stride in (16, 32, 64, 128, 144):
        add(f"a lane every {stride} bytes", four, [stride * lane for lane in lanes], True)
    add("128-bit: quarter-warps on the same words", four, [lane % 8 * 16 for lane in lanes])
    add("128-bit: quarter-warps in the same banks", four, [lane % 8 * 16 + lane // 8 * 1024 for lane in lanes])
    add("128-bit: lanes n and n+8 in one bank", four, [lane // 8 * 128 + lane % 8 * 512 for lane in lanes])
    add("128-bit: lane % 4 (forum 77228)", four, [lane % 4 * 16 for lane in lanes])
    add("128-bit: lanes n and n^1 the same", four, [lane // 2 * 16 for lane in lanes])
    add("128-bit: lanes n and n^2 the same", four, [(lane // 4 * 2 + lane % 2) * 16 for lane in lanes])
    add("128-bit: lanes n and n^4 the same", four, [(lane // 8 * 4 + lane % 4) * 16 for lane in lanes])
    add("128-bit: all lanes the same", four, [64] * 32)
    add("128-bit: pairs in the lower half-warp only", four,
        [lane // 2 * 16 if lane < 16 else lane * 16 for lane in lanes])  # fmt: skip
    add("128-bit: n^1 in one half-warp, n^2 in the other", four,
        [(lane // 2 if lane < 16 else lane // 4 * 2 + lane % 2) * 16 for lane in lanes])  # fmt: skip
    add("128-bit: n and n^1 the same, 4-way together", four, [lane // 2 * 64 for lane in lanes])
    add("128-bit: even lanes alone", four, [lane * 8 if lane % 2 == 0 else None for lane in lanes])
    add("128-bit: the first quarter-warp alone", four, [lane * 16 if lane < 8 else None for lane in lanes])

    for op in ("ldmatrix", "stmatrix"):
        for count in (1, 2, 4):
            for pitch in (16, 32, 64, 80, 128, 144, 256, 272):
                add(f"rows {pitch} bytes apart", f"{op}_x{count}", [lane % (8 * count) * pitch for lane in lanes], True)
        swizzled = [lane % 16 * 128 + ((lane // 16 ^ lane % 8) * 16) for lane in lanes]
        add("128-byte rows, S<3,4,3>", f"{op}_x4", swizzled)
        add("one row for all", f"{op}_x4", [64] * 32)
        add("matrices in the same banks", f"{op}_x4", [lane % 8 * 16 + lane // 8 * 1024 for lane in lanes])
    return out
