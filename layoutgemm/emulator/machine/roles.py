"""The role of a warp: what it does, by the instructions that it executed.

The names say what any kernel's warp does: loads by TMA, multiplies, stores, reduces in shared memory, waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ..ptx.parser import PtxInstruction

# The beginning of an opcode, as a pattern -> what a warp does by it; the first that matches.
DOES_BY = (
    (r"clusterlaunchcontrol\.try_cancel", "schedules"),
    (r"cp\.async\.(wait|commit|mbarrier)|cp\.async\.bulk\.(wait|commit|prefetch)|prefetch", ""),
    (r"cp\.(reduce\.)?async\.bulk\.(tensor\.\dd\.)?global", "stores"),
    (r"cp\.(reduce\.)?async\.bulk\.shared::cluster\.shared|(st|red)\.async", "sends to other blocks"),
    (r"cp\.async\.bulk", "loads by TMA"),
    (r"cp\.async", "loads by cp.async"),
    (r"(wgmma\.mma_async|tcgen05\.mma|mma)(\.|$)", "multiplies"),
    (r"tcgen05\.ld", "reads accumulators"),
    (r"ldu?\.(.*\.)?(param|const|local)(\.|$)", ""),
    (r"(atom|red)\.(.*\.)?shared", "reduces"),
    (r"(shfl\.(sync\.)?(bfly|down|up)|redux)\.", "exchanges"),  # shfl.idx hands on one lane's value
    (r"ld\.(.*\.)?shared|ldmatrix", "reads shared"),
    (r"st\.(.*\.)?shared|stmatrix", "writes shared"),
    (r"ldu?\.", "loads"),
    (r"(st|atom|red)\.", "stores"),
    (r"(tcgen05\.(de)?alloc|mbarrier\.init)", "sets up"),
    (r"(mbarrier\.(try|test)_wait|bar(rier)?\.(?!.*warp)|wgmma\.wait_group|setmaxnreg|griddepcontrol)", "waits"),
)  # fmt: skip
# The parts of a role, in their order.
PARTS = (
    "schedules", "loads by TMA", "loads by cp.async", "loads", "multiplies", "reads accumulators",
    "reduces in shared memory", "works in shared memory", "sends to other blocks", "stores",
)  # fmt: skip
ALONE = ("sets up", "waits")  # roles of warps that do nothing else
NOTHING = "computes"


@lru_cache(maxsize=1 << 12)
def does(opcode: str) -> str:
    """The part of a warp's role that an instruction implies, or "".

    >>> does("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"), does("st.shared.b32")
    ('loads by TMA', 'writes shared')
    """
    return next((said for pattern, said in DOES_BY if re.match(pattern, opcode)), "")


def role_of(opcodes: Iterable[str]) -> str:
    """The role of a warp that executed these opcodes.

    >>> role_of(["ld.shared.b32", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "st.global.b32"])
    'multiplies + stores'
    >>> role_of(["ld.global.b32", "shfl.sync.bfly.b32", "st.shared.b32", "ld.shared.b32", "bar.sync"])
    'loads + reduces in shared memory'
    >>> role_of(["shfl.sync.idx.b32", "st.shared.b32", "ld.shared.b32"])
    'works in shared memory'
    >>> role_of(["mbarrier.init.shared.b64", "bar.sync"]), role_of(["bar.sync"])
    ('sets up', 'waits')
    """
    did = {does(opcode) for opcode in opcodes}
    shared = {"reads shared", "writes shared"} & did
    if not did & {"multiplies", "reads accumulators"}:
        if "reduces" in did or (len(shared) == 2 and "exchanges" in did):
            did.add("reduces in shared memory")
        elif len(shared) == 2 or (shared and not did.intersection(PARTS)):
            did.add("works in shared memory")
    parts = [part for part in PARTS if part in did]
    return " + ".join(parts) or next((one for one in ALONE if one in did), NOTHING)


def role_from(did: Sequence[int], instructions: Sequence[PtxInstruction]) -> str:
    """The role of a warp. `did` says for each pc whether a lane of the warp executed it."""
    return role_of({ins.opcode for ins in instructions if did[ins.pc]})
