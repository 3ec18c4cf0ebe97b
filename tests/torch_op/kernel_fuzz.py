"""Random scaled and grouped products by their kernels, in the emulator, each twice: the long way, then kept.

`faults(seed, count)` compares with the same call on the CPU, exact for the whole numbers and powers of two that are
drawn: any recipe, form, size, memory layout, type and output. Gates are compared within float32's and C's rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from layoutgemm import Sm90Config, grouped_matmul, scaled_matmul
from tests.torch_op.test_operator import emulated

E4M3, BF16, F16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32
E5M2 = torch.float8_e5m2
CONFIGS = (
    Sm90Config((64, 64), consumers=1, stages=2, loader="warp"),
    Sm90Config((64, 128), consumers=1, stages=2, loader="warp", chunks=1),
    Sm90Config((128, 64), stages=2),
)
Call = Callable[[Any], Any]


class Draw(random.Random):
    """Operands of one seed."""

    def whole(self, *shape: int, kind: Any = BF16) -> Any:
        return torch.randint(-2, 3, shape).to(kind)

    def powers(self, *shape: int) -> Any:
        return 2.0 ** torch.randint(-1, 2, shape).float()

    def lay(self, x: Any) -> Any:
        """The same values in other memory."""
        form = self.randrange(6)
        if x is None or x.ndim < 1 or form == 0:
            return x
        if form == 1:
            return x.mT.contiguous().mT if x.ndim > 1 else x
        if form in (2, 3):
            beside = self.choice((1, 3, 16))
            wide = torch.zeros(*x.shape[:-1], x.shape[-1] + beside, dtype=x.dtype)
            inner = wide[..., :-beside] if form == 2 else wide[..., beside:]
            return inner.copy_(x)
        return torch._neg_view(-x) if form == 4 and x.dtype.itemsize > 1 else x.clone()

    def output(self, shape: tuple[int, ...], kind: Any) -> Any:
        """An output filled with sevens, or None."""
        out = self.lay(torch.full(shape, 7.0, dtype=kind)) if self.random() < 0.4 else None
        return None if out is not None and out.is_neg() else out


def scaled(draw: Draw, m: int, n: int, k: int, kind: Any, config: Sm90Config, gate: str | None) -> tuple[Call, Any]:
    """A call of scaled_matmul, and its output; of a gate n is even, and twice the result's columns."""
    front = () if draw.random() < 0.8 else (draw.choice((1, 2)),)
    a, b = draw.whole(*front, m, k, kind=E4M3), draw.whole(*front, n, k, kind=E4M3).mT
    blocks = -(-k // 128)
    if draw.random() < 0.5:
        sa = draw.powers(*front, draw.choice((m, -(-m // 128))), blocks)
        sb = draw.choice((draw.powers(*front, draw.choice((n, -(-n // 128))), blocks), None))
    else:
        sa = draw.powers(*draw.choice(((*front, m, 1), (*front, m), (1,), ())))
        sb = draw.choice((draw.powers(*draw.choice(((*front, 1, n), (*front, n), (1, 1)))), None))
    options: dict[str, Any] = {"out_dtype": kind, "config": config, "use_fast_accum": draw.random() < 0.7}
    if draw.random() < 0.4:
        options["bias"] = draw.lay(draw.whole(n, kind=draw.choice((F32, BF16))))
    if gate is not None or draw.random() < 0.4:
        options["activation"] = gate or "relu"
    given = [draw.lay(x) for x in (a, sa, b, sb)]
    return lambda out: scaled_matmul(*given, **options, out=out), draw.output((*front, m, columns(n, gate)), kind)


def columns(n: int, gate: str | None) -> int:
    """Columns of the result."""
    return n if gate is None else n // 2


def grouped(draw: Draw, m: int, n: int, k: int, kind: Any, config: Sm90Config, gate: str | None) -> tuple[Call, Any]:
    """A call of grouped_matmul of rows or columns, and its output."""
    experts, multiplied = draw.choice((1, 2, 5)), draw.choice((BF16, F16, E4M3))
    ends = sorted(draw.randint(0, m) for _ in range(experts))
    said = draw.choice(("offsets", "offs"))
    groups = torch.tensor(
        [0, *ends[:-1], m] if said == "offsets" else ends, dtype=draw.choice((torch.int32, torch.int64))
    )
    groups = torch.stack([groups, groups], 1)[:, 0] if draw.random() < 0.2 else groups
    a, b = draw.whole(m, k, kind=multiplied), draw.whole(experts, n, k, kind=multiplied).mT
    blocks, turned = -(-k // 128), gate is None and draw.random() < 0.3
    scales: dict[str, Any] = {}
    if multiplied == E4M3 and draw.random() < 0.7:
        if draw.random() < 0.5:
            sa, sb = draw.powers(m, blocks), draw.powers(experts, draw.choice((n, -(-n // 128))), blocks)
        else:
            sa, sb = draw.powers(m, 1), draw.powers(*draw.choice(((experts, n, 1), (1, 1, 1))))
        scales = {"scale_a": draw.lay(sb), "scale_b": draw.lay(sa)} if turned else {
            "scale_a": draw.lay(sa), "scale_b": draw.lay(sb)
        }  # fmt: skip
    first, second = (draw.lay(b).mT, draw.lay(a).mT) if turned else (draw.lay(a), draw.lay(b))
    options = {said: groups, **scales, "out_dtype": kind, "config": config, "use_fast_accum": draw.random() < 0.7}
    if not turned and draw.random() < 0.4:
        shape = (n,) if draw.random() < 0.5 else (experts, n)
        options["bias"] = draw.lay(draw.whole(*shape, kind=draw.choice((F32, BF16, F16))))
        options["activation"] = draw.choice((None, "relu"))
    if gate is not None:
        options["activation"] = gate
    return lambda out: grouped_matmul(first, second, **options, out=out), draw.output(
        (n, m) if turned else (m, columns(n, gate)), kind
    )


def masked(draw: Draw, m: int, n: int, k: int, kind: Any, config: Sm90Config, gate: str | None) -> tuple[Call, Any]:
    """A call of grouped_matmul of masked groups, and its output: rows that do not count are zeros in a new result."""
    experts, multiplied = draw.choice((1, 2, 5)), draw.choice((BF16, F16, E4M3))
    counts = torch.tensor([draw.choice((0, m, draw.randint(0, m))) for _ in range(experts)], dtype=torch.int32)
    a, b = draw.whole(experts, m, k, kind=multiplied), draw.whole(experts, n, k, kind=multiplied).mT
    options: dict[str, Any] = {"counts": counts, "out_dtype": kind, "config": config, "activation": gate}
    if multiplied == E4M3 and draw.random() < 0.7:
        blocks = -(-k // 128)
        if draw.random() < 0.5:
            sa, sb = draw.powers(experts, m, blocks), draw.powers(experts, draw.choice((n, -(-n // 128))), blocks)
        else:
            sa, sb = draw.powers(experts, m, 1), draw.powers(experts, 1, n)
        options |= {"scale_a": draw.lay(sa), "scale_b": draw.lay(sb)}
    if draw.random() < 0.4:
        options["bias"] = draw.lay(draw.whole(experts, n, kind=draw.choice((F32, BF16, F16))))
    left, right = draw.lay(a), draw.lay(b)
    count = (torch.arange(m) < counts[:, None]).unsqueeze(-1)

    def call(out: Any) -> Any:
        got = grouped_matmul(left, right, **options, out=out)
        return got if out is not None else torch.where(count, got, 0)

    return call, draw.output((experts, m, columns(n, gate)), kind)


def along_k(draw: Draw, m: int, n: int, k: int, kind: Any, config: Sm90Config, gate: None) -> tuple[Call, Any]:
    """A call of grouped_matmul of groups along K, and its output."""
    experts, multiplied = draw.choice((1, 2, 5)), draw.choice((BF16, F16))
    ends = sorted(draw.randint(0, k) for _ in range(experts))
    said = draw.choice(("offsets", "offs"))
    groups = torch.tensor([0, *ends[:-1], k] if said == "offsets" else ends, dtype=torch.int64)
    a, b = draw.lay(draw.whole(k, m, kind=multiplied)).mT, draw.lay(draw.whole(k, n, kind=multiplied))
    options = {said: groups, "out_dtype": kind, "config": config}
    return lambda out: grouped_matmul(a, b, **options, out=out), draw.output((experts, m, n), kind)


def k_blocks(draw: Draw, m: int, n: int, k: int, kind: Any, config: Sm90Config, gate: None) -> tuple[Call, Any]:
    """A call of grouped_matmul of 8-bit groups along K, and its output."""
    experts, lines = draw.choice((1, 2, 5)), draw.choice((k, 128, 400))
    ends = sorted(draw.choice((lines, draw.randint(0, lines // 128) * 128)) for _ in range(experts))
    said = draw.choice(("offsets", "offs"))
    groups = torch.tensor([0, *ends[:-1], lines] if said == "offsets" else ends, dtype=torch.int32)
    types = draw.choice((E4M3, E5M2)), draw.choice((E4M3, E5M2))
    a, b = draw.lay(draw.whole(m, lines, kind=types[0])), draw.lay(draw.whole(n, lines, kind=types[1])).mT
    blocks = -(-lines // 128)
    of_blocks = [draw.powers(draw.choice((x, -(-x // 128))), blocks) for x in (m, n)]
    of_rows = (
        draw.powers(*draw.choice(((experts, m, 1), (1,), ()))),
        draw.powers(*draw.choice(((experts, 1, n), (1, 1)))),
    )
    scales = draw.choice((of_blocks, of_rows, (None, None), (of_blocks[0], None), (of_rows[0], None)))
    options: dict[str, Any] = {said: groups, "scale_a": draw.lay(scales[0]), "scale_b": draw.lay(scales[1])}
    options |= {"out_dtype": kind, "config": config if config.loader == "warp" else None}
    if scales[0] is None or scales[0] is of_rows[0]:
        options["config"] = config
    options["use_fast_accum"] = config.loader != "warp" or draw.random() < 0.7
    return lambda out: grouped_matmul(a, b, **options, out=out), draw.output((experts, m, n), kind)


def faults(seed: int, count: int, forms: Sequence[Any] = (scaled, grouped, masked, along_k, k_blocks)) -> Iterator[str]:
    """The draws whose kernel gave something else than the CPU."""
    for number in range(seed, seed + count):
        draw = Draw(number)
        torch.manual_seed(number)
        sizes = (
            draw.choice((1, 7, 33, 70, 130)),
            draw.choice((1, 8, 24, 41, 48, 72, 100)),
            draw.choice((1, 16, 130, 272)),
        )
        form, kind = draw.choice(forms), draw.choice((F32, BF16, F16))
        gate = None if form in (along_k, k_blocks) else draw.choice((None, None, "swiglu", "geglu"))
        sizes = sizes if gate is None else (sizes[0], 2 * sizes[1], sizes[2])
        call, out = form(draw, *sizes, kind, draw.choice(CONFIGS), gate)
        want = call(None if out is None else out.clone())
        with pytest.MonkeyPatch.context() as patch, emulated(patch, edges=False):
            for turn in ("first", "kept"):
                got = call(out if out is None else out.fill_(7.0))
                alike = got == want  # infinities of float16 too
                off = torch.where(alike, 0.0, (got.double() - want.double()).abs())
                room = 0.0 if gate is None else 2 * torch.finfo(kind).eps * want.double().abs() + 2.0**-12
                if got.shape != want.shape or bool((~(off <= room)).any()):
                    yield f"draw {number} ({form.__name__} {sizes} {gate}, {turn}): off by {float(off.max())}"
                    break
