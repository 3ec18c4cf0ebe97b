"""layoutgemm.scaled_matmul and grouped_matmul: products of torch tensors with more to them than A and B.

Plans of `kernels.sm90_mainloop` and `kernels.sm90.grouped` on Hopper; on the CPU the same in float64, rounded once.
Imported when first named.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..errors import OperandError, TensorError
from ..kernels.run.operand_checks import addressed, check_operands, resolved
from ..kernels.run.tensor_maps import run_given
from ..kernels.sm90.choose.scaled_grouped import default_config, grouped_config
from ..kernels.sm90.grouped import Ragged
from ..kernels.sm90.mainloop import Promoted, Table
from ..kernels.sm90.plan import Sm90Config, Sm90Plan
from .checks import check_device, check_out, refuse_derivatives
from .launch import C_NAMES, NAMES
from .problem import C_TYPES
from .reference import rounded

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
    """C[i, j] = sum over K blocks kb of 128 of scale_a[i, kb] * scale_b[j, kb] * (A's block @ B's block)[i, j].

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
    tensors = {"a": a, "scale_a": scale_a, "b": b} | ({} if scale_b is None else {"scale_b": scale_b})
    _check_tensors(tensors)
    check_config(config)
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in _FP8:
            raise OperandError(f"{name} is {x.dtype}: scales are for float8_e4m3fn and float8_e5m2")
    if a.ndim not in (2, 3) or b.ndim != a.ndim or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        shapes = f"a and b have shapes {list(a.shape)} and {list(b.shape)}"
        raise TensorError(f"{shapes}: (M, K) and (K, N), or as many of both")
    if not isinstance(out_dtype, torch.dtype) or out_dtype not in C_NAMES or C_NAMES[out_dtype] not in C_TYPES["e4m3"]:
        raise OperandError(f"out_dtype {out_dtype}: a product of float8 is stored as {', '.join(C_TYPES['e4m3'])}")
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
    config = config or default_config(m, groups[1:] == [1])
    types = NAMES[a.dtype], f"{NAMES[b.dtype]}:col", C_NAMES[out_dtype]
    plan = _plan((m, n, k, batch), types, tuple(groups), config)
    c = run_given(plan, a, b, given, out).c
    assert isinstance(c, torch.Tensor)
    return c


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
    """Rows offsets[e] to offsets[e + 1] of the result are those of a times b[e]: a mixture of experts, in one launch.

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
    given = {name: x for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x is not None}
    tensors = {"a": a, "b": b, "offsets": offsets, **given}
    _check_tensors(tensors)
    check_config(config)
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
    if scale_b is not None and scale_a is None:
        raise OperandError("scale_b without a scale_a")
    kind = out_dtype if out_dtype is not None else (torch.bfloat16 if a.dtype in _FP8 else a.dtype)
    if not isinstance(kind, torch.dtype) or kind not in C_NAMES or C_NAMES[kind] not in C_TYPES[NAMES[a.dtype]]:
        known = ", ".join(C_TYPES[NAMES[a.dtype]])
        raise OperandError(f"out_dtype {kind}: a product of {a.dtype} is stored as {known}")
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
    config = config or (default_config(-(-m // experts)) if groups else grouped_config(-(-m // experts)))
    plan = _plan((m, n, k, experts), types, tuple(groups), config, ragged)
    c = run_given(plan, a, b, {**given, "offsets": offsets.contiguous()}, out).c
    assert isinstance(c, torch.Tensor)
    return c


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


def _check_tensors(tensors: dict[str, Any]) -> None:
    """Plain tensors of one device that this library runs on, and nobody who looks on."""
    if torch.compiler.is_compiling():
        raise OperandError("a launch of its own, not under torch.compile: torch.compiler.disable keeps it out")
    check_operands(tensors)
    for name, x in tensors.items():
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            raise OperandError(f"{name} is a {type(x).__qualname__}: a launch of its own takes plain tensors")
    check_device(tensors["a"], meta=False)
    refuse_derivatives(tensors, "use torch.no_grad(), or give its detach()")
    if torch._C._get_tracing_state() is not None or not all(addressed(x) for x in tensors.values()):
        raise OperandError("a launch of its own: not under torch.func's transforms, nor traced")


def check_config(config: Any) -> None:
    """Raise OperandError for what is no configuration."""
    if config is not None and not isinstance(config, Sm90Config):
        raise OperandError(f"config is a {type(config).__qualname__}; it is an Sm90Config or None")


def _group(name: str, scale: torch.Tensor, size: int, k: int, of: torch.Tensor) -> int:
    """How many rows (columns) share a scale: 1 or 128, by its shape."""
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
    values = [resolved(x.detach()).double().numpy() for x in (a, b)]
    tables = {name: resolved(x.detach()).double().numpy() for name, x in given.items()}
    return torch.from_numpy(np.ascontiguousarray(loop.reference(values[0], values[1], **tables)))
