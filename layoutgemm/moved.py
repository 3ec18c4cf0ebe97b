"""Old import paths, which still work and warn with the new path.

`MODULES` maps a module's path below `layoutgemm` to where its code is now, `NAMES` single names that left a package.
They go in version 0.2.

>>> with warnings.catch_warnings(record=True) as caught:
...     warnings.simplefilter("always")
...     found = old_names("layoutgemm.checks")("Grouped")
>>> str(caught[0].message)
'layoutgemm.checks.Grouped is now layoutgemm.schedule.Grouped; the old path goes in version 0.2'
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

ROOT = __name__.partition(".")[0]


def warn(old: str, new: str, stacklevel: int) -> None:
    """Warn that the path `old` is now `new`, both below layoutgemm."""
    text = f"{ROOT}.{old} is now {ROOT}.{new}; the old path goes in version 0.2"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)


class CallableModule(ModuleType):
    """A module that is callable as its function of the same name: `layoutgemm.tune`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function that has the module's name."""
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **options)


class Package(ModuleType):
    """A package that keeps its own name when a module of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, CallableModule) and name in self.__dict__):
            super().__setattr__(name, value)


class OldModule(Loader):
    """A loader of empty modules at old paths, which forward names to new paths."""

    def create_module(self, spec: ModuleSpec) -> None:
        """None: the import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the names that the old one had."""
        module.__class__ = CallableModule
        package = sys.modules[module.__name__.rpartition(".")[0]]
        if type(package) is ModuleType:
            package.__class__ = Package
        module.__getattr__ = old_names(module.__name__)  # type: ignore[method-assign]


class OldPaths(MetaPathFinder):
    """A finder of modules by their old paths, after every other finder has failed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of an old path, with a warning; None for any other name."""
        old = name.removeprefix(f"{ROOT}.")
        if old == name or old not in MODULES:
            return None
        warn(old, MODULES[old], 2)
        return ModuleSpec(name, OldModule(), is_package=any(each.startswith(f"{old}.") for each in MODULES))


def old_names(module: str, frames: int = 0) -> Callable[[str], Any]:
    """A `__getattr__` for `module`: the old module's names, from their new places.

    frames  calls between the module's `__getattr__` and this one, for the warning's line
    """
    old = module.removeprefix(ROOT).removeprefix(".")

    def look_up(name: str) -> Any:
        home = MODULES.get(old)
        home = NAMES.get((old, name)) or NAMES.get((home or "", name)) or home
        path = vars(sys.modules[module]).get("__path__", ())
        if path and PathFinder.find_spec(f"{module}.{name}", path):
            home = None  # `from . import name` calls this first, and then imports the submodule
        if home is not None and not name.startswith("__"):
            home, _, new = home.partition(":")
            new = new or name
            found = import_module(f"{ROOT}.{home}")
            if hasattr(found, new):
                warn(f"{old}.{name}".removeprefix("."), f"{home}.{new}", 2 + frames)
                return getattr(found, new)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])

    return look_up


# (old module, name) -> its module now, with a new name after a colon
NAMES = {
    ("atoms.mma_sync", "Form"): "atoms.mma.sync:SyncForm",
    ("atoms.mma_wgmma", "Form"): "atoms.mma.wgmma:WgmmaForm",
    ("checks.pipeline_records", "Access"): "checks.pipeline.happens_before:ModelAccess",
    ("kernels.dsl.bridge", "Operand"): "kernels.dsl.bridge:WgmmaOperand",
    ("kernels.dsl.wgmma", "Operand"): "kernels.dsl.wgmma:WgmmaOperand",
    ("kernels.epilogue.numpy_math", "Matrix"): "kernels.epilogue.numpy_math:EpilogueMatrix",
    ("kernels.run.hardware_model", "SharedMemory"): "kernels.run.hardware_model:SharedBytes",
    ("kernels.sm80.operand", "Places"): "kernels.sm80.operand:ThreadAddresses",
    ("kernels.sass", "Instruction"): "kernels.compile.sass:SassInstruction",
    ("kernels.sm90_promoted", "Element"): "kernels.sm90.device.promoted:PromotedElement",
    ("view.box", "Placed"): "view.box:PlacedBox",
    ("view.grid", "Offsets"): "view.grid:GridOffsets",
    ("", "AtomError"): "errors",
    ("", "BudgetError"): "errors",
    ("", "CompositionError"): "errors",
    ("", "CoordinateError"): "errors",
    ("", "DescriptorError"): "errors",
    ("", "OperandError"): "errors",
    ("", "ParseError"): "errors",
    ("", "PlanError"): "errors",
    ("", "SwizzleError"): "errors",
    ("", "TensorError"): "errors",
    ("", "TmaError"): "errors",
    ("", "FactError"): "layouts.symbols.generators",
    ("", "GemmConfig"): "kernels.teaching.plan:TeachingConfig",
    ("", "MissingFact"): "layouts.symbols.polynomial",
    ("", "ScaledBasis"): "layouts",
    ("", "Verdict"): "layouts",
    ("kernels", "GemmConfig"): "kernels.teaching.plan:TeachingConfig",
    ("kernels.plan_base", "PlanVerbs"): "kernels.plan:GemmPlan",
    ("kernels.sm90_plan", "GemmPlan"): "kernels.plan",
    ("kernels.plan", "GemmConfig"): "kernels.teaching.plan:TeachingConfig",
    ("kernels.teaching.plan", "GemmConfig"): "kernels.teaching.plan:TeachingConfig",
    ("kernels.teaching.plan", "GemmPlan"): "kernels.plan",
    ("layouts.inttuple", "IntTuple"): "arguments",
    ("layouts.symbolic_arguments", "become_symbolic"): "layouts.symbols.symbolic_layout:joined",
    ("layouts.symbolic_arguments", "joined"): "layouts.symbols.symbolic_layout",
    ("layouts.symbolic_arguments", "lift"): "layouts.symbols.symbolic_layout",
    ("layouts.inttuple", "plain"): "arguments",
    ("checks", "Check"): "report",
    ("checks", "Dealt"): "schedule",
    ("checks", "Grouped"): "schedule",
    ("checks", "Hilbert"): "schedule",
    ("checks", "Hopper"): "kernels.sm90.pipeline_model",
    ("checks", "Linear"): "schedule",
    ("checks", "Persistent"): "schedule",
    ("checks", "Report"): "report",
    ("checks", "Reuse"): "schedule",
    ("checks", "Schedule"): "schedule",
    ("checks", "Segment"): "schedule",
    ("checks", "StoreRing"): "kernels.store_ring",
    ("checks", "StreamK"): "schedule",
    ("checks", "reuse"): "schedule",
    ("checks", "visits_once"): "schedule",
    ("kernels.explain", "explain_operand"): "kernels.explain",
    ("kernels.explain", "explain_workspace"): "kernels.explain",
    ("kernels.plan", "BARRIER_BYTES"): "kernels.plan",
    ("kernels.plan", "Given"): "kernels.derive",
    ("kernels.plan", "MAX_COORDINATE"): "kernels.plan",
    ("kernels.plan", "ORDERS"): "kernels.derive",
    ("kernels.plan", "Operand"): "kernels.derive",
    ("kernels.plan", "OperandPlan"): "kernels.derive",
    ("kernels.plan", "PARAMETERS"): "kernels.plan",
    ("kernels.plan", "STRIDE_UNIT"): "atoms.tma.derive",
    ("kernels.plan", "derive_operand"): "kernels.derive",
    ("kernels.plan", "padded_leading"): "kernels.derive",
    ("kernels.run", "DEVICES"): "kernels.run.result",
    ("kernels.run", "GemmResult"): "kernels.run.result",
    ("kernels.run", "batched"): "kernels.run.arrays",
    ("kernels.run", "columns_of_b"): "kernels.run.arrays",
    ("kernels.run", "global_matrix"): "kernels.run.arrays",
    ("kernels.run", "pitch_rule"): "kernels.run.arrays",
    ("kernels.run", "raw_bits"): "kernels.run.arrays",
    ("kernels.run", "refuse_or_note"): "kernels.run.arrays",
    ("kernels.run", "error_bound"): "kernels.run.error_bound",
    ("kernels.run", "run_on_cpu"): "kernels.run.cpu",
    ("kernels.run", "run_reference"): "kernels.run.cpu",
    ("kernels.run_sm80", "run_sm80"): "kernels.run.numpy_arrays:run_plan",
    ("kernels.device", "PERSISTENT"): "kernels.run.tensor_maps",
    ("kernels.device", "run_given"): "kernels.run.tensor_maps",
    ("kernels.device", "tma_operand"): "kernels.run.tensor_maps",
    ("kernels.proofs", "check_plan"): "kernels.teaching.checks",
    ("kernels.sm100_fused", "fused_values"): "kernels.sm100.device.loaded",
    ("kernels.sm90_fused", "Element"): "kernels.dsl.fused",
    ("kernels.sm90_fused", "FusedBlock"): "kernels.dsl.fused",
    ("kernels.sm90_fused", "Pair"): "kernels.dsl.fused",
    ("kernels.sm100_explain", "load_svg"): "kernels.pictures:tmem_load_svg",
    ("kernels.sm90_ends", "Ends"): "kernels.derive",
    ("kernels.sm90_ends", "either"): "kernels.derive",
    ("kernels.sm90_explain", "BarrierRow"): "kernels.explain",
    ("kernels.sm90_explain", "RoleRow"): "kernels.explain",
    ("kernels.sm90_proofs", "MOST_BYTES"): "kernels.plan",
    ("kernels.sm90_reference", "CLUSTERS"): "kernels.run.hardware_model",
    ("kernels.sm90_shares", "one_matrix"): "kernels.derive",
    ("kernels.sm90_store_proofs", "distinct_chunks"): "kernels.store",
    ("torch_op.bias_activation", "check_activation"): "torch_op.checks",
    ("torch_op.bias_activation", "check_finish"): "torch_op.checks",
    ("torch_op.bias_activation", "scalars_of"): "torch_op.checks",
    ("torch_op.library", "gated_finish"): "torch_op.bias_activation",
    ("torch_op.library", "why_unfused"): "torch_op.solver",
    ("torch_op.launch", "C_NAMES"): "torch_op.types",
    ("torch_op.launch", "NAMES"): "torch_op.types",
    ("torch_op.launch", "TYPES"): "torch_op.types",
    ("torch_op.launch", "emulate"): "torch_op.emulated",
    ("torch_op.launch", "given"): "torch_op.prepared",
    ("torch_op.launch", "gpu"): "torch_op.prepared",
    ("torch_op.launch", "problem_of"): "torch_op.prepared",
    ("torch_op.launch", "start"): "torch_op.prepared",
    ("torch_op.launch", "target"): "torch_op.prepared",
    ("torch_op.operator", "MAX_PREPARED"): "torch_op.prepared",
    ("torch_op.operator", "config_text"): "torch_op.prepared",
    ("torch_op.operator", "forget"): "torch_op.prepared",
    ("torch_op.operator", "prepare"): "torch_op.prepared",
    ("torch_op.operator", "problem_at"): "torch_op.prepared",
    ("torch_op.operator", "product"): "torch_op.compute",
    ("torch_op.problem", "MAX_LAUNCHES"): "torch_op.solver",
    ("torch_op.problem", "STRETCHED_IN_MAP"): "torch_op.solver",
    ("torch_op.problem", "padded_strides"): "torch_op.solver",
    ("torch_op.problem", "solve"): "torch_op.solver",
    ("bench", "Verdict"): "bench.method:Accuracy",
    ("bench_cublaslt", "Operand"): "bench.cublaslt:CublasLtMatrix",
    ("bench_cublaslt", "Product"): "bench.cublaslt:CublasLtProduct",
    ("doctor", "Finding"): "cli.doctor:ReportLine",
    ("emulator.arguments", "Arrays"): "emulator.host.arguments:ArgumentMemory",
    ("emulator.codegen", "Generator"): "emulator.ptx.codegen:CodeGenerator",
    ("emulator.dsl_host", "Leaf"): "emulator.host.dsl_calls:CallValue",
    ("emulator.host_types", "Mode"): "emulator.host.types:TensorMode",
    ("emulator.machine", "Machine"): "emulator.machine.interpreter:PtxMachine",
    ("emulator.memory", "Buffer"): "emulator.machine.memory:GlobalBuffer",
    ("emulator.memory", "SharedMemory"): "emulator.machine.memory:CtaSharedMemory",
    ("emulator.mutate", "Case"): "emulator.mutation.run:LaunchCase",
    ("emulator.mutate", "Row"): "emulator.mutation.run:MutantOutcome",
    ("emulator.ops.barrier", "Mbarrier"): "emulator.ops.barrier:EmulatedMbarrier",
    ("emulator.ops.copy_async", "Copy"): "emulator.ops.copy.cp_async:CpAsyncCopy",
    ("emulator.ops.fragments", "Fragment"): "emulator.ops.mma.fragments:RegisterFragment",
    ("emulator.ops.held", "Held"): "emulator.ops.in_flight:InFlightRegister",
    ("emulator.ops.memory", "Form"): "emulator.ops.memory:AccessForm",
    ("emulator.ops.mma_sync", "Fragment"): "emulator.ops.mma.sync:WarpOperand",
    ("emulator.ops.operands", "Read"): "emulator.ops.mma.operands:SharedOperandRead",
    ("emulator.ops.tcgen05_mma", "Form"): "emulator.ops.tcgen05.mma:Tcgen05Operation",
    ("emulator.ops.tensor_memory", "Places"): "emulator.ops.tcgen05.tmem:TmemCoordinates",
    ("emulator.ops.tma", "Box"): "emulator.ops.copy.tma:TmaTransfer",
    ("emulator.ops.wgmma", "Form"): "emulator.ops.mma.wgmma:WgmmaOperation",
    ("emulator.ops.wgmma", "Product"): "emulator.ops.mma.wgmma:IssuedWgmma",
    ("emulator.order", "Event"): "emulator.races.happens_before:MemoryEvent",
    ("emulator.program", "Segment"): "emulator.ptx.program:CodeSegment",
    ("emulator.ptx", "Instruction"): "emulator.ptx.parser:PtxInstruction",
    ("emulator.ptx", "Kernel"): "emulator.ptx.parser:PtxKernel",
    ("emulator.ptx", "Operand"): "emulator.ptx.parser:PtxOperand",
    ("emulator.timeline", "Row"): "emulator.machine.timeline:TimelineRow",
    ("emulator.trace", "Trace"): "emulator.mutation.trace:AccessTrace",
    ("emulator.trace", "Traced"): "emulator.mutation.trace:TracingMachine",
}

MODULES = {
    "atoms.canonical": "atoms.smem.canonical_layouts",
    "atoms.copy": "atoms.copy.base",
    "atoms.copy_async": "atoms.copy.cp_async",
    "atoms.copy_feeds": "atoms.copy.feeds_mma",
    "atoms.copy_matrix": "atoms.copy.ldmatrix",
    "atoms.copy_tmem": "atoms.copy.tmem",
    "atoms.copy_vector": "atoms.copy.vector",
    "atoms.describe": "atoms.smem.describe",
    "atoms.descriptor": "atoms.smem.descriptor",
    "atoms.descriptor_fields": "atoms.smem.bit_fields",
    "atoms.descriptor_operand": "atoms.smem.operand_read",
    "atoms.descriptor_words": "atoms.smem.descriptor_words",
    "atoms.families": "atoms.catalog",
    "atoms.fragments": "atoms.mma.warp_fragments",
    "atoms.instruction_descriptor": "atoms.smem.instruction_descriptor",
    "atoms.mma": "atoms.mma.base",
    "atoms.mma_fma": "atoms.mma.fma",
    "atoms.mma_scales": "atoms.mma.block_scales",
    "atoms.mma_sync": "atoms.mma.sync",
    "atoms.mma_tcgen05": "atoms.mma.tcgen05",
    "atoms.mma_wgmma": "atoms.mma.wgmma",
    "atoms.smem": "atoms.smem.tile",
    "atoms.tiled_copies": "atoms.tiled.derived_copies",
    "atoms.tiled_copy": "atoms.tiled.copy",
    "atoms.tiled_mma": "atoms.tiled.mma",
    "atoms.tiled_view": "atoms.tiled.thread_map",
    "atoms.tma": "atoms.tma.derive",
    "atoms.tma_box": "atoms.tma.box",
    "atoms.tma_engine": "atoms.tma.engine",
    "atoms.tma_multicast": "atoms.tma.multicast",
    "atoms.tma_nearest": "atoms.tma.suggest",
    "atoms.tma_plan": "atoms.tma.plan",
    "atoms.tma_rules": "atoms.tma.rules",
    "atoms.tmem": "atoms.tmem.layout",
    "atoms.tmem_fragment": "atoms.tmem.fragment",
    "bench": "bench.method",
    "bench_contenders": "bench.contenders",
    "bench_cublaslt": "bench.cublaslt",
    "bench_machine": "bench.machine",
    "bench_matmul": "bench.matmul",
    "bench_outcome": "bench.outcome",
    "checks.accesses": "checks.smem.access_patterns",
    "checks.banks": "checks.smem.bank_conflicts",
    "checks.dealt": "schedule.gpc_order",
    "checks.persistent": "schedule.persistent",
    "checks.pipeline": "checks.pipeline.model",
    "checks.pipeline_actions": "checks.pipeline.actions",
    "checks.pipeline_barriers": "checks.pipeline.barriers",
    "checks.pipeline_blackwell": "kernels.sm100.pipeline_model",
    "checks.pipeline_code": "checks.pipeline.program",
    "checks.pipeline_hopper": "kernels.sm90.pipeline_model",
    "checks.pipeline_machine": "checks.pipeline.machine",
    "checks.pipeline_patterns": "checks.pipeline.patterns",
    "checks.pipeline_prove": "checks.pipeline.prove",
    "checks.pipeline_records": "checks.pipeline.happens_before",
    "checks.pipeline_table": "checks.pipeline.table",
    "checks.pipeline_trace": "checks.pipeline.trace",
    "checks.report": "report",
    "checks.reuse": "schedule.l2_reuse",
    "checks.schedules": "schedule.tile_order",
    "checks.swizzle_search": "checks.smem.swizzle_search",
    "checks.tiles": "checks.smem.tile_views",
    "cli": "cli.main",
    "command": "cli",
    "command.arguments": "cli.arguments",
    "command.banks": "cli.banks",
    "command.bench": "cli.bench",
    "command.named": "cli.object_names",
    "command.page": "cli.pages",
    "command.plans": "cli.plan",
    "command.shared": "cli.descriptors",
    "command.show": "cli.show",
    "doctor": "cli.doctor",
    "emulator.arguments": "emulator.host.arguments",
    "emulator.bank_counts": "emulator.machine.bank_counts",
    "emulator.census": "emulator.ptx.coverage",
    "emulator.codegen": "emulator.ptx.codegen",
    "emulator.command": "cli.emulate",
    "emulator.dsl_host": "emulator.host.dsl_calls",
    "emulator.floats": "emulator.ptx.floats",
    "emulator.host": "emulator.host.launcher",
    "emulator.host_types": "emulator.host.types",
    "emulator.lane_order": "emulator.races.lanes",
    "emulator.lane_words": "emulator.races.global_words",
    "emulator.launch": "emulator.machine.launch",
    "emulator.machine": "emulator.machine.interpreter",
    "emulator.memory": "emulator.machine.memory",
    "emulator.mutants": "emulator.mutation.mutants",
    "emulator.mutate": "emulator.mutation.run",
    "emulator.mutate_api": "emulator.mutation.api",
    "emulator.ops.bulk_groups": "emulator.ops.copy.bulk_groups",
    "emulator.ops.copy_async": "emulator.ops.copy.cp_async",
    "emulator.ops.copy_bulk": "emulator.ops.copy.bulk",
    "emulator.ops.fragments": "emulator.ops.mma.fragments",
    "emulator.ops.held": "emulator.ops.in_flight",
    "emulator.ops.lanes": "emulator.ops.warp",
    "emulator.ops.matrix": "emulator.ops.copy.ldmatrix",
    "emulator.ops.mma_runs": "emulator.ops.mma.batching",
    "emulator.ops.mma_sync": "emulator.ops.mma.sync",
    "emulator.ops.operands": "emulator.ops.mma.operands",
    "emulator.ops.tcgen05": "emulator.ops.tcgen05.allocation",
    "emulator.ops.tcgen05_copy": "emulator.ops.tcgen05.copy",
    "emulator.ops.tcgen05_mma": "emulator.ops.tcgen05.mma",
    "emulator.ops.tcgen05_shift": "emulator.ops.tcgen05.shift",
    "emulator.ops.tensor_memory": "emulator.ops.tcgen05.tmem",
    "emulator.ops.tensor_waits": "emulator.ops.tcgen05.waits",
    "emulator.ops.tensormap": "emulator.ops.copy.tensormap",
    "emulator.ops.tma": "emulator.ops.copy.tma",
    "emulator.ops.wgmma": "emulator.ops.mma.wgmma",
    "emulator.order": "emulator.races.happens_before",
    "emulator.program": "emulator.ptx.program",
    "emulator.ptx": "emulator.ptx.parser",
    "emulator.redundant": "emulator.mutation.survivors",
    "emulator.slices": "emulator.mutation.dataflow",
    "emulator.tensor_map": "emulator.machine.tensor_map",
    "emulator.timeline": "emulator.machine.timeline",
    "emulator.trace": "emulator.mutation.trace",
    "emulator.undefined": "emulator.machine.unwritten_memory",
    "emulator.uninitialized": "emulator.machine.uninitialized",
    "emulator.values": "emulator.ptx.values",
    "interop.dsl_refused": "interop.unsupported",
    "interop.give": "interop.cute_writer",
    "interop.take": "interop.cute_reader",
    "kernels.bridge": "kernels.dsl.bridge",
    "kernels.bridge_ampere": "kernels.dsl.ampere",
    "kernels.bridge_convert": "interop.to_dsl",
    "kernels.bridge_copies": "kernels.dsl.copies",
    "kernels.bridge_math": "kernels.dsl.math",
    "kernels.bridge_registers": "kernels.dsl.registers",
    "kernels.bridge_sync": "kernels.dsl.sync",
    "kernels.bridge_tables": "kernels.dsl.tables",
    "kernels.bridge_tcgen05": "kernels.dsl.tcgen05",
    "kernels.bridge_types": "kernels.dsl.types",
    "kernels.bridge_warp": "kernels.dsl.warp",
    "kernels.bridge_wgmma": "kernels.dsl.wgmma",
    "kernels.choice": "kernels.operand_orders",
    "kernels.compile": "kernels.compile.compiler",
    "kernels.compile_apart": "kernels.compile.worker",
    "kernels.compile_launch": "kernels.compile.launcher",
    "kernels.device": "kernels.run.torch_tensors",
    "kernels.device_levels": "kernels.ladder.on_gpu",
    "kernels.device_operands": "kernels.run.operand_checks",
    "kernels.device_places": "kernels.run.occupancy",
    "kernels.emulated": "kernels.run.emulated",
    "kernels.epilogue": "kernels.epilogue.chain",
    "kernels.epilogue_arrays": "kernels.epilogue.arrays",
    "kernels.epilogue_numpy": "kernels.epilogue.numpy_math",
    "kernels.epilogue_steps": "kernels.epilogue.steps",
    "kernels.epilogue_trace": "kernels.epilogue.tracing",
    "kernels.epilogue_words": "kernels.epilogue.parameters",
    "kernels.explain": "kernels.teaching.explain",
    "kernels.level_checks": "kernels.ladder.level_checks",
    "kernels.levels": "kernels.ladder.levels",
    "kernels.linked": "kernels.page",
    "kernels.object_cache": "kernels.compile.cache",
    "kernels.plan": "kernels.teaching.plan",
    "kernels.plan_base": "kernels.plan",
    "kernels.primitives": "kernels.ladder.primitives",
    "kernels.proofs": "kernels.plan_checks",
    "kernels.reference": "kernels.teaching.reference",
    "kernels.run": "kernels.run.numpy_arrays",
    "kernels.run_fused": "kernels.run.fused",
    "kernels.run_given": "kernels.run.epilogue_operands",
    "kernels.run_sm80": "kernels.run.ampere",
    "kernels.sass": "kernels.compile.sass",
    "kernels.silicon": "kernels.run.hardware_model",
    "kernels.sm100_epilogue": "kernels.sm100.device.epilogue",
    "kernels.sm100_explain": "kernels.sm100.explain",
    "kernels.sm100_fused": "kernels.sm100.device.fused",
    "kernels.sm100_gemm": "kernels.sm100.device.gemm",
    "kernels.sm100_plan": "kernels.sm100.plan",
    "kernels.sm100_proofs": "kernels.sm100.checks",
    "kernels.sm100_reference": "kernels.sm100.reference",
    "kernels.sm100_store": "kernels.sm100.store",
    "kernels.sm100_store_proofs": "kernels.sm100.store_checks",
    "kernels.sm120_gemm": "kernels.sm80.device.gemm_tma",
    "kernels.sm80_choice": "kernels.sm80.choose",
    "kernels.sm80_epilogue": "kernels.sm80.device.epilogue",
    "kernels.sm80_explain": "kernels.sm80.explain",
    "kernels.sm80_gemm": "kernels.sm80.device.gemm",
    "kernels.sm80_operand": "kernels.sm80.operand",
    "kernels.sm80_persistent": "kernels.sm80.device.persistent",
    "kernels.sm80_pipeline": "kernels.sm80.pipeline",
    "kernels.sm80_plan": "kernels.sm80.plan",
    "kernels.sm80_proofs": "kernels.sm80.checks",
    "kernels.sm80_reference": "kernels.sm80.reference",
    "kernels.sm80_store": "kernels.sm80.store",
    "kernels.sm80_store_proofs": "kernels.sm80.store_checks",
    "kernels.sm90_budgets": "kernels.sm90.budget_checks",
    "kernels.sm90_choice": "kernels.sm90.choose.rules",
    "kernels.sm90_config": "kernels.sm90.config",
    "kernels.sm90_ends": "kernels.sm90.edges",
    "kernels.sm90_epilogue": "kernels.sm90.device.epilogue",
    "kernels.sm90_explain": "kernels.sm90.explain",
    "kernels.sm90_few_rows": "kernels.sm90.choose.small_m",
    "kernels.sm90_fused": "kernels.sm90.device.fused",
    "kernels.sm90_gated": "kernels.sm90.gated",
    "kernels.sm90_gated_proofs": "kernels.sm90.gated_checks",
    "kernels.sm90_gemm": "kernels.sm90.device.gemm",
    "kernels.sm90_loads": "kernels.sm90.device.loads",
    "kernels.sm90_mainloop": "kernels.sm90.mainloop",
    "kernels.sm90_many_rows": "kernels.sm90.choose.large_m",
    "kernels.sm90_meetings": "kernels.sm90.named_barriers",
    "kernels.sm90_places": "kernels.sm90.choose.occupancy",
    "kernels.sm90_plan": "kernels.sm90.plan",
    "kernels.sm90_promoted": "kernels.sm90.device.promoted",
    "kernels.sm90_proofs": "kernels.sm90.checks",
    "kernels.sm90_ragged": "kernels.sm90.grouped",
    "kernels.sm90_ragged_kernel": "kernels.sm90.device.grouped",
    "kernels.sm90_reference": "kernels.sm90.reference",
    "kernels.sm90_scaled_choice": "kernels.sm90.choose.scaled_grouped",
    "kernels.sm90_shares": "kernels.sm90.multicast",
    "kernels.sm90_single": "kernels.teaching.device.kernel",
    "kernels.sm90_smem": "kernels.sm90.smem",
    "kernels.sm90_stages": "kernels.sm90.stages",
    "kernels.sm90_store": "kernels.store",
    "kernels.sm90_store_proofs": "kernels.sm90.store_checks",
    "kernels.sm90_types": "kernels.sm90.types",
    "kernels.sm_entry": "kernels.dsl.entry",
    "layouts.compose": "layouts.algebra.compose",
    "layouts.conditions": "layouts.symbols.conditions",
    "layouts.digit_box": "layouts.proofs.digit_boxes",
    "layouts.digit_proof": "layouts.proofs.index_formulas",
    "layouts.digits": "layouts.proofs.digits",
    "layouts.divide": "layouts.algebra.divide",
    "layouts.facts": "layouts.symbols.facts",
    "layouts.formula": "layouts.formulas",
    "layouts.generators": "layouts.symbols.generators",
    "layouts.gf2": "layouts.proofs.gf2",
    "layouts.inttuple": "layouts.int_tuple",
    "layouts.inverse": "layouts.algebra.inverse",
    "layouts.needs": "layouts.symbols.polynomial",
    "layouts.pictured": "layouts.display",
    "layouts.poly": "layouts.symbols.polynomial",
    "layouts.proof": "layouts.proofs.verdicts",
    "layouts.prove": "layouts.proofs.prove",
    "layouts.recast": "layouts.algebra.recast",
    "layouts.sizes": "layouts.proofs.sizes",
    "layouts.solver": "layouts.symbols.solver",
    "layouts.symbolic": "layouts.symbols.dims",
    "layouts.symbolic_arguments": "layouts.symbols.dispatch",
    "layouts.symbolic_formula": "layouts.symbols.sympy_formulas",
    "layouts.symbolic_layout": "layouts.symbols.symbolic_layout",
    "layouts.symbolic_ops": "layouts.symbols.operations",
    "layouts.symbolic_sympy": "layouts.symbols.sympy_io",
    "layouts.symbolic_views": "layouts.symbols.views",
    "torch_checks": "torch_op.checks",
    "torch_choice": "torch_op.choose",
    "torch_epilogue": "torch_op.epilogue",
    "torch_explain": "torch_op.explain",
    "torch_finish": "torch_op.bias_activation",
    "torch_gated": "torch_op.library",
    "torch_launch": "torch_op.launch",
    "torch_library": "torch_op.library",
    "torch_op": "torch_op.operator",
    "torch_op.gated": "torch_op.library",
    "torch_problem": "torch_op.problem",
    "torch_reference": "torch_op.reference",
    "torch_variants": "torch_op.scaled_grouped",
    "tune": "torch_op.tuning",
    "tuned": "torch_op.tuned_store",
    "view.html": "view.pages.html",
    "view.linked": "view.pages.model",
    "view.linked_banks": "view.pages.banks",
    "view.linked_copy": "view.pages.copy",
    "view.linked_parts": "view.pages.parts",
    "view.linked_product": "view.pages.product",
    "view.linked_scales": "view.pages.scales",
    "view.text": "view.text.layouts",
    "view.text_atoms": "view.text.atoms",
    "view.text_memory": "view.text.memory",
}
