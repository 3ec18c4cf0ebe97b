"""Budgets: a kernel's registers, shared memory and tensor memory against the architecture's.

`why_not` puts them together for one choice of tile, stages and roles, and says what would fit where that does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..arch import Arch
from ..arch import arch as find_arch
from ..arguments import as_int, checked, shown
from ..atoms.tmem.layout import COLUMNS, allocation_columns
from ..dtypes import DType, dtype
from ..errors import PlanError
from ..report import Check, Report

# PTX ISA, setmaxnreg: the count is a multiple of 8 in 24..256 (255 is the most that code can name, 256 the most a
# thread is given).
REGISTER_UNIT, LEAST_REGISTERS, MOST_REGISTERS = 8, 24, 256
WARPGROUP = 128
_QUARTERS = 4  # of a multiprocessor: each has a quarter of the registers and of a block's warps (cuda_occupancy.h)


def _check_counts(parts: Mapping[str, int], **at_least_one: int) -> None:
    for name, count in parts.items():
        as_int(count, shown(name), PlanError, least=0)
    for name, count in at_least_one.items():
        as_int(count, name, PlanError, least=1)


@checked(PlanError)
def shared_memory(arch: Arch, parts: dict[str, int], blocks_per_sm: int = 1) -> Check:
    """Check that the parts (name -> bytes) fit in shared memory. The limits are a CTA's, and an SM's for
    `blocks_per_sm` CTAs.

    >>> from layoutgemm.arch import arch
    >>> check = shared_memory(arch("sm_90a"), {"4 stages of 128x256x64": 4 * 48 * 1024, "C tile": 64 * 1024})
    >>> check.ok, check.statement
    (False, '4 stages of 128x256x64 196608 + C tile 65536 = 262144 bytes <= 232448 of sm_90a')
    >>> check.witness
    '29696 bytes too many'
    """
    _check_counts(parts, blocks_per_sm=blocks_per_sm)
    total = sum(parts.values())
    terms = " + ".join(f"{name} {size}" for name, size in parts.items())
    over = total - arch.smem_per_block
    whole = blocks_per_sm * (total + arch.smem_reserved_per_block) - arch.smem_per_sm
    witness = f"{over} bytes too many" if over > 0 else ""
    if not witness and whole > 0:
        witness = f"{blocks_per_sm} blocks need {whole} bytes more than the {arch.smem_per_sm} of a multiprocessor"
    statement = f"{terms} = {total} bytes <= {arch.smem_per_block} of {arch.name}"
    return Check("shared memory", statement, not witness, "arithmetic", witness)


@checked(PlanError)
def shared_memory_of(
    arch: Arch,
    parts: Mapping[str, int],
    total: int,
    barriers: int,
    rest: str = "barriers and gaps",
    blocks_per_sm: int = 1,
) -> Check:
    """Check that `total` bytes fit, and that the parts leave room for `barriers` bytes."""
    left = total - sum(parts.values())
    check = shared_memory(arch, {**parts, rest: max(0, left)}, blocks_per_sm)
    if check and left < barriers:
        return replace(check, ok=False, witness=f"{left} bytes are left for barriers, which take {barriers}")
    return check


@checked(PlanError)
def registers(arch: Arch, threads: int, per_thread: dict[str, int], blocks_per_sm: int = 1) -> Check:
    """Check that a thread's registers (name -> 32-bit registers) fit, for it and for the SM.

    The parts are a lower bound, what the algorithm keeps live by name; ptxas adds addresses and temporaries, and what
    it really used is read from the compiled kernel. A thread has its registers in eights, and a block as many as if its
    warps were a multiple of four, one on each quarter of the multiprocessor.

    >>> from layoutgemm.arch import arch
    >>> registers(arch("sm_90a"), 288, {"two accumulators of 64x176": 176}).witness
    '384 threads * 176 * 1 blocks = 67584 > 65536'
    """
    _check_counts(per_thread, threads=threads, blocks_per_sm=blocks_per_sm)
    total = sum(per_thread.values())
    terms = " + ".join(f"{name} {count}" for name, count in per_thread.items())
    held, each = allocated_threads(threads), -(-total // REGISTER_UNIT) * REGISTER_UNIT
    block = held * each * blocks_per_sm
    witness = ""
    if total > arch.registers_per_thread:
        witness = f"{total - arch.registers_per_thread} registers a thread too many"
    elif block > arch.registers_per_sm:
        witness = f"{held} threads * {each} * {blocks_per_sm} blocks = {block} > {arch.registers_per_sm}"
    limits = f"{block} a block <= {arch.registers_per_sm}"
    statement = f"{terms} = {total} registers a thread <= {arch.registers_per_thread}, {limits}"
    return Check("registers", statement, not witness, "arithmetic", witness)


def allocated_threads(threads: int) -> int:
    """Threads whose registers a launch takes. Warps are held to be as many on each quarter of the multiprocessor.

    >>> allocated_threads(384), allocated_threads(288), allocated_threads(1)
    (384, 384, 128)
    """
    return -(-max(threads, 1) // (32 * _QUARTERS)) * 32 * _QUARTERS


def launch_registers(arch: Arch, threads: int, blocks_per_sm: int = 1) -> int:
    """Registers that each of a CTA's `threads` starts with. Equal shares, in units of 8, of `blocks_per_sm` CTAs.

    The register limits of a launch (cuda_occupancy.h), and of ptxas: of 288 threads it gives each 168, as of 384.

    >>> from layoutgemm.arch import arch
    >>> [launch_registers(arch("sm_90a"), threads) for threads in (128, 288, 384, 416)]
    [256, 168, 168, 128]
    >>> launch_registers(arch("sm_90a"), 288, blocks_per_sm=2)
    96
    """
    return min(
        MOST_REGISTERS,
        arch.registers_per_sm // allocated_threads(threads * blocks_per_sm) // REGISTER_UNIT * REGISTER_UNIT,
    )


def setmaxnreg_problem(count: int) -> str:
    """Why setmaxnreg does not take a count, or an empty text (PTX ISA, setmaxnreg)."""
    if count % REGISTER_UNIT == 0 and LEAST_REGISTERS <= count <= MOST_REGISTERS:
        return ""
    return f"setmaxnreg takes multiples of {REGISTER_UNIT} in {LEAST_REGISTERS}..{MOST_REGISTERS}"


@checked(PlanError)
def role_registers(arch: Arch, roles: Mapping[str, tuple[int, int]]) -> Check:
    """Can setmaxnreg give each role its registers? Roles are name -> (threads, registers a thread).

    A block starts with the same number for every thread, the most that its size allows. What one role gives back
    another may take: the roles' sum must fit in that pool. Counts are multiples of 8 in 24..256. A role is whole
    warpgroups, since all warps of a warpgroup have to execute the same setmaxnreg (PTX ISA, setmaxnreg).

    >>> from layoutgemm.arch import arch
    >>> print(role_registers(arch("sm_90a"), {"producer": (128, 40), "math": (256, 232)}).statement)
    producer 128 * 40 + math 256 * 232 = 64512 registers <= 384 threads * 168 = 64512
    >>> role_registers(arch("sm_90a"), {"producer": (128, 40), "math": (256, 240)}).witness
    '2048 registers too many: 16 a thread of producer less, or 8 a thread of math'
    """
    for name, (count, each) in roles.items():
        _check_counts({}, **{f"threads of {name}": count, f"registers of {name}": each})
    threads = sum(count for count, _ in roles.values())
    total = sum(count * each for count, each in roles.values())
    start = launch_registers(arch, threads)
    terms = " + ".join(f"{name} {count} * {each}" for name, (count, each) in roles.items())
    statement = f"{terms} = {total} registers <= {threads} threads * {start} = {threads * start}"
    witness = "" if "setmaxnreg" in arch.features else f"{arch.name} has no setmaxnreg"
    for name, (count, each) in roles.items():
        if not witness and (problem := setmaxnreg_problem(each)):
            witness = f"{name} asks for {each}: {problem}"
        if not witness and (count % WARPGROUP or count < 1):
            witness = f"{name} is {count} threads, no whole number of warpgroups of {WARPGROUP}"
    if not witness and threads > arch.threads_per_block:
        witness = f"{threads} threads are more than a block's {arch.threads_per_block}"
    over = total - threads * start
    if not witness and over > 0:
        less = {n: -(-over // (c * REGISTER_UNIT)) * REGISTER_UNIT for n, (c, _) in roles.items()}
        ways = [f"{count} a thread of {name}" for name, count in less.items()]
        witness = f"{over} registers too many: {ways[0]} less" + "".join(f", or {way}" for way in ways[1:])
    return Check("registers", statement, not witness, "arithmetic", witness)


@checked(PlanError)
def tensor_memory(arch: Arch, parts: Mapping[str, int], blocks_per_sm: int = 1) -> Check:
    """Check that the parts (name -> columns) fit in tensor memory. They are one allocation of each CTA, a power of two
    of columns.

    >>> from layoutgemm.arch import arch
    >>> check = tensor_memory(arch("sm_100a"), {"2 accumulators of 128x256": 2 * 256, "scales of A": 16})
    >>> check.statement, check.witness
    ('2 accumulators of 128x256 512 + scales of A 16 = 528 columns, allocated 1024 <= 512', '16 columns too many')
    """
    _check_counts(parts, blocks_per_sm=blocks_per_sm)
    total = sum(parts.values())
    # More than there is cannot be asked for; the next power of two still says by how much.
    taken = 0 if total <= 0 else allocation_columns(total) if total <= COLUMNS else 1 << (total - 1).bit_length()
    each = f", allocated {taken}" + (f" by each of {blocks_per_sm} blocks" if blocks_per_sm > 1 else "")
    terms = " + ".join(f"{name} {columns}" for name, columns in parts.items())
    witness = ""
    if total and not arch.tmem_columns:
        witness = f"{arch.name} has no tensor memory"
    elif taken * blocks_per_sm > arch.tmem_columns:
        room = arch.tmem_columns // blocks_per_sm
        witness = f"{total - room} columns too many" if total > room else f"{taken} columns a block, {room} are there"
    statement = f"{terms} = {total} columns{each} <= {arch.tmem_columns}"
    return Check("tensor memory", statement, not witness, "arithmetic", witness)


@checked(PlanError)
def most_stages(arch: Arch, stage_bytes: int, other_bytes: int = 0, blocks_per_sm: int = 1) -> int:
    """The number of stages of `stage_bytes` that fit in a CTA's shared memory beside `other_bytes`.

    >>> from layoutgemm.arch import arch
    >>> most_stages(arch("sm_90a"), 48 * 1024), most_stages(arch("sm_90a"), 48 * 1024, 64 * 1024)
    (4, 3)
    """
    _check_counts({"other_bytes": other_bytes}, stage_bytes=stage_bytes, blocks_per_sm=blocks_per_sm)
    room = min(arch.smem_per_block, arch.smem_per_sm // blocks_per_sm - arch.smem_reserved_per_block)
    return max(0, room - other_bytes) // stage_bytes


@checked(PlanError)
def why_not(
    arch: Arch | str,
    tile: tuple[int, int, int],
    stages: int,
    *,
    a: DType | str = "bf16",
    b: DType | str | None = None,
    c: DType | str = "bf16",
    accumulator: DType | str = "f32",
    warpgroups: int = 1,
    registers_each: Mapping[str, tuple[int, int]] | None = None,
    epilogue: tuple[int, int] | None = None,
    accumulators: int = 1,
    other_bytes: int = 1024,
    blocks_per_sm: int = 1,
) -> Report:
    """Every budget of one choice of tile, stages and roles, with the arithmetic. Where it does not fit, it says what
    would.

    arch           the architecture, or its name
    tile           (BM, BN, BK) in elements
    stages         of A and B in shared memory
    a, b, c        types of the operands and of the output; b is a's unless given
    accumulator    type of the accumulator
    warpgroups     of 128 threads, that share the accumulator of a tile (on sm_100a it is in tensor memory)
    registers_each the roles' setmaxnreg: name -> (threads, registers); None where all threads have the same
    epilogue       (rows, columns) of the output tile in shared memory, beside the stages; None: none
    accumulators   how many are kept in tensor memory at a time (sm_100a)
    other_bytes    of shared memory for barriers and alignment
    blocks_per_sm  blocks that are to be resident together

    The registers are a lower bound, the accumulator alone: the compiler adds addresses and temporaries.

    >>> report = why_not("sm_90a", (128, 256, 64), 4, warpgroups=2, epilogue=(128, 256))
    >>> print(report.failures[0].witness)
    30720 bytes too many: 3 stages fit, or an epilogue tile of 128x128
    >>> print(why_not("sm_90a", (128, 256, 64), 4).failures[0].witness)
    1 registers a thread too many: 2 warpgroups would hold it
    """
    facts = find_arch(arch)
    a_type = dtype(a)
    b_type, c_type, accumulate = a_type if b is None else dtype(b), dtype(c), dtype(accumulator)
    bm, bn, bk = tile
    for name, value in (("BM", bm), ("BN", bn), ("BK", bk), ("stages", stages), ("warpgroups", warpgroups)):
        as_int(value, name, PlanError, least=1)
    stage = (bm * a_type.bits + bn * b_type.bits) * bk // 8
    parts = {f"{stages} stages of ({bm}+{bn})x{bk}": stages * stage}
    if epilogue is not None:
        parts[f"C tile {epilogue[0]}x{epilogue[1]}"] = epilogue[0] * epilogue[1] * c_type.bits // 8
    parts["other"] = other_bytes
    smem = shared_memory(facts, parts, blocks_per_sm)
    if not smem:
        fixed = sum(parts.values()) - stages * stage
        ways = [f"{most_stages(facts, stage, fixed, blocks_per_sm)} stages fit"]
        if epilogue is not None:
            # The widest part of the tile, halved as often as it takes.
            columns = epilogue[1]
            while columns > 1 and columns % 2 == 0:
                columns //= 2
                room = other_bytes + epilogue[0] * columns * c_type.bits // 8
                if most_stages(facts, stage, room, blocks_per_sm) >= stages:
                    ways.append(f"an epilogue tile of {epilogue[0]}x{columns}")
                    break
        smem = replace(smem, witness=f"{smem.witness}: {', or '.join(ways)}")
    checks = [smem]
    if facts.tmem_columns:
        each = -(-bm // 128) * bn * accumulate.bits // 32
        tmem = tensor_memory(facts, {f"{accumulators} accumulators of {bm}x{bn}": accumulators * each}, blocks_per_sm)
        checks.append(tmem)
    else:
        held = -(-bm * bn * accumulate.bits // (32 * WARPGROUP * warpgroups))
        part = {f"accumulator {bm}x{bn} of {accumulate}": held}
        regs = registers(facts, WARPGROUP * warpgroups, part, blocks_per_sm)
        if not regs:
            enough = -(-held * warpgroups // facts.registers_per_thread)
            regs = replace(regs, witness=f"{regs.witness}: {enough} warpgroups would hold it")
        checks.append(regs)
    if registers_each is not None:
        checks.append(role_registers(facts, registers_each))
    return Report(tuple(checks))
