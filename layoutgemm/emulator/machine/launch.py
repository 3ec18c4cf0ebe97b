"""A launch, the order of its execution, and the records to keep."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

from ...arguments import as_int, settle, shown
from ...atoms.tma.rules import TensorMap
from ...errors import EmulatorError
from ..ptx.values import FULL, LANE, LANES, M32, M64, Value
from .last_writers import LastWriters
from .memory import POISON, GlobalMemory

if TYPE_CHECKING:
    from .unused_reads import ReplacedReads

MULTIPROCESSORS = 132  # machine facts that kernels read: an H200's SM count, which sizes persistent grids
Triple = tuple[int, int, int]
# Where %envreg1 and %envreg2 lead: the words that a cooperative grid's barrier uses (CUDA's cooperative_groups).
WORKSPACE, WORKSPACE_BYTES = 0x5FFF_0000_0000, 64


_SOON_OR_LATE = ("late", "early")
WORDS = {  # what the fields of a policy may say
    "loads": _SOON_OR_LATE,
    "products": _SOON_OR_LATE,
    "stores": _SOON_OR_LATE,
    "lands": ("newest", "oldest"),
    "pick": ("in turn", "random"),
    "elect": ("lowest", "highest"),
    "waits": ("prompt", "reluctant"),
    "fences": ("path", "writers"),
    "lanes": ("strict", "converged", "off"),
}


@dataclass(frozen=True, repr=False)
class Policy:
    """The legal order to execute.

    loads     "late": a load into shared memory lands when nothing else can run; "early": when it is issued
    products  the same of tensor-core operations that run asynchronously
    stores    the same of asynchronous stores: when they read shared memory
    lands     of what is late, the "newest" first or the "oldest"
    pick      "in turn": a fiber runs until it waits; "random": they take turns after a few operations
    seed      of the random choices
    elect     the lane that elect.sync picks: "lowest" or "highest"
    waits     "prompt": mbarrier.try_wait says at once that a phase has ended; "reluctant": only when it is asked again,
              as if its time limit had run out just before, so that every loop around it turns
    fences    "path": a fence.proxy.async anywhere between a write and an asynchronous access counts, as in PTX; it is
              lint if it is not the writer's. "writers": the writer's own alone counts (`races/happens_before.py`)
    strict    hold practice to PTX and to CUTLASS: what is lint of buffers that are refilled, and of arrivals left at a
              named barrier, is a finding; implies fences="writers"
    races     look for races
    lanes     and between the lanes of one warp: "strict", by PTX's word; "converged", where what a warp has read counts
              as read by each of its lanes, with lint where shared memory is right by that alone; "off", where a warp is
              one thread (see `emulator/races/lanes.py`)
    edges     report tensor stores that write beyond the end of a line, up to its next 16 bytes, as the hardware does
              (see `ops/copy/tma.py`); False where the output owns its pitch, its last line's too
    register_strict  a missing wgmma.fence after results were waited for is no lint (see `ops/mma/wgmma.py`)
    tensor_strict  nor is a missing tcgen05.wait or tcgen05.fence (see `ops/tcgen05/waits.py`)
    limit     operations after which a run is taken for a livelock
    fill      what a byte of shared memory is before anything is written there
    """

    loads: str = "late"
    products: str = "late"
    stores: str = "late"
    lands: str = "newest"
    pick: str = "in turn"
    seed: int = 0
    elect: str = "lowest"
    waits: str = "prompt"
    strict: bool = False
    fences: str = "path"
    races: bool = True
    lanes: str = "converged"
    edges: bool = True
    register_strict: bool = False
    tensor_strict: bool = False
    limit: int = 100_000_000
    fill: int = POISON

    def __repr__(self) -> str:
        """The fields that are not the default, as Python that makes the policy."""
        said = [(one.name, getattr(self, one.name)) for one in fields(self) if getattr(self, one.name) != one.default]
        return f"Policy({', '.join([f'{name}={value!r}' for name, value in said])})"

    def __post_init__(self) -> None:
        settle(self, EmulatorError)
        for name, words in WORDS.items():
            if getattr(self, name) not in words:
                raise EmulatorError(
                    f"{name} = {shown(getattr(self, name))}; it is one of {', '.join(map(repr, words))}"
                )
        if self.strict:
            object.__setattr__(self, "fences", "writers")
        as_int(self.limit, "the limit of operations", EmulatorError, least=1)
        as_int(self.fill, "the fill of a byte", EmulatorError, least=0, most=255)


@dataclass
class Launch:
    """A kernel's launch: geometry in blocks and threads, shared bytes, parameter bytes, and memory.

    tensor_maps  offset in parameter space -> the tensor map there
    """

    grid: Triple
    block: Triple
    parameters: bytes
    memory: GlobalMemory
    cluster: Triple = (1, 1, 1)
    dynamic_shared: int = 0
    tensor_maps: dict[int, TensorMap] | None = None


@dataclass(frozen=True)
class Watch:
    """Records of a run in addition to findings and counts.

    banks     wavefronts of shared memory, instruction by instruction (`emulator/machine/bank_counts.py`)
    timeline  activity of each warp and engine over time (`timeline.py`)
    writers   the last writes to some bytes of global memory (`last_writers.py`)
    reads     values in place of those that some loads read (`unused_reads.py`)
    """

    banks: bool = False
    timeline: bool = False
    writers: LastWriters | None = None
    reads: ReplacedReads | None = None


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    done, clusters  clusters that have ended, and their total
    cta             coordinates of the first block of the running cluster
    operations      executed so far by all clusters, without arithmetic
    products        tensor-core products that the running cluster has issued
    """

    done: int
    clusters: int
    cta: Triple
    operations: int
    products: int


# Special registers that are the same in each launch. The fourth element of each vector is unused, and zero.
_CONSTANT: dict[str, Value] = {
    **{
        f"%{name}.w": 0
        for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
    },
    **{f"%envreg{n}": 0 for n in range(32)},
    **{f"%pm{n}{wide}": 0 for n in range(8) for wide in ("", "_64")},
    "%envreg1": WORKSPACE >> 32,
    "%envreg2": WORKSPACE & M32,
}


def special_registers(launch: Launch, coordinate: Triple, rank: int, shared: int, warp: int) -> dict[str, Value]:
    """%tid, %ctaid and the like of a warp, from its block. PTX ISA, "Special Registers"."""
    grid, size = launch.grid, launch.cluster
    special = _of_launch(launch.block, grid, size, warp).copy()
    special["%smid"] = (coordinate[0] + grid[0] * (coordinate[1] + grid[1] * coordinate[2])) % MULTIPROCESSORS
    special["%cluster_ctarank"] = rank
    special["%total_smem_size"] = special["%aggr_smem_size"] = shared
    special["%dynamic_smem_size"] = launch.dynamic_shared
    for axis, name in enumerate("xyz"):
        special[f"%ctaid.{name}"] = coordinate[axis]
        special[f"%clusterid.{name}"] = coordinate[axis] // size[axis]
        special[f"%cluster_ctaid.{name}"] = coordinate[axis] % size[axis]
    return special


@lru_cache(maxsize=256)
def _of_launch(block: Triple, grid: Triple, size: Triple, warp: int) -> dict[str, Value]:
    """Registers that the warps of one number share in all blocks. size: of a cluster."""
    thread = warp * LANES + LANE
    special: dict[str, Value] = {
        **_CONSTANT,
        "%laneid": LANE,
        "%warpid": warp,
        "%nwarpid": -(-block[0] * block[1] * block[2] // LANES),
        "%nsmid": MULTIPROCESSORS,
        "%gridid": 0,
        "%cluster_nctarank": size[0] * size[1] * size[2],
        "%is_explicit_cluster": True,
        "%reserved_smem_offset_begin": 0,
        "%reserved_smem_offset_end": 0,
        "%reserved_smem_offset_cap": 0,
        "%reserved_smem_offset_0": 0,
        "%reserved_smem_offset_1": 0,
        "%current_graph_exec": 0,  # of no graph
        "%lanemask_eq": 1 << LANE,
        "%lanemask_lt": (1 << LANE) - 1,
        "%lanemask_le": (2 << LANE) - 1,
        "%lanemask_gt": FULL ^ ((2 << LANE) - 1),
        "%lanemask_ge": FULL ^ ((1 << LANE) - 1),
    }
    places = (thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1]))
    for axis, name in enumerate("xyz"):
        place = places[axis]
        special[f"%tid.{name}"] = int(place[0]) if (place == place[0]).all() else place
        special[f"%ntid.{name}"] = block[axis]
        special[f"%nctaid.{name}"] = grid[axis]
        special[f"%nclusterid.{name}"] = grid[axis] // size[axis]
        special[f"%cluster_nctaid.{name}"] = size[axis]
    return special


# Special registers that count time: the shift of the bits that each has, and whether they go on from launch to launch.
CLOCKS = {
    "%clock": (0, M32, False), "%clock_hi": (32, M32, False), "%clock64": (0, M64, False),
    "%globaltimer": (0, M64, True), "%globaltimer_lo": (0, M32, True), "%globaltimer_hi": (32, M32, True),
}  # fmt: skip
# The names of all special registers.
SPECIAL = frozenset(CLOCKS) | frozenset(
    special_registers(Launch((1, 1, 1), (1, 1, 1), b"", GlobalMemory()), (0, 0, 0), 0, 0, 0)
)
