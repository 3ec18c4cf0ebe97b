"""explain_matmul of scaled and grouped products: kernel, reason, copies and workspace, as on an H200."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, grouped_matmul
from layoutgemm.errors import OperandError, TensorError

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
OFFSETS = torch.tensor([0, 100, 100, 256], dtype=torch.int32)


def eight(*shape: int) -> Any:
    return torch.empty(*shape, dtype=E4M3)


def test_scales_say_their_kernel() -> None:
    a, b = eight(256, 512), eight(384, 512).T
    how = explain_matmul(a, b, scale_a=torch.ones(256, 4), scale_b=torch.ones(3, 4))
    assert how.kernel.startswith("Sm90Plan 256x384x512: A e4m3 row") and (how.launches, how.copies) == (1, ())
    assert "the main loop's; estimated fastest of scaled products: tiles of 64x64" in how.why and how.workspace == 0
    rows = explain_matmul(a, b, scale_a=torch.ones(256, 1), scale_b=torch.ones(1, 384))
    assert "are the epilogue's" in rows.why and (rows.launches, rows.workspace) == (1, 0)
    exact = explain_matmul(a, b, scale_a=torch.ones(256, 1), scale_b=torch.ones(1, 384), use_fast_accum=False)
    assert exact.why.startswith("exact sums; estimated fastest")
    own = explain_matmul(a, b, scale_a=torch.ones(256, 4), config=Sm90Config((64, 64), consumers=1))
    assert own.why.endswith("given by the caller")


def test_copies_of_scaled_products_are_counted() -> None:
    a, b = eight(256, 512), eight(384, 512).T
    scales = {"scale_a": torch.ones(256, 1), "scale_b": torch.ones(1, 384)}
    strided = explain_matmul(a, b, **{**scales, "scale_a": torch.ones(256, 2)[:, :1]})
    assert strided.copies == ("scale_a: elements lie 2 apart, and an epilogue's are contiguous, 1024 bytes",)
    assert strided.workspace == 1024
    rows = explain_matmul(a, eight(512, 384), scale_a=torch.ones(256, 4))
    assert len(rows.copies) == 1 and rows.copies[0].startswith("b: the plan takes it col-major")
    assert rows.workspace == 384 * 512
    out = explain_matmul(a, b, scale_a=torch.ones(256, 4), out=torch.empty(384, 256, dtype=BF16).T)
    assert out.copies[0].startswith("out: strides (1, 256)") and out.workspace == 256 * 384 * 2


def test_groups_say_their_kernel() -> None:
    a, b = torch.empty(256, 512, dtype=BF16), torch.empty(3, 512, 384, dtype=BF16)
    how = explain_matmul(a, b, offsets=OFFSETS)
    assert how.kernel.startswith("Sm90Plan 3 x 256x384x512") and "86 rows a group on average: tiles of 64x64" in how.why
    assert (how.launches, how.copies, how.workspace) == (1, (), 0)
    ends = explain_matmul(a, b, offs=OFFSETS[1:])
    assert (ends.copies, ends.workspace) == ((), 0)
    columns = explain_matmul(b.mT, a.mT, offsets=OFFSETS)
    assert columns.why.startswith("groups of columns are rows of the transposed product") and columns.workspace == 0
    along = explain_matmul(torch.empty(512, 256, dtype=BF16), torch.empty(384, 256, dtype=BF16).T, offsets=OFFSETS)
    assert along.kernel.endswith("K in 3 group(s)") and along.copies[0].startswith("a: the plan takes it col-major")
    assert along.workspace == (512 + 384) * 256 * 2
    weight = explain_matmul(a.T, torch.empty(256, 384, dtype=BF16), offsets=OFFSETS)
    assert weight.kernel == along.kernel and (weight.copies, weight.workspace) == ((), 0)
    assert "whose ends along K the kernel reads; 86 of K a group on average: tiles of" in weight.why
    padded = explain_matmul(a.T, torch.empty(256, 384, dtype=BF16), offs=OFFSETS[1:])
    assert (padded.copies, padded.workspace) == ((), 0)
    single = explain_matmul(a.T, torch.empty(256, 384, dtype=BF16), offsets=OFFSETS[[0, 3]])
    assert single.kernel.startswith("Sm90Plan 512x384x256") and single.workspace == 0
    batch, counts = torch.empty(3, 64, 512, dtype=BF16), torch.tensor([1, 2, 3])
    masked = explain_matmul(batch, b, counts=counts, out=torch.empty(3, 64, 384, dtype=BF16))
    assert masked.why.startswith("one launch for all groups, whose counts of rows the kernel reads; up to 64 rows")
    assert masked.kernel.endswith("masked rows in 3 group(s)") and (masked.copies, masked.workspace) == ((), 0)
    deep = torch.empty(3, 128, 512, dtype=BF16)
    wide = torch.empty(3, 512, 8192, dtype=BF16)
    few, many = (explain_matmul(deep, wide, counts=counts, expected_rows=n) for n in (1, 128))
    assert few.why.endswith("the kernel reads; expected_rows = 1: tiles of 64x192")
    assert few.kernel != many.kernel and (few.copies, few.workspace) == ((), 0)
    one = explain_matmul(batch[:1], b[:1], counts=counts[:1])
    assert one.kernel.startswith("Sm90Plan 64x384x512") and one.workspace == 0


def test_groups_with_scales_say_their_kernel() -> None:
    a, b = eight(256, 512), eight(3, 384, 512).mT
    blocks = explain_matmul(a, b, offsets=OFFSETS, scale_a=torch.ones(256, 4), scale_b=torch.ones(3, 3, 4))
    rows = explain_matmul(a, b, offsets=OFFSETS, scale_a=torch.ones(256, 1), scale_b=torch.ones(3, 1, 384))
    assert blocks.workspace == rows.workspace == 0 and blocks.kernel != rows.kernel
    more = {"bias": torch.ones(3, 384), "activation": "relu"}
    finished = explain_matmul(a, b, offsets=OFFSETS, scale_a=torch.ones(256, 1), **more)
    assert (finished.launches, finished.workspace) == (1, 0)
    x, y = torch.empty(3, 64, 512, dtype=BF16), torch.empty(3, 512, 384, dtype=BF16)
    batch = explain_matmul(x, y, counts=torch.tensor([1, 2, 3]), **more)
    assert "masked rows in 3 group(s)" in batch.kernel and (batch.launches, batch.workspace) == (1, 0)
    zeros = explain_matmul(a[:0], b, offsets=torch.zeros(4, dtype=torch.int32))
    assert zeros.kernel == "no kernel: zeros"


def test_a_bias_of_each_matrix_is_that_of_the_grouped_product() -> None:
    a, b, bias = eight(3, 64, 256), eight(3, 128, 256).mT, torch.ones(3, 128)
    scales = {"scale_a": torch.ones(3, 64, 2), "scale_b": torch.ones(3, 1, 2)}
    how = explain_matmul(a, b, bias=bias, **scales)
    assert how.kernel == explain_matmul(a, b, bias=bias[0], **scales).kernel and how.workspace == 0
    assert grouped_matmul(a, b, bias=bias, **scales).shape == (3, 64, 128)
    with pytest.raises(TensorError, match=r"bias has shape \[2, 128\]: \[128\] or \[3, 128\]"):
        explain_matmul(a, b, bias=bias[:2], **scales)
    with pytest.raises(TensorError, match=r"bias has shape \[3, 128\]: \[128\]$"):
        explain_matmul(a[0], b[0], bias=bias, scale_a=torch.ones(64, 2))


def test_groups_along_k_of_8_bits_say_their_kernel() -> None:
    a, b, ends = eight(256, 512), eight(384, 512).T, torch.tensor([0, 128, 384, 512])
    lines = {"scale_a": torch.ones(256, 4), "scale_b": torch.ones(384, 4)}
    how = explain_matmul(a, b, offsets=ends, **lines)
    assert how.kernel.endswith("K blocks of 128 promoted, K in 3 group(s)") and (how.launches, how.workspace) == (1, 0)
    assert "whose ends along K the kernel reads; 171 of K a group on average: tiles of 128x128" in how.why
    wide = explain_matmul(eight(512, 256).T, b, offsets=ends)
    assert wide.copies[0].startswith("a: the plan takes it row-major") and wide.workspace == 256 * 512


def test_refusals_are_the_products() -> None:
    a, b = torch.empty(256, 512, dtype=BF16), torch.empty(3, 512, 384, dtype=BF16)
    for given, error, text in (
        ({"a": a, "b": b, "offsets": OFFSETS, "offs": OFFSETS}, OperandError, "offsets and offs: groups are said by"),
        ({"a": a, "b": b, "offsets": OFFSETS[1:]}, OperandError, r"offsets is torch.int32 of shape \[3\]"),
        ({"a": a, "b": a.T, "scale_b": OFFSETS}, OperandError, "scale_b without a scale_a"),
        ({"a": a, "b": a.T, "recipe_a": "RowWise"}, OperandError, "recipe_a without a scale_a"),
        ({"a": a, "b": a.T, "scale_a": torch.ones(256, 1)}, OperandError, "a is torch.bfloat16: scales are for"),
        ({"a": a, "b": b, "offsets": OFFSETS, "out": a.clone()}, TensorError, r"out has shape \[256, 512\]"),
        (
            {"a": a, "b": b, "offsets": OFFSETS, "expected_rows": 700},
            OperandError,
            "expected_rows = 700: 3 groups of as many have 2100 rows, and a has 256",
        ),
        (
            {"a": a.view(1, 256, 512).expand(3, 256, 512), "b": b, "counts": OFFSETS[:3], "expected_rows": 0},
            OperandError,
            "expected_rows",
        ),
        (
            {"a": eight(256, 512).T, "b": eight(256, 512), "offsets": OFFSETS},
            OperandError,
            r"offsets\[1\] = 100 = 0 \* 128 \+ 100: groups of K in blocks begin at multiples of 128",
        ),
    ):
        with pytest.raises(error, match=text):
            explain_matmul(**given)
