"""Random epilogues: their kernels, in the emulator, give the CPU's bits.

`faults(seed, count)` draws products of groups: any form, sizes, types, scales that the epilogue applies, steps, and
memory of operands. `dense_faults` draws matrices and batches, by the kernel that the choice takes for these sizes:
operands may change places. What no kernel computes is refused, and counts as no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from layoutgemm import Sm90Config, grouped_matmul, matmul
from layoutgemm.errors import LayoutError, PlanError
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Aux,
    Bias,
    ColumnGroup,
    ColumnReduce,
    Custom,
    Dropout,
    Epilogue,
    Quantize,
    Reduction,
    Residual,
    RowReduce,
    Step,
    VectorScale,
)
from tests.torch_op.kernel_fuzz import BF16, E4M3, F16, F32, Draw
from tests.torch_op.test_operator import emulated

KINDS = {"f32": F32, "bf16": BF16, "f16": F16, "i32": torch.int32}
SIZES, FORMS = (0, 0, 1, 3, 15, 16, 17, 33, 64, 70), ("offs", "offsets", "counts", "K", "rows", "counts, rows")
STEPS: dict[str, Step] = {
    "residual": Residual("f32", beta=None), "bias": Bias("n", "f32"), "each row": VectorScale("m", "f32", "vector"),
    "aux": Aux("f32"), "relu": Activation("relu"), "rows": RowReduce("sum", "row"), "amax": Amax(),
    "row of most": RowReduce("argmax", "best"), "rows in memory": RowReduce("sum", "in_row", ordered=False),
    "columns": ColumnReduce("sum", "column"), "column of most": ColumnReduce("argmax", "most"),
    "columns in memory": ColumnReduce("max", "in_column", ordered=False), "parts": RowReduce("max", "part", each=16),
    "own": Custom.of(lambda x, i, j, ops: ops.where((i + j) % 3 == 0, -x, x)), "dropout": Dropout(0.5),
}  # fmt: skip

SPAN = Reduction.of(
    lambda x, i, j, ops: (x, -x),
    lambda a, b, ops: (ops.maximum(a[0], b[0]), ops.maximum(a[1], b[1])),
    identity=(-3.0e38, -3.0e38),
    finish=lambda a, ops: ((a[0], -a[1]), a[0] + a[1]),
    results=("ends", "span"),
)
DENSE_STEPS: dict[str, Step] = {
    **STEPS, "most of rows": RowReduce("top2", "tops"), "most of columns": ColumnReduce("top4", "top"),
    "ends of rows": RowReduce(SPAN, "ends", order="col"), "ends of columns": ColumnReduce(SPAN, "ends_below", "f16"),
    "pairs": ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0])), "aux by columns": Aux("bf16", "col", name="second"),
}  # fmt: skip


def config_of(draw: Draw) -> Sm90Config:
    """A small kernel: of one CTA, or a cluster of two."""
    tile = draw.choice(((64, 64), (128, 64), (64, 32)))
    cluster = draw.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
    return Sm90Config(tile, consumers=tile[0] // 64, stages=2, loader="warp", cluster=cluster)


def product(draw: Draw, form: str) -> tuple[dict[str, Any], tuple[int, ...], int]:
    """A call's arguments, the result's shape, and its groups."""
    experts, n, k = (
        draw.choice((1, 2, 3, 5, 9)),
        draw.choice((1, 7, 16, 41, 64, 88, 130)),
        draw.choice((1, 16, 72, 130)),
    )
    sizes = torch.tensor([draw.choice(SIZES) for _ in range(experts)])
    kind, total, ends = draw.choice((BF16, F16, E4M3)), int(sizes.sum()), sizes.cumsum(0)
    if form == "K":
        kind, m = draw.choice((BF16, F16)), draw.choice((5, 64, 70))
        a, b = draw.lay(draw.whole(total, m, kind=kind)).mT, draw.lay(draw.whole(total, n, kind=kind))
        return {"a": a, "b": b, "offs": ends.int()}, (experts, m, n), experts
    found: dict[str, Any] = {"b": draw.lay(draw.whole(experts, n, k, kind=kind)).mT}
    if form.startswith("counts"):
        m = max(int(sizes.max()), 1) + draw.choice((0, 3))
        front, shape, found["counts"] = [experts], (experts, m, n), sizes
    else:
        m = total + (0 if form == "offsets" else draw.choice((0, 5, 40)))
        front, shape = [], (m, n)
        found |= {"offsets": torch.nn.functional.pad(ends, (1, 0)).int()} if form == "offsets" else {"offs": ends}
    rows = m
    if form.endswith("rows"):
        rows, front = draw.choice((1, 9, 50)), front[: draw.choice((0, 1))]
        found["rows"] = torch.randint(0, rows, shape[:-1], dtype=torch.int32)
    found["a"] = draw.lay(draw.whole(*front, rows, k, kind=kind))
    if kind == E4M3 and form != "counts, rows" and draw.random() < 0.6:
        each = draw.random() < 0.5
        found["scale_a"] = draw.lay(draw.powers(*front, rows)) if each else torch.tensor([0.5])
        found["scale_b"] = draw.lay(draw.powers(experts, n)) if each else torch.tensor([2.0])
        found["use_fast_accum"] = draw.random() < 0.7
    return found, shape, experts


def matrix(draw: Draw, x: torch.Tensor) -> torch.Tensor:
    """A matrix in memory that an epilogue takes: rows or columns contiguous, any pitch and offset."""
    form = draw.randrange(4)
    if form == 0:
        return x
    if form == 1:
        return x.mT.contiguous().mT
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 4), 5, dtype=x.dtype)
    return wide[..., form - 2 : form - 2 + x.shape[-1]].copy_(x)


def operands(draw: Draw, epilogue: Epilogue, shape: tuple[int, ...], experts: int = 0) -> dict[str, Any]:
    """The steps' operands. Outputs hold sevens, which rows of no group keep."""
    found: dict[str, Any] = {}
    for given in epilogue.given:
        if given.host:
            found[given.name] = 5
            continue
        one = given.shape(*shape[-2:])
        several = (experts, *one) if experts and given.axes == "n" else (*shape[:-2], *one)
        if given.written:
            x = torch.zeros(1) if not given.axes else torch.full(several, 7.0)
            x = x.to(KINDS[given.dtype.name])
        else:
            x = draw.whole(*several if draw.random() < 0.6 else one, kind=F32)
        found[given.name] = matrix(draw, x) if given.axes == "mn" else x
    return found


def again(x: Any) -> Any:
    """The same in memory of its own, of the same strides; what is no tensor as it is."""
    return x if not isinstance(x, torch.Tensor) else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def faults(seed: int, count: int) -> Iterator[str]:
    """The draws whose kernel gave something else than the CPU."""
    for number in range(seed, seed + count):
        draw = Draw(number)
        torch.manual_seed(number)
        form, names, kind = draw.choice(FORMS), draw.sample(list(STEPS), draw.randint(1, 4)), draw.choice((F32, BF16))
        call, shape, experts = product(draw, form)
        steps = [STEPS[name] for name in names]
        stores = draw.random() < 0.8 or not any(given.written for step in steps for given in step.given)
        epilogue = Epilogue(*steps, stores_c=stores)
        given, out = operands(draw, epilogue, shape, experts), draw.output(shape, kind) if stores else None
        call |= {"epilogue": epilogue, "out_dtype": kind}
        own = [{name: again(x) for name, x in given.items()} for _ in range(2)]
        want, config = grouped_matmul(**call, given=own[0], out=again(out)), config_of(draw)
        with pytest.MonkeyPatch.context() as patch, emulated(patch, edges=False):
            try:
                got = grouped_matmul(**call, given=own[1], out=again(out), config=config)
            except PlanError as error:
                assert "16 at most" in str(error)
                continue
        if form.startswith("counts") and out is None and stores:  # rows that do not count are unspecified there
            counted = torch.arange(shape[1]) < call["counts"][:, None]
            got, want = got[counted], want[counted]
        wrong = [x for x in epilogue.writes if not torch.equal(own[0][x], own[1][x])]
        if wrong or not torch.equal(got, want):
            yield f"draw {number} ({form} {shape} in {experts}, {names}): {wrong or 'C'}"


def dense_faults(seed: int, count: int) -> Iterator[str]:
    """The same of products of matrices and batches."""
    for number in range(seed, seed + count):
        draw = Draw(number)
        torch.manual_seed(number)
        names, kind = draw.sample(list(DENSE_STEPS), draw.randint(1, 3)), draw.choice((F32, BF16))
        batch, k, (m, n) = (
            draw.choice(((), (), (2,))),
            draw.choice((8, 64, 130)),
            draw.sample((1, 2, 24, 72, 130, 200), 2),
        )
        steps = [DENSE_STEPS[name] for name in names]
        if not batch and draw.random() < 0.1:
            names, steps, kind = [*names, "quantised"], [*steps, Quantize(each=draw.choice((16, 64)))], E4M3
        stores = draw.random() < 0.6 or not any(given.written for step in steps for given in step.given)
        epilogue = Epilogue(*steps, stores_c=stores or kind == E4M3)
        of = draw.choice((BF16, F16))
        a, b = draw.lay(draw.whole(*batch, m, k, kind=of)), draw.lay(draw.whole(*batch, n, k, kind=of)).mT
        given, out = operands(draw, epilogue, (*batch, m, n), *batch), None
        if stores and kind != E4M3:
            out = draw.output((*batch, m, n), kind)
        own = [{name: again(x) for name, x in given.items()} for _ in range(2)]
        options: dict[str, Any] = {"epilogue": epilogue, "out_dtype": kind}
        try:
            with pytest.MonkeyPatch.context() as patch, emulated(patch, edges=False) as calls:
                got = matmul(a, b, given=own[1], out=again(out), **options)
        except LayoutError:
            continue
        want = matmul(a, b, given=own[0], out=again(out), **options)
        wrong = [x for x in epilogue.writes if not torch.equal(own[0][x].float(), own[1][x].float())]
        if wrong or not torch.equal(got.float(), want.float()):
            yield f"draw {number} ({m} x {n} x {k} of {batch}, {names}, {calls}): {wrong or 'C'}"
