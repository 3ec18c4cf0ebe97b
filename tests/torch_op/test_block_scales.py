"""scaled_matmul with block scales: MXFP8, MXFP4, NVFP4, as torch and torchao hand them over.

Want is decoded byte by byte here, and the blocked order is cuBLAS's as torchao writes it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import Sm100Config, explain_matmul, grouped_matmul, quantize, scaled_matmul
from layoutgemm.dtypes import dtype
from layoutgemm.errors import OperandError, PlanError, TensorError
from layoutgemm.kernels import Sm80Config, Sm90Config
from layoutgemm.kernels.epilogue.chain import Activation, Bias, ColumnReduce, Epilogue, Residual, RowReduce
from layoutgemm.torch_op.compiled.kept_launches import KEPT
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
         "nvfp4": ("e2m1", "e2m1", "ue4m3", 16), "mxf8f6f4": ("e4m3", "e2m1", "ue8m0", 32)}  # fmt: skip
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
    assert told.copies == ("scale_a: shape [40, 12], and the kernel takes chunks by SWIZZLE_32_4_4, 1536 bytes",)
    told = explain_matmul(MX.a, MX.b.contiguous(), scale_a=MX.scale_a, scale_b=MX.scale_b, config=ASKED)
    assert len(told.copies) == 3 and "b: the plan takes it col-major" in told.copies[2]
    with pytest.raises(OperandError, match=r"'mxfp8': not by the kernel of sm_90a: .*config=Sm100Config\(\) explains"):
        explain_matmul(MX.a, MX.b, scale_a=MX.scale_a, scale_b=MX.scale_b)
    with pytest.raises(OperandError, match="no wgmma has block scales"):  # CPU tensors stand for an H200's
        explain_matmul(MX.a, MX.b, scale_a=MX.scale_a, scale_b=MX.scale_b, config=Sm80Config((64, 64)))


REFUSED: list[tuple[Drawn, dict[str, Any], Any, str]] = [
    (NV, {"a": NV.a.view(torch.uint8)}, OperandError, r"a is torch.uint8: .*view\(torch.float4_e2m1fn_x2\)"),
    (NV, {"scale_b": None}, OperandError, "scale_b is missing"),
    (NV, {"scale_b": NV.scale_b.view(torch.uint8)}, OperandError, r"bytes of e8m0 are scale_b.view"),
    (NV, {"scale_a": NV.scale_a.view(E8M0)}, OperandError, "formats are mxfp8: float8_e4m3fn and float8_e5m2 with"),
    (MX, {"b": NV.b, "scale_a": NV.scale_a, "scale_b": NV.scale_b}, OperandError, "mxf8f6f4: float8_e4m3fn and float8"),
    (MX, {"b": NV.b[:80], "scale_b": MX.scale_b}, TensorError, "a byte of torch.float4_e2m1fn_x2 has two elements of"),
    (NV, {"recipe_a": "BlockWise1x32"}, OperandError, "recipe_a BlockWise1x32: .* is nvfp4, BlockWise1x16"),
    (NV, {"recipe_a": "BlockWise1x12"}, OperandError, "recipe_a 'BlockWise1x12': do you mean 'BlockWise1x"),
    (NV, {"recipe_a": ["BlockWise1x16", "TensorWise"]}, OperandError, r"scale_a is 1 tensor\(s\)"),
    (NV, {"swizzle_b": "SWIZZLE_32_4"}, OperandError, "swizzle_b 'SWIZZLE_32_4': do you mean 'SWIZZLE_32_4_4'"),
    (NV, {"swizzle_b": 3}, OperandError, "swizzle_b is a int; it is a SwizzleType of torch"),
    (NV, {"swizzle_a": "SWIZZLE_32_4_4"}, TensorError, r"scale_a has shape \[40, 12\]: .* 1 \* 1 \* 3 \* 512 = 1536"),
    (NV, {"scale_a": NV.scale_a[:39]}, TensorError, r"scale_a has shape \[39, 12\]: nvfp4 takes \[40, 12\], a factor"),
    (NV, {"b": NV.b[:95]}, TensorError, "a byte of torch.float4_e2m1fn_x2 has two elements of K"),
    (NV, {"scale_a": [NV.scale_a] * 3}, OperandError, "scale_a is 3 tensors"),
    (NV, {"scale_a": [NV.scale_a, HALF.double()]}, OperandError, r"scale_a\[1\] is torch.float64 of shape \[\]"),
    (NV, {"scale_a": [NV.scale_a, 2.0]}, OperandError, "global_a is a builtins.float"),
    (MX, {"scale_a": MX.scale_a[:, :2]}, TensorError, r"scale_a.float\(\) has scales of 128"),
    (NV, {"scale_b": (-NV.scale_b.float()).to(E4M3)}, OperandError, r"scale_b\[0, 0\] is -\d.*: a factor is not below"),
    (MX, {"config": Sm90Config((128, 128))}, OperandError, r"config is an Sm90Config: .*config=Sm100Config\(\)"),
    (MX, {"activation": "swigl"}, OperandError, "activation 'swigl': do you mean 'swiglu'"),
    (Drawn("mxfp8", 40, 3), {"activation": "swiglu"}, TensorError, "3"),
    (MX, {"out_recipe": "BlockWise1x128", "out_dtype": E4M3}, OperandError, "layoutgemm.quantize takes it"),
    (MX, {"rows": torch.zeros(3, dtype=torch.int64)}, OperandError, "takes bias and activation, or an epilogue; layou"),
    (NV, {"scale_a": [NV.scale_a, HALF], "epilogue": Epilogue()}, OperandError, r"its first step, Scale\('global_a'"),
    (MX, {"swizzle_b": "SWIZZLE_32_4", "epilogue": Epilogue()}, OperandError, "swizzle_b 'SWIZZLE_32_4': do you"),
    (MX, {"scale_a": torch.ones(40, 2), "scale_b": torch.ones(48, 2), "swizzle_a": "NO_SWIZZLE",
          "epilogue": Epilogue()}, OperandError, "swizzle_a: an order of factors of float8_e8m0fnu"),
    (MX, {"epilogue": Epilogue(), "out_recipe": "BlockWise1x128"}, OperandError, "layoutgemm.quantize takes it"),
    (MX, {"epilogue": Epilogue(), "bias": BIAS}, OperandError, "bias and epilogue: one or the other"),
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


RESIDUAL = torch.arange(40.0 * 48).reshape(40, 48) % 7 - 3
STEPS = Epilogue(Residual("f32", name="d", beta=None), Activation("relu"), RowReduce("max", "largest"))


def with_steps(one: Drawn, given: Any, residual: torch.Tensor = RESIDUAL, **more: Any) -> tuple[torch.Tensor, ...]:
    """The product with `STEPS`, and the largest of each row."""
    largest = torch.empty(40)
    c = scaled_matmul(*given, epilogue=STEPS, given={"d": residual, "largest": largest}, out_dtype=F32, **more)
    return c, largest


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_epilogue_follows_the_factors_and_its_operands_have_gradients(compiles: bool) -> None:
    for one in (MX, NV):
        want = (one.want + RESIDUAL).relu().float()
        residual = RESIDUAL.clone().requires_grad_()
        for given in (one.given, one.as_torch):
            call = torch.compile(with_steps, backend="aot_eager", fullgraph=True) if compiles else with_steps
            c, largest = call(one, given, residual)
            assert torch.equal(c, want) and torch.equal(largest, want.amax(-1))
        c.sum().backward()
        assert residual.grad is not None and torch.equal(residual.grad, (want > 0).float())
    told = explain_matmul(MX.a, MX.b, scale_a=MX.scale_a, scale_b=MX.as_torch[3], epilogue=STEPS, config=ASKED,
                          given={"d": RESIDUAL, "largest": torch.empty(40)})  # fmt: skip
    assert told.why.startswith("mxfp8: the instruction applies the factors; tiles of 128x128")
    assert told.copies[0] == "scale_a: shape [40, 6], and the kernel takes chunks by SWIZZLE_32_4_4, 1024 bytes"


# --------------------------------------------------------------------------------------------------------------- groups


class DrawnGroups:
    """Three experts, of which one has no rows, with a product and factors of each."""

    def __init__(self, form: str, n: int = 48) -> None:
        self.sizes, experts = [130, 0, 7], [Drawn(form, m, n, 192) for m in (130, 1, 7)]
        of_rows = [experts[0], experts[2]]
        self.a, self.scale_a = (torch.cat([getattr(x, name) for x in of_rows]) for name in ("a", "scale_a"))
        self.b = torch.stack([x.b.mT for x in experts]).mT
        self.scale_b = torch.stack([x.scale_b for x in experts])
        self.want = torch.cat([x.want for x in of_rows]).float()
        self.offsets, self.ends = torch.tensor([0, 130, 130, 137]), torch.tensor([130, 130, 137], dtype=torch.int32)
        # as torch has factors of groups: each padded to 128 rows, in memory for any groups of as many rows
        flat = torch.cat([blocked(x.scale_a) for x in of_rows]).view(torch.uint8)
        self.flat_a = torch.nn.functional.pad(flat, (0, flat.numel() // 3)).view(self.scale_a.dtype)
        self.flat_b = torch.cat([blocked(x) for x in self.scale_b])

    def __call__(self, **more: Any) -> torch.Tensor:
        given = {"offsets": self.offsets, "scale_a": self.scale_a, "scale_b": self.scale_b, "out_dtype": F32, **more}
        return grouped_matmul(self.a, self.b, **given)

    @property
    def masked(self) -> dict[str, Any]:
        """The same rows as masked groups of 140."""
        front = [torch.zeros(140, x.shape[1], dtype=torch.uint8) for x in (self.a, self.scale_a)]
        padded = []
        for x, zeros in zip((self.a, self.scale_a), front):
            parts = [torch.cat([part, zeros])[:140] for part in x.view(torch.uint8).split(self.sizes)]
            padded.append(torch.stack(parts).view(x.dtype))
        counts = torch.tensor(self.sizes)
        return {"a": padded[0], "b": self.b, "scale_a": padded[1], "scale_b": self.scale_b, "counts": counts}

    def counted(self, c: torch.Tensor) -> torch.Tensor:
        """The rows of masked groups that count."""
        return torch.cat([x[:size] for x, size in zip(c, self.sizes)])


GROUPS = {form: DrawnGroups(form) for form in ("mxfp8", "nvfp4")}
OF_EACH = torch.arange(3.0 * 48).reshape(3, 48) % 5


@pytest.mark.parametrize("form", [*GROUPS, "mxf8f6f4"])
def test_groups_have_factors_in_both_orders(form: str) -> None:
    of = GROUPS.get(form) or DrawnGroups(form)
    biased = (of.want + OF_EACH.repeat_interleave(torch.tensor(of.sizes), 0)).relu()
    flat = {"scale_a": of.flat_a, "scale_b": of.flat_b}
    assert torch.equal(of(), of.want) and torch.equal(of(**flat), of.want)
    assert torch.equal(of(**flat, bias=OF_EACH, activation="relu"), biased)
    ended = of(offsets=None, offs=torch.tensor([130, 130, 135]))
    assert torch.equal(ended[:135], of.want[:135]) and not ended[135:].any()
    assert torch.equal(of.counted(grouped_matmul(**of.masked, out_dtype=F32)), of.want)
    turned = grouped_matmul(of.b.mT, of.a.mT, offs=of.ends, scale_a=of.scale_b, scale_b=of.flat_a, out_dtype=F32)
    assert torch.equal(turned, of.want.mT)
    rows = torch.randperm(137, generator=torch.Generator().manual_seed(0))
    mixed_a, mixed_scales = (x.view(torch.uint8)[rows.argsort()].view(x.dtype) for x in (of.a, of.scale_a))
    options = {"scale_a": mixed_scales, "scale_b": of.scale_b, "out_dtype": F32, "rows": rows}
    assert torch.equal(grouped_matmul(mixed_a, of.b, offs=of.ends, **options), of.want)
    steps, largest = Epilogue(Bias(), ColumnReduce("max", "largest")), torch.empty(3, 48)
    of(epilogue=steps, given={"bias": OF_EACH, "largest": largest}, **flat)
    assert torch.equal(largest[0], (of.want[:130] + OF_EACH[0]).amax(0)) and (largest[1] == -torch.inf).all()
    batch = {"a": of.masked["a"], "b": of.b, "scale_a": of.masked["scale_a"], "scale_b": of.flat_b}
    assert torch.equal(of.counted(grouped_matmul(**batch, out_dtype=F32)), of.want)


def test_groups_are_explained_and_refused_by_name() -> None:
    of, told = GROUPS["mxfp8"], {}
    for name, scale_a in (("plain", of.scale_a), ("flat", of.flat_a)):
        told[name] = explain_matmul(of.a, of.b, offs=of.ends, scale_a=scale_a, scale_b=of.flat_b, config=ASKED)
        assert "rows in 3 group(s), mxfp8 scales" in told[name].kernel
    assert told["flat"].copies == ()  # 137 rows: 1 + (9 + 127 * 3) // 128 = 4 chunks at most, of 2 along K
    assert told["plain"].copies == (
        "scale_a: shape [137, 6], and the kernel takes chunks by SWIZZLE_32_4_4, 4096 bytes",
    )
    chosen = torch.zeros(137, dtype=torch.int64)
    found = explain_matmul(of.a, of.b, offs=of.ends, scale_a=of.scale_a, scale_b=of.flat_b, config=ASKED, rows=chosen)
    assert found.copies[0] == "a: torch gathers 137 chosen rows, 26304 bytes"
    refused = {
        r"scale_a has shape \[3584\]: mxfp8 takes \[137, 6\].* = 4096 factors .* at least, the rows of each group":
            {"scale_a": of.flat_a[:3584]},
        "recipe_a 'BlockWise1x12'": {"recipe_a": "BlockWise1x12"},
        "recipe_b BlockWise1x16: .* for factors of float8_e4m3fn": {"recipe_b": "BlockWise1x16"},
        "scale_b is missing": {"scale_b": None, "a": GROUPS["nvfp4"].a, "b": GROUPS["nvfp4"].b},
        "mxfp8 of groups along K has no kernel": {"b": of.b[0], "scale_b": of.scale_b[0],
                                                     "offsets": torch.tensor([0, 128, 192])},
        "requires grad": {"bias": OF_EACH.clone().requires_grad_()},
    }  # fmt: skip
    for match, options in refused.items():
        given = {"a": of.a, "b": of.b, "offsets": of.offsets, "scale_a": of.scale_a, "scale_b": of.scale_b, **options}
        with pytest.raises((OperandError, TensorError), match=match):
            grouped_matmul(**given)
    with pytest.raises(OperandError, match="BlockWise1x32: scales of 32 elements"):
        grouped_matmul(of.a, of.b, of.offsets, scale_a=torch.ones(137, 2), recipe_a="BlockWise1x32")


WIDE = Drawn("mxfp8", 40, 256)
WIDE_GROUPS = DrawnGroups("nvfp4", 256)


def gated(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """silu of the first half of the columns times the second."""
    gate, up = (x.double() if bias is None else x.double() + bias).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).float()


def is_gated(c: torch.Tensor, want: torch.Tensor) -> bool:
    """The gate's own rounding alone: the sums are exact."""
    return torch.allclose(c, want, rtol=1e-5, atol=1e-4)


def test_a_gate_is_of_both_halves_of_b_in_one_launch() -> None:
    for one in (WIDE, MX):
        for given in (one.given, one.as_torch):
            bias = torch.arange(float(one.b.shape[-1])) % 3
            got = scaled_matmul(*given, activation="swiglu", bias=bias, out_dtype=F32)
            assert is_gated(got, gated(one.want, bias))
            empty = Epilogue()
            assert is_gated(scaled_matmul(*given, activation="swiglu", epilogue=empty, out_dtype=F32), gated(one.want))
    scales = {"scale_a": WIDE.scale_a, "scale_b": WIDE.scale_b, "activation": "swiglu", "config": ASKED}
    told = explain_matmul(WIDE.a, WIDE.b, **scales)
    assert "40x128x192" in told.kernel and "tile 128x256x128" in told.kernel
    told = explain_matmul(MX.a, MX.b, **{**scales, "scale_a": MX.scale_a, "scale_b": MX.scale_b})
    assert "24 columns of a half; the other half's factors begin with a chunk" in str(told)
    for groups in (WIDE_GROUPS, GROUPS["mxfp8"]):
        assert is_gated(groups(activation="swiglu"), gated(groups.want))
        given = {"scale_a": groups.flat_a, "scale_b": groups.flat_b, "activation": "swiglu", "config": ASKED}
        told = explain_matmul(groups.a, groups.b, offsets=groups.offsets, **given)
        assert ("a half;" in str(told)) == (groups is GROUPS["mxfp8"])


def test_launches_that_copy_factors_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    of = GROUPS["mxfp8"]
    with every_door(monkeypatch, "sm_100a", computes=False) as made:
        for count in (1, 2):
            with_steps(MX, MX.given, config=ASKED)
            of(config=ASKED, scale_b=of.flat_b)
            assert (len(kept.READY), len(KEPT), len(made)) == (0, 0, 2 * count)
        for _ in range(2):
            of(config=ASKED, scale_a=of.flat_a, scale_b=of.flat_b)
        assert (len(kept.READY), len(made)) == (1, 6)


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


SWIGLU: dict[str, Any] = {"activation": "swiglu", "config": ASKED, "out_dtype": F32}
GATED_CASES: dict[str, Any] = {
    "mxfp8, a gate": (partial(scaled_matmul, *WIDE.as_torch, **SWIGLU), WIDE.want),
    "mxfp8, a gate by torch": (partial(scaled_matmul, *MX.given, **SWIGLU), MX.want),
    "nvfp4, groups, a gate": (partial(WIDE_GROUPS, **SWIGLU), WIDE_GROUPS.want),
    "nvfp4, masked, a gate": (lambda: WIDE_GROUPS.counted(grouped_matmul(**WIDE_GROUPS.masked, **SWIGLU)),
                              WIDE_GROUPS.want),
    "mxfp8, groups, a gate by torch": (partial(GROUPS["mxfp8"], **SWIGLU), GROUPS["mxfp8"].want),
    "mxfp8, a gate and an epilogue": (
        partial(scaled_matmul, *WIDE.as_torch, epilogue=Epilogue(Bias()), given={"bias": torch.zeros(128)}, **SWIGLU),
        WIDE.want),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow) for name in GATED_CASES])
def test_its_gate_runs_in_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, want = GATED_CASES[name]
    with every_door(monkeypatch, "sm_100a") as made:
        assert is_gated(call(), gated(want))
    assert len(made) == 1 and ("by torch" in name) == (made[0][0].gated is None)


MIXED = Drawn("mxf8f6f4", 40, 48, 256)
CASES["mxf8f6f4"] = (lambda: scaled_matmul(*MIXED.as_torch, config=ASKED, out_dtype=F32), MIXED.want)
CASES["mxf8f6f4, turned, a bias"] = (
    lambda: scaled_matmul(MIXED.b.mT, MIXED.scale_b, MIXED.a.mT, MIXED.scale_a, bias=BIAS[:40], config=ASKED,
                          out_dtype=F32), MIXED.want.mT + BIAS[:40])  # fmt: skip
CASES["nvfp4, an epilogue"] = (
    lambda: with_steps(NV, NV.as_torch, config=ASKED)[0], (NV.want + RESIDUAL).relu(),
)  # fmt: skip
CASES["mxfp8, an epilogue, copied factors"] = (
    lambda: with_steps(MX, MX.given, config=ASKED)[0], (MX.want + RESIDUAL).relu(),
)  # fmt: skip
for group_form, groups in GROUPS.items():
    flat = {"scale_a": groups.flat_a, "scale_b": groups.flat_b, "config": ASKED}
    CASES[f"{group_form}, groups"] = partial(groups, **flat), groups.want
CASES["mxfp8, groups, copied factors, a bias of each"] = (
    partial(GROUPS["mxfp8"], config=ASKED, bias=OF_EACH, activation="relu"),
    (GROUPS["mxfp8"].want + OF_EACH.repeat_interleave(torch.tensor(GROUPS["mxfp8"].sizes), 0)).relu(),
)
CASES["nvfp4, groups, an epilogue"] = (
    lambda: GROUPS["nvfp4"](epilogue=Epilogue(Bias()), given={"bias": OF_EACH}, config=ASKED),
    GROUPS["nvfp4"].want + OF_EACH.repeat_interleave(torch.tensor(GROUPS["nvfp4"].sizes), 0),
)
CASES["mxfp8, masked"] = (
    lambda: GROUPS["mxfp8"].counted(grouped_matmul(**GROUPS["mxfp8"].masked, config=ASKED, out_dtype=F32)),
    GROUPS["mxfp8"].want,
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow) for name in CASES])
def test_its_kernel_runs_in_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, want = CASES[name]
    with every_door(monkeypatch, "sm_100a") as made:
        for _ in range(2):  # the first call, and a kept one
            assert torch.equal(call(), want.float())
    assert {type(plan).__name__ for plan, _ in made} == {"Sm100Plan"} and len(made) == 2


# ---------------------------------------------------------------------------------------------------------- by mma.sync


FOURS = Drawn("mxfp4", batch=(2,))
ODD = Drawn("nvfp4", 20, 24, 72)  # 36 bytes from line to line, which cp.async of 16 bytes does not read
BY_MMA: dict[str, Any] = {
    "mxfp8": (lambda: scaled_matmul(*MX.as_torch, out_dtype=F32), MX.want),
    "mxfp8, N contiguous, bias": (
        lambda: scaled_matmul(MX.a, MX.scale_a, MX.b.contiguous(), MX.scale_b, bias=BIAS, activation="relu",
                              out_dtype=F32), (MX.want + BIAS).relu()),
    "mxf8f6f4": (lambda: scaled_matmul(*MIXED.given, out_dtype=F32), MIXED.want),
    "mxf8f6f4, an epilogue": (lambda: with_steps(MIXED, MIXED.as_torch)[0], (MIXED.want + RESIDUAL).relu()),
    "mxfp4, a batch": (lambda: scaled_matmul(*FOURS.given, out_dtype=F32), FOURS.want),
    "nvfp4, scales of all": (
        lambda: scaled_matmul(NV.a, [NV.as_torch[1], HALF], NV.b, [NV.scale_b, FOUR], **LEVELS, bias=BIAS,
                              out_dtype=F32), 2 * NV.want + BIAS),
    "nvfp4, an epilogue": (lambda: with_steps(NV, NV.as_torch)[0], (NV.want + RESIDUAL).relu()),
    "nvfp4, lines of 36 bytes": (
        lambda: scaled_matmul(*ODD.given, config=Sm80Config((32, 32), warps=(2, 1)), out_dtype=F32), ODD.want),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow) for name in BY_MMA])
def test_mma_sync_applies_them_on_compute_capability_12(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, want = BY_MMA[name]
    with every_door(monkeypatch, "sm_120a") as made:
        for _ in range(2):
            assert torch.equal(call(), want.float())
    assert {type(plan).__name__ for plan, _ in made} == {"Sm80Plan"} and len(made) == 2
    assert made[0][0].scales.format.name in name


def test_mma_sync_has_no_gate_and_no_groups_with_block_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    of = GROUPS["mxfp8"]
    with every_door(monkeypatch, "sm_120a", computes=False) as made:
        scaled_matmul(*WIDE.given, activation="swiglu", out_dtype=F32)
        assert [plan.gated for plan, _ in made] == [None] and made[0][0].c.dtype.name == "f32"
        for call in (of, partial(of, scale_a=of.flat_a)):
            with pytest.raises(PlanError, match=r"ragged: the mma.sync kernel has none with scales = 'mxfp8'"):
                call()
        with pytest.raises(PlanError, match=r"gated: the mma.sync kernel has none"):
            scaled_matmul(*WIDE.given, activation="swiglu", epilogue=Epilogue())
