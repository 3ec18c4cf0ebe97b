"""Invalid calls of matmul and gemm, each with the expected error."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from layoutgemm import Sm90Config, gemm, matmul
from layoutgemm.errors import LayoutError, OperandError, TensorError

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2, I8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8


@dataclass(frozen=True)
class Refusal:
    """A refused call: description, call, error type and error text.

    out  the call's output tensor, which must stay unchanged
    """

    name: str
    call: Callable[[], object]
    error: type[Exception] | tuple[type[Exception], ...]
    text: str
    out: Any = None

    def fault(self) -> str:
        """The fault of the refusal, or ""."""
        before = None if self.out is None else self.out.clone()
        try:
            self.call()
        except self.error as found:
            if not re.search(self.text, str(found)):
                return f"{self.name}: the error says {str(found)[:200]!r}, not {self.text!r}"
        except Exception as found:
            return f"{self.name}: {type(found).__name__} instead of {self.error}: {str(found)[:200]}"
        else:
            return f"{self.name}: was not refused"
        if before is not None and not torch.equal(before.float().nan_to_num(), self.out.float().nan_to_num()):
            return f"{self.name}: something was written"
        return ""


def refusals(device: str) -> list[Refusal]:
    """All refused calls, for tensors on a device."""
    kinds = (_shapes, _types, _unsupported, _outputs, _output_types, _configs, _others, _places, _epilogues)
    return [refusal for kind in kinds for refusal in kind(device)]


def _ones(device: str, *shape: int, dtype: Any = BF16) -> Any:
    return torch.ones(shape, device=device).to(dtype)


def _shapes(device: str) -> Iterator[Refusal]:
    pairs = [
        ((3, 4), (5, 6)), ((1, 2), (1, 2)), ((64, 64), (63, 64)), ((64, 0), (1, 4)), ((4,), (5,)), ((4,), (5, 4)),
        ((4, 5), (4,)), ((2, 3, 4), (5, 6)), ((2, 3, 4), (2, 5, 6)), ((3, 4), (2, 5, 6)), ((2, 3, 4), (3, 4, 6)),
        ((2, 1, 3, 4), (3, 2, 4, 5, 1)), ((5, 2, 3, 4), (4, 4, 5)), ((2, 2, 3, 4), (3, 2, 4, 5)), ((7, 4), (7, 4)),
        ((1, 128), (64, 128)), ((128, 1), (128, 1)), ((0, 3), (4, 0)), ((3, 2, 8), (2, 8, 4)), ((8,), (2, 4, 8)),
        ((2, 8, 4), (8,)), ((6, 1, 2, 3), (5, 4, 3, 2)), ((2, 3), (3, 2, 2)),
    ]  # fmt: skip
    said = "cannot be multiplied|inconsistent tensor size|size mismatch|must match the size"
    for a, b in pairs:
        for dtype in (BF16, F16):
            x, y = _ones(device, *a, dtype=dtype), _ones(device, *b, dtype=dtype)
            yield Refusal(f"shapes {a} {b} {dtype}", lambda x=x, y=y: matmul(x, y), TensorError, said)
    for a, b in (((), (3, 4)), ((3, 4), ()), ((), ())):
        x, y = _ones(device, *a), _ones(device, *b)
        yield Refusal(f"shapes {a} {b}", lambda x=x, y=y: matmul(x, y), TensorError, "at least 1D")


def _types(device: str) -> Iterator[Refusal]:
    kinds = (BF16, F16, F32, I8, E4M3, torch.float64, torch.int32)
    for one, other in itertools.permutations(kinds, 2):
        x, y = _ones(device, 16, 16, dtype=one), _ones(device, 16, 16, dtype=other)
        call = lambda x=x, y=y: matmul(x, y, allow_tf32=True)  # noqa: E731
        yield Refusal(f"types {one} {other}", call, TensorError, "same dtype")


def _unsupported(device: str) -> Iterator[Refusal]:
    for kind in (torch.float64, torch.int32, torch.int64, torch.int16, torch.bool, torch.complex128, torch.complex64):
        x = torch.ones(16, 16, device=device).to(kind)
        yield Refusal(f"type {kind}", lambda x=x: matmul(x, x), OperandError, "this library multiplies")
        yield Refusal(f"vector of {kind}", lambda x=x: matmul(x[0], x), OperandError, "this library multiplies")
    x = _ones(device, 16, 16, dtype=F32)
    for shape in ((16, 16), (4, 4), (16,)):
        y = x[0] if shape == (16,) else x
        yield Refusal(f"float32 {shape}", lambda y=y: matmul(y, x, allow_tf32=False), OperandError, "allow_tf32=True")
    yield Refusal("gemm of float32", lambda: gemm(1.0, x, x, allow_tf32=False), OperandError, "allow_tf32=True")


def _outputs(device: str) -> Iterator[Refusal]:
    for dtype in (BF16, F16):
        x, y = _ones(device, 16, 32, dtype=dtype), _ones(device, 32, 24, dtype=dtype)
        for shape in ((16, 23), (24, 16), (16, 24, 1), (384,), (1, 16, 24), (15, 24)):
            out = torch.full(shape, 5.0, device=device, dtype=dtype)
            call = lambda x=x, y=y, out=out: matmul(x, y, out=out)  # noqa: E731
            yield Refusal(f"out of shape {shape} {dtype}", call, TensorError, "not resized", out)
        for kind in (F32, torch.float64, torch.int32, F16 if dtype == BF16 else BF16):
            out = torch.full((16, 24), 5, device=device, dtype=kind)
            call = lambda x=x, y=y, out=out: matmul(x, y, out=out)  # noqa: E731
            yield Refusal(f"out of {kind} for {dtype}", call, TensorError, "to have dtype", out)
        for name, out in (
            ("one row for all", torch.full((1, 24), 5.0, device=device, dtype=dtype).expand(16, 24)),
            ("one element for all", torch.full((), 5.0, device=device, dtype=dtype).expand(16, 24)),
            ("rows that overlap", torch.full((400,), 5.0, device=device, dtype=dtype).as_strided((16, 24), (12, 1))),
        ):
            call = lambda x=x, y=y, out=out: matmul(x, y, out=out)  # noqa: E731
            yield Refusal(f"out: {name} {dtype}", call, TensorError, "more than one element", out)
        square = torch.full((32, 32), 5.0, device=device, dtype=dtype)
        wide = torch.full((32, 64), 5.0, device=device, dtype=dtype)
        for name, a, b, out in (
            ("a itself", square, square.clone(), square),
            ("b itself", square.clone(), square, square),
            ("b turned", square.clone(), square, square.T),
            ("columns that meet a's", wide[:, :32], square, wide[:, 16:48]),
            ("columns that meet b's", square, wide[:, 32:], wide[:, 31:63]),
            ("rows that meet a's", wide.view(64, 32)[:32], square, wide.view(64, 32)[31:63]),
        ):
            over = lambda a=a, b=b, out=out: matmul(a, b, out=out)  # noqa: E731
            yield Refusal(f"out over {name} {dtype}", over, TensorError, "shares memory", out)
        for who in range(3):
            tensors = [x.clone(), y.clone(), torch.full((16, 24), 5.0, device=device, dtype=dtype)]
            tensors[who].requires_grad_()
            recorded = lambda t=tensors: matmul(t[0], t[1], out=t[2])  # noqa: E731
            yield Refusal(f"out and a gradient of {who} {dtype}", recorded, TensorError, "automatic differentiation")
        into_list = lambda x=x, y=y: matmul(x, y, out=[1.0])  # noqa: E731
        yield Refusal(f"out is a list {dtype}", into_list, OperandError, "not a torch tensor")


def _output_types(device: str) -> Iterator[Refusal]:
    for given, asked in [
        *itertools.product((BF16, F16, E4M3, E5M2), (torch.float64, torch.int32, torch.int8, torch.bool)),
        *itertools.product((I8,), (torch.float64, torch.bool, torch.int8, torch.int64)),
        *itertools.product((F32,), (torch.float64, torch.int32)),
    ]:
        x = _ones(device, 16, 16, dtype=given)
        call = lambda x=x, asked=asked: matmul(x, x, out_dtype=asked, allow_tf32=True)  # noqa: E731
        yield Refusal(f"{given} stored as {asked}", call, OperandError, "is stored as")


def _configs(device: str) -> Iterator[Refusal]:
    x = _ones(device, 64, 64)
    for name, config in (("a text", "fast"), ("a tuple", (128, 128)), ("a number", 3), ("a type", Sm90Config)):
        call = lambda config=config: matmul(x, x, config=config)  # noqa: E731
        yield Refusal(f"config is {name}", call, OperandError, "config is a")
    for values in (
        {"tile": (100, 64)}, {"tile": (64, 64), "consumers": 4}, {"tile": (0, 64)}, {"schedule": "quick"},
        {"cluster": (4, 4)}, {"loader": "self", "schedule": "pingpong"}, {"split": 2}, {"buffers": 0},
        {"tile": (64, 64)}, {"loaded_a_rows": 7}, {"store": "never"}, {"tile": (128, 128), "group": 0},
    ):  # fmt: skip
        call = lambda values=values: matmul(x, x, config=Sm90Config(**values))  # noqa: E731
        yield Refusal(f"config {values}", call, LayoutError, "")


def _others(device: str) -> Iterator[Refusal]:
    x = _ones(device, 16, 16)
    for name, value in (("a list", [[1.0]]), ("a number", 2.0), ("None", None), ("a text", "x"), ("an array", None)):
        given = x.float().cpu().numpy() if name == "an array" else value
        yield Refusal(f"a is {name}", lambda g=given: matmul(g, x), OperandError, "not a torch tensor")
        yield Refusal(f"b is {name}", lambda g=given: matmul(x, g), OperandError, "not a torch tensor")
    sparse = x.float().to_sparse()
    yield Refusal("a is sparse", lambda: matmul(sparse, x.float(), allow_tf32=True), OperandError, "dense")
    yield Refusal("b is sparse", lambda: matmul(x.float(), sparse, allow_tf32=True), OperandError, "dense")


def _places(device: str) -> Iterator[Refusal]:
    if device == "cpu":
        return
    for dtype in (BF16, F16, E4M3):
        here, there = _ones(device, 16, 16, dtype=dtype), _ones("cpu", 16, 16, dtype=dtype)
        for name, a, b in (("b", here, there), ("a", there, here)):
            yield Refusal(f"{name} on the CPU {dtype}", lambda a=a, b=b: matmul(a, b), TensorError, "same device")
    here = _ones(device, 16, 16)
    out = torch.full((16, 16), 5.0, dtype=BF16)
    yield Refusal("out on the CPU", lambda: matmul(here, here, out=out), TensorError, "same device", out)


def _epilogues(device: str) -> Iterator[Refusal]:
    x, y = _ones(device, 16, 32), _ones(device, 32, 24)
    for shape in ((23,), (16,), (1,), (16, 24), (1, 24), ()):
        bias = torch.ones(shape, device=device, dtype=BF16)
        yield Refusal(f"bias of shape {shape}", lambda bias=bias: matmul(x, y, bias=bias), TensorError, "does not fit")
    for name in ("swish", "RELU", "", "gelu_fast"):
        call = lambda name=name: matmul(x, y, activation=name)  # noqa: E731
        yield Refusal(f"activation {name!r}", call, OperandError, "known are")
    yield Refusal("beta without c", lambda: gemm(1.0, x, y, 2.0), OperandError, "needs a c")
    for other in ((23,), (24, 16), (2, 16, 24)):
        c = torch.ones(other, device=device, dtype=BF16)
        call = lambda c=c: gemm(1.0, x, y, 1.0, c)  # noqa: E731
        yield Refusal(f"gemm: c of shape {other}", call, (TensorError, RuntimeError), "")
