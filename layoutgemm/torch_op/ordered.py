"""matmul(a, b, order=...): the tiles of C that an order visits, by a plan of their own.

    order  --planner.plan-->  plan, compiled once  --run.torch_tensors-->  a launch

Tiles that are not visited cost nothing: `out` keeps its values there, and without an `out` they are zeros. On the CPU
the product is computed in float64 and stored where the kernel would store it: the same tiles of the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from ..atoms.tma.rules import STRIDE_UNIT
from ..dtypes import dtype
from ..errors import LayoutError, OperandError
from ..kernels import plan as plan_of
from ..kernels.compile.compiler import CompiledGemm, compile_plan
from ..kernels.orders import Order, clusters_of_plan, given_names, order_values, schedule_of, stored_elements
from ..kernels.plan import MAX_WORDS, present
from ..kernels.run.epilogue_operands import kept_list, order_words, words_of_tensors
from ..kernels.run.operand_checks import check_operands
from ..kernels.run.partial import is_partial
from ..kernels.run.torch_tensors import launch_of
from ..kernels.sm80.choose import by_lines
from ..kernels.sm80.plan import Sm80Plan
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm90.plan import Sm90Plan
from ..schedule.listed import TileList
from .checks import check_call, check_out, check_own_launch, product_shape, refuse_derivatives, refuse_traces
from .compiled.kept_launches import again_or
from .launch import DirectLaunch, note_list, note_target, raw_stream
from .prepared import Config, choice_of, mark_written, on_gpu, target
from .reference import multiply
from .types import NAMES, TYPES

_NAMES_OF_C = {kind: name for name, kind in TYPES.items() if name != "tf32"}
_WAY_OUT = "call it under torch.no_grad(), or give its detach()"


def ordered_product(
    a: torch.Tensor, b: torch.Tensor, order: Order, *, out: torch.Tensor | None, given: Mapping[str, object] | None,
    config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The product in an order of tiles: see `torch_op.matmul`.

    Raises OperandError for vectors, batches that broadcast, and a GPU without such kernels. A symmetric order takes
    a's own transpose as b. PlanError for an order that no kernel has.
    """

    def make() -> torch.Tensor:
        refuse_traces("order=")
        written = {} if out is None else {"out": out}
        check_operands({"a": a, "b": b}, written)
        choice = choice_of(config)
        left, right, kind = check_call(a, b, None, out_dtype, allow_tf32)
        if left.ndim not in (2, 3) or left.ndim != right.ndim or left.shape[:-2] != right.shape[:-2]:
            raise OperandError(
                f"order= is of two matrices, or of two batches of as many: not of shapes {list(left.shape)} and "
                f"{list(right.shape)}; expand() makes a batch"
            )
        shape = product_shape(left, right)
        if 0 in (*shape, left.shape[-1]):
            raise OperandError(
                f"order= of a product of shape {list(shape)} over K = {left.shape[-1]}: no size may be 0"
            )
        if out is not None:
            check_out(out, shape, kind, {"a": left, "b": right})
        refuse_derivatives({"a": left, "b": right, **written}, _WAY_OUT)
        check_own_launch("order=", (left, right), out)
        ready = _plan_for(left, right, kind, order, choice)
        _check_mirror(ready.plan, left, right)
        names = given_names(ready.plan)
        if extra := [name for name in given or {} if name not in names]:
            raise OperandError(f"given = {', '.join(extra)}: the order reads {', '.join(names) or 'no parameter'}")
        with torch.no_grad():
            left, right = left.resolve_neg(), right.resolve_neg()
            if not on_gpu(left.get_device()):
                return _by_reference(ready.plan, left, right, kind, out, dict(given or {}))
            return _launched(ready, left, right, out, dict(given or {}))

    if given is not None and not isinstance(given, Mapping):
        raise OperandError(f"given is a {type(given).__qualname__}; it is a dict, the order's parameters by name")
    numbers = {name: x for name, x in (given or {}).items() if type(x) is int}
    if getattr(a, "dtype", None) is torch.float32 or len(numbers) < len(given or {}):
        return make()  # whether float32 may be multiplied as tf32 is asked each time, and a caller's list is its own
    options = ("matmul, order=", order, tuple(numbers.items()), config, out_dtype)
    return again_or(make, options, {"a": a, "b": b}, out)


def _plan_for(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, order: Order, choice: Sm90Choice | None) -> _Ready:
    on = target(a.get_device())
    if choice is not None and on[0] != "sm_90a":
        raise OperandError(f"config is one of sm_90a's kernel, and {a.device} runs {on[0]}")
    if choice is not None and choice.swapped:
        raise OperandError("config is of the transposed product (swapped), and an order is of C itself")
    names = f"{NAMES[a.dtype]}:{order_of(a, 'row')}", f"{NAMES[b.dtype]}:{order_of(b, 'col')}", _NAMES_OF_C[kind]
    batch = a.shape[0] if a.ndim > 2 else 1
    sizes = a.shape[-2], b.shape[-1], a.shape[-1], batch
    return _plan(sizes, names, order, None if choice is None else choice.config, on)


@dataclass(frozen=True, eq=False)
class _Ready:
    """A plan, compiled when it is first launched."""

    plan: Sm90Plan | Sm80Plan

    @cached_property
    def compiled(self) -> CompiledGemm:
        return compile_plan(self.plan)


@lru_cache(maxsize=1024)
def _plan(
    sizes: tuple[int, int, int, int], names: tuple[str, str, str], order: Order, config: Any, on: tuple[str, int]
) -> _Ready:
    """The plan for a GPU's code and bytes of shared memory, `on`."""
    m, n, k, batch = sizes
    if on[0] != "sm_90a":
        return _Ready(_by_mma_sync(sizes, names, order, on))
    found = plan_of(
        m, n, k, batch=batch, arch="sm_90a", a=names[0], b=names[1], c=names[2], order=order, config=config
    )  # fmt: skip
    assert isinstance(found, Sm90Plan)
    return _Ready(found)


def _by_mma_sync(
    sizes: tuple[int, int, int, int], names: tuple[str, str, str], order: Order, on: tuple[str, int]
) -> Sm80Plan:
    """The first plan of the mma.sync kernel that fits the GPU. Raises the first refusal where none does."""
    m, n, k, batch = sizes
    (a, b, c), (code, most) = names, on
    refused: LayoutError = OperandError(f"a batch of {batch} is more than one launch of {code}'s kernel has")
    each = dtype(a.partition(":")[0]).bytes
    for number, (config, _) in enumerate(by_lines(m, n, k, (STRIDE_UNIT,) * 3, each, batch=batch, arch=code)):
        try:
            found = Sm80Plan.derive(m, n, k, arch=code, a=a, b=b, c=c, batch=batch, config=config, order=order)
        except LayoutError as error:
            refused = error if number == 0 else refused
            continue
        if found.smem.total <= most:
            return found
        refused = OperandError(f"{found.smem.total} bytes of shared memory, and a block of {code} has up to {most}")
    raise refused


def order_of(x: torch.Tensor, k_major: str) -> str:
    """The order in which a kernel reads an operand: 8-bit types and tf32 with K contiguous alone."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return k_major
    along = {"row": x.stride(-1), "col": x.stride(-2)}
    other = "col" if k_major == "row" else "row"
    return other if along[other] == 1 and along[k_major] != 1 else k_major


def _check_mirror(plan: Sm90Plan | Sm80Plan, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise OperandError unless b is a's transpose, of a symmetric product."""
    if not isinstance(plan, Sm90Plan) or plan.mirror is None:
        return
    same = a.data_ptr() == b.data_ptr() and a.stride() == b.mT.stride() and a.shape == b.mT.shape
    if not same or a.dtype != b.dtype:
        raise OperandError("order = 'symmetric': b is a's own transpose, as in matmul(a, a.mT, order='symmetric')")


def _launched(
    ready: _Ready, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, given: dict[str, Any]
) -> torch.Tensor:
    """One launch on the current stream of the operands' device."""
    plan = ready.plan
    words = _words(plan, given, a.device)
    if out is not None:
        mark_written((out,))
    batched = a.ndim > 2 and plan.batch == 1
    with torch.cuda.device(a.device):
        if batched:  # a batch of one is a product of two matrices
            a, b, into = a[0], b[0], None if out is None else out[0]
        else:
            into = out
        made = launch_of(plan, a, b, into, True, words)
        schedule = schedule_of(plan)
        if isinstance(schedule, TileList) and schedule.schedule is not None:
            note_list(kept_list(schedule, clusters_of_plan(plan), a.device))
        note_target(made.c, cleared=out is None and is_partial(plan))
        index = a.get_device()
        DirectLaunch(ready.compiled, made.arguments, (), index, plan).launch((), raw_stream(index))
        if made.late:
            present(into).copy_(made.c)
    if out is not None:
        return out
    c: torch.Tensor = made.c
    return c.view(plan.batch, plan.m, plan.n) if batched else c


def _words(plan: Sm90Plan | Sm80Plan, given: dict[str, Any], device: torch.device) -> tuple[int, ...]:
    """The sixteen words of a launch, of a kernel that takes any."""
    if isinstance(plan, Sm90Plan):
        return words_of_tensors(plan, given, device) if plan.takes_extra_params else ()
    own = order_words(plan, given, device)
    return (*own, *[0] * (MAX_WORDS - len(own))) if plan.takes_words else ()


def _by_reference(
    plan: Sm90Plan | Sm80Plan,
    a: torch.Tensor,
    b: torch.Tensor,
    kind: torch.dtype,
    out: torch.Tensor | None,
    given: dict[str, Any],
) -> torch.Tensor:
    """The float64 product where the plan stores it."""
    value = multiply(a, b, kind)
    stored = stored_elements(plan, order_values(plan, given))
    if stored is not None:
        inside = torch.from_numpy(stored.copy())
        value = torch.where(inside, value, torch.zeros((), dtype=kind) if out is None else out)
    return value if out is None else out.copy_(value)
