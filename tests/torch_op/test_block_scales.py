"""scaled_matmul with the block scales of tcgen05: MXFP8, MXFP4, NVFP4, as torch and torchao hand them over.

Want is decoded byte by byte here, and the blocked order is cuBLAS's as torchao writes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import Sm100Config, explain_matmul, quantize, scaled_matmul
from layoutgemm.dtypes import dtype
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels import Sm90Config
from layoutgemm.kernels.epilogue.chain import Epilogue
from layoutgemm.torch_op.scaled_grouped import kept
from tests import needs
from tests.torch_op.door_launches import every_door

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "float4_e2m1fn_x2"), reason="torch has no 4-bit floats before 2.8: pip install -U torch"
)
ASKED, F32 = Sm100Config(), torch.float32
slow = [needs.DSL, needs.C_COMPILER, pytest.mark.dsl, pytest.mark.slow]
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
PAIRS: Any = getattr(torch, "float4_e2m1fn_x2", None)
FORMS = {"mxfp8": ("e4m3", "e5m2", "ue8m0", 32), "mxfp4": ("e2m1", "e2m1", "ue8m0", 32),
         "nvfp4": ("e2m1", "e2m1", "ue4m3", 16)}  # fmt: skip
TYPES = {"e4m3": E4M3, "e5m2": E5M2, "e2m1": PAIRS, "ue8m0": E8M0, "ue4m3": E4M3}


def blocked(x: torch.Tensor) -> torch.Tensor:
    """Factors of one matrix in cuBLAS's order, padded."""
    rows, count = x.shape
    padded = torch.nn.functional.pad(x.view(torch.uint8), (0, -count % 4, 0, -rows % 128))
    tiles = padded.view(-(-rows // 128), 128, -(-count // 4), 4).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1).view(x.dtype)


class Drawn:
    """Small integers with factors that are powers of two, so that sums are exact; and the product in float64."""

    def __init__(self, form: str, m: int = 40, n: int = 48, k: int = 192, batch: tuple[int, ...] = ()):
        rng = np.random.default_rng([m, n, k])
        *names, factor, self.vector = FORMS[form]
        sides = []
        for name, rows in zip(names, (m, n)):
            values = rng.choice([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0], (*batch, rows, k)).astype(np.float32)
            codes = dtype(name).encode(values)
            codes = codes[..., ::2] | codes[..., 1::2] << 4 if name == "e2m1" else codes
            factors = rng.choice([0.5, 1.0, 2.0, 4.0], (*batch, rows, -(-k // self.vector))).astype(np.float32)
            wide = np.repeat(factors, self.vector, -1)[..., :k]
            scale = torch.from_numpy(dtype(factor).encode(factors)).view(TYPES[factor])
            sides.append((torch.from_numpy(codes).view(TYPES[name]), scale, values.astype(np.float64) * wide))
        (self.a, self.scale_a, left), (b, self.scale_b, right) = sides
        self.b, self.want = b.mT, torch.from_numpy(left @ right.swapaxes(-1, -2))

    @property
    def given(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.a, self.scale_a, self.b, self.scale_b

    @property
    def as_torch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """With factors as torch's kernels take them."""
        return self.a, blocked(self.scale_a), self.b, blocked(self.scale_b)


MX, NV = Drawn("mxfp8"), Drawn("nvfp4")
HALF, FOUR = torch.tensor(0.5), torch.full((1, 1), 4.0)
BIAS = torch.arange(48.0) - 20
LEVELS = {"recipe_a": ["BlockWise1x16", "TensorWise"], "recipe_b": ["BlockWise1x16", "TensorWise"]}


@pytest.mark.parametrize("form", FORMS)
def test_the_cpu_computes_each_format_in_both_orders(form: str) -> None:
    for m, n, k in ((40, 48, 192), (130, 3, 34)):
        one = Drawn(form, m, n, k)
        for given in (one.given, one.as_torch, (one.a, one.scale_a.mT.contiguous().mT, *one.as_torch[2:])):
            assert torch.equal(scaled_matmul(*given, out_dtype=F32), one.want.float())
    two = Drawn(form, batch=(2,))
    flat = [torch.stack([blocked(x) for x in each]) for each in (two.scale_a, two.scale_b)]
    for scale_a, scale_b in (flat, (two.scale_a, two.scale_b)):
        assert torch.equal(scaled_matmul(two.a, scale_a, two.b, scale_b, out_dtype=F32), two.want.float())


def test_recipes_swizzles_and_a_scale_of_all_are_torchs() -> None:
    kinds, orders = torch.nn.functional.ScalingType, torch.nn.functional.SwizzleType
    recipe, swizzle = [kinds.BlockWise1x16, kinds.TensorWise], [orders.SWIZZLE_32_4_4, orders.NO_SWIZZLE]
    _, scale_a, _, scale_b = NV.as_torch
    named = {"recipe_a": recipe, "recipe_b": recipe, "swizzle_a": swizzle, "swizzle_b": swizzle}
    got = scaled_matmul(NV.a, [scale_a, HALF], NV.b, [scale_b, FOUR], **named, bias=BIAS, activation="relu")
    assert torch.equal(got, (2 * NV.want + BIAS).relu().bfloat16())
    # 128 rows of four factors: both orders have this shape, and the swizzle says which it is
    one = Drawn("mxfp8", 128, 128, 128)
    _, scale_a, _, scale_b = one.as_torch
    of = one.a, scale_a.view(128, 4), one.b, scale_b.view(128, 4)
    swizzled = {"swizzle_a": orders.SWIZZLE_32_4_4, "swizzle_b": "SWIZZLE_32_4_4"}
    assert torch.equal(scaled_matmul(*of, **swizzled, out_dtype=F32), one.want.float())
    assert not torch.equal(scaled_matmul(*of, out_dtype=F32), one.want.float())
    out = torch.empty(40, 48)
    assert scaled_matmul(*MX.given, out=out, out_dtype=F32) is out and torch.equal(out, MX.want.float())
    assert scaled_matmul(MX.a[:0], MX.scale_a[:0], *MX.given[2:]).shape == (0, 48)
    empty = scaled_matmul(MX.a[:, :0], MX.scale_a[:, :0], MX.b[:0], MX.scale_b[:, :0], bias=BIAS, out_dtype=F32)
    assert torch.equal(empty, BIAS.expand(40, 48))


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compilers_see_one_operator(compiles: bool) -> None:
    def call(
        a: torch.Tensor, sa: torch.Tensor, b: torch.Tensor, sb: torch.Tensor, bias: torch.Tensor, half: torch.Tensor
    ) -> torch.Tensor:
        return scaled_matmul(a, [sa, half], b, sb, bias=bias, activation="relu", recipe_a=LEVELS["recipe_a"],
                             config=ASKED, out_dtype=F32)  # fmt: skip

    want = (NV.want / 2 + BIAS).relu().float()
    if compiles:
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(*NV.as_torch, BIAS, HALF), want)
        with pytest.raises(Exception, match=r"scale_a has shape \[.*\]: nvfp4 takes \[40, 12\]"):
            compiled(NV.a, NV.scale_a[1:], *NV.as_torch[2:], BIAS, HALF)
        return
    with FakeTensorMode() as mode:
        made = call(*[mode.from_tensor(x) for x in (*NV.given, BIAS, HALF)])
    assert made.shape == (40, 48) and made.dtype == F32
    with FlopCounterMode(display=False) as counted:
        torch.ops.layoutgemm.block_scaled_matmul(*NV.given)
    assert counted.get_total_flops() == 2 * 40 * 48 * 192


def test_the_explanation_names_the_format_and_what_is_copied() -> None:
    scales = {"scale_a": NV.scale_a, "scale_b": NV.as_torch[3]}
    told = explain_matmul(NV.a, NV.b, **scales, config=Sm100Config((128, 128)), bias=BIAS)
    assert "A e2m1 row, B e2m1 col" in told.kernel and "nvfp4 scales" in told.kernel
    assert told.why == "nvfp4: the instruction applies the factors; given by the caller"
    assert told.copies == ("scale_a: shape [40, 12], and tcgen05.cp takes chunks by SWIZZLE_32_4_4, 1536 bytes",)
    told = explain_matmul(MX.a, MX.b.contiguous(), scale_a=MX.scale_a, scale_b=MX.scale_b, config=ASKED)
    assert len(told.copies) == 3 and "b: the plan takes it col-major" in told.copies[2]
    with pytest.raises(OperandError, match=r"'mxfp8': not by the kernel of sm_90a: .*config=Sm100Config\(\) explains"):
        explain_matmul(MX.a, MX.b, scale_a=MX.scale_a, scale_b=MX.scale_b)


REFUSED: list[tuple[Drawn, dict[str, Any], Any, str]] = [
    (NV, {"a": NV.a.view(torch.uint8)}, OperandError, r"a is torch.uint8: .*view\(torch.float4_e2m1fn_x2\)"),
    (NV, {"scale_b": None}, OperandError, "scale_b is missing"),
    (NV, {"scale_b": NV.scale_b.view(torch.uint8)}, OperandError, r"bytes of e8m0 are scale_b.view"),
    (NV, {"scale_a": NV.scale_a.view(E8M0)}, OperandError, "formats are mxfp8: float8_e4m3fn and float8_e5m2 with"),
    (NV, {"recipe_a": "BlockWise1x32"}, OperandError, "recipe_a BlockWise1x32: .* is nvfp4, BlockWise1x16"),
    (NV, {"recipe_a": "BlockWise1x12"}, OperandError, "recipe_a 'BlockWise1x12': do you mean 'BlockWise1x"),
    (NV, {"recipe_a": ["BlockWise1x16", "TensorWise"]}, OperandError, r"scale_a is 1 tensor\(s\)"),
    (NV, {"swizzle_b": "SWIZZLE_32_4"}, OperandError, "swizzle_b 'SWIZZLE_32_4': do you mean 'SWIZZLE_32_4_4'"),
    (NV, {"swizzle_b": 3}, OperandError, "swizzle_b is a int; it is a SwizzleType of torch"),
    (NV, {"swizzle_a": "SWIZZLE_32_4_4"}, TensorError, r"scale_a has shape \[40, 12\]: .* 1 \* 1 \* 3 \* 512 = 1536"),
    (NV, {"scale_a": NV.scale_a[:39]}, TensorError, r"scale_a has shape \[39, 12\]: nvfp4 takes \[40, 12\], a factor"),
    (NV, {"b": NV.b[:95]}, TensorError, "a byte has two elements of K, of a and of b"),
    (NV, {"scale_a": [NV.scale_a] * 3}, OperandError, "scale_a is 3 tensors"),
    (NV, {"scale_a": [NV.scale_a, HALF.double()]}, OperandError, r"scale_a\[1\] is torch.float64 of shape \[\]"),
    (NV, {"scale_a": [NV.scale_a, 2.0]}, OperandError, "global_a is a builtins.float"),
    (MX, {"scale_a": MX.scale_a[:, :2]}, TensorError, r"scale_a.float\(\) has scales of 128"),
    (NV, {"scale_b": (-NV.scale_b.float()).to(E4M3)}, OperandError, r"scale_b\[0, 0\] is -\d.*: a factor is not below"),
    (MX, {"config": Sm90Config((128, 128))}, OperandError, r"config is an Sm90Config: .*config=Sm100Config\(\)"),
    (MX, {"activation": "swiglu"}, OperandError, "activation 'swiglu': .*known are 'relu'"),
    (MX, {"out_recipe": "BlockWise1x128", "out_dtype": E4M3}, OperandError, "layoutgemm.quantize takes it"),
    (MX, {"epilogue": Epilogue()}, OperandError, "takes bias and activation; layoutgemm.plan"),
    (MX, {"rows": torch.zeros(3, dtype=torch.int64)}, OperandError, "takes bias and activation; layoutgemm.plan"),
    (MX, {"bias": BIAS.clone().requires_grad_()}, TensorError, "bias requires grad"),
    (MX, {"bias": BIAS[1:]}, TensorError, r"bias has shape \[47\]: \[48\]"),
    (NV, {"out_dtype": torch.int32}, OperandError, "a product of torch.float4_e2m1fn_x2 is stored as"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_what_no_kernel_takes_is_refused_by_name(at: int) -> None:
    one, given, kind, match = REFUSED[at]
    whole = {"a": one.a, "scale_a": one.scale_a, "b": one.b, "scale_b": one.scale_b, **given}
    with pytest.raises(kind, match=match):
        scaled_matmul(*[whole.pop(name) for name in ("a", "scale_a", "b", "scale_b")], **whole)
    with pytest.raises(OperandError, match=r"BlockWise1x16: .*factors of float8_e4m3fn and config=Sm100Config\(\)"):
        quantize(torch.ones(2, 2), "BlockWise1x16")


def test_a_second_call_is_a_kept_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors that lie as the kernel reads them. Others are copied, and the launch is made anew."""
    with every_door(monkeypatch, "sm_100a", computes=False) as made:
        given = {"config": ASKED, "bias": BIAS, "out_dtype": F32}
        for _ in range(2):
            scaled_matmul(*MX.as_torch, **given)
            scaled_matmul(NV.a, [NV.as_torch[1], HALF], *NV.as_torch[2:], **given)
        assert len(kept.READY) == 2
        scaled_matmul(*MX.given, **given)
        assert len(kept.READY) == 2 and len(made) == 5
    assert {plan.scales.format.name for plan, _ in made} == {"mxfp8", "nvfp4"}
    assert [plan.words[0] for plan, _ in made] == ["bias", "global_a", "bias", "global_a", "bias"]


CASES: dict[str, Any] = {
    "mxfp8": (lambda: scaled_matmul(*MX.as_torch, config=ASKED, out_dtype=F32), MX.want),
    "mxfp8, plain, bias": (lambda: scaled_matmul(*MX.given, config=ASKED, bias=BIAS, activation="relu", out_dtype=F32),
                           (MX.want + BIAS).relu()),
}  # fmt: skip


def case(form: str, sizes: tuple[int, ...], batch: tuple[int, ...] = ()) -> Any:
    one = Drawn(form, *sizes, batch=batch)
    return lambda: scaled_matmul(*one.given, config=ASKED, out_dtype=F32), one.want


CASES["mxfp4"] = case("mxfp4", (130, 47, 224))
CASES["nvfp4, a batch"] = case("nvfp4", (40, 48, 192), (2,))
CASES["mxfp8, N contiguous"] = (
    lambda: scaled_matmul(MX.a, MX.scale_a, MX.b.contiguous(), MX.scale_b, config=ASKED, out_dtype=F32),
    MX.want,
)
CASES["nvfp4, scales of all"] = (
    lambda: scaled_matmul(NV.a, [NV.as_torch[1], HALF], NV.b, [NV.scale_b, FOUR], **LEVELS, config=ASKED, bias=BIAS,
                          out_dtype=F32), 2 * NV.want + BIAS)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow) for name in CASES])
def test_its_kernel_runs_in_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, want = CASES[name]
    with every_door(monkeypatch, "sm_100a") as made:
        for _ in range(2):  # the first call, and a kept one
            assert torch.equal(call(), want.float())
    assert {type(plan).__name__ for plan, _ in made} == {"Sm100Plan"} and len(made) == 2
