"""scaled_matmul and grouped_matmul on the CPU: against their definitions, and every refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm.errors import LayoutError, OperandError, TensorError
from tests.torch_op.door_launches import every_door

E4M3 = torch.float8_e4m3fn


def operands(m: int = 200, n: int = 300, k: int = 300, *front: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(m + n + k)
    a, b = (torch.randn(*front, *shape, generator=generator) for shape in ((m, k), (n, k)))
    return a.to(E4M3), b.to(E4M3).transpose(-1, -2)


def spread(scale: Any, group: int, size: int, k: int, depth: int = 128) -> Any:
    """Scales as large as the operand that they are of."""
    return scale.double().repeat_interleave(group, -2)[..., :size, :].repeat_interleave(depth, -1)[..., :k]


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("columns", [None, 1, 128])
@pytest.mark.parametrize("front", [(), (2,)])
def test_scaled_matmul_is_its_definition(rows: int, columns: int | None, front: tuple[int, ...]) -> None:
    m, n, k = 200, 300, 300
    a, b = operands(m, n, k, *front)
    sa = torch.rand(*front, -(-m // rows), 3)
    sb = None if columns is None else torch.rand(*front, -(-n // columns), 3)
    want = a.double() * spread(sa, rows, m, k)
    other = b.double() if sb is None else b.double() * spread(sb, columns or 1, n, k).transpose(-1, -2)
    got = layoutgemm.scaled_matmul(a, sa, b, sb, out_dtype=torch.float32)
    assert torch.allclose(got.double(), want @ other, rtol=1e-6, atol=1e-5)
    out = torch.empty(*front, m, n, dtype=torch.bfloat16)
    assert layoutgemm.scaled_matmul(a, sa, b, sb, out=out) is out
    assert torch.equal(out, layoutgemm.scaled_matmul(a, sa, b, sb)) and out.abs().max() > 1


@pytest.mark.parametrize("k", [256, 0])
def test_an_output_that_is_not_the_products_is_refused_and_untouched(k: int) -> None:
    a, b, offsets = torch.ones(2, k).to(E4M3), torch.ones(1, k, 3).to(E4M3), torch.tensor([0, 2])
    sa, kind = torch.ones(2, k // 128), torch.bfloat16
    for out, text in (
        (torch.full((4, 2, 3), 7.0, dtype=kind), r"out has shape \[4, 2, 3\], the product \[2, 3\]"),
        (torch.full((2, 4), 7.0, dtype=kind), r"out has shape \[2, 4\], the product \[2, 3\]"),
        (torch.full((2, 3), 7.0, dtype=torch.float64), "dtype torch.bfloat16, but got torch.float64"),
        (torch.full((2, 3), 7, dtype=torch.int8), "dtype torch.bfloat16, but got torch.int8"),
        (torch.full((3,), 7.0, dtype=kind).expand(2, 3), "more than one element"),
        (torch.empty(2, 3, dtype=kind, device="meta"), "two devices, cpu and meta"),
    ):
        with pytest.raises(TensorError, match=text):
            layoutgemm.scaled_matmul(a, sa, b[0], out=out)
        with pytest.raises(TensorError, match=text):
            layoutgemm.grouped_matmul(a, b, offsets, out=out)
        assert out.device.type == "meta" or (out == 7).all()
    with pytest.raises(OperandError, match="out is a list"):
        layoutgemm.grouped_matmul(a, b, offsets, out=[1])


def test_nothing_to_sum() -> None:
    empty = layoutgemm.scaled_matmul(torch.empty(3, 0).to(E4M3), torch.empty(3, 0), torch.empty(0, 5).to(E4M3))
    assert empty.tolist() == [[0.0] * 5] * 3


def test_scaled_matmul_names_what_it_refuses() -> None:
    a, b = operands()
    sa, sb = torch.rand(200, 3), torch.rand(3, 3)
    for given, error, text in (
        ({"a": 1}, OperandError, "a is a builtins.int, not a torch tensor"),
        ({"scale_b": 2.0}, OperandError, "scale_b is a builtins.float"),
        ({"a": a.float()}, OperandError, "a is torch.float32: scales are for float8"),
        ({"b": b[:299]}, TensorError, r"a and b have shapes \[200, 300\] and \[299, 300\]"),
        ({"scale_a": sa[:-1]}, TensorError, r"scale_a has shape \[199, 3\]: \[200, 3\], or \[2, 3\]"),
        ({"scale_b": sb.T[:, :2]}, TensorError, r"scale_b has shape \[3, 2\]: \[300, 3\], or \[3, 3\]"),
        ({"scale_a": sa.double()}, OperandError, "scale_a is torch.float64, and scales are float32"),
        ({"scale_b": sb.clone().requires_grad_()}, OperandError, "scale_b requires grad"),
        ({"out_dtype": torch.int8}, OperandError, "out_dtype torch.int8"),
        ({"scale_a": sa.to("meta")}, TensorError, "scale_a"),
    ):
        usual = {"a": a, "scale_a": sa, "b": b, "scale_b": sb}
        with pytest.raises(error, match=text):
            layoutgemm.scaled_matmul(**{**usual, **given})


def experts(kind: Any = torch.bfloat16) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(100, 72, generator=generator).to(kind)
    b = torch.randn(4, 40, 72, generator=generator).to(kind).transpose(1, 2)
    return a, b, torch.tensor([0, 30, 30, 31, 100], dtype=torch.int32)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, E4M3])
def test_grouped_matmul_is_its_definition(kind: Any) -> None:
    a, b, offsets = experts(kind)
    got = layoutgemm.grouped_matmul(a, b, offsets, out_dtype=torch.float32)
    ends = offsets.tolist()
    for e in range(4):
        want = a[ends[e] : ends[e + 1]].double() @ b[e].double()
        assert torch.equal(got[ends[e] : ends[e + 1]], want.float())
    usual = layoutgemm.grouped_matmul(a, b, offsets.long())
    assert usual.dtype == (torch.bfloat16 if kind == E4M3 else kind) and torch.equal(usual, got.to(usual.dtype))
    out = torch.empty(100, 40, dtype=usual.dtype)
    assert layoutgemm.grouped_matmul(a, b, offsets, out=out) is out and torch.equal(out, usual)


@pytest.mark.parametrize("both", [True, False])
def test_grouped_matmul_with_scales(both: bool) -> None:
    a, b, offsets = experts(E4M3)
    sa, sb = torch.rand(100, 1), torch.rand(4, 1, 1)
    got = layoutgemm.grouped_matmul(a, b, offsets, scale_a=sa, scale_b=sb if both else None, out_dtype=torch.float32)
    ends = offsets.tolist()
    for e in range(4):
        rows = slice(ends[e], ends[e + 1])
        want = layoutgemm.scaled_matmul(a[rows], sa[rows], b[e], sb[e] if both else None, out_dtype=torch.float32)
        assert torch.equal(got[rows], want)


def test_grouped_matmul_names_what_it_refuses() -> None:
    a, b, offsets = experts()
    for given, error, text in (
        ({"a": a.float()}, OperandError, "a is torch.float32: a grouped product is of bfloat16"),
        ({"b": b.half()}, TensorError, "torch.bfloat16 != torch.float16"),
        ({"b": b[0, :-1]}, TensorError, r"a and b have shapes \[100, 72\] and \[71, 40\]"),
        ({"b": b[0]}, OperandError, "they go from 0 to a's 72 columns, K"),
        ({"offsets": offsets[1:]}, OperandError, r"offsets is torch.int32 of shape \[4\]: .* \[5\]"),
        ({"offsets": offsets.float()}, OperandError, "offsets is torch.float32"),
        ({"offsets": offsets.flip(0)}, OperandError, r"offsets = \[100, 31, 30, 30, 0\]: they go from 0"),
        ({"offsets": [0, 1]}, OperandError, "offsets is a builtins.list"),
        ({"scale_a": torch.rand(100, 1)}, OperandError, "a is torch.bfloat16: a grouped product with scales"),
        ({"out_dtype": torch.int32}, OperandError, "out_dtype torch.int32"),
    ):
        with pytest.raises(error, match=text):
            layoutgemm.grouped_matmul(**{"a": a, "b": b, "offsets": offsets, **given})
    a, b = a.to(E4M3), b.to(E4M3)
    with pytest.raises(OperandError, match="scale_b without a scale_a"):
        layoutgemm.grouped_matmul(a, b, offsets, scale_b=torch.rand(4, 1, 1))
    with pytest.raises(TensorError, match=r"scale_b has shape \[2, 1\]"):
        layoutgemm.grouped_matmul(a, b, offsets, scale_a=torch.rand(100, 1), scale_b=torch.rand(2, 1))


@pytest.mark.dsl
@pytest.mark.parametrize("code", ["sm_80", "sm_86", "sm_89", "sm_120a"])
def test_cards_without_wgmma_take_groups_and_scales_where_mma_sync_has_the_type(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU tensors stand for the card's; a refused call names the type, launches nothing, and does not write `out`."""
    a, b = operands(128, 64, 256)
    x, w, offsets = torch.ones(128, 64).bfloat16(), torch.ones(2, 64, 32).bfloat16(), torch.tensor([0, 64, 128])
    rows, blocks, out = torch.ones(128, 1), torch.ones(128, 2), torch.zeros(128, 64, dtype=torch.bfloat16)
    eight, of = {"out_dtype": E4M3, "out_recipe": "BlockWise1x128"}, {"scale_a": blocks, "scale_b": torch.ones(2, 1, 2)}
    of_float8: list[Callable[[], Any]] = [
        lambda: layoutgemm.scaled_matmul(a, rows, b),
        lambda: layoutgemm.scaled_matmul(a, blocks, b, torch.ones(1, 2), out=out),
        lambda: layoutgemm.scaled_matmul(a, blocks, b, torch.ones(1, 2), **eight),
        lambda: layoutgemm.scaled_matmul(a, blocks, b, activation="swiglu"),
        lambda: layoutgemm.explain_matmul(a, b, scale_a=blocks),
        lambda: layoutgemm.fp8_matmul(x, w[0]),
        lambda: layoutgemm.grouped_matmul(a, torch.stack([b, b]), offsets, **of),
        lambda: layoutgemm.fp8_grouped_matmul(x, w, offsets),
    ]
    of_bf16: list[Callable[[], Any]] = [
        lambda: layoutgemm.grouped_matmul(x, w, offsets),
        lambda: layoutgemm.grouped_matmul(x.view(2, 64, 64), w, counts=offsets[:2]),
        lambda: layoutgemm.grouped_matmul(x.T, x, offs=offsets[1:]),
        lambda: layoutgemm.explain_matmul(x, w, offsets=offsets),
    ]
    with every_door(monkeypatch, code, computes=False) as made:
        for call in of_float8:
            if code in ("sm_89", "sm_120a"):
                call()
                continue
            with pytest.raises(LayoutError, match=rf"a is e4m3: {code} has no mma\.sync.* it exists from sm_89 on$"):
                call()
        assert bool(made) == (code in ("sm_89", "sm_120a"))
        before = len(made)
        for call in of_bf16:
            call()
        assert len(made) == before + 3
    assert not out.any()
