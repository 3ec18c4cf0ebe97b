"""A checked product with packed weights, computed now. On a GPU a kernel does it, on the CPU float64.

    compute capability    kernel                     packed weights    x    C
    ------------------    -----------------------    --------------    -    --------------------------------
    9.0                   wgmma (Sm90Plan)           its A             B    the transposed product's, by column
    8.x, 12.0             mma.sync (Sm80Plan)        its B             A    by row
    all, of few rows      mma.sync (StreamedPlan)    its A             B    the transposed product's, by column

All read the same packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from ...arch import arch
from ...dtypes import dtype
from ...errors import OperandError, PlanError, TensorError
from ...kernels.alignment import address_misfit, line_misfit
from ...kernels.compile.worker import compile_apart
from ...kernels.derive import padded_leading
from ...kernels.epilogue.chain import Activation, Bias, Epilogue, Scale, Step, VectorScale
from ...kernels.epilogue.parameters import PlacedOperand, words_of
from ...kernels.quantized.formats import FLOAT8, UNIT_ROWS, QuantizedFormat
from ...kernels.run.capture import first_call
from ...kernels.run.operand_checks import resolved
from ...kernels.sm80.plan import Sm80Config, Sm80Plan
from ...kernels.sm80.quantized import choose as by_mma
from ...kernels.sm80.quantized.split import SPLIT_SUMS
from ...kernels.sm90.plan import Sm90Config, Sm90Plan
from ...kernels.sm90.quantized.choose import SMS, packed_config, packed_parts
from ...kernels.sm90.quantized.feature_parts import FeatureParts
from ...kernels.streamed.choose import streamed_config
from ...kernels.streamed.plan import StreamedConfig, StreamedPlan
from .. import tuned_store
from ..bias_activation import by_torch
from ..launch import DirectLaunch, raw_stream, workspace_on
from ..prepared import alignment_of, gpu, on_gpu, target
from ..scaled_grouped.recipes import ROW, TENSOR
from ..scaled_grouped.scaled import check_addresses
from ..types import C_NAMES, NAMES, READ
from .configs import PackedConfig
from .dense import dense_of
from .kept import Key, Part, keep, launch_part
from .weights import multiplied

SCALE_X = "scale_x"  # the epilogue's operand
BIAS = "bias"  # likewise
HOPPER = "sm_90a"
ORDERS = ("row", "col", "row")  # of x, the weights and the result, by which a tuned product is kept
_VECTOR = 16  # bytes: alignment of lines that TMA reads, and of vectors that cp.async copies


@dataclass(frozen=True)
class QuantizedCall:
    """A checked product with packed weights.

    size   (n, k) of the weights
    scale  of x: "RowWise", "TensorWise", or "" without one
    """

    format: QuantizedFormat
    size: tuple[int, int]
    activation: str | None
    kind: torch.dtype
    config: PackedConfig | None = None
    scale: str = ""


def quantized_product(
    call: QuantizedCall, x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None,
    scale_x: torch.Tensor | None = None, out: torch.Tensor | None = None, key: Key = (), shape: Sequence[int] = (),
) -> torch.Tensor:  # fmt: skip
    """activation(scale_x * x @ weights.T + bias) of x (rows, k). A new tensor, or `out`, which is contiguous.

    key, shape  by which the launch is kept, unless it is (), and the result's shape there
    """
    n, rows = call.size[0], x.shape[0]
    if not on_gpu(x.get_device()):
        check_given(call, rows, x.dtype, bias)
        dense = dense_of(call.format, x.dtype, units, scales, call.size)
        if rounds_weights(call, rows, x.dtype):
            dense = multiplied(call.format, dense, x.dtype)
        wide = resolved(x.detach()).double() @ dense.double().T
        if scale_x is not None:
            wide = wide * resolved(scale_x.detach()).double().reshape(-1, 1)
        value = by_torch(wide, bias, call.activation, call.kind)
        return value if out is None else out.copy_(value)
    check_target(call, x)
    c = torch.empty((rows, n), dtype=call.kind, device=x.device) if out is None else out
    if rows == 0:
        return c
    lines = readable(resolved(x.detach()))
    factor, vector = (None if v is None else in_place(v) for v in (scale_x, bias))
    read = [value for value in (scales, factor, vector) if value is not None]  # in the order of the epilogue's steps
    with torch.cuda.device(x.device):
        made = _prepared(call, rows, lines.stride(0), x.dtype, None if bias is None else bias.dtype, x.get_device())
        of_features = [t.element_size() * (t is not factor) for t in (c, *read)]  # a float8 x has scales of rows
        parts = [
            Part(direct, (first // UNIT_ROWS * units.stride(0), *[first * size for size in of_features]))
            for first, direct in made
        ]
        bytes_of_sums = split_bytes(made[0][1].what)
        sums = [workspace_on(x.device, size) for size in bytes_of_sums]  # it lives until the launch
        addresses = [t.data_ptr() for t in (units, lines, c, *read)]
        for part in parts:
            launch_part(part, addresses, [t.data_ptr() for t in sums], raw_stream(x.get_device()))
    if key and lines.data_ptr() == x.data_ptr() and vector is bias and factor is scale_x:
        keep(key, parts, shape, call.kind, len(read), bytes_of_sums)
    return c


def split_bytes(plan: object) -> list[int]:
    """Bytes of the memory in which a launch keeps the sums of parts of K. One number, or none.

    >>> split_bytes(None)
    []
    """
    return [plan.split_bytes] if isinstance(plan, Sm80Plan) and plan.split is not None else []


def rounds_weights(call: QuantizedCall, rows: int, x: torch.dtype) -> bool:
    """True if a Hopper GPU's kernel rounds weights of groups to x's type. Not where scales multiply sums."""
    (n, k), config = call.size, call.config
    if config is None:
        config = streamed_config(call.format, n, rows, k, SMS, arch(HOPPER), NAMES[x])
    if config is None:
        config = packed_config(n, max(rows, 1), k, weights=call.format)
    one = config.parts[0][1] if isinstance(config, FeatureParts) else config  # all parts have the same scales
    return isinstance(one, Sm90Config) and one.tuning.scales == "weights"


def check_given(call: QuantizedCall, rows: int, x: torch.dtype, bias: torch.Tensor | None) -> None:
    """Raise PlanError for a configuration that a GPU would refuse. A product on the CPU is that of an H200."""
    if call.config is None or rows == 0:
        return
    types, on = (NAMES[x], None if bias is None else C_NAMES[bias.dtype]), arch(HOPPER)
    if streamed_plan_of(call, rows, *types, SMS, on.name, on.smem_per_block) is None:
        plans_of(call, rows, *types, SMS)


def check_target(call: QuantizedCall, x: torch.Tensor) -> None:
    """Raise OperandError, naming the GPU, for a product or experts without a kernel there."""
    code = target(x.get_device())[0]
    if code == HOPPER:
        return
    if x.dtype.itemsize == 1:
        raise OperandError(
            f"x is {x.dtype} on {x.device}, whose kernel is {code}'s: scales of groups multiply the sums of float8, "
            "and its mma.sync has one sum of all K. Float8 activations take compute capability 9.0; pack the weights "
            "for bfloat16 or float16"
        )
    if isinstance(call.config, Sm90Config | FeatureParts):
        kind = "an Sm90Config" if isinstance(call.config, Sm90Config) else "FeatureParts"
        raise OperandError(f"config = {call.config}: {kind}, and {x.device} runs {code}'s kernel; leave it out")


def in_place(vector: torch.Tensor) -> torch.Tensor:
    """A vector whose elements are contiguous: itself, or a copy."""
    return vector if vector.is_contiguous() and not vector.is_neg() else resolved(vector).contiguous()


def readable(x: torch.Tensor) -> torch.Tensor:
    """x as kernels read it, K contiguous and lines of whole 16 bytes. Itself, or a copy."""
    if not unreadable(x)[0]:
        return x
    made = x.new_empty((x.shape[0], _pitch(x)))[:, : x.shape[1]]
    return made.copy_(x)


def unreadable(x: torch.Tensor) -> tuple[str, int]:
    """(the rule for which x is copied, or "", bytes of the copy).

    >>> unreadable(torch.ones(2, 12).bfloat16())
    ('x: lines lie 12 * 2 = 24 bytes apart, no multiple of 16', 64)
    """
    (rows, k), (leading, step), size = x.shape, x.stride(), x.element_size()
    rule = line_misfit(k, step, rows, leading, size) or address_misfit(x.data_ptr())
    return (f"x: {rule}", rows * _pitch(x) * size) if rule else ("", 0)


def spaced(name: str, vector: torch.Tensor | None) -> tuple[str, int]:
    """(the rule for which a vector is copied, or "", bytes of the copy)."""
    if vector is None or vector.is_contiguous():
        return "", 0
    rule = f"{name}: elements lie {vector.stride(-1)} apart, and an epilogue's are contiguous"
    return rule, vector.numel() * vector.element_size()


def _pitch(x: torch.Tensor) -> int:
    """Elements from row to row of a copy of x."""
    return padded_leading(dtype(NAMES[x.dtype]), x.shape[1])


def as_measured(call: QuantizedCall, rows: int, x: torch.dtype, bias: torch.dtype | None, device: int) -> QuantizedCall:
    """The call in the configuration that `layoutgemm.tune` measured fastest, if that has a plan."""
    places, name = gpu(device)
    if call.config is not None or target(device)[0] != HOPPER:
        return call
    sizes, types = (rows, *call.size, 1), tuned_store.packed_types(NAMES[x], str(call.format))
    found = tuned_store.lookup_any(name, sizes, types, ORDERS)
    if found is None:
        return call
    measured, kinds = replace(call, config=found.config), (NAMES[x], None if bias is None else C_NAMES[bias])
    try:
        if streamed_plan_of(measured, rows, *kinds, places.multiprocessors, *target(device)) is None:
            plans_of(measured, rows, *kinds, places.multiprocessors)
    except PlanError:  # beside this epilogue, or with this result
        return call
    return measured


@lru_cache(maxsize=4096)
@first_call()
def _prepared(
    call: QuantizedCall, rows: int, stride: int, x: torch.dtype, bias: torch.dtype | None, device: int
) -> tuple[tuple[int, DirectLaunch], ...]:
    """(first output feature, launch) of each part of a product for x of such lines.

    It takes addresses: weights, x, C, the scales of columns, of x, the bias.
    """
    k, places, on = call.size[1], gpu(device)[0], target(device)
    call = as_measured(call, rows, x, bias, device)
    types = NAMES[x], None if bias is None else C_NAMES[bias]
    pitch = stride if rows > 1 else padded_leading(dtype(NAMES[x]), k)
    streamed = streamed_plan_of(call, rows, *types, places.multiprocessors, *on)
    if streamed is not None:
        workers = places.resident(
            streamed.cluster_size
        )  # a block on each SM: another one beside it is the next kernel's
        return ((0, DirectLaunch(compile_apart(streamed), *arguments_of(streamed, pitch, workers), device, streamed)),)
    if on[0] != HOPPER:
        by_rows = mma_plan_of(call, rows, *types, places.multiprocessors, *on)
        return ((0, DirectLaunch(compile_apart(by_rows), *mma_arguments_of(by_rows, pitch), device, by_rows)),)
    made = []
    for first, plan in plans_of(call, rows, *types, places.multiprocessors):
        arguments = arguments_of(plan, pitch, places.resident(plan.cluster_size), call.size[0])
        made.append((first, DirectLaunch(compile_apart(plan), *arguments, device, plan)))
    return tuple(made)


def forget() -> None:
    """Drop every prepared product; what was compiled stays."""
    _prepared.cache_clear()


def arguments_of(
    plan: Sm90Plan | StreamedPlan, pitch: int, workers: int, columns: int = 0, of_all: Sequence[str] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The launch's arguments with zeros for addresses, and their places.

    Places: weights, x, C, then the epilogue's vectors, then the offsets of experts.

    pitch    elements from row to row of x
    columns  of C, where the plan is of a part of them
    of_all   vectors that all experts have in common
    """
    names = [given.name for given in plan.epilogue.given]
    common = {SCALE_X, *of_all}  # x's scales are of rows
    own = {name: plan.m if plan.batch > 1 and name not in common else 0 for name in names}
    words = words_of(plan.epilogue, {name: PlacedOperand(0, 0, step) for name, step in own.items()})
    sizes = sizes_of(plan, pitch, workers, columns)
    experts = plan.experts if isinstance(plan, Sm90Plan) else None
    names += [experts.name] if experts is not None else []
    at = [3 + len(sizes) + plan.words.index(name) for name in names]
    return (0, 0, 0, *sizes, *words), (0, 1, 2, *at)


def sizes_of(plan: Sm90Plan | StreamedPlan, pitch: int, workers: int, columns: int = 0) -> tuple[int, ...]:
    """The sizes and strides of a launch; others as `arguments_of`."""
    n, rows, k = plan.m, plan.n, plan.k
    return (n, rows, k, plan.batch, k, pitch, columns or n, n * k, rows * pitch, rows * n, workers)


@lru_cache(maxsize=1024)
def plan_of(call: QuantizedCall, rows: int, x: str, bias: str | None, sms: int) -> Sm90Plan:
    """The plan of a product for x of that many rows and that type."""
    n, k = call.size
    become = "e4m3" if x in FLOAT8 else x
    given = call.config
    config = given if isinstance(given, Sm90Config) else packed_config(n, rows, k, sms, become, call.format)
    return Sm90Plan.derive(
        n, rows, k, a=become, b=f"{x}:col", c=f"{C_NAMES[call.kind]}:col", config=config, weights=call.format,
        epilogue=epilogue_of(call.format, bias, call.activation, call.scale) or None,
    )  # fmt: skip


def plans_of(
    call: QuantizedCall, rows: int, x: str, bias: str | None, sms: int
) -> tuple[tuple[int, Sm90Plan], ...]:  # fmt: skip
    """(first output feature, plan) of each launch of a product by wgmma. There is one, or several that take less
    time."""
    (n, k), become, first, made = call.size, "e4m3" if x in FLOAT8 else x, 0, []
    parts = packed_parts(n, rows, k, sms, become, call.format) if call.config is None else ()
    if isinstance(call.config, FeatureParts):
        call.config.check_features(n)
        parts = call.config.parts
    for count, config in parts:
        made.append((first, plan_of(replace(call, size=(count, k), config=config), rows, x, bias, sms)))
        first += count
    return tuple(made) or ((0, plan_of(call, rows, x, bias, sms)),)


@lru_cache(maxsize=1024)
def streamed_plan_of(
    call: QuantizedCall, rows: int, x: str, bias: str | None, sms: int, code: str, shared: int
) -> StreamedPlan | None:  # fmt: skip
    """The plan of a product of few rows, on any GPU. None where another kernel is faster.

    code, shared  the GPU's target, and bytes of shared memory that a block may have
    """
    (n, k), config = call.size, streamed_choice(call, rows, x, sms, code, shared)
    if config is None:
        return None
    return StreamedPlan.derive(
        n, rows, k, arch=code, a="e4m3" if x in FLOAT8 else x, c=f"{C_NAMES[call.kind]}:col", config=config,
        weights=call.format, epilogue=epilogue_of(call.format, bias, call.activation, call.scale) or None,
    )  # fmt: skip


def streamed_choice(
    call: QuantizedCall, rows: int, x: str, sms: int, code: str, shared: int
) -> StreamedConfig | None:  # fmt: skip
    """The configuration of a streamed kernel: the call's, or the choice. None where another kernel is taken."""
    config = call.config
    if config is None:
        (n, k), become = call.size, "e4m3" if x in FLOAT8 else x
        config = streamed_config(call.format, n, rows, k, sms, arch(code), become, shared)
    return config if isinstance(config, StreamedConfig) else None


@lru_cache(maxsize=1024)
def mma_plan_of(call: QuantizedCall, rows: int, x: str, bias: str | None, sms: int, code: str, shared: int) -> Sm80Plan:
    """The same by mma.sync.

    code, shared  the GPU's target, and bytes of shared memory that a block may have
    """
    n, k = call.size
    return Sm80Plan.derive(
        rows, n, k, arch=code, a=x, c=C_NAMES[call.kind], config=mma_config(call, rows, sms, code, shared),
        weights=call.format, epilogue=epilogue_of(call.format, bias, call.activation, axis="n") or None,
    )  # fmt: skip


def mma_config(call: QuantizedCall, rows: int, sms: int, code: str, shared: int) -> Sm80Config:
    """The configuration by mma.sync, for lines of C as they lie."""
    n, k = call.size
    config = by_mma.packed_config(call.format, rows, n, sms, shared, code, k)
    return replace(config, align=(_VECTOR, _VECTOR, alignment_of(n * dtype(C_NAMES[call.kind]).bytes)))


def sizes_by_rows(plan: Sm80Plan, pitch: int) -> tuple[int, ...]:
    """The sizes and strides of a launch by mma.sync. One block a tile, so workers are not read."""
    return (plan.m, plan.n, plan.k, plan.batch, pitch, plan.k, plan.n, 0, 0, 0, 1)


def mma_arguments_of(plan: Sm80Plan, pitch: int, of_all: Sequence[str] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same as `arguments_of`, of the kernel by mma.sync.

    The last place is that of the parts' sums, where K is split, or of the experts' offsets.
    """
    own = {given.name: plan.n if plan.batch > 1 and given.name not in of_all else 0 for given in plan.epilogue.given}
    words = words_of(plan.epilogue, {name: PlacedOperand(0, 0, step) for name, step in own.items()})
    sizes = sizes_by_rows(plan, pitch)
    names = [given.name for given in plan.epilogue.given] + [SPLIT_SUMS] * (plan.split is not None)
    names += [] if plan.experts is None else [plan.experts.name]
    at = [3 + len(sizes) + plan.words.index(name) for name in names]
    return (0, 0, 0, *sizes, *words), (1, 0, 2, *at)


def epilogue_of(
    fmt: QuantizedFormat, bias: str | None, activation: str | None, scale: str = "", axis: str = "m"
) -> Epilogue:
    """The epilogue of the product. Scales of columns, those of x, a bias of that type, an activation.

    axis  of C along which output features lie: "m" of the transposed product

    >>> [type(step).__name__ for step in epilogue_of(QuantizedFormat("int4"), "bf16", "silu", "TensorWise").steps]
    ['VectorScale', 'Scale', 'Bias', 'Activation']
    """
    steps: list[Step] = []
    if scale:
        steps.append(Scale(SCALE_X, device=True) if scale == TENSOR else VectorScale("n", "f32", SCALE_X))
    if bias is not None:
        steps.append(Bias(axis, bias))
    if activation is not None:
        steps.append(Activation(activation))
    return fmt.epilogue(*steps, axis=axis)


def check_bias(bias: torch.Tensor | None, n: int, experts: int = 0) -> None:
    """Raise OperandError for a bias that no kernel reads. `experts` may each have one."""
    shapes = [(n,), (experts, n)][: 2 if experts else 1]
    if bias is not None and (bias.dtype not in READ or tuple(bias.shape) not in shapes):
        fits = " or ".join(str(list(shape)) for shape in shapes)
        raise OperandError(f"bias is {bias.dtype} of shape {list(bias.shape)}: float32, bfloat16 or float16 of {fits}")


def scale_recipe(scale_x: torch.Tensor | None, rows: int, x: torch.dtype) -> str:
    """ "RowWise" or "TensorWise", of the scales of x (rows, k), or "" without any.

    Raises OperandError for scales that no kernel reads.
    """
    if scale_x is None:
        return ""
    if x.itemsize != 1:
        raise OperandError(f"scale_x is given, and x is {x}: scales are of float8 activations")
    if scale_x.dtype != torch.float32 or not (scale_x.numel() == 1 or tuple(scale_x.shape) == (rows,)):
        found = f"{scale_x.dtype} of shape {list(scale_x.shape)}"
        raise OperandError(f"scale_x is {found}: float32, one for each of {rows} rows, or one element")
    check_addresses(scale_x=scale_x)
    return TENSOR if scale_x.numel() == 1 else ROW


def flat(scale_x: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """The scales of x's rows as a vector, and all others as they are. Raises TensorError for shapes that do not fit."""
    if not isinstance(scale_x, torch.Tensor) or scale_x.numel() == 1:
        return scale_x
    front = tuple(x.shape[:-1])
    if tuple(scale_x.shape) not in (front, (*front, 1)):
        raise TensorError(
            f"scale_x has shape {list(scale_x.shape)}: {[*front, 1]} or {list(front)}, a scale of each row, or "
            "one element"
        )
    return scale_x.reshape(-1)
