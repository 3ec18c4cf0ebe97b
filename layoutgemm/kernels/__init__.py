"""GEMM kernels: plans that derive and check everything, and the kernels that read them.

A size m handed to `layoutgemm.plan` passes through at most five files, here of sm_90a:

    planner                            the front door: which kernel, and its configurations
    sm90.choose.rules                  the configuration chosen: small_m's up to 64 rows, else the best estimate
    sm90.choose.small_m or large_m     estimates of time
    sm90.plan                          the plan
    sm90.request                       the arguments read and checked, and each object derived from them

On sm_80 and sm_120a planner, sm80.choose and sm80.plan see it, on sm_100a planner, sm100.choose and sm100.plan. At
every door `layoutgemm.arguments` reads it first.

Shared by the architectures:

    plan, plan_checks      what every plan has: limits, launch parameters, methods; its checks
    derive, derivation     operands: tile, copies and descriptor of A and B; a plan against the one derived again
    operand_orders         swapped operands
    alignment              which pitch, distance and address of a matrix an instruction refuses
    operands               several B, gates, a second pair, and the parts that go together
    orders                 orders of tiles by name, and their proofs
    store, store_ring      C from registers through shared memory by TMA; the pipeline of its buffers
    partials, epilogue     reductions of C in registers; an epilogue's steps
    column_groups          the lanes that hold neighbouring columns of C
    ragged                 groups of rows whose ends are known on the device alone
    thread_addresses       a thread's shared-memory addresses
    numbers, verbs         index arithmetic; functions that plans name as data
    explain, pictures, page  a plan as text, as a picture, as a linked page

compile has the compiler and its cache, run the launches, dsl every instruction, and quantized the formats of packed
weights. fp8 and gates are two kernels beside products; teaching and ladder have the kernels to learn from.
"""

from .derive import Operand
from .indexed.rows import IndexedRows, RowIndices
from .operands.block_scales import ScaleFormat
from .operands.combined import Combined
from .operands.prologue import Prologue, PrologueOperand
from .operands.promoted import Promoted, Table
from .plan import GemmPlan
from .planner import plan
from .ragged import AlongK, Ragged
from .run.error_bound import error_bound
from .run.result import GemmResult
from .sm80.plan import Sm80Config, Sm80Plan
from .sm90.config import Sm90Tuning
from .sm90.operands.row_sums import RowSums
from .sm90.plan import Sm90Config, Sm90Plan
from .sm90.quantized.feature_parts import FeatureParts
from .sm90.triangular.operands import Triangles
from .sm100.block_scales import BlockScales
from .sm100.choose import choose_sm100
from .sm100.plan import Sm100Config, Sm100Plan
from .streamed.plan import StreamedConfig, StreamedPlan
from .teaching.plan import TeachingConfig, TeachingPlan

__all__ = [
    "AlongK",
    "BlockScales",
    "Combined",
    "FeatureParts",
    "GemmPlan",
    "GemmResult",
    "IndexedRows",
    "Operand",
    "Prologue",
    "PrologueOperand",
    "Promoted",
    "Ragged",
    "RowIndices",
    "RowSums",
    "ScaleFormat",
    "Sm80Config",
    "Sm80Plan",
    "Sm90Config",
    "Sm90Plan",
    "Sm90Tuning",
    "Sm100Config",
    "Sm100Plan",
    "StreamedConfig",
    "StreamedPlan",
    "Table",
    "TeachingConfig",
    "TeachingPlan",
    "Triangles",
    "choose_sm100",
    "error_bound",
    "plan",
]
