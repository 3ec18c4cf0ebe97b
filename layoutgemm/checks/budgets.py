"""Register and shared-memory budgets: what a kernel takes against what the architecture has."""

from __future__ import annotations

from ..arch import Arch
from .report import Check


def shared_memory(arch: Arch, parts: dict[str, int], blocks_per_sm: int = 1) -> Check:
    """Do the parts (name -> bytes) fit in one block's shared memory, and so many blocks in a multiprocessor's?

    >>> from layoutgemm.arch import arch
    >>> check = shared_memory(arch("sm_90a"), {"4 stages of 128x256x64": 4 * 48 * 1024, "C tile": 64 * 1024})
    >>> check.ok, check.statement
    (False, '4 stages of 128x256x64 196608 + C tile 65536 = 262144 bytes <= 232448 of sm_90a')
    >>> check.witness
    '29696 bytes too many'
    """
    total = sum(parts.values())
    terms = " + ".join(f"{name} {size}" for name, size in parts.items())
    over = total - arch.smem_per_block
    whole = blocks_per_sm * (total + arch.smem_reserved_per_block) - arch.smem_per_sm
    witness = f"{over} bytes too many" if over > 0 else ""
    if not witness and whole > 0:
        witness = f"{blocks_per_sm} blocks need {whole} bytes more than the {arch.smem_per_sm} of a multiprocessor"
    statement = f"{terms} = {total} bytes <= {arch.smem_per_block} of {arch.name}"
    return Check("shared memory", statement, not witness, "arithmetic", witness)


def registers(arch: Arch, threads: int, per_thread: dict[str, int], blocks_per_sm: int = 1) -> Check:
    """Do the registers a thread must hold at once (name -> 32-bit registers) fit, for it and for the multiprocessor?

    The parts are a lower bound, what the algorithm keeps live by name; ptxas adds addresses and temporaries, and what
    it really used is read from the compiled kernel.
    """
    total = sum(per_thread.values())
    terms = " + ".join(f"{name} {count}" for name, count in per_thread.items())
    block = threads * total * blocks_per_sm
    witness = ""
    if total > arch.registers_per_thread:
        witness = f"{total - arch.registers_per_thread} registers a thread too many"
    elif block > arch.registers_per_sm:
        witness = f"{threads} threads * {total} * {blocks_per_sm} blocks = {block} > {arch.registers_per_sm}"
    limits = f"{block} a block <= {arch.registers_per_sm}"
    statement = f"{terms} = {total} registers a thread <= {arch.registers_per_thread}, {limits}"
    return Check("registers", statement, not witness, "arithmetic", witness)
