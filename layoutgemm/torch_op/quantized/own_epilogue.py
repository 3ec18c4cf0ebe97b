"""Products with packed weights and an epilogue of the caller's own: epilogue=, given=, out=.

x of 16 bits and the epilogue's operands have gradients, by the formula of `own_epilogue.recorded`.

weights          steps                  computed by
---------------  ---------------------  --------------------------------------------------------------
one matrix       all                    the kernel
of experts       that read              the kernel, by the group that a row of C is in
of experts       that write or reduce   torch on the kernel's float32 sums: a tile reaches into the next group
either           behind a gate          torch, likewise

Steps, and the shapes of their operands, are those of the product (rows, n). A kernel of the transposed product takes
the transposed steps. Scales of columns and of x come before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch

from ...dtypes import dtype
from ...errors import OperandError, PlanError, TensorError
from ...kernels.compile.worker import compile_apart
from ...kernels.derive import padded_leading
from ...kernels.epilogue.chain import Epilogue, Scale, Step, VectorScale
from ...kernels.epilogue.parameters import PlacedOperand, words_of
from ...kernels.quantized.formats import COLUMN_SCALE, FLOAT8
from ...kernels.run.capture import first_call
from ...kernels.run.operand_checks import check_operands, resolved, same_memory
from ...kernels.sm80.plan import Sm80Plan
from ...kernels.sm80.quantized.split import SPLIT_SUMS
from ...kernels.sm90.plan import Sm90Config, Sm90Plan
from ...kernels.sm90.quantized.choose import packed_candidates, packed_config
from ...kernels.sm90.quantized.feature_parts import FeatureParts
from ...kernels.streamed.plan import StreamedConfig, StreamedPlan
from ..checks import check_out, check_written, copied, needs_dispatcher
from ..epilogue import (
    GivenOperands,
    Tensors,
    check_order,
    check_result,
    finish_of,
    given_operands,
    placed_of,
    reduce_nothing,
    reference_of,
)
from ..launch import DirectLaunch, mark_written, raw_stream, workspace_on
from ..own_epilogue.formula import RowGroups, StepResults, refusal_of_derivative, steps_by_torch
from ..own_epilogue.names import OperandNames
from ..own_epilogue.recorded import derivable as derived_alone
from ..prepared import gpu, on_gpu, target
from ..scaled_grouped.epilogue_gradients import ProductFormula, check_derivable
from ..scaled_grouped.recipes import TENSOR
from ..types import C_NAMES, NAMES
from .dense import Facts, dense_of
from .experts import INDEX, QuantizedExperts, derivable_experts, experts_of_rows, experts_plan, experts_sums
from .launch import (
    HOPPER,
    SCALE_X,
    QuantizedCall,
    check_target,
    in_place,
    mma_config,
    readable,
    rounds_weights,
    sizes_by_rows,
    sizes_of,
    streamed_choice,
)
from .operators import derivable
from .weights import QuantizedWeight, multiplied

_FIRST_WORD = 3  # of the arguments behind the addresses of A, B and C: the sizes, then the epilogue's words


class OwnEpilogue(NamedTuple):
    """An epilogue, its operands by name, and where the product goes. None for a new tensor."""

    epilogue: Epilogue | None
    given: Mapping[str, object] | None
    out: torch.Tensor | None


class CheckedPacked(NamedTuple):
    """A product whose operands and epilogue have been checked.

    gate     the function of a gate in front of the epilogue, or None
    offsets  of the groups of rows that experts multiply, or None
    """

    call: QuantizedCall
    x: torch.Tensor
    units: torch.Tensor
    scales: torch.Tensor | None
    scale_x: torch.Tensor | None
    steps: Epilogue
    operands: GivenOperands
    gate: str | None = None
    offsets: torch.Tensor | None = None

    @property
    def experts(self) -> int:
        """Experts; 0 of a product without groups."""
        return 0 if self.offsets is None else int(self.units.shape[0])

    @property
    def is_formula(self) -> bool:
        """True if torch computes the steps, on float32 sums."""
        return self.gate is not None or bool(self.experts and (self.steps.writes or self.steps.reductions))

    @property
    def factors(self) -> dict[str, torch.Tensor]:
        """x, the packed weights, their scales and the offsets, by name."""
        own = {
            "x": self.x, "units": self.units, "scales": self.scales, "scale_x": self.scale_x, "offsets": self.offsets,
        }  # fmt: skip
        return {name: t for name, t in own.items() if t is not None}

    @property
    def read(self) -> dict[str, torch.Tensor]:
        """The tensors that are read, by name."""
        return {**self.factors, **self.operands.read}

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the result, where the epilogue stores C."""
        return self.x.shape[0], self.call.size[0] // (1 if self.gate is None else 2)

    def put(self, factors: Tensors, operands: GivenOperands) -> CheckedPacked:
        """The same product of other tensors."""
        return self._replace(operands=operands, **factors)  # type: ignore[arg-type]  # tensors, by their names

    def check_derivable(self) -> None:
        """Raise TensorError for a product whose derivative is recorded, and which has none."""
        check_derivable(self.steps, self.call.kind, {}, self.experts > 0)  # a float8 x requires no grad

    def check_formula(self) -> None:
        """Raise OperandError for steps that torch does not compute, where it would."""
        if self.is_formula and (text := refusal_of_derivative(self.steps)):
            what = "epilogue of groups that writes" if self.gate is None else "epilogue behind a gate of packed weights"
            raise OperandError(f"{what}, which torch computes: {text}")


@dataclass(frozen=True)
class PackedFormula(ProductFormula[CheckedPacked]):
    """A checked product with packed weights, as `own_epilogue.recorded` derives it.

    facts   the weights' format and sizes, as the operators take them
    config  of the kernel, as text
    """

    facts: Facts
    config: str

    def launched(self) -> torch.Tensor:
        """The product by a kernel, into the operands that it has."""
        made = self.made
        if made.is_formula:
            return derived_alone(self)
        if not needs_dispatcher(*made.factors.values(), *made.operands.tensors.values()):
            return computed(made)
        return dispatched(made, self.facts, self.config)

    def formula(self) -> StepResults:
        """Float32 sums with derivatives by x, and the steps by torch."""
        made, rows = self.made, None
        if made.offsets is None:
            sums = derivable(made.x, made.units, made.scales, None, None, self.facts, torch.float32, "", made.scale_x)
        else:
            operands = made.x, made.units, made.scales, made.offsets
            sums = derivable_experts(*operands, self.facts, torch.float32, "", made.scale_x)
            rows = RowGroups(None, experts_of_rows(made.offsets, made.x.shape[0]), made.experts)
        return steps_by_torch(self.epilogue, sums, self.every, made.call.kind, made.gate, rows=rows)


def dispatched(made: CheckedPacked, facts: Facts, config: str) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked; `config` is text."""
    lists = OperandNames.of(made.steps).lists(made.operands.every)
    value: torch.Tensor = torch.ops.layoutgemm.quantized_epilogue_matmul(
        made.x,
        made.units,
        made.scales,
        made.scale_x,
        *lists,
        made.steps.json,
        *facts,
        made.call.kind,
        config,
        made.offsets,
    )
    return value


def checked_product(
    call: QuantizedCall, x: torch.Tensor, weight: QuantizedWeight | QuantizedExperts, scale_x: torch.Tensor | None,
    own: OwnEpilogue, gate: str | None = None, offsets: torch.Tensor | None = None,
) -> CheckedPacked:  # fmt: skip
    """The product of a checked call with its epilogue.

    gate     the function of a gate in front of it, or None
    offsets  of experts' groups, or None

    Raises OperandError or TensorError, naming the operand.
    """
    steps, operands = _operands(own, gate is not None)
    own_names = COLUMN_SCALE, SCALE_X, SPLIT_SUMS, *["offsets"] * (offsets is not None)
    if taken := [name for name in own_names if name in operands.every]:
        raise OperandError(f"{taken[0]} names what packed weights have themselves: give the step another name")
    made, out = CheckedPacked(call, x, weight.units, weight.scales, scale_x, steps, operands, gate, offsets), own.out
    shape = made.shape
    check_operands(made.read, {**operands.written, **({} if out is None else {"out": out})})
    check_written(operands.written)
    check_result(steps, operands.every, call.kind, shape, out, made.experts)
    made.check_formula()
    if out is not None:
        check_out(out, shape, call.kind, made.read)
    return made


def in_place_of_operand(own: OwnEpilogue) -> bool:
    """True if `out` has the memory of an operand. Each element would have to be read before any is stored."""
    return own.out is not None and any(same_memory(t, own.out) for t in _operands(own, True)[1].read.values())


def computed(made: CheckedPacked, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product now, in a new tensor or in `out`. Without elements where the epilogue stores no C."""
    call, x, steps, every = made.call, made.x, made.steps, made.operands.every
    shape = made.shape
    with torch.no_grad():
        if 0 in shape:
            reduce_nothing(steps, every)
            return out if out is not None else x.new_empty(shape if steps.stores_c else 0, dtype=call.kind)
        if not on_gpu(x.get_device()):
            groups = None if made.offsets is None else list(pairwise(made.offsets.tolist()))
            value = reference_of(_sums(made), call.kind, steps, every, groups)
            return copied(value, out) if steps.stores_c else value.new_empty(0)
        check_target(call, x)
        check_order(steps)
        return _launched(made, out)


def _operands(own: OwnEpilogue, gated: bool) -> tuple[Epilogue, GivenOperands]:
    """The checked epilogue and its operands, behind a gate if `gated`. Of a call with `out` alone no steps."""
    if own.epilogue is None and own.given is None:
        return Epilogue(), GivenOperands({}, {}, {})
    return given_operands(own.epilogue, own.given, gated=gated)


def _sums(made: CheckedPacked) -> torch.Tensor:
    """The product in float64, with all scales, as float32 sums."""
    call, x, scale_x = made.call, made.x, made.scale_x
    if made.offsets is not None:
        return experts_sums(call, x, made.units, made.scales, made.offsets, scale_x).float()
    dense = dense_of(call.format, x.dtype, made.units, made.scales, call.size)
    if rounds_weights(call, x.shape[0], x.dtype):
        dense = multiplied(call.format, dense, x.dtype)
    sums = resolved(x).double() @ dense.double().T
    return (sums if scale_x is None else sums * resolved(scale_x).double().reshape(-1, 1)).float()


def _launched(made: CheckedPacked, out: torch.Tensor | None) -> torch.Tensor:
    """The product by a kernel, which stores to `out` itself if its lines are contiguous."""
    call, x, units, scales, scale_x, steps, operands = made[:7]
    device, n = x.get_device(), call.size[0]
    lines, factor = readable(resolved(x)), None if scale_x is None else in_place(scale_x)
    direct = out if out is not None and _stored_in_place(out) else None
    c = torch.empty((x.shape[0], n), dtype=call.kind, device=x.device) if direct is None else direct
    every = {name: t.resolve_neg() if isinstance(t, torch.Tensor) else t for name, t in operands.every.items()}
    several = made.experts > 0
    finish = finish_of(steps, every, (x.shape[0], n), several)
    placed: dict[str, object] = {
        one.name: every[one.name] if one.host else placed_of(one, every[one.name], several) for one in steps.given
    }
    for name, vector, step in ((COLUMN_SCALE, scales, n * several), (SCALE_X, factor, 0)):
        if vector is not None:
            placed[name] = PlacedOperand(vector.data_ptr(), 0, step)
    ends = None if made.offsets is None else made.offsets.contiguous()
    groups = None if ends is None else (made.experts, INDEX[ends.dtype])
    mark_written([*operands.written.values(), *([] if direct is None or not steps.stores_c else [direct])])
    with torch.cuda.device(x.device):
        launch, plan = _prepared(call, finish.key[0], x.shape[0], lines.stride(0), x.dtype, device, groups)
        parts = workspace_on(x.device, plan.workspace)
        split = plan.split_bytes if isinstance(plan, Sm80Plan) and plan.split is not None else 0
        words = list(words_of(plan.epilogue, placed, parts.data_ptr() + split))
        if split:
            words[plan.words.index(SPLIT_SUMS)] = parts.data_ptr()
        if ends is not None:
            words[plan.words.index("offsets")] = ends.data_ptr()
        ab = (lines, units) if isinstance(plan, Sm80Plan) else (units, lines)
        stored = c.data_ptr() if steps.stores_c else 0
        launch.launch([*[t.data_ptr() for t in ab], stored, *words], raw_stream(device))
    if not steps.stores_c:
        return x.new_empty(0, dtype=call.kind)
    return c if out is None or direct is not None else out.copy_(c)


def _stored_in_place(out: torch.Tensor) -> bool:
    """True if a kernel stores to a result as it lies."""
    return out.is_contiguous() and not out.is_neg() and out.data_ptr() % 16 == 0


@lru_cache(maxsize=1024)
@first_call()
def _prepared(
    call: QuantizedCall, steps: Epilogue, rows: int, stride: int, x: torch.dtype, device: int,
    groups: tuple[int, str] | None = None,
) -> tuple[DirectLaunch, Sm80Plan | Sm90Plan | StreamedPlan]:  # fmt: skip
    """The launch of a product, and its plan. It takes the addresses of A, B and C, then all words.

    groups  the number of experts and the type of their offsets, or None
    """
    places, on = gpu(device)[0], target(device)
    plan = own_plan(call, steps, rows, NAMES[x], places.multiprocessors, *on, groups)
    pitch = stride if rows > 1 else padded_leading(dtype(NAMES[x]), call.size[1])
    if isinstance(plan, Sm80Plan):
        sizes = sizes_by_rows(plan, pitch)
    else:
        workers = places.resident(plan.cluster_size)
        sizes = sizes_of(plan, pitch, workers)
    words = len(plan.parameters) - _FIRST_WORD - len(sizes)
    first = _FIRST_WORD + len(sizes)
    arguments = (0, 0, 0, *sizes, *[0] * words)
    return DirectLaunch(compile_apart(plan), arguments, (0, 1, 2, *range(first, first + words)), device, plan), plan


def forget() -> None:
    """Drop every prepared product; what was compiled stays."""
    _prepared.cache_clear()


def own_plan(
    call: QuantizedCall, steps: Epilogue, rows: int, x: str, sms: int, code: str, shared: int,
    groups: tuple[int, str] | None = None,
) -> Sm80Plan | Sm90Plan | StreamedPlan:  # fmt: skip
    """The plan of a product with steps of the caller's own.

    steps   of (rows, n), as `finish_of` gives them
    groups  as of `_prepared`

    Raises OperandError for `FeatureParts`, and PlanError where no configuration has the registers or words.
    """
    if isinstance(call.config, FeatureParts):
        raise OperandError(
            "config is FeatureParts, and an epilogue is of one launch: an Sm90Config or a StreamedConfig"
        )
    (n, k), become, kind = call.size, "e4m3" if x in FLOAT8 else x, C_NAMES[call.kind]
    every: list[Step] = []
    if call.scale:
        every.append(Scale(SCALE_X, device=True) if call.scale == TENSOR else VectorScale("m", "f32", SCALE_X))
    whole = call.format.epilogue(*every, *steps.steps, axis="n")
    whole = Epilogue(*whole.steps, stores_c=steps.stores_c)  # not in pairs: scales of columns may lie at any float
    if groups is not None:
        return experts_plan(call, groups[0], rows, x, groups[1], sms, code, shared, steps=whole)
    if isinstance(call.config, StreamedConfig) or call.config is None:
        streamed = streamed_choice(call, rows, x, sms, code, shared)
        if streamed is not None:
            try:
                return StreamedPlan.derive(
                    n, rows, k, arch=code, a=become, c=f"{kind}:col", config=streamed, weights=call.format,
                    epilogue=whole.transposed() or None,
                )  # fmt: skip
            except PlanError:
                if call.config is not None:
                    raise
    if code != HOPPER:
        config = mma_config(call, rows, sms, code, shared)
        return Sm80Plan.derive(
            rows, n, k, arch=code, a=x, c=kind, config=config, weights=call.format, epilogue=whole or None
        )
    first = packed_config(n, rows, k, sms, become, call.format)
    usual = [first, first.tuned(features=None)]  # a tile of strips reduces no rows
    tried = [call.config] if call.config is not None else [*usual, *packed_candidates(n, rows, k, become, call.format)]
    refused: PlanError | None = None
    for one in tried:
        try:
            assert isinstance(one, Sm90Config)
            return Sm90Plan.derive(
                n, rows, k, a=become, b=f"{x}:col", c=f"{kind}:col", config=one, weights=call.format,
                epilogue=whole.transposed() or None,
            )  # fmt: skip
        except PlanError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def check_matrix(x: torch.Tensor) -> None:
    """Raise TensorError unless x is a matrix, as an epilogue's operands are of its rows."""
    if x.ndim != 2:
        raise TensorError(f"x has shape {list(x.shape)}: (rows, k) beside epilogue= and out=; x.flatten(0, -2) is one")
