"""matmul(a, b, order=...): the tiles of an order, stored where the kernel would store them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm import Sm90Config, Sm90Plan
from layoutgemm.errors import OperandError, PlanError, TensorError
from layoutgemm.kernels.orders import stored_elements
from layoutgemm.kernels.run.epilogue_operands import order_words
from layoutgemm.schedule import Hilbert, Linear, Rotated, Triangular
from layoutgemm.torch_op.composed import plans
from tests.torch_op.emulated_launches import launches_are_emulated

CONFIG = Sm90Config((64, 64), consumers=1, loader="warp")
RANKS = Rotated(Linear("N"), ranks=4)
generator = torch.Generator().manual_seed(0)
A, B = (torch.randn(shape, generator=generator).bfloat16() for shape in ((200, 72), (72, 264)))


def stored(m: int, n: int, order: Any) -> torch.Tensor:
    plan = Sm90Plan.derive(m, n, 72, b="bf16:col", config=CONFIG, order=order)
    found = stored_elements(plan, {})
    assert found is not None
    return torch.from_numpy(found.copy())


@pytest.mark.parametrize("order", ["lower", "upper", Triangular("lower", 1)])
def test_tiles_left_out_are_zeros_or_keep_the_values_of_out(order: Any) -> None:
    whole, inside = layoutgemm.matmul(A, B), stored(200, 264, order)
    found = layoutgemm.matmul(A, B, order=order, config=CONFIG)
    assert torch.equal(found, torch.where(inside, whole, torch.zeros_like(whole))) and not inside.all()
    out = torch.full_like(whole, 7)
    assert layoutgemm.matmul(A, B, order=order, config=CONFIG, out=out) is out
    assert torch.equal(out, torch.where(inside, whole, torch.full_like(whole, 7)))


@pytest.mark.parametrize(
    ("order", "given"),
    [("hilbert", None), ("snake", None), (RANKS, {"rank": 2}), (lambda t, rows, columns: (t % rows, t // rows), None)],
)
def test_orders_of_every_tile_give_the_product(order: Any, given: Any) -> None:
    assert torch.equal(layoutgemm.matmul(A, B, order=order, given=given), layoutgemm.matmul(A, B))


def test_a_symmetric_sum_of_two_products() -> None:
    """A B^T + B A^T computes half its tiles, too; another second pair has no symmetric sum."""
    a, b = A[:200], A[:200].flip(1).contiguous()
    found = layoutgemm.matmul((a, b), (b.mT, a.mT), order="symmetric", out_dtype=torch.float32)
    exact = a.double() @ b.double().mT
    assert torch.equal(found, (exact + exact.mT).float())
    for other in (b.mT.clone(), a.mT):
        with pytest.raises(OperandError, match=r"b is a's own transpose.*of two pairs"):
            layoutgemm.matmul((a, b), (a.mT, other), order="symmetric")


def test_batches_types_and_symmetric_products() -> None:
    a = torch.randn(2, 136, 40, generator=generator).half()
    want = layoutgemm.matmul(a, a.mT, out_dtype=torch.float32)
    assert torch.equal(layoutgemm.matmul(a, a.mT, order="symmetric", out_dtype=torch.float32), want)
    assert torch.equal(layoutgemm.matmul(a[:1], a.mT[:1], order="symmetric", out_dtype=torch.float32), want[:1])
    bias = torch.arange(136.0)
    found = layoutgemm.matmul(a[0], a[0].mT, order="symmetric", bias=bias)
    assert torch.equal(found, layoutgemm.matmul(a[0], a[0].mT, bias=bias))
    tiles = {"tiles": np.array([[0, 0]])}
    one = layoutgemm.matmul(A, B, order="list", given=tiles, config=CONFIG)
    assert (
        torch.equal(one[:64, :64], layoutgemm.matmul(A, B)[:64, :64]) and not one[64:].any() and not one[:, 64:].any()
    )


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"order": "symmetric"}, PlanError, "C is square, not 200x264"),
        ({"order": "spiral"}, PlanError, "known are"),
        (
            {"order": lambda t, rows, columns: (t % rows, 0)},
            PlanError,
            r"tile \(0, 0\) is visited as number 0 and again",
        ),
        ({"order": lambda t, rows, columns: (t % rows + 1, t // rows)}, PlanError, "tile"),
        ({"order": RANKS}, OperandError, "rank is missing"),
        ({"order": RANKS, "given": {"rank": 4}}, OperandError, "of 4 ranks"),
        ({"order": "lower", "given": {"rank": 0}}, OperandError, "rank is no operand of it"),
        ({"order": RANKS, "given": {"rank": -1}}, OperandError, "rank is an integer from 0 on"),
        ({"order": "list", "given": {"tiles": "all"}}, OperandError, "tiles is a builtins.str"),
        ({"order": "lower", "out": torch.zeros(200, 264)}, TensorError, "out"),
    ],
)
def test_refusals_name_the_operand(asked: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        layoutgemm.matmul(A, B, **asked)


def test_a_symmetric_product_with_scales_of_blocks() -> None:
    """Half the tiles, and the same values; scales of another tensor than a's are refused."""
    a, s = layoutgemm.quantize(torch.randn(136, 256).bfloat16())
    found = layoutgemm.scaled_matmul(a, s, a.mT, s, order="symmetric")
    assert torch.equal(found, layoutgemm.scaled_matmul(a, s, a.mT, s))
    with pytest.raises(OperandError, match=r"'symmetric': scale_b is scale_a"):
        layoutgemm.scaled_matmul(a, s, a.mT, s.clone(), order="symmetric")


def test_other_refusals() -> None:
    with pytest.raises(OperandError, match="two matrices, or two batches"):
        layoutgemm.matmul(A[None], B, order="lower")
    with pytest.raises(OperandError, match="b is a's own transpose"):
        layoutgemm.matmul(A, A.mT.clone(), order="symmetric")
    with pytest.raises(OperandError, match="no size may be 0"):
        layoutgemm.matmul(A[:, :0], B[:0], order="lower")


def test_words_of_a_launch() -> None:
    """A list lies in memory as the kernel reads it; a rank is a number."""
    device = torch.device("cpu")
    plan = Sm90Plan.derive(200, 264, 72, config=CONFIG, order="hilbert")
    address, count = order_words(plan, {}, device)
    assert count == 20
    found = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int32)), (count,))
    assert np.array_equal(np.stack([found % 2**16, found // 2**16], 1), Hilbert().table((4, 5)))
    assert order_words(Sm90Plan.derive(200, 264, 72, config=CONFIG, order=RANKS), {"rank": 3}, device) == (3,)
    listed = Sm90Plan.derive(200, 264, 72, config=CONFIG, order="list")
    tiles = torch.tensor([5, 7], dtype=torch.int32)
    assert order_words(listed, {"tiles": tiles}, device) == (tiles.data_ptr(), 2)
    with pytest.raises(OperandError, match=r"tiles is torch\.int64"):
        order_words(listed, {"tiles": tiles.long()}, device)


# ----------------------------------------------------------------------------- on GPUs without wgmma, in the emulator


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of CPU tensors run as on a GPU of compute capability 8.6."""
    launches_are_emulated(monkeypatch)
    monkeypatch.setattr(plans, "target", lambda index, config=None: ("sm_80", 99 << 10))


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize("order", ["lower", "hilbert", RANKS, "list"], ids=str)
def test_the_mma_sync_kernel_takes_orders(order: Any, ampere: None) -> None:
    a, b = (torch.randint(-3, 4, shape, generator=generator).bfloat16() for shape in ((136, 40), (40, 136)))
    whole, out = a @ b, torch.full((136, 136), 7.0).bfloat16()
    tiles = torch.tensor([1 + 2 * 65536, 0], dtype=torch.int32)
    given = {"rank": 3} if order is RANKS else {"tiles": tiles} if order == "list" else None
    assert layoutgemm.matmul(a, b, order=order, given=given, out=out) is out
    inside = torch.ones(136, 136, dtype=torch.bool)
    tile = torch.arange(136) // 64
    if order == "lower":
        inside = tile[:, None] >= tile
    elif order == "list":
        inside = (tile[:, None] == 1) & (tile == 2) | (tile[:, None] == 0) & (tile == 0)
    assert torch.equal(out, torch.where(inside, whole, torch.full_like(whole, 7)))


def test_the_mma_sync_kernel_refuses_by_name(ampere: None) -> None:
    with pytest.raises(PlanError, match=r"kernel of mma\.sync stores no transposed tile"):
        layoutgemm.matmul(A, A.mT, order="symmetric")
    with pytest.raises(OperandError, match="config is one of sm_90a's kernel, and cpu runs sm_80"):
        layoutgemm.matmul(A, B, order="lower", config=CONFIG)
    with pytest.raises(PlanError, match="c is e4m3; of bf16 inputs this kernel stores f32, bf16, f16"):
        layoutgemm.matmul(A, B, order="lower", out_dtype=torch.float8_e4m3fn)
    many = torch.zeros(1, 1, 1).bfloat16().expand(70000, 1, 1)
    with pytest.raises(OperandError, match="a batch of 70000 is more than one launch of sm_80's kernel has"):
        layoutgemm.matmul(many, many, order="hilbert")
