"""TeachingPlan: every object that the teaching kernel is made of, derived, checked, explained.

A plan is a frozen value. `TeachingPlan.derive` turns a problem (sizes, types, orders, architecture) into a matrix
instruction, shared-memory tiles, descriptors, tensor copies, barriers and budgets; the kernel reads them from here and
from nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...arch import Arch
from ...arch import arch as arch_named
from ...arguments import as_number, checked, shown
from ...atoms import MmaAtom, SmemTile, wgmma
from ...atoms.tma.derive import STRIDE_UNIT
from ...dtypes import bf16, f16, f32
from ...errors import PlanError
from ..derive import Operand, OperandPlan, OperandSpec, derive_operand
from ..numbers import W
from ..plan import (
    BARRIER_BYTES,
    DEFAULT_STAGES,
    MAX_COORDINATE,
    PARAMETERS,
    GemmPlan,
    SmemMap,
    check_fields,
    check_sizes,
    fitting_stages,
    rounded_up,
    tile_count,
)


@dataclass(frozen=True, slots=True)
class TeachingConfig:
    """The configuration of one kernel; None lets the plan choose.

    tile_n     columns of C a block computes: wgmma's N, 8 to 256 in steps of 8
    tile_k     depth of one stage, a multiple of 16 elements
    stages     how many k tiles are in flight; default 4, or fewer where shared memory does not hold them
    swizzle_a, swizzle_b   "none", "32B", "64B", "128B"; default the widest that fits
    """

    tile_n: int = 64
    tile_k: int = 64
    stages: int | None = None
    swizzle_a: str | None = None
    swizzle_b: str | None = None


@dataclass(frozen=True, slots=True)
class BarrierPlan:
    """The barriers of the kernel. One an stage, completed by one arrival plus the bytes of that stage's copies."""

    name: str
    count: int
    arrivals: int
    bytes: int


@dataclass(frozen=True)
class TeachingPlan(GemmPlan):
    """C[M, N] = A[M, K] @ B[K, N] on one architecture; see `derive`."""

    m: int
    n: int
    k: int
    arch: Arch
    a: OperandPlan
    b: OperandPlan
    c: Operand
    mma: MmaAtom
    tile: tuple[int, int, int]
    stages: int
    smem: SmemMap
    barrier: BarrierPlan
    config: TeachingConfig = field(default_factory=TeachingConfig)
    parameters = PARAMETERS
    device_kernel = "teaching.device.kernel:Sm90SingleKernel"
    verbs = GemmPlan.verbs | {
        "check": "teaching.checks:check_plan",
        "execute": "teaching.reference:execute",
        "explain": "teaching.explain:explain_plan",
    }
    batch = 1  # matrices: this kernel multiplies one pair

    # ------------------------------------------------------------------------------------------------------- derivation
    @classmethod
    @checked(PlanError)
    def derive(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        arch: str | Arch = "sm_90a",
        a: OperandSpec = "bf16",
        b: OperandSpec | None = None,
        c: OperandSpec | None = None,
        config: TeachingConfig | None = None,
    ) -> TeachingPlan:
        """Derive the kernel for C[m, n] = A[m, k] @ B[k, n].

        m, n, k  any positive sizes; ragged edges are filled with zeros on load and guarded on store
        arch     one with wgmma, which is "sm_90a"
        a, b     bf16 or f16, ":row" (default) or ":col", as in "bf16:col"; b defaults to a's type, row-major
        c        f32 (default), or the type of the inputs, row-major
        config   choices; None for the defaults

        Raises PlanError naming the argument and the arithmetic when no such kernel exists, and passes on AtomError,
        DescriptorError and TmaError when a derivation is refused.

        >>> plan = TeachingPlan.derive(200, 136, 72, a="bf16", b="bf16:col")
        >>> plan.tile, plan.stages, plan.barrier.bytes
        ((64, 64, 64), 4, 16384)
        >>> hex(plan.a.descriptor.word), plan.b.tma.box
        ('0x4000004000010000', (64, 64))
        """
        target = arch_named(arch)
        check_sizes(m=m, n=n, k=k)
        target.require("wgmma", "this kernel")
        config = config or TeachingConfig()
        check_fields(config, stages=0)
        a_spec = Operand.parse(a)
        b_spec = Operand.parse(a_spec.dtype if b is None else b)
        c_spec = Operand.parse("f32" if c is None else c)
        if c_spec.order != "row":
            raise PlanError(f"c is {c_spec}; this kernel stores row-major. Compute the transpose: C^T = B^T @ A^T")
        if c_spec.dtype not in (f32, a_spec.dtype):
            raise PlanError(f"c is {c_spec.dtype}; this kernel stores f32 or the inputs' {a_spec.dtype}")
        if a_spec.dtype not in (bf16, f16) or a_spec.dtype != b_spec.dtype:
            raise PlanError(
                f"this kernel takes A and B both bf16 or both f16; got A {a_spec.dtype} and B {b_spec.dtype}"
            )
        atom = wgmma(config.tile_n, a_spec.dtype, b_spec.dtype)
        tile_m, _, depth = atom.shape_mnk
        if config.tile_k < depth:
            raise PlanError(f"tile_k = {shown(config.tile_k)}: a stage holds at least one K block of {depth} elements")
        if config.tile_k % depth:
            raise PlanError(f"tile_k = {config.tile_k} is no multiple of the instruction's K = {depth}")
        a_plan = derive_operand("A", a_spec, "M", tile_m, config.tile_k, config.swizzle_a, atom)
        b_plan = derive_operand("B", b_spec, "N", config.tile_n, config.tile_k, config.swizzle_b, atom)
        stages = _stages(config.stages, a_plan, b_plan, target)
        stage_bytes = a_plan.tma.bytes + b_plan.tma.bytes
        plan = cls(
            m=m, n=n, k=k, arch=target, a=a_plan, b=b_plan, c=c_spec, mma=atom,
            tile=(tile_m, config.tile_n, config.tile_k),
            stages=stages,
            smem=_smem_map(a_plan.smem, b_plan.smem, stages),
            barrier=BarrierPlan("full", stages, 1, stage_bytes),
            config=config,
        )  # fmt: skip
        if plan.grid[0] > MAX_COORDINATE:
            raise PlanError(
                f"{m}x{n} in tiles of {tile_m}x{config.tile_n} is {plan.grid[0]} tiles; a grid holds 2**31 - 1 blocks"
            )
        return plan

    # ------------------------------------------------------------------------------------------------------- properties
    @property
    def threads(self) -> int:
        """Threads of a block: those of the one matrix instruction."""
        return self.mma.threads

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Tiles along M, N and K, the last of each possibly ragged."""
        m, n, k = (tile_count(size, tile) for size, tile in zip((self.m, self.n, self.k), self.tile, strict=True))
        return (m, n, k)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of the launch: one a tile of C, tiles along N first."""
        return (self.tiles[0] * self.tiles[1], 1, 1)

    @checked(PlanError)
    def tile_origin(self, block: W, tiles_n: W | None = None) -> tuple[W, W]:
        """Block number -> (first row, first column) of its tile of C. `tiles_n` may be given at run time.

        >>> TeachingPlan.derive(200, 136, 64).tile_origin(4)
        (64, 64)
        """
        along_n = self.tiles[1] if tiles_n is None else as_number(tiles_n, "tiles of N", PlanError, least=1)
        return block // along_n * self.tile[0], block % along_n * self.tile[1]

    def for_any_size(self) -> TeachingPlan:
        """The plan of the same kernel for a problem of 1x1x1. What the trace sees, and what its name is made of."""
        return replace(self, m=1, n=1, k=1, config=TeachingConfig())

    def __str__(self) -> str:
        return (
            f"TeachingPlan {self.m}x{self.n}x{self.k} {self.arch.name}: A {self.a.dtype} {self.a.order}, "
            f"B {self.b.dtype} {self.b.order}, C {self.c.dtype}, tile {'x'.join(map(str, self.tile))}, "
            f"{self.stages} stages"
        )


def _smem_map(a: SmemTile, b: SmemTile, stages: int) -> SmemMap:
    """A's stages, then B's, then the barriers; every stage starts at a multiple of its tile's alignment."""
    a_stage, b_stage = rounded_up(a.bytes, a.alignment), rounded_up(b.bytes, b.alignment)
    b_offset = rounded_up(stages * a_stage, b.alignment)
    barrier_offset = b_offset + stages * b_stage
    return SmemMap(
        a_offset=0,
        a_stage_bytes=a_stage,
        b_offset=b_offset,
        b_stage_bytes=b_stage,
        barrier_offset=barrier_offset,
        barrier_bytes=BARRIER_BYTES,
        total=barrier_offset + stages * BARRIER_BYTES,
        alignment=max(a.alignment, b.alignment),
    )


def _stages(asked: int | None, a: OperandPlan, b: OperandPlan, target: Arch) -> int:
    each = rounded_up(a.smem.bytes, a.smem.alignment) + rounded_up(b.smem.bytes, b.smem.alignment) + BARRIER_BYTES
    beside = max(0, b.smem.alignment - a.smem.alignment)  # between the stages of A and of B
    taken = f"A {a.smem.bytes} + B {b.smem.bytes} bytes"
    return fitting_stages(target, asked, 1, each, beside, taken, most=DEFAULT_STAGES)


__all__ = [
    "BARRIER_BYTES",
    "MAX_COORDINATE",
    "PARAMETERS",
    "STRIDE_UNIT",
    "TeachingConfig",
    "TeachingPlan",
]
