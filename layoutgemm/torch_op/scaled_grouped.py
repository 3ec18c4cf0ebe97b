"""layoutgemm.scaled_matmul and grouped_matmul: products of torch tensors with more to them than A and B.

Plans of `kernels.sm90_mainloop` and `kernels.sm90.grouped` on Hopper; on the CPU the same in float64, rounded once.
Imported when first named.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from ..errors import OperandError, TensorError
from ..kernels.run.epilogue_operands import words_of_tensors
from ..kernels.run.operand_checks import addressed, check_operands
from ..kernels.run.tensor_maps import run_given
from ..kernels.run.torch_tensors import launch_of
from ..kernels.sm90.choose.scaled_grouped import grouped_config, grouped_scaled_config, scaled_config
from ..kernels.sm90.grouped import Ragged
from ..kernels.sm90.mainloop import Promoted, Table
from ..kernels.sm90.plan import Sm90Config, Sm90Plan
from .checks import PLAIN, check_device, check_out, needs_dispatcher, refuse_derivatives
from .compiled import refuse
from .launch import Direct, span
from .operator import empty_on_gpu, raw_stream
from .prepared import mark_written
from .problem import C_TYPES, Given, contiguous_strides
from .reference import rounded
from .types import C_NAMES, NAMES

DEPTH = 128  # of K, that share a scale
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def scaled_matmul(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    config: Sm90Config | None = None,
) -> torch.Tensor:
    """A product of 8-bit floats with a scale for each 128 of K.

    C[i, j] = sum over K blocks kb of 128 of scale_a[i, kb] * scale_b[j, kb] * (A's block @ B's block)[i, j].

    a, b     float8_e4m3fn or float8_e5m2 each, (M, K) and (K, N), or batches of them: on one GPU of compute capability
             9.0, or on the CPU. K contiguous (b is the transpose of an (N, K) matrix) and lines of a multiple of 16
             elements; what lies otherwise is copied
    scale_a  float32: (M, K blocks), or (M / 128, K blocks) for a scale of 128 rows; any strides
    scale_b  float32: (N / 128, K blocks), or (N, K blocks) for a scale of each column, or None
    out      where the product goes, of its shape and type, apart from a and b
    config   the kernel's configuration; tiles of 192 x 128 unless M is small

    Each K block is summed by the tensor core, scaled and added to the total in float32 registers: sums of 8-bit
    products are never longer than 128. No gradients. Raises OperandError, or TensorError in torch's words, naming the
    operand.

    >>> import torch
    >>> a, b = torch.ones(2, 256).to(torch.float8_e4m3fn), torch.ones(256, 3).to(torch.float8_e4m3fn)
    >>> scaled_matmul(a, torch.tensor([[1.0, 2.0], [0.5, 0.25]]), b)[:, 0].tolist()
    [384.0, 96.0]
    """
    key, found = _ready((a, b, scale_a, scale_b), out, out_dtype, config)
    if found is not None:
        return found
    tensors = {"a": a, "scale_a": scale_a, "b": b} | ({} if scale_b is None else {"scale_b": scale_b})
    _check_tensors(tensors, out)
    check_config(config)
    _check_scaled(a, b, out_dtype)
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = a.shape[0] if a.ndim == 3 else 1
    groups = [_group("scale_a", scale_a, m, k, a)]
    given = {"scale_a": scale_a}
    if scale_b is not None:
        groups.append(_group("scale_b", scale_b, n, k, b))
        given["scale_b"] = scale_b
    if out is not None:
        check_out(out, (*a.shape[:-1], n), out_dtype, tensors)
    if 0 in (batch, m, n, k):
        return _empty(out, (*a.shape[:-1], n), out_dtype, a.device)
    if a.device.type == "cpu":
        c = rounded(_on_cpu(mainloop_of(tuple(groups)), a, b, given), out_dtype)
        return c if out is None else out.copy_(c)
    if a.ndim == 3 and batch == 1:
        one = None if out is None else out[0]
        scales = [None if x is None else x[0] for x in (scale_a, scale_b)]
        c = scaled_matmul(a[0], scales[0], b[0], scales[1], out=one, out_dtype=out_dtype, config=config)
        return c.unsqueeze(0) if out is None else out
    config = config or scaled_config(m, n, k, batch=batch, each_column=groups[1:] == [1])
    types = NAMES[a.dtype], f"{NAMES[b.dtype]}:col", C_NAMES[out_dtype]
    plan = _plan((m, n, k, batch), types, tuple(groups), config)
    return _first_launch(key, plan, a, b, given, out)


def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    *,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: Sm90Config | None = None,
) -> torch.Tensor:
    """A grouped GEMM, as in a mixture of experts, in one launch.

    Rows offsets[e] to offsets[e + 1] of the result are those of a times b[e].

    a, b      (rows, K) and (experts, K, N), bfloat16, float16, float8_e4m3fn or float8_e5m2: on one GPU of compute
              capability 9.0, or on the CPU. a with contiguous rows; a matrix of b in either order, of float8 with K
              contiguous; what lies otherwise is copied
    offsets   int32 or int64 of experts + 1, on the same device: from 0 to a's rows, none below the one before it, so
              that groups may be empty. On a GPU the values are read by the kernel alone, nobody waits for them, and
              they are not checked: no row is written outside of its group, nor any that is in none
    scale_a   of float8: float32 (rows, K blocks of 128) and scale_b (experts, N / 128, K blocks), as for scaled_matmul
    out       where the product goes, of its shape and type, apart from a and b
    out_dtype default a's type; bfloat16 for float8
    config    the kernel's configuration

    No gradients. Raises OperandError, or TensorError in torch's words, naming the operand.

    >>> import torch
    >>> a, b = torch.ones(3, 2).bfloat16(), torch.arange(1.0, 4).bfloat16().view(3, 1, 1).expand(3, 2, 1)
    >>> grouped_matmul(a, b, torch.tensor([0, 1, 1, 3])).flatten().tolist()
    [2.0, 6.0, 6.0]
    """
    key, found = _ready((a, b, scale_a, scale_b, offsets), out, out_dtype, config)
    if found is not None:
        return found
    given = {name: x for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x is not None}
    tensors = {"a": a, "b": b, "offsets": offsets, **given}
    _check_tensors(tensors, out)
    check_config(config)
    kind = _check_grouped(a, b, offsets, given, out_dtype)
    (m, k), (experts, _, n) = a.shape, b.shape
    groups = [] if scale_a is None else [_group("scale_a", scale_a, m, k, a)]
    if scale_a is not None and groups == [DEPTH] and m > 1:
        raise TensorError(f"scale_a has shape {list(scale_a.shape)}: {[m, -(-k // DEPTH)]}, as groups end at any row")
    groups += [] if scale_b is None else [_group("scale_b", scale_b, n, k, b)]
    if out is not None:
        check_out(out, (m, n), kind, tensors)
    if 0 in (experts, m, n, k):
        return _empty(out, (m, n), kind, a.device)
    if a.device.type == "cpu":
        c = rounded(_grouped_on_cpu(mainloop_of(tuple(groups)) if groups else None, a, b, offsets, given), kind)
        return c if out is None else out.copy_(c)
    order = "col" if groups or a.dtype in _FP8 or (b.stride(-2) == 1 and b.stride(-1) != 1) else "row"
    types = NAMES[a.dtype], f"{NAMES[b.dtype]}:{order}", C_NAMES[kind]
    ragged = Ragged.of(experts, "i32" if offsets.dtype == torch.int32 else "i64")
    if config is None:
        rows = -(-m // experts)
        wide = kind == torch.float32
        config = grouped_scaled_config(rows, groups[1:] == [1]) if groups else grouped_config(rows, wide)
    plan = _plan((m, n, k, experts), types, tuple(groups), config, ragged)
    key = key if offsets.is_contiguous() else ()
    return _first_launch(key, plan, a, b, {**given, "offsets": offsets.contiguous()}, out)


# ------------------------------------------------------------------------------------------------- launches kept ready


class _Ready(NamedTuple):
    """A launch for tensors of known shapes and strides.

    direct   the launch
    shape    of the result, and its type `kind`
    padding  elements from the end of a line of the result to the next line, where the result is made here
    spans    bytes that each tensor reaches over: those that are read, and C
    """

    direct: Direct
    shape: tuple[int, ...]
    kind: torch.dtype
    padding: int
    spans: tuple[int, ...]


_READY: dict[tuple[object, ...], _Ready] = {}
_MAX_READY = 4096  # beyond, all go


def _ready(
    read: tuple[torch.Tensor | None, ...], out: torch.Tensor | None, kind: object, config: object
) -> tuple[tuple[object, ...], torch.Tensor | None]:
    """(key, the result of a launch that was kept ready for such tensors, or None)."""
    given = [x for x in read if x is not None]
    if (
        torch.compiler.is_compiling()
        or not all(type(x) in PLAIN and x.is_cuda for x in (*given, *([] if out is None else [out])))
        or needs_dispatcher(*given, out)
    ):
        return (), None
    index = given[0].get_device()
    try:
        parts = [None if x is None else (x.shape, x.stride(), x.dtype) for x in (*read, out)]
        key = (*parts, kind, config, index)
        ready = _READY.get(key)
        if ready is None or torch.cuda.current_device() != index or any(x.get_device() != index for x in given):
            return key, None
        addresses = [x.data_ptr() for x in given]
    except (RuntimeError, TypeError):  # sparse tensors have no strides, and a configuration may have no hash
        return (), None
    if any(x.is_neg() for x in given) or (addresses[0] | addresses[1]) & 15:
        return key, None
    if out is None:
        rows = (*ready.shape[:-1], ready.shape[-1] + ready.padding)
        c = empty_on_gpu(rows, contiguous_strides(rows), ready.kind)
        c = c[..., : ready.shape[-1]] if ready.padding else c
    else:
        start = out.data_ptr()
        apart = all(at + span <= start or start + ready.spans[-1] <= at for at, span in zip(addresses, ready.spans))
        if out.get_device() != index or out.is_neg() or start & 15 or not apart:
            return key, None
        mark_written((out,))
        c = out
    ready.direct.launch((*addresses[:2], c.data_ptr(), *addresses[2:]), raw_stream(index))
    return key, c


def _first_launch(
    key: tuple[object, ...], plan: Sm90Plan, a: torch.Tensor, b: torch.Tensor, given: dict[str, torch.Tensor],
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The product by a plan; where nothing is copied, its launch is kept for such tensors."""
    done = run_given(plan, a, b, given, out)
    c = done.c
    assert isinstance(c, torch.Tensor)
    if out is not None:
        mark_written((out,))
    if key and not done.copies:
        words = words_of_tensors(plan, given, a.device)
        with torch.cuda.device(a.device):
            made = launch_of(plan, a, b, out, False, words)
        first = len(made.arguments) - len(words)
        places = (0, 1, 2, *[first + plan.words.index(name) for name in given])
        spans = tuple([_span(x) for x in (a, b, *given.values(), c)])
        if len(_READY) >= _MAX_READY:
            _READY.clear()
        padding = 0 if out is not None else c.stride(-2) - c.shape[-1]
        direct = Direct(plan, made.arguments, places, a.get_device())
        _READY[key] = _Ready(direct, tuple(c.shape), c.dtype, padding, spans)
    return c


def _span(x: torch.Tensor) -> int:
    return span(Given(tuple(x.shape), tuple(x.stride()), "u8")) * x.element_size()


def mainloop_of(groups: tuple[int, ...]) -> Promoted:
    """The main loop: scales of so many rows of A, and of so many columns of B where there are two."""
    if len(groups) == 1:
        return Promoted.of(lambda total, product, a: total + a * product, Table("scale_a", "m", groups[0]), depth=DEPTH)
    tables = Table("scale_a", "m", groups[0]), Table("scale_b", "n", groups[1])
    return Promoted.of(lambda total, product, a, b: total + a * b * product, *tables, depth=DEPTH)


@lru_cache(maxsize=1024)
def _plan(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], groups: tuple[int, ...], config: Sm90Config,
    ragged: Ragged | None = None,
) -> Sm90Plan:  # fmt: skip
    m, n, k, batch = sizes
    a, b, c = types
    loop = mainloop_of(groups) if groups else None
    return Sm90Plan.derive(m, n, k, batch=batch, a=a, b=b, c=c, config=config, mainloop=loop, ragged=ragged)


def _check_tensors(tensors: dict[str, torch.Tensor], out: torch.Tensor | None) -> None:
    """Raise unless all are plain tensors of one device, and no derivative is recorded."""
    if torch.compiler.is_compiling():
        refuse("a launch of its own, not under torch.compile: torch.compiler.disable keeps it out")
    check_operands(tensors, {} if out is None else {"out": out})
    for name, x in tensors.items():
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            raise OperandError(f"{name} is a {type(x).__qualname__}: a launch of its own takes plain tensors")
    check_device(tensors["a"], meta=False)
    refuse_derivatives(tensors, "use torch.no_grad(), or give its detach()")
    if torch._C._get_tracing_state() is not None or not all(addressed(x) for x in tensors.values()):
        raise OperandError("a launch of its own: not under torch.func's transforms, nor traced")


def _check_scaled(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> None:
    """Raise unless types and shapes are those of a product with scales."""
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in _FP8:
            raise OperandError(f"{name} is {x.dtype}: scales are for float8_e4m3fn and float8_e5m2")
    if a.ndim not in (2, 3) or b.ndim != a.ndim or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        shapes = f"a and b have shapes {list(a.shape)} and {list(b.shape)}"
        raise TensorError(f"{shapes}: (M, K) and (K, N), or as many of both")
    if not isinstance(out_dtype, torch.dtype) or out_dtype not in C_NAMES or C_NAMES[out_dtype] not in C_TYPES["e4m3"]:
        raise OperandError(f"out_dtype {out_dtype}: a product of float8 is stored as {', '.join(C_TYPES['e4m3'])}")


def _check_grouped(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, given: dict[str, torch.Tensor],
    out_dtype: torch.dtype | None,
) -> torch.dtype:  # fmt: skip
    """The output's type. Raises unless types and shapes are those of a grouped product."""
    kinds = _FP8 if given else (torch.bfloat16, torch.float16, *_FP8)
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in kinds:
            known = ", ".join(str(kind).removeprefix("torch.") for kind in kinds)
            raise OperandError(f"{name} is {x.dtype}: a grouped product{' with scales' * bool(given)} is of {known}")
    if a.dtype != b.dtype and not {a.dtype, b.dtype} <= set(_FP8):
        raise TensorError(f"expected a and b to have the same dtype, but got: {a.dtype} != {b.dtype}")
    if a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[1]:
        raise TensorError(f"a and b have shapes {list(a.shape)} and {list(b.shape)}: (rows, K) and (experts, K, N)")
    if offsets.dtype not in (torch.int32, torch.int64) or tuple(offsets.shape) != (b.shape[0] + 1,):
        raise OperandError(
            f"offsets is {offsets.dtype} of shape {list(offsets.shape)}: int32 or int64 of {[b.shape[0] + 1]}, where "
            f"the rows of the {b.shape[0]} expert(s) begin, and the last ones end"
        )
    if "scale_b" in given and "scale_a" not in given:
        raise OperandError("scale_b without a scale_a")
    kind = out_dtype if out_dtype is not None else (torch.bfloat16 if a.dtype in _FP8 else a.dtype)
    if not isinstance(kind, torch.dtype) or kind not in C_NAMES or C_NAMES[kind] not in C_TYPES[NAMES[a.dtype]]:
        known = ", ".join(C_TYPES[NAMES[a.dtype]])
        raise OperandError(f"out_dtype {kind}: a product of {a.dtype} is stored as {known}")
    return kind


def check_config(config: object) -> None:
    """Raise OperandError for what is no configuration."""
    if config is not None and not isinstance(config, Sm90Config):
        raise OperandError(f"config is a {type(config).__qualname__}; it is an Sm90Config or None")


def _group(name: str, scale: torch.Tensor, size: int, k: int, of: torch.Tensor) -> int:
    """The rows (columns) that share a scale: 1 or 128, by its shape."""
    front, blocks = tuple(of.shape[:-2]), -(-k // DEPTH)
    for group in (1, DEPTH):
        if tuple(scale.shape) == (*front, -(-size // group), blocks):
            if scale.dtype != torch.float32:
                raise OperandError(f"{name} is {scale.dtype}, and scales are float32")
            return group
    raise TensorError(
        f"{name} has shape {list(scale.shape)}: {[*front, size, blocks]}, or {[*front, -(-size // DEPTH), blocks]} for "
        f"a scale of {DEPTH}"
    )


def _empty(out: torch.Tensor | None, shape: tuple[int, ...], kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """An empty sum is 0."""
    return torch.zeros(shape, dtype=kind, device=device) if out is None else out.zero_()


def _grouped_on_cpu(
    loop: Promoted | None, a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, given: dict[str, torch.Tensor]
) -> torch.Tensor:
    """In float64. Here the offsets can be looked at: raises OperandError for ones that are no groups of a's rows."""
    ends = offsets.tolist()
    if ends[0] != 0 or ends[-1] != len(a) or sorted(ends) != ends:
        raise OperandError(f"offsets = {ends}: they go from 0 to a's {len(a)} rows, none below the one before it")
    parts = []
    for e, (first, end) in enumerate(pairwise(ends)):
        if loop is None:
            parts.append(a[first:end].detach().double() @ b[e].detach().double())
        else:
            of = {name: x[first:end] if name == "scale_a" else x[e] for name, x in given.items()}
            parts.append(_on_cpu(loop, a[first:end], b[e], of))
    return torch.cat(parts)


def _on_cpu(loop: Promoted, a: torch.Tensor, b: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    values = [x.detach().resolve_neg().double().numpy() for x in (a, b)]
    tables = {name: x.detach().resolve_neg().double().numpy() for name, x in given.items()}
    return torch.from_numpy(np.ascontiguousarray(loop.reference(values[0], values[1], **tables)))
