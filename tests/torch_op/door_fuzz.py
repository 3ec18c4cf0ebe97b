"""Random products by every torch door, beside float64 formulas of torch alone.

python -m tests.torch_op.door_fuzz --door matmul --seed 0 --count 100
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import math
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import layoutgemm.torch_op.api  # noqa: F401  # makes the operators
from layoutgemm import (
    QuantizedFormat,
    QuantizedWeight,
    Sm90Config,
    grouped_matmul,
    matmul,
    quantized_matmul,
    scaled_matmul,
)
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    ActivationGradient,
    Amax,
    Aux,
    Bias,
    Clamp,
    ColumnGroup,
    ColumnReduce,
    Custom,
    Epilogue,
    EpilogueOperand,
    Quantize,
    Reduction,
    Residual,
    RowReduce,
    Scale,
    Step,
    VectorScale,
)
from layoutgemm.torch_op.quantized import QuantizedExperts, quantized_grouped_matmul
from tests.torch_op.door_launches import every_door

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
E4M3, E5M2, I8, U8, I32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32
KINDS = {"f32": F32, "bf16": BF16, "f16": F16, "i32": I32, "e4m3": E4M3, "e5m2": E5M2}
EPS = {BF16: 2.0**-7, F16: 2.0**-10, E4M3: 2.0**-3, E5M2: 2.0**-2, F32: 2.0**-16, I32: 0.0}
ACTS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "relu_sq": lambda x: torch.relu(x).square(),
    # of large negative numbers torch gives 0: 1 + erf and 1 + tanh cancel
    "gelu": lambda x: x * torch.erfc(x * -(0.5**0.5)) / 2,
    "gelu_tanh": lambda x: x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
COARSE = 1.7e-3  # of the normal distribution in a result of 8 bits of significand or fewer: see `dsl.math`
GATES = {"swiglu": "silu", "geglu": "gelu"}
SPAN = Reduction.of(
    lambda x, i, j, ops: (x, -x),
    lambda a, b, ops: (ops.maximum(a[0], b[0]), ops.maximum(a[1], b[1])),
    identity=(-3.0e38, -3.0e38),
    finish=lambda a, ops: ((a[0], -a[1]), a[0] + a[1]),
    results=("ends", "span"),
)


class Draw(random.Random):
    """Operands of one seed.

    memory  draws where tensors lie, and whether there is an `out`
    """

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.memory = self

    def number(self) -> float:
        """An epilogue's number."""
        return self.choice((2.0, -1.0, 0.5, 3))

    def in_order(self, sizes: list[int]) -> Any:
        """The sizes of groups."""
        return torch.tensor(sizes)

    def chance(self, share: float) -> bool:
        return self.random() < share

    def whole(self, *shape: int, kind: Any = BF16, most: int = 2) -> Any:
        low = 0 if kind == U8 else -most
        return torch.randint(low, most + 1, shape).to(kind)

    def lay(self, x: Any, written: bool = False) -> Any:
        """The same values in other memory: transposed, sliced, strided, from an odd offset, expanded, negated."""
        if x is None or x.ndim < 1:
            return x
        if self.memory is not self:
            return self.memory.lay(x, written)
        form = self.randrange(9)
        if form == 1 and x.ndim > 1:
            return x.mT.contiguous().mT
        if form in (2, 3, 4):
            beside = self.choice((1, 2, 3, 4, 8, 16, 32))
            wide = torch.full((*x.shape[:-1], x.shape[-1] + beside), 7).to(x.dtype)
            at = 0 if form == 2 else self.randint(0, beside)
            inner = wide[..., at : at + x.shape[-1]]
            return inner.copy_(x)
        if form == 5:
            flat = torch.full((x.numel() + 40,), 7).to(x.dtype)
            at = self.randint(0, 32)
            inner = flat[at : at + x.numel()].view(x.shape)
            inner.copy_(x)
            return inner.mT.contiguous().mT if x.ndim > 1 and self.chance(0.2) else inner
        if form == 6:
            dim = self.randrange(x.ndim)
            wide = torch.full([n * (2 if i == dim else 1) for i, n in enumerate(x.shape)], 7).to(x.dtype)
            inner = wide[tuple([slice(None, None, 2) if i == dim else slice(None) for i in range(x.ndim)])]
            return inner.copy_(x)
        if form == 7 and x.ndim > 1:
            order = list(range(x.ndim))
            self.shuffle(order)
            back = [order.index(i) for i in range(x.ndim)]
            return x.permute(order).contiguous().permute(back)
        if form == 8 and not written and x.dtype.itemsize > 1 and x.dtype != I32:
            return torch._neg_view(-x)
        return x

    def config(self) -> Any:
        tile = self.choice(((64, 64), (128, 64), (64, 32), (128, 128), (64, 128), (64, 256)))
        cluster = self.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
        return Sm90Config(
            tile,
            consumers=tile[0] // 64,
            stages=self.choice((2, 3)),
            loader=self.choice(("warp", "warpgroup", "self")),
            cluster=cluster,
            one_tile_per_cluster=self.chance(0.1),
        )


# ------------------------------------------------------------------------------------------------------------- oracle


@dataclass
class Piece:
    """Part of a result that one matrix product makes: x float64 (rows, N)."""

    front: tuple[int, ...]
    rows: slice
    e: tuple[int, ...]
    x: Any


@dataclass
class Problem:
    """A call, and what float64 says of it.

    call    of the operands' copies: (out, given) -> the result
    want    values by name, "C" among them; NaN in `want` is anything
    fresh   makes the written operands anew
    coarse  scales of a quantised C behind an erf: `ElementMath` has it within `COARSE` there
    """

    call: Callable[[Any, Any], Any]
    want: dict[str, Any]
    out: Any
    given: dict[str, Any]
    said: str
    names: tuple[str, ...] = ()
    loose: float = 1.0
    kinds: dict[str, Any] = field(default_factory=dict)
    coarse: tuple[str, ...] = ()


class Chain:
    """Steps with their formulas by torch, drawn at random."""

    def __init__(
        self,
        draw: Draw,
        n: int,
        kind: Any,
        most: int = 3,
        quantises: bool = True,
        sums: bool = False,
        exact: bool = True,
    ):
        self.draw, self.steps, self.run = draw, [], []
        self.sums = 0
        self.exact = exact and not sums
        if sums and draw.chance(0.5):
            for _ in range(draw.randint(1, 2)):
                self.before()
            self.sums = len(self.steps)
        count = draw.randint(0 if self.sums else 1, most)
        for _ in range(count):
            self.step(n)
        if quantises and draw.chance(0.1):
            self.quantise(kind)
        self.kind = kind if not (self.steps and isinstance(self.steps[-1], Quantize)) else KINDS[self.steps[-1].dtype]

    def add(self, step: Step, run: Any) -> None:
        self.steps.append(step)
        self.run.append(run)

    def name(self) -> str:
        return f"s{len(self.steps)}"

    def before(self) -> None:
        name, way = self.name(), self.draw.choice(("bias", "scale", "vector"))
        if way == "bias":
            self.add(Bias("n", self.draw.choice(("f32", "bf16", "f16")), name), lambda x, at: x + at.read(name, "n"))
        elif way == "scale":
            self.add(Scale(name, self.draw.chance(0.5)), lambda x, at: x * at.read(name, ""))
        else:
            axis = self.draw.choice("nm")
            self.add(VectorScale(axis, "f32", name), lambda x, at: x * at.read(name, axis))

    def step(self, n: int) -> None:
        draw, name = self.draw, self.name()
        way = draw.choice(
            (
                "bias",
                "bias",
                "vector",
                "scale",
                "residual",
                "aux",
                "act",
                "actgrad",
                "clamp",
                "custom",
                "custom",
                "columns",
                "row",
                "row",
                "row",
                "column",
                "column",
                "column",
                "amax",
                "each",
                "swap",
                "memory",
            )
        )
        narrow = draw.choice(("f32", "bf16", "f16"))
        order = draw.choice(("row", "col"))
        if way == "bias":
            axis = draw.choice("nnm")
            self.add(Bias(axis, narrow, name), lambda x, at: x + at.read(name, axis))
        elif way == "vector":
            axis = draw.choice("nm")
            self.add(VectorScale(axis, narrow, name), lambda x, at: x * at.read(name, axis))
        elif way == "scale":
            self.add(Scale(name, draw.chance(0.5)), lambda x, at: x * at.read(name, ""))
        elif way == "residual":
            beta = draw.choice((None, f"{name}_beta"))
            self.add(
                Residual(narrow, order, name, beta),
                lambda x, at: x + at.read(name, "mn") * (1 if beta is None else at.read(beta, "")),
            )
        elif way == "aux":
            self.add(Aux(narrow, order, name), lambda x, at: at.write(name, "mn", x) or x)
        elif way == "act":
            kind = draw.choice(("relu", "relu", "relu_sq", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"))
            self.exact = self.exact and kind in ("relu", "relu_sq")
            self.add(Activation(kind), lambda x, at: ACTS[kind](x))
        elif way == "actgrad":
            kind = draw.choice(("relu", "gelu", "silu", "tanh"))
            self.exact = self.exact and kind == "relu"

            def derived(x: Any, at: Any) -> Any:
                z = at.read(name, "mn")
                derives = z.requires_grad
                z = z if derives else z.clone().requires_grad_()
                (slope,) = torch.autograd.grad(ACTS[kind](z).sum(), z, create_graph=derives)
                return x * slope

            self.add(ActivationGradient(kind, narrow, order, name), derived)
        elif way == "clamp":
            low, high = draw.choice(((-5.0, 9.0), (-math.inf, 4.0), (0.0, math.inf)))
            self.add(Clamp(low, high), lambda x, at: x.clamp(low, high))
        elif way == "custom":
            self.custom(name, draw)
        elif way == "columns" and n % 2 == 0:
            far = draw.choice((1, 1, 2, 4, 8)) if n % 16 == 0 else 1
            swap = ColumnGroup.of(lambda x, i, j, ops: (x[1] - x[0], x[0]), distance=far)

            def turned(x: Any, at: Any) -> Any:
                y = x.reshape(x.shape[0], x.shape[1] // (2 * far), 2, far)
                return torch.stack([y[:, :, 1] - y[:, :, 0], y[:, :, 0]], 2).reshape(x.shape)

            self.add(swap, turned)
        elif way in ("row", "column", "memory"):
            self.reduce(way, name, narrow, order)
        elif way == "amax":
            self.add(
                Amax(name),
                lambda x, at: at.combine(name, x.abs().max() if x.numel() else torch.tensor(0.0), torch.maximum) or x,
            )
        elif way == "each":
            each, op = draw.choice((8, 16, 32, 64)), draw.choice(("sum", "max", "min", "amax", "sum_of_squares"))

            def by_groups(x: Any, at: Any) -> Any:
                parts = [line(op, part, 1)[0] for part in x.split(each, 1)] if x.shape[1] else []
                at.write(name, "mn", torch.stack(parts, 1))
                return x

            self.add(RowReduce(op, name, each=each, order=order, dtype=narrow), by_groups)
        elif way == "swap":
            self.custom(name, draw)
        else:
            self.add(Activation("relu"), lambda x, at: torch.relu(x))

    def custom(self, name: str, draw: Draw) -> None:
        way = draw.randrange(6)
        if way == 0:
            self.add(
                Custom.of(lambda x, i, j, ops: ops.where((i + j) % 3 == 0, -x, x)),
                lambda x, at: torch.where((at.i + at.j) % 3 == 0, -x, x),
            )
        elif way == 1:
            axis = draw.choice("mn")
            place = EpilogueOperand(name, axis, "i32")
            if axis == "m":
                self.add(
                    Custom.of(lambda x, i, j, ops, t: ops.where(j == t, x + 1.0, x), place),
                    lambda x, at: torch.where(at.j == at.read(name, "m"), x + 1, x),
                )
            else:
                self.add(
                    Custom.of(lambda x, i, j, ops, t: ops.where(i <= t, x, 2.0), place),
                    lambda x, at: torch.where(at.i <= at.read(name, "n"), x, torch.tensor(2.0).double()),
                )
        elif way == 2:
            self.add(
                Custom.of(lambda x, i, j, ops: ops.where(j <= i, x, -5.0)),
                lambda x, at: torch.where(at.j <= at.i, x, torch.tensor(-5.0).double()),
            )
        elif way == 3:
            kind, order = draw.choice(("f32", "bf16", "f16", "i32")), draw.choice(("row", "col"))
            self.add(
                Custom.of(
                    lambda x, i, j, ops, p: x - 2.0 * ops.float(p), EpilogueOperand(name, "mn", kind, order=order)
                ),
                lambda x, at: x - 2 * at.read(name, "mn"),
            )
        elif way == 4:
            p, q = EpilogueOperand(name, "m", "f32"), EpilogueOperand(name + "q", "n", "bf16")
            self.add(
                Custom.of(lambda x, i, j, ops, p, q: ops.maximum(x + p, q) * 0.5, p, q),
                lambda x, at: torch.maximum(x + at.read(name, "m"), at.read(name + "q", "n") + 0 * x) * 0.5,
            )
        else:
            number = EpilogueOperand(name, "", "f32", host=True)
            self.add(
                Custom.of(lambda x, i, j, ops, p: ops.where(x > p, x, -x), number),
                lambda x, at: torch.where(x > at.read(name, ""), x, -x),
            )

    def reduce(self, way: str, name: str, narrow: str, order: str) -> None:
        draw = self.draw
        if way == "memory":
            op = draw.choice(("sum", "max", "min", "sum_of_squares"))
            of_rows = draw.chance(0.5)
            made = (RowReduce if of_rows else ColumnReduce)(op, name, ordered=False)
            merge = {"max": torch.maximum, "min": torch.minimum}.get(op, torch.add)
            axis = "m" if of_rows else "n"

            def into(x: Any, at: Any) -> Any:
                at.write(name, axis, merge(at.kept(name, axis), line(op, x, int(of_rows))[0]))
                return x

            self.add(made, into)
            return
        ops: list[Any] = ["sum", "sum_of_squares", "max", "min", "amax", "log_sum_exp", "softmax", SPAN]
        if self.exact:
            ops += ["argmax", "argmin", "top2", "top4", "top8"]
        op, of_rows = draw.choice(ops), way == "row"
        made = (RowReduce if of_rows else ColumnReduce)(op, name, narrow, order=order)
        axis = "m" if of_rows else "n"

        def written(x: Any, at: Any) -> Any:
            base = 0 if of_rows else at.first
            values = line(op, x, int(of_rows), base)
            for given, value in zip(made.given, values, strict=True):
                at.write(given.name, axis, value)
            return x

        self.add(made, written)

    def quantise(self, kind: Any) -> None:
        name, draw = self.name(), self.draw
        step = Quantize(
            name, draw.choice((8, 16, 32, 64, 128)), draw.choice(("e4m3", "e5m2")), order=draw.choice(("row", "col"))
        )

        def quantised(x: Any, at: Any) -> Any:
            x = x.float()
            if x.shape[1] == 0:
                at.write(name, "mn", x.double())
                return x.double()
            parts = x.split(step.each, 1)
            most = torch.stack([p.abs().amax(1) for p in parts], 1)
            most[(most > 0) & (most < 1e-6)] = math.nan  # of an activation's end alone: its error is as large
            most = most.clamp_min(1e-10)
            at.write(name, "mn", (most / step.most).double())
            spread = (step.most / most).repeat_interleave(step.each, 1)[:, : x.shape[1]]
            return (x * spread).double()

        self.add(step, quantised)


def line(op: Any, x: Any, dim: int, base: int = 0) -> list[Any]:
    """A reduction's results along a dimension of x, each of x's other dimension (and k)."""
    nothing = x.shape[dim] == 0
    rest = x.shape[1 - dim]
    nan = torch.full((rest,), math.nan, dtype=F64)
    if op == "sum":
        return [x.sum(dim)]
    if op == "sum_of_squares":
        return [x.square().sum(dim)]
    if op == "amax":
        return [x.abs().amax(dim) if not nothing else nan.clone().fill_(0)]
    if op in ("max", "min"):
        return [getattr(x, f"a{op}")(dim) if not nothing else nan.clone().fill_(-math.inf if op == "max" else math.inf)]
    if op == "log_sum_exp":
        return [x.logsumexp(dim)]
    if op == "softmax":
        return [x.amax(dim) if not nothing else nan.clone().fill_(-math.inf), x.logsumexp(dim)]
    if op in ("argmax", "argmin"):
        if nothing:
            return [nan.clone().fill_(-math.inf if op == "argmax" else math.inf), nan]
        sign = 1 if op == "argmax" else -1
        first = (x * sign).sort(dim=dim, descending=True, stable=True)
        return [sign * first.values.select(dim, 0), first.indices.select(dim, 0).double() + base]
    if isinstance(op, str):
        k = int(op[3:])
        found = x.sort(dim=dim, descending=True, stable=True)
        short = k - min(k, x.shape[dim])
        shape = [rest, short] if dim == 1 else [short, rest]
        values = torch.cat([found.values.narrow(dim, 0, k - short), torch.full(shape, -math.inf, dtype=F64)], dim)
        places = torch.cat(
            [found.indices.narrow(dim, 0, k - short).double() + base, torch.full(shape, 2.0**31 - 1, dtype=F64)], dim
        )
        return [values, places]
    if nothing:
        shape = (rest, 2) if dim == 1 else (2, rest)
        return [torch.full(shape, math.nan, dtype=F64), nan]
    ends = torch.stack([x.amax(dim), x.amin(dim)], 1 if dim == 1 else 0)
    return [ends, x.amax(dim) - x.amin(dim)]


class Place:
    """The operands of the steps for one piece."""

    def __init__(self, piece: Piece, given: dict[str, Any], want: dict[str, Any], fronts: int, ragged: bool):
        self.piece, self.given, self.want, self.fronts, self.ragged = piece, given, want, fronts, ragged
        rows = piece.x.shape[0]
        self.first = piece.rows.start or 0
        self.i = torch.arange(self.first, self.first + rows)[:, None]
        self.j = torch.arange(piece.x.shape[1])[None, :]

    def where(self, x: Any, axis: str, more: int) -> Any:
        """The index of a piece in an operand; `more`: dimensions of each matrix's own."""
        front = (self.piece.e if axis == "n" and self.ragged else self.piece.front) if x.ndim > more else ()
        if axis == "n":
            return front
        return (*front, self.piece.rows)

    def read(self, name: str, axis: str) -> Any:
        value = self.given[name]
        if not isinstance(value, torch.Tensor):
            return float(torch.tensor(value, dtype=F32))
        value = value.resolve_neg().double()
        if axis == "":
            return value.reshape(())
        found = value[self.where(value, axis, len(axis))]
        return found[:, None] if axis == "m" else found

    def target(self, name: str, axis: str, dims: int) -> Any:
        whole = self.want[name]
        more = dims
        return whole, self.where(whole, axis, more)

    def kept(self, name: str, axis: str) -> Any:
        whole, at = self.target(name, axis, 1)
        return whole[at].clone()

    def write(self, name: str, axis: str, value: Any) -> None:
        whole, at = self.target(name, axis, value.ndim)
        whole[at] = value

    def combine(self, name: str, value: Any, merge: Any) -> None:
        self.want[name] = merge(self.want[name], value.double().reshape(1))


def steps_on(
    chain: Chain, pieces: list[Piece], given: dict[str, Any], want: dict[str, Any], ragged: bool, gate: Any = None
) -> None:
    """Evaluate the chain for all pieces: C and what is written go to `want`."""
    for piece in pieces:
        wide = piece.x
        x = wide
        if gate is not None:
            at = Place(piece, given, want, 0, ragged)
            for run in chain.run[: chain.sums]:
                x = run(x, at)
            half = x.shape[-1] // 2
            x = ACTS[GATES[gate]](x[..., :half]) * x[..., half:]
        at = Place(Piece(piece.front, piece.rows, piece.e, x), given, want, 0, ragged)
        for run in chain.run[chain.sums :]:
            x = run(x, at)
        if "C" in want:
            want["C"][(*piece.front, piece.rows)] = x


def pieces_of(x: Any, shape: tuple[int, ...]) -> list[Piece]:
    """The products of a batch, or the one of two matrices."""
    each = x.reshape(math.prod(shape[:-2]), *x.shape[-2:])
    return [Piece(front, slice(0, one.shape[0]), front, one) for front, one in zip(np.ndindex(*shape[:-2]), each)]


def lies(x: Any) -> str:
    """Shapes and strides, of any number of tensors."""
    if not isinstance(x, torch.Tensor):
        return "None" if x is None else f"[{', '.join(lies(y) for y in x)}]"
    return f"{x.dtype} {tuple(x.shape)} {x.stride()}"


def spread(scales: Any, rows: int, k: int) -> Any:
    """Scales of 1x128 or 128x128 as a factor of each element of (..., rows, k)."""
    x = scales.double()
    x = x.repeat_interleave(1 if x.shape[-2] == rows else 128, -2)[..., :rows, :]
    return x.repeat_interleave(128, -1)[..., :k]


def operands_of(draw: Draw, epilogue: Epilogue, shape: tuple[int, ...], experts: int) -> dict[str, Any]:
    """Operands by name, in any memory that is taken."""
    found: dict[str, Any] = {}
    m, n = shape[-2:]
    for given in epilogue.given:
        kind = KINDS[given.dtype.name]
        if given.host:
            found[given.name] = draw.number()
            continue
        one = given.shape(m, n)
        own = (experts,) if experts and given.axes == "n" else shape[:-2]
        if given.written:
            x = torch.full((*own, *one), 7.0) if given.axes else torch.full((1,), 0.5)
            x = x.to(kind)
        else:
            x = draw.whole(*(*own, *one) if draw.chance(0.6) and given.axes else one or (1,), kind=kind, most=4)
        if given.axes == "":
            found[given.name] = x
        elif given.axes == "mn" or draw.chance(0.05):
            found[given.name] = draw.lay(x, given.written)
        else:
            found[given.name] = x
    return found


def again(x: Any) -> Any:
    """A copy with the same strides, offset and bytes beside it."""
    if not isinstance(x, torch.Tensor):
        return x
    neg = x.is_neg()
    storage = x.untyped_storage()
    raw = torch.empty(storage.nbytes() // x.dtype.itemsize + 8, dtype=x.dtype)
    whole = torch.empty(0, dtype=x.dtype).set_(storage)
    raw[: whole.numel()].copy_(whole)
    made = raw.as_strided(x.shape, x.stride(), x.storage_offset())
    return torch._neg_view(made) if neg else made


def beside(x: Any) -> Any:
    """The bytes of a tensor's storage between and beside its elements."""
    whole = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
    own = torch.zeros(whole.numel(), dtype=torch.bool)
    size = x.dtype.itemsize
    at = torch.arange(0, 1)
    for n, step in zip(x.shape, x.stride()):
        at = (at[:, None] + torch.arange(n) * step).reshape(-1)
    at = (at + x.storage_offset()) * size
    for byte in range(size):
        own[at + byte] = True
    return whole[~own].clone()


def alike(got: Any, want: Any, kind: Any, loose: float, relative: float = 0.0) -> str:
    """Why a result is not what float64 says, rounded to its type; or nothing. `relative`: of its own arithmetic."""
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, not {list(want.shape)}"
    if got.dtype != kind:
        return f"type {got.dtype}, not {kind}"
    have = got.double()
    room = want.clone()
    if kind in (E4M3, E5M2):
        most = torch.finfo(kind).max
        room = room.clamp(-most, most)
    elif kind in (BF16, F16):
        room = room.to(kind).double()
    size = room[room.isfinite()].abs().max() if bool(room.isfinite().any()) else torch.tensor(0.0)
    small = {F16: 2.0**-20, E4M3: 2.0**-9, E5M2: 2.0**-16, F32: 2.0**-40}.get(kind, 0.0)
    exact = (have == room) | room.isnan()
    tolerance = (EPS[kind] * loose + relative) * room.abs() + (2.0**-17 * size * loose if kind != I32 else 0.0) + small
    wrong = ~(exact | ((have - room).abs() <= tolerance))
    if not bool(wrong.any()):
        return ""
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return f"{int(wrong.sum())} of {wrong.numel()} wrong, first {at}: {float(have[at])}, not {float(room[at])}"


# -------------------------------------------------------------------------------------------------------------- doors


def wide(x: Any) -> Any:
    return x.resolve_neg().double()


def out_of(draw: Draw, shape: tuple[int, ...], kind: Any, share: float = 0.4) -> Any:
    if not draw.memory.chance(share):
        return None
    x = torch.full(shape, 7.0).to(kind)
    if len(shape) > 1 and draw.memory.chance(0.2):
        return draw.lay(x.mT.contiguous(), True).mT
    return draw.lay(x, True)


SIZES_M, SIZES_N, SIZES_K = (
    (1, 2, 7, 24, 65, 72, 130, 200),
    (1, 2, 8, 24, 33, 48, 64, 72, 130, 256),
    (1, 8, 33, 64, 72, 130, 200),
)


def types(draw: Draw) -> tuple[Any, Any, dict[str, Any]]:
    """Types of A and B, and options."""
    way = draw.choice(("16", "16", "16", "16", "8", "8", "i", "f32"))
    if way == "16":
        kind = draw.choice((BF16, F16))
        return kind, kind, {}
    if way == "8":
        return draw.choice((E4M3, E5M2)), draw.choice((E4M3, E5M2)), {}
    if way == "i":
        return draw.choice((I8, U8)), draw.choice((I8, U8)), {}
    return F32, F32, {"allow_tf32": True}


def batches(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return draw.choice(
        (((), ()),) * 4
        + (
            ((2,), (2,)),
            ((3,), (1,)),
            ((1,), (2,)),
            ((2, 2), (2, 2)),
            ((2, 1), (2,)),
            ((3,), ()),
            ((), (2,)),
            ((2, 2), ()),
            ((1, 2), (2, 1)),
            ((2,), (3, 1)),
        )
    )


def operand(draw: Draw, front: tuple[int, ...], rows: int, columns: int, kind: Any) -> Any:
    if front and draw.chance(0.15):
        return draw.lay(draw.whole(rows, columns, kind=kind)).expand(*front, rows, columns)
    if draw.chance(0.03):
        return draw.whole(*front, 1, columns, kind=kind).expand(*front, rows, columns)
    return draw.lay(draw.whole(*front, rows, columns, kind=kind))


def dense(draw: Draw) -> Problem:
    """matmul: a matrix or batch by another, bias and activation or an epilogue, a gate."""
    ka, kb, options = types(draw)
    m, n, k = draw.choice(SIZES_M), draw.choice(SIZES_N), draw.choice(SIZES_K)
    if draw.chance(0.03):
        m, n, k = draw.choice(((0, n, k), (m, 0, k), (m, n, 0)))
    fa, fb = batches(draw)
    whole = ka in (I8, U8)
    gate = draw.choice(("swiglu", "geglu")) if draw.chance(0.15) and not whole else None
    columns = n * (1 if gate is None else 2)
    a = operand(draw, fa, m, k, ka)
    b = operand(draw, fb, columns, k, kb).mT if draw.chance(0.6) else operand(draw, fb, k, columns, kb)
    x = wide(a) @ wide(b)
    front = tuple(x.shape[:-2])
    kind = draw.choice((F32, BF16, F16, BF16)) if not whole else draw.choice((I32, F32, BF16, F16))
    if not whole and draw.chance(0.06):
        kind = draw.choice((E4M3, E5M2))
    if draw.chance(0.3) and not front and ka != I8 and not whole:
        options["config"] = draw.config()
    said = f"{ka} x {kb} -> {kind}, {tuple(a.shape)} @ {tuple(b.shape)}, strides {a.stride()} {b.stride()}, gate {gate}"
    shape = (*front, m, n)
    if draw.chance(0.7) and kind != I32:
        chain = Chain(draw, n, kind, sums=gate is not None)
        return with_epilogue(
            draw,
            chain,
            shape,
            x,
            0,
            False,
            gate,
            said,
            kind,
            lambda out, given, ep, kd: matmul(
                a,
                b,
                epilogue=ep,
                given=given,
                out=out,
                out_dtype=kd,
                **({"activation": gate} if gate else {}),
                **options,
            ),
        )
    if draw.chance(0.5):
        bias = draw.whole(columns, kind=draw.choice((F32, BF16, F16)) if kind != I32 else draw.choice((I32, I8)))
        options["bias"] = draw.lay(bias)
        x = x + wide(bias)
    if gate is not None:
        x = ACTS[GATES[gate]](x[..., :n]) * x[..., n:]
        options["activation"] = gate
    elif draw.chance(0.4):
        act = draw.choice(tuple(ACTS)) if kind != I32 else "relu"
        x, options["activation"] = ACTS[act](x), act
    out = out_of(draw, shape, kind)
    return Problem(
        lambda out, given: matmul(a, b, out=out, out_dtype=kind, **options),
        {"C": x},
        out,
        {},
        f"{said} {options}",
        loose=1.0,
    )


def with_epilogue(
    draw: Draw,
    chain: Chain,
    shape: tuple[int, ...],
    x: Any,
    experts: int,
    ragged: bool,
    gate: Any,
    said: str,
    kind: Any,
    call: Any,
    pieces: list[Piece] | None = None,
    own: dict[str, Any] | None = None,
    initial: Any = 0.0,
) -> Problem:
    """The problem of a product with an epilogue; x in float64."""
    stores = draw.chance(0.75) or chain.kind != kind or not any(g.written for s in chain.steps for g in s.given)
    epilogue = Epilogue(*chain.steps, stores_c=stores, sums=chain.sums)
    given = operands_of(draw, epilogue, shape, experts)
    out = out_of(draw, shape, chain.kind) if stores else None
    want: dict[str, Any] = {name: wide(given[name]).clone() for name in epilogue.writes}
    if stores:
        want["C"] = torch.full(
            shape,
            math.nan
            if isinstance(initial, float) and math.isnan(initial) and out is None
            else 7.0
            if out is not None
            else float(initial),
            dtype=F64,
        )
    pieces = pieces_of(x, shape) if pieces is None else pieces
    steps_on(chain, pieces, given, want, ragged, gate)
    names = tuple(
        type(s).__name__ + (f".{getattr(s, 'operation', '')}" if hasattr(s, "operation") else "") for s in chain.steps
    )
    kinds = {g.name: KINDS[g.dtype.name] for g in epilogue.given if g.written}
    return Problem(
        lambda out, own_given: call(out, {**own_given, **(own or {})}, epilogue, chain.kind),
        want,
        out,
        given,
        f"{said} {names} stores {stores}",
        names,
        kinds={**kinds, "C": chain.kind},
        coarse=tuple(g.name for s in chain.steps if isinstance(s, Quantize) and gate == "geglu" for g in s.given),
        loose=2.0 if not chain.exact else 1.0,
    )


def combined(draw: Draw, count: int) -> tuple[Any, Any, dict[str, Any]]:
    """(combine=, the formula, numbers)."""
    way = draw.randrange(4)
    if way == 0 and count == 2:
        act = draw.choice(tuple(ACTS))
        return act, lambda p, q: ACTS[act](p) * q, {}
    if count == 2:
        if way == 1:
            return _minus, lambda p, q: p - 2 * q, {}
        return _blend, lambda p, q: p + 2.0 * torch.relu(q), {"factor": 2.0}
    if count == 3:
        return _three, lambda p, q, r: p - 2 * q + 3 * torch.relu(r), {}
    return _four, lambda p, q, r, t: torch.maximum(p, q) - 2 * r + 3 * t, {}


def _minus(p: Any, q: Any, ops: Any) -> Any:
    return p - 2.0 * q


def _blend(p: Any, q: Any, ops: Any, factor: Any) -> Any:
    return p + factor * ops.maximum(q, 0.0)


def _three(p: Any, q: Any, r: Any, ops: Any) -> Any:
    return p - 2.0 * q + 3.0 * ops.maximum(r, 0.0)


def _four(p: Any, q: Any, r: Any, t: Any, ops: Any) -> Any:
    return ops.maximum(p, q) - 2.0 * r + 3.0 * t


PROLOGUES = (
    (Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0)), lambda x, g: torch.relu(x), {}),
    (Prologue.of(lambda x, i, k, ops, s: x * s, s="m"), lambda x, g: x * g["s"][..., :, None], {"s": "m"}),
    (Prologue.of(lambda x, i, k, ops, w: x + w, w="k:bf16"), lambda x, g: x + g["w"][..., None, :], {"w": "k"}),
    (
        Prologue.of(lambda x, i, k, ops, s, w: x * s - w, s="m", w="k"),
        lambda x, g: x * g["s"][..., :, None] - g["w"][..., None, :],
        {"s": "m", "w": "k"},
    ),
    (
        Prologue.of(lambda x, i, k, ops: ops.where((i + k) % 2 == 0, x, -x)),
        lambda x, g: torch.where((torch.arange(x.shape[-2])[:, None] + torch.arange(x.shape[-1])) % 2 == 0, x, -x),
        {},
    ),
)


def composed(draw: Draw) -> Problem:
    """matmul with parts: several B, two pairs, a prologue, rows by index, an order, and epilogues behind them."""
    kind_a = draw.choice((BF16, F16, BF16, F16, E4M3, F32))
    options: dict[str, Any] = {"allow_tf32": True} if kind_a == F32 else {}
    m, n, k = draw.choice(SIZES_M[1:]), draw.choice(SIZES_N[1:]), draw.choice(SIZES_K[1:])
    batch = draw.choice(((), (), (), (2,)))
    pairs, count = draw.choice(((1, 1), (1, 2), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (1, 1)))
    gate = draw.choice(("swiglu", "geglu")) if count == 1 and draw.chance(0.2) else None
    columns = n * (2 if gate else 1)
    rows_in = m
    said, own = "", {}
    indexed = not batch and draw.chance(0.4)
    picks = indexed and draw.chance(0.6)
    if picks:
        rows_in = draw.choice((1, 9, 50))
    ks = [k] if pairs == 1 else [k, draw.choice((8, 16, 40))]
    lefts = [operand(draw, batch, rows_in if p == 0 or picks else m, kk, kind_a) for p, kk in enumerate(ks)]
    if picks and pairs == 2:
        lefts[1] = operand(draw, batch, m, ks[1], kind_a)
    rights = [
        [
            operand(draw, batch, columns, kk, kind_a).mT
            if draw.chance(0.6)
            else operand(draw, batch, kk, columns, kind_a)
            for _ in range(count)
        ]
        for kk in ks
    ]
    first = wide(lefts[0])
    if draw.chance(0.3) and kind_a in (BF16, F16, E4M3):
        prologue, formula, vectors = draw.choice(PROLOGUES[:4] if picks and draw.chance(0.95) else PROLOGUES)
        for name, axis in vectors.items():
            size = rows_in if axis == "m" else ks[0]
            own[name] = draw.whole(*batch, size, kind=F32)
        values = {}
        for name in vectors:
            wanted = {"bf16": BF16, "f16": F16, "f32": F32}[
                next(o.dtype.name for o in prologue.operands if o.name == name)
            ]
            own[name] = own[name].to(wanted)
            values[name] = wide(own[name])
        first = formula(first, values)
        options["prologue"] = prologue
        said += " prologue"
    if picks:
        options["rows"] = torch.randint(0, rows_in, (m,), dtype=draw.choice((I32, torch.int64)))
        first = first[options["rows"].long()]
        second = wide(lefts[-1])
        said += " rows"
    elif pairs == 2:
        second = wide(lefts[1])
    sums = [first @ wide(rights[0][q]) for q in range(count)]
    if pairs == 2:
        sums = [s + second @ wide(rights[1][q]) for q, s in enumerate(sums)]
    if count > 1:
        combine, formula, numbers = combined(draw, count)
        x = formula(*sums)
        options["combine"], own = combine, {**own, **numbers}
    else:
        x = sums[0]
    a: Any = lefts[0] if pairs == 1 else tuple(lefts)
    b: Any
    if pairs == 1:
        b = rights[0][0] if count == 1 else tuple(rights[0])
    else:
        b = tuple(r[0] if count == 1 else tuple(r) for r in rights)
    kind = draw.choice((F32, BF16, F16))
    shape = (*batch, m, n)
    said = f"{lies(lefts)} @ {lies(rights)} -> {kind},{said} gate {gate}"
    lower = not batch and not picks and draw.chance(0.15)
    if lower:
        options["order"] = "lower"
    placed = indexed and draw.chance(0.6) and not lower
    if gate:
        options["activation"] = gate
    if draw.chance(0.5) and not placed:
        chain = Chain(draw, n, kind, 2, sums=gate is not None, exact=not isinstance(options.get("combine"), str))
        if lower:
            chain.steps.insert(0, Custom.of(lambda x, i, j, ops: ops.where(j <= i, x, 0.0)))
            chain.run.insert(0, lambda x, at: torch.where(at.j <= at.i, x, 0.0 * x))
            if gate:
                chain.steps, chain.run = chain.steps[:1], chain.run[:1]
                chain.sums = 0
            if any(isinstance(s, (RowReduce, ColumnReduce, Amax, Aux, Quantize)) for s in chain.steps):
                chain.steps, chain.run, chain.kind = chain.steps[:1], chain.run[:1], kind
        problem = with_epilogue(
            draw,
            chain,
            shape,
            x,
            0,
            False,
            gate,
            said + f" {options.keys()}",
            kind,
            lambda out, given, ep, kd: matmul(a, b, epilogue=ep, given=given, out=out, out_dtype=kd, **options),
            own=own,
        )
        if lower and "C" in problem.want:
            keep = torch.ones(m, n).tril().bool()
            problem.want["C"] = torch.where(keep, problem.want["C"], math.nan)
        return problem
    if gate:
        x = ACTS[GATES[gate]](x[..., :n]) * x[..., n:]
    elif draw.chance(0.4) and not placed:
        options["bias"] = draw.lay(draw.whole(n, kind=draw.choice((F32, BF16))))
        x = x + wide(options["bias"])
    if not gate and draw.chance(0.3):
        options["activation"] = draw.choice(tuple(ACTS))
        x = ACTS[options["activation"]](x)
    out = out_of(draw, shape, kind)
    if placed:
        if draw.chance(0.4):
            weights = draw.whole(m, kind=F32)
            x, options["row_weights"] = x * wide(weights)[:, None], weights
        results = m if out is None else m + draw.choice((0, 5))
        out = None if out is None else out_of(draw, (results, n), kind, 1.0)
        base = torch.full((results, n), 0.0 if out is None else 7.0, dtype=F64)
        if draw.chance(0.5):
            to = torch.randperm(results)[:m]
            options["out_rows"] = to.to(draw.choice((I32, torch.int64)))
            x = base.index_copy(0, to, x)
        else:
            to = torch.randint(0, results, (m,))
            options["add_rows"] = to.to(draw.choice((I32, torch.int64)))
            x = base.index_add(0, to, x.to(kind).double())  # the workspace has C's type
    want = {"C": x}
    if lower:
        want["C"] = torch.where(torch.ones(m, n).tril().bool(), x, math.nan)
    more = {"given": own} if own else {}
    return Problem(
        lambda out, given: matmul(a, b, out=out, out_dtype=kind, **more, **options),
        want,
        out,
        {},
        f"{said} {list(options)} {options.get('combine')}",
        loose=2.0,
    )


ROWS = (0, 0, 1, 3, 15, 16, 17, 33, 64, 70)


def powers(*shape: int) -> Any:
    return 2.0 ** torch.randint(-1, 2, shape).float()


def grouped(draw: Draw) -> Problem:
    """grouped_matmul: rows, masked, K, columns, batch; scales, gates, rows by index, epilogues, several B."""
    form = draw.choice(("rows", "rows", "rows", "counts", "counts", "K", "batch", "columns"))
    experts = draw.choice((1, 2, 3, 5, 9))
    n, k = draw.choice((1, 7, 16, 41, 64, 88, 130)), draw.choice((1, 16, 72, 130))
    ka = draw.choice((BF16, F16, BF16, F16, E4M3, E5M2))
    kb = ka if ka.itemsize > 1 else draw.choice((E4M3, E5M2))
    sizes = draw.in_order([draw.choice(ROWS) for _ in range(experts)])
    options: dict[str, Any] = {}
    if draw.chance(0.6):
        options["config"] = draw.config()
    said = draw.choice(("offsets", "offs"))
    kind = draw.choice((F32, BF16, F16))
    eight = ka.itemsize == 1
    index = draw.choice((I32, torch.int64))
    if form == "K":
        if eight:
            sizes = sizes // 16 * 128 % 512
            sizes = torch.where(sizes > 256, 256, sizes)
        total = int(sizes.sum()) + (draw.choice((0, 0, 5)) if said == "offs" and not eight else 0)
        m = draw.choice((1, 5, 64, 70))
        if total == 0:
            sizes[0] = total = 128
        ends = sizes.cumsum(0)
        a, b = operand(draw, (), m, total, ka), operand(draw, (), n, total, kb).mT
        if draw.chance(0.5) and not eight:
            a, b = operand(draw, (), total, m, ka).mT, operand(draw, (), total, n, kb)
        shape = (experts, m, n)
        starts = [0, *ends.tolist()]
        left, right = wide(a), wide(b)
        if eight and draw.chance(0.7):
            blocks = -(-total // 128)
            if draw.chance(0.5):
                sa, sb = powers(draw.choice((m, -(-m // 128))), blocks), powers(draw.choice((n, -(-n // 128))), blocks)
                left, right = left * spread(sa, m, total), right * spread(sb, n, total).T
            else:
                sa, sb = powers(experts, m, 1), powers(experts, 1, n)
            options |= {"scale_a": draw.lay(sa), "scale_b": draw.lay(sb)}
        xs = [left[:, s:e] @ right[s:e] for s, e in pairwise(starts)]
        if eight and "scale_a" in options and options["scale_a"].ndim == 3:
            xs = [x * wide(options["scale_a"])[e] * wide(options["scale_b"])[e] for e, x in enumerate(xs)]
        pieces = [Piece((e,), slice(0, m), (e,), x) for e, x in enumerate(xs)]
        ragged, columns, gate = False, n, None
        text = f"{form} {lies(a)} {lies(b)} -> {kind} sizes {sizes.tolist()} {options}"
        groups = ends if said == "offs" else torch.cat([torch.zeros(1, dtype=ends.dtype), ends])
        options[said] = groups.to(index)
        if eight:
            options.pop("config", None) if draw.chance(0.5) else None
    elif form == "columns":
        total = int(sizes.sum()) + (draw.choice((0, 5)) if said == "offs" else 0)
        ends = sizes.cumsum(0)
        m = draw.choice((1, 5, 64, 70))
        a, b = operand(draw, (experts,), m, k, ka), operand(draw, (), total, k, kb).mT
        starts = [0, *ends.tolist()]
        x = torch.full((m, total), math.nan, dtype=F64)
        out = out_of(draw, (m, total), kind)
        x = x.fill_(7.0 if out is not None else 0.0)
        for e, (s, t) in enumerate(pairwise(starts)):
            x[:, s:t] = wide(a)[e] @ wide(b)[:, s:t]
        options[said] = (ends if said == "offs" else torch.cat([torch.zeros(1, dtype=ends.dtype), ends])).to(index)
        return Problem(
            lambda out, given: grouped_matmul(a, b, out=out, out_dtype=kind, **options),
            {"C": x},
            out,
            {},
            f"columns {ka} {tuple(a.shape)} {tuple(b.shape)} {sizes.tolist()} {options}",
        )
    else:
        gate = draw.choice(("swiglu", "geglu")) if draw.chance(0.2) else None
        columns = n * (2 if gate else 1)
        count = draw.choice((2, 2, 3)) if draw.chance(0.15) and gate is None and form != "batch" and not eight else 1
        bs = [
            operand(draw, (experts,), columns, k, kb).mT
            if draw.chance(0.7)
            else operand(draw, (experts,), k, columns, kb)
            for _ in range(count)
        ]
        b = bs[0]
        total = int(sizes.sum())
        ends = sizes.cumsum(0)
        if form == "rows":
            m = total + (0 if said == "offsets" else draw.choice((0, 5, 40)))
            shape, front = (m, n), ()
        else:
            m = max(int(sizes.max()), 1) + draw.choice((0, 3))
            shape, front = (experts, m, n), (experts,)
        picked = None
        rows_in = m
        if form != "batch" and draw.chance(0.3):
            rows_in = draw.choice((1, 9, 50))
            picked = torch.randint(0, rows_in, shape[:-1], dtype=index)
            if form == "counts" and draw.chance(0.5):
                front = ()
        a = operand(draw, front, rows_in, k, ka)
        left = wide(a)
        if draw.chance(0.15) and not eight and form != "batch":
            prologue, formula, vectors = draw.choice(PROLOGUES[:4])
            pv = {}
            for name, axis in vectors.items():
                wanted = KINDS[next(o.dtype.name for o in prologue.operands if o.name == name)]
                own_shape = (*front, rows_in) if axis == "m" else ((experts, k) if draw.chance(0.99) else (k,))
                pv[name] = draw.whole(*own_shape, kind=wanted)
            options["prologue"] = prologue
        else:
            prologue, pv = None, {}
        sa = sb = None
        if eight and draw.chance(0.6):
            blocks = -(-k // 128)
            way = draw.randrange(3)
            if way == 0:
                sa, sb = (
                    powers(*front, rows_in, blocks),
                    powers(experts, draw.choice((columns, -(-columns // 128))), blocks),
                )
            elif way == 1:
                sa, sb = powers(*front, rows_in, 1), powers(experts, *draw.choice(((1, columns), (columns, 1))))
            else:
                sa, sb = torch.tensor([0.5]), torch.tensor([2.0])
            options |= {"scale_a": draw.lay(sa), "scale_b": draw.lay(sb), "use_fast_accum": draw.chance(0.7)}
            if way == 0:
                left = left * sa.double().repeat_interleave(128, -1)[..., :k]
            elif way == 1:
                left = left * sa.double()
            else:
                left = left * 0.5
        if picked is not None:
            if front:
                left = torch.stack([left[e][picked[e].long()] for e in range(experts)])
            else:
                left = left[picked.long()]
            options["rows"] = picked
        pieces = []
        if form == "rows":
            spans = [(s, t) for s, t in zip([0, *ends.tolist()], ends.tolist())]
        elif form == "counts":
            spans = [(0, c) for c in sizes.tolist()]
        else:
            spans = [(0, m)] * experts

        def with_function(part: Any, e: int, s: int, t: int) -> Any:
            if prologue is None:
                return part
            values = {}
            for name, v in pv.items():
                if vectors[name] == "m":
                    v = wide(v)
                    if picked is not None:
                        v = (v[e] if front else v)[picked[e].long() if form == "counts" else picked.long()]
                        v = v[s:t]
                    else:
                        v = (v[e] if front else v)[s:t]
                else:
                    v = wide(v)[e] if v.ndim == 2 else wide(v)
                values[name] = v
            return formula(part, values)

        if count > 1:
            combine, mixing, numbers = combined(draw, count)
        for e, (s, t) in enumerate(spans):
            part = left[s:t] if left.ndim == 2 else left[e, s:t]
            part = with_function(part, e, s, t)
            rights = [wide(bb)[e] for bb in bs]
            if sb is not None:
                if sb.ndim == 1:
                    rights = [r * 2.0 for r in rights]
                elif sb.shape[-1] == -(-k // 128) and sa.shape[-1] == -(-k // 128) and way == 0:
                    f = sb[e].double()
                    f = f.repeat_interleave(128 if f.shape[0] != columns else 1, 0)[:columns].repeat_interleave(128, 1)[
                        :, :k
                    ]
                    rights = [r * f.T for r in rights]
                else:
                    rights = [r * sb[e].double().reshape(1, -1) for r in rights]
            xs = [part @ r for r in rights]
            x = xs[0] if count == 1 else mixing(*xs)
            pieces.append(Piece(() if form == "rows" else (e,), slice(s, t), (e,), x))
        ragged = form == "rows"
        if form == "rows":
            options[said] = (ends if said == "offs" else torch.cat([torch.zeros(1, dtype=ends.dtype), ends])).to(index)
        elif form == "counts":
            options["counts"] = sizes.to(index)
        own = dict(pv)
        if count > 1:
            b = tuple(bs)
            options["combine"] = combine
            own |= numbers
        if gate:
            options["activation"] = gate
        text = f"{form} {lies(a)} {lies(bs)} -> {kind} sizes {sizes.tolist()} gate {gate} {options}"
        if (
            form == "rows"
            and said == "offsets"
            and not gate
            and not eight
            and draw.chance(0.25)
            and prologue is None
            and count == 1
        ):
            xs = torch.cat([p.x for p in pieces]) if pieces else torch.zeros(0, n)
            if draw.chance(0.3):
                options["activation"] = draw.choice(tuple(ACTS))
                xs = ACTS[options["activation"]](xs)
            if draw.chance(0.6):
                weights = draw.whole(m, kind=F32)
                xs, options["row_weights"] = xs * wide(weights)[:, None], weights
            results = m + (draw.choice((0, 5)))
            out = out_of(draw, (results, n), kind, 0.6)
            results = results if out is not None else m
            base = torch.full((results, n), 7.0 if out is not None else 0.0, dtype=F64)
            if draw.chance(0.4):
                to = torch.randperm(results)[:m]
                options["out_rows"], value = to.to(index), base.index_copy(0, to, xs)
            else:
                to = torch.randint(0, max(results, 1), (m,)) if m else torch.zeros(0).long()
                options["add_rows"], value = to.to(index), base.index_add(0, to, xs.to(kind).double())
            return Problem(
                lambda out, given: grouped_matmul(a, b, out=out, out_dtype=kind, **options),
                {"C": value},
                out,
                {},
                text + f" {list(options)}",
                loose=2.0,
            )
        if draw.chance(0.35) or count > 1 or prologue is not None:
            bias = None
            if draw.chance(0.5):
                bias = draw.whole(*draw.choice(((columns,), (experts, columns))), kind=draw.choice((F32, BF16, F16)))
                options["bias"] = draw.lay(bias)
            act = draw.choice(tuple(ACTS)) if draw.chance(0.3) and not gate else None
            if act:
                options["activation"] = act
            out = out_of(draw, shape, kind)
            want = torch.full(shape, 7.0 if out is not None else (math.nan if form == "counts" else 0.0), dtype=F64)
            for piece in pieces:
                x = piece.x
                if bias is not None:
                    x = x + (wide(bias)[piece.e[0]] if bias.ndim == 2 else wide(bias))
                if gate:
                    x = ACTS[GATES[gate]](x[..., :n]) * x[..., n:]
                elif act:
                    x = ACTS[act](x)
                want[(*piece.front, piece.rows)] = x
            more = {"given": own} if own else {}
            return Problem(
                lambda out, given: grouped_matmul(a, b, out=out, out_dtype=kind, **more, **options),
                {"C": want},
                out,
                {},
                text + f" {list(options)}",
                loose=2.0,
            )
    chain = Chain(draw, n, kind, sums=gate is not None)
    initial = math.nan if form == "counts" else 0.0
    return with_epilogue(
        draw,
        chain,
        shape,
        None,
        experts,
        ragged,
        gate,
        text,
        kind,
        lambda out, given, ep, kd: grouped_matmul(a, b, epilogue=ep, given=given, out=out, out_dtype=kd, **options),
        pieces,
        initial=initial,
    )


def scaled(draw: Draw) -> Problem:
    """scaled_matmul in every recipe."""
    m, n, k = (
        draw.choice(SIZES_M),
        draw.choice((1, 8, 24, 41, 48, 72, 100, 130, 256)),
        draw.choice((1, 16, 130, 272, 384)),
    )
    front = () if draw.chance(0.8) else (draw.choice((1, 2)),)
    gate = draw.choice(("swiglu", "geglu")) if draw.chance(0.2) else None
    columns = n * (2 if gate else 1)
    ka, kb = draw.choice((E4M3, E5M2)), draw.choice((E4M3, E5M2))
    a, b = operand(draw, front, m, k, ka), operand(draw, front, columns, k, kb).mT
    blocks = -(-k // 128)
    options: dict[str, Any] = {"use_fast_accum": draw.chance(0.7)}
    if draw.chance(0.5):
        options["config"] = draw.config()
    left, right = wide(a), wide(b)
    if draw.chance(0.5):
        of_a, of_b = draw.choice(("1", "128")), draw.choice(("1", "128", "none"))
        sa = powers(*front, m if of_a == "1" else -(-m // 128), blocks)
        sb = None if of_b == "none" else powers(*front, columns if of_b == "1" else -(-columns // 128), blocks)
        options["recipe_a"] = "BlockWise1x128" if of_a == "1" else "BlockWise128x128"
        if sb is not None:
            options["recipe_b"] = "BlockWise1x128" if of_b == "1" else "BlockWise128x128"
        left = left * spread(sa, m, k)
        if sb is not None:
            right = right * spread(sb, columns, k).mT
    else:
        sa = powers(*draw.choice(((*front, m, 1), (*front, m), (1,), ())))
        sb = draw.choice((powers(*draw.choice(((*front, 1, columns), (*front, columns), (1, 1)))), None))
        options["recipe_a"] = "TensorWise" if sa.numel() == 1 and sa.ndim < 2 else "RowWise"
        left = left * (
            sa.double().reshape(*front, m, 1) if options["recipe_a"] == "RowWise" else sa.double().reshape(())
        )
        if sb is not None:
            right = right * (sb.double().reshape(*front, 1, columns) if sb.shape != (1, 1) else sb.double().reshape(()))
        options["recipe_a"] = None if draw.chance(0.5) else options["recipe_a"]
    x = left @ right
    kind = draw.choice((F32, BF16, F16, BF16, E4M3))
    sa, sb = draw.lay(sa), draw.lay(sb)
    shape = (*front, m, n)
    said = f"{lies([a, b, sa, sb])} -> {kind} gate {gate} {options}"
    if draw.chance(0.6) and kind != E4M3:
        if gate:
            options["activation"] = gate
        chain = Chain(draw, n, kind, sums=gate is not None)
        return with_epilogue(
            draw,
            chain,
            shape,
            x,
            0,
            False,
            gate,
            said,
            kind,
            lambda out, given, ep, kd: scaled_matmul(
                a, sa, b, sb, epilogue=ep, given=given, out=out, out_dtype=kd, **options
            ),
        )
    if draw.chance(0.4):
        options["bias"] = draw.lay(draw.whole(columns, kind=draw.choice((F32, BF16, F16))))
        x = x + wide(options["bias"])
    if gate:
        options["activation"] = gate
        x = ACTS[GATES[gate]](x[..., :n]) * x[..., n:]
    elif draw.chance(0.3):
        options["activation"] = draw.choice(tuple(ACTS))
        x = ACTS[options["activation"]](x)
    if kind == E4M3 and draw.chance(0.6):  # a quantised result
        to = draw.choice((E4M3, E5M2))
        out_scales: dict[str, Any] = {}
        high = torch.finfo(to).max
        parts = x.float().split(128, -1)
        most = torch.stack([p.abs().amax(-1).clamp_min(1e-30) for p in parts], -1)
        value = x.float() * (high / most).repeat_interleave(128, -1)[..., :n]

        def quantised(out: Any, given: Any) -> Any:
            c, scales = scaled_matmul(a, sa, b, sb, out_dtype=to, out_recipe="BlockWise1x128", **options)
            out_scales["scales"] = scales
            given["scales"] = scales
            return c

        return Problem(
            quantised,
            {"C": value.double(), "scales": (most / high).double()},
            None,
            {},
            said + f" out_recipe {to}",
            kinds={"C": to, "scales": F32},
            loose=2.0,
        )
    out = out_of(draw, shape, kind)
    return Problem(
        lambda out, given: scaled_matmul(a, sa, b, sb, out=out, out_dtype=kind, **options),
        {"C": x},
        out,
        {},
        said,
        loose=2.0,
    )


FORMATS = (
    QuantizedFormat("int4", 128),
    QuantizedFormat("int4", 32, zeros=True),
    QuantizedFormat("int4", 16),
    QuantizedFormat("int4"),
    QuantizedFormat("e2m1", 32),
    QuantizedFormat("e2m1", 16),
    QuantizedFormat("int8", 64),
    QuantizedFormat("int8"),
    QuantizedFormat("e4m3", 32),
    QuantizedFormat("e4m3"),
    QuantizedFormat("e5m2", 128),
    QuantizedFormat("e5m2"),
    QuantizedFormat("int4", 64, zeros=True),
)


def quantized(draw: Draw) -> Problem:
    """quantized_matmul and its experts."""
    fmt = draw.choice(FORMATS)
    eight = draw.chance(0.25) and fmt.code in ("int4", "e2m1", "e4m3") and fmt.group != 16
    kind_x = draw.choice((E4M3, E5M2)) if eight else draw.choice((BF16, F16))
    n, k = draw.choice((1, 16, 64, 100, 130, 200, 256)), draw.choice((128, 256, 384, 640, 2048, 2176))
    experts = draw.choice((0, 0, 0, 1, 2, 3))
    rows = draw.choice((1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 70, 130))
    of = E4M3 if eight else kind_x

    def weight() -> Any:
        return QuantizedWeight.quantize(torch.randn(n, k), fmt, of)

    act = draw.choice(tuple(ACTS)) if draw.chance(0.3) else None
    kind = draw.choice((F32, BF16, F16))
    options: dict[str, Any] = {"out_dtype": kind, "activation": act}
    if experts:
        ws = [weight() for _ in range(experts)]
        weights = QuantizedExperts.of(ws)
        sizes = draw.in_order([draw.choice(ROWS) for _ in range(experts)]).tolist()
        rows = sum(sizes)
        x = draw.lay(draw.whole(rows, k, kind=kind_x))
        ends = torch.tensor([0, *sizes]).cumsum(0).to(draw.choice((I32, torch.int64)))
        value = torch.cat([wide(x)[s:e] @ w.dense(F64).T for w, s, e in zip(ws, ends.tolist(), ends.tolist()[1:])])
    else:
        ws = [weight()]
        front = draw.choice(((rows,), (rows,), (1, rows), (rows, 1)))
        x = draw.lay(draw.whole(*front, k, kind=kind_x))
        value = wide(x) @ ws[0].dense(F64).T
    if eight and draw.chance(0.8):
        scale = powers(*draw.choice(((*x.shape[:-1], 1), tuple(x.shape[:-1]), (1,))))
        value = value * (scale.double().reshape(*x.shape[:-1], 1) if scale.numel() != 1 else scale.double())
        options["scale_x"] = draw.lay(scale)
    if draw.chance(0.4):
        each = experts and draw.chance(0.5)
        options["bias"] = draw.lay(draw.whole(*([experts] if each else []), n, kind=draw.choice((F32, BF16, F16))))
        added = wide(options["bias"])
        value = value + (added[torch.repeat_interleave(torch.arange(experts), torch.tensor(sizes))] if each else added)
    sums = value
    gate = draw.choice(tuple(GATES)) if n % 2 == 0 and draw.chance(0.1) else None
    if gate:
        options["activation"], halves = gate, value.chunk(2, -1)
        value = ACTS[GATES[gate]](halves[0]) * halves[1]
    elif act:
        value = ACTS[act](value)
    # Kernels may round weights to x's type, an error of the sums' size, whatever the activation makes of them.
    loose = 512.0 * max(1.0, float(sums.abs().max() / value.abs().max().clamp_min(2.0**-30))) if sums.numel() else 1.0
    said = f"{fmt} x {kind_x} {tuple(x.shape)} {x.stride()} n {n} k {k} experts {experts} {options}"
    if experts:
        return Problem(
            lambda out, given: quantized_grouped_matmul(x, weights, ends, **options),
            {"C": value},
            None,
            {},
            said + f" {ends.tolist()}",
            loose=loose,
        )
    return Problem(lambda out, given: quantized_matmul(x, ws[0], **options), {"C": value}, None, {}, said, loose=loose)


DOORS = {"dense": dense, "composed": composed, "grouped": grouped, "scaled": scaled, "quantized": quantized}
CODES = {
    "dense": ("sm_90a", "sm_90a", "sm_80", "sm_89", "sm_120a"),
    "composed": ("sm_90a", "sm_90a", "sm_80", "sm_120a"),
    "grouped": ("sm_90a", "sm_90a", "sm_80", "sm_89", "sm_120a"),
    "scaled": ("sm_90a", "sm_90a", "sm_89", "sm_120a"),
    "quantized": ("sm_90a", "sm_80", "sm_120a"),
}


def one(
    door: str, number: int, tally: dict[str, int], verbose: bool = False, on: Any = ("kernel", "cpu")
) -> Iterator[str]:
    """The faults of one draw."""
    draw = Draw(f"{door}{number}")
    torch.manual_seed(number)
    code = "sm_90a" if "gpu" in on else draw.choice(CODES[door])
    memory = torch.device("cuda" if "gpu" in on else "cpu")
    try:
        with memory:
            problem = DOORS[door](draw)
    except LayoutError as error:
        tally["refused where it was made"] += 1
        tally["made: " + str(error)[:70]] += 1
        return
    repeat = draw.chance(0.4)
    for where in on:
        found: list[str] = []
        with memory:
            given = {name: again(x) for name, x in problem.given.items()}
            out = again(problem.out)
            tracked = [x for x in (out, *given.values()) if isinstance(x, torch.Tensor)]
            before = [beside(x) for x in tracked]
            was = {name: wide(x).clone() for name, x in given.items() if isinstance(x, torch.Tensor)}
            outs = None if out is None else wide(out).clone()
        said = f"{door} {number} {where} {code}"
        try:
            with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
                emulated = where in ("kernel", "addresses")
                made = stack.enter_context(every_door(patch, code, where == "kernel")) if emulated else []
                got = problem.call(out, given)
                if repeat or where == "gpu":
                    for name, x in given.items():
                        if name in was and isinstance(x, torch.Tensor) and not x.is_neg():
                            x.copy_(was[name].to(x.dtype))
                    if out is not None:
                        out.copy_(outs.to(out.dtype))
                    got = problem.call(out, given)
            if where == "gpu":
                torch.cuda.synchronize()
            if emulated:
                tally["launched"] += len(made) > 0
                tally[f"by {sorted({type(p).__name__ for p, _ in made})}"] += 1
            if where == "addresses":
                continue
        except LayoutError as error:
            tally[f"refused {where}"] += 1
            tally[f"{where}: " + str(error)[:110]] += 1
            if verbose:
                print("refused", where, error)
            for name, x in given.items():
                if isinstance(x, torch.Tensor) and not torch.equal(wide(x), was[name]):
                    found.append(f"refused, and {name} was written")
            if out is not None and not torch.equal(wide(out), outs):
                found.append("refused, and out was written")
            yield from [f"{said}: {text}\n    {problem.said}" for text in found]
            continue
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where_at = f"{type(error).__name__} at {last.filename}:{last.lineno}"
            yield f"{said}: {where_at}: {str(error)[:600]}\n    {problem.said}"
            if verbose:
                traceback.print_exc()
            if "CUDA" in str(error):
                raise
            continue
        tally[f"answered {where}"] += 1
        with memory:
            for name, want in problem.want.items():
                x = got if name == "C" else given[name]
                if why := alike(
                    x, want, problem.kinds.get(name, x.dtype), problem.loose, COARSE * (name in problem.coarse)
                ):
                    found.append(f"{name}: {why}")
            if out is not None and got is not out:
                found.append("the result is not out")
            if out is None and "C" not in problem.want and got.numel():
                found.append("a C that is not stored has elements")
            for x, old in zip(tracked, before):
                if not torch.equal(beside(x), old):
                    found.append(f"bytes beside a tensor {tuple(x.shape)} {x.stride()} were written")
        yield from [f"{said}: {text}\n    {problem.said}" for text in found]


def faults(
    door: str,
    seed: int,
    count: int,
    tally: Any = None,
    verbose: bool = False,
    seconds: float = 1e9,
    on: Any = ("kernel", "cpu"),
) -> Iterator[str]:
    """The faults of so many draws."""
    tally = collections.Counter() if tally is None else tally
    start = time.monotonic()
    for number in range(seed, seed + count):
        if time.monotonic() - start > seconds:
            return
        tally["draws"] += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from one(door, number, tally, verbose, on)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", default="dense")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("-v", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    asked = parser.parse_args()
    tally: Any = collections.Counter()
    for fault in faults(
        asked.door,
        asked.seed,
        asked.count,
        tally,
        asked.v,
        asked.seconds,
        ("gpu",) if asked.gpu else ("cpu",) if asked.cpu else ("kernel", "cpu"),
    ):
        print("FAULT", fault, flush=True)
    for name, count in tally.most_common():
        print(count, name)


if __name__ == "__main__":
    main()
