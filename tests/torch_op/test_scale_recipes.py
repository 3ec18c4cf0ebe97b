"""scaled_matmul's recipes on the CPU: against their definitions, by shape and by torch's names, modes and compilers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import QuantizedWeight, grouped_matmul, matmul, quantize, scaled_matmul
from layoutgemm.errors import LayoutError, OperandError, TensorError
from layoutgemm.torch_op.scaled_grouped.recipes import Recipes, recipe_text

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OP = torch.ops.layoutgemm.scaled_matmul
M, N, K = 200, 260, 300
BLOCKS = 3
NAMES = ("TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128")


def operands(*front: int, m: int = M, n: int = N, k: int = K) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(m + n + k)
    a, b = (torch.randn(*front, *shape, generator=generator) for shape in ((m, k), (n, k)))
    return a.to(E4M3), b.to(E5M2).mT


def scales(recipe: str, side: str, *front: int) -> Any:
    size = M if side == "a" else N
    shape = {
        "TensorWise": (1,),
        "RowWise": (*front, size, 1) if side == "a" else (*front, 1, size),
        "BlockWise1x128": (*front, size, BLOCKS),
        "BlockWise128x128": (*front, -(-size // 128), BLOCKS),
    }[recipe]
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(recipe))) + 0.5


def wide(recipe: str, side: str, scale: Any) -> Any:
    """The scales as large as the operand that they are of, in float64."""
    size = M if side == "a" else N
    scale = scale.double()
    if recipe == "TensorWise":
        return scale.reshape(())
    if recipe == "RowWise":
        return scale
    rows = scale if recipe == "BlockWise1x128" else scale.repeat_interleave(128, -2)[..., :size, :]
    spread = rows.repeat_interleave(128, -1)[..., :K]
    return spread if side == "a" else spread.mT


PAIRS = [(x, y) for x in NAMES[:2] for y in NAMES[:2]] + [(x, y) for x in NAMES[2:] for y in NAMES[2:]]


@pytest.mark.parametrize("front", [(), (2,)])
@pytest.mark.parametrize("recipes", PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_recipes_are_their_definitions(recipes: tuple[str, str], front: tuple[int, ...]) -> None:
    a, b = operands(*front)
    sa, sb = (scales(recipe, side, *front) for recipe, side in zip(recipes, "ab", strict=True))
    want = (a.double() * wide(recipes[0], "a", sa)) @ (b.double() * wide(recipes[1], "b", sb))
    named = {"recipe_a": recipes[0], "recipe_b": recipes[1]}
    for kind in (F32, BF16, F16):
        got = scaled_matmul(a, sa, b, sb, out_dtype=kind)
        assert got.dtype == kind
        assert torch.allclose(got.double(), want, rtol=2 * torch.finfo(kind).eps, atol=1e-5)
        assert torch.equal(scaled_matmul(a, sa, b, sb, out_dtype=kind, **named), got)
        assert torch.equal(scaled_matmul(a, sa, b, sb, out_dtype=kind, use_fast_accum=False), got)
    bias = torch.randn(N).to(BF16)
    got = scaled_matmul(a, sa, b, sb, bias=bias, activation="silu", out_dtype=F32)
    assert torch.allclose(got.double(), torch.nn.functional.silu(want + bias.double()), rtol=1e-5, atol=1e-4)
    alone = scaled_matmul(a, sa, b, recipe_a=recipes[0], out_dtype=F32)
    assert torch.allclose(alone.double(), (a.double() * wide(recipes[0], "a", sa)) @ b.double(), rtol=1e-5, atol=1e-4)


def test_names_are_torchs() -> None:
    kinds = getattr(torch.nn.functional, "ScalingType", None)
    if kinds is None:
        pytest.skip("torch has no ScalingType before 2.10: pip install -U torch")
    a, b = operands()
    for x, y in PAIRS:
        sa, sb = scales(x, "a"), scales(y, "b")
        given = {"recipe_a": getattr(kinds, x), "recipe_b": getattr(kinds, y)}
        assert torch.equal(scaled_matmul(a, sa, b, sb, **given), scaled_matmul(a, sa, b, sb))
    with pytest.raises(OperandError, match=r"recipe_b BlockWise1x32: scales of 32 elements .* compute capability 10.0"):
        scaled_matmul(a, scales("RowWise", "a"), b, scales("RowWise", "b"), recipe_b=kinds.BlockWise1x32)


def test_row_wise_is_that_of_torch() -> None:
    a, b = operands(m=32, n=48, k=64)
    b = b.float().to(E4M3).mT.contiguous().mT
    sa, sb = torch.rand(32, 1), torch.rand(1, 48)
    try:
        theirs = torch._scaled_mm(a, b, sa, sb, out_dtype=BF16)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        pytest.skip(f"needs torch._scaled_mm on the CPU, pip install -U torch: {str(error).splitlines()[0]}")
    assert torch.allclose(scaled_matmul(a, sa, b, sb).float(), theirs.float(), rtol=2e-2, atol=2e-2)


def test_scales_lie_anyhow() -> None:
    """Either major, a pitch, TMA's alignment of 16 bytes, every second element, and torch's negative bit."""
    a, b = operands()
    for x, y in PAIRS:
        sa, sb = scales(x, "a"), scales(y, "b")
        want = scaled_matmul(a, sa, b, sb)
        for lay in (
            lambda s: s.mT.contiguous().mT if s.ndim > 1 else s,
            lambda s: torch.zeros(s.shape[1], -(-s.shape[0] // 4) * 4).mT[: s.shape[0]].copy_(s) if s.ndim > 1 else s,
            lambda s: s.repeat_interleave(2, -1)[..., ::2],
            lambda s: torch._neg_view(-s),
        ):
            assert torch.equal(scaled_matmul(a, lay(sa), b, lay(sb)), want), (x, y)


def test_shapes_of_row_wise_and_tensor_wise_scales() -> None:
    a, b = operands()
    sa, sb = scales("RowWise", "a"), scales("RowWise", "b")
    want = scaled_matmul(a, sa, b, sb)
    for one in (sa, sa[:, 0]):
        for other in (sb, sb.mT, sb[0]):
            assert torch.equal(scaled_matmul(a, one, b, other), want)
    half = torch.tensor(0.5)
    want = scaled_matmul(a, half, b, half)
    assert torch.equal(scaled_matmul(a, half.view(1), b, half.view(1, 1)), want)
    a, b = operands(3)
    assert torch.equal(scaled_matmul(a, half.view(1, 1, 1), b, half), scaled_matmul(a, half, b, half))


def test_a_shape_of_two_recipes_is_that_of_the_other_operand() -> None:
    """(1, 3) for 3 columns and 3 K blocks: of each column beside row-wise scales, of blocks beside block-wise ones."""
    a, b = operands(n=3)
    sb = torch.tensor([[1.0, 2.0, 4.0]])
    rows, blocks = torch.ones(M, 1), torch.ones(M, BLOCKS)
    columns = scaled_matmul(a, rows, b, sb, out_dtype=F32)
    assert torch.allclose(columns.double(), a.double() @ b.double() * sb.double(), rtol=1e-5, atol=1e-4)
    each = b.double() * sb.double().repeat_interleave(128, 1)[:, :K].mT
    got = scaled_matmul(a, blocks, b, sb, out_dtype=F32)
    assert torch.allclose(got.double(), a.double() @ each, rtol=1e-5, atol=1e-4)
    assert not torch.equal(got, columns)


def test_sums_of_nothing() -> None:
    a, b = torch.empty(3, 0).to(E4M3), torch.empty(0, 5).to(E4M3)
    bias = torch.tensor([-1.0, 0, 1, 2, 3])
    got = scaled_matmul(a, torch.ones(3, 1), b, torch.ones(1, 5), bias=bias, activation="relu", out_dtype=F32)
    assert got.tolist() == [[0.0, 0, 1, 2, 3]] * 3
    assert scaled_matmul(torch.empty(0, 9).to(E4M3), torch.ones(0, 1), torch.empty(9, 5).to(E4M3)).shape == (0, 5)


A, B = operands()
SA, SB = scales("RowWise", "a"), scales("RowWise", "b")
BA, BB = scales("BlockWise1x128", "a"), scales("BlockWise128x128", "b")
REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({"recipe_a": "Row"}, OperandError, "recipe_a 'Row': do you mean 'RowWise'. known are TensorWise, RowWise"),
    ({"recipe_a": 3}, OperandError, "recipe_a is a int; it is a ScalingType of torch, its name, or None"),
    ({"recipe_b": "BlockWise1x16"}, OperandError, "recipe_b BlockWise1x16: scales of 16 elements"),
    ({"recipe_a": "BlockWise1x128"}, TensorError, r"scale_a has shape \[200, 1\]: BlockWise1x128 takes \[200, 3\]"),
    ({"recipe_b": "BlockWise128x128"}, TensorError, r"scale_b has shape \[1, 260\]: BlockWise128x128 takes \[3, 3\]"),
    ({"recipe_b": "TensorWise"}, TensorError, r"scale_b has shape \[1, 260\]: TensorWise takes \[1\]"),
    ({"scale_a": BA, "recipe_a": "RowWise"}, TensorError, r"RowWise takes \[200, 1\], or \[200\]"),
    ({"scale_b": None, "recipe_b": "RowWise"}, OperandError, "recipe_b RowWise without a scale_b"),
    ({"scale_a": BA}, OperandError, "scale_a is BlockWise1x128 and scale_b RowWise: a product takes both from"),
    ({"scale_a": SA.mT}, TensorError, r"scale_a has shape \[1, 200\]: \[200, 3\], or \[2, 3\] for a scale of 128"),
    ({"scale_a": SA[:0]}, TensorError, r"scale_a has shape \[0, 1\]"),
    ({"scale_a": SA.half()}, OperandError, r"scale_a is torch.float16, and scales are float32$"),
    ({"scale_a": SA.to(torch.float8_e8m0fnu)}, OperandError, r"float8_e8m0fnu, and scales are float32, which have the"),
    ({"scale_a": SA.int()}, OperandError, r"torch.int32, .*; four packed e8m0 are contiguous\(\)\.view\(torch.float8"),
    ({"scale_a": 0.5}, OperandError, "scale_a is a builtins.float, not a torch tensor"),
    ({"scale_a": SA.to("meta")}, TensorError, "scale_a is on meta"),
    ({"bias": torch.ones(N + 1)}, TensorError, r"bias has shape \[261\]: \[260\]"),
    ({"bias": torch.ones(N, dtype=torch.int32)}, OperandError, r"bias is torch.int32: to a product with scales, or"),
    ({"bias": torch.ones(N).double()}, OperandError, r"bias is torch.float64"),
    ({"bias": 1.0}, OperandError, "bias is a builtins.float"),
    (
        {"activation": "swiglu", "b": B[:, 1:], "scale_b": SB[:, 1:]},
        TensorError,
        "b has 259 columns: a gated product takes gate and up",
    ),
    ({"activation": "swiglu", "bias": torch.ones(N // 2)}, TensorError, r"bias has shape \[130\]: \[260\]"),
    ({"activation": "nope"}, OperandError, "activation 'nope': known are"),
    ({"activation": 3}, OperandError, "activation 3: known are"),
    ({"out_dtype": torch.float64}, OperandError, r"out_dtype torch.float64: a product of"),
    ({"config": "fast"}, OperandError, "config is a str"),
    ({"out": torch.empty(M, N)}, TensorError, "Expected out tensor to have dtype torch.bfloat16"),
    ({"out": torch.empty(1, N, dtype=BF16).expand(M, N)}, TensorError, "more than one element of out"),
    ({"bias": torch.ones(N).requires_grad_()}, TensorError, "bias requires grad, and this product has no gradient"),
    ({"a": A.float()}, OperandError, "a is torch.float32: scales are for float8"),
    ({"a": A[None]}, TensorError, r"shapes \[1, 200, 300\] and \[300, 260\]"),
]


@pytest.mark.parametrize("given, error, text", REFUSED, ids=[text for *_, text in REFUSED])
def test_bad_input_is_refused_by_name(given: dict[str, Any], error: Any, text: str) -> None:
    out = torch.full((M, N), 7.0, dtype=BF16)
    usual = {"a": A, "scale_a": SA, "b": B, "scale_b": SB, "out": out}
    with pytest.raises(error, match=text) as caught:
        scaled_matmul(**{**usual, **given})
    assert isinstance(caught.value, LayoutError) and (out == 7).all()


def test_an_output_over_scales_or_bias_is_refused() -> None:
    memory = torch.ones(M * N, dtype=BF16)
    out = memory.view(M, N)
    bias = memory[:N]
    scale = memory.view(F32)[:M, None]
    with pytest.raises(TensorError, match="out, which is written to, shares memory with bias"):
        scaled_matmul(A, SA, B, SB, bias=bias, out=out)
    with pytest.raises(TensorError, match="out, which is written to, shares memory with scale_a"):
        scaled_matmul(A, scale, B, SB, out=out)
    assert (memory == 1).all()


def test_scales_between_two_floats_of_memory_are_refused() -> None:
    bytes_ = bytearray(4 * M + 1)
    odd = torch.frombuffer(bytes_, dtype=F32, count=M, offset=1).view(M, 1)
    if odd.data_ptr() % 4:
        with pytest.raises(
            OperandError, match=r"scale_a: its address is a multiple of \d bytes, not of 4; scale_a.clone\(\) is"
        ):
            scaled_matmul(A, odd, B, SB)


def test_grouped_products_take_recipes() -> None:
    offsets = torch.tensor([0, 50, 50, 130, M])
    a, b = A, torch.stack([B.float(), B.float() * 2, -B.float(), B.float()]).to(E5M2)
    sa, sb = scales("RowWise", "a"), torch.rand(4, 1, N) + 0.5
    got = grouped_matmul(a, b, offsets, scale_a=sa, scale_b=sb, out_dtype=F32)
    for e, (first, end) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:])):
        want = scaled_matmul(a[first:end], sa[first:end], b[e], sb[e], out_dtype=F32)
        assert torch.equal(got[first:end], want)
    assert torch.equal(
        grouped_matmul(a, b, offsets, scale_a=sa[:, 0], scale_b=sb.mT, out_dtype=F32, recipe_b="RowWise"), got
    )
    turned = grouped_matmul(b.mT, a.mT, offsets, scale_a=sb.mT, scale_b=sa.mT, out_dtype=F32)
    assert torch.equal(turned, got.mT)
    blocks = grouped_matmul(a, b, offsets, scale_a=BA, scale_b=torch.ones(4, 3, 3), out_dtype=F32)
    turned = grouped_matmul(b.mT, a.mT, offsets, scale_a=torch.ones(4, 3, 3), scale_b=BA, out_dtype=F32)
    assert torch.equal(turned, blocks.mT)
    one = grouped_matmul(a, b, offsets, scale_a=torch.tensor(0.5), scale_b=torch.tensor(2.0), out_dtype=F32)
    assert torch.allclose(one, grouped_matmul(a, b, offsets, out_dtype=F32), rtol=1e-6)
    with pytest.raises(TensorError, match=r"scale_a has shape \[2, 3\]: \[200, 3\], as groups end at any row"):
        grouped_matmul(a, b, offsets, scale_a=torch.ones(2, 3), scale_b=torch.ones(4, 3, 3))
    masked = torch.stack([a, a])
    counts = torch.tensor([3, M])
    got = grouped_matmul(masked, b[:2], counts=counts, scale_a=torch.stack([BA, BA]), scale_b=torch.ones(2, 3, 3))
    assert torch.equal(got[0, :3], scaled_matmul(a, BA, b[0], torch.ones(3, 3))[:3]) and not got[0, 3:].any()


# ------------------------------------------------------------------------------------------------- modes and compilers


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_compiler_takes_it_whole(dynamic: bool) -> None:
    torch._dynamo.reset()

    def step(a: Any, sa: Any, b: Any, sb: Any, bias: Any) -> Any:
        return scaled_matmul(a, sa, b, sb, bias=bias, activation="gelu", recipe_a="RowWise") + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (200, 77):
        given = A[:rows], SA[:rows], B, SB, torch.ones(N)
        assert torch.equal(compiled(*given), step(*given))


def test_sizes_change_without_a_new_compilation() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda a, s, b, t: scaled_matmul(a, s, b, t) + 1, fullgraph=True, backend=counter, dynamic=True
    )
    for rows in (130, 77, 200):
        given = A[:rows], BA[:rows], B, BB
        assert torch.equal(compiled(*given), scaled_matmul(*given) + 1)
    assert counter.frame_count == 1


def test_torchs_names_and_an_output_under_the_compiler() -> None:
    kinds = getattr(torch.nn.functional, "ScalingType", None)
    if kinds is None:
        pytest.skip("torch has no ScalingType before 2.10: pip install -U torch")
    torch._dynamo.reset()
    out = torch.zeros(M, N, dtype=BF16)

    def call(a: Any, into: Any) -> Any:
        return scaled_matmul(a, SA, B, SB, recipe_a=kinds.RowWise, recipe_b=kinds.RowWise, out=into) * 1

    want = scaled_matmul(A, SA, B, SB)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(A, out), want)
    assert torch.equal(out, want)


COMPILED = (
    (lambda a: scaled_matmul(a, SA, B, 5), "scale_b is a builtins.int"),
    (lambda a: scaled_matmul(a, SA, B, SB, recipe_a="Row"), "recipe_a 'Row': do you mean"),
    (lambda a: scaled_matmul(a, SA, B, SB, recipe_a="BlockWise1x128"), r"BlockWise1x128 takes \[200, 3\]"),
    (lambda a: scaled_matmul(a, BA, B, SB), "scale_a is BlockWise1x128 and scale_b RowWise"),
    (lambda a: scaled_matmul(a, SA, B, SB, activation="nope"), "activation 'nope': known are"),
    (
        lambda a: scaled_matmul(a, SA, B[:, 1:], SB[:, 1:], activation="geglu"),
        "b has 259 columns: a gated product takes gate and up",
    ),
    (lambda a: scaled_matmul(a, SA, B, SB, out_dtype="bf16"), "out_dtype bf16: a product of torch.float8_e4m3fn"),
    (lambda a: scaled_matmul(a, SA, B, SB, config=5), "config is a int; it is an Sm90Config"),
    (lambda a: scaled_matmul(a, SA, B, SB, out=SA), r"out has shape \[200, 1\], the product \[200, 260\]"),
    (lambda a: scaled_matmul(a, SA, B, SB, bias=SA), r"bias has shape \[200, 1\]: \[260\]"),
    (lambda a: scaled_matmul(a.float(), SA, B, SB), "a is torch.float32: scales are for float8"),
)


@pytest.mark.parametrize("function, text", COMPILED, ids=[text for _, text in COMPILED])
def test_refusals_keep_their_text_under_the_compiler(function: Any, text: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=text):
        torch.compile(function, fullgraph=True, backend="eager")(A)


def test_a_scale_that_requires_grad_is_refused_under_the_compiler() -> None:
    torch._dynamo.reset()
    scale = SA.clone().requires_grad_()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="scale_a requires grad, and this product has no"):
        torch.compile(lambda s: scaled_matmul(A, s, B, SB), fullgraph=True, backend="eager")(scale)
    with pytest.raises(TensorError, match="scale_a requires grad"):
        OP(A, scale, B, SB)


def test_fake_tensors_export_autocast_and_modes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    with FakeTensorMode() as mode:
        given = [mode.from_tensor(x) for x in (A, SA, B, SB)]
        got = scaled_matmul(*given, out_dtype=F16)
        assert got.shape == (M, N) and got.dtype == F16 and got.is_contiguous()
        with pytest.raises(TensorError, match=r"scale_a has shape \[200\]: TensorWise takes"):
            scaled_matmul(given[0], given[1][:, 0], *given[2:], recipe_a="TensorWise")
    assert scaled_matmul(*[x.to("meta") for x in (A, SA, B, SB)]).shape == (M, N)

    class Model(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return torch.relu(scaled_matmul(*given, recipe_a="RowWise"))

    want = torch.relu(scaled_matmul(A, SA, B, SB))
    for strict in (False, True):
        exported = torch.export.export(Model(), (A, SA, B, SB), strict=strict)
        assert any("layoutgemm.scaled_matmul" in str(node.target) for node in exported.graph.nodes)
        assert torch.equal(exported.module()(A, SA, B, SB), want)
    with torch.autocast("cpu", dtype=F16):  # changes nothing
        assert torch.equal(torch.relu(scaled_matmul(A, SA, B, SB)), want)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        scaled_matmul(A, SA, B, SB)
    assert "layoutgemm.scaled_matmul.default" in seen
    each = torch.func.vmap(lambda a, s: scaled_matmul(a, s, B, SB))(A.view(2, 100, K), SA.view(2, 100, 1))
    assert torch.equal(torch.relu(each.reshape(M, N)), want)


def test_raw_operators_refuse_texts() -> None:
    for text, words in (("{{", "is no configuration"), ('{"swapped": true, "config": {"tile": [64, 64]}}', "swapped")):
        with pytest.raises(OperandError, match=words):
            OP(A, SA, B, SB, config=text)
    with pytest.raises(OperandError, match="said 'ends': groups are offsets, offs, counts"):
        torch.ops.layoutgemm.grouped_matmul(A, B, None, "ends")


def test_flags_and_names_of_other_types_are_refused() -> None:
    """ "no" is true in Python: it was taken as True, and the sums were those of fast accumulation."""
    a, scale_a, b, scale_b = A, SA, B, SB
    for given in ("no", 1, torch.ones(2)):
        with pytest.raises(OperandError, match="use_fast_accum must be True or False, not"):
            scaled_matmul(a, scale_a, b, scale_b, use_fast_accum=given)
    with pytest.raises(OperandError, match="use_fast_accum must be True or False, not 'no'"):
        grouped_matmul(a, b[None], offsets=torch.tensor([0, M]), use_fast_accum="no")
    with pytest.raises(OperandError, match="allow_tf32 must be True or False, not 'no'"):
        matmul(torch.ones(4, 4), torch.ones(4, 4), allow_tf32="no")
    for name in ("scale_major", "dtype"):
        with pytest.raises(OperandError, match=name):
            quantize(torch.ones(4, 128), **{name: np.zeros(2)})
    with pytest.raises(
        OperandError,
        match=r"format of QuantizedWeight must be a QuantizedFormat \(as QuantizedFormat\('int4', 128\)\), not True",
    ):
        QuantizedWeight(True, a, None, 64, 64)


def test_recipes_know_their_kernel() -> None:
    assert not Recipes("RowWise", "").in_mainloop and Recipes("BlockWise128x128", "BlockWise1x128").groups == (128, 1)
    assert recipe_text("recipe_a", None) == ""
